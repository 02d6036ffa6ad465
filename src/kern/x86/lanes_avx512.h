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

#define ISA         KERN_AVX512
#define NAME(x)     x##_avx512
/* LINEAR: outputs of one tile are TOKENS x ROWS chains in registers. */
#define TILE_TOKENS         8
#define TILE_ROWS           3
#define TOKEN_CASES(X)      X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define DIRECT_ROWS(tokens) 3 /* rows of W read side by side */
#define DIRECT_TOKENS       8 /* up to here W is widened in registers */

typedef __m512 lanes;

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

/* x where y >= limit or y is NaN, else 0 */
static inline lanes lanes_keep_not_below(lanes x, lanes y, float limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, _mm512_set1_ps(limit), _CMP_NLT_UQ), x);
}

/* First fold of the fixed tree: lane i + lane i + 8. */
static inline __m256 lanes_fold(lanes x)
{
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}

#endif
