/* SPDX-License-Identifier: Apache-2.0
 *
 * EXPERTS, compiled once per instruction set, in four phases. (0) Pairs of token and slot get their places:
 * as they come, one by one (as defined), or grouped by expert (attribute `form` 1); rows of x are rounded, if
 * they are to be. (1) Per inner column: gate and up of all experts for their tokens, and the activation. (2)
 * Rows of inner values are rounded, if they are to be. (3) Per output column: down of all experts, then the
 * sum over the slots of each token in their order. A row of an expert's matrix belongs to one column, so
 * where pairs are grouped it is read once a step, by one thread, and only if a token chose the expert.
 *
 * Products run in the tiles of LINEAR, in its order along K: a token has the same bits whoever else chose the
 * expert. Few tokens of one expert: rows as they are stored, widened in registers. Many, or turned matrices:
 * blocks of rows widened into scratch once.
 */
#define INNER_COLUMNS 128 /* of one block of few tokens; a block of many has at most as many, too */
#define FEW_COLUMNS   256 /* of one block of outputs, where few tokens leave room for it */
#define FEW_PAIRS     512
#define TURNED_TOKENS 8                 /* up to here turned matrices are read as they are stored */
#define TURNED_SUMS   8192              /* float32 sums of these that stay in the first-level cache */
#define TURNED_AHEAD  16                /* rows that are fetched ahead */
#define SLOT_BYTES    ((size_t)2 << 20) /* of products that wait for their sum, while that is a useful block */
#define LEAST_COLUMNS 16
#define PASS_TOKENS   (CHUNK_TILES * TILE_TOKENS) /* of many */
#define X_ROWS        (DIRECT_TOKENS > PASS_TOKENS ? DIRECT_TOKENS : PASS_TOKENS)
#define NO_EXPERT     (-2) /* place of a pair whose id is out of range */
#define IDENTITY      (-1) /* place of a pair whose expert is the identity */

/* ---- sizes and memory ---------------------------------------------------------------------------------- */

struct NAME(moe) {
    size_t d, inter, n, slots, pairs;       /* widths; experts; slots of a token; pairs of token and slot */
    bool turned;                            /* matrices are stored [E, K, N] */
    bool coded;                             /* some matrix is stored as codes */
    bool grouped;                           /* by expert; else each pair for itself */
    const struct tensor_rounding *rounding; /* of what goes into a product; NULL: none */
    size_t rounded_rows;
    struct NAME(wide) wide[2]; /* of rows of d and of inter values */
    size_t columns[2];         /* of a block of many tokens: inner, output */
    /* shared by the phases */
    int32_t *begin; /* [n + 1] first place of each expert */
    int32_t *order; /* [pairs] the pair at each place */
    int32_t *place; /* [pairs] */
    float *h;       /* [pairs, inter] by place */
    float *rounded; /* [T, d], or [pairs, d] where the router's weight is in them; only if rounded */
    /* of this thread */
    unsigned char *widened;
    struct NAME(state) * state;
    float *x;        /* [X_ROWS, d] rows that are not neighbours, or weighted */
    float *products; /* [X_ROWS, 2 * INNER_COLUMNS]: gate and up */
    float *slot;     /* [pairs, columns[1]] by place */
};

static size_t NAME(line)(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static struct NAME(moe) NAME(moe_sizes)(const struct kern_args *a)
{
    struct NAME(moe) m = {.d = (size_t)a->k,
                          .inter = (size_t)a->attr[D0_ATTR_INTER].i,
                          .n = (size_t)a->in_dims[3][0],
                          .slots = (size_t)a->in_dims[1][1],
                          .turned = a->attr[D0_ATTR_TRANSPOSED].i != 0,
                          .coded = a->in_form[3] || a->in_form[4] || a->in_form[5],
                          .grouped = a->attr[D0_ATTR_FORM].i == 1};
    m.pairs = (size_t)a->n_rows * m.slots;
    m.rounding = tensor_rounding(a->attr[D0_ATTR_X_FORMAT].i);
    if (m.rounding)
        m.rounded_rows = a->attr[D0_ATTR_INPUT_WEIGHTED].i ? m.pairs : (size_t)a->n_rows;
    m.wide[0] = NAME(wide_sizes)(m.d, 1);
    m.wide[1] = NAME(wide_sizes)(m.inter, 1);
    size_t half = m.wide[0].tiles / 2 ? m.wide[0].tiles / 2 : 1; /* gate and up share the room */
    m.columns[0] = half * TILE_ROWS < INNER_COLUMNS ? half * TILE_ROWS : INNER_COLUMNS;
    m.columns[1] = m.pairs <= FEW_PAIRS ? FEW_COLUMNS : m.wide[1].tiles * TILE_ROWS;
    size_t fits =
        m.pairs ? SLOT_BYTES / sizeof(float) / m.pairs / LEAST_COLUMNS * LEAST_COLUMNS : FEW_COLUMNS;
    fits = fits < LEAST_COLUMNS ? LEAST_COLUMNS : fits;
    m.columns[1] = m.columns[1] < fits ? m.columns[1] : fits;
    return m;
}

/* Bytes of what waits for its sum, never less for fewer tokens. */
static size_t NAME(slot_bytes)(const struct NAME(moe) * m)
{
    _Static_assert(WIDE_MAX_ROWS <= FEW_COLUMNS, "the largest block");
    size_t wide = m->pairs * FEW_COLUMNS * sizeof(float), least = m->pairs * LEAST_COLUMNS * sizeof(float);
    wide = wide < SLOT_BYTES ? wide : SLOT_BYTES;
    return NAME(line)(wide > least ? wide : least);
}

static size_t NAME(widened_bytes)(const struct NAME(moe) * m)
{
    size_t inner = 2 * m->columns[0] / TILE_ROWS * m->wide[0].tile_bytes,
           outer = m->wide[1].tiles * m->wide[1].tile_bytes;
    return inner > outer ? inner : outer;
}

static size_t NAME(state_bytes)(const struct NAME(moe) * m)
{
    size_t inner = 2 * m->columns[0] / TILE_ROWS, outer = m->wide[1].tiles;
    return NAME(line)((inner > outer ? inner : outer) * CHUNK_TILES * sizeof(struct NAME(state)));
}

static size_t NAME(experts_scratch)(const struct kern_args *a)
{
    struct NAME(moe) m = NAME(moe_sizes)(a);
    size_t inner = NAME(line)(X_ROWS * m.d * sizeof(float)) + X_ROWS * 2 * INNER_COLUMNS * sizeof(float),
           outer = NAME(slot_bytes)(&m);
    return NAME(widened_bytes)(&m) + NAME(state_bytes)(&m) + (inner > outer ? inner : outer);
}

static size_t NAME(experts_shared)(const struct kern_args *a)
{
    struct NAME(moe) m = NAME(moe_sizes)(a);
    size_t ints = NAME(line)((m.n + 1 + 2 * m.pairs) * sizeof(int32_t)), values, rounded;
    if (__builtin_mul_overflow(m.pairs * sizeof(float), m.inter, &values) || values > SIZE_MAX / 8 ||
        __builtin_mul_overflow(m.rounded_rows * sizeof(float), m.d, &rounded) || rounded > SIZE_MAX / 8)
        return SIZE_MAX / 2; /* what nobody can give */
    return ints + NAME(line)(values) + rounded;
}

static struct NAME(moe) NAME(moe_of)(const struct kern_args *a, unsigned thread)
{
    struct NAME(moe) m = NAME(moe_sizes)(a);
    unsigned char *mine = (unsigned char *)a->scratch + thread * a->scratch_bytes;
    m.begin = a->shared;
    m.order = m.begin + m.n + 1;
    m.place = m.order + m.pairs;
    m.h = (float *)((unsigned char *)a->shared + NAME(line)((m.n + 1 + 2 * m.pairs) * sizeof(int32_t)));
    m.rounded = (float *)((unsigned char *)m.h + NAME(line)(m.pairs * m.inter * sizeof(float)));
    m.widened = mine;
    m.state = (struct NAME(state) *)(mine + NAME(widened_bytes)(&m));
    mine += NAME(widened_bytes)(&m) + NAME(state_bytes)(&m);
    m.slot = (float *)mine;
    m.x = (float *)mine;
    m.products = (float *)(mine + NAME(line)(X_ROWS * m.d * sizeof(float)));
    return m;
}

static size_t NAME(experts_items)(const struct kern_args *a)
{
    if (a->n_rows == 0)
        return 0;
    struct NAME(moe) m = NAME(moe_sizes)(a);
    switch (a->phase) {
    case 0:
        return 1 + m.rounded_rows;
    case 1:
        return m.inter;
    case 2:
        return m.rounding ? m.pairs : 0;
    default:
        return m.d;
    }
}

/* ---- products ------------------------------------------------------------------------------------------ */

/* Rows of the matrix of one expert, and where their products go. */
struct NAME(rows) {
    unsigned input, bias; /* of the arguments */
    size_t expert, n, k;  /* the matrix is [n, k] */
    size_t first, count;  /* its rows */
    size_t column;        /* of the first product */
};

/* Eight rows of eight at `in`, turned, to rows of out. */
INLINE void NAME(turn8)(const float *in, size_t in_pitch, float *out, size_t out_pitch)
{
    __m256 a[8], b[8];
    for (size_t i = 0; i < 8; i++)
        a[i] = _mm256_loadu_ps(in + i * in_pitch);
    for (size_t i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (size_t i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xEE);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
    }
    for (size_t i = 0; i < 4; i++) {
        _mm256_storeu_ps(out + i * out_pitch, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(out + (i + 4) * out_pitch, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}

/* The same as NAME(widen) for a matrix stored [k, n]: sixteen by sixteen elements at a time. */
INLINE void NAME(widen_turned)(const unsigned char *w, const uint32_t dtype, const struct NAME(rows) * r,
                               const struct NAME(wide) * s, unsigned char *out)
{
    float block[16 * 16], turned[16 * 16];
    size_t last = r->first + r->count;
    for (size_t k = 0; k < r->k; k += 16)
        for (size_t j = r->first; j < last; j += 16) {
            size_t count = last - j < 16 ? last - j : 16, rows = r->k - k < 16 ? r->k - k : 16;
            for (size_t i = 0; i < 16; i++) {
                size_t at = (k + i) * r->n + j;
                lanes v = lanes_zero();
                if (i < rows)
                    v = count == 16 ? lanes_load_any(w, dtype, at) : lanes_load_any_n(w, dtype, at, count);
                lanes_store(block + i * 16, v);
            }
            for (size_t i = 0; i < 4; i++)
                NAME(turn8)(block + i % 2 * 8 * 16 + i / 2 * 8, 16, turned + i / 2 * 8 * 16 + i % 2 * 8, 16);
            size_t row = j - r->first, whole = (count + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
            for (size_t i = 0; i < whole; i++) {
                float *tile = (float *)(out + (row + i) / TILE_ROWS * s->tile_bytes);
                lanes_store(tile + (k / 16 * TILE_ROWS + (row + i) % TILE_ROWS) * 16,
                            lanes_load(turned + i * 16));
            }
        }
}

static void NAME(expert_widen)(const struct kern_args *a, const struct NAME(moe) * m,
                               const struct NAME(rows) * r, const struct NAME(wide) * s, unsigned char *out)
{
    uint32_t dtype = a->in_dtype[r->input];
    size_t row = r->expert * r->n + r->first;
    if (!m->turned) {
        NAME(widen)(a, r->input, r->k, s, 1, row, row + r->count, out);
        return;
    }
    const unsigned char *w =
        (const unsigned char *)a->in[r->input] + r->expert * r->n * r->k * (dtype == D0_F32 ? 4 : 2);
    if (dtype == D0_F32)
        NAME(widen_turned)(w, D0_F32, r, s, out);
    else if (dtype == D0_BF16)
        NAME(widen_turned)(w, D0_BF16, r, s, out);
    else
        NAME(widen_turned)(w, D0_F16, r, s, out);
}

/* `count` outputs from column `first` of a matrix stored [k, n], for few tokens: sixteen sums each, of the
 * elements k mod 16, which are the lanes of LINEAR, then its tree. out: of the first one, [tokens, pitch] */
INLINE void NAME(turned_block)(const unsigned char *w, const uint32_t dtype, const struct NAME(rows) * r,
                               size_t first, size_t count, const float *x, size_t tokens, float *out,
                               size_t pitch)
{
    float sums[TURNED_SUMS]; /* [tokens][16][wide] */
    size_t wide = (count + 15) / 16 * 16, width = dtype == D0_F32 ? 4 : 2;
    memset(sums, 0, tokens * 16 * wide * sizeof *sums);
    for (size_t k = 0; k < (r->k + 15) / 16 * 16; k++)
        for (size_t c = 0; c < count; c += 16) {
            size_t at = k * r->n + first + c;
            lanes v = lanes_zero();
            if (k < r->k) {
                _mm_prefetch((const char *)w + (at + TURNED_AHEAD * r->n) * width, _MM_HINT_T0);
                v = count - c < 16 ? lanes_load_any_n(w, dtype, at, count - c) : lanes_load_any(w, dtype, at);
            }
            for (size_t t = 0; t < tokens; t++) {
                float *sum = sums + (t * 16 + k % 16) * wide + c;
                lanes_store(sum, lanes_fma(lanes_set1(k < r->k ? x[t * r->k + k] : 0), v, lanes_load(sum)));
            }
        }
    for (size_t t = 0; t < tokens; t++)
        for (size_t c = 0; c < count; c += 16) {
            float *sum = sums + t * 16 * wide + c;
            for (size_t half = 8; half > 0; half /= 2)
                for (size_t i = 0; i < half; i++)
                    lanes_store(sum + i * wide,
                                lanes_add(lanes_load(sum + i * wide), lanes_load(sum + (i + half) * wide)));
            memcpy(out + t * pitch + c, sum, (count - c < 16 ? count - c : 16) * sizeof *sum);
        }
}

static void NAME(turned_times)(const struct kern_args *a, const struct NAME(rows) * r, const float *x,
                               size_t tokens, float *out, size_t pitch)
{
    uint32_t dtype = a->in_dtype[r->input];
    const unsigned char *w =
        (const unsigned char *)a->in[r->input] + r->expert * r->n * r->k * (dtype == D0_F32 ? 4 : 2);
    size_t most = TURNED_SUMS / 16 / tokens / 16 * 16, last = r->first + r->count;
    for (size_t j = r->first; j < last; j += most) {
        size_t count = last - j < most ? last - j : most;
        float *to = out + r->column + (j - r->first);
        if (dtype == D0_F32)
            NAME(turned_block)(w, D0_F32, r, j, count, x, tokens, to, pitch);
        else if (dtype == D0_BF16)
            NAME(turned_block)(w, D0_BF16, r, j, count, x, tokens, to, pitch);
        else
            NAME(turned_block)(w, D0_F16, r, j, count, x, tokens, to, pitch);
    }
    for (size_t t = 0; t < tokens && a->in[r->bias]; t++)
        for (size_t i = 0; i < r->count; i++)
            out[t * pitch + r->column + i] +=
                ref_load(a->in[r->bias], a->in_dtype[r->bias], r->expert * r->n + r->first + i);
}

/* out[tokens, pitch]: rows r times x[tokens, k]. widened: of these rows, or NULL */
static void NAME(expert_times)(const struct kern_args *a, const struct NAME(moe) * m,
                               const struct NAME(rows) * r, const unsigned char *widened, const float *x,
                               size_t tokens, float *out, size_t pitch)
{
    uint32_t dtype = a->in_dtype[r->input], bias_dtype = a->in_dtype[r->bias];
    size_t row = r->expert * r->n + r->first;
    const unsigned char *bias = a->in[r->bias];
    struct NAME(tile) t = {.x = x,
                           .w = widened,
                           .bias = bias ? bias + row * (bias_dtype == D0_F32 ? 4 : 2) : NULL,
                           .out = out + r->column,
                           .state = m->state,
                           .k = r->k,
                           .pitch = r->k,
                           .n = pitch,
                           .segments = 1,
                           .bias_dtype = bias_dtype};
    if (widened) {
        NAME(wide_chunk)(&t, &m->wide[r->input == 3], tokens, r->count);
        return;
    }
    if (m->turned) {
        NAME(turned_times)(a, r, x, tokens, out, pitch);
        return;
    }
    t.w = (const unsigned char *)a->in[r->input] + row * r->k * (dtype == D0_F32 ? 4 : 2);
    NAME(direct_block)(&t, dtype, 0, r->count, tokens);
}

/* Are these so many tokens (or so stored) that rows are widened into scratch? */
static bool NAME(many)(const struct NAME(moe) * m, size_t tokens)
{
    return m->coded || tokens > (m->turned ? TURNED_TOKENS : DIRECT_TOKENS);
}

/* ---- phase 0: places of pairs -------------------------------------------------------------------------- */

static void NAME(experts_place)(const struct kern_args *a, const struct NAME(moe) * m)
{
    const int32_t *ids = a->in[1]; /* [pairs] */
    int64_t known = (int64_t)m->n, all = known + a->attr[D0_ATTR_ZERO].i;
    memset(m->begin, 0, (m->n + 1) * sizeof *m->begin);
    for (size_t i = 0; i < m->pairs; i++) {
        m->place[i] = ids[i] < 0 || ids[i] >= all ? NO_EXPERT : IDENTITY;
        if (ids[i] >= 0 && ids[i] < known)
            m->begin[ids[i] + 1]++;
        m->order[i] = (int32_t)i;
        if (!m->grouped && ids[i] >= 0 && ids[i] < known)
            m->place[i] = (int32_t)i;
    }
    if (!m->grouped)
        return;
    for (size_t e = 0; e < m->n; e++)
        m->begin[e + 1] += m->begin[e];
    for (size_t i = 0; i < m->pairs; i++)
        if (ids[i] >= 0 && ids[i] < known) {
            m->place[i] = m->begin[ids[i]]++;
            m->order[m->place[i]] = (int32_t)i;
        }
    for (size_t e = m->n; e > 0; e--) /* each begin has moved to the next one's */
        m->begin[e] = m->begin[e - 1];
    m->begin[0] = 0;
}

/* Row i of those that are rounded: of a token, or of a pair and weighted. */
static void NAME(round_x)(const struct kern_args *a, const struct NAME(moe) * m, size_t i)
{
    bool weighted = a->attr[D0_ATTR_INPUT_WEIGHTED].i != 0;
    const float *x = (const float *)a->in[0] + (weighted ? i / m->slots : i) * m->d;
    float *to = m->rounded + i * m->d;
    for (size_t c = 0; c < m->d && weighted; c++)
        to[c] = ((const float *)a->in[2])[i] * x[c];
    tensor_round_row(m->rounding, (float)a->attr[D0_ATTR_X_SCALE].f, weighted ? to : x, m->d, to);
}

/* ---- phase 2: inner values ----------------------------------------------------------------------------- */

static void NAME(round_h)(const struct kern_args *a, const struct NAME(moe) * m, size_t first, size_t last)
{
    size_t live = (size_t)m->begin[m->n]; /* grouped: places past it are nobody's */
    for (size_t i = first; i < last; i++)
        if (m->grouped ? i < live : m->place[i] >= 0)
            tensor_round_row(m->rounding, (float)a->attr[D0_ATTR_H_SCALE].f, m->h + i * m->inter, m->inter,
                             m->h + i * m->inter);
}

/* ---- phase 1: inner columns ---------------------------------------------------------------------------- */

/* Rows of gate and up for inner columns first.. of one expert; how many ranges they are. */
static size_t NAME(inner_rows)(const struct kern_args *a, const struct NAME(moe) * m, size_t e, size_t first,
                               size_t count, struct NAME(rows) r[2])
{
    int64_t layout = a->attr[D0_ATTR_LAYOUT].i;
    bool fused = layout == 1 || layout == 2;
    r[0] = (struct NAME(rows)){4, 6, e, fused ? 2 * m->inter : m->inter, m->d, first, count, 0};
    r[1] = r[0];
    r[1].column = INNER_COLUMNS;
    if (layout == 2) {
        r[0].first = 2 * first;
        r[0].count = 2 * count;
        return 1;
    }
    if (layout == 1) {
        r[1].first += m->inter;
        return 2;
    }
    r[1].input = 5;
    r[1].bias = 7;
    if (layout == 3)
        r[0] = r[1];
    return layout == 3 ? 1 : 2;
}

/* Rows of x of the pairs at places from.., next to each other, weighted if the input is. */
static const float *NAME(gather)(const struct kern_args *a, const struct NAME(moe) * m, size_t from,
                                 size_t tokens)
{
    const float *x = a->in[0], *weights = a->in[2];
    bool weighted = a->attr[D0_ATTR_INPUT_WEIGHTED].i != 0;
    if (m->rounding) {
        for (size_t i = 0; i < tokens; i++) {
            size_t pair = (size_t)m->order[from + i];
            memcpy(m->x + i * m->d, m->rounded + (weighted ? pair : pair / m->slots) * m->d,
                   m->d * sizeof *m->x);
        }
        return m->x;
    }
    if (tokens == 1 && !weighted)
        return x + (size_t)m->order[from] / m->slots * m->d;
    for (size_t i = 0; i < tokens; i++) {
        size_t pair = (size_t)m->order[from + i];
        const float *row = x + pair / m->slots * m->d;
        float *to = m->x + i * m->d;
        if (!weighted) {
            memcpy(to, row, m->d * sizeof *to);
            continue;
        }
        size_t c = 0;
        for (lanes w = lanes_set1(weights[pair]); c + 16 <= m->d; c += 16)
            lanes_store(to + c, lanes_mul(w, lanes_load(row + c)));
        for (; c < m->d; c++)
            to[c] = weights[pair] * row[c];
    }
    return m->x;
}

/* h[tokens, count] of the products */
static void NAME(inner_activate)(const struct kern_args *a, const struct NAME(moe) * m, size_t tokens,
                                 size_t count, float *h)
{
    int64_t layout = a->attr[D0_ATTR_LAYOUT].i;
    for (size_t i = 0; i < tokens; i++) {
        const float *p = m->products + i * 2 * INNER_COLUMNS, *up = p + INNER_COLUMNS;
        float apart[2 * INNER_COLUMNS];
        if (layout == 2) {
            for (size_t c = 0; c < count; c++) {
                apart[c] = p[2 * c];
                apart[INNER_COLUMNS + c] = p[2 * c + 1];
            }
            p = apart;
            up = apart + INNER_COLUMNS;
        }
        if (layout == 3)
            NAME(act_run)(a, up, h + i * m->inter, count);
        else
            NAME(glu_run)(a, p, up, h + i * m->inter, count);
    }
}

/* Inner columns first..last of expert e for the pairs at places begin..end. */
static void NAME(inner_expert)(const struct kern_args *a, const struct NAME(moe) * m, size_t e, size_t begin,
                               size_t end, size_t first, size_t last)
{
    bool many = NAME(many)(m, end - begin);
    size_t block = many ? m->columns[0] : INNER_COLUMNS, pass = many ? PASS_TOKENS : end - begin;
    const float *x = many ? NULL : NAME(gather)(a, m, begin, pass);
    for (size_t j = first; j < last; j += block) {
        struct NAME(rows) r[2];
        unsigned char *widened[2] = {NULL, NULL};
        size_t count = last - j < block ? last - j : block, ranges = NAME(inner_rows)(a, m, e, j, count, r);
        for (size_t k = 0; k < ranges && many; k++) {
            widened[k] = m->widened + k * (m->columns[0] / TILE_ROWS) * m->wide[0].tile_bytes;
            NAME(expert_widen)(a, m, &r[k], &m->wide[0], widened[k]);
        }
        for (size_t i = begin; i < end; i += pass) {
            size_t tokens = end - i < pass ? end - i : pass;
            x = many ? NAME(gather)(a, m, i, tokens) : x;
            for (size_t k = 0; k < ranges; k++)
                NAME(expert_times)(a, m, &r[k], widened[k], x, tokens, m->products, 2 * INNER_COLUMNS);
            NAME(inner_activate)(a, m, tokens, count, m->h + i * m->inter + j);
        }
    }
}

/* ---- phase 3: output columns --------------------------------------------------------------------------- */

/* Outputs first.. of expert e for the pairs at places begin..end. */
static void NAME(outer_expert)(const struct kern_args *a, const struct NAME(moe) * m, size_t e, size_t begin,
                               size_t end, size_t first, size_t count)
{
    bool many = NAME(many)(m, end - begin);
    size_t pass = many ? PASS_TOKENS : end - begin, block = many ? m->wide[1].tiles * TILE_ROWS : count;
    for (size_t j = 0; j < count; j += block) {
        struct NAME(rows) r = {3, 8, e, m->d, m->inter, first + j, count - j < block ? count - j : block, j};
        if (many)
            NAME(expert_widen)(a, m, &r, &m->wide[1], m->widened);
        for (size_t i = begin; i < end; i += pass)
            NAME(expert_times)
        (a, m, &r, many ? m->widened : NULL, m->h + i * m->inter, end - i < pass ? end - i : pass,
         m->slot + i * m->columns[1], m->columns[1]);
    }
}

/* out[n] += weight * y[n] */
static void NAME(add_weighted)(float weight, const float *y, size_t n, float *out)
{
    lanes w = lanes_set1(weight);
    for (size_t i = 0; i < n; i += 16) {
        size_t k = n - i < 16 ? n - i : 16;
        if (k == 16)
            lanes_store(out + i, lanes_add(lanes_load(out + i), lanes_mul(w, lanes_load(y + i))));
        else
            lanes_store_n(out + i, k,
                          lanes_add(lanes_load_n(out + i, k), lanes_mul(w, lanes_load_n(y + i, k))));
    }
}

/* Columns first.. of one token: its slots in their order. */
static void NAME(sum_slots)(const struct kern_args *a, const struct NAME(moe) * m, size_t t, size_t first,
                            size_t count)
{
    const float *weights = (const float *)a->in[2] + t * m->slots,
                *x = (const float *)a->in[0] + t * m->d + first;
    float *out = (float *)a->out[0] + t * m->d + first;
    const int32_t *place = m->place + t * m->slots;
    bool inside = a->attr[D0_ATTR_INPUT_WEIGHTED].i != 0, good = true;
    for (size_t k = 0; k < m->slots; k++)
        good = good && place[k] != NO_EXPERT;
    for (size_t c = 0; c < count; c++)
        out[c] = good ? 0 : NAN;
    for (size_t k = 0; k < m->slots && good; k++)
        if (place[k] == IDENTITY)
            NAME(add_weighted)(weights[k], x, count, out);
        else
            NAME(add_weighted)
    (inside ? 1.0f : weights[k], m->slot + (size_t)place[k] * m->columns[1], count, out);
}

/* Columns first.. of one phase for the pairs at places begin..end, all of expert e. */
static void NAME(experts_pairs)(const struct kern_args *a, const struct NAME(moe) * m, size_t e, size_t begin,
                                size_t end, size_t first, size_t count)
{
    if (a->phase == 1)
        NAME(inner_expert)(a, m, e, begin, end, first, first + count);
    else
        NAME(outer_expert)(a, m, e, begin, end, first, count);
}

static void NAME(experts)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const int32_t *ids = a->in[1]; /* [pairs] */
    struct NAME(moe) m = NAME(moe_of)(a, thread);
    if (a->phase == 0) {
        if (first == 0)
            NAME(experts_place)(a, &m);
        for (size_t i = first ? first : 1; i < last; i++)
            NAME(round_x)(a, &m, i - 1);
        return;
    }
    if (a->phase == 2) {
        NAME(round_h)(a, &m, first, last);
        return;
    }
    size_t block = a->phase == 1 ? last - first : m.columns[1];
    for (size_t j = first; j < last; j += block) {
        size_t count = last - j < block ? last - j : block;
        for (size_t e = 0; m.grouped && e < m.n; e++)
            if (m.begin[e] != m.begin[e + 1])
                NAME(experts_pairs)(a, &m, e, (size_t)m.begin[e], (size_t)m.begin[e + 1], j, count);
        for (size_t i = 0; !m.grouped && i < m.pairs; i++)
            if (m.place[i] >= 0)
                NAME(experts_pairs)(a, &m, (size_t)ids[i], i, i + 1, j, count);
        for (size_t t = 0; t < (size_t)a->n_rows && a->phase == 3; t++)
            NAME(sum_slots)(a, &m, t, j, count);
    }
}
