/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries of ignore and target lists, in every spelling that publishers use: a module's name, its last or
 * middle components, a glob, "re:" and a regular expression. Refuses unbounded work: patterns come from
 * config.json, and backtracking stops after a fixed number of steps (then it is no match).
 */
#include <string.h>

#include "spec/quant.h"

#define REGEX_STEPS 50000
#define REGEX_DEPTH 200

/* ---- globs: * and ? ---- */

/* The pattern against exactly n characters. One point to go back to is enough. */
static bool glob(const char *p, const char *s, size_t n)
{
    const char *star = NULL;
    size_t i = 0, back = 0;
    while (i < n) {
        if (*p == '*') {
            star = p++;
            back = i;
        } else if (*p == '?' || (*p && *p == s[i])) {
            p++;
            i++;
        } else if (star) {
            p = star + 1;
            i = ++back;
        } else {
            return false;
        }
    }
    while (*p == '*')
        p++;
    return *p == 0;
}

/* A module that the glob names, or one inside of it. */
static bool glob_module(const char *p, const char *module)
{
    for (size_t n = 0;; n++)
        if (module[n] == 0 || module[n] == '.') {
            if (n && glob(p, module, n))
                return true;
            if (module[n] == 0)
                return false;
        }
}

/* ---- regular expressions: literals, . \ [] () | * + ? ^ $ ---- */

struct regex {
    unsigned steps;
};

/* What follows a part of the expression when that part has matched. */
struct rest {
    const char *p, *end;
    const struct rest *next;
    const char *loop, *loop_end; /* a starred atom that may come again; NULL: none */
    const char *from;            /* where its last round began: an empty round ends the loop */
};

static bool alternatives(struct regex *r, const char *p, const char *end, const char *s,
                         const struct rest *next, unsigned depth);

/* End of the atom at p. */
static const char *atom_end(const char *p, const char *end)
{
    if (*p == '\\')
        return p + 2 <= end ? p + 2 : end;
    if (*p == '[') {
        p++;
        if (p < end && *p == '^')
            p++;
        if (p < end && *p == ']')
            p++;
        while (p < end && *p != ']')
            p += *p == '\\' && p + 1 < end ? 2 : 1;
        return p < end ? p + 1 : end;
    }
    if (*p == '(') {
        int level = 0;
        for (; p < end; p++) {
            if (*p == '\\' && p + 1 < end)
                p++;
            else if (*p == '(')
                level++;
            else if (*p == ')' && --level == 0)
                return p + 1;
        }
        return end;
    }
    return p + 1;
}

static bool class_has(const char *p, const char *end, char c)
{
    bool no = *p == '^', in = false;
    p += no;
    while (p < end) {
        if (*p == '\\' && p + 1 < end)
            p++;
        if (p + 2 < end && p[1] == '-') {
            in |= c >= p[0] && c <= p[2];
            p += 3;
        } else {
            in |= *p++ == c;
        }
    }
    return in != no;
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool one_char(const char *p, const char *end, char c)
{
    if (*p == '.')
        return true;
    if (*p == '[')
        return class_has(p + 1, end - 1, c);
    if (*p != '\\')
        return *p == c;
    if (p + 1 >= end)
        return false;
    return p[1] == 'd' ? c >= '0' && c <= '9' : p[1] == 'w' ? is_word(c) : p[1] == c;
}

static bool sequence(struct regex *r, const char *p, const char *end, const char *s, const struct rest *next,
                     unsigned depth);

static bool finish(struct regex *r, const char *s, const struct rest *next, unsigned depth)
{
    if (next == NULL)
        return true;
    if (next->loop && s != next->from) {
        struct rest again = *next;
        again.from = s;
        if (alternatives(r, next->loop, next->loop_end, s, &again, depth + 1))
            return true;
    }
    return sequence(r, next->p, next->end, s, next->next, depth + 1);
}

static bool group(struct regex *r, const char *p, const char *close, const char *after, const char *end,
                  char how, const char *s, const struct rest *next, unsigned depth)
{
    struct rest rest = {.p = after, .end = end, .next = next};
    p++;
    if (close > p && close[-1] == ')')
        close--;
    if (close - p >= 2 && p[0] == '?' && p[1] == ':')
        p += 2;
    if (how == '*' || how == '+') {
        rest.loop = p;
        rest.loop_end = close;
        rest.from = s;
    }
    if (alternatives(r, p, close, s, &rest, depth + 1))
        return true;
    return (how == '*' || how == '?') && sequence(r, after, end, s, next, depth + 1);
}

static bool sequence(struct regex *r, const char *p, const char *end, const char *s, const struct rest *next,
                     unsigned depth)
{
    while (p < end) {
        if (r->steps == 0 || depth > REGEX_DEPTH)
            return false;
        r->steps--;
        const char *after = atom_end(p, end);
        char how = after < end && strchr("*+?", *after) ? *after : 0;
        const char *then = after + (how != 0);
        if (how && then < end && *then == '?')
            then++; /* lazy: the same answer */
        if (*p == '(')
            return group(r, p, after, then, end, how, s, next, depth);
        if (*p == '^' && !how) {
            p = after;
            continue;
        }
        if (*p == '$' && !how) {
            if (*s)
                return false;
            p = after;
            continue;
        }
        size_t least = how == '*' || how == '?' ? 0 : 1, most = how == '*' || how == '+' ? SIZE_MAX : 1,
               n = 0;
        while (n < most && s[n] && one_char(p, after, s[n]))
            n++;
        if (!how) {
            if (n == 0)
                return false;
            s++;
            p = then;
            continue;
        }
        for (;; n--) {
            if (n < least || r->steps == 0)
                return false;
            if (sequence(r, then, end, s + n, next, depth + 1))
                return true;
            if (n == 0)
                return false;
        }
    }
    return finish(r, s, next, depth);
}

static bool alternatives(struct regex *r, const char *p, const char *end, const char *s,
                         const struct rest *next, unsigned depth)
{
    for (const char *from = p;;) {
        const char *bar = from;
        while (bar < end && *bar != '|')
            bar = atom_end(bar, end);
        if (sequence(r, from, bar < end ? bar : end, s, next, depth + 1))
            return true;
        if (bar >= end)
            return false;
        from = bar + 1;
    }
}

bool quant_regex(const char *pattern, const char *text)
{
    struct regex r = {.steps = REGEX_STEPS};
    return alternatives(&r, pattern, pattern + strlen(pattern), text, NULL, 0);
}

/* ---- */

/* The entry as whole components anywhere in the name. */
static bool fragment(const char *entry, const char *module)
{
    size_t n = strlen(entry);
    for (const char *p = module; n && (p = strstr(p, entry)) != NULL; p++)
        if ((p == module || p[-1] == '.') && (p[n] == 0 || p[n] == '.'))
            return true;
    return false;
}

bool quant_matches(const char *pattern, const char *module)
{
    if (strncmp(pattern, "re:", 3) == 0)
        return quant_regex(pattern + 3, module);
    if (strpbrk(pattern, "*?"))
        return glob_module(pattern, module);
    return fragment(pattern, module);
}
