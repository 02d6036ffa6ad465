/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the judgement of one case: what a device gave against what the reference gave, element by element in
 * units of the natural scale (docs/numerics.md). Where inputs come from is not its business.
 */
#include "verify/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"

#define OPS_MAX_ELEMENTS ((size_t)1 << 26)

void optest_failed(struct row_test *t, const struct opcase *c, const char *fmt, ...)
{
    char shape[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t->r->why, sizeof t->r->why, fmt, ap);
    va_end(ap);
    snprintf(t->r->shape, sizeof t->r->shape, "T %lld, %s", (long long)c->dims[0],
             opshape_format(&c->shape, shape, sizeof shape));
    size_t n = strlen(t->r->why);
    snprintf(t->r->why + n, sizeof t->r->why - n, " (values: %s)", t->values);
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

static bool judge_ints(struct row_test *t, const struct opcase *c, uint32_t o)
{
    for (size_t i = 0; i < c->n_out[o]; i++) {
        int32_t got, want;
        memcpy(&got, t->got.out[o] + i, sizeof got);
        memcpy(&want, t->want.out[o] + i, sizeof want);
        if (got == want)
            continue;
        t->r->max_ulp = INFINITY;
        optest_failed(t, c, "row %zu, element %zu of output %u: %d, should be %d", i / c->out_width[o],
                      i % c->out_width[o], o, got, want);
        return false;
    }
    return true;
}

static bool judge_floats(struct row_test *t, const struct opcase *c, uint32_t o)
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
            optest_failed(t, c, "row %zu, element %zu: %.9g, should be %.9g: %.4g ULP, limit %g",
                          i / c->out_width[o], i % c->out_width[o], (double)got[i], (double)want[i], err,
                          t->op->tolerance_ulp);
            return false;
        }
    }
    return true;
}

static bool judge_outputs(struct row_test *t, const struct opcase *c)
{
    for (uint32_t o = 0; o < c->n_outputs; o++)
        if (!(c->ints[o] ? judge_ints(t, c, o) : judge_floats(t, c, o)))
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

static bool judge_state(struct row_test *t, const struct opcase *c, uint32_t id)
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
        optest_failed(t, c, "element %llu of state %u: %.9g, should be %.9g: %.4g ULP, limit %g",
                      (unsigned long long)i, id, (double)got, (double)want, err, t->op->tolerance_ulp);
        return false;
    }
    return true;
}

static bool judge_states(struct row_test *t, const struct opcase *c)
{
    for (uint32_t i = 0; i < c->g->n_values; i++)
        if (t->got.state[i] && !judge_state(t, c, i))
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
static int judge_batch(struct row_test *t, struct opsession *s, const struct opcase *c, int64_t row,
                       struct err *e)
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
        optest_failed(t, c, "row %lld has other bits alone than in the batch", (long long)row);
        return ERR_OK;
    }
    if ((rc = opcase_poisoned(c, row, &poisoned, e)) != 0)
        return rc;
    rc = opsession_run(s, &poisoned, &t->alone, &touched, e);
    opcase_release_copy(&poisoned);
    if (rc == 0 && !same_row(t, c, row, row))
        optest_failed(t, c, "row %lld changes when other rows hold NaN", (long long)row);
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

int optest_room(struct row_test *t, const struct opcase *c, struct err *e)
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

void optest_free(struct row_test *t)
{
    free_result(&t->got);
    free_result(&t->want);
    free_result(&t->alone);
    opscale_free_states(&t->scale);
    for (uint32_t o = 0; o < D0_MAX_NODE_OUTPUTS; o++)
        free(t->scale.out[o]);
    memset(&t->scale, 0, sizeof t->scale);
}

int optest_execute(struct row_test *t, struct opsession *dut, struct opsession *ref, struct opcase *c,
                   uint32_t *touched, struct err *e)
{
    uint32_t ignored;
    int rc = optest_room(t, c, e);
    *touched = D0_NO_VALUE;
    if (rc == 0)
        rc = opsession_run(ref, c, &t->want, &ignored, e);
    if (rc == 0)
        rc = opsession_run(dut, c, &t->got, touched, e);
    if (rc == 0 && t->op->tolerance_ulp > 0)
        rc = opcase_scale(c, &t->want, &t->scale, e);
    for (uint32_t o = 0; rc == 0 && t->op->tolerance_ulp == 0 && o < c->n_outputs; o++)
        memset(t->scale.out[o], 0, c->n_out[o] * sizeof *t->scale.out[o]); /* any difference is an error */
    if (rc == 0)
        t->runs++;
    return rc;
}

bool optest_judge(struct row_test *t, const struct opcase *c)
{
    return judge_outputs(t, c) && judge_states(t, c);
}

int optest_run(struct row_test *t, struct opsession *dut, struct opsession *ref, struct opcase *c,
               struct err *e)
{
    uint32_t touched;
    int rc = optest_execute(t, dut, ref, c, &touched, e);
    if (rc)
        return rc;
    if (touched != D0_NO_VALUE)
        optest_failed(t, c, "touches memory behind the end of value %u", touched);
    else if (optest_judge(t, c) && t->exact && !opcase_bounded(c) && t->op->tolerance_ulp > 0 &&
             c->n_outputs > 0 && c->dims[0] > 1)
        rc = judge_batch(t, dut, c, opcase_row_to_try(c, (int64_t)(t->runs % (uint64_t)c->dims[0])), e);
    return rc;
}

/* A device that refuses or fails is a failed case; what we could not do ourselves is an error. */
int optest_device_failed(struct row_test *t, const struct opcase *c, int rc, struct err *e)
{
    if (rc != ERR_DEVICE && rc != ERR_UNSUPPORTED && rc != ERR_INVALID && rc != ERR_TIMEOUT)
        return rc;
    optest_failed(t, c, "the device failed: %.90s", e ? e->message : err_text(rc));
    return ERR_OK;
}
