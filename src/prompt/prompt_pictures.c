/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the places of tokens and of the rows of pictures among them, as get_rope_index of the Qwen-VL models
 * has them for pictures; which row each token takes, and what it sees both ways. Refuses a prompt whose
 * placeholders and pictures do not agree.
 */
#include "prompt/prompt_impl.h"

/* One picture from token `at` on: h x w merged rows, t times. */
static void put_picture(const struct image_grid *g, uint32_t merge, int64_t start, int32_t *places)
{
    const uint32_t high = g->h / merge, wide = g->w / merge;
    for (uint32_t t = 0; t < g->t; t++)
        for (uint32_t y = 0; y < high; y++)
            for (uint32_t x = 0; x < wide; x++, places += 3) {
                places[0] = (int32_t)(start + t);
                places[1] = (int32_t)(start + y);
                places[2] = (int32_t)(start + x);
            }
}

static int check_grid(const struct image_grid *g, uint32_t merge, size_t number, uint64_t *rows,
                      struct err *e)
{
    uint64_t patches;
    if (merge == 0 || g->t == 0 || g->h == 0 || g->w == 0 || g->h % merge || g->w % merge ||
        !mul_u64(g->h, g->w, &patches) || !mul_u64(patches, g->t, &patches) || patches > IMAGE_MAX_PATCHES)
        return err_set(e, ERR_MISMATCH, "picture %zu has a grid of %u x %u x %u patches", number, g->t, g->h,
                       g->w);
    *rows = patches / ((uint64_t)merge * merge);
    return ERR_OK;
}

int prompt_places(const struct spec_tower *tower, const int32_t *ids, size_t n,
                  const struct image_grid *grids, size_t n_grids, int32_t *places, int32_t *feature_of,
                  struct err *e)
{
    int64_t position = 0;
    size_t picture = 0, feature = 0;
    if (tower->image_token < 0)
        return err_set(e, ERR_UNSUPPORTED, "config.json does not tell which token stands for a picture");
    if (n > INT32_MAX / 4)
        return err_set(e, ERR_LIMIT, "%zu tokens", n);
    for (size_t at = 0; at < n;) {
        size_t run = 0;
        uint64_t rows = 0;
        while (at + run < n && ids[at + run] == tower->image_token)
            run++;
        if (run == 0) {
            places[3 * at] = places[3 * at + 1] = places[3 * at + 2] = (int32_t)position++;
            feature_of[at++] = -1;
            continue;
        }
        if (picture == n_grids)
            return err_set(e, ERR_MISMATCH, "token %zu begins picture %zu, and there are %zu grids", at,
                           picture, n_grids);
        const struct image_grid *g = &grids[picture];
        int rc = check_grid(g, tower->merge, picture, &rows, e);
        if (rc)
            return rc;
        if (rows != run)
            return err_set(e, ERR_MISMATCH, "picture %zu gives %llu rows, and %zu tokens stand for it",
                           picture, (unsigned long long)rows, run);
        put_picture(g, tower->merge, position, places + 3 * at);
        for (size_t i = 0; i < run; i++)
            feature_of[at + i] = (int32_t)feature++;
        position += (g->h > g->w ? g->h : g->w) / tower->merge;
        at += run;
        picture++;
    }
    return picture == n_grids
               ? ERR_OK
               : err_set(e, ERR_MISMATCH, "%zu pictures stand in the prompt, and there are %zu grids",
                         picture, n_grids);
}

/* ---- the layout of a conversation ---- */

struct laying {
    const struct prompt_eyes *eyes;
    const struct prompt_pictures *pictures;
    struct prompt_layout *out;
    uint32_t merge;
    uint32_t picture, used;  /* rows of it that were laid */
    int64_t position, start; /* next place; place of the picture */
    int32_t feature;
};

static int check_counts(const struct laying *l, const int32_t *ids, size_t n, struct err *e)
{
    uint64_t tokens = 0, rows = 0;
    for (size_t i = 0; i < n; i++)
        tokens += ids[i] == l->eyes->token_id;
    for (uint32_t i = 0; i < l->pictures->n; i++)
        rows += l->pictures->list[i].n_rows;
    if (tokens != rows)
        return err_set(e, ERR_MISMATCH, "%llu tokens %s stand for pictures, which give %llu rows",
                       (unsigned long long)tokens, l->eyes->rules.token, (unsigned long long)rows);
    for (uint32_t i = 0; l->eyes->rules.by_grid && i < l->pictures->n; i++) {
        const struct prompt_picture *m = &l->pictures->list[i];
        uint64_t of_grid = 0;
        int rc = m->n_grids == 1 ? check_grid(m->grids, l->merge, i, &of_grid, e) : ERR_OK;
        if (rc)
            return rc;
        if (of_grid != m->n_rows)
            return err_set(e, ERR_MISMATCH, "picture %u has %u rows, and its grid %llu", i, m->n_rows,
                           (unsigned long long)of_grid);
    }
    return ERR_OK;
}

static void put_place(struct laying *l, size_t at, int64_t t, int64_t y, int64_t x)
{
    l->out->places[3 * at] = (int32_t)t;
    l->out->places[3 * at + 1] = (int32_t)y;
    l->out->places[3 * at + 2] = (int32_t)x;
}

static void lay_row(struct laying *l, size_t at)
{
    while (l->used == l->pictures->list[l->picture].n_rows) {
        l->picture++;
        l->used = 0;
    }
    struct prompt_picture *m = &l->pictures->list[l->picture];
    if (l->used == 0) {
        m->first = at;
        l->start = l->position;
    }
    if (l->eyes->rules.by_grid) {
        const struct image_grid *g = m->grids;
        const uint32_t high = g->h / l->merge, wide = g->w / l->merge, in_frame = l->used % (high * wide);
        put_place(l, at, l->start + l->used / (high * wide), l->start + in_frame / wide,
                  l->start + in_frame % wide);
        l->position = l->start + (high > wide ? high : wide);
    } else {
        put_place(l, at, l->position, l->position, l->position);
        l->position++;
    }
    l->used++;
    l->out->feature_of[at] = l->feature++;
}

/* Runs of tokens that stand for rows see each other: Gemma-3's token_type_ids, block by block. */
static void lay_spans(const struct prompt_layout *l)
{
    for (size_t from = 0, to; from < l->n; from = to) {
        to = from + 1;
        while (l->feature_of[from] >= 0 && to < l->n && l->feature_of[to] >= 0)
            to++;
        for (size_t i = from; i < to; i++) {
            l->spans[2 * i] = (int32_t)from;
            l->spans[2 * i + 1] = (int32_t)to;
        }
    }
}

int prompt_lay_pictures(const struct prompt_front *p, const struct prompt_pictures *pictures,
                        const int32_t *ids, size_t n, struct arena *arena, struct prompt_layout *out,
                        struct err *e)
{
    *out = (struct prompt_layout){.n = n};
    if (n > INT32_MAX / 4)
        return err_set(e, ERR_LIMIT, "%zu tokens", n);
    out->places = arena_alloc_n(arena, n + 1, 3 * sizeof *out->places);
    out->feature_of = arena_alloc_n(arena, n + 1, sizeof *out->feature_of);
    if (p->eyes && p->eyes->rules.both_ways && pictures->n)
        out->spans = arena_alloc_n(arena, n + 1, 2 * sizeof *out->spans);
    if (!out->places || !out->feature_of ||
        (p->eyes && p->eyes->rules.both_ways && pictures->n && !out->spans))
        return err_set(e, ERR_NOMEM, "out of memory for the places of %zu tokens", n);
    struct laying l = {.eyes = p->eyes, .pictures = pictures, .out = out};
    if (pictures->n) {
        l.merge = p->spec->vision ? p->spec->tower.merge : p->eyes->processor.merge;
        int rc = check_counts(&l, ids, n, e);
        if (rc)
            return rc;
    }
    for (size_t at = 0; at < n; at++) {
        if (pictures->n && ids[at] == p->eyes->token_id) {
            lay_row(&l, at);
            continue;
        }
        const bool within = l.used && l.used < pictures->list[l.picture].n_rows;
        if (within && p->eyes->rules.by_grid)
            return err_set(e, ERR_MISMATCH, "token %zu stands within picture %u, behind %u of its %u rows",
                           at, l.picture, l.used, pictures->list[l.picture].n_rows);
        put_place(&l, at, l.position, l.position, l.position);
        out->feature_of[at] = -1;
        l.position++;
    }
    if (out->spans)
        lay_spans(out);
    out->place_delta = (int32_t)(l.position - (int64_t)n);
    return ERR_OK;
}
