/* SPDX-License-Identifier: Apache-2.0
 *
 * Resizing as Pillow does it (Image.resize of 8-bit channels), bit for bit: a filter whose support grows with
 * the reduction, weights in fixed point of 22 bits, rows first, then columns (of high strips the other way
 * round), rounded to bytes between. And as PyTorch does it for bytes with antialias (torchvision): the same
 * but for weights of 16 bits and for strips. Owns nothing but scratch while it works. Refuses empty pictures.
 *
 * Source of the arithmetic: Pillow, "Resample" (weights float64, normalised by their sum, then rounded);
 * PyTorch, upsample of uint8 (as many bits as the largest weight of an axis leaves below 2^15, at most 22).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "image/image_impl.h"

enum { MAX_BITS = 32 - 8 - 2, CHANNELS = 3 };
enum { TALL = 100 }; /* so many times as high as wide: Pillow from 12.2 on shrinks its columns first */

static double filter_box(double x)
{
    return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
}

static double filter_bilinear(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

/* With Pillow's constants, which are float32. */
static double filter_hamming(double x)
{
    x = fabs(x);
    if (x == 0.0)
        return 1.0;
    if (x >= 1.0)
        return 0.0;
    x *= M_PI;
    return sin(x) / x * (0.54f + 0.46f * cos(x));
}

/* Keys' cubic with a = -0.5; OpenCV and the plain interpolation of PyTorch take -0.75. */
static double filter_bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    return x < 2.0 ? (((x - 5.0) * x + 8.0) * x - 4.0) * a : 0.0;
}

static double sinc(double x)
{
    if (x == 0.0)
        return 1.0;
    x *= M_PI;
    return sin(x) / x;
}

static double filter_lanczos(double x)
{
    return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0;
}

static const struct filter {
    enum image_filter id;
    const char *name;
    double (*weight)(double x);
    double support; /* on either side, in pixels of the larger picture */
} filters[] = {
    {IMAGE_NEAREST, "nearest", NULL, 0},
    {IMAGE_BOX, "box", filter_box, 0.5},
    {IMAGE_BILINEAR, "bilinear", filter_bilinear, 1},
    {IMAGE_HAMMING, "hamming", filter_hamming, 1},
    {IMAGE_BICUBIC, "bicubic", filter_bicubic, 2},
    {IMAGE_LANCZOS, "lanczos", filter_lanczos, 3},
};

const char *image_filter_name(enum image_filter f)
{
    return filters[f].name;
}

/* For each of the outputs along one axis: the first input, how many, and their weights. */
struct taps {
    uint32_t *first, *n; /* [outputs] */
    int32_t *weight;     /* [outputs, width] */
    double *exact;       /* [outputs, width] */
    uint32_t width;
    int bits; /* of the weights behind the point */
};

static void taps_release(struct taps *t)
{
    free(t->first);
    free(t->n);
    free(t->weight);
    free(t->exact);
}

/* As many bits as keep the largest weight of all outputs below 2^15. */
static int bits_of_16(double largest)
{
    int bits = 0;
    while (bits < MAX_BITS && (int64_t)(0.5 + largest * (double)(INT64_C(1) << (bits + 1))) < 1 << 15)
        bits++;
    return bits;
}

static int taps_make(struct taps *t, const struct filter *f, enum image_backend backend, uint32_t inputs,
                     uint32_t outputs, struct err *e)
{
    double scale = (double)inputs / outputs, grown = scale < 1.0 ? 1.0 : scale, support = f->support * grown;
    double largest = 0;
    uint64_t n, bytes;
    *t = (struct taps){.width = (uint32_t)ceil(support) * 2 + 1, .bits = MAX_BITS};
    if (!mul_u64(outputs, t->width, &n) || !mul_u64(n, sizeof *t->exact, &bytes))
        return err_set(e, ERR_LIMIT, "resizing %u to %u pixels", inputs, outputs);
    t->first = calloc(outputs, sizeof *t->first);
    t->n = calloc(outputs, sizeof *t->n);
    t->weight = calloc(n, sizeof *t->weight);
    t->exact = calloc(n, sizeof *t->exact);
    if (!t->first || !t->n || !t->weight || !t->exact)
        return err_set(e, ERR_NOMEM, "out of memory for the weights of a resize");
    for (uint32_t o = 0; o < outputs; o++) {
        double center = (o + 0.5) * scale, sum = 0, *exact = t->exact + (size_t)o * t->width;
        int64_t first = (int64_t)(center - support + 0.5), last = (int64_t)(center + support + 0.5);
        first = first < 0 ? 0 : first;
        last = last > (int64_t)inputs ? (int64_t)inputs : last;
        t->first[o] = (uint32_t)first;
        t->n[o] = (uint32_t)(last - first);
        for (uint32_t i = 0; i < t->n[o]; i++)
            sum += exact[i] = f->weight((i + (double)first - center + 0.5) * (1.0 / grown));
        for (uint32_t i = 0; i < t->n[o]; i++) {
            exact[i] = sum != 0.0 ? exact[i] / sum : exact[i];
            largest = exact[i] > largest ? exact[i] : largest;
        }
    }
    if (backend == IMAGE_TORCHVISION)
        t->bits = bits_of_16(largest);
    for (uint64_t i = 0; i < n; i++)
        t->weight[i] = (int32_t)((t->exact[i] < 0 ? -0.5 : 0.5) + t->exact[i] * (1 << t->bits));
    return ERR_OK;
}

static uint8_t to_byte(int32_t sum, int bits)
{
    sum >>= bits;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* Half of what rounds to one; without bits there is nothing to round. */
static int32_t half_of(const struct taps *t)
{
    return t->bits ? 1 << (t->bits - 1) : 0;
}

/* from [rows, inputs, 3] -> to [rows, outputs, 3] */
static void along_rows(const struct taps *t, const uint8_t *from, uint32_t rows, uint32_t inputs,
                       uint32_t outputs, uint8_t *to)
{
    for (uint32_t y = 0; y < rows; y++, from += (size_t)inputs * CHANNELS)
        for (uint32_t o = 0; o < outputs; o++, to += CHANNELS) {
            const int32_t *w = t->weight + (size_t)o * t->width;
            const uint8_t *p = from + (size_t)t->first[o] * CHANNELS;
            int32_t r = half_of(t), g = r, b = r;
            for (uint32_t i = 0; i < t->n[o]; i++, p += CHANNELS) {
                r += p[0] * w[i];
                g += p[1] * w[i];
                b += p[2] * w[i];
            }
            to[0] = to_byte(r, t->bits), to[1] = to_byte(g, t->bits), to[2] = to_byte(b, t->bits);
        }
}

/* from [inputs, row bytes] -> to [outputs, row bytes]; sums [row bytes] is scratch */
static void along_columns(const struct taps *t, const uint8_t *from, uint32_t outputs, size_t row_bytes,
                          int32_t *sums, uint8_t *to)
{
    for (uint32_t o = 0; o < outputs; o++, to += row_bytes) {
        const int32_t *w = t->weight + (size_t)o * t->width;
        for (size_t x = 0; x < row_bytes; x++)
            sums[x] = half_of(t);
        for (uint32_t i = 0; i < t->n[o]; i++) {
            const uint8_t *p = from + (t->first[o] + (size_t)i) * row_bytes;
            for (size_t x = 0; x < row_bytes; x++)
                sums[x] += p[x] * w[i];
        }
        for (size_t x = 0; x < row_bytes; x++)
            to[x] = to_byte(sums[x], t->bits);
    }
}

/* Positions are summed step by step, as in Pillow: where one falls on a border, rounding decides. */
static void nearest(const uint8_t *from, uint32_t in_w, uint32_t in_h, uint8_t *to, uint32_t w, uint32_t h)
{
    double dx = (double)in_w / w, dy = (double)in_h / h, fy = dy * 0.5;
    for (uint32_t y = 0; y < h; y++, fy += dy) {
        uint32_t row = fy < in_h ? (uint32_t)fy : in_h - 1;
        double fx = dx * 0.5;
        for (uint32_t x = 0; x < w; x++, fx += dx, to += CHANNELS) {
            uint32_t column = fx < in_w ? (uint32_t)fx : in_w - 1;
            memcpy(to, from + ((size_t)row * in_w + column) * CHANNELS, CHANNELS);
        }
    }
}

/* One resize: the picture before and behind it, and how. */
struct resample {
    const uint8_t *rgb; /* [in_h, in_w, 3] */
    uint8_t *out;       /* [h, w, 3] */
    uint32_t in_w, in_h, w, h;
    const struct filter *filter;
    enum image_backend backend;
    bool columns_first;
};

/* Both axes by a filter with weights. middle: scratch, where both change. */
static int filtered(const struct resample *r, uint8_t *middle, int32_t *sums, struct err *e)
{
    const bool across = r->w != r->in_w, down = r->h != r->in_h;
    struct taps x = {0}, y = {0};
    int rc = across ? taps_make(&x, r->filter, r->backend, r->in_w, r->w, e) : ERR_OK;
    if (rc == ERR_OK && down)
        rc = taps_make(&y, r->filter, r->backend, r->in_h, r->h, e);
    if (rc == ERR_OK && r->columns_first) {
        along_columns(&y, r->rgb, r->h, (size_t)r->in_w * CHANNELS, sums, across ? middle : r->out);
        if (across)
            along_rows(&x, middle, r->h, r->in_w, r->w, r->out);
    } else if (rc == ERR_OK) {
        if (across)
            along_rows(&x, r->rgb, r->in_h, r->in_w, r->w, down ? middle : r->out);
        if (down)
            along_columns(&y, across ? middle : r->rgb, r->h, (size_t)r->w * CHANNELS, sums, r->out);
    }
    taps_release(&x);
    taps_release(&y);
    return rc;
}

int image_resample(const uint8_t *rgb, uint32_t in_w, uint32_t in_h, enum image_filter filter,
                   enum image_backend backend, uint32_t w, uint32_t h, struct arena *arena, uint8_t **out,
                   struct err *e)
{
    struct resample r = {.rgb = rgb,
                         .in_w = in_w,
                         .in_h = in_h,
                         .w = w,
                         .h = h,
                         .filter = &filters[filter],
                         .backend = backend,
                         .columns_first =
                             backend == IMAGE_PILLOW && in_h > TALL * (uint64_t)in_w && h < in_h};
    const uint32_t middle_w = r.columns_first ? in_w : w, middle_h = r.columns_first ? h : in_h;
    const bool weighted = r.filter->weight != NULL, both = w != in_w && h != in_h;
    uint64_t pixels, between;
    if (!in_w || !in_h || !w || !h || !mul_u64((uint64_t)w * CHANNELS, h, &pixels) ||
        !mul_u64((uint64_t)middle_w * CHANNELS, middle_h, &between))
        return err_set(e, ERR_INVALID, "resizing %u x %u pixels to %u x %u", in_w, in_h, w, h);
    *out = r.out = arena_alloc(arena, pixels);
    uint8_t *middle = both && weighted ? malloc(between) : NULL;
    int32_t *sums = malloc((size_t)middle_w * CHANNELS * sizeof *sums);
    int rc = r.out && sums && (middle || !both || !weighted)
                 ? ERR_OK
                 : err_set(e, ERR_NOMEM, "out of memory for a picture of %u x %u", w, h);
    if (rc == ERR_OK && !weighted)
        nearest(rgb, in_w, in_h, r.out, w, h);
    else if (rc == ERR_OK && w == in_w && h == in_h)
        memcpy(r.out, rgb, pixels);
    else if (rc == ERR_OK)
        rc = filtered(&r, middle, sums, e);
    free(middle);
    free(sums);
    return rc;
}

int image_resize(const uint8_t *rgb, uint32_t in_w, uint32_t in_h, enum image_filter filter, uint32_t w,
                 uint32_t h, struct arena *arena, uint8_t **out, struct err *e)
{
    return image_resample(rgb, in_w, in_h, filter, IMAGE_PILLOW, w, h, arena, out, e);
}
