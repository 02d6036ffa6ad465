/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to src/spec.
 */
#ifndef SPEC_SPEC_INTERNAL_H
#define SPEC_SPEC_INTERNAL_H

#include "spec/spec.h"

/* Generated at build from arch/: the prelude first, then the architecture files. */
extern const struct arch_file arch_embedded[];
extern const size_t arch_embedded_n;

struct rope_scaling {
    enum { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3 } type;
    double factor, low, high, original;
};
/* inv_freq[dim/2] in the float32 arithmetic of the reference. */
void rope_inv_freq(int64_t dim, double theta, const struct rope_scaling *s, float *out);

/* Translates the trace that the prelude returned. ERR_FORMAT: the trace is wrong, the message says where. */
int spec_translate(struct spec *s, const struct ckpt *c, const struct json *trace,
                   const struct spec_options *o, struct err *e);

#endif
