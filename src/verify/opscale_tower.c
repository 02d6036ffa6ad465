/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the natural scales of the operators of towers: attention within spans of rows, and shares of a table.
 */
#include <math.h>
#include <stdlib.h>

#include "verify/opcase.h"

/* One row of one head, scale [v_dim]: the largest |v| attended, times 1 + the largest natural scale of a
 * score. */
static void scale_span(const struct opcase *c, int64_t t, int64_t h, int64_t v_dim, double *scale)
{
    const int32_t *span = opcase_ints(c, 3) + 2 * t;
    const int64_t heads = opshape_int(&c->shape, D0_ATTR_HEADS),
                  kv = opshape_int(&c->shape, D0_ATTR_KV_HEADS), dim = opshape_int(&c->shape, D0_ATTR_DIM),
                  g = h * kv / heads;
    const float *q = opcase_rows(c, 0) + (t * heads + h) * dim;
    const double factor = fabs(opshape_real(&c->shape, D0_ATTR_SCALE));
    double size = 0;
    for (int64_t i = 0; i < v_dim; i++)
        scale[i] = 0;
    for (int64_t j = span[0]; j < span[1]; j++) {
        const float *k = opcase_rows(c, 1) + (j * kv + g) * dim,
                    *v = opcase_rows(c, 2) + (j * kv + g) * v_dim;
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < dim; i++) {
            const double term = (double)q[i] * (double)k[i];
            sum += term;
            squares += term * term;
        }
        size = fmax(size, factor * opscale_sum(sum, squares));
        for (int64_t i = 0; i < v_dim; i++)
            scale[i] = fmax(scale[i], fabs((double)v[i]));
    }
    for (int64_t i = 0; i < v_dim; i++)
        scale[i] = fmax(scale[i] * (1 + size), OPSCALE_FLOOR);
}

bool opscale_segments(const struct opcase *c, struct opscale *s)
{
    const int64_t heads = opshape_int(&c->shape, D0_ATTR_HEADS), v_dim = (int64_t)c->out_width[0] / heads;
    for (int64_t t = 0; t < c->dims[0]; t++)
        for (int64_t h = 0; h < heads; h++)
            scale_span(c, t, h, v_dim, s->out[0] + (t * heads + h) * v_dim);
    return true;
}

/* The largest of the terms, and of their sum. */
bool opscale_position_embed(const struct opcase *c, const struct opresult *ref, struct opscale *s)
{
    float *table = opcase_widened(c, 1); /* [V, K] */
    const float *weights = opcase_size(c, 2, 1) ? opcase_rows(c, 2) : NULL;
    const int32_t *rows = opcase_ints(c, 0);
    const int64_t n = opcase_size(c, 0, 1), v = opcase_size(c, 1, 0), k = (int64_t)c->out_width[0];
    for (int64_t i = 0; table && i < (int64_t)c->n_out[0]; i++) {
        double size = fmax(fabs((double)ref->out[0][i]), OPSCALE_FLOOR);
        for (int64_t j = i / k * n; j < (i / k + 1) * n; j++)
            if (rows[j] >= 0 && rows[j] < v)
                size =
                    fmax(size, fabs((weights ? (double)weights[j] : 1) * (double)table[rows[j] * k + i % k]));
        s->out[0][i] = size;
    }
    free(table);
    return table != NULL;
}
