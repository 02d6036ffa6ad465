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
#endif

/* Work items. Each writes outputs that no other item writes. */
size_t kern_items_rows(const struct kern_args *a); /* one row of out[0] (KV_STORE: of in[0]) */
size_t
kern_items_columns(const struct kern_args *a); /* LINEAR: one output column (row of W) for all rows of x */
size_t kern_items_heads(const struct kern_args *a);    /* ATTENTION: one (token, head) pair */
size_t kern_items_elements(const struct kern_args *a); /* ADD, GLU, MUL, ACT: one element */

#endif
