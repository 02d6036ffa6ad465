/* SPDX-License-Identifier: Apache-2.0
 *
 * MLA in its absorbed form, the definition, compiled once per instruction set. An item is a few heads for a
 * few tokens: the rows of kv_b of these heads are widened block by block into scratch, once for all the
 * tokens; each token then walks its latent pages once for all the heads, with the blocks and the online
 * softmax of ATTENTION.
 *
 * No grouping changes a bit. An absorbed query adds the rows of Wk in order, each element for itself; a score
 * is one chain of sixteen lanes along [latent, rotated part], a value one such chain along the latent.
 */
#define MLA_TOKENS 8  /* of an item */
#define MLA_ROWS   8  /* of kv_b, widened at a time */
#define MLA_CHAINS 16 /* of the largest tile */

struct NAME(mla) {
    size_t heads, nope, rope, v_dim, latent, width; /* width: latent + rope, of one row of a page */
    size_t pitch;                                   /* of a query: width in whole vectors */
    float *queries; /* [MLA_TOKENS, MLA_HEADS, pitch]; later sums of latents */
    float *rows;    /* [MLA_ROWS, pitch] of kv_b */
    float *scores;  /* [MLA_HEADS, KERN_MAX_PAGE_TOKENS + 16] */
    float *acc;     /* [MLA_HEADS, pitch] */
    int32_t *chosen;
};

#define MLA_SCORES (KERN_MAX_PAGE_TOKENS + 16)

static struct NAME(mla) NAME(mla_sizes)(const struct kern_args *a, void *scratch)
{
    struct NAME(mla) m = {.heads = (size_t)a->heads,
                          .nope = (size_t)a->attr[D0_ATTR_NOPE].i,
                          .rope = (size_t)a->attr[D0_ATTR_ROPE].i,
                          .v_dim = (size_t)a->v_dim,
                          .latent = (size_t)a->attr[D0_ATTR_LATENT].i};
    m.width = m.latent + m.rope;
    m.pitch = (m.width + 15) / 16 * 16;
    if (!scratch)
        return m; /* sizes only */
    m.queries = scratch;
    m.rows = m.queries + MLA_TOKENS * MLA_HEADS * m.pitch;
    m.scores = m.rows + MLA_ROWS * m.pitch;
    m.acc = m.scores + MLA_HEADS * MLA_SCORES;
    m.chosen = (int32_t *)(m.acc + MLA_HEADS * m.pitch);
    return m;
}

static size_t NAME(mla_absorbed_scratch)(const struct kern_args *a)
{
    size_t pitch = (size_t)(a->attr[D0_ATTR_LATENT].i + a->attr[D0_ATTR_ROPE].i + 15) / 16 * 16;
    return ((MLA_TOKENS * MLA_HEADS + MLA_ROWS + MLA_HEADS) * pitch + MLA_HEADS * MLA_SCORES) *
               sizeof(float) +
           (size_t)a->in_dims[6][1] * sizeof(int32_t);
}

/* Items run through the tiles of tokens of one group of heads, then the next group. */
static size_t NAME(mla_tiles)(const struct kern_args *a)
{
    return ((size_t)a->n_rows + MLA_TOKENS - 1) / MLA_TOKENS;
}

static size_t NAME(mla_items)(const struct kern_args *a)
{
    return NAME(mla_tiles)(a) * (((size_t)a->heads + MLA_HEADS - 1) / MLA_HEADS);
}

/* ---- rows of kv_b -------------------------------------------------------------------------------------- */

INLINE void NAME(mla_widen_plain)(const void *w, const uint32_t dtype, size_t at, size_t n, float *out)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        lanes_store(out + i, lanes_load_any(w, dtype, at + i));
    if (i < n)
        lanes_store(out + i, lanes_load_any_n(w, dtype, at + i, n - i));
}

/* n rows of kv_b from `row` on, zeroes up to whole vectors; the MLA_ROWS - n after them zero. */
static void NAME(mla_rows)(const struct kern_args *a, const struct NAME(mla) * m, size_t row, size_t n)
{
    size_t latent = m->latent, padded = (latent + 15) / 16 * 16;
    for (size_t r = 0; r < MLA_ROWS; r++) {
        float *out = m->rows + r * m->pitch;
        if (r >= n)
            memset(out, 0, padded * sizeof *out);
        else if (a->in_dtype[2] == D0_F32)
            NAME(mla_widen_plain)(a->in[2], D0_F32, (row + r) * latent, latent, out);
        else if (a->in_dtype[2] == D0_BF16)
            NAME(mla_widen_plain)(a->in[2], D0_BF16, (row + r) * latent, latent, out);
        else if (a->in_dtype[2] == D0_F16)
            NAME(mla_widen_plain)(a->in[2], D0_F16, (row + r) * latent, latent, out);
        else {
            ref_row(a, 2, row + r, latent, out);
            memset(out + latent, 0, (padded - latent) * sizeof *out);
        }
    }
}

/* query[l] += sum over rows in order of q[r] * rows[r][l] */
INLINE void NAME(mla_add_rows)(const struct NAME(mla) * m, const float *q, size_t n, float *query)
{
    for (size_t l = 0; l < m->latent; l += 16) {
        lanes sum = lanes_load(query + l);
        if (n == MLA_ROWS)
            for (size_t r = 0; r < MLA_ROWS; r++)
                sum = lanes_fma(lanes_set1(q[r]), lanes_load(m->rows + r * m->pitch + l), sum);
        else
            for (size_t r = 0; r < n; r++)
                sum = lanes_fma(lanes_set1(q[r]), lanes_load(m->rows + r * m->pitch + l), sum);
        lanes_store(query + l, sum);
    }
}

/* The queries of head h, the g-th of its group: Wk^T q_nope, then the rotated part, then zeroes. */
static void NAME(mla_absorb)(const struct kern_args *a, const struct NAME(mla) * m, size_t h, size_t g,
                             size_t token, size_t tokens)
{
    size_t head = m->nope + m->rope;
    const float *q = (const float *)a->in[0] + (token * m->heads + h) * head; /* [T, heads * head] */
    for (size_t t = 0; t < tokens; t++)
        memset(m->queries + (t * MLA_HEADS + g) * m->pitch, 0, m->pitch * sizeof *m->queries);
    for (size_t d = 0; d < m->nope; d += MLA_ROWS) {
        size_t n = m->nope - d < MLA_ROWS ? m->nope - d : MLA_ROWS;
        NAME(mla_rows)(a, m, h * (m->nope + m->v_dim) + d, n);
        for (size_t t = 0; t < tokens; t++)
            NAME(mla_add_rows)
        (m, q + t * m->heads * head + d, n, m->queries + (t * MLA_HEADS + g) * m->pitch);
    }
    for (size_t t = 0; t < tokens; t++)
        memcpy(m->queries + (t * MLA_HEADS + g) * m->pitch + m->latent, q + t * m->heads * head + m->nope,
               m->rope * sizeof *q);
}

/* out[v_dim] of head h and all tokens: Wv times the sums of latents that lie where the queries were */
static void NAME(mla_values)(const struct kern_args *a, const struct NAME(mla) * m, size_t h, size_t g,
                             size_t token, size_t tokens)
{
    float *out = (float *)a->out[0] + (token * m->heads + h) * m->v_dim; /* [T, heads * v_dim] */
    for (size_t d = 0; d < m->v_dim; d += MLA_ROWS) {
        size_t n = m->v_dim - d < MLA_ROWS ? m->v_dim - d : MLA_ROWS;
        float y[MLA_ROWS];
        NAME(mla_rows)(a, m, h * (m->nope + m->v_dim) + m->nope + d, n);
        for (size_t t = 0; t < tokens; t++) {
            const float *sums = m->queries + (t * MLA_HEADS + g) * m->pitch;
            lanes acc[MLA_ROWS];
            for (size_t r = 0; r < MLA_ROWS; r++)
                acc[r] = lanes_zero();
            for (size_t l = 0; l < m->latent; l += 16) {
                lanes x = lanes_pin(lanes_load(sums + l));
                for (size_t r = 0; r < MLA_ROWS; r++)
                    acc[r] = lanes_fma(x, lanes_load(m->rows + r * m->pitch + l), acc[r]);
            }
            _mm256_storeu_ps(y, lanes_sum8(acc));
            memcpy(out + t * m->heads * m->v_dim + d, y, n * sizeof *y);
        }
    }
}

/* ---- latent pages -------------------------------------------------------------------------------------- */

/* One step of sixteen of KEYS keys with HEADS queries. */
INLINE void NAME(mla_step)(const size_t HEADS, const size_t KEYS, const float *q, size_t pitch,
                           const void *pages, const uint32_t dtype, size_t at, size_t width, const bool tail,
                           size_t n, lanes *acc)
{
    lanes k[MLA_KEYS];
    for (size_t i = 0; i < KEYS; i++)
        k[i] = lanes_pin(tail ? lanes_load_any_n(pages, dtype, at + i * width, n)
                              : lanes_load_any(pages, dtype, at + i * width));
    for (size_t h = 0; h < HEADS; h++) {
        lanes x = lanes_pin(lanes_load(q + h * pitch)); /* zero past the end */
        for (size_t i = 0; i < KEYS; i++)
            acc[h * KEYS + i] = lanes_fma(x, k[i], acc[h * KEYS + i]);
    }
}

/* scores[h][0..KEYS) = scale * query h . key */
INLINE void NAME(mla_tile)(const size_t HEADS, const size_t KEYS, const struct NAME(mla) * m, const float *q,
                           const void *pages, const uint32_t dtype, size_t at, float scale, float *scores)
{
    lanes acc[MLA_CHAINS];
    float sums[MLA_CHAINS];
    size_t l = 0;
    for (size_t i = 0; i < HEADS * KEYS; i++)
        acc[i] = lanes_zero();
    for (; l + 16 <= m->width; l += 16)
        NAME(mla_step)(HEADS, KEYS, q + l, m->pitch, pages, dtype, at + l, m->width, false, 16, acc);
    if (l < m->width)
        NAME(mla_step)
    (HEADS, KEYS, q + l, m->pitch, pages, dtype, at + l, m->width, true, m->width - l, acc);
    size_t i = 0;
    for (; i + 8 <= HEADS * KEYS; i += 8)
        _mm256_storeu_ps(sums + i, lanes_sum8(acc + i));
    for (; i < HEADS * KEYS; i++)
        sums[i] = lanes_sum(acc[i]);
    for (size_t h = 0; h < HEADS; h++)
        for (size_t k = 0; k < KEYS; k++)
            scores[h * MLA_SCORES + k] = sums[h * KEYS + k] * scale;
}

/* Scores of the slots of one run for HEADS heads; at: element where the page starts. */
INLINE void NAME(mla_scores)(const size_t HEADS, const struct NAME(mla) * m, const float *q,
                             const void *pages, const uint32_t dtype, size_t at, float scale,
                             struct ref_run run, float *scores)
{
    size_t i = run.from;
    for (; i + MLA_KEYS <= run.to; i += MLA_KEYS)
        NAME(mla_tile)(HEADS, MLA_KEYS, m, q, pages, dtype, at + i * m->width, scale, scores + i);
    for (; i < run.to; i++)
        NAME(mla_tile)(HEADS, 1, m, q, pages, dtype, at + i * m->width, scale, scores + i);
}

/* acc[h][0..latent) = acc * shrink[h] + sum over slots in order of scores[h][slot] * latent row */
INLINE void NAME(mla_weigh)(const size_t HEADS, const size_t VECTORS, const struct NAME(mla) * m,
                            const void *pages, const uint32_t dtype, size_t at, const float *shrink,
                            const struct ref_run *runs, size_t n_runs, size_t l, const size_t n)
{
    lanes sum[MLA_HEADS * MLA_VECTORS];
    for (size_t h = 0; h < HEADS; h++)
        for (size_t v = 0; v < VECTORS; v++)
            sum[h * VECTORS + v] =
                lanes_mul(lanes_load(m->acc + h * m->pitch + l + 16 * v), lanes_set1(shrink[h]));
    for (size_t r = 0; r < n_runs; r++)
        for (size_t i = runs[r].from; i < runs[r].to; i++) {
            lanes c[MLA_VECTORS];
            for (size_t v = 0; v < VECTORS; v++)
                c[v] = lanes_pin(n < 16 ? lanes_load_any_n(pages, dtype, at + i * m->width + l + 16 * v, n)
                                        : lanes_load_any(pages, dtype, at + i * m->width + l + 16 * v));
            for (size_t h = 0; h < HEADS; h++) {
                lanes p = lanes_set1(m->scores[h * MLA_SCORES + i]);
                for (size_t v = 0; v < VECTORS; v++)
                    sum[h * VECTORS + v] = lanes_fma(p, c[v], sum[h * VECTORS + v]);
            }
        }
    for (size_t h = 0; h < HEADS; h++)
        for (size_t v = 0; v < VECTORS; v++)
            lanes_store(m->acc + h * m->pitch + l + 16 * v, sum[h * VECTORS + v]);
}

/* The visible rows of one page for HEADS heads from the g-th of the group on. */
INLINE void NAME(mla_page)(const size_t HEADS, const struct NAME(mla) * m, const float *q, const void *pages,
                           const uint32_t dtype, size_t at, float scale, const struct ref_run *runs, size_t n,
                           struct NAME(online) * o)
{
    float shrink[MLA_HEADS];
    for (size_t h = 0; h < HEADS; h++)
        NAME(clear_gaps)(runs, n, m->scores + h * MLA_SCORES);
    for (size_t r = 0; r < n; r++)
        NAME(mla_scores)(HEADS, m, q, pages, dtype, at, scale, runs[r], m->scores);
    for (size_t h = 0; h < HEADS; h++)
        shrink[h] = NAME(online_page)(&o[h], runs, n, m->scores + h * MLA_SCORES);
    size_t l = 0;
    for (; l + 16 * MLA_VECTORS <= m->latent; l += 16 * MLA_VECTORS)
        NAME(mla_weigh)(HEADS, MLA_VECTORS, m, pages, dtype, at, shrink, runs, n, l, 16);
    for (; l + 16 <= m->latent; l += 16)
        NAME(mla_weigh)(HEADS, 1, m, pages, dtype, at, shrink, runs, n, l, 16);
    if (l < m->latent)
        NAME(mla_weigh)(HEADS, 1, m, pages, dtype, at, shrink, runs, n, l, m->latent - l);
}

/* One token and HEADS heads: queries become normalised sums of latents; NaN where a page is missing. */
INLINE void NAME(mla_token)(const size_t HEADS, const struct kern_args *a, const struct NAME(mla) * m,
                            const uint32_t dtype, size_t t, float *queries)
{
    const int32_t *positions = a->in[3], *seq_of = a->in[4], *chosen = a->in[6];
    size_t topk = (size_t)a->in_dims[6][1], n;
    int64_t tokens = a->in_dims[1][2];
    struct ref_keys keys = ref_keys_all(positions[t], 0, 0);
    struct ref_run runs[REF_MAX_RUNS];
    struct NAME(online) o[MLA_HEADS];
    bool live = ref_page_of(a, 1, 5, seq_of[t], positions[t]) >= 0;
    if (chosen)
        ref_keys_choose(&keys, chosen + t * topk, topk, 1, m->chosen);
    for (size_t h = 0; h < HEADS; h++) {
        o[h] = (struct NAME(online)){-INFINITY, 0};
        memset(m->acc + h * m->pitch, 0, m->pitch * sizeof *m->acc);
    }
    for (int64_t block; live && (n = ref_keys_page(&keys, tokens, &block, runs)) > 0;) {
        int64_t page = ref_page_of(a, 1, 5, seq_of[t], block * tokens);
        live = page >= 0;
        if (live)
            NAME(mla_page)
        (HEADS, m, queries, a->in[1], dtype, (size_t)(page * tokens) * m->width, (float)a->scale, runs, n, o);
    }
    for (size_t h = 0; h < HEADS; h++)
        for (size_t l = 0; l < m->pitch; l++) {
            float sum = m->acc[h * m->pitch + l] / o[h].sum;
            queries[h * m->pitch + l] = l >= m->latent ? 0 : live ? sum : NAN;
        }
}

/* `heads` heads from `head` on for `tokens` tokens, at most MLA_HEADS and MLA_TOKENS. */
INLINE void NAME(mla_absorbed)(const struct kern_args *a, const struct NAME(mla) * m, const uint32_t dtype,
                               size_t head, size_t heads, size_t token, size_t tokens)
{
    for (size_t g = 0; g < heads; g++)
        NAME(mla_absorb)(a, m, head + g, g, token, tokens);
    for (size_t t = 0; t < tokens; t++) {
        float *queries = m->queries + t * MLA_HEADS * m->pitch;
        if (heads == MLA_HEADS)
            NAME(mla_token)(MLA_HEADS, a, m, dtype, token + t, queries);
        else
            for (size_t g = 0; g < heads; g++)
                NAME(mla_token)(1, a, m, dtype, token + t, queries + g * m->pitch);
    }
    for (size_t g = 0; g < heads; g++)
        NAME(mla_values)(a, m, head + g, g, token, tokens);
}
