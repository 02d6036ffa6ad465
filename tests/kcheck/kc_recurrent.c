/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of the operators with a state of fixed size for each sequence: short_conv, delta_rule. Slots of
 * nobody, and of sequences that begin in the step, hold NaN before it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc.h"

#define TAILS       70
#define SCALE_FLOOR 0x1p-106
#define MOST_SEQS   4

/* ---- sequences in slots ---- */

struct slotted {
    int64_t tokens, n_seqs, n_slots;
    int64_t begin[MOST_SEQS]; /* position of the first token in this step */
    int32_t *positions, *seq_of, *slots;
};

/* Positions (input `first`), seq_of (first + 1), slots (first + 2): runs of consecutive tokens, each sequence
 * in a slot of its own. */
static void make_slotted(struct kc_case *c, unsigned first, int64_t longest, struct slotted *p)
{
    int64_t chunks[MOST_SEQS];
    p->n_seqs = c->large ? 1 : kc_between(c, 1, MOST_SEQS);
    p->n_slots = c->large ? 1 : p->n_seqs + kc_between(c, 0, 3);
    p->tokens = 0;
    bool empty = !c->large && kc_chance(c, 40);
    for (int64_t s = 0; s < p->n_seqs; s++) {
        chunks[s] = c->large ? longest : empty ? 0 : kc_chance(c, 2) ? 1 : kc_between(c, 1, longest);
        p->begin[s] = c->large || kc_chance(c, 3) ? 0 : kc_between(c, 1, kc_chance(c, 2) ? 5 : 100000);
        p->tokens += chunks[s];
    }
    p->positions = kc_ints(c, first, p->tokens, 1);
    p->seq_of = kc_ints(c, first + 1, p->tokens, 1);
    p->slots = kc_ints(c, first + 2, p->n_seqs, 0);
    for (int64_t s = 0, t = 0; s < p->n_seqs; s++)
        for (int64_t i = 0; i < chunks[s]; i++, t++) {
            p->positions[t] = (int32_t)(p->begin[s] + i);
            p->seq_of[t] = (int32_t)s;
        }
    bool taken[MOST_SEQS + 4] = {false};
    for (int64_t s = 0; s < p->n_seqs; s++) {
        int64_t slot = kc_between(c, 0, p->n_slots - 1);
        while (taken[slot])
            slot = (slot + 1) % p->n_slots;
        taken[slot] = true;
        p->slots[s] = (int32_t)slot;
    }
    c->a.tokens = p->tokens;
    c->a.seqs = p->n_seqs;
    for (unsigned i = 0; i < 2; i++)
        kc_dims(c, first + i, 1, &p->tokens);
    kc_dims(c, first + 2, 1, &p->n_seqs);
}

/* Indices that exist nowhere: their rows become NaN and no state changes. */
static void break_slotted(struct kc_case *c, struct slotted *p)
{
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX};
    if (c->large || !kc_chance(c, 4) || p->tokens == 0)
        return;
    int32_t bad = wrong[kc_between(c, 0, 2)];
    switch (kc_between(c, 0, 3)) {
    case 0:
        p->seq_of[kc_between(c, 0, p->tokens - 1)] = kc_chance(c, 2) ? (int32_t)p->n_seqs : bad;
        break;
    case 1:
        p->slots[kc_between(c, 0, p->n_seqs - 1)] = kc_chance(c, 2) ? (int32_t)p->n_slots : bad;
        break;
    case 2:
        p->positions[kc_between(c, 0, p->tokens - 1)] = bad < 0 ? bad : -1;
        break;
    default:
        break;
    }
}

/* A state of n_slots * n values: those of slots that go on are of the class, all others NaN. */
static float *make_state(struct kc_case *c, unsigned s, unsigned input, const struct slotted *p, int64_t n)
{
    size_t bytes = (size_t)(p->n_slots * n) * sizeof(float);
    float *state = kc_state(c, s, bytes);
    memset(state, 0xFF, bytes);
    for (int64_t q = 0; q < p->n_seqs; q++)
        for (int64_t i = 0; p->begin[q] > 0 && i < n; i++)
            state[p->slots[q] * n + i] = (float)kc_value(c, D0_F32);
    c->a.in_dtype[input] = D0_F32;
    return state;
}

/* Slot of row t, or -1. */
static int64_t slot_of(const struct kc_case *c, unsigned first, int64_t n_slots, int64_t t)
{
    const int32_t *positions = c->in[first].data, *seq_of = c->in[first + 1].data,
                  *slots = c->in[first + 2].data;
    if (positions[t] < 0 || seq_of[t] < 0 || seq_of[t] >= c->a.seqs)
        return -1;
    int32_t slot = slots[seq_of[t]];
    return slot < 0 || slot >= n_slots ? -1 : slot;
}

/* One row of input i becomes NaN, another one gets an infinity if that may be. */
static void poison(struct kc_case *c, unsigned i, int64_t rows, int64_t width, bool infinite)
{
    if (c->values != KC_POISON || rows * width == 0)
        return;
    float *p = c->in[i].data;
    int64_t bad = kc_between(c, 0, rows - 1);
    if (infinite)
        p[kc_between(c, 0, rows - 1) * width + kc_between(c, 0, width - 1)] =
            kc_chance(c, 2) ? INFINITY : -INFINITY;
    for (int64_t e = 0; e < width; e++)
        p[bad * width + e] = NAN;
}

/* ---- short_conv ---- */

const unsigned kc_cases_SHORT_CONV = 2 * TAILS + 100;

void kc_make_SHORT_CONV(struct kc_case *c, unsigned index)
{
    struct slotted p;
    int64_t n = c->large            ? 4096
                : index < 2 * TAILS ? index / 2 + 1
                                    : kc_between(c, 1, 300),
            width = c->large || kc_chance(c, 2) ? 4 : kc_between(c, 2, 9);
    make_slotted(c, 3, c->large ? 64 : 12, &p);
    kc_fill(c, 0, D0_F32, p.tokens * n, n);
    poison(c, 0, p.tokens, n, true);
    kc_fill(c, 1, kc_any_type(c), n * width, 0);
    make_state(c, 0, 2, &p, (width - 1) * n);
    if (kc_chance(c, 2))
        kc_fill(c, 6, kc_any_type(c), n, 0);
    break_slotted(c, &p);
    kc_dims(c, 0, 2, (int64_t[]){p.tokens, n});
    kc_dims(c, 1, 3, (int64_t[]){n, 1, width});
    kc_dims(c, 2, 3, (int64_t[]){p.n_slots, width - 1, n});
    c->a.attr[D0_ATTR_WIDTH].i = width;
    c->a.attr[D0_ATTR_FUNCTION].i = c->large || kc_chance(c, 2) ? 0 : 7;
    c->a.function = c->a.attr[D0_ATTR_FUNCTION].i;
    kc_output(c, p.tokens, n);
    c->a.k = n;
    c->flops = 2.0 * (double)(p.tokens * n * width);
    c->moved = 8.0 * (double)(p.tokens * n);
    snprintf(c->shape, sizeof c->shape, "T=%d B=%d slots=%d C=%d width=%d function=%d bias=%d", (int)p.tokens,
             (int)p.n_seqs, (int)p.n_slots, (int)n, (int)width, (int)c->a.function, c->in[6].data != NULL);
}

/* What channel ch was `back` rows before row t of its slot: a row of the step, of the tail, or nothing. */
static float conv_input(const struct kc_case *c, int64_t t, int64_t back, int64_t ch)
{
    const int32_t *positions = c->in[3].data;
    int64_t n = c->a.n, kept = c->a.in_dims[2][1], n_slots = c->a.in_dims[2][0],
            slot = slot_of(c, 3, n_slots, t);
    for (; back > 0; back--) {
        int64_t before = t - 1;
        if (positions[t] == 0)
            return 0;
        while (before >= 0 && slot_of(c, 3, n_slots, before) != slot)
            before--;
        if (before < 0)
            return ((const float *)c->state[0].data)[(slot * kept + kept - back) * n + ch];
        t = before;
    }
    return ((const float *)c->in[0].data)[t * n + ch];
}

void kc_judge_SHORT_CONV(struct kc_case *c)
{
    int64_t n = c->a.n, kept = c->a.in_dims[2][1], n_slots = c->a.in_dims[2][0];
    kc_judge_begin(c);
    float *want = arena_alloc(c->arena, c->state[0].bytes);
    if (!want)
        abort();
    memcpy(want, c->state[0].data, c->state[0].bytes);
    c->want_state[0] = want;
    for (int64_t i = 0; i < c->a.tokens * n; i++) {
        int64_t t = i / n, ch = i % n, slot = slot_of(c, 3, n_slots, t);
        double sum = c->in[6].data ? kc_at(c, 6, (size_t)ch) : 0, squares = sum * sum;
        c->want[0][i] = (double)NAN;
        if (slot < 0)
            continue;
        for (int64_t back = 0; back <= kept; back++) {
            float x = conv_input(c, t, back, ch);
            double term = (double)x * kc_at(c, 1, (size_t)(ch * (kept + 1) + kept - back));
            sum += term;
            squares += term * term;
            if (back < kept) /* the last row of a slot leaves its tail */
                memcpy(&want[(slot * kept + kept - 1 - back) * n + ch], &x, sizeof x);
        }
        double size = fmax(fabs(sum), 2 * sqrt(squares)), s = 1 / (1 + exp(-sum));
        bool silu = c->a.attr[D0_ATTR_FUNCTION].i == 0;
        c->want[0][i] = silu ? sum / (1 + exp(-sum)) : sum;
        c->scale[0][i] =
            fmax(SCALE_FLOOR, silu ? fmax(fabs(c->want[0][i]), fabs(s * (1 + sum * (1 - s))) * size) : size);
    }
}

/* ---- delta_rule ---- */

const unsigned kc_cases_DELTA_RULE = 2 * (4 * TAILS + 80); /* each with both forms */

/* Without a norm of its own k must be about of unit length, as it is in every model: else S grows with every
 * row, and any error with it. */
static void shorten(struct kc_case *c, unsigned i, int64_t rows, int64_t dim)
{
    float *p = c->in[i].data;
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0, by = 0.3 + rng_next_f64(&c->rng);
        for (int64_t e = 0; e < dim; e++)
            squares += (double)p[r * dim + e] * (double)p[r * dim + e];
        for (int64_t e = 0; e < dim && squares > 0; e++)
            p[r * dim + e] = (float)((double)p[r * dim + e] / sqrt(squares) * by);
    }
}

static void delta_gates(struct kc_case *c, const struct slotted *p, int64_t heads, int64_t v_heads,
                        int64_t dim)
{
    bool channel = c->a.attr[D0_ATTR_DECAY].i != 0;
    int64_t gates = channel ? heads * dim : v_heads, more = kc_between(c, 0, 3);
    enum kc_values values = c->values;
    kc_fill(c, 3, D0_F32, p->tokens * gates, gates);
    kc_fill(c, 4, D0_F32, p->tokens * v_heads, v_heads);
    for (int64_t i = 0; i < p->tokens * v_heads; i++) /* what a sigmoid gives, its ends included */
        ((float *)c->in[4].data)[i] =
            kc_chance(c, 8) ? (float)kc_between(c, 0, 1) : (float)rng_next_f64(&c->rng);
    c->values = KC_NORMAL; /* A_log and dt_bias are of ordinary size in every model */
    kc_fill(c, 5, kc_any_type(c), v_heads + more, 0);
    kc_fill(c, 6, kc_any_type(c), gates, 0);
    c->values = values;
    /* a decay that is almost 0 would meet an infinity: nothing says whether that is NaN */
    for (int64_t i = 0; values == KC_POISON && i < v_heads + more; i++) {
        float small = (float)-rng_next_f64(&c->rng);
        tensor_from_f32(&small, 1, c->a.in_dtype[5],
                        (unsigned char *)c->in[5].data + (size_t)i * kc_width(c->a.in_dtype[5]));
    }
    kc_dims(c, 3, 2, (int64_t[]){p->tokens, gates});
    kc_dims(c, 4, 2, (int64_t[]){p->tokens, v_heads});
    kc_dims(c, 5, 1, (int64_t[]){v_heads + more});
    kc_dims(c, 6, 1, &gates);
}

static void delta_attributes(struct kc_case *c, int64_t heads, int64_t v_heads, int64_t dim, int64_t v_dim)
{
    c->a.attr[D0_ATTR_HEADS].i = c->a.heads = heads;
    c->a.attr[D0_ATTR_V_HEADS].i = v_heads;
    c->a.attr[D0_ATTR_DIM].i = c->a.dim = dim;
    c->a.attr[D0_ATTR_V_DIM].i = c->a.v_dim = v_dim;
    c->a.attr[D0_ATTR_SCALE].f = c->a.scale = kc_chance(c, 4) ? 1 : 1 / sqrt((double)dim);
    c->a.attr[D0_ATTR_EPS].f = c->a.eps = c->large || kc_chance(c, 2) ? 1e-6 : 0;
    c->a.attr[D0_ATTR_DECAY].i = c->large ? 0 : kc_between(c, 0, 1);
    c->a.attr[D0_ATTR_LOWER].f = c->large || kc_chance(c, 2) ? 0 : -5;
}

void kc_make_DELTA_RULE(struct kc_case *c, unsigned index)
{
    struct slotted p;
    c->bounded = index % 2 == 1;
    c->a.attr[D0_ATTR_FORM].i = c->bounded;
    index /= 2;
    bool tails = index < 4 * TAILS;
    int64_t heads = c->large ? 4 : kc_between(c, 1, 3),
            v_heads = heads * (c->large ? 2 : kc_between(c, 1, 3)),
            v_dim = c->large            ? 128
                    : index < 2 * TAILS ? index / 2 + 1
                                        : kc_between(c, 1, tails ? 20 : 150),
            dim = c->large                      ? 128
                  : tails && index >= 2 * TAILS ? index / 2 - TAILS + 1
                                                : kc_between(c, 1, tails ? 20 : 150);
    /* chunks of the other form are of 16 rows: some, and a rest */
    make_slotted(c, 8, c->large ? 64 : c->bounded ? (tails ? 50 : 20) : tails ? 8 : 6, &p);
    delta_attributes(c, heads, v_heads, dim, v_dim);
    for (unsigned i = 0; i < 2; i++) {
        kc_fill(c, i, D0_F32, p.tokens * heads * dim, heads * dim);
        if (c->a.eps == 0)
            shorten(c, i, p.tokens * heads, dim);
        kc_dims(c, i, 2, (int64_t[]){p.tokens, heads * dim});
    }
    kc_fill(c, 2, D0_F32, p.tokens * v_heads * v_dim, v_heads * v_dim);
    kc_dims(c, 2, 2, (int64_t[]){p.tokens, v_heads * v_dim});
    delta_gates(c, &p, heads, v_heads, dim);
    unsigned bad = (unsigned)kc_between(c, 0, 2);
    /* S0 and what the rows of a chunk give are added up apart: infinities of both signs are NaN, not one */
    poison(c, bad, p.tokens, (int64_t)(c->in[bad].row_bytes / sizeof(float)), !c->bounded);
    make_state(c, 0, 7, &p, v_heads * dim * v_dim);
    kc_dims(c, 7, 4, (int64_t[]){p.n_slots, v_heads, dim, v_dim});
    break_slotted(c, &p);
    kc_output(c, p.tokens, v_heads * v_dim);
    c->a.k = heads * dim;
    c->flops = 8.0 * (double)(p.tokens * v_heads * dim * v_dim);
    c->moved = 8.0 * (double)(p.tokens * v_heads * dim * v_dim);
    snprintf(c->shape, sizeof c->shape,
             "form=%d T=%d B=%d slots=%d heads=%d/%d dim=%d v_dim=%d eps=%g decay=%d lower=%g",
             (int)c->bounded, (int)p.tokens, (int)p.n_seqs, (int)p.n_slots, (int)v_heads, (int)heads,
             (int)dim, (int)v_dim, c->a.eps, (int)c->a.attr[D0_ATTR_DECAY].i, c->a.attr[D0_ATTR_LOWER].f);
}

/* The state in float64, and for each column of S the size of the errors that float32 must make of it: sizes
 * of what is rounded in each row, added up as errors of random sign, and carried on by the same recurrence
 * (whose matrix stretches nothing by more than `grow`). */
struct delta {
    const struct kc_case *c;
    size_t heads, v_heads, dim, v_dim;
    double *S, *error;            /* [slots, v_heads, dim, v_dim], [slots, v_heads, v_dim] */
    double *decay, *fade, *k, *q; /* [dim] of one row; fade: how much an error of the log decay weighs */
};

static double length_of(const double *x, size_t n)
{
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += x[i] * x[i];
    return sqrt(squares);
}

static void delta_vectors(struct delta *d, size_t t, size_t h)
{
    const struct kc_case *c = d->c;
    size_t head = h / (d->v_heads / d->heads), from = (t * d->heads + head) * d->dim;
    double lower = c->a.attr[D0_ATTR_LOWER].f, eps = c->a.attr[D0_ATTR_EPS].f, rate = exp(kc_at(c, 5, h)),
           sums[2] = {0, 0};
    for (size_t i = 0; i < d->dim; i++) {
        bool channel = c->a.attr[D0_ATTR_DECAY].i != 0;
        double gate = channel ? kc_at(c, 3, from + i) + kc_at(c, 6, head * d->dim + i)
                              : kc_at(c, 3, t * d->v_heads + h) + kc_at(c, 6, h);
        double log_decay =
            lower < 0 ? lower / (1 + exp(-rate * gate)) : -rate * (fmax(gate, 0) + log1p(exp(-fabs(gate))));
        d->decay[i] = exp(log_decay);
        /* what is smaller than the smallest normal number may be nothing */
        d->fade[i] = fabs(log_decay * d->decay[i]) + 0x1p-106;
        sums[0] += kc_at(c, 0, from + i) * kc_at(c, 0, from + i);
        sums[1] += kc_at(c, 1, from + i) * kc_at(c, 1, from + i);
    }
    for (size_t i = 0; i < d->dim; i++) {
        d->q[i] = kc_at(c, 0, from + i) * c->a.attr[D0_ATTR_SCALE].f / (eps > 0 ? sqrt(sums[0] + eps) : 1);
        d->k[i] = kc_at(c, 1, from + i) / (eps > 0 ? sqrt(sums[1] + eps) : 1);
    }
}

/* One column of S takes up one value; its error grows; gives what q reads of it. */
static void delta_column(struct delta *d, double *S, double *error, double v, double beta, double *want,
                         double *scale)
{
    size_t n = d->v_dim;
    double said = 0, terms = 0, kept = 0, faded = 0, slowest = 0, k2 = length_of(d->k, d->dim);
    for (size_t i = 0; i < d->dim; i++) {
        faded += d->fade[i] * S[i * n] * d->fade[i] * S[i * n];
        S[i * n] *= d->decay[i];
        said += S[i * n] * d->k[i];
        terms += S[i * n] * d->k[i] * S[i * n] * d->k[i];
        kept += S[i * n] * S[i * n];
        slowest = fmax(slowest, d->decay[i]);
    }
    double change = beta * (v - said), size = fabs(beta) * (fabs(v) + fmax(fabs(said), 2 * sqrt(terms))),
           local = sqrt(kept) + sqrt(faded) + k2 * size, grow = fmax(1, fabs(1 - beta * k2 * k2)), read = 0,
           read_terms = 0;
    *error = hypot(grow * slowest * *error, local);
    for (size_t i = 0; i < d->dim; i++) {
        S[i * n] += d->k[i] * change;
        read += S[i * n] * d->q[i];
        read_terms += S[i * n] * d->q[i] * S[i * n] * d->q[i];
    }
    *want = read;
    *scale = fmax(SCALE_FLOOR, fmax(fabs(read), 2 * sqrt(read_terms)) + *error * length_of(d->q, d->dim));
}

static void delta_prepare(struct kc_case *c, struct delta *d)
{
    size_t n = c->state[0].bytes / sizeof(float), slots = (size_t)c->a.in_dims[7][0];
    *d = (struct delta){.c = c,
                        .heads = (size_t)c->a.attr[D0_ATTR_HEADS].i,
                        .v_heads = (size_t)c->a.attr[D0_ATTR_V_HEADS].i,
                        .dim = (size_t)c->a.attr[D0_ATTR_DIM].i,
                        .v_dim = (size_t)c->a.attr[D0_ATTR_V_DIM].i,
                        .S = arena_alloc_n(c->arena, n, sizeof(double))};
    d->error = arena_alloc_n(c->arena, slots * d->v_heads * d->v_dim, sizeof(double));
    d->decay = arena_alloc_n(c->arena, 4 * d->dim, sizeof(double));
    c->state_scale[0] = arena_alloc_n(c->arena, n, sizeof(double));
    if (!d->S || !d->error || !d->decay || !c->state_scale[0])
        abort();
    d->fade = d->decay + d->dim;
    d->k = d->fade + d->dim;
    d->q = d->k + d->dim;
    for (size_t i = 0; i < n; i++) {
        d->S[i] = (double)((const float *)c->state[0].data)[i];
        c->state_scale[0][i] = 0; /* what no row touches keeps its bits */
    }
    memset(d->error, 0, slots * d->v_heads * d->v_dim * sizeof(double));
    c->want_state_f64[0] = d->S;
}

void kc_judge_DELTA_RULE(struct kc_case *c)
{
    struct delta d;
    const int32_t *positions = c->in[8].data;
    kc_judge_begin(c);
    delta_prepare(c, &d);
    for (size_t t = 0; t < (size_t)c->a.tokens; t++)
        for (size_t h = 0; h < d.v_heads; h++) {
            int64_t slot = slot_of(c, 8, c->a.in_dims[7][0], (int64_t)t);
            size_t at = (t * d.v_heads + h) * d.v_dim;
            if (slot >= 0)
                delta_vectors(&d, t, h);
            for (size_t j = 0; j < d.v_dim; j++) {
                size_t column = ((size_t)slot * d.v_heads + h) * d.v_dim + j;
                double *S = d.S + ((size_t)slot * d.v_heads + h) * d.dim * d.v_dim + j;
                c->want[0][at + j] = (double)NAN;
                if (slot < 0)
                    continue;
                for (size_t i = 0; positions[t] == 0 && i < d.dim; i++)
                    S[i * d.v_dim] = d.error[column] = 0;
                delta_column(&d, S, &d.error[column], kc_at(c, 2, at + j), kc_at(c, 4, t * d.v_heads + h),
                             &c->want[0][at + j], &c->scale[0][at + j]);
                for (size_t i = 0; i < d.dim; i++)
                    c->state_scale[0][(size_t)(S - d.S) + i * d.v_dim] = fmax(SCALE_FLOOR, d.error[column]);
            }
        }
}
