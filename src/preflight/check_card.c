/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: a model against the profile of a card that is not here: operators and their limits, types of weights
 * and how they are stored, memory. Refuses to fill gaps: what the profile does not say is told as not known,
 * and a check with such a gap does not pass.
 */
#include "preflight/preflight_internal.h"

#include <stdio.h>
#include <string.h>

#define MAX_TYPES      48
#define USEFUL_CONTEXT 2048

/* Weights of one type and scheme. */
struct stored_type {
    uint8_t scheme, bits;
    uint32_t dtype; /* of the codes */
    uint64_t bytes;
    struct tally weights;
};

struct card_check {
    const struct spec *s;
    const struct host_card_profile *p;
    uint32_t n_cards;
    struct findings *f;
    struct strbuf unknown;
    unsigned n_unknown;
    struct stored_type types[MAX_TYPES];
    size_t n_types;
};

static void not_known(struct card_check *x, const char *what)
{
    strbuf_printf(&x->unknown, "%s%s", x->n_unknown++ ? ", " : "", what);
}

/* ---- types */

static uint32_t code_dtype(const struct spec *s, const struct spec_weight *w)
{
    return w->form.scheme && w->value != D0_NO_VALUE ? s->graph->values[w->value].dtype : w->dtype;
}

/* "F4", "I4" for words that hold codes of four bits, "BF16". */
static const char *type_name(const struct stored_type *t)
{
    bool words = t->scheme && (t->dtype == D0_I32 || t->dtype == D0_I64);
    return words && t->bits == 4 ? "I4" : words && t->bits == 8 ? "I8" : dtype_name(t->dtype);
}

static void collect_types(struct card_check *x)
{
    for (size_t i = 0; i < x->s->n_weights; i++) {
        const struct spec_weight *w = &x->s->weights[i];
        const uint32_t dtype = code_dtype(x->s, w);
        uint64_t bytes = 0;
        size_t k = 0;
        while (k < x->n_types && (x->types[k].scheme != w->form.scheme || x->types[k].dtype != dtype ||
                                  x->types[k].bits != w->form.bits))
            k++;
        if (k == MAX_TYPES)
            continue;
        if (k == x->n_types)
            x->types[x->n_types++] = (struct stored_type){w->form.scheme, w->form.bits, dtype, 0, {0}};
        if (shape_bytes(w->dims, w->n_dims, dtype, &bytes))
            x->types[k].bytes += bytes * w->count;
        tally_add(&x->types[k].weights, w->name);
    }
}

/* A profile may list a type or a scheme by its name. */
static bool lists(const char *const *list, size_t n, const struct stored_type *t)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], type_name(t)) == 0 ||
            (t->scheme && strcmp(list[i], spec_scheme_name(t->scheme)) == 0))
            return true;
    return false;
}

static const char *join(const char *const *list, size_t n, char *buf, size_t bytes)
{
    size_t at = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < n && at < bytes; i++)
        at += (size_t)snprintf(buf + at, bytes - at, "%s%s", i ? ", " : "", list[i]);
    return buf;
}

static void check_types(struct card_check *x)
{
    char names[400], all[300], size[32], subject[80];
    if (!x->p->dtypes) {
        not_known(x, "the types it computes with");
        return;
    }
    for (size_t i = 0; i < x->n_types; i++) {
        const struct stored_type *t = &x->types[i];
        if (lists(x->p->dtypes, x->p->n_dtypes, t))
            continue;
        snprintf(subject, sizeof subject, "%s%s%s", type_name(t), t->scheme ? ", " : "",
                 t->scheme ? spec_scheme_name(t->scheme) : "");
        finding_add_remedy(x->f, FINDING_P001, subject,
                           "use a card that computes with this type, or weights of another type",
                           "%s of this type, %s of codes; %s computes with %s",
                           tally_format(&t->weights, "weight", names, sizeof names),
                           format_bytes(t->bytes, size, sizeof size), x->p->name,
                           x->p->n_dtypes ? join(x->p->dtypes, x->p->n_dtypes, all, sizeof all) : "none");
    }
}

/* ---- operators */

static const struct host_card_operator *profile_of(const struct card_check *x, const char *op)
{
    for (size_t i = 0; i < x->p->n_operators; i++)
        if (strcmp(x->p->operators[i].name, op) == 0)
            return &x->p->operators[i];
    return NULL;
}

/* The values that a limit allows, for people. */
static const char *allowed(const struct host_card_operator *o, const char *attribute, char *buf, size_t bytes)
{
    size_t at = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < o->n_limits; i++)
        for (size_t k = 0;
             strcmp(o->limits[i].attribute, attribute) == 0 && k < o->limits[i].n_values && at < bytes; k++)
            at += (size_t)snprintf(buf + at, bytes - at, "%s%lld", k ? ", " : "",
                                   (long long)o->limits[i].values[k]);
    return buf;
}

/* Whole-number attributes of all nodes of this operator against the profile's limits: one finding for each
 * value. */
static void check_limits(struct card_check *x, const struct op_info *op, const struct host_card_operator *o)
{
    const struct graph *g = x->s->graph;
    for (size_t i = 0; i < o->n_limits; i++) {
        const char *attribute = o->limits[i].attribute;
        uint32_t key = attr_find(attribute);
        int64_t last = -1;
        uint64_t n = 0;
        char values[200];
        if (key == 0 || attr_is_float(key))
            continue;
        for (uint32_t k = 0; k < g->n_nodes; k++) {
            int64_t v = g->nodes[k].op == op->id ? node_attr_i(&g->nodes[k], key, -1) : -1;
            if (v < 0 || host_card_takes(x->p, op->name, attribute, v) != HOST_NO)
                continue;
            n++;
            last = v;
        }
        if (n)
            finding_add(x->f, FINDING_P001, op->name, "%llu node%s with %s %lld; %s takes %s%s%s",
                        (unsigned long long)n, n == 1 ? "" : "s", attribute, (long long)last, x->p->name,
                        allowed(o, attribute, values, sizeof values), o->source ? ": " : "",
                        o->source ? o->source : "");
    }
}

/* Types of the weights that nodes of this operator read, where the profile lists types for it. */
static void check_operator_types(struct card_check *x, const struct op_info *op,
                                 const struct host_card_operator *o)
{
    const struct graph *g = x->s->graph;
    bool reads[MAX_TYPES] = {false};
    for (size_t i = 0; i < x->s->n_weights; i++) {
        const struct spec_weight *w = &x->s->weights[i];
        if (w->value == D0_NO_VALUE)
            continue;
        size_t t = 0;
        while (t < x->n_types && (x->types[t].scheme != w->form.scheme || x->types[t].bits != w->form.bits ||
                                  x->types[t].dtype != code_dtype(x->s, w)))
            t++;
        if (t == x->n_types || reads[t])
            continue;
        for (uint32_t k = 0; k < g->n_nodes && !reads[t]; k++)
            for (uint32_t j = 0; g->nodes[k].op == op->id && j < g->nodes[k].n_inputs; j++)
                reads[t] |= g->nodes[k].inputs[j] == w->value;
    }
    for (size_t t = 0; t < x->n_types; t++) {
        char what[120], all[300];
        /* what the card computes with in no operator has a finding of its own */
        if (!reads[t] || (x->p->dtypes && !lists(x->p->dtypes, x->p->n_dtypes, &x->types[t])))
            continue;
        snprintf(what, sizeof what, "%s on %s", op->name, type_name(&x->types[t]));
        if (!o->dtypes)
            not_known(x, what);
        else if (!lists(o->dtypes, o->n_dtypes, &x->types[t]))
            finding_add(x->f, FINDING_P001, what, "%s runs this operator on %s", x->p->name,
                        join(o->dtypes, o->n_dtypes, all, sizeof all));
    }
}

static void check_operator(struct card_check *x, const char *name, uint64_t n)
{
    const struct op_info *op = op_find_name(name);
    const struct host_card_operator *o = profile_of(x, name);
    switch (host_card_runs(x->p, name, NULL)) {
    case HOST_NO:
        finding_add(x->f, FINDING_P001, name, "%llu of them in this model; %s does not run it%s%s",
                    (unsigned long long)n, x->p->name, o && o->source ? ": " : "",
                    o && o->source ? o->source : "");
        return;
    case HOST_NOT_KNOWN:
        not_known(x, name);
        break;
    case HOST_YES:
        break;
    }
    if (!op || !o)
        return;
    check_limits(x, op, o);
    if (o->supported == HOST_YES)
        check_operator_types(x, op, o);
}

static void check_operators(struct card_check *x)
{
    const struct op_info *all;
    size_t n = op_all(&all);
    for (size_t i = 0; i < n; i++) {
        uint64_t count = 0;
        for (uint32_t k = 0; k < x->s->graph->n_nodes; k++)
            count += x->s->graph->nodes[k].op == all[i].id;
        for (size_t k = 0; k < x->s->n_outside; k++)
            if (strcmp(x->s->outside[k].op, all[i].name) == 0)
                count += x->s->outside[k].count;
        if (count)
            check_operator(x, all[i].name, count);
    }
}

/* ---- memory */

static void check_card_memory(struct card_check *x, const struct preflight_options *o)
{
    uint64_t limit = x->s->max_positions > 0 ? (uint64_t)x->s->max_positions : USEFUL_CONTEXT;
    struct plan_options po = {
        .memory_bytes = x->p->memory_bytes,
        .max_step_tokens = o->max_step_tokens,
        .max_seqs = o->max_seqs,
        .context_tokens = o->context_tokens        ? o->context_tokens
                          : limit < USEFUL_CONTEXT ? limit
                                                   : USEFUL_CONTEXT,
    };
    struct plan_layout layout;
    struct plan_memory rank;
    char has[32], need[32], weights[32];
    const char *left_out = x->s->vision ? "; pictures are not counted" : "";
    if (x->p->memory_bytes == 0) {
        not_known(x, "its memory");
        return;
    }
    bool fits = plan_smallest(x->s, &po, &layout, &rank);
    uint64_t cards = fits ? (uint64_t)layout.tp * layout.pp : 0;
    if (fits && cards <= x->n_cards)
        return;
    format_bytes(x->p->memory_bytes, has, sizeof has);
    format_bytes(x->s->tensor_bytes, weights, sizeof weights);
    if (!fits)
        finding_add(x->f, FINDING_M001, "memory",
                    "weights %s; no layout of up to 4,096 cards of %s (%s) fits%s", weights, has, x->p->name,
                    left_out);
    else
        finding_add(x->f, FINDING_M001, "memory",
                    "weights %s; %u card%s of %s (%s) %s not enough: the smallest layout is TP %u x PP %u, "
                    "%llu cards, %s a card%s",
                    weights, x->n_cards, x->n_cards == 1 ? "" : "s", has, x->p->name,
                    x->n_cards == 1 ? "is" : "are", layout.tp, layout.pp, (unsigned long long)cards,
                    format_bytes(rank.total, need, sizeof need), left_out);
}

int check_card(const struct spec *s, const struct preflight_options *o, struct findings *f, struct err *e)
{
    struct card_check x = {
        .s = s, .p = o->card, .n_cards = o->n_cards ? o->n_cards : 1, .f = f, .unknown = STRBUF_INIT};
    collect_types(&x);
    check_operators(&x);
    check_types(&x);
    check_card_memory(&x, o);
    bool failed = strbuf_failed(&x.unknown);
    if (x.n_unknown && !failed)
        finding_add(f, FINDING_P004, x.p->name, "%u fact%s that this model needs: %s", x.n_unknown,
                    x.n_unknown == 1 ? "" : "s", x.unknown.data);
    strbuf_release(&x.unknown);
    return failed ? err_set(e, ERR_NOMEM, "no memory to judge the card") : ERR_OK;
}
