/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of struct host, where they come from, and what a capture keeps. Private to this room.
 */
#ifndef HOST_HOST_INTERNAL_H
#define HOST_HOST_INTERNAL_H

#include "host/host.h"
#include "host/host_parse.h"

#define HOST_MAX_LIBRARIES     32
#define HOST_MAX_DEVICES       64   /* cards, links */
#define HOST_MAX_CAPTURED      1024 /* files */
#define HOST_MAX_CAPTURED_TEXT ((size_t)1 << 20)

struct host_recorded {
    const char *path, *text;
};
struct host_record {
    struct arena arena;
    struct host_recorded files[HOST_MAX_CAPTURED];
    size_t n;
};

/* Built in: hardware/compat.json. */
struct host_data {
    const char *name, *text;
    size_t n;
};
extern const struct host_data host_compat[];
extern const size_t host_compat_n;

/* This machine, with everything that was read kept in `record` (NULL: nothing kept). */
int host_open_live(struct host **out, const char *dir_for_disk, struct host_record *record, struct err *e);
/* What kernel text tells; the rest of *h is there already. */
void host_read_facts(struct host *h, const struct host_source *from);

/* Counts, cache sizes and the text of the topology; leaves everything unknown if hwloc fails. */
void host_probe_topology(struct host *h);
/* 0 or ERR_NOMEM. */
int host_probe_libraries(struct host *h);
/* Cards, links, and the driver's version: from kernel text. */
void host_read_devices(struct host *h, const struct host_source *from);
/* The member "libraries". */
void host_put_libraries(struct json_writer *w, const struct host *h);
/* A number, or null where it is `unknown`. */
void host_put_known(struct json_writer *w, const char *key, uint64_t v, uint64_t unknown);
struct host_library *host_find_library(const struct host *h, const char *name); /* or NULL */

/* Typed members of untrusted documents: strings without control characters but newlines, in the arena; absent
 * or null gives NULL. False and ERR_FORMAT for another type. */
bool host_take_string(struct arena *arena, const struct json *object, const char *key, const char **out,
                      const char *document, struct err *e);
bool host_take_count(const struct json *object, const char *key, uint64_t max, uint64_t *out,
                     const char *document, struct err *e);
/* Parses a document of at most 32 MiB: an object whose "format" is `format`. */
int host_parse_document(const char *text, size_t n, const char *format, struct arena *arena,
                        const struct json **out, const char *document, struct err *e);

#endif
