/* SPDX-License-Identifier: Apache-2.0
 *
 * What config.json says about stored weights: quantization_config at the top or in a nested configuration,
 * or the hf_quant_config.json beside it. Understands the publishers' spellings; what it does not understand
 * is a finding, never a guess.
 */
#include <string.h>

#include "spec/quant.h"

#define MAX_ENTRIES 100000u

static const char *text_at(const struct json *v, const char *key)
{
    const char *s = json_string(json_get(v, key));
    return s ? s : "";
}

static bool true_at(const struct json *v, const char *key)
{
    bool b = false;
    return json_bool(json_get(v, key), &b) && b;
}

static uint32_t number_at(const struct json *v, const char *key, uint32_t absent)
{
    int64_t n;
    return json_i64(json_get(v, key), &n) && n > 0 && n <= 1 << 20 ? (uint32_t)n : absent;
}

static bool holds(const char *text, const char *word)
{
    return strcasestr(text, word) != NULL;
}

/* Strings of a list into the arena; other elements are dropped. */
static int strings(const struct json *list, struct arena *a, const char ***out, size_t *n, struct err *e)
{
    *n = 0;
    *out = NULL;
    if (list == NULL || list->type != JSON_ARRAY || list->n == 0)
        return ERR_OK;
    size_t most = list->n < MAX_ENTRIES ? list->n : MAX_ENTRIES;
    *out = arena_alloc_n(a, most, sizeof **out);
    if (*out == NULL)
        return err_set(e, ERR_NOMEM, "no memory for quantization_config");
    for (size_t i = 0; i < most; i++) {
        const char *s = json_string(json_at(list, i));
        if (s && *s)
            (*out)[(*n)++] = s;
    }
    return ERR_OK;
}

static void form_fp8(struct quant_form *f, const struct json *block)
{
    int64_t n, k;
    f->scheme = QUANT_FP8_TENSOR;
    f->bits = 8;
    if (block && block->type == JSON_ARRAY && json_i64(json_at(block, 0), &n) &&
        json_i64(json_at(block, 1), &k) && n > 0 && k > 0 && n <= 1 << 20 && k <= 1 << 20) {
        f->scheme = QUANT_FP8_BLOCK;
        f->group_n = (uint32_t)n;
        f->group_k = (uint32_t)k;
    }
}

/* What compressed-tensors asks of activations: {num_bits, type, strategy, dynamic, group_size, symmetric}.
 * One scale for a whole batch is not computed: a row would hang on its neighbours. */
static uint8_t group_activations(const struct json *in, const char *format)
{
    const char *strategy = text_at(in, "strategy"), *dynamic = text_at(in, "dynamic");
    uint32_t bits = number_at(in, "num_bits", 0), group = number_at(in, "group_size", 0);
    bool is_float = strcmp(text_at(in, "type"), "float") == 0, symmetric = true,
         live = true_at(in, "dynamic"), token = strcmp(strategy, "token") == 0;
    if (in == NULL || in->type != JSON_OBJECT)
        return D0_X_EXACT;
    (void)json_bool(json_get(in, "symmetric"), &symmetric);
    bool fixed = !live && *dynamic == 0 && (*strategy == 0 || strcmp(strategy, "tensor") == 0);
    if (!symmetric)
        return QUANT_X_UNKNOWN;
    if (is_float && bits == 4 && group == 16)
        return live ? QUANT_X_UNKNOWN : D0_X_F4_NV;
    if (is_float && bits == 4 && group == 32 && live)
        return D0_X_F4_MX;
    if (is_float && bits == 8 && group == 32 && live && holds(format, "mxfp8"))
        return D0_X_F8_MX;
    if (is_float && bits == 8)
        return fixed                  ? D0_X_F8_STATIC
               : live && token        ? D0_X_F8_TOKEN
               : live && group == 128 ? D0_X_F8_BLOCK
                                      : QUANT_X_UNKNOWN;
    if (!is_float && bits == 8)
        return fixed ? D0_X_I8_STATIC : live && token ? D0_X_I8_TOKEN : QUANT_X_UNKNOWN;
    return QUANT_X_UNKNOWN;
}

/* What FP8 releases ask: blocks are dynamic in groups of 128; else static, or per token. */
static uint8_t fp8_activations(const struct json *c, const struct quant_form *f)
{
    if (json_get(c, "activation_scale_ub") && json_get(c, "activation_scale_ub")->type != JSON_NULL)
        return QUANT_X_UNKNOWN; /* a bound of the largest magnitude */
    if (f->scheme != QUANT_FP8_BLOCK)
        return f->input_scale ? D0_X_F8_STATIC : D0_X_F8_TOKEN;
    if (f->input_scale || f->group_k != 128)
        return QUANT_X_UNKNOWN;
    return holds(text_at(c, "scale_fmt"), "ue8m0") ? D0_X_F8_BLOCK_POWER : D0_X_F8_BLOCK;
}

/* One name of an algorithm, as modelopt spells them. */
static bool form_algorithm(struct quant_form *f, const char *name, uint32_t group)
{
    *f = (struct quant_form){.bits = 4, .group_n = 1, .input_scale = true};
    /* weights alone, of 4 bits or in blocks: activations stay */
    f->x_format = holds(name, "A16") || holds(name, "_WO")    ? D0_X_EXACT
                  : holds(name, "NVFP4") && holds(name, "A8") ? QUANT_X_UNKNOWN
                  : holds(name, "NVFP4")                      ? D0_X_F4_NV
                  : holds(name, "MXFP8")                      ? D0_X_F8_MX
                  : holds(name, "PER_CHANNEL")                ? D0_X_F8_TOKEN
                  : strcasecmp(name, "FP8") == 0              ? D0_X_F8_STATIC
                                                              : QUANT_X_UNKNOWN;
    if (holds(name, "NVFP4")) {
        f->scheme = QUANT_NVFP4;
        f->group_k = group ? group : 16;
    } else if (holds(name, "MXFP8")) {
        f->scheme = QUANT_MXFP8_CT;
        f->bits = 8;
        f->group_k = 32;
    } else if (holds(name, "FP8_PER_CHANNEL")) {
        f->scheme = QUANT_FP8_CHANNEL;
        f->bits = 8;
    } else if (holds(name, "FP8")) {
        f->scheme = QUANT_FP8_TENSOR;
        f->bits = 8;
    } else {
        return false;
    }
    return true;
}

/* One group of compressed-tensors. */
static bool form_group(struct quant_form *f, const struct json *g, const char *format)
{
    const struct json *w = json_get(g, "weights"), *in = json_get(g, "input_activations");
    const char *own = text_at(g, "format"), *strategy = text_at(w, "strategy"),
               *order = text_at(w, "actorder");
    bool static_input = in && in->type == JSON_OBJECT && !true_at(in, "dynamic"), symmetric = true;
    uint32_t bits = number_at(w, "num_bits", 0), group = number_at(w, "group_size", 0);
    bool is_float = strcmp(text_at(w, "type"), "float") == 0;
    format = *own ? own : format;
    (void)json_bool(json_get(w, "symmetric"), &symmetric);
    *f = (struct quant_form){.bits = (uint8_t)(bits <= 32 ? bits : 0),
                             .group_n = 1,
                             .group_k = group,
                             .asymmetric = !symmetric,
                             .ordered = strcmp(order, "group") == 0 || true_at(w, "actorder"),
                             .input_scale = static_input,
                             .x_format = group_activations(in, format)};
    if (holds(format, "nvfp4") || (is_float && bits == 4 && group == 16 && *format)) {
        f->scheme = QUANT_NVFP4_CT;
        f->group_k = group ? group : 16;
        f->input_scale = in && in->type == JSON_OBJECT;
    } else if (holds(format, "mxfp4")) {
        f->scheme = QUANT_MXFP4_CT;
        f->group_k = group ? group : 32;
    } else if (holds(format, "mxfp8")) {
        f->scheme = QUANT_MXFP8_CT;
        f->group_k = group ? group : 32;
    } else if (is_float && bits == 4 && group == 16) {
        f->scheme = QUANT_NVFP4; /* written by modelopt in these words */
        f->input_scale = true;
    } else if (is_float && bits == 8) {
        form_fp8(f, strcmp(strategy, "block") == 0 ? json_get(w, "block_structure") : NULL);
        f->scheme = f->scheme == QUANT_FP8_BLOCK       ? QUANT_FP8_BLOCK_CT
                    : strcmp(strategy, "channel") == 0 ? QUANT_FP8_CHANNEL
                                                       : QUANT_FP8_TENSOR;
    } else if (holds(format, "pack-quantized") || (!is_float && bits > 0 && bits < 8)) {
        f->scheme = QUANT_CT_INT;
    } else if (!is_float && bits == 8) {
        f->scheme = QUANT_INT8;
    }
    return f->scheme != QUANT_NONE;
}

static int read_groups(struct quant_config *q, const struct json *c, struct arena *a, struct err *e)
{
    const struct json *groups = json_get(c, "config_groups");
    for (uint32_t i = 0;
         groups && groups->type == JSON_OBJECT && i < groups->n && q->n_rules < QUANT_MAX_RULES; i++) {
        const struct json *g = &groups->as.members[i].value;
        struct quant_rule *r = &q->rules[q->n_rules];
        if (!form_group(&r->form, g, text_at(c, "format")))
            continue;
        int rc = strings(json_get(g, "targets"), a, &r->targets, &r->n_targets, e);
        if (rc)
            return rc;
        q->n_rules++;
    }
    return ERR_OK;
}

/* quantized_layers of hf_quant_config.json: one algorithm for each module named. */
static int read_layers(struct quant_config *q, const struct json *layers, struct arena *a, struct err *e)
{
    for (uint32_t i = 0; i < layers->n && i < MAX_ENTRIES; i++) {
        const struct json_member *m = &layers->as.members[i];
        struct quant_form f;
        struct quant_rule *r = NULL;
        if (!form_algorithm(&f, text_at(&m->value, "quant_algo"), number_at(&m->value, "group_size", 0)))
            continue;
        for (size_t k = 0; k < q->n_rules; k++)
            if (q->rules[k].form.scheme == f.scheme && q->rules[k].form.group_k == f.group_k)
                r = &q->rules[k];
        if (r == NULL) {
            if (q->n_rules == QUANT_MAX_RULES)
                continue;
            r = &q->rules[q->n_rules++];
            r->form = f;
            r->targets = arena_alloc_n(a, layers->n, sizeof *r->targets);
            if (r->targets == NULL)
                return err_set(e, ERR_NOMEM, "no memory for hf_quant_config.json");
        }
        r->targets[r->n_targets++] = m->key;
    }
    return ERR_OK;
}

static struct quant_form *only_rule(struct quant_config *q)
{
    q->n_rules = 1;
    q->rules[0] = (struct quant_rule){.form = {.group_n = 1}};
    return &q->rules[0].form;
}

static int read_method(struct quant_config *q, const struct json *c, struct arena *a, struct err *e)
{
    const char *method = q->method, *algorithm = text_at(c, "quant_algo");
    const struct json *layers = json_get(c, "quantized_layers");
    if (layers && layers->type == JSON_OBJECT && layers->n)
        return read_layers(q, layers, a, e);
    if (*algorithm || strcmp(method, "modelopt") == 0) {
        struct quant_form *f = only_rule(q);
        if (form_algorithm(f, algorithm, number_at(c, "group_size", 0)))
            return ERR_OK;
        q->n_rules = 0;
    }
    if (json_get(c, "config_groups"))
        return read_groups(q, c, a, e);
    if (strcmp(method, "fp8") == 0 || strcmp(method, "fbgemm_fp8") == 0) {
        struct quant_form *f = only_rule(q);
        form_fp8(f, json_get(c, "weight_block_size"));
        if (strcmp(method, "fbgemm_fp8") == 0)
            f->scheme = QUANT_FP8_CHANNEL;
        f->input_scale = strcmp(text_at(c, "activation_scheme"), "static") == 0;
        f->x_format = fp8_activations(c, f);
    } else if (strcmp(method, "mxfp4") == 0) {
        *only_rule(q) =
            (struct quant_form){.scheme = QUANT_MXFP4_BLOCKS, .bits = 4, .group_n = 1, .group_k = 32};
    } else if (strcmp(method, "mxfp8") == 0) {
        *only_rule(q) = (struct quant_form){
            .scheme = QUANT_MXFP8, .bits = 8, .group_n = 1, .group_k = 32, .x_format = D0_X_F8_MX};
    } else if (strcmp(method, "awq") == 0 || strcmp(method, "gptq") == 0) {
        bool awq = method[0] == 'a';
        *only_rule(q) = (struct quant_form){
            .scheme = awq ? QUANT_AWQ : QUANT_GPTQ,
            .bits = (uint8_t)(number_at(c, "bits", number_at(c, "w_bit", 4)) & 31),
            .group_n = 1,
            .group_k =
                number_at(c, "group_size", number_at(c, "q_group_size", json_get(c, "group_size") ? 0 : 128)),
            .ordered = !awq && true_at(c, "desc_act"),
            .plain_zeros = !awq && strcmp(text_at(c, "checkpoint_format"), "gptq_v2") == 0,
        };
    } else if (strcmp(method, "bitsandbytes") == 0 && true_at(c, "load_in_4bit")) {
        *only_rule(q) = (struct quant_form){.scheme = QUANT_BNB_NF4, .bits = 4, .group_n = 1, .group_k = 64};
    }
    return ERR_OK;
}

static int read_ignored(struct quant_config *q, const struct json *c, struct arena *a, struct err *e)
{
    static const char *const keys[] = {"ignore", "modules_to_not_convert", "ignored_layers",
                                       "exclude_modules", "llm_int8_skip_modules"};
    for (size_t i = 0; i < ARRAY_LEN(keys) && q->n_ignore == 0; i++) {
        int rc = strings(json_get(c, keys[i]), a, &q->ignore, &q->n_ignore, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

/* Of this level: under the name that transformers writes, or the older one of compressed-tensors. */
static const struct json *config_of(const struct json *c)
{
    const struct json *q = json_get(c, "quantization_config");
    if (q == NULL || q->type != JSON_OBJECT || q->n == 0)
        q = json_get(c, "compression_config");
    return q && q->type == JSON_OBJECT && q->n ? q : NULL;
}

/* The configuration at the top, or in the nested one that has it. */
static const struct json *find_config(const struct json *c)
{
    static const char *const nested[] = {"text_config", "llm_config", "language_config", "thinker_config"};
    const struct json *q = config_of(c);
    for (size_t i = 0; i < ARRAY_LEN(nested) && q == NULL; i++) {
        const struct json *inner = json_get(c, nested[i]);
        q = config_of(inner);
        if (q == NULL)
            q = config_of(json_get(inner, "text_config"));
    }
    return q;
}

int quant_config_read(struct quant_config *q, const struct ckpt *c, struct arena *a, struct findings *f,
                      struct err *e)
{
    *q = (struct quant_config){.method = ""};
    const struct json *x = find_config(c->config), *beside = json_get(c->quant_config, "quantization");
    const char *where = "quantization_config";
    if (x == NULL && beside && beside->type == JSON_OBJECT) {
        x = beside;
        where = "hf_quant_config.json";
    }
    if (x == NULL)
        return ERR_OK;
    q->present = true;
    q->method = text_at(x, "quant_method");
    int rc = read_method(q, x, a, e);
    if (!rc)
        rc = read_ignored(q, x, a, e);
    if (!rc && q->n_rules == 0) {
        char shown[80];
        const char *algorithm = text_at(x, "quant_algo");
        finding_add(f, FINDING_Q004, where, "the method \"%s\" is not known",
                    ckpt_show(*q->method ? q->method : algorithm, shown, sizeof shown));
    }
    if (*q->method == 0)
        q->method = *text_at(x, "quant_algo") ? text_at(x, "quant_algo") : "compressed";
    return rc;
}
