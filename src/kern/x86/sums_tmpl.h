/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tiles of LINEAR share, whatever their step along K: chains in registers that may be cut, their
 * horizontal sums, and the tree over segments. Compiled once per instruction set.
 */
#define TILE_MAX 24 /* outputs of the largest tile */
#define LEVELS   7  /* of the tree over at most 64 segments */

/* What one tile carries from one block of K to the next. */
struct NAME(state) {
    lanes acc[TILE_MAX];          /* of a segment that is not complete */
    float sums[LEVELS][TILE_MAX]; /* of complete ones: level l holds a sum of 2^l segments */
};

/* Literal indices, so that every compiler keeps the arrays of a tile in registers. */
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#define EACH_8(DO, i)                                                                                        \
    DO(i) DO((i + 1)) DO((i + 2)) DO((i + 3)) DO((i + 4)) DO((i + 5)) DO((i + 6)) DO((i + 7))
#define EACH_OUTPUT(DO) EACH_8(DO, 0) EACH_8(DO, 8) EACH_8(DO, 16)

#if defined(LANES_SUM16)
#define AT_ONCE           16
#define STORE_SUMS(to, x) lanes_store(to, lanes_sum16(x))
#else
#define AT_ONCE           8
#define STORE_SUMS(to, x) _mm256_storeu_ps(to, lanes_sum8(x))
#endif
#define SUM_OUTPUT(i)                                                                                        \
    if (i + AT_ONCE <= n && i % AT_ONCE == 0)                                                                \
        STORE_SUMS(out + i, acc + i);                                                                        \
    else if (i >= n / AT_ONCE * AT_ONCE && i % 8 == 0 && i + 8 <= n)                                         \
        _mm256_storeu_ps(out + i, lanes_sum8(acc + i));                                                      \
    else if (i >= n / 8 * 8 && i < n)                                                                        \
        out[i] = lanes_sum(acc[i]);

/* out[i] = lanes_sum(acc[i]) */
INLINE void NAME(sums)(const lanes *acc, const size_t n, float *out){EACH_OUTPUT(SUM_OUTPUT)}

/* Takes the sums of segment s into the tree of neighbouring pairs: every pair is added as soon as it is
 * there. */
INLINE void NAME(push)(float (*sums)[TILE_MAX], size_t s, const size_t n, const float *sum)
{
    float v[TILE_MAX];
    size_t level = 0;
    memcpy(v, sum, n * sizeof *v);
    for (; s & 1; s >>= 1, level++)
        for (size_t i = 0; i < n; i++)
            v[i] = sums[level][i] + v[i];
    memcpy(sums[level], v, n * sizeof *v);
}

#define ZERO_OUTPUT(i)                                                                                       \
    if (i < TOKENS * ROWS)                                                                                   \
        acc[i] = lanes_zero();
#define TAKE_OUTPUT(i)                                                                                       \
    if (i < TOKENS * ROWS)                                                                                   \
        acc[i] = t->state->acc[i];
#define KEEP_OUTPUT(i)                                                                                       \
    if (i < TOKENS * ROWS)                                                                                   \
        t->state->acc[i] = acc[i];
