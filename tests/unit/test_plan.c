/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan: memory of one rank against hand-made sums, TP degrees of known models, the smallest layout
 * against brute force.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "plan/plan.h"

/* ---- models made of a config alone ---- */

struct model {
    struct d0 d0;
    struct findings f;
    struct ckpt *c;
    struct spec *s;
};

struct sizes {
    int hidden, intermediate, layers, heads, kv, vocab;
    bool tied;
};

static void open_model(struct model *m, const struct sizes *z)
{
    char dir[] = "/tmp/day0-plan-XXXXXX", path[64], text[600];
    struct err e = {0};
    memset(m, 0, sizeof *m);
    m->d0.log.fd = -1;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    snprintf(text, sizeof text,
             "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": %d, \"intermediate_size\": %d, "
             "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, "
             "\"vocab_size\": %d, "
             "\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5, \"torch_dtype\": \"bfloat16\", "
             "\"tie_word_embeddings\": %s}",
             z->hidden, z->intermediate, z->layers, z->heads, z->kv, z->vocab, z->tied ? "true" : "false");
    assert_int_equal(file_write_atomic(path, text, strlen(text), &e), ERR_OK);
    findings_init(&m->f, &m->d0.mem);
    assert_int_equal(ckpt_open(&m->c, dir, &m->f, &m->d0, &e), ERR_OK);
    if (spec_open(&m->s, m->c, NULL, &m->f, &m->d0, &e) || m->s == NULL)
        fail_msg("%s %s", e.message, m->f.n ? m->f.items[m->f.n - 1].evidence : "");
    unlink(path);
    rmdir(dir);
}

static void close_model(struct model *m)
{
    spec_close(m->s);
    ckpt_close(m->c);
    findings_release(&m->f);
}

static const struct sizes small = {
    .hidden = 256, .intermediate = 1024, .layers = 4, .heads = 8, .kv = 2, .vocab = 1000};

/* ---- one rank ---- */

static void test_single(void **state)
{
    (void)state;
    struct model m;
    struct plan_memory p;
    struct err e = {0};
    open_model(&m, &small);
    struct plan_options o = {.memory_bytes = (uint64_t)1 << 30,
                             .max_step_tokens = 64,
                             .max_seqs = 3,
                             .max_rows = 5,
                             .context_tokens = 1000};
    assert_int_equal(plan_single(m.s, &o, &p, &e), ERR_OK);
    /* bf16 tensors, all multiples of 64 bytes; inverse frequencies f32[16] */
    uint64_t layer = 2 * (256 * 256 * 2 + 2 * 64 * 256 + 3 * 1024 * 256 + 2 * 256);
    assert_int_equal(p.weights, 4 * layer + 2 * (2 * 1000 * 256) + 2 * 256 + 64);
    assert_int_equal(p.kv_pages, 63 + 2); /* ceil(1000 / 16), and all but one sequence may waste a page */
    assert_int_equal(p.kv, p.kv_pages * 16 * (4 * 2 * 2 * 32 * 2));
    struct graph *g;
    const int64_t dims[D0_N_DIMS] = {64, 3, 5, 63};
    assert_int_equal(graph_copy(m.s->graph, &g, &e), ERR_OK);
    assert_int_equal(graph_plan_memory(g, dims, false, &e), ERR_OK);
    assert_int_equal(p.scratch, g->scratch_bytes);
    graph_free(g);
    assert_int_equal(m.s->graph->scratch_bytes, 0); /* the description itself is untouched */
    uint64_t inputs = 3 * 64 * 4 + 3 * 63 * 4 + 5 * 4, logits = 5 * 1000 * 4;
    assert_int_equal(p.fixed, inputs + logits + (32 << 20));
    assert_int_equal(p.total, p.weights + p.kv + p.scratch + p.staging + p.fixed);
    assert_true(p.fits);
    o.memory_bytes = p.total;
    assert_int_equal(plan_single(m.s, &o, &p, &e), ERR_OK);
    assert_true(p.fits);
    o.memory_bytes--;
    assert_int_equal(plan_single(m.s, &o, &p, &e), ERR_OK);
    assert_false(p.fits);
    /* defaults: the whole context of one sequence */
    assert_int_equal(plan_single(m.s, &(struct plan_options){0}, &p, &e), ERR_OK);
    assert_int_equal(p.kv_pages, 4096 / 16);
    assert_false(p.fits);
    /* absurd wishes do not wrap around */
    o = (struct plan_options){.memory_bytes = UINT64_MAX, .context_tokens = UINT64_MAX, .max_seqs = 1};
    assert_int_equal(plan_single(m.s, &o, &p, &e), ERR_OK);
    assert_false(p.fits);
    o = (struct plan_options){.max_step_tokens = UINT32_MAX};
    assert_int_equal(plan_single(m.s, &o, &p, &e), ERR_INVALID);
    assert_int_equal(plan_single(m.s, &o, &p, NULL), ERR_INVALID);
    close_model(&m);
}

struct asked {
    unsigned n;
    int64_t dims[D0_N_DIMS], pages;
    int rc;
};

static int need(void *context, const struct d0_part *part, uint64_t *bytes, struct err *e)
{
    struct asked *a = context;
    a->n++;
    memcpy(a->dims, part->max_dims, sizeof(a->dims));
    for (uint32_t i = 0; i < part->n_values; i++)
        if (part->values[i].kind == D0_VALUE_STATE)
            a->pages = part->values[i].dims[0];
    *bytes = 123456;
    return a->rc ? err_set(e, a->rc, "the device is gone") : ERR_OK;
}

/* What the device sets aside is a part of the plan: asked for the step and the pages that an engine will
 * have, and it decides what fits. */
static void test_device_need(void **state)
{
    (void)state;
    struct model m;
    struct plan_memory without, with;
    struct err e = {0};
    struct asked a = {0};
    struct plan_layout l;
    open_model(&m, &small);
    struct plan_options o = {.memory_bytes = (uint64_t)1 << 30,
                             .max_step_tokens = 64,
                             .max_seqs = 3,
                             .max_rows = 5,
                             .context_tokens = 1000};
    assert_int_equal(plan_single(m.s, &o, &without, &e), ERR_OK);
    assert_int_equal(without.device, 0);
    o.device_need = need;
    o.device = &a;
    assert_int_equal(plan_single(m.s, &o, &with, &e), ERR_OK);
    assert_int_equal(a.n, 1);
    assert_int_equal(with.device, 123456);
    assert_int_equal(with.total, without.total + 123456);
    assert_int_equal(with.scratch, without.scratch);
    assert_memory_equal(a.dims, ((int64_t[]){64, 3, 5, 63}), sizeof a.dims);
    assert_int_equal(a.pages, 63 + 2);
    o.request_tokens = 100; /* the longest request: seven entries of the page table */
    assert_int_equal(plan_single(m.s, &o, &with, &e), ERR_OK);
    assert_int_equal(a.dims[3], 7);
    assert_int_equal(with.total, without.total + 123456 - 3 * (63 - 7) * 4);
    assert_int_equal(with.kv, without.kv);
    o.request_tokens = 0;
    o.memory_bytes = without.total + 123455;
    assert_int_equal(plan_single(m.s, &o, &with, &e), ERR_OK);
    assert_false(with.fits);
    assert_true(plan_smallest(m.s, &o, &l, &with));
    assert_int_equal(with.device, 123456);
    assert_true(l.pp * l.tp > 1);
    o.memory_bytes++;
    assert_int_equal(plan_single(m.s, &o, &with, &e), ERR_OK);
    assert_true(with.fits);
    a.rc = ERR_DEVICE;
    assert_int_equal(plan_single(m.s, &o, &with, &e), ERR_DEVICE);
    assert_non_null(strstr(e.message, "gone"));
    close_model(&m);
}

static void test_tied(void **state)
{
    (void)state;
    struct model a, b;
    struct plan_memory p, q;
    struct sizes z = small;
    struct plan_options o = {.memory_bytes = 1 << 30};
    uint64_t layer, embedding, head, largest_layer, free_head;
    open_model(&a, &z);
    z.tied = true;
    open_model(&b, &z);
    assert_int_equal(plan_single(a.s, &o, &p, NULL), ERR_OK);
    assert_int_equal(plan_single(b.s, &o, &q, NULL), ERR_OK);
    assert_int_equal(p.weights - q.weights, 2 * 1000 * 256); /* one copy in memory */
    plan_streaming(b.s, &layer, &embedding, &head);
    assert_int_equal(embedding, 2 * 1000 * 256 + 64);
    assert_int_equal(head, 2 * 1000 * 256 + 512); /* but both ends stream it */
    assert_int_equal(layer, 2 * (256 * 256 * 2 + 2 * 64 * 256 + 3 * 1024 * 256 + 2 * 256));
    plan_streaming(a.s, &largest_layer, &embedding, &free_head);
    assert_int_equal(largest_layer, layer);
    assert_int_equal(free_head, head);
    close_model(&a);
    close_model(&b);
}

/* ---- tensor parallelism ---- */

static void judge(struct model *m, struct plan_degrees *d, struct arena *a)
{
    arena_init(a, NULL, MEM_MISC);
    assert_int_equal(plan_degrees(m->s, a, d, NULL), ERR_OK);
    assert_int_equal(d->n_tp, 64);
    for (size_t i = 0; i < d->n_tp; i++) {
        const struct plan_degree *x = &d->tp[i];
        assert_int_equal(x->degree, i + 1);
        assert_true(!x->exact || x->legal);
        assert_true(x->stem_bytes <= strlen(x->reason));
        if ((x->reason[0] == 0) != x->exact || (x->stem_bytes == 0) != x->exact)
            fail_msg("tp %u: reason \"%s\"", x->degree, x->reason);
    }
}

/* expected: of 1, 2, 4 ... 64 */
static void degrees(const struct sizes *z, const char *expected)
{
    struct model m;
    struct plan_degrees d;
    struct arena a;
    char got[8] = "";
    open_model(&m, z);
    judge(&m, &d, &a);
    for (size_t i = 0; i < 7; i++) {
        const struct plan_degree *x = &d.tp[((size_t)1 << i) - 1];
        got[i] = x->exact ? 'e' : (x->legal ? 'l' : '-');
    }
    if (strcmp(got, expected) != 0)
        fail_msg("%s, expected %s (%s)", got, expected, d.tp[1].reason);
    assert_int_equal(d.n_ep, 0); /* no experts */
    arena_release(&a);
    close_model(&m);
}

static void test_degrees(void **state)
{
    (void)state;
    degrees(&(struct sizes){4096, 14336, 2, 32, 8, 128256, false}, "eeeeee-"); /* kv heads copied beyond 8 */
    degrees(&(struct sizes){16384, 53248, 2, 128, 8, 128256, false}, "eeeeeee");
    degrees(&(struct sizes){64, 172, 2, 8, 4, 512, true}, "ell----"); /* 172 values make one segment */
    degrees(&(struct sizes){5120, 13824, 2, 40, 40, 32000, false}, "eeee---"); /* 40 heads */
    degrees(&(struct sizes){256, 1024, 2, 8, 2, 1000, false}, "eeee---");
    degrees(&(struct sizes){256, 1024, 2, 8, 2, 999, false}, "e------"); /* odd vocabulary */
    degrees(&(struct sizes){96, 128, 2, 3, 3, 128, false}, "e------");
    degrees(&(struct sizes){256, 96, 2, 8, 8, 1024, false}, "elll---");    /* 96 = 3 vectors: one segment */
    degrees(&(struct sizes){128, 256, 2, 8, 1, 1024, false}, "eeel---");   /* o_proj: 128 = 4 vectors */
    degrees(&(struct sizes){768, 1024, 2, 12, 6, 1024, false}, "ee-----"); /* 6 kv heads: not over 4 */
    degrees(&(struct sizes){768, 1024, 2, 12, 3, 1024, false},
            "e------"); /* 3 kv heads neither divide nor copy */
}

/* Every degree against the rules written down once more: whole heads, kv heads dealt out or copied, equal
 * parts of the MLP and of the vocabulary. */
static void every_degree(const struct sizes *z)
{
    struct model m;
    struct plan_degrees d;
    struct arena a;
    open_model(&m, z);
    judge(&m, &d, &a);
    for (int tp = 1; tp <= 64; tp++) {
        const struct plan_degree *x = &d.tp[tp - 1];
        char by[16];
        bool kv = z->kv % tp == 0 || (z->kv < tp && tp % z->kv == 0), heads = z->heads % tp == 0 && kv,
             vocab = z->vocab % tp == 0, inter = z->intermediate % tp == 0;
        if (x->legal != (heads && vocab && inter))
            fail_msg("tp %d: %s \"%s\"", tp, x->legal ? "legal" : "not legal", x->reason);
        /* segments are powers of two: so are the degrees that are exact */
        assert_true(!x->exact || (tp & (tp - 1)) == 0);
        if (x->legal)
            continue;
        snprintf(by, sizeof by, " by %d", tp);
        const char *why = !heads ? "heads with" : !vocab ? "embed_tokens" : "up_proj";
        bool other = heads && (strstr(x->reason, "lm_head") || strstr(x->reason, "gate_proj"));
        if (!str_ends(x->reason, by) || (!strstr(x->reason, why) && !other))
            fail_msg("tp %d: \"%s\", expected %s", tp, x->reason, why);
        assert_string_equal(x->reason + x->stem_bytes, by);
    }
    arena_release(&a);
    close_model(&m);
}

static void is(const struct plan_degree *d, uint32_t tp, bool legal, bool exact, const char *reason)
{
    const struct plan_degree *x = &d[tp - 1];
    if (x->legal != legal || x->exact != exact || strcmp(x->reason, reason) != 0)
        fail_msg("%u: %s, %s: \"%s\"", tp, x->legal ? "legal" : "not legal", x->exact ? "exact" : "not exact",
                 x->reason);
}

static void test_every_degree(void **state)
{
    (void)state;
    /* 168 heads divide by 3, 6, 7, 8 and 56 */
    const struct sizes wide = {168 * 32, 168 * 64, 2, 168, 168, 168 * 100, false};
    every_degree(&wide);
    every_degree(&(struct sizes){168 * 32, 168 * 64, 2, 168, 3, 168 * 100, false}); /* 3 kv heads copied */
    every_degree(
        &(struct sizes){168 * 32, 168 * 64, 2, 168, 12, 168 * 25, false});        /* vocabulary: not by 16 */
    every_degree(&(struct sizes){168 * 32, 1024, 2, 168, 168, 168 * 100, false}); /* MLP: not by 3 */
    every_degree(&(struct sizes){60 * 32, 60 * 32, 2, 60, 60, 60 * 60, true});
    every_degree(&(struct sizes){64, 172, 2, 8, 4, 512, true});
    struct model m;
    struct plan_degrees d;
    struct arena a;
    open_model(&m, &wide);
    judge(&m, &d, &a);
    is(d.tp, 1, true, true, "");
    is(d.tp, 2, true, true, "");
    is(d.tp, 3, true, false, "self_attn.o_proj is summed in 8 x 672 values"); /* 168 = 8 x 21 heads */
    is(d.tp, 5, false, false, "168 heads with 168 kv heads do not divide by 5");
    is(d.tp, 6, true, false, "self_attn.o_proj is summed in 8 x 672 values");
    is(d.tp, 7, true, false, "self_attn.o_proj is summed in 8 x 672 values");
    is(d.tp, 8, true, true, "");
    is(d.tp, 56, true, false, "self_attn.o_proj is summed in 8 x 672 values");
    is(d.tp, 64, false, false, "168 heads with 168 kv heads do not divide by 64");
    arena_release(&a);
    close_model(&m);
}

/* ---- layouts ---- */

static void test_smallest(void **state)
{
    (void)state;
    struct model m;
    struct plan_memory p, one;
    struct plan_layout l;
    struct sizes z = {4096, 14336, 32, 32, 8, 128256, false};
    open_model(&m, &z);
    struct plan_options o = {.memory_bytes = (uint64_t)80 << 30, .context_tokens = 8192, .max_seqs = 4};
    assert_true(plan_smallest(m.s, &o, &l, &p));
    assert_int_equal(l.pp * l.tp * l.dp * l.ep, 1);
    assert_int_equal(plan_single(m.s, &o, &one, NULL), ERR_OK);
    assert_int_equal(p.total, one.total);
    uint32_t last = 1;
    for (uint64_t gib = 24; gib >= 1;
         gib = gib * 3 / 4) { /* less memory, no fewer ranks, and it really fits */
        o.memory_bytes = gib << 30;
        if (!plan_smallest(m.s, &o, &l, &p))
            fail_msg("%llu GiB: no layout", (unsigned long long)gib);
        assert_true(l.pp * l.tp >= last);
        assert_true(p.fits && p.total <= o.memory_bytes);
        assert_true(p.weights >= m.s->parameters * 2 / (l.pp * l.tp));
        assert_true((uint64_t)l.pp * l.tp * o.memory_bytes >= m.s->parameters * 2);
        last = l.pp * l.tp;
    }
    assert_true(last > 16);
    o.memory_bytes = 1 << 20;
    assert_false(plan_smallest(m.s, &o, &l, &p));
    o.max_step_tokens = UINT32_MAX;
    assert_false(plan_smallest(m.s, &o, &l, &p));
    o.memory_bytes = UINT64_MAX;
    assert_false(plan_smallest(m.s, &o, &l, &p));
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single),  cmocka_unit_test(test_device_need),  cmocka_unit_test(test_tied),
        cmocka_unit_test(test_degrees), cmocka_unit_test(test_every_degree), cmocka_unit_test(test_smallest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
