/* SPDX-License-Identifier: Apache-2.0
 *
 * Pictures from bytes: JPEG, PNG, WebP, the first frame of a GIF, as rows of RGB. Everything here is hostile
 * until shown otherwise: sizes are judged from the header before anything is allocated, and a picture that
 * is cut short or damaged is refused, never handed on half grey. Refuses other formats by name.
 * Then what a model directory's image processor makes of them: sizes and counts by arithmetic alone, tensors
 * on demand. Refuses processors, and keys of them, that it does not know.
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
#include "base/json.h"
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
    bool animated;          /* more frames follow the first one */
    uint64_t decoder_bytes; /* what the library that decodes it takes beside the pixels, at most */
};

struct image {
    struct image_info info;
    uint8_t *rgb; /* [height, width, 3], rows from the top; in the arena that the caller gave */
};

/* What the header says, without decoding. ERR_FORMAT, ERR_UNSUPPORTED (names the format), ERR_LIMIT. */
int image_probe(const void *bytes, size_t n, const struct image_limits *limits, struct image_info *out,
                struct err *e);

/* Memory that image_decode takes while it works, at most, the pixels that it leaves in the arena included.
 * It grows with sizes and format only, but for lossless WebP made to have as many code tables as can be. */
uint64_t image_decode_bytes(const struct image_info *info);

/* Pixels into the arena. limits may be NULL. ERR_FORMAT (damaged, cut short), ERR_UNSUPPORTED, ERR_LIMIT,
 * ERR_NOMEM. */
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

/* ---- image processors: what a model directory says of pictures, as data (docs/images.md) ---- */

enum image_backend {                    /* how resizing and normalising round */
                     IMAGE_TORCHVISION, /* what transformers 5 takes where both are there; "Fast" before that
                                         */
                     IMAGE_PILLOW,
};

enum image_rule {
    IMAGE_FIXED,   /* one size: CLIP, SigLIP, LLaVA */
    IMAGE_ANYRES,  /* the whole picture, then tiles of the best of some canvases: LLaVA-NeXT */
    IMAGE_SMART,   /* patches, sides to multiples, the area between bounds: Qwen2-VL to Qwen3-VL */
    IMAGE_NAVIT,   /* patches, never enlarged, zeros at the right and below: Kimi K2.5, K3 */
    IMAGE_PIXTRAL, /* one picture of any size, sides up to multiples of a patch */
    IMAGE_TILES,   /* tiles of the canvas with the nearest aspect, then the whole: InternVL, GOT-OCR2 */
    IMAGE_SPLIT,   /* tiles of the enlarged picture, then the whole: Idefics3, SmolVLM */
    IMAGE_PAN,     /* the whole picture, then perhaps crops along its longer side: Gemma-3 */
};

struct image_size {                 /* 0: not said */
    uint64_t height, width;         /* pixels */
    uint64_t shortest, longest;     /* pixels of a side; of IMAGE_SMART: of the area */
    uint64_t max_height, max_width; /* the aspect is kept within them; of IMAGE_NAVIT: patches */
};

#define IMAGE_MAX_PINPOINTS 64
#define IMAGE_MAX_TILES     256

struct image_processor {
    const char *name; /* of the table; static */
    enum image_rule rule;
    enum image_backend backend;
    enum image_filter filter;
    enum image_alpha alpha; /* to decode with */
    bool refuses_alpha;     /* pictures with alpha need a background that is not made here (Kimi-K3) */
    bool do_resize, do_crop, do_rescale, do_normalise, do_tiles;
    bool pad_square; /* IMAGE_FIXED: laid on a square of the mean colour first */
    bool whole;      /* IMAGE_TILES: the whole picture follows where there are tiles */
    double factor, mean[3], std[3];
    struct image_size size, crop, max_tile;
    uint32_t patch, merge, frames; /* pixels; patches; copies of a still picture in a patch row */
    uint64_t min_tiles, max_patches;
    uint32_t max_side_patches;
    uint32_t pan_min_crop, pan_max_crops;
    double pan_min_ratio;
    uint32_t n_pinpoints, pinpoints[IMAGE_MAX_PINPOINTS][2]; /* height, width of a canvas, pixels */
    uint32_t tile_tokens; /* placeholders of one tile; 0: see tower_patch */
    uint32_t tower_patch; /* pixels; 0: nothing says how many placeholders there are */
    int tower_extra;      /* tokens that the tower adds or that are dropped, per picture */
};

/* The JSON of a model directory; each may be NULL. The tree may go after image_processor_open. */
struct image_configs {
    const struct json *preprocessor; /* preprocessor_config.json */
    const struct json *processor;    /* processor_config.json */
    const struct json *model;        /* config.json */
};

/* The processor that a directory names, under what its processor class and config.json add. backend: what the
 * result will be compared with; NULL: as transformers 5.24 chooses, but for releases with code of their own
 * (Kimi), which use Pillow. ERR_MISSING (nothing describes pictures), ERR_UNSUPPORTED (a processor, key or
 * value, named), ERR_FORMAT (a value of another type, named), ERR_LIMIT. */
int image_processor_open(const struct image_configs *c, const enum image_backend *backend,
                         struct image_processor *out, struct err *e);

/* What becomes of a picture of one size; a pure function of (processor, width, height). */
struct image_plan {
    uint32_t width, height; /* pixels of the picture, as seen */
    uint32_t square;        /* side of the square that it is laid on first; 0: none */
    uint32_t n_resizes;
    uint32_t resize[2][2];       /* width, height of each, in turn */
    uint32_t canvas_w, canvas_h; /* zeros where the resized picture, laid at (at_x, at_y), is not */
    int64_t at_x, at_y;
    bool whole_first, whole_last, whole_of_canvas; /* a tile of the whole picture (or canvas) */
    uint32_t columns, rows, cut_w, cut_h;          /* tiles that are cut from the canvas */
    uint32_t n_tiles, tile_w, tile_h;              /* all tiles; of pictures of patches: 1, the canvas */
    uint32_t grid_t, grid_h, grid_w;               /* patches; 0 where tiles leave */
    uint32_t seen_w, seen_h;     /* pixels of the last canvas that are picture, the rest is padding */
    uint64_t n_rows, row_floats; /* tensor: [patches, C * frames * P * P] or [tiles, 3 * tile_h * tile_w] */
    uint64_t placeholders;       /* rows of features that the language model takes; 0: not known */
};

/* limits: max_pixels bounds every picture on the way and all tiles together; NULL: the defaults.
 * ERR_INVALID (a side of 0, an aspect that the processor refuses), ERR_LIMIT. */
int image_plan(const struct image_processor *p, uint32_t width, uint32_t height,
               const struct image_limits *limits, struct image_plan *out, struct err *e);

/* pixels of m -> *out float32 [n_rows, row_floats] in the arena. Tiles are [3, tile_h, tile_w], the whole
 * picture first or last as the plan says; patches are [3, frames, P, P], in blocks of merge x merge
 * (IMAGE_SMART) or row by row (IMAGE_NAVIT). ERR_UNSUPPORTED (alpha, see refuses_alpha), ERR_NOMEM,
 * ERR_MISMATCH (m has other sizes). */
int image_process(const struct image_processor *p, const struct image_plan *plan, const struct image *m,
                  struct arena *arena, float **out, struct err *e);

/* What a piece of so many bytes takes in an arena, at most, beside one block of 1 MiB that is not filled. */
uint64_t image_in_arena(uint64_t bytes);

/* Memory that image_process takes while it works, at most, its tensor included; UINT64_MAX: more than can be
 * said. */
uint64_t image_process_bytes(const struct image_processor *p, const struct image_plan *plan);

/* Tiles as rows of patches, as a convolution whose steps are its width sees them: tiles float32 [n, channels,
 * h, w] -> *out float32 [n * (h / patch) * (w / patch), channels * patch * patch] in the arena, tile by tile,
 * row by row; what is left over at the right and below is dropped. ERR_INVALID (a side of 0, or shorter than
 * a patch), ERR_LIMIT, ERR_NOMEM. */
int image_patches(const float *tiles, size_t n, uint32_t channels, uint32_t h, uint32_t w, uint32_t patch,
                  struct arena *arena, float **out, struct err *e);

/* ---- what a tower must be told of the patches of pictures ---- */

/* Patches that see each other: a picture, or a tile of it. */
struct image_grid {
    uint32_t t, h, w; /* patches in time, down and across; h and w are multiples of the tower's merge */
    /* Of towers with lines (LLaVA-NeXT): this tile and the rows x columns - 1 behind it are one canvas, whose
     * rows of features leave line by line, each line with a learned row behind it; 0: a tile by itself. */
    uint32_t rows, columns;
    uint32_t skip_h, skip_w; /* patches of padding above and below, left and right of it: no features */
};

/* The grids of a picture, in the order of its tensor: one of patches, or one a tile; `patch` is the side of
 * the tower's patches in pixels. lines: the tiles behind the first make a canvas (struct image_grid). out has
 * room for plan->n_tiles of them, which is how many there are. ERR_INVALID (tiles smaller than a patch). */
int image_plan_grids(const struct image_plan *plan, uint32_t patch, bool lines, struct image_grid *out,
                     struct err *e);

enum image_taps {
    IMAGE_TAPS_NONE,
    IMAGE_TAPS_BILINEAR, /* 4 taps of a line between the corners */
    IMAGE_TAPS_CENTRES,  /* the same between the centres of the cells */
    IMAGE_TAPS_BICUBIC,  /* 16 taps, a = -0.75 */
    IMAGE_TAPS_EXACT,    /* one: the place itself; a grid of another size than the table is refused */
    IMAGE_TAPS_BUCKETS,  /* one: the place as a fraction of the grid, cut down to a place of the table */
};

struct image_tower {
    uint32_t merge;       /* merge x merge patches become one row */
    uint32_t window;      /* side of a window in merged rows; 0: no windows */
    uint32_t table_side;  /* of the learned table of places, where there is one */
    enum image_taps taps; /* how it is stretched */
    bool raster;          /* the processor gives patches row by row, and not merge x merge of them together */
    bool class_row;  /* before the patches of each grid a row of the tower's own; the table's first row is
                      * its place. Only with merge 1, or where it is dropped */
    bool drop_first; /* the first row of each grid gives no features (vision_feature_select_strategy) */
    bool lines;      /* rows and columns of grids count; each line ends in a learned row */
};

/* The inputs of a tower, for the patches of all pictures: T rows that become R. A patch has a number in the
 * order of the processor: grid by grid, frame by frame, the merge x merge patches of a merged row together,
 * these from the top left, or row by row. Rows lie grid by grid, merged row by merged row (a class row
 * first), or window by window where there are windows. Features (R) lie as their placeholders in the prompt.
 */
struct image_rows {
    size_t n_rows, n_merged;  /* T, R */
    size_t n_patches;         /* T without class rows */
    int32_t *patch;           /* [T] number of the patch in each row; -1: a class row, whose pixels are 0 */
    int32_t *places;          /* [T, 3] 0, and its place down and across */
    int32_t *spans, *windows; /* [T, 2] first row and the one behind the last: of its frame, and its window */
    int32_t *merge; /* [R, merge * merge] rows that make each merged row, in the order of the processor; of a
                     * row that ends a line the one before */
    size_t n_taps;  /* 0, 1, 4 or 16 */
    int32_t *table_rows;  /* [T, n_taps] */
    float *table_weights; /* [T, n_taps] */
    int32_t *class_rows;  /* [T] 0 in class rows, else -1 */
    int32_t *line_rows;   /* [R] 0 in rows that end a line, else -1 */
};

/* T of these grids, class rows too, without a look at whether they fit; UINT64_MAX: more than that many. */
uint64_t image_tower_patches(const struct image_tower *tower, const struct image_grid *grids, size_t n);

#define IMAGE_MAX_PATCHES ((uint64_t)1 << 22) /* of all pictures together, class rows included */

/* Memory that image_tower_rows leaves in the arena, at most: n_rows T, n_merged R. */
uint64_t image_tower_bytes(const struct image_tower *tower, uint64_t n_rows, uint64_t n_merged);

/* Everything in the arena. ERR_INVALID (a side of 0, or that is no multiple of merge; a grid
 * of another size than a table of IMAGE_TAPS_EXACT; tiles of a canvas that are missing or unlike), ERR_LIMIT,
 * ERR_NOMEM.
 */
int image_tower_rows(const struct image_tower *tower, const struct image_grid *grids, size_t n,
                     struct arena *arena, struct image_rows *out, struct err *e);

#endif
