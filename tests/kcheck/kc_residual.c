/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of the operators that mix residuals: mix_residual, hyper_in, hyper_out, hyper_head. An error of a
 * logit, in units of 2^-23 of its own natural scale, is a relative error of its exponential: scales of
 * results that are weighted by a softmax or a sigmoid grow by it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc.h"

#define TAILS       70
#define SCALE_FLOOR 0x1p-106

static void fill_normal(struct kc_case *c, unsigned i, int64_t n)
{
    enum kc_values values = c->values;
    c->values = KC_NORMAL; /* weights of ordinary size: else all is decided by one logit */
    kc_fill(c, i, kc_any_type(c), n, 0);
    c->values = values;
}

/* Rows [rows, width] of input i, of the case's class; poisoned: a row of NaN, and an infinity in another. */
static void fill_rows(struct kc_case *c, unsigned i, int64_t rows, int64_t width)
{
    kc_fill(c, i, D0_F32, rows * width, width);
    kc_dims(c, i, 2, (int64_t[]){rows, width});
    float *x = c->in[i].data;
    if (c->values != KC_POISON || rows == 0 || kc_chance(c, 3))
        return;
    x[kc_between(c, 0, rows * width - 1)] = kc_chance(c, 2) ? INFINITY : -INFINITY;
    int64_t bad = kc_between(c, 0, rows - 1);
    for (int64_t j = 0; j < width; j++)
        x[bad * width + j] = NAN;
}

static void scale_weight(struct kc_case *c, unsigned i, double by)
{
    size_t width = kc_width(c->a.in_dtype[i]), n = c->in[i].bytes / width;
    for (size_t j = 0; j < n; j++) {
        unsigned char *p = (unsigned char *)c->in[i].data + j * width;
        float v;
        tensor_to_f32(p, c->a.in_dtype[i], 1, &v);
        v *= (float)by;
        tensor_from_f32(&v, 1, c->a.in_dtype[i], p);
    }
}

static void set_eps(struct kc_case *c)
{
    c->a.eps = kc_chance(c, 2) ? 1e-6 : 1e-5;
    c->a.attr[D0_ATTR_EPS].f = c->a.eps;
}

/* ---- mix_residual ---- */

const unsigned kc_cases_MIX_RESIDUAL = TAILS + 150;

void kc_make_MIX_RESIDUAL(struct kc_case *c, unsigned index)
{
    int64_t k = c->large        ? 7168
                : index < TAILS ? (int64_t)index + 1
                                : kc_between(c, 1, 900),
            t = c->large ? 64 : kc_between(c, 0, 8), blocks = c->large ? 7 : kc_between(c, 0, 9);
    fill_rows(c, 0, t, k);
    for (int64_t i = 0; i < blocks; i++)
        fill_rows(c, 3 + (unsigned)i, t, k);
    fill_normal(c, 1, k);
    fill_normal(c, 2, k);
    if (!kc_chance(c, 4)) /* else sharp */
        scale_weight(c, 2, 1 / sqrt((double)k));
    set_eps(c);
    kc_output(c, t, k);
    c->a.tokens = t;
    c->a.k = k;
    c->moved = 4.0 * (double)(t * k * (2 * blocks + 3));
    snprintf(c->shape, sizeof c->shape, "T=%d K=%d blocks=%d norm=%s proj=%s", (int)t, (int)k, (int)blocks,
             dtype_name(c->a.in_dtype[1]), dtype_name(c->a.in_dtype[2]));
}

void kc_judge_MIX_RESIDUAL(struct kc_case *c)
{
    size_t k = (size_t)c->a.k;
    kc_judge_begin(c);
    for (size_t row = 0; row < (size_t)c->a.n_rows; row++) {
        double logit[D0_MAX_NODE_INPUTS], top = -INFINITY, sum = 0, size = 0;
        for (unsigned i = 0; i < D0_MAX_NODE_INPUTS; i++) {
            if (!c->in[i].data || i == 1 || i == 2)
                continue;
            double squares = 0, dot = 0, terms = 0;
            for (size_t j = 0; j < k; j++)
                squares += kc_at(c, i, row * k + j) * kc_at(c, i, row * k + j);
            double rms = sqrt(squares / (double)k + c->a.eps);
            for (size_t j = 0; j < k; j++) {
                double term = kc_at(c, i, row * k + j) / rms * kc_at(c, 1, j) * kc_at(c, 2, j);
                dot += term;
                terms += term * term;
            }
            logit[i] = dot;
            top = dot > top || isnan(dot) ? dot : top;
            size = fmax(size, fmax(fabs(dot), 2 * sqrt(terms)));
        }
        for (unsigned i = 0; i < D0_MAX_NODE_INPUTS; i++)
            if (c->in[i].data && i != 1 && i != 2)
                sum += exp(logit[i] - top);
        for (size_t j = 0; j < k; j++) {
            double want = 0, scale = 0;
            for (unsigned i = 0; i < D0_MAX_NODE_INPUTS; i++)
                if (c->in[i].data && i != 1 && i != 2) {
                    double term = exp(logit[i] - top) / sum * kc_at(c, i, row * k + j);
                    want += term;
                    scale += fabs(term);
                }
            c->want[0][row * k + j] = want;
            c->scale[0][row * k + j] = fmax(SCALE_FLOOR, scale * (1 + size));
        }
    }
}

/* ---- hyper_in, hyper_head ---- */

/* Sizes and inputs of both; rows of fn: products. */
static void make_streams(struct kc_case *c, unsigned index, bool head, int64_t *n, int64_t *h)
{
    int64_t t = c->large ? 64 : kc_between(c, 0, 6);
    *n = c->large ? 4 : index < TAILS ? index % 5 + 1 : kc_between(c, 1, 6);
    *h = c->large ? 4096 : index < TAILS ? (int64_t)index + 1 : kc_between(c, 1, 250);
    if (!c->large && index >= TAILS && kc_chance(c, 12)) {
        *n = kc_between(c, 7, 20);
        *h = kc_between(c, 1, 20);
    }
    int64_t products = head ? *n : *n * (*n + 2);
    fill_rows(c, 0, t, *n * *h);
    fill_normal(c, 1, products * *n * *h);
    if (!kc_chance(c, 4))
        scale_weight(c, 1, 1 / sqrt((double)(*n * *h)));
    fill_normal(c, 2, products);
    fill_normal(c, 3, head ? 1 : 3);
    kc_dims(c, 1, 2, (int64_t[]){products, *n * *h});
    set_eps(c);
    c->a.attr[D0_ATTR_STREAMS].i = *n;
    c->a.attr[D0_ATTR_RENORM_EPS].f = kc_chance(c, 3) ? 0 : 1e-6;
    c->a.tokens = t;
    c->a.k = *n * *h;
    kc_output(c, t, *h);
    c->flops = 2.0 * (double)(t * products * *n * *h);
    c->moved = 4.0 * (double)(t * (*n + 1) * *h) + (double)c->in[1].bytes;
}

/* Row `row`: the argument of sigmoid or softmax of product i, with factor `part`; *size: its natural scale.
 */
static double argument(const struct kc_case *c, size_t row, size_t i, size_t part, double *size)
{
    size_t k = (size_t)c->a.k;
    double squares = 0, dot = 0, terms = 0;
    for (size_t j = 0; j < k; j++) {
        double x = kc_at(c, 0, row * k + j), term = x * kc_at(c, 1, i * k + j);
        squares += x * x;
        dot += term;
        terms += term * term;
    }
    double by = kc_at(c, 3, part) / sqrt(squares / (double)k + c->a.eps), base = kc_at(c, 2, i);
    *size = fmax(fabs(base), fabs(by) * fmax(fabs(dot), 2 * sqrt(terms)));
    return dot * by + base;
}

static double sigmoid(double u)
{
    return 1 / (1 + exp(-u));
}

/* The streams of a row in one: weights sigmoid + renorm_eps. */
static void judge_collapse(struct kc_case *c, size_t row)
{
    size_t n = (size_t)c->a.attr[D0_ATTR_STREAMS].i, h = (size_t)c->a.k / n;
    double *weight = arena_alloc_n(c->arena, 2 * n, sizeof *weight), *unsure = weight + n;
    if (!weight)
        abort();
    for (size_t j = 0; j < n; j++) {
        double size, s = sigmoid(argument(c, row, j, 0, &size));
        weight[j] = s + c->a.attr[D0_ATTR_RENORM_EPS].f;
        unsure[j] = weight[j] + s * (1 - s) * size;
    }
    for (size_t i = 0; i < h; i++) {
        double want = 0, squares = 0;
        for (size_t j = 0; j < n; j++) {
            double x = kc_at(c, 0, row * n * h + j * h + i);
            want += weight[j] * x;
            squares += unsure[j] * x * unsure[j] * x;
        }
        c->want[0][row * h + i] = want;
        c->scale[0][row * h + i] = fmax(SCALE_FLOOR, fmax(fabs(want), 2 * sqrt(squares)));
    }
}

/* C[n, n] of a row; the largest natural scale of a logit. */
static double judge_square(struct kc_case *c, size_t row, double *square)
{
    size_t n = (size_t)c->a.attr[D0_ATTR_STREAMS].i;
    double eps = c->a.attr[D0_ATTR_RENORM_EPS].f, largest = 0;
    for (size_t i = 0; i < n; i++) {
        double sum = 0, top = -INFINITY;
        for (size_t j = 0; j < n; j++) {
            double size;
            square[i * n + j] = argument(c, row, 2 * n + i * n + j, 2, &size);
            largest = fmax(largest, size);
            top = fmax(top, square[i * n + j]);
        }
        for (size_t j = 0; j < n; j++)
            sum += exp(square[i * n + j] - top);
        for (size_t j = 0; j < n; j++)
            square[i * n + j] = exp(square[i * n + j] - top) / sum + eps;
    }
    for (int64_t turn = 0; turn == 0 || turn < c->a.attr[D0_ATTR_ROUNDS].i; turn++) {
        for (size_t i = 0; i < n && turn > 0; i++) {
            double sum = 0;
            for (size_t j = 0; j < n; j++)
                sum += square[i * n + j];
            for (size_t j = 0; j < n; j++)
                square[i * n + j] /= sum + eps;
        }
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t i = 0; i < n; i++)
                sum += square[i * n + j];
            for (size_t i = 0; i < n; i++)
                square[i * n + j] /= sum + eps;
        }
    }
    return largest;
}

const unsigned kc_cases_HYPER_IN = TAILS + 110;

void kc_make_HYPER_IN(struct kc_case *c, unsigned index)
{
    int64_t n, h;
    make_streams(c, index, false, &n, &h);
    c->a.attr[D0_ATTR_ROUNDS].i = c->large ? 20 : kc_between(c, 0, kc_chance(c, 2) ? 3 : 20);
    kc_output_of(c, 1, false, c->a.tokens, n * (n + 1));
    snprintf(c->shape, sizeof c->shape, "T=%d streams=%d H=%d rounds=%d renorm_eps=%g fn=%s",
             (int)c->a.tokens, (int)n, (int)h, (int)c->a.attr[D0_ATTR_ROUNDS].i,
             c->a.attr[D0_ATTR_RENORM_EPS].f, dtype_name(c->a.in_dtype[1]));
}

void kc_judge_HYPER_IN(struct kc_case *c)
{
    size_t n = (size_t)c->a.attr[D0_ATTR_STREAMS].i, width = n * (n + 1);
    double *square = arena_alloc_n(c->arena, n * n, sizeof *square);
    if (!square)
        abort();
    kc_judge_begin(c);
    for (size_t row = 0; row < (size_t)c->a.n_rows; row++) {
        judge_collapse(c, row);
        double *want = c->want[1] + row * width, *scale = c->scale[1] + row * width;
        for (size_t i = 0; i < n; i++) {
            double size, s = sigmoid(argument(c, row, n + i, 1, &size));
            want[i] = 2 * s;
            scale[i] = fmax(SCALE_FLOOR, 2 * s + 2 * s * (1 - s) * size);
        }
        double size = judge_square(c, row, square);
        for (size_t i = 0; i < n * n; i++) {
            want[n + i] = square[i];
            scale[n + i] = fmax(SCALE_FLOOR, square[i] * (1 + 2 * size));
        }
    }
}

const unsigned kc_cases_HYPER_HEAD = TAILS + 80;

void kc_make_HYPER_HEAD(struct kc_case *c, unsigned index)
{
    int64_t n, h;
    make_streams(c, index, true, &n, &h);
    snprintf(c->shape, sizeof c->shape, "T=%d streams=%d H=%d renorm_eps=%g fn=%s", (int)c->a.tokens, (int)n,
             (int)h, c->a.attr[D0_ATTR_RENORM_EPS].f, dtype_name(c->a.in_dtype[1]));
}

void kc_judge_HYPER_HEAD(struct kc_case *c)
{
    kc_judge_begin(c);
    for (size_t row = 0; row < (size_t)c->a.n_rows; row++)
        judge_collapse(c, row);
}

/* ---- hyper_out ---- */

const unsigned kc_cases_HYPER_OUT = TAILS + 80;

void kc_make_HYPER_OUT(struct kc_case *c, unsigned index)
{
    int64_t n = c->large ? 4 : kc_between(c, 1, 6),
            h = c->large        ? 4096
                : index < TAILS ? (int64_t)index + 1
                                : kc_between(c, 1, 300),
            t = c->large ? 64 : kc_between(c, 0, 8);
    enum kc_values values = c->values;
    fill_rows(c, 0, t, h);
    fill_rows(c, 1, t, n * h);
    c->values = KC_NORMAL;
    fill_rows(c, 2, t, n * (n + 1));
    c->values = values;
    c->a.attr[D0_ATTR_STREAMS].i = n;
    c->a.tokens = t;
    kc_output(c, t, n * h);
    c->a.k = h;
    c->moved = 4.0 * (double)(t * (2 * n + 1) * h);
    snprintf(c->shape, sizeof c->shape, "T=%d streams=%d H=%d", (int)t, (int)n, (int)h);
}

void kc_judge_HYPER_OUT(struct kc_case *c)
{
    size_t n = (size_t)c->a.attr[D0_ATTR_STREAMS].i, h = (size_t)c->a.k;
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        size_t row = i / (n * h), s = i / h % n, at = i % h, m = row * n * (n + 1);
        double term = kc_at(c, 2, m + s) * kc_at(c, 0, row * h + at), want = term, squares = term * term;
        for (size_t j = 0; j < n; j++) {
            term = kc_at(c, 2, m + n + j * n + s) * kc_at(c, 1, row * n * h + j * h + at);
            want += term;
            squares += term * term;
        }
        c->want[0][i] = want;
        c->scale[0][i] = fmax(SCALE_FLOOR, fmax(fabs(want), 2 * sqrt(squares)));
    }
}
