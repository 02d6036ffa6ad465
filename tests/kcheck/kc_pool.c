/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of pooled attention: pool_attention, pool_kv. What a definition does not read (free slots, pages of
 * nobody, entries that were not chosen, rows of a ring that no token came to) is NaN.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc_steps.h"

#define TAILS       70
#define SCALE_FLOOR 0x1p-106

/* ---- pool_attention ---- */

const unsigned kc_cases_POOL_ATTENTION = TAILS + 180;

/* Entries for each token; a few times one that does not exist. Marks what is chosen in seen[sequence][entry].
 */
static void make_chosen(struct kc_case *c, const struct kc_steps *p, int64_t ratio, bool *seen,
                        int64_t longest)
{
    int64_t width = kc_between(c, 1, 8);
    int32_t *chosen = kc_ints(c, 7, p->tokens * width, width);
    kc_dims(c, 7, 2, (int64_t[]){p->tokens, width});
    for (int64_t t = 0; t < p->tokens; t++) {
        int64_t n = (p->positions[t] + 1) / ratio, next = 0;
        for (int64_t i = 0; i < width; i++) {
            int32_t *at = chosen + t * width + i;
            *at = -1;
            if (next >= n || kc_chance(c, 3))
                continue;
            *at = (int32_t)kc_between(c, next, n - 1 < next + 3 ? n - 1 : next + 3);
            next = *at + 1;
            seen[p->seq_of[t] * longest + *at] = true;
        }
        if (kc_chance(c, 16))
            chosen[t * width + kc_between(c, 0, width - 1)] = kc_chance(c, 2)   ? (int32_t)n
                                                              : kc_chance(c, 2) ? -2
                                                                                : INT32_MAX;
    }
}

static void fill_sinks(struct kc_case *c)
{
    enum kc_values values = c->values;
    c->values = KC_NORMAL;
    kc_fill(c, 3, kc_any_type(c), c->a.heads, 0);
    c->values = values;
    float none = -INFINITY;
    if (kc_chance(c, 4))
        tensor_from_f32(&none, 1, c->a.in_dtype[3], c->in[3].data);
}

static void fill_latents(struct kc_case *c, const struct kc_steps *p, int64_t ratio, const bool *seen,
                         int64_t longest)
{
    enum kc_values values = c->values;
    if (values == KC_HUGE || values == KC_OUTLIER) /* a key is its value: scores of ordinary size */
        c->values = KC_NORMAL;
    for (int64_t s = 0; s < p->n; s++) {
        int64_t first = p->lengths[s] - p->chunks[s] - c->a.window + 1; /* seen by the first token */
        for (int64_t j = c->a.window && first > 0 ? first : 0; j < p->lengths[s]; j++)
            for (int64_t d = 0; d < c->a.dim; d++)
                kc_put(c, 1, kc_slot_of(c, 1, 6, s, j) * c->a.dim + d, kc_value(c, c->dtype));
        for (int64_t w = 0; ratio && w < p->lengths[s] / ratio; w++)
            for (int64_t d = 0; d < c->a.dim && (!seen || seen[s * longest + w]); d++)
                kc_put(c, 2, kc_slot_of(c, 2, 6, s, w) * c->a.dim + d, kc_value(c, c->dtype));
    }
    c->values = values;
}

void kc_make_POOL_ATTENTION(struct kc_case *c, unsigned index)
{
    struct kc_steps p;
    int64_t ratio = c->large ? 4 : kc_between(c, 0, 5), longest = c->large ? 2048 : 50,
            rows = c->large ? 16 : kc_between(c, 1, 20), pool_rows = c->large ? 4 : kc_between(c, 1, 9);
    c->a.heads = c->large ? 64 : kc_between(c, 1, 4);
    c->a.dim = c->large ? 512 : index < TAILS ? (int64_t)index + 1 : kc_between(c, 1, 140);
    c->a.window = c->large ? 128 : kc_chance(c, 4) ? 0 : kc_between(c, 1, 20);
    c->a.scale = 1 / sqrt((double)c->a.dim) * (kc_chance(c, 4) ? 8 : 1); /* sometimes sharp */
    c->a.attr[D0_ATTR_RATIO].i = ratio;
    kc_steps_make(c, 4, longest, 4, &p);
    for (int64_t s = 0; s < p.n; s++) {
        int64_t pool = ratio ? (p.lengths[s] / ratio + pool_rows - 1) / pool_rows : 0;
        p.columns[s] = (p.lengths[s] + rows - 1) / rows;
        p.columns[s] = pool > p.columns[s] ? pool : p.columns[s];
    }
    int64_t pages = kc_table_make(c, 6, &p);
    kc_pages_make(c, 1, pages, rows, c->a.dim);
    kc_pages_make(c, 2, pages, pool_rows, c->a.dim);
    bool *seen = NULL;
    if (ratio && !c->large && kc_chance(c, 2)) {
        seen = kc_room(c, (size_t)(p.n * longest), sizeof *seen);
        memset(seen, 0, (size_t)(p.n * longest) * sizeof *seen);
        make_chosen(c, &p, ratio, seen, longest);
    }
    fill_latents(c, &p, ratio, seen, longest);
    enum kc_values values = c->values;
    c->values = KC_NORMAL;
    kc_fill(c, 0, D0_F32, p.tokens * c->a.heads * c->a.dim, c->a.heads * c->a.dim);
    kc_dims(c, 0, 2, (int64_t[]){p.tokens, c->a.heads * c->a.dim});
    c->values = values;
    fill_sinks(c);
    kc_steps_break(c, &p);
    kc_output(c, p.tokens, c->a.heads * c->a.dim);
    c->a.k = c->a.heads * c->a.dim;
    c->flops = 4.0 * (double)(p.tokens * c->a.heads * c->a.dim) * (128 + (double)longest / 4);
    snprintf(c->shape, sizeof c->shape,
             "T=%d B=%d heads=%d dim=%d window=%d ratio=%d rows=%d/%d last length=%d%s", (int)p.tokens,
             (int)p.n, (int)c->a.heads, (int)c->a.dim, (int)c->a.window, (int)ratio, (int)rows,
             (int)pool_rows, (int)p.lengths[p.n - 1], seen ? " chosen" : "");
}

struct seen_key {
    unsigned input;
    int64_t slot;
};

/* The keys that row t sees, latents first. -1: one of them does not exist. */
static int64_t seen_keys(const struct kc_case *c, int64_t t, struct seen_key *keys)
{
    int64_t p = ((const int32_t *)c->in[4].data)[t], seq = ((const int32_t *)c->in[5].data)[t],
            ratio = kc_attr_of(c, D0_ATTR_RATIO), entries = ratio ? (p + 1) / ratio : 0, n = 0,
            first = c->a.window && p + 1 > c->a.window ? p + 1 - c->a.window : 0;
    const int32_t *chosen = c->in[7].data;
    if (p < 0 || !kc_sees_all(c, 1, 6, seq, first, p + 1))
        return -1;
    for (int64_t j = first; j <= p; j++)
        keys[n++] = (struct seen_key){1, kc_slot_of(c, 1, 6, seq, j)};
    for (int64_t i = 0; i < (chosen ? c->a.in_dims[7][1] : entries); i++) {
        int64_t w = chosen ? chosen[t * c->a.in_dims[7][1] + i] : i,
                slot = w >= 0 && w < entries ? kc_slot_of(c, 2, 6, seq, w) : -1;
        if (w != -1 && slot < 0)
            return -1;
        if (w != -1)
            keys[n++] = (struct seen_key){2, slot};
    }
    return n;
}

static void judge_pooled(struct kc_case *c, int64_t t, int64_t h, const struct seen_key *keys, int64_t n,
                         double *scores)
{
    int64_t dim = c->a.dim, row = (t * c->a.heads + h) * dim;
    double sink = kc_at(c, 3, (size_t)h), top = sink, sum = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double dot = 0, squares = 0;
        for (int64_t d = 0; d < dim; d++) {
            double term =
                kc_at(c, 0, (size_t)(row + d)) * kc_at(c, keys[i].input, (size_t)(keys[i].slot * dim + d));
            dot += term;
            squares += term * term;
        }
        scores[i] = dot * c->a.scale;
        top = fmax(top, scores[i]);
        size = fmax(size, fabs(c->a.scale) * fmax(fabs(dot), 2 * sqrt(squares)));
    }
    for (int64_t i = 0; i < n; i++)
        sum += exp(scores[i] - top);
    sum += exp(sink - top);
    for (int64_t d = 0; d < dim; d++) {
        double want = 0, scale = 0;
        for (int64_t i = 0; i < n; i++) {
            double v = kc_at(c, keys[i].input, (size_t)(keys[i].slot * dim + d));
            want += exp(scores[i] - top) / sum * v;
            scale = fmax(scale, fabs(v));
        }
        c->want[0][row + d] = n < 0 ? (double)NAN : want;
        c->scale[0][row + d] = fmax(SCALE_FLOOR, scale * (1 + size));
    }
}

void kc_judge_POOL_ATTENTION(struct kc_case *c)
{
    size_t most = (size_t)(c->a.table * c->a.in_dims[1][2] + c->a.table * c->a.in_dims[2][2]) + 8;
    struct seen_key *keys = kc_room(c, most, sizeof *keys);
    double *scores = kc_room(c, most, sizeof *scores);
    kc_judge_begin(c);
    for (int64_t t = 0; t < c->a.tokens; t++) {
        int64_t n = seen_keys(c, t, keys);
        for (int64_t h = 0; h < c->a.heads; h++)
            judge_pooled(c, t, h, keys, n, scores);
    }
}

/* ---- pool_kv ---- */

const unsigned kc_cases_POOL_KV = TAILS + 180;

/* Rings of the sequences: what their last tokens left, the rest NaN. */
static void make_rest(struct kc_case *c, const struct kc_steps *p, int64_t slots, int64_t ring, int64_t width)
{
    int32_t *slot = kc_ints(c, 10, p->n, 0);
    kc_dims(c, 10, 1, (int64_t[]){p->n});
    kc_dims(c, 6, 3, (int64_t[]){slots, 2 * ring, width});
    float *rest = kc_state(c, 1, (size_t)(slots * 2 * ring * width) * sizeof *rest);
    memset(rest, 0xFF, c->state[1].bytes);
    c->a.in_dtype[6] = D0_F32;
    for (int64_t s = 0; s < p->n; s++) {
        slot[s] = (int32_t)((s + 1) % slots); /* there are more slots than sequences */
        int64_t start = p->lengths[s] - p->chunks[s];
        for (int64_t j = start > ring ? start - ring : 0; j < start; j++)
            for (int64_t i = 0; i < width; i++) {
                float *at = rest + (slot[s] * 2 * ring + j % ring) * width + i;
                at[0] = (float)kc_value(c, D0_F32);
                at[ring * width] = (float)kc_normal(&c->rng);
            }
        if (!c->large && kc_chance(c, 16))
            slot[s] = kc_chance(c, 2) ? (int32_t)slots : -1;
    }
}

static void fill_normal(struct kc_case *c, unsigned i, int64_t n, int64_t row_elements, uint32_t dtype)
{
    enum kc_values values = c->values;
    c->values = KC_NORMAL;
    kc_fill(c, i, dtype, n, row_elements);
    c->values = values;
}

void kc_make_POOL_KV(struct kc_case *c, unsigned index)
{
    struct kc_steps p;
    int64_t ratio = c->large ? 4 : kc_between(c, 1, 6), parts = c->large || kc_chance(c, 2) ? 2 : 1,
            dim = c->large        ? 512
                  : index < TAILS ? (int64_t)index + 1
                                  : kc_between(c, 1, 140),
            rope = c->large          ? 64
                   : kc_chance(c, 5) ? 0
                                     : 2 * kc_between(c, 0, dim / 2),
            ring = parts * ratio, width = parts * dim, rows = c->large ? 4 : kc_between(c, 1, 9);
    kc_steps_make(c, 7, c->large ? 512 : 60, c->large ? 512 : kc_between(c, 1, 4 * ratio), &p);
    for (int64_t s = 0; s < p.n; s++)
        p.columns[s] = (p.lengths[s] / ratio + rows - 1) / rows;
    int64_t pages = kc_table_make(c, 9, &p);
    kc_fill(c, 0, D0_F32, p.tokens * width, width);
    fill_normal(c, 1, p.tokens * width, width, D0_F32);
    fill_normal(c, 2, ratio * width, 0, kc_any_type(c));
    fill_normal(c, 3, dim, 0, kc_any_type(c));
    if (rope) {
        fill_normal(c, 4, rope / 2, 0, kc_chance(c, 4) ? D0_BF16 : D0_F32);
        kc_dims(c, 4, 1, (int64_t[]){rope / 2});
    }
    if (c->values == KC_POISON && p.tokens)
        ((float *)c->in[kc_chance(c, 2)].data)[kc_between(c, 0, p.tokens * width - 1)] = NAN;
    for (unsigned i = 0; i < 2; i++)
        kc_dims(c, i, 2, (int64_t[]){p.tokens, width});
    kc_dims(c, 5, 4, (int64_t[]){pages, 1, rows, dim});
    c->a.in_dtype[5] = c->dtype;
    memset(kc_state(c, 0, (size_t)(pages * rows * dim) * kc_width(c->dtype)), 0xFF, c->state[0].bytes);
    make_rest(c, &p, p.n + kc_between(c, 1, 3), ring, width);
    kc_steps_break(c, &p);
    c->a.dim = dim;
    c->a.eps = kc_chance(c, 2) ? 1e-6 : 1e-5;
    c->a.attr[D0_ATTR_RATIO].i = ratio;
    c->a.attr[D0_ATTR_OVERLAP].i = parts - 1;
    c->a.attr[D0_ATTR_ROPE].i = rope;
    c->a.n_rows = p.tokens;
    c->a.k = width;
    c->moved = 8.0 * (double)(p.tokens * width);
    snprintf(c->shape, sizeof c->shape, "T=%d B=%d ratio=%d dim=%d rope=%d rows=%d last length=%d%s",
             (int)p.tokens, (int)p.n, (int)ratio, (int)dim, (int)rope, (int)rows, (int)p.lengths[p.n - 1],
             parts == 2 ? " overlap" : "");
}

/* Slot of the state of row t, or -1 where the row is to be skipped. */
static int64_t state_slot(const struct kc_case *c, int64_t t)
{
    int64_t seq = ((const int32_t *)c->in[8].data)[t];
    if (seq < 0 || seq >= c->a.in_dims[10][0] || ((const int32_t *)c->in[7].data)[t] < 0)
        return -1;
    int64_t slot = ((const int32_t *)c->in[10].data)[seq];
    return slot < c->a.in_dims[6][0] ? slot : -1;
}

/* What row t's sequence fed at `position` (side 0 kv, 1 gate): in this step up to t, else before it. */
static const float *fed(const struct kc_case *c, int64_t t, int64_t position, unsigned side)
{
    const int32_t *positions = c->in[7].data;
    int64_t width = c->a.k, ring = c->a.in_dims[6][1] / 2, slot = state_slot(c, t);
    for (int64_t u = t; u >= 0; u--)
        if (state_slot(c, u) == slot && positions[u] % ring == position % ring)
            return (const float *)c->in[side].data + u * width;
    return (const float *)c->state[1].data + ((slot * 2 + side) * ring + position % ring) * width;
}

/* x[dim] of the entry that row t completes, before the norm, and its natural scale */
static void judge_sums(const struct kc_case *c, int64_t t, double *x, double *unsure)
{
    int64_t ratio = kc_attr_of(c, D0_ATTR_RATIO), overlap = kc_attr_of(c, D0_ATTR_OVERLAP), dim = c->a.dim;
    int64_t last = ((const int32_t *)c->in[7].data)[t], begin = last + 1 - ratio;
    for (int64_t d = 0; d < dim; d++) {
        double top = -INFINITY, sum = 0, size = 0, largest = 0;
        x[d] = 0;
        for (int turn = 0; turn < 2; turn++)
            for (int64_t p = overlap && begin > 0 ? begin - ratio : begin; p <= last; p++) {
                int64_t channel = overlap && p >= begin ? dim + d : d;
                double ape = kc_at(c, 2, (size_t)(p % ratio * c->a.k + channel)),
                       gate = (double)fed(c, t, p, 1)[channel] + ape, kv = (double)fed(c, t, p, 0)[channel];
                top = turn ? top : fmax(top, gate);
                size = fmax(size, fmax(fabs(gate), fabs(ape)));
                largest = fmax(largest, fabs(kv));
                sum += turn ? exp(gate - top) : 0;
                x[d] += turn ? exp(gate - top) * kv : 0;
            }
        x[d] /= sum;
        unsure[d] = largest * (1 + size);
    }
}

static void judge_entry(struct kc_case *c, int64_t t, int64_t slot, double *x, double *unsure)
{
    int64_t dim = c->a.dim, rope = kc_attr_of(c, D0_ATTR_ROPE), ratio = kc_attr_of(c, D0_ATTR_RATIO);
    int64_t begin = ((const int32_t *)c->in[7].data)[t] + 1 - ratio;
    double *want = c->want_state_f64[0] + slot * dim, *scale = c->state_scale[0] + slot * dim;
    double squares = 0, off = 0;
    judge_sums(c, t, x, unsure);
    for (int64_t d = 0; d < dim; d++) {
        squares += x[d] * x[d];
        off += unsure[d] * unsure[d];
    }
    double inverse = 1 / sqrt(squares / (double)dim + c->a.eps);
    /* errors of the other channels come in through the mean of squares */
    double shared = sqrt(off / (squares + (double)dim * c->a.eps));
    for (int64_t d = 0; d < dim; d++) {
        double w = kc_at(c, 3, (size_t)d);
        want[d] = x[d] * inverse * w;
        scale[d] = fmax(SCALE_FLOOR, fabs(w) * inverse * (unsure[d] + fabs(x[d]) * shared));
    }
    for (int64_t d = dim - rope; d < dim; d += 2) {
        double angle = (double)((float)begin * (float)kc_at(c, 4, (size_t)((d - dim + rope) / 2)));
        double u = want[d], v = want[d + 1], both = scale[d] + scale[d + 1];
        want[d] = u * cos(angle) - v * sin(angle);
        want[d + 1] = u * sin(angle) + v * cos(angle);
        scale[d] = scale[d + 1] = both;
    }
}

void kc_judge_POOL_KV(struct kc_case *c)
{
    const int32_t *positions = c->in[7].data, *seq_of = c->in[8].data;
    int64_t width = c->a.k, ring = c->a.in_dims[6][1] / 2, ratio = kc_attr_of(c, D0_ATTR_RATIO);
    double *x = kc_room(c, (size_t)c->a.dim * 2, sizeof *x);
    kc_judge_begin(c);
    kc_judge_state(c, 0);
    float *rest = kc_room(c, c->state[1].bytes, 1);
    memcpy(rest, c->state[1].data, c->state[1].bytes);
    c->want_state[1] = rest;
    for (int64_t t = 0; t < c->a.tokens; t++) {
        int64_t slot = state_slot(c, t), p = positions[t];
        for (unsigned side = 0; side < 2 && slot >= 0; side++)
            memcpy(rest + ((slot * 2 + side) * ring + p % ring) * width,
                   (const float *)c->in[side].data + t * width, (size_t)width * sizeof *rest);
        int64_t at = slot >= 0 && (p + 1) % ratio == 0 ? kc_slot_of(c, 5, 9, seq_of[t], p / ratio) : -1;
        if (at >= 0)
            judge_entry(c, t, at, x, x + c->a.dim);
    }
}
