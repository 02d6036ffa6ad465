/* SPDX-License-Identifier: Apache-2.0
 *
 * The service's life: opens the port and the engine thread, runs the loop, stops in order. Owns the slots of
 * live requests. On stop: new requests are refused, running ones may finish within drain_ns, the rest is
 * ended with an error that says so.
 */
#include "serve/serve.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/thread.h"
#include "serve/serve_impl.h"

#define TICK_NS 100000000u
#define FAILED_GRACE_NS                                                                                      \
    5000000000u /* a failed engine may recover for so long before its requests are ended */

/* ---- loop thread ---- */

static void drain_events(void *arg)
{
    struct serve *s = arg;
    size_t n = engine_thread_take(s->thread, &s->events, &s->events_capacity);
    for (size_t i = 0; i < n; i++)
        request_event(s, &s->events[i]);
}

static void drain_pictures(void *arg)
{
    struct serve *s = arg;
    for (struct pool_call *call; s->pool && (call = picture_pool_returned(s->pool));)
        reading_returned(s, call);
    for (struct picture_set *set; s->pool && (set = picture_pool_take(s->pool));)
        request_pictures(s, set);
}

/* A thread of the pool. */
static void on_pictures(void *context)
{
    struct serve *s = context;
    http_server_post(s->http, drain_pictures, s); /* out of memory: the tick looks as well */
}

/* Engine thread. */
static void on_events(void *context)
{
    struct serve *s = context;
    /* out of memory: the tick looks as well */
    http_server_post(s->http, drain_events, s);
}

static void fail_all(struct serve *s, int status, const char *code, const char *why)
{
    struct api_error err;
    api_error(&err, status, code, NULL, "%s", why);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct live_request *r = s->slots[i].request;
        if (r) {
            request_cancel(r);
            request_fail(r, &err);
        }
    }
}

static void watch_engine(struct serve *s, uint64_t now)
{
    struct engine_snapshot e;
    engine_thread_snapshot(s->thread, &e);
    if (e.state != ENGINE_FAILED)
        s->failed_since_ns = 0;
    else if (s->failed_since_ns == 0)
        s->failed_since_ns = now;
    else if (now - s->failed_since_ns > FAILED_GRACE_NS && s->n_live > 0)
        fail_all(s, 500, "engine_failed", e.reason);
}

static void on_tick(void *arg)
{
    struct serve *s = arg;
    uint64_t now = clock_ns();
    drain_events(s);
    drain_pictures(s);
    for (uint32_t i = 0; i < s->n_slots && s->n_live > 0; i++)
        if (s->slots[i].request)
            request_tick(s->slots[i].request, now);
    watch_engine(s, now);
    if (!s->stopping && atomic_load(&s->stop_asked)) {
        s->stopping = true;
        s->stop_ns = now;
        log_line(&s->d0->log, LOG_INFO, "serve", "stopping: %u requests may finish within %.1f s", s->n_live,
                 (double)s->o.drain_ns / 1e9);
    }
    if (s->stopping && ((s->n_live == 0 && s->n_reading == 0) || now - s->stop_ns > s->o.drain_ns)) {
        fail_all(s, 503, "stopping", "the server is stopping");
        http_server_stop(s->http);
    }
}

/* ---- life ---- */

static void set_defaults(struct serve *s)
{
    struct serve_options *o = &s->o;
    o->host = o->host ? o->host : "127.0.0.1";
    o->max_connections = o->max_connections ? o->max_connections : 4096;
    o->max_waiting = o->max_waiting ? o->max_waiting : 1024;
    bool pictures = engine_limits(s->engine)->n_feature_rows > 0;
    o->max_body = o->max_body ? o->max_body : pictures ? 64u << 20 : 8u << 20;
    o->max_pictures = o->max_pictures ? o->max_pictures : 32;
    o->picture_bytes = o->picture_bytes ? o->picture_bytes : UINT64_C(2) << 30;
    o->ping_ns = o->ping_ns ? o->ping_ns : 5000000000u;
    o->drain_ns = o->drain_ns ? o->drain_ns : 5000000000u;
    o->stall_ns = o->stall_ns ? o->stall_ns : 30000000000u;
}

/* The longest request that model, page tables and pages all allow. */
static uint32_t find_context(const struct serve *s)
{
    const struct engine_limits *l = engine_limits(s->engine);
    uint64_t pages = l->max_pages_per_seq < l->n_pages ? l->max_pages_per_seq : l->n_pages;
    uint64_t n = pages * l->page_tokens;
    int64_t model = s->front->spec->max_positions;
    if (model > 0 && (uint64_t)model < n)
        n = (uint64_t)model;
    if (s->o.max_context && s->o.max_context < n)
        n = s->o.max_context;
    return n > INT32_MAX ? INT32_MAX : (uint32_t)n;
}

static int make_slots(struct serve *s, struct err *e)
{
    s->n_slots = s->o.max_connections; /* a connection has at most one request */
    s->slots = calloc(s->n_slots, sizeof *s->slots);
    if (s->slots == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for %u connections", s->n_slots);
    for (uint32_t i = 0; i < s->n_slots; i++)
        s->slots[i].next_free = i + 1 < s->n_slots ? i + 1 : UINT32_MAX;
    return ERR_OK;
}

static int open_thread(struct serve *s, struct err *e)
{
    const struct engine_limits *l = engine_limits(s->engine);
    struct engine_thread_options o = {.engine = s->engine,
                                      .stop_ids = s->front->stop_ids,
                                      .n_stop = s->front->n_stop,
                                      .canary_token = s->front->bos_id > 0 ? s->front->bos_id : 0,
                                      .vocab_limit = s->front->vocab_limit,
                                      .n_slots = s->n_slots,
                                      .notify = on_events,
                                      .context = s,
                                      .log = &s->d0->log};
    o.sched = (struct sched_options){.limits = *l,
                                     .max_context = s->max_context,
                                     .prefill_chunk = s->o.prefill_chunk,
                                     .max_waiting = s->o.max_waiting,
                                     .prefix_cache = s->o.prefix_cache,
                                     .mem = &s->d0->mem};
    if (s->o.prefix_cache && l->n_slots && !l->n_snapshots)
        log_line(&s->d0->log, LOG_INFO, "serve",
                 "no prefix cache: the model has recurrent states, and there is no room to keep any, or its "
                 "requests cannot share pages");
    uint64_t live = (uint64_t)s->o.max_waiting + l->max_seqs;
    s->max_live = live < s->n_slots ? (uint32_t)live : s->n_slots;
    return engine_thread_open(&s->thread, &o, e);
}

static unsigned usable_cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? (unsigned)n : 1;
}

/* A quarter of the cores: the others are the engine's. */
static int open_pool(struct serve *s, struct err *e)
{
    const struct engine_limits *l = engine_limits(s->engine);
    unsigned n = usable_cores() / 4;
    if (l->n_feature_rows == 0)
        return ERR_OK;
    struct picture_pool_options o = {.front = s->front,
                                     .shape = engine_picture_shape(s->engine),
                                     .limits.max_pixels = s->o.max_pixels,
                                     .n_threads = s->o.picture_threads ? s->o.picture_threads
                                                  : n < 1              ? 1
                                                  : n > 8              ? 8
                                                                       : n,
                                     .max_bytes = s->o.picture_bytes,
                                     .notify = on_pictures,
                                     .context = s,
                                     .mem = &s->d0->mem};
    return picture_pool_open(&s->pool, &o, e);
}

static int open_port(struct serve *s, struct err *e)
{
    struct http_server_options o = {.host = s->o.host,
                                    .port = s->o.port,
                                    .max_body = s->o.max_body,
                                    .max_bodies = s->o.max_body * 16 + (256u << 20),
                                    .max_connections = s->o.max_connections,
                                    .handler = serve_handle,
                                    .user = s};
    int rc = http_server_open(&s->http, &o, e);
    return rc ? rc : http_server_every(s->http, TICK_NS, on_tick, s, e);
}

int serve_open(struct serve **out, struct engine *x, struct prompt_front *p, const struct serve_options *o,
               struct d0 *d0, struct err *e)
{
    struct serve *s = calloc(1, sizeof *s);
    if (s == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the service");
    s->o = *o;
    s->engine = x;
    s->front = p;
    s->d0 = d0;
    set_defaults(s);
    s->started_ns = clock_ns();
    s->started_unix = clock_unix_ns() / 1000000000;
    s->name_seed = rng_u64((uint64_t)clock_unix_ns(), (uint64_t)getpid());
    s->model_name = strdup(o->model_name ? o->model_name : p->model_name);
    s->max_context = find_context(s);
    int rc = s->model_name ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory for the service");
    if (rc == 0)
        rc = make_slots(s, e);
    if (rc == 0)
        rc = open_port(s, e);
    if (rc == 0)
        rc = open_thread(s, e);
    if (rc == 0)
        rc = open_pool(s, e);
    if (rc) {
        serve_close(s);
        return rc;
    }
    *out = s;
    return ERR_OK;
}

uint16_t serve_port(const struct serve *s)
{
    return http_server_port(s->http);
}

int serve_run(struct serve *s, struct err *e)
{
    int rc = engine_thread_start(s->thread, e);
    if (rc)
        return rc;
    rc = http_server_run(s->http, e);
    engine_thread_stop(s->thread);
    return rc;
}

void serve_stop(struct serve *s)
{
    atomic_store(&s->stop_asked, true); /* the tick sees it: nothing else is allowed in a signal handler */
}

void serve_close(struct serve *s)
{
    if (s == NULL)
        return;
    if (s->thread)
        engine_thread_stop(s->thread);
    picture_pool_stop(s->pool); /* its threads post to the loop */
    if (s->http)
        http_server_close(s->http); /* its last callbacks still use slots and thread */
    engine_thread_close(s->thread);
    picture_pool_close(s->pool); /* last: sets that the others held are counted there */
    for (uint32_t i = 0; s->slots && i < s->n_slots; i++)
        if (s->slots[i].request)
            BUG("request %u outlived its exchange", i);
    free(s->slots);
    free(s->events);
    free(s->model_name);
    strbuf_release(&s->scratch);
    free(s);
}
