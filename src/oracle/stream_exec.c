/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: running one loaded piece on a device, chunk by chunk of tokens of the one sequence: its inputs, its
 * states, its outputs. States that a later piece of the group reads stay; others go with the piece. Pages
 * start as NaN, so that a read of a slot that was never written shows; states that do not grow start as zero.
 */
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "oracle/stream.h"
#include "tensor/tensor.h"

#define WAIT_NS     UINT64_C(3600000000000)
#define BLOCK_BYTES 65536u

struct run {
    struct stream *s;
    size_t piece;
    struct stream_part *p;
    const struct graph *g;
    struct dev *d;
    struct d0_queue *queue;
    struct d0_exec *exec;
    struct d0_buffer **own; /* by value: inputs and weights */
    unsigned char *rows;    /* staging of one value's rows of a chunk */
};

/* ---- memory ---- */

static int fill_state(struct run *r, struct d0_buffer *b, uint64_t bytes, int with, struct err *e)
{
    unsigned char *block = malloc(BLOCK_BYTES);
    if (!block)
        return err_set(e, ERR_NOMEM, "no memory for a state");
    memset(block, with, BLOCK_BYTES);
    int rc = ERR_OK;
    for (uint64_t at = 0; rc == 0 && at < bytes; at += BLOCK_BYTES) {
        uint64_t n = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        rc = dev_copy_in(r->d, r->queue, b, at, block, n, e);
    }
    if (rc == 0)
        rc = dev_wait(r->d, r->queue, WAIT_NS, e);
    free(block);
    return rc;
}

static int bind_state(struct run *r, uint32_t i, uint64_t bytes, struct err *e)
{
    struct d0_buffer **b = &r->s->states[r->g->info[i].origin - 1];
    int rc = ERR_OK;
    if (!*b) {
        rc = dev_buffer(r->d, bytes, b, e);
        if (rc == 0)
            rc = fill_state(r, *b, bytes, r->g->info[i].state == STATE_PAGES ? 0xff : 0, e);
    }
    return rc ? rc : dev_bind(r->d, r->exec, i, *b, 0, e);
}

static bool in_place(const struct run *r)
{
    return r->d->host_memory && r->d->api->buffer_wrap;
}

static int copy_weight(struct run *r, uint32_t i, const unsigned char *from, uint64_t bytes, struct err *e)
{
    int rc = dev_copy_in(r->d, r->queue, r->own[i], 0, from, bytes, e);
    return rc ? rc : dev_wait(r->d, r->queue, WAIT_NS, e);
}

/* In place where the device takes host memory, else copied. */
static int bind_weight(struct run *r, uint32_t i, unsigned char *at, uint64_t bytes, struct err *e)
{
    int rc;
    if (in_place(r)) {
        struct d0_status status = {.size = sizeof status};
        rc = r->d->api->buffer_wrap(r->d->handle, at, bytes, &r->own[i], &status) == D0_OK
                 ? ERR_OK
                 : err_set(e, ERR_DEVICE, "device %s does not take host memory: %.200s", r->d->api->name,
                           status.message);
    } else {
        rc = dev_buffer(r->d, bytes, &r->own[i], e);
        if (rc == 0 && !r->p->choice) /* these come with each chunk */
            rc = copy_weight(r, i, at, bytes, e);
    }
    return rc ? rc : dev_bind(r->d, r->exec, i, r->own[i], 0, e);
}

/* The experts of the *n tokens that can run together. */
static int take_experts(struct run *r, const struct stream_io *io, uint32_t first, uint32_t *n, struct err *e)
{
    const unsigned char *at = r->p->slot;
    int rc = stream_choice_load(r->s, r->piece, r->p, io, first, n, e);
    for (uint32_t i = 0; rc == 0 && !in_place(r) && i < r->g->n_values; i++) {
        uint64_t bytes;
        if (r->g->values[i].kind != D0_VALUE_WEIGHT ||
            !tensor_value_bytes(&r->g->values[i], r->g->max_dims, &bytes))
            continue;
        rc = copy_weight(r, i, at, bytes, e);
        at += ALIGN_UP(bytes, 64);
    }
    return rc;
}

static int bind_all(struct run *r, struct err *e)
{
    unsigned char *at = r->p->slot;
    uint64_t bytes, most = 64;
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == 0 && i < r->g->n_values; i++) {
        const struct d0_value *v = &r->g->values[i];
        if (!tensor_value_bytes(v, r->g->max_dims, &bytes))
            return err_set(e, ERR_LIMIT, "%s is too large to address", r->g->info[i].name);
        if (v->kind == D0_VALUE_WEIGHT) {
            rc = bind_weight(r, i, at, bytes, e);
            at += ALIGN_UP(bytes, 64);
        } else if (v->kind == D0_VALUE_STATE) {
            rc = bind_state(r, i, bytes, e);
        } else if (v->kind == D0_VALUE_INPUT) {
            rc = dev_buffer(r->d, bytes, &r->own[i], e);
            if (rc == 0)
                rc = dev_bind(r->d, r->exec, i, r->own[i], 0, e);
        }
        if (rc)
            err_ctx(e, "while binding %s", r->g->info[i].name);
        if ((v->kind == D0_VALUE_INPUT || v->kind == D0_VALUE_OUTPUT) && bytes > most)
            most = bytes;
    }
    if (rc == 0 && (most > SIZE_MAX || !(r->rows = malloc((size_t)most))))
        rc = err_set(e, ERR_NOMEM, "no memory for %llu bytes of rows", (unsigned long long)most);
    return rc;
}

/* ---- inputs of a chunk ---- */

/* The host's numbers for an input by its role. */
static int fill_input(struct run *r, uint32_t i, uint32_t first, uint32_t n, uint64_t *bytes, struct err *e)
{
    const struct d0_value *v = &r->g->values[i];
    int32_t *x = (int32_t *)r->rows;
    uint32_t count = n;
    switch (v->role) {
    case D0_INPUT_IDS:
        memcpy(x, (r->p->by_place ? r->s->place : r->s->ids) + first, n * sizeof *x);
        break;
    case D0_INPUT_POSITIONS:
        for (uint32_t t = 0; t < n; t++)
            x[t] = (int32_t)(first + t);
        break;
    case D0_INPUT_SEQ_OF:
        memset(x, 0, n * sizeof *x);
        break;
    case D0_INPUT_ROWS:
        for (uint32_t t = 0; t < n; t++)
            x[t] = (int32_t)t;
        break;
    case D0_INPUT_PAGE_TABLE:
        count = r->p->pages;
        for (uint32_t t = 0; t < count; t++)
            x[t] = (int32_t)t;
        break;
    case D0_INPUT_SLOTS:
        count = 1;
        x[0] = 0;
        break;
    default:
        return err_set(e, ERR_UNSUPPORTED, "input %s of role %u is not known here", r->g->info[i].name,
                       v->role);
    }
    *bytes = (uint64_t)count * sizeof *x;
    return ERR_OK;
}

static int copy_inputs(struct run *r, const struct stream_io *io, uint32_t first, uint32_t n, struct err *e)
{
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == 0 && i < r->g->n_values; i++) {
        const struct d0_value *v = &r->g->values[i];
        uint64_t bytes = 0;
        if (v->kind != D0_VALUE_INPUT)
            continue;
        if (v->role == D0_INPUT_HIDDEN) {
            bytes = (uint64_t)n * (uint64_t)v->dims[1] * 4;
            rc = io->input(io->context, r->piece, r->g->info[i].origin - 1, first, n, (uint64_t)v->dims[1],
                           r->rows, e);
            if (rc == 0 && r->p->choice && stream_choice_is(r->p->choice, i))
                stream_choice_rename(r->p->choice, (int32_t *)(void *)r->rows, n);
        } else {
            rc = fill_input(r, i, first, n, &bytes, e);
        }
        if (rc == 0)
            rc = dev_copy_in(r->d, r->queue, r->own[i], 0, r->rows, bytes, e);
        if (rc == 0)
            rc = dev_wait(r->d, r->queue, WAIT_NS, e); /* the staging is used again at once */
    }
    return rc;
}

/* ---- outputs ---- */

static int give_outputs(struct run *r, const struct stream_io *io, uint32_t first, uint32_t n, struct err *e)
{
    const struct stream_piece *p = &r->s->pieces[r->piece];
    int rc = ERR_OK;
    for (uint32_t k = 0; rc == 0 && k < p->n_outputs; k++)
        for (uint32_t i = 0; rc == 0 && i < r->g->n_values; i++) {
            const struct d0_value *v = &r->g->values[i];
            if (v->kind != D0_VALUE_OUTPUT || r->g->info[i].origin != p->outputs[k] + 1)
                continue;
            uint64_t width = (uint64_t)v->dims[1];
            rc = dev_read_output(r->d, r->queue, r->exec, i, 0, r->rows, n * width * 4, e);
            if (rc == 0)
                rc = dev_wait(r->d, r->queue, WAIT_NS, e);
            if (rc == 0)
                rc = io->output(io->context, r->piece, p->outputs[k], first, n, width, r->rows, e);
        }
    return rc;
}

/* Tokens of the step that begins at `first`, at most n. */
static uint32_t step_tokens(const struct stream *s, uint32_t first, uint32_t n)
{
    if (!s->alone || s->alone[first])
        return s->alone ? 1 : n;
    for (uint32_t i = 1; i < n; i++)
        if (s->alone[first + i])
            return i;
    return n;
}

static int run_chunks(struct run *r, const struct stream_io *io, struct err *e)
{
    int rc = ERR_OK;
    for (uint32_t first = 0, n; rc == 0 && first < r->s->n_tokens; first += n) {
        uint32_t left = r->s->n_tokens - first;
        n = step_tokens(r->s, first, left < r->p->chunk ? left : r->p->chunk);
        if (r->p->choice)
            rc = take_experts(r, io, first, &n, e);
        struct d0_step_dims dims = {.size = sizeof dims, .dims = {n, 1, n, r->p->pages}};
        if (rc == 0)
            rc = copy_inputs(r, io, first, n, e);
        uint64_t begin = clock_ns();
        if (rc == 0)
            rc = dev_run(r->d, r->queue, r->exec, &dims, e);
        if (rc == 0)
            rc = dev_wait(r->d, r->queue, WAIT_NS, e);
        r->s->cost.compute_seconds += (double)(clock_ns() - begin) * 1e-9;
        if (rc == 0)
            rc = give_outputs(r, io, first, n, e);
    }
    return rc;
}

int stream_part_run(struct stream *s, size_t piece, struct stream_part *p, const struct stream_io *io,
                    struct err *e)
{
    struct run r = {.s = s, .piece = piece, .p = p, .g = p->g, .d = s->m->dev};
    struct d0_part part;
    r.own = calloc(p->g->n_values + (size_t)1, sizeof *r.own);
    if (!r.own)
        return err_set(e, ERR_NOMEM, "no memory for the buffers of a piece");
    graph_part(p->g, &part);
    int rc = dev_queue(r.d, &r.queue, e);
    if (rc == 0)
        rc = dev_compile(r.d, &part, &r.exec, e);
    if (rc == 0)
        rc = bind_all(&r, e);
    if (rc == 0)
        rc = run_chunks(&r, io, e);
    dev_exec_free(r.d, r.exec);
    for (uint32_t i = 0; i < p->g->n_values; i++)
        dev_buffer_free(r.d, r.own[i]);
    dev_queue_free(r.d, r.queue);
    free(r.own);
    free(r.rows);
    if (s->cost.chunk == 0 || p->chunk < s->cost.chunk)
        s->cost.chunk = p->chunk;
    return rc;
}
