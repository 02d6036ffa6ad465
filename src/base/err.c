/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: filling and printing `struct err`, and the end of the program when an invariant of ours broke.
 * Refuses: allocation, output (except for a bug), and any knowledge of what failed.
 */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void err_clear(struct err *e)
{
    if (!e)
        return;
    e->code = ERR_OK;
    e->line = 0;
    e->file = NULL;
    e->n_frames = 0;
    e->message[0] = '\0';
    e->hint[0] = '\0';
}

int err_set_at(struct err *e, int code, const char *file, int line, const char *fmt, ...)
{
    if (!e)
        return code;
    /* An argument may be a part of *e itself (rewording a lower error): format before anything is cleared. */
    char text[sizeof(e->message)];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    err_clear(e);
    memcpy(e->message, text, sizeof(text));
    e->code = code;
    e->file = file;
    e->line = line;
    return code;
}

void err_ctx(struct err *e, const char *fmt, ...)
{
    if (!e)
        return;
    if (e->n_frames >= 0 && e->n_frames < ERR_MAX_FRAMES) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(e->frames[e->n_frames], sizeof(e->frames[0]), fmt, ap);
        va_end(ap);
        e->n_frames++;
    }
}

void err_hint(struct err *e, const char *fmt, ...)
{
    if (!e)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->hint, sizeof(e->hint), fmt, ap);
    va_end(ap);
}

const char *err_name(int code)
{
    switch (code) {
    case ERR_OK:
        return "OK";
#define X(name, value, text, status)                                                                         \
    case ERR_##name:                                                                                         \
        return #name;
        ERR_MAP(X)
#undef X
    default:
        return "UNKNOWN";
    }
}

const char *err_text(int code)
{
    switch (code) {
    case ERR_OK:
        return "success";
#define X(name, value, text, status)                                                                         \
    case ERR_##name:                                                                                         \
        return text;
        ERR_MAP(X)
#undef X
    default:
        return "unknown error";
    }
}

int err_exit_status(int code)
{
    switch (code) {
    case ERR_OK:
        return 0;
#define X(name, value, text, status)                                                                         \
    case ERR_##name:                                                                                         \
        return status;
        ERR_MAP(X)
#undef X
    default:
        return 3;
    }
}

/* Appends to buf at *at, cutting silently: an error text that is too long is still worth its beginning. */
static __attribute__((format(printf, 4, 5))) void append(char *buf, size_t bytes, size_t *at, const char *fmt,
                                                         ...)
{
    if (*at + 1 >= bytes)
        return;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(buf + *at, bytes - *at, fmt, ap);
    va_end(ap);
    if (n > 0)
        *at = (size_t)n < bytes - *at ? *at + (size_t)n : bytes - 1;
}

const char *err_format(const struct err *e, char *buf, size_t bytes)
{
    if (bytes == 0)
        return buf;
    buf[0] = '\0';
    size_t at = 0;
    append(buf, bytes, &at, "%s", e->message[0] ? e->message : err_text(e->code));
    for (int i = 0; i < e->n_frames && i < ERR_MAX_FRAMES; i++)
        append(buf, bytes, &at, "%s%s", i == 0 ? " (" : "; ", e->frames[i]);
    if (e->n_frames > 0)
        append(buf, bytes, &at, ")");
    if (e->hint[0])
        append(buf, bytes, &at, ". %s", e->hint);
    return buf;
}

void bug_at(const char *file, int line, const char *fmt, ...)
{
    fprintf(stderr, "day0: bug at %s:%d: ", file, line);
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}
