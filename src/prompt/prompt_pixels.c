/* SPDX-License-Identifier: Apache-2.0
 *
 * One picture from bytes to what a tower is given: pixels, patches in the tower's order, the numbers beside
 * them, and the key by which the same picture is known again. Owns nothing: everything lies in the caller's
 * arena, so each thread makes its own. Refuses a tower that asks for what no picture gives.
 */
#include <string.h>

#include "base/hash.h"
#include "base/thread.h"
#include "prompt/prompt_impl.h"

/* ---- the key ---- */

static int add_u64s(struct sha256 *h, const uint64_t *v, size_t n)
{
    return sha256_update(h, v, n * sizeof *v);
}

/* Whatever changes what becomes of a picture of given pixels, field by field. */
static int add_processor(struct sha256 *h, const struct image_processor *p)
{
    const uint64_t numbers[] = {p->rule,
                                p->backend,
                                p->filter,
                                p->alpha,
                                p->do_resize,
                                p->do_crop,
                                p->do_rescale,
                                p->do_normalise,
                                p->do_tiles,
                                p->pad_square,
                                p->whole,
                                p->size.height,
                                p->size.width,
                                p->size.shortest,
                                p->size.longest,
                                p->crop.height,
                                p->crop.width,
                                p->crop.shortest,
                                p->crop.longest,
                                p->max_tile.height,
                                p->max_tile.width,
                                p->max_tile.shortest,
                                p->max_tile.longest,
                                p->patch,
                                p->merge,
                                p->frames,
                                p->min_tiles,
                                p->max_patches,
                                p->max_side_patches,
                                p->pan_min_crop,
                                p->pan_max_crops,
                                p->n_pinpoints,
                                p->tile_tokens,
                                p->tower_patch,
                                (uint64_t)(int64_t)p->tower_extra};
    const double reals[] = {p->factor, p->mean[0], p->mean[1], p->mean[2],
                            p->std[0], p->std[1],  p->std[2],  p->pan_min_ratio};
    int rc = add_u64s(h, numbers, ARRAY_LEN(numbers));
    if (rc == 0)
        rc = sha256_update(h, reals, sizeof reals);
    return rc ? rc : sha256_update(h, p->pinpoints, p->n_pinpoints * sizeof p->pinpoints[0]);
}

static uint8_t nibble(char c)
{
    return (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static int make_key(const struct image_processor *p, const struct image *m, uint8_t key[32], struct err *e)
{
    const uint64_t sizes[] = {m->info.width, m->info.height};
    char hex[SHA256_HEX_BYTES];
    struct sha256 *h = NULL;
    int rc = sha256_begin(&h, e);
    if (rc)
        return rc;
    rc = add_processor(h, p);
    if (rc == 0)
        rc = add_u64s(h, sizes, 2);
    if (rc == 0)
        rc = sha256_update(h, m->rgb, (size_t)sizes[0] * sizes[1] * 3);
    if (rc) {
        sha256_abort(h);
        return err_set(e, ERR_NOMEM, "no SHA-256 of a picture");
    }
    rc = sha256_end(h, hex);
    for (size_t i = 0; rc == 0 && i < 32; i++)
        key[i] = (uint8_t)(nibble(hex[2 * i]) << 4 | nibble(hex[2 * i + 1]));
    return rc ? err_set(e, ERR_NOMEM, "no SHA-256 of a picture") : ERR_OK;
}

/* ---- what the tower is given ---- */

struct making {
    const struct prompt_front *p;
    const struct prompt_picture *m;
    struct arena *arena;
    struct prompt_pixels *out;
    const float *patches; /* [rows.n_patches, width] in the order of the processor */
    size_t width;
    struct image_rows rows;
    struct err *e;
};

/* Patches in the order of the tower's rows: [T, width]; zeros in class rows. */
static const float *in_order(const struct making *k)
{
    size_t same = 0;
    while (same < k->rows.n_rows && k->rows.patch[same] == (int32_t)same)
        same++;
    if (same == k->rows.n_rows)
        return k->patches;
    float *out = arena_alloc_n(k->arena, k->rows.n_rows, k->width * sizeof *out);
    for (size_t i = 0; out && i < k->rows.n_rows; i++) {
        if (k->rows.patch[i] >= 0)
            memcpy(out + i * k->width, k->patches + (size_t)k->rows.patch[i] * k->width,
                   k->width * sizeof *out);
        else
            memset(out + i * k->width, 0, k->width * sizeof *out);
    }
    return out;
}

/* What stands for a role, and the numbers of its rows. */
static struct prompt_input input_of(const struct making *k, uint32_t role)
{
    const struct image_rows *r = &k->rows;
    const uint32_t unit = k->p->spec->tower.merge * k->p->spec->tower.merge, taps = (uint32_t)r->n_taps;
    const struct prompt_input all[] = {
        {D0_INPUT_PATCHES, (uint32_t)k->width, r->n_rows, NULL},
        {D0_INPUT_PLACES, 3, r->n_rows, r->places},
        {D0_INPUT_SPANS, 2, r->n_rows, r->spans},
        {D0_INPUT_WINDOWS, 2, r->n_rows, r->windows},
        {D0_INPUT_MERGE, unit, r->n_merged, r->merge},
        {D0_INPUT_TABLE_ROWS, taps, r->n_rows, r->table_rows},
        {D0_INPUT_TABLE_WEIGHTS, taps, r->n_rows, r->table_weights},
        {D0_INPUT_CLASS_ROWS, 1, r->n_rows, r->class_rows},
        {D0_INPUT_LINE_ROWS, 1, r->n_merged, r->line_rows},
    };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i].role == role)
            return all[i];
    return (struct prompt_input){0};
}

static int add_inputs(struct making *k)
{
    const struct graph *g = k->p->spec->vision;
    struct prompt_pixels *out = k->out;
    for (uint32_t id = 0; id < g->n_values; id++) {
        const struct d0_value *v = &g->values[id];
        if (v->kind != D0_VALUE_INPUT)
            continue;
        struct prompt_input in = input_of(k, v->role);
        const int64_t width = v->n_dims > 1 ? v->dims[1] : 1;
        if (in.role == 0 || out->n_inputs == PROMPT_MAX_INPUTS || width != in.width)
            return err_set(k->e, ERR_UNSUPPORTED,
                           "the tower's input of role %u and width %lld, where a picture gives %u", v->role,
                           (long long)width, in.width);
        if (v->role == D0_INPUT_PATCHES && (in.data = in_order(k)) == NULL)
            return err_set(k->e, ERR_NOMEM, "out of memory for %zu patches", k->rows.n_rows);
        out->inputs[out->n_inputs++] = in;
    }
    return ERR_OK;
}

static enum image_taps taps_of(enum spec_interpolation table)
{
    switch (table) {
    case SPEC_NO_TABLE:
        return IMAGE_TAPS_NONE;
    case SPEC_BILINEAR:
        return IMAGE_TAPS_BILINEAR;
    case SPEC_CENTRES:
        return IMAGE_TAPS_CENTRES;
    case SPEC_BICUBIC:
        return IMAGE_TAPS_BICUBIC;
    case SPEC_EXACT:
        return IMAGE_TAPS_EXACT;
    case SPEC_BUCKETS:
        return IMAGE_TAPS_BUCKETS;
    }
    BUG("interpolation %d", (int)table);
}

struct image_tower prompt_tower(const struct spec_tower *w)
{
    return (struct image_tower){.merge = w->merge,
                                .window = w->window,
                                .table_side = w->table_side,
                                .taps = taps_of(w->table),
                                .raster = w->raster,
                                .class_row = w->class_row,
                                .drop_first = w->drop_first,
                                .lines = w->lines};
}

/* What the processor left, as patches: they are that already, or they are cut from tiles. */
static int cut_patches(struct making *k, const float *pixels, size_t *n)
{
    const struct spec_tower *w = &k->p->spec->tower;
    const enum image_rule rule = k->p->eyes->processor.rule;
    const struct image_plan *s = &k->m->plan;
    const uint64_t width = (uint64_t)w->channels * w->frames * w->patch * w->patch;
    const bool patches = rule == IMAGE_SMART || rule == IMAGE_NAVIT;
    k->width = (size_t)width;
    k->patches = pixels;
    *n = (size_t)s->n_rows;
    if (w->channels != 3 || (patches ? s->row_floats != width : w->frames != 1))
        return err_set(k->e, ERR_MISMATCH,
                       "the processor makes rows of %llu numbers, and the tower takes %u x %u x %u x %u",
                       (unsigned long long)s->row_floats, w->channels, w->frames, w->patch, w->patch);
    if (patches)
        return ERR_OK;
    float *cut;
    int rc =
        image_patches(pixels, s->n_tiles, w->channels, s->tile_h, s->tile_w, w->patch, k->arena, &cut, k->e);
    k->patches = cut;
    *n = (size_t)s->n_tiles * (s->tile_h / w->patch) * (s->tile_w / w->patch);
    return rc;
}

static int make_inputs(struct making *k, const float *pixels)
{
    const struct image_tower tower = prompt_tower(&k->p->spec->tower);
    size_t n = 0;
    int rc = cut_patches(k, pixels, &n);
    if (rc == 0)
        rc = image_tower_rows(&tower, k->m->grids, k->m->n_grids, k->arena, &k->rows, k->e);
    if (rc)
        return rc;
    if (k->rows.n_patches != n || k->rows.n_merged != k->m->n_rows)
        return err_set(k->e, ERR_MISMATCH,
                       "the tower makes %zu rows of %zu patches, and %u tokens stand for %zu patches",
                       k->rows.n_merged, k->rows.n_patches, k->m->n_rows, n);
    k->out->n_patches = k->rows.n_rows;
    return add_inputs(k);
}

const struct image_processor *prompt_processor(const struct prompt_front *p)
{
    return p->eyes && p->eyes->refused.code == 0 ? &p->eyes->processor : NULL;
}

int32_t prompt_picture_token(const struct prompt_front *p)
{
    return p->eyes ? p->eyes->token_id : -1;
}

static void reverse_colours(struct image *m)
{
    for (size_t i = 0; i < (size_t)m->info.width * m->info.height; i++) {
        const uint8_t red = m->rgb[3 * i];
        m->rgb[3 * i] = m->rgb[3 * i + 2];
        m->rgb[3 * i + 2] = red;
    }
}

int prompt_picture_make_by(const struct prompt_front *p, const struct prompt_picture *picture,
                           const struct image_processor *w, bool bgr, const struct image_limits *limits,
                           struct arena *arena, struct prompt_pixels *out, struct err *e)
{
    struct making k = {.p = p, .m = picture, .arena = arena, .out = out, .e = e};
    struct image m;
    float *pixels;
    *out = (struct prompt_pixels){.n_rows = picture->n_rows};
    const uint64_t begin = clock_ns();
    int rc = image_decode(picture->bytes, picture->n, limits, w->alpha, arena, &m, e);
    if (rc == 0 && bgr)
        reverse_colours(&m);
    if (rc == 0)
        rc = make_key(w, &m, out->key, e);
    const uint64_t decoded = clock_ns();
    if (rc == 0)
        rc = image_process(w, &picture->plan, &m, arena, &pixels, e);
    if (rc == 0 && p->spec->vision)
        rc = make_inputs(&k, pixels);
    out->decode_ns = decoded - begin;
    out->process_ns = clock_ns() - decoded;
    return rc;
}

uint64_t prompt_picture_bytes(const struct prompt_front *p, const struct prompt_picture *q)
{
    const struct image_tower tower = prompt_tower(&p->spec->tower);
    const struct spec_tower *w = &p->spec->tower;
    const uint64_t decode = image_decode_bytes(&q->info),
                   process = image_process_bytes(&p->eyes->processor, &q->plan);
    const uint64_t pixels = image_in_arena((uint64_t)q->info.width * q->info.height * 3);
    const uint64_t row = (uint64_t)w->channels * w->frames * w->patch * w->patch * sizeof(float);
    uint64_t all = sat_add(pixels, process);
    if (p->spec->vision) { /* patches that were cut from tiles, and once more in the tower's order */
        all = sat_add(all, sat_mul(image_in_arena(sat_mul(q->n_patches + 1, row)), 2));
        all = sat_add(all, image_tower_bytes(&tower, q->n_patches, q->n_rows));
    }
    return decode > all ? decode : all;
}

int prompt_picture_make(const struct prompt_front *p, const struct prompt_picture *picture,
                        const struct image_limits *limits, struct arena *arena, struct prompt_pixels *out,
                        struct err *e)
{
    return prompt_picture_make_by(p, picture, &p->eyes->processor, false, limits, arena, out, e);
}
