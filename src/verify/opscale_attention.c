/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the natural scales of attention over pages: grouped heads, pooled entries, latents. An error of a
 * score, in units of 2^-23 of its own natural scale, is a relative error of its exponential.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "verify/opcase.h"

struct attended {
    const struct opcase *c;
    const float *q; /* of one token and head */
    float *k, *v;   /* widened inputs 1 and 2 */
    int64_t dim, v_dim;
    double factor, cap;
    double size; /* largest natural scale of a score so far */
};

static void score_size(struct attended *a, const float *k)
{
    double squares = 0, sum = 0, slope = 1;
    for (int64_t i = 0; i < a->dim; i++) {
        double term = (double)a->q[i] * (double)k[i];
        squares += term * term;
        sum += term;
    }
    if (a->cap > 0) { /* an error before the cap comes through by its slope */
        double t = tanh(sum * a->factor / a->cap);
        slope = 1 - t * t;
        a->size = fmax(a->size, fabs(a->cap * t));
    } else {
        a->size = fmax(a->size, fabs(a->factor * sum));
    }
    a->size = fmax(a->size, slope * fabs(a->factor) * opscale_sum(sum, squares));
}

static void one_key(struct attended *a, const float *k, const float *v, double *scale)
{
    score_size(a, k);
    for (int64_t i = 0; i < a->v_dim; i++)
        scale[i] = fmax(scale[i], fabs((double)v[i]));
}

/* Largest |v| attended, times 1 + the largest size of a score. */
static void scale_head(struct attended *a, int64_t t, int64_t head, int64_t heads, double *scale)
{
    const struct opcase *c = a->c;
    bool pool = c->shape.node.op == D0_OP_POOL_ATTENTION;
    int64_t g = pool ? 0 : head * opcase_size(c, 1, 1) / heads,
            p = opcase_ints(c, opshape_role(&c->shape, D0_INPUT_POSITIONS))[t],
            seq = opcase_ints(c, opshape_role(&c->shape, D0_INPUT_SEQ_OF))[t];
    a->q = opcase_rows(c, 0) + (t * heads + head) * a->dim;
    a->size = 0;
    memset(scale, 0, (size_t)a->v_dim * sizeof *scale);
    const bool spans = !pool && c->shape.node.n_inputs > 8 && c->in[8] != D0_NO_VALUE;
    const int64_t end = spans ? opcase_ints(c, 8)[2 * t + 1] : p + 1;
    for (int64_t j = 0; j < end; j++) {
        if (opcase_sees(c, t, g, j)) {
            int64_t slot = opcase_slot(c, 1, seq, j, g);
            one_key(a, a->k + slot * a->dim, pool ? a->k + slot * a->dim : a->v + slot * a->v_dim, scale);
        }
        if (pool && opcase_sees_pooled(c, t, j)) {
            const float *entry = a->v + opcase_slot(c, 2, seq, j, 0) * a->dim;
            one_key(a, entry, entry, scale);
        }
    }
    for (int64_t i = 0; i < a->v_dim; i++)
        scale[i] *= 1 + a->size;
}

bool opscale_attention(const struct opcase *c, struct opscale *s)
{
    int64_t heads = opshape_int(&c->shape, D0_ATTR_HEADS);
    struct attended a = {.c = c,
                         .k = opcase_widened(c, 1),
                         .v = opcase_widened(c, 2),
                         .dim = opshape_int(&c->shape, D0_ATTR_DIM),
                         .v_dim = (int64_t)c->out_width[0] / heads,
                         .factor = opshape_real(&c->shape, D0_ATTR_SCALE),
                         .cap = opshape_real(&c->shape, D0_ATTR_SOFTCAP)};
    bool ok = a.k && a.v;
    for (int64_t t = 0; ok && t < c->dims[0]; t++)
        for (int64_t h = 0; h < heads; h++)
            scale_head(&a, t, h, heads, s->out[0] + (t * heads + h) * a.v_dim);
    free(a.k);
    free(a.v);
    return ok;
}

/* ---- mla ---- */

struct latents {
    const struct opcase *c;
    float *pages, *kv_b; /* widened */
    int64_t heads, nope, rope, v_dim, latent;
    double factor;
    double *squares, *largest; /* [latent] of one token and head */
    double *keys;              /* [slots, nope] of one head, form 1 only; else NULL */
};

/* squares[l]: of all terms that make element l of the absorbed query */
static void absorb(struct latents *m, const float *q, const float *rows)
{
    memset(m->squares, 0, (size_t)m->latent * sizeof *m->squares);
    for (int64_t d = 0; d < m->nope; d++)
        for (int64_t l = 0; l < m->latent; l++) {
            double term = (double)q[d] * (double)rows[d * m->latent + l];
            m->squares[l] += term * term;
        }
}

/* m->keys[slots, nope] = Wk c of one head, which the expanded form rounds and multiplies by q. */
static void expand(struct latents *m, int64_t head)
{
    const float *rows = m->kv_b + head * (m->nope + m->v_dim) * m->latent;
    int64_t slots = opcase_size(m->c, 1, 0) * opcase_size(m->c, 1, 2);
    for (int64_t slot = 0; slot < slots; slot++)
        for (int64_t d = 0; d < m->nope; d++) {
            const float *c = m->pages + slot * (m->latent + m->rope);
            double sum = 0;
            for (int64_t l = 0; l < m->latent; l++)
                sum += (double)rows[d * m->latent + l] * (double)c[l];
            m->keys[slot * m->nope + d] = sum;
        }
}

/* The natural scale of the score of one latent row: key[l] = sum over d of q[d] Wk[d, l]; expanded: that row
 * of m->keys, or NULL */
static double latent_score(const struct latents *m, const float *q, const double *key, const float *row,
                           const double *expanded)
{
    double dot = 0, squares = 0, keyed = 0;
    for (int64_t d = 0; expanded && d < m->nope; d++)
        keyed += (double)q[d] * expanded[d] * (double)q[d] * expanded[d];
    for (int64_t l = 0; l < m->latent; l++) {
        dot += key[l] * (double)row[l];
        squares += m->squares[l] * (double)row[l] * (double)row[l];
    }
    for (int64_t d = 0; d < m->rope; d++) {
        double term = (double)q[m->nope + d] * (double)row[m->latent + d];
        dot += term;
        squares += term * term;
        keyed += term * term;
    }
    return fabs(m->factor) * opscale_sum(dot, fmax(squares, keyed));
}

/* The larger of |result| and twice the root of the squared terms of Wv times the largest |c| attended, times
 * 1 + the largest score. key: room for [latent] */
static void scale_latent_head(struct latents *m, int64_t t, int64_t head, double *key, const float *ref,
                              double *scale)
{
    const struct opcase *c = m->c;
    const float *q = opcase_rows(c, 0) + (t * m->heads + head) * (m->nope + m->rope),
                *rows = m->kv_b + head * (m->nope + m->v_dim) * m->latent, *wv = rows + m->nope * m->latent;
    int64_t p = opcase_ints(c, 3)[t], seq = opcase_ints(c, 4)[t];
    double size = 0;
    absorb(m, q, rows);
    memset(key, 0, (size_t)m->latent * sizeof *key);
    memset(m->largest, 0, (size_t)m->latent * sizeof *m->largest);
    for (int64_t d = 0; d < m->nope; d++)
        for (int64_t l = 0; l < m->latent; l++)
            key[l] += (double)q[d] * (double)rows[d * m->latent + l];
    for (int64_t j = 0; j <= p; j++) {
        if (!opcase_sees(c, t, 0, j))
            continue;
        int64_t slot = opcase_slot(c, 1, seq, j, 0);
        const float *row = m->pages + slot * (m->latent + m->rope);
        size = fmax(size, latent_score(m, q, key, row, m->keys ? m->keys + slot * m->nope : NULL));
        for (int64_t l = 0; l < m->latent; l++)
            m->largest[l] = fmax(m->largest[l], fabs((double)row[l]));
    }
    for (int64_t d = 0; d < m->v_dim; d++) {
        double squares = 0;
        for (int64_t l = 0; l < m->latent; l++) {
            double term = (double)wv[d * m->latent + l] * m->largest[l];
            squares += term * term;
        }
        scale[d] = opscale_sum((double)ref[d], squares) * (1 + size);
    }
}

bool opscale_mla(const struct opcase *c, const struct opresult *ref, struct opscale *s)
{
    struct latents m = {.c = c,
                        .pages = opcase_widened(c, 1),
                        .kv_b = opcase_widened(c, 2),
                        .heads = opshape_int(&c->shape, D0_ATTR_HEADS),
                        .nope = opshape_int(&c->shape, D0_ATTR_NOPE),
                        .rope = opshape_int(&c->shape, D0_ATTR_ROPE),
                        .v_dim = opshape_int(&c->shape, D0_ATTR_V_DIM),
                        .latent = opshape_int(&c->shape, D0_ATTR_LATENT),
                        .factor = opshape_real(&c->shape, D0_ATTR_SCALE)};
    bool expanded = opshape_int(&c->shape, D0_ATTR_FORM) != 0;
    double *room = malloc((size_t)(3 * m.latent) * sizeof *room);
    if (expanded)
        m.keys = calloc((size_t)(opcase_size(c, 1, 0) * opcase_size(c, 1, 2) * m.nope), sizeof *m.keys);
    bool ok = m.pages && m.kv_b && room && (m.keys || !expanded);
    m.squares = room;
    m.largest = ok ? room + m.latent : NULL;
    for (int64_t h = 0; ok && h < m.heads; h++) {
        if (m.keys)
            expand(&m, h);
        for (int64_t t = 0; t < c->dims[0]; t++)
            scale_latent_head(&m, t, h, room + 2 * m.latent, ref->out[0] + (t * m.heads + h) * m.v_dim,
                              s->out[0] + (t * m.heads + h) * m.v_dim);
    }
    free(m.keys);
    free(m.pages);
    free(m.kv_b);
    free(room);
    return ok;
}
