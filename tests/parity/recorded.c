/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: errors of rows against a recording, and the cuts that it allows. Refuses to feed what was not
 * recorded.
 */
#include "recorded.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double row_error(const float *got, const float *want, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t j = 0; j < n; j++) {
        if (!isfinite(got[j]))
            return INFINITY;
        diff += ((double)got[j] - want[j]) * ((double)got[j] - want[j]);
        norm += (double)want[j] * want[j];
    }
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

const struct reference_probe *recorded_probe(const struct reference *r, const char *name)
{
    for (size_t i = 0; i < r->n_probes; i++)
        if (strcmp(r->probes[i].name, name) == 0)
            return &r->probes[i];
    return NULL;
}

double probe_error(const struct reference_probe *p, size_t row, const float *got)
{
    double square = 0, diff = (double)got[0] - p->data[row];
    if (p->width != 1)
        return row_error(got, p->data + row * p->width, p->width);
    for (size_t i = 0; i < p->rows; i++)
        square += (double)p->data[i] * p->data[i];
    if (!isfinite(diff))
        return INFINITY;
    return square > 0 ? fabs(diff) / sqrt(square / (double)p->rows) : fabs(diff);
}

/* ---- choices ---- */

bool recorded_is_choice(const char *name)
{
    static const char end[] = ".chosen";
    size_t n = strlen(name);
    return n >= sizeof end && strcmp(name + n - (sizeof end - 1), end) == 0;
}

void recorded_sort_choice(float *ids, size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t k = i; k > 0 && ids[k - 1] > ids[k]; k--) {
            float x = ids[k];
            ids[k] = ids[k - 1];
            ids[k - 1] = x;
        }
}

int recorded_show_choices(struct graph *g, struct err *e)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].op != D0_OP_ROUTE)
            continue;
        struct graph_value_info *v = &g->info[g->nodes[i].outputs[0]];
        char name[256];
        snprintf(name, sizeof name, "%.*s.chosen", (int)(strrchr(v->name, '.') - v->name), v->name);
        if (!(v->name = arena_strdup(&g->arena, name)))
            return err_set(e, ERR_NOMEM, "no memory for a name");
        v->probe = true;
    }
    return ERR_OK;
}

/* ---- piece by piece ---- */

/* Units in order: 0 what comes before layer 0, 1 .. layers the layers, then what comes after them. */
static int slice_units(const struct graph *g, uint32_t first, uint32_t last, uint32_t layers,
                       struct graph **out, struct err *e)
{
    unsigned flags = (first == 0 ? GRAPH_PROLOGUE : 0u) | (last > layers ? GRAPH_EPILOGUE : 0u);
    return graph_slice(g, (int32_t)first - 1, last > layers ? (int32_t)layers - 1 : (int32_t)last - 1, flags,
                       out, e);
}

static bool is_fed(const struct graph *g, uint32_t value)
{
    return g->values[value].kind == D0_VALUE_INPUT && g->values[value].role == D0_INPUT_HIDDEN;
}

/* Whether all that crosses from the units before u to the others was recorded. */
static bool can_cut(const struct graph *whole, const struct reference *r, uint32_t u, uint32_t layers)
{
    struct graph *g;
    struct err no;
    bool all = true;
    if (slice_units(whole, u, layers + 1, layers, &g, &no))
        return false;
    for (uint32_t i = 0; i < g->n_values; i++)
        if (is_fed(g, i))
            all = all && recorded_probe(r, g->info[i].name);
    graph_free(g);
    return all;
}

int recorded_pieces(const struct graph *whole, const struct reference *r, recorded_piece_fn *f, void *ctx,
                    unsigned *n, struct err *e)
{
    uint32_t layers = 0;
    int rc = ERR_OK;
    for (uint32_t i = 0; i < whole->n_nodes; i++)
        if (whole->nodes[i].layer >= (int32_t)layers)
            layers = (uint32_t)whole->nodes[i].layer + 1;
    *n = 0;
    for (uint32_t first = 0, last; rc == 0 && first <= layers + 1; first = last + 1) {
        struct graph *g;
        for (last = first; last <= layers && !can_cut(whole, r, last + 1, layers); last++)
            ;
        rc = slice_units(whole, first, last, layers, &g, e);
        if (rc)
            break;
        rc = f(ctx, g, e);
        graph_free(g);
        ++*n;
    }
    return rc;
}

static int feed_one(struct runner *run, uint32_t index, const struct reference_probe *p,
                    float (*change)(float), struct err *e)
{
    if (!change)
        return engine_set_hidden(run->x, index, p->data, p->rows, p->width, e);
    float *x = malloc(p->rows * p->width * sizeof *x); /* [rows, width] */
    for (size_t i = 0; x && i < p->rows * p->width; i++)
        x[i] = change(p->data[i]);
    int rc = x ? engine_set_hidden(run->x, index, x, p->rows, p->width, e)
               : err_set(e, ERR_NOMEM, "no memory for %s", p->name);
    free(x);
    return rc;
}

int recorded_feed(const struct reference *r, struct runner *run, const struct graph *g,
                  float (*change)(float), struct err *e)
{
    uint32_t index = 0;
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == 0 && i < g->n_values; i++) {
        if (!is_fed(g, i))
            continue;
        const struct reference_probe *p = recorded_probe(r, g->info[i].name);
        rc = p ? feed_one(run, index++, p, change, e)
               : err_set(e, ERR_MISSING, "%s was not recorded", g->info[i].name);
    }
    return rc;
}

bool recorded_ends_in_logits(const struct graph *g)
{
    return g->values[graph_result(g)].dims[0] == D0_DIM_ROWS;
}
