/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the invariants of a scheduler, for tests. Refuses: to repair anything.
 */
#include <stdlib.h>

#include "sched/sched_internal.h"

static int check_running(const struct sched *s, uint32_t *refs, uint64_t *reserved, struct err *e)
{
    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct request *r = s->running[i];
        if (r->n_held > r->n_total || r->computed >= r->n_tokens ||
            r->n_tokens != r->n_prompt + r->n_generated || r->n_generated >= r->max_new ||
            (uint64_t)r->n_held * s->o.limits.page_tokens < r->computed)
            return err_set(e, ERR_MISMATCH,
                           "request %llu: %u of %u tokens computed, %u generated of %u, %u pages of %u",
                           (unsigned long long)r->id, r->computed, r->n_tokens, r->n_generated, r->max_new,
                           r->n_held, r->n_total);
        *reserved += r->n_total - r->n_held;
        for (uint32_t k = 0; k < r->n_held; k++) {
            if (r->table[k] >= s->pages.n)
                return err_set(e, ERR_MISMATCH, "request %llu holds page %u", (unsigned long long)r->id,
                               r->table[k]);
            refs[r->table[k]]++;
        }
    }
    return ERR_OK;
}

/* Each slot is free or belongs to one running request. */
static int check_slots(const struct sched *s, struct err *e)
{
    uint32_t n = s->o.limits.n_slots, running = n ? s->n_running : 0;
    bool *seen = calloc((size_t)n + 1, sizeof(*seen));
    int rc = seen ? ERR_OK : err_set(e, ERR_NOMEM, "no memory to check %u slots", n);
    if (rc == ERR_OK && s->n_free_slots + running != n)
        rc = err_set(e, ERR_MISMATCH, "%u slots are free, %u requests run, there are %u", s->n_free_slots,
                     running, n);
    for (uint32_t i = 0; rc == ERR_OK && i < n; i++) {
        uint32_t slot = i < running ? s->running[i]->slot : s->free_slots[i - running];
        if (slot >= n || seen[slot])
            rc = err_set(e, ERR_MISMATCH, "slot %u is held twice or does not exist", slot);
        else
            seen[slot] = true;
    }
    free(seen);
    return rc;
}

static int check_snapshots(const struct sched *s, struct err *e)
{
    uint32_t n = s->pages.snapshots.n, n_taken = 0;
    uint32_t *pins = calloc((size_t)n + 1, sizeof(*pins));
    int rc = pins ? ERR_OK : err_set(e, ERR_NOMEM, "no memory to check %u snapshots", n);
    for (uint32_t i = 0; rc == ERR_OK && i < s->n_running; i++) {
        const struct request *r = s->running[i];
        if (r->snapshot == SNAPSHOT_NONE)
            continue;
        uint32_t pages = r->computed / s->o.limits.page_tokens; /* nothing else is computed yet */
        if (r->snapshot >= n || !pages || s->pages.snapshots.all[r->snapshot].page != r->table[pages - 1])
            rc = err_set(e, ERR_MISMATCH,
                         "request %llu begins at %u from snapshot %u, which is of another page",
                         (unsigned long long)r->id, r->computed, r->snapshot);
        else
            pins[r->snapshot]++;
    }
    for (uint32_t i = 0; s->out && i < s->n_pieces; i++)
        n_taken += s->pieces[i].save != SNAPSHOT_NONE;
    if (rc == ERR_OK)
        rc = snapshots_check(&s->pages.snapshots, pins, n_taken, e);
    free(pins);
    return rc;
}

/* Each row of the store that is promised belongs to one picture whose tokens are not all computed. */
static int check_rows(const struct sched *s, struct err *e)
{
    uint32_t n = s->rows.n, n_used = 0, n_held = 0;
    uint8_t *seen = calloc((size_t)n + 1, 1);
    int rc = seen ? ERR_OK : err_set(e, ERR_NOMEM, "no memory to check %u rows", n);
    for (uint32_t i = 0; rc == ERR_OK && i < s->n_running; i++) {
        const struct request *r = s->running[i];
        for (uint32_t k = 0; rc == ERR_OK && r->images && k < r->images->n; k++) {
            const struct image *m = &r->images->image[k];
            bool ahead = m->last >= r->computed, has = m->row != ROW_NONE;
            if (ahead != has || (has && (m->row > n || m->n_rows > n - m->row)) || (m->encoded && !has))
                rc =
                    err_set(e, ERR_MISMATCH, "request %llu: picture %u has rows %u + %u of %u at position %u",
                            (unsigned long long)r->id, k, m->row, m->n_rows, n, r->computed);
            for (uint32_t j = 0; rc == ERR_OK && has && j < m->n_rows; j++, n_held++)
                if (seen[m->row + j]++ || !s->rows.used[m->row + j])
                    rc = err_set(e, ERR_MISMATCH, "row %u of the store is held twice or free", m->row + j);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        n_used += s->rows.used[i];
    if (rc == ERR_OK && (n_used != n_held || n_used + s->rows.n_free != n))
        rc = err_set(e, ERR_MISMATCH, "%u rows of the store are held, %u marked, %u free of %u", n_held,
                     n_used, s->rows.n_free, n);
    free(seen);
    return rc;
}

int sched_check(const struct sched *s, struct err *e)
{
    uint32_t n_waiting = 0;
    const struct request *last = NULL;
    for (const struct request *r = s->first_waiting; r; last = r, r = r->next)
        if (++n_waiting > s->n_waiting || r->n_held)
            return err_set(e, ERR_MISMATCH, "the queue is longer than %u or its request %llu holds pages",
                           s->n_waiting, (unsigned long long)r->id);
    if (n_waiting != s->n_waiting || last != s->last_waiting || s->n_running > s->o.limits.max_seqs)
        return err_set(e, ERR_MISMATCH, "%u requests wait, counted as %u; %u run", n_waiting, s->n_waiting,
                       s->n_running);
    uint32_t *refs = calloc(s->pages.n, sizeof(*refs));
    if (!refs)
        return err_set(e, ERR_NOMEM, "no memory to check %u pages", s->pages.n);
    uint64_t reserved = 0;
    int rc = check_running(s, refs, &reserved, e);
    if (rc == ERR_OK && reserved != s->pages.n_reserved)
        rc = err_set(e, ERR_MISMATCH, "%llu pages are promised, counted as %u", (unsigned long long)reserved,
                     s->pages.n_reserved);
    if (rc == ERR_OK)
        rc = pages_check(&s->pages, refs, e);
    if (rc == ERR_OK)
        rc = check_slots(s, e);
    if (rc == ERR_OK)
        rc = check_snapshots(s, e);
    if (rc == ERR_OK)
        rc = check_rows(s, e);
    free(refs);
    return rc;
}
