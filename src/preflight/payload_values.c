/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: which bits of an element type mean "not finite" and "zero", and looking for them at the speed of
 * memory. Refuses to convert: codes are compared as integers, 16 or 32 bytes at a time; only a block in which
 * something is wrong is looked at element by element.
 */
#include <string.h>

#include "preflight/payload_internal.h"

#define BLOCK 16384u /* bytes looked at in one go */

struct value_kind value_kind_of(uint32_t dtype)
{
    const struct value_kind f32 = {4, 0x7F800000, 0x7F800000, 0x7FFFFFFF, true, 0x7F800000};
    switch (dtype) {
    case D0_F64:
        return (struct value_kind){8,    0x7FF0000000000000, 0x7FF0000000000000, 0x7FFFFFFFFFFFFFFF,
                                   true, 0x7FF0000000000000};
    case D0_F32:
    case D0_C64: /* two float32: either part counts */
        return f32;
    case D0_BF16:
        return (struct value_kind){2, 0x7F80, 0x7F80, 0x7FFF, true, 0x7F80};
    case D0_F16:
        return (struct value_kind){2, 0x7C00, 0x7C00, 0x7FFF, true, 0x7C00};
    case D0_F8_E4M3:
        return (struct value_kind){1, 0x7F, 0x7F, 0x7F, true, 0};
    case D0_F8_E5M2:
        return (struct value_kind){1, 0x7C, 0x7C, 0x7F, true, 0x7C};
    case D0_F8_E4M3FNUZ: /* the code of -0 is the one NaN */
    case D0_F8_E5M2FNUZ:
        return (struct value_kind){1, 0xFF, 0x80, 0xFF, true, 0};
    case D0_F8_E8M0:
        return (struct value_kind){1, 0xFF, 0xFF, 0xFF, true, 0};
    default: /* integers, packed codes, types that we do not know: bytes */
        return (struct value_kind){1, 0xFF, 0, 0xFF, false, 0};
    }
}

/* bad: some lane has (x & mask) == match; any: some bit of magnitude is set. n is a multiple of STEP. */
struct verdict {
    bool bad, any;
};
#define STEP 128u

#define VECTORS(bits)                                                                                        \
    typedef uint8_t u8x##bits __attribute__((vector_size(bits / 8)));                                        \
    typedef uint16_t u16x##bits __attribute__((vector_size(bits / 8)));                                      \
    typedef uint32_t u32x##bits __attribute__((vector_size(bits / 8)));                                      \
    typedef uint64_t u64x##bits __attribute__((vector_size(bits / 8)));
VECTORS(128)
VECTORS(256)

/* Four vectors at a time, written out: as arrays they would go through memory. */
#define LOAD_FOUR(a, b, c, d, p)                                                                             \
    memcpy(&a, p, sizeof(a));                                                                                \
    memcpy(&b, (p) + sizeof(a), sizeof(a));                                                                  \
    memcpy(&c, (p) + 2 * sizeof(a), sizeof(a));                                                              \
    memcpy(&d, (p) + 3 * sizeof(a), sizeof(a));

#define LOOK(name, type, one, words, target)                                                                 \
    target static struct verdict name(const unsigned char *p, size_t n, const struct value_kind *k)          \
    {                                                                                                        \
        const type zero = {0}, mask = zero + (one)k->mask, match = zero + (one)k->match;                     \
        const type magnitude = zero + (one)k->magnitude;                                                     \
        type a, b, c, d;                                                                                     \
        type bad0 = zero, bad1 = zero, any0 = zero, any1 = zero;                                             \
        for (size_t i = 0; i < n; i += 4 * sizeof(a)) {                                                      \
            LOAD_FOUR(a, b, c, d, p + i)                                                                     \
            any0 |= a | b;                                                                                   \
            any1 |= c | d;                                                                                   \
            bad0 |= (type)((a & mask) == match) | (type)((b & mask) == match);                               \
            bad1 |= (type)((c & mask) == match) | (type)((d & mask) == match);                               \
        }                                                                                                    \
        words x = (words)(bad0 | bad1), y = (words)((any0 | any1) & magnitude);                              \
        struct verdict v = {false, false};                                                                   \
        for (size_t i = 0; i < sizeof(x) / 8; i++) {                                                         \
            v.bad |= x[i] != 0;                                                                              \
            v.any |= y[i] != 0;                                                                              \
        }                                                                                                    \
        return v;                                                                                            \
    }

/* Only whether there is anything but zero: bytes of types that have no bad codes. */
static struct verdict look_zero(const unsigned char *p, size_t n)
{
    u64x128 any = {0}, a, b, c, d;
    for (size_t i = 0; i < n; i += 64) {
        LOAD_FOUR(a, b, c, d, p + i)
        any |= a | b | c | d;
    }
    return (struct verdict){false, (any[0] | any[1]) != 0};
}

#define EVERYWHERE
LOOK(look8, u8x128, uint8_t, u64x128, EVERYWHERE)
LOOK(look16, u16x128, uint16_t, u64x128, EVERYWHERE)
LOOK(look32, u32x128, uint32_t, u64x128, EVERYWHERE)
LOOK(look64, u64x128, uint64_t, u64x128, EVERYWHERE)

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2")))
LOOK(look8_wide, u8x256, uint8_t, u64x256, WIDE)
LOOK(look16_wide, u16x256, uint16_t, u64x256, WIDE)
LOOK(look32_wide, u32x256, uint32_t, u64x256, WIDE)
LOOK(look64_wide, u64x256, uint64_t, u64x256, WIDE)

static bool wide(void)
{
    return __builtin_cpu_supports("avx2");
}
#else
#define look8_wide  look8
#define look16_wide look16
#define look32_wide look32
#define look64_wide look64
static bool wide(void)
{
    return false;
}
#endif

typedef struct verdict (*look_fn)(const unsigned char *p, size_t n, const struct value_kind *k);

static look_fn look_of(const struct value_kind *k)
{
    bool w = wide();
    switch (k->width) {
    case 8:
        return w ? look64_wide : look64;
    case 4:
        return w ? look32_wide : look32;
    case 2:
        return w ? look16_wide : look16;
    default:
        return w ? look8_wide : look8;
    }
}

static uint64_t load(const unsigned char *p, unsigned width)
{
    uint64_t v8;
    uint32_t v4;
    uint16_t v2;
    switch (width) {
    case 8:
        memcpy(&v8, p, 8);
        return v8;
    case 4:
        memcpy(&v4, p, 4);
        return v4;
    case 2:
        memcpy(&v2, p, 2);
        return v2;
    default:
        return *p;
    }
}

static void one_by_one(struct value_tally *t, const struct value_kind *k, const unsigned char *p, size_t n,
                       uint64_t first)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t code = load(p + i * k->width, k->width), magnitude = code & k->magnitude;
        t->nonzero |= magnitude != 0;
        if (!k->has_bad || (code & k->mask) != k->match)
            continue;
        if (t->n_nan + t->n_inf == 0)
            t->first_bad = first + i;
        if (k->infinity && magnitude == k->infinity)
            t->n_inf++;
        else
            t->n_nan++;
    }
}

void value_tally_add(struct value_tally *t, const struct value_kind *k, const void *data, size_t n,
                     uint64_t first)
{
    const unsigned char *p = data;
    const look_fn look = look_of(k);
    size_t whole = n * k->width / STEP * STEP;
    for (size_t at = 0; at < whole;) {
        size_t m = whole - at < BLOCK ? whole - at : BLOCK;
        if (!k->has_bad && t->nonzero)
            return;
        struct verdict v = k->has_bad ? look(p + at, m, k) : look_zero(p + at, m);
        t->nonzero |= v.any;
        if (v.bad)
            one_by_one(t, k, p + at, m / k->width, first + at / k->width);
        at += m;
    }
    one_by_one(t, k, p + whole, n - whole / k->width, first + whole / k->width);
}

void value_tally_merge(struct value_tally *t, const struct value_tally *from)
{
    bool mine = t->n_nan + t->n_inf > 0, theirs = from->n_nan + from->n_inf > 0;
    if (theirs && (!mine || from->first_bad < t->first_bad))
        t->first_bad = from->first_bad;
    t->n_nan += from->n_nan;
    t->n_inf += from->n_inf;
    t->nonzero |= from->nonzero;
}
