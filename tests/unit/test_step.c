/* SPDX-License-Identifier: Apache-2.0
 *
 * Step messages: what the builder lays out is accepted, any other value of a field is refused, no byte
 * pattern makes the checks read out of bounds; and an engine behind a socket gives the same bytes as one in
 * the process.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/thread.h"
#include "tiny_llama.h"

static const struct engine_limits limits = {.max_tokens = 32,
                                            .max_seqs = 4,
                                            .max_rows = 12,
                                            .max_pages_per_seq = 6,
                                            .n_pages = 20,
                                            .page_tokens = 8,
                                            .vocab = 320};

static const int32_t some_tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const int32_t some_pages[] = {3, 0, 19, 7, 8, 9, 10, 11};

static const struct tiny_run runs[3] = {
    {.request = 11,
     .tokens = some_tokens,
     .n_tokens = 9,
     .pages = some_pages,
     .n_pages = 2,
     .flags = STEP_SAMPLE,
     .sampling = {.temperature = 1, .top_p = 0.5f, .n_top = 3, .seed = 4}},
    {.request = 12,
     .tokens = some_tokens,
     .n_tokens = 3,
     .position = 5,
     .pages = some_pages + 2,
     .n_pages = 1},
    {.request = 13,
     .tokens = some_tokens + 4,
     .n_tokens = 1,
     .position = 23,
     .pages = some_pages + 3,
     .n_pages = 3,
     .flags = STEP_LAST_LOGITS | STEP_SAMPLE},
};

static int validate(const void *p, size_t n)
{
    struct err e = {0};
    int rc = step_plan_validate(p, n, &limits, &e);
    assert_true(rc == ERR_OK || e.message[0]);
    return rc;
}

/* ---- plans --------------------------------------------------------------------------------------------- */

static void test_builder(void **state)
{
    (void)state;
    _Alignas(8) char buf[4096];
    struct step_plan *p = tiny_plan(buf, sizeof buf, runs, 3, 7);
    assert_non_null(p);
    assert_int_equal(validate(p, p->bytes), ERR_OK);
    struct err e = {0};
    assert_int_equal(step_plan_init(buf, p->bytes - 1, 3, 13, 6, &p, &e), ERR_LIMIT);
    assert_int_equal(step_plan_init(buf, SIZE_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, &p, &e), ERR_LIMIT);
    assert_int_equal(step_plan_init(buf, SIZE_MAX, 1, 1 << 24, 1, &p, &e), ERR_LIMIT);
    assert_int_equal(step_plan_init(buf + 4, 1000, 1, 1, 1, &p, &e), ERR_INVALID);
    /* sizes of the header that others build on */
    assert_true(step_plan_bytes(&limits) >=
                4 * sizeof(struct step_seq) + (32 + 24) * 4 + sizeof(struct step_plan));
    struct engine_limits huge = {
        .max_tokens = UINT32_MAX, .max_seqs = UINT32_MAX, .max_pages_per_seq = UINT32_MAX};
    assert_int_equal(step_plan_bytes(&huge), STEP_MAX_BYTES);
    huge.max_rows = huge.vocab = UINT32_MAX;
    assert_int_equal(engine_result_bytes(&huge, true), STEP_MAX_BYTES);
}

static void test_structure_fields(void **state)
{
    (void)state;
    _Alignas(8) char good[4096], bad[4096];
    struct step_plan *p = tiny_plan(good, sizeof good, runs, 3, 7);
    size_t n = p->bytes, at[32], n_at = 0;
#define H(f) at[n_at++] = offsetof(struct step_plan, f)
    H(magic), H(bytes), H(n_seqs), H(n_tokens), H(n_pages), H(n_places), H(seqs_at), H(tokens_at),
        H(pages_at), H(places_at);
    for (uint32_t i = 0; i < 3; i++) {
        size_t seq = p->seqs_at + i * sizeof(struct step_seq);
        at[n_at++] = seq + offsetof(struct step_seq, first_token);
        at[n_at++] = seq + offsetof(struct step_seq, n_tokens);
        at[n_at++] = seq + offsetof(struct step_seq, first_page);
        at[n_at++] = seq + offsetof(struct step_seq, n_pages);
        at[n_at++] = seq + offsetof(struct step_seq, slot); /* without recurrent states always 0 */
        at[n_at++] = seq + offsetof(struct step_seq, reserved);
    }
    at[n_at++] = p->tokens_at + p->n_tokens * sizeof(int32_t); /* padding: 13 tokens */
    for (size_t i = 0; i < n_at; i++) {
        uint32_t was;
        memcpy(&was, good + at[i], sizeof was);
        const uint32_t values[] = {0,       1,        was + 1,    was - 1,   was ^ 8,          was + 8,
                                   was * 2, was << 8, UINT32_MAX, INT32_MAX, was ^ 0x80000000u};
        for (size_t k = 0; k < ARRAY_LEN(values); k++) {
            if (values[k] == was)
                continue;
            memcpy(bad, good, n);
            memcpy(bad + at[i], &values[k], sizeof was);
            if (validate(bad, n) == ERR_OK)
                fail_msg("field at %zu: %u instead of %u was accepted", at[i], values[k], was);
        }
    }
    for (size_t cut = 0; cut < n; cut++)
        assert_int_not_equal(validate(good, cut), ERR_OK);
    assert_int_not_equal(validate(good, n + 8), ERR_OK);
}

#define REFUSED(change)                                                                                      \
    do {                                                                                                     \
        p = tiny_plan(buf, sizeof buf, runs, 3, 7);                                                          \
        q = step_plan_seqs(p);                                                                               \
        tokens = step_plan_tokens(p);                                                                        \
        pages = step_plan_pages(p);                                                                          \
        change;                                                                                              \
        if (validate(p, p->bytes) == ERR_OK)                                                                 \
            fail_msg("accepted: %s", #change);                                                               \
    } while (0)

static void test_value_fields(void **state)
{
    (void)state;
    _Alignas(8) char buf[4096];
    struct step_plan *p;
    struct step_seq *q;
    int32_t *tokens, *pages;
    REFUSED(tokens[0] = -1);
    REFUSED(tokens[12] = 320);
    REFUSED(pages[0] = -1);
    REFUSED(pages[5] = 20);
    REFUSED(q[0].position = 8); /* 8 + 9 tokens are past two pages of 8 */
    REFUSED(q[2].position = 24);
    REFUSED(q[2].position = UINT32_MAX);
    REFUSED(q[1].flags = 8);
    REFUSED(q[1].flags = 0x80000000u);
    REFUSED(q[0].flags = STEP_ALL_LOGITS; q[1].flags = STEP_ALL_LOGITS;
            q[2].flags = STEP_SAMPLE); /* 13 rows */
    REFUSED(q[0].sampling.temperature = -1);
    REFUSED(q[0].sampling.temperature = NAN);
    REFUSED(q[0].sampling.temperature = INFINITY);
    REFUSED(q[0].sampling.top_p = 0);
    REFUSED(q[0].sampling.top_p = 1.5f);
    REFUSED(q[0].sampling.top_p = NAN);
    REFUSED(q[0].sampling.top_p = -0.5f);
    REFUSED(q[2].sampling.top_p = NAN); /* also where it is not looked at */
    REFUSED(q[0].sampling.n_top = STEP_MAX_TOP + 1);
    REFUSED(q[0].sampling.want_logprob = 2);
    REFUSED(q[0].sampling.vocab_limit = 321);
    REFUSED(pages[1] = 1 << 30);
    /* without state there are no pages to bound a position, but it still is an int32 on the device */
    struct engine_limits stateless = limits;
    stateless.page_tokens = 0;
    p = tiny_plan(buf, sizeof buf, runs, 3, 7);
    step_plan_seqs(p)[0].position = INT32_MAX - 9;
    assert_int_equal(step_plan_validate(p, p->bytes, &stateless, NULL), ERR_OK);
    step_plan_seqs(p)[0].position++;
    assert_int_equal(step_plan_validate(p, p->bytes, &stateless, NULL), ERR_FORMAT);
}

/* Random bytes and random damage: whatever is accepted must be safe to use. */
static void test_damage(void **state)
{
    (void)state;
    _Alignas(8) char good[4096];
    struct step_plan *p = tiny_plan(good, sizeof good, runs, 3, 7);
    size_t n = p->bytes;
    char *bad = malloc(n);
    struct rng rng;
    rng_init(&rng, 1);
    uint32_t n_accepted = 0;
    for (int round = 0; round < 200000; round++) {
        memcpy(bad, good, n);
        for (uint64_t k = 1 + rng_below(&rng, 3); k > 0; k--)
            bad[rng_below(&rng, n)] = (char)(rng_below(&rng, 2) ? rng_next(&rng) : rng_below(&rng, 9));
        if (validate(bad, n) != ERR_OK)
            continue;
        n_accepted++;
        struct step_plan *b = (struct step_plan *)bad;
        uint64_t rows = 0;
        for (uint32_t i = 0; i < b->n_seqs; i++) {
            const struct step_seq *q = &step_plan_seqs(b)[i];
            assert_true(q->first_token + q->n_tokens <= b->n_tokens &&
                        q->first_page + q->n_pages <= b->n_pages);
            assert_true(q->position + q->n_tokens <= q->n_pages * limits.page_tokens);
            rows += q->flags & STEP_ALL_LOGITS ? q->n_tokens : q->flags != 0;
        }
        assert_true(rows <= limits.max_rows);
    }
    assert_true(n_accepted > 100);
    free(bad);
}

/* ---- results ------------------------------------------------------------------------------------------- */

static struct step_result *sample_result(void *buf, size_t cap)
{
    struct step_result *r;
    assert_int_equal(step_result_init(buf, cap, 2, 30, 5, &r, NULL), ERR_OK);
    r->step = 3;
    struct step_seq_result *q = step_result_seqs(r);
    q[0] = (struct step_seq_result){.request = 1, .token = 4, .n_top = 2, .n_logit_rows = 1};
    q[1] = (struct step_seq_result){.request = 2,
                                    .token = -1,
                                    .status = STEP_NOT_FINITE,
                                    .first_top = 2,
                                    .n_logit_rows = 2,
                                    .first_logit = 10};
    step_result_finish(r, 2);
    return r;
}

static void test_results(void **state)
{
    (void)state;
    _Alignas(8) char good[1024] = {0}, bad[1024];
    struct err e = {0};
    struct step_result *r = sample_result(good, sizeof good);
    size_t n = r->bytes;
    assert_int_equal(step_result_validate(good, n, &e), ERR_OK);
    for (size_t cut = 0; cut < n; cut++)
        assert_int_not_equal(step_result_validate(good, cut, &e), ERR_OK);
    size_t at[32], n_at = 0;
#define R(f) at[n_at++] = offsetof(struct step_result, f)
    R(magic), R(bytes), R(error), R(n_seqs), R(n_tops), R(reserved), R(n_logits), R(seqs_at), R(tops_at),
        R(logits_at), R(error_at);
    for (uint32_t i = 0; i < 2; i++) {
        size_t seq = r->seqs_at + i * sizeof(struct step_seq_result);
        at[n_at++] = seq + offsetof(struct step_seq_result, n_top);
        at[n_at++] = seq + offsetof(struct step_seq_result, first_top);
        at[n_at++] = seq + offsetof(struct step_seq_result, n_logit_rows);
        at[n_at++] = seq + offsetof(struct step_seq_result, first_logit);
    }
    at[n_at++] = r->seqs_at + sizeof(struct step_seq_result) + offsetof(struct step_seq_result, token);
    for (size_t i = 0; i < n_at; i++) {
        uint32_t was;
        memcpy(&was, good + at[i], sizeof was);
        const uint32_t values[] = {was + 1, was - 1, was + 8, UINT32_MAX, INT32_MAX, was ^ 0x80000000u};
        for (size_t k = 0; k < ARRAY_LEN(values); k++) {
            if (values[k] == was)
                continue;
            memcpy(bad, good, n);
            memcpy(bad + at[i], &values[k], sizeof was);
            if (step_result_validate(bad, n, &e) == ERR_OK)
                fail_msg("result field at %zu: %u instead of %u was accepted", at[i], values[k], was);
        }
    }
    /* results that say "failed" */
    char text[2000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_int_equal(step_result_error(bad, sizeof bad, 9, ERR_DEVICE, text, &r, &e), ERR_OK);
    assert_int_equal(step_result_validate(bad, r->bytes, &e), ERR_OK);
    assert_int_equal(r->error, ERR_DEVICE);
    assert_true(strlen(bad + r->error_at) < 600);
    bad[r->bytes - 1] = 'x';
    assert_int_equal(step_result_validate(bad, r->bytes, &e), ERR_FORMAT);
    assert_int_equal(step_result_error(bad, 40, 9, ERR_DEVICE, "no room", &r, &e), ERR_LIMIT);
    assert_int_equal(step_result_init(bad, sizeof bad, 1, UINT64_MAX, 0, &r, &e), ERR_LIMIT);
    assert_int_equal(step_result_init(bad, sizeof bad, UINT32_MAX, 1 << 20, UINT32_MAX, &r, &e), ERR_LIMIT);
}

/* ---- an engine behind a socket ------------------------------------------------------------------------- */

struct rig {
    struct dev dev;
    struct graph *graph;
    struct weights *weights;
    struct engine *engine;
};

static void rig_open(struct rig *r)
{
    struct tiny_llama m = TINY_LLAMA_DEFAULT;
    struct err e = {0};
    struct engine_options o = {.limits = limits};
    if (dev_open(&r->dev, &(struct dev_options){.name = "cpu", .n_threads = 1}, &e) ||
        tiny_llama_graph(&r->graph, &m, &e) || weights_load(&r->weights, r->graph, NULL, &r->dev, NULL, &e) ||
        engine_open(&r->engine, &r->dev, r->graph, r->weights, &o, &e))
        fail_msg("%s", e.message);
}

static void rig_close(struct rig *r)
{
    engine_close(r->engine);
    weights_free(r->weights);
    graph_free(r->graph);
    dev_close(&r->dev);
}

/* The child makes an engine of its own: the same seed must give the same weights and the same bits. */
static pid_t start_server(int *fd)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(fds[0]);
        struct rig r;
        rig_open(&r);
        int rc = engine_serve_fd(r.engine, fds[1], NULL);
        rig_close(&r);
        _exit(rc == ERR_OK ? 0 : 1);
    }
    close(fds[1]);
    *fd = fds[0];
    return pid;
}

static int exit_of(pid_t pid)
{
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define RESULT_CAP 65536
#define SECOND     UINT64_C(1000000000)

static void test_socket_same_bytes(void **state)
{
    (void)state;
    int fd;
    pid_t pid = start_server(&fd);
    struct rig r;
    rig_open(&r);
    _Alignas(8) char buf[4096];
    char *here = malloc(RESULT_CAP), *there = malloc(RESULT_CAP);
    struct err e = {0};
    for (uint64_t step = 1; step < 20; step++) {
        struct tiny_run now[3];
        memcpy(now, runs, sizeof now);
        now[0].n_tokens = (uint32_t)(1 + step % 9);
        now[1].flags = step % 2 ? STEP_ALL_LOGITS : 0;
        now[2].sampling.n_top = (uint32_t)step % 4;
        struct step_plan *p = tiny_plan(buf, sizeof buf, now, 3, step);
        struct step_result *a = (struct step_result *)here, *b = (struct step_result *)there;
        if (engine_step(r.engine, p, p->bytes, here, RESULT_CAP, &e) != ERR_OK ||
            engine_call_fd(fd, p, there, RESULT_CAP, 60 * SECOND, &e) != ERR_OK)
            fail_msg("%s", e.message);
        assert_int_equal(step_result_validate(here, a->bytes, &e), ERR_OK);
        a->compute_ns = b->compute_ns = 0;
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(here, there, a->bytes);
        assert_true(step_result_seqs(a)[0].token >= 0);
    }
    /* a plan that is refused is answered, and the next one runs */
    struct step_plan *p = tiny_plan(buf, sizeof buf, runs, 3, 50);
    step_plan_tokens(p)[0] = -5;
    assert_int_equal(engine_call_fd(fd, p, there, RESULT_CAP, 60 * SECOND, &e), ERR_OK);
    struct step_result *b = (struct step_result *)there;
    assert_int_equal(b->error, ERR_FORMAT);
    assert_non_null(strstr(there + b->error_at, "tokens[0]"));
    assert_int_equal(engine_step(r.engine, p, p->bytes, here, RESULT_CAP, NULL), ERR_FORMAT);
    assert_int_equal(((struct step_result *)here)->error, ERR_FORMAT);
    p = tiny_plan(buf, sizeof buf, runs, 3, 51);
    assert_int_equal(engine_call_fd(fd, p, there, RESULT_CAP, 60 * SECOND, &e), ERR_OK);
    assert_int_equal(b->error, 0);
    close(fd);
    assert_int_equal(exit_of(pid), 0);
    free(here);
    free(there);
    rig_close(&r);
}

static void test_socket_faults(void **state)
{
    (void)state;
    int fd;
    _Alignas(8) char buf[4096];
    char *there = malloc(RESULT_CAP);
    struct err e = {0};
    /* a length out of range ends the service, with an answer */
    pid_t pid = start_server(&fd);
    struct step_plan *p = tiny_plan(buf, sizeof buf, runs, 3, 1);
    p->bytes = STEP_MAX_BYTES + 1;
    assert_int_equal(send(fd, p, sizeof *p, 0), sizeof *p);
    struct step_result r;
    assert_int_equal(recv(fd, &r, sizeof r, MSG_WAITALL), sizeof r);
    assert_int_equal(r.error, ERR_FORMAT);
    assert_int_equal(exit_of(pid), 1);
    close(fd);
    /* a peer that leaves within a message */
    pid = start_server(&fd);
    p = tiny_plan(buf, sizeof buf, runs, 3, 1);
    assert_int_equal(send(fd, p, p->bytes - 1, 0), p->bytes - 1);
    close(fd);
    assert_int_equal(exit_of(pid), 1);
    /* an engine that does not answer, one that is gone, one that answers nonsense, one that is cut off */
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    uint64_t begin = clock_ns();
    assert_int_equal(engine_call_fd(fds[0], p, there, RESULT_CAP, SECOND / 20, &e), ERR_TIMEOUT);
    assert_true(clock_ns() - begin < 10 * SECOND);
    assert_int_equal(send(fds[1], buf, sizeof(struct step_result), 0), sizeof(struct step_result));
    assert_int_equal(engine_call_fd(fds[0], p, there, RESULT_CAP, SECOND, &e), ERR_FORMAT);
    struct step_result *out;
    step_result_error(there, RESULT_CAP, 2, ERR_DEVICE, "late", &out, NULL);
    assert_int_equal(send(fds[1], out, out->bytes, 0), out->bytes);
    assert_int_equal(engine_call_fd(fds[0], p, there, RESULT_CAP, SECOND, &e),
                     ERR_FORMAT); /* another step's */
    close(fds[1]);
    assert_int_equal(engine_call_fd(fds[0], p, there, RESULT_CAP, SECOND, &e), ERR_COMM);
    assert_int_equal(engine_call_fd(fds[0], p, there, 16, SECOND, &e), ERR_INVALID);
    close(fds[0]);
    free(there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_builder),       cmocka_unit_test(test_structure_fields),
        cmocka_unit_test(test_value_fields),  cmocka_unit_test(test_damage),
        cmocka_unit_test(test_results),       cmocka_unit_test(test_socket_same_bytes),
        cmocka_unit_test(test_socket_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
