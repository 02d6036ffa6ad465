/* SPDX-License-Identifier: Apache-2.0 */
#include "picture_chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define S 1000000000ull

/* ---- the server ---- */

struct server *picture_server(enum picture_kind kind, struct serve_options serve,
                              struct session_options session)
{
    struct server *s = server_new();
    session.context = session.context ? session.context : 512;
    picture_model_write_long(s->dir, kind, session.context);
    session.max_seqs = 16;
    session.max_tokens = session.max_tokens ? session.max_tokens : 64;
    server_start(s, session, serve);
    return s;
}

void picture_server_stop(struct server *s)
{
    picture_model_remove(s->dir);
    server_stop(s);
}

void all_is_free(const struct server *s)
{
    server_idles(s);
    assert_true(
        metric_becomes(s->base, "day0_feature_rows_free", metric(s->base, "day0_feature_rows_total")));
    assert_true(metric_becomes(s->base, "day0_images_waiting", 0));
    assert_true(metric_becomes(s->base, "day0_image_held_bytes", 0));
}

/* ---- content ---- */

void put_content(struct strbuf *out, const uint64_t *seeds, const char *text)
{
    strbuf_clear(out);
    for (; *seeds; seeds++) {
        strbuf_puts(out, out->len ? "," : "");
        picture_part(out, 16, 24, *seeds);
    }
    if (text)
        strbuf_printf(out, "%s" TEXT_PART("%s"), out->len ? "," : "", text);
    assert_false(strbuf_failed(out));
}

/* ---- answers ---- */

void answer_release(struct answer *a)
{
    strbuf_release(&a->text);
    strbuf_release(&a->logprobs);
    memset(a, 0, sizeof *a);
}

static void copy(char *to, size_t cap, const struct json *v)
{
    snprintf(to, cap, "%s", json_string(v) ? json_string(v) : "");
}

static void read_answer(struct answer *a, const struct json *v)
{
    static const char *const names[] = {"prompt_s",  "images_s", "queue_s", "vision_s",
                                        "prefill_s", "decode_s", "total_s"};
    const struct json *choice = json_at(json_get(v, "choices"), 0), *message = json_get(choice, "message"),
                      *usage = json_get(v, "usage"), *error = json_get(v, "error"),
                      *scored = json_get(json_get(choice, "logprobs"), "content");
    const struct json *text = json_get(message ? message : json_get(choice, "delta"), "content");
    if (json_string(text))
        strbuf_add(&a->text, text->as.string, text->n);
    for (uint32_t i = 0; scored && i < scored->n; i++) {
        struct json_writer w;
        json_writer_init(&w, &a->logprobs, false);
        json_write_tree(&w, json_get(json_at(scored, i), "logprob"));
        strbuf_putc(&a->logprobs, ' ');
    }
    const struct json *ids = json_get(choice, "token_ids");
    for (uint32_t i = 0; ids && i < ids->n && a->n_ids < ARRAY_LEN(a->ids); i++) {
        int64_t id = -1;
        json_i64(json_at(ids, i), &id);
        a->ids[a->n_ids++] = (int32_t)id;
    }
    json_i64(json_get(usage, "prompt_tokens"), &a->prompt);
    json_i64(json_get(json_get(usage, "prompt_tokens_details"), "image_tokens"), &a->images);
    json_i64(json_get(json_get(usage, "prompt_tokens_details"), "cached_tokens"), &a->cached);
    for (size_t i = 0; json_get(v, "day0_timings") && i < ARRAY_LEN(names); i++) {
        a->timings[i] = -1;
        json_f64(json_get(json_get(v, "day0_timings"), names[i]), &a->timings[i]);
    }
    if (error == NULL)
        return;
    copy(a->param, sizeof a->param, json_get(error, "param"));
    copy(a->code, sizeof a->code, json_get(error, "code"));
    copy(a->message, sizeof a->message, json_get(error, "message"));
}

static void read_text(struct answer *a, const char *text, size_t n)
{
    struct arena arena;
    const struct json *v = NULL;
    struct err e = {0};
    arena_init(&arena, NULL, MEM_MISC);
    if (json_parse(text, n, NULL, &arena, &v, &e))
        fail_msg("%s: %.200s", e.message, text);
    read_answer(a, v);
    arena_release(&arena);
}

static bool on_event(void *user, const struct sse_event *ev)
{
    struct answer *a = user;
    if (strcmp(ev->data, "[DONE]") == 0) {
        a->done = true;
        return true;
    }
    read_text(a, ev->data, ev->n);
    a->n_events++;
    return a->leave_after == 0 || a->n_events < a->leave_after;
}

static void on_done(void *user, struct http_response *r, const struct err *failure)
{
    struct answer *a = user;
    (void)failure;
    a->status = r ? r->status : 0;
}

/* ---- asking ---- */

/* A chat with this body; url: room for its address. */
static struct http_request chat(const struct server *s, char url[128], const char *body, size_t n)
{
    snprintf(url, 128, "%s/v1/chat/completions", s->base);
    return (struct http_request){.url = url, .body = body, .body_bytes = n, .timeout_ns = 100 * S};
}

static void put_body(struct strbuf *b, const char *content, const char *more)
{
    strbuf_puts(b, "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":[");
    strbuf_puts(b, content);
    strbuf_printf(b, "]}],\"temperature\":0,\"ignore_eos\":true,\"logprobs\":true,\"day0_timings\":true%s%s}",
                  strstr(more, "max_tokens") ? "" : ",\"max_tokens\":8", more);
    assert_false(strbuf_failed(b));
}

static int fetch(const struct server *s, const char *body, size_t n, bool stream, struct answer *a)
{
    char url[128];
    struct http_request q = chat(s, url, body, n);
    struct http_response r = {0};
    struct err e = {0};
    answer_release(a);
    if (http_fetch(&q, stream ? on_event : NULL, a, &r, &e))
        fail_msg("%s", e.message);
    if (!stream || r.status != 200)
        read_text(a, strbuf_cstr(&r.body), r.body.len);
    a->status = r.status;
    http_response_release(&r);
    return a->status;
}

int post(const struct server *s, const char *body, size_t n, struct answer *a)
{
    return fetch(s, body, n, false, a);
}

int ask(const struct server *s, const char *content, const char *more, struct answer *a)
{
    struct strbuf body = STRBUF_INIT;
    put_body(&body, content, more);
    int status = fetch(s, body.data, body.len, strstr(more, "stream") != NULL, a);
    strbuf_release(&body);
    return status;
}

struct http_transfer *ask_along(const struct server *s, struct http_client *c, const char *content,
                                const char *more, struct answer *a)
{
    char url[128];
    struct strbuf body = STRBUF_INIT;
    struct http_handlers h = {.on_event = on_event, .on_done = on_done};
    struct http_transfer *t = NULL;
    struct err e = {0};
    put_body(&body, content, more);
    struct http_request q = chat(s, url, body.data, body.len);
    if (http_client_add(c, &q, &h, a, &t, &e))
        fail_msg("%s", e.message);
    strbuf_release(&body);
    return t;
}
