/* SPDX-License-Identifier: Apache-2.0
 *
 * Grids of pictures: numbers of a tower's rows by hand (class rows, tiles of a canvas and the ends of its
 * lines included), tiles as rows of patches, places in a prompt, and what is refused: sides of 0, grids that
 * do not divide or do not fit, canvases without their tiles, prompts whose placeholders and grids do not
 * agree.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "image/image.h"
#include "prompt/prompt.h"

/* Each test has an arena, which holds what it lays out. */
static int open_arena(void **state)
{
    struct arena *a = malloc(sizeof *a);
    if (a)
        arena_init(a, NULL, MEM_MISC);
    *state = a;
    return a ? 0 : -1;
}

static int close_arena(void **state)
{
    arena_release(*state);
    free(*state);
    return 0;
}

static struct image_rows laid(void **state, const struct image_tower *tower, const struct image_grid *grids,
                              size_t n)
{
    struct image_rows r = {0};
    struct err e = {0};
    if (image_tower_rows(tower, grids, n, *state, &r, &e))
        fail_msg("%s", e.message);
    return r;
}

/* The error that these give, which says something. */
static int refused(void **state, const struct image_tower *tower, const struct image_grid *grids, size_t n)
{
    struct image_rows r;
    struct err e = {0};
    int rc = image_tower_rows(tower, grids, n, *state, &r, &e);
    assert_true(e.message[0] != 0);
    return rc;
}

static void test_windows(void **state)
{
    /* 3 x 3 merged rows of 2 x 2 patches, windows of 2 x 2 merged rows: 4, 2, 2 and 1 of them */
    static const int32_t numbers[] = {0, 1, 3, 4, 2, 5, 6, 7, 8}, sizes[] = {4, 4, 4, 4, 2, 2, 2, 2, 1};
    const struct image_tower tower = {.merge = 2, .window = 2};
    const struct image_grid grid = {1, 6, 6};
    struct image_rows r = laid(state, &tower, &grid, 1);
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
}

/* The same rows, whether the processor leaves blocks of 2 x 2 patches or rows of them. */
static void test_raster(void **state)
{
    static const int32_t order[] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11}; /* 2 x 4 patches, then 2 x 2 */
    const struct image_tower blocks = {.merge = 2}, lines = {.merge = 2, .raster = true};
    const struct image_grid grids[] = {{1, 2, 4}, {1, 2, 2}};
    struct image_rows a = laid(state, &blocks, grids, 2);
    struct image_rows b = laid(state, &lines, grids, 2);
    assert_int_equal(b.n_rows, 12);
    assert_memory_equal(b.patch, order, sizeof order);
    assert_memory_equal(b.places, a.places, 12 * 3 * sizeof(int32_t));
    assert_memory_equal(b.merge, a.merge, 12 * sizeof(int32_t));
}

static void test_table(void **state)
{
    const struct image_grid grids[] = {{2, 2, 4}, {1, 1, 1}};
    const enum image_taps kinds[] = {IMAGE_TAPS_BILINEAR, IMAGE_TAPS_BICUBIC, IMAGE_TAPS_CENTRES};
    for (size_t k = 0; k < 3; k++) {
        const struct image_tower tower = {.merge = 1, .table_side = 4, .taps = kinds[k]};
        struct image_rows r = laid(state, &tower, grids, 2);
        assert_int_equal(r.n_rows, 17);
        assert_int_equal(r.n_taps, k == 1 ? 16 : 4);
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
        if (k == 1) { /* Keys' cubic with a = -0.75, a quarter and three off; the sole row lies between two */
            static const float across[] = {-0.10546875f, 0.87890625f, 0.26171875f, -0.03515625f};
            const struct image_grid wide = {1, 1, 8};
            const struct image_rows w = laid(state, &tower, &wide, 1);
            for (int32_t j = 0; j < 16; j++) { /* the second of eight places on four, so 0.25 */
                static const float down[] = {-0.09375f, 0.59375f, 0.59375f, -0.09375f};
                assert_float_equal(w.table_weights[16 + j], down[j / 4] * across[j % 4], 0);
                assert_int_equal(w.table_rows[16 + j], j / 4 * 4 + (j % 4 ? j % 4 - 1 : 0));
            }
        }
        if (k == 2) { /* the upper of two lies between the centres of two cells of four, and on one across */
            static const float shares[] = {0.5f, 0, 0.5f, 0};
            assert_int_equal(r.table_rows[2], 4);
            assert_memory_equal(r.table_weights, shares, sizeof shares);
        }
    }
}

/* A table of 4 x 4 places that is not stretched. */
static void test_exact(void **state)
{
    const struct image_tower tower = {.merge = 2, .table_side = 4, .taps = IMAGE_TAPS_EXACT};
    const struct image_grid grid = {1, 4, 4}, smaller = {1, 4, 2};
    static const int32_t want[] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
    struct image_rows r = laid(state, &tower, &grid, 1);
    assert_int_equal(r.n_taps, 1);
    assert_memory_equal(r.table_rows, want, sizeof want);
    assert_float_equal(r.table_weights[7], 1, 0);
    assert_int_equal(refused(state, &tower, &smaller, 1), ERR_INVALID);
}

/* Idefics3's embeddings, by torch: torch.bucketize(arange(n) * (1 / n), arange(1 / side, 1, 1 / side),
 * right=True) in float32. 25 reaches some places twice. */
static void test_buckets(void **state)
{
    static const struct {
        uint32_t side, n;
        int32_t want[32];
    } cases[] = {
        {4, 6, {0, 0, 1, 2, 2, 3}},
        {4, 4, {0, 1, 2, 3}},
        {4, 3, {0, 1, 2}},
        {26, 26, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                  13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25}},
        {27, 27, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13,
                  14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26}},
        {31, 31, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                  16, 16, 18, 19, 20, 20, 22, 23, 24, 24, 26, 27, 28, 28, 30}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct image_tower tower = {
            .merge = 1, .table_side = cases[i].side, .taps = IMAGE_TAPS_BUCKETS, .raster = true};
        const struct image_grid grid = {1, cases[i].n, cases[i].n};
        struct image_rows r = laid(state, &tower, &grid, 1);
        assert_int_equal(r.n_taps, 1);
        for (uint32_t y = 0; y < cases[i].n; y++)
            for (uint32_t x = 0; x < cases[i].n; x++)
                assert_int_equal(r.table_rows[y * cases[i].n + x],
                                 cases[i].want[y] * (int32_t)cases[i].side + cases[i].want[x]);
    }
}

/* A class row before each tile: kept as a feature, or dropped, and with it merged rows. */
static void test_class(void **state)
{
    const struct image_grid grids[] = {{1, 2, 2}, {1, 2, 2}};
    static const int32_t patch[] = {-1, 0, 1, 2, 3, -1, 4, 5, 6, 7}, table[] = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4},
                         kept[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, left[] = {1, 2, 3, 4, 6, 7, 8, 9},
                         firsts[] = {1, 2, 3, 5, 6, 7};
    struct image_tower tower = {
        .merge = 1, .table_side = 2, .taps = IMAGE_TAPS_EXACT, .raster = true, .class_row = true};
    struct image_rows r = laid(state, &tower, grids, 2);
    assert_int_equal(r.n_rows, 10);
    assert_int_equal(image_tower_patches(&tower, grids, 2), 10);
    assert_int_equal(r.n_patches, 8);
    assert_int_equal(r.n_merged, 10);
    assert_memory_equal(r.patch, patch, sizeof patch);
    assert_memory_equal(r.table_rows, table, sizeof table);
    assert_memory_equal(r.merge, kept, sizeof kept);
    for (size_t t = 0; t < 10; t++) {
        assert_int_equal(r.class_rows[t], t % 5 ? -1 : 0);
        assert_int_equal(r.line_rows[t], -1);
        assert_int_equal(r.spans[2 * t], t / 5 * 5);
        assert_int_equal(r.spans[2 * t + 1], t / 5 * 5 + 5);
    }
    tower.drop_first = true;
    r = laid(state, &tower, grids, 2);
    assert_int_equal(r.n_merged, 8);
    assert_memory_equal(r.merge, left, sizeof left);
    tower.merge = 2; /* InternVL: one merged row a tile */
    tower.taps = IMAGE_TAPS_BICUBIC;
    r = laid(state, &tower, grids, 2);
    assert_int_equal(r.n_merged, 2);
    assert_memory_equal(r.merge, left, sizeof left);
    for (size_t i = 0; i < 16;
         i++) { /* a class row's place is the first of the table, the others lie behind it */
        assert_int_equal(r.table_rows[5 * 16 + i], i ? -1 : 0);
        assert_in_range(r.table_rows[6 * 16 + i], 1, 4);
    }
    tower = (struct image_tower){.merge = 1, .drop_first = true}; /* a first patch is dropped as well */
    r = laid(state, &tower, grids, 2);
    assert_int_equal(r.n_merged, 6);
    assert_memory_equal(r.merge, firsts, sizeof firsts);
}

/* The whole, then 1 x 2 tiles of 2 x 2 patches of which the upper and lower line are padding; tile rows
 * cross. */
static void test_canvas(void **state)
{
    struct image_grid grids[] = {{1, 2, 2}, {1, 2, 2, .rows = 1, .columns = 2}, {1, 2, 2}};
    static const int32_t all[] = {1, 2, 3, 4, 6, 7, 11, 12, 12, 8, 9, 13, 14, 14},
                         middle[] = {1, 2, 3, 4, 7, 11, 11, 9, 13, 13},
                         ends[] = {-1, -1, -1, -1, -1, -1, 0, -1, -1, 0};
    const struct image_tower tower = {
        .merge = 1, .raster = true, .class_row = true, .drop_first = true, .lines = true};
    struct image_rows r = laid(state, &tower, grids, 3);
    assert_int_equal(r.n_rows, 15);
    assert_int_equal(r.n_merged, 14);
    assert_memory_equal(r.merge, all, sizeof all);
    grids[1].skip_w = 1;
    r = laid(state, &tower, grids, 3);
    assert_int_equal(r.n_merged, 10);
    assert_memory_equal(r.merge, middle, sizeof middle);
    assert_memory_equal(r.line_rows, ends, sizeof ends);
    assert_int_equal(refused(state, &tower, grids, 2), ERR_INVALID); /* a tile is missing */
    grids[2].w = 4;
    assert_int_equal(refused(state, &tower, grids, 3), ERR_INVALID); /* and now unlike */
    grids[2].w = 2;
    grids[1].skip_w = 2; /* nothing is left */
    assert_int_equal(refused(state, &tower, grids, 3), ERR_INVALID);
    grids[1].skip_w = 0;
    grids[1].skip_h = 1; /* nor so */
    assert_int_equal(refused(state, &tower, grids, 3), ERR_INVALID);
    grids[1].skip_h = 0;
    grids[1].t = grids[2].t = 2; /* tiles are still */
    assert_int_equal(refused(state, &tower, grids, 3), ERR_INVALID);
    grids[1] = (struct image_grid){1, 2, 2, .rows = UINT32_MAX, .columns = UINT32_MAX, .skip_h = UINT32_MAX};
    assert_int_equal(refused(state, &tower, grids, 3), ERR_INVALID);
}

/* What a plan counts is what the rows of its grids are, padding or not. */
static void test_plans(void **state)
{
    struct image_processor p = {.rule = IMAGE_ANYRES, .tower_patch = 14, .do_crop = true};
    static const uint32_t canvases[][2] = {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
    const struct image_tower tower = {
        .merge = 1, .raster = true, .class_row = true, .drop_first = true, .lines = true};
    p.size.shortest = p.crop.height = p.crop.width = 336;
    p.n_pinpoints = (uint32_t)ARRAY_LEN(canvases);
    memcpy(p.pinpoints, canvases, sizeof canvases);
    unsigned padded = 0;
    for (uint32_t w = 40; w < 1500; w += 37)
        for (uint32_t h = 40; h < 1500; h += 101) {
            struct image_plan plan;
            struct image_grid grids[8];
            struct err e = {0};
            assert_int_equal(image_plan(&p, w, h, NULL, &plan, &e), 0);
            assert_in_range(plan.n_tiles, 2, ARRAY_LEN(grids));
            assert_int_equal(image_plan_grids(&plan, 14, true, grids, &e), 0);
            struct image_rows r = laid(state, &tower, grids, plan.n_tiles);
            assert_int_equal(r.n_merged, plan.placeholders);
            padded += grids[1].skip_h || grids[1].skip_w;
            arena_reset(*state);
        }
    assert_in_range(padded, 50, 600);
    struct image_grid one;
    struct err e = {0};
    struct image_plan small = {.tile_w = 13, .tile_h = 14, .n_tiles = 1};
    assert_int_equal(image_plan_grids(&small, 14, false, &one, &e), ERR_INVALID);
    small.tile_w = 30;
    assert_int_equal(image_plan_grids(&small, 14, false, &one, &e), 0);
    assert_int_equal(one.w, 2);
}

/* Each value of each patch, by the definition of a convolution without overlap; 7 x 5 pixels have 3 x 2 whole
 * patches of 2. */
static void test_patches(void **state)
{
    enum { N = 2, C = 3, H = 7, W = 5, P = 2 };
    static float tiles[N][C][H][W];
    float *rows;
    struct err e = {0};
    for (size_t i = 0; i < sizeof tiles / sizeof(float); i++)
        (&tiles[0][0][0][0])[i] = (float)i;
    assert_int_equal(image_patches(&tiles[0][0][0][0], N, C, H, W, P, *state, &rows, &e), 0);
    for (size_t n = 0; n < N; n++)
        for (size_t y = 0; y < 6; y++)
            for (size_t x = 0; x < 4; x++)
                for (size_t c = 0; c < C; c++) {
                    const size_t patch = n * 6 + y / P * 2 + x / P, at = (c * P + y % P) * P + x % P;
                    assert_float_equal(rows[patch * C * P * P + at], tiles[n][c][y][x], 0);
                }
    assert_int_equal(image_patches(&tiles[0][0][0][0], N, C, H, W, 6, *state, &rows, &e), ERR_INVALID);
    assert_int_equal(image_patches(&tiles[0][0][0][0], N, C, H, W, 0, *state, &rows, &e), ERR_INVALID);
    assert_int_equal(image_patches(&tiles[0][0][0][0], SIZE_MAX, C, H, W, P, *state, &rows, &e), ERR_LIMIT);
}

static void test_refused(void **state)
{
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
        {{.merge = 1, .class_row = true}, {1, 2048, 2048}, ERR_LIMIT}, /* one row more than fit */
        {{.merge = 2, .class_row = true}, {1, 4, 4}, ERR_INVALID},
        {{.merge = 2, .drop_first = true}, {1, 4, 4}, ERR_INVALID},
        {{.merge = 1, .class_row = true, .window = 2}, {1, 4, 4}, ERR_INVALID},
        {{.merge = 2, .lines = true}, {1, 4, 4, .rows = 1, .columns = 1}, ERR_INVALID},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(refused(state, &bad[i].tower, &bad[i].grid, 1), bad[i].rc);
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_arena, close_arena)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_windows), TEST(test_raster),  TEST(test_table),
                                       TEST(test_exact),   TEST(test_buckets), TEST(test_class),
                                       TEST(test_canvas),  TEST(test_plans),   TEST(test_patches),
                                       TEST(test_refused), TEST(test_prompt)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
