/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool: every item exactly once, whole grains, a cut that depends on nothing but n, grain and threads;
 * clocks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/thread.h"

#define MAX_ITEMS 5000

struct loop {
    size_t n, grain;
    unsigned n_threads;
    unsigned char hits[MAX_ITEMS];
    unsigned char owner[MAX_ITEMS];
    _Atomic unsigned bad;
};

static void mark(void *context, size_t first, size_t last, unsigned thread)
{
    struct loop *l = context;
    bool whole = first % l->grain == 0 && (last % l->grain == 0 || last == l->n);
    if (first >= last || last > l->n || !whole || thread >= l->n_threads)
        l->bad++;
    for (size_t i = first; i < last && i < MAX_ITEMS; i++) {
        l->hits[i]++;
        l->owner[i] = (unsigned char)thread;
    }
}

static void every_item_once(void **state)
{
    (void)state;
    static struct loop l, again;
    for (unsigned t = 1; t <= 9; t++) {
        struct pool *p;
        assert_int_equal(pool_open(&p, t, NULL), ERR_OK);
        assert_int_equal(pool_threads(p), t);
        for (size_t n = 0; n <= 200; n++) {
            for (size_t grain = 1; grain <= 65; grain = grain * 2 + (n & 1)) {
                memset(&l, 0, sizeof(l));
                l.n = n;
                l.grain = grain;
                l.n_threads = t;
                again = l;
                pool_run(p, n, grain, mark, &l);
                pool_run(p, n, grain, mark, &again);
                assert_int_equal(l.bad, 0);
                for (size_t i = 0; i < n; i++)
                    assert_int_equal(l.hits[i], 1);
                assert_memory_equal(l.owner, again.owner, n);
            }
        }
        pool_close(p);
    }
    pool_close(NULL);
}

static void add(void *context, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    uint64_t *cells = context;
    for (size_t i = first; i < last; i++)
        cells[i]++;
}

/* Back to back, and with pauses that let the workers fall asleep. */
static void many_short_loops(void **state)
{
    (void)state;
    struct pool *p;
    uint64_t cells[64] = {0};
    assert_int_equal(pool_open(&p, 4, NULL), ERR_OK);
    for (int i = 0; i < 20000; i++)
        pool_run(p, 64, 1, add, cells);
    for (int i = 0; i < 200; i++) {
        clock_sleep_ns(i % 4 * 100000u);
        pool_run(p, 64, 1, add, cells);
    }
    for (int i = 0; i < 64; i++)
        assert_int_equal(cells[i], 20200);
    pool_close(p);
}

static void huge_ranges_do_not_overflow(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_open(&p, 1, NULL), ERR_OK);
    static struct loop l;
    l.n = 10;
    l.grain = 1;
    l.n_threads = 1;
    pool_run(p, 10, 0, mark, &l); /* grain 0 is 1 */
    assert_int_equal(l.hits[9], 1);
    pool_close(p);
}

static void bounds(void *context, size_t first, size_t last, unsigned thread)
{
    size_t(*b)[2] = context;
    b[thread][0] = first;
    b[thread][1] = last;
}

static void ranges_near_the_largest_size(void **state)
{
    (void)state;
    struct pool *p;
    size_t b[3][2] = {{0}};
    assert_int_equal(pool_open(&p, 3, NULL), ERR_OK);
    pool_run(p, SIZE_MAX, 1000, bounds, b);
    assert_int_equal(b[0][0], 0);
    assert_true(b[0][1] == b[1][0] && b[1][1] == b[2][0] && b[2][1] == SIZE_MAX);
    pool_close(p);
}

static void impossible_pools_are_refused(void **state)
{
    (void)state;
    struct pool *p = NULL;
    struct err e = {0};
    assert_int_equal(pool_open(&p, 0, &e), ERR_INVALID);
    assert_int_equal(pool_open(&p, 1000000, &e), ERR_INVALID);
    assert_null(p);
}

static void clocks_run(void **state)
{
    (void)state;
    uint64_t a = clock_ns();
    clock_sleep_ns(2000000);
    assert_true(clock_ns() - a >= 2000000);
    assert_true(clock_unix_ns() > (int64_t)1500000000 * 1000000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_once),
        cmocka_unit_test(many_short_loops),
        cmocka_unit_test(huge_ranges_do_not_overflow),
        cmocka_unit_test(ranges_near_the_largest_size),
        cmocka_unit_test(impossible_pools_are_refused),
        cmocka_unit_test(clocks_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
