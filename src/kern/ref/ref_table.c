/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of reference variants: one for every operator of ops.def and every type it takes.
 */
#include "kern/ref/ref.h"
#include "kern/ref/ref_sparse.h"
#include "kern/ref/ref_recurrent.h"

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

static size_t group_row_scratch(const struct kern_args *a)
{
    return (size_t)(a->k / (a->attr[D0_ATTR_GROUPS].i > 1 ? a->attr[D0_ATTR_GROUPS].i : 1)) * sizeof(float);
}

/* The fused operators: the definitions above, one after the other. */
#define FUSED(name)      fused_##name
#define FUSED_TEXT(name) "ref_" #name
#define FUSED_OP(name)   ref_##name
#define FUSED_STORE      ref_kv_store
#define FUSED_SCRATCH(a) row_scratch(a)
#define FUSED_GRAIN      8
#include "kern/fused_tmpl.h"

#define PRODUCT(OP, dtype, name, fn, scratch)                                                                \
    {                                                                                                        \
        D0_OP_##OP, dtype, KERN_REF, name, fn, kern_items_products, 8, scratch, kern_shared_rows, 2          \
    }
#define PRODUCTS(OP, fn, scratch)                                                                            \
    PRODUCT(OP, D0_F32, #fn "_f32", fn, scratch), PRODUCT(OP, D0_BF16, #fn "_bf16", fn, scratch),            \
        PRODUCT(OP, D0_F16, #fn "_f16", fn, scratch), PRODUCT(OP, D0_F8_E4M3, #fn "_f8_e4m3", fn, scratch),  \
        PRODUCT(OP, D0_F8_E5M2, #fn "_f8_e5m2", fn, scratch), PRODUCT(OP, D0_F4, #fn "_f4", fn, scratch),    \
        PRODUCT(OP, D0_I8, #fn "_i8", fn, scratch), PRODUCT(OP, D0_U8, #fn "_u8", fn, scratch),              \
        PRODUCT(OP, D0_U4, #fn "_u4", fn, scratch)

#define BY_TYPE(OP, fn, items, grain, scratch)                                                               \
    {D0_OP_##OP, D0_F32, KERN_REF, #fn "_f32", fn, items, grain, scratch},                                   \
        {D0_OP_##OP, D0_BF16, KERN_REF, #fn "_bf16", fn, items, grain, scratch},                             \
    {                                                                                                        \
        D0_OP_##OP, D0_F16, KERN_REF, #fn "_f16", fn, items, grain, scratch                                  \
    }

/* The same for weights stored as codes. */
#define BY_CODE(OP, fn, items, grain, scratch)                                                               \
    {D0_OP_##OP, D0_F8_E4M3, KERN_REF, #fn "_f8_e4m3", fn, items, grain, scratch},                           \
        {D0_OP_##OP, D0_F8_E5M2, KERN_REF, #fn "_f8_e5m2", fn, items, grain, scratch},                       \
        {D0_OP_##OP, D0_F4, KERN_REF, #fn "_f4", fn, items, grain, scratch},                                 \
        {D0_OP_##OP, D0_I8, KERN_REF, #fn "_i8", fn, items, grain, scratch},                                 \
        {D0_OP_##OP, D0_U8, KERN_REF, #fn "_u8", fn, items, grain, scratch},                                 \
    {                                                                                                        \
        D0_OP_##OP, D0_U4, KERN_REF, #fn "_u4", fn, items, grain, scratch                                    \
    }

static const struct kern_variant variants[] = {
    BY_TYPE(EMBED, ref_embed, kern_items_rows, 1, NULL),
    PRODUCTS(LINEAR, ref_linear, row_scratch),
    {D0_OP_RMS_NORM, 0, KERN_REF, "ref_rms_norm", ref_rms_norm, kern_items_rows, 1, NULL},
    {D0_OP_ADD, 0, KERN_REF, "ref_add", ref_add, kern_items_elements, 4096, NULL},
    {D0_OP_ROPE_TABLE, 0, KERN_REF, "ref_rope_table", ref_rope_table, kern_items_rows, 8, NULL},
    {D0_OP_ROPE, 0, KERN_REF, "ref_rope", ref_rope, kern_items_rows, 4, NULL},
    BY_TYPE(KV_STORE, ref_kv_store, kern_items_rows, 4, NULL),
    BY_TYPE(ATTENTION, ref_attention, kern_items_heads, 1, attention_scratch),
    BY_TYPE(LATENT_STORE, ref_latent_store, kern_items_rows, 4, NULL),
    BY_TYPE(MLA, ref_mla, kern_items_heads, 1, mla_scratch),
    {D0_OP_GLU, 0, KERN_REF, "ref_glu", ref_glu, kern_items_elements, 4096, NULL},
    {D0_OP_ROUTE, 0, KERN_REF, "ref_route", ref_route, kern_items_rows, 8, ref_route_scratch},
    BY_TYPE(EXPERTS, ref_experts, kern_items_rows, 1, ref_experts_scratch),
    BY_CODE(EXPERTS, ref_experts, kern_items_rows, 1, ref_experts_scratch),
    {D0_OP_GATHER_ROWS, 0, KERN_REF, "ref_gather_rows", ref_gather_rows, kern_items_rows, 4, NULL},
    {D0_OP_MUL, 0, KERN_REF, "ref_mul", ref_mul, kern_items_elements, 4096, NULL},
    {D0_OP_SCALE, 0, KERN_REF, "ref_scale", ref_scale, kern_items_rows, 4, NULL},
    {D0_OP_ACT, 0, KERN_REF, "ref_act", ref_act, kern_items_elements, 4096, NULL},
    {D0_OP_SLICE, 0, KERN_REF, "ref_slice", ref_slice, kern_items_rows, 4, NULL},
    {D0_OP_CONCAT, 0, KERN_REF, "ref_concat", ref_concat, kern_items_rows, 4, NULL},
    {D0_OP_LAYER_NORM, 0, KERN_REF, "ref_layer_norm", ref_layer_norm, kern_items_rows, 1, NULL},
    {D0_OP_GATED_NORM, 0, KERN_REF, "ref_gated_norm", ref_gated_norm, kern_items_rows, 1, NULL},
    PRODUCTS(GROUP_LINEAR, ref_group_linear, group_row_scratch),
    {D0_OP_POSITION_SCALE, 0, KERN_REF, "ref_position_scale", ref_position_scale, kern_items_rows, 4, NULL},
    BY_TYPE(INDEX_TOPK, ref_index_topk, kern_items_rows, 1, ref_index_scratch),
    BY_TYPE(POOL_KV, ref_pool_kv, ref_pool_kv_items, 1, ref_pool_kv_scratch),
    BY_TYPE(POOL_ATTENTION, ref_pool_attention, kern_items_heads, 1, ref_pool_attention_scratch),
    {D0_OP_MIX_RESIDUAL, 0, KERN_REF, "ref_mix_residual", ref_mix_residual, kern_items_rows, 1, NULL},
    {D0_OP_HYPER_IN, 0, KERN_REF, "ref_hyper_in", ref_hyper_in, kern_items_rows, 1, ref_hyper_scratch},
    {D0_OP_HYPER_OUT, 0, KERN_REF, "ref_hyper_out", ref_hyper_out, kern_items_rows, 1, NULL},
    {D0_OP_HYPER_HEAD, 0, KERN_REF, "ref_hyper_head", ref_hyper_head, kern_items_rows, 1, ref_hyper_scratch},
    {D0_OP_SHORT_CONV, 0, KERN_REF, "ref_short_conv", ref_short_conv, kern_items_columns, 64, NULL},
    {D0_OP_DELTA_RULE, 0, KERN_REF, "ref_delta_rule", ref_delta_rule, ref_items_value_heads, 1,
     ref_delta_scratch},
    {D0_OP_SEGMENT_ATTENTION, 0, KERN_REF, "ref_segment_attention", ref_segment_attention, kern_items_heads,
     1, ref_segment_attention_scratch},
    {D0_OP_POSITION_EMBED, 0, KERN_REF, "ref_position_embed", ref_position_embed, kern_items_rows, 4, NULL},
    {D0_OP_SCATTER_ROWS, 0, KERN_REF, "ref_scatter_rows", ref_scatter_rows, kern_items_rows, 4, NULL},
    FUSED_VARIANTS(KERN_REF),
};

const struct kern_table kern_ref_table = {variants, ARRAY_LEN(variants)};
