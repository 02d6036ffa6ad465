/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the order of versions and conditions on them. The order is that of Debian packages (deb-version(7)),
 * which plain dotted numbers follow, too.
 */
#include <string.h>

#include "host/host.h"

static int weight(char c)
{
    if (c == '~')
        return -1;
    if (c == 0 || (c >= '0' && c <= '9'))
        return 0;
    if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'))
        return (unsigned char)c;
    return (unsigned char)c + 256;
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

struct span {
    const char *s, *end;
};

static char at(const struct span *x)
{
    return x->s < x->end ? *x->s : 0;
}

/* Runs of non-digits by weight, runs of digits by value, in turn. */
static int compare_spans(struct span a, struct span b)
{
    while (a.s < a.end || b.s < b.end) {
        while ((at(&a) && !digit(at(&a))) || (at(&b) && !digit(at(&b)))) {
            int d = weight(at(&a)) - weight(at(&b));
            if (d)
                return d;
            a.s += a.s < a.end;
            b.s += b.s < b.end;
        }
        while (at(&a) == '0')
            a.s++;
        while (at(&b) == '0')
            b.s++;
        int first = 0;
        while (digit(at(&a)) && digit(at(&b))) {
            first = first ? first : *a.s - *b.s;
            a.s++;
            b.s++;
        }
        if (digit(at(&a)))
            return 1;
        if (digit(at(&b)))
            return -1;
        if (first)
            return first;
    }
    return 0;
}

struct version {
    struct span epoch, upstream, revision;
};

static struct version split(const char *s, size_t n)
{
    const char *end = s + n;
    while (s < end && !digit(*s))
        s++;
    struct version v = {{s, s}, {s, end}, {end, end}};
    const char *colon = memchr(s, ':', (size_t)(end - s));
    if (colon) {
        v.epoch = (struct span){s, colon};
        v.upstream.s = colon + 1;
    }
    for (const char *p = end; p > v.upstream.s; p--) {
        if (p[-1] == '-') {
            v.upstream.end = p - 1;
            v.revision = (struct span){p, end};
            break;
        }
    }
    return v;
}

static int compare(const char *a, size_t na, const char *b, size_t nb)
{
    struct version x = split(a, na), y = split(b, nb);
    int d = compare_spans(x.epoch, y.epoch);
    if (!d)
        d = compare_spans(x.upstream, y.upstream);
    return d ? d : compare_spans(x.revision, y.revision);
}

int host_version_compare(const char *a, const char *b)
{
    return compare(a, strlen(a), b, strlen(b));
}

/* One "OP VERSION". */
static int matches(const char *version, const char *s, size_t n)
{
    static const char *const ops[] = {">=", "<=", "!=", ">", "<", "="};
    while (n && *s == ' ') {
        s++;
        n--;
    }
    size_t op = 0;
    while (op < ARRAY_LEN(ops) && (n < strlen(ops[op]) || memcmp(s, ops[op], strlen(ops[op])) != 0))
        op++;
    if (op == ARRAY_LEN(ops))
        return -1;
    s += strlen(ops[op]);
    n -= strlen(ops[op]);
    while (n && *s == ' ') {
        s++;
        n--;
    }
    while (n && s[n - 1] == ' ')
        n--;
    if (n == 0 || !digit(*s))
        return -1;
    int d = compare(version, strlen(version), s, n);
    const bool holds[] = {d >= 0, d <= 0, d != 0, d > 0, d < 0, d == 0};
    return holds[op];
}

int host_version_matches(const char *version, const char *condition)
{
    int all = 1;
    for (const char *p = condition;; p++) {
        size_t n = strcspn(p, ",");
        int one = matches(version, p, n);
        if (one < 0)
            return -1;
        all = all && one;
        p += n;
        if (!*p)
            return all;
    }
}
