/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns operator conformance: every operator of a device against the reference device, element by element, in
 * every tail, several batch sizes and value classes. One row of result per operator and type; the first wrong
 * case of a row is told with its seed.
 */
#include "verify/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/str.h"
#include "base/thread.h"
#include "tensor/tensor.h"
#include "verify/guard.h"
#include "verify/verify.h"

#define OPS_MAX_ROWS  256
#define OPS_MAX_TYPES 32

/* Batch sizes, each with the number of sequences it is made of. */
static const int64_t batches[][2] = {{1, 1}, {2, 1}, {3, 2}, {5, 3}, {8, 8}, {17, 4}, {33, 5}};
#define OPS_LARGEST_BATCH 33

static int test_batches(struct row_test *t, struct opcase *c, unsigned shape, struct err *e)
{
    struct opsession dut = {0}, ref = {0};
    struct err inner = {0};
    int rc = opsession_open(&ref, t->ref, c, false, e);
    if (rc == 0 && (rc = opsession_open(&dut, t->d, c, t->guard, &inner)) != 0)
        rc = optest_device_failed(t, c, rc, &inner);
    for (unsigned i = 0; rc == 0 && t->r->passed && i <= ARRAY_LEN(batches); i++) {
        enum opclass cls = (enum opclass)((shape + i) % OPCLASS_N);
        int64_t tokens = i < ARRAY_LEN(batches) ? batches[i][0] : 0,
                seqs = i < ARRAY_LEN(batches) ? batches[i][1] : 0;
        int64_t dims[D0_N_DIMS] = {tokens, seqs, tokens, c->max_dims[3]};
        uint64_t seed = hash64(&(uint64_t[2]){shape, i}, 16, t->seed);
        t->r->seed = t->r->passed ? seed : t->r->seed;
        t->values = opclass_name(cls);
        rc = opcase_fill(c, dims, cls, seed, &inner);
        if (rc == 0 && (rc = optest_run(t, &dut, &ref, c, &inner)) != 0)
            rc = optest_device_failed(t, c, rc, &inner);
        optest_free(t);
    }
    if (rc && e && inner.code == rc)
        *e = inner;
    opsession_close(&dut);
    opsession_close(&ref);
    return rc;
}

static int test_shape(struct row_test *t, const struct opshape *s, unsigned index, struct err *e)
{
    int64_t max_dims[D0_N_DIMS] = {OPS_LARGEST_BATCH, 8, OPS_LARGEST_BATCH,
                                   opshape_columns(s, OPS_LARGEST_BATCH + 45)};
    struct opcase c;
    struct d0_part part;
    char reason[96] = "";
    int rc = opcase_open(&c, s, max_dims, e);
    if (rc)
        return rc;
    graph_part(c.g, &part);
    if (!dev_supports(t->d, &part, 0, reason, sizeof reason)) {
        optest_failed(t, &c, "not supported: %s", reason);
        t->r->supported = false;
    } else {
        t->shapes++;
        rc = test_batches(t, &c, index, e);
    }
    opcase_close(&c);
    return rc;
}

static bool same_type(const struct optype *a, const struct optype *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static bool model_shape(const struct graph *g, const struct op_info *op, const struct optype *type,
                        uint32_t *node, struct opshape *out)
{
    for (; *node < g->n_nodes; (*node)++) {
        if (g->nodes[*node].op != op->id || !opshape_of_node(g, &g->nodes[*node], out) ||
            !same_type(&out->type, type))
            continue;
        struct opshape before;
        bool known = false;
        for (uint32_t i = 0; i < *node && !known; i++)
            known = g->nodes[i].op == op->id && opshape_of_node(g, &g->nodes[i], &before) &&
                    memcmp(&before, out, sizeof before) == 0;
        if (!known) {
            (*node)++;
            return true;
        }
    }
    return false;
}

/* The i-th type of an operator's rows: of those a model has, in order of appearance, or of the default ones.
 */
static bool row_type(const struct verify_ops_options *o, const struct op_info *op, unsigned i,
                     struct optype *out)
{
    const struct graph *g = o->shapes_of;
    struct optype seen[OPS_MAX_TYPES];
    unsigned n = 0;
    if (!g)
        return optype_default(op->id, i, out);
    for (uint32_t k = 0; k < g->n_nodes && n < OPS_MAX_TYPES; k++) {
        struct opshape s;
        bool known = g->nodes[k].op != op->id || !opshape_of_node(g, &g->nodes[k], &s);
        for (unsigned j = 0; j < n && !known; j++)
            known = same_type(&seen[j], &s.type);
        if (known)
            continue;
        seen[n] = s.type;
        if (n++ == i) {
            *out = s.type;
            return true;
        }
    }
    return false;
}

static int test_row(struct row_test *t, const struct verify_ops_options *o, const struct optype *type,
                    struct err *e)
{
    int rc = ERR_OK;
    uint32_t node = 0;
    struct opshape s;
    for (unsigned i = 0; rc == 0 && t->r->passed; i += o->shapes_of || !o->every ? 1 : o->every) {
        bool more = o->shapes_of ? model_shape(o->shapes_of, t->op, type, &node, &s)
                                 : opshape_default(t->op->id, type, i, &s);
        if (!more)
            break;
        rc = test_shape(t, &s, i, e);
    }
    if (rc == 0 && t->r->passed)
        snprintf(t->r->shape, sizeof t->r->shape, "%u shapes, %u runs%s", t->shapes, t->runs,
                 t->guard ? ", guarded" : "");
    return rc;
}

static bool wanted(const char *name, const char *only)
{
    return !only || !*only || strstr(name, only) != NULL;
}

static int add_row(struct row_test *t, const struct verify_ops_options *o, const struct optype *type,
                   size_t *n, struct findings *f, struct err *e)
{
    char name[48];
    struct verify_op_result *r = t->r;
    *r = (struct verify_op_result){.passed = true, .supported = true, .limit_ulp = t->op->tolerance_ulp};
    snprintf(r->name, sizeof r->name, "%s%s%s", t->op->name, type->dtype ? " " : "",
             optype_name(type, name, sizeof name));
    if (!wanted(r->name, o->only))
        return ERR_OK;
    t->shapes = t->runs = 0;
    t->seed = hash64(r->name, strlen(r->name), o->seed);
    int rc = test_row(t, o, type, e);
    if (rc) {
        err_ctx(e, "testing %s", r->name);
        return rc;
    }
    if (r->passed && t->shapes == 0)
        return ERR_OK; /* a model without this operator */
    if (r->passed && o->bench)
        rc = ops_bench(t->d, t->ref, t->op->id, type, r, e);
    (*n)++;
    if (!r->supported && o->shapes_of)
        finding_add(f, FINDING_P001, r->name, "%s: %s", r->shape, r->why);
    else if (!r->passed && r->supported)
        finding_add(f, FINDING_N003, r->name, "%s: %s; seed %llu", r->shape, r->why,
                    (unsigned long long)r->seed);
    return rc;
}

int verify_ops(struct dev *d, const struct verify_ops_options *o, struct arena *arena,
               struct verify_op_result **out, size_t *n, struct findings *f, struct err *e)
{
    struct d0_device_info info = {.size = sizeof info};
    struct dev ref;
    int rc = dev_info(d, &info, e);
    if (rc)
        return rc;
    if (!info.computes)
        return err_set(e, ERR_UNSUPPORTED, "device %s computes nothing: there is nothing to verify",
                       info.name);
    struct verify_op_result *rows = arena_alloc_n(arena, OPS_MAX_ROWS, sizeof *rows);
    if (!rows)
        return err_set(e, ERR_NOMEM, "no memory for the results of operators");
    /* default shapes are so small that waking a second thread takes longer than the work */
    struct dev_options options = {.name = "cpu", .isa = "ref", .n_threads = o->bench || o->shapes_of ? 0 : 1};
    rc = dev_open(&ref, &options, e);
    if (rc) {
        err_ctx(e, "opening the reference device");
        return rc;
    }
    struct guard_trap trap = {.set = false};
    struct row_test t = {.d = d, .ref = &ref, .exact = info.exact != 0, .guard = d->api->buffer_wrap != NULL};
    if (t.guard)
        guard_trap_set(&trap);
    const struct op_info *ops;
    size_t n_ops = op_all(&ops);
    *n = 0;
    for (size_t i = 0; rc == 0 && i < n_ops; i++) {
        struct optype type;
        t.op = &ops[i];
        for (unsigned k = 0; rc == 0 && *n < OPS_MAX_ROWS && row_type(o, t.op, k, &type); k++) {
            t.r = &rows[*n];
            rc = add_row(&t, o, &type, n, f, e);
        }
    }
    guard_trap_clear(&trap);
    dev_close(&ref);
    *out = rows;
    return rc;
}
