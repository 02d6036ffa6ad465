/* SPDX-License-Identifier: Apache-2.0
 *
 * LINEAR, compiled once per instruction set. Every output is one chain of sixteen-lane fused multiply-adds
 * along K per segment, then the fixed horizontal tree, then the fixed tree over segments, then the bias;
 * tiles of several tokens and several rows of W only run such chains side by side. So a row of x has the same
 * bits in any batch.
 *
 * Few tokens: W is widened in registers as it streams by. Many tokens: a block of rows of W is widened once
 * into scratch and reused.
 */
#define BLOCK_ROWS    16 /* rows of W widened together */
#define DIRECT_TOKENS 12 /* up to here widening in registers is cheaper */

/* Sums of one segment for TOKENS x ROWS outputs; w points to ROWS rows of `pitch` elements. */
INLINE void NAME(segment)(const size_t TOKENS, const size_t ROWS, const float *x, size_t x_pitch,
                          const unsigned char *w, uint32_t dtype, size_t w_pitch, size_t length, bool padded,
                          float *part)
{
    lanes acc[TILE_TOKENS * TILE_ROWS + 8];
    size_t width = dtype == D0_F32 ? 4 : 2, whole = length / 16 * 16, tail = length - whole;
    UNROLL for (size_t i = 0; i < TOKENS * ROWS; i++) acc[i] = lanes_zero();
    for (size_t k = 0; k < whole; k += 16) {
        lanes b[TILE_ROWS];
        UNROLL for (size_t r = 0; r < ROWS; r++) b[r] = lanes_load_any(w + r * w_pitch * width, dtype, k);
        UNROLL for (size_t t = 0; t < TOKENS; t++)
        {
            lanes a = lanes_load(x + t * x_pitch + k);
            UNROLL for (size_t r = 0; r < ROWS; r++) acc[t * ROWS + r] =
                lanes_fma(a, b[r], acc[t * ROWS + r]);
        }
    }
    if (tail) {
        lanes b[TILE_ROWS];
        UNROLL for (size_t r = 0; r < ROWS; r++) b[r] =
            padded ? lanes_load_any(w + r * w_pitch * width, dtype, whole)
                   : lanes_load_any_n(w + r * w_pitch * width, dtype, whole, tail);
        UNROLL for (size_t t = 0; t < TOKENS; t++)
        {
            lanes a = lanes_load_n(x + t * x_pitch + whole, tail);
            UNROLL for (size_t r = 0; r < ROWS; r++) acc[t * ROWS + r] =
                lanes_fma(a, b[r], acc[t * ROWS + r]);
        }
    }
    size_t n = TOKENS * ROWS, i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(part + i, lanes_sum8(acc + i));
    for (; i < n; i++)
        part[i] = lanes_sum(acc[i]);
}

struct NAME(tile) {
    const float *x;            /* [tokens, k] */
    const unsigned char *w;    /* [rows, w_pitch] of dtype */
    const unsigned char *bias; /* first row's, or NULL */
    float *out;                /* [tokens, n] */
    size_t k, n, w_pitch, segments;
    uint32_t dtype, bias_dtype;
    bool padded; /* rows of w are followed by zeros up to a multiple of 16 */
};

INLINE void NAME(tile_run)(const struct NAME(tile) * t, const size_t TOKENS, const size_t ROWS)
{
    float part[64][TILE_TOKENS * TILE_ROWS];
    size_t length = t->k / t->segments, width = t->dtype == D0_F32 ? 4 : 2;
    for (size_t s = 0; s < t->segments; s++)
        NAME(segment)
    (TOKENS, ROWS, t->x + s * length, t->k, t->w + s * length * width, t->dtype, t->w_pitch, length,
     t->padded, part[s]);
    for (size_t n = t->segments; n > 1; n /= 2)
        for (size_t s = 0; s < n / 2; s++)
            for (size_t i = 0; i < TOKENS * ROWS; i++)
                part[s][i] = part[2 * s][i] + part[2 * s + 1][i];
    for (size_t i = 0; i < TOKENS; i++)
        for (size_t r = 0; r < ROWS; r++) {
            float y = part[0][i * ROWS + r];
            t->out[i * t->n + r] = t->bias ? y + ref_load(t->bias, t->bias_dtype, r) : y;
        }
}

/* A tile of the full size, or the pieces a smaller rest is made of. The type is a constant in each copy. */
#define TILE_OF_TYPE(t, TOKENS, ROWS)                                                                        \
    switch ((t)->dtype) {                                                                                    \
    case D0_F32: {                                                                                           \
        struct NAME(tile) c = *(t);                                                                          \
        c.dtype = D0_F32;                                                                                    \
        NAME(tile_run)(&c, TOKENS, ROWS);                                                                    \
        break;                                                                                               \
    }                                                                                                        \
    case D0_BF16: {                                                                                          \
        struct NAME(tile) c = *(t);                                                                          \
        c.dtype = D0_BF16;                                                                                   \
        NAME(tile_run)(&c, TOKENS, ROWS);                                                                    \
        break;                                                                                               \
    }                                                                                                        \
    default: {                                                                                               \
        struct NAME(tile) c = *(t);                                                                          \
        c.dtype = D0_F16;                                                                                    \
        NAME(tile_run)(&c, TOKENS, ROWS);                                                                    \
    }                                                                                                        \
    }

static void NAME(tile_full)(const struct NAME(tile) * t)
{
    TILE_OF_TYPE(t, TILE_TOKENS, TILE_ROWS)
}

static void NAME(tile_token)(const struct NAME(tile) * t)
{
    TILE_OF_TYPE(t, 1, TILE_ROWS)
}

static void NAME(tile_row)(const struct NAME(tile) * t)
{
    TILE_OF_TYPE(t, TILE_TOKENS, 1)
}

static void NAME(tile_one)(const struct NAME(tile) * t)
{
    TILE_OF_TYPE(t, 1, 1)
}

/* All tokens against `rows` rows of w that stand ready in t. */
static void NAME(tiles)(const struct NAME(tile) * t, size_t n_tokens, size_t rows)
{
    size_t width = t->dtype == D0_F32 ? 4 : 2, bias_width = t->bias_dtype == D0_F32 ? 4 : 2;
    for (size_t i = 0; i < n_tokens;) {
        bool many = n_tokens - i >= TILE_TOKENS;
        for (size_t r = 0; r < rows;) {
            bool wide = rows - r >= TILE_ROWS;
            struct NAME(tile) c = *t;
            c.x += i * t->k;
            c.w += r * t->w_pitch * width;
            c.bias = t->bias ? t->bias + r * bias_width : NULL;
            c.out += i * t->n + r;
            if (many && wide)
                NAME(tile_full)(&c);
            else if (many)
                NAME(tile_row)(&c);
            else if (wide)
                NAME(tile_token)(&c);
            else
                NAME(tile_one)(&c);
            r += wide ? TILE_ROWS : 1;
        }
        i += many ? TILE_TOKENS : 1;
    }
}

static void NAME(widen_row)(const unsigned char *w, uint32_t dtype, size_t k, float *out)
{
    size_t i = 0;
    for (; i + 16 <= k; i += 16)
        lanes_store(out + i, lanes_load_any(w, dtype, i));
    if (i < k)
        lanes_store(out + i, lanes_load_any_n(w, dtype, i, k - i));
}

static void NAME(linear)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    size_t k = (size_t)a->k, n_tokens = (size_t)a->n_rows, pitch = (k + 15) / 16 * 16;
    uint32_t dtype = a->in_dtype[1];
    size_t width = dtype == D0_F32 ? 4 : 2, bias_width = a->in_dtype[2] == D0_F32 ? 4 : 2;
    const unsigned char *w = a->in[1], *bias = a->in[2];
    float *wide =
        (float *)((unsigned char *)a->scratch + thread * a->scratch_bytes); /* [BLOCK_ROWS, pitch] */
    bool direct = n_tokens <= DIRECT_TOKENS || dtype == D0_F32;
    for (size_t j = first; j < last;) {
        size_t rows = last - j < BLOCK_ROWS ? last - j : BLOCK_ROWS;
        struct NAME(tile) t = {.x = a->in[0],
                               .out = (float *)a->out[0] + j,
                               .k = k,
                               .n = (size_t)a->n,
                               .bias_dtype = a->in_dtype[2]};
        t.segments = a->segments > 1 ? (size_t)a->segments : 1;
        t.bias = bias ? bias + j * bias_width : NULL;
        if (direct) {
            t.w = w + j * k * width;
            t.w_pitch = k;
            t.dtype = dtype;
        } else {
            for (size_t r = 0; r < rows; r++)
                NAME(widen_row)(w + (j + r) * k * width, dtype, k, wide + r * pitch);
            t.w = (const unsigned char *)wide;
            t.w_pitch = pitch;
            t.dtype = D0_F32;
            t.padded = true;
        }
        NAME(tiles)(&t, n_tokens, rows);
        j += rows;
    }
}

static size_t NAME(linear_scratch)(const struct kern_args *a)
{
    if (a->in_dtype[1] == D0_F32 || a->n_rows <= DIRECT_TOKENS)
        return 0;
    return (size_t)(a->k + 15) / 16 * 16 * BLOCK_ROWS * sizeof(float);
}
