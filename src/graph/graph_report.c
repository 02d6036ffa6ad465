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

static double extent(const struct d0_value *v, uint32_t i, const int64_t *dims)
{
    int64_t d = v->dims[i];
    return d >= 0 ? (double)d : (double)dims[-1 - d];
}

static double elements(const struct d0_value *v, const int64_t *dims)
{
    double n = 1;
    for (uint32_t i = 0; i < v->n_dims; i++)
        n *= extent(v, i, dims);
    return n;
}

static double bytes_of(const struct d0_value *v, const int64_t *dims)
{
    return elements(v, dims) * dtype_bits(v->dtype) / 8;
}

/* Mean number of positions that a token of the step sees: its history and, on average, half of its own run.
 */
static double visible(const struct d0_node *n, const int64_t *dims, int64_t context)
{
    double run = dims[1] > 0 ? (double)dims[0] / (double)dims[1] : (double)dims[0];
    double seen = (double)context + (run + 1) / 2, window = (double)node_attr_i(n, D0_ATTR_WINDOW, 0);
    return window > 0 && window < seen ? window : seen;
}

static void add_node(const struct graph *g, const struct d0_node *n, const int64_t *dims, int64_t context,
                     struct graph_cost *c)
{
    const struct d0_value *x = &g->values[n->inputs[0]],
                          *w = n->n_inputs > 1 ? &g->values[n->inputs[1]] : NULL;
    double rows = extent(x, 0, dims), out = n->n_outputs ? elements(&g->values[n->outputs[0]], dims) : 0;
    switch ((enum d0_op)n->op) {
    case D0_OP_EMBED: /* reads only the rows it needs */
        c->weight_bytes += rows * (double)w->dims[1] * dtype_bits(w->dtype) / 8;
        break;
    case D0_OP_LINEAR: /* 2 m n k */
        c->flops += 2 * rows * (double)w->dims[0] * (double)w->dims[1];
        break;
    case D0_OP_QKV:
        for (uint32_t i = 1; i < 4; i++)
            c->flops += 2 * rows * elements(&g->values[n->inputs[i]], dims);
        break;
    case D0_OP_GATE_UP:
        c->flops += 4 * rows * elements(w, dims) + 6 * out;
        break;
    case D0_OP_NORM_RESIDUAL:
        c->flops += 5 * out;
        break;
    case D0_OP_NORM_ROPE_STORE:
        c->flops += 7 * (out + elements(w, dims));
        c->state_bytes += (elements(w, dims) + elements(&g->values[n->inputs[2]], dims)) *
                          dtype_bits(g->values[n->inputs[3]].dtype) / 8;
        break;
    case D0_OP_RMS_NORM:
        c->flops += 4 * out;
        break;
    case D0_OP_ADD:
        c->flops += out;
        break;
    case D0_OP_ROPE_TABLE:
        c->flops += 2 * out;
        break;
    case D0_OP_ROPE:
        c->flops += 3 * out;
        break;
    case D0_OP_GLU:
        c->flops += 6 * out;
        break;
    case D0_OP_ATTENTION: {
        /* q.k and p.v: 2 flops a product each; pages of a sequence are read once for all its tokens */
        double heads = (double)node_attr_i(n, D0_ATTR_HEADS, 0), kv = (double)w->dims[1];
        double wide = (double)w->dims[3] + (double)g->values[n->inputs[2]].dims[3],
               seen = visible(n, dims, context);
        c->flops += 2 * rows * heads * wide * seen;
        c->state_bytes += (double)dims[1] * seen * kv * wide * dtype_bits(w->dtype) / 8;
        break;
    }
    case D0_OP_KV_STORE:
        c->state_bytes +=
            (elements(x, dims) + elements(w, dims)) * dtype_bits(g->values[n->inputs[2]].dtype) / 8;
        break;
    case D0_OP_EXPERTS: { /* only the chosen experts */
        const struct d0_value *ids = &g->values[n->inputs[1]], *down = &g->values[n->inputs[3]];
        double inter = (double)node_attr_i(n, D0_ATTR_INTER, 0), width = (double)x->dims[1];
        double matrices = node_attr_i(n, D0_ATTR_LAYOUT, 0) == 3 ? 2 : 3,
               chosen = rows * (double)ids->dims[1];
        c->flops += 2 * chosen * matrices * inter * width;
        double read = chosen < (double)down->dims[0] ? chosen : (double)down->dims[0];
        c->weight_bytes += read * matrices * inter * width * dtype_bits(down->dtype) / 8;
        break;
    }
    case D0_OP_MLA: {
        double heads = (double)node_attr_i(n, D0_ATTR_HEADS, 0), wide = (double)w->dims[3];
        double latent = (double)node_attr_i(n, D0_ATTR_LATENT, 0), seen = visible(n, dims, context);
        const struct d0_value *kv_b = &g->values[n->inputs[2]];
        c->flops += 2 * rows * (heads * (wide + latent) * seen + (double)kv_b->dims[0] * latent);
        c->state_bytes += (double)dims[1] * seen * wide * dtype_bits(w->dtype) / 8;
        break;
    }
    case D0_OP_DELTA_RULE: {
        const struct d0_value *state = &g->values[n->inputs[7]];
        double size = (double)(state->dims[1] * state->dims[2] * state->dims[3]);
        c->flops += 6 * rows * size;
        c->state_bytes += 2 * (double)dims[1] * size * 4;
        break;
    }
    case D0_OP_GROUP_LINEAR:
        c->flops += 2 * rows * (double)w->dims[0] * (double)w->dims[1];
        break;
    case D0_OP_GATHER_ROWS:
    case D0_OP_SCATTER_ROWS:
        break;
    case D0_OP_SEGMENT_ATTENTION: /* at most: all rows are of one picture */
        c->flops +=
            2 * rows * extent(w, 0, dims) * ((double)x->dims[1] + (double)g->values[n->outputs[0]].dims[1]);
        break;
    default: /* elementwise, or small beside its neighbours */
        c->flops += 2 * out;
        break;
    }
}

void graph_cost(const struct graph *g, const int64_t dims[D0_N_DIMS], int64_t context, struct graph_cost *out)
{
    *out = (struct graph_cost){0};
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        add_node(g, n, dims, context, out);
        for (uint32_t j = 0; j < n->n_inputs; j++) {
            if (n->inputs[j] == D0_NO_VALUE)
                continue;
            const struct d0_value *v = &g->values[n->inputs[j]];
            if (v->kind == D0_VALUE_WEIGHT && n->op != D0_OP_EMBED && n->op != D0_OP_EXPERTS)
                out->weight_bytes += bytes_of(v, dims);
            else if (v->kind == D0_VALUE_ACTIVATION || v->kind == D0_VALUE_OUTPUT)
                out->activation_bytes += bytes_of(v, dims);
        }
        for (uint32_t j = 0; j < n->n_outputs; j++)
            out->activation_bytes += bytes_of(&g->values[n->outputs[j]], dims);
    }
}
