/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: how much memory decoding and processing a picture take at most, from its header and its plan. Each
 * sum follows the allocations of the file that it is about; the unit test `picture_memory` holds them against
 * what is really taken. Refuses to look at pixels.
 */
#include "image/image_impl.h"

enum { CHANNELS = 3, BLOCK = 1 << 20, SMALL = 64 };

uint64_t image_in_arena(uint64_t bytes)
{
    bytes = sat_add(bytes, SMALL);
    return bytes < BLOCK ? 2 * bytes : bytes;
}

static uint64_t rgb(uint64_t w, uint64_t h)
{
    return image_in_arena(sat_mul(sat_mul(w, h), CHANNELS));
}

uint64_t image_decode_bytes(const struct image_info *info)
{
    const uint64_t pixels = sat_mul(info->width, info->height);
    return sat_add(sat_add(sat_mul(pixels, 4), rgb(info->width, info->height)),
                   sat_add(info->decoder_bytes, BLOCK)); /* the arena's last block */
}

/* ---- a plan, step by step as image_process.c goes ---- */

struct memory {
    uint64_t kept;    /* pictures on the way */
    uint64_t passing; /* largest that goes before the next step */
};

/* Weights of one axis: first, n, and fixed and exact ones; their number grows with the reduction. Lanczos,
 * the widest filter, has 3 pixels on either side. */
static uint64_t taps(uint64_t inputs, uint64_t outputs)
{
    const uint64_t grown = inputs > outputs ? inputs / outputs + 1 : 1, width = 2 * (3 * grown) + 3;
    return sat_mul(outputs, 8 + 12 * width);
}

static void resize(struct memory *m, uint64_t from_w, uint64_t from_h, uint64_t w, uint64_t h)
{
    if (from_w == w && from_h == h)
        return;
    /* as if either went first, a bound; one way alone needs nothing between */
    const uint64_t across = sat_mul(w, from_h), down = sat_mul(from_w, h);
    const uint64_t between = from_w == w || from_h == h ? 0 : across > down ? across : down;
    uint64_t passing = sat_add(sat_mul(between, CHANNELS), sat_mul(4 * CHANNELS, w > from_w ? w : from_w));
    passing = sat_add(passing, sat_add(taps(from_w, w), taps(from_h, h)));
    m->passing = passing > m->passing ? passing : m->passing;
    m->kept = sat_add(m->kept, rgb(w, h));
}

uint64_t image_process_bytes(const struct image_processor *p, const struct image_plan *s)
{
    struct memory m = {.kept = 2 * BLOCK}; /* the last blocks of two arenas */
    uint64_t w = s->square ? s->square : s->width, h = s->square ? s->square : s->height;
    const uint64_t first_w = w, first_h = h;
    m.kept = sat_add(m.kept, image_in_arena(sat_mul(sat_mul(s->n_rows, s->row_floats), sizeof(float))));
    if (s->square)
        m.kept = sat_add(m.kept, rgb(w, h));
    for (uint32_t i = 0; i < s->n_resizes; i++) {
        resize(&m, w, h, s->resize[i][0], s->resize[i][1]);
        w = s->resize[i][0];
        h = s->resize[i][1];
    }
    if (w != s->canvas_w || h != s->canvas_h || s->at_x || s->at_y)
        m.kept = sat_add(m.kept, rgb(s->canvas_w, s->canvas_h));
    if (p->rule != IMAGE_SMART && p->rule != IMAGE_NAVIT) {
        const uint64_t n = sat_mul(s->columns, s->rows);
        struct memory tile = {0};
        if (n)
            resize(&tile, s->cut_w, s->cut_h, s->tile_w, s->tile_h);
        if (n && (s->canvas_w % s->cut_w || s->canvas_h % s->cut_h)) /* the last ones are smaller */
            tile.kept = rgb(s->tile_w, s->tile_h);
        if (s->cut_w != s->canvas_w || s->cut_h != s->canvas_h)
            tile.kept = sat_add(tile.kept, rgb(s->cut_w, s->cut_h));
        m.kept = sat_add(m.kept, sat_mul(n, tile.kept));
        m.passing = tile.passing > m.passing ? tile.passing : m.passing;
        for (int i = 0; i < s->whole_first + s->whole_last; i++)
            resize(&m, s->whole_of_canvas ? s->canvas_w : first_w, s->whole_of_canvas ? s->canvas_h : first_h,
                   s->tile_w, s->tile_h);
    }
    return sat_add(m.kept, m.passing);
}

uint64_t image_tower_bytes(const struct image_tower *w, uint64_t n_rows, uint64_t n_merged)
{
    const uint64_t unit = (uint64_t)w->merge * w->merge, taps_of_row = 16; /* of the widest table */
    const uint64_t row = 1 + 3 + 2 + 2 + 2 * (taps_of_row + 1) + 1;
    uint64_t bytes = sat_add(sat_mul(n_rows + 1, 4 * row), sat_mul(n_merged + 1, 4 * (unit + 1)));
    return sat_add(sat_mul(bytes, 2), BLOCK); /* nine pieces, some of them in blocks that are not filled */
}
