/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of the operators that work on rows: embed, linear, rms_norm, add, gather_rows. Definitions in
 * float64, written again here: the reference kernels are variants like any other and are judged too. Natural
 * scales as in docs/numerics.md.
 */
#include <math.h>
#include <string.h>

#include "kc.h"
#include "kc_make.h"

/* ---- embed, gather_rows ---- */

const unsigned kc_cases_EMBED = 120;

static int32_t some_index(struct kc_case *c, int64_t n)
{
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX};
    if (kc_chance(c, 8))
        return kc_chance(c, 2) ? (int32_t)n : wrong[kc_between(c, 0, 2)];
    return (int32_t)kc_between(c, 0, n - 1);
}

void kc_make_EMBED(struct kc_case *c, unsigned index)
{
    int64_t h = c->large ? 4096 : width_of(c, index, 600), t = c->large ? 512 : kc_between(c, 0, 20),
            vocab = c->large ? 4096 : kc_between(c, 1, 30);
    int32_t *ids = kc_ints(c, 0, t, 1);
    for (int64_t i = 0; i < t; i++)
        ids[i] = some_index(c, vocab);
    kc_fill(c, 1, c->dtype, vocab * h, 0);
    kc_output(c, t, h);
    c->a.tokens = t;
    c->a.k = t;
    c->a.vocab = vocab;
    c->moved = (double)(t * h) * (4 + (double)kc_width(c->dtype));
    snprintf(c->shape, sizeof c->shape, "T=%d V=%d H=%d", (int)t, (int)vocab, (int)h);
}

/* Rows of `width` values behind each other, as the numbers say. */
static void judge_row_copy(struct kc_case *c, unsigned ints, unsigned rows, int64_t n_rows, size_t width)
{
    const int32_t *at = c->in[ints].data;
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        int32_t row = at[i / width];
        bool good = row >= 0 && row < n_rows;
        c->want[0][i] = good ? kc_at(c, rows, (size_t)row * width + i % width) : (double)NAN;
        c->scale[0][i] = fabs(c->want[0][i]);
    }
}

void kc_judge_EMBED(struct kc_case *c)
{
    judge_row_copy(c, 0, 1, c->a.vocab, (size_t)c->a.n);
}

const unsigned kc_cases_GATHER_ROWS = 120;

void kc_make_GATHER_ROWS(struct kc_case *c, unsigned index)
{
    int64_t k = c->large ? 4096 : width_of(c, index, 600), t = c->large ? 512 : kc_between(c, 1, 20),
            r = c->large ? 512 : kc_between(c, 0, 20),
            m = c->large || kc_chance(c, 2) ? 1 : kc_between(c, 1, 5); /* rows that become one */
    kc_fill(c, 0, D0_F32, t * k, 0);
    int32_t *rows = kc_ints(c, 1, r * m, m);
    for (int64_t i = 0; i < r * m; i++)
        rows[i] = some_index(c, t);
    kc_dims(c, 1, m > 1 ? 2 : 1, (int64_t[]){r, m});
    kc_output(c, r, m * k);
    c->a.tokens = t;
    c->a.rows = r;
    c->a.k = k;
    c->a.source_rows = t;
    c->moved = 8 * (double)(r * k);
    snprintf(c->shape, sizeof c->shape, "T=%d R=%d K=%d m=%d", (int)t, (int)r, (int)k, (int)m);
}

void kc_judge_GATHER_ROWS(struct kc_case *c)
{
    judge_row_copy(c, 1, 0, c->a.source_rows, (size_t)c->a.k);
}

/* ---- linear ---- */

/* every K tail with few, some and many rows; every N tail; then segments and random sizes */
#define LINEAR_PLAIN (3 * TAILS + 70 + 160)
const unsigned kc_cases_LINEAR = LINEAR_PLAIN + 100; /* the last ones round x */

static void linear_sizes(struct kc_case *c, unsigned index, int64_t *m, int64_t *n, int64_t *k)
{
    static const int64_t most[] = {3, 12, 20};
    *m = kc_between(c, 1, 20);
    *n = kc_between(c, 1, 20);
    if (index < 3 * TAILS) {
        *k = index % TAILS + 1;
        *m = kc_between(c, index / TAILS ? most[index / TAILS - 1] + 1 : 0, most[index / TAILS]);
    } else if (index < 3 * TAILS + 70) {
        *n = index - 3 * TAILS + 1;
        *k = kc_between(c, 1, 48);
    } else if (kc_chance(c, 2)) {
        static const int64_t unit[] = {1, 16, 32};
        c->a.segments = INT64_C(1) << kc_between(c, 1, 6);
        *k = c->a.segments * kc_between(c, 1, 5) * unit[kc_between(c, 0, 2)];
        *m = kc_between(c, 1, kc_chance(c, 3) ? 50 : 20);
    } else if (kc_chance(c, 4)) { /* several blocks of rows of W for several tiles of tokens */
        *k = kc_between(c, 1, 300);
        *n = kc_between(c, 90, 210);
        *m = kc_between(c, 21, 70);
    } else if (kc_chance(c, 4)) { /* several blocks of K */
        *k = kc_between(c, 1500, 4200);
        *n = kc_between(c, 1, 12);
        *m = kc_between(c, 25, 45);
    } else {
        *k = kc_between(c, 1, 1500);
        *n = kc_between(c, 1, 40);
        *m = kc_between(c, 0, 40);
    }
}

void kc_make_LINEAR(struct kc_case *c, unsigned index)
{
    int64_t m = 64, n = 4096, k = 4096;
    if (!c->large)
        linear_sizes(c, index, &m, &n, &k);
    kc_fill(c, 0, D0_F32, m * k, k);
    kc_weight(c, 1, c->dtype, 1, n, k, 0);
    x_format_of(c, index < LINEAR_PLAIN || c->large ? 0 : 1 + index % kc_x_formats, D0_ATTR_X_SCALE);
    bool bias = !c->large && kc_chance(c, 2);
    if (bias)
        kc_fill(c, 2, kc_any_type(c), n, 0);
    poison(c, 0, m, k);
    poison(c, 1, n, k);
    kc_output(c, m, n);
    c->a.tokens = m;
    c->a.k = k;
    c->flops = 2.0 * (double)(m * n * k);
    c->moved = (double)c->in[1].bytes;
    snprintf(c->shape, sizeof c->shape, "M=%d N=%d K=%d S=%d x=%d%s%s", (int)m, (int)n, (int)k,
             (int)c->a.segments, (int)c->a.attr[D0_ATTR_X_FORMAT].i, bias ? " bias " : "",
             bias ? dtype_name(c->a.in_dtype[2]) : "");
}

void kc_judge_LINEAR(struct kc_case *c)
{
    size_t n = (size_t)c->a.n, k = (size_t)c->a.k;
    kc_judge_begin(c);
    judge_rounded(c, k);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        double sum = 0, squares = 0;
        for (size_t j = 0; j < k; j++) {
            double term = kc_at(c, 0, i / n * k + j) * kc_at(c, 1, i % n * k + j);
            sum += term;
            squares += term * term;
        }
        double bias = c->in[2].data ? kc_at(c, 2, i % n) : 0;
        c->want[0][i] = sum + bias;
        c->scale[0][i] = fmax(SCALE_FLOOR, fmax(fabs(c->want[0][i]), 2 * sqrt(squares + bias * bias)));
    }
}

/* ---- rms_norm ---- */

const unsigned kc_cases_RMS_NORM = TAILS + 150;

void kc_make_RMS_NORM(struct kc_case *c, unsigned index)
{
    int64_t d = width_of(c, index, 1200), groups = kc_between(c, 1, 3), t = kc_between(c, 0, 12);
    if (!c->large && index >= TAILS && kc_chance(c, 2)) {
        c->a.segments = INT64_C(1) << kc_between(c, 1, 6);
        d = c->a.segments * kc_between(c, 1, 24);
    }
    if (c->large) {
        d = 4096;
        groups = 1;
        t = 512;
    }
    kc_fill(c, 0, D0_F32, t * d * groups, d * groups);
    poison(c, 0, t, d * groups);
    bool weight = c->large || !kc_chance(c, 4);
    if (weight)
        kc_fill(c, 1, kc_any_type(c), d, 0);
    c->a.dim = groups > 1 || kc_chance(c, 2) ? d : 0;
    c->a.plus_one = weight && kc_chance(c, 2);
    c->a.eps = kc_chance(c, 2) ? 1e-6 : 1e-5;
    kc_output(c, t, d * groups);
    c->a.tokens = t;
    c->a.k = d * groups;
    c->moved = 8.0 * (double)(t * d * groups);
    snprintf(c->shape, sizeof c->shape, "T=%d D=%d groups=%d S=%d w=%s%s", (int)t, (int)d, (int)groups,
             (int)c->a.segments, weight ? dtype_name(c->a.in_dtype[1]) : "none",
             c->a.plus_one ? " plus one" : "");
}

void kc_judge_RMS_NORM(struct kc_case *c)
{
    size_t d = (size_t)(c->a.dim ? c->a.dim : c->a.k);
    kc_judge_begin(c);
    for (size_t g = 0; g < kc_outputs(c, 0); g += d) {
        double squares = 0;
        for (size_t i = 0; i < d; i++)
            squares += kc_at(c, 0, g + i) * kc_at(c, 0, g + i);
        double inverse = 1 / sqrt(squares / (double)d + c->a.eps);
        for (size_t i = 0; i < d; i++) {
            double w = c->in[1].data ? kc_at(c, 1, i) : 1, x = kc_at(c, 0, g + i) * inverse;
            c->want[0][g + i] = x * (w + (c->a.plus_one ? 1 : 0));
            double scale = c->a.plus_one ? fabs(x) * fmax(1, fabs(w)) : fabs(c->want[0][g + i]);
            c->scale[0][g + i] = fmax(SCALE_FLOOR, scale);
        }
    }
}

/* ---- add ---- */

const unsigned kc_cases_ADD = 120;

void kc_make_ADD(struct kc_case *c, unsigned index)
{
    make_pair(c, index);
}

void kc_judge_ADD(struct kc_case *c)
{
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        c->want[0][i] = (double)(float)(kc_at(c, 0, i) + kc_at(c, 1, i));
        c->scale[0][i] = fabs(c->want[0][i]);
    }
}
