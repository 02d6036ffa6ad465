/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: that a comparison names the right probe and the right operator: one weight, one attribute or one
 * value is made wrong, and it is that one which is told, and nothing else.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "oracle/compare_impl.h"
#include "scratch_dir.h"
#include "tiny_model.h"

enum { TOKENS = 24 };

static char dir[] = "/tmp/day0_compare_XXXXXX";

static const char *in_dir(const char *name)
{
    return path_in(dir, name);
}

/* ---- recordings ---- */

static void record(const char *model, const char *isa, const char *probes, int32_t flip, const char *to)
{
    struct tiny_model m;
    struct record_result r;
    struct arena arena;
    struct err e = {0};
    int32_t ids[TOKENS];
    tiny_model_open(&m, in_dir(model), NULL, isa);
    arena_init(&arena, NULL, MEM_MISC);
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (5 + 11 * i * i) % 90;
    ids[TOKENS / 2] += flip;
    struct oracle_model om = {.dev = &m.d, .spec = m.s, .ckpt = m.c};
    struct record_options o = {.ids = ids,
                               .n_ids = TOKENS,
                               .first_layer = -1,
                               .last_layer = -1,
                               .probes = probes,
                               .out = in_dir(to)};
    ok(oracle_record(&om, &o, &arena, &r, &m.f, &e), &e);
    arena_release(&arena);
    tiny_model_close(&m);
}

/* ---- comparisons ---- */

struct compared {
    struct arena arena;
    struct findings f;
    struct compare_result r;
    struct err e;
    int rc;
};

static void compare(struct compared *c, const char *a, const char *b)
{
    memset(c, 0, sizeof *c);
    arena_init(&c->arena, NULL, MEM_MISC);
    findings_init(&c->f, NULL);
    c->rc = oracle_compare(in_dir(a), in_dir(b), &c->arena, &c->r, &c->f, &c->e);
}

static void compare_with(struct compared *c, const char *a, const char *model, const char *isa,
                         uint64_t memory)
{
    struct tiny_model m;
    memset(c, 0, sizeof *c);
    arena_init(&c->arena, NULL, MEM_MISC);
    findings_init(&c->f, NULL);
    tiny_model_open(&m, in_dir(model), NULL, isa);
    struct oracle_model om = {.dev = &m.d, .spec = m.s, .ckpt = m.c, .memory = memory};
    c->rc = oracle_compare_model(&om, in_dir(a), &c->arena, &c->r, &c->f, &c->e);
    tiny_model_close(&m);
}

static void done(struct compared *c)
{
    findings_release(&c->f);
    arena_release(&c->arena);
}

/* The findings are these, in this order: "N001 subject". */
static void found(const struct compared *c, const char *const *want, size_t n)
{
    char got[200];
    if (c->rc)
        fail_msg("%s", c->e.message);
    for (size_t i = 0; i < c->f.n; i++) {
        snprintf(got, sizeof got, "%s %s", finding_code(c->f.items[i].id), c->f.items[i].subject);
        if (i >= n || strcmp(got, want[i]) != 0)
            fail_msg("finding %zu is \"%s\" (%s), wanted \"%s\"", i, got, c->f.items[i].evidence,
                     i < n ? want[i] : "none");
    }
    assert_int_equal(c->f.n, n);
}
#define FOUND(c, ...)                                                                                        \
    found(c, (const char *const[]){__VA_ARGS__}, ARRAY_LEN(((const char *const[]){__VA_ARGS__})))

static const struct compare_probe *probe(const struct compared *c, const char *name)
{
    for (size_t i = 0; i < c->r.n_probes; i++)
        if (!strcmp(c->r.probes[i].name, name))
            return &c->r.probes[i];
    fail_msg("%s was not compared", name);
    return NULL;
}

/* ---- models with a fault ---- */

static void flip_weight(void *context, const char *name, float *x, size_t n)
{
    if (!strcmp(name, context))
        for (size_t i = 0; i < n; i += 7)
            x[i] = -x[i];
}

static void make_models(void)
{
    static char v[] = "model.layers.1.self_attn.v_proj.weight", up[] = "model.layers.2.mlp.up_proj.weight",
                norm[] = "model.norm.weight";
    char config[] = TINY_LLAMA_CONFIG;
    tiny_model_write(in_dir("good"), config, NULL, 3, NULL, NULL);
    tiny_model_write(in_dir("bad_v"), config, NULL, 3, flip_weight, v);
    tiny_model_write(in_dir("bad_up"), config, NULL, 3, flip_weight, up);
    tiny_model_write(in_dir("bad_norm"), config, NULL, 3, flip_weight, norm);
    char *theta = strstr(config, "10000.0");
    assert_non_null(theta);
    theta[0] = '2'; /* another base of the rotation */
    tiny_model_write(in_dir("bad_rope"), config, NULL, 3, NULL, NULL);
}

static int setup(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    make_models();
    tiny_model_write(in_dir("qwen3"), TINY_QWEN3_CONFIG, NULL, 4, NULL, NULL);
    record("good", "ref", "all", 0, "good.st");
    record("good", "ref", "model.layers.*,model.embed_tokens", 0, "good_layers.st");
    record("good", "ref", "layers", 0, "sparse.st");
    return 0;
}

/* ---- tests ---- */

static void test_alike(void **state)
{
    (void)state;
    struct compared c;
    record("good", "ref", "all", 0, "again.st");
    compare(&c, "good.st", "again.st");
    found(&c, NULL, 0);
    assert_true(c.r.identical && c.r.self_consistent && c.r.logits);
    assert_true(c.r.right == c.r.n_probes && c.r.n_probes == 3 * 15 + 3);
    assert_true(c.r.top1_share == 1 && c.r.top_k_share == 1 && c.r.max_kl == 0);
    done(&c);
    record("good", "fast", "all", 0, "fast.st");
    compare(&c, "good.st", "fast.st");
    found(&c, NULL, 0);
    assert_true(!c.r.identical && c.r.wrong == 0);
    /* in the order of the graph */
    assert_string_equal(c.r.probes[0].name, "model.embed_tokens");
    assert_string_equal(c.r.probes[1].name, "model.layers.0.input_layernorm");
    assert_string_equal(c.r.probes[c.r.n_probes - 1].name, "logits");
    done(&c);
}

static void test_first_wrong_probe(void **state)
{
    (void)state;
    struct compared c;
    record("bad_v", "ref", "all", 0, "bad_v.st");
    compare(&c, "good.st", "bad_v.st");
    FOUND(&c, "N001 model.layers.1.self_attn.v_proj");
    assert_string_equal(c.r.last_right->name, "model.layers.1.self_attn.k_proj");
    assert_true(c.r.wrong > 15 && probe(&c, "logits")->state == COMPARE_WRONG);
    assert_true(probe(&c, "model.layers.1.self_attn.v_proj")->cosine < 0.999);
    done(&c);
    /* a probe less: the span between those that are there */
    record("bad_v", "ref", "layers", 0, "bad_v_layers.st");
    compare(&c, "good.st", "bad_v_layers.st");
    FOUND(&c, "N001 model.layers.1");
    assert_string_equal(c.r.last_right->name, "model.layers.0");
    assert_int_equal(c.r.n_probes, 4);
    assert_true(c.r.n_only_reference == 44 && c.r.n_only_other == 0);
    done(&c);
    record("bad_norm", "ref", "layers", 0, "bad_norm.st");
    compare(&c, "sparse.st", "bad_norm.st");
    FOUND(&c, "N001 logits");
    assert_non_null(strstr(c.f.items[0].evidence, "after model.layers.2, which is right"));
    done(&c);
}

static void test_wrong_operator(void **state)
{
    (void)state;
    static const char *const isas[] = {"ref", "fast"};
    struct compared c;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        compare_with(&c, "good.st", "good", isas[i], 0);
        found(&c, NULL, 0);
        assert_true(c.r.right == 3 * 15 + 3 && c.r.n_probes == c.r.right);
        assert_string_equal(probe(&c, "model.layers.1.mlp.act")->operators, "glu");
        assert_string_equal(probe(&c, "model.layers.1.mlp.act")->inputs,
                            "model.layers.1.mlp.gate_proj, model.layers.1.mlp.up_proj");
        assert_string_equal(probe(&c, "model.layers.1.self_attn.attn")->operators, "kv_store, attention");
        assert_string_equal(probe(&c, "model.embed_tokens")->inputs, "token ids");
        assert_true(c.r.identical == (i == 0));
        done(&c);
        /* one weight: one operator, although everything after it is wrong in a whole run */
        compare_with(&c, "good.st", "bad_v", isas[i], 0);
        FOUND(&c, "N007 model.layers.1.self_attn.v_proj");
        assert_int_equal(c.r.wrong, 1);
        assert_string_equal(c.r.first_wrong->operators, "linear");
        done(&c);
        /* an attribute: the same operators in every layer, told once */
        compare_with(&c, "good.st", "bad_rope", isas[i], 0);
        FOUND(&c, "N007 model.layers.0.self_attn.q_rope");
        assert_int_equal(c.r.wrong, 6);
        assert_non_null(strstr(c.f.items[0].evidence, "5 more of these operators"));
        done(&c);
        compare_with(&c, "good.st", "bad_norm", isas[i], 0);
        FOUND(&c, "N007 model.norm");
        done(&c);
    }
}

static void test_spans(void **state)
{
    (void)state;
    struct compared c;
    compare_with(&c, "sparse.st", "bad_up", "fast", 0);
    FOUND(&c, "N007 model.layers.2");
    assert_int_equal(c.r.n_probes, 4);
    assert_string_equal(c.r.first_wrong->inputs, "model.layers.1");
    assert_int_equal(c.r.first_wrong->n_operators, 16);
    assert_non_null(strstr(c.r.first_wrong->operators, "16 operators from rms_norm to add"));
    assert_true(probe(&c, "logits")->state == COMPARE_RIGHT);
    done(&c);
    /* little memory: spans in several pieces, to the same end; less still: what does not fit is told */
    compare_with(&c, "sparse.st", "bad_up", "fast", 60000);
    FOUND(&c, "N007 model.layers.2");
    assert_int_equal(c.r.not_judged, 0);
    done(&c);
    compare_with(&c, "good.st", "bad_v", "fast", 25000);
    FOUND(&c, "N007 model.layers.1.self_attn.v_proj");
    assert_true(c.r.not_judged > 0 && c.r.right > 20);
    assert_non_null(strstr(probe(&c, "model.layers.0.mlp.up_proj")->why, "alone needs"));
    done(&c);
    /* the logits that a reference does not have are not compared */
    compare_with(&c, "good_layers.st", "good", "ref", 0);
    found(&c, NULL, 0);
    assert_true(c.r.identical);
    done(&c);
}

static void test_16_bits(void **state)
{
    (void)state;
    struct compared c;
    record("qwen3", "ref", "all", 0, "qwen3.st");
    compare_with(&c, "qwen3.st", "qwen3", "fast", 0);
    found(&c, NULL, 0);
    assert_true(c.r.right == c.r.n_probes && probe(&c, "model.layers.0")->limit == 0x1p-6);
    done(&c);
}

static void test_other_run(void **state)
{
    (void)state;
    struct compared c;
    char path[96];
    record("good", "ref", "layers", 1, "other_ids.st");
    snprintf(path, sizeof path, "%s", in_dir("other_ids.st"));
    compare(&c, "good.st", "other_ids.st");
    assert_true(c.f.n == 1 && c.f.items[0].id == FINDING_N006 && c.r.n_probes == 0);
    assert_non_null(strstr(c.f.items[0].evidence, "token 12"));
    done(&c);
    /* a model of another width */
    record("qwen3", "ref", "all", 0, "qwen3.st");
    compare_with(&c, "qwen3.st", "good", "ref", 0);
    assert_true(c.rc == 0 && c.f.n == 1 && c.f.items[0].id == FINDING_N006);
    done(&c);
    compare(&c, "good.st", "nowhere.st");
    assert_int_equal(c.rc, ERR_MISSING);
    done(&c);
}

/* ---- files of others: no order, sixteen bits, values that are not finite ---- */

static void write_trace(const char *to, const float *layer, const float *proj, const char *precision)
{
    static const int32_t ids[2] = {1, 2};
    const struct st_entry t[] = {
        {.name = "token_ids", .dtype = D0_I32, .n_dims = 1, .dims = {2}, .data = ids},
        {.name = "model.layers.10", .dtype = D0_F32, .n_dims = 2, .dims = {2, 4}, .data = layer},
        {.name = "model.layers.9.mlp.down_proj", .dtype = D0_F32, .n_dims = 2, .dims = {2, 4}, .data = proj},
        {.name = "model.layers.9", .dtype = D0_F32, .n_dims = 2, .dims = {2, 4}, .data = proj}};
    const char *key = "dtype";
    struct err e = {0};
    ok(st_write(in_dir(to), t, ARRAY_LEN(t), &key, &precision, 1, &e), &e);
}

static void test_foreign(void **state)
{
    (void)state;
    struct compared c;
    const float good[8] = {1, 2, 3, 4, 5, 6, 7, 8}, small[8] = {1, 2, 3, 4, 5, 6, 7.01f, 8},
                far[8] = {1, 2, 3, 4, 5, 6, 9, 8}, nan[8] = {1, 2, 3, 4, 5, NAN, 7, 8};
    write_trace("f32.st", good, good, "float32");
    write_trace("small.st", small, good, "float32");
    write_trace("small16.st", small, good, "bfloat16");
    write_trace("far.st", far, far, "float32");
    write_trace("nan.st", far, nan, "float32");
    compare(&c, "f32.st", "small.st");
    FOUND(&c, "N001 model.layers.10");
    assert_int_equal(c.r.first_wrong->worst_row_at, 1);
    assert_true(fabs(c.r.first_wrong->worst_row - 0.01 / sqrt(25 + 36 + 49 + 64)) < 1e-6);
    assert_true(!c.r.self_consistent);
    done(&c);
    compare(&c, "f32.st", "small16.st");
    found(&c, NULL, 0);
    done(&c);
    compare(&c, "f32.st", "far.st"); /* 9 before 10, the layer after its parts */
    FOUND(&c, "N001 model.layers.9.mlp.down_proj");
    assert_string_equal(c.r.probes[1].name, "model.layers.9");
    assert_string_equal(c.r.probes[2].name, "model.layers.10");
    done(&c);
    compare(&c, "f32.st", "nan.st");
    FOUND(&c, "N002 model.layers.9.mlp.down_proj");
    done(&c);
    compare(&c, "nan.st", "nan.st"); /* the same bits, and still nothing to rely on */
    FOUND(&c, "N002 model.layers.9.mlp.down_proj");
    done(&c);
}

/* ---- choices ---- */

static void write_choice(const char *to, const int32_t ids[6], const float weights[6], const float gate[3],
                         const char *rules)
{
    static const int32_t tokens[3] = {1, 2, 3};
    const struct st_entry t[] = {
        {.name = "token_ids", .dtype = D0_I32, .n_dims = 1, .dims = {3}, .data = tokens},
        {.name = "layers.0.route", .dtype = D0_I32, .n_dims = 2, .dims = {3, 2}, .data = ids},
        {.name = "layers.0.route:1", .dtype = D0_F32, .n_dims = 2, .dims = {3, 2}, .data = weights},
        {.name = "layers.0.shared_gate", .dtype = D0_F32, .n_dims = 2, .dims = {3, 1}, .data = gate}};
    const char *key = "choices";
    struct err e = {0};
    ok(st_write(in_dir(to), t, ARRAY_LEN(t), &key, &rules, rules != NULL, &e), &e);
}

static void test_choices(void **state)
{
    (void)state;
    struct compared c;
    const int32_t ids[6] = {4, 1, 2, 0, 3, -1}, turned[6] = {1, 4, 2, 0, -1, 3},
                  other[6] = {4, 1, 2, 5, 3, -1};
    const float weights[6] = {.7f, .3f, .6f, .4f, 1, 0}, moved[6] = {.3f, .7f, .6f, .4f, 0, 1};
    const float gate[3] = {1, -1, 1e-6f}, near[3] = {1, -1, 1.01e-6f}, far[3] = {1, -1.01f, 1e-6f};
    write_choice("choice.st", ids, weights, gate, NULL);
    write_choice("turned.st", turned, moved, gate, NULL);
    write_choice("other.st", other, weights, gate, NULL);
    write_choice("cancelled.st", ids, weights, near, NULL);
    write_choice("far_gate.st", ids, weights, far, NULL);
    compare(&c, "choice.st", "turned.st"); /* the same experts with the same weights, in other slots */
    found(&c, NULL, 0);
    assert_int_equal(c.r.right, 3);
    done(&c);
    compare(&c, "choice.st", "other.st");
    FOUND(&c, "N001 layers.0.route");
    assert_true(c.r.first_wrong->worst_row == 0.5 && c.r.first_wrong->worst_row_at == 1);
    assert_int_equal(c.r.first_wrong->different_bits, 1);
    done(&c);
    compare(&c, "choice.st", "cancelled.st"); /* 1 % of a value that cancels is nothing in its column */
    found(&c, NULL, 0);
    done(&c);
    compare(&c, "choice.st", "far_gate.st");
    FOUND(&c, "N001 layers.0.shared_gate");
    done(&c);
}

/* What a file says of its choices is data of strangers. */
static void test_hostile_rules(void **state)
{
    (void)state;
    static const char *const rules[] = {
        "",
        "[",
        "{}",
        "[1, null, [], {}]",
        "[{\"name\": \"layers.0.route\"}]",
        "[{\"name\": \"layers.0.route\", \"logits\": \"layers.0.route\", \"topk\": 2}]",
        "[{\"name\": \"layers.0.route\", \"logits\": \"layers.0.route:1\", \"topk\": -5}]",
        "[{\"name\": \"layers.0.route\", \"logits\": \"layers.0.route:1\", \"topk\": 9000000000000000000, "
        "\"groups\": 9000000000000000000, \"groups_kept\": 3, \"score\": 77}]",
        "[{\"name\": \"layers.0.route\", \"logits\": \"layers.0.route:1\", \"topk\": 1, \"groups\": 2, "
        "\"groups_kept\": 1, \"bias\": [0, \"x\"]}]",
        "[{\"name\": \"layers.0.route\", \"logits\": \"layers.0.route:1\", \"topk\": 1, \"bias\": [1]}]",
        "[{\"name\": \"layers.0.route\", \"q\": \"layers.0.route:1\", \"keys\": \"layers.0.shared_gate\", "
        "\"topk\": 1, "
        "\"heads\": 4611686018427387905, \"dim\": 4}]",
        "[{\"name\": \"layers.0.route\", \"q\": \"layers.0.route:1\", \"keys\": \"layers.0.shared_gate\", "
        "\"topk\": 1, "
        "\"heads\": 2, \"dim\": 1, \"scale\": 1e308, \"weights\": \"layers.0.route:1\"}]"};
    const int32_t ids[6] = {4, 1, 2, 0, 3, -1};
    const float weights[6] = {.7f, .3f, .6f, .4f, 1, 0}, gate[3] = {1, -1, 1e-6f};
    struct compared c;
    for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
        write_choice("hostile.st", ids, weights, gate, rules[i]);
        compare(&c, "hostile.st", "hostile.st");
        assert_true(c.rc == 0 && c.r.wrong == 0 && c.r.n_probes == 3);
        done(&c);
    }
}

static int teardown(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alike),          cmocka_unit_test(test_first_wrong_probe),
        cmocka_unit_test(test_wrong_operator), cmocka_unit_test(test_spans),
        cmocka_unit_test(test_16_bits),        cmocka_unit_test(test_other_run),
        cmocka_unit_test(test_foreign),        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_hostile_rules),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
