/* SPDX-License-Identifier: Apache-2.0
 *
 * One operator on generated inputs: shapes, contents, natural scale, and a run of it on any device. Private
 * to this room and its test. A case is filled from a seed alone, so that a failure can be made again from
 * what is printed.
 */
#ifndef VERIFY_OPCASE_H
#define VERIFY_OPCASE_H

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

struct opshape {
    uint32_t op;
    uint32_t dtype; /* of weight or pages; 0 where the operator has none */
    int64_t k, n;   /* width of a row; LINEAR: rows of w; EMBED: rows of the table */
    int64_t heads, kv_heads, dim, v_dim, width /* ROPE, ROPE_TABLE: D */, offset, style, window;
    int64_t segments, page_tokens, plus_one, no_weight,
        bias; /* no padding: shapes are compared byte by byte */
    double eps, scale, factor;
};
/* Text such as "K 17, N 9". */
const char *opshape_format(const struct opshape *s, char *buf, size_t bytes);
/* The i-th default shape of an operator; false past the last one. */
bool opshape_default(uint32_t op, uint32_t dtype, unsigned i, struct opshape *out);
/* The shape for timing. dims: the step. */
void opshape_bench(uint32_t op, uint32_t dtype, struct opshape *out, int64_t dims[D0_N_DIMS]);
/* The shape of a model's node, with rows of weights cut to what a test needs. false: a node this file does
 * not know. */
bool opshape_of_node(const struct graph *g, const struct d0_node *n, struct opshape *out);
/* Weight or page types worth testing; 0-terminated, just {0} where the operator has none. */
const uint32_t *op_dtypes(uint32_t op);

#define OPCASE_VALUES 16

struct opcase {
    struct opshape shape;
    struct graph *g;
    int64_t max_dims[D0_N_DIMS], dims[D0_N_DIMS];
    uint32_t in[D0_MAX_NODE_INPUTS]; /* value id of each input, D0_NO_VALUE if absent */
    uint32_t output;                 /* value id or D0_NO_VALUE */
    void *data[OPCASE_VALUES];       /* by value id: contents for `dims` */
    uint64_t bytes[OPCASE_VALUES];
    bool borrowed[OPCASE_VALUES];
    size_t n_out; /* elements of the output for `dims` */
    size_t out_width;
};

int opcase_open(struct opcase *c, const struct opshape *s, const int64_t max_dims[D0_N_DIMS], struct err *e);
void opcase_close(struct opcase *c);
int opcase_fill(struct opcase *c, const int64_t dims[D0_N_DIMS], enum opclass cls, uint64_t seed,
                struct err *e);
/* Row `row` of a filled case as a case of its own (T = B = 1). Shares the graph and the weights with c. */
int opcase_alone(const struct opcase *c, int64_t row, struct opcase *out, struct err *e);
/* A copy in which every row of activations but `row` is NaN. */
int opcase_poisoned(const struct opcase *c, int64_t row, struct opcase *out, struct err *e);
/* Frees what opcase_alone and opcase_poisoned own. */
void opcase_release_copy(struct opcase *c);
/* Natural scale of each output element (docs/numerics.md); ref: the reference device's output. ERR_NOMEM. */
int opcase_scale(const struct opcase *c, const float *ref, double *scale, struct err *e);

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
/* out: n_out floats (ignored without an output). states: contents of the STATE values after the run, or
 * NULLs. touched: id of a value past whose end the device reached, else D0_NO_VALUE. */
int opsession_run(struct opsession *s, const struct opcase *c, float *out, void *states[OPCASE_VALUES],
                  uint32_t *touched, struct err *e);

#endif
