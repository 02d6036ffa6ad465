/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what a directory says about the SHA-256 of its weight files: listings (SHA256SUMS and the like),
 * git-LFS pointers kept aside, the names of blobs that links of a download cache lead to, and the metadata
 * that a download leaves. Refuses to fetch anything, and to fail because such a file is malformed.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "preflight/payload_internal.h"

#define MAX_LISTING_BYTES (16u << 20)
#define HEX               64

static bool is_hex(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!isxdigit((unsigned char)s[i]))
            return false;
    }
    return true;
}

static int add(struct payload_manifest *m, const char *name, size_t name_bytes, const char *hex,
               const char *from, struct err *e)
{
    uint32_t shard;
    while (name_bytes > 2 && name[0] == '.' && name[1] == '/') {
        name += 2;
        name_bytes -= 2;
    }
    if (!strmap_get(&m->by_name, name, name_bytes, &shard))
        return ERR_OK;
    if (vec_reserve((void **)&m->items, &m->capacity, m->n + 1, sizeof(*m->items)))
        return err_set(e, ERR_NOMEM, "no memory for the list of hashes");
    struct payload_expected *x = &m->items[m->n++];
    *x = (struct payload_expected){.shard = shard, .from = from};
    for (size_t i = 0; i < HEX; i++)
        x->sha256[i] = (char)tolower((unsigned char)hex[i]);
    return ERR_OK;
}

/* ---- one text */

static int add_line(struct payload_manifest *m, const char *line, size_t n, const char *alone,
                    const char *from, struct err *e)
{
    static const char bsd[] = "SHA256 (", pointer[] = "oid sha256:";
    while (n && (line[n - 1] == '\r' || line[n - 1] == ' '))
        n--;
    if (n > sizeof(bsd) + HEX + 4 && memcmp(line, bsd, sizeof(bsd) - 1) == 0) {
        const char *hex = line + n - HEX, *name = line + sizeof(bsd) - 1;
        if (memcmp(hex - 4, ") = ", 4) == 0 && is_hex(hex, HEX))
            return add(m, name, (size_t)(hex - 4 - name), hex, from, e);
        return ERR_OK;
    }
    if (alone && n == sizeof(pointer) - 1 + HEX && memcmp(line, pointer, sizeof(pointer) - 1) == 0 &&
        is_hex(line + n - HEX, HEX))
        return add(m, alone, strlen(alone), line + n - HEX, from, e);
    if (n < HEX || !is_hex(line, HEX))
        return ERR_OK;
    size_t at = HEX;
    if (at == n)
        return alone ? add(m, alone, strlen(alone), line, from, e) : ERR_OK;
    if (line[at] != ' ' && line[at] != '\t')
        return ERR_OK;
    while (at < n && (line[at] == ' ' || line[at] == '\t'))
        at++;
    /* "*name": read as binary; "* name" and "- name": git lfs ls-files -l */
    if (at + 1 < n && (line[at] == '*' || line[at] == '-') && line[at + 1] == ' ')
        at += 2;
    else if (at < n && line[at] == '*')
        at++;
    return add(m, line + at, n - at, line, from, e);
}

int payload_manifest_add(struct payload_manifest *m, const char *text, size_t n, const char *alone,
                         const char *from, struct err *e)
{
    int rc = ERR_OK;
    for (size_t at = 0; !rc && at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t length = end ? (size_t)(end - text) - at : n - at;
        rc = add_line(m, text + at, length, alone, from, e);
        at += length + 1;
    }
    return rc;
}

/* ---- sources */

/* Reads one text; what cannot be read says nothing. */
static int add_file(struct payload_manifest *m, struct arena *arena, const char *path, const char *alone,
                    const char *from, struct err *e)
{
    char *text = NULL;
    size_t n = 0;
    struct err why = {0};
    int rc = path && from ? file_read(path, MAX_LISTING_BYTES, arena, &text, &n, &why) : ERR_NOMEM;
    if (rc == ERR_NOMEM)
        return err_set(e, rc, "no memory to read a list of hashes");
    return rc ? ERR_OK : payload_manifest_add(m, text, n, alone, from, e);
}

static bool is_listing(const char *name)
{
    char lower[32];
    size_t n = strlen(name);
    if (n < sizeof(lower)) {
        for (size_t i = 0; i <= n; i++)
            lower[i] = (char)tolower((unsigned char)name[i]);
        if (str_starts(lower, "sha256sum") || !strcmp(lower, "checksums.txt") || !strcmp(lower, "checksums"))
            return true;
    }
    return str_ends(name, ".sha256") || str_ends(name, ".sha256sum") || str_ends(name, ".lfs") ||
           str_ends(name, ".pointer") || str_starts(name, "lfs_pointers");
}

/* "x.safetensors.sha256" is about x.safetensors if it does not say otherwise. */
static char *without_ending(struct arena *arena, const char *name)
{
    const char *dot = strrchr(name, '.');
    return arena_strndup(arena, name, dot ? (size_t)(dot - name) : strlen(name));
}

/* A folder of pointers, each under the name of the file that it stands for. */
static int add_folder(struct payload_manifest *m, struct arena *arena, const char *dir, const char *shown,
                      struct err *e)
{
    char **names;
    size_t n;
    int rc = dir_list(dir, arena, &names, &n, NULL);
    if (rc)
        return rc == ERR_NOMEM ? err_set(e, rc, "no memory to list %s", shown) : ERR_OK;
    for (size_t i = 0; !rc && i < n; i++) {
        if (strmap_get(&m->by_name, names[i], strlen(names[i]), NULL))
            rc = add_file(m, arena, path_join(arena, dir, names[i]), names[i],
                          arena_printf(arena, "%s/%s", shown, names[i]), e);
    }
    return rc;
}

static int add_listings(const struct ckpt *c, struct arena *arena, struct payload_manifest *m, struct err *e)
{
    char **names;
    size_t n;
    struct file_info info;
    int rc = dir_list(c->dir, arena, &names, &n, e);
    for (size_t i = 0; !rc && i < n; i++) {
        if (!is_listing(names[i]))
            continue;
        const char *path = path_join(arena, c->dir, names[i]);
        if (path && (file_stat(path, &info, NULL) || info.is_dir))
            rc = info.is_dir ? add_folder(m, arena, path, names[i], e) : ERR_OK;
        else
            rc = add_file(m, arena, path, without_ending(arena, names[i]), names[i], e);
    }
    return rc;
}

/* Where a link of a download cache leads, the blob is called by its hash. */
static int add_blob(const struct ckpt *c, struct arena *arena, struct payload_manifest *m, const char *name,
                    struct err *e)
{
    char target[4096];
    const char *path = path_join(arena, c->dir, name);
    ssize_t n = path ? readlink(path, target, sizeof(target) - 1) : -1;
    if (n < HEX)
        return ERR_OK;
    target[n] = '\0';
    const char *slash = strrchr(target, '/'), *base = slash ? slash + 1 : target;
    if (strlen(base) != HEX || !is_hex(base, HEX))
        return ERR_OK;
    return add(m, name, strlen(name), base, "the name of the cached blob", e);
}

/* What a download into a plain directory leaves: revision, entity tag, time. The tag of a large file is its
 * hash. */
static int add_metadata(const struct ckpt *c, struct arena *arena, struct payload_manifest *m,
                        const char *name, struct err *e)
{
    char *text;
    size_t n;
    const char *shown = arena_printf(arena, ".cache/huggingface/download/%s.metadata", name);
    const char *path = shown ? path_join(arena, c->dir, shown) : NULL;
    if (!path)
        return err_set(e, ERR_NOMEM, "no memory for a path");
    if (file_read(path, 4096, arena, &text, &n, NULL))
        return ERR_OK;
    const char *second = strchr(text, '\n');
    second = second ? second + 1 + (second[1] == '"') : NULL;
    if (!second || strlen(second) < HEX || !is_hex(second, HEX) || isxdigit((unsigned char)second[HEX]))
        return ERR_OK;
    return add(m, name, strlen(name), second, shown, e);
}

int payload_manifest_read(const struct ckpt *c, struct arena *arena, struct payload_manifest *m,
                          struct err *e)
{
    *m = (struct payload_manifest){0};
    int rc = strmap_reserve(&m->by_name, c->n_shards);
    for (size_t i = 0; rc != ERR_NOMEM && i < c->n_shards; i++)
        rc = strmap_put(&m->by_name, c->shards[i].name, strlen(c->shards[i].name), (uint32_t)i, NULL);
    if (rc == ERR_NOMEM)
        return err_set(e, rc, "no memory for the names of files");
    rc = add_listings(c, arena, m, e);
    for (size_t i = 0; !rc && i < c->n_shards; i++) {
        rc = add_blob(c, arena, m, c->shards[i].name, e);
        if (!rc)
            rc = add_metadata(c, arena, m, c->shards[i].name, e);
    }
    return rc;
}

void payload_manifest_release(struct payload_manifest *m)
{
    strmap_release(&m->by_name);
    free(m->items);
    *m = (struct payload_manifest){0};
}
