/* SPDX-License-Identifier: Apache-2.0
 *
 * From an HTTP request to an answer or a live request: paths, and who reads a body. Every refusal is an error
 * in OpenAI's shape with the right status, before the engine hears of it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "serve/serve_impl.h"

void reply_json(struct http_exchange *x, int status, const struct strbuf *body)
{
    static const char oom[] = "{\"error\":{\"message\":\"out of "
                              "memory\",\"type\":\"server_error\",\"param\":null,\"code\":\"internal\"}}";
    if (strbuf_failed(body))
        http_reply(x, 500, "application/json", oom, sizeof oom - 1);
    else
        http_reply(x, status, "application/json", strbuf_cstr(body), body->len);
}

void reply_error(struct http_exchange *x, const struct api_error *err)
{
    struct strbuf body = STRBUF_INIT;
    write_error(&body, err);
    reply_json(x, err->status, &body);
    strbuf_release(&body);
}

static void refuse(struct serve *s, struct http_exchange *x, const struct api_error *err)
{
    s->metrics.outcomes[err->status == 429   ? OUTCOME_QUEUE_FULL
                        : err->status == 503 ? OUTCOME_NOT_READY
                        : err->status >= 500 ? OUTCOME_FAILED
                                             : OUTCOME_BAD_REQUEST]++;
    if (err->status == 429 || err->status == 503)
        http_add_header(x, "Retry-After", "1");
    reply_error(x, err);
}

/* ---- generations ---- */

/* A body from here on is read on a thread of the pool: parsing it would hold up every stream. */
#define READ_BESIDE (256u << 10)

/* A large body that is being read. Belongs to the thread of the pool between picture_pool_call and its
 * return, but for `exchange`, which is the loop's throughout. */
struct body_reading {
    struct pool_call call; /* first */
    struct serve *serve;
    struct http_exchange *exchange; /* NULL: its client is gone */
    enum endpoint endpoint;
    struct strbuf body;
    struct request_input in;
    struct api_error err;
};

static void read_body(struct pool_call *call)
{
    struct body_reading *r = (struct body_reading *)call;
    input_read(r->serve, r->endpoint, strbuf_cstr(&r->body), r->body.len, &r->in, &r->err);
    strbuf_release(&r->body);
}

static void drop_reading(struct pool_call *call)
{
    struct body_reading *r = (struct body_reading *)call;
    input_release(&r->in);
    strbuf_release(&r->body);
    free(r);
}

static void on_reader_gone(struct http_exchange *x, void *user)
{
    struct body_reading *r = user;
    struct serve *s = r->serve;
    (void)x;
    r->exchange = NULL;
    s->metrics.outcomes[OUTCOME_CLIENT_GONE]++;
    s->n_reading -= picture_pool_uncall(s->pool, &r->call);
}

static void refuse_reading(struct serve *s, struct http_exchange *x, const struct err *e)
{
    struct api_error err;
    if (e->code == ERR_BUSY)
        api_error(&err, 429, "queue_full", NULL, "%s", e->message);
    else if (e->code == ERR_LIMIT)
        api_error(&err, 400, "invalid_value", "messages", "%s", e->message);
    else
        api_error(&err, 500, "internal", NULL, "%s", e->message);
    refuse(s, x, &err);
}

/* Takes over what was read: the second half, then a live request. */
static void go_on(struct serve *s, struct http_exchange *x, struct request_input *in, struct api_error *err)
{
    if (err->status == 0)
        input_place(s, in, err);
    if (err->status)
        refuse(s, x, err);
    else
        request_start(s, x, in);
    input_release(in);
}

void reading_returned(struct serve *s, struct pool_call *call)
{
    struct body_reading *r = (struct body_reading *)call;
    s->n_reading--;
    if (r->exchange && s->stopping)
        api_error(&r->err, 503, "stopping", NULL, "the server is stopping");
    if (r->exchange)
        go_on(s, r->exchange, &r->in, &r->err);
    drop_reading(call);
}

static void read_beside(struct serve *s, struct http_exchange *x, enum endpoint endpoint, uint64_t now)
{
    struct body_reading *r = calloc(1, sizeof *r);
    struct err e = {0};
    if (r == NULL) {
        err_set(&e, ERR_NOMEM, "out of memory");
        refuse_reading(s, x, &e);
        return;
    }
    *r = (struct body_reading){
        .call = {.run = read_body, .drop = drop_reading}, .serve = s, .exchange = x, .endpoint = endpoint};
    input_init(&r->in, s, now);
    http_take_body(x, &r->body);
    if (s->n_live + s->n_reading >= s->max_live)
        err_set(&e, ERR_BUSY, "%u requests are waiting or running, try again later", s->n_live);
    else
        picture_pool_call(s->pool, &r->call, r->body.len, &e);
    if (e.code) {
        drop_reading(&r->call);
        refuse_reading(s, x, &e);
        return;
    }
    s->n_reading++;
    http_set_user(x, r);
    http_on_close(x, on_reader_gone);
}

static void generate(struct serve *s, struct http_exchange *x, enum endpoint endpoint)
{
    struct request_input in;
    struct api_error err = {0};
    char reason[320];
    const char *why = not_ready(s, reason, sizeof reason);
    uint64_t now = clock_ns();
    size_t n;
    const char *body = http_body(x, &n);
    if (why) {
        api_error(&err, 503, "not_ready", NULL, "not ready: %s", why);
        refuse(s, x, &err);
        return;
    }
    if (s->pool && n >= READ_BESIDE) {
        read_beside(s, x, endpoint, now);
        return;
    }
    input_init(&in, s, now);
    input_read(s, endpoint, body, n, &in, &err);
    go_on(s, x, &in, &err);
}

/* ---- paths ---- */

static void get_models(struct serve *s, struct http_exchange *x, const char *name)
{
    struct strbuf body = STRBUF_INIT;
    struct api_error err;
    if (name && strcmp(name, s->model_name) != 0) {
        api_error(&err, 404, "model_not_found", "model",
                  "the model \"%.200s\" does not exist; this server has \"%.200s\"", name, s->model_name);
        reply_error(x, &err);
        return;
    }
    write_models(&body, s, name == NULL);
    reply_json(x, 200, &body);
    strbuf_release(&body);
}

static void get_page(struct serve *s, struct http_exchange *x, const char *path)
{
    struct strbuf body = STRBUF_INIT;
    if (strcmp(path, "/health") == 0) {
        int status = write_health(&body, s);
        reply_json(x, status, &body);
    } else if (strcmp(path, "/metrics") == 0) {
        write_metrics(&body, s);
        http_reply(x, strbuf_failed(&body) ? 500 : 200, "text/plain; version=0.0.4; charset=utf-8",
                   strbuf_cstr(&body), body.len);
    } else {
        write_page(&body, s);
        http_reply(x, 200, "text/html; charset=utf-8", strbuf_cstr(&body), body.len);
    }
    strbuf_release(&body);
}

static void wrong_method(struct http_exchange *x, const char *allowed)
{
    struct api_error err;
    api_error(&err, 405, "method_not_allowed", NULL, "%.40s takes %s, not %.20s", http_path(x), allowed,
              http_method(x));
    http_add_header(x, "Allow", allowed);
    reply_error(x, &err);
}

void serve_handle(struct http_exchange *x, void *user)
{
    struct serve *s = user;
    struct api_error err;
    const char *path = http_path(x), *method = http_method(x);
    static const char models[] = "/v1/models/";
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0, post = strcmp(method, "POST") == 0;
    bool completions = strcmp(path, "/v1/completions") == 0, chat = strcmp(path, "/v1/chat/completions") == 0;
    bool one = str_starts(path, models) && path[sizeof models - 1] != '\0',
         list = strcmp(path, "/v1/models") == 0;
    bool page = strcmp(path, "/") == 0 || strcmp(path, "/health") == 0 || strcmp(path, "/metrics") == 0;
    if (completions || chat) {
        if (post)
            generate(s, x, chat ? ENDPOINT_CHAT : ENDPOINT_COMPLETIONS);
        else
            wrong_method(x, "POST");
    } else if (one || list || page) {
        if (!get)
            wrong_method(x, "GET");
        else if (page)
            get_page(s, x, path);
        else
            get_models(s, x, one ? path + sizeof models - 1 : NULL);
    } else {
        api_error(&err, 404, "not_found", NULL, "there is nothing at %.200s", path);
        reply_error(x, &err);
    }
}
