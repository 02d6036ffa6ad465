/* SPDX-License-Identifier: Apache-2.0
 *
 * JPEG by libjpeg-turbo: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK. Refuses data that ends
 * early or does not decode, which the library only warns of, and pictures of endlessly many scans.
 */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "image_impl.h"

enum { MAX_SCANS = 200, CHUNK_ROWS = 8, LINES = 160, LIBRARY_BYTES = 256 << 10 };
#define MAX_SCANNED                                                                                          \
    (UINT64_C(1) << 30) /* pixels, of all scans: one of nothing but zeros costs time, and no bytes */

struct jpeg_run {
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    char text[JMSG_LENGTH_MAX];
    int code;            /* enum err_code */
    const uint8_t *exif; /* [n_exif] behind "Exif\0\0" of the first marker that has it */
    size_t n_exif;
};

static _Noreturn void jpeg_fail(struct jpeg_run *r, int code, const char *text)
{
    r->code = code;
    if (text)
        snprintf(r->text, sizeof r->text, "%s", text);
    else
        r->errors.format_message((j_common_ptr)&r->d, r->text);
    longjmp(r->failed, 1);
}

static void on_error(j_common_ptr c)
{
    struct jpeg_run *r = c->client_data;
    jpeg_fail(r, r->errors.msg_code == JERR_OUT_OF_MEMORY ? ERR_NOMEM : ERR_FORMAT, NULL);
}

/* Warnings about what stands beside the picture pass; those that mean made-up pixels do not. */
static void on_message(j_common_ptr c, int level)
{
    struct jpeg_run *r = c->client_data;
    if (level >= 0)
        return;
    switch (r->errors.msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
        return;
    default:
        jpeg_fail(r, ERR_FORMAT, NULL);
    }
}

static void on_output(j_common_ptr c)
{
    (void)c; /* the library would print */
}

static void on_progress(j_common_ptr c)
{
    struct jpeg_run *r = c->client_data;
    uint64_t scans = c->is_decompressor && r->d.input_scan_number > 0 ? (uint64_t)r->d.input_scan_number : 0;
    if (scans > MAX_SCANS || scans * ((uint64_t)r->d.image_width * r->d.image_height) > MAX_SCANNED)
        jpeg_fail(r, ERR_LIMIT, "more scans than a picture needs");
}

/* Instead of jpeg_save_markers, which walks along all that it keeps to append one more: tens of thousands of
 * empty ones are minutes. The source is memory, so a marker is there whole or cut short. */
static boolean on_app1(j_decompress_ptr d)
{
    struct jpeg_run *r = d->client_data;
    const uint8_t *p = d->src->next_input_byte;
    size_t left = d->src->bytes_in_buffer, n = left < 2 ? 2 : (size_t)p[0] << 8 | p[1];
    n = n < 2 ? 2 : n;
    if (n > left)
        jpeg_fail(r, ERR_FORMAT, "a marker is cut short");
    if (!r->exif && n >= 8 && memcmp(p + 2, "Exif\0\0", 6) == 0) {
        r->exif = p + 8;
        r->n_exif = n - 8;
    }
    d->src->next_input_byte += n;
    d->src->bytes_in_buffer -= n;
    return TRUE;
}

static void jpeg_start(struct jpeg_run *r, struct image_bytes in)
{
    r->d.err = jpeg_std_error(&r->errors);
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    r->errors.output_message = on_output;
    r->d.client_data = r;
    jpeg_create_decompress(&r->d);
    r->d.client_data = r; /* creation clears all but err */
    r->progress.progress_monitor = on_progress;
    r->d.progress = &r->progress;
    jpeg_set_marker_processor(&r->d, JPEG_APP0 + 1, on_app1);
    jpeg_mem_src(&r->d, in.data, in.n);
    jpeg_read_header(&r->d, TRUE);
}

static int jpeg_end(struct jpeg_run *r, struct err *e)
{
    jpeg_destroy_decompress(&r->d);
    return r->code ? err_set(e, r->code, "JPEG: %s", r->text) : ERR_OK;
}

/* A picture of several scans is kept as coefficients, 2 bytes each, in whole groups of blocks; any other as
 * some hundred lines of each component. What is kept of notes is no more than the file. */
static uint64_t memory_of(const struct jpeg_run *r, size_t file_bytes)
{
    const struct jpeg_decompress_struct *d = &r->d;
    const uint64_t side_x = 8u * (unsigned)d->max_h_samp_factor, side_y = 8u * (unsigned)d->max_v_samp_factor,
                   wide = ALIGN_UP((uint64_t)d->image_width, side_x),
                   high = ALIGN_UP((uint64_t)d->image_height, side_y);
    uint64_t bytes = file_bytes + LIBRARY_BYTES;
    for (int i = 0; i < d->num_components; i++) {
        const uint64_t h = (unsigned)d->comp_info[i].h_samp_factor,
                       v = (unsigned)d->comp_info[i].v_samp_factor;
        bytes += LINES * wide;
        if (jpeg_has_multiple_scans((j_decompress_ptr)&r->d))
            bytes += 2 * (wide * h / (side_x / 8)) * (high * v / (side_y / 8));
    }
    return bytes;
}

int jpeg_head(struct image_bytes in, struct image_info *out, struct err *e)
{
    struct jpeg_run r;
    memset(&r, 0, sizeof r);
    if (setjmp(r.failed))
        return jpeg_end(&r, e);
    jpeg_start(&r, in);
    out->width = r.d.image_width;
    out->height = r.d.image_height;
    out->decoder_bytes = memory_of(&r, in.n);
    if (r.exif)
        out->orientation = exif_orientation(r.exif, r.n_exif);
    return jpeg_end(&r, e);
}

static uint8_t mul_255(unsigned a, unsigned b)
{
    unsigned t = a * b + 128;
    return (uint8_t)(((t >> 8) + t) >> 8);
}

/* Inks as Adobe writes them, inverted, whether the file says so or not: that is how Pillow reads them. */
static void cmyk_to_rgba(uint8_t *row, size_t width)
{
    for (size_t x = 0; x < width; x++, row += 4) {
        unsigned white = row[3];
        for (int c = 0; c < 3; c++)
            row[c] = (uint8_t)(white - mul_255(255u - row[c], white));
        row[3] = 255;
    }
}

int jpeg_pixels(struct image_bytes in, const struct image_info *info, uint8_t *rgba, struct err *e)
{
    struct jpeg_run r;
    memset(&r, 0, sizeof r);
    if (setjmp(r.failed))
        return jpeg_end(&r, e);
    jpeg_start(&r, in);
    bool ink = r.d.num_components == 4;
    r.d.out_color_space = ink ? JCS_CMYK : JCS_EXT_RGBA;
    jpeg_start_decompress(&r.d);
    if (r.d.output_width != info->width || r.d.output_height != info->height || r.d.output_components != 4)
        jpeg_fail(&r, ERR_FORMAT, "the sizes changed while it was read");
    size_t stride = (size_t)info->width * 4;
    while (r.d.output_scanline < r.d.output_height) {
        uint8_t *first = rgba + r.d.output_scanline * stride;
        JSAMPROW rows[CHUNK_ROWS];
        JDIMENSION left = r.d.output_height - r.d.output_scanline, n = left < CHUNK_ROWS ? left : CHUNK_ROWS;
        for (JDIMENSION i = 0; i < n; i++)
            rows[i] = first + i * stride;
        n = jpeg_read_scanlines(&r.d, rows, n);
        for (JDIMENSION i = 0; ink && i < n; i++)
            cmyk_to_rgba(first + i * stride, info->width);
    }
    jpeg_finish_decompress(&r.d);
    return jpeg_end(&r, e);
}
