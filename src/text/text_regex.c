/* SPDX-License-Identifier: Apache-2.0
 *
 * Regular expressions by PCRE2 (UTF, UCP, JIT). Owns compiled patterns and the state of one caller's
 * matching. A pattern from outside may be as bad as it likes: steps from one position, memory and the time of
 * a whole text are limited, and what goes beyond is an error, never a wrong split. Refuses what
 * text_pattern.c refuses.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/text_impl.h"

#define MAX_PATTERN   16384        /* bytes, translated */
#define MATCH_LIMIT   1000000      /* steps from one position */
#define HEAP_KIB      (256 * 1024) /* memory of the interpreter, where the compiled code has too little stack */
#define JIT_STACK     (8u << 20)
#define WINDOW        512 /* starting positions of one call, so that the clock is looked at between */
#define SECONDS       5   /* for any text, ... */
#define SECONDS_PER_M 5   /* ... and more for each mebibyte */
#define LOOK_EVERY    256 /* matches and starting positions between two looks at the clock */

struct regex {
    pcre2_code *code;
    bool jit;
    char text[64]; /* beginning of the pattern, for messages */
};

struct regex_match {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    unsigned count;
    double deadline;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void regex_free(struct regex *r)
{
    if (r)
        pcre2_code_free(r->code);
    free(r);
}

static int compile(struct regex *r, const struct strbuf *pattern, enum regex_dialect dialect,
                   const char *where, struct err *e)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    int code = 0;
    PCRE2_SIZE at = 0;
    if (context == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_max_pattern_length(context, MAX_PATTERN);
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_USE_OFFSET_LIMIT | PCRE2_NEVER_BACKSLASH_C;
    options |= dialect == REGEX_ONIG ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
    r->code = pcre2_compile((PCRE2_SPTR)strbuf_cstr(pattern), pattern->len, options, &code, &at, context);
    pcre2_compile_context_free(context);
    if (r->code) {
        r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
        return ERR_OK;
    }
    PCRE2_UCHAR message[160];
    if (pcre2_get_error_message(code, message, sizeof message) < 0)
        message[0] = '\0';
    return err_set(e, ERR_UNSUPPORTED, "%s: the regular expression %s cannot be used: %s", where, r->text,
                   (const char *)message);
}

int regex_compile(struct regex **out, const char *pattern, size_t n, enum regex_dialect dialect,
                  const char *where, struct err *e)
{
    struct strbuf translated = STRBUF_INIT;
    const char *why = NULL;
    struct regex *r = calloc(1, sizeof *r);
    if (r == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for a regular expression");
    size_t shown = utf8_complete_prefix(pattern, n < sizeof r->text - 4 ? n : sizeof r->text - 4);
    memcpy(r->text, pattern, shown);
    memcpy(r->text + shown, shown < n ? "..." : "", shown < n ? 4 : 1);
    int rc = regex_translate(pattern, n, dialect, &translated, &why);
    if (strbuf_failed(&translated))
        rc = err_set(e, ERR_NOMEM, "out of memory for a regular expression");
    else if (rc)
        rc = err_set(e, rc, "%s: the regular expression %s has %s, which is not implemented", where, r->text,
                     why);
    else
        rc = compile(r, &translated, dialect, where, e);
    strbuf_release(&translated);
    if (rc) {
        regex_free(r);
        return rc;
    }
    *out = r;
    return ERR_OK;
}

void regex_match_free(struct regex_match *m)
{
    if (m == NULL)
        return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

int regex_match_new(struct regex_match **out, size_t n, struct err *e)
{
    struct regex_match *m = calloc(1, sizeof *m);
    if (m) {
        m->data = pcre2_match_data_create(1, NULL);
        m->context = pcre2_match_context_create(NULL);
    }
    if (m == NULL || m->data == NULL || m->context == NULL) {
        regex_match_free(m);
        return err_set(e, ERR_NOMEM, "out of memory to match a regular expression");
    }
    pcre2_set_match_limit(m->context, MATCH_LIMIT);
    pcre2_set_heap_limit(m->context, HEAP_KIB);
    m->deadline = now() + SECONDS + SECONDS_PER_M * ((double)n / (1 << 20));
    *out = m;
    return ERR_OK;
}

/* One call of the library; more stack, then no compiled code, where the stack is too small. */
static int run(const struct regex *r, struct regex_match *m, const char *s, size_t n, size_t at)
{
    pcre2_set_offset_limit(m->context, at + WINDOW);
    int rc = pcre2_match(r->code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && m->stack == NULL) {
        m->stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK, NULL);
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
        if (m->stack)
            rc = pcre2_match(r->code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK, m->data, m->context);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(r->code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data,
                         m->context);
    return rc;
}

static size_t next_character(const char *s, size_t n, size_t at)
{
    for (at++; at < n && ((unsigned char)s[at] & 0xC0) == 0x80; at++) {
    }
    return at;
}

int regex_next(const struct regex *r, struct regex_match **match, const char *s, size_t n,
               struct regex_find *f, struct err *e)
{
    int made = *match ? ERR_OK : regex_match_new(match, n, e);
    if (made)
        return made;
    struct regex_match *m = *match;
    f->found = false;
    while (f->at <= n) {
        if (++m->count >= LOOK_EVERY) {
            m->count = 0;
            if (now() <= m->deadline)
                continue;
            return err_set(e, ERR_LIMIT, "the regular expression %s takes too long on this text", r->text);
        }
        int rc = run(r, m, s, n, f->at);
        if (rc == PCRE2_ERROR_NOMATCH) {
            m->count += n - f->at < WINDOW ? (unsigned)(n - f->at) : WINDOW;
            if (n - f->at <= WINDOW)
                break;
            f->at += WINDOW;
            while (f->at < n && ((unsigned char)s[f->at] & 0xC0) == 0x80)
                f->at++;
            continue;
        }
        if (rc < 0)
            return err_set(e, rc == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_LIMIT,
                           "the regular expression %s goes beyond its limits on this text (PCRE2 error %d)",
                           r->text, rc);
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(m->data);
        size_t start = v[0], end = v[1];
        if (start > end || end < f->at) /* a lookbehind may not move the start here: \K is refused */
            BUG("a match from %zu to %zu", start, end);
        m->count += start > f->at ? (unsigned)(start - f->at) : 0;
        if (start == end && f->any && f->last == end) { /* not empty behind the last one */
            f->at = next_character(s, n, f->at);
            continue;
        }
        f->at = f->last = f->end = end;
        f->start = start;
        f->any = f->found = true;
        return ERR_OK;
    }
    f->at = n + 1;
    return ERR_OK;
}
