/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: one piece of a stream as a graph of its own, and its weights from the checkpoint into one run of host
 * memory: every byte once, in the order of the graph, straight to its place. Of an embedding only the rows of
 * the tokens that occur are read.
 */
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "oracle/stream.h"
#include "tensor/tensor.h"

#define CHUNK_MOST  1024u
#define CHUNK_LEAST 1u

/* ---- the graph ---- */

/* A table that only embeddings by token id read, plainly stored: its rows can be read one by one. */
static bool plain_table(const struct stream *s, const struct graph *g, uint32_t v)
{
    const struct graph_value_info *info = &g->info[v];
    const struct spec *spec = s->m->spec;
    if (g->values[v].format.scale_dtype || info->constant || g->values[v].n_dims != 2)
        return false;
    if (info->weight && info->weight <= spec->n_weights) {
        const struct spec_weight *w = &spec->weights[info->weight - 1];
        return w->count == 1 && w->form.scheme == QUANT_NONE && w->tensor;
    }
    return ckpt_find(s->m->ckpt, info->name) != NULL;
}

/* Whether nothing but embeddings reads the ids, and nothing else reads their tables. */
static bool rows_are_enough(const struct stream *s, const struct graph *g)
{
    bool any = false;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        bool embed = n->op == D0_OP_EMBED;
        any |= embed;
        if (embed && (g->values[n->inputs[0]].role != D0_INPUT_IDS || !plain_table(s, g, n->inputs[1])))
            return false;
        for (uint32_t k = 0; !embed && k < n->n_inputs; k++) {
            uint32_t v = n->inputs[k];
            if (v == D0_NO_VALUE)
                continue;
            if (g->values[v].kind == D0_VALUE_INPUT && g->values[v].role == D0_INPUT_IDS)
                return false;
            for (uint32_t j = 0; j < g->n_nodes; j++)
                if (g->nodes[j].op == D0_OP_EMBED && g->nodes[j].inputs[1] == v)
                    return false;
        }
    }
    return any;
}

static void cut_tables(const struct stream *s, struct graph *g)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == D0_OP_EMBED)
            g->values[g->nodes[i].inputs[1]].dims[0] = s->n_unique;
}

/* All pages of the one sequence; one slot in states that do not grow. */
static void set_states(const struct stream *s, struct graph *g, uint32_t *pages)
{
    int64_t page = 0;
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == D0_VALUE_STATE && g->info[i].state == STATE_PAGES &&
            g->values[i].n_dims == 4 && (page == 0 || g->values[i].dims[2] < page))
            page = g->values[i].dims[2];
    *pages = page > 0 ? (uint32_t)((s->n_tokens + page - 1) / page) : 1;
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == D0_VALUE_STATE)
            g->values[i].dims[0] = g->info[i].state == STATE_PAGES ? *pages : 1;
}

static void mark_outputs(struct graph *g, const struct stream_piece *p)
{
    for (uint32_t i = 0; i < g->n_values; i++) {
        g->info[i].probe = g->info[i].keep = false;
        if (g->values[i].kind != D0_VALUE_ACTIVATION && g->values[i].kind != D0_VALUE_OUTPUT)
            continue;
        for (uint32_t k = 0; k < p->n_outputs; k++)
            g->info[i].keep |= g->info[i].origin == p->outputs[k] + 1;
    }
}

/* Tokens of one step: halved until its activations fit. Rows are independent of how they are cut. */
static int plan_chunk(const struct stream *s, struct stream_part *p, uint64_t room, struct err *e)
{
    uint32_t chunk = s->n_tokens < CHUNK_MOST ? s->n_tokens : CHUNK_MOST;
    for (;; chunk = (chunk + 1) / 2) {
        const int64_t dims[D0_N_DIMS] = {chunk, 1, chunk, p->pages};
        int rc = graph_plan_memory(p->g, dims, false, e);
        if (rc)
            return rc;
        p->chunk = chunk;
        if (p->g->scratch_bytes <= room || chunk <= CHUNK_LEAST)
            return ERR_OK;
    }
}

static int measure(struct stream_part *p, struct err *e)
{
    p->weight_bytes = 0;
    for (uint32_t i = 0; i < p->g->n_values; i++) {
        static const int64_t no_dims[D0_N_DIMS];
        uint64_t bytes;
        if (p->g->values[i].kind != D0_VALUE_WEIGHT)
            continue;
        if (!tensor_value_bytes(&p->g->values[i], no_dims, &bytes) || bytes > UINT64_MAX - 64 ||
            !add_u64(p->weight_bytes, ALIGN_UP(bytes, 64), &p->weight_bytes))
            return err_set(e, ERR_LIMIT, "the weights of layer %d are too large to address",
                           p->g->nodes[0].layer);
    }
    return ERR_OK;
}

/* Experts are computed together, which gives the same bits and reads each once, where the device knows how.
 */
static void group_experts(const struct stream *s, struct graph *g)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct d0_part part;
        char reason[160];
        if (g->nodes[i].op != D0_OP_EXPERTS || !node_set_attr_i(&g->nodes[i], D0_ATTR_FORM, 1))
            continue;
        graph_part(g, &part);
        if (!dev_supports(s->m->dev, &part, i, reason, sizeof reason))
            node_set_attr_i(&g->nodes[i], D0_ATTR_FORM, 0);
    }
}

int stream_part_make(const struct stream *s, const struct stream_piece *p, uint64_t scratch_room,
                     struct stream_part *out, struct err *e)
{
    *out = (struct stream_part){0};
    uint8_t *wanted = calloc(s->g->n_nodes + 1u, 1);
    if (!wanted)
        return err_set(e, ERR_NOMEM, "no memory to cut a graph");
    for (uint32_t i = 0; i < p->n_nodes; i++)
        wanted[p->nodes[i]] = 1;
    int rc = graph_slice_nodes(s->g, wanted, &out->g, e);
    free(wanted);
    if (rc) {
        out->g = NULL;
        return rc;
    }
    set_states(s, out->g, &out->pages);
    mark_outputs(out->g, p);
    out->by_place = rows_are_enough(s, out->g);
    if (out->by_place)
        cut_tables(s, out->g);
    if (p->places)
        rc = stream_choice_make(s, p->places, out, e);
    if (rc == 0)
        rc = measure(out, e);
    if (rc == 0)
        rc = plan_chunk(s, out, scratch_room, e);
    if (rc)
        stream_part_free(out);
    else
        group_experts(s, out->g);
    return rc;
}

void stream_part_free(struct stream_part *p)
{
    if (p->g)
        graph_free(p->g);
    p->g = NULL;
    stream_choice_free(p->choice);
    p->choice = NULL;
}

/* ---- weights ---- */

static bool is_table(const struct graph *g, uint32_t v)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == D0_OP_EMBED && g->nodes[i].inputs[1] == v)
            return true;
    return false;
}

static int read_rows(const struct stream *s, const struct graph *g, uint32_t v, unsigned char *to,
                     struct err *e)
{
    const struct graph_value_info *info = &g->info[v];
    const struct spec *spec = s->m->spec;
    const struct ckpt_tensor *t = info->weight && info->weight <= spec->n_weights
                                      ? spec->weights[info->weight - 1].tensor
                                      : ckpt_find(s->m->ckpt, info->name);
    const uint64_t row = (uint64_t)g->values[v].dims[1] * dtype_bits(g->values[v].dtype) / 8;
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == 0 && i < s->n_unique; i++)
        rc = ckpt_read(s->m->ckpt, t, (uint64_t)s->unique[i] * row, to + i * row, row, e);
    return rc;
}

int stream_no_sink(void *context, uint64_t at, const void *bytes, uint64_t n, struct err *e)
{
    (void)context, (void)at, (void)bytes, (void)n;
    return err_set(e, ERR_INVALID, "a weight went past its place");
}

static int load_all(const struct stream *s, struct stream_part *p, unsigned char *staging)
{
    static const int64_t no_dims[D0_N_DIMS];
    const struct graph *g = p->g;
    struct load_reader r = {.g = g,
                            .spec = s->m->spec,
                            .c = s->m->ckpt,
                            .staging = staging,
                            .staging_bytes = STREAM_STAGING_BYTES,
                            .readers = s->ahead_readers,
                            .sink = stream_no_sink};
    unsigned char *at = p->slot;
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == 0 && i < g->n_values; i++) {
        uint64_t bytes;
        if (g->values[i].kind != D0_VALUE_WEIGHT || !tensor_value_bytes(&g->values[i], no_dims, &bytes))
            continue;
        r.direct = at;
        rc =
            p->by_place && is_table(g, i) ? read_rows(s, g, i, at, &p->err) : load_value_read(&r, i, &p->err);
        if (rc)
            err_ctx(&p->err, "while loading %s", g->info[i].name);
        at += ALIGN_UP(bytes, 64);
    }
    return rc;
}

void stream_part_load(const struct stream *s, struct stream_part *p)
{
    if (p->choice) /* which ones is not known before the piece runs */
        return;
    uint64_t begin = clock_ns();
    unsigned char *staging = malloc(STREAM_STAGING_BYTES);
    p->rc = staging ? load_all(s, p, staging) : err_set(&p->err, ERR_NOMEM, "no memory to read weights");
    free(staging);
    p->seconds = (double)(clock_ns() - begin) * 1e-9;
}
