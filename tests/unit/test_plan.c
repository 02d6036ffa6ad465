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

static void degrees(const struct sizes *z, const char *expected)
{
    struct model m;
    struct plan_degree d[16];
    char got[16] = "";
    open_model(&m, z);
    size_t n = plan_tp_degrees(m.s, d, 16);
    assert_int_equal(n, 7);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(d[i].tp, 1u << i);
        got[i] = d[i].exact ? 'e' : (d[i].legal ? 'l' : '-');
        assert_true(!d[i].exact || d[i].legal);
        if ((d[i].reason[0] == 0) != (got[i] == 'e'))
            fail_msg("tp %u: reason \"%s\"", d[i].tp, d[i].reason);
    }
    if (strcmp(got, expected) != 0)
        fail_msg("%s, expected %s (%s)", got, expected, d[1].reason);
    assert_int_equal(plan_tp_degrees(m.s, d, 2), 2);
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
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single),
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_degrees),
        cmocka_unit_test(test_smallest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
