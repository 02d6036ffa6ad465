/* SPDX-License-Identifier: Apache-2.0
 *
 * The variants of one instruction set. Operators that only move or convert values have no variant here: the
 * reference is as good.
 */
#define STR_(x) #x
#define STR(x)  STR_(x)
#define VARIANT(OP, type, fn, items, grain, scratch)                                                         \
    {                                                                                                        \
        D0_OP_##OP, type, ISA, STR(NAME(fn)), NAME(fn), items, grain, scratch                                \
    }
#define LINEAR(type, text)                                                                                   \
    {                                                                                                        \
        D0_OP_LINEAR, type, ISA, STR(NAME(linear_##text)), NAME(linear), kern_items_products, GRAIN_ROWS,    \
            NAME(linear_scratch), kern_shared_rows, 2                                                        \
    }
#define EXPERTS(type, text)                                                                                  \
    {                                                                                                        \
        D0_OP_EXPERTS, type, ISA, STR(NAME(experts_##text)), NAME(experts), NAME(experts_items), GRAIN_ROWS, \
            NAME(experts_scratch), NAME(experts_shared), 4                                                   \
    }

#define GROUP_LINEAR(type, text)                                                                             \
    {                                                                                                        \
        D0_OP_GROUP_LINEAR, type, ISA, STR(NAME(group_linear_##text)), NAME(group_linear),                   \
            kern_items_products, GRAIN_ROWS, NAME(group_linear_scratch), kern_shared_rows, 2                 \
    }

#define FUSED(name)      NAME(fused_##name)
#define FUSED_TEXT(name) STR(NAME(name))
#define FUSED_OP(name)   NAME(name)
#define FUSED_STORE      ref_kv_store
#define FUSED_SCRATCH(a) NAME(linear_scratch)(a)
#define FUSED_GRAIN      GRAIN_ROWS
#include "kern/fused_tmpl.h"

static const struct kern_variant NAME(variants)[] = {
    LINEAR(D0_F32, f32),
    LINEAR(D0_BF16, bf16),
    LINEAR(D0_F16, f16),
    LINEAR(D0_F8_E4M3, f8_e4m3),
    LINEAR(D0_F8_E5M2, f8_e5m2),
    LINEAR(D0_F4, f4),
    LINEAR(D0_I8, i8),
    LINEAR(D0_U8, u8),
    LINEAR(D0_U4, u4),
    EXPERTS(D0_F32, f32),
    EXPERTS(D0_BF16, bf16),
    EXPERTS(D0_F16, f16),
    EXPERTS(D0_F8_E4M3, f8_e4m3),
    EXPERTS(D0_F8_E5M2, f8_e5m2),
    EXPERTS(D0_F4, f4),
    EXPERTS(D0_I8, i8),
    EXPERTS(D0_U8, u8),
    EXPERTS(D0_U4, u4),
    VARIANT(RMS_NORM, 0, rms_norm, kern_items_rows, 1, NULL),
    VARIANT(ADD, 0, add, kern_items_elements, 16384, NULL),
    VARIANT(ROPE, 0, rope, kern_items_rows, 4, NULL),
    VARIANT(ATTENTION, D0_F32, attention_f32, kern_items_heads, 1, NAME(attention_scratch)),
    VARIANT(ATTENTION, D0_BF16, attention_bf16, kern_items_heads, 1, NAME(attention_scratch)),
    VARIANT(ATTENTION, D0_F16, attention_f16, kern_items_heads, 1, NAME(attention_scratch)),
    VARIANT(MLA, D0_F32, mla_f32, NAME(mla_items), 1, NAME(mla_scratch)),
    VARIANT(MLA, D0_BF16, mla_bf16, NAME(mla_items), 1, NAME(mla_scratch)),
    VARIANT(MLA, D0_F16, mla_f16, NAME(mla_items), 1, NAME(mla_scratch)),
    VARIANT(GLU, 0, glu, kern_items_elements, 4096, NULL),
    VARIANT(INDEX_TOPK, D0_F32, index_topk_f32, kern_items_rows, 1, ref_index_scratch),
    VARIANT(INDEX_TOPK, D0_BF16, index_topk_bf16, kern_items_rows, 1, ref_index_scratch),
    VARIANT(INDEX_TOPK, D0_F16, index_topk_f16, kern_items_rows, 1, ref_index_scratch),
    VARIANT(MIX_RESIDUAL, 0, mix_residual, kern_items_rows, 1, NULL),
    VARIANT(HYPER_IN, 0, hyper_in, kern_items_rows, 1, NAME(hyper_scratch)),
    VARIANT(HYPER_OUT, 0, hyper_out, kern_items_rows, 1, NULL),
    VARIANT(HYPER_HEAD, 0, hyper_head, kern_items_rows, 1, NAME(hyper_scratch)),
    VARIANT(ACT, 0, act, kern_items_elements, 4096, NULL),
    VARIANT(MUL, 0, mul, kern_items_elements, 16384, NULL),
    VARIANT(SCALE, 0, scale, kern_items_rows, 4, NULL),
    VARIANT(LAYER_NORM, 0, layer_norm, kern_items_rows, 1, NULL),
    VARIANT(GATED_NORM, 0, gated_norm, kern_items_rows, 1, NULL),
    GROUP_LINEAR(D0_F32, f32),
    GROUP_LINEAR(D0_BF16, bf16),
    GROUP_LINEAR(D0_F16, f16),
    GROUP_LINEAR(D0_F8_E4M3, f8_e4m3),
    GROUP_LINEAR(D0_F8_E5M2, f8_e5m2),
    GROUP_LINEAR(D0_F4, f4),
    GROUP_LINEAR(D0_I8, i8),
    GROUP_LINEAR(D0_U8, u8),
    GROUP_LINEAR(D0_U4, u4),
    VARIANT(SHORT_CONV, 0, short_conv, kern_items_columns, 64, NAME(conv_scratch)),
    VARIANT(DELTA_RULE, 0, delta_rule, ref_items_value_heads, 1, NAME(delta_scratch)),
    VARIANT(SEGMENT_ATTENTION, 0, segment_attention, kern_items_heads, 1, NAME(segment_attention_scratch)),
    VARIANT(POSITION_EMBED, 0, position_embed, kern_items_rows, 4, NULL),
    FUSED_VARIANTS(ISA),
};

const struct kern_table NAME(kern_table_of) = {NAME(variants), ARRAY_LEN(NAME(variants))};
