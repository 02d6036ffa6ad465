/* SPDX-License-Identifier: Apache-2.0
 *
 * One operator on generated inputs: shapes, contents, natural scale, and a run of it on any device. Private
 * to this room and its test. A case is filled from a seed alone, so that a failure can be made again from
 * what is printed.
 */
#ifndef VERIFY_OPCASE_H
#define VERIFY_OPCASE_H

#include "base/hash.h"
#include "dev/dev.h"
#include "graph/graph.h"

enum opclass {
    OPCLASS_NORMAL,   /* normal, variance 1 */
    OPCLASS_SMALL,    /* the same times 2^-40 */
    OPCLASS_LARGE,    /* the same times 2^30 (2^3 where an exponential would only saturate) */
    OPCLASS_SPARSE,   /* nine of ten are zeros of either sign */
    OPCLASS_OUTLIERS, /* one of 64 is 2^10 (2^3) times larger: what activations of real models look like */
    OPCLASS_POSITIVE, /* 0.5 to 1.5: sums that only grow */
    OPCLASS_N
};
const char *opclass_name(enum opclass c);

/* What a row of results is about: the type of the weight or the pages, and how a weight is stored. */
struct optype {
    uint32_t dtype, reserved; /* 0 where the operator has none, or mixes types from shape to shape */
    struct d0_format format;
};
/* "", "BF16", "F4 1x32 F8_E8M0", "U4 1x32 F32 zeros". */
const char *optype_name(const struct optype *t, char *buf, size_t bytes);
/* The i-th type worth testing of an operator without a model; false past the last one. */
bool optype_default(uint32_t op, unsigned i, struct optype *out);

/* One node with its inputs. Shapes are compared byte by byte. */
struct opshape {
    struct optype type;
    struct d0_node node;                    /* inputs[i]: i, or D0_NO_VALUE where it is absent */
    struct d0_value in[D0_MAX_NODE_INPUTS]; /* of a STATE the first dimension is set by opcase_open */
};
/* Text such as "x 17, w 9x17, segments 4". */
const char *opshape_format(const struct opshape *s, char *buf, size_t bytes);
/* The i-th default shape of an operator; false past the last one. */
bool opshape_default(uint32_t op, const struct optype *type, unsigned i, struct opshape *out);
/* The shape for timing. dims: the step. */
void opshape_bench(uint32_t op, const struct optype *type, struct opshape *out, int64_t dims[D0_N_DIMS]);
/* The shape of a model's node, with rows of weights cut to what a test needs. false: a node this file does
 * not know. */
bool opshape_of_node(const struct graph *g, const struct d0_node *n, struct opshape *out);
/* The same with weights as they are. */
bool opshape_whole_node(const struct graph *g, const struct d0_node *n, struct opshape *out);
/* Attributes, 0 where absent. */
int64_t opshape_int(const struct opshape *s, uint32_t key);
double opshape_real(const struct opshape *s, uint32_t key);
/* Number of the input with this role, D0_NO_VALUE if there is none. */
uint32_t opshape_role(const struct opshape *s, uint32_t role);
/* Positions that one column of the page table stands for. */
int64_t opshape_page_span(const struct opshape *s);
/* Columns of the page table that hold `tokens` positions, and two pooled entries. */
int64_t opshape_columns(const struct opshape *s, int64_t tokens);

/* ---- making shapes: opshape*.c ---- */
void opshape_begin(struct opshape *s, uint32_t op, const struct optype *type);
void opshape_rows(struct opshape *s, uint32_t i, int64_t width);   /* [T, width] float32 */
void opshape_chosen(struct opshape *s, uint32_t i, int64_t width); /* [T, width] int32 */
void opshape_ints(struct opshape *s, uint32_t i, uint32_t role, int64_t dim);
/* int32 [dim, width] */
void opshape_numbers(struct opshape *s, uint32_t i, uint32_t role, int64_t dim, int64_t width);
/* A plain weight of the first n_dims (1, 2 or 3) sizes. */
void opshape_weight(struct opshape *s, uint32_t i, uint32_t dtype, uint32_t n_dims, int64_t a, int64_t b,
                    int64_t c);
/* The weight that the type is about: [n, k], or [e, n, k] with e > 0. */
void opshape_stored(struct opshape *s, uint32_t i, int64_t e, int64_t n, int64_t k);
void opshape_state(struct opshape *s, uint32_t i, uint32_t dtype, uint32_t n_dims, int64_t a, int64_t b,
                   int64_t c);
/* positions, seq_of and the page table (or slots) from input `first` on. */
void opshape_places(struct opshape *s, uint32_t first, bool paged);
/* A number from low to high that depends on i and salt alone. */
int64_t opshape_vary(unsigned i, unsigned salt, int64_t low, int64_t high);
/* F32, BF16, F16 in turn. */
uint32_t opshape_any_type(unsigned i);
bool opshape_default_rows(unsigned i, struct opshape *s);  /* opshape_rows.c; s is begun */
bool opshape_default_paged(unsigned i, struct opshape *s); /* opshape_paged.c */
void opshape_bench_paged(struct opshape *s);
bool opshape_default_fused(unsigned i, struct opshape *s);            /* opshape_fused.c */
bool opshape_bench_fused(struct opshape *s, int64_t dims[D0_N_DIMS]); /* false: no fused operator */
bool opshape_default_tower(unsigned i, struct opshape *s);            /* opshape_tower.c */
#define OPSHAPE_TAILS 70 /* widths 1..70: every remainder of vectors of 4 to 64 elements */

#define OPCASE_VALUES 16

struct opcase {
    struct opshape shape;
    struct graph *g;
    int64_t max_dims[D0_N_DIMS], dims[D0_N_DIMS];
    uint32_t in[D0_MAX_NODE_INPUTS]; /* value id of each input, D0_NO_VALUE if absent */
    uint32_t n_outputs;
    uint32_t output[D0_MAX_NODE_OUTPUTS];
    bool ints[D0_MAX_NODE_OUTPUTS]; /* int32, compared for equality; else float32 */
    void *data[OPCASE_VALUES];      /* by value id: contents for `dims` */
    uint64_t bytes[OPCASE_VALUES];
    bool borrowed[OPCASE_VALUES];
    size_t n_out[D0_MAX_NODE_OUTPUTS]; /* elements for `dims` */
    size_t out_width[D0_MAX_NODE_OUTPUTS];
};

int opcase_open(struct opcase *c, const struct opshape *s, const int64_t max_dims[D0_N_DIMS], struct err *e);
void opcase_close(struct opcase *c);
/* Memory for every input and state at these sizes, contents undefined; what is borrowed stays. ERR_NOMEM. */
int opcase_allocate(struct opcase *c, const int64_t dims[D0_N_DIMS], struct err *e);
int opcase_fill(struct opcase *c, const int64_t dims[D0_N_DIMS], enum opclass cls, uint64_t seed,
                struct err *e);
/* Does a row hang on the rows of its sequence before it? Then only a sequence's first can be run alone. */
bool opcase_recurrent(const struct opcase *c);
/* A form that does not promise a row the same bits in another batch (attribute `form`). */
bool opcase_bounded(const struct opcase *c);
/* `row`, or the first row of its sequence where rows hang on those before. */
int64_t opcase_row_to_try(const struct opcase *c, int64_t row);
/* Row `row` of a filled case as a case of its own (T = B = 1). Shares the graph and the weights with c. */
int opcase_alone(const struct opcase *c, int64_t row, struct opcase *out, struct err *e);
/* A copy in which every row of activations but `row` is NaN. */
int opcase_poisoned(const struct opcase *c, int64_t row, struct opcase *out, struct err *e);
/* Frees what opcase_alone and opcase_poisoned own. */
void opcase_release_copy(struct opcase *c);

/* ---- reading a filled case ---- */
const float *opcase_rows(const struct opcase *c, uint32_t i); /* input i, float32 */
const int32_t *opcase_ints(const struct opcase *c, uint32_t i);
/* Input i as float32, codes decoded. To be freed. NULL: no memory, or absent. */
float *opcase_widened(const struct opcase *c, uint32_t i);
int64_t opcase_size(const struct opcase *c, uint32_t i, uint32_t dim); /* of input i; 0 where absent */
/* Row of key `key` of sequence `seq` in pages at input `pages`, counted over [pages, heads, page_tokens]. */
int64_t opcase_slot(const struct opcase *c, uint32_t pages, int64_t seq, int64_t key, int64_t head);
/* Does token t see position j (pages), for key-value head g? Window, chunk, chosen blocks. */
bool opcase_sees(const struct opcase *c, int64_t t, int64_t g, int64_t j);
/* Does token t see pooled entry w? */
bool opcase_sees_pooled(const struct opcase *c, int64_t t, int64_t w);

/* ---- filling: opfill*.c ---- */
struct fill {
    struct opcase *c;
    enum opclass cls;
    struct rng rng;
    float gain;       /* of LARGE and OUTLIERS: less where an exponential follows */
    int64_t *history; /* [B]: positions of each sequence before this step */
    int64_t *run;     /* [B]: its tokens in this step */
};
float opfill_normal(struct rng *r);
float opfill_draw(struct fill *f, bool weight); /* one value of the class */
int opfill_contents(struct fill *f, struct err *e);
/* Inputs whose choice hangs on no rounding. */
int opfill_route(struct fill *f, struct err *e);
int opfill_topk(struct fill *f, struct err *e);

/* ---- natural scales: opscale*.c ---- */
struct opresult {
    float *out[D0_MAX_NODE_OUTPUTS]; /* int32 where the case says so */
    void *state[OPCASE_VALUES];      /* by value id: after the run; NULL where it is not compared */
};
struct opscale {
    double *out[D0_MAX_NODE_OUTPUTS];
    double *state[OPCASE_VALUES]; /* NULL: must have the same bits */
};
#define OPSCALE_FLOOR 0x1p-106 /* 8 * 2^-23 of it is 2^-126: smaller results may be flushed to zero */
/* Natural scale of each element of outputs and states (docs/numerics.md); ref: what the reference gave.
 * s->out has room; states are allocated here, to be freed by opscale_free_states. ERR_NOMEM. */
int opcase_scale(const struct opcase *c, const struct opresult *ref, struct opscale *s, struct err *e);
void opscale_free_states(struct opscale *s);
/* max(|sum|, 2 * root of the squares): what a sum of terms of random sign reaches. */
double opscale_sum(double sum, double squares);
/* One operator each; false: no memory. */
bool opscale_attention(const struct opcase *c, struct opscale *s);
bool opscale_mla(const struct opcase *c, const struct opresult *ref, struct opscale *s);
bool opscale_short_conv(const struct opcase *c, const struct opresult *ref, struct opscale *s);
bool opscale_delta(const struct opcase *c, struct opscale *s);
bool opscale_pool_kv(const struct opcase *c, struct opscale *s);
bool opscale_experts(const struct opcase *c, struct opscale *s);
bool opscale_mix(const struct opcase *c, struct opscale *s);
bool opscale_segments(const struct opcase *c, struct opscale *s);
bool opscale_position_embed(const struct opcase *c, const struct opresult *ref, struct opscale *s);
bool opscale_qkv(const struct opcase *c, struct opscale *s);
bool opscale_gate_up(const struct opcase *c, struct opscale *s);
bool opscale_norm_residual(const struct opcase *c, const struct opresult *ref, struct opscale *s);
bool opscale_norm_rope_store(const struct opcase *c, struct opscale *s);
/* hyper_in, hyper_head */
bool opscale_hyper(const struct opcase *c, const struct opresult *ref, struct opscale *s);
bool opscale_hyper_out(const struct opcase *c, const struct opresult *ref, struct opscale *s);
/* Activations in float64 (opact.c), each with its natural scale. */
struct opscaled {
    double value, scale;
};
struct opscaled opact(const struct opshape *s, double x);
struct opscaled opact_pair(const struct opshape *s, double gate, double up);
/* The one or the other. */
struct opscaled opact_between(const struct opshape *s, bool pair, double g, double u);
/* How far the activation moves, in its own units, when g or u does, whose natural scales are by_g and by_u:
 * what an error of a sum becomes. At least the activation's own natural scale. */
double opact_reach(const struct opshape *s, bool pair, double g, double u, double by_g, double by_u);

/* ---- running ---- */
struct opsession {
    struct dev *d;
    struct d0_queue *q;
    struct d0_exec *x;
    int64_t planned[D0_N_DIMS]; /* largest step that x was compiled for */
    bool guard; /* inputs end at an inaccessible page: then x is compiled for each step's very size */
};
int opsession_open(struct opsession *s, struct dev *d, const struct opcase *c, bool guard, struct err *e);
void opsession_close(struct opsession *s);
/* out: where outputs and states go; NULL fields are not read. touched: id of a value past whose end the
 * device reached, else D0_NO_VALUE. */
int opsession_run(struct opsession *s, const struct opcase *c, const struct opresult *out, uint32_t *touched,
                  struct err *e);

#endif
