/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to dev: what the rules of operators share. A rule says whether the built-in devices can run one
 * node as it is written: types, shapes, attributes; false with the reason where not. rule_<NAME> for every
 * line of ops.def.
 */
#ifndef DEV_PART_RULES_H
#define DEV_PART_RULES_H

#include <stdbool.h>

#include "dev/part_check.h"
#include "tensor/tensor.h"

struct rule {
    const struct d0_part *p;
    const struct d0_node *n;
    char *reason;
    size_t bytes;
};

/* `met`, and where it is false the reason is kept. */
__attribute__((format(printf, 3, 4))) bool rule_need(const struct rule *r, bool met, const char *fmt, ...);
const struct d0_value *rule_input(const struct rule *r, uint32_t i); /* NULL where absent */
const struct d0_value *rule_output(const struct rule *r, uint32_t i);
int64_t rule_attr(const struct rule *r, uint32_t key); /* 0 where absent */

bool rule_is_matrix(const struct d0_value *v); /* float32 [rows, width], a row being of fixed width */
bool rule_is_rows(const struct d0_value *v, int64_t rows, int64_t width);  /* the same, of this size */
bool rule_is_ints(const struct d0_value *v, int64_t n);                    /* int32 [n] */
bool rule_is_int_rows(const struct d0_value *v, int64_t n, int64_t width); /* int32 [n, width] */
bool rule_is_weight_type(const struct d0_value *v);                        /* F32, BF16, F16 */
/* [a], or [a, b] where b > 0; all sizes fixed */
bool rule_is_weight(const struct d0_value *v, int64_t a, int64_t b);
/* A weight [n, k], or [e, n, k] where e > 0, plain or stored as codes: what ref_row() reads. */
bool rule_is_stored(const struct d0_value *v, int64_t e, int64_t n, int64_t k);
/* State [pages, heads, page_tokens, dim] of as many pages, tokens and the type of `like`. */
bool rule_is_pages(const struct d0_value *v, const struct d0_value *like, int64_t heads, int64_t dim);
bool rule_same_shape(const struct d0_value *a, const struct d0_value *b);
/* The attribute `form` of operators that can be computed in another way: 0 or 1. */
bool rule_form(const struct rule *r);
/* The attribute `function` and the numbers it takes; pair: of a gate and another value. */
bool rule_function(const struct rule *r, bool pair);
/* The attribute `segments` of a reduction over k values. */
bool rule_segments(const struct rule *r, int64_t k);
/* x_format, and the scale (x_scale, h_scale) that it takes or does not. */
bool rule_rounding(const struct rule *r, uint32_t scale_key);
/* positions[T], seq_of[T], page_table[B, P] from input `first` on */
bool rule_indices(const struct rule *r, uint32_t first, int64_t rows);
/* Pages of keys and of values from input `first` on, then the three index arrays */
bool rule_paged(const struct rule *r, uint32_t first, int64_t rows);

#define OP(id, NAME, ...) bool rule_##NAME(const struct rule *r);
#define ATTR(...)
#include "day0/ops.def"
#undef OP
#undef ATTR

#endif
