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
        D0_OP_LINEAR, type, ISA, STR(NAME(linear_##text)), NAME(linear), kern_items_columns, GRAIN_ROWS,     \
            NAME(linear_scratch)                                                                             \
    }

static const struct kern_variant NAME(variants)[] = {
    LINEAR(D0_F32, f32),
    LINEAR(D0_BF16, bf16),
    LINEAR(D0_F16, f16),
    VARIANT(RMS_NORM, 0, rms_norm, kern_items_rows, 1, NULL),
    VARIANT(ADD, 0, add, kern_items_elements, 16384, NULL),
    VARIANT(ROPE, 0, rope, kern_items_rows, 4, NULL),
    VARIANT(ATTENTION, D0_F32, attention_f32, kern_items_heads, 1, NAME(attention_scratch)),
    VARIANT(ATTENTION, D0_BF16, attention_bf16, kern_items_heads, 1, NAME(attention_scratch)),
    VARIANT(ATTENTION, D0_F16, attention_f16, kern_items_heads, 1, NAME(attention_scratch)),
    VARIANT(GLU, 0, glu, kern_items_elements, 4096, NULL),
    VARIANT(SHORT_CONV, 0, short_conv, kern_items_columns, 64, NAME(conv_scratch)),
    VARIANT(DELTA_RULE, 0, delta_rule, ref_items_value_heads, 1, NAME(delta_scratch)),
};

const struct kern_table NAME(kern_table_of) = {NAME(variants), ARRAY_LEN(NAME(variants))};
