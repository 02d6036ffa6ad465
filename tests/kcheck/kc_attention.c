/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of attention over grouped heads, each feature on by chance: window, chunk, chosen blocks or spans,
 * softcap, sinks, values of another width. A key that no query of the case sees holds NaN, like free slots
 * and pages of nobody.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc.h"

#define TAILS       70
#define SCALE_FLOOR 0x1p-106

/* ---- keys that are chosen ---- */

void kc_chosen_make(struct kc_case *c, unsigned i, const struct kc_paged *p, int64_t groups, int64_t block)
{
    static const int32_t wrong[] = {INT32_MIN, -2, INT32_MAX};
    int64_t topk = kc_between(c, 1, kc_chance(c, 3) ? 40 : 6), per = block ? block : 1;
    int32_t *chosen = kc_ints(c, i, p->tokens * groups * topk, groups * topk);
    kc_dims(c, i, 2, (int64_t[]){p->tokens, groups * topk});
    for (int64_t row = 0; row < p->tokens * groups; row++) {
        int32_t *list = chosen + row * topk, own = (int32_t)(p->positions[row / groups] / per);
        int64_t wanted = kc_chance(c, 12) ? 0 : kc_between(c, 1, topk), n = 0;
        for (int32_t b = 0; b <= own; b++) /* ascending, each as likely as the other */
            if (n < wanted && kc_between(c, 0, own - b) < wanted - n)
                list[n++] = b;
        for (int64_t k = n; k < topk; k++)
            list[k] = -1;
        if (!kc_chance(c, 8))
            continue;
        for (int64_t k = 0; k < topk; k++) { /* what no index would give: any order, twice, past the end */
            int64_t other = kc_between(c, 0, topk - 1);
            int32_t swap = list[k];
            list[k] = list[other];
            list[other] = swap;
        }
        list[kc_between(c, 0, topk - 1)] = kc_chance(c, 2) ? list[0] : own + (int32_t)kc_between(c, 1, 3);
        list[kc_between(c, 0, topk - 1)] = kc_chance(c, 2) ? list[0] : wrong[kc_between(c, 0, 2)];
    }
}

bool kc_chosen_has(const int32_t *list, int64_t n, int64_t block, int64_t j)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == j / (block ? block : 1))
            return true;
    return false;
}

/* ---- attention ---- */

const unsigned kc_cases_ATTENTION = 2 * TAILS + 260;

/* Poisoned cases: the score of a far key is -infinity in float32. All keys of the first page are far: a block
 * of them must weigh nothing, unless there is nothing else. */
#define FAR_QUERY (-3e38f)
#define FAR_KEY   60000.0f

/* Does token t see position j, as far as kv head g is concerned? */
static bool sees(const struct kc_case *c, int64_t t, int64_t g, int64_t j)
{
    int64_t p = ((const int32_t *)c->in[3].data)[t], chunk = c->a.attr[D0_ATTR_CHUNK].i;
    int64_t width = c->a.in_dims[7][1], topk = width / c->a.kv_heads;
    const int32_t *chosen = c->in[7].data, *spans = c->in[8].data;
    if (spans && (p < spans[2 * t] || p >= spans[2 * t + 1]))
        return false;
    if (spans && j > p && j < spans[2 * t + 1]) /* behind it in its span, whatever window and chunk say */
        return true;
    return j >= 0 && j <= p && (c->a.window == 0 || p - j < c->a.window) &&
           (chunk == 0 || j / chunk == p / chunk) &&
           (!chosen || kc_chosen_has(chosen + t * width + g * topk, topk, c->a.attr[D0_ATTR_BLOCK].i, j));
}

static bool any_sees(const struct kc_case *c, const struct kc_paged *p, int64_t s, int64_t g, int64_t j)
{
    for (int64_t t = 0; t < p->tokens; t++)
        if (p->seq_of[t] == s && sees(c, t, g, j))
            return true;
    return false;
}

static void fill_pages(struct kc_case *c, unsigned i, int64_t dim, const struct kc_paged *p)
{
    enum kc_values values = c->values;
    if (i == 1 && (values == KC_HUGE || values == KC_OUTLIER))
        c->values = KC_NORMAL; /* scores of ordinary size; the values may be as large as they like */
    int64_t slots = c->a.pages * c->a.kv_heads * c->a.page_tokens;
    kc_fill(c, i, c->dtype, 0, 0);
    size_t width = kc_width(c->dtype), bytes = (size_t)(slots * dim) * width;
    unsigned char *data = arena_alloc(c->arena, bytes);
    if (!data)
        abort();
    memset(data, 0xFF, bytes); /* NaN */
    c->in[i] = (struct kc_array){data, bytes, 0};
    kc_dims(c, i, 4, (int64_t[]){c->a.pages, c->a.kv_heads, c->a.page_tokens, dim});
    for (int64_t s = 0; s < c->a.seqs; s++)
        for (int64_t j = 0; j < p->lengths[s]; j++)
            for (int64_t h = 0; h < c->a.kv_heads; h++) {
                int64_t slot = any_sees(c, p, s, h, j) ? kc_slot(c, p->table, s, j, h) : -1;
                for (int64_t d = 0; slot >= 0 && d < dim; d++) {
                    float v = (float)kc_value(c, c->dtype);
                    if (i == 1 && c->values == KC_POISON && d == 0)
                        v = j < c->a.page_tokens || !kc_chance(c, 3) ? FAR_KEY : 0;
                    tensor_from_f32(&v, 1, c->dtype, data + (size_t)(slot * dim + d) * width);
                }
            }
    c->values = values;
}

/* Sinks of ordinary size, none that counts, or one that leaves little to the keys. */
static void make_sinks(struct kc_case *c)
{
    enum kc_values values = c->values;
    c->values = KC_NORMAL;
    kc_fill(c, 6, kc_any_type(c), c->a.heads, 0);
    c->values = values;
    float odd = kc_chance(c, 2) ? -INFINITY : 20;
    if (kc_chance(c, 4))
        tensor_from_f32(&odd, 1, c->a.in_dtype[6], c->in[6].data);
    kc_dims(c, 6, 1, &c->a.heads);
}

/* Runs of the tokens of each sequence, some of one token, one with a first position before the step. */
static void make_spans(struct kc_case *c, const struct kc_paged *p)
{
    int32_t *spans = kc_ints(c, 8, 2 * p->tokens, 2);
    kc_dims(c, 8, 2, (int64_t[]){p->tokens, 2});
    for (int64_t s = 0, t = 0; s < c->a.seqs; s++)
        for (int64_t at = 0, n; at < p->chunks[s]; at += n) {
            const int32_t first = (int32_t)(p->lengths[s] - p->chunks[s] + at);
            n = kc_chance(c, 3) ? 1 : kc_between(c, 1, p->chunks[s] - at);
            for (int64_t k = 0; k < n; k++, t++) {
                spans[2 * t] = at == 0 && kc_chance(c, 4) ? 0 : first;
                spans[2 * t + 1] = first + (int32_t)n;
            }
        }
}

/* Spans that no engine hands over: empty, backwards, without their token, past all pages. */
static void break_spans(struct kc_case *c, const struct kc_paged *p)
{
    static const int32_t wrong[] = {INT32_MIN, -1, 0, INT32_MAX};
    int32_t *spans = c->in[8].data;
    if (!spans || p->tokens == 0 || !kc_chance(c, 5))
        return;
    spans[kc_between(c, 0, 2 * p->tokens - 1)] = wrong[kc_between(c, 0, 3)];
}

static void make_features(struct kc_case *c, const struct kc_paged *p)
{
    static const double caps[] = {50, 30, 5, 0.5};
    if (c->large)
        return;
    if (kc_chance(c, 3))
        c->a.attr[D0_ATTR_SOFTCAP].f = caps[kc_between(c, 0, 3)];
    if (kc_chance(c, 4))
        c->a.attr[D0_ATTR_CHUNK].i = kc_between(c, 1, 40);
    if (kc_chance(c, 3))
        make_sinks(c);
    if (kc_chance(c, 3)) {
        c->a.attr[D0_ATTR_BLOCK].i = kc_chance(c, 3) ? 0 : kc_between(c, 1, 24);
        kc_chosen_make(c, 7, p, c->a.kv_heads, c->a.attr[D0_ATTR_BLOCK].i);
    } else if (kc_chance(c, 2)) {
        make_spans(c, p);
    }
}

void kc_make_ATTENTION(struct kc_case *c, unsigned index)
{
    struct kc_paged p;
    c->a.kv_heads = c->large ? 8 : kc_between(c, 1, 3);
    c->a.heads = c->a.kv_heads * (c->large ? 4 : kc_between(c, 1, 3));
    c->a.dim = c->large ? 128 : index < 2 * TAILS ? index / 2 + 1 : kc_between(c, 1, 160);
    int64_t v_dim = c->large || kc_chance(c, 2) ? c->a.dim : kc_between(c, 1, 160);
    c->a.v_dim = v_dim == c->a.dim && kc_chance(c, 2) ? 0 : v_dim;
    c->a.scale = 1 / sqrt((double)c->a.dim) * (kc_chance(c, 4) ? 8 : 1); /* sometimes sharp */
    c->a.window = c->large || kc_chance(c, 2) ? 0 : kc_between(c, 1, 40);
    kc_paged_make(c, 3, &p);
    make_features(c, &p);
    kc_fill(c, 0, D0_F32, p.tokens * c->a.heads * c->a.dim, c->a.heads * c->a.dim);
    for (size_t i = 0; i < c->in[0].bytes / 4; i++)
        ((float *)c->in[0].data)[i] =
            c->values == KC_POISON && i % (size_t)c->a.dim == 0 ? FAR_QUERY : (float)kc_normal(&c->rng);
    fill_pages(c, 1, c->a.dim, &p);
    fill_pages(c, 2, v_dim, &p);
    kc_paged_break(c, &p);
    break_spans(c, &p);
    kc_output(c, p.tokens, c->a.heads * v_dim);
    c->a.k = c->a.heads * c->a.dim;
    c->flops = 2.0 * (double)(p.tokens * c->a.heads * p.lengths[0] * (c->a.dim + v_dim));
    c->moved = (double)(c->a.kv_heads * p.lengths[0] * (c->a.dim + v_dim)) * (double)kc_width(c->dtype);
    snprintf(c->shape, sizeof c->shape,
             "T=%d B=%d heads=%d/%d dim=%d v_dim=%d page_tokens=%d window=%d chunk=%d chosen=%d block=%d "
             "softcap=%g%s%s last length=%d",
             (int)p.tokens, (int)c->a.seqs, (int)c->a.heads, (int)c->a.kv_heads, (int)c->a.dim, (int)v_dim,
             (int)c->a.page_tokens, (int)c->a.window, (int)c->a.attr[D0_ATTR_CHUNK].i,
             (int)c->a.in_dims[7][1], (int)c->a.attr[D0_ATTR_BLOCK].i, c->a.attr[D0_ATTR_SOFTCAP].f,
             c->in[6].data ? " sinks" : "", c->in[8].data ? " spans" : "", (int)p.lengths[c->a.seqs - 1]);
}

/* The score of one key; *size becomes at least the natural scale of its error. */
static double score_of(const struct kc_case *c, int64_t query, int64_t slot, double *size)
{
    double dot = 0, squares = 0, cap = c->a.attr[D0_ATTR_SOFTCAP].f, slope = 1;
    for (int64_t d = 0; d < c->a.dim; d++) {
        double term =
            kc_at(c, 0, (size_t)(query * c->a.dim + d)) * kc_at(c, 1, (size_t)(slot * c->a.dim + d));
        dot += term;
        squares += term * term;
    }
    double s = dot * c->a.scale;
    if (cap > 0) { /* an error before the cap comes through by its slope */
        double t = tanh(s / cap);
        slope = 1 - t * t;
        s = cap * t;
    }
    s = (double)(float)s;
    if (!isinf(s))
        *size = fmax(*size, fmax(fabs(s), slope * fabs(c->a.scale) * fmax(fabs(dot), 2 * sqrt(squares))));
    return s;
}

/* One token and head: want[v_dim] and scale[v_dim]; scores is room for all positions. */
static void judge_head(struct kc_case *c, int64_t t, int64_t h, double *scores, double *want, double *scale)
{
    const int32_t *positions = c->in[3].data, *seq_of = c->in[4].data, *table = c->in[5].data;
    int64_t p = positions[t], v_dim = c->a.v_dim ? c->a.v_dim : c->a.dim,
            g = h / (c->a.heads / c->a.kv_heads);
    const int32_t *span = c->in[8].data ? (const int32_t *)c->in[8].data + 2 * t : NULL;
    const int64_t end = span ? span[1] : p + 1;
    double top = c->in[6].data ? kc_at(c, 6, (size_t)h) : -INFINITY, sum, size = 0;
    bool live =
        kc_slot(c, table, seq_of[t], p, g) >= 0 && (!span || (span[0] >= 0 && span[0] <= p && p < end));
    for (int64_t j = 0; live && j < end; j++) {
        if (!sees(c, t, g, j))
            continue;
        int64_t slot = kc_slot(c, table, seq_of[t], j, g);
        live = slot >= 0;
        if (!live)
            break; /* a span may lead past all pages */
        scores[j] = score_of(c, t * c->a.heads + h, slot, &size);
        top = fmax(top, scores[j]);
    }
    for (int64_t d = 0; d < v_dim; d++)
        want[d] = live ? 0 : (double)NAN;
    sum = c->in[6].data && top > -INFINITY ? exp(kc_at(c, 6, (size_t)h) - top) : 0;
    for (int64_t j = 0; live && j < end; j++) {
        if (!sees(c, t, g, j))
            continue;
        int64_t slot = kc_slot(c, table, seq_of[t], j, g);
        double weight = exp(scores[j] - top);
        sum += weight;
        for (int64_t d = 0; d < v_dim; d++) {
            double v = kc_at(c, 2, (size_t)(slot * v_dim + d));
            want[d] += weight * v;
            scale[d] = fmax(scale[d], fabs(v));
        }
    }
    for (int64_t d = 0; live && d < v_dim; d++) {
        want[d] /= sum; /* no key and no sink: not a number */
        scale[d] = fmax(SCALE_FLOOR, scale[d] * (1 + size));
    }
}

void kc_judge_ATTENTION(struct kc_case *c)
{
    int64_t v_dim = c->a.v_dim ? c->a.v_dim : c->a.dim;
    double *scores = arena_alloc_n(c->arena, (size_t)(c->a.table * c->a.page_tokens), sizeof *scores);
    kc_judge_begin(c);
    if (!scores)
        abort();
    for (int64_t t = 0; t < c->a.tokens; t++)
        for (int64_t h = 0; h < c->a.heads; h++) {
            size_t at = (size_t)((t * c->a.heads + h) * v_dim);
            judge_head(c, t, h, scores, c->want[0] + at, c->scale[0] + at);
        }
}
