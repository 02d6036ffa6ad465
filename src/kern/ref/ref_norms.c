/* SPDX-License-Identifier: Apache-2.0
 *
 * Definitions of layer_norm and gated_norm: runs of `dim` values of a row, sums in float64. Refuses nothing:
 * sizes and attributes have passed the device's rules.
 */
#include <math.h>

#include "kern/ref/ref.h"
#include "kern/ref/ref_activation.h"

static size_t run_of(const struct kern_args *a)
{
    return (size_t)(a->attr[D0_ATTR_DIM].i > 0 ? a->attr[D0_ATTR_DIM].i : a->k);
}

void ref_layer_norm(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const unsigned char *w = a->in[1], *b = a->in[2]; /* [dim] or NULL */
    size_t k = (size_t)a->k, dim = run_of(a);
    for (size_t at = first * k; at < last * k; at += dim) {
        const float *x = (const float *)a->in[0] + at; /* of [n_rows, k] */
        float *out = (float *)a->out[0] + at;
        double mean = 0, variance = 0;
        for (size_t i = 0; i < dim; i++)
            mean += (double)x[i];
        mean /= (double)dim;
        for (size_t i = 0; i < dim; i++)
            variance += ((double)x[i] - mean) * ((double)x[i] - mean);
        double inverse = 1.0 / sqrt(variance / (double)dim + a->attr[D0_ATTR_EPS].f);
        for (size_t i = 0; i < dim; i++) {
            double y = ((double)x[i] - mean) * inverse;
            y = w ? y * (double)ref_load(w, a->in_dtype[1], i) : y;
            out[i] = (float)(b ? y + (double)ref_load(b, a->in_dtype[2], i) : y);
        }
    }
}

void ref_gated_norm(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const unsigned char *w = a->in[2]; /* [dim] or NULL */
    int64_t function = a->attr[D0_ATTR_FUNCTION].i;
    double limit = a->attr[D0_ATTR_LIMIT].f;
    size_t k = (size_t)a->k, dim = run_of(a);
    bool before = a->attr[D0_ATTR_BEFORE].i != 0;
    for (size_t at = first * k; at < last * k; at += dim) {
        const float *x = (const float *)a->in[0] + at, *gate = (const float *)a->in[1] + at;
        float *out = (float *)a->out[0] + at; /* all of [n_rows, k] */
        double squares = 0;
        for (size_t i = 0; i < dim; i++) {
            double v = (double)x[i] * (before ? ref_activation(function, (double)gate[i], 0, limit) : 1.0);
            squares += v * v;
        }
        double inverse = 1.0 / sqrt(squares / (double)dim + a->attr[D0_ATTR_EPS].f);
        for (size_t i = 0; i < dim; i++) {
            double y = (double)x[i] * ref_activation(function, (double)gate[i], 0, limit) * inverse;
            out[i] = (float)(w ? y * (double)ref_load(w, a->in_dtype[2], i) : y);
        }
    }
}
