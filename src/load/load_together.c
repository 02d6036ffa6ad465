/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: threads that read a tensor together, each with aligned memory to read through. Refuses order: shares
 * go to whoever comes next, since every one has its own place.
 */
#include "load/load_together.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/thread.h"

#define SHARE_BYTES  ((uint64_t)1 << 20)
#define BOUNCE_BYTES (SHARE_BYTES + 2 * CKPT_PAST_ALIGN)

struct load_readers {
    struct pool *pool;
    unsigned char *bounce; /* BOUNCE_BYTES for each thread */
};

struct together {
    struct load_readers *readers;
    struct ckpt *c;
    const struct ckpt_tensor *t;
    uint64_t from, bytes;
    unsigned char *to;
    _Atomic uint64_t next;
    _Atomic bool failed;
    struct err err; /* of the thread that set `failed` */
    int rc;
};

int load_readers_open(struct load_readers **out, unsigned n_threads, struct err *e)
{
    struct load_readers *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "no memory for %u reading threads", n_threads);
    int rc = pool_open(&r->pool, n_threads, e);
    if (rc == ERR_OK && !(r->bounce = aligned_alloc(CKPT_PAST_ALIGN, n_threads * BOUNCE_BYTES)))
        rc = err_set(e, ERR_NOMEM, "no memory for %u reading threads", n_threads);
    if (rc != ERR_OK) {
        load_readers_close(r);
        return rc;
    }
    *out = r;
    return ERR_OK;
}

void load_readers_close(struct load_readers *r)
{
    if (!r)
        return;
    pool_close(r->pool);
    free(r->bounce);
    free(r);
}

/* A pool gives every thread its part beforehand; on a busy machine they do not get on alike, so each takes
 * the next share. */
static void read_shares(void *context, size_t first, size_t last, unsigned thread)
{
    struct together *x = context;
    (void)first, (void)last;
    for (;;) {
        const uint64_t at = atomic_fetch_add(&x->next, SHARE_BYTES);
        if (at >= x->bytes || atomic_load(&x->failed))
            return;
        const uint64_t n = x->bytes - at < SHARE_BYTES ? x->bytes - at : SHARE_BYTES;
        struct err e = {0};
        int rc = ckpt_read_past(x->c, x->t, x->from + at, x->to + at, n,
                                x->readers->bounce + thread * BOUNCE_BYTES, &e);
        if (rc != ERR_OK && !atomic_exchange(&x->failed, true)) {
            x->err = e;
            x->rc = rc;
        }
    }
}

int load_together(struct load_readers *r, struct ckpt *c, const struct ckpt_tensor *t, uint64_t from,
                  unsigned char *to, uint64_t bytes, struct err *e)
{
    struct together x = {.readers = r, .c = c, .t = t, .from = from, .bytes = bytes, .to = to};
    pool_run(r->pool, pool_threads(r->pool), 1, read_shares, &x);
    if (x.rc != ERR_OK && e)
        *e = x.err;
    return x.rc;
}
