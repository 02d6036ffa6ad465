/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the choice of a token from one row of logits, its log-probability and the alternatives.
 * Refuses: state and hidden randomness: the outcome is a function of logits, parameters and position.
 *
 * Order is everything here: candidates stand by logit descending, ties by lower id, and every sum runs in a
 * fixed order, so that the same row gives the same token in any batch and layout. Full sorting of a large
 * vocabulary for each token is too slow; a heap gives the same order and stops where the draw stops.
 */
#include "engine/engine.h"

#include <math.h>

#include "base/hash.h"

#define LSE_SEGMENTS 64u

struct part {
    double max, sum; /* sum of exp(x - max) */
};

static struct part part_join(struct part a, struct part b)
{
    struct part r = {.max = a.max > b.max ? a.max : b.max};
    r.sum = a.sum * exp(a.max - r.max) + b.sum * exp(b.max - r.max);
    return r;
}

/* S fixed segments, each reduced on its own, joined by the tree of neighbouring pairs: a layout that cuts the
 * vocabulary in up to S parts gets the same bits. */
static struct part log_sum_exp(const float *x, uint32_t n)
{
    uint32_t segments = LSE_SEGMENTS;
    while (n % segments)
        segments /= 2;
    uint32_t width = n / segments;
    struct part parts[LSE_SEGMENTS];
    for (uint32_t s = 0; s < segments; s++, x += width) {
        struct part p = {.max = x[0]};
        for (uint32_t i = 1; i < width; i++)
            p.max = x[i] > p.max ? x[i] : p.max;
        for (uint32_t i = 0; i < width; i++)
            p.sum += exp(x[i] - p.max);
        parts[s] = p;
    }
    for (uint32_t n_parts = segments; n_parts > 1; n_parts /= 2)
        for (uint32_t i = 0; i < n_parts / 2; i++)
            parts[i] = part_join(parts[2 * i], parts[2 * i + 1]);
    return parts[0];
}

/* max and sum stay apart until here: added up first, large logits would swallow the logarithm. */
static float log_probability(float x, struct part p)
{
    return (float)((x - p.max) - log(p.sum));
}

/* ---- candidates in order ------------------------------------------------------------------------------- */

struct order {
    const float *logits;
    int32_t *heap; /* [n_heap]; popped ones stand behind it, last popped first */
    uint32_t n_heap, n;
};

static bool before(const float *x, int32_t a, int32_t b)
{
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

static void sift(struct order *o, uint32_t i)
{
    int32_t id = o->heap[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= o->n_heap)
            break;
        if (child + 1 < o->n_heap && before(o->logits, o->heap[child + 1], o->heap[child]))
            child++;
        if (!before(o->logits, o->heap[child], id))
            break;
        o->heap[i] = o->heap[child];
        i = child;
    }
    o->heap[i] = id;
}

static void order_begin(struct order *o, const float *logits, uint32_t n, int32_t *ids)
{
    *o = (struct order){.logits = logits, .heap = ids, .n_heap = n, .n = n};
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)i;
    for (uint32_t i = n / 2; i-- > 0;)
        sift(o, i);
}

/* The i-th candidate; moves as many to the sorted end as that takes. */
static int32_t order_at(struct order *o, uint32_t i)
{
    while (o->n - o->n_heap <= i) {
        int32_t best = o->heap[0];
        o->n_heap--;
        o->heap[0] = o->heap[o->n_heap];
        o->heap[o->n_heap] = best;
        if (o->n_heap > 1)
            sift(o, 0);
    }
    return o->heap[o->n - 1 - i];
}

/* ---- the draw ------------------------------------------------------------------------------------------ */

static double weight(const struct order *o, int32_t id, double max, double temperature)
{
    return exp(((double)o->logits[id] - max) / temperature);
}

/* Temperature, then top_k, then top_p over what top_k left, then one number in [0, 1). */
static int32_t draw(struct order *o, const struct step_sampling *s, uint32_t position)
{
    uint32_t n = s->top_k && s->top_k < o->n ? s->top_k : o->n;
    double max = o->logits[order_at(o, 0)], t = s->temperature, total = 0;
    if (n < o->n)
        for (uint32_t i = 0; i < n; i++)
            total += weight(o, order_at(o, i), max, t);
    else
        for (uint32_t i = 0; i < n; i++)
            total += weight(o, (int32_t)i, max, t);
    double kept = total;
    if (s->top_p < 1) {
        double want = (double)s->top_p * total;
        kept = 0;
        uint32_t n_kept = 0;
        while (n_kept < n && (n_kept == 0 || kept < want))
            kept += weight(o, order_at(o, n_kept++), max, t);
        n = n_kept;
    }
    double target = rng_f64(s->seed, position) * kept, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        int32_t id = order_at(o, i);
        sum += weight(o, id, max, t);
        if (sum > target)
            return id;
    }
    /* the sums in two orders may differ in the last bits; the least likely candidate that can occur at all */
    while (n > 1 && weight(o, order_at(o, n - 1), max, t) == 0)
        n--;
    return order_at(o, n - 1);
}

static bool all_finite(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static int32_t greedy(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

int32_t sample_token(const float *logits, uint32_t vocab, const struct step_sampling *s, uint32_t position,
                     const struct sampler_scratch *scratch, float *logprob, struct step_top *top,
                     uint32_t *n_top, uint32_t *status)
{
    *logprob = 0;
    *n_top = 0;
    *status = STEP_OK;
    if (vocab == 0 || !all_finite(logits, vocab)) {
        *status = STEP_NOT_FINITE;
        return -1;
    }
    uint32_t n = s->vocab_limit && s->vocab_limit < vocab ? s->vocab_limit : vocab;
    uint32_t want = s->n_top < STEP_MAX_TOP ? s->n_top : STEP_MAX_TOP;
    want = want < n ? want : n;
    struct order order;
    if (want || s->temperature > 0)
        order_begin(&order, logits, n, scratch->ids);
    int32_t token = s->temperature > 0 ? draw(&order, s, position) : greedy(logits, n);
    if (!want && !s->want_logprob)
        return token;
    /* log-probabilities are of the model's own distribution: all ids, no temperature */
    struct part lse = log_sum_exp(logits, vocab);
    *logprob = log_probability(logits[token], lse);
    for (uint32_t i = 0; i < want; i++) {
        int32_t id = order_at(&order, i);
        top[i] = (struct step_top){.token = id, .logprob = log_probability(logits[id], lse)};
    }
    *n_top = want;
    return token;
}
