/* SPDX-License-Identifier: Apache-2.0
 *
 * The front of all decoders: tells formats apart by their first bytes, judges sizes, turns pictures as their
 * EXIF data says, and drops or lays out alpha. Refuses by name what it recognises and does not decode.
 */
#include <stdlib.h>
#include <string.h>

#include "image_impl.h"

static const struct format {
    enum image_format id;
    const char *name;
    image_head_fn *head;
    image_pixels_fn *pixels;
} formats[] = {
    {IMAGE_JPEG, "JPEG", jpeg_head, jpeg_pixels},
    {IMAGE_PNG, "PNG", png_head, png_pixels},
    {IMAGE_WEBP, "WebP", webp_head, webp_pixels},
    {IMAGE_GIF, "GIF", gif_head, gif_pixels},
};

/* First bytes; a dot stands for any. Those without a decoder are known by name only. */
static const struct magic {
    const char *bytes;
    size_t n;
    int format; /* of `formats`, or -1 */
    const char *name;
} magics[] = {
    {"\xff\xd8\xff", 3, IMAGE_JPEG, NULL},
    {"\x89PNG\r\n\x1a\n", 8, IMAGE_PNG, NULL},
    {"RIFF....WEBP", 12, IMAGE_WEBP, NULL},
    {"GIF87a", 6, IMAGE_GIF, NULL},
    {"GIF89a", 6, IMAGE_GIF, NULL},
    {"BM", 2, -1, "BMP"},
    {"II*\0", 4, -1, "TIFF"},
    {"MM\0*", 4, -1, "TIFF"},
    {"....ftypavif", 12, -1, "AVIF"},
    {"....ftyphei", 11, -1, "HEIF"},
    {"....ftypmif1", 12, -1, "HEIF"},
    {"\0\0\0\x0cjP  ", 8, -1, "JPEG 2000"},
    {"\0\0\x01\0", 4, -1, "ICO"},
    {"<svg", 4, -1, "SVG"},
    {"<?xml", 5, -1, "SVG"},
};

const char *image_format_name(enum image_format f)
{
    return formats[f].name;
}

static bool begins(struct image_bytes in, const struct magic *m)
{
    if (in.n < m->n)
        return false;
    for (size_t i = 0; i < m->n; i++)
        if (m->bytes[i] != '.' && (uint8_t)m->bytes[i] != in.data[i])
            return false;
    return true;
}

static int find_format(struct image_bytes in, const struct format **out, struct err *e)
{
    for (size_t i = 0; i < ARRAY_LEN(magics); i++) {
        if (!begins(in, &magics[i]))
            continue;
        if (magics[i].format < 0)
            return err_set(e, ERR_UNSUPPORTED, "%s pictures are not read; JPEG, PNG, WebP and GIF are",
                           magics[i].name);
        *out = &formats[magics[i].format];
        return ERR_OK;
    }
    return err_set(e, ERR_FORMAT, "no picture: the first bytes are of no known format");
}

static int check_sizes(const struct format *f, const struct image_info *info,
                       const struct image_limits *limits, struct err *e)
{
    uint64_t max_pixels = limits && limits->max_pixels ? limits->max_pixels : IMAGE_MAX_PIXELS;
    uint32_t max_side = limits && limits->max_side ? limits->max_side : IMAGE_MAX_SIDE;
    if (info->width == 0 || info->height == 0)
        return err_set(e, ERR_FORMAT, "%s: a picture of %u x %u", f->name, info->width, info->height);
    if (info->width > max_side || info->height > max_side ||
        (uint64_t)info->width * info->height > max_pixels)
        return err_set(e, ERR_LIMIT, "%s: %u x %u pixels; at most %llu in all and %u a side are read",
                       f->name, info->width, info->height, (unsigned long long)max_pixels, max_side);
    return ERR_OK;
}

static bool turned(uint8_t orientation)
{
    return orientation >= 5;
}

/* *stored: sizes as the file has them; its orientation says what becomes of them. */
static int read_head(struct image_bytes in, const struct image_limits *limits, const struct format **format,
                     struct image_info *stored, struct err *e)
{
    int rc = find_format(in, format, e);
    if (rc)
        return rc;
    *stored = (struct image_info){.format = (*format)->id, .orientation = 1};
    rc = (*format)->head(in, stored, e);
    return rc ? rc : check_sizes(*format, stored, limits, e);
}

static struct image_info as_seen(struct image_info stored)
{
    if (turned(stored.orientation)) {
        uint32_t w = stored.width;
        stored.width = stored.height;
        stored.height = w;
    }
    return stored;
}

int image_probe(const void *bytes, size_t n, const struct image_limits *limits, struct image_info *out,
                struct err *e)
{
    const struct format *format;
    struct image_info stored;
    int rc = read_head((struct image_bytes){bytes, n}, limits, &format, &stored, e);
    if (rc == ERR_OK)
        *out = as_seen(stored);
    return rc;
}

/* One pixel over white, in the fixed point of Pillow's alpha_composite: 7 bits beside the byte. */
static void over_white(const uint8_t *rgba, uint8_t *rgb)
{
    uint32_t share = rgba[3] * 128u, rest = 255u * 128u - share;
    for (int c = 0; c < 3; c++) {
        uint32_t t = rgba[c] * share + 255u * rest + (128u << 7);
        rgb[c] = (uint8_t)((((t >> 8) + t) >> 8) >> 7);
    }
}

/* rgba [stored height, stored width, 4] -> rgb [height, width, 3], turned. Orientation o: the stored first
 * row is seen at the top (1, 2), bottom (3, 4), left (5, 8 mirrored), right (6, 7 mirrored). */
static void turn(const uint8_t *rgba, const struct image_info *stored, enum image_alpha alpha, uint8_t *rgb)
{
    struct image_info seen = as_seen(*stored);
    uint8_t o = stored->orientation;
    bool flip_x = o == 2 || o == 3 || o == 7 || o == 8; /* of the stored columns */
    bool flip_y = o == 3 || o == 4 || o == 6 || o == 7; /* of the stored rows */
    for (uint32_t y = 0; y < seen.height; y++)
        for (uint32_t x = 0; x < seen.width; x++, rgb += 3) {
            uint32_t sx = turned(o) ? y : x, sy = turned(o) ? x : y;
            sx = flip_x ? stored->width - 1 - sx : sx;
            sy = flip_y ? stored->height - 1 - sy : sy;
            const uint8_t *from = rgba + ((size_t)sy * stored->width + sx) * 4;
            if (alpha == IMAGE_ALPHA_WHITE)
                over_white(from, rgb);
            else
                memcpy(rgb, from, 3);
        }
}

int image_decode(const void *bytes, size_t n, const struct image_limits *limits, enum image_alpha alpha,
                 struct arena *arena, struct image *out, struct err *e)
{
    struct image_bytes in = {bytes, n};
    const struct format *format;
    struct image_info stored;
    int rc = read_head(in, limits, &format, &stored, e);
    if (rc)
        return rc;
    size_t pixels = (size_t)stored.width * stored.height;
    uint8_t *rgba = calloc(pixels, 4);
    if (!rgba)
        return err_set(e, ERR_NOMEM, "out of memory for a picture of %u x %u", stored.width, stored.height);
    rc = format->pixels(in, &stored, rgba, e);
    if (rc == ERR_OK) {
        uint8_t *rgb = arena_alloc_n(arena, pixels, 3);
        if (rgb) {
            turn(rgba, &stored, alpha, rgb);
            *out = (struct image){as_seen(stored), rgb};
        } else {
            rc = err_set(e, ERR_NOMEM, "out of memory for a picture of %u x %u", stored.width, stored.height);
        }
    }
    free(rgba);
    return rc;
}
