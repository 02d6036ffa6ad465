/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to kern: the reference kernels and what they share. These are the definitions; nothing here is
 * fast.
 */
#ifndef KERN_REF_REF_H
#define KERN_REF_REF_H

#include <string.h>

#include "kern/kern_table.h"
#include "tensor/tensor.h"

/* Element i of an array of F32, BF16 or F16, widened exactly. */
static inline float ref_load(const unsigned char *p, uint32_t dtype, size_t i)
{
    uint16_t half;
    float v;
    if (dtype == D0_F32) {
        memcpy(&v, p + 4 * i, sizeof v);
        return v;
    }
    memcpy(&half, p + 2 * i, sizeof half);
    return dtype == D0_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

/* Row `row` of weight input i, counted over all matrices of [..., N, K]: its K values, widened exactly.
 * Whatever can be stored in another way than plainly is read through this. */
void ref_row(const struct kern_args *a, unsigned i, size_t row, size_t k, float *out);

/* Sum of part[0..n), n a power of two, by the binary tree of neighbouring pairs. Overwrites part. */
float ref_tree_sum(float *part, size_t n);

/* Page and slot of a position of sequence s: index of the page, or -1 where the table has none that exists.
 */
static inline int64_t ref_page(const struct kern_args *a, const int32_t *page_table, int64_t seq,
                               int64_t position)
{
    if (position < 0 || seq < 0 || seq >= a->seqs || a->page_tokens <= 0 ||
        position / a->page_tokens >= a->table)
        return -1;
    int64_t page = page_table[seq * a->table + position / a->page_tokens];
    return page >= 0 && page < a->pages ? page : -1;
}

/* Softmax over blocks of keys, one after another. */
struct ref_online {
    float top; /* largest score so far */
    double sum;
};
struct ref_run;
/* Takes the scores of one block (of the slots in its runs) in: their weights under the new maximum, and what
 * the sum of weighted values before must be multiplied by. */
double ref_online(struct ref_online *o, const struct ref_run *runs, size_t n, const float *scores,
                  double *weights);

/* Page and slot like ref_page, of the pages and the page table at these inputs. */
static inline int64_t ref_page_of(const struct kern_args *a, unsigned pages, unsigned table, int64_t seq,
                                  int64_t position)
{
    const int32_t *page_table = a->in[table]; /* [B, P] */
    int64_t tokens = a->in_dims[pages][2], row = a->in_dims[table][1];
    if (position < 0 || seq < 0 || seq >= a->in_dims[table][0] || tokens <= 0 || position / tokens >= row)
        return -1;
    int64_t page = page_table[seq * row + position / tokens];
    return page >= 0 && page < a->in_dims[pages][0] ? page : -1;
}

void ref_embed(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_linear(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_rms_norm(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_add(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_rope_table(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_rope(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_kv_store(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_attention(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_latent_store(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_mla(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_glu(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_route(const struct kern_args *a, size_t first, size_t last, unsigned thread);
size_t ref_route_scratch(const struct kern_args *a);
void ref_experts(const struct kern_args *a, size_t first, size_t last, unsigned thread);
size_t ref_experts_scratch(const struct kern_args *a);
void ref_gather_rows(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_segment_attention(const struct kern_args *a, size_t first, size_t last, unsigned thread);
size_t ref_segment_attention_scratch(const struct kern_args *a);
void ref_position_embed(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_scatter_rows(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_mul(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_scale(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_act(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_slice(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_concat(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_layer_norm(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_gated_norm(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_group_linear(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_position_scale(const struct kern_args *a, size_t first, size_t last, unsigned thread);

#endif
