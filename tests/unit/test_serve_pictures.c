/* SPDX-License-Identifier: Apache-2.0
 *
 * Pictures over HTTP, from data: URLs to the tower and back, on a small random model that is opened as
 * `day0 serve` opens one. A picture changes the answer; the same request has the same log-probabilities
 * alone, in a crowd and behind a cached prefix; a prefix with another picture is no hit; what is wrong is
 * refused and names its part; clients that leave give pages, rows of features and memory back.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/api.h"
#include "base/hash.h"
#include "base/thread.h"
#include "net/net.h"
#include "oracle/oracle.h"
#include "picture_model.h"
#include "serve/serve.h"

#define S       1000000000u
#define CROWD   50
#define LETTERS "the hello and singing all the bell and the inn that he and the hands sing"

/* ---- the server ---- */

struct server {
    struct d0 d0;
    struct session session;
    struct serve *serve;
    pthread_t thread;
    char base[64], dir[64];
    double pages, rows; /* free when nothing runs */
};

static void *run_server(void *arg)
{
    serve_run(((struct server *)arg)->serve, NULL);
    return NULL;
}

/* One number of /metrics; -1: it is not there. */
static double metric(const struct server *s, const char *name)
{
    char url[128], line[128];
    struct http_response r = {0};
    struct err e = {0};
    snprintf(url, sizeof url, "%s/metrics", s->base);
    if (http_fetch(&(struct http_request){.url = url, .timeout_ns = 10ull * S}, NULL, NULL, &r, &e))
        fail_msg("%s", e.message);
    snprintf(line, sizeof line, "\n%s ", name);
    strbuf_putc(&r.body, '\0');
    const char *hit = strstr(r.body.data, line);
    double v = hit ? strtod(hit + strlen(line), NULL) : -1;
    http_response_release(&r);
    return v;
}

static bool becomes(const struct server *s, const char *name, double want)
{
    for (int i = 0; i < 500; i++) {
        if (metric(s, name) == want)
            return true;
        clock_sleep_ns(10000000);
    }
    return false;
}

static struct server *start_kind(enum picture_kind kind, struct serve_options o, struct session_options so)
{
    struct server *s = calloc(1, sizeof *s);
    struct findings f;
    struct err e = {0};
    assert_non_null(s);
    s->d0.log.fd = -1;
    strcpy(s->dir, "/tmp/day0-pictures-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    picture_model_write(s->dir, kind);
    findings_init(&f, &s->d0.mem);
    so.model_dir = s->dir;
    so.n_threads = 2;
    so.max_seqs = 16;
    so.max_tokens = so.max_tokens ? so.max_tokens : 64;
    so.memory_bytes = 1u << 30;
    if (session_open(&s->session, &so, &f, &s->d0, &e))
        fail_msg("%s", e.message);
    findings_release(&f);
    o.model_name = "tiny";
    if (serve_open(&s->serve, s->session.engine, s->session.front, &o, &s->d0, &e))
        fail_msg("%s", e.message);
    snprintf(s->base, sizeof s->base, "http://127.0.0.1:%u", serve_port(s->serve));
    assert_int_equal(pthread_create(&s->thread, NULL, run_server, s), 0);
    assert_true(becomes(s, "day0_ready", 1));
    assert_true(becomes(s, "day0_kv_pages_free", metric(s, "day0_kv_pages_total")));
    s->pages = metric(s, "day0_kv_pages_free");
    s->rows = metric(s, "day0_feature_rows_free");
    return s;
}

static struct server *start(struct serve_options o, struct session_options so)
{
    return start_kind(PICTURE_QWEN, o, so);
}

static void stop(struct server *s)
{
    serve_stop(s->serve);
    pthread_join(s->thread, NULL);
    serve_close(s->serve);
    assert_int_equal(atomic_load(&s->d0.mem.live[MEM_REQUEST]), 0);
    session_close(&s->session);
    picture_model_remove(s->dir);
    free(s);
}

/* Nothing runs any more, and nothing is kept but cached pages, which are free. */
static void all_is_free(const struct server *s)
{
    assert_true(becomes(s, "day0_requests_open", 0));
    assert_true(becomes(s, "day0_requests_running", 0));
    assert_true(becomes(s, "day0_requests_waiting", 0));
    assert_true(becomes(s, "day0_kv_pages_free", s->pages));
    assert_true(becomes(s, "day0_feature_rows_free", s->rows));
    assert_true(becomes(s, "day0_images_waiting", 0));
    assert_true(becomes(s, "day0_image_held_bytes", 0));
}

/* ---- requests ---- */

struct answer {
    int status;
    struct strbuf text, logprobs;
    char param[64], code[64], message[512];
    int32_t ids[16]; /* generated */
    size_t n_ids;
    int64_t prompt, images, cached;
    double timings[7]; /* prompt, images, queue, vision, prefill, decode, total; -1: not there */
    int leave_after, n_events;
    bool done;
};

static void release(struct answer *a)
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

/* content: parts, joined by commas. */
static void put_body(struct strbuf *b, const char *content, const char *more)
{
    strbuf_printf(b, "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":[");
    strbuf_puts(b, content);
    strbuf_printf(b,
                  "]}],\"temperature\":0,\"max_tokens\":8,\"ignore_eos\":true,\"logprobs\":true,"
                  "\"day0_timings\":true%s}",
                  more);
}

static int ask(const struct server *s, const char *content, const char *more, struct answer *a)
{
    char url[128];
    struct strbuf body = STRBUF_INIT;
    struct http_response r = {0};
    struct err e = {0};
    bool stream = strstr(more, "stream") != NULL;
    snprintf(url, sizeof url, "%s/v1/chat/completions", s->base);
    put_body(&body, content, more);
    struct http_request q = {.url = url, .body = body.data, .body_bytes = body.len, .timeout_ns = 60ull * S};
    release(a);
    if (http_fetch(&q, stream ? on_event : NULL, a, &r, &e))
        fail_msg("%s", e.message);
    a->status = r.status;
    if (!stream || r.status != 200)
        read_text(a, strbuf_cstr(&r.body), r.body.len);
    http_response_release(&r);
    strbuf_release(&body);
    return a->status;
}

static const char *text_part(const char *text)
{
    static char part[8][512]; /* as many in one expression */
    static unsigned next;
    char *p = part[next++ % 8];
    snprintf(p, sizeof part[0], "{\"type\":\"text\",\"text\":\"%s\"}", text);
    return p;
}

/* Pictures of 16 x 24 pixels (6 rows) before a text; seed 0 ends the list. */
static void content(struct strbuf *b, const uint64_t *seeds, const char *text)
{
    strbuf_clear(b);
    for (; *seeds; seeds++) {
        strbuf_puts(b, b->len ? "," : "");
        picture_part(b, 16, 24, *seeds);
    }
    if (text)
        strbuf_printf(b, "%s%s", b->len ? "," : "", text_part(text));
    assert_false(strbuf_failed(b));
}
#define SEEDS(...)                                                                                           \
    (const uint64_t[])                                                                                       \
    {                                                                                                        \
        __VA_ARGS__, 0                                                                                       \
    }

/* ---- tests ---- */

static void pictures_change_answers(void **state)
{
    (void)state;
    struct server *s = start((struct serve_options){0}, (struct session_options){0});
    struct strbuf b = STRBUF_INIT;
    struct answer none = {0}, one = {0}, again = {0}, other = {0}, two = {0}, swapped = {0}, only = {0};
    content(&b, SEEDS(0), "hello and");
    assert_int_equal(ask(s, b.data, "", &none), 200);
    content(&b, SEEDS(1), "hello and");
    if (ask(s, b.data, "", &one) != 200)
        fail_msg("%s", one.message);
    assert_int_equal(one.images, 6);
    assert_int_equal(one.prompt, none.prompt + 6 + 2); /* rows, begin and end */
    assert_int_equal(ask(s, b.data, "", &again), 200);
    assert_string_equal(one.logprobs.data, again.logprobs.data);
    assert_string_equal(one.text.data, again.text.data);
    content(&b, SEEDS(2), "hello and");
    assert_int_equal(ask(s, b.data, "", &other), 200);
    assert_string_not_equal(one.logprobs.data, other.logprobs.data);
    assert_string_not_equal(one.logprobs.data, none.logprobs.data);
    content(&b, SEEDS(1, 2), "hello and");
    assert_int_equal(ask(s, b.data, "", &two), 200);
    assert_int_equal(two.images, 12);
    content(&b, SEEDS(2, 1), "hello and");
    assert_int_equal(ask(s, b.data, "", &swapped), 200);
    assert_string_not_equal(two.logprobs.data, swapped.logprobs.data);
    content(&b, SEEDS(3), NULL);
    assert_int_equal(ask(s, b.data, "", &only), 200);
    assert_int_equal(only.prompt, 6 + 2);
    /* the same answer as a stream */
    content(&b, SEEDS(1, 2), "hello and");
    assert_int_equal(ask(s, b.data, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}", &again),
                     200);
    assert_true(again.done);
    assert_string_equal(again.logprobs.data, two.logprobs.data);
    assert_int_equal(again.images, 12);
    all_is_free(s);
    struct answer *all[] = {&none, &one, &again, &other, &two, &swapped, &only};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        release(all[i]);
    strbuf_release(&b);
    stop(s);
}

/* ---- the same on another way: the tower and the text as graphs, each run once ---- */

struct oracle_run {
    struct oracle_model model;
    struct dev dev;
    struct arena arena;
    float *features[SPEC_MAX_FEATURES]; /* [rows, hidden] of all pictures */
    size_t n_rows, hidden;
};

static void *room(struct oracle_run *o, size_t n)
{
    void *p = arena_alloc_n(&o->arena, n, 4);
    assert_non_null(p);
    return p;
}

static void run_tower(struct oracle_run *o, const struct prompt_front *front, const struct prompt_picture *q)
{
    const struct spec *s = o->model.spec;
    struct prompt_pixels x = {0};
    struct oracle_input in[PROMPT_MAX_INPUTS];
    struct oracle_output out[SPEC_MAX_FEATURES];
    struct err e = {0};
    if (prompt_picture_make(front, q, NULL, &o->arena, &x, &e))
        fail_msg("%s", e.message);
    for (uint32_t i = 0; i < x.n_inputs; i++)
        in[i] = (struct oracle_input){x.inputs[i].role, x.inputs[i].data,
                                      4 * (uint64_t)x.inputs[i].width * x.inputs[i].rows};
    for (uint32_t i = 0; i < s->tower.n_features; i++)
        out[i] = (struct oracle_output){s->tower.features[i], o->features[i] + o->n_rows * o->hidden,
                                        4 * x.n_rows * o->hidden};
    const int64_t dims[D0_N_DIMS] = {(int64_t)x.n_patches, 1, x.n_rows, 1};
    if (oracle_once(&o->model, s->vision, dims, in, x.n_inputs, out, s->tower.n_features, &e))
        fail_msg("%s", e.message);
    o->n_rows += x.n_rows;
}

/* Places and rows of these tokens, of Qwen by the grids; and the runs of placeholders. */
static void lay_tokens(struct oracle_run *o, enum picture_kind kind, const int32_t *ids, size_t n,
                       const struct image_grid *grids, int32_t *places, int32_t *from, int32_t *spans)
{
    struct err e = {0};
    int32_t next = 0;
    for (size_t i = 0; i < n; i++) {
        const bool placeholder = ids[i] == PICTURE_TOKEN,
                   on = placeholder && i && ids[i - 1] == PICTURE_TOKEN;
        for (size_t k = 0; k < 3; k++)
            places[3 * i + k] = (int32_t)i;
        from[i] = placeholder ? next++ : -1;
        spans[2 * i] = on ? spans[2 * i - 2] : (int32_t)i;
        for (size_t k = (size_t)spans[2 * i]; k <= i; k++)
            spans[2 * k + 1] = (int32_t)i + 1;
    }
    if (kind == PICTURE_QWEN && prompt_places(&o->model.spec->tower, ids, n, grids, 2, places, from, &e))
        fail_msg("%s", e.message);
}

/* [n, vocab] for these tokens. */
static float *run_text(struct oracle_run *o, enum picture_kind kind, const int32_t *ids, size_t n,
                       const struct image_grid *grids)
{
    const struct spec *s = o->model.spec;
    const size_t vocab = (size_t)s->vocab_size, pages = (n + s->page_tokens - 1) / s->page_tokens;
    int32_t *counted = room(o, n), *zeros = room(o, n), *places = room(o, 3 * n), *from = room(o, n),
            *spans = room(o, 2 * n);
    float *logits = room(o, n * vocab);
    struct err e = {0};
    lay_tokens(o, kind, ids, n, grids, places, from, spans);
    memset(zeros, 0, 4 * n);
    for (size_t i = 0; i < n; i++)
        counted[i] = (int32_t)i;
    struct oracle_input in[9 + SPEC_MAX_FEATURES] = {
        {D0_INPUT_IDS, ids, 4 * n},        {D0_INPUT_POSITIONS, counted, 4 * n},
        {D0_INPUT_SEQ_OF, zeros, 4 * n},   {D0_INPUT_PAGE_TABLE, counted, 4 * pages},
        {D0_INPUT_ROWS, counted, 4 * n},   {D0_INPUT_SLOTS, zeros, 4},
        {D0_INPUT_PLACES, places, 12 * n}, {D0_INPUT_FEATURE_OF, from, 4 * n},
        {D0_INPUT_SPANS, spans, 8 * n}};
    for (uint32_t i = 0; i < s->tower.n_features; i++)
        in[9 + i] = (struct oracle_input){D0_INPUT_FEATURES, o->features[i], 4 * o->n_rows * o->hidden};
    const int64_t dims[D0_N_DIMS] = {(int64_t)n, 1, (int64_t)n, (int64_t)pages};
    const struct oracle_output out = {graph_result(s->graph), logits, 4 * n * vocab};
    if (oracle_once(&o->model, s->graph, dims, in, 9 + s->tower.n_features, &out, 1, &e))
        fail_msg("%s", e.message);
    return logits;
}

static double logprob(const float *logits, size_t vocab, int32_t id)
{
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < vocab; i++)
        most = fmax(most, (double)logits[i]);
    for (size_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - most);
    return (double)logits[id] - most - log(sum);
}

/* Two pictures of different shapes among text: every token that the service gave has the log-probability that
 * the graphs give it, and is the most probable one. So pictures, rows, places, and the places of generated
 * tokens are right, not only alike each time. */
static void as_the_graphs_of(enum picture_kind kind)
{
    struct server *s = start_kind(kind, (struct serve_options){0}, (struct session_options){0});
    struct strbuf b = STRBUF_INIT, messages = STRBUF_INIT;
    struct oracle_run o = {.hidden = (size_t)s->session.spec->hidden};
    struct prompt_pictures pictures;
    struct answer a = {0};
    struct ids ids = {0};
    struct err e = {0};
    const struct json *tree = NULL;
    strbuf_printf(&b, "%s,", text_part("he"));
    picture_part(&b, 40, 16, 1);
    strbuf_printf(&b, ",%s,", text_part("and the"));
    picture_part(&b, 16, 24, 2);
    assert_int_equal(ask(s, b.data, ",\"return_token_ids\":true", &a), 200);
    assert_int_equal(a.n_ids, 8);
    arena_init(&o.arena, NULL, MEM_MISC);
    strbuf_printf(&messages, "[{\"role\":\"user\",\"content\":[");
    strbuf_add(&messages, b.data, b.len);
    strbuf_puts(&messages, "]}]");
    assert_int_equal(json_parse(messages.data, messages.len, NULL, &o.arena, &tree, &e), 0);
    const struct prompt_front *front = s->session.front;
    if (prompt_pictures_read(front, tree, &(struct prompt_picture_options){0}, &o.arena, &pictures, &e) ||
        prompt_chat(front, &(struct prompt_chat){.messages = pictures.messages, .pictures = &pictures}, NULL,
                    &ids, &e))
        fail_msg("%s", e.message);
    assert_int_equal(ids.n, a.prompt);
    assert_int_equal(dev_open(&o.dev, &(struct dev_options){.name = "cpu", .n_threads = 1}, &e), 0);
    o.model =
        (struct oracle_model){.dev = &o.dev, .spec = s->session.spec, .ckpt = s->session.ckpt, .d0 = &s->d0};
    for (uint32_t i = 0; i < s->session.spec->tower.n_features; i++)
        o.features[i] = room(&o, 32 * o.hidden);
    const struct image_grid grids[2] = {pictures.list[0].grids[0], pictures.list[1].grids[0]};
    run_tower(&o, front, &pictures.list[0]);
    run_tower(&o, front, &pictures.list[1]);
    assert_int_equal(o.n_rows, a.images);
    size_t n = ids.n + a.n_ids, vocab = (size_t)s->session.spec->vocab_size;
    int32_t *all = room(&o, n);
    memcpy(all, ids.data, ids.n * 4);
    memcpy(all + ids.n, a.ids, a.n_ids * 4);
    const float *logits = run_text(&o, kind, all, n, grids);
    char *at = a.logprobs.data;
    for (size_t i = 0; i < a.n_ids; i++) {
        double given = strtod(at, &at), want = logprob(logits + (ids.n + i - 1) * vocab, vocab, a.ids[i]);
        if (!(fabs(given - want) < 1e-4))
            fail_msg("token %zu: %g, the graphs give %g", i, given, want);
    }
    dev_close(&o.dev);
    ids_release(&ids);
    arena_release(&o.arena);
    release(&a);
    strbuf_release(&b);
    strbuf_release(&messages);
    stop(s);
}

static void as_the_graphs_say(void **state)
{
    (void)state;
    as_the_graphs_of(PICTURE_QWEN);
    as_the_graphs_of(PICTURE_LLAVA);
    as_the_graphs_of(PICTURE_GEMMA);
}

/* Segments follow each other without a gap, in the answer and in the metrics. */
static void times_are_told(void **state)
{
    (void)state;
    struct server *s = start((struct serve_options){0}, (struct session_options){0});
    struct strbuf b = STRBUF_INIT;
    struct answer a = {0};
    content(&b, SEEDS(1, 2, 3), "all");
    for (int stream = 0; stream < 2; stream++) {
        assert_int_equal(ask(s, b.data, stream ? ",\"stream\":true" : "", &a), 200);
        double sum = 0;
        for (size_t i = 0; i < 6; i++) {
            assert_true(a.timings[i] >= 0);
            sum += a.timings[i];
        }
        assert_true(a.timings[1] > 0 && a.timings[3] > 0 && a.timings[4] > 0);
        assert_true(sum > 0.999999 * a.timings[6] && sum < 1.000001 * a.timings[6]);
    }
    content(&b, SEEDS(0), "all");
    assert_int_equal(ask(s, b.data, "", &a), 200);
    assert_true(a.timings[1] == -1 && a.timings[3] == -1);
    double sum = a.timings[0] + a.timings[2] + a.timings[4] + a.timings[5];
    assert_true(sum > 0.999999 * a.timings[6] && sum < 1.000001 * a.timings[6]);
    assert_true(metric(s, "day0_images_total") == 6);
    assert_true(metric(s, "day0_images_encoded_total") == 6);
    assert_true(metric(s, "day0_image_decode_seconds_count") == 6);
    assert_true(metric(s, "day0_image_preprocess_seconds_count") == 6);
    assert_true(metric(s, "day0_image_encode_seconds_count") == 6);
    assert_true(metric(s, "day0_images_seconds_count") == 2);
    assert_true(metric(s, "day0_vision_seconds_count") == 2);
    assert_true(metric(s, "day0_queue_seconds_count") == 3);
    assert_true(metric(s, "day0_prefill_seconds_count") == 3);
    double busy = metric(s, "day0_image_busy_seconds_total"),
           parts =
               metric(s, "day0_image_decode_seconds_sum") + metric(s, "day0_image_preprocess_seconds_sum");
    assert_true(busy >= 0.999999 * parts && parts > 0);
    assert_true(metric(s, "day0_prompt_seconds_count") == 3);
    assert_true(metric(s, "day0_vision_busy_seconds_total") > 0);
    release(&a);
    strbuf_release(&b);
    stop(s);
}

static void cached_prefixes(void **state)
{
    (void)state;
    struct server *s = start((struct serve_options){.prefix_cache = true}, (struct session_options){0}),
                  *plain = start((struct serve_options){0}, (struct session_options){0});
    struct strbuf b = STRBUF_INIT;
    struct answer first = {0}, hit = {0}, other = {0}, fresh = {0};
    content(&b, SEEDS(1, 2, 3), LETTERS);
    assert_int_equal(ask(s, b.data, "", &first), 200);
    assert_int_equal(first.cached, 0);
    assert_int_equal(ask(s, b.data, "", &hit), 200);
    assert_true(hit.cached >= 16);
    assert_string_equal(hit.logprobs.data, first.logprobs.data);
    assert_true(metric(s, "day0_images_cached_total") > 0);
    /* the ids are the same, the last picture is another: only what comes before it is found */
    content(&b, SEEDS(1, 2, 4), LETTERS);
    assert_int_equal(ask(s, b.data, "", &other), 200);
    assert_true(other.cached > 0 && other.cached < hit.cached);
    assert_string_not_equal(other.logprobs.data, first.logprobs.data);
    assert_int_equal(ask(plain, b.data, "", &fresh), 200);
    assert_int_equal(fresh.cached, 0);
    assert_string_equal(other.logprobs.data, fresh.logprobs.data);
    /* the first one is another */
    content(&b, SEEDS(4, 2, 3), LETTERS);
    assert_int_equal(ask(s, b.data, "", &other), 200);
    assert_int_equal(other.cached, 0);
    assert_int_equal(ask(plain, b.data, "", &fresh), 200);
    assert_string_equal(other.logprobs.data, fresh.logprobs.data);
    all_is_free(s);
    release(&first);
    release(&hit);
    release(&other);
    release(&fresh);
    strbuf_release(&b);
    stop(s);
    stop(plain);
}

static void add(const struct server *s, struct http_client *c, const char *content, const char *more,
                struct answer *a)
{
    char url[128];
    struct strbuf body = STRBUF_INIT;
    struct err e = {0};
    snprintf(url, sizeof url, "%s/v1/chat/completions", s->base);
    put_body(&body, content, more);
    struct http_request q = {.url = url, .body = body.data, .body_bytes = body.len, .timeout_ns = 100ull * S};
    struct http_handlers h = {.on_event = on_event, .on_done = on_done};
    if (http_client_add(c, &q, &h, a, NULL, &e))
        fail_msg("%s", e.message);
    strbuf_release(&body);
}

static void run_all(struct http_client *c)
{
    struct err e = {0};
    for (uint64_t end = clock_ns() + 100ull * S; http_client_active(c) > 0 && clock_ns() < end;)
        if (http_client_poll(c, 100000000, &e))
            fail_msg("%s", e.message);
    assert_int_equal(http_client_active(c), 0);
}

/* Request number i: of 10 kinds, with no, one or two pictures of different sizes. */
static void crowd_content(struct strbuf *b, int i)
{
    int kind = i % 10;
    strbuf_clear(b);
    for (int k = 0; k < kind % 3; k++) {
        picture_part(b, 8 + 8 * (uint32_t)kind, 40, (uint64_t)kind + 100 * (uint64_t)k + 1);
        strbuf_puts(b, ",");
    }
    strbuf_printf(b, "{\"type\":\"text\",\"text\":\"%.*s\"}", 5 + 3 * kind, LETTERS);
}

/* The same request alone and in a crowd, while every third client of the crowd leaves. */
static void alone_and_in_a_crowd(void **state)
{
    (void)state;
    struct server *s = start((struct serve_options){.prefix_cache = true, .picture_threads = 3},
                             (struct session_options){0});
    struct http_client *c;
    struct strbuf b = STRBUF_INIT;
    struct err e = {0};
    static const char stream[] = ",\"stream\":true,\"stream_options\":{\"include_usage\":true}";
    struct answer alone[10] = {0}, *many = calloc(CROWD, sizeof *many);
    assert_non_null(many);
    assert_int_equal(http_client_open(&c, &e), 0);
    for (int i = 0; i < 10; i++) {
        crowd_content(&b, i);
        add(s, c, b.data, stream, &alone[i]);
        run_all(c);
        assert_int_equal(alone[i].status, 200);
        assert_true(alone[i].done);
    }
    for (int i = 0; i < CROWD; i++) {
        many[i].leave_after = i % 3 == 2 ? 1 + i % 4 : 0;
        crowd_content(&b, i);
        add(s, c, b.data, stream, &many[i]);
    }
    run_all(c);
    for (int i = 0; i < CROWD; i++) {
        if (many[i].leave_after == 0) {
            assert_true(many[i].done);
            assert_string_equal(many[i].logprobs.data, alone[i % 10].logprobs.data);
            assert_int_equal(many[i].images, alone[i % 10].images);
        }
        release(&many[i]);
    }
    all_is_free(s);
    for (int i = 0; i < 10; i++)
        release(&alone[i]);
    free(many);
    strbuf_release(&b);
    http_client_close(c);
    stop(s);
}

static void on_nothing(void *user, struct http_response *r, const struct err *failure)
{
    (void)user, (void)r, (void)failure;
}

/* Clients that leave before their pictures are made: nothing is left of them. */
static void leaving_early(void **state)
{
    (void)state;
    struct server *s = start((struct serve_options){0}, (struct session_options){0});
    struct http_transfer *t[CROWD];
    struct http_client *c;
    struct strbuf b = STRBUF_INIT, body = STRBUF_INIT;
    struct answer a = {0};
    struct err e = {0};
    char url[128];
    snprintf(url, sizeof url, "%s/v1/chat/completions", s->base);
    assert_int_equal(http_client_open(&c, &e), 0);
    picture_part(&b, 600, 400, 7); /* takes a while to be made small */
    for (int i = 0; i < 3; i++) {
        strbuf_puts(&b, ",");
        picture_part(&b, 600, 400 + (uint32_t)i, 8 + (uint64_t)i);
    }
    put_body(&body, b.data, "");
    struct http_request q = {.url = url, .body = body.data, .body_bytes = body.len, .timeout_ns = 100ull * S};
    struct http_handlers h = {.on_done = on_nothing};
    for (int i = 0; i < CROWD; i++)
        if (http_client_add(c, &q, &h, NULL, &t[i], &e))
            fail_msg("%s", e.message);
    for (int i = 0; i < 1000 && metric(s, "day0_images_waiting") < 8; i++)
        assert_int_equal(http_client_poll(c, 20000000, &e), 0);
    for (int i = 0; i < CROWD; i++)
        http_client_cancel(c, t[i]);
    run_all(c);
    all_is_free(s);
    assert_true(metric(s, "day0_requests_total{outcome=\"client_gone\"}") > 0);
    assert_true(metric(s, "day0_images_total") > metric(s, "day0_image_decode_seconds_count"));
    content(&b, SEEDS(1), "hello");
    assert_int_equal(ask(s, b.data, "", &a), 200); /* and the service goes on */
    release(&a);
    strbuf_release(&b);
    strbuf_release(&body);
    http_client_close(c);
    stop(s);
}

#define URL(x) "{\"type\":\"image_url\",\"image_url\":{\"url\":\"" x "\"}}"

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *content, *part, *code, *word;
    } cases[] = {
        {URL("data:image/png;base64,iVBO*"), "messages[0].content[0]", "invalid_value", "base64"},
        {URL("data:image/png;base64,iVBORw"), "messages[0].content[0]", "invalid_value", "base64"},
        {URL("data:image/png;base64,AAAA"), "messages[0].content[0]", NULL, ""},
        {URL("data:image/png,abc"), "messages[0].content[0]", "invalid_value", "base64"},
        {URL("http://example.com/a.png"), "messages[0].content[0]", "unsupported", "fetches nothing"},
        {URL("https://example.com/a.png"), "messages[0].content[0]", "unsupported", "data:"},
        {URL("file:///etc/passwd"), "messages[0].content[0]", "unsupported", "fetches nothing"},
        {"{\"type\":\"image\",\"path\":\"/etc/passwd\"}", "messages[0].content[0]", "unsupported",
         "fetches nothing"},
        {"{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\"}", "messages[0].content[1]",
         "invalid_value", "url"},
        {"{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:,\",\"detail\":\"low\"}}",
         "messages[0].content[0]", "unsupported", "detail"},
        {"{\"type\":\"text\",\"text\":\"a\",\"image\":\"data:image/png;base64,AAAA\"}", "messages",
         "invalid_value", "no part is of type image"}, /* the template looks at the key alone */
        {"{\"type\":\"input_image\",\"image_url\":\"data:image/png;base64,AAAA\"}", NULL, "unsupported",
         "input_image"},
    };
    struct server *s =
        start((struct serve_options){.max_pictures = 2, .max_pixels = 10000, .max_body = 1u << 20},
              (struct session_options){0});
    struct strbuf b = STRBUF_INIT, png = STRBUF_INIT;
    struct answer a = {0};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (ask(s, cases[i].content, "", &a) != 400 ||
            (cases[i].code && strcmp(a.code, cases[i].code) != 0) ||
            (cases[i].part && strcmp(a.param, cases[i].part) != 0) || !strstr(a.message, cases[i].word))
            fail_msg("%s: status %d, code %s, param %s: %s", cases[i].content, a.status, a.code, a.param,
                     a.message);
    }
    /* cut short: its header is whole, so this is seen by a thread of the pool */
    picture_png(&png, 16, 16, 1);
    strbuf_puts(&b, "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\""
                    "data:image/png;base64,");
    picture_base64(&b, png.data, png.len / 2);
    strbuf_puts(&b, "\"}}");
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.param, "messages[0].content[1]");
    assert_string_equal(a.code, "invalid_value");
    assert_int_equal(ask(s, b.data, ",\"stream\":true", &a), 400);
    /* more pixels than are taken, more pictures, a larger body */
    strbuf_clear(&b);
    picture_part(&b, 101, 100, 1);
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.param, "messages[0].content[0]");
    content(&b, SEEDS(1, 2, 3), "a");
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.param, "messages[0].content[2]");
    assert_true(metric(s, "day0_images_failed_total") == 2); /* these were seen before */
    all_is_free(s);
    content(&b, SEEDS(1, 2), "a");
    assert_int_equal(ask(s, b.data, "", &a), 200);
    release(&a);
    strbuf_release(&png);
    strbuf_release(&b);
    stop(s);
}

/* What this server's tower and store cannot hold is refused before anything is decoded. */
static void too_large(void **state)
{
    (void)state;
    struct server *s =
        start((struct serve_options){0}, (struct session_options){.max_patches = 64, .n_feature_rows = 20});
    struct strbuf b = STRBUF_INIT;
    struct answer a = {0};
    picture_part(&b, 64, 64, 1); /* 256 patches */
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.code, "image_too_large");
    assert_string_equal(a.param, "messages[0].content[0]");
    assert_non_null(strstr(a.message, "256 patches"));
    content(&b, SEEDS(1, 2, 3, 4), "a"); /* 24 rows */
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.code, "image_too_large");
    assert_string_equal(a.param, "messages[0].content[3]");
    content(&b, SEEDS(1, 2, 3), "a");
    assert_int_equal(ask(s, b.data, "", &a), 200);
    assert_true(metric(s, "day0_image_decode_seconds_count") == 3);
    all_is_free(s);
    stop(s);
    s = start((struct serve_options){.max_context = 17}, (struct session_options){0});
    content(&b, SEEDS(1, 2, 3), "a"); /* 18 rows */
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.code, "context_length_exceeded");
    assert_string_equal(a.param, "messages[0].content[2]");
    all_is_free(s);
    release(&a);
    strbuf_release(&b);
    stop(s);
}

/* Where one picture at a time has room to be decoded in, the others wait for it, however many threads there
 * are, and all are answered; what never has room is refused before it is decoded. */
static void room_to_work(void **state)
{
    (void)state;
    struct server *s = start((struct serve_options){.picture_bytes = 10 << 20, .picture_threads = 4},
                             (struct session_options){0});
    struct http_client *c;
    struct strbuf b = STRBUF_INIT;
    struct answer many[12] = {0}, refused = {0};
    struct err e = {0};
    assert_int_equal(http_client_open(&c, &e), 0);
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        strbuf_clear(&b);
        picture_part(&b, 220, 220, i + 1);
        strbuf_puts(&b, ",");
        picture_part(&b, 64, 64, i + 1);
        add(s, c, b.data, "", &many[i]);
    }
    run_all(c);
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        assert_int_equal(many[i].status, 200);
        release(&many[i]);
    }
    strbuf_clear(&b);
    picture_part(&b, 64, 64, 1);
    strbuf_puts(&b, ",");
    picture_part(&b, 1000, 1000, 1); /* RGBA and RGB are 7 MB, and there are 5 MiB */
    assert_int_equal(ask(s, b.data, "", &refused), 400);
    if (!strstr(refused.message, "picture of 1000 x 1000 pixels takes up to"))
        fail_msg("%s", refused.message);
    assert_string_equal(refused.param, "messages[0].content[1]");
    strbuf_clear(&b);
    picture_part(&b, 1400, 1400, 1); /* the body alone is 8 MB */
    assert_int_equal(ask(s, b.data, "", &refused), 400);
    if (!strstr(refused.message, "all requests together may have 5242880"))
        fail_msg("%s", refused.message);
    release(&refused);
    const double most = metric(s, "day0_image_most_working_bytes");
    assert_true(most > 4e5 && most <= 5 << 20);
    assert_true(metric(s, "day0_image_working_bytes") == 0);
    assert_true(metric(s, "day0_image_decode_seconds_count") == 2 * ARRAY_LEN(many));
    all_is_free(s);
    strbuf_release(&b);
    http_client_close(c);
    stop(s);
}

/* A class row is a patch of the tower: a server that takes one fewer refuses the picture early. */
static void class_rows_count(void **state)
{
    (void)state;
    struct strbuf b = STRBUF_INIT;
    content(&b, SEEDS(1, 2), "hello");
    for (uint32_t most = 16; most <= 17; most++) {
        struct server *s = start_kind(PICTURE_LLAVA, (struct serve_options){0},
                                      (struct session_options){.max_patches = most});
        struct answer a = {0};
        assert_int_equal(ask(s, b.data, "", &a), most == 17 ? 200 : 400);
        assert_string_equal(a.code, most == 17 ? "" : "image_too_large");
        assert_true(most == 17 || strstr(a.message, "17 patches"));
        assert_true(metric(s, "day0_image_decode_seconds_count") == (most == 17 ? 2 : 0));
        all_is_free(s);
        release(&a);
        stop(s);
    }
    strbuf_release(&b);
}

/* Tokens that see each other go through one step whole: a server of smaller steps refuses the picture early,
 * and one of steps that just hold it gives what any other gives. */
static void spans_fit_a_step(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {0, 16, 15};
    struct strbuf b = STRBUF_INIT;
    struct answer a[ARRAY_LEN(chunks)] = {{0}};
    strbuf_printf(&b, "%s,", text_part("he and"));
    picture_part(&b, 16, 24, 1);
    strbuf_puts(&b, ",");
    picture_part(&b, 40, 24, 2);
    for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
        struct server *s = start_kind(PICTURE_GEMMA, (struct serve_options){.prefill_chunk = chunks[i]},
                                      (struct session_options){0});
        if (ask(s, b.data, "", &a[i]) != (i < 2 ? 200 : 400))
            fail_msg("chunk %u: %d %s", chunks[i], a[i].status, a[i].message);
        assert_true(metric(s, "day0_image_decode_seconds_count") == (i < 2 ? 2 : 0));
        all_is_free(s);
        stop(s);
    }
    assert_int_equal(a[0].images, 32);
    assert_string_equal(a[0].logprobs.data, a[1].logprobs.data);
    assert_string_equal(a[2].code, "image_too_large");
    assert_string_equal(a[2].param, "messages[0].content[1]");
    assert_non_null(strstr(a[2].message, "16 tokens"));
    for (size_t i = 0; i < ARRAY_LEN(chunks); i++)
        release(&a[i]);
    strbuf_release(&b);
}

static int post(const struct server *s, const char *body, size_t n, struct answer *a)
{
    char url[128];
    struct http_response r = {0};
    struct err e = {0};
    snprintf(url, sizeof url, "%s/v1/chat/completions", s->base);
    release(a);
    struct http_request q = {.url = url, .body = body, .body_bytes = n, .timeout_ns = 60ull * S};
    if (http_fetch(&q, NULL, NULL, &r, &e))
        fail_msg("%s", e.message);
    read_text(a, strbuf_cstr(&r.body), r.body.len);
    a->status = r.status;
    http_response_release(&r);
    return a->status;
}

/* Bodies that a thread of the pool reads are refused as others are; and where they and their pictures fill
 * the memory for them, some clients are told to come again, and none is forgotten. */
static void large_bodies(void **state)
{
    (void)state;
    struct server *s = start((struct serve_options){.picture_bytes = 10 << 20}, (struct session_options){0});
    struct http_client *c;
    struct strbuf b = STRBUF_INIT, text = STRBUF_INIT;
    struct answer a = {0}, many[48] = {0};
    struct err e = {0};
    for (int i = 0; i < 6000000; i++)
        strbuf_putc(&text, ' ');
    assert_int_equal(post(s, text.data, 300000, &a), 400);
    assert_string_equal(a.code, "invalid_json");
    static const char other[] = "{\"model\":\"x\",\"messages\":[1]}";
    memcpy(text.data, other, sizeof other - 1);
    assert_int_equal(post(s, text.data, 300000, &a), 404);
    assert_int_equal(post(s, text.data, 6000000, &a), 400); /* more than the memory for pictures */
    static const char good[] =
        "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":1}";
    memcpy(text.data, good, sizeof good - 1);
    assert_int_equal(post(s, text.data, 300000, &a), 200);
    assert_int_equal(http_client_open(&c, &e), 0);
    picture_part(&b, 500, 400, 7);
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        add(s, c, b.data, "", &many[i]);
    run_all(c);
    int n_good = 0, n_busy = 0;
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        n_good += many[i].status == 200;
        n_busy += many[i].status == 429;
        release(&many[i]);
    }
    assert_true(n_good > 0 && n_busy > 0);
    assert_int_equal(n_good + n_busy, ARRAY_LEN(many));
    assert_true(metric(s, "day0_requests_total{outcome=\"queue_full\"}") == n_busy);
    all_is_free(s);
    release(&a);
    strbuf_release(&b);
    strbuf_release(&text);
    http_client_close(c);
    stop(s);
}

/* The tower fails on some pictures (tests/plugins/tower_device.c): these requests end with an error, behind
 * pictures that went well too; the others get what they get alone, and nothing is kept. */
static void tower_that_fails(void **state)
{
    (void)state;
    struct server *s =
        start((struct serve_options){.prefix_cache = true},
              (struct session_options){.device = TEST_BUILD_ROOT "/tests/plugins/libtower_device.so"});
    static const char stream[] = ",\"stream\":true";
    struct http_client *c;
    struct strbuf good = STRBUF_INIT, bad = STRBUF_INIT;
    struct answer alone = {0}, many[24] = {0};
    struct err e = {0};
    content(&good, SEEDS(1, 2), LETTERS);
    if (ask(s, good.data, "", &alone) != 200)
        fail_msg("%s", alone.message);
    picture_part(&bad, 16, 24, 3);
    strbuf_puts(&bad, ",");
    picture_part(&bad, 64, 64, 4); /* 256 patches */
    strbuf_printf(&bad, ",%s", text_part("hello"));
    assert_int_equal(ask(s, bad.data, "", &many[0]), 500);
    assert_string_equal(many[0].code, "step_failed");
    assert_non_null(strstr(many[0].message, "256 rows are too many"));
    all_is_free(s);
    assert_int_equal(http_client_open(&c, &e), 0);
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        release(&many[i]);
        add(s, c, i % 3 == 1 ? bad.data : good.data, stream, &many[i]);
    }
    run_all(c);
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        if (i % 3 == 1) {
            assert_string_equal(many[i].code, "step_failed");
            assert_int_equal(many[i].text.len, 0);
        } else {
            assert_true(many[i].done);
            assert_string_equal(many[i].logprobs.data, alone.logprobs.data);
        }
        release(&many[i]);
    }
    assert_true(metric(s, "day0_vision_failed_total") == 9);
    assert_true(metric(s, "day0_ready") == 1); /* a picture is not the engine */
    all_is_free(s);
    release(&alone);
    strbuf_release(&good);
    strbuf_release(&bad);
    http_client_close(c);
    stop(s);
}

static void without_a_tower(void **state)
{
    (void)state;
    struct server *s =
        start((struct serve_options){0}, (struct session_options){.images = SESSION_IMAGES_OFF});
    struct strbuf b = STRBUF_INIT;
    struct answer a = {0};
    content(&b, SEEDS(1), "a");
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.code, "unsupported");
    assert_string_equal(a.param, "messages[0].content[0]");
    assert_true(metric(s, "day0_images_total") == -1);
    content(&b, SEEDS(0), "a");
    assert_int_equal(ask(s, b.data, "", &a), 200);
    release(&a);
    strbuf_release(&b);
    stop(s);
}

/* A stop while pictures wait and are made. */
static void stop_in_between(void **state)
{
    (void)state;
    struct server *s = start((struct serve_options){.drain_ns = 1}, (struct session_options){0});
    struct http_client *c;
    struct strbuf b = STRBUF_INIT;
    struct answer a[20] = {0};
    struct err e = {0};
    assert_int_equal(http_client_open(&c, &e), 0);
    picture_part(&b, 900, 700, 7);
    for (size_t i = 0; i < ARRAY_LEN(a); i++)
        add(s, c, b.data, "", &a[i]);
    for (int i = 0; i < 50 && metric(s, "day0_images_total") == 0; i++)
        assert_int_equal(http_client_poll(c, 20000000, &e), 0);
    stop(s);
    http_client_close(c);
    for (size_t i = 0; i < ARRAY_LEN(a); i++)
        release(&a[i]);
    strbuf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_change_answers),
        cmocka_unit_test(as_the_graphs_say),
        cmocka_unit_test(times_are_told),
        cmocka_unit_test(cached_prefixes),
        cmocka_unit_test(alone_and_in_a_crowd),
        cmocka_unit_test(leaving_early),
        cmocka_unit_test(refusals),
        cmocka_unit_test(too_large),
        cmocka_unit_test(room_to_work),
        cmocka_unit_test(class_rows_count),
        cmocka_unit_test(spans_fit_a_step),
        cmocka_unit_test(large_bodies),
        cmocka_unit_test(tower_that_fails),
        cmocka_unit_test(without_a_tower),
        cmocka_unit_test(stop_in_between),
    };
    return cmocka_run_group_tests_name("serve_pictures", tests, NULL, NULL);
}
