/* SPDX-License-Identifier: Apache-2.0
 *
 * A trace (a reference file, docs/references.md) that is read a few rows at a time (others see it through
 * oracle.h), and one that is written as values come (for oracle itself). Unlike a reference that is taken
 * into memory, a trace may hold values that are not finite: they are what is looked for.
 */
#ifndef ORACLE_TRACE_FILE_H
#define ORACLE_TRACE_FILE_H

#include "ckpt/ckpt.h"

#define TRACE_FORMAT     "day0-reference-1"
#define TRACE_MAX_TOKENS ((uint64_t)1 << 24)
#define TRACE_LOGITS     "logits"

/* One tensor [rows, width]; rows are those of the token ids. */
struct trace_tensor {
    const char *name;
    uint32_t dtype; /* F32, BF16, F16, F64, or I32: choices that a recording handed on */
    uint64_t rows, width;
    uint64_t offset; /* in the file */
};

struct trace {
    struct arena arena;
    const char *path;
    int fd;
    const struct json *metadata; /* or NULL */
    const char *producer, *precision;
    int32_t *ids;
    size_t n_ids;
    struct trace_tensor *tensors; /* all but the ids, in the order of the file */
    size_t n_tensors;
    struct strmap by_name;
};

/* ERR_MISSING, ERR_FORMAT (what the format does not allow), ERR_IO, ERR_NOMEM. */
int trace_open(struct trace **out, const char *path, struct err *e);
void trace_close(struct trace *t);
const struct trace_tensor *trace_find(const struct trace *t, const char *name); /* NULL if absent */
const char *trace_meta(const struct trace *t, const char *key);                 /* NULL if absent */
/* Rows [first, first + n): float types widened or narrowed to float32; I32 as it is. out[n * width]. */
int trace_read(const struct trace *t, const struct trace_tensor *x, uint64_t first, uint64_t n, void *out,
               struct err *e);

/* ---- writing ---- */
struct trace_slot { /* one tensor of the file to be: [rows, width] of F32 or I32 */
    const char *name;
    uint32_t dtype;
    uint64_t rows, width;
    uint64_t offset;     /* in the file, set by trace_layout */
    struct sha256 *hash; /* of the rows that were written so far; NULL: none, or finished */
    uint64_t written;    /* rows */
    char sha256[65];     /* once all rows are written */
};
struct trace_writer {
    int fd;
    const char *path; /* of the file that is being written; the caller's */
    struct trace_slot *slots;
    size_t n_slots;
    uint64_t header_bytes, file_bytes; /* header with its length */
    char header_sha256[65];
};
/* Gives every slot its place: ids first, then slots in their order. The header is written to `header`. */
int trace_layout(struct trace_writer *w, const int32_t *ids, size_t n_ids, const char *const *meta_keys,
                 const char *const *meta_values, size_t n_meta, struct strbuf *header, struct err *e);
/* Creates the file at w->path (an older one is replaced) with header and ids. */
int trace_create(struct trace_writer *w, const struct strbuf *header, const int32_t *ids, size_t n_ids,
                 struct err *e);
/* Rows must come in order. */
int trace_write(struct trace_writer *w, size_t slot, uint64_t first, uint64_t n, const void *rows,
                struct err *e);
/* Is what the file holds of this slot what sha256 says? */
int trace_check_slot(const struct trace_writer *w, size_t slot, const char *sha256, bool *same,
                     struct err *e);
void trace_writer_release(struct trace_writer *w); /* closes; keeps the file */

#endif
