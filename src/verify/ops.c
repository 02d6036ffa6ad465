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

#define OPS_MAX_ROWS     256
#define OPS_MAX_TYPES    32
#define OPS_MAX_ELEMENTS ((size_t)1 << 26)

/* Batch sizes, each with the number of sequences it is made of. */
static const int64_t batches[][2] = {{1, 1}, {2, 1}, {3, 2}, {5, 3}, {8, 8}, {17, 4}, {33, 5}};
#define OPS_LARGEST_BATCH 33

struct row_test {
    struct dev *d, *ref;
    const struct op_info *op;
    bool exact, guard;
    uint64_t seed; /* of this row */
    unsigned shapes, runs;
    struct verify_op_result *r;
    struct opresult got, want, alone;
    struct opscale scale;
};

__attribute__((format(printf, 4, 5))) static void fail_case(struct row_test *t, const struct opcase *c,
                                                            enum opclass cls, const char *fmt, ...)
{
    char shape[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t->r->why, sizeof t->r->why, fmt, ap);
    va_end(ap);
    snprintf(t->r->shape, sizeof t->r->shape, "T %lld, %s", (long long)c->dims[0],
             opshape_format(&c->shape, shape, sizeof shape));
    size_t n = strlen(t->r->why);
    snprintf(t->r->why + n, sizeof t->r->why - n, " (values: %s)", opclass_name(cls));
    t->r->passed = false;
}

/* Errors of one element in units of 2^-23 of its natural scale; infinite for a difference where none may be.
 */
static double element_error(float a, float b, double scale)
{
    if (memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)))
        return 0;
    if (!isfinite(a) || !isfinite(b))
        return a == b ? 0 : INFINITY;
    double diff = fabs((double)a - (double)b);
    return scale > 0 ? diff / (scale * 0x1p-23) : (diff > 0 ? INFINITY : 0);
}

static bool judge_ints(struct row_test *t, const struct opcase *c, uint32_t o, enum opclass cls)
{
    for (size_t i = 0; i < c->n_out[o]; i++) {
        int32_t got, want;
        memcpy(&got, t->got.out[o] + i, sizeof got);
        memcpy(&want, t->want.out[o] + i, sizeof want);
        if (got == want)
            continue;
        t->r->max_ulp = INFINITY;
        fail_case(t, c, cls, "row %zu, element %zu of output %u: %d, should be %d", i / c->out_width[o],
                  i % c->out_width[o], o, got, want);
        return false;
    }
    return true;
}

static bool judge_floats(struct row_test *t, const struct opcase *c, uint32_t o, enum opclass cls)
{
    bool exact = t->op->tolerance_ulp == 0;
    const float *got = t->got.out[o], *want = t->want.out[o];
    for (size_t i = 0; i < c->n_out[o]; i++) {
        double err = element_error(got[i], want[i], t->scale.out[o][i]);
        if (exact && err == 0 && memcmp(&got[i], &want[i], sizeof(float)) != 0 && !isnan(want[i]))
            err = INFINITY; /* zeros of different sign */
        if (err > t->r->max_ulp)
            t->r->max_ulp = err;
        if (err > t->op->tolerance_ulp) {
            fail_case(t, c, cls, "row %zu, element %zu: %.9g, should be %.9g: %.4g ULP, limit %g",
                      i / c->out_width[o], i % c->out_width[o], (double)got[i], (double)want[i], err,
                      t->op->tolerance_ulp);
            return false;
        }
    }
    return true;
}

static bool judge_outputs(struct row_test *t, const struct opcase *c, enum opclass cls)
{
    for (uint32_t o = 0; o < c->n_outputs; o++)
        if (!(c->ints[o] ? judge_ints(t, c, o, cls) : judge_floats(t, c, o, cls)))
            return false;
    return true;
}

/* Half a unit of the type of a state: what rounding to it may add to an error. */
static double half_unit(uint32_t dtype, double v)
{
    if (dtype == D0_BF16)
        return 0x1p-8 * fabs(v);
    return dtype == D0_F16 ? fmax(0x1p-11 * fabs(v), 0x1p-25) : 0;
}

static bool judge_state(struct row_test *t, const struct opcase *c, uint32_t id, enum opclass cls)
{
    const uint8_t *a = t->got.state[id], *b = t->want.state[id];
    uint32_t dtype = c->g->values[id].dtype;
    size_t width = dtype_bits(dtype) / 8;
    if (memcmp(a, b, c->bytes[id]) == 0)
        return true;
    for (uint64_t i = 0; i < c->bytes[id] / width; i++) {
        float got, want;
        if (memcmp(a + i * width, b + i * width, width) == 0)
            continue;
        tensor_to_f32(a + i * width, dtype, 1, &got);
        tensor_to_f32(b + i * width, dtype, 1, &want);
        double scale = t->scale.state[id] ? t->scale.state[id][i] : 0,
               spare = scale > 0 && isfinite(got) && isfinite(want)
                           ? half_unit(dtype, (double)want) + half_unit(dtype, (double)got)
                           : 0,
               err = scale > 0 ? element_error(got, want, scale) : INFINITY;
        if (isfinite(err)) /* each of the two was rounded once */
            err = fmax(0, err - spare / (scale * 0x1p-23));
        if (err > t->r->max_ulp)
            t->r->max_ulp = err;
        if (err <= t->op->tolerance_ulp)
            continue;
        fail_case(t, c, cls, "element %llu of state %u: %.9g, should be %.9g: %.4g ULP, limit %g",
                  (unsigned long long)i, id, (double)got, (double)want, err, t->op->tolerance_ulp);
        return false;
    }
    return true;
}

static bool judge_states(struct row_test *t, const struct opcase *c, enum opclass cls)
{
    for (uint32_t i = 0; i < c->g->n_values; i++)
        if (t->got.state[i] && !judge_state(t, c, i, cls))
            return false;
    return true;
}

/* Row `row` of every output, against row `at` of what is in t->alone. */
static bool same_row(const struct row_test *t, const struct opcase *c, int64_t row, int64_t at)
{
    for (uint32_t o = 0; o < c->n_outputs; o++)
        if (memcmp(t->got.out[o] + (size_t)row * c->out_width[o],
                   t->alone.out[o] + (size_t)at * c->out_width[o], c->out_width[o] * sizeof(float)) != 0)
            return false;
    return true;
}

/* A row in a batch, alone, and among rows of NaN must have the same bits. */
static int judge_batch(struct row_test *t, struct opsession *s, const struct opcase *c, enum opclass cls,
                       int64_t row, struct err *e)
{
    struct opcase one, poisoned;
    uint32_t touched;
    int rc = opcase_alone(c, row, &one, e);
    if (rc)
        return rc;
    rc = opsession_run(s, &one, &t->alone, &touched, e);
    opcase_release_copy(&one);
    if (rc)
        return rc;
    if (!same_row(t, c, row, 0)) {
        fail_case(t, c, cls, "row %lld has other bits alone than in the batch", (long long)row);
        return ERR_OK;
    }
    if ((rc = opcase_poisoned(c, row, &poisoned, e)) != 0)
        return rc;
    rc = opsession_run(s, &poisoned, &t->alone, &touched, e);
    opcase_release_copy(&poisoned);
    if (rc == 0 && !same_row(t, c, row, row))
        fail_case(t, c, cls, "row %lld changes when other rows hold NaN", (long long)row);
    return rc;
}

static bool alloc_result(struct opresult *r, const struct opcase *c, bool states)
{
    for (uint32_t o = 0; o < c->n_outputs; o++) {
        size_t bytes = (c->n_out[o] ? c->n_out[o] : 1) * sizeof(float);
        if (!(r->out[o] = malloc(bytes)))
            return false;
        /* an output that a device forgets to write must not look like the reference's */
        memset(r->out[o], 0xee, bytes);
    }
    for (uint32_t i = 0; states && i < c->g->n_values; i++)
        if (c->g->values[i].kind == D0_VALUE_STATE && !(r->state[i] = malloc((size_t)c->bytes[i])))
            return false;
    return true;
}

static void free_result(struct opresult *r)
{
    for (uint32_t o = 0; o < D0_MAX_NODE_OUTPUTS; o++)
        free(r->out[o]);
    for (uint32_t i = 0; i < OPCASE_VALUES; i++)
        free(r->state[i]);
    memset(r, 0, sizeof *r);
}

static int alloc_run(struct row_test *t, const struct opcase *c, struct err *e)
{
    bool ok = true;
    for (uint32_t o = 0; o < c->n_outputs; o++) {
        size_t n = c->n_out[o] ? c->n_out[o] : 1;
        if (n > OPS_MAX_ELEMENTS)
            return err_set(e, ERR_LIMIT, "a case of %zu elements", n);
        ok = ok && (t->scale.out[o] = malloc(n * sizeof *t->scale.out[o])) != NULL;
    }
    /* states are compared of operators that only read them, too */
    if (!ok || !alloc_result(&t->got, c, true) || !alloc_result(&t->want, c, true) ||
        !alloc_result(&t->alone, c, false))
        return err_set(e, ERR_NOMEM, "no memory for the results of a case");
    return ERR_OK;
}

static void free_run(struct row_test *t)
{
    free_result(&t->got);
    free_result(&t->want);
    free_result(&t->alone);
    opscale_free_states(&t->scale);
    for (uint32_t o = 0; o < D0_MAX_NODE_OUTPUTS; o++)
        free(t->scale.out[o]);
    memset(&t->scale, 0, sizeof t->scale);
}

static int test_case(struct row_test *t, struct opsession *dut, struct opsession *ref, struct opcase *c,
                     enum opclass cls, struct err *e)
{
    uint32_t touched, ignored;
    int rc = alloc_run(t, c, e);
    if (rc == 0)
        rc = opsession_run(ref, c, &t->want, &ignored, e);
    if (rc == 0)
        rc = opsession_run(dut, c, &t->got, &touched, e);
    if (rc == 0 && t->op->tolerance_ulp > 0)
        rc = opcase_scale(c, &t->want, &t->scale, e);
    for (uint32_t o = 0; rc == 0 && t->op->tolerance_ulp == 0 && o < c->n_outputs; o++)
        memset(t->scale.out[o], 0, c->n_out[o] * sizeof *t->scale.out[o]); /* any difference is an error */
    if (rc == 0) {
        t->runs++;
        if (touched != D0_NO_VALUE)
            fail_case(t, c, cls, "touches memory behind the end of value %u", touched);
        else if (judge_outputs(t, c, cls) && judge_states(t, c, cls) && t->exact && !opcase_bounded(c) &&
                 t->op->tolerance_ulp > 0 && c->n_outputs > 0 && c->dims[0] > 1)
            rc = judge_batch(t, dut, c, cls, opcase_row_to_try(c, (int64_t)(t->runs % (uint64_t)c->dims[0])),
                             e);
    }
    free_run(t);
    return rc;
}

/* A device that refuses or fails is a failed case; what we could not do ourselves is an error. */
static int device_failed(struct row_test *t, const struct opcase *c, enum opclass cls, int rc, struct err *e)
{
    if (rc != ERR_DEVICE && rc != ERR_UNSUPPORTED && rc != ERR_INVALID && rc != ERR_TIMEOUT)
        return rc;
    fail_case(t, c, cls, "the device failed: %.90s", e ? e->message : err_text(rc));
    return ERR_OK;
}

static int test_batches(struct row_test *t, struct opcase *c, unsigned shape, struct err *e)
{
    struct opsession dut = {0}, ref = {0};
    struct err inner = {0};
    int rc = opsession_open(&ref, t->ref, c, false, e);
    if (rc == 0 && (rc = opsession_open(&dut, t->d, c, t->guard, &inner)) != 0)
        rc = device_failed(t, c, OPCLASS_NORMAL, rc, &inner);
    for (unsigned i = 0; rc == 0 && t->r->passed && i <= ARRAY_LEN(batches); i++) {
        enum opclass cls = (enum opclass)((shape + i) % OPCLASS_N);
        int64_t tokens = i < ARRAY_LEN(batches) ? batches[i][0] : 0,
                seqs = i < ARRAY_LEN(batches) ? batches[i][1] : 0;
        int64_t dims[D0_N_DIMS] = {tokens, seqs, tokens, c->max_dims[3]};
        uint64_t seed = hash64(&(uint64_t[2]){shape, i}, 16, t->seed);
        t->r->seed = t->r->passed ? seed : t->r->seed;
        rc = opcase_fill(c, dims, cls, seed, &inner);
        if (rc == 0 && (rc = test_case(t, &dut, &ref, c, cls, &inner)) != 0)
            rc = device_failed(t, c, cls, rc, &inner);
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
        fail_case(t, &c, OPCLASS_NORMAL, "not supported: %s", reason);
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
    if (rc)
        return err_ctx(e, "testing %s", r->name);
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
    if (rc)
        return err_ctx(e, "opening the reference device");
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
