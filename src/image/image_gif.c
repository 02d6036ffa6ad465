/* SPDX-License-Identifier: Apache-2.0
 *
 * The first frame of a GIF, by giflib, on its canvas: what the frame does not cover has the transparent
 * colour, or else colour 0, as in Pillow. Refuses frames that are cut short or lie beyond the canvas.
 */
#include <stdlib.h>
#include <string.h>

#include <gif_lib.h>

#include "image_impl.h"

enum { LIBRARY_BYTES = 256 << 10 };

struct gif_run {
    struct image_bytes in;
    size_t at;
    GifFileType *gif;
    int transparent; /* index, or -1 */
};

static int on_read(GifFileType *gif, GifByteType *to, int n)
{
    struct gif_run *r = gif->UserData;
    size_t left = r->in.n - r->at, take = (size_t)n < left ? (size_t)n : left;
    memcpy(to, r->in.data + r->at, take);
    r->at += take;
    return (int)take;
}

static int gif_fail(struct gif_run *r, int why, struct err *e)
{
    const char *text = GifErrorString(r->gif && r->gif->Error ? r->gif->Error : why);
    if (r->gif)
        DGifCloseFile(r->gif, NULL);
    return err_set(e, ERR_FORMAT, "GIF: %s", text ? text : "damaged or cut short");
}

/* To the description of the first frame, past the extensions before it. False: giflib failed. */
static bool to_first_frame(struct gif_run *r)
{
    for (;;) {
        GifRecordType type;
        GifByteType *block;
        int code;
        if (DGifGetRecordType(r->gif, &type) == GIF_ERROR || type == TERMINATE_RECORD_TYPE)
            return false;
        if (type == IMAGE_DESC_RECORD_TYPE)
            return DGifGetImageDesc(r->gif) != GIF_ERROR;
        if (type != EXTENSION_RECORD_TYPE)
            continue;
        if (DGifGetExtension(r->gif, &code, &block) == GIF_ERROR)
            return false;
        GraphicsControlBlock control;
        if (block && code == GRAPHICS_EXT_FUNC_CODE &&
            DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK)
            r->transparent = control.TransparentColor;
        while (block)
            if (DGifGetExtensionNext(r->gif, &block) == GIF_ERROR)
                return false;
    }
}

static int gif_begin(struct gif_run *r, struct image_bytes in, struct err *e)
{
    int why = 0;
    *r = (struct gif_run){.in = in, .transparent = -1};
    r->gif = DGifOpen(r, on_read, &why);
    return r->gif ? ERR_OK : gif_fail(r, why, e);
}

int gif_head(struct image_bytes in, struct image_info *out, struct err *e)
{
    struct gif_run r;
    int rc = gif_begin(&r, in, e);
    if (rc)
        return rc;
    if (r.gif->SWidth < 1 || r.gif->SHeight < 1)
        return gif_fail(&r, D_GIF_ERR_NOT_READABLE, e);
    out->width = (uint32_t)r.gif->SWidth;
    out->height = (uint32_t)r.gif->SHeight;
    out->decoder_bytes = LIBRARY_BYTES + out->width; /* code tables, colours, one line */
    out->has_alpha = to_first_frame(&r) && r.transparent >= 0;
    DGifCloseFile(r.gif, NULL);
    return ERR_OK;
}

static void put(const struct gif_run *r, const ColorMapObject *map, int index, uint8_t *rgba)
{
    GifColorType c = {0, 0, 0};
    if (map && index < map->ColorCount)
        c = map->Colors[index];
    else if (!map)
        c = (GifColorType){(GifByteType)index, (GifByteType)index, (GifByteType)index};
    rgba[0] = c.Red, rgba[1] = c.Green, rgba[2] = c.Blue;
    rgba[3] = index == r->transparent ? 0 : 255;
}

/* Rows come in order, or in four passes. Where the n-th one of `height` belongs. */
static uint32_t row_of(uint32_t n, uint32_t height, bool interlaced)
{
    static const uint8_t first[] = {0, 4, 2, 1}, step[] = {8, 8, 4, 2};
    for (int pass = 0; interlaced && pass < 4; pass++) {
        uint32_t rows = height > first[pass] ? (height - first[pass] + step[pass] - 1) / step[pass] : 0;
        if (n < rows)
            return first[pass] + n * step[pass];
        n -= rows;
    }
    return n;
}

int gif_pixels(struct image_bytes in, const struct image_info *info, uint8_t *rgba, struct err *e)
{
    struct gif_run r;
    int rc = gif_begin(&r, in, e);
    if (rc)
        return rc;
    if (!to_first_frame(&r))
        return gif_fail(&r, D_GIF_ERR_NO_IMAG_DSCR, e);
    const GifImageDesc *d = &r.gif->Image;
    if (d->Left < 0 || d->Top < 0 || d->Width < 1 || d->Height < 1 ||
        (uint64_t)d->Left + (uint64_t)d->Width > info->width ||
        (uint64_t)d->Top + (uint64_t)d->Height > info->height)
        return gif_fail(&r, D_GIF_ERR_IMAGE_DEFECT, e);
    const ColorMapObject *map = d->ColorMap ? d->ColorMap : r.gif->SColorMap;
    for (uint64_t i = 0; i < (uint64_t)info->width * info->height; i++)
        put(&r, map, r.transparent >= 0 ? r.transparent : 0, rgba + i * 4);
    uint8_t *line = malloc((size_t)d->Width);
    for (int y = 0; line && y < d->Height; y++) {
        if (DGifGetLine(r.gif, line, d->Width) == GIF_ERROR) {
            free(line);
            return gif_fail(&r, D_GIF_ERR_READ_FAILED, e);
        }
        uint64_t row = (uint64_t)d->Top + row_of((uint32_t)y, (uint32_t)d->Height, d->Interlace);
        for (int x = 0; x < d->Width; x++)
            put(&r, map, line[x], rgba + (row * info->width + (uint64_t)(d->Left + x)) * 4);
    }
    bool good = line != NULL;
    free(line);
    DGifCloseFile(r.gif, NULL);
    return good ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory for a row of %d", d->Width);
}
