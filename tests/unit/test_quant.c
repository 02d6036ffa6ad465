/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: how a weight is stored, found from the tensors present and from config.json, in every spelling; what
 * each scheme's tensors are called and shaped; which disagreement becomes which finding; and that no pattern
 * of an ignore list takes long.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "preflight/preflight.h"
#include "scaling.h"
#include "spec/quant.h"

/* ---- patterns ---- */

static void test_matches(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *module;
        bool hit;
    } cases[] = {
        {"lm_head", "lm_head", true},
        {"lm_head", "language_model.lm_head", true},
        {"gate", "model.layers.3.mlp.gate", true},
        {"gate", "model.layers.3.mlp.gate_proj", false},
        {"mlp.gate", "model.layers.3.mlp.gate_proj", false},
        {"model.layers.1", "model.layers.1.mlp.up_proj", true},
        {"model.layers.1", "model.layers.11.mlp.up_proj", false},
        {"model.layers.*.self_attn", "model.layers.12.self_attn.q_proj", true},
        {"model.layers.*.self_attn", "model.layers.12.mlp.q_proj", false},
        {"*.self_attn*", "model.layers.12.self_attn.q_proj", true},
        {"model.layers.?.mlp", "model.layers.7.mlp", true},
        {"model.layers.?.mlp", "model.layers.17.mlp", false},
        {"", "a", false},
        {"*", "a.b", true},
        {"re:.*self_attn.*", "model.layers.0.self_attn.o_proj", true},
        {"re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.up_proj", true},
        {"re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.gate_up_proj", true},
        {"re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.experts.3.up_proj", false},
        {"re:.*mlp.gate$", "model.layers.0.mlp.gate", true},
        {"re:.*mlp.gate$", "model.layers.0.mlp.gate_proj", false},
        {"re:layers", "model.layers.0", false}, /* anchored at the start */
        {"re:^model\\.layers\\.\\d+\\.mlp", "model.layers.10.mlp.x", true},
        {"re:model.layers.[0-3].mlp", "model.layers.2.mlp", true},
        {"re:model.layers.[^0-3].mlp", "model.layers.2.mlp", false},
        {"re:(?:visual|vision)\\..*", "visual.blocks.0", true},
        {"re:(ab)+c", "ababc", true},
        {"re:(ab)*c", "c", true},
        {"re:a(b|)c", "ac", true},
        {"re:(a*)*b", "aaab", true},
        {"re:[", "a", false},
        {"re:(", "", true},
        {"re:\\", "a", false},
        {"re:a|b", "b", true},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (quant_matches(cases[i].pattern, cases[i].module) != cases[i].hit)
            fail_msg("%s on %s", cases[i].pattern, cases[i].module);
}

/* Patterns that make a backtracking matcher run for ever, over a text of n characters. */
static void match_hostile(void *context, unsigned n)
{
    char *text = context, pattern[4000];
    memset(text, 'a', n);
    text[n] = 0;
    for (size_t i = 0; i < 1200; i += 4)
        memcpy(pattern + i, "(a*)", 4);
    memcpy(pattern + 1200, "*b", 3);
    assert_false(quant_regex(pattern, text));
    assert_false(quant_regex("(((a*)*)*)*b", text));
    assert_false(quant_regex("(a|aa)*b", text));
    for (size_t i = 0; i < 1000; i += 2)
        memcpy(pattern + i, "*a", 2);
    memcpy(pattern + 1000, "b", 2);
    assert_false(quant_matches(pattern, text));
}

/* Work grows at most with the product of pattern and text: eight times the text, about eight times the work.
 */
static void test_bounded(void **state)
{
    (void)state;
    char text[4000];
    double small = least_ns(match_hostile, text, 3992 / 8), large = least_ns(match_hostile, text, 3992);
    assert_true(large < 24 * small);
}

/* ---- names and shapes of parts ---- */

static void test_parts(void **state)
{
    (void)state;
    char buf[200];
    assert_true(quant_part_name("a.q_proj.weight", "weight_scale", buf, sizeof buf));
    assert_string_equal(buf, "a.q_proj.weight_scale");
    assert_true(quant_part_name("a.q_proj.weight", "qweight", buf, sizeof buf));
    assert_string_equal(buf, "a.q_proj.qweight");
    assert_true(quant_part_name("a.experts.gate_up_proj", "_blocks", buf, sizeof buf));
    assert_string_equal(buf, "a.experts.gate_up_proj_blocks");
    assert_true(quant_part_name("a.experts.gate_up_proj", "weight_scale_inv", buf, sizeof buf));
    assert_string_equal(buf, "a.experts.gate_up_proj_scale_inv");
    assert_false(quant_part_name("a.q_proj.weight", "weight_scale", buf, 10));
    assert_true(quant_logical_name("x.qweight", buf, sizeof buf));
    assert_string_equal(buf, "x.weight");
    assert_true(quant_logical_name("x.weight_packed", buf, sizeof buf));
    assert_string_equal(buf, "x.weight");
    assert_true(quant_logical_name("x.down_proj_blocks", buf, sizeof buf));
    assert_string_equal(buf, "x.down_proj");
    assert_false(quant_logical_name("x.weight", buf, sizeof buf));

    struct spec_weight w = {
        .n_dims = 2, .dims = {576, 7168}, .form = {.bits = 4, .group_n = 128, .group_k = 128}};
    static const struct {
        enum quant_shape shape;
        uint32_t n;
        int64_t dims[2];
    } cases[] = {{SHAPE_NK, 2, {576, 7168}}, {SHAPE_NK2, 2, {576, 3584}}, {SHAPE_NKP, 2, {576, 896}},
                 {SHAPE_KPN, 2, {896, 576}}, {SHAPE_KNP, 2, {7168, 72}},  {SHAPE_NG, 2, {576, 56}},
                 {SHAPE_BLOCK, 2, {5, 56}},  {SHAPE_GN, 2, {56, 576}},    {SHAPE_GNP, 2, {56, 72}},
                 {SHAPE_NPG, 2, {72, 56}},   {SHAPE_N1, 2, {576, 1}},     {SHAPE_ONE, 0, {0}},
                 {SHAPE_K1, 1, {7168}},      {SHAPE_TWO, 1, {2}}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint32_t n;
        int64_t dims[TENSOR_MAX_DIMS];
        assert_true(quant_part_dims(&w, cases[i].shape, &n, dims));
        assert_int_equal(n, cases[i].n);
        assert_memory_equal(dims, cases[i].dims, n * sizeof dims[0]);
    }
    struct spec_weight e = {.n_dims = 3, .dims = {32, 2880, 5760}, .transposed = true};
    uint32_t n;
    int64_t dims[TENSOR_MAX_DIMS];
    assert_true(quant_part_dims(&e, SHAPE_EB, &n, dims));
    assert_int_equal(n, 4);
    assert_memory_equal(dims, ((int64_t[]){32, 5760, 90, 16}), 4 * sizeof dims[0]);
}

/* ---- a small model ---- */

#define HEAD                                                                                                 \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", \"hidden_size\": 128, "   \
    "\"intermediate_size\": 256, \"moe_intermediate_size\": 128, \"num_hidden_layers\": 1, "                 \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, \"vocab_size\": 96, "         \
    "\"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, \"num_experts\": 4, "                         \
    "\"num_experts_per_tok\": 2, "                                                                           \
    "\"norm_topk_prob\": true, \"torch_dtype\": \"bfloat16\""

struct model {
    char dir[64];
    struct st_entry entries[400];
    size_t n;
    bool calibrated; /* scales of activations are no zeros */
    struct arena names;
    struct d0 d0;
    struct findings f;
    struct ckpt *c;
    struct spec *s;
};

static const char zeros[256 * 128 * 4];

static void add(struct model *m, const char *name, uint32_t dtype, uint32_t n_dims, int64_t a, int64_t b)
{
    m->entries[m->n++] = (struct st_entry){.name = arena_strdup(&m->names, name),
                                           .dtype = dtype,
                                           .n_dims = n_dims,
                                           .dims = {a, b},
                                           .data = zeros};
}

/* One matrix in a form: "bf16" "fp8" (blocks) "mxfp4" "nvfp4" "int4" "gptq". */
/* What a calibrated release could hold: not the same everywhere, and the largest not first. */
static const float *input_scale_of(const char *module)
{
    static const float usual = 0.25f, of_q = 0.5f, of_up = 0.75f, of_down = 2;
    return strstr(module, "q_proj")                ? &of_q
           : strstr(module, "experts.3.up_proj")   ? &of_up
           : strstr(module, "experts.2.down_proj") ? &of_down
                                                   : &usual;
}

static void add_matrix(struct model *m, const char *module, const char *form, int64_t n, int64_t k)
{
    char name[160];
#define PART(suffix) (snprintf(name, sizeof name, "%s." suffix, module), name)
    if (strcmp(form, "bf16") == 0) {
        add(m, PART("weight"), D0_BF16, 2, n, k);
    } else if (strcmp(form, "fp8") == 0 || strcmp(form, "bare") == 0) {
        add(m, PART("weight"), D0_F8_E4M3, 2, n, k);
        if (form[0] == 'f')
            add(m, PART("weight_scale_inv"), D0_F32, 2, (n + 127) / 128, (k + 127) / 128);
    } else if (strcmp(form, "mxfp4") == 0) {
        add(m, PART("weight_packed"), D0_U8, 2, n, k / 2);
        add(m, PART("weight_scale"), D0_U8, 2, n, k / 32);
    } else if (strcmp(form, "nvfp4") == 0) {
        add(m, PART("weight"), D0_U8, 2, n, k / 2);
        add(m, PART("weight_scale"), D0_F8_E4M3, 2, n, k / 16);
        add(m, PART("weight_scale_2"), D0_F32, 0, 0, 0);
        add(m, PART("input_scale"), D0_F32, 0, 0, 0);
        if (m->calibrated)
            m->entries[m->n - 1].data = input_scale_of(module);
    } else if (strcmp(form, "int4") == 0) {
        add(m, PART("weight_packed"), D0_I32, 2, n, k / 8);
        add(m, PART("weight_scale"), D0_BF16, 2, n, k / 32);
        add(m, PART("weight_shape"), D0_I64, 1, 2, 0);
    } else if (strcmp(form, "gptq") == 0) {
        add(m, PART("qweight"), D0_I32, 2, k / 8, n);
        add(m, PART("qzeros"), D0_I32, 2, k / 64, n / 8);
        add(m, PART("scales"), D0_F16, 2, k / 64, n);
        add(m, PART("g_idx"), D0_I32, 1, k, 0);
    }
#undef PART
}

static void write_text(const struct model *m, const char *name, const char *text)
{
    char path[200];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/%s", m->dir, name);
    if (text && file_write_atomic(path, text, strlen(text), &e))
        fail_msg("%s", e.message);
}

/* attention in one form, experts in another; NULL: no tensors at all */
static void open_with(struct model *m, const char *config_tail, const char *beside, const char *attention,
                      const char *experts, bool calibrated)
{
    char config[2000], path[200], module[120];
    struct err e = {0};
    *m = (struct model){.d0.log.fd = -1, .calibrated = calibrated};
    arena_init(&m->names, NULL, MEM_SPEC);
    findings_init(&m->f, NULL);
    snprintf(m->dir, sizeof m->dir, "/tmp/day0-quant-XXXXXX");
    assert_non_null(mkdtemp(m->dir));
    snprintf(config, sizeof config, "%s%s}", HEAD, config_tail);
    write_text(m, "config.json", config);
    write_text(m, "hf_quant_config.json", beside);
    if (attention) {
        add(m, "model.embed_tokens.weight", D0_BF16, 2, 96, 128);
        add(m, "lm_head.weight", D0_BF16, 2, 96, 128);
        add(m, "model.norm.weight", D0_BF16, 1, 128, 0);
        add(m, "model.layers.0.input_layernorm.weight", D0_BF16, 1, 128, 0);
        add(m, "model.layers.0.post_attention_layernorm.weight", D0_BF16, 1, 128, 0);
        add(m, "model.layers.0.self_attn.q_norm.weight", D0_BF16, 1, 32, 0);
        add(m, "model.layers.0.self_attn.k_norm.weight", D0_BF16, 1, 32, 0);
        add(m, "model.layers.0.mlp.gate.weight", D0_BF16, 2, 4, 128);
        add_matrix(m, "model.layers.0.self_attn.q_proj", attention, 128, 128);
        add_matrix(m, "model.layers.0.self_attn.k_proj", attention, 64, 128);
        add_matrix(m, "model.layers.0.self_attn.v_proj", attention, 64, 128);
        add_matrix(m, "model.layers.0.self_attn.o_proj", attention, 128, 128);
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 3; k++) {
                static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
                snprintf(module, sizeof module, "model.layers.0.mlp.experts.%d.%s", i, names[k]);
                add_matrix(m, module, experts, 128, 128);
            }
        snprintf(path, sizeof path, "%s/model.safetensors", m->dir);
        if (st_write(path, m->entries, m->n, NULL, NULL, 0, &e))
            fail_msg("%s", e.message);
    }
    if (ckpt_open(&m->c, m->dir, &m->f, &m->d0, &e) || spec_open(&m->s, m->c, NULL, &m->f, &m->d0, &e))
        fail_msg("%s", e.message);
    if (m->s == NULL)
        fail_msg("no description: %s", m->f.n ? m->f.items[m->f.n - 1].evidence : "");
}

static void open_model(struct model *m, const char *config_tail, const char *beside, const char *attention,
                       const char *experts)
{
    open_with(m, config_tail, beside, attention, experts, false);
}

static void close_model(struct model *m)
{
    static const char *const names[] = {"config.json", "hf_quant_config.json", "model.safetensors"};
    char path[200];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", m->dir, names[i]);
        unlink(path);
    }
    rmdir(m->dir);
    spec_close(m->s);
    ckpt_close(m->c);
    findings_release(&m->f);
    arena_release(&m->names);
}

static const struct spec_weight *weight_named(const struct model *m, const char *part)
{
    for (size_t i = 0; i < m->s->n_weights; i++)
        if (strstr(m->s->weights[i].name, part))
            return &m->s->weights[i];
    fail_msg("no weight %s", part);
    return NULL;
}

static size_t count_findings(const struct model *m, enum finding_id id)
{
    size_t n = 0;
    for (size_t i = 0; i < m->f.n; i++)
        n += m->f.items[i].id == id;
    return n;
}

static int count_there(void *ctx, const struct spec_tensor *t)
{
    size_t *n = ctx;
    n[0]++;
    n[1] += t->tensor != NULL;
    if (t->tensor) {
        assert_int_equal(t->tensor->dtype, t->dtype);
        assert_int_equal(t->tensor->n_dims, t->n_dims);
        assert_memory_equal(t->tensor->dims, t->dims, t->n_dims * sizeof t->dims[0]);
        assert_int_equal(t->tensor->bytes, t->bytes);
    }
    return 0;
}

#define CT(format, bits, type, group)                                                                        \
    ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"" format            \
    "\", \"ignore\": [\"lm_head\", \"re:.*self_attn.*\"], \"config_groups\": {\"group_0\": {\"targets\": "   \
    "[\"Linear\"], \"weights\": {\"num_bits\": " #bits ", \"type\": \"" type "\", \"group_size\": " #group   \
    ", \"strategy\": \"group\", \"symmetric\": true}}}}"
#define FP8 ", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]"

/* From the tensors, with the right words in config.json: no finding, every tensor claimed, bytes as stored;
 * and from config.json alone the same inventory. */
static void test_schemes(void **state)
{
    (void)state;
    static const struct {
        const char *config, *beside, *attention, *experts, *scheme;
    } cases[] = {
        {"", NULL, "bf16", "bf16", "none"},
        {FP8 "}", NULL, "fp8", "fp8", "fp8_block"},
        {FP8 ", \"modules_to_not_convert\": [\"self_attn\"]}", NULL, "bf16", "fp8", "fp8_block"},
        {CT("pack-quantized", 4, "int", 32), NULL, "bf16", "int4", "ct_int"},
        {CT("mxfp4-pack-quantized", 4, "float", 32), NULL, "bf16", "mxfp4", "mxfp4_ct"},
        {"",
         "{\"quantization\": {\"quant_algo\": \"NVFP4\", \"group_size\": 16, \"exclude_modules\": "
         "[\"lm_head\"]}}",
         "nvfp4", "nvfp4", "nvfp4"},
        {", \"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 64}", NULL,
         "gptq", "gptq", "gptq"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model m, bare;
        char config[1200];
        size_t n[2] = {0}, alone[2] = {0};
        snprintf(config, sizeof config, "%s", cases[i].config);
        open_model(&m, config, cases[i].beside, cases[i].attention, cases[i].experts);
        assert_string_equal(spec_scheme_name(weight_named(&m, "experts.%d.gate_proj")->form.scheme),
                            cases[i].scheme);
        assert_int_equal(spec_physical(m.s, m.c, count_there, n), 0);
        if (n[0] != n[1] || n[0] != m.c->n_tensors || m.s->n_physical != n[0] ||
            m.s->tensor_bytes != m.c->total_bytes || m.f.n)
            fail_msg("%s: %zu described, %zu there, %zu in the file, %llu bytes of %llu; %s", cases[i].scheme,
                     n[0], n[1], m.c->n_tensors, (unsigned long long)m.s->tensor_bytes,
                     (unsigned long long)m.c->total_bytes, m.f.n ? m.f.items[0].evidence : "");
        open_model(&bare, config, cases[i].beside, NULL, NULL);
        assert_int_equal(spec_physical(bare.s, bare.c, count_there, alone), 0);
        assert_int_equal(alone[0], n[0]);
        assert_int_equal(bare.s->tensor_bytes, m.s->tensor_bytes);
        assert_int_equal(bare.s->parameters, m.s->parameters);
        close_model(&bare);
        close_model(&m);
    }
}

#define IN(weights, in)                                                                                      \
    ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"any\", "            \
    "\"config_groups\": "                                                                                    \
    "{\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {" weights "}, \"input_activations\": {" in      \
    "}}}}"
#define W8F  "\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"channel\""
#define W8I  "\"num_bits\": 8, \"type\": \"int\", \"strategy\": \"channel\""
#define W4F  "\"num_bits\": 4, \"type\": \"float\", \"group_size\": 16"
#define LIVE "\"dynamic\": true"

static uint32_t rounded_nodes(const struct graph *g)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < g->n_nodes; k++)
        n += node_attr_i(&g->nodes[k], D0_ATTR_X_FORMAT, 0) != D0_X_EXACT;
    return n;
}

/* Who asks for what cannot be done gets an error finding and a graph that rounds nothing; the pre-flight,
 * which asks for nothing, information about what nothing computes. rc: of spec_set_activations(). */
static void check_told(struct model *m, uint32_t have, int rc)
{
    struct spec *s = NULL;
    struct findings asked, f;
    struct err e = {0};
    struct spec_asked list[SPEC_MAX_ASKED];
    size_t n = spec_activations_asked(m->s, list);
    assert_int_equal(n, have != D0_X_EXACT);
    if (n)
        assert_string_equal(list[0].name,
                            have == QUANT_X_UNKNOWN ? SPEC_NOT_COMPUTED : tensor_rounding(have)->name);
    findings_init(&asked, NULL);
    findings_init(&f, NULL);
    assert_int_equal(
        spec_open(&s, m->c, &(struct spec_options){.activations = ACTIVATIONS_RELEASED}, &asked, &m->d0, &e),
        0);
    assert_non_null(s);
    size_t told = 0, last = 0;
    for (size_t i = 0; i < asked.n; i++)
        if (asked.items[i].id == FINDING_P006)
            told++, last = i;
    assert_int_equal(told, rc != 0);
    assert_int_equal(rounded_nodes(s->graph) > 0, rc == 0 && have != D0_X_EXACT);
    if (told) {
        assert_int_equal(asked.items[last].severity, SEVERITY_ERROR);
        assert_int_equal(rounded_nodes(m->s->graph), 0); /* nor half of it */
        size_t before = asked.n;
        assert_int_equal(preflight_kernels(s, false, &asked, &e), 0); /* once is enough */
        for (size_t i = before; i < asked.n; i++)
            assert_int_not_equal(asked.items[i].id, FINDING_P006);
    }
    assert_int_equal(preflight_kernels(m->s, true, &f, &e), 0);
    told = 0;
    for (size_t i = 0; i < f.n; i++)
        if (f.items[i].id == FINDING_P006) {
            told++;
            assert_int_equal(f.items[i].severity, SEVERITY_INFO);
        }
    assert_int_equal(told, have == QUANT_X_UNKNOWN);
    spec_close(s);
    findings_release(&asked);
    findings_release(&f);
}

/* Scales of the checkpoint become attributes: of one matrix its own, of experts the largest of gate and up,
 * and the largest of down. */
static void test_calibrated(void **state)
{
    (void)state;
    struct model m;
    struct err e = {0};
    unsigned seen = 0;
    open_with(&m, "", "{\"quantization\": {\"quant_algo\": \"NVFP4\"}}", "nvfp4", "nvfp4", true);
    assert_int_equal(spec_set_activations(m.s, m.c, ACTIVATIONS_RELEASED, &e), 0);
    for (uint32_t k = 0; k < m.s->graph->n_nodes; k++) {
        const struct d0_node *n = &m.s->graph->nodes[k];
        double x = node_attr_f(n, D0_ATTR_X_SCALE, 0), h = node_attr_f(n, D0_ATTR_H_SCALE, 0);
        const char *name =
            n->n_inputs > 1 && n->inputs[1] != D0_NO_VALUE ? m.s->graph->info[n->inputs[1]].name : "";
        if (node_attr_i(n, D0_ATTR_X_FORMAT, 0) == D0_X_EXACT) {
            assert_true(x == 0 && h == 0);
            continue;
        }
        assert_int_equal(node_attr_i(n, D0_ATTR_X_FORMAT, 0), D0_X_F4_NV);
        seen++;
        if (n->op == D0_OP_EXPERTS)
            assert_true(x == 0.75 && h == 2);
        else
            assert_true(x == (name && strstr(name, "q_proj") ? 0.5 : 0.25) && h == 0);
    }
    assert_int_equal(seen, 5); /* q, k, v, o, experts */
    assert_int_equal(graph_verify(m.s->graph, &e), 0);
    close_model(&m);
}

/* What a release asks of activations, and what products get of it: nothing, unless asked. */
static void test_activations(void **state)
{
    (void)state;
    static const struct {
        const char *config, *beside;
        uint32_t format;
    } cases[] = {
        {"", NULL, D0_X_EXACT},
        {IN(W8I, "\"num_bits\": 8, \"type\": \"int\", \"strategy\": \"token\", " LIVE), NULL, D0_X_I8_TOKEN},
        {IN(W8I, "\"num_bits\": 8, \"type\": \"int\", \"strategy\": \"tensor\", \"dynamic\": false"), NULL,
         D0_X_I8_STATIC},
        {IN(W8I, "\"num_bits\": 8, \"type\": \"int\", \"strategy\": \"token\", \"symmetric\": false, " LIVE),
         NULL, QUANT_X_UNKNOWN},
        {IN(W8I, "\"num_bits\": 8, \"type\": \"int\", \"strategy\": \"tensor\", " LIVE), NULL,
         QUANT_X_UNKNOWN},
        {IN(W8F, "\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"token\", " LIVE), NULL,
         D0_X_F8_TOKEN},
        {IN(W8F, "\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"tensor\""), NULL, D0_X_F8_STATIC},
        {IN(W8F, "\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"group\", \"group_size\": 128, " LIVE),
         NULL, D0_X_F8_BLOCK},
        {IN(W4F, "\"num_bits\": 4, \"type\": \"float\", \"strategy\": \"tensor_group\", \"group_size\": 16, "
                 "\"dynamic\": \"local\""),
         NULL, D0_X_F4_NV},
        {FP8 "}", NULL, D0_X_F8_BLOCK},
        {FP8 ", \"scale_fmt\": \"ue8m0\"}", NULL, D0_X_F8_BLOCK_POWER},
        {FP8 ", \"activation_scheme\": \"static\"}", NULL, QUANT_X_UNKNOWN},
        {", \"quantization_config\": {\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\"}", NULL,
         D0_X_F8_TOKEN},
        {", \"quantization_config\": {\"quant_method\": \"fbgemm_fp8\", \"activation_scale_ub\": 1200}", NULL,
         QUANT_X_UNKNOWN},
        {"", "{\"quantization\": {\"quant_algo\": \"NVFP4\"}}", D0_X_F4_NV},
        {"", "{\"quantization\": {\"quant_algo\": \"W4A16_NVFP4\"}}", D0_X_EXACT},
        {"", "{\"quantization\": {\"quant_algo\": \"FP8\"}}", D0_X_F8_STATIC},
        {"", "{\"quantization\": {\"quant_algo\": \"FP8_PB_WO\"}}", D0_X_EXACT},
        {"", "{\"quantization\": {\"quant_algo\": \"MXFP8\"}}", D0_X_F8_MX},
        {", \"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4}", NULL, D0_X_EXACT},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model m;
        struct err e = {0};
        open_model(&m, cases[i].config, cases[i].beside, NULL, NULL);
        uint32_t have = weight_named(&m, "q_proj")->form.x_format;
        if (have != cases[i].format || weight_named(&m, "experts.%d.down_proj")->form.x_format != have)
            fail_msg("%s %s: %u", cases[i].config, cases[i].beside ? cases[i].beside : "", have);
        uint32_t got = D0_X_EXACT, plain = 0;
        for (uint32_t k = 0; k < m.s->graph->n_nodes; k++) /* not asked yet */
            assert_int_equal(node_attr_i(&m.s->graph->nodes[k], D0_ATTR_X_FORMAT, 0), D0_X_EXACT);
        int rc = spec_set_activations(m.s, m.c, ACTIVATIONS_RELEASED, &e);
        const struct tensor_rounding *r = tensor_rounding(have);
        check_told(&m, have, rc);
        if (have == QUANT_X_UNKNOWN) {
            assert_int_equal(rc, ERR_UNSUPPORTED);
            assert_non_null(strstr(e.message, "q_proj"));
        } else if (r && tensor_rounding_given(r)) {
            assert_int_equal(rc, ERR_MISSING);
        } else {
            assert_int_equal(rc, 0);
            for (uint32_t k = 0; k < m.s->graph->n_nodes; k++) {
                const struct d0_node *n = &m.s->graph->nodes[k];
                uint32_t x = (uint32_t)node_attr_i(n, D0_ATTR_X_FORMAT, 0);
                got = x ? x : got;
                plain += n->op == D0_OP_LINEAR && x == 0; /* the router, which is no quantised weight */
            }
            assert_int_equal(got, have);
            assert_true(plain > 0);
            assert_int_equal(graph_verify(m.s->graph, &e), 0);
        }
        close_model(&m);
    }
    struct model m;
    struct err e = {0};
    open_model(&m, "", "{\"quantization\": {\"quant_algo\": \"NVFP4\"}}", "nvfp4", "nvfp4");
    assert_int_equal(spec_set_activations(m.s, m.c, ACTIVATIONS_RELEASED, &e),
                     ERR_MISMATCH); /* scales of 0 */
    close_model(&m);
    open_model(&m, "", NULL, "bf16", "bf16");
    assert_int_equal(spec_set_activations(m.s, m.c, ACTIVATIONS_BF16, &e), 0);
    for (uint32_t k = 0; k < m.s->graph->n_nodes; k++) {
        uint32_t op = m.s->graph->nodes[k].op;
        assert_int_equal(node_attr_i(&m.s->graph->nodes[k], D0_ATTR_X_FORMAT, 0),
                         op == D0_OP_LINEAR || op == D0_OP_EXPERTS ? D0_X_BF16 : D0_X_EXACT);
    }
    close_model(&m);
}

static void test_disagreements(void **state)
{
    (void)state;
    struct model m;
    /* config.json says nothing, the tensors are quantised */
    open_model(&m, "", NULL, "fp8", "fp8");
    assert_int_equal(count_findings(&m, FINDING_Q001), 1);
    close_model(&m);
    /* another scheme than it says */
    open_model(&m, FP8 "}", NULL, "fp8", "mxfp4");
    assert_int_equal(count_findings(&m, FINDING_Q001), 1);
    assert_non_null(strstr(m.f.items[m.f.n - 1].evidence, "mxfp4_ct"));
    close_model(&m);
    /* it says so, and they are plain */
    open_model(&m, FP8 "}", NULL, "bf16", "bf16");
    assert_int_equal(count_findings(&m, FINDING_Q001), 1);
    close_model(&m);
    /* ignored, and quantised nevertheless */
    open_model(&m, FP8 ", \"ignored_layers\": [\"model.layers.0.self_attn\"]}", NULL, "fp8", "fp8");
    assert_int_equal(count_findings(&m, FINDING_Q003), 1);
    assert_int_equal(count_findings(&m, FINDING_Q001), 0);
    close_model(&m);
    /* codes without scales are taken for what config.json says, so that the scales are missed */
    open_model(&m, FP8 "}", NULL, "bare", "fp8");
    assert_string_equal(spec_scheme_name(weight_named(&m, "q_proj")->form.scheme), "fp8_block");
    size_t n[2] = {0};
    assert_int_equal(spec_physical(m.s, m.c, count_there, n), 0);
    assert_int_equal(n[0] - n[1], 4);
    close_model(&m);
    /* a method from the future, and nonsense */
    open_model(&m, ", \"quantization_config\": {\"quant_method\": \"fp3\\u001b\"}", NULL, NULL, NULL);
    assert_int_equal(count_findings(&m, FINDING_Q004), 1);
    close_model(&m);
    open_model(&m, ", \"quantization_config\": 7", "[]", NULL, NULL);
    assert_int_equal(count_findings(&m, FINDING_Q004), 0);
    close_model(&m);
    open_model(
        &m,
        ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"ignore\": [7, null, {}], "
        "\"config_groups\": {\"a\": {\"targets\": 3, \"weights\": {\"num_bits\": 4, \"type\": \"int\", "
        "\"group_size\": -1}}}}",
        NULL, NULL, NULL);
    close_model(&m);
}

/* Everywhere that releases keep it, with null in the places before: the same inventory, and no word against
 * it. */
static void test_places(void **state)
{
    (void)state;
#define IT "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}"
#define BY "\"quantization_config\": "
    static const struct {
        const char *config, *beside;
    } cases[] = {
        {", " BY IT, NULL},
        {", \"compression_config\": " IT, NULL},
        {", " BY "null, \"compression_config\": " IT, NULL},
        {", " BY "{}, \"compression_config\": " IT, NULL},
        {", \"text_config\": {" BY IT "}", NULL},
        {", " BY "null, \"text_config\": {" BY IT "}", NULL},
        {", \"text_config\": {\"compression_config\": " IT "}", NULL},
        {", \"text_config\": null, \"llm_config\": {" BY IT "}", NULL},
        {", \"language_config\": {" BY IT "}", NULL},
        {", \"thinker_config\": {" BY IT "}", NULL},
        {", \"thinker_config\": {\"text_config\": {" BY IT "}}", NULL},
        {", \"thinker_config\": {" BY "null, \"text_config\": {" BY IT "}}", NULL},
        {", " BY IT, "{\"quantization\": {\"quant_algo\": \"NVFP4\"}}"}, /* config.json comes first */
        {", " BY "null", "{\"quantization\": " IT "}"},
        {"", "{\"quantization\": " IT "}"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model m, bare;
        size_t n[2] = {0};
        open_model(&m, cases[i].config, cases[i].beside, "fp8", "fp8");
        open_model(&bare, cases[i].config, cases[i].beside, NULL, NULL);
        for (enum finding_id id = FINDING_Q001; id <= FINDING_Q004; id++)
            if (count_findings(&m, id))
                fail_msg("%s: %s", cases[i].config, finding_code(id));
        assert_int_equal(spec_physical(m.s, m.c, count_there, n), 0);
        assert_int_equal(n[0], n[1]);
        if (strcmp(spec_scheme_name(weight_named(&bare, "q_proj")->form.scheme), "fp8_block") != 0 ||
            bare.s->tensor_bytes != m.c->total_bytes)
            fail_msg("%s %s: %s from config.json alone", cases[i].config,
                     cases[i].beside ? cases[i].beside : "",
                     spec_scheme_name(weight_named(&bare, "q_proj")->form.scheme));
        close_model(&bare);
        close_model(&m);
    }
    struct model m; /* in no place that counts */
    open_model(&m, ", " BY "[], \"text_config\": [{" BY IT "}], \"vision_config\": {" BY IT "}", "7", NULL,
               NULL);
    assert_string_equal(spec_scheme_name(weight_named(&m, "q_proj")->form.scheme), "none");
    close_model(&m);
#undef IT
#undef BY
}

/* The value in the graph: the type of the codes, the logical shape, the scheme, and the true bytes. */
static void test_graph_values(void **state)
{
    (void)state;
    struct model m;
    open_model(&m, CT("mxfp4-pack-quantized", 4, "float", 32), NULL, "bf16", "mxfp4");
    const struct spec_weight *w = weight_named(&m, "experts.%d.down_proj");
    const struct d0_value *v = &m.s->graph->values[w->value];
    assert_int_equal(w->count, 4);
    assert_int_equal(v->dtype, D0_F4);
    assert_int_equal(v->n_dims, 3);
    assert_memory_equal(v->dims, ((int64_t[]){4, 128, 128}), 3 * sizeof v->dims[0]);
    assert_int_equal(m.s->graph->info[w->value].scheme, w->form.scheme);
    assert_int_equal(m.s->graph->info[w->value].stored_bytes, 4 * (128 * 64 + 128 * 4));
    assert_int_equal(m.s->n_experts, 4);
    assert_int_equal(m.s->parameters - m.s->active_parameters, 3 * 2 * 128 * 128);
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matches),       cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_parts),         cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_disagreements), cmocka_unit_test(test_graph_values),
        cmocka_unit_test(test_places),        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_calibrated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
