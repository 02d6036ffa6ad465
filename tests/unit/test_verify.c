/* SPDX-License-Identifier: Apache-2.0
 *
 * The whole model: a small random one written to a temporary directory, held against a reference that the
 * reference device recorded; a flipped weight must show. With the material present, a trained model against
 * another engine's logits.
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
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "verify/runner.h"
#include "verify/shared_weights.h"
#include "verify/verify.h"

enum { VOCAB = 96, HIDDEN = 64, LAYERS = 3, HEADS = 4, KV = 2, DIM = 16, INTER = 80, TOKENS = 40 };

static char dir[] = "/tmp/day0_verify_XXXXXX";
static char model[64], reference[64];

static void ok(int rc, const struct err *e)
{
    char text[1400];
    if (rc)
        fail_msg("%s", err_format(e, text, sizeof text));
}

/* ---- the model ---- */

struct maker {
    struct st_entry t[64];
    char names[64][80];
    size_t n;
    uint64_t seed;
    bool zero;
};

static void add(struct maker *m, const char *name, int64_t d0, int64_t d1)
{
    size_t n = (size_t)(d0 * (d1 ? d1 : 1));
    float *x = calloc(n, sizeof *x);
    m->seed++;
    for (size_t i = 0; i < n && !m->zero; i++)
        x[i] = (float)((rng_f64(m->seed, i) * 2 - 1) * (d1 ? 2.5 / sqrt((double)d1) : 0.3) + (d1 ? 0 : 1));
    snprintf(m->names[m->n], sizeof m->names[0], "%s.weight", name);
    m->t[m->n] = (struct st_entry){
        .name = m->names[m->n], .dtype = D0_F32, .n_dims = d1 ? 2 : 1, .dims = {d0, d1}, .data = x};
    m->n++;
}

static void add_layer(struct maker *m, int layer, const char *what, int64_t d0, int64_t d1)
{
    char name[64];
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, what);
    add(m, name, d0, d1);
}

/* flip: index of a tensor of which one element changes sign; SIZE_MAX none. */
static void write_model(size_t flip, bool zero, bool nan_weight)
{
    static const char config[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
                                 "\"hidden_size\":64,\"intermediate_size\":80,"
                                 "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":"
                                 "2,\"head_dim\":16,\"vocab_size\":96,"
                                 "\"max_position_embeddings\":128,\"rms_norm_eps\":1e-05,\"rope_theta\":"
                                 "10000.0,\"hidden_act\":\"silu\","
                                 "\"attention_bias\":false,\"mlp_bias\":false,\"tie_word_embeddings\":false,"
                                 "\"bos_token_id\":1,\"eos_token_id\":2,"
                                 "\"torch_dtype\":\"float32\"}";
    struct maker m = {.seed = 7, .zero = zero};
    struct err e;
    char path[128];
    add(&m, "model.embed_tokens", VOCAB, HIDDEN);
    for (int i = 0; i < LAYERS; i++) {
        add_layer(&m, i, "input_layernorm", HIDDEN, 0);
        add_layer(&m, i, "self_attn.q_proj", HEADS * DIM, HIDDEN);
        add_layer(&m, i, "self_attn.k_proj", KV * DIM, HIDDEN);
        add_layer(&m, i, "self_attn.v_proj", KV * DIM, HIDDEN);
        add_layer(&m, i, "self_attn.o_proj", HIDDEN, HEADS * DIM);
        add_layer(&m, i, "post_attention_layernorm", HIDDEN, 0);
        add_layer(&m, i, "mlp.gate_proj", INTER, HIDDEN);
        add_layer(&m, i, "mlp.up_proj", INTER, HIDDEN);
        add_layer(&m, i, "mlp.down_proj", HIDDEN, INTER);
    }
    add(&m, "model.norm", HIDDEN, 0);
    add(&m, "lm_head", VOCAB, HIDDEN);
    if (flip < m.n) {
        float *x = (float *)(uintptr_t)m.t[flip].data;
        x[3] = nan_weight ? NAN : -x[3] - 0.2f;
    }
    ok(dir_make(model, &e), &e);
    snprintf(path, sizeof path, "%s/config.json", model);
    ok(file_write_atomic(path, config, strlen(config), &e), &e);
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    ok(st_write(path, m.t, m.n, NULL, NULL, 0, &e), &e);
    for (size_t i = 0; i < m.n; i++)
        free((void *)(uintptr_t)m.t[i].data);
}

struct opened {
    struct d0 d0;
    struct findings f;
    struct arena arena;
    struct ckpt *c;
    struct spec *s;
    struct dev d;
};

static void print_findings(const struct findings *f)
{
    for (size_t i = 0; i < f->n; i++)
        print_message("  %s %s: %s\n", finding_code(f->items[i].id), f->items[i].subject,
                      f->items[i].evidence);
}

static void open_dir(struct opened *o, const char *path, const char *isa)
{
    struct err e;
    memset(o, 0, sizeof *o);
    o->d0.log.fd = -1;
    findings_init(&o->f, NULL);
    arena_init(&o->arena, NULL, MEM_MISC);
    ok(ckpt_open(&o->c, path, &o->f, &o->d0, &e), &e);
    ok(spec_open(&o->s, o->c, &(struct spec_options){0}, &o->f, &o->d0, &e), &e);
    print_findings(&o->f);
    assert_non_null(o->s);
    ok(dev_open(&o->d, &(struct dev_options){.name = "cpu", .isa = isa, .n_threads = 2}, &e), &e);
}

static void close_dir(struct opened *o)
{
    dev_close(&o->d);
    spec_close(o->s);
    ckpt_close(o->c);
    findings_release(&o->f);
    arena_release(&o->arena);
}

static bool found(const struct findings *f, enum finding_id id)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->items[i].id == id)
            return true;
    return false;
}

/* ---- a reference recorded by the reference device ---- */

struct recorded {
    int32_t ids[TOKENS];
    float logits[TOKENS * VOCAB];
    float *probes[64];
    size_t widths[64], n;
    char names[64][96];
};

static void record(struct recorded *r)
{
    struct opened o;
    struct err e;
    struct runner run;
    struct runner_size size = {.tokens = 1, .seqs = 1, .rows = 1, .context = TOKENS, .probes = true};
    float row[4096];
    memset(r, 0, sizeof *r);
    open_dir(&o, model, "ref");
    ok(runner_open_model(&run, &o.d, o.s, o.c, &size, NULL, &e), &e);
    r->n = engine_probes(run.x);
    assert_in_range(r->n, 1, 64);
    r->ids[0] = 1;
    r->ids[1] = 17;
    r->ids[2] = 5;
    for (uint32_t t = 0; t < TOKENS; t++) {
        struct step_result *res;
        struct runner_run one = {
            .tokens = r->ids + t, .n = 1, .position = t, .flags = STEP_ALL_LOGITS | STEP_SAMPLE};
        ok(runner_step(&run, &one, 1, &res, &e), &e);
        memcpy(r->logits + t * VOCAB, step_result_logits(res), VOCAB * sizeof(float));
        if (t >= 2 && t + 1 < TOKENS)
            r->ids[t + 1] = step_result_seqs(res)[0].token;
        for (size_t i = 0; i < r->n; i++) {
            size_t rows;
            ok(engine_probe_read(run.x, i, row, ARRAY_LEN(row), &rows, &r->widths[i], &e), &e);
            if (!r->probes[i])
                r->probes[i] = calloc(TOKENS * r->widths[i], sizeof(float));
            snprintf(r->names[i], sizeof r->names[i], "%s", engine_probe_name(run.x, i));
            memcpy(r->probes[i] + t * r->widths[i], row, r->widths[i] * sizeof(float));
        }
    }
    runner_close(&run);
    close_dir(&o);
}

static void free_recorded(struct recorded *r)
{
    for (size_t i = 0; i < r->n; i++)
        free(r->probes[i]);
}

static struct reference *make_reference(struct recorded *r, bool probes, const char *dtype)
{
    static const char *const keys[] = {"producer", "greedy", "prompt_tokens", "dtype"};
    const char *values[] = {"day0 reference kernels", "true", "3", dtype};
    struct st_entry t[66] = {
        {.name = "token_ids", .dtype = D0_I32, .n_dims = 1, .dims = {TOKENS}, .data = r->ids},
        {.name = "logits", .dtype = D0_F32, .n_dims = 2, .dims = {TOKENS, VOCAB}, .data = r->logits}};
    struct reference *out;
    struct err e;
    for (size_t i = 0; probes && i < r->n; i++)
        t[2 + i] = (struct st_entry){.name = r->names[i],
                                     .dtype = D0_F32,
                                     .n_dims = 2,
                                     .dims = {TOKENS, (int64_t)r->widths[i]},
                                     .data = r->probes[i]};
    ok(st_write(reference, t, 2 + (probes ? r->n : 0), keys, values, 4, &e), &e);
    ok(reference_open(&out, reference, &e), &e);
    return out;
}

static void compare(struct opened *o, const struct reference *r, struct verify_reference_result *out)
{
    struct err e;
    err_clear(&e);
    ok(verify_reference(&o->d, o->s, o->c, r, 0, &o->arena, out, &o->f, &o->d0, &e), &e);
}

/* ---- tests ---- */

static const char *const isas[] = {"ref", "avx2", "avx512"};

static bool isa_runs(const char *isa)
{
    struct dev d;
    struct err e;
    if (dev_open(&d, &(struct dev_options){.name = "cpu", .isa = isa}, &e) != 0) {
        print_message("SKIP %s: this processor does not have it\n", isa);
        return false;
    }
    dev_close(&d);
    return true;
}

static void test_reference_passes(void **state)
{
    (void)state;
    static struct recorded rec;
    write_model(SIZE_MAX, false, false);
    record(&rec);
    struct reference *r = make_reference(&rec, true, "float32");
    for (size_t k = 0; k < ARRAY_LEN(isas); k++) {
        struct opened o;
        struct verify_reference_result x;
        if (!isa_runs(isas[k]))
            continue;
        open_dir(&o, model, isas[k]);
        compare(&o, r, &x);
        print_message("%s: max |d| %.3g at %zu, relative L2 %.3g, KL %.3g\n", isas[k], x.max_abs_logit,
                      x.worst_position, x.relative_l2, x.max_kl);
        print_findings(&o.f);
        assert_true(x.checked);
        assert_int_equal(x.positions, TOKENS);
        assert_true(x.limit == 1e-4);
        assert_true(x.max_abs_logit <= (k == 0 ? 0 : x.limit));
        assert_int_equal(x.top1_agree, TOKENS);
        assert_int_equal(x.greedy_tokens, TOKENS - 3);
        assert_int_equal(x.greedy_equal, TOKENS - 3);
        assert_int_equal(x.greedy_ties, 0);
        assert_int_equal(x.probes_checked, rec.n);
        assert_string_equal(x.first_bad_probe, "");
        assert_int_equal(o.f.n, 0);
        close_dir(&o);
    }
    reference_close(r);
    free_recorded(&rec);
}

/* One element of one weight: the logits must show it, and the first bad probe must be that weight's operator.
 */
static void test_flipped_weight(void **state)
{
    (void)state;
    static struct recorded rec;
    static const struct {
        size_t tensor;
        const char *probe;
    } flips[] = {{1 + 9 + 1, "model.layers.1.self_attn.q_proj"},
                 {1 + 18 + 8, "model.layers.2.mlp.down_proj"},
                 {1 + 27 + 1, "lm_head"}};
    write_model(SIZE_MAX, false, false);
    record(&rec);
    struct reference *r = make_reference(&rec, true, "float32");
    for (size_t k = 0; k < ARRAY_LEN(flips); k++) {
        struct opened o;
        struct verify_reference_result x;
        write_model(flips[k].tensor, false, false);
        open_dir(&o, model, "fast");
        compare(&o, r, &x);
        print_findings(&o.f);
        assert_true(found(&o.f, FINDING_N001));
        assert_true(x.max_abs_logit > x.limit);
        assert_string_equal(x.first_bad_probe, flips[k].probe);
        close_dir(&o);
    }
    reference_close(r);
    free_recorded(&rec);
}

static void test_not_finite(void **state)
{
    (void)state;
    static struct recorded rec;
    struct opened o;
    struct verify_reference_result x;
    write_model(SIZE_MAX, false, false);
    record(&rec);
    struct reference *r = make_reference(&rec, false, "float32");
    write_model(1 + 9 + 4, false, true); /* o_proj of layer 1 */
    open_dir(&o, model, "fast");
    compare(&o, r, &x);
    print_findings(&o.f);
    assert_true(found(&o.f, FINDING_N002));
    for (size_t i = 0; i < o.f.n; i++)
        if (o.f.items[i].id == FINDING_N002)
            assert_string_equal(o.f.items[i].subject, "model.layers.1.self_attn.o_proj");
    close_dir(&o);
    reference_close(r);
    free_recorded(&rec);
}

static void test_wrong_references(void **state)
{
    (void)state;
    static struct recorded rec;
    struct opened o;
    struct verify_reference_result x;
    write_model(SIZE_MAX, false, false);
    record(&rec);
    struct reference *r = make_reference(&rec, false, "float32");
    open_dir(&o, model, "fast");
    /* other continuation: the file contradicts itself */
    int32_t *ids = r->ids;
    for (int i = 10; i < TOKENS; i++)
        ids[i] = (ids[i] + 1) % VOCAB;
    compare(&o, r, &x);
    assert_false(x.checked);
    assert_true(found(&o.f, FINDING_N006));
    /* without logits only our own tokens can tell */
    const float *logits = r->logits;
    r->logits = NULL;
    compare(&o, r, &x);
    assert_true(x.checked);
    assert_true(found(&o.f, FINDING_N005));
    assert_int_equal(x.greedy_equal, 7);
    r->logits = logits;
    close_dir(&o);
    open_dir(&o, model, "fast");
    ids[0] = VOCAB;
    compare(&o, r, &x);
    assert_false(x.checked);
    assert_true(found(&o.f, FINDING_N006));
    close_dir(&o);
    open_dir(&o, model, "fast");
    ids[0] = 1;
    r->vocab = VOCAB / 2;
    compare(&o, r, &x);
    assert_false(x.checked);
    assert_true(found(&o.f, FINDING_N006));
    close_dir(&o);
    reference_close(r);
    free_recorded(&rec);
}

/* A probe of another width is of another model. */
static void test_probe_width(void **state)
{
    (void)state;
    static struct recorded rec;
    struct opened o;
    struct verify_reference_result x;
    write_model(SIZE_MAX, false, false);
    record(&rec);
    struct reference *r = make_reference(&rec, true, "float32");
    size_t at = 0;
    while (strcmp(r->probes[at].name, "model.layers.1.mlp.gate_proj") != 0)
        at++;
    r->probes[at].width /= 2;
    for (size_t i = 0; i < r->n_probes; i++) /* a later one is not the first */
        if (strcmp(r->probes[i].name, "lm_head") == 0)
            r->probes[i].width /= 2;
    open_dir(&o, model, "fast");
    compare(&o, r, &x);
    assert_non_null(strstr(x.first_bad_probe, "gate_proj: width"));
    assert_true(found(&o.f, FINDING_N001));
    close_dir(&o);
    reference_close(r);
    free_recorded(&rec);
}

static void test_coarse_precision(void **state)
{
    (void)state;
    static struct recorded rec;
    struct opened o;
    struct verify_reference_result x;
    write_model(SIZE_MAX, false, false);
    record(&rec);
    for (size_t i = 0; i < ARRAY_LEN(rec.logits); i++)
        rec.logits[i] = bf16_to_f32(f32_to_bf16(rec.logits[i]));
    struct reference *r = make_reference(&rec, false, "bfloat16");
    open_dir(&o, model, "fast");
    compare(&o, r, &x);
    print_message("bf16: max |d| %.3g, limit %.3g, ties %zu\n", x.max_abs_logit, x.limit, x.greedy_ties);
    print_findings(&o.f);
    assert_int_equal(o.f.n, 0);
    assert_true(x.limit > 1e-3 && x.max_abs_logit > 1e-4);
    close_dir(&o);
    reference_close(r);
    free_recorded(&rec);
}

static void test_bits(void **state)
{
    (void)state;
    int32_t ids[100];
    write_model(SIZE_MAX, false, false);
    for (int i = 0; i < 100; i++)
        ids[i] = (i * 37 + 1) % VOCAB;
    for (size_t k = 0; k < ARRAY_LEN(isas); k++) {
        struct opened o;
        struct verify_bits_result x;
        struct err e;
        if (!isa_runs(isas[k]))
            continue;
        open_dir(&o, model, isas[k]);
        ok(verify_bits(&o.d, o.s, o.c, ids, 100, fusions_exact(), &x, &o.f, &o.d0, &e), &e);
        print_findings(&o.f);
        assert_true(x.ran);
        assert_int_equal(x.cases, 6);
        assert_int_equal(x.equal, 6);
        assert_int_equal(o.f.n, 0);
        ok(verify_bits(&o.d, o.s, o.c, ids, 1, 0, &x, &o.f, &o.d0, &e), &e);
        assert_int_equal(x.equal, x.cases);
        close_dir(&o);
    }
}

static void test_matrix(void **state)
{
    (void)state;
    struct opened o;
    struct verify_op_row *rows;
    struct err e;
    size_t n;
    bool linear = false;
    write_model(SIZE_MAX, false, false);
    open_dir(&o, model, "fast");
    ok(verify_matrix(&o.d, o.s->graph, &o.arena, &rows, &n, &o.f, &e), &e);
    for (size_t i = 0; i < n; i++) {
        print_message("  %-12s %-40s %u\n", rows[i].op, rows[i].types, rows[i].count);
        assert_true(rows[i].supported);
        if (strcmp(rows[i].op, "linear") == 0) {
            linear = true;
            assert_string_equal(rows[i].types, "x F32, w F32");
            assert_int_equal(rows[i].count, 7 * LAYERS + 1);
        }
    }
    assert_true(linear);
    assert_int_equal(o.f.n, 0);
    close_dir(&o);
}

static const struct verify_piece *minimal(struct opened *o, uint64_t budget, size_t *n)
{
    struct verify_piece *p;
    struct err e;
    ok(verify_minimal(&o->d, o->s, o->c, budget, &o->arena, &p, n, &o->f, &o->d0, &e), &e);
    for (size_t i = 0; i < *n; i++)
        print_message("  %-28s ran %d, %llu bytes, relative L2 %.3g, max %.3g, zero %d, %.3f s %s\n",
                      p[i].name, p[i].ran, (unsigned long long)p[i].weight_bytes, p[i].relative_l2,
                      p[i].max_abs, p[i].all_zero, p[i].seconds, p[i].why);
    return p;
}

static void test_minimal(void **state)
{
    (void)state;
    struct opened o;
    size_t n;
    write_model(SIZE_MAX, false, false);
    open_dir(&o, model, "fast");
    const struct verify_piece *p = minimal(&o, 0, &n);
    assert_int_equal(n, 3);
    for (size_t i = 0; i < n; i++) {
        assert_true(p[i].ran && !p[i].all_zero);
        assert_true(p[i].weight_bytes > 0 && p[i].relative_l2 < 1e-5);
        assert_string_equal(p[i].why, "");
    }
    assert_non_null(strstr(p[1].name, "layer 0"));
    assert_int_equal(o.f.n, 0);
    /* too little memory is told, and is no finding */
    p = minimal(&o, 1000, &n);
    for (size_t i = 0; i < n; i++) {
        assert_false(p[i].ran);
        assert_non_null(strstr(p[i].why, "needs"));
    }
    assert_int_equal(o.f.n, 0);
    close_dir(&o);
    write_model(SIZE_MAX, true, false);
    open_dir(&o, model, "fast");
    p = minimal(&o, 0, &n);
    for (size_t i = 0; i < n; i++)
        assert_true(p[i].ran && p[i].all_zero);
    close_dir(&o);
    write_model(1 + 4, false, true);
    open_dir(&o, model, "fast");
    minimal(&o, 0, &n);
    assert_true(found(&o.f, FINDING_W016));
    assert_int_equal(o.f.n, 1); /* what follows from it is no finding */
    close_dir(&o);
}

/* Both devices would agree on wrong bytes: what they are given must be the checkpoint's. */
static void check_bytes(struct opened *o, const struct graph *g, struct dev *d, const struct weights *w)
{
    struct d0_queue *q;
    struct err e;
    static char want[1 << 16], got[1 << 16];
    ok(dev_queue(d, &q, &e), &e);
    for (uint32_t i = 0; i < g->n_values; i++) {
        const struct ckpt_tensor *t = ckpt_find(o->c, g->info[i].name);
        if (g->values[i].kind != D0_VALUE_WEIGHT || !t)
            continue;
        assert_in_range(t->bytes, 1, sizeof want);
        ok(ckpt_read(o->c, t, 0, want, t->bytes, &e), &e);
        ok(dev_copy_out(d, q, w->buffers[i], 0, got, t->bytes, &e), &e);
        ok(dev_wait(d, q, 1000000000, &e), &e);
        assert_memory_equal(got, want, t->bytes);
    }
    dev_queue_free(d, q);
}

static void test_shared_weights(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        struct opened o;
        struct shared_weights w;
        const struct weights *on;
        struct dev ref;
        struct err e;
        write_model(SIZE_MAX, false, false);
        open_dir(&o, model, "fast");
        ok(dev_open(&ref, &(struct dev_options){.name = "cpu", .isa = "ref"}, &e), &e);
        ref.host_memory = ref.host_memory && shared;
        ok(shared_weights_open(&w, o.s->graph, o.c, o.s, &o.d, &ref, &e), &e);
        assert_int_equal(w.memory != NULL, shared);
        ok(shared_weights_on(&w, 0, &o.d, &on, &e), &e);
        check_bytes(&o, o.s->graph, &o.d, on);
        assert_false(w.all_zero);
        ok(shared_weights_on(&w, 1, &ref, &on, &e), &e);
        check_bytes(&o, o.s->graph, &ref, on);
        shared_weights_close(&w);
        dev_close(&ref);
        close_dir(&o);
    }
}

/* A device whose read_output is wrong for wide values: the first probe that shows it is named. */
static struct {
    const struct d0_device_api *cpu;
    struct d0_device_api api;
} planted;

static int wrong_read(struct d0_queue *queue, struct d0_exec *exec, uint32_t value, uint64_t offset,
                      void *host, uint64_t bytes, struct d0_status *status)
{
    int rc = planted.cpu->read_output(queue, exec, value, offset, host, bytes, status);
    if (rc == D0_OK && bytes == 8 * INTER * sizeof(float))
        ((float *)host)[5 * INTER + 7] += 0.1f;
    return rc;
}

static void test_minimal_names_probe(void **state)
{
    (void)state;
    struct opened o;
    size_t n;
    write_model(SIZE_MAX, false, false);
    open_dir(&o, model, "fast");
    planted.cpu = o.d.api;
    planted.api = *o.d.api;
    planted.api.read_output = wrong_read;
    o.d.api = &planted.api;
    const struct verify_piece *p = minimal(&o, 0, &n);
    assert_true(found(&o.f, FINDING_N003));
    assert_non_null(strstr(o.f.items[0].subject, "model.layers.0.mlp."));
    assert_non_null(strstr(p[1].why, "relative L2"));
    o.d.api = planted.cpu;
    close_dir(&o);
}

/* ---- a trained model, with another engine's logits ---- */

static bool material(char *out, size_t bytes, const char *what)
{
    const char *root = getenv("DAY0_MATERIAL");
    struct stat st;
    if (root)
        snprintf(out, bytes, "%s/%s", root, what);
    else
        snprintf(out, bytes, "%s/../shared/material/%s", TEST_SOURCE_ROOT, what);
    return stat(out, &st) == 0;
}

static void test_trained_model(void **state)
{
    (void)state;
    char path[512], numbers[512], command[2400];
    struct reference *r;
    struct err e;
    if (!material(path, sizeof path, "models/stories260K-hf") ||
        !material(numbers, sizeof numbers, "numerics/stories260K")) {
        print_message("SKIP trained model: no material (set DAY0_MATERIAL)\n");
        skip();
    }
    snprintf(command, sizeof command,
             "python3 '%s/tools/make_reference.py' --ids '%s/greedy_bos_256.ids.txt' --logits "
             "'%s/greedy_bos_256.logits.f32' --vocab 512"
             " --prompt-tokens 1 --greedy --producer llama2.c -o '%s' > /dev/null",
             TEST_SOURCE_ROOT, numbers, numbers, reference);
    if (system(command) != 0) {
        print_message("SKIP trained model: python3 could not make the reference\n");
        skip();
    }
    ok(reference_open(&r, reference, &e), &e);
    for (size_t k = 0; k < ARRAY_LEN(isas); k++) {
        struct opened o;
        struct verify_reference_result x;
        struct verify_bits_result bits;
        if (!isa_runs(isas[k]))
            continue;
        open_dir(&o, path, isas[k]);
        o.f.n = 0;
        compare(&o, r, &x);
        print_message("%s: max |d| %.3g at %zu, relative L2 %.3g, KL %.3g, top-1 %u, greedy %zu of %zu\n",
                      isas[k], x.max_abs_logit, x.worst_position, x.relative_l2, x.max_kl, x.top1_agree,
                      x.greedy_equal, x.greedy_tokens);
        print_findings(&o.f);
        assert_int_equal(x.positions, 256);
        assert_true(x.max_abs_logit <= 1e-4);
        assert_int_equal(x.greedy_tokens, 200);
        assert_int_equal(x.greedy_equal, 200);
        assert_int_equal(o.f.n, 0);
        ok(verify_bits(&o.d, o.s, o.c, r->ids, r->n_ids, 0, &bits, &o.f, &o.d0, &e), &e);
        assert_int_equal(bits.equal, bits.cases);
        close_dir(&o);
    }
    reference_close(r);
}

/* The model that ships, against transformers, with probes. */
static void test_demo_model(void **state)
{
    (void)state;
    struct opened o;
    struct reference *r;
    struct verify_reference_result x;
    struct err e;
    struct stat st;
    if (stat(TEST_SOURCE_ROOT "/demo/reference.safetensors", &st) != 0) {
        print_message("SKIP demo model: it is not there\n");
        skip();
    }
    ok(reference_open(&r, TEST_SOURCE_ROOT "/demo/reference.safetensors", &e), &e);
    open_dir(&o, TEST_SOURCE_ROOT "/demo/model", "fast");
    o.f.n = 0;
    compare(&o, r, &x);
    print_message("demo: max |d| %.3g, relative L2 %.3g, %zu of %zu probes, greedy %zu of %zu %s\n",
                  x.max_abs_logit, x.relative_l2, x.probes_checked, r->n_probes, x.greedy_equal,
                  x.greedy_tokens, x.first_bad_probe);
    print_findings(&o.f);
    assert_int_equal(o.f.n, 0);
    assert_true(x.probes_checked >= 5);
    close_dir(&o);
    reference_close(r);
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(model, sizeof model, "%s/model", dir);
    snprintf(reference, sizeof reference, "%s/ref.safetensors", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_passes),
        cmocka_unit_test(test_flipped_weight),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_wrong_references),
        cmocka_unit_test(test_coarse_precision),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_matrix),
        cmocka_unit_test(test_minimal),
        cmocka_unit_test(test_minimal_names_probe),
        cmocka_unit_test(test_probe_width),
        cmocka_unit_test(test_shared_weights),
        cmocka_unit_test(test_trained_model),
        cmocka_unit_test(test_demo_model),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
