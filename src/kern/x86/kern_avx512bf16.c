/* SPDX-License-Identifier: Apache-2.0
 *
 * The avx512bf16 variants: products of rows rounded to BF16 with BF16 weights, by the instruction for pairs.
 * Everything else of this instruction set is that of avx512. Called only where kern_isa_available() says so.
 */
#define ISA     KERN_AVX512BF16
#define NAME(x) x##_avx512bf16

#include "kern/x86/lanes_avx512.h"

#include "kern/x86/lanes_common.h"

#include "kern/x86/sums_tmpl.h"

#include "kern/x86/linear_pairs.h"

#define PAIRS(OP, name)                                                                                      \
    {                                                                                                        \
        D0_OP_##OP, D0_BF16, ISA, name, NAME(linear_pairs), pair_items, PAIR_ROWS, pair_scratch,             \
            pair_shared, 2, D0_X_BF16                                                                        \
    }

static const struct kern_variant variants[] = {
    PAIRS(LINEAR, "linear_bf16_avx512bf16"),
    PAIRS(GROUP_LINEAR, "group_linear_bf16_avx512bf16"),
};

const struct kern_table kern_table_of_avx512bf16 = {variants, ARRAY_LEN(variants)};
