/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the JSON writer. Whatever it is given, valid JSON in valid UTF-8 comes out.
 * Refuses: a wrong order of calls (a bug of the caller) and the process's locale.
 */
#include "base/json.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void json_writer_init(struct json_writer *w, struct strbuf *out, bool pretty)
{
    memset(w, 0, sizeof(*w));
    w->out = out;
    w->pretty = pretty;
    w->first = true;
}

static void new_line(struct json_writer *w)
{
    if (!w->pretty)
        return;
    strbuf_putc(w->out, '\n');
    for (unsigned i = 0; i < w->depth; i++)
        strbuf_add(w->out, "  ", 2);
}

static bool in_array(const struct json_writer *w)
{
    unsigned level = w->depth - 1;
    return w->is_array[level / 64] >> (level % 64) & 1;
}

static void separate(struct json_writer *w)
{
    if (!w->first)
        strbuf_putc(w->out, ',');
    w->first = false;
    new_line(w);
}

static void before_value(struct json_writer *w)
{
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (w->depth == 0)
        return;
    if (!in_array(w))
        BUG("JSON writer: a value without a key");
    separate(w);
}

static void begin(struct json_writer *w, char bracket)
{
    before_value(w);
    if (w->depth >= JSON_WRITER_DEPTH)
        BUG("JSON writer: deeper than %d levels", JSON_WRITER_DEPTH);
    uint64_t bit = (uint64_t)1 << (w->depth % 64);
    if (bracket == '[')
        w->is_array[w->depth / 64] |= bit;
    else
        w->is_array[w->depth / 64] &= ~bit;
    w->depth++;
    w->first = true;
    strbuf_putc(w->out, bracket);
}

static void end(struct json_writer *w, char bracket)
{
    if (w->depth == 0 || w->after_key || in_array(w) != (bracket == ']'))
        BUG("JSON writer: '%c' closes nothing", bracket);
    w->depth--;
    if (!w->first)
        new_line(w);
    w->first = false;
    strbuf_putc(w->out, bracket);
}

void json_begin_object(struct json_writer *w)
{
    begin(w, '{');
}

void json_end_object(struct json_writer *w)
{
    end(w, '}');
}

void json_begin_array(struct json_writer *w)
{
    begin(w, '[');
}

void json_end_array(struct json_writer *w)
{
    end(w, ']');
}

/* ---- strings */

static void put_escaped(struct strbuf *out, unsigned char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", into[] = "\"\\bfnrt";
    const char *which = c ? strchr(from, c) : NULL;
    if (which) {
        strbuf_putc(out, '\\');
        strbuf_putc(out, into[which - from]);
    } else {
        strbuf_printf(out, "\\u%04x", c);
    }
}

static void put_quoted(struct strbuf *out, const char *s, size_t n)
{
    strbuf_putc(out, '"');
    size_t plain = 0; /* start of what is copied as it stands */
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        uint32_t ignored;
        size_t length = c < 0x80 ? 1 : utf8_decode(s + i, n - i, &ignored);
        bool special = c < 0x20 || c == '"' || c == '\\';
        if (length > 0 && !special) {
            i += length;
            continue;
        }
        strbuf_add(out, s + plain, i - plain);
        if (special)
            put_escaped(out, c);
        else
            strbuf_puts(out, "\xEF\xBF\xBD");
        plain = ++i;
    }
    strbuf_add(out, s + plain, n - plain);
    strbuf_putc(out, '"');
}

static void write_key(struct json_writer *w, const char *key, size_t n)
{
    if (w->depth == 0 || w->after_key || in_array(w))
        BUG("JSON writer: a key outside an object");
    separate(w);
    put_quoted(w->out, key, n);
    strbuf_puts(w->out, w->pretty ? ": " : ":");
    w->after_key = true;
}

void json_key(struct json_writer *w, const char *key)
{
    write_key(w, key, strlen(key));
}

void json_write_string_n(struct json_writer *w, const char *s, size_t n)
{
    before_value(w);
    put_quoted(w->out, s, n);
}

void json_write_string(struct json_writer *w, const char *s)
{
    if (s)
        json_write_string_n(w, s, strlen(s));
    else
        json_write_null(w);
}

/* ---- numbers and words */

void json_write_i64(struct json_writer *w, int64_t v)
{
    before_value(w);
    strbuf_printf(w->out, "%" PRId64, v);
}

void json_write_u64(struct json_writer *w, uint64_t v)
{
    before_value(w);
    strbuf_printf(w->out, "%" PRIu64, v);
}

/* Prints with `digits` digits; true if that reads back as v. */
static bool print_double(double v, int digits, char *text, size_t bytes)
{
    snprintf(text, bytes, "%.*g", digits, v);
    return strtod(text, NULL) == v;
}

/* The fewest digits that read back as v: more digits only come nearer, so bisection finds them. 17 always do.
 */
static void shortest_double(double v, char *text, size_t bytes)
{
    int low = 1, high = 17;
    while (low < high) {
        int middle = (low + high) / 2;
        if (print_double(v, middle, text, bytes))
            high = middle;
        else
            low = middle + 1;
    }
    /* 100.0 needs one digit, but reads better as 100 than as 1e+02. Such integers are exact, so more digits
     * are the same number. */
    if (fabs(v) < 1e15)
        while (high < 15 && fabs(v) >= pow(10, high))
            high++;
    print_double(v, high, text, bytes);
}

void json_write_f64(struct json_writer *w, double v)
{
    if (!isfinite(v)) {
        json_write_null(w);
        return;
    }
    char text[320];
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* a constant of libc */
    locale_t before = uselocale(c);
    shortest_double(v, text, sizeof(text));
    uselocale(before);
    freelocale(c);
    before_value(w);
    strbuf_puts(w->out, text);
    if (!strpbrk(text, ".e")) /* a double stays one when read again */
        strbuf_puts(w->out, ".0");
}

void json_write_bool(struct json_writer *w, bool v)
{
    before_value(w);
    strbuf_puts(w->out, v ? "true" : "false");
}

void json_write_null(struct json_writer *w)
{
    before_value(w);
    strbuf_puts(w->out, "null");
}

void json_write_raw(struct json_writer *w, const char *text)
{
    before_value(w);
    strbuf_puts(w->out, text);
}

/* Recursion is bounded by the depth that the reader allows. */
void json_write_tree(struct json_writer *w, const struct json *v)
{
    switch (v->type) {
    case JSON_NULL:
        json_write_null(w);
        break;
    case JSON_BOOL:
        json_write_bool(w, v->as.boolean);
        break;
    case JSON_INT:
        json_write_i64(w, v->as.i);
        break;
    case JSON_UINT:
        json_write_u64(w, v->as.u);
        break;
    case JSON_DOUBLE:
        json_write_f64(w, v->as.d);
        break;
    case JSON_STRING:
        json_write_string_n(w, v->as.string, v->n);
        break;
    case JSON_ARRAY:
        json_begin_array(w);
        for (uint32_t i = 0; i < v->n; i++)
            json_write_tree(w, &v->as.items[i]);
        json_end_array(w);
        break;
    case JSON_OBJECT:
        json_begin_object(w);
        for (uint32_t i = 0; i < v->n; i++) {
            write_key(w, v->as.members[i].key, v->as.members[i].key_bytes);
            json_write_tree(w, &v->as.members[i].value);
        }
        json_end_object(w);
        break;
    }
}

/* ---- key and value in one call */

void json_put_string(struct json_writer *w, const char *key, const char *s)
{
    json_key(w, key);
    json_write_string(w, s);
}

void json_put_i64(struct json_writer *w, const char *key, int64_t v)
{
    json_key(w, key);
    json_write_i64(w, v);
}

void json_put_u64(struct json_writer *w, const char *key, uint64_t v)
{
    json_key(w, key);
    json_write_u64(w, v);
}

void json_put_f64(struct json_writer *w, const char *key, double v)
{
    json_key(w, key);
    json_write_f64(w, v);
}

void json_put_bool(struct json_writer *w, const char *key, bool v)
{
    json_key(w, key);
    json_write_bool(w, v);
}
