/* SPDX-License-Identifier: Apache-2.0
 *
 * The passes that join neighbouring nodes into one fused operator. Each looks for the very nodes that its
 * operator is made of, with attributes that the operator can say; anything else stays as it was. Nodes that
 * are taken are taken before the one that stands for them is made.
 */
#include "graph/graph_fuse.h"

#include <string.h>

static struct d0_node fused_node(uint32_t op, const struct d0_node *like, uint32_t n_inputs,
                                 uint32_t n_outputs)
{
    struct d0_node n = {.op = op, .n_inputs = n_inputs, .n_outputs = n_outputs, .layer = like->layer};
    memset(n.inputs, 0xff, sizeof n.inputs);
    memset(n.outputs, 0xff, sizeof n.outputs);
    return n;
}

static uint32_t input(const struct d0_node *n, uint32_t i)
{
    return i < n->n_inputs ? n->inputs[i] : D0_NO_VALUE;
}

/* The node that makes a value, if it is of this operator and of this layer; else NULL. */
static const struct d0_node *made_by(const struct fuse *f, uint32_t v, uint32_t op, int32_t layer)
{
    if (v == D0_NO_VALUE || f->maker[v] == D0_NO_VALUE)
        return NULL;
    const struct d0_node *n = &f->g->nodes[f->maker[v]];
    return n->op == op && n->layer == layer ? n : NULL;
}

static uint32_t index_of(const struct fuse *f, const struct d0_node *n)
{
    return (uint32_t)(n - f->g->nodes);
}

static int64_t segments(const struct d0_node *n)
{
    int64_t s = node_attr_i(n, D0_ATTR_SEGMENTS, 0);
    return s ? s : 1;
}

/* ---- qkv ---- */

/* Is this value what a GLU takes? Then it is gate_up's. */
static bool for_glu(const struct fuse *f, uint32_t v, uint32_t after)
{
    for (uint32_t i = after + 1; i < f->g->n_nodes; i++) {
        const struct d0_node *n = &f->g->nodes[i];
        if (!f->gone[i] && n->op == D0_OP_GLU && (n->inputs[0] == v || n->inputs[1] == v))
            return true;
    }
    return false;
}

/* The fused operators multiply rows as they are. */
static bool rounds(const struct d0_node *n)
{
    return node_attr_i(n, D0_ATTR_X_FORMAT, 0) != 0;
}

/* A LINEAR of the same rows as `like`, in its layer and as it is cut */
static bool joins(const struct fuse *f, uint32_t i, const struct d0_node *like)
{
    const struct d0_node *n = &f->g->nodes[i];
    return !f->gone[i] && n->op == D0_OP_LINEAR && n->layer == like->layer && !rounds(n) &&
           n->inputs[0] == like->inputs[0] && segments(n) == segments(like) && n->outputs[0] != f->result &&
           !for_glu(f, n->outputs[0], i);
}

static void join_three(struct fuse *f, const uint32_t *at)
{
    struct d0_node n = fused_node(D0_OP_QKV, &f->g->nodes[at[0]], 7, 3);
    n.inputs[0] = f->g->nodes[at[0]].inputs[0];
    for (uint32_t k = 0; k < 3; k++) {
        const struct d0_node *one = &f->g->nodes[at[k]];
        n.inputs[1 + k] = one->inputs[1];
        n.inputs[4 + k] = input(one, 2);
        n.outputs[k] = one->outputs[0];
    }
    fuse_attr(&n, &f->g->nodes[at[0]], D0_ATTR_SEGMENTS);
    fuse_take(f, at[1]);
    fuse_take(f, at[2]);
    fuse_replace(f, at[0], &n);
}

void fuse_QKV(struct fuse *f)
{
    for (uint32_t i = 0; i < f->g->n_nodes; i++) {
        const struct d0_node like = f->g->nodes[i];
        uint32_t at[3], n = 0;
        if (like.op != D0_OP_LINEAR || f->gone[i] || like.layer < 0)
            continue;
        for (uint32_t k = i; k < f->g->n_nodes && n < 3 && f->g->nodes[k].layer == like.layer; k++)
            if (joins(f, k, &like))
                at[n++] = k;
        if (n == 3 && at[0] == i)
            join_three(f, at);
    }
}

/* ---- gate_up ---- */

void fuse_GATE_UP(struct fuse *f)
{
    static const uint32_t keys[] = {D0_ATTR_FUNCTION, D0_ATTR_ALPHA, D0_ATTR_LIMIT, D0_ATTR_BETA,
                                    D0_ATTR_LINEAR_BETA};
    for (uint32_t i = 0; i < f->g->n_nodes; i++) {
        const struct d0_node *glu = &f->g->nodes[i];
        if (glu->op != D0_OP_GLU || f->gone[i])
            continue;
        const struct d0_node *gate = made_by(f, glu->inputs[0], D0_OP_LINEAR, glu->layer),
                             *up = made_by(f, glu->inputs[1], D0_OP_LINEAR, glu->layer);
        if (!gate || !up || gate == up || gate->inputs[0] != up->inputs[0] || rounds(gate) || rounds(up) ||
            segments(gate) != segments(up) || !fuse_private(f, glu->inputs[0]) ||
            !fuse_private(f, glu->inputs[1]))
            continue;
        struct d0_node n = fused_node(D0_OP_GATE_UP, glu, 5, 1);
        n.inputs[0] = gate->inputs[0];
        n.inputs[1] = gate->inputs[1];
        n.inputs[2] = up->inputs[1];
        n.inputs[3] = input(gate, 2);
        n.inputs[4] = input(up, 2);
        n.outputs[0] = glu->outputs[0];
        fuse_attr(&n, gate, D0_ATTR_SEGMENTS);
        for (size_t k = 0; k < ARRAY_LEN(keys); k++)
            fuse_attr(&n, glu, keys[k]);
        fuse_take(f, index_of(f, gate));
        fuse_take(f, index_of(f, up));
        fuse_replace(f, i, &n);
    }
}

/* ---- norm_residual ---- */

/* The sum stays: others read it, too. */
void fuse_NORM_RESIDUAL(struct fuse *f)
{
    static const uint32_t keys[] = {D0_ATTR_EPS, D0_ATTR_DIM, D0_ATTR_PLUS_ONE, D0_ATTR_SEGMENTS};
    for (uint32_t i = 0; i < f->g->n_nodes; i++) {
        const struct d0_node *norm = &f->g->nodes[i];
        if (norm->op != D0_OP_RMS_NORM || f->gone[i] || norm->outputs[0] == f->result ||
            f->maker[norm->inputs[0]] == D0_NO_VALUE)
            continue;
        uint32_t at =
            f->maker[norm->inputs[0]]; /* of any layer: the last sum of one is the first norm's of the next */
        const struct d0_node *add = &f->g->nodes[at];
        if (add->op != D0_OP_ADD)
            continue;
        struct d0_node n = fused_node(D0_OP_NORM_RESIDUAL, add, 3, 2);
        n.inputs[0] = add->inputs[0];
        n.inputs[1] = add->inputs[1];
        n.inputs[2] = input(norm, 1);
        n.outputs[0] = add->outputs[0];
        n.outputs[1] = norm->outputs[0];
        for (size_t k = 0; k < ARRAY_LEN(keys); k++)
            fuse_attr(&n, norm, keys[k]);
        fuse_take(f, i);
        fuse_replace(f, at, &n);
    }
}

/* ---- norm_rope_store ---- */

static bool same_turn(const struct d0_node *a, const struct d0_node *b)
{
    static const uint32_t keys[] = {D0_ATTR_DIM, D0_ATTR_STYLE, D0_ATTR_OFFSET, D0_ATTR_INVERSE};
    for (size_t k = 0; k < ARRAY_LEN(keys); k++)
        if (node_attr_i(a, keys[k], 0) != node_attr_i(b, keys[k], 0))
            return false;
    return a->inputs[1] == b->inputs[1];
}

static bool read_before(const struct fuse *f, uint32_t v, uint32_t end)
{
    for (uint32_t i = 0; i < end; i++)
        for (uint32_t k = 0; !f->gone[i] && k < f->g->nodes[i].n_inputs; k++)
            if (f->g->nodes[i].inputs[k] == v)
                return true;
    return false;
}

/* The rotation of the queries that goes with that of the keys: before the store, its result used only after.
 */
static const struct d0_node *queries_of(const struct fuse *f, const struct d0_node *keys, uint32_t store)
{
    for (uint32_t i = store; i-- > 0 && f->g->nodes[i].layer == keys->layer;) {
        const struct d0_node *n = &f->g->nodes[i];
        if (!f->gone[i] && n->op == D0_OP_ROPE && n != keys && same_turn(n, keys) &&
            n->outputs[0] != f->result && !read_before(f, n->outputs[0], store))
            return n;
    }
    return NULL;
}

/* The norm of each head before a rotation, if it can be taken along. */
static const struct d0_node *head_norm(const struct fuse *f, const struct d0_node *rope)
{
    const struct d0_node *n = made_by(f, rope->inputs[0], D0_OP_RMS_NORM, rope->layer);
    bool fits = n && input(n, 1) != D0_NO_VALUE && fuse_private(f, rope->inputs[0]) && segments(n) == 1 &&
                node_attr_i(n, D0_ATTR_DIM, 0) == node_attr_i(rope, D0_ATTR_DIM, 0);
    return fits ? n : NULL;
}

static bool same_norm(const struct d0_node *a, const struct d0_node *b)
{
    double x = node_attr_f(a, D0_ATTR_EPS, 0), y = node_attr_f(b, D0_ATTR_EPS, 0);
    return memcmp(&x, &y, sizeof x) == 0 &&
           node_attr_i(a, D0_ATTR_PLUS_ONE, 0) == node_attr_i(b, D0_ATTR_PLUS_ONE, 0);
}

static void join_store(struct fuse *f, uint32_t at, const struct d0_node *q, const struct d0_node *k)
{
    const struct d0_node *store = &f->g->nodes[at], *norms[2] = {head_norm(f, q), head_norm(f, k)};
    const struct d0_node *turns[2] = {q, k};
    if (norms[0] && norms[1] && !same_norm(norms[0], norms[1]))
        norms[0] = norms[1] = NULL; /* one node has one eps: these stay nodes of their own */
    struct d0_node n = fused_node(D0_OP_NORM_ROPE_STORE, store, 11, 1);
    for (uint32_t i = 0; i < 2; i++) {
        n.inputs[i] = norms[i] ? norms[i]->inputs[0] : turns[i]->inputs[0];
        n.inputs[9 + i] = norms[i] ? norms[i]->inputs[1] : D0_NO_VALUE;
    }
    for (uint32_t i = 1; i < 7; i++)
        n.inputs[1 + i] = store->inputs[i];
    n.inputs[8] = k->inputs[1];
    n.outputs[0] = q->outputs[0];
    fuse_attr(&n, store, D0_ATTR_KV_HEADS);
    fuse_attr(&n, store, D0_ATTR_DIM);
    fuse_attr(&n, store, D0_ATTR_V_DIM);
    fuse_attr(&n, k, D0_ATTR_STYLE);
    fuse_attr(&n, k, D0_ATTR_OFFSET);
    const struct d0_node *norm = norms[0] ? norms[0] : norms[1];
    if (norm) {
        fuse_attr(&n, norm, D0_ATTR_EPS);
        fuse_attr(&n, norm, D0_ATTR_PLUS_ONE);
    }
    for (uint32_t i = 0; i < 2; i++) {
        fuse_take(f, index_of(f, turns[i]));
        if (norms[i])
            fuse_take(f, index_of(f, norms[i]));
    }
    fuse_replace(f, at, &n);
}

void fuse_NORM_ROPE_STORE(struct fuse *f)
{
    for (uint32_t i = 0; i < f->g->n_nodes; i++) {
        const struct d0_node *store = &f->g->nodes[i];
        if (store->op != D0_OP_KV_STORE || f->gone[i])
            continue;
        const struct d0_node *k = made_by(f, store->inputs[0], D0_OP_ROPE, store->layer);
        if (!k || !fuse_private(f, store->inputs[0]) || node_attr_i(k, D0_ATTR_INVERSE, 0) ||
            node_attr_i(k, D0_ATTR_DIM, 0) != node_attr_i(store, D0_ATTR_DIM, 0))
            continue;
        const struct d0_node *q = queries_of(f, k, i);
        if (q)
            join_store(f, i, q, k);
    }
}
