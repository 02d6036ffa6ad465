/* SPDX-License-Identifier: Apache-2.0
 *
 * What makers of cases of row operators share: widths, poisoned rows, two inputs of one shape.
 */
#ifndef KCHECK_KC_MAKE_H
#define KCHECK_KC_MAKE_H

#include <math.h>

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
