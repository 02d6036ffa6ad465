/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: one run of a whole graph on what the caller feeds, with all weights in memory: towers, and texts that
 * take up what they give. Refuses inputs that nobody feeds.
 */
#include <stdlib.h>
#include <string.h>

#include "load/load.h"
#include "oracle/oracle.h"
#include "tensor/tensor.h"

#define WAIT_NS UINT64_C(3600000000000)

struct once {
    struct dev *d;
    struct graph *g;
    struct weights *weights;
    struct d0_queue *queue;
    struct d0_exec *exec;
    struct d0_buffer **own; /* by value: inputs and states */
};

static int copy(struct once *o, uint32_t value, const void *data, uint64_t bytes, struct err *e)
{
    int rc = bytes ? dev_copy_in(o->d, o->queue, o->own[value], 0, data, bytes, e) : ERR_OK;
    return rc ? rc : dev_wait(o->d, o->queue, WAIT_NS, e);
}

/* NaN: what is read before it was written shows. */
static int poison(struct once *o, uint32_t value, uint64_t bytes, struct err *e)
{
    void *ones = malloc(bytes ? (size_t)bytes : 1);
    if (!ones)
        return err_set(e, ERR_NOMEM, "no memory for a state of %llu bytes", (unsigned long long)bytes);
    memset(ones, 0xff, (size_t)bytes);
    int rc = copy(o, value, ones, bytes, e);
    free(ones);
    return rc;
}

/* The nth input of a role gets the nth data of that role. */
static const struct oracle_input *data_of(const struct once *o, uint32_t value, const struct oracle_input *in,
                                          size_t n)
{
    size_t nth = 0;
    for (uint32_t i = 0; i < value; i++)
        nth += o->g->values[i].kind == D0_VALUE_INPUT && o->g->values[i].role == o->g->values[value].role;
    for (size_t i = 0; i < n; i++)
        if (in[i].role == o->g->values[value].role && nth-- == 0)
            return &in[i];
    return NULL;
}

static int bind_one(struct once *o, uint32_t i, const struct oracle_input *in, size_t n, struct err *e)
{
    const struct d0_value *v = &o->g->values[i];
    uint64_t bytes;
    if (v->kind == D0_VALUE_WEIGHT)
        return dev_bind(o->d, o->exec, i, o->weights->buffers[i], 0, e);
    if (v->kind != D0_VALUE_INPUT && v->kind != D0_VALUE_STATE)
        return ERR_OK;
    if (!tensor_value_bytes(v, o->g->max_dims, &bytes))
        return err_set(e, ERR_LIMIT, "%s is too large to address", o->g->info[i].name);
    int rc = dev_buffer(o->d, bytes ? bytes : 64, &o->own[i], e);
    if (rc == 0)
        rc = dev_bind(o->d, o->exec, i, o->own[i], 0, e);
    if (rc || v->kind == D0_VALUE_STATE)
        return rc ? rc : poison(o, i, bytes, e);
    const struct oracle_input *data = data_of(o, i, in, n);
    if (!data || data->bytes > bytes)
        return err_set(e, ERR_INVALID, "input %s of role %u %s", o->g->info[i].name, v->role,
                       data ? "gets more than it holds" : "is fed by nobody");
    return copy(o, i, data->data, data->bytes, e);
}

/* A copy of the graph whose wanted values can be read, planned for this step. */
static int plan(struct once *o, const struct graph *g, const int64_t dims[D0_N_DIMS],
                const struct oracle_output *out, size_t n, struct err *e)
{
    int rc = graph_copy(g, &o->g, e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < o->g->n_values; i++)
        if (o->g->values[i].kind == D0_VALUE_STATE)
            o->g->values[i].dims[0] = o->g->info[i].state == STATE_PAGES ? dims[3] : dims[1];
    for (size_t i = 0; i < n; i++) {
        if (out[i].value >= o->g->n_values || o->g->values[out[i].value].kind != D0_VALUE_ACTIVATION)
            return err_set(e, ERR_INVALID, "value %u of the graph is no result", out[i].value);
        o->g->info[out[i].value].keep = true;
    }
    return graph_plan_memory(o->g, dims, false, e);
}

static int compute(struct once *o, const int64_t dims[D0_N_DIMS], const struct oracle_output *out, size_t n,
                   struct err *e)
{
    struct d0_step_dims step = {.size = sizeof step};
    memcpy(step.dims, dims, sizeof step.dims);
    int rc = dev_run(o->d, o->queue, o->exec, &step, e);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = dev_read_output(o->d, o->queue, o->exec, out[i].value, 0, out[i].data, out[i].bytes, e);
    return rc ? rc : dev_wait(o->d, o->queue, WAIT_NS, e);
}

int oracle_once(const struct oracle_model *m, const struct graph *g, const int64_t dims[D0_N_DIMS],
                const struct oracle_input *inputs, size_t n_inputs, const struct oracle_output *outputs,
                size_t n_outputs, struct err *e)
{
    struct once o = {.d = m->dev};
    struct d0_part part;
    int rc = plan(&o, g, dims, outputs, n_outputs, e);
    if (rc == 0 && (o.own = calloc(g->n_values + (size_t)1, sizeof *o.own)) == NULL)
        rc = err_set(e, ERR_NOMEM, "no memory for %u buffers", g->n_values);
    if (rc == 0)
        rc = weights_load(&o.weights, o.g, m->ckpt, o.d, &(struct load_options){.spec = m->spec}, e);
    if (rc == 0)
        rc = dev_queue(o.d, &o.queue, e);
    if (rc == 0) {
        graph_part(o.g, &part);
        rc = dev_compile(o.d, &part, &o.exec, e);
    }
    for (uint32_t i = 0; rc == 0 && i < o.g->n_values; i++)
        rc = bind_one(&o, i, inputs, n_inputs, e);
    if (rc == 0)
        rc = compute(&o, dims, outputs, n_outputs, e);
    dev_exec_free(o.d, o.exec);
    for (uint32_t i = 0; o.own && i < o.g->n_values; i++)
        dev_buffer_free(o.d, o.own[i]);
    dev_queue_free(o.d, o.queue);
    weights_free(o.weights);
    graph_free(o.g);
    free(o.own);
    return rc;
}
