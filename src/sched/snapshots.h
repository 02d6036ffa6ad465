/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to sched: which snapshot of a recurrent state stands behind which cached page. A snapshot is free,
 * taken (a step that is out writes it), or kept (it belongs to a page; the longest unused goes first).
 */
#ifndef SCHED_SNAPSHOTS_H
#define SCHED_SNAPSHOTS_H

#include "base/err.h"
#include "base/mem.h"

#define SNAPSHOT_NONE UINT32_MAX

struct snapshot {
    uint32_t page;       /* it is the state behind the last token of that page; SNAPSHOT_NONE: of none yet */
    uint32_t pins;       /* requests that are about to begin from it: it is not given away */
    uint32_t prev, next; /* kept: the use order; free: `next` only */
};

struct snapshots {
    struct snapshot *all; /* [n] */
    uint32_t n, n_free, n_kept;
    uint32_t free_head, oldest, newest;
};

int snapshots_init(struct snapshots *s, struct arena *a, uint32_t n, struct err *e);
/* A free one, or the longest unused without a pin; *page is the page that it was of, else SNAPSHOT_NONE. All
 * in use: SNAPSHOT_NONE. */
uint32_t snapshots_take(struct snapshots *s, uint32_t *page);
void snapshots_keep(struct snapshots *s, uint32_t id, uint32_t page); /* a taken one */
void snapshots_free(struct snapshots *s, uint32_t id);                /* a taken or kept one */
void snapshots_pin(struct snapshots *s, uint32_t id);                 /* a kept one; counts as used */
void snapshots_unpin(struct snapshots *s, uint32_t id);
void snapshots_forget(struct snapshots *s); /* all are free */
/* pins: [n] as counted by the owner; n_taken: on their way. */
int snapshots_check(const struct snapshots *s, const uint32_t *pins, uint32_t n_taken, struct err *e);

#endif
