/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of reference variants: one for every operator of ops.def and every type it takes.
 */
#include "kern/ref/ref.h"

static size_t attention_scratch(const struct kern_args *a)
{
    return (size_t)(a->v_dim ? a->v_dim : a->dim) * sizeof(double) +
           (size_t)a->in_dims[7][1] * sizeof(int32_t);
}

/* An absorbed query and a sum of latents in float64, one row of the weight, the chosen keys. */
static size_t mla_scratch(const struct kern_args *a)
{
    return (size_t)a->attr[D0_ATTR_LATENT].i * (2 * sizeof(double) + sizeof(float)) +
           (size_t)a->in_dims[6][1] * sizeof(int32_t);
}

static size_t row_scratch(const struct kern_args *a)
{
    return (size_t)a->k * sizeof(float);
}

#define BY_TYPE(OP, fn, items, grain, scratch)                                                               \
    {D0_OP_##OP, D0_F32, KERN_REF, #fn "_f32", fn, items, grain, scratch},                                   \
        {D0_OP_##OP, D0_BF16, KERN_REF, #fn "_bf16", fn, items, grain, scratch},                             \
    {                                                                                                        \
        D0_OP_##OP, D0_F16, KERN_REF, #fn "_f16", fn, items, grain, scratch                                  \
    }

static const struct kern_variant variants[] = {
    BY_TYPE(EMBED, ref_embed, kern_items_rows, 1, NULL),
    BY_TYPE(LINEAR, ref_linear, kern_items_columns, 8, row_scratch),
    {D0_OP_RMS_NORM, 0, KERN_REF, "ref_rms_norm", ref_rms_norm, kern_items_rows, 1, NULL},
    {D0_OP_ADD, 0, KERN_REF, "ref_add", ref_add, kern_items_elements, 4096, NULL},
    {D0_OP_ROPE_TABLE, 0, KERN_REF, "ref_rope_table", ref_rope_table, kern_items_rows, 8, NULL},
    {D0_OP_ROPE, 0, KERN_REF, "ref_rope", ref_rope, kern_items_rows, 4, NULL},
    BY_TYPE(KV_STORE, ref_kv_store, kern_items_rows, 4, NULL),
    BY_TYPE(ATTENTION, ref_attention, kern_items_heads, 1, attention_scratch),
    BY_TYPE(LATENT_STORE, ref_latent_store, kern_items_rows, 4, NULL),
    BY_TYPE(MLA, ref_mla, kern_items_heads, 1, mla_scratch),
    {D0_OP_GLU, 0, KERN_REF, "ref_glu", ref_glu, kern_items_elements, 4096, NULL},
    {D0_OP_GATHER_ROWS, 0, KERN_REF, "ref_gather_rows", ref_gather_rows, kern_items_rows, 4, NULL},
};

const struct kern_table kern_ref_table = {variants, ARRAY_LEN(variants)};
