/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the acceptance of fusions: each is run on layers of the model itself, with their weights, against the
 * same layers as described, on the same device: a first piece of a sequence, then one token that reads what
 * it stored. Refuses: to call a fusion accepted that was not seen to keep its promise. A piece that does not
 * fit is not tried.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "verify/layer_kinds.h"
#include "verify/runner.h"
#include "verify/shared_weights.h"

#define FUSION_TOKENS 33 /* of a first piece; one more follows */
#define FUSION_KINDS  16

struct trial {
    struct dev *d;
    const struct spec *s;
    struct ckpt *c;
    uint64_t budget;
    struct verify_fusion *out; /* [FUSION_N] */
    struct mem *mem;
    bool ran; /* at least one piece gave finite numbers */
    char why[160];
};

/* Rows of the result: [FUSION_TOKENS + 1, width] */
struct rows {
    float *data;
    size_t width;
    uint32_t fusions; /* that changed a node and that the device runs */
};

/* Inputs from other layers: small numbers, of their own for each token. */
static int give_hidden(struct runner *r, const struct graph *g, uint32_t first, uint32_t n, struct err *e)
{
    uint32_t index = 0;
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == 0 && i < g->n_values; i++) {
        const struct d0_value *v = &g->values[i];
        if (v->kind != D0_VALUE_INPUT || v->role != D0_INPUT_HIDDEN)
            continue;
        size_t width = v->dims[1] > 0 ? (size_t)v->dims[1] : 1;
        float *x = calloc(width, n * sizeof *x);
        for (size_t k = 0; x && k < width * n; k++)
            x[k] = (float)(2 * rng_f64(index + 1, first * width + k) - 1);
        rc = x ? engine_set_hidden(r->x, index++, x, n, width, e)
               : err_set(e, ERR_NOMEM, "no memory for an input of a layer");
        free(x);
    }
    return rc;
}

static int run_part(struct trial *t, struct runner *r, const struct graph *g, uint32_t first, uint32_t n,
                    struct rows *out, struct err *e)
{
    int32_t ids[FUSION_TOKENS];
    struct step_result *res;
    size_t rows, width;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((1 + 7919ull * (first + i)) % (uint64_t)t->s->vocab_size);
    struct runner_run run = {.tokens = ids, .n = n, .position = first};
    int rc = give_hidden(r, g, first, n, e);
    if (rc == 0)
        rc = runner_step(r, &run, 1, &res, e);
    if (rc == 0)
        rc = engine_read_result(r->x, out->data + first * out->width, n * out->width, &rows, &width, e);
    return rc;
}

/* out: data is to be freed. */
static int run_fused(struct trial *t, const struct graph *g, const struct weights *w, uint32_t mask,
                     struct rows *out, struct err *e)
{
    struct runner r = {0};
    struct runner_size size = {
        .tokens = FUSION_TOKENS, .seqs = 1, .rows = 1, .context = FUSION_TOKENS + 1, .fusions = mask};
    *out = (struct rows){.width = (size_t)g->values[graph_result(g)].dims[1]};
    out->data = calloc(out->width, (FUSION_TOKENS + 1) * sizeof *out->data);
    if (!out->data)
        return err_set(e, ERR_NOMEM, "no memory for the results of a layer");
    int rc = runner_open_graph(&r, t->d, g, w, &size, t->mem, e);
    if (rc == 0)
        out->fusions = engine_fusions(r.x);
    if (rc == 0)
        rc = run_part(t, &r, g, 0, FUSION_TOKENS, out, e);
    if (rc == 0)
        rc = run_part(t, &r, g, FUSION_TOKENS, 1, out, e);
    runner_close(&r);
    return rc;
}

static double worst_row(const struct rows *got, const struct rows *want)
{
    double worst = 0;
    for (size_t row = 0; row < FUSION_TOKENS + 1; row++) {
        struct metrics x;
        metrics_compare(got->data + row * want->width, want->data + row * want->width, want->width, &x);
        worst = fmax(worst, x.n_nonfinite || !isfinite(x.relative_l2) ? INFINITY : x.relative_l2);
    }
    return worst;
}

static void judge(struct trial *t, enum fusion f, const struct rows *got, const struct rows *want,
                  const char *where)
{
    struct verify_fusion *v = &t->out[f];
    const struct fusion_info *info = fusion_info(f);
    bool equal = memcmp(got->data, want->data, (FUSION_TOKENS + 1) * want->width * sizeof *want->data) == 0;
    double worst = equal ? 0 : worst_row(got, want);
    bool kept = info->exactness == FUSION_BIT_EQUAL ? equal : worst <= info->limit;
    v->pieces++;
    v->measured = fmax(v->measured, worst);
    if (kept || v->broken)
        return;
    v->broken = true;
    if (info->exactness == FUSION_BIT_EQUAL)
        snprintf(v->reason, sizeof v->reason,
                 "%s: other bits than the graph as described (relative L2 of a row %.3g)", where, worst);
    else
        snprintf(v->reason, sizeof v->reason, "%s: relative L2 of a row %.3g, limit %.3g", where, worst,
                 info->limit);
}

static bool all_finite(const struct rows *r)
{
    for (size_t i = 0; i < (FUSION_TOKENS + 1) * r->width; i++)
        if (!isfinite(r->data[i]))
            return false;
    return true;
}

/* Every fusion alone, on one slice. */
static int try_slice(struct trial *t, const struct graph *g, const char *where, struct err *e)
{
    struct weights *w = NULL;
    struct rows want = {0};
    int rc = weights_load(&w, g, t->c, t->d, &(struct load_options){.spec = t->s}, e);
    if (rc == 0)
        rc = run_fused(t, g, w, 0, &want, e);
    bool finite = rc == 0 && all_finite(&want);
    if (rc == 0 && !finite)
        snprintf(t->why, sizeof t->why, "%s gives NaN or infinity", where);
    t->ran |= finite;
    for (unsigned i = 0; rc == 0 && finite && i < FUSION_N; i++) {
        struct rows got = {0};
        if (!t->out[i].nodes)
            continue;
        rc = run_fused(t, g, w, FUSION_BIT(i), &got, e);
        if (rc == 0 && got.fusions)
            judge(t, (enum fusion)i, &got, &want, where);
        free(got.data);
    }
    free(want.data);
    weights_free(w);
    return rc;
}

/* Layers first..last if they fit. *yes: they were tried. */
static int try_layers(struct trial *t, int32_t first, int32_t last, bool *yes, struct err *e)
{
    struct graph *g = NULL;
    uint64_t bytes = 0;
    char where[48];
    *yes = false;
    int rc = graph_slice(t->s->graph, first, last, 0, &g, e);
    if (rc == 0)
        rc = shared_weights_bytes(g, t->c, t->s, &bytes, e);
    if (rc == 0 && t->budget && bytes > t->budget / 2) {
        char need[32], have[32];
        snprintf(t->why, sizeof t->why, "a layer needs %s and as much again, there are %s",
                 format_bytes(bytes, need, sizeof need), format_bytes(t->budget, have, sizeof have));
    } else if (rc == 0) {
        snprintf(where, sizeof where, first == last ? "layer %d" : "layers %d and %d", first, last);
        rc = try_slice(t, g, where, e);
        *yes = true;
    }
    graph_free(g);
    return rc;
}

/* A layer of each kind with the one after it, whose first norm takes its last sum. */
static int try_kinds(struct trial *t, struct err *e)
{
    struct layer_kind kinds[FUSION_KINDS];
    int32_t last = layer_last(t->s->graph);
    size_t n = layer_kinds(t->s->graph, kinds, FUSION_KINDS);
    int rc = ERR_OK;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        bool yes = false;
        if (kinds[i].layer < last)
            rc = try_layers(t, kinds[i].layer, kinds[i].layer + 1, &yes, e);
        if (rc == 0 && !yes)
            rc = try_layers(t, kinds[i].layer, kinds[i].layer, &yes, e);
    }
    return rc;
}

static int count_nodes(struct trial *t, struct err *e)
{
    for (unsigned i = 0; i < FUSION_N; i++) {
        struct fused fused = {0};
        int rc = graph_fuse(t->s->graph, FUSION_BIT(i), false, &fused, e);
        if (rc)
            return rc;
        t->out[i].nodes = fused.nodes[i];
        graph_free(fused.graph);
    }
    return ERR_OK;
}

static void conclude(struct trial *t, enum fusion f, bool wanted, struct findings *findings)
{
    struct verify_fusion *v = &t->out[f];
    const struct fusion_info *info = fusion_info(f);
    v->accepted = v->pieces && !v->broken;
    v->on = v->accepted && wanted;
    if (!v->nodes)
        snprintf(v->reason, sizeof v->reason, "the model has no such nodes");
    else if (!v->pieces)
        snprintf(v->reason, sizeof v->reason, "not measured: %.150s",
                 t->why[0] ? t->why
                           : "no layer that was tried has such nodes, or the device does not run them");
    else if (v->accepted && !wanted)
        snprintf(v->reason, sizeof v->reason, "%s",
                 info->exactness == FUSION_BOUNDED ? "changes bits: only where --fuse names it"
                                                   : "not among --fuse");
    if (v->broken)
        finding_add(findings, FINDING_N010, info->name, "%s; %u nodes stay as described", v->reason,
                    v->nodes);
}

int verify_fusions(struct dev *d, const struct spec *s, struct ckpt *c, uint64_t memory_budget,
                   uint32_t wanted, struct verify_fusion out[FUSION_N], struct findings *f, struct d0 *d0,
                   struct err *e)
{
    struct trial t = {
        .d = d, .s = s, .c = c, .budget = memory_budget, .out = out, .mem = d0 ? &d0->mem : NULL};
    struct err inner = {0};
    memset(out, 0, FUSION_N * sizeof *out);
    if (!d->computes)
        return err_set(e, ERR_UNSUPPORTED, "device %s computes nothing: no fusion can be measured",
                       d->api->name);
    if (s->vocab_size < 1)
        return err_set(e, ERR_INVALID, "the description has no vocabulary");
    int rc = count_nodes(&t, &inner);
    if (rc == 0)
        rc = try_kinds(&t, &inner);
    /* what keeps a layer from running is for others to judge: what was not measured is not on */
    if (rc && rc != ERR_DEVICE)
        snprintf(t.why, sizeof t.why, "%.155s", inner.message);
    for (unsigned i = 0; i < FUSION_N; i++) {
        if (rc)
            out[i].pieces = 0;
        conclude(&t, (enum fusion)i, (wanted & FUSION_BIT(i)) != 0, f);
    }
    if (rc == ERR_DEVICE && e)
        *e = inner;
    return rc == ERR_DEVICE ? rc : ERR_OK;
}
