/* SPDX-License-Identifier: Apache-2.0
 *
 * The script host: what scripts may do, what comes in and out as JSON, and a list of hostile scripts that
 * must end with an error of the right kind within their limits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "script/script.h"

static const struct script_limits tight = {
    .max_bytes = 16u << 20, .max_instructions = 20000000, .max_wall_ns = 2000000000};

static struct script *opened(const struct script_limits *l)
{
    struct script *s = NULL;
    struct err e = {0};
    if (script_open(&s, l, &e))
        fail_msg("script_open: %s", e.message);
    return s;
}

/* ---- hostile scripts ---- */

struct hostile {
    const char *what, *text;
    int code;
    const char *message; /* part of it, or NULL */
};

static const struct hostile hostile[] = {
    {"endless loop", "while true do end", ERR_LIMIT, "instruction limit"},
    {"endless loop in pcall", "while true do pcall(function() while true do end end) end", ERR_LIMIT,
     "instruction"},
    {"pcall of an error", "local function f() return pcall(f) end while true do f() end", ERR_LIMIT, NULL},
    {"string bomb", "local s = 'x' while true do s = s .. s end", ERR_LIMIT, "memory limit"},
    {"string bomb in pcall",
     "local s = 'xxxxxxxx' while true do pcall(function() while true do s = s .. s end end) end", ERR_LIMIT,
     NULL},
    {"memory bomb in pcall",
     "local t = {} while true do pcall(function() while true do t[#t + 1] = {} end end) end", ERR_LIMIT,
     "memory limit"},
    {"table bomb", "local t = {} for i = 1, 1e9 do t[i] = {i} end", ERR_LIMIT, "memory limit"},
    {"concat bomb",
     "local t = {} for i = 1, 200 do t[i] = 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy' end "
     "local s = table.concat(t) while true do s = table.concat({s, s}) end",
     ERR_LIMIT, "memory limit"},
    {"deep recursion", "local function f() return 1 + f() end f()", ERR_LIMIT, "memory limit"},
    {"tail recursion", "local function f() return f() end f()", ERR_LIMIT, "instruction"},
    {"concat that never ends", "table.concat(setmetatable({}, {__index = table.concat}), '', 1, 1 << 60)",
     ERR_FORMAT, "metatable"},
    {"insert with a false length",
     "table.insert(setmetatable({}, {__len = function() return 1 << 60 end}), 1, 0)", ERR_FORMAT,
     "metatable"},
    {"insert with a far border", "local t = {} for i = 61, 0, -1 do t[1 << i] = 1 end table.insert(t, 1, 0)",
     ERR_FORMAT, "too long"},
    {"sort with a false length", "table.sort(setmetatable({}, {__len = function() return 1 << 30 end}))",
     ERR_FORMAT, "metatable"},
    {"finalizer with a loop", "setmetatable({}, {__gc = function() while true do end end})", ERR_FORMAT,
     "__gc"},
    {"finalizer set by rawset", "local m = {} rawset(m, '__gc', 1) setmetatable({}, m)", ERR_FORMAT, "__gc"},
    {"closing variables that loop",
     "local function f() local x <close> = setmetatable({}, {__close = function() while true do end end}) "
     "error('x') end "
     "while true do pcall(f) end",
     ERR_LIMIT, "instruction"},
    {"string.rep", "string.rep('x', 1 << 40)", ERR_FORMAT, "nil value"},
    {"string.rep through a string", "(('x').rep)('x', 1 << 40)", ERR_FORMAT, "nil value"},
    {"string.find", "('a'):find('b')", ERR_FORMAT, "nil value"},
    {"string.gsub", "string.gsub('a', '.-b', '')", ERR_FORMAT, "nil value"},
    {"string.pack", "string.pack('i4', 1)", ERR_FORMAT, "nil value"},
    {"string.dump", "string.dump(function() end)", ERR_FORMAT, "nil value"},
    {"format width", "string.format('%1000d', 1)", ERR_FORMAT, "invalid conversion"},
    {"format address", "string.format('%5p', {})", ERR_FORMAT, "%p"},
    {"io", "io.open('/etc/passwd')", ERR_FORMAT, "nil value"},
    {"os", "os.execute('true')", ERR_FORMAT, "nil value"},
    {"require", "require 'os'", ERR_FORMAT, "nil value"},
    {"load", "load('return 1')()", ERR_FORMAT, "nil value"},
    {"dofile", "dofile('/etc/passwd')", ERR_FORMAT, "nil value"},
    {"debug", "debug.sethook()", ERR_FORMAT, "nil value"},
    {"package", "package.loadlib('x', 'y')", ERR_FORMAT, "nil value"},
    {"coroutine", "coroutine.wrap(function() while true do end end)()", ERR_FORMAT, "nil value"},
    {"collectgarbage", "collectgarbage('stop')", ERR_FORMAT, "nil value"},
    {"metatable of strings", "getmetatable('').__index = nil", ERR_FORMAT, "nil value"},
    {"random numbers", "math.random()", ERR_FORMAT, "nil value"},
    {"table.move", "table.move({}, 1, 1 << 60, 2)", ERR_FORMAT, "nil value"},
    {"unpack", "table.unpack({}, 1, 1 << 30)", ERR_FORMAT, "too many results"},
    {"bytecode", "\x1bLuaT", ERR_FORMAT, "binary chunk"},
    {"syntax", "x = = 1", ERR_FORMAT, "hostile:1:"},
    {"error object", "error({})", ERR_FORMAT, "table value"},
    {"error without a value", "error()", ERR_FORMAT, "nil value"},
    {"control characters", "error('a\\27[31mb\\n', 0)", ERR_FORMAT, "a [31mb "},
    {"sort that lies",
     "local t = {} for i = 1, 1000 do t[i] = i end table.sort(t, function() return true end)", ERR_FORMAT,
     NULL},
    {"slow single instructions",
     "local s = 'x' for i = 1, 22 do s = s .. s end while true do local x = s .. s end", ERR_LIMIT, NULL},
};

static void test_hostile(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        const struct hostile *h = &hostile[i];
        struct script *s = opened(&tight);
        struct err e = {0};
        uint64_t from = clock_ns();
        int rc = script_load(s, "hostile", h->text, strlen(h->text), NULL, &e);
        double seconds = (double)(clock_ns() - from) / 1e9;
        if (rc != h->code || (h->message && strstr(e.message, h->message) == NULL))
            fail_msg("%s: %d \"%s\", expected %d \"%s\"", h->what, rc, e.message, h->code,
                     h->message ? h->message : "");
        if (seconds > 8)
            fail_msg("%s: took %.1f s", h->what, seconds);
        script_close(s);
    }
}

static void test_wall(void **state)
{
    (void)state;
    struct script_limits l = {.max_instructions = UINT64_MAX / 2, .max_wall_ns = 50000000};
    static const char *const texts[] = {
        "while true do end",
        "local s = 'x' for i = 1, 25 do s = s .. s end while true do local x = s .. s end",
        "while true do pcall(function() while true do end end) end",
    };
    for (size_t i = 0; i < 3; i++) {
        struct script *s = opened(&l);
        struct err e = {0};
        uint64_t from = clock_ns();
        assert_int_equal(script_load(s, "w", texts[i], strlen(texts[i]), NULL, &e), ERR_LIMIT);
        assert_non_null(strstr(e.message, "time limit of 50 ms"));
        assert_true(clock_ns() - from < 5000000000u);
        script_close(s);
    }
}

static void test_parser_bombs(void **state)
{
    (void)state;
    size_t n = 200000;
    char *text = malloc(n + 16);
    struct err e = {0};
    assert_non_null(text);
    memset(text, '(', n);
    struct script *s = opened(&tight);
    assert_int_equal(script_load(s, "p", text, n, NULL, &e), ERR_FORMAT);
    assert_non_null(strstr(e.message, "overflow"));
    memset(text, 'a', n); /* a single name */
    assert_int_equal(script_load(s, "p", text, n, NULL, &e), ERR_FORMAT);
    char *big = calloc(1, 300000);
    assert_non_null(big);
    memset(big, ' ', 300000);
    assert_int_equal(script_load(s, "p", big, 300000, NULL, &e), ERR_LIMIT);
    free(big);
    size_t at = 0; /* labels, whose check is quadratic */
    for (int i = 0; at + 16 < n; i++)
        at += (size_t)sprintf(text + at, "::l%d::", i);
    (void)script_load(s, "p", text, at, NULL, &e);
    free(text);
    script_close(s);
}

/* Every allocation of set-up and of a small script may fail. */
static void test_small_memory(void **state)
{
    (void)state;
    static const char text[] =
        "local t = {} for i = 1, 100 do t[i] = 'n' .. i end function f(c) return {t, c} end";
    struct json arg = {.type = JSON_STRING, .n = 3, .as.string = "abc"};
    const struct json *args[] = {&arg}, *result;
    struct arena a;
    unsigned n_ok = 0;
    arena_init(&a, NULL, MEM_MISC);
    for (uint64_t bytes = 100; bytes < 60000; bytes += 97) {
        struct script_limits l = {.max_bytes = bytes};
        struct script *s = NULL;
        struct err e = {0};
        int rc = script_open(&s, &l, &e);
        if (!rc)
            rc = script_load(s, "m", text, strlen(text), NULL, &e);
        if (!rc)
            rc = script_call(s, "f", args, 1, &a, &result, &e);
        if (rc != ERR_OK && rc != ERR_LIMIT)
            fail_msg("%llu bytes: %d %s", (unsigned long long)bytes, rc, e.message);
        n_ok += rc == ERR_OK;
        script_close(s);
    }
    assert_true(n_ok > 0);
    arena_release(&a);
}

/* ---- values in and out ---- */

static const char round_trip[] = "{\"a\":[1,2.5,\"x\",null,true,[],[[]]],\"b\":{\"k\":-9223372036854775808,"
                                 "\"l\":1e300},\"n\":3,\"z\":\"\\u00e9\"}";

static void test_round_trip(void **state)
{
    (void)state;
    struct arena a;
    struct err e = {0};
    const struct json *in, *out;
    arena_init(&a, NULL, MEM_MISC);
    struct script *s = opened(NULL);
    static const char text[] =
        "m = {f = {}} function m.f.same(x) assert(#x.a == 7 and x.a.n == 7 and x.a[4] == null) return x end";
    assert_int_equal(script_load(s, "r", text, strlen(text), NULL, &e), ERR_OK);
    assert_int_equal(json_parse(round_trip, strlen(round_trip), NULL, &a, &in, &e), ERR_OK);
    assert_true(script_has(s, "m.f.same"));
    assert_false(script_has(s, "m.f"));
    assert_false(script_has(s, "m.f.same.x"));
    assert_false(script_has(s, "nothing.at.all"));
    if (script_call(s, "m.f.same", &in, 1, &a, &out, &e))
        fail_msg("%s", e.message);
    struct strbuf b = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &b, false);
    json_write_tree(&w, out);
    struct strbuf c = STRBUF_INIT;
    json_writer_init(&w, &c, false);
    json_write_tree(&w, in);
    assert_string_equal(strbuf_cstr(&b), strbuf_cstr(&c));
    strbuf_release(&b);
    strbuf_release(&c);
    script_close(s);
    arena_release(&a);
}

static void test_results(void **state)
{
    (void)state;
    static const struct {
        const char *body, *message;
    } bad[] = {
        {"return print or function() end", "holds a function"},
        {"local t = {} t[1] = t return t", "holds itself"},
        {"return {[1] = 1, [3] = 3}", "keys"},
        {"return {1, x = 2}", "keys"},
        {"return {[1.5] = 1}", "keys"},
        {"return {[true] = 1}", "keys"},
        {"return 0 / 0", "not finite"},
        {"return {a = 1 / 0}", "not finite"},
        {"local t = {} for i = 1, 60 do t = {t, t} end return t", "more than"},
        {"return {['a\\0b'] = 1}", "NUL"},
        {"return {['a\\255b'] = 1}", "UTF-8"},
        {"error('oops')", "r:1: oops"},
    };
    struct arena a;
    const struct json *out;
    arena_init(&a, NULL, MEM_MISC);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct script *s = opened(NULL);
        struct err e = {0};
        char text[256];
        snprintf(text, sizeof text, "function f() %s end", bad[i].body);
        assert_int_equal(script_load(s, "r", text, strlen(text), NULL, &e), ERR_OK);
        assert_int_equal(script_call(s, "f", NULL, 0, &a, &out, &e), ERR_FORMAT);
        if (strstr(e.message, bad[i].message) == NULL)
            fail_msg("%s: %s", bad[i].body, e.message);
        script_close(s);
    }
    struct script *s = opened(NULL);
    struct err e = {0};
    assert_int_equal(script_call(s, "absent", NULL, 0, &a, &out, &e), ERR_FORMAT);
    /* a value becomes a global; later chunks see it; keys come out sorted */
    static const char first[] = "return {b = 2, a = 1, c = {}}", second[] = "function g() return file end";
    assert_int_equal(script_load(s, "1", first, strlen(first), "file", &e), ERR_OK);
    assert_int_equal(script_load(s, "2", second, strlen(second), NULL, &e), ERR_OK);
    assert_int_equal(script_call(s, "g", NULL, 0, &a, &out, &e), ERR_OK);
    assert_int_equal(out->type, JSON_OBJECT);
    assert_string_equal(out->as.members[0].key, "a");
    assert_string_equal(out->as.members[2].key, "c");
    assert_int_equal(json_get(out, "c")->type, JSON_ARRAY);
    script_close(s);
    arena_release(&a);
}

/* A script stays usable after an error, and the instruction budget is one for its life. */
static void test_after_error(void **state)
{
    (void)state;
    struct arena a;
    const struct json *out;
    struct err e = {0};
    arena_init(&a, NULL, MEM_MISC);
    struct script_limits l = {.max_instructions = 1000000};
    struct script *s = opened(&l);
    static const char text[] =
        "function bad() error('x') end function good() for i = 1, 100000 do end return 7 end";
    assert_int_equal(script_load(s, "t", text, strlen(text), NULL, &e), ERR_OK);
    assert_int_equal(script_call(s, "bad", NULL, 0, &a, &out, &e), ERR_FORMAT);
    int64_t v = 0;
    assert_int_equal(script_call(s, "good", NULL, 0, &a, &out, &e), ERR_OK);
    assert_true(json_i64(out, &v) && v == 7);
    int rc = ERR_OK;
    for (int i = 0; i < 20 && !rc; i++)
        rc = script_call(s, "good", NULL, 0, &a, &out, &e);
    assert_int_equal(rc, ERR_LIMIT);
    assert_int_equal(script_call(s, "good", NULL, 0, &a, &out, &e), ERR_LIMIT);
    script_close(s);
    script_close(NULL);
    arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile),      cmocka_unit_test(test_wall),
        cmocka_unit_test(test_parser_bombs), cmocka_unit_test(test_small_memory),
        cmocka_unit_test(test_round_trip),   cmocka_unit_test(test_results),
        cmocka_unit_test(test_after_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
