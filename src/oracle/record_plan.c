/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what a recording runs and what it keeps: nodes of the layers asked for, values that later pieces
 * read, values that go into the trace. Refuses layers that there are not, probes that nobody makes, and a
 * beginning in mid-model without a trace that holds what enters it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/record_impl.h"

/* ---- nodes ---- */

static int choose_nodes(struct recording *r, struct err *e)
{
    const struct graph *g = r->g;
    int32_t most = -1, first = r->o->first_layer, last = r->o->last_layer;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        most = g->nodes[i].layer > most ? g->nodes[i].layer : most;
    if (first < 0 && last < 0) {
        first = 0;
        last = most;
    }
    if (first < 0 || last < first || (last > most && most >= 0))
        return err_set(e, ERR_INVALID, "layers %d to %d: the model has layers 0 to %d", first, last, most);
    bool seen = false;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        int32_t layer = g->nodes[i].layer;
        seen |= layer >= 0;
        r->wanted[i] = layer >= 0 ? layer >= first && layer <= last : seen ? last == most : first == 0;
    }
    r->out->first_layer = first;
    r->out->last_layer = last;
    return ERR_OK;
}

/* ---- values between pieces ---- */

static uint64_t rows_bytes(const struct recording *r, uint32_t v)
{
    const struct d0_value *x = &r->g->values[v];
    uint64_t bytes;
    return x->n_dims == 2 && x->dims[1] > 0 && mul_u64((uint64_t)x->dims[1] * 4, r->o->n_ids, &bytes) ? bytes
                                                                                                      : 0;
}

/* Most bytes of values that are alive where one layer ends and the next begins. */
static int measure_carried(struct recording *r, struct err *e)
{
    const struct graph *g = r->g;
    int64_t *change = calloc(g->n_nodes + (size_t)2, sizeof *change), alive = 0, most = 0;
    uint32_t *last = calloc(g->n_values + (size_t)1, sizeof *last);
    int rc = change && last ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a graph of %u nodes", g->n_nodes);
    for (uint32_t i = 0; rc == 0 && i < g->n_nodes; i++)
        for (uint32_t k = 0; r->wanted[i] && k < g->nodes[i].n_inputs; k++)
            if (g->nodes[i].inputs[k] != D0_NO_VALUE)
                last[g->nodes[i].inputs[k]] = i;
    for (uint32_t v = 0; rc == 0 && v < g->n_values; v++) {
        uint32_t at = r->stream.maker[v];
        if (at == D0_NO_VALUE || r->stream.positional[at] || !r->wanted[at] || last[v] <= at)
            continue;
        change[at + 1] += (int64_t)rows_bytes(r, v);
        change[last[v] + 1] -= (int64_t)rows_bytes(r, v);
    }
    for (uint32_t i = 0; rc == 0 && i < g->n_nodes; i++) {
        alive += change[i];
        if (i && g->nodes[i].layer != g->nodes[i - 1].layer && alive > most)
            most = alive;
    }
    r->stream.carried = (uint64_t)most;
    free(change);
    free(last);
    return rc;
}

static int make_pieces(struct recording *r, struct err *e)
{
    uint32_t n = 0, *nodes = malloc((r->g->n_nodes + (size_t)1) * sizeof *nodes);
    if (!nodes)
        return err_set(e, ERR_NOMEM, "no memory for a graph of %u nodes", r->g->n_nodes);
    for (uint32_t i = 0; i < r->g->n_nodes; i++)
        if (r->wanted[i])
            nodes[n++] = i;
    int rc = stream_add(&r->stream, nodes, n, 0, e);
    free(nodes);
    memset(r->piece_of, 0xff, (r->g->n_nodes + (size_t)1) * sizeof *r->piece_of);
    for (size_t p = 0; rc == 0 && p < r->stream.n_pieces; p++)
        for (uint32_t k = 0; k < r->stream.pieces[p].n_nodes; k++)
            r->piece_of[r->stream.pieces[p].nodes[k]] = (uint32_t)p;
    return rc;
}

/* What a trace must hold where the run begins in mid-model. */
static int check_entering(struct recording *r, uint32_t v, struct err *e)
{
    char name[256];
    const char *is = stream_name(&r->stream, v, name, sizeof name);
    const struct trace_tensor *t = r->from ? trace_find(r->from, is) : NULL;
    if (!t) {
        err_set(e, ERR_MISSING, "%s enters layer %d, and %s", is, r->out->first_layer,
                r->from ? "the trace does not hold it" : "no trace was given");
        err_hint(e, "record the layers before, and give that trace with --from");
        return ERR_MISSING;
    }
    if (t->width != (uint64_t)r->g->values[v].dims[1] ||
        (t->dtype == D0_I32) != (r->g->values[v].dtype == D0_I32))
        return err_set(e, ERR_MISMATCH, "%s: %s is %llu wide, the model's is %lld", r->from->path, is,
                       (unsigned long long)t->width, (long long)r->g->values[v].dims[1]);
    return ERR_OK;
}

/* A state that a node outside of the run writes cannot be had. */
static int check_state(const struct recording *r, uint32_t v, struct err *e)
{
    for (uint32_t i = 0; i < r->g->n_nodes; i++)
        for (uint32_t k = 0; !r->wanted[i] && k < r->g->nodes[i].n_inputs; k++)
            if (r->g->nodes[i].inputs[k] == v && r->g->nodes[i].layer < r->out->first_layer)
                return err_set(e, ERR_INVALID, "%s is written by layer %d: begin there or before",
                               r->g->info[v].name, r->g->nodes[i].layer);
    return ERR_OK;
}

/* Values that a later piece reads are kept; each entering one is looked for in the trace. */
static int find_kept(struct recording *r, struct err *e)
{
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == 0 && i < r->g->n_nodes; i++) {
        const struct d0_node *n = &r->g->nodes[i];
        if (!r->wanted[i] || r->stream.positional[i])
            continue;
        for (uint32_t k = 0; rc == 0 && k < n->n_inputs; k++) {
            uint32_t v = n->inputs[k], at = v == D0_NO_VALUE ? D0_NO_VALUE : r->stream.maker[v];
            if (v != D0_NO_VALUE && r->g->values[v].kind == D0_VALUE_STATE)
                rc = check_state(r, v, e);
            if (rc || at == D0_NO_VALUE || r->stream.positional[at])
                continue;
            if (!r->wanted[at])
                rc = check_entering(r, v, e);
            else if (r->piece_of[at] != r->piece_of[i])
                r->kept[v] =
                    (struct kept){.bytes = rows_bytes(r, v), .last_piece = r->piece_of[i], .wanted = true};
        }
    }
    return rc;
}

/* ---- values in the trace ---- */

static bool listed(const char *list, const char *name, bool *used)
{
    for (size_t at = 0, k = 0; list[at]; k++) {
        size_t n = strcspn(list + at, ",");
        bool star = n && list[at + n - 1] == '*';
        if (k < 256 &&
            (star ? !strncmp(list + at, name, n - 1) : strlen(name) == n && !memcmp(list + at, name, n))) {
            used[k] = true;
            return true;
        }
        at += n + (list[at + n] == ',');
    }
    return false;
}

/* Also what an operator gives besides its first output, and what was chosen: whoever compares feeds what
 * follows with the reference's own choice. */
static bool can_be_probe(const struct recording *r, uint32_t v)
{
    const struct d0_node *n = &r->g->nodes[r->stream.maker[v]];
    const bool choice = n->op == D0_OP_ROUTE || n->op == D0_OP_INDEX_TOPK;
    return v != graph_result(r->g) && r->g->values[v].n_dims == 2 &&
           (choice || (r->g->info[n->outputs[0]].probe && r->g->values[v].dtype == D0_F32));
}

static bool is_probe(const struct recording *r, uint32_t v, bool *used)
{
    const struct graph_value_info *info = &r->g->info[v];
    const char *probes = r->o->probes ? r->o->probes : "all";
    if (!can_be_probe(r, v) || !strcmp(probes, "none"))
        return false;
    if (!strcmp(probes, "all"))
        return true;
    return strcmp(probes, "layers") ? listed(probes, info->name, used) : stream_layer_result(info);
}

/* Does a node beyond the last layer of this run read it? */
static bool leaves(const struct recording *r, uint32_t v)
{
    for (uint32_t i = r->stream.maker[v] + 1; i < r->g->n_nodes; i++)
        for (uint32_t k = 0; !r->wanted[i] && k < r->g->nodes[i].n_inputs; k++)
            if (r->g->nodes[i].inputs[k] == v)
                return true;
    return false;
}

static int add_slot(struct recording *r, uint32_t v, const char *name, struct err *e)
{
    struct trace_slot *s = &r->writer.slots[r->writer.n_slots];
    s->name = arena_strdup(r->arena, name);
    if (!s->name)
        return err_set(e, ERR_NOMEM, "no memory for the names of a trace");
    s->dtype = r->g->values[v].dtype;
    s->rows = r->o->n_ids;
    s->width = (uint64_t)r->g->values[v].dims[1];
    r->slot_of[v] = (uint32_t)r->writer.n_slots++;
    return stream_want(&r->stream, 0, v, e);
}

static int choose_value(struct recording *r, uint32_t v, bool *used, struct err *e)
{
    char name[256];
    int rc = ERR_OK;
    if (v == graph_result(r->g) && r->g->values[v].dtype == D0_F32) {
        r->out->logits = true;
        rc = add_slot(r, v, TRACE_LOGITS, e);
    } else if (is_probe(r, v, used)) {
        r->out->probes++;
        rc = add_slot(r, v, stream_name(&r->stream, v, name, sizeof name), e);
    } else if (leaves(r, v)) {
        r->out->handed_on++;
        rc = add_slot(r, v, stream_name(&r->stream, v, name, sizeof name), e);
    }
    if (rc == 0 && (r->kept[v].wanted || (r->watched && r->g->values[v].dtype == D0_F32)))
        rc = stream_want(&r->stream, 0, v, e);
    return rc;
}

static int unknown_probe(const char *list, const bool *used, struct err *e)
{
    for (size_t at = 0, k = 0; list[at]; k++) {
        size_t n = strcspn(list + at, ",");
        if (k >= 256)
            return err_set(e, ERR_INVALID, "more than 256 names of probes");
        if (!used[k]) {
            err_set(e, ERR_INVALID, "no probe is named %.*s", (int)(n < 200 ? n : 200), list + at);
            err_hint(e, "probes are named after modules: model.layers.0.self_attn.q_proj, or "
                        "model.layers.0.*");
            return ERR_INVALID;
        }
        at += n + (list[at + n] == ',');
    }
    return ERR_OK;
}

static int choose_values(struct recording *r, struct err *e)
{
    bool used[256] = {false};
    int rc = ERR_OK;
    r->writer.slots = arena_alloc_n(r->arena, r->g->n_values + (size_t)1, sizeof *r->writer.slots);
    if (!r->writer.slots)
        return err_set(e, ERR_NOMEM, "no memory for the tensors of a trace");
    for (uint32_t i = 0; rc == 0 && i < r->g->n_nodes; i++)
        for (uint32_t k = 0;
             rc == 0 && r->wanted[i] && !r->stream.positional[i] && k < r->g->nodes[i].n_outputs; k++)
            rc = choose_value(r, r->g->nodes[i].outputs[k], used, e);
    const char *probes = r->o->probes ? r->o->probes : "all";
    if (rc || !strcmp(probes, "all") || !strcmp(probes, "layers") || !strcmp(probes, "none"))
        return rc;
    return unknown_probe(probes, used, e);
}

/* ---- all ---- */

static int check_from(const struct recording *r, struct err *e)
{
    const struct trace *t = r->from;
    if (t && (t->n_ids != r->o->n_ids || memcmp(t->ids, r->o->ids, t->n_ids * sizeof *t->ids)))
        return err_set(e, ERR_MISMATCH, "%s: its token ids are not those of this run", t->path);
    return ERR_OK;
}

int record_plan(struct recording *r, struct err *e)
{
    const struct graph *g = r->g;
    r->wanted = arena_alloc(r->arena, g->n_nodes + (size_t)1);
    r->piece_of = arena_alloc_n(r->arena, g->n_nodes + (size_t)1, sizeof *r->piece_of);
    r->slot_of = arena_alloc_n(r->arena, g->n_values + (size_t)1, sizeof *r->slot_of);
    r->kept = arena_alloc_n(r->arena, g->n_values + (size_t)1, sizeof *r->kept);
    if (r->o->watch)
        r->watched = arena_alloc_n(r->arena, g->n_values + (size_t)1, sizeof *r->watched);
    if ((r->o->watch && !r->watched) || !r->wanted || !r->piece_of || !r->slot_of || !r->kept)
        return err_set(e, ERR_NOMEM, "no memory for a graph of %u nodes", g->n_nodes);
    memset(r->slot_of, 0xff, (g->n_values + (size_t)1) * sizeof *r->slot_of);
    int rc = choose_nodes(r, e);
    if (rc == 0 && r->o->from)
        rc = trace_open(&r->from, r->o->from, e);
    if (rc == 0)
        rc = check_from(r, e);
    if (rc == 0)
        rc = stream_open(&r->stream, r->m, r->o->ids, r->o->n_ids, e);
    if (rc == 0)
        rc = stream_weigh(&r->stream, r->wanted, e);
    if (rc == 0)
        rc = measure_carried(r, e);
    if (rc == 0)
        rc = make_pieces(r, e);
    if (rc == 0)
        rc = find_kept(r, e);
    return rc ? rc : choose_values(r, e);
}
