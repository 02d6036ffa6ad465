/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what a directory holds twice (a shard that is a copy of another, weights in another layout beside or
 * below those that are used), and what is not yet here while a download runs. Refuses to open a weight file
 * in a subfolder: names and sizes are enough to see a second copy, and it may hold anything.
 */
#include "ckpt/ckpt_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

#define MAX_SUBFOLDERS 64
#define COPY_SHARE                                                                                           \
    5 /* of the bytes used: 16-bit weights of which 4-bit ones are used are 4 times as many                  \
       */

/* ---- a shard that is another one */

static bool same_tensor(const struct ckpt_tensor *a, const struct ckpt_tensor *b)
{
    return a->offset == b->offset && a->bytes == b->bytes && a->dtype == b->dtype && a->n_dims == b->n_dims &&
           memcmp(a->dims, b->dims, a->n_dims * sizeof(a->dims[0])) == 0 && strcmp(a->name, b->name) == 0;
}

static bool same_header(const struct opening *o, size_t i, size_t j)
{
    const struct st_file *a = &o->files[i], *b = &o->files[j];
    bool same = i != j && a->n_tensors == b->n_tensors && a->header_bytes == b->header_bytes;
    for (size_t k = 0; same && k < a->n_tensors; k++)
        same = same_tensor(&a->tensors[k], &b->tensors[k]);
    return same;
}

void copies_find(struct opening *o)
{
    char with[120];
    for (size_t i = 0; i < o->c->n_shards; i++) {
        struct shard_fault *fault = &o->faults[i];
        struct ckpt_shard *s = &o->c->shards[i];
        if (s->unindexed || fault->set || fault->twice.n == 0 || fault->twice.n != s->n_tensors ||
            !same_header(o, i, fault->twice_with))
            continue;
        s->copy = true;
        fault->set = true;
        fault->id = FINDING_W020;
        fault->evidence =
            arena_printf(&o->scratch, "its header is that of %s: the same tensors at the same places",
                         ckpt_show(o->c->shards[fault->twice_with].name, with, sizeof(with)));
        fault->evidence = fault->evidence ? fault->evidence : "";
        /* What should stand under this name is unknown where no index tells. */
        o->c->n_lost_shards += !o->c->has_index;
    }
}

/* ---- weights beside and below */

bool second_copy_name(const char *name)
{
    return str_starts(name, "consolidated") && str_ends(name, ".safetensors");
}

static uint64_t used_bytes(const struct opening *o)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < o->c->n_shards; i++)
        bytes = sat_add(bytes, o->c->shards[i].unindexed ? 0 : o->c->shards[i].file_bytes);
    return bytes;
}

bool second_copy_beside(const struct opening *o, size_t i)
{
    const struct ckpt_shard *s = &o->c->shards[i];
    const struct shard_fault *fault = &o->faults[i];
    bool same_names = s->n_tensors && fault->n_not_used == s->n_tensors;
    bool other_layout = second_copy_name(s->name) && fault->n_not_used == 0;
    return s->unindexed && !fault->set && (same_names || other_layout || o->second_copy) &&
           s->file_bytes >= used_bytes(o) / COPY_SHARE;
}

static void report_beside(struct opening *o)
{
    struct tally files = {0};
    uint64_t bytes = 0, shared = 0;
    char text[400], size[32], subject[200], used[32];
    for (size_t i = 0; i < o->c->n_shards; i++) {
        if (!second_copy_beside(o, i))
            continue;
        tally_add(&files, o->c->shards[i].name);
        bytes = sat_add(bytes, o->c->shards[i].file_bytes);
        shared += o->faults[i].n_not_used;
    }
    if (files.n)
        finding_add(o->f, FINDING_W021, ckpt_show(files.names[0], subject, sizeof(subject)),
                    "%s of %s beside the %s that are used, with %s; they are not read",
                    tally_format(&files, "file", text, sizeof(text)), format_bytes(bytes, size, sizeof(size)),
                    format_bytes(used_bytes(o), used, sizeof(used)),
                    shared ? "tensors of the same names" : "tensors of other names");
}

static bool is_weight_file(const char *name)
{
    static const char *const ends[] = {".safetensors", ".pth", ".pt", ".gguf"};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        if (str_ends(name, ends[i]))
            return true;
    }
    return str_starts(name, "pytorch_model") && str_ends(name, ".bin");
}

static int check_subfolder(struct opening *o, const char *name, const char *path, struct err *e)
{
    struct tally files = {0};
    struct file_info info;
    struct err why = {0};
    uint64_t bytes = 0;
    char **names, text[400], size[32], used[32], subject[200];
    size_t n;
    int rc = dir_list(path, &o->scratch, &names, &n, &why);
    if (rc == ERR_NOMEM)
        return err_set(e, rc, "%s", why.message);
    for (size_t i = 0; !rc && i < n; i++) {
        const char *file = is_weight_file(names[i]) ? path_join(&o->scratch, path, names[i]) : NULL;
        if (!file || file_stat(file, &info, NULL) || !info.is_file)
            continue;
        tally_add(&files, names[i]);
        bytes = sat_add(bytes, info.bytes);
    }
    uint64_t here = used_bytes(o);
    if (files.n == 0 || here == 0 || bytes < here / COPY_SHARE)
        return ERR_OK;
    snprintf(text, sizeof(text), "%s/", name);
    ckpt_show(text, subject, sizeof(subject));
    finding_add(o->f, FINDING_W021, subject,
                "%s of %s in this folder, beside the %s that are used; no file here "
                "is read, and a loader that takes every file below the directory reads both",
                tally_format(&files, "weight file", text, sizeof(text)),
                format_bytes(bytes, size, sizeof(size)), format_bytes(here, used, sizeof(used)));
    return ERR_OK;
}

int second_copy_check(struct opening *o, struct err *e)
{
    struct file_info info;
    size_t n = 0;
    int rc = ERR_OK;
    report_beside(o);
    for (size_t i = 0; !rc && i < o->n_names && n < MAX_SUBFOLDERS; i++) {
        const char *name = o->names[i];
        const char *path = name[0] == '.' ? NULL : path_join(&o->scratch, o->c->dir, name);
        if (!path || file_stat(path, &info, NULL) || !info.is_dir)
            continue;
        n++;
        rc = check_subfolder(o, name, path, e);
    }
    return rc;
}

/* ---- what is not yet here */

void arrivals_add(struct opening *o, size_t i)
{
    struct arrivals *a = &o->arrivals;
    const struct ckpt_shard *s = &o->c->shards[i];
    const struct shard_fault *fault = &o->faults[i];
    tally_add(fault->id == FINDING_W002                         ? &a->absent
              : fault->id == FINDING_W017                       ? &a->pointers
              : s->lost || s->file_bytes == 8 + s->header_bytes ? &a->header
                                                                : &a->part,
              s->name);
    if (fault->wanted == 0)
        a->unknown = true;
    else
        a->bytes = sat_add(a->bytes, fault->wanted - (fault->id == FINDING_W017 ? 0 : s->file_bytes));
}

static void add_kind(struct strbuf *b, const struct tally *t, const char *what)
{
    char text[300];
    if (t->n)
        strbuf_printf(b, "%s%s: %s", b->len ? "; " : "", what, tally_format(t, "file", text, sizeof(text)));
}

void arrivals_report(struct opening *o)
{
    const struct arrivals *a = &o->arrivals;
    struct strbuf b = STRBUF_INIT;
    char bytes[32];
    add_kind(&b, &a->absent, "absent");
    add_kind(&b, &a->pointers, "a git-LFS pointer only");
    add_kind(&b, &a->header, "the header at most");
    add_kind(&b, &a->part, "a part");
    if (b.len && a->bytes)
        strbuf_printf(&b, "; %s%s to come", a->unknown ? "at least " : "",
                      format_bytes(a->bytes, bytes, sizeof(bytes)));
    if (b.len)
        finding_add(o->f, FINDING_W022, o->c->dir, "%s", strbuf_cstr(&b));
    strbuf_release(&b);
}
