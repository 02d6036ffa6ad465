/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON reader's strictness, exactness and limits, and the writer's round trip.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/thread.h"

static struct arena arena;

static int parse_n(const char *text, size_t n, const struct json **out, struct err *e)
{
    /* an exact heap copy: a sanitizer sees a read past the end */
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, text, n);
    int rc = json_parse(copy, n, NULL, &arena, out, e);
    free(copy);
    return rc;
}

static const struct json *parsed(const char *text)
{
    const struct json *v = NULL;
    struct err e = {0};
    int rc = parse_n(text, strlen(text), &v, &e);
    if (rc)
        fail_msg("%s: %s", text, e.message);
    return v;
}

static void refused(const char *text, const char *message_part)
{
    const struct json *v = NULL;
    struct err e = {0};
    assert_int_equal(parse_n(text, strlen(text), &v, &e), ERR_FORMAT);
    assert_null(v);
    if (!strstr(e.message, message_part))
        fail_msg("%s: said \"%s\", not \"%s\"", text, e.message, message_part);
}

static int setup(void **state)
{
    (void)state;
    arena_init(&arena, NULL, MEM_MISC);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_release(&arena);
    return 0;
}

static void reads_every_type(void **state)
{
    (void)state;
    const struct json *v = parsed(" {\"a\": [1, -2.5, true, false, null, \"x\"], \"b\": {}, \"c\": []} ");
    assert_int_equal(v->type, JSON_OBJECT);
    assert_int_equal(v->n, 3);
    assert_string_equal(v->as.members[0].key, "a");
    assert_string_equal(v->as.members[2].key, "c");
    const struct json *a = json_get(v, "a");
    int64_t i;
    double d;
    bool b;
    assert_true(json_i64(json_at(a, 0), &i) && i == 1);
    assert_true(json_f64(json_at(a, 1), &d) && d == -2.5);
    assert_true(json_bool(json_at(a, 2), &b) && b);
    assert_true(json_bool(json_at(a, 3), &b) && !b);
    assert_int_equal(json_at(a, 4)->type, JSON_NULL);
    assert_string_equal(json_string(json_at(a, 5)), "x");
    assert_null(json_at(a, 6));
    assert_int_equal(json_get(v, "b")->n, 0);
    assert_null(json_get(v, "d"));
    assert_null(json_get(NULL, "d"));
    assert_null(json_get(a, "d"));
    assert_false(json_i64(json_at(a, 1), &i));
    assert_false(json_f64(NULL, &d));
    assert_int_equal(parsed("7")->as.i, 7);
}

static void integers_are_exact(void **state)
{
    (void)state;
    int64_t i;
    uint64_t u;
    assert_true(json_i64(parsed("9223372036854775807"), &i) && i == INT64_MAX);
    assert_true(json_i64(parsed("-9223372036854775808"), &i) && i == INT64_MIN);
    assert_true(json_u64(parsed("9223372036854775808"), &u) && u == (uint64_t)INT64_MAX + 1);
    assert_false(json_i64(parsed("9223372036854775808"), &i));
    assert_true(json_u64(parsed("18446744073709551615"), &u) && u == UINT64_MAX);
    assert_true(json_u64(parsed("9007199254740993"), &u) && u == 9007199254740993u);
    assert_false(json_u64(parsed("-1"), &u));
    assert_int_equal(parsed("18446744073709551616")->type, JSON_DOUBLE);
    assert_true(parsed("18446744073709551616")->as.d == 18446744073709551616.0);
    assert_int_equal(parsed("-9223372036854775809")->type, JSON_DOUBLE);
    assert_int_equal(parsed("1.0")->type, JSON_DOUBLE);
    assert_int_equal(parsed("1e2")->type, JSON_DOUBLE);
    assert_true(parsed("1e2")->as.d == 100.0);
    assert_int_equal(parsed("-0")->type, JSON_INT);
    assert_true(signbit(parsed("-0.0")->as.d));
    assert_true(parsed("5e-324")->as.d == 5e-324);
    assert_true(parsed("1e-999")->as.d == 0.0);
    assert_true(parsed("1.7976931348623157e308")->as.d == DBL_MAX);
}

static void numbers_beyond_the_grammar_are_refused(void **state)
{
    (void)state;
    refused("01", "leading zero");
    refused("-01", "leading zero");
    refused("+1", "expected a value");
    refused("-", "expected a digit");
    refused("1.", "after the decimal point");
    refused(".5", "expected a value");
    refused("1e", "exponent");
    refused("1e+", "exponent");
    refused("0x10", "nothing after the value");
    refused("NaN", "expected a value");
    refused("Infinity", "expected a value");
    refused("-Infinity", "expected a digit");
    refused("1e999", "too large");
    refused("1 2", "nothing after the value");
    char digits[4000];
    memset(digits, '9', sizeof(digits));
    digits[sizeof(digits) - 1] = '\0';
    refused(digits, "too large");
    memcpy(digits, "0.", 2);
    assert_true(fabs(parsed(digits)->as.d - 1.0) < 1e-15);
}

static void syntax_errors_tell_where(void **state)
{
    (void)state;
    refused("", "byte 0): expected a value, found the end");
    refused("{\"a\": 1,\n \"b\" 2}", "line 2, column 6 (byte 14): expected ':', found '2'");
    refused("[1,\n2,\n]", "line 3, column 1 (byte 7): expected a value, found ']'");
    refused("[1 2]", "column 4 (byte 3): expected ',' or ']', found '2'");
    refused("{\"a\":1,}", "column 8 (byte 7): expected a key");
    refused("{a:1}", "expected a key");
    refused("[1", "found the end");
    refused("[1}", "found '}'");
    refused("{\"a\":1]", "found ']'");
    refused("]", "expected a value");
    refused("// no\n1", "found '/'");
    refused("tru", "expected a value");
    refused("\xEF\xBB\xBF{}", "byte 0xEF");
    refused("\"a", "without end");
    refused("\"a\\", "without end");
    refused("\"a\nb\"", "control character 0x0A");
    refused("\"\\x\"", "unknown escape");
    refused("\"\\u12G4\"", "four hexadecimal digits");
    refused("\"\\u12\"", "four hexadecimal digits");
    struct err e = {0};
    const struct json *v;
    assert_int_equal(parse_n("[\0]", 3, &v, &e), ERR_FORMAT);
    assert_int_equal(parse_n("\"a\0b\"", 5, &v, &e), ERR_FORMAT);
    assert_int_equal(parse_n("1\0", 2, &v, NULL), ERR_FORMAT);
}

static void strings_are_unicode(void **state)
{
    (void)state;
    const struct json *v = parsed("\"\\u00e9\\u20ac\\ud83d\\ude00\\n\\\"\\\\\\/\\b\\f\\r\\t\"");
    assert_string_equal(v->as.string, "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\n\"\\/\b\f\r\t");
    v = parsed("\"a\\u0000b\"");
    assert_int_equal(v->n, 3);
    assert_memory_equal(v->as.string, "a\0b", 4);
    assert_string_equal(parsed("\"\xE6\x97\xA5\"")->as.string, "\xE6\x97\xA5");
    refused("\"\\ud800\"", "lone surrogate \\uD800");
    refused("\"\\ud800x\"", "lone surrogate");
    refused("\"\\udc00\"", "lone surrogate");
    refused("\"\\ud800\\ud800\"", "lone surrogate");
    refused("\"\\ud800\\u0041\"", "lone surrogate");
    refused("\"\\ud800\\ue000\"", "lone surrogate");
    refused("\"\xED\xA0\x80\"", "invalid UTF-8");
    refused("\"\xC0\x80\"", "invalid UTF-8");
    refused("\"\xF5\x80\x80\x80\"", "invalid UTF-8");
    refused("\"\xE6\x97\"", "invalid UTF-8");
    refused("\"\\\xC3\xA9\"", "unknown escape");
}

static void duplicates_are_refused(void **state)
{
    (void)state;
    refused("{\"a\":1,\"b\":2,\"a\":3}", "column 14 (byte 13): duplicate key \"a\"");
    refused("{\"\\u0061\":1,\"a\":3}", "duplicate key \"a\"");
    parsed("{\"a\":{\"a\":{\"a\":1}}}");
    struct strbuf text = STRBUF_INIT;
    strbuf_puts(&text, "{");
    for (int i = 0; i < 1000; i++)
        strbuf_printf(&text, "\"key%d\":%d,", i, i);
    strbuf_puts(&text, "\"key500\":1}");
    refused(text.data, "duplicate key \"key500\"");
    strbuf_release(&text);
}

static void large_objects_find_their_members(void **state)
{
    (void)state;
    for (int n = 0; n < 70; n++) { /* with and without an index */
        struct strbuf text = STRBUF_INIT;
        strbuf_puts(&text, "{");
        for (int i = 0; i < n; i++)
            strbuf_printf(&text, "%s\"key%d\":%d", i ? "," : "", i, i);
        strbuf_puts(&text, "}");
        const struct json *v = parsed(text.data);
        for (int i = 0; i < n; i++) {
            char key[16];
            int64_t got;
            snprintf(key, sizeof(key), "key%d", i);
            assert_true(json_i64(json_get(v, key), &got) && got == i);
            assert_string_equal(v->as.members[i].key, key);
        }
        assert_null(json_get(v, "key70"));
        assert_null(json_get(v, ""));
        strbuf_release(&text);
    }
}

static void limits_hold(void **state)
{
    (void)state;
    char *deep = malloc(2000001);
    memset(deep, '[', 1000000);
    memset(deep + 1000000, ']', 1000000);
    deep[2000000] = '\0';
    struct err e = {0};
    const struct json *v;
    assert_int_equal(json_parse(deep, 2000000, NULL, &arena, &v, &e), ERR_LIMIT);
    assert_non_null(strstr(e.message, "byte 64"));
    assert_int_equal(json_parse(deep + 1000000 - 64, 128, NULL, &arena, &v, &e), ERR_OK);
    assert_int_equal(json_parse(deep + 1000000 - 65, 130, NULL, &arena, &v, &e), ERR_LIMIT);
    struct json_limits more = {.max_depth = 1000000};
    assert_int_equal(json_parse(deep, 2000000, &more, &arena, &v, &e), ERR_LIMIT);
    assert_int_equal(json_parse(deep + 1000000 - 512, 1024, &more, &arena, &v, &e), ERR_OK);
    struct json_limits small = {.max_bytes = 3};
    assert_int_equal(json_parse("[1]", 3, &small, &arena, &v, &e), ERR_OK);
    assert_int_equal(json_parse("[1] ", 4, &small, &arena, &v, &e), ERR_LIMIT);
    struct arena tight;
    arena_init(&tight, NULL, MEM_MISC);
    tight.limit = 100;
    assert_int_equal(
        json_parse("[\"a long enough string to need more than is there\"]", 52, NULL, &tight, &v, &e),
        ERR_NOMEM);
    arena_release(&tight);
    free(deep);
}

static void written(const char *expected, const struct strbuf *b)
{
    assert_false(strbuf_failed(b));
    assert_string_equal(strbuf_cstr(b), expected);
}

static void writer_prints_what_it_is_told(void **state)
{
    (void)state;
    struct strbuf b = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &b, false);
    json_begin_object(&w);
    json_put_string(&w, "s", "a\"\\\n\x01\xFF\xC3\xA9");
    json_put_string(&w, "null", NULL);
    json_put_i64(&w, "i", INT64_MIN);
    json_put_u64(&w, "u", UINT64_MAX);
    json_put_f64(&w, "d", 0.1);
    json_put_bool(&w, "b", true);
    json_key(&w, "list");
    json_begin_array(&w);
    json_write_f64(&w, NAN);
    json_write_f64(&w, INFINITY);
    json_write_raw(&w, "[1]");
    json_begin_object(&w);
    json_end_object(&w);
    json_end_array(&w);
    json_end_object(&w);
    written("{\"s\":\"a\\\"\\\\\\n\\u0001\xEF\xBF\xBD\xC3\xA9\",\"null\":null,\"i\":-9223372036854775808,"
            "\"u\":18446744073709551615,\"d\":0.1,\"b\":true,\"list\":[null,null,[1],{}]}",
            &b);
    strbuf_clear(&b);
    json_writer_init(&w, &b, true);
    json_write_tree(&w, parsed("{\"a\":[1,{}],\"b\":[]}"));
    written("{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}", &b);
    strbuf_release(&b);
}

static void doubles_are_shortest_and_come_back(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {1.0, "1.0"},
                 {1e-7, "1e-07"},
                 {999999999999999.0, "999999999999999.0"},
                 {1e15, "1e+15"},
                 {-0.0, "-0.0"},
                 {1e22, "1e+22"},
                 {5e-324, "5e-324"},
                 {DBL_MAX, "1.7976931348623157e+308"},
                 {1.0 / 3, "0.3333333333333333"},
                 {100.0, "100.0"},
                 {123456.0, "123456.0"}};
    struct strbuf b = STRBUF_INIT;
    struct json_writer w;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        strbuf_clear(&b);
        json_writer_init(&w, &b, false);
        json_write_f64(&w, cases[i].value);
        written(cases[i].text, &b);
    }
    struct rng rng;
    rng_init(&rng, 1);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = rng_next(&rng);
        double d, back;
        memcpy(&d, &bits, sizeof(d));
        if (!isfinite(d))
            continue;
        strbuf_clear(&b);
        json_writer_init(&w, &b, false);
        json_write_f64(&w, d);
        back = parsed(b.data)->as.d;
        assert_memory_equal(&back, &d, sizeof(d));
        arena_reset(&arena);
    }
    strbuf_release(&b);
}

static double seconds_to_parse(const struct strbuf *b)
{
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        const struct json *v;
        struct arena a;
        arena_init(&a, NULL, MEM_MISC);
        uint64_t start = clock_ns();
        assert_int_equal(json_parse(b->data, b->len, NULL, &a, &v, NULL), ERR_OK);
        double s = (double)(clock_ns() - start) / 1e9;
        if (s < best)
            best = s;
        arena_release(&a);
    }
    return best;
}

/* A checkpoint header: 16 times as many tensors must not cost much more than 16 times the time. The bound is
 * far from both linear (16) and quadratic (256). */
static void large_headers_cost_linear_time(void **state)
{
    (void)state;
    double seconds[2];
    int sizes[2] = {4400, 70400};
    for (int k = 0; k < 2; k++) {
        struct strbuf b = STRBUF_INIT;
        strbuf_puts(&b, "{");
        for (int i = 0; i < sizes[k]; i++)
            strbuf_printf(
                &b,
                "%s\"model.layers.%d.mlp.experts.%d.down_proj.weight_packed\":{\"dtype\":\"I32\",\"shape\":"
                "[7168,256],\"data_offsets\":[%d,%d]}",
                i ? "," : "", i / 384, i, i * 7340, (i + 1) * 7340);
        strbuf_puts(&b, "}");
        seconds[k] = seconds_to_parse(&b);
        print_message("%zu bytes, %d tensors: %.4f s\n", b.len, sizes[k], seconds[k]);
        strbuf_release(&b);
    }
    assert_true(seconds[1] < 100 * seconds[0] + 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_every_type, setup, teardown),
        cmocka_unit_test_setup_teardown(integers_are_exact, setup, teardown),
        cmocka_unit_test_setup_teardown(numbers_beyond_the_grammar_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(syntax_errors_tell_where, setup, teardown),
        cmocka_unit_test_setup_teardown(strings_are_unicode, setup, teardown),
        cmocka_unit_test_setup_teardown(duplicates_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(large_objects_find_their_members, setup, teardown),
        cmocka_unit_test_setup_teardown(limits_hold, setup, teardown),
        cmocka_unit_test_setup_teardown(writer_prints_what_it_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(doubles_are_shortest_and_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(large_headers_cost_linear_time, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
