/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: a model against a trace, operator by operator. For each probe of the trace the operators between it
 * and the probes before it form a span; it is fed with the trace's own values, so that its input is right by
 * definition and errors do not add up. Where the trace is dense a span is one operator, and that one is
 * named. A row whose choice of experts or keys was nearly a tie is not judged where its span holds that
 * choice. Refuses a trace of another model; a span that does not fit into memory is told, not tried.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/compare_impl.h"
#include "oracle/near_tie.h"
#include "oracle/stream.h"

struct target { /* one span; its number is the group of its pieces */
    uint32_t value;
    const struct trace_tensor *want;
    size_t first_piece;
    struct compare_probe *probe;
    struct compare_sums sums;
    enum compare_kind kind;
    uint32_t ids;      /* the choice that its weights belong to, or D0_NO_VALUE */
    uint8_t *excluded; /* [rows], or NULL: all are judged */
};

struct against {
    const struct oracle_model *m;
    const struct trace *t;
    const struct graph *g;
    struct stream stream;
    struct arena *arena;
    struct compare_result *out;
    struct findings *f;
    struct compare_limits limits;
    const struct trace_tensor **known; /* by value: what the trace holds of it */
    uint32_t *stamp;                   /* by node: number of the last span that took it, plus one */
    uint32_t *stack;                   /* [n_nodes] */
    uint8_t *wanted;                   /* by node: in any span */
    unsigned char **kept;              /* by value: between pieces of the span that runs */
    uint32_t *nodes;                   /* [n_nodes] of one span */
    struct target *targets;
    size_t n_targets;
    float *rows; /* [rows_cap] of the trace, then those measured */
    size_t rows_cap;
    struct choice_rules rules;
    uint8_t **near;   /* by rule: rows that are nearly ties; NULL: not known */
    uint8_t *tainted; /* by value: what follows from a near tie within a span */
    bool refused;     /* a finding says why */
};

/* ---- what the trace knows ---- */

/* false: a finding says why this is a trace of another model. */
static bool find_all_known(struct against *a)
{
    for (uint32_t i = 0; i < a->g->n_nodes; i++)
        for (uint32_t k = 0; !a->stream.positional[i] && k < a->g->nodes[i].n_outputs; k++) {
            uint32_t v = a->g->nodes[i].outputs[k];
            const struct d0_value *x = &a->g->values[v];
            const struct trace_tensor *t = oracle_trace_of(a->t, a->g, v);
            if (!t || x->n_dims != 2)
                continue;
            if (t->width != (uint64_t)x->dims[1] || (t->dtype == D0_I32) != (x->dtype == D0_I32)) {
                finding_add(a->f, FINDING_N006, a->t->path, "its %s is %llu wide, the model's %lld", t->name,
                            (unsigned long long)t->width, (long long)x->dims[1]);
                return false;
            }
            a->known[v] = t;
        }
    return true;
}

/* ---- spans ---- */

static void take(struct against *a, uint32_t node, uint32_t mark, uint32_t *n_stack, uint32_t *n)
{
    if (a->stream.positional[node] || a->stamp[node] == mark)
        return;
    a->stamp[node] = mark;
    a->stack[(*n_stack)++] = node;
    a->nodes[(*n)++] = node;
}

/* Whoever has no output is there for the state it writes. */
static void take_writers(struct against *a, uint32_t state, uint32_t reader, uint32_t mark, uint32_t *n_stack,
                         uint32_t *n)
{
    for (uint32_t i = 0; i < reader; i++)
        for (uint32_t k = 0; a->g->nodes[i].n_outputs == 0 && k < a->g->nodes[i].n_inputs; k++)
            if (a->g->nodes[i].inputs[k] == state)
                take(a, i, mark, n_stack, n);
}

static int by_node(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

/* Back from the value to what the trace knows. Nodes ascending. */
static uint32_t span_of(struct against *a, uint32_t value, uint32_t mark)
{
    uint32_t n_stack = 0, n = 0;
    take(a, a->stream.maker[value], mark, &n_stack, &n);
    while (n_stack) {
        uint32_t i = a->stack[--n_stack];
        const struct d0_node *node = &a->g->nodes[i];
        for (uint32_t k = 0; k < node->n_inputs; k++) {
            uint32_t v = node->inputs[k];
            if (v == D0_NO_VALUE)
                continue;
            if (a->g->values[v].kind == D0_VALUE_STATE && node->n_outputs)
                take_writers(a, v, i, mark, &n_stack, &n);
            if (a->stream.maker[v] != D0_NO_VALUE && !a->known[v])
                take(a, a->stream.maker[v], mark, &n_stack, &n);
        }
    }
    qsort(a->nodes, n, sizeof *a->nodes, by_node);
    return n;
}

/* "linear", "rope, kv_store, attention", "9 operators from embed to glu", "... of layers 0 to 2" */
static const char *name_operators(const struct against *a, uint32_t n)
{
    struct strbuf b = STRBUF_INIT;
    if (n > 6)
        strbuf_printf(&b, "%u operators from %s to %s", n, op_find(a->g->nodes[a->nodes[0]].op)->name,
                      op_find(a->g->nodes[a->nodes[n - 1]].op)->name);
    for (uint32_t i = 0; n <= 6 && i < n; i++)
        strbuf_printf(&b, "%s%s", i ? ", " : "", op_find(a->g->nodes[a->nodes[i]].op)->name);
    int32_t first = INT32_MAX, last = -1;
    for (uint32_t i = 0; i < n; i++) {
        const int32_t layer = a->g->nodes[a->nodes[i]].layer;
        first = layer >= 0 && layer < first ? layer : first;
        last = layer > last ? layer : last;
    }
    if (last > first) /* the layer of the probe is not all that may be wrong */
        strbuf_printf(&b, " of layers %d to %d", first, last);
    char *text = strbuf_failed(&b) ? NULL : arena_strdup(a->arena, strbuf_cstr(&b));
    strbuf_release(&b);
    return text;
}

static void add_weight(const struct against *a, uint32_t v, struct strbuf *b, unsigned *said)
{
    if (a->g->values[v].kind != D0_VALUE_WEIGHT || (b->data && strstr(b->data, a->g->info[v].name)))
        return;
    if (*said < 3)
        strbuf_printf(b, "%s%s", *said ? ", " : "", a->g->info[v].name);
    ++*said;
}

/* What the operators of a span read of the checkpoint or of tables: one of these may be wrong as well. */
static const char *name_weights(const struct against *a, uint32_t n)
{
    struct strbuf b = STRBUF_INIT;
    unsigned said = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct d0_node *node = &a->g->nodes[a->nodes[i]];
        for (uint32_t k = 0; k < node->n_inputs; k++) {
            uint32_t v = node->inputs[k], at = v == D0_NO_VALUE ? D0_NO_VALUE : a->stream.maker[v];
            if (v != D0_NO_VALUE)
                add_weight(a, v, &b, &said);
            for (uint32_t j = 0;
                 at != D0_NO_VALUE && a->stream.positional[at] && j < a->g->nodes[at].n_inputs; j++)
                if (a->g->nodes[at].inputs[j] != D0_NO_VALUE)
                    add_weight(a, a->g->nodes[at].inputs[j], &b, &said);
        }
    }
    if (said > 3)
        strbuf_printf(&b, " and %u more", said - 3);
    char *text = strbuf_failed(&b) ? NULL : arena_strdup(a->arena, said ? strbuf_cstr(&b) : "");
    strbuf_release(&b);
    return text;
}

/* The probes that enter a span, or "token ids". */
static const char *name_inputs(const struct against *a, uint32_t n)
{
    struct strbuf b = STRBUF_INIT;
    unsigned said = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct d0_node *node = &a->g->nodes[a->nodes[i]];
        for (uint32_t k = 0; k < node->n_inputs; k++) {
            uint32_t v = node->inputs[k];
            const struct trace_tensor *t = v == D0_NO_VALUE ? NULL : a->known[v];
            if (!t || (b.data && strstr(b.data, t->name)))
                continue;
            if (said < 4)
                strbuf_printf(&b, "%s%s", said ? ", " : "", t->name);
            said++;
        }
    }
    if (said > 4)
        strbuf_printf(&b, " and %u more", said - 4);
    char *text = strbuf_failed(&b) ? NULL : arena_strdup(a->arena, said ? strbuf_cstr(&b) : "token ids");
    strbuf_release(&b);
    return text;
}

/* ---- near ties ---- */

/* A state that is written takes it to later rows. */
static bool writes_state(const struct against *a, const struct d0_node *n)
{
    bool state = false;
    for (uint32_t k = 0; k < n->n_inputs; k++)
        state |= n->inputs[k] != D0_NO_VALUE && a->g->values[n->inputs[k]].kind == D0_VALUE_STATE;
    return state && (n->n_outputs == 0 || n->op == D0_OP_SHORT_CONV || n->op == D0_OP_DELTA_RULE);
}

/* Does the choice of node `from`, of the span of n nodes, reach the value? *later: other rows than its own.
 */
static bool reaches(struct against *a, uint32_t n, uint32_t from, uint32_t value, bool *later)
{
    memset(a->tainted, 0, a->g->n_values + (size_t)1);
    *later = false;
    for (uint32_t i = 0; i < n; i++) {
        const struct d0_node *node = &a->g->nodes[a->nodes[i]];
        bool hit = a->nodes[i] == from;
        for (uint32_t k = 0; k < node->n_inputs; k++)
            hit |= node->inputs[k] != D0_NO_VALUE && a->tainted[node->inputs[k]];
        if (hit && writes_state(a, node)) {
            *later = true;
            for (uint32_t k = 0; k < node->n_inputs; k++)
                if (node->inputs[k] != D0_NO_VALUE && a->g->values[node->inputs[k]].kind == D0_VALUE_STATE)
                    a->tainted[node->inputs[k]] = 1;
        }
        for (uint32_t k = 0; hit && k < node->n_outputs; k++)
            a->tainted[node->outputs[k]] = !a->known[node->outputs[k]] || node->outputs[k] == value;
    }
    return a->tainted[value];
}

static int exclude_rows(struct against *a, struct target *t, uint32_t n, struct err *e)
{
    for (size_t i = 0; i < a->rules.n; i++) {
        const struct choice_rule *r = &a->rules.list[i];
        const size_t rows = a->t->n_ids;
        const uint8_t *first = a->near[i] ? memchr(a->near[i], 1, rows) : NULL;
        bool later;
        if (!first || !bsearch(&r->node, a->nodes, n, sizeof r->node, by_node) ||
            !reaches(a, n, r->node, t->value, &later))
            continue;
        if (!t->excluded && !(t->excluded = arena_alloc(a->arena, rows)))
            return err_set(e, ERR_NOMEM, "no memory for the rows of a trace");
        for (size_t row = (size_t)(first - a->near[i]); row < rows; row++)
            t->excluded[row] |= later || a->near[i][row];
    }
    return ERR_OK;
}

/* The rules are those of the graph; a trace that has them of its own knows its biases better. */
static int find_ties(struct against *a, struct err *e)
{
    struct choice_rules theirs;
    uint8_t *any = NULL;
    a->tainted = arena_alloc(a->arena, a->g->n_values + (size_t)1);
    int rc = a->tainted ? choice_rules_of(&a->stream, a->arena, &a->rules, e)
                        : err_set(e, ERR_NOMEM, "no memory for a graph of %u values", a->g->n_values);
    if (rc == 0)
        rc = choice_rules_read(a->t, a->arena, &theirs, e);
    for (size_t i = 0; rc == 0 && i < a->rules.n; i++) {
        const struct choice_rule *r = choice_rule_find(&theirs, a->rules.list[i].name);
        const uint32_t node = a->rules.list[i].node;
        if (r) {
            a->rules.list[i] = *r;
            a->rules.list[i].node = node;
        }
    }
    if (rc == 0)
        rc = choice_near_all(a->t, &a->rules, a->arena, &a->near, &any, &a->out->choices_unknown, e);
    a->out->choices = a->rules.n;
    for (size_t row = 0; rc == 0 && row < a->t->n_ids; row++)
        a->out->near_ties += any[row];
    return rc;
}

/* ---- targets ---- */

/* The ids that weights belong to, where the trace holds both. */
static uint32_t ids_of(const struct against *a, uint32_t v)
{
    const struct d0_node *n = &a->g->nodes[a->stream.maker[v]];
    return n->op == D0_OP_ROUTE && v == n->outputs[1] && a->known[n->outputs[0]] ? n->outputs[0]
                                                                                 : D0_NO_VALUE;
}

static int add_target(struct against *a, uint32_t v, struct err *e)
{
    struct target *t = &a->targets[a->n_targets];
    struct compare_probe *p = &a->out->probes[a->n_targets];
    uint32_t n = span_of(a, v, (uint32_t)a->n_targets + 1);
    *t = (struct target){.value = v,
                         .want = a->known[v],
                         .probe = p,
                         .kind = v == graph_result(a->g)           ? COMPARE_LOGITS
                                 : a->g->values[v].dtype == D0_I32 ? COMPARE_CHOICES
                                                                   : COMPARE_VALUES,
                         .ids = ids_of(a, v)};
    *p = (struct compare_probe){.name = arena_strdup(a->arena, a->known[v]->name),
                                .layer = a->g->info[v].layer,
                                .state = COMPARE_NOT_JUDGED,
                                .rows = t->want->rows,
                                .width = t->want->width,
                                .operators = name_operators(a, n),
                                .inputs = name_inputs(a, n),
                                .weights = name_weights(a, n),
                                .n_operators = n};
    a->n_targets++;
    a->out->n_probes++;
    if (!p->name || !p->operators || !p->inputs || !p->weights)
        return err_set(e, ERR_NOMEM, "no memory for the probes of a trace");
    for (uint32_t i = 0; i < n; i++)
        a->wanted[a->nodes[i]] = 1;
    return exclude_rows(a, t, n, e);
}

/* A value that one piece of a span gives and another one reads. */
static int want_between(struct against *a, size_t first, struct err *e)
{
    int rc = ERR_OK;
    for (size_t p = first; rc == 0 && p < a->stream.n_pieces; p++) {
        const struct stream_piece *x = &a->stream.pieces[p];
        for (uint32_t i = 0; rc == 0 && i < x->n_nodes; i++) {
            const struct d0_node *node = &a->g->nodes[x->nodes[i]];
            for (uint32_t k = 0; rc == 0 && k < node->n_inputs; k++) {
                uint32_t v = node->inputs[k], at = v == D0_NO_VALUE ? D0_NO_VALUE : a->stream.maker[v];
                bool within = at == D0_NO_VALUE || a->stream.positional[at] || a->known[v] ||
                              bsearch(&at, x->nodes, x->n_nodes, sizeof at, by_node);
                if (!within)
                    rc = stream_want(&a->stream, first, v, e);
            }
        }
    }
    return rc;
}

static void take_back(struct stream *s, size_t first)
{
    for (; s->n_pieces > first; s->n_pieces--) {
        free(s->pieces[s->n_pieces - 1].nodes);
        free(s->pieces[s->n_pieces - 1].outputs);
    }
}

static int add_pieces(struct against *a, size_t number, struct err *e)
{
    struct target *t = &a->targets[number];
    struct err inner = {0};
    t->first_piece = a->stream.n_pieces;
    uint32_t n = span_of(a, t->value, (uint32_t)(a->n_targets + number + 1));
    int rc = stream_add(&a->stream, a->nodes, n, (uint32_t)number, &inner);
    if (rc == ERR_NOMEM) {
        take_back(&a->stream, t->first_piece);
        t->probe->why = arena_strdup(a->arena, inner.message);
        return t->probe->why ? ERR_OK : rc;
    }
    if (rc == 0)
        rc = want_between(a, t->first_piece, &inner);
    if (rc == 0 && t->ids != D0_NO_VALUE)
        rc = stream_want(&a->stream, t->first_piece, t->ids, &inner); /* before the weights */
    if (rc == 0)
        rc = stream_want(&a->stream, t->first_piece, t->value, &inner);
    if (rc && e)
        *e = inner;
    return rc;
}

static int plan(struct against *a, struct err *e)
{
    const size_t nodes = a->g->n_nodes + (size_t)1, values = a->g->n_values + (size_t)1;
    a->stamp = arena_alloc_n(a->arena, nodes, sizeof *a->stamp);
    a->stack = arena_alloc_n(a->arena, nodes, sizeof *a->stack);
    a->nodes = arena_alloc_n(a->arena, nodes, sizeof *a->nodes);
    a->wanted = arena_alloc(a->arena, nodes);
    a->known = arena_alloc_n(a->arena, values, sizeof *a->known);
    a->kept = arena_alloc_n(a->arena, values, sizeof *a->kept);
    a->targets = arena_alloc_n(a->arena, values, sizeof *a->targets);
    a->out->probes = arena_alloc_n(a->arena, values, sizeof *a->out->probes);
    if (!a->stamp || !a->stack || !a->nodes || !a->wanted || !a->known || !a->kept || !a->targets ||
        !a->out->probes)
        return err_set(e, ERR_NOMEM, "no memory for a graph of %u nodes", a->g->n_nodes);
    a->refused = !find_all_known(a);
    if (a->refused)
        return ERR_OK;
    int rc = find_ties(a, e);
    for (uint32_t i = 0; rc == 0 && i < a->g->n_nodes; i++)
        for (uint32_t k = 0; rc == 0 && k < a->g->nodes[i].n_outputs; k++) {
            uint32_t v = a->g->nodes[i].outputs[k];
            if (a->known[v])
                rc = add_target(a, v, e);
        }
    if (rc == 0)
        rc = stream_weigh(&a->stream, a->wanted, e);
    for (size_t i = 0; rc == 0 && i < a->n_targets; i++)
        rc = add_pieces(a, i, e);
    return rc;
}

/* Probes of the trace that no value of the graph is named after. */
static int list_unknown(struct against *a, struct err *e)
{
    struct compare_result *out = a->out;
    out->only_reference = arena_alloc_n(a->arena, a->t->n_tensors + 1, sizeof *out->only_reference);
    uint8_t *seen = arena_alloc(a->arena, a->t->n_tensors + 1);
    if (!out->only_reference || !seen)
        return err_set(e, ERR_NOMEM, "no memory for the probes of a trace");
    for (uint32_t v = 0; v < a->g->n_values; v++)
        if (a->known[v])
            seen[a->known[v] - a->t->tensors] = 1;
    for (size_t i = 0; i < a->t->n_tensors; i++)
        if (!seen[i] &&
            !(out->only_reference[out->n_only_reference++] = arena_strdup(a->arena, a->t->tensors[i].name)))
            return err_set(e, ERR_NOMEM, "no memory for the probes of a trace");
    return ERR_OK;
}

/* ---- running ---- */

static int give_input(void *context, size_t piece, uint32_t value, uint64_t first, uint64_t n, uint64_t width,
                      void *to, struct err *e)
{
    struct against *a = context;
    (void)piece;
    if (a->known[value])
        return trace_read(a->t, a->known[value], first, n, to, e);
    if (!a->kept[value])
        BUG("%s was not kept", a->g->info[value].name);
    memcpy(to, a->kept[value] + first * width * 4, n * width * 4);
    return ERR_OK;
}

static int keep(struct against *a, uint32_t value, uint64_t first, uint64_t n, uint64_t width,
                const void *rows, struct err *e)
{
    uint64_t bytes;
    if (!mul_u64(width * 4, a->t->n_ids, &bytes) || bytes > SIZE_MAX)
        return err_set(e, ERR_LIMIT, "%s is too large to keep", a->g->info[value].name);
    if (!a->kept[value] && !(a->kept[value] = malloc((size_t)bytes)))
        return err_set(e, ERR_NOMEM, "no memory for %llu bytes of %s", (unsigned long long)bytes,
                       a->g->info[value].name);
    memcpy(a->kept[value] + first * width * 4, rows, n * width * 4);
    return ERR_OK;
}

/* Both sides in the order of their own ids, which came just before. */
static int order_weights(const struct against *a, const struct target *t, uint64_t first, uint64_t n,
                         uint64_t width, float *want, float *got, struct err *e)
{
    const size_t count = (size_t)(n * width);
    int32_t *ids = malloc(count * sizeof *ids);
    int rc = ids ? trace_read(a->t, a->known[t->ids], first, n, ids, e)
                 : err_set(e, ERR_NOMEM, "no memory to compare %s", t->want->name);
    if (rc == 0) {
        compare_order(ids, want, n, width);
        memcpy(ids, a->kept[t->ids] + first * width * 4, count * sizeof *ids);
        compare_order(ids, got, n, width);
    }
    free(ids);
    return rc;
}

static int take_output(void *context, size_t piece, uint32_t value, uint64_t first, uint64_t n,
                       uint64_t width, const void *rows, struct err *e)
{
    struct against *a = context;
    struct target *t = &a->targets[a->stream.pieces[piece].group];
    if (value != t->value)
        return keep(a, value, first, n, width, rows, e);
    if (2 * n * width > a->rows_cap) {
        float *more = realloc(a->rows, (size_t)(2 * n * width) * sizeof *more);
        if (!more)
            return err_set(e, ERR_NOMEM, "no memory to compare %s", t->want->name);
        a->rows = more;
        a->rows_cap = (size_t)(2 * n * width);
    }
    float *want = a->rows, *got = a->rows + n * width;
    memcpy(got, rows, (size_t)(n * width) * sizeof *got);
    int rc = trace_read(a->t, t->want, first, n, want, e);
    if (rc == 0 && t->ids != D0_NO_VALUE)
        rc = order_weights(a, t, first, n, width, want, got, e);
    if (rc == 0)
        compare_rows(&t->sums, t->kind, got, want, first, n, width, t->excluded);
    return rc;
}

static void drop_kept(struct against *a)
{
    for (uint32_t v = 0; a->kept && v < a->g->n_values; v++) {
        free(a->kept[v]);
        a->kept[v] = NULL;
    }
}

static int piece_done(void *context, size_t piece, struct err *e)
{
    struct against *a = context;
    const uint32_t group = a->stream.pieces[piece].group;
    if (piece + 1 < a->stream.n_pieces && a->stream.pieces[piece + 1].group == group)
        return ERR_OK;
    struct target *t = &a->targets[group];
    int rc = compare_judge(t->probe, &t->sums, &a->limits, t->kind, a->arena, a->out, e);
    drop_kept(a);
    if (a->m->d0)
        log_line(&a->m->d0->log, LOG_INFO, "compare", "%s is %s", t->probe->name,
                 compare_state_name(t->probe->state));
    return rc;
}

/* ---- what is said ---- */

/* One finding for each kind of operators: the same wrong kernel in every layer is one cause. */
static void report(const struct against *a)
{
    const struct compare_result *out = a->out;
    for (size_t i = 0; i < out->n_probes; i++) {
        const struct compare_probe *p = &out->probes[i];
        size_t same = 0;
        bool told = false;
        for (size_t k = 0; k < out->n_probes; k++) {
            const struct compare_probe *q = &out->probes[k];
            if (q->state != COMPARE_WRONG || strcmp(q->operators, p->operators) != 0)
                continue;
            told |= k < i;
            same += k > i;
        }
        if (p->state != COMPARE_WRONG || told)
            continue;
        char more[64] = "";
        if (same)
            snprintf(more, sizeof more, "; %zu more of these operators are wrong", same);
        if (p->reference_not_finite)
            finding_add(a->f, FINDING_N002, p->name, "%llu values of the reference are not finite",
                        (unsigned long long)p->reference_not_finite);
        else if (a->targets[i].kind == COMPARE_CHOICES)
            finding_add(a->f, FINDING_N007, p->name,
                        "%s%s%s, fed with %s of %s: in row %llu %.0f %% of what is chosen differ%s",
                        p->operators, *p->weights ? " of " : "", p->weights, p->inputs, a->t->producer,
                        (unsigned long long)p->worst_row_at, 100 * p->worst_row, more);
        else
            finding_add(
                a->f, FINDING_N007, p->name,
                "%s%s%s, fed with %s of %s: relative L2 of row %llu is %.3g, largest difference %.3g (limit "
                "%.3g)%s",
                p->operators, *p->weights ? " of " : "", p->weights, p->inputs, a->t->producer,
                (unsigned long long)p->worst_row_at, p->worst_row, p->max_abs, p->limit, more);
    }
}

static int run(struct against *a, struct err *e)
{
    const struct stream_io io = {
        .context = a, .input = give_input, .output = take_output, .done = piece_done};
    int rc = plan(a, e);
    if (rc == 0 && !a->refused)
        rc = list_unknown(a, e);
    if (rc == 0 && a->stream.n_pieces)
        rc = stream_run(&a->stream, 0, &io, e);
    if (rc == 0) {
        a->out->cost = a->stream.cost;
        compare_count(a->out);
        report(a);
    }
    return rc;
}

int oracle_compare_model(const struct oracle_model *m, const char *reference, struct arena *arena,
                         struct compare_result *out, struct findings *f, struct err *e)
{
    struct trace *t = NULL;
    *out = (struct compare_result){0};
    int rc = trace_open(&t, reference, e);
    if (rc)
        return rc;
    struct against a = {.m = m, .t = t, .g = m->spec->graph, .arena = arena, .out = out, .f = f};
    a.limits =
        compare_limits_of(compare_coarse(t) || m->spec->kv_dtype != D0_F32,
                          compare_coarser(compare_activation_bits(t), spec_activation_bits(m->spec->graph)));
    out->reference_producer = arena_strdup(arena, t->producer);
    out->other_producer = arena_printf(arena, "day0 %s, %s", D0_VERSION, m->dev->api->name);
    out->self_consistent = compare_of_day0(t);
    rc = out->reference_producer && out->other_producer ? stream_open(&a.stream, m, t->ids, t->n_ids, e)
                                                        : err_set(e, ERR_NOMEM, "no memory for a comparison");
    if (rc == ERR_INVALID || rc == ERR_LIMIT) { /* ids that this model does not have */
        finding_add(f, FINDING_N006, reference, "%s", e ? e->message : "its token ids are not of this model");
        rc = ERR_OK;
    } else if (rc == 0) {
        rc = run(&a, e);
    }
    drop_kept(&a);
    free(a.rows);
    if (a.stream.m)
        stream_close(&a.stream);
    trace_close(t);
    return rc;
}
