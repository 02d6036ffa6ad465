/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to sched: the pool of KV pages. A page is free, referenced, or cached (no reference, contents kept
 * for a later request with the same prefix, evicted in the order of last use). Behind an entry there may be a
 * snapshot of the recurrent state; it goes with the entry, or before it.
 */
#ifndef SCHED_PAGES_H
#define SCHED_PAGES_H

#include "base/err.h"
#include "base/mem.h"
#include "sched/snapshots.h"

#define PAGE_NONE         UINT32_MAX
#define PAGE_DIGEST_BYTES 32u

struct page {
    uint32_t refs;
    uint32_t prev, next; /* cached: the use order; free: `next` only */
    uint32_t hash_next;
    uint32_t snapshot; /* of an entry: the state behind its last token; SNAPSHOT_NONE: there is none */
    uint64_t uid;      /* of the cache entry that this page is; 0: none. Never used twice */
    uint64_t parent;   /* uid of the entry for the page before it; 0: this is the first page */
    uint64_t hash;
};

struct pages {
    struct page *page;
    struct snapshots snapshots;
    int32_t *tokens;   /* [n][page_tokens] of entries: a hash proposes, the tokens decide */
    uint8_t *digests;  /* [n][PAGE_DIGEST_BYTES] of entries, which decide as well */
    uint32_t *buckets; /* [bucket_mask + 1] heads of chains over hash_next */
    uint32_t n, page_tokens, bucket_mask;
    uint32_t free_head, oldest, newest;
    uint32_t n_free, n_cached, n_reserved; /* reserved: promised to running requests, not taken yet */
    uint64_t last_uid, hash_mask;
};

int pages_init(struct pages *p, struct arena *a, uint32_t n, uint32_t page_tokens, uint32_t n_snapshots,
               uint64_t hash_mask, struct err *e);
uint32_t pages_available(const struct pages *p); /* not referenced and not promised */
uint32_t
pages_take(struct pages *p); /* one reference; evicts the longest unused; PAGE_NONE if all are in use */
void pages_ref(struct pages *p, uint32_t id);
void pages_unref(struct pages *p, uint32_t id, bool keep); /* keep: a cache entry stays cached */
/* What a page holds: page_tokens ids, and a digest [PAGE_DIGEST_BYTES] of what else its contents hang on. */
struct page_text {
    const int32_t *tokens;
    const uint8_t *digest;
};
/* The entry for a page that follows the entry `parent`; PAGE_NONE if there is none. */
uint32_t pages_find(const struct pages *p, uint64_t parent, const struct page_text *text);
/* Makes a referenced page the entry of its contents. Returns the entry to chain on: an equal one if there is
 * one already, which may be another page. */
uint32_t pages_enter(struct pages *p, uint32_t id, uint64_t parent, const struct page_text *text);
/* A snapshot for a step to write, taken from another entry if none is free; SNAPSHOT_NONE if all are in use.
 */
uint32_t pages_take_snapshot(struct pages *p);
/* It is the state behind entry `id`, which keeps it; one that has a snapshot keeps that, and this is free. */
void pages_keep_snapshot(struct pages *p, uint32_t id, uint32_t snapshot);
void pages_forget(struct pages *p); /* drops every entry and every snapshot, taken ones too */
int pages_check(const struct pages *p, const uint32_t *refs,
                struct err *e); /* refs: [n] as counted by the owner */

#endif
