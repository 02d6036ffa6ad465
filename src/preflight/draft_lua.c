/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: edits of the text of an architecture file, and the marks that tell an expert where they are. Knows of
 * Lua only what the shipped files use: double-quoted strings and comments to the end of a line.
 */
#include "preflight/draft_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

bool draft_plain(const char *s)
{
    if (*s == 0 || strlen(s) > 200)
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("_.-%", *s))
            return false;
    return true;
}

/* From p: the next string literal on this or a later line; its content is [*begin, *end). */
static bool next_literal(const char *p, const char **begin, const char **end)
{
    while (*p) {
        if (p[0] == '-' && p[1] == '-') {
            p += strcspn(p, "\n");
        } else if (*p == '"') {
            const char *q = p + 1;
            while (*q && *q != '"' && *q != '\n')
                q += *q == '\\' && q[1] ? 2 : 1;
            if (*q != '"')
                return false;
            *begin = p + 1;
            *end = q;
            return true;
        } else {
            p++;
        }
    }
    return false;
}

/* Where whole components `old` begin in [s, end), or NULL. */
static const char *find_components(const char *s, const char *end, const char *old)
{
    size_t n = strlen(old);
    for (const char *p = s; p + n <= end; p++)
        if (memcmp(p, old, n) == 0 && (p == s || p[-1] == '.') && (p + n == end || p[n] == '.'))
            return p;
    return NULL;
}

/* Text up to the end of the line, then the mark. */
static const char *finish_line(struct strbuf *to, const char *from, const char *old)
{
    size_t n = strcspn(from, "\n");
    strbuf_add(to, from, n);
    strbuf_printf(to, " -- " DRAFT_MARK "was %s", old);
    return from + n;
}

size_t draft_replace(const struct strbuf *from, struct strbuf *to, const char *old, const char *new,
                     int which)
{
    const char *done = strbuf_cstr(from), *at = done, *begin = NULL, *end = NULL;
    int n = 0;
    bool open = false; /* a line with a change whose mark is still to come */
    while (next_literal(at, &begin, &end)) {
        const char *hit = find_components(begin, end, old);
        const char *line_end = done + strcspn(done, "\n");
        if (open && begin > line_end) {
            done = finish_line(to, done, old);
            open = false;
        }
        at = end + 1;
        if (!hit || (which >= 0 && n++ != which))
            continue;
        n += which < 0;
        strbuf_add(to, done, (size_t)(hit - done));
        strbuf_puts(to, new);
        done = hit + strlen(old);
        open = true;
    }
    if (open)
        done = finish_line(to, done, old);
    strbuf_puts(to, done);
    return (size_t)n;
}

bool draft_replace_key(struct strbuf *text, const char *key, const char *other)
{
    struct strbuf b = STRBUF_INIT;
    if (draft_replace(text, &b, key, other, -1) == 0 || strbuf_failed(&b)) {
        strbuf_release(&b);
        return false;
    }
    /* c.key too */
    struct strbuf d = STRBUF_INIT;
    char dotted[210];
    snprintf(dotted, sizeof dotted, "c.%.200s", key);
    const char *at = b.data;
    for (const char *p; (p = strstr(at, dotted)) != NULL;) {
        const char *after = p + strlen(dotted);
        bool whole = !isalnum((unsigned char)*after) && *after != '_' &&
                     (p == b.data || (!isalnum((unsigned char)p[-1]) && p[-1] != '_'));
        strbuf_add(&d, at, (size_t)(p - at));
        strbuf_printf(&d, "c.%s", whole ? other : key);
        at = after;
    }
    strbuf_puts(&d, at);
    strbuf_release(&b);
    strbuf_release(text);
    *text = d;
    return true;
}

/* c:count "key" -> c:count("key", 1); c:count("key") likewise. */
bool draft_default_key(struct strbuf *text, const char *key)
{
    static const struct {
        const char *reader, *value;
    } readers[] = {{"count", "1"},    {"int", "0"},         {"num", "1.0"},
                   {"flag", "false"}, {"text", "\"silu\""}, {"list", "nil, {}"}};
    for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
        for (int parens = 0; parens < 2; parens++) {
            char want[260];
            snprintf(want, sizeof want, parens ? ":%s(\"%.200s\")" : ":%s \"%.200s\"", readers[i].reader,
                     key);
            char *p = strstr(text->data, want);
            if (!p)
                continue;
            struct strbuf b = STRBUF_INIT;
            strbuf_add(&b, text->data, (size_t)(p - text->data));
            bool width = i == 0 && (strstr(key, "dim") || strstr(key, "rank") || strstr(key, "size"));
            strbuf_printf(&b, ":%s(\"%s\", %s)", readers[i].reader, key, width ? "128" : readers[i].value);
            p += strlen(want);
            size_t n = strcspn(p, "\n");
            strbuf_add(&b, p, n);
            strbuf_printf(&b, " -- " DRAFT_MARK "config.json has no %s", key);
            strbuf_puts(&b, p + n);
            strbuf_release(text);
            *text = b;
            return true;
        }
    }
    return false;
}

bool draft_descend(struct strbuf *text, const char *part)
{
    struct strbuf b = STRBUF_INIT;
    const char *p = strstr(strbuf_cstr(text), "build = function(c");
    if (!p)
        return false;
    p += strcspn(p, "\n");
    strbuf_add(&b, text->data, (size_t)(p - text->data));
    strbuf_printf(
        &b, "\n    c = c:sub { \"%s\" } -- " DRAFT_MARK "keys of the model as a whole and of its other parts",
        part);
    strbuf_puts(&b, p);
    strbuf_release(text);
    *text = b;
    return true;
}

/* ---- the file as a whole */

void draft_head(const struct drafting *x, const char *from, struct strbuf *out)
{
    char name[120];
    strbuf_puts(out, "-- SPDX-License-Identifier: Apache-2.0\n--\n");
    strbuf_printf(out,
                  "-- Drafted by day0 for %s%s%s. Nobody has checked it: look for \"TODO day0 draft\",\n",
                  ckpt_show(x->architecture, name, sizeof name),
                  from ? " from " : ", from the names and shapes of its tensors", from ? from : "");
    strbuf_puts(out, "-- correct what it marks, compare with a reference, then take out `drafted = true`.\n");
}

/* "  arch = ..." to the end of that line becomes the model's own. */
static void add_line(struct strbuf *out, const char *field, const char *value)
{
    strbuf_printf(out, "  %s = { \"%s\" },\n", field, draft_plain(value) ? value : "unnamed");
}

bool draft_assemble(const struct drafting *x, const struct draft_trial *t, const char *extra,
                    struct strbuf *out)
{
    const char *p = strbuf_cstr(&t->text);
    bool opened = false;
    draft_head(x, t->file, out);
    if (t->n_notes || t->unread.len)
        strbuf_puts(out, "--\n-- What differs from that family:\n");
    for (size_t i = 0; i < t->n_notes; i++)
        strbuf_printf(out, "--   %s\n", t->notes[i]);
    if (t->unread.len)
        strbuf_printf(out, "--   " DRAFT_MARK "nobody reads these keys of config.json:%s\n", t->unread.data);
    strbuf_puts(out, "--\n-- What that file says of its own family:\n");
    while (*p) {
        size_t n = strcspn(p, "\n"), line = n + (p[n] == '\n');
        if (str_starts(p, "-- SPDX-")) {
            /* ours is there */
        } else if (!opened && str_starts(p, "return {")) {
            strbuf_printf(out, "local family = {\n  drafted = true,%.*s\n", (int)(n - 8), p + 8);
            add_line(out, "arch", x->architecture);
            if (*x->model_type)
                add_line(out, "model_type", x->model_type);
            opened = true;
        } else if (opened && (str_starts(p, "  arch =") || str_starts(p, "  model_type ="))) {
            /* its own names are replaced */
        } else {
            strbuf_add(out, p, line);
        }
        p += line;
    }
    if (extra && *extra) {
        strbuf_puts(out, "\n");
        strbuf_puts(out, extra);
        strbuf_puts(out, "\nlocal build = family.build\nfunction family.build(c, architecture)\n  extra()\n"
                         "  return build(c, architecture)\nend\n");
    }
    strbuf_puts(out, "\nreturn family\n");
    return opened && !strbuf_failed(out);
}
