/* SPDX-License-Identifier: Apache-2.0
 *
 * Definitions of the operators of towers, and of what a text takes from them: segment_attention,
 * position_embed, scatter_rows. Plain loops; long sums in float64. A number of a row that is none gives NaN.
 */
#include <math.h>
#include <string.h>

#include "kern/ref/ref.h"

/* The heads of row t attend to rows [from, to) of k and v. */
static void attend_span(const struct kern_args *a, size_t t, size_t h, size_t from, size_t to, double *acc)
{
    const size_t heads = (size_t)a->heads, kv_heads = (size_t)a->kv_heads, dim = (size_t)a->dim,
                 v_dim = a->v_dim ? (size_t)a->v_dim : dim, g = h * kv_heads / heads;
    const float *q = (const float *)a->in[0] + (t * heads + h) * dim; /* [dim] */
    const float *k = a->in[1], *v = a->in[2];                         /* [S, kv_heads * .] */
    double top = -INFINITY, sum = 0;
    for (size_t pass = 0; pass < 2; pass++) /* the largest score, then the sums */
        for (size_t i = from; i < to; i++) {
            double dot = 0;
            for (size_t d = 0; d < dim; d++)
                dot += (double)q[d] * (double)k[(i * kv_heads + g) * dim + d];
            dot *= a->scale;
            if (pass == 0) {
                top = dot > top || isnan(dot) ? dot : top;
                continue;
            }
            double weight = exp(dot - top);
            sum += weight;
            for (size_t d = 0; d < v_dim; d++)
                acc[d] += weight * (double)v[(i * kv_heads + g) * v_dim + d];
        }
    for (size_t d = 0; d < v_dim; d++)
        acc[d] /= sum;
}

size_t ref_segment_attention_scratch(const struct kern_args *a)
{
    return (size_t)(a->v_dim ? a->v_dim : a->dim) * sizeof(double);
}

void ref_segment_attention(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const int32_t *spans = a->in[3]; /* [T, 2] */
    float *out = a->out[0];          /* [T, heads * v_dim] */
    const size_t heads = (size_t)a->heads, v_dim = a->v_dim ? (size_t)a->v_dim : (size_t)a->dim;
    double *acc = (double *)((unsigned char *)a->scratch + (size_t)thread * a->scratch_bytes); /* [v_dim] */
    for (size_t item = first; item < last; item++) {
        const size_t t = item / heads;
        const int64_t from = spans[2 * t], to = spans[2 * t + 1];
        const bool there = from >= 0 && from < to && to <= a->in_dims[1][0];
        memset(acc, 0, v_dim * sizeof *acc);
        if (there)
            attend_span(a, t, item % heads, (size_t)from, (size_t)to, acc);
        for (size_t d = 0; d < v_dim; d++)
            out[item * v_dim + d] = there ? (float)acc[d] : NAN;
    }
}

void ref_position_embed(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const int32_t *rows = a->in[0];  /* [T, m] */
    const float *weights = a->in[2]; /* [T, m] or NULL */
    float *out = a->out[0];          /* [T, n] */
    const size_t m = (size_t)a->in_dims[0][1], n = (size_t)a->n;
    const int64_t table = a->in_dims[1][0];
    for (size_t t = first; t < last; t++)
        for (size_t i = 0; i < n; i++) {
            double sum = 0;
            for (size_t j = t * m; j < (t + 1) * m; j++) {
                if (rows[j] == -1)
                    continue;
                const bool there = rows[j] >= 0 && rows[j] < table;
                const double w = weights ? (double)weights[j] : 1;
                sum += there ? w * (double)ref_load(a->in[1], a->in_dtype[1], (size_t)rows[j] * n + i)
                             : (double)NAN;
            }
            out[t * n + i] = (float)sum;
        }
}

void ref_scatter_rows(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0];      /* [T, n] */
    const int32_t *from = a->in[2]; /* [T] */
    float *out = a->out[0];         /* [T, n] */
    const size_t n = (size_t)a->n;
    const bool add = a->attr[D0_ATTR_ADD].i != 0;
    for (size_t t = first; t < last; t++) {
        const bool there = from[t] >= 0 && from[t] < a->in_dims[1][0];
        for (size_t i = 0; i < n; i++) {
            const float own = x[t * n + i],
                        row = there ? ref_load(a->in[1], a->in_dtype[1], (size_t)from[t] * n + i) : NAN;
            out[t * n + i] = from[t] == -1 ? own : there && add ? own + row : row; /* features [F, n] */
        }
    }
}
