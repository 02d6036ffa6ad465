/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: from the grids of pictures to the numbers that a tower takes beside the pixels: order of the rows,
 * places, frames, windows, merged rows, shares of a learned table, class rows, lines of a canvas of tiles. As
 * transformers' vision_utils.py and the embeddings of its CLIP, InternVL and Idefics3 have them, float32
 * where they have float32. Refuses grids that do not divide, or do not fit, and more patches than
 * IMAGE_MAX_PATCHES.
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
    size_t merged;     /* next of the rows that leave */
};

uint64_t image_tower_patches(const struct image_tower *tower, const struct image_grid *grids, size_t n)
{
    uint64_t all = 0;
    for (size_t i = 0; i < n; i++) /* a frame has at most 2^64 - 2^33 + 1 patches, and one row more */
        all = sat_add(all, sat_mul((uint64_t)grids[i].h * grids[i].w + tower->class_row, grids[i].t));
    return all;
}

/* Rows that leave a grid, or the canvas that begins with it. ERR_INVALID: tiles of it are missing or unlike.
 */
static int count_features(const struct image_tower *w, const struct image_grid *grids, size_t n,
                          uint64_t *out, size_t *used, struct err *e)
{
    const struct image_grid *g = &grids[0];
    const bool canvas = w->lines && g->rows && g->columns;
    uint64_t tiles = 1, high, wide, patches = (uint64_t)g->h * g->w;
    *used = 1;
    *out = g->t * (patches / ((uint64_t)w->merge * w->merge) + w->class_row - w->drop_first);
    if (!canvas)
        return ERR_OK;
    if (!mul_u64(g->rows, g->columns, &tiles) || tiles > n)
        return err_set(e, ERR_INVALID, "a canvas of %u x %u tiles, of which %zu are there", g->rows,
                       g->columns, n);
    for (size_t i = 0; i < tiles; i++)
        if (grids[i].t != 1 || grids[i].h != g->h || grids[i].w != g->w)
            return err_set(e, ERR_INVALID, "the tiles of a canvas are not alike");
    high = (uint64_t)g->rows * g->h;
    wide = (uint64_t)g->columns * g->w;
    if (w->merge != 1 || w->class_row != w->drop_first || 2 * (uint64_t)g->skip_h >= high ||
        2 * (uint64_t)g->skip_w >= wide)
        return err_set(e, ERR_INVALID, "a canvas of %llu x %llu patches leaves no lines",
                       (unsigned long long)high, (unsigned long long)wide);
    *out = (high - 2 * (uint64_t)g->skip_h) * (wide - 2 * (uint64_t)g->skip_w + 1);
    *used = (size_t)tiles;
    return ERR_OK;
}

static int check_grid(const struct image_tower *w, const struct image_grid *g, size_t number, struct err *e)
{
    if (g->t == 0 || g->h == 0 || g->w == 0 || g->h % w->merge || g->w % w->merge)
        return err_set(e, ERR_INVALID, "picture %zu has %u x %u x %u patches, which %u x %u do not divide",
                       number, g->t, g->h, g->w, w->merge, w->merge);
    if (w->taps == IMAGE_TAPS_EXACT && (g->h != w->table_side || g->w != w->table_side))
        return err_set(e, ERR_INVALID, "picture %zu has %u x %u patches, and the table of places %u x %u",
                       number, g->h, g->w, w->table_side, w->table_side);
    return ERR_OK;
}

static int check_tower(const struct image_tower *w, struct err *e)
{
    if (w->merge == 0 || w->merge > 64 || (w->taps && w->table_side == 0))
        return err_set(e, ERR_INVALID, "a tower that merges %u x %u patches, with a table of %u", w->merge,
                       w->merge, w->table_side);
    if ((w->class_row != w->drop_first && w->merge != 1) ||
        (w->window && (w->class_row || w->drop_first || w->lines)))
        return err_set(e, ERR_INVALID, "rows of a tower's own that are merged, or lie in a window");
    return ERR_OK;
}

static int count_rows(const struct image_tower *w, const struct image_grid *grids, size_t n,
                      struct image_rows *out, struct err *e)
{
    const uint64_t all = image_tower_patches(w, grids, n);
    uint64_t classes = 0, merged = 0, k;
    size_t used = 1;
    int rc = check_tower(w, e);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = check_grid(w, &grids[i], i, e);
        classes += w->class_row ? grids[i].t : 0;
    }
    if (rc == 0 && all > IMAGE_MAX_PATCHES)
        rc = err_set(e, ERR_LIMIT, "more than %llu patches of pictures",
                     (unsigned long long)IMAGE_MAX_PATCHES);
    for (size_t i = 0; rc == 0 && i < n; i += used) {
        rc = count_features(w, &grids[i], n - i, &k, &used, e);
        merged += rc ? 0 : k; /* at most one a patch and one a line, so far from any limit */
    }
    out->n_rows = (size_t)all;
    out->n_patches = (size_t)(all - classes);
    out->n_merged = (size_t)merged;
    return rc;
}

/* Idefics3: how many boundaries 1/side, 2/side, ... lie at or below the place as a fraction of the grid, all
 * in float32; so a side like 25 has places that it reaches twice. torch.arange rounds some boundaries once
 * more where it computes several at once; ours are rounded once (the sides of releases, 26, 27 and 32, have
 * the same places either way). */
static int32_t bucket(uint32_t side, uint32_t at, uint32_t size)
{
    const double step = 1.0 / (double)side;
    const float most = (float)(1.0 - 1e-6);
    float place = (float)at * (1.0f / (float)size);
    uint32_t n = 0;
    place = place > most ? most : place;
    while (n + 1 < side && (float)(step + step * n) <= place)
        n++;
    return (int32_t)n;
}

/* One axis: taps of the table and their weights, for place `at` of `size`. */
static size_t axis_taps(const struct image_tower *w, uint32_t at, uint32_t size, int32_t taps[4],
                        float weights[4])
{
    const float side = (float)w->table_side;
    const bool cubic = w->taps == IMAGE_TAPS_BICUBIC, corners = w->taps == IMAGE_TAPS_BILINEAR;
    if (w->taps == IMAGE_TAPS_EXACT || w->taps == IMAGE_TAPS_BUCKETS) {
        taps[0] = w->taps == IMAGE_TAPS_EXACT ? (int32_t)at : bucket(w->table_side, at, size);
        weights[0] = 1;
        return 1;
    }
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
    const int32_t first = l->tower->class_row ? 1 : 0;
    int32_t down[4], across[4];
    float by_y[4], by_x[4];
    const size_t n = axis_taps(l->tower, y, g->h, down, by_y);
    axis_taps(l->tower, x, g->w, across, by_x);
    for (size_t i = 0; i < n * n; i++) {
        out->table_rows[l->row * n * n + i] =
            first + down[i / n] * (int32_t)l->tower->table_side + across[i % n];
        out->table_weights[l->row * n * n + i] = by_y[i / n] * by_x[i % n];
    }
}

static void put_row(struct laying *l, int32_t patch, uint32_t y, uint32_t x)
{
    struct image_rows *out = l->out;
    out->patch[l->row] = patch;
    out->class_rows[l->row] = patch < 0 ? 0 : -1;
    out->places[3 * l->row] = 0;
    out->places[3 * l->row + 1] = (int32_t)y;
    out->places[3 * l->row + 2] = (int32_t)x;
}

/* The row before the patches of a frame: its place is the first row of the table. */
static void put_class(struct laying *l)
{
    struct image_rows *out = l->out;
    put_row(l, -1, 0, 0);
    for (size_t i = 0; i < out->n_taps; i++) {
        out->table_rows[l->row * out->n_taps + i] = i ? -1 : 0;
        out->table_weights[l->row * out->n_taps + i] = i ? 0 : 1;
    }
    l->row++;
}

/* The patches of merged row (my, mx) of a frame; merged: where it leaves, or SIZE_MAX. */
static void put_merged(struct laying *l, const struct image_grid *g, uint32_t my, uint32_t mx, size_t merged)
{
    struct image_rows *out = l->out;
    const uint32_t m = l->tower->merge;
    const size_t number = (size_t)my * (g->w / m) + mx;
    for (uint32_t k = 0; k < l->unit; k++, l->row++) {
        const uint32_t y = my * m + k / m, x = mx * m + k % m;
        const size_t at = l->tower->raster ? (size_t)y * g->w + x : number * l->unit + k;
        put_row(l, (int32_t)(l->patch + at), y, x);
        if (merged != SIZE_MAX)
            out->merge[merged * l->unit + k] = (int32_t)l->row;
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

/* leave: its rows are features, in the order of its merged rows, from l->merged on. */
static void put_frame(struct laying *l, const struct image_grid *g, bool leave)
{
    const struct image_tower *w = l->tower;
    const uint32_t m = w->merge, high = g->h / m, wide = g->w / m, larger = high > wide ? high : wide,
                   side = w->window ? w->window : larger;
    const size_t first = l->row, dropped = w->drop_first, own = w->class_row;
    if (w->class_row)
        put_class(l);
    if (leave && own && !dropped)
        l->out->merge[l->merged] = (int32_t)first;
    for (uint32_t wy = 0; wy < high; wy += side)
        for (uint32_t wx = 0; wx < wide; wx += side) {
            const size_t begin = l->row;
            for (uint32_t y = wy; y < high && y - wy < side; y++)
                for (uint32_t x = wx; x < wide && x - wx < side; x++) {
                    const size_t at = (size_t)y * wide + x + own; /* among the rows of the frame */
                    put_merged(l, g, y, x, leave && at >= dropped ? l->merged + at - dropped : SIZE_MAX);
                }
            mark(l->out->windows, begin, l->row);
        }
    mark(l->out->spans, first, l->row);
    if (own)
        mark(l->out->windows, first, l->row);
    l->patch += (size_t)g->h * g->w;
    l->merged += leave ? (size_t)high * wide + own - dropped : 0;
}

/* Tiles that lie beside each other: their rows leave line by line of the canvas, without its padding, each
 * line with one row more behind it. LLaVA-NeXT: pack_image_features, "spatial_unpad". */
static void put_canvas(struct laying *l, const struct image_grid *grids)
{
    const struct image_grid *g = &grids[0];
    struct image_rows *out = l->out;
    const uint32_t high = g->rows * g->h, wide = g->columns * g->w;
    const size_t first = l->row, own = l->tower->class_row, tile = (size_t)g->h * g->w + own;
    for (size_t i = 0; i < (size_t)g->rows * g->columns; i++)
        put_frame(l, &grids[i], false);
    for (uint32_t y = g->skip_h; y < high - g->skip_h; y++) {
        for (uint32_t x = g->skip_w; x < wide - g->skip_w; x++) {
            const size_t number = (size_t)(y / g->h) * g->columns + x / g->w;
            out->merge[l->merged++] =
                (int32_t)(first + number * tile + own + (size_t)(y % g->h) * g->w + x % g->w);
        }
        out->merge[l->merged] = out->merge[l->merged - 1];
        out->line_rows[l->merged++] = 0;
    }
}

static int make_room(struct image_rows *out, uint32_t unit, struct arena *arena, struct err *e)
{
    const size_t t = out->n_rows ? out->n_rows : 1, r = out->n_merged ? out->n_merged : 1;
    out->patch = arena_alloc_n(arena, t, sizeof *out->patch);
    out->places = arena_alloc_n(arena, t, 3 * sizeof *out->places);
    out->spans = arena_alloc_n(arena, t, 2 * sizeof *out->spans);
    out->windows = arena_alloc_n(arena, t, 2 * sizeof *out->windows);
    out->merge = arena_alloc_n(arena, r, unit * sizeof *out->merge);
    out->table_rows = arena_alloc_n(arena, t, (out->n_taps + 1) * sizeof *out->table_rows);
    out->table_weights = arena_alloc_n(arena, t, (out->n_taps + 1) * sizeof *out->table_weights);
    out->class_rows = arena_alloc_n(arena, t, sizeof *out->class_rows);
    out->line_rows = arena_alloc_n(arena, r, sizeof *out->line_rows);
    if (!out->patch || !out->places || !out->spans || !out->windows || !out->merge || !out->table_rows ||
        !out->table_weights || !out->class_rows || !out->line_rows)
        return err_set(e, ERR_NOMEM, "no memory for the rows of %zu patches", t);
    for (size_t i = 0; i < r; i++)
        out->line_rows[i] = -1;
    return ERR_OK;
}

int image_tower_rows(const struct image_tower *tower, const struct image_grid *grids, size_t n,
                     struct arena *arena, struct image_rows *out, struct err *e)
{
    static const size_t taps[] = {[IMAGE_TAPS_BILINEAR] = 4,
                                  [IMAGE_TAPS_CENTRES] = 4,
                                  [IMAGE_TAPS_BICUBIC] = 16,
                                  [IMAGE_TAPS_EXACT] = 1,
                                  [IMAGE_TAPS_BUCKETS] = 1};
    *out = (struct image_rows){.n_taps = taps[tower->taps]};
    int rc = count_rows(tower, grids, n, out, e);
    struct laying l = {.tower = tower, .out = out, .unit = tower->merge * tower->merge};
    if (rc == 0)
        rc = make_room(out, l.unit, arena, e);
    for (size_t i = 0; rc == 0 && i < n;) {
        const struct image_grid *g = &grids[i];
        if (tower->lines && g->rows && g->columns) {
            put_canvas(&l, g);
            i += (size_t)g->rows * g->columns;
            continue;
        }
        for (uint32_t frame = 0; frame < g->t; frame++)
            put_frame(&l, g, true);
        i++;
    }
    return rc;
}
