/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: one run of a whole model over one long sequence, streamed, of which the rows at chosen positions are
 * kept: what each layer gives, and the logits. Values between pieces live in memory until their last reader.
 */
#include <stdlib.h>
#include <string.h>

#include "oracle/drift_impl.h"
#include "oracle/stream.h"

struct running {
    struct drift_pass *p;
    struct stream s;
    const struct graph *g;
    unsigned char **kept; /* by value: [n_tokens, width] of 4 bytes */
    uint32_t *last;       /* by value: last piece that reads it, plus one; 0: none outside of its own */
};

/* ---- plan ---- */

/* Most bytes that are alive where one layer ends and the next begins. */
static int measure_carried(struct running *r, struct err *e)
{
    const struct graph *g = r->g;
    uint32_t *last = calloc(g->n_values + (size_t)1, sizeof *last);
    if (!last)
        return err_set(e, ERR_NOMEM, "no memory for a graph of %u nodes", g->n_nodes);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i].n_inputs; k++)
            if (g->nodes[i].inputs[k] != D0_NO_VALUE)
                last[g->nodes[i].inputs[k]] = i;
    for (uint32_t i = 1; i < g->n_nodes; i++) {
        uint64_t alive = 0;
        if (g->nodes[i].layer == g->nodes[i - 1].layer)
            continue;
        for (uint32_t v = 0; v < g->n_values; v++) {
            const uint32_t maker = r->s.maker[v];
            if (maker != D0_NO_VALUE && !r->s.positional[maker] && maker < i && last[v] >= i &&
                g->values[v].n_dims == 2)
                alive += (uint64_t)g->values[v].dims[1] * 4 * r->p->n_tokens;
        }
        r->s.carried = alive > r->s.carried ? alive : r->s.carried;
    }
    free(last);
    return ERR_OK;
}

static int choose_kept(struct running *r, struct err *e)
{
    struct drift_pass *p = r->p;
    const size_t n = r->g->n_values + (size_t)1;
    p->value = calloc(n, sizeof *p->value);
    p->width = calloc(n, sizeof *p->width);
    p->rows = calloc(n, sizeof *p->rows);
    if (!p->value || !p->width || !p->rows)
        return err_set(e, ERR_NOMEM, "no memory for a graph of %u nodes", r->g->n_nodes);
    const uint32_t result = graph_result(r->g);
    for (uint32_t v = 0; v <= r->g->n_values; v++) {
        const uint32_t id = v < r->g->n_values ? v : result;
        const struct d0_value *x = &r->g->values[id];
        if (id == result ? v < r->g->n_values
                         : r->s.maker[id] == D0_NO_VALUE || !stream_layer_result(&r->g->info[id]))
            continue;
        if (x->dtype != D0_F32 || x->n_dims != 2)
            continue;
        const uint32_t k = p->n_kept++;
        p->value[k] = id;
        p->width[k] = (uint64_t)x->dims[1];
        uint64_t cells;
        if (!mul_u64(p->width[k], p->n_at, &cells) || cells > SIZE_MAX / sizeof **p->rows ||
            !(p->rows[k] = malloc((size_t)(cells ? cells : 1) * sizeof **p->rows)))
            return err_set(e, ERR_NOMEM, "no memory for rows of %s", r->g->info[id].name);
        r->s.carried += cells * sizeof **p->rows;
    }
    return ERR_OK;
}

static int add_pieces(struct running *r, struct err *e)
{
    const struct graph *g = r->g;
    uint32_t *nodes = malloc((g->n_nodes + (size_t)1) * sizeof *nodes),
             *piece = malloc((g->n_nodes + (size_t)1) * sizeof *piece);
    uint8_t *wanted = malloc(g->n_nodes + (size_t)1);
    int rc = nodes && piece && wanted ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for %u nodes", g->n_nodes);
    for (uint32_t i = 0; rc == 0 && i < g->n_nodes; i++)
        nodes[i] = i;
    if (rc == 0) {
        memset(wanted, 1, g->n_nodes + (size_t)1);
        rc = stream_weigh(&r->s, wanted, e);
    }
    if (rc == 0)
        rc = stream_add(&r->s, nodes, g->n_nodes, 0, e);
    for (size_t p = 0; rc == 0 && p < r->s.n_pieces; p++)
        for (uint32_t i = 0; i < r->s.pieces[p].n_nodes; i++)
            piece[r->s.pieces[p].nodes[i]] = (uint32_t)p;
    for (uint32_t i = 0; rc == 0 && i < g->n_nodes; i++)
        for (uint32_t k = 0; rc == 0 && !r->s.positional[i] && k < g->nodes[i].n_inputs; k++) {
            const uint32_t v = g->nodes[i].inputs[k], at = v == D0_NO_VALUE ? v : r->s.maker[v];
            if (at == D0_NO_VALUE || r->s.positional[at] || piece[at] == piece[i])
                continue;
            r->last[v] = piece[i] + 1 > r->last[v] ? piece[i] + 1 : r->last[v];
            rc = stream_want(&r->s, 0, v, e);
        }
    for (uint32_t k = 0; rc == 0 && k < r->p->n_kept; k++)
        rc = stream_want(&r->s, 0, r->p->value[k], e);
    free(nodes);
    free(piece);
    free(wanted);
    return rc;
}

/* ---- run ---- */

static int give_input(void *context, size_t piece, uint32_t value, uint64_t first, uint64_t n, uint64_t width,
                      void *to, struct err *e)
{
    struct running *r = context;
    (void)piece;
    (void)e;
    if (!r->kept[value])
        BUG("%s was not kept", r->g->info[value].name);
    memcpy(to, r->kept[value] + first * width * 4, n * width * 4);
    return ERR_OK;
}

static int take_output(void *context, size_t piece, uint32_t value, uint64_t first, uint64_t n,
                       uint64_t width, const void *rows, struct err *e)
{
    struct running *r = context;
    struct drift_pass *p = r->p;
    uint64_t bytes;
    (void)piece;
    for (uint32_t k = 0; k < p->n_kept; k++)
        for (uint32_t i = 0; p->value[k] == value && i < p->n_at; i++)
            if (p->at[i] >= first && p->at[i] < first + n)
                memcpy(p->rows[k] + i * width, (const float *)rows + (p->at[i] - first) * width, width * 4);
    if (!r->last[value])
        return ERR_OK;
    if (!mul_u64(width * 4, p->n_tokens, &bytes) || bytes > SIZE_MAX)
        return err_set(e, ERR_LIMIT, "%s is too large to keep", r->g->info[value].name);
    if (!r->kept[value] && !(r->kept[value] = malloc((size_t)bytes)))
        return err_set(e, ERR_NOMEM, "no memory for %llu bytes of %s", (unsigned long long)bytes,
                       r->g->info[value].name);
    memcpy(r->kept[value] + first * width * 4, rows, n * width * 4);
    return ERR_OK;
}

static int piece_done(void *context, size_t piece, struct err *e)
{
    struct running *r = context;
    (void)e;
    for (uint32_t v = 0; v < r->g->n_values; v++)
        if (r->last[v] == piece + 1) {
            free(r->kept[v]);
            r->kept[v] = NULL;
        }
    return ERR_OK;
}

int drift_pass_run(struct drift_pass *p, const struct oracle_model *m, const int32_t *ids, struct err *e)
{
    struct running r = {.p = p, .g = m->spec->graph};
    const struct stream_io io = {
        .context = &r, .input = give_input, .output = take_output, .done = piece_done};
    r.kept = calloc(r.g->n_values + (size_t)1, sizeof *r.kept);
    r.last = calloc(r.g->n_values + (size_t)1, sizeof *r.last);
    int rc = r.kept && r.last ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a graph");
    if (rc == 0)
        rc = stream_open(&r.s, m, ids, p->n_tokens, e);
    if (rc == 0)
        rc = measure_carried(&r, e);
    if (rc == 0)
        rc = choose_kept(&r, e);
    if (rc == 0)
        rc = add_pieces(&r, e);
    r.s.alone = p->alone;
    if (rc == 0)
        rc = stream_run(&r.s, 0, &io, e);
    p->cost = r.s.cost;
    for (uint32_t v = 0; r.kept && v < r.g->n_values; v++)
        free(r.kept[v]);
    free(r.kept);
    free(r.last);
    if (r.s.m)
        stream_close(&r.s);
    return rc;
}

void drift_pass_close(struct drift_pass *p)
{
    for (uint32_t k = 0; p->rows && k < p->n_kept; k++)
        free(p->rows[k]);
    free(p->rows);
    free(p->value);
    free(p->width);
    p->rows = NULL;
    p->value = NULL;
    p->width = NULL;
}
