/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor: one ragged step in, one result out. Owns weights, KV pages, slots of recurrent state,
 * snapshots of them and the compiled graph of one rank; sees ids and tensors, never text. Request state
 * belongs to the scheduler, which decides pages, slots and positions.
 *
 * step_plan and step_result are flat, pointer-free, size-limited messages: a header, then arrays at byte
 * offsets within the message. They cross a socket unchanged (same machine architecture) and are validated
 * whole before use.
 */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "dev/dev.h"
#include "graph/graph.h"
#include "load/load.h"

/* ---- messages ---- */
#define STEP_PLAN_MAGIC   0x33503044u /* "D0P3" */
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

struct step_plan {
    uint32_t magic, bytes; /* bytes: of the whole message */
    uint64_t step;         /* counts up; echoed */
    uint32_t n_seqs, n_tokens, n_pages, reserved;
    uint32_t seqs_at, tokens_at, pages_at, reserved2; /* byte offsets, multiples of 8 */
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
    uint32_t n_slots;     /* sequences that can have a recurrent state at a time; 0: the model has none */
    uint32_t n_snapshots; /* states that can be kept beside those, for others to begin from */
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

/* ---- the engine ---- */
struct engine;

struct engine_options {
    struct engine_limits limits; /* page_tokens and vocab are taken from the graph; n_slots too where it has
                                  * no recurrent state, else 0 means max_seqs; n_snapshots becomes 0 where
                                  * it has none, where sequences cannot share pages (graph_pages_shareable)
                                  * and where the device cannot copy */
    bool probes;                 /* keep every probe of the graph readable after a step */
    bool poison;      /* fill all states with NaN at open: shows any read of what was never written */
    uint32_t fusions; /* mask of enum fusion: applied where the graph and the device allow; 0: none */
    struct mem *mem;
};

/* Takes a whole-model graph (ids in, logits out) or a slice. The graph is copied and planned here; weights
 * stay the caller's and must outlive the engine; `dev` likewise. */
int engine_open(struct engine **out, struct dev *dev, const struct graph *g, const struct weights *w,
                const struct engine_options *o, struct err *e);
void engine_close(struct engine *x);
const struct engine_limits *engine_limits(const struct engine *x);
/* Predicted bytes on the device: KV pages with slots, and scratch (weights are known from struct weights). */
void engine_memory(const struct engine *x, uint64_t *kv, uint64_t *scratch);

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

/* Serves an engine over a stream socket: reads length-checked step_plan messages, writes step_result
 * messages, until the peer closes (ERR_OK). A bad plan is answered by a result with an error; a message whose
 * length cannot be trusted ends the service. */
int engine_serve_fd(struct engine *x, int fd, struct err *e);
/* The other side: one round trip. ERR_TIMEOUT, ERR_COMM (peer gone), ERR_FORMAT; the connection is of no use
 * after any of them. */
int engine_call_fd(int fd, const struct step_plan *plan, void *result, size_t result_cap, uint64_t timeout_ns,
                   struct err *e);

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
