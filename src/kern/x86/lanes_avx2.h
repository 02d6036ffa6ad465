/* SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen float32 lanes in two AVX2 registers: the vocabulary in which the templates are written. Private to
 * kern/x86. Partial loads never read past the last element.
 */
#ifndef KERN_X86_LANES_AVX2_H
#define KERN_X86_LANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define ISA     KERN_AVX2
#define NAME(x) x##_avx2
/* LINEAR: the outputs of one tile are TOKENS x ROWS chains in registers. */
#define TILE_TOKENS         2 /* of the wide tile */
#define TILE_ROWS           2
#define WIDE_CASES(X)       X(1) X(2)
#define MAX_TOKENS          2 /* of a direct tile */
#define DIRECT_CASES(X)     X(1) X(2)
#define DIRECT_ROWS(tokens) 2
#define DIRECT_TOKENS       12 /* up to here W is widened in registers */
/* MLA: heads times keys, or heads times vectors of latents, are chains in registers. */
#define MLA_HEADS   2
#define MLA_KEYS    2
#define MLA_VECTORS 2
/* Products with rows in scratch: rows times vectors of columns are chains in registers. */
#define TIMES_ROWS    4
#define TIMES_VECTORS 1

typedef struct {
    __m256 a, b; /* lanes 0..7, 8..15 */
} lanes;

/* The value itself, in registers: what is used several times is then loaded once. */
static inline lanes lanes_pin(lanes x)
{
    __asm__("" : "+x"(x.a), "+x"(x.b));
    return x;
}

static inline lanes lanes_zero(void)
{
    return (lanes){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

static inline lanes lanes_set1(float v)
{
    return (lanes){_mm256_set1_ps(v), _mm256_set1_ps(v)};
}

static inline lanes lanes_load(const float *p)
{
    return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline void lanes_store(float *p, lanes v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}

/* n < 16 elements, the other lanes zero */
static inline lanes lanes_load_n(const float *p, size_t n)
{
    float t[16] = {0};
    memcpy(t, p, n * sizeof *t);
    return lanes_load(t);
}

static inline void lanes_store_n(float *p, size_t n, lanes v)
{
    float t[16];
    lanes_store(t, v);
    memcpy(p, t, n * sizeof *t);
}

static inline lanes lanes_load_bf16(const uint16_t *p)
{
    __m256i u = _mm256_loadu_si256((const __m256i *)p);
    __m256i lo = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(u)),
            hi = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(u, 1));
    return (lanes){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                   _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}

static inline lanes lanes_load_f16(const uint16_t *p)
{
    return (lanes){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                   _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}

/* Sixteen F16, or sixteen bytes as integers, of a register. */
static inline lanes lanes_of_halves(__m256i v)
{
    return (lanes){_mm256_cvtph_ps(_mm256_castsi256_si128(v)),
                   _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1))};
}

static inline lanes lanes_of_i8(__m128i v)
{
    return (lanes){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)),
                   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)))};
}

static inline lanes lanes_of_u8(__m128i v)
{
    return (lanes){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)),
                   _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)))};
}

static inline lanes lanes_add(lanes x, lanes y)
{
    return (lanes){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}

static inline lanes lanes_sub(lanes x, lanes y)
{
    return (lanes){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}

static inline lanes lanes_mul(lanes x, lanes y)
{
    return (lanes){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}

static inline lanes lanes_div(lanes x, lanes y)
{
    return (lanes){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}

/* x * y + z, rounded once */
static inline lanes lanes_fma(lanes x, lanes y, lanes z)
{
    return (lanes){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

/* The second operand wins where one is NaN: lanes_max(limit, x) keeps a NaN of x. */
static inline lanes lanes_max(lanes x, lanes y)
{
    return (lanes){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}

static inline lanes lanes_min(lanes x, lanes y)
{
    return (lanes){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}

static inline lanes lanes_round(lanes x)
{
    return (lanes){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                   _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

static inline __m256 power_of_two_8(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* x * 2^n for whole n in -126..128, in two steps so that n = 128 does not overflow before it must */
static inline lanes lanes_scale(lanes x, lanes n)
{
    __m256i na = _mm256_cvtps_epi32(n.a), nb = _mm256_cvtps_epi32(n.b);
    __m256i ha = _mm256_srai_epi32(na, 1), hb = _mm256_srai_epi32(nb, 1);
    __m256 a =
        _mm256_mul_ps(_mm256_mul_ps(x.a, power_of_two_8(ha)), power_of_two_8(_mm256_sub_epi32(na, ha)));
    __m256 b =
        _mm256_mul_ps(_mm256_mul_ps(x.b, power_of_two_8(hb)), power_of_two_8(_mm256_sub_epi32(nb, hb)));
    return (lanes){a, b};
}

/* a where y < limit, else (NaN too) b */
static inline lanes lanes_select_below(lanes y, float limit, lanes a, lanes b)
{
    __m256 l = _mm256_set1_ps(limit);
    return (lanes){_mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(y.a, l, _CMP_LT_OQ)),
                   _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(y.b, l, _CMP_LT_OQ))};
}

/* First fold of the fixed tree: lane i + lane i + 8. */
static inline __m256 lanes_fold(lanes x)
{
    return _mm256_add_ps(x.a, x.b);
}

#endif
