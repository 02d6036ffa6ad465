/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of a rank and the layouts that fit. Owns the formulas; takes shapes from the graph, never from
 * names. All of it is checked integer arithmetic: what does not fit in 64 bits does not fit on a rank.
 *
 * Formulas, per rank of a PP x TP layout (source: computed from shapes unless stated):
 *
 *   weights: sum over the stage's tensors of its share in bytes, each rounded up to 64. col, row and vocab:
 *     1/tp; heads: whole heads, and one copy each where there are fewer than tp; the rest: everything
 *   kv: pages x page_tokens x sum over the stage's layers of max(1, kv_heads/tp) x (dim + v_dim) x bytes,
 *     pages = ceil(context / page_tokens) + max_seqs - 1: every sequence but one may waste most of a page
 *   scratch: the liveness plan of the whole graph for the largest step: exact on one rank, an upper bound on
 *     more
 *   device: what the device says its kernels set aside for that step (source: the device); an upper bound on
 *     more than one rank
 *   pictures: weights of the tower, inputs and scratch of its largest run, what the device wants beside it,
 *     rows x width x outputs x 4 of the store of features, and the room for those that wait
 *   staging: the loader's buffer (its default)
 *   fixed: step inputs and the host copy of the logits, plus 32 MiB for the program and its headers (assumed)
 */
#include "plan/plan_internal.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAN_STAGING   ((uint64_t)8 << 20)
#define PLAN_PROGRAM   ((uint64_t)32 << 20)
#define PLAN_MAX_RANKS 4096u
#define PLAN_SATURATED UINT64_MAX /* as sat_add has it; never fits */
#define PLAN_ALIGN     64u

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
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
    if (i->stored_bytes) /* codes, scales and what else the scheme needs */
        bytes = i->stored_bytes;
    else if (!tensor_value_bytes(v, none, &bytes))
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
        uint64_t rows =
            ceil_div(s->page_tokens, k->ratio ? k->ratio : 1); /* at least one, as spec lays them out */
        uint64_t page = sat_mul(sat_mul(heads, (uint64_t)k->dim + k->v_dim), rows);
        page = sat_mul(page, dtype_bits(s->kv_dtype)) / 8;
        if (k->layer >= 0 && k->layer < s->n_layers)
            x->kv[k->layer] = sat_add(x->kv[k->layer], page);
    }
    return true;
}

/* ---- memory of a layout ---- */

/* What does not depend on the layout. */
struct step {
    uint64_t pages, scratch, device, fixed;
};

/* Scratch of one graph for this step, and what the device wants beside it. */
static int plan_graph(const struct plan_options *o, struct graph *g, const int64_t *dims, struct step *out,
                      struct err *e)
{
    struct d0_part part;
    uint64_t device = 0;
    int rc = graph_plan_memory(g, dims, false, e);
    if (!rc && o->device_need) {
        graph_part(g, &part);
        rc = o->device_need(o->device, &part, &device, e);
    }
    out->scratch = g->scratch_bytes > out->scratch ? g->scratch_bytes : out->scratch;
    out->device = device > out->device ? device : out->device;
    return rc;
}

/* The graph as described, and with the fusions that may be on: a device that refuses them runs it without. */
static int plan_graphs(const struct plan_options *o, struct graph *g, const int64_t *dims, struct step *out,
                       struct err *e)
{
    struct fused fused = {0};
    int rc = plan_graph(o, g, dims, out, e);
    if (!rc && o->fusions)
        rc = graph_fuse(g, o->fusions, false, &fused, e);
    if (!rc && fused.graph)
        rc = plan_graph(o, fused.graph, dims, out, e);
    graph_free(fused.graph);
    return rc;
}

/* States as large as an engine makes them. */
static void size_states(const struct spec *s, struct graph *g, uint64_t pages, uint64_t seqs)
{
    spec_set_pages(g, s, pages < INT32_MAX ? (int64_t)pages : INT32_MAX);
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == D0_VALUE_STATE && g->info[i].state == STATE_SLOTS)
            g->values[i].dims[0] = (int64_t)seqs;
}

static int plan_step(const struct spec *s, const struct plan_options *o, struct step *out, struct err *e)
{
    uint64_t seqs = o->max_seqs ? o->max_seqs : 1, tokens = o->max_step_tokens ? o->max_step_tokens : 512;
    uint64_t rows = o->max_rows ? o->max_rows : seqs;
    uint64_t context = o->context_tokens ? o->context_tokens : (uint64_t)s->max_positions;
    uint64_t longest = context < (uint64_t)s->max_positions ? context : (uint64_t)s->max_positions;
    longest = o->request_tokens && o->request_tokens < longest ? o->request_tokens : longest;
    uint64_t table = ceil_div(longest, s->page_tokens);
    int64_t dims[D0_N_DIMS] = {(int64_t)tokens, (int64_t)seqs, (int64_t)rows, (int64_t)table};
    struct graph *copy = NULL;
    int rc = graph_copy(s->graph, &copy, e);
    out->pages = sat_add(ceil_div(context, s->page_tokens), seqs - 1);
    out->scratch = out->device = 0;
    if (!rc && o->device_need)
        size_states(s, copy, out->pages, seqs);
    if (!rc)
        rc = plan_graphs(o, copy, dims, out, e);
    if (!rc) {
        out->fixed = sat_add(PLAN_PROGRAM, sat_mul(s->state_bytes, sat_add(seqs, o->snapshots)));
        for (uint32_t i = 0; i < copy->n_values && !rc; i++) {
            uint64_t bytes;
            bool counts = copy->values[i].kind == D0_VALUE_INPUT || copy->values[i].kind == D0_VALUE_OUTPUT;
            if (counts && !tensor_value_bytes(&copy->values[i], dims, &bytes))
                rc = err_set(e, ERR_LIMIT, "%s does not fit in 64 bits", copy->info[i].name);
            else if (counts)
                out->fixed = sat_add(out->fixed, bytes);
        }
    }
    graph_free(copy);
    if (rc)
        err_ctx(e, "planning a step");
    return rc;
}

static void add_up(struct plan_memory *m, const struct plan_options *o)
{
    m->total = sat_add(sat_add(m->weights, m->kv), sat_add(m->scratch, m->device));
    m->total = sat_add(m->total, sat_add(m->staging, m->fixed));
    m->total = sat_add(m->total, m->pictures);
    m->fits = m->total != PLAN_SATURATED && m->total <= o->memory_bytes;
}

/* The fullest stage of pp equal runs of layers. */
static struct plan_memory fullest_stage(const struct spec *s, const struct shares *x, const struct step *step,
                                        const struct plan_options *o, uint32_t pp)
{
    struct plan_memory worst = {0};
    uint64_t layers = (uint64_t)s->n_layers;
    for (uint32_t stage = 0; stage < pp; stage++) {
        struct plan_memory m = {.scratch = step->scratch,
                                .device = step->device,
                                .staging = PLAN_STAGING,
                                .fixed = step->fixed,
                                .kv_pages = step->pages};
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
    uint32_t last = g->n_nodes;
    while (last > 0 && g->nodes[last - 1].op != D0_OP_LINEAR)
        last--; /* what follows the head scales or caps it */
    uint32_t head = last ? g->nodes[last - 1].inputs[1] : D0_NO_VALUE;
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

static uint64_t store_bytes(const struct spec *s, const struct plan_options *o)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->tower.n_features; i++) {
        const struct d0_value *v = &s->vision->values[s->tower.features[i]];
        bytes = sat_add(bytes, sat_mul((uint64_t)o->n_feature_rows * 4, (uint64_t)v->dims[1]));
    }
    return bytes;
}

/* Everything that taking pictures adds on one rank. */
static int plan_tower(const struct spec *s, const struct plan_options *o, struct plan_memory *out,
                      struct err *e)
{
    const int64_t dims[D0_N_DIMS] = {o->max_patches, 1, o->max_picture_rows, 1};
    struct step step = {0};
    struct graph *g = NULL;
    *out = (struct plan_memory){0};
    if (!s->vision || !o->max_patches || !o->max_picture_rows)
        return ERR_OK;
    int rc = graph_copy(s->vision, &g, e);
    for (uint32_t i = 0; !rc && i < s->tower.n_features; i++)
        g->info[s->tower.features[i]].keep = true;
    if (!rc)
        rc = plan_graph(o, g, dims, &step, e);
    uint64_t bytes = sat_add(sat_add(step.scratch, step.device), store_bytes(s, o));
    bytes = sat_add(sat_add(bytes, plan_tower_inputs(s, o)), o->waiting_bytes);
    out->tower_scratch = step.scratch;
    out->tower_device = step.device;
    for (uint32_t i = 0; !rc && i < g->n_values; i++)
        if (g->values[i].kind == D0_VALUE_WEIGHT)
            out->tower_weights = sat_add(out->tower_weights, weight_share(&g->values[i], &g->info[i], 1));
    graph_free(g);
    out->pictures = sat_add(bytes, out->tower_weights);
    if (rc)
        err_ctx(e, "planning the tower");
    return rc;
}

int plan_single(const struct spec *s, const struct plan_options *o, struct plan_memory *out, struct err *e)
{
    const struct plan_layout one = {.pp = 1, .dp = 1, .tp = 1, .ep = 1};
    struct step step;
    struct shares x;
    struct plan_memory tower = {0};
    int rc = plan_step(s, o, &step, e);
    if (!rc)
        rc = plan_tower(s, o, &tower, e);
    if (rc)
        return rc;
    if (!shares_alloc(&x, s) || !shares_fill(&x, s, 1))
        rc = err_set(e, ERR_NOMEM, "no memory to plan");
    else {
        *out = layout_memory(s, &x, &step, o, &one);
        out->pictures = tower.pictures;
        out->tower_weights = tower.tower_weights;
        out->tower_scratch = tower.tower_scratch;
        out->tower_device = tower.tower_device;
        add_up(out, o);
    }
    shares_free(&x);
    return rc;
}

/* Fewest ranks first; among layouts of as many ranks the one that leaves most room. */
bool plan_smallest(const struct spec *s, const struct plan_options *o, struct plan_layout *out,
                   struct plan_memory *per_rank)
{
    struct step step;
    struct shares x;
    struct plan_judge judge;
    struct arena arena;
    uint32_t best = UINT32_MAX;
    if (plan_step(s, o, &step, NULL))
        return false;
    arena_init(&arena, NULL, MEM_MISC);
    bool ok = shares_alloc(&x, s) && !plan_judge_open(&judge, s, &arena, NULL);
    for (uint32_t tp = 1; ok && tp <= PLAN_MAX_TP; tp *= 2) {
        struct plan_degree d;
        plan_judge_tp(&judge, tp, &d);
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
    arena_release(&arena);
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
