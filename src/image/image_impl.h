/* SPDX-License-Identifier: Apache-2.0
 *
 * What the decoders share. Each reads a header into `struct image_info` (sizes before orientation), and
 * fills rows of RGBA. Limits are judged between the two, in image.c and nowhere else.
 */
#ifndef IMAGE_IMAGE_IMPL_H
#define IMAGE_IMAGE_IMPL_H

#include "image/image.h"

struct image_bytes {
    const uint8_t *data;
    size_t n;
};

typedef int image_head_fn(struct image_bytes in, struct image_info *out, struct err *e);
/* rgba [height, width, 4] of the sizes that the header gave, zeroed. */
typedef int image_pixels_fn(struct image_bytes in, const struct image_info *info, uint8_t *rgba,
                            struct err *e);

image_head_fn jpeg_head, png_head, webp_head, gif_head;
image_pixels_fn jpeg_pixels, png_pixels, webp_pixels, gif_pixels;

/* Orientation 1 to 8 of a TIFF structure, "Exif\0\0" before it or not; 1 where it says nothing or nonsense.
 */
uint8_t exif_orientation(const uint8_t *data, size_t n);

/* rgb [in_h, in_w, 3] -> *out [h, w, 3], rounded as the backend does. Torchvision has no box, hamming and
 * nearest. */
int image_resample(const uint8_t *rgb, uint32_t in_w, uint32_t in_h, enum image_filter filter,
                   enum image_backend backend, uint32_t w, uint32_t h, struct arena *arena, uint8_t **out,
                   struct err *e);

/* Rows of patches above and below, and left and right, of a canvas of tiles that are padding and no more. */
void image_padding(const struct image_plan *s, uint32_t patch, uint32_t *skip_h, uint32_t *skip_w);

#endif
