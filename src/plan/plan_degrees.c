/* SPDX-License-Identifier: Apache-2.0
 *
 * Which degrees of tensor and expert parallelism a model allows, and which give the same bits: every one is
 * judged, none by rule of thumb. Judges by partition marks, shapes and storage schemes of the weights; the
 * first obstacle is the reason. Refuses a degree rather than promise a cut through a block of scales.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "plan/plan_internal.h"

static void append(struct plan_degree *d, const char *fmt, va_list ap)
{
    size_t at = strlen(d->reason);
    vsnprintf(d->reason + at, sizeof d->reason - at, fmt, ap);
}

/* What all degrees share that fail alike ... */
__attribute__((format(printf, 2, 3))) static void because(struct plan_degree *d, const char *fmt, ...)
{
    va_list ap;
    d->reason[0] = 0;
    va_start(ap, fmt);
    append(d, fmt, ap);
    va_end(ap);
    d->stem_bytes = (uint8_t)strlen(d->reason);
}

/* ... and then what is of this one. Returns false: a verdict. */
__attribute__((format(printf, 2, 3))) static bool in_numbers(struct plan_degree *d, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    append(d, fmt, ap);
    va_end(ap);
    return false;
}

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
static bool heads_shared(uint32_t units, uint32_t tp)
{
    return units && units < tp && tp % units == 0;
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

/* A cut of `size` values into equal parts must not cut a block of scales; where the last block is shorter
 * than the others no cut can be equal in values and whole in blocks. */
static bool blocks_whole(const struct spec_weight *w, int64_t size, uint32_t block, const char *what,
                         uint32_t parts, struct plan_degree *d)
{
    char name[64];
    int64_t part = size / parts;
    if (parts == 1 || w->form.scheme == 0 || block <= 1 || part % block == 0)
        return true;
    short_name(w->name, name, sizeof name);
    if (size % block) {
        because(d, "%.40s: uneven scale groups: %lld %s end within a block of %u", name, (long long)size,
                what, block);
        return false;
    }
    because(d, "%.40s: a block of %u %s with one scale is cut", name, block, what);
    return in_numbers(d, ": %lld a rank", (long long)part);
}

static bool divides(const struct spec_weight *w, int64_t size, const char *what, struct plan_degree *d)
{
    char name[64];
    if (size % d->degree == 0)
        return true;
    because(d, "%.40s: %lld %s do not divide", short_name(w->name, name, sizeof name), (long long)size, what);
    return in_numbers(d, " by %u", d->degree);
}

/* Experts are cut inside: gate and up by rows, down by columns. Which of the two a matrix is shows in the
 * graph; both its sides are looked at where the inner width lies. */
static bool expert_legal(const struct plan_judge *x, const struct d0_node *n, struct plan_degree *d)
{
    int64_t inter = node_attr_i(n, D0_ATTR_INTER, 0);
    uint32_t tp = d->degree;
    for (uint32_t i = 3; i <= 5 && i < n->n_inputs; i++) {
        const struct spec_weight *w = n->inputs[i] == D0_NO_VALUE ? NULL : x->weight_of[n->inputs[i]];
        if (w == NULL)
            continue;
        uint32_t block = i == 3 ? w->form.group_k : w->form.group_n;
        if (!divides(w, inter, "values", d) ||
            !blocks_whole(w, inter, block, i == 3 ? "columns" : "rows", tp, d))
            return false;
    }
    return true;
}

static bool weight_legal(const struct spec *s, const struct spec_weight *w, struct plan_degree *d)
{
    int64_t n, k;
    uint32_t tp = d->degree;
    matrix_of(w, &n, &k);
    for (uint32_t i = 0; i < w->n_pieces && w->part != PART_REPLICATED; i++)
        if (!divides(w, w->pieces[i], "rows of a piece", d) ||
            !blocks_whole(w, w->pieces[i], w->form.group_n, "rows", tp, d))
            return false;
    switch (w->part) {
    case PART_REPLICATED:
    case PART_EXPERT:
        return true;
    case PART_HEADS: {
        if (w->units % tp && !(heads_shared(w->units, tp) && are_kv_heads(s, w->layer, w->units)))
            return divides(w, w->units, "heads", d);
        uint32_t parts = w->units % tp == 0 ? tp : w->units;
        return w->n_dims < 2 || blocks_whole(w, n, w->form.group_n, "rows", parts, d);
    }
    case PART_COLUMN:
    case PART_VOCAB:
        return divides(w, n, "values", d) &&
               (w->n_dims < 2 || blocks_whole(w, n, w->form.group_n, "rows", tp, d));
    case PART_ROW:
        if (w->units && !divides(w, w->units, "heads", d))
            return false;
        return divides(w, k, "values", d) && blocks_whole(w, k, w->form.group_k, "columns", tp, d);
    }
    return true;
}

static bool node_legal(const struct plan_judge *x, const struct d0_node *n, struct plan_degree *d)
{
    uint32_t heads = (uint32_t)node_attr_i(n, D0_ATTR_HEADS, 1),
             kv = (uint32_t)node_attr_i(n, D0_ATTR_KV_HEADS, 1), tp = d->degree;
    switch ((enum d0_op)n->op) {
    case D0_OP_ATTENTION:
        if (heads % tp == 0 && (kv % tp == 0 || heads_shared(kv, tp)))
            return true;
        because(d, "%u heads with %u kv heads do not divide", heads, kv);
        return in_numbers(d, " by %u", tp);
    case D0_OP_MLA:
    case D0_OP_POOL_ATTENTION:
    case D0_OP_DELTA_RULE:
        if (heads % tp == 0)
            return true;
        because(d, "%u heads do not divide", heads);
        return in_numbers(d, " by %u", tp);
    case D0_OP_EXPERTS:
        return expert_legal(x, n, d);
    default:
        return true;
    }
}

/* Exact: every reduction over a cut axis has segments that fall whole to the ranks, so the fixed tree is the
 * same. */
static bool node_exact(const struct spec *s, const struct d0_node *n, struct plan_degree *d)
{
    int64_t segments = node_attr_i(n, D0_ATTR_SEGMENTS, -1);
    char name[64];
    if (n->op == D0_OP_EXPERTS && d->degree > 1) {
        because(d, "experts cut inside are summed in parts; EP keeps them whole");
        return false;
    }
    if (segments < 0)
        return true;
    if (segments == 0)
        segments = 1;
    if (segments % d->degree == 0)
        return true;
    const struct d0_value *v = &s->graph->values[n->inputs[1]];
    short_name(s->graph->info[n->inputs[1]].name, name, sizeof name);
    because(d, "%.40s is summed in %lld x %lld values", name, (long long)segments,
            (long long)(v->dims[v->n_dims - 1] / segments));
    return false;
}

int plan_judge_open(struct plan_judge *x, const struct spec *s, struct arena *a, struct err *e)
{
    x->s = s;
    x->weight_of = arena_alloc_n(a, s->graph->n_values, sizeof(struct spec_weight *));
    if (x->weight_of == NULL)
        return err_set(e, ERR_NOMEM, "no memory to judge layouts");
    for (size_t i = s->n_weights; i > 0; i--) /* backwards: of several the first stays */
        if (s->weights[i - 1].value < s->graph->n_values)
            x->weight_of[s->weights[i - 1].value] = &s->weights[i - 1];
    return ERR_OK;
}

void plan_judge_tp(const struct plan_judge *x, uint32_t tp, struct plan_degree *d)
{
    const struct spec *s = x->s;
    const struct graph *g = s->graph;
    *d = (struct plan_degree){.degree = tp, .legal = true};
    for (uint32_t i = 0; i < g->n_nodes && d->legal; i++)
        d->legal = node_legal(x, &g->nodes[i], d);
    for (size_t i = 0; i < s->n_weights && d->legal; i++)
        d->legal = s->weights[i].group != GROUP_TEXT || weight_legal(s, &s->weights[i], d);
    d->exact = d->legal;
    for (uint32_t i = 0; i < g->n_nodes && d->exact; i++)
        d->exact = node_exact(s, &g->nodes[i], d);
}

/* ---- experts ---- */

/* How many experts the layers have, in their order, a run of equal ones once; returns the largest. */
static int64_t count_experts(const struct graph *g, int64_t *counts, size_t *n)
{
    int64_t most = 0;
    *n = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].op != D0_OP_EXPERTS)
            continue;
        int64_t experts = g->values[g->nodes[i].inputs[3]].dims[0];
        if (*n == 0 || counts[*n - 1] != experts)
            counts[(*n)++] = experts;
        most = experts > most ? experts : most;
    }
    return most;
}

/* Exact whenever legal: one vector for each slot comes back and is summed in slot order. */
static void judge_ep(const int64_t *counts, size_t n, uint32_t ep, struct plan_degree *d)
{
    *d = (struct plan_degree){.degree = ep, .legal = true, .exact = true};
    for (size_t i = 0; i < n && d->legal; i++) {
        if (counts[i] % ep == 0)
            continue;
        because(d, "%lld experts do not divide", (long long)counts[i]);
        d->legal = d->exact = in_numbers(d, " by %u", ep);
    }
}

int plan_degrees(const struct spec *s, struct arena *a, struct plan_degrees *out, struct err *e)
{
    struct plan_judge x;
    size_t n;
    *out = (struct plan_degrees){0};
    int rc = plan_judge_open(&x, s, a, e);
    if (rc)
        return rc;
    int64_t *counts = arena_alloc_n(a, s->graph->n_nodes, sizeof *counts);
    out->tp = arena_alloc_n(a, PLAN_MAX_TP, sizeof *out->tp);
    if (counts == NULL || out->tp == NULL)
        return err_set(e, ERR_NOMEM, "no memory to judge layouts");
    for (uint32_t tp = 1; tp <= PLAN_MAX_TP; tp++)
        plan_judge_tp(&x, tp, &out->tp[out->n_tp++]);
    int64_t most = count_experts(s->graph, counts, &n);
    most = most < PLAN_MAX_EP ? most : PLAN_MAX_EP;
    out->ep = arena_alloc_n(a, (size_t)most, sizeof *out->ep);
    if (out->ep == NULL)
        return err_set(e, ERR_NOMEM, "no memory to judge layouts");
    for (uint32_t ep = 1; ep <= most; ep++)
        judge_ep(counts, n, ep, &out->ep[out->n_ep++]);
    return ERR_OK;
}
