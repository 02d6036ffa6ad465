/* SPDX-License-Identifier: Apache-2.0
 *
 * The statistics by their definitions on made-up times, and the load client against a server made in the test
 * that answers well, badly or not at all.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "net/net.h"
#include "stress/stress_stats.h"

#define MS UINT64_C(1000000)

/* ---- quantiles */

static void test_nearest_rank(void **state)
{
    (void)state;
    double v[] = {5, 1, 4, 2, 3};
    assert_true(stress_quantile(v, 5, 0) == 1);
    assert_true(stress_quantile(v, 5, 0.2) == 1);
    assert_true(stress_quantile(v, 5, 0.21) == 2);
    assert_true(stress_quantile(v, 5, 0.5) == 3);
    assert_true(stress_quantile(v, 5, 0.9) == 5);
    assert_true(stress_quantile(v, 5, 1) == 5);
    assert_true(stress_quantile(v, 0, 0.5) == 0);
    double hundred[100];
    for (int i = 0; i < 100; i++)
        hundred[i] = 100 - i;
    for (int i = 1; i <= 100; i++) /* i/100 * 100 is not exactly i: the rank must be i all the same */
        assert_true(stress_quantile(hundred, 100, i / 100.0) == i);
    double four[] = {4, 3, 2, 1}, two[] = {9, 8};
    assert_true(stress_quantile(four, 4, 0.5) == 2 &&
                stress_quantile(four, 4, 0.51) == 3); /* the lower one */
    assert_true(stress_quantile(two, 2, 0.5) == 8 && stress_quantile(two, 2, 0.95) == 9);
    assert_true(stress_quantile(two, 2, 0) == 8 && stress_quantile(two, 2, 1) == 9);
    double one[] = {7};
    assert_true(stress_quantile(one, 1, 0.99) == 7 && stress_quantile(one, 1, 0) == 7);
}

static void test_pool_is_bounded(void **state)
{
    (void)state;
    struct stress_pool p = {.limit = 1000};
    struct quantiles q;
    size_t n;
    for (int i = 0; i < 100000; i++)
        stress_pool_add(&p, i);
    stress_pool_add(&p, NAN);
    assert_int_equal(p.n, 1000);
    assert_true(p.capacity <= 2048);
    stress_pool_quantiles(&p, &q);
    assert_int_equal(q.n, 100000);
    assert_true(q.max == 99999 && fabs(q.mean - 49999.5) < 1e-6);
    assert_true(fabs(q.p50 - 50000) < 6000 && fabs(q.p90 - 90000) < 6000); /* of a uniform sample of 1,000 */
    double *s = stress_pool_samples(&p, 10, &n);
    assert_int_equal(n, 10);
    assert_true(s[0] == p.values[0] && s[9] == p.values[999]);
    free(s);
    stress_pool_release(&p);
    stress_pool_quantiles(&p, &q);
    assert_int_equal(q.n, 0);
    assert_null(stress_pool_samples(&p, 10, &n));
    assert_int_equal(n, 0);
}

/* ---- definitions */

static void make(struct stress_times *t, uint64_t due, const uint64_t *chunks, size_t n, uint64_t end)
{
    stress_times_begin(t, due * MS);
    for (size_t i = 0; i < n; i++)
        stress_times_chunk(t, chunks[i] * MS);
    t->end = end * MS;
}

static void test_definitions(void **state)
{
    (void)state;
    struct stress_pools p = {0};
    struct stress_times t = {0};
    struct quantiles ttft, tpot, itl, e2e;
    /* due at 100, first chunk 150, then 170, 210; ended 215; four tokens in three chunks */
    make(&t, 100, (const uint64_t[]){150, 170, 210}, 3, 215);
    t.has_usage = true;
    t.usage_output = 4;
    stress_pools_add(&p, &t);
    stress_pool_quantiles(&p.ttft, &ttft);
    stress_pool_quantiles(&p.tpot, &tpot);
    stress_pool_quantiles(&p.itl, &itl);
    stress_pool_quantiles(&p.e2e, &e2e);
    assert_true(ttft.n == 1 && fabs(ttft.p50 - 50) < 1e-9);
    assert_true(tpot.n == 1 && fabs(tpot.p50 - 20) < 1e-9); /* (210 - 150) / (4 - 1): prefill is not in it */
    assert_true(itl.n == 2 && fabs(itl.p50 - 20) < 1e-9 && fabs(itl.max - 40) < 1e-9);
    assert_true(e2e.n == 1 && fabs(e2e.p50 - 115) < 1e-9);
    /* one token: no TPOT, no ITL. The struct is reused: nothing of the first request is left in it. */
    make(&t, 1000, (const uint64_t[]){1010}, 1, 1020);
    stress_pools_add(&p, &t);
    assert_int_equal(stress_times_tokens(&t), 1);
    assert_true(p.ttft.n == 2 && p.tpot.n == 1 && p.itl.n == 2 && p.e2e.n == 2);
    /* no text at all: an end, but no first token */
    make(&t, 2000, NULL, 0, 2020);
    stress_pools_add(&p, &t);
    assert_true(p.ttft.n == 2 && p.e2e.n == 3);
    /* a clock that stands or steps back gives 0, not an enormous number */
    make(&t, 3000, (const uint64_t[]){2990, 2980}, 2, 2970);
    stress_pools_add(&p, &t);
    assert_true(p.itl.values[p.itl.n - 1] == 0 && p.ttft.values[p.ttft.n - 1] == 0);
    stress_times_release(&t);
    stress_pools_release(&p);
}

static void test_arrivals(void **state)
{
    (void)state;
    uint64_t a = 0, b = 0;
    double sum = 0, squares = 0;
    enum { N = 20000 };
    for (uint64_t i = 0; i < N; i++) {
        uint64_t next = stress_next_arrival(a, 50, 7, i);
        assert_true(next >= a);
        double gap = (double)(next - a) / 1e6;
        sum += gap;
        squares += gap * gap;
        a = next;
        b = stress_next_arrival(b, 50, 7, i);
    }
    assert_int_equal(a, b); /* seeded */
    double mean = sum / N, deviation = sqrt(squares / N - mean * mean);
    assert_true(fabs(mean - 20) < 0.6 && fabs(deviation - 20) < 1.0); /* exponential: both are 1 / rate */
    assert_true(stress_next_arrival(0, 50, 8, 0) != stress_next_arrival(0, 50, 7, 0));
    assert_true(stress_next_arrival(5, 1e-30, 1, 1) > UINT64_C(100000000000));
}

/* ---- against a server */

enum mode {
    GOOD,
    NO_USAGE,
    STATUS_500,
    ERROR_IN_STREAM,
    NO_FINISH,
    NOT_JSON,
    SILENT,
    EVERY_THIRD_FAILS,
    N_MODES
};

struct fake {
    struct http_server *server;
    pthread_t thread;
    enum mode mode;
    _Atomic unsigned n;
    char url[64];
};

static void write_chunks(struct http_exchange *x, enum mode mode)
{
    static const char *const good =
        "data: {\"choices\":[{\"text\":\"one\",\"finish_reason\":null}],\"usage\":null}\n\n"
        "data: {\"choices\":[{\"text\":\" two\",\"finish_reason\":null}]}\n\n";
    static const char *const finish =
        "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n";
    static const char *const usage =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3}}\n\n";
    static const char *const bad = "data: {\"error\":{\"message\":\"the step failed\"}}\n\n",
                             *const broken = "data: {\"choices\": oops\n\n";
    http_stream_begin(x, 200, "text/event-stream");
    http_stream_write(x, good, strlen(good));
    if (mode == ERROR_IN_STREAM)
        http_stream_write(x, bad, strlen(bad));
    if (mode == NOT_JSON)
        http_stream_write(x, broken, strlen(broken));
    if (mode == GOOD || mode == NO_USAGE)
        http_stream_write(x, finish, strlen(finish));
    if (mode == GOOD)
        http_stream_write(x, usage, strlen(usage));
    if (mode == GOOD || mode == NO_USAGE)
        http_stream_write(x, "data: [DONE]\n\n", 14);
    http_stream_end(x);
}

static void handler(struct http_exchange *x, void *user)
{
    struct fake *f = user;
    static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"fake\"}]}",
                      oops[] = "{\"error\":{\"message\":\"no\"}}";
    if (strcmp(http_path(x), "/v1/models") == 0) {
        http_reply(x, 200, "application/json", models, strlen(models));
        return;
    }
    unsigned i = f->n++;
    assert_non_null(strstr(http_body(x, NULL), "\"include_usage\":true"));
    enum mode mode = f->mode == EVERY_THIRD_FAILS ? (i % 3 == 2 ? STATUS_500 : GOOD) : f->mode;
    if (mode == STATUS_500)
        http_reply(x, 500, "application/json", oops, strlen(oops));
    else if (mode != SILENT)
        write_chunks(x, mode);
}

static void *serve(void *user)
{
    struct err e = {0};
    return (void *)(intptr_t)http_server_run(((struct fake *)user)->server, &e);
}

static void fake_open(struct fake *f, enum mode mode)
{
    struct err e = {0};
    memset(f, 0, sizeof(*f));
    f->mode = mode;
    struct http_server_options o = {.handler = handler, .user = f};
    assert_int_equal(http_server_open(&f->server, &o, &e), ERR_OK);
    snprintf(f->url, sizeof(f->url), "http://127.0.0.1:%u", http_server_port(f->server));
    assert_int_equal(pthread_create(&f->thread, NULL, serve, f), 0);
}

static void fake_close(struct fake *f)
{
    http_server_stop(f->server);
    pthread_join(f->thread, NULL);
    http_server_close(f->server);
}

static struct stress_options options(const struct fake *f)
{
    return (struct stress_options){
        .url = f->url, .concurrency = 4, .n_requests = 20, .max_tokens = 3, .seed = 1, .pid = getpid()};
}

static void test_good_server(void **state)
{
    (void)state;
    struct fake f;
    struct stress_result r;
    struct err e = {0};
    fake_open(&f, GOOD);
    struct stress_options o = options(&f);
    assert_int_equal(stress_run(&o, &r, &e), ERR_OK);
    assert_int_equal(r.n_sent, 20);
    assert_int_equal(r.n_ok, 20);
    assert_int_equal(r.n_failed, 0);
    assert_int_equal(r.output_tokens, 60);
    assert_int_equal(r.prompt_tokens, 100);
    assert_false(r.tokens_counted);
    assert_true(r.ttft.n == 20 && r.tpot.n == 20 && r.itl.n == 20 && r.e2e.n == 20);
    assert_true(r.ttft.p50 >= 0 && r.ttft.p50 <= r.ttft.p90 && r.ttft.p99 <= r.ttft.max && r.e2e.max < 60000);
    assert_true(r.seconds > 0 && fabs(r.output_tokens_per_second - 60 / r.seconds) < 1e-6);
    assert_true(r.rss_peak >= r.rss_end && r.rss_end > 0);
    assert_int_equal(r.n_ttft_samples, 20);
    struct strbuf b = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &b, false);
    stress_write_json(&r, &w);
    assert_non_null(strstr(strbuf_cstr(&b), "\"tokens_from\":\"usage\""));
    strbuf_release(&b);
    stress_result_release(&r);
    fake_close(&f);
}

static void test_open_loop(void **state)
{
    (void)state;
    struct fake f;
    struct stress_result r;
    struct err e = {0};
    fake_open(&f, GOOD);
    struct stress_options o = options(&f);
    o.rate = 200;
    o.concurrency = 0;
    assert_int_equal(stress_run(&o, &r, &e), ERR_OK);
    assert_int_equal(r.n_ok, 20);
    assert_true(r.seconds > 0.02); /* 20 arrivals at 200 a second take about 0.1 s */
    stress_result_release(&r);
    fake_close(&f);
}

static void test_bad_servers(void **state)
{
    (void)state;
    static const struct {
        enum mode mode;
        unsigned ok;
        const char *why;
    } cases[] = {{STATUS_500, 0, "HTTP 500"},
                 {ERROR_IN_STREAM, 0, "the step failed"},
                 {NO_FINISH, 0, "without a finish_reason"},
                 {NOT_JSON, 0, "not JSON"},
                 {EVERY_THIRD_FAILS, 14, "HTTP 500"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fake f;
        struct stress_result r;
        struct err e = {0};
        fake_open(&f, cases[i].mode);
        struct stress_options o = options(&f);
        assert_int_equal(stress_run(&o, &r, &e), ERR_OK);
        assert_int_equal(r.n_ok, cases[i].ok);
        assert_int_equal(r.n_failed, 20 - cases[i].ok);
        if (!strstr(r.first_failure, cases[i].why))
            fail_msg("'%s' does not say '%s'", r.first_failure, cases[i].why);
        assert_int_equal(r.e2e.n, cases[i].ok); /* failures give no latency */
        stress_result_release(&r);
        fake_close(&f);
    }
}

static void test_counted_tokens_are_said(void **state)
{
    (void)state;
    struct fake f;
    struct stress_result r;
    struct err e = {0};
    fake_open(&f, NO_USAGE);
    struct stress_options o = options(&f);
    assert_int_equal(stress_run(&o, &r, &e), ERR_OK);
    assert_int_equal(r.n_ok, 20);
    assert_int_equal(r.output_tokens, 40); /* two chunks each */
    assert_true(r.tokens_counted);
    stress_result_release(&r);
    fake_close(&f);
}

/* A server that never answers: the run ends at its deadline, and what was not sent counts as failed. */
static void test_silent_server(void **state)
{
    (void)state;
    struct fake f;
    struct stress_result r;
    struct err e = {0};
    fake_open(&f, SILENT);
    struct stress_options o = options(&f);
    o.timeout_ns = 300 * MS;
    uint64_t begin = clock_ns();
    assert_int_equal(stress_run(&o, &r, &e), ERR_OK);
    assert_true(clock_ns() - begin < 20000 * MS);
    assert_int_equal(r.n_ok, 0);
    assert_int_equal(r.n_failed, 20);
    assert_true(r.n_sent < 20 && r.first_failure[0]);
    struct strbuf b = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &b, false);
    stress_write_json(&r, &w); /* quantiles of nothing are null, not 0 */
    assert_non_null(strstr(strbuf_cstr(&b), "\"ttft_ms\":{\"n\":0,\"mean\":null"));
    strbuf_release(&b);
    stress_result_release(&r);
    fake_close(&f);
}

static void test_wrong_options(void **state)
{
    (void)state;
    struct stress_result r;
    struct err e = {0};
    static const struct stress_options wrong[] = {
        {.url = NULL, .concurrency = 1, .n_requests = 1, .max_tokens = 1},
        {.url = "http://x", .concurrency = 0, .n_requests = 1, .max_tokens = 1},
        {.url = "http://x", .concurrency = 1, .n_requests = 0, .max_tokens = 1},
        {.url = "http://x", .concurrency = 1, .n_requests = 1, .max_tokens = 0},
        {.url = "http://x", .concurrency = 1, .n_requests = 1, .max_tokens = 1, .rate = NAN},
        {.url = "http://x", .concurrency = 1u << 20, .n_requests = 1, .max_tokens = 1}};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        assert_int_equal(stress_run(&wrong[i], &r, &e), ERR_USAGE);
    struct stress_options nobody = {
        .url = "http://127.0.0.1:9", .concurrency = 1, .n_requests = 1, .max_tokens = 1};
    assert_int_equal(stress_run(&nobody, &r, &e), ERR_COMM);
}

/* Every word of the table that a report shows is defined. */
static void test_definition_text(void **state)
{
    (void)state;
    static const char *const words[] = {"TTFT:", "TPOT:",   "ITL:",    "E2E:",         "throughput:",
                                        "due:",  "failed:", "memory:", "nearest-rank", "(output tokens - 1)"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        assert_non_null(strstr(stress_definitions(), words[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest_rank),    cmocka_unit_test(test_pool_is_bounded),
        cmocka_unit_test(test_definitions),     cmocka_unit_test(test_arrivals),
        cmocka_unit_test(test_good_server),     cmocka_unit_test(test_open_loop),
        cmocka_unit_test(test_bad_servers),     cmocka_unit_test(test_counted_tokens_are_said),
        cmocka_unit_test(test_silent_server),   cmocka_unit_test(test_wrong_options),
        cmocka_unit_test(test_definition_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
