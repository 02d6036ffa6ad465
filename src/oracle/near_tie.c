/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: by how much the choices of a reference were made, from the values that its trace holds. Scores are
 * computed in float64 as the definitions of ROUTE and INDEX_TOPK say. Refuses to guess: without the values
 * that were chosen by nothing is near.
 */
#include "oracle/near_tie.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_RULE_ROWS ((uint64_t)1 << 30)

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NOMEM, "no memory for the choices of a trace");
}

/* ---- rules of a graph ---- */

static int read_bias(const struct stream *s, uint32_t value, struct arena *arena, struct choice_rule *r,
                     struct err *e)
{
    const struct d0_value *v = &s->g->values[value];
    const size_t n = (size_t)v->dims[0];
    uint64_t bytes;
    struct load_reader load = {.g = s->g,
                               .spec = s->m->spec,
                               .c = s->m->ckpt,
                               .staging = malloc((size_t)STREAM_STAGING_BYTES),
                               .staging_bytes = STREAM_STAGING_BYTES,
                               .sink = stream_no_sink};
    float *bias = arena_alloc_n(arena, n + 1, sizeof *bias);
    int rc = load.staging && bias ? load_value_check(&load, value, &bytes, e) : no_memory(e);
    if (rc == 0 && !(load.direct = malloc((size_t)bytes + 1)))
        rc = no_memory(e);
    if (rc == 0)
        rc = load_value_read(&load, value, e);
    if (rc == 0 && !tensor_to_f32(load.direct, v->dtype, n, bias))
        rc = err_set(e, ERR_UNSUPPORTED, "%s is of type %s", s->g->info[value].name, dtype_name(v->dtype));
    free(load.direct);
    free(load.staging);
    r->bias = bias;
    r->n_bias = n;
    return rc;
}

/* NULL: nobody computes it. */
static const char *name_of(const struct stream *s, uint32_t value, struct arena *arena)
{
    char name[256];
    return s->maker[value] == D0_NO_VALUE ? NULL
                                          : arena_strdup(arena, stream_name(s, value, name, sizeof name));
}

static int rule_of_route(const struct stream *s, const struct d0_node *n, struct arena *arena,
                         struct choice_rule *r, struct err *e)
{
    r->logits = name_of(s, n->inputs[0], arena);
    r->score = node_attr_i(n, D0_ATTR_SCORE, 0);
    r->groups = node_attr_i(n, D0_ATTR_GROUPS, 0);
    r->groups_kept = node_attr_i(n, D0_ATTR_GROUPS_KEPT, 0);
    r->group_score = node_attr_i(n, D0_ATTR_GROUP_SCORE, 0);
    const bool bias = n->n_inputs > 1 && n->inputs[1] != D0_NO_VALUE;
    return bias ? read_bias(s, n->inputs[1], arena, r, e) : ERR_OK;
}

/* The keys are what somebody stores in these pages, unchanged. */
static void rule_of_index(const struct stream *s, const struct d0_node *n, struct arena *arena,
                          struct choice_rule *r)
{
    for (uint32_t i = 0; i < s->g->n_nodes; i++) {
        const struct d0_node *x = &s->g->nodes[i];
        if (x->op == D0_OP_LATENT_STORE && x->inputs[1] == n->inputs[1] &&
            (x->n_inputs < 6 || x->inputs[5] == D0_NO_VALUE))
            r->keys = name_of(s, x->inputs[0], arena);
    }
    r->q = name_of(s, n->inputs[0], arena);
    if (n->n_inputs > 5 && n->inputs[5] != D0_NO_VALUE)
        r->weights = name_of(s, n->inputs[5], arena);
    r->heads = node_attr_i(n, D0_ATTR_HEADS, 0);
    r->dim = node_attr_i(n, D0_ATTR_DIM, 0);
    r->scale = node_attr_f(n, D0_ATTR_SCALE, 0);
}

static bool has_rule(const struct d0_node *n)
{
    if (n->op == D0_OP_ROUTE)
        return n->n_inputs < 3 || n->inputs[2] == D0_NO_VALUE;
    return n->op == D0_OP_INDEX_TOPK && node_attr_i(n, D0_ATTR_BLOCK, 0) == 0 &&
           node_attr_i(n, D0_ATTR_GROUPS, 0) <= 1 && node_attr_i(n, D0_ATTR_RATIO, 0) == 0;
}

int choice_rules_of(const struct stream *s, struct arena *arena, struct choice_rules *out, struct err *e)
{
    const struct graph *g = s->g;
    int rc = ERR_OK;
    *out = (struct choice_rules){.list = arena_alloc_n(arena, g->n_nodes + (size_t)1, sizeof *out->list)};
    if (!out->list)
        return no_memory(e);
    for (uint32_t i = 0; rc == 0 && i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        if (!has_rule(n))
            continue;
        struct choice_rule *r = &out->list[out->n++];
        *r = (struct choice_rule){
            .name = name_of(s, n->outputs[0], arena), .topk = node_attr_i(n, D0_ATTR_TOPK, 0), .node = i};
        if (n->op == D0_OP_ROUTE)
            rc = rule_of_route(s, n, arena, r, e);
        else
            rule_of_index(s, n, arena, r);
        if (rc == 0 && !r->name)
            rc = no_memory(e);
    }
    return rc;
}

/* ---- rules in a trace ---- */

void choice_rules_write(const struct choice_rules *rules, struct json_writer *w)
{
    json_begin_array(w);
    for (size_t i = 0; i < rules->n; i++) {
        const struct choice_rule *r = &rules->list[i];
        json_begin_object(w);
        json_put_string(w, "name", r->name);
        json_put_i64(w, "topk", r->topk);
        if (r->logits) {
            json_put_string(w, "logits", r->logits);
            json_put_i64(w, "score", r->score);
            json_put_i64(w, "groups", r->groups);
            json_put_i64(w, "groups_kept", r->groups_kept);
            json_put_i64(w, "group_score", r->group_score);
        } else {
            json_put_string(w, "q", r->q);
            json_put_string(w, "keys", r->keys);
            json_put_string(w, "weights", r->weights);
            json_put_i64(w, "heads", r->heads);
            json_put_i64(w, "dim", r->dim);
            json_put_f64(w, "scale", r->scale);
        }
        if (r->bias) {
            json_key(w, "bias");
            json_begin_array(w);
            for (size_t k = 0; k < r->n_bias; k++)
                json_write_f64(w, (double)r->bias[k]);
            json_end_array(w);
        }
        json_end_object(w);
    }
    json_end_array(w);
}

static int read_rule(const struct json *j, struct arena *arena, struct choice_rule *r, struct err *e)
{
    const struct json *bias = json_get(j, "bias");
    *r = (struct choice_rule){.name = json_string(json_get(j, "name")),
                              .logits = json_string(json_get(j, "logits")),
                              .q = json_string(json_get(j, "q")),
                              .keys = json_string(json_get(j, "keys")),
                              .weights = json_string(json_get(j, "weights")),
                              .node = D0_NO_VALUE};
    json_i64(json_get(j, "topk"), &r->topk);
    json_i64(json_get(j, "score"), &r->score);
    json_i64(json_get(j, "groups"), &r->groups);
    json_i64(json_get(j, "groups_kept"), &r->groups_kept);
    json_i64(json_get(j, "group_score"), &r->group_score);
    json_i64(json_get(j, "heads"), &r->heads);
    json_i64(json_get(j, "dim"), &r->dim);
    json_f64(json_get(j, "scale"), &r->scale);
    if (!bias || bias->type != JSON_ARRAY)
        return ERR_OK;
    float *to = arena_alloc_n(arena, bias->n + (size_t)1, sizeof *to);
    for (uint32_t i = 0; to && i < bias->n; i++) {
        double x = NAN;
        json_f64(json_at(bias, i), &x);
        to[i] = (float)x;
    }
    r->bias = to;
    r->n_bias = bias->n;
    return to ? ERR_OK : no_memory(e);
}

int choice_rules_read(const struct trace *t, struct arena *arena, struct choice_rules *out, struct err *e)
{
    const char *text = trace_meta(t, NEAR_TIE_META);
    const struct json *list;
    struct err inner = {0};
    *out = (struct choice_rules){0};
    if (!text || json_parse(text, strlen(text), NULL, arena, &list, &inner) || list->type != JSON_ARRAY)
        return inner.code == ERR_NOMEM ? no_memory(e) : ERR_OK;
    out->list = arena_alloc_n(arena, list->n + (size_t)1, sizeof *out->list);
    int rc = out->list ? ERR_OK : no_memory(e);
    for (uint32_t i = 0; rc == 0 && i < list->n && i < GRAPH_MAX_NODES; i++) {
        rc = read_rule(json_at(list, i), arena, &out->list[out->n], e);
        out->n += out->list[out->n].name != NULL;
    }
    return rc;
}

const struct choice_rule *choice_rule_find(const struct choice_rules *rules, const char *name)
{
    for (size_t i = 0; i < rules->n; i++)
        if (!strcmp(rules->list[i].name, name))
            return &rules->list[i];
    return NULL;
}

/* ---- margins ---- */

static int largest_first(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Between the k-th and the next of n, which are sorted here. */
static double gap(double *v, int64_t n, int64_t k)
{
    if (k >= n)
        return INFINITY;
    qsort(v, (size_t)n, sizeof *v, largest_first);
    return v[k - 1] - v[k];
}

static double score_of(int64_t kind, double x, double largest, double sum)
{
    return kind == 1   ? 1 / (1 + exp(-x))
           : kind == 2 ? sqrt(fmax(x, 0) + log1p(exp(-fabs(x))))
           : kind == 0 ? exp(x - largest) / sum
                       : x;
}

/* Groups that do not stay lose their candidates. Margin of that choice. work: [n + groups] */
static double drop_groups(const struct choice_rule *r, double *v, int64_t n, double *work)
{
    const int64_t groups = r->groups, kept = r->groups_kept, each = groups > 1 ? n / groups : n;
    double *sums = work + n, *sorted = work;
    if (groups <= 1 || kept < 1 || kept >= groups || each < 1 || n % groups)
        return INFINITY;
    for (int64_t g = 0; g < groups; g++) {
        memcpy(work, v + g * each, (size_t)each * sizeof *v);
        qsort(work, (size_t)each, sizeof *v, largest_first);
        sums[g] = work[0] + (r->group_score == 0 && each > 1 ? work[1] : 0);
    }
    memcpy(sorted, sums, (size_t)groups * sizeof *sums);
    double margin = gap(sorted, groups, kept);
    for (int64_t i = 0; i < n; i++)
        if (sums[i / each] < sorted[kept - 1])
            v[i] = -INFINITY;
    return margin;
}

/* v: [n] scratch; work: [2 n]. NaN where the row has one. */
static double route_margin(const struct choice_rule *r, const float *z, int64_t n, double *v, double *work)
{
    double largest = -INFINITY, sum = 0;
    /* softmax keeps the order of logits, which says more than tiny shares do */
    const bool order_only = r->score == 0 && !r->bias && r->groups <= 1;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(z[i]))
            return NAN;
        largest = fmax(largest, (double)z[i]);
    }
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)z[i] - largest);
    for (int64_t i = 0; i < n; i++)
        v[i] = score_of(order_only ? 3 : r->score, (double)z[i], largest, sum) +
               (r->bias ? (double)r->bias[i] : 0);
    double of_groups = drop_groups(r, v, n, work);
    return fmin(of_groups, gap(v, n, r->topk));
}

static int near_of_route(const struct trace *t, const struct choice_rule *r, uint8_t *near, bool *known,
                         struct err *e)
{
    const struct trace_tensor *x = trace_find(t, r->logits);
    const int64_t n = x ? (int64_t)x->width : 0;
    *known = x && x->dtype != D0_I32 && r->topk >= 1 && (!r->bias || r->n_bias == x->width);
    if (!*known)
        return ERR_OK;
    float *z = malloc((size_t)n * sizeof *z);
    double *v = malloc((size_t)n * 3 * sizeof *v); /* candidates, and twice as many of scratch */
    int rc = z && v ? ERR_OK : no_memory(e);
    for (uint64_t row = 0; rc == 0 && row < x->rows; row++) {
        rc = trace_read(t, x, row, 1, z, e);
        if (rc == 0)
            near[row] = route_margin(r, z, n, v, v + n) < NEAR_TIE;
    }
    free(z);
    free(v);
    return rc;
}

struct index_rows {
    float *q, *keys, *weights; /* [heads * dim], [rows, dim], [heads] or NULL */
    double *v;                 /* [rows] */
};

static double index_margin(const struct choice_rule *r, const struct index_rows *x, int64_t n)
{
    double largest = 0, scale = r->scale != 0 ? r->scale : 1;
    if (n <= r->topk)
        return INFINITY;
    for (int64_t s = 0; s < n; s++) {
        double sum = 0;
        for (int64_t h = 0; h < r->heads; h++) {
            const float *q = x->q + h * r->dim, *k = x->keys + s * r->dim;
            double dot = 0;
            for (int64_t d = 0; d < r->dim; d++)
                dot += (double)q[d] * (double)k[d];
            sum += (x->weights ? (double)x->weights[h] : 1) * fmax(scale * dot, 0);
        }
        if (!isfinite(sum))
            return NAN;
        x->v[s] = sum;
        largest = fmax(largest, fabs(sum));
    }
    double margin = gap(x->v, n, r->topk);
    return largest > 0 ? margin / largest : 0;
}

static int near_of_index(const struct trace *t, const struct choice_rule *r, uint64_t *most, uint8_t *near,
                         bool *known, struct err *e)
{
    const struct trace_tensor *q = r->q ? trace_find(t, r->q) : NULL,
                              *k = r->keys ? trace_find(t, r->keys) : NULL,
                              *w = r->weights ? trace_find(t, r->weights) : NULL;
    uint64_t width, products = 0;
    *known = q && k && (w || !r->weights) && r->topk >= 1 && r->heads >= 1 && r->dim >= 1 &&
             mul_u64((uint64_t)r->heads, (uint64_t)r->dim, &width) && q->width == width &&
             k->width == (uint64_t)r->dim && (!w || w->width == (uint64_t)r->heads) && q->dtype != D0_I32 &&
             k->dtype != D0_I32 && (!w || w->dtype != D0_I32) &&
             mul_u64(q->rows * q->rows, width, &products) && products <= *most;
    if (!*known)
        return ERR_OK;
    *most -= products;
    const size_t rows = (size_t)q->rows;
    struct index_rows x = {.q = malloc((size_t)width * sizeof *x.q),
                           .keys = malloc(rows * (size_t)k->width * sizeof *x.keys),
                           .weights = w ? malloc((size_t)w->width * sizeof *x.weights) : NULL,
                           .v = malloc(rows * sizeof *x.v)};
    int rc =
        x.q && x.keys && x.v && (x.weights || !w) ? trace_read(t, k, 0, k->rows, x.keys, e) : no_memory(e);
    for (uint64_t row = 0; rc == 0 && row < rows; row++) {
        rc = trace_read(t, q, row, 1, x.q, e);
        if (rc == 0 && w)
            rc = trace_read(t, w, row, 1, x.weights, e);
        if (rc == 0)
            near[row] = index_margin(r, &x, (int64_t)row + 1) < NEAR_TIE;
    }
    free(x.q);
    free(x.keys);
    free(x.weights);
    free(x.v);
    return rc;
}

int choice_near(const struct trace *t, const struct choice_rule *r, uint64_t *products, uint8_t *near,
                bool *known, struct err *e)
{
    memset(near, 0, t->n_ids);
    return r->logits ? near_of_route(t, r, near, known, e) : near_of_index(t, r, products, near, known, e);
}

int choice_near_all(const struct trace *t, const struct choice_rules *rules, struct arena *arena,
                    uint8_t ***near, uint8_t **any, size_t *unknown, struct err *e)
{
    uint64_t products = NEAR_TIE_PRODUCTS;
    int rc = ERR_OK;
    *near = arena_alloc_n(arena, rules->n + 1, sizeof **near);
    *any = arena_alloc(arena, t->n_ids);
    if (!*near || !*any)
        return no_memory(e);
    for (size_t i = 0; rc == 0 && i < rules->n; i++) {
        bool known = false;
        uint8_t *rows = (i + 1) * t->n_ids <= MOST_RULE_ROWS ? arena_alloc(arena, t->n_ids) : NULL;
        rc = rows ? choice_near(t, &rules->list[i], &products, rows, &known, e) : no_memory(e);
        (*near)[i] = known ? rows : NULL;
        *unknown += !known;
        for (uint64_t row = 0; rc == 0 && known && row < t->n_ids; row++)
            (*any)[row] |= rows[row];
    }
    return rc;
}

int oracle_near_ties(const struct oracle_model *m, const char *reference, uint8_t *rows, size_t n,
                     struct err *e)
{
    struct trace *t = NULL;
    struct stream s = {0};
    struct choice_rules rules;
    struct arena arena;
    uint8_t **near, *any;
    size_t unknown = 0;
    arena_init(&arena, m->d0 ? &m->d0->mem : NULL, MEM_MISC);
    int rc = trace_open(&t, reference, e);
    if (rc == 0 && t->n_ids != n)
        rc = err_set(e, ERR_MISMATCH, "%s has %zu tokens, not %zu", reference, t->n_ids, n);
    if (rc == 0)
        rc = stream_open(&s, m, t->ids, t->n_ids, e);
    if (rc == 0)
        rc = choice_rules_of(&s, &arena, &rules, e);
    if (rc == 0)
        rc = choice_near_all(t, &rules, &arena, &near, &any, &unknown, e);
    if (rc == 0)
        memcpy(rows, any, n);
    if (s.m)
        stream_close(&s);
    trace_close(t);
    arena_release(&arena);
    return rc;
}
