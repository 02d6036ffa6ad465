/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators on what a trace recorded: intact kernels pass in every place; a kernel that is wrong only at
 * magnitudes that generated inputs do not have is named with its layer; what could not be run is told.
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

#include "oracle/oracle.h"
#include "scratch_dir.h"
#include "tiny_model.h"
#include "verify/verify.h"

enum { TOKENS = 12, SATURATES = 4096 };

#define MIXTRAL_CONFIG                                                                                       \
    "{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"hidden_size\":64,"             \
    "\"intermediate_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"  \
    "\"num_local_experts\":6,\"num_experts_per_tok\":2,\"vocab_size\":96,\"max_position_embeddings\":256,"   \
    "\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"hidden_act\":\"silu\",\"sliding_window\":null,"         \
    "\"tie_word_embeddings\":false,\"bos_token_id\":1,\"eos_token_id\":2,\"torch_dtype\":\"float32\"}"

static char dir[] = "/tmp/day0_from_XXXXXX";

/* Numbers of layer 1 that no generated input of an activation has. */
static void enlarge(void *context, const char *name, float *x, size_t n)
{
    (void)context;
    for (size_t i = 0;
         i < n && (strstr(name, "layers.1.mlp.gate_proj") || strstr(name, "layers.1.mlp.up_proj")); i++)
        x[i] *= 3000;
}

/* The router cannot tell experts 0 and 1 apart. */
static void tie(void *context, const char *name, float *x, size_t n)
{
    (void)context;
    if (!strstr(name, "block_sparse_moe.gate.weight"))
        return;
    for (size_t i = 0; i < n / 6; i++)
        x[n / 6 + i] = x[i];
}

static const char *in_dir(const char *name)
{
    return path_in(dir, name);
}

static void record(const char *model, const char *probes, const char *to)
{
    struct tiny_model m;
    struct record_result r;
    struct arena arena;
    struct err e = {0};
    int32_t ids[TOKENS];
    tiny_model_open(&m, in_dir(model), NULL, "ref");
    arena_init(&arena, NULL, MEM_MISC);
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (5 + 11 * i * i) % 90;
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

/* ---- a device that delegates to cpu ---- */

enum fault { INTACT, SATURATING, OTHER_OF_TWO, ANOTHER, REFUSES };

static struct {
    const struct d0_device_api *cpu;
    struct d0_device_api api;
    enum fault fault;
    uint32_t op, first_output;
} faulty;

static int f_compile(struct d0_device *device, const struct d0_part *part, struct d0_exec **out,
                     struct d0_status *status)
{
    faulty.op = part->nodes[0].op;
    faulty.first_output = part->nodes[0].outputs[0];
    return faulty.cpu->compile(device, part, out, status);
}

static int f_supports(struct d0_device *device, const struct d0_part *part, uint32_t node, char *reason,
                      size_t bytes)
{
    if (faulty.fault == REFUSES && part->nodes[node].op == D0_OP_ROPE) {
        snprintf(reason, bytes, "no kernel");
        return 0;
    }
    return faulty.cpu->supports(device, part, node, reason, bytes);
}

static int f_read(struct d0_queue *queue, struct d0_exec *exec, uint32_t value, uint64_t offset, void *host,
                  uint64_t bytes, struct d0_status *status)
{
    int rc = faulty.cpu->read_output(queue, exec, value, offset, host, bytes, status);
    float *x = host;
    int32_t *ids = host;
    for (size_t i = 0; faulty.fault == SATURATING && faulty.op == D0_OP_GLU && i < bytes / 4; i++)
        x[i] = fminf(fmaxf(x[i], -SATURATES), SATURATES);
    if (faulty.op != D0_OP_ROUTE || value != faulty.first_output)
        return rc;
    for (size_t i = 0; faulty.fault == OTHER_OF_TWO && i < bytes / 4; i++)
        ids[i] = ids[i] < 2 ? 1 - ids[i] : ids[i];
    if (faulty.fault == ANOTHER)
        ids[bytes / 4 - 1] = ids[bytes / 4 - 1] == 5 ? 4 : 5;
    return rc;
}

struct ran {
    struct tiny_model m;
    struct dev ref;
    struct arena arena;
    struct findings f;
    struct verify_from_result r;
    int rc;
};

static void plant(struct dev *d, enum fault fault)
{
    faulty.cpu = d->api;
    faulty.api = *d->api;
    faulty.api.compile = f_compile;
    faulty.api.supports = f_supports;
    faulty.api.read_output = f_read;
    faulty.fault = fault;
    d->api = &faulty.api;
}

static void run(struct ran *x, const char *model, const char *trace, enum fault fault, uint64_t memory)
{
    struct err e = {0};
    memset(x, 0, sizeof *x);
    arena_init(&x->arena, NULL, MEM_MISC);
    findings_init(&x->f, NULL);
    tiny_model_open(&x->m, in_dir(model), NULL, "fast");
    plant(&x->m.d, fault);
    const struct verify_from_options o = {
        .trace = in_dir(trace), .spec = x->m.s, .ckpt = x->m.c, .memory = memory};
    ok(verify_ops_from(&x->m.d, &o, &x->arena, &x->r, &x->f, &e), &e);
}

static void done(struct ran *x)
{
    x->m.d.api = faulty.cpu;
    findings_release(&x->f);
    arena_release(&x->arena);
    tiny_model_close(&x->m);
}

static const struct verify_from_node *node_named(const struct ran *x, const char *name)
{
    for (size_t i = 0; i < x->r.n_nodes; i++)
        if (!strcmp(x->r.nodes[i].name, name))
            return &x->r.nodes[i];
    fail_msg("no operator gives %s", name);
    return NULL;
}

/* ---- */

static void test_intact(void **state)
{
    (void)state;
    static const char *const traces[] = {"llama.all", "llama.layers"};
    for (size_t i = 0; i < 2; i++) {
        struct ran x;
        run(&x, "llama", traces[i], INTACT, 0);
        assert_int_equal(x.f.n, 0);
        assert_int_equal(x.r.judged, x.m.s->graph->n_nodes);
        assert_int_equal(x.r.not_judged, 0);
        const struct verify_from_node *glu = node_named(&x, "model.layers.1.mlp.act");
        assert_true(glu->max_ulp > 0 && glu->max_ulp <= glu->limit_ulp);
        assert_true(glu->largest_input > 1000);
        assert_true(node_named(&x, "model.layers.0.mlp.act")->largest_input < 100);
        assert_int_equal(glu->rows, TOKENS);
        /* what the trace lacks is computed, and that is told */
        assert_int_equal(glu->computed, i ? 2 : 0);
        assert_int_equal(glu->recorded, i ? 0 : 2);
        done(&x);
    }
}

static void test_magnitude(void **state)
{
    (void)state;
    struct ran x;
    run(&x, "llama", "llama.all", SATURATING, 0);
    assert_int_equal(x.f.n, 1);
    assert_int_equal(x.f.items[0].id, FINDING_N003);
    assert_string_equal(x.f.items[0].subject, "glu");
    assert_non_null(strstr(x.f.items[0].evidence, "layer 1, model.layers.1.mlp.act"));
    assert_int_equal(x.r.wrong, 1);
    /* generated inputs do not show it */
    struct verify_op_result *ops;
    struct verify_ops_options o = {.seed = 1, .shapes_of = x.m.s->graph, .only = "glu"};
    struct err e = {0};
    size_t n;
    findings_release(&x.f);
    findings_init(&x.f, NULL);
    ok(verify_ops(&x.m.d, &o, &x.arena, &ops, &n, &x.f, &e), &e);
    assert_int_equal(n, 1);
    assert_true(ops[0].passed);
    assert_int_equal(x.f.n, 0);
    done(&x);
}

static void test_not_judged(void **state)
{
    (void)state;
    struct ran x;
    run(&x, "llama", "llama.all", INTACT, 70000); /* 80 x 64 weights fit, the 96 x 64 of the head do not */
    assert_int_equal(x.f.n, 0);
    assert_true(x.r.not_judged > 0 && x.r.judged > 0);
    assert_int_equal(x.r.judged + x.r.not_judged, x.m.s->graph->n_nodes);
    assert_int_equal(node_named(&x, "lm_head")->state, FROM_NOT_JUDGED);
    assert_non_null(strstr(node_named(&x, "lm_head")->why, "there is room for"));
    done(&x);
    run(&x, "llama", "llama.all", REFUSES, 0);
    assert_int_equal(x.r.not_judged, 2 * 3); /* queries and keys of three layers */
    for (size_t i = 0; i < x.r.n_nodes; i++)
        if (x.r.nodes[i].state == FROM_NOT_JUDGED)
            assert_non_null(strstr(x.r.nodes[i].why, "no kernel"));
    done(&x);
}

static void test_choices(void **state)
{
    (void)state;
    struct ran x;
    run(&x, "mixtral", "mixtral.all", INTACT, 0);
    assert_int_equal(x.f.n, 0);
    assert_int_equal(x.r.not_judged, 0);
    done(&x);
    run(&x, "mixtral", "mixtral.all", OTHER_OF_TWO, 0);
    assert_int_equal(x.f.n, 0); /* a tie may fall either way */
    uint64_t settled = 0;
    for (size_t i = 0; i < x.r.n_ops; i++)
        settled += x.r.ops[i].settled;
    assert_true(settled > 0);
    done(&x);
    run(&x, "mixtral", "mixtral.all", ANOTHER, 0);
    assert_int_equal(x.f.n, 1);
    assert_int_equal(x.f.items[0].id, FINDING_N003);
    assert_non_null(strstr(x.f.items[0].subject, "route"));
    done(&x);
    run(&x, "mixtral", "mixtral.all", INTACT, 400000); /* experts in turn */
    assert_int_equal(x.f.n, 0);
    assert_int_equal(x.r.not_judged, 0);
    done(&x);
}

static void test_other_model(void **state)
{
    (void)state;
    struct ran x;
    run(&x, "mixtral", "qwen3.all", INTACT, 0);
    assert_int_equal(x.f.n, 1);
    assert_int_equal(x.f.items[0].id, FINDING_N006);
    assert_true(x.r.refused);
    done(&x);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    tiny_model_write(in_dir("llama"), TINY_LLAMA_CONFIG, NULL, 3, enlarge, NULL);
    tiny_model_write(in_dir("qwen3"), TINY_QWEN3_CONFIG, NULL, 4, NULL, NULL);
    tiny_model_write(in_dir("mixtral"), MIXTRAL_CONFIG, NULL, 5, tie, NULL);
    record("llama", "all", "llama.all");
    record("llama", "layers", "llama.layers");
    record("qwen3", "all", "qwen3.all");
    record("mixtral", "all", "mixtral.all");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_intact),  cmocka_unit_test(test_magnitude),   cmocka_unit_test(test_not_judged),
        cmocka_unit_test(test_choices), cmocka_unit_test(test_other_model),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
