/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: that every operator which model families add can be described, obeys its shape rule (each weight and
 * state one element larger is refused), survives slices and the memory plan, and is taken by a device that
 * has a kernel for it, in no other shape, and refused by one that has none; and the degrees of layouts of a
 * quantised model with experts.
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

#include "base/file.h"
#include "dev/dev.h"
#include "kern/kern.h"
#include "plan/plan.h"
#include "spec/spec.h"

static const char all_operators[] =
    "return { build = function(c)\n"
    "  local H = 64\n"
    "  local pos = rope { dim = 16, theta = 1e4, style = 'pairs', sections = { 4, 2, 2 }, interleaved = true "
    "}\n"
    "  context(512)\n"
    "  local x = embed { 'embed', vocab = 96, dim = H }\n"
    "  x = layers { x, n = 4, at = 'layers.%d', each = function(x, i)\n"
    "    local h = layer_norm { mix_residual { x, 'res', eps = 1e-5, push = i == 1 }, 'ln', eps = 1e-5 }\n"
    "    local y\n"
    "    if i == 0 then\n"
    "      local q = linear { h, 'q', out = 4 * 48, part = heads(4) }\n"
    "      local c, pe = split { linear { h, 'kv_a', out = 40 }, sizes = { 24, 16 } }\n"
    "      local w = scale { linear { h, 'iw', out = 2 }, by = 0.5 }\n"
    "      local idx = index_topk { q = linear { h, 'iq', out = 2 * 16 }, k = linear { h, 'ik', out = 16 }, "
    "weights = w,\n"
    "        heads = 2, dim = 16, topk = 8, scale = 0.25 }\n"
    "      y = mla { q = apply_rope { q, pos = pos, dim = 48, offset = 32 }, latent_kv = c,\n"
    "        k_pe = apply_rope { pe, pos = pos, dim = 16 }, kv_b = 'kv_b', heads = 4, nope = 32, rope = 16, "
    "v_dim = 16,\n"
    "        latent = 24, scale = 0.1, index = idx }\n"
    "      y = y * act { linear { h, 'gate', out = 4, part = heads(4) }, fn = 'sigmoid' }\n"
    "    elseif i == 1 then\n"
    "      local q = short_conv { linear { h, 'q', out = 32 }, 'cq', width = 4, fn = 'silu', bias = true }\n"
    "      local b = linear { h, 'b', out = 4 }\n"
    "      y = delta_rule { q = q, k = q, v = h, g = b, beta = act { b, fn = 'sigmoid' }, heads = 2, v_heads "
    "= 4, dim = 16,\n"
    "        v_dim = 16, l2norm = 1e-6, scale = 0.25, A_entries = 7 }\n"
    "      y = gated_norm { y, linear { h, 'z', out = 64 }, 'gn', dim = 16, eps = 1e-6 }\n"
    "    elseif i == 2 then\n"
    "      local q = position_scale { linear { h, 'q', out = 64, part = heads(4) }, length = 8, beta = 0.1, "
    "offset = 1 }\n"
    "      local k = linear { h, 'k', out = 32, part = heads(2) }\n"
    "      local idx = index_topk { q = k, k = linear { h, 'ik', out = 16 }, heads = 2, dim = 16, topk = 2, "
    "block = 16,\n"
    "        groups = 2 }\n"
    "      y = attention { q = q, k = k, v = k, heads = 4, kv_heads = 2, dim = 16, scale = 0.25, sinks = "
    "'sinks',\n"
    "        softcap = 30.0, chunk = 128, index = idx }\n"
    "      y = apply_rope { y, pos = pos, dim = 16, inverse = true }\n"
    "      y = glu { y, act { y, fn = 'softcap', limit = 9.0 }, fn = 'situ', p = { beta = 4.0, linear_beta = "
    "25.0 } }\n"
    "    else\n"
    "      local kv = linear { h, 'kv', out = 16 }\n"
    "      local p = pool_kv { kv = linear { h, 'pkv', out = 32 }, gate = linear { h, 'pg', out = 32 }, ape "
    "= 'ape',\n"
    "        norm = 'pn', ratio = 4, dim = 16, eps = 1e-6, overlap = true, pos = pos }\n"
    "      local idx = pool_topk { q = linear { h, 'iq', out = 32 }, pool = p, heads = 2, dim = 16, topk = 8 "
    "}\n"
    "      y = pool_attention { q = linear { h, 'q', out = 64 }, kv = kv, pool = p, index = idx, heads = 4, "
    "dim = 16,\n"
    "        window = 8, sinks = 'sinks', scale = 0.25 }\n"
    "      y = group_linear { y, 'wo_a', groups = 2, out = 64 }\n"
    "    end\n"
    "    x = x + linear { y, 'o', out = H, part = row }\n"
    "    local X = concat { x, x, x, x }\n"
    "    local z, m = hyper_in { X, 'hc', streams = 4, eps = 1e-6, hc_eps = 1e-6, rounds = 3 }\n"
    "    local layouts = { { at = 'e.%d', gate = 'w1', up = 'w3', down = 'w2' },\n"
    "      { packed = 'e', gate_up = 'gate_up_proj', down = 'down_proj', bias = true, transposed = true, "
    "interleaved = true },\n"
    "      { at = 'e.%d', up = 'up', down = 'down' }, { packed = 'e', gate_up = 'gate_up_proj', down = "
    "'down_proj' } }\n"
    "    z = moe { z, n = 8, k = 2, inter = 32, gate = 'router', gate_bias = i == 1, bias = 'bias', score = "
    "'sigmoid',\n"
    "      groups = 4, groups_kept = 2, renormalize = true, renorm_eps = 1e-20, scale = 2.5, table = i == 3 "
    "and 'table' or nil,\n"
    "      expert_scale = i == 2 and 'per_expert' or nil, fn = i == 1 and 'swigluoai' or i == 2 and 'relu2' "
    "or 'silu',\n"
    "      p = i == 1 and { alpha = 1.702, limit = 7.0 } or nil, experts = layouts[i + 1] }\n"
    "    X = hyper_out { z, X, m, streams = 4 }\n"
    "    return x + scale { hyper_head { X, 'hh', streams = 4, eps = 1e-6, hc_eps = 1e-6 }, weight = "
    "'layer_scalar', shape = { 1 } }\n"
    "  end }\n"
    "  return logits { rms_norm { wanted_rows(x), nil, eps = 1e-5 }, 'head', vocab = 96, softcap = 30, "
    "divide = 2 }\n"
    "end }\n";

struct model {
    struct d0 d0;
    struct findings f;
    struct ckpt *c;
    struct spec *s;
};

static void open_model(struct model *m, const char *config, const char *arch)
{
    char dir[] = "/tmp/day0-families-XXXXXX", path[64], file[64];
    struct err e = {0};
    *m = (struct model){.d0.log.fd = -1};
    findings_init(&m->f, NULL);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    snprintf(file, sizeof file, "%s/arch.lua", dir);
    assert_int_equal(file_write_atomic(path, config, strlen(config), &e), 0);
    assert_int_equal(file_write_atomic(file, arch ? arch : "", arch ? strlen(arch) : 0, &e), 0);
    struct spec_options o = {.arch_path = arch ? file : NULL};
    if (ckpt_open(&m->c, dir, &m->f, &m->d0, &e) || spec_open(&m->s, m->c, &o, &m->f, &m->d0, &e))
        fail_msg("%s", e.message);
    if (m->s == NULL)
        fail_msg("%s", m->f.n ? m->f.items[m->f.n - 1].evidence : "no description");
    unlink(path);
    unlink(file);
    rmdir(dir);
}

static void close_model(struct model *m)
{
    spec_close(m->s);
    ckpt_close(m->c);
    findings_release(&m->f);
}

static void open_all(struct model *m)
{
    open_model(m, "{\"architectures\": [\"X\"], \"torch_dtype\": \"bfloat16\"}", all_operators);
}

static bool uses(const struct graph *g, uint32_t op)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == op)
            return true;
    return false;
}

/* Parts of an operator that has a kernel otherwise (ops.def, NO_KERNEL). */
static bool not_yet(const struct d0_node *n)
{
    return n->op == D0_OP_ATTENTION;
}

static void test_every_operator(void **state)
{
    (void)state;
    struct model m;
    struct dev d;
    struct err e = {0};
    const struct op_info *ops;
    size_t n = op_all(&ops);
    open_all(&m);
    for (size_t i = 0; i < n; i++)
        if (op_no_kernel(ops[i].id) && !uses(m.s->graph, ops[i].id))
            fail_msg("%s is not in the graph of all operators", ops[i].name);
    const int64_t dims[D0_N_DIMS] = {8, 2, 2, 32};
    assert_int_equal(graph_plan_memory(m.s->graph, dims, true, &e), 0);
    struct d0_part part;
    graph_part(m.s->graph, &part);
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = "cpu", .isa = "ref", .n_threads = 1}, &e), 0);
    for (uint32_t i = 0; i < part.n_nodes; i++) {
        char reason[200] = "";
        bool yes = dev_supports(&d, &part, i, reason, sizeof reason);
        const char *name = op_find(part.nodes[i].op)->name;
        if (op_no_kernel(part.nodes[i].op)) {
            if (yes || reason[0] == 0)
                fail_msg("the device takes %s, which has no kernel", name);
            assert_null(kern_pick(part.nodes[i].op, D0_BF16, KERN_AVX512));
        } else if (!yes && !not_yet(&part.nodes[i])) {
            fail_msg("the device refuses %s: %s", name, reason);
        }
    }
    dev_close(&d);
    close_model(&m);
}

/* All operators on the reference device. */
static void open_device(struct model *m, struct dev *d, struct d0_part *part)
{
    const int64_t dims[D0_N_DIMS] = {8, 2, 2, 32};
    struct err e = {0};
    open_all(m);
    assert_int_equal(graph_plan_memory(m->s->graph, dims, true, &e), 0);
    graph_part(m->s->graph, part);
    assert_int_equal(dev_open(d, &(struct dev_options){.name = "cpu", .isa = "ref", .n_threads = 1}, &e), 0);
}

/* One element more in any dimension of a weight, and the device must refuse the node that reads it. */
static void test_device_rules_are_tight(void **state)
{
    (void)state;
    struct model m;
    struct dev d;
    struct d0_part part;
    size_t tried = 0;
    open_device(&m, &d, &part);
    struct graph *g = m.s->graph;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        char reason[200];
        for (uint32_t j = 0; j < n->n_inputs && dev_supports(&d, &part, i, reason, sizeof reason); j++) {
            struct d0_value *v = n->inputs[j] == D0_NO_VALUE ? NULL : &g->values[n->inputs[j]];
            for (uint32_t k = 0; v && v->kind == D0_VALUE_WEIGHT && k < v->n_dims; k++) {
                const char *name = g->info[n->inputs[j]].name;
                if (strstr(name, "A_log") || strstr(name, "table") || (strstr(name, "embed") && k == 0))
                    continue; /* free sizes */
                v->dims[k]++;
                if (dev_supports(&d, &part, i, reason, sizeof reason))
                    fail_msg("%s takes %s with one more in dimension %u", op_find(n->op)->name, name, k);
                v->dims[k]--;
                tried++;
            }
        }
    }
    assert_true(tried > 40);
    dev_close(&d);
    close_model(&m);
}

static struct d0_attr *attr_of(struct d0_node *n, uint32_t key)
{
    for (uint32_t i = 0; i < n->n_attrs; i++)
        if (n->attrs[i].key == key)
            return &n->attrs[i];
    assert_true(n->n_attrs < D0_MAX_NODE_ATTRS);
    n->attrs[n->n_attrs] = (struct d0_attr){.key = key, .is_float = attr_is_float(key)};
    return &n->attrs[n->n_attrs++];
}

/* One attribute changed for the worse: the device must refuse every node of that operator, and say why. */
static void test_device_refuses(void **state)
{
    (void)state;
    static const struct {
        uint32_t op, key;
        int64_t i;
        double f;
    } bad[] = {
        {D0_OP_SLICE, D0_ATTR_DIM, 0, 0},
        {D0_OP_SLICE, D0_ATTR_DIM, -1, 0},
        {D0_OP_SLICE, D0_ATTR_DIM, INT64_MAX, 0},
        {D0_OP_SLICE, D0_ATTR_OFFSET, -1, 0},
        {D0_OP_SLICE, D0_ATTR_OFFSET, 41, 0},
        {D0_OP_SLICE, D0_ATTR_OFFSET, INT64_MAX, 0},
        {D0_OP_SLICE, D0_ATTR_GROUPS, 3, 0},
        {D0_OP_SLICE, D0_ATTR_GROUPS, -1, 0},
        {D0_OP_CONCAT, D0_ATTR_GROUPS, 3, 0},
        {D0_OP_CONCAT, D0_ATTR_GROUPS, -4, 0},
        {D0_OP_ACT, D0_ATTR_FUNCTION, 14, 0},
        {D0_OP_ACT, D0_ATTR_FUNCTION, -1, 0},
        {D0_OP_ACT, D0_ATTR_FUNCTION, 9, 0},
        {D0_OP_ACT, D0_ATTR_FUNCTION, 10, 0},
        {D0_OP_GLU, D0_ATTR_FUNCTION, 14, 0},
        {D0_OP_GLU, D0_ATTR_FUNCTION, 10, 0}, /* without its limit */
        {D0_OP_GLU, D0_ATTR_BETA, 0, 0},
        {D0_OP_GLU, D0_ATTR_BETA, 0, (double)NAN},
        {D0_OP_GLU, D0_ATTR_LINEAR_BETA, 0, -1},
        {D0_OP_LAYER_NORM, D0_ATTR_DIM, -1, 0},
        {D0_OP_LAYER_NORM, D0_ATTR_DIM, 7, 0},
        {D0_OP_LAYER_NORM, D0_ATTR_EPS, 0, -1},
        {D0_OP_GATED_NORM, D0_ATTR_DIM, 0, 0}, /* w is of 16 */
        {D0_OP_GATED_NORM, D0_ATTR_DIM, 24, 0},
        {D0_OP_GATED_NORM, D0_ATTR_BEFORE, 2, 0},
        {D0_OP_GATED_NORM, D0_ATTR_FUNCTION, 8, 0},
        {D0_OP_GROUP_LINEAR, D0_ATTR_GROUPS, 0, 0},
        {D0_OP_GROUP_LINEAR, D0_ATTR_GROUPS, 3, 0},
        {D0_OP_GROUP_LINEAR, D0_ATTR_GROUPS, -2, 0},
        {D0_OP_POSITION_SCALE, D0_ATTR_LENGTH, 0, 0},
        {D0_OP_POSITION_SCALE, D0_ATTR_LENGTH, INT64_MIN, 0},
        {D0_OP_POSITION_SCALE, D0_ATTR_OFFSET, -1, 0},
        {D0_OP_POSITION_SCALE, D0_ATTR_OFFSET, INT64_MAX, 0},
        {D0_OP_ROPE, D0_ATTR_INVERSE, 2, 0},
        {D0_OP_ROPE_TABLE, D0_ATTR_SECTION_H, 3, 0},
        {D0_OP_ROPE_TABLE, D0_ATTR_SECTION_T, -1, 0},
        {D0_OP_ROPE_TABLE, D0_ATTR_SECTION_W, INT64_MAX, 0},
    };
    struct model m;
    struct dev d;
    struct d0_part part;
    open_device(&m, &d, &part);
    for (size_t b = 0; b < ARRAY_LEN(bad); b++) {
        size_t tried = 0;
        for (uint32_t i = 0; i < m.s->graph->n_nodes; i++) {
            struct d0_node *n = &m.s->graph->nodes[i], saved = *n;
            char reason[200] = "";
            if (n->op != bad[b].op)
                continue;
            struct d0_attr *a = attr_of(n, bad[b].key);
            if (a->is_float)
                a->v.f = bad[b].f;
            else
                a->v.i = bad[b].i;
            if (dev_supports(&d, &part, i, reason, sizeof reason) || reason[0] == 0)
                fail_msg("%s is taken with %s %lld, %g", op_find(n->op)->name, attr_name(bad[b].key),
                         (long long)bad[b].i, bad[b].f);
            *n = saved;
            tried++;
        }
        assert_true(tried > 0);
    }
    dev_close(&d);
    close_model(&m);
}

/* One element more in any dimension of a weight or state, and the rule of the node that reads it must say so.
 */
static void test_rules_are_tight(void **state)
{
    (void)state;
    struct model m;
    open_all(&m);
    struct graph *g = m.s->graph;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        for (uint32_t j = 0; j < n->n_inputs; j++) {
            struct d0_value *v = n->inputs[j] == D0_NO_VALUE ? NULL : &g->values[n->inputs[j]];
            if (!v || (v->kind != D0_VALUE_WEIGHT && v->kind != D0_VALUE_STATE))
                continue;
            for (uint32_t k = v->kind == D0_VALUE_STATE ? 1 : 0; k < v->n_dims; k++) {
                struct err e = {0};
                const char *name = g->info[n->inputs[j]].name;
                bool free_size =
                    strstr(name, "A_log") || strstr(name, "table") || strstr(name, "embed") ||
                    (v->kind == D0_VALUE_STATE && k == 2 && v->n_dims == 4); /* tokens of a page */
                v->dims[k]++;
                if (!free_size && graph_verify(g, &e) == 0)
                    fail_msg("%s takes %s with one more in dimension %u", op_find(n->op)->name, name, k);
                v->dims[k]--;
            }
        }
    }
    assert_int_equal(graph_verify(g, NULL), 0);
    close_model(&m);
}

/* Attributes of any value never crash a rule, and what it accepts has a shape. */
static void test_wild_attributes(void **state)
{
    (void)state;
    static const int64_t wild[] = {0, 1, -1, 3, 7, INT32_MAX, INT64_MAX, INT64_MIN, (int64_t)1 << 33};
    struct model m;
    open_all(&m);
    struct graph *g = m.s->graph;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i].n_attrs; k++) {
            struct d0_attr *a = &g->nodes[i].attrs[k], saved = *a;
            for (size_t w = 0; w < ARRAY_LEN(wild); w++) {
                struct err e = {0};
                if (a->is_float)
                    a->v.f = (double)wild[w];
                else
                    a->v.i = wild[w];
                (void)graph_verify(g, &e);
                *a = saved;
            }
        }
    assert_int_equal(graph_verify(g, NULL), 0);
    close_model(&m);
}

static void test_slices(void **state)
{
    (void)state;
    struct model m;
    struct err e = {0};
    const int64_t dims[D0_N_DIMS] = {8, 2, 2, 32};
    open_all(&m);
    for (int32_t l = 0; l < 4; l++) {
        struct graph *part = NULL;
        if (graph_slice(m.s->graph, l, l, 0, &part, &e))
            fail_msg("layer %d: %s", l, e.message);
        assert_int_equal(graph_plan_memory(part, dims, false, &e), 0);
        graph_free(part);
    }
    spec_set_pages(m.s->graph, m.s, 9);
    for (uint32_t i = 0; i < m.s->graph->n_values; i++)
        if (m.s->graph->values[i].kind == D0_VALUE_STATE)
            assert_int_equal(m.s->graph->values[i].dims[0], m.s->graph->info[i].state == STATE_PAGES ? 9 : 1);
    assert_int_equal(m.s->state_bytes, 4 * (3 * 32 + 4 * 16 * 16 + 16 * 32));
    close_model(&m);
}

/* ---- layouts ---- */

static void is(const struct plan_degree *d, uint32_t degree, bool legal, const char *why)
{
    const struct plan_degree *x = &d[degree - 1];
    if (x->degree != degree || x->legal != legal || strcmp(x->reason, why) != 0)
        fail_msg("%u: %s \"%s\"", degree, x->legal ? "legal" : "not legal", x->reason);
}

/* 168 heads divide by 3, 6, 7, 8 and 56, so do the 168 x 100 tokens; inter: of each expert. */
#define MOE(inter, more)                                                                                     \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"hidden_size\": 4096, \"intermediate_size\": 12288, "   \
    "\"moe_intermediate_size\": " #inter ", \"num_hidden_layers\": 2, \"num_attention_heads\": 168, "        \
    "\"num_key_value_heads\": 168, \"head_dim\": 128, \"vocab_size\": 16800, \"max_position_embeddings\": "  \
    "4096, \"rms_norm_eps\": 1e-6, \"num_experts\": 96, \"num_experts_per_tok\": 8, \"norm_topk_prob\": "    \
    "true, \"torch_dtype\": \"bfloat16\"" more "}"
#define BLOCK_128 ", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}"
#define GROUP_32                                                                                             \
    ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", " \
    "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": " \
    "\"int\", \"strategy\": \"group\", \"group_size\": 32, \"symmetric\": true}}}}"
#define SUMMED "experts cut inside are summed in parts; EP keeps them whole"

/* Possible, and why it is not exact: 168 heads are summed in 8 parts, before the experts. */
static void legal(const struct plan_degree *d, uint32_t tp)
{
    is(d, tp, true, tp == 1 ? "" : 8 % tp == 0 ? SUMMED : "self_attn.o_proj is summed in 8 x 2688 values");
}

static struct plan_degrees judge(struct arena *arena, const char *config, const char *scheme)
{
    struct model m;
    struct plan_degrees d;
    open_model(&m, config, NULL);
    bool stored_so = false;
    for (size_t i = 0; i < m.s->n_weights; i++)
        stored_so |= strcmp(spec_scheme_name(m.s->weights[i].form.scheme), scheme) == 0;
    assert_true(stored_so);
    assert_int_equal(plan_degrees(m.s, arena, &d, NULL), 0);
    assert_int_equal(d.n_tp, 64);
    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(d.tp[i].degree, i + 1);
        assert_true(d.tp[i].exact == (i == 0)); /* experts are cut */
        if (168 % (i + 1) != 0 && (d.tp[i].legal || !strstr(d.tp[i].reason, "168 heads")))
            fail_msg("%u: \"%s\"", i + 1, d.tp[i].reason);
    }
    close_model(&m); /* what was judged does not hang from the description */
    return d;
}

/* Every EP degree: exactly the divisors. */
static void test_experts(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    struct plan_degrees d = judge(&a, MOE(1536, ""), "none");
    assert_int_equal(d.n_ep, 96);
    for (uint32_t ep = 1; ep <= 96; ep++) {
        char why[60] = "";
        if (96 % ep)
            snprintf(why, sizeof why, "96 experts do not divide by %u", ep);
        is(d.ep, ep, 96 % ep == 0, why);
        assert_true(d.ep[ep - 1].exact == d.ep[ep - 1].legal);
    }
    legal(d.tp, 3);
    is(d.tp, 7, false, "experts.%d.down_proj: 1536 values do not divide by 7");
    is(d.tp, 56, false, "experts.%d.down_proj: 1536 values do not divide by 56");
    arena_release(&a);
}

/* Layers of unlike numbers of experts: a degree must divide both. */
static void test_unlike_experts(void **state)
{
    (void)state;
    static const char arch[] =
        "return { build = function(c)\n"
        "  context(64)\n"
        "  local x = layers { embed { 'embed', vocab = 96, dim = 64 }, n = 2, at = 'layers.%d', each = "
        "function(x, i)\n"
        "    x = x + gqa { x, heads = 4, dim = 16 }\n"
        "    return x + moe { rms_norm { x, 'ln', eps = 1e-5 }, n = i == 0 and 12 or 18, k = 2, inter = 32, "
        "gate = 'router',\n"
        "      score = 'softmax', fn = 'silu', experts = { at = 'e.%d', gate = 'w1', up = 'w3', down = 'w2' "
        "} "
        "}\n"
        "  end }\n"
        "  return logits { rms_norm { wanted_rows(x), 'norm', eps = 1e-5 }, 'head', vocab = 96 }\n"
        "end }\n";
    struct model m;
    struct plan_degrees d;
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    open_model(&m, "{\"architectures\": [\"X\"], \"torch_dtype\": \"bfloat16\"}", arch);
    assert_int_equal(plan_degrees(m.s, &a, &d, NULL), 0);
    assert_int_equal(d.n_ep, 18);
    for (uint32_t ep = 1; ep <= 18; ep++)
        assert_true(d.ep[ep - 1].legal == (12 % ep == 0 && 18 % ep == 0));
    is(d.ep, 4, false, "18 experts do not divide by 4");
    is(d.ep, 9, false, "12 experts do not divide by 9");
    arena_release(&a);
    close_model(&m);
}

static void test_blocks_of_scales(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    /* 10752 = 84 x 128 */
    struct plan_degrees d = judge(&a, MOE(10752, BLOCK_128), "fp8_block");
    static const uint32_t whole[] = {1, 2, 3, 4, 6, 7, 12, 14, 21, 28, 42};
    for (size_t i = 0; i < ARRAY_LEN(whole); i++)
        legal(d.tp, whole[i]);
    is(d.tp, 8, false, "experts.%d.down_proj: a block of 128 columns with one scale is cut: 1344 a rank");
    is(d.tp, 56, false, "experts.%d.down_proj: a block of 128 columns with one scale is cut: 192 a rank");
    assert_int_equal(d.tp[7].stem_bytes, d.tp[55].stem_bytes); /* they fail alike */
    assert_memory_equal(d.tp[7].reason, d.tp[55].reason, d.tp[7].stem_bytes);
    assert_string_equal(d.tp[7].reason + d.tp[7].stem_bytes, ": 1344 a rank");
    /* 2016 = 15 x 128 + 96: the last block is shorter, and no cut is whole in blocks */
    d = judge(&a, MOE(2016, BLOCK_128), "fp8_block");
    legal(d.tp, 1);
    for (uint32_t tp = 2; tp <= 64; tp++)
        if (168 % tp == 0)
            is(d.tp, tp, false,
               "experts.%d.down_proj: uneven scale groups: 2016 columns end within a block of 128");
    /* 2688 = 84 x 32 */
    d = judge(&a, MOE(2688, GROUP_32), "ct_int");
    legal(d.tp, 3);
    legal(d.tp, 6);
    legal(d.tp, 7);
    is(d.tp, 8, false, "experts.%d.down_proj: a block of 32 columns with one scale is cut: 336 a rank");
    legal(d.tp, 42);
    is(d.tp, 56, false, "experts.%d.down_proj: a block of 32 columns with one scale is cut: 48 a rank");
    /* 2520 = 78 x 32 + 24 */
    d = judge(&a, MOE(2520, GROUP_32), "ct_int");
    legal(d.tp, 1);
    is(d.tp, 7, false, "experts.%d.down_proj: uneven scale groups: 2520 columns end within a block of 32");
    arena_release(&a);
}

/* A cut between heads, of key-value heads that are dealt out or copied: 64 rows are half a block. */
static void test_heads_in_blocks(void **state)
{
    (void)state;
    struct model m;
    struct plan_degrees d;
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    open_model(
        &m,
        "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 1536, \"intermediate_size\": 3072, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 24, \"num_key_value_heads\": 4, "
        "\"vocab_size\": 960, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-6, "
        "\"torch_dtype\": \"bfloat16\"" BLOCK_128 "}",
        NULL);
    assert_int_equal(plan_degrees(m.s, &a, &d, NULL), 0);
    is(d.tp, 2, true, "");
    is(d.tp, 3, false, "24 heads with 4 kv heads do not divide by 3");
    is(d.tp, 4, false, "self_attn.k_proj: a block of 128 rows with one scale is cut: 64 a rank");
    is(d.tp, 8, false, "self_attn.q_proj: a block of 128 rows with one scale is cut: 192 a rank");
    is(d.tp, 12, false,
       "self_attn.k_proj: a block of 128 rows with one scale is cut: 64 a rank"); /* copied */
    arena_release(&a);
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operator),
        cmocka_unit_test(test_rules_are_tight),
        cmocka_unit_test(test_device_rules_are_tight),
        cmocka_unit_test(test_device_refuses),
        cmocka_unit_test(test_wild_attributes),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_unlike_experts),
        cmocka_unit_test(test_blocks_of_scales),
        cmocka_unit_test(test_heads_in_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
