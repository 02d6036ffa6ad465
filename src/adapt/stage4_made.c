/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the pictures that stage 4 makes itself, as PNG files in data: URLs. They have edges, ramps and three
 * unequal colours, no symmetry, and sides that no processor leaves alone, so that another filter, order of
 * colours or orientation shows. Refuses: compressing: they are small.
 */
#include "adapt/stage4.h"

#include <string.h>

#define WIDTH  100
#define HEIGHT 76

static uint32_t crc_of(const uint8_t *p, size_t n)
{
    uint32_t c = 0xFFFFFFFFu;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++)
            c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
    }
    return ~c;
}

static void put_u32(struct strbuf *out, uint32_t v)
{
    for (int i = 24; i >= 0; i -= 8)
        strbuf_putc(out, (char)(v >> i));
}

static void put_chunk(struct strbuf *out, const char *type, const struct strbuf *data)
{
    struct strbuf checked = STRBUF_INIT;
    strbuf_add(&checked, type, 4);
    strbuf_add(&checked, strbuf_cstr(data), data->len);
    put_u32(out, (uint32_t)data->len);
    strbuf_add(out, strbuf_cstr(&checked), checked.len);
    put_u32(out, crc_of((const uint8_t *)strbuf_cstr(&checked), checked.len));
    strbuf_release(&checked);
}

/* zlib's format, one stored block: raw has less than 65,536 bytes. */
static void put_stored(struct strbuf *out, const struct strbuf *raw)
{
    const uint8_t *p = (const uint8_t *)strbuf_cstr(raw);
    uint32_t a = 1, b = 0;
    strbuf_add(out, "\x78\x01\x01", 3);
    strbuf_putc(out, (char)raw->len);
    strbuf_putc(out, (char)(raw->len >> 8));
    strbuf_putc(out, (char)~raw->len);
    strbuf_putc(out, (char)(~raw->len >> 8));
    strbuf_add(out, strbuf_cstr(raw), raw->len);
    for (size_t i = 0; i < raw->len; i++) {
        a = (a + p[i]) % 65521;
        b = (b + a) % 65521;
    }
    put_u32(out, b << 16 | a);
}

/* A dark disc and a bright bar on a ramp; odd numbers have other colours and the shapes elsewhere. */
static void pixel(unsigned number, int x, int y, uint8_t rgb[3])
{
    const bool odd = number % 2 != 0;
    const int shift = (int)(number / 2 % 16);
    const int dx = x - (odd ? 70 : 28) - shift, dy = y - (odd ? 50 : 24);
    const bool disc = dx * dx + dy * dy < 18 * 18;
    const bool bar = odd ? x > 8 && x < 20 && y > 6 : y > 52 && y < 64 && x > 40;
    const uint8_t ground = (uint8_t)(150 + x / 2 + y / 3 - 2 * shift);
    rgb[0] = disc ? (odd ? 20 : 220) : bar ? (odd ? 240 : 30) : ground;
    rgb[1] = disc ? (odd ? 160 : 40) : bar ? (odd ? 200 : 60) : (uint8_t)(ground - 20);
    rgb[2] = disc ? (odd ? 70 : 30) : bar ? (odd ? 20 : 210) : (uint8_t)(ground - 60);
}

static void put_png(struct strbuf *out, unsigned number)
{
    struct strbuf raw = STRBUF_INIT, data = STRBUF_INIT;
    strbuf_add(out, "\x89PNG\r\n\x1a\n", 8);
    put_u32(&data, WIDTH);
    put_u32(&data, HEIGHT);
    strbuf_add(&data, "\x08\x02\0\0\0", 5); /* 8 bits, RGB */
    put_chunk(out, "IHDR", &data);
    strbuf_clear(&data);
    for (int y = 0; y < HEIGHT; y++) {
        strbuf_putc(&raw, 0);
        for (int x = 0; x < WIDTH; x++) {
            uint8_t rgb[3];
            pixel(number, x, y, rgb);
            strbuf_add(&raw, (const char *)rgb, 3);
        }
    }
    put_stored(&data, &raw);
    put_chunk(out, "IDAT", &data);
    strbuf_clear(&data);
    put_chunk(out, "IEND", &data);
    strbuf_release(&raw);
    strbuf_release(&data);
}

const char *data_url(struct arena *arena, const char *type, const void *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = bytes;
    struct strbuf out = STRBUF_INIT;
    strbuf_printf(&out, "data:%s;base64,", type);
    for (size_t i = 0; i < n; i += 3) {
        const uint32_t v =
            (uint32_t)p[i] << 16 | (i + 1 < n ? p[i + 1] : 0u) << 8 | (i + 2 < n ? p[i + 2] : 0u);
        strbuf_putc(&out, digits[v >> 18]);
        strbuf_putc(&out, digits[v >> 12 & 63]);
        strbuf_putc(&out, i + 1 < n ? digits[v >> 6 & 63] : '=');
        strbuf_putc(&out, i + 2 < n ? digits[v & 63] : '=');
    }
    const char *copy = strbuf_failed(&out) ? NULL : arena_strndup(arena, strbuf_cstr(&out), out.len);
    strbuf_release(&out);
    return copy;
}

const char *made_picture(struct arena *arena, unsigned number)
{
    struct strbuf png = STRBUF_INIT;
    put_png(&png, number);
    const char *url = strbuf_failed(&png) ? NULL : data_url(arena, "image/png", png.data, png.len);
    strbuf_release(&png);
    return url;
}
