/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes of a picture of one size: resizes, canvas, tiles, grid of patches, number of placeholders.
 * Arithmetic alone, no pixels. Owns nothing. Refuses sides of 0, aspects that the processor refuses, and
 * whatever would be larger than the limits.
 *
 * Sizes follow the reference to the last operation in float64: one rounding taken otherwise gives another
 * grid, and features that no longer fit their placeholders. Source: transformers 5.24, the functions named at
 * each rule.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/image_impl.h"

/* Python's int() of a positive float, capped: what is larger is refused behind. */
static uint32_t to_int(double x)
{
    return x >= 4e9 ? UINT32_C(4000000000) : x > 0 ? (uint32_t)x : 0;
}

static uint32_t side(uint64_t n)
{
    return n > UINT32_C(4000000000) ? UINT32_C(4000000000) : (uint32_t)n;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void add_resize(struct image_plan *s, uint32_t w, uint32_t h)
{
    s->resize[s->n_resizes][0] = w;
    s->resize[s->n_resizes++][1] = h;
    s->canvas_w = w;
    s->canvas_h = h;
}

/* get_resize_output_image_size, get_size_with_aspect_ratio */
static void shortest_edge(const struct image_size *size, uint32_t w, uint32_t h, uint32_t *to_w,
                          uint32_t *to_h)
{
    double min = w < h ? w : h, max = w < h ? h : w, edge = (double)size->shortest, raw = edge;
    if (size->longest && max / min * edge > (double)size->longest) {
        raw = (double)size->longest * min / max;
        edge = rint(raw);
    }
    uint32_t longer = min == edge ? (uint32_t)max : to_int(raw * max / min);
    *to_w = w < h ? to_int(edge) : longer;
    *to_h = w < h ? longer : to_int(edge);
}

/* get_image_size_for_max_height_width */
static void within(const struct image_size *size, uint32_t w, uint32_t h, uint32_t *to_w, uint32_t *to_h)
{
    double scale = fmin((double)size->max_height / h, (double)size->max_width / w);
    *to_w = to_int(w * scale);
    *to_h = to_int(h * scale);
}

static int plan_fixed(const struct image_processor *p, struct image_plan *s, struct err *e)
{
    uint32_t w = s->width, h = s->height;
    if (p->pad_square && w != h)
        s->square = w = h = max_u32(w, h);
    s->canvas_w = w;
    s->canvas_h = h;
    if (p->do_resize) {
        if (p->size.shortest)
            shortest_edge(&p->size, w, h, &w, &h);
        else if (p->size.max_height && p->size.max_width)
            within(&p->size, w, h, &w, &h);
        else if (p->size.height && p->size.width)
            w = side(p->size.width), h = side(p->size.height);
        else
            return err_set(e, ERR_UNSUPPORTED,
                           "image processor: a \"size\" without shortest_edge or height and width");
        add_resize(s, w, h);
    }
    if (p->do_crop) {
        /* Pillow's variant cuts or pads more before than behind where the rest is odd, torchvision's behind
         */
        int64_t x = (int64_t)p->crop.width - w, y = (int64_t)p->crop.height - h;
        s->canvas_w = side(p->crop.width);
        s->canvas_h = side(p->crop.height);
        s->at_x = x <= 0 ? -(-x / 2) : p->backend == IMAGE_PILLOW ? (x + 1) / 2 : x / 2;
        s->at_y = y <= 0 ? -(-y / 2) : p->backend == IMAGE_PILLOW ? (y + 1) / 2 : y / 2;
    }
    s->tile_w = s->canvas_w;
    s->tile_h = s->canvas_h;
    return ERR_OK;
}

/* Gemma-3's pan_and_scan: crops of the picture itself, each resized. */
static int plan_pan(const struct image_processor *p, struct image_plan *s, struct err *e)
{
    uint32_t w = s->width, h = s->height, longer = max_u32(w, h), shorter = w < h ? w : h;
    if (!p->size.height || !p->size.width)
        return err_set(e, ERR_UNSUPPORTED, "image processor: a \"size\" without height and width");
    s->tile_w = side(p->size.width);
    s->tile_h = side(p->size.height);
    s->whole_first = true;
    s->canvas_w = w;
    s->canvas_h = h;
    s->columns = s->rows = 0;
    if (!p->do_tiles || (double)longer / shorter < p->pan_min_ratio)
        return ERR_OK;
    uint32_t n = to_int(floor((double)longer / shorter + 0.5)), fit = longer / p->pan_min_crop;
    n = fit < n ? fit : n;
    n = max_u32(n, 2);
    n = p->pan_max_crops < n ? p->pan_max_crops : n;
    uint32_t cut = longer / n + (longer % n != 0);
    if ((cut < shorter ? cut : shorter) < p->pan_min_crop)
        return ERR_OK;
    if ((uint64_t)cut * (n - 1) >= longer)
        return err_set(e, ERR_INVALID, "a picture of %u x %u in %u crops of %u pixels", w, h, n, cut);
    s->columns = w >= h ? n : 1;
    s->rows = w >= h ? 1 : n;
    s->cut_w = w >= h ? cut : w;
    s->cut_h = w >= h ? h : cut;
    return ERR_OK;
}

/* select_best_resolution */
static const uint32_t *best_canvas(const struct image_processor *p, double w, double h)
{
    const uint32_t *best = NULL;
    double most = 0, least = INFINITY;
    for (uint32_t i = 0; i < p->n_pinpoints; i++) {
        double to_h = p->pinpoints[i][0], to_w = p->pinpoints[i][1];
        double scale = to_w / w < to_h / h ? to_w / w : to_h / h;
        double effective = floor(w * scale) * floor(h * scale);
        effective = effective < w * h ? effective : w * h;
        double wasted = to_w * to_h - effective;
        if (effective > most || (effective == most && wasted < least)) {
            most = effective;
            least = wasted;
            best = p->pinpoints[i];
        }
    }
    return best;
}

/* LLaVA-NeXT: get_image_patches */
static int plan_anyres(const struct image_processor *p, struct image_plan *s, struct err *e)
{
    uint64_t tile = p->crop.height ? p->crop.height : p->size.height ? p->size.height : p->size.shortest;
    uint64_t view = p->size.height ? p->size.height : p->size.shortest;
    double w = s->width, h = s->height;
    const uint32_t *to = best_canvas(p, w, h);
    if (!to)
        return err_set(e, ERR_INVALID, "a picture of %u x %u fits no canvas", s->width, s->height);
    /* Tiles of another size would be resized and cut once more; no release does so. */
    if (!tile || tile > IMAGE_MAX_SIDE || tile != view || (p->size.width && p->size.width != tile) ||
        (p->do_crop && p->crop.width != tile) || to[0] % tile || to[1] % tile)
        return err_set(e, ERR_UNSUPPORTED, "image processor: tiles of %llu pixels from a canvas of %u x %u",
                       (unsigned long long)tile, to[1], to[0]);
    double scale_w = to[1] / w, scale_h = to[0] / h, long_h = ceil(h * scale_w), long_w = ceil(w * scale_h);
    if (scale_w < scale_h)
        add_resize(s, to[1], long_h < to[0] ? to_int(long_h) : to[0]);
    else
        add_resize(s, long_w < to[1] ? to_int(long_w) : to[1], to[0]);
    s->at_x = (to[1] - s->canvas_w) / 2;
    s->at_y = (to[0] - s->canvas_h) / 2;
    s->canvas_w = to[1];
    s->canvas_h = to[0];
    s->tile_w = s->tile_h = s->cut_w = s->cut_h = (uint32_t)tile;
    s->columns = to[1] / s->tile_w;
    s->rows = to[0] / s->tile_h;
    s->whole_first = true;
    return ERR_OK;
}

/* GOT-OCR2, InternVL: get_optimal_tiled_canvas */
static int plan_tiles(const struct image_processor *p, struct image_plan *s, struct err *e)
{
    double aspect = (double)s->width / s->height, area = (double)s->width * s->height, nearest = INFINITY;
    uint32_t columns = 1, rows = 1;
    if (!p->size.height || !p->size.width)
        return err_set(e, ERR_UNSUPPORTED, "image processor: a \"size\" without height and width");
    s->tile_w = s->cut_w = side(p->size.width);
    s->tile_h = s->cut_h = side(p->size.height);
    for (uint32_t n = (uint32_t)p->min_tiles; p->do_tiles && n <= p->max_patches; n++)
        for (uint32_t i = 1; i <= n; i++) {
            double off = n % i ? INFINITY : fabs(aspect - (double)i / (n / i));
            bool more = area > 0.5 * s->tile_h * s->tile_w * n;
            if (n % i == 0 && (off < nearest || (off == nearest && more))) {
                nearest = off;
                columns = i;
                rows = n / i;
            }
        }
    uint64_t w = (uint64_t)columns * s->tile_w, h = (uint64_t)rows * s->tile_h;
    add_resize(s, side(w), side(h));
    s->columns = columns;
    s->rows = rows;
    s->whole_last = p->whole && (uint64_t)columns * rows != 1;
    return ERR_OK;
}

/* Idefics3, SmolVLM: _resize_output_size_rescale_to_max_len, _resize_output_size_scale_below_upper_bound */
static void longest_edge(double most, double *w, double *h)
{
    const double bound = 4096;
    double aspect = *w / *h, *longer = *w >= *h ? w : h, *shorter = *w >= *h ? h : w;
    bool wide = *w >= *h;
    *longer = most;
    *shorter = floor(wide ? most / aspect : most * aspect);
    *shorter += fmod(*shorter, 2) != 0;
    *shorter = *shorter < 1 ? 1 : *shorter;
    aspect = *w / *h;
    wide = *w >= *h;
    longer = wide ? w : h;
    shorter = wide ? h : w;
    if (*longer > bound) {
        *longer = bound;
        *shorter = floor(wide ? bound / aspect : bound * aspect);
    }
    *shorter = *shorter < 1 ? 1 : *shorter;
}

/* resize, resize_for_vision_encoder, split_images */
static int plan_split(const struct image_processor *p, struct image_plan *s, struct err *e)
{
    double w = s->width, h = s->height, tile = (double)p->max_tile.longest;
    if (!(tile >= 1 && tile <= IMAGE_MAX_SIDE))
        return err_set(e, ERR_UNSUPPORTED, "image processor: a \"max_image_size\" whose longest_edge is %g",
                       tile);
    if (p->size.longest) {
        longest_edge((double)p->size.longest, &w, &h);
    } else if (p->size.height && p->size.width) {
        w = (double)p->size.width;
        h = (double)p->size.height;
    } else {
        return err_set(e, ERR_UNSUPPORTED, "image processor: a \"size\" without longest_edge");
    }
    add_resize(s, to_int(w), to_int(h));
    s->tile_w = s->tile_h = s->cut_w = s->cut_h = (uint32_t)tile;
    s->columns = s->rows = 1;
    if (!p->do_tiles) {
        add_resize(s, s->tile_w, s->tile_h);
        return ERR_OK;
    }
    double aspect = w / h;
    if (w >= h) {
        w = ceil(w / tile) * tile;
        h = ceil(floor(w / aspect) / tile) * tile;
    } else {
        h = ceil(h / tile) * tile;
        w = ceil(floor(h * aspect) / tile) * tile;
    }
    add_resize(s, to_int(w), to_int(h));
    s->columns = s->canvas_w / s->tile_w;
    s->rows = s->canvas_h / s->tile_h;
    s->whole_last = s->whole_of_canvas = s->columns > 1 || s->rows > 1;
    return ERR_OK;
}

/* Qwen2-VL: smart_resize. Bounds are areas; round() is to even. */
static int plan_smart(const struct image_processor *p, struct image_plan *s, struct err *e)
{
    double w = s->width, h = s->height, f = (double)p->patch * p->merge;
    double min = (double)p->size.shortest, max = (double)p->size.longest;
    if (!p->size.shortest || !p->size.longest)
        return err_set(e, ERR_UNSUPPORTED,
                       "image processor: a \"size\" without shortest_edge and longest_edge");
    if ((w > h ? w / h : h / w) > 200)
        return err_set(e, ERR_INVALID, "a picture of %u x %u: one side is more than 200 times the other",
                       s->width, s->height);
    double to_h = rint(h / f) * f, to_w = rint(w / f) * f;
    if (to_h * to_w > max) {
        double beta = sqrt(h * w / max);
        to_h = fmax(f, floor(h / beta / f) * f);
        to_w = fmax(f, floor(w / beta / f) * f);
    } else if (to_h * to_w < min) {
        double beta = sqrt(min / (h * w));
        to_h = ceil(h * beta / f) * f;
        to_w = ceil(w * beta / f) * f;
    }
    add_resize(s, to_int(to_w), to_int(to_h));
    return ERR_OK;
}

/* Kimi K2.5, K3: navit_resize. Never enlarged; zeros to whole blocks of patches. */
static int plan_navit(const struct image_processor *p, struct image_plan *s, struct err *e)
{
    double w = s->width, h = s->height, most = (double)p->max_side_patches * p->patch, scale = 1;
    uint32_t across = max_u32(1, s->width / p->patch), down = max_u32(1, s->height / p->patch),
             f = p->patch * p->merge;
    if (!p->max_patches || !p->max_side_patches)
        return err_set(e, ERR_UNSUPPORTED, "image processor: a limit of no patches");
    scale = fmin(scale, sqrt((double)p->max_patches / ((double)across * down)));
    scale = fmin(scale, fmin(most / h, most / w));
    double to_w = fmin(fmax(1, floor(w * scale)), most), to_h = fmin(fmax(1, floor(h * scale)), most);
    add_resize(s, to_int(to_w), to_int(to_h));
    s->canvas_w = (uint32_t)ALIGN_UP((uint64_t)s->canvas_w, f);
    s->canvas_h = (uint32_t)ALIGN_UP((uint64_t)s->canvas_h, f);
    return ERR_OK;
}

/* Pixtral, Mistral-3: get_resize_output_image_size */
static int plan_pixtral(const struct image_processor *p, struct image_plan *s, struct err *e)
{
    double w = s->width, h = s->height;
    double max_h = (double)(p->size.longest ? p->size.longest : p->size.height);
    double max_w = (double)(p->size.longest ? p->size.longest : p->size.width);
    uint64_t f = (uint64_t)p->patch * p->merge;
    if (!(max_h >= 1) || !(max_w >= 1))
        return err_set(e, ERR_UNSUPPORTED, "image processor: a \"size\" without longest_edge");
    double ratio = fmax(h / max_h, w / max_w);
    if (ratio > 1) {
        h = floor(h / ratio);
        w = floor(w / ratio);
    }
    add_resize(s, side(ALIGN_UP((uint64_t)w, f)), side(ALIGN_UP((uint64_t)h, f)));
    s->tile_w = s->canvas_w;
    s->tile_h = s->canvas_h;
    s->grid_t = 1;
    s->grid_h = s->canvas_h / p->patch;
    s->grid_w = s->canvas_w / p->patch;
    return ERR_OK;
}

/* Every picture on the way, and between the two passes of a resize. */
static int check_sizes(const struct image_plan *s, uint64_t max_pixels, struct err *e)
{
    uint32_t w = s->square ? s->square : s->width, h = s->square ? s->square : s->height;
    uint64_t tiles = (uint64_t)s->tile_w * s->tile_h, all = 0;
    bool fits = (uint64_t)w * h <= max_pixels;
    for (uint32_t i = 0; fits && i < s->n_resizes; i++) {
        uint32_t to_w = s->resize[i][0], to_h = s->resize[i][1];
        if (!to_w || !to_h)
            return err_set(e, ERR_INVALID, "a picture of %u x %u would become one of %u x %u", s->width,
                           s->height, to_w, to_h);
        fits = (uint64_t)to_w * to_h <= max_pixels && (uint64_t)to_w * h <= 4 * max_pixels;
        w = to_w;
        h = to_h;
    }
    if (fits && s->n_tiles && (!s->tile_w || !s->tile_h))
        return err_set(e, ERR_INVALID, "tiles of %u x %u pixels", s->tile_w, s->tile_h);
    if (fits && (s->whole_first || s->whole_last)) {
        uint32_t from_h = s->whole_of_canvas ? s->canvas_h : s->height;
        fits = (uint64_t)s->tile_w * from_h <= 4 * max_pixels;
    }
    fits = fits && (uint64_t)s->canvas_w * s->canvas_h <= max_pixels;
    fits = fits &&
           (!s->n_tiles || (tiles <= max_pixels && mul_u64(tiles, s->n_tiles, &all) && all <= max_pixels));
    return fits ? ERR_OK
                : err_set(e, ERR_LIMIT,
                          "a picture of %u x %u grows beyond %llu pixels on its way to the model", s->width,
                          s->height, (unsigned long long)max_pixels);
}

/* LLaVA-NeXT: unpad_image, and _get_unpadded_features, which counts what that leaves. */
void image_padding(const struct image_plan *s, uint32_t patch, uint32_t *skip_h, uint32_t *skip_w)
{
    double w = s->width, h = s->height;
    uint32_t all_w = s->tile_w / patch * s->columns, all_h = s->tile_h / patch * s->rows;
    *skip_h = *skip_w = 0;
    if (!all_w || !all_h)
        return;
    bool wide = w / h > (double)all_w / (double)all_h;
    double kept = wide ? h * ((double)all_w / w) : w * ((double)all_h / h);
    char text[64];
    snprintf(text, sizeof text, "%.7f", kept); /* round(x, 7) */
    if (wide)
        *skip_h = (all_h - (uint32_t)strtod(text, NULL)) / 2;
    else
        *skip_w = (all_w - (uint32_t)strtod(text, NULL)) / 2;
}

/* LLaVA-NeXT: _get_number_of_features. Rows that padding covers wholly are dropped, each row ends in a token.
 */
static uint64_t anyres_tokens(const struct image_processor *p, const struct image_plan *s)
{
    uint32_t skip_h, skip_w;
    uint64_t across = s->tile_w / p->tower_patch, down = s->tile_h / p->tower_patch;
    image_padding(s, p->tower_patch, &skip_h, &skip_w);
    uint64_t wide = across * s->columns - 2 * (uint64_t)skip_w, high = down * s->rows - 2 * (uint64_t)skip_h;
    return across && down ? across * down + wide * high + high : 0;
}

static void count(const struct image_processor *p, struct image_plan *s)
{
    uint64_t n = 0;
    if (p->tile_tokens)
        n = (uint64_t)p->tile_tokens * s->n_tiles;
    else if (p->rule == IMAGE_ANYRES && p->tower_patch)
        n = anyres_tokens(p, s);
    else if (p->rule == IMAGE_FIXED && p->tower_patch)
        n = (uint64_t)(s->tile_w / p->tower_patch) * (s->tile_h / p->tower_patch);
    else if (s->grid_h)
        n = (uint64_t)(s->grid_h / p->merge) * (s->grid_w / p->merge);
    if (n && p->tower_patch)
        n = p->tower_extra < 0 && n < (uint64_t)-p->tower_extra ? 0 : n + (uint64_t)(int64_t)p->tower_extra;
    s->placeholders = n;
}

int image_plan(const struct image_processor *p, uint32_t width, uint32_t height,
               const struct image_limits *limits, struct image_plan *out, struct err *e)
{
    typedef int rule_fn(const struct image_processor *, struct image_plan *, struct err *);
    static rule_fn *const rules[] = {
        [IMAGE_FIXED] = plan_fixed, [IMAGE_ANYRES] = plan_anyres,   [IMAGE_SMART] = plan_smart,
        [IMAGE_NAVIT] = plan_navit, [IMAGE_PIXTRAL] = plan_pixtral, [IMAGE_TILES] = plan_tiles,
        [IMAGE_SPLIT] = plan_split, [IMAGE_PAN] = plan_pan,
    };
    uint64_t max_pixels = limits && limits->max_pixels ? limits->max_pixels : IMAGE_MAX_PIXELS;
    struct image_plan s = {.width = width, .height = height, .columns = 1, .rows = 1};
    if (!width || !height || width > IMAGE_MAX_SIDE || height > IMAGE_MAX_SIDE)
        return err_set(e, ERR_INVALID, "a picture of %u x %u", width, height);
    int rc = rules[p->rule](p, &s, e);
    if (rc)
        return rc;
    bool patches = p->rule == IMAGE_SMART || p->rule == IMAGE_NAVIT;
    uint64_t tiles = s.whole_first + s.whole_last + (patches ? 0 : (uint64_t)s.columns * s.rows);
    if (tiles > IMAGE_MAX_TILES + 1)
        return err_set(e, ERR_LIMIT, "a picture of %u x %u in %llu tiles", width, height,
                       (unsigned long long)tiles);
    s.n_tiles = (uint32_t)tiles;
    if ((rc = check_sizes(&s, max_pixels, e)))
        return rc;
    if (patches) {
        s.n_tiles = 1;
        s.tile_w = s.canvas_w;
        s.tile_h = s.canvas_h;
        s.grid_t = 1;
        s.grid_h = s.canvas_h / p->patch;
        s.grid_w = s.canvas_w / p->patch;
        s.n_rows = (uint64_t)s.grid_h * s.grid_w;
        s.row_floats = UINT64_C(3) * p->frames * p->patch * p->patch;
    } else {
        s.n_rows = s.n_tiles;
        s.row_floats = UINT64_C(3) * s.tile_h * s.tile_w;
    }
    s.cut_w = s.cut_w ? s.cut_w : s.canvas_w;
    s.cut_h = s.cut_h ? s.cut_h : s.canvas_h;
    s.seen_w = p->rule == IMAGE_NAVIT ? s.resize[0][0] : s.canvas_w;
    s.seen_h = p->rule == IMAGE_NAVIT ? s.resize[0][1] : s.canvas_h;
    count(p, &s);
    *out = s;
    return ERR_OK;
}
