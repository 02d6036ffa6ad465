/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the channels share.
 */
#ifndef VERIFY_CHANNEL_IMPL_H
#define VERIFY_CHANNEL_IMPL_H

#include "verify/verify.h"

struct channel_pixel_values {
    float *values; /* [n_values]: all pictures behind each other, as the image processor gives them */
    size_t n_values;
};
/* The pixels alone, in the order of the processor, with the changes of the mask that are about them; backend
 * NULL: the directory's. In the arena. ERR_MISSING: nothing to change. The front has a processor. */
int channel_pixel_values(const struct channel_model *m, const struct channel_case *c,
                         const enum image_backend *backend, uint32_t changes, struct arena *arena,
                         struct channel_pixel_values *out, struct err *e);

#endif
