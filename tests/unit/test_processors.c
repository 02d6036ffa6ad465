/* SPDX-License-Identifier: Apache-2.0
 *
 * Image processors against what transformers makes of the same pictures (tests/images/processors, recorded by
 * tools/processor_reference.py): tensors bit for bit, grids, numbers of placeholders, refusals. Then what is
 * refused, and numbers of other projects.
 */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/hash.h"
#include "image/image.h"

#define PICTURES   TEST_SOURCE_ROOT "/tests/images"
#define PROCESSORS PICTURES "/processors"

static const struct json *read_json(const char *path, struct arena *a)
{
    char *text;
    size_t n;
    const struct json *v;
    struct file_info there;
    struct err e = {0};
    if (file_stat(path, &there, NULL) || !there.exists)
        return NULL;
    assert_int_equal(file_read(path, 1 << 20, a, &text, &n, &e), ERR_OK);
    assert_int_equal(json_parse(text, n, NULL, a, &v, &e), ERR_OK);
    return v;
}

static struct image_configs read_configs(const char *folder, struct arena *a)
{
    static const char *const files[] = {"preprocessor_config.json", "processor_config.json", "config.json"};
    const struct json *v[3];
    for (size_t i = 0; i < 3; i++) {
        char path[700];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        v[i] = read_json(path, a);
    }
    return (struct image_configs){v[0], v[1], v[2]};
}

/* As pixels() of tools/image_reference.py makes them: [height, width, 3]. */
static struct image made(unsigned width, unsigned height, unsigned seed, struct arena *a)
{
    struct image m = {.info = {.width = width, .height = height}};
    uint8_t *p = m.rgb = arena_alloc_n(a, (size_t)width * height, 3);
    for (unsigned y = 0; y < height; y++)
        for (unsigned x = 0; x < width; x++)
            for (unsigned c = 0; c < 3; c++) {
                uint8_t v = (uint8_t)(x * (3 + c) + y * (5 - c) + seed * 17);
                *p++ = (x / 5 + y / 7) % 3 == 0 ? (uint8_t)(255 - v) : v;
            }
    return m;
}

static struct image load(const char *path, enum image_alpha alpha, struct arena *a)
{
    char *data;
    size_t n;
    struct image m;
    struct err e = {0};
    assert_int_equal(file_read(path, 64 << 20, a, &data, &n, &e), ERR_OK);
    assert_int_equal(image_decode(data, n, NULL, alpha, a, &m, &e), ERR_OK);
    return m;
}

struct told { /* a line of a recording */
    char backend[16], picture[64], shape[64], grid[32], hash[80];
    unsigned long long placeholders;
    double values[5];
    bool refused;
};

static bool read_line(FILE *f, struct told *t)
{
    char line[600];
    if (!fgets(line, sizeof line, f))
        return false;
    memset(t, 0, sizeof *t);
    int n = sscanf(line, "%15[^\t]\t%63[^\t]\t%63[^\t]\t%31[^\t]\t%llu\t%79s\t%la\t%la\t%la\t%la\t%la",
                   t->backend, t->picture, t->shape, t->grid, &t->placeholders, t->hash, &t->values[0],
                   &t->values[1], &t->values[2], &t->values[3], &t->values[4]);
    t->refused = strcmp(t->shape, "refused") == 0;
    assert_true(t->refused || n == 11);
    return true;
}

/* The shape as the reference writes it. */
static void shape_of(const struct image_processor *p, const struct image_plan *s, char *out, size_t n)
{
    if (p->rule == IMAGE_SMART)
        snprintf(out, n, "%llux%llu", (unsigned long long)s->n_rows, (unsigned long long)s->row_floats);
    else if (p->rule == IMAGE_NAVIT)
        snprintf(out, n, "%llux3x%ux%u", (unsigned long long)s->n_rows, p->patch, p->patch);
    else
        snprintf(out, n, "%ux3x%ux%u", s->n_tiles, s->tile_h, s->tile_w);
}

static bool same(const char *name, const struct told *t, const struct image_processor *p, struct arena *a)
{
    unsigned w, h;
    char path[600], text[80], hex[SHA256_HEX_BYTES];
    struct image m;
    struct image_plan s;
    struct err e = {0};
    float *x;
    snprintf(path, sizeof path, PICTURES "/%s", t->picture);
    if (!strchr(t->picture, '.') && sscanf(t->picture, "%ux%u", &w, &h) == 2)
        m = made(w, h, (w * 7 + h) % 97, a);
    else
        m = load(path, p->alpha, a);
    int rc = image_plan(p, m.info.width, m.info.height, NULL, &s, &e);
    if (t->refused || rc) {
        if (!t->refused || !rc)
            print_message("%s %s %s: %s\n", name, t->backend, t->picture, rc ? e.message : "not refused");
        return t->refused && rc;
    }
    assert_int_equal(image_process(p, &s, &m, a, &x, &e), ERR_OK);
    bool right = s.placeholders == t->placeholders;
    shape_of(p, &s, text, sizeof text);
    right = right && strcmp(text, t->shape) == 0;
    snprintf(text, sizeof text, "%ux%ux%u", s.grid_t, s.grid_h, s.grid_w);
    right = right && (t->grid[0] == '-' || strcmp(text, t->grid) == 0);
    assert_int_equal(sha256_hex(x, s.n_rows * s.row_floats * sizeof *x, hex, &e), ERR_OK);
    if (right && strcmp(hex, t->hash) == 0)
        return true;
    shape_of(p, &s, text, sizeof text);
    print_message("%s %s %s: shape %s not %s, grid %ux%u not %s, %llu placeholders not %llu, values", name,
                  t->backend, t->picture, text, t->shape, s.grid_h, s.grid_w, t->grid,
                  (unsigned long long)s.placeholders, t->placeholders);
    for (uint64_t i = 0, n = s.n_rows * s.row_floats; i < 5; i++)
        print_message(" %g/%g", (double)x[(n - 1) * i / 4], t->values[i]);
    print_message("\n");
    return false;
}

/* Counts lines and wrong ones of one recording. */
static void judge(const char *name, int *lines, int *wrong)
{
    char path[600];
    struct told t;
    struct arena a, picture;
    arena_init(&a, NULL, MEM_MISC);
    arena_init(&picture, NULL, MEM_MISC);
    snprintf(path, sizeof path, PROCESSORS "/%s", name);
    struct image_configs c = read_configs(path, &a);
    snprintf(path, sizeof path, PROCESSORS "/%s.tsv", name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (read_line(f, &t)) {
        enum image_backend backend = strcmp(t.backend, "pillow") == 0 ? IMAGE_PILLOW : IMAGE_TORCHVISION;
        struct image_processor p;
        struct err e = {0};
        if (image_processor_open(&c, &backend, &p, &e))
            fail_msg("%s: %s", name, e.message);
        if (strcmp(name, "gemma_pan") == 0)
            assert_true(p.do_tiles);
        *wrong += !same(name, &t, &p, &picture);
        ++*lines;
        arena_reset(&picture);
    }
    fclose(f);
    arena_release(&picture);
    arena_release(&a);
}

static void test_recorded(void **state)
{
    (void)state;
    int lines = 0, wrong = 0, names = 0;
    DIR *d = opendir(PROCESSORS);
    assert_non_null(d);
    for (struct dirent *one; (one = readdir(d));)
        if (!strchr(one->d_name, '.')) {
            judge(one->d_name, &lines, &wrong);
            names++;
        }
    closedir(d);
    print_message("%d processors, %d pictures, %d wrong\n", names, lines, wrong);
    assert_true(names >= 23 && lines >= 1200);
    assert_int_equal(wrong, 0);
}

static const struct json *parse(const char *text, struct arena *a)
{
    const struct json *v;
    struct err e = {0};
    if (text && json_parse(text, strlen(text), NULL, a, &v, &e))
        fail_msg("%s: %s", text, e.message);
    return text ? v : NULL;
}

static int open_text(const char *pre, const char *proc, const char *model, const enum image_backend *backend,
                     struct image_processor *p, struct err *e)
{
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    struct image_configs c = {parse(pre, &a), parse(proc, &a), parse(model, &a)};
    int rc = image_processor_open(&c, backend, p, e);
    arena_release(&a);
    return rc;
}

#define QWEN "\"image_processor_type\": \"Qwen2VLImageProcessor\""
#define CLIP "{\"feature_extractor_type\": \"CLIPFeatureExtractor\", \"size\": 448, \"crop_size\": 448}"

/* What would change pixels unseen is refused, and the message names it. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *pre, *word;
        int rc;
    } cases[] = {
        {"{\"image_processor_type\": \"FuyuImageProcessor\"}", "FuyuImageProcessor", ERR_UNSUPPORTED},
        {"{\"size\": 224}", "names no image processor", ERR_MISSING},
        {"{" QWEN ", \"sharpen\": 1}", "\"sharpen\"", ERR_UNSUPPORTED},
        {"{" QWEN ", \"sharpen\": null, \"size\": {\"shortest_edge\": 3136, \"longest\": 9}}", "\"longest\"",
         ERR_UNSUPPORTED},
        {"{" QWEN ", \"data_format\": \"channels_last\"}", "\"data_format\"", ERR_UNSUPPORTED},
        {"{" QWEN ", \"resample\": 6}", "\"resample\"", ERR_UNSUPPORTED},
        {"{" QWEN ", \"resample\": 4}", "box", ERR_UNSUPPORTED},
        {"{" QWEN ", \"do_resize\": false}", "\"do_resize\"", ERR_UNSUPPORTED},
        {"{" QWEN ", \"do_resize\": 1}", "\"do_resize\"", ERR_FORMAT},
        {"{" QWEN ", \"max_pixels\": -1}", "\"max_pixels\"", ERR_FORMAT},
        {"{" QWEN ", \"patch_size\": 0}", "patches of 0", ERR_LIMIT},
        {"{" QWEN ", \"patch_size\": {\"height\": 14, \"width\": 16}}", "\"patch_size\"", ERR_FORMAT},
        {"{" QWEN ", \"image_std\": [0.5, 0, 0.5]}", "\"image_std\"", ERR_UNSUPPORTED},
        {"{" QWEN ", \"image_mean\": [0.5, 0.5]}", "\"image_mean\"", ERR_FORMAT},
        {"{\"media_proc_cfg\": {\"fixed_output_tokens\": 64}}", "\"fixed_output_tokens\"", ERR_UNSUPPORTED},
        {"{\"image_processor_type\": \"GotOcr2ImageProcessor\", \"max_patches\": 1000}", "1000 tiles",
         ERR_LIMIT},
        {"{\"image_processor_type\": \"LlavaNextImageProcessor\", \"image_grid_pinpoints\": [[0, 1]]}",
         "\"image_grid_pinpoints\"", ERR_FORMAT},
        {"{" QWEN ", \"min_pixels\": 0}", "\"min_pixels\"", ERR_FORMAT},
        {"{" QWEN ", \"resample\": null}", "\"resample\" is null", ERR_UNSUPPORTED},
        {"{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": {\"min_pixels\": 9, \"max_pixels\": "
         "99}}",
         "\"min_pixels\"", ERR_UNSUPPORTED},
        {"{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": {\"height\": 9, \"width\": 9, "
         "\"shortest_edge\": 9}}",
         "more than one way", ERR_UNSUPPORTED},
        {"{\"image_processor_type\": \"PixtralImageProcessor\", \"do_center_crop\": true}",
         "\"do_center_crop\"", ERR_UNSUPPORTED},
        {"{\"image_processor_type\": \"Kimi_K25ImageProcessor\", \"size\": {\"max_height\": 9, "
         "\"max_width\": "
         "8}}",
         "max_height and max_width", ERR_UNSUPPORTED},
        {"{\"image_processor_type\": \"Kimi_K25ImageProcessor\", \"size\": {\"height\": 9, \"width\": 9}}",
         "max_height and max_width", ERR_UNSUPPORTED},
    };
    struct image_processor p;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = {0};
        int rc = open_text(cases[i].pre, NULL, NULL, NULL, &p, &e);
        if (rc != cases[i].rc || !strstr(e.message, cases[i].word))
            fail_msg("%s: %d, %s", cases[i].pre, rc, e.message);
    }
    struct err e = {0};
    assert_int_equal(open_text(NULL, "{\"image_seq_length\": 256}", NULL, NULL, &p, &e), ERR_MISSING);
    assert_int_equal(
        open_text(CLIP, NULL, "{\"model_type\": \"internvl_chat\", \"pad2square\": true}", NULL, &p, &e),
        ERR_UNSUPPORTED);
    assert_non_null(strstr(e.message, "\"pad2square\""));
    /* numbers that stand outside the processor's own file: another type is no reason to take the default */
    const char *llava = "{\"vision_feature_select_strategy\": \"default\", \"patch_size\": %s, "
                        "\"num_additional_image_tokens\": %s}";
    char text[200];
    snprintf(text, sizeof text, llava, "14", "256");
    assert_int_equal(open_text(CLIP, text, NULL, NULL, &p, &e), ERR_OK);
    assert_int_equal(p.tower_extra, 255);
    snprintf(text, sizeof text, llava, "14", "257");
    assert_int_equal(open_text(CLIP, text, NULL, NULL, &p, &e), ERR_LIMIT);
    snprintf(text, sizeof text, llava, "\"14\"", "1");
    assert_int_equal(open_text(CLIP, text, NULL, NULL, &p, &e), ERR_FORMAT);
    assert_non_null(strstr(e.message, "\"patch_size\""));
    assert_int_equal(open_text(CLIP, NULL,
                               "{\"model_type\": \"internvl_chat\", \"force_image_size\": [448, 224]}", NULL,
                               &p, &e),
                     ERR_FORMAT);
    assert_non_null(strstr(e.message, "\"force_image_size\""));
}

static int plan_text(const char *pre, uint32_t w, uint32_t h, struct image_plan *s, struct err *e)
{
    struct image_processor p;
    int rc = open_text(pre, NULL, NULL, NULL, &p, e);
    return rc ? rc : image_plan(&p, w, h, NULL, s, e);
}

/* The same thing has other names with other processors, and those change nothing; sizes in spellings that a
 * processor has no rule for are refused, not read as another one. */
static void test_foreign_keys(void **state)
{
    (void)state;
    struct image_processor p;
    struct image_plan s;
    struct err e = {0};
#define OCR "{\"image_processor_type\": \"GotOcr2ImageProcessor\""
    assert_int_equal(
        plan_text(OCR ", \"do_pan_and_scan\": true, \"do_image_splitting\": true}", 900, 300, &s, &e), 0);
    assert_int_equal(s.n_tiles, 1);
    assert_int_equal(plan_text(OCR ", \"crop_to_patches\": true, \"in_patch_limit\": 2}", 900, 300, &s, &e),
                     0);
    assert_int_equal(s.n_tiles, 4);
    assert_int_equal(plan_text(OCR ", \"crop_to_patches\": true, \"max_patches\": 2}", 900, 300, &s, &e), 0);
    assert_int_equal(s.n_tiles, 3);
    assert_int_equal(plan_text(OCR ", \"size\": {\"max_height\": 9, \"max_width\": 9}}", 90, 30, &s, &e),
                     ERR_UNSUPPORTED);
#undef OCR
    assert_int_equal(
        open_text("{" QWEN ", \"image_seq_length\": 7, \"merge_kernel_size\": 3}", NULL, NULL, NULL, &p, &e),
        0);
    assert_int_equal(p.tile_tokens, 0);
    assert_int_equal(p.merge, 2);
    assert_int_equal(
        plan_text("{\"image_processor_type\": \"Idefics3ImageProcessor\", \"max_image_size\": 364}", 90, 30,
                  &s, &e),
        ERR_UNSUPPORTED);
    /* tiles are of crop_size, though none is cropped */
    const char *next =
        "{\"image_processor_type\": \"LlavaNextImageProcessor\", \"size\": 32, \"crop_size\": %d, "
        "\"do_center_crop\": false, \"image_grid_pinpoints\": [[64, 64]]}";
    char text[200];
    snprintf(text, sizeof text, next, 16);
    assert_int_equal(plan_text(text, 90, 30, &s, &e), ERR_UNSUPPORTED);
    snprintf(text, sizeof text, next, 32);
    assert_int_equal(plan_text(text, 90, 30, &s, &e), ERR_OK);
    /* before a resize white is laid behind; after it, or whenever else, that is not done here */
    const char *white = "{\"media_proc_cfg\": {\"transparent_bg_config\": {\"type\": \"white\"}, "
                        "\"transparent_bg_fill_stage\": \"%s\"}}";
    snprintf(text, sizeof text, white, "before_resize");
    assert_int_equal(open_text(text, NULL, NULL, NULL, &p, &e), ERR_OK);
    assert_true(p.alpha == IMAGE_ALPHA_WHITE && !p.refuses_alpha);
    snprintf(text, sizeof text, white, "somewhere");
    assert_int_equal(open_text(text, NULL, NULL, NULL, &p, &e), ERR_OK);
    assert_true(p.refuses_alpha);
}

/* Where a rule changes its mind: Python's round(), by which 12.5 is 12; sides that are just 200 to 1; a
 * picture that is narrower than a patch, whose patches count as if it were one wide. */
static void test_edges(void **state)
{
    (void)state;
    struct image_processor p;
    struct image_plan s;
    struct err e = {0};
    assert_int_equal(
        open_text("{\"image_processor_type\": \"CLIPImageProcessor\", \"do_center_crop\": false, "
                  "\"size\": {\"shortest_edge\": 60, \"longest_edge\": 25}}",
                  NULL, NULL, NULL, &p, &e),
        0);
    assert_int_equal(image_plan(&p, 200, 100, NULL, &s, &e), 0);
    assert_int_equal(s.resize[0][0], 25);
    assert_int_equal(s.resize[0][1], 12);
    assert_int_equal(open_text("{" QWEN "}", NULL, NULL, NULL, &p, &e), 0);
    assert_int_equal(image_plan(&p, 5600, 28, NULL, &s, &e), 0);
    assert_int_equal(image_plan(&p, 5601, 28, NULL, &s, &e), ERR_INVALID);
    assert_int_equal(open_text("{\"media_proc_cfg\": {\"in_patch_limit\": 4}}", NULL, NULL, NULL, &p, &e), 0);
    assert_int_equal(image_plan(&p, 10, 140, NULL, &s, &e), 0);
    assert_int_equal(s.resize[0][0], 6); /* by sqrt(4 / 10) */
    assert_int_equal(s.resize[0][1], 88);
}

static uint64_t tokens(const char *pre, const char *proc, const char *model, uint32_t w, uint32_t h)
{
    struct image_processor p;
    struct image_plan s;
    struct err e = {0};
    if (open_text(pre, proc, model, NULL, &p, &e) || image_plan(&p, w, h, NULL, &s, &e))
        fail_msg("%s: %s", pre, e.message);
    return s.placeholders;
}

/* Old and new spellings of one thing, and what stands outside the processor's own file. */
static void test_spellings(void **state)
{
    (void)state;
    /* bounds of the area: keys of their own, parts of size under either name; keys of their own win */
    uint64_t n = tokens("{" QWEN ", \"min_pixels\": 3136, \"max_pixels\": 100352}", NULL, NULL, 1000, 700);
    assert_int_equal(n, 117);
    assert_int_equal(n, tokens("{" QWEN ", \"size\": {\"shortest_edge\": 3136, \"longest_edge\": 100352}}",
                               NULL, NULL, 1000, 700));
    assert_int_equal(n, tokens("{" QWEN ", \"size\": {\"min_pixels\": 3136, \"max_pixels\": 100352}}", NULL,
                               NULL, 1000, 700));
    assert_int_equal(n, tokens("{" QWEN ", \"max_pixels\": 100352, \"size\": {\"shortest_edge\": 3136, "
                               "\"longest_edge\": 999999}}",
                               NULL, NULL, 1000, 700));
    /* what is nested in processor_config.json wins over preprocessor_config.json */
    assert_int_equal(n, tokens("{" QWEN "}", "{\"image_processor\": {" QWEN ", \"max_pixels\": 100352}}",
                               NULL, 1000, 700));
    assert_true(n != tokens("{" QWEN "}", NULL, NULL, 1000, 700));
    /* LLaVA: from its processor, or from config.json with CLIP's class token */
    const char *clip =
        "{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": 336, \"crop_size\": 336}";
    assert_int_equal(
        tokens(clip, NULL,
               "{\"vision_feature_select_strategy\": \"default\", \"vision_config\": {\"patch_size\": 14, "
               "\"model_type\": \"clip_vision_model\"}}",
               100, 50),
        576);
    assert_int_equal(tokens(clip, NULL, NULL, 100, 50), 0);
    /* LLaVA-NeXT: of 27 lines of patches none is lost to 26.999999999999996 */
    const char *next =
        "{\"image_processor_type\": \"LlavaNextImageProcessor\", \"size\": {\"shortest_edge\": 336}, "
        "\"crop_size\": 336, \"image_grid_pinpoints\": [[336, 672], [672, 336], [672, 672]]}";
    const char *of_clip = "{\"num_additional_image_tokens\": 1, \"patch_size\": 14, "
                          "\"vision_feature_select_strategy\": \"default\"}";
    assert_int_equal(tokens(next, of_clip, NULL, 99, 88), 1272);
    assert_int_equal(tokens(next, of_clip, NULL, 176, 55), 1360);
    /* Gemma3Processor passes do_pan_and_scan = False over the file's true */
    const char *gemma = "{\"image_processor_type\": \"Gemma3ImageProcessor\", \"do_pan_and_scan\": true%s}";
    char text[200];
    snprintf(text, sizeof text, gemma, "");
    assert_int_equal(tokens(text, NULL, "{\"mm_tokens_per_image\": 100}", 2000, 1000), 300);
    snprintf(text, sizeof text, gemma, ", \"processor_class\": \"Gemma3Processor\"");
    assert_int_equal(tokens(text, NULL, NULL, 2000, 1000), 256);
    /* Kimi-K3's limits, and a figure that its users publish */
    const char *k3 =
        "{\"media_proc_cfg\": {\"in_patch_limit\": 65536, \"patch_limit_on_one_side\": 512, \"patch_size\": "
        "14, \"merge_kernel_size\": 2, \"fixed_output_tokens\": null}}";
    assert_int_equal(tokens(k3, NULL, "{\"model_type\": \"kimi_k3\"}", 2800, 2800), 10000);
    /* InternVL: tokens of a tile from config.json; SmolVLM's shuffle */
    const char *tiles = "{\"image_processor_type\": \"GotOcr2ImageProcessor\"}";
    assert_int_equal(tokens(tiles, NULL,
                            "{\"downsample_ratio\": 0.5, \"vision_config\": {\"image_size\": [448, 448], "
                            "\"patch_size\": [14, 14]}}",
                            64, 64),
                     256);
    /* Its own layout: tiles of another side than the table's, and one only unless config.json says more */
#define OWN                                                                                                  \
    "{\"model_type\": \"internvl_chat\", \"force_image_size\": 224, \"vision_config\": {\"image_size\": "    \
    "448, "                                                                                                  \
    "\"patch_size\": 14}, \"downsample_ratio\": 0.5"
    assert_int_equal(tokens(CLIP, NULL, OWN "}", 900, 300), 64);
    assert_int_equal(tokens(CLIP, NULL, OWN ", \"dynamic_image_size\": true}", 900, 300), 3 * 64);
    assert_int_equal(
        tokens(CLIP, NULL, OWN ", \"dynamic_image_size\": true, \"use_thumbnail\": true}", 900, 300), 4 * 64);
    assert_int_equal(tokens(CLIP, NULL, OWN ", \"dynamic_image_size\": true}", 7000, 1000), 6 * 64);
    assert_int_equal(
        tokens(CLIP, NULL, OWN ", \"dynamic_image_size\": true, \"max_dynamic_patch\": 12}", 7000, 1000),
        7 * 64);
#undef OWN
    const char *smol = "{\"image_processor_type\": \"SmolVLMImageProcessor\", \"do_image_splitting\": false}";
    assert_int_equal(
        tokens(smol, NULL,
               "{\"scale_factor\": 4, \"vision_config\": {\"image_size\": 512, \"patch_size\": 16}}", 64, 64),
        64);
}

/* Which reference a name stands for, and pictures that must not be taken. */
static void test_backend_and_alpha(void **state)
{
    (void)state;
    struct image_processor p;
    struct image_plan s;
    struct arena a;
    struct err e = {0};
    float *x;
    arena_init(&a, NULL, MEM_MISC);
    assert_int_equal(open_text("{" QWEN "}", NULL, NULL, NULL, &p, &e), ERR_OK);
    assert_int_equal(p.backend, IMAGE_TORCHVISION);
    assert_int_equal(
        open_text("{\"image_processor_type\": \"Qwen2VLImageProcessorPil\"}", NULL, NULL, NULL, &p, &e),
        ERR_OK);
    assert_int_equal(p.backend, IMAGE_PILLOW);
    assert_int_equal(
        open_text("{\"image_processor_type\": \"SmolVLMImageProcessor\"}", NULL, NULL, NULL, &p, &e), ERR_OK);
    assert_int_equal(p.alpha, IMAGE_ALPHA_WHITE);
    const char *k3 = "{\"media_proc_cfg\": {\"transparent_bg_config\": {\"type\": \"chessboard\"}, "
                     "\"transparent_bg_fill_stage\": \"after_resize\"}}";
    assert_int_equal(open_text(k3, NULL, NULL, NULL, &p, &e), ERR_OK);
    assert_int_equal(p.backend, IMAGE_PILLOW);
    struct image m = made(30, 30, 0, &a);
    assert_int_equal(image_plan(&p, 30, 30, NULL, &s, &e), ERR_OK);
    assert_int_equal(image_process(&p, &s, &m, &a, &x, &e), ERR_OK);
    m.info.has_alpha = true;
    assert_int_equal(image_process(&p, &s, &m, &a, &x, &e), ERR_UNSUPPORTED);
    m.info.has_alpha = false;
    m.info.width = 15;
    assert_int_equal(image_process(&p, &s, &m, &a, &x, &e), ERR_MISMATCH);
    arena_release(&a);
}

/* Pictures that would grow without bound are refused by arithmetic; every plan that is given keeps its
 * promises. */
static void test_limits(void **state)
{
    (void)state;
    static const char *const names[] = {
        "CLIPImageProcessor",    "SiglipImageProcessor",   "LlavaNextImageProcessor",
        "Qwen2VLImageProcessor", "Kimi_K25ImageProcessor", "PixtralImageProcessor",
        "GotOcr2ImageProcessor", "Gemma3ImageProcessor",   "Idefics3ImageProcessor"};
    struct image_processor p;
    struct image_plan s;
    struct err e = {0};
    assert_int_equal(
        open_text("{\"image_processor_type\": \"CLIPImageProcessor\"}", NULL, NULL, NULL, &p, &e), ERR_OK);
    assert_int_equal(image_plan(&p, 65535, 1, NULL, &s, &e), ERR_LIMIT);
    assert_int_equal(image_plan(&p, 0, 1, NULL, &s, &e), ERR_INVALID);
    assert_int_equal(image_plan(&p, 65536, 1, NULL, &s, &e), ERR_INVALID);
    struct image_limits few = {.max_pixels = 224 * 224 - 1};
    assert_int_equal(image_plan(&p, 224, 224, &few, &s, &e), ERR_LIMIT);
    /* what is added around, and all tiles together, though each is small enough */
    few.max_pixels = 56 * 56;
    assert_int_equal(open_text("{\"media_proc_cfg\": {}}", NULL, NULL, NULL, &p, &e), ERR_OK);
    assert_int_equal(image_plan(&p, 29, 29, &few, &s, &e), ERR_OK);
    few.max_pixels--;
    assert_int_equal(image_plan(&p, 29, 29, &few, &s, &e), ERR_LIMIT);
    few.max_pixels = 3 * 896 * 896;
    assert_int_equal(
        open_text("{\"image_processor_type\": \"Gemma3ImageProcessor\", \"do_pan_and_scan\": true, "
                  "\"size\": {\"height\": 896, \"width\": 896}}",
                  NULL, NULL, NULL, &p, &e),
        ERR_OK);
    assert_int_equal(image_plan(&p, 2000, 1000, &few, &s, &e), ERR_OK);
    few.max_pixels--;
    assert_int_equal(image_plan(&p, 2000, 1000, &few, &s, &e), ERR_LIMIT);
    /* the last of four crops of two pixels would begin behind the fifth pixel */
    assert_int_equal(
        open_text("{\"image_processor_type\": \"Gemma3ImageProcessor\", \"do_pan_and_scan\": true, "
                  "\"pan_and_scan_min_crop_size\": 1, \"pan_and_scan_max_num_crops\": 4}",
                  NULL, NULL, NULL, &p, &e),
        ERR_OK);
    assert_int_equal(image_plan(&p, 5, 1, NULL, &s, &e), ERR_INVALID);
    assert_int_equal(image_plan(&p, 8, 1, NULL, &s, &e), ERR_OK);
    few.max_pixels = 10 * 5000; /* so is the picture before a resize, and that behind it, but not between */
    assert_int_equal(
        open_text("{\"image_processor_type\": \"CLIPImageProcessor\", \"do_center_crop\": false, "
                  "\"size\": {\"height\": 10, \"width\": 1000}}",
                  NULL, NULL, NULL, &p, &e),
        ERR_OK);
    assert_int_equal(image_plan(&p, 10, 5000, &few, &s, &e), ERR_LIMIT);
    assert_int_equal(image_plan(&p, 50, 200, &few, &s, &e), ERR_OK);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char text[100];
        int planned = 0;
        snprintf(text, sizeof text, "{\"image_processor_type\": \"%s\"%s}", names[i],
                 i == 2 ? ", \"size\": 336, \"crop_size\": 336" : "");
        assert_int_equal(open_text(text, NULL, NULL, NULL, &p, &e), ERR_OK);
        for (uint64_t k = 0; k < 2000; k++) {
            uint32_t w = 1 + (uint32_t)(rng_u64(7, 2 * k) % (k % 2 ? 4000 : 300));
            uint32_t h = 1 + (uint32_t)(rng_u64(7, 2 * k + 1) % (k % 3 ? 3000 : 60));
            int rc = image_plan(&p, w, h, NULL, &s, &e);
            assert_true(rc == ERR_OK || rc == ERR_INVALID || rc == ERR_LIMIT);
            if (rc)
                continue;
            planned++;
            assert_true((uint64_t)s.n_tiles * s.tile_w * s.tile_h <= IMAGE_MAX_PIXELS);
            assert_true(s.n_rows && s.row_floats);
            assert_true(!s.grid_t || p.rule == IMAGE_PIXTRAL ||
                        s.n_rows == (uint64_t)s.grid_t * s.grid_h * s.grid_w);
            assert_true(p.rule != IMAGE_SMART || s.placeholders * p.merge * p.merge == s.n_rows);
        }
        assert_true(planned > 1900);
    }
}

/* ---- numbers of other projects; skipped, counted, where they are absent ---- */

static bool material(const char *name, char *path, size_t n)
{
    const char *root = getenv("DAY0_MATERIAL");
    struct file_info there;
    snprintf(path, n, "%s/%s", root ? root : TEST_SOURCE_ROOT "/../shared/material", name);
    return file_stat(path, &there, NULL) == ERR_OK && there.exists;
}

static uint64_t fnv1a(const float *x, uint64_t n)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (uint64_t i = 0; i < n; i++)
        hash = (hash ^ (uint8_t)rintf(x[i] * 255)) * UINT64_C(0x100000001B3);
    return hash;
}

/* Pillow's resize, patches of bytes: image_numerics/smg. */
static void test_fingerprints(void **state)
{
    (void)state;
    char path[600];
    if (!material("image_numerics/smg/qwen_preprocess_fingerprints.json", path, sizeof path)) {
        print_message("SKIP fingerprints of Qwen processors: no material (set DAY0_MATERIAL)\n");
        skip();
    }
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    const struct json *cases = json_get(read_json(path, &a), "cases");
    assert_true(cases && cases->n == 4);
    for (uint32_t i = 0; i < cases->n; i++) {
        static const enum image_backend pillow = IMAGE_PILLOW;
        const struct json *one = json_at(cases, i);
        uint64_t w = 0, h = 0, t[3] = {0};
        struct image_processor p;
        struct image_plan s;
        struct err e = {0};
        char hex[20];
        float *x;
        bool third = strcmp(json_string(json_get(one, "model")), "qwen3_vl") == 0;
        const char *pre =
            third ? "{" QWEN ", \"do_normalize\": false, \"patch_size\": 16, \"min_pixels\": 65536, "
                    "\"max_pixels\": 16777216}"
                  : "{" QWEN ", \"do_normalize\": false, \"min_pixels\": 200704, \"max_pixels\": 1003520}";
        assert_int_equal(open_text(pre, NULL, NULL, &pillow, &p, &e), ERR_OK);
        assert_true(json_u64(json_get(one, "width"), &w) && json_u64(json_get(one, "height"), &h));
        for (size_t k = 0; k < 3; k++)
            assert_true(json_u64(json_at(json_get(one, "grid_thw"), k), &t[k]));
        struct image m = {.info = {.width = (uint32_t)w, .height = (uint32_t)h},
                          .rgb = arena_alloc(&a, w * h * 3)};
        for (uint64_t k = 0; k < w * h; k++) {
            uint64_t cx = k % w, cy = k / w;
            m.rgb[3 * k] = (uint8_t)(cx * 7 + cy * 3);
            m.rgb[3 * k + 1] = (uint8_t)(cx * 5 + cy * 11);
            m.rgb[3 * k + 2] = (uint8_t)(cx + cy * 2);
        }
        assert_int_equal(image_plan(&p, m.info.width, m.info.height, NULL, &s, &e), ERR_OK);
        assert_true(s.grid_t == t[0] && s.grid_h == t[1] && s.grid_w == t[2]);
        assert_int_equal(image_process(&p, &s, &m, &a, &x, &e), ERR_OK);
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)fnv1a(x, s.n_rows * s.row_floats));
        assert_string_equal(hex, json_string(json_get(one, "fnv1a_patch_u8")));
    }
    arena_release(&a);
}

/* The first 1,000 values that Qwen2.5-VL's processor gives for a photograph, to the bit:
 * image_numerics/ort-extensions. That test resizes to 540 x 360 before; the bound on the area here leads to
 * the same sides. */
static void test_pixel_file(void **state)
{
    (void)state;
    static const enum image_backend pillow = IMAGE_PILLOW;
    char path[600], photo[600], *text, *at;
    if (!material("image_numerics/ort-extensions/qwen2.5vl/pixel_values_reference.txt", path, sizeof path) ||
        !material("image_numerics/ort-extensions/processor/australia.jpg", photo, sizeof photo)) {
        print_message("SKIP pixels of Qwen2.5-VL: no material (set DAY0_MATERIAL)\n");
        skip();
    }
    struct arena a;
    struct image_processor p;
    struct image_plan s;
    struct err e = {0};
    size_t bytes;
    float *x;
    int n = 0;
    arena_init(&a, NULL, MEM_MISC);
    assert_int_equal(
        open_text("{\"image_processor_type\": \"Qwen2_5_VLImageProcessor\", \"max_pixels\": 206210}", NULL,
                  NULL, &pillow, &p, &e),
        ERR_OK);
    struct image m = load(photo, p.alpha, &a);
    assert_int_equal(image_plan(&p, m.info.width, m.info.height, NULL, &s, &e), ERR_OK);
    assert_true(s.grid_h == 364 / 14 && s.grid_w == 532 / 14);
    assert_int_equal(image_process(&p, &s, &m, &a, &x, &e), ERR_OK);
    assert_int_equal(file_read(path, 1 << 20, &a, &text, &bytes, &e), ERR_OK);
    for (at = arena_strndup(&a, text, bytes); *at; n++) {
        char *end;
        float told = strtof(at, &end);
        if (end == at)
            break;
        assert_true(told == x[n]);
        at = end;
    }
    assert_int_equal(n, 1000);
    arena_release(&a);
}

/* Directories as they were released. */
static void test_released(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t tokens; /* of 1000 x 700 */
    } dirs[] = {
        {"allenai--olmOCR-Qwen2-VL", 36 * 25},
        {"nvidia--Cosmos-Reason2-Qwen3-VL", 31 * 22},
        {"google--medgemma-27b-it", 256},
    };
    char path[600];
    if (!material("configs/google--medgemma-27b-it/preprocessor_config.json", path, sizeof path)) {
        print_message("SKIP released image processors: no material (set DAY0_MATERIAL)\n");
        skip();
    }
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        struct arena a;
        struct image_processor p;
        struct image_plan s;
        struct err e = {0};
        char name[200];
        arena_init(&a, NULL, MEM_MISC);
        snprintf(name, sizeof name, "configs/%s", dirs[i].name);
        assert_true(material(name, path, sizeof path));
        struct image_configs c = read_configs(path, &a);
        if (image_processor_open(&c, NULL, &p, &e) || image_plan(&p, 1000, 700, NULL, &s, &e))
            fail_msg("%s: %s", dirs[i].name, e.message);
        assert_int_equal(s.placeholders, dirs[i].tokens);
        arena_release(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded),          cmocka_unit_test(test_edges),
        cmocka_unit_test(test_refused),           cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_backend_and_alpha), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_fingerprints),      cmocka_unit_test(test_pixel_file),
        cmocka_unit_test(test_released),          cmocka_unit_test(test_foreign_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
