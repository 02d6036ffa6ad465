/* SPDX-License-Identifier: Apache-2.0
 *
 * Grids of pictures: numbers of a tower's rows by hand, places in a prompt, and what is refused: sides of 0,
 * grids that do not divide or do not fit, prompts whose placeholders and grids do not agree.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "image/image.h"
#include "prompt/prompt.h"

static void test_windows(void **state)
{
    (void)state;
    /* 3 x 3 merged rows of 2 x 2 patches, windows of 2 x 2 merged rows: 4, 2, 2 and 1 of them */
    static const int32_t numbers[] = {0, 1, 3, 4, 2, 5, 6, 7, 8}, sizes[] = {4, 4, 4, 4, 2, 2, 2, 2, 1};
    const struct image_tower tower = {.merge = 2, .window = 2};
    const struct image_grid grid = {1, 6, 6};
    struct image_rows r;
    struct arena arena;
    struct err e = {0};
    arena_init(&arena, NULL, MEM_MISC);
    assert_int_equal(image_tower_rows(&tower, &grid, 1, &arena, &r, &e), 0);
    assert_int_equal(r.n_rows, 36);
    assert_int_equal(r.n_merged, 9);
    for (int32_t row = 0; row < 36; row++) {
        assert_int_equal(r.patch[row], numbers[row / 4] * 4 + row % 4);
        assert_int_equal(r.places[3 * row + 1], numbers[row / 4] / 3 * 2 + row % 4 / 2);
        assert_int_equal(r.places[3 * row + 2], numbers[row / 4] % 3 * 2 + row % 2);
        assert_int_equal(r.windows[2 * row + 1] - r.windows[2 * row], 4 * sizes[row / 4]);
        assert_int_equal(r.spans[2 * row], 0);
        assert_int_equal(r.spans[2 * row + 1], 36);
        assert_int_equal(r.merge[numbers[row / 4] * 4 + row % 4], row);
    }
    arena_release(&arena);
}

/* The same rows, whether the processor leaves blocks of 2 x 2 patches or rows of them. */
static void test_raster(void **state)
{
    (void)state;
    static const int32_t order[] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11}; /* 2 x 4 patches, then 2 x 2 */
    const struct image_tower blocks = {.merge = 2}, lines = {.merge = 2, .raster = true};
    const struct image_grid grids[] = {{1, 2, 4}, {1, 2, 2}};
    struct image_rows a, b;
    struct arena arena;
    struct err e = {0};
    arena_init(&arena, NULL, MEM_MISC);
    assert_int_equal(image_tower_rows(&blocks, grids, 2, &arena, &a, &e), 0);
    assert_int_equal(image_tower_rows(&lines, grids, 2, &arena, &b, &e), 0);
    assert_int_equal(b.n_rows, 12);
    assert_memory_equal(b.patch, order, sizeof order);
    assert_memory_equal(b.places, a.places, 12 * 3 * sizeof(int32_t));
    assert_memory_equal(b.merge, a.merge, 12 * sizeof(int32_t));
    arena_release(&arena);
}

static void test_table(void **state)
{
    (void)state;
    const struct image_grid grids[] = {{2, 2, 4}, {1, 1, 1}};
    const enum image_taps kinds[] = {IMAGE_TAPS_BILINEAR, IMAGE_TAPS_BICUBIC};
    for (size_t k = 0; k < 2; k++) {
        const struct image_tower tower = {.merge = 1, .table_side = 4, .taps = kinds[k]};
        struct image_rows r;
        struct arena arena;
        struct err e = {0};
        arena_init(&arena, NULL, MEM_MISC);
        assert_int_equal(image_tower_rows(&tower, grids, 2, &arena, &r, &e), 0);
        assert_int_equal(r.n_rows, 17);
        assert_int_equal(r.n_taps, k ? 16 : 4);
        for (size_t t = 0; t < r.n_rows; t++) {
            float sum = 0;
            for (size_t j = t * r.n_taps; j < (t + 1) * r.n_taps; j++) {
                sum += r.table_weights[j];
                assert_in_range(r.table_rows[j], 0, 15);
            }
            assert_float_equal(sum, 1, 1e-5);
        }
        if (k == 0) { /* corners lie on corners; the second frame is like the first */
            assert_int_equal(r.table_rows[4 * 7], 15);
            assert_float_equal(r.table_weights[4 * 7], 1, 0);
            assert_memory_equal(r.table_rows, r.table_rows + 4 * 8, 4 * 8 * sizeof(int32_t));
            assert_int_equal(r.spans[2 * 8], 8);
        }
        arena_release(&arena);
    }
}

/* A table of 4 x 4 places that is not stretched. */
static void test_exact(void **state)
{
    (void)state;
    const struct image_tower tower = {.merge = 2, .table_side = 4, .taps = IMAGE_TAPS_EXACT};
    const struct image_grid grid = {1, 4, 2};
    static const int32_t want[] = {0, 1, 4, 5, 8, 9, 12, 13};
    struct image_rows r;
    struct arena arena;
    struct err e = {0};
    arena_init(&arena, NULL, MEM_MISC);
    assert_int_equal(image_tower_rows(&tower, &grid, 1, &arena, &r, &e), 0);
    assert_int_equal(r.n_taps, 1);
    assert_memory_equal(r.table_rows, want, sizeof want);
    assert_float_equal(r.table_weights[7], 1, 0);
    arena_release(&arena);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        struct image_tower tower;
        struct image_grid grid;
        int rc;
    } bad[] = {
        {{.merge = 2}, {1, 0, 4}, ERR_INVALID},
        {{.merge = 2}, {0, 4, 4}, ERR_INVALID},
        {{.merge = 2}, {1, 3, 4}, ERR_INVALID},
        {{.merge = 0}, {1, 4, 4}, ERR_INVALID},
        {{.merge = UINT32_MAX}, {1, 4, 4}, ERR_INVALID},
        {{.merge = 1, .taps = IMAGE_TAPS_BILINEAR}, {1, 4, 4}, ERR_INVALID},
        {{.merge = 1, .table_side = 4, .taps = IMAGE_TAPS_EXACT}, {1, 4, 5}, ERR_INVALID},
        {{.merge = 1}, {UINT32_MAX, UINT32_MAX, UINT32_MAX}, ERR_LIMIT},
        {{.merge = 1}, {1, 4096, 1025}, ERR_LIMIT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct image_rows r;
        struct arena arena;
        struct err e = {0};
        arena_init(&arena, NULL, MEM_MISC);
        assert_int_equal(image_tower_rows(&bad[i].tower, &bad[i].grid, 1, &arena, &r, &e), bad[i].rc);
        assert_true(e.message[0] != 0);
        arena_release(&arena);
    }
}

static void test_prompt(void **state)
{
    (void)state;
    const struct spec_tower tower = {.merge = 2, .image_token = 9};
    const struct image_grid grids[] = {{1, 4, 6}, {1, 2, 2}};
    const int32_t ids[] = {1, 9, 9, 9, 9, 9, 9, 2, 9, 3};
    static const int32_t want[10][3] = {{0, 0, 0}, {1, 1, 1}, {1, 1, 2}, {1, 1, 3}, {1, 2, 1},
                                        {1, 2, 2}, {1, 2, 3}, {4, 4, 4}, {5, 5, 5}, {6, 6, 6}};
    static const int32_t from[10] = {-1, 0, 1, 2, 3, 4, 5, -1, 6, -1};
    int32_t places[30], feature_of[10];
    struct err e = {0};
    assert_int_equal(prompt_places(&tower, ids, 10, grids, 2, places, feature_of, &e), 0);
    assert_memory_equal(places, want, sizeof want);
    assert_memory_equal(feature_of, from, sizeof from);
    assert_int_equal(prompt_places(&tower, ids, 10, grids, 1, places, feature_of, &e), ERR_MISMATCH);
    assert_int_equal(prompt_places(&tower, ids, 8, grids, 2, places, feature_of, &e), ERR_MISMATCH);
    assert_int_equal(prompt_places(&tower, ids, 6, grids, 1, places, feature_of, &e), ERR_MISMATCH);
    const struct image_grid odd = {1, 3, 8}, huge = {UINT32_MAX, UINT32_MAX - 1, UINT32_MAX - 1};
    assert_int_equal(prompt_places(&tower, ids, 7, &odd, 1, places, feature_of, &e), ERR_MISMATCH);
    assert_int_equal(prompt_places(&tower, ids, 7, &huge, 1, places, feature_of, &e), ERR_MISMATCH);
    const struct spec_tower unknown = {.merge = 2, .image_token = -1};
    assert_int_equal(prompt_places(&unknown, ids, 10, grids, 2, places, feature_of, &e), ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_windows), cmocka_unit_test(test_raster),
                                       cmocka_unit_test(test_table),   cmocka_unit_test(test_exact),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_prompt)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
