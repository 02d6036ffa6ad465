/* SPDX-License-Identifier: Apache-2.0
 *
 * The service over HTTP, with an engine that answers by script (fake_engine.h): shapes, streams, stop
 * strings, errors, limits, failures, clients that leave, 200 streams at once, health that tells the truth,
 * and an orderly stop.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "prompt/output_impl.h"
#include "serve/serve.h"
#include "serve/stop_text.h"
#include "fake_engine.h"
#include "service_client.h"

#define S           1000000000u
#define COMPLETIONS "/v1/completions"
#define CHAT        "/v1/chat/completions"

/* ---- one server ---- */

struct server {
    struct d0 d0;
    struct engine engine;
    struct ckpt *ckpt;
    struct spec spec;
    struct prompt_front *front;
    struct serve *serve;
    pthread_t thread;
    bool running;
    int run_rc;
    char dir[64], base[64];
    struct arena arena;
};

static void *run_server(void *arg)
{
    struct server *s = arg;
    struct err e = {0};
    s->run_rc = serve_run(s->serve, &e);
    return NULL;
}

static const char text_rules[] =
    "{\"name\":\"t\",\"trim\":true,\"reasoning\":{\"open\":\"<think>\",\"close\":"
    "\"</think>\"},\"tools\":{"
    "\"open\":\"<tool_call>\",\"close\":\"</tool_call>\",\"body\":\"$call\"}}";
static const char token_rules[] =
    "{\"name\":\"t\",\"tokens\":[\"<unk>\"],\"reasoning\":{\"open\":\"i\",\"close\":\"<unk>\"}}";

/* Contents one after the other; the last token chooses the script of the engine. */
static void add_chat(struct server *s, const char *rules)
{
    static const char file[] =
        "return { chat = function(messages, o)\n"
        "  local s = talk.segments()\n"
        "  s.text((o.tools and o.tools[1]['function'].name or '') .. (o.reasoning_effort or ''))\n"
        "  if o.fail then error('no such mode', 0) end\n"
        "  for _, m in ipairs(messages) do s.text(talk.content(m)) end\n"
        "  return s.list\n"
        "end }";
    s->spec.arch_name = "t.lua";
    s->spec.arch_file = (struct arch_file){.name = "t.lua", .text = file, .n = sizeof file - 1};
    s->spec.has_chat = true;
    assert_int_equal(json_parse(rules, strlen(rules), NULL, &s->arena, &s->spec.output, NULL), 0);
}

/* rules: for the output, and a chat function; NULL: neither. */
static struct server *new_server_of(struct engine_limits limits, const char *rules)
{
    struct server *s = calloc(1, sizeof *s);
    struct strbuf b = STRBUF_INIT;
    struct findings f;
    struct err e = {0};
    char path[96];
    assert_non_null(s);
    s->d0.log.fd = -1;
    s->engine.limits = limits;
    snprintf(s->dir, sizeof s->dir, "/tmp/day0-serve-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(path, sizeof path, "%s/tokenizer.json", s->dir);
    tiny_tokenizer(&b, &(struct tiny_options){0});
    assert_int_equal(file_write_atomic(path, b.data, b.len, &e), 0);
    strbuf_release(&b);
    findings_init(&f, &s->d0.mem);
    assert_int_equal(ckpt_open(&s->ckpt, s->dir, &f, &s->d0, &e), 0);
    s->spec =
        (struct spec){.vocab_size = 320, .max_positions = 1000, .bos_id = 1, .eos_ids = {2}, .n_eos = 1};
    findings_release(&f);
    findings_init(&f, &s->d0.mem);
    arena_init(&s->arena, NULL, MEM_MISC);
    if (rules)
        add_chat(s, rules);
    assert_int_equal(prompt_open(&s->front, s->ckpt, &s->spec, &f, &s->d0, &e), 0);
    assert_non_null(s->front);
    assert_int_equal(s->front->vocab_limit, TINY_VOCAB);
    findings_release(&f);
    unlink(path);
    rmdir(s->dir);
    return s;
}

static struct server *new_server(struct engine_limits limits)
{
    return new_server_of(limits, NULL);
}

static const struct engine_limits usual = {.max_tokens = 512,
                                           .max_seqs = 64,
                                           .max_rows = 64,
                                           .max_pages_per_seq = 32,
                                           .n_pages = 2048,
                                           .page_tokens = 8,
                                           .vocab = 320};

static char *get(const struct server *s, const char *path, int *status);

static void start(struct server *s, struct serve_options o)
{
    struct err e = {0};
    o.model_name = "tiny";
    if (serve_open(&s->serve, &s->engine, s->front, &o, &s->d0, &e))
        fail_msg("%s", e.message);
    assert_int_equal(pthread_create(&s->thread, NULL, run_server, s), 0);
    s->running = true;
    snprintf(s->base, sizeof s->base, "http://127.0.0.1:%u", serve_port(s->serve));
    for (int i = 0; i < 500; i++) { /* ready: the canary token was computed */
        int status;
        free(get(s, "/health", &status));
        if (status == 200)
            return;
        clock_sleep_ns(10000000);
    }
    fail_msg("not ready");
}

static void join(struct server *s)
{
    if (s->running)
        pthread_join(s->thread, NULL);
    s->running = false;
}

static void stop(struct server *s)
{
    serve_stop(s->serve);
    join(s);
    assert_int_equal(s->run_rc, 0);
    serve_close(s->serve);
    prompt_close(s->front);
    ckpt_close(s->ckpt);
    arena_release(&s->arena);
    assert_int_equal(s->d0.mem.live[MEM_REQUEST], 0);
    assert_int_equal(s->d0.mem.live[MEM_TEXT], 0);
    free(s);
}

/* ---- clients ---- */

static void url_of(const struct server *s, const char *path, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s%s", s->base, path);
}

static char *fetch(const struct server *s, const char *path, const char *method, const char *body,
                   int *status)
{
    char url[256];
    struct http_response r = {0};
    struct err e = {0};
    url_of(s, path, url, sizeof url);
    struct http_request q = {.method = method,
                             .url = url,
                             .body = body,
                             .body_bytes = body ? strlen(body) : 0,
                             .timeout_ns = 30ull * S};
    if (http_fetch(&q, NULL, NULL, &r, &e))
        fail_msg("%s %s: %s", method, path, e.message);
    *status = r.status;
    strbuf_putc(&r.body, '\0');
    char *text = strbuf_detach(&r.body);
    http_response_release(&r);
    return text;
}

static char *get(const struct server *s, const char *path, int *status)
{
    return fetch(s, path, "GET", NULL, status);
}

static const struct json *parse(struct arena *a, const char *text)
{
    const struct json *v = NULL;
    struct err e = {0};
    if (json_parse(text, strlen(text), NULL, a, &v, &e))
        fail_msg("%s in %s", e.message, text);
    return v;
}

/* POSTs and parses; the arena holds the answer. */
static const struct json *post(const struct server *s, const char *path, const char *body, int want,
                               struct arena *a)
{
    int status;
    char *text = fetch(s, path, "POST", body, &status);
    if (status != want)
        fail_msg("%s: status %d, expected %d: %s", body, status, want, text);
    const struct json *v = parse(a, text);
    free(text);
    return v;
}

/* "choices.0.text" */
static const struct json *at(const struct json *v, const char *path)
{
    char part[64];
    while (*path && v) {
        size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        v = v->type == JSON_ARRAY ? json_at(v, (size_t)strtoul(part, NULL, 10)) : json_get(v, part);
        path += n + (path[n] == '.');
    }
    return v;
}

static const char *text_at(const struct json *v, const char *path)
{
    const char *s = json_string(at(v, path));
    return s ? s : "(none)";
}

static int64_t int_at(const struct json *v, const char *path)
{
    int64_t i = -999;
    json_i64(at(v, path), &i);
    return i;
}

/* What a stream gave. */
struct stream {
    struct strbuf text, reasoning, calls; /* calls: "index:id:name:" or "index:arguments " for each event */
    char finish[16], error[256], code[64];
    int n_late; /* texts behind a call */
    int n_notes, n_events, n_ids, n_scored, prompt_tokens, completion_tokens, leave_after;
    uint64_t seed;
    bool done, failed, over, began;
    int status;
    char why[256];
};

static bool on_event(void *user, const struct sse_event *ev)
{
    struct stream *st = user;
    struct arena a;
    if (strcmp(ev->data, "[DONE]") == 0) {
        st->done = true;
        return true;
    }
    assert_false(st->done);
    arena_init(&a, NULL, MEM_MISC);
    const struct json *v = parse(&a, ev->data), *text = at(v, "choices.0.text"),
                      *more = at(v, "choices.0.delta.content");
    text = text ? text : more;
    st->n_events++;
    const struct json *why = at(v, "choices.0.delta.reasoning_content"),
                      *call = at(v, "choices.0.delta.tool_calls.0");
    if (why)
        strbuf_add(&st->reasoning, why->as.string, why->n);
    if (call && json_get(call, "id"))
        strbuf_printf(&st->calls, "%d:%s:%s:%s:%s ", (int)int_at(call, "index"), text_at(call, "type"),
                      str_starts(text_at(call, "id"), "call-chatcmpl-") ? "id" : "?",
                      text_at(call, "function.name"), text_at(call, "function.arguments"));
    else if (call)
        strbuf_printf(&st->calls, "%d:%s ", (int)int_at(call, "index"), text_at(call, "function.arguments"));
    if (at(v, "choices.0.output_notes"))
        st->n_notes += (int)at(v, "choices.0.output_notes")->n;
    st->n_late += text && text->n > 0 && st->calls.len > 0;
    if (text)
        strbuf_add(&st->text, text->as.string, text->n);
    if (json_string(at(v, "choices.0.finish_reason")))
        snprintf(st->finish, sizeof st->finish, "%s", text_at(v, "choices.0.finish_reason"));
    if (at(v, "error")) {
        snprintf(st->error, sizeof st->error, "%s", text_at(v, "error.message"));
        snprintf(st->code, sizeof st->code, "%s", text_at(v, "error.code"));
    }
    if (at(v, "choices.0.token_ids"))
        st->n_ids += (int)at(v, "choices.0.token_ids")->n;
    if (at(v, "choices.0.logprobs.tokens"))
        st->n_scored += (int)at(v, "choices.0.logprobs.tokens")->n;
    if (at(v, "choices.0.logprobs.content"))
        st->n_scored += (int)at(v, "choices.0.logprobs.content")->n;
    if (int_at(v, "usage.prompt_tokens") >= 0) {
        st->prompt_tokens = (int)int_at(v, "usage.prompt_tokens");
        st->completion_tokens = (int)int_at(v, "usage.completion_tokens");
    }
    json_u64(json_get(v, "seed"), &st->seed);
    arena_release(&a);
    return st->leave_after == 0 || st->n_events < st->leave_after;
}

static void on_done(void *user, struct http_response *r, const struct err *failure)
{
    struct stream *st = user;
    st->over = true;
    st->failed = failure != NULL;
    st->status = r ? r->status : 0;
    if (failure)
        snprintf(st->why, sizeof st->why, "%.250s", failure->message);
}

static void stream(const struct server *s, const char *path, const char *body, struct stream *st)
{
    char url[256];
    struct http_response r = {0};
    struct err e = {0};
    url_of(s, path, url, sizeof url);
    struct http_request q = {.url = url, .body = body, .body_bytes = strlen(body), .timeout_ns = 30ull * S};
    int rc = http_fetch(&q, on_event, st, &r, &e);
    st->failed = rc != 0;
    st->status = r.status;
    http_response_release(&r);
}

static void stream_release(struct stream *st)
{
    strbuf_release(&st->text);
    strbuf_release(&st->reasoning);
    strbuf_release(&st->calls);
    memset(st, 0, sizeof *st);
}

/* ---- tests ---- */

static void completion_and_chat(void **state)
{
    (void)state;
    struct server *s = new_server(usual);
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    start(s, (struct serve_options){.prefix_cache = true});
    const struct json *v =
        post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"b\",\"max_tokens\":5,\"seed\":7}", 200, &a);
    assert_string_equal(text_at(v, "object"), "text_completion");
    assert_string_equal(text_at(v, "choices.0.text"), "hello");
    assert_string_equal(text_at(v, "choices.0.finish_reason"), "length");
    assert_int_equal(at(v, "choices.0.logprobs")->type, JSON_NULL);
    assert_null(at(v, "choices.0.token_ids"));
    assert_int_equal(int_at(v, "usage.prompt_tokens"), 3); /* <s>, the marker, b */
    assert_int_equal(int_at(v, "usage.completion_tokens"), 5);
    assert_int_equal(int_at(v, "usage.total_tokens"), 8);
    assert_int_equal(int_at(v, "usage.prompt_tokens_details.cached_tokens"), 0);
    assert_int_equal(int_at(v, "seed"), 7);
    assert_string_equal(text_at(v, "model"), "tiny");
    v = post(s, COMPLETIONS,
             "{\"model\":\"tiny\",\"prompt\":[[1,259,261]],\"return_token_ids\":true,\"n\":1,\"user\":\"me\","
             "\"stop\":null}",
             200, &a);
    assert_string_equal(text_at(v, "choices.0.text"), "hello world");
    assert_string_equal(text_at(v, "choices.0.finish_reason"), "stop");
    assert_int_equal(int_at(v, "usage.completion_tokens"), 12); /* with the stop id */
    assert_int_equal(at(v, "choices.0.token_ids")->n, 12);
    assert_int_equal(int_at(v, "choices.0.token_ids.11"), 2);
    /* the answer continues the prompt: a space between them is part of it */
    v = post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"f\",\"max_tokens\":2}", 200, &a);
    assert_string_equal(text_at(v, "choices.0.text"), " w");
    v = post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":[\"b\"],\"ignore_eos\":true}", 200, &a);
    assert_string_equal(text_at(v, "choices.0.finish_reason"), "length");
    assert_int_equal(int_at(v, "usage.completion_tokens"), 16);
    v = post(s, CHAT, "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"b\"}]}", 200, &a);
    assert_string_equal(text_at(v, "object"), "chat.completion");
    assert_string_equal(text_at(v, "choices.0.message.role"), "assistant");
    assert_string_equal(text_at(v, "choices.0.message.content"), "hello world");
    v = post(s, COMPLETIONS,
             "{\"model\":\"tiny\",\"prompt\":\"the and the and the and the and the and a\",\"max_tokens\":1}",
             200, &a);
    v = post(s, COMPLETIONS,
             "{\"model\":\"tiny\",\"prompt\":\"the and the and the and the and the and a\",\"max_tokens\":1}",
             200, &a);
    assert_int_equal(int_at(v, "usage.prompt_tokens_details.cached_tokens"), 8);
    assert_true(metric(s->base, "day0_requests_total{outcome=\"stop\"}") == 2);
    assert_true(metric(s->base, "day0_requests_total{outcome=\"length\"}") == 5);
    assert_true(metric(s->base, "day0_time_to_first_token_seconds_count") == 7);
    assert_true(metric(s->base, "day0_kv_pages_free") == 2048);
    arena_release(&a);
    stop(s);
}

static void streams_equal_answers(void **state)
{
    (void)state;
    struct server *s = new_server(usual);
    struct arena a;
    struct stream st = {0};
    arena_init(&a, NULL, MEM_MISC);
    start(s, (struct serve_options){0});
    stream(s, COMPLETIONS,
           "{\"model\":\"tiny\",\"prompt\":\"b\",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
           "\"return_token_ids\":true}",
           &st);
    assert_true(st.done && st.status == 200);
    assert_string_equal(strbuf_cstr(&st.text), "hello world");
    assert_string_equal(st.finish, "stop");
    assert_int_equal(st.n_ids, 12);
    assert_int_equal(st.completion_tokens, 12);
    assert_int_equal(st.prompt_tokens, 3);
    stream_release(&st);
    stream(s, CHAT,
           "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
           "\"b\"}]}],\"stream\":true}",
           &st);
    assert_true(st.done);
    assert_string_equal(strbuf_cstr(&st.text), "hello world");
    stream_release(&st);
    /* the same seed gives the same text, streamed or not; no seed gives one that can be sent back */
    const struct json *v =
        post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"max_tokens\":40}", 200, &a);
    uint64_t seed = 0;
    char body[160];
    assert_true(json_u64(json_get(v, "seed"), &seed) && seed < 1ull << 53);
    snprintf(body, sizeof body,
             "{\"model\":\"tiny\",\"prompt\":\"a\",\"max_tokens\":40,\"seed\":%llu,\"stream\":true}",
             (unsigned long long)seed);
    stream(s, COMPLETIONS, body, &st);
    assert_string_equal(strbuf_cstr(&st.text), text_at(v, "choices.0.text"));
    assert_true(st.seed == seed);
    stream_release(&st);
    const struct json *other =
        post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"max_tokens\":40}", 200, &a);
    assert_string_not_equal(text_at(other, "choices.0.text"), text_at(v, "choices.0.text"));
    arena_release(&a);
    stop(s);
}

#define TOOLS  ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
#define SAY(x) "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"" x "\"}]"

static void calls_and_reasoning(void **state)
{
    (void)state;
    struct server *s = new_server_of(usual, text_rules);
    struct arena a;
    struct stream st = {0};
    arena_init(&a, NULL, MEM_MISC);
    start(s, (struct serve_options){0});
    const struct json *v = post(s, CHAT, SAY("<think>g") TOOLS ",\"return_token_ids\":true}", 200, &a);
    const struct json *m = at(v, "choices.0.message");
    assert_string_equal(text_at(v, "choices.0.finish_reason"), "tool_calls");
    /* the prompt ends with g: nothing had opened the reasoning */
    assert_string_equal(text_at(m, "content"), "why \xC3\xBC</think>\n\nso");
    assert_null(at(m, "reasoning_content"));
    assert_int_equal(at(m, "tool_calls")->n, 2);
    assert_string_equal(text_at(m, "tool_calls.0.type"), "function");
    assert_string_equal(text_at(m, "tool_calls.0.function.name"), "f");
    assert_string_equal(text_at(m, "tool_calls.0.function.arguments"), "{\"a\": [1]}");
    assert_string_equal(text_at(m, "tool_calls.1.function.arguments"), "{}");
    assert_string_not_equal(text_at(m, "tool_calls.0.id"), text_at(m, "tool_calls.1.id"));
    assert_null(at(v, "choices.0.output_notes"));
    int64_t n_ids = at(v, "choices.0.token_ids")->n;
    assert_int_equal(n_ids, int_at(v, "usage.completion_tokens"));
    stream(s, CHAT, SAY("g") TOOLS ",\"return_token_ids\":true,\"stream\":true,\"logprobs\":true}", &st);
    assert_true(st.done);
    assert_string_equal(strbuf_cstr(&st.text), "why \xC3\xBC</think>\n\nso");
    assert_string_equal(strbuf_cstr(&st.calls), "0:function:id:f: 0:{\"a\": [1]} 1:function:id:g: 1:{} ");
    assert_string_equal(st.finish, "tool_calls");
    assert_int_equal(st.n_ids, n_ids);
    assert_int_equal(st.n_scored, n_ids - 1); /* not the end token */
    stream_release(&st);
    /* no tools offered, or none wanted: the same is text */
    v = post(s, CHAT, SAY("g") "}", 200, &a);
    assert_string_equal(text_at(v, "choices.0.finish_reason"), "stop");
    assert_non_null(strstr(text_at(v, "choices.0.message.content"), "<tool_call>"));
    v = post(s, CHAT, SAY("g") TOOLS ",\"tool_choice\":\"none\"}", 200, &a);
    assert_null(at(v, "choices.0.message.tool_calls"));
    /* cut by the limit: text, and told */
    v = post(s, CHAT, SAY("g") TOOLS ",\"max_tokens\":40}", 200, &a);
    assert_string_equal(text_at(v, "choices.0.finish_reason"), "length");
    assert_non_null(strstr(text_at(v, "choices.0.message.content"), "<tool_call>"));
    assert_int_equal(at(v, "choices.0.output_notes")->n, 1);
    /* a call that is none */
    v = post(s, CHAT, SAY("h") TOOLS "}", 200, &a);
    assert_string_equal(text_at(v, "choices.0.message.content"), "<tool_call>no</tool_call>");
    assert_string_equal(text_at(v, "choices.0.finish_reason"), "stop");
    assert_int_equal(at(v, "choices.0.output_notes")->n, 1);
    stream(s, CHAT, SAY("h") TOOLS ",\"stream\":true}", &st);
    assert_string_equal(strbuf_cstr(&st.text), "<tool_call>no</tool_call>");
    assert_int_equal(st.n_notes, 1);
    stream_release(&st);
    /* text that might have become a stop string comes before the calls */
    stream(s, CHAT, SAY("g") TOOLS ",\"stream\":true,\"stop\":\"sox\"}", &st);
    assert_string_equal(strbuf_cstr(&st.text), "why \xC3\xBC</think>\n\nso");
    assert_int_equal(st.n_late, 0);
    assert_string_equal(st.finish, "tool_calls");
    stream_release(&st);
    /* a stop string ends the text before the calls */
    v = post(s, CHAT, SAY("g") TOOLS ",\"stop\":\"think\"}", 200, &a);
    assert_string_equal(text_at(v, "choices.0.message.content"), "why \xC3\xBC</");
    assert_string_equal(text_at(v, "choices.0.finish_reason"), "stop");
    assert_true(metric(s->base, "day0_tool_calls_total") == 6);
    assert_true(metric(s->base, "day0_malformed_tool_calls_total") == 2);
    assert_true(metric(s->base, "day0_unfinished_tool_calls_total") == 1);
    /* no stop string goes on behind a call, streamed or not */
    v = post(s, CHAT, SAY("j") TOOLS ",\"stop\":\"some\"}", 200, &a);
    assert_string_equal(text_at(v, "choices.0.message.content"), "some");
    assert_string_equal(text_at(v, "choices.0.finish_reason"), "tool_calls");
    assert_int_equal(at(v, "choices.0.message.tool_calls")->n, 1);
    stream(s, CHAT, SAY("j") TOOLS ",\"stream\":true,\"stop\":\"some\"}", &st);
    assert_string_equal(strbuf_cstr(&st.text), "some");
    assert_string_equal(st.finish, "tool_calls");
    stream_release(&st);
    /* what the function says of a request */
    v = post(s, CHAT, SAY("g") ",\"chat_template_kwargs\":{\"fail\":true}}", 400, &a);
    assert_non_null(strstr(text_at(v, "error.message"), "no such mode"));
    v = post(s, CHAT, SAY("") ",\"reasoning_effort\":\"b\"}", 200, &a);
    assert_string_equal(text_at(v, "choices.0.message.content"), "hello world");
    arena_release(&a);
    stop(s);
}

/* The prompt opened the reasoning: what the model writes goes on with it. */
static void reasoning_from_the_prompt(void **state)
{
    (void)state;
    struct server *s = new_server_of(usual, text_rules);
    struct arena a;
    struct stream st = {0};
    arena_init(&a, NULL, MEM_MISC);
    ((struct output_rules *)s->front->output)->think_open = (struct marker){"g", 1};
    start(s, (struct serve_options){0});
    const struct json *v = post(s, CHAT, SAY("g") TOOLS "}", 200, &a);
    assert_string_equal(text_at(v, "choices.0.message.reasoning_content"), "why \xC3\xBC");
    assert_string_equal(text_at(v, "choices.0.message.content"), "so");
    stream(s, CHAT, SAY("g") TOOLS ",\"stream\":true}", &st);
    assert_string_equal(strbuf_cstr(&st.reasoning), "why \xC3\xBC");
    assert_string_equal(strbuf_cstr(&st.text), "so");
    assert_string_equal(st.finish, "tool_calls");
    stream_release(&st);
    arena_release(&a);
    stop(s);
}

/* A marker that is a token, behind half a character: what is left of that ends before it. */
static void marker_behind_half_a_character(void **state)
{
    (void)state;
    struct server *s = new_server_of(usual, token_rules);
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    start(s, (struct serve_options){0});
    const struct json *v = post(s, CHAT, SAY("i") "}", 200, &a);
    assert_string_equal(text_at(v, "choices.0.message.reasoning_content"), "\xEF\xBF\xBD");
    assert_string_equal(text_at(v, "choices.0.message.content"), "so");
    arena_release(&a);
    stop(s);
}

static void stop_strings(void **state)
{
    (void)state;
    static const struct {
        const char *stop, *text;
        int scored; /* tokens whose text begins before the stop string */
    } cases[] = {
        {"\"o w\"", "hell", 4},
        {"[\"xyz\",\"lo\"]", "hel", 3},
        {"\"h\"", "", 0},
        {"[\"world!\",\"rld\"]", "hello wo", 8},
        {"\"zzz\"", "hello world", 11},
        {"\"world \"", "hello world", 11},
        {"[]", "hello world", 11},
        {"\"ld\"", "hello wor", 9},
    };
    struct server *s = new_server(usual);
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    start(s, (struct serve_options){0});
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char body[200];
        struct stream st = {0};
        snprintf(body, sizeof body, "{\"model\":\"tiny\",\"prompt\":\"b\",\"logprobs\":0,\"stop\":%s}",
                 cases[i].stop);
        const struct json *v = post(s, COMPLETIONS, body, 200, &a);
        assert_string_equal(text_at(v, "choices.0.text"), cases[i].text);
        assert_string_equal(text_at(v, "choices.0.finish_reason"), "stop");
        const struct json *tokens = at(v, "choices.0.logprobs.tokens");
        assert_int_equal(tokens ? tokens->n : 0, cases[i].scored);
        snprintf(body, sizeof body,
                 "{\"model\":\"tiny\",\"prompt\":\"b\",\"logprobs\":0,\"stream\":true,\"stop\":%s}",
                 cases[i].stop);
        stream(s, COMPLETIONS, body, &st);
        assert_string_equal(strbuf_cstr(&st.text), cases[i].text);
        assert_string_equal(st.finish, "stop");
        assert_int_equal(st.n_scored, cases[i].scored);
        stream_release(&st);
    }
    assert_true(metric_becomes(s->base, "day0_kv_pages_free", 2048));
    arena_release(&a);
    stop(s);
}

static void stop_ends_the_work(void **state)
{
    (void)state;
    struct server *s = new_server(usual);
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    s->front->stop_ids[s->front->n_stop++] =
        LETTER('d'); /* a stop id that is no special token gives no text either */
    start(s, (struct serve_options){0});
    const struct json *v = post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"b\"}", 200, &a);
    assert_string_equal(text_at(v, "choices.0.text"), "hello worl");
    s->engine.step_ns = 60000000; /* 240 tokens take longer than metric_becomes() waits */
    v = post(s, COMPLETIONS,
             "{\"model\":\"tiny\",\"prompt\":\"b\",\"max_tokens\":240,\"ignore_eos\":true,\"stop\":\"lo\"}",
             200, &a);
    assert_string_equal(text_at(v, "choices.0.text"), "hel");
    assert_true(metric_becomes(s->base, "day0_requests_running", 0));
    arena_release(&a);
    stop(s);
}

/* The earliest of several stop strings counts, and what may become one stays back. */
static void stop_text_alone(void **state)
{
    (void)state;
    static const struct stop_string stops[] = {{"bc", 2}, {"cd", 2}, {"efgh", 4}};
    struct stop_text t = {.stops = stops, .n_stops = 3};
    strbuf_puts(&t.held, "xyefg");
    assert_int_equal(stop_text_certain(&t), 2);
    stop_text_release(&t, 2);
    strbuf_puts(&t.held, "b");
    assert_int_equal(stop_text_certain(&t), 3); /* "efg" is free again, "b" is not */
    stop_text_release(&t, 3);
    assert_string_equal(t.held.data, "b");
    strbuf_puts(&t.held, "cd");
    assert_int_equal(stop_text_certain(&t), 0);
    assert_true(t.hit);
    assert_int_equal(t.released, 5);
    strbuf_release(&t.held);
}

static void whole_characters(void **state)
{
    (void)state;
    struct server *s = new_server(usual);
    struct stream st = {0};
    start(s, (struct serve_options){0});
    /* the parser of the events refuses half a character */
    stream(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"c\",\"max_tokens\":8,\"stream\":true}", &st);
    assert_string_equal(strbuf_cstr(&st.text), "\xF0\x9F\x98\x80\xF0\x9F\x98\x80");
    stream_release(&st);
    stream(s, COMPLETIONS,
           "{\"model\":\"tiny\",\"prompt\":\"c\",\"max_tokens\":6,\"stream\":true,\"logprobs\":1}", &st);
    assert_string_equal(strbuf_cstr(&st.text), "\xF0\x9F\x98\x80\xEF\xBF\xBD\xEF\xBF\xBD");
    assert_int_equal(st.n_scored, 6);
    stream_release(&st);
    stream(s, COMPLETIONS,
           "{\"model\":\"tiny\",\"prompt\":\"c\",\"max_tokens\":16,\"stream\":true,\"stop\":"
           "\"\xF0\x9F\x98\x80\xF0\x9F\x98\x80\"}",
           &st);
    assert_string_equal(strbuf_cstr(&st.text), "");
    assert_string_equal(st.finish, "stop");
    stream_release(&st);
    stop(s);
}

static void log_probabilities(void **state)
{
    (void)state;
    struct server *s = new_server(usual);
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    start(s, (struct serve_options){0});
    const struct json *v = post(
        s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"b\",\"max_tokens\":7,\"logprobs\":4}", 200, &a);
    const struct json *l = at(v, "choices.0.logprobs");
    assert_string_equal(text_at(l, "tokens.0"), "h");
    assert_int_equal(at(l, "tokens")->n, 7);
    assert_int_equal(at(l, "token_logprobs")->n, 7);
    assert_int_equal(int_at(l, "text_offset.6"), 6);
    /* four alternatives, but "h" twice: the byte token and the letter */
    assert_int_equal(at(l, "top_logprobs.0")->n, 3);
    assert_non_null(json_get(at(l, "top_logprobs.0"), "bytes:\\xe2"));
    assert_int_equal(at(l, "top_logprobs.1")->n, 4);
    v = post(s, CHAT,
             "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"b\"}],\"max_completion_"
             "tokens\":2,\"logprobs\":true,\"top_logprobs\":3}",
             200, &a);
    l = at(v, "choices.0.logprobs.content");
    assert_int_equal(l->n, 2);
    assert_string_equal(text_at(l, "1.token"), "e");
    assert_int_equal(int_at(l, "1.bytes.0"), 'e');
    assert_int_equal(at(l, "1.top_logprobs")->n, 3);
    assert_int_equal(int_at(l, "1.top_logprobs.2.bytes.0"), 0xE2);
    arena_release(&a);
    stop(s);
}

/* The beginning of a chat that is well formed so far. */
#define ASKED "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
static const struct {
    const char *path, *body;
    int status;
    const char *param, *code;
} refused[] = {
    {COMPLETIONS, "", 400, NULL, "invalid_json"},
    {COMPLETIONS, "{\"model\":\"tiny\"", 400, NULL, "invalid_json"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"model\":\"tiny\",\"prompt\":\"a\"}", 400, NULL, "invalid_json"},
    {COMPLETIONS, "[]", 400, NULL, "invalid_value"},
    {COMPLETIONS, "{\"prompt\":\"a\"}", 400, "model", "missing"},
    {COMPLETIONS, "{\"model\":\"tiny\"}", 400, "prompt", "missing"},
    {COMPLETIONS, "{\"model\":\"huge\",\"prompt\":\"a\"}", 404, "model", "model_not_found"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":[\"a\",\"b\"]}", 400, "prompt", "unsupported"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":[]}", 400, "prompt", "invalid_value"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":[1,-1]}", 400, "prompt", "invalid_value"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":[1,320]}", 400, "prompt", "invalid_value"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"n\":2}", 400, "n", "unsupported"},
    {CHAT, ASKED "\"chat_template_kwargs\":[]}", 400, "chat_template_kwargs", "invalid_value"},
    {CHAT, ASKED "\"chat_template_kwargs\":{\"messages\":[]}}", 400, "chat_template_kwargs", "invalid_value"},
    {CHAT, ASKED "\"chat_template_kwargs\":{\"a\":1,\"tools\":[]}}", 400, "chat_template_kwargs",
     "invalid_value"},
    {CHAT, ASKED "\"add_generation_prompt\":1}", 400, "add_generation_prompt", "invalid_value"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"best_of\":3}", 400, "best_of", "unsupported"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"echo\":true}", 400, "echo", "unsupported"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"logit_bias\":{\"5\":1}}", 400, "logit_bias",
     "unsupported"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"frequency_penalty\":0.5}", 400, "frequency_penalty",
     "unsupported"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"grammar\":\"x\"}", 400, "grammar", "unsupported"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"temperature\":-1}", 400, "temperature",
     "invalid_value"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"top_p\":0}", 400, "top_p", "invalid_value"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"top_k\":1.5}", 400, "top_k", "invalid_value"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"max_tokens\":0}", 400, "max_tokens",
     "invalid_value"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"max_tokens\":5,\"max_completion_tokens\":6}", 400,
     "max_completion_tokens", "invalid_value"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"logprobs\":21}", 400, "logprobs", "invalid_value"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}", 400,
     "stop", "invalid_value"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"stop\":\"\"}", 400, "stop", "invalid_value"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"stream_options\":{\"include_usage\":true}}", 400,
     "stream_options", "invalid_value"},
    {COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"max_tokens\":254}", 400, "prompt",
     "context_length_exceeded"},
    {CHAT, "{\"model\":\"tiny\",\"messages\":[]}", 400, "messages", "invalid_value"},
    {CHAT, "{\"model\":\"tiny\",\"prompt\":\"a\"}", 400, "prompt", "unsupported"},
    {CHAT, "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
     400, "messages[0].content[0]", "unsupported"},
    {CHAT, ASKED "\"tools\":[{}]}", 400, "tools", "invalid_value"},
    {CHAT, ASKED "\"tools\":[{\"type\":\"mcp\"}]}", 400, "tools", "unsupported"},
    {CHAT, ASKED "\"tools\":[{\"function\":{\"name\":\"f\"}}]}", 400, "messages",
     "unsupported"}, /* nothing here renders them */
    {CHAT, ASKED "\"tool_choice\":\"required\"}", 400, "tool_choice", "unsupported"},
    {CHAT, ASKED "\"chat_template_kwargs\":3}", 400, "chat_template_kwargs", "invalid_value"},
    {CHAT, ASKED "\"reasoning_effort\":3}", 400, "reasoning_effort", "invalid_value"},
    {CHAT, ASKED "\"top_logprobs\":2}", 400, "top_logprobs", "invalid_value"},
    {CHAT, ASKED "\"response_format\":{\"type\":\"json_object\"}}", 400, "response_format", "unsupported"},
    {"/v1/embeddings", "{}", 404, NULL, "not_found"},
    {"/v1/models", "{}", 405, NULL, "method_not_allowed"},
};

static void refusals(void **state)
{
    (void)state;
    struct server *s = new_server(usual);
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    start(s, (struct serve_options){.max_body = 20000});
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        const struct json *v = post(s, refused[i].path, refused[i].body, refused[i].status, &a);
        if (strcmp(text_at(v, "error.code"), refused[i].code) != 0 ||
            strcmp(text_at(v, "error.param"), refused[i].param ? refused[i].param : "(none)") != 0)
            fail_msg("%s: code %s, param %s", refused[i].body, text_at(v, "error.code"),
                     text_at(v, "error.param"));
        assert_string_equal(text_at(v, "error.type"), "invalid_request_error");
        assert_true(strlen(text_at(v, "error.message")) > 10);
    }
    const struct json *v =
        post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"a\",\"max_tokens\":300}", 400, &a);
    assert_non_null(strstr(text_at(v, "error.message"), "256"));
    assert_non_null(strstr(text_at(v, "error.message"), "303"));
    char *big = malloc(30000), *text;
    int status;
    assert_non_null(big);
    memset(big, 'a', 29999);
    big[29999] = '\0';
    text = fetch(s, COMPLETIONS, "POST", big, &status);
    assert_int_equal(status, 413);
    free(text);
    snprintf(big, 30000, "{\"model\":\"tiny\",\"prompt\":\"%0*d\"}", 10000,
             0); /* refused by its bytes, not tokenized */
    v = post(s, COMPLETIONS, big, 400, &a);
    assert_non_null(strstr(text_at(v, "error.message"), "bytes"));
    assert_string_equal(text_at(v, "error.code"), "context_length_exceeded");
    free(big);
    text = get(s, COMPLETIONS, &status);
    assert_int_equal(status, 405);
    free(text);
    arena_release(&a);
    stop(s);
}

static void pages_of_the_service(void **state)
{
    (void)state;
    struct server *s = new_server(usual);
    struct arena a;
    int status;
    char *text;
    arena_init(&a, NULL, MEM_MISC);
    mem_account(&s->d0.mem, MEM_KERNELS, 4321);
    start(s, (struct serve_options){.predicted_bytes = 12345, .activations = "released"});
    text = get(s, "/v1/models", &status);
    assert_string_equal(text_at(parse(&a, text), "data.0.id"), "tiny");
    assert_int_equal(int_at(parse(&a, text), "data.0.max_model_len"), 256);
    free(text);
    text = get(s, "/v1/models/tiny", &status);
    assert_string_equal(text_at(parse(&a, text), "object"), "model");
    free(text);
    free(get(s, "/v1/models/huge", &status));
    assert_int_equal(status, 404);
    text = get(s, "/health", &status);
    const struct json *v = parse(&a, text);
    free(text);
    assert_string_equal(text_at(v, "status"), "ready");
    assert_string_equal(text_at(v, "activations"), "released");
    assert_int_equal(int_at(v, "kv_pages.total"), 2048);
    assert_int_equal(int_at(v, "memory.predicted_bytes"), 12345);
    assert_int_equal(int_at(v, "memory.predicted_kv_bytes"), 2048000);
    assert_int_equal(int_at(v, "memory.held_device_bytes"), 4321);
    assert_int_equal(int_at(v, "memory.held_weights_bytes"), 0);
    assert_true(int_at(v, "memory.measured_rss_bytes") > 1000000);
    assert_true(int_at(v, "engine.steps") >= 1); /* the canary */
    text = get(s, "/", &status);
    assert_non_null(strstr(text, "<code>tiny</code>"));
    free(text);
    arena_release(&a);
    stop(s);
}

static void failures_cost_their_requests_only(void **state)
{
    (void)state;
    struct server *s = new_server(usual);
    struct arena a;
    struct stream st = {0};
    arena_init(&a, NULL, MEM_MISC);
    start(s, (struct serve_options){0});
    const struct json *v = post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"e\"}", 500, &a);
    assert_non_null(strstr(text_at(v, "error.message"), "NaN"));
    assert_string_equal(text_at(v, "error.type"), "server_error");
    stream(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"d\",\"stream\":true}", &st);
    assert_true(st.done && st.status == 200);
    assert_non_null(strstr(st.error, "NaN"));
    assert_true(st.text.len > 0);
    stream_release(&st);
    s->engine.fail_steps = 1;
    v = post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"b\"}", 500, &a);
    assert_non_null(strstr(text_at(v, "error.message"), "a kernel failed"));
    s->engine.refuse_steps = 1;
    v = post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"b\"}", 500, &a);
    assert_non_null(strstr(text_at(v, "error.message"), "on fire"));
    v = post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"b\"}", 200, &a);
    assert_string_equal(text_at(v, "choices.0.text"), "hello world");
    assert_true(metric(s->base, "day0_failed_steps_total") == 2);
    assert_true(metric(s->base, "day0_requests_total{outcome=\"failed\"}") == 4);
    assert_true(metric_becomes(s->base, "day0_kv_pages_free", 2048));
    /* three in a row: not healthy, not ready, until a token was computed again */
    for (int i = 0; i < 3; i++) {
        s->engine.fail_steps = 1;
        post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"b\"}", 500, &a);
        s->engine.fail_steps = i == 1 ? 1 : 50; /* the last: keep failing so that the canary fails too */
    }
    assert_true(metric_becomes(s->base, "day0_ready", 0));
    int status;
    char *text = get(s, "/health", &status);
    assert_int_equal(status, 503);
    assert_string_equal(text_at(parse(&a, text), "status"), "failed");
    free(text);
    post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"b\"}", 503, &a);
    s->engine.fail_steps = 0;
    assert_true(metric_becomes(s->base, "day0_ready", 1));
    post(s, COMPLETIONS, "{\"model\":\"tiny\",\"prompt\":\"b\"}", 200, &a);
    arena_release(&a);
    stop(s);
}

static void silent_engine_is_unhealthy(void **state)
{
    (void)state;
    struct server *s = new_server(usual);
    struct arena a;
    int status = 0;
    arena_init(&a, NULL, MEM_MISC);
    start(s, (struct serve_options){.stall_ns = 300000000});
    s->engine.step_ns = UINT64_C(100) * S; /* one step hangs, until it is let go */
    char url[128];
    struct stream st = {0};
    struct http_client *c = client_open();
    struct err e = {0};
    static const char body[] = "{\"model\":\"tiny\",\"prompt\":\"b\",\"max_tokens\":1}";
    url_of(s, COMPLETIONS, url, sizeof url);
    struct http_request q = {.url = url, .body = body, .body_bytes = sizeof body - 1};
    struct http_handlers h = {.on_done = on_done};
    assert_int_equal(http_client_add(c, &q, &h, &st, NULL, &e), 0);
    char *text = NULL;
    for (int i = 0; i < 1000 && status != 503; i++) {
        http_client_poll(c, 10000000, &e);
        free(text);
        text = get(s, "/health", &status);
    }
    assert_int_equal(status, 503);
    assert_non_null(strstr(text_at(parse(&a, text), "reason"), "no life"));
    free(text);
    s->engine.step_ns = 0;
    for (int i = 0; i < 1000 && !st.over; i++)
        http_client_poll(c, 10000000, &e);
    assert_int_equal(st.status, 200);
    assert_true(metric_becomes(s->base, "day0_ready", 1));
    http_client_close(c);
    arena_release(&a);
    stop(s);
}

/* ---- many at once ---- */

static void add_streams(const struct server *s, struct http_client *c, struct stream *st, int n,
                        const char *body, int leave_after)
{
    char url[128];
    struct err e = {0};
    url_of(s, COMPLETIONS, url, sizeof url);
    struct http_request q = {.url = url, .body = body, .body_bytes = strlen(body), .timeout_ns = 60ull * S};
    struct http_handlers h = {.on_event = on_event, .on_done = on_done};
    for (int i = 0; i < n; i++) {
        st[i].leave_after = leave_after;
        if (http_client_add(c, &q, &h, &st[i], NULL, &e))
            fail_msg("%s", e.message);
    }
}

#define MANY 200
static void two_hundred_streams(void **state)
{
    (void)state;
    struct server *s = new_server(usual);
    struct http_client *c = client_open();
    struct stream *st = calloc(MANY, sizeof *st);
    assert_non_null(st);
    start(s, (struct serve_options){.prefix_cache = true});
    add_streams(s, c, st, MANY,
                "{\"model\":\"tiny\",\"prompt\":\"a\",\"seed\":3,\"max_tokens\":50,\"stream\":true,\"ignore_"
                "eos\":true}",
                0);
    client_run(c);
    for (int i = 0; i < MANY; i++) {
        if (st[i].failed || !st[i].done || st[i].status != 200)
            fail_msg("stream %d: status %d, %s", i, st[i].status, st[i].why);
        assert_string_equal(strbuf_cstr(&st[i].text), strbuf_cstr(&st[0].text)); /* one seed, one text */
        assert_string_equal(st[i].finish, "length");
    }
    for (int i = 0; i < MANY; i++)
        stream_release(&st[i]);
    assert_true(metric_becomes(s->base, "day0_requests_running", 0));
    assert_true(metric(s->base, "day0_kv_pages_free") == 2048);
    assert_true(metric(s->base, "day0_requests_total{outcome=\"length\"}") == MANY);
    http_client_close(c);
    free(st);
    stop(s);
}

static void clients_that_leave(void **state)
{
    (void)state;
    struct server *s = new_server(usual);
    struct http_client *c = client_open();
    struct stream st[20] = {0};
    start(s, (struct serve_options){0});
    s->engine.step_ns = 60000000; /* to run to the end would take 15 s, longer than metric_becomes() waits */
    add_streams(
        s, c, st, 20,
        "{\"model\":\"tiny\",\"prompt\":\"a\",\"max_tokens\":250,\"stream\":true,\"ignore_eos\":true}", 3);
    client_run(c);
    assert_true(metric_becomes(s->base, "day0_requests_running", 0));
    assert_true(metric_becomes(s->base, "day0_requests_open", 0));
    assert_true(metric_becomes(s->base, "day0_kv_pages_free", 2048));
    assert_true(metric(s->base, "day0_requests_total{outcome=\"client_gone\"}") == 20);
    assert_true(metric(s->base, "day0_generated_tokens_total") < 20 * 100); /* nobody ran to its end */
    for (int i = 0; i < 20; i++)
        stream_release(&st[i]);
    http_client_close(c);
    stop(s);
}

/* Of a model with recurrent states a prompt is found up to a kept state, and the metrics tell it. */
static void kept_states(void **state)
{
    (void)state;
    static const char body[] =
        "{\"model\":\"tiny\",\"prompt\":\"the and the and the and the and the and a\",\"max_tokens\":1}";
    for (uint32_t n = 0; n <= 4; n += 4) {
        struct engine_limits l = usual;
        struct arena a;
        arena_init(&a, NULL, MEM_MISC);
        l.n_slots = l.max_seqs;
        l.n_snapshots = n;
        struct server *s = new_server(l);
        start(s, (struct serve_options){.prefix_cache = true});
        post(s, COMPLETIONS, body, 200, &a);
        const struct json *v = post(s, COMPLETIONS, body, 200, &a);
        assert_int_equal(int_at(v, "usage.prompt_tokens_details.cached_tokens"), n ? 8 : 0);
        assert_true(metric(s->base, "day0_cached_tokens_total") == (n ? 8 : 0));
        assert_true(metric(s->base, "day0_state_snapshots_total") == n);
        assert_true(metric(s->base, "day0_state_snapshots_kept") == (n ? 1 : 0));
        assert_true(metric(s->base, "day0_state_snapshot_hits_total") == (n ? 1 : 0));
        arena_release(&a);
        stop(s);
    }
}

static void full_queue(void **state)
{
    (void)state;
    struct engine_limits one = usual;
    one.max_seqs = one.max_rows = 1;
    struct server *s = new_server(one);
    struct http_client *c = client_open();
    struct stream st[10] = {0};
    int ok = 0, busy = 0;
    start(s, (struct serve_options){.max_waiting = 3});
    s->engine.step_ns = 10000000;
    add_streams(s, c, st, 10, "{\"model\":\"tiny\",\"prompt\":\"b\",\"max_tokens\":10,\"stream\":true}", 0);
    client_run(c);
    for (int i = 0; i < 10; i++) {
        ok += st[i].status == 200 && st[i].done;
        busy += st[i].status == 429;
        stream_release(&st[i]);
    }
    assert_int_equal(ok + busy, 10);
    assert_true(ok >= 3 && ok <= 5 && busy >= 5);
    assert_true(metric(s->base, "day0_requests_total{outcome=\"queue_full\"}") == busy);
    http_client_close(c);
    stop(s);
}

/* Raw bytes of a stream: comments are swallowed by the client above. */
static char *raw_stream(const struct server *s, const char *body)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(serve_port(s->serve)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct strbuf b = STRBUF_INIT;
    char buf[4096];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    strbuf_printf(
        &b, "POST " COMPLETIONS " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
        strlen(body), body);
    assert_int_equal(send(fd, b.data, b.len, MSG_NOSIGNAL), b.len);
    strbuf_clear(&b);
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;)
        strbuf_add(&b, buf, (size_t)n);
    close(fd);
    strbuf_putc(&b, '\0');
    return strbuf_detach(&b);
}

static void pings_while_waiting(void **state)
{
    (void)state;
    struct server *s = new_server(usual);
    start(s, (struct serve_options){.ping_ns = 100000000});
    s->engine.step_ns = 600000000;
    char *text = raw_stream(s, "{\"model\":\"tiny\",\"prompt\":\"b\",\"max_tokens\":1,\"stream\":true}");
    s->engine.step_ns = 0;
    const char *ping = strstr(text, ": ping\n\n"), *first = strstr(text, "data: {");
    assert_non_null(ping);
    assert_non_null(first);
    assert_true(ping < first);
    assert_non_null(strstr(text, "data: [DONE]\n\n"));
    free(text);
    stop(s);
}

static void port_in_use(void **state)
{
    (void)state;
    struct server *s = new_server(usual);
    struct serve *second = NULL;
    struct err e = {0};
    char port[16];
    start(s, (struct serve_options){0});
    snprintf(port, sizeof port, ":%u", serve_port(s->serve));
    struct serve_options o = {.port = serve_port(s->serve), .model_name = "tiny"};
    assert_int_equal(serve_open(&second, &s->engine, s->front, &o, &s->d0, &e), ERR_BUSY);
    assert_null(second);
    assert_non_null(strstr(e.message, port));
    stop(s);
}

static void orderly_stop(void **state)
{
    (void)state;
    for (int patient = 0; patient < 2; patient++) {
        struct server *s = new_server(usual);
        struct http_client *c = client_open();
        struct err e = {0};
        struct stream st[3] = {0};
        start(s, (struct serve_options){.drain_ns = patient ? 20ull * S : 200000000u});
        s->engine.step_ns = 10000000;
        add_streams(
            s, c, st, 3,
            "{\"model\":\"tiny\",\"prompt\":\"a\",\"max_tokens\":100,\"stream\":true,\"ignore_eos\":true}",
            0);
        for (int i = 0; i < 500 && (st[0].n_events == 0 || st[2].n_events == 0); i++)
            http_client_poll(c, 10000000, &e);
        serve_stop(s->serve);
        client_run(c);
        for (int i = 0; i < 3; i++) {
            if (!st[i].done)
                fail_msg("stream %d of %d: %s", i, patient, st[i].why);
            assert_string_equal(st[i].finish, patient ? "length" : "");
            assert_string_equal(st[i].code, patient ? "" : "stopping");
            stream_release(&st[i]);
        }
        join(s);
        http_client_close(c);
        stop(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completion_and_chat),
        cmocka_unit_test(streams_equal_answers),
        cmocka_unit_test(calls_and_reasoning),
        cmocka_unit_test(reasoning_from_the_prompt),
        cmocka_unit_test(marker_behind_half_a_character),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(stop_ends_the_work),
        cmocka_unit_test(stop_text_alone),
        cmocka_unit_test(whole_characters),
        cmocka_unit_test(log_probabilities),
        cmocka_unit_test(refusals),
        cmocka_unit_test(pages_of_the_service),
        cmocka_unit_test(failures_cost_their_requests_only),
        cmocka_unit_test(silent_engine_is_unhealthy),
        cmocka_unit_test(two_hundred_streams),
        cmocka_unit_test(clients_that_leave),
        cmocka_unit_test(kept_states),
        cmocka_unit_test(full_queue),
        cmocka_unit_test(pings_while_waiting),
        cmocka_unit_test(port_in_use),
        cmocka_unit_test(orderly_stop),
    };
    return cmocka_run_group_tests_name("serve", tests, NULL, NULL);
}
