/* SPDX-License-Identifier: Apache-2.0
 *
 * Text without a reference: greedy text of a small story model, which repeats its motifs, must pass; noise
 * and loops must not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "verify/verify.h"

/* 256 greedy tokens of a trained model of 260 thousand parameters and 512 tokens of vocabulary */
static const int32_t story[] = {
    1,   403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426, 338, 401, 396, 267,
    337, 410, 408, 419, 292, 411, 322, 265, 282, 295, 433, 426, 385, 328, 432, 358, 394, 261, 370, 432,
    352, 266, 268, 388, 426, 338, 391, 266, 267, 337, 335, 312, 432, 398, 312, 286, 267, 414, 270, 333,
    415, 426, 13,  438, 310, 439, 419, 357, 336, 432, 313, 438, 310, 432, 278, 316, 439, 419, 298, 414,
    267, 265, 282, 295, 433, 426, 436, 317, 286, 296, 418, 269, 279, 292, 416, 439, 413, 409, 416, 327,
    263, 415, 294, 267, 400, 426, 338, 336, 432, 313, 442, 391, 267, 337, 335, 364, 420, 268, 388, 432,
    398, 359, 280, 303, 439, 413, 272, 417, 264, 312, 426, 436, 13,  438, 310, 286, 296, 418, 269, 279,
    292, 416, 439, 413, 409, 416, 327, 263, 415, 294, 267, 400, 426, 338, 336, 432, 313, 442, 439, 423,
    262, 304, 420, 422, 432, 317, 426, 359, 279, 292, 416, 439, 413, 409, 416, 327, 263, 415, 294, 267,
    400, 426, 436, 13,  438, 310, 279, 292, 416, 439, 413, 391, 267, 281, 421, 427, 311, 357, 432, 384,
    358, 336, 432, 313, 442, 439, 423, 262, 304, 420, 422, 432, 357, 426, 359, 279, 292, 416, 439, 413,
    409, 416, 327, 263, 415, 294, 267, 400, 426, 436, 320, 285, 357, 336, 432, 313, 455, 289, 439, 413,
    263, 304, 420, 422, 432, 317, 426, 410, 448, 411, 280, 303, 281, 421, 427, 364};
#define STORY (sizeof story / sizeof story[0])

static float logprobs[600];

static const float *constant(float v)
{
    for (size_t i = 0; i < 600; i++)
        logprobs[i] = v;
    return logprobs;
}

static void test_story_passes(void **state)
{
    (void)state;
    struct verify_text_result r;
    verify_text(story, NULL, STORY, "Once upon a time, there was a little girl named Lily.", &r);
    assert_true(r.reasonable);
    assert_true(r.distinct_3gram > 0.5 && r.distinct_3gram < 0.7);
    verify_text(story, constant(-0.45f), STORY, NULL, &r);
    assert_true(r.reasonable);
    assert_true(fabs(r.mean_logprob + 0.45) < 1e-6);
    for (size_t n = 1; n <= STORY; n++) {
        verify_text(story, NULL, n, NULL, &r);
        assert_true(r.reasonable);
    }
}

static void test_loops_fail(void **state)
{
    (void)state;
    int32_t ids[512];
    struct verify_text_result r;
    for (int period = 1; period <= 24; period++) {
        for (int i = 0; i < 512; i++)
            ids[i] = story[i % period];
        verify_text(ids, NULL, 512, NULL, &r);
        assert_false(r.reasonable);
        assert_non_null(strstr(r.why, "repeats"));
    }
    for (size_t n = 16; n < 140; n++) {
        for (size_t i = 0; i < n; i++)
            ids[i] = 7;
        verify_text(ids, NULL, n, NULL, &r);
        assert_false(r.reasonable);
    }
    /* a stammer of two words in no order: no lag repeats, but there are only eight 3-grams */
    struct rng g;
    rng_init(&g, 4);
    for (int i = 0; i < 256; i++)
        ids[i] = (int32_t)rng_below(&g, 2);
    verify_text(ids, NULL, 256, NULL, &r);
    assert_false(r.reasonable);
    /* a story that ends in a loop is less than half a loop */
    memcpy(ids, story, sizeof story);
    for (int i = 256; i < 384; i++)
        ids[i] = 9;
    verify_text(ids, NULL, 384, NULL, &r);
    assert_true(r.reasonable);
}

static void test_noise_fails(void **state)
{
    (void)state;
    int32_t ids[256];
    struct rng g;
    struct verify_text_result r;
    rng_init(&g, 3);
    for (int i = 0; i < 256; i++)
        ids[i] = (int32_t)rng_below(&g, 512);
    verify_text(ids, constant(-6.2f), 256, NULL, &r); /* ln 512: what a flat distribution gives */
    assert_false(r.reasonable);
    assert_non_null(strstr(r.why, "log-probability"));
    assert_true(r.share_low_logprob == 1);
    verify_text(ids, NULL, 256, "ab\xff\xfe cd \xef\xbf\xbd ef", &r);
    assert_false(r.reasonable);
    verify_text(ids, NULL, 256, "control \x01\x02 codes", &r);
    assert_false(r.reasonable);
    /* one broken character, and a character cut by the end of generation, are no noise */
    verify_text(ids, NULL, 256, "good text \xef\xbf\xbd and more of it, \xe4\xb8", &r);
    assert_true(r.reasonable);
    verify_text(ids, NULL, 256,
                "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c \xf0\x9f\x98\x80\n\t", &r);
    assert_true(r.reasonable);
}

static void test_edges(void **state)
{
    (void)state;
    struct verify_text_result r;
    verify_text(story, NULL, 0, "", &r);
    assert_false(r.reasonable);
    float lp[3] = {-0.1f, NAN, -0.2f};
    verify_text(story, lp, 3, "abc", &r);
    assert_false(r.reasonable);
    lp[1] = -INFINITY;
    verify_text(story, lp, 3, "abc", &r);
    assert_false(r.reasonable);
    lp[1] = 0.5f; /* more than certain */
    verify_text(story, lp, 3, "abc", &r);
    assert_false(r.reasonable);
    lp[1] = -6; /* one of three */
    verify_text(story, lp, 3, "abc", &r);
    assert_false(r.reasonable);
    lp[1] = -4;
    verify_text(story, lp, 3, "abc", &r);
    assert_true(r.reasonable);
    assert_non_null(strstr(r.why, "too few"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_story_passes),
        cmocka_unit_test(test_loops_fail),
        cmocka_unit_test(test_noise_fails),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
