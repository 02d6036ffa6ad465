/* SPDX-License-Identifier: Apache-2.0
 *
 * Model description: config.json + tensors present + one architecture file (arch/NAME.lua) in, inventory and
 * graph out. Owns the choice of the architecture file, the run of it in the sandbox, and the translation of
 * its trace. Takes no word of an architecture file for granted: every shape, name and number of the trace is
 * checked here.
 */
#ifndef SPEC_SPEC_H
#define SPEC_SPEC_H

#include "base/finding.h"
#include "base/log.h"
#include "ckpt/ckpt.h"
#include "graph/graph.h"

enum arch_origin { ARCH_SHIPPED, ARCH_USER, ARCH_DRAFTED };
const char *arch_origin_name(enum arch_origin o); /* "shipped" "user" "drafted" */

struct spec_options {
    const char *arch_path; /* --arch FILE; NULL: choose among the shipped ones by config.architectures */
    uint32_t kv_dtype;     /* type of KV pages; 0: F32 for F32 weights, else BF16 */
    uint32_t page_tokens;  /* 0: 16 */
    struct script_limits_override {
        uint64_t max_bytes, max_instructions, max_wall_ns;
    } limits; /* 0s: defaults */
};

struct spec_weight {
    const char *name;
    uint32_t value; /* id in graph */
    int32_t layer;
    uint32_t n_dims;
    int64_t dims[D0_MAX_DIMS];
    const struct ckpt_tensor *tensor; /* NULL if the checkpoint lacks it */
};

/* One piece of per-sequence state that grows with the context, per layer. */
struct spec_kv {
    int32_t layer;
    uint32_t k_value, v_value; /* STATE values [pages, kv_heads, page_tokens, dim] */
    uint32_t kv_heads, dim, v_dim;
};

struct spec {
    struct arena arena;
    const char *architecture; /* "LlamaForCausalLM" */
    const char *model_type;
    const char *arch_name; /* "llama.lua" or the path given */
    enum arch_origin origin;
    char arch_sha256[65];                                /* of the architecture file and the prelude */
    int64_t hidden, n_layers, vocab_size, max_positions; /* max_positions: context limit in tokens */
    int64_t n_heads, n_kv_heads, head_dim, intermediate;
    bool tied_embeddings;
    int32_t bos_id;      /* -1 none */
    int32_t eos_ids[16]; /* union of config and generation_config */
    uint32_t n_eos;
    uint32_t kv_dtype, page_tokens;
    struct graph *graph; /* pages of the STATE values: first dim 1 until spec_set_pages */
    struct spec_weight *weights;
    size_t n_weights; /* distinct tensors */
    struct spec_kv *kv;
    size_t n_kv;
    uint64_t kv_bytes_per_token; /* all layers, kv_dtype */
    uint64_t parameters;         /* elements of all weights */
    const char **unread_keys;    /* keys of config.json that nobody read and no ignore list names */
    size_t n_unread;
};

/* Findings for what is wrong with config or architecture file (C001..C007): then *out is NULL and the return
 * is ERR_OK. Errors only for what keeps us from working (ERR_NOMEM, an --arch file that cannot be read).
 * Missing tensors are left NULL for preflight to judge; so are unread_keys (C005 is preflight's to add) and
 * tensors whose type is none of F32, BF16, F16: their graph value then has the type that config.json states.
 */
int spec_open(struct spec **out, const struct ckpt *c, const struct spec_options *o, struct findings *f,
              struct d0 *d0, struct err *e);
void spec_close(struct spec *s);

/* Sets the number of KV pages: first dimension of every STATE value. */
void spec_set_pages(struct graph *g, const struct spec *s, int64_t pages);

/* Shipped architecture files: name and text; for listings and tests. */
struct arch_file {
    const char *name;
    const char *text;
    size_t n;
};
size_t spec_arch_files(const struct arch_file **out);

#endif
