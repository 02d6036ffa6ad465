/* SPDX-License-Identifier: Apache-2.0
 *
 * Pixels along a plan: square, resizes, canvas, tiles or patches, then bytes to float32. Owns scratch while
 * it works, no more than the pictures that the plan bounds. Refuses pictures of other sizes than the plan's.
 *
 * All steps before the last are on bytes, so the last is a table of 256 values for each channel, made with
 * the reference's own roundings: numpy in two steps, torchvision in one that is fused.
 */
#include <string.h>

#include "image/image_impl.h"

enum { CHANNELS = 3, LEVELS = 256 };

struct picture {
    const uint8_t *rgb; /* [h, w, 3] */
    uint32_t w, h;
};

static void fill_table(const struct image_processor *p, float table[CHANNELS][LEVELS])
{
    const bool inverse = p->rule == IMAGE_NAVIT && p->backend == IMAGE_PILLOW;
    for (int c = 0; c < CHANNELS; c++) {
        float mean = (float)p->mean[c], std = (float)p->std[c], factor = (float)p->factor;
        if (p->backend == IMAGE_TORCHVISION && p->do_rescale) {
            mean *= (float)(1.0 / p->factor);
            std *= (float)(1.0 / p->factor);
        }
        for (int i = 0; i < LEVELS; i++) {
            float x = (float)i;
            if (p->do_rescale && p->backend == IMAGE_PILLOW)
                x = (float)((double)i * p->factor);
            else if (p->do_rescale && !p->do_normalise)
                x *= factor;
            if (p->do_normalise) /* Kimi's own code takes the inverse first */
                x = inverse ? (x - mean) * (1 / std) : (x - mean) / std;
            table[c][i] = x;
        }
    }
}

/* A picture laid on a canvas of one colour, its corner at (x, y), which may lie outside. */
static int lay(struct picture from, uint32_t w, uint32_t h, int64_t x, int64_t y,
               const uint8_t colour[CHANNELS], struct arena *a, struct picture *out, struct err *e)
{
    uint64_t pixels = (uint64_t)w * h;
    uint8_t *rgb = arena_alloc_n(a, pixels, CHANNELS);
    if (!rgb)
        return err_set(e, ERR_NOMEM, "out of memory for a picture of %u x %u", w, h);
    for (uint64_t i = 0; i < pixels && (colour[0] || colour[1] || colour[2]); i++)
        memcpy(rgb + i * CHANNELS, colour, CHANNELS);
    int64_t x0 = x < 0 ? 0 : x, x1 = x + from.w > w ? w : x + from.w;
    int64_t y0 = y < 0 ? 0 : y, y1 = y + from.h > h ? h : y + from.h;
    for (int64_t row = y0; row < y1 && x0 < x1; row++)
        memcpy(rgb + (size_t)(row * w + x0) * CHANNELS,
               from.rgb + (size_t)((row - y) * from.w + (x0 - x)) * CHANNELS, (size_t)(x1 - x0) * CHANNELS);
    *out = (struct picture){rgb, w, h};
    return ERR_OK;
}

static int resize_to(const struct image_processor *p, struct picture from, uint32_t w, uint32_t h,
                     struct arena *a, struct picture *out, struct err *e)
{
    if (from.w == w && from.h == h) {
        *out = from;
        return ERR_OK;
    }
    uint8_t *rgb;
    int rc = image_resample(from.rgb, from.w, from.h, p->filter, p->backend, w, h, a, &rgb, e);
    if (rc == ERR_OK)
        *out = (struct picture){rgb, w, h};
    return rc;
}

/* out [3, h, w] */
static void write_tile(struct picture m, const float table[CHANNELS][LEVELS], float *out)
{
    size_t n = (size_t)m.w * m.h;
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < CHANNELS; c++)
            out[c * n + i] = table[c][m.rgb[i * CHANNELS + c]];
}

/* out [grid_h * grid_w, 3, frames, patch, patch]; rows in blocks of merge x merge patches */
static void write_patches(const struct image_processor *p, struct picture m,
                          const float table[CHANNELS][LEVELS], float *out)
{
    uint32_t block = p->rule == IMAGE_SMART ? p->merge : 1, side = block * p->patch;
    size_t plane = (size_t)p->patch * p->patch;
    for (uint32_t by = 0; by + side <= m.h; by += side)
        for (uint32_t bx = 0; bx + side <= m.w; bx += side)
            for (uint32_t i = 0; i < block * block; i++) {
                uint32_t y0 = by + i / block * p->patch, x0 = bx + i % block * p->patch;
                for (size_t c = 0; c < CHANNELS; c++) {
                    float *first = out;
                    for (uint32_t y = 0; y < p->patch; y++) {
                        const uint8_t *from = m.rgb + ((size_t)(y0 + y) * m.w + x0) * CHANNELS + c;
                        for (uint32_t x = 0; x < p->patch; x++)
                            *out++ = table[c][from[(size_t)x * CHANNELS]];
                    }
                    for (uint32_t f = 1; f < p->frames; f++, out += plane)
                        memcpy(out, first, plane * sizeof *out);
                }
            }
}

/* The whole of a picture as a tile. */
static int whole_tile(const struct image_processor *p, const struct image_plan *s, struct picture from,
                      const float table[CHANNELS][LEVELS], struct arena *a, float **out, struct err *e)
{
    struct picture tile;
    int rc = resize_to(p, from, s->tile_w, s->tile_h, a, &tile, e);
    if (rc == ERR_OK) {
        write_tile(tile, table, *out);
        *out += s->row_floats;
    }
    return rc;
}

static int write_tiles(const struct image_processor *p, const struct image_plan *s, struct picture picture,
                       struct picture canvas, const float table[CHANNELS][LEVELS], struct arena *a,
                       float *out, struct err *e)
{
    static const uint8_t black[CHANNELS];
    struct picture whole = s->whole_of_canvas ? canvas : picture, cut;
    int rc = s->whole_first ? whole_tile(p, s, whole, table, a, &out, e) : ERR_OK;
    for (uint32_t i = 0; rc == ERR_OK && i < s->columns * s->rows; i++) {
        uint32_t x = i % s->columns * s->cut_w, y = i / s->columns * s->cut_h;
        uint32_t w = canvas.w - x < s->cut_w ? canvas.w - x : s->cut_w;
        uint32_t h = canvas.h - y < s->cut_h ? canvas.h - y : s->cut_h;
        cut = canvas;
        if (w != canvas.w || h != canvas.h)
            rc = lay(canvas, w, h, -(int64_t)x, -(int64_t)y, black, a, &cut, e);
        if (rc == ERR_OK)
            rc = whole_tile(p, s, cut, table, a, &out, e);
    }
    return rc == ERR_OK && s->whole_last ? whole_tile(p, s, whole, table, a, &out, e) : rc;
}

static int along(const struct image_processor *p, const struct image_plan *s, struct picture picture,
                 struct arena *a, float *out, struct err *e)
{
    static const uint8_t black[CHANNELS];
    float table[CHANNELS][LEVELS];
    int rc = ERR_OK;
    if (s->square) {
        uint8_t mean[CHANNELS];
        for (int c = 0; c < CHANNELS; c++) {
            double level = p->mean[c] * 255;
            mean[c] = (uint8_t)(level < 0 ? 0 : level > 255 ? 255 : level);
        }
        rc = lay(picture, s->square, s->square, (s->square - picture.w) / 2, (s->square - picture.h) / 2,
                 mean, a, &picture, e);
    }
    struct picture canvas = picture;
    for (uint32_t i = 0; rc == ERR_OK && i < s->n_resizes; i++)
        rc = resize_to(p, canvas, s->resize[i][0], s->resize[i][1], a, &canvas, e);
    if (rc == ERR_OK && (canvas.w != s->canvas_w || canvas.h != s->canvas_h || s->at_x || s->at_y))
        rc = lay(canvas, s->canvas_w, s->canvas_h, s->at_x, s->at_y, black, a, &canvas, e);
    if (rc)
        return rc;
    fill_table(p, table);
    if (p->rule == IMAGE_SMART || p->rule == IMAGE_NAVIT)
        write_patches(p, canvas, table, out);
    else
        rc = write_tiles(p, s, picture, canvas, table, a, out, e);
    return rc;
}

int image_process(const struct image_processor *p, const struct image_plan *plan, const struct image *m,
                  struct arena *arena, float **out, struct err *e)
{
    uint64_t n, bytes;
    if (m->info.width != plan->width || m->info.height != plan->height)
        return err_set(e, ERR_MISMATCH, "a picture of %u x %u, planned for %u x %u", m->info.width,
                       m->info.height, plan->width, plan->height);
    if (p->refuses_alpha && m->info.has_alpha)
        return err_set(e, ERR_UNSUPPORTED,
                       "a picture with transparency: %s lays it over a background after resizing", p->name);
    if (!mul_u64(plan->n_rows, plan->row_floats, &n) || !mul_u64(n, sizeof **out, &bytes))
        return err_set(e, ERR_LIMIT, "a picture of %u x %u", m->info.width, m->info.height);
    float *values = arena_alloc(arena, bytes);
    if (!values)
        return err_set(e, ERR_NOMEM, "out of memory for %llu values of a picture", (unsigned long long)n);
    struct arena scratch;
    arena_init(&scratch, arena->mem, arena->tag);
    int rc = along(p, plan, (struct picture){m->rgb, plan->width, plan->height}, &scratch, values, e);
    arena_release(&scratch);
    if (rc == ERR_OK)
        *out = values;
    return rc;
}
