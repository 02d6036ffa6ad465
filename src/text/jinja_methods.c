/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of Python's str that templates may call. Positions count code points.
 */
#include <string.h>

#include "text/jinja_impl.h"
#include "text/text_impl.h"

static const struct jstr *self(const struct jcall *c)
{
    return c->self.as.s;
}

/* An argument that may be absent or None. */
static const struct jstr *optional(struct jrun *x, const struct jcall *c, unsigned i)
{
    return c->has[i] && c->arg[i].type != J_NONE ? jcall_str(x, c, i) : NULL;
}

static struct jval str_upper(struct jrun *x, struct jcall *c)
{
    return jinja_upper(x, self(c));
}

static struct jval str_lower(struct jrun *x, struct jcall *c)
{
    return jinja_lower(x, self(c));
}

static struct jval str_capitalize(struct jrun *x, struct jcall *c)
{
    return jinja_capitalize(x, self(c));
}

/* Letters behind letters become small, others large. */
static struct jval str_title(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = self(c);
    struct jbuf b = {.x = x};
    bool inside = false;
    size_t len;
    uint32_t ch;
    for (size_t i = 0; i < s->n && (len = utf8_decode(s->s + i, s->n - i, &ch)) > 0; i += len) {
        const struct jstr *one = jinja_sub(x, s, i, len).as.s;
        one = inside ? jinja_lower(x, one).as.s : jinja_capitalize(x, one).as.s;
        jbuf_add_str(&b, one, 0, one->n);
        inside = junicode_cased(ch);
    }
    return jbuf_val(&b);
}

static struct jval str_swapcase(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = self(c);
    struct jbuf b = {.x = x};
    size_t len;
    uint32_t ch;
    for (size_t i = 0; i < s->n && (len = utf8_decode(s->s + i, s->n - i, &ch)) > 0; i += len) {
        const struct jstr *one = jinja_sub(x, s, i, len).as.s;
        one = junicode_lower(ch) != ch ? jinja_lower(x, one).as.s : jinja_upper(x, one).as.s;
        jbuf_add_str(&b, one, 0, one->n);
    }
    return jbuf_val(&b);
}

static struct jval str_strip(struct jrun *x, struct jcall *c)
{
    return jinja_strip(x, self(c), optional(x, c, 0), true, true);
}

static struct jval str_lstrip(struct jrun *x, struct jcall *c)
{
    return jinja_strip(x, self(c), optional(x, c, 0), true, false);
}

static struct jval str_rstrip(struct jrun *x, struct jcall *c)
{
    return jinja_strip(x, self(c), optional(x, c, 0), false, true);
}

static struct jval str_replace(struct jrun *x, struct jcall *c)
{
    return jinja_replace(x, self(c), jcall_str(x, c, 0), jcall_str(x, c, 1), jcall_int(x, c, 2, -1));
}

static bool has_affix(const struct jstr *s, const struct jstr *affix, bool end)
{
    return s->n >= affix->n && memcmp(s->s + (end ? s->n - affix->n : 0), affix->s, affix->n) == 0;
}

/* The part between two optional positions, arguments i and i + 1. *past: the first lies behind the end. */
static const struct jstr *part(struct jrun *x, struct jcall *c, unsigned i, size_t *offset, bool *past)
{
    const struct jstr *s = self(c);
    jint n = jstr_chars(s), from = jcall_int(x, c, i, 0), to = jcall_int(x, c, i + 1, n);
    from = from < 0 ? (from + n < 0 ? 0 : from + n) : from;
    to = to < 0 ? (to + n < 0 ? 0 : to + n) : to > n ? n : to;
    *past = from > n || from > to;
    *offset = *past ? s->n : jstr_offset(s, (uint32_t)from);
    size_t end = *past ? s->n : jstr_offset(s, (uint32_t)to);
    return jinja_sub(x, s, *offset, end - *offset).as.s;
}

static struct jval affix(struct jrun *x, struct jcall *c, bool end)
{
    size_t offset;
    bool past;
    const struct jstr *s = part(x, c, 1, &offset, &past);
    if (c->arg[0].type != J_LIST || c->arg[0].as.list->kind != JL_TUPLE)
        return jinja_bool(has_affix(s, jcall_str(x, c, 0), end) && !past);
    const struct jlist *l = c->arg[0].as.list;
    for (uint32_t i = 0; i < l->n; i++)
        if (!past && has_affix(s, jinja_as_str(x, l->items[i], "an element of the tuple"), end))
            return jinja_bool(true);
    return jinja_bool(false);
}

static struct jval str_startswith(struct jrun *x, struct jcall *c)
{
    return affix(x, c, false);
}

static struct jval str_endswith(struct jrun *x, struct jcall *c)
{
    return affix(x, c, true);
}

static struct jval str_removeprefix(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = self(c), *p = jcall_str(x, c, 0);
    return has_affix(s, p, false) ? jinja_sub(x, s, p->n, s->n - p->n) : c->self;
}

static struct jval str_removesuffix(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = self(c), *p = jcall_str(x, c, 0);
    return has_affix(s, p, true) ? jinja_sub(x, s, 0, s->n - p->n) : c->self;
}

static size_t find_last(const struct jstr *s, const struct jstr *what)
{
    if (what->n > s->n)
        return SIZE_MAX;
    for (size_t i = s->n - what->n + 1; i > 0; i--)
        if (memcmp(s->s + i - 1, what->s, what->n) == 0)
            return i - 1;
    return SIZE_MAX;
}

static jint position(struct jrun *x, struct jcall *c, bool last)
{
    size_t offset;
    bool past;
    const struct jstr *s = part(x, c, 1, &offset, &past), *what = jcall_str(x, c, 0);
    jinja_spend(x, last ? (uint64_t)s->n * (1 + what->n / 64) / 16 : s->n / 16);
    size_t at = past ? SIZE_MAX : last ? find_last(s, what) : jinja_find(s, what, 0);
    return at == SIZE_MAX ? -1 : (jint)jstr_chars(jinja_sub(x, self(c), 0, offset + at).as.s);
}

static struct jval str_find(struct jrun *x, struct jcall *c)
{
    return jinja_int(position(x, c, false));
}

static struct jval str_rfind(struct jrun *x, struct jcall *c)
{
    return jinja_int(position(x, c, true));
}

static struct jval found(struct jrun *x, jint at)
{
    if (at < 0)
        jinja_fail(x, ERR_INVALID, "substring not found");
    return jinja_int(at);
}

static struct jval str_index(struct jrun *x, struct jcall *c)
{
    return found(x, position(x, c, false));
}

static struct jval str_rindex(struct jrun *x, struct jcall *c)
{
    return found(x, position(x, c, true));
}

static struct jval str_count(struct jrun *x, struct jcall *c)
{
    size_t offset, at = 0;
    bool past;
    const struct jstr *s = part(x, c, 1, &offset, &past), *what = jcall_str(x, c, 0);
    jint n = 0;
    if (what->n == 0)
        return jinja_int(past ? 0 : (jint)jstr_chars(s) + 1);
    jinja_spend(x, s->n / 16);
    for (; (at = jinja_find(s, what, at)) != SIZE_MAX; at += what->n)
        n++;
    return jinja_int(n);
}

/* ---- splitting ---- */

static size_t skip_spaces(const struct jstr *s, size_t at)
{
    size_t len;
    uint32_t c;
    while (at < s->n && (len = utf8_decode(s->s + at, s->n - at, &c)) > 0 && junicode_space(c))
        at += len;
    return at;
}

static size_t skip_word(const struct jstr *s, size_t at)
{
    size_t len;
    uint32_t c;
    while (at < s->n && (len = utf8_decode(s->s + at, s->n - at, &c)) > 0 && !junicode_space(c))
        at += len;
    return at;
}

/* All words, as pairs of offsets: first of [i], behind the last of [i]. */
static struct jlist *split_spaces(struct jrun *x, const struct jstr *s, jint most)
{
    struct jlist *l = jlist_new(x, JL_LIST);
    for (size_t at = skip_spaces(s, 0); at < s->n;) {
        size_t end = l->n == most && most >= 0 ? s->n : skip_word(s, at);
        jlist_push(x, l, jinja_sub(x, s, at, end - at));
        at = skip_spaces(s, end);
    }
    return l;
}

static struct jlist *split_at(struct jrun *x, const struct jstr *s, const struct jstr *separator, jint most)
{
    struct jlist *l = jlist_new(x, JL_LIST);
    size_t from = 0;
    if (separator->n == 0)
        jinja_fail(x, ERR_INVALID, "empty separator");
    jinja_spend(x, s->n / 16);
    while (most < 0 || l->n < most) {
        size_t hit = jinja_find(s, separator, from);
        if (hit == SIZE_MAX)
            break;
        jlist_push(x, l, jinja_sub(x, s, from, hit - from));
        from = hit + separator->n;
    }
    jlist_push(x, l, jinja_sub(x, s, from, s->n - from));
    return l;
}

static struct jval str_split(struct jrun *x, struct jcall *c)
{
    const struct jstr *separator = optional(x, c, 0);
    jint most = jcall_int(x, c, 1, -1);
    return jlist_val(separator ? split_at(x, self(c), separator, most) : split_spaces(x, self(c), most));
}

/* From the end: split all, then join what was split too much at the beginning. */
static struct jval str_rsplit(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = self(c), *separator = optional(x, c, 0);
    jint most = jcall_int(x, c, 1, -1);
    struct jlist *all = separator ? split_at(x, s, separator, -1) : split_spaces(x, s, -1);
    if (most < 0 || all->n <= most + 1)
        return jlist_val(all);
    struct jlist *out = jlist_new(x, JL_LIST);
    uint32_t cut = (uint32_t)((jint)all->n - most) - 1;
    const struct jstr *last = all->items[cut].as.s;
    jlist_push(x, out, jinja_sub(x, s, 0, (size_t)(last->s - s->s) + last->n));
    for (uint32_t i = cut + 1; i < all->n; i++)
        jlist_push(x, out, all->items[i]);
    return jlist_val(out);
}

static struct jval str_splitlines(struct jrun *x, struct jcall *c)
{
    return jlist_val(jinja_splitlines(x, self(c), jcall_bool(c, 0, false)));
}

static struct jval three(struct jrun *x, struct jval a, struct jval b, struct jval d)
{
    struct jlist *l = jlist_new(x, JL_TUPLE);
    jlist_push(x, l, a);
    jlist_push(x, l, b);
    jlist_push(x, l, d);
    return jlist_val(l);
}

static struct jval partition(struct jrun *x, struct jcall *c, bool last)
{
    const struct jstr *s = self(c), *what = jcall_str(x, c, 0);
    if (what->n == 0)
        jinja_fail(x, ERR_INVALID, "empty separator");
    jinja_spend(x, last ? (uint64_t)s->n * (1 + what->n / 64) / 16 : s->n / 16);
    size_t at = last ? find_last(s, what) : jinja_find(s, what, 0);
    struct jval none = jinja_text(x, "");
    if (at == SIZE_MAX)
        return last ? three(x, none, none, c->self) : three(x, c->self, none, none);
    return three(x, jinja_sub(x, s, 0, at), c->arg[0], jinja_sub(x, s, at + what->n, s->n - at - what->n));
}

static struct jval str_partition(struct jrun *x, struct jcall *c)
{
    return partition(x, c, false);
}

static struct jval str_rpartition(struct jrun *x, struct jcall *c)
{
    return partition(x, c, true);
}

static struct jval str_join(struct jrun *x, struct jcall *c)
{
    struct jbuf b = {.x = x};
    const struct jlist *l = jinja_iterate(x, c->arg[0]);
    for (uint32_t i = 0; i < l->n; i++) {
        const struct jstr *s = jinja_as_str(x, l->items[i], "an element of what is joined");
        jinja_spend(x, 1);
        if (i)
            jbuf_add_str(&b, self(c), 0, self(c)->n);
        jbuf_add_str(&b, s, 0, s->n);
    }
    return jbuf_val(&b);
}

/* ---- padding ---- */

static void pad(struct jbuf *b, const struct jstr *fill, jint n)
{
    if (n > (jint)b->x->max_output)
        jinja_fail(b->x, ERR_LIMIT, "more padding than a text may have");
    for (jint i = 0; i < n; i++)
        jbuf_add_str(b, fill, 0, fill->n);
}

static struct jval justify(struct jrun *x, struct jcall *c, int side)
{
    const struct jstr *fill = c->has[1] ? jcall_str(x, c, 1) : jinja_text(x, " ").as.s;
    jint width = jinja_as_int(x, c->arg[0], "a width"), n = jstr_chars(self(c)),
         more = width > n ? width - n : 0;
    jint left = side < 0 ? 0 : side > 0 ? more : more / 2 + (more & width & 1);
    struct jbuf b = {.x = x};
    if (jstr_chars(fill) != 1)
        jinja_fail(x, ERR_INVALID, "the fill character must be exactly one character long");
    pad(&b, fill, left);
    jbuf_add_str(&b, self(c), 0, self(c)->n);
    pad(&b, fill, more - left);
    return jbuf_val(&b);
}

static struct jval str_ljust(struct jrun *x, struct jcall *c)
{
    return justify(x, c, -1);
}

static struct jval str_rjust(struct jrun *x, struct jcall *c)
{
    return justify(x, c, 1);
}

static struct jval str_center(struct jrun *x, struct jcall *c)
{
    return justify(x, c, 0);
}

static struct jval str_zfill(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = self(c);
    jint width = jinja_as_int(x, c->arg[0], "a width"), n = jstr_chars(s);
    bool sign = s->n && (s->s[0] == '-' || s->s[0] == '+');
    struct jbuf b = {.x = x};
    jbuf_add_str(&b, s, 0, sign);
    pad(&b, jinja_text(x, "0").as.s, width > n ? width - n : 0);
    jbuf_add_str(&b, s, sign, s->n - sign);
    return jbuf_val(&b);
}

/* ---- asking ---- */

static struct jval all_are(const struct jstr *s, bool (*is)(uint32_t c))
{
    size_t len;
    uint32_t c;
    for (size_t i = 0; i < s->n; i += len) {
        len = utf8_decode(s->s + i, s->n - i, &c);
        if (len == 0 || !is(c))
            return jinja_bool(false);
    }
    return jinja_bool(s->n > 0);
}

static bool is_alnum(uint32_t c)
{
    return char_is_number(c) || junicode_alpha(c);
}

static struct jval str_isdigit(struct jrun *x, struct jcall *c)
{
    (void)x;
    return all_are(self(c), char_is_decimal);
}

static struct jval str_isnumeric(struct jrun *x, struct jcall *c)
{
    (void)x;
    return all_are(self(c), char_is_number);
}

static struct jval str_isalpha(struct jrun *x, struct jcall *c)
{
    (void)x;
    return all_are(self(c), junicode_alpha);
}

static struct jval str_isalnum(struct jrun *x, struct jcall *c)
{
    (void)x;
    return all_are(self(c), is_alnum);
}

static struct jval str_isspace(struct jrun *x, struct jcall *c)
{
    (void)x;
    return all_are(self(c), junicode_space);
}

static struct jval str_isupper(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(jinja_is_cased(self(c), true));
}

static struct jval str_islower(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(jinja_is_cased(self(c), false));
}

static const struct jbuiltin methods[] = {
    {"capitalize", str_capitalize, "", 0},
    {"casefold", str_lower, "", 0},
    {"center", str_center, "width,fillchar", 1},
    {"count", str_count, "sub,start,end", 1},
    {"endswith", str_endswith, "suffix,start,end", 1},
    {"find", str_find, "sub,start,end", 1},
    {"format", jinja_str_format, "*", 0},
    {"index", str_index, "sub,start,end", 1},
    {"isalnum", str_isalnum, "", 0},
    {"isalpha", str_isalpha, "", 0},
    {"isdecimal", str_isdigit, "", 0},
    {"isdigit", str_isdigit, "", 0},
    {"islower", str_islower, "", 0},
    {"isnumeric", str_isnumeric, "", 0},
    {"isspace", str_isspace, "", 0},
    {"isupper", str_isupper, "", 0},
    {"join", str_join, "iterable", 1},
    {"ljust", str_ljust, "width,fillchar", 1},
    {"lower", str_lower, "", 0},
    {"lstrip", str_lstrip, "chars", 0},
    {"partition", str_partition, "sep", 1},
    {"removeprefix", str_removeprefix, "prefix", 1},
    {"removesuffix", str_removesuffix, "suffix", 1},
    {"replace", str_replace, "old,new,count", 2},
    {"rfind", str_rfind, "sub,start,end", 1},
    {"rindex", str_rindex, "sub,start,end", 1},
    {"rjust", str_rjust, "width,fillchar", 1},
    {"rpartition", str_rpartition, "sep", 1},
    {"rsplit", str_rsplit, "sep,maxsplit", 0},
    {"rstrip", str_rstrip, "chars", 0},
    {"split", str_split, "sep,maxsplit", 0},
    {"splitlines", str_splitlines, "keepends", 0},
    {"startswith", str_startswith, "prefix,start,end", 1},
    {"strip", str_strip, "chars", 0},
    {"swapcase", str_swapcase, "", 0},
    {"title", str_title, "", 0},
    {"upper", str_upper, "", 0},
    {"zfill", str_zfill, "width", 1},
};

const struct jbuiltin *jinja_find_string_method(const struct jstr *name)
{
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        if (jstr_is(name, methods[i].name))
            return &methods[i];
    return NULL;
}
