/* SPDX-License-Identifier: Apache-2.0
 *
 * What both instruction sets share on top of their lanes: loads by type, the fixed horizontal tree (alone and
 * eight at a time), exp. Included once per instruction set after lanes_<isa>.h.
 *
 * The tree: 16 lanes fold to 8 (i, i+8), 4 (i, i+4), 2 (i, i+2), 1 (0, 1). Eight sums at once give the same
 * bits as one: shuffles move values, only the additions of the tree touch them.
 */
#ifndef KERN_X86_LANES_COMMON_H
#define KERN_X86_LANES_COMMON_H

#include "kern/kern_table.h"
#include "kern/ref/ref.h"
#include "kern/ref/ref_activation.h"
#include "kern/ref/ref_keys.h"
#include "kern/ref/ref_recurrent.h"

#define INLINE static inline __attribute__((always_inline))

/* Asks for the line `bytes` behind p, into the second-level cache. It may lie behind the end of what there
 * is: a request that cannot be met is dropped. */
INLINE void lanes_ahead(const void *p, size_t bytes)
{
    _mm_prefetch((const char *)((uintptr_t)p + bytes), _MM_HINT_T1);
}

/* Sixteen elements of an array of type dtype, from element i. */
INLINE lanes lanes_load_any(const void *p, uint32_t dtype, size_t i)
{
    if (dtype == D0_F32)
        return lanes_load((const float *)p + i);
    return dtype == D0_BF16 ? lanes_load_bf16((const uint16_t *)p + i)
                            : lanes_load_f16((const uint16_t *)p + i);
}

/* n < 16 elements from element i, the other lanes zero. */
INLINE lanes lanes_load_any_n(const void *p, uint32_t dtype, size_t i, size_t n)
{
    if (dtype == D0_F32)
        return lanes_load_n((const float *)p + i, n);
    uint16_t t[16] = {0};
    memcpy(t, (const uint16_t *)p + i, n * sizeof *t);
    return dtype == D0_BF16 ? lanes_load_bf16(t) : lanes_load_f16(t);
}

INLINE float lanes_sum(lanes x)
{
    __m256 v = lanes_fold(x);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

INLINE __m256 fold_pair_4(__m256 u, __m256 v) /* [u(4) | v(4)]: lane i + lane i + 4 */
{
    return _mm256_add_ps(_mm256_permute2f128_ps(u, v, 0x20), _mm256_permute2f128_ps(u, v, 0x31));
}

INLINE __m256 fold_pair_2(__m256 u, __m256 v)
{
    return _mm256_add_ps(_mm256_shuffle_ps(u, v, 0x44), _mm256_shuffle_ps(u, v, 0xEE));
}

INLINE __m256 fold_pair_1(__m256 u, __m256 v)
{
    return _mm256_add_ps(_mm256_shuffle_ps(u, v, 0x88), _mm256_shuffle_ps(u, v, 0xDD));
}

/* The sums of eight vectors, in order: element i of the result is lanes_sum(x[i]). */
INLINE __m256 lanes_sum8(const lanes x[8])
{
    /* halves of 128 bits hold vectors i and i + 4, so that the last two folds leave 0..3 | 4..7 */
    __m256 a = fold_pair_4(lanes_fold(x[0]), lanes_fold(x[4])),
           b = fold_pair_4(lanes_fold(x[1]), lanes_fold(x[5]));
    __m256 c = fold_pair_4(lanes_fold(x[2]), lanes_fold(x[6])),
           d = fold_pair_4(lanes_fold(x[3]), lanes_fold(x[7]));
    return fold_pair_1(fold_pair_2(a, b), fold_pair_2(c, d));
}

/* e^x to 2 ulp where it is a normal number; infinity from 2^128 on, 0 below 2^-126; NaN stays NaN.
 * Subnormal numbers are avoided throughout, in between too: making one, or multiplying by one, costs a
 * hundred clocks, and as a weight of a sum it changes nothing. x = n ln 2 + r, |r| <= ln 2 / 2, Taylor to r^7
 * (remainder 5e-9 of the result), then 2^n. */
INLINE lanes lanes_exp(lanes x)
{
    const float least = -87.33654f; /* just above ln 2^-126 */
    lanes t = lanes_min(lanes_set1(89.0f), lanes_max(lanes_set1(least), x));
    lanes n = lanes_round(lanes_mul(t, lanes_set1(1.44269504088896341f)));
    lanes r = lanes_fma(n, lanes_set1(-0.693359375f), t);
    r = lanes_fma(n, lanes_set1(2.12194440054690583e-4f), r);
    lanes p = lanes_set1(1.98412698412698413e-4f);
    p = lanes_fma(p, r, lanes_set1(1.38888888888888889e-3f));
    p = lanes_fma(p, r, lanes_set1(8.33333333333333333e-3f));
    p = lanes_fma(p, r, lanes_set1(4.16666666666666667e-2f));
    p = lanes_fma(p, r, lanes_set1(1.66666666666666667e-1f));
    p = lanes_fma(p, r, lanes_set1(0.5f));
    p = lanes_fma(p, lanes_mul(r, r), lanes_add(r, lanes_set1(1.0f)));
    return lanes_select_below(x, least, lanes_zero(), lanes_scale(p, n));
}

INLINE float exp_one(float x)
{
    float t[16];
    lanes_store(t, lanes_exp(lanes_set1(x)));
    return t[0];
}

#endif
