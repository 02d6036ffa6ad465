/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of a rank and the layouts that fit. Owns the formulas; takes shapes from the graph, never from
 * names. All of it is checked integer arithmetic: what does not fit in 64 bits does not fit on a rank.
 *
 * Formulas, per rank of a PP x TP layout (source: computed from shapes unless stated):
 *   weights  sum over the stage's tensors of its share in bytes, each rounded up to 64; col, row and vocab:
 * 1/tp; heads: whole heads, and one copy each where there are fewer than tp; the rest: everything kv pages x
 * page_tokens x sum over the stage's layers of max(1, kv_heads/tp) x (dim + v_dim) x bytes pages =
 * ceil(context / page_tokens) + max_seqs - 1: every sequence but one may waste most of a page scratch  the
 * liveness plan of the whole graph for the largest step: exact on one rank, an upper bound on more staging
 * the loader's buffer (its default) fixed    step inputs and the host copy of the logits, plus 32 MiB for the
 * program and its headers (assumed)
 */
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAN_STAGING   ((uint64_t)8 << 20)
#define PLAN_PROGRAM   ((uint64_t)32 << 20)
#define PLAN_MAX_TP    64u
#define PLAN_MAX_RANKS 4096u
#define PLAN_SATURATED UINT64_MAX /* a sum that left 64 bits; never fits */
#define PLAN_ALIGN     64u

static uint64_t sat_add(uint64_t a, uint64_t b)
{
    uint64_t r;
    return add_u64(a, b, &r) ? r : PLAN_SATURATED;
}

static uint64_t sat_mul(uint64_t a, uint64_t b)
{
    uint64_t r;
    return mul_u64(a, b, &r) ? r : PLAN_SATURATED;
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* ---- degrees of tensor parallelism ---- */

/* "mlp.down_proj" of "model.layers.0.mlp.down_proj.weight" */
static const char *short_name(const char *name, char *buf, size_t bytes)
{
    size_t end = strlen(name), at;
    int dots = 0;
    if (str_ends(name, ".weight"))
        end -= strlen(".weight");
    for (at = end; at > 0 && dots < 2; at--)
        dots += name[at - 1] == '.';
    at += dots == 2;
    snprintf(buf, bytes, "%.*s", (int)(end - at > 40 ? 40 : end - at), name + at);
    return buf;
}

/* Heads may be fewer than ranks only for keys and values, each head then on tp/heads ranks. */
static bool heads_legal(uint32_t units, uint32_t tp, bool kv)
{
    return units % tp == 0 || (kv && units < tp && tp % units == 0);
}

static bool linear_legal(const struct spec *s, const struct d0_node *n, uint32_t tp, struct plan_degree *d)
{
    const struct graph_value_info *w = &s->graph->info[n->inputs[1]];
    const struct d0_value *v = &s->graph->values[n->inputs[1]];
    char name[64];
    int64_t cut = w->part == PART_ROW ? v->dims[1] : v->dims[0];
    bool legal = true;
    short_name(w->name, name, sizeof name);
    if (w->part == PART_HEADS)
        legal = heads_legal(w->part_units, tp, w->part_units == (uint32_t)s->n_kv_heads);
    else if (w->part == PART_COLUMN || w->part == PART_ROW || w->part == PART_VOCAB)
        legal = cut % tp == 0 && w->part_units % tp == 0;
    if (!legal)
        snprintf(d->reason, sizeof d->reason, "%.40s: %lld %s do not divide by %u", name,
                 (long long)(w->part_units ? (int64_t)w->part_units : cut),
                 w->part_units ? "heads" : "values", tp);
    return legal;
}

/* Exact: every reduction over a cut axis has segments that fall whole to the ranks, so the fixed tree is the
 * same. */
static void segments_exact(const struct spec *s, const struct d0_node *n, uint32_t tp, struct plan_degree *d)
{
    int64_t segments = node_attr_i(n, D0_ATTR_SEGMENTS, -1);
    char name[64];
    if (segments < 0 || !d->exact)
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

static void judge_degree(const struct spec *s, uint32_t tp, struct plan_degree *d)
{
    const struct graph *g = s->graph;
    *d = (struct plan_degree){.tp = tp, .legal = true, .exact = true};
    for (uint32_t i = 0; i < g->n_nodes && d->legal; i++) {
        const struct d0_node *n = &g->nodes[i];
        if (n->op == D0_OP_ATTENTION) {
            uint32_t heads = (uint32_t)node_attr_i(n, D0_ATTR_HEADS, 1);
            uint32_t kv = (uint32_t)node_attr_i(n, D0_ATTR_KV_HEADS, 1);
            if (!heads_legal(heads, tp, false) || !heads_legal(kv, tp, true)) {
                d->legal = false;
                snprintf(d->reason, sizeof d->reason, "%u heads with %u kv heads do not divide by %u", heads,
                         kv, tp);
            }
        } else if (n->op == D0_OP_LINEAR) {
            d->legal = linear_legal(s, n, tp, d);
        }
        if (d->legal && (n->op == D0_OP_LINEAR || n->op == D0_OP_RMS_NORM))
            segments_exact(s, n, tp, d);
    }
    d->exact &= d->legal;
}

size_t plan_tp_degrees(const struct spec *s, struct plan_degree *out, size_t cap)
{
    size_t n = 0;
    for (uint32_t tp = 1; tp <= PLAN_MAX_TP && n < cap; tp *= 2)
        judge_degree(s, tp, &out[n++]);
    return n;
}

/* ---- bytes of the parts of a model ---- */

/* What one rank of a TP group holds of each stage's pieces. */
struct shares {
    uint64_t *weights; /* [n_layers] */
    uint64_t *kv;      /* [n_layers] bytes of one page */
    uint64_t prologue, epilogue;
};

static bool shares_alloc(struct shares *x, const struct spec *s)
{
    *x = (struct shares){.weights = calloc((size_t)s->n_layers + 1, sizeof *x->weights),
                         .kv = calloc((size_t)s->n_layers + 1, sizeof *x->kv)};
    return x->weights && x->kv;
}

static void shares_free(struct shares *x)
{
    free(x->weights);
    free(x->kv);
}

static uint64_t weight_share(const struct d0_value *v, const struct graph_value_info *i, uint32_t tp)
{
    static const int64_t none[D0_N_DIMS] = {0};
    uint64_t bytes;
    if (!value_bytes(v, none, &bytes))
        return PLAN_SATURATED;
    if (i->part == PART_HEADS && i->part_units) /* whole heads; at least one */
        bytes = sat_mul(ceil_div(bytes, i->part_units), ceil_div(i->part_units, tp));
    else if (i->part != PART_REPLICATED)
        bytes = ceil_div(bytes, tp);
    return bytes > UINT64_MAX - PLAN_ALIGN ? PLAN_SATURATED : ALIGN_UP(bytes, PLAN_ALIGN);
}

/* Goes over the nodes, so that a weight that two stages use (tied embedding) counts in both, and one that two
 * nodes of a stage use counts once. */
static bool shares_fill(struct shares *x, const struct spec *s, uint32_t tp)
{
    const struct graph *g = s->graph;
    uint8_t *seen = calloc(g->n_values + 1u, 1); /* bits: prologue, layer, epilogue */
    bool after = false;
    if (seen == NULL)
        return false;
    x->prologue = x->epilogue = 0;
    memset(x->weights, 0, (size_t)s->n_layers * sizeof *x->weights);
    memset(x->kv, 0, (size_t)s->n_layers * sizeof *x->kv);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        bool layered = n->layer >= 0 && n->layer < s->n_layers;
        after |= layered;
        uint64_t *sum = layered ? &x->weights[n->layer] : (after ? &x->epilogue : &x->prologue);
        uint8_t bit = layered ? 2 : (after ? 4 : 1);
        for (uint32_t j = 0; j < n->n_inputs; j++) {
            uint32_t v = n->inputs[j];
            if (v == D0_NO_VALUE || g->values[v].kind != D0_VALUE_WEIGHT || (seen[v] & bit))
                continue;
            seen[v] |= bit;
            *sum = sat_add(*sum, weight_share(&g->values[v], &g->info[v], tp));
        }
    }
    free(seen);
    for (size_t i = 0; i < s->n_kv; i++) {
        const struct spec_kv *k = &s->kv[i];
        uint64_t heads = k->kv_heads % tp == 0 ? k->kv_heads / tp : ceil_div(k->kv_heads, tp);
        uint64_t page = sat_mul(sat_mul(heads, (uint64_t)k->dim + k->v_dim), s->page_tokens);
        page = sat_mul(page, dtype_bits(s->kv_dtype)) / 8;
        if (k->layer >= 0 && k->layer < s->n_layers)
            x->kv[k->layer] = sat_add(x->kv[k->layer], page);
    }
    return true;
}

/* ---- memory of a layout ---- */

/* What does not depend on the layout. */
struct step {
    uint64_t pages, scratch, fixed;
};

static int plan_step(const struct spec *s, const struct plan_options *o, struct step *out, struct err *e)
{
    uint64_t seqs = o->max_seqs ? o->max_seqs : 1, tokens = o->max_step_tokens ? o->max_step_tokens : 512;
    uint64_t rows = o->max_rows ? o->max_rows : seqs;
    uint64_t context = o->context_tokens ? o->context_tokens : (uint64_t)s->max_positions;
    uint64_t longest = context < (uint64_t)s->max_positions ? context : (uint64_t)s->max_positions;
    uint64_t table = ceil_div(longest, s->page_tokens);
    int64_t dims[D0_N_DIMS] = {(int64_t)tokens, (int64_t)seqs, (int64_t)rows, (int64_t)table};
    struct graph *copy = NULL;
    int rc = graph_copy(s->graph, &copy, e);
    if (!rc)
        rc = graph_plan_memory(copy, dims, false, e);
    if (!rc) {
        out->pages = sat_add(ceil_div(context, s->page_tokens), seqs - 1);
        out->scratch = copy->scratch_bytes;
        out->fixed = PLAN_PROGRAM;
        for (uint32_t i = 0; i < copy->n_values && !rc; i++) {
            uint64_t bytes;
            bool counts = copy->values[i].kind == D0_VALUE_INPUT || copy->values[i].kind == D0_VALUE_OUTPUT;
            if (counts && !value_bytes(&copy->values[i], dims, &bytes))
                rc = err_set(e, ERR_LIMIT, "%s does not fit in 64 bits", copy->info[i].name);
            else if (counts)
                out->fixed = sat_add(out->fixed, bytes);
        }
    }
    graph_free(copy);
    return rc ? err_ctx(e, "planning a step") : ERR_OK;
}

static void add_up(struct plan_memory *m, const struct plan_options *o)
{
    m->total = sat_add(sat_add(sat_add(m->weights, m->kv), sat_add(m->scratch, m->staging)), m->fixed);
    m->fits = m->total != PLAN_SATURATED && m->total <= o->memory_bytes;
}

/* The fullest stage of pp equal runs of layers. */
static struct plan_memory fullest_stage(const struct spec *s, const struct shares *x, const struct step *step,
                                        const struct plan_options *o, uint32_t pp)
{
    struct plan_memory worst = {0};
    uint64_t layers = (uint64_t)s->n_layers;
    for (uint32_t stage = 0; stage < pp; stage++) {
        struct plan_memory m = {
            .scratch = step->scratch, .staging = PLAN_STAGING, .fixed = step->fixed, .kv_pages = step->pages};
        for (uint64_t l = stage * layers / pp; l < (stage + 1) * layers / pp; l++) {
            m.weights = sat_add(m.weights, x->weights[l]);
            m.kv = sat_add(m.kv, sat_mul(x->kv[l], step->pages));
        }
        if (stage == 0)
            m.weights = sat_add(m.weights, x->prologue);
        if (stage == pp - 1)
            m.weights = sat_add(m.weights, x->epilogue);
        add_up(&m, o);
        if (stage == 0 || m.total > worst.total)
            worst = m;
    }
    return worst;
}

/* One stage holds a weight that its prologue and epilogue share once. */
static uint64_t shared_by_ends(const struct spec *s, uint32_t tp)
{
    const struct graph *g = s->graph;
    uint64_t bytes = 0;
    uint32_t head = g->n_nodes ? g->nodes[g->n_nodes - 1].inputs[1] : D0_NO_VALUE;
    if (!s->tied_embeddings || head == D0_NO_VALUE || head >= g->n_values)
        return 0;
    bytes = weight_share(&g->values[head], &g->info[head], tp);
    return bytes == PLAN_SATURATED ? 0 : bytes;
}

static struct plan_memory layout_memory(const struct spec *s, const struct shares *x, const struct step *step,
                                        const struct plan_options *o, const struct plan_layout *l)
{
    struct plan_memory m = fullest_stage(s, x, step, o, l->pp);
    if (l->pp == 1 && m.weights != PLAN_SATURATED) {
        m.weights -= shared_by_ends(s, l->tp);
        add_up(&m, o);
    }
    return m;
}

int plan_single(const struct spec *s, const struct plan_options *o, struct plan_memory *out, struct err *e)
{
    const struct plan_layout one = {.pp = 1, .dp = 1, .tp = 1, .ep = 1};
    struct step step;
    struct shares x;
    int rc = plan_step(s, o, &step, e);
    if (rc)
        return rc;
    if (!shares_alloc(&x, s) || !shares_fill(&x, s, 1))
        rc = err_set(e, ERR_NOMEM, "no memory to plan");
    else
        *out = layout_memory(s, &x, &step, o, &one);
    shares_free(&x);
    return rc;
}

/* Fewest ranks first; among layouts of as many ranks the one that leaves most room. */
bool plan_smallest(const struct spec *s, const struct plan_options *o, struct plan_layout *out,
                   struct plan_memory *per_rank)
{
    struct step step;
    struct shares x;
    uint32_t best = UINT32_MAX;
    if (plan_step(s, o, &step, NULL))
        return false;
    bool ok = shares_alloc(&x, s);
    for (uint32_t tp = 1; ok && tp <= PLAN_MAX_TP; tp *= 2) {
        struct plan_degree d;
        judge_degree(s, tp, &d);
        if (!d.legal)
            continue;
        ok = shares_fill(&x, s, tp);
        for (uint32_t pp = 1; ok && pp <= PLAN_MAX_RANKS / tp && pp <= (uint64_t)s->n_layers; pp++) {
            struct plan_layout l = {.pp = pp, .dp = 1, .tp = tp, .ep = 1};
            if (pp * tp > best)
                break;
            struct plan_memory m = layout_memory(s, &x, &step, o, &l);
            if (!m.fits)
                continue;
            if (pp * tp < best || m.total < per_rank->total) {
                best = pp * tp;
                *out = l;
                *per_rank = m;
            }
            break; /* more stages only cost more ranks */
        }
    }
    shares_free(&x);
    return ok && best != UINT32_MAX;
}

void plan_streaming(const struct spec *s, uint64_t *largest_layer, uint64_t *embedding, uint64_t *head)
{
    struct shares x;
    *largest_layer = *embedding = *head = 0;
    if (shares_alloc(&x, s) && shares_fill(&x, s, 1)) {
        for (int64_t l = 0; l < s->n_layers; l++)
            if (x.weights[l] > *largest_layer)
                *largest_layer = x.weights[l];
        *embedding = x.prologue;
        *head = x.epilogue;
    }
    shares_free(&x);
}
