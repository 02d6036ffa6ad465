/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the run of one case on one device: compile once, then for each run fresh memory for every value, in
 * place where the device takes host memory (so that it ends at a guard page), else copied.
 */
#include <stdlib.h>
#include <string.h>

#include "verify/guard.h"
#include "verify/opcase.h"
#include "tensor/tensor.h"

#define RUN_DEADLINE_NS 60000000000ull

struct bound {
    struct guard guard;
    struct d0_buffer *buffer;
    bool wrapped;
};

static int compile_for(struct opsession *s, const struct opcase *c, const int64_t dims[D0_N_DIMS],
                       struct err *e)
{
    struct d0_part part;
    int rc = graph_plan_memory(c->g, dims, false, e);
    if (rc)
        return rc;
    if (s->x)
        dev_exec_free(s->d, s->x);
    s->x = NULL;
    memcpy(s->planned, dims, sizeof s->planned);
    graph_part(c->g, &part);
    return dev_compile(s->d, &part, &s->x, e);
}

int opsession_open(struct opsession *s, struct dev *d, const struct opcase *c, bool guard, struct err *e)
{
    *s = (struct opsession){.d = d, .guard = guard && d->api->buffer_wrap != NULL};
    int rc = dev_queue(d, &s->q, e);
    if (rc == 0)
        rc = compile_for(s, c, c->max_dims, e);
    if (rc)
        opsession_close(s);
    return rc;
}

void opsession_close(struct opsession *s)
{
    if (s->x)
        dev_exec_free(s->d, s->x);
    if (s->q)
        dev_queue_free(s->d, s->q);
    s->x = NULL;
    s->q = NULL;
}

static int bind_value(struct opsession *s, const struct opcase *c, uint32_t id, struct bound *b,
                      struct err *e)
{
    /* memory for the largest step that the part was compiled for */
    uint64_t bytes;
    int rc = ERR_OK;
    if (!tensor_value_bytes(&c->g->values[id], s->planned, &bytes) || bytes < c->bytes[id])
        return err_set(e, ERR_LIMIT, "a case is larger than what it was compiled for");
    if (s->guard) {
        struct d0_status status = {.size = sizeof status};
        if ((rc = guard_alloc(&b->guard, bytes, e)) != 0)
            return rc;
        memcpy(b->guard.data, c->data[id], c->bytes[id]);
        b->wrapped = s->d->api->buffer_wrap(s->d->handle, b->guard.data, bytes, &b->buffer, &status) == D0_OK;
    }
    if (!b->wrapped) {
        rc = dev_buffer(s->d, bytes, &b->buffer, e);
        if (rc == 0 && c->bytes[id])
            rc = dev_copy_in(s->d, s->q, b->buffer, 0, c->data[id], c->bytes[id], e);
    }
    return rc ? rc : dev_bind(s->d, s->x, id, b->buffer, 0, e);
}

static int run_bound(struct opsession *s, const struct opcase *c, struct bound *b, const struct opresult *out,
                     struct err *e)
{
    struct d0_step_dims dims = {.size = sizeof dims};
    memcpy(dims.dims, c->dims, sizeof dims.dims);
    int rc = dev_run(s->d, s->q, s->x, &dims, e);
    for (uint32_t o = 0; rc == 0 && o < c->n_outputs; o++)
        if (out->out[o] && c->n_out[o])
            rc = dev_read_output(s->d, s->q, s->x, c->output[o], 0, out->out[o],
                                 c->n_out[o] * sizeof *out->out[o], e);
    for (uint32_t i = 0; rc == 0 && i < c->g->n_values; i++)
        if (out->state[i] && !b[i].wrapped)
            rc = dev_copy_out(s->d, s->q, b[i].buffer, 0, out->state[i], c->bytes[i], e);
    if (rc == 0)
        rc = dev_wait(s->d, s->q, RUN_DEADLINE_NS, e);
    for (uint32_t i = 0; rc == 0 && i < c->g->n_values; i++)
        if (out->state[i] && b[i].wrapped)
            memcpy(out->state[i], b[i].guard.data, c->bytes[i]);
    return rc;
}

int opsession_run(struct opsession *s, const struct opcase *c, const struct opresult *out, uint32_t *touched,
                  struct err *e)
{
    struct bound b[OPCASE_VALUES];
    memset(b, 0, sizeof b);
    *touched = D0_NO_VALUE;
    int rc = ERR_OK;
    int64_t exact[D0_N_DIMS];
    for (int i = 0; i < D0_N_DIMS; i++)
        exact[i] = c->dims[i] > 0 ? c->dims[i] : 1; /* a step without tokens still binds something */
    if (s->guard && memcmp(exact, s->planned, sizeof exact) != 0)
        rc = compile_for(s, c, exact, e);
    for (uint32_t i = 0; rc == 0 && i < c->g->n_values; i++)
        if (c->g->values[i].kind != D0_VALUE_OUTPUT)
            rc = bind_value(s, c, i, &b[i], e);
    if (rc == 0)
        rc = run_bound(s, c, b, out, e);
    for (uint32_t i = 0; i < c->g->n_values && i < OPCASE_VALUES; i++) {
        if (guard_touched(&b[i].guard))
            *touched = i;
        if (b[i].buffer)
            dev_buffer_free(s->d, b[i].buffer);
        guard_free(&b[i].guard);
    }
    return rc;
}
