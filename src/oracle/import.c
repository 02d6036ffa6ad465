/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: a trace from what another tool dumped: a directory of .npy or .safetensors files, and a map from its
 * names to ours, which is data. Refuses names of the map that are not there, two arrays for one probe, and
 * shapes whose rows are not the tokens.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "oracle/import_impl.h"
#include "oracle/oracle.h"
#include "oracle/trace_file.h"

#define IMPORT_MAX_HEADER ((uint64_t)64 << 20)
#define IMPORT_MAX_MAP    ((size_t)16 << 20)
#define ROWS_BYTES        ((uint64_t)4 << 20)

struct import {
    const char *dir, *map_path;
    struct arena *arena;
    struct import_source *sources;
    size_t n_sources, capacity;
    bool *used; /* [n_sources] */
    const struct json *map;
    int32_t *ids;
    size_t n_ids;
    struct trace_writer writer;
    size_t *from; /* by slot: source */
    struct strbuf header;
};

/* ---- what is there ---- */

static int add_source(struct import *m, const struct import_source *s, struct err *e)
{
    if (vec_reserve((void **)&m->sources, &m->capacity, m->n_sources + 1, sizeof *m->sources))
        return err_set(e, ERR_NOMEM, "no memory for the arrays of %s", m->dir);
    m->sources[m->n_sources++] = *s;
    return ERR_OK;
}

static int list_safetensors(struct import *m, int fd, const char *path, uint64_t bytes, struct err *e)
{
    struct st_file file;
    int rc = st_read_head(fd, path, bytes, IMPORT_MAX_HEADER, m->arena, &file, e);
    for (size_t i = 0; rc == 0 && i < file.n_tensors; i++) {
        const struct ckpt_tensor *t = &file.tensors[i];
        struct import_source s = {
            .name = t->name, .path = path, .dtype = t->dtype, .n_dims = t->n_dims, .offset = t->offset};
        memcpy(s.dims, t->dims, sizeof s.dims);
        rc = add_source(m, &s, e);
    }
    return rc;
}

static int list_file(struct import *m, const char *name, struct err *e)
{
    const bool npy = str_ends(name, ".npy");
    struct file_info info;
    int fd;
    const char *path = path_join(m->arena, m->dir, name);
    struct import_source s = {.name = arena_strndup(m->arena, name, strlen(name) - (npy ? 4 : 0)),
                              .path = path};
    if (!path || !s.name)
        return err_set(e, ERR_NOMEM, "no memory for the names of %s", m->dir);
    int rc = file_stat(path, &info, e);
    if (rc == 0)
        rc = file_open_read(path, &fd, e);
    if (rc)
        return rc;
    rc = npy ? npy_open(fd, path, info.bytes, &s, e) : list_safetensors(m, fd, path, info.bytes, e);
    close(fd);
    return rc == 0 && npy ? add_source(m, &s, e) : rc;
}

static int list_dir(struct import *m, struct err *e)
{
    char **names;
    size_t n;
    int rc = dir_list(m->dir, m->arena, &names, &n, e);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (str_ends(names[i], ".npy") || str_ends(names[i], ".safetensors"))
            rc = list_file(m, names[i], e);
    if (rc == 0 && m->n_sources == 0)
        rc = err_set(e, ERR_MISSING, "%s: no *.npy and no *.safetensors", m->dir);
    if (rc == 0 && !(m->used = arena_alloc_n(m->arena, m->n_sources, sizeof *m->used)))
        rc = err_set(e, ERR_NOMEM, "no memory for the arrays of %s", m->dir);
    return rc;
}

static const struct import_source *find_source(const struct import *m, const char *name)
{
    for (size_t i = 0; i < m->n_sources; i++)
        if (!strcmp(m->sources[i].name, name))
            return &m->sources[i];
    return NULL;
}

/* ---- token ids: a list in the map, or an array ---- */

static int ids_from_list(struct import *m, const struct json *list, struct err *e)
{
    m->n_ids = list->n;
    m->ids = arena_alloc_n(m->arena, m->n_ids + 1, sizeof *m->ids);
    if (!m->ids)
        return err_set(e, ERR_NOMEM, "no memory for %zu ids", m->n_ids);
    for (uint32_t i = 0; i < list->n; i++) {
        int64_t v;
        if (!json_i64(json_at(list, i), &v) || v < 0 || v > INT32_MAX)
            return err_set(e, ERR_FORMAT, "%s: token_ids[%u] is no id", m->map_path, i);
        m->ids[i] = (int32_t)v;
    }
    return ERR_OK;
}

static int ids_from_source(struct import *m, const struct import_source *s, struct err *e)
{
    const size_t each = s->dtype == D0_I64 ? 8 : 4;
    uint64_t n;
    int fd;
    if ((s->dtype != D0_I32 && s->dtype != D0_I64) || s->n_dims < 1 ||
        !shape_elements(s->dims, s->n_dims, &n) || n > TRACE_MAX_TOKENS ||
        (n && (uint64_t)s->dims[s->n_dims - 1] != n))
        return err_set(e, ERR_FORMAT, "%s: %s holds no token ids of one sequence", s->path, s->name);
    m->n_ids = (size_t)n;
    m->ids = arena_alloc_n(m->arena, m->n_ids + 1, sizeof *m->ids);
    unsigned char *raw = malloc(m->n_ids * each + 1);
    int rc = m->ids && raw ? file_open_read(s->path, &fd, e)
                           : err_set(e, ERR_NOMEM, "no memory for %zu ids", m->n_ids);
    if (rc == 0) {
        rc = file_pread(fd, s->path, raw, m->n_ids * each, s->offset, e);
        close(fd);
    }
    for (size_t i = 0; rc == 0 && i < m->n_ids; i++) {
        int64_t v = 0;
        memcpy(&v, raw + i * each, each); /* little endian, as the machines this runs on */
        if (v > INT32_MAX || v < 0)
            rc = err_set(e, ERR_FORMAT, "%s: %s[%zu] is %lld", s->path, s->name, i, (long long)v);
        m->ids[i] = (int32_t)v;
    }
    free(raw);
    return rc;
}

static int read_ids(struct import *m, struct err *e)
{
    const struct json *ids = json_get(m->map, "token_ids");
    const char *name = json_string(ids);
    const struct import_source *s = name ? find_source(m, name) : NULL;
    int rc;
    if (ids && ids->type == JSON_ARRAY)
        rc = ids_from_list(m, ids, e);
    else if (s)
        rc = ids_from_source(m, s, e);
    else
        return err_set(e, ERR_FORMAT, "%s: token_ids must be a list, or the name of an array that is there",
                       m->map_path);
    if (s)
        m->used[s - m->sources] = true;
    return rc == 0 && m->n_ids == 0 ? err_set(e, ERR_FORMAT, "%s: no token ids", m->map_path) : rc;
}

/* ---- names ---- */

/* One %d of the pattern stands for a number of decimal digits. */
static bool match(const char *pattern, const char *name, char *number, size_t bytes)
{
    const char *mark = strstr(pattern, "%d");
    number[0] = '\0';
    if (!mark)
        return !strcmp(pattern, name);
    size_t before = (size_t)(mark - pattern), after = strlen(mark + 2), n = strlen(name);
    if (n <= before + after || strncmp(pattern, name, before) != 0 ||
        strcmp(name + n - after, mark + 2) != 0 || n - before - after >= bytes)
        return false;
    memcpy(number, name + before, n - before - after);
    number[n - before - after] = '\0';
    return strspn(number, "0123456789") == strlen(number);
}

static const char *our_name(struct import *m, const char *pattern, const char *number)
{
    const char *mark = strstr(pattern, "%d");
    while (number[0] == '0' && number[1])
        number++; /* 007 of a file's name is layer 7 */
    return mark ? arena_printf(m->arena, "%.*s%s%s", (int)(mark - pattern), pattern, number, mark + 2)
                : arena_strdup(m->arena, pattern);
}

/* [T, width...], or that with an outer 1. */
static int add_slot(struct import *m, size_t source, const char *name, struct err *e)
{
    const struct import_source *s = &m->sources[source];
    char shape[96];
    uint64_t n;
    uint32_t first = s->n_dims > 2 && s->dims[0] == 1 && (uint64_t)s->dims[1] == m->n_ids ? 1 : 0;
    bool known = s->dtype == D0_F32 || s->dtype == D0_BF16 || s->dtype == D0_F16 || s->dtype == D0_F64;
    if (!known || s->n_dims < first + 2 || (uint64_t)s->dims[first] != m->n_ids ||
        !shape_elements(s->dims, s->n_dims, &n) || n == 0)
        return err_set(e, ERR_MISMATCH, "%s: %s is %s %s, wanted a float type and [%zu, width] for %s",
                       s->path, s->name, dtype_name(s->dtype),
                       shape_format(s->dims, s->n_dims, shape, sizeof shape), m->n_ids, name);
    for (size_t i = 0; i < m->writer.n_slots; i++)
        if (!strcmp(m->writer.slots[i].name, name))
            return err_set(e, ERR_FORMAT, "%s: %s and %s are both to be %s", m->map_path, s->name,
                           m->sources[m->from[i]].name, name);
    m->used[source] = true;
    m->from[m->writer.n_slots] = source;
    m->writer.slots[m->writer.n_slots++] =
        (struct trace_slot){.name = name, .dtype = D0_F32, .rows = m->n_ids, .width = n / m->n_ids};
    return ERR_OK;
}

static int map_name(struct import *m, const char *theirs, const char *ours, struct err *e)
{
    char number[24];
    bool any = false;
    const char *mark = strstr(theirs, "%d");
    if (!ours || !*ours || !mark != !strstr(ours, "%d") || (mark && strstr(mark + 2, "%d")))
        return err_set(e, ERR_FORMAT, "%s: \"%.100s\" must map to a name, with one %%d where it has one",
                       m->map_path, theirs);
    for (size_t i = 0; i < m->n_sources; i++) {
        if (!match(theirs, m->sources[i].name, number, sizeof number))
            continue;
        const char *name = our_name(m, ours, number);
        int rc = name ? add_slot(m, i, name, e) : err_set(e, ERR_NOMEM, "no memory for names");
        if (rc)
            return rc;
        any = true;
    }
    return any ? ERR_OK
               : err_set(e, ERR_MISSING, "%s: no array in %s is named %s", m->map_path, m->dir, theirs);
}

static int map_names(struct import *m, struct err *e)
{
    const struct json *names = json_get(m->map, "tensors");
    if (!names || names->type != JSON_OBJECT || names->n == 0)
        return err_set(e, ERR_FORMAT, "%s: \"tensors\" must be an object of their names and ours",
                       m->map_path);
    m->writer.slots = arena_alloc_n(m->arena, m->n_sources, sizeof *m->writer.slots);
    m->from = arena_alloc_n(m->arena, m->n_sources, sizeof *m->from);
    if (!m->writer.slots || !m->from)
        return err_set(e, ERR_NOMEM, "no memory for the tensors of a trace");
    for (uint32_t i = 0; i < names->n; i++) {
        const struct json_member *x = &names->as.members[i];
        for (size_t k = 0; k < m->n_sources; k++) {
            char number[24];
            if (m->used[k] && match(x->key, m->sources[k].name, number, sizeof number))
                return err_set(e, ERR_FORMAT, "%s: %s is used twice", m->map_path, m->sources[k].name);
        }
        int rc = map_name(m, x->key, json_string(&x->value), e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

/* ---- writing ---- */

static int copy_slot(struct import *m, size_t slot, struct err *e)
{
    const struct import_source *s = &m->sources[m->from[slot]];
    const struct trace_slot *t = &m->writer.slots[slot];
    const uint64_t each = dtype_bits(s->dtype) / 8;
    uint64_t most = ROWS_BYTES / 8 / t->width;
    int fd;
    most = most ? most : 1;
    most = most < t->rows ? most : t->rows;
    unsigned char *raw = malloc((size_t)(most * t->width * each));
    float *rows = malloc((size_t)(most * t->width) * sizeof *rows);
    int rc = raw && rows ? file_open_read(s->path, &fd, e)
                         : err_set(e, ERR_NOMEM, "no memory for rows of %s", s->name);
    if (rc == 0) {
        for (uint64_t at = 0; rc == 0 && at < t->rows; at += most) {
            uint64_t n = t->rows - at < most ? t->rows - at : most;
            rc = file_pread(fd, s->path, raw, (size_t)(n * t->width * each), s->offset + at * t->width * each,
                            e);
            if (rc == 0 && !tensor_to_f32(raw, s->dtype, (size_t)(n * t->width), rows))
                BUG("%s: type %u was accepted", s->name, s->dtype);
            if (rc == 0)
                rc = trace_write(&m->writer, slot, at, n, rows, e);
        }
        close(fd);
    }
    free(raw);
    free(rows);
    return rc;
}

static const char *text_of(const struct import *m, const char *key, const char *absent)
{
    const char *s = json_string(json_get(m->map, key));
    return s && *s ? s : absent;
}

static int write_trace(struct import *m, const char *out, struct err *e)
{
    const char *keys[8] = {"format", "producer", "dtype"},
               *values[8] = {TRACE_FORMAT, text_of(m, "producer", "unknown"), text_of(m, "dtype", "float32")};
    size_t n = 3;
    int64_t prompt;
    bool greedy = false;
    if (text_of(m, "kv_dtype", NULL)) {
        keys[n] = "kv_dtype";
        values[n++] = text_of(m, "kv_dtype", NULL);
    }
    if (json_i64(json_get(m->map, "prompt_tokens"), &prompt)) {
        keys[n] = "prompt_tokens";
        values[n++] = arena_printf(m->arena, "%lld", (long long)prompt);
        if (prompt < 1 || (uint64_t)prompt > m->n_ids)
            return err_set(e, ERR_FORMAT, "%s: prompt_tokens is %lld for %zu ids", m->map_path,
                           (long long)prompt, m->n_ids);
    }
    if (json_bool(json_get(m->map, "greedy"), &greedy) && greedy) {
        keys[n] = "greedy";
        values[n++] = "true";
        if (n < 2 || !json_get(m->map, "prompt_tokens"))
            return err_set(e, ERR_FORMAT, "%s: greedy without prompt_tokens", m->map_path);
    }
    m->writer.path = arena_printf(m->arena, "%s.partial", out);
    int rc = m->writer.path ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a path");
    if (rc == 0)
        rc = trace_layout(&m->writer, m->ids, m->n_ids, keys, values, n, &m->header, e);
    if (rc == 0)
        rc = trace_create(&m->writer, &m->header, m->ids, m->n_ids, e);
    for (size_t i = 0; rc == 0 && i < m->writer.n_slots; i++)
        rc = copy_slot(m, i, e);
    if (rc == 0 && fsync(m->writer.fd))
        rc = err_set(e, ERR_IO, "%s: cannot sync: %m", m->writer.path);
    if (rc == 0 && rename(m->writer.path, out))
        rc = err_set(e, ERR_IO, "%s: cannot rename into place: %m", m->writer.path);
    if (rc && m->writer.fd >= 0)
        unlink(m->writer.path);
    return rc;
}

int oracle_import(const char *dir, const char *map, const char *out, struct arena *arena,
                  struct import_result *result, struct err *e)
{
    struct import m = {.dir = dir, .map_path = map, .arena = arena, .writer = {.fd = -1}};
    char *text;
    size_t n;
    *result = (struct import_result){0};
    int rc = file_read(map, IMPORT_MAX_MAP, arena, &text, &n, e);
    if (rc == 0 && (rc = json_parse(text, n, NULL, arena, &m.map, e)) != 0)
        err_ctx(e, "reading %s", map);
    if (rc == 0)
        rc = list_dir(&m, e);
    if (rc == 0)
        rc = read_ids(&m, e);
    if (rc == 0)
        rc = map_names(&m, e);
    if (rc == 0)
        rc = write_trace(&m, out, e);
    for (size_t i = 0; rc == 0 && i < m.n_sources; i++)
        result->unused += !m.used[i];
    result->positions = m.n_ids;
    result->tensors = m.writer.n_slots;
    result->file_bytes = m.writer.file_bytes;
    trace_writer_release(&m.writer);
    strbuf_release(&m.header);
    free(m.sources);
    return rc;
}
