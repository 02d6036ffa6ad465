/* SPDX-License-Identifier: Apache-2.0
 *
 * "%s" % values and "{}".format(values). Flags, width and precision as in Python for s, r, d, i, x, X, o, f,
 * e, g and %; attributes and subscripts within fields are refused by name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_impl.h"

#define MAX_WIDTH 4096

struct format_spec {
    bool minus, plus, space, zero, alternate, comma;
    char align; /* '<', '>', '^', '=' or 0 */
    const struct jstr *fill;
    int width, precision; /* precision -1: none */
    char type;            /* 0: none */
};

static int read_number(struct jrun *x, const struct jstr *f, size_t *at)
{
    int n = 0;
    while (*at < f->n && f->s[*at] >= '0' && f->s[*at] <= '9') {
        n = n * 10 + (f->s[(*at)++] - '0');
        if (n > MAX_WIDTH)
            jinja_fail(x, ERR_LIMIT, "a width or precision of more than %d", MAX_WIDTH);
    }
    return n;
}

/* Text and its padding; number: zeros go behind the sign. */
static void put(struct jbuf *out, const struct jstr *s, const struct format_spec *spec, bool number)
{
    uint32_t n = jstr_chars(s);
    int more = spec->width > (int)n ? spec->width - (int)n : 0, left = 0;
    char align = spec->align ? spec->align : spec->zero && number ? '=' : number ? '>' : '<';
    size_t sign = align == '=' && s->n && (s->s[0] == '-' || s->s[0] == '+' || s->s[0] == ' ');
    if (align == '>' || align == '=')
        left = more;
    else if (align == '^')
        left = more / 2;
    jbuf_add_str(out, s, 0, sign);
    for (int i = 0; i < more; i++) {
        if (i == left)
            jbuf_add_str(out, s, sign, s->n - sign);
        if (spec->fill)
            jbuf_add_str(out, spec->fill, 0, spec->fill->n);
        else
            jbuf_add(out, spec->zero && number ? "0" : " ", 1, false);
    }
    if (left == more)
        jbuf_add_str(out, s, sign, s->n - sign);
}

static void add_commas(struct jbuf *b, const char *text)
{
    size_t sign = text[0] == '-' || text[0] == '+' || text[0] == ' ',
           whole = strspn(text + sign, "0123456789");
    jbuf_add(b, text, sign, false);
    for (size_t i = 0; i < whole; i++) {
        if (i && (whole - i) % 3 == 0)
            jbuf_puts(b, ",");
        jbuf_add(b, text + sign + i, 1, false);
    }
    jbuf_puts(b, text + sign + whole);
}

static void put_integer(struct jrun *x, struct jbuf *out, jint i, const struct format_spec *spec)
{
    struct jbuf b = {.x = x}, with = {.x = x};
    char text[64];
    if (i >= 0 && (spec->plus || spec->space))
        jbuf_puts(&b, spec->plus ? "+" : " ");
    if (spec->type == 'x' || spec->type == 'X' || spec->type == 'o') {
        if (i > INT64_MAX || i < -INT64_MAX)
            jinja_fail(x, ERR_LIMIT, "an integer of more than 63 bits as %%%c", spec->type);
        unsigned long long u = (unsigned long long)(i < 0 ? -i : i);
        const char *prefix = !spec->alternate    ? ""
                             : spec->type == 'o' ? "0o"
                             : spec->type == 'x' ? "0x"
                                                 : "0X";
        snprintf(text, sizeof text,
                 spec->type == 'x'   ? "%s%s%llx"
                 : spec->type == 'X' ? "%s%s%llX"
                                     : "%s%s%llo",
                 i < 0 ? "-" : "", prefix, u);
        jbuf_puts(&b, text);
    } else {
        jinja_print_int(&b, i);
    }
    const struct jstr *s = jbuf_str(&b);
    if (spec->comma) {
        jbuf_add(&b, "", 1, false); /* a terminator */
        add_commas(&with, b.s);
        s = jbuf_str(&with);
    }
    put(out, s, spec, true);
}

static void put_float(struct jrun *x, struct jbuf *out, double f, const struct format_spec *spec)
{
    struct jbuf b = {.x = x};
    bool percent = spec->type == '%';
    char form[16], *text = jinja_alloc(x, 512 + MAX_WIDTH, 1);
    snprintf(form, sizeof form, "%%%s%s.*%c",
             spec->plus    ? "+"
             : spec->space ? " "
                           : "",
             spec->alternate ? "#" : "",
             percent      ? 'f'
             : spec->type ? spec->type
                          : 'g');
    snprintf(text, 511 + MAX_WIDTH, form, spec->precision < 0 ? 6 : spec->precision, percent ? f * 100 : f);
    if (spec->comma)
        add_commas(&b, text);
    else
        jbuf_puts(&b, text);
    if (percent)
        jbuf_puts(&b, "%");
    put(out, jbuf_str(&b), spec, true);
}

static void put_text(struct jrun *x, struct jbuf *out, const struct jstr *s, const struct format_spec *spec)
{
    if (spec->precision >= 0 && jstr_chars(s) > (uint32_t)spec->precision)
        s = jinja_sub(x, s, 0, jstr_offset(s, (uint32_t)spec->precision)).as.s;
    put(out, s, spec, false);
}

static jint whole_number(struct jrun *x, struct jval v)
{
    if (v.type == J_FLOAT && v.as.f > -1e18 && v.as.f < 1e18)
        return (jint)v.as.f;
    return jinja_as_int(x, v, "what %d formats");
}

static double real_number(struct jrun *x, struct jval v)
{
    return jinja_is_number(v) ? jinja_as_float(v)
                              : (double)jinja_as_int(x, v, "what is formatted as a number");
}

/* ---- % ---- */

static const struct jstr *repr_of(struct jrun *x, struct jval v)
{
    struct jbuf b = {.x = x};
    jinja_repr(&b, v);
    return jbuf_str(&b);
}

static void put_percent(struct jrun *x, struct jbuf *out, struct jval v, struct format_spec *spec)
{
    switch (spec->type) {
    case 's':
    case 'r':
        spec->align = spec->minus ? '<' : '>';
        put_text(x, out, spec->type == 's' ? jinja_to_str(x, v) : repr_of(x, v), spec);
        return;
    case 'd':
    case 'i':
    case 'u':
        put_integer(x, out, whole_number(x, v), spec);
        return;
    case 'x':
    case 'X':
    case 'o':
        put_integer(x, out, jinja_as_int(x, v, "what is formatted"), spec);
        return;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        put_float(x, out, real_number(x, v), spec);
        return;
    default:
        jinja_fail(x, ERR_UNSUPPORTED, "the format %%%c is not implemented",
                   spec->type >= 32 && spec->type < 127 ? spec->type : '?');
    }
}

static void read_flags(const struct jstr *f, size_t *at, struct format_spec *spec)
{
    for (; *at < f->n && f->s[*at] && strchr("-+ 0#", f->s[*at]); (*at)++) {
        spec->minus = spec->minus || f->s[*at] == '-';
        spec->plus = spec->plus || f->s[*at] == '+';
        spec->space = spec->space || f->s[*at] == ' ';
        spec->zero = spec->zero || f->s[*at] == '0';
        spec->alternate = spec->alternate || f->s[*at] == '#';
    }
    if (spec->minus) {
        spec->align = '<';
        spec->zero = false;
    }
}

static struct jval named(struct jrun *x, const struct jstr *f, size_t *at, struct jval args)
{
    const char *end = memchr(f->s + *at, ')', f->n - *at);
    if (args.type != J_DICT || end == NULL)
        jinja_fail(x, ERR_INVALID, "format requires a mapping");
    size_t n = (size_t)(end - f->s) - *at - 1;
    const struct jval *v = jdict_get(x, args.as.dict, jinja_sub(x, f, *at + 1, n));
    if (v == NULL)
        jinja_fail(x, ERR_INVALID, "the format names a key that is not there");
    *at += n + 2;
    return *v;
}

struct jval jinja_percent(struct jrun *x, const struct jstr *f, struct jval args)
{
    struct jbuf out = {.x = x};
    bool tuple = args.type == J_LIST && args.as.list->kind == JL_TUPLE;
    uint32_t used = 0, n = tuple ? args.as.list->n : 1;
    for (size_t i = 0; i < f->n; i++) {
        struct format_spec spec = {.precision = -1};
        struct jval v = jinja_none();
        bool by_name = false;
        if (f->s[i] != '%') {
            jbuf_add_str(&out, f, i, 1);
            continue;
        }
        i++;
        if (i < f->n && f->s[i] == '(') {
            v = named(x, f, &i, args);
            by_name = true;
        }
        read_flags(f, &i, &spec);
        spec.width = read_number(x, f, &i);
        if (i < f->n && f->s[i] == '.') {
            i++;
            spec.precision = read_number(x, f, &i);
        }
        if (i >= f->n)
            jinja_fail(x, ERR_INVALID, "incomplete format");
        spec.type = f->s[i];
        if (spec.type == '%') {
            jbuf_puts(&out, "%");
            continue;
        }
        if (!by_name && used >= n)
            jinja_fail(x, ERR_INVALID, "not enough arguments for format string");
        put_percent(x, &out, by_name ? v : tuple ? args.as.list->items[used] : args, &spec);
        used = by_name ? n : used + 1; /* a named value is the last: none without a name may follow */
    }
    if (used < n && args.type != J_DICT && !(args.type == J_LIST && !tuple))
        jinja_fail(x, ERR_INVALID, "not all arguments converted during string formatting");
    return jbuf_val(&out);
}

/* ---- str.format ---- */

/* [[fill]align][sign][#][0][width][,][.precision][type], the whole of s[at..end) */
static struct format_spec read_spec(struct jrun *x, const struct jstr *f, size_t at, size_t end)
{
    struct format_spec spec = {.precision = -1};
    size_t len = 1;
    while (at + len < end && ((unsigned char)f->s[at + len] & 0xC0) == 0x80)
        len++;
    if (at + len < end && strchr("<>^=", f->s[at + len]) && f->s[at + len]) {
        spec.fill = jinja_sub(x, f, at, len).as.s;
        spec.align = f->s[at + len];
        at += len + 1;
    } else if (at < end && f->s[at] && strchr("<>^=", f->s[at])) {
        spec.align = f->s[at++];
    }
    if (at < end && f->s[at] && strchr("+- ", f->s[at])) {
        spec.plus = f->s[at] == '+';
        spec.space = f->s[at++] == ' ';
    }
    if (at < end && f->s[at] == '#') {
        spec.alternate = true;
        at++;
    }
    if (at < end && f->s[at] == '0') {
        spec.zero = true;
        spec.fill = spec.fill ? spec.fill : jinja_text(x, "0").as.s; /* behind text, too */
        at++;
    }
    spec.width = read_number(x, f, &at);
    if (at < end && f->s[at] == ',') {
        spec.comma = true;
        at++;
    }
    if (at < end && f->s[at] == '.') {
        at++;
        spec.precision = read_number(x, f, &at);
    }
    if (at < end)
        spec.type = f->s[at++];
    if (at != end || (spec.type && !strchr("sdxXoeEfFgG%", spec.type)))
        jinja_fail(x, ERR_UNSUPPORTED, "a format specification is not implemented");
    return spec;
}

/* plain: nothing is said of how. Only text and numbers take more than that. */
static void put_field(struct jrun *x, struct jbuf *out, struct jval v, bool plain,
                      const struct format_spec *spec)
{
    if (!plain && v.type != J_STRING && v.type != J_BOOL && !jinja_is_number(v))
        jinja_fail(x, ERR_INVALID, "'%s' is formatted as it is, or not at all", jinja_type_name(v));
    if (v.type == J_STRING &&
        (spec->plus || spec->space || spec->alternate || spec->comma || spec->align == '='))
        jinja_fail(x, ERR_INVALID, "a format of numbers for a text");
    bool text = v.type == J_STRING ? spec->type == 0 || spec->type == 's' : spec->type == 0;
    if (v.type == J_BOOL && !plain)
        v = jinja_int(v.as.b);
    if (v.type == J_INT && (spec->type == 0 || strchr("dxXo", spec->type)))
        put_integer(x, out, v.as.i, spec);
    else if (jinja_is_number(v) && spec->type && strchr("eEfFgG%", spec->type))
        put_float(x, out, jinja_as_float(v), spec);
    else if (v.type == J_FLOAT && spec->type == 0 && spec->precision < 0)
        put(out, jinja_to_str(x, v), spec, true);
    else if (v.type == J_FLOAT && spec->type == 0)
        put_float(x, out, v.as.f, spec);
    else if (text)
        put_text(x, out, jinja_to_str(x, v), spec);
    else
        jinja_fail(x, ERR_INVALID, "the format %c does not suit '%s'", spec->type, jinja_type_name(v));
}

static struct jval field_value(struct jrun *x, const struct jcall *c, const struct jstr *name,
                               uint32_t *automatic)
{
    uint32_t index = 0;
    bool digits = name->n > 0 && name->n < 6;
    for (uint32_t i = 0; i < name->n; i++) {
        if (name->s[i] == '.' || name->s[i] == '[')
            jinja_fail(x, ERR_UNSUPPORTED, "format fields with attributes are not implemented");
        digits = digits && name->s[i] >= '0' && name->s[i] <= '9';
        index = digits ? index * 10 + (uint32_t)(name->s[i] - '0') : 0;
    }
    if (name->n == 0)
        index = (*automatic)++;
    if (name->n == 0 || digits) {
        if (index >= c->n)
            jinja_fail(x, ERR_INVALID, "replacement index %u out of range for positional args tuple", index);
        return c->args[index];
    }
    for (uint32_t i = 0; i < c->n_keys; i++)
        if (jstr_equal(c->keys[i], name))
            return c->values[i];
    jinja_fail(x, ERR_INVALID, "a format field names an argument that is not there");
}

/* The field at f[i] == '{'; returns the position of its "}". */
static size_t put_replacement(struct jrun *x, struct jcall *c, const struct jstr *f, size_t i,
                              uint32_t *automatic, struct jbuf *out)
{
    const char *close = memchr(f->s + i, '}', f->n - i), *nested = memchr(f->s + i + 1, '{', f->n - i - 1);
    if (close == NULL)
        jinja_fail(x, ERR_INVALID, "expected '}' before end of string");
    if (nested && nested < close)
        jinja_fail(x, ERR_UNSUPPORTED, "format fields within format fields are not implemented");
    size_t end = (size_t)(close - f->s), name = i + 1;
    while (name < end && f->s[name] != '!' && f->s[name] != ':')
        name++;
    struct jval v = field_value(x, c, jinja_sub(x, f, i + 1, name - i - 1).as.s, automatic);
    if (name < end && f->s[name] == '!') {
        char how = name + 1 < end ? f->s[name + 1] : '\0';
        if (how != 'r' && how != 's')
            jinja_fail(x, ERR_UNSUPPORTED, "this conversion of a format field is not implemented");
        v = jinja_str(how == 'r' ? repr_of(x, v) : jinja_to_str(x, v));
        name += 2;
    }
    struct format_spec spec = read_spec(x, f, name < end ? name + 1 : end, end);
    put_field(x, out, v, name + 1 >= end, &spec);
    return end;
}

struct jval jinja_str_format(struct jrun *x, struct jcall *c)
{
    const struct jstr *f = c->self.as.s;
    struct jbuf out = {.x = x};
    uint32_t automatic = 0;
    for (size_t i = 0; i < f->n; i++) {
        bool doubled = i + 1 < f->n && f->s[i + 1] == f->s[i];
        if (f->s[i] == '}' && !doubled)
            jinja_fail(x, ERR_INVALID, "single '}' encountered in format string");
        if (f->s[i] == '{' && !doubled)
            i = put_replacement(x, c, f, i, &automatic, &out);
        else
            jbuf_add_str(&out, f, i, 1);
        i += doubled && (f->s[i] == '{' || f->s[i] == '}');
    }
    return jbuf_val(&out);
}
