/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the file in which results of whole reads are kept, by path, size, modification time, inode and
 * device. Refuses to be a source of trouble: what it cannot read is as if it were not there.
 */
#include <stdlib.h>
#include <string.h>

#include "preflight/payload_internal.h"

#define MAX_CACHE_BYTES (64u << 20)
#define MAX_ENTRIES     16384u
#define FORMAT          1

char *preflight_payload_cache_path(struct arena *arena)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base && base[0] == '/')
        return path_join(arena, base, "day0/payload.json");
    return home && home[0] == '/' ? path_join(arena, home, ".cache/day0/payload.json") : NULL;
}

static const struct json *entries_of(const struct json *tree)
{
    int64_t format = 0;
    const struct json *files = json_get(tree, "files");
    if (!json_i64(json_get(tree, "format"), &format) || format != FORMAT || !files ||
        files->type != JSON_ARRAY)
        return NULL;
    return files;
}

int payload_cache_open(struct payload_cache *x, const char *path, struct arena *arena, struct err *e)
{
    char *text;
    size_t n;
    *x = (struct payload_cache){.path = path};
    if (!path || file_read(path, MAX_CACHE_BYTES, arena, &text, &n, NULL))
        return ERR_OK;
    const struct json_limits limits = {.max_bytes = MAX_CACHE_BYTES, .max_depth = 8};
    const struct json *tree = NULL;
    if (json_parse(text, n, &limits, arena, &tree, NULL) || !(x->tree = entries_of(tree)))
        return ERR_OK;
    for (uint32_t i = 0; i < x->tree->n; i++) { /* later ones are newer, but there is one of each path */
        const char *key = json_string(json_get(json_at(x->tree, i), "path"));
        if (key && strmap_put(&x->by_path, key, strlen(key), i, NULL) == ERR_NOMEM)
            return err_set(e, ERR_NOMEM, "%s: no memory to read it", path);
    }
    return ERR_OK;
}

void payload_cache_release(struct payload_cache *x)
{
    strmap_release(&x->by_path);
}

static bool number_is(const struct json *entry, const char *key, uint64_t want)
{
    uint64_t v;
    return json_u64(json_get(entry, key), &v) && v == want;
}

static bool time_is(const struct json *entry, int64_t want)
{
    int64_t v;
    return json_i64(json_get(entry, "mtime_ns"), &v) && v == want;
}

static bool read_found(const struct json *entry, struct payload_found *out)
{
    const struct json *bad = json_get(entry, "not_finite"), *zero = json_get(entry, "zero");
    *out = (struct payload_found){0};
    if (!bad || !zero || bad->type != JSON_ARRAY || zero->type != JSON_ARRAY || bad->n > PAYLOAD_KEPT ||
        zero->n > PAYLOAD_KEPT || !json_u64(json_get(entry, "tensors"), &out->tensors) ||
        !json_u64(json_get(entry, "n_not_finite"), &out->n_not_finite) ||
        !json_u64(json_get(entry, "n_zero"), &out->n_all_zero) ||
        !json_u64(json_get(entry, "nan"), &out->values_nan) ||
        !json_u64(json_get(entry, "infinite"), &out->values_inf) || out->n_not_finite < bad->n ||
        (out->n_not_finite && !bad->n) || out->n_all_zero < zero->n || (out->n_all_zero && !zero->n))
        return false;
    for (uint32_t i = 0; i < bad->n; i++) {
        const struct json *t = json_at(bad, i);
        struct payload_tensor *to = &out->bad[i];
        if (!(to->name = json_string(json_get(t, "tensor"))) || !json_u64(json_get(t, "values"), &to->n) ||
            !json_u64(json_get(t, "nan"), &to->n_nan) || !json_u64(json_get(t, "infinite"), &to->n_inf) ||
            !json_u64(json_get(t, "first"), &to->first_bad))
            return false;
    }
    for (uint32_t i = 0; i < zero->n; i++) {
        if (!(out->zero[i] = json_string(json_at(zero, i))))
            return false;
    }
    return true;
}

bool payload_cache_get(const struct payload_cache *x, const struct payload_file *file, bool want_hash,
                       char sha256[65], struct payload_found *out)
{
    uint32_t at;
    if (!strmap_get(&x->by_path, file->path, strlen(file->path), &at))
        return false;
    const struct json *entry = json_at(x->tree, at);
    const char *hash = json_string(json_get(entry, "sha256"));
    bool hashed = hash && strlen(hash) == 64;
    if (!number_is(entry, "bytes", file->info.bytes) || !time_is(entry, file->info.mtime_ns) ||
        !number_is(entry, "inode", file->info.inode) || !number_is(entry, "device", file->info.device) ||
        (want_hash && !hashed) || !read_found(entry, out))
        return false;
    memcpy(sha256, hashed ? hash : "", hashed ? 65 : 1);
    return true;
}

static void write_entry(struct json_writer *w, const struct payload_file *file, const char *sha256)
{
    const struct payload_found *x = &file->found;
    json_begin_object(w);
    json_put_string(w, "path", file->path);
    json_put_u64(w, "bytes", file->info.bytes);
    json_put_i64(w, "mtime_ns", file->info.mtime_ns);
    json_put_u64(w, "inode", file->info.inode);
    json_put_u64(w, "device", file->info.device);
    json_put_string(w, "sha256", sha256[0] ? sha256 : NULL);
    json_put_u64(w, "tensors", x->tensors);
    json_put_u64(w, "n_not_finite", x->n_not_finite);
    json_put_u64(w, "n_zero", x->n_all_zero);
    json_put_u64(w, "nan", x->values_nan);
    json_put_u64(w, "infinite", x->values_inf);
    json_key(w, "not_finite");
    json_begin_array(w);
    for (size_t i = 0; i < PAYLOAD_KEPT && x->bad[i].name; i++) {
        json_begin_object(w);
        json_put_string(w, "tensor", x->bad[i].name);
        json_put_u64(w, "values", x->bad[i].n);
        json_put_u64(w, "nan", x->bad[i].n_nan);
        json_put_u64(w, "infinite", x->bad[i].n_inf);
        json_put_u64(w, "first", x->bad[i].first_bad);
        json_end_object(w);
    }
    json_end_array(w);
    json_key(w, "zero");
    json_begin_array(w);
    for (size_t i = 0; i < PAYLOAD_KEPT && x->zero[i]; i++)
        json_write_string(w, x->zero[i]);
    json_end_array(w);
    json_end_object(w);
}

int payload_cache_write(const struct payload_cache *x, const struct payload_file *files,
                        const struct preflight_payload_shard *shards, size_t n, struct err *e)
{
    struct strbuf text = STRBUF_INIT;
    struct strmap new = {0};
    struct json_writer w;
    size_t n_new = 0, n_old = x->tree ? x->tree->n : 0;
    int rc = ERR_OK;
    for (size_t i = 0; i < n && rc != ERR_NOMEM; i++) {
        if (files[i].read && files[i].settled && n_new++ < MAX_ENTRIES)
            rc = strmap_put(&new, files[i].path, strlen(files[i].path), 0, NULL);
    }
    if (n_new == 0 || rc == ERR_NOMEM) {
        strmap_release(&new);
        return rc == ERR_NOMEM ? err_set(e, rc, "%s: no memory to write it", x->path) : ERR_OK;
    }
    size_t room = n_new < MAX_ENTRIES ? MAX_ENTRIES - n_new : 0;
    json_writer_init(&w, &text, false);
    json_begin_object(&w);
    json_put_i64(&w, "format", FORMAT);
    json_key(&w, "files");
    json_begin_array(&w);
    for (size_t i = n_old > room ? n_old - room : 0; i < n_old; i++) {
        const char *key = json_string(json_get(json_at(x->tree, i), "path"));
        if (key && !strmap_get(&new, key, strlen(key), NULL))
            json_write_tree(&w, json_at(x->tree, i));
    }
    for (size_t i = 0; i < n; i++) {
        if (strmap_get(&new, files[i].path ? files[i].path : "", files[i].path ? strlen(files[i].path) : 0,
                       NULL) &&
            files[i].read && files[i].settled)
            write_entry(&w, &files[i], shards[i].sha256);
    }
    json_end_array(&w);
    json_end_object(&w);
    strbuf_putc(&text, '\n');
    strmap_release(&new);
    char dir[4096];
    const char *slash = strrchr(x->path, '/');
    size_t length = slash ? (size_t)(slash - x->path) : 0;
    if (strbuf_failed(&text))
        rc = err_set(e, ERR_NOMEM, "%s: no memory to write it", x->path);
    else if (length && length < sizeof(dir)) {
        memcpy(dir, x->path, length);
        dir[length] = '\0';
        rc = dir_make(dir, e);
    }
    if (rc >= 0)
        rc = file_write_atomic(x->path, text.data, text.len, e);
    strbuf_release(&text);
    return rc;
}
