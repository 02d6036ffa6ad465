/* SPDX-License-Identifier: Apache-2.0
 *
 * One number out of EXIF data: the orientation (tag 0x112 of the first directory). Owns nothing. Whatever is
 * malformed counts as "says nothing": a picture is not worse for a bad note beside it. What counts as
 * malformed is what Pillow takes for it.
 */
#include <string.h>

#include "image_impl.h"

enum { TAG_ORIENTATION = 0x112, ENTRY_BYTES = 12, EXIF_PREFIX = 6 };
enum { TYPE_SHORT = 3, TYPE_LONG = 4, TYPE_SBYTE = 6, TYPE_SSHORT = 8, TYPE_SLONG = 9 };

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

/* Bytes of one value of a TIFF type; 0: no such type. */
static uint32_t type_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
    return type < ARRAY_LEN(bytes) ? bytes[type] : 0;
}

/* The first value at `at`, if the type is one of whole numbers; 0 is no orientation. */
static uint32_t whole_number(const struct tiff *t, size_t at, uint32_t type)
{
    uint32_t value = 0;
    if (type == TYPE_SHORT || type == TYPE_SSHORT)
        return read_u16(t, at, &value) ? value : 0;
    if (type == TYPE_LONG || type == TYPE_SLONG)
        return read_u32(t, at, &value) ? value : 0;
    return type == TYPE_SBYTE && at < t->n ? t->data[at] : 0;
}

/* As Pillow walks a directory: entries of unknown types are passed over, one whose values lie beyond the data
 * ends it, and of an entry that is there twice the later one counts. */
static uint32_t last_orientation(const struct tiff *t, size_t directory)
{
    uint32_t n_entries, found = 0;
    if (!read_u16(t, directory, &n_entries))
        return 0;
    for (uint32_t i = 0; i < n_entries; i++) {
        size_t at = directory + 2 + (size_t)i * ENTRY_BYTES, values = at + 8;
        uint32_t tag, type, count, offset;
        if (!read_u16(t, at, &tag) || !read_u16(t, at + 2, &type) || !read_u32(t, at + 4, &count) ||
            !read_u32(t, at + 8, &offset))
            return found;
        uint64_t bytes = (uint64_t)count * type_bytes(type);
        if (bytes == 0)
            continue;
        if (bytes > 4) {
            if (offset > t->n || t->n - offset < bytes)
                return found;
            values = offset;
        }
        if (tag == TAG_ORIENTATION)
            found = whole_number(t, values, type);
    }
    return found;
}

uint8_t exif_orientation(const uint8_t *data, size_t n)
{
    uint32_t magic, directory;
    while (n >= EXIF_PREFIX && memcmp(data, "Exif\0\0", EXIF_PREFIX) == 0) {
        data += EXIF_PREFIX; /* some write it into places that need none */
        n -= EXIF_PREFIX;
    }
    struct tiff t = {data, n, false};
    if (n < 8 || (data[0] != 'I' && data[0] != 'M') || data[1] != data[0])
        return 1;
    t.big = data[0] == 'M';
    if (!read_u16(&t, 2, &magic) || magic != 42 || !read_u32(&t, 4, &directory))
        return 1;
    uint32_t o = last_orientation(&t, directory);
    return o >= 1 && o <= 8 ? (uint8_t)o : 1;
}
