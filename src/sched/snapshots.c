/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the lists of snapshots and the order in which they are given away.
 * Refuses: any knowledge of requests and of what a state is, and to give away what somebody begins from.
 */
#include "sched/snapshots.h"

#include <string.h>

int snapshots_init(struct snapshots *s, struct arena *a, uint32_t n, struct err *e)
{
    *s = (struct snapshots){.n = n};
    s->all = arena_alloc_n(a, n + (size_t)1, sizeof(*s->all));
    if (!s->all)
        return err_set(e, ERR_NOMEM, "scheduler: no memory for a table of %u snapshots", n);
    snapshots_forget(s);
    return ERR_OK;
}

void snapshots_forget(struct snapshots *s)
{
    s->n_free = s->n;
    s->n_kept = 0;
    s->free_head = s->oldest = s->newest = SNAPSHOT_NONE;
    for (uint32_t i = s->n; i-- > 0;) {
        s->all[i] = (struct snapshot){.page = SNAPSHOT_NONE, .next = s->free_head};
        s->free_head = i;
    }
}

static void order_remove(struct snapshots *s, uint32_t id)
{
    struct snapshot *g = &s->all[id];
    if (g->prev != SNAPSHOT_NONE)
        s->all[g->prev].next = g->next;
    else
        s->oldest = g->next;
    if (g->next != SNAPSHOT_NONE)
        s->all[g->next].prev = g->prev;
    else
        s->newest = g->prev;
    s->n_kept--;
}

static void order_append(struct snapshots *s, uint32_t id)
{
    struct snapshot *g = &s->all[id];
    g->prev = s->newest;
    g->next = SNAPSHOT_NONE;
    if (s->newest != SNAPSHOT_NONE)
        s->all[s->newest].next = id;
    else
        s->oldest = id;
    s->newest = id;
    s->n_kept++;
}

uint32_t snapshots_take(struct snapshots *s, uint32_t *page)
{
    uint32_t id = s->free_head;
    *page = SNAPSHOT_NONE;
    if (id != SNAPSHOT_NONE) {
        s->free_head = s->all[id].next;
        s->n_free--;
        return id;
    }
    for (id = s->oldest; id != SNAPSHOT_NONE && s->all[id].pins;)
        id = s->all[id].next;
    if (id == SNAPSHOT_NONE)
        return id;
    order_remove(s, id);
    *page = s->all[id].page;
    s->all[id].page = SNAPSHOT_NONE;
    return id;
}

void snapshots_keep(struct snapshots *s, uint32_t id, uint32_t page)
{
    if (s->all[id].page != SNAPSHOT_NONE)
        BUG("snapshot %u is kept twice", id);
    s->all[id].page = page;
    order_append(s, id);
}

void snapshots_free(struct snapshots *s, uint32_t id)
{
    if (s->all[id].pins)
        BUG("snapshot %u is freed while somebody begins from it", id);
    if (s->all[id].page != SNAPSHOT_NONE)
        order_remove(s, id);
    s->all[id].page = SNAPSHOT_NONE;
    s->all[id].next = s->free_head;
    s->free_head = id;
    s->n_free++;
}

void snapshots_pin(struct snapshots *s, uint32_t id)
{
    s->all[id].pins++;
    order_remove(s, id);
    order_append(s, id);
}

void snapshots_unpin(struct snapshots *s, uint32_t id)
{
    if (s->all[id].pins-- == 0)
        BUG("snapshot %u is let go more often than held", id);
}

int snapshots_check(const struct snapshots *s, const uint32_t *pins, uint32_t n_taken, struct err *e)
{
    uint32_t n_free = 0, n_kept = 0, before = SNAPSHOT_NONE;
    for (uint32_t id = s->free_head; id != SNAPSHOT_NONE; id = s->all[id].next)
        if (id >= s->n || ++n_free > s->n || s->all[id].page != SNAPSHOT_NONE || s->all[id].pins)
            return err_set(e, ERR_MISMATCH, "free list: snapshot %u does not belong there", id);
    for (uint32_t id = s->oldest; id != SNAPSHOT_NONE; before = id, id = s->all[id].next)
        if (id >= s->n || ++n_kept > s->n || s->all[id].page == SNAPSHOT_NONE || s->all[id].prev != before)
            return err_set(e, ERR_MISMATCH, "use order: snapshot %u does not belong there", id);
    if (s->newest != before || n_free != s->n_free || n_kept != s->n_kept ||
        n_free + n_kept + n_taken != s->n)
        return err_set(e, ERR_MISMATCH,
                       "%u snapshots free, counted as %u; %u kept, counted as %u; %u taken of %u", n_free,
                       s->n_free, n_kept, s->n_kept, n_taken, s->n);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->all[i].pins != pins[i])
            return err_set(e, ERR_MISMATCH, "snapshot %u has %u pins, counted as %u", i, pins[i],
                           s->all[i].pins);
    return ERR_OK;
}
