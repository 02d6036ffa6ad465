/* SPDX-License-Identifier: Apache-2.0
 *
 * Streaming of weights: checkpoint bytes -> device buffers of a graph, host memory bounded by a staging
 * buffer. Every destination byte is written exactly once, and that is checked.
 */
#ifndef LOAD_LOAD_H
#define LOAD_LOAD_H

#include "dev/dev.h"
#include "spec/spec.h"

struct load_progress {
    uint64_t bytes_total;
    _Atomic uint64_t bytes_done;
};

struct load_options {
    uint64_t staging_bytes;         /* 0: 8 MiB */
    struct load_progress *progress; /* may be NULL */
    bool scan;                      /* count NaN, Inf and all-zero tensors while loading */
};

/* Device memory of all WEIGHT values of one graph (checkpoint tensors and constants). */
struct weights {
    struct dev *dev;
    struct d0_buffer **buffers; /* by graph value id; NULL for others */
    uint32_t n_values;
    uint64_t bytes;
    uint64_t n_zero_tensors, n_nonfinite_tensors; /* when scanned */
    const char *first_nonfinite;                  /* tensor name */
};

/* Loads what `g` needs; names are found through the checkpoint. Tied weights that two values name are loaded
 * once each. Errors: ERR_MISSING (tensor), ERR_MISMATCH (shape or dtype), ERR_IO, ERR_NOMEM with bytes
 * wanted. */
int weights_load(struct weights **out, const struct graph *g, struct ckpt *c, struct dev *d,
                 const struct load_options *o, struct err *e);
void weights_free(struct weights *w);

#endif
