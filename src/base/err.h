/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors: "could not do the work". One negative code from one list, one struct that carries the message.
 * A bad model is not an error but a finding (base/finding.h); a broken invariant of ours is a BUG.
 *
 * Use: the last parameter of a fallible function is `struct err *e` (NULL allowed). On failure call
 * `return err_set(e, ERR_IO, "cannot read %s: %s", ...)`; on the way up add frames with err_ctx() and,
 * where the user can do something, one err_hint(). On success *e is untouched. Nothing here allocates.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stddef.h>

/* name, value, text, exit status of the program when this error ends it (2 usage, 3 machine) */
#define ERR_MAP(X)                                                                                           \
    X(NOMEM, -1, "out of memory", 3)                                                                         \
    X(IO, -2, "input/output failed", 3)                                                                      \
    X(FORMAT, -3, "malformed data", 1)                                                                       \
    X(UNSUPPORTED, -4, "not supported", 1)                                                                   \
    X(MISSING, -5, "not found", 2)                                                                           \
    X(MISMATCH, -6, "does not match", 1)                                                                     \
    X(LIMIT, -7, "limit exceeded", 2)                                                                        \
    X(DEVICE, -8, "device failed", 3)                                                                        \
    X(COMM, -9, "communication failed", 3)                                                                   \
    X(TIMEOUT, -10, "deadline passed", 3)                                                                    \
    X(CANCELLED, -11, "cancelled", 3)                                                                        \
    X(INVALID, -12, "invalid argument", 2)                                                                   \
    X(BUSY, -13, "resource in use", 3)                                                                       \
    X(USAGE, -14, "wrong usage", 2)

enum err_code {
    ERR_OK = 0,
#define X(name, value, text, status) ERR_##name = value,
    ERR_MAP(X)
#undef X
};

#define ERR_MAX_FRAMES 8

struct err {
    int code;
    int line;         /* where err_set was called */
    const char *file; /* static string */
    int n_frames;
    char message[1024];
    char frames[ERR_MAX_FRAMES][160]; /* innermost first; further ones are dropped */
    char hint[256];                   /* what to do; empty if nobody said */
};

void err_clear(struct err *e);

/* Sets *e and returns code. Replaces whatever was there. */
#define err_set(e, code, ...) err_set_at((e), (code), __FILE__, __LINE__, __VA_ARGS__)
int err_set_at(struct err *e, int code, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Adds "while ..." context. Like err_hint() it returns nothing: without *e it could not tell the code. */
void err_ctx(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Sets the remedy. The last one set wins. */
void err_hint(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

const char *err_name(int code); /* "IO" */
const char *err_text(int code); /* "input/output failed" */
int err_exit_status(int code);  /* 0, 1, 2 or 3 as in the table */

/* "message (while frame; while frame). hint" into buf, always terminated. Returns buf. */
const char *err_format(const struct err *e, char *buf, size_t bytes);

/* Our own invariant broke: message to stderr, abort. Never for what a model, peer or client sent. */
#define BUG(...) bug_at(__FILE__, __LINE__, __VA_ARGS__)
_Noreturn void bug_at(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
