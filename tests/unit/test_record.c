/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: that a recording piece by piece gives the bits of the whole model in memory, whatever the memory, the
 * layers asked for or the place where it was interrupted; that a foreign or damaged partial trace is refused;
 * and that cuts through models with more than one residual carry every value.
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
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "oracle/record_impl.h"
#include "scratch_dir.h"
#include "tiny_model.h"
#include "verify/runner.h"

enum { TOKENS = 40 };

static char dir[] = "/tmp/day0_record_XXXXXX";

static const char *in_dir(const char *name)
{
    return path_in(dir, name);
}

struct ids_of {
    int32_t ids[TOKENS];
};

static struct ids_of make_ids(const struct tiny_model *m)
{
    struct ids_of x;
    for (int i = 0; i < TOKENS; i++)
        x.ids[i] = (int32_t)((1 + 31 * i + i * i) % m->s->vocab_size);
    return x;
}

/* ---- one recording ---- */

struct took {
    int rc;
    struct err e;
    struct record_result r;
    size_t n_findings;
    char subject[128];
};

static struct took record(struct tiny_model *m, uint64_t memory, const struct record_options *given)
{
    struct took t = {0};
    struct oracle_model om = {.dev = &m->d, .spec = m->s, .ckpt = m->c, .d0 = &m->d0, .memory = memory};
    struct record_options o = *given;
    struct ids_of ids = make_ids(m);
    struct arena arena;
    struct findings f;
    arena_init(&arena, NULL, MEM_MISC);
    findings_init(&f, NULL);
    if (!o.ids) {
        o.ids = ids.ids;
        o.n_ids = TOKENS;
    }
    if (o.last_layer == 0 && o.first_layer == 0 && !o.from && !o.stop_after)
        o.first_layer = o.last_layer = -1;
    t.rc = oracle_record(&om, &o, &arena, &t.r, &f, &t.e);
    t.n_findings = f.n;
    if (f.n)
        snprintf(t.subject, sizeof t.subject, "%s %s", finding_code(f.items[0].id), f.items[0].subject);
    findings_release(&f);
    arena_release(&arena);
    return t;
}

static bool same_file(const char *a, const char *b)
{
    struct arena arena;
    char *x, *y;
    size_t n, m;
    struct err e;
    arena_init(&arena, NULL, MEM_MISC);
    ok(file_read(a, 64 << 20, &arena, &x, &n, &e), &e);
    ok(file_read(b, 64 << 20, &arena, &y, &m, &e), &e);
    bool same = n == m && !memcmp(x, y, n);
    arena_release(&arena);
    return same;
}

/* ---- against the model in memory ---- */

static void check_tensor(const struct trace *t, const char *name, const float *want, size_t rows,
                         size_t width)
{
    const struct trace_tensor *x = trace_find(t, name);
    struct err e = {0};
    if (!x)
        fail_msg("%s is not in the trace", name);
    assert_int_equal(x->rows, rows);
    assert_int_equal(x->width, width);
    float *got = malloc(rows * width * sizeof *got);
    ok(trace_read(t, x, 0, rows, got, &e), &e);
    if (memcmp(got, want, rows * width * sizeof *got) != 0)
        fail_msg("%s differs from the model in memory", name);
    free(got);
}

static size_t check_against_memory(struct tiny_model *m, const char *path)
{
    struct runner r;
    struct err e = {0};
    struct trace *t;
    struct step_result *res;
    struct ids_of ids = make_ids(m);
    struct runner_size size = {
        .tokens = TOKENS, .seqs = 1, .rows = TOKENS, .context = TOKENS, .probes = true};
    struct runner_run one = {.tokens = ids.ids, .n = TOKENS, .flags = STEP_ALL_LOGITS};
    ok(runner_open_model(&r, &m->d, m->s, m->c, &size, &m->d0, &e), &e);
    ok(runner_step(&r, &one, 1, &res, &e), &e);
    ok(trace_open(&t, path, &e), &e);
    assert_memory_equal(t->ids, ids.ids, sizeof ids.ids);
    check_tensor(t, "logits", step_result_logits(res), TOKENS, (size_t)m->s->vocab_size);
    size_t cap = 1 << 20, rows, width, n = engine_probes(r.x);
    float *x = malloc(cap * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        ok(engine_probe_read(r.x, i, x, cap, &rows, &width, &e), &e);
        if (width != (size_t)m->s->vocab_size) /* the head is there as logits */
            check_tensor(t, engine_probe_name(r.x, i), x, rows, width);
    }
    free(x);
    trace_close(t);
    runner_close(&r);
    return n;
}

static const struct {
    const char *name, *config;
} models[] = {{"llama", TINY_LLAMA_CONFIG}, {"qwen3", TINY_QWEN3_CONFIG}};

static void test_equals_memory(void **state)
{
    (void)state;
    static const char *const isas[] = {"ref", "fast"};
    for (size_t i = 0; i < ARRAY_LEN(models); i++)
        for (size_t k = 0; k < ARRAY_LEN(isas); k++) {
            struct tiny_model m;
            tiny_model_open(&m, in_dir(models[i].name), NULL, isas[k]);
            struct took t = record(&m, 0, &(struct record_options){.out = in_dir("whole.st")});
            ok(t.rc, &t.e);
            assert_int_equal(t.r.pieces, m.s->n_layers + 2);
            assert_true(t.r.logits && t.r.cost.ahead && t.n_findings == 0);
            /* every probe of the graph but the head */
            assert_int_equal(check_against_memory(&m, in_dir("whole.st")), t.r.probes + 1);
            /* the embedding: the rows of the tokens that occur */
            assert_true(t.r.cost.weight_bytes < m.s->tensor_bytes + m.s->vocab_size * 64 * 4);
            struct reference *ref;
            struct err e = {0};
            ok(reference_open(&ref, in_dir("whole.st"), &e), &e);
            assert_int_equal(ref->n_probes, t.r.probes);
            reference_close(ref);
            tiny_model_close(&m);
        }
}

/* Less memory: fewer tokens a step, no reading ahead, layers in parts; the same bits. */
static void test_any_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        struct tiny_model m;
        size_t pieces = 0;
        uint32_t chunk = TOKENS;
        bool alone = false;
        tiny_model_open(&m, in_dir(models[i].name), NULL, "fast");
        struct took whole = record(&m, 0, &(struct record_options){.out = in_dir("whole.st")});
        ok(whole.rc, &whole.e);
        for (uint64_t memory = 400000; memory > 60000; memory -= memory / 6) {
            struct took t = record(&m, memory, &(struct record_options){.out = in_dir("less.st")});
            if (t.rc == ERR_NOMEM)
                break; /* not one operator: told, with the bytes */
            ok(t.rc, &t.e);
            assert_true(same_file(in_dir("whole.st"), in_dir("less.st")));
            pieces = t.r.pieces > pieces ? t.r.pieces : pieces;
            chunk = t.r.cost.chunk < chunk ? t.r.cost.chunk : chunk;
            alone |= !t.r.cost.ahead;
        }
        assert_true(pieces > whole.r.pieces + 2 && chunk < TOKENS / 4 && alone);
        struct took t = record(&m, 20000, &(struct record_options){.out = in_dir("less.st")});
        assert_int_equal(t.rc, ERR_NOMEM);
        assert_non_null(strstr(t.e.message, "alone needs"));
        tiny_model_close(&m);
    }
}

/* ---- layers ---- */

static void test_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        struct tiny_model m;
        struct err e = {0};
        tiny_model_open(&m, in_dir(models[i].name), NULL, "fast");
        const int32_t last = (int32_t)m.s->n_layers - 1;
        struct took t = record(&m, 0, &(struct record_options){.out = in_dir("whole.st")});
        ok(t.rc, &t.e);
        /* only what the next run needs */
        t = record(&m, 0,
                   &(struct record_options){
                       .out = in_dir("begin.st"), .last_layer = 0, .probes = "none", .stop_after = 100});
        ok(t.rc, &t.e);
        assert_true(t.r.handed_on == 1 && t.r.probes == 0 && !t.r.logits);
        t = record(
            &m, 0,
            &(struct record_options){
                .out = in_dir("middle.st"), .first_layer = 1, .last_layer = 1, .from = in_dir("begin.st")});
        ok(t.rc, &t.e);
        assert_int_equal(t.r.pieces, 1);
        t = record(
            &m, 0,
            &(struct record_options){
                .out = in_dir("end.st"), .first_layer = 2, .last_layer = last, .from = in_dir("middle.st")});
        ok(t.rc, &t.e);
        assert_true(t.r.logits);
        struct trace *whole, *part;
        ok(trace_open(&whole, in_dir("whole.st"), &e), &e);
        for (int k = 0; k < 2; k++) {
            ok(trace_open(&part, in_dir(k ? "end.st" : "middle.st"), &e), &e);
            assert_true(part->n_tensors > 10);
            for (size_t j = 0; j < part->n_tensors; j++) {
                const struct trace_tensor *x = &part->tensors[j];
                float *rows = malloc(x->rows * x->width * sizeof *rows);
                ok(trace_read(part, x, 0, x->rows, rows, &e), &e);
                check_tensor(whole, x->name, rows, x->rows, x->width);
                free(rows);
            }
            trace_close(part);
        }
        trace_close(whole);
        tiny_model_close(&m);
    }
}

/* ---- interruption ---- */

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
    fputc(c ^ 1, f);
    fclose(f);
}

static void start_over(struct tiny_model *m, uint64_t pieces)
{
    struct took t = record(m, 0,
                           &(struct record_options){.out = in_dir("cut.st"),
                                                    .first_layer = -1,
                                                    .last_layer = -1,
                                                    .fresh = true,
                                                    .stop_after = pieces});
    assert_int_equal(t.rc, ERR_CANCELLED);
}

static struct took go_on(struct tiny_model *m)
{
    return record(m, 0, &(struct record_options){.out = in_dir("cut.st")});
}

static void test_interrupted(void **state)
{
    (void)state;
    struct tiny_model m;
    tiny_model_open(&m, in_dir("qwen3"), NULL, "fast");
    struct took t = record(&m, 0, &(struct record_options){.out = in_dir("whole.st")});
    ok(t.rc, &t.e);
    for (size_t k = 1; k < t.r.pieces; k++) {
        start_over(&m, k);
        assert_int_equal(access(in_dir("cut.st"), F_OK), -1);
        struct took again = go_on(&m);
        ok(again.rc, &again.e);
        assert_int_equal(again.r.resumed, k);
        assert_true(again.r.cost.weight_bytes < t.r.cost.weight_bytes);
        assert_true(same_file(in_dir("whole.st"), in_dir("cut.st")));
        assert_int_equal(access(in_dir("cut.st.partial"), F_OK), -1);
        assert_int_equal(access(in_dir("cut.st.state"), F_OK), -1);
        unlink(in_dir("cut.st"));
    }
    tiny_model_close(&m);
}

static void refused(struct tiny_model *m, const char *why)
{
    struct took t = go_on(m);
    assert_int_equal(t.rc, ERR_MISMATCH);
    if (!strstr(t.e.message, why))
        fail_msg("\"%s\" does not say \"%s\"", t.e.message, why);
    assert_non_null(strstr(t.e.hint, "--fresh"));
}

static void test_refused(void **state)
{
    (void)state;
    struct tiny_model m, other;
    struct file_info info;
    struct err e = {0};
    tiny_model_open(&m, in_dir("qwen3"), NULL, "fast");
    struct took t = record(&m, 0, &(struct record_options){.out = in_dir("whole.st")});
    ok(t.rc, &t.e);

    start_over(&m, 3);
    flip(in_dir("cut.st.partial"), 20000); /* in a tensor that is done */
    refused(&m, "does not hold what was written");
    start_over(&m, 3);
    flip(in_dir("cut.st.partial"), 40); /* in the header */
    refused(&m, "another model, prompt");
    start_over(&m, 3);
    flip(in_dir("cut.st.state"), -200); /* in the values that are handed on */
    refused(&m, "is damaged");
    start_over(&m, 3);
    ok(file_stat(in_dir("cut.st.state"), &info, &e), &e);
    assert_int_equal(truncate(in_dir("cut.st.state"), (off_t)info.bytes / 2), 0);
    refused(&m, "too short");
    start_over(&m, 3);
    assert_int_equal(truncate(in_dir("cut.st.state"), 4), 0);
    refused(&m, "too short");
    start_over(&m, 3);
    assert_int_equal(truncate(in_dir("cut.st.partial"), 30000), 0);
    refused(&m, "another model, prompt");

    /* another device, other tokens */
    start_over(&m, 3);
    tiny_model_open(&other, in_dir("qwen3"), NULL, "ref");
    refused(&other, "another model, prompt");
    tiny_model_close(&other);
    struct ids_of ids = make_ids(&m);
    ids.ids[TOKENS - 1] ^= 1;
    t = record(&m, 0, &(struct record_options){.out = in_dir("cut.st"), .ids = ids.ids, .n_ids = TOKENS});
    assert_int_equal(t.rc, ERR_MISMATCH);
    /* weights that were written since */
    struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
    assert_int_equal(utimensat(AT_FDCWD, in_dir("qwen3/model.safetensors"), now, 0), 0);
    refused(&m, "another model, prompt");
    /* a file of that name which is none of ours */
    ok(file_write_atomic(in_dir("cut.st.partial"), "mine", 4, &e), &e);
    unlink(in_dir("cut.st.state"));
    refused(&m, "is not of this run");
    t = record(&m, 0, &(struct record_options){.out = in_dir("cut.st"), .fresh = true});
    ok(t.rc, &t.e);
    assert_true(same_file(in_dir("whole.st"), in_dir("cut.st")));
    tiny_model_close(&m);
}

/* ---- what is asked for ---- */

static void test_probes(void **state)
{
    (void)state;
    struct tiny_model m;
    struct err e = {0};
    struct trace *x;
    tiny_model_open(&m, in_dir("llama"), NULL, "fast");
    struct took t = record(&m, 0, &(struct record_options){.out = in_dir("p.st"), .probes = "layers"});
    ok(t.rc, &t.e);
    assert_int_equal(t.r.probes, 3);
    t = record(
        &m, 0,
        &(struct record_options){.out = in_dir("p.st"), .probes = "model.norm,model.layers.1.self_attn.*"});
    ok(t.rc, &t.e);
    ok(trace_open(&x, in_dir("p.st"), &e), &e);
    assert_non_null(trace_find(x, "model.norm"));
    assert_non_null(trace_find(x, "model.layers.1.self_attn.k_proj"));
    assert_null(trace_find(x, "model.layers.0.self_attn.k_proj"));
    assert_null(trace_find(x, "model.layers.1"));
    trace_close(x);
    t = record(&m, 0, &(struct record_options){.out = in_dir("p.st"), .probes = "model.norm,model.nerm"});
    assert_int_equal(t.rc, ERR_INVALID);
    assert_non_null(strstr(t.e.message, "model.nerm"));

    t = record(&m, 0, &(struct record_options){.out = in_dir("p.st"), .first_layer = 1, .last_layer = 2});
    assert_int_equal(t.rc, ERR_MISSING);
    assert_non_null(strstr(t.e.message, "model.layers.0 enters layer 1"));
    t = record(&m, 0, &(struct record_options){.out = in_dir("p.st"), .first_layer = 1, .last_layer = 3});
    assert_int_equal(t.rc, ERR_INVALID);
    int32_t wild[] = {1, 96};
    t = record(&m, 0, &(struct record_options){.out = in_dir("p.st"), .ids = wild, .n_ids = 2});
    assert_int_equal(t.rc, ERR_INVALID);
    assert_non_null(strstr(t.e.message, "id 96"));
    tiny_model_close(&m);
}

static void spoil(void *context, const char *name, float *x, size_t n)
{
    if (!strcmp(name, context))
        x[n / 2] = NAN;
}

static void test_not_finite(void **state)
{
    (void)state;
    struct tiny_model m;
    char name[] = "model.layers.1.self_attn.v_proj.weight";
    tiny_model_write(in_dir("nan"), TINY_LLAMA_CONFIG, NULL, 1, spoil, name);
    tiny_model_open(&m, in_dir("nan"), NULL, "fast");
    struct took t = record(&m, 0, &(struct record_options){.out = in_dir("nan.st")});
    ok(t.rc, &t.e);
    assert_int_equal(t.n_findings, 1);
    assert_string_equal(t.subject, "N002 model.layers.1.self_attn.v_proj");
    tiny_model_close(&m);
}

/* ---- the watch ---- */

static void enlarge(void *context, const char *name, float *x, size_t n)
{
    (void)context;
    for (size_t i = 0; !strcmp(name, "model.layers.1.mlp.down_proj.weight") && i < n; i++)
        x[i] *= 2e5f;
    for (size_t i = 0; !strcmp(name, "model.layers.2.self_attn.k_proj.weight") && i < n; i++)
        x[i] *= 1e3f;
}

static void test_watch(void **state)
{
    (void)state;
    struct tiny_model m;
    struct err e = {0};
    struct arena arena;
    struct findings f;
    struct record_result r, again;
    struct ids_of ids;
    tiny_model_write(in_dir("large"), TINY_LLAMA_CONFIG, NULL, 1, enlarge, NULL);
    tiny_model_open(&m, in_dir("large"), NULL, "fast");
    ids = make_ids(&m);
    arena_init(&arena, NULL, MEM_MISC);
    findings_init(&f, NULL);
    struct oracle_model om = {.dev = &m.d, .spec = m.s, .ckpt = m.c};
    struct record_options o = {.ids = ids.ids,
                               .n_ids = TOKENS,
                               .first_layer = -1,
                               .last_layer = -1,
                               .probes = "none",
                               .watch = true,
                               .out = in_dir("watch.st")};
    ok(oracle_record(&om, &o, &arena, &r, &f, &e), &e);
    assert_int_equal(f.n, 2);
    assert_int_equal(f.items[0].id, FINDING_N008);
    assert_string_equal(f.items[0].subject, "model.layers.1.mlp.down_proj");
    assert_non_null(strstr(f.items[0].evidence, "linear of layer 1"));
    assert_int_equal(f.items[0].severity, SEVERITY_WARNING);
    assert_string_equal(f.items[1].subject, "model.layers.2.self_attn.k_rope");
    assert_int_equal(f.items[1].severity, SEVERITY_INFO);
    /* the residual carries it on through layers 1 and 2 */
    size_t beyond = 0;
    const struct record_watch *first = r.first_beyond_f16;
    for (size_t i = 0; i < r.n_watch; i++)
        beyond += r.watch[i].max_abs > 65504;
    assert_true(first && first->max_abs > 65504 && beyond >= 4);
    assert_true(fabs(first->f16_bits - log2(65504 / first->max_abs)) < 1e-12 && first->f16_bits < 0);
    /* every operator but the rope table, also those that are no probes */
    assert_int_equal(r.n_watch, 1 + 3 * 15 + 3);
    /* the same after an interruption */
    o.stop_after = 4;
    o.fresh = true;
    assert_int_equal(oracle_record(&om, &o, &arena, &again, &f, &e), ERR_CANCELLED);
    o.stop_after = 0;
    o.fresh = false;
    ok(oracle_record(&om, &o, &arena, &again, &f, &e), &e);
    assert_int_equal(again.resumed, 4);
    assert_int_equal(again.n_watch, r.n_watch);
    for (size_t i = 0; i < r.n_watch; i++) {
        assert_string_equal(again.watch[i].name, r.watch[i].name);
        assert_true(again.watch[i].max_abs == r.watch[i].max_abs && again.watch[i].token == r.watch[i].token);
    }
    /* a model whose sums stay within F16 is told nothing */
    findings_release(&f);
    tiny_model_close(&m);
    tiny_model_open(&m, in_dir("llama"), NULL, "fast");
    om.spec = m.s;
    om.ckpt = m.c;
    findings_init(&f, NULL);
    ok(oracle_record(&om, &o, &arena, &r, &f, &e), &e);
    assert_true(f.n == 0 && !r.first_beyond_f16 && r.n_watch == again.n_watch);
    findings_release(&f);
    arena_release(&arena);
    tiny_model_close(&m);
}

/* ---- experts that do not fit together ---- */

/* Some ids of experts are identities; a residual of its own, so that the row of a token depends on them. */
static const char identities[] =
    "return { build = function(c)\n"
    "  context(512)\n"
    "  local x = embed { 'embed', vocab = 96, dim = 64 }\n"
    "  x = layers { x, n = 2, at = 'layers.%d', each = function(x, i)\n"
    "    local h = rms_norm { x, 'norm', eps = 1e-5 }\n"
    "    local q = linear { h, 'q', out = 64, part = heads(4) }\n"
    "    local k = linear { h, 'k', out = 32, part = heads(2) }\n"
    "    local y = attention { q = q, k = k, v = k, heads = 4, kv_heads = 2, dim = 16, scale = 0.25 }\n"
    "    x = x + linear { y, 'o', out = 64, part = row }\n"
    "    return x + moe { x, n = 20, zero = 6, k = 4, inter = 48, gate = 'gate', score = "
    "'softmax', scale = 1.5,\n"
    "      experts = { at = 'experts.%d', gate = 'g', up = 'u', down = 'd' } }\n"
    "  end }\n"
    "  x = rms_norm { wanted_rows(x), 'norm', eps = 1e-5 }\n"
    "  return logits { x, 'lm_head', vocab = 96 }\n"
    "end }\n";

#define MIXTRAL                                                                                              \
    "\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"torch_dtype\":\"bfloat16\","    \
    "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"        \
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":0.01,\"vocab_size\":128,\"max_position_embeddings\":64,"       \
    "\"tie_word_embeddings\":false,\"intermediate_size\":96,\"rope_theta\":2000.0,\"num_local_experts\":24," \
    "\"num_experts_per_tok\":2"

static const struct {
    const char *name, *config, *arch;
    uint32_t slots;
} sparse[] = {
    {"mixtral", "{" MIXTRAL "}", NULL, 2},
    {"gpt_oss",
     "{\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\",\"torch_dtype\":\"float32\","
     "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
     "\"hidden_act\":\"silu\",\"rms_norm_eps\":0.01,\"vocab_size\":128,\"max_position_embeddings\":64,"
     "\"tie_word_embeddings\":false,\"intermediate_size\":48,\"head_dim\":16,\"rope_theta\":150.0,"
     "\"num_local_experts\":20,\"num_experts_per_tok\":3,\"sliding_window\":9,\"swiglu_limit\":1.25,"
     "\"attention_bias\":true,\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
     NULL, 3},
    {"fp8",
     "{" MIXTRAL
     ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],\"fmt\":\"e4m3\"}}",
     NULL, 2},
    {"mxfp4",
     "{" MIXTRAL ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"mxfp4-pack-"
     "quantized\",\"ignore\":[\"lm_head\"],\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":{"
     "\"num_"
     "bits\":4,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32,\"symmetric\":true}}}}}",
     NULL, 2},
    {"identities", "{\"torch_dtype\":\"float32\"}", identities, 4},
};

/* Scales of codes that keep sums small; biases around zero, or all tokens would choose the same experts. */
static void sparse_edit(void *context, const char *name, float *x, size_t n)
{
    (void)context;
    const bool scales = strstr(name, "weight_scale_inv") != NULL, bias = strstr(name, "bias") != NULL;
    for (size_t i = 0; (scales || bias) && i < n; i++)
        x[i] = scales ? 0.001f * (1 + fabsf(x[i])) : x[i] > 0.5f ? x[i] - 1 : x[i];
}

/* The same within `day0 compare`: the operators that end in EXPERTS as a span of their own. */
static void compare_chosen(struct tiny_model *m, uint64_t memory)
{
    struct oracle_model om = {.dev = &m->d, .spec = m->s, .ckpt = m->c, .d0 = &m->d0, .memory = memory};
    struct compare_result r;
    struct arena arena;
    struct findings f;
    struct err e = {0};
    arena_init(&arena, NULL, MEM_MISC);
    findings_init(&f, NULL);
    ok(oracle_compare_model(&om, in_dir("whole.st"), &arena, &r, &f, &e), &e);
    assert_true(r.cost.experts > 0 && r.identical && r.wrong == 0);
    for (size_t i = 0; i < r.n_probes; i++) /* of 40 rows one near tie is too many already */
        assert_true(r.probes[i].state == COMPARE_RIGHT || r.probes[i].rows_excluded == 1);
    findings_release(&f);
    arena_release(&arena);
}

/* With less and less memory, until not even the experts of one token fit. */
static void less_and_less(struct tiny_model *m, size_t which)
{
    uint64_t fewest = 0;
    bool again = false;
    for (uint64_t memory = m->s->tensor_bytes;; memory -= memory / 8) {
        struct took t = record(m, memory, &(struct record_options){.out = in_dir("less.st")});
        if (t.rc) {
            assert_int_equal(t.rc, ERR_NOMEM);
            if (!strstr(t.e.message, "for the experts of one token"))
                fail_msg("%s: %s", sparse[which].name, t.e.message);
            break;
        }
        if (!same_file(in_dir("whole.st"), in_dir("less.st")))
            fail_msg("%s: other bits with %llu bytes", sparse[which].name, (unsigned long long)memory);
        const uint64_t n = t.r.cost.experts;
        if (n && (!fewest || n < fewest))
            fewest = n;
        if (n > fewest && !again)
            compare_chosen(m, memory);
        again |= n > fewest; /* some made room for others in between */
        assert_true(n < (uint64_t)TOKENS * sparse[which].slots * 2); /* of two layers; some were kept */
    }
    if (fewest < 20 || !again)
        fail_msg("%s: %llu experts were read one by one", sparse[which].name, (unsigned long long)fewest);
}

static void test_experts(void **state)
{
    (void)state;
    static const char *const isas[] = {"ref", "fast"};
    for (size_t i = 0; i < ARRAY_LEN(sparse); i++) {
        tiny_model_write(in_dir("sparse"), sparse[i].config, sparse[i].arch, 1, sparse_edit, NULL);
        for (size_t k = 0; k < ARRAY_LEN(isas); k++) {
            struct tiny_model m;
            tiny_model_open(&m, in_dir("sparse"), sparse[i].arch, isas[k]);
            struct took t = record(&m, 0, &(struct record_options){.out = in_dir("whole.st")});
            ok(t.rc, &t.e);
            assert_true(t.r.cost.experts == 0 && t.n_findings == 0);
            check_against_memory(&m, in_dir("whole.st"));
            less_and_less(&m, i);
            tiny_model_close(&m);
        }
    }
}

/* ---- cuts through other families ---- */

/* Kept residuals, several streams, and a choice of keys that a later layer takes over. */
static const char many_values[] =
    "return { build = function(c)\n"
    "  local H, chosen = 64, nil\n"
    "  context(512)\n"
    "  local x = embed { 'embed', vocab = 96, dim = H }\n"
    "  local X = concat { x, x }\n"
    "  X = layers { X, n = 4, at = 'layers.%d', each = function(X, i)\n"
    "    local z, m = hyper_in { X, 'hc', streams = 2, eps = 1e-6, hc_eps = 1e-6, rounds = 3 }\n"
    "    local h = mix_residual { z, 'res', eps = 1e-5, push = i < 3 }\n"
    "    local q = linear { h, 'q', out = 64, part = heads(4) }\n"
    "    local k = linear { h, 'k', out = 32, part = heads(2) }\n"
    "    if i % 2 == 0 then\n"
    "      chosen = index_topk { q = k, k = linear { h, 'ik', out = 16 }, heads = 2, dim = 16, topk = 2, "
    "block "
    "= 16, groups = 2 }\n"
    "    end\n"
    "    local y = attention { q = q, k = k, v = k, heads = 4, kv_heads = 2, dim = 16, scale = 0.25, index = "
    "chosen }\n"
    "    local g = linear { h, 'g', out = 96, part = col }\n"
    "    y = y + linear { glu { g, g, fn = 'silu' }, 'd', out = H, part = row }\n"
    "    return hyper_out { linear { y, 'o', out = H, part = row }, X, m, streams = 2 }\n"
    "  end }\n"
    "  x = hyper_head { X, 'head', streams = 2, eps = 1e-6, hc_eps = 1e-6 }\n"
    "  x = rms_norm { wanted_rows(mix_residual { x, 'out', eps = 1e-5 }), 'norm', eps = 1e-5 }\n"
    "  return logits { x, 'lm_head', vocab = 96 }\n"
    "end }\n";

/* Each value that enters a piece is one that an earlier piece gives and that is kept until then. */
static void check_cuts(struct recording *r)
{
    for (size_t p = 0; p < r->stream.n_pieces; p++) {
        struct stream_part part;
        struct err e = {0};
        ok(stream_part_make(&r->stream, &r->stream.pieces[p], UINT64_MAX, &part, &e), &e);
        for (uint32_t i = 0; i < part.g->n_values; i++) {
            const struct d0_value *v = &part.g->values[i];
            uint32_t from = part.g->info[i].origin - 1;
            if (v->kind != D0_VALUE_INPUT || v->role != D0_INPUT_HIDDEN)
                continue;
            assert_true(r->kept[from].wanted && r->kept[from].last_piece >= p);
            assert_int_equal(r->kept[from].bytes, (uint64_t)TOKENS * 4 * (uint64_t)v->dims[1]);
            const struct stream_piece *maker = &r->stream.pieces[r->piece_of[r->stream.maker[from]]];
            bool given = false;
            for (uint32_t k = 0; k < maker->n_outputs; k++)
                given |= maker->outputs[k] == from;
            assert_true(given && maker < &r->stream.pieces[p]);
        }
        stream_part_free(&part);
    }
}

static void test_many_values(void **state)
{
    (void)state;
    struct tiny_model m;
    struct record_result out = {0};
    struct err e = {0};
    struct ids_of ids;
    tiny_model_write(in_dir("many"), "{\"torch_dtype\":\"float32\"}", many_values, 1, NULL, NULL);
    tiny_model_open(&m, in_dir("many"), many_values, "ref");
    ids = make_ids(&m);
    for (int small = 0; small < 2; small++) { /* whole layers, and parts of them */
        const uint64_t memory = small ? 140000 : 1 << 30;
        struct oracle_model om = {.dev = &m.d, .spec = m.s, .ckpt = m.c, .memory = memory};
        struct record_options o = {
            .ids = ids.ids, .n_ids = TOKENS, .first_layer = -1, .last_layer = -1, .out = "x"};
        struct arena arena;
        arena_init(&arena, NULL, MEM_MISC);
        struct recording r = {.m = &om, .o = &o, .out = &out, .arena = &arena, .g = m.s->graph};
        ok(record_plan(&r, &e), &e);
        if (!small) {
            size_t kept = 0, choices = 0;
            assert_int_equal(r.stream.n_pieces, 6);
            for (uint32_t v = 0; v < r.g->n_values; v++) {
                kept += r.kept[v].wanted;
                choices += r.kept[v].wanted && r.g->values[v].dtype == D0_I32;
            }
            /* streams that enter four layers and the head, three kept residuals, two choices */
            assert_int_equal(choices, 2);
            assert_int_equal(kept, 5 + 3 + 2);
        } else {
            assert_true(r.stream.n_pieces > 6);
        }
        check_cuts(&r);
        stream_close(&r.stream);
        arena_release(&arena);
    }
    tiny_model_close(&m);
}

/* ---- ids ---- */

static void test_ids(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int rc;
        size_t n;
    } cases[] = {{"1 2\n3", 0, 3},        {"[1, 22,333]\n", 0, 3},
                 {" 7 ", 0, 1},           {"", ERR_FORMAT, 0},
                 {"1 -2", ERR_FORMAT, 0}, {"1 2x", ERR_FORMAT, 0},
                 {"1.5", ERR_FORMAT, 0},  {"99999999999", ERR_FORMAT, 0},
                 {"2147483647", 0, 1},    {"2147483648", ERR_FORMAT, 0}};
    struct arena arena;
    struct err e = {0};
    int32_t *ids;
    size_t n;
    arena_init(&arena, NULL, MEM_MISC);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        ok(file_write_atomic(in_dir("ids.txt"), cases[i].text, strlen(cases[i].text), &e), &e);
        assert_int_equal(oracle_read_ids(in_dir("ids.txt"), &arena, &ids, &n, &e), cases[i].rc);
        if (!cases[i].rc)
            assert_int_equal(n, cases[i].n);
    }
    arena_release(&arena);
}

static int setup(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < ARRAY_LEN(models); i++)
        tiny_model_write(in_dir(models[i].name), models[i].config, NULL, i + 1, NULL, NULL);
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
        cmocka_unit_test(test_equals_memory), cmocka_unit_test(test_any_memory),
        cmocka_unit_test(test_layers),        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_probes),
        cmocka_unit_test(test_not_finite),    cmocka_unit_test(test_watch),
        cmocka_unit_test(test_experts),       cmocka_unit_test(test_many_values),
        cmocka_unit_test(test_ids),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
