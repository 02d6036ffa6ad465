/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to kern: what the operators of sparse and pooled attention and of mixed residuals share among the
 * reference and the fast variants: keys in pages by number, the choice of the best, weights of streams.
 */
#ifndef KERN_REF_REF_SPARSE_H
#define KERN_REF_REF_SPARSE_H

#include "kern/ref/ref.h"

/* First element of key (position or pooled entry) s of sequence seq in pages of one head, input `pages`
 * [pages, 1, rows, dim]: slot s % rows of the page in column s / rows of the table, input `table` [B, P]. -1
 * where there is none. */
static inline int64_t ref_key_at(const struct kern_args *a, unsigned pages, unsigned table, int64_t seq,
                                 int64_t s)
{
    const int32_t *page_table = a->in[table];
    int64_t rows = a->in_dims[pages][2];
    if (seq < 0 || seq >= a->in_dims[table][0] || s < 0 || s / rows >= a->in_dims[table][1])
        return -1;
    int64_t page = page_table[seq * a->in_dims[table][1] + s / rows];
    return page >= 0 && page < a->in_dims[pages][0] ? (page * rows + s % rows) * a->in_dims[pages][3] : -1;
}

/* ---- index_topk ---- */

#define REF_INDEX_KEYS 64 /* scored at once, at most */

/* Scores of the n keys of group g from element `at` of the pages on, for query t. */
typedef void ref_score_fn(const struct kern_args *a, size_t t, size_t g, size_t at, size_t n, double *out);
/* The choice for rows first..last-1 by these scores. A NaN counts as -infinity; a row whose sequence,
 * position or pages do not exist chooses nothing. */
void ref_index_rows(const struct kern_args *a, size_t first, size_t last, unsigned thread,
                    ref_score_fn *score);
size_t ref_index_scratch(const struct kern_args *a);

/* ---- mixed residuals ---- */

/* z[n * (n + 2)], products of a row with fn, in place into pre[n], post[n] and C[n * n]. */
void ref_hyper_mixture(const struct kern_args *a, double *z);
/* sigmoid(z * scale[part] + base[i]) of HYPER_IN and HYPER_HEAD (inputs 2 and 3) */
double ref_hyper_sigmoid(const struct kern_args *a, double z, size_t i, size_t part);
size_t ref_hyper_scratch(const struct kern_args *a);

/* This thread's scratch. */
static inline void *ref_scratch(const struct kern_args *a, unsigned thread)
{
    return (unsigned char *)a->scratch + (size_t)thread * a->scratch_bytes;
}

void ref_index_topk(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_pool_kv(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_pool_attention(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_mix_residual(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_hyper_in(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_hyper_out(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_hyper_head(const struct kern_args *a, size_t first, size_t last, unsigned thread);
size_t ref_pool_kv_items(const struct kern_args *a); /* one sequence of the step, its tokens in order */
size_t ref_pool_kv_scratch(const struct kern_args *a);
size_t ref_pool_attention_scratch(const struct kern_args *a);

#endif
