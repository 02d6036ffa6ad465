/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the timing of operators: the best of several runs of one fixed shape, on the device and on the
 * reference. Numbers are of one operator with its data where the previous run left it; they are no prediction
 * of a model's speed.
 */
#include <string.h>

#include "base/thread.h"
#include "verify/ops.h"

#define BENCH_NS       40000000ull /* of repeated runs */
#define BENCH_MAX_RUNS 2000
#define BENCH_DEADLINE 60000000000ull

struct bench {
    struct opsession s;
    struct d0_buffer *buffers[OPCASE_VALUES];
};

static int bench_open(struct bench *b, struct dev *d, const struct opcase *c, struct err *e)
{
    memset(b, 0, sizeof *b);
    int rc = opsession_open(&b->s, d, c, false, e);
    for (uint32_t i = 0; rc == 0 && i < c->g->n_values; i++) {
        if (c->g->values[i].kind == D0_VALUE_OUTPUT)
            continue;
        rc = dev_buffer(d, c->bytes[i], &b->buffers[i], e);
        if (rc == 0)
            rc = dev_copy_in(d, b->s.q, b->buffers[i], 0, c->data[i], c->bytes[i], e);
        if (rc == 0)
            rc = dev_bind(d, b->s.x, i, b->buffers[i], 0, e);
    }
    return rc ? rc : dev_wait(d, b->s.q, BENCH_DEADLINE, e);
}

static void bench_close(struct bench *b)
{
    opsession_close(&b->s);
    for (uint32_t i = 0; i < OPCASE_VALUES; i++)
        if (b->buffers[i])
            dev_buffer_free(b->s.d, b->buffers[i]);
}

/* Shortest run in seconds. */
static int bench_time(struct bench *b, const struct opcase *c, double *seconds, struct err *e)
{
    struct d0_step_dims dims = {.size = sizeof dims};
    memcpy(dims.dims, c->dims, sizeof dims.dims);
    uint64_t start = clock_ns(), best = UINT64_MAX, before, now = start;
    for (unsigned i = 0; i < BENCH_MAX_RUNS && (i < 2 || now - start < BENCH_NS); i++) {
        before = clock_ns();
        int rc = dev_run(b->s.d, b->s.q, b->s.x, &dims, e);
        if (rc == 0)
            rc = dev_wait(b->s.d, b->s.q, BENCH_DEADLINE, e);
        if (rc)
            return rc;
        now = clock_ns();
        best = now - before < best ? now - before : best;
    }
    *seconds = best ? (double)best * 1e-9 : 1e-9;
    return ERR_OK;
}

static int measure(struct dev *d, const struct opcase *c, double *seconds, struct err *e)
{
    struct bench b;
    int rc = bench_open(&b, d, c, e);
    if (rc == 0)
        rc = bench_time(&b, c, seconds, e);
    bench_close(&b);
    return rc;
}

/* What one run must move: inputs that are read whole, and what graph_cost counts. */
static double moved_bytes(const struct opcase *c, const struct graph_cost *cost)
{
    double bytes = cost->weight_bytes + cost->activation_bytes + cost->state_bytes;
    for (uint32_t i = 0; i < c->g->n_values; i++)
        if (c->g->values[i].kind == D0_VALUE_INPUT)
            bytes += (double)c->bytes[i];
    return bytes;
}

int ops_bench(struct dev *d, struct dev *ref, uint32_t op, const struct optype *type,
              struct verify_op_result *r, struct err *e)
{
    struct opshape shape;
    struct opcase c;
    int64_t dims[D0_N_DIMS];
    double device, reference;
    opshape_bench(op, type, &shape, dims);
    int rc = opcase_open(&c, &shape, dims, e);
    if (rc)
        return rc;
    rc = opcase_fill(&c, dims, OPCLASS_NORMAL, 1, e);
    if (rc == 0)
        rc = measure(d, &c, &device, e);
    if (rc == 0)
        rc = measure(ref, &c, &reference, e);
    if (rc == 0) {
        struct graph_cost cost;
        graph_cost(c.g, dims, opshape_page_span(&shape) * dims[3] - dims[0], &cost);
        r->gbps = moved_bytes(&c, &cost) / device * 1e-9;
        r->gflops = cost.flops / device * 1e-9;
        r->ref_ratio = reference / device;
    }
    opcase_close(&c);
    if (rc)
        err_ctx(e, "timing %s", r->name);
    return rc;
}
