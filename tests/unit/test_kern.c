/* SPDX-License-Identifier: Apache-2.0
 *
 * The variant table, segments and log-sum-exp. The kernels themselves are tested by tests/kcheck.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "kern/kern.h"

static void instruction_sets_have_names(void **state)
{
    (void)state;
    enum kern_isa isa = KERN_AVX2;
    for (int i = 0; i < KERN_N_ISA; i++)
        assert_true(kern_isa_parse(kern_isa_name((enum kern_isa)i), &isa) == 0 && (int)isa == i);
    assert_true(kern_isa_parse("fast", &isa) == 0 && isa == kern_isa_best());
    assert_int_equal(kern_isa_parse("sse2", &isa), ERR_INVALID);
    assert_true(kern_isa_available(KERN_REF) && kern_isa_available(kern_isa_best()));
    assert_string_equal(kern_isa_name(KERN_N_ISA), "?");
}

static void the_best_variant_not_above_the_mask_is_picked(void **state)
{
    (void)state;
    for (int i = 0; i < KERN_N_ISA; i++) {
        const struct kern_variant *v = kern_pick(D0_OP_LINEAR, D0_BF16, (enum kern_isa)i);
        enum kern_isa best = KERN_REF;
        for (int j = 0; j <= i && j < KERN_AVX512BF16; j++) /* which rounds, and is not asked to here */
            best = kern_isa_available((enum kern_isa)j) ? (enum kern_isa)j : best;
        assert_non_null(v);
        assert_int_equal(v->isa, best);
        assert_true(v->dtype == D0_BF16 && v->op == D0_OP_LINEAR);
    }
    for (int64_t x = 0; x <= D0_X_I8_TOKEN; x++) {
        bool pairs = x == D0_X_BF16 && kern_isa_available(KERN_AVX512BF16);
        const struct kern_variant *v = kern_pick_rounded(D0_OP_LINEAR, D0_BF16, x, KERN_AVX512BF16);
        assert_true((v->isa == KERN_AVX512BF16) == pairs && (v->x_format == D0_X_BF16) == pairs);
        assert_int_equal(kern_pick_rounded(D0_OP_LINEAR, D0_F32, x, KERN_AVX512BF16)->x_format, 0);
        assert_int_equal(kern_pick_rounded(D0_OP_LINEAR, D0_BF16, x, KERN_AVX512)->x_format, 0);
    }
    assert_null(kern_pick(D0_OP_LINEAR, D0_I16, KERN_AVX512));
    assert_null(kern_pick(9999, D0_F32, KERN_AVX512));
    /* an operator without a variant of its own in an instruction set falls back */
    assert_int_equal(kern_pick(D0_OP_EMBED, D0_F16, KERN_AVX512)->isa, KERN_REF);
}

static void the_table_is_whole(void **state)
{
    (void)state;
    size_t n = kern_n_variants();
    for (size_t i = 0; i < n; i++) {
        const struct kern_variant *v = kern_variant_at(i);
        assert_true(v && v->name && v->run && v->items && v->grain > 0);
        assert_true(v->dtype == 0 || kern_dtype_input(v->op) >= 0);
        assert_non_null(kern_pick(v->op, v->dtype ? v->dtype : D0_F32, KERN_REF)); /* has a definition */
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(v->name, kern_variant_at(j)->name);
    }
    assert_null(kern_variant_at(n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(instruction_sets_have_names),
        cmocka_unit_test(the_best_variant_not_above_the_mask_is_picked),
        cmocka_unit_test(the_table_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
