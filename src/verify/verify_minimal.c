/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns minimal validation: one piece of the model at a time (embedding, one layer of each kind, head), with
 * its real weights, on a device and on the reference device. Both get the same inputs, the reference's own
 * results of the piece before, so that errors do not add up. Memory is bounded by the largest piece; a piece
 * that does not fit is told, not tried.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/str.h"
#include "base/thread.h"
#include "verify/layer_kinds.h"
#include "verify/runner.h"
#include "verify/shared_weights.h"

#define MINIMAL_TOKENS   8
#define MINIMAL_PRODUCTS 2500000000ull /* of the reference device, about two seconds on two cores */
#define MINIMAL_KINDS    16
#define MINIMAL_LIMIT    1e-4
#define MINIMAL_LIMIT_16                                                                                     \
    0x1p-9 /* with 16-bit KV pages: a difference in the last bit may round to another neighbour */
#define MINIMAL_MAX_PROBE 256

/* What one device gave for a piece. */
struct capture {
    size_t n;
    char name[MINIMAL_MAX_PROBE][96];
    float *data[MINIMAL_MAX_PROBE];
    size_t rows[MINIMAL_MAX_PROBE], width[MINIMAL_MAX_PROBE];
};

struct minimal {
    struct dev *d, ref;
    const struct spec *s;
    struct ckpt *c;
    uint64_t budget;
    struct findings *f;
    struct d0 *d0;
    float *hidden; /* [MINIMAL_TOKENS, hidden]: input of the next piece */
    double limit;
};

/* ---- one piece on one device ---- */

static void capture_free(struct capture *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->data[i]);
    c->n = 0;
}

static int capture_add(struct capture *c, const char *name, size_t floats, struct err *e)
{
    float *data = malloc((floats ? floats : 1) * sizeof *data);
    if (!data)
        return err_set(e, ERR_NOMEM, "no memory for %zu values of %s", floats, name);
    c->data[c->n] = data;
    snprintf(c->name[c->n++], sizeof c->name[0], "%s", name);
    return ERR_OK;
}

/* All probes, then the result under the name "". */
static int capture_read(struct capture *c, struct runner *r, size_t floats, struct err *e)
{
    int rc = ERR_OK;
    for (size_t i = 0; rc == 0 && i < engine_probes(r->x) && c->n < MINIMAL_MAX_PROBE - 1; i++) {
        size_t at = c->n;
        rc = capture_add(c, engine_probe_name(r->x, i), floats, e);
        if (rc == 0)
            rc = engine_probe_read(r->x, i, c->data[at], floats, &c->rows[at], &c->width[at], e);
    }
    size_t at = c->n;
    if (rc == 0)
        rc = capture_add(c, "", floats, e);
    return rc ? rc : engine_read_result(r->x, c->data[at], floats, &c->rows[at], &c->width[at], e);
}

/* Hidden inputs: the residual stream where the width is the model's, else fixed small numbers. */
static int set_hidden(struct minimal *m, struct runner *r, const struct graph *g, uint32_t tokens,
                      struct err *e)
{
    uint32_t index = 0;
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == 0 && i < g->n_values; i++) {
        const struct d0_value *v = &g->values[i];
        if (v->kind != D0_VALUE_INPUT || v->role != D0_INPUT_HIDDEN)
            continue;
        size_t width = v->dims[1] > 0 ? (size_t)v->dims[1] : 0;
        if (width == (size_t)m->s->hidden) {
            rc = engine_set_hidden(r->x, index++, m->hidden, tokens, width, e);
            continue;
        }
        float *x = malloc((width ? width : 1) * tokens * sizeof *x);
        for (size_t k = 0; x && k < width * tokens; k++)
            x[k] = (float)(rng_f64(index, k) - 0.5);
        rc = x ? engine_set_hidden(r->x, index++, x, tokens, width, e)
               : err_set(e, ERR_NOMEM, "no memory for a hidden input");
        free(x);
    }
    return rc;
}

static size_t piece_floats(const struct graph *g, uint32_t tokens)
{
    uint64_t widest = 1, n;
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].n_dims == 2 && g->values[i].kind != D0_VALUE_WEIGHT && g->values[i].dims[1] > 0 &&
            (uint64_t)g->values[i].dims[1] > widest)
            widest = (uint64_t)g->values[i].dims[1];
    return mul_u64(widest, tokens, &n) && n < SIZE_MAX / 8 ? (size_t)n : SIZE_MAX / 8;
}

static int run_piece(struct minimal *m, struct dev *d, const struct graph *g, const struct weights *w,
                     uint32_t tokens, struct capture *out, struct err *e)
{
    int32_t ids[MINIMAL_TOKENS];
    struct runner r = {0};
    struct step_result *res;
    bool logits = g->values[graph_result(g)].dims[0] == D0_DIM_ROWS;
    for (uint32_t i = 0; i < tokens; i++)
        ids[i] = (int32_t)((1 + 7919ull * i) % (uint64_t)m->s->vocab_size);
    struct runner_size size = {.tokens = tokens, .seqs = 1, .rows = 1, .context = tokens, .probes = true};
    struct runner_run run = {.tokens = ids, .n = tokens, .flags = logits ? STEP_LAST_LOGITS : 0};
    int rc = runner_open_graph(&r, d, g, w, &size, m->d0 ? &m->d0->mem : NULL, e);
    if (rc == 0)
        rc = set_hidden(m, &r, g, tokens, e);
    if (rc == 0)
        rc = runner_step(&r, &run, 1, &res, e);
    if (rc == 0)
        rc = capture_read(out, &r, piece_floats(g, tokens), e);
    runner_close(&r);
    return rc;
}

/* ---- judgement ---- */

static double row_error(const struct capture *a, const struct capture *b, size_t i)
{
    double worst = 0;
    for (size_t row = 0; row < b->rows[i]; row++) {
        struct metrics x;
        size_t at = row * b->width[i];
        metrics_compare(a->data[i] + at, b->data[i] + at, b->width[i], &x);
        worst = fmax(worst, x.n_nonfinite || !isfinite(x.relative_l2) ? INFINITY : x.relative_l2);
    }
    return worst;
}

static void judge_piece(struct minimal *m, const struct capture *got, const struct capture *want,
                        struct verify_piece *p)
{
    size_t last = want->n - 1;
    struct metrics x;
    metrics_compare(got->data[last], want->data[last], want->rows[last] * want->width[last], &x);
    p->relative_l2 = x.relative_l2;
    p->max_abs = x.max_abs;
    for (size_t i = 0; i < want->n && i < got->n; i++) {
        double error = row_error(got, want, i);
        if (error <= m->limit)
            continue;
        const char *name = want->name[i][0] ? want->name[i] : "result";
        snprintf(p->why, sizeof p->why, "%.90s: relative L2 of a row %.3g, limit %.3g", name, error,
                 m->limit);
        finding_add(m->f, FINDING_N003, name,
                    "%s: relative L2 of a row is %.3g against the reference device (limit %.3g)", p->name,
                    error, m->limit);
        return;
    }
}

/* The reference's result becomes the next input, unless it would spoil it. false, with a finding unless bad
 * weights have one: not finite. */
static bool pass_on(struct minimal *m, const struct capture *want, bool bad_weights, struct verify_piece *p)
{
    size_t last = want->n - 1, n = want->rows[last] * want->width[last];
    for (size_t k = 0; k < n; k++) {
        if (isfinite(want->data[last][k]))
            continue;
        if (!p->why[0])
            snprintf(p->why, sizeof p->why, "the result holds NaN or infinity on both devices");
        if (!bad_weights)
            finding_add(m->f, FINDING_N002, p->name,
                        "value %zu of the result is not finite, also on the reference device", k);
        return false;
    }
    /* fewer tokens may have run here than the next piece takes: the rest keeps its first values */
    if (want->width[last] == (size_t)m->s->hidden && want->rows[last] <= MINIMAL_TOKENS)
        memcpy(m->hidden, want->data[last], n * sizeof(float));
    return true;
}

/* ---- pieces ---- */

static uint32_t choose_tokens(const struct graph *g)
{
    uint64_t products = 1;
    for (uint32_t i = 0; i < g->n_values; i++) {
        uint64_t n;
        if (g->values[i].kind == D0_VALUE_WEIGHT && g->values[i].n_dims == 2 &&
            shape_elements(g->values[i].dims, 2, &n))
            products += n;
    }
    uint64_t tokens = MINIMAL_PRODUCTS / products;
    return tokens < 2 ? 2 : (tokens > MINIMAL_TOKENS ? MINIMAL_TOKENS : (uint32_t)tokens);
}

static int run_both(struct minimal *m, const struct graph *g, struct verify_piece *p, struct err *e)
{
    struct shared_weights w;
    const struct weights *on;
    uint32_t tokens = choose_tokens(g);
    struct capture *got = calloc(2, sizeof *got), *want = got + 1;
    if (!got)
        return err_set(e, ERR_NOMEM, "no memory for the results of a piece");
    int rc = shared_weights_open(&w, g, m->c, m->s, m->d, &m->ref, e);
    if (rc) {
        free(got);
        return rc;
    }
    rc = shared_weights_on(&w, 0, m->d, &on, e);
    if (rc == 0)
        rc = run_piece(m, m->d, g, on, tokens, got, e);
    if (rc == 0)
        rc = shared_weights_on(&w, 1, &m->ref, &on, e);
    if (rc == 0)
        rc = run_piece(m, &m->ref, g, on, tokens, want, e);
    if (rc == 0) {
        p->ran = true;
        p->all_zero = w.all_zero;
        if (w.not_finite)
            finding_add(m->f, FINDING_W016, w.not_finite, "NaN or infinity in the weights of %s", p->name);
        judge_piece(m, got, want, p);
        if (pass_on(m, want, w.not_finite != NULL, p) && p->all_zero && !p->why[0])
            snprintf(p->why, sizeof p->why, "all weights are zero: proves nothing");
    }
    shared_weights_close(&w);
    capture_free(got);
    capture_free(want);
    free(got);
    return rc;
}

/* Whether it fits the budget: weights once, and on each device in turn activations and messages. */
static int fits(struct minimal *m, const struct graph *g, struct verify_piece *p, bool *yes, struct err *e)
{
    struct graph *copy;
    int64_t dims[D0_N_DIMS] = {MINIMAL_TOKENS, 1, 1, MINIMAL_TOKENS};
    uint64_t extra = (uint64_t)piece_floats(g, MINIMAL_TOKENS) * sizeof(float) * 4;
    int rc = shared_weights_bytes(g, m->c, m->s, &p->weight_bytes, e);
    if (rc == 0)
        rc = graph_copy(g, &copy, e);
    if (rc)
        return rc;
    rc = graph_plan_memory(copy, dims, true, e);
    extra += 2 * copy->scratch_bytes;
    graph_free(copy);
    const uint64_t need = sat_add(p->weight_bytes, extra);
    *yes = rc == 0 && (m->budget == 0 || need <= m->budget);
    char want[32], have[32];
    if (rc == 0 && !*yes)
        snprintf(p->why, sizeof p->why, "needs %s, has %s", format_bytes(need, want, sizeof want),
                 format_bytes(m->budget, have, sizeof have));
    return rc;
}

static int try_piece(struct minimal *m, int32_t first, int32_t last, unsigned flags, struct verify_piece *p,
                     struct err *e)
{
    struct graph *g = NULL;
    bool yes = false;
    uint64_t begin = clock_ns();
    struct err inner = {0};
    int rc = graph_slice(m->s->graph, first, last, flags, &g, &inner);
    if (rc == 0)
        rc = fits(m, g, p, &yes, &inner);
    if (rc == 0 && yes)
        rc = run_both(m, g, p, &inner);
    graph_free(g);
    p->seconds = (double)(clock_ns() - begin) * 1e-9;
    /* what is missing or does not fit is for others to judge; it keeps this piece from running, not the rest
     */
    if (rc == ERR_NOMEM || rc == ERR_MISSING || rc == ERR_MISMATCH || rc == ERR_UNSUPPORTED ||
        rc == ERR_INVALID || rc == ERR_LIMIT) {
        snprintf(p->why, sizeof p->why, "%.155s", inner.message);
        return ERR_OK;
    }
    if (rc && e)
        *e = inner;
    return rc;
}

static int run_pieces(struct minimal *m, const struct layer_kind *kinds, size_t n_kinds,
                      struct verify_piece *p, size_t *n, struct err *e)
{
    snprintf(p[*n].name, sizeof p[*n].name, "embedding");
    int rc = try_piece(m, 0, -1, GRAPH_PROLOGUE, &p[(*n)++], e);
    for (size_t i = 0; rc == 0 && i < n_kinds; i++) {
        snprintf(p[*n].name, sizeof p[*n].name, "layer %d (%u of this kind)", kinds[i].layer, kinds[i].count);
        rc = try_piece(m, kinds[i].layer, kinds[i].layer, 0, &p[(*n)++], e);
    }
    snprintf(p[*n].name, sizeof p[*n].name, "norm and head");
    return rc ? rc : try_piece(m, 0, -1, GRAPH_EPILOGUE, &p[(*n)++], e);
}

int verify_minimal(struct dev *d, const struct spec *s, struct ckpt *c, uint64_t memory_budget,
                   struct arena *arena, struct verify_piece **pieces, size_t *n, struct findings *f,
                   struct d0 *d0, struct err *e)
{
    struct layer_kind kinds[MINIMAL_KINDS];
    struct minimal m = {.d = d, .s = s, .c = c, .budget = memory_budget, .f = f, .d0 = d0};
    size_t n_kinds = layer_kinds(s->graph, kinds, MINIMAL_KINDS), floats = (size_t)s->hidden * MINIMAL_TOKENS;
    *n = 0;
    if (!d->computes)
        return err_set(e, ERR_UNSUPPORTED, "device %s computes nothing: there is nothing to validate",
                       d->api->name);
    if (s->hidden < 1 || s->vocab_size < 1)
        return err_set(e, ERR_INVALID, "the description has no hidden size or no vocabulary");
    m.limit = fmax(s->kv_dtype == D0_F32 ? MINIMAL_LIMIT : MINIMAL_LIMIT_16,
                   spec_activation_limit(spec_activation_bits(s->graph)));
    *pieces = arena_alloc_n(arena, n_kinds + 2, sizeof **pieces);
    m.hidden = malloc(floats * sizeof *m.hidden);
    if (!*pieces || !m.hidden) {
        free(m.hidden);
        return err_set(e, ERR_NOMEM, "no memory for minimal validation");
    }
    for (size_t i = 0; i < floats; i++)
        m.hidden[i] = (float)(2 * rng_f64(1, i) - 1);
    int rc = dev_open(&m.ref, &(struct dev_options){.name = "cpu", .isa = "ref"}, e);
    if (rc == 0) {
        rc = run_pieces(&m, kinds, n_kinds, *pieces, n, e);
        dev_close(&m.ref);
    }
    free(m.hidden);
    if (rc)
        err_ctx(e, "validating one layer of each kind");
    return rc;
}
