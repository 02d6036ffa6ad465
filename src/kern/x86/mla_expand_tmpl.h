/* SPDX-License-Identifier: Apache-2.0
 *
 * MLA: items, and the expanded form (attribute `form` 1), compiled once per instruction set. In the expanded
 * form the keys Wk c (and the rotated part) and the values Wv c of one head are made for a block of positions
 * at a time, by the tiles of LINEAR; then a run of rows attends to them as to any keys and values.
 *
 * Per row and key it costs nope + rope + v_dim multiply-adds and not 2 latent + rope, but (nope + v_dim)
 * latent for each key, which the rows of the run share. So only a long enough run of rows of one sequence is
 * expanded; all other rows, and those that choose their keys, are absorbed as ever. Which form computes a row
 * depends on the rows beside it: not the bits of the definition, and not the same bits in other chunks.
 */
#define EXPAND_KEYS  64  /* positions of one block */
#define EXPAND_TOKEN 8   /* rows whose scores are made together */
#define EXPAND_ROWS  512 /* of the longest run: rows [512 i, 512 (i + 1)) of the step */
#define EXPAND_PITCH (EXPAND_KEYS + 16)

struct NAME(expand) {
    struct NAME(mla) m;
    struct NAME(wide) wide;    /* of rows of kv_b */
    size_t latent, key, value; /* widths of a row of c, k, v; that of v in whole tiles */
    unsigned char *wk, *wv;    /* widened rows of kv_b of one head, tile by tile */
    struct NAME(state) * state;
    float *c, *k, *v;             /* [EXPAND_KEYS, latent], [EXPAND_KEYS, key], [EXPAND_KEYS, value] */
    float *scores;                /* [EXPAND_TOKEN, EXPAND_PITCH] */
    struct NAME(online) * online; /* [EXPAND_ROWS] */
};

static size_t NAME(tiles_of)(size_t rows)
{
    return (rows + TILE_ROWS - 1) / TILE_ROWS;
}

/* Sizes, addresses from `room` on; bytes: how many there are. */
static struct NAME(expand) NAME(expand_of)(const struct kern_args *a, unsigned char *room, size_t *bytes)
{
    struct NAME(expand) x = {.m = NAME(mla_sizes)(a, room)};
    x.wide = NAME(wide_sizes)(x.m.latent, 1);
    x.latent = ALIGN_UP(x.m.latent, 16);
    x.key = x.m.nope + x.m.rope;
    x.value = ALIGN_UP(x.m.v_dim, TIMES_WIDE);
    size_t keys = NAME(tiles_of)(x.m.nope) * x.wide.tile_bytes,
           values = NAME(tiles_of)(x.m.v_dim) * x.wide.tile_bytes,
           states = CHUNK_TILES * (WIDE_MAX_ROWS / TILE_ROWS) * sizeof *x.state,
           /* the last row of k is written in whole vectors */
        floats[4] = {EXPAND_KEYS * x.latent, ALIGN_UP(EXPAND_KEYS * x.key + 16, 16), EXPAND_KEYS * x.value,
                     EXPAND_TOKEN * EXPAND_PITCH};
    *bytes = keys + values + states + (floats[0] + floats[1] + floats[2] + floats[3]) * sizeof(float) +
             EXPAND_ROWS * sizeof *x.online;
    if (!room)
        return x;
    x.wk = room;
    x.wv = x.wk + keys;
    x.state = (void *)(x.wv + values);
    x.c = (float *)(x.wv + values + states);
    x.k = x.c + floats[0];
    x.v = x.k + floats[1];
    x.scores = x.v + floats[2];
    x.online = (void *)(x.scores + floats[3]);
    return x;
}

static size_t NAME(mla_scratch)(const struct kern_args *a)
{
    size_t absorbed = NAME(mla_absorbed_scratch)(a), expanded = 0;
    if (a->attr[D0_ATTR_FORM].i == 1)
        NAME(expand_of)(a, NULL, &expanded);
    return absorbed > expanded ? absorbed : expanded;
}

/* ---- runs of rows -------------------------------------------------------------------------------------- */

/* Neighbouring rows of one sequence at neighbouring positions. */
struct NAME(run) {
    size_t first, n;
};

static bool NAME(follows)(const struct kern_args *a, size_t t)
{
    const int32_t *positions = a->in[3], *seq_of = a->in[4];
    return seq_of[t] == seq_of[t - 1] && positions[t - 1] >= 0 && positions[t] - 1 == positions[t - 1];
}

static struct NAME(run) NAME(run_of)(const struct kern_args *a, size_t t)
{
    size_t begin = t / EXPAND_ROWS * EXPAND_ROWS, end = begin + EXPAND_ROWS;
    struct NAME(run) r = {t, 1};
    end = end < (size_t)a->n_rows ? end : (size_t)a->n_rows;
    for (; r.first > begin && NAME(follows)(a, r.first); r.n++)
        r.first--;
    while (r.first + r.n < end && NAME(follows)(a, r.first + r.n))
        r.n++;
    return r;
}

/* Is a run computed with fewer multiply-adds when it is expanded, and are all its pages there? */
static bool NAME(expands)(const struct kern_args *a, const struct NAME(mla) * m, struct NAME(run) r)
{
    const int32_t *positions = a->in[3], *seq_of = a->in[4];
    if (a->attr[D0_ATTR_FORM].i != 1 || a->in[6] || r.n < 2 || positions[r.first] < 0)
        return false;
    int64_t tokens = a->in_dims[1][2], last = positions[r.first + r.n - 1];
    double n = (double)r.n, keys = (double)last + 1, each = keys - (n - 1) / 2,
           kv_b = (double)((m->nope + m->v_dim) * m->latent);
    double absorbed = n * (kv_b + each * (double)(2 * m->latent + m->rope)),
           expanded = keys * kv_b + n * each * (double)(m->nope + m->rope + m->v_dim);
    if (expanded >= absorbed)
        return false;
    for (int64_t p = 0; p <= last; p += tokens)
        if (ref_page_of(a, 1, 5, seq_of[r.first], p) < 0)
            return false;
    return ref_page_of(a, 1, 5, seq_of[r.first], last) >= 0;
}

/* ---- keys and values ----------------------------------------------------------------------------------- */

/* out[EXPAND_KEYS, pitch] = c times `rows` widened rows of kv_b, of n positions */
static void NAME(expand_rows)(const struct NAME(expand) * x, const unsigned char *w, size_t rows, size_t n,
                              float *out, size_t pitch)
{
    for (size_t r = 0; r < rows; r += WIDE_MAX_ROWS)
        for (size_t i = 0; i < n; i += CHUNK_TILES * TILE_TOKENS) {
            struct NAME(tile) t = {.x = x->c + i * x->latent,
                                   .w = w + r / TILE_ROWS * x->wide.tile_bytes,
                                   .out = out + i * pitch + r,
                                   .state = x->state,
                                   .k = x->m.latent,
                                   .pitch = x->latent,
                                   .n = pitch,
                                   .segments = 1};
            NAME(wide_chunk)
            (&t, &x->wide, n - i < CHUNK_TILES * TILE_TOKENS ? n - i : CHUNK_TILES * TILE_TOKENS,
             rows - r < WIDE_MAX_ROWS ? rows - r : WIDE_MAX_ROWS);
        }
}

/* Keys and values of n positions from `from` on. */
INLINE void NAME(expand_keys)(const struct kern_args *a, const struct NAME(expand) * x, const uint32_t dtype,
                              int64_t seq, int64_t from, size_t n)
{
    int64_t tokens = a->in_dims[1][2];
    for (size_t i = 0; i < n; i++) {
        int64_t p = from + (int64_t)i, page = ref_page_of(a, 1, 5, seq, p);
        size_t at = (size_t)(page * tokens + p % tokens) * x->m.width;
        NAME(mla_widen_plain)(a->in[1], dtype, at, x->m.latent, x->c + i * x->latent);
        /* what whole vectors write past a row is written anew, by the next row or by the products */
        NAME(mla_widen_plain)
        (a->in[1], dtype, at + x->m.latent, x->m.rope, x->k + i * x->key + x->m.nope);
    }
    NAME(expand_rows)(x, x->wk, x->m.nope, n, x->k, x->key);
    NAME(expand_rows)(x, x->wv, x->m.v_dim, n, x->v, x->value);
}

/* ---- attention ----------------------------------------------------------------------------------------- */

/* ROWS rows of out take up the values of the first n keys: out = out * shrink + sum of scores * v. */
INLINE void NAME(expand_weigh)(const size_t ROWS, const struct NAME(expand) * x, const float *scores,
                               const float *shrink, size_t from, size_t to, float *out, size_t pitch)
{
    for (size_t d = 0; d < x->m.v_dim; d += TIMES_WIDE) {
        size_t wide = x->m.v_dim - d < TIMES_WIDE ? x->m.v_dim - d : TIMES_WIDE;
        lanes acc[TIMES_OUTPUTS];
        for (size_t o = 0; o < ROWS * TIMES_VECTORS; o++)
            acc[o] = lanes_mul(NAME(part_load)(out + o / TIMES_VECTORS * pitch + d, wide, o % TIMES_VECTORS),
                               lanes_set1(shrink[o / TIMES_VECTORS]));
        NAME(times)
        (ROWS, TIMES_VECTORS, scores + from, EXPAND_PITCH, x->v + from * x->value + d, x->value, to - from,
         acc);
        for (size_t o = 0; o < ROWS * TIMES_VECTORS; o++)
            NAME(part_store)(out + o / TIMES_VECTORS * pitch + d, wide, o % TIMES_VECTORS, acc[o]);
    }
}

/* Up to EXPAND_TOKEN rows from `t` on, of head h, take up n keys from position `from` on. */
static void NAME(expand_attend)(const struct kern_args *a, const struct NAME(expand) * x, size_t h, size_t t,
                                size_t rows, int64_t from, size_t n, struct NAME(online) * o)
{
    const int32_t *positions = a->in[3];
    size_t q_pitch = x->m.heads * x->key, pitch = x->m.heads * x->m.v_dim, sees[EXPAND_TOKEN];
    float *out = (float *)a->out[0] + t * pitch + h * x->m.v_dim, shrink[EXPAND_TOKEN];
    static const float keep = 1.0f;
    struct NAME(state) state;
    struct NAME(tile) scores = {.x = (const float *)a->in[0] + t * q_pitch + h * x->key,
                                .w = (const unsigned char *)x->k,
                                .out = x->scores,
                                .state = &state,
                                .k = x->key,
                                .pitch = q_pitch,
                                .n = EXPAND_PITCH,
                                .segments = 1};
    NAME(direct_block)(&scores, D0_F32, 0, n, rows);
    lanes scale = lanes_set1((float)a->scale);
    for (size_t r = 0; r < rows; r++) {
        float *s = x->scores + r * EXPAND_PITCH;
        int64_t own = positions[t + r] - from + 1;
        struct ref_run run = {0, own < 0 ? 0 : own < (int64_t)n ? (size_t)own : n};
        sees[r] = run.to;
        shrink[r] = 1;
        if (run.to == 0)
            continue;
        for (size_t i = 0; i < run.to; i += 16)
            lanes_store(s + i, lanes_mul(lanes_load(s + i), scale));
        NAME(clear_gaps)(&run, 1, s);
        shrink[r] = NAME(online_page)(&o[r], &run, 1, s);
    }
    for (size_t r = 0, each; r < rows; r += each) {
        each = rows - r < TIMES_ROWS ? 1 : TIMES_ROWS; /* positions ascend: the first row sees fewest keys */
        const float *s = x->scores + r * EXPAND_PITCH;
        if (each == 1) {
            NAME(expand_weigh)(1, x, s, shrink + r, 0, sees[r], out + r * pitch, pitch);
            continue;
        }
        NAME(expand_weigh)(TIMES_ROWS, x, s, shrink + r, 0, sees[r], out + r * pitch, pitch);
        for (size_t k = 1; k < each; k++)
            if (sees[r + k] > sees[r])
                NAME(expand_weigh)
        (1, x, s + k * EXPAND_PITCH, &keep, sees[r], sees[r + k], out + (r + k) * pitch, pitch);
    }
}

/* Head h of the rows of a run. */
INLINE void NAME(mla_expanded)(const struct kern_args *a, const struct NAME(expand) * x, const uint32_t dtype,
                               struct NAME(run) r, size_t h)
{
    const int32_t *positions = a->in[3];
    size_t row = h * (x->m.nope + x->m.v_dim), pitch = x->m.heads * x->m.v_dim;
    float *out = (float *)a->out[0] + r.first * pitch + h * x->m.v_dim;
    int64_t seq = ((const int32_t *)a->in[4])[r.first], keys = (int64_t)positions[r.first + r.n - 1] + 1;
    NAME(widen)(a, 2, x->m.latent, &x->wide, 1, row, row + x->m.nope, x->wk);
    NAME(widen)(a, 2, x->m.latent, &x->wide, 1, row + x->m.nope, row + x->m.nope + x->m.v_dim, x->wv);
    for (size_t t = 0; t < r.n; t++) {
        x->online[t] = (struct NAME(online)){-INFINITY, 0};
        memset(out + t * pitch, 0, x->m.v_dim * sizeof *out);
    }
    for (int64_t from = 0; from < keys; from += EXPAND_KEYS) {
        size_t n = keys - from < EXPAND_KEYS ? (size_t)(keys - from) : EXPAND_KEYS;
        NAME(expand_keys)(a, x, dtype, seq, from, n);
        for (size_t t = 0; t < r.n; t += EXPAND_TOKEN) {
            size_t rows = r.n - t < EXPAND_TOKEN ? r.n - t : EXPAND_TOKEN;
            if (positions[r.first + t + rows - 1] >= from)
                NAME(expand_attend)(a, x, h, r.first + t, rows, from, n, x->online + t);
        }
    }
    for (size_t t = 0; t < r.n; t++)
        for (size_t d = 0; d < x->m.v_dim; d++)
            out[t * pitch + d] /= x->online[t].sum;
}

/* ---- items --------------------------------------------------------------------------------------------- */

/* The run of row t, at most up to row `end`: true where it is expanded. Its rows before t are in *r, too. */
static bool NAME(next_run)(const struct kern_args *a, const struct NAME(mla) * m, size_t t, size_t end,
                           struct NAME(run) * r, size_t *next)
{
    *r = (struct NAME(run)){t, end - t};
    if (a->attr[D0_ATTR_FORM].i == 1)
        *r = NAME(run_of)(a, t);
    *next = r->first + r->n < end ? r->first + r->n : end;
    return NAME(expands)(a, m, *r);
}

/* A tile of tokens and a group of heads: the rows that are absorbed, and of each expanded run the heads that
 * fall to this one of its tiles. */
INLINE void NAME(mla_item)(const struct kern_args *a, unsigned char *room, const uint32_t dtype, size_t tile,
                           size_t head)
{
    size_t end = (tile + 1) * MLA_TOKENS, begin = tile * MLA_TOKENS, bytes, heads;
    struct NAME(mla) m = NAME(mla_sizes)(a, room);
    struct NAME(expand) x = NAME(expand_of)(a, room, &bytes);
    end = end < (size_t)a->n_rows ? end : (size_t)a->n_rows;
    heads = m.heads - head < MLA_HEADS ? m.heads - head : MLA_HEADS;
    for (size_t t = begin, next; t <= end; t = next) {
        struct NAME(run) r = {0, 0};
        bool expanded = t < end && NAME(next_run)(a, &m, t, end, &r, &next);
        if ((expanded || t == end) && begin < t)
            NAME(mla_absorbed)(a, &m, dtype, head, heads, begin, t - begin);
        if (t == end)
            break;
        size_t first = r.first / MLA_TOKENS, tiles = (r.first + r.n - 1) / MLA_TOKENS - first + 1;
        for (size_t g = 0; expanded && g < heads; g++)
            if (first + g % tiles == tile)
                NAME(mla_expanded)(a, &x, dtype, r, head + g);
        begin = expanded ? next : begin;
    }
}

INLINE void NAME(mla_of_type)(const struct kern_args *a, const uint32_t dtype, size_t first, size_t last,
                              unsigned thread)
{
    unsigned char *room = (unsigned char *)a->scratch + (size_t)thread * a->scratch_bytes;
    size_t tiles = NAME(mla_tiles)(a);
    for (size_t item = first; item < last; item++)
        NAME(mla_item)(a, room, dtype, item % tiles, item / tiles * MLA_HEADS);
}

static void NAME(mla_f32)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    NAME(mla_of_type)(a, D0_F32, first, last, thread);
}

static void NAME(mla_bf16)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    NAME(mla_of_type)(a, D0_BF16, first, last, thread);
}

static void NAME(mla_f16)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    NAME(mla_of_type)(a, D0_F16, first, last, thread);
}
