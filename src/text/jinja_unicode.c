/* SPDX-License-Identifier: Apache-2.0
 *
 * What Python's str methods know of characters: spaces, letters, what repr prints as it is, upper and lower
 * case. Tables are made by tools/unicode_tables.py.
 */
#include "text/jinja_impl.h"

struct range {
    uint32_t first, last;
};
struct change {
    uint32_t first, last, step;
    int32_t distance;
};

static const struct range printable[] = {
#define PRINTABLE(a, b) {a, b},
#include "text/jinja_unicode.def"
};
static const struct range alpha[] = {
#define ALPHA(a, b) {a, b},
#include "text/jinja_unicode.def"
};
static const struct change upper[] = {
#define UPPER(a, b, step, distance) {a, b, step, distance},
#include "text/jinja_unicode.def"
};
static const struct change lower[] = {
#define LOWER(a, b, step, distance) {a, b, step, distance},
#include "text/jinja_unicode.def"
};
static const struct {
    uint32_t c;
    const char *text;
} special[] = {
#define SPECIAL(c, text) {c, text},
#include "text/jinja_unicode.def"
};

static bool within(const struct range *r, size_t n, uint32_t c)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (r[mid].last < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && r[lo].first <= c;
}

static uint32_t changed(const struct change *t, size_t n, uint32_t c)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (t[mid].last < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == n || t[lo].first > c || (t[lo].step > 1 && (c - t[lo].first) % t[lo].step != 0))
        return c;
    return (uint32_t)((int32_t)c + t[lo].distance);
}

bool junicode_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

bool junicode_printable(uint32_t c)
{
    return c < 127 ? c >= 32 : within(printable, ARRAY_LEN(printable), c);
}

bool junicode_alpha(uint32_t c)
{
    return c < 128 ? (c | 32) >= 'a' && (c | 32) <= 'z' : within(alpha, ARRAY_LEN(alpha), c);
}

uint32_t junicode_upper(uint32_t c)
{
    if (c < 128)
        return c >= 'a' && c <= 'z' ? c - 32 : c;
    return changed(upper, ARRAY_LEN(upper), c);
}

uint32_t junicode_lower(uint32_t c)
{
    if (c < 128)
        return c >= 'A' && c <= 'Z' ? c + 32 : c;
    return changed(lower, ARRAY_LEN(lower), c);
}

bool junicode_cased(uint32_t c)
{
    return junicode_upper(c) != c || junicode_lower(c) != c || junicode_upper_special(c) != NULL;
}

const char *junicode_upper_special(uint32_t c)
{
    for (size_t i = 0; c >= 128 && i < ARRAY_LEN(special); i++)
        if (special[i].c == c)
            return special[i].text;
    return NULL;
}
