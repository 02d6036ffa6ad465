/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors by position: intact kernels show none, and decode gives the bits of prefill; a device that is wrong
 * from some position on, that rounds the frequencies of its rope table, or that decodes otherwise than it
 * prefills is told, with the position.
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

#include "oracle/oracle.h"
#include "scratch_dir.h"
#include "tiny_model.h"

#define ORIGINAL 64
#define LONGEST  256
#define YARN_CONFIG                                                                                          \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":64,"                 \
    "\"intermediate_size\":80,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"  \
    "\"head_dim\":16,\"vocab_size\":96,\"max_position_embeddings\":256,\"rms_norm_eps\":1e-05,"              \
    "\"rope_theta\":10000.0,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"                        \
    "\"original_max_position_embeddings\":64},\"hidden_act\":\"silu\",\"attention_bias\":false,"             \
    "\"mlp_bias\":false,\"tie_word_embeddings\":false,\"bos_token_id\":1,\"eos_token_id\":2,"                \
    "\"torch_dtype\":\"float32\"}"

static char dir[] = "/tmp/day0_drift_XXXXXX";

/* ---- a device that delegates to cpu ---- */

enum fault { INTACT, FAR_ROWS, COARSE_TABLE, DECODES_OTHERWISE };

static struct {
    const struct d0_device_api *cpu;
    struct d0_device_api api;
    enum fault fault;
    uint32_t positions, frequencies; /* values of the part compiled last, or D0_NO_VALUE */
    int64_t n_frequencies, tokens;
    int32_t first; /* position of the first token of the step */
    struct d0_buffer *bound_positions, *bound_frequencies;
} faulty;

static int f_compile(struct d0_device *device, const struct d0_part *part, struct d0_exec **out,
                     struct d0_status *status)
{
    faulty.positions = faulty.frequencies = D0_NO_VALUE;
    for (uint32_t i = 0; i < part->n_values; i++)
        if (part->values[i].kind == D0_VALUE_INPUT && part->values[i].role == D0_INPUT_POSITIONS)
            faulty.positions = i;
    for (uint32_t i = 0; i < part->n_nodes; i++)
        if (part->nodes[i].op == D0_OP_ROPE_TABLE) {
            faulty.frequencies = part->nodes[i].inputs[1];
            faulty.n_frequencies = part->values[faulty.frequencies].dims[0];
        }
    return faulty.cpu->compile(device, part, out, status);
}

static int f_bind(struct d0_exec *exec, uint32_t value, struct d0_buffer *buffer, uint64_t offset,
                  struct d0_status *status)
{
    if (value == faulty.positions)
        faulty.bound_positions = buffer;
    if (value == faulty.frequencies)
        faulty.bound_frequencies = buffer;
    return faulty.cpu->bind(exec, value, buffer, offset, status);
}

static int f_run(struct d0_queue *queue, struct d0_exec *exec, const struct d0_step_dims *dims,
                 struct d0_status *status)
{
    uint32_t bits[64];
    faulty.tokens = dims->dims[0];
    faulty.first = -1;
    if (faulty.positions != D0_NO_VALUE)
        faulty.cpu->copy_out(queue, faulty.bound_positions, 0, &faulty.first, sizeof faulty.first, NULL);
    if (faulty.fault == COARSE_TABLE && faulty.frequencies != D0_NO_VALUE) {
        const uint64_t bytes = (uint64_t)faulty.n_frequencies * 4;
        assert_true(bytes <= sizeof bits);
        faulty.cpu->copy_out(queue, faulty.bound_frequencies, 0, bits, bytes, NULL);
        for (int64_t i = 0; i < faulty.n_frequencies; i++)
            bits[i] &= 0xffffe000; /* as many bits as F16 keeps */
        faulty.cpu->copy_in(queue, faulty.bound_frequencies, 0, bits, bytes, NULL);
    }
    return faulty.cpu->run(queue, exec, dims, status);
}

static int f_read(struct d0_queue *queue, struct d0_exec *exec, uint32_t value, uint64_t offset, void *host,
                  uint64_t bytes, struct d0_status *status)
{
    int rc = faulty.cpu->read_output(queue, exec, value, offset, host, bytes, status);
    const uint64_t width = bytes / 4 / (uint64_t)faulty.tokens;
    float *x = host;
    for (int64_t r = 0; r < faulty.tokens && faulty.first >= 0; r++)
        for (uint64_t i = 0; i < width; i += 2) {
            if (faulty.fault == FAR_ROWS && faulty.first + r >= 2 * ORIGINAL)
                x[(uint64_t)r * width + i] *= 1.01f;
            if (faulty.fault == DECODES_OTHERWISE && faulty.tokens == 1 && faulty.first >= 100)
                x[i] = nextafterf(x[i], INFINITY);
        }
    return rc;
}

struct ran {
    struct tiny_model m;
    struct dev ref;
    struct arena arena;
    struct findings f;
    struct drift_result r;
};

static void run(struct ran *x, enum fault fault, uint64_t memory, struct drift_options o)
{
    struct err e = {0};
    memset(x, 0, sizeof *x);
    arena_init(&x->arena, NULL, MEM_MISC);
    findings_init(&x->f, NULL);
    tiny_model_open(&x->m, path_in(dir, "yarn"), NULL, "fast");
    ok(dev_open(&x->ref, &(struct dev_options){.name = "cpu", .isa = "ref", .n_threads = 1}, &e), &e);
    faulty.cpu = x->m.d.api;
    faulty.api = *x->m.d.api;
    faulty.api.compile = f_compile;
    faulty.api.bind = f_bind;
    faulty.api.run = f_run;
    faulty.api.read_output = f_read;
    faulty.fault = fault;
    x->m.d.api = &faulty.api;
    o.reference = &x->ref;
    const struct oracle_model om = {.dev = &x->m.d, .spec = x->m.s, .ckpt = x->m.c, .memory = memory};
    ok(oracle_drift(&om, &o, &x->arena, &x->r, &x->f, &e), &e);
}

static void done(struct ran *x)
{
    x->m.d.api = faulty.cpu;
    dev_close(&x->ref);
    findings_release(&x->f);
    arena_release(&x->arena);
    tiny_model_close(&x->m);
}

static const struct finding *find(const struct ran *x, enum finding_id id, const char *subject)
{
    for (size_t i = 0; i < x->f.n; i++)
        if (x->f.items[i].id == id && !strcmp(x->f.items[i].subject, subject))
            return &x->f.items[i];
    return NULL;
}

/* ---- */

static void test_intact(void **state)
{
    (void)state;
    struct ran x, small;
    run(&x, INTACT, 0, (struct drift_options){.n_ids = 0});
    assert_int_equal(x.f.n, 0);
    assert_int_equal(x.r.original, ORIGINAL);
    assert_string_equal(x.r.original_key, "original_max_position_embeddings");
    assert_int_equal(x.r.tokens, 2 * ORIGINAL);
    assert_int_equal(x.r.reference_tokens, x.r.tokens);
    assert_true(x.r.beyond && x.r.exact && x.r.identical);
    assert_int_equal(x.r.decoded, 2 + 2 + 4 + 4 * 8);
    const struct drift_bucket *last = &x.r.bucket[x.r.n_buckets - 1];
    assert_int_equal(last->first, ORIGINAL);
    assert_int_equal(last->last, 2 * ORIGINAL - 1);
    for (size_t i = 0; i < x.r.n_buckets; i++)
        assert_true(x.r.bucket[i].hidden > 0 && x.r.bucket[i].hidden < 1e-5 && x.r.bucket[i].logits > 0);
    assert_true(x.r.hidden_growth > 0.5 && x.r.hidden_growth < 2);
    /* in pieces: the same numbers to the bit */
    run(&small, INTACT, 220000, (struct drift_options){.n_ids = 0});
    assert_true(small.r.cost.largest < x.r.cost.largest);
    for (size_t i = 0; i < x.r.n_buckets; i++)
        assert_true(small.r.bucket[i].hidden == x.r.bucket[i].hidden);
    done(&small);
    done(&x);
}

static void test_far_rows(void **state)
{
    (void)state;
    struct ran x;
    run(&x, FAR_ROWS, 0, (struct drift_options){.tokens = LONGEST});
    const struct finding *f = find(&x, FINDING_N009, "hidden states");
    assert_non_null(f);
    assert_non_null(strstr(f->evidence, "at positions 128 to 255, limit"));
    assert_non_null(find(&x, FINDING_N009, "logits"));
    assert_null(find(&x, FINDING_N004, "decode"));
    for (size_t i = 0; i + 1 < x.r.n_buckets; i++)
        assert_true(x.r.bucket[i].hidden < 1e-5);
    done(&x);
    /* a run that ends before it cannot see it */
    run(&x, FAR_ROWS, 0, (struct drift_options){.tokens = 2 * ORIGINAL});
    assert_int_equal(x.f.n, 0);
    done(&x);
}

static void test_coarse_table(void **state)
{
    (void)state;
    struct ran x;
    run(&x, COARSE_TABLE, 0, (struct drift_options){.tokens = LONGEST});
    assert_non_null(find(&x, FINDING_N009, "hidden states"));
    assert_true(x.r.hidden_growth > 1.2);
    assert_true(x.r.identical);
    done(&x);
}

static void test_decode(void **state)
{
    (void)state;
    struct ran x;
    run(&x, DECODES_OTHERWISE, 0, (struct drift_options){.n_ids = 0});
    const struct finding *f = find(&x, FINDING_N004, "decode");
    assert_non_null(f);
    assert_int_equal(x.f.n, 1);
    assert_false(x.r.identical);
    assert_int_equal(x.r.first_different, 100); /* 64 + 4 * 63 / 7 */
    done(&x);
}

static void test_recorded(void **state)
{
    (void)state;
    struct ran x;
    struct tiny_model m;
    struct record_result r;
    struct arena arena;
    struct err e = {0};
    int32_t ids[2 * ORIGINAL + 40];
    const size_t n = sizeof ids / sizeof *ids;
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)((7 + 13 * i * i) % 90);
    tiny_model_open(&m, path_in(dir, "yarn"), NULL, "ref");
    arena_init(&arena, NULL, MEM_MISC);
    const struct oracle_model om = {.dev = &m.d, .spec = m.s, .ckpt = m.c};
    const struct record_options o = {.ids = ids,
                                     .n_ids = n,
                                     .first_layer = -1,
                                     .last_layer = -1,
                                     .probes = "none",
                                     .out = path_in(dir, "trace.safetensors")};
    ok(oracle_record(&om, &o, &arena, &r, &m.f, &e), &e);
    arena_release(&arena);
    tiny_model_close(&m);
    const struct drift_options with = {.ids = ids, .n_ids = n, .recorded = path_in(dir, "trace.safetensors")};
    run(&x, INTACT, 0, with);
    assert_int_equal(x.f.n, 0);
    assert_int_equal(x.r.tokens, n);
    const struct drift_bucket *last = &x.r.bucket[x.r.n_buckets - 1];
    assert_int_equal(last->recorded_rows, last->rows);
    assert_true(last->recorded > 0 && last->recorded < 1e-5);
    done(&x);
    run(&x, FAR_ROWS, 0, with);
    assert_non_null(find(&x, FINDING_N009, "recorded logits"));
    done(&x);
}

static void test_bounds(void **state)
{
    (void)state;
    struct ran x;
    run(&x, INTACT, 0, (struct drift_options){.work = 4e6, .reference_work = 2e6});
    assert_true(x.r.tokens < ORIGINAL && x.r.reference_tokens < x.r.tokens && x.r.reference_tokens >= 16);
    assert_false(x.r.beyond);
    assert_int_equal(x.r.bucket[x.r.n_buckets - 1].reference_rows, 0);
    assert_true(isnan(x.r.bucket[x.r.n_buckets - 1].hidden));
    done(&x);
    run(&x, INTACT, 0, (struct drift_options){.tokens = 100000}); /* as many as there are positions */
    assert_int_equal(x.r.tokens, LONGEST);
    assert_true(x.r.beyond);
    done(&x);
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    tiny_model_write(path_in(dir, "yarn"), YARN_CONFIG, NULL, 3, NULL, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_intact), cmocka_unit_test(test_far_rows), cmocka_unit_test(test_coarse_table),
        cmocka_unit_test(test_decode), cmocka_unit_test(test_recorded), cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
