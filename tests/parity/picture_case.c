/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the families whose pictures go through engine and scheduler in tests, their prompts, the messages
 * that prompt_picture_message() makes of pixels that are a function of a seed, and the yardstick. Refuses: a
 * prompt whose placeholders are not as many as the rows of its pictures.
 */
#include "picture_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "image/image.h"
#include "own_layout.h"

#define TREE TEST_SOURCE_ROOT "/tests/parity"

/* Every family with a tower, and both layouts of InternVL. Tiles: two of a picture beside each other, or
 * apart. */
const struct picture_family picture_families[] = {
    {"qwen2_vl", {0}},
    {"qwen2_5_vl", {0}},
    {"qwen3_vl", {0}},
    {"qwen3_vl_moe", {0}},
    {"qwen3_5", {0}},
    {"qwen3_5_moe", {0}},
    {"llava", {0}},
    {"llava_siglip", {0}},
    {"llava_next", {0}},
    {"internvl", {2, 1}},
    {"internvl_norms", {2, 1}},
    {"idefics3", {1, 2}},
    {"smolvlm", {2, 1}},
    {"pixtral", {0}},
    {"mistral3", {0}},
    {"gemma3", {0}},
    {"kimi_k25", {0}},
    {"kimi_k3", {0}},
    {"internvl", {2, 1}, .own = "qkv"},
};
const size_t n_picture_families = ARRAY_LEN(picture_families);

static void *room(struct model *m, size_t n, size_t size)
{
    void *p = arena_alloc_n(&m->arena, n + 1, size);
    if (!p)
        abort();
    return p;
}

bool has_input(const struct graph *g, uint32_t role)
{
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == D0_VALUE_INPUT && g->values[i].role == role)
            return true;
    return false;
}

/* ---- pictures ------------------------------------------------------------------------------------------ */

/* Sizes of pictures that a processor cuts into tiles, whose grids follow from its plan. */
static int plan_grids(struct model *m, const struct json *pictures, struct err *e)
{
    const struct json *list = json_get(pictures, "sizes");
    const struct image_configs files = {json_get(pictures, "processor"), NULL, json_get(m->t.root, "config")};
    struct image_processor p;
    struct image_plan plan;
    int64_t h, w;
    int rc = image_processor_open(&files, NULL, &p, e);
    if (rc == 0 && list->n != PICTURES)
        return err_set(e, ERR_FORMAT, "%zu sizes of pictures", (size_t)list->n);
    for (uint32_t i = 0; rc == 0 && i < PICTURES; i++) {
        if (!json_i64(json_at(json_at(list, i), 0), &h) || !json_i64(json_at(json_at(list, i), 1), &w))
            return err_set(e, ERR_FORMAT, "size %u is no two numbers", i);
        rc = image_plan(&p, (uint32_t)w, (uint32_t)h, NULL, &plan, e);
        if (rc == 0 && plan.n_tiles > MOST_TILES - m->n_grids)
            rc = err_set(e, ERR_FORMAT, "more than %d tiles", MOST_TILES);
        if (rc == 0)
            rc = image_plan_grids(&plan, m->s->tower.patch, m->s->tower.lines, m->grids + m->n_grids, e);
        if (rc)
            return rc;
        m->tiles[i] = (uint32_t)plan.n_tiles;
        m->n_grids += m->tiles[i];
        m->placeholders += plan.placeholders;
    }
    return rc;
}

static int read_grids(struct model *m, const struct picture_family *family, struct err *e)
{
    const struct json *pictures = json_get(m->t.root, "pictures"), *list = json_get(pictures, "grids");
    if (json_get(pictures, "sizes"))
        return plan_grids(m, pictures, e);
    for (uint32_t i = 0; i < PICTURES; i++) {
        m->tiles[i] = family->tiles[i] ? family->tiles[i] : 1;
        for (uint32_t k = 0; k < m->tiles[i]; k++) {
            int64_t v[3];
            for (size_t d = 0; d < 3; d++)
                if (!json_i64(json_at(json_at(list, m->n_grids), d), &v[d]) || v[d] < 1 || v[d] > 1000)
                    return err_set(e, ERR_FORMAT, "grid %zu is no three numbers", m->n_grids);
            m->grids[m->n_grids++] =
                (struct image_grid){.t = (uint32_t)v[0], .h = (uint32_t)v[1], .w = (uint32_t)v[2]};
        }
    }
    return list && list->n == m->n_grids
               ? ERR_OK
               : err_set(e, ERR_FORMAT, "%zu grids make the pictures of this family", m->n_grids);
}

size_t pixel_width(const struct model *m)
{
    const struct spec_tower *t = &m->s->tower;
    return (size_t)t->channels * t->frames * t->patch * t->patch;
}

void tower_inputs(struct model *m, const struct image_rows *r, const float *pixels,
                  struct prompt_input out[TOWER_INPUTS])
{
    const uint32_t width = (uint32_t)pixel_width(m), unit = m->s->tower.merge * m->s->tower.merge,
                   taps = (uint32_t)r->n_taps;
    float *patches = room(m, r->n_rows * width, sizeof *patches); /* zeros in class rows */
    for (size_t i = 0; i < r->n_rows; i++)
        if (r->patch[i] >= 0)
            memcpy(patches + i * width, pixels + (size_t)r->patch[i] * width, width * sizeof *patches);
    const struct prompt_input all[TOWER_INPUTS] = {
        {D0_INPUT_PATCHES, width, r->n_rows, patches},
        {D0_INPUT_PLACES, 3, r->n_rows, r->places},
        {D0_INPUT_SPANS, 2, r->n_rows, r->spans},
        {D0_INPUT_WINDOWS, 2, r->n_rows, r->windows},
        {D0_INPUT_MERGE, unit, r->n_merged, r->merge},
        {D0_INPUT_TABLE_ROWS, taps, r->n_rows, r->table_rows},
        {D0_INPUT_TABLE_WEIGHTS, taps, r->n_rows, r->table_weights},
        {D0_INPUT_CLASS_ROWS, 1, r->n_rows, r->class_rows},
        {D0_INPUT_LINE_ROWS, 1, r->n_merged, r->line_rows}};
    memcpy(out, all, sizeof all);
}

/* One picture of these grids, its pixels a function of seed, as prompt_picture_make() lays out one. */
static int make_picture(struct model *m, const struct image_grid *grids, uint32_t n, uint64_t seed,
                        struct sched_image *image, struct err *e)
{
    const struct image_tower tower = prompt_tower(&m->s->tower);
    struct prompt_input all[TOWER_INPUTS];
    struct prompt_pixels pixels = {0};
    struct picture_plan *message = NULL;
    struct image_rows r;
    int rc = image_tower_rows(&tower, grids, n, &m->arena, &r, e);
    if (rc)
        return rc;
    const size_t n_values = r.n_patches * pixel_width(m);
    float *values = room(m, n_values, sizeof *values);
    for (size_t i = 0; i < n_values; i++)
        values[i] = (float)(rng_f64(seed, i) * 2 - 1);
    tower_inputs(m, &r, values, all);
    pixels.n_patches = r.n_rows;
    pixels.n_rows = (uint32_t)r.n_merged;
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (has_input(m->s->vision, all[i].role))
            pixels.inputs[pixels.n_inputs++] = all[i];
    rc = prompt_picture_message(&pixels, &m->shape, &message, &image->bytes, e);
    if (rc)
        return rc;
    image->n_rows = pixels.n_rows;
    image->message = message;
    memset(image->key, (int)seed, sizeof image->key);
    return ERR_OK;
}

static int make_pictures(struct model *m, struct text *t, uint64_t seed, struct err *e)
{
    const struct image_grid *grids = m->grids;
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == 0 && i < PICTURES; i++) {
        struct sched_image *image = &t->images[i];
        rc = make_picture(m, grids, m->tiles[i], seed + i, image, e);
        if (rc)
            return rc;
        grids += m->tiles[i];
        t->n_pictures++;
        t->pictures[i] = (struct picture_plan *)(uintptr_t)image->message; /* ours; const to the scheduler */
        t->rows[i + 1] = t->rows[i] + image->n_rows;
        if (t->pictures[i]->n_patches > m->max_patches)
            m->max_patches = t->pictures[i]->n_patches;
        if (image->n_rows > m->max_rows)
            m->max_rows = image->n_rows;
    }
    return rc;
}

/* ---- prompts ------------------------------------------------------------------------------------------- */

/* The placeholders take the rows in turn, and there are as many. */
static int take_in_turn(const struct model *m, struct text *t, struct err *e)
{
    const int32_t token = tiny_image_token(&m->t, m->s);
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        t->feature_of[i] = t->ids[i] == token ? (int32_t)n++ : -1;
        for (size_t k = 0; k < 3; k++)
            t->places[3 * (size_t)i + k] = (int32_t)i;
    }
    return n == t->rows[t->n_pictures]
               ? ERR_OK
               : err_set(e, ERR_MISMATCH, "%u rows for %u placeholders", t->rows[t->n_pictures], n);
}

/* Placeholders next to each other see each other, where the text wants that. */
static void put_spans(struct model *m, struct text *t)
{
    if (!has_input(m->s->graph, D0_INPUT_SPANS))
        return;
    t->spans = room(m, t->n, 2 * sizeof *t->spans);
    for (uint32_t at = 0, end; at < t->n; at = end) {
        end = at + 1;
        while (t->feature_of[at] >= 0 && end < t->n && t->feature_of[end] >= 0)
            end++;
        for (uint32_t i = at; i < end; i++) {
            t->spans[2 * (size_t)i] = (int32_t)at;
            t->spans[2 * (size_t)i + 1] = (int32_t)end;
        }
        m->longest_span = end - at > m->longest_span ? end - at : m->longest_span;
    }
}

static int make_seen(struct model *m, struct text *t, uint64_t seed, struct err *e)
{
    t->n = (uint32_t)m->r->n_ids + TAIL;
    t->ids = room(m, t->n, sizeof *t->ids);
    memcpy(t->ids, m->r->ids, m->r->n_ids * sizeof *t->ids);
    for (uint32_t i = 0; i < TAIL; i++)
        t->ids[m->r->n_ids + i] = (int32_t)(rng_u64(9, i) % 100);
    t->places = room(m, t->n, 3 * sizeof *t->places);
    t->feature_of = room(m, t->n, sizeof *t->feature_of);
    int rc = make_pictures(m, t, seed, e);
    if (rc == 0 && m->placeholders && m->placeholders != t->rows[t->n_pictures])
        rc = err_set(e, ERR_MISMATCH, "%llu placeholders are planned, %u rows laid",
                     (unsigned long long)m->placeholders, t->rows[t->n_pictures]);
    if (rc)
        return rc;
    rc = has_input(m->s->graph, D0_INPUT_PLACES)
             ? prompt_places(&m->s->tower, t->ids, t->n, m->grids, m->n_grids, t->places, t->feature_of, e)
             : take_in_turn(m, t, e);
    put_spans(m, t);
    t->place_delta = t->places[3 * (size_t)(t->n - 1)] + 1 - (int32_t)t->n;
    return rc;
}

static void make_plain(struct model *m, struct text *t)
{
    t->n = PLAIN_TOKENS;
    t->ids = room(m, t->n, sizeof *t->ids);
    for (uint32_t i = 0; i < t->n; i++)
        t->ids[i] = (int32_t)(rng_u64(7, i) % 100);
}

static void make_step_places(struct model *m, struct text *t)
{
    t->place = room(m, t->n, sizeof *t->place);
    for (uint32_t p = 0; p < t->n; p++) {
        const int32_t at = (int32_t)p;
        t->place[p] = (struct step_place){
            .place = {at, at, at}, .feature = t->feature_of ? t->feature_of[p] : -1, .span = {at, at + 1}};
        if (t->places)
            memcpy(t->place[p].place, t->places + 3 * (size_t)p, sizeof t->place[p].place);
        if (t->spans)
            memcpy(t->place[p].span, t->spans + 2 * (size_t)p, sizeof t->place[p].span);
    }
    m->longest = t->n > m->longest ? t->n : m->longest;
}

uint32_t text_first(const struct text *t)
{
    uint32_t first = 0;
    while (t->feature_of[first] < 0)
        first++;
    return first;
}

bool text_cuts_span(const struct text *t, uint32_t position)
{
    return t->spans && position < t->n && t->spans[2 * (size_t)position] < (int32_t)position;
}

uint32_t text_known(const struct text *t, uint32_t page)
{
    uint32_t known = (t->n - 1) / page * page;
    while (text_cuts_span(t, known))
        known -= page;
    return known;
}

uint32_t text_pictures_behind(const struct text *t, uint32_t known)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_pictures; i++)
        for (uint32_t p = known; p < t->n; p++)
            if (t->feature_of[p] == (int32_t)t->rows[i + 1] - 1) /* its last row */
                n++;
    return n;
}

/* ---- yardstick ----------------------------------------------------------------------------------------- */

static int yard_tower(struct model *m, struct dev *d, struct text *t, uint32_t picture, struct err *e)
{
    const struct oracle_model model = {.dev = d, .spec = m->s, .ckpt = m->c, .d0 = &m->d0};
    struct picture_plan *p = t->pictures[picture];
    const int64_t dims[D0_N_DIMS] = {p->n_patches, 1, p->n_rows, 1};
    struct oracle_input in[PICTURE_MAX_INPUTS];
    struct oracle_output out[SPEC_MAX_FEATURES];
    for (uint32_t i = 0; i < p->n_arrays; i++) {
        const uint64_t rows = m->shape.inputs[i].rows == D0_DIM_ROWS ? p->n_rows : p->n_patches;
        in[i] = (struct oracle_input){p->arrays[i].role, (char *)p + p->arrays[i].at,
                                      4 * rows * p->arrays[i].width};
    }
    for (uint32_t i = 0; i < m->s->tower.n_features; i++)
        out[i] = (struct oracle_output){m->s->tower.features[i],
                                        t->features[i] + (size_t)t->rows[picture] * m->width,
                                        4 * (uint64_t)p->n_rows * m->width};
    return oracle_once(&model, m->s->vision, dims, in, p->n_arrays, out, m->s->tower.n_features, e);
}

int run_text(struct model *m, struct dev *d, const struct text *t, const struct step_place *place, size_t n,
             float *const *features, float *logits, struct err *e)
{
    const size_t page = m->s->page_tokens, pages = (n + page - 1) / page, rows = t->rows[t->n_pictures];
    const struct oracle_model model = {.dev = d, .spec = m->s, .ckpt = m->c, .d0 = &m->d0};
    const int64_t dims[D0_N_DIMS] = {(int64_t)n, 1, (int64_t)n, (int64_t)pages};
    int32_t *counted = room(m, n, sizeof *counted), *zeros = room(m, n, sizeof *zeros),
            *places = room(m, n, 3 * sizeof *places), *from = room(m, n, sizeof *from),
            *spans = room(m, n, 2 * sizeof *spans);
    for (size_t i = 0; i < n; i++) {
        counted[i] = (int32_t)i;
        memcpy(places + 3 * i, place[i].place, 3 * sizeof *places);
        memcpy(spans + 2 * i, place[i].span, 2 * sizeof *spans);
        from[i] = place[i].feature;
    }
    struct oracle_input in[9 + SPEC_MAX_FEATURES] = {
        {D0_INPUT_IDS, t->ids, 4 * n},     {D0_INPUT_POSITIONS, counted, 4 * n},
        {D0_INPUT_SEQ_OF, zeros, 4 * n},   {D0_INPUT_PAGE_TABLE, counted, 4 * pages},
        {D0_INPUT_ROWS, counted, 4 * n},   {D0_INPUT_SLOTS, zeros, 4},
        {D0_INPUT_PLACES, places, 12 * n}, {D0_INPUT_FEATURE_OF, from, 4 * n},
        {D0_INPUT_SPANS, spans, 8 * n},
    };
    const size_t n_features = m->s->tower.n_features;
    for (size_t i = 0; i < n_features; i++)
        in[9 + i] = (struct oracle_input){D0_INPUT_FEATURES, features[i], 4 * rows * m->width};
    const struct oracle_output out = {graph_result(m->s->graph), logits, 4 * n * m->vocab};
    return oracle_once(&model, m->s->graph, dims, in, 9 + n_features, &out, 1, e);
}

int model_yardsticks(struct model *m, struct dev *d, struct err *e)
{
    int rc = ERR_OK;
    for (uint32_t k = 0; rc == 0 && k < SHORT; k++) {
        struct text *t = &m->texts[k];
        for (uint32_t i = 0; i < m->s->tower.n_features; i++)
            t->features[i] = room(m, (size_t)t->rows[t->n_pictures] * m->width + 1, sizeof(float));
        t->want = room(m, (size_t)t->n * m->vocab, sizeof(float));
        for (uint32_t i = 0; rc == 0 && i < t->n_pictures; i++)
            rc = yard_tower(m, d, t, i, e);
        if (rc == 0)
            rc = run_text(m, d, t, t->place, t->n, t->features, t->want, e);
        for (size_t i = 0; rc == 0 && i < (size_t)t->n * m->vocab; i++)
            if (!isfinite(t->want[i]))
                rc = err_set(e, ERR_MISMATCH, "the yardstick is not finite");
    }
    const struct text *a = &m->texts[SEEN], *b = &m->texts[OTHER];
    const size_t last = (size_t)(a->n - 1) * m->vocab;
    if (rc == 0 && memcmp(a->want + last, b->want + last, m->vocab * sizeof(float)) == 0)
        rc = err_set(e, ERR_MISMATCH, "the logits do not hang on the pictures");
    m->texts[SHORT] = m->texts[SEEN]; /* nothing before its end hangs on what comes behind */
    m->texts[SHORT].n -= TAIL;
    return rc;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static int describe(struct model *m, const struct picture_family *family, struct err *e)
{
    char path[512];
    struct spec_options o = {.kv_dtype = D0_F32, .images = true};
    const struct json *patch = NULL;
    int rc = tiny_open(&m->t, TREE, family->name, e);
    if (rc == 0 && family->patch)
        rc = json_parse(family->patch, strlen(family->patch), NULL, &m->arena, &patch, e);
    if (rc == 0)
        rc = tiny_write_patched(&m->t, m->dir, patch, &m->d0, e);
    if (rc == 0 && family->own)
        rc = own_layout_rewrite(m->dir, family->own, &m->d0, e);
    if (rc == 0)
        rc = ckpt_open(&m->c, m->dir, &m->f, &m->d0, e);
    if (rc == 0)
        rc = spec_open(&m->s, m->c, &o, &m->f, &m->d0, e);
    o.images = false;
    if (rc == 0)
        rc = spec_open(&m->blind, m->c, &o, &m->f, &m->d0, e);
    if (rc == 0 && (!m->s || !m->s->vision || !m->blind))
        rc = err_set(e, ERR_FORMAT, "no graph of its tower: %s", m->f.n ? m->f.items[0].evidence : "?");
    snprintf(path, sizeof path, TREE "/golden/%s.pictures.safetensors", family->name);
    if (rc == 0)
        rc = reference_open(&m->r, path, e);
    return rc ? rc : picture_shape(m->s->vision, &m->shape, e);
}

int model_open(struct model *m, const struct picture_family *family, struct err *e)
{
    arena_init(&m->arena, NULL, MEM_MISC);
    m->layout = family->own ? " in its own layout" : "";
    m->d0 = (struct d0){.log = {.fd = -1}};
    findings_init(&m->f, NULL);
    strcpy(m->dir, "/tmp/day0-picture-bits-XXXXXX");
    if (!mkdtemp(m->dir))
        return err_set(e, ERR_IO, "no temporary directory");
    int rc = describe(m, family, e);
    if (rc == 0)
        rc = read_grids(m, family, e);
    if (rc)
        return rc;
    m->vocab = (uint32_t)m->s->graph->values[graph_result(m->s->graph)].dims[1];
    m->width = (uint32_t)m->s->vision->values[m->s->tower.features[0]].dims[1];
    rc = make_seen(m, &m->texts[SEEN], 11, e);
    if (rc == 0)
        rc = make_seen(m, &m->texts[OTHER], 33, e);
    make_plain(m, &m->texts[PLAIN]);
    for (uint32_t i = 0; rc == 0 && i < SHORT; i++)
        make_step_places(m, &m->texts[i]);
    return rc;
}

void model_close(struct model *m)
{
    for (uint32_t i = 0; i < SHORT; i++)
        for (uint32_t k = 0; k < m->texts[i].n_pictures; k++)
            free(m->texts[i].pictures[k]);
    reference_close(m->r);
    spec_close(m->s);
    spec_close(m->blind);
    ckpt_close(m->c);
    findings_release(&m->f);
    tiny_close(&m->t);
    tiny_remove(m->dir);
    arena_release(&m->arena);
}
