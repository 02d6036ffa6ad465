/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns `ops --from`: every operator of a model on the values that a trace recorded and on its real weights,
 * on the device and on the reference device, judged as in ops.c. Both get the same inputs, so errors do not
 * add up from layer to layer. Refuses to be silent about an operator that it could not run.
 */
#include "verify/ops_from.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "host/host.h"

#define DRAWS    8 /* of slightly other inputs, to see whether a choice hangs on rounding */
#define SLIGHTLY 0x1p-18f

struct walk {
    struct from f;
    struct dev *d, *ref;
    const struct verify_from_options *o;
    struct verify_from_result *out;
    struct findings *findings;
};

/* ---- choices that hang on rounding ---- */

static bool same_choice(const struct opcase *c, const struct opresult *a, const struct opresult *b,
                        size_t row)
{
    for (uint32_t o = 0; o < c->n_outputs; o++)
        if (c->ints[o] && memcmp(a->out[o] + row * c->out_width[o], b->out[o] + row * c->out_width[o],
                                 c->out_width[o] * sizeof(float)) != 0)
            return false;
    return true;
}

static void shake(struct opcase *c, void *const *whole, struct rng *rng)
{
    for (uint32_t i = 0; i < c->g->n_values; i++) {
        if (!whole[i])
            continue;
        const float *from = whole[i];
        float *to = c->data[i];
        for (uint64_t k = 0; k < c->bytes[i] / sizeof *to; k++)
            to[k] = from[k] * (1 + (rng_next(rng) & 1 ? SLIGHTLY : -SLIGHTLY));
    }
}

/* The reference on inputs that differ by so little that only rounding could; rows where it chooses otherwise
 * are marked. */
static int find_loose(struct row_test *t, struct opsession *ref, struct opcase *c, uint8_t *loose,
                      struct err *e)
{
    void *whole[OPCASE_VALUES] = {NULL};
    struct rng rng;
    int rc = ERR_OK;
    rng_init(&rng, 1);
    for (uint32_t i = 0; rc == 0 && i < c->g->n_values; i++) {
        const struct d0_value *v = &c->g->values[i];
        if (v->kind != D0_VALUE_INPUT || v->dtype != D0_F32 || v->role != D0_INPUT_HIDDEN)
            continue;
        if (!(whole[i] = malloc(c->bytes[i] ? (size_t)c->bytes[i] : 1)))
            rc = err_set(e, ERR_NOMEM, "no memory for a copy of rows");
        else
            memcpy(whole[i], c->data[i], (size_t)c->bytes[i]);
    }
    for (unsigned draw = 0; rc == 0 && draw < DRAWS; draw++) {
        uint32_t ignored;
        shake(c, whole, &rng);
        rc = opsession_run(ref, c, &t->alone, &ignored, e);
        for (int64_t r = 0; rc == 0 && r < c->dims[0]; r++)
            loose[r] |= !same_choice(c, &t->want, &t->alone, (size_t)r);
    }
    for (uint32_t i = 0; i < c->g->n_values; i++) {
        if (whole[i])
            memcpy(c->data[i], whole[i], (size_t)c->bytes[i]);
        free(whole[i]);
    }
    return rc;
}

/* A row whose choice the device made otherwise, and that a rounding decides, is taken from the reference;
 * they are counted. */
static int settle_choices(struct row_test *t, struct opsession *ref, struct opcase *c, uint64_t *settled,
                          struct err *e)
{
    bool any = false;
    for (int64_t r = 0; r < c->dims[0]; r++)
        any |= !same_choice(c, &t->want, &t->got, (size_t)r);
    if (!any)
        return ERR_OK;
    uint8_t *loose = calloc((size_t)c->dims[0] + 1, 1);
    if (!loose)
        return err_set(e, ERR_NOMEM, "no memory for rows");
    int rc = find_loose(t, ref, c, loose, e);
    for (int64_t r = 0; rc == 0 && r < c->dims[0]; r++) {
        if (!loose[r] || same_choice(c, &t->want, &t->got, (size_t)r))
            continue;
        ++*settled;
        for (uint32_t o = 0; o < c->n_outputs; o++)
            memcpy(t->got.out[o] + (size_t)r * c->out_width[o], t->want.out[o] + (size_t)r * c->out_width[o],
                   c->out_width[o] * sizeof(float));
    }
    free(loose);
    return rc;
}

/* ---- one node ---- */

static int run_chunk(struct walk *w, struct from_case *x, struct opsession *dut, struct opsession *ref,
                     struct row_test *t, uint32_t first, uint32_t n, struct verify_from_node *r,
                     struct err *e)
{
    uint32_t touched, ignored;
    int rc;
    if (dut) {
        rc = optest_execute(t, dut, ref, &x->c, &touched, e);
        if (rc == 0)
            rc = settle_choices(t, ref, &x->c, &r->settled, e);
        if (rc == 0)
            optest_judge(t, &x->c);
        if (rc == ERR_DEVICE || rc == ERR_UNSUPPORTED || rc == ERR_TIMEOUT || rc == ERR_INVALID)
            rc = optest_device_failed(t, &x->c, rc, e);
    } else { /* not asked for, but its output is */
        rc = optest_room(t, &x->c, e);
        if (rc == 0)
            rc = opsession_run(ref, &x->c, &t->want, &ignored, e);
    }
    return rc ? rc : from_case_keep(&w->f, x, first, n, &t->want, e);
}

static int run_case(struct walk *w, struct from_case *x, struct row_test *t, bool judged,
                    struct verify_from_node *r, struct err *e)
{
    struct opsession dut = {0}, ref = {0};
    struct err inner = {0};
    int rc = opsession_open(&ref, w->ref, &x->c, false, e);
    if (rc == 0 && judged && (rc = opsession_open(&dut, w->d, &x->c, false, &inner)) != 0) {
        rc = optest_device_failed(t, &x->c, rc, &inner);
        judged = false;
    }
    for (uint32_t first = 0, n = 0; rc == 0 && first < w->f.tokens; first += n) {
        inner = (struct err){0};
        rc = from_case_fill(&w->f, x, first, &n, &inner);
        if (rc == 0)
            rc = run_chunk(w, x, judged ? &dut : NULL, &ref, t, first, n, r, &inner);
        optest_free(t);
        if (rc == 0)
            r->rows += n;
    }
    if (rc && inner.code == rc && e)
        *e = inner;
    opsession_close(&dut);
    opsession_close(&ref);
    return rc;
}

static void copy_verdict(struct verify_from_node *r, const struct verify_op_result *from)
{
    r->max_ulp = from->max_ulp;
    r->state = from->passed ? FROM_RIGHT : FROM_WRONG;
    snprintf(r->why, sizeof r->why, "%s", from->why);
}

/* What kept a node from being judged is told; only what keeps all of them from it is an error. */
static int not_judged(struct verify_from_node *r, int rc, struct err *e)
{
    if (rc != ERR_NOMEM && rc != ERR_UNSUPPORTED && rc != ERR_LIMIT)
        return rc;
    r->state = FROM_NOT_JUDGED;
    snprintf(r->why, sizeof r->why, "%.200s", e->message);
    return ERR_OK;
}

static bool node_wanted(const struct walk *w, const struct verify_from_node *r)
{
    return !w->o->only || !*w->o->only || strstr(r->op, w->o->only) != NULL;
}

/* Does a later node need what only this one gives? */
static bool needed(const struct walk *w, uint32_t node)
{
    const struct d0_node *n = &w->f.g->nodes[node];
    bool any = n->n_outputs == 0;
    for (uint32_t k = 0; k < n->n_outputs; k++)
        any |= !w->f.known[n->outputs[k]] && w->f.last[n->outputs[k]] != D0_NO_VALUE;
    for (uint32_t k = 0; k < n->n_inputs; k++)
        any |= n->inputs[k] != D0_NO_VALUE && w->f.g->values[n->inputs[k]].kind == D0_VALUE_STATE;
    return any;
}

static bool supported(struct walk *w, const struct from_case *x, struct verify_from_node *r)
{
    struct d0_part part;
    char reason[96] = "";
    graph_part(x->c.g, &part);
    if (dev_supports(w->d, &part, 0, reason, sizeof reason))
        return true;
    r->state = FROM_NOT_JUDGED;
    snprintf(r->why, sizeof r->why, "the device does not run it: %s", reason);
    return false;
}

static int walk_node(struct walk *w, uint32_t node, struct err *e)
{
    const struct graph *g = w->f.g;
    const struct d0_node *n = &g->nodes[node];
    struct verify_from_node *r = &w->out->nodes[w->out->n_nodes];
    struct verify_op_result judged = {.passed = true};
    struct row_test t = {.d = w->d, .ref = w->ref, .op = op_find(n->op), .values = "recorded", .r = &judged};
    struct from_case x = {0};
    struct opshape s;
    char type[48];
    struct err inner = {0};
    *r = (struct verify_from_node){.node = node, .layer = n->layer, .limit_ulp = t.op->tolerance_ulp};
    r->name = n->n_outputs ? g->info[n->outputs[0]].name : t.op->name;
    memset(&s, 0, sizeof s);
    opshape_whole_node(g, n, &s);
    snprintf(r->op, sizeof r->op, "%s%s%s", t.op->name, s.type.dtype ? " " : "",
             optype_name(&s.type, type, sizeof type));
    const bool asked = node_wanted(w, r);
    if (!asked && !needed(w, node))
        return ERR_OK;
    int rc = ERR_OK;
    if (!from_has_inputs(&w->f, node, r->why, sizeof r->why)) {
        r->state = FROM_NOT_JUDGED;
    } else {
        rc = from_case_open(&w->f, node, &x, &inner);
        const bool judge = rc == 0 && asked && supported(w, &x, r);
        if (rc == 0)
            rc = run_case(w, &x, &t, judge, r, &inner);
        if (rc == 0 && r->state != FROM_NOT_JUDGED)
            copy_verdict(r, &judged);
        if (rc)
            rc = not_judged(r, rc, &inner);
    }
    r->largest_input = x.largest;
    r->recorded = x.recorded;
    r->computed = x.computed;
    from_case_close(&x);
    w->out->n_nodes += asked;
    if (rc && e)
        *e = inner;
    if (rc)
        err_ctx(e, "running %s of layer %d", r->name, n->layer);
    return rc;
}

/* ---- opening ---- */

static int take_known(struct walk *w, struct err *e)
{
    struct from *f = &w->f;
    uint8_t *positional = calloc(f->g->n_nodes + (size_t)1, 1);
    if (!positional)
        return err_set(e, ERR_NOMEM, "no memory for a graph of %u nodes", f->g->n_nodes);
    int rc = graph_positional(f->g, positional, e);
    for (uint32_t i = 0; rc == 0 && i < f->g->n_nodes; i++)
        for (uint32_t k = 0; !positional[i] && k < f->g->nodes[i].n_outputs; k++) {
            const uint32_t v = f->g->nodes[i].outputs[k];
            const struct d0_value *x = &f->g->values[v];
            const struct trace_tensor *t = oracle_trace_of(f->t, f->g, v);
            if (!t || x->n_dims != 2)
                continue;
            if (t->width != (uint64_t)x->dims[1] || (t->dtype == D0_I32) != (x->dtype == D0_I32)) {
                finding_add(w->findings, FINDING_N006, w->o->trace, "its %s is %llu wide, the model's %lld",
                            t->name, (unsigned long long)t->width, (long long)x->dims[1]);
                w->out->refused = true;
                free(positional);
                return ERR_OK;
            }
            f->known[v] = t;
            w->out->recorded++;
        }
    free(positional);
    return rc;
}

static int prepare(struct walk *w, struct arena *arena, struct err *e)
{
    struct from *f = &w->f;
    const size_t n = f->g->n_values + (size_t)1;
    f->known = arena_alloc_n(arena, n, sizeof *f->known);
    f->from_model = arena_alloc(arena, n);
    f->last = arena_alloc_n(arena, n, sizeof *f->last);
    f->kept = arena_alloc_n(arena, n, sizeof *f->kept);
    f->state = arena_alloc_n(arena, n, sizeof *f->state);
    f->state_bytes = arena_alloc_n(arena, n, sizeof *f->state_bytes);
    w->out->nodes = arena_alloc_n(arena, f->g->n_nodes + (size_t)1, sizeof *w->out->nodes);
    if (!f->known || !f->from_model || !f->last || !f->kept || !f->state || !f->state_bytes || !w->out->nodes)
        return err_set(e, ERR_NOMEM, "no memory for a graph of %u nodes", f->g->n_nodes);
    memset(f->from_model, 1, n);
    memset(f->last, 0xff, n * sizeof *f->last);
    f->columns = 1;
    for (uint32_t i = 0; i < f->g->n_nodes; i++) {
        struct opshape s;
        const struct d0_node *node = &f->g->nodes[i];
        for (uint32_t k = 0; k < node->n_outputs; k++)
            f->from_model[node->outputs[k]] = 0;
        for (uint32_t k = 0; k < node->n_inputs; k++)
            if (node->inputs[k] != D0_NO_VALUE)
                f->last[node->inputs[k]] = i;
        if (opshape_whole_node(f->g, node, &s) && opshape_columns(&s, f->tokens) > f->columns)
            f->columns = opshape_columns(&s, f->tokens);
    }
    return take_known(w, e);
}

static void check_ids(struct walk *w)
{
    for (uint32_t i = 0; i < w->f.tokens && !w->out->refused; i++)
        if (w->f.t->ids[i] < 0 || w->f.t->ids[i] >= w->o->spec->vocab_size) {
            finding_add(w->findings, FINDING_N006, w->o->trace, "token %u has id %d, the vocabulary has %lld",
                        i, w->f.t->ids[i], (long long)w->o->spec->vocab_size);
            w->out->refused = true;
        }
}

/* ---- what is said ---- */

static bool worse(const struct verify_from_node *a, const struct verify_from_node *b)
{
    return a->state != b->state ? (a->state == FROM_WRONG) > (b->state == FROM_WRONG)
                                : a->max_ulp > b->max_ulp;
}

/* One line for each operator and type, about its worst layer; one finding for each that is wrong. */
static int sum_up(struct walk *w, struct arena *arena, struct err *e)
{
    struct verify_from_result *out = w->out;
    out->ops = arena_alloc_n(arena, out->n_nodes + 1, sizeof *out->ops);
    if (!out->ops)
        return err_set(e, ERR_NOMEM, "no memory for the results of operators");
    for (size_t i = 0; i < out->n_nodes; i++) {
        const struct verify_from_node *x = &out->nodes[i];
        size_t k = 0;
        while (k < out->n_ops && strcmp(out->ops[k].worst->op, x->op) != 0)
            k++;
        struct verify_from_op *op = &out->ops[k];
        if (k == out->n_ops) {
            *op = (struct verify_from_op){.worst = x};
            out->n_ops++;
        }
        op->nodes++;
        op->wrong += x->state == FROM_WRONG;
        op->not_judged += x->state == FROM_NOT_JUDGED;
        op->settled += x->settled;
        if (op->worst->state == FROM_NOT_JUDGED || (x->state != FROM_NOT_JUDGED && worse(x, op->worst)))
            op->worst = x;
        out->judged += x->state != FROM_NOT_JUDGED;
        out->wrong += x->state == FROM_WRONG;
        out->not_judged += x->state == FROM_NOT_JUDGED;
        out->computed += x->computed;
    }
    for (size_t k = 0; k < out->n_ops; k++) {
        const struct verify_from_node *x = out->ops[k].worst;
        if (x->state == FROM_WRONG)
            finding_add(w->findings, FINDING_N003, x->op,
                        "layer %d, %s: %s; largest input %.3g; wrong in %u of %u places", x->layer, x->name,
                        x->why, x->largest_input, out->ops[k].wrong, out->ops[k].nodes);
    }
    return ERR_OK;
}

static int run(struct walk *w, struct arena *arena, struct err *e)
{
    struct from *f = &w->f;
    const struct verify_from_options *o = w->o;
    int rc = trace_open(&f->t, o->trace, e);
    if (rc)
        return rc;
    w->out->producer = arena_strdup(arena, f->t->producer);
    w->out->tokens_recorded = f->t->n_ids;
    w->out->tokens = o->tokens && o->tokens < f->t->n_ids ? o->tokens : f->t->n_ids;
    f->tokens = (uint32_t)w->out->tokens;
    f->budget = o->memory;
    if (!f->budget) {
        if (!host_memory_available(&f->budget))
            f->budget = UINT64_MAX / 16;
        f->budget -= f->budget / 10;
    }
    check_ids(w);
    if (!w->out->refused)
        rc = prepare(w, arena, e);
    for (uint32_t i = 0; rc == 0 && !w->out->refused && i < f->g->n_nodes; i++) {
        rc = walk_node(w, i, e);
        from_drop(f, i);
    }
    return rc ? rc : sum_up(w, arena, e);
}

int verify_ops_from(struct dev *d, const struct verify_from_options *o, struct arena *arena,
                    struct verify_from_result *out, struct findings *f, struct err *e)
{
    struct dev ref;
    *out = (struct verify_from_result){0};
    if (!d->computes)
        return err_set(e, ERR_UNSUPPORTED, "device %s computes nothing: there is nothing to verify",
                       d->api->name);
    int rc = dev_open(&ref, &(struct dev_options){.name = "cpu", .isa = "ref"}, e);
    if (rc) {
        err_ctx(e, "opening the reference device");
        return rc;
    }
    struct walk w = {
        .f = {.o = o, .g = o->spec->graph}, .d = d, .ref = &ref, .o = o, .out = out, .findings = f};
    rc = run(&w, arena, e);
    from_release(&w.f);
    dev_close(&ref);
    return rc;
}
