/* SPDX-License-Identifier: Apache-2.0
 *
 * plan -> step -> apply, for ever. Owns scheduler, step buffers and both queues. A step that fails costs its
 * requests and nothing else; three in a row, or a scheduler that cannot plan, make the state "failed" until a
 * step succeeds again. Steady state allocates nothing here: queues and buffers keep their memory.
 */
#include "serve/engine_thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/thread.h"

#define CANARY_ID         UINT64_MAX
#define IDLE_BEAT_NS      100000000u /* an idle thread shows life this often */
#define FAILED_AFTER      3
#define CANARY_EVERY_NS   1000000000u /* while the engine is not ready */
#define FAILED_STEP_PAUSE 10000000u   /* ns; keeps a broken device from being hammered */

struct command {
    bool cancel;
    struct engine_submit submit; /* cancel: only id */
};

/* What this thread notes of a request. */
struct work {
    uint64_t id;
    uint64_t started_ns;          /* of its first step or picture; 0: not yet */
    uint64_t vision_ns;           /* spent on its pictures */
    struct picture_set *pictures; /* until the request ends */
};

struct engine_thread {
    struct engine_thread_options o;
    struct sched *sched;
    struct work *work;         /* by the low half of the id */
    struct picture_set *ended; /* of requests that ended: to be freed once the scheduler is through */
    void *plan, *result;
    size_t plan_cap, result_cap;
    pthread_t thread;
    bool started, have_locks;
    bool canary_running; /* engine thread only */
    uint64_t canary_ns;

    pthread_mutex_t lock; /* of everything below, except `taken` */
    pthread_cond_t wake;
    bool stop, notified;
    struct command *commands, *taken; /* taken: the batch the engine thread works on */
    size_t n_commands, commands_capacity, taken_capacity;
    struct engine_event *events;
    size_t n_events, events_capacity;
    struct engine_snapshot snapshot;
    unsigned failures; /* failed steps in a row */
};

static void set_state(struct engine_thread *t, enum engine_state state, const char *reason)
{
    pthread_mutex_lock(&t->lock);
    bool changed = t->snapshot.state != state;
    t->snapshot.state = state;
    snprintf(t->snapshot.reason, sizeof t->snapshot.reason, "%.255s", reason);
    pthread_mutex_unlock(&t->lock);
    if (changed)
        log_line(t->o.log, state == ENGINE_FAILED ? LOG_ERROR : LOG_INFO, "serve", "engine %s%s%s",
                 state == ENGINE_READY ? "ready" : "failed", *reason ? ": " : "", reason);
}

/* NULL: nothing is noted of it. */
static struct work *work_of(struct engine_thread *t, uint64_t id)
{
    uint32_t slot = (uint32_t)id;
    return slot < t->o.n_slots && t->work[slot].id == id ? &t->work[slot] : NULL;
}

static void release_pictures(struct engine_thread *t, uint64_t id)
{
    struct work *w = work_of(t, id);
    if (w == NULL || w->pictures == NULL)
        return;
    w->pictures->next = t->ended;
    t->ended = w->pictures;
    w->pictures = NULL;
}

static void free_ended(struct engine_thread *t)
{
    while (t->ended) {
        struct picture_set *s = t->ended;
        t->ended = s->next;
        picture_set_free(s);
    }
}

/* ---- events out ---- */

static void push_event(struct engine_thread *t, const struct engine_event *ev)
{
    pthread_mutex_lock(&t->lock);
    bool ok = vec_reserve((void **)&t->events, &t->events_capacity, t->n_events + 1, sizeof *t->events) == 0;
    if (ok)
        t->events[t->n_events++] = *ev;
    pthread_mutex_unlock(&t->lock);
    if (!ok) /* its request would wait for ever: say so in /health */
        set_state(t, ENGINE_FAILED, "out of memory for events");
}

static void notify(struct engine_thread *t)
{
    pthread_mutex_lock(&t->lock);
    bool tell = t->n_events > 0 && !t->notified;
    t->notified = t->notified || tell;
    pthread_mutex_unlock(&t->lock);
    if (tell)
        t->o.notify(t->o.context);
}

static void on_canary(struct engine_thread *t, int32_t token, enum sched_finish finish, const char *why)
{
    char reason[256];
    t->canary_running = t->canary_running && finish == SCHED_RUNNING;
    if (finish == SCHED_FAILED) {
        snprintf(reason, sizeof reason, "the first token could not be computed: %.200s",
                 why ? why : "no reason given");
        set_state(t, ENGINE_FAILED, reason);
    } else if (token >= 0) {
        set_state(t, ENGINE_READY, "");
    }
}

static void on_sched_event(void *context, const struct sched_event *s)
{
    struct engine_thread *t = context;
    if (s->id == CANARY_ID) {
        on_canary(t, s->token, s->finish, s->why);
        return;
    }
    struct engine_event ev = {.kind = EVENT_TOKEN,
                              .id = s->id,
                              .at_ns = clock_ns(),
                              .token = s->token,
                              .logprob = s->logprob,
                              .finish = s->finish,
                              .n_prompt = s->n_prompt,
                              .n_cached = s->n_cached,
                              .n_generated = s->n_generated};
    const struct work *w = work_of(t, s->id);
    ev.started_ns = w ? w->started_ns : 0;
    ev.vision_ns = w ? w->vision_ns : 0;
    ev.n_top = s->n_top < STEP_MAX_TOP ? s->n_top : STEP_MAX_TOP;
    if (ev.n_top)
        memcpy(ev.top, s->top, ev.n_top * sizeof *ev.top);
    if (s->finish == SCHED_FAILED)
        snprintf(ev.why, sizeof ev.why, "%.255s", s->why ? s->why : "the step failed");
    push_event(t, &ev);
    if (s->finish != SCHED_RUNNING)
        release_pictures(t, s->id);
}

/* ---- commands in ---- */

static int submit_now(struct engine_thread *t, const struct engine_submit *r, struct err *e)
{
    struct sched_request q = {.id = r->id,
                              .prompt = r->prompt,
                              .n_prompt = r->n_prompt,
                              .max_new = r->max_new,
                              .stop_ids = t->o.stop_ids,
                              .n_stop = t->o.n_stop,
                              .ignore_stop = r->ignore_stop,
                              .sampling = r->sampling};
    const struct picture_set *s = r->pictures;
    if (s) {
        q.images = s->images;
        q.n_images = s->pictures.n;
        q.feature_of = s->layout.feature_of;
        q.places = s->layout.places;
        q.spans = s->layout.spans;
        q.place_delta = s->layout.place_delta;
    }
    return sched_submit(t->sched, &q, e);
}

static void run_command(struct engine_thread *t, struct command *c)
{
    struct engine_event ev = {.kind = EVENT_ACCEPTED, .id = c->submit.id, .at_ns = clock_ns(), .token = -1};
    struct err e = {0};
    if (c->cancel) {
        sched_cancel(t->sched, c->submit.id);
        release_pictures(t, c->submit.id);
        return;
    }
    if ((uint32_t)c->submit.id >= t->o.n_slots)
        BUG("request %llu is in none of %u slots", (unsigned long long)c->submit.id, t->o.n_slots);
    t->work[(uint32_t)c->submit.id] = (struct work){.id = c->submit.id, .pictures = c->submit.pictures};
    ev.code = submit_now(t, &c->submit, &e);
    free(c->submit.prompt);
    if (ev.code) {
        ev.kind = EVENT_REFUSED;
        snprintf(ev.why, sizeof ev.why, "%.255s", e.message);
        release_pictures(t, ev.id);
    }
    push_event(t, &ev);
}

/* Takes what waits; with nothing to do, waits for it, but not longer than a heartbeat. False: stop. */
static bool take_commands(struct engine_thread *t, bool idle)
{
    pthread_mutex_lock(&t->lock);
    if (idle && t->n_commands == 0 && !t->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        uint64_t ns = (uint64_t)until.tv_nsec + IDLE_BEAT_NS;
        until.tv_sec += (time_t)(ns / 1000000000u);
        until.tv_nsec = (long)(ns % 1000000000u);
        pthread_cond_timedwait(&t->wake, &t->lock, &until);
    }
    struct command *batch = t->commands;
    size_t n = t->n_commands, capacity = t->commands_capacity;
    t->commands = t->taken;
    t->commands_capacity = t->taken_capacity;
    t->n_commands = 0;
    t->taken = batch;
    t->taken_capacity = capacity;
    t->snapshot.beat_ns = clock_ns();
    bool go_on = !t->stop;
    pthread_mutex_unlock(&t->lock);
    for (size_t i = 0; i < n; i++)
        run_command(t, &batch[i]);
    free_ended(t);
    return go_on;
}

/* ---- the step ---- */

/* A result that says the whole step failed: what the engine would have sent had it been able to. */
static size_t failed_result(struct engine_thread *t, const struct step_plan *plan, int code, const char *why)
{
    struct step_result *r;
    if (step_result_error(t->result, t->result_cap, plan->step, code, why, &r, NULL))
        BUG("no room for an error in a result buffer of %zu bytes", t->result_cap);
    return r->bytes;
}

static void note_step(struct engine_thread *t, uint64_t ns, bool failed)
{
    pthread_mutex_lock(&t->lock);
    struct engine_snapshot *s = &t->snapshot;
    s->last_step_ns = ns;
    s->longest_step_ns = ns > s->longest_step_ns ? ns : s->longest_step_ns;
    s->failed_steps += failed;
    histogram_add(&s->step_seconds, (double)ns / 1e9);
    t->failures = failed ? t->failures + 1 : 0;
    bool broken = t->failures >= FAILED_AFTER, recovered = !failed && s->state == ENGINE_FAILED;
    pthread_mutex_unlock(&t->lock);
    if (broken)
        set_state(t, ENGINE_FAILED, "several steps in a row failed");
    else if (recovered)
        set_state(t, ENGINE_READY, "");
}

static void note_starts(struct engine_thread *t, struct step_plan *plan, uint64_t now)
{
    const struct step_seq *seqs = step_plan_seqs(plan);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        struct work *w = work_of(t, seqs[i].request);
        if (w && w->started_ns == 0)
            w->started_ns = now;
    }
}

static void run_step(struct engine_thread *t, struct step_plan *plan)
{
    struct err e = {0};
    uint64_t start = clock_ns();
    note_starts(t, plan, start);
    int rc = engine_step(t->o.engine, plan, plan->bytes, t->result, t->result_cap, &e);
    const struct step_result *r = t->result;
    size_t bytes = rc == 0 ? r->bytes : failed_result(t, plan, rc, e.message);
    bool failed = r->error != 0;
    if (failed)
        log_line(t->o.log, LOG_ERROR, "serve", "step %llu failed: %.200s", (unsigned long long)plan->step,
                 r->error_at && r->error_at < bytes ? (const char *)r + r->error_at : err_text(r->error));
    rc = sched_apply(t->sched, r, bytes, on_sched_event, t, &e);
    if (rc) {
        log_line(t->o.log, LOG_ERROR, "serve", "the result of step %llu was refused: %s",
                 (unsigned long long)plan->step, e.message);
        bytes = failed_result(t, plan, ERR_DEVICE, e.message);
        failed = true;
        rc = sched_apply(t->sched, r, bytes, on_sched_event, t, NULL);
    }
    note_step(t, clock_ns() - start, failed || rc != 0);
    if (failed || rc)
        clock_sleep_ns(FAILED_STEP_PAUSE);
}

/* A picture that is due goes through the tower. False: none is. A picture that fails costs its request. */
static bool run_picture(struct engine_thread *t)
{
    struct sched_job job;
    struct err e = {0};
    if (t->o.sched.limits.n_feature_rows == 0 || !sched_picture(t->sched, &job))
        return false;
    uint64_t start = clock_ns();
    int rc = engine_picture(t->o.engine, job.message, job.bytes, job.first_row, &e);
    uint64_t ns = clock_ns() - start;
    struct work *w = work_of(t, job.request);
    if (w) {
        w->started_ns = w->started_ns ? w->started_ns : start;
        w->vision_ns += ns;
    }
    pthread_mutex_lock(&t->lock);
    histogram_add(&t->snapshot.picture_seconds, (double)ns / 1e9);
    t->snapshot.failed_pictures += rc != 0;
    t->snapshot.longest_step_ns = ns > t->snapshot.longest_step_ns ? ns : t->snapshot.longest_step_ns;
    pthread_mutex_unlock(&t->lock);
    if (rc)
        log_line(t->o.log, LOG_ERROR, "serve", "a picture failed: %.200s", e.message);
    sched_picture_done(t->sched, rc, e.message, on_sched_event, t);
    return true;
}

/* One token of the real model, computed like any other: before that nobody is told that the service is ready,
 * and after a failure it is how the service finds out that the engine works again. */
static void run_canary(struct engine_thread *t)
{
    uint64_t now = clock_ns();
    if (t->snapshot.state == ENGINE_READY || t->canary_running ||
        (t->canary_ns && now - t->canary_ns < CANARY_EVERY_NS))
        return; /* only this thread writes the state */
    t->canary_running = true;
    t->canary_ns = now;
    struct engine_submit r = {
        .id = CANARY_ID, .prompt = &t->o.canary_token, .n_prompt = 1, .max_new = 1, .ignore_stop = true};
    struct err e = {0};
    r.sampling.top_p = 1;
    r.sampling.vocab_limit = t->o.vocab_limit;
    if (submit_now(t, &r, &e) != 0)
        on_canary(t, -1, SCHED_FAILED, e.message);
}

static void *engine_main(void *arg)
{
    struct engine_thread *t = arg;
    bool idle = false;
    while (take_commands(t, idle)) {
        run_canary(t);
        struct step_plan *plan = NULL;
        struct err e = {0};
        struct sched_stats stats;
        bool picture = run_picture(t);
        int rc = picture ? ERR_OK : sched_plan(t->sched, t->plan, t->plan_cap, &plan, &e);
        if (rc)
            set_state(t, ENGINE_FAILED, e.message);
        else if (plan)
            run_step(t, plan);
        idle = rc != 0 || (plan == NULL && !picture);
        free_ended(t);
        sched_stats(t->sched, &stats);
        pthread_mutex_lock(&t->lock);
        t->snapshot.sched = stats;
        pthread_mutex_unlock(&t->lock);
        notify(t);
    }
    return NULL;
}

/* ---- life ---- */

static int make_buffers(struct engine_thread *t, struct err *e)
{
    const struct engine_limits *l = &t->o.sched.limits;
    t->plan_cap = step_plan_bytes(l);
    t->result_cap = engine_result_bytes(l, false) + 1024; /* room for an error, whatever the limits are */
    t->plan = malloc(t->plan_cap);
    t->result = calloc(1, t->result_cap);
    if (t->plan == NULL || t->result == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for step buffers of %zu and %zu bytes", t->plan_cap,
                       t->result_cap);
    return ERR_OK;
}

int engine_thread_open(struct engine_thread **out, const struct engine_thread_options *o, struct err *e)
{
    struct engine_thread *t = calloc(1, sizeof *t);
    pthread_condattr_t attr;
    if (t == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the engine thread");
    t->o = *o;
    int rc = make_buffers(t, e);
    if (rc == 0 && (t->work = calloc(o->n_slots + 1, sizeof *t->work)) == NULL)
        rc = err_set(e, ERR_NOMEM, "out of memory for %u requests", o->n_slots);
    if (rc == 0)
        rc = sched_open(&t->sched, &o->sched, e);
    if (rc) {
        engine_thread_close(t);
        return rc;
    }
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&t->wake, &attr);
    pthread_condattr_destroy(&attr);
    t->have_locks = true;
    t->snapshot.beat_ns = clock_ns();
    sched_stats(t->sched, &t->snapshot.sched);
    *out = t;
    return ERR_OK;
}

int engine_thread_start(struct engine_thread *t, struct err *e)
{
    int rc = pthread_create(&t->thread, NULL, engine_main, t);
    if (rc)
        return err_set(e, ERR_NOMEM, "cannot start the engine thread: %s", strerror(rc));
    t->started = true;
    return ERR_OK;
}

void engine_thread_stop(struct engine_thread *t)
{
    if (!t->started)
        return;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    t->started = false;
}

static void drop_submit(struct engine_submit *r)
{
    free(r->prompt);
    picture_set_free(r->pictures);
}

void engine_thread_close(struct engine_thread *t)
{
    if (t == NULL)
        return;
    engine_thread_stop(t);
    for (size_t i = 0; i < t->n_commands; i++)
        if (!t->commands[i].cancel)
            drop_submit(&t->commands[i].submit);
    for (uint32_t i = 0; t->work && i < t->o.n_slots; i++)
        picture_set_free(t->work[i].pictures);
    sched_close(t->sched);
    if (t->have_locks) {
        pthread_cond_destroy(&t->wake);
        pthread_mutex_destroy(&t->lock);
    }
    free(t->plan);
    free(t->result);
    free(t->work);
    free(t->commands);
    free(t->taken);
    free(t->events);
    free(t);
}

static int push_command(struct engine_thread *t, const struct command *c)
{
    pthread_mutex_lock(&t->lock);
    int rc =
        vec_reserve((void **)&t->commands, &t->commands_capacity, t->n_commands + 1, sizeof *t->commands);
    if (rc == 0)
        t->commands[t->n_commands++] = *c;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

int engine_thread_submit(struct engine_thread *t, const struct engine_submit *r)
{
    int rc = push_command(t, &(struct command){.submit = *r});
    if (rc) {
        struct engine_submit gone = *r;
        drop_submit(&gone);
    }
    return rc;
}

void engine_thread_cancel(struct engine_thread *t, uint64_t id)
{
    if (push_command(t, &(struct command){.cancel = true, .submit = {.id = id}}))
        log_line(t->o.log, LOG_ERROR, "serve", "out of memory: a request whose client left runs to its end");
}

size_t engine_thread_take(struct engine_thread *t, struct engine_event **events, size_t *capacity)
{
    pthread_mutex_lock(&t->lock);
    struct engine_event *batch = t->events;
    size_t n = t->n_events, batch_capacity = t->events_capacity;
    t->events = *events;
    t->events_capacity = *capacity;
    t->n_events = 0;
    t->notified = false;
    *events = batch;
    *capacity = batch_capacity;
    pthread_mutex_unlock(&t->lock);
    return n;
}

void engine_thread_snapshot(struct engine_thread *t, struct engine_snapshot *out)
{
    pthread_mutex_lock(&t->lock);
    *out = t->snapshot;
    pthread_mutex_unlock(&t->lock);
}
