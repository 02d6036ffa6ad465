/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of a graph and of a range of its layers. A slice is a graph of its own: it shares no memory with the
 * whole, and is built through the same checks as any other.
 */
#include "graph/graph_internal.h"

#include <stdlib.h>
#include <string.h>

int graph_copy(const struct graph *g, struct graph **out, struct err *e)
{
    struct graph *c = NULL;
    int rc = graph_open(&c, g->arena.mem, e);
    for (uint32_t i = 0; i < g->n_values && !rc; i++) {
        uint32_t id;
        rc = graph_add_value(c, &g->values[i], &g->info[i], &id, e);
    }
    for (uint32_t i = 0; i < g->n_nodes && !rc; i++) {
        rc = graph_grow_nodes(c, e);
        if (!rc)
            c->nodes[c->n_nodes++] = g->nodes[i];
    }
    if (rc) {
        graph_free(c);
        err_ctx(e, "copying a graph");
        return rc;
    }
    memcpy(c->max_dims, g->max_dims, sizeof c->max_dims);
    c->scratch_bytes = g->scratch_bytes;
    *out = c;
    return ERR_OK;
}

struct slice {
    const struct graph *g;
    struct graph *out;
    uint8_t *taken;      /* by node */
    uint8_t *positional; /* by value: depends on positions and weights only */
    uint32_t *maker;     /* by value: node that makes it, or D0_NO_VALUE */
    uint32_t *map;       /* by value: id in the slice, or D0_NO_VALUE */
};

static bool slice_alloc(struct slice *s)
{
    uint32_t nv = s->g->n_values + 1, nn = s->g->n_nodes + 1;
    s->taken = calloc(nn, 1);
    s->positional = calloc(nv, 1);
    s->maker = malloc(nv * sizeof *s->maker);
    s->map = malloc(nv * sizeof *s->map);
    if (!s->taken || !s->positional || !s->maker || !s->map)
        return false;
    memset(s->maker, 0xff, nv * sizeof *s->maker);
    memset(s->map, 0xff, nv * sizeof *s->map);
    return true;
}

static void slice_free(struct slice *s)
{
    free(s->taken);
    free(s->positional);
    free(s->maker);
    free(s->map);
}

static void find_makers(struct slice *s)
{
    const struct graph *g = s->g;
    for (uint32_t i = 0; i < g->n_values; i++)
        s->positional[i] = g->values[i].kind == D0_VALUE_WEIGHT ||
                           (g->values[i].kind == D0_VALUE_INPUT && (g->values[i].role == D0_INPUT_POSITIONS ||
                                                                    g->values[i].role == D0_INPUT_PLACES));
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        bool positional = true;
        for (uint32_t j = 0; j < n->n_inputs; j++)
            if (n->inputs[j] != D0_NO_VALUE && !s->positional[n->inputs[j]])
                positional = false;
        for (uint32_t j = 0; j < n->n_outputs; j++) {
            s->maker[n->outputs[j]] = i;
            s->positional[n->outputs[j]] = positional;
        }
    }
}

static bool node_positional(const struct slice *s, const struct d0_node *n)
{
    return n->n_outputs > 0 && s->positional[n->outputs[0]];
}

/* Nodes outside of layers stand before the first layer (prologue) or after it (epilogue). */
static void choose_nodes(struct slice *s, int32_t first, int32_t last, unsigned flags)
{
    const struct graph *g = s->g;
    bool seen_layer = false;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        seen_layer |= n->layer >= 0;
        if (node_positional(s, n))
            continue;
        if (n->layer >= 0)
            s->taken[i] = n->layer >= first && n->layer <= last;
        else
            s->taken[i] = (flags & (seen_layer ? GRAPH_EPILOGUE : GRAPH_PROLOGUE)) != 0;
    }
}

/* Position tables are taken only where a taken node needs them, whatever layer they stand in. */
static void take_positional(struct slice *s)
{
    const struct graph *g = s->g;
    for (uint32_t i = g->n_nodes; i-- > 0;)
        for (uint32_t j = 0; s->taken[i] && j < g->nodes[i].n_inputs; j++) {
            uint32_t v = g->nodes[i].inputs[j];
            if (v != D0_NO_VALUE && s->maker[v] != D0_NO_VALUE && s->positional[v])
                s->taken[s->maker[v]] = 1;
        }
}

/* Id in the slice of an input of a taken node, made there on first use. */
static int map_input(struct slice *s, uint32_t v, uint32_t *out, struct err *e)
{
    int rc = ERR_OK;
    if (s->map[v] == D0_NO_VALUE) {
        struct d0_value x = s->g->values[v];
        struct graph_value_info info = s->g->info[v];
        if (s->maker[v] != D0_NO_VALUE) {
            if (x.n_dims != 2 || (x.dtype != D0_F32 && x.dtype != D0_I32))
                return err_set(e, ERR_UNSUPPORTED, "%s crosses the cut but is no row of float32 or int32",
                               info.name);
            x.kind = D0_VALUE_INPUT;
            x.role = D0_INPUT_HIDDEN;
            x.offset = 0;
            info.probe = info.keep = false;
        }
        info.origin = v + 1;
        rc = graph_add_value(s->out, &x, &info, &s->map[v], e);
    }
    *out = s->map[v];
    return rc;
}

static int copy_nodes(struct slice *s, struct err *e)
{
    const struct graph *g = s->g;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        if (!s->taken[i])
            continue;
        struct d0_node n = g->nodes[i];
        uint32_t made;
        int rc;
        for (uint32_t j = 0; j < n.n_inputs; j++)
            if (n.inputs[j] != D0_NO_VALUE && (rc = map_input(s, n.inputs[j], &n.inputs[j], e)) != 0)
                return rc;
        rc = graph_add_node(s->out, &n, n.n_outputs ? g->info[n.outputs[0]].name : "", &made, e);
        if (rc)
            return rc;
        for (uint32_t j = 0; j < n.n_outputs; j++) {
            uint32_t from = g->nodes[i].outputs[j], to = s->out->nodes[s->out->n_nodes - 1].outputs[j];
            struct graph_value_info *info = &s->out->info[to];
            info->probe = g->info[from].probe;
            info->keep = g->info[from].keep;
            info->layer = g->info[from].layer;
            info->origin = from + 1;
            s->map[from] = to;
        }
    }
    /* what the rest of the model reads leaves the slice */
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t j = 0; !s->taken[i] && j < g->nodes[i].n_inputs; j++) {
            uint32_t v = g->nodes[i].inputs[j];
            if (v != D0_NO_VALUE && s->maker[v] != D0_NO_VALUE && s->taken[s->maker[v]] && !s->positional[v])
                s->out->info[s->map[v]].keep = true;
        }
    return ERR_OK;
}

/* What is common to all slices; wanted NULL: chosen by layers. */
static int slice_graph(const struct graph *g, const uint8_t *wanted, int32_t first, int32_t last,
                       unsigned flags, struct graph **out, struct err *e)
{
    struct slice s = {.g = g};
    int rc = graph_open(&s.out, g->arena.mem, e);
    if (!rc && !slice_alloc(&s))
        rc = err_set(e, ERR_NOMEM, "no memory to slice a graph");
    if (!rc) {
        find_makers(&s);
        if (wanted)
            memcpy(s.taken, wanted, g->n_nodes);
        else
            choose_nodes(&s, first, last, flags);
        take_positional(&s);
        rc = copy_nodes(&s, e);
    }
    if (!rc && s.out->n_nodes == 0)
        rc = wanted ? err_set(e, ERR_INVALID, "a slice of no node")
                    : err_set(e, ERR_INVALID, "no node lies in layers %d to %d", first, last);
    if (!rc)
        rc = graph_verify(s.out, e);
    slice_free(&s);
    if (rc) {
        graph_free(s.out);
        return rc;
    }
    *out = s.out;
    return ERR_OK;
}

int graph_slice(const struct graph *g, int32_t first_layer, int32_t last_layer, unsigned flags,
                struct graph **out, struct err *e)
{
    int rc = slice_graph(g, NULL, first_layer, last_layer, flags, out, e);
    if (rc)
        err_ctx(e, "cutting layers %d to %d", first_layer, last_layer);
    return rc;
}

int graph_slice_nodes(const struct graph *g, const uint8_t *wanted, struct graph **out, struct err *e)
{
    return slice_graph(g, wanted, 0, 0, 0, out, e);
}

int graph_positional(const struct graph *g, uint8_t *positional, struct err *e)
{
    struct slice s = {.g = g};
    if (!slice_alloc(&s)) {
        slice_free(&s);
        return err_set(e, ERR_NOMEM, "no memory to look through a graph");
    }
    find_makers(&s);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        positional[i] = node_positional(&s, &g->nodes[i]);
    slice_free(&s);
    return ERR_OK;
}
