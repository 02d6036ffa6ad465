/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: stage 5: the service interface (OpenAI's shapes, errors, health, metrics, a client that leaves) and
 * the load at concurrency 1 and 8. Refuses: a figure without its failures beside it.
 */
#include "adapt/stage5.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"

#define DEFAULT_REQUESTS 16
#define STRESS_TOKENS    32
#define LEAVE_WAIT_NS    UINT64_C(5000000000)

struct interface {
    struct job *j;
    struct json_writer *w;
    size_t n, n_passed;
};

static void check(struct interface *x, const char *name, bool passed, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void check(struct interface *x, const char *name, bool passed, const char *fmt, ...)
{
    char text[500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    json_begin_object(x->w);
    json_put_string(x->w, "name", name);
    json_put_bool(x->w, "passed", passed);
    json_put_string(x->w, "detail", text);
    json_end_object(x->w);
    x->n++;
    x->n_passed += passed;
    if (!passed)
        finding_add(x->j->f, FINDING_S002, name, "%s", text);
}

static void check_models(struct interface *x)
{
    struct answer a;
    probe_call(x->j, "/v1/models", NULL, &a);
    const struct json *data = json_get(a.body, "data");
    const char *id = json_string(json_get(json_at(data, 0), "id")),
               *object = json_string(json_get(a.body, "object"));
    check(x, "GET /v1/models", a.status == 200 && id && object && strcmp(object, "list") == 0,
          "status %d, first model %s", a.status, id ? id : "missing");
    answer_release(&a);
}

static void check_stream(struct interface *x, bool chat)
{
    const char *name = chat ? "chat: stream equals whole" : "completions: stream equals whole";
    struct ask ask = {.chat = chat, .text = "Once upon a time", .max_tokens = x->j->context > 64 ? 24 : 4};
    struct answer whole, stream;
    probe_ask(x->j, &ask, &whole);
    ask.stream = true;
    probe_ask(x->j, &ask, &stream);
    bool answered = !whole.why[0] && !stream.why[0];
    bool same = answered && strcmp(strbuf_cstr(&whole.text), strbuf_cstr(&stream.text)) == 0 &&
                strcmp(whole.finish, stream.finish) == 0 && whole.has_usage && stream.has_usage &&
                whole.output_tokens == stream.output_tokens;
    if (same)
        check(x, name, true, "%zu bytes, finish %s, %" PRIu64 " tokens both ways", whole.text.len,
              whole.finish, whole.output_tokens);
    else if (!answered)
        check(x, name, false, "%s", whole.why[0] ? whole.why : stream.why);
    else
        check(x, name, false,
              "whole: \"%.60s\" %s %" PRIu64 " tokens; stream: \"%.60s\" %s %" PRIu64 " tokens%s",
              strbuf_cstr(&whole.text), whole.finish, whole.output_tokens, strbuf_cstr(&stream.text),
              stream.finish, stream.output_tokens,
              whole.has_usage && stream.has_usage ? "" : " (usage missing)");
    answer_release(&whole);
    answer_release(&stream);
}

static void check_error(struct interface *x, const char *name, const char *body, int want)
{
    struct answer a;
    probe_call(x->j, "/v1/completions", body, &a);
    const char *message = json_string(json_get(json_get(a.body, "error"), "message"));
    check(x, name, a.status == want && message, "status %d (want %d), %s%.160s", a.status, want,
          message ? "message: " : "no error.message ", message ? message : a.why);
    answer_release(&a);
}

static void check_errors(struct interface *x)
{
    struct strbuf body = STRBUF_INIT;
    struct ask unknown = {.text = "x", .max_tokens = 1, .model = "no-such-model-here"};
    check_error(x, "malformed JSON", "{\"model\": ", 400);
    probe_body(x->j, &unknown, &body);
    check_error(x, "unknown model", strbuf_cstr(&body), 404);
    strbuf_release(&body);
    /* every token is at least one byte of text in no vocabulary shorter than this */
    size_t n = x->j->context ? (size_t)x->j->context * 2 + 64 : 0;
    int32_t *ids = n && n < 4000000 ? calloc(n, sizeof(*ids)) : NULL;
    if (ids) {
        struct ask too_long = {.ids = ids, .n_ids = n, .max_tokens = 4};
        for (size_t i = 0; i < n; i++)
            ids[i] = 5;
        probe_body(x->j, &too_long, &body);
        check_error(x, "prompt longer than the context", strbuf_cstr(&body), 400);
        strbuf_release(&body);
    }
    free(ids);
}

static void check_plain(struct interface *x, const char *path, const char *needs)
{
    struct answer a;
    probe_call(x->j, path, NULL, &a);
    bool has = a.raw.len && strstr(strbuf_cstr(&a.raw), needs) != NULL;
    char name[64];
    snprintf(name, sizeof(name), "GET %s", path);
    check(x, name, a.status == 200 && has, "status %d, %zu bytes%s", a.status, a.raw.len,
          has ? "" : ", not of the expected form");
    answer_release(&a);
}

/* After a client left in mid-stream the pages must come back: running requests to 0 and free pages to what
 * they were. */
static void check_leaving(struct interface *x)
{
    static const char pages[] = "kv_pages_free", running[] = "requests_running";
    struct job *j = x->j;
    if (j->external)
        return;
    double before = probe_metric(j, pages), after = before, busy = 0;
    uint32_t many = j->context > 400 ? 320 : j->context / 2;
    struct ask ask = {.text = "Once upon a time", .max_tokens = many ? many : 1, .stream = true};
    uint64_t chunks = probe_leave(j, &ask, 2), begin = clock_ns(), waited = 0;
    do {
        after = probe_metric(j, pages);
        busy = probe_metric(j, running);
        waited = clock_ns() - begin;
        if (after >= before && busy <= 0)
            break;
        clock_sleep_ns(UINT64_C(20000000));
    } while (waited < LEAVE_WAIT_NS);
    check(x, "client that leaves", before >= 0 && after >= before && busy <= 0 && chunks > 0,
          "left after %" PRIu64 " chunks; %.0f pages free before, %.0f after %.0f ms; %.0f requests running",
          chunks, before, after, (double)waited / 1e6, busy);
}

static void run_interface(struct job *j, struct json_writer *w)
{
    struct interface x = {.j = j, .w = w};
    job_progress(j, STAGE_STRESS, "service interface");
    json_key(w, "service");
    json_begin_array(w);
    check_models(&x);
    check_stream(&x, false);
    if (!j->front || !j->front->has_template || j->front->template_works)
        check_stream(&x, true);
    check_errors(&x);
    check_plain(&x, "/health", "");
    check_plain(&x, "/metrics", "# TYPE");
    check_leaving(&x);
    json_end_array(w);
    if (job_errors(j, ROW_SERVICE))
        job_row(j, ROW_SERVICE, ROW_FAILED, "%zu of %zu checks; see the findings", x.n_passed, x.n);
    else
        job_row(j, ROW_SERVICE, ROW_PASSED,
                "%zu of %zu checks: models, streams, chat, error shapes, health, metrics, leaving clients",
                x.n_passed, x.n);
}

/* ---- load */

/* One run of the load: its figures, and the sums over all. */
void load_add(struct job *j, struct json_writer *w, uint32_t concurrency, const struct stress_result *r,
              struct load_total *load)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer one;
    json_writer_init(&one, &text, false);
    stress_write_json(r, &one);
    /* the result's own object, with the concurrency put before its first member */
    if (!strbuf_failed(&text) && text.len > 1) {
        char *whole = arena_printf(j->arena, "{\"concurrency\":%u,%s", concurrency, text.data + 1);
        json_write_raw(w, whole ? whole : "null");
    }
    strbuf_release(&text);
    load->sent += r->n_sent;
    load->failed += r->n_failed;
    load->peak = r->rss_peak > load->peak ? r->rss_peak : load->peak;
    if (r->n_failed && !load->first_failure[0])
        snprintf(load->first_failure, sizeof(load->first_failure), "%.190s", r->first_failure);
}

static int run_level(struct job *j, struct json_writer *w, uint32_t concurrency, struct load_total *load,
                     struct err *e)
{
    static const char *const prompts[] = {"Once upon a time", "The little dog ran to", "In the morning she",
                                          "A boy named Tom had a big"};
    struct stress_result r;
    uint32_t tokens = j->context / 2 < STRESS_TOKENS && j->context ? j->context / 2 : STRESS_TOKENS;
    uint32_t n = j->o->stress_requests ? j->o->stress_requests : DEFAULT_REQUESTS;
    struct stress_options so = {.url = j->url,
                                .model = j->model_name,
                                .concurrency = concurrency,
                                .n_requests = n,
                                .prompts = prompts,
                                .n_prompts = ARRAY_LEN(prompts),
                                .max_tokens = tokens ? tokens : 1,
                                .seed = 1,
                                .pid = j->external ? 0 : j->service.pid,
                                .ignore_eos = !j->external,
                                .log = &j->d0->log};
    int rc = stress_run(&so, &r, e);
    if (rc)
        return rc;
    load_add(j, w, concurrency, &r, load);
    stress_result_release(&r);
    return ERR_OK;
}

static void memory_after_load(struct job *j, struct json_writer *w, uint64_t peak)
{
    char a[40], b[40], c[40];
    json_key(w, "memory");
    json_begin_object(w);
    json_key(w, "peak_rss");
    if (peak)
        json_write_u64(w, peak);
    else
        json_write_null(w);
    json_end_object(w);
    if (!peak || j->external)
        return;
    format_bytes(peak, a, sizeof(a));
    format_bytes(job_to_hold(j), b, sizeof(b));
    if (peak > j->allowed_peak) {
        finding_add(j->f, FINDING_M002, "service under load", "peak %s measured, %s predicted", a, b);
        job_row(j, ROW_MEMORY, ROW_FAILED, "peak %s measured under load, %s predicted", a, b);
    } else if (j->out->rows[ROW_MEMORY].state == ROW_PASSED) {
        job_row(j, ROW_MEMORY, ROW_PASSED,
                "peak %s measured under load (VmHWM), %s predicted (plan), %s available (%s)", a, b,
                format_bytes(j->memory, c, sizeof(c)), j->memory_source);
    }
}

int stage5_run(struct job *j, struct json_writer *w, struct err *e)
{
    static const uint32_t levels[] = {1, 8};
    struct load_total load = {0};
    struct err why = {0};
    int rc = ERR_OK;
    (void)e;
    if (!j->service_ready) {
        stage_say(j, STAGE_STRESS, STAGE_NOT_RUN, "not run: there is no service to load");
        if (!job_errors(j, ROW_SERVICE))
            job_row(j, ROW_SERVICE, ROW_NOT_CHECKED, "not checked: there is no service");
        return ERR_OK;
    }
    run_interface(j, w);
    json_key(w, "runs");
    json_begin_array(w);
    for (size_t i = 0; rc == ERR_OK && i < ARRAY_LEN(levels); i++) {
        char what[64];
        snprintf(what, sizeof(what), "load at concurrency %u", levels[i]);
        job_progress(j, STAGE_STRESS, what);
        rc = run_level(j, w, levels[i], &load, &why);
    }
    json_end_array(w);
    if (!rc)
        rc = picture_load_run(j, w, &load, &why);
    memory_after_load(j, w, load.peak);
    if (rc)
        finding_add(j->f, FINDING_S003, "load", "%s", why.message);
    else if (load.failed)
        finding_add(j->f, FINDING_S003, "load", "%u of %u requests failed; the first: %s", load.failed,
                    load.sent, load.first_failure);
    bool failed = rc || load.failed || job_errors(j, ROW_SERVICE);
    if (rc || load.failed)
        job_row(j, ROW_SERVICE, ROW_FAILED, "%u of %u requests of the load failed; see the findings",
                load.failed, load.sent);
    stage_say(j, STAGE_STRESS, failed ? STAGE_FAILED : STAGE_PASSED,
              "%u requests at concurrency 1 and 8, %u failed%s", load.sent, load.failed, load.pictures);
    return ERR_OK;
}
