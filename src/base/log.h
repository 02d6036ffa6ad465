/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines to a sink, and `struct d0`, the root of everything that would otherwise be global.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/err.h"
#include "base/mem.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

struct log {
    enum log_level level; /* lines below it are dropped */
    int fd;               /* -1: drop everything */
    /* optional; called instead of writing to fd, must be thread-safe */
    void (*sink)(void *context, enum log_level level, const char *line);
    void *context;
};

/* One write(2) per line: "2026-11-29T12:00:00.123Z info serve: ..." Thread-safe. l may be NULL. */
void log_line(struct log *l, enum log_level level, const char *room, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Passed to whatever needs accounting or a log; created by the program, never by a library room. */
struct d0 {
    struct mem mem;
    struct log log;
};

#endif
