/* SPDX-License-Identifier: Apache-2.0
 *
 * A small hybrid model, recurrent layers beside one of attention, through specification, engine, scheduler
 * and verification: the same request gives the same bits at any batch, chunking, slot and thread count; a
 * slot that others used, or that holds NaN, is as good as a fresh one, and a snapshot as good as what was
 * computed; plans that cannot work are refused.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/hash.h"
#include "kern/kern.h"
#include "plan/plan.h"
#include "sched/sched.h"
#include "tiny_llama.h"
#include "verify/verify.h"

enum { VOCAB = 96, HIDDEN = 64, PROMPT = 70, STEPS = 4, PT = 16, PAGES = 6, SEQS = 8, SLOTS = 11 };
#define RESULT_CAP (1u << 20)
#define N_LOGITS   ((size_t)(PROMPT + STEPS) * VOCAB)
#define BAD_TOKEN  (VOCAB - 1) /* its embedding is NaN: fills the state of its sequence */

static const char config[] = "{\"architectures\":[\"TinyHybrid\"],\"model_type\":\"tiny\",\"hidden_size\":64,"
                             "\"vocab_size\":96,\"torch_dtype\":\"float32\"}";
static const char arch[] =
    "return { build = function(c)\n"
    "  local H, V = c:count 'hidden_size', c:count 'vocab_size'\n"
    "  context(512)\n"
    "  local function recurrent(h, channel)\n"
    "    local q = short_conv { linear { h, 'q', out = 40, part = heads(2) }, 'cq', width = 4, fn = 'silu', "
    "bias = true }\n"
    "    local k = short_conv { linear { h, 'k', out = 40, part = heads(2) }, 'ck', width = 3 }\n"
    "    local y = delta_rule { q = q, k = k, v = linear { h, 'v', out = 96 }, g = linear { h, 'g', out = "
    "channel and 40 or 4 },\n"
    "      beta = linear { h, 'beta', out = 4 }, heads = 2, v_heads = 4, dim = 20, v_dim = 24, scale = 0.25, "
    "l2norm = 1e-6,\n"
    "      decay = channel and 'channel' or 'scalar', lower = channel and -5.0 or nil, A_entries = channel "
    "and 6 or nil }\n"
    "    return linear { y, 'o', out = H, part = row }\n"
    "  end\n"
    "  local function full(h)\n"
    "    local y = attention { q = linear { h, 'q', out = 64, part = heads(4) }, k = linear { h, 'k', out = "
    "32, "
    "part = heads(2) },\n"
    "      v = linear { h, 'v', out = 32, part = heads(2) }, heads = 4, kv_heads = 2, dim = 16, scale = 0.25 "
    "}\n"
    "    return linear { y, 'o', out = H, part = row }\n"
    "  end\n"
    "  local x = embed { 'embed', vocab = V, dim = H }\n"
    "  x = layers { x, n = 4, at = 'layers.%d', each = function(x, i)\n"
    "    local h = rms_norm { x, 'ln', eps = 1e-5 }\n"
    "    local y\n"
    "    if i == 1 then y = full(h) else y = recurrent(h, i == 2) end\n"
    "    x = x + y\n"
    "    h = rms_norm { x, 'ln2', eps = 1e-5 }\n"
    "    local gate, up = linear { h, 'gate', out = 80, part = col }, linear { h, 'up', out = 80, part = col "
    "}\n"
    "    return x + linear { glu { gate, up, fn = 'silu' }, 'down', out = H, part = row }\n"
    "  end }\n"
    "  return logits { rms_norm { wanted_rows(x), 'norm', eps = 1e-5 }, 'head', vocab = V }\n"
    "end }\n";

/* ---- the model ----------------------------------------------------------------------------------------- */

struct model {
    struct d0 d0;
    struct findings f;
    struct arena arena;
    struct ckpt *c;
    struct spec *s;
};

static char dir[] = "/tmp/day0-recurrent-XXXXXX";

static void ok(int rc, const struct err *e)
{
    char text[1400];
    if (rc)
        fail_msg("%s", err_format(e, text, sizeof text));
}

static void model_open(struct model *m)
{
    char path[64];
    struct err e = {0};
    *m = (struct model){.d0.log.fd = -1};
    findings_init(&m->f, NULL);
    arena_init(&m->arena, NULL, MEM_MISC);
    snprintf(path, sizeof path, "%s/arch.lua", dir);
    ok(ckpt_open(&m->c, dir, &m->f, &m->d0, &e), &e);
    ok(spec_open(&m->s, m->c, &(struct spec_options){.arch_path = path}, &m->f, &m->d0, &e), &e);
    for (size_t i = 0; i < m->f.n && !m->s; i++)
        print_message("%s: %s\n", m->f.items[i].subject, m->f.items[i].evidence);
    assert_non_null(m->s);
}

static void model_close(struct model *m)
{
    spec_close(m->s);
    ckpt_close(m->c);
    arena_release(&m->arena);
    findings_release(&m->f);
}

/* Values as a trained model has them: norms about 1, A_log and dt_bias of order 1, small betas. */
static float *random_weight(const struct spec_weight *w, uint64_t seed, size_t *n)
{
    *n = 1;
    for (uint32_t i = 0; i < w->n_dims; i++)
        *n *= (size_t)w->dims[i];
    float *x = malloc(*n * sizeof *x);
    bool vector = w->n_dims == 1;
    double width = (double)w->dims[w->n_dims - 1], centre = vector && strstr(w->name, "ln") ? 1 : 0,
           scale = vector                      ? 0.5
                   : strstr(w->name, ".beta.") ? 0.5 / sqrt(width)
                                               : 2.5 / sqrt(width);
    for (size_t i = 0; x && i < *n; i++)
        x[i] = (float)(centre + scale * (2 * rng_f64(seed, i) - 1));
    for (size_t i = 0; x && !strcmp(w->name, "embed.weight") && i < HIDDEN; i++)
        x[(size_t)BAD_TOKEN * HIDDEN + i] = NAN;
    return x;
}

/* The description alone says which tensors there must be; then they are written. */
static int write_model(void **state)
{
    (void)state;
    char path[64];
    struct err e = {0};
    struct model m;
    struct st_entry t[96];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    ok(file_write_atomic(path, config, strlen(config), &e), &e);
    snprintf(path, sizeof path, "%s/arch.lua", dir);
    ok(file_write_atomic(path, arch, strlen(arch), &e), &e);
    model_open(&m);
    assert_in_range(m.s->n_weights, 40, ARRAY_LEN(t));
    for (size_t i = 0; i < m.s->n_weights; i++) {
        const struct spec_weight *w = &m.s->weights[i];
        size_t n;
        t[i] = (struct st_entry){
            .name = w->name, .dtype = D0_F32, .n_dims = w->n_dims, .data = random_weight(w, 100 + i, &n)};
        memcpy(t[i].dims, w->dims, w->n_dims * sizeof w->dims[0]);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    ok(st_write(path, t, m.s->n_weights, NULL, NULL, 0, &e), &e);
    for (size_t i = 0; i < m.s->n_weights; i++)
        free((void *)(uintptr_t)t[i].data);
    model_close(&m);
    return 0;
}

static int remove_model(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "arch.lua", "model.safetensors"};
    char path[64];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    return rmdir(dir);
}

/* ---- rig ----------------------------------------------------------------------------------------------- */

static const struct engine_limits limits = {.max_tokens = 256,
                                            .max_seqs = SEQS,
                                            .max_rows = PROMPT + STEPS,
                                            .max_pages_per_seq = PAGES,
                                            .n_pages = SLOTS * PAGES,
                                            .n_slots = SLOTS};

struct rig {
    struct model m;
    struct dev dev;
    const struct graph *graph;
    struct graph *slice;
    struct weights *weights;
    struct engine *engine;
    struct step_plan *plan;
    void *result;
    size_t plan_cap;
    uint64_t step;
};

struct rig_options {
    const char *isa; /* NULL: fast */
    unsigned n_threads;
    uint32_t snapshots;
    bool poison, sliced;
    int32_t first_layer, last_layer;
    unsigned slice_flags;
};

static void rig_open(struct rig *r, const struct rig_options *o)
{
    struct err e = {0};
    struct dev_options d = {
        .name = "cpu", .isa = o->isa ? o->isa : "fast", .n_threads = o->n_threads ? o->n_threads : 1};
    struct engine_options eo = {.limits = limits, .poison = o->poison};
    eo.limits.n_snapshots = o->snapshots;
    memset(r, 0, sizeof *r);
    model_open(&r->m);
    r->graph = r->m.s->graph;
    if (o->sliced) {
        ok(graph_slice(r->graph, o->first_layer, o->last_layer, o->slice_flags, &r->slice, &e), &e);
        r->graph = r->slice;
    }
    ok(dev_open(&r->dev, &d, &e), &e);
    ok(weights_load(&r->weights, r->graph, r->m.c, &r->dev, NULL, &e), &e);
    ok(engine_open(&r->engine, &r->dev, r->graph, r->weights, &eo, &e), &e);
    r->plan_cap = step_plan_bytes(engine_limits(r->engine));
    r->plan = malloc(r->plan_cap);
    r->result = malloc(RESULT_CAP);
}

static void rig_close(struct rig *r)
{
    engine_close(r->engine);
    weights_free(r->weights);
    graph_free(r->slice);
    dev_close(&r->dev);
    model_close(&r->m);
    free(r->plan);
    free(r->result);
}

static int try(struct rig *r, const struct tiny_run *runs, uint32_t n, struct err *e)
{
    struct step_plan *p = tiny_plan(r->plan, r->plan_cap, runs, n, ++r->step);
    assert_non_null(p);
    return engine_step(r->engine, p, p->bytes, r->result, RESULT_CAP, e);
}

static struct step_result *run(struct rig *r, const struct tiny_run *runs, uint32_t n)
{
    struct err e = {0};
    ok(try(r, runs, n, &e), &e);
    return r->result;
}

static int32_t token_at(uint64_t sequence, uint32_t position)
{
    return (int32_t)(rng_u64(sequence, position) % BAD_TOKEN);
}

/* A sequence in a slot, with pages of its own. */
struct seq {
    int32_t tokens[PROMPT + STEPS], pages[PAGES];
    uint32_t slot, done;
};

static void seq_init(struct seq *q, uint64_t text, uint32_t slot)
{
    q->slot = slot;
    q->done = 0;
    for (uint32_t i = 0; i < PROMPT + STEPS; i++)
        q->tokens[i] = token_at(text, i);
    for (uint32_t i = 0; i < PAGES; i++)
        q->pages[i] = (int32_t)(slot * PAGES + i);
}

static struct tiny_run seq_run(struct seq *q, uint32_t n, uint32_t flags)
{
    struct tiny_run r = {.request = q->slot,
                         .tokens = q->tokens + q->done,
                         .n_tokens = n,
                         .position = q->done,
                         .flags = flags,
                         .pages = q->pages,
                         .n_pages = (q->done + n + PT - 1) / PT,
                         .slot = q->slot};
    q->done += n;
    return r;
}

/* ---- one request in a crowd ---------------------------------------------------------------------------- */

struct scene {
    uint32_t chunk;    /* prompt tokens a step */
    uint32_t n_others; /* sequences of other lengths in every step */
    uint32_t slot;     /* of our request; the others have the next ones */
};

/* All logits of our request: [PROMPT + STEPS][VOCAB]. */
static void play(struct rig *r, const struct scene *s, float *out)
{
    struct seq q[SEQS];
    uint32_t me = s->n_others / 2, n = s->n_others + 1;
    for (uint32_t k = 0; k < n; k++)
        seq_init(&q[k], k == me ? 1 : 100 + k, (s->slot + k + SLOTS - me) % SLOTS);
    while (q[me].done < PROMPT + STEPS) {
        struct tiny_run runs[SEQS];
        uint32_t before = q[me].done, left = PROMPT - before;
        for (uint32_t k = 0; k < n; k++) {
            uint32_t count = k != me            ? 1 + (k * 5 + before) % 11
                             : before >= PROMPT ? 1
                             : left < s->chunk  ? left
                                                : s->chunk;
            if (q[k].done + count > PROMPT + STEPS)
                q[k].done = 0; /* another one starts over in the same slot */
            runs[k] = seq_run(&q[k], count, k == me ? STEP_ALL_LOGITS : 0);
        }
        struct step_result *res = run(r, runs, n);
        memcpy(out + (size_t)before * VOCAB, step_result_logits(res),
               (size_t)(q[me].done - before) * VOCAB * sizeof *out);
    }
}

static void expect_same(const float *a, const float *b, const char *isa, const char *what)
{
    for (size_t i = 0; i < N_LOGITS; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s, %s: logit %zu of row %zu is %.9g instead of %.9g", isa, what, i % VOCAB, i / VOCAB,
                     (double)b[i], (double)a[i]);
}

static void expect_finite(const float *x)
{
    double sum = 0;
    for (size_t i = 0; i < N_LOGITS; i++)
        sum += fabs((double)x[i]);
    assert_true(isfinite(sum) && sum > 0);
}

static void compare_scenes(struct rig *r, const char *isa, const float *want, float *got)
{
    static const uint32_t chunks[] = {PROMPT, 1, 5, 64};
    char name[64];
    for (size_t c = 0; c < ARRAY_LEN(chunks); c++)
        for (uint32_t others = 0; others < SEQS; others++) {
            uint32_t slot = (uint32_t)(3 * c + 5 * others) % SLOTS;
            if (chunks[c] == 1 && others % 3)
                continue; /* many steps: four batches of the eight */
            snprintf(name, sizeof name, "batch of %u, chunks of %u, slot %u", others + 1, chunks[c], slot);
            play(r, &(struct scene){chunks[c], others, slot}, got);
            expect_same(want, got, isa, name);
        }
}

static void test_same_bits(void **state)
{
    (void)state;
    float *want = malloc(N_LOGITS * sizeof *want), *got = malloc(N_LOGITS * sizeof *got);
    for (int isa = 0; isa < KERN_N_ISA; isa++) {
        if (!kern_isa_available((enum kern_isa)isa))
            continue;
        struct rig r;
        struct rig_options o = {.isa = kern_isa_name((enum kern_isa)isa)};
        rig_open(&r, &o);
        assert_int_equal(engine_limits(r.engine)->n_slots, SLOTS);
        play(&r, &(struct scene){PROMPT, 0, 0}, want);
        expect_finite(want);
        compare_scenes(&r, o.isa, want, got);
        rig_close(&r);
        o.n_threads = 2;
        o.poison = true;
        rig_open(&r, &o);
        play(&r, &(struct scene){5, 7, 4}, got);
        expect_same(want, got, o.isa, "two threads, states full of NaN");
        rig_close(&r);
    }
    free(want);
    free(got);
}

/* What was said before the reach of the convolutions must matter: else no state was tested. */
static void test_state_is_used(void **state)
{
    (void)state;
    struct rig r;
    struct seq a, b;
    float first[VOCAB], second[VOCAB];
    rig_open(&r, &(struct rig_options){.sliced = true, .last_layer = 0, .slice_flags = GRAPH_PROLOGUE});
    assert_int_equal(engine_limits(r.engine)->n_slots, SLOTS);
    size_t rows, width;
    struct err e = {0};
    seq_init(&a, 1, 2);
    seq_init(&b, 1, 3);
    b.tokens[0] = (b.tokens[0] + 1) % BAD_TOKEN;
    for (uint32_t i = 0; i < 2; i++) {
        struct seq *q = i ? &b : &a;
        struct tiny_run one = seq_run(q, 12, 0);
        float hidden[12 * HIDDEN];
        run(&r, &one, 1);
        ok(engine_read_result(r.engine, hidden, ARRAY_LEN(hidden), &rows, &width, &e), &e);
        assert_int_equal(width, HIDDEN);
        memcpy(i ? second : first, hidden + 11 * HIDDEN, HIDDEN * sizeof(float));
    }
    assert_memory_not_equal(first, second, HIDDEN * sizeof(float));
    rig_close(&r);
}

/* ---- slots --------------------------------------------------------------------------------------------- */

/* A finished sequence leaves its state, a bad one leaves NaN: neither shows in the next one of that slot, nor
 * in one that runs beside it. */
static void test_used_slots(void **state)
{
    (void)state;
    struct rig fresh, r;
    float *want = malloc(N_LOGITS * sizeof *want), *got = malloc(N_LOGITS * sizeof *got);
    rig_open(&fresh, &(struct rig_options){0});
    play(&fresh, &(struct scene){5, 0, 6}, want);
    rig_close(&fresh);
    rig_open(&r, &(struct rig_options){.poison = true});
    for (uint32_t slot = 0; slot < SLOTS; slot++) { /* every slot but one is full of NaN */
        struct seq q;
        seq_init(&q, 50 + slot, slot);
        if (slot != 6)
            q.tokens[3] = BAD_TOKEN;
        struct tiny_run one = seq_run(&q, 20, STEP_SAMPLE);
        struct step_result *res = run(&r, &one, 1);
        assert_int_equal(step_result_seqs(res)[0].status, slot == 6 ? STEP_OK : STEP_NOT_FINITE);
    }
    play(&r, &(struct scene){5, 0, 6}, got);
    expect_same(want, got, "fast", "slot of a finished sequence");
    play(&r, &(struct scene){5, 0, 2}, got);
    expect_same(want, got, "fast", "slot full of NaN");
    /* beside sequences of NaN, step by step */
    struct seq bad[3], me;
    seq_init(&me, 1, 4);
    for (uint32_t i = 0; i < 3; i++) {
        seq_init(&bad[i], 60 + i, 8 + i);
        bad[i].tokens[i] = BAD_TOKEN;
    }
    while (me.done < PROMPT) {
        uint32_t at = me.done;
        struct tiny_run runs[4] = {seq_run(&bad[0], 7, 0), seq_run(&bad[1], 7, 0),
                                   seq_run(&me, 7, STEP_ALL_LOGITS), seq_run(&bad[2], 7, 0)};
        struct step_result *res = run(&r, runs, 4);
        assert_memory_equal(step_result_logits(res), want + (size_t)at * VOCAB, 7 * VOCAB * sizeof *want);
    }
    rig_close(&r);
    free(want);
    free(got);
}

static void expect_refused(struct rig *r, const struct tiny_run *runs, uint32_t n, const char *why)
{
    struct err e = {0};
    assert_int_equal(try(r, runs, n, &e), ERR_FORMAT);
    if (!strstr(e.message, why))
        fail_msg("refused because of \"%s\", not \"%s\"", e.message, why);
}

static void test_refused_plans(void **state)
{
    (void)state;
    struct rig r;
    float *want = malloc(N_LOGITS * sizeof *want);
    rig_open(&r, &(struct rig_options){0});
    play(&r, &(struct scene){PROMPT, 0, 9}, want);
    struct seq a, b;
    seq_init(&a, 1, 0);
    seq_init(&b, 2, 1);
    struct tiny_run both[2] = {seq_run(&a, 10, STEP_ALL_LOGITS), seq_run(&b, 10, 0)}, wrong[2];
    memcpy(wrong, both, sizeof wrong);
    wrong[1].slot = 0;
    expect_refused(&r, wrong, 2, "slot 0 is used twice");
    wrong[1].slot = SLOTS;
    expect_refused(&r, wrong, 2, "slot is 11, there are 11");
    wrong[1].slot = UINT32_MAX;
    expect_refused(&r, wrong, 2, "there are 11");
    run(&r, both, 2);
    assert_memory_equal(step_result_logits(r.result), want, 10 * VOCAB * sizeof *want);
    /* goes on elsewhere than the state stands, or where there is none */
    both[0] = seq_run(&a, 10, STEP_ALL_LOGITS);
    wrong[0] = both[0];
    wrong[0].position = 11;
    wrong[0].n_pages = 2;
    expect_refused(&r, wrong, 1, "state in slot 0 stands at 10");
    wrong[0] = both[0];
    wrong[0].slot = 3;
    expect_refused(&r, wrong, 1, "slot 3 holds no state");
    wrong[0].slot = 9; /* ours of before: at 74 */
    expect_refused(&r, wrong, 1, "state in slot 9 stands at 74");
    /* what was refused moved no state */
    run(&r, both, 1);
    assert_memory_equal(step_result_logits(r.result), want + 10 * VOCAB, 10 * VOCAB * sizeof *want);
    expect_refused(&r, both, 1, "state in slot 0 stands at 20"); /* nothing is computed twice */
    rig_close(&r);
    free(want);
}

static void test_limits(void **state)
{
    (void)state;
    struct rig r;
    struct engine *x;
    struct err e = {0};
    uint64_t kv, scratch, fewer;
    rig_open(&r, &(struct rig_options){0});
    engine_memory(r.engine, &kv, &scratch);
    struct engine_options o = {.limits = limits};
    o.limits.n_slots = 0; /* as many as sequences */
    ok(engine_open(&x, &r.dev, r.graph, r.weights, &o, &e), &e);
    assert_int_equal(engine_limits(x)->n_slots, SEQS);
    engine_memory(x, &fewer, &scratch);
    assert_int_equal(kv - fewer, (SLOTS - SEQS) * r.m.s->state_bytes);
    engine_close(x);
    o.limits.n_snapshots = 5;
    ok(engine_open(&x, &r.dev, r.graph, r.weights, &o, &e), &e);
    assert_int_equal(engine_limits(x)->n_snapshots, 5);
    engine_memory(x, &kv, &scratch);
    assert_int_equal(kv - fewer, 5 * r.m.s->state_bytes);
    engine_close(x);
    struct plan_options po = {.max_seqs = SEQS};
    struct plan_memory without, with;
    ok(plan_single(r.m.s, &po, &without, &e), &e);
    po.snapshots = 5;
    ok(plan_single(r.m.s, &po, &with, &e), &e);
    assert_int_equal(with.total - without.total, kv - fewer);
    o.limits.n_snapshots = UINT32_MAX;
    assert_int_equal(engine_open(&x, &r.dev, r.graph, r.weights, &o, &e), ERR_INVALID);
    o.limits.n_snapshots = 0;
    o.limits.n_slots = UINT32_MAX;
    assert_int_equal(engine_open(&x, &r.dev, r.graph, r.weights, &o, &e), ERR_INVALID);
    /* who cannot copy has none */
    struct d0_device_api api = *r.dev.api;
    struct dev no_copy = r.dev;
    api.copy = NULL;
    no_copy.api = &api;
    o.limits.n_slots = 0;
    o.limits.n_snapshots = 5;
    ok(engine_open(&x, &no_copy, r.graph, r.weights, &o, &e), &e);
    assert_int_equal(engine_limits(x)->n_snapshots, 0);
    engine_close(x);
    rig_close(&r);
}

/* ---- snapshots ----------------------------------------------------------------------------------------- */

/* b goes on behind the first `at` tokens of a's text, in its pages, from a snapshot. */
static void behind(struct seq *b, const struct seq *a, uint32_t slot, uint32_t at)
{
    seq_init(b, 1, slot);
    memcpy(b->pages, a->pages, at / PT * sizeof b->pages[0]);
    b->done = at;
}

static void expect_rows(struct rig *r, const float *want, uint32_t first, uint32_t n, const char *what)
{
    if (memcmp(step_result_logits(r->result), want + (size_t)first * VOCAB, n * VOCAB * sizeof *want) != 0)
        fail_msg("%s: other logits at %u to %u", what, first, first + n);
}

static void test_snapshots(void **state)
{
    (void)state;
    float *want = malloc(N_LOGITS * sizeof *want);
    for (int isa = 0; isa < KERN_N_ISA; isa++) {
        if (!kern_isa_available((enum kern_isa)isa))
            continue;
        struct rig r;
        struct seq a, b, c, bad;
        rig_open(&r, &(struct rig_options){
                         .isa = kern_isa_name((enum kern_isa)isa), .snapshots = 3, .poison = true});
        assert_int_equal(engine_limits(r.engine)->n_snapshots, 3);
        play(&r, &(struct scene){PROMPT, 0, 0}, want);
        seq_init(&a, 1, 2);
        seq_init(&bad, 1, 7); /* NaN in slot and pages, beside all that follows */
        bad.tokens[0] = BAD_TOKEN;
        struct tiny_run one = seq_run(&a, 16, 0), two[3], nan = seq_run(&bad, 16, 0);
        run(&r, &one, 1);
        two[0] = seq_run(&a, 16, 0);
        two[0].save = 2;
        two[1] = nan;
        two[1].save = 3;
        run(&r, two, 2);
        /* the writer goes on; twice others begin from what it left, also in one step, and one of them keeps
         * it further on in another */
        one = seq_run(&a, PROMPT - 32, STEP_ALL_LOGITS);
        run(&r, &one, 1);
        expect_rows(&r, want, 32, PROMPT - 32, "the writer");
        behind(&b, &a, 7, 32); /* the slot of NaN */
        behind(&c, &a, 9, 32);
        two[0] = seq_run(&b, 16, STEP_ALL_LOGITS);
        two[1] = seq_run(&c, 5, 0);
        two[0].restore = two[1].restore = 2;
        two[0].save = 1;
        run(&r, two, 2);
        expect_rows(&r, want, 32, 16, "restored");
        two[0] = seq_run(&c, PROMPT - 37, STEP_ALL_LOGITS);
        run(&r, two, 1);
        expect_rows(&r, want, 37, PROMPT - 37, "restored beside another");
        behind(&c, &b, 9, 48);
        two[0] = seq_run(&c, PROMPT - 48, STEP_ALL_LOGITS);
        two[0].restore = 1;
        run(&r, two, 1);
        expect_rows(&r, want, 48, PROMPT - 48, "restored from what was restored");
        rig_close(&r);
    }
    free(want);
}

static void test_refused_snapshots(void **state)
{
    (void)state;
    struct rig r;
    struct seq a, b;
    float *want = malloc(N_LOGITS * sizeof *want);
    rig_open(&r, &(struct rig_options){.snapshots = 2});
    play(&r, &(struct scene){PROMPT, 0, 9}, want);
    seq_init(&a, 1, 0);
    seq_init(&b, 2, 1);
    struct tiny_run both[2] = {seq_run(&a, 16, 0), seq_run(&b, 16, 0)}, wrong[2];
    memcpy(wrong, both, sizeof wrong);
    wrong[0].save = 3;
    expect_refused(&r, wrong, 2, "restores 0 and saves 3, there are 2 snapshots");
    wrong[0].save = UINT32_MAX;
    expect_refused(&r, wrong, 2, "there are 2 snapshots");
    wrong[0].save = wrong[1].save = 1;
    expect_refused(&r, wrong, 2, "snapshot 0 is saved twice");
    wrong[0].save = wrong[1].save = 0;
    wrong[0].restore = 1;
    expect_refused(&r, wrong, 2, "restores a state and begins at position 0");
    both[0].save = 1;
    run(&r, both, 2);
    struct seq c;
    behind(&c, &a, 5, 16);
    both[0] = seq_run(&c, 16, STEP_ALL_LOGITS);
    both[0].restore = 1;
    both[1] = seq_run(&b, 16, 0);
    wrong[0] = both[0];
    wrong[0].restore = 2;
    expect_refused(&r, wrong, 1, "snapshot 1 holds no state");
    wrong[0].restore = 3;
    expect_refused(&r, wrong, 1, "restores 3 and saves 0, there are 2");
    wrong[0] = both[0];
    wrong[0].position = 17;
    wrong[0].n_pages = 3;
    expect_refused(&r, wrong, 1, "state in snapshot 0 stands at 16");
    wrong[0] = both[0];
    wrong[1] = both[1];
    wrong[1].save = 1; /* one reads it, another writes it */
    expect_refused(&r, wrong, 2, "snapshot 0 is restored and saved in one step");
    wrong[0].save = 1; /* the same one does both */
    expect_refused(&r, wrong, 1, "snapshot 0 is restored and saved in one step");
    /* what was refused moved neither slot nor snapshot */
    run(&r, both, 2);
    expect_rows(&r, want, 16, 16, "after refusals");
    rig_close(&r);
    free(want);
}

/* ---- slices -------------------------------------------------------------------------------------------- */

static void test_slices(void **state)
{
    (void)state;
    struct rig whole, a, b;
    rig_open(&whole, &(struct rig_options){0});
    rig_open(&a, &(struct rig_options){.sliced = true, .last_layer = 1, .slice_flags = GRAPH_PROLOGUE});
    rig_open(&b, &(struct rig_options){
                     .sliced = true, .first_layer = 2, .last_layer = 3, .slice_flags = GRAPH_EPILOGUE});
    struct seq q[3];
    float hidden[10 * HIDDEN];
    size_t rows, width;
    struct err e = {0};
    for (uint32_t i = 0; i < 3; i++)
        seq_init(&q[i], 6, 4 + i); /* each engine has slots of its own: other numbers, same bits */
    for (uint32_t at = 0; at < 40; at += 10) {
        struct tiny_run runs[3] = {seq_run(&q[0], 10, STEP_ALL_LOGITS), seq_run(&q[1], 10, 0),
                                   seq_run(&q[2], 10, STEP_ALL_LOGITS)};
        struct step_result *want = run(&whole, &runs[0], 1);
        run(&a, &runs[1], 1);
        ok(engine_read_result(a.engine, hidden, ARRAY_LEN(hidden), &rows, &width, &e), &e);
        ok(engine_set_hidden(b.engine, 0, hidden, rows, width, &e), &e);
        struct step_result *got = run(&b, &runs[2], 1);
        assert_memory_equal(step_result_logits(want), step_result_logits(got), 10 * VOCAB * sizeof(float));
    }
    rig_close(&whole);
    rig_close(&a);
    rig_close(&b);
}

/* ---- scheduling ---------------------------------------------------------------------------------------- */

struct texts {
    int32_t token[12][20];
    float logprob[12][20];
    uint32_t n[12], n_cached;
};

static void on_text(void *context, const struct sched_event *event)
{
    struct texts *t = context;
    if (event->token < 0 || t->n[event->id] >= 20)
        fail_msg("request %u failed: %s", (unsigned)event->id, event->why ? event->why : "too long");
    t->token[event->id][t->n[event->id]] = event->token;
    t->logprob[event->id][t->n[event->id]++] = event->logprob;
    t->n_cached += event->n_cached;
}

/* Twelve requests with a common beginning; `together` of them submitted at a time. */
static void write_texts(struct texts *t, uint32_t chunk, uint32_t together, uint64_t lose_engine_at,
                        uint32_t snapshots)
{
    struct rig r;
    struct sched *s;
    struct err e = {0};
    rig_open(&r, &(struct rig_options){.poison = true, .snapshots = snapshots});
    struct sched_options so = {.limits = *engine_limits(r.engine),
                               .max_context = PAGES * PT,
                               .max_waiting = 64,
                               .prefix_cache = true,
                               .prefill_chunk = chunk};
    memset(t, 0, sizeof *t);
    ok(sched_open(&s, &so, &e), &e);
    uint64_t n_steps = 0;
    for (uint64_t id = 0; id < 12;) {
        for (uint32_t k = 0; k < together && id < 12; k++, id++) {
            int32_t prompt[60];
            for (uint32_t i = 0; i < 60; i++)
                prompt[i] = token_at(i < 35 ? 1 : id, i);
            struct sched_request q = {
                .id = id,
                .prompt = prompt,
                .n_prompt = 38 + (uint32_t)id,
                .max_new = 20,
                .sampling = {.temperature = id % 3 ? 1 : 0, .top_p = 0.95f, .seed = id, .want_logprob = 1}};
            q.sampling.vocab_limit = BAD_TOKEN;
            ok(sched_submit(s, &q, &e), &e);
        }
        for (;;) {
            struct step_plan *p;
            ok(sched_plan(s, r.plan, r.plan_cap, &p, &e), &e);
            if (!p)
                break;
            if (++n_steps == lose_engine_at) {
                sched_engine_lost(s);
                continue;
            }
            ok(engine_step(r.engine, p, p->bytes, r.result, RESULT_CAP, &e), &e);
            ok(sched_apply(s, r.result, ((struct step_result *)r.result)->bytes, on_text, t, &e), &e);
            ok(sched_check(s, &e), &e);
        }
    }
    sched_close(s);
    rig_close(&r);
}

static void test_same_texts(void **state)
{
    (void)state;
    static const struct {
        uint32_t chunk, together;
        uint64_t lose;
        uint32_t snapshots;
    } ways[] = {{0, 12, 0, 0}, {5, 3, 0, 0}, {9, 12, 0, 0}, {0, 4, 17, 0}, {7, 12, 40, 0}, {0, 12, 0, 6},
                {5, 3, 0, 2},  {9, 1, 0, 1}, {0, 1, 0, 9},  {0, 4, 17, 3}, {7, 12, 40, 5}, {0, 2, 0, 4}};
    struct texts want, got;
    write_texts(&want, 0, 1, 0, 0);
    assert_int_equal(want.n[11], 20);
    assert_int_equal(want.n_cached, 0); /* prefixes are common, but no state is kept */
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        write_texts(&got, ways[i].chunk, ways[i].together, ways[i].lose, ways[i].snapshots);
        /* the common beginning is 35 tokens; of twelve at once nobody comes after another */
        if (ways[i].snapshots && ways[i].together == 1)
            assert_true(got.n_cached >= 9 * 20 * 32); /* told with each of 20 tokens */
        if (!ways[i].snapshots)
            assert_int_equal(got.n_cached, 0);
        got.n_cached = 0;
        assert_memory_equal(&want, &got, sizeof want);
    }
}

/* ---- verification -------------------------------------------------------------------------------------- */

static void test_verification(void **state)
{
    (void)state;
    struct model m;
    struct err e = {0};
    struct verify_piece *pieces;
    struct verify_bits_result bits;
    struct verify_op_row *rows;
    struct dev d;
    size_t n;
    int32_t ids[90];
    for (uint32_t i = 0; i < 90; i++)
        ids[i] = token_at(3, i);
    model_open(&m);
    ok(dev_open(&d, &(struct dev_options){.name = "cpu", .isa = "fast", .n_threads = 2}, &e), &e);
    ok(verify_matrix(&d, m.s->graph, &m.arena, &rows, &n, &m.f, &e), &e);
    for (size_t i = 0; i < n; i++)
        if (!rows[i].supported)
            fail_msg("%s %s: %s", rows[i].op, rows[i].types, rows[i].reason);
    ok(verify_minimal(&d, m.s, m.c, 0, &m.arena, &pieces, &n, &m.f, &m.d0, &e), &e);
    assert_int_equal(n, 2 + 3); /* embedding and head; two kinds of recurrent layers, one of attention */
    for (size_t i = 0; i < n; i++) {
        /* the embedding of the bad token is found, and nothing else */
        if (!pieces[i].ran || (i > 0 && pieces[i].why[0]) || pieces[i].relative_l2 > 1e-5)
            fail_msg("%s: ran %d, relative L2 %g, %s", pieces[i].name, pieces[i].ran, pieces[i].relative_l2,
                     pieces[i].why);
    }
    ok(verify_bits(&d, m.s, m.c, ids, 90, fusions_exact(), &bits, &m.f, &m.d0, &e), &e);
    assert_true(bits.ran && bits.cases >= 6);
    if (bits.equal != bits.cases)
        fail_msg("%s", bits.first_difference);
    dev_close(&d);
    model_close(&m);
}

/* One size, type or attribute other than the kernels take, and the device must refuse the node. */
static void expect_tight(struct dev *d, const struct d0_part *part, uint32_t node, const char *what)
{
    char reason[200];
    if (dev_supports(d, part, node, reason, sizeof reason))
        fail_msg("node %u is taken with another %s", node, what);
    assert_true(reason[0]);
}

static void spoil_input(struct dev *d, struct d0_part *part, uint32_t node, uint32_t input)
{
    struct d0_value *v = (struct d0_value *)(uintptr_t)&part->values[part->nodes[node].inputs[input]],
                    was = *v;
    bool is_a_log = part->nodes[node].op == D0_OP_DELTA_RULE && input == 5;
    char what[64];
    for (uint32_t k = v->kind == D0_VALUE_STATE ? 1 : 0; k < v->n_dims; k++) {
        snprintf(what, sizeof what, "size %u of input %u", k, input);
        v->dims[k] = v->dims[k] > 0 ? v->dims[k] + (is_a_log ? -3 : 1) : D0_DIM_PAGES;
        if (was.role != D0_INPUT_SLOTS) /* how many sequences there are is told by the step */
            expect_tight(d, part, node, what);
        *v = was;
    }
    snprintf(what, sizeof what, "type of input %u", input);
    v->dtype = D0_I64;
    expect_tight(d, part, node, what);
    if (was.kind == D0_VALUE_STATE) {
        *v = was;
        v->dtype = D0_BF16;
        expect_tight(d, part, node, what);
        *v = was;
        v->kind = D0_VALUE_WEIGHT;
        expect_tight(d, part, node, "kind of state");
    }
    *v = was;
}

static void test_rules_are_tight(void **state)
{
    (void)state;
    struct model m;
    struct err e = {0};
    struct dev d;
    struct d0_part part;
    char reason[200];
    uint32_t seen = 0;
    const int64_t dims[D0_N_DIMS] = {8, 2, 2, 4};
    model_open(&m);
    ok(dev_open(&d, &(struct dev_options){.name = "cpu", .isa = "ref", .n_threads = 1}, &e), &e);
    ok(graph_plan_memory(m.s->graph, dims, false, &e), &e);
    graph_part(m.s->graph, &part);
    for (uint32_t i = 0; i < part.n_nodes; i++) {
        struct d0_node *n = (struct d0_node *)(uintptr_t)&part.nodes[i];
        if (n->op != D0_OP_SHORT_CONV && n->op != D0_OP_DELTA_RULE)
            continue;
        seen++;
        for (uint32_t k = 0; k < n->n_inputs; k++)
            if (n->inputs[k] != D0_NO_VALUE)
                spoil_input(&d, &part, i, k);
        for (uint32_t k = 0; k < n->n_attrs; k++) {
            struct d0_attr *a = &n->attrs[k], was = *a;
            if (a->is_float)
                a->v.f = a->key == D0_ATTR_SCALE ? (double)INFINITY : a->key == D0_ATTR_EPS ? -1 : 5;
            else
                a->v.i++; /* of heads, one that divides nothing; of decay, one that is unknown */
            expect_tight(&d, &part, i, attr_name(a->key));
            *a = was;
        }
        if (!dev_supports(&d, &part, i, reason, sizeof reason))
            fail_msg("as it was, node %u: %s", i, reason);
    }
    assert_int_equal(seen, 3 * 3);
    dev_close(&d);
    model_close(&m);
}

/* The device that only tracks memory: every slot and input is written before it is read. */
static void test_null_device(void **state)
{
    (void)state;
    struct model m;
    struct err e = {0};
    struct dev d;
    struct weights *w;
    struct engine *x;
    struct seq q;
    model_open(&m);
    ok(dev_open(&d, &(struct dev_options){.name = "null"}, &e), &e);
    ok(weights_load(&w, m.s->graph, m.c, &d, NULL, &e), &e);
    struct engine_options eo = {.limits = limits};
    eo.limits.n_snapshots = 2;
    ok(engine_open(&x, &d, m.s->graph, w, &eo, &e), &e);
    _Alignas(8) char plan[4096];
    void *result = malloc(RESULT_CAP);
    seq_init(&q, 1, 3);
    struct tiny_run one = seq_run(&q, 5, STEP_SAMPLE);
    one.save = 2;
    struct step_plan *p = tiny_plan(plan, sizeof plan, &one, 1, 1);
    ok(engine_step(x, p, p->bytes, result, RESULT_CAP, &e), &e);
    one = seq_run(&q, 5, STEP_SAMPLE);
    one.restore = 2;
    p = tiny_plan(plan, sizeof plan, &one, 1, 2);
    ok(engine_step(x, p, p->bytes, result, RESULT_CAP, &e), &e);
    free(result);
    engine_close(x);
    weights_free(w);
    dev_close(&d);
    model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),   cmocka_unit_test(test_state_is_used),
        cmocka_unit_test(test_used_slots),  cmocka_unit_test(test_refused_plans),
        cmocka_unit_test(test_limits),      cmocka_unit_test(test_slices),
        cmocka_unit_test(test_snapshots),   cmocka_unit_test(test_refused_snapshots),
        cmocka_unit_test(test_same_texts),  cmocka_unit_test(test_verification),
        cmocka_unit_test(test_null_device), cmocka_unit_test(test_rules_are_tight),
    };
    return cmocka_run_group_tests(tests, write_model, remove_model);
}
