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

#define D0_MAX_CONV_DIMS 5 /* of a weight; in the graph at most D0_MAX_DIMS */

enum arch_origin { ARCH_SHIPPED, ARCH_USER, ARCH_DRAFTED };
const char *arch_origin_name(enum arch_origin o); /* "shipped" "user" "drafted" */

struct arch_file;

/* What goes into products: as it is, in float32; rounded to BF16 everywhere; or as the release's
 * configuration asks for each quantised weight (W8A8, W4A4, ...), the others as they are. */
enum spec_activations { ACTIVATIONS_EXACT, ACTIVATIONS_BF16, ACTIVATIONS_RELEASED };
const char *spec_activations_name(enum spec_activations a); /* "exact" "bf16" "released" */
bool spec_activations_parse(const char *name, enum spec_activations *out);

/* Also findings for what the tensors say of their storage against config.json: Q001, Q003, Q004. */
struct spec_options {
    const char *arch_path; /* --arch FILE; NULL: choose among the shipped ones by config.architectures */
    const struct arch_file *arch; /* a file in memory, taken like that of --arch; before arch_path */
    uint32_t kv_dtype;            /* type of KV pages; 0: F32 for F32 weights, else BF16 */
    uint32_t page_tokens;         /* 0: 16 */
    bool images; /* the text takes up what its tower gives: inputs of the roles FEATURES and FEATURE_OF, and
                  * PLACES where it rotates by them */
    enum spec_activations activations; /* other than exact: calibrated scales are read from the checkpoint */
    struct script_limits_override {
        uint64_t max_bytes, max_instructions, max_wall_ns;
    } limits; /* 0s: defaults */
};

enum spec_group { GROUP_TEXT, GROUP_VISION, GROUP_MTP };
const char *spec_group_name(enum spec_group g); /* "text" "vision" "mtp" */

/* Storage schemes: names, shapes and types of their tensors stand in spec/quant_schemes.def. */
enum quant_scheme {
    QUANT_NONE = 0,
#define SCHEME(id, NAME, ...) QUANT_##NAME = id,
#define PART(...)
#include "spec/quant_schemes.def"
#undef SCHEME
#undef PART
};

/* How the checkpoint stores a weight. */
struct quant_form {
    uint8_t scheme; /* id in spec/quant_schemes.def; 0: plainly */
    uint8_t bits;
    bool asymmetric, ordered, input_scale;
    uint8_t x_format;          /* rounding of activations that the configuration asks for (enum
                                * d0_x_format); QUANT_X_UNKNOWN: one that nothing computes */
    bool plain_zeros;          /* GPTQ: zero points as they are (version 2), not minus one */
    uint32_t group_n, group_k; /* block of rows and columns with one scale */
};
#define QUANT_X_UNKNOWN 255
const char *spec_scheme_name(uint32_t scheme); /* "none" "fp8_block" ... */
/* Do the kernels of this build read this weight as it is stored? Plainly, or in a format of the device
 * interface. */
bool spec_value_computed(const struct graph *g, uint32_t value);
bool spec_dtype_computed(uint32_t dtype); /* of weights that are stored plainly */

/* One weight as the model means it. Experts of one layer are one weight whose name holds %d. */
struct spec_weight {
    const char *name;
    uint32_t value; /* id in graph, [count, dims...] if count > 1; D0_NO_VALUE outside of the text */
    int32_t layer;
    uint32_t count; /* 1, or the number of experts: %d is 0..count-1 */
    uint32_t n_dims;
    int64_t dims[D0_MAX_CONV_DIMS]; /* of one */
    const struct ckpt_tensor
        *tensor; /* of its main part, of the first expert; NULL if the checkpoint lacks it */
    enum partition part;
    uint32_t units;
    bool quantisable, transposed;
    bool turned;       /* a matrix that is stored inputs before outputs: its value in the graph is [dims[1],
                          dims[0]] */
    uint32_t n_pieces; /* rows of several matrices behind each other, each cut by itself (q, k, v); 0: one */
    int64_t pieces[8];
    enum spec_group group;
    uint32_t dtype;        /* of the main part: found, else expected */
    uint32_t family_dtype; /* type that the family keeps where it is not that of the model; 0: no such */
    struct quant_form form;
};

enum spec_role {
    ROLE_WEIGHT,
    ROLE_SCALE,
    ROLE_GLOBAL_SCALE,
    ROLE_INPUT_SCALE,
    ROLE_ZERO_POINT,
    ROLE_SHAPE,
    ROLE_ORDER,
    ROLE_TABLE
};
const char *spec_role_name(enum spec_role r);

/* One tensor as the checkpoint stores it. */
struct spec_tensor {
    const char *name; /* valid during the callback */
    const struct spec_weight *weight;
    uint32_t index; /* which expert */
    enum spec_role role;
    uint32_t dtype; /* expected: what is there if that is one of the types of this part */
    uint32_t n_dims;
    int64_t dims[TENSOR_MAX_DIMS];
    bool any_shape; /* the scheme does not tell; dims are those found */
    uint64_t bytes;
    const struct ckpt_tensor *tensor; /* NULL if the checkpoint lacks it */
};

/* One piece of per-sequence state that grows with the context, per layer. */
struct spec_kv {
    int32_t layer;
    uint32_t k_value, v_value; /* STATE values [pages, kv_heads, page_tokens, dim]; v: D0_NO_VALUE for a
                                * latent, an index or a pool */
    uint32_t kv_heads, dim, v_dim;
    uint32_t ratio; /* tokens of one row: 1, more in a pool */
};

struct spec_count {
    const char *group, *op;
    uint64_t count;
};

/* Architecture files: name and text. */
struct arch_file {
    const char *name;
    const char *text;
    size_t n;
};

enum spec_interpolation {
    SPEC_NO_TABLE,
    SPEC_BILINEAR,
    SPEC_CENTRES,
    SPEC_BICUBIC,
    SPEC_EXACT,
    SPEC_BUCKETS
};

/* What the host must know of a tower to make its inputs from the grids of pictures. */
#define SPEC_MAX_FEATURES 8
struct spec_tower {
    uint32_t channels, frames, patch;     /* of a patch: colours, pictures in time, side in pixels */
    uint32_t merge;                       /* merge x merge patches become one row */
    uint32_t window;                      /* side of a window in merged rows; 0: there are none */
    uint32_t table_side;                  /* of a learned table of places */
    enum spec_interpolation table;        /* how patches take their share of it */
    bool raster;                          /* patches come row by row, not in blocks of merge x merge */
    bool class_row, drop_first, lines;    /* as struct image_tower has them */
    int32_t image_token;                  /* stands for one merged row; -1: unknown */
    uint32_t n_features;                  /* what enters the text: the rows, then those added to layers */
    uint32_t features[SPEC_MAX_FEATURES]; /* values of spec.vision */
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
    const char *tokenizer_pattern; /* regular expression of a tiktoken.model; NULL: not stated */
    int64_t tokenizer_piece, tokenizer_run, tokenizer_reserved; /* see tiktoken() in arch-files.md; 0: none */
    int32_t bos_id;                                             /* -1 none */
    int32_t eos_ids[16];                                        /* union of config and generation_config */
    uint32_t n_eos;
    enum spec_activations activations;
    uint32_t kv_dtype, page_tokens;
    struct graph *graph;     /* pages of the STATE values: first dim 1 until spec_set_pages */
    struct graph *vision;    /* of the tower, whose weights have no `value`; NULL: none, or only described */
    struct spec_tower tower; /* where there is that graph */
    struct spec_weight *weights;
    size_t n_weights; /* distinct tensors */
    struct spec_kv *kv;
    size_t n_kv;
    uint64_t kv_bytes_per_token; /* all layers, kv_dtype */
    uint64_t parameters;         /* elements of all weights but drafting layers */
    uint64_t active_parameters;  /* of the text: those that one token uses */
    uint64_t state_bytes;        /* for one request, besides KV pages */
    uint64_t tensor_bytes;       /* of all tensors as they are or would be stored */
    uint64_t n_physical;         /* how many they are */
    uint64_t n_experts;          /* most in one layer */
    struct spec_count *outside;  /* operators of parts outside of the text graph */
    size_t n_outside;
    const char **unread_keys; /* keys of config.json that nobody read and no ignore list names */
    size_t n_unread;
    struct arch_file arch_file;      /* its text is kept where has_chat */
    bool has_chat;                   /* it renders messages */
    const struct json *output;       /* its rules for what the model writes; NULL: none */
    const struct json *placeholders; /* likewise for what stands for a picture */
};

/* Findings for what is wrong with config or architecture file (C001..C007): then *out is NULL and the return
 * is ERR_OK. Errors only for what keeps us from working (ERR_NOMEM, an --arch file that cannot be read).
 * Missing tensors are left NULL for preflight to judge; so are unread_keys (C005 is preflight's to add) and
 * tensors whose type is none of F32, BF16, F16: their graph value then has the type that config.json states.
 */
int spec_open(struct spec **out, struct ckpt *c, const struct spec_options *o, struct findings *f,
              struct d0 *d0, struct err *e);
void spec_close(struct spec *s);

/* Sets the rounding of every product of the graph. spec_open() does so where it is asked to, and of these
 * errors makes finding P006 (the graph then rounds nothing). ERR_UNSUPPORTED, ERR_MISSING, ERR_MISMATCH: the
 * weight whose wish cannot be met is named, and nothing is rounded. */
int spec_set_activations(struct spec *s, struct ckpt *c, enum spec_activations a, struct err *e);
/* The roundings that the release asks for, and of how many weights of the text (experts one by one); those
 * that ask for none are left out. Returns how many kinds; the last may be SPEC_NOT_COMPUTED. */
#define SPEC_MAX_ASKED    16
#define SPEC_NOT_COMPUTED "not computed here"
struct spec_asked {
    const char *name;
    uint64_t weights;
};
bool spec_asks_in_vain(const struct spec_weight *w); /* SPEC_NOT_COMPUTED */
size_t spec_activations_asked(const struct spec *s, struct spec_asked out[SPEC_MAX_ASKED]);
/* Bits of the coarsest rounding of activations; 0: nothing is rounded. */
uint32_t spec_activation_bits(const struct graph *g);
/* What two computations of such a variant may differ by: relative L2 of a row, and of a logit over the
 * largest one (docs/numerics.md). 0 for 0 bits: the limits of exact activations hold. */
double spec_activation_limit(uint32_t bits);

/* Every tensor of the inventory, weight by weight. A callback that returns other than 0 ends the walk, and
 * its value is returned. */
typedef int (*spec_tensor_fn)(void *ctx, const struct spec_tensor *t);
int spec_physical(const struct spec *s, const struct ckpt *c, spec_tensor_fn f, void *ctx);
/* The tensors of one weight, number `weight` of the description. */
int spec_weight_tensors(const struct spec *s, size_t weight, const struct ckpt *c, spec_tensor_fn f,
                        void *ctx);
/* Every weight by its logical name: experts one by one. name is valid during the callback. */
typedef int (*spec_logical_fn)(void *ctx, const char *name, const struct spec_weight *w);
int spec_each_logical(const struct spec *s, spec_logical_fn f, void *ctx);

/* The architecture file's chat(messages, options), in a sandbox of its own. *result: a list of {text,
 * special}, as the function gave it, checked by whoever asks. ERR_FORMAT: the function failed, with its
 * message; ERR_LIMIT. */
int spec_chat(const struct spec *s, const struct json *messages, const struct json *options,
              struct arena *arena, const struct json **result, struct err *e);

/* Sets the number of KV pages: first dimension of every paged STATE value. */
void spec_set_pages(struct graph *g, const struct spec *s, int64_t pages);

/* The shipped ones, for listings and tests. */
size_t spec_arch_files(const struct arch_file **out);

#endif
