/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's promise: the same request gives the same bits at any batch, chunking, page placement and
 * thread count, on every instruction set; what free pages hold never matters; a step allocates nothing.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "kern/kern.h"
#include "sched/sched.h"
#include "tiny_llama.h"
#include "tensor/tensor.h"

#define VOCAB      320
#define PROMPT     70
#define STEPS      4 /* decode steps after the prompt */
#define PT         8
#define PAGES      12 /* of one sequence */
#define RESULT_CAP (8u << 20)

/* ---- counting what reaches the allocator (--wrap at link time) ----------------------------------------- */

static _Atomic uint64_t n_allocator_calls;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void __real_free(void *p);

void *__wrap_malloc(size_t n)
{
    n_allocator_calls++;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    n_allocator_calls++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    n_allocator_calls++;
    return __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    n_allocator_calls++;
    return __real_aligned_alloc(align, n);
}

void __wrap_free(void *p)
{
    n_allocator_calls++;
    __real_free(p);
}

/* ---- rig ----------------------------------------------------------------------------------------------- */

struct rig {
    struct dev dev;
    struct graph *graph;
    struct weights *weights;
    struct engine *engine;
    void *plan, *result;
    uint64_t step;
};

static const struct engine_limits limits = {.max_tokens = 256,
                                            .max_seqs = 8,
                                            .max_rows = 160,
                                            .max_pages_per_seq = PAGES,
                                            .n_pages = 8 * PAGES,
                                            .page_tokens = PT,
                                            .vocab = VOCAB};

struct rig_options {
    const char *isa;
    unsigned n_threads;
    bool poison, probes;
    uint32_t dtype, kv_dtype;
    int64_t window;
};

static struct tiny_llama model_of(const struct rig_options *o)
{
    struct tiny_llama m = TINY_LLAMA_DEFAULT;
    m.dtype = o->dtype ? o->dtype : m.dtype;
    m.kv_dtype = o->kv_dtype ? o->kv_dtype : m.kv_dtype;
    m.window = o->window;
    return m;
}

static void rig_open(struct rig *r, const struct rig_options *o)
{
    struct err e = {0};
    struct tiny_llama m = model_of(o);
    struct dev_options d = {.name = "cpu", .isa = o->isa, .n_threads = o->n_threads ? o->n_threads : 1};
    struct engine_options eo = {.limits = limits, .poison = o->poison, .probes = o->probes};
    memset(r, 0, sizeof *r);
    if (dev_open(&r->dev, &d, &e) || tiny_llama_graph(&r->graph, &m, &e) ||
        weights_load(&r->weights, r->graph, NULL, &r->dev, NULL, &e) ||
        engine_open(&r->engine, &r->dev, r->graph, r->weights, &eo, &e))
        fail_msg("%s", e.message);
    r->plan = malloc(step_plan_bytes(&limits));
    r->result = malloc(RESULT_CAP);
}

static void rig_close(struct rig *r)
{
    engine_close(r->engine);
    weights_free(r->weights);
    graph_free(r->graph);
    dev_close(&r->dev);
    free(r->plan);
    free(r->result);
}

static struct step_result *run(struct rig *r, const struct tiny_run *runs, uint32_t n)
{
    struct err e = {0};
    struct step_plan *p = tiny_plan(r->plan, step_plan_bytes(&limits), runs, n, ++r->step);
    if (engine_step(r->engine, p, p->bytes, r->result, RESULT_CAP, &e) != ERR_OK)
        fail_msg("step: %s", e.message);
    struct step_result *out = r->result;
    if (step_result_validate(out, out->bytes, &e) != ERR_OK)
        fail_msg("result: %s", e.message);
    return out;
}

static int32_t token_at(uint64_t sequence, uint32_t position)
{
    return (int32_t)(rng_u64(sequence, position) % VOCAB);
}

/* Page table of sequence s: a permutation that depends on `shuffle`. */
static void pages_of(int32_t *pages, uint32_t s, uint64_t shuffle)
{
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = (int32_t)(s * PAGES + (shuffle ? (i * 7 + shuffle) % PAGES : i));
}

/* ---- one request in a crowd ---------------------------------------------------------------------------- */

struct scene {
    uint32_t chunk;    /* prompt tokens a step */
    uint32_t n_others; /* sequences of other lengths in every step */
    uint64_t shuffle;
};

/* All logits of our request: [PROMPT + STEPS][VOCAB]. */
static void play(struct rig *r, const struct scene *s, float *out)
{
    int32_t tokens[8][PROMPT + STEPS], pages[8][PAGES];
    uint32_t me = s->n_others / 2, n = s->n_others + 1, done = 0;
    uint32_t other_done[8] = {0};
    for (uint32_t k = 0; k < n; k++) {
        pages_of(pages[k], k, s->shuffle);
        for (uint32_t i = 0; i < PROMPT + STEPS; i++)
            tokens[k][i] = token_at(k == me ? 1 : 100 + k, i);
    }
    while (done < PROMPT + STEPS) {
        struct tiny_run runs[8];
        for (uint32_t k = 0; k < n; k++) {
            uint32_t *at = k == me ? &done : &other_done[k];
            uint32_t count = k == me ? (done < PROMPT ? s->chunk : 1) : 1 + (k * 5 + done) % 11;
            if (k == me && done < PROMPT && count > PROMPT - done)
                count = PROMPT - done;
            if (*at + count > PROMPT + STEPS)
                *at = 0; /* another one starts over in the same pages */
            runs[k] = (struct tiny_run){.request = k,
                                        .tokens = tokens[k] + *at,
                                        .n_tokens = count,
                                        .position = *at,
                                        .flags = k == me ? STEP_ALL_LOGITS : 0,
                                        .pages = pages[k],
                                        .n_pages = (*at + count + PT - 1) / PT};
            if (k != me)
                *at += count;
        }
        struct step_result *res = run(r, runs, n);
        assert_int_equal(step_result_seqs(res)[me].n_logit_rows, runs[me].n_tokens);
        memcpy(out + (size_t)done * VOCAB, step_result_logits(res),
               (size_t)runs[me].n_tokens * VOCAB * sizeof *out);
        done += runs[me].n_tokens;
    }
}

#define N_LOGITS ((size_t)(PROMPT + STEPS) * VOCAB)

static void expect_same(const float *a, const float *b, const char *isa, const char *what)
{
    for (size_t i = 0; i < N_LOGITS; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s, %s: logit %zu of row %zu is %.9g instead of %.9g", isa, what, i % VOCAB, i / VOCAB,
                     (double)b[i], (double)a[i]);
}

static void compare_scenes(const struct rig_options *o, float *want, float *got)
{
    static const struct {
        const char *name;
        struct scene scene;
    } scenes[] = {
        {"alone, again in used pages", {PROMPT, 0, 0}},
        {"chunks of 1", {1, 0, 0}},
        {"chunks of 7", {7, 0, 0}},
        {"chunks of 64", {64, 0, 0}},
        {"other pages", {PROMPT, 0, 5}},
        {"batch of 8, whole prompt", {PROMPT, 7, 0}},
        {"batch of 8, chunks of 7", {7, 7, 3}},
        {"batch of 3, chunks of 64", {64, 2, 1}},
    };
    struct rig r;
    rig_open(&r, o);
    play(&r, &(struct scene){PROMPT, 0, 0}, want);
    double sum = 0;
    for (size_t i = 0; i < N_LOGITS; i++)
        sum += fabs((double)want[i]);
    assert_true(isfinite(sum) && sum > 0);
    for (size_t i = 0; i < ARRAY_LEN(scenes); i++) {
        play(&r, &scenes[i].scene, got);
        expect_same(want, got, o->isa, scenes[i].name);
    }
    rig_close(&r);
}

static void test_same_bits(void **state)
{
    (void)state;
    float *want = malloc(N_LOGITS * sizeof *want), *got = malloc(N_LOGITS * sizeof *got);
    for (int isa = 0; isa < KERN_N_ISA; isa++) {
        if (!kern_isa_available((enum kern_isa)isa))
            continue;
        struct rig_options o = {.isa = kern_isa_name((enum kern_isa)isa)};
        compare_scenes(&o, want, got);
        struct rig r;
        o.n_threads = 2;
        rig_open(&r, &o);
        play(&r, &(struct scene){64, 7, 2}, got);
        expect_same(want, got, o.isa, "two threads");
        rig_close(&r);
        o.poison = true;
        rig_open(&r, &o);
        play(&r, &(struct scene){7, 3, 4}, got);
        expect_same(want, got, o.isa, "pages full of NaN");
        rig_close(&r);
    }
    free(want);
    free(got);
}

static void test_same_bits_types(void **state)
{
    (void)state;
    static const struct rig_options variants[] = {
        {.isa = "fast", .dtype = D0_F32, .kv_dtype = D0_F32},
        {.isa = "fast", .dtype = D0_F16, .kv_dtype = D0_F16},
        {.isa = "fast", .dtype = D0_BF16, .kv_dtype = D0_F32},
        {.isa = "fast", .window = 20},
    };
    float *want = malloc(N_LOGITS * sizeof *want), *got = malloc(N_LOGITS * sizeof *got);
    for (size_t i = 0; i < ARRAY_LEN(variants); i++) {
        struct rig_options o = variants[i];
        compare_scenes(&o, want, got);
        struct rig r;
        o.poison = true;
        o.n_threads = 2;
        rig_open(&r, &o);
        play(&r, &(struct scene){7, 3, 4}, got);
        expect_same(want, got, o.isa, "pages full of NaN");
        rig_close(&r);
    }
    free(want);
    free(got);
}

/* Same bits everywhere could still be wrong bits. */
static void test_right_numbers(void **state)
{
    (void)state;
    float *got = malloc(N_LOGITS * sizeof *got);
    double *want = malloc(N_LOGITS * sizeof *want);
    int32_t tokens[PROMPT + STEPS];
    for (uint32_t i = 0; i < PROMPT + STEPS; i++)
        tokens[i] = token_at(1, i);
    for (int isa = 0; isa < KERN_N_ISA; isa++) {
        if (!kern_isa_available((enum kern_isa)isa))
            continue;
        for (int64_t window = 0; window <= 20; window += 20) {
            struct rig r;
            struct rig_options o = {.isa = kern_isa_name((enum kern_isa)isa),
                                    .dtype = D0_F32,
                                    .kv_dtype = D0_F32,
                                    .window = window};
            struct tiny_llama m = model_of(&o);
            rig_open(&r, &o);
            play(&r, &(struct scene){7, 2, 3}, got);
            tiny_llama_reference(r.graph, &m, tokens, PROMPT + STEPS, want);
            double worst = 0, largest = 0;
            for (size_t i = 0; i < N_LOGITS; i++) {
                worst = fmax(worst, fabs((double)got[i] - want[i]));
                largest = fmax(largest, fabs(want[i]));
            }
            if (!(worst < 2e-5 * largest))
                fail_msg("%s: off by %g where logits reach %g", o.isa, worst, largest);
            rig_close(&r);
        }
    }
    free(got);
    free(want);
}

/* ---- allocation ---------------------------------------------------------------------------------------- */

static void on_event(void *context, const struct sched_event *event)
{
    *(uint64_t *)context += event->token >= 0;
}

static void test_steps_allocate_nothing(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_options){.n_threads = 2});
    struct sched *s;
    struct err e = {0};
    struct sched_options so = {.limits = *engine_limits(r.engine),
                               .max_context = 95,
                               .max_waiting = 64,
                               .prefix_cache = true,
                               .prefill_chunk = 16};
    assert_int_equal(sched_open(&s, &so, &e), ERR_OK);
    uint64_t n_tokens = 0, n_steps = 0, id = 0, within = 0;
    size_t cap = step_plan_bytes(&limits);
    while (n_steps < 1050) {
        struct sched_stats st;
        sched_stats(s, &st);
        if (st.n_running + st.n_waiting <
            8) { /* submission and the end of a request may allocate, steps may not */
            int32_t prompt[40];
            id++;
            for (uint32_t i = 0; i < 40; i++)
                prompt[i] = token_at(id % 3, i);
            struct sched_request q = {
                .id = id,
                .prompt = prompt,
                .n_prompt = 20 + (uint32_t)(id % 20),
                .max_new = 50,
                .ignore_stop = true,
                .sampling = {.temperature = 0.8f, .top_p = 0.9f, .n_top = 2, .seed = id}};
            assert_int_equal(sched_submit(s, &q, &e), ERR_OK);
            continue;
        }
        uint64_t finished = st.finished[SCHED_LENGTH], before = n_allocator_calls;
        struct step_plan *p = NULL;
        int rc = sched_plan(s, r.plan, cap, &p, &e);
        rc = rc == ERR_OK ? engine_step(r.engine, p, p->bytes, r.result, RESULT_CAP, &e) : rc;
        rc = rc == ERR_OK
                 ? sched_apply(s, r.result, ((struct step_result *)r.result)->bytes, on_event, &n_tokens, &e)
                 : rc;
        uint64_t calls = n_allocator_calls - before;
        if (rc != ERR_OK)
            fail_msg("%s", e.message);
        sched_stats(s, &st);
        finished = st.finished[SCHED_LENGTH] - finished; /* each frees its one block */
        if (++n_steps > 50)
            within += calls - finished;
    }
    assert_true(n_tokens > 5000);
    assert_int_equal(within, 0);
    assert_true(n_allocator_calls > 0);
    sched_close(s);
    rig_close(&r);
}

/* ---- the scheduler's freedom changes no text ----------------------------------------------------------- */

struct texts {
    int32_t token[12][32];
    float logprob[12][32];
    uint32_t n[12], n_cached;
};

static void on_text(void *context, const struct sched_event *event)
{
    struct texts *t = context;
    if (event->token < 0 || t->n[event->id] >= 32)
        fail_msg("request %llu failed: %s", (unsigned long long)event->id,
                 event->why ? event->why : "too long");
    t->token[event->id][t->n[event->id]] = event->token;
    t->logprob[event->id][t->n[event->id]++] = event->logprob;
    if (event->finish != SCHED_RUNNING)
        t->n_cached += event->n_cached;
}

/* Twelve requests with common beginnings, some sampled; `together` of them submitted at a time. */
static void write_texts(struct texts *t, bool cache, uint32_t chunk, uint64_t together,
                        uint64_t lose_engine_at)
{
    struct rig r;
    struct sched *s;
    struct err e = {0};
    rig_open(&r, &(struct rig_options){.poison = true});
    struct sched_options so = {.limits = *engine_limits(r.engine),
                               .max_context = 90,
                               .max_waiting = 64,
                               .prefix_cache = cache,
                               .prefill_chunk = chunk};
    memset(t, 0, sizeof *t);
    assert_int_equal(sched_open(&s, &so, &e), ERR_OK);
    uint64_t n_steps = 0;
    for (uint64_t id = 0; id < 12;) {
        for (uint64_t k = 0; k < together && id < 12; k++, id++) {
            int32_t prompt[50];
            for (uint32_t i = 0; i < 50; i++)
                prompt[i] = token_at(i < 30 ? id % 2 : id, i);
            struct sched_request q = {
                .id = id,
                .prompt = prompt,
                .n_prompt = 33 + (uint32_t)id,
                .max_new = 30,
                .sampling = {.temperature = id % 3 ? 1 : 0, .top_p = 0.95f, .seed = id, .want_logprob = 1}};
            assert_int_equal(sched_submit(s, &q, &e), ERR_OK);
        }
        for (;;) {
            struct step_plan *p;
            if (sched_plan(s, r.plan, step_plan_bytes(&limits), &p, &e) != ERR_OK)
                fail_msg("%s", e.message);
            if (!p)
                break;
            if (++n_steps == lose_engine_at) {
                sched_engine_lost(s);
                continue;
            }
            if (engine_step(r.engine, p, p->bytes, r.result, RESULT_CAP, &e) != ERR_OK ||
                sched_apply(s, r.result, ((struct step_result *)r.result)->bytes, on_text, t, &e) != ERR_OK)
                fail_msg("%s", e.message);
        }
    }
    sched_close(s);
    rig_close(&r);
}

static void test_same_texts(void **state)
{
    (void)state;
    struct texts want, got;
    write_texts(&want, false, 0, 1, 0);
    assert_int_equal(want.n_cached, 0);
    assert_int_equal(want.n[11], 30);
    const struct {
        bool cache;
        uint32_t chunk;
        uint64_t together, lose;
    } ways[] = {{false, 0, 12, 0}, {true, 0, 1, 0},  {true, 5, 3, 0},
                {true, 9, 12, 0},  {true, 0, 4, 17}, {false, 7, 12, 40}};
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        write_texts(&got, ways[i].cache, ways[i].chunk, ways[i].together, ways[i].lose);
        assert_memory_equal(want.n, got.n, sizeof want.n);
        assert_memory_equal(want.token, got.token, sizeof want.token);
        assert_memory_equal(want.logprob, got.logprob, sizeof want.logprob);
        assert_true(!ways[i].cache || ways[i].together > 6 || got.n_cached > 0);
    }
}

/* ---- refusals and outcomes ----------------------------------------------------------------------------- */

static void test_step_errors(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_options){0});
    struct err e = {0};
    int32_t tokens[16] = {1, 2, 3}, pages[4] = {0, 1, 2, 3};
    struct tiny_run two[2] = {
        {.tokens = tokens, .n_tokens = 3, .pages = pages, .n_pages = 1, .flags = STEP_SAMPLE},
        {.tokens = tokens, .n_tokens = 3, .pages = pages, .n_pages = 1, .flags = STEP_SAMPLE},
    };
    struct step_plan *p = tiny_plan(r.plan, 4096, two, 2, 5);
    struct step_result *out = r.result;
    assert_int_equal(engine_step(r.engine, p, p->bytes, r.result, RESULT_CAP, &e), ERR_FORMAT);
    assert_non_null(strstr(e.message, "written twice"));
    assert_int_equal(out->error, ERR_FORMAT);
    assert_int_equal(out->step, 5);
    assert_int_equal(step_result_validate(out, out->bytes, &e), ERR_OK);
    /* reading a page that another writes in this step */
    two[1].position = 8;
    two[1].pages = (int32_t[]){0, 5};
    two[1].n_pages = 2;
    p = tiny_plan(r.plan, 4096, two, 2, 6);
    assert_int_equal(engine_step(r.engine, p, p->bytes, r.result, RESULT_CAP, &e), ERR_FORMAT);
    /* a page shared for reading is fine */
    two[0].position = 8;
    two[0].pages = (int32_t[]){0, 6};
    two[0].n_pages = 2;
    p = tiny_plan(r.plan, 4096, two, 2, 7);
    assert_int_equal(engine_step(r.engine, p, p->bytes, r.result, RESULT_CAP, &e), ERR_OK);
    /* no room for the answer */
    two[1].flags = STEP_LAST_LOGITS;
    p = tiny_plan(r.plan, 4096, two, 2, 8);
    assert_int_equal(engine_step(r.engine, p, p->bytes, r.result, 300, &e), ERR_LIMIT);
    assert_int_equal(out->error, ERR_LIMIT);
    float x;
    size_t rows, width;
    assert_int_equal(engine_read_result(r.engine, &x, 1, &rows, &width, &e), ERR_INVALID);
    assert_int_equal(engine_set_hidden(r.engine, 0, &x, 1, 1, &e), ERR_INVALID);
    rig_close(&r);
}

static void test_open_errors(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_options){0});
    struct engine *x;
    struct err e = {0};
    struct engine_options o = {.limits = limits};
    struct weights none = {.dev = &r.dev};
    assert_int_equal(engine_open(&x, &r.dev, r.graph, &none, &o, &e), ERR_INVALID);
    assert_non_null(strstr(e.message, "not loaded"));
    o.limits.max_rows = 0;
    assert_int_equal(engine_open(&x, &r.dev, r.graph, r.weights, &o, &e), ERR_INVALID);
    o.limits = limits;
    struct dev small;
    struct weights *w;
    struct d0_device_info info;
    assert_int_equal(
        dev_open(&small, &(struct dev_options){.name = "cpu", .n_threads = 1, .memory_limit = 3 << 20}, &e),
        ERR_OK);
    assert_int_equal(weights_load(&w, r.graph, NULL, &small, NULL, &e), ERR_OK);
    o.limits.n_pages = 100000;
    assert_int_equal(engine_open(&x, &small, r.graph, w, &o, &e), ERR_NOMEM);
    assert_non_null(strstr(e.message, "limit"));
    dev_info(&small, &info, &e);
    assert_int_equal(info.memory_used, w->bytes); /* all of it was given back */
    weights_free(w);
    dev_close(&small);
    /* what was predicted is what was taken */
    uint64_t kv, scratch;
    engine_memory(r.engine, &kv, &scratch);
    assert_int_equal(kv, (uint64_t)limits.n_pages * 2 * 2 * 2 * PT * 32 * 2);
    dev_info(&r.dev, &info, &e);
    assert_true(info.memory_used >= kv + scratch + r.weights->bytes);
    rig_close(&r);
}

static void test_not_finite_row(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_options){0});
    struct err e = {0};
    /* a NaN in one row of the embedding reaches only the sequence that uses it */
    uint32_t id = graph_find(r.graph, "model.embed_tokens.weight");
    struct d0_queue *q;
    const uint16_t nan = 0x7fc0;
    assert_int_equal(dev_queue(&r.dev, &q, &e), ERR_OK);
    assert_int_equal(dev_copy_in(&r.dev, q, r.weights->buffers[id], 7 * 128 * 2, &nan, 2, &e), ERR_OK);
    dev_queue_free(&r.dev, q);
    int32_t good[3] = {1, 2, 3}, bad[3] = {1, 7, 3}, pages[2] = {0, 1};
    struct tiny_run two[2] = {
        {.tokens = bad, .n_tokens = 3, .pages = pages, .n_pages = 1, .flags = STEP_SAMPLE},
        {.tokens = good, .n_tokens = 3, .pages = pages + 1, .n_pages = 1, .flags = STEP_SAMPLE}};
    two[0].sampling.n_top = 3;
    two[1].sampling.n_top = 3;
    struct step_result *out = run(&r, two, 2);
    assert_int_equal(step_result_seqs(out)[0].status, STEP_NOT_FINITE);
    assert_int_equal(step_result_seqs(out)[0].token, -1);
    assert_int_equal(step_result_seqs(out)[1].status, STEP_OK);
    assert_true(step_result_seqs(out)[1].token >= 0);
    assert_int_equal(step_result_seqs(out)[1].n_top, 3);
    assert_int_equal(step_result_tops(out)[0].token, step_result_seqs(out)[1].token);
    rig_close(&r);
}

/* ---- probes and slices --------------------------------------------------------------------------------- */

static void test_probes(void **state)
{
    (void)state;
    struct rig r, plain;
    rig_open(&r, &(struct rig_options){.probes = true});
    rig_open(&plain, &(struct rig_options){0});
    assert_int_equal(engine_probes(plain.engine), 0);
    assert_true(engine_probes(r.engine) > 20);
    int32_t tokens[12], pages[2] = {4, 9};
    for (uint32_t i = 0; i < 12; i++)
        tokens[i] = token_at(5, i);
    struct tiny_run one = {
        .tokens = tokens, .n_tokens = 12, .pages = pages, .n_pages = 2, .flags = STEP_LAST_LOGITS};
    struct step_result *a = run(&r, &one, 1), *b = run(&plain, &one, 1);
    assert_memory_equal(step_result_logits(a), step_result_logits(b), VOCAB * 4); /* probing changes no bit */
    float *x = malloc(12 * 512 * sizeof *x);
    size_t rows, width;
    struct err e = {0};
    bool seen = false;
    for (size_t i = 0; i < engine_probes(r.engine); i++) {
        const char *name = engine_probe_name(r.engine, i);
        assert_int_equal(engine_probe_read(r.engine, i, x, 12 * 512, &rows, &width, &e), ERR_OK);
        assert_true(rows == 12 || rows == 1);
        for (size_t k = 0; k < rows * width; k++)
            assert_true(isfinite(x[k]));
        if (!strcmp(name, "lm_head")) {
            seen = true;
            assert_memory_equal(x, step_result_logits(a), VOCAB * 4);
        }
    }
    assert_true(seen);
    assert_int_equal(engine_probe_read(r.engine, 0, x, 1, &rows, &width, &e), ERR_LIMIT);
    assert_int_equal(engine_probe_read(r.engine, 9999, x, 1, &rows, &width, &e), ERR_INVALID);
    assert_null(engine_probe_name(r.engine, 9999));
    free(x);
    rig_close(&r);
    rig_close(&plain);
}

static void open_slice(struct rig *r, const struct graph *whole, int32_t first, int32_t last, unsigned flags)
{
    struct err e = {0};
    struct engine_options o = {.limits = limits};
    memset(r, 0, sizeof *r);
    if (dev_open(&r->dev, &(struct dev_options){.name = "cpu", .n_threads = 1}, &e) ||
        graph_slice(whole, first, last, flags, &r->graph, &e) ||
        weights_load(&r->weights, r->graph, NULL, &r->dev, NULL, &e) ||
        engine_open(&r->engine, &r->dev, r->graph, r->weights, &o, &e))
        fail_msg("slice: %s", e.message);
    r->plan = malloc(step_plan_bytes(&limits));
    r->result = malloc(RESULT_CAP);
}

static void test_slices(void **state)
{
    (void)state;
    struct rig whole, a, b;
    rig_open(&whole, &(struct rig_options){0});
    open_slice(&a, whole.graph, 0, 0, GRAPH_PROLOGUE);
    open_slice(&b, whole.graph, 1, 1, GRAPH_EPILOGUE);
    int32_t tokens[20], pages[3] = {4, 9, 2};
    for (uint32_t i = 0; i < 20; i++)
        tokens[i] = token_at(6, i);
    float hidden[20 * 128];
    size_t rows, width;
    struct err e = {0};
    for (uint32_t at = 0; at < 20; at += 10) {
        struct tiny_run one = {
            .tokens = tokens + at, .n_tokens = 10, .position = at, .pages = pages, .n_pages = 3};
        run(&a, &one, 1);
        assert_int_equal(engine_read_result(a.engine, hidden, 20 * 128, &rows, &width, &e), ERR_OK);
        assert_int_equal(rows, 10);
        assert_int_equal(width, 128);
        assert_int_equal(engine_set_hidden(b.engine, 0, hidden, rows, width, &e), ERR_OK);
        one.flags = STEP_ALL_LOGITS;
        struct step_result *want = run(&whole, &one, 1), *got = run(&b, &one, 1);
        assert_memory_equal(step_result_logits(want), step_result_logits(got), 10 * VOCAB * 4);
        /* what was set is for one step only */
        struct step_plan *p = tiny_plan(b.plan, 4096, &one, 1, 99);
        assert_int_equal(engine_step(b.engine, p, p->bytes, b.result, RESULT_CAP, &e), ERR_INVALID);
        /* a slice without head gives no tokens */
        p = tiny_plan(a.plan, 4096, &one, 1, 99);
        assert_int_equal(engine_step(a.engine, p, p->bytes, a.result, RESULT_CAP, &e), ERR_INVALID);
    }
    rig_close(&whole);
    rig_close(&a);
    rig_close(&b);
}

/* ---- a model far too large for this machine ------------------------------------------------------------ */

static void test_null_trillion(void **state)
{
    (void)state;
    struct tiny_llama m = {.vocab = 200000,
                           .hidden = 24576,
                           .layers = 160,
                           .heads = 192,
                           .kv_heads = 8,
                           .dim = 128,
                           .inter = 73728,
                           .page_tokens = 16,
                           .dtype = D0_BF16,
                           .kv_dtype = D0_BF16,
                           .no_constants = true};
    struct err e = {0};
    struct dev d;
    struct graph *g;
    struct d0_queue *q;
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = "null"}, &e), ERR_OK);
    assert_int_equal(dev_queue(&d, &q, &e), ERR_OK);
    if (tiny_llama_graph(&g, &m, &e) != ERR_OK)
        fail_msg("%s", e.message);
    struct weights w = {.dev = &d, .n_values = g->n_values, .buffers = calloc(g->n_values, sizeof(void *))};
    const int64_t no_dims[D0_N_DIMS] = {0};
    uint32_t unwritten = 0;
    for (uint32_t i = 0; i < g->n_values; i++) {
        uint64_t bytes;
        if (g->values[i].kind != D0_VALUE_WEIGHT)
            continue;
        assert_true(tensor_value_bytes(&g->values[i], no_dims, &bytes));
        assert_int_equal(dev_buffer(&d, bytes, &w.buffers[i], &e), ERR_OK);
        w.bytes += bytes;
        if (i != g->n_values / 2 && bytes > 1000000)
            unwritten = i;
        assert_int_equal(dev_copy_in(&d, q, w.buffers[i], 0, "", unwritten == i ? bytes - 1 : bytes, &e),
                         ERR_OK);
    }
    assert_true(w.bytes > UINT64_C(2000000000000)); /* two terabytes: a trillion parameters */
    struct engine_options o = {.limits = limits};
    struct engine *x;
    if (engine_open(&x, &d, g, &w, &o, &e) != ERR_OK)
        fail_msg("%s", e.message);
    int32_t tokens[5] = {0}, pages[1] = {0};
    struct tiny_run one = {
        .tokens = tokens, .n_tokens = 5, .pages = pages, .n_pages = 1, .flags = STEP_SAMPLE};
    _Alignas(8) char plan[4096];
    void *result = malloc(RESULT_CAP);
    struct step_plan *p = tiny_plan(plan, sizeof plan, &one, 1, 1);
    assert_int_equal(engine_step(x, p, p->bytes, result, RESULT_CAP, &e), ERR_INVALID);
    assert_non_null(strstr(e.message, "before bytes"));
    for (uint32_t i = 0; i < g->n_values; i++) {
        uint64_t bytes;
        if (w.buffers[i] && tensor_value_bytes(&g->values[i], no_dims, &bytes))
            dev_copy_in(&d, q, w.buffers[i], bytes - 1, "", 1, &e);
    }
    if (engine_step(x, p, p->bytes, result, RESULT_CAP, &e) != ERR_OK)
        fail_msg("%s", e.message);
    assert_int_equal(step_result_seqs(result)[0].token, 0);
    engine_close(x);
    for (uint32_t i = 0; i < g->n_values; i++)
        dev_buffer_free(&d, w.buffers[i]);
    free(w.buffers);
    free(result);
    graph_free(g);
    dev_queue_free(&d, q);
    dev_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_numbers),   cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_same_bits_types), cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_same_texts),      cmocka_unit_test(test_step_errors),
        cmocka_unit_test(test_open_errors),     cmocka_unit_test(test_not_finite_row),
        cmocka_unit_test(test_probes),          cmocka_unit_test(test_slices),
        cmocka_unit_test(test_null_trillion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
