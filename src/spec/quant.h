/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to src/spec: storage schemes of weights. What config.json says (quant_config), what the tensors
 * say (quant_decide), and which tensors a weight becomes (quant_parts). Nothing here reads a weight.
 */
#ifndef SPEC_QUANT_H
#define SPEC_QUANT_H

#include "spec/spec.h"

enum quant_shape {
    SHAPE_NK,
    SHAPE_NK2,
    SHAPE_NKP,
    SHAPE_KPN,
    SHAPE_KNP,
    SHAPE_NG,
    SHAPE_GN,
    SHAPE_GNP,
    SHAPE_NPG,
    SHAPE_BLOCK,
    SHAPE_ONE,
    SHAPE_N1,
    SHAPE_K1,
    SHAPE_TWO,
    SHAPE_EB,
    SHAPE_ES,
    SHAPE_ANY
};
enum quant_need { NEED_REQUIRED, NEED_IF_ASYM, NEED_IF_ORDER, NEED_IF_INPUT, NEED_IF_SEEN };

struct quant_part {
    uint32_t scheme;
    const char *suffix;
    enum spec_role role;
    enum quant_shape shape;
    enum quant_need need;
    uint32_t dtypes[3]; /* 0: end of the list */
};
/* Parts of a scheme, in order; *n of them. */
const struct quant_part *quant_parts(uint32_t scheme, size_t *n);
uint32_t quant_code_dtype(uint32_t scheme);
uint32_t quant_scheme_find(const char *name); /* 0 if unknown */
/* Name of the tensor for a part of weight `name` into buf; false: too long. */
bool quant_part_name(const char *name, const char *suffix, char *buf, size_t bytes);
/* The name of the weight that a tensor is a part of ("x.weight" of "x.weight_packed"); false: no part. */
bool quant_logical_name(const char *tensor, char *buf, size_t bytes);
/* Dimensions of one part of one weight; false: they do not exist (ANY, or a shape that does not divide). */
bool quant_part_dims(const struct spec_weight *w, enum quant_shape shape, uint32_t *n_dims, int64_t *dims);

/* How the graph holds the codes of w: the type of the codes and d0_format, by the tensors present. false: no
 * format of the device interface holds them (nothing computes with them). */
bool quant_format(const struct spec_weight *w, const struct ckpt *c, uint32_t *dtype, struct d0_format *out);

/* ---- what config.json says ---- */
struct quant_rule {
    struct quant_form form;
    const char **targets; /* "Linear", module names, "re:..."; NULL: all */
    size_t n_targets;
};
#define QUANT_MAX_RULES 16
struct quant_config {
    bool present;
    const char *method; /* for messages */
    struct quant_rule rules[QUANT_MAX_RULES];
    size_t n_rules;
    const char **ignore;
    size_t n_ignore;
};
/* Reads quantization_config at the top, in a nested configuration, or hf_quant_config.json. What is not
 * understood becomes Q004. ERR_NOMEM only. */
int quant_config_read(struct quant_config *q, const struct ckpt *c, struct arena *a, struct findings *f,
                      struct err *e);
/* Does an entry of an ignore or target list mean this module? Bounded work for every pattern. */
bool quant_matches(const char *pattern, const char *module);
bool quant_regex(const char *pattern, const char *text); /* anchored at the start */

/* ---- the decision ---- */
struct quant_tally { /* disagreements, for findings */
    struct tally differs, ignored, undeclared;
    uint32_t said, found; /* schemes of the first that differs */
};
/* Fills w->form, w->tensor and w->dtype. hint: scheme that the architecture file names, or 0. model_dtype:
 * of what is stored plainly. */
void quant_decide(struct spec_weight *w, const struct ckpt *c, const struct quant_config *q, uint32_t hint,
                  uint32_t model_dtype, struct quant_tally *t);
void quant_report(const struct quant_tally *t, const struct quant_config *q, struct findings *f);

#endif
