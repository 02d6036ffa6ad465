/* SPDX-License-Identifier: Apache-2.0
 *
 * The graph: shape rules and verifier refuse what they should, segments follow their definition, the memory
 * plan never lets two live values share a byte, slices compose, and docs/ops.md is what ops.def says.
 * `test_graph --update` rewrites docs/ops.md.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "graph/graph.h"
#include "tensor/tensor.h"

/* ---- building ---- */

static struct graph *opened(void)
{
    struct graph *g = NULL;
    assert_int_equal(graph_open(&g, NULL, NULL), ERR_OK);
    return g;
}

static uint32_t value(struct graph *g, uint32_t kind, uint32_t dtype, uint32_t role, const char *name,
                      unsigned n_dims, int64_t a, int64_t b)
{
    struct d0_value v = {.kind = kind, .dtype = dtype, .n_dims = n_dims, .role = role, .dims = {a, b}};
    struct graph_value_info i = {.name = name, .layer = -1};
    struct err e = {0};
    uint32_t id;
    if (graph_add_value(g, &v, &i, &id, &e))
        fail_msg("%s", e.message);
    return id;
}

static uint32_t weight(struct graph *g, const char *name, int64_t rows, int64_t columns, enum partition part,
                       uint32_t units)
{
    uint32_t id = value(g, D0_VALUE_WEIGHT, D0_BF16, 0, name, columns ? 2 : 1, rows, columns);
    g->info[id].part = part;
    g->info[id].part_units = units;
    return id;
}

static uint32_t node(struct graph *g, uint32_t op, int32_t layer, const char *name, unsigned n,
                     const uint32_t *in, unsigned n_attrs, const struct d0_attr *attrs)
{
    struct d0_node x = {.op = op, .n_inputs = n, .n_attrs = n_attrs, .layer = layer};
    struct err e = {0};
    uint32_t out;
    memcpy(x.inputs, in, n * sizeof *in);
    if (n_attrs)
        memcpy(x.attrs, attrs, n_attrs * sizeof *attrs);
    if (graph_add_node(g, &x, name, &out, &e))
        fail_msg("%s", e.message);
    return out;
}

#define IN(...)                                                                                              \
    (unsigned)(sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)), (uint32_t[])                           \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }
#define NO_ATTRS 0, NULL
#define ATTR_I(k, x)                                                                                         \
    {                                                                                                        \
        .key = (k), .is_float = 0, .v.i = (x)                                                                \
    }
#define ATTR_F(k, x)                                                                                         \
    {                                                                                                        \
        .key = (k), .is_float = 1, .v.f = (x)                                                                \
    }

/* A toy decoder with every operator: 2 heads of 32, one kv head, n layers. */
struct toy {
    uint32_t positions, ids, seq_of, table, rows, rope, out;
};

static uint32_t toy_layer(struct graph *g, const struct toy *t, uint32_t x, int32_t l)
{
    const struct d0_attr eps[] = {ATTR_F(D0_ATTR_EPS, 1e-5)}, dim[] = {ATTR_I(D0_ATTR_DIM, 32)};
    const struct d0_attr kv[] = {ATTR_I(D0_ATTR_KV_HEADS, 1), ATTR_I(D0_ATTR_DIM, 32)};
    const struct d0_attr at[] = {ATTR_I(D0_ATTR_HEADS, 2), ATTR_I(D0_ATTR_KV_HEADS, 1),
                                 ATTR_I(D0_ATTR_DIM, 32), ATTR_F(D0_ATTR_SCALE, 0.25)};
    struct d0_value pages = {.kind = D0_VALUE_STATE, .dtype = D0_BF16, .n_dims = 4, .dims = {1, 1, 16, 32}};
    struct graph_value_info info = {.name = "k", .layer = l};
    uint32_t k_pages, v_pages;
    assert_int_equal(graph_add_value(g, &pages, &info, &k_pages, NULL), ERR_OK);
    assert_int_equal(graph_add_value(g, &pages, &info, &v_pages, NULL), ERR_OK);
    uint32_t h = node(g, D0_OP_RMS_NORM, l, "norm", IN(x, weight(g, "n", 64, 0, PART_REPLICATED, 0)), 1, eps);
    uint32_t q = node(g, D0_OP_LINEAR, l, "q", IN(h, weight(g, "wq", 64, 64, PART_HEADS, 2)), NO_ATTRS);
    uint32_t k = node(g, D0_OP_LINEAR, l, "k", IN(h, weight(g, "wk", 32, 64, PART_HEADS, 1)), NO_ATTRS);
    uint32_t v = node(g, D0_OP_LINEAR, l, "v", IN(h, weight(g, "wv", 32, 64, PART_HEADS, 1)), NO_ATTRS);
    q = node(g, D0_OP_ROPE, l, "qr", IN(q, t->rope), 1, dim);
    k = node(g, D0_OP_ROPE, l, "kr", IN(k, t->rope), 1, dim);
    node(g, D0_OP_KV_STORE, l, "", IN(k, v, k_pages, v_pages, t->positions, t->seq_of, t->table), 2, kv);
    uint32_t a = node(g, D0_OP_ATTENTION, l, "attn",
                      IN(q, k_pages, v_pages, t->positions, t->seq_of, t->table), 4, at);
    uint32_t o = node(g, D0_OP_LINEAR, l, "o", IN(a, weight(g, "wo", 64, 64, PART_ROW, 2)), NO_ATTRS);
    x = node(g, D0_OP_ADD, l, "add", IN(x, o), NO_ATTRS);
    uint32_t gate =
        node(g, D0_OP_LINEAR, l, "gate", IN(x, weight(g, "wg", 256, 64, PART_COLUMN, 0)), NO_ATTRS);
    uint32_t up = node(g, D0_OP_LINEAR, l, "up", IN(x, weight(g, "wu", 256, 64, PART_COLUMN, 0)), NO_ATTRS);
    uint32_t act = node(g, D0_OP_GLU, l, "act", IN(gate, up), NO_ATTRS);
    uint32_t down =
        node(g, D0_OP_LINEAR, l, "down", IN(act, weight(g, "wd", 64, 256, PART_ROW, 0)), NO_ATTRS);
    uint32_t out = node(g, D0_OP_ADD, l, "block", IN(x, down), NO_ATTRS);
    g->info[out].probe = true;
    return out;
}

static struct graph *toy(int n_layers, struct toy *t)
{
    static const float freq[16] = {1, 0.5f, 0.25f};
    struct graph *g = opened();
    struct d0_value f = {.kind = D0_VALUE_WEIGHT, .dtype = D0_F32, .n_dims = 1, .dims = {16}};
    struct graph_value_info fi = {.name = "inv_freq", .layer = -1, .constant = freq};
    uint32_t fid;
    t->positions = value(g, D0_VALUE_INPUT, D0_I32, D0_INPUT_POSITIONS, "positions", 1, D0_DIM_TOKENS, 0);
    t->ids = value(g, D0_VALUE_INPUT, D0_I32, D0_INPUT_IDS, "ids", 1, D0_DIM_TOKENS, 0);
    t->seq_of = value(g, D0_VALUE_INPUT, D0_I32, D0_INPUT_SEQ_OF, "seq_of", 1, D0_DIM_TOKENS, 0);
    t->table =
        value(g, D0_VALUE_INPUT, D0_I32, D0_INPUT_PAGE_TABLE, "page_table", 2, D0_DIM_SEQS, D0_DIM_PAGES);
    t->rows = value(g, D0_VALUE_INPUT, D0_I32, D0_INPUT_ROWS, "rows", 1, D0_DIM_ROWS, 0);
    assert_int_equal(graph_add_value(g, &f, &fi, &fid, NULL), ERR_OK);
    t->rope = node(g, D0_OP_ROPE_TABLE, -1, "rope", IN(t->positions, fid), NO_ATTRS);
    uint32_t embedding = weight(g, "embedding", 512, 64, PART_VOCAB, 0);
    uint32_t x = node(g, D0_OP_EMBED, -1, "embed", IN(t->ids, embedding), NO_ATTRS);
    for (int l = 0; l < n_layers; l++)
        x = toy_layer(g, t, x, l);
    x = node(g, D0_OP_GATHER_ROWS, -1, "gather", IN(x, t->rows), NO_ATTRS);
    t->out = node(g, D0_OP_LINEAR, -1, "logits", IN(x, embedding), NO_ATTRS);
    return g;
}

static char *printed(const struct graph *g)
{
    struct strbuf b = STRBUF_INIT;
    graph_print(g, &b);
    char *s = strbuf_detach(&b);
    assert_non_null(s);
    return s;
}

/* ---- tables ---- */

static void test_tables(void **state)
{
    (void)state;
    const struct op_info *ops;
    size_t n = op_all(&ops);
    assert_true(n >= 10);
    for (size_t i = 0; i < n; i++) {
        assert_ptr_equal(op_find(ops[i].id), &ops[i]);
        assert_ptr_equal(op_find_name(ops[i].name), &ops[i]);
        unsigned used = 0, named = ops[i].attributes[0] != 0;
        for (const char *p = ops[i].attributes; *p; p++)
            named += *p == ',';
        uint32_t key;
        for (size_t k = 0; (key = attr_all(k)) != 0; k++)
            used += op_attr_use(&ops[i], key) != ATTR_NOT_USED;
        assert_int_equal(used, named); /* every name in the string is a known attribute */
    }
    assert_null(op_find(0));
    assert_null(op_find_name("nothing"));
    assert_int_equal(attr_find("eps"), D0_ATTR_EPS);
    assert_int_equal(attr_find("ep"), 0);
    assert_true(attr_is_float(D0_ATTR_SCALE));
    assert_int_equal(op_attr_use(op_find(D0_OP_RMS_NORM), D0_ATTR_EPS), ATTR_REQUIRED);
    assert_int_equal(op_attr_use(op_find(D0_OP_RMS_NORM), D0_ATTR_DIM), ATTR_OPTIONAL);
    assert_int_equal(op_attr_use(op_find(D0_OP_ATTENTION), D0_ATTR_DIM), ATTR_REQUIRED);
    assert_int_equal(op_attr_use(op_find(D0_OP_ADD), D0_ATTR_DIM), ATTR_NOT_USED);
}

/* ---- rules ---- */

static void refuse(struct graph *g, struct d0_node n, const char *part)
{
    struct err e = {0};
    uint32_t out, before = g->n_nodes, values = g->n_values;
    assert_int_equal(graph_add_node(g, &n, "bad", &out, &e), ERR_FORMAT);
    if (strstr(e.message, part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", e.message, part);
    assert_int_equal(g->n_nodes, before);
    assert_int_equal(g->n_values, values);
}

static void test_rules(void **state)
{
    (void)state;
    struct toy t;
    struct graph *g = toy(1, &t);
    uint32_t x = graph_find(g, "embed"), w = graph_find(g, "wg"), k = graph_find(g, "k"),
             norm = graph_find(g, "n");
    refuse(g, (struct d0_node){.op = 99}, "unknown");
    refuse(g, (struct d0_node){.op = D0_OP_ADD, .n_inputs = 1, .inputs = {x}}, "1 inputs, takes 2 to 2");
    refuse(g, (struct d0_node){.op = D0_OP_ADD, .n_inputs = 2, .inputs = {x, D0_NO_VALUE}},
           "input 1 is absent");
    refuse(g, (struct d0_node){.op = D0_OP_ADD, .n_inputs = 2, .inputs = {x, 100000}},
           "input 1 is value 100000");
    refuse(g, (struct d0_node){.op = D0_OP_ADD, .n_inputs = 2, .inputs = {x, w}},
           "must be an input or activation");
    refuse(g, (struct d0_node){.op = D0_OP_ADD, .n_inputs = 2, .inputs = {x, k}},
           "must be an input or activation");
    refuse(g, (struct d0_node){.op = D0_OP_ADD, .n_inputs = 2, .inputs = {x, t.ids}}, "is I32, must be F32");
    refuse(g, (struct d0_node){.op = D0_OP_ADD, .n_inputs = 2, .inputs = {x, t.out}},
           "[T, 64] but b is [R, 512]");
    refuse(g, (struct d0_node){.op = D0_OP_LINEAR, .n_inputs = 2, .inputs = {x, x}}, "must be a weight");
    refuse(g, (struct d0_node){.op = D0_OP_LINEAR, .n_inputs = 2, .inputs = {x, graph_find(g, "wd")}},
           "must be 64");
    refuse(g, (struct d0_node){.op = D0_OP_LINEAR, .n_inputs = 3, .inputs = {x, w, norm}},
           "dimension 0 must be 256");
    refuse(g, (struct d0_node){.op = D0_OP_RMS_NORM, .n_inputs = 2, .inputs = {x, norm}}, "eps is missing");
    refuse(g,
           (struct d0_node){.op = D0_OP_RMS_NORM,
                            .n_inputs = 2,
                            .inputs = {x, norm},
                            .n_attrs = 1,
                            .attrs = {ATTR_I(D0_ATTR_EPS, 1)}},
           "must be a finite number");
    refuse(g,
           (struct d0_node){.op = D0_OP_RMS_NORM,
                            .n_inputs = 2,
                            .inputs = {x, norm},
                            .n_attrs = 2,
                            .attrs = {ATTR_F(D0_ATTR_EPS, 1e-5), ATTR_F(D0_ATTR_EPS, 1e-5)}},
           "given twice");
    refuse(g,
           (struct d0_node){.op = D0_OP_RMS_NORM,
                            .n_inputs = 2,
                            .inputs = {x, norm},
                            .n_attrs = 2,
                            .attrs = {ATTR_F(D0_ATTR_EPS, 1e-5), ATTR_I(D0_ATTR_DIM, 48)}},
           "dim 48 does not divide 64");
    refuse(g,
           (struct d0_node){.op = D0_OP_ADD,
                            .n_inputs = 2,
                            .inputs = {x, x},
                            .n_attrs = 1,
                            .attrs = {ATTR_I(D0_ATTR_DIM, 1)}},
           "no attribute dim");
    refuse(g,
           (struct d0_node){.op = D0_OP_LINEAR,
                            .n_inputs = 2,
                            .inputs = {x, w},
                            .n_attrs = 1,
                            .attrs = {ATTR_I(D0_ATTR_SEGMENTS, 3)}},
           "power of two");
    refuse(g,
           (struct d0_node){.op = D0_OP_ROPE,
                            .n_inputs = 2,
                            .inputs = {x, t.rope},
                            .n_attrs = 2,
                            .attrs = {ATTR_I(D0_ATTR_DIM, 32), ATTR_I(D0_ATTR_OFFSET, 8)}},
           "do not lie in a head");
    refuse(g,
           (struct d0_node){.op = D0_OP_ROPE,
                            .n_inputs = 2,
                            .inputs = {x, t.rope},
                            .n_attrs = 1,
                            .attrs = {ATTR_I(D0_ATTR_DIM, 24)}},
           "does not divide");
    refuse(g,
           (struct d0_node){.op = D0_OP_ATTENTION,
                            .n_inputs = 6,
                            .inputs = {x, k, k, t.positions, t.seq_of, t.table},
                            .n_attrs = 4,
                            .attrs = {ATTR_I(D0_ATTR_HEADS, 3), ATTR_I(D0_ATTR_KV_HEADS, 2),
                                      ATTR_I(D0_ATTR_DIM, 32), ATTR_F(D0_ATTR_SCALE, 1)}},
           "2 kv heads do not divide 3 heads");
    refuse(g,
           (struct d0_node){.op = D0_OP_KV_STORE,
                            .n_inputs = 7,
                            .inputs = {x, x, k, k, t.positions, t.seq_of, t.table},
                            .n_attrs = 2,
                            .attrs = {ATTR_I(D0_ATTR_KV_HEADS, 1), ATTR_I(D0_ATTR_DIM, 32)}},
           "dimension 1 must be 32");
    refuse(g,
           (struct d0_node){.op = D0_OP_KV_STORE,
                            .n_inputs = 7,
                            .inputs = {x, x, x, x, t.positions, t.seq_of, t.table},
                            .n_attrs = 2,
                            .attrs = {ATTR_I(D0_ATTR_KV_HEADS, 1), ATTR_I(D0_ATTR_DIM, 64)}},
           "must be a state");
    struct err e = {0};
    uint32_t id;
    struct d0_value v = {.kind = D0_VALUE_WEIGHT, .dtype = D0_F32, .n_dims = 1, .dims = {D0_DIM_TOKENS}};
    assert_int_equal(graph_add_value(g, &v, NULL, &id, &e), ERR_FORMAT); /* a weight of varying size */
    v.dims[0] = (int64_t)1 << 50;
    assert_int_equal(graph_add_value(g, &v, NULL, &id, &e), ERR_FORMAT);
    v = (struct d0_value){.kind = D0_VALUE_INPUT, .dtype = D0_I32, .n_dims = 1, .dims = {D0_DIM_TOKENS}};
    assert_int_equal(graph_add_value(g, &v, NULL, &id, &e), ERR_FORMAT); /* an input without a role */
    assert_int_equal(graph_verify(g, &e), ERR_OK);
    graph_free(g);
    graph_free(NULL);
}

/* ---- verifier ---- */

static void break_graph(struct graph *g, int how)
{
    struct d0_node *first = &g->nodes[2], t;
    switch (how) {
    case 0: /* use before definition */
        t = g->nodes[2];
        g->nodes[2] = g->nodes[3];
        g->nodes[3] = t;
        break;
    case 1: /* made twice */
        g->nodes[3].outputs[0] = g->nodes[4].outputs[0];
        break;
    case 2:
        g->values[first->outputs[0]].dims[1] = 65;
        break;
    case 3:
        g->values[first->outputs[0]].dtype = D0_BF16;
        break;
    case 4:
        first->n_attrs = 0;
        break;
    case 5:
        first->inputs[0] = g->n_values;
        break;
    case 6:
        first->n_outputs = 0;
        break;
    case 7: /* an output that is an input */
        first->outputs[0] = 0;
        break;
    case 8: /* nobody makes the last value */
        g->n_nodes--;
        break;
    case 9:
        g->values[0].n_dims = 7;
        break;
    case 10:
        g->values[0].kind = 77;
        break;
    case 11:
        first->op = 1000;
        break;
    case 12: /* a state where an activation belongs */
        g->values[first->inputs[0]].kind = D0_VALUE_STATE;
        break;
    case 13: /* the same node again */
        assert_true(g->n_nodes < g->nodes_capacity);
        g->nodes[g->n_nodes] = g->nodes[g->n_nodes - 1];
        g->n_nodes++;
        break;
    default:
        g->values[first->outputs[0]].kind = D0_VALUE_WEIGHT;
        break;
    }
}

static void test_verify(void **state)
{
    (void)state;
    struct toy t;
    struct err e = {0};
    for (int how = 0; how <= 14; how++) {
        struct graph *g = toy(1, &t);
        assert_int_equal(graph_verify(g, &e), ERR_OK);
        break_graph(g, how);
        if (graph_verify(g, &e) != ERR_FORMAT)
            fail_msg("breach %d was not seen", how);
        graph_free(g);
    }
    /* any bytes at all: an answer, no crash */
    struct rng r;
    rng_init(&r, 20240607);
    struct graph *g = toy(2, &t);
    struct d0_node *nodes = malloc(g->n_nodes * sizeof *nodes);
    struct d0_value *values = malloc(g->n_values * sizeof *values);
    assert_true(nodes && values);
    memcpy(nodes, g->nodes, g->n_nodes * sizeof *nodes);
    memcpy(values, g->values, g->n_values * sizeof *values);
    for (int i = 0; i < 20000; i++) {
        for (uint64_t k = rng_below(&r, 3) + 1; k > 0; k--) {
            bool of_node = rng_below(&r, 2);
            unsigned char *p = of_node ? (unsigned char *)g->nodes : (unsigned char *)g->values;
            size_t n = of_node ? g->n_nodes * sizeof *nodes : g->n_values * sizeof *values;
            p[rng_below(&r, n)] = (unsigned char)(rng_below(&r, 2) ? rng_next(&r) : rng_below(&r, 16));
        }
        int rc = graph_verify(g, &e);
        assert_true(rc == ERR_OK || rc == ERR_FORMAT);
        memcpy(g->nodes, nodes, g->n_nodes * sizeof *nodes);
        memcpy(g->values, values, g->n_values * sizeof *values);
    }
    free(nodes);
    free(values);
    graph_free(g);
}

/* ---- segments ---- */

static void test_segments(void **state)
{
    (void)state;
    static const struct {
        uint64_t k;
        uint32_t units, expected;
    } cases[] = {{64, 8, 2},    {172, 0, 1},  {4096, 32, 32}, {14336, 0, 64}, {16384, 128, 64},
                 {32, 0, 1},    {64, 0, 2},   {2048, 0, 64},  {2080, 0, 1},   {96, 0, 1},
                 {5120, 40, 8}, {4096, 4, 4}, {0, 0, 1},      {11008, 0, 8},  {53248, 0, 64},
                 {31, 0, 1},    {100, 3, 1},  {1, 1, 1},      {1152, 9, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (graph_segments(cases[i].k, cases[i].units) != cases[i].expected)
            fail_msg("k %llu units %u: %u segments, expected %u", (unsigned long long)cases[i].k,
                     cases[i].units, graph_segments(cases[i].k, cases[i].units), cases[i].expected);
    for (uint64_t k = 1; k < 3000; k++) /* the definition, word by word */
        for (uint32_t units = 0; units < 40; units += units < 4 ? 1 : 4) {
            uint32_t best = 1;
            for (uint32_t s = 2; s <= 64; s *= 2)
                if (k % s == 0 && (k / s) % 32 == 0 &&
                    (units == 0 || (k % units == 0 && (k / s) % (k / units) == 0)))
                    best = s;
            assert_int_equal(graph_segments(k, units), best);
        }
    struct toy t;
    struct graph *g = toy(1, &t);
    assert_int_equal(graph_set_segments(g, NULL), ERR_OK);
    assert_int_equal(graph_set_segments(g, NULL), ERR_OK); /* again: no second attribute */
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        int64_t s = node_attr_i(n, D0_ATTR_SEGMENTS, -1), expected = -1;
        const char *name = n->n_outputs ? g->info[n->outputs[0]].name : "";
        if (strcmp(name, "o") == 0)
            expected = 2;
        if (strcmp(name, "down") == 0)
            expected = 8;
        assert_int_equal(s, expected);
    }
    assert_int_equal(graph_verify(g, NULL), ERR_OK);
    graph_free(g);
}

/* ---- memory plan ---- */

/* `widest`: narrow values differ by single steps of alignment, so that gaps of nearly the right size come up.
 */
static struct graph *random_graph(struct rng *r, uint32_t widest)
{
    struct graph *g = opened();
    uint32_t live[300], n_live = 0, n = 3 + (uint32_t)rng_below(r, 120);
    live[n_live++] = value(g, D0_VALUE_INPUT, D0_F32, D0_INPUT_HIDDEN, "in", 2, D0_DIM_TOKENS, 8);
    uint32_t rows = value(g, D0_VALUE_INPUT, D0_I32, D0_INPUT_ROWS, "rows", 1, D0_DIM_ROWS, 0);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t a = live[rng_below(r, rng_below(r, 3) ? n_live : 1)];
        uint32_t b = live[n_live - 1 - rng_below(r, n_live < 6 ? n_live : 6)], out;
        const struct d0_value *x = &g->values[a], *y = &g->values[b];
        if (x->dims[0] == y->dims[0] && x->dims[1] == y->dims[1])
            out = node(g, D0_OP_ADD, 0, "add", IN(a, b), NO_ATTRS);
        else if (rng_below(r, 8) == 0 && x->dims[0] == D0_DIM_TOKENS)
            out = node(g, D0_OP_GATHER_ROWS, 0, "gather", IN(a, rows), NO_ATTRS);
        else
            out =
                node(g, D0_OP_LINEAR, 0, "linear",
                     IN(b, weight(g, "w", 1 + (int64_t)rng_below(r, widest), y->dims[1], PART_REPLICATED, 0)),
                     NO_ATTRS);
        g->info[out].probe = rng_below(r, 4) == 0;
        live[n_live++] = out;
    }
    return g;
}

/* Brute force: before every node, which values hold something that is still wanted? No two of them, and none
 * of the node's own outputs, may overlap. Returns the largest sum of live bytes. */
static uint64_t check_plan(const struct graph *g, const int64_t *dims)
{
    uint64_t largest = 0;
    for (uint32_t at = 0; at < g->n_nodes; at++) {
        uint32_t ids[400], n = 0;
        uint64_t sum = 0;
        for (uint32_t v = 0; v < g->n_values; v++) {
            uint32_t made = UINT32_MAX, last = 0;
            for (uint32_t i = 0; i < g->n_nodes; i++) {
                for (uint32_t j = 0; j < g->nodes[i].n_outputs; j++)
                    if (g->nodes[i].outputs[j] == v)
                        made = last = i;
                for (uint32_t j = 0; j < g->nodes[i].n_inputs; j++)
                    if (made != UINT32_MAX && g->nodes[i].inputs[j] == v)
                        last = i;
            }
            bool output = g->values[v].kind == D0_VALUE_OUTPUT;
            if (made != UINT32_MAX && (output || (made <= at && at <= last)))
                ids[n++] = v;
        }
        for (uint32_t i = 0; i < n; i++) {
            uint64_t a_bytes, b_bytes, a = g->values[ids[i]].offset;
            assert_true(tensor_value_bytes(&g->values[ids[i]], dims, &a_bytes));
            sum += ALIGN_UP(a_bytes, 64);
            assert_int_equal(a % 64, 0);
            assert_true(a + a_bytes <= g->scratch_bytes);
            for (uint32_t j = 0; j < i; j++) {
                uint64_t b = g->values[ids[j]].offset;
                assert_true(tensor_value_bytes(&g->values[ids[j]], dims, &b_bytes));
                if (a < b + b_bytes && b < a + a_bytes)
                    fail_msg("values %u and %u overlap at node %u", ids[i], ids[j], at);
            }
        }
        largest = sum > largest ? sum : largest;
    }
    return largest;
}

static void test_memory_random(void **state)
{
    (void)state;
    struct rng r;
    double worst = 0;
    rng_init(&r, 7);
    for (int i = 0; i < 300; i++) {
        struct graph *g = random_graph(&r, i % 2 ? 90 : 12);
        int64_t dims[D0_N_DIMS] = {(int64_t)rng_below(&r, 40), 1, (int64_t)rng_below(&r, 5), 1};
        bool keep = i % 3 == 0;
        assert_int_equal(graph_plan_memory(g, dims, keep, NULL), ERR_OK);
        assert_int_equal(graph_verify(g, NULL), ERR_OK);
        uint64_t least = check_plan(g, dims);
        if (least && (double)g->scratch_bytes / (double)least > worst)
            worst = (double)g->scratch_bytes / (double)least;
        graph_free(g);
    }
    assert_true(worst < 1.6); /* against what is alive at once, which no plan can beat */
}

/* a(10) and b(8) leave a gap of 10 below b; c(7) goes there; d fits between c and b only if it is 3 wide. In
 * steps of 64 bytes. */
static void test_memory_gap(void **state)
{
    (void)state;
    static const int64_t dims[D0_N_DIMS] = {16, 1, 1, 1};
    for (int64_t width = 2; width <= 5; width++) {
        struct graph *g = opened();
        uint32_t x = value(g, D0_VALUE_INPUT, D0_F32, D0_INPUT_HIDDEN, "in", 2, D0_DIM_TOKENS, 1);
        uint32_t a =
            node(g, D0_OP_LINEAR, 0, "a", IN(x, weight(g, "w", 10, 1, PART_REPLICATED, 0)), NO_ATTRS);
        uint32_t b =
            node(g, D0_OP_LINEAR, 0, "b", IN(a, weight(g, "w", 8, 10, PART_REPLICATED, 0)), NO_ATTRS);
        uint32_t c = node(g, D0_OP_LINEAR, 0, "c", IN(b, weight(g, "w", 7, 8, PART_REPLICATED, 0)), NO_ATTRS);
        uint32_t d =
            node(g, D0_OP_LINEAR, 0, "d", IN(c, weight(g, "w", width, 7, PART_REPLICATED, 0)), NO_ATTRS);
        node(g, D0_OP_LINEAR, 0, "e", IN(b, weight(g, "w", 1, 8, PART_REPLICATED, 0)), NO_ATTRS);
        assert_int_equal(graph_plan_memory(g, dims, false, NULL), ERR_OK);
        assert_int_equal(g->values[b].offset, 10 * 64);
        assert_int_equal(g->values[c].offset, 0);
        assert_int_equal(g->values[d].offset, (width <= 3 ? 7 : 18) * 64);
        check_plan(g, dims);
        graph_free(g);
    }
}

static void test_memory_kinds(void **state)
{
    (void)state;
    struct toy t;
    struct err e = {0};
    struct graph *g = toy(3, &t);
    const int64_t dims[D0_N_DIMS] = {17, 2, 3, 4};
    assert_int_equal(graph_plan_memory(g, dims, true, NULL), ERR_OK);
    uint64_t with = g->scratch_bytes, least = check_plan(g, dims);
    assert_true(with < least + least / 4);
    unsigned n = 0;
    for (uint32_t i = 0; i < g->n_values; i++)
        n += g->values[i].kind == D0_VALUE_OUTPUT;
    assert_int_equal(n, 4); /* three blocks and the logits */
    assert_int_equal(g->values[t.out].kind, D0_VALUE_OUTPUT);
    assert_int_equal(graph_plan_memory(g, dims, false, NULL), ERR_OK);
    assert_true(g->scratch_bytes < with);
    n = 0;
    for (uint32_t i = 0; i < g->n_values; i++)
        n += g->values[i].kind == D0_VALUE_OUTPUT;
    assert_int_equal(n, 1);
    check_plan(g, dims);
    struct d0_part p;
    graph_part(g, &p);
    assert_int_equal(p.size, sizeof p);
    assert_int_equal(p.max_dims[2], 3);
    assert_int_equal(p.scratch_bytes, g->scratch_bytes);
    assert_ptr_equal(p.nodes, g->nodes);
    const int64_t bad[D0_N_DIMS] = {-1, 1, 1, 1};
    assert_int_equal(graph_plan_memory(g, bad, false, &e), ERR_INVALID);
    graph_free(g);
    /* a step that no machine holds is refused, not wrapped around */
    g = opened();
    uint32_t x = value(g, D0_VALUE_INPUT, D0_F32, D0_INPUT_HIDDEN, "in", 2, D0_DIM_TOKENS, 1);
    uint32_t a = node(g, D0_OP_LINEAR, 0, "a", IN(x, weight(g, "w", (int64_t)1 << 40, 1, PART_REPLICATED, 0)),
                      NO_ATTRS);
    node(g, D0_OP_ADD, 0, "b", IN(a, a), NO_ATTRS);
    const int64_t huge[D0_N_DIMS] = {INT32_MAX, 1, 1, 1};
    assert_int_equal(graph_plan_memory(g, huge, false, &e), ERR_LIMIT);
    graph_free(g);
}

static void test_value_bytes(void **state)
{
    (void)state;
    const int64_t dims[D0_N_DIMS] = {5, 2, 3, 7};
    uint64_t n;
    struct d0_value v = {.dtype = D0_F32, .n_dims = 2, .dims = {D0_DIM_SEQS, D0_DIM_PAGES}};
    assert_true(tensor_value_bytes(&v, dims, &n) && n == 2 * 7 * 4);
    v = (struct d0_value){.dtype = D0_BF16, .n_dims = 1, .dims = {3}};
    assert_true(tensor_value_bytes(&v, dims, &n) && n == 6);
    v = (struct d0_value){.dtype = D0_F32, .n_dims = 3, .dims = {1 << 30, 1 << 30, 1 << 30}};
    assert_false(tensor_value_bytes(&v, dims, &n));
    v = (struct d0_value){.dtype = D0_F32, .n_dims = 1, .dims = {-9}};
    assert_false(tensor_value_bytes(&v, dims, &n));
    v = (struct d0_value){.dtype = 999, .n_dims = 1, .dims = {1}};
    assert_false(tensor_value_bytes(&v, dims, &n));
}

/* ---- slices ---- */

static unsigned count_op(const struct graph *g, uint32_t op)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        n += g->nodes[i].op == op;
    return n;
}

static unsigned count_role(const struct graph *g, uint32_t role)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < g->n_values; i++)
        n += g->values[i].kind == D0_VALUE_INPUT && g->values[i].role == role;
    return n;
}

static void test_slices(void **state)
{
    (void)state;
    struct toy t;
    struct err e = {0};
    struct graph *g = toy(4, &t), *s, *whole;
    const int64_t dims[D0_N_DIMS] = {8, 2, 3, 4};
    uint32_t per_layer = (g->n_nodes - 4) / 4, n_nodes = 0;
    assert_int_equal(graph_set_segments(g, NULL), ERR_OK);

    assert_int_equal(graph_slice(g, 0, -1, GRAPH_PROLOGUE, &s, &e), ERR_OK); /* embedding alone */
    assert_int_equal(s->n_nodes, 1);
    assert_int_equal(s->nodes[0].op, D0_OP_EMBED);
    assert_true(s->info[graph_result(s)].keep);
    n_nodes += s->n_nodes;
    graph_free(s);
    for (int l = 0; l < 4; l++) {
        assert_int_equal(graph_slice(g, l, l, 0, &s, &e), ERR_OK);
        assert_int_equal(s->n_nodes, per_layer + 1);
        assert_int_equal(count_op(s, D0_OP_ROPE_TABLE), 1);
        assert_int_equal(count_role(s, D0_INPUT_HIDDEN), 1);
        assert_int_equal(count_role(s, D0_INPUT_IDS), 0);
        assert_string_equal(s->info[graph_result(s)].name, "block");
        assert_true(s->info[graph_result(s)].probe);
        assert_int_equal(s->info[graph_result(s)].layer, l);
        assert_int_equal(graph_plan_memory(s, dims, false, &e), ERR_OK);
        assert_int_equal(s->values[graph_result(s)].kind, D0_VALUE_OUTPUT);
        check_plan(s, dims);
        for (uint32_t i = 0; i < s->n_nodes; i++)
            if (strcmp(s->nodes[i].n_outputs ? s->info[s->nodes[i].outputs[0]].name : "", "down") == 0)
                assert_int_equal(node_attr_i(&s->nodes[i], D0_ATTR_SEGMENTS, 0), 8);
        n_nodes += s->n_nodes - 1;
        graph_free(s);
    }
    assert_int_equal(graph_slice(g, 0, -1, GRAPH_EPILOGUE, &s, &e), ERR_OK); /* head alone */
    assert_int_equal(s->n_nodes, 2);
    assert_int_equal(count_role(s, D0_INPUT_HIDDEN), 1);
    n_nodes += s->n_nodes;
    graph_free(s);
    assert_int_equal(n_nodes + 1, g->n_nodes); /* the rope table came along each time */

    assert_int_equal(graph_slice(g, 0, 3, GRAPH_PROLOGUE | GRAPH_EPILOGUE, &whole, &e), ERR_OK);
    assert_int_equal(whole->n_nodes, g->n_nodes);
    assert_int_equal(count_role(whole, D0_INPUT_HIDDEN), 0);
    uint32_t f = graph_find(whole, "inv_freq"); /* constants are copied, not shared */
    assert_memory_equal(whole->info[f].constant, g->info[graph_find(g, "inv_freq")].constant, 64);
    assert_ptr_not_equal(whole->info[f].constant, g->info[graph_find(g, "inv_freq")].constant);
    graph_free(whole);
    assert_int_equal(graph_slice(g, 7, 9, 0, &s, &e), ERR_INVALID);

    struct graph *copy;
    assert_int_equal(graph_copy(g, &copy, &e), ERR_OK);
    char *a = printed(g), *b = printed(copy);
    assert_string_equal(a, b);
    free(a);
    free(b);
    graph_free(g);
    assert_int_equal(graph_verify(copy, &e), ERR_OK);
    graph_free(copy);
}

/* ---- cost ---- */

static void test_cost(void **state)
{
    (void)state;
    struct toy t;
    struct graph *g = toy(1, &t);
    struct graph_cost c;
    const int64_t dims[D0_N_DIMS] = {2, 2, 1,
                                     4}; /* two sequences, one token each, 99 positions behind them */
    graph_cost(g, dims, 99, &c);
    double linear = 2.0 * 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 256 * 64) + 2.0 * 512 * 64;
    double attention = 2.0 * 2 * 2 * 64 * 100;
    assert_true(c.flops > linear + attention && c.flops < (linear + attention) * 1.02);
    double weights = 2.0 * (64 * 64 * 2 + 2 * 32 * 64 + 3 * 256 * 64 + 512 * 64 + 64 + 2 * 64) + 64;
    assert_true(c.weight_bytes == weights);
    assert_true(c.state_bytes == 2 * 100 * 64 * 2 + 2 * 64 * 2);
    assert_true(c.activation_bytes > 0);
    graph_free(g);
}

/* ---- docs/ops.md ---- */

static void write_ops_md(struct strbuf *b)
{
    const struct op_info *ops;
    size_t n = op_all(&ops);
    uint32_t key;
    strbuf_puts(b, "# Operators\n\n"
                   "Generated from include/day0/ops.def by `test_graph --update`; a test compares the two. T "
                   "tokens of the step, B\n"
                   "sequences, R wanted rows, P page-table row length; `W` weights are F32, BF16 or F16. "
                   "Activations are float32.\n"
                   "Tolerance is in units of 2^-23 of the largest magnitude that enters the sum, against the "
                   "float64 definition; 0\n"
                   "means bit for bit. Ids are frozen.\n\n"
                   "| id | operator | inputs | outputs | attributes (? optional) | tolerance | since ABI |\n"
                   "| --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < n; i++) {
        char inputs[32];
        if (ops[i].min_inputs == ops[i].max_inputs)
            snprintf(inputs, sizeof inputs, "%u", ops[i].min_inputs);
        else
            snprintf(inputs, sizeof inputs, "%u to %u", ops[i].min_inputs, ops[i].max_inputs);
        strbuf_printf(b, "| %u | %s | %s | %u | %s | %g | %u |\n", ops[i].id, ops[i].name, inputs,
                      ops[i].n_outputs, ops[i].attributes, ops[i].tolerance_ulp, ops[i].since);
    }
    strbuf_puts(b, "\n## Meaning\n");
    for (size_t i = 0; i < n; i++)
        strbuf_printf(b, "\n**%s**: %s.%s\n", ops[i].name, ops[i].meaning,
                      op_no_kernel(ops[i].id) ? " *No kernel yet.*" : "");
    strbuf_puts(b, "\n## Attributes\n\n| key | attribute | type | meaning |\n| --- | --- | --- | --- |\n");
    for (size_t i = 0; (key = attr_all(i)) != 0; i++)
        strbuf_printf(b, "| %u | %s | %s | %s |\n", key, attr_name(key),
                      attr_is_float(key) ? "float" : "integer", attr_meaning(key));
}

static void test_ops_md(void **state)
{
    (void)state;
    struct strbuf b = STRBUF_INIT;
    struct arena a;
    struct err e = {0};
    char *text;
    size_t n;
    arena_init(&a, NULL, MEM_MISC);
    write_ops_md(&b);
    if (file_read(TEST_SOURCE_ROOT "/docs/ops.md", 1 << 20, &a, &text, &n, &e))
        fail_msg("%s; run test_graph --update", e.message);
    assert_string_equal(text, strbuf_cstr(&b));
    strbuf_release(&b);
    arena_release(&a);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables),        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_verify),        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_memory_random), cmocka_unit_test(test_memory_kinds),
        cmocka_unit_test(test_memory_gap),    cmocka_unit_test(test_value_bytes),
        cmocka_unit_test(test_slices),        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_ops_md),
    };
    if (argc == 2 && strcmp(argv[1], "--update") == 0) {
        struct strbuf b = STRBUF_INIT;
        write_ops_md(&b);
        int rc = file_write_atomic(TEST_SOURCE_ROOT "/docs/ops.md", strbuf_cstr(&b), b.len, NULL);
        strbuf_release(&b);
        return rc ? 1 : 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
