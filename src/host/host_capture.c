/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the file in which a machine travels (docs/captures.md): what the probe read, what it asked the kernel
 * and the libraries, and replaying both. Refuses to trust one: sizes are bounded, types are checked, no path
 * in it is opened.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/thread.h"
#include "host/host_internal.h"

#define MAX_DOCUMENT_BYTES ((size_t)32 << 20)
#define MAX_FILES          4096

/* ---- reading untrusted documents */

int host_parse_document(const char *text, size_t n, const char *format, struct arena *arena,
                        const struct json **out, const char *document, struct err *e)
{
    const struct json_limits limits = {.max_bytes = MAX_DOCUMENT_BYTES, .max_depth = 16};
    struct err why = {0};
    const struct json *tree;
    int64_t version = 0;
    int rc = json_parse(text, n, &limits, arena, &tree, &why);
    if (rc)
        return err_set(e, rc, "%s: %s", document, why.message);
    const char *kind = json_string(json_get(tree, "format"));
    if (!kind || strcmp(kind, format) != 0)
        return err_set(e, ERR_FORMAT, "%s: \"format\" is not \"%s\"", document, format);
    if (!json_i64(json_get(tree, "version"), &version) || version != 1)
        return err_set(e, ERR_FORMAT, "%s: \"version\" is not 1", document);
    *out = tree;
    return ERR_OK;
}

bool host_take_string(struct arena *arena, const struct json *object, const char *key, const char **out,
                      const char *document, struct err *e)
{
    const struct json *v = json_get(object, key);
    if (!v || v->type == JSON_NULL)
        return true;
    const char *s = json_string(v);
    if (!s) {
        err_set(e, ERR_FORMAT, "%s: \"%s\" is no string", document, key);
        return false;
    }
    char *copy = arena_strndup(arena, s, strlen(s));
    for (char *p = copy; p && *p; p++)
        if (((unsigned char)*p < 0x20 && *p != '\n') || *p == 0x7f)
            *p = '?';
    if (!copy)
        err_set(e, ERR_NOMEM, "%s: no memory to read it", document);
    *out = copy;
    return copy != NULL;
}

bool host_take_count(const struct json *object, const char *key, uint64_t max, uint64_t *out,
                     const char *document, struct err *e)
{
    const struct json *v = json_get(object, key);
    uint64_t n;
    if (!v || v->type == JSON_NULL)
        return true;
    if (!json_u64(v, &n) || n > max) {
        err_set(e, ERR_FORMAT, "%s: \"%s\" is not a whole number from 0 to %llu", document, key,
                (unsigned long long)max);
        return false;
    }
    *out = n;
    return true;
}

/* ---- replaying */

struct replay {
    struct host *h;
    const char *name;
    struct err *e;
};

static bool string(const struct replay *r, const struct json *from, const char *key, const char **out)
{
    return host_take_string(&r->h->arena, from, key, out, r->name, r->e);
}

static bool count(const struct replay *r, const struct json *from, const char *key, unsigned *out)
{
    uint64_t v = 0;
    if (!host_take_count(from, key, 1u << 20, &v, r->name, r->e))
        return false;
    *out = (unsigned)v;
    return true;
}

static bool bytes(const struct replay *r, const struct json *from, const char *key, uint64_t *out)
{
    return host_take_count(from, key, UINT64_MAX, out, r->name, r->e);
}

static bool read_library(const struct replay *r, const struct json *v, struct host_library *l)
{
    *l = (struct host_library){0};
    if (!string(r, v, "name", &l->name) || !string(r, v, "version", &l->version) ||
        !string(r, v, "package", &l->package) || !string(r, v, "role", &l->role))
        return false;
    if (!l->name || !json_bool(json_get(v, "found"), &l->found)) {
        err_set(r->e, ERR_FORMAT, "%s: a library without \"name\" or \"found\"", r->name);
        return false;
    }
    l->role = l->role ? l->role : "";
    return true;
}

static bool read_libraries(const struct replay *r, const struct json *list)
{
    struct host *h = r->h;
    h->libraries = arena_alloc_n(&h->arena, HOST_MAX_LIBRARIES + 1, sizeof *h->libraries);
    if (!h->libraries || (list && (list->type != JSON_ARRAY || list->n > HOST_MAX_LIBRARIES))) {
        err_set(r->e, h->libraries ? ERR_FORMAT : ERR_NOMEM, "%s: \"libraries\" is no list of at most %d",
                r->name, HOST_MAX_LIBRARIES);
        return false;
    }
    for (uint32_t i = 0; list && i < list->n; i++) {
        if (!read_library(r, json_at(list, i), &h->libraries[i]))
            return false;
        h->n_libraries++;
    }
    if (!host_find_library(h, "nvidia driver")) /* its version comes from kernel text */
        h->libraries[h->n_libraries++] =
            (struct host_library){.name = "nvidia driver", .role = "device plugin"};
    return true;
}

static bool read_probed(const struct replay *r, const struct json *p)
{
    struct host *h = r->h;
    h->address_space_left = UINT64_MAX;
    return string(r, p, "hostname", &h->hostname) && string(r, p, "kernel", &h->kernel) &&
           string(r, p, "arch", &h->arch) && string(r, p, "compiler", &h->compiler) &&
           string(r, p, "topology", &h->topology) && count(r, p, "cores", &h->n_cores) &&
           count(r, p, "sockets", &h->n_sockets) && count(r, p, "numa_nodes", &h->n_numa) &&
           count(r, p, "threads_allowed", &h->n_threads_allowed) && bytes(r, p, "l2_bytes", &h->l2_bytes) &&
           bytes(r, p, "l3_bytes", &h->l3_bytes) && bytes(r, p, "disk_free_bytes", &h->disk_free) &&
           bytes(r, p, "address_space_left", &h->address_space_left) &&
           read_libraries(r, json_get(p, "libraries"));
}

static bool check_files(const struct replay *r, const struct json *files)
{
    if (!files || files->type != JSON_OBJECT || files->n > MAX_FILES) {
        err_set(r->e, ERR_FORMAT, "%s: \"files\" is no object of at most %d texts", r->name, MAX_FILES);
        return false;
    }
    for (uint32_t i = 0; i < files->n; i++) {
        const struct json_member *m = &files->as.members[i];
        if (m->key[0] != '/' || m->value.type != JSON_STRING) {
            err_set(r->e, ERR_FORMAT, "%s: member %u of \"files\" is no text under an absolute path", r->name,
                    i);
            return false;
        }
    }
    return true;
}

int host_parse_capture(struct host **out, const char *text, size_t n, const char *name, struct err *e)
{
    const struct json *tree;
    struct arena scratch;
    struct err why = {0};
    struct host *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, ERR_NOMEM, "no memory for the facts of a machine");
    arena_init(&h->arena, NULL, MEM_MISC);
    arena_init(&scratch, NULL, MEM_MISC);
    struct replay r = {h, name, &why};
    int rc = host_parse_document(text, n, "day0-capture", &scratch, &tree, name, &why);
    if (!rc) {
        const struct json *files = json_get(tree, "files");
        const struct host_source from = {.capture = files};
        h->capture = arena_strdup(&h->arena, name);
        if (check_files(&r, files) && read_probed(&r, json_get(tree, "probed")) &&
            string(&r, tree, "taken_at", &h->taken_at))
            host_read_facts(h, &from);
        rc = why.code;
    }
    arena_release(&scratch);
    if (rc) {
        host_close(h);
        return err_set(e, rc, "%s", why.message);
    }
    *out = h;
    return ERR_OK;
}

int host_open_capture(struct host **out, const char *path, struct err *e)
{
    struct arena scratch;
    char *text;
    size_t n;
    arena_init(&scratch, NULL, MEM_MISC);
    int rc = file_read(path, MAX_DOCUMENT_BYTES, &scratch, &text, &n, e);
    if (!rc)
        rc = host_parse_capture(out, text, n, path, e);
    arena_release(&scratch);
    return rc;
}

/* ---- capturing */

static void write_probed(const struct host *h, struct json_writer *w)
{
    json_key(w, "probed");
    json_begin_object(w);
    json_put_string(w, "hostname", h->hostname);
    json_put_string(w, "kernel", h->kernel);
    json_put_string(w, "arch", h->arch);
    json_put_string(w, "compiler", h->compiler);
    host_put_known(w, "cores", h->n_cores, 0);
    host_put_known(w, "sockets", h->n_sockets, 0);
    host_put_known(w, "numa_nodes", h->n_numa, 0);
    host_put_known(w, "threads_allowed", h->n_threads_allowed, 0);
    host_put_known(w, "l2_bytes", h->l2_bytes, 0);
    host_put_known(w, "l3_bytes", h->l3_bytes, 0);
    host_put_known(w, "disk_free_bytes", h->disk_free, 0);
    host_put_known(w, "address_space_left", h->address_space_left, UINT64_MAX);
    host_put_libraries(w, h);
    json_put_string(w, "topology", h->topology);
    json_end_object(w);
}

static void write_capture(const struct host *h, const struct host_record *record, struct json_writer *w)
{
    char when[64];
    time_t now = (time_t)(clock_unix_ns() / 1000000000);
    struct tm tm;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    json_begin_object(w);
    json_put_string(w, "format", "day0-capture");
    json_put_i64(w, "version", 1);
    json_put_string(w, "taken_at", when);
    json_put_string(w, "taken_by", "day0 " D0_VERSION);
    write_probed(h, w);
    json_key(w, "files");
    json_begin_object(w);
    for (size_t i = 0; i < record->n; i++)
        json_put_string(w, record->files[i].path, record->files[i].text);
    json_end_object(w);
    json_end_object(w);
}

int host_capture(const char *path, struct err *e)
{
    struct host_record *record = calloc(1, sizeof *record);
    struct host *h = NULL;
    struct strbuf text = STRBUF_INIT;
    if (!record)
        return err_set(e, ERR_NOMEM, "no memory for a capture");
    arena_init(&record->arena, NULL, MEM_MISC);
    int rc = host_open_live(&h, ".", record, e);
    if (!rc) {
        struct json_writer w;
        json_writer_init(&w, &text, true);
        write_capture(h, record, &w);
        strbuf_putc(&text, '\n');
        rc = strbuf_failed(&text) ? err_set(e, ERR_NOMEM, "no memory for a capture")
                                  : file_write_atomic(path, text.data, text.len, e);
    }
    strbuf_release(&text);
    host_close(h);
    arena_release(&record->arena);
    free(record);
    return rc;
}
