/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns what the operators of a model are fed with in `ops --from`: rows of the trace, rows that the reference
 * device computed where the trace has none, states as the reference left them, and real weights, of experts
 * only those that the rows chose. Memory is bounded by the budget: one operator's weights at a time.
 */
#include "verify/ops_from.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"

#define CHUNK_MOST           256u
#define CASE_ELEMENTS        ((uint64_t)1 << 24) /* of an output, so that steps stay small */
#define STAGING_BYTES        ((uint64_t)8 << 20)
#define COPIES               2 /* of weights: ours, and that of the device that runs */
#define EXPERTS_FIRST_WEIGHT 3u

static bool is_rows(const struct d0_value *v)
{
    return v->kind == D0_VALUE_ACTIVATION || v->kind == D0_VALUE_OUTPUT ||
           (v->kind == D0_VALUE_INPUT && v->role == D0_INPUT_HIDDEN);
}

bool from_has_inputs(const struct from *f, uint32_t node, char *why, size_t bytes)
{
    const struct d0_node *n = &f->g->nodes[node];
    for (uint32_t k = 0; k < n->n_inputs; k++) {
        uint32_t v = n->inputs[k];
        if (v == D0_NO_VALUE || f->from_model[v] || f->known[v] || f->kept[v])
            continue;
        snprintf(why, bytes, "%s is not recorded, and what makes it was not run", f->g->info[v].name);
        return false;
    }
    return true;
}

/* ---- weights ---- */

/* Bytes that a weight takes in a run: on host and device, and widened for the natural scale. */
static uint64_t weight_need(const struct d0_value *v)
{
    static const int64_t no_dims[D0_N_DIMS];
    uint64_t bytes, elements = 1;
    if (!tensor_value_bytes(v, no_dims, &bytes))
        return UINT64_MAX / 16;
    for (uint32_t d = 0; d < v->n_dims; d++)
        if (!mul_u64(elements, (uint64_t)v->dims[d], &elements) || elements > UINT64_MAX / 64)
            return UINT64_MAX / 16;
    return COPIES * bytes + 4 * elements;
}

static uint64_t weights_need(const struct from *f, const struct opshape *s)
{
    (void)f;
    uint64_t sum = 0;
    for (uint32_t k = 0; k < s->node.n_inputs; k++)
        if (s->node.inputs[k] != D0_NO_VALUE && s->in[k].kind == D0_VALUE_WEIGHT)
            sum += weight_need(&s->in[k]);
    return sum;
}

static void set_places(struct opshape *s, int64_t places)
{
    for (uint32_t k = EXPERTS_FIRST_WEIGHT; k < s->node.n_inputs; k++)
        if (s->node.inputs[k] != D0_NO_VALUE && s->in[k].kind == D0_VALUE_WEIGHT)
            s->in[k].dims[0] = places;
}

static int too_large(const struct from *f, uint64_t need, struct err *e)
{
    char a[32], b[32];
    uint64_t left = f->budget > f->holding ? f->budget - f->holding : 0;
    return err_set(e, ERR_NOMEM, "needs %s to be judged, there is room for %s",
                   format_bytes(need, a, sizeof a), format_bytes(left, b, sizeof b));
}

/* Reads one weight of the node into memory of the case. choice: of experts, or NULL. */
static int read_weight(struct from *f, struct from_case *x, uint32_t k, const struct load_choice *choice,
                       struct err *e)
{
    const uint32_t v = f->g->nodes[x->node].inputs[k], id = x->c.in[k];
    const struct graph *g = f->g;
    struct graph *slice = NULL;
    uint32_t at = v;
    int rc = ERR_OK;
    if (choice) { /* a graph whose value has room for some experts only */
        uint8_t *wanted = calloc(g->n_nodes + (size_t)1, 1);
        if (!wanted)
            return err_set(e, ERR_NOMEM, "no memory to read weights");
        wanted[x->node] = 1;
        rc = graph_slice_nodes(g, wanted, &slice, e);
        free(wanted);
        if (rc)
            return rc;
        for (uint32_t i = 0; i < slice->n_values; i++)
            if (slice->info[i].origin == v + 1)
                at = i;
        slice->values[at].dims[0] = x->places;
        g = slice;
    }
    struct load_reader r = {.g = g,
                            .spec = f->o->spec,
                            .c = f->o->ckpt,
                            .staging = malloc(STAGING_BYTES),
                            .staging_bytes = STAGING_BYTES,
                            .direct = x->c.data[id],
                            .choice = choice};
    rc = r.staging ? load_value_read(&r, at, e) : err_set(e, ERR_NOMEM, "no memory to read weights");
    free(r.staging);
    if (slice)
        graph_free(slice);
    return rc;
}

static int load_weights(struct from *f, struct from_case *x, const struct load_choice *choice, struct err *e)
{
    static const int64_t no_dims[D0_N_DIMS];
    int rc = ERR_OK;
    for (uint32_t k = 0; rc == 0 && k < x->c.shape.node.n_inputs; k++) {
        const uint32_t id = x->c.in[k];
        if (id == D0_NO_VALUE || x->c.shape.in[k].kind != D0_VALUE_WEIGHT || x->c.data[id])
            continue;
        if (!tensor_value_bytes(&x->c.g->values[id], no_dims, &x->c.bytes[id]) ||
            !(x->c.data[id] = malloc(x->c.bytes[id] ? (size_t)x->c.bytes[id] : 1)))
            return err_set(e, ERR_NOMEM, "no memory for the weights of an operator");
        x->c.borrowed[id] = true; /* lives as long as the case, not as a chunk */
        rc = read_weight(f, x, k, choice, e);
    }
    return rc;
}

static int open_case(struct from *f, struct from_case *x, const struct opshape *s, struct err *e)
{
    int64_t most = CHUNK_MOST, widest = 1;
    for (uint32_t k = 0; k < f->g->nodes[x->node].n_outputs; k++) {
        const struct d0_value *v = &f->g->values[f->g->nodes[x->node].outputs[k]];
        widest = v->dims[1] > widest ? v->dims[1] : widest;
    }
    if ((uint64_t)most * (uint64_t)widest > CASE_ELEMENTS)
        most = (int64_t)(CASE_ELEMENTS / (uint64_t)widest);
    most = most < 1 ? 1 : most > f->tokens ? f->tokens : most;
    const int64_t dims[D0_N_DIMS] = {most, 1, most, f->columns};
    int rc = opcase_open(&x->c, s, dims, e);
    x->open = rc == 0;
    return rc;
}

int from_case_open(struct from *f, uint32_t node, struct from_case *x, struct err *e)
{
    struct opshape s;
    const uint64_t left = f->budget > f->holding ? f->budget - f->holding : 0;
    *x = (struct from_case){.node = node};
    if (!opshape_whole_node(f->g, &f->g->nodes[node], &s))
        return err_set(e, ERR_UNSUPPORTED, "is of an operator without a case");
    for (uint32_t k = 0; k < s.node.n_inputs; k++)
        if (s.node.inputs[k] != D0_NO_VALUE && is_rows(&f->g->values[f->g->nodes[node].inputs[k]]))
            *(f->known[f->g->nodes[node].inputs[k]] ? &x->recorded : &x->computed) += 1;
    x->chosen = s.node.op == D0_OP_EXPERTS;
    if (x->chosen) {
        x->experts = (uint32_t)s.in[EXPERTS_FIRST_WEIGHT].dims[0];
        set_places(&s, 1);
    }
    const uint64_t need = weights_need(f, &s);
    if (need > left)
        return too_large(f, need, e);
    if (x->chosen) {
        const uint64_t fit = left / (need ? need : 1), slots = (uint64_t)s.in[1].dims[1];
        uint64_t least = slots < x->experts ? slots : x->experts;
        if (fit < least)
            return too_large(f, need * least, e);
        uint64_t useful = slots * f->tokens < x->experts ? slots * f->tokens : x->experts;
        x->places = (uint32_t)(fit < useful ? fit : useful);
        set_places(&s, x->places);
        if (!(x->place_of = malloc(x->experts * sizeof *x->place_of)))
            return err_set(e, ERR_NOMEM, "no memory to choose experts");
    }
    int rc = open_case(f, x, &s, e);
    return rc || x->chosen ? rc : load_weights(f, x, NULL, e);
}

static void drop_weights(struct from_case *x)
{
    for (uint32_t k = 0; k < x->c.shape.node.n_inputs; k++) {
        const uint32_t id = x->c.in[k];
        if (id == D0_NO_VALUE || x->c.shape.in[k].kind != D0_VALUE_WEIGHT)
            continue;
        free(x->c.data[id]);
        x->c.data[id] = NULL;
    }
}

void from_case_close(struct from_case *x)
{
    if (x->open) {
        drop_weights(x);
        opcase_close(&x->c);
    }
    free(x->place_of);
    *x = (struct from_case){0};
}

/* ---- rows ---- */

static int read_rows(const struct from *f, uint32_t v, uint32_t first, uint32_t n, void *to, struct err *e)
{
    const uint64_t row = (uint64_t)f->g->values[v].dims[1] * 4;
    if (f->known[v])
        return trace_read(f->t, f->known[v], first, n, to, e);
    memcpy(to, f->kept[v] + first * row, n * row);
    return ERR_OK;
}

/* Of the *n tokens as many as have room for their experts; these are read. */
static int take_experts(struct from *f, struct from_case *x, uint32_t first, uint32_t *n, struct err *e)
{
    const uint32_t v = f->g->nodes[x->node].inputs[1], slots = (uint32_t)f->g->values[v].dims[1];
    int32_t *ids = malloc((size_t)*n * slots * sizeof *ids);
    uint32_t *list = malloc(2 * (size_t)x->places * sizeof *list), chosen = 0, t = 0;
    int rc = ids && list ? read_rows(f, v, first, *n, ids, e) : err_set(e, ERR_NOMEM, "no memory for rows");
    memset(x->place_of, 0xff, x->experts * sizeof *x->place_of);
    for (bool room = true; rc == 0 && room && t < *n; t += room) {
        const uint32_t before = chosen;
        for (uint32_t k = 0; k < slots && room; k++) {
            const int32_t id = ids[t * slots + k];
            if (id < 0 || (uint32_t)id >= x->experts || x->place_of[id] != UINT32_MAX)
                continue;
            room = chosen < x->places;
            if (room) {
                x->place_of[id] = 0;
                list[chosen++] = (uint32_t)id;
            }
        }
        while (!room && chosen > before)
            x->place_of[list[--chosen]] = UINT32_MAX;
    }
    *n = t;
    chosen = 0;
    for (uint32_t i = 0; rc == 0 && i < x->experts; i++)
        if (x->place_of[i] != UINT32_MAX) {
            list[chosen] = i;
            list[x->places + chosen] = chosen;
            x->place_of[i] = chosen++;
        }
    const struct load_choice choice = {
        .matrix = list, .place = list + x->places, .n = chosen, .of = x->experts};
    drop_weights(x);
    if (rc == 0)
        rc = load_weights(f, x, &choice, e);
    free(ids);
    free(list);
    return rc;
}

/* Experts get the numbers of their places; an identity lies behind them. */
static void rename_experts(const struct from_case *x, int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0)
            ids[i] = (uint32_t)ids[i] < x->experts ? (int32_t)x->place_of[ids[i]] : (int32_t)x->places;
}

static int fill_numbers(const struct from *f, struct from_case *x, uint32_t k, uint32_t first, struct err *e)
{
    const struct d0_value *v = &x->c.shape.in[k];
    int32_t *to = x->c.data[x->c.in[k]];
    const uint64_t n = x->c.bytes[x->c.in[k]] / sizeof *to;
    for (uint64_t i = 0; i < n; i++)
        switch ((enum d0_input_role)v->role) {
        case D0_INPUT_IDS:
            to[i] = f->t->ids[first + i];
            break;
        case D0_INPUT_POSITIONS:
            to[i] = (int32_t)(first + i);
            break;
        case D0_INPUT_ROWS:
        case D0_INPUT_PAGE_TABLE:
            to[i] = (int32_t)i;
            break;
        case D0_INPUT_SEQ_OF:
        case D0_INPUT_SLOTS:
            to[i] = 0;
            break;
        default:
            return err_set(e, ERR_UNSUPPORTED, "reads an input of role %u that is not known here", v->role);
        }
    return ERR_OK;
}

static int fill_state(struct from *f, struct from_case *x, uint32_t k, struct err *e)
{
    const uint32_t v = f->g->nodes[x->node].inputs[k], id = x->c.in[k];
    const uint64_t bytes = x->c.bytes[id];
    if (!f->state[v]) {
        if (!(f->state[v] = malloc(bytes ? (size_t)bytes : 1)))
            return err_set(e, ERR_NOMEM, "no memory for a state of %llu bytes", (unsigned long long)bytes);
        /* as the oracle begins: a slot of pages that nobody wrote shows when it is read */
        memset(f->state[v], f->g->info[v].state == STATE_PAGES ? 0xff : 0, (size_t)bytes);
        f->state_bytes[v] = bytes;
        f->holding += bytes;
    }
    if (f->state_bytes[v] != bytes)
        return err_set(e, ERR_UNSUPPORTED, "reads a state of another size");
    memcpy(x->c.data[id], f->state[v], (size_t)bytes);
    return ERR_OK;
}

static void note_largest(struct from_case *x, const float *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double m = fabs((double)rows[i]);
        if (isfinite(m) && m > x->largest)
            x->largest = m;
    }
}

int from_case_fill(struct from *f, struct from_case *x, uint32_t first, uint32_t *n, struct err *e)
{
    *n = f->tokens - first < x->c.max_dims[0] ? f->tokens - first : (uint32_t)x->c.max_dims[0];
    int rc = x->chosen ? take_experts(f, x, first, n, e) : ERR_OK;
    const int64_t dims[D0_N_DIMS] = {*n, 1, *n, f->columns};
    if (rc == 0)
        rc = opcase_allocate(&x->c, dims, e);
    for (uint32_t k = 0; rc == 0 && k < x->c.shape.node.n_inputs; k++) {
        const uint32_t id = x->c.in[k];
        const struct d0_value *s = &x->c.shape.in[k];
        if (id == D0_NO_VALUE || s->kind == D0_VALUE_WEIGHT)
            continue;
        if (s->kind == D0_VALUE_STATE) {
            rc = fill_state(f, x, k, e);
        } else if (s->role != D0_INPUT_HIDDEN) {
            rc = fill_numbers(f, x, k, first, e);
        } else {
            rc = read_rows(f, f->g->nodes[x->node].inputs[k], first, *n, x->c.data[id], e);
            if (rc == 0 && s->dtype == D0_F32)
                note_largest(x, x->c.data[id], (size_t)(x->c.bytes[id] / 4));
            if (rc == 0 && x->chosen && k == 1)
                rename_experts(x, x->c.data[id], (size_t)(x->c.bytes[id] / 4));
        }
    }
    return rc;
}

/* ---- what stays ---- */

int from_case_keep(struct from *f, const struct from_case *x, uint32_t first, uint32_t n,
                   const struct opresult *want, struct err *e)
{
    const struct d0_node *node = &f->g->nodes[x->node];
    for (uint32_t o = 0; o < x->c.n_outputs; o++) {
        const uint32_t v = node->outputs[o];
        const size_t row = x->c.out_width[o] * 4;
        if (f->known[v] || f->last[v] == D0_NO_VALUE)
            continue;
        if (!f->kept[v]) {
            if (!(f->kept[v] = malloc(row * f->tokens)))
                return err_set(e, ERR_NOMEM, "no memory for %u rows of %s", f->tokens, f->g->info[v].name);
            f->holding += row * f->tokens;
        }
        memcpy(f->kept[v] + first * row, want->out[o], n * row);
    }
    for (uint32_t k = 0; k < node->n_inputs; k++) {
        const uint32_t id = x->c.in[k], v = node->inputs[k];
        if (id != D0_NO_VALUE && want->state[id])
            memcpy(f->state[v], want->state[id], (size_t)f->state_bytes[v]);
    }
    return ERR_OK;
}

static void drop_value(struct from *f, uint32_t v)
{
    if (f->kept[v])
        f->holding -= (uint64_t)f->g->values[v].dims[1] * 4 * f->tokens;
    if (f->state[v])
        f->holding -= f->state_bytes[v];
    free(f->kept[v]);
    free(f->state[v]);
    f->kept[v] = f->state[v] = NULL;
}

void from_drop(struct from *f, uint32_t node)
{
    for (uint32_t v = 0; v < f->g->n_values; v++)
        if (f->last[v] == node)
            drop_value(f, v);
}

void from_release(struct from *f)
{
    for (uint32_t v = 0; f->kept && f->state && v < f->g->n_values; v++)
        drop_value(f, v);
    trace_close(f->t);
}
