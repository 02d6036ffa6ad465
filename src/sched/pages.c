/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: reference counts of KV pages, the free list, and the prefix cache with its order of eviction.
 * Refuses: any knowledge of requests, and a hit on the hash alone: the tokens of the page and the digest of
 * its pictures are compared, and the pages before it are identified by the entry they are, whose number is
 * never given out again.
 */
#include "sched/pages.h"

#include <string.h>

#include "base/hash.h"

int pages_init(struct pages *p, struct arena *a, uint32_t n, uint32_t page_tokens, uint32_t n_snapshots,
               uint64_t hash_mask, struct err *e)
{
    memset(p, 0, sizeof(*p));
    int rc = snapshots_init(&p->snapshots, a, n_snapshots, e);
    if (rc != ERR_OK)
        return rc;
    uint64_t n_buckets = 16;
    while (n_buckets < n)
        n_buckets *= 2;
    p->page = arena_alloc_n(a, n, sizeof(*p->page));
    p->tokens = arena_alloc_n(a, n, (size_t)page_tokens * sizeof(int32_t));
    p->digests = arena_alloc_n(a, n, PAGE_DIGEST_BYTES);
    p->buckets = arena_alloc_n(a, n_buckets, sizeof(*p->buckets));
    if (!p->page || !p->tokens || !p->digests || !p->buckets)
        return err_set(e, ERR_NOMEM, "scheduler: no memory for a table of %u pages", n);
    memset(p->buckets, 0xff, n_buckets * sizeof(*p->buckets));
    p->n = n;
    p->page_tokens = page_tokens;
    p->bucket_mask = (uint32_t)(n_buckets - 1);
    p->hash_mask = hash_mask ? hash_mask : UINT64_MAX;
    p->oldest = p->newest = p->free_head = PAGE_NONE;
    for (uint32_t i = n; i-- > 0;) {
        p->page[i].next = p->free_head;
        p->page[i].snapshot = SNAPSHOT_NONE;
        p->free_head = i;
    }
    p->n_free = n;
    return ERR_OK;
}

uint32_t pages_available(const struct pages *p)
{
    return p->n_free + p->n_cached - p->n_reserved;
}

static struct page_text text_of(const struct pages *p, uint32_t id)
{
    return (struct page_text){p->tokens + (size_t)id * p->page_tokens,
                              p->digests + (size_t)id * PAGE_DIGEST_BYTES};
}

static size_t token_bytes(const struct pages *p)
{
    return (size_t)p->page_tokens * sizeof(int32_t);
}

/* ---- order of use -------------------------------------------------------------------------------------- */

static void order_remove(struct pages *p, uint32_t id)
{
    struct page *g = &p->page[id];
    if (g->prev != PAGE_NONE)
        p->page[g->prev].next = g->next;
    else
        p->oldest = g->next;
    if (g->next != PAGE_NONE)
        p->page[g->next].prev = g->prev;
    else
        p->newest = g->prev;
    p->n_cached--;
}

static void order_append(struct pages *p, uint32_t id)
{
    struct page *g = &p->page[id];
    g->prev = p->newest;
    g->next = PAGE_NONE;
    if (p->newest != PAGE_NONE)
        p->page[p->newest].next = id;
    else
        p->oldest = id;
    p->newest = id;
    p->n_cached++;
}

/* ---- entries ------------------------------------------------------------------------------------------- */

static void entry_drop(struct pages *p, uint32_t id)
{
    struct page *g = &p->page[id];
    uint32_t *link = &p->buckets[g->hash & p->bucket_mask];
    while (*link != id)
        link = &p->page[*link].hash_next;
    *link = g->hash_next;
    g->uid = 0;
    if (g->snapshot != SNAPSHOT_NONE)
        snapshots_free(&p->snapshots, g->snapshot);
    g->snapshot = SNAPSHOT_NONE;
}

static uint64_t entry_hash(const struct pages *p, uint64_t parent, const struct page_text *text)
{
    uint64_t pictures; /* a digest is evenly spread already */
    memcpy(&pictures, text->digest, sizeof pictures);
    return (hash64(text->tokens, token_bytes(p), parent) ^ pictures) & p->hash_mask;
}

static bool is_text(const struct pages *p, uint32_t id, const struct page_text *text)
{
    const struct page_text own = text_of(p, id);
    return !memcmp(own.tokens, text->tokens, token_bytes(p)) &&
           !memcmp(own.digest, text->digest, PAGE_DIGEST_BYTES);
}

static uint32_t entry_find(const struct pages *p, uint64_t hash, uint64_t parent,
                           const struct page_text *text)
{
    uint32_t id = p->buckets[hash & p->bucket_mask];
    for (; id != PAGE_NONE; id = p->page[id].hash_next) {
        const struct page *g = &p->page[id];
        if (g->hash == hash && g->parent == parent && is_text(p, id, text))
            return id;
    }
    return PAGE_NONE;
}

uint32_t pages_find(const struct pages *p, uint64_t parent, const struct page_text *text)
{
    return entry_find(p, entry_hash(p, parent, text), parent, text);
}

uint32_t pages_enter(struct pages *p, uint32_t id, uint64_t parent, const struct page_text *text)
{
    uint64_t hash = entry_hash(p, parent, text);
    uint32_t same = entry_find(p, hash, parent, text);
    /* two requests computed the same page side by side: one of them is enough to remember */
    if (same != PAGE_NONE)
        return same;
    struct page *g = &p->page[id];
    memcpy(p->tokens + (size_t)id * p->page_tokens, text->tokens, token_bytes(p));
    memcpy(p->digests + (size_t)id * PAGE_DIGEST_BYTES, text->digest, PAGE_DIGEST_BYTES);
    g->hash = hash;
    g->parent = parent;
    g->uid = ++p->last_uid;
    g->hash_next = p->buckets[hash & p->bucket_mask];
    p->buckets[hash & p->bucket_mask] = id;
    return id;
}

uint32_t pages_take_snapshot(struct pages *p)
{
    uint32_t page, snapshot = snapshots_take(&p->snapshots, &page);
    if (page != SNAPSHOT_NONE)
        p->page[page].snapshot = SNAPSHOT_NONE;
    return snapshot;
}

void pages_keep_snapshot(struct pages *p, uint32_t id, uint32_t snapshot)
{
    if (!p->page[id].uid || p->page[id].snapshot != SNAPSHOT_NONE) {
        snapshots_free(&p->snapshots, snapshot);
        return;
    }
    p->page[id].snapshot = snapshot;
    snapshots_keep(&p->snapshots, snapshot, id);
}

/* ---- references ---------------------------------------------------------------------------------------- */

static void free_push(struct pages *p, uint32_t id)
{
    p->page[id].next = p->free_head;
    p->free_head = id;
    p->n_free++;
}

uint32_t pages_take(struct pages *p)
{
    uint32_t id = p->free_head;
    if (id != PAGE_NONE) {
        p->free_head = p->page[id].next;
        p->n_free--;
    } else {
        id = p->oldest;
        if (id == PAGE_NONE)
            return PAGE_NONE;
        order_remove(p, id);
        entry_drop(p, id);
    }
    p->page[id].refs = 1;
    return id;
}

void pages_ref(struct pages *p, uint32_t id)
{
    if (p->page[id].refs++ == 0)
        order_remove(p, id);
}

void pages_unref(struct pages *p, uint32_t id, bool keep)
{
    struct page *g = &p->page[id];
    if (g->refs == 0)
        BUG("page %u is released more often than taken", id);
    if (--g->refs)
        return;
    if (g->uid && keep) {
        order_append(p, id);
        return;
    }
    if (g->uid)
        entry_drop(p, id);
    free_push(p, id);
}

void pages_forget(struct pages *p)
{
    while (p->oldest != PAGE_NONE) {
        uint32_t id = p->oldest;
        order_remove(p, id);
        free_push(p, id);
    }
    for (uint32_t i = 0; i < p->n; i++) {
        p->page[i].uid = 0;
        p->page[i].snapshot = SNAPSHOT_NONE;
    }
    snapshots_forget(&p->snapshots);
    memset(p->buckets, 0xff, ((size_t)p->bucket_mask + 1) * sizeof(*p->buckets));
}

/* ---- invariants ---------------------------------------------------------------------------------------- */

static int check_lists(const struct pages *p, struct err *e)
{
    uint32_t n_free = 0, n_cached = 0, before = PAGE_NONE;
    for (uint32_t id = p->free_head; id != PAGE_NONE; id = p->page[id].next) {
        if (id >= p->n || ++n_free > p->n || p->page[id].refs || p->page[id].uid)
            return err_set(e, ERR_MISMATCH, "free list: page %u does not belong there", id);
    }
    for (uint32_t id = p->oldest; id != PAGE_NONE; before = id, id = p->page[id].next) {
        if (id >= p->n || ++n_cached > p->n || p->page[id].refs || !p->page[id].uid ||
            p->page[id].prev != before)
            return err_set(e, ERR_MISMATCH, "use order: page %u does not belong there", id);
    }
    if (p->newest != before || n_free != p->n_free || n_cached != p->n_cached)
        return err_set(e, ERR_MISMATCH, "lists hold %u free and %u cached pages, counted as %u and %u",
                       n_free, n_cached, p->n_free, p->n_cached);
    return ERR_OK;
}

int pages_check(const struct pages *p, const uint32_t *refs, struct err *e)
{
    uint32_t n_held = 0, n_entries = 0, n_hashed = 0, n_snapshots = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->page[i].refs != refs[i])
            return err_set(e, ERR_MISMATCH, "page %u has %u references, counted as %u", i, refs[i],
                           p->page[i].refs);
        n_held += refs[i] > 0;
        n_entries += p->page[i].uid != 0;
        uint32_t snapshot = p->page[i].snapshot;
        n_snapshots += snapshot != SNAPSHOT_NONE;
        if (snapshot != SNAPSHOT_NONE &&
            (!p->page[i].uid || snapshot >= p->snapshots.n || p->snapshots.all[snapshot].page != i))
            return err_set(e, ERR_MISMATCH, "snapshot %u does not belong to page %u", snapshot, i);
    }
    if (n_snapshots != p->snapshots.n_kept)
        return err_set(e, ERR_MISMATCH, "%u pages have snapshots, %u are kept", n_snapshots,
                       p->snapshots.n_kept);
    for (uint64_t b = 0; b <= p->bucket_mask; b++)
        for (uint32_t id = p->buckets[b]; id != PAGE_NONE; id = p->page[id].hash_next) {
            const struct page_text text = text_of(p, id < p->n ? id : 0);
            if (++n_hashed > p->n || !p->page[id].uid || (p->page[id].hash & p->bucket_mask) != b ||
                entry_hash(p, p->page[id].parent, &text) != p->page[id].hash)
                return err_set(e, ERR_MISMATCH, "hash table: page %u does not belong to bucket %llu", id,
                               (unsigned long long)b);
        }
    if (n_hashed != n_entries)
        return err_set(e, ERR_MISMATCH, "%u entries, %u of them can be found", n_entries, n_hashed);
    if (n_held + p->n_free + p->n_cached != p->n)
        return err_set(e, ERR_MISMATCH, "%u held + %u free + %u cached pages of %u", n_held, p->n_free,
                       p->n_cached, p->n);
    if (p->n_reserved > p->n_free + p->n_cached)
        return err_set(e, ERR_MISMATCH, "%u pages promised, %u left", p->n_reserved, p->n_free + p->n_cached);
    return check_lists(p, e);
}
