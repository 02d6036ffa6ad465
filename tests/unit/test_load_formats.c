/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised releases, whole: for every scheme a tiny model with that scheme's tensors, loaded and run; the
 * same model with plain float32 weights, unpacked here by the scheme's own words, must give the same logits
 * bit for bit. Experts read by choice, in every scheme, are those of the whole value.
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
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "verify/runner.h"

#define MAX_TENSORS 200
#define HIDDEN      256
#define INTER       384
#define VOCAB       64
#define TOKENS      9

static char scratch[] = "/tmp/day0_formats_XXXXXX";

/* ---- raw tensors, random but sane ---- */

struct raw {
    char name[160];
    uint32_t dtype, n_dims;
    int64_t dims[TENSOR_MAX_DIMS];
    unsigned char *data;
    uint64_t bytes;
};

struct model {
    struct raw t[MAX_TENSORS];
    size_t n;
    struct rng rng;
    const char *how; /* name of the case */
};

static const struct raw *get(const struct model *m, const char *prefix, const char *suffix)
{
    char name[200];
    snprintf(name, sizeof name, "%s%s", prefix, suffix);
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->t[i].name, name) == 0)
            return &m->t[i];
    return NULL;
}

static void fill_random(struct model *m, struct raw *r, const struct spec_tensor *x)
{
    uint64_t n = r->bytes * 8 / dtype_bits(r->dtype);
    for (uint64_t i = 0; i < n; i++) {
        float v = (float)(rng_next_f64(&m->rng) - 0.5) * 0.2f;
        if (x->role == ROLE_SCALE || x->role == ROLE_GLOBAL_SCALE)
            v = (float)(rng_next_f64(&m->rng) + 0.5) * (x->role == ROLE_SCALE ? 0.01f : 0.7f);
        if (strstr(r->name, "norm"))
            v += 1;
        switch (r->dtype) {
        case D0_F32:
        case D0_BF16:
        case D0_F16:
            tensor_from_f32(&v, 1, r->dtype, r->data + i * dtype_bits(r->dtype) / 8);
            break;
        case D0_I64:
            ((int64_t *)(void *)r->data)[i] = 0;
            break;
        case D0_I32:
            ((uint32_t *)(void *)r->data)[i] = (uint32_t)rng_next(&m->rng);
            if (x->role == ROLE_ZERO_POINT && x->weight->form.bits == 8) /* one more still fits a byte */
                ((uint32_t *)(void *)r->data)[i] &= 0x7f7f7f7fu;
            break;
        default: /* codes and byte scales: never a NaN */
            r->data[i] =
                (unsigned char)(x->role == ROLE_SCALE ? (r->dtype == D0_F8_E4M3 ? 1 + rng_below(&m->rng, 60)
                                                                                : 116 + rng_below(&m->rng, 6))
                                                      : rng_below(&m->rng, 120) | rng_below(&m->rng, 2) << 7);
        }
    }
    if (x->role == ROLE_ORDER) {
        const int64_t k = r->dims[0], group = x->weight->form.group_k;
        for (int64_t i = 0; i < k; i++) {
            int64_t g = x->weight->form.ordered ? (i * 7 + 3) % k / group : i / group;
            ((int32_t *)(void *)r->data)[i] = (int32_t)g;
        }
    }
}

static int make_raw(void *ctx, const struct spec_tensor *x)
{
    struct model *m = ctx;
    assert_true(m->n < MAX_TENSORS);
    struct raw *r = &m->t[m->n++];
    snprintf(r->name, sizeof r->name, "%s", x->name);
    r->dtype = x->dtype;
    r->n_dims = x->n_dims;
    memcpy(r->dims, x->dims, sizeof r->dims);
    assert_true(shape_bytes(r->dims, r->n_dims, r->dtype, &r->bytes));
    r->data = calloc(1, (size_t)r->bytes + 8);
    assert_non_null(r->data);
    fill_random(m, r, x);
    return 0;
}

/* ---- each scheme by its own words: value at row n, column k ---- */

static double half_at(const struct raw *r, uint64_t i)
{
    float v;
    assert_true(tensor_to_f32(r->data + i * dtype_bits(r->dtype) / 8, r->dtype, 1, &v));
    return (double)v;
}

static float scale_at(const struct raw *r, uint64_t i)
{
    if (r->dtype == D0_U8 || r->dtype == D0_F8_E8M0)
        return ldexpf(1, r->data[i] - 127);
    return r->dtype == D0_F8_E4M3 ? tensor_code(D0_F8_E4M3, r->data[i]) : (float)half_at(r, i);
}

static unsigned word_at(const struct raw *r, uint64_t i)
{
    return ((const uint32_t *)(const void *)r->data)[i];
}

struct unpack {
    const struct model *m;
    const struct spec_weight *w;
    char module[160]; /* with the dot at its end */
    int64_t n_rows, n_columns;
};

static float eight_bits(const struct unpack *u, int64_t n, int64_t k)
{
    const struct raw *w = get(u->m, u->module, "weight"), *s = get(u->m, u->module, "weight_scale");
    float code = tensor_code(w->dtype, w->data[n * u->n_columns + k]);
    switch (u->w->form.scheme) {
    case QUANT_FP8_TENSOR:
        return code * scale_at(s, 0);
    case QUANT_FP8_CHANNEL:
    case QUANT_INT8:
        return code * scale_at(s, (uint64_t)n);
    case QUANT_FP8_BLOCK:
        s = get(u->m, u->module, "weight_scale_inv");
        {
            const int64_t rows = u->w->form.group_n, columns = u->w->form.group_k;
            return code *
                   scale_at(s, (uint64_t)(n / rows * ((u->n_columns + columns - 1) / columns) + k / columns));
        }
    case QUANT_MXFP8:
        s = get(u->m, u->module, "weight_scale_inv");
        return code * scale_at(s, (uint64_t)(n * (u->n_columns / 32) + k / 32));
    default: /* MXFP8 as compressed-tensors spells it */
        return code * scale_at(s, (uint64_t)(n * (u->n_columns / 32) + k / 32));
    }
}

static float four_bits(const struct unpack *u, int64_t n, int64_t k)
{
    const struct raw *p = get(u->m, u->module, "weight_packed"), *s = get(u->m, u->module, "weight_scale");
    p = p ? p : get(u->m, u->module, "weight");
    unsigned byte = p->data[(n * u->n_columns + k) / 2];
    float code = tensor_code(D0_F4, k % 2 ? byte >> 4 : byte & 15);
    if (u->w->form.scheme == QUANT_MXFP4_CT)
        return code * scale_at(s, (uint64_t)(n * (u->n_columns / 32) + k / 32));
    float scale = scale_at(s, (uint64_t)(n * (u->n_columns / 16) + k / 16));
    if (u->w->form.scheme == QUANT_NVFP4)
        return code * (scale * (float)half_at(get(u->m, u->module, "weight_scale_2"), 0));
    return code * (scale / (float)half_at(get(u->m, u->module, "weight_global_scale"), 0));
}

static float words(const struct unpack *u, int64_t n, int64_t k)
{
    const int64_t rows = u->n_rows, columns = u->n_columns, group = u->w->form.group_k;
    const unsigned bits = u->w->form.bits, per = 32 / bits, mask = (1u << bits) - 1;
    if (u->w->form.scheme == QUANT_CT_INT) {
        const struct raw *q = get(u->m, u->module, "weight_packed"),
                         *z = get(u->m, u->module, "weight_zero_point");
        unsigned code =
            word_at(q, (uint64_t)(n * (columns / per) + k / per)) >> (bits * (unsigned)(k % per)) & mask;
        unsigned zero = z ? word_at(z, (uint64_t)(n / per * (columns / group) + k / group)) >>
                                    (bits * (unsigned)(n % per)) &
                                mask
                          : 1u << (bits - 1);
        return ((float)code - (float)zero) *
               scale_at(get(u->m, u->module, "weight_scale"), (uint64_t)(n * (columns / group) + k / group));
    }
    const struct raw *q = get(u->m, u->module, "qweight"), *z = get(u->m, u->module, "qzeros"),
                     *s = get(u->m, u->module, "scales"), *order = get(u->m, u->module, "g_idx");
    static const unsigned interleaved[8] = {0, 2, 4, 6, 1, 3, 5, 7}; /* column of each nibble */
    int64_t g = order ? (int64_t)word_at(order, (uint64_t)k) : k / group;
    if (u->w->form.scheme == QUANT_GPTQ) {
        unsigned code = word_at(q, (uint64_t)(k / per * rows + n)) >> (bits * (unsigned)(k % per)) & mask;
        unsigned zero =
            (word_at(z, (uint64_t)(g * (rows / per) + n / per)) >> (bits * (unsigned)(n % per)) & mask) +
            (u->w->form.plain_zeros ? 0 : 1);
        return ((float)code - (float)zero) * scale_at(s, (uint64_t)(g * rows + n));
    }
    unsigned nibble = 0;
    while (interleaved[nibble] != (unsigned)(n % 8))
        nibble++;
    unsigned code = word_at(q, (uint64_t)(k * (rows / 8) + n / 8)) >> (4 * nibble) & 15,
             zero = word_at(z, (uint64_t)(g * (rows / 8) + n / 8)) >> (4 * nibble) & 15;
    return ((float)code - (float)zero) * scale_at(s, (uint64_t)(g * rows + n));
}

static float value_at(const struct unpack *u, int64_t n, int64_t k)
{
    switch (u->w->form.scheme) {
    case QUANT_CT_INT:
    case QUANT_AWQ:
    case QUANT_GPTQ:
        return words(u, n, k);
    case QUANT_MXFP4_CT:
    case QUANT_NVFP4:
    case QUANT_NVFP4_CT:
        return four_bits(u, n, k);
    default:
        return eight_bits(u, n, k);
    }
}

/* ---- models on disk ---- */

static void write_config(const char *dir, const char *config, const struct model *m);

static void write_dir(const char *dir, const char *quant, const struct model *m)
{
    char config[2000];
    snprintf(config, sizeof config,
             "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":%d,"
             "\"intermediate_size\":%d,\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_"
             "heads\":2,"
             "\"head_dim\":64,\"vocab_size\":%d,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-05,"
             "\"rope_theta\":10000.0,\"hidden_act\":\"silu\",\"attention_bias\":false,\"mlp_bias\":false,"
             "\"tie_word_embeddings\":false,\"torch_dtype\":\"%s\"%s%s}",
             HIDDEN, INTER, VOCAB, *quant ? "bfloat16" : "float32", *quant ? ",\"quantization_config\":" : "",
             quant);
    write_config(dir, config, m);
}

static void write_config(const char *dir, const char *config, const struct model *m)
{
    char path[300];
    struct err e = {0};
    assert_int_equal(dir_make(dir, &e), 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(file_write_atomic(path, config, strlen(config), &e), 0);
    struct st_entry entries[MAX_TENSORS] = {0};
    for (size_t i = 0; m && i < m->n; i++) {
        entries[i] = (struct st_entry){
            .name = m->t[i].name, .dtype = m->t[i].dtype, .n_dims = m->t[i].n_dims, .data = m->t[i].data};
        memcpy(entries[i].dims, m->t[i].dims, sizeof entries[i].dims);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (m)
        assert_int_equal(st_write(path, entries, m->n, NULL, NULL, 0, &e), 0);
}

struct opened {
    struct d0 d0;
    struct findings f;
    struct ckpt *c;
    struct spec *s;
};

static void open_dir(struct opened *o, const char *dir)
{
    struct err e = {0};
    memset(o, 0, sizeof *o);
    o->d0.log.fd = -1;
    findings_init(&o->f, NULL);
    assert_int_equal(ckpt_open(&o->c, dir, &o->f, &o->d0, &e), 0);
    assert_int_equal(spec_open(&o->s, o->c, &(struct spec_options){.kv_dtype = D0_F32}, &o->f, &o->d0, &e),
                     0);
    assert_non_null(o->s);
}

static void close_dir(struct opened *o)
{
    spec_close(o->s);
    ckpt_close(o->c);
    findings_release(&o->f);
}

static void logits_of(const char *dir, const char *isa, float *out)
{
    struct opened o;
    struct dev d;
    struct runner r;
    struct step_result *got;
    struct err e = {0};
    int32_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (i * 13 + 5) % VOCAB;
    open_dir(&o, dir);
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = "cpu", .isa = isa, .n_threads = 2}, &e), 0);
    const struct runner_size size = {.tokens = TOKENS, .seqs = 1, .rows = TOKENS, .context = 32};
    if (runner_open_model(&r, &d, o.s, o.c, &size, &o.d0, &e))
        fail_msg("%s: %s", dir, e.message);
    const struct runner_run run = {.tokens = tokens, .n = TOKENS, .flags = STEP_ALL_LOGITS};
    if (runner_step(&r, &run, 1, &got, &e))
        fail_msg("%s: %s", dir, e.message);
    memcpy(out, step_result_logits(got), TOKENS * VOCAB * sizeof *out);
    runner_close(&r);
    dev_close(&d);
    close_dir(&o);
}

/* Every weight of the quantised model as float32. */
static void plain_twin(const struct model *m, const struct spec *s, struct model *out)
{
    for (size_t i = 0; i < s->n_weights; i++) {
        const struct spec_weight *w = &s->weights[i];
        struct raw *r = &out->t[out->n++];
        struct unpack u = {.m = m, .w = w, .n_rows = w->dims[0], .n_columns = w->n_dims > 1 ? w->dims[1] : 1};
        snprintf(r->name, sizeof r->name, "%s", w->name);
        snprintf(u.module, sizeof u.module, "%.*s", (int)(strlen(w->name) - strlen("weight")), w->name);
        r->dtype = D0_F32;
        r->n_dims = w->n_dims;
        memcpy(r->dims, w->dims, sizeof w->dims);
        uint64_t n = (uint64_t)(u.n_rows * u.n_columns);
        r->bytes = 4 * n;
        r->data = calloc(n, 4);
        float *x = (float *)(void *)r->data;
        const struct raw *own = get(m, w->name, "");
        for (uint64_t j = 0; j < n; j++)
            x[j] = w->form.scheme ? value_at(&u, (int64_t)j / u.n_columns, (int64_t)j % u.n_columns)
                                  : (float)half_at(own, j);
    }
}

static void model_free(struct model *m)
{
    for (size_t i = 0; i < m->n; i++)
        free(m->t[i].data);
    m->n = 0;
}

static const struct {
    const char *name, *config;
    uint32_t scheme;
} cases[] = {
    {"fp8_tensor", "{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\",\"ignore\":[\"lm_head\"]}",
     QUANT_FP8_TENSOR},
    {"fp8_channel",
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"ignore\":[\"lm_head\"],"
     "\"config_groups\":{\"g\":"
     "{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\","
     "\"symmetric\":true}}}}",
     QUANT_FP8_CHANNEL},
    {"fp8_block", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],\"fmt\":\"e4m3\"}",
     QUANT_FP8_BLOCK},
    {"fp8_block_64", "{\"quant_method\":\"fp8\",\"weight_block_size\":[64,32],\"fmt\":\"e4m3\"}",
     QUANT_FP8_BLOCK},
    {"int8",
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"ignore\":[\"lm_head\"],"
     "\"config_groups\":{\"g\":"
     "{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\","
     "\"symmetric\":true}}}}",
     QUANT_INT8},
    {"ct_int4",
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"ignore\":[\"lm_head\"],"
     "\"config_groups\":{\"g\":"
     "{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_"
     "size\":32,\"symmetric\":true}}}}",
     QUANT_CT_INT},
    {"ct_int4_zeros",
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"ignore\":[\"lm_head\"],"
     "\"config_groups\":{\"g\":"
     "{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_"
     "size\":32,\"symmetric\":false}}}}",
     QUANT_CT_INT},
    {"ct_int8",
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"ignore\":[\"lm_head\"],"
     "\"config_groups\":{\"g\":"
     "{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"group\",\"group_"
     "size\":128,\"symmetric\":true}}}}",
     QUANT_CT_INT},
    {"awq",
     "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"version\":\"gemm\",\"zero_point\":true}",
     QUANT_AWQ},
    {"gptq", "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":64,\"desc_act\":false}", QUANT_GPTQ},
    {"gptq_8", "{\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":64,\"desc_act\":false}", QUANT_GPTQ},
    {"gptq_order",
     "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":64,\"desc_act\":true,\"checkpoint_format\":\"gptq_"
     "v2\"}",
     QUANT_GPTQ},
    {"mxfp4",
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"mxfp4-pack-quantized\",\"ignore\":[\"lm_head\"],"
     "\"config_groups\":{\"g\":"
     "{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"type\":\"float\",\"strategy\":\"group\","
     "\"group_size\":32,\"symmetric\":true}}}}",
     QUANT_MXFP4_CT},
    {"nvfp4",
     "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"group_size\":16,\"ignore\":[\"lm_head\"]}",
     QUANT_NVFP4},
    {"nvfp4_ct",
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\",\"ignore\":[\"lm_head\"],"
     "\"config_groups\":{\"g\":"
     "{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor_group\","
     "\"group_size\":16,\"symmetric\":true}}}}",
     QUANT_NVFP4_CT},
    {"mxfp8", "{\"quant_method\":\"mxfp8\"}", QUANT_MXFP8},
};

static void test_schemes(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char dir[200], twin_dir[200];
        static struct model m, twin;
        struct opened o;
        m.n = twin.n = 0;
        m.how = cases[i].name;
        rng_init(&m.rng, 100 + i);
        snprintf(dir, sizeof dir, "%s/%s", scratch, cases[i].name);
        snprintf(twin_dir, sizeof twin_dir, "%s/%s.plain", scratch, cases[i].name);
        write_dir(dir, cases[i].config, NULL);
        open_dir(&o, dir);
        assert_int_equal(spec_physical(o.s, o.c, make_raw, &m), 0);
        close_dir(&o);
        write_dir(dir, cases[i].config, &m);
        open_dir(&o, dir);
        unsigned stored = 0;
        for (size_t k = 0; k < o.s->n_weights; k++)
            stored += o.s->weights[k].form.scheme == cases[i].scheme;
        if (stored < 7)
            fail_msg("%s: %u weights are stored so", cases[i].name, stored);
        plain_twin(&m, o.s, &twin);
        write_dir(twin_dir, "", &twin);
        close_dir(&o);
        static float got[TOKENS * VOCAB], want[TOKENS * VOCAB];
        static const char *const isas[] = {"ref", "fast"};
        for (size_t k = 0; k < ARRAY_LEN(isas); k++) {
            logits_of(dir, isas[k], got);
            logits_of(twin_dir, isas[k], want);
            double spread = 0;
            for (size_t j = 0; j < ARRAY_LEN(got); j++)
                spread = fmax(spread, fabs((double)want[j]));
            if (!(spread > 0.01) || memcmp(got, want, sizeof got) != 0)
                fail_msg("%s on %s: logits differ from those of the plain weights (first %g, %g; largest %g)",
                         cases[i].name, isas[k], (double)got[0], (double)want[0], spread);
        }
        print_message("%s: %u weights, equal bits\n", cases[i].name, stored);
        model_free(&m);
        model_free(&twin);
    }
}

/* ---- a choice of experts ---- */

enum { EXPERTS = 6 };

static void read_value(const struct opened *o, struct graph *g, uint32_t v, const struct load_choice *choice,
                       unsigned char *to)
{
    static unsigned char staging[1 << 16];
    struct load_reader r = {.g = g,
                            .spec = o->s,
                            .c = o->c,
                            .staging = staging,
                            .staging_bytes = sizeof staging,
                            .direct = to,
                            .choice = choice};
    struct err e = {0};
    if (load_value_read(&r, v, &e))
        fail_msg("%s: %s", g->info[v].name, e.message);
}

static void rows_of(const struct d0_value *v, const unsigned char *data, int64_t matrix, float *out)
{
    struct tensor_form f;
    const size_t n = (size_t)v->dims[1], k = (size_t)v->dims[2];
    if (!v->format.scale_dtype) {
        const size_t at = (size_t)matrix * n * k * dtype_bits(v->dtype) / 8;
        assert_true(tensor_to_f32(data + at, v->dtype, n * k, out));
        return;
    }
    assert_true(tensor_form_of(v, &f));
    for (size_t i = 0; i < n; i++)
        tensor_form_row(&f, data, (size_t)matrix * n + i, out + i * k);
}

/* Experts 1, 3, 4 to places 3, 1, 0 of four, then 5 to 2: each is what it is in the whole value. */
static void check_choice(const struct opened *o, uint32_t v)
{
    static const uint32_t first[] = {1, 3, 4}, first_to[] = {3, 1, 0}, later[] = {5}, later_to[] = {2},
                          in_place[] = {4, 3, 5, 1};
    static const int64_t no_dims[D0_N_DIMS];
    const struct load_choice choices[] = {{first, first_to, 3, EXPERTS}, {later, later_to, 1, EXPERTS}};
    struct graph *g = o->s->graph;
    struct d0_value all = g->values[v];
    uint64_t bytes, fewer;
    assert_int_equal(all.dims[0], EXPERTS);
    assert_true(tensor_value_bytes(&all, no_dims, &bytes));
    unsigned char *whole = malloc(bytes), *chosen = malloc(bytes);
    float *want = malloc((size_t)(all.dims[1] * all.dims[2]) * sizeof *want),
          *got = malloc((size_t)(all.dims[1] * all.dims[2]) * sizeof *got);
    read_value(o, g, v, NULL, whole);
    memset(chosen, 0xff, bytes);
    g->values[v].dims[0] = 4;
    const struct d0_value part = g->values[v];
    assert_true(tensor_value_bytes(&part, no_dims, &fewer) && fewer < bytes);
    for (size_t i = 0; i < ARRAY_LEN(choices); i++)
        read_value(o, g, v, &choices[i], chosen);
    for (int64_t i = 0; i < 4; i++) {
        rows_of(&all, whole, in_place[i], want);
        rows_of(&part, chosen, i, got);
        if (memcmp(want, got, (size_t)(all.dims[1] * all.dims[2]) * sizeof *got) != 0)
            fail_msg("%s: expert %u is another at place %d", g->info[v].name, in_place[i], (int)i);
    }
    for (uint64_t i = fewer; i < bytes; i++)
        assert_int_equal(chosen[i], 0xff);
    /* a place that there is not, an expert that there is not, one twice */
    static const uint32_t wrong[][2] = {{0, 4}, {EXPERTS, 0}, {1, 0}};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        const uint32_t matrix[] = {wrong[i][0], wrong[i][0]}, place[] = {wrong[i][1], wrong[i][1]};
        const struct load_choice bad = {matrix, place, i == 2 ? 2 : 1, EXPERTS};
        struct load_reader r = {.g = g, .spec = o->s, .c = o->c, .direct = chosen, .choice = &bad};
        struct err e = {0};
        assert_int_equal(load_value_read(&r, v, &e), ERR_INVALID);
    }
    g->values[v] = all;
    free(whole);
    free(chosen);
    free(want);
    free(got);
}

static void check_experts(const char *name, const char *config, uint32_t scheme, unsigned wanted)
{
    static struct model m;
    char dir[200];
    struct opened o;
    unsigned stored = 0;
    m.n = 0;
    rng_init(&m.rng, 11);
    snprintf(dir, sizeof dir, "%s/experts.%s", scratch, name);
    write_config(dir, config, NULL);
    open_dir(&o, dir);
    assert_int_equal(spec_physical(o.s, o.c, make_raw, &m), 0);
    close_dir(&o);
    write_config(dir, config, &m);
    open_dir(&o, dir);
    for (uint32_t v = 0; v < o.s->graph->n_values; v++) {
        const struct d0_value *x = &o.s->graph->values[v];
        if (x->kind != D0_VALUE_WEIGHT || x->n_dims != 3)
            continue;
        stored += o.s->weights[o.s->graph->info[v].weight - 1].form.scheme == scheme;
        check_choice(&o, v);
    }
    if (stored != wanted)
        fail_msg("%s: %u weights of experts are stored so", name, stored);
    close_dir(&o);
    model_free(&m);
}

static void test_chosen_experts(void **state)
{
    (void)state;
    char config[2500];
    const char *mixtral =
        "{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"hidden_size\":256,"
        "\"intermediate_size\":384,\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":"
        "2,\"vocab_size\":64,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,"
        "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
        "\"num_local_experts\":6,\"num_experts_per_tok\":2%s%s}";
    snprintf(config, sizeof config, mixtral, "", "");
    check_experts("plain", config, QUANT_NONE, 3);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(config, sizeof config, mixtral, ",\"quantization_config\":", cases[i].config);
        check_experts(cases[i].name, config, cases[i].scheme, 3);
    }
    const char *gpt_oss =
        "{\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\",\"hidden_size\":64,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"hidden_act\":\"silu\","
        "\"rms_norm_eps\":0.01,\"vocab_size\":64,\"max_position_embeddings\":64,\"tie_word_embeddings\":"
        "false,"
        "\"intermediate_size\":96,\"head_dim\":16,\"rope_theta\":150.0,\"num_local_experts\":6,"
        "\"num_experts_per_tok\":2,\"sliding_window\":9,\"swiglu_limit\":1.25,\"attention_bias\":true,"
        "\"torch_dtype\":\"bfloat16\",\"layer_types\":[\"full_attention\"]%s}";
    snprintf(config, sizeof config, gpt_oss, "");
    check_experts("packed", config, QUANT_NONE, 2);
    snprintf(config, sizeof config, gpt_oss, ",\"quantization_config\":{\"quant_method\":\"mxfp4\"}");
    check_experts("packed_mxfp4", config, QUANT_MXFP4_BLOCKS, 2);
}

/* A group order that config.json does not announce is refused, not ignored. */
static void test_secret_order(void **state)
{
    (void)state;
    static struct model m;
    char dir[200];
    struct opened o;
    struct weights *w;
    struct dev d;
    struct err e = {0};
    const char *config = "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":64,\"desc_act\":false}";
    m.n = 0;
    rng_init(&m.rng, 5);
    snprintf(dir, sizeof dir, "%s/secret", scratch);
    write_dir(dir, config, NULL);
    open_dir(&o, dir);
    assert_int_equal(spec_physical(o.s, o.c, make_raw, &m), 0);
    close_dir(&o);
    for (size_t i = 0; i < m.n; i++)
        if (strstr(m.t[i].name, "down_proj.g_idx"))
            ((int32_t *)(void *)m.t[i].data)[3] = 2;
    write_dir(dir, config, &m);
    open_dir(&o, dir);
    assert_int_equal(dev_open(&d, &(struct dev_options){.name = "cpu", .isa = "ref", .n_threads = 1}, &e), 0);
    assert_int_equal(weights_load(&w, o.s->graph, o.c, &d, &(struct load_options){.spec = o.s}, &e),
                     ERR_MISMATCH);
    assert_non_null(strstr(e.message, "desc_act"));
    dev_close(&d);
    close_dir(&o);
    model_free(&m);
}

static int make_scratch(void **state)
{
    (void)state;
    return mkdtemp(scratch) ? 0 : -1;
}

static void remove_dir(const char *name)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    char path[300];
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/%s/%s", scratch, name, files[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    rmdir(path);
}

static int remove_scratch(void **state)
{
    (void)state;
    char twin[100];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        remove_dir(cases[i].name);
        snprintf(twin, sizeof twin, "%s.plain", cases[i].name);
        remove_dir(twin);
        snprintf(twin, sizeof twin, "experts.%s", cases[i].name);
        remove_dir(twin);
    }
    remove_dir("experts.plain");
    remove_dir("experts.packed");
    remove_dir("experts.packed_mxfp4");
    remove_dir("secret");
    return rmdir(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_chosen_experts),
        cmocka_unit_test(test_secret_order),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
