/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the comparison of two traces, probe by probe in the order in which they were computed. Names the
 * first that is wrong and the last that is right before it: the error came in between. What follows from a
 * choice that was nearly a tie is not judged. Refuses traces of other tokens.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/compare_impl.h"
#include "oracle/near_tie.h"

#define ROWS_BYTES ((uint64_t)4 << 20) /* of one side */

/* ---- order ---- */

static int32_t layer_of(const char *name)
{
    const char *at = strstr(name, "layers.");
    int32_t layer = 0;
    if (!at || at[7] < '0' || at[7] > '9')
        return -1;
    for (at += 7; *at >= '0' && *at <= '9' && layer < 1000000; at++)
        layer = 10 * layer + (*at - '0');
    return layer;
}

/* Where a probe stands within its layer, by what module names usually say; the layer's own name comes last.
 */
static unsigned rank_of(const char *name)
{
    static const char *const usual[] = {"embed_tokens", "input_layernorm",
                                        "q_a_",         "q_b_",
                                        "q_proj",       "kv_a_",
                                        "kv_b_",        "k_proj",
                                        "v_proj",       "q_norm",
                                        "k_norm",       "q_rope",
                                        "k_rope",       "attn.attention",
                                        ".attention",   "o_proj",
                                        "self_attn",    "post_attention_layernorm",
                                        ".gate.",       "router",
                                        "gate_proj",    "up_proj",
                                        ".glu",         "down_proj",
                                        "experts",      ".mlp"};
    for (unsigned i = 0; i < ARRAY_LEN(usual); i++)
        if (strstr(name, usual[i]))
            return i;
    const char *dot = strrchr(name, '.');
    return dot && dot[1] >= '0' && dot[1] <= '9' ? 1000 : 100;
}

static int by_usual_order(const void *x, const void *y)
{
    const struct compare_probe *a = x, *b = y;
    bool la = !strcmp(a->name, TRACE_LOGITS), lb = !strcmp(b->name, TRACE_LOGITS);
    if (la != lb)
        return la ? 1 : -1;
    /* outside of layers: the embedding before them, the rest after */
    int64_t pa = a->layer >= 0              ? a->layer
                 : strstr(a->name, "embed") ? -1
                                            : INT32_MAX,
            pb = b->layer >= 0              ? b->layer
                 : strstr(b->name, "embed") ? -1
                                            : INT32_MAX;
    if (pa != pb)
        return pa < pb ? -1 : 1;
    unsigned ra = rank_of(a->name), rb = rank_of(b->name);
    return ra != rb ? (ra < rb ? -1 : 1) : strcmp(a->name, b->name);
}

static int by_place(const void *x, const void *y)
{
    const struct trace_tensor *const *a = x, *const *b = y;
    return ((*a)->offset > (*b)->offset) - ((*a)->offset < (*b)->offset);
}

static bool in_graph_order(const struct trace *t)
{
    const char *order = trace_meta(t, "order");
    return order && !strcmp(order, "graph");
}

/* Probes that both have, in the order of the one that says it is that of the graph. */
static int list_common(const struct trace *a, const struct trace *b, struct arena *arena,
                       struct compare_result *out, struct err *e)
{
    const struct trace *lead = !in_graph_order(a) && in_graph_order(b) ? b : a;
    const struct trace *other = lead == a ? b : a;
    const struct trace_tensor **order = arena_alloc_n(arena, lead->n_tensors + 1, sizeof *order);
    out->probes = arena_alloc_n(arena, lead->n_tensors + 1, sizeof *out->probes);
    out->only_reference = arena_alloc_n(arena, a->n_tensors + 1, sizeof *out->only_reference);
    out->only_other = arena_alloc_n(arena, b->n_tensors + 1, sizeof *out->only_other);
    if (!order || !out->probes || !out->only_reference || !out->only_other)
        return err_set(e, ERR_NOMEM, "no memory for the probes of two traces");
    for (size_t i = 0; i < lead->n_tensors; i++)
        order[i] = &lead->tensors[i];
    qsort(order, lead->n_tensors, sizeof *order, by_place);
    for (size_t i = 0; i < lead->n_tensors; i++)
        if (trace_find(other, order[i]->name)) {
            const char *name = arena_strdup(arena, order[i]->name);
            if (!name)
                return err_set(e, ERR_NOMEM, "no memory for the probes of two traces");
            out->probes[out->n_probes++] = (struct compare_probe){.name = name, .layer = layer_of(name)};
        }
    if (!in_graph_order(lead))
        qsort(out->probes, out->n_probes, sizeof *out->probes, by_usual_order);
    for (int k = 0; k < 2; k++) {
        const struct trace *have = k ? b : a, *lack = k ? a : b;
        for (size_t i = 0; i < have->n_tensors; i++) {
            if (trace_find(lack, have->tensors[i].name))
                continue;
            const char *name = arena_strdup(arena, have->tensors[i].name);
            if (!name)
                return err_set(e, ERR_NOMEM, "no memory for the probes of two traces");
            if (k)
                out->only_other[out->n_only_other++] = name;
            else
                out->only_reference[out->n_only_reference++] = name;
        }
    }
    return ERR_OK;
}

/* ---- near ties ---- */

/* Two runs go on by themselves: where a near tie sends a row elsewhere, all that follows from it differs,
 * later rows by their attention, too. */
struct ties {
    struct choice_rules rules; /* the reference's own, or else the other's */
    uint8_t **near;            /* by rule: [rows]; NULL: the reference does not tell */
    uint8_t *maybe;            /* [rows] of choices that are not in both traces: did it go elsewhere? */
    uint8_t *excluded;         /* [rows] of the probe that is compared */
    uint64_t from;             /* this row and all later ones are not judged any more */
};

static int find_ties(const struct trace *a, const struct trace *b, struct arena *arena, struct ties *t,
                     struct compare_result *out, struct err *e)
{
    int rc = choice_rules_read(a, arena, &t->rules, e);
    if (rc == 0 && t->rules.n == 0)
        rc = choice_rules_read(b, arena, &t->rules, e);
    if (rc)
        return rc;
    uint8_t *any;
    t->from = UINT64_MAX;
    t->maybe = arena_alloc(arena, a->n_ids);
    t->excluded = arena_alloc(arena, a->n_ids);
    if (!t->maybe || !t->excluded)
        return err_set(e, ERR_NOMEM, "no memory for the choices of a trace");
    rc = choice_near_all(a, &t->rules, arena, &t->near, &any, &out->choices_unknown, e);
    out->choices = t->rules.n;
    for (uint64_t row = 0; rc == 0 && row < a->n_ids; row++)
        out->near_ties += any[row];
    return rc;
}

/* The rule whose ids these are, or whose logits (keys) they are where the ids are not in both traces. */
static bool is_of(const struct choice_rule *r, const char *name, bool ids)
{
    const char *by = ids ? r->name : r->logits ? r->logits : r->q;
    return by && !strcmp(by, name);
}

/* "NAME:1": the weights of the ids NAME. */
static bool is_second(const char *ids, const char *name)
{
    size_t n = strlen(ids);
    return !strncmp(ids, name, n) && !strcmp(name + n, ":1");
}

static void exclude_rows(struct ties *t, const struct compare_probe *p, uint64_t rows)
{
    for (uint64_t row = 0; row < rows; row++)
        t->excluded[row] = row >= t->from || t->maybe[row];
    for (size_t i = 0; i < t->rules.n; i++) {
        const bool own = is_of(&t->rules.list[i], p->name, true) || is_second(t->rules.list[i].name, p->name);
        for (uint64_t row = 0; own && t->near[i] && row < rows; row++)
            t->excluded[row] |= t->near[i][row];
    }
}

/* After a probe: which rows may have gone elsewhere from here on. */
static void follow_choices(struct ties *t, const struct trace *a, const struct trace *b,
                           const struct compare_probe *p)
{
    for (size_t i = 0; i < t->rules.n; i++) {
        const struct choice_rule *r = &t->rules.list[i];
        const bool both = trace_find(a, r->name) && trace_find(b, r->name);
        for (uint64_t row = 0; !both && t->near[i] && is_of(r, p->name, false) && row < p->rows; row++)
            t->maybe[row] |= t->near[i][row];
    }
}

/* Rows that hang on a near tie and came out otherwise: from the first of them on nothing is judged. */
static void look_elsewhere(struct ties *t, enum compare_kind kind, const struct compare_limits *l,
                           const float *got, const float *want, uint64_t first, uint64_t n, uint64_t width)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t row = first + i;
        if (t->excluded[row] && row < t->from &&
            compare_row_error(kind, got + i * width, want + i * width, width) >
                (kind == COMPARE_CHOICES ? 0 : l->row))
            t->from = row;
        t->excluded[row] |= row >= t->from;
    }
}

/* ---- values ---- */

/* Weights of chosen experts, in the order of these on both sides, where both traces hold the choice. */
static int order_weights(const struct trace *a, const struct trace *b, const char *name, uint64_t at,
                         uint64_t n, uint64_t width, float *want, float *got, struct err *e)
{
    char ids[256];
    const size_t length = strlen(name);
    if (length < 2 || length >= sizeof ids || strcmp(name + length - 2, ":1"))
        return ERR_OK;
    snprintf(ids, sizeof ids, "%.*s", (int)(length - 2), name);
    const struct trace_tensor *x = trace_find(a, ids), *y = trace_find(b, ids);
    if (!x || !y || x->dtype != D0_I32 || y->dtype != D0_I32 || x->width != width || y->width != width)
        return ERR_OK;
    int32_t *chosen = malloc((size_t)(n * width) * sizeof *chosen);
    int rc =
        chosen ? trace_read(a, x, at, n, chosen, e) : err_set(e, ERR_NOMEM, "no memory to compare %s", name);
    if (rc == 0) {
        compare_order(chosen, want, n, width);
        rc = trace_read(b, y, at, n, chosen, e);
    }
    if (rc == 0)
        compare_order(chosen, got, n, width);
    free(chosen);
    return rc;
}

static int compare_one(const struct trace *a, const struct trace *b, struct compare_probe *p,
                       const struct compare_limits *limits, struct ties *ties, struct arena *arena,
                       struct compare_result *out, struct err *e)
{
    const struct trace_tensor *x = trace_find(a, p->name), *y = trace_find(b, p->name);
    const enum compare_kind kind = !strcmp(p->name, TRACE_LOGITS) ? COMPARE_LOGITS
                                   : x->dtype == D0_I32           ? COMPARE_CHOICES
                                                                  : COMPARE_VALUES;
    struct compare_sums sums = {0};
    p->rows = x->rows;
    p->width = x->width;
    if (x->width != y->width || (x->dtype == D0_I32) != (y->dtype == D0_I32) ||
        (kind == COMPARE_LOGITS && x->dtype == D0_I32)) {
        p->state = COMPARE_NOT_JUDGED;
        p->why = arena_printf(arena, "%llu wide, the other %llu", (unsigned long long)x->width,
                              (unsigned long long)y->width);
        return p->why ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a comparison");
    }
    uint64_t most = ROWS_BYTES / 4 / x->width;
    most = most ? most : 1;
    most = most < x->rows ? most : x->rows;
    float *want = malloc((size_t)(most * x->width) * sizeof *want),
          *got = malloc((size_t)(most * x->width) * sizeof *got);
    int rc = want && got ? ERR_OK : err_set(e, ERR_NOMEM, "no memory to compare %s", p->name);
    exclude_rows(ties, p, x->rows);
    for (uint64_t at = 0; rc == 0 && at < x->rows; at += most) {
        uint64_t n = x->rows - at < most ? x->rows - at : most;
        rc = trace_read(a, x, at, n, want, e);
        if (rc == 0)
            rc = trace_read(b, y, at, n, got, e);
        if (rc == 0)
            rc = order_weights(a, b, p->name, at, n, x->width, want, got, e);
        if (rc == 0) {
            look_elsewhere(ties, kind, limits, got, want, at, n, x->width);
            compare_rows(&sums, kind, got, want, at, n, x->width, ties->excluded);
        }
    }
    free(want);
    free(got);
    if (rc == 0)
        follow_choices(ties, a, b, p);
    return rc ? rc : compare_judge(p, &sums, limits, kind, arena, out, e);
}

/* ---- what is said ---- */

static void report(const struct trace *a, const struct trace *b, const struct compare_result *out,
                   struct findings *f)
{
    const struct compare_probe *p = out->first_wrong;
    char logits[160] = "", between[256] = "";
    if (!p)
        return;
    if (out->logits)
        snprintf(logits, sizeof logits, "; logits: mean KL %.3g, best token agrees at %.1f %%", out->mean_kl,
                 100 * out->top1_share);
    if (out->last_right)
        snprintf(between, sizeof between, "; the error comes in after %.160s, which is right",
                 out->last_right->name);
    if (p->not_finite + p->reference_not_finite)
        finding_add(f, FINDING_N002, p->name, "%llu of %llu values are not finite in %s, %llu in %s%s%s",
                    (unsigned long long)p->not_finite, (unsigned long long)(p->rows * p->width), b->path,
                    (unsigned long long)p->reference_not_finite, a->path, between, logits);
    else if (!strcmp(p->name, TRACE_LOGITS))
        finding_add(f, FINDING_N001, p->name, "largest difference from %s is %.3g (limit %.3g)%s%s",
                    a->producer, p->max_abs, p->limit, between, logits);
    else
        finding_add(f, FINDING_N001, p->name,
                    "first probe that differs from %s: relative L2 of row %llu is %.3g (limit %.3g), cosine "
                    "%.6f; %zu of %zu probes are wrong%s%s",
                    a->producer, (unsigned long long)p->worst_row_at, p->worst_row, p->limit, p->cosine,
                    out->wrong, out->n_probes, between, logits);
}

static bool of_one_run(const struct trace *a, const struct trace *b, struct findings *f)
{
    size_t at = 0;
    while (at < a->n_ids && at < b->n_ids && a->ids[at] == b->ids[at])
        at++;
    if (at == a->n_ids && at == b->n_ids)
        return true;
    if (at < a->n_ids && at < b->n_ids)
        finding_add(f, FINDING_N006, b->path, "token %zu is %d, in %s it is %d", at, b->ids[at], a->path,
                    a->ids[at]);
    else
        finding_add(f, FINDING_N006, b->path, "%zu tokens, %s has %zu", b->n_ids, a->path, a->n_ids);
    return false;
}

static int compare_all(const struct trace *a, const struct trace *b, struct arena *arena,
                       struct compare_result *out, struct findings *f, struct err *e)
{
    const struct compare_limits limits =
        compare_limits_of(compare_coarse(a) || compare_coarse(b),
                          compare_coarser(compare_activation_bits(a), compare_activation_bits(b)));
    out->reference_producer = arena_strdup(arena, a->producer);
    out->other_producer = arena_strdup(arena, b->producer);
    out->self_consistent = compare_of_day0(a) && compare_of_day0(b);
    if (!out->reference_producer || !out->other_producer)
        return err_set(e, ERR_NOMEM, "no memory for a comparison");
    if (!of_one_run(a, b, f))
        return ERR_OK;
    struct ties ties = {0};
    int rc = list_common(a, b, arena, out, e);
    if (rc == 0)
        rc = find_ties(a, b, arena, &ties, out, e);
    for (size_t i = 0; rc == 0 && i < out->n_probes; i++)
        rc = compare_one(a, b, &out->probes[i], &limits, &ties, arena, out, e);
    if (rc == 0) {
        compare_count(out);
        report(a, b, out, f);
    }
    return rc;
}

int oracle_compare(const char *reference, const char *other, struct arena *arena, struct compare_result *out,
                   struct findings *f, struct err *e)
{
    struct trace *a = NULL, *b = NULL;
    *out = (struct compare_result){0};
    int rc = trace_open(&a, reference, e);
    if (rc == 0)
        rc = trace_open(&b, other, e);
    if (rc == 0)
        rc = compare_all(a, b, arena, out, f, e);
    trace_close(a);
    trace_close(b);
    return rc;
}
