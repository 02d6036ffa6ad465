/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the form of a log line. One line is one write, so that lines of several processes never mix.
 * Refuses: buffering, rotation, and control characters: what a client sent cannot forge a line of its own.
 */
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/thread.h"

#define LINE_BYTES 4096

static size_t put_prefix(char *line, size_t bytes, enum log_level level, const char *room)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    int64_t now = clock_unix_ns();
    time_t seconds = (time_t)(now / 1000000000);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    size_t n = strftime(line, bytes, "%Y-%m-%dT%H:%M:%S", &tm);
    int m = snprintf(line + n, bytes - n, ".%03dZ %s %s: ", (int)(now / 1000000 % 1000),
                     (unsigned)level <= LOG_ERROR ? names[level] : "?", room);
    if (m < 0)
        return n;
    n += (size_t)m;
    return n < bytes ? n : bytes - 1;
}

void log_line(struct log *l, enum log_level level, const char *room, const char *fmt, ...)
{
    if (!l || level < l->level || (!l->sink && l->fd < 0))
        return;
    char line[LINE_BYTES];
    size_t room_for_text = sizeof(line) - 1; /* one byte stays for the newline */
    size_t start = put_prefix(line, room_for_text, level, room), end = start;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line + start, room_for_text - start, fmt, ap);
    va_end(ap);
    if (n > 0)
        end = (size_t)n < room_for_text - start ? start + (size_t)n : room_for_text - 1;
    for (size_t i = start; i < end; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F)
            line[i] = ' ';
    }
    line[end] = '\0';
    if (l->sink) {
        l->sink(l->context, level, line);
        return;
    }
    line[end++] = '\n';
    ssize_t written;
    do
        written = write(l->fd, line, end);
    while (written < 0 && errno == EINTR);
}
