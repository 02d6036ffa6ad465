/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: LINEAR of few tokens with weights stored as codes, widened in registers as they stream by; compiled
 * once per instruction set. The values are those of codes_tmpl.h and the chains, their sums and the tree over
 * segments those of linear_tmpl.h, so it has the bits of the ways through scratch. Refuses (false, nothing
 * written): what does not come in whole runs of sixteen, and codes or scales that its shorter ways of
 * widening do not cover.
 */
#define CODE_RUN 128 /* columns between two requests for the rows of the next tile */

struct NAME(coded) {
    const struct tensor_form *f;
    const unsigned char *data, *bias; /* bias: of row 0, or NULL */
    const float *x;                   /* [TOKENS, pitch] */
    float *out;                       /* [TOKENS, n], of row 0 */
    size_t k, n, pitch, segments;
    uint32_t bias_dtype;
};

/* What one group of one row makes of its codes. */
struct NAME(code_group) {
    lanes table; /* of half bytes: the values of the 16 codes; else the scale in each lane */
    lanes zero;
};

INLINE bool NAME(half_bytes)(const uint32_t dtype)
{
#if defined(LANES_LOOK_UP)
    return dtype == D0_U4 || dtype == D0_F4;
#else
    (void)dtype;
    return false;
#endif
}

INLINE bool NAME(code_group_of)(const uint32_t dtype, float scale, float zero, struct NAME(code_group) * g)
{
    g->zero = lanes_set1(zero);
    if (NAME(half_bytes)(dtype)) {
        static const unsigned char all[8] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
        g->table = lanes_mul(lanes_sub(NAME(sixteen)(dtype, all, 0), g->zero), lanes_set1(scale));
        return true;
    }
    /* as F16 the exponents of E4M3 are 8 too small; 256 scale is exact as long as it is finite */
    g->table = lanes_set1(dtype == D0_F8_E4M3 ? 256 * scale : scale);
    return dtype == D0_F8_E4M3 ? fabsf(scale) < 0x1p119f : dtype != D0_I8 || zero == 0;
}

INLINE lanes NAME(code_values)(const uint32_t dtype, const unsigned char *row, size_t k,
                               const struct NAME(code_group) * g)
{
#if defined(LANES_LOOK_UP)
    if (NAME(half_bytes)(dtype))
        return lanes_look_up(row + k / 2, g->table);
#endif
    if (dtype == D0_F8_E4M3) { /* none is NaN */
        __m256i v = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row + k))), 7);
        return lanes_mul(lanes_of_halves(_mm256_and_si256(v, _mm256_set1_epi16((short)0xbf80))), g->table);
    }
    lanes v = NAME(sixteen)(dtype, row, k);
    if (dtype == D0_U8 || dtype == D0_U4)
        v = lanes_sub(v, g->zero);
    return lanes_mul(v, g->table);
}

/* Is one of n codes (a multiple of 16) of E4M3 NaN? */
INLINE bool NAME(any_nan)(const unsigned char *codes, size_t n)
{
    const __m128i sign = _mm_set1_epi8((char)0x80);
    __m128i most = _mm_setzero_si128();
    for (size_t i = 0; i < n; i += 16)
        most = _mm_max_epu8(most, _mm_or_si128(_mm_loadu_si128((const __m128i *)(codes + i)), sign));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(most, _mm_set1_epi8(-1))) != 0;
}

#define CODE_ROW(r)                                                                                          \
    if (r < ROWS)                                                                                            \
        b[r] = lanes_pin(NAME(code_values)(dtype, row[r].codes, k, &group[r]));
#define CODE_OUTPUT(i)                                                                                       \
    if (i < TOKENS * ROWS) {                                                                                 \
        if (i % ROWS == 0)                                                                                   \
            v = lanes_pin(lanes_load(c->x + i / ROWS * c->pitch + k));                                       \
        acc[i] = lanes_fma(v, b[i % ROWS], acc[i]);                                                          \
    }

/* acc += columns from..to of one group. */
INLINE bool NAME(code_run)(const size_t TOKENS, const size_t ROWS, const uint32_t dtype,
                           const struct NAME(coded) * c, const struct NAME(code_row) * row, size_t from,
                           size_t to, lanes *acc)
{
    const size_t codes = dtype == D0_U4 || dtype == D0_F4 ? 2 : 1; /* of a byte */
    const size_t in = from / NAME(group_columns)(c->f);
    struct NAME(code_group) group[4];
    bool covered = true;
    for (size_t r = 0; r < ROWS; r++) {
        covered &= NAME(code_group_of)(dtype, NAME(group_scale)(c->f, c->data, &row[r], in),
                                       NAME(group_zero)(c->f, c->data, &row[r], in), &group[r]);
        if (dtype == D0_F8_E4M3)
            covered &= !NAME(any_nan)(row[r].codes + from, to - from);
        for (size_t i = ALIGN_UP(from / codes, 64); i < to / codes; i += 64)
            lanes_ahead(row[r].codes + i, ROWS * c->f->row_bytes);
    }
    for (size_t k = from; k < to; k += 16) {
        lanes v = lanes_zero(), b[4];
        EACH_ROW(CODE_ROW)
        EACH_OUTPUT(CODE_OUTPUT)
    }
    return covered;
}

/* Rows j .. j + ROWS - 1. */
INLINE bool NAME(coded_tile)(const size_t TOKENS, const size_t ROWS, const uint32_t dtype,
                             const struct NAME(coded) * c, size_t j)
{
    const size_t length = c->k / c->segments, group_k = NAME(group_columns)(c->f);
    struct NAME(code_row) row[4];
    float sums[LEVELS][TILE_MAX], sum[TILE_MAX];
    for (size_t r = 0; r < ROWS; r++)
        row[r] = NAME(code_row_of)(c->f, c->data, j + r);
    for (size_t s = 0; s < c->segments; s++) {
        lanes acc[TILE_MAX];
        EACH_OUTPUT(ZERO_OUTPUT)
        for (size_t from = s * length, to, last = from + length; from < last; from = to) {
            to = (from / group_k + 1) * group_k;
            to = to < last ? to : last;
            to = to - from < CODE_RUN ? to : from + CODE_RUN;
            if (!NAME(code_run)(TOKENS, ROWS, dtype, c, row, from, to, acc))
                return false;
        }
        NAME(sums)(acc, TOKENS * ROWS, sum);
        NAME(push)(sums, s, TOKENS * ROWS, sum);
    }
    const float *y = sums[__builtin_ctzll(c->segments)];
    for (size_t i = 0; i < TOKENS; i++)
        for (size_t r = 0; r < ROWS; r++)
            c->out[i * c->n + j + r] =
                c->bias ? y[i * ROWS + r] + ref_load(c->bias, c->bias_dtype, j + r) : y[i * ROWS + r];
    return true;
}

#define CODED_CASE(TOKENS)                                                                                   \
    case TOKENS:                                                                                             \
        return NAME(coded_tile)(TOKENS, DIRECT_ROWS(TOKENS), dtype, c, j);
#define CODED_TYPE(TYPE)                                                                                     \
    static bool NAME(coded_##TYPE)(const struct NAME(coded) * c, size_t tokens, size_t j)                    \
    {                                                                                                        \
        const uint32_t dtype = D0_##TYPE;                                                                    \
        switch (tokens) {                                                                                    \
            DIRECT_CASES(CODED_CASE)                                                                         \
        }                                                                                                    \
        return false;                                                                                        \
    }
CODED_TYPE(F8_E4M3)
CODED_TYPE(F8_E5M2)
CODED_TYPE(F4)
CODED_TYPE(I8)
CODED_TYPE(U8)
CODED_TYPE(U4)

static bool NAME(coded_rows)(const struct NAME(coded) * c, size_t tokens, size_t j)
{
    switch (c->f->dtype) {
    case D0_F8_E4M3:
        return NAME(coded_F8_E4M3)(c, tokens, j);
    case D0_F8_E5M2:
        return NAME(coded_F8_E5M2)(c, tokens, j);
    case D0_F4:
        return NAME(coded_F4)(c, tokens, j);
    case D0_I8:
        return NAME(coded_I8)(c, tokens, j);
    case D0_U8:
        return NAME(coded_U8)(c, tokens, j);
    default:
        return NAME(coded_U4)(c, tokens, j);
    }
}
