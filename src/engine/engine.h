/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor: one ragged step in, one result out. Owns weights, KV pages, slots of recurrent state,
 * snapshots of them and the compiled graph of one rank; sees ids and tensors, never text. Request state
 * belongs to the scheduler, which decides pages, slots and positions.
 *
 * step_plan, picture_plan and step_result are flat, pointer-free, size-limited messages: a header, then
 * arrays at byte offsets within the message. They cross a socket unchanged (same machine architecture) and
 * are validated whole before use.
 *
 * An engine with a tower keeps rows of features: engine_picture() runs the tower on one picture and puts the
 * rows that it gives into a store, where later steps take them up. Which rows of the store belong to which
 * picture, and when they are free again, is the scheduler's to know.
 */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "dev/dev.h"
#include "graph/graph.h"
#include "load/load.h"

/* ---- messages ---- */
#define STEP_PLAN_MAGIC   0x34503044u /* "D0P4" */
#define STEP_RESULT_MAGIC 0x31523044u /* "D0R1" */
#define STEP_MAX_BYTES    (64u << 20)
#define STEP_MAX_TOP      20 /* alternatives returned with a token */

enum step_seq_flags {
    STEP_SAMPLE = 1,      /* sample a token from the last row of this run */
    STEP_ALL_LOGITS = 2,  /* return the logits of every row of this run (verification) */
    STEP_LAST_LOGITS = 4, /* return the logits of the last row */
};

struct step_sampling {
    float temperature; /* 0: greedy; ties go to the lower id */
    float top_p;       /* (0, 1]; 1: off */
    uint32_t top_k;    /* 0: off */
    uint32_t n_top;    /* alternatives wanted, 0..STEP_MAX_TOP; log-probabilities come whenever n_top > 0 or
                          want_logprob */
    uint64_t seed;     /* the random number of a position depends on (seed, position) only */
    uint32_t want_logprob;
    uint32_t vocab_limit; /* ids >= it are never sampled (padded vocabulary); 0: none */
};

struct step_seq {
    uint64_t request;     /* echoed in the result */
    uint32_t first_token; /* index into tokens */
    uint32_t n_tokens;    /* >= 1 */
    uint32_t position;    /* of the first token */
    uint32_t first_page;  /* index into pages: the sequence's page table from position 0 */
    uint32_t n_pages;
    uint32_t flags;
    uint32_t slot;    /* of recurrent state; 0 where the model has none */
    uint32_t restore; /* 1 + snapshot whose state is copied into the slot before this run; 0: none */
    uint32_t save;    /* 1 + snapshot that gets a copy of the state after this run; 0: none */
    uint32_t reserved;
    struct step_sampling sampling;
};

/* Of one token, in plans for an engine with a tower (engine_limits.n_feature_rows). */
struct step_place {
    int32_t place[3]; /* time, height and width for rotation, not negative; text: all three alike */
    int32_t feature;  /* row of the store that the token takes up, or -1 */
    int32_t span[2];  /* tokens that see each other both ways: first position, and the one behind the last, of
                       * the span that the token is in; alone: its own position and the next. A span lies
                       * within one run */
};

struct step_plan {
    uint32_t magic, bytes; /* bytes: of the whole message */
    uint64_t step;         /* counts up; echoed */
    uint32_t n_seqs, n_tokens, n_pages;
    uint32_t n_places;                                /* n_tokens for an engine with a tower, else 0 */
    uint32_t seqs_at, tokens_at, pages_at, places_at; /* byte offsets, multiples of 8 */
};

enum step_status {
    STEP_OK = 0,
    STEP_NOT_FINITE = 1 /* logits of this sequence hold NaN or infinity; no token */
};

struct step_seq_result {
    uint64_t request;
    int32_t token;   /* -1 when none was asked for or none could be given */
    uint32_t status; /* enum step_status */
    float logprob;   /* of token under the unmodified distribution */
    uint32_t n_top, first_top;
    uint32_t n_logit_rows;
    uint64_t first_logit; /* index of the first float in the logits array */
};

struct step_top {
    int32_t token;
    float logprob;
};

struct step_result {
    uint32_t magic, bytes;
    uint64_t step;
    int32_t error; /* 0, or the negative err code of a step that failed as a whole */
    uint32_t n_seqs, n_tops, reserved;
    uint64_t n_logits;
    uint32_t seqs_at, tops_at, logits_at, error_at; /* error_at: text, NUL-terminated, or 0 */
    uint64_t compute_ns;
};

/* Building: lays out an empty message in buf; then fill the arrays. ERR_LIMIT if cap or STEP_MAX_BYTES is too
 * small. */
int step_plan_init(void *buf, size_t cap, uint32_t n_seqs, uint32_t n_tokens, uint32_t n_pages,
                   struct step_plan **out, struct err *e);
/* The same for an engine with a tower: with a step_place for each token. */
int step_plan_init_places(void *buf, size_t cap, uint32_t n_seqs, uint32_t n_tokens, uint32_t n_pages,
                          struct step_plan **out, struct err *e);
static inline struct step_seq *step_plan_seqs(struct step_plan *p)
{
    return (struct step_seq *)((char *)p + p->seqs_at);
}
static inline int32_t *step_plan_tokens(struct step_plan *p)
{
    return (int32_t *)((char *)p + p->tokens_at);
}
static inline int32_t *step_plan_pages(struct step_plan *p)
{
    return (int32_t *)((char *)p + p->pages_at);
}
static inline struct step_place *step_plan_places(struct step_plan *p)
{
    return (struct step_place *)((char *)p + p->places_at);
}
static inline struct step_seq_result *step_result_seqs(struct step_result *r)
{
    return (struct step_seq_result *)((char *)r + r->seqs_at);
}
static inline struct step_top *step_result_tops(struct step_result *r)
{
    return (struct step_top *)((char *)r + r->tops_at);
}
static inline float *step_result_logits(struct step_result *r)
{
    return (float *)((char *)r + r->logits_at);
}

struct engine_limits {
    uint32_t max_tokens;        /* T of one step */
    uint32_t max_seqs;          /* B */
    uint32_t max_rows;          /* R: rows with logits in one step */
    uint32_t max_pages_per_seq; /* P */
    uint32_t n_pages;           /* KV pages of this engine */
    uint32_t page_tokens;
    uint32_t vocab;
    uint32_t n_slots;        /* sequences that can have a recurrent state at a time; 0: the model has none */
    uint32_t n_snapshots;    /* states that can be kept beside those, for others to begin from */
    uint32_t n_feature_rows; /* rows of features that can be kept at a time; 0: no tower, no pictures */
    uint32_t max_patches;    /* of one picture */
    uint32_t max_picture_rows; /* of features of one picture */
};

/* Every field of an untrusted message against the limits; ERR_FORMAT or ERR_LIMIT naming the field. Strict:
 * there is one legal place for each array, unused bytes are zero, and token runs and page tables follow each
 * other without a gap in the order of the sequences. A vocab of 0 means "unknown": then ids only must not be
 * negative. `buf` must be aligned to 8 bytes. */
int step_plan_validate(const void *buf, size_t n, const struct engine_limits *l, struct err *e);
int step_result_validate(const void *buf, size_t n, struct err *e);
/* One request's sampling parameters alone: what submit and validate both refuse. */
int step_sampling_validate(const struct step_sampling *s, uint32_t vocab, struct err *e);
/* Largest plan within the limits, for sizing buffers; at most STEP_MAX_BYTES. */
size_t step_plan_bytes(const struct engine_limits *l);
/* A result that says "step failed as a whole": what engine_step writes, and what a front makes up when its
 * engine is gone. */
int step_result_error(void *buf, size_t cap, uint64_t step, int code, const char *text,
                      struct step_result **out, struct err *e);
/* Same, laid out empty for success: n_logits floats and n_tops alternatives at most; step_result_finish then
 * cuts it to what was used. */
int step_result_init(void *buf, size_t cap, uint32_t n_seqs, uint64_t n_logits, uint32_t n_tops,
                     struct step_result **out, struct err *e);
void step_result_finish(struct step_result *r, uint32_t n_tops);

/* ---- one picture ---- */
#define PICTURE_PLAN_MAGIC 0x31563044u /* "D0V1" */
#define PICTURE_MAX_BYTES  (512u << 20)
#define PICTURE_MAX_INPUTS 12

/* What one input of a tower holds, read off its graph. */
struct picture_input {
    uint32_t role;  /* enum d0_input_role */
    uint32_t dtype; /* D0_F32 or D0_I32 */
    uint32_t width; /* numbers of a row */
    int64_t rows;   /* D0_DIM_TOKENS: one for each patch, D0_DIM_ROWS: one for each row of features */
    int64_t below;  /* int32 only: each is less than this; a d0_dim: than that number of this picture */
    bool none;      /* -1 is allowed */
    bool pairs;     /* first and the one behind the last: first < last <= below */
};

/* The inputs of a tower in the order of its graph. The same graph gives the same shape to whoever lays out
 * messages and to the engine. */
struct picture_shape {
    uint32_t n;
    struct picture_input inputs[PICTURE_MAX_INPUTS];
};
/* ERR_UNSUPPORTED: an input whose role or shape nobody fills, or two of one role (named). */
int picture_shape(const struct graph *tower, struct picture_shape *out, struct err *e);

struct picture_array {
    uint32_t role, width; /* as in the shape */
    uint64_t at;          /* byte offset, a multiple of 64 */
};

/* One picture as its tower takes it: T patches become R rows. Depends on nothing but the picture, so it may
 * be laid out early and used again. */
struct picture_plan {
    uint32_t magic, bytes; /* bytes: of the whole message */
    uint32_t n_patches;    /* T, >= 1 */
    uint32_t n_rows;       /* R, >= 1 */
    uint32_t n_arrays, reserved;
    struct picture_array arrays[PICTURE_MAX_INPUTS]; /* in the order of the shape; the others are zero */
};

/* Bytes of the message for a picture of so many patches and rows; 0: more than PICTURE_MAX_BYTES. */
size_t picture_plan_bytes(const struct picture_shape *shape, uint32_t n_patches, uint32_t n_rows);
/* Lays out a message whose arrays hold zeros; then fill them. buf must be aligned to 8 bytes. ERR_LIMIT: cap
 * or PICTURE_MAX_BYTES is too small. */
int picture_plan_init(void *buf, size_t cap, const struct picture_shape *shape, uint32_t n_patches,
                      uint32_t n_rows, struct picture_plan **out, struct err *e);
/* [rows, width] float or int32_t of one role; NULL: the tower does not ask for it. */
void *picture_plan_array(struct picture_plan *p, uint32_t role);
/* Every field and number of an untrusted message; ERR_FORMAT or ERR_LIMIT naming the field. Strict: there is
 * one legal place for each array, and unused bytes are zero. Floats must be finite. */
int picture_plan_validate(const void *buf, size_t n, const struct picture_shape *shape,
                          const struct engine_limits *l, struct err *e);

/* ---- the engine ---- */
struct engine;

/* The tower of a model that takes pictures. */
struct engine_tower {
    const struct graph *graph;     /* patches in, rows of features out; copied */
    const struct weights *weights; /* loaded for that graph; the caller's, outlive the engine */
    const uint32_t *features;      /* [n_features] values of the graph [R, width], in the order of the text's
                                    * inputs of role FEATURES */
    uint32_t n_features;
};

struct engine_options {
    struct engine_limits limits; /* page_tokens and vocab are taken from the graph; n_slots too where it has
                                  * no recurrent state, else 0 means max_seqs; n_snapshots becomes 0 where
                                  * it has none, where sequences cannot share pages (graph_pages_shareable)
                                  * and where the device cannot copy */
    bool probes;                 /* keep every probe of the graph readable after a step */
    bool poison;      /* fill all states with NaN at open: shows any read of what was never written */
    uint32_t fusions; /* mask of enum fusion: applied where the graph and the device allow; 0: none */
    const struct engine_tower *tower; /* NULL: text only, and the limits of pictures become 0. Else the text's
                                       * graph takes its rows (inputs of the roles FEATURES and FEATURE_OF),
                                       * and none of those limits is 0 */
    struct mem *mem;
};

/* Takes a whole-model graph (ids in, logits out) or a slice. The graph is copied and planned here; weights
 * stay the caller's and must outlive the engine; `dev` likewise. */
int engine_open(struct engine **out, struct dev *dev, const struct graph *g, const struct weights *w,
                const struct engine_options *o, struct err *e);
void engine_close(struct engine *x);
const struct engine_limits *engine_limits(const struct engine *x);
/* Predicted bytes on the device: KV pages with slots, and scratch, of a tower too (weights are known from
 * struct weights). */
void engine_memory(const struct engine *x, uint64_t *kv, uint64_t *scratch);
/* Bytes of the store of features, in host memory; 0 without a tower. */
uint64_t engine_feature_bytes(const struct engine *x);
/* How messages for engine_picture() are laid out; NULL without a tower. */
const struct picture_shape *engine_picture_shape(const struct engine *x);

/* Fusions that changed at least one node: what was asked for less what the device refuses to run. */
uint32_t engine_fusions(const struct engine *x);
/* The device gives equal bits in any batch, and no fusion that changes bits is on. */
bool engine_exact(const struct engine *x);

/* executor_step: validates and runs one plan and fills the result message (result_cap bytes available at
 * result, aligned to 8). A step that fails as a whole still gives a result with `error` set (where result_cap
 * holds one); the return value and *e say the same. Pages that this step writes must belong to one sequence
 * only. A recurrent state cannot be looked up by position: a sequence begins at position 0 or goes on, in its
 * slot, where the last step left that slot or where a snapshot that it restores stands; after a step that
 * failed it begins anew. A snapshot that a step saves is restored in no run of that step, is saved once, and
 * holds nothing if the step fails. Steady state allocates nothing. */
int engine_step(struct engine *x, const struct step_plan *plan, size_t plan_bytes, void *result,
                size_t result_cap, struct err *e);
/* Runs the tower on one picture, alone, so that its bits hang on no other, and keeps its R rows in rows
 * first_row.. of the store. A step may take up only rows that were filled; what else was in them is gone,
 * also where this fails. Not between engine_step() and what is read from it (probes, results).
 * ERR_UNSUPPORTED without a tower. Allocates nothing. */
int engine_picture(struct engine *x, const struct picture_plan *plan, size_t plan_bytes, uint32_t first_row,
                   struct err *e);
/* Upper bound of the result of any plan within the limits, for sizing buffers. */
size_t engine_result_bytes(const struct engine_limits *l, bool with_logits);

/* After a step of an engine opened with probes: number of probes, name, and the value's rows of that step as
 * float32 (int32 values, ids of experts, as the nearest float32). */
size_t engine_probes(const struct engine *x);
const char *engine_probe_name(const struct engine *x, size_t i);
int engine_probe_read(struct engine *x, size_t i, float *out, size_t cap, size_t *rows, size_t *width,
                      struct err *e);
/* What one slot of a recurrent state of this name holds after the last step: its float32 values as
 * include/day0/ops.def lays them out, *n of them. ERR_MISSING: the graph has no such state. */
int engine_slot_read(struct engine *x, const char *state, uint32_t slot, float *out, size_t cap, size_t *n,
                     struct err *e);
/* Input of a slice: [n_tokens, hidden] float32 for the next step's HIDDEN input number `i` (0 for the
 * residual stream). */
int engine_set_hidden(struct engine *x, uint32_t i, const float *data, size_t n_tokens, size_t width,
                      struct err *e);
/* Result value of the last step when it is not logits (a slice without epilogue): [rows, width] float32. */
int engine_read_result(struct engine *x, float *out, size_t cap, size_t *rows, size_t *width, struct err *e);

/* Goes before a picture_plan on a socket. */
#define PICTURE_CALL_MAGIC 0x31433044u /* "D0C1" */
struct picture_call {
    uint32_t magic, bytes; /* bytes: of the picture_plan behind it */
    uint64_t number;       /* echoed as the step of the result */
    uint32_t first_row, reserved;
    uint64_t reserved2;
};

/* Serves an engine over a stream socket: reads length-checked messages, step_plan, or picture_call with a
 * picture_plan, and answers each with a step_result (that of a picture has no sequences), until the peer
 * closes (ERR_OK). A bad message is answered by a result with an error; one whose length cannot be trusted
 * ends the service. */
int engine_serve_fd(struct engine *x, int fd, struct err *e);
/* The other side: one round trip. ERR_TIMEOUT, ERR_COMM (peer gone), ERR_FORMAT; the connection is of no use
 * after any of them. */
int engine_call_fd(int fd, const struct step_plan *plan, void *result, size_t result_cap, uint64_t timeout_ns,
                   struct err *e);
/* The same for engine_picture(); the result, of a few hundred bytes, says how it went. */
int engine_call_picture_fd(int fd, const struct picture_plan *plan, uint32_t first_row, uint64_t number,
                           void *result, size_t result_cap, uint64_t timeout_ns, struct err *e);

/* ---- sampler, pure: also used by tests. logits float32[vocab] is not changed; scratch float/int of vocab
 * entries each. ---- */
struct sampler_scratch {
    float *values;
    int32_t *ids;
};
int32_t sample_token(const float *logits, uint32_t vocab, const struct step_sampling *s, uint32_t position,
                     const struct sampler_scratch *scratch, float *logprob,
                     struct step_top *top /* [n_top] */, uint32_t *n_top, uint32_t *status);

#endif
