/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults that are planted in an opened model: in attributes and inputs of its graph, in the bytes of its
 * weights file, or in what its device sees. tests/parity/planted.def lists them.
 */
#ifndef PARITY_LOCATE_PLANT_H
#define PARITY_LOCATE_PLANT_H

#include "dev/dev.h"
#include "tiny.h"

struct plant {
    struct tiny_model *m;
    struct graph *g;
    uint32_t n_tokens;   /* of the prompt */
    const char *weights; /* path of the only shard */
    const char *trace;   /* of the intact model, with every choice */
    bool dry;            /* only whether the fault fits */
    struct plant_undo *undone;
    struct err *e;
};

/* Makes the fault in node `i`, or with p->dry tells whether it fits there. A fault that would change nothing
 * does not fit. Bytes of weights are put back by plant_undo; the graph is the model's, and goes with it. */
typedef bool plant_fn(struct plant *p, uint32_t i, uint32_t key, double value);

struct fault {
    const char *name;
    uint32_t op;
    plant_fn *make;
    uint32_t key;
    double value;
    plant_fn *prepare; /* NULL: the reference is of the model as it is */
    uint32_t prepare_key;
    double prepare_value;
};
extern const struct fault plant_faults[];
extern const size_t n_plant_faults;

void plant_undo(struct plant *p);

/* A device on which queries whose positions stand in an input of their own do not see their own key. Its
 * buffers and queues are those of `cpu`, which must outlive it; one at a time. */
void plant_device(struct dev *out, const struct dev *cpu);

#endif
