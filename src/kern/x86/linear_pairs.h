/* SPDX-License-Identifier: Apache-2.0
 *
 * LINEAR and GROUP_LINEAR of BF16 weights with rows rounded to BF16, by the instruction that adds products of
 * pairs (vdpbf16ps): its own lane pattern, so its own bits. Lane j takes elements 2j and 2j + 1 of every 32,
 * in order along K, per segment; the last step of a segment is filled up with zeroes; then the horizontal
 * tree, the tree over segments and the bias of linear_tmpl.h. The instruction rounds to nearest even and
 * takes subnormal numbers for zero, whatever the mode of the processor. Tiles only run such chains side by
 * side, so a row has the same bits in any batch.
 *
 * Rows of x are rounded once, in phase 0, each segment to whole steps. W is read as it is stored: a block of
 * its rows stays in the second-level cache while all tokens pass, and K is cut so that the rows of x in use
 * stay in the first.
 */
#define PAIR_STEP    32   /* elements of K that one instruction takes */
#define PAIR_K_BLOCK 1536 /* elements of K of one block; a multiple of PAIR_STEP */
#define PAIR_ROWS    48   /* rows of W of one block */
#define PAIR_CHUNK   24   /* tokens that pass together */
#define PAIR_TILES   ((PAIR_ROWS / 3 + 1) * (PAIR_CHUNK / 3))

struct pair_sizes {
    size_t k, segments, length; /* of one group: of K, their number, elements of one */
    size_t steps;               /* of one segment */
    size_t groups, pitch;       /* values between rows of x as they are kept */
};

static struct pair_sizes pair_sizes_of(const struct kern_args *a)
{
    struct pair_sizes s = {.groups = a->attr[D0_ATTR_GROUPS].i > 1 ? (size_t)a->attr[D0_ATTR_GROUPS].i : 1,
                           .segments = a->segments > 1 ? (size_t)a->segments : 1};
    s.k = (size_t)a->k / s.groups;
    s.length = s.k / s.segments;
    s.steps = (s.length + PAIR_STEP - 1) / PAIR_STEP;
    s.pitch = s.groups * s.segments * s.steps * PAIR_STEP;
    return s;
}

static size_t pair_shared(const struct kern_args *a)
{
    return (size_t)a->n_rows * pair_sizes_of(a).pitch * sizeof(uint16_t);
}

static size_t pair_items(const struct kern_args *a)
{
    return a->phase == 0 ? (size_t)a->n_rows : kern_items_columns(a);
}

static void pair_round(const struct kern_args *a, size_t first, size_t last)
{
    const struct pair_sizes s = pair_sizes_of(a);
    for (size_t t = first; t < last; t++) {
        const float *x = (const float *)a->in[0] + t * (size_t)a->k;
        uint16_t *to = (uint16_t *)a->shared + t * s.pitch;
        for (size_t i = 0; i < s.groups * s.segments; i++, x += s.length, to += s.steps * PAIR_STEP) {
            for (size_t c = 0; c < s.length; c++)
                to[c] = f32_to_bf16(x[c]);
            memset(to + s.length, 0, (s.steps * PAIR_STEP - s.length) * sizeof *to);
        }
    }
}

/* ---- tiles --------------------------------------------------------------------------------------------- */

struct pair_tile {
    const uint16_t *x; /* [TOKENS, pitch], of the group */
    const uint16_t *w; /* [ROWS, k] */
    const unsigned char *bias;
    float *out; /* [TOKENS, n] */
    struct NAME(state) * state;
    size_t n;
    uint32_t bias_dtype;
};

INLINE __m512 pair_dot(__m512 acc, __m512i x, __m512i w)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)w);
}

/* Operands that are used several times stay in a register. */
INLINE __m512i pair_pin(__m512i v)
{
    __asm__("" : "+v"(v));
    return v;
}

#define PAIR_LOAD(r)                                                                                         \
    if (r < ROWS)                                                                                            \
        b[r] = pair_pin(mask == UINT32_MAX ? _mm512_loadu_si512(w + r * w_pitch)                             \
                                           : _mm512_maskz_loadu_epi16(mask, w + r * w_pitch));
#define PAIR_OUTPUT(i)                                                                                       \
    if (i < TOKENS * ROWS) {                                                                                 \
        if (i % ROWS == 0)                                                                                   \
            v = pair_pin(_mm512_loadu_si512(x + i / ROWS * x_pitch));                                        \
        acc[i] = pair_dot(acc[i], v, b[i % ROWS]);                                                           \
    }

INLINE void pair_step(const size_t TOKENS, const size_t ROWS, const uint16_t *x, size_t x_pitch,
                      const uint16_t *w, size_t w_pitch, const uint32_t mask, lanes *acc)
{
    __m512i v = _mm512_setzero_si512(), b[4];
    EACH_ROW(PAIR_LOAD)
    EACH_OUTPUT(PAIR_OUTPUT)
}

/* Elements from..to of the group's K; a cut lies between segments or whole steps from the segment's start. */
INLINE void pair_run(const size_t TOKENS, const size_t ROWS, const struct pair_tile *t,
                     const struct pair_sizes *s, size_t from, size_t to)
{
    size_t segment = from / s->length, at = from % s->length;
    for (size_t k = from; k < to; segment++, at = 0) {
        size_t n = s->length - at < to - k ? s->length - at : to - k;
        const uint16_t *x = t->x + segment * s->steps * PAIR_STEP + at, *w = t->w + k;
        lanes acc[TILE_MAX];
        float sum[TILE_MAX];
        if (at) {
            EACH_OUTPUT(TAKE_OUTPUT)
        } else {
            EACH_OUTPUT(ZERO_OUTPUT)
        }
        for (size_t i = 0; i < n / PAIR_STEP; i++, x += PAIR_STEP, w += PAIR_STEP)
            pair_step(TOKENS, ROWS, x, s->pitch, w, s->k, UINT32_MAX, acc);
        if (n % PAIR_STEP)
            pair_step(TOKENS, ROWS, x, s->pitch, w, s->k, (1u << n % PAIR_STEP) - 1, acc);
        k += n;
        if (at + n == s->length) {
            NAME(sums)(acc, TOKENS * ROWS, sum);
            NAME(push)(t->state->sums, segment, TOKENS * ROWS, sum);
        } else {
            EACH_OUTPUT(KEEP_OUTPUT)
        }
    }
    if (to < s->k)
        return;
    size_t level = (size_t)__builtin_ctzll(s->segments);
    for (size_t i = 0; i < TOKENS; i++)
        for (size_t r = 0; r < ROWS; r++) {
            float y = t->state->sums[level][i * ROWS + r];
            t->out[i * t->n + r] = t->bias ? y + ref_load(t->bias, t->bias_dtype, r) : y;
        }
}

#define PAIR_CASE(TOKENS, ROWS)                                                                              \
    case TOKENS * 8 + ROWS:                                                                                  \
        pair_run(TOKENS, ROWS, t, s, from, to);                                                              \
        break;
#define PAIR_ANY_ROWS(TOKENS) PAIR_CASE(TOKENS, 1) PAIR_CASE(TOKENS, 4)

static void pair_any(const struct pair_tile *t, const struct pair_sizes *s, size_t tokens, size_t rows,
                     size_t from, size_t to)
{
    switch (tokens * 8 + rows) {
        PAIR_ANY_ROWS(1)
        PAIR_ANY_ROWS(2)
        PAIR_ANY_ROWS(3)
        PAIR_ANY_ROWS(4)
        PAIR_ANY_ROWS(5)
        PAIR_ANY_ROWS(6)
        PAIR_CASE(7, 1)
        PAIR_CASE(7, 3)
        PAIR_CASE(8, 1)
        PAIR_CASE(8, 3)
    }
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

struct pair_block {
    struct pair_tile first; /* of the block's tokens and rows */
    size_t tokens, rows, tile_tokens;
};

static size_t pair_end(const struct pair_sizes *s, size_t from)
{
    size_t at = from % s->length, end;
    if (at == 0 && s->length <= PAIR_K_BLOCK)
        end = from + PAIR_K_BLOCK / s->length * s->length;
    else
        end = from + (s->length - at < PAIR_K_BLOCK ? s->length - at : PAIR_K_BLOCK);
    return end < s->k ? end : s->k;
}

static void pair_block_run(const struct pair_block *b, const struct pair_sizes *s)
{
    const size_t wide = b->tile_tokens > 6 ? 3 : 4, bias_width = b->first.bias_dtype == D0_F32 ? 4 : 2;
    for (size_t from = 0, to; from < s->k; from = to) {
        struct NAME(state) *state = b->first.state;
        /* nothing is used twice by one tile of tokens: let the chains run */
        to = b->tokens <= b->tile_tokens ? s->k : pair_end(s, from);
        for (size_t i = 0; i < b->tokens; i += b->tile_tokens) {
            size_t tokens = b->tokens - i < b->tile_tokens ? b->tokens - i : b->tile_tokens,
                   most = tokens > 6 ? 3 : 4;
            most = most < wide ? most : wide;
            for (size_t r = 0, rows; r < b->rows; r += rows, state++) {
                struct pair_tile t = b->first;
                rows = b->rows - r < most || (tokens <= 6 && b->rows - r < 4) ? 1 : tokens <= 6 ? 4 : 3;
                t.x += i * s->pitch;
                t.w += r * s->k;
                t.bias = t.bias ? t.bias + r * bias_width : NULL;
                t.out += i * t.n + r;
                t.state = state;
                pair_any(&t, s, tokens, rows, from, to);
            }
        }
    }
}

static size_t pair_scratch(const struct kern_args *a)
{
    (void)a;
    return PAIR_TILES * sizeof(struct NAME(state));
}

/* Columns first..last of all tokens, all of one group. */
static void pair_columns(const struct kern_args *a, const struct pair_sizes *s, size_t group, size_t first,
                         size_t last, unsigned thread)
{
    const size_t n_tokens = (size_t)a->n_rows, bias_width = a->in_dtype[2] == D0_F32 ? 4 : 2;
    const size_t most = n_tokens <= 8 ? 8 : 6, passes = (n_tokens + most - 1) / most,
                 tile = (n_tokens + passes - 1) / passes, chunk = PAIR_CHUNK / tile * tile;
    const unsigned char *bias = a->in[2];
    for (size_t j = first; j < last; j += PAIR_ROWS)
        for (size_t i = 0; i < n_tokens; i += chunk) {
            struct pair_block b = {
                .first = {.x = (const uint16_t *)a->shared + i * s->pitch +
                               group * s->segments * s->steps * PAIR_STEP,
                          .w = (const uint16_t *)a->in[1] + j * s->k,
                          .bias = bias ? bias + j * bias_width : NULL,
                          .out = (float *)a->out[0] + i * (size_t)a->n + j,
                          .state = (void *)((unsigned char *)a->scratch + thread * a->scratch_bytes),
                          .n = (size_t)a->n,
                          .bias_dtype = a->in_dtype[2]},
                .tokens = n_tokens - i < chunk ? n_tokens - i : chunk,
                .rows = last - j < PAIR_ROWS ? last - j : PAIR_ROWS,
                .tile_tokens = tile};
            pair_block_run(&b, s);
        }
}

static void NAME(linear_pairs)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const struct pair_sizes s = pair_sizes_of(a);
    const size_t columns = (size_t)a->n / s.groups;
    if (a->phase == 0) {
        pair_round(a, first, last);
        return;
    }
    for (size_t j = first, end; j < last; j = end) {
        end = (j / columns + 1) * columns < last ? (j / columns + 1) * columns : last;
        pair_columns(a, &s, j / columns, j, end, thread);
    }
}
