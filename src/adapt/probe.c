/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: HTTP requests of the examiner, parsed as OpenAI's API states them.
 * Refuses: knowing which server it is. Only what any OpenAI-compatible server gives is read.
 */
#include "adapt/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"

#define ANSWER_SECONDS 300
#define MAX_BODY       (16u << 20)

void answer_release(struct answer *a)
{
    strbuf_release(&a->raw);
    strbuf_release(&a->text);
    arena_release(&a->arena);
}

static void begin(struct answer *a)
{
    memset(a, 0, sizeof(*a));
    arena_init(&a->arena, NULL, MEM_REQUEST);
    a->arena.limit = 256u << 20;
}

uint32_t probe_seconds(const struct job *j)
{
    return j->o->answer_seconds ? j->o->answer_seconds : ANSWER_SECONDS;
}

void probe_nothing(struct answer *a, const char *why)
{
    begin(a);
    snprintf(a->why, sizeof(a->why), "%s", why);
}

static void read_choice(struct answer *a, const struct json *v)
{
    const struct json *choice = json_at(json_get(v, "choices"), 0), *usage = json_get(v, "usage");
    const char *text = json_string(json_get(choice, "text")),
               *finish = json_string(json_get(choice, "finish_reason"));
    if (!text)
        text = json_string(json_get(json_get(choice, "message"), "content"));
    if (!text)
        text = json_string(json_get(json_get(choice, "delta"), "content"));
    if (text)
        strbuf_puts(&a->text, text);
    if (finish)
        snprintf(a->finish, sizeof(a->finish), "%s", finish);
    if (json_get(v, "day0_timings"))
        a->timings = json_get(v, "day0_timings");
    if (json_u64(json_get(usage, "completion_tokens"), &a->output_tokens))
        a->has_usage = json_u64(json_get(usage, "prompt_tokens"), &a->prompt_tokens);
}

static const char *error_message(const struct json *v)
{
    return json_string(json_get(json_get(v, "error"), "message"));
}

struct stream {
    struct answer *a;
    uint64_t sent, leave_after;
};

static bool on_event(void *user, const struct sse_event *event)
{
    struct stream *s = user;
    struct answer *a = s->a;
    const struct json *v = NULL;
    struct err e = {0};
    if (strcmp(event->data, "[DONE]") == 0)
        return true;
    if (json_parse(event->data, event->n, NULL, &a->arena, &v, &e) != ERR_OK) {
        snprintf(a->why, sizeof(a->why), "a chunk of the stream is not JSON: %.180s", e.message);
        return false;
    }
    if (error_message(v)) {
        snprintf(a->why, sizeof(a->why), "error in the stream: %.200s", error_message(v));
        return false;
    }
    size_t before = a->text.len;
    read_choice(a, v);
    if (a->text.len > before) {
        a->last_ms = (double)(event->received_ns - s->sent) / 1e6;
        if (a->n_chunks++ == 0)
            a->first_ms = a->last_ms;
    }
    return s->leave_after == 0 || a->n_chunks < s->leave_after;
}

static void fetch(const struct job *j, const char *path, const char *body, struct stream *stream,
                  struct answer *a)
{
    static const struct http_header headers[] = {{"Content-Type", "application/json"}};
    struct http_response response = {0};
    struct err e = {0};
    char url[512];
    snprintf(url, sizeof(url), "%s%s", j->url, path);
    struct http_request request = {.url = url,
                                   .headers = headers,
                                   .n_headers = body ? 1 : 0,
                                   .body = body,
                                   .body_bytes = body ? strlen(body) : 0,
                                   .timeout_ns = probe_seconds(j) * UINT64_C(1000000000),
                                   .max_body = MAX_BODY};
    uint64_t sent = clock_ns();
    if (stream)
        stream->sent = sent;
    int rc = http_fetch(&request, stream ? on_event : NULL, stream, &response, &e);
    a->total_ms = (double)(clock_ns() - sent) / 1e6;
    a->status = response.status;
    a->timed_out = rc == ERR_TIMEOUT;
    strbuf_add(&a->raw, strbuf_cstr(&response.body), response.body.len);
    if (rc && !a->why[0])
        snprintf(a->why, sizeof(a->why), "%.250s", e.message);
    http_response_release(&response);
}

static void parse_body(struct answer *a)
{
    struct err e = {0};
    if (a->raw.len && json_parse(a->raw.data, a->raw.len, NULL, &a->arena, &a->body, &e) != ERR_OK &&
        !a->why[0])
        snprintf(a->why, sizeof(a->why), "the body is not JSON: %.200s", e.message);
}

void probe_call(const struct job *j, const char *path, const char *body, struct answer *a)
{
    begin(a);
    fetch(j, path, body, NULL, a);
    if (!a->why[0])
        parse_body(a);
}

void probe_body(const struct job *j, const struct ask *ask, struct strbuf *body)
{
    struct json_writer w;
    json_writer_init(&w, body, false);
    json_begin_object(&w);
    json_put_string(&w, "model", ask->model ? ask->model : j->model_name);
    json_key(&w, ask->chat ? "messages" : "prompt");
    if (ask->chat && ask->messages) {
        json_write_raw(&w, ask->messages);
    } else if (ask->chat) {
        json_begin_array(&w);
        json_begin_object(&w);
        json_put_string(&w, "role", "user");
        json_put_string(&w, "content", ask->text);
        json_end_object(&w);
        json_end_array(&w);
    } else if (ask->ids) {
        json_begin_array(&w);
        for (size_t i = 0; i < ask->n_ids; i++)
            json_write_i64(&w, ask->ids[i]);
        json_end_array(&w);
    } else {
        json_write_string(&w, ask->text);
    }
    json_put_u64(&w, "max_tokens", ask->max_tokens);
    json_put_f64(&w, "temperature", ask->temperature);
    if (ask->seed)
        json_put_u64(&w, "seed", ask->seed);
    if (ask->chat && ask->n_top) {
        json_put_bool(&w, "logprobs", true);
        json_put_u64(&w, "top_logprobs", ask->n_top);
    }
    if (ask->timings)
        json_put_bool(&w, "day0_timings", true);
    if (ask->want_ids)
        json_put_bool(&w, "return_token_ids", true);
    if (ask->stream) {
        json_put_bool(&w, "stream", true);
        json_key(&w, "stream_options");
        json_begin_object(&w);
        json_put_bool(&w, "include_usage", true);
        json_end_object(&w);
    }
    json_end_object(&w);
}

void probe_ask(const struct job *j, const struct ask *ask, struct answer *a)
{
    struct strbuf body = STRBUF_INIT;
    struct stream stream = {.a = a};
    begin(a);
    probe_body(j, ask, &body);
    if (strbuf_failed(&body))
        snprintf(a->why, sizeof(a->why), "out of memory for a request");
    else
        fetch(j, ask->chat ? "/v1/chat/completions" : "/v1/completions", body.data,
              ask->stream ? &stream : NULL, a);
    strbuf_release(&body);
    if (a->why[0])
        return;
    if (!ask->stream || a->status != 200) {
        parse_body(a);
        if (a->status == 200)
            read_choice(a, a->body);
    }
    if (a->status != 200)
        snprintf(a->why, sizeof(a->why), "HTTP %d: %.200s", a->status,
                 error_message(a->body) ? error_message(a->body) : "no message");
    else if (!a->finish[0] && !a->why[0])
        snprintf(a->why, sizeof(a->why), "no finish_reason");
}

uint64_t probe_leave(const struct job *j, const struct ask *ask, uint64_t chunks)
{
    struct answer a;
    struct stream stream = {.a = &a, .leave_after = chunks};
    struct strbuf body = STRBUF_INIT;
    begin(&a);
    probe_body(j, ask, &body);
    if (!strbuf_failed(&body))
        fetch(j, "/v1/completions", body.data, &stream, &a);
    uint64_t n = a.n_chunks;
    strbuf_release(&body);
    answer_release(&a);
    return n;
}

/* The number after a metric's name and labels, or -1. Names differ between servers: any that ends so. */
static double metric(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        size_t word = strcspn(line, " {\n");
        if (*line == '#' || word < n || memcmp(line + word - n, name, n) != 0)
            continue;
        const char *at = line + word + (line[word] == '{' ? strcspn(line + word, "}\n") + 1 : 0);
        char *end;
        double v = strtod(at, &end);
        if (end != at)
            return v;
    }
    return -1;
}

double probe_metric(const struct job *j, const char *name)
{
    struct answer a;
    probe_call(j, "/metrics", NULL, &a);
    double v = a.status == 200 ? metric(strbuf_cstr(&a.raw), name) : -1;
    answer_release(&a);
    return v;
}
