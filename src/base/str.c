/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: growable text, UTF-8, and the few conversions between text and numbers that every room needs.
 * Refuses: locales. Nothing here depends on the process's locale.
 */
#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- growable text */

void strbuf_release(struct strbuf *b)
{
    free(b->data);
    *b = (struct strbuf)STRBUF_INIT;
}

void strbuf_clear(struct strbuf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = '\0';
}

static bool strbuf_grow(struct strbuf *b, size_t extra)
{
    size_t need;
    if (b->failed)
        return false;
    if (__builtin_add_overflow(b->len, extra, &need) || __builtin_add_overflow(need, (size_t)1, &need))
        b->failed = true;
    else if (need > b->capacity && vec_reserve((void **)&b->data, &b->capacity, need < 64 ? 64 : need, 1))
        b->failed = true;
    return !b->failed;
}

void strbuf_add(struct strbuf *b, const char *data, size_t n)
{
    if (!strbuf_grow(b, n))
        return;
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void strbuf_puts(struct strbuf *b, const char *s)
{
    strbuf_add(b, s, strlen(s));
}

void strbuf_putc(struct strbuf *b, char c)
{
    strbuf_add(b, &c, 1);
}

void strbuf_printf(struct strbuf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        b->failed = true;
    if (n >= 0 && strbuf_grow(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

bool strbuf_failed(const struct strbuf *b)
{
    return b->failed;
}

const char *strbuf_cstr(const struct strbuf *b)
{
    return b->data ? b->data : "";
}

char *strbuf_detach(struct strbuf *b)
{
    if (!b->data && !b->failed)
        strbuf_add(b, "", 0);
    char *s = b->failed ? NULL : b->data;
    if (b->failed)
        free(b->data);
    *b = (struct strbuf)STRBUF_INIT;
    return s;
}

/* ---- UTF-8 */

size_t utf8_decode(const char *s, size_t n, uint32_t *code_point)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (n == 0)
        return 0;
    unsigned char c = (unsigned char)s[0];
    if (c < 0x80) {
        *code_point = c;
        return 1;
    }
    size_t length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    if (c < 0xC2 || c > 0xF4 || n < length)
        return 0;
    uint32_t v = c & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        unsigned char t = (unsigned char)s[i];
        if ((t & 0xC0) != 0x80)
            return 0;
        v = v << 6 | (t & 0x3F);
    }
    if (v < smallest[length] || v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF))
        return 0;
    *code_point = v;
    return length;
}

size_t utf8_encode(uint32_t code_point, char out[4])
{
    uint32_t c = code_point;
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return 0;
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

bool utf8_valid(const char *s, size_t n)
{
    uint32_t ignored;
    for (size_t i = 0; i < n;) {
        size_t length = utf8_decode(s + i, n - i, &ignored);
        if (length == 0)
            return false;
        i += length;
    }
    return true;
}

size_t utf8_complete_prefix(const char *s, size_t n)
{
    /* Only a lead byte within the last three bytes can be incomplete. */
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)s[n - back];
        if ((c & 0xC0) == 0x80)
            continue;
        size_t length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
        return length > back ? n - back : n;
    }
    return n;
}

/* ---- numbers */

const char *format_count(uint64_t n, char *buf, size_t bytes)
{
    char digits[24], text[32];
    int n_digits = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n);
    size_t at = 0;
    for (int i = 0; i < n_digits; i++) {
        if (i > 0 && (n_digits - i) % 3 == 0)
            text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    snprintf(buf, bytes, "%s", text);
    return buf;
}

const char *format_bytes(uint64_t n, char *buf, size_t bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    if (n < 1000) {
        snprintf(buf, bytes, "%llu B", (unsigned long long)n);
        return buf;
    }
    /* Integer arithmetic: rounds half up, and prints no decimal comma in any locale. */
    unsigned unit = 1;
    uint64_t scale = 1000;
    while (unit < 6 && n / scale >= 1000) {
        scale *= 1000;
        unit++;
    }
    uint64_t step = scale / 100; /* two decimals below 10, one below 100, else none */
    if (n / scale >= 100)
        step = scale;
    else if (n / scale >= 10)
        step = scale / 10;
    uint64_t rounded = n / step + (n % step >= step - step / 2);
    uint64_t per_unit = scale / step;
    if (rounded >= 1000) { /* 9.995 becomes 10.0; 999.6 becomes 1.00 of the next unit */
        if (per_unit == 1 && unit < 6) {
            unit++;
            per_unit = 1000;
        }
        rounded /= 10;
        per_unit /= 10;
    }
    unsigned long long whole = rounded / per_unit, rest = rounded % per_unit;
    if (per_unit == 1)
        snprintf(buf, bytes, "%llu %s", whole, units[unit]);
    else
        snprintf(buf, bytes, "%llu.%0*llu %s", whole, per_unit == 10 ? 1 : 2, rest, units[unit]);
    return buf;
}

bool str_starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

unsigned str_distance(const char *a, const char *b)
{
    enum { LONGEST = 64 };
    size_t n = strnlen(a, LONGEST), m = strnlen(b, LONGEST);
    unsigned row[LONGEST + 1];
    for (size_t j = 0; j <= m; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

/* Digits at *s into *out; false if there is none or the value exceeds max. Moves *s behind them. */
static bool read_digits(const char **s, uint64_t max, uint64_t *out)
{
    const char *p = *s;
    uint64_t v = 0;
    for (; *p >= '0' && *p <= '9'; p++) {
        unsigned digit = (unsigned)(*p - '0');
        if (v > (max - digit) / 10)
            return false;
        v = v * 10 + digit;
    }
    if (p == *s)
        return false;
    *s = p;
    *out = v;
    return true;
}

bool str_to_i64(const char *s, int64_t *out)
{
    bool negative = *s == '-';
    if (negative)
        s++;
    uint64_t v;
    if (!read_digits(&s, (uint64_t)INT64_MAX + negative, &v) || *s)
        return false;
    *out = negative ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

bool str_to_bytes(const char *s, uint64_t *out)
{
    static const char letters[] = "KMGT";
    uint64_t v, scale = 1;
    if (!read_digits(&s, UINT64_MAX, &v))
        return false;
    char c = *s == 'k' ? 'K' : *s;
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter) {
        s++;
        uint64_t base = 1000;
        if (*s == 'i') {
            base = 1024;
            s++;
        }
        for (const char *l = letters; l <= letter; l++)
            scale *= base;
    }
    if (*s == 'B')
        s++;
    if (*s || !mul_u64(v, scale, &v))
        return false;
    *out = v;
    return true;
}
