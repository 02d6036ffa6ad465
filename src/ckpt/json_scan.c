/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: JSON syntax for headers and index, without a tree. Refuses: everything RFC 8259 refuses, and lone
 * surrogates. Every function moves forward or fails, so that no input can make it loop.
 */
#include "ckpt/json_scan.h"

#include <string.h>

#include "base/str.h"

#define MAX_DEPTH 128u /* the reference reader's limit */

/* Headers and indices are plain ASCII nearly always: eight bytes at a time until one is not. */
bool json_scan_utf8(const char *text, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, text + i, 8);
        if (word & 0x8080808080808080u)
            break;
    }
    return utf8_valid(text + i, n - i);
}

void json_scan_init(struct json_scan *s, const char *text, size_t n)
{
    *s = (struct json_scan){.begin = text, .at = text, .end = text + n};
}

bool json_scan_fail(struct json_scan *s, const char *why)
{
    if (!s->error)
        s->error = why;
    return false;
}

size_t json_scan_offset(const struct json_scan *s)
{
    return (size_t)(s->at - s->begin);
}

static void skip_space(struct json_scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t'))
        s->at++;
}

bool json_scan_take(struct json_scan *s, char c)
{
    if (s->error)
        return false;
    skip_space(s);
    if (s->at == s->end || *s->at != c)
        return false;
    s->at++;
    return true;
}

bool json_scan_expect(struct json_scan *s, char c)
{
    if (json_scan_take(s, c))
        return true;
    const char *why = "unexpected character";
    switch (c) {
    case '{':
        why = "an object was expected";
        break;
    case '[':
        why = "an array was expected";
        break;
    case ']':
        why = "the end of an array was expected";
        break;
    case ':':
        why = "':' was expected";
        break;
    case ',':
        why = "',' was expected";
        break;
    case '"':
        why = "a string was expected";
        break;
    default:
        break;
    }
    return json_scan_fail(s, s->at == s->end ? "the text ends early" : why);
}

bool json_scan_end(struct json_scan *s)
{
    if (s->error)
        return false;
    skip_space(s);
    return s->at == s->end || json_scan_fail(s, "something follows after the end of the document");
}

/* ---- strings */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Four hexadecimal digits at p, which has n bytes left; -1 if they are not there. */
static int32_t hex4(const char *p, size_t n)
{
    if (n < 4)
        return -1;
    int32_t v = 0;
    for (int i = 0; i < 4; i++) {
        int d = hex_digit(p[i]);
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* Decodes the escape whose backslash is at p. Returns its length in the text, 0 if malformed. */
static size_t escape(const char *p, size_t n, uint32_t *code_point)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (n < 2)
        return 0;
    const char *known = p[1] ? strchr(from, p[1]) : NULL;
    if (known) {
        *code_point = (unsigned char)to[known - from];
        return 2;
    }
    if (p[1] != 'u')
        return 0;
    int32_t high = hex4(p + 2, n - 2);
    if (high < 0 || (high >= 0xDC00 && high <= 0xDFFF))
        return 0;
    *code_point = (uint32_t)high;
    if (high < 0xD800 || high > 0xDBFF)
        return 6;
    if (n < 12 || p[6] != '\\' || p[7] != 'u')
        return 0;
    int32_t low = hex4(p + 8, n - 8);
    if (low < 0xDC00 || low > 0xDFFF)
        return 0;
    *code_point = 0x10000u + (((uint32_t)high - 0xD800u) << 10) + ((uint32_t)low - 0xDC00u);
    return 12;
}

bool json_scan_string(struct json_scan *s, struct json_text *out)
{
    if (!json_scan_expect(s, '"'))
        return false;
    const char *p = s->at, *end = s->end;
    *out = (struct json_text){.raw = p};
    for (;;) {
        while (p < end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
            p++;
        s->at = p;
        if (p == end)
            return json_scan_fail(s, "a string does not end");
        if (*p == '"')
            break;
        if (*p != '\\')
            return json_scan_fail(s, "a control character in a string");
        uint32_t code_point;
        size_t n = escape(p, (size_t)(end - p), &code_point);
        if (n == 0)
            return json_scan_fail(s, "a malformed escape in a string");
        out->escaped = true;
        out->has_nul = out->has_nul || code_point == 0;
        p += n;
    }
    out->n = (size_t)(p - out->raw);
    s->at = p + 1;
    return true;
}

bool json_text_is(const struct json_text *t, const char *literal)
{
    return t->n == strlen(literal) && memcmp(t->raw, literal, t->n) == 0;
}

char *json_text_copy(const struct json_text *t, struct arena *arena)
{
    /* Decoding never makes a text longer. */
    char *copy = arena_strndup(arena, t->raw, t->n);
    if (!copy || !t->escaped)
        return copy;
    size_t to = 0;
    for (size_t i = 0; i < t->n;) {
        if (t->raw[i] != '\\') {
            copy[to++] = t->raw[i++];
            continue;
        }
        uint32_t code_point = 0;
        char utf8[4];
        size_t used = escape(t->raw + i, t->n - i, &code_point);
        size_t n = utf8_encode(code_point, utf8);
        memcpy(copy + to, utf8, n);
        to += n;
        i += used ? used : 1;
    }
    copy[to] = '\0';
    return copy;
}

/* ---- numbers and literals */

static size_t digits(struct json_scan *s)
{
    const char *from = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return (size_t)(s->at - from);
}

static bool number(struct json_scan *s)
{
    if (s->at < s->end && *s->at == '-')
        s->at++;
    const char *from = s->at;
    size_t n = digits(s);
    if (n == 0 || (n > 1 && *from == '0'))
        return json_scan_fail(s, "a malformed number");
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (digits(s) == 0)
            return json_scan_fail(s, "a malformed number");
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-'))
            s->at++;
        if (digits(s) == 0)
            return json_scan_fail(s, "a malformed number");
    }
    return true;
}

bool json_scan_u64(struct json_scan *s, uint64_t *out)
{
    if (s->error)
        return false;
    skip_space(s);
    const char *from = s->at;
    uint64_t v = 0;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') {
        if (__builtin_mul_overflow(v, (uint64_t)10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*s->at - '0'), &v))
            return json_scan_fail(s, "an integer beyond 64 bits");
        s->at++;
    }
    size_t n = (size_t)(s->at - from);
    if (n == 0 || (n > 1 && *from == '0'))
        return json_scan_fail(s, "an integer that is not negative was expected");
    if (s->at < s->end && (*s->at == '.' || *s->at == 'e' || *s->at == 'E'))
        return json_scan_fail(s, "an integer was expected, not a fraction or exponent");
    *out = v;
    return true;
}

static bool literal(struct json_scan *s, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0)
        return json_scan_fail(s, "a value was expected");
    s->at += n;
    return true;
}

static bool scalar(struct json_scan *s)
{
    struct json_text ignored;
    switch (*s->at) {
    case '"':
        return json_scan_string(s, &ignored);
    case 't':
        return literal(s, "true");
    case 'f':
        return literal(s, "false");
    case 'n':
        return literal(s, "null");
    default:
        return number(s);
    }
}

/* ---- structure */

bool json_scan_member(struct json_scan *s, bool *first, struct json_text *key)
{
    if (json_scan_take(s, '}') || s->error)
        return false;
    if (!*first && !json_scan_expect(s, ','))
        return false;
    *first = false;
    return json_scan_string(s, key) && json_scan_expect(s, ':');
}

bool json_scan_element(struct json_scan *s, bool *first)
{
    if (json_scan_take(s, ']') || s->error)
        return false;
    if (!*first && !json_scan_expect(s, ','))
        return false;
    *first = false;
    skip_space(s);
    if (s->at < s->end && *s->at == ']')
        return json_scan_fail(s, "a value was expected after ','");
    return true;
}

bool json_scan_skip(struct json_scan *s)
{
    bool is_object[MAX_DEPTH], first[MAX_DEPTH];
    unsigned depth = 0;
    do {
        skip_space(s);
        if (s->error || s->at == s->end)
            return json_scan_fail(s, "the text ends early");
        if (*s->at == '{' || *s->at == '[') {
            if (depth == MAX_DEPTH)
                return json_scan_fail(s, "nested too deeply");
            is_object[depth] = *s->at == '{';
            first[depth++] = true;
            s->at++;
        } else if (!scalar(s)) {
            return false;
        }
        /* On to the next value, out of every container that ends here. */
        while (depth > 0) {
            struct json_text key;
            bool more = is_object[depth - 1] ? json_scan_member(s, &first[depth - 1], &key)
                                             : json_scan_element(s, &first[depth - 1]);
            if (more)
                break;
            if (s->error)
                return false;
            depth--;
        }
    } while (depth > 0);
    return true;
}
