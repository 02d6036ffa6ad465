/* SPDX-License-Identifier: Apache-2.0
 *
 * Which degrees of tensor and expert parallelism a model allows, and which give the same bits. Judges by
 * partition marks, shapes and storage schemes of the weights; the first obstacle is the reason. Refuses a
 * degree rather than promise a cut through a block of scales.
 */
#include <stdio.h>
#include <string.h>

#include "plan/plan_internal.h"

/* "mlp.down_proj" of "model.layers.0.mlp.down_proj.weight", "experts.%d.down_proj" of experts */
static const char *short_name(const char *name, char *buf, size_t bytes)
{
    size_t end = strlen(name), at;
    int dots = 0, most = strstr(name, "%d") ? 3 : 2;
    if (str_ends(name, ".weight"))
        end -= strlen(".weight");
    for (at = end; at > 0 && dots < most; at--)
        dots += name[at - 1] == '.';
    at += dots == most;
    snprintf(buf, bytes, "%.*s", (int)(end - at > 40 ? 40 : end - at), name + at);
    return buf;
}

/* Heads may be fewer than ranks only for keys and values, each head then on tp/heads ranks. */
static bool heads_legal(uint32_t units, uint32_t tp, bool kv)
{
    return units % tp == 0 || (kv && units && units < tp && tp % units == 0);
}

static bool are_kv_heads(const struct spec *s, int32_t layer, uint32_t units)
{
    for (size_t i = 0; i < s->n_kv; i++)
        if (s->kv[i].layer == layer && s->kv[i].kv_heads == units && s->kv[i].v_value != D0_NO_VALUE)
            return true;
    return false;
}

/* Rows (n) and columns (k) of one matrix of a weight. */
static void matrix_of(const struct spec_weight *w, int64_t *n, int64_t *k)
{
    uint32_t last = w->n_dims - 1, before = w->n_dims >= 2 ? w->n_dims - 2 : 0;
    *n = w->dims[w->transposed ? last : before];
    *k = w->n_dims >= 2 ? w->dims[w->transposed ? before : last] : 1;
}

/* A cut of `size` values into tp parts must not cut a block of scales. */
static bool blocks_whole(const struct spec_weight *w, int64_t size, uint32_t block, const char *what,
                         uint32_t tp, struct plan_degree *d)
{
    char name[64];
    int64_t part = size / tp;
    if (tp == 1 || w->form.scheme == 0 || block <= 1 || part % block == 0)
        return true;
    snprintf(d->reason, sizeof d->reason, "%.40s: %lld %s a rank cut a block of %u with one scale",
             short_name(w->name, name, sizeof name), (long long)part, what, block);
    return false;
}

static bool divides(const struct spec_weight *w, int64_t size, const char *what, uint32_t tp,
                    struct plan_degree *d)
{
    char name[64];
    if (size % tp == 0)
        return true;
    snprintf(d->reason, sizeof d->reason, "%.40s: %lld %s do not divide by %u",
             short_name(w->name, name, sizeof name), (long long)size, what, tp);
    return false;
}

/* Experts are cut inside: gate and up by rows, down by columns. Which of the two a matrix is shows in the
 * graph; both its sides are looked at where the inner width lies. */
static bool expert_legal(const struct spec *s, const struct d0_node *n, uint32_t tp, struct plan_degree *d)
{
    int64_t inter = node_attr_i(n, D0_ATTR_INTER, 0);
    for (uint32_t i = 3; i <= 5 && i < n->n_inputs; i++) {
        if (n->inputs[i] == D0_NO_VALUE)
            continue;
        for (size_t k = 0; k < s->n_weights; k++) {
            const struct spec_weight *w = &s->weights[k];
            if (w->value != n->inputs[i])
                continue;
            uint32_t block = i == 3 ? w->form.group_k : w->form.group_n;
            if (!divides(w, inter, "values", tp, d) ||
                !blocks_whole(w, inter, block, i == 3 ? "columns" : "rows", tp, d))
                return false;
            break;
        }
    }
    return true;
}

static bool weight_legal(const struct spec *s, const struct spec_weight *w, uint32_t tp,
                         struct plan_degree *d)
{
    int64_t n, k;
    matrix_of(w, &n, &k);
    for (uint32_t i = 0; i < w->n_pieces && w->part != PART_REPLICATED; i++)
        if (!divides(w, w->pieces[i], "rows of a piece", tp, d) ||
            !blocks_whole(w, w->pieces[i], w->form.group_n, "rows", tp, d))
            return false;
    switch (w->part) {
    case PART_REPLICATED:
    case PART_EXPERT:
        return true;
    case PART_HEADS: {
        if (!heads_legal(w->units, tp, are_kv_heads(s, w->layer, w->units)))
            return divides(w, w->units, "heads", tp, d);
        uint32_t ranks = w->units % tp == 0 ? tp : w->units;
        return w->n_dims < 2 || blocks_whole(w, n, w->form.group_n, "rows", ranks, d);
    }
    case PART_COLUMN:
    case PART_VOCAB:
        return divides(w, n, "values", tp, d) &&
               (w->n_dims < 2 || blocks_whole(w, n, w->form.group_n, "rows", tp, d));
    case PART_ROW:
        if (w->units && !divides(w, w->units, "heads", tp, d))
            return false;
        return divides(w, k, "values", tp, d) && blocks_whole(w, k, w->form.group_k, "columns", tp, d);
    }
    return true;
}

static bool node_legal(const struct spec *s, const struct d0_node *n, uint32_t tp, struct plan_degree *d)
{
    uint32_t heads = (uint32_t)node_attr_i(n, D0_ATTR_HEADS, 1),
             kv = (uint32_t)node_attr_i(n, D0_ATTR_KV_HEADS, 1);
    switch ((enum d0_op)n->op) {
    case D0_OP_ATTENTION:
        if (heads_legal(heads, tp, false) && heads_legal(kv, tp, true))
            return true;
        snprintf(d->reason, sizeof d->reason, "%u heads with %u kv heads do not divide by %u", heads, kv, tp);
        return false;
    case D0_OP_MLA:
    case D0_OP_POOL_ATTENTION:
    case D0_OP_DELTA_RULE:
        if (heads % tp == 0)
            return true;
        snprintf(d->reason, sizeof d->reason, "%u heads do not divide by %u", heads, tp);
        return false;
    case D0_OP_EXPERTS:
        return expert_legal(s, n, tp, d);
    default:
        return true;
    }
}

/* Exact: every reduction over a cut axis has segments that fall whole to the ranks, so the fixed tree is the
 * same. */
static void segments_exact(const struct spec *s, const struct d0_node *n, uint32_t tp, struct plan_degree *d)
{
    int64_t segments = node_attr_i(n, D0_ATTR_SEGMENTS, -1);
    char name[64];
    if (!d->exact)
        return;
    if (n->op == D0_OP_EXPERTS && tp > 1) {
        d->exact = false;
        snprintf(d->reason, sizeof d->reason,
                 "not exact: experts cut inside are summed in parts; EP keeps them whole");
        return;
    }
    if (segments < 0)
        return;
    if (segments == 0)
        segments = 1;
    if (segments % tp == 0)
        return;
    d->exact = false;
    const struct d0_value *v = &s->graph->values[n->inputs[1]];
    short_name(s->graph->info[n->inputs[1]].name, name, sizeof name);
    snprintf(d->reason, sizeof d->reason, "not exact: %.40s is summed in %u x %u values", name,
             (uint32_t)segments, (uint32_t)(v->dims[v->n_dims - 1] / segments));
}

void plan_judge_tp(const struct spec *s, uint32_t tp, struct plan_degree *d)
{
    const struct graph *g = s->graph;
    *d = (struct plan_degree){.tp = tp, .legal = true, .exact = true};
    for (uint32_t i = 0; i < g->n_nodes && d->legal; i++)
        d->legal = node_legal(s, &g->nodes[i], tp, d);
    for (size_t i = 0; i < s->n_weights && d->legal; i++)
        d->legal = s->weights[i].group != GROUP_TEXT || weight_legal(s, &s->weights[i], tp, d);
    for (uint32_t i = 0; i < g->n_nodes && d->legal; i++)
        segments_exact(s, &g->nodes[i], tp, d);
    d->exact &= d->legal;
}

size_t plan_tp_degrees(const struct spec *s, struct plan_degree *out, size_t cap)
{
    size_t n = 0;
    for (uint32_t tp = 1; tp <= PLAN_MAX_TP && n < cap; tp *= 2)
        plan_judge_tp(s, tp, &out[n++]);
    return n;
}

/* ---- experts ---- */

static void judge_ep(const struct spec *s, uint32_t ep, struct plan_degree *d)
{
    const struct graph *g = s->graph;
    *d = (struct plan_degree){.tp = ep, .legal = true, .exact = true};
    for (uint32_t i = 0; i < g->n_nodes && d->legal; i++) {
        if (g->nodes[i].op != D0_OP_EXPERTS)
            continue;
        int64_t experts = g->values[g->nodes[i].inputs[3]].dims[0];
        d->legal = experts % ep == 0;
        if (!d->legal)
            snprintf(d->reason, sizeof d->reason, "%lld experts do not divide by %u", (long long)experts, ep);
    }
    d->exact = d->legal; /* one vector for each slot comes back and is summed in slot order */
}

size_t plan_ep_degrees(const struct spec *s, struct plan_degree *out, size_t cap)
{
    size_t n = 0;
    for (uint64_t ep = 1; ep <= s->n_experts && n < cap; ep++)
        if ((ep & (ep - 1)) == 0 || s->n_experts % ep == 0)
            judge_ep(s, (uint32_t)ep, &out[n++]);
    return n;
}
