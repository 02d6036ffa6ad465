/* SPDX-License-Identifier: Apache-2.0
 *
 * What makers of cases of row operators share: widths, poisoned rows, two inputs of one shape.
 */
#ifndef KCHECK_KC_MAKE_H
#define KCHECK_KC_MAKE_H

#include <math.h>
#include <stdlib.h>

#include "kc.h"

#define TAILS 70 /* every width 1..70 */
/* results below the smallest normal number may be flushed: 8 * 2^-23 of it is 2^-126 */
#define SCALE_FLOOR 0x1p-106

/* A width: every tail first, then random. */
static inline int64_t width_of(struct kc_case *c, unsigned index, int64_t most)
{
    return index < TAILS ? (int64_t)index + 1 : kc_between(c, 1, most);
}

/* One row of input i becomes NaN, another one gets an infinity. */
static inline void poison(struct kc_case *c, unsigned i, int64_t rows, int64_t row_elements)
{
    if (c->values != KC_POISON || rows * row_elements == 0 || c->a.in_form[i])
        return;
    size_t width = kc_width(c->a.in_dtype[i]);
    unsigned char *p = c->in[i].data;
    float nan = NAN, infinity = kc_chance(c, 2) ? INFINITY : -INFINITY;
    int64_t bad = kc_between(c, 0, rows - 1), other = kc_between(c, 0, rows - 1);
    tensor_from_f32(&infinity, 1, c->a.in_dtype[i],
                    p + (size_t)(other * row_elements + kc_between(c, 0, row_elements - 1)) * width);
    for (int64_t e = 0; e < row_elements; e++)
        tensor_from_f32(&nan, 1, c->a.in_dtype[i], p + (size_t)(bad * row_elements + e) * width);
}

/* The rounding of activations of a case: format `which` (0: none), and the scale at `key` where it takes one.
 */
static inline void x_format_of(struct kc_case *c, int64_t which, unsigned key)
{
    double near = c->values == KC_TINY ? 0x1p-40 : c->values == KC_HUGE ? 0x1p30 : 1;
    c->a.attr[D0_ATTR_X_FORMAT].i = c->x_format ? c->x_format : which;
    which = c->a.attr[D0_ATTR_X_FORMAT].i;
    if (which && kc_x_given(which))
        c->a.attr[key].f = (double)(float)(near * (0.001 + 0.02 * rng_next_f64(&c->rng)));
}

/* Input 0 of rows of `width` becomes, for the judge, what multiplies. */
static inline void judge_rounded(struct kc_case *c, size_t width)
{
    int64_t format = c->a.attr[D0_ATTR_X_FORMAT].i;
    size_t n = c->in[0].bytes / sizeof(float);
    double *x = arena_alloc_n(c->arena, 2 * width + 1, sizeof *x);
    float *wide = arena_alloc_n(c->arena, n + 1, sizeof *wide);
    if (!x || !wide)
        abort();
    for (size_t i = 0; i < n && format; i += width) {
        for (size_t j = 0; j < width; j++)
            x[j] = kc_at(c, 0, i + j);
        kc_round(format, c->a.attr[D0_ATTR_X_SCALE].f, x, width, NULL, x + width, NULL);
        for (size_t j = 0; j < width; j++)
            wide[i + j] = (float)x[width + j];
    }
    if (format)
        c->wide[0] = wide;
}

/* Inputs 0 and 1 and the output: [T, K]. */
static inline void make_pair(struct kc_case *c, unsigned index)
{
    int64_t k = c->large ? 8192 : width_of(c, index, 900), t = c->large ? 512 : kc_between(c, 0, 20);
    kc_fill(c, 0, D0_F32, t * k, k);
    kc_fill(c, 1, D0_F32, t * k, k);
    poison(c, 0, t, k);
    poison(c, 1, t, k);
    kc_output(c, t, k);
    c->a.tokens = t;
    c->a.k = k;
    c->moved = 12.0 * (double)(t * k);
    snprintf(c->shape, sizeof c->shape, "T=%d K=%d", (int)t, (int)k);
}

#endif
