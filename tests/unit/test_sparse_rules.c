/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators of sparse and pooled attention and of mixed residuals through the CPU device: a sound node runs
 * alike on every instruction set, and no size, type or attribute may be off.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "dev/dev.h"
#include "kern/kern.h"
#include "tensor/tensor.h"

#define T     D0_DIM_TOKENS
#define B     D0_DIM_SEQS
#define P     D0_DIM_PAGES
#define MAX_T 6
#define MAX_B 2
#define MAX_P 3
#define PAGES 7

enum { IN = D0_VALUE_INPUT, WEIGHT = D0_VALUE_WEIGHT, STATE = D0_VALUE_STATE };

struct input {
    uint32_t kind, dtype;
    int64_t dims[D0_MAX_DIMS];
    unsigned free_dims; /* bit i: dimension i may be anything */
};

struct subject {
    uint32_t op;
    struct input in[D0_MAX_NODE_INPUTS];
    struct input out[D0_MAX_NODE_OUTPUTS];
    struct d0_attr attrs[8];
    struct d0_attr bad[10]; /* with any of these instead the node must be refused */
};

#define I(k, n)                                                                                              \
    {                                                                                                        \
        .key = D0_ATTR_##k, .v.i = (n)                                                                       \
    }
#define F(k, x)                                                                                              \
    {                                                                                                        \
        .key = D0_ATTR_##k, .is_float = 1, .v.f = (x)                                                        \
    }
#define PLACES                                                                                               \
    {IN, D0_I32, {T}, 0}, {IN, D0_I32, {T}, 0},                                                              \
    {                                                                                                        \
        IN, D0_I32, {B, P}, 0                                                                                \
    }
/* page counts and sizes are free, heads and width are not */
#define KEYS(rows, dim)                                                                                      \
    {                                                                                                        \
        STATE, D0_BF16, {PAGES, 1, rows, dim}, 5                                                             \
    }
#define ROWS(n)                                                                                              \
    {                                                                                                        \
        IN, D0_F32, {T, n}, 0                                                                                \
    }

static const struct subject subjects[] = {
    {D0_OP_INDEX_TOPK,
     {ROWS(32), KEYS(4, 16), PLACES, ROWS(2)},
     {{0, D0_I32, {T, 3}, 0}},
     {I(HEADS, 2), I(DIM, 16), I(TOPK, 3), F(SCALE, 0.25)},
     {I(HEADS, 0), I(HEADS, 4), I(DIM, -16), I(TOPK, 2), I(TOPK, 0), I(GROUPS, 2), I(BLOCK, 2),
      I(RATIO, -1)}},
    {D0_OP_INDEX_TOPK,
     {ROWS(32), KEYS(4, 16), PLACES},
     {{0, D0_I32, {T, 4}, 0}},
     {I(HEADS, 2), I(DIM, 16), I(TOPK, 2), I(BLOCK, 2), I(GROUPS, 2)},
     {I(GROUPS, 3), I(GROUPS, 1), I(GROUPS, -2), I(BLOCK, 0), I(BLOCK, -2), I(RATIO, 2)}},
    {D0_OP_POOL_ATTENTION,
     {ROWS(32), KEYS(4, 16), KEYS(2, 16), {WEIGHT, D0_F32, {2}, 0}, PLACES, {IN, D0_I32, {T, 3}, 2}},
     {ROWS(32)},
     {I(HEADS, 2), I(DIM, 16), I(WINDOW, 3), I(RATIO, 2), F(SCALE, 0.25)},
     {I(HEADS, 4), I(HEADS, 0), I(DIM, 8), I(WINDOW, -1), I(RATIO, 0), I(RATIO, -2)}},
    {D0_OP_POOL_KV,
     {ROWS(32),
      ROWS(32),
      {WEIGHT, D0_BF16, {2, 32}, 0},
      {WEIGHT, D0_BF16, {16}, 0},
      {WEIGHT, D0_F32, {4}, 0},
      KEYS(2, 16),
      {STATE, D0_F32, {3, 8, 32}, 1},
      PLACES,
      {IN, D0_I32, {B}, 0}},
     {{0}},
     {I(RATIO, 2), I(DIM, 16), F(EPS, 1e-6), I(OVERLAP, 1), I(ROPE, 8)},
     {I(RATIO, 3), I(RATIO, 0), I(RATIO, INT64_MAX), I(DIM, 8), I(DIM, INT64_MAX), I(OVERLAP, 0), I(ROPE, 7),
      I(ROPE, 10), I(ROPE, 18), I(ROPE, -2)}},
    {D0_OP_MIX_RESIDUAL,
     {ROWS(20), {WEIGHT, D0_BF16, {20}, 0}, {WEIGHT, D0_BF16, {1, 20}, 0}, ROWS(20), ROWS(20)},
     {ROWS(20)},
     {F(EPS, 1e-6)},
     {{0}}},
    {D0_OP_HYPER_IN,
     {ROWS(60), {WEIGHT, D0_F32, {15, 60}, 0}, {WEIGHT, D0_F32, {15}, 0}, {WEIGHT, D0_F32, {3}, 0}},
     {ROWS(20), ROWS(12)},
     {I(STREAMS, 3), F(EPS, 1e-6), F(RENORM_EPS, 1e-6), I(ROUNDS, 4)},
     {I(STREAMS, 0), I(STREAMS, 2), I(STREAMS, -3), I(STREAMS, INT64_MAX), I(ROUNDS, -1),
      I(ROUNDS, INT64_MAX)}},
    {D0_OP_HYPER_OUT,
     {ROWS(20), ROWS(60), ROWS(12)},
     {ROWS(60)},
     {I(STREAMS, 3)},
     {I(STREAMS, 0), I(STREAMS, 2), I(STREAMS, 65)}},
    {D0_OP_HYPER_HEAD,
     {ROWS(60), {WEIGHT, D0_F32, {3, 60}, 0}, {WEIGHT, D0_F32, {3}, 0}, {WEIGHT, D0_F32, {1}, 0}},
     {ROWS(20)},
     {I(STREAMS, 3), F(EPS, 1e-6), F(RENORM_EPS, 1e-6)},
     {I(STREAMS, 0), I(STREAMS, 2), I(STREAMS, 65)}},
};

struct made {
    struct d0_value values[D0_MAX_NODE_INPUTS + D0_MAX_NODE_OUTPUTS];
    struct d0_node node;
    struct d0_part part;
};

static uint32_t add_value(struct made *m, const struct input *s, uint32_t kind)
{
    struct d0_value v = {.kind = kind, .dtype = s->dtype, .offset = m->part.scratch_bytes};
    while (v.n_dims < D0_MAX_DIMS && s->dims[v.n_dims]) {
        v.dims[v.n_dims] = s->dims[v.n_dims];
        v.n_dims++;
    }
    m->values[m->part.n_values] = v;
    if (kind == D0_VALUE_OUTPUT)
        m->part.scratch_bytes += 4096;
    return m->part.n_values++;
}

static void make(struct made *m, const struct subject *s)
{
    memset(m, 0, sizeof *m);
    m->part = (struct d0_part){.size = sizeof m->part,
                               .abi_version = D0_DEVICE_ABI_VERSION,
                               .n_nodes = 1,
                               .values = m->values,
                               .nodes = &m->node,
                               .max_dims = {MAX_T, MAX_B, 1, MAX_P}};
    m->node.op = s->op;
    for (unsigned i = 0; i < D0_MAX_NODE_INPUTS && s->in[i].kind; i++)
        m->node.inputs[m->node.n_inputs++] = add_value(m, &s->in[i], s->in[i].kind);
    for (unsigned o = 0; o < D0_MAX_NODE_OUTPUTS && s->out[o].dims[0]; o++)
        m->node.outputs[m->node.n_outputs++] = add_value(m, &s->out[o], D0_VALUE_OUTPUT);
    for (unsigned i = 0; i < 8 && s->attrs[i].key; i++)
        m->node.attrs[m->node.n_attrs++] = s->attrs[i];
}

static struct dev open_cpu(const char *isa)
{
    struct dev d;
    struct err e = {0};
    if (dev_open(&d, &(struct dev_options){.name = "cpu", .isa = isa, .n_threads = 2}, &e) != ERR_OK)
        fail_msg("%s", e.message);
    return d;
}

static void set_attr(struct d0_node *n, const struct d0_attr *a)
{
    uint32_t i = 0;
    while (i < n->n_attrs && n->attrs[i].key != a->key)
        i++;
    n->attrs[i] = *a;
    n->n_attrs = i == n->n_attrs ? i + 1 : n->n_attrs;
}

static void expect(struct dev *d, const struct made *m, bool taken, const char *what, unsigned i, unsigned k)
{
    char reason[256] = "";
    if ((dev_supports(d, &m->part, 0, reason, sizeof reason) != 0) != taken)
        fail_msg("operator %u is %s (%s): %s %u %u", m->node.op, taken ? "refused" : "taken", reason, what, i,
                 k);
}

static void test_rules(void **state)
{
    (void)state;
    struct dev d = open_cpu("ref");
    for (size_t n = 0; n < ARRAY_LEN(subjects); n++) {
        const struct subject *s = &subjects[n];
        struct made m;
        make(&m, s);
        expect(&d, &m, true, "as it is", 0, 0);
        for (unsigned v = 0; v < m.part.n_values; v++) {
            const struct input *source = v < m.node.n_inputs ? &s->in[v] : &s->out[v - m.node.n_inputs];
            for (unsigned k = 0; k < m.values[v].n_dims; k++) {
                make(&m, s);
                m.values[v].dims[k] = m.values[v].dims[k] < 0 ? 5 : m.values[v].dims[k] + 1;
                expect(&d, &m, (source->free_dims >> k & 1) != 0, "size of value", v, k);
            }
            make(&m, s);
            m.values[v].dtype = D0_I64;
            expect(&d, &m, false, "type of value", v, 0);
            make(&m, s);
            if (m.values[v].n_dims < D0_MAX_DIMS) {
                m.values[v].dims[m.values[v].n_dims++] = 1;
                expect(&d, &m, false, "one size more of value", v, 0);
            }
            make(&m, s);
            if (m.values[v].kind != STATE)
                continue;
            m.values[v].kind = IN;
            expect(&d, &m, false, "no state: value", v, 0);
        }
        for (unsigned i = 0; i < ARRAY_LEN(s->bad) && s->bad[i].key; i++) {
            make(&m, s);
            set_attr(&m.node, &s->bad[i]);
            expect(&d, &m, false, "attribute", i, s->bad[i].key);
        }
    }
    dev_close(&d);
}

/* Positions of two sequences, their tables and slots; other inputs at random. */
static void fill(const struct subject *s, unsigned i, void *data, size_t bytes, struct rng *r,
                 size_t n_ints[2])
{
    const struct input *in = &s->in[i];
    if (in->dtype == D0_I32) {
        int32_t *p = data;
        bool positions = n_ints[0] == 0 && in->dims[1] == 0, seq_of = n_ints[0] == 1;
        n_ints[0]++;
        for (size_t k = 0; k < bytes / 4; k++)
            p[k] = positions ? (int32_t)(4 + k % 3) : seq_of ? (int32_t)(k / 3) : (int32_t)k % PAGES;
        for (size_t k = 0; in->dims[0] == T && in->dims[1] && k < bytes / 4; k++) /* chosen entries */
            p[k] = k % 3 == 2 ? -1 : (int32_t)(k % 3);
        return;
    }
    size_t width = dtype_bits(in->dtype) / 8;
    for (size_t k = 0; k < bytes / width; k++) {
        float v = (float)(2 * rng_next_f64(r) - 1);
        tensor_from_f32(&v, 1, in->dtype, (unsigned char *)data + k * width);
    }
}

static size_t bytes_of(const struct d0_value *v, const int64_t dims[D0_N_DIMS])
{
    size_t n = dtype_bits(v->dtype) / 8;
    for (unsigned k = 0; k < v->n_dims; k++)
        n *= (size_t)(v->dims[k] < 0 ? dims[-1 - v->dims[k]] : v->dims[k]);
    return n;
}

/* One step; what it gives goes to out, then its states. How many bytes that is. */
static size_t run(const struct subject *s, const char *isa, int64_t tokens, unsigned char *out)
{
    struct dev d = open_cpu(isa);
    struct made m;
    struct err e = {0};
    struct d0_exec *x;
    struct d0_queue *q;
    struct d0_buffer *b[D0_MAX_NODE_INPUTS];
    struct d0_step_dims dims = {.size = sizeof dims, .dims = {tokens, MAX_B, 1, MAX_P}};
    struct rng r;
    size_t n = 0, n_ints[2] = {0};
    make(&m, s);
    rng_init(&r, 1);
    if (dev_compile(&d, &m.part, &x, &e) != ERR_OK || dev_queue(&d, &q, &e) != ERR_OK)
        fail_msg("%s", e.message);
    for (uint32_t i = 0; i < m.node.n_inputs; i++) {
        unsigned char data[8192];
        size_t bytes = bytes_of(&m.values[i], m.part.max_dims);
        assert_true(bytes <= sizeof data);
        fill(s, i, data, bytes, &r, n_ints);
        assert_int_equal(dev_buffer(&d, bytes, &b[i], &e), ERR_OK);
        assert_int_equal(dev_copy_in(&d, q, b[i], 0, data, bytes, &e), ERR_OK);
        assert_int_equal(dev_bind(&d, x, i, b[i], 0, &e), ERR_OK);
    }
    if (dev_run(&d, q, x, &dims, &e) != ERR_OK)
        fail_msg("%s", e.message);
    for (uint32_t v = m.node.n_inputs; v < m.part.n_values; v++) {
        size_t bytes = bytes_of(&m.values[v], dims.dims);
        assert_int_equal(dev_read_output(&d, q, x, v, 0, out + n, bytes, &e), ERR_OK);
        n += bytes;
    }
    for (uint32_t i = 0; i < m.node.n_inputs; i++)
        if (m.values[i].kind == STATE && s->op == D0_OP_POOL_KV && m.values[i].dtype == D0_F32) {
            size_t bytes = bytes_of(&m.values[i], dims.dims);
            assert_int_equal(dev_copy_out(&d, q, b[i], 0, out + n, bytes, &e), ERR_OK);
            n += bytes;
        }
    for (uint32_t i = 0; i < m.node.n_inputs; i++)
        dev_buffer_free(&d, b[i]);
    dev_exec_free(&d, x);
    dev_queue_free(&d, q);
    dev_close(&d);
    return n;
}

static void test_runs(void **state)
{
    (void)state;
    static unsigned char want[16384], got[16384];
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++) {
        const struct subject *s = &subjects[i];
        size_t n = run(s, "ref", MAX_T, want), zeroes = 0;
        for (size_t k = 0; k < n; k++)
            zeroes += want[k] == 0;
        assert_true(n > 0 && zeroes < n);
        for (int isa = 0; isa < KERN_N_ISA; isa++) {
            if (!kern_isa_available((enum kern_isa)isa))
                continue;
            assert_int_equal(run(s, kern_isa_name((enum kern_isa)isa), MAX_T, got), n);
            for (size_t k = 0; k < n; k += 4) {
                float x, y;
                int32_t a, b;
                memcpy(&x, want + k, 4);
                memcpy(&y, got + k, 4);
                memcpy(&a, want + k, 4);
                memcpy(&b, got + k, 4);
                if (s->out[0].dtype == D0_I32 ? a != b : !(fabsf(x - y) <= 1e-5f))
                    fail_msg("operator %u on %s: element %zu is %g (%d), must be %g (%d)", s->op,
                             kern_isa_name((enum kern_isa)isa), k / 4, (double)y, b, (double)x, a);
            }
            run(s, kern_isa_name((enum kern_isa)isa), 0, got); /* a step of no tokens */
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rules), cmocka_unit_test(test_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
