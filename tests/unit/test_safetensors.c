/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the verdicts on single safetensors headers, one hand-made case for each, the published cases where
 * they are at hand, and the round trip through st_write().
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "scaling.h"
#include "ckpt/ckpt.h"

struct fixture {
    struct arena arena;
    struct st_file file;
    char why[400];
};

static int setup(void **state)
{
    struct fixture *x = calloc(1, sizeof(*x));
    arena_init(&x->arena, NULL, MEM_CKPT);
    *state = x;
    return x ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *x = *state;
    arena_release(&x->arena);
    free(x);
    return 0;
}

/* A file of `header` and `data_bytes` of data; the copy ends flush with its allocation. */
static enum st_verdict parse_n(struct fixture *x, const char *header, size_t n, uint64_t data_bytes)
{
    char *head = malloc(8 + n);
    for (unsigned i = 0; i < 8; i++)
        head[i] = (char)(n >> (8 * i));
    memcpy(head + 8, header, n);
    enum st_verdict v =
        st_parse(head, 8 + n, 8 + n + data_bytes, &x->arena, &x->file, x->why, sizeof(x->why));
    free(head);
    return v;
}

static enum st_verdict parse(struct fixture *x, const char *header, uint64_t data_bytes)
{
    return parse_n(x, header, strlen(header), data_bytes);
}

#define T(name, dtype, shape, begin, end)                                                                    \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

struct verdict_case {
    const char *header;
    uint64_t data_bytes;
    enum st_verdict verdict;
};

static const struct verdict_case cases[] = {
    {"{}", 0, ST_OK},
    {" \n\t{}\r ", 0, ST_OK},
    {"{\"__metadata__\":{\"a\":\"b\"}}", 0, ST_OK},
    {"{\"__metadata__\":null}", 0, ST_OK},
    {"{" T("a", "F32", "[2,2]", 0, 16) "}", 16, ST_OK},
    {"{" T("a", "F32", "[]", 0, 4) "}", 4, ST_OK},
    {"{" T("a", "F32", "[2,0]", 0, 0) "}", 0, ST_OK},
    {"{" T("a", "F4", "[2]", 0, 1) "}", 1, ST_OK},
    {"{" T("", "F32", "[1]", 0, 4) "}", 4, ST_OK},
    {"{" T("b", "F32", "[1]", 4, 8) "," T("a", "F32", "[1]", 0, 4) "}", 8, ST_OK},
    {"{" T("z", "F32", "[0]", 4, 4) "," T("b", "F32", "[1]", 4, 8) "," T("a", "F32", "[1]", 0, 4) "}", 8,
     ST_OK},
    {"{\"a\":{\"new\":[{\"x\":[1.5e3,true,null]}],\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     ST_OK},
    /* what is no header */
    {"", 0, ST_INVALID_HEADER_DESERIALIZATION},
    {"{", 0, ST_INVALID_HEADER_DESERIALIZATION},
    {"[]", 0, ST_INVALID_HEADER_DESERIALIZATION},
    {"{}x", 0, ST_INVALID_HEADER_DESERIALIZATION},
    {"{" T("a", "F32", "[1]", 0, 4) ",}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{\"a\":1}", 0, ST_INVALID_HEADER_DESERIALIZATION},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     ST_INVALID_HEADER_DESERIALIZATION},
    {"{" T("a", "F32", "[-1]", 0, 4) "}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{" T("a", "F32", "[1.0]", 0, 4) "}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{" T("a", "F32", "[1e0]", 0, 4) "}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{" T("a", "F32", "[01]", 0, 4) "}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{" T("a", "F32", "[18446744073709551616]", 0, 4) "}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4,
     ST_INVALID_HEADER_DESERIALIZATION},
    {"{" T("a", "F33", "[1]", 0, 4) "}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{\"__metadata__\":{\"a\":1}}", 0, ST_INVALID_HEADER_DESERIALIZATION},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, ST_INVALID_HEADER_DESERIALIZATION},
    {"{" T("a\\u0000", "F32", "[1]", 0, 4) "}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{" T("a\\ud800", "F32", "[1]", 0, 4) "}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{" T("a\n", "F32", "[1]", 0, 4) "}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{" T("a\\udc00", "F32", "[1]", 0, 4) "}", 4, ST_INVALID_HEADER_DESERIALIZATION},
    {"{\"a\":{\"x\":01,\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     ST_INVALID_HEADER_DESERIALIZATION},
    {"{\"a\":{\"x\":[1,],\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     ST_INVALID_HEADER_DESERIALIZATION},
    {"{\"a\xff\":1}", 0, ST_INVALID_HEADER},
    {"{\"aaaaaaaaaaaaaaaaaaa\xc3(\":1}", 0, ST_INVALID_HEADER},
    /* ranges */
    {"{" T("a", "F32", "[1]", 4, 8) "}", 8, ST_INVALID_OFFSET},
    {"{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 5, 9) "}", 9, ST_INVALID_OFFSET},
    {"{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 0, 4) "}", 4, ST_INVALID_OFFSET},
    {"{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 4, 0) "}", 4, ST_INVALID_OFFSET},
    /* sizes */
    {"{" T("a", "I32", "[2,18446744073709551614]", 0, 16) "}", 16, ST_VALIDATION_OVERFLOW},
    {"{" T("a", "I32", "[2,9223372036854775807]", 0, 16) "}", 16, ST_VALIDATION_OVERFLOW},
    {"{" T("a", "I32", "[0,18446744073709551615]", 0, 0) "}", 0, ST_VALIDATION_OVERFLOW},
    {"{" T("a", "F4", "[3]", 0, 2) "}", 2, ST_MISALIGNED_SLICE},
    {"{" T("a", "F32", "[2,2]", 0, 15) "}", 15, ST_TENSOR_INVALID_INFO},
    {"{" T("a", "F32", "[2,2]", 0, 17) "}", 17, ST_TENSOR_INVALID_INFO},
    {"{" T("a", "F32", "[1]", 0, 18446744073709551615) "}", 4, ST_TENSOR_INVALID_INFO},
    /* the file */
    {"{" T("a", "F32", "[2,2]", 0, 16) "}", 15, ST_METADATA_INCOMPLETE_BUFFER},
    {"{" T("a", "F32", "[2,2]", 0, 16) "}", 17, ST_METADATA_INCOMPLETE_BUFFER},
    {"{}", 1, ST_METADATA_INCOMPLETE_BUFFER},
    /* ours alone */
    {"{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 4, 8) "}", 8, ST_DUPLICATE_NAME},
    {"{" T("a", "F32", "[1]", 0, 4) "," T("\\u0061", "F32", "[1]", 4, 8) "}", 8, ST_DUPLICATE_NAME},
    {"{\"__metadata__\":{\"a\":\"b\",\"a\":\"b\"}}", 0, ST_DUPLICATE_NAME},
    /* the order of the checks: of two faults the earlier one is named */
    {"{" T("a", "F33", "[1]", 4, 8) "}", 8, ST_INVALID_HEADER_DESERIALIZATION},
    {"{" T("a", "F32", "[3]", 1, 5) "}", 9, ST_INVALID_OFFSET},
    {"{" T("a", "F4", "[3]", 0, 9) "}", 4, ST_MISALIGNED_SLICE},
    {"{" T("a", "F32", "[2]", 0, 9) "}", 4, ST_TENSOR_INVALID_INFO},
    {"{\"__metadata__\":{\"a\":\"b\",\"a\":\"b\"},\"x\":1}", 0, ST_INVALID_HEADER_DESERIALIZATION},
};

static void verdicts(void **state)
{
    struct fixture *x = *state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        enum st_verdict v = parse(x, cases[i].header, cases[i].data_bytes);
        if (v != cases[i].verdict)
            fail_msg("%s: %s (%s), expected %s", cases[i].header, st_verdict_name(v), x->why,
                     st_verdict_name(cases[i].verdict));
        assert_int_equal(v == ST_OK, x->why[0] == '\0');
    }
}

static void lengths(void **state)
{
    struct fixture *x = *state;
    const char too_large[8] = {1, (char)0xe1, (char)0xf5, 5}, huge[8] = {2, 0, 0, 0, 0, 0, 0, (char)0x80};
    assert_int_equal(st_parse("", 0, 0, &x->arena, &x->file, x->why, sizeof(x->why)), ST_HEADER_TOO_SMALL);
    assert_int_equal(st_parse("1234567", 7, 7, &x->arena, &x->file, NULL, 0), ST_HEADER_TOO_SMALL);
    assert_int_equal(st_parse(too_large, 8, UINT64_MAX, &x->arena, &x->file, NULL, 0), ST_HEADER_TOO_LARGE);
    assert_int_equal(st_parse(huge, 8, UINT64_MAX, &x->arena, &x->file, NULL, 0), ST_HEADER_TOO_LARGE);
    const char two[9] = {2, 0, 0, 0, 0, 0, 0, 0, '{'};
    assert_int_equal(st_parse(two, 9, 9, &x->arena, &x->file, NULL, 0), ST_INVALID_HEADER_LENGTH);
    assert_int_equal(st_parse(two, 9, 100, &x->arena, &x->file, NULL, 0), ST_INVALID_HEADER_LENGTH);
}

static void contents(void **state)
{
    struct fixture *x = *state;
    const char *header = "  {\"__metadata__\":{\"format\":\"pt\"}," T("second", "BF16", "[2,3]", 8, 20) "," T(
        "\\u00e9\\ud83d\\ude00", "I64", "[]", 0, 8) "}  ";
    assert_int_equal(parse(x, header, 20), ST_OK);
    assert_true(x->file.complete);
    assert_int_equal(x->file.n_tensors, 2);
    assert_int_equal(x->file.header_bytes, strlen(header));
    assert_int_equal(x->file.data_end, 8 + strlen(header) + 20);
    assert_string_equal(json_string(json_get(x->file.metadata, "format")), "pt");
    const struct ckpt_tensor *t = x->file.tensors;
    assert_string_equal(t[0].name, "\xc3\xa9\xf0\x9f\x98\x80");
    assert_int_equal(t[0].dtype, D0_I64);
    assert_int_equal(t[0].n_dims, 0);
    assert_string_equal(t[1].name, "second");
    assert_int_equal(t[1].dtype, D0_BF16);
    assert_int_equal(t[1].n_dims, 2);
    assert_int_equal(t[1].dims[0], 2);
    assert_int_equal(t[1].dims[1], 3);
    assert_int_equal(t[1].offset, 8 + strlen(header) + 8);
    assert_int_equal(t[1].bytes, 12);
}

/* A type from the future is refused, but what the file holds stays known. */
static void unknown_types(void **state)
{
    struct fixture *x = *state;
    assert_int_equal(parse(x, "{" T("a", "F2_E1M0", "[9]", 0, 3) "," T("b", "F32", "[1]", 3, 7) "}", 7),
                     ST_INVALID_HEADER_DESERIALIZATION);
    assert_true(x->file.complete);
    assert_int_equal(x->file.layout, ST_OK);
    assert_int_equal(x->file.n_tensors, 2);
    assert_int_equal(x->file.tensors[0].dtype, 0);
    assert_int_equal(x->file.n_unknown, 1);
    assert_string_equal(x->file.unknown[0].dtype, "F2_E1M0");
    assert_string_equal(x->file.unknown[0].tensor, "a");
    assert_int_equal(x->file.unknown[0].n, 1);
    assert_int_equal(parse(x, "{" T("a", "F2_E1M0", "[9]", 0, 3) "," T("b", "F32", "[1]", 3, 7) "}", 6),
                     ST_INVALID_HEADER_DESERIALIZATION);
    assert_int_equal(x->file.layout, ST_METADATA_INCOMPLETE_BUFFER);
}

/* Deep nesting and 20 MB of array elements: an answer, not a stack or a memory used up. */
static void hostile(void **state)
{
    struct fixture *x = *state;
    size_t n = 20u * 1000 * 1000;
    char *text = malloc(n);
    memset(text, '[', n);
    memcpy(text, "{\"a\":{\"x\":", 10);
    assert_int_equal(parse_n(x, text, n, 0), ST_INVALID_HEADER_DESERIALIZATION);
    for (size_t i = 10; i + 1 < n; i += 2)
        memcpy(text + i, "1,", 2);
    text[10] = '[';
    text[11] = '0';
    text[12] = ',';
    uint64_t held = x->arena.held;
    assert_int_equal(parse_n(x, text, n, 0), ST_INVALID_HEADER_DESERIALIZATION);
    assert_true(x->arena.held - held < 1000 * 1000);
    free(text);
}

struct header_text {
    struct fixture *x;
    struct strbuf text;
};

static void write_header(struct strbuf *b, unsigned n)
{
    strbuf_clear(b);
    strbuf_putc(b, '{');
    for (unsigned i = n; i-- > 0;)
        strbuf_printf(
            b,
            "\"model.layers.%u.mlp.experts.%u.weight\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":["
            "%u,%u]}%s",
            i / 1000, i % 1000, i, i + 1, i ? "," : "}");
}

static void parse_header(void *context, unsigned n)
{
    struct header_text *t = context;
    assert_int_equal(parse_n(t->x, t->text.data, t->text.len, n), ST_OK);
    assert_int_equal(t->x->file.n_tensors, n);
    assert_string_equal(t->x->file.tensors[0].name, "model.layers.0.mlp.experts.0.weight");
}

/* 100,000 tensors: the sizes of the largest published headers. Eight times the tensors may not cost much more
 * than eight times the work (quadratic work would be 64 times). */
static void many_tensors(void **state)
{
    struct header_text t = {.x = *state, .text = STRBUF_INIT};
    write_header(&t.text, 100000 / 8);
    double small = least_ns(parse_header, &t, 100000 / 8);
    write_header(&t.text, 100000);
    double large = least_ns(parse_header, &t, 100000);
    assert_true(large < 24 * small);
    strbuf_release(&t.text);
}

/* ---- the published cases */

static char *read_small(struct fixture *x, const char *path, size_t *n)
{
    char *data = NULL;
    return file_read(path, 1 << 20, &x->arena, &data, n, NULL) ? NULL : data;
}

static void published(void **state)
{
    struct fixture *x = *state;
    const char *root = getenv("DAY0_MATERIAL");
    char *dir = root ? path_join(&x->arena, root, "safetensors_cases")
                     : path_join(&x->arena, TEST_SOURCE_ROOT, "../shared/material/safetensors_cases");
    size_t n, checked = 0;
    char *manifest = read_small(x, path_join(&x->arena, dir, "MANIFEST.tsv"), &n), *save = NULL;
    if (!manifest) {
        print_message("SKIP: the published safetensors cases are not here\n");
        skip();
    }
    strtok_r(manifest, "\n", &save); /* the heading */
    for (char *line; (line = strtok_r(NULL, "\n", &save));) {
        char *inner, *name = strtok_r(line, "\t", &inner), *expected = strtok_r(NULL, "\t", &inner);
        char *data = read_small(x, path_join(&x->arena, dir, name), &n);
        assert_non_null(data);
        enum st_verdict v = st_parse(data, n, n, &x->arena, &x->file, x->why, sizeof(x->why));
        if (strcmp(st_verdict_name(v), expected) != 0)
            fail_msg("%s: %s (%s), expected %s", name, st_verdict_name(v), x->why, expected);
        checked++;
    }
    assert_true(checked >= 16);
    print_message("%zu published cases\n", checked);
}

/* ---- writing */

static void written_and_read(void **state)
{
    struct fixture *x = *state;
    char path[] = "/tmp/day0-st-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const uint8_t bytes[3] = {1, 2, 3};
    const float floats[2] = {1.5f, -2.0f};
    const struct st_entry entries[] = {
        {"bytes", D0_U8, 1, {3}, bytes},
        {"we\"ird\n", D0_F32, 2, {2, 1}, floats},
        {"empty", D0_F64, 2, {0, 7}, NULL},
    };
    const char *keys[] = {"format"}, *values[] = {"pt"};
    assert_int_equal(st_write(path, entries, 3, keys, values, 1, NULL), 0);
    size_t n;
    char *data = read_small(x, path, &n);
    assert_non_null(data);
    assert_int_equal(st_parse(data, n, n, &x->arena, &x->file, x->why, sizeof(x->why)), ST_OK);
    assert_int_equal(x->file.n_tensors, 3);
    assert_int_equal(x->file.header_bytes % 8, 0);
    assert_string_equal(x->file.tensors[0].name, "empty");
    assert_string_equal(x->file.tensors[1].name, "we\"ird\n");
    assert_memory_equal(data + x->file.tensors[1].offset, floats, sizeof(floats));
    assert_string_equal(x->file.tensors[2].name, "bytes");
    assert_memory_equal(data + x->file.tensors[2].offset, bytes, sizeof(bytes));
    assert_string_equal(json_string(json_get(x->file.metadata, "format")), "pt");

    /* refused, and the file stays as it was */
    const struct st_entry twice[] = {{"a", D0_U8, 1, {3}, bytes}, {"a", D0_U8, 1, {3}, bytes}};
    const struct st_entry bad[] = {
        {"a", 999, 1, {3}, bytes},      {"a", D0_U8, 1, {-3}, bytes},
        {"a", D0_U8, 1, {3}, NULL},     {"__metadata__", D0_U8, 1, {3}, bytes},
        {"a", D0_F4, 1, {3}, bytes},    {"a", D0_U8, 9, {3}, bytes},
        {"\xff", D0_U8, 1, {3}, bytes},
    };
    assert_int_equal(st_write(path, twice, 2, NULL, NULL, 0, NULL), ERR_INVALID);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(st_write(path, &bad[i], 1, NULL, NULL, 0, NULL), ERR_INVALID);
    size_t again;
    assert_non_null(read_small(x, path, &again));
    assert_int_equal(again, n);
    unlink(path);
    assert_int_equal(st_write("/nonexistent/dir/x.safetensors", entries, 3, NULL, NULL, 0, NULL), ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(verdicts, setup, teardown),
        cmocka_unit_test_setup_teardown(lengths, setup, teardown),
        cmocka_unit_test_setup_teardown(contents, setup, teardown),
        cmocka_unit_test_setup_teardown(unknown_types, setup, teardown),
        cmocka_unit_test_setup_teardown(hostile, setup, teardown),
        cmocka_unit_test_setup_teardown(many_tensors, setup, teardown),
        cmocka_unit_test_setup_teardown(published, setup, teardown),
        cmocka_unit_test_setup_teardown(written_and_read, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
