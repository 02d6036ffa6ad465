/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of mul, scale, slice, concat, position_scale and group_linear. Definitions in float64, as ops.def
 * writes them; where its tolerance is 0, the float32 steps it names.
 */
#include <math.h>
#include <string.h>

#include "kc_make.h"

static void rows_of(struct kc_case *c, unsigned i, int64_t t, int64_t k)
{
    kc_fill(c, i, D0_F32, t * k, k);
    poison(c, i, t, k);
    kc_dims(c, i, 2, (int64_t[]){t, k});
}

/* ---- mul ---- */

const unsigned kc_cases_MUL = 2 * TAILS + 60;

void kc_make_MUL(struct kc_case *c, unsigned index)
{
    int64_t t = c->large ? 512 : kc_between(c, 0, 20), n = kc_between(c, 1, 5), run = 1;
    if (c->large)
        n = 8192;
    else if (index < TAILS)
        n = (int64_t)index + 1;
    else
        run = index < 2 * TAILS ? (int64_t)index - TAILS + 1 : kc_between(c, 1, 300);
    rows_of(c, 0, t, n * run);
    rows_of(c, 1, t, n);
    kc_output(c, t, n * run);
    c->a.tokens = t;
    c->a.k = n * run;
    c->moved = 12.0 * (double)(t * n);
    snprintf(c->shape, sizeof c->shape, "T=%d K=%d N=%d", (int)t, (int)(n * run), (int)n);
}

void kc_judge_MUL(struct kc_case *c)
{
    size_t k = (size_t)c->a.n, n = (size_t)c->a.in_dims[1][1];
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        size_t column = i % k / (k / n);
        c->want[0][i] = (double)(float)(kc_at(c, 0, i) * kc_at(c, 1, i / k * n + column));
        c->scale[0][i] = fabs(c->want[0][i]);
    }
}

/* ---- scale ---- */

const unsigned kc_cases_SCALE = TAILS + 80;

void kc_make_SCALE(struct kc_case *c, unsigned index)
{
    static const double factors[] = {1, 0.5, 1.0 / 3, 73.3212111, -2.7, 0};
    int64_t t = c->large ? 512 : kc_between(c, 0, 20), k = c->large ? 8192 : width_of(c, index, 600),
            n = kc_chance(c, 2) ? 1 : k;
    rows_of(c, 0, t, k);
    bool weight = !c->large && !kc_chance(c, 4);
    if (weight) {
        kc_fill(c, 1, kc_any_type(c), n, 0);
        kc_dims(c, 1, 1, &n);
    }
    c->a.attr[D0_ATTR_FACTOR].f = c->large ? 0.5 : factors[kc_between(c, 0, 5)];
    kc_output(c, t, k);
    c->a.tokens = t;
    c->a.k = k;
    c->moved = 8.0 * (double)(t * k);
    snprintf(c->shape, sizeof c->shape, "T=%d K=%d w=%d %s factor=%g", (int)t, (int)k, weight ? (int)n : 0,
             weight ? dtype_name(c->a.in_dtype[1]) : "", c->a.attr[D0_ATTR_FACTOR].f);
}

void kc_judge_SCALE(struct kc_case *c)
{
    size_t k = (size_t)c->a.n;
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        double y = (double)(float)(kc_at(c, 0, i) * (double)(float)c->a.attr[D0_ATTR_FACTOR].f);
        if (c->in[1].data)
            y = (double)(float)(y * kc_at(c, 1, c->a.in_dims[1][0] == 1 ? 0 : i % k));
        c->want[0][i] = y;
        c->scale[0][i] = fabs(y);
    }
}

/* ---- slice, concat ---- */

/* The attribute, which may be absent where there is one group. */
static int64_t groups_of(struct kc_case *c)
{
    int64_t groups = c->large ? 1 : kc_chance(c, 2) ? 1 : kc_between(c, 2, 5);
    c->a.attr[D0_ATTR_GROUPS].i = groups == 1 && kc_chance(c, 2) ? 0 : groups;
    return groups;
}

const unsigned kc_cases_SLICE = TAILS + 60;

void kc_make_SLICE(struct kc_case *c, unsigned index)
{
    int64_t t = c->large ? 512 : kc_between(c, 0, 20), dim = c->large ? 4096 : width_of(c, index, 300),
            before = kc_chance(c, 3) ? 0 : kc_between(c, 0, 40), groups = groups_of(c),
            whole = before + dim + (kc_chance(c, 3) ? 0 : kc_between(c, 0, 40));
    rows_of(c, 0, t, groups * whole);
    c->a.dim = dim;
    c->a.offset = before;
    c->a.attr[D0_ATTR_DIM].i = dim;
    c->a.attr[D0_ATTR_OFFSET].i = before;
    kc_output(c, t, groups * dim);
    c->a.tokens = t;
    c->a.k = groups * whole;
    c->moved = 8.0 * (double)(t * dim);
    snprintf(c->shape, sizeof c->shape, "T=%d %d of %d from %d in %d groups", (int)t, (int)dim, (int)whole,
             (int)before, (int)groups);
}

void kc_judge_SLICE(struct kc_case *c)
{
    int64_t groups = c->a.attr[D0_ATTR_GROUPS].i ? c->a.attr[D0_ATTR_GROUPS].i : 1, whole = c->a.k / groups,
            dim = c->a.attr[D0_ATTR_DIM].i;
    kc_judge_begin(c);
    for (int64_t i = 0; i < (int64_t)kc_outputs(c, 0); i++) {
        int64_t t = i / c->a.n, g = i % c->a.n / dim, j = i % dim;
        c->want[0][i] = kc_at(c, 0, (size_t)(t * c->a.k + g * whole + c->a.attr[D0_ATTR_OFFSET].i + j));
        c->scale[0][i] = fabs(c->want[0][i]);
    }
}

const unsigned kc_cases_CONCAT = TAILS + 60;

void kc_make_CONCAT(struct kc_case *c, unsigned index)
{
    int64_t t = c->large ? 512 : kc_between(c, 0, 20), groups = groups_of(c), width = 0;
    unsigned n = c->large ? 2 : (unsigned)kc_between(c, 2, 8);
    for (unsigned i = 0; i < n; i++) {
        int64_t k = groups * (c->large ? 2048 : i == 0 ? width_of(c, index, 200) : kc_between(c, 1, 40));
        rows_of(c, i, t, k);
        width += k;
    }
    kc_output(c, t, width);
    c->a.tokens = t;
    c->a.k = c->a.in_dims[0][1];
    c->moved = 8.0 * (double)(t * width);
    snprintf(c->shape, sizeof c->shape, "T=%d %u inputs, %d values in %d groups", (int)t, n, (int)width,
             (int)groups);
}

void kc_judge_CONCAT(struct kc_case *c)
{
    int64_t groups = c->a.attr[D0_ATTR_GROUPS].i ? c->a.attr[D0_ATTR_GROUPS].i : 1;
    kc_judge_begin(c);
    for (int64_t i = 0; i < (int64_t)kc_outputs(c, 0); i++) {
        int64_t t = i / c->a.n, at = i % (c->a.n / groups), g = i % c->a.n / (c->a.n / groups);
        unsigned from = 0;
        while (at >= c->a.in_dims[from][1] / groups)
            at -= c->a.in_dims[from++][1] / groups;
        int64_t k = c->a.in_dims[from][1];
        c->want[0][i] = kc_at(c, from, (size_t)(t * k + g * (k / groups) + at));
        c->scale[0][i] = fabs(c->want[0][i]);
    }
}

/* ---- position_scale ---- */

const unsigned kc_cases_POSITION_SCALE = TAILS + 60;

void kc_make_POSITION_SCALE(struct kc_case *c, unsigned index)
{
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX, -300};
    static const int64_t lengths[] = {8192, 1, 7, 100};
    int64_t t = c->large ? 512 : kc_between(c, 0, 20), k = c->large ? 4096 : width_of(c, index, 300);
    rows_of(c, 0, t, k);
    int32_t *positions = kc_ints(c, 1, t, 1);
    for (int64_t i = 0; i < t; i++)
        positions[i] = kc_chance(c, 10) ? wrong[kc_between(c, 0, 3)]
                                        : (int32_t)kc_between(c, 0, kc_chance(c, 2) ? 200 : 1000000);
    c->a.attr[D0_ATTR_LENGTH].i = lengths[kc_between(c, 0, 3)];
    c->a.attr[D0_ATTR_OFFSET].i = kc_between(c, 0, 1);
    c->a.attr[D0_ATTR_BETA].f = kc_chance(c, 2) ? 0.1 : 0.7;
    kc_output(c, t, k);
    c->a.tokens = t;
    c->a.k = k;
    c->moved = 8.0 * (double)(t * k);
    snprintf(c->shape, sizeof c->shape, "T=%d K=%d length=%d offset=%d beta=%g", (int)t, (int)k,
             (int)c->a.attr[D0_ATTR_LENGTH].i, (int)c->a.attr[D0_ATTR_OFFSET].i, c->a.attr[D0_ATTR_BETA].f);
}

void kc_judge_POSITION_SCALE(struct kc_case *c)
{
    const int32_t *positions = c->in[1].data;
    double length = (double)c->a.attr[D0_ATTR_LENGTH].i, offset = (double)c->a.attr[D0_ATTR_OFFSET].i;
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        double step = floor((positions[i / (size_t)c->a.n] + offset) / length);
        c->want[0][i] = kc_at(c, 0, i) * (1 + c->a.attr[D0_ATTR_BETA].f * log(1 + step));
        c->scale[0][i] = fmax(SCALE_FLOOR, fabs(c->want[0][i]));
    }
}

/* ---- group_linear ---- */

#define GROUP_PLAIN (TAILS + 110)
const unsigned kc_cases_GROUP_LINEAR = GROUP_PLAIN + 50; /* the last ones round x */

void kc_make_GROUP_LINEAR(struct kc_case *c, unsigned index)
{
    int64_t k = width_of(c, index, 700), n = kc_between(c, 1, 40),
            m = kc_between(c, 0, kc_chance(c, 2) ? 8 : 45), groups = groups_of(c);
    if (c->large) {
        groups = c->a.attr[D0_ATTR_GROUPS].i = 8;
        k = 2048;
        n = 512;
        m = 64;
    }
    x_format_of(c, index < GROUP_PLAIN || c->large ? 0 : 1 + index % kc_x_formats, D0_ATTR_X_SCALE);
    rows_of(c, 0, m, groups * k);
    kc_weight(c, 1, c->dtype, 1, groups * n, k, 0);
    poison(c, 1, groups * n, k);
    kc_dims(c, 1, 2, (int64_t[]){groups * n, k});
    kc_output(c, m, groups * n);
    c->a.tokens = m;
    c->a.k = groups * k;
    c->flops = 2.0 * (double)(m * groups * n * k);
    c->moved = (double)(groups * n * k) * (double)kc_width(c->dtype);
    snprintf(c->shape, sizeof c->shape, "M=%d N=%d K=%d groups=%d x=%d", (int)m, (int)n, (int)k, (int)groups,
             (int)c->a.attr[D0_ATTR_X_FORMAT].i);
}

void kc_judge_GROUP_LINEAR(struct kc_case *c)
{
    int64_t k = c->a.in_dims[1][1], groups = c->a.in_dims[0][1] / k, width = c->a.n, n = width / groups;
    kc_judge_begin(c);
    judge_rounded(c, (size_t)k);
    for (int64_t i = 0; i < (int64_t)kc_outputs(c, 0); i++) {
        int64_t t = i / width, column = i % width, x = t * groups * k + column / n * k;
        double sum = 0, squares = 0;
        for (int64_t j = 0; j < k; j++) {
            double term = kc_at(c, 0, (size_t)(x + j)) * kc_at(c, 1, (size_t)(column * k + j));
            sum += term;
            squares += term * term;
        }
        c->want[0][i] = sum;
        c->scale[0][i] = fmax(SCALE_FLOOR, fmax(fabs(sum), 2 * sqrt(squares)));
    }
}
