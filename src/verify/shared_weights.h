/* SPDX-License-Identifier: Apache-2.0
 *
 * The weights of one slice, read once and used by two devices: in one piece of host memory where both take it
 * in place, else loaded by each in its turn. Private to this room.
 */
#ifndef VERIFY_SHARED_WEIGHTS_H
#define VERIFY_SHARED_WEIGHTS_H

#include "load/load.h"

struct shared_weights {
    const struct graph *g;
    struct ckpt *c;
    const struct spec *spec;
    void *memory; /* NULL: not shared */
    size_t bytes;
    struct weights view[2]; /* of the two devices, when shared */
    struct weights *loaded; /* when not shared: of the device in turn */
    bool all_zero;          /* every tensor of the checkpoint that was read is zero */
    const char *not_finite; /* name of the first tensor with NaN or infinity */
};

/* Bytes that the weights of g take in one copy; ERR_MISSING or ERR_MISMATCH where the checkpoint does not
 * have them. */
int shared_weights_bytes(const struct graph *g, struct ckpt *c, const struct spec *spec, uint64_t *bytes,
                         struct err *e);
int shared_weights_open(struct shared_weights *s, const struct graph *g, struct ckpt *c,
                        const struct spec *spec, struct dev *a, struct dev *b, struct err *e);
/* Weights on device a (which 0) or b (1): valid until the next call. */
int shared_weights_on(struct shared_weights *s, unsigned which, struct dev *d, const struct weights **out,
                      struct err *e);
void shared_weights_close(struct shared_weights *s);

#endif
