/* SPDX-License-Identifier: Apache-2.0
 *
 * Operator conformance must pass the built-in kernels and name every planted fault: wrong everywhere, wrong
 * in one element, wrong in the last bit of some batches, NaN that spreads, state written where it must not,
 * reads past the end, refusals and failures.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verify/opcase.h"
#include "verify/verify.h"

/* ---- a device that delegates to cpu and spoils one operator ---- */

enum fault {
    FAULT_NONE,
    FAULT_SCALE,
    FAULT_ONE_ELEMENT,
    FAULT_BATCH,
    FAULT_NAN_SPREADS,
    FAULT_STATE,
    FAULT_PAST_END,
    FAULT_REFUSE,
    FAULT_FAIL,
    FAULT_UNWRITTEN,
    FAULT_SECOND, /* the second output, a little */
    FAULT_CHOICE, /* the last of the numbers chosen, by one */
    FAULT_SLOT    /* the first value of a state of slots, a little */
};

static struct {
    const struct d0_device_api *cpu;
    struct d0_device_api api;
    enum fault fault;
    uint32_t victim, op; /* op: of the part compiled last */
    int64_t tokens;
    int64_t width;
    uint32_t first_output, state;
    uint64_t slot_bytes; /* of the last state */
    struct d0_buffer *bound[OPCASE_VALUES];
    const volatile char *wrapped;
    uint64_t wrapped_bytes;
} faulty;

static bool hit(void)
{
    return faulty.op == faulty.victim;
}

static int f_supports(struct d0_device *device, const struct d0_part *part, uint32_t node, char *reason,
                      size_t bytes)
{
    if (faulty.fault == FAULT_REFUSE && part->nodes[node].op == faulty.victim) {
        snprintf(reason, bytes, "no kernel");
        return 0;
    }
    return faulty.cpu->supports(device, part, node, reason, bytes);
}

static void note_state(const struct d0_value *v, uint32_t id)
{
    faulty.state = id;
    faulty.slot_bytes = sizeof(float);
    for (uint32_t d = 1; d < v->n_dims; d++)
        faulty.slot_bytes *= (uint64_t)v->dims[d];
}

static int f_compile(struct d0_device *device, const struct d0_part *part, struct d0_exec **out,
                     struct d0_status *status)
{
    faulty.op = part->nodes[0].op;
    faulty.first_output = part->nodes[0].outputs[0];
    for (uint32_t i = 0; i < part->n_values; i++)
        if (part->values[i].kind == D0_VALUE_STATE)
            note_state(&part->values[i], i);
    faulty.width = part->nodes[0].n_outputs ? part->values[part->nodes[0].outputs[0]].dims[1] : 0;
    return faulty.cpu->compile(device, part, out, status);
}

static int f_bind(struct d0_exec *exec, uint32_t value, struct d0_buffer *buffer, uint64_t offset,
                  struct d0_status *status)
{
    faulty.bound[value] = buffer;
    return faulty.cpu->bind(exec, value, buffer, offset, status);
}

static int f_wrap(struct d0_device *device, void *host, uint64_t bytes, struct d0_buffer **out,
                  struct d0_status *status)
{
    faulty.wrapped = host;
    faulty.wrapped_bytes = bytes;
    return faulty.cpu->buffer_wrap(device, host, bytes, out, status);
}

static int f_run(struct d0_queue *queue, struct d0_exec *exec, const struct d0_step_dims *dims,
                 struct d0_status *status)
{
    faulty.tokens = dims->dims[0];
    if (hit() && faulty.fault == FAULT_FAIL && dims->dims[0] == 5) {
        status->code = D0_E_DEVICE;
        snprintf(status->message, sizeof status->message, "lost the card");
        return D0_E_DEVICE;
    }
    int rc = faulty.cpu->run(queue, exec, dims, status);
    if (hit() && faulty.fault == FAULT_STATE && dims->dims[0] == 17) {
        static const uint16_t one = 0x3f80;
        faulty.cpu->copy_in(queue, faulty.bound[2], 0, &one, sizeof one, NULL); /* page 0, slot 0 */
    }
    if (hit() && faulty.fault == FAULT_SLOT) { /* of slot 3, which some sequence of a large batch has */
        float x[64];
        uint64_t at = 3 * faulty.slot_bytes;
        size_t bytes = faulty.slot_bytes < sizeof x ? (size_t)faulty.slot_bytes : sizeof x;
        faulty.cpu->copy_out(queue, faulty.bound[faulty.state], at, x, bytes, NULL);
        for (size_t i = 0; i < bytes / sizeof *x; i++)
            x[i] *= 1 + 0x1p-12f;
        faulty.cpu->copy_in(queue, faulty.bound[faulty.state], at, x, bytes, NULL);
    }
    if (hit() && faulty.fault == FAULT_PAST_END)
        (void)faulty.wrapped[(faulty.wrapped_bytes + 63) / 64 * 64];
    return rc;
}

static void spoil(float *x, size_t n)
{
    size_t width = (size_t)faulty.width;
    for (size_t i = 0; i < n; i++) {
        if (faulty.fault == FAULT_SCALE)
            x[i] *= 1 + 0x1p-11f;
        if (faulty.fault == FAULT_BATCH && faulty.tokens >= 8 && i % width == 0)
            x[i] = nextafterf(x[i], INFINITY);
        if (faulty.fault == FAULT_NAN_SPREADS && isnan(x[i]))
            for (size_t k = 0; k < n; k++)
                x[k] = NAN;
    }
    if (faulty.fault == FAULT_ONE_ELEMENT && faulty.tokens == 33 && width == 16)
        x[n - 1] *= 1.01f;
}

static int f_read_output(struct d0_queue *queue, struct d0_exec *exec, uint32_t value, uint64_t offset,
                         void *host, uint64_t bytes, struct d0_status *status)
{
    if (hit() && faulty.fault == FAULT_UNWRITTEN)
        return D0_OK;
    int rc = faulty.cpu->read_output(queue, exec, value, offset, host, bytes, status);
    if (rc != D0_OK || !hit())
        return rc;
    if (faulty.fault == FAULT_CHOICE && value == faulty.first_output && faulty.tokens == 17)
        ((int32_t *)host)[bytes / 4 - 1] += 1;
    if (faulty.fault == FAULT_SECOND && value != faulty.first_output)
        ((float *)host)[0] *= 1 + 0x1p-12f;
    spoil(host, bytes / sizeof(float));
    return rc;
}

static void open_faulty(struct dev *d, enum fault fault, uint32_t victim)
{
    struct err e;
    assert_int_equal(dev_open(d, &(struct dev_options){.name = "cpu", .isa = "fast", .n_threads = 1}, &e), 0);
    memset(&faulty, 0, sizeof faulty);
    faulty.cpu = d->api;
    faulty.api = *d->api;
    faulty.api.supports = f_supports;
    faulty.api.compile = f_compile;
    faulty.api.bind = f_bind;
    faulty.api.buffer_wrap = d->api->buffer_wrap ? f_wrap : NULL;
    faulty.api.run = f_run;
    faulty.api.read_output = f_read_output;
    faulty.fault = fault;
    faulty.victim = victim;
    d->api = &faulty.api;
}

static void close_faulty(struct dev *d)
{
    d->api = faulty.cpu;
    dev_close(d);
}

/* ---- */

struct outcome {
    struct arena arena;
    struct verify_op_result *r;
    size_t n;
    struct findings f;
};

/* Of the default shapes every n-th. 5 still visits 14 of the 16 remainders of a width by 16. */
static void run_ops(struct dev *d, const char *only, unsigned every, bool bench, struct outcome *o)
{
    struct err e;
    struct verify_ops_options options = {.only = only, .seed = 1, .bench = bench, .every = every};
    char text[1400];
    err_clear(&e);
    arena_init(&o->arena, NULL, MEM_MISC);
    findings_init(&o->f, NULL);
    if (verify_ops(d, &options, &o->arena, &o->r, &o->n, &o->f, &e) != 0)
        fail_msg("%s", err_format(&e, text, sizeof text));
}

static void release(struct outcome *o)
{
    findings_release(&o->f);
    arena_release(&o->arena);
}

static void print_rows(const struct outcome *o)
{
    for (size_t i = 0; i < o->n; i++) {
        const struct verify_op_result *r = &o->r[i];
        print_message("  %-18s %-6s %8.3f of %3g ULP  %7.2f GB/s %7.2f GFLOP/s %6.2fx  %s %s\n", r->name,
                      r->passed ? "ok" : "FAILED", r->max_ulp, r->limit_ulp, r->gbps, r->gflops, r->ref_ratio,
                      r->shape, r->why);
    }
}

static void test_builtin_passes(void **state)
{
    (void)state;
    static const char *const isas[] = {"ref", "avx2", "avx512"};
    const struct op_info *ops;
    size_t n_ops = op_all(&ops);
    for (size_t k = 0; k < ARRAY_LEN(isas); k++) {
        struct dev d;
        struct err e;
        struct outcome o;
        if (dev_open(&d, &(struct dev_options){.name = "cpu", .isa = isas[k], .n_threads = k == 2 ? 2 : 1},
                     &e) != 0) {
            print_message("SKIP %s: this processor does not have it\n", isas[k]);
            continue;
        }
        /* the reference against itself can only show faults of the harness: one operator is enough */
        /* avx512 gives the bits of avx2 (kcheck): fewer shapes show what the two threads do */
        run_ops(&d, k == 0 ? "attention" : NULL, k == 2 ? 11 : 5, false, &o);
        print_message("%s\n", isas[k]);
        print_rows(&o);
        size_t computed = 0;
        for (size_t i = 0; i < n_ops; i++)
            computed += !op_no_kernel(ops[i].id);
        assert_true(o.n >= (k == 0 ? 3 : computed));
        for (size_t i = 0; i < o.n; i++)
            assert_true(o.r[i].passed && o.r[i].supported);
        assert_int_equal(o.f.n, 0);
        release(&o);
        dev_close(&d);
    }
}

/* Exactly the rows of the victim fail, among those whose name contains it (one sweep: of all operators, few
 * shapes), with a finding that names it. */
static void expect_caught_among(enum fault fault, uint32_t victim, const char *name, const char *why,
                                const char *only, unsigned every)
{
    struct dev d;
    struct outcome o;
    open_faulty(&d, fault, victim);
    run_ops(&d, only, every, false, &o);
    size_t failed = 0;
    for (size_t i = 0; i < o.n; i++) {
        bool of_victim =
            strncmp(o.r[i].name, name, strlen(name)) == 0 && (o.r[i].name[strlen(name)] | ' ') == ' ';
        if (o.r[i].passed == of_victim)
            print_rows(&o);
        assert_int_equal(o.r[i].passed, !of_victim);
        if (!of_victim)
            continue;
        failed++;
        if (!strstr(o.r[i].why, why))
            fail_msg("%s: \"%s\" does not say \"%s\"", o.r[i].name, o.r[i].why, why);
        if (fault == FAULT_REFUSE)
            assert_false(o.r[i].supported);
    }
    assert_true(failed > 0);
    assert_int_equal(o.f.n, fault == FAULT_REFUSE ? 0 : failed);
    for (size_t i = 0; i < o.f.n; i++) {
        assert_int_equal(o.f.items[i].id, FINDING_N003);
        assert_non_null(strstr(o.f.items[i].subject, name));
        assert_non_null(strstr(o.f.items[i].evidence, "seed"));
    }
    release(&o);
    close_faulty(&d);
}

static void expect_caught(enum fault fault, uint32_t victim, const char *name, const char *why)
{
    expect_caught_among(fault, victim, name, why, name, 7);
}

static void test_faults(void **state)
{
    (void)state;
    expect_caught_among(FAULT_SCALE, D0_OP_EXPERTS, "experts", "ULP", NULL, 24);
    expect_caught(FAULT_SCALE, D0_OP_LINEAR, "linear", "ULP");
    expect_caught_among(FAULT_ONE_ELEMENT, D0_OP_LINEAR, "linear", "row 32, element 15",
                        "linear F8_E4M3 1xall", 1);
    expect_caught(FAULT_BATCH, D0_OP_LINEAR, "linear", "alone");
    expect_caught(FAULT_BATCH, D0_OP_RMS_NORM, "rms_norm", "alone");
    expect_caught(FAULT_BATCH, D0_OP_ADD, "add", "ULP");
    expect_caught(FAULT_NAN_SPREADS, D0_OP_GLU, "glu", "NaN");
    expect_caught(FAULT_SCALE, D0_OP_ATTENTION, "attention", "ULP");
    expect_caught(FAULT_SCALE, D0_OP_ROPE, "rope", "ULP");
    expect_caught(FAULT_SCALE, D0_OP_MLA, "mla", "ULP");
    expect_caught(FAULT_SCALE, D0_OP_POOL_ATTENTION, "pool_attention", "ULP");
    expect_caught(FAULT_SCALE, D0_OP_DELTA_RULE, "delta_rule", "ULP");
    expect_caught(FAULT_SCALE, D0_OP_LAYER_NORM, "layer_norm", "ULP");
    expect_caught(FAULT_BATCH, D0_OP_GROUP_LINEAR, "group_linear", "alone");
    expect_caught(FAULT_SECOND, D0_OP_ROUTE, "route", "ULP");
    expect_caught(FAULT_SECOND, D0_OP_HYPER_IN, "hyper_in", "ULP");
    expect_caught(FAULT_CHOICE, D0_OP_ROUTE, "route", "output 0");
    expect_caught(FAULT_CHOICE, D0_OP_INDEX_TOPK, "index_topk", "output 0");
    expect_caught(FAULT_UNWRITTEN, D0_OP_EMBED, "embed", "ULP");
    expect_caught(FAULT_FAIL, D0_OP_GATHER_ROWS, "gather_rows", "lost the card");
    expect_caught(FAULT_REFUSE, D0_OP_ROPE_TABLE, "rope_table", "no kernel");
}

static void test_state_fault(void **state)
{
    (void)state;
    expect_caught(FAULT_STATE, D0_OP_KV_STORE, "kv_store", "state");
    expect_caught(FAULT_SLOT, D0_OP_SHORT_CONV, "short_conv", "state");
    expect_caught(FAULT_SLOT, D0_OP_DELTA_RULE, "delta_rule", "state");
    expect_caught(FAULT_SLOT, D0_OP_POOL_KV, "pool_kv", "state");
}

static void test_past_end(void **state)
{
    (void)state;
    struct dev d;
    open_faulty(&d, FAULT_NONE, 0);
    bool wraps = d.api->buffer_wrap != NULL;
    close_faulty(&d);
    if (wraps)
        expect_caught(FAULT_PAST_END, D0_OP_ADD, "add", "behind the end");
    else
        print_message("SKIP reads past the end: the device takes no host memory\n");
}

static void test_bench_and_only(void **state)
{
    (void)state;
    struct dev d;
    struct err e;
    struct outcome o;
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = "cpu", .isa = "fast"}, &e), 0);
    run_ops(&d, "group_linear BF16", 5, true, &o);
    print_rows(&o);
    assert_int_equal(o.n, 1);
    assert_string_equal(o.r[0].name, "group_linear BF16");
    assert_true(o.r[0].gbps > 0 && o.r[0].gflops > 0 && o.r[0].ref_ratio > 0);
    release(&o);
    run_ops(&d, "no such operator", 1, false, &o);
    assert_int_equal(o.n, 0);
    release(&o);
    dev_close(&d);
}

static void test_null_device(void **state)
{
    (void)state;
    struct dev d;
    struct err e;
    struct outcome o;
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = "null"}, &e), 0);
    arena_init(&o.arena, NULL, MEM_MISC);
    findings_init(&o.f, NULL);
    assert_int_equal(verify_ops(&d, &(struct verify_ops_options){.seed = 1}, &o.arena, &o.r, &o.n, &o.f, &e),
                     ERR_UNSUPPORTED);
    release(&o);
    dev_close(&d);
}

/* Every operator of ops.def has cases: a new one without them must not go unnoticed. */
static void test_every_operator_has_cases(void **state)
{
    (void)state;
    const struct op_info *ops;
    size_t n = op_all(&ops);
    for (size_t i = 0; i < n; i++) {
        struct opshape s;
        struct optype type;
        struct opcase c;
        struct err e;
        int64_t max_dims[D0_N_DIMS] = {8, 4, 8, 8}, dims[D0_N_DIMS] = {8, 3, 8, 8};
        unsigned count = 0;
        if (op_no_kernel(ops[i].id))
            continue;
        assert_true(optype_default(ops[i].id, 0, &type));
        while (opshape_default(ops[i].id, &type, count, &s))
            count++;
        assert_true(count >= 64);
        assert_true(opshape_default(ops[i].id, &type, 10, &s));
        max_dims[3] = dims[3] = opshape_columns(&s, 8);
        assert_int_equal(opcase_open(&c, &s, max_dims, &e), 0);
        assert_int_equal(opcase_fill(&c, dims, OPCLASS_NORMAL, 5, &e), 0);
        opcase_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operator_has_cases),
        cmocka_unit_test(test_builtin_passes),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_state_fault),
        cmocka_unit_test(test_past_end),
        cmocka_unit_test(test_bench_and_only),
        cmocka_unit_test(test_null_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
