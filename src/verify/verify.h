/* SPDX-License-Identifier: Apache-2.0
 *
 * Verification: drives the engine directly for bits and probes, and judges numbers against a reference.
 * Agreement with ourselves is called self-consistent, never passed.
 */
#ifndef VERIFY_VERIFY_H
#define VERIFY_VERIFY_H

#include "base/finding.h"
#include "base/log.h"
#include "ckpt/ckpt.h"
#include "dev/dev.h"
#include "engine/engine.h"
#include "prompt/prompt.h"
#include "spec/spec.h"
#include "tensor/tensor.h"

/* ---- operators x device ---- */
struct verify_op_row {
    const char *op;  /* "linear" */
    char types[160]; /* "x F32, w BF16" */
    uint32_t count;  /* nodes of the model */
    bool supported;
    bool beyond_build; /* this build has no kernel for it, or for how one of its weights is stored */
    char reason[128];
};
/* One row per (operator, weight type) of the graph; findings P001 for the unsupported ones, except for those
 * that a P005 among the findings has told already. Returns rows in the arena. */
int verify_matrix(struct dev *d, const struct graph *g, struct arena *arena, struct verify_op_row **rows,
                  size_t *n, struct findings *f, struct err *e);

/* Conformance of a device's operators against the reference device on generated inputs, at given or default
 * shapes. */
/* One per operator and type. passed: shape says how many shapes and runs; else the first wrong one, with its
 * reason in why, and seed makes its contents again. supported false: the device refused the shape (passed is
 * false too). Bench numbers are 0 when not asked for. */
struct verify_op_result {
    char name[64];
    char shape[192];
    bool supported, passed;
    double max_ulp, limit_ulp;
    double gbps, gflops;
    double ref_ratio;
    char why[208];
    uint64_t seed;
};
struct verify_ops_options {
    const char *only;
    uint64_t seed;
    bool bench;
    const struct graph *shapes_of; /* a model's shapes, or NULL for the default set */
    unsigned every;                /* of the default set only every n-th shape (0: all), to be quick */
};
int verify_ops(struct dev *d, const struct verify_ops_options *o, struct arena *arena,
               struct verify_op_result **out, size_t *n, struct findings *f, struct err *e);

/* ---- operators on what a trace recorded ---- */
enum from_state { FROM_RIGHT, FROM_WRONG, FROM_NOT_JUDGED };
struct verify_from_node { /* one operator of the graph */
    uint32_t node;
    int32_t layer;    /* -1: none */
    const char *name; /* of what it gives; the graph's */
    char op[64];      /* "linear BF16" */
    enum from_state state;
    uint64_t rows, settled; /* settled: rows whose choice a rounding decides, and that differed */
    double max_ulp, limit_ulp, largest_input;
    uint32_t recorded, computed; /* inputs from the trace, and those that the reference device computed */
    char why[208];
};
struct verify_from_op { /* all nodes of one operator and type */
    const struct verify_from_node *worst;
    uint32_t nodes, wrong, not_judged;
    uint64_t settled;
};
struct verify_from_result {         /* in the arena */
    struct verify_from_node *nodes; /* in the order of the graph */
    size_t n_nodes;
    struct verify_from_op *ops;
    size_t n_ops;
    size_t judged, wrong, not_judged;
    size_t recorded, computed; /* values in the trace; inputs that it lacked and the reference computed */
    size_t tokens, tokens_recorded;
    const char *producer;
    bool refused; /* a trace of another model: N006 says why */
};
struct verify_from_options {
    const char *trace; /* docs/references.md; `day0 record --probes all` makes one */
    const char *only;  /* operators whose name contains it; NULL: all */
    const struct spec *spec;
    struct ckpt *ckpt;
    uint64_t memory; /* bytes that may be taken; 0: what the machine has */
    size_t tokens;   /* the first of the trace; 0: all */
};
/* Each operator on the recorded rows and its real weights, against the reference device, one after the other:
 * one operator's weights in memory. What the trace lacks is computed by the reference device from what it
 * has. N003 with operator and layer, N006. Errors: of a trace that cannot be read, ERR_UNSUPPORTED, ERR_IO,
 * ERR_MISSING. */
int verify_ops_from(struct dev *d, const struct verify_from_options *o, struct arena *arena,
                    struct verify_from_result *out, struct findings *f, struct err *e);

/* ---- references ---- */
struct reference { /* safetensors: "token_ids" I32/I64 [T], "logits" F32 [T, V], probes by name; metadata
                      producer, model, tokens ... */
    struct arena arena;
    const char *producer;  /* "transformers 4.56.2" ... */
    const char *precision; /* what the producer computed in: "float32" (also when it does not say),
                              "bfloat16", "float16" */
    const char *path;
    char sha256[65];
    int32_t *ids;
    size_t n_ids;
    const float *logits; /* [n_ids, vocab] or NULL */
    size_t vocab;
    bool greedy; /* ids[1..] are the reference's own greedy continuation of ids[0..n_prompt) */
    size_t n_prompt;
    struct reference_probe {
        const char *name;
        const float *data;
        size_t rows, width;
    } * probes;
    size_t n_probes;
    /* of a conversation with pictures; NULL and 0 where the file has none */
    const char *messages, *rendered; /* JSON, a picture is {"type": "image"}; text before placeholders */
    const float *pixels;             /* [n_patches, patch_width], as an image processor gives them */
    size_t n_patches, patch_width;
    const int32_t *grids; /* [n_grids, 3] time, height, width in patches */
    size_t n_grids;
    struct reference_picture { /* the files */
        const void *bytes;
        size_t n;
    } * pictures;
    size_t n_pictures;
};
int reference_open(struct reference **out, const char *path, struct err *e);
void reference_close(struct reference *r);

struct verify_reference_result {
    bool checked;
    size_t positions;
    double max_abs_logit; /* largest |difference| over all positions */
    double limit;         /* what max_abs_logit was held against */
    size_t worst_position;
    double relative_l2, max_kl;
    unsigned top1_agree;                /* positions whose argmax agrees */
    size_t greedy_tokens, greedy_equal; /* tokens wanted and how many equal the reference's from the start */
    size_t greedy_ties; /* only in 16-bit precision: tokens whose logits differ by less than the limit, taken
                           from the reference */
    size_t probes_checked;
    char first_bad_probe[128];
    double *abs_by_position; /* [positions], in the arena given */
};
/* max_abs_limit: largest |difference| of logits; 0: 1e-4 for float32 weights, KV pages and reference; 1e-4 *
 * largest |logit| where only the weights have 16 bits; 2^-6 * largest |logit| where KV pages or the reference
 * have (docs/numerics.md). Adds N001, N002, N005, N006. A reference of another model or length is a finding
 * and leaves checked false; without logits only ids and probes are compared. */
int verify_reference(struct dev *d, const struct spec *s, struct ckpt *c, const struct reference *r,
                     double max_abs_limit, struct arena *arena, struct verify_reference_result *out,
                     struct findings *f, struct d0 *d0, struct err *e);

/* ---- minimal validation: streams embedding, one layer of each kind and the head through device `d` and the
 * reference device on fixed inputs. ---- */
struct verify_piece {
    char name[64];
    uint64_t weight_bytes;
    bool ran;
    double relative_l2, max_abs;
    bool all_zero;
    double seconds;
    char why[160];
};
int verify_minimal(struct dev *d, const struct spec *s, struct ckpt *c, uint64_t memory_budget,
                   struct arena *arena, struct verify_piece **pieces, size_t *n, struct findings *f,
                   struct d0 *d0, struct err *e);

/* ---- fusions: each on layers of the model against the same layers as described, on the same device. N009
 * for one that does not keep its promise; it is then not accepted. ---- */
struct verify_fusion {
    uint32_t nodes;            /* of the whole model that it would change */
    uint32_t pieces;           /* that it was measured on; 0: not measured, and not accepted */
    double measured;           /* largest relative L2 distance of a row */
    bool broken, accepted, on; /* on: accepted and wanted */
    char reason[200];          /* why it is not on; "" when it is */
};
/* wanted: mask of enum fusion. Layers that do not fit the budget (0: none) are not tried. Errors: ERR_DEVICE;
 * what else keeps a layer from running is a reason. */
int verify_fusions(struct dev *d, const struct spec *s, struct ckpt *c, uint64_t memory_budget,
                   uint32_t wanted, struct verify_fusion out[FUSION_N], struct findings *f, struct d0 *d0,
                   struct err *e);

/* ---- reproducibility: the same request alone, in a batch, chunked: equal bits. N004 on difference. ---- */
struct verify_bits_result {
    bool ran;
    unsigned cases, equal;
    char first_difference[160];
};
/* fusions: mask of those that are on. */
int verify_bits(struct dev *d, const struct spec *s, struct ckpt *c, const int32_t *ids, size_t n_ids,
                uint32_t fusions, struct verify_bits_result *out, struct findings *f, struct d0 *d0,
                struct err *e);

/* ---- text output: reference-free signs of noise (facts: thresholds). logprobs may be NULL. ---- */
struct verify_text_result {
    bool reasonable;
    double distinct_3gram, share_low_logprob, mean_logprob;
    char why[160];
};
void verify_text(const int32_t *ids, const float *logprobs, size_t n, const char *text,
                 struct verify_text_result *out);

/* ---- channels: a conversation on its way to an answer, step by step, computed here. Each step can be done
 * otherwise on purpose, as a faulty server or directory would do it. ---- */
enum channel_step {
#define STEP(ID, name) CHANNEL_AT_##ID,
#include "verify/channel_steps.def"
#undef STEP
    CHANNEL_STEPS
};
const char *channel_step_name(enum channel_step s); /* "rendered text" "ids" "pixels" ... */

enum channel_change {
#define CHANGE(ID, ...) CHANNEL_##ID,
#include "verify/channel_changes.def"
#undef CHANGE
    CHANNEL_CHANGES
};
#define CHANNEL_BIT(c) (1u << (c))
struct channel_change_info {
    const char *name;
    bool image; /* of the image channel; else of text */
    enum channel_step step;
    enum finding_id finding;
    const char *as_if; /* "mean and std of the image processor were swapped" */
};
const struct channel_change_info *channel_change_info(enum channel_change c);

/* The caller's, as long as a call takes. spec was opened with images where it has a tower. */
struct channel_model {
    struct dev *dev;
    struct ckpt *ckpt;
    const struct spec *spec;
    const struct prompt_front *front;
    struct d0 *d0;      /* may be NULL */
    prompt_fetch fetch; /* for parts that are no data: URL; NULL: none */
    void *fetch_ctx;
    const enum image_backend *backend; /* how resizing rounds; NULL: as the directory's processor does */
};

struct channel_case {
    uint32_t changes;
    enum channel_step at; /* where channel_make failed */
    const char *rendered;
    int32_t *ids; /* [n] */
    size_t n;
    struct prompt_pictures pictures;
    struct prompt_pixels *pixels;       /* [pictures.n] */
    struct prompt_layout layout;        /* of n tokens */
    size_t n_rows;                      /* of features, all pictures together */
    float *features[SPEC_MAX_FEATURES]; /* [n_rows, hidden] after channel_features */
};

/* Messages to ids, placeholders, places and pixels, with the changes of the mask. Everything in the arena.
 * ERR_MISSING: a change has nothing to change here (no system turn, one picture only, ...); errors of prompt
 * and image otherwise. */
int channel_make(const struct channel_model *m, const struct json *messages, uint32_t changes,
                 struct arena *arena, struct channel_case *out, struct err *e);
/* Is this error what directory and conversation make of each other (sizes, counts, a template that refuses),
 * not what keeps us from computing? */
bool channel_refused(int rc);
/* Runs the tower on each picture alone. Nothing to do without pictures. ERR_UNSUPPORTED: no graph of a tower.
 */
int channel_features(const struct channel_model *m, struct channel_case *c, struct arena *arena,
                     struct err *e);
/* After channel_features: logits [n_rows, vocab] behind the tokens from..from + n_rows - 1 of the case's ids
 * followed by `answer` (n_answer ids, which count on as text). In the arena. ERR_INVALID: no such tokens;
 * ERR_MISSING: the case asks for other sections of the rotation, and there are none to change. */
int channel_logits(const struct channel_model *m, const struct channel_case *c, const int32_t *answer,
                   size_t n_answer, size_t from, size_t n_rows, struct arena *arena, float **logits,
                   struct err *e);

/* What a step was held against, and how that came out. */
struct channel_held {
    enum channel_step step;
    bool held, equal;
    double figure, limit; /* NAN where there is no number */
    const char *words;
};
/* The directory against a reference with pictures (docs/references.md), step by step; steps [CHANNEL_STEPS],
 * words in the arena. The first step that differs becomes a finding with the change, if one explains it; what
 * comes behind it is held all the same where it can be, and makes none. N006: the reference is of another
 * model. */
int channel_reference(const struct channel_model *m, const struct reference *r, struct arena *arena,
                      struct channel_held steps[CHANNEL_STEPS], struct findings *f, struct err *e);

#endif
