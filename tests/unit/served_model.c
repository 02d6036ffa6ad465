/* SPDX-License-Identifier: Apache-2.0 */
#include "served_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "service_client.h"

static void *run_server(void *arg)
{
    struct server *s = arg;
    serve_run(s->serve, NULL);
    return NULL;
}

struct server *server_new(void)
{
    struct server *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->d0.log.fd = -1;
    strcpy(s->dir, "/tmp/day0-served-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    return s;
}

void server_start(struct server *s, struct session_options session, struct serve_options serve)
{
    struct findings f;
    struct err e = {0};
    findings_init(&f, &s->d0.mem);
    session.model_dir = s->dir;
    session.n_threads = 2;
    session.memory_bytes = 1u << 30;
    if (session_open(&s->session, &session, &f, &s->d0, &e))
        fail_msg("%s", e.message);
    findings_release(&f);
    serve.model_name = "tiny";
    if (serve_open(&s->serve, s->session.engine, s->session.front, &serve, &s->d0, &e))
        fail_msg("%s", e.message);
    snprintf(s->base, sizeof s->base, "http://127.0.0.1:%u", serve_port(s->serve));
    assert_int_equal(pthread_create(&s->thread, NULL, run_server, s), 0);
    assert_true(metric_becomes(s->base, "day0_ready", 1));
    server_idles(s);
}

void server_idles(const struct server *s)
{
    assert_true(metric_becomes(s->base, "day0_requests_open", 0));
    assert_true(metric_becomes(s->base, "day0_requests_running", 0));
    assert_true(metric_becomes(s->base, "day0_requests_waiting", 0));
    assert_true(metric_becomes(s->base, "day0_kv_pages_free", metric(s->base, "day0_kv_pages_total")));
}

void server_stop(struct server *s)
{
    serve_stop(s->serve);
    pthread_join(s->thread, NULL);
    serve_close(s->serve);
    assert_int_equal(atomic_load(&s->d0.mem.live[MEM_REQUEST]), 0);
    session_close(&s->session);
    free(s);
}
