/* SPDX-License-Identifier: Apache-2.0
 *
 * Small products with rows that lie in scratch, compiled once per instruction set: what the chunked form of
 * DELTA_RULE and the expanded form of MLA are made of. Columns lie in lanes; each sum is one chain of fused
 * multiply-adds in order, whatever the tile, so both instruction sets give the same bits.
 */
#define TIMES_WIDE    (TIMES_VECTORS * 16) /* columns of one tile */
#define TIMES_OUTPUTS (TIMES_ROWS * TIMES_VECTORS)

#define TIMES_LOAD(v)                                                                                        \
    if (v < VECTORS)                                                                                         \
        b[v] = lanes_pin(lanes_load(x + i * x_pitch + 16 * v));
#define TIMES_STEP(o)                                                                                        \
    if (o < ROWS * VECTORS)                                                                                  \
        acc[o] = lanes_fma(lanes_set1(by[o / VECTORS * pitch + i]), b[o % VECTORS], acc[o]);

/* acc[r][v] += sum over i in order of by[r, i] * x[i, 16 v ..]; pitches in values */
INLINE void NAME(times)(const size_t ROWS, const size_t VECTORS, const float *by, size_t pitch,
                        const float *x, size_t x_pitch, size_t n, lanes *acc)
{
    for (size_t i = 0; i < n; i++) {
        lanes b[2];
        TIMES_LOAD(0)
        TIMES_LOAD(1)
        EACH_8(TIMES_STEP, 0)
        EACH_8(TIMES_STEP, 8)
    }
}

/* n values of a row at p, the other lanes zero */
INLINE lanes NAME(some_load)(const float *p, size_t n)
{
    return n == 16 ? lanes_load(p) : lanes_load_n(p, n);
}

INLINE void NAME(some_store)(float *p, size_t n, lanes v)
{
    if (n == 16)
        lanes_store(p, v);
    else
        lanes_store_n(p, n, v);
}

/* n <= TIMES_WIDE values at p in whole vectors, the lanes past them zero; and back. */
INLINE lanes NAME(part_load)(const float *p, size_t n, size_t v)
{
    return 16 * v >= n ? lanes_zero() : NAME(some_load)(p + 16 * v, n - 16 * v < 16 ? n - 16 * v : 16);
}

INLINE void NAME(part_store)(float *p, size_t n, size_t v, lanes x)
{
    if (16 * v < n)
        NAME(some_store)(p + 16 * v, n - 16 * v < 16 ? n - 16 * v : 16, x);
}
