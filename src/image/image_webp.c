/* SPDX-License-Identifier: Apache-2.0
 *
 * WebP by libwebp and its demuxer, lossy and lossless, alpha; of an animation the first frame on its canvas.
 * Refuses files that are cut short.
 */
#include <stdlib.h>
#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

#include "image_impl.h"

enum { LIBRARY_BYTES = 1 << 20 }; /* code tables of pictures as encoders make them */

int webp_head(struct image_bytes in, struct image_info *out, struct err *e)
{
    WebPData data = {in.data, in.n};
    WebPDemuxer *demux = WebPDemux(&data); /* NULL unless the file is whole */
    if (!demux)
        return err_set(e, ERR_FORMAT, "WebP: damaged or cut short");
    uint32_t flags = WebPDemuxGetI(demux, WEBP_FF_FORMAT_FLAGS);
    out->width = WebPDemuxGetI(demux, WEBP_FF_CANVAS_WIDTH);
    out->height = WebPDemuxGetI(demux, WEBP_FF_CANVAS_HEIGHT);
    out->has_alpha = flags & ALPHA_FLAG;
    /* two canvases, and a frame that is decoded into one of them: lossless 4 bytes a pixel and the pictures
     * of its transforms, or a plane of alpha; some lines; a note on each frame of the file */
    out->decoder_bytes = (8 + 6) * (uint64_t)out->width * out->height + 1024 * ((uint64_t)out->width + 64) +
                         8 * (uint64_t)in.n + LIBRARY_BYTES;
    out->animated = WebPDemuxGetI(demux, WEBP_FF_FRAME_COUNT) > 1;
    WebPChunkIterator chunk;
    if (WebPDemuxGetChunk(demux, "EXIF", 1, &chunk)) {
        out->orientation = exif_orientation(chunk.chunk.bytes, chunk.chunk.size);
        WebPDemuxReleaseChunkIterator(&chunk);
    }
    WebPDemuxDelete(demux);
    return ERR_OK;
}

int webp_pixels(struct image_bytes in, const struct image_info *info, uint8_t *rgba, struct err *e)
{
    WebPData data = {in.data, in.n};
    WebPAnimDecoderOptions options;
    WebPAnimInfo canvas;
    uint8_t *frame;
    int at;
    if (!WebPAnimDecoderOptionsInit(&options))
        return err_set(e, ERR_UNSUPPORTED, "WebP: the library is of another version");
    options.color_mode = MODE_RGBA;
    WebPAnimDecoder *d = WebPAnimDecoderNew(&data, &options);
    bool good = d && WebPAnimDecoderGetInfo(d, &canvas) && canvas.canvas_width == info->width &&
                canvas.canvas_height == info->height && WebPAnimDecoderGetNext(d, &frame, &at);
    if (good)
        memcpy(rgba, frame, (size_t)info->width * info->height * 4);
    WebPAnimDecoderDelete(d);
    return good ? ERR_OK : err_set(e, ERR_FORMAT, "WebP: the pixels do not decode");
}
