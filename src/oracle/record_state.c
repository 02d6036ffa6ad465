/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: how a recording goes on after an interruption. Beside the partial trace stands a state: who this run
 * is (a hash of model, architecture file, ids, layers, probes, device and program), hashes of every tensor
 * that is done, and the values that later pieces read, all under one more hash. Refuses a partial trace or a
 * state of another run, or one that was damaged: nothing of it is used.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "oracle/near_tie.h"
#include "oracle/record_impl.h"

#define STATE_FORMAT   "day0-recording-1"
#define STATE_MAX_JSON ((uint64_t)64 << 20)

/* ---- identity and header ---- */

static const char *dtype_word(uint32_t dtype)
{
    return dtype == D0_BF16 ? "bfloat16" : dtype == D0_F16 ? "float16" : "float32";
}

/* How the operators that run choose, for whoever asks how near a choice was. NULL: none does. */
static int describe_choices(struct recording *r, const char **out, struct err *e)
{
    struct choice_rules rules;
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    size_t n = 0;
    int rc = choice_rules_of(&r->stream, r->arena, &rules, e);
    for (size_t i = 0; rc == 0 && i < rules.n; i++)
        if (r->wanted[rules.list[i].node])
            rules.list[n++] = rules.list[i];
    rules.n = n;
    if (rc || n == 0)
        return rc;
    json_writer_init(&w, &text, false);
    choice_rules_write(&rules, &w);
    *out = strbuf_failed(&text) ? NULL : arena_strdup(r->arena, strbuf_cstr(&text));
    strbuf_release(&text);
    return *out ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for the header of a trace");
}

static int make_header(struct recording *r, struct err *e)
{
    const struct spec *s = r->m->spec;
    struct d0_device_info info = {.size = sizeof info};
    char manifest[65], positions[32], layers[32], bits[16];
    int rc = ckpt_manifest_sha256(r->m->ckpt, manifest, e);
    if (rc == 0)
        rc = dev_info(r->m->dev, &info, e);
    if (rc)
        return rc;
    const char *producer = arena_printf(r->arena, "day0 %s, %s (%s)", D0_VERSION, info.name, info.variant);
    snprintf(bits, sizeof bits, "%u", spec_activation_bits(s->graph));
    snprintf(positions, sizeof positions, "%zu", r->o->n_ids);
    snprintf(layers, sizeof layers, "%d-%d", r->out->first_layer, r->out->last_layer);
    const char *choices = NULL;
    rc = describe_choices(r, &choices, e);
    if (rc)
        return rc;
    const char *keys[] = {"format",      "producer",        "dtype",           "kv_dtype",
                          "model",       "architecture",    "manifest_sha256", "arch_sha256",
                          "arch_file",   "layers",          "prompt_tokens",   "order",
                          "activations", "activation_bits", NEAR_TIE_META};
    const char *slash = strrchr(r->m->ckpt->dir, '/'),
               *values[] = {TRACE_FORMAT,
                            producer,
                            "float32",
                            dtype_word(s->kv_dtype),
                            slash && slash[1] ? slash + 1 : r->m->ckpt->dir,
                            s->architecture ? s->architecture : "",
                            manifest,
                            s->arch_sha256,
                            s->arch_name,
                            layers,
                            positions,
                            "graph",
                            spec_activations_name(s->activations),
                            bits,
                            choices};
    return producer ? trace_layout(&r->writer, r->o->ids, r->o->n_ids, keys, values,
                                   ARRAY_LEN(keys) - !choices, &r->header, e)
                    : err_set(e, ERR_NOMEM, "no memory for the header of a trace");
}

/* The header names model, device, layers and probes. To it come ids, the trace it began from, and when the
 * weights were last written: their bytes are too many to hash. */
static int make_identity(struct recording *r, struct err *e)
{
    struct strbuf text = STRBUF_INIT;
    char ids[65], from[65] = "-";
    int rc = sha256_hex(r->o->ids, r->o->n_ids * sizeof *r->o->ids, ids, e);
    if (rc == 0 && r->from)
        rc = sha256_file(r->from->path, from, e);
    strbuf_printf(&text, "%s %s %s %s %d", STATE_FORMAT, r->writer.header_sha256, ids, from, r->o->watch);
    for (size_t i = 0; rc == 0 && i < r->m->ckpt->n_shards; i++) {
        const struct ckpt_shard *s = &r->m->ckpt->shards[i];
        const char *path = ckpt_path(r->m->ckpt, s->name);
        struct file_info info;
        rc = path ? file_stat(path, &info, e) : err_set(e, ERR_NOMEM, "no memory for a path");
        strbuf_printf(&text, "\n%s %llu %lld", s->name, (unsigned long long)(rc ? 0 : info.bytes),
                      (long long)(rc ? 0 : info.mtime_ns));
    }
    if (rc == 0 && strbuf_failed(&text))
        rc = err_set(e, ERR_NOMEM, "no memory for a state");
    if (rc == 0)
        rc = sha256_hex(text.data, text.len, r->identity, e);
    strbuf_release(&text);
    return rc;
}

/* ---- saving ---- */

struct saving {
    int fd;
    const char *path;
    struct sha256 *hash;
};

static int save_bytes(struct saving *x, const void *data, uint64_t n, bool hashed, struct err *e)
{
    const char *p = data;
    if (hashed && sha256_update(x->hash, data, (size_t)n))
        return err_set(e, ERR_NOMEM, "%s: cannot hash", x->path);
    while (n > 0) {
        ssize_t put = write(x->fd, p, n < ((uint64_t)1 << 30) ? (size_t)n : (size_t)1 << 30);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_set(e, ERR_IO, "%s: cannot write: %m", x->path);
        p += put;
        n -= (uint64_t)put;
    }
    return ERR_OK;
}

static void state_json(const struct recording *r, size_t next, struct strbuf *out)
{
    struct json_writer w;
    json_writer_init(&w, out, false);
    json_begin_object(&w);
    json_put_string(&w, "format", STATE_FORMAT);
    json_put_string(&w, "identity", r->identity);
    json_put_u64(&w, "next_node", r->stream.pieces[next].nodes[0]);
    json_put_string(&w, "not_finite", r->out->not_finite);
    json_put_u64(&w, "not_finite_node", r->not_finite_node);
    json_key(&w, "finished");
    json_begin_array(&w);
    for (size_t i = 0; i < r->writer.n_slots; i++)
        json_write_string(&w, r->writer.slots[i].sha256);
    json_end_array(&w);
    json_key(&w, "kept");
    json_begin_array(&w);
    for (uint32_t v = 0; v < r->g->n_values; v++)
        if (r->kept[v].data)
            json_write_u64(&w, v);
    json_end_array(&w);
    if (r->watched)
        watch_save(r, &w);
    json_end_object(&w);
}

static int save_all(struct recording *r, struct saving *x, const struct strbuf *json, struct err *e)
{
    unsigned char length[8];
    char hex[65];
    for (unsigned i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)json->len >> (8 * i));
    int rc = save_bytes(x, length, 8, true, e);
    if (rc == 0)
        rc = save_bytes(x, json->data, json->len, true, e);
    for (uint32_t v = 0; rc == 0 && v < r->g->n_values; v++)
        if (r->kept[v].data)
            rc = save_bytes(x, r->kept[v].data, r->kept[v].bytes, true, e);
    struct sha256 *hash = x->hash;
    x->hash = NULL;
    if (rc) {
        sha256_abort(hash);
        return rc;
    }
    if (sha256_end(hash, hex))
        return err_set(e, ERR_NOMEM, "%s: cannot hash", x->path);
    rc = save_bytes(x, hex, 64, false, e);
    return rc == 0 && fsync(x->fd) ? err_set(e, ERR_IO, "%s: cannot sync: %m", x->path) : rc;
}

int record_save(struct recording *r, size_t next, struct err *e)
{
    struct strbuf json = STRBUF_INIT;
    char path[4096];
    int n = snprintf(path, sizeof path, "%s.tmp", r->state);
    struct saving x = {.fd = -1, .path = path};
    if (n < 0 || (size_t)n >= sizeof path)
        return err_set(e, ERR_INVALID, "%s: the path is too long", r->state);
    /* the state must never be ahead of the trace */
    if (fdatasync(r->writer.fd))
        return err_set(e, ERR_IO, "%s: cannot sync: %m", r->partial);
    state_json(r, next, &json);
    int rc = strbuf_failed(&json) ? err_set(e, ERR_NOMEM, "no memory for a state") : sha256_begin(&x.hash, e);
    if (rc == 0) {
        x.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (x.fd < 0) {
            rc = err_set(e, ERR_IO, "%s: cannot create: %m", path);
            sha256_abort(x.hash);
        }
    }
    if (rc == 0)
        rc = save_all(r, &x, &json, e);
    if (x.fd >= 0 && close(x.fd) && rc == 0)
        rc = err_set(e, ERR_IO, "%s: cannot close: %m", path);
    if (rc == 0 && rename(path, r->state))
        rc = err_set(e, ERR_IO, "%s: cannot rename into place: %m", path);
    if (rc && x.fd >= 0)
        unlink(path);
    strbuf_release(&json);
    return rc;
}

/* ---- going on ---- */

static int refuse(const struct recording *r, const char *path, const char *why, struct err *e)
{
    (void)r;
    err_set(e, ERR_MISMATCH, "%s: %s; nothing of it is used", path, why);
    err_hint(e, "--fresh throws the interrupted run away, or give another -o");
    return ERR_MISMATCH;
}

struct loading {
    int fd;
    uint64_t at, size;
    struct sha256 *hash;
    struct arena arena;
    const struct json *json;
};

static int load_bytes(struct recording *r, struct loading *x, void *to, uint64_t n, struct err *e)
{
    if (n > x->size - x->at)
        return refuse(r, r->state, "is too short", e);
    int rc = file_pread(x->fd, r->state, to, (size_t)n, x->at, e);
    x->at += n;
    if (rc == 0 && sha256_update(x->hash, to, (size_t)n))
        rc = err_set(e, ERR_NOMEM, "%s: cannot hash", r->state);
    return rc;
}

static int load_json(struct recording *r, struct loading *x, struct err *e)
{
    unsigned char length[8];
    uint64_t n = 0;
    int rc = load_bytes(r, x, length, 8, e);
    for (int i = 7; i >= 0; i--)
        n = n << 8 | length[i];
    if (rc)
        return rc;
    if (n > STATE_MAX_JSON || n > x->size - x->at)
        return refuse(r, r->state, "is no state of a recording", e);
    char *text = malloc((size_t)n + 1);
    rc = text ? load_bytes(r, x, text, n, e) : err_set(e, ERR_NOMEM, "no memory for a state");
    struct err inner = {0};
    if (rc == 0 && json_parse(text, (size_t)n, NULL, &x->arena, &x->json, &inner))
        rc = refuse(r, r->state, "is no state of a recording", e);
    free(text);
    return rc;
}

/* Values that later pieces read. Only what this plan keeps is taken. */
static int load_kept(struct recording *r, struct loading *x, struct err *e)
{
    const struct json *list = json_get(x->json, "kept");
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == 0 && list && list->type == JSON_ARRAY && i < list->n; i++) {
        uint64_t v;
        if (!json_u64(json_at(list, i), &v) || v >= r->g->n_values || !r->kept[v].bytes || r->kept[v].data)
            return refuse(r, r->state, "keeps values that this run does not", e);
        struct kept *k = &r->kept[v];
        k->data = malloc((size_t)k->bytes);
        rc = k->data ? load_bytes(r, x, k->data, k->bytes, e)
                     : err_set(e, ERR_NOMEM, "no memory for %llu bytes of %s", (unsigned long long)k->bytes,
                               r->g->info[v].name);
    }
    return rc;
}

static int load_end(struct recording *r, struct loading *x, struct err *e)
{
    char hex[65], stored[65] = "";
    if (x->size - x->at != 64)
        return refuse(r, r->state, "has another length than it says", e);
    int rc = file_pread(x->fd, r->state, stored, 64, x->at, e);
    struct sha256 *hash = x->hash;
    x->hash = NULL;
    if (sha256_end(hash, hex))
        return err_set(e, ERR_NOMEM, "%s: cannot hash", r->state);
    return rc == 0 && strcmp(hex, stored) ? refuse(r, r->state, "is damaged", e) : rc;
}

/* Tensors that are done must be in the partial trace as they were written. */
static int check_finished(struct recording *r, const struct loading *x, struct err *e)
{
    const struct json *list = json_get(x->json, "finished");
    int rc = ERR_OK;
    for (size_t i = 0; rc == 0 && i < r->writer.n_slots; i++) {
        const char *sha = json_string(json_at(list, i));
        struct trace_slot *s = &r->writer.slots[i];
        bool same = true;
        if (!sha || (sha[0] && strlen(sha) != 64))
            return refuse(r, r->state, "lists other tensors than this run", e);
        if (sha[0])
            rc = trace_check_slot(&r->writer, i, sha, &same, e);
        if (rc == 0 && !same)
            return refuse(r, r->partial, "does not hold what was written to it", e);
        if (sha[0]) {
            s->written = s->rows;
            memcpy(s->sha256, sha, 65);
        }
    }
    return rc;
}

static int find_next(struct recording *r, const struct loading *x, struct err *e)
{
    uint64_t node, nan = UINT32_MAX;
    const char *text = json_string(json_get(x->json, "not_finite"));
    if (!json_u64(json_get(x->json, "next_node"), &node))
        node = UINT64_MAX;
    if (text && text[0] && json_u64(json_get(x->json, "not_finite_node"), &nan) && nan < r->g->n_nodes) {
        r->not_finite_node = (uint32_t)nan;
        snprintf(r->out->not_finite, sizeof r->out->not_finite, "%s", text);
    }
    for (size_t p = 0; p < r->stream.n_pieces; p++)
        if (r->stream.pieces[p].nodes[0] == node) {
            r->first_piece = p;
            return ERR_OK;
        }
    return refuse(r, r->state, "stopped where this run has no cut (other --memory?)", e);
}

/* The header of the partial trace, byte for byte. */
static int check_header(struct recording *r, bool *same, struct err *e)
{
    struct file_info info;
    int rc = file_stat(r->partial, &info, e);
    *same = false;
    if (rc || info.bytes != r->writer.file_bytes)
        return rc;
    char *have = malloc(r->header.len);
    if (!have)
        return err_set(e, ERR_NOMEM, "no memory for a header");
    rc = file_pread(r->writer.fd, r->partial, have, r->header.len, 8, e);
    *same = rc == 0 && !memcmp(have, r->header.data, r->header.len);
    free(have);
    return rc;
}

static int read_state(struct recording *r, struct loading *x, struct err *e)
{
    struct file_info info;
    int rc = file_stat(r->state, &info, e);
    if (rc == 0)
        rc = file_open_read(r->state, &x->fd, e);
    if (rc == 0)
        rc = sha256_begin(&x->hash, e);
    x->size = info.bytes;
    if (rc == 0)
        rc = load_json(r, x, e);
    const char *format = json_string(json_get(x->json, "format")),
               *identity = json_string(json_get(x->json, "identity"));
    if (rc == 0 && (!format || strcmp(format, STATE_FORMAT) || !identity || strcmp(identity, r->identity)))
        rc = refuse(r, r->state, "is of a run of another model, prompt, device or version", e);
    if (rc == 0)
        rc = load_kept(r, x, e);
    if (rc == 0)
        rc = load_end(r, x, e);
    if (rc == 0)
        rc = check_finished(r, x, e);
    if (rc == 0 && r->watched && !watch_load(r, json_get(x->json, "watch")))
        rc = refuse(r, r->state, "does not hold the magnitudes seen so far", e);
    return rc ? rc : find_next(r, x, e);
}

static int go_on(struct recording *r, struct err *e)
{
    struct loading x = {.fd = -1};
    bool same = false;
    arena_init(&x.arena, NULL, MEM_MISC);
    r->writer.fd = open(r->partial, O_RDWR | O_CLOEXEC);
    int rc =
        r->writer.fd >= 0 ? check_header(r, &same, e) : err_set(e, ERR_IO, "%s: cannot open: %m", r->partial);
    if (rc == 0 && !same)
        rc = refuse(r, r->partial, "is of a run of another model, prompt, device or version", e);
    if (rc == 0)
        rc = read_state(r, &x, e);
    if (x.fd >= 0)
        close(x.fd);
    if (x.hash)
        sha256_abort(x.hash);
    arena_release(&x.arena);
    return rc;
}

int record_begin(struct recording *r, struct err *e)
{
    struct file_info partial, state;
    int rc = make_header(r, e);
    r->writer.path = r->partial;
    if (rc == 0)
        rc = make_identity(r, e);
    if (rc == 0)
        rc = file_stat(r->partial, &partial, e);
    if (rc == 0)
        rc = file_stat(r->state, &state, e);
    if (rc)
        return rc;
    if (!r->o->fresh && partial.exists && state.exists)
        return go_on(r, e);
    if (!r->o->fresh && partial.exists) {
        /* interrupted before the first piece was done: ours, or somebody else's file of that name? */
        bool same = false;
        r->writer.fd = open(r->partial, O_RDWR | O_CLOEXEC);
        rc = r->writer.fd >= 0 ? check_header(r, &same, e)
                               : err_set(e, ERR_IO, "%s: cannot open: %m", r->partial);
        if (rc == 0 && !same)
            rc = refuse(r, r->partial, "is not of this run", e);
        trace_writer_release(&r->writer);
        if (rc)
            return rc;
    }
    if (state.exists && unlink(r->state))
        return err_set(e, ERR_IO, "%s: cannot remove: %m", r->state);
    return trace_create(&r->writer, &r->header, r->o->ids, r->o->n_ids, e);
}

int record_finish(struct recording *r, struct err *e)
{
    for (size_t i = 0; i < r->writer.n_slots; i++)
        if (r->writer.slots[i].written != r->writer.slots[i].rows)
            BUG("%s was not written whole", r->writer.slots[i].name);
    if (fsync(r->writer.fd))
        return err_set(e, ERR_IO, "%s: cannot sync: %m", r->partial);
    if (rename(r->partial, r->o->out))
        return err_set(e, ERR_IO, "%s: cannot rename into place: %m", r->partial);
    if (unlink(r->state) && errno != ENOENT)
        return err_set(e, ERR_IO, "%s: cannot remove: %m", r->state);
    return ERR_OK;
}
