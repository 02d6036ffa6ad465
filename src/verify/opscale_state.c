/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the natural scales of operators that write a state: short_conv, delta_rule, pool_kv. Errors that a
 * state carries on are followed from row to row.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "verify/opcase.h"

/* ---- short_conv ---- */

/* What channel ch was `back` rows before row t: a row of the step, of the tail, or nothing. */
static double conv_input(const struct opcase *c, int64_t t, int64_t back, int64_t ch)
{
    const int32_t *positions = opcase_ints(c, 3), *seq_of = opcase_ints(c, 4), *slots = opcase_ints(c, 5);
    int64_t n = opcase_size(c, 0, 1), kept = opcase_size(c, 2, 1), before = t - back;
    if (positions[t] < back)
        return 0;
    if (before >= 0 && seq_of[before] == seq_of[t])
        return (double)opcase_rows(c, 0)[before * n + ch];
    int64_t first = t;
    while (first > 0 && seq_of[first - 1] == seq_of[t])
        first--;
    return (double)opcase_rows(c, 2)[(slots[seq_of[t]] * kept + kept - (back - (t - first))) * n + ch];
}

/* As linear, over the taps and the bias; with silu times its slope there. The tail must be equal. */
bool opscale_short_conv(const struct opcase *c, const struct opresult *ref, struct opscale *s)
{
    float *w = opcase_widened(c, 1), *bias = opcase_widened(c, 6);
    int64_t n = opcase_size(c, 0, 1), width = opcase_size(c, 1, 2);
    bool silu = opshape_int(&c->shape, D0_ATTR_FUNCTION) == 0, ok = w && (bias || c->in[6] == D0_NO_VALUE);
    for (int64_t i = 0; ok && i < c->dims[0] * n; i++) {
        int64_t t = i / n, ch = i % n;
        double sum = bias ? (double)bias[ch] : 0, squares = sum * sum;
        for (int64_t back = 0; back < width; back++) {
            double term = conv_input(c, t, back, ch) * (double)w[ch * width + width - 1 - back];
            sum += term;
            squares += term * term;
        }
        double size = opscale_sum(sum, squares), sigmoid = 1 / (1 + exp(-sum)),
               slope = fabs(sigmoid * (1 + sum * (1 - sigmoid)));
        s->out[0][i] = silu ? fmax(fabs((double)ref->out[0][i]), slope * size) : size;
    }
    free(w);
    free(bias);
    return ok;
}

/* ---- delta_rule ---- */

/* The state in float64, and for each column of S the size of the errors that float32 must make of it: sizes
 * of what is rounded in each row, added up as errors of random sign, and carried on by the same recurrence
 * (whose matrix stretches nothing by more than `grow`). */
struct delta {
    const struct opcase *c;
    const float *q_in, *k_in, *g_in;
    float *A, *dt;
    int64_t heads, v_heads, dim, v_dim;
    double lower, eps, scale;
    double *S, *error;            /* [slots, v_heads, dim, v_dim], [slots, v_heads, v_dim] */
    double *decay, *fade, *k, *q; /* [dim] of one row; fade: how much an error of the log decay weighs */
};

static double length_of(const double *x, int64_t n)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++)
        squares += x[i] * x[i];
    return sqrt(squares);
}

static void delta_vectors(struct delta *d, int64_t t, int64_t h)
{
    bool channel = opshape_int(&d->c->shape, D0_ATTR_DECAY) != 0;
    int64_t head = h / (d->v_heads / d->heads), from = (t * d->heads + head) * d->dim;
    double rate = exp((double)d->A[h]), sums[2] = {0, 0};
    for (int64_t i = 0; i < d->dim; i++) {
        double gate = channel ? (double)d->g_in[from + i] + (double)d->dt[head * d->dim + i]
                              : (double)d->g_in[t * d->v_heads + h] + (double)d->dt[h];
        double log_decay = d->lower < 0 ? d->lower / (1 + exp(-rate * gate))
                                        : -rate * (fmax(gate, 0) + log1p(exp(-fabs(gate))));
        d->decay[i] = exp(log_decay);
        /* what is smaller than the smallest normal number may be nothing */
        d->fade[i] = fabs(log_decay * d->decay[i]) + OPSCALE_FLOOR;
        d->q[i] = (double)d->q_in[from + i];
        d->k[i] = (double)d->k_in[from + i];
        sums[0] += d->q[i] * d->q[i];
        sums[1] += d->k[i] * d->k[i];
    }
    for (int64_t i = 0; i < d->dim; i++) {
        d->q[i] *= d->scale / (d->eps > 0 ? sqrt(sums[0] + d->eps) : 1);
        d->k[i] /= d->eps > 0 ? sqrt(sums[1] + d->eps) : 1;
    }
}

/* One column of S takes up one value; its error grows; gives the natural scale of what q reads of it. k2, q2:
 * lengths of k and q. */
static double delta_column(struct delta *d, double *S, double *error, double v, double beta, double k2,
                           double q2)
{
    int64_t n = d->v_dim;
    double said = 0, terms = 0, kept = 0, faded = 0, slowest = 0, read = 0, read_terms = 0;
    for (int64_t i = 0; i < d->dim; i++) {
        double lost = d->fade[i] * S[i * n];
        faded += lost * lost;
        S[i * n] *= d->decay[i];
        double term = S[i * n] * d->k[i];
        said += term;
        terms += term * term;
        kept += S[i * n] * S[i * n];
        slowest = fmax(slowest, d->decay[i]);
    }
    double change = beta * (v - said), size = fabs(beta) * (fabs(v) + opscale_sum(said, terms)),
           local = sqrt(kept) + sqrt(faded) + k2 * size, grow = fmax(1, fabs(1 - beta * k2 * k2));
    *error = hypot(grow * slowest * *error, local);
    for (int64_t i = 0; i < d->dim; i++) {
        S[i * n] += d->k[i] * change;
        double term = S[i * n] * d->q[i];
        read += term;
        read_terms += term * term;
    }
    return opscale_sum(read, read_terms) + *error * q2;
}

static void delta_row(struct delta *d, int64_t t, struct opscale *s, double *state_scale)
{
    const struct opcase *c = d->c;
    int64_t slot = opcase_ints(c, 10)[opcase_ints(c, 9)[t]];
    bool begins = opcase_ints(c, 8)[t] == 0;
    for (int64_t h = 0; h < d->v_heads; h++) {
        delta_vectors(d, t, h);
        double beta = (double)opcase_rows(c, 4)[t * d->v_heads + h], k2 = length_of(d->k, d->dim),
               q2 = length_of(d->q, d->dim);
        for (int64_t j = 0; j < d->v_dim; j++) {
            double *S = d->S + (slot * d->v_heads + h) * d->dim * d->v_dim + j,
                   *error = d->error + (slot * d->v_heads + h) * d->v_dim + j;
            int64_t at = (t * d->v_heads + h) * d->v_dim + j;
            for (int64_t i = 0; begins && i < d->dim; i++)
                S[i * d->v_dim] = *error = 0;
            s->out[0][at] = delta_column(d, S, error, (double)opcase_rows(c, 2)[at], beta, k2, q2);
            for (int64_t i = 0; i < d->dim; i++)
                state_scale[(S - d->S) + i * d->v_dim] = fmax(OPSCALE_FLOOR, *error);
        }
    }
}

bool opscale_delta(const struct opcase *c, struct opscale *s)
{
    const struct opshape *shape = &c->shape;
    size_t n = (size_t)(c->bytes[c->in[7]] / sizeof(float));
    struct delta d = {.c = c,
                      .q_in = opcase_rows(c, 0),
                      .k_in = opcase_rows(c, 1),
                      .g_in = opcase_rows(c, 3),
                      .A = opcase_widened(c, 5),
                      .dt = opcase_widened(c, 6),
                      .heads = opshape_int(shape, D0_ATTR_HEADS),
                      .v_heads = opshape_int(shape, D0_ATTR_V_HEADS),
                      .dim = opshape_int(shape, D0_ATTR_DIM),
                      .v_dim = opshape_int(shape, D0_ATTR_V_DIM),
                      .lower = opshape_real(shape, D0_ATTR_LOWER),
                      .eps = opshape_real(shape, D0_ATTR_EPS),
                      .scale = opshape_real(shape, D0_ATTR_SCALE),
                      .S = calloc(n, sizeof(double)),
                      .error = calloc(n, sizeof(double)),
                      .decay = calloc(4 * (size_t)opshape_int(shape, D0_ATTR_DIM), sizeof(double))};
    double *state_scale = s->state[c->in[7]] = calloc(n, sizeof(double)); /* 0: not touched, equal bits */
    bool ok = d.A && d.dt && d.S && d.error && d.decay && state_scale;
    if (ok) {
        d.fade = d.decay + d.dim;
        d.k = d.fade + d.dim;
        d.q = d.k + d.dim;
        for (size_t i = 0; i < n; i++)
            d.S[i] = (double)opcase_rows(c, 7)[i];
    }
    for (int64_t t = 0; ok && t < c->dims[0]; t++)
        delta_row(&d, t, s, state_scale);
    free(d.A);
    free(d.dt);
    free(d.S);
    free(d.error);
    free(d.decay);
    return ok;
}

/* ---- pool_kv ---- */

struct pool {
    const struct opcase *c;
    float *ape, *norm;
    int64_t ratio, dim, rope, parts, width, ring;
    double eps;
    double *x, *unsure; /* [dim] of one entry */
};

/* What row t's sequence fed at `position` (side 0 kv, 1 gate): in this step, else before it. */
static const float *fed(const struct pool *p, int64_t t, int64_t position, int64_t side)
{
    const struct opcase *c = p->c;
    const int32_t *positions = opcase_ints(c, 7), *seq_of = opcase_ints(c, 8);
    int64_t u = t - (positions[t] - position);
    if (u >= 0 && seq_of[u] == seq_of[t])
        return opcase_rows(c, (uint32_t)side) + u * p->width;
    int64_t slot = opcase_ints(c, 10)[seq_of[t]];
    return opcase_rows(c, 6) + ((slot * 2 + side) * p->ring + position % p->ring) * p->width;
}

/* x[dim] of the entry that row t completes, before the norm, and its natural scale: largest |kv| of the
 * channel times 1 + the largest gate */
static void pool_sums(struct pool *p, int64_t t)
{
    int64_t last = opcase_ints(p->c, 7)[t], begin = last + 1 - p->ratio,
            from = p->parts == 2 && begin > 0 ? begin - p->ratio : begin;
    for (int64_t d = 0; d < p->dim; d++) {
        double top = -INFINITY, sum = 0, size = 0, largest = 0;
        p->x[d] = 0;
        for (int turn = 0; turn < 2; turn++)
            for (int64_t at = from; at <= last; at++) {
                int64_t channel = p->parts == 2 && at >= begin ? p->dim + d : d;
                double ape = (double)p->ape[at % p->ratio * p->width + channel],
                       gate = (double)fed(p, t, at, 1)[channel] + ape, kv = (double)fed(p, t, at, 0)[channel];
                top = turn ? top : fmax(top, gate);
                size = fmax(size, fmax(fabs(gate), fabs(ape)));
                largest = fmax(largest, fabs(kv));
                sum += turn ? exp(gate - top) : 0;
                p->x[d] += turn ? exp(gate - top) * kv : 0;
            }
        p->x[d] /= sum;
        p->unsure[d] = largest * (1 + size);
    }
}

/* The scale of the entry: that of the sum by norm, plus the entry times what errors of all channels do to the
 * mean of squares; rotated pairs add up. */
static void pool_entry(struct pool *p, int64_t t, double *scale)
{
    double squares = 0, off = 0;
    pool_sums(p, t);
    for (int64_t d = 0; d < p->dim; d++) {
        squares += p->x[d] * p->x[d];
        off += p->unsure[d] * p->unsure[d];
    }
    double inverse = 1 / sqrt(squares / (double)p->dim + p->eps),
           shared = sqrt(off / (squares + (double)p->dim * p->eps));
    for (int64_t d = 0; d < p->dim; d++)
        scale[d] =
            fmax(OPSCALE_FLOOR, fabs((double)p->norm[d]) * inverse * (p->unsure[d] + fabs(p->x[d]) * shared));
    for (int64_t d = p->dim - p->rope; d < p->dim; d += 2)
        scale[d] = scale[d + 1] = scale[d] + scale[d + 1];
}

bool opscale_pool_kv(const struct opcase *c, struct opscale *s)
{
    const struct opshape *shape = &c->shape;
    const struct d0_value *pages = &c->g->values[c->in[5]];
    size_t n = (size_t)(pages->dims[0] * pages->dims[2] * pages->dims[3]);
    struct pool p = {.c = c,
                     .ape = opcase_widened(c, 2),
                     .norm = opcase_widened(c, 3),
                     .ratio = opshape_int(shape, D0_ATTR_RATIO),
                     .dim = opshape_int(shape, D0_ATTR_DIM),
                     .rope = opshape_int(shape, D0_ATTR_ROPE),
                     .parts = opshape_int(shape, D0_ATTR_OVERLAP) ? 2 : 1,
                     .width = opcase_size(c, 0, 1),
                     .ring = opcase_size(c, 6, 1) / 2,
                     .eps = opshape_real(shape, D0_ATTR_EPS)};
    double *scale = s->state[c->in[5]] = calloc(n, sizeof *scale); /* 0: not touched, equal bits */
    p.x = malloc((size_t)p.dim * 2 * sizeof *p.x);
    p.unsure = p.x ? p.x + p.dim : NULL;
    bool ok = p.ape && p.norm && p.x && scale;
    for (int64_t t = 0; ok && t < c->dims[0]; t++) {
        int64_t at = opcase_ints(c, 7)[t];
        if ((at + 1) % p.ratio == 0)
            pool_entry(&p, t, scale + opcase_slot(c, 5, opcase_ints(c, 8)[t], at / p.ratio, 0) * p.dim);
    }
    free(p.ape);
    free(p.norm);
    free(p.x);
    return ok;
}
