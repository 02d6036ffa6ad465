/* SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen float32 lanes in one AVX-512 register: the vocabulary in which the templates are written. Private
 * to kern/x86. Partial loads are masked and never read past the last element.
 */
#ifndef KERN_X86_LANES_AVX512_H
#define KERN_X86_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifndef ISA
#define ISA     KERN_AVX512
#define NAME(x) x##_avx512
#endif
/* LINEAR: the outputs of one tile are TOKENS x ROWS chains in registers. */
#define TILE_TOKENS         6 /* of the wide tile */
#define TILE_ROWS           4
#define WIDE_CASES(X)       X(1) X(2) X(3) X(4) X(5) X(6)
#define MAX_TOKENS          8 /* of a direct tile */
#define DIRECT_CASES(X)     X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define DIRECT_ROWS(tokens) ((tokens) <= 6 ? 4 : 3)
#define DIRECT_TOKENS       32 /* up to here W is widened in registers */
/* MLA: heads times keys, or heads times vectors of latents, are chains in registers. */
#define MLA_HEADS   4
#define MLA_KEYS    4
#define MLA_VECTORS 4
/* Products with rows in scratch: rows times vectors of columns are chains in registers. */
#define TIMES_ROWS    8
#define TIMES_VECTORS 2

typedef __m512 lanes;

/* The value itself, in a register: what is used several times is then loaded once. */
static inline lanes lanes_pin(lanes x)
{
    __asm__("" : "+v"(x));
    return x;
}

static inline lanes lanes_zero(void)
{
    return _mm512_setzero_ps();
}

static inline lanes lanes_set1(float v)
{
    return _mm512_set1_ps(v);
}

static inline lanes lanes_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void lanes_store(float *p, lanes v)
{
    _mm512_storeu_ps(p, v);
}

/* n < 16 elements, the other lanes zero */
static inline lanes lanes_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

static inline void lanes_store_n(float *p, size_t n, lanes v)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
}

static inline lanes lanes_load_bf16(const uint16_t *p)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}

static inline lanes lanes_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* Sixteen F16, or sixteen bytes as integers, of a register. */
static inline lanes lanes_of_halves(__m256i v)
{
    return _mm512_cvtph_ps(v);
}

static inline lanes lanes_of_i8(__m128i v)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v));
}

static inline lanes lanes_of_u8(__m128i v)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(v));
}

#define LANES_LOOK_UP

/* Sixteen half bytes as places in a table: each byte q becomes the 64 bits of q * (1 + 2^28), whose two words
 * have its halves in their lowest four bits, and the look-up reads no others. */
static inline lanes lanes_look_up(const unsigned char *p, lanes table)
{
    __m512i q = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)p));
    return _mm512_permutexvar_ps(_mm512_mul_epu32(q, _mm512_set1_epi64(0x10000001)), table);
}

static inline lanes lanes_add(lanes x, lanes y)
{
    return _mm512_add_ps(x, y);
}

static inline lanes lanes_sub(lanes x, lanes y)
{
    return _mm512_sub_ps(x, y);
}

static inline lanes lanes_mul(lanes x, lanes y)
{
    return _mm512_mul_ps(x, y);
}

static inline lanes lanes_div(lanes x, lanes y)
{
    return _mm512_div_ps(x, y);
}

/* x * y + z, rounded once */
static inline lanes lanes_fma(lanes x, lanes y, lanes z)
{
    return _mm512_fmadd_ps(x, y, z);
}

/* The second operand wins where one is NaN: lanes_max(limit, x) keeps a NaN of x. */
static inline lanes lanes_max(lanes x, lanes y)
{
    return _mm512_max_ps(x, y);
}

static inline lanes lanes_min(lanes x, lanes y)
{
    return _mm512_min_ps(x, y);
}

static inline lanes lanes_round(lanes x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline lanes power_of_two_16(__m512i n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}

/* x * 2^n for whole n in -126..128, in two steps so that n = 128 does not overflow before it must */
static inline lanes lanes_scale(lanes x, lanes n)
{
    __m512i i = _mm512_cvtps_epi32(n), half = _mm512_srai_epi32(i, 1);
    return _mm512_mul_ps(_mm512_mul_ps(x, power_of_two_16(half)), power_of_two_16(_mm512_sub_epi32(i, half)));
}

/* a where y < limit, else (NaN too) b */
static inline lanes lanes_select_below(lanes y, float limit, lanes a, lanes b)
{
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(y, _mm512_set1_ps(limit), _CMP_LT_OQ), a);
}

/* First fold of the fixed tree: lane i + lane i + 8. */
static inline __m256 lanes_fold(lanes x)
{
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}

#define LANES_SUM16

/* Adds the halves of groups of `u` and `v`: where `high` says so, lane i of the result is of v. Blending
 * first leaves one shuffle: half + other half, in either order the same sum. */
static inline __m512 fold_pair(__m512 u, __m512 v, __mmask16 high, __m512i swap)
{
    return _mm512_add_ps(_mm512_mask_blend_ps(high, u, v), _mm512_permutex2var_ps(u, swap, v));
}

/* The sums of sixteen vectors, in order: the same tree as lanes_sum, sixteen at a time. */
static inline __m512 lanes_sum16(const lanes x[16])
{
    /* lane i of a fold takes the partner of lane i: of u (0..15) where u was blended in, else of v (16..31)
     */
    const __m512i by8 = _mm512_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23),
                  by4 = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27),
                  by2 = _mm512_setr_epi32(2, 3, 16, 17, 6, 7, 20, 21, 10, 11, 24, 25, 14, 15, 28, 29),
                  by1 = _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);
    __m512 a[8], b[4], c[2];
    /* lane i ends with the sum of x[i]: bit 3 of i is chosen by the first fold, bit 0 by the last */
    a[0] = fold_pair(x[0], x[8], 0xFF00, by8);
    a[1] = fold_pair(x[1], x[9], 0xFF00, by8);
    a[2] = fold_pair(x[2], x[10], 0xFF00, by8);
    a[3] = fold_pair(x[3], x[11], 0xFF00, by8);
    a[4] = fold_pair(x[4], x[12], 0xFF00, by8);
    a[5] = fold_pair(x[5], x[13], 0xFF00, by8);
    a[6] = fold_pair(x[6], x[14], 0xFF00, by8);
    a[7] = fold_pair(x[7], x[15], 0xFF00, by8);
    b[0] = fold_pair(a[0], a[4], 0xF0F0, by4);
    b[1] = fold_pair(a[1], a[5], 0xF0F0, by4);
    b[2] = fold_pair(a[2], a[6], 0xF0F0, by4);
    b[3] = fold_pair(a[3], a[7], 0xF0F0, by4);
    c[0] = fold_pair(b[0], b[2], 0xCCCC, by2);
    c[1] = fold_pair(b[1], b[3], 0xCCCC, by2);
    return fold_pair(c[0], c[1], 0xAAAA, by1);
}

#endif
