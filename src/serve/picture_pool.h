/* SPDX-License-Identifier: Apache-2.0
 *
 * Host threads that decode and process the pictures of requests, beside loop and engine thread. Owns the
 * threads, the queue, and a limit on what all requests hold of pictures. Refuses to wait: what finds no room
 * is told so at once.
 */
#ifndef SERVE_PICTURE_POOL_H
#define SERVE_PICTURE_POOL_H

#include "prompt/prompt.h"
#include "sched/sched.h"
#include "serve/metrics.h"

struct picture_pool;

/* The pictures of one request, from its body to the end of the request. One thread at a time owns it: the
 * loop, until picture_pool_submit; the pool; the loop again from picture_pool_take; the engine thread. */
struct picture_set {
    uint64_t id;                     /* of the request */
    struct arena arena;              /* files, plans, layout */
    struct prompt_pictures pictures; /* set by the loop */
    struct prompt_layout layout;
    struct sched_image *images; /* [pictures.n] made by the pool; their messages live as long as the set */
    uint64_t decode_ns, process_ns; /* of all pictures, in seconds of threads */
    int code;                       /* not 0: one cannot be made; then which, and why */
    uint32_t failed;
    char why[256];
    /* the pool's own */
    struct picture_pool *pool;
    struct picture_set *next;
    uint64_t bytes;       /* counted in the pool */
    uint64_t *work_bytes; /* [pictures.n] that making each takes beside that, at most */
    uint32_t n_begun, n_running, n_done;
    bool cancelled;
};

/* Other work for a thread of the pool: goes before pictures, and comes back to the loop. */
struct pool_call {
    void (*run)(struct pool_call *call);  /* on that thread */
    void (*drop)(struct pool_call *call); /* where it does not come back */
    uint64_t bytes;                       /* counted in the pool until it comes back */
    struct pool_call *next;
};

struct picture_pool_options {
    const struct prompt_front *front;
    const struct picture_shape *shape; /* of messages */
    struct image_limits limits;
    unsigned n_threads; /* >= 1 */
    uint64_t max_bytes; /* half of it for files and messages of all sets, half for what threads work in */
    void (*notify)(void *context); /* on a thread of the pool: sets are done */
    void *context;
    struct mem *mem;
};

struct picture_pool_stats {
    unsigned n_threads;
    uint32_t n_waiting; /* pictures that no thread has begun */
    uint64_t held_bytes, max_bytes;
    uint64_t working_bytes, most_working_bytes; /* predicted for pictures in progress: now, and ever */
    uint64_t n_done, n_failed, busy_ns;         /* pictures; time of threads */
    struct histogram decode, process;           /* of one picture */
};

int picture_pool_open(struct picture_pool **out, const struct picture_pool_options *o, struct err *e);
/* Waits for pictures in progress; no other is begun, nobody is notified any more. p may be NULL. */
void picture_pool_stop(struct picture_pool *p);
/* Forgets what was not taken. Sets that were are to be freed before. */
void picture_pool_close(struct picture_pool *p);

/* An empty set; NULL: no memory. */
struct picture_set *picture_set_new(struct picture_pool *p); /* without an id yet */
void picture_set_free(struct picture_set *s);                /* any thread; s may be NULL */

/* Counts what the set will hold; any thread, before submit. ERR_LIMIT: more than half of max_bytes by itself,
 * or a picture that takes more than the other half to make. ERR_BUSY: not now. */
int picture_pool_reserve(struct picture_set *s, struct err *e);
/* Takes the set over. Sets are worked on in order; the pictures of one by as many threads as are free and
 * have room to work in. */
void picture_pool_submit(struct picture_set *s);
/* Takes the call over unless it fails. ERR_BUSY, ERR_LIMIT as of picture_pool_reserve. */
int picture_pool_call(struct picture_pool *p, struct pool_call *call, uint64_t bytes, struct err *e);
/* Drops a call that no thread has begun. False: it will return. */
bool picture_pool_uncall(struct picture_pool *p, struct pool_call *call);
struct pool_call *picture_pool_returned(struct picture_pool *p); /* the caller's again; or NULL */
void picture_pool_cancel(struct picture_pool *p, uint64_t id);   /* a set that was submitted and not taken */
struct picture_set *picture_pool_take(struct picture_pool *p);   /* one that is done, or NULL */
void picture_pool_stats(struct picture_pool *p, struct picture_pool_stats *out);

#endif
