/* SPDX-License-Identifier: Apache-2.0
 *
 * Drives one engine by hand: each sequence has a slot with pages and a recurrent state of its own, and a step
 * is a list of runs. Private to this room.
 */
#ifndef VERIFY_RUNNER_H
#define VERIFY_RUNNER_H

#include "engine/engine.h"
#include "verify/verify.h"

struct runner_size {
    uint32_t tokens, seqs, rows; /* of one step */
    uint32_t context;            /* tokens of one sequence */
    uint32_t snapshots;          /* of recurrent states; 0: none */
    bool probes;
    uint32_t fusions; /* mask of enum fusion; 0: the graph as described */
};

struct runner {
    struct weights *weights; /* owned where runner_open_model loaded them */
    struct engine *x;
    struct step_plan *plan;
    void *result;
    size_t plan_bytes, result_bytes;
    uint64_t step;
};

struct runner_run {
    uint32_t slot; /* 0 .. seqs - 1 */
    const int32_t *tokens;
    uint32_t n, position, flags; /* enum step_seq_flags; sampling is greedy */
    const int32_t *pages;        /* [n_pages] from position 0; NULL: those of the slot, as many as it takes */
    uint32_t n_pages;
    uint32_t restore, save; /* as in struct step_seq; 0 where the engine has no snapshots */
};

/* The whole model of a description on a device. */
int runner_open_model(struct runner *r, struct dev *d, const struct spec *s, struct ckpt *c,
                      const struct runner_size *size, struct d0 *d0, struct err *e);
/* A graph whose weights the caller keeps. logits: the graph ends in rows of logits. */
int runner_open_graph(struct runner *r, struct dev *d, const struct graph *g, const struct weights *w,
                      const struct runner_size *size, struct mem *mem, struct err *e);
void runner_close(struct runner *r);
/* One step; *out is valid until the next one. */
int runner_step(struct runner *r, const struct runner_run *runs, uint32_t n, struct step_result **out,
                struct err *e);
/* Rows whose logits fit in one message, at most `most`; at least 1. */
uint32_t runner_logit_rows(uint64_t vocab, uint32_t most);
/* First value of the graph's probes of the last step that is not finite: its name, or NULL. `out` [cap] is
 * scratch. */
const char *runner_first_not_finite(struct runner *r, float *out, size_t cap);
/* Floats that the widest probe of g has for so many rows; 0 if that cannot be told. */
size_t runner_probe_floats(const struct graph *g, uint32_t rows);

#endif
