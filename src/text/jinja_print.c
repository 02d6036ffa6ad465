/* SPDX-License-Identifier: Apache-2.0
 *
 * Values as text: Python's str() and repr(), and json.dumps. Numbers print with the fewest digits that read
 * back equal. What json.dumps refuses fails here too.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_impl.h"

void jinja_print_int(struct jbuf *b, jint i)
{
    char text[48];
    size_t at = sizeof text;
    bool negative = i < 0;
    __extension__ unsigned __int128 u = negative ? -(unsigned __int128)i : (unsigned __int128)i;
    do {
        text[--at] = (char)('0' + (int)(u % 10));
        u /= 10;
    } while (u);
    if (negative)
        text[--at] = '-';
    jbuf_add(b, text + at, sizeof text - at, false);
}

/* repr(float): digits of the shortest form, exponent where it is below -4 or from 16 on. */
void jinja_print_float(struct jbuf *b, double f)
{
    char text[40], digits[24], *mark;
    if (isnan(f) || isinf(f)) {
        jbuf_puts(b, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, f);
        if (strtod(text, NULL) == f)
            break;
    }
    if (text[0] == '-')
        jbuf_puts(b, "-");
    mark = strchr(text, 'e');
    int exponent = mark ? (int)strtol(mark + 1, NULL, 10) : 0, n = 0;
    for (const char *s = text; s < mark; s++)
        if (*s >= '0' && *s <= '9')
            digits[n++] = *s;
    if (exponent < -4 || exponent >= 16) {
        jbuf_add(b, digits, 1, false);
        if (n > 1)
            jbuf_puts(b, ".");
        jbuf_add(b, digits + 1, (size_t)(n - 1), false);
        snprintf(text, sizeof text, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        jbuf_puts(b, text);
        return;
    }
    if (exponent < 0)
        jbuf_puts(b, "0.");
    for (int i = exponent + 1; i < 0; i++)
        jbuf_puts(b, "0");
    for (int i = 0; i <= exponent || i < n; i++) {
        if (exponent >= 0 && i == exponent + 1)
            jbuf_puts(b, ".");
        jbuf_add(b, i < n ? &digits[i] : "0", 1, false);
    }
    if (n <= exponent + 1)
        jbuf_puts(b, ".0");
}

static void repr_string(struct jbuf *b, const struct jstr *s)
{
    char quote = memchr(s->s, '\'', s->n) && !memchr(s->s, '"', s->n) ? '"' : '\'', text[16];
    size_t len;
    uint32_t c;
    if (s->safe)
        jbuf_puts(b, "Markup(");
    jbuf_add(b, &quote, 1, false);
    for (size_t i = 0; i < s->n && (len = utf8_decode(s->s + i, s->n - i, &c)) > 0; i += len) {
        bool marked = jstr_mark(s, i);
        if (c == (unsigned char)quote || c == '\\')
            jbuf_add(b, "\\", 1, marked);
        if (c == '\n' || c == '\r' || c == '\t') {
            jbuf_add(b, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", 2, marked);
        } else if (junicode_printable(c)) {
            jbuf_add_str(b, s, i, len);
        } else {
            int n = snprintf(text, sizeof text,
                             c < 0x100     ? "\\x%02x"
                             : c < 0x10000 ? "\\u%04x"
                                           : "\\U%08x",
                             c);
            jbuf_add(b, text, (size_t)n, marked);
        }
    }
    jbuf_add(b, &quote, 1, false);
    if (s->safe)
        jbuf_puts(b, ")");
}

static void repr_range(struct jbuf *b, const struct jlist *l)
{
    for (int i = 0; i < (l->range[2] == 1 ? 2 : 3); i++) {
        jbuf_puts(b, i ? ", " : "range(");
        jinja_print_int(b, l->range[i]);
    }
    jbuf_puts(b, ")");
}

static void repr_list(struct jbuf *b, const struct jlist *l)
{
    static const char *const open[] = {"[", "(", "", "", "dict_keys([", "dict_values([", "dict_items(["};
    static const char *const close[] = {"]", ")", "", "", "])", "])", "])"};
    bool json = b->x->o->json_spelling;
    if (l->kind == JL_RANGE && !json) {
        repr_range(b, l);
        return;
    }
    if (l->kind == JL_GENERATOR && !json) {
        jbuf_puts(b, "<generator object>");
        return;
    }
    jbuf_puts(b, json ? "[" : open[l->kind]);
    for (uint32_t i = 0; i < l->n; i++) {
        if (i)
            jbuf_puts(b, ", ");
        jinja_repr(b, l->items[i]);
    }
    if (l->kind == JL_TUPLE && l->n == 1 && !json)
        jbuf_puts(b, ",");
    jbuf_puts(b, json ? "]" : close[l->kind]);
}

static void repr_dict(struct jbuf *b, const struct jdict *d)
{
    jbuf_puts(b, "{");
    for (uint32_t i = 0; i < d->n; i++) {
        if (i)
            jbuf_puts(b, ", ");
        jinja_repr(b, d->entries[i].key);
        jbuf_puts(b, ": ");
        jinja_repr(b, d->entries[i].value);
    }
    jbuf_puts(b, "}");
}

static void dump_string(struct jbuf *b, const struct jstr *s, bool ascii);

void jinja_repr(struct jbuf *b, struct jval v)
{
    bool json = b->x->o->json_spelling;
    jinja_spend(b->x, 1);
    jinja_enter(b->x);
    switch (v.type) {
    case J_UNDEFINED:
        jbuf_puts(b, json ? "undefined" : "Undefined");
        break;
    case J_NONE:
        jbuf_puts(b, json ? "null" : "None");
        break;
    case J_BOOL:
        jbuf_puts(b, v.as.b ? (json ? "true" : "True") : (json ? "false" : "False"));
        break;
    case J_INT:
        jinja_print_int(b, v.as.i);
        break;
    case J_FLOAT:
        jinja_print_float(b, v.as.f);
        break;
    case J_STRING:
        if (json)
            dump_string(b, v.as.s, false);
        else
            repr_string(b, v.as.s);
        break;
    case J_LIST:
        repr_list(b, v.as.list);
        break;
    case J_DICT:
        repr_dict(b, v.as.dict);
        break;
    case J_NAMESPACE:
        jbuf_puts(b, "<Namespace ");
        repr_dict(b, v.as.dict);
        jbuf_puts(b, ">");
        break;
    default: /* Python prints addresses */
        jbuf_puts(b, "<");
        jbuf_puts(b, jinja_type_name(v));
        jbuf_puts(b, ">");
    }
    jinja_leave(b->x);
}

void jinja_print(struct jbuf *b, struct jval v)
{
    if (v.type == J_STRING)
        jbuf_add_str(b, v.as.s, 0, v.as.s->n);
    else if (v.type != J_UNDEFINED)
        jinja_repr(b, v);
}

const struct jstr *jinja_to_str(struct jrun *x, struct jval v)
{
    struct jbuf b = {.x = x};
    if (v.type == J_STRING)
        return v.as.s;
    jinja_print(&b, v);
    return jbuf_str(&b);
}

/* ---- JSON ---- */

static void dump_escape(struct jbuf *b, uint32_t c, bool marked)
{
    static const char plain[] = "\"\\\n\r\t\b\f", letter[] = "\"\\nrtbf";
    char text[16];
    const char *hit = c && c < 128 ? strchr(plain, (int)c) : NULL;
    int n = 2;
    if (hit)
        snprintf(text, sizeof text, "\\%c", letter[hit - plain]);
    else if (c < 0x10000)
        n = snprintf(text, sizeof text, "\\u%04x", c);
    else
        n = snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD7C0 + (c >> 10), 0xDC00 + (c & 0x3FF));
    jbuf_add(b, text, (size_t)n, marked);
}

static void dump_string(struct jbuf *b, const struct jstr *s, bool ascii)
{
    size_t from = 0, len;
    uint32_t c;
    jbuf_add(b, "\"", 1, false);
    for (size_t i = 0; i < s->n; i += len) {
        unsigned char byte = (unsigned char)s->s[i];
        len = 1;
        if (byte >= 32 && byte != '"' && byte != '\\' && (byte < 127 || !ascii))
            continue;
        c = byte;
        if (byte >= 128)
            len = utf8_decode(s->s + i, s->n - i, &c);
        jbuf_add_str(b, s, from, i - from);
        dump_escape(b, c, jstr_mark(s, i));
        len = len ? len : 1;
        from = i + len;
    }
    jbuf_add_str(b, s, from, s->n - from);
    jbuf_add(b, "\"", 1, false);
}

static void new_line(struct jbuf *b, const struct jjson_style *style, unsigned level)
{
    if (style->indent == NULL)
        return;
    jbuf_puts(b, "\n");
    for (unsigned i = 0; i < level; i++)
        jbuf_add_str(b, style->indent, 0, style->indent->n);
}

static void dump(struct jbuf *b, struct jval v, const struct jjson_style *style, unsigned level);

static void dump_list(struct jbuf *b, const struct jlist *l, const struct jjson_style *style, unsigned level)
{
    jbuf_puts(b, "[");
    for (uint32_t i = 0; i < l->n; i++) {
        if (i)
            jbuf_add_str(b, style->item, 0, style->item->n);
        new_line(b, style, level + 1);
        dump(b, l->items[i], style, level + 1);
    }
    if (l->n)
        new_line(b, style, level);
    jbuf_puts(b, "]");
}

/* Keys of JSON are strings: numbers and constants are spelt out. */
static const struct jstr *key_text(struct jrun *x, struct jval key)
{
    struct jbuf b = {.x = x};
    if (key.type == J_STRING)
        return key.as.s;
    if (key.type == J_BOOL)
        return jinja_text(x, key.as.b ? "true" : "false").as.s;
    if (key.type == J_NONE)
        return jinja_text(x, "null").as.s;
    if (!jinja_is_number(key))
        jinja_fail(x, ERR_INVALID, "tojson: keys must be str, int, float, bool or None, not %s",
                   jinja_type_name(key));
    jinja_repr(&b, key);
    return jbuf_str(&b);
}

/* Insertion of neighbours would be quadratic: keys are ordered by a merge sort. */
static void sort_keys(struct jrun *x, struct jentry *e, struct jentry *spare, uint32_t n)
{
    if (n < 2)
        return;
    uint32_t half = n / 2, i = 0, k = half, out = 0;
    jinja_enter(x);
    sort_keys(x, e, spare, half);
    sort_keys(x, e + half, spare, n - half);
    jinja_leave(x);
    while (i < half || k < n)
        spare[out++] = k == n || (i < half && jinja_order(x, e[i].key, e[k].key) <= 0) ? e[i++] : e[k++];
    memcpy(e, spare, n * sizeof *e);
}

static void dump_dict(struct jbuf *b, const struct jdict *d, const struct jjson_style *style, unsigned level)
{
    struct jentry *entries = d->entries;
    if (style->sort_keys && d->n > 1) {
        entries = jinja_alloc(b->x, 2 * (size_t)d->n, sizeof *entries);
        memcpy(entries, d->entries, d->n * sizeof *entries);
        sort_keys(b->x, entries, entries + d->n, d->n);
    }
    jbuf_puts(b, "{");
    for (uint32_t i = 0; i < d->n; i++) {
        if (i)
            jbuf_add_str(b, style->item, 0, style->item->n);
        new_line(b, style, level + 1);
        dump_string(b, key_text(b->x, entries[i].key), style->ensure_ascii);
        jbuf_add_str(b, style->key, 0, style->key->n);
        dump(b, entries[i].value, style, level + 1);
    }
    if (d->n)
        new_line(b, style, level);
    jbuf_puts(b, "}");
}

static void dump(struct jbuf *b, struct jval v, const struct jjson_style *style, unsigned level)
{
    jinja_spend(b->x, 1);
    jinja_enter(b->x);
    if (v.type == J_STRING)
        dump_string(b, v.as.s, style->ensure_ascii);
    else if (v.type == J_NONE)
        jbuf_puts(b, "null");
    else if (v.type == J_BOOL)
        jbuf_puts(b, v.as.b ? "true" : "false");
    else if (v.type == J_FLOAT && (isnan(v.as.f) || isinf(v.as.f)))
        jbuf_puts(b, isnan(v.as.f) ? "NaN" : v.as.f < 0 ? "-Infinity" : "Infinity");
    else if (v.type == J_INT || v.type == J_FLOAT)
        jinja_repr(b, v);
    else if (v.type == J_LIST && v.as.list->kind <= JL_TUPLE)
        dump_list(b, v.as.list, style, level);
    else if (v.type == J_DICT)
        dump_dict(b, v.as.dict, style, level);
    else
        jinja_fail(b->x, ERR_INVALID, "object of type %s is not JSON serializable", jinja_type_name(v));
    jinja_leave(b->x);
}

void jinja_dump_json(struct jbuf *b, struct jval v, const struct jjson_style *style)
{
    dump(b, v, style, 0);
}
