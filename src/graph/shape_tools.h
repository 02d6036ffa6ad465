/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to src/graph: what shape rules are made of. A rule looks at inputs and attributes, and either gives
 * the shape of the result or says in `why` what is broken.
 */
#ifndef GRAPH_SHAPE_TOOLS_H
#define GRAPH_SHAPE_TOOLS_H

#include "graph/graph_internal.h"

struct rule {
    const struct graph *g;
    const struct d0_node *n;
    struct d0_value *out;
    char *why;
    size_t why_bytes;
};

bool shape_broken(const struct rule *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const struct d0_value *shape_input(const struct rule *r, uint32_t i); /* NULL if absent */
/* Input i must have this type and number of dimensions. dtype 0: any float type (a weight). */
bool shape_want(const struct rule *r, uint32_t i, const char *name, uint32_t dtype, uint32_t n_dims);
bool shape_want_stored(const struct rule *r, uint32_t i, const char *name, uint32_t n_dims);
bool shape_want_dim(const struct rule *r, uint32_t i, const char *name, uint32_t d, int64_t expected);
/* x[rows, K] float32 with a known K. */
bool shape_want_rows(const struct rule *r, uint32_t i, const char *name);
/* positions[T], seq_of[T], page_table[B, P] from input i on. */
bool shape_want_places(const struct rule *r, uint32_t i, int64_t rows);
/* Pages [pages, kv_heads, page_tokens, dim] whose page size is that of the pages at input `as`. */
bool shape_want_pages(const struct rule *r, uint32_t i, const char *name, int64_t kv_heads, int64_t dim,
                      uint32_t as);
/* Attribute in 1..2^31-1. */
bool shape_positive(const struct rule *r, uint32_t key, int64_t *out);
bool shape_function(const struct rule *r);                          /* attribute `function` is known */
bool shape_rounding(const struct rule *r);                          /* attribute `x_format` is known */
bool shape_give(const struct rule *r, int64_t rows, int64_t width); /* [rows, width] float32 */
bool shape_pair(const struct rule *r, const char *a, const char *b);

/* The attribute `segments` of a reduction over k values. */
bool shape_segments(const struct rule *r, int64_t k);

/* Operators from id 11 on. */
bool shape_rule_family(const struct rule *r);
bool shape_rule_fused(const struct rule *r);

#endif
