/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: that arrays of other tools become a trace by a map of names: types widened exactly, an outer 1
 * dropped, numbers of layers carried over; and that a map or a file that is wrong is refused with its name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "oracle/import_impl.h"
#include "oracle/oracle.h"
#include "oracle/trace_file.h"
#include "scratch_dir.h"

enum { TOKENS = 3, WIDTH = 5 };

static char dir[] = "/tmp/day0_import_XXXXXX";

static const char *in_dir(const char *name)
{
    return path_in(dir, name);
}

/* ---- files ---- */

/* Without a sync, and as a new file, so that the file system makes none of its own: thousands of them would
 * take a minute. */
static void write_file(const char *name, const void *data, size_t n)
{
    unlink(in_dir(name));
    FILE *f = fopen(in_dir(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static size_t npy_head(char *buf, int version, const char *dict)
{
    size_t n = strlen(dict), at = version == 1 ? 10 : 12;
    memcpy(buf, "\x93NUMPY", 6);
    buf[6] = (char)version;
    buf[7] = 0;
    for (size_t i = 8; i < at; i++)
        buf[i] = (char)(n >> 8 * (i - 8));
    memcpy(buf + at, dict, n);
    return at + n;
}

static void write_npy(const char *name, int version, const char *dict, const void *data, size_t bytes)
{
    char buf[1024];
    size_t n = npy_head(buf, version, dict);
    memcpy(buf + n, data, bytes);
    write_file(name, buf, n + bytes);
}

static int import(const char *map, struct import_result *r, struct err *e)
{
    struct arena arena;
    char path[96];
    *e = (struct err){0};
    snprintf(path, sizeof path, "%s", in_dir("map.json"));
    write_file("map.json", map, strlen(map));
    arena_init(&arena, NULL, MEM_MISC);
    int rc = oracle_import(dir, path, in_dir("out.trace"), &arena, r, e);
    arena_release(&arena);
    return rc;
}

static void refused(const char *map, int code, const char *why)
{
    struct import_result r;
    struct err e;
    unlink(in_dir("out.trace"));
    assert_int_equal(import(map, &r, &e), code);
    if (!strstr(e.message, why))
        fail_msg("\"%s\" does not say \"%s\"", e.message, why);
    assert_int_equal(access(in_dir("out.trace"), F_OK), -1);
    assert_int_equal(access(in_dir("out.trace.partial"), F_OK), -1);
}

static float value(int i)
{
    return (float)(i - 7) / 8; /* exact in every type */
}

#define HEAD(descr, shape) "{'descr': '" descr "', 'fortran_order': False, 'shape': " shape ", }          \n"

static void make_files(void)
{
    float f32[TOKENS * WIDTH];
    double f64[TOKENS * WIDTH];
    uint16_t f16[TOKENS * WIDTH], bf16[TOKENS * WIDTH];
    static const int64_t ids[TOKENS] = {5, 0, 9};
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        f32[i] = value(i);
        f64[i] = value(i);
        f16[i] = f32_to_f16(value(i));
        bf16[i] = f32_to_bf16(value(i));
    }
    write_npy("input_ids.npy", 1, HEAD("<i8", "(1, 3)"), ids, sizeof ids);
    write_npy("hidden_00.npy", 1, HEAD("<f4", "(3, 5)"), f32, sizeof f32);
    write_npy("hidden_01.npy", 2, HEAD("<f2", "(1, 3, 5)"), f16, sizeof f16);
    write_npy("hidden_12.npy", 3, HEAD("<V2", "(3, 5)"), bf16, sizeof bf16);
    write_npy("head.npy", 1, "{\"shape\": (3,5), \"fortran_order\":False,\"descr\":\"<f8\"}", f64,
              sizeof f64);
    write_npy("more.npy", 1, HEAD("<f4", "(3, 5)"), f32, sizeof f32);
    const struct st_entry t = {
        .name = "blocks.3.attn", .dtype = D0_F32, .n_dims = 3, .dims = {TOKENS, 1, WIDTH}, .data = f32};
    struct err e = {0};
    ok(st_write(in_dir("dump.safetensors"), &t, 1, NULL, NULL, 0, &e), &e);
}

/* ---- tests ---- */

static void test_import(void **state)
{
    (void)state;
    struct import_result r;
    struct err e;
    struct trace *t;
    ok(import(
           "{\"producer\": \"other 1.0\", \"dtype\": \"bfloat16\", \"kv_dtype\": \"float16\", \"token_ids\": "
           "\"input_ids\", \"greedy\": true, \"prompt_tokens\": 2, \"tensors\": {\"hidden_%d\": "
           "\"model.layers.%d\", \"head\": \"logits\", \"blocks.%d.attn\": \"model.layers.%d.self_attn\"}}",
           &r, &e),
       &e);
    assert_int_equal(r.tensors, 5);
    assert_int_equal(r.unused, 1);
    assert_int_equal(r.positions, TOKENS);
    ok(trace_open(&t, in_dir("out.trace"), &e), &e);
    assert_true(t->n_ids == TOKENS && t->ids[0] == 5 && t->ids[1] == 0 && t->ids[2] == 9);
    assert_string_equal(t->producer, "other 1.0");
    assert_string_equal(t->precision, "bfloat16");
    assert_string_equal(trace_meta(t, "kv_dtype"), "float16");
    assert_string_equal(trace_meta(t, "greedy"), "true");
    assert_string_equal(trace_meta(t, "prompt_tokens"), "2");
    static const char *const names[] = {"model.layers.0", "model.layers.1", "model.layers.12", "logits",
                                        "model.layers.3.self_attn"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const struct trace_tensor *x = trace_find(t, names[i]);
        float rows[TOKENS * WIDTH];
        if (!x)
            fail_msg("%s is not there", names[i]);
        assert_true(x->rows == TOKENS && x->width == WIDTH);
        ok(trace_read(t, x, 0, TOKENS, rows, &e), &e);
        for (int k = 0; k < TOKENS * WIDTH; k++)
            assert_true(rows[k] == value(k));
    }
    trace_close(t);
    /* ids in the map itself */
    ok(import("{\"token_ids\": [1, 2, 3], \"tensors\": {\"more\": \"model.norm\"}}", &r, &e), &e);
    assert_int_equal(r.unused, 6);
}

#define MAP(tensors) "{\"token_ids\": \"input_ids\", \"tensors\": {" tensors "}}"

static void test_maps_refused(void **state)
{
    (void)state;
    refused("{\"token_ids\": [1, 2, 3], \"tensors\": {\"more\": \"a\"}", ERR_FORMAT, "line 1");
    refused("{\"tensors\": {\"more\": \"a\"}}", ERR_FORMAT, "token_ids must be");
    refused("{\"token_ids\": \"nothing\", \"tensors\": {\"more\": \"a\"}}", ERR_FORMAT, "token_ids must be");
    refused("{\"token_ids\": [1, -2, 3], \"tensors\": {\"more\": \"a\"}}", ERR_FORMAT, "token_ids[1]");
    refused("{\"token_ids\": [], \"tensors\": {\"more\": \"a\"}}", ERR_FORMAT, "no token ids");
    refused("{\"token_ids\": \"more\", \"tensors\": {\"more\": \"a\"}}", ERR_FORMAT, "no token ids of one");
    refused("{\"token_ids\": [1, 2], \"tensors\": {\"more\": \"a\"}}", ERR_MISMATCH, "[2, width] for a");
    refused("{\"token_ids\": [1, 2, 3]}", ERR_FORMAT, "\"tensors\" must be");
    refused(MAP("\"nowhere\": \"a\""), ERR_MISSING, "is named nowhere");
    refused(MAP("\"layer_%d\": \"a.%d\""), ERR_MISSING, "layer_%d");
    refused(MAP("\"hidden_%d\": \"a\""), ERR_FORMAT, "with one %d");
    refused(MAP("\"more\": \"a.%d\""), ERR_FORMAT, "with one %d");
    refused(MAP("\"more\": 3"), ERR_FORMAT, "must map to a name");
    refused(MAP("\"more\": \"a\", \"head\": \"a\""), ERR_FORMAT, "are both to be a");
    refused(MAP("\"hidden_00\": \"a\", \"hidden_%d\": \"b.%d\""), ERR_FORMAT, "hidden_00 is used twice");
    refused(MAP("\"input_ids\": \"a\""), ERR_FORMAT, "used twice");
    refused("{\"token_ids\": [1, 2, 3], \"greedy\": true, \"tensors\": {\"more\": \"a\"}}", ERR_FORMAT,
            "without prompt_tokens");
    refused("{\"token_ids\": [1, 2, 3], \"prompt_tokens\": 4, \"tensors\": {\"more\": \"a\"}}", ERR_FORMAT,
            "prompt_tokens is 4");
}

static void test_npy_refused(void **state)
{
    (void)state;
    static const float data[TOKENS * WIDTH];
    static const struct {
        const char *dict;
        int code;
        const char *why;
        size_t bytes;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (3, 5), }", ERR_UNSUPPORTED, "by columns", 60},
        {HEAD(">f4", "(3, 5)"), ERR_UNSUPPORTED, "type >f4", 60},
        {HEAD("|O", "(3, 5)"), ERR_UNSUPPORTED, "type |O", 60},
        {HEAD("<f4", "(3, 5)"), ERR_FORMAT, "not what its shape says", 56},
        {HEAD("<f4", "(3, 6)"), ERR_FORMAT, "not what its shape says", 60},
        {HEAD("<f4", "(3, -5)"), ERR_FORMAT, "none of a plain array", 60},
        {HEAD("<f4", "(3, 99999999999999)"), ERR_FORMAT, "none of a plain array", 60},
        {HEAD("<f4", "(1099511627775, 1099511627775)"), ERR_FORMAT, "not what its shape says", 60},
        {"{'descr': '<f4', 'shape': (3, 5)}", ERR_FORMAT, "none of a plain array", 60},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5), 'x': 1}", ERR_FORMAT, "none of a plain",
         60},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (15,)}", ERR_FORMAT, "none of a plain",
         60},
        {"", ERR_FORMAT, "none of a plain array", 60},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        write_npy("bad.npy", 1, cases[i].dict, data, cases[i].bytes);
        refused(MAP("\"more\": \"a\""), cases[i].code, cases[i].why);
    }
    write_file("bad.npy", "\x93NUMPY\x01\0\xff\xff{", 11);
    refused(MAP("\"more\": \"a\""), ERR_FORMAT, "are no .npy file");
    write_file("bad.npy", "\x93NUMPY\x01\0\xff\xff{'descr'", 18);
    refused(MAP("\"more\": \"a\""), ERR_FORMAT, "a header of 65535 bytes");
    write_file("bad.npy", "PK\x03\x04 a zip archive", 18);
    refused(MAP("\"more\": \"a\""), ERR_FORMAT, "no .npy file");
    unlink(in_dir("bad.npy"));
}

/* Whatever a header holds, it is refused or says a shape that the file has. */
static void test_npy_spoiled(void **state)
{
    (void)state;
    char good[256], bad[256 + 60];
    size_t n = npy_head(good, 1, HEAD("<f4", "(3, 5)"));
    unsigned accepted = 0;
    for (uint64_t seed = 0; seed < 4000; seed++) {
        struct err e = {0};
        struct file_info info;
        struct import_source s = {0};
        int fd;
        memcpy(bad, good, n);
        memset(bad + n, 0, 60);
        for (unsigned k = 0; k < 1 + seed % 3; k++)
            bad[rng_u64(seed, 2 * k) % n] = (char)rng_u64(seed, 2 * k + 1);
        size_t bytes = seed % 5 ? n + 60 : rng_u64(seed, 99) % (n + 60);
        write_file("spoiled.bin", bad, bytes);
        ok(file_stat(in_dir("spoiled.bin"), &info, &e), &e);
        ok(file_open_read(in_dir("spoiled.bin"), &fd, &e), &e);
        if (npy_open(fd, "spoiled", info.bytes, &s, &e) == 0) {
            uint64_t size;
            assert_true(shape_bytes(s.dims, s.n_dims, s.dtype, &size) && s.offset + size == info.bytes);
            accepted++;
        }
        close(fd);
    }
    assert_true(accepted > 0 && accepted < 2000);
}

static int setup(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    make_files();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_import),
        cmocka_unit_test(test_maps_refused),
        cmocka_unit_test(test_npy_refused),
        cmocka_unit_test(test_npy_spoiled),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
