/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the pre-flight over a small Llama directory, sound and with one fault each; verdicts, JSON documents,
 * inspection.
 */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "preflight/preflight.h"
#include "tiny_tokenizer.h"

#define HIDDEN      32
#define INTER       64
#define VOCAB       320
#define LAYERS      3
#define MAX_TENSORS 64

#define CONFIG(more)                                                                                         \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_"  \
    "size\":64,"                                                                                             \
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,\"vocab_"    \
    "size\":320,"                                                                                            \
    "\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","  \
    "\"bos_token_id\":1,\"eos_token_id\":2,\"torch_dtype\":\"bfloat16\"" more "}"

struct fixture {
    char dir[64];
    struct arena arena;
    struct findings f;
    struct ckpt *c;
    struct spec *s;
    struct d0 d0;
    struct st_entry tensors[MAX_TENSORS];
    size_t n;
    struct preflight_options options;
};

static const uint16_t data[VOCAB * HIDDEN];

static char *at(struct fixture *x, const char *name)
{
    return path_join(&x->arena, x->dir, name);
}

static void put(struct fixture *x, const char *name, const char *text)
{
    assert_int_equal(file_write_atomic(at(x, name), text, strlen(text), NULL), 0);
}

static void add(struct fixture *x, const char *name, int64_t rows, int64_t columns)
{
    assert_true(x->n < MAX_TENSORS);
    x->tensors[x->n++] = (struct st_entry){
        .name = name, .dtype = D0_BF16, .n_dims = columns ? 2 : 1, .dims = {rows, columns}, .data = data};
}

static struct st_entry *find(struct fixture *x, const char *name)
{
    for (size_t i = 0; i < x->n; i++) {
        if (!strcmp(x->tensors[i].name, name))
            return &x->tensors[i];
    }
    fail_msg("no %s", name);
    return NULL;
}

static void drop(struct fixture *x, const char *name)
{
    struct st_entry *t = find(x, name);
    *t = x->tensors[--x->n];
}

static void write_weights(struct fixture *x)
{
    assert_int_equal(st_write(at(x, "model.safetensors"), x->tensors, x->n, NULL, NULL, 0, NULL), 0);
}

static const struct {
    const char *name;
    int64_t rows, columns;
} layer_tensors[] = {
    {"input_layernorm", HIDDEN, 0},       {"self_attn.q_proj", HIDDEN, HIDDEN},
    {"self_attn.k_proj", 16, HIDDEN},     {"self_attn.v_proj", 16, HIDDEN},
    {"self_attn.o_proj", HIDDEN, HIDDEN}, {"post_attention_layernorm", HIDDEN, 0},
    {"mlp.gate_proj", INTER, HIDDEN},     {"mlp.up_proj", INTER, HIDDEN},
    {"mlp.down_proj", HIDDEN, INTER},
};

static const char *layer_name(struct fixture *x, int layer, size_t i)
{
    return arena_printf(&x->arena, "model.layers.%d.%s.weight", layer, layer_tensors[i].name);
}

static int setup(void **state)
{
    struct fixture *x = calloc(1, sizeof(*x));
    struct strbuf tokenizer = STRBUF_INIT;
    arena_init(&x->arena, NULL, MEM_CKPT);
    x->d0.log.fd = -1;
    strcpy(x->dir, "/tmp/day0-preflight-XXXXXX");
    if (!mkdtemp(x->dir))
        return -1;
    findings_init(&x->f, &x->d0.mem);
    add(x, "model.embed_tokens.weight", VOCAB, HIDDEN);
    for (int l = 0; l < LAYERS; l++) {
        for (size_t i = 0; i < ARRAY_LEN(layer_tensors); i++)
            add(x, layer_name(x, l, i), layer_tensors[i].rows, layer_tensors[i].columns);
    }
    add(x, "model.norm.weight", HIDDEN, 0);
    add(x, "lm_head.weight", VOCAB, HIDDEN);
    write_weights(x);
    put(x, "config.json", CONFIG(""));
    tiny_tokenizer(&tokenizer, &(struct tiny_options){0});
    put(x, "tokenizer.json", strbuf_cstr(&tokenizer));
    strbuf_release(&tokenizer);
    *state = x;
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

static void close_it(struct fixture *x)
{
    spec_close(x->s);
    ckpt_close(x->c);
    x->s = NULL;
    x->c = NULL;
}

static int teardown(void **state)
{
    struct fixture *x = *state;
    close_it(x);
    findings_release(&x->f);
    arena_release(&x->arena);
    bool leaked = x->d0.mem.live[MEM_CKPT] || x->d0.mem.live[MEM_SPEC] || x->d0.mem.live[MEM_TEXT];
    nftw(x->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(x);
    return leaked;
}

static void check(struct fixture *x)
{
    struct err e = {0};
    close_it(x);
    findings_release(&x->f);
    findings_init(&x->f, &x->d0.mem);
    if (preflight_open(x->dir, NULL, &x->options, &x->c, &x->s, &x->f, &x->d0, &e))
        fail_msg("%s", e.message);
}

static void only(struct fixture *x, enum finding_id id, const char *subject, const char *in_evidence)
{
    check(x);
    if (x->f.n == 1 && x->f.items[0].id == id && !strcmp(x->f.items[0].subject, subject) &&
        strstr(x->f.items[0].evidence, in_evidence))
        return;
    for (size_t i = 0; i < x->f.n; i++)
        print_error("%s %s: %s\n", finding_code(x->f.items[i].id), x->f.items[i].subject,
                    x->f.items[i].evidence);
    fail_msg("expected only %s about %s with \"%s\"", finding_code(id), subject, in_evidence);
}

/* ---- */

static void sound(void **state)
{
    struct fixture *x = *state;
    x->options.memory_bytes = 1u << 30;
    check(x);
    for (size_t i = 0; i < x->f.n; i++)
        print_error("%s %s: %s\n", finding_code(x->f.items[i].id), x->f.items[i].subject,
                    x->f.items[i].evidence);
    assert_int_equal(x->f.n, 0);
    assert_int_equal(preflight_verdict(&x->f, x->s), PREFLIGHT_PASS);
}

static void missing(void **state)
{
    struct fixture *x = *state;
    drop(x, "model.layers.1.mlp.up_proj.weight");
    write_weights(x);
    only(x, FINDING_W009, "model.layers.1.mlp.up_proj.weight", "should be 3 of this kind");
    drop(x, "model.layers.0.mlp.up_proj.weight");
    drop(x, "model.layers.2.mlp.up_proj.weight");
    write_weights(x);
    only(x, FINDING_W009, "model.layers.*.mlp.up_proj.weight", "3 missing tensors");
    assert_int_equal(preflight_verdict(&x->f, x->s), PREFLIGHT_FAIL);
}

static void missing_head(void **state)
{
    struct fixture *x = *state;
    drop(x, "lm_head.weight");
    write_weights(x);
    only(x, FINDING_W009, "lm_head.weight", "llama.lua");
    assert_non_null(strstr(x->f.items[0].remedy, "tie_word_embeddings"));
}

static void missing_layer(void **state)
{
    struct fixture *x = *state;
    for (size_t i = 0; i < ARRAY_LEN(layer_tensors); i++)
        drop(x, layer_name(x, 1, i));
    write_weights(x);
    only(x, FINDING_W009, "layer 1", "9 tensors");
    for (size_t i = 0; i < ARRAY_LEN(layer_tensors); i++)
        drop(x, layer_name(x, 2, i));
    write_weights(x);
    only(x, FINDING_W009, "2 layers from 1 to 2", "18 tensors");
}

/* What a lost file held is told by the finding of that file alone. */
static void lost_shard(void **state)
{
    struct fixture *x = *state;
    struct strbuf index = STRBUF_INIT;
    assert_int_equal(st_write(at(x, "a.safetensors"), x->tensors, 10, NULL, NULL, 0, NULL), 0);
    assert_int_equal(st_write(at(x, "b.safetensors"), x->tensors + 10, x->n - 10, NULL, NULL, 0, NULL), 0);
    assert_int_equal(unlink(at(x, "model.safetensors")), 0);
    strbuf_puts(&index, "{\"weight_map\":{");
    for (size_t i = 0; i < x->n; i++)
        strbuf_printf(&index, "%s\"%s\":\"%s.safetensors\"", i ? "," : "", x->tensors[i].name,
                      i < 10 ? "a" : "b");
    strbuf_puts(&index, "}}");
    put(x, "model.safetensors.index.json", strbuf_cstr(&index));
    strbuf_release(&index);
    check(x);
    assert_int_equal(x->f.n, 0);
    assert_int_equal(truncate(at(x, "b.safetensors"), 4000), 0);
    only(x, FINDING_W003, "b.safetensors", "short");
    assert_int_equal(unlink(at(x, "b.safetensors")), 0);
    only(x, FINDING_W002, "b.safetensors", "20 tensors");
}

static void shapes(void **state)
{
    struct fixture *x = *state;
    struct st_entry *t = find(x, "model.layers.1.mlp.up_proj.weight");
    t->dims[0] = HIDDEN;
    t->dims[1] = INTER;
    write_weights(x);
    only(x, FINDING_W010, "model.layers.1.mlp.up_proj.weight", "is [32, 64], described as [64, 32]");
    t->dims[0] = INTER;
    t->dims[1] = HIDDEN;
    write_weights(x);
    char *config = arena_strdup(&x->arena, CONFIG(""));
    memcpy(strstr(config, "_size\":64"), "_size\":72", 9);
    put(x, "config.json", config);
    only(x, FINDING_W010, "config.json", "9 tensors of 3 kinds");
}

static void types(void **state)
{
    struct fixture *x = *state;
    find(x, "model.layers.0.mlp.up_proj.weight")->dtype = D0_I8;
    find(x, "model.layers.1.mlp.up_proj.weight")->dtype = D0_I8;
    find(x, "model.norm.weight")->dtype = D0_F32;
    write_weights(x);
    only(x, FINDING_W013, "I8", "2 weights");
    assert_int_equal(x->f.items[0].severity, SEVERITY_ERROR);
}

/* What this build does not compute is no fault of the checkpoint, and none of a device that computes it. */
static void kernels(void **state)
{
    struct fixture *x = *state;
    find(x, "model.layers.0.mlp.up_proj.weight")->dtype = D0_F64;
    find(x, "model.layers.1.mlp.up_proj.weight")->dtype = D0_F64;
    write_weights(x);
    only(x, FINDING_P005, "LlamaForCausalLM", "weights stored as F64 (2)");
    assert_int_equal(x->f.items[0].severity, SEVERITY_INFO);
    assert_int_equal(preflight_verdict(&x->f, x->s), PREFLIGHT_PASS);
    x->options.runs_here = true;
    only(x, FINDING_P005, "LlamaForCausalLM", "weights stored as F64 (2)");
    assert_int_equal(x->f.items[0].severity, SEVERITY_ERROR);
    assert_int_equal(preflight_verdict(&x->f, x->s), PREFLIGHT_FAIL);
    x->options = (struct preflight_options){.runs_elsewhere = true};
    check(x);
    assert_int_equal(x->f.n, 0);
}

static void unclaimed(void **state)
{
    struct fixture *x = *state;
    add(x, "model.layers.0.self_attn.rotary_emb.inv_freq", 4, 0);
    add(x, "visual.blocks.0.attn.qkv.weight", 8, 8);
    write_weights(x);
    only(x, FINDING_W011, "visual.blocks.0.attn.qkv.weight", "of 1 kind, 128 B");
    add(x, "visual.blocks.1.attn.qkv.weight", 8, 8);
    add(x, "visual.merger.weight", 8, 8);
    write_weights(x);
    only(x, FINDING_W011, "visual.*", "of 2 kinds, 384 B");
    assert_int_equal(preflight_verdict(&x->f, x->s), PREFLIGHT_PASS);
}

static void tied(void **state)
{
    struct fixture *x = *state;
    put(x, "config.json", CONFIG(",\"tie_word_embeddings\":true"));
    only(x, FINDING_W011, "lm_head.weight", "tie_word_embeddings");
    drop(x, "lm_head.weight");
    write_weights(x);
    check(x);
    assert_int_equal(x->f.n, 0);
}

static void unread_key(void **state)
{
    struct fixture *x = *state;
    put(x, "config.json", CONFIG(",\"brand_new_attention\":{\"window\":7}"));
    only(x, FINDING_C005, "brand_new_attention", "{\"window\":7}");
}

static void no_config(void **state)
{
    struct fixture *x = *state;
    assert_int_equal(unlink(at(x, "config.json")), 0);
    only(x, FINDING_C001, "config.json", "");
    assert_null(x->s);
    assert_int_equal(preflight_verdict(&x->f, x->s), PREFLIGHT_FAIL);
    findings_waive(&x->f, "C001", "known");
    assert_int_equal(preflight_verdict(&x->f, x->s), PREFLIGHT_INCOMPLETE);
}

static void set_vocab(struct fixture *x, const char *digits)
{
    char *config = arena_strdup(&x->arena, CONFIG(""));
    memcpy(strstr(config, "\"vocab_size\":") + 13, digits, 3);
    put(x, "config.json", config);
    find(x, "model.embed_tokens.weight")->dims[0] = strtol(digits, NULL, 10);
    find(x, "lm_head.weight")->dims[0] = strtol(digits, NULL, 10);
    write_weights(x);
}

static void tokenizers(void **state)
{
    struct fixture *x = *state;
    size_t n;
    char *text;
    assert_int_equal(file_read(at(x, "tokenizer.json"), 1 << 20, &x->arena, &text, &n, NULL), 0);
    assert_int_equal(unlink(at(x, "tokenizer.json")), 0);
    only(x, FINDING_T001, "tokenizer.json", "not in the directory");
    put(x, "tokenizer.model", "x");
    only(x, FINDING_T001, "tokenizer.json", "tokenizer.model");
    x->options.skip_tokenizer = true;
    check(x);
    assert_int_equal(x->f.n, 0);
    x->options.skip_tokenizer = false;
    put(x, "tokenizer.json", "{");
    only(x, FINDING_T002, "tokenizer.json", "");
    put(x, "tokenizer.json", "version https://git-lfs.github.com/spec/v1\nsize 7\n");
    only(x, FINDING_W017, "tokenizer.json", "7 bytes");
    put(x, "tokenizer.json", text);
    check(x);
    assert_int_equal(x->f.n, 0);
    char *config = arena_strdup(&x->arena, CONFIG(""));
    memcpy(strstr(config, "eos_token_id\":2"), "eos_token_id\":9", 15);
    put(x, "config.json", config);
    check(x);
    assert_int_equal(x->f.n, 0);
    put(x, "generation_config.json", "{\"eos_token_id\":[2,320]}");
    only(x, FINDING_T003, "eos_token_id", "320");
    put(x, "generation_config.json", "{}");
    set_vocab(x, "300"); /* as many rows as ids */
    check(x);
    assert_int_equal(x->f.n, 0);
    set_vocab(x, "299");
    only(x, FINDING_T003, "tokenizer.json", "299");
}

static void memory(void **state)
{
    struct fixture *x = *state;
    x->options.memory_bytes = 10000;
    x->options.memory_source = "--memory";
    only(x, FINDING_M001, "memory", "has 10");
    assert_non_null(strstr(x->f.items[0].evidence, "--memory"));
    /* as much as the plan without the device's kernels wants is too little with a device that is asked */
    struct dev d;
    struct err e = {0};
    assert_int_equal(dev_open(&d, &(struct dev_options){.n_threads = 2}, &e), ERR_OK);
    struct plan_memory plan;
    const struct plan_options po = {.memory_bytes = UINT64_MAX, .context_tokens = 128};
    assert_int_equal(plan_single(x->s, &po, &plan, &e), ERR_OK);
    x->options.memory_bytes = plan.total;
    check(x);
    assert_int_equal(x->f.n, 0);
    x->options.dev = &d;
    only(x, FINDING_M001, "memory", "has ");
    x->options.dev = NULL;
    dev_close(&d);
}

static void documents(void **state)
{
    struct fixture *x = *state;
    struct strbuf b = STRBUF_INIT;
    struct json_writer w;
    const struct json *v;
    assert_int_equal(unlink(at(x, "tokenizer.json")), 0);
    check(x);
    json_writer_init(&w, &b, true);
    preflight_write_check(preflight_verdict(&x->f, x->s), &x->f, 0.25, &w);
    assert_int_equal(json_parse(b.data, b.len, NULL, &x->arena, &v, NULL), 0);
    assert_int_equal(v->n, 3);
    assert_string_equal(json_string(json_get(v, "verdict")), "fail");
    double seconds = 0;
    assert_true(json_f64(json_get(v, "seconds"), &seconds) && seconds == 0.25);
    const struct json *one = json_at(json_get(v, "findings"), 0);
    static const char *const keys[] = {"id", "name", "severity", "subject", "evidence", "remedy"};
    assert_int_equal(one->n, ARRAY_LEN(keys));
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        assert_non_null(json_string(json_get(one, keys[i])));
    assert_string_equal(json_string(json_get(one, "id")), "T001");
    strbuf_release(&b);
}

static void inspection(void **state)
{
    struct fixture *x = *state;
    struct preflight_inspection i;
    struct strbuf b = STRBUF_INIT;
    struct json_writer w;
    const struct json *v;
    uint64_t parameters = 0, linears = 0;
    check(x);
    for (size_t k = 0; k < x->n; k++)
        parameters +=
            (uint64_t)(x->tensors[k].dims[0] * (x->tensors[k].n_dims == 2 ? x->tensors[k].dims[1] : 1));
    assert_int_equal(preflight_inspect(x->c, x->s, &x->arena, &i, NULL), 0);
    assert_int_equal(i.parameters, parameters);
    assert_int_equal(i.weight_bytes, 2 * parameters);
    assert_int_equal(i.n_layers, 3);
    assert_int_equal(i.context_limit, 128);
    assert_int_equal(i.n_dtypes, 1);
    assert_int_equal(i.dtypes[0].dtype, D0_BF16);
    assert_int_equal(i.dtypes[0].n_tensors, x->n);
    assert_int_equal(i.kv_bytes_per_token, 3 * 2 * 2 * 8 * 2);
    assert_int_equal(i.layouts.n_tp, 64);
    assert_int_equal(i.layouts.n_ep, 0);
    assert_int_equal(strlen(i.manifest_sha256), 64);
    for (size_t k = 0; k < i.n_operators; k++)
        linears += !strcmp(i.operators[k].name, "linear") ? i.operators[k].count : 0;
    assert_true(linears == 0 || linears >= 21);
    json_writer_init(&w, &b, true);
    preflight_write_inspection(&i, &w);
    assert_int_equal(json_parse(b.data, b.len, NULL, &x->arena, &v, NULL), 0);
    assert_string_equal(json_string(json_get(v, "architecture")), "LlamaForCausalLM");
    assert_string_equal(json_string(json_get(json_get(v, "arch_file"), "origin")), "shipped");
    assert_int_equal(json_get(v, "operators")->n, i.n_operators);
    assert_int_equal(json_get(v, "tp_degrees")->n, 64);
    assert_int_equal(json_get(v, "ep_degrees")->n, 0);
    strbuf_release(&b);
}

static void no_directory(void **state)
{
    struct fixture *x = *state;
    struct err e = {0};
    assert_int_equal(preflight_open("/nonexistent/model", NULL, NULL, &x->c, &x->s, &x->f, &x->d0, &e),
                     ERR_MISSING);
    assert_null(x->c);
    assert_null(x->s);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(sound),      T(missing), T(missing_head), T(missing_layer), T(lost_shard),   T(shapes),
        T(types),      T(kernels), T(unclaimed),    T(tied),          T(unread_key),   T(no_config),
        T(tokenizers), T(memory),  T(documents),    T(inspection),    T(no_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
