/* SPDX-License-Identifier: Apache-2.0
 *
 * What decoding and processing pictures take, by malloc's own count, libraries included, against the bounds
 * that a service plans with: never more, and the bounds are not so wide that nothing could break them.
 */
#include <dirent.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jpeglib.h>
#include <webp/encode.h>
#include <zlib.h>

#include "api/api.h"
#include "base/file.h"
#include "base/hash.h"
#include "image/image.h"
#include "picture_model.h"

#define PICTURES TEST_SOURCE_ROOT "/tests/images"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define OWN_MALLOC 0
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define OWN_MALLOC 0
#endif
#ifndef OWN_MALLOC
#define OWN_MALLOC 1
#endif

/* ---- malloc of the whole process, counted ---- */

static _Atomic int64_t held, most;

#if OWN_MALLOC
#define OURS __attribute__((visibility("default"))) /* libraries are to find it */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void __libc_free(void *p);

static void count(int64_t bytes)
{
    int64_t now = atomic_fetch_add(&held, bytes) + bytes;
    if (now > atomic_load(&most))
        atomic_store(&most, now);
}

static void *counted(void *p)
{
    count(p ? (int64_t)malloc_usable_size(p) : 0);
    return p;
}

OURS void *malloc(size_t n)
{
    return counted(__libc_malloc(n));
}

OURS void *calloc(size_t n, size_t size)
{
    return counted(__libc_calloc(n, size));
}

OURS void *realloc(void *p, size_t n)
{
    int64_t before = p ? (int64_t)malloc_usable_size(p) : 0;
    void *q = __libc_realloc(p, n);
    count(q ? (int64_t)malloc_usable_size(q) - before : 0);
    return q;
}

OURS void free(void *p)
{
    count(p ? -(int64_t)malloc_usable_size(p) : 0);
    __libc_free(p);
}
#endif

static int64_t begin(void)
{
    int64_t now = atomic_load(&held);
    atomic_store(&most, now);
    return now;
}

static uint64_t taken(int64_t since)
{
    return (uint64_t)(atomic_load(&most) - since);
}

/* spare: of the fixed part, which is most of a small picture's bound. */
static void within(const char *what, uint64_t took, uint64_t bound, uint64_t spare)
{
    if (took > bound || bound > 3 * took + spare)
        fail_msg("%s took %llu bytes, bound %llu", what, (unsigned long long)took, (unsigned long long)bound);
}

/* ---- decoders ---- */

/* What the library takes by itself, which the RGB behind it would hide: an arena without room for that ends
 * the decoding before it. */
static void library_alone(const char *what, const void *bytes, size_t n, const struct image_info *info)
{
    const uint64_t rgba = 4 * (uint64_t)info->width * info->height;
    struct arena none;
    struct image m;
    arena_init(&none, NULL, MEM_MISC);
    none.limit = 1;
    int64_t since = begin();
    assert_int_equal(image_decode(bytes, n, NULL, IMAGE_ALPHA_DROP, &none, &m, NULL), ERR_NOMEM);
    if (taken(since) > rgba + info->decoder_bytes)
        fail_msg("%s: its library took %llu bytes, bound %llu", what,
                 (unsigned long long)(taken(since) - rgba), (unsigned long long)info->decoder_bytes);
    arena_release(&none);
}

/* False: it is refused, which is another test's to judge. */
static bool decode(const char *what, const void *bytes, size_t n)
{
    struct image_info info;
    struct arena a;
    struct image m;
    if (image_probe(bytes, n, NULL, &info, NULL))
        return false;
    arena_init(&a, NULL, MEM_MISC);
    int64_t since = begin();
    const bool good = image_decode(bytes, n, NULL, IMAGE_ALPHA_DROP, &a, &m, NULL) == ERR_OK;
    if (good) {
        within(what, taken(since), image_decode_bytes(&info), 4 << 20);
        library_alone(what, bytes, n, &info);
    }
    arena_release(&a);
    return good;
}

static void files(void **state)
{
    (void)state;
    DIR *d = opendir(PICTURES);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *f; (f = readdir(d));) {
        char path[600], *data;
        size_t bytes;
        struct arena a;
        if (f->d_name[0] == '.' || strcmp(f->d_name, "processors") == 0 || strstr(f->d_name, ".tsv"))
            continue;
        snprintf(path, sizeof path, "%s/%s", PICTURES, f->d_name);
        arena_init(&a, NULL, MEM_MISC);
        assert_int_equal(file_read(path, 64 << 20, &a, &data, &bytes, NULL), ERR_OK);
        n += decode(f->d_name, data, bytes);
        arena_release(&a);
    }
    closedir(d);
    assert_true(n > 30);
}

/* Large enough that the part that grows with the picture is nearly all. */
enum { WIDE = 1501, HIGH = 1203 };

static uint8_t *noise(size_t channels)
{
    uint8_t *p = malloc((size_t)WIDE * HIGH * channels);
    assert_non_null(p);
    for (size_t i = 0; i < (size_t)WIDE * HIGH * channels; i++)
        p[i] = (uint8_t)(i / channels * 7 % 251 + rng_u64(3, i) % 16);
    return p;
}

/* Its file is next to nothing, so what is counted for the file hides nothing of what is counted for pixels.
 */
static uint8_t *squares(size_t channels)
{
    uint8_t *p = malloc((size_t)WIDE * HIGH * channels);
    assert_non_null(p);
    for (size_t i = 0; i < (size_t)WIDE * HIGH * channels; i++) {
        const size_t x = i / channels % WIDE / 64, y = i / channels / WIDE / 64;
        p[i] = (uint8_t)(x * 31 + y * 7 + i % channels * 40);
    }
    return p;
}

static void large_jpeg(J_COLOR_SPACE space, int channels, bool progressive, int sampling)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    unsigned char *out = NULL;
    unsigned long n = 0;
    char what[64];
    uint8_t *pixels = noise((size_t)channels);
    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &out, &n);
    c.image_width = WIDE;
    c.image_height = HIGH;
    c.input_components = channels;
    c.in_color_space = space;
    jpeg_set_defaults(&c);
    for (int i = 0; i < c.num_components; i++) {
        c.comp_info[i].h_samp_factor = i == 0 ? sampling : 1;
        c.comp_info[i].v_samp_factor = i == 0 && sampling == 2 ? 2 : 1; /* a scan takes 10 blocks at most */
    }
    if (progressive)
        jpeg_simple_progression(&c);
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < HIGH) {
        JSAMPROW row = pixels + (size_t)c.next_scanline * WIDE * (size_t)channels;
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    free(pixels);
    snprintf(what, sizeof what, "JPEG of %d channels, %d x, %s", channels, sampling,
             progressive ? "progressive" : "baseline");
    assert_true(decode(what, out, n));
    free(out);
}

static void large_webp(uint8_t *(*picture)(size_t channels), bool lossless, int channels)
{
    const int stride = WIDE * channels;
    uint8_t *pixels = picture((size_t)channels), *out = NULL;
    char what[64];
    size_t n;
    if (lossless)
        n = channels == 4 ? WebPEncodeLosslessRGBA(pixels, WIDE, HIGH, stride, &out)
                          : WebPEncodeLosslessRGB(pixels, WIDE, HIGH, stride, &out);
    else
        n = channels == 4 ? WebPEncodeRGBA(pixels, WIDE, HIGH, stride, 80, &out)
                          : WebPEncodeRGB(pixels, WIDE, HIGH, stride, 80, &out);
    free(pixels);
    assert_true(n > 0);
    snprintf(what, sizeof what, "%s WebP of %d channels in %zu bytes", lossless ? "lossless" : "lossy",
             channels, n);
    assert_true(decode(what, out, n));
    WebPFree(out);
}

static void large(void **state)
{
    (void)state;
    for (int progressive = 0; progressive < 2; progressive++) {
        for (int sampling = 1; sampling <= 4; sampling *= 2)
            large_jpeg(JCS_RGB, 3, progressive, sampling);
        large_jpeg(JCS_GRAYSCALE, 1, progressive, 1);
        large_jpeg(JCS_GRAYSCALE, 1, progressive, 2);
        large_jpeg(JCS_CMYK, 4, progressive, 1);
    }
    for (int lossless = 0; lossless < 2; lossless++) {
        large_webp(noise, lossless, 4);
        large_webp(squares, lossless, 3);
        large_webp(squares, lossless, 4);
    }
}

/* ---- a PNG of 1 x 1 with notes that become 4 MiB each: nobody reads them, so nobody is to unpack them ----
 */

static size_t put_chunk(uint8_t *to, const char *name, const uint8_t *data, size_t n)
{
    for (size_t i = 0; i < 4; i++)
        to[i] = (uint8_t)(n >> (24 - 8 * i));
    memcpy(to + 4, name, 4);
    memcpy(to + 8, data, n);
    const uLong crc = crc32(0, to + 4, (uInt)n + 4);
    for (size_t i = 0; i < 4; i++)
        to[8 + n + i] = (uint8_t)(crc >> (24 - 8 * i));
    return n + 12;
}

static void notes(void **state)
{
    (void)state;
    static const uint8_t head[13] = {0, 0, 0, 1, 0, 0, 0, 1, 8, 2}, line[4];
    static uint8_t file[1 << 20], packed[1 << 16], zeros[4 << 20];
    uLongf n = sizeof packed - 3;
    memcpy(file, "\x89PNG\r\n\x1a\n", 8);
    size_t at = 8 + put_chunk(file + 8, "IHDR", head, sizeof head);
    memset(zeros, 'a', sizeof zeros);
    memcpy(packed, "a\0", 3); /* keyword, method 0 */
    assert_int_equal(compress(packed + 3, &n, zeros, sizeof zeros), Z_OK);
    for (int i = 0; i < 32; i++)
        at += put_chunk(file + at, "zTXt", packed, n + 3);
    n = sizeof packed;
    assert_int_equal(compress(packed, &n, line, sizeof line), Z_OK);
    at += put_chunk(file + at, "IDAT", packed, n);
    at += put_chunk(file + at, "IEND", line, 0);
    struct image_info info;
    int64_t since = begin();
    assert_int_equal(image_probe(file, at, NULL, &info, NULL), ERR_OK);
    assert_true(taken(since) < 4 << 20);
    assert_true(decode("a PNG with notes", file, at));
}

/* Rows of 8 bytes a pixel, of which the library keeps some: 60000 x 2 of 16 bits and interlaced, all zeros.
 */
static void wide_png(void **state)
{
    (void)state;
    static const uint8_t head[13] = {0, 0, 0xEA, 0x60, 0, 0, 0, 2, 16, 6, 0, 0, 1};
    static uint8_t zeros[8 * 2 * 60000 + 5], packed[1 << 16], file[1 << 17]; /* five passes have rows */
    uLongf n = sizeof packed;
    memcpy(file, "\x89PNG\r\n\x1a\n", 8);
    size_t at = 8 + put_chunk(file + 8, "IHDR", head, sizeof head);
    assert_int_equal(compress(packed, &n, zeros, sizeof zeros), Z_OK);
    at += put_chunk(file + at, "IDAT", packed, n);
    at += put_chunk(file + at, "IEND", zeros, 0);
    assert_true(decode("a wide PNG", file, at));
}

/* ---- processors ---- */

enum { LARGE_TILE = 800 };

static const struct json *read_json(const char *folder, const char *name, struct arena *a)
{
    char path[700], *text;
    size_t n;
    const struct json *v;
    struct file_info there;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (file_stat(path, &there, NULL) || !there.exists)
        return NULL;
    assert_int_equal(file_read(path, 1 << 20, a, &text, &n, NULL), ERR_OK);
    assert_int_equal(json_parse(text, n, NULL, a, &v, NULL), ERR_OK);
    return v;
}

static void process(const char *name, const struct image_processor *p, uint32_t w, uint32_t h)
{
    struct arena a;
    struct image_plan s;
    char what[300];
    float *x;
    if (image_plan(p, w, h, NULL, &s, NULL))
        return;
    arena_init(&a, NULL, MEM_MISC);
    struct image m = {.info = {.width = w, .height = h}, .rgb = calloc((size_t)w * h, 3)};
    assert_non_null(m.rgb);
    snprintf(what, sizeof what, "%s of %u x %u", name, w, h);
    int64_t since = begin();
    assert_int_equal(image_process(p, &s, &m, &a, &x, NULL), ERR_OK);
    within(what, taken(since), image_process_bytes(p, &s), 4 << 20);
    arena_release(&a);
    free(m.rgb);
}

/* Tiles so large that each picture on the way is more than the fixed part of the bound, which else hides it.
 */
static void grow(struct image_processor *p)
{
    struct image_size *const sizes[] = {&p->size, &p->crop, &p->max_tile};
    const uint64_t edge = p->size.height ? p->size.height : p->size.shortest,
                   times = edge ? LARGE_TILE / edge + 1 : 1;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        sizes[i]->height *= times;
        sizes[i]->width *= times;
        sizes[i]->shortest *= times;
        sizes[i]->longest *= times;
    }
    for (uint32_t i = 0; i < p->n_pinpoints; i++)
        for (int side = 0; side < 2; side++)
            p->pinpoints[i][side] *= (uint32_t)times;
}

static void processors(void **state)
{
    (void)state;
    static const uint32_t sizes[][2] = {{40, 30}, {2400, 1800}, {700, 2100}, {337, 336}};
    DIR *d = opendir(PICTURES "/processors");
    assert_non_null(d);
    int n = 0;
    for (struct dirent *f; (f = readdir(d));) {
        char folder[600];
        struct arena a;
        struct image_processor p;
        if (f->d_name[0] == '.' || strstr(f->d_name, ".tsv"))
            continue;
        snprintf(folder, sizeof folder, "%s/processors/%s", PICTURES, f->d_name);
        arena_init(&a, NULL, MEM_MISC);
        const struct image_configs c = {read_json(folder, "preprocessor_config.json", &a),
                                        read_json(folder, "processor_config.json", &a),
                                        read_json(folder, "config.json", &a)};
        assert_int_equal(image_processor_open(&c, NULL, &p, NULL), ERR_OK);
        for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
            process(f->d_name, &p, sizes[i][0], sizes[i][1]);
        grow(&p);
        process(f->d_name, &p, 1500, 700);
        process(f->d_name, &p, 1791, 896); /* the second of two tiles is narrower */
        if (p.rule == IMAGE_NAVIT)         /* weights count where so much is shrunk to so little */
            process(f->d_name, &p, 60000, 40);
        p.do_resize = false; /* else what resizing passes is as large as a canvas */
        process(f->d_name, &p, 1500, 1100);
        arena_release(&a);
        n++;
    }
    closedir(d);
    assert_true(n > 15);
}

/* ---- what towers are given ---- */

static void rows(void **state)
{
    (void)state;
    static const struct image_tower towers[] = {
        {.merge = 2, .table_side = 48, .taps = IMAGE_TAPS_BILINEAR},
        {.merge = 2, .window = 4},
        {.merge = 1, .table_side = 32, .taps = IMAGE_TAPS_BICUBIC},
        {.merge = 1, .table_side = 24, .taps = IMAGE_TAPS_BUCKETS, .class_row = true, .drop_first = true},
    };
    const struct image_grid grid = {.t = 1, .h = 130, .w = 256};
    for (size_t i = 0; i < ARRAY_LEN(towers); i++) {
        struct arena a;
        struct image_rows out;
        arena_init(&a, NULL, MEM_MISC);
        int64_t since = begin();
        assert_int_equal(image_tower_rows(&towers[i], &grid, 1, &a, &out, NULL), ERR_OK);
        uint64_t took = taken(since), bound = image_tower_bytes(&towers[i], out.n_rows, out.n_merged);
        if (took > bound || bound > 16 * took)
            fail_msg("rows of tower %zu took %llu bytes, bound %llu", i, (unsigned long long)took,
                     (unsigned long long)bound);
        arena_release(&a);
    }
}

/* One picture from its file to the inputs of a tower. */
static void make(const struct prompt_front *front, uint32_t w, uint32_t h)
{
    struct strbuf text = STRBUF_INIT;
    struct arena a, work;
    const struct json *messages;
    struct prompt_pictures pictures;
    struct prompt_pixels out;
    struct err e = {0};
    const struct prompt_picture_options o = {0};
    char what[64];
    strbuf_puts(&text, "[{\"role\":\"user\",\"content\":[");
    picture_part(&text, w, h, 1);
    strbuf_puts(&text, "]}]");
    arena_init(&a, NULL, MEM_MISC);
    arena_init(&work, NULL, MEM_MISC);
    assert_int_equal(json_parse(strbuf_cstr(&text), text.len, NULL, &a, &messages, &e), ERR_OK);
    assert_int_equal(prompt_pictures_read(front, messages, &o, &a, &pictures, &e), ERR_OK);
    int64_t since = begin();
    assert_int_equal(prompt_picture_make(front, &pictures.list[0], NULL, &work, &out, &e), ERR_OK);
    snprintf(what, sizeof what, "making %u x %u", w, h);
    within(what, taken(since), prompt_picture_bytes(front, &pictures.list[0]), 8 << 20);
    arena_release(&work);
    arena_release(&a);
    strbuf_release(&text);
}

static void whole_way(void **state)
{
    (void)state;
    for (enum picture_kind kind = PICTURE_QWEN; kind <= PICTURE_GEMMA; kind++) {
        char dir[] = "/tmp/day0-picture-memory-XXXXXX";
        struct d0 d0 = {.log.fd = -1};
        struct session s;
        struct findings f;
        struct err e = {0};
        struct session_options so = {.model_dir = dir, .n_threads = 1, .memory_bytes = 1u << 30};
        assert_non_null(mkdtemp(dir));
        picture_model_write(dir, kind);
        findings_init(&f, &d0.mem);
        if (session_open(&s, &so, &f, &d0, &e))
            fail_msg("%s", e.message);
        make(s.front, 16, 24);
        make(s.front, 64, 64);
        make(s.front, 1300, 700);
        session_close(&s);
        findings_release(&f);
        picture_model_remove(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files),     cmocka_unit_test(large),      cmocka_unit_test(notes),
        cmocka_unit_test(wide_png),  cmocka_unit_test(processors), cmocka_unit_test(rows),
        cmocka_unit_test(whole_way),
    };
    if (!OWN_MALLOC) {
        printf("# skip: a sanitizer has malloc\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
