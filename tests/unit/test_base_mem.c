/* SPDX-License-Identifier: Apache-2.0
 *
 * Arenas: alignment, zeroes, accounting, limits, reset; growing arrays.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/mem.h"

static void pieces_are_aligned_zeroed_and_apart(void **state)
{
    (void)state;
    struct mem mem = {0};
    struct arena a;
    arena_init(&a, &mem, MEM_SPEC);
    unsigned char *before = NULL;
    size_t before_bytes = 0;
    for (size_t n = 0; n < 20000; n += 37) {
        unsigned char *p = arena_alloc(&a, n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xAA, n);
        for (size_t i = 0; i < before_bytes; i++)
            assert_int_equal(before[i], 0xAA);
        before = p;
        before_bytes = n;
    }
    assert_int_equal(mem.live[MEM_SPEC], a.held);
    assert_int_equal(mem.peak[MEM_SPEC], a.held);
    assert_true(mem.allocations > 1);
    arena_reset(&a);
    uint64_t kept = a.held, calls = mem.allocations;
    assert_true(kept > 0 && kept == mem.live[MEM_SPEC]);
    unsigned char *again = arena_alloc(&a, 100);
    for (int i = 0; i < 100; i++)
        assert_int_equal(again[i], 0);
    assert_int_equal(mem.allocations, calls);
    arena_release(&a);
    assert_int_equal(mem.live[MEM_SPEC], 0);
    assert_int_equal(a.held, 0);
    assert_non_null(arena_alloc(&a, 1));
    arena_release(&a);
}

static void large_pieces_do_not_waste_the_head(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    char *small = arena_alloc(&a, 16);
    assert_non_null(arena_alloc(&a, 10 << 20));
    char *next = arena_alloc(&a, 16);
    assert_ptr_equal(next, small + 16);
    arena_release(&a);
}

static void limit_and_overflow_are_refused(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    a.limit = 10000;
    assert_null(arena_alloc(&a, 20000));
    assert_non_null(arena_alloc(&a, 5000));
    assert_null(arena_alloc(&a, 5000));
    assert_true(a.held <= 10000);
    assert_non_null(arena_alloc(&a, 100));
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_alloc(&a, SIZE_MAX - 20));
    assert_null(arena_alloc_n(&a, SIZE_MAX / 2, 3));
    assert_null(arena_strndup(&a, "x", SIZE_MAX));
    arena_release(&a);
}

static void strings(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    assert_string_equal(arena_strdup(&a, "abc"), "abc");
    assert_string_equal(arena_strndup(&a, "abc", 2), "ab");
    assert_string_equal(arena_strndup(&a, NULL, 0), "");
    assert_string_equal(arena_printf(&a, "%d-%s", 7, "x"), "7-x");
    arena_release(&a);
}

static void arrays_grow_or_stay(void **state)
{
    (void)state;
    int *v = NULL;
    size_t capacity = 0;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(vec_reserve((void **)&v, &capacity, (size_t)i + 1, sizeof(*v)), 0);
        v[i] = i;
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(v[i], i);
    size_t before = capacity;
    int *where = v;
    assert_int_equal(vec_reserve((void **)&v, &capacity, SIZE_MAX / 2, sizeof(*v)), ERR_NOMEM);
    assert_int_equal(vec_reserve((void **)&v, &capacity, SIZE_MAX, 1), ERR_NOMEM);
    assert_int_equal(capacity, before);
    assert_ptr_equal(v, where);
    free(v);
    uint64_t x = 5;
    assert_false(mul_u64(UINT64_MAX, 2, &x));
    assert_false(add_u64(UINT64_MAX, 1, &x));
    assert_true(mul_u64(3, 4, &x) && x == 12);
    assert_string_equal(mem_tag_name(MEM_KV), "kv pages");
}

static void what_does_not_fit_is_the_largest(void **state)
{
    (void)state;
    const uint64_t most = UINT64_MAX, half = UINT64_C(1) << 63;
    assert_true(sat_add(0, 0) == 0 && sat_add(3, 4) == 7);
    assert_true(sat_add(most - 1, 1) == most && sat_add(most, 0) == most);
    assert_true(sat_add(most, 1) == most && sat_add(most - 1, 3) == most && sat_add(most, most) == most);
    assert_true(sat_mul(3, 4) == 12 && sat_mul(most, 1) == most && sat_mul(half - 1, 2) == most - 1);
    assert_true(sat_mul(half, 2) == most && sat_mul(2, half + 1) == most && sat_mul(most, most) == most);
    assert_true(sat_mul(most, 0) == 0 && sat_mul(0, most) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_aligned_zeroed_and_apart),
        cmocka_unit_test(large_pieces_do_not_waste_the_head),
        cmocka_unit_test(limit_and_overflow_are_refused),
        cmocka_unit_test(strings),
        cmocka_unit_test(arrays_grow_or_stay),
        cmocka_unit_test(what_does_not_fit_is_the_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
