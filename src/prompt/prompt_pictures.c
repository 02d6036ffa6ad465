/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the places of tokens and of the rows of pictures among them, as get_rope_index of the Qwen-VL models
 * has them for pictures. Refuses a prompt whose placeholders and grids do not agree.
 */
#include "prompt/prompt.h"

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
