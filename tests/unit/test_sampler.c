/* SPDX-License-Identifier: Apache-2.0
 *
 * The sampler against a plain sort-everything model of it, its ties, limits, log-probabilities and refusals.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "engine/engine.h"

#define VOCAB 1000

struct outcome {
    int32_t token;
    float logprob;
    struct step_top top[STEP_MAX_TOP];
    uint32_t n_top, status;
};

static struct outcome sample(const float *x, uint32_t n, struct step_sampling s, uint32_t position)
{
    static float values[VOCAB];
    static int32_t ids[VOCAB];
    const struct sampler_scratch scratch = {values, ids};
    struct outcome o = {0};
    o.token = sample_token(x, n, &s, position, &scratch, &o.logprob, o.top, &o.n_top, &o.status);
    return o;
}

static void random_logits(float *x, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)(rng_f64(seed, i) * 12 - 6);
}

/* ---- the model: sort all, then walk -------------------------------------------------------------------- */

static const float *sort_logits;

static int by_logit(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
    if (sort_logits[i] != sort_logits[k])
        return sort_logits[i] > sort_logits[k] ? -1 : 1;
    return i < k ? -1 : 1;
}

/* Ids in order of likelihood, and how many of them top_k and top_p leave. */
static uint32_t candidates(const float *x, uint32_t n, const struct step_sampling *s, int32_t *ids, double *p)
{
    if (s->vocab_limit && s->vocab_limit < n)
        n = s->vocab_limit;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)i;
    sort_logits = x;
    qsort(ids, n, sizeof *ids, by_logit);
    uint32_t kept = s->top_k && s->top_k < n ? s->top_k : n;
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < kept; i++)
        total += p[i] = exp(((double)x[ids[i]] - x[ids[0]]) / s->temperature);
    if (s->top_p < 1)
        for (uint32_t i = 0; i < kept; i++) {
            sum += p[i];
            if (sum >= (double)s->top_p * total)
                kept = i + 1;
        }
    return kept;
}

static void test_greedy(void **state)
{
    (void)state;
    float x[VOCAB];
    random_logits(x, VOCAB, 1);
    x[700] = x[70] = x[7] = 50; /* lower id wins a tie */
    assert_int_equal(sample(x, VOCAB, (struct step_sampling){0}, 0).token, 7);
    x[7] = 0;
    assert_int_equal(sample(x, VOCAB, (struct step_sampling){.seed = 5}, 9).token, 70);
    assert_int_equal(sample(x, VOCAB, (struct step_sampling){.vocab_limit = 70}, 0).token,
                     sample(x, 70, (struct step_sampling){0}, 0).token);
    /* top_k of one is greedy at any temperature; so is a temperature close to zero */
    assert_int_equal(
        sample(x, VOCAB, (struct step_sampling){.temperature = 9, .top_p = 1, .top_k = 1}, 3).token, 70);
    struct step_sampling cold = {.temperature = 1e-30f, .top_p = 1};
    x[700] = 49;
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(sample(x, VOCAB, cold, i).token, 70);
}

static void test_against_model(void **state)
{
    (void)state;
    static int32_t ids[VOCAB];
    static double p[VOCAB];
    static float x[VOCAB];
    uint32_t n_distinct = 0;
    for (uint64_t round = 0; round < 400; round++) {
        uint32_t n = (uint32_t)(1 + rng_u64(7, round) % VOCAB);
        random_logits(x, n, round);
        if (round % 5 == 0) /* many ties */
            for (uint32_t i = 0; i < n; i++)
                x[i] = floorf(x[i]);
        struct step_sampling s = {.temperature = (float)(0.1 + rng_f64(8, round) * 2),
                                  .top_p = round % 3 ? (float)(0.05 + 0.95 * rng_f64(9, round)) : 1,
                                  .top_k = round % 2 ? (uint32_t)(1 + rng_u64(10, round) % 200) : 0,
                                  .vocab_limit = round % 7 ? 0 : 1 + n / 2,
                                  .seed = round};
        uint32_t kept = candidates(x, n, &s, ids, p);
        double total = 0;
        for (uint32_t i = 0; i < kept; i++)
            total += p[i];
        for (uint32_t position = 0; position < 20; position++) {
            struct outcome o = sample(x, n, s, position);
            double target = rng_f64(s.seed, position) * total, sum = 0;
            uint32_t want = 0;
            while (want + 1 < kept && (sum += p[want]) <= target)
                want++;
            assert_int_equal(o.status, STEP_OK);
            /* sums in another order may fall on the other side of a border: only there may the two differ */
            if (o.token != ids[want]) {
                assert_true(fabs(sum - target) < 1e-9 * total);
            }
            n_distinct += position && o.token != ids[0];
        }
    }
    assert_true(n_distinct > 1000);
}

static void test_frequencies(void **state)
{
    (void)state;
    const float x[4] = {0, 1, 2, -100};
    struct step_sampling s = {.temperature = 1, .top_p = 1, .seed = 42};
    uint32_t n[4] = {0};
    for (uint32_t i = 0; i < 20000; i++)
        n[sample(x, 4, s, i).token]++;
    double z = exp(0) + exp(1) + exp(2);
    for (int i = 0; i < 3; i++)
        assert_true(fabs(n[i] / 20000.0 - exp(x[i]) / z) < 0.015);
    assert_int_equal(n[3], 0);
    /* the same seed and position give the same token, another seed other ones */
    uint32_t same = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        struct step_sampling other = s;
        other.seed = 43;
        assert_int_equal(sample(x, 4, s, i).token, sample(x, 4, s, i).token);
        same += sample(x, 4, s, i).token == sample(x, 4, other, i).token;
    }
    assert_true(same < 900);
}

static void test_logprobs(void **state)
{
    (void)state;
    float x[VOCAB];
    for (uint32_t n = 1; n <= VOCAB; n += n < 70 ? 1 : 93) {
        random_logits(x, n, n);
        struct step_sampling s = {.temperature = n % 2 ? 0.7f : 0, .top_p = 1, .n_top = 20, .seed = n};
        struct outcome o = sample(x, n, s, 5);
        double sum = 0, mass = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += exp((double)x[i]);
        assert_int_equal(o.n_top, n < 20 ? n : 20);
        assert_true(fabs(o.logprob - (x[o.token] - log(sum))) < 1e-5);
        for (uint32_t i = 0; i < o.n_top; i++) {
            assert_true(fabs(o.top[i].logprob - (x[o.top[i].token] - log(sum))) < 1e-5);
            assert_true(i == 0 || o.top[i].logprob <= o.top[i - 1].logprob);
            mass += exp(o.top[i].logprob);
        }
        if (n <= 20)
            assert_true(fabs(mass - 1) < 1e-5);
        /* asking for log-probabilities never changes the token */
        s.n_top = 0;
        assert_int_equal(sample(x, n, s, 5).token, o.token);
        s.want_logprob = 1;
        assert_true(sample(x, n, s, 5).logprob == o.logprob);
    }
    /* far from zero: no overflow */
    x[0] = 3e38f;
    x[1] = -3e38f;
    x[2] = 3e38f;
    struct outcome o = sample(x, 3, (struct step_sampling){.n_top = 3}, 0);
    assert_true(fabs(o.logprob + log(2)) < 1e-6);
    assert_int_equal(o.top[1].token, 2);
}

static void test_not_finite(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t at = 0; at < 64; at += 21) {
            float x[64] = {0};
            x[at] = bad[i];
            struct outcome o =
                sample(x, 64, (struct step_sampling){.temperature = 1, .top_p = 1, .n_top = 4}, 1);
            assert_int_equal(o.token, -1);
            assert_int_equal(o.status, STEP_NOT_FINITE);
            assert_int_equal(o.n_top, 0);
        }
    float none = 0;
    assert_int_equal(sample(&none, 0, (struct step_sampling){0}, 0).token, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),      cmocka_unit_test(test_against_model),
        cmocka_unit_test(test_frequencies), cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
