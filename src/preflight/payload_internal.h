/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the parts of the payload check: values (what bytes mean), manifest (what hashes should be), cache
 * (what is known of unchanged files), read (every byte once, by all threads), report (findings).
 */
#ifndef PREFLIGHT_PAYLOAD_INTERNAL_H
#define PREFLIGHT_PAYLOAD_INTERNAL_H

#include "base/file.h"
#include "base/hash.h"
#include "preflight/preflight.h"

/* ---- values */

/* What to look for in one element type. Codes are unsigned integers of `width` bytes; not finite: (code &
 * mask) == match. */
struct value_kind {
    unsigned width; /* of one element; 1 for types that are only looked at for zeros */
    uint64_t mask, match;
    uint64_t magnitude; /* bits that are all 0 in a zero */
    bool has_bad;       /* the type has codes that are not finite */
    uint64_t infinity;  /* (code & magnitude) of infinity; 0: the type has none, what is bad is NaN */
};
struct value_kind value_kind_of(uint32_t dtype); /* any type: those without such codes have has_bad false */

struct value_tally {
    uint64_t n_nan, n_inf, first_bad; /* first_bad: index of the first of them, if there is one */
    bool nonzero;
};
/* n elements at any alignment; `first` is the index of the first one. */
void value_tally_add(struct value_tally *t, const struct value_kind *k, const void *data, size_t n,
                     uint64_t first);
void value_tally_merge(struct value_tally *t, const struct value_tally *from);

/* ---- what was found in one file */

#define PAYLOAD_KEPT 16 /* bad tensors of one kind that are kept by name; further ones are counted */

struct payload_tensor {
    const char *name;
    uint64_t n, n_nan, n_inf, first_bad;
};

struct payload_found {
    uint64_t tensors, n_not_finite, n_all_zero;
    uint64_t values_nan, values_inf; /* over all tensors */
    struct payload_tensor bad[PAYLOAD_KEPT];
    const char *zero[PAYLOAD_KEPT];
};

/* A file to be judged: identity, and what is known about it. */
struct payload_file {
    const char *path; /* absolute, without links */
    struct file_info info;
    int fd;
    bool here;    /* there is something to read */
    bool settled; /* its time stamp lies far enough back to tell a further change */
    bool read;    /* now, to its end */
    struct payload_found found;
};

/* ---- manifest */

struct payload_expected {
    uint32_t shard;
    char sha256[65];
    const char *from; /* "SHA256SUMS", "name of the cached blob", ... */
};
struct payload_manifest {
    struct payload_expected *items; /* in the order in which sources were read; several a shard */
    size_t n, capacity;
    struct strmap by_name; /* shards */
};
/* Everything in the directory that says what the hash of a shard should be. Unreadable or malformed sources
 * say nothing. Strings live in the arena. ERR_NOMEM only. */
int payload_manifest_read(const struct ckpt *c, struct arena *arena, struct payload_manifest *m,
                          struct err *e);
void payload_manifest_release(struct payload_manifest *m);
/* One listing: "HEX  NAME" lines, "SHA256 (NAME) = HEX", git lfs ls-files -l, a git-LFS pointer, or a lone
 * hash; the last two are of file `alone` (NULL: of none). Lines about what is no shard are passed over. */
int payload_manifest_add(struct payload_manifest *m, const char *text, size_t n, const char *alone,
                         const char *from, struct err *e);

/* ---- cache: a corrupt one is empty. The caller owns the arena in which names live. */
struct payload_cache {
    const struct json *tree;
    struct strmap by_path;
    const char *path;
};
int payload_cache_open(struct payload_cache *x, const char *path, struct arena *arena, struct err *e);
void payload_cache_release(struct payload_cache *x);
/* What is known of this very file (path, size, mtime, inode, device); false: nothing, or no hash where one is
 * wanted. */
bool payload_cache_get(const struct payload_cache *x, const struct payload_file *file, bool want_hash,
                       char sha256[65], struct payload_found *out);
/* Old entries and those of the files that were read now, replaced atomically. */
int payload_cache_write(const struct payload_cache *x, const struct payload_file *files,
                        const struct preflight_payload_shard *shards, size_t n, struct err *e);

/* ---- report */
void payload_report(const struct ckpt *c, const struct payload_file *files, const struct payload_manifest *m,
                    struct findings *f, struct preflight_payload *out);

#endif
