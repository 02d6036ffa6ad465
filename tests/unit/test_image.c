/* SPDX-License-Identifier: Apache-2.0
 *
 * Pictures against what Pillow makes of them (tests/images/pixels.tsv, by tools/image_reference.py): every
 * format, orientation and kind of alpha, pixel for pixel. Files that are cut, bent or huge are refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>
#include <zlib.h>

#include "base/file.h"
#include "base/hash.h"
#include "image/image.h"

#define OWN TEST_SOURCE_ROOT "/tests/images"

struct told { /* a line of pixels.tsv */
    char name[200], mode[16], plain[80], white[80];
    unsigned width, height;
    bool refused;
};

static bool read_line(FILE *f, struct told *t)
{
    char line[600];
    if (!fgets(line, sizeof line, f))
        return false;
    memset(t, 0, sizeof *t);
    t->refused = strstr(line, "\trefused\t") != NULL;
    int n = sscanf(line, "%199[^\t]\t%15[^\t]\t%u\t%u\t%79s\t%79s", t->name, t->mode, &t->width, &t->height,
                   t->plain, t->white);
    assert_true(t->refused || n == 6);
    return true;
}

static void hash_of(const struct image *m, char *hex)
{
    struct err e = {0};
    assert_int_equal(sha256_hex(m->rgb, (size_t)m->info.width * m->info.height * 3, hex, &e), ERR_OK);
}

/* Pictures of which Pillow makes something else, and why we do not. */
enum difference { WE_READ = 1, WE_REFUSE, OTHER_WHITE };
static const struct differs {
    const char *part;
    enum difference how;
} differs[] = {
    {"crashers/badcrc.png", WE_REFUSE},               /* a damaged chunk of pixels */
    {"crashers/huge_IDAT.png", WE_REFUSE},            /* ends within a chunk of pixels */
    {"crashers/empty_ancillary_chunks.png", WE_READ}, /* nothing that a pixel depends on is wrong */
    /* Pillow compares the transparent grey of 2 and 4 bits with samples that it has widened to 8 */
    {"testpngs/gray-2-", OTHER_WHITE},
    {"testpngs/gray-4-", OTHER_WHITE},
};

static enum difference difference_of(const struct told *t)
{
    for (size_t i = 0; i < ARRAY_LEN(differs); i++)
        if (strstr(t->name, differs[i].part) && (differs[i].how != OTHER_WHITE || strstr(t->name, "tRNS")))
            return differs[i].how;
    return 0;
}

/* What must come out of a file: its pixels, or a refusal where Pillow refuses, too. */
static bool same_as_told(const char *root, const struct told *t, enum difference how)
{
    char path[700], hex[SHA256_HEX_BYTES], *data;
    size_t n;
    struct err e = {0};
    struct arena a;
    bool same = true;
    arena_init(&a, NULL, MEM_MISC);
    snprintf(path, sizeof path, "%s/%s", root, t->name);
    assert_int_equal(file_read(path, 64 << 20, &a, &data, &n, &e), ERR_OK);
    bool refuse = how == WE_REFUSE || (t->refused && how != WE_READ);
    for (int alpha = 0; alpha < (how == OTHER_WHITE ? 1 : 2); alpha++) {
        struct image m;
        struct image_info info;
        int rc = image_decode(data, n, NULL, (enum image_alpha)alpha, &a, &m, &e);
        if (refuse || rc) {
            same = refuse && (rc == ERR_FORMAT || rc == ERR_LIMIT);
        } else if (how != WE_READ) {
            hash_of(&m, hex);
            assert_int_equal(image_probe(data, n, NULL, &info, &e), ERR_OK);
            same = same && m.info.width == t->width && m.info.height == t->height &&
                   strcmp(hex, alpha ? t->white : t->plain) == 0;
            same = same && info.width == t->width && info.height == t->height;
        }
        if (!same) {
            print_message("%s, %s: %s\n", t->name, alpha ? "over white" : "alpha dropped",
                          rc ? e.message : "other pixels");
            break;
        }
    }
    arena_release(&a);
    return same;
}

static void test_own_pictures(void **state)
{
    (void)state;
    struct told t;
    int n = 0;
    FILE *f = fopen(OWN "/pixels.tsv", "r");
    assert_non_null(f);
    while (read_line(f, &t)) {
        assert_true(same_as_told(OWN, &t, 0));
        n++;
    }
    fclose(f);
    assert_true(n >= 30);
}

static void test_material(void **state)
{
    (void)state;
    const char *root = getenv("DAY0_MATERIAL");
    if (!root)
        root = TEST_SOURCE_ROOT "/../shared/material";
    struct file_info there;
    char path[700];
    snprintf(path, sizeof path, "%s/images", root);
    if (file_stat(path, &there, NULL) || !there.exists) {
        print_message("SKIP pictures of other projects: no material (set DAY0_MATERIAL)\n");
        skip();
    }
    struct told t;
    int wrong = 0, n = 0;
    FILE *f = fopen(OWN "/material.tsv", "r");
    assert_non_null(f);
    while (read_line(f, &t)) {
        wrong += !same_as_told(root, &t, difference_of(&t));
        n++;
    }
    fclose(f);
    assert_true(n > 150);
    assert_int_equal(wrong, 0);
}

/* Every prefix of a file is refused, or (of formats whose last bytes no pixel depends on) gives the same
 * pixels; every bent byte gives an error or a picture of the sizes that the header says. */
static void test_cut_and_bent(void **state)
{
    (void)state;
    struct told t;
    FILE *f = fopen(OWN "/pixels.tsv", "r");
    assert_non_null(f);
    while (read_line(f, &t)) {
        char path[700], hex[SHA256_HEX_BYTES], *data;
        size_t n;
        struct arena a;
        struct err e = {0};
        arena_init(&a, NULL, MEM_MISC);
        snprintf(path, sizeof path, "%s/%s", OWN, t.name);
        assert_int_equal(file_read(path, 1 << 20, &a, &data, &n, &e), ERR_OK);
        uint8_t *copy = malloc(n); /* exactly as long, so that sanitizers see a read beyond */
        for (size_t cut = 0; cut < n; cut += 1 + cut / 37) {
            struct image m;
            uint8_t *part = malloc(cut ? cut : 1);
            memcpy(part, data, cut);
            struct err cut_e = {0};
            if (image_decode(part, cut, NULL, IMAGE_ALPHA_DROP, &a, &m, &cut_e) == ERR_OK) {
                hash_of(&m, hex);
                assert_string_equal(hex, t.plain);
                assert_true(cut + 16 >= n || m.info.format == IMAGE_GIF); /* frames follow */
            } else {
                assert_true(cut_e.message[0]);
            }
            free(part);
        }
        for (size_t at = 0; at < n; at += 1 + n / 97) {
            struct image m;
            struct image_limits small = {.max_pixels = 1 << 16};
            memcpy(copy, data, n);
            copy[at] ^= (uint8_t)(1u << (at % 8));
            image_decode(copy, n, &small, IMAGE_ALPHA_WHITE, &a, &m, NULL);
        }
        free(copy);
        arena_release(&a);
    }
    fclose(f);
}

/* Sizes are refused from the header: the memory that a picture would take is never asked for. */
static void test_limits(void **state)
{
    (void)state;
    char *data;
    size_t n;
    struct err e = {0};
    struct arena a;
    struct image m;
    struct image_info info;
    arena_init(&a, NULL, MEM_MISC);
    a.limit = 1 << 20;
    assert_int_equal(file_read(OWN "/rgb.jpg", 1 << 20, &a, &data, &n, &e), ERR_OK);
    struct image_limits few = {.max_pixels = 37 * 23 - 1}, enough = {.max_pixels = 37 * 23},
                        side = {.max_side = 36};
    assert_int_equal(image_decode(data, n, &few, IMAGE_ALPHA_DROP, &a, &m, &e), ERR_LIMIT);
    assert_non_null(strstr(e.message, "37 x 23"));
    assert_int_equal(image_probe(data, n, &side, &info, &e), ERR_LIMIT);
    assert_int_equal(image_decode(data, n, &enough, IMAGE_ALPHA_DROP, &a, &m, &e), ERR_OK);
    for (size_t i = 0; i + 9 < n; i++)
        if ((uint8_t)data[i] == 0xFF && (uint8_t)data[i + 1] == 0xC0) { /* start of frame: height, width */
            memcpy(data + i + 5, "\xEA\x60\xEA\x60", 4);
            break;
        }
    assert_int_equal(image_decode(data, n, NULL, IMAGE_ALPHA_DROP, &a, &m, &e), ERR_LIMIT);
    assert_int_equal(file_read(OWN "/huge.png", 1 << 20, &a, &data, &n, &e), ERR_OK);
    assert_int_equal(image_probe(data, n, NULL, &info, &e), ERR_LIMIT);
    assert_non_null(strstr(e.message, "60000 x 60000"));
    arena_release(&a);
}

/* ---- chunks of a PNG ---- */

/* The chunk of this type in a PNG; *n: with its length, type and checksum. */
static uint8_t *find_chunk(uint8_t *png, size_t bytes, const char *type, size_t *n)
{
    for (size_t at = 8; at + 12 <= bytes; at += *n) {
        uint8_t *p = png + at;
        *n = ((size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3]) + 12;
        if (memcmp(p + 4, type, 4) == 0)
            return p;
    }
    fail_msg("no chunk %s", type);
    return NULL;
}

static void put_u32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 24), p[1] = (uint8_t)(v >> 16), p[2] = (uint8_t)(v >> 8), p[3] = (uint8_t)v;
}

static long peak_kib(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

/* Texts that unpack to 2 GiB cost nothing: nobody reads them. */
static void test_png_texts_stay_packed(void **state)
{
    (void)state;
    enum { N = 250, UNPACKED = 8000000 };
    struct arena a;
    struct err e = {0};
    struct image m;
    struct image_info info;
    char *file, hex[2][SHA256_HEX_BYTES];
    size_t n, of_end;
    arena_init(&a, NULL, MEM_MISC);
    assert_int_equal(file_read(OWN "/rgb.png", 1 << 20, &a, &file, &n, &e), ERR_OK);
    assert_int_equal(image_decode(file, n, NULL, IMAGE_ALPHA_DROP, &a, &m, &e), ERR_OK);
    hash_of(&m, hex[0]);
    uint8_t *text = malloc(UNPACKED), *chunk = malloc(1 << 16);
    uLongf packed = (1 << 16) - 32;
    memset(text, 'a', UNPACKED);
    assert_int_equal(compress2(chunk + 11, &packed, text, UNPACKED, 9), Z_OK);
    free(text);
    memcpy(chunk + 4, "zTXtk\0\0", 7);
    put_u32(chunk, (uint32_t)packed + 3);
    put_u32(chunk + 11 + packed, (uint32_t)crc32(0, chunk + 4, (uInt)packed + 7));
    size_t each = packed + 15;
    uint8_t *bomb = malloc(n + 2 * N * each), *to = bomb;
    const uint8_t *end = find_chunk((uint8_t *)file, n, "IEND", &of_end);
    size_t before = 8 + 25, middle = (size_t)(end - (uint8_t *)file) - before; /* signature and IHDR */
    memcpy(to, file, before), to += before;
    for (int i = 0; i < N; i++, to += each)
        memcpy(to, chunk, each);
    memcpy(to, file + before, middle), to += middle;
    for (int i = 0; i < N; i++, to += each)
        memcpy(to, chunk, each);
    memcpy(to, end, of_end), to += of_end;
    long peak = peak_kib();
    assert_int_equal(image_probe(bomb, (size_t)(to - bomb), NULL, &info, &e), ERR_OK);
    assert_int_equal(image_decode(bomb, (size_t)(to - bomb), NULL, IMAGE_ALPHA_DROP, &a, &m, &e), ERR_OK);
    assert_true(peak_kib() - peak < 256 << 10);
    hash_of(&m, hex[1]);
    assert_string_equal(hex[0], hex[1]);
    free(chunk);
    free(bomb);
    arena_release(&a);
}

/* ---- scans of a JPEG ---- */

enum { SCAN_SIDE = 2560 };

static void put_segment(struct strbuf *b, uint8_t marker, const uint8_t *body, size_t n)
{
    const uint8_t head[] = {0xFF, marker, (uint8_t)((n + 2) >> 8), (uint8_t)(n + 2)};
    strbuf_add(b, (const char *)head, sizeof head);
    strbuf_add(b, (const char *)body, n);
}

/* Grey, progressive, all coefficients 0: one bit a block in the first scan, five runs of blocks in all
 * others, which go through the bits of one coefficient after the other. */
static void put_scans(struct strbuf *b, int n_scans)
{
    static const uint8_t frame[] =
        {8, SCAN_SIDE >> 8, SCAN_SIDE & 255, SCAN_SIDE >> 8, SCAN_SIDE & 255, 1, 1, 0x11, 0},
                         dc[] = {0x00, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
                         ac[] = {0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xE0},
                         first[] = {1, 1, 0, 0, 0, 0};
    const int blocks = SCAN_SIDE / 8 * (SCAN_SIDE / 8), run = blocks / 5; /* from 2^14 to 2^15 - 1 */
    uint8_t table[65] = {0}, bytes[10] = {0};
    memset(table + 1, 1, 64);
    strbuf_add(b, "\xFF\xD8", 2);
    put_segment(b, 0xDB, table, sizeof table);
    put_segment(b, 0xC2, frame, sizeof frame);
    put_segment(b, 0xC4, dc, sizeof dc);
    put_segment(b, 0xC4, ac, sizeof ac);
    put_segment(b, 0xDA, first, sizeof first);
    for (int i = 0; i < blocks / 8; i++)
        strbuf_putc(b, '\0');
    for (int i = 0; i < 5 * 15; i++) { /* a 0 for "run", then 14 bits */
        int bit = i % 15 ? (run - (1 << 14)) >> (14 - i % 15) & 1 : 0;
        bytes[i / 8] |= (uint8_t)(bit << (7 - i % 8));
    }
    bytes[9] |= 31;
    for (int i = 0; i < n_scans - 1; i++) {
        int low = 13 - i % 14, high = low == 13 ? 0 : low + 1;
        const uint8_t scan[] = {
            1, 1, 0, (uint8_t)(1 + i / 14), (uint8_t)(1 + i / 14), (uint8_t)(high << 4 | low)};
        put_segment(b, 0xDA, scan, sizeof scan);
        strbuf_add(b, (const char *)bytes, sizeof bytes);
    }
    strbuf_add(b, "\xFF\xD9", 2);
}

/* A scan of a few bytes goes over all pixels. */
static void test_jpeg_scans(void **state)
{
    (void)state;
    static const struct {
        int n_scans, code;
    } cases[] = {{150, ERR_OK}, {199, ERR_LIMIT}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct strbuf b = STRBUF_INIT;
        struct arena a;
        struct err e = {0};
        struct image m;
        arena_init(&a, NULL, MEM_MISC);
        put_scans(&b, cases[i].n_scans);
        int rc = image_decode(b.data, b.len, NULL, IMAGE_ALPHA_DROP, &a, &m, &e);
        if (rc != cases[i].code)
            fail_msg("%d scans: %d %s", cases[i].n_scans, rc, e.message);
        if (rc)
            assert_non_null(strstr(e.message, "scans"));
        arena_release(&a);
        strbuf_release(&b);
    }
}

/* Time grows as their number does, not as its square. */
static void test_jpeg_markers(void **state)
{
    (void)state;
    enum { N = 50000 };
    struct arena a;
    struct err e = {0};
    struct image_info info;
    struct strbuf b = STRBUF_INIT;
    char *file;
    size_t n;
    arena_init(&a, NULL, MEM_MISC);
    assert_int_equal(file_read(OWN "/exif_6.jpg", 1 << 20, &a, &file, &n, &e), ERR_OK);
    strbuf_add(&b, file, 2);
    for (int i = 0; i < N; i++)
        strbuf_add(&b, "\xFF\xE1\0\2", 4);
    strbuf_add(&b, file + 2, n - 2);
    clock_t begin = clock();
    assert_int_equal(image_probe(b.data, b.len, NULL, &info, &e), ERR_OK);
    assert_true(clock() - begin < 2 * CLOCKS_PER_SEC);
    assert_int_equal(info.orientation, 6);
    assert_int_equal(image_probe(b.data, 2 + 4 * N - 1, NULL, &info, &e), ERR_FORMAT);
    strbuf_release(&b);
    arena_release(&a);
}

/* Notes of EXIF that are malformed say nothing, in either order of bytes. */
static void test_odd_exif(void **state)
{
    (void)state;
    enum {
        TIFF = 0x1e,
        MARK = 1,
        MAGIC = 3,
        TYPE = 13,
        VALUE = 19
    }; /* in the file; behind TIFF, big-endian */
    static const uint8_t little[26] = "II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6";
    static const struct {
        size_t at;
        uint8_t byte, orientation;
    } all[] = {{VALUE, 8, 8},  {VALUE, 1, 1},  {VALUE, 0, 1}, {VALUE, 9, 1},
               {MARK, 'I', 1}, {MAGIC, 43, 1}, {TYPE, 1, 1}}; /* bytes, of which the first is 0 */
    struct arena a;
    struct err e = {0};
    struct image_info info;
    char *file;
    size_t n;
    arena_init(&a, NULL, MEM_MISC);
    assert_int_equal(file_read(OWN "/exif_6.jpg", 1 << 20, &a, &file, &n, &e), ERR_OK);
    assert_memory_equal(file + TIFF - 6, "Exif\0\0MM\0*", 10);
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        char was = file[TIFF + all[i].at];
        file[TIFF + all[i].at] = (char)all[i].byte;
        assert_int_equal(image_probe(file, n, NULL, &info, &e), ERR_OK);
        assert_int_equal(info.orientation, all[i].orientation);
        file[TIFF + all[i].at] = was;
    }
    memcpy(file + TIFF, little, sizeof little);
    assert_int_equal(image_probe(file, n, NULL, &info, &e), ERR_OK);
    assert_int_equal(info.orientation, 6);
    arena_release(&a);
}

/* An orientation counts behind the pixels as well; one whose checksum is wrong is damage. */
static void test_png_late_orientation(void **state)
{
    (void)state;
    struct arena a;
    struct err e = {0};
    struct image m;
    char *file, hex[2][SHA256_HEX_BYTES];
    size_t n, of_exif, of_end;
    arena_init(&a, NULL, MEM_MISC);
    assert_int_equal(file_read(OWN "/exif_6.png", 1 << 20, &a, &file, &n, &e), ERR_OK);
    assert_int_equal(image_decode(file, n, NULL, IMAGE_ALPHA_DROP, &a, &m, &e), ERR_OK);
    assert_int_equal(m.info.orientation, 6);
    hash_of(&m, hex[0]);
    uint8_t *first = (uint8_t *)file, *exif = find_chunk(first, n, "eXIf", &of_exif),
            *end = find_chunk(first, n, "IEND", &of_end), keep[256];
    assert_true(of_exif <= sizeof keep && exif < end);
    memcpy(keep, exif, of_exif);
    memmove(exif, exif + of_exif, (size_t)(end - exif) - of_exif);
    memcpy(end - of_exif, keep, of_exif);
    assert_int_equal(image_decode(file, n, NULL, IMAGE_ALPHA_DROP, &a, &m, &e), ERR_OK);
    hash_of(&m, hex[1]);
    assert_int_equal(m.info.orientation, 6);
    assert_string_equal(hex[0], hex[1]);
    end[-1] ^= 1;
    assert_int_equal(image_decode(file, n, NULL, IMAGE_ALPHA_DROP, &a, &m, &e), ERR_FORMAT);
    assert_non_null(strstr(e.message, "orientation"));
    end[-1] ^= 1;
    /* sound, but larger than any chunk may be: nobody sums that up before sizes are looked at */
    for (size_t more = 0; more < 2; more++) {
        const size_t size = (8u << 20) + more, head = (size_t)(end - first);
        uint8_t *big = arena_alloc(&a, head + 12 + size + of_end), *chunk = big + head;
        assert_non_null(big);
        memcpy(big, first, head);
        memset(chunk, 0, 12 + size);
        memcpy(chunk + 4, "eXIf", 4);
        put_u32(chunk, (uint32_t)size);
        put_u32(chunk + 8 + size, (uint32_t)crc32(0, chunk + 4, (uInt)(4 + size)));
        memcpy(chunk + 12 + size, end, of_end);
        assert_int_equal(image_decode(big, head + 12 + size + of_end, NULL, IMAGE_ALPHA_DROP, &a, &m, &e),
                         more ? ERR_FORMAT : ERR_OK);
    }
    arena_release(&a);
}

static void test_names_what_it_does_not_read(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *word;
    } cases[] = {
        {"BM\0\0", 4, "BMP"},
        {"II*\0....", 8, "TIFF"},
        {"\0\0\0 ftypavif", 12, "AVIF"},
        {"\0\0\0 ftypheic", 12, "HEIF"},
        {"<svg xmlns", 10, "SVG"},
    };
    struct image_info info;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = {0};
        assert_int_equal(image_probe(cases[i].bytes, cases[i].n, NULL, &info, &e), ERR_UNSUPPORTED);
        assert_non_null(strstr(e.message, cases[i].word));
    }
    struct err e = {0};
    assert_int_equal(image_probe("hello", 5, NULL, &info, &e), ERR_FORMAT);
    assert_int_equal(image_probe("", 0, NULL, &info, &e), ERR_FORMAT);
}

/* As pixels() of tools/image_reference.py makes them: [height, width, 3]. */
static uint8_t *make_pixels(int width, int height, int seed)
{
    uint8_t *rgb = malloc((size_t)width * (size_t)height * 3), *p = rgb;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < 3; c++) {
                int v = (x * (3 + c) + y * (5 - c) + seed * 17) % 256;
                *p++ = (uint8_t)((x / 5 + y / 7) % 3 == 0 ? 255 - v : v);
            }
    return rgb;
}

static void test_resize(void **state)
{
    (void)state;
    char name[16], hash[80], hex[SHA256_HEX_BYTES];
    int seed, w, h, to_w, to_h, n = 0;
    FILE *f = fopen(OWN "/resize.tsv", "r");
    assert_non_null(f);
    while (fscanf(f, "%15s %d %d %d %d %d %79s", name, &seed, &w, &h, &to_w, &to_h, hash) == 7) {
        int filter = 0;
        while (filter < IMAGE_N_FILTERS && strcmp(image_filter_name((enum image_filter)filter), name) != 0)
            filter++;
        assert_true(filter < IMAGE_N_FILTERS);
        struct arena a;
        struct err e = {0};
        uint8_t *rgb = make_pixels(w, h, seed), *out;
        arena_init(&a, NULL, MEM_MISC);
        assert_int_equal(image_resize(rgb, (uint32_t)w, (uint32_t)h, (enum image_filter)filter,
                                      (uint32_t)to_w, (uint32_t)to_h, &a, &out, &e),
                         ERR_OK);
        assert_int_equal(sha256_hex(out, (size_t)to_w * (size_t)to_h * 3, hex, &e), ERR_OK);
        if (strcmp(hex, hash) != 0)
            print_message("%s %d x %d to %d x %d\n", name, w, h, to_w, to_h);
        assert_string_equal(hex, hash);
        arena_release(&a);
        free(rgb);
        n++;
    }
    fclose(f);
    assert_int_equal(n, 91);
    uint8_t pixel[3] = {0}, *out;
    assert_int_equal(image_resize(pixel, 1, 1, IMAGE_BOX, 0, 1, NULL, &out, NULL), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_pictures),
        cmocka_unit_test(test_material),
        cmocka_unit_test(test_cut_and_bent),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_resize),
        cmocka_unit_test(test_names_what_it_does_not_read),
        cmocka_unit_test(test_png_texts_stay_packed),
        cmocka_unit_test(test_odd_exif),
        cmocka_unit_test(test_png_late_orientation),
        cmocka_unit_test(test_jpeg_scans),
        cmocka_unit_test(test_jpeg_markers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
