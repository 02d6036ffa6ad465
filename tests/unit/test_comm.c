/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators: self passes its own test, a communicator that corrupts one element is caught and named, and
 * what is no communicator is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "comm/comm.h"

#define BAD_COMM TEST_BUILD_ROOT "/tests/plugins/libbad_comm.so"

static void test_self(void **state)
{
    (void)state;
    struct comm c;
    struct err e = {0};
    char what[256];
    assert_int_equal(comm_open(&c, "self", 0, 1, NULL, &e), ERR_OK);
    struct d0_comm_info info;
    assert_int_equal(comm_info(&c, &info, &e), ERR_OK);
    assert_int_equal(info.n_ranks, 1);
    assert_int_equal(info.order, D0_COMM_FIXED_TREE);
    for (uint64_t bytes = 0; bytes < 70000; bytes = bytes * 3 + 1)
        assert_int_equal(comm_self_test(&c, bytes, what, sizeof what, &e), ERR_OK);
    assert_non_null(strstr(what, "exact"));
    float data[3] = {1, 2, 3}, out[3] = {0};
    assert_int_equal(comm_all_reduce_f32(&c, data, 3, 1, &e), ERR_OK);
    assert_true(data[2] == 3);
    assert_int_equal(comm_all_gather(&c, data, out, sizeof data, 1, &e), ERR_OK);
    assert_memory_equal(data, out, sizeof data);
    assert_int_equal(comm_broadcast(&c, data, sizeof data, 1, 1, &e), ERR_INVALID);
    comm_close(&c);
    comm_close(&c);
}

static void test_refusals(void **state)
{
    (void)state;
    struct comm c;
    struct err e = {0};
    assert_int_equal(comm_open(&c, "self", 0, 2, NULL, &e), ERR_INVALID);
    assert_int_equal(comm_open(&c, "self", 1, 1, NULL, &e), ERR_INVALID);
    assert_int_equal(comm_open(&c, "mpi", 0, 1, NULL, &e), ERR_INVALID);
    assert_int_equal(comm_open(&c, "/no/such/comm.so", 0, 1, NULL, &e), ERR_MISSING);
    assert_int_equal(comm_open(&c, TEST_SOURCE_ROOT "/meson.build", 0, 1, NULL, &e), ERR_FORMAT);
    assert_int_equal(comm_open(&c, TEST_BUILD_ROOT "/tests/plugins/libbad_device.so", 0, 1, NULL, &e),
                     ERR_FORMAT);
    assert_non_null(strstr(e.message, "d0_comm_plugin"));
}

static void test_corruption(void **state)
{
    (void)state;
    struct comm c;
    struct err e = {0};
    char what[256];
    assert_int_equal(comm_open(&c, BAD_COMM, 0, 1, NULL, &e), ERR_OK);
    assert_int_equal(comm_self_test(&c, 4096, what, sizeof what, &e), ERR_COMM);
    assert_non_null(strstr(e.message, "all_reduce"));
    assert_non_null(strstr(e.message, "element 512 of 1024"));
    comm_close(&c);
    assert_int_equal(comm_open(&c, BAD_COMM, 0, 1, "broadcast", &e), ERR_OK);
    assert_int_equal(comm_self_test(&c, 4096, what, sizeof what, &e), ERR_COMM);
    assert_non_null(strstr(e.message, "broadcast"));
    comm_close(&c);
    assert_int_equal(comm_open(&c, BAD_COMM, 0, 1, "timeout", &e), ERR_OK);
    assert_int_equal(comm_self_test(&c, 4096, what, sizeof what, &e), ERR_TIMEOUT);
    comm_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_self),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_corruption),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
