/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the judgement of generated text without a reference: repetition, improbable tokens, broken characters.
 * Says "not noise", never "right": a fluent wrong answer passes. Thresholds and what they were calibrated on:
 * docs/numerics.md.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/str.h"
#include "verify/verify.h"

#define TEXT_WINDOW        128 /* tokens; windows overlap by half */
#define TEXT_STRIDE        64
#define TEXT_MIN_TOKENS    16     /* fewer say nothing about repetition */
#define TEXT_DISTINCT_MIN  0.2    /* share of different 3-grams in a window */
#define TEXT_CORRELATION   0.65   /* share of tokens equal to the one `lag` before */
#define TEXT_SURE          (-0.2) /* mean log-probability above which a loop is the model's own certainty */
#define TEXT_LOW_LOGPROB   (-5.0f)
#define TEXT_LOW_SHARE_MAX 0.2
#define TEXT_BROKEN_MAX    0.05 /* share of characters that are no text */

static int compare_u64(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* Different 3-grams / 3-grams. Hashes stand for the 3-grams: a collision among 126 of them in 64 bits does
 * not matter. */
static double distinct_3gram(const int32_t *ids, size_t n)
{
    uint64_t grams[TEXT_WINDOW];
    size_t count = n - 2, different = 0;
    for (size_t i = 0; i < count; i++)
        grams[i] = hash64(ids + i, 3 * sizeof *ids, 0);
    qsort(grams, count, sizeof grams[0], compare_u64);
    for (size_t i = 0; i < count; i++)
        different += i == 0 || grams[i] != grams[i - 1];
    return (double)different / (double)count;
}

/* Largest share, over lags up to half the window, of tokens that repeat the one `lag` before. */
static double autocorrelation(const int32_t *ids, size_t n)
{
    double best = 0;
    for (size_t lag = 1; lag <= n / 2; lag++) {
        size_t equal = 0;
        for (size_t i = lag; i < n; i++)
            equal += ids[i] == ids[i - lag];
        double share = (double)equal / (double)(n - lag);
        best = share > best ? share : best;
    }
    return best;
}

static double mean(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return n ? sum / (double)n : 0;
}

/* Repetition must hold in at least half of the windows: a story that ends in a loop is the model's nature. */
static void judge_repetition(const int32_t *ids, const float *logprobs, size_t n,
                             struct verify_text_result *out)
{
    size_t windows = 0, looping = 0;
    double worst_correlation = 0;
    out->distinct_3gram = 1;
    for (size_t at = 0; at == 0 || at + TEXT_WINDOW <= n; at += TEXT_STRIDE) {
        size_t len = n - at < TEXT_WINDOW ? n - at : TEXT_WINDOW;
        double distinct = distinct_3gram(ids + at, len), correlation = autocorrelation(ids + at, len);
        bool sure = !logprobs || mean(logprobs + at, len) > TEXT_SURE;
        windows++;
        looping += distinct < TEXT_DISTINCT_MIN || (correlation > TEXT_CORRELATION && sure);
        out->distinct_3gram = distinct < out->distinct_3gram ? distinct : out->distinct_3gram;
        worst_correlation = correlation > worst_correlation ? correlation : worst_correlation;
    }
    if (2 * looping < windows || looping == 0)
        return;
    out->reasonable = false;
    snprintf(out->why, sizeof out->why,
             "repeats itself: %zu of %zu windows, %.0f %% different 3-grams, %.0f %% equal at a lag", looping,
             windows, 100 * out->distinct_3gram, 100 * worst_correlation);
}

static void judge_logprobs(const float *logprobs, size_t n, struct verify_text_result *out)
{
    size_t low = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(logprobs[i]) || logprobs[i] > 1e-3f) {
            out->reasonable = false;
            snprintf(out->why, sizeof out->why, "log-probability of token %zu is %g", i, (double)logprobs[i]);
            return;
        }
        low += logprobs[i] < TEXT_LOW_LOGPROB;
    }
    out->mean_logprob = mean(logprobs, n);
    out->share_low_logprob = n ? (double)low / (double)n : 0;
    if (out->share_low_logprob <= TEXT_LOW_SHARE_MAX)
        return;
    out->reasonable = false;
    snprintf(out->why, sizeof out->why,
             "%.0f %% of the tokens have a log-probability below %g (limit %.0f %%)",
             100 * out->share_low_logprob, (double)TEXT_LOW_LOGPROB, 100 * TEXT_LOW_SHARE_MAX);
}

static bool is_control(uint32_t c)
{
    return (c < 0x20 && c != '\n' && c != '\t' && c != '\r') || (c >= 0x7f && c < 0xa0);
}

static void judge_characters(const char *text, struct verify_text_result *out)
{
    size_t n = strlen(text), chars = 0, broken = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        size_t len = utf8_decode(text + i, n - i, &c);
        if (len == 0 && utf8_complete_prefix(text + i, n - i) == 0 && n - i < 4)
            break; /* generation was cut within a character */
        chars++;
        broken += len == 0 || c == 0xfffd || is_control(c);
        i += len ? len : 1;
    }
    if (broken < 2 || (double)broken <= TEXT_BROKEN_MAX * (double)chars)
        return;
    out->reasonable = false;
    snprintf(out->why, sizeof out->why,
             "%zu of %zu characters are not text (invalid UTF-8, U+FFFD or control characters)", broken,
             chars);
}

void verify_text(const int32_t *ids, const float *logprobs, size_t n, const char *text,
                 struct verify_text_result *out)
{
    *out = (struct verify_text_result){.reasonable = true, .distinct_3gram = 1};
    if (n == 0) {
        out->reasonable = false;
        snprintf(out->why, sizeof out->why, "no tokens");
        return;
    }
    if (n >= TEXT_MIN_TOKENS)
        judge_repetition(ids, logprobs, n, out);
    else
        snprintf(out->why, sizeof out->why, "%zu tokens are too few to judge repetition", n);
    if (text && out->reasonable)
        judge_characters(text, out);
    /* last, for its numbers are wanted whatever the others found, and its verdict is the plainest */
    if (logprobs)
        judge_logprobs(logprobs, n, out);
}
