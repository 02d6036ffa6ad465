/* SPDX-License-Identifier: Apache-2.0
 *
 * LINEAR and GROUP_LINEAR, compiled once per instruction set. Every output is one chain of sixteen-lane fused
 * multiply-adds along K per segment, then the fixed horizontal tree, then the fixed tree over segments, then
 * the bias; tiles of several tokens and several rows of W only run such chains side by side, and a chain that
 * is cut goes on where it stopped. So a row of x has the same bits in any batch.
 *
 * Few tokens (direct): W is widened in registers as it streams by, once. Many tokens (wide): a block of rows
 * of W is widened once into scratch, tile by tile in the order of use, and K is cut into blocks so that the
 * part of x in use stays in the first-level cache.
 */
#define K_BLOCK       1024                 /* elements of K of one block; a multiple of 16 */
#define WIDE_BYTES    ((size_t)1024 << 10) /* of widened W, as long as that is at least one tile of rows */
#define WIDE_MAX_ROWS 96
#define CHUNK_TILES   3  /* tiles of tokens that share one pass over K */
#define DIRECT_BLOCK  12 /* rows of W that several passes over tokens share */
#define GRAIN_ROWS    16

struct NAME(tile) {
    const float *x;            /* [TOKENS, pitch] */
    const unsigned char *w;    /* direct: [ROWS, k] of dtype; wide: [steps, ROWS, 16] float32 */
    const unsigned char *bias; /* first row's, or NULL */
    float *out;                /* [TOKENS, n] */
    struct NAME(state) * state;
    size_t k, pitch, n, segments; /* pitch: of x, in values */
    size_t rows;                  /* of out to write: <= ROWS */
    size_t first_step;            /* wide: of K, of what w holds */
    uint32_t bias_dtype;
};

/* One step of sixteen: output i is token i / ROWS with row i % ROWS, each operand in a register once. */
#define LOAD_ROW(r)                                                                                          \
    if (r < ROWS)                                                                                            \
        b[r] = lanes_pin(tail ? lanes_load_any_n(w + r * row_stride, dtype, 0, n)                            \
                              : lanes_load_any(w + r * row_stride, dtype, 0));
#define STEP_OUTPUT(i)                                                                                       \
    if (i < TOKENS * ROWS) {                                                                                 \
        if (i % ROWS == 0)                                                                                   \
            a = lanes_pin(tail ? lanes_load_n(x + i / ROWS * x_pitch, n)                                     \
                               : lanes_load(x + i / ROWS * x_pitch));                                        \
        acc[i] = lanes_fma(a, b[i % ROWS], acc[i]);                                                          \
    }

/* Rows of W in memory: a step asks for what lies as far along the rows of the next tile. By itself the
 * processor follows the bytes of one row only, and short rows end before it has started. */
#define AHEAD_ROW(r)                                                                                         \
    if (r < ROWS)                                                                                            \
        lanes_ahead(w, (ROWS + r) * row_stride);

INLINE void NAME(step)(const size_t TOKENS, const size_t ROWS, const float *x, size_t x_pitch,
                       const unsigned char *w, const uint32_t dtype, size_t row_stride, const bool tail,
                       size_t n, lanes *acc)
{
    lanes a = lanes_zero(), b[4];
    EACH_ROW(LOAD_ROW)
    EACH_OUTPUT(STEP_OUTPUT)
}

/* acc[t, r] += x[t, 0..length) * w[r, 0..length), sixteen lanes in order; strides of w in bytes */
INLINE void NAME(chains)(const size_t TOKENS, const size_t ROWS, const float *x, size_t x_pitch,
                         const unsigned char *w, const uint32_t dtype, size_t row_stride, size_t stride,
                         const bool ahead, size_t length, lanes *acc)
{
    for (size_t i = 0; i < length / 16; i++, x += 16, w += stride) {
        if (ahead) {
            EACH_ROW(AHEAD_ROW)
        }
        NAME(step)(TOKENS, ROWS, x, x_pitch, w, dtype, row_stride, false, 16, acc);
    }
    if (length % 16)
        NAME(step)(TOKENS, ROWS, x, x_pitch, w, dtype, row_stride, true, length % 16, acc);
}

INLINE void NAME(finish)(const size_t TOKENS, const size_t ROWS, const struct NAME(tile) * t)
{
    size_t level = (size_t)__builtin_ctzll(t->segments);
    for (size_t i = 0; i < TOKENS; i++)
        for (size_t r = 0; r < t->rows; r++) {
            float y = t->state->sums[level][i * ROWS + r];
            t->out[i * t->n + r] = t->bias ? y + ref_load(t->bias, t->bias_dtype, r) : y;
        }
}

/* Elements from..to of K; a cut lies between segments or whole steps of sixteen from the segment's start. */
INLINE void NAME(tile_run)(const size_t TOKENS, const size_t ROWS, const struct NAME(tile) * t,
                           const uint32_t dtype, const bool packed, size_t from, size_t to)
{
    const size_t width = dtype == D0_F32 ? 4 : 2, step = packed ? ROWS * 64 : 16 * width;
    size_t length = t->k / t->segments, row_stride = packed ? 64 : t->k * width;
    size_t s = from / length, at = from % length, steps = (length + 15) / 16;
    for (size_t k = from; k < to; s++, at = 0) {
        size_t n = length - at < to - k ? length - at : to - k;
        lanes acc[TILE_MAX];
        float sum[TILE_MAX];
        if (at) {
            EACH_OUTPUT(TAKE_OUTPUT)
        } else {
            EACH_OUTPUT(ZERO_OUTPUT)
        }
        NAME(chains)
        (TOKENS, ROWS, t->x + k, t->pitch,
         t->w + (packed ? (s * steps + at / 16 - t->first_step) * step : k * width), dtype, row_stride, step,
         !packed, n, acc);
        k += n;
        if (at + n == length) {
            NAME(sums)(acc, TOKENS * ROWS, sum);
            NAME(push)(t->state->sums, s, TOKENS * ROWS, sum);
        } else {
            EACH_OUTPUT(KEEP_OUTPUT)
        }
    }
    if (to == t->k)
        NAME(finish)(TOKENS, ROWS, t);
}

/* ---- few tokens ---------------------------------------------------------------------------------------- */

#define DIRECT_CASE(TOKENS)                                                                                  \
    case TOKENS:                                                                                             \
        NAME(tile_run)(TOKENS, DIRECT_ROWS(TOKENS), t, dtype, false, 0, t->k);                               \
        break;

INLINE void NAME(direct_of_type)(const struct NAME(tile) * t, const uint32_t dtype, size_t tokens)
{
    if (t->rows == 1)
        for (size_t i = 0; i < tokens; i++) {
            struct NAME(tile) one = *t;
            one.x += i * t->pitch;
            one.out += i * t->n;
            NAME(tile_run)(1, 1, &one, dtype, false, 0, t->k);
        }
    else
        switch (tokens) {
            DIRECT_CASES(DIRECT_CASE)
        }
}

static void NAME(direct_f32)(const struct NAME(tile) * t, size_t tokens)
{
    NAME(direct_of_type)(t, D0_F32, tokens);
}

static void NAME(direct_bf16)(const struct NAME(tile) * t, size_t tokens)
{
    NAME(direct_of_type)(t, D0_BF16, tokens);
}

static void NAME(direct_f16)(const struct NAME(tile) * t, size_t tokens)
{
    NAME(direct_of_type)(t, D0_F16, tokens);
}

/* Columns first..last for at most MAX_TOKENS tokens. all: x, and w, bias and out of column 0. */
static void NAME(direct_columns)(const struct NAME(tile) * all, uint32_t dtype, size_t first, size_t last,
                                 size_t tokens)
{
    size_t width = dtype == D0_F32 ? 4 : 2, bias_width = all->bias_dtype == D0_F32 ? 4 : 2;
    size_t wide = DIRECT_ROWS(tokens);
    for (size_t j = first; j < last;) {
        /* the last tile moves back to stay full: some columns are computed twice, to the same bits */
        size_t rows = last - first < wide ? 1 : wide;
        j = last - j < rows ? last - rows : j;
        struct NAME(tile) t = *all;
        t.w += j * t.k * width;
        t.bias = t.bias ? t.bias + j * bias_width : NULL;
        t.out += j;
        t.rows = rows;
        (dtype == D0_F32    ? NAME(direct_f32)
         : dtype == D0_BF16 ? NAME(direct_bf16)
                            : NAME(direct_f16))(&t, tokens);
        j += rows;
    }
}

/* Columns first..last for at most DIRECT_TOKENS tokens: each row of W comes from memory once. */
static void NAME(direct_block)(const struct NAME(tile) * all, uint32_t dtype, size_t first, size_t last,
                               size_t tokens)
{
    size_t passes = (tokens + MAX_TOKENS - 1) / MAX_TOKENS, share = (tokens + passes - 1) / passes;
    for (size_t j = first; j < last; j += DIRECT_BLOCK)
        for (size_t i = 0; i < tokens; i += share) {
            struct NAME(tile) t = *all;
            t.x += i * t.pitch;
            t.out += i * t.n;
            NAME(direct_columns)
            (&t, dtype, j, last - j < DIRECT_BLOCK ? last : j + DIRECT_BLOCK,
             tokens - i < share ? tokens - i : share);
        }
}

/* ---- many tokens --------------------------------------------------------------------------------------- */

struct NAME(wide) {
    size_t steps;      /* of sixteen along K, each segment rounded up to whole ones */
    size_t tile_bytes; /* of TILE_ROWS widened rows */
    size_t tiles;      /* of rows in one block */
};

static struct NAME(wide) NAME(wide_sizes)(size_t k, size_t segments)
{
    struct NAME(wide) s = {.steps = (k / segments + 15) / 16 * segments};
    s.tile_bytes = s.steps * TILE_ROWS * 64;
    s.tiles = s.tile_bytes ? WIDE_BYTES / s.tile_bytes : 1;
    s.tiles = s.tiles > WIDE_MAX_ROWS / TILE_ROWS ? WIDE_MAX_ROWS / TILE_ROWS : s.tiles;
    s.tiles = s.tiles ? s.tiles : 1;
    return s;
}

INLINE size_t NAME(segments_of)(const struct kern_args *a)
{
    return a->segments > 1 ? (size_t)a->segments : 1;
}

static size_t NAME(wide_scratch)(const struct kern_args *a)
{
    if (a->n_rows <= DIRECT_TOKENS)
        return 0;
    struct NAME(wide) s = NAME(wide_sizes)((size_t)a->k, NAME(segments_of)(a));
    return s.tiles * (s.tile_bytes + CHUNK_TILES * sizeof(struct NAME(state)));
}

/* Row r of a tile: w[k] to out[steps, TILE_ROWS, 16], the rest of each segment's last step zero. */
INLINE void NAME(widen_of_type)(const unsigned char *w, const uint32_t dtype, size_t k, size_t segments,
                                float *out)
{
    size_t length = k / segments, width = dtype == D0_F32 ? 4 : 2;
    for (size_t s = 0; s < segments; s++, w += length * width) {
        size_t i = 0;
        for (; i + 16 <= length; i += 16, out += TILE_ROWS * 16)
            lanes_store(out, lanes_load_any(w, dtype, i));
        if (i < length) {
            lanes_store(out, lanes_load_any_n(w, dtype, i, length - i));
            out += TILE_ROWS * 16;
        }
    }
}

/* The same of a weight stored as codes. */
static void NAME(widen_coded)(const struct kern_args *a, unsigned input, size_t k,
                              const struct NAME(wide) * s, size_t segments, size_t first, size_t last,
                              unsigned char *out)
{
    size_t length = k / segments, steps = (length + 15) / 16;
    for (size_t j = first; j < last || (j - first) % TILE_ROWS; j++) {
        float *to = (float *)(out + (j - first) / TILE_ROWS * s->tile_bytes) + (j - first) % TILE_ROWS * 16;
        for (size_t i = 0; i < segments; i++, to += steps * TILE_ROWS * 16)
            NAME(widen_codes)
        (a->in_form[input], a->in[input], j < last ? j : last - 1, i * length, length, TILE_ROWS * 16, to);
    }
}

/* Rows first..last of weight input `input`, counted over all its matrices of k columns, tile by tile: the one
 * place where stored weights become float32 for many tokens. The last tile is filled up with copies of the
 * last row, whose sums nobody takes. */
static void NAME(widen)(const struct kern_args *a, unsigned input, size_t k, const struct NAME(wide) * s,
                        size_t segments, size_t first, size_t last, unsigned char *out)
{
    uint32_t dtype = a->in_dtype[input];
    size_t width = dtype == D0_F32 ? 4 : 2;
    if (a->in_form[input]) {
        NAME(widen_coded)(a, input, k, s, segments, first, last, out);
        return;
    }
    for (size_t j = first; j < last || (j - first) % TILE_ROWS; j++) {
        const unsigned char *w = (const unsigned char *)a->in[input] + (j < last ? j : last - 1) * k * width;
        float *to = (float *)(out + (j - first) / TILE_ROWS * s->tile_bytes) + (j - first) % TILE_ROWS * 16;
        if (dtype == D0_F32)
            NAME(widen_of_type)(w, D0_F32, k, segments, to);
        else if (dtype == D0_BF16)
            NAME(widen_of_type)(w, D0_BF16, k, segments, to);
        else
            NAME(widen_of_type)(w, D0_F16, k, segments, to);
    }
}

#define WIDE_CASE(TOKENS)                                                                                    \
    case TOKENS:                                                                                             \
        NAME(tile_run)(TOKENS, TILE_ROWS, t, D0_F32, true, from, to);                                        \
        break;

static void NAME(wide_tile)(const struct NAME(tile) * t, size_t tokens, size_t from, size_t to)
{
    switch (tokens) {
        WIDE_CASES(WIDE_CASE)
    }
}

/* End of the block of K that starts at `from`: as many whole segments as fit, or a part of a long one. */
static size_t NAME(block_end)(size_t k, size_t length, size_t from)
{
    size_t at = from % length, end;
    if (at == 0 && length <= K_BLOCK)
        end = from + K_BLOCK / length * length;
    else
        end = from + (length - at < K_BLOCK ? length - at : K_BLOCK);
    return end < k ? end : k;
}

/* `tokens` tokens, at most CHUNK_TILES tiles, against `rows` widened rows of W. t: the first tile. */
static void NAME(wide_chunk)(const struct NAME(tile) * first, const struct NAME(wide) * s, size_t tokens,
                             size_t rows)
{
    size_t length = first->k / first->segments, bias_width = first->bias_dtype == D0_F32 ? 4 : 2;
    for (size_t from = 0, to; from < first->k; from = to) {
        to = NAME(block_end)(first->k, length, from);
        struct NAME(state) *state = first->state;
        for (size_t i = 0; i < tokens; i += TILE_TOKENS)
            for (size_t r = 0; r < rows; r += TILE_ROWS, state++) {
                struct NAME(tile) t = *first;
                t.x += i * t.pitch;
                t.w += r / TILE_ROWS * s->tile_bytes;
                t.bias = t.bias ? t.bias + r * bias_width : NULL;
                t.out += i * t.n + r;
                t.state = state;
                t.rows = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;
                NAME(wide_tile)(&t, tokens - i < TILE_TOKENS ? tokens - i : TILE_TOKENS, from, to);
            }
    }
}

static void NAME(linear_wide)(const struct kern_args *a, size_t pitch, size_t first, size_t last,
                              unsigned thread)
{
    const struct NAME(wide) s = NAME(wide_sizes)((size_t)a->k, NAME(segments_of)(a));
    size_t n_tokens = (size_t)a->n_rows, block = s.tiles * TILE_ROWS, chunk = CHUNK_TILES * TILE_TOKENS;
    size_t bias_width = a->in_dtype[2] == D0_F32 ? 4 : 2;
    unsigned char *scratch = (unsigned char *)a->scratch + thread * a->scratch_bytes;
    const unsigned char *bias = a->in[2];
    struct NAME(tile) t = {.w = scratch,
                           .state = (struct NAME(state) *)(scratch + s.tiles * s.tile_bytes),
                           .k = (size_t)a->k,
                           .pitch = pitch,
                           .n = (size_t)a->n,
                           .segments = NAME(segments_of)(a),
                           .bias_dtype = a->in_dtype[2]};
    for (size_t j = first; j < last; j += block) {
        size_t rows = last - j < block ? last - j : block;
        NAME(widen)(a, 1, t.k, &s, t.segments, j, j + rows, scratch);
        t.bias = bias ? bias + j * bias_width : NULL;
        for (size_t i = 0; i < n_tokens; i += chunk) {
            t.x = kern_rows(a) + i * pitch;
            t.out = (float *)a->out[0] + i * t.n + j;
            NAME(wide_chunk)(&t, &s, n_tokens - i < chunk ? n_tokens - i : chunk, rows);
        }
    }
}

/* ---- few tokens, codes --------------------------------------------------------------------------------- */

#define FEW_STEPS (K_BLOCK / 16 + 64) /* whole short segments round up to whole steps */
#define FEW_TILES ((DIRECT_TOKENS + TILE_TOKENS - 1) / TILE_TOKENS)

/* What stays in the first-level cache while all tokens use it: a tile of rows, one block of K of it. */
struct NAME(few) {
    float w[FEW_STEPS * TILE_ROWS * 16];
    struct NAME(state) state[FEW_TILES];
};

static size_t NAME(linear_scratch)(const struct kern_args *a)
{
    size_t wide = a->n_rows > DIRECT_TOKENS ? NAME(wide_scratch)(a) : 0,
           few = a->in_form[1] ? sizeof(struct NAME(few)) : 0;
    return wide > few ? wide : few;
}

static void NAME(widen_block)(const struct kern_args *a, size_t row, size_t last, size_t length, size_t from,
                              size_t to, float *out)
{
    for (size_t r = 0; r < TILE_ROWS; r++) {
        float *at = out + r * 16;
        for (size_t k = from; k < to;) {
            size_t rest = length - k % length, n = rest < to - k ? rest : to - k;
            NAME(widen_codes)
            (a->in_form[1], a->in[1], row + r < last ? row + r : last - 1, k, n, TILE_ROWS * 16, at);
            at += (n + 15) / 16 * TILE_ROWS * 16;
            k += n;
        }
    }
}

static void NAME(linear_few)(const struct kern_args *a, size_t pitch, size_t first, size_t last,
                             unsigned thread)
{
    struct NAME(few) *few = (void *)((unsigned char *)a->scratch + thread * a->scratch_bytes);
    const unsigned char *bias = a->in[2];
    size_t k = (size_t)a->k, n_tokens = (size_t)a->n_rows,
           segments = a->segments > 1 ? (size_t)a->segments : 1, length = k / segments,
           steps = (length + 15) / 16, bias_width = a->in_dtype[2] == D0_F32 ? 4 : 2;
    for (size_t j = first; j < last; j += TILE_ROWS)
        for (size_t from = 0, to; from < k; from = to) {
            to = NAME(block_end)(k, length, from);
            NAME(widen_block)(a, j, last, length, from, to, few->w);
            for (size_t i = 0; i < n_tokens; i += TILE_TOKENS) {
                struct NAME(tile) t = {.x = kern_rows(a) + i * pitch,
                                       .w = (const unsigned char *)few->w,
                                       .bias = bias ? bias + j * bias_width : NULL,
                                       .out = (float *)a->out[0] + i * (size_t)a->n + j,
                                       .state = &few->state[i / TILE_TOKENS],
                                       .k = k,
                                       .pitch = pitch,
                                       .n = (size_t)a->n,
                                       .segments = segments,
                                       .rows = last - j < TILE_ROWS ? last - j : TILE_ROWS,
                                       .first_step = from / length * steps + from % length / 16,
                                       .bias_dtype = a->in_dtype[2]};
                NAME(wide_tile)(&t, n_tokens - i < TILE_TOKENS ? n_tokens - i : TILE_TOKENS, from, to);
            }
        }
}

/* At most MAX_TOKENS tokens: without scratch, save for tiles that coded_rows refuses. */
static void NAME(linear_coded)(const struct kern_args *a, size_t pitch, size_t first, size_t last,
                               unsigned thread)
{
    size_t tokens = (size_t)a->n_rows, rows = DIRECT_ROWS(tokens);
    const struct NAME(coded) c = {.f = a->in_form[1],
                                  .data = a->in[1],
                                  .bias = a->in[2],
                                  .x = kern_rows(a),
                                  .out = a->out[0],
                                  .k = (size_t)a->k,
                                  .n = (size_t)a->n,
                                  .pitch = pitch,
                                  .segments = NAME(segments_of)(a),
                                  .bias_dtype = a->in_dtype[2]};
    if (!NAME(codes_in_runs)(c.f) || c.k / c.segments % 16 || last - first < rows) {
        NAME(linear_few)(a, pitch, first, last, thread);
        return;
    }
    for (size_t j = first; j < last; j += rows) {
        /* the last tile moves back to stay full */
        j = last - j < rows ? last - rows : j;
        if (!NAME(coded_rows)(&c, tokens, j))
            NAME(linear_few)(a, pitch, j, j + rows, thread);
    }
}

/* Columns first..last of all tokens; rows of x are `pitch` values apart. */
static void NAME(linear_columns)(const struct kern_args *a, size_t pitch, size_t first, size_t last,
                                 unsigned thread)
{
    size_t n_tokens = (size_t)a->n_rows;
    if (n_tokens > DIRECT_TOKENS) {
        NAME(linear_wide)(a, pitch, first, last, thread);
        return;
    }
    if (a->in_form[1]) {
        if (n_tokens <= MAX_TOKENS)
            NAME(linear_coded)(a, pitch, first, last, thread);
        else
            NAME(linear_few)(a, pitch, first, last, thread);
        return;
    }
    struct NAME(state) state;
    struct NAME(tile) t = {.x = kern_rows(a),
                           .w = a->in[1],
                           .bias = a->in[2],
                           .out = a->out[0],
                           .state = &state,
                           .k = (size_t)a->k,
                           .pitch = pitch,
                           .n = (size_t)a->n,
                           .segments = NAME(segments_of)(a),
                           .bias_dtype = a->in_dtype[2]};
    if (n_tokens > 0)
        NAME(direct_block)(&t, a->in_dtype[1], first, last, n_tokens);
}

static void NAME(linear)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    if (a->phase == 0)
        kern_round_rows(a, first, last);
    else
        NAME(linear_columns)(a, (size_t)a->k, first, last, thread);
}

/* ---- groups -------------------------------------------------------------------------------------------- */

/* One group of GROUP_LINEAR as a LINEAR: its K values of each row of x, all rows of W and columns of out. */
static struct kern_args NAME(group_of)(const struct kern_args *a, size_t groups, size_t group)
{
    struct kern_args g = *a;
    g.k = a->k / (int64_t)groups;
    g.in[0] = kern_rows(a) + group * (size_t)g.k;
    g.attr[D0_ATTR_X_FORMAT].i = D0_X_EXACT; /* done */
    g.in[2] = NULL;
    g.segments = 1;
    return g;
}

static size_t NAME(groups)(const struct kern_args *a)
{
    return a->attr[D0_ATTR_GROUPS].i > 1 ? (size_t)a->attr[D0_ATTR_GROUPS].i : 1;
}

static size_t NAME(group_linear_scratch)(const struct kern_args *a)
{
    struct kern_args g = *a; /* no addresses yet */
    g.k = a->k / (int64_t)NAME(groups)(a);
    g.segments = 1;
    return NAME(linear_scratch)(&g);
}

static void NAME(group_linear)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    size_t groups = NAME(groups)(a), columns = (size_t)a->n / groups;
    if (a->phase == 0) {
        kern_round_rows(a, first, last);
        return;
    }
    for (size_t j = first, end; j < last; j = end) {
        struct kern_args g = NAME(group_of)(a, groups, j / columns);
        end = (j / columns + 1) * columns < last ? (j / columns + 1) * columns : last;
        NAME(linear_columns)(&g, (size_t)a->k, j, end, thread);
    }
}
