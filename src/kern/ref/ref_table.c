/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of reference variants: one for every operator of ops.def and every type it takes.
 */
#include "kern/ref/ref.h"
#include "kern/ref/ref_recurrent.h"

static size_t attention_scratch(const struct kern_args *a)
{
    return (size_t)(a->v_dim ? a->v_dim : a->dim) * sizeof(double);
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
    {D0_OP_GLU, 0, KERN_REF, "ref_glu", ref_glu, kern_items_elements, 4096, NULL},
    {D0_OP_GATHER_ROWS, 0, KERN_REF, "ref_gather_rows", ref_gather_rows, kern_items_rows, 4, NULL},
    {D0_OP_SHORT_CONV, 0, KERN_REF, "ref_short_conv", ref_short_conv, kern_items_columns, 64, NULL},
    {D0_OP_DELTA_RULE, 0, KERN_REF, "ref_delta_rule", ref_delta_rule, ref_items_value_heads, 1,
     ref_delta_scratch},
};

const struct kern_table kern_ref_table = {variants, ARRAY_LEN(variants)};
