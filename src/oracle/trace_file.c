/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: reading a trace piece by piece: its header whole, then rows as they are asked for. Refuses tensors
 * whose rows are not those of the token ids, and types that the format does not have.
 */
#include "oracle/trace_file.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

#define TRACE_MAX_HEADER ((uint64_t)64 << 20)

static int read_ids(struct trace *t, const struct ckpt_tensor *x, struct err *e)
{
    const size_t each = x->dtype == D0_I64 ? 8 : 4;
    if ((x->dtype != D0_I32 && x->dtype != D0_I64) || x->n_dims != 1 || x->dims[0] < 1 ||
        (uint64_t)x->dims[0] > TRACE_MAX_TOKENS)
        return err_set(e, ERR_FORMAT, "%s: token_ids must be I32 or I64 of shape [T], T >= 1", t->path);
    t->n_ids = (size_t)x->dims[0];
    t->ids = arena_alloc_n(&t->arena, t->n_ids, sizeof *t->ids);
    char *raw = malloc(t->n_ids * each);
    int rc = t->ids && raw ? file_pread(t->fd, t->path, raw, t->n_ids * each, x->offset, e)
                           : err_set(e, ERR_NOMEM, "%s: no memory for token_ids", t->path);
    for (size_t i = 0; rc == 0 && i < t->n_ids; i++) {
        int64_t v = 0;
        int32_t narrow;
        memcpy(&narrow, raw + each * i, sizeof narrow);
        v = narrow;
        if (each == 8)
            memcpy(&v, raw + each * i, sizeof v);
        if (v < 0 || v > INT32_MAX)
            rc = err_set(e, ERR_FORMAT, "%s: token_ids[%zu] is %lld", t->path, i, (long long)v);
        t->ids[i] = (int32_t)v;
    }
    free(raw);
    return rc;
}

static bool readable(uint32_t dtype)
{
    return dtype == D0_F32 || dtype == D0_BF16 || dtype == D0_F16 || dtype == D0_F64 || dtype == D0_I32;
}

static int list_tensors(struct trace *t, const struct st_file *file, struct err *e)
{
    t->tensors = arena_alloc_n(&t->arena, file->n_tensors, sizeof *t->tensors);
    if (!t->tensors || strmap_reserve(&t->by_name, file->n_tensors))
        return err_set(e, ERR_NOMEM, "%s: no memory for %zu tensors", t->path, file->n_tensors);
    for (size_t i = 0; i < file->n_tensors; i++) {
        const struct ckpt_tensor *x = &file->tensors[i];
        uint64_t n;
        char shape[96];
        if (!strcmp(x->name, "token_ids"))
            continue;
        if (!readable(x->dtype) || x->n_dims < 2 || !shape_elements(x->dims, x->n_dims, &n) || n == 0 ||
            (uint64_t)x->dims[0] != t->n_ids)
            return err_set(e, ERR_FORMAT, "%s: %s is %s %s for %zu token ids, wanted [%zu, width]", t->path,
                           x->name, dtype_name(x->dtype),
                           shape_format(x->dims, x->n_dims, shape, sizeof shape), t->n_ids, t->n_ids);
        t->tensors[t->n_tensors] = (struct trace_tensor){
            .name = x->name, .dtype = x->dtype, .rows = t->n_ids, .width = n / t->n_ids, .offset = x->offset};
        if (strmap_put(&t->by_name, x->name, strlen(x->name), (uint32_t)t->n_tensors, NULL) < 0)
            return err_set(e, ERR_NOMEM, "%s: no memory for its names", t->path);
        t->n_tensors++;
    }
    return ERR_OK;
}

static int read_all(struct trace *t, struct err *e)
{
    struct file_info info;
    struct st_file file;
    int rc = file_stat(t->path, &info, e);
    if (rc == 0 && !info.exists)
        rc = err_set(e, ERR_MISSING, "%s: no such trace", t->path);
    if (rc == 0)
        rc = file_open_read(t->path, &t->fd, e);
    if (rc == 0)
        rc = st_read_head(t->fd, t->path, info.bytes, TRACE_MAX_HEADER, &t->arena, &file, e);
    if (rc)
        return rc;
    const struct ckpt_tensor *ids = NULL;
    for (size_t i = 0; i < file.n_tensors; i++)
        if (!strcmp(file.tensors[i].name, "token_ids"))
            ids = &file.tensors[i];
    if (!ids)
        return err_set(e, ERR_FORMAT, "%s: no tensor \"token_ids\"", t->path);
    t->metadata = file.metadata;
    const char *producer = trace_meta(t, "producer"), *precision = trace_meta(t, "dtype");
    t->producer = producer && *producer ? producer : "unknown";
    t->precision = precision && *precision ? precision : "float32";
    rc = read_ids(t, ids, e);
    return rc ? rc : list_tensors(t, &file, e);
}

int trace_open(struct trace **out, const char *path, struct err *e)
{
    struct trace *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for a trace");
    arena_init(&t->arena, NULL, MEM_MISC);
    t->fd = -1;
    t->path = arena_strdup(&t->arena, path);
    int rc = t->path ? read_all(t, e) : err_set(e, ERR_NOMEM, "no memory for a path");
    if (rc) {
        trace_close(t);
        return rc;
    }
    *out = t;
    return ERR_OK;
}

void trace_close(struct trace *t)
{
    if (!t)
        return;
    if (t->fd >= 0)
        close(t->fd);
    strmap_release(&t->by_name);
    arena_release(&t->arena);
    free(t);
}

const struct trace_tensor *trace_find(const struct trace *t, const char *name)
{
    uint32_t i;
    return strmap_get(&t->by_name, name, strlen(name), &i) ? &t->tensors[i] : NULL;
}

const char *trace_meta(const struct trace *t, const char *key)
{
    return json_string(json_get(t->metadata, key));
}

int trace_read(const struct trace *t, const struct trace_tensor *x, uint64_t first, uint64_t n, void *out,
               struct err *e)
{
    const uint64_t each = dtype_bits(x->dtype) / 8;
    if (first > x->rows || n > x->rows - first)
        return err_set(e, ERR_INVALID, "%s: rows %llu to +%llu of %s, which has %llu", t->path,
                       (unsigned long long)first, (unsigned long long)n, x->name,
                       (unsigned long long)x->rows);
    const uint64_t count = n * x->width, at = x->offset + first * x->width * each;
    if (x->dtype == D0_F32 || x->dtype == D0_I32)
        return file_pread(t->fd, t->path, out, (size_t)(count * each), at, e);
    void *raw = malloc(count ? (size_t)(count * each) : 1);
    int rc = raw ? file_pread(t->fd, t->path, raw, (size_t)(count * each), at, e)
                 : err_set(e, ERR_NOMEM, "%s: no memory for rows of %s", t->path, x->name);
    if (rc == 0 && !tensor_to_f32(raw, x->dtype, (size_t)count, out))
        rc = err_set(e, ERR_FORMAT, "%s: %s is of type %s", t->path, x->name, dtype_name(x->dtype));
    free(raw);
    return rc;
}
