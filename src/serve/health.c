/* SPDX-License-Identifier: Apache-2.0
 *
 * What the service says about itself: /health, /metrics and the page at /. Says "ready" only if a token was
 * really computed, the engine thread shows life, and no stop was asked for.
 */
#include <stdio.h>
#include <string.h>

#include "base/process.h"
#include "base/thread.h"
#include "serve/serve_impl.h"

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

static uint64_t age(uint64_t since, uint64_t now)
{
    return now > since ? now - since : 0;
}

/* A step of a large model may be long: what was measured counts, not only the limit. */
static bool stalled(const struct serve *s, const struct engine_snapshot *e, uint64_t now)
{
    uint64_t limit = 4 * e->longest_step_ns;
    limit = limit > s->o.stall_ns ? limit : s->o.stall_ns;
    return age(e->beat_ns, now) > limit;
}

static const char *state_of(const struct serve *s, const struct engine_snapshot *e, char *reason,
                            size_t bytes)
{
    uint64_t now = clock_ns();
    *reason = '\0';
    if (s->stopping) {
        snprintf(reason, bytes, "the server is stopping");
        return "failed";
    }
    if (stalled(s, e, now)) {
        snprintf(reason, bytes, "the engine thread has shown no life for %.1f s",
                 seconds(age(e->beat_ns, now)));
        return "failed";
    }
    if (e->state == ENGINE_FAILED) {
        snprintf(reason, bytes, "%s", e->reason);
        return "failed";
    }
    if (e->state == ENGINE_LOADING) {
        snprintf(reason, bytes, "no token was computed yet");
        return "loading";
    }
    return "ready";
}

const char *not_ready(struct serve *s, char *buf, size_t bytes)
{
    struct engine_snapshot e;
    engine_thread_snapshot(s->thread, &e);
    state_of(s, &e, buf, bytes);
    return *buf ? buf : NULL;
}

static void write_memory(struct json_writer *w, const struct serve *s)
{
    static const struct {
        const char *key;
        enum mem_tag tag;
    } held[] = {{"held_weights_bytes", MEM_WEIGHTS},
                {"held_kv_bytes", MEM_KV},
                {"held_scratch_bytes", MEM_SCRATCH},
                {"held_device_bytes", MEM_KERNELS}};
    uint64_t rss, peak, kv, scratch;
    process_memory(0, &rss, &peak);
    engine_memory(s->engine, &kv, &scratch);
    json_key(w, "memory");
    json_begin_object(w);
    json_key(w, "predicted_bytes");
    if (s->o.predicted_bytes)
        json_write_u64(w, s->o.predicted_bytes);
    else
        json_write_null(w);
    json_put_u64(w, "predicted_kv_bytes", kv);
    json_put_u64(w, "predicted_scratch_bytes", scratch);
    for (size_t i = 0; i < ARRAY_LEN(held); i++)
        json_put_u64(w, held[i].key, atomic_load(&s->d0->mem.live[held[i].tag]));
    json_put_u64(w, "measured_rss_bytes", rss);
    json_put_u64(w, "measured_peak_rss_bytes", peak);
    json_end_object(w);
}

/* What was computed with: fusions that are on, and whether equal requests give equal bits in any batch. */
static void write_exactness(struct json_writer *w, const struct serve *s)
{
    uint32_t mask = engine_fusions(s->engine);
    json_put_bool(w, "exact", engine_exact(s->engine));
    json_put_string(w, "activations", s->o.activations ? s->o.activations : "exact");
    json_key(w, "fusions");
    json_begin_array(w);
    for (unsigned i = 0; i < FUSION_N; i++)
        if (mask & FUSION_BIT(i))
            json_write_string(w, fusion_info((enum fusion)i)->name);
    json_end_array(w);
}

int write_health(struct strbuf *out, struct serve *s)
{
    struct engine_snapshot e;
    struct json_writer w;
    char reason[320];
    engine_thread_snapshot(s->thread, &e);
    const char *state = state_of(s, &e, reason, sizeof reason);
    uint64_t now = clock_ns();
    json_writer_init(&w, out, false);
    json_begin_object(&w);
    json_put_string(&w, "status", state);
    json_put_string(&w, "reason", *reason ? reason : NULL);
    json_put_string(&w, "model", s->model_name);
    json_put_u64(&w, "max_context", s->max_context);
    json_put_f64(&w, "uptime_s", seconds(age(s->started_ns, now)));
    json_key(&w, "engine");
    json_begin_object(&w);
    json_put_f64(&w, "heartbeat_age_s", seconds(age(e.beat_ns, now)));
    json_put_u64(&w, "steps", e.sched.steps);
    json_put_u64(&w, "failed_steps", e.failed_steps);
    json_put_f64(&w, "last_step_s", seconds(e.last_step_ns));
    json_put_f64(&w, "longest_step_s", seconds(e.longest_step_ns));
    json_end_object(&w);
    json_key(&w, "kv_pages");
    json_begin_object(&w);
    json_put_u64(&w, "total", e.sched.pages_total);
    json_put_u64(&w, "free", e.sched.pages_free);
    json_put_u64(&w, "cached", e.sched.pages_cached);
    json_end_object(&w);
    json_key(&w, "requests");
    json_begin_object(&w);
    json_put_u64(&w, "open", s->n_live);
    json_put_u64(&w, "running", e.sched.n_running);
    json_put_u64(&w, "waiting", e.sched.n_waiting);
    json_put_u64(&w, "max_waiting", s->o.max_waiting);
    json_end_object(&w);
    write_memory(&w, s);
    write_exactness(&w, s);
    json_end_object(&w);
    return strcmp(state, "ready") == 0 ? 200 : 503;
}

/* Where the time of pictures goes. Busy seconds beside each other tell which of host threads and tower is the
 * bottleneck: the one whose share of the time (over its threads) is near 1. */
static void write_picture_metrics(struct strbuf *out, struct serve *s, const struct engine_snapshot *e)
{
    struct picture_pool_stats p = {0};
    if (s->pool == NULL)
        return;
    picture_pool_stats(s->pool, &p);
    metric_value(out, "day0_images_total", "counter", "Pictures of accepted requests",
                 (double)s->metrics.pictures);
    metric_value(out, "day0_images_failed_total", "counter",
                 "Pictures that could not be decoded or processed", (double)p.n_failed);
    metric_value(out, "day0_images_encoded_total", "counter", "Pictures that went through the tower",
                 (double)e->sched.images_encoded);
    metric_value(out, "day0_images_cached_total", "counter", "Pictures found in the prefix cache",
                 (double)e->sched.images_cached);
    metric_value(out, "day0_image_threads", "gauge", "Host threads for pictures", p.n_threads);
    metric_value(out, "day0_images_waiting", "gauge", "Pictures that no host thread has begun", p.n_waiting);
    metric_value(out, "day0_image_held_bytes", "gauge", "Files and patches of pictures held for requests",
                 (double)p.held_bytes);
    metric_value(out, "day0_image_working_bytes", "gauge",
                 "Memory predicted for the pictures that are being made", (double)p.working_bytes);
    metric_value(out, "day0_image_most_working_bytes", "gauge", "The most that this has been",
                 (double)p.most_working_bytes);
    metric_value(out, "day0_image_busy_seconds_total", "counter", "Time of host threads spent on pictures",
                 seconds(p.busy_ns));
    metric_value(out, "day0_vision_busy_seconds_total", "counter", "Time of the engine spent in the tower",
                 e->picture_seconds.sum);
    metric_value(out, "day0_vision_failed_total", "counter", "Pictures that failed in the tower",
                 (double)e->failed_pictures);
    metric_value(out, "day0_feature_rows_total", "gauge", "Rows of features that can be held",
                 e->sched.feature_rows_total);
    metric_value(out, "day0_feature_rows_free", "gauge", "Rows of features that are free",
                 e->sched.feature_rows_free);
    metric_histogram(out, "day0_image_decode_seconds", "Decoding one picture", &p.decode);
    metric_histogram(out, "day0_image_preprocess_seconds", "Resizing one picture and cutting it into patches",
                     &p.process);
    metric_histogram(out, "day0_image_encode_seconds", "One picture through the tower", &e->picture_seconds);
    metric_histogram(out, "day0_images_seconds", "From arrival until all pictures of a request were made",
                     &s->metrics.images);
    metric_histogram(out, "day0_vision_seconds", "In the tower, all pictures of a request",
                     &s->metrics.vision);
}

/* Requests now and until now, and what is left of what they need. */
static void write_request_metrics(struct strbuf *out, const struct serve *s, const struct engine_snapshot *e)
{
    const struct service_metrics *m = &s->metrics;
    strbuf_puts(
        out, "# HELP day0_requests_total Requests by how they ended\n# TYPE day0_requests_total counter\n");
    for (int i = 0; i < OUTCOME_N; i++)
        strbuf_printf(out, "day0_requests_total{outcome=\"%s\"} %llu\n", outcome_name((enum outcome)i),
                      (unsigned long long)m->outcomes[i]);
    metric_value(out, "day0_requests_open", "gauge", "Requests not yet answered", s->n_live);
    metric_value(out, "day0_requests_running", "gauge", "Requests in the batch", e->sched.n_running);
    metric_value(out, "day0_requests_waiting", "gauge", "Requests in the queue", e->sched.n_waiting);
    metric_value(out, "day0_kv_pages_total", "gauge", "KV pages", e->sched.pages_total);
    metric_value(out, "day0_kv_pages_free", "gauge", "KV pages that a new request can have",
                 e->sched.pages_free);
    metric_value(out, "day0_kv_pages_cached", "gauge", "Free KV pages that hold a known prefix",
                 e->sched.pages_cached);
    metric_value(out, "day0_state_snapshots_total", "gauge", "Recurrent states that can be kept",
                 e->sched.snapshots_total);
    metric_value(out, "day0_state_snapshots_kept", "gauge", "Recurrent states kept behind a known prefix",
                 e->sched.snapshots_kept);
    metric_value(out, "day0_state_snapshot_hits_total", "counter", "Requests that began from a kept state",
                 (double)e->sched.snapshot_hits);
}

static void write_token_metrics(struct strbuf *out, const struct service_metrics *m,
                                const struct engine_snapshot *e)
{
    metric_value(out, "day0_prompt_tokens_total", "counter", "Prompt tokens of accepted requests",
                 (double)m->prompt_tokens);
    metric_value(out, "day0_generated_tokens_total", "counter", "Tokens generated for clients",
                 (double)m->generated_tokens);
    metric_value(out, "day0_tool_calls_total", "counter", "Tool calls read from outputs", (double)m->calls);
    metric_value(out, "day0_malformed_tool_calls_total", "counter",
                 "Outputs that began a tool call and held none: passed on as text",
                 (double)m->malformed_calls);
    metric_value(out, "day0_unfinished_tool_calls_total", "counter",
                 "Tool calls that the end of the output cut: passed on as text", (double)m->unfinished_calls);
    metric_value(out, "day0_prefill_tokens_total", "counter", "Prompt tokens computed",
                 (double)e->sched.tokens_prefilled);
    metric_value(out, "day0_cached_tokens_total", "counter", "Prompt tokens found in the prefix cache",
                 (double)e->sched.tokens_cached);
    metric_value(out, "day0_steps_total", "counter", "Engine steps", (double)e->sched.steps);
    metric_value(out, "day0_failed_steps_total", "counter", "Engine steps that failed as a whole",
                 (double)e->failed_steps);
    metric_value(out, "day0_batch_sequences", "gauge", "Sequences in the last step",
                 e->sched.last_batch_seqs);
    metric_value(out, "day0_batch_tokens", "gauge", "Tokens in the last step", e->sched.last_batch_tokens);
}

static void write_time_metrics(struct strbuf *out, const struct service_metrics *m,
                               const struct engine_snapshot *e)
{
    metric_value(out, "day0_heartbeat_age_seconds", "gauge", "Time since the engine thread showed life",
                 seconds(age(e->beat_ns, clock_ns())));
    metric_histogram(out, "day0_time_to_first_token_seconds", "From request to first token", &m->ttft);
    metric_histogram(out, "day0_inter_token_seconds", "Between tokens of one request", &m->itl);
    metric_histogram(out, "day0_request_seconds", "From request to end, of requests that completed", &m->e2e);
    metric_histogram(out, "day0_prompt_seconds", "From arrival until a prompt was made of the body, of those",
                     &m->prompt);
    metric_histogram(out, "day0_queue_seconds", "From submission to the first work, of those", &m->queue);
    metric_histogram(out, "day0_prefill_seconds", "From the first work to the first token, of those",
                     &m->prefill);
    metric_histogram(out, "day0_decode_seconds", "From the first token to the last, of those", &m->decode);
    metric_histogram(out, "day0_step_seconds", "Duration of one engine step", &e->step_seconds);
}

static void write_memory_metrics(struct strbuf *out, const struct serve *s)
{
    uint64_t rss, peak;
    process_memory(0, &rss, &peak);
    metric_value(out, "process_resident_memory_bytes", "gauge", "Resident memory", (double)rss);
    metric_value(out, "day0_peak_resident_memory_bytes", "gauge", "Largest resident memory", (double)peak);
    metric_value(out, "day0_predicted_memory_bytes", "gauge", "Memory that the plan predicted",
                 (double)s->o.predicted_bytes);
}

void write_metrics(struct strbuf *out, struct serve *s)
{
    struct engine_snapshot e;
    char reason[320];
    engine_thread_snapshot(s->thread, &e);
    const char *state = state_of(s, &e, reason, sizeof reason);
    metric_value(out, "day0_ready", "gauge", "1 if requests are taken", strcmp(state, "ready") == 0);
    write_request_metrics(out, s, &e);
    write_token_metrics(out, &s->metrics, &e);
    write_time_metrics(out, &s->metrics, &e);
    write_memory_metrics(out, s);
    write_picture_metrics(out, s, &e);
    metric_value(out, "day0_connections", "gauge", "Open connections", http_server_connections(s->http));
}

static void put_html(struct strbuf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '<')
            strbuf_puts(out, "&lt;");
        else if (*s == '&')
            strbuf_puts(out, "&amp;");
        else if (*s == '"')
            strbuf_puts(out, "&quot;");
        else
            strbuf_putc(out, *s);
    }
}

void write_page(struct strbuf *out, const struct serve *s)
{
    strbuf_puts(out,
                "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>day0</title>"
                "<meta name=\"viewport\" content=\"width=device-width\">"
                "<style>:root{color-scheme:light dark}body{font:16px/1.5 "
                "system-ui,sans-serif;max-width:44em;margin:3em auto;padding:0 1em}"
                "code{background:#8883;padding:0 .3em}</style><h1>day0</h1><p>This server answers for the "
                "model <code>");
    put_html(out, s->model_name);
    strbuf_printf(out, "</code>, up to %u tokens per request.</p><ul>", s->max_context);
    static const char *const lines[][2] = {{"/health", "state of the service, with its reasons"},
                                           {"/metrics", "counters for Prometheus"},
                                           {"/v1/models", "the model"}};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++)
        strbuf_printf(out, "<li><a href=\"%s\">%s</a>: %s</li>", lines[i][0], lines[i][0], lines[i][1]);
    strbuf_printf(out,
                  "<li><code>POST /v1/completions</code>: text, in OpenAI's format</li>"
                  "<li><code>POST /v1/chat/completions</code>: conversations%s, in OpenAI's format</li></ul>"
                  "</html>\n",
                  s->pool ? " with pictures" : "");
}
