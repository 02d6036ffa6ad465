/* SPDX-License-Identifier: Apache-2.0
 *
 * Strings of a rendering: immutable UTF-8 bytes that remember which of them were written by somebody who is
 * not trusted, a builder that keeps that true, and the work on strings that methods and filters share.
 * Indices of templates count code points, as Python's do; everything here counts bytes unless it says so.
 */
#include <string.h>

#include "text/jinja_impl.h"

/* ---- builder ---- */

static void grow(struct jbuf *b, size_t more)
{
    size_t need = b->n + more;
    if (need > b->x->max_output)
        jinja_fail(b->x, ERR_LIMIT, "a text of more than %zu bytes", b->x->max_output);
    if (need <= b->capacity)
        return;
    size_t capacity = b->capacity ? 2 * b->capacity : 64;
    while (capacity < need)
        capacity *= 2;
    char *s = jinja_alloc(b->x, capacity, 1);
    if (b->n)
        memcpy(s, b->s, b->n);
    if (b->marks) {
        uint8_t *marks = jinja_alloc(b->x, capacity, 1);
        memcpy(marks, b->marks, b->n);
        b->marks = marks;
    }
    b->s = s;
    b->capacity = capacity;
}

/* From here on every byte has its own mark. */
static void split_marks(struct jbuf *b)
{
    if (b->marks)
        return;
    b->marks = jinja_alloc(b->x, b->capacity, 1);
    memset(b->marks, b->marked, b->n);
}

void jbuf_add(struct jbuf *b, const char *s, size_t n, bool marked)
{
    if (n == 0)
        return;
    grow(b, n);
    if (b->n == 0 && b->marks == NULL)
        b->marked = marked;
    if (marked != b->marked && b->marks == NULL)
        split_marks(b);
    memcpy(b->s + b->n, s, n);
    if (b->marks)
        memset(b->marks + b->n, marked, n);
    b->n += n;
}

void jbuf_puts(struct jbuf *b, const char *s)
{
    jbuf_add(b, s, strlen(s), false);
}

void jbuf_add_str(struct jbuf *b, const struct jstr *s, size_t from, size_t n)
{
    if (s->marks == NULL || n == 0) {
        jbuf_add(b, s->s + from, n, s->marked);
        return;
    }
    grow(b, n);
    split_marks(b);
    memcpy(b->s + b->n, s->s + from, n);
    memcpy(b->marks + b->n, s->marks + from, n);
    b->n += n;
}

void jbuf_char(struct jbuf *b, uint32_t c, bool marked)
{
    char text[4];
    jbuf_add(b, text, utf8_encode(c, text), marked);
}

const struct jstr *jbuf_str(struct jbuf *b)
{
    struct jstr *s = jinja_alloc(b->x, 1, sizeof *s);
    *s = (struct jstr){.s = b->n ? b->s : "",
                       .marks = b->marks,
                       .n = (uint32_t)b->n,
                       .chars = UINT32_MAX,
                       .marked = b->marked};
    return s;
}

struct jval jbuf_val(struct jbuf *b)
{
    return jinja_str(jbuf_str(b));
}

struct jval jinja_text(struct jrun *x, const char *s)
{
    struct jbuf b = {.x = x};
    jbuf_puts(&b, s);
    return jbuf_val(&b);
}

struct jval jinja_sub(struct jrun *x, const struct jstr *s, size_t from, size_t n)
{
    if (n == s->n)
        return jinja_str(s);
    struct jstr *part = jinja_alloc(x, 1, sizeof *part);
    *part = (struct jstr){.s = s->s + from,
                          .marks = s->marks ? s->marks + from : NULL,
                          .n = (uint32_t)n,
                          .chars = UINT32_MAX,
                          .marked = s->marked,
                          .safe = s->safe};
    if (s->chars == s->n)
        part->chars = (uint32_t)n; /* ASCII */
    return jinja_str(part);
}

/* ---- measuring, comparing ---- */

/* Not kept: a string of the template is shared by threads. */
uint32_t jstr_chars(const struct jstr *s)
{
    uint32_t n = 0;
    if (s->chars != UINT32_MAX)
        return s->chars;
    for (uint32_t i = 0; i < s->n; i++)
        n += ((unsigned char)s->s[i] & 0xC0) != 0x80;
    return n;
}

size_t jstr_offset(const struct jstr *s, uint32_t chars)
{
    size_t at = 0;
    if (s->chars == s->n)
        return chars < s->n ? chars : s->n;
    while (at < s->n && chars > 0) {
        at++;
        while (at < s->n && ((unsigned char)s->s[at] & 0xC0) == 0x80)
            at++;
        chars--;
    }
    return at;
}

bool jstr_is(const struct jstr *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->s, text, s->n) == 0;
}

bool jstr_equal(const struct jstr *a, const struct jstr *b)
{
    return a->n == b->n && memcmp(a->s, b->s, a->n) == 0;
}

/* The order of UTF-8 bytes is that of code points. */
int jstr_compare(const struct jstr *a, const struct jstr *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int c = memcmp(a->s, b->s, n);
    return c ? (c < 0 ? -1 : 1) : a->n < b->n ? -1 : a->n > b->n;
}

size_t jinja_find(const struct jstr *s, const struct jstr *what, size_t from)
{
    if (from > s->n)
        return SIZE_MAX;
    if (what->n == 0)
        return from;
    const char *hit = memmem(s->s + from, s->n - from, what->s, what->n);
    return hit ? (size_t)(hit - s->s) : SIZE_MAX;
}

/* ---- changing ---- */

static bool strips(uint32_t c, const char *at, size_t len, const struct jstr *chars)
{
    return chars ? memmem(chars->s, chars->n, at, len) != NULL : junicode_space(c);
}

struct jval jinja_strip(struct jrun *x, const struct jstr *s, const struct jstr *chars, bool left, bool right)
{
    size_t from = 0, to = s->n, len;
    uint32_t c;
    jinja_spend(x, chars ? ((uint64_t)s->n * (1 + chars->n / 16)) / 16 : s->n / 16);
    while (left && from < to && (len = utf8_decode(s->s + from, to - from, &c)) > 0 &&
           strips(c, s->s + from, len, chars))
        from += len;
    while (right && to > from) {
        size_t start = to - 1;
        while (start > from && ((unsigned char)s->s[start] & 0xC0) == 0x80)
            start--;
        len = utf8_decode(s->s + start, to - start, &c);
        if (len == 0 || !strips(c, s->s + start, len, chars))
            break;
        to = start;
    }
    return jinja_sub(x, s, from, to - from);
}

static void add_upper(struct jbuf *b, uint32_t c, bool marked)
{
    const char *several = junicode_upper_special(c);
    if (several)
        jbuf_add(b, several, strlen(several), marked);
    else
        jbuf_char(b, junicode_upper(c), marked);
}

/* Greek sigma has a form for the end of a word: a letter before, none after. */
static bool final_sigma(const struct jstr *s, size_t at)
{
    size_t before = at, len;
    uint32_t c;
    if (at == 0)
        return false;
    do
        before--;
    while (before > 0 && ((unsigned char)s->s[before] & 0xC0) == 0x80);
    if (utf8_decode(s->s + before, at - before, &c) == 0 || !junicode_alpha(c))
        return false;
    at += 2;
    len = at < s->n ? utf8_decode(s->s + at, s->n - at, &c) : 0;
    return len == 0 || !junicode_alpha(c);
}

static void add_lower(struct jbuf *b, const struct jstr *s, size_t at, uint32_t c)
{
    if (c == 0x130) /* the one letter that becomes two */
        jbuf_add(b, "i\xCC\x87", 3, jstr_mark(s, at));
    else
        jbuf_char(b, c == 0x3A3 && final_sigma(s, at) ? 0x3C2 : junicode_lower(c), jstr_mark(s, at));
}

static void change_case(struct jbuf *b, const struct jstr *s, size_t from, bool to_upper)
{
    size_t len;
    uint32_t c;
    for (size_t i = from; i < s->n && (len = utf8_decode(s->s + i, s->n - i, &c)) > 0; i += len) {
        if (to_upper)
            add_upper(b, c, jstr_mark(s, i));
        else
            add_lower(b, s, i, c);
    }
}

struct jval jinja_upper(struct jrun *x, const struct jstr *s)
{
    struct jbuf b = {.x = x};
    change_case(&b, s, 0, true);
    return jbuf_val(&b);
}

struct jval jinja_lower(struct jrun *x, const struct jstr *s)
{
    struct jbuf b = {.x = x};
    change_case(&b, s, 0, false);
    return jbuf_val(&b);
}

struct jval jinja_capitalize(struct jrun *x, const struct jstr *s)
{
    struct jbuf b = {.x = x};
    uint32_t c;
    size_t len = s->n ? utf8_decode(s->s, s->n, &c) : 0;
    if (len)
        add_upper(&b, c, jstr_mark(s, 0));
    change_case(&b, s, len, false);
    return jbuf_val(&b);
}

struct jval jinja_replace(struct jrun *x, const struct jstr *s, const struct jstr *from,
                          const struct jstr *to, jint count)
{
    struct jbuf b = {.x = x};
    size_t at = 0;
    jinja_spend(x, s->n / 16);
    while (count != 0 && at <= s->n) {
        size_t hit = jinja_find(s, from, at);
        if (hit == SIZE_MAX)
            break;
        jbuf_add_str(&b, s, at, hit - at);
        jbuf_add_str(&b, to, 0, to->n);
        at = hit + from->n;
        if (from->n == 0) { /* between all characters */
            size_t len = at < s->n ? 1 : 0;
            while (len && at + len < s->n && ((unsigned char)s->s[at + len] & 0xC0) == 0x80)
                len++;
            jbuf_add_str(&b, s, at, len);
            at += len ? len : 1;
        }
        count -= count > 0;
        jinja_spend(x, 1);
    }
    if (at < s->n)
        jbuf_add_str(&b, s, at, s->n - at);
    return jbuf_val(&b);
}

struct jval jinja_escape(struct jrun *x, const struct jstr *s)
{
    static const struct {
        char c;
        const char *text;
    } all[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    struct jbuf b = {.x = x};
    for (size_t i = 0; i < s->n; i++) {
        const char *text = NULL;
        for (size_t k = 0; k < ARRAY_LEN(all); k++)
            if (all[k].c == s->s[i])
                text = all[k].text;
        if (text)
            jbuf_add(&b, text, strlen(text), jstr_mark(s, i));
        else
            jbuf_add_str(&b, s, i, 1);
    }
    struct jstr *safe = jinja_alloc(x, 1, sizeof *safe);
    *safe = *jbuf_str(&b);
    safe->safe = true;
    return jinja_str(safe);
}

/* Python's isupper and islower: some letter has case, and none the other one. */
bool jinja_is_cased(const struct jstr *s, bool upper)
{
    bool some = false;
    size_t len;
    uint32_t c;
    for (size_t i = 0; i < s->n && (len = utf8_decode(s->s + i, s->n - i, &c)) > 0; i += len) {
        if (!junicode_cased(c))
            continue;
        if (upper ? junicode_lower(c) == c : junicode_lower(c) != c)
            return false;
        some = true;
    }
    return some;
}

/* Length of the line break at s->s[at], or 0. */
static size_t line_break(const struct jstr *s, size_t at)
{
    uint32_t c;
    size_t len = utf8_decode(s->s + at, s->n - at, &c);
    if (c == '\r')
        return at + 1 < s->n && s->s[at + 1] == '\n' ? 2 : 1;
    bool breaks = (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    return len && breaks ? len : 0;
}

struct jlist *jinja_splitlines(struct jrun *x, const struct jstr *s, bool keep)
{
    struct jlist *l = jlist_new(x, JL_LIST);
    size_t from = 0;
    for (size_t i = 0; i < s->n;) {
        size_t len = line_break(s, i);
        if (len == 0) {
            i++;
            while (i < s->n && ((unsigned char)s->s[i] & 0xC0) == 0x80)
                i++;
            continue;
        }
        jlist_push(x, l, jinja_sub(x, s, from, i - from + (keep ? len : 0)));
        from = i += len;
    }
    if (from < s->n)
        jlist_push(x, l, jinja_sub(x, s, from, s->n - from));
    return l;
}
