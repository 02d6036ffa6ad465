/* SPDX-License-Identifier: Apache-2.0
 *
 * The oracle: runs a model of any size exactly, one piece after the other from disk, writes what it computed
 * as a trace (docs/references.md), and holds traces against each other. A trace of our own kernels is called
 * self-consistent, never right.
 */
#ifndef ORACLE_ORACLE_H
#define ORACLE_ORACLE_H

#include "base/finding.h"
#include "base/log.h"
#include "ckpt/ckpt.h"
#include "dev/dev.h"
#include "oracle/trace_file.h"
#include "spec/spec.h"
#include "tensor/tensor.h"

/* A description, its weights, and a device that computes. The caller's, for as long as a call takes. */
struct oracle_model {
    struct dev *dev;
    const struct spec *spec;
    struct ckpt *ckpt;
    struct d0 *d0;   /* may be NULL */
    uint64_t memory; /* bytes that a run may take; 0: what the machine has */
};

struct oracle_cost {
    uint64_t weight_bytes; /* read from the checkpoint */
    double read_seconds;   /* of the thread that reads, all reads together */
    double compute_seconds;
    double seconds;
    uint32_t chunk;   /* tokens of one step, the fewest of any piece */
    uint64_t largest; /* weight bytes of the largest piece */
    bool ahead;       /* the next piece was read while one was computed */
    uint64_t experts; /* read one by one, where those of a layer did not fit together */
};

/* ---- recording ---- */
struct record_options {
    const int32_t *ids;
    size_t n_ids;
    int32_t first_layer, last_layer; /* both -1: the whole model. Layer 0 brings the embedding with it, the
                                        last one the final norm and the logits */
    const char *from;                /* a trace that holds what enters first_layer; NULL where that is 0 */
    const char *probes;              /* "all", "layers" (what each layer gives), "none", or names with commas
                                        between, each of which may end in '*'; NULL: all */
    const char *out;                 /* the trace; OUT.partial and OUT.state while it is being made */
    bool watch;                      /* look at what every operator gives, recorded or not */
    bool fresh;                      /* an interrupted run is thrown away, not gone on with */
    uint64_t stop_after;             /* tests: an error after so many pieces; 0: none */
};

/* The largest magnitude that an operator gave, beside what narrower types hold. */
struct record_watch {
    const char *name; /* of the value */
    const char *op;
    int32_t layer;
    bool stored;    /* keys or values: they go to KV pages */
    double max_abs; /* of the finite ones */
    uint64_t token; /* where */
    uint64_t not_finite;
    double f16_bits, bf16_bits, f8_e4m3_bits; /* headroom: log2(limit / max_abs); negative: too large */
};

struct record_result {
    size_t positions, pieces, resumed; /* resumed: pieces that an earlier run had done */
    size_t probes, handed_on;          /* tensors in the trace: probes; values only for a run that goes on */
    bool logits;
    int32_t first_layer, last_layer;
    uint64_t file_bytes;
    char not_finite[160];       /* first probe with NaN or infinity, or "" */
    struct record_watch *watch; /* in the order of the graph; in the arena */
    size_t n_watch;
    const struct record_watch *first_beyond_f16; /* NULL: none */
    struct oracle_cost cost;
};
/* Findings: N002 where a recorded (watched) value is not finite, N008 where a watched one is too large for
 * F16; the run goes on. Errors: ERR_INVALID (layers, probes, ids), ERR_MISMATCH (a partial trace of another
 * run, or damaged; a trace that does not fit), ERR_MISSING, ERR_NOMEM (a single operator does not fit),
 * ERR_UNSUPPORTED, ERR_IO. After an error the partial trace stays, and the same call goes on where it
 * stopped. */
int oracle_record(const struct oracle_model *m, const struct record_options *o, struct arena *arena,
                  struct record_result *out, struct findings *f, struct err *e);

/* ---- comparing ---- */
enum compare_state {
    COMPARE_RIGHT,      /* within the limit */
    COMPARE_WRONG,      /* beyond it, or not finite */
    COMPARE_NOT_JUDGED, /* `why` says what kept it from being compared */
};
const char *compare_state_name(enum compare_state s); /* "right" "wrong" "not judged" */

/* One probe. Against a model: what the operators between the reference's probes give on the reference's own
 * values. */
struct compare_probe {
    const char *name;
    int32_t layer; /* -1: none, or not known */
    enum compare_state state;
    uint64_t rows, width;
    uint64_t rows_excluded;  /* of them: their choice of experts or keys is nearly a tie in the reference */
    uint64_t different_bits; /* elements */
    uint64_t not_finite, reference_not_finite;
    double cosine, relative_l2, nmse, max_abs;
    double worst_row; /* largest relative L2 of a row: what the limit is about (logits: max_abs is) */
    uint64_t worst_row_at;
    double mean_ulp, ulp_share; /* share of elements more than COMPARE_ULP float32 steps away */
    double limit;
    const char *operators; /* "linear", or "rope, kv_store, attention"; NULL: two traces */
    const char *inputs;    /* probes that were fed */
    const char *weights;   /* that these operators read, or "" */
    uint32_t n_operators;
    const char *why;
};
#define COMPARE_ULP   32.0
#define COMPARE_TOP_K 5

struct compare_result {
    struct compare_probe *probes; /* in the order of the graph; logits, where there are, are the last */
    size_t n_probes;
    size_t right, wrong, not_judged;
    const char **only_reference, **only_other; /* names without a counterpart */
    size_t n_only_reference, n_only_other;
    const struct compare_probe *first_wrong, *last_right; /* before first_wrong; NULL: none */
    size_t choices,
        choices_unknown; /* operators that choose; those whose margin the reference does not tell */
    size_t near_ties;    /* rows of the reference where a known one is nearly a tie */
    bool logits;
    double mean_kl, max_kl;         /* nats, reference to the other */
    double top1_share, top_k_share; /* of positions; of the COMPARE_TOP_K best of the reference */
    bool identical;                 /* every bit of every probe */
    bool self_consistent;           /* both sides are day0's own */
    const char *reference_producer, *other_producer;
    struct oracle_cost cost; /* against a model */
};
/* Probe by probe. N001 or N002 with the first that is wrong, N006 where the two cannot be of one run. Errors:
 * as of a trace that cannot be read. Everything lives in the arena. */
int oracle_compare(const char *reference, const char *other, struct arena *arena, struct compare_result *out,
                   struct findings *f, struct err *e);
/* Every operator of the model, or the operators between two probes, on the reference's own values, so that
 * errors do not add up. N007 with the first one that is wrong, one for each kind of operators. */
int oracle_compare_model(const struct oracle_model *m, const char *reference, struct arena *arena,
                         struct compare_result *out, struct findings *f, struct err *e);

/* Which rows of a reference hang on a choice that was nearly a tie, as far as it holds what was chosen by:
 * rows[n] of its n tokens, 1 for those. ERR_MISMATCH where it has another number of tokens. */
int oracle_near_ties(const struct oracle_model *m, const char *reference, uint8_t *rows, size_t n,
                     struct err *e);

/* ---- drift: does the error grow with the position? ---- */
struct drift_options {
    struct dev *reference; /* the reference kernels */
    const int32_t *ids;    /* the tokens begin with these; NULL: none. The rest are ids by a counter hash */
    size_t n_ids;
    size_t tokens; /* 0: 64 past the original length, as far as `work` goes; device and reference alike
                      take as many where this is given. More than the model has positions: as
                              many as it has */
    double work, reference_work; /* multiplications that a run of tokens may take; 0: no bound */
    const char *recorded;        /* a trace with logits of the same ids, or NULL */
};

/* Positions [first, last]. Errors are relative L2 of rows; NaN where there are no rows. */
struct drift_bucket {
    uint64_t first, last;
    uint32_t rows, reference_rows, recorded_rows;
    double hidden, hidden_worst;     /* median and largest over rows; of a row: the worst layer */
    double logits, logits_worst;     /* device against reference kernels */
    double decode_worst;             /* decode against prefill; 0: every bit is equal */
    double recorded, recorded_worst; /* logits against the trace */
};
#define DRIFT_BUCKETS 32
struct drift_result {
    struct drift_bucket bucket[DRIFT_BUCKETS];
    size_t n_buckets;
    uint64_t tokens, reference_tokens, original; /* original: length that the model was trained for */
    uint64_t max_positions;
    const char *original_key;    /* of config.json */
    bool beyond;                 /* tokens reach past the original length, or to the last position there is */
    bool exact, identical;       /* what the device claims; decode gave the bits of prefill */
    uint64_t decoded, different; /* rows compared, and how many differ */
    uint64_t first_different;
    double limit;
    double hidden_growth, logits_growth; /* factor of the median error for each doubling of the position */
    const char *recorded_producer;
    struct oracle_cost cost; /* all runs together */
};
/* Streams the model three times for one long sequence: reference kernels, device in large steps (prefill),
 * device with sampled tokens in steps of their own (decode). Findings: N004 where an exact device gives other
 * bits, N009 where the median error of a bucket is beyond the limit, N006. Errors: as oracle_record. The
 * result lives in the arena. */
int oracle_drift(const struct oracle_model *m, const struct drift_options *o, struct arena *arena,
                 struct drift_result *out, struct findings *f, struct err *e);

/* ---- traces of other tools ---- */
struct import_result {
    size_t positions, tensors, unused; /* unused: arrays that the map does not name */
    uint64_t file_bytes;
};
/* A trace from the *.npy and *.safetensors files of a directory and a map, docs/references.md. ERR_MISSING,
 * ERR_FORMAT, ERR_MISMATCH (a shape that is not that of the tokens), ERR_UNSUPPORTED, ERR_IO. */
int oracle_import(const char *dir, const char *map, const char *out, struct arena *arena,
                  struct import_result *result, struct err *e);

/* What a trace holds of a value of a graph: by its name, "NAME:1" for a second output, "logits" for the
 * result. NULL: nothing. */
const struct trace_tensor *oracle_trace_of(const struct trace *t, const struct graph *g, uint32_t value);

/* Token ids from a file: decimal numbers with anything but digits and signs between, or the ids of a trace
 * (*.safetensors). In the arena. ERR_MISSING, ERR_FORMAT, ERR_LIMIT. */
int oracle_read_ids(const char *path, struct arena *arena, int32_t **ids, size_t *n, struct err *e);

/* ---- one graph, once ---- */

/* What an input of the graph gets; of several of one role the first gets the first, and so on. `bytes` may be
 * fewer than the input has: the rest is not written. */
struct oracle_input {
    uint32_t role; /* enum d0_input_role */
    const void *data;
    uint64_t bytes;
};
/* Where a value of the graph goes: float32 or int32 [rows, width]. */
struct oracle_output {
    uint32_t value;
    void *data;
    uint64_t bytes;
};
/* Loads all weights of g (spec->graph, or the tower's spec->vision), runs it once for dims, gives the
 * outputs. States begin as NaN. What it takes to do so is gone when it returns. ERR_INVALID: an input without
 * data, or of another size; errors of loading and of the device. */
int oracle_once(const struct oracle_model *m, const struct graph *g, const int64_t dims[D0_N_DIMS],
                const struct oracle_input *inputs, size_t n_inputs, const struct oracle_output *outputs,
                size_t n_outputs, struct err *e);

#endif
