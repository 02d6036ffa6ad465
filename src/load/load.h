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
    const struct spec *spec; /* tells which tensors make up a weight; NULL: each is one, plainly stored */
    uint64_t staging_bytes;  /* 0: 8 MiB */
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

/* ---- one value, for whoever puts weights somewhere else ---- */

/* Takes `n` bytes of the value from offset `at` on; they are the caller's only until it returns. */
typedef int (*load_sink)(void *context, uint64_t at, const void *bytes, uint64_t n, struct err *e);

/* Some matrices of a value [places, ..] whose checkpoint has more of them: experts. */
struct load_choice {
    const uint32_t *matrix; /* [n] numbers in the checkpoint, ascending */
    const uint32_t *place;  /* [n] where each goes in the value */
    uint32_t n;
    uint32_t of; /* so many are in the checkpoint */
};

/* Threads that read one tensor together, for a model that is streamed once. Which of them reads which bytes
 * changes nothing. One caller at a time. */
struct load_readers;
int load_readers_open(struct load_readers **out, unsigned n_threads, struct err *e);
void load_readers_close(struct load_readers *r); /* NULL is fine */

struct load_reader {
    const struct graph *g;
    const struct spec *spec; /* as in load_options */
    struct ckpt *c;
    bool blind; /* sizes only: no byte is read, the sink gets what happens to lie in staging */
    unsigned char
        *staging; /* room for pieces; a scheme whose order differs takes more for one tensor at a time */
    uint64_t staging_bytes;
    load_sink sink;
    void *context;
    unsigned char *direct; /* memory of the whole value, filled in place of calls of the sink; NULL: none */
    struct load_readers *readers;     /* with `direct` and without `scan`: they share the reading of large
                                         tensors, past the page cache. NULL: the caller alone, through it */
    const struct load_choice *choice; /* NULL: the whole value */
    struct tensor_scan *scan;         /* of the tensors of float types that were read; NULL: not wanted */
    const char *not_finite;           /* first such tensor, when scanned */
};
/* What headers can show to be wrong, without reading: ERR_MISSING, ERR_MISMATCH. bytes: of the value. */
int load_value_check(const struct load_reader *r, uint32_t value, uint64_t *bytes, struct err *e);
/* Every byte of the value, or of the matrices chosen, exactly once. Errors: those above, ERR_IO, ERR_NOMEM,
 * the sink's own. */
int load_value_read(struct load_reader *r, uint32_t value, struct err *e);

#endif
