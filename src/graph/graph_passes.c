/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes that keep the graph and change numbers in it: reduction segments and the memory plan. Sizes are
 * computed with checked arithmetic, for the largest step; a plan that does not fit in 64 bits is refused.
 */
#include "graph/graph_internal.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"

#define GRAPH_VECTOR       32u /* elements of K that a segment holds a multiple of: the kernels' lane pattern */
#define GRAPH_MAX_SEGMENTS 64u
#define GRAPH_ALIGN        64u

/* ---- segments ---- */

static uint64_t gcd_u64(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

/* S: the largest power of two up to 64 whose segments are whole in vectors and in units. A unit count that
 * does not divide K, or an axis shorter than one vector, leaves one segment. */
uint32_t graph_segments(uint64_t k, uint32_t units)
{
    uint64_t unit = units && k % units == 0 ? k / units : (units ? k : 1);
    if (k == 0)
        return 1;
    uint64_t step = GRAPH_VECTOR / gcd_u64(GRAPH_VECTOR, unit), quantum;
    if (!mul_u64(unit, step, &quantum))
        return 1;
    uint32_t s = GRAPH_MAX_SEGMENTS;
    while (s > 1 && (k % s || (k / s) % quantum))
        s /= 2;
    return s;
}

int graph_set_segments(struct graph *g, struct err *e)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct d0_node *n = &g->nodes[i];
        if ((n->op != D0_OP_LINEAR && n->op != D0_OP_RMS_NORM) || n->n_inputs < 2 ||
            n->inputs[1] == D0_NO_VALUE)
            continue;
        const struct graph_value_info *w = &g->info[n->inputs[1]];
        const struct d0_value *v = &g->values[n->inputs[1]];
        bool cut;
        if (n->op == D0_OP_LINEAR)
            cut = w->part == PART_ROW;
        else /* a norm over a whole vector whose weight, and so whose axis, is cut; a norm within a head never
                is */
            cut = node_attr_i(n, D0_ATTR_DIM, 0) == 0 && (w->part == PART_HEADS || w->part == PART_COLUMN);
        if (!cut)
            continue;
        uint64_t k = (uint64_t)v->dims[n->op == D0_OP_LINEAR ? 1 : 0];
        if (!node_set_attr_i(n, D0_ATTR_SEGMENTS, graph_segments(k, w->part_units)))
            return err_set(e, ERR_FORMAT, "node %u has no room for the segments attribute", i);
    }
    return ERR_OK;
}

/* ---- memory plan ---- */

/* A value that needs scratch: alive from the node that makes it to the last node that reads it, both
 * included. A node's output never shares memory with its own inputs. */
struct span {
    uint32_t value, first, last;
    uint64_t bytes, offset;
};

static int by_size(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->value < y->value ? -1 : x->value > y->value;
}

static bool collides(const struct span *a, const struct span *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Largest first; each goes into the smallest gap that holds it between the values placed before that are
 * alive with it. `order` holds the placed ones by offset. Spans are at most GRAPH_MAX_NODES: the square is
 * bounded. */
static bool place(struct span *s, uint32_t *order, uint32_t n, uint64_t *total)
{
    uint32_t placed = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t end = 0, best = UINT64_MAX, best_gap = UINT64_MAX;
        for (uint32_t j = 0; j < placed; j++) {
            const struct span *p = &s[order[j]];
            if (!collides(&s[i], p))
                continue;
            if (p->offset > end && p->offset - end >= s[i].bytes && p->offset - end < best_gap) {
                best = end;
                best_gap = p->offset - end;
            }
            if (p->offset + p->bytes > end)
                end = p->offset + p->bytes;
        }
        s[i].offset = best == UINT64_MAX ? end : best;
        uint64_t top;
        if (!add_u64(s[i].offset, s[i].bytes, &top) || top > INT64_MAX)
            return false;
        if (top > *total)
            *total = top;
        uint32_t at = placed++;
        for (; at > 0 && s[order[at - 1]].offset > s[i].offset; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return true;
}

/* Which values stay readable after the run. */
static void mark_outputs(struct graph *g, bool keep_probes)
{
    uint32_t result = graph_result(g);
    for (uint32_t i = 0; i < g->n_values; i++) {
        struct d0_value *v = &g->values[i];
        if (v->kind == D0_VALUE_ACTIVATION || v->kind == D0_VALUE_OUTPUT)
            v->kind = i == result || g->info[i].keep || (keep_probes && g->info[i].probe)
                          ? D0_VALUE_OUTPUT
                          : D0_VALUE_ACTIVATION;
    }
}

/* Spans of all values that nodes make; *n of them. An OUTPUT is alive over the whole run, so that nothing
 * shares its memory. */
static int spans_of(const struct graph *g, const int64_t *dims, struct span *s, uint32_t *n, struct err *e)
{
    uint32_t *at = malloc((g->n_values ? g->n_values : 1) * sizeof *at);
    if (at == NULL)
        return err_set(e, ERR_NOMEM, "no memory to plan a graph");
    memset(at, 0xff, (g->n_values ? g->n_values : 1) * sizeof *at);
    *n = 0;
    int rc = ERR_OK;
    for (uint32_t i = 0; i < g->n_nodes && !rc; i++) {
        const struct d0_node *node = &g->nodes[i];
        for (uint32_t j = 0; j < node->n_inputs; j++)
            if (node->inputs[j] != D0_NO_VALUE && at[node->inputs[j]] != UINT32_MAX)
                s[at[node->inputs[j]]].last = i;
        for (uint32_t j = 0; j < node->n_outputs; j++) {
            const struct d0_value *v = &g->values[node->outputs[j]];
            struct span x = {.value = node->outputs[j], .first = i, .last = i};
            if (!tensor_value_bytes(v, dims, &x.bytes) || x.bytes > INT64_MAX) {
                rc = err_set(e, ERR_LIMIT, "value %s is too large for a step of %lld tokens",
                             g->info[x.value].name, (long long)dims[0]);
                break;
            }
            x.bytes = ALIGN_UP(x.bytes, GRAPH_ALIGN);
            at[x.value] = *n;
            s[(*n)++] = x;
        }
    }
    for (uint32_t i = 0; i < *n; i++)
        if (g->values[s[i].value].kind == D0_VALUE_OUTPUT) {
            s[i].first = 0;
            s[i].last = UINT32_MAX;
        }
    free(at);
    return rc;
}

int graph_plan_memory(struct graph *g, const int64_t max_dims[D0_N_DIMS], bool keep_probes, struct err *e)
{
    for (int i = 0; i < D0_N_DIMS; i++)
        if (max_dims[i] < 0 || max_dims[i] > INT32_MAX)
            return err_set(e, ERR_INVALID, "step dimension %d is %lld, must be 0..2147483647", i,
                           (long long)max_dims[i]);
    mark_outputs(g, keep_probes);
    uint32_t n = 0, room = g->n_nodes * D0_MAX_NODE_OUTPUTS + 1;
    struct span *s = malloc(room * sizeof *s);
    uint32_t *order = malloc(room * sizeof *order);
    uint64_t total = 0;
    int rc =
        s && order ? spans_of(g, max_dims, s, &n, e) : err_set(e, ERR_NOMEM, "no memory to plan a graph");
    if (!rc) {
        qsort(s, n, sizeof *s, by_size);
        if (!place(s, order, n, &total))
            rc = err_set(e, ERR_LIMIT, "the activations of a step do not fit in 64 bits");
    }
    if (!rc) {
        for (uint32_t i = 0; i < n; i++)
            g->values[s[i].value].offset = s[i].offset;
        memcpy(g->max_dims, max_dims, sizeof g->max_dims);
        g->scratch_bytes = total;
    }
    free(s);
    free(order);
    return rc;
}

uint32_t graph_page_tokens(const struct graph *g)
{
    for (uint32_t i = 0; i < g->n_values; i++) {
        const struct d0_value *v = &g->values[i];
        if (v->kind == D0_VALUE_STATE && g->info[i].state == STATE_PAGES && v->n_dims == 4 && v->dims[2] > 0)
            return g->info[i].page_tokens ? g->info[i].page_tokens : (uint32_t)v->dims[2];
    }
    return 0;
}

bool graph_pages_shareable(const struct graph *g)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        if (n->op != D0_OP_POOL_KV)
            continue;
        const struct d0_value *pool = &g->values[n->inputs[5]]; /* [pages, 1, rows, dim] */
        int64_t ratio = node_attr_i(n, D0_ATTR_RATIO, 0), tokens = graph_page_tokens(g);
        if (ratio <= 0 || tokens % ratio != 0 || pool->dims[2] != tokens / ratio)
            return false;
    }
    return true;
}
