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

#define CHANNEL_LIMIT_PIXELS 1e-5 /* two exact readings of one rule are bit-equal; this is rounding alone */
double channel_largest_difference(const float *a, const float *b, size_t n);

struct channel_order {
    bool told, same; /* the pictures stand in the places that the recording has for them */
    char words[240];
};
/* By the pixels of the recording; not told where it has none, or where they are not ours. */
int channel_order(const struct channel_model *m, const struct channel_case *c, const struct reference *r,
                  struct channel_order *out, struct err *e);

/* The conversation of a recording with its pictures as parts that name one by number, for fetch. In the
 * arena. */
int channel_recorded_messages(const struct reference *r, struct arena *arena, const struct json **out,
                              struct err *e);
int channel_recorded_picture(void *ctx, const char *where, struct arena *arena, const void **bytes, size_t *n,
                             struct err *e);

#endif
