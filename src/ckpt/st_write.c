/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: writing one safetensors file, streamed, replaced atomically, in the reference writer's order and
 * padding. Refuses to write what st_parse() would not accept.
 */
#include "ckpt/ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/thread.h"

/* Largest element first keeps every tensor aligned to its type within the data. */
static int writer_order(const void *x, const void *y)
{
    const struct st_entry *a = *(const struct st_entry *const *)x, *b = *(const struct st_entry *const *)y;
    unsigned bits_a = dtype_bits(a->dtype), bits_b = dtype_bits(b->dtype);
    if (bits_a != bits_b)
        return bits_a > bits_b ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int by_name(const void *x, const void *y)
{
    return strcmp((*(const struct st_entry *const *)x)->name, (*(const struct st_entry *const *)y)->name);
}

static int check_entries(const struct st_entry *const *sorted_by_name, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        const struct st_entry *t = sorted_by_name[i];
        uint64_t bytes;
        if (!utf8_valid(t->name, strlen(t->name)) || !strcmp(t->name, "__metadata__"))
            return err_set(e, ERR_INVALID, "%s: no tensor may have this name", t->name);
        if (i && !strcmp(t->name, sorted_by_name[i - 1]->name))
            return err_set(e, ERR_INVALID, "%s: two tensors of this name", t->name);
        if (dtype_bits(t->dtype) == 0)
            return err_set(e, ERR_INVALID, "%s: unknown element type %u", t->name, t->dtype);
        if (t->n_dims > TENSOR_MAX_DIMS)
            return err_set(e, ERR_INVALID, "%s: %u dimensions", t->name, t->n_dims);
        for (uint32_t d = 0; d < t->n_dims; d++) {
            if (t->dims[d] < 0)
                return err_set(e, ERR_INVALID, "%s: a negative dimension", t->name);
        }
        if (!shape_bytes(t->dims, t->n_dims, t->dtype, &bytes))
            return err_set(e, ERR_INVALID, "%s: its size is no whole number of bytes below 2^64", t->name);
        if (bytes && !t->data)
            return err_set(e, ERR_INVALID, "%s: no data", t->name);
    }
    return ERR_OK;
}

void st_write_header(struct strbuf *header, const struct st_entry *const *entries, size_t n,
                     const char *const *meta_keys, const char *const *meta_values, size_t n_meta)
{
    struct json_writer w;
    uint64_t at = 0, bytes = 0;
    json_writer_init(&w, header, false);
    json_begin_object(&w);
    if (n_meta) {
        json_key(&w, "__metadata__");
        json_begin_object(&w);
        for (size_t i = 0; i < n_meta; i++)
            json_put_string(&w, meta_keys[i], meta_values[i]);
        json_end_object(&w);
    }
    for (size_t i = 0; i < n; i++) {
        const struct st_entry *t = entries[i];
        (void)shape_bytes(t->dims, t->n_dims, t->dtype, &bytes); /* the caller saw it succeed */
        json_key(&w, t->name);
        json_begin_object(&w);
        json_put_string(&w, "dtype", dtype_name(t->dtype));
        json_key(&w, "shape");
        json_begin_array(&w);
        for (uint32_t d = 0; d < t->n_dims; d++)
            json_write_i64(&w, t->dims[d]);
        json_end_array(&w);
        json_key(&w, "data_offsets");
        json_begin_array(&w);
        json_write_u64(&w, at);
        at += bytes;
        json_write_u64(&w, at);
        json_end_array(&w);
        json_end_object(&w);
    }
    json_end_object(&w);
    while (header->len % 8 && !strbuf_failed(header))
        strbuf_putc(header, ' ');
}

static int write_all(int fd, const char *path, const void *data, uint64_t n, struct err *e)
{
    const char *p = data;
    while (n > 0) {
        size_t part = n < (1u << 30) ? (size_t)n : (1u << 30);
        ssize_t put = write(fd, p, part);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_set(e, ERR_IO, "%s: cannot write: %m", path);
        p += put;
        n -= (uint64_t)put;
    }
    return ERR_OK;
}

static int write_file(int fd, const char *path, const struct strbuf *header,
                      const struct st_entry *const *entries, size_t n, struct err *e)
{
    unsigned char length[8];
    for (unsigned i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)header->len >> (8 * i));
    int rc = write_all(fd, path, length, sizeof(length), e);
    if (!rc)
        rc = write_all(fd, path, strbuf_cstr(header), header->len, e);
    for (size_t i = 0; !rc && i < n; i++) {
        uint64_t bytes = 0;
        (void)shape_bytes(entries[i]->dims, entries[i]->n_dims, entries[i]->dtype, &bytes);
        rc = write_all(fd, path, entries[i]->data, bytes, e);
    }
    if (!rc && fsync(fd) != 0)
        rc = err_set(e, ERR_IO, "%s: cannot sync: %m", path);
    return rc;
}

/* To a new file beside the old one, then renamed over it: a reader that has the old one mapped keeps it
 * whole. */
static int write_replacing(const char *path, const struct strbuf *header,
                           const struct st_entry *const *entries, size_t n, struct err *e)
{
    char temporary[4096];
    uint64_t random;
    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != (ssize_t)sizeof(random))
        random = clock_ns() ^ (uint64_t)getpid() << 48;
    int m = snprintf(temporary, sizeof(temporary), "%s.%016llx.tmp", path, (unsigned long long)random);
    if (m < 0 || (size_t)m >= sizeof(temporary))
        return err_set(e, ERR_INVALID, "%s: the path is too long", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_set(e, ERR_IO, "%s: cannot create a file beside it: %m", path);
    int rc = write_file(fd, path, header, entries, n, e);
    if (close(fd) != 0 && !rc)
        rc = err_set(e, ERR_IO, "%s: cannot close: %m", path);
    if (!rc && rename(temporary, path) != 0)
        rc = err_set(e, ERR_IO, "%s: cannot rename the new content into place: %m", path);
    if (rc)
        unlink(temporary);
    return rc;
}

int st_write(const char *path, const struct st_entry *entries, size_t n, const char *const *meta_keys,
             const char *const *meta_values, size_t n_meta, struct err *e)
{
    struct strbuf header = STRBUF_INIT;
    const struct st_entry **order = calloc(n + 1, sizeof(*order));
    if (!order)
        return err_set(e, ERR_NOMEM, "%s: no memory for %zu tensors", path, n);
    for (size_t i = 0; i < n; i++)
        order[i] = &entries[i];
    qsort(order, n, sizeof(*order), by_name);
    int rc = check_entries(order, n, e);
    if (!rc) {
        qsort(order, n, sizeof(*order), writer_order);
        st_write_header(&header, order, n, meta_keys, meta_values, n_meta);
        if (strbuf_failed(&header))
            rc = err_set(e, ERR_NOMEM, "%s: no memory for the header", path);
        else if (header.len > ST_MAX_HEADER_BYTES)
            rc = err_set(e, ERR_LIMIT, "%s: a header of %zu bytes, at most %u are allowed", path, header.len,
                         ST_MAX_HEADER_BYTES);
    }
    if (!rc)
        rc = write_replacing(path, &header, order, n, e);
    strbuf_release(&header);
    free(order);
    return rc;
}
