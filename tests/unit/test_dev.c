/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices through the ABI: memory and its limit, parts that must be refused, the cpu's instruction sets
 * against its reference, the null device's bookkeeping, and plugins that fail in every way.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kern/kern.h"
#include "tiny_llama.h"

#define PLUGIN(name) TEST_BUILD_ROOT "/tests/plugins/lib" name ".so"
#define K            64
#define N            48
#define MAX_T        6

static struct dev open_dev(const char *name, const char *isa, uint64_t limit, struct mem *mem)
{
    struct dev d;
    struct err e = {0};
    struct dev_options o = {.name = name, .isa = isa, .n_threads = 2, .memory_limit = limit, .mem = mem};
    if (dev_open(&d, &o, &e) != ERR_OK)
        fail_msg("dev_open %s %s: %s", name, isa ? isa : "", e.message);
    return d;
}

/* ---- a part of one LINEAR and one ADD ------------------------------------------------------------------ */

struct small {
    struct d0_value values[5]; /* x, w, bias, y, z = y + y */
    struct d0_node nodes[2];
    struct d0_part part;
};

static void small_part(struct small *s)
{
    memset(s, 0, sizeof *s);
    s->values[0] = (struct d0_value){.kind = D0_VALUE_INPUT,
                                     .dtype = D0_F32,
                                     .n_dims = 2,
                                     .role = D0_INPUT_HIDDEN,
                                     .dims = {D0_DIM_TOKENS, K}};
    s->values[1] = (struct d0_value){.kind = D0_VALUE_WEIGHT, .dtype = D0_BF16, .n_dims = 2, .dims = {N, K}};
    s->values[2] = (struct d0_value){.kind = D0_VALUE_WEIGHT, .dtype = D0_BF16, .n_dims = 1, .dims = {N}};
    s->values[3] = (struct d0_value){
        .kind = D0_VALUE_ACTIVATION, .dtype = D0_F32, .n_dims = 2, .dims = {D0_DIM_TOKENS, N}, .offset = 0};
    s->values[4] = s->values[3];
    s->values[4].kind = D0_VALUE_OUTPUT;
    s->values[4].offset = MAX_T * N * 4;
    s->nodes[0] = (struct d0_node){
        .op = D0_OP_LINEAR, .n_inputs = 3, .n_outputs = 1, .inputs = {0, 1, 2}, .outputs = {3}};
    s->nodes[1] =
        (struct d0_node){.op = D0_OP_ADD, .n_inputs = 2, .n_outputs = 1, .inputs = {3, 3}, .outputs = {4}};
    s->part = (struct d0_part){.size = sizeof s->part,
                               .abi_version = D0_DEVICE_ABI_VERSION,
                               .n_values = 5,
                               .n_nodes = 2,
                               .values = s->values,
                               .nodes = s->nodes,
                               .scratch_bytes = 2 * MAX_T * N * 4,
                               .max_dims = {MAX_T, 1, 1, 1}};
}

/* out: the output, [tokens, width] */
static void run_part(struct dev *d, struct small *s, float *out, int64_t tokens, int64_t width)
{
    struct err e = {0};
    struct d0_exec *x;
    struct d0_queue *q;
    struct d0_buffer *b[3];
    void *data[3] = {tiny_random(D0_F32, MAX_T * K, 0, 1, 1), tiny_random(D0_BF16, N * K, 0, 1, 2),
                     tiny_random(D0_BF16, N, 0, 1, 3)};
    const size_t bytes[3] = {MAX_T * K * 4, N * K * 2, N * 2};
    if (dev_compile(d, &s->part, &x, &e) != ERR_OK || dev_queue(d, &q, &e) != ERR_OK)
        fail_msg("%s", e.message);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(dev_buffer(d, bytes[i], &b[i], &e), ERR_OK);
        assert_int_equal(dev_copy_in(d, q, b[i], 0, data[i], bytes[i], &e), ERR_OK);
        assert_int_equal(dev_bind(d, x, i, b[i], 0, &e), ERR_OK);
        free(data[i]);
    }
    struct d0_step_dims dims = {.size = sizeof dims, .dims = {tokens, 1, 1, 1}};
    if (dev_run(d, q, x, &dims, &e) != ERR_OK)
        fail_msg("%s", e.message);
    uint64_t n = (uint64_t)(tokens * width) * 4;
    assert_int_equal(dev_read_output(d, q, x, 4, 0, out, n, &e), ERR_OK);
    assert_int_equal(dev_read_output(d, q, x, 4, 4, out, n, &e), ERR_INVALID);
    assert_int_equal(dev_read_output(d, q, x, 3, 0, out, 4, &e), ERR_INVALID);
    assert_int_equal(dev_wait(d, q, 1000000000, &e), ERR_OK);
    for (uint32_t i = 0; i < 3; i++)
        dev_buffer_free(d, b[i]);
    dev_exec_free(d, x);
    dev_queue_free(d, q);
}

static void run_small(struct dev *d, float *out, int64_t tokens)
{
    struct small s;
    small_part(&s);
    run_part(d, &s, out, tokens, N);
}

/* ---- cpu ----------------------------------------------------------------------------------------------- */

static void test_cpu_against_ref(void **state)
{
    (void)state;
    float ref[MAX_T * N], got[MAX_T * N], one[N];
    struct dev d = open_dev("cpu", "ref", 0, NULL);
    run_small(&d, ref, MAX_T);
    dev_close(&d);
    float *x = tiny_random(D0_F32, MAX_T * K, 0, 1, 1);
    assert_true(ref[0] != 0);
    for (int isa = 0; isa < KERN_N_ISA; isa++) {
        if (!kern_isa_available((enum kern_isa)isa))
            continue;
        d = open_dev("cpu", kern_isa_name((enum kern_isa)isa), 0, NULL);
        struct d0_device_info info;
        assert_int_equal(dev_info(&d, &info, NULL), ERR_OK);
        assert_string_equal(info.variant, kern_isa_name((enum kern_isa)isa));
        assert_true(info.exact && info.computes && d.computes && d.host_memory);
        run_small(&d, got, MAX_T);
        for (int i = 0; i < MAX_T * N; i++)
            assert_true(fabsf(got[i] - ref[i]) < 1e-4f);
        run_small(&d, one, 1);
        assert_memory_equal(one, got, sizeof one); /* a row alone: same bits */
        dev_close(&d);
    }
    free(x);
}

/* An attribute is known, there once and of its own type, or the part is refused: what a rule has seen is what
 * its kernel gets. */
static void test_cpu_attributes(void **state)
{
    (void)state;
    enum { WIDE = 8, FROM = 16 };
    static const struct d0_attr good[] = {{.key = D0_ATTR_DIM, .v.i = WIDE},
                                          {.key = D0_ATTR_OFFSET, .v.i = FROM}},
                                bad[] = {{.key = D0_ATTR_GROUPS, .is_float = 1, .v.f = 1e300},
                                         {.key = D0_ATTR_DIM, .v.i = N},
                                         {.key = D0_N_ATTRS + 7, .v.i = 1},
                                         {.key = 0, .v.i = 1}};
    struct small s;
    char reason[256];
    float whole[MAX_T * N], piece[MAX_T * WIDE];
    struct dev d = open_dev("cpu", "ref", 0, NULL);
    run_small(&d, whole, MAX_T); /* y + y */
    small_part(&s);
    s.nodes[1].op = D0_OP_SLICE;
    s.nodes[1].n_inputs = 1;
    s.nodes[1].n_attrs = ARRAY_LEN(good);
    memcpy(s.nodes[1].attrs, good, sizeof good);
    s.values[4].dims[1] = WIDE;
    run_part(&d, &s, piece, MAX_T, WIDE);
    for (int i = 0; i < MAX_T * WIDE; i++)
        assert_true(2 * piece[i] == whole[i / WIDE * N + FROM + i % WIDE]);
    assert_true(dev_supports(&d, &s.part, 1, reason, sizeof reason));
    s.nodes[1].n_attrs++;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        s.nodes[1].attrs[ARRAY_LEN(good)] = bad[i];
        assert_false(dev_supports(&d, &s.part, 1, reason, sizeof reason));
    }
    dev_close(&d);
}

/* What a part will take is known before it is compiled, for any number of threads and tokens. */
static void test_scratch_need(void **state)
{
    (void)state;
    static const int64_t tokens[] = {1, MAX_T, 64};
    struct small s;
    struct err e = {0};
    struct d0_device_info info;
    uint64_t need, largest = 0;
    for (int isa = 0; isa < KERN_N_ISA; isa++) {
        if (!kern_isa_available((enum kern_isa)isa))
            continue;
        for (unsigned i = 0; i < 6; i++) {
            struct mem mem = {0};
            struct dev_options o = {.name = "cpu",
                                    .isa = kern_isa_name((enum kern_isa)isa),
                                    .n_threads = i % 2 ? 3 : 1,
                                    .mem = &mem};
            struct dev d;
            struct d0_exec *x;
            small_part(&s);
            s.part.max_dims[0] = tokens[i / 2];
            s.values[4].offset = (uint64_t)tokens[i / 2] * N * 4;
            s.part.scratch_bytes = 2 * s.values[4].offset;
            assert_int_equal(dev_open(&d, &o, &e), ERR_OK);
            assert_true(dev_says_scratch(&d));
            assert_int_equal(dev_scratch_need(&d, &s.part, &need, &e), ERR_OK);
            dev_info(&d, &info, NULL);
            assert_int_equal(info.memory_used, 0); /* asking takes nothing */
            assert_int_equal(dev_compile(&d, &s.part, &x, &e), ERR_OK);
            dev_info(&d, &info, NULL);
            assert_int_equal(info.memory_used, s.part.scratch_bytes + need);
            assert_int_equal(atomic_load(&mem.live[MEM_KERNELS]), need);
            dev_exec_free(&d, x);
            assert_int_equal(atomic_load(&mem.live[MEM_KERNELS]), 0);
            largest = need > largest ? need : largest;
            s.nodes[0].op = D0_OP_MLA; /* a node that does not run adds nothing, and is no error */
            assert_int_equal(dev_scratch_need(&d, &s.part, &need, &e), ERR_OK);
            assert_int_equal(need, 0);
            s.part.size = 0;
            assert_int_equal(dev_scratch_need(&d, &s.part, &need, &e), ERR_INVALID);
            dev_close(&d);
        }
    }
    assert_true(largest > 0);
    small_part(&s);
    struct dev d = open_dev("null", NULL, 0, NULL);
    assert_int_equal(dev_scratch_need(&d, &s.part, &need, &e), ERR_OK);
    assert_int_equal(need, 0);
    dev_close(&d);
    /* tables with and without this function */
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = PLUGIN("telling_device")}, &e), ERR_OK);
    assert_true(dev_says_scratch(&d));
    assert_int_equal(dev_scratch_need(&d, &s.part, &need, &e), ERR_OK);
    assert_int_equal(need, 200000000);
    dev_close(&d);
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = PLUGIN("quiet_device")}, &e), ERR_OK);
    assert_false(dev_says_scratch(&d));
    assert_int_equal(dev_scratch_need(&d, &s.part, &need, &e), ERR_OK);
    assert_int_equal(need, 0);
    dev_close(&d);
}

static void test_cpu_memory(void **state)
{
    (void)state;
    struct mem mem = {0};
    struct dev d = open_dev("cpu", NULL, 10 << 20, &mem);
    struct err e = {0};
    struct d0_buffer *a, *b;
    struct d0_device_info info;
    assert_int_equal(dev_buffer(&d, 6 << 20, &a, &e), ERR_OK); /* large: a mapping of its own */
    assert_int_equal(dev_buffer(&d, 5 << 20, &b, &e), ERR_NOMEM);
    assert_non_null(strstr(e.message, "limit"));
    assert_non_null(strstr(e.message, "wanted"));
    assert_int_equal(dev_buffer(&d, UINT64_MAX, &b, &e), ERR_NOMEM);
    assert_int_equal(dev_buffer(&d, 4 << 20, &b, &e), ERR_OK);
    dev_info(&d, &info, NULL);
    assert_int_equal(info.memory_used, 10 << 20);
    dev_buffer_free(&d, a);
    dev_info(&d, &info, NULL);
    assert_int_equal(info.memory_used, 4 << 20);
    assert_int_equal(info.memory_peak, 10 << 20);
    struct d0_queue *q;
    char data[128] = "written", back[128] = "";
    assert_int_equal(dev_queue(&d, &q, &e), ERR_OK);
    assert_int_equal(dev_copy_in(&d, q, b, (4 << 20) - 128, data, 128, &e), ERR_OK);
    assert_int_equal(dev_copy_out(&d, q, b, (4 << 20) - 128, back, 128, &e), ERR_OK);
    assert_string_equal(back, "written");
    assert_int_equal(dev_copy_in(&d, q, b, (4 << 20) - 127, data, 128, &e), ERR_INVALID);
    assert_int_equal(dev_copy_out(&d, q, b, UINT64_MAX, back, 128, &e), ERR_INVALID);
    dev_buffer_free(&d, b);
    /* wrapped memory is used in place */
    _Alignas(64) static char host[256];
    struct d0_status st = {.size = sizeof st};
    assert_int_equal(d.api->buffer_wrap(d.handle, host, sizeof host, &b, &st), D0_OK);
    assert_int_equal(dev_copy_in(&d, q, b, 64, data, 8, &e), ERR_OK);
    assert_string_equal(host + 64, "written");
    dev_buffer_free(&d, b);
    assert_int_equal(d.api->buffer_wrap(d.handle, host + 1, 64, &b, &st), D0_E_INVALID);
    dev_queue_free(&d, q);
    dev_info(&d, &info, NULL);
    assert_int_equal(info.memory_used, 0);
    dev_close(&d);
    dev_close(&d);
}

static void test_cpu_options(void **state)
{
    (void)state;
    struct dev d;
    struct err e = {0};
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = "gpu"}, &e), ERR_INVALID);
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = "cpu", .isa = "neon"}, &e), ERR_INVALID);
    assert_non_null(strstr(e.message, "neon"));
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = "cpu", .arguments = "colour=red"}, &e),
                     ERR_INVALID);
    assert_int_equal(dev_open(&d, &(struct dev_options){.arguments = "isa=ref"}, &e), ERR_OK);
    dev_close(&d);
    const char *const *names;
    assert_int_equal(dev_names(&names), 2);
}

/* ---- parts that are wrong ------------------------------------------------------------------------------ */

static void refuse(const char *device, const struct small *s, int code)
{
    struct dev d = open_dev(device, NULL, 0, NULL);
    struct err e = {0};
    struct d0_exec *x = NULL;
    int rc = dev_compile(&d, &s->part, &x, &e);
    if (rc != code)
        fail_msg("%s: compile gave %d, expected %d (%s)", device, rc, code, e.message);
    dev_exec_free(&d, x);
    dev_close(&d);
}

/* Rules read the first of two attributes, kernels might read the last. */
static void give_attributes(struct d0_node *n, struct d0_attr a, struct d0_attr b)
{
    n->n_attrs = 2;
    n->attrs[0] = a;
    n->attrs[1] = b;
}

static void test_bad_parts(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "null"};
    for (int i = 0; i < 2; i++) {
        struct small s;
        const char *d = devices[i];
#define BAD(code, change) (small_part(&s), (change), refuse(d, &s, code))
        BAD(ERR_OK, (void)0);
        BAD(ERR_INVALID, s.part.size--);
        BAD(ERR_INVALID, s.part.abi_version++);
        BAD(ERR_INVALID, s.part.values = NULL);
        BAD(ERR_INVALID, s.part.n_nodes = UINT32_MAX);
        BAD(ERR_INVALID, s.part.max_dims[0] = -1);
        BAD(ERR_INVALID, s.part.scratch_bytes--);
        BAD(ERR_INVALID, s.values[4].offset = UINT64_MAX - 63);
        BAD(ERR_INVALID, s.values[3].offset = 4);
        BAD(ERR_INVALID, s.values[0].kind = 9);
        BAD(ERR_INVALID, s.values[0].dtype = 99);
        BAD(ERR_INVALID, s.values[0].n_dims = 5);
        BAD(ERR_INVALID, s.values[1].dims[0] = 0);
        BAD(ERR_INVALID, s.values[1].dims[0] = -5);
        BAD(ERR_INVALID, s.values[1].dims[1] = INT64_MAX);
        BAD(ERR_INVALID, s.nodes[0].n_inputs = 13);
        BAD(ERR_INVALID, s.nodes[0].inputs[1] = 5);
        BAD(ERR_INVALID, s.nodes[0].inputs[0] = 4);  /* read before written */
        BAD(ERR_INVALID, s.nodes[1].outputs[0] = 3); /* written twice */
        BAD(ERR_INVALID, s.nodes[1].outputs[0] = 1); /* a weight */
        const struct d0_attr one = {.key = D0_ATTR_SEGMENTS, .v.i = 1},
                             other = {.key = D0_ATTR_DIM, .v.i = 0},
                             real = {.key = D0_ATTR_DIM, .is_float = 1, .v.f = 1e300};
        BAD(ERR_OK, give_attributes(&s.nodes[0], one, other));
        BAD(ERR_INVALID, give_attributes(&s.nodes[0], one, one));
        BAD(ERR_INVALID, give_attributes(&s.nodes[0], one, real));
        BAD(ERR_UNSUPPORTED, s.nodes[1].op = 999);
        BAD(ERR_UNSUPPORTED, s.nodes[1].n_inputs = 1);
        BAD(ERR_UNSUPPORTED, s.values[1].dtype = D0_I64);
        BAD(ERR_UNSUPPORTED, s.values[1].dims[1] = K - 1);
        BAD(ERR_UNSUPPORTED, s.values[2].dims[0] = N + 1);
        BAD(ERR_UNSUPPORTED, s.values[0].dtype = D0_BF16);
#undef BAD
        /* supports() says the same in words */
        struct dev dev = open_dev(d, NULL, 0, NULL);
        char reason[128];
        small_part(&s);
        assert_true(dev_supports(&dev, &s.part, 0, reason, sizeof reason));
        assert_false(dev_supports(&dev, &s.part, 2, reason, sizeof reason));
        s.values[2].dims[0] = N + 1;
        assert_false(dev_supports(&dev, &s.part, 0, reason, sizeof reason));
        assert_non_null(strstr(reason, "bias"));
        dev_close(&dev);
    }
}

static void test_bad_runs(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "null"};
    for (int i = 0; i < 2; i++) {
        struct dev d = open_dev(devices[i], NULL, 0, NULL);
        struct small s;
        struct err e = {0};
        struct d0_exec *x;
        struct d0_queue *q;
        struct d0_buffer *b;
        small_part(&s);
        assert_int_equal(dev_compile(&d, &s.part, &x, &e), ERR_OK);
        assert_int_equal(dev_queue(&d, &q, &e), ERR_OK);
        assert_int_equal(dev_buffer(&d, N * K * 2, &b, &e), ERR_OK);
        struct d0_step_dims dims = {.size = sizeof dims, .dims = {1, 1, 1, 1}};
        assert_int_equal(dev_run(&d, q, x, &dims, &e), ERR_INVALID);
        assert_non_null(strstr(e.message, "not bound"));
        assert_int_equal(dev_bind(&d, x, 3, b, 0, &e), ERR_INVALID);
        assert_int_equal(dev_bind(&d, x, 99, b, 0, &e), ERR_INVALID);
        assert_int_equal(dev_bind(&d, x, 1, b, 64, &e), ERR_INVALID);
        assert_int_equal(dev_bind(&d, x, 1, b, 4, &e), ERR_INVALID);
        assert_int_equal(dev_bind(&d, x, 1, NULL, 0, &e), ERR_INVALID);
        for (uint32_t v = 0; v < 3; v++)
            assert_int_equal(dev_bind(&d, x, v, b, 0, &e), ERR_OK);
        dims.dims[0] = MAX_T + 1;
        assert_int_equal(dev_run(&d, q, x, &dims, &e), ERR_INVALID);
        dims.dims[0] = -1;
        assert_int_equal(dev_run(&d, q, x, &dims, &e), ERR_INVALID);
        dims.size = 4;
        assert_int_equal(dev_run(&d, q, x, &dims, &e), ERR_INVALID);
        dev_exec_free(&d, x);
        dev_buffer_free(&d, b);
        dev_queue_free(&d, q);
        dev_close(&d);
    }
}

/* ---- null ---------------------------------------------------------------------------------------------- */

static void test_null_tracks(void **state)
{
    (void)state;
    struct dev d = open_dev("null", NULL, UINT64_C(9) << 40, NULL);
    struct err e = {0};
    struct d0_buffer *b, *c;
    struct d0_queue *q;
    char host[64] = "abc";
    assert_false(d.computes);
    assert_int_equal(dev_queue(&d, &q, &e), ERR_OK);
    assert_int_equal(dev_buffer(&d, UINT64_C(8) << 40, &b, &e), ERR_OK); /* 8 TB */
    assert_int_equal(dev_buffer(&d, UINT64_C(2) << 40, &c, &e), ERR_NOMEM);
    assert_int_equal(dev_copy_out(&d, q, b, 0, host, 8, &e), ERR_INVALID);
    assert_non_null(strstr(e.message, "before it was written"));
    /* pieces in any order are joined */
    const uint64_t at[] = {10, 30, 0, 20};
    for (int i = 0; i < 4; i++)
        assert_int_equal(dev_copy_in(&d, q, b, at[i], host, 10, &e), ERR_OK);
    assert_int_equal(dev_copy_out(&d, q, b, 0, host, 40, &e), ERR_OK);
    assert_int_equal(host[0], 0);
    assert_int_equal(dev_copy_out(&d, q, b, 35, host, 6, &e), ERR_INVALID);
    for (uint64_t i = 0; i < 100; i++) /* many islands, then one write over all */
        assert_int_equal(dev_copy_in(&d, q, b, 100 + i * 20, host, 10, &e), ERR_OK);
    assert_int_equal(dev_copy_out(&d, q, b, 100, host, 11, &e), ERR_INVALID);
    char big[4096] = {0};
    assert_int_equal(dev_copy_in(&d, q, b, 50, big, 4000, &e), ERR_OK);
    assert_int_equal(dev_copy_out(&d, q, b, 60, big, 3000, &e), ERR_OK);
    dev_buffer_free(&d, b);
    struct d0_device_info info;
    dev_info(&d, &info, NULL);
    assert_int_equal(info.memory_used, 0);
    assert_true(info.memory_peak == UINT64_C(8) << 40);
    struct d0_status st = {.size = sizeof st};
    assert_int_equal(d.api->buffer_wrap(d.handle, big, sizeof big, &b, &st), D0_OK);
    assert_int_equal(dev_copy_out(&d, q, b, 4000, host, 64, &e), ERR_OK);
    dev_buffer_free(&d, b);
    float out[MAX_T * N];
    run_small(&d, out, 2);
    assert_true(out[0] == 0 && out[2 * N - 1] == 0);
    dev_queue_free(&d, q);
    dev_close(&d);
}

static void test_null_use_before_write(void **state)
{
    (void)state;
    struct dev d = open_dev("null", NULL, 0, NULL);
    struct small s;
    struct err e = {0};
    small_part(&s);
    struct d0_exec *x;
    struct d0_queue *q;
    struct d0_buffer *b[3];
    const uint64_t bytes[3] = {MAX_T * K * 4, N * K * 2, N * 2};
    char *zero = calloc(1, 65536);
    assert_int_equal(dev_compile(&d, &s.part, &x, &e), ERR_OK);
    assert_int_equal(dev_queue(&d, &q, &e), ERR_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(dev_buffer(&d, bytes[i], &b[i], &e), ERR_OK);
        assert_int_equal(dev_bind(&d, x, i, b[i], 0, &e), ERR_OK);
    }
    struct d0_step_dims dims = {.size = sizeof dims, .dims = {2, 1, 1, 1}};
    dev_copy_in(&d, q, b[0], 0, zero, 2 * K * 4, &e); /* only the rows of this step */
    dev_copy_in(&d, q, b[1], 0, zero, bytes[1] - 1, &e);
    dev_copy_in(&d, q, b[2], 0, zero, bytes[2], &e);
    assert_int_equal(dev_run(&d, q, x, &dims, &e), ERR_INVALID); /* last byte of the weight is missing */
    assert_non_null(strstr(e.message, "value 1"));
    dev_copy_in(&d, q, b[1], bytes[1] - 1, zero, 1, &e);
    float out[2 * N];
    assert_int_equal(dev_read_output(&d, q, x, 4, 0, out, 4, &e), ERR_INVALID);
    assert_int_equal(dev_run(&d, q, x, &dims, &e), ERR_OK);
    dims.dims[0] = 3;
    assert_int_equal(dev_run(&d, q, x, &dims, &e), ERR_INVALID);
    for (uint32_t i = 0; i < 3; i++)
        dev_buffer_free(&d, b[i]);
    dev_exec_free(&d, x);
    dev_queue_free(&d, q);
    dev_close(&d);
    free(zero);
}

/* ---- plugins ------------------------------------------------------------------------------------------- */

static void test_plugins(void **state)
{
    (void)state;
    struct dev d;
    struct err e = {0};
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = "./no-such-plugin.so"}, &e), ERR_MISSING);
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = TEST_SOURCE_ROOT "/tests"}, &e), ERR_MISSING);
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = TEST_SOURCE_ROOT "/meson.build"}, &e),
                     ERR_FORMAT);
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = PLUGIN("bad_comm")}, &e), ERR_FORMAT);
    assert_non_null(strstr(e.message, "d0_device_plugin"));
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = PLUGIN("old_device")}, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.message, "ABI version 3"));
    assert_int_equal(
        dev_open(&d, &(struct dev_options){.name = PLUGIN("bad_device"), .arguments = "open"}, &e),
        ERR_DEVICE);
    assert_non_null(strstr(e.message, "does not answer"));
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = PLUGIN("bad_device")}, &e), ERR_OK);
    assert_false(d.host_memory);
    struct small s;
    small_part(&s);
    char reason[64];
    struct d0_exec *x;
    assert_false(dev_supports(&d, &s.part, 0, reason, sizeof reason));
    assert_non_null(strstr(reason, "runs nothing"));
    assert_int_equal(dev_compile(&d, &s.part, &x, &e), ERR_UNSUPPORTED);
    dev_close(&d);
    const char *const faults[] = {"memory", "slow", "silent"};
    for (int i = 0; i < 3; i++) {
        struct d0_queue *q;
        struct d0_buffer *b = NULL;
        struct dev_options o = {.name = PLUGIN("bad_device"), .arguments = faults[i]};
        assert_int_equal(dev_open(&d, &o, &e), ERR_OK);
        assert_int_equal(dev_queue(&d, &q, &e), ERR_OK);
        assert_int_equal(dev_buffer(&d, 64, &b, &e), i == 0 ? ERR_NOMEM : ERR_OK);
        assert_int_equal(dev_wait(&d, q, 1, &e), i == 1 ? ERR_TIMEOUT : ERR_OK);
        assert_int_equal(dev_compile(&d, &s.part, &x, &e), ERR_UNSUPPORTED);
        assert_true(e.message[0] != '\0');
        dev_buffer_free(&d, b);
        dev_queue_free(&d, q);
        dev_close(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_against_ref),
        cmocka_unit_test(test_cpu_attributes),
        cmocka_unit_test(test_scratch_need),
        cmocka_unit_test(test_cpu_memory),
        cmocka_unit_test(test_cpu_options),
        cmocka_unit_test(test_bad_parts),
        cmocka_unit_test(test_bad_runs),
        cmocka_unit_test(test_null_tracks),
        cmocka_unit_test(test_null_use_before_write),
        cmocka_unit_test(test_plugins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
