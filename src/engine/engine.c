/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: one step: the plan's arrays become the graph's inputs, the graph runs, rows of logits become tokens.
 * Refuses: a plan that does not validate, two sequences that share a page which one of them writes or a slot,
 * a sequence that goes on from a state which is not there, a snapshot that is read and written, a row
 * of the store of features that nobody filled, and allocation.
 */
#include "engine/engine_internal.h"

#include <string.h>

#include "base/thread.h"

/* What a plan asks for in all. */
struct wanted {
    uint32_t rows, tops;
    uint64_t logits; /* floats returned */
};

static const struct step_seq *seqs_of(const struct step_plan *p)
{
    return (const struct step_seq *)((const char *)p + p->seqs_at);
}

static uint32_t rows_returned(const struct step_seq *q)
{
    return q->flags & STEP_ALL_LOGITS ? q->n_tokens : (q->flags & STEP_LAST_LOGITS) != 0;
}

static uint32_t rows_computed(const struct step_seq *q)
{
    return q->flags & STEP_ALL_LOGITS ? q->n_tokens : q->flags != 0;
}

/* ---- inputs -------------------------------------------------------------------------------------------- */

static void fill_tokens(struct engine *x, const struct step_plan *p)
{
    const struct step_seq *q = seqs_of(p);
    uint32_t t = 0;
    memcpy(x->ids, (const char *)p + p->tokens_at, p->n_tokens * sizeof(int32_t));
    for (uint32_t s = 0; s < p->n_seqs; s++)
        for (uint32_t i = 0; i < q[s].n_tokens; i++, t++) {
            x->positions[t] = (int32_t)(q[s].position + i);
            x->seq_of[t] = (int32_t)s;
        }
}

static void fill_table(struct engine *x, const struct step_plan *p)
{
    const struct step_seq *q = seqs_of(p);
    const int32_t *pages = (const int32_t *)((const char *)p + p->pages_at);
    uint32_t longest = 0;
    for (uint32_t s = 0; s < p->n_seqs; s++)
        longest = q[s].n_pages > longest ? q[s].n_pages : longest;
    for (uint32_t s = 0; s < p->n_seqs; s++) {
        int32_t *row = x->table + (size_t)s * longest;
        memcpy(row, pages + q[s].first_page, q[s].n_pages * sizeof(int32_t));
        memset(row + q[s].n_pages, 0xff, (longest - q[s].n_pages) * sizeof(int32_t)); /* -1 */
    }
    x->dims.dims[-1 - D0_DIM_PAGES] = longest;
}

static void fill_rows(struct engine *x, const struct step_plan *p)
{
    const struct step_seq *q = seqs_of(p);
    uint32_t n = 0;
    for (uint32_t s = 0; s < p->n_seqs; s++) {
        uint32_t rows = rows_computed(&q[s]), end = q[s].first_token + q[s].n_tokens;
        for (uint32_t i = 0; i < rows; i++)
            x->rows[n++] = (int32_t)(end - rows + i);
    }
}

static void fill_slots(struct engine *x, const struct step_plan *p)
{
    const struct step_seq *q = seqs_of(p);
    for (uint32_t s = 0; s < p->n_seqs; s++)
        x->slots[s] = (int32_t)q[s].slot;
}

const int32_t *engine_input(const struct engine *x, uint32_t role, size_t *n)
{
    const int64_t *d = x->dims.dims;
    switch (role) {
    case D0_INPUT_IDS:
        *n = (size_t)d[0];
        return x->ids;
    case D0_INPUT_POSITIONS:
        *n = (size_t)d[0];
        return x->positions;
    case D0_INPUT_SEQ_OF:
        *n = (size_t)d[0];
        return x->seq_of;
    case D0_INPUT_PAGE_TABLE:
        *n = (size_t)(d[1] * d[3]);
        return x->table;
    case D0_INPUT_ROWS:
        *n = (size_t)d[2];
        return x->rows;
    case D0_INPUT_SLOTS:
        *n = (size_t)d[1];
        return x->slots;
    case D0_INPUT_PLACES:
        *n = (size_t)d[0] * 3;
        return x->places;
    case D0_INPUT_SPANS:
        *n = (size_t)d[0] * 2;
        return x->spans;
    case D0_INPUT_FEATURE_OF:
        *n = (size_t)d[0];
        return x->feature_of;
    default:
        return NULL; /* HIDDEN: written by engine_set_hidden; FEATURES: by tower_copy */
    }
}

static int copy_inputs(struct engine *x, struct err *e)
{
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == ERR_OK && i < x->graph->n_values; i++) {
        if (x->graph->values[i].kind != D0_VALUE_INPUT)
            continue;
        size_t n = 0;
        const int32_t *data = engine_input(x, x->graph->values[i].role, &n);
        if (data && n)
            rc = dev_copy_in(x->dev, x->queue, x->own[i], 0, data, n * sizeof(int32_t), e);
    }
    return rc == ERR_OK && x->n_taken ? tower_copy(x, e) : rc;
}

/* A page written by one sequence and seen by another would make results depend on the order of rows. */
static int check_pages(struct engine *x, const struct step_plan *p, struct err *e)
{
    const struct step_seq *q = seqs_of(p);
    const int32_t *pages = (const int32_t *)((const char *)p + p->pages_at);
    uint64_t step = ++x->n_steps << 32;
    for (uint32_t s = 0; s < p->n_seqs; s++) {
        uint32_t first = q[s].position / x->limits.page_tokens;
        uint32_t last = (q[s].position + q[s].n_tokens - 1) / x->limits.page_tokens;
        for (uint32_t i = first; i <= last; i++) {
            uint64_t *writer = &x->page_writer[pages[q[s].first_page + i]];
            if (*writer >= step)
                return err_set(e, ERR_FORMAT, "step plan: page %d is written twice in one step",
                               pages[q[s].first_page + i]);
            *writer = step | s;
        }
    }
    for (uint32_t s = 0; s < p->n_seqs; s++) {
        uint32_t first = q[s].position / x->limits.page_tokens;
        for (uint32_t i = 0; i < q[s].n_pages; i++) {
            uint64_t writer = x->page_writer[pages[q[s].first_page + i]];
            if (writer >= step && ((writer & UINT32_MAX) != s || i < first))
                return err_set(e, ERR_FORMAT, "step plan: page %d of seqs[%u] is written as another page",
                               pages[q[s].first_page + i], s);
        }
    }
    return ERR_OK;
}

/* What this step writes is written by one sequence: its slot, and the snapshot that it saves. */
static int claim_slots(struct engine *x, const struct step_plan *p, struct err *e)
{
    const struct step_seq *q = seqs_of(p);
    uint64_t step = ++x->n_slot_steps;
    for (uint32_t s = 0; s < p->n_seqs; s++) {
        struct slot_state *slot = &x->slot[q[s].slot],
                          *saved = q[s].save ? &x->snapshot[q[s].save - 1] : NULL;
        if (slot->step == step)
            return err_set(e, ERR_FORMAT, "step plan: slot %u is used twice in one step", q[s].slot);
        if (saved && saved->step == step)
            return err_set(e, ERR_FORMAT, "step plan: snapshot %u is saved twice in one step", q[s].save - 1);
        slot->step = step;
        if (saved)
            saved->step = step;
    }
    return ERR_OK;
}

/* A state has no history: it goes on from where it stands, from a snapshot, or from nothing. From here on the
 * slots of this step and the snapshots that it saves stand nowhere, until it has succeeded. */
static int take_slots(struct engine *x, const struct step_plan *p, struct err *e)
{
    const struct step_seq *q = seqs_of(p);
    int rc = claim_slots(x, p, e);
    for (uint32_t s = 0; rc == ERR_OK && s < p->n_seqs; s++) {
        bool kept = q[s].restore != 0;
        const struct slot_state *from = kept ? &x->snapshot[q[s].restore - 1] : &x->slot[q[s].slot];
        const char *what = kept ? "snapshot" : "slot";
        uint32_t at = kept ? q[s].restore - 1 : q[s].slot;
        if (kept && from->step == x->n_slot_steps)
            rc = err_set(e, ERR_FORMAT, "step plan: snapshot %u is restored and saved in one step", at);
        else if (q[s].position == 0 || q[s].position == from->next)
            continue;
        else if (from->next == SLOT_UNKNOWN)
            rc = err_set(e, ERR_FORMAT, "step plan: seqs[%u] goes on at position %u, %s %u holds no state", s,
                         q[s].position, what, at);
        else
            rc = err_set(e, ERR_FORMAT,
                         "step plan: seqs[%u] goes on at position %u, the state in %s %u stands at %u", s,
                         q[s].position, what, at, from->next);
    }
    for (uint32_t s = 0; rc == ERR_OK && s < p->n_seqs; s++) {
        x->slot[q[s].slot].next = SLOT_UNKNOWN;
        if (q[s].save)
            x->snapshot[q[s].save - 1].next = SLOT_UNKNOWN;
    }
    return rc;
}

static void advance_slots(struct engine *x, const struct step_plan *p)
{
    const struct step_seq *q = seqs_of(p);
    for (uint32_t s = 0; s < p->n_seqs; s++) {
        x->slot[q[s].slot].next = q[s].position + q[s].n_tokens;
        if (q[s].save)
            x->snapshot[q[s].save - 1].next = q[s].position + q[s].n_tokens;
    }
}

/* Every state of a sequence: from its snapshot into its slot, or the other way. */
static int copy_states(struct engine *x, const struct step_plan *p, bool save, struct err *e)
{
    const struct step_seq *q = seqs_of(p);
    int rc = ERR_OK;
    for (uint32_t s = 0; s < p->n_seqs; s++) {
        uint32_t snapshot = save ? q[s].save : q[s].restore;
        for (uint32_t i = 0; rc == ERR_OK && snapshot && i < x->graph->n_values; i++) {
            uint64_t bytes = x->slot_bytes[i], own = bytes * q[s].slot, kept = bytes * (snapshot - 1);
            if (bytes && save)
                rc = dev_copy(x->dev, x->queue, x->kept[i], kept, x->own[i], own, bytes, e);
            else if (bytes)
                rc = dev_copy(x->dev, x->queue, x->own[i], own, x->kept[i], kept, bytes, e);
        }
    }
    return rc;
}

static int check_hidden(const struct engine *x, const struct step_plan *p, struct err *e)
{
    for (uint32_t i = 0; i < x->n_hidden; i++)
        if (x->hidden[i].n_set != p->n_tokens)
            return err_set(e, ERR_INVALID, "hidden input %u holds %zu rows, the step has %u tokens", i,
                           x->hidden[i].n_set, p->n_tokens);
    return ERR_OK;
}

/* ---- outcome ------------------------------------------------------------------------------------------- */

static int count_wanted(const struct engine *x, const struct step_plan *p, struct wanted *w, struct err *e)
{
    const struct step_seq *q = seqs_of(p);
    *w = (struct wanted){0};
    for (uint32_t s = 0; s < p->n_seqs; s++) {
        w->rows += rows_computed(&q[s]);
        w->logits += (uint64_t)rows_returned(&q[s]) * x->width;
        if (q[s].flags & STEP_SAMPLE)
            w->tops += q[s].sampling.n_top;
    }
    if (w->rows && !x->logits)
        return err_set(e, ERR_INVALID, "step plan: tokens or logits are asked of a graph that gives none");
    return ERR_OK;
}

static void sample_seq(struct engine *x, const struct step_seq *q, const float *last_row,
                       struct step_seq_result *out, struct step_top *tops, uint32_t *n_tops)
{
    struct step_sampling s = q->sampling;
    if (!s.vocab_limit || s.vocab_limit > x->limits.vocab)
        s.vocab_limit = x->limits.vocab;
    /* drawn for the position that the new token takes */
    out->token = sample_token(last_row, x->width, &s, q->position + q->n_tokens, &x->scratch, &out->logprob,
                              tops + *n_tops, &out->n_top, &out->status);
    *n_tops += out->n_top;
}

static void write_outcome(struct engine *x, const struct step_plan *p, struct step_result *r)
{
    const struct step_seq *q = seqs_of(p);
    struct step_seq_result *out = step_result_seqs(r);
    struct step_top *tops = step_result_tops(r);
    float *logits = step_result_logits(r);
    uint64_t row = 0, at = 0;
    uint32_t n_tops = 0;
    for (uint32_t s = 0; s < p->n_seqs; s++, q++, out++) {
        uint32_t computed = rows_computed(q), returned = rows_returned(q);
        const float *rows = x->logit_rows ? x->logit_rows + row * x->width : NULL; /* [computed, width] */
        *out = (struct step_seq_result){.request = q->request,
                                        .token = -1,
                                        .first_top = n_tops,
                                        .n_logit_rows = returned,
                                        .first_logit = at};
        if (returned)
            memcpy(logits + at, rows, (uint64_t)returned * x->width * sizeof(float));
        if (q->flags & STEP_SAMPLE)
            sample_seq(x, q, rows + (uint64_t)(computed - 1) * x->width, out, tops, &n_tops);
        row += computed;
        at += (uint64_t)returned * x->width;
    }
    step_result_finish(r, n_tops);
}

static int run_graph(struct engine *x, const struct step_plan *p, uint32_t n_rows, struct err *e)
{
    int rc = copy_inputs(x, e);
    if (rc == ERR_OK)
        rc = copy_states(x, p, false, e);
    if (rc == ERR_OK)
        rc = dev_run(x->dev, x->queue, x->exec, &x->dims, e);
    if (rc == ERR_OK)
        rc = copy_states(x, p, true, e);
    if (rc == ERR_OK && n_rows)
        rc = dev_read_output(x->dev, x->queue, x->exec, x->result, 0, x->logit_rows,
                             (uint64_t)n_rows * x->width * sizeof(float), e);
    /* also after an error: nothing of the queue may still read our arrays */
    int waited = dev_wait(x->dev, x->queue, ENGINE_WAIT_NS, rc == ERR_OK ? e : NULL);
    return rc == ERR_OK ? waited : rc;
}

static int run_step(struct engine *x, const struct step_plan *p, void *result, size_t cap, struct err *e)
{
    struct wanted w;
    struct step_result *r = NULL;
    uint64_t begin = clock_ns();
    int rc = count_wanted(x, p, &w, e);
    if (rc == ERR_OK)
        rc = check_hidden(x, p, e);
    if (rc == ERR_OK && x->has_state)
        rc = check_pages(x, p, e);
    if (rc == ERR_OK && x->pictures)
        rc = tower_check(x, p, e);
    if (rc == ERR_OK)
        rc = step_result_init(result, cap, p->n_seqs, w.logits, w.tops, &r, e);
    if (rc == ERR_OK && x->limits.n_slots)
        rc = take_slots(x, p, e);
    if (rc != ERR_OK)
        return rc;
    x->dims = (struct d0_step_dims){.size = sizeof(x->dims), .dims = {p->n_tokens, p->n_seqs, w.rows, 0}};
    fill_tokens(x, p);
    fill_table(x, p);
    fill_rows(x, p);
    fill_slots(x, p);
    if (x->pictures)
        tower_fill(x, p);
    rc = run_graph(x, p, w.rows, e);
    x->ran = rc == ERR_OK;
    for (uint32_t i = 0; i < x->n_hidden; i++)
        x->hidden[i].n_set = 0;
    if (rc != ERR_OK)
        return rc;
    if (x->limits.n_slots)
        advance_slots(x, p);
    r->step = p->step;
    write_outcome(x, p, r);
    r->compute_ns = clock_ns() - begin;
    return ERR_OK;
}

int engine_step(struct engine *x, const struct step_plan *plan, size_t plan_bytes, void *result, size_t cap,
                struct err *e)
{
    struct err local = {0};
    struct err *my = e ? e : &local;
    x->ran = false;
    int rc = step_plan_validate(plan, plan_bytes, &x->limits, my);
    uint64_t step = plan_bytes >= sizeof(*plan) && (uintptr_t)plan % 8 == 0 ? plan->step : 0;
    if (rc == ERR_OK)
        rc = run_step(x, plan, result, cap, my);
    if (rc != ERR_OK) {
        struct step_result *r;
        step_result_error(result, cap, step, rc, my->message, &r, NULL);
    }
    return rc;
}

/* ---- probes, slices ------------------------------------------------------------------------------------ */

size_t engine_probes(const struct engine *x)
{
    return x->n_probes;
}

const char *engine_probe_name(const struct engine *x, size_t i)
{
    return i < x->n_probes ? x->graph->info[x->probes[i]].name : NULL;
}

static int read_rows(struct engine *x, uint32_t value, float *out, size_t cap, size_t *rows, size_t *width,
                     struct err *e)
{
    const struct d0_value *v = &x->graph->values[value];
    if (!x->ran)
        return err_set(e, ERR_INVALID, "no step has run since the last error");
    if ((v->dtype != D0_F32 && v->dtype != D0_I32) || v->n_dims != 2)
        return err_set(e, ERR_UNSUPPORTED, "%s is not [rows, width] of float32 or int32",
                       x->graph->info[value].name);
    *rows = (size_t)(v->dims[0] < 0 ? x->dims.dims[-1 - v->dims[0]] : v->dims[0]);
    *width = (size_t)v->dims[1];
    uint64_t n;
    if (!mul_u64(*rows, *width, &n) || n > cap)
        return err_set(e, ERR_LIMIT, "%s has %zu * %zu values, there is room for %zu",
                       x->graph->info[value].name, *rows, *width, cap);
    int rc = dev_read_output(x->dev, x->queue, x->exec, value, 0, out, n * sizeof(float), e);
    if (rc == ERR_OK)
        rc = dev_wait(x->dev, x->queue, ENGINE_WAIT_NS, e);
    for (uint64_t i = 0; rc == ERR_OK && v->dtype == D0_I32 && i < n; i++) {
        int32_t whole;
        memcpy(&whole, &out[i], sizeof whole);
        out[i] = (float)whole;
    }
    return rc;
}

int engine_probe_read(struct engine *x, size_t i, float *out, size_t cap, size_t *rows, size_t *width,
                      struct err *e)
{
    if (i >= x->n_probes)
        return err_set(e, ERR_INVALID, "probe %zu of %zu", i, x->n_probes);
    return read_rows(x, x->probes[i], out, cap, rows, width, e);
}

int engine_read_result(struct engine *x, float *out, size_t cap, size_t *rows, size_t *width, struct err *e)
{
    return read_rows(x, x->result, out, cap, rows, width, e);
}

int engine_slot_read(struct engine *x, const char *state, uint32_t slot, float *out, size_t cap, size_t *n,
                     struct err *e)
{
    uint32_t id = graph_find(x->graph, state);
    const struct d0_value *v = id == D0_NO_VALUE ? NULL : &x->graph->values[id];
    if (!v || v->kind != D0_VALUE_STATE || x->graph->info[id].state != STATE_SLOTS)
        return err_set(e, ERR_MISSING, "no recurrent state is called %s", state);
    if (v->dtype != D0_F32)
        return err_set(e, ERR_UNSUPPORTED, "%s is not float32", state);
    uint64_t all; /* shape checked at open: of all slots it fits */
    if (slot >= x->limits.n_slots || !shape_elements(v->dims + 1, v->n_dims - 1, &all))
        return err_set(e, ERR_INVALID, "slot %u of %u", slot, x->limits.n_slots);
    if (all > cap)
        return err_set(e, ERR_LIMIT, "%s has %llu values, there is room for %zu", state,
                       (unsigned long long)all, cap);
    *n = (size_t)all;
    int rc =
        dev_copy_out(x->dev, x->queue, x->own[id], slot * all * sizeof(float), out, all * sizeof(float), e);
    return rc == ERR_OK ? dev_wait(x->dev, x->queue, ENGINE_WAIT_NS, e) : rc;
}

int engine_set_hidden(struct engine *x, uint32_t i, const float *data, size_t n_tokens, size_t width,
                      struct err *e)
{
    if (i >= x->n_hidden)
        return err_set(e, ERR_INVALID, "hidden input %u of %u", i, x->n_hidden);
    struct hidden_input *h = &x->hidden[i];
    if (width != (size_t)h->width || n_tokens == 0 || n_tokens > x->limits.max_tokens)
        return err_set(e, ERR_INVALID, "hidden input %u takes at most %u rows of %lld values, not %zu of %zu",
                       i, x->limits.max_tokens, (long long)h->width, n_tokens, width);
    int rc = dev_copy_in(x->dev, x->queue, x->own[h->value], 0, data,
                         (uint64_t)n_tokens * width * sizeof(float), e);
    if (rc == ERR_OK)
        rc = dev_wait(x->dev, x->queue, ENGINE_WAIT_NS, e);
    h->n_set = rc == ERR_OK ? n_tokens : 0;
    return rc;
}
