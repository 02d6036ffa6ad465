/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters on one value (text, numbers, JSON), and the table of all filters. What a filter refuses in Python
 * it refuses here.
 */
#include "text/jinja_filters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/text_impl.h"

static const struct jbuiltin filters[] = {
#define X(name, function, params, required) {name, function, params, required},
#include "text/jinja_filters.def"
#undef X
};

const struct jbuiltin *jinja_find_filter(const char *name, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(filters); i++)
        if (strlen(filters[i].name) == n && memcmp(filters[i].name, name, n) == 0)
            return &filters[i];
    return NULL;
}

static struct jval mark_safe(struct jrun *x, const struct jstr *s)
{
    struct jstr *safe = jinja_alloc(x, 1, sizeof *safe);
    *safe = *s;
    safe->safe = true;
    return jinja_str(safe);
}

/* ---- text ---- */

struct jval filter_string(struct jrun *x, struct jcall *c)
{
    return jinja_str(jinja_to_str(x, c->self));
}

struct jval filter_upper(struct jrun *x, struct jcall *c)
{
    return jinja_upper(x, jinja_to_str(x, c->self));
}

struct jval filter_lower(struct jrun *x, struct jcall *c)
{
    return jinja_lower(x, jinja_to_str(x, c->self));
}

struct jval filter_capitalize(struct jrun *x, struct jcall *c)
{
    return jinja_capitalize(x, jinja_to_str(x, c->self));
}

struct jval filter_trim(struct jrun *x, struct jcall *c)
{
    const struct jstr *chars = c->has[0] && c->arg[0].type != J_NONE ? jcall_str(x, c, 0) : NULL;
    return jinja_strip(x, jinja_to_str(x, c->self), chars, true, true);
}

struct jval filter_replace(struct jrun *x, struct jcall *c)
{
    jint count = jcall_int(x, c, 2, -1);
    return jinja_replace(x, jinja_to_str(x, c->self), jinja_to_str(x, c->arg[0]), jinja_to_str(x, c->arg[1]),
                         count);
}

struct jval filter_safe(struct jrun *x, struct jcall *c)
{
    return mark_safe(x, jinja_to_str(x, c->self));
}

struct jval filter_escape(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = jinja_to_str(x, c->self);
    return s->safe ? jinja_str(s) : jinja_escape(x, s);
}

struct jval filter_forceescape(struct jrun *x, struct jcall *c)
{
    return jinja_escape(x, jinja_to_str(x, c->self));
}

/* A new word begins behind white space, "-" and opening brackets. */
struct jval filter_title(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = jinja_to_str(x, c->self);
    struct jbuf b = {.x = x};
    size_t from = 0, len;
    uint32_t ch;
    for (size_t i = 0; i <= s->n; i += len) {
        len = i < s->n ? utf8_decode(s->s + i, s->n - i, &ch) : 1;
        bool cut = i == s->n || junicode_space(ch) || (ch < 128 && strchr("-({[<", (int)ch) != NULL && ch);
        if (!cut)
            continue;
        const struct jstr *word = jinja_capitalize(x, jinja_sub(x, s, from, i - from).as.s).as.s;
        jbuf_add_str(&b, word, 0, word->n);
        if (i < s->n)
            jbuf_add_str(&b, s, i, len);
        from = i + len;
    }
    return jbuf_val(&b);
}

static void add_line(struct jbuf *b, const struct jstr *indent, const struct jstr *line, bool indented)
{
    if (indented)
        jbuf_add_str(b, indent, 0, indent->n);
    jbuf_add_str(b, line, 0, line->n);
}

static const struct jstr *spaces(struct jrun *x, jint n)
{
    struct jbuf b = {.x = x};
    if (n > (jint)x->max_output)
        jinja_fail(x, ERR_LIMIT, "more spaces than a text may have");
    for (jint i = 0; i < n; i++)
        jbuf_add(&b, " ", 1, false);
    return jbuf_str(&b);
}

struct jval filter_indent(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = jinja_as_str(x, c->self, "what indent gets");
    const struct jstr *indent =
        c->has[0] && c->arg[0].type == J_STRING ? c->arg[0].as.s : spaces(x, jcall_int(x, c, 0, 4));
    bool first = jcall_bool(c, 1, false), blank = jcall_bool(c, 2, false);
    struct jbuf b = {.x = x}, whole = {.x = x};
    jbuf_add_str(&whole, s, 0, s->n);
    jbuf_puts(&whole, "\n"); /* as the reference: a last line break stays */
    const struct jlist *lines = jinja_splitlines(x, jbuf_str(&whole), false);
    for (uint32_t i = 0; i < lines->n; i++) {
        const struct jstr *line = lines->items[i].as.s;
        if (i)
            jbuf_puts(&b, "\n");
        add_line(&b, indent, line, i == 0 ? first : blank || line->n > 0);
    }
    return jbuf_val(&b);
}

struct jval filter_center(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = jinja_to_str(x, c->self);
    struct jbuf b = {.x = x};
    jint width = jcall_int(x, c, 0, 80), n = jstr_chars(s), pad = width > n ? width - n : 0;
    jint left = pad / 2 + (pad & width & 1);
    const struct jstr *before = spaces(x, left), *after = spaces(x, pad - left);
    jbuf_add_str(&b, before, 0, before->n);
    jbuf_add_str(&b, s, 0, s->n);
    jbuf_add_str(&b, after, 0, after->n);
    return jbuf_val(&b);
}

struct jval filter_truncate(struct jrun *x, struct jcall *c)
{
    const struct jstr *end = c->has[2] ? jcall_str(x, c, 2) : jinja_text(x, "...").as.s;
    jint length = jcall_int(x, c, 0, 255), leeway = jcall_int(x, c, 3, 5), tail = jstr_chars(end);
    if (length < tail || leeway < 0)
        jinja_fail(x, ERR_INVALID, "truncate: the length is less than that of what is put at the end");
    if (jinja_length(x, c->self) <= length + leeway)
        return c->self;
    const struct jstr *s = jinja_as_str(x, c->self, "what truncate cuts");
    size_t cut = jstr_offset(s, (uint32_t)(length - tail));
    if (!jcall_bool(c, 1, false)) {
        const char *space = memrchr(s->s, ' ', cut);
        cut = space ? (size_t)(space - s->s) : cut;
    }
    struct jbuf b = {.x = x};
    jbuf_add_str(&b, s, 0, cut);
    jbuf_add_str(&b, end, 0, end->n);
    return jbuf_val(&b);
}

struct jval filter_wordcount(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = jinja_to_str(x, c->self);
    jint n = 0;
    bool word = false;
    size_t len;
    uint32_t ch;
    for (size_t i = 0; i < s->n && (len = utf8_decode(s->s + i, s->n - i, &ch)) > 0; i += len) {
        bool is = junicode_alpha(ch) || ch == '_' || char_is_number(ch);
        n += is && !word;
        word = is;
    }
    return jinja_int(n);
}

struct jval filter_format(struct jrun *x, struct jcall *c)
{
    const struct jstr *f = jinja_to_str(x, c->self);
    if (c->n && c->n_keys)
        jinja_fail(x, ERR_INVALID, "format: positional and keyword arguments cannot be mixed");
    if (c->n_keys == 0) {
        struct jlist *l = jlist_new(x, JL_TUPLE);
        for (uint32_t i = 0; i < c->n; i++)
            jlist_push(x, l, c->args[i]);
        return jinja_percent(x, f, jlist_val(l));
    }
    struct jdict *d = jdict_new(x);
    for (uint32_t i = 0; i < c->n_keys; i++)
        jdict_set(x, d, jinja_str(c->keys[i]), c->values[i]);
    return jinja_percent(x, f, (struct jval){.type = J_DICT, .as.dict = d});
}

/* ---- numbers ---- */

struct jval filter_abs(struct jrun *x, struct jcall *c)
{
    if (c->self.type == J_FLOAT)
        return jinja_float(fabs(c->self.as.f));
    jint i = jinja_as_int(x, c->self, "what abs gets");
    return i < 0 ? jinja_unary(x, OP_NEG, c->self) : jinja_unary(x, OP_POS, c->self);
}

static bool parse_int(const struct jstr *s, jint base, jint *out)
{
    jint v = 0;
    size_t i = 0, n = s->n;
    bool negative = false, digit = false;
    while (i < n && junicode_space((unsigned char)s->s[i]))
        i++;
    while (n > i && junicode_space((unsigned char)s->s[n - 1]))
        n--;
    if (i < n && (s->s[i] == '-' || s->s[i] == '+'))
        negative = s->s[i++] == '-';
    if (i + 2 < n && s->s[i] == '0') {
        char mark = (char)(s->s[i + 1] | 32);
        if ((mark == 'x' && base == 16) || (mark == 'o' && base == 8) || (mark == 'b' && base == 2))
            i += 2;
    }
    for (; i < n; i++) {
        char ch = s->s[i];
        int d = ch >= '0' && ch <= '9'                 ? ch - '0'
                : (ch | 32) >= 'a' && (ch | 32) <= 'z' ? (ch | 32) - 'a' + 10
                                                       : 99;
        if (ch == '_' && digit && i + 1 < n) {
            digit = false;
            continue;
        }
        if (d >= base || __builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, (jint)d, &v))
            return false;
        digit = true;
    }
    *out = negative ? -v : v;
    return digit;
}

static bool is_digit(const struct jstr *s, uint32_t i)
{
    return i < s->n && s->s[i] >= '0' && s->s[i] <= '9';
}

/* "_" only between digits, as in Python. */
static bool parse_float(struct jrun *x, const struct jstr *text, double *out)
{
    const struct jstr *s = jinja_strip(x, text, NULL, true, true).as.s;
    char copy[128], *end;
    size_t n = 0;
    if (s->n == 0 || s->n >= sizeof copy)
        return false;
    for (uint32_t i = 0; i < s->n; i++) {
        if (!strchr("0123456789+-.eE_infatyINFATY", s->s[i]) || s->s[i] == '\0')
            return false;
        if (s->s[i] != '_')
            copy[n++] = s->s[i];
        else if (i == 0 || !is_digit(s, i - 1) || !is_digit(s, i + 1))
            return false;
    }
    copy[n] = '\0';
    *out = strtod(copy, &end);
    return n > 0 && *end == '\0';
}

static bool float_to_int(double f, jint *out)
{
    if (!(fabs(f) < 1e38))
        return false;
    *out = (jint)f;
    return true;
}

struct jval filter_int(struct jrun *x, struct jcall *c)
{
    jint v = 0, base = jcall_int(x, c, 1, 10);
    double f = 0;
    struct jval fallback = c->has[0] ? c->arg[0] : jinja_int(0);
    if (base < 2 || base > 36)
        jinja_fail(x, ERR_INVALID, "int: the base must be from 2 to 36");
    if (c->self.type == J_INT || c->self.type == J_BOOL)
        return jinja_int(jinja_as_int(x, c->self, ""));
    if (c->self.type == J_FLOAT)
        return float_to_int(c->self.as.f, &v) ? jinja_int(v) : fallback;
    if (c->self.type == J_UNDEFINED)
        jinja_fail_undefined(x, c->self);
    if (c->self.type != J_STRING)
        return fallback;
    if (parse_int(c->self.as.s, base, &v))
        return jinja_int(v);
    return parse_float(x, c->self.as.s, &f) && float_to_int(f, &v) ? jinja_int(v) : fallback;
}

struct jval filter_float(struct jrun *x, struct jcall *c)
{
    double f = 0;
    if (jinja_is_number(c->self))
        return jinja_float(jinja_as_float(c->self));
    if (c->self.type == J_UNDEFINED)
        jinja_fail_undefined(x, c->self);
    if (c->self.type == J_STRING && parse_float(x, c->self.as.s, &f))
        return jinja_float(f);
    return c->has[0] ? c->arg[0] : jinja_float(0);
}

/* Python rounds the decimal value, halves to even: so does printf. */
static double round_common(double f, int precision)
{
    char text[400];
    if (precision < 0 || precision > 300 || !isfinite(f))
        return precision < 0 ? rint(f / pow(10, -precision)) * pow(10, -precision) : f;
    int n = snprintf(text, sizeof text, "%.*f", precision > 30 ? 30 : precision, f);
    return n < (int)sizeof text ? strtod(text, NULL) : f;
}

struct jval filter_round(struct jrun *x, struct jcall *c)
{
    jint precision = jcall_int(x, c, 0, 0);
    const struct jstr *method = c->has[1] ? jcall_str(x, c, 1) : jinja_text(x, "common").as.s;
    if (!jinja_is_number(c->self))
        jinja_as_int(x, c->self, "what round gets");
    if (precision > 300 || precision < -300)
        jinja_fail(x, ERR_LIMIT, "round: a precision beyond 300");
    double f = jinja_as_float(c->self), scale = pow(10, (double)precision);
    if (jstr_is(method, "common")) {
        if (c->self.type != J_FLOAT && precision >= 0)
            return jinja_int(jinja_as_int(x, c->self, ""));
        double r = round_common(f, (int)precision);
        jint i;
        return c->self.type != J_FLOAT && float_to_int(r, &i) ? jinja_int(i) : jinja_float(r);
    }
    if (!jstr_is(method, "ceil") && !jstr_is(method, "floor"))
        jinja_fail(x, ERR_INVALID, "round: method must be common, ceil or floor");
    f = jstr_is(method, "ceil") ? ceil(f * scale) : floor(f * scale);
    return jinja_float((f + 0.0) / scale); /* Python's are integers, which have no -0 */
}

/* ---- others ---- */

struct jval filter_default(struct jrun *x, struct jcall *c)
{
    bool absent = c->self.type == J_UNDEFINED || (jcall_bool(c, 1, false) && !jinja_truth(c->self));
    return !absent ? c->self : c->has[0] ? c->arg[0] : jinja_text(x, "");
}

struct jval filter_attr(struct jrun *x, struct jcall *c)
{
    const struct jstr *name = jcall_str(x, c, 0);
    if (c->self.type == J_DICT) /* attributes only, no keys */
        return jinja_method(x, c->self, name);
    return jinja_attr(x, c->self, name);
}

static const struct jstr *separator(struct jrun *x, struct jval v, uint32_t i, const char *fallback)
{
    if (v.type == J_NONE || v.type == J_UNDEFINED)
        return jinja_text(x, fallback).as.s;
    const struct jlist *l = jinja_iterate(x, v);
    if (l->n != 2)
        jinja_fail(x, ERR_INVALID, "tojson: separators must be a pair");
    return jinja_as_str(x, l->items[i], "a separator");
}

struct jval filter_tojson(struct jrun *x, struct jcall *c)
{
    struct jbuf b = {.x = x};
    struct jjson_style style = {.ensure_ascii = jcall_bool(c, 0, false),
                                .sort_keys = jcall_bool(c, 3, false)};
    if (c->has[1] && c->arg[1].type != J_NONE)
        style.indent = c->arg[1].type == J_STRING ? c->arg[1].as.s
                                                  : spaces(x, jinja_as_int(x, c->arg[1], "tojson: indent"));
    struct jval separators = c->has[2] ? c->arg[2] : jinja_none();
    style.item = separator(x, separators, 0, style.indent ? "," : ", ");
    style.key = separator(x, separators, 1, ": ");
    jinja_dump_json(&b, c->self, &style);
    return jbuf_val(&b);
}
