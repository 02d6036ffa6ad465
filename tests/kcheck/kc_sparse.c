/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of sparse attention's choice, index_topk. What it does not read (free slots, pages of nobody) is NaN.
 *
 * A choice has no tolerance, so no case may hang on rounding. Every second case of index_topk is made of
 * small whole numbers, whose sums are exact in float32 in any order: ties are real, and frequent. In the
 * others each score gets an interval, 64 units of its natural scale wide; where the intervals of a chosen and
 * of another key meet, the query is drawn anew, and after some tries it becomes zero: all scores tie exactly.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc_steps.h"

#define TAILS 70

const unsigned kc_cases_INDEX_TOPK = 2 * TAILS + 240;

#define UNSURE (64 * 0x1p-23) /* four times what other sums of products may be off */

struct score {
    double value, low, high;
};

/* Keys that the query of row t chooses from; 0 where it has no place. */
static int64_t keys_of(const struct kc_case *c, int64_t t)
{
    int64_t n = (int64_t)((const int32_t *)c->in[2].data)[t] + 1, ratio = kc_attr_of(c, D0_ATTR_RATIO);
    int64_t seq = ((const int32_t *)c->in[3].data)[t];
    n = ratio ? n / ratio : n;
    return n > 0 && kc_sees_all(c, 1, 4, seq, 0, n) ? n : 0;
}

/* scale * q.k of head h, and where it may lie */
static struct score product(const struct kc_case *c, int64_t t, int64_t h, int64_t slot, bool exact)
{
    const float *q = (const float *)c->in[0].data + (t * c->a.heads + h) * c->a.dim;
    double dot = 0, squares = 0, scale = c->a.scale != 0 ? c->a.scale : 1;
    for (int64_t d = 0; d < c->a.dim; d++) {
        double term = (double)q[d] * kc_at(c, 1, (size_t)(slot * c->a.dim + d));
        dot += term;
        squares += term * term;
    }
    double off = exact ? 0 : UNSURE * fabs(scale) * fmax(fabs(dot), 2 * sqrt(squares));
    return (struct score){scale * dot, scale * dot - off, scale * dot + off};
}

/* A key's sum over heads of weight * relu(product). NaN is below all. */
static struct score key_score(const struct kc_case *c, int64_t t, int64_t slot, bool exact)
{
    struct score sum = {0};
    double size = 0;
    for (int64_t h = 0; h < c->a.heads; h++) {
        struct score s = product(c, t, h, slot, exact);
        double w = c->in[5].data ? (double)((const float *)c->in[5].data)[t * c->a.heads + h] : 1;
        if (isnan(s.value) || isnan(w))
            return (struct score){-INFINITY, -INFINITY, -INFINITY};
        sum.value += w * fmax(0, s.value);
        sum.low += w * fmax(0, w > 0 ? s.low : s.high);
        sum.high += w * fmax(0, w > 0 ? s.high : s.low);
        size += fabs(w) * fmax(0, s.high);
    }
    double off = exact ? 0 : UNSURE * size;
    return (struct score){sum.value, sum.low - off, sum.high + off};
}

/* The largest product of the heads of group g with a key of block b. */
static struct score block_score(const struct kc_case *c, int64_t t, int64_t g, int64_t b, bool exact)
{
    int64_t groups = kc_attr_of(c, D0_ATTR_GROUPS), each = c->a.heads / (groups ? groups : 1),
            size = kc_attr_of(c, D0_ATTR_BLOCK), seq = ((const int32_t *)c->in[3].data)[t];
    struct score top = {-INFINITY, -INFINITY, -INFINITY};
    for (int64_t key = b * size; key < (b + 1) * size; key++)
        for (int64_t h = g * each; h < (g + 1) * each; h++) {
            struct score s = product(c, t, h, kc_slot_of(c, 1, 4, seq, key), exact);
            top.value = fmax(top.value, s.value);
            top.low = fmax(top.low, s.low);
            top.high = fmax(top.high, s.high);
        }
    return top;
}

/* The topk of group g of row t, ascending, into want. Does it hang on rounding? */
static bool choose(struct kc_case *c, int64_t t, int64_t g, bool exact, double *want)
{
    int64_t keys = keys_of(c, t), block = kc_attr_of(c, D0_ATTR_BLOCK), topk = kc_attr_of(c, D0_ATTR_TOPK),
            n = block ? (keys + block - 1) / block : keys, own = block && n ? n - 1 : -1;
    struct score *s = kc_room(c, (size_t)n, sizeof *s);
    bool *taken = kc_room(c, (size_t)n, sizeof *taken), sure = true;
    for (int64_t i = 0; i < n; i++) {
        int64_t seq = ((const int32_t *)c->in[3].data)[t];
        taken[i] = i == own;
        if (i != own)
            s[i] =
                block ? block_score(c, t, g, i, exact) : key_score(c, t, kc_slot_of(c, 1, 4, seq, i), exact);
    }
    for (int64_t turn = own >= 0; turn < topk && turn < n; turn++) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || s[i].value > s[best].value))
                best = i;
        taken[best] = true;
    }
    int64_t out = 0;
    for (int64_t i = 0; i < n; i++) {
        if (taken[i])
            want[out++] = (double)i;
        for (int64_t k = 0; k < n && taken[i] && i != own; k++)
            if (!taken[k] && !(s[i].low > s[k].high) && (s[i].low < s[i].high || s[k].low < s[k].high))
                sure = false;
    }
    while (out < topk)
        want[out++] = -1;
    return sure;
}

static bool is_exact(unsigned index)
{
    return index % 2 == 0;
}

static double index_value(struct kc_case *c, bool exact, uint32_t dtype)
{
    return exact ? (double)kc_between(c, -4, 4) : kc_value(c, dtype);
}

static void fill_queries(struct kc_case *c, bool exact, int64_t tokens)
{
    kc_fill(c, 0, D0_F32, tokens * c->a.heads * c->a.dim, c->a.heads * c->a.dim);
    kc_dims(c, 0, 2, (int64_t[]){tokens, c->a.heads * c->a.dim});
    float *q = c->in[0].data, *w;
    for (int64_t i = 0; i < tokens * c->a.heads * c->a.dim; i++)
        q[i] = (float)index_value(c, exact, D0_F32);
    if (kc_attr_of(c, D0_ATTR_BLOCK) || kc_chance(c, 4))
        return;
    kc_fill(c, 5, D0_F32, tokens * c->a.heads, c->a.heads);
    kc_dims(c, 5, 2, (int64_t[]){tokens, c->a.heads});
    w = c->in[5].data;
    for (int64_t i = 0; i < tokens * c->a.heads; i++)
        w[i] = exact ? (float)kc_between(c, -2, 4) : (float)kc_normal(&c->rng);
}

static void fill_keys(struct kc_case *c, bool exact, const struct kc_steps *p, int64_t ratio)
{
    for (int64_t s = 0; s < p->n; s++)
        for (int64_t key = 0; key < p->lengths[s] / ratio; key++) {
            bool bad = c->values == KC_POISON && kc_chance(c, 16);
            for (int64_t d = 0; d < c->a.dim; d++)
                kc_put(c, 1, kc_slot_of(c, 1, 4, s, key) * c->a.dim + d,
                       bad ? (double)NAN : index_value(c, exact, c->dtype));
        }
}

/* Until no choice hangs on rounding. */
static void settle(struct kc_case *c, bool exact, int64_t tokens)
{
    int64_t groups = kc_attr_of(c, D0_ATTR_GROUPS), width = c->a.heads * c->a.dim;
    double *want = kc_room(c, (size_t)kc_attr_of(c, D0_ATTR_TOPK), sizeof *want);
    for (int64_t t = 0; t < tokens; t++) {
        float *q = (float *)c->in[0].data + t * width;
        bool sure = false;
        if (c->values == KC_POISON && kc_chance(c, 6))
            for (int64_t d = 0; d < width; d++)
                q[d] = NAN;
        for (int tries = 0; !sure; tries++) {
            sure = true;
            for (int64_t g = 0; g < (groups ? groups : 1); g++)
                sure = choose(c, t, g, exact, want) && sure;
            for (int64_t d = 0; d < width && !sure; d++)
                q[d] = tries < 8 ? (float)kc_value(c, D0_F32) : 0;
        }
    }
}

void kc_make_INDEX_TOPK(struct kc_case *c, unsigned index)
{
    struct kc_steps p;
    bool exact = is_exact(index);
    unsigned kind = c->large ? 0 : (unsigned)kc_between(c, 0, 2); /* keys, blocks, pooled entries */
    int64_t groups = kind == 1 ? kc_between(c, 0, 3) : 0, ratio = kind == 2 ? kc_between(c, 1, 5) : 1,
            rows = c->large          ? 16
                   : kc_chance(c, 4) ? kc_between(c, 60, 140)
                                     : kc_between(c, 1, 20);
    c->a.heads = c->large ? 64 : (groups ? groups : 1) * kc_between(c, 1, 4);
    c->a.dim = c->large ? 128 : index < 2 * TAILS ? index / 2 + 1 : kc_between(c, 1, 130);
    c->a.scale = kc_chance(c, 3) ? 0
                 : exact         ? ldexp(1, (int)kc_between(c, -3, 1))
                                 : 1 / sqrt((double)c->a.dim);
    c->a.attr[D0_ATTR_TOPK].i = c->large ? 2048 : kc_between(c, 1, 12);
    c->a.attr[D0_ATTR_GROUPS].i = groups;
    c->a.attr[D0_ATTR_BLOCK].i = kind == 1 ? kc_between(c, 1, 18) : 0;
    c->a.attr[D0_ATTR_RATIO].i = kind == 2 ? ratio : 0;
    kc_steps_make(c, 2, c->large ? 8192 : kc_chance(c, 3) ? 40 : 160, c->large ? 4 : 3, &p);
    for (int64_t s = 0; s < p.n; s++)
        p.columns[s] = (p.lengths[s] / ratio + rows - 1) / rows;
    int64_t pages = kc_table_make(c, 4, &p);
    kc_pages_make(c, 1, pages, rows, c->a.dim);
    fill_queries(c, exact, p.tokens);
    fill_keys(c, exact, &p, ratio);
    kc_steps_break(c, &p);
    kc_output_of(c, 0, true, p.tokens, (groups ? groups : 1) * kc_attr_of(c, D0_ATTR_TOPK));
    c->a.k = c->a.heads * c->a.dim;
    if (!c->large) {
        kc_judge_begin(c); /* widens the keys */
        settle(c, exact, p.tokens);
    }
    c->flops = 2.0 * (double)(p.tokens * c->a.heads * p.lengths[0] * c->a.dim);
    c->moved = (double)c->in[1].bytes;
    snprintf(c->shape, sizeof c->shape,
             "T=%d B=%d heads=%d dim=%d topk=%d block=%d groups=%d ratio=%d rows=%d last length=%d%s%s",
             (int)p.tokens, (int)p.n, (int)c->a.heads, (int)c->a.dim, (int)kc_attr_of(c, D0_ATTR_TOPK),
             (int)kc_attr_of(c, D0_ATTR_BLOCK), (int)groups, (int)kc_attr_of(c, D0_ATTR_RATIO), (int)rows,
             (int)p.lengths[p.n - 1], c->in[5].data ? " weights" : "", exact ? " whole numbers" : "");
}

void kc_judge_INDEX_TOPK(struct kc_case *c)
{
    int64_t topk = kc_attr_of(c, D0_ATTR_TOPK), groups = c->a.n / topk;
    kc_judge_begin(c);
    for (int64_t t = 0; t < c->a.tokens; t++)
        for (int64_t g = 0; g < groups; g++)
            choose(c, t, g, true, c->want[0] + (t * groups + g) * topk);
}
