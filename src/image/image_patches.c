/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: from what a processor leaves to what a tower is fed: tiles as rows of patches, plans as grids.
 * Refuses tiles that are smaller than a patch.
 */
#include <string.h>

#include "base/str.h"
#include "image/image_impl.h"

int image_patches(const float *tiles, size_t n, uint32_t channels, uint32_t h, uint32_t w, uint32_t patch,
                  struct arena *arena, float **out, struct err *e)
{
    uint64_t rows, width, all;
    if (channels == 0 || patch == 0 || h < patch || w < patch)
        return err_set(e, ERR_INVALID, "tiles of %u x %u pixels in patches of %u", w, h, patch);
    const uint32_t high = h / patch, wide = w / patch;
    if (!mul_u64(high, wide, &rows) || !mul_u64(rows, n, &rows) || !mul_u64(patch, patch, &width) ||
        !mul_u64(width, channels, &width) || rows > IMAGE_MAX_PATCHES || !mul_u64(rows, width, &all) ||
        all > SIZE_MAX / sizeof **out)
        return err_set(e, ERR_LIMIT, "%zu tiles of %u x %u patches", n, wide, high);
    float *x = arena_alloc_n(arena, (size_t)all + 1, sizeof *x); /* [n, high, wide, channels, patch, patch] */
    if (!x)
        return err_set(e, ERR_NOMEM, "no memory for %llu patches", (unsigned long long)rows);
    *out = x;
    for (size_t i = 0; i < (size_t)rows; i++) {
        const size_t tile = i / ((size_t)high * wide), y = i / wide % high * patch, at = i % wide * patch;
        for (size_t c = 0; c < channels; c++)
            for (size_t line = 0; line < patch; line++, x += patch)
                memcpy(x, tiles + ((tile * channels + c) * h + y + line) * w + at, patch * sizeof *x);
    }
    return ERR_OK;
}

int image_plan_grids(const struct image_plan *plan, uint32_t patch, bool lines, struct image_grid *out,
                     struct err *e)
{
    if (plan->grid_h) {
        out[0] = (struct image_grid){.t = plan->grid_t, .h = plan->grid_h, .w = plan->grid_w};
        return ERR_OK;
    }
    if (patch == 0 || plan->tile_h < patch || plan->tile_w < patch)
        return err_set(e, ERR_INVALID, "tiles of %u x %u pixels in patches of %u", plan->tile_w, plan->tile_h,
                       patch);
    for (uint32_t i = 0; i < plan->n_tiles; i++)
        out[i] = (struct image_grid){.t = 1, .h = plan->tile_h / patch, .w = plan->tile_w / patch};
    if (lines && plan->whole_first && plan->n_tiles > 1) {
        out[1].rows = plan->rows;
        out[1].columns = plan->columns;
        image_padding(plan, patch, &out[1].skip_h, &out[1].skip_w);
    }
    return ERR_OK;
}
