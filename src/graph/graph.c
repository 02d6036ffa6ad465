/* SPDX-License-Identifier: Apache-2.0
 *
 * Building the IR and checking it. A graph only ever holds nodes that passed their operator's rules;
 * graph_verify() checks the whole again, because passes write to the arrays directly. Not thread-safe;
 * everything lives in the graph's arena.
 */
#include "graph/graph_internal.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int graph_open(struct graph **out, struct mem *mem, struct err *e)
{
    struct graph *g = calloc(1, sizeof *g);
    if (g == NULL)
        return err_set(e, ERR_NOMEM, "no memory for a graph");
    arena_init(&g->arena, mem, MEM_GRAPH);
    *out = g;
    return ERR_OK;
}

void graph_free(struct graph *g)
{
    if (g == NULL)
        return;
    arena_release(&g->arena);
    free(g);
}

/* Arena arrays grow by doubling; the old copy stays in the arena until the graph goes, at most as much again.
 */
static void *grown(struct graph *g, const void *old, uint32_t n, uint32_t *capacity, size_t element)
{
    uint32_t want = *capacity ? *capacity * 2 : 64;
    void *p = arena_alloc_n(&g->arena, want, element);
    if (p == NULL)
        return NULL;
    if (n)
        memcpy(p, old, n * element);
    *capacity = want;
    return p;
}

int graph_grow_nodes(struct graph *g, struct err *e)
{
    if (g->n_nodes >= GRAPH_MAX_NODES)
        return err_set(e, ERR_LIMIT, "more than %u nodes in a graph", GRAPH_MAX_NODES);
    if (g->n_nodes < g->nodes_capacity)
        return ERR_OK;
    struct d0_node *p = grown(g, g->nodes, g->n_nodes, &g->nodes_capacity, sizeof *p);
    if (p == NULL)
        return err_set(e, ERR_NOMEM, "no memory for graph nodes");
    g->nodes = p;
    return ERR_OK;
}

static int grow_values(struct graph *g, struct err *e)
{
    if (g->n_values >= GRAPH_MAX_VALUES)
        return err_set(e, ERR_LIMIT, "more than %u values in a graph", GRAPH_MAX_VALUES);
    if (g->n_values < g->values_capacity)
        return ERR_OK;
    uint32_t capacity = g->values_capacity, same = g->values_capacity;
    struct d0_value *v = grown(g, g->values, g->n_values, &capacity, sizeof *v);
    struct graph_value_info *i = v ? grown(g, g->info, g->n_values, &same, sizeof *i) : NULL;
    if (i == NULL)
        return err_set(e, ERR_NOMEM, "no memory for graph values");
    g->values = v;
    g->info = i;
    g->values_capacity = capacity;
    return ERR_OK;
}

int graph_add_value(struct graph *g, const struct d0_value *v, const struct graph_value_info *info,
                    uint32_t *out, struct err *e)
{
    static const int64_t none[D0_N_DIMS] = {0};
    struct graph_value_info i = info ? *info : (struct graph_value_info){.layer = -1};
    const char *name = i.name ? i.name : "";
    char why[160];
    if (!value_form(v, why, sizeof why))
        return err_set(e, ERR_FORMAT, "value %s: %s", name, why);
    int rc = grow_values(g, e);
    if (rc) {
        err_ctx(e, "adding value %s", name);
        return rc;
    }
    i.name = arena_strdup(&g->arena, name);
    uint64_t bytes = 0;
    if (i.constant) {
        if (v->kind != D0_VALUE_WEIGHT || !tensor_value_bytes(v, none, &bytes))
            return err_set(e, ERR_FORMAT, "value %s: only a weight can be constant", name);
        void *copy = arena_alloc(&g->arena, bytes);
        if (copy)
            memcpy(copy, i.constant, bytes);
        i.constant = copy;
    }
    if (i.name == NULL || (bytes && i.constant == NULL))
        return err_set(e, ERR_NOMEM, "no memory for value %s", name);
    g->values[g->n_values] = *v;
    g->info[g->n_values] = i;
    *out = g->n_values++;
    return ERR_OK;
}

/* Inputs: in range, of a kind that the operator takes there, made before. */
static bool node_inputs(const struct graph *g, const struct d0_node *n, char *why, size_t why_bytes)
{
    for (uint32_t i = 0; i < n->n_inputs; i++) {
        bool writes;
        if (n->inputs[i] == D0_NO_VALUE)
            continue;
        if (n->inputs[i] >= g->n_values) {
            snprintf(why, why_bytes, "input %u is value %u, there are %u", i, n->inputs[i], g->n_values);
            return false;
        }
        uint32_t kind = g->values[n->inputs[i]].kind;
        bool state = op_state_input(n->op, i, &writes),
             weight = op_either_input(n->op, i) ? kind == D0_VALUE_WEIGHT : op_weight_input(n->op, i);
        if (state != (kind == D0_VALUE_STATE) || weight != (kind == D0_VALUE_WEIGHT)) {
            snprintf(why, why_bytes, "input %u (%s) must be %s", i, g->info[n->inputs[i]].name,
                     state ? "a state" : (weight ? "a weight" : "an input or activation"));
            return false;
        }
    }
    return true;
}

static int node_error(struct err *e, const struct d0_node *n, const char *name, const char *why)
{
    const struct op_info *op = op_find(n->op);
    return err_set(e, ERR_FORMAT, "%s %s: %s", op ? op->name : "operator", name ? name : "", why);
}

int graph_add_node(struct graph *g, const struct d0_node *node, const char *name, uint32_t *first_output,
                   struct err *e)
{
    struct d0_value outs[D0_MAX_NODE_OUTPUTS];
    char why[200];
    if (!node_form(node, why, sizeof why) || !node_inputs(g, node, why, sizeof why) ||
        !shape_rule(g, node, outs, why, sizeof why))
        return node_error(e, node, name, why);
    struct d0_node n = *node;
    n.n_outputs = op_find(n.op)->n_outputs;
    n.reserved = 0;
    for (uint32_t i = n.n_inputs; i < D0_MAX_NODE_INPUTS; i++)
        n.inputs[i] = D0_NO_VALUE;
    for (uint32_t i = 0; i < D0_MAX_NODE_OUTPUTS; i++)
        n.outputs[i] = D0_NO_VALUE;
    int rc = graph_grow_nodes(g, e);
    if (rc) {
        err_ctx(e, "adding %s", name ? name : "a node");
        return rc;
    }
    for (uint32_t i = 0; i < n.n_outputs; i++) {
        struct graph_value_info info = {.name = name, .layer = n.layer};
        rc = graph_add_value(g, &outs[i], &info, &n.outputs[i], e);
        if (rc)
            return rc;
    }
    g->nodes[g->n_nodes++] = n;
    if (first_output)
        *first_output = n.n_outputs ? n.outputs[0] : D0_NO_VALUE;
    return ERR_OK;
}

/* ---- verifier ---- */

static bool made_by_nodes(uint32_t kind)
{
    return kind == D0_VALUE_ACTIVATION || kind == D0_VALUE_OUTPUT;
}

static int verify_node(const struct graph *g, uint32_t index, uint8_t *defined, struct err *e)
{
    const struct d0_node *n = &g->nodes[index];
    struct d0_value outs[D0_MAX_NODE_OUTPUTS];
    char name[32], why[200];
    snprintf(name, sizeof name, "node %u", index);
    if (!node_form(n, why, sizeof why) || !node_inputs(g, n, why, sizeof why))
        return node_error(e, n, name, why);
    for (uint32_t i = 0; i < n->n_inputs; i++)
        if (n->inputs[i] != D0_NO_VALUE && !defined[n->inputs[i]]) {
            snprintf(why, sizeof why, "input %u (%s) is used before it is made", i,
                     g->info[n->inputs[i]].name);
            return node_error(e, n, name, why);
        }
    if (!shape_rule(g, n, outs, why, sizeof why))
        return node_error(e, n, name, why);
    if (n->n_outputs != op_find(n->op)->n_outputs)
        return node_error(e, n, name, "wrong number of outputs");
    for (uint32_t i = 0; i < n->n_outputs; i++) {
        uint32_t id = n->outputs[i];
        if (id >= g->n_values || !made_by_nodes(g->values[id].kind))
            return node_error(e, n, name, "an output is no activation");
        const struct d0_value *v = &g->values[id];
        if (defined[id])
            return node_error(e, n, name, "an output is made twice");
        if (v->dtype != outs[i].dtype || v->n_dims != outs[i].n_dims ||
            memcmp(v->dims, outs[i].dims, v->n_dims * sizeof v->dims[0]) != 0)
            return node_error(e, n, name, "an output has another shape than its rule gives");
        defined[id] = 1;
    }
    return ERR_OK;
}

int graph_verify(const struct graph *g, struct err *e)
{
    char why[160];
    uint8_t *defined = calloc(g->n_values ? g->n_values : 1, 1);
    if (defined == NULL)
        return err_set(e, ERR_NOMEM, "no memory to verify a graph");
    int rc = ERR_OK;
    for (uint32_t i = 0; i < g->n_values && !rc; i++) {
        if (!value_form(&g->values[i], why, sizeof why))
            rc = err_set(e, ERR_FORMAT, "value %u (%s): %s", i, g->info[i].name, why);
        else if (g->info[i].constant && g->values[i].kind != D0_VALUE_WEIGHT)
            rc = err_set(e, ERR_FORMAT, "value %u (%s): only a weight can be constant", i, g->info[i].name);
        defined[i] = !made_by_nodes(g->values[i].kind);
    }
    for (uint32_t i = 0; i < g->n_nodes && !rc; i++)
        rc = verify_node(g, i, defined, e);
    for (uint32_t i = 0; i < g->n_values && !rc; i++)
        if (!defined[i])
            rc = err_set(e, ERR_FORMAT, "value %u (%s): no node makes it", i, g->info[i].name);
    free(defined);
    return rc;
}

/* ---- views ---- */

void graph_part(const struct graph *g, struct d0_part *out)
{
    *out = (struct d0_part){.size = sizeof *out,
                            .abi_version = D0_DEVICE_ABI_VERSION,
                            .n_values = g->n_values,
                            .n_nodes = g->n_nodes,
                            .values = g->values,
                            .nodes = g->nodes,
                            .scratch_bytes = g->scratch_bytes};
    memcpy(out->max_dims, g->max_dims, sizeof out->max_dims);
}

uint32_t graph_find(const struct graph *g, const char *name)
{
    for (uint32_t i = 0; name && i < g->n_values; i++)
        if (strcmp(g->info[i].name, name) == 0)
            return i;
    return D0_NO_VALUE;
}

uint32_t graph_result(const struct graph *g)
{
    for (uint32_t i = g->n_nodes; i-- > 0;)
        if (g->nodes[i].n_outputs)
            return g->nodes[i].outputs[g->nodes[i].n_outputs - 1];
    return D0_NO_VALUE;
}
