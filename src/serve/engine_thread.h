/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine thread: sole owner of scheduler and engine while it runs. Commands go in, events come out, both
 * under one mutex; the other side is told once per batch of events. All functions below are for the loop
 * thread.
 */
#ifndef SERVE_ENGINE_THREAD_H
#define SERVE_ENGINE_THREAD_H

#include "base/log.h"
#include "sched/sched.h"
#include "serve/metrics.h"
#include "serve/picture_pool.h"

struct engine_thread;

enum engine_event_kind {
    EVENT_ACCEPTED, /* the scheduler took the request */
    EVENT_REFUSED,  /* it did not: code, why */
    EVENT_TOKEN,    /* a token, the end, or both */
};

struct engine_event {
    enum engine_event_kind kind;
    uint64_t id;
    uint64_t at_ns;                 /* clock_ns() */
    uint64_t started_ns, vision_ns; /* of EVENT_TOKEN: when work on the request began, and what of the time
                                     * since went into its pictures */
    int32_t token;                  /* -1: none */
    float logprob;
    uint32_t n_top;
    struct step_top top[STEP_MAX_TOP];
    enum sched_finish finish;
    uint32_t n_prompt, n_cached, n_generated;
    int code;
    char why[256];
};

struct engine_submit {
    uint64_t id;
    int32_t *prompt; /* malloc'ed; taken over, also on failure */
    uint32_t n_prompt, max_new;
    bool ignore_stop;
    struct step_sampling sampling;
    struct picture_set *pictures; /* taken over like the prompt; NULL: none */
};

enum engine_state { ENGINE_LOADING /* no token computed yet */, ENGINE_READY, ENGINE_FAILED };

struct engine_snapshot {
    enum engine_state state;
    char reason[256]; /* of ENGINE_FAILED */
    uint64_t beat_ns; /* clock_ns() of the last sign of life */
    uint64_t last_step_ns, longest_step_ns;
    uint64_t failed_steps;
    struct sched_stats sched;
    struct histogram step_seconds;
    struct histogram picture_seconds; /* of the tower, one picture */
    uint64_t failed_pictures;
};

struct engine_thread_options {
    struct engine *engine;
    struct sched_options sched;
    const int32_t *stop_ids; /* kept by the caller */
    uint32_t n_stop;
    int32_t canary_token; /* prompt of the one-token request that proves readiness */
    uint32_t vocab_limit;
    uint32_t n_slots;              /* low halves of ids are below it, and unique among live requests */
    void (*notify)(void *context); /* on the engine thread: events wait */
    void *context;
    struct log *log;
};

int engine_thread_open(struct engine_thread **out, const struct engine_thread_options *o, struct err *e);
int engine_thread_start(struct engine_thread *t, struct err *e);
void engine_thread_stop(struct engine_thread *t); /* ends after the step in progress; joins */
void engine_thread_close(struct engine_thread *t);

int engine_thread_submit(struct engine_thread *t, const struct engine_submit *r); /* 0 or ERR_NOMEM */
void engine_thread_cancel(struct engine_thread *t, uint64_t id);
/* Swaps the waiting events against *events (n set to 0 by the caller before). Returns how many. */
size_t engine_thread_take(struct engine_thread *t, struct engine_event **events, size_t *capacity);
void engine_thread_snapshot(struct engine_thread *t, struct engine_snapshot *out);

#endif
