/* SPDX-License-Identifier: Apache-2.0
 *
 * Definitions of the operators that work on rows: embed, linear, group_linear, rms_norm, add, gather_rows.
 * Plain loops; long sums in float64.
 */
#include <math.h>
#include <string.h>

#include "kern/ref/ref.h"

void ref_embed(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const int32_t *ids = a->in[0];         /* [T] */
    const unsigned char *table = a->in[1]; /* [V, n] */
    float *out = a->out[0];                /* [T, n] */
    for (size_t t = first; t < last; t++) {
        float *row = out + t * (size_t)a->n;
        bool known = ids[t] >= 0 && ids[t] < a->vocab;
        size_t at = known ? (size_t)ids[t] * (size_t)a->n : 0;
        for (size_t i = 0; i < (size_t)a->n; i++)
            row[i] = known ? ref_load(table, a->in_dtype[1], at + i) : NAN;
    }
}

void ref_row(const struct kern_args *a, unsigned i, size_t row, size_t k, float *out)
{
    if (a->in_form[i]) {
        tensor_form_row(a->in_form[i], a->in[i], row, out);
        return;
    }
    for (size_t j = 0; j < k; j++)
        out[j] = ref_load(a->in[i], a->in_dtype[i], row * k + j);
}

float ref_tree_sum(float *part, size_t n)
{
    for (size_t width = n; width > 1; width /= 2)
        for (size_t s = 0; s < width / 2; s++)
            part[s] = part[2 * s] + part[2 * s + 1];
    return part[0];
}

void ref_linear(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const float *x = kern_rows(a);        /* [n_rows, k] */
    const unsigned char *bias = a->in[2]; /* [n] or NULL */
    float *out = a->out[0];               /* [n_rows, n] */
    size_t k = (size_t)a->k, n_segments = a->segments > 1 ? (size_t)a->segments : 1, length = k / n_segments;
    float *w = (float *)((unsigned char *)a->scratch + (size_t)thread * a->scratch_bytes); /* [k] */
    if (a->phase == 0) {
        kern_round_rows(a, first, last);
        return;
    }
    for (size_t j = first; j < last; j++) {
        ref_row(a, 1, j, k, w);
        for (size_t t = 0; t < (size_t)a->n_rows; t++) {
            float part[64];
            for (size_t s = 0; s < n_segments; s++) {
                double sum = 0;
                for (size_t i = s * length; i < (s + 1) * length; i++)
                    sum += (double)x[t * k + i] * (double)w[i];
                part[s] = (float)sum;
            }
            float y = ref_tree_sum(part, n_segments);
            out[t * (size_t)a->n + j] = bias ? y + ref_load(bias, a->in_dtype[2], j) : y;
        }
    }
}

void ref_group_linear(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const float *x = kern_rows(a); /* [n_rows, groups * k] */
    float *out = a->out[0];        /* [n_rows, groups * columns] */
    size_t groups = a->attr[D0_ATTR_GROUPS].i > 1 ? (size_t)a->attr[D0_ATTR_GROUPS].i : 1,
           k = (size_t)a->k / groups, columns = (size_t)a->n / groups;
    float *w = (float *)((unsigned char *)a->scratch + (size_t)thread * a->scratch_bytes); /* [k] */
    if (a->phase == 0) {
        kern_round_rows(a, first, last);
        return;
    }
    for (size_t j = first; j < last; j++) {
        ref_row(a, 1, j, k, w);
        for (size_t t = 0; t < (size_t)a->n_rows; t++) {
            const float *v = x + t * (size_t)a->k + j / columns * k;
            double sum = 0;
            for (size_t i = 0; i < k; i++)
                sum += (double)v[i] * (double)w[i];
            out[t * (size_t)a->n + j] = (float)sum;
        }
    }
}

void ref_rms_norm(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0];         /* [n_rows, k] */
    const unsigned char *w = a->in[1]; /* [dim] or NULL */
    float *out = a->out[0];            /* [n_rows, k] */
    size_t k = (size_t)a->k, dim = a->dim > 0 ? (size_t)a->dim : k,
           n_segments = a->segments > 1 ? (size_t)a->segments : 1;
    for (size_t t = first; t < last; t++)
        for (size_t group = 0; group < k; group += dim) {
            const float *v = x + t * k + group;
            float part[64];
            for (size_t s = 0; s < n_segments; s++) {
                double sum = 0;
                for (size_t i = dim / n_segments * s; i < dim / n_segments * (s + 1); i++)
                    sum += (double)v[i] * (double)v[i];
                part[s] = (float)sum;
            }
            double mean = (double)ref_tree_sum(part, n_segments) / (double)dim,
                   inverse = 1.0 / sqrt(mean + a->eps);
            for (size_t i = 0; i < dim; i++) {
                double weight = w ? (double)ref_load(w, a->in_dtype[1], i) + (a->plus_one ? 1.0 : 0.0) : 1.0;
                out[t * k + group + i] = (float)((double)v[i] * inverse * weight);
            }
        }
}

void ref_add(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0], *y = a->in[1]; /* [n_rows, n] */
    float *out = a->out[0];
    for (size_t i = first; i < last; i++)
        out[i] = x[i] + y[i];
}

void ref_gather_rows(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0];      /* [source_rows, k] */
    const int32_t *rows = a->in[1]; /* [n_rows, m] */
    float *out = a->out[0];         /* [n_rows, m * k] */
    size_t m = a->in_dims[1][1] > 1 ? (size_t)a->in_dims[1][1] : 1, k = (size_t)a->n / m;
    for (size_t r = first * m; r < last * m; r++) {
        if (rows[r] >= 0 && rows[r] < a->source_rows)
            memcpy(out + r * k, x + (size_t)rows[r] * k, k * sizeof *out);
        else
            for (size_t i = 0; i < k; i++)
                out[r * k + i] = NAN;
    }
}
