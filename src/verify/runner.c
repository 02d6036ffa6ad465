/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the plumbing between verification and the engine: weights, plan and result messages; a slot has a page
 * table and a recurrent state.
 */
#include "verify/runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOGITS_BYTES (STEP_MAX_BYTES / 2)

uint32_t runner_logit_rows(uint64_t vocab, uint32_t most)
{
    uint64_t rows = vocab ? LOGITS_BYTES / sizeof(float) / vocab : most;
    rows = rows < most ? rows : most;
    return rows ? (uint32_t)rows : 1;
}

int runner_open_graph(struct runner *r, struct dev *d, const struct graph *g, const struct weights *w,
                      const struct runner_size *size, struct mem *mem, struct err *e)
{
    uint32_t page = graph_page_tokens(g), pages = page ? size->context / page + 1 : 1;
    uint64_t all = (uint64_t)pages * size->seqs;
    if (all == 0 || all > INT32_MAX)
        return err_set(e, ERR_LIMIT, "%u sequences of %u tokens are too many for one engine", size->seqs,
                       size->context);
    struct engine_options o = {.limits = {.max_tokens = size->tokens,
                                          .max_seqs = size->seqs,
                                          .max_rows = size->rows,
                                          .max_pages_per_seq = pages,
                                          .n_pages = (uint32_t)all,
                                          .n_snapshots = size->snapshots},
                               .probes = size->probes,
                               .fusions = size->fusions,
                               .poison = true,
                               .mem = mem};
    int rc = engine_open(&r->x, d, g, w, &o, e);
    if (rc)
        return rc;
    const struct engine_limits *l = engine_limits(r->x);
    r->plan_bytes = step_plan_bytes(l);
    r->result_bytes = engine_result_bytes(l, true);
    r->plan = malloc(r->plan_bytes);
    r->result = malloc(r->result_bytes);
    return r->plan && r->result ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for step messages");
}

int runner_open_model(struct runner *r, struct dev *d, const struct spec *s, struct ckpt *c,
                      const struct runner_size *size, struct d0 *d0, struct err *e)
{
    *r = (struct runner){0};
    int rc = weights_load(&r->weights, s->graph, c, d, &(struct load_options){.spec = s}, e);
    if (rc == 0)
        rc = runner_open_graph(r, d, s->graph, r->weights, size, d0 ? &d0->mem : NULL, e);
    if (rc)
        runner_close(r);
    return rc;
}

void runner_close(struct runner *r)
{
    engine_close(r->x);
    weights_free(r->weights);
    free(r->plan);
    free(r->result);
    *r = (struct runner){0};
}

static uint32_t pages_of(const struct engine_limits *l, const struct runner_run *run)
{
    if (run->pages || !l->page_tokens)
        return run->pages ? run->n_pages : 0;
    return (run->position + run->n + l->page_tokens - 1) / l->page_tokens;
}

int runner_step(struct runner *r, const struct runner_run *runs, uint32_t n, struct step_result **out,
                struct err *e)
{
    const struct engine_limits *l = engine_limits(r->x);
    struct step_plan *p;
    uint32_t tokens = 0, pages = 0;
    for (uint32_t i = 0; i < n; i++) {
        tokens += runs[i].n;
        pages += pages_of(l, &runs[i]);
    }
    int rc = step_plan_init(r->plan, r->plan_bytes, n, tokens, pages, &p, e);
    if (rc)
        return rc;
    p->step = ++r->step;
    struct step_seq *q = step_plan_seqs(p);
    uint32_t t = 0, page = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t own = pages_of(l, &runs[i]);
        q[i] = (struct step_seq){.request = i,
                                 .first_token = t,
                                 .n_tokens = runs[i].n,
                                 .position = runs[i].position,
                                 .first_page = page,
                                 .n_pages = own,
                                 .flags = runs[i].flags,
                                 .slot = l->n_slots ? runs[i].slot : 0,
                                 .restore = runs[i].restore,
                                 .save = runs[i].save,
                                 .sampling = {.top_p = 1}};
        memcpy(step_plan_tokens(p) + t, runs[i].tokens, runs[i].n * sizeof(int32_t));
        for (uint32_t k = 0; k < own; k++)
            step_plan_pages(p)[page + k] =
                runs[i].pages ? runs[i].pages[k] : (int32_t)(runs[i].slot * l->max_pages_per_seq + k);
        t += runs[i].n;
        page += own;
    }
    rc = engine_step(r->x, p, p->bytes, r->result, r->result_bytes, e);
    *out = r->result;
    return rc;
}

size_t runner_probe_floats(const struct graph *g, uint32_t rows)
{
    uint64_t widest = 0, n;
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->info[i].probe && g->values[i].n_dims == 2 && g->values[i].dims[1] > 0 &&
            (uint64_t)g->values[i].dims[1] > widest)
            widest = (uint64_t)g->values[i].dims[1];
    return mul_u64(widest, rows, &n) && n < SIZE_MAX / 8 ? (size_t)n : 0;
}

const char *runner_first_not_finite(struct runner *r, float *out, size_t cap)
{
    for (size_t i = 0; i < engine_probes(r->x); i++) {
        size_t rows, width;
        if (engine_probe_read(r->x, i, out, cap, &rows, &width, NULL) != 0)
            continue;
        for (size_t j = 0; j < rows * width; j++)
            if (!isfinite(out[j]))
                return engine_probe_name(r->x, i);
    }
    return NULL;
}
