/* SPDX-License-Identifier: Apache-2.0
 *
 * What image_options.c and image_keys.c share: the keys of an image processor as they are read, before they
 * are put together.
 */
#ifndef IMAGE_IMAGE_OPTIONS_H
#define IMAGE_IMAGE_OPTIONS_H

#include "image/image.h"

enum background { BACKGROUND_NONE, BACKGROUND_WHITE, BACKGROUND_OTHER };

/* What keys are read into before it is put together. */
struct options {
    bool do_resize, do_crop, do_rescale, do_normalise, do_pad, do_tiles, after_resize;
    bool square; /* what a bare number for a size means: both sides, or the shorter one */
    double factor, mean[3], std[3], pan_min_ratio;
    enum image_filter filter;
    struct image_size size, crop, max_tile, area; /* area: pixels, wins over size (Qwen) */
    uint32_t patch, frames, merge, max_side_patches, pan_min_crop, pan_max_crops, tile_tokens;
    uint64_t max_patches, min_tiles;
    uint32_t n_pinpoints, pinpoints[IMAGE_MAX_PINPOINTS][2]; /* the count lies before its list */
    enum background background;
};

/* What a directory says over what *o has; keys that the rule does not read change nothing. ERR_UNSUPPORTED (a
 * key or value that is not known, named), ERR_FORMAT (of another type), ERR_LIMIT. */
int image_read_keys(const struct json *dict, enum image_rule rule, struct options *o, struct err *e);

/* A number, {"height", "width"} or [height, width] of equal sides, or {"longest_edge"}. */
bool image_side_of(const struct json *v, uint32_t *out);

int image_key_wrong(struct err *e, const char *key, const char *what); /* ERR_FORMAT */

#endif
