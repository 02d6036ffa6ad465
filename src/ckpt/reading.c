/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: reading bytes of an open checkpoint, and the hash that identifies it. Refuses every range that is not
 * wholly within a tensor. Any number of threads may read.
 */
#include "ckpt/ckpt_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

#define PART_BYTES (1024u * 1024u)

/* Opened at the first read; should two threads come at once, one descriptor wins and the other is closed. */
int ckpt_shard_fd(struct ckpt *c, struct ckpt_shard *s, int *fd, struct err *e)
{
    char path[4096];
    int have = __atomic_load_n(&s->fd, __ATOMIC_ACQUIRE), opened;
    if (have < 0) {
        int n = snprintf(path, sizeof(path), "%s/%s", c->dir, s->name);
        if (n < 0 || (size_t)n >= sizeof(path))
            return err_set(e, ERR_INVALID, "%s: the path is too long", s->name);
        int rc = file_open_read(path, &opened, e);
        if (rc)
            return rc;
        have = -1;
        if (__atomic_compare_exchange_n(&s->fd, &have, opened, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            have = opened;
        else
            close(opened);
    }
    *fd = have;
    return ERR_OK;
}

int ckpt_range(struct ckpt *c, const struct ckpt_tensor *t, uint64_t offset, uint64_t n, uint64_t *at,
               struct err *e)
{
    uint64_t end;
    if (t->shard >= c->n_shards || !add_u64(offset, n, &end) || end > t->bytes ||
        !add_u64(t->offset, offset, at))
        return err_set(e, ERR_INVALID, "%s: bytes %llu to +%llu are not within its %llu", t->name,
                       (unsigned long long)offset, (unsigned long long)n, (unsigned long long)t->bytes);
    return ERR_OK;
}

int ckpt_read(struct ckpt *c, const struct ckpt_tensor *t, uint64_t offset, void *buf, uint64_t n,
              struct err *e)
{
    uint64_t at = 0;
    int fd, rc = ckpt_range(c, t, offset, n, &at, e);
    if (rc)
        return rc;
    struct ckpt_shard *s = &c->shards[t->shard];
    rc = ckpt_shard_fd(c, s, &fd, e);
    if (!rc)
        rc = file_pread(fd, s->name, buf, (size_t)n, at, e);
    if (rc)
        err_ctx(e, "reading tensor %s of %s", t->name, s->name);
    return rc;
}

/* ---- identity */

static int hash_header(struct ckpt *c, struct ckpt_shard *s, void *part, char hex[65], struct err *e)
{
    struct sha256 *hash;
    uint64_t total = 8 + s->header_bytes;
    int fd, bad = 0;
    int rc = ckpt_shard_fd(c, s, &fd, e);
    if (!rc)
        rc = sha256_begin(&hash, e);
    if (rc)
        return rc;
    for (uint64_t at = 0; !rc && at < total;) {
        size_t n = total - at < PART_BYTES ? (size_t)(total - at) : PART_BYTES;
        rc = file_pread(fd, s->name, part, n, at, e);
        bad |= rc ? 0 : sha256_update(hash, part, n);
        at += n;
    }
    if (rc) {
        sha256_abort(hash);
        return rc;
    }
    bad |= sha256_end(hash, hex);
    return bad ? err_set(e, ERR_NOMEM, "%s: cannot hash its header", s->name) : ERR_OK;
}

static int add_shards(struct ckpt *c, struct strbuf *lines, struct err *e)
{
    char hex[SHA256_HEX_BYTES];
    int rc = ERR_OK;
    void *part = malloc(PART_BYTES);
    if (!part)
        return err_set(e, ERR_NOMEM, "no memory to hash headers");
    for (size_t i = 0; !rc && i < c->n_shards; i++) {
        struct ckpt_shard *s = &c->shards[i];
        if (s->lost) {
            strbuf_printf(lines, "%s %llu missing\n", s->name, (unsigned long long)s->file_bytes);
            continue;
        }
        rc = hash_header(c, s, part, hex, e);
        if (!rc)
            strbuf_printf(lines, "%s %llu %s\n", s->name, (unsigned long long)s->file_bytes, hex);
    }
    free(part);
    return rc;
}

int ckpt_manifest_sha256(struct ckpt *c, char hex[65], struct err *e)
{
    static const char *const small[] = {"config.json", "tokenizer.json"};
    struct strbuf lines = STRBUF_INIT;
    int rc = add_shards(c, &lines, e);
    for (size_t i = 0; !rc && i < ARRAY_LEN(small); i++) {
        char one[SHA256_HEX_BYTES] = "-";
        struct file_info info;
        const char *path = ckpt_path(c, small[i]);
        rc = path ? file_stat(path, &info, e) : err_set(e, ERR_NOMEM, "no memory for a path");
        if (!rc && info.is_file)
            rc = sha256_file(path, one, e);
        if (!rc)
            strbuf_printf(&lines, "%s %s\n", small[i], one);
    }
    if (!rc && strbuf_failed(&lines))
        rc = err_set(e, ERR_NOMEM, "no memory for the manifest");
    if (!rc)
        rc = sha256_hex(strbuf_cstr(&lines), lines.len, hex, e);
    strbuf_release(&lines);
    return rc;
}
