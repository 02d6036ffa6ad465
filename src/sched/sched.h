/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler: requests in, step plans out, results back in. Owns request state, the page pool
 * (reference-counted, with a prefix cache), slots and snapshots of recurrent state, rows of the store of
 * features, and the batching policy. Knows no HTTP, no text and no pixels; runs the same under a simulator.
 * One thread owns it.
 *
 * The loop around an engine with a tower:
 *     if (sched_picture(s, &job)) engine_picture(x, job.message, job.bytes, job.first_row, &e);
 *                                    sched_picture_done(s, rc, ...);
 *     else                           sched_plan, engine_step, sched_apply as without one
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

/* One picture of a request. */
struct sched_image {
    uint8_t key[32]; /* digest of its content: pictures of one key give the same rows. Never all zeros */
    uint32_t n_rows; /* that its tower gives, as many as tokens stand for it; >= 1 */
    const struct picture_plan *message; /* stays the caller's, unchanged, until the request has ended or was
                                         * cancelled */
    size_t bytes;
};

struct sched_request {
    uint64_t id;           /* unique among live requests, chosen by the caller */
    const int32_t *prompt; /* copied */
    uint32_t n_prompt;
    uint32_t max_new;
    const int32_t *stop_ids; /* copied; a sampled stop id ends the request and is reported with the event */
    uint32_t n_stop;
    bool ignore_stop;
    struct step_sampling sampling;
    /* Pictures; all NULL and 0 for a text. Everything but the messages is copied. */
    const struct sched_image *images; /* [n_images] in the order in which the prompt takes their rows */
    uint32_t n_images;
    const int32_t *feature_of; /* [n_prompt] row that the token takes, counted over the images, or -1: each
                                * row once, in order. NULL: none */
    const int32_t *places;     /* [n_prompt, 3] time, height, width of each token; NULL: its position */
    int32_t place_delta;       /* a token that is generated at position p stands at place p + place_delta */
    const int32_t *spans;      /* [n_prompt, 2] first position, and the one behind the last, of the span in
                                * which a token sees others both ways; alone {p, p + 1}. NULL: all are. A span
                                * goes through one step whole */
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
    uint32_t feature_rows_total, feature_rows_free; /* of the store */
    uint64_t images_encoded, images_cached; /* cached: wholly in a prefix that was found, so not encoded */
};

struct sched;
int sched_open(struct sched **out, const struct sched_options *o, struct err *e);
void sched_close(struct sched *s);

/* ERR_LIMIT when the request can never fit (prompt + max_new over context or over all pages, its pictures
 * over the store of features or the tower, a span over a step: says both numbers); ERR_BUSY when the queue is
 * full; ERR_INVALID for an empty prompt, an id outside the vocabulary, or images, rows, places and spans that
 * do not agree; ERR_UNSUPPORTED for pictures where the engine has no tower. */
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
/* One picture for engine_picture(). */
struct sched_job {
    uint64_t request;
    uint32_t image; /* of the request */
    uint32_t first_row;
    const struct picture_plan *message;
    size_t bytes;
};
/* Is a picture to go through the tower before the next step? Then it is out until sched_picture_done(), and
 * no step can be planned. Where requests wait for their next token there is a step between any two pictures;
 * never while a step is out. Admits requests like sched_plan(). */
bool sched_picture(struct sched *s, struct sched_job *job);
/* rc: of engine_picture(). A failure fails its request (event, with `why`); after a loss of the engine call
 * sched_engine_lost() instead. Nothing happens where no picture is out or its request was cancelled. */
void sched_picture_done(struct sched *s, int rc, const char *why, sched_event_fn fn, void *context);
/* The engine was lost and will be rebuilt: the step or picture that is out is forgotten, cached pages
 * and encoded pictures are dropped, and every running request starts over from its prompt and the tokens it
 * has already given, in its old order. No event; the texts continue with the same tokens. */
void sched_engine_lost(struct sched *s);
void sched_stats(const struct sched *s, struct sched_stats *out);
/* Every invariant (reference counts, free list, tables); for tests. */
int sched_check(const struct sched *s, struct err *e);

#endif
