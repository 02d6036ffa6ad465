/* SPDX-License-Identifier: Apache-2.0
 *
 * A graph for people: its text and its cost. Cost is arithmetic in double, good for ratios; it is never used
 * for a size.
 */
#include "graph/graph_internal.h"

#include <math.h>
#include <stdio.h>

#include "tensor/tensor.h"

/* ---- text ---- */

static const char *kind_name(uint32_t kind)
{
    switch (kind) {
    case D0_VALUE_INPUT:
        return "input";
    case D0_VALUE_WEIGHT:
        return "weight";
    case D0_VALUE_STATE:
        return "state";
    default:
        return "value";
    }
}

static void print_value(const struct graph *g, uint32_t id, struct strbuf *out)
{
    const struct d0_value *v = &g->values[id];
    const struct graph_value_info *i = &g->info[id];
    char dims[128];
    strbuf_printf(out, "%s %%%u %s %s%s", kind_name(v->kind), id, i->name, dtype_name(v->dtype),
                  dims_format(v, dims, sizeof dims));
    if (v->kind == D0_VALUE_WEIGHT && i->constant)
        strbuf_puts(out, " constant");
    else if (v->kind == D0_VALUE_WEIGHT)
        strbuf_printf(out, " %s", partition_name(i->part));
    if (v->kind == D0_VALUE_WEIGHT && i->part_units)
        strbuf_printf(out, "(%u)", i->part_units);
    if (v->kind == D0_VALUE_WEIGHT && i->quantisable)
        strbuf_puts(out, " quantisable");
    if (i->scheme)
        strbuf_printf(out, " scheme %u", i->scheme);
    strbuf_putc(out, '\n');
}

static void print_node(const struct graph *g, const struct d0_node *n, struct strbuf *out)
{
    char dims[128];
    const struct op_info *op = op_find(n->op);
    if (n->layer >= 0)
        strbuf_printf(out, "%4d  ", n->layer);
    else
        strbuf_puts(out, "   -  ");
    for (uint32_t i = 0; i < n->n_outputs; i++) {
        const struct d0_value *v = &g->values[n->outputs[i]];
        strbuf_printf(out, "%s%%%u %s %s%s", i ? ", " : "", n->outputs[i], g->info[n->outputs[i]].name,
                      dtype_name(v->dtype), dims_format(v, dims, sizeof dims));
        if (g->info[n->outputs[i]].probe)
            strbuf_puts(out, " probe");
    }
    strbuf_printf(out, "%s%s(", n->n_outputs ? " = " : "", op ? op->name : "?");
    for (uint32_t i = 0; i < n->n_inputs; i++) {
        if (n->inputs[i] == D0_NO_VALUE)
            strbuf_printf(out, "%s-", i ? ", " : "");
        else
            strbuf_printf(out, "%s%%%u", i ? ", " : "", n->inputs[i]);
    }
    strbuf_puts(out, ")");
    for (uint32_t i = 0; i < n->n_attrs; i++) {
        const struct d0_attr *a = &n->attrs[i];
        if (a->is_float)
            strbuf_printf(out, " %s=%.9g", attr_name(a->key), a->v.f);
        else
            strbuf_printf(out, " %s=%lld", attr_name(a->key), (long long)a->v.i);
    }
    strbuf_putc(out, '\n');
}

void graph_print(const struct graph *g, struct strbuf *out)
{
    strbuf_printf(out, "graph %u values, %u nodes\n", g->n_values, g->n_nodes);
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind != D0_VALUE_ACTIVATION && g->values[i].kind != D0_VALUE_OUTPUT)
            print_value(g, i, out);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        print_node(g, &g->nodes[i], out);
}

/* ---- cost ---- */

struct costing {
    const struct graph *g;
    const int64_t *dims;
    int64_t context;
    struct graph_cost *cost;
};

static double extent(const struct costing *k, const struct d0_value *v, uint32_t i)
{
    int64_t d = v->dims[i];
    return d >= 0 ? (double)d : (double)k->dims[-1 - d];
}

static double elements(const struct costing *k, const struct d0_value *v)
{
    double n = 1;
    for (uint32_t i = 0; i < v->n_dims; i++)
        n *= extent(k, v, i);
    return n;
}

static double bytes_of(const struct costing *k, const struct d0_value *v)
{
    return elements(k, v) * dtype_bits(v->dtype) / 8;
}

static const struct d0_value *input(const struct costing *k, const struct d0_node *n, uint32_t i)
{
    return &k->g->values[n->inputs[i]];
}

/* Mean number of positions that a token of the step sees: its history and, on average, half of its own run.
 */
static double visible(const struct costing *k, const struct d0_node *n)
{
    const int64_t *dims = k->dims;
    double run = dims[1] > 0 ? (double)dims[0] / (double)dims[1] : (double)dims[0];
    double seen = (double)k->context + (run + 1) / 2, window = (double)node_attr_i(n, D0_ATTR_WINDOW, 0);
    return window > 0 && window < seen ? window : seen;
}

/* q.k and p.v: 2 flops a product each; pages of a sequence are read once for all its tokens */
static void add_attention(struct costing *k, const struct d0_node *n)
{
    const struct d0_value *keys = input(k, n, 1), *values = input(k, n, 2);
    double rows = extent(k, input(k, n, 0), 0), heads = (double)node_attr_i(n, D0_ATTR_HEADS, 0),
           kv = (double)keys->dims[1], wide = (double)keys->dims[3] + (double)values->dims[3],
           seen = visible(k, n);
    k->cost->flops += 2 * rows * heads * wide * seen;
    k->cost->state_bytes += (double)k->dims[1] * seen * kv * wide * dtype_bits(keys->dtype) / 8;
}

static void add_mla(struct costing *k, const struct d0_node *n)
{
    const struct d0_value *cache = input(k, n, 1), *kv_b = input(k, n, 2);
    double rows = extent(k, input(k, n, 0), 0), heads = (double)node_attr_i(n, D0_ATTR_HEADS, 0),
           wide = (double)cache->dims[3], latent = (double)node_attr_i(n, D0_ATTR_LATENT, 0),
           seen = visible(k, n);
    k->cost->flops += 2 * rows * (heads * (wide + latent) * seen + (double)kv_b->dims[0] * latent);
    k->cost->state_bytes += (double)k->dims[1] * seen * wide * dtype_bits(cache->dtype) / 8;
}

/* At most: as if all rows were of one picture. */
static void add_segment_attention(struct costing *k, const struct d0_node *n)
{
    const struct d0_value *x = input(k, n, 0), *out = &k->g->values[n->outputs[0]];
    k->cost->flops +=
        2 * extent(k, x, 0) * extent(k, input(k, n, 1), 0) * ((double)x->dims[1] + (double)out->dims[1]);
}

/* Only the chosen experts. */
static void add_experts(struct costing *k, const struct d0_node *n)
{
    const struct d0_value *x = input(k, n, 0), *ids = input(k, n, 1), *down = input(k, n, 3);
    double inter = (double)node_attr_i(n, D0_ATTR_INTER, 0), width = (double)x->dims[1],
           matrices = node_attr_i(n, D0_ATTR_LAYOUT, 0) == 3 ? 2 : 3,
           chosen = extent(k, x, 0) * (double)ids->dims[1];
    double read = chosen < (double)down->dims[0] ? chosen : (double)down->dims[0];
    k->cost->flops += 2 * chosen * matrices * inter * width;
    k->cost->weight_bytes += read * matrices * inter * width * dtype_bits(down->dtype) / 8;
}

static void add_delta_rule(struct costing *k, const struct d0_node *n)
{
    const struct d0_value *state = input(k, n, 7);
    double size = (double)(state->dims[1] * state->dims[2] * state->dims[3]);
    k->cost->flops += 6 * extent(k, input(k, n, 0), 0) * size;
    k->cost->state_bytes += 2 * (double)k->dims[1] * size * 4;
}

/* Two values go into a state. */
static void add_store(struct costing *k, const struct d0_value *a, const struct d0_value *b,
                      const struct d0_value *state)
{
    k->cost->state_bytes += (elements(k, a) + elements(k, b)) * dtype_bits(state->dtype) / 8;
}

/* Flops for each number that an operator gives which does little else. */
static double flops_each(enum d0_op op)
{
    switch (op) {
    case D0_OP_GATHER_ROWS:
    case D0_OP_SCATTER_ROWS:
        return 0;
    case D0_OP_ADD:
        return 1;
    case D0_OP_ROPE:
        return 3;
    case D0_OP_RMS_NORM:
        return 4;
    case D0_OP_NORM_RESIDUAL:
        return 5;
    case D0_OP_GLU:
        return 6;
    default: /* elementwise, or small beside its neighbours */
        return 2;
    }
}

static void add_node(struct costing *k, const struct d0_node *n)
{
    const struct d0_value *x = input(k, n, 0), *w = n->n_inputs > 1 ? input(k, n, 1) : NULL;
    double rows = extent(k, x, 0), out = n->n_outputs ? elements(k, &k->g->values[n->outputs[0]]) : 0;
    switch ((enum d0_op)n->op) {
    case D0_OP_EMBED: /* reads only the rows it needs */
        k->cost->weight_bytes += rows * (double)w->dims[1] * dtype_bits(w->dtype) / 8;
        return;
    case D0_OP_LINEAR: /* 2 m n k */
    case D0_OP_GROUP_LINEAR:
        k->cost->flops += 2 * rows * (double)w->dims[0] * (double)w->dims[1];
        return;
    case D0_OP_QKV:
        for (uint32_t i = 1; i < 4; i++)
            k->cost->flops += 2 * rows * elements(k, input(k, n, i));
        return;
    case D0_OP_GATE_UP:
        k->cost->flops += 4 * rows * elements(k, w) + 6 * out;
        return;
    case D0_OP_NORM_ROPE_STORE:
        k->cost->flops += 7 * (out + elements(k, w));
        add_store(k, w, input(k, n, 2), input(k, n, 3));
        return;
    case D0_OP_KV_STORE:
        add_store(k, x, w, input(k, n, 2));
        return;
    case D0_OP_ATTENTION:
        add_attention(k, n);
        return;
    case D0_OP_MLA:
        add_mla(k, n);
        return;
    case D0_OP_SEGMENT_ATTENTION:
        add_segment_attention(k, n);
        return;
    case D0_OP_EXPERTS:
        add_experts(k, n);
        return;
    case D0_OP_DELTA_RULE:
        add_delta_rule(k, n);
        return;
    default:
        k->cost->flops += flops_each((enum d0_op)n->op) * out;
        return;
    }
}

void graph_cost(const struct graph *g, const int64_t dims[D0_N_DIMS], int64_t context, struct graph_cost *out)
{
    struct costing k = {.g = g, .dims = dims, .context = context, .cost = out};
    *out = (struct graph_cost){0};
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        add_node(&k, n);
        for (uint32_t j = 0; j < n->n_inputs; j++) {
            if (n->inputs[j] == D0_NO_VALUE)
                continue;
            const struct d0_value *v = input(&k, n, j);
            if (v->kind == D0_VALUE_WEIGHT && n->op != D0_OP_EMBED && n->op != D0_OP_EXPERTS)
                out->weight_bytes += bytes_of(&k, v);
            else if (v->kind == D0_VALUE_ACTIVATION || v->kind == D0_VALUE_OUTPUT)
                out->activation_bytes += bytes_of(&k, v);
        }
        for (uint32_t j = 0; j < n->n_outputs; j++)
            out->activation_bytes += bytes_of(&k, &g->values[n->outputs[j]]);
    }
}
