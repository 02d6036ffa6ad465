/* SPDX-License-Identifier: Apache-2.0
 *
 * Pictures from bytes: JPEG, PNG, WebP, the first frame of a GIF, as rows of RGB. Everything here is hostile
 * until shown otherwise: sizes are judged from the header before anything is allocated, and a picture that
 * is cut short or damaged is refused, never handed on half grey. Refuses other formats by name.
 *
 * The pixels are those that Pillow gives after exif_transpose and convert("RGB"), which is how references
 * load pictures, but for 16-bit grey (docs/images.md).
 */
#ifndef IMAGE_IMAGE_H
#define IMAGE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

enum image_format { IMAGE_JPEG, IMAGE_PNG, IMAGE_WEBP, IMAGE_GIF };
const char *image_format_name(enum image_format f); /* "JPEG" */

enum image_alpha {
    IMAGE_ALPHA_DROP,  /* the colours as they are, whatever they cover */
    IMAGE_ALPHA_WHITE, /* laid over white */
};

struct image_limits {
    uint64_t max_pixels; /* width * height; 0: IMAGE_MAX_PIXELS */
    uint32_t max_side;   /* 0: IMAGE_MAX_SIDE */
};
#define IMAGE_MAX_PIXELS ((uint64_t)1 << 26)
#define IMAGE_MAX_SIDE   UINT32_C(65535)

struct image_info {
    enum image_format format;
    uint32_t width, height; /* as seen: after the orientation was applied */
    uint8_t orientation;    /* of the EXIF data, 1 to 8; 1 where there is none */
    bool has_alpha;
    bool animated; /* more frames follow the first one */
};

struct image {
    struct image_info info;
    uint8_t *rgb; /* [height, width, 3], rows from the top; in the arena that the caller gave */
};

/* What the header says, without decoding. ERR_FORMAT, ERR_UNSUPPORTED (names the format), ERR_LIMIT. */
int image_probe(const void *bytes, size_t n, const struct image_limits *limits, struct image_info *out,
                struct err *e);

/* Pixels into the arena, beside about as much memory while it works (JPEG: up to 6 bytes a pixel more).
 * limits may be NULL. ERR_FORMAT (damaged, cut short), ERR_UNSUPPORTED, ERR_LIMIT, ERR_NOMEM. */
int image_decode(const void *bytes, size_t n, const struct image_limits *limits, enum image_alpha alpha,
                 struct arena *arena, struct image *out, struct err *e);

enum image_filter {
    IMAGE_NEAREST,
    IMAGE_BOX,
    IMAGE_BILINEAR,
    IMAGE_HAMMING,
    IMAGE_BICUBIC,
    IMAGE_LANCZOS,
    IMAGE_N_FILTERS
};
const char *image_filter_name(enum image_filter f); /* "bicubic" */

/* rgb [in_h, in_w, 3] -> *out [h, w, 3] in the arena, the bytes that Pillow's Image.resize gives. ERR_INVALID
 * (a side of 0), ERR_NOMEM, ERR_LIMIT. */
int image_resize(const uint8_t *rgb, uint32_t in_w, uint32_t in_h, enum image_filter filter, uint32_t w,
                 uint32_t h, struct arena *arena, uint8_t **out, struct err *e);

/* ---- what a tower must be told of the patches of pictures ---- */

struct image_grid {
    uint32_t t, h, w; /* patches in time, down and across; h and w are multiples of the tower's merge */
};

enum image_taps { IMAGE_TAPS_NONE, IMAGE_TAPS_BILINEAR, IMAGE_TAPS_BICUBIC };

struct image_tower {
    uint32_t merge;       /* merge x merge patches become one row */
    uint32_t window;      /* side of a window in merged rows; 0: no windows */
    uint32_t table_side;  /* of the learned table of places, where there is one */
    enum image_taps taps; /* how it is stretched: 4 taps of a line between its corners, or 16 (a = -0.75) */
};

/* The inputs of a tower, for the patches of all pictures: T rows that become R. A patch has a number in the
 * order of the processor: picture by picture, frame by frame, the merge x merge patches of a merged row
 * together, these from the top left. Rows are in that order, or window by window where there are windows. */
struct image_rows {
    size_t n_rows, n_merged;  /* T, R */
    int32_t *patch;           /* [T] number of the patch in each row */
    int32_t *places;          /* [T, 3] 0, and its place down and across */
    int32_t *spans, *windows; /* [T, 2] first row and the one behind the last: of its frame, and its window */
    int32_t *merge; /* [R, merge * merge] rows that make each merged row, in the order of the processor */
    size_t n_taps;  /* 0, 4 or 16 */
    int32_t *table_rows;  /* [T, n_taps] */
    float *table_weights; /* [T, n_taps] */
};

#define IMAGE_MAX_PATCHES ((uint64_t)1 << 22) /* of all pictures together */

/* Everything in the arena. ERR_INVALID (a side of 0, or that is no multiple of merge), ERR_LIMIT, ERR_NOMEM.
 */
int image_tower_rows(const struct image_tower *tower, const struct image_grid *grids, size_t n,
                     struct arena *arena, struct image_rows *out, struct err *e);

#endif
