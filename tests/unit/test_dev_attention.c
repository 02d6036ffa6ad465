/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention through the device: what its rules must refuse, of parts that would take a kernel out of its
 * memory, and that sizes and attributes arrive at the kernels as a part has them.
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

#define MAX_T  6
#define HEADS  4
#define LATENT 20
#define ROPE   4
#define NOPE   8
#define V_DIM  6
#define WIDTH  (LATENT + ROPE)
#define ROWS   (HEADS * (NOPE + V_DIM))
#define PAGES  4
#define SLOTS  4 /* of a page */
#define OUT    (HEADS * V_DIM)

enum {
    Q,
    C,
    K_PE,
    LATENTS,
    KV_B,
    POSITIONS,
    SEQ_OF,
    TABLE,
    CHOSEN, /* compressed */
    Q2,
    KEYS,
    VALUES,
    SINKS,
    CHOSEN_BLOCKS, /* grouped: dim NOPE, two kv heads */
    SPANS,
    OUT_MLA,
    OUT_ATTENTION,
    N_VALUES
};
enum { STORE, MLA, ATTENTION, N_NODES };

struct both {
    struct d0_value values[N_VALUES];
    struct d0_node nodes[N_NODES];
    struct d0_part part;
};

static struct d0_value value(uint32_t kind, uint32_t dtype, uint32_t role, uint32_t n, const int64_t *dims)
{
    struct d0_value v = {.kind = kind, .dtype = dtype, .role = role, .n_dims = n};
    memcpy(v.dims, dims, n * sizeof *dims);
    return v;
}
#define VALUE(kind, dtype, role, ...)                                                                        \
    value(D0_VALUE_##kind, D0_##dtype, role, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t),             \
          (int64_t[]){__VA_ARGS__})

static void add_i(struct d0_node *n, uint32_t key, int64_t v)
{
    n->attrs[n->n_attrs++] = (struct d0_attr){.key = key, .v.i = v};
}

static void add_f(struct d0_node *n, uint32_t key, double v)
{
    n->attrs[n->n_attrs++] = (struct d0_attr){.key = key, .is_float = 1, .v.f = v};
}

static void both_values(struct d0_value *v)
{
    const int64_t T = D0_DIM_TOKENS;
    v[Q] = VALUE(INPUT, F32, D0_INPUT_HIDDEN, T, HEADS * (NOPE + ROPE));
    v[C] = VALUE(INPUT, F32, D0_INPUT_HIDDEN, T, LATENT);
    v[K_PE] = VALUE(INPUT, F32, D0_INPUT_HIDDEN, T, ROPE);
    v[LATENTS] = VALUE(STATE, BF16, 0, PAGES, 1, SLOTS, WIDTH);
    v[KV_B] = VALUE(WEIGHT, BF16, 0, ROWS, LATENT);
    v[POSITIONS] = VALUE(INPUT, I32, D0_INPUT_POSITIONS, T);
    v[SEQ_OF] = VALUE(INPUT, I32, D0_INPUT_SEQ_OF, T);
    v[TABLE] = VALUE(INPUT, I32, D0_INPUT_PAGE_TABLE, D0_DIM_SEQS, D0_DIM_PAGES);
    v[CHOSEN] = VALUE(INPUT, I32, D0_INPUT_HIDDEN, T, 3);
    v[Q2] = VALUE(INPUT, F32, D0_INPUT_HIDDEN, T, HEADS * NOPE);
    v[KEYS] = VALUE(STATE, F32, 0, PAGES, 2, SLOTS, NOPE);
    v[VALUES] = VALUE(STATE, F32, 0, PAGES, 2, SLOTS, V_DIM);
    v[SINKS] = VALUE(WEIGHT, F16, 0, HEADS);
    v[CHOSEN_BLOCKS] = VALUE(INPUT, I32, D0_INPUT_HIDDEN, T, 2 * 2);
    v[SPANS] = VALUE(INPUT, I32, D0_INPUT_SPANS, T, 2);
    v[OUT_MLA] = VALUE(OUTPUT, F32, 0, T, OUT);
    v[OUT_ATTENTION] = v[OUT_MLA];
    v[OUT_ATTENTION].offset = ALIGN_UP(MAX_T * OUT * sizeof(float), 64);
}

static void both_part(struct both *b)
{
    memset(b, 0, sizeof *b);
    both_values(b->values);
    b->nodes[STORE] = (struct d0_node){
        .op = D0_OP_LATENT_STORE, .n_inputs = 6, .inputs = {C, LATENTS, POSITIONS, SEQ_OF, TABLE, K_PE}};
    struct d0_node *m = &b->nodes[MLA], *a = &b->nodes[ATTENTION];
    *m = (struct d0_node){.op = D0_OP_MLA,
                          .n_inputs = 7,
                          .n_outputs = 1,
                          .inputs = {Q, LATENTS, KV_B, POSITIONS, SEQ_OF, TABLE, CHOSEN},
                          .outputs = {OUT_MLA}};
    add_i(m, D0_ATTR_HEADS, HEADS);
    add_i(m, D0_ATTR_NOPE, NOPE);
    add_i(m, D0_ATTR_ROPE, ROPE);
    add_i(m, D0_ATTR_V_DIM, V_DIM);
    add_i(m, D0_ATTR_LATENT, LATENT);
    add_f(m, D0_ATTR_SCALE, 0.3);
    *a = (struct d0_node){.op = D0_OP_ATTENTION,
                          .n_inputs = 8,
                          .n_outputs = 1,
                          .inputs = {Q2, KEYS, VALUES, POSITIONS, SEQ_OF, TABLE, SINKS, CHOSEN_BLOCKS},
                          .outputs = {OUT_ATTENTION}};
    add_i(a, D0_ATTR_HEADS, HEADS);
    add_i(a, D0_ATTR_KV_HEADS, 2);
    add_i(a, D0_ATTR_DIM, NOPE);
    add_i(a, D0_ATTR_V_DIM, V_DIM);
    add_f(a, D0_ATTR_SCALE, 0.4);
    add_f(a, D0_ATTR_SOFTCAP, 2);
    add_i(a, D0_ATTR_CHUNK, 6);
    add_i(a, D0_ATTR_BLOCK, 2);
    add_i(a, D0_ATTR_WINDOW, 2);
    b->part = (struct d0_part){.size = sizeof b->part,
                               .abi_version = D0_DEVICE_ABI_VERSION,
                               .n_values = N_VALUES,
                               .n_nodes = N_NODES,
                               .values = b->values,
                               .nodes = b->nodes,
                               .scratch_bytes = 2 * ALIGN_UP(MAX_T * OUT * sizeof(float), 64),
                               .max_dims = {MAX_T, 2, 1, 2}};
}

/* Attention to the whole span of a token, instead of to chosen blocks. */
static void with_spans(struct both *b)
{
    b->nodes[ATTENTION].n_inputs = 9;
    b->nodes[ATTENTION].inputs[7] = D0_NO_VALUE;
    b->nodes[ATTENTION].inputs[8] = SPANS;
}

static struct d0_attr *attr(struct both *b, int node, uint32_t key)
{
    for (uint32_t i = 0; i < b->nodes[node].n_attrs; i++)
        if (b->nodes[node].attrs[i].key == key)
            return &b->nodes[node].attrs[i];
    fail_msg("no attribute %u", key);
    return NULL;
}

static void judge(struct dev *d, const struct both *b, int node, bool taken, const char *what)
{
    char reason[200] = "";
    bool yes = dev_supports(d, &b->part, (uint32_t)node, reason, sizeof reason);
    if (yes != taken)
        fail_msg("%s: %s %s", what, yes ? "taken" : "refused:", reason);
    if (!taken)
        assert_true(reason[0] != '\0');
}

static void test_rules(void **state)
{
    (void)state;
    struct dev d;
    struct err e = {0};
    struct both b;
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = "cpu", .n_threads = 1}, &e), ERR_OK);
#define JUDGE(node, taken, change)                                                                           \
    do {                                                                                                     \
        both_part(&b);                                                                                       \
        change;                                                                                              \
        judge(&d, &b, node, taken, #change);                                                                 \
    } while (0)
#define TAKEN(node, change)   JUDGE(node, true, change)
#define REFUSED(node, change) JUDGE(node, false, change)
    for (int i = 0; i < N_NODES; i++) {
        TAKEN(i, (void)0);
        REFUSED(i, b.values[TABLE].dims[0] = 2); /* fixed sizes: the step's may be larger */
        REFUSED(i, b.values[TABLE].dims[1] = 1);
        REFUSED(i, b.values[POSITIONS].dims[0] = D0_DIM_ROWS);
        REFUSED(i, b.values[SEQ_OF].dtype = D0_F32);
    }
    TAKEN(STORE, b.nodes[STORE].inputs[5] = D0_NO_VALUE; b.values[LATENTS].dims[3] = LATENT);
    REFUSED(STORE, b.nodes[STORE].inputs[5] = D0_NO_VALUE);
    REFUSED(STORE, b.values[LATENTS].dims[1] = 2);
    REFUSED(STORE, b.values[LATENTS].kind = D0_VALUE_WEIGHT);
    REFUSED(STORE, b.values[K_PE].dims[0] = D0_DIM_SEQS);
    TAKEN(MLA, b.nodes[MLA].n_inputs = 6);
    REFUSED(MLA, attr(&b, MLA, D0_ATTR_HEADS)->v.i = HEADS + 1);
    REFUSED(MLA, attr(&b, MLA, D0_ATTR_NOPE)->v.i = 0);
    REFUSED(MLA, attr(&b, MLA, D0_ATTR_NOPE)->v.i = INT64_MAX);
    REFUSED(MLA, attr(&b, MLA, D0_ATTR_ROPE)->v.i = -ROPE);
    REFUSED(MLA, attr(&b, MLA, D0_ATTR_LATENT)->v.i = LATENT + 1);
    REFUSED(MLA, attr(&b, MLA, D0_ATTR_V_DIM)->is_float = 1);
    REFUSED(MLA, attr(&b, MLA, D0_ATTR_SCALE)->key = D0_ATTR_LATENT); /* twice, once as a number */
    REFUSED(MLA, add_i(&b.nodes[MLA], D0_ATTR_LATENT, 1 << 20));
    REFUSED(MLA, add_i(&b.nodes[MLA], D0_ATTR_FORM, 2));
    REFUSED(MLA, add_i(&b.nodes[MLA], D0_ATTR_FORM, -1));
    REFUSED(MLA, b.values[KV_B].dims[0] = ROWS - 1);
    REFUSED(MLA, b.values[KV_B].dtype = D0_I64);
    REFUSED(MLA, b.values[CHOSEN].dims[0] = 1);
    REFUSED(MLA, b.values[LATENTS].dims[2] = KERN_MAX_PAGE_TOKENS + 1);
    TAKEN(ATTENTION, b.nodes[ATTENTION].inputs[6] = D0_NO_VALUE);
    REFUSED(ATTENTION, attr(&b, ATTENTION, D0_ATTR_CHUNK)->v.i = -1);
    REFUSED(ATTENTION, attr(&b, ATTENTION, D0_ATTR_BLOCK)->v.i = INT64_C(1) << 31);
    REFUSED(ATTENTION, attr(&b, ATTENTION, D0_ATTR_BLOCK)->is_float = 1);
    REFUSED(ATTENTION, attr(&b, ATTENTION, D0_ATTR_SOFTCAP)->v.f = -1);
    REFUSED(ATTENTION, attr(&b, ATTENTION, D0_ATTR_SOFTCAP)->v.f = (double)NAN);
    REFUSED(ATTENTION, b.values[SINKS].dims[0] = HEADS - 1);
    REFUSED(ATTENTION, b.values[CHOSEN_BLOCKS].dims[1] = 3);
    REFUSED(ATTENTION, b.values[CHOSEN_BLOCKS].dtype = D0_U32);
    TAKEN(ATTENTION, with_spans(&b));
    REFUSED(ATTENTION, with_spans(&b); b.nodes[ATTENTION].inputs[7] = CHOSEN_BLOCKS);
    REFUSED(ATTENTION, with_spans(&b); b.values[SPANS].dims[1] = 3);
    REFUSED(ATTENTION, with_spans(&b); b.values[SPANS].dims[0] = D0_DIM_ROWS);
    REFUSED(ATTENTION, with_spans(&b); b.values[SPANS].dtype = D0_F32);
    REFUSED(ATTENTION, with_spans(&b); b.nodes[ATTENTION].n_inputs = 10);
#undef JUDGE
#undef TAKEN
#undef REFUSED
    dev_close(&d);
}

/* Fills and binds what the part reads; keys and values stand in their pages already. */
static void bind_all(struct dev *d, struct d0_queue *q, struct d0_exec *x, const struct both *b,
                     struct d0_buffer **buffers)
{
    static const int32_t positions[] = {6, 7, 0, 1, 2}, seq_of[] = {0, 0, 1, 1, 1}, table[] = {3, 1, 0, -1},
                         chosen[] = {6, 7, -1, 6, 7, -1, 0, -1, -1, 1, 0, 0, 0, 2, 9},
                         blocks[] = {3, -1, 2, 3, 3, 2, 3, -1, 0, -1, 0, -1, 0, 1, 0, -1, 1, 0, 1, -1};
    static const int32_t *const ints[N_VALUES] = {[POSITIONS] = positions,
                                                  [SEQ_OF] = seq_of,
                                                  [TABLE] = table,
                                                  [CHOSEN] = chosen,
                                                  [CHOSEN_BLOCKS] = blocks};
    struct err e = {0};
    for (uint32_t i = 0; i < OUT_MLA; i++) {
        size_t n = 1;
        for (uint32_t k = 0; k < b->values[i].n_dims; k++)
            n *= (size_t)(b->values[i].dims[k] < 0 ? b->part.max_dims[-1 - b->values[i].dims[k]]
                                                   : b->values[i].dims[k]);
        size_t bytes = n * dtype_bits(b->values[i].dtype) / 8;
        void *data = ints[i] ? calloc(n, 4) : tiny_random(b->values[i].dtype, n, 0, 1, 40 + i);
        assert_non_null(data);
        if (ints[i])
            memcpy(data, ints[i],
                   i == POSITIONS || i == SEQ_OF ? 20
                   : i == TABLE                  ? 16
                   : i == CHOSEN                 ? 60
                                                 : 80);
        assert_int_equal(dev_buffer(d, bytes, &buffers[i], &e), ERR_OK);
        assert_int_equal(dev_copy_in(d, q, buffers[i], 0, data, bytes, &e), ERR_OK);
        assert_int_equal(dev_bind(d, x, i, buffers[i], 0, &e), ERR_OK);
        free(data);
    }
}

/* without: an attribute of attention that is set to nothing first, or 0 */
static void run_both(const char *isa, uint32_t without, float out[2][5 * OUT])
{
    struct dev d;
    struct err e = {0};
    struct both b;
    struct d0_exec *x = NULL;
    struct d0_queue *q = NULL;
    struct d0_buffer *buffers[OUT_MLA];
    struct d0_step_dims dims = {.size = sizeof dims, .dims = {5, 2, 1, 2}};
    both_part(&b);
    if (without)
        memset(&attr(&b, ATTENTION, without)->v, 0, sizeof(attr(&b, ATTENTION, without)->v));
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = "cpu", .isa = isa, .n_threads = 2}, &e),
                     ERR_OK);
    if (dev_compile(&d, &b.part, &x, &e) != ERR_OK || dev_queue(&d, &q, &e) != ERR_OK)
        fail_msg("%s", e.message);
    bind_all(&d, q, x, &b, buffers);
    if (dev_run(&d, q, x, &dims, &e) != ERR_OK)
        fail_msg("%s", e.message);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(dev_read_output(&d, q, x, OUT_MLA + i, 0, out[i], 5 * OUT * sizeof(float), &e),
                         ERR_OK);
    for (uint32_t i = 0; i < OUT_MLA; i++)
        dev_buffer_free(&d, buffers[i]);
    dev_exec_free(&d, x);
    dev_queue_free(&d, q);
    dev_close(&d);
}

static void test_runs(void **state)
{
    (void)state;
    float want[2][5 * OUT], got[2][5 * OUT];
    static const uint32_t matter[] = {D0_ATTR_SOFTCAP, D0_ATTR_BLOCK, D0_ATTR_CHUNK, D0_ATTR_WINDOW};
    run_both("ref", 0, want);
    for (size_t i = 0; i < ARRAY_LEN(matter); i++) {
        run_both("ref", matter[i], got);
        assert_memory_equal(got[0], want[0], sizeof got[0]);
        if (memcmp(got[1], want[1], sizeof got[1]) == 0)
            fail_msg("attribute %u changes nothing", matter[i]);
    }
    for (int isa = KERN_AVX2; isa < KERN_N_ISA; isa++) {
        if (!kern_isa_available((enum kern_isa)isa))
            continue;
        run_both(kern_isa_name((enum kern_isa)isa), 0, got);
        for (size_t i = 0; i < 10 * OUT; i++)
            if (!isfinite(want[i / (5 * OUT)][i % (5 * OUT)]) ||
                fabsf(want[i / (5 * OUT)][i % (5 * OUT)] - got[i / (5 * OUT)][i % (5 * OUT)]) > 1e-5f)
                fail_msg("%s: element %zu is %g, must be %g", kern_isa_name((enum kern_isa)isa), i,
                         (double)got[i / (5 * OUT)][i % (5 * OUT)],
                         (double)want[i / (5 * OUT)][i % (5 * OUT)]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
