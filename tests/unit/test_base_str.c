/* SPDX-License-Identifier: Apache-2.0
 *
 * Text: the builder, UTF-8 over every code point, numbers in and out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"

static void builder(void **state)
{
    (void)state;
    struct strbuf b = STRBUF_INIT;
    assert_string_equal(strbuf_cstr(&b), "");
    for (int i = 0; i < 1000; i++) {
        strbuf_printf(&b, "%d", i % 10);
        assert_int_equal(strlen(b.data), (size_t)i + 1);
    }
    strbuf_clear(&b);
    strbuf_puts(&b, "ab");
    strbuf_putc(&b, 'c');
    strbuf_add(&b, "d\0e", 3);
    assert_int_equal(b.len, 6);
    assert_memory_equal(b.data, "abcd\0e", 7);
    char *s = strbuf_detach(&b);
    assert_string_equal(s, "abcd");
    free(s);
    s = strbuf_detach(&b);
    assert_string_equal(s, "");
    free(s);
    strbuf_puts(&b, "x");
    strbuf_add(&b, "", SIZE_MAX); /* cannot be: fails, and stays failed */
    assert_true(strbuf_failed(&b));
    strbuf_puts(&b, "y");
    assert_int_equal(b.len, 1);
    assert_null(strbuf_detach(&b));
    strbuf_release(&b);
}

static void utf8_round_trips_every_code_point(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110800; c++) {
        char bytes[4];
        size_t n = utf8_encode(c, bytes);
        bool legal = c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF);
        assert_int_equal(n > 0, legal);
        if (!legal)
            continue;
        uint32_t back = ~c;
        assert_int_equal(utf8_decode(bytes, n, &back), n);
        assert_int_equal(back, c);
        assert_true(utf8_valid(bytes, n));
        for (size_t cut = 1; cut < n; cut++) {
            assert_int_equal(utf8_decode(bytes, cut, &back), 0);
            assert_int_equal(utf8_complete_prefix(bytes, cut), 0);
        }
        assert_int_equal(utf8_complete_prefix(bytes, n), n);
    }
}

static void malformed_utf8_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"\x80",
                                      "\xC0\x80",
                                      "\xC1\xBF",
                                      "\xE0\x80\x80",
                                      "\xE0\x9F\xBF",
                                      "\xED\xA0\x80",
                                      "\xF0\x80\x80\x80",
                                      "\xF0\x8F\xBF\xBF",
                                      "\xF4\x90\x80\x80",
                                      "\xF5\x80\x80\x80",
                                      "\xFF",
                                      "\xC3(",
                                      "\xE2\x82(",
                                      "a\xC3"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(utf8_valid(bad[i], strlen(bad[i])));
    assert_true(utf8_valid("", 0));
    uint32_t c;
    assert_int_equal(utf8_decode("", 0, &c), 0);
    assert_int_equal(utf8_complete_prefix("ab\xE2\x82", 4), 2);
    assert_int_equal(utf8_complete_prefix("ab\x82", 3), 3);
    assert_int_equal(utf8_complete_prefix("", 0), 0);
}

static void counts(const char *expected, uint64_t n)
{
    char buf[40];
    assert_string_equal(format_count(n, buf, sizeof(buf)), expected);
}

static void bytes(const char *expected, uint64_t n)
{
    char buf[40];
    assert_string_equal(format_bytes(n, buf, sizeof(buf)), expected);
}

static void numbers_for_people(void **state)
{
    (void)state;
    counts("0", 0);
    counts("999", 999);
    counts("1,000", 1000);
    counts("1,560,860,324,864", 1560860324864u);
    counts("18,446,744,073,709,551,615", UINT64_MAX);
    bytes("0 B", 0);
    bytes("999 B", 999);
    bytes("1.00 kB", 1000);
    bytes("1.01 kB", 1005);
    bytes("9.99 kB", 9994);
    bytes("10.0 kB", 9995);
    bytes("99.9 kB", 99949);
    bytes("100 kB", 99950);
    bytes("999 kB", 999499);
    bytes("1.00 MB", 999500);
    bytes("1.56 TB", 1560860324864u);
    bytes("18.4 EB", UINT64_MAX);
    char tiny[4];
    assert_string_equal(format_count(1234567, tiny, sizeof(tiny)), "1,2");
}

static void numbers_from_people(void **state)
{
    (void)state;
    int64_t i = 7;
    assert_true(str_to_i64("0", &i) && i == 0);
    assert_true(str_to_i64("-9223372036854775808", &i) && i == INT64_MIN);
    assert_true(str_to_i64("9223372036854775807", &i) && i == INT64_MAX);
    static const char *const bad[] = {"",
                                      "-",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "1x",
                                      "0x1",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "99999999999999999999"};
    i = 7;
    for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++)
        assert_false(str_to_i64(bad[k], &i));
    assert_int_equal(i, 7);
    uint64_t u;
    assert_true(str_to_bytes("12", &u) && u == 12);
    assert_true(str_to_bytes("12B", &u) && u == 12);
    assert_true(str_to_bytes("2K", &u) && u == 2000);
    assert_true(str_to_bytes("2Ki", &u) && u == 2048);
    assert_true(str_to_bytes("3MB", &u) && u == 3000000);
    assert_true(str_to_bytes("4GiB", &u) && u == (uint64_t)4 << 30);
    assert_true(str_to_bytes("1T", &u) && u == 1000000000000u);
    assert_true(str_to_bytes("18446744073709551615", &u) && u == UINT64_MAX);
    static const char *const worse[] = {
        "", "K", "1.5G", "-1", "1KK", "1i", "1P", "18446744073709551616", "18446745T"};
    for (size_t k = 0; k < sizeof(worse) / sizeof(worse[0]); k++)
        assert_false(str_to_bytes(worse[k], &u));
}

static void comparing(void **state)
{
    (void)state;
    assert_true(str_starts("abc", "ab") && !str_starts("ab", "abc") && str_starts("a", ""));
    assert_true(str_ends("a.bin", ".bin") && !str_ends("bin", ".bin") && str_ends("a", ""));
    assert_int_equal(str_distance("kitten", "sitting"), 3);
    assert_int_equal(str_distance("", "abc"), 3);
    assert_int_equal(str_distance("same", "same"), 0);
    char a[200], b[200];
    memset(a, 'a', sizeof(a));
    memset(b, 'b', sizeof(b));
    a[199] = b[199] = '\0';
    assert_int_equal(str_distance(a, b), 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builder),
        cmocka_unit_test(utf8_round_trips_every_code_point),
        cmocka_unit_test(malformed_utf8_is_refused),
        cmocka_unit_test(numbers_for_people),
        cmocka_unit_test(numbers_from_people),
        cmocka_unit_test(comparing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
