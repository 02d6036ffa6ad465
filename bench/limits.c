/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: loops that reach this machine's limits and nothing else. The ways of widening are the shortest known
 * for each type, not those of the kernels: a kernel is to be judged by what is possible.
 */
#include "limits.h"

#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "day0/device.h"

#define BUFFER_BYTES ((size_t)512 << 20)
#define CODE_BYTES   ((size_t)16 << 10)
#define FMA_LOOPS    4000000
#define CODE_LOOPS   20000

/* The chains must be registers: unrolled, or the loop would measure memory. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

int limits_open(struct limits *l, unsigned n_threads, struct err *e)
{
    *l = (struct limits){.bytes = BUFFER_BYTES};
    if (n_threads > 64)
        return err_set(e, ERR_INVALID, "%u threads, at most 64", n_threads);
    l->codes = aligned_alloc(64, CODE_BYTES);
    l->buffer = mmap(NULL, l->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!l->codes || l->buffer == MAP_FAILED)
        return err_set(e, ERR_NOMEM, "no memory to measure in");
    madvise(l->buffer, l->bytes, MADV_HUGEPAGE);
    memset(l->buffer, 1, l->bytes);
    for (size_t i = 0; i < CODE_BYTES; i++)
        l->codes[i] = (unsigned char)(0x38 + i % 8); /* of every type a number near 1: nothing subnormal */
    return pool_open(&l->pool, n_threads, e);
}

void limits_close(struct limits *l)
{
    pool_close(l->pool);
    if (l->buffer && l->buffer != MAP_FAILED)
        munmap(l->buffer, l->bytes);
    free(l->codes);
}

uint64_t limits_now_ns(const struct limits *l)
{
    struct timespec t;
    if (pool_threads(l->pool) > 1 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0)
        return clock_ns();
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

__attribute__((target("avx2"))) static void read_range(void *context, size_t first, size_t last,
                                                       unsigned thread)
{
    struct limits *l = context;
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = first; i + 128 <= last; i += 128) {
        a = _mm256_xor_si256(a, _mm256_load_si256((const __m256i *)(l->buffer + i)));
        b = _mm256_xor_si256(b, _mm256_load_si256((const __m256i *)(l->buffer + i + 32)));
        c = _mm256_xor_si256(c, _mm256_load_si256((const __m256i *)(l->buffer + i + 64)));
        d = _mm256_xor_si256(d, _mm256_load_si256((const __m256i *)(l->buffer + i + 96)));
    }
    a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
    l->sums[thread * 16] += (double)_mm256_extract_epi32(a, 0);
}

double limits_read(struct limits *l)
{
    uint64_t t = limits_now_ns(l);
    pool_run(l->pool, l->bytes, 1 << 20, read_range, l);
    return (double)l->bytes / (double)(limits_now_ns(l) - t);
}

__attribute__((target("avx512f"))) static void fma_512(void *context, size_t first, size_t last,
                                                       unsigned thread)
{
    struct limits *l = context;
    __m512 x[12], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
    for (int j = 0; j < 12; j++)
        x[j] = _mm512_set1_ps((float)(j + (int)first));
    for (size_t i = 0; i < FMA_LOOPS; i++)
        UNROLL for (int j = 0; j < 12; j++) x[j] = _mm512_fmadd_ps(x[j], a, b);
    for (int j = 0; j < 12; j++)
        l->sums[thread * 16] += (double)_mm512_reduce_add_ps(x[j]) + (double)last;
}

__attribute__((target("avx2,fma"))) static void fma_256(void *context, size_t first, size_t last,
                                                        unsigned thread)
{
    struct limits *l = context;
    __m256 x[12], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
    for (int j = 0; j < 12; j++)
        x[j] = _mm256_set1_ps((float)(j + (int)first));
    for (size_t i = 0; i < FMA_LOOPS; i++)
        UNROLL for (int j = 0; j < 12; j++) x[j] = _mm256_fmadd_ps(x[j], a, b);
    for (int j = 0; j < 12; j++)
        l->sums[thread * 16] += (double)_mm256_cvtss_f32(x[j]) + (double)last;
}

bool limits_wide(void)
{
    return __builtin_cpu_supports("avx512f");
}

double limits_fma(struct limits *l, bool wide)
{
    const unsigned n = pool_threads(l->pool);
    uint64_t t = limits_now_ns(l);
    pool_run(l->pool, n, 1, wide ? fma_512 : fma_256, l);
    return 2.0 * 12 * (wide ? 16 : 8) * FMA_LOOPS * n / (double)(limits_now_ns(l) - t);
}

/* 24 chains, as many as a tile of the kernels has, each held in its register */
#define PAIRS_8(DO, i)  DO(i) DO(i + 1) DO(i + 2) DO(i + 3) DO(i + 4) DO(i + 5) DO(i + 6) DO(i + 7)
#define PAIR_CHAINS(DO) PAIRS_8(DO, 0) PAIRS_8(DO, 8) PAIRS_8(DO, 16)
__attribute__((target("avx512f,avx512bf16"))) static void pairs_512(void *context, size_t first, size_t last,
                                                                    unsigned thread)
{
    struct limits *l = context;
    __m512 x[24];
    __m512i a = _mm512_set1_epi32((int)(0x3f7f3f7f + first)), b = _mm512_set1_epi32(0x3a833a83);
#define BEGIN(i) x[i] = _mm512_set1_ps((float)(i));
#define STEP(i)  x[i] = _mm512_dpbf16_ps(x[i], (__m512bh)a, (__m512bh)b);
#define PIN(i)   __asm__("" : "+v"(x[i]));
    PAIR_CHAINS(BEGIN)
    for (size_t i = 0; i < FMA_LOOPS; i++) {
        PAIR_CHAINS(STEP)
        PAIR_CHAINS(PIN)
    }
    for (int j = 0; j < 24; j++)
        l->sums[thread * 16] += (double)_mm512_reduce_add_ps(x[j]) + (double)last;
}

double limits_bf16(struct limits *l)
{
    const unsigned n = pool_threads(l->pool);
    if (!__builtin_cpu_supports("avx512bf16"))
        return NAN;
    uint64_t t = limits_now_ns(l);
    pool_run(l->pool, n, 1, pairs_512, l);
    return 4.0 * 24 * 16 * FMA_LOOPS * n / (double)(limits_now_ns(l) - t);
}

/* ---- codes ---- */

#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl,f16c"), always_inline)) static inline

WIDE __m512 wide_bf16(const unsigned char *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

WIDE __m512 wide_f16(const unsigned char *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

WIDE __m512 wide_i8(const unsigned char *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

WIDE __m512 wide_u8(const unsigned char *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* Sign and magnitude to the places of F16, whose exponent is then 8 too small: a factor of the scale. */
WIDE __m512 wide_e4m3(const unsigned char *p)
{
    const __m256i low = _mm256_set1_epi16(0x3f80);
    __m256i v = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    return _mm512_cvtph_ps(
        _mm256_ternarylogic_epi32(v, low, _mm256_set1_epi16((short)0x8000), 0xE0 /* v & (low | sign) */));
}

WIDE __m512 wide_e5m2(const unsigned char *p)
{
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)), 8));
}

/* Two codes a byte: times 1 + 2^28 both nibbles of each are in the low bits of two words, of which a table
 * look-up reads four. */
WIDE __m512 wide_nibbles(const unsigned char *p, __m512 table)
{
    __m512i q = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)p));
    return _mm512_permutexvar_ps(_mm512_mul_epu32(q, _mm512_set1_epi64(0x10000001)), table);
}

/* The loop for one type: 16 values from BYTES bytes. */
#define VALUES(NAME, BYTES, EXPRESSION)                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512vl,f16c"))) static void NAME(void *context, size_t first,  \
                                                                               size_t last, unsigned thread) \
    {                                                                                                        \
        struct limits *l = context;                                                                          \
        const __m512 table =                                                                                 \
                         _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6),    \
                     x = _mm512_set1_ps(0.25f);                                                              \
        __m512 sum[8];                                                                                       \
        (void)table;                                                                                         \
        for (int j = 0; j < 8; j++)                                                                          \
            sum[j] = _mm512_setzero_ps();                                                                    \
        for (size_t i = 0; i < CODE_LOOPS; i++)                                                              \
            for (size_t at = 0; at + 8 * (BYTES) <= CODE_BYTES; at += 8 * (BYTES)) {                         \
                UNROLL for (size_t j = 0; j < 8; j++)                                                        \
                {                                                                                            \
                    const unsigned char *p = l->codes + at + j * (BYTES);                                    \
                    sum[j] = _mm512_fmadd_ps(EXPRESSION, x, sum[j]);                                         \
                }                                                                                            \
            }                                                                                                \
        for (int j = 0; j < 8; j++)                                                                          \
            l->sums[thread * 16] += (double)_mm512_reduce_add_ps(sum[j]) + (double)(last - first);           \
    }
VALUES(values_f32, 64, _mm512_loadu_ps(p))
VALUES(values_bf16, 32, wide_bf16(p))
VALUES(values_f16, 32, wide_f16(p))
VALUES(values_i8, 16, wide_i8(p))
VALUES(values_u8, 16, wide_u8(p))
VALUES(values_e4m3, 16, wide_e4m3(p))
VALUES(values_e5m2, 16, wide_e5m2(p))
VALUES(values_u4, 8, wide_nibbles(p, table))

double limits_values(struct limits *l, uint32_t dtype)
{
    static const struct {
        uint32_t dtype;
        pool_fn run;
        unsigned bytes; /* of 16 values */
    } ways[] = {{D0_F32, values_f32, 64},      {D0_BF16, values_bf16, 32}, {D0_F16, values_f16, 32},
                {D0_I8, values_i8, 16},        {D0_U8, values_u8, 16},     {D0_F8_E4M3, values_e4m3, 16},
                {D0_F8_E5M2, values_e5m2, 16}, {D0_U4, values_u4, 8},      {D0_F4, values_u4, 8}};
    const unsigned n = pool_threads(l->pool);
    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl"))
        return NAN;
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        if (ways[i].dtype != dtype)
            continue;
        uint64_t t = limits_now_ns(l);
        pool_run(l->pool, n, 1, ways[i].run, l);
        double ns = (double)(limits_now_ns(l) - t);
        return (double)CODE_LOOPS * (double)(CODE_BYTES / ways[i].bytes) * 16 * n / ns;
    }
    return NAN;
}
