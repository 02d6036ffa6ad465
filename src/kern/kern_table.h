/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to kern: the tables of variants, one per instruction set, and the item counts they share.
 */
#ifndef KERN_KERN_TABLE_H
#define KERN_KERN_TABLE_H

#include "kern/kern.h"

struct kern_table {
    const struct kern_variant *variants;
    size_t n;
};

extern const struct kern_table kern_ref_table;
#if defined(__x86_64__)
extern const struct kern_table kern_table_of_avx2;
extern const struct kern_table kern_table_of_avx512;
extern const struct kern_table kern_table_of_avx512bf16;
#endif

/* Work items. Each writes outputs that no other item writes. */
size_t kern_items_rows(const struct kern_args *a); /* one row of out[0] (KV_STORE: of in[0]) */
size_t
kern_items_columns(const struct kern_args *a); /* LINEAR: one output column (row of W) for all rows of x */
/* LINEAR, GROUP_LINEAR in two phases: rows of x that are to be rounded, then output columns. */
size_t kern_items_products(const struct kern_args *a);
/* What is between them: the rounded rows, [n_rows, k] float32. Nothing where rows stay as they are. */
size_t kern_shared_rows(const struct kern_args *a);
void kern_round_rows(const struct kern_args *a, size_t first, size_t last);
/* The rows that the second phase multiplies. */
static inline const float *kern_rows(const struct kern_args *a)
{
    return a->attr[D0_ATTR_X_FORMAT].i ? a->shared : a->in[0];
}
size_t kern_items_heads(const struct kern_args *a);    /* ATTENTION: one (token, head) pair */
size_t kern_items_elements(const struct kern_args *a); /* ADD, GLU, MUL, ACT: one element */

#endif
