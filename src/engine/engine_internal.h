/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to engine: the inside of an engine, shared by opening and stepping.
 */
#ifndef ENGINE_ENGINE_INTERNAL_H
#define ENGINE_ENGINE_INTERNAL_H

#include "engine/engine.h"

#define ENGINE_MAX_HIDDEN 8
#define ENGINE_WAIT_NS    UINT64_C(600000000000)
#define SLOT_UNKNOWN      UINT32_MAX

struct hidden_input {
    uint32_t value;
    int64_t width;
    size_t n_set; /* rows set for the next step; 0: none */
};

/* What an engine that takes pictures has beside the text. */
struct tower {
    struct graph *graph;
    struct d0_exec *exec;
    struct d0_buffer **own; /* by value id: inputs */
    struct picture_shape shape;
    uint32_t input[PICTURE_MAX_INPUTS]; /* value id of each input of the shape */
    uint32_t *features;                 /* [n_features] value ids, [R, width] */
    uint32_t n_features, width;
    /* The store is host memory: a device gives its outputs to the host, and takes the few rows of a step from
     * there with the other inputs of that step. */
    float *store; /* [n_features, n_feature_rows, width] */
    uint64_t store_bytes;
    bool *filled;   /* [n_feature_rows] */
    uint32_t *text; /* [n_features] the text's inputs of role FEATURES */
    uint32_t n_text;
};

struct slot_state {
    uint64_t step; /* n_slot_steps when a sequence took it last */
    uint32_t next; /* position that its state goes on from; SLOT_UNKNOWN: none */
};

struct engine {
    struct dev *dev;
    struct mem *mem;
    struct graph *graph;
    uint32_t *value_of; /* [graph->n_values] in the graph that the weights were loaded for */
    uint32_t fusions;
    bool exact;
    struct arena arena; /* the arrays below */
    struct engine_limits limits;
    struct d0_exec *exec;
    struct d0_queue *queue;
    struct d0_buffer **own;  /* by value id: inputs and states */
    struct d0_buffer **kept; /* by value id: snapshots [n_snapshots, ...] of states in slots */
    uint64_t *slot_bytes;    /* by value id: of one slot; 0 where it has none */
    uint64_t kv_bytes;
    bool has_state; /* pages; slots are limits.n_slots */
    struct hidden_input hidden[ENGINE_MAX_HIDDEN];
    uint32_t n_hidden;
    uint32_t *probes; /* value ids */
    size_t n_probes;
    uint32_t result; /* value id */
    uint32_t width;  /* of a result row */
    bool logits;     /* the result is [R, vocabulary] */
    bool pictures;   /* the tower is there */
    struct tower tower;

    /* this step */
    int32_t *ids, *positions, *seq_of, *table, *rows, *slots; /* [T], [T], [T], [B*P], [R], [B] */
    int32_t *places, *feature_of, *spans; /* [T, 3], [T] rows of FEATURES, [T, 2]; of pictures only */
    int32_t *taken;                       /* [T] rows of the store in the order of FEATURES */
    uint32_t n_taken;
    float *logit_rows; /* [max_rows, width] */
    uint64_t logit_bytes;
    struct sampler_scratch scratch;
    uint64_t *page_writer;       /* [n_pages] n_steps << 32 | sequence that wrote it last */
    struct slot_state *slot;     /* [n_slots] */
    struct slot_state *snapshot; /* [n_snapshots]; `step`: that saved it last */
    uint64_t n_steps, n_slot_steps;
    struct d0_step_dims dims;
    bool ran;
};

/* ---- engine_picture.c ---- */
/* Before the text's graph is looked at; then, with that graph and its arrays. */
int tower_plan(struct engine *x, const struct engine_tower *t, struct err *e);
int tower_open(struct engine *x, const struct weights *w, struct err *e);
void tower_close(struct engine *x);
/* An input of the text that takes something of a picture: does its shape fit? */
bool tower_input(struct engine *x, uint32_t value);
/* Are the rows that the plan takes there? */
int tower_check(const struct engine *x, const struct step_plan *p, struct err *e);
void tower_fill(struct engine *x, const struct step_plan *p);
int tower_copy(struct engine *x, struct err *e); /* the rows taken, into the text's inputs */

/* Host array of an input by role, and how many int32 of it this step uses. */
const int32_t *engine_input(const struct engine *x, uint32_t role, size_t *n);

#endif
