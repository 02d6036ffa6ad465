/* SPDX-License-Identifier: Apache-2.0
 *
 * The frame of the passes of fusions.def: working copy, who reads what, and the graph that is left. Refuses
 * to drop anything that somebody else wants; what a pass made is checked by the same rules as any graph.
 */
#include "graph/graph_fuse.h"

#include <stdlib.h>
#include <string.h>

static void (*const passes[FUSION_N])(struct fuse *f) = {
#define FUSION(ID, ...) [FUSION_##ID] = fuse_##ID,
#include "graph/fusions.def"
#undef FUSION
};

bool fuse_private(const struct fuse *f, uint32_t v)
{
    const struct graph_value_info *info = &f->g->info[v];
    return f->readers[v] == 1 && v != f->result && !info->keep && !(f->keep_probes && info->probe);
}

static void count_node(struct fuse *f, uint32_t i, uint32_t by)
{
    const struct d0_node *n = &f->g->nodes[i];
    for (uint32_t k = 0; k < n->n_inputs; k++)
        if (n->inputs[k] != D0_NO_VALUE)
            f->readers[n->inputs[k]] += by;
    for (uint32_t k = 0; k < n->n_outputs; k++)
        f->maker[n->outputs[k]] = by == 1 ? i : D0_NO_VALUE;
}

void fuse_take(struct fuse *f, uint32_t i)
{
    count_node(f, i, UINT32_MAX); /* minus one */
    f->gone[i] = 1;
}

void fuse_replace(struct fuse *f, uint32_t i, const struct d0_node *n)
{
    if (!f->gone[i])
        count_node(f, i, UINT32_MAX);
    f->gone[i] = 0;
    f->g->nodes[i] = *n;
    f->by[i] |= FUSION_BIT(f->which);
    f->nodes++;
    count_node(f, i, 1);
}

bool fuse_attr(struct d0_node *to, const struct d0_node *from, uint32_t key)
{
    for (uint32_t i = 0; i < from->n_attrs; i++) {
        if (from->attrs[i].key != key)
            continue;
        if (to->n_attrs >= D0_MAX_NODE_ATTRS)
            return false;
        to->attrs[to->n_attrs++] = from->attrs[i];
    }
    return true;
}

static int fuse_open(struct fuse *f, const struct graph *g, struct err *e)
{
    size_t nv = (size_t)g->n_values + 1, nn = (size_t)g->n_nodes + 1;
    int rc = graph_copy(g, &f->g, e);
    if (rc)
        return rc;
    f->gone = calloc(nn, 1);
    f->by = calloc(nn, sizeof *f->by);
    f->maker = malloc(nv * sizeof *f->maker);
    f->readers = calloc(nv, sizeof *f->readers);
    if (!f->gone || !f->by || !f->maker || !f->readers)
        return err_set(e, ERR_NOMEM, "no memory to fuse a graph");
    memset(f->maker, 0xff, nv * sizeof *f->maker);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        count_node(f, i, 1);
    f->result = graph_result(g);
    return ERR_OK;
}

static void fuse_close(struct fuse *f)
{
    graph_free(f->g);
    free(f->gone);
    free(f->by);
    free(f->maker);
    free(f->readers);
}

/* Values that nodes made and make no more fall away; everything else stays. */
static int keep_values(const struct fuse *f, struct fused *out, uint32_t *map, struct err *e)
{
    for (uint32_t v = 0; v < f->g->n_values; v++) {
        uint32_t kind = f->g->values[v].kind;
        if ((kind == D0_VALUE_ACTIVATION || kind == D0_VALUE_OUTPUT) && f->maker[v] == D0_NO_VALUE)
            continue;
        int rc = graph_add_value(out->graph, &f->g->values[v], &f->g->info[v], &map[v], e);
        if (rc)
            return rc;
        out->value_of[map[v]] = v;
    }
    return ERR_OK;
}

static int keep_nodes(const struct fuse *f, struct fused *out, const uint32_t *map, struct err *e)
{
    struct graph *g = out->graph;
    for (uint32_t i = 0; i < f->g->n_nodes; i++) {
        if (f->gone[i])
            continue;
        struct d0_node n = f->g->nodes[i];
        for (uint32_t k = 0; k < n.n_inputs; k++)
            n.inputs[k] = n.inputs[k] == D0_NO_VALUE ? D0_NO_VALUE : map[n.inputs[k]];
        for (uint32_t k = 0; k < n.n_outputs; k++)
            n.outputs[k] = map[n.outputs[k]];
        int rc = graph_grow_nodes(g, e);
        if (rc)
            return rc;
        out->by[g->n_nodes] = f->by[i];
        g->nodes[g->n_nodes++] = n;
    }
    return ERR_OK;
}

static int rebuild(const struct fuse *f, struct fused *out, struct err *e)
{
    int rc = graph_open(&out->graph, f->g->arena.mem, e);
    if (rc)
        return rc;
    uint32_t *map = malloc(((size_t)f->g->n_values + 1) * sizeof *map);
    out->value_of = arena_alloc_n(&out->graph->arena, (size_t)f->g->n_values + 1, sizeof *out->value_of);
    out->by = arena_alloc_n(&out->graph->arena, (size_t)f->g->n_nodes + 1, sizeof *out->by);
    if (!map || !out->value_of || !out->by)
        rc = err_set(e, ERR_NOMEM, "no memory for a fused graph");
    if (!rc) {
        memset(map, 0xff, ((size_t)f->g->n_values + 1) * sizeof *map);
        rc = keep_values(f, out, map, e);
    }
    if (!rc)
        rc = keep_nodes(f, out, map, e);
    free(map);
    return rc ? rc : graph_verify(out->graph, e);
}

int graph_fuse(const struct graph *g, uint32_t mask, bool keep_probes, struct fused *out, struct err *e)
{
    struct fuse f = {.keep_probes = keep_probes};
    *out = (struct fused){0};
    int rc = fuse_open(&f, g, e);
    for (unsigned i = 0; i < FUSION_N && !rc; i++) {
        if (!(mask & FUSION_BIT(i)))
            continue;
        f.which = (enum fusion)i;
        f.nodes = 0;
        passes[i](&f);
        out->nodes[i] = f.nodes;
    }
    if (!rc)
        rc = rebuild(&f, out, e);
    fuse_close(&f);
    if (rc) {
        graph_free(out->graph);
        out->graph = NULL;
        err_ctx(e, "fusing a graph");
        return rc;
    }
    return ERR_OK;
}
