/* SPDX-License-Identifier: Apache-2.0
 *
 * DELTA_RULE in its chunked form (attribute `form` 1), compiled once per instruction set: up to sixteen rows
 * of a sequence at a time. With D_t the decay of row t, k, q and v its vectors and S0 the state before:
 *
 *   u_t = beta_t (v_t - S0^T (G_t k_t) - sum over s < t of a_ts u_s),  G_t = D_t .. D_1
 *   o_t = S0^T (G_t q_t) + sum over s <= t of b_ts u_s,                a_ts = k_t . W_ts, b_ts = q_t . W_ts
 *   S   = G S0 + sum over s of W_s u_s^T,                              W_ts = D_t .. D_(s+1) k_s
 *
 * so S0 is read and written once a chunk, and all but the short triangle over u is a product of matrices. W
 * and G are carried from row to row, one decay after the other, as the recurrent form does: decays are at
 * most 1, and nothing is divided by one, so strong decays go to 0 and nothing overflows.
 *
 * Not the bits of the recurrent form: S is rounded once a chunk, and a chunk ends where the rows of the step
 * do. Rows that come alone, or few of them, are taken up by the recurrent form.
 */
#define CHUNK_ROWS  16 /* one of the lanes each */
#define CHUNK_LEAST 4  /* fewer rows are faster one by one */

struct NAME(chunk) {
    size_t n, each;       /* rows; dim in whole vectors */
    float *decay, *k, *q; /* [CHUNK_ROWS, each] */
    float *gk, *gq;       /* [CHUNK_ROWS, each]: G_t k_t, G_t q_t */
    float *gone;          /* [each]: G */
    float *w;             /* [each, CHUNK_ROWS]: W_s */
    float *a, *b;         /* [CHUNK_ROWS, CHUNK_ROWS] */
    float *S;             /* [each, TIMES_WIDE]: columns of S0 */
    float *u;             /* [CHUNK_ROWS, TIMES_WIDE] */
};

static size_t NAME(delta_scratch)(const struct kern_args *a)
{
    size_t each = ALIGN_UP((size_t)a->attr[D0_ATTR_DIM].i, 16), rows = 3 * each;
    if (a->attr[D0_ATTR_FORM].i == 1)
        rows = 5 * CHUNK_ROWS * each + each + CHUNK_ROWS * each + 2 * CHUNK_ROWS * CHUNK_ROWS +
               (each + CHUNK_ROWS) * TIMES_WIDE;
    return rows * sizeof(float);
}

static struct NAME(chunk) NAME(chunk_of)(const struct ref_delta *d, size_t n, float *room)
{
    struct NAME(chunk) c = {.n = n, .each = ALIGN_UP(d->dim, 16)};
    size_t rows = CHUNK_ROWS * c.each;
    c.decay = room;
    c.k = c.decay + rows;
    c.q = c.k + rows;
    c.gk = c.q + rows;
    c.gq = c.gk + rows;
    c.gone = c.gq + rows;
    c.w = c.gone + c.each;
    c.a = c.w + rows;
    c.b = c.a + CHUNK_ROWS * CHUNK_ROWS;
    c.S = c.b + CHUNK_ROWS * CHUNK_ROWS;
    c.u = c.S + c.each * TIMES_WIDE;
    return c;
}

/* One value of row t meets that of the rows before it. */
#define CHUNK_MEET(j, i)                                                                                     \
    w = lanes_mul(lanes_load(c->w + (i)*CHUNK_ROWS), lanes_set1(decay[i]));                                  \
    lanes_store(c->w + (i)*CHUNK_ROWS, w);                                                                   \
    a##j = lanes_fma(w, lanes_set1(k[i]), a##j);                                                             \
    b##j = lanes_fma(w, lanes_set1(q[i]), b##j);

/* Row t meets the rows before it, which lie in lanes: W fades by its decay, and gives a_t and b_t. Lanes from
 * t on are not used. Four chains side by side. */
INLINE void NAME(chunk_meet)(const struct ref_delta *d, const struct NAME(chunk) * c, size_t t)
{
    const float *decay = c->decay + t * c->each, *k = c->k + t * c->each, *q = c->q + t * c->each;
    lanes a0 = lanes_zero(), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0, w;
    size_t i = 0;
    for (; i + 4 <= d->dim; i += 4) {
        CHUNK_MEET(0, i)
        CHUNK_MEET(1, i + 1)
        CHUNK_MEET(2, i + 2)
        CHUNK_MEET(3, i + 3)
    }
    for (; i < d->dim; i++) {
        CHUNK_MEET(0, i)
    }
    lanes_store(c->a + t * CHUNK_ROWS, lanes_add(lanes_add(a0, a1), lanes_add(a2, a3)));
    lanes_store(c->b + t * CHUNK_ROWS, lanes_add(lanes_add(b0, b1), lanes_add(b2, b3)));
}

/* All that a chunk makes of decays, keys and queries, once for all columns. */
static void NAME(chunk_prepare)(const struct kern_args *a, const struct ref_delta *d,
                                const struct NAME(chunk) * c, size_t t0, size_t h)
{
    const float *q = a->in[0], *k = a->in[1]; /* [T, heads * dim] */
    size_t head = h * d->heads / d->v_heads;
    memset(c->w, 0, c->each * CHUNK_ROWS * sizeof *c->w);
    for (size_t t = 0; t < c->n; t++) {
        size_t at = ((t0 + t) * d->heads + head) * d->dim, row = t * c->each;
        NAME(decays)(a, d, t0 + t, h, c->decay + row);
        NAME(unit_row)(d, k + at, 1.0, c->k + row);
        NAME(unit_row)(d, q + at, d->scale, c->q + row);
        for (size_t i = 0; i < c->each; i += 16) {
            lanes gone = lanes_load(c->decay + row + i);
            gone = t ? lanes_mul(lanes_load(c->gone + i), gone) : gone;
            lanes_store(c->gone + i, gone);
            lanes_store(c->gk + row + i, lanes_mul(gone, lanes_load(c->k + row + i)));
            lanes_store(c->gq + row + i, lanes_mul(gone, lanes_load(c->q + row + i)));
        }
        NAME(chunk_meet)(d, c, t);
        c->b[t * CHUNK_ROWS + t] = lanes_sum(NAME(dot)(c->q + row, c->k + row, D0_F32, 0, d->dim));
        for (size_t i = 0; i < d->dim; i++)
            c->w[i * CHUNK_ROWS + t] = c->k[row + i];
    }
}

/* sums[r][v] = rows t.. of S0^T g + by u, of the rows of u before `t`; TIMES_ROWS of them */
INLINE void NAME(chunk_sums)(const struct ref_delta *d, const struct NAME(chunk) * c, const float *g,
                             const float *by, size_t t, lanes *sums)
{
    lanes acc[TIMES_OUTPUTS];
    for (size_t i = 0; i < TIMES_OUTPUTS; i++)
        acc[i] = lanes_zero();
    NAME(times)(TIMES_ROWS, TIMES_VECTORS, g + t * c->each, c->each, c->S, TIMES_WIDE, d->dim, acc);
    NAME(times)
    (TIMES_ROWS, TIMES_VECTORS, by + t * CHUNK_ROWS, CHUNK_ROWS, c->u, TIMES_WIDE, t, acc);
    for (size_t i = 0; i < TIMES_OUTPUTS; i++)
        sums[i] = acc[i];
}

/* sum[v] += by[s] * u_s for rows from..to-1 of u */
INLINE void NAME(chunk_more)(const struct NAME(chunk) * c, const float *by, size_t from, size_t to,
                             lanes *sum)
{
    for (size_t s = from; s < to; s++)
        for (size_t v = 0; v < TIMES_VECTORS; v++)
            sum[v] = lanes_fma(lanes_set1(by[s]), lanes_load(c->u + s * TIMES_WIDE + 16 * v), sum[v]);
}

/* n columns of u and of the result, TIMES_ROWS rows at a time; v, out: of the first row. A row past the last
 * one is computed from what is there and thrown away. */
static void NAME(chunk_outputs)(const struct ref_delta *d, const struct NAME(chunk) * c, const float *beta,
                                const float *v, float *out, size_t pitch, size_t n)
{
    for (size_t t0 = 0; t0 < c->n; t0 += TIMES_ROWS) {
        lanes said[TIMES_OUTPUTS], read[TIMES_OUTPUTS];
        NAME(chunk_sums)(d, c, c->gk, c->a, t0, said);
        NAME(chunk_sums)(d, c, c->gq, c->b, t0, read);
        for (size_t r = 0, t = t0; r < TIMES_ROWS && t < c->n; r++, t++) {
            lanes *sum = said + r * TIMES_VECTORS;
            NAME(chunk_more)(c, c->a + t * CHUNK_ROWS, t0, t, sum);
            for (size_t k = 0; k < TIMES_VECTORS; k++) {
                lanes change = lanes_sub(NAME(part_load)(v + t * pitch, n, k), sum[k]);
                lanes_store(c->u + t * TIMES_WIDE + 16 * k,
                            lanes_mul(change, lanes_set1(beta[t * d->v_heads])));
            }
            sum = read + r * TIMES_VECTORS;
            NAME(chunk_more)(c, c->b + t * CHUNK_ROWS, t0, t + 1, sum);
            for (size_t k = 0; k < TIMES_VECTORS; k++)
                NAME(part_store)(out + t * pitch, n, k, sum[k]);
        }
    }
}

/* n columns of S after the chunk; S: of the first one */
static void NAME(chunk_state)(const struct ref_delta *d, const struct NAME(chunk) * c, float *S, size_t n)
{
    for (size_t i = 0; i < d->dim; i += TIMES_ROWS) {
        lanes acc[TIMES_OUTPUTS];
        for (size_t o = 0; o < TIMES_OUTPUTS; o++) {
            size_t row = i + o / TIMES_VECTORS;
            acc[o] = lanes_mul(lanes_load(c->S + row * TIMES_WIDE + 16 * (o % TIMES_VECTORS)),
                               lanes_set1(c->gone[row]));
        }
        NAME(times)
        (TIMES_ROWS, TIMES_VECTORS, c->w + i * CHUNK_ROWS, CHUNK_ROWS, c->u, TIMES_WIDE, c->n, acc);
        for (size_t o = 0; o < TIMES_OUTPUTS && i + o / TIMES_VECTORS < d->dim; o++)
            NAME(part_store)(S + (i + o / TIMES_VECTORS) * d->v_dim, n, o % TIMES_VECTORS, acc[o]);
    }
}

static void NAME(delta_chunk)(const struct kern_args *a, const struct ref_delta *d, size_t t, size_t n,
                              size_t h, float *S, void *scratch)
{
    for (; n < CHUNK_LEAST && n > 0; n--, t++)
        NAME(delta_row)(a, d, t, 1, h, S, scratch);
    if (n == 0)
        return;
    struct NAME(chunk) c = NAME(chunk_of)(d, n, scratch);
    size_t pitch = d->v_heads * d->v_dim, value = t * pitch + h * d->v_dim;
    NAME(chunk_prepare)(a, d, &c, t, h);
    for (size_t j = 0; j < d->v_dim; j += TIMES_WIDE) {
        size_t wide = d->v_dim - j < TIMES_WIDE ? d->v_dim - j : TIMES_WIDE;
        for (size_t i = 0; i < d->dim; i++)
            for (size_t v = 0; v < TIMES_VECTORS; v++)
                lanes_store(c.S + i * TIMES_WIDE + 16 * v, NAME(part_load)(S + i * d->v_dim + j, wide, v));
        NAME(chunk_outputs)
        (d, &c, (const float *)a->in[4] + t * d->v_heads + h, (const float *)a->in[2] + value + j,
         (float *)a->out[0] + value + j, pitch, wide);
        NAME(chunk_state)(d, &c, S + j, wide);
    }
}

static void NAME(delta_rule)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    if (a->attr[D0_ATTR_FORM].i == 1)
        ref_delta_walk(a, first, last, thread, CHUNK_ROWS, NAME(delta_chunk));
    else
        ref_delta_walk(a, first, last, thread, 1, NAME(delta_row));
}
