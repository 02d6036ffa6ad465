/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the natural scales of the fused operators: those of the last operator that each is made of, with the
 * errors that the ones before hand on.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "verify/opcase.h"

struct pieces {
    const struct opcase *c;
    float *w[D0_MAX_NODE_INPUTS]; /* widened weights */
};

static bool pieces_open(struct pieces *p, const struct opcase *c, uint32_t first, uint32_t last)
{
    *p = (struct pieces){.c = c};
    for (uint32_t i = first; i <= last; i++)
        if (c->in[i] != D0_NO_VALUE && !(p->w[i] = opcase_widened(c, i)))
            return false;
    return true;
}

static void pieces_close(struct pieces *p)
{
    for (uint32_t i = 0; i < D0_MAX_NODE_INPUTS; i++)
        free(p->w[i]);
}

/* Row t of x with row j of weight w; *scale: natural scale of the sum. */
static double product(const struct pieces *p, uint32_t w, uint32_t bias, int64_t t, int64_t j, double *scale)
{
    int64_t k = opcase_size(p->c, 0, 1);
    const float *x = opcase_rows(p->c, 0) + t * k, *row = p->w[w] + j * k;
    double b = p->w[bias] ? (double)p->w[bias][j] : 0, sum = b, squares = b * b;
    for (int64_t i = 0; i < k; i++) {
        double term = (double)x[i] * (double)row[i];
        sum += term;
        squares += term * term;
    }
    *scale = opscale_sum(sum, squares);
    return sum;
}

bool opscale_qkv(const struct opcase *c, struct opscale *s)
{
    struct pieces p;
    bool ok = pieces_open(&p, c, 1, 6);
    for (uint32_t o = 0; ok && o < 3; o++)
        for (size_t i = 0; i < c->n_out[o]; i++)
            (void)product(&p, 1 + o, 4 + o, (int64_t)(i / c->out_width[o]), (int64_t)(i % c->out_width[o]),
                          &s->out[o][i]);
    pieces_close(&p);
    return ok;
}

bool opscale_gate_up(const struct opcase *c, struct opscale *s)
{
    struct pieces p;
    bool ok = pieces_open(&p, c, 1, 4);
    for (size_t i = 0; ok && i < c->n_out[0]; i++) {
        int64_t t = (int64_t)(i / c->out_width[0]), j = (int64_t)(i % c->out_width[0]);
        double by_g, by_u, g = product(&p, 1, 3, t, j, &by_g), u = product(&p, 2, 4, t, j, &by_u);
        s->out[0][i] = fmax(opact_reach(&c->shape, true, g, u, by_g, by_u), OPSCALE_FLOOR * fmax(1, fabs(u)));
    }
    pieces_close(&p);
    return ok;
}

/* |y| of a norm with weight w; with plus_one 1 + w may cancel. */
static double normed_size(const struct opcase *c, const float *w, int64_t i, double y)
{
    if (!w || !opshape_int(&c->shape, D0_ATTR_PLUS_ONE))
        return fabs(y);
    double by = fabs(1 + (double)w[i]);
    return by > 0 ? fabs(y) / by * fmax(1, fabs((double)w[i])) : 1;
}

/* out[0] is one addition and must be the same; out[1] is a norm. */
bool opscale_norm_residual(const struct opcase *c, const struct opresult *ref, struct opscale *s)
{
    struct pieces p;
    bool ok = pieces_open(&p, c, 2, 2);
    int64_t d = ok && p.w[2] ? opcase_size(c, 2, 0) : 1;
    for (size_t i = 0; ok && i < c->n_out[1]; i++) {
        s->out[0][i] = 0;
        s->out[1][i] = normed_size(c, p.w[2], (int64_t)i % d, (double)ref->out[1][i]);
    }
    pieces_close(&p);
    return ok;
}

/* One head at x[dim]: natural scale of each value after norm and rotation. y, size: [dim] */
static void head_scale(const struct pieces *p, const float *x, uint32_t norm, double *y, double *size,
                       double *scale)
{
    const struct opshape *shape = &p->c->shape;
    int64_t dim = opshape_int(shape, D0_ATTR_DIM), width = opcase_size(p->c, 8, 1), half = width / 2,
            offset = opshape_int(shape, D0_ATTR_OFFSET), pairs = opshape_int(shape, D0_ATTR_STYLE);
    double squares = 0, plus = opshape_int(shape, D0_ATTR_PLUS_ONE) ? 1 : 0;
    for (int64_t i = 0; i < dim; i++)
        squares += (double)x[i] * (double)x[i];
    double root = sqrt(squares / (double)dim + opshape_real(shape, D0_ATTR_EPS));
    for (int64_t i = 0; i < dim; i++) {
        y[i] = p->w[norm] ? (double)x[i] / root * ((double)p->w[norm][i] + plus) : (double)x[i];
        size[i] = p->w[norm] ? normed_size(p->c, p->w[norm], i, y[i]) : 0;
    }
    for (int64_t i = 0; i < dim; i++) {
        int64_t at = i - offset, partner = i;
        if (at >= 0 && at < width)
            partner = offset + (pairs ? (at ^ 1) : (at < half ? at + half : at - half));
        scale[i] = 0; /* passes through: the very bits */
        if (partner != i || p->w[norm])
            scale[i] =
                fmax(OPSCALE_FLOOR, fmax(fmax(size[i], size[partner]), fmax(fabs(y[i]), fabs(y[partner]))));
    }
}

bool opscale_norm_rope_store(const struct opcase *c, struct opscale *s)
{
    struct pieces p;
    int64_t dim = opshape_int(&c->shape, D0_ATTR_DIM), kv_heads = opshape_int(&c->shape, D0_ATTR_KV_HEADS),
            heads = opcase_size(c, 0, 1) / dim;
    const struct d0_value *pages = &c->g->values[c->in[3]];
    size_t n = (size_t)(pages->dims[0] * pages->dims[1] * pages->dims[2] * pages->dims[3]);
    double *scale = s->state[c->in[3]] = calloc(n, sizeof *scale), /* 0: not touched, equal bits */
        *y = malloc(2 * (size_t)dim * sizeof *y);
    bool ok = pieces_open(&p, c, 9, 10) && scale && y;
    for (int64_t h = 0; ok && h < c->dims[0] * heads; h++)
        head_scale(&p, opcase_rows(c, 0) + h * dim, 9, y, y + dim, s->out[0] + h * dim);
    for (int64_t h = 0; ok && h < c->dims[0] * kv_heads; h++) {
        int64_t t = h / kv_heads,
                slot = opcase_slot(c, 3, opcase_ints(c, 6)[t], opcase_ints(c, 5)[t], h % kv_heads);
        head_scale(&p, opcase_rows(c, 1) + h * dim, 10, y, y + dim, scale + slot * dim);
    }
    free(y);
    pieces_close(&p);
    return ok;
}
