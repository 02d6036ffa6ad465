/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler: requests in, step plans out, results back in. Owns request state, the page pool
 * (reference-counted, with a prefix cache), slots and snapshots of recurrent state, and the batching policy.
 * Knows no HTTP and no text; runs the same under a simulator. One thread owns it.
 */
#ifndef SCHED_SCHED_H
#define SCHED_SCHED_H

#include "engine/engine.h"

struct sched_options {
    struct engine_limits limits; /* of the engine that runs the plans */
    uint32_t max_context;        /* tokens of one sequence */
    uint32_t prefill_chunk;      /* most prompt tokens of one sequence in one step; 0: max_tokens */
    uint32_t max_waiting;        /* queued requests beyond which submit refuses */
    bool prefix_cache;           /* where limits.n_slots says that the model has recurrent states, a prefix is
                                  * found up to a snapshot of them; without effect if there are none of those */
    uint32_t snapshot_every;     /* tokens of a sequence between snapshots, besides those at the end of its
                                  * prompt and where a known beginning ends; 0: so that half of the snapshots
                                  * hold the longest sequence; rounded up to whole pages */
    uint64_t hash_mask; /* bits of the prefix hash that are used; 0: all. Tests force collisions with it */
    struct mem *mem;
};

enum sched_finish {
    SCHED_RUNNING = 0,
    SCHED_STOP /* a stop id */,
    SCHED_LENGTH,
    SCHED_CANCELLED,
    SCHED_FAILED
};
const char *sched_finish_name(enum sched_finish f); /* OpenAI's words: "stop", "length", ... */

struct sched_request {
    uint64_t id;           /* unique among live requests, chosen by the caller */
    const int32_t *prompt; /* copied */
    uint32_t n_prompt;
    uint32_t max_new;
    const int32_t *stop_ids; /* copied; a sampled stop id ends the request and is reported with the event */
    uint32_t n_stop;
    bool ignore_stop;
    struct step_sampling sampling;
};

/* One token (or the end) of one request. token is -1 if the event carries none. */
struct sched_event {
    uint64_t id;
    int32_t token;
    float logprob;
    const struct step_top *top;
    uint32_t n_top;
    enum sched_finish finish; /* SCHED_RUNNING: more to come */
    uint32_t n_prompt, n_cached, n_generated;
    const char *why; /* of SCHED_FAILED */
};
typedef void (*sched_event_fn)(void *context, const struct sched_event *event);

struct sched_stats {
    uint32_t n_running, n_waiting;
    uint32_t pages_total, pages_free,
        pages_cached;                         /* cached: unreferenced but reusable, counted as free too */
    uint32_t snapshots_total, snapshots_kept; /* of recurrent states */
    uint64_t snapshot_hits;                   /* requests that began from one */
    uint64_t steps, tokens_prefilled, tokens_generated, tokens_cached;
    uint64_t finished[5]; /* by enum sched_finish */
    uint32_t last_batch_seqs, last_batch_tokens;
};

struct sched;
int sched_open(struct sched **out, const struct sched_options *o, struct err *e);
void sched_close(struct sched *s);

/* ERR_LIMIT when the request can never fit (prompt + max_new over context or over all pages: says both
 * numbers); ERR_BUSY when the queue is full; ERR_INVALID for an empty prompt or an id outside the vocabulary.
 */
int sched_submit(struct sched *s, const struct sched_request *r, struct err *e);
/* Frees its pages at once, also while it waits; no event follows. Unknown ids are ignored. */
void sched_cancel(struct sched *s, uint64_t id);

/* The next step into buf (step_plan_bytes(limits) always suffices; ERR_BUSY while a step is out); *plan is
 * NULL when there is nothing to do. Decode tokens go first, then prompt chunks in arrival order within
 * max_tokens; pages for prompt and max_new are reserved at admission, so a running request never loses its
 * pages. Allocates nothing in the steady state. */
int sched_plan(struct sched *s, void *buf, size_t cap, struct step_plan **plan, struct err *e);
/* Applies the result of that step: emits events. A result with an error fails the requests of that step.
 * ERR_FORMAT and ERR_MISMATCH leave the step out: apply a step_result_error instead. The callback must not
 * call into the scheduler. */
int sched_apply(struct sched *s, const struct step_result *r, size_t bytes, sched_event_fn fn, void *context,
                struct err *e);
/* The engine was lost and will be rebuilt: the step that is out is forgotten, cached pages are dropped, and
 * every running request starts over from its prompt and the tokens it has already given, in its old order. No
 * event; the texts continue with the same tokens. */
void sched_engine_lost(struct sched *s);
void sched_stats(const struct sched *s, struct sched_stats *out);
/* Every invariant (reference counts, free list, tables); for tests. */
int sched_check(const struct sched *s, struct err *e);

#endif
