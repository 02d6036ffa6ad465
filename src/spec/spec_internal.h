/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to src/spec.
 */
#ifndef SPEC_SPEC_INTERNAL_H
#define SPEC_SPEC_INTERNAL_H

#include "spec/spec.h"

/* Generated at build from arch/: the shared files first, then the architecture files. */
#define ARCH_N_SHARED 3 /* prelude.lua, blocks.lua and chat.lua stand first */
extern const struct arch_file arch_embedded[];
extern const size_t arch_embedded_n;

struct rope_scaling {
    enum { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_FACTORS, ROPE_PROPORTIONAL } type;
    double factor, low, high, original; /* YARN: low and high are the turns, slow and fast */
    bool truncate;                      /* YARN: whole limits of the ramp */
    const float *factors;               /* FACTORS: [dim/2] */
    int64_t live;                       /* PROPORTIONAL: pairs that turn */
};
/* inv_freq[dim/2] in the float32 arithmetic of the reference. */
void rope_inv_freq(int64_t dim, double theta, const struct rope_scaling *s, float *out);

struct script;
struct script_limits;
/* The shared files and `file` in a sandbox of their own. limits may be NULL. */
int spec_script(const struct arch_file *file, const struct script_limits *limits, struct script **out,
                struct err *e);
/* Fills has_chat and output of *s from its architecture file. */
int spec_read_chat(struct spec *s, struct script *script, struct err *e);

/* Patterns of the names of all tensors (numbers are %d), and of the weights that quantised ones make up, as a
 * JSON list of strings. ERR_NOMEM. */
int spec_patterns(const struct ckpt *c, struct arena *arena, const struct json **out, struct err *e);
/* spec_physical() of one weight. */
int spec_physical_one(const struct spec_weight *w, const struct ckpt *c, spec_tensor_fn f, void *ctx);

/* Reading of trace items. */
const char *trace_text(const struct json *item, const char *key); /* "" if absent */
bool trace_int(const struct json *item, const char *key, int64_t low, int64_t high, int64_t *out);
bool trace_flag(const struct json *item, const char *key);
/* A rope item: the scaling and the table of frequencies freq[*n] in the arena: dim/2 of them, or ("times")
 * the same twice. */
int trace_rope(struct arena *a, const struct json *item, int64_t *n, const float **freq, struct err *e);

/* Translates the trace that the prelude returned. ERR_FORMAT: the trace is wrong, the message says where. */
int spec_translate(struct spec *s, const struct ckpt *c, const struct json *trace,
                   const struct spec_options *o, struct findings *f, struct err *e);

#endif
