/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: from the grids of pictures to the numbers that a tower takes beside the pixels: order of the rows,
 * places, frames, windows, merged rows, shares of a learned table. As transformers' vision_utils.py has them,
 * float32 where it has float32. Refuses grids that do not divide, and more patches than fit.
 */
#include <math.h>
#include <string.h>

#include "base/str.h"
#include "image/image.h"

struct laying {
    const struct image_tower *tower;
    struct image_rows *out;
    uint32_t unit;     /* patches of a merged row */
    size_t row, patch; /* next row; first patch of the frame */
    size_t merged;     /* first merged row of the frame */
};

static int count_rows(const struct image_tower *w, const struct image_grid *grids, size_t n,
                      struct image_rows *out, struct err *e)
{
    uint64_t all = 0;
    if (w->merge == 0 || w->merge > 64 || (w->taps && w->table_side == 0))
        return err_set(e, ERR_INVALID, "a tower that merges %u x %u patches, with a table of %u", w->merge,
                       w->merge, w->table_side);
    for (size_t i = 0; i < n; i++) {
        const struct image_grid *g = &grids[i];
        uint64_t patches;
        if (w->taps == IMAGE_TAPS_EXACT && (g->h > w->table_side || g->w > w->table_side))
            return err_set(e, ERR_INVALID, "picture %zu has %u x %u patches, and the table of places %u x %u",
                           i, g->h, g->w, w->table_side, w->table_side);
        if (g->t == 0 || g->h == 0 || g->w == 0 || g->h % w->merge || g->w % w->merge)
            return err_set(e, ERR_INVALID,
                           "picture %zu has %u x %u x %u patches, which %u x %u do not divide", i, g->t, g->h,
                           g->w, w->merge, w->merge);
        if (!mul_u64(g->h, g->w, &patches) || !mul_u64(patches, g->t, &patches) ||
            !add_u64(all, patches, &all) || all > IMAGE_MAX_PATCHES)
            return err_set(e, ERR_LIMIT, "more than %llu patches of pictures",
                           (unsigned long long)IMAGE_MAX_PATCHES);
    }
    out->n_rows = (size_t)all;
    out->n_merged = (size_t)(all / ((uint64_t)w->merge * w->merge));
    return ERR_OK;
}

/* One axis: taps of the table and their weights, for place `at` of `size`. */
static size_t axis_taps(const struct image_tower *w, uint32_t at, uint32_t size, int32_t taps[4],
                        float weights[4])
{
    const float side = (float)w->table_side;
    const bool cubic = w->taps == IMAGE_TAPS_BICUBIC, corners = w->taps == IMAGE_TAPS_BILINEAR;
    const size_t n = cubic ? 4 : 2;
    const float last = (float)(size > 1 ? size - 1 : 1);
    const float from =
        corners ? (float)at * (side - 1) / last : ((float)at + 0.5f) * side / (float)size - 0.5f;
    const float low = floorf(from), a = -0.75f;
    for (size_t i = 0; i < n; i++) {
        const float offset = cubic ? (float)i - 1 : (float)i, d = fabsf(from - low - offset);
        const int64_t tap = (int64_t)low + (int64_t)offset;
        taps[i] = (int32_t)(tap < 0 ? 0 : tap >= w->table_side ? (int64_t)w->table_side - 1 : tap);
        if (!cubic)
            weights[i] = 1 - d > 0 ? 1 - d : 0;
        else if (d <= 1)
            weights[i] = ((a + 2) * d - (a + 3)) * d * d + 1;
        else
            weights[i] = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
    }
    return n;
}

static void put_taps(struct laying *l, const struct image_grid *g, uint32_t y, uint32_t x)
{
    struct image_rows *out = l->out;
    int32_t down[4], across[4];
    float by_y[4], by_x[4];
    if (l->tower->taps == IMAGE_TAPS_EXACT) {
        out->table_rows[l->row] = (int32_t)(y * l->tower->table_side + x);
        out->table_weights[l->row] = 1;
        return;
    }
    const size_t n = axis_taps(l->tower, y, g->h, down, by_y);
    axis_taps(l->tower, x, g->w, across, by_x);
    for (size_t i = 0; i < n * n; i++) {
        out->table_rows[l->row * n * n + i] = down[i / n] * (int32_t)l->tower->table_side + across[i % n];
        out->table_weights[l->row * n * n + i] = by_y[i / n] * by_x[i % n];
    }
}

/* The patches of merged row (my, mx) of a frame. */
static void put_merged(struct laying *l, const struct image_grid *g, uint32_t my, uint32_t mx)
{
    struct image_rows *out = l->out;
    const uint32_t m = l->tower->merge;
    const size_t number = (size_t)my * (g->w / m) + mx;
    for (uint32_t k = 0; k < l->unit; k++, l->row++) {
        const uint32_t y = my * m + k / m, x = mx * m + k % m;
        const size_t within = l->tower->raster ? (size_t)y * g->w + x : number * l->unit + k;
        out->patch[l->row] = (int32_t)(l->patch + within);
        out->places[3 * l->row] = 0;
        out->places[3 * l->row + 1] = (int32_t)y;
        out->places[3 * l->row + 2] = (int32_t)x;
        out->merge[(l->merged + number) * l->unit + k] = (int32_t)l->row;
        if (out->n_taps)
            put_taps(l, g, y, x);
    }
}

static void mark(int32_t *spans, size_t from, size_t to)
{
    for (size_t r = from; r < to; r++) {
        spans[2 * r] = (int32_t)from;
        spans[2 * r + 1] = (int32_t)to;
    }
}

static void put_frame(struct laying *l, const struct image_grid *g)
{
    const uint32_t m = l->tower->merge, high = g->h / m, wide = g->w / m, larger = high > wide ? high : wide,
                   side = l->tower->window ? l->tower->window : larger;
    const size_t first = l->row;
    for (uint32_t wy = 0; wy < high; wy += side)
        for (uint32_t wx = 0; wx < wide; wx += side) {
            const size_t begin = l->row;
            for (uint32_t y = wy; y < high && y - wy < side; y++)
                for (uint32_t x = wx; x < wide && x - wx < side; x++)
                    put_merged(l, g, y, x);
            mark(l->out->windows, begin, l->row);
        }
    mark(l->out->spans, first, l->row);
    l->patch += (size_t)g->h * g->w;
    l->merged += (size_t)high * wide;
}

static size_t n_taps(enum image_taps taps)
{
    static const uint8_t n[] = {[IMAGE_TAPS_NONE] = 0,
                                [IMAGE_TAPS_BILINEAR] = 4,
                                [IMAGE_TAPS_CENTRES] = 4,
                                [IMAGE_TAPS_BICUBIC] = 16,
                                [IMAGE_TAPS_EXACT] = 1};
    return n[taps];
}

int image_tower_rows(const struct image_tower *tower, const struct image_grid *grids, size_t n,
                     struct arena *arena, struct image_rows *out, struct err *e)
{
    *out = (struct image_rows){0};
    int rc = count_rows(tower, grids, n, out, e);
    if (rc)
        return rc;
    const size_t t = out->n_rows ? out->n_rows : 1;
    out->n_taps = n_taps(tower->taps);
    out->patch = arena_alloc_n(arena, t, sizeof *out->patch);
    out->places = arena_alloc_n(arena, t, 3 * sizeof *out->places);
    out->spans = arena_alloc_n(arena, t, 2 * sizeof *out->spans);
    out->windows = arena_alloc_n(arena, t, 2 * sizeof *out->windows);
    out->merge = arena_alloc_n(arena, t, sizeof *out->merge);
    out->table_rows = arena_alloc_n(arena, t, (out->n_taps + 1) * sizeof *out->table_rows);
    out->table_weights = arena_alloc_n(arena, t, (out->n_taps + 1) * sizeof *out->table_weights);
    if (!out->patch || !out->places || !out->spans || !out->windows || !out->merge || !out->table_rows ||
        !out->table_weights)
        return err_set(e, ERR_NOMEM, "no memory for the rows of %zu patches", t);
    struct laying l = {.tower = tower, .out = out, .unit = tower->merge * tower->merge};
    for (size_t i = 0; i < n; i++)
        for (uint32_t frame = 0; frame < grids[i].t; frame++)
            put_frame(&l, &grids[i]);
    return ERR_OK;
}
