/* SPDX-License-Identifier: Apache-2.0
 *
 * How one weight is stored: by the tensors that are there, else by config.json. The tensors win; where the
 * two disagree that is counted for a finding. Refuses to believe a shape: it only chooses names and sizes
 * that the pre-flight then compares.
 */
#include <stdio.h>
#include <string.h>

#include "spec/quant.h"

#define NAME_BYTES 320

/* The tensor for a part of (the first expert of) a weight. */
static const struct ckpt_tensor *part_of(const struct ckpt *c, const char *name, const char *suffix)
{
    char buf[NAME_BYTES];
    return quant_part_name(name, suffix, buf, sizeof buf) ? ckpt_find(c, buf) : NULL;
}

static bool is_byte_scale(const struct ckpt_tensor *t)
{
    return t && (t->dtype == D0_U8 || t->dtype == D0_F8_E8M0);
}

static uint64_t elements_of(const struct ckpt_tensor *t)
{
    uint64_t n;
    return t && shape_elements(t->dims, t->n_dims, &n) ? n : 0;
}

static int64_t last_dim(const struct ckpt_tensor *t)
{
    return t && t->n_dims ? t->dims[t->n_dims - 1] : 0;
}

/* Group of K that a scale [N, K/g] shows. */
static uint32_t group_of(const struct spec_weight *w, const struct ckpt_tensor *scale, uint32_t usual)
{
    int64_t k = w->dims[w->n_dims - 1], n = last_dim(scale);
    if (n <= 0 || n > k || k % n || k / n > 1 << 20)
        return usual;
    return (uint32_t)(k / n);
}

/* 8-bit floats: the scale beside them says which scheme. */
static void decide_fp8(struct spec_weight *w, const struct ckpt *c, const char *name)
{
    struct quant_form *f = &w->form;
    const struct ckpt_tensor *inv = part_of(c, name, "weight_scale_inv"),
                             *s = part_of(c, name, "weight_scale"), *v4 = part_of(c, name, "scale");
    int64_t n = w->dims[w->n_dims >= 2 ? w->n_dims - 2 : 0];
    f->bits = 8;
    f->group_n = f->group_k = 128;
    if (v4) {
        f->scheme = QUANT_V4_FP8;
    } else if (inv) {
        f->scheme = is_byte_scale(inv) ? QUANT_MXFP8 : QUANT_FP8_BLOCK;
    } else if (is_byte_scale(s)) {
        f->scheme = QUANT_MXFP8_CT;
    } else if (s && elements_of(s) > 1) {
        bool rows = s->dims[0] == n && (s->n_dims == 1 || last_dim(s) == 1);
        f->scheme = rows ? QUANT_FP8_CHANNEL : QUANT_FP8_BLOCK_CT;
    } else {
        f->scheme = QUANT_FP8_TENSOR;
    }
    if (f->scheme == QUANT_MXFP8 || f->scheme == QUANT_MXFP8_CT) {
        f->group_n = 1;
        f->group_k = 32;
    }
    f->input_scale = part_of(c, name, "input_scale") != NULL;
}

static void decide_packed(struct spec_weight *w, const struct ckpt *c, const char *name,
                          const struct ckpt_tensor *packed)
{
    struct quant_form *f = &w->form;
    const struct ckpt_tensor *s = part_of(c, name, "weight_scale");
    f->group_n = 1;
    f->bits = 4;
    if (packed->dtype != D0_U8) {
        int64_t k = w->dims[w->n_dims - 1], bits = k > 0 ? last_dim(packed) * 32 / k : 4;
        f->scheme = QUANT_CT_INT;
        f->bits = (uint8_t)(bits >= 1 && bits <= 8 ? bits : 4);
        f->group_k = group_of(w, s, 128);
        f->asymmetric = part_of(c, name, "weight_zero_point") != NULL;
        f->ordered = part_of(c, name, "weight_g_idx") != NULL;
    } else if (part_of(c, name, "weight_global_scale") || (s && s->dtype == D0_F8_E4M3)) {
        f->scheme = QUANT_NVFP4_CT;
        f->group_k = 16;
        f->input_scale = part_of(c, name, "input_global_scale") != NULL;
    } else {
        f->scheme = QUANT_MXFP4_CT;
        f->group_k = 32;
    }
}

static void decide_words(struct spec_weight *w, const struct ckpt *c, const char *name,
                         const struct ckpt_tensor *q)
{
    struct quant_form *f = &w->form;
    int64_t k = w->dims[w->n_dims - 1], bits = k > 0 && q->n_dims == 2 ? q->dims[0] * 32 / k : 0;
    const struct ckpt_tensor *s = part_of(c, name, "scales");
    bool awq = q->n_dims == 2 && q->dims[0] == k;
    f->scheme = awq ? QUANT_AWQ : QUANT_GPTQ;
    f->bits = (uint8_t)(!awq && bits >= 1 && bits <= 8 ? bits : 4);
    f->group_n = 1;
    f->group_k = s && s->n_dims == 2 && s->dims[0] > 0 && k % s->dims[0] == 0 && k / s->dims[0] <= 1 << 20
                     ? (uint32_t)(k / s->dims[0])
                     : 128;
}

/* True if a tensor of this weight is there, whatever its form. */
static bool by_tensors(struct spec_weight *w, const struct ckpt *c, const char *name)
{
    struct quant_form *f = &w->form;
    const struct ckpt_tensor *t = ckpt_find(c, name);
    if (t && (dtype_is_float(t->dtype) ? t->dtype != D0_F8_E4M3 && t->dtype != D0_F8_E5M2
                                       : t->dtype != D0_U8 && t->dtype != D0_I8)) {
        w->tensor = t;
        return true;
    }
    if (t) {
        w->tensor = t;
        f->group_n = 1;
        f->bits = 4;
        if (t->dtype == D0_F8_E4M3 || t->dtype == D0_F8_E5M2) {
            decide_fp8(w, c, name);
        } else if (part_of(c, name, "weight.absmax")) {
            f->scheme = QUANT_BNB_NF4;
        } else if (part_of(c, name, "scale")) {
            f->scheme = QUANT_V4_FP4;
            f->group_k = 32;
        } else if (part_of(c, name, "weight_scale_2") || t->dtype == D0_U8) {
            f->scheme = part_of(c, name, "weight_scale") ? QUANT_NVFP4 : QUANT_NONE;
            f->group_k = 16;
            f->input_scale = part_of(c, name, "input_scale") != NULL;
        } else {
            f->scheme = part_of(c, name, "weight_scale") ? QUANT_INT8 : QUANT_NONE;
            f->bits = 8;
        }
        return true;
    }
    if ((t = part_of(c, name, "weight_packed")) != NULL)
        decide_packed(w, c, name, t);
    else if ((t = part_of(c, name, "qweight")) != NULL)
        decide_words(w, c, name, t);
    else if (w->n_dims > 2 && (t = part_of(c, name, "_blocks")) != NULL)
        *f = (struct quant_form){.scheme = QUANT_MXFP4_BLOCKS, .bits = 4, .group_n = 1, .group_k = 32};
    w->tensor = t;
    return t != NULL;
}

/* ---- config.json ---- */

static const struct quant_form *by_config(const struct quant_config *q, const struct spec_weight *w,
                                          const char *module, bool *ignored)
{
    *ignored = false;
    if (!w->quantisable)
        return NULL;
    for (size_t i = 0; i < q->n_ignore && !*ignored; i++)
        *ignored = quant_matches(q->ignore[i], module);
    if (*ignored)
        return NULL;
    for (size_t i = 0; i < q->n_rules; i++) {
        const struct quant_rule *r = &q->rules[i];
        bool hit = r->n_targets == 0;
        for (size_t k = 0; k < r->n_targets && !hit; k++)
            hit = strcmp(r->targets[k], "Linear") == 0 || quant_matches(r->targets[k], module);
        /* blocks of gpt-oss hold experts only */
        if (hit && !(r->form.scheme == QUANT_MXFP4_BLOCKS && w->n_dims < 3))
            return &r->form;
    }
    return NULL;
}

/* One name for what is the same to a reader: a scale may be a number or one for each row. */
static uint32_t kin(uint32_t scheme)
{
    if (scheme == QUANT_FP8_CHANNEL)
        return QUANT_FP8_TENSOR;
    return scheme == QUANT_FP8_BLOCK_CT || scheme == QUANT_V4_FP8 ? QUANT_FP8_BLOCK : scheme;
}

/* "x.3.y" of "x.%d.y" for expert 0; the name itself otherwise. */
static bool first_name(const struct spec_weight *w, char *buf, size_t bytes)
{
    const char *at = w->count > 1 ? strstr(w->name, "%d") : NULL;
    int n = at ? snprintf(buf, bytes, "%.*s0%s", (int)(at - w->name), w->name, at + 2)
               : snprintf(buf, bytes, "%s", w->name);
    return n >= 0 && (size_t)n < bytes;
}

static void judge(const struct spec_weight *w, const struct quant_form *said, bool ignored,
                  const struct quant_config *q, uint32_t hint, struct quant_tally *t)
{
    uint32_t found = w->form.scheme;
    if (found == QUANT_NONE ? said == NULL : hint == found)
        return;
    if (found && ignored) {
        tally_add(&t->ignored, w->name);
    } else if (found && !q->present) {
        tally_add(&t->undeclared, w->name);
    } else if (q->n_rules && kin(said ? said->scheme : QUANT_NONE) != kin(found)) {
        if (t->differs.n == 0) {
            t->said = said ? said->scheme : QUANT_NONE;
            t->found = found;
        }
        tally_add(&t->differs, w->name);
    }
}

void quant_decide(struct spec_weight *w, const struct ckpt *c, const struct quant_config *q, uint32_t hint,
                  uint32_t model_dtype, struct quant_tally *t)
{
    char name[NAME_BYTES], module[NAME_BYTES];
    bool ignored = false;
    w->form = (struct quant_form){0};
    w->tensor = NULL;
    w->dtype = model_dtype;
    if (!first_name(w, name, sizeof name))
        return;
    snprintf(module, sizeof module, "%s", name);
    if (str_ends(module, ".weight"))
        module[strlen(module) - strlen(".weight")] = 0;
    const struct quant_form *said = w->n_dims >= 2 ? by_config(q, w, module, &ignored) : NULL;
    bool there = w->n_dims >= 2 ? by_tensors(w, c, name) : (w->tensor = ckpt_find(c, name)) != NULL;
    if (there) {
        if (w->tensor->dtype)
            w->dtype = w->tensor->dtype;
        /* a weight that has lost its scale: config.json tells what is missing */
        bool bare = w->form.scheme == QUANT_FP8_TENSOR && part_of(c, name, "weight_scale") == NULL;
        if (bare && said && quant_code_dtype(said->scheme) == D0_F8_E4M3)
            w->form = *said;
        bool blocks = w->form.scheme == QUANT_FP8_BLOCK || w->form.scheme == QUANT_FP8_BLOCK_CT;
        if (blocks && said && kin(said->scheme) == QUANT_FP8_BLOCK && said->group_n && said->group_k) {
            w->form.group_n =
                said->group_n; /* how many scales there are does not tell how large a block is */
            w->form.group_k = said->group_k;
        }
        if (w->form.scheme == QUANT_GPTQ && said && said->scheme == QUANT_GPTQ) {
            w->form.ordered = said->ordered; /* tensors show neither */
            w->form.plain_zeros = said->plain_zeros;
        }
        if (said && w->form.scheme)
            w->form.x_format = said->x_format;
        if (w->quantisable)
            judge(w, said, ignored, q, hint, t);
    } else if (said) {
        size_t n;
        w->form = *said;
        if (hint) {
            w->form.scheme = (uint8_t)hint;
            w->form.group_k = hint == QUANT_V4_FP4 ? 32 : w->form.group_k;
        }
        const struct quant_part *parts = quant_parts(w->form.scheme, &n);
        if (parts)
            w->dtype = parts[0].dtypes[0];
    }
}

void quant_report(const struct quant_tally *t, const struct quant_config *q, struct findings *f)
{
    char text[700], method[60];
    ckpt_show(q->method ? q->method : "", method, sizeof method);
    if (t->differs.n)
        finding_add(f, FINDING_Q001, "quantization_config", "it says %s (%s), the tensors are %s: %s",
                    spec_scheme_name(t->said), method, spec_scheme_name(t->found),
                    tally_format(&t->differs, "weight", text, sizeof text));
    if (t->undeclared.n)
        finding_add(f, FINDING_Q001, "config.json",
                    "it has no quantization_config, but these are quantised: %s",
                    tally_format(&t->undeclared, "weight", text, sizeof text));
    if (t->ignored.n)
        finding_add(f, FINDING_Q003, "quantization_config",
                    "its list of what is not quantised names these, but they are: %s",
                    tally_format(&t->ignored, "weight", text, sizeof text));
}
