/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the load client. One thread; a slot is one request under way.
 * Refuses: hiding a failure, and measuring from the moment of sending: a late client or a full server counts
 * against the latency.
 */
#include "stress/stress_stats.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/process.h"
#include "base/thread.h"
#include "net/net.h"

#define MAX_CONCURRENCY 4096u
#define MAX_REQUESTS    1000000u
#define DEFAULT_TIMEOUT UINT64_C(600000000000)
#define MEMORY_EVERY    UINT64_C(100000000)
#define POLL_AT_MOST    UINT64_C(50000000)
#define MAX_EVENT_BYTES (4u << 20)
#define PLOT_SAMPLES    10000u

struct slot {
    struct run *run;
    struct stress_times times;
    struct arena arena;  /* of one event */
    bool busy, finished; /* finished: the stream said how it ended */
    char failure[200];
};

struct run {
    const struct stress_options *o;
    struct stress_result *out;
    struct http_client *client;
    struct stress_pools pools;
    struct slot *slots;
    uint32_t n_slots, n_started, n_busy;
    uint64_t begin, deadline, next_due, last_end, memory_at;
    char url[512];
    char model[256];
};

static void fail(struct slot *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct slot *s, const char *fmt, ...)
{
    if (s->failure[0])
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->failure, sizeof(s->failure), fmt, ap);
    va_end(ap);
}

/* ---- one request */

static void read_chunk(struct slot *s, const struct json *v, uint64_t now)
{
    const struct json *usage = json_get(v, "usage"), *choice = json_at(json_get(v, "choices"), 0);
    const struct json *error = json_get(v, "error"), *delta = json_get(choice, "delta");
    const char *text = json_string(json_get(choice, "text"));
    if (error && error->type != JSON_NULL) {
        const char *message = json_string(json_get(error, "message"));
        fail(s, "error in the stream: %s", message ? message : "without a message");
        return;
    }
    if (!text)
        text = json_string(json_get(delta, "content"));
    if (!text || !*text)
        text = json_string(json_get(delta, "reasoning_content"));
    if (text && *text)
        stress_times_chunk(&s->times, now);
    if (json_string(json_get(choice, "finish_reason")))
        s->finished = true;
    if (json_u64(json_get(usage, "completion_tokens"), &s->times.usage_output))
        s->times.has_usage = true;
    (void)json_u64(json_get(usage, "prompt_tokens"), &s->times.usage_prompt);
}

static bool on_event(void *user, const struct sse_event *event)
{
    struct slot *s = user;
    const struct json *v = NULL;
    struct err e = {0};
    if (strcmp(event->data, "[DONE]") == 0) {
        s->finished = true;
        return true;
    }
    arena_reset(&s->arena);
    if (json_parse(event->data, event->n, NULL, &s->arena, &v, &e) != ERR_OK) {
        fail(s, "a chunk is not JSON: %s", e.message);
        return false;
    }
    read_chunk(s, v, event->received_ns);
    return s->failure[0] == '\0';
}

static void judge(struct slot *s, const struct http_response *response, const struct err *failure)
{
    if (failure && !s->failure[0])
        fail(s, "%s", failure->message);
    if (response && response->status != 0 && response->status != 200) {
        const char *body = strbuf_cstr(&response->body);
        s->failure[0] = '\0';
        fail(s, "HTTP %d: %.*s", response->status, (int)strcspn(body, "\r\n"), body);
    }
    if (!s->failure[0] && !s->finished)
        fail(s, "the stream ended without a finish_reason");
    if (s->times.failed_memory)
        fail(s, "the load client is out of memory");
}

static void on_done(void *user, struct http_response *response, const struct err *failure)
{
    struct slot *s = user;
    struct run *r = s->run;
    s->times.end = response && response->finished_ns ? response->finished_ns : clock_ns();
    s->busy = false;
    r->n_busy--;
    if (s->times.end > r->last_end)
        r->last_end = s->times.end;
    judge(s, response, failure);
    if (s->failure[0]) {
        if (r->out->n_failed++ == 0)
            snprintf(r->out->first_failure, sizeof(r->out->first_failure), "%s", s->failure);
        return;
    }
    r->out->n_ok++;
    r->out->output_tokens += stress_times_tokens(&s->times);
    r->out->prompt_tokens += s->times.usage_prompt;
    r->out->tokens_counted |= !s->times.has_usage;
    stress_pools_add(&r->pools, &s->times);
}

static void write_prompt(const struct run *r, uint32_t i, struct json_writer *w)
{
    static const char *const fallback[] = {"Once upon a time, there was a", "The quick brown fox",
                                           "In the morning, the"};
    const char *text =
        r->o->n_prompts ? r->o->prompts[i % r->o->n_prompts] : fallback[i % ARRAY_LEN(fallback)];
    if (!r->o->chat) {
        json_put_string(w, "prompt", text);
        return;
    }
    json_key(w, "messages");
    if (r->o->messages && r->o->n_prompts) {
        json_write_raw(w, text);
        return;
    }
    json_begin_array(w);
    json_begin_object(w);
    json_put_string(w, "role", "user");
    json_put_string(w, "content", text);
    json_end_object(w);
    json_end_array(w);
}

static void write_body(const struct run *r, uint32_t i, struct strbuf *body)
{
    struct json_writer w;
    json_writer_init(&w, body, false);
    json_begin_object(&w);
    json_put_string(&w, "model", r->model);
    write_prompt(r, i, &w);
    json_put_u64(&w, "max_tokens", r->o->max_tokens);
    json_put_f64(&w, "temperature", 0);
    json_put_u64(&w, "seed", (r->o->seed + i) & INT32_MAX);
    json_put_bool(&w, "stream", true);
    json_key(&w, "stream_options");
    json_begin_object(&w);
    json_put_bool(&w, "include_usage", true);
    json_end_object(&w);
    if (r->o->ignore_eos)
        json_put_bool(&w, "ignore_eos", true);
    json_end_object(&w);
}

static int start(struct run *r, struct slot *s, uint64_t due, struct err *e)
{
    static const struct http_header headers[] = {{"Content-Type", "application/json"},
                                                 {"Accept", "text/event-stream"}};
    static const struct http_handlers handlers = {.on_event = on_event, .on_done = on_done};
    struct strbuf body = STRBUF_INIT;
    uint64_t now = clock_ns();
    write_body(r, r->n_started, &body);
    if (strbuf_failed(&body)) {
        strbuf_release(&body);
        return err_set(e, ERR_NOMEM, "out of memory for a request");
    }
    struct http_request request = {.url = r->url,
                                   .headers = headers,
                                   .n_headers = ARRAY_LEN(headers),
                                   .body = body.data,
                                   .body_bytes = body.len,
                                   .max_body = MAX_EVENT_BYTES,
                                   .timeout_ns = r->deadline > now + 1000000 ? r->deadline - now : 1000000};
    stress_times_begin(&s->times, due);
    s->finished = false;
    s->failure[0] = '\0';
    s->busy = true;
    r->n_busy++;
    r->n_started++;
    r->out->n_sent++;
    int rc = http_client_add(r->client, &request, &handlers, s, NULL, e);
    strbuf_release(&body);
    return rc;
}

/* ---- the loop */

static struct slot *idle_slot(struct run *r)
{
    for (uint32_t i = 0; i < r->n_slots; i++) {
        if (!r->slots[i].busy)
            return &r->slots[i];
    }
    return NULL;
}

static int start_due(struct run *r, struct err *e)
{
    struct slot *s;
    while (r->n_started < r->o->n_requests && r->n_busy < r->n_slots && (s = idle_slot(r)) != NULL) {
        uint64_t now = clock_ns(), due = r->o->rate > 0 ? r->next_due : now;
        if (due > now || now >= r->deadline)
            break;
        uint32_t i = r->n_started;
        int rc = start(r, s, due, e);
        if (rc)
            return rc;
        if (r->o->rate > 0)
            r->next_due = stress_next_arrival(r->next_due, r->o->rate, r->o->seed, i + 1);
    }
    return ERR_OK;
}

static void watch_memory(struct run *r, bool now)
{
    uint64_t rss = 0, peak = 0;
    if (r->o->pid <= 0 || (!now && clock_ns() < r->memory_at))
        return;
    r->memory_at = clock_ns() + MEMORY_EVERY;
    process_memory(r->o->pid, &rss, &peak);
    if (rss)
        r->out->rss_end = rss;
    if (peak > r->out->rss_peak)
        r->out->rss_peak = peak;
}

static int loop(struct run *r, struct err *e)
{
    while (r->n_busy || r->n_started < r->o->n_requests) {
        uint64_t now = clock_ns(), wait = POLL_AT_MOST;
        if (now >= r->deadline && !r->n_busy)
            break;
        int rc = start_due(r, e);
        if (rc)
            return rc;
        now = clock_ns();
        if (r->o->rate > 0 && r->n_started < r->o->n_requests && r->n_busy < r->n_slots)
            wait = r->next_due <= now ? 0 : r->next_due - now < wait ? r->next_due - now : wait;
        rc = http_client_poll(r->client, wait, e);
        if (rc)
            return rc;
        if (r->n_busy == 0) /* nothing under way: a poll may return at once */
            clock_sleep_ns(wait < 1000000 ? wait : 1000000);
        watch_memory(r, false);
    }
    uint32_t unsent = r->o->n_requests - r->n_started;
    if (unsent) { /* the deadline came first: they are failures, not silence */
        if (r->out->n_failed == 0)
            snprintf(r->out->first_failure, sizeof(r->out->first_failure),
                     "%u requests were not sent before the deadline", unsent);
        r->out->n_failed += unsent;
    }
    return ERR_OK;
}

/* ---- setup */

static int check_options(const struct stress_options *o, struct err *e)
{
    if (!o->url || strlen(o->url) > 400)
        return err_set(e, ERR_USAGE, "the URL of the server is missing or too long");
    if (o->n_requests == 0 || o->n_requests > MAX_REQUESTS)
        return err_set(e, ERR_USAGE, "%u requests: give 1 to %u", o->n_requests, MAX_REQUESTS);
    if (o->concurrency > MAX_CONCURRENCY || (o->concurrency == 0 && !(o->rate > 0)))
        return err_set(e, ERR_USAGE, "concurrency %u: give 1 to %u", o->concurrency, MAX_CONCURRENCY);
    if (!(o->rate >= 0) || o->rate > 1e6)
        return err_set(e, ERR_USAGE, "a rate of %g requests per second: give 0 to 1,000,000", o->rate);
    if (o->max_tokens == 0)
        return err_set(e, ERR_USAGE, "max_tokens must be at least 1");
    if (o->model && strlen(o->model) >= 256)
        return err_set(e, ERR_USAGE, "the model's name is longer than 255 bytes");
    return ERR_OK;
}

static int find_model(struct run *r, struct err *e)
{
    struct http_response response = {0};
    struct arena arena;
    const struct json *v = NULL;
    char url[512];
    if (r->o->model) {
        snprintf(r->model, sizeof(r->model), "%s", r->o->model);
        return ERR_OK;
    }
    snprintf(url, sizeof(url), "%s/v1/models", r->o->url);
    arena_init(&arena, NULL, MEM_REQUEST);
    struct http_request request = {
        .url = url, .timeout_ns = UINT64_C(30000000000), .max_body = MAX_EVENT_BYTES};
    int rc = http_fetch(&request, NULL, NULL, &response, e);
    if (!rc && response.status != 200)
        rc = err_set(e, ERR_COMM, "%s: HTTP %d; name the model with --model", url, response.status);
    if (!rc)
        rc = json_parse(strbuf_cstr(&response.body), response.body.len, NULL, &arena, &v, e);
    const char *id = json_string(json_get(json_at(json_get(v, "data"), 0), "id"));
    if (!rc && (!id || strlen(id) >= sizeof(r->model)))
        rc = err_set(e, ERR_FORMAT, "%s: lists no model with an id of less than 256 bytes", url);
    if (!rc)
        snprintf(r->model, sizeof(r->model), "%s", id);
    http_response_release(&response);
    arena_release(&arena);
    return rc;
}

static int make_slots(struct run *r, struct err *e)
{
    r->n_slots = r->o->concurrency ? r->o->concurrency : MAX_CONCURRENCY;
    if (r->n_slots > r->o->n_requests)
        r->n_slots = r->o->n_requests;
    r->slots = calloc(r->n_slots, sizeof(*r->slots));
    if (!r->slots)
        return err_set(e, ERR_NOMEM, "out of memory for %u requests under way", r->n_slots);
    for (uint32_t i = 0; i < r->n_slots; i++) {
        r->slots[i].run = r;
        arena_init(&r->slots[i].arena, NULL, MEM_REQUEST);
        r->slots[i].arena.limit = 64u << 20;
    }
    return ERR_OK;
}

static void finish(struct run *r)
{
    struct stress_result *out = r->out;
    watch_memory(r, true);
    out->seconds = r->last_end > r->begin ? (double)(r->last_end - r->begin) / 1e9 : 0;
    if (out->seconds > 0) {
        out->output_tokens_per_second = (double)out->output_tokens / out->seconds;
        out->requests_per_second = (double)out->n_ok / out->seconds;
    }
    stress_pool_quantiles(&r->pools.ttft, &out->ttft);
    stress_pool_quantiles(&r->pools.tpot, &out->tpot);
    stress_pool_quantiles(&r->pools.itl, &out->itl);
    stress_pool_quantiles(&r->pools.e2e, &out->e2e);
    out->ttft_samples = stress_pool_samples(&r->pools.ttft, PLOT_SAMPLES, &out->n_ttft_samples);
    out->itl_samples = stress_pool_samples(&r->pools.itl, PLOT_SAMPLES, &out->n_itl_samples);
}

int stress_run(const struct stress_options *o, struct stress_result *out, struct err *e)
{
    struct run r = {.o = o, .out = out};
    memset(out, 0, sizeof(*out));
    int rc = check_options(o, e);
    if (rc)
        return rc;
    snprintf(r.url, sizeof(r.url), "%s/v1/%s", o->url, o->chat ? "chat/completions" : "completions");
    rc = find_model(&r, e);
    if (!rc)
        rc = make_slots(&r, e);
    if (!rc)
        rc = http_client_open(&r.client, e);
    if (!rc) {
        r.begin = clock_ns();
        r.deadline = r.begin + (o->timeout_ns ? o->timeout_ns : DEFAULT_TIMEOUT);
        r.next_due = o->rate > 0 ? stress_next_arrival(r.begin, o->rate, o->seed, 0) : r.begin;
        if (o->rate > 0)
            r.begin = r.next_due;
        rc = loop(&r, e);
    }
    if (r.client)
        http_client_close(r.client);
    if (!rc) {
        finish(&r);
        log_line(o->log, LOG_INFO, "stress", "%u sent, %u failed, %.1f output tokens/s", out->n_sent,
                 out->n_failed, out->output_tokens_per_second);
    }
    for (uint32_t i = 0; r.slots && i < r.n_slots; i++) {
        stress_times_release(&r.slots[i].times);
        arena_release(&r.slots[i].arena);
    }
    free(r.slots);
    stress_pools_release(&r.pools);
    return rc;
}

void stress_result_release(struct stress_result *r)
{
    free(r->ttft_samples);
    free(r->itl_samples);
    r->ttft_samples = r->itl_samples = NULL;
    r->n_ttft_samples = r->n_itl_samples = 0;
}
