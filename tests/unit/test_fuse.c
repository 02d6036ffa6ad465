/* SPDX-License-Identifier: Apache-2.0
 *
 * Fusions of a graph: where they apply, where somebody else wants what would fall away, and what stays as it
 * was. That the fused operators give the same bits is for kcheck and tests/parity/bits.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "tiny_llama.h"

#define ALL UINT32_MAX

static struct graph *tiny(void)
{
    struct tiny_llama m = TINY_LLAMA_DEFAULT;
    struct graph *g = NULL;
    struct err e = {0};
    if (tiny_llama_graph(&g, &m, &e))
        fail_msg("%s", e.message);
    return g;
}

static struct fused fuse(const struct graph *g, uint32_t mask, bool keep_probes)
{
    struct fused f;
    struct err e = {0};
    if (graph_fuse(g, mask, keep_probes, &f, &e))
        fail_msg("%s", e.message);
    assert_int_equal(graph_verify(f.graph, &e), ERR_OK);
    return f;
}

static void expect(const struct graph *g, bool keep_probes, uint32_t qkv, uint32_t gate_up, uint32_t residual,
                   uint32_t store)
{
    struct fused f = fuse(g, ALL, keep_probes);
    assert_int_equal(f.nodes[FUSION_QKV], qkv);
    assert_int_equal(f.nodes[FUSION_GATE_UP], gate_up);
    assert_int_equal(f.nodes[FUSION_NORM_RESIDUAL], residual);
    assert_int_equal(f.nodes[FUSION_NORM_ROPE_STORE], store);
    graph_free(f.graph);
}

static struct d0_node *node_of(struct graph *g, uint32_t op, int32_t layer, unsigned which)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == op && g->nodes[i].layer == layer && which-- == 0)
            return &g->nodes[i];
    fail_msg("no node of operator %u in layer %d", op, layer);
    return NULL;
}

static uint32_t count(const struct graph *g, uint32_t op)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        n += g->nodes[i].op == op;
    return n;
}

/* Two layers; the last norm reads gathered rows, so three sums meet a norm. */
static void test_applies(void **state)
{
    (void)state;
    struct graph *g = tiny();
    expect(g, false, 2, 2, 3, 2);
    struct fused f = fuse(g, ALL, false);
    assert_int_equal(count(f.graph, D0_OP_GLU), 0);
    assert_int_equal(count(f.graph, D0_OP_ROPE), 0);
    assert_int_equal(count(f.graph, D0_OP_KV_STORE), 0);
    assert_int_equal(count(f.graph, D0_OP_LINEAR), 5); /* o_proj and down_proj of each layer, the head */
    assert_int_equal(count(f.graph, D0_OP_ADD), 1);
    graph_free(f.graph);
    for (unsigned i = 0; i < FUSION_N; i++) { /* each alone changes only what is its own */
        f = fuse(g, FUSION_BIT(i), false);
        for (uint32_t n = 0; n < f.graph->n_nodes; n++)
            assert_int_equal(f.by[n] & ~FUSION_BIT(i), 0);
        graph_free(f.graph);
    }
    f = fuse(g, 0, false);
    assert_int_equal(f.graph->n_nodes, g->n_nodes);
    assert_int_equal(f.graph->n_values, g->n_values);
    graph_free(f.graph);
    graph_free(g);
}

/* Weights, states and inputs with all that is known of them; the result; who is who. */
static void test_keeps(void **state)
{
    (void)state;
    struct graph *g = tiny();
    struct fused f = fuse(g, ALL, false);
    uint32_t kept = 0;
    for (uint32_t v = 0; v < f.graph->n_values; v++) {
        const struct graph_value_info *now = &f.graph->info[v], *was = &g->info[f.value_of[v]];
        assert_string_equal(now->name, was->name);
        assert_int_equal(now->part, was->part);
        assert_int_equal(now->part_units, was->part_units);
        assert_memory_equal(f.graph->values[v].dims, g->values[f.value_of[v]].dims, sizeof g->values[0].dims);
        kept += f.graph->values[v].kind != D0_VALUE_ACTIVATION;
    }
    uint32_t wanted = 0;
    for (uint32_t v = 0; v < g->n_values; v++)
        wanted += g->values[v].kind != D0_VALUE_ACTIVATION;
    assert_int_equal(kept, wanted);
    assert_int_equal(f.value_of[graph_result(f.graph)], graph_result(g));
    int64_t dims[D0_N_DIMS] = {8, 2, 2, 4};
    assert_int_equal(graph_plan_memory(f.graph, dims, false, NULL), ERR_OK);
    graph_free(f.graph);
    graph_free(g);
}

/* What falls away must be nobody else's. */
static void test_wanted_by_others(void **state)
{
    (void)state;
    struct graph *g = tiny();
    expect(g, true, 2, 0, 3, 0); /* probes: gate, up, turned keys; sums and projections stay results */
    uint32_t gate = node_of(g, D0_OP_GLU, 0, 0)->inputs[0];
    g->info[gate].keep = true;
    expect(g, false, 2, 1, 3, 2);
    g->info[gate].keep = false;
    struct d0_node act = {.op = D0_OP_ACT, .n_inputs = 1, .inputs = {gate}, .layer = 0};
    node_set_attr_i(&act, D0_ATTR_FUNCTION, 0);
    assert_int_equal(graph_add_node(g, &act, "another reader", NULL, NULL), ERR_OK);
    expect(g, false, 2, 1, 3, 2);
    graph_free(g);
    g = tiny();
    struct d0_node *store = node_of(g, D0_OP_KV_STORE, 1, 0);
    struct d0_node again = {.op = D0_OP_SCALE, .n_inputs = 1, .inputs = {store->inputs[0]}, .layer = 1};
    node_set_attr_f(&again, D0_ATTR_FACTOR, 1);
    assert_int_equal(graph_add_node(g, &again, "another reader of keys", NULL, NULL), ERR_OK);
    expect(g, false, 2, 2, 3, 1);
    graph_free(g);
}

/* Attributes that one node cannot say for all its parts. */
static void test_unlike(void **state)
{
    (void)state;
    struct graph *g = tiny();
    node_set_attr_i(node_of(g, D0_OP_LINEAR, 0, 1), D0_ATTR_SEGMENTS, 2); /* k_proj */
    expect(g, false, 1, 2, 3, 2);
    node_set_attr_i(node_of(g, D0_OP_LINEAR, 1, 5), D0_ATTR_SEGMENTS, 2); /* up_proj */
    expect(g, false, 1, 1, 3, 2);
    node_set_attr_i(node_of(g, D0_OP_ROPE, 0, 1), D0_ATTR_INVERSE, 1);
    expect(g, false, 1, 1, 3, 1);
    node_set_attr_i(node_of(g, D0_OP_ROPE, 1, 0), D0_ATTR_STYLE, 1); /* queries turn otherwise */
    expect(g, false, 1, 1, 3, 0);
    graph_free(g);
}

/* The fused operators multiply rows as they are: products that round theirs stay nodes of their own,
 * whichever of the joined ones it is. */
static void test_rounded(void **state)
{
    (void)state;
    static const struct {
        unsigned which; /* of the LINEARs of a layer: q, k, v, o, gate, up, down */
        uint32_t qkv, gate_up;
    } cases[] = {{0, 1, 2}, {1, 1, 2}, {2, 1, 2}, {3, 2, 2}, {4, 2, 1}, {5, 2, 1}, {6, 2, 2}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct graph *g = tiny();
        node_set_attr_i(node_of(g, D0_OP_LINEAR, 1, cases[i].which), D0_ATTR_X_FORMAT, D0_X_BF16);
        expect(g, false, cases[i].qkv, cases[i].gate_up, 3, 2);
        graph_free(g);
    }
    struct graph *g = tiny();
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == D0_OP_LINEAR)
            node_set_attr_i(&g->nodes[i], D0_ATTR_X_FORMAT, D0_X_F8_BLOCK);
    struct fused f = fuse(g, ALL, false);
    assert_int_equal(f.nodes[FUSION_QKV] + f.nodes[FUSION_GATE_UP], 0);
    for (uint32_t i = 0; i < f.graph->n_nodes; i++)
        if (f.graph->nodes[i].op == D0_OP_LINEAR)
            assert_int_equal(node_attr_i(&f.graph->nodes[i], D0_ATTR_X_FORMAT, 0), D0_X_F8_BLOCK);
    assert_int_equal(count(f.graph, D0_OP_LINEAR), count(g, D0_OP_LINEAR));
    graph_free(f.graph);
    graph_free(g);
}

/* A slice ends where its last node ends: that result must not move. */
static void test_slices(void **state)
{
    (void)state;
    struct graph *g = tiny(), *s = NULL;
    for (int32_t layer = 0; layer < 2; layer++) {
        assert_int_equal(graph_slice(g, layer, layer, 0, &s, NULL), ERR_OK);
        struct fused f = fuse(s, ALL, false);
        assert_int_equal(f.nodes[FUSION_NORM_RESIDUAL], 1);
        assert_int_equal(f.value_of[graph_result(f.graph)], graph_result(s));
        graph_free(f.graph);
        graph_free(s);
    }
    uint8_t wanted[256] = {0}; /* a piece that ends in a norm */
    assert_true(g->n_nodes < sizeof wanted);
    uint32_t norm = (uint32_t)(node_of(g, D0_OP_RMS_NORM, 0, 1) - g->nodes);
    wanted[norm - 1] = wanted[norm] = 1;
    assert_int_equal(g->nodes[norm - 1].op, D0_OP_ADD);
    assert_int_equal(graph_slice_nodes(g, wanted, &s, NULL), ERR_OK);
    expect(s, false, 0, 0, 0, 0);
    graph_free(s);
    graph_free(g);
}

static void test_names(void **state)
{
    (void)state;
    uint32_t mask = 1;
    struct err e = {0};
    char text[FUSIONS_TEXT];
    assert_int_equal(fusions_parse(NULL, &mask, &e), ERR_OK);
    assert_int_equal(mask, fusions_exact());
    assert_int_equal(fusions_parse("none", &mask, &e), ERR_OK);
    assert_int_equal(mask, 0);
    assert_string_equal(fusions_format(mask, text, sizeof text), "none");
    assert_int_equal(fusions_parse("all", &mask, &e), ERR_OK);
    assert_int_equal(mask, fusions_exact());
    assert_int_equal(fusions_parse("gate_up,qkv", &mask, &e), ERR_OK);
    assert_int_equal(mask, FUSION_BIT(FUSION_QKV) | FUSION_BIT(FUSION_GATE_UP));
    assert_string_equal(fusions_format(mask, text, sizeof text), "qkv,gate_up");
    assert_int_equal(fusions_parse("all,mla_expanded", &mask, &e), ERR_OK);
    assert_int_equal(mask, fusions_exact() | FUSION_BIT(FUSION_MLA_EXPANDED));
    const char *const wrong[] = {"", "qk", "qkvv", "qkv,", ",qkv", "QKV", " qkv"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        assert_int_equal(fusions_parse(wrong[i], &mask, &e), ERR_USAGE);
    assert_int_equal(fusions_parse(fusions_format(ALL, text, sizeof text), &mask, &e), ERR_OK);
    for (unsigned i = 0; i < FUSION_N; i++) { /* a promise of equal bits has no limit, any other has one */
        const struct fusion_info *info = fusion_info((enum fusion)i);
        assert_true((mask & FUSION_BIT(i)) != 0);
        assert_true((info->exactness == FUSION_BIT_EQUAL) == (info->limit == 0));
    }
    assert_null(fusion_info(FUSION_N));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_applies),          cmocka_unit_test(test_keeps),
        cmocka_unit_test(test_wanted_by_others), cmocka_unit_test(test_unlike),
        cmocka_unit_test(test_slices),           cmocka_unit_test(test_names),
        cmocka_unit_test(test_rounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
