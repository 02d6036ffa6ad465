/* SPDX-License-Identifier: Apache-2.0
 *
 * Route and experts on the cpu device: kernels in phases under several threads, every size of step up to the
 * largest, and nodes that must be refused.
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

#define D     96
#define INTER 40
#define E     12
#define SLOTS 8
#define MAX_T 70 /* more pairs of token and slot than the kernel keeps in large blocks */

/* logits and x -> ids and weights of the chosen -> y */
struct moe {
    struct d0_value values[9];
    struct d0_node nodes[2];
    struct d0_part part;
};

enum { LOGITS, X, BIAS, DOWN, GATE, UP, IDS, WEIGHTS, Y, N_VALUES };

static void moe_part(struct moe *m)
{
    const struct d0_value rows = {.kind = D0_VALUE_INPUT,
                                  .dtype = D0_F32,
                                  .n_dims = 2,
                                  .role = D0_INPUT_HIDDEN,
                                  .dims = {D0_DIM_TOKENS, E}};
    const struct d0_value matrix = {
        .kind = D0_VALUE_WEIGHT, .dtype = D0_BF16, .n_dims = 3, .dims = {E, INTER, D}};
    memset(m, 0, sizeof *m);
    for (int i = LOGITS; i <= Y; i++)
        m->values[i] = rows;
    m->values[X].dims[1] = D;
    m->values[BIAS] = (struct d0_value){.kind = D0_VALUE_WEIGHT, .dtype = D0_F32, .n_dims = 1, .dims = {E}};
    m->values[GATE] = m->values[UP] = m->values[DOWN] = matrix;
    m->values[DOWN].dims[1] = D;
    m->values[DOWN].dims[2] = INTER;
    m->values[IDS].kind = m->values[WEIGHTS].kind = m->values[Y].kind = D0_VALUE_OUTPUT;
    m->values[IDS].dtype = D0_I32;
    m->values[IDS].dims[1] = m->values[WEIGHTS].dims[1] = SLOTS;
    m->values[WEIGHTS].offset = MAX_T * SLOTS * 4;
    m->values[Y].dims[1] = D;
    m->values[Y].offset = 2 * m->values[WEIGHTS].offset;
    m->nodes[0] = (struct d0_node){.op = D0_OP_ROUTE,
                                   .n_inputs = 2,
                                   .n_outputs = 2,
                                   .n_attrs = 3,
                                   .inputs = {LOGITS, BIAS},
                                   .outputs = {IDS, WEIGHTS},
                                   .attrs = {{.key = D0_ATTR_TOPK, .v.i = SLOTS},
                                             {.key = D0_ATTR_SCORE, .v.i = 1},
                                             {.key = D0_ATTR_RENORMALIZE, .v.i = 1}}};
    m->nodes[1] = (struct d0_node){.op = D0_OP_EXPERTS,
                                   .n_inputs = 6,
                                   .n_outputs = 1,
                                   .n_attrs = 1,
                                   .inputs = {X, IDS, WEIGHTS, DOWN, GATE, UP},
                                   .outputs = {Y},
                                   .attrs = {{.key = D0_ATTR_INTER, .v.i = INTER}}};
    m->part = (struct d0_part){.size = sizeof m->part,
                               .abi_version = D0_DEVICE_ABI_VERSION,
                               .n_values = N_VALUES,
                               .n_nodes = 2,
                               .values = m->values,
                               .nodes = m->nodes,
                               .scratch_bytes = m->values[Y].offset + MAX_T * D * 4,
                               .max_dims = {MAX_T, 1, 1, 1}};
}

static struct dev open_cpu(const char *isa, unsigned threads)
{
    struct dev d;
    struct err e = {0};
    struct dev_options o = {.name = "cpu", .isa = isa, .n_threads = threads};
    if (dev_open(&d, &o, &e) != ERR_OK)
        fail_msg("%s", e.message);
    return d;
}

struct running {
    struct dev d;
    struct d0_exec *x;
    struct d0_queue *q;
    struct d0_buffer *buffers[IDS];
};

static void start(struct running *r, const char *isa, unsigned threads)
{
    static const struct {
        uint32_t dtype;
        size_t n, width;
    } data[IDS] = {{D0_F32, MAX_T * E, 4},      {D0_F32, MAX_T * D, 4},      {D0_F32, E, 4},
                   {D0_BF16, E * D * INTER, 2}, {D0_BF16, E * D * INTER, 2}, {D0_BF16, E * D * INTER, 2}};
    struct moe m;
    struct err e = {0};
    moe_part(&m);
    r->d = open_cpu(isa, threads);
    if (dev_compile(&r->d, &m.part, &r->x, &e) != ERR_OK || dev_queue(&r->d, &r->q, &e) != ERR_OK)
        fail_msg("%s", e.message);
    for (uint32_t i = 0; i < IDS; i++) {
        void *p = tiny_random(data[i].dtype, data[i].n, 0, 1, i + 1);
        assert_int_equal(dev_buffer(&r->d, data[i].n * data[i].width, &r->buffers[i], &e), ERR_OK);
        assert_int_equal(dev_copy_in(&r->d, r->q, r->buffers[i], 0, p, data[i].n * data[i].width, &e),
                         ERR_OK);
        assert_int_equal(dev_bind(&r->d, r->x, i, r->buffers[i], 0, &e), ERR_OK);
        free(p);
    }
}

static void run(struct running *r, int64_t tokens, float *y)
{
    struct err e = {0};
    struct d0_step_dims dims = {.size = sizeof dims, .dims = {tokens, 1, 1, 1}};
    if (dev_run(&r->d, r->q, r->x, &dims, &e) != ERR_OK)
        fail_msg("%d tokens: %s", (int)tokens, e.message);
    assert_int_equal(dev_read_output(&r->d, r->q, r->x, Y, 0, y, (uint64_t)tokens * D * 4, &e), ERR_OK);
}

static void stop(struct running *r)
{
    for (uint32_t i = 0; i < IDS; i++)
        dev_buffer_free(&r->d, r->buffers[i]);
    dev_exec_free(&r->d, r->x);
    dev_queue_free(&r->d, r->q);
    dev_close(&r->d);
}

/* Rows of a step have the same bits in every smaller one, whatever the threads; ref agrees in value. */
static void test_any_step_any_threads(void **state)
{
    (void)state;
    static float ref[MAX_T * D], whole[MAX_T * D], part[MAX_T * D];
    struct running r;
    start(&r, "ref", 2);
    run(&r, MAX_T, ref);
    stop(&r);
    assert_true(ref[0] != 0 && isfinite(ref[MAX_T * D - 1]));
    for (int isa = KERN_AVX2; isa < KERN_N_ISA; isa++) {
        if (!kern_isa_available((enum kern_isa)isa))
            continue;
        for (unsigned threads = 1; threads <= 4; threads++) {
            start(&r, kern_isa_name((enum kern_isa)isa), threads);
            run(&r, MAX_T, threads == 1 ? whole : part);
            for (int i = 0; i < MAX_T * D && threads == 1; i++)
                assert_true(fabsf(whole[i] - ref[i]) < 1e-3f * (1 + fabsf(ref[i])));
            for (int64_t t = MAX_T; t > 0; t = threads == 1 ? t - 1 : t / 2) {
                run(&r, t, part);
                assert_memory_equal(part, whole, (size_t)t * D * sizeof *part);
            }
            stop(&r);
        }
    }
}

/* EXPERTS leaves rows of all pairs of token and slot between its phases: told before it is set aside, and it
 * grows with tokens. */
static void test_scratch_need(void **state)
{
    (void)state;
    struct moe m;
    struct err e = {0};
    struct d0_device_info info;
    struct d0_exec *x;
    for (int isa = 0; isa < KERN_N_ISA; isa++) {
        if (!kern_isa_available((enum kern_isa)isa))
            continue;
        uint64_t need[2];
        for (int many = 0; many < 2; many++) {
            struct dev d = open_cpu(kern_isa_name((enum kern_isa)isa), 2);
            moe_part(&m);
            m.part.max_dims[0] = many ? MAX_T : 1;
            assert_int_equal(dev_scratch_need(&d, &m.part, &need[many], &e), ERR_OK);
            assert_int_equal(dev_compile(&d, &m.part, &x, &e), ERR_OK);
            dev_info(&d, &info, NULL);
            assert_int_equal(info.memory_used, m.part.scratch_bytes + need[many]);
            dev_exec_free(&d, x);
            dev_close(&d);
        }
        if (isa != KERN_REF)
            assert_true(need[1] >= need[0] + (MAX_T - 1) * SLOTS * INTER * sizeof(float));
    }
}

static bool taken(const struct moe *m, uint32_t node, const char *why)
{
    struct dev d = open_cpu(NULL, 1);
    char reason[256] = "";
    bool yes = dev_supports(&d, &m->part, node, reason, sizeof reason);
    dev_close(&d);
    if (!yes && why && !strstr(reason, why))
        fail_msg("refused because of: %s; must name: %s", reason, why);
    return yes;
}

static void test_nodes_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t node;
        struct d0_attr attr; /* added */
        const char *why;
    } attributes[] = {
        {0, {.key = D0_ATTR_GROUPS, .v.i = 5}, "groups"},
        {0, {.key = D0_ATTR_GROUPS, .v.i = -1}, "groups"},
        {0, {.key = D0_ATTR_GROUPS_KEPT, .v.i = 2}, "groups kept"},
        {0, {.key = D0_ATTR_GROUP_SCORE, .v.i = 2}, "group score"},
        {0, {.key = D0_ATTR_ZERO, .v.i = E}, "identity"},
        {1, {.key = D0_ATTR_LAYOUT, .v.i = 1}, "gate must be"},
        {1, {.key = D0_ATTR_LAYOUT, .v.i = 3}, "a gate in a layout without"},
        {1, {.key = D0_ATTR_LAYOUT, .v.i = 4}, "layout 4"},
        {1, {.key = D0_ATTR_TRANSPOSED, .v.i = 1}, "down must be"},
        {1, {.key = D0_ATTR_ZERO, .v.i = INT32_MAX}, "identities"},
        {1, {.key = D0_ATTR_FUNCTION, .v.i = 14}, "function 14"},
        {1, {.key = D0_ATTR_FUNCTION, .v.i = 8}, "limit"},
        {1, {.key = D0_ATTR_FUNCTION, .v.i = 9}, "beta"},
    };
    static const struct {
        uint32_t node, value, dim;
        int64_t size;
        const char *why;
    } sizes[] = {
        {0, BIAS, 0, E - 1, "bias"},       {0, LOGITS, 1, SLOTS - 1, "8 of 7 experts"},
        {0, IDS, 1, SLOTS + 1, "outputs"}, {0, WEIGHTS, 0, 3, "outputs"},
        {1, DOWN, 0, E + 1, "gate"},       {1, UP, 1, INTER - 1, "up must"},
        {1, GATE, 2, D + 1, "gate"},       {1, X, 1, D + 1, "x and output"},
        {1, IDS, 1, SLOTS + 1, "weights"},
    };
    struct moe m;
    moe_part(&m);
    assert_true(taken(&m, 0, "") && taken(&m, 1, ""));
    for (size_t i = 0; i < ARRAY_LEN(attributes); i++) {
        moe_part(&m);
        struct d0_node *n = &m.nodes[attributes[i].node];
        n->attrs[n->n_attrs++] = attributes[i].attr;
        if (taken(&m, attributes[i].node, attributes[i].why))
            fail_msg("attribute %u of node %u is taken", attributes[i].attr.key, attributes[i].node);
    }
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        moe_part(&m);
        m.part.scratch_bytes *= 2;
        m.values[sizes[i].value].dims[sizes[i].dim] = sizes[i].size;
        if (taken(&m, sizes[i].node, sizes[i].why))
            fail_msg("size %zu is taken", i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_step_any_threads),
        cmocka_unit_test(test_nodes_that_are_refused),
        cmocka_unit_test(test_scratch_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
