/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: a trace that is written as values come: every tensor has its place from the start, and a hash of what
 * was written of it, so that an interrupted file can be told from a damaged one. Refuses rows out of order.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "oracle/trace_file.h"

#define CHECK_BYTES ((size_t)1 << 20)

static int put_all(int fd, const char *path, const void *data, uint64_t n, uint64_t at, struct err *e)
{
    const char *p = data;
    while (n > 0) {
        size_t part = n < ((uint64_t)1 << 30) ? (size_t)n : (size_t)1 << 30;
        ssize_t put = pwrite(fd, p, part, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_set(e, ERR_IO, "%s: cannot write: %m", path);
        p += put;
        at += (uint64_t)put;
        n -= (uint64_t)put;
    }
    return ERR_OK;
}

int trace_layout(struct trace_writer *w, const int32_t *ids, size_t n_ids, const char *const *meta_keys,
                 const char *const *meta_values, size_t n_meta, struct strbuf *header, struct err *e)
{
    struct st_entry *entries = calloc(w->n_slots + 1, sizeof *entries);
    const struct st_entry **order = calloc(w->n_slots + 1, sizeof *order);
    int rc = entries && order ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for the header of a trace");
    uint64_t at = 0, bytes;
    if (rc == 0) {
        entries[0] = (struct st_entry){
            .name = "token_ids", .dtype = D0_I32, .n_dims = 1, .dims = {(int64_t)n_ids}, .data = ids};
        at = n_ids * sizeof *ids;
    }
    for (size_t i = 0; rc == 0 && i < w->n_slots; i++) {
        struct trace_slot *s = &w->slots[i];
        struct st_entry *x = &entries[i + 1];
        *x = (struct st_entry){
            .name = s->name, .dtype = s->dtype, .n_dims = 2, .dims = {(int64_t)s->rows, (int64_t)s->width}};
        s->offset = at;
        if (s->rows > INT64_MAX || s->width > INT64_MAX || !shape_bytes(x->dims, 2, s->dtype, &bytes) ||
            !add_u64(at, bytes, &at) || at > INT64_MAX)
            rc = err_set(e, ERR_LIMIT, "%s is too large for a file", s->name);
    }
    for (size_t i = 0; rc == 0 && i <= w->n_slots; i++)
        order[i] = &entries[i];
    if (rc == 0) {
        st_write_header(header, order, w->n_slots + 1, meta_keys, meta_values, n_meta);
        rc = strbuf_failed(header) ? err_set(e, ERR_NOMEM, "no memory for the header of a trace")
                                   : sha256_hex(header->data, header->len, w->header_sha256, e);
    }
    if (rc == 0) {
        w->header_bytes = 8 + header->len;
        w->file_bytes = w->header_bytes + at;
        for (size_t i = 0; i < w->n_slots; i++)
            w->slots[i].offset += w->header_bytes;
    }
    free(entries);
    free(order);
    return rc;
}

int trace_create(struct trace_writer *w, const struct strbuf *header, const int32_t *ids, size_t n_ids,
                 struct err *e)
{
    unsigned char length[8];
    for (unsigned i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)header->len >> (8 * i));
    w->fd = open(w->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0)
        return err_set(e, ERR_IO, "%s: cannot create: %m", w->path);
    int rc = put_all(w->fd, w->path, length, 8, 0, e);
    if (rc == 0)
        rc = put_all(w->fd, w->path, header->data, header->len, 8, e);
    if (rc == 0)
        rc = put_all(w->fd, w->path, ids, n_ids * sizeof *ids, w->header_bytes, e);
    if (rc == 0 && ftruncate(w->fd, (off_t)w->file_bytes) != 0)
        rc = err_set(e, ERR_IO, "%s: cannot set its size: %m", w->path);
    return rc;
}

int trace_write(struct trace_writer *w, size_t slot, uint64_t first, uint64_t n, const void *rows,
                struct err *e)
{
    struct trace_slot *s = &w->slots[slot];
    const uint64_t row = s->width * 4;
    if (first != s->written || n > s->rows - first)
        BUG("rows %llu to +%llu of %s come after %llu of %llu", (unsigned long long)first,
            (unsigned long long)n, s->name, (unsigned long long)s->written, (unsigned long long)s->rows);
    int rc = ERR_OK;
    if (!s->hash)
        rc = sha256_begin(&s->hash, e);
    if (rc == 0)
        rc = put_all(w->fd, w->path, rows, n * row, s->offset + first * row, e);
    if (rc == 0 && sha256_update(s->hash, rows, (size_t)(n * row)))
        rc = err_set(e, ERR_NOMEM, "%s: cannot hash %s", w->path, s->name);
    s->written += rc == 0 ? n : 0;
    if (rc == 0 && s->written == s->rows) {
        struct sha256 *hash = s->hash;
        s->hash = NULL;
        if (sha256_end(hash, s->sha256))
            rc = err_set(e, ERR_NOMEM, "%s: cannot hash %s", w->path, s->name);
    }
    return rc;
}

int trace_check_slot(const struct trace_writer *w, size_t slot, const char *sha256, bool *same, struct err *e)
{
    const struct trace_slot *s = &w->slots[slot];
    const uint64_t bytes = s->rows * s->width * 4;
    struct sha256 *hash;
    char hex[65] = "";
    void *part = malloc(CHECK_BYTES);
    int rc = part ? sha256_begin(&hash, e) : err_set(e, ERR_NOMEM, "no memory to check a trace");
    if (rc) {
        free(part);
        return rc;
    }
    for (uint64_t at = 0; rc == 0 && at < bytes; at += CHECK_BYTES) {
        size_t n = bytes - at < CHECK_BYTES ? (size_t)(bytes - at) : CHECK_BYTES;
        rc = file_pread(w->fd, w->path, part, n, s->offset + at, e);
        if (rc == 0 && sha256_update(hash, part, n))
            rc = err_set(e, ERR_NOMEM, "%s: cannot hash %s", w->path, s->name);
    }
    free(part);
    if (rc)
        sha256_abort(hash);
    else if (sha256_end(hash, hex))
        rc = err_set(e, ERR_NOMEM, "%s: cannot hash %s", w->path, s->name);
    *same = rc == 0 && !strcmp(hex, sha256);
    return rc;
}

void trace_writer_release(struct trace_writer *w)
{
    for (size_t i = 0; i < w->n_slots; i++)
        if (w->slots[i].hash)
            sha256_abort(w->slots[i].hash);
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}
