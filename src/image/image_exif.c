/* SPDX-License-Identifier: Apache-2.0
 *
 * One number out of EXIF data: the orientation (tag 0x112 of the first directory). Owns nothing. Whatever is
 * malformed counts as "says nothing": a picture is not worse for a bad note beside it.
 */
#include "image_impl.h"

enum { TAG_ORIENTATION = 0x112, TYPE_SHORT = 3, ENTRY_BYTES = 12 };

struct tiff {
    const uint8_t *data;
    size_t n;
    bool big;
};

static bool read_u16(const struct tiff *t, size_t at, uint32_t *out)
{
    if (at > t->n || t->n - at < 2)
        return false;
    const uint8_t *p = t->data + at;
    *out = t->big ? (uint32_t)p[0] << 8 | p[1] : (uint32_t)p[1] << 8 | p[0];
    return true;
}

static bool read_u32(const struct tiff *t, size_t at, uint32_t *out)
{
    uint32_t a, b;
    if (!read_u16(t, at, &a) || !read_u16(t, at + 2, &b))
        return false;
    *out = t->big ? a << 16 | b : b << 16 | a;
    return true;
}

uint8_t exif_orientation(const uint8_t *tiff, size_t n)
{
    struct tiff t = {tiff, n, false};
    if (n < 8 || (tiff[0] != 'I' && tiff[0] != 'M') || tiff[1] != tiff[0])
        return 1;
    t.big = tiff[0] == 'M';
    uint32_t magic, directory, n_entries;
    if (!read_u16(&t, 2, &magic) || magic != 42 || !read_u32(&t, 4, &directory) ||
        !read_u16(&t, directory, &n_entries))
        return 1;
    for (uint32_t i = 0; i < n_entries; i++) {
        size_t at = (size_t)directory + 2 + (size_t)i * ENTRY_BYTES;
        uint32_t tag, type, value;
        if (!read_u16(&t, at, &tag) || !read_u16(&t, at + 2, &type) || !read_u16(&t, at + 8, &value))
            return 1;
        if (tag == TAG_ORIENTATION)
            return type == TYPE_SHORT && value >= 1 && value <= 8 ? (uint8_t)value : 1;
    }
    return 1;
}
