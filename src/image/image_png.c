/* SPDX-License-Identifier: Apache-2.0
 *
 * PNG by libpng: every bit depth, palette, interlaced; 16 bits lose their low byte; gamma is left alone.
 * Refuses damaged chunks that pixels depend on, and data that ends early.
 */
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

#include "image_impl.h"

enum { MAX_CHUNK_BYTES = 8 << 20, SIGNATURE_BYTES = 8, CHUNK_FRAME = 12, LIBRARY_BYTES = 256 << 10 };

struct png_run {
    struct image_bytes in;
    size_t at;
    png_structp png;
    png_infop info;
    png_bytepp rows;
    char text[160];
};

static void on_error(png_structp png, png_const_charp text)
{
    struct png_run *r = png_get_error_ptr(png);
    snprintf(r->text, sizeof r->text, "%s", text);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png, (void)text; /* about chunks that no pixel depends on */
}

static void on_read(png_structp png, png_bytep to, size_t n)
{
    struct png_run *r = png_get_io_ptr(png);
    if (r->in.n - r->at < n)
        png_error(png, "the file is cut short");
    memcpy(to, r->in.data + r->at, n);
    r->at += n;
}

static int png_begin(struct png_run *r, struct image_bytes in, struct err *e)
{
    memset(r, 0, sizeof *r);
    r->in = in;
    r->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, r, on_error, on_warning);
    r->info = r->png ? png_create_info_struct(r->png) : NULL;
    if (!r->info) {
        png_destroy_read_struct(&r->png, NULL, NULL);
        return err_set(e, ERR_NOMEM, "out of memory for a PNG reader");
    }
    png_set_user_limits(r->png, IMAGE_MAX_SIDE, IMAGE_MAX_SIDE);
    png_set_chunk_malloc_max(r->png, MAX_CHUNK_BYTES);
    /* All but those that pixels depend on: texts and profiles of a small file may unpack to gigabytes. */
    png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_read_fn(r->png, r, on_read);
    return ERR_OK;
}

static int png_end(struct png_run *r, bool failed, struct err *e)
{
    png_destroy_read_struct(&r->png, &r->info, NULL);
    free(r->rows);
    return failed ? err_set(e, ERR_FORMAT, "PNG: %s", r->text) : ERR_OK;
}

static void png_look(struct png_run *r, struct image_info *out)
{
    png_read_info(r->png, r->info);
    out->width = png_get_image_width(r->png, r->info);
    out->height = png_get_image_height(r->png, r->info);
    out->has_alpha = png_get_color_type(r->png, r->info) & PNG_COLOR_MASK_ALPHA ||
                     png_get_valid(r->png, r->info, PNG_INFO_tRNS);
    /* two rows of up to 8 bytes a pixel, the inflater, and a chunk that is kept */
    out->decoder_bytes =
        32 * ((uint64_t)out->width + 64) + 8 * (uint64_t)out->height + 2 * r->in.n + LIBRARY_BYTES;
}

static uint32_t checksum(const uint8_t *p, size_t n)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0xEDB88320) : 0);
    }
    return ~crc;
}

static uint32_t read_big(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* From the last eXIf chunk, which may also stand behind the pixels, further than a header is read; 0 where
 * its checksum is wrong, or it is larger than libpng may keep of any chunk. libpng would pass over one that
 * begins with "Exif", as some write it. */
static uint8_t find_orientation(struct image_bytes in)
{
    const uint8_t *exif = NULL;
    size_t n_exif = 0;
    for (size_t at = SIGNATURE_BYTES; at <= in.n && in.n - at >= CHUNK_FRAME;) {
        const uint8_t *p = in.data + at;
        size_t n = read_big(p);
        if (n > in.n - at - CHUNK_FRAME || memcmp(p + 4, "IEND", 4) == 0)
            break;
        if (memcmp(p + 4, "eXIf", 4) == 0) {
            exif = p + 8;
            n_exif = n;
        }
        at += CHUNK_FRAME + n;
    }
    if (!exif)
        return 1;
    if (n_exif > MAX_CHUNK_BYTES)
        return 0;
    return checksum(exif - 4, 4 + n_exif) == read_big(exif + n_exif) ? exif_orientation(exif, n_exif) : 0;
}

int png_head(struct image_bytes in, struct image_info *out, struct err *e)
{
    struct png_run r;
    int rc = png_begin(&r, in, e);
    if (rc)
        return rc;
    if (setjmp(png_jmpbuf(r.png)))
        return png_end(&r, true, e);
    png_look(&r, out);
    out->orientation = find_orientation(in);
    if (out->orientation == 0)
        png_error(r.png, "its orientation is damaged");
    return png_end(&r, false, e);
}

/* Turns whatever the file holds into four bytes a pixel. */
static void to_rgba(struct png_run *r)
{
    png_set_strip_16(r->png);
    png_set_palette_to_rgb(r->png);
    png_set_expand_gray_1_2_4_to_8(r->png);
    png_set_tRNS_to_alpha(r->png);
    png_set_gray_to_rgb(r->png);
    png_set_add_alpha(r->png, 0xFF, PNG_FILLER_AFTER);
}

int png_pixels(struct image_bytes in, const struct image_info *info, uint8_t *rgba, struct err *e)
{
    struct png_run r;
    struct image_info again = {0};
    int rc = png_begin(&r, in, e);
    if (rc)
        return rc;
    r.rows = calloc(info->height, sizeof *r.rows);
    if (!r.rows) {
        png_end(&r, false, e);
        return err_set(e, ERR_NOMEM, "out of memory for %u rows", info->height);
    }
    if (setjmp(png_jmpbuf(r.png)))
        return png_end(&r, true, e);
    png_look(&r, &again);
    to_rgba(&r);
    png_set_interlace_handling(r.png);
    png_read_update_info(r.png, r.info);
    size_t stride = (size_t)info->width * 4;
    if (again.width != info->width || again.height != info->height ||
        png_get_rowbytes(r.png, r.info) != stride)
        png_error(r.png, "the sizes changed while it was read");
    for (uint32_t y = 0; y < info->height; y++)
        r.rows[y] = rgba + y * stride;
    png_read_image(r.png, r.rows);
    png_read_end(r.png, r.info); /* a cut end is seen here */
    return png_end(&r, false, e);
}
