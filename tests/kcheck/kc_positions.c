/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of the operators that know positions: rope_table, rope, kv_store; and sequences in pages for all
 * who need them. What a definition does not read (free slots, pages of nobody) holds NaN.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc.h"

#define TAILS       70
#define SCALE_FLOOR 0x1p-106

/* ---- rope_table ---- */

const unsigned kc_cases_ROPE_TABLE = TAILS + 30;

void kc_make_ROPE_TABLE(struct kc_case *c, unsigned index)
{
    int64_t half = c->large        ? 64
                   : index < TAILS ? (int64_t)index + 1
                                   : kc_between(c, 1, 128),
            t = c->large ? 512 : kc_between(c, 0, 12);
    const int64_t three = !c->large && kc_chance(c, 2) ? 3 : 1; /* t, h, w of a picture */
    int32_t *positions = kc_ints(c, 0, t * three, three);
    kc_dims(c, 0, three == 3 ? 2 : 1, (int64_t[]){t, three});
    if (three == 3 && !kc_chance(c, 5)) {
        int64_t at = kc_between(c, 0, half), h = kc_between(c, 0, half - at);
        c->a.attr[D0_ATTR_SECTION_T].i = at;
        c->a.attr[D0_ATTR_SECTION_H].i = h;
        c->a.attr[D0_ATTR_SECTION_W].i = half - at - h;
        c->a.attr[D0_ATTR_INTERLEAVE].i = kc_between(c, 0, 2);
    }
    for (int64_t i = 0; i < t * three; i++)
        positions[i] = (int32_t)kc_between(c, 0, kc_chance(c, 2) ? 100 : 1000000);
    kc_fill(c, 1, D0_F32, half, 0);
    float *inv_freq = c->in[1].data;
    for (int64_t j = 0; j < half; j++)
        inv_freq[j] = (float)pow(10000, -(double)j / (double)half);
    kc_output(c, t, 2 * half);
    c->a.tokens = t;
    c->a.k = t;
    c->a.factor = kc_chance(c, 2) ? 1 : kc_between(c, 0, 1) ? 0 : 1.25;
    c->moved = 8.0 * (double)(t * half);
    snprintf(c->shape, sizeof c->shape, "T=%d D=%d factor=%g places=%d sections %d %d %d interleave %d",
             (int)t, 2 * (int)half, c->a.factor, (int)three, (int)c->a.attr[D0_ATTR_SECTION_T].i,
             (int)c->a.attr[D0_ATTR_SECTION_H].i, (int)c->a.attr[D0_ATTR_SECTION_W].i,
             (int)c->a.attr[D0_ATTR_INTERLEAVE].i);
}

/* Which of t, h, w the angles [half] follow. Interleaved: every third angle from the second (third) on, as
 * many as the section has; 2: width, height, width, ... */
static void angle_places(const struct kc_case *c, size_t half, uint8_t *which)
{
    const size_t t = (size_t)c->a.attr[D0_ATTR_SECTION_T].i, h = (size_t)c->a.attr[D0_ATTR_SECTION_H].i,
                 w = (size_t)c->a.attr[D0_ATTR_SECTION_W].i;
    memset(which, 0, half);
    for (size_t j = 0; c->a.attr[D0_ATTR_INTERLEAVE].i == 2 && j < half; j++)
        which[j] = j % 2 == 0 ? 2 : 1;
    if (c->a.attr[D0_ATTR_INTERLEAVE].i == 2)
        return;
    if (c->a.attr[D0_ATTR_INTERLEAVE].i) {
        for (size_t i = 0; i < h && 3 * i + 1 < half; i++)
            which[3 * i + 1] = 1;
        for (size_t i = 0; i < w && 3 * i + 2 < half; i++)
            which[3 * i + 2] = 2;
        return;
    }
    for (size_t j = t; j < t + h; j++)
        which[j] = 1;
    for (size_t j = t + h; j < t + h + w; j++)
        which[j] = 2;
}

void kc_judge_ROPE_TABLE(struct kc_case *c)
{
    const int32_t *positions = c->in[0].data;
    const float *inv_freq = c->in[1].data;
    size_t n = (size_t)c->a.n, half = n / 2;
    double factor = c->a.factor != 0 ? c->a.factor : 1;
    const size_t three = c->a.in_dims[0][1] == 3 ? 3 : 1;
    uint8_t which[128];
    angle_places(c, half, which);
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        int32_t p = positions[i / n * three + (three == 3 ? which[i % half] : 0)];
        double angle = (double)((float)p * inv_freq[i % half]);
        c->want[0][i] = factor * (i % n < half ? cos(angle) : sin(angle));
        c->scale[0][i] = fabs(factor);
    }
}

/* ---- rope ---- */

const unsigned kc_cases_ROPE = 2 * TAILS + 60;

void kc_make_ROPE(struct kc_case *c, unsigned index)
{
    int64_t half = c->large            ? 64
                   : index < 2 * TAILS ? index / 2 + 1
                                       : kc_between(c, 1, 80),
            heads = c->large ? 32 : kc_between(c, 1, 4), t = c->large ? 512 : kc_between(c, 0, 12),
            before = c->large || kc_chance(c, 2) ? 0 : kc_between(c, 0, 20),
            after = c->large || kc_chance(c, 2) ? 0 : kc_between(c, 0, 20), dim = before + 2 * half + after;
    c->a.style = c->large ? 0 : index % 2;
    c->a.attr[D0_ATTR_INVERSE].i = !c->large && kc_chance(c, 3);
    c->a.offset = before;
    c->a.dim = dim;
    c->a.table_width = 2 * half;
    kc_fill(c, 0, D0_F32, t * heads * dim, heads * dim);
    kc_fill(c, 1, D0_F32, t * 2 * half, 2 * half);
    float *table = c->in[1].data;
    for (int64_t i = 0; i < t * half; i++) {
        double angle = 6.3 * rng_next_f64(&c->rng);
        int64_t row = i / half, j = i % half;
        table[row * 2 * half + j] = (float)cos(angle);
        table[row * 2 * half + half + j] = (float)sin(angle);
    }
    kc_output(c, t, heads * dim);
    c->a.tokens = t;
    c->a.k = heads * dim;
    c->moved = 8.0 * (double)(t * heads * dim);
    snprintf(c->shape, sizeof c->shape, "T=%d heads=%d dim=%d D=%d offset=%d style=%d%s", (int)t, (int)heads,
             (int)dim, 2 * (int)half, (int)before, (int)c->a.style,
             c->a.attr[D0_ATTR_INVERSE].i ? " inverse" : "");
}

void kc_judge_ROPE(struct kc_case *c)
{
    size_t k = (size_t)c->a.k, dim = (size_t)c->a.dim, width = (size_t)c->a.table_width, half = width / 2;
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        size_t at = i % k % dim - (size_t)c->a.offset;
        c->want[0][i] = kc_at(c, 0, i);
        if (i % k % dim < (size_t)c->a.offset || at >= width)
            continue; /* scale 0: passes through, bit-equal */
        bool second = c->a.style ? at % 2 : at >= half;
        size_t pair = c->a.style ? at / 2 : at % half, partner = c->a.style ? i - at + (at ^ 1)
                                                                 : second   ? i - half
                                                                            : i + half;
        double cosine = kc_at(c, 1, i / k * width + pair), sine = kc_at(c, 1, i / k * width + half + pair);
        sine = c->a.attr[D0_ATTR_INVERSE].i ? -sine : sine;
        double x = kc_at(c, 0, i), y = kc_at(c, 0, partner);
        c->want[0][i] = second ? x * cosine + y * sine : x * cosine - y * sine;
        c->scale[0][i] = fmax(SCALE_FLOOR, fmax(fabs(x), fabs(y)));
    }
}

/* ---- sequences in pages ---- */

void kc_paged_make(struct kc_case *c, unsigned first, struct kc_paged *p)
{
    kc_paged_make_runs(c, first, 5, p);
}

void kc_paged_make_runs(struct kc_case *c, unsigned first, int64_t longest, struct kc_paged *p)
{
    static const int64_t page_tokens[] = {1, 2, 4, 8, 16, 32, 64, 256, 3, 24};
    c->a.page_tokens = c->large ? 64 : page_tokens[kc_between(c, 0, 9)];
    c->a.seqs = c->large ? 1 : kc_between(c, 1, 4);
    int64_t needed = 0, unused = kc_between(c, 1, 3);
    p->tokens = 0;
    for (int64_t s = 0; s < c->a.seqs; s++) {
        p->lengths[s] = c->large ? 1024 : kc_between(c, 1, kc_chance(c, 3) ? 150 : 20);
        p->chunks[s] = c->large ? 16
                                : kc_between(c, kc_chance(c, 8) ? 0 : 1,
                                             p->lengths[s] < longest ? p->lengths[s] : longest);
        p->tokens += p->chunks[s];
        int64_t pages = (p->lengths[s] + c->a.page_tokens - 1) / c->a.page_tokens;
        needed += pages;
        c->a.table = pages > c->a.table ? pages : c->a.table;
    }
    c->a.pages = needed + unused;
    c->a.tokens = p->tokens;
    c->a.n_rows = p->tokens;
    p->positions = kc_ints(c, first, p->tokens, 1);
    p->seq_of = kc_ints(c, first + 1, p->tokens, 1);
    p->table = kc_ints(c, first + 2, c->a.seqs * c->a.table, 0);
    kc_dims(c, first, 1, &p->tokens);
    kc_dims(c, first + 1, 1, &p->tokens);
    kc_dims(c, first + 2, 2, (int64_t[]){c->a.seqs, c->a.table});
    int32_t *order = arena_alloc_n(c->arena, (size_t)c->a.pages, sizeof *order);
    for (int32_t i = 0; i < (int32_t)c->a.pages; i++) {
        int64_t j = kc_between(c, 0, i);
        order[i] = order[j];
        order[j] = i;
    }
    for (int64_t s = 0, t = 0, next = 0; s < c->a.seqs; s++) {
        for (int64_t i = 0; i < c->a.table; i++)
            p->table[s * c->a.table + i] = i * c->a.page_tokens < p->lengths[s] ? order[next++] : -1;
        for (int64_t i = 0; i < p->chunks[s]; i++, t++) {
            p->positions[t] = (int32_t)(p->lengths[s] - p->chunks[s] + i);
            p->seq_of[t] = (int32_t)s;
        }
    }
}

void kc_paged_break(struct kc_case *c, struct kc_paged *p)
{
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX};
    if (c->large || !kc_chance(c, 6))
        return;
    p->table[kc_between(c, 0, c->a.seqs * c->a.table - 1)] =
        kc_chance(c, 2) ? (int32_t)c->a.pages : wrong[kc_between(c, 0, 2)];
    if (p->tokens && kc_chance(c, 2))
        p->positions[kc_between(c, 0, p->tokens - 1)] = kc_chance(c, 2) ? INT32_MAX : -1;
    if (p->tokens && kc_chance(c, 2))
        p->seq_of[kc_between(c, 0, p->tokens - 1)] = kc_chance(c, 2) ? (int32_t)c->a.seqs : -1;
}

int64_t kc_slot(const struct kc_case *c, const int32_t *table, int64_t seq, int64_t position, int64_t head)
{
    if (seq < 0 || seq >= c->a.seqs || position < 0 || position / c->a.page_tokens >= c->a.table)
        return -1;
    int64_t page = table[seq * c->a.table + position / c->a.page_tokens];
    if (page < 0 || page >= c->a.pages)
        return -1;
    return (page * c->a.kv_heads + head) * c->a.page_tokens + position % c->a.page_tokens;
}

/* ---- kv_store ---- */

const unsigned kc_cases_KV_STORE = 200;

void kc_make_KV_STORE(struct kc_case *c, unsigned index)
{
    struct kc_paged p;
    c->a.kv_heads = c->large ? 8 : kc_between(c, 1, 4);
    c->a.dim = c->large ? 128 : index < TAILS ? (int64_t)index + 1 : kc_between(c, 1, 130);
    int64_t v_dim = c->large || kc_chance(c, 2) ? c->a.dim : kc_between(c, 1, 130);
    c->a.v_dim = v_dim == c->a.dim && kc_chance(c, 2) ? 0 : v_dim;
    kc_paged_make(c, 4, &p);
    kc_paged_break(c, &p);
    if (c->values == KC_HUGE && c->dtype == D0_F16)
        c->values = KC_OUTLIER; /* what the pages cannot hold is infinite: see the unit tests of conversion */
    int64_t dims[2] = {c->a.dim, v_dim};
    for (unsigned s = 0; s < 2; s++) {
        kc_fill(c, s, D0_F32, p.tokens * c->a.kv_heads * dims[s], c->a.kv_heads * dims[s]);
        size_t bytes = (size_t)(c->a.pages * c->a.kv_heads * c->a.page_tokens * dims[s]) * kc_width(c->dtype);
        c->state[s] = (struct kc_array){arena_alloc(c->arena, bytes), bytes, 0};
        if (!c->state[s].data)
            abort();
        memset(c->state[s].data, 0xFF, bytes);
        c->a.in_dtype[2 + s] = c->dtype;
    }
    c->a.k = c->a.kv_heads * c->a.dim;
    c->moved = (double)(p.tokens * c->a.kv_heads * (c->a.dim + v_dim)) * (4 + (double)kc_width(c->dtype));
    snprintf(c->shape, sizeof c->shape, "T=%d B=%d kv_heads=%d dim=%d v_dim=%d page_tokens=%d", (int)p.tokens,
             (int)c->a.seqs, (int)c->a.kv_heads, (int)c->a.dim, (int)v_dim, (int)c->a.page_tokens);
}

void kc_judge_KV_STORE(struct kc_case *c)
{
    const int32_t *positions = c->in[4].data, *seq_of = c->in[5].data, *table = c->in[6].data;
    int64_t dims[2] = {c->a.dim, c->a.v_dim ? c->a.v_dim : c->a.dim};
    size_t width = kc_width(c->dtype);
    kc_judge_begin(c);
    for (unsigned s = 0; s < 2; s++) {
        unsigned char *want = arena_alloc(c->arena, c->state[s].bytes);
        if (!want)
            abort();
        memcpy(want, c->state[s].data, c->state[s].bytes);
        for (int64_t t = 0; t < c->a.tokens; t++)
            for (int64_t h = 0; h < c->a.kv_heads; h++) {
                int64_t slot = kc_slot(c, table, seq_of[t], positions[t], h);
                for (int64_t d = 0; slot >= 0 && d < dims[s]; d++) {
                    float x = ((const float *)c->in[s].data)[(t * c->a.kv_heads + h) * dims[s] + d];
                    tensor_from_f32(&x, 1, c->dtype, want + (size_t)(slot * dims[s] + d) * width);
                }
            }
        c->want_state[s] = want;
    }
}
