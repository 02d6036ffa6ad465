/* SPDX-License-Identifier: Apache-2.0
 *
 * Definitions of the operators that mix residuals: mix_residual (softmax over kept sums), hyper_in,
 * hyper_out and hyper_head (several streams, mixed by weights that the streams themselves give).
 */
#include <math.h>

#include "kern/ref/ref_sparse.h"

/* ---- mix_residual ---- */

#define MOST_MIXED (D0_MAX_NODE_INPUTS - 2)

/* (rms_norm(v) * norm) . proj */
static double mix_logit(const struct kern_args *a, const float *v)
{
    size_t k = (size_t)a->k;
    double squares = 0, dot = 0;
    for (size_t i = 0; i < k; i++) {
        squares += (double)v[i] * (double)v[i];
        dot += (double)v[i] * (double)ref_load(a->in[1], a->in_dtype[1], i) *
               (double)ref_load(a->in[2], a->in_dtype[2], i);
    }
    return dot / sqrt(squares / (double)k + a->eps);
}

void ref_mix_residual(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    size_t k = (size_t)a->k;
    float *out = a->out[0]; /* [T, k] */
    for (size_t t = first; t < last; t++) {
        const float *v[MOST_MIXED];
        double p[MOST_MIXED], top = -INFINITY, sum = 0;
        size_t n = 0;
        for (unsigned i = 0; i < D0_MAX_NODE_INPUTS; i++)
            if ((i == 0 || i > 2) && a->in[i])
                v[n++] = (const float *)a->in[i] + t * k;
        for (size_t i = 0; i < n; i++) {
            p[i] = mix_logit(a, v[i]);
            top = p[i] > top || isnan(p[i]) ? p[i] : top;
        }
        for (size_t i = 0; i < n; i++)
            sum += p[i] = exp(p[i] - top);
        for (size_t j = 0; j < k; j++) {
            double mixed = 0;
            for (size_t i = 0; i < n; i++)
                mixed += p[i] * (double)v[i][j];
            out[t * k + j] = (float)(mixed / sum);
        }
    }
}

/* ---- hyper-connections ---- */

size_t ref_hyper_scratch(const struct kern_args *a)
{
    size_t n = (size_t)a->attr[D0_ATTR_STREAMS].i;
    return n * (n + 2) * sizeof(double) + (size_t)a->k * sizeof(float);
}

double ref_hyper_sigmoid(const struct kern_args *a, double z, size_t i, size_t part)
{
    return 1 / (1 + exp(-(z * (double)ref_load(a->in[3], a->in_dtype[3], part) +
                          (double)ref_load(a->in[2], a->in_dtype[2], i))));
}

/* Each row, or each column, of c[n, n] over (its sum + eps). */
static void normalise(double *c, size_t n, bool rows, double eps)
{
    size_t step = rows ? 1 : n, next = rows ? n : 1;
    for (size_t i = 0; i < n; i++) {
        double sum = eps;
        for (size_t j = 0; j < n; j++)
            sum += c[i * next + j * step];
        for (size_t j = 0; j < n; j++)
            c[i * next + j * step] /= sum;
    }
}

void ref_hyper_mixture(const struct kern_args *a, double *z)
{
    size_t n = (size_t)a->attr[D0_ATTR_STREAMS].i;
    double eps = a->attr[D0_ATTR_RENORM_EPS].f, *c = z + 2 * n,
           scale = (double)ref_load(a->in[3], a->in_dtype[3], 2);
    for (size_t i = 0; i < n; i++) {
        z[i] = ref_hyper_sigmoid(a, z[i], i, 0) + eps;
        z[n + i] = 2 * ref_hyper_sigmoid(a, z[n + i], n + i, 1);
    }
    for (size_t i = 0; i < n; i++) {
        double top = -INFINITY, sum = 0, *row = c + i * n;
        for (size_t j = 0; j < n; j++) {
            row[j] = row[j] * scale + (double)ref_load(a->in[2], a->in_dtype[2], 2 * n + i * n + j);
            top = row[j] > top ? row[j] : top;
        }
        for (size_t j = 0; j < n; j++)
            sum += row[j] = exp(row[j] - top);
        for (size_t j = 0; j < n; j++)
            row[j] = row[j] / sum + eps;
    }
    normalise(c, n, false, eps);
    for (int64_t round = 1; round < a->attr[D0_ATTR_ROUNDS].i; round++) {
        normalise(c, n, true, eps);
        normalise(c, n, false, eps);
    }
}

/* z[i] = fn_i . x / rms(x) for the first n rows of fn; w is room for one of them. */
static void products(const struct kern_args *a, const float *x, size_t n, double *z, float *w)
{
    size_t k = (size_t)a->k;
    double squares = 0;
    for (size_t j = 0; j < k; j++)
        squares += (double)x[j] * (double)x[j];
    double rms = sqrt(squares / (double)k + a->eps);
    for (size_t i = 0; i < n; i++) {
        double dot = 0;
        ref_row(a, 1, i, k, w);
        for (size_t j = 0; j < k; j++)
            dot += (double)x[j] * (double)w[j];
        z[i] = dot / rms;
    }
}

/* out[h] = sum over streams of weight[j] * x[j * h + .] */
static void collapse(const float *x, const double *weight, size_t n, size_t h, float *out)
{
    for (size_t i = 0; i < h; i++) {
        double sum = 0;
        for (size_t j = 0; j < n; j++)
            sum += weight[j] * (double)x[j * h + i];
        out[i] = (float)sum;
    }
}

void ref_hyper_in(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const float *x = a->in[0]; /* [T, k]: n streams of h */
    size_t k = (size_t)a->k, n = (size_t)a->attr[D0_ATTR_STREAMS].i, h = k / n;
    double *z = ref_scratch(a, thread);
    for (size_t t = first; t < last; t++) {
        products(a, x + t * k, n * (n + 2), z, (float *)(z + n * (n + 2)));
        ref_hyper_mixture(a, z);
        collapse(x + t * k, z, n, h, (float *)a->out[0] + t * h);
        for (size_t i = 0; i < n * (n + 1); i++)
            ((float *)a->out[1])[t * n * (n + 1) + i] = (float)z[n + i];
    }
}

void ref_hyper_out(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    size_t n = (size_t)a->attr[D0_ATTR_STREAMS].i, h = (size_t)a->k;
    for (size_t t = first; t < last; t++) {
        const float *y = (const float *)a->in[0] + t * h, *x = (const float *)a->in[1] + t * n * h,
                    *m = (const float *)a->in[2] + t * n * (n + 1); /* post[n], C[n, n] */
        float *out = (float *)a->out[0] + t * n * h;
        for (size_t s = 0; s < n; s++)
            for (size_t i = 0; i < h; i++) {
                double sum = (double)m[s] * (double)y[i];
                for (size_t j = 0; j < n; j++)
                    sum += (double)m[n + j * n + s] * (double)x[j * h + i];
                out[s * h + i] = (float)sum;
            }
    }
}

void ref_hyper_head(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const float *x = a->in[0]; /* [T, k]: n streams of h */
    size_t k = (size_t)a->k, n = (size_t)a->attr[D0_ATTR_STREAMS].i, h = k / n;
    double *z = ref_scratch(a, thread);
    for (size_t t = first; t < last; t++) {
        products(a, x + t * k, n, z, (float *)(z + n * (n + 2)));
        for (size_t i = 0; i < n; i++)
            z[i] = ref_hyper_sigmoid(a, z[i], i, 0) + a->attr[D0_ATTR_RENORM_EPS].f;
        collapse(x + t * k, z, n, h, (float *)a->out[0] + t * h);
    }
}
