/* SPDX-License-Identifier: Apache-2.0
 *
 * ATTENTION, compiled once per instruction set. One (token, head) pair at a time: KV blocks of one page in
 * order from the block that holds the first visible position, online softmax, only live keys read. The order
 * depends on (position, window, chunk) alone, and on the chosen blocks or the span where there are such.
 */

/* q . key for one key; n values from element `at`: lanes, tail, horizontal tree */
INLINE lanes NAME(dot)(const float *q, const void *keys, uint32_t dtype, size_t at, size_t n)
{
    lanes acc = lanes_zero();
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        acc = lanes_fma(lanes_load(q + i), lanes_load_any(keys, dtype, at + i), acc);
    if (i < n)
        acc = lanes_fma(lanes_load_n(q + i, n - i), lanes_load_any_n(keys, dtype, at + i, n - i), acc);
    return acc;
}

/* The same for four neighbouring keys side by side. */
INLINE void NAME(dot4)(const float *q, const void *keys, uint32_t dtype, size_t at, size_t n, lanes acc[4])
{
    lanes a = lanes_zero(), b = a, c = a, d = a;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        lanes x = lanes_load(q + i);
        a = lanes_fma(x, lanes_load_any(keys, dtype, at + i), a);
        b = lanes_fma(x, lanes_load_any(keys, dtype, at + n + i), b);
        c = lanes_fma(x, lanes_load_any(keys, dtype, at + 2 * n + i), c);
        d = lanes_fma(x, lanes_load_any(keys, dtype, at + 3 * n + i), d);
    }
    if (i < n) {
        size_t m = n - i;
        lanes x = lanes_load_n(q + i, m);
        a = lanes_fma(x, lanes_load_any_n(keys, dtype, at + i, m), a);
        b = lanes_fma(x, lanes_load_any_n(keys, dtype, at + n + i, m), b);
        c = lanes_fma(x, lanes_load_any_n(keys, dtype, at + 2 * n + i, m), c);
        d = lanes_fma(x, lanes_load_any_n(keys, dtype, at + 3 * n + i, m), d);
    }
    acc[0] = a;
    acc[1] = b;
    acc[2] = c;
    acc[3] = d;
}

/* out[i] = scale * q . key i for keys [from, to) of n values */
INLINE void NAME(scores)(const float *q, const void *keys, uint32_t dtype, size_t at, size_t n, float scale,
                         size_t from, size_t to, float *out)
{
    size_t i = from;
    for (; i + 8 <= to; i += 8) {
        lanes acc[8];
        NAME(dot4)(q, keys, dtype, at + i * n, n, acc);
        NAME(dot4)(q, keys, dtype, at + (i + 4) * n, n, acc + 4);
        _mm256_storeu_ps(out + i, _mm256_mul_ps(lanes_sum8(acc), _mm256_set1_ps(scale)));
    }
    for (; i < to; i++)
        out[i] = lanes_sum(NAME(dot)(q, keys, dtype, at + i * n, n)) * scale;
}

/* acc[n] = acc * shrink + sum over live keys of p[i] * v[i], keys in order; acc is padded to whole vectors */
INLINE void NAME(weigh)(float *acc, float shrink, const float *p, const void *values, uint32_t dtype,
                        size_t at, size_t from, size_t to, size_t n)
{
    size_t d = 0;
    lanes s = lanes_set1(shrink);
    for (; d + 64 <= n; d += 64) { /* four vectors side by side */
        lanes w = lanes_mul(lanes_load(acc + d), s), x = lanes_mul(lanes_load(acc + d + 16), s),
              y = lanes_mul(lanes_load(acc + d + 32), s), z = lanes_mul(lanes_load(acc + d + 48), s);
        for (size_t i = from; i < to; i++) {
            size_t v = at + i * n + d;
            lanes weight = lanes_set1(p[i]);
            w = lanes_fma(weight, lanes_load_any(values, dtype, v), w);
            x = lanes_fma(weight, lanes_load_any(values, dtype, v + 16), x);
            y = lanes_fma(weight, lanes_load_any(values, dtype, v + 32), y);
            z = lanes_fma(weight, lanes_load_any(values, dtype, v + 48), z);
        }
        lanes_store(acc + d, w);
        lanes_store(acc + d + 16, x);
        lanes_store(acc + d + 32, y);
        lanes_store(acc + d + 48, z);
    }
    for (; d < n; d += 16) {
        size_t m = n - d < 16 ? n - d : 16;
        lanes sum = lanes_mul(lanes_load(acc + d), s);
        for (size_t i = from; i < to; i++) {
            lanes v = m == 16 ? lanes_load_any(values, dtype, at + i * n + d)
                              : lanes_load_any_n(values, dtype, at + i * n + d, m);
            sum = lanes_fma(lanes_set1(p[i]), v, sum);
        }
        lanes_store(acc + d, sum);
    }
}

/* c * tanh(s / c); NaN stays NaN. */
INLINE lanes NAME(soft_cap)(lanes s, float c)
{
    return lanes_mul(NAME(tanh)(lanes_div(s, lanes_set1(c))), lanes_set1(c));
}

/* -inf in all slots of the vectors that hold `runs` but in those of the runs. */
INLINE void NAME(clear_gaps)(const struct ref_run *runs, size_t n, float *scores)
{
    size_t i = runs[0].from / 16 * 16, end = (runs[n - 1].to + 15) / 16 * 16;
    for (size_t r = 0; r < n; i = runs[r++].to)
        for (; i < runs[r].from; i++)
            scores[i] = -INFINITY;
    for (; i < end; i++)
        scores[i] = -INFINITY;
}

/* exp(score - top) in place, and their sum: sixteen slots at a time by the fixed tree, in order; dead slots
 * count 0 */
static float NAME(exponentials)(float *scores, size_t from, size_t to, float top)
{
    float sum = 0;
    for (size_t i = from / 16 * 16; i < to; i += 16) {
        lanes e = lanes_exp(lanes_sub(lanes_load(scores + i), lanes_set1(top)));
        lanes_store(scores + i, e);
        sum += lanes_sum(e);
    }
    return sum;
}

struct NAME(online) {
    float top, sum;
};

/* Takes the scores of one page in: they become weights under the new maximum. What was summed before must be
 * multiplied by the result. */
INLINE float NAME(online_page)(struct NAME(online) * o, const struct ref_run *runs, size_t n, float *scores)
{
    float top = o->top;
    for (size_t r = 0; r < n; r++)
        for (size_t i = runs[r].from; i < runs[r].to; i++)
            top = scores[i] > top || scores[i] != scores[i] ? scores[i] : top;
    float shrink = o->top == -INFINITY ? 0.0f : exp_one(o->top - top);
    /* a block of nothing but -inf weighs 0 */
    float sum = NAME(exponentials)(scores, runs[0].from, runs[n - 1].to, top == -INFINITY ? 0.0f : top);
    o->sum = o->sum * shrink + sum;
    o->top = top;
    return shrink;
}

INLINE void NAME(attend_page)(const struct kern_args *a, const uint32_t dtype, const float *q,
                              size_t page_head, const struct ref_run *runs, size_t n, struct NAME(online) * o,
                              float *acc)
{
    size_t dim = (size_t)a->dim, v_dim = a->v_dim ? (size_t)a->v_dim : dim, tokens = (size_t)a->page_tokens;
    float scores[KERN_MAX_PAGE_TOKENS + 16], cap = (float)a->attr[D0_ATTR_SOFTCAP].f;
    NAME(clear_gaps)(runs, n, scores);
    for (size_t r = 0; r < n; r++)
        NAME(scores)
    (q, a->in[1], dtype, page_head * tokens * dim, dim, (float)a->scale, runs[r].from, runs[r].to, scores);
    if (cap > 0) {
        for (size_t i = runs[0].from / 16 * 16; i < runs[n - 1].to; i += 16)
            lanes_store(scores + i, NAME(soft_cap)(lanes_load(scores + i), cap));
        NAME(clear_gaps)(runs, n, scores);
    }
    float shrink = NAME(online_page)(o, runs, n, scores);
    for (size_t r = 0; r < n; r++)
        NAME(weigh)
    (acc, r ? 1.0f : shrink, scores, a->in[2], dtype, page_head * tokens * v_dim, runs[r].from, runs[r].to,
     v_dim);
}

INLINE void NAME(attention_of_type)(const struct kern_args *a, const uint32_t dtype, size_t first,
                                    size_t last, unsigned thread)
{
    const float *q = a->in[0]; /* [T, heads * dim] */
    const int32_t *positions = a->in[3], *seq_of = a->in[4], *page_table = a->in[5], *chosen = a->in[7],
                  *spans = a->in[8]; /* [T, 2] or NULL */
    float *out = a->out[0];          /* [T, heads * v_dim] */
    size_t heads = (size_t)a->heads, kv_heads = (size_t)a->kv_heads, dim = (size_t)a->dim,
           v_dim = a->v_dim ? (size_t)a->v_dim : dim, padded = (v_dim + 15) / 16 * 16,
           topk = (size_t)a->in_dims[7][1] / kv_heads;
    float *acc = (float *)((unsigned char *)a->scratch + (size_t)thread * a->scratch_bytes); /* [padded] */
    for (size_t item = first; item < last; item++) {
        size_t t = item / heads, h = item % heads, kv = h * kv_heads / heads, n;
        struct ref_keys keys = ref_keys_all(positions[t], a->window, a->attr[D0_ATTR_CHUNK].i);
        struct ref_run runs[REF_MAX_RUNS];
        struct NAME(online) o = {-INFINITY, 0};
        if (a->in[6]) /* a sink comes before all keys and has no value */
            o.top = ref_load(a->in[6], a->in_dtype[6], h);
        o.sum = o.top == -INFINITY ? 0.0f : 1.0f;
        bool live = ref_page(a, page_table, seq_of[t], positions[t]) >= 0 &&
                    ref_keys_span(&keys, spans ? spans + 2 * t : NULL);
        if (chosen)
            ref_keys_choose(&keys, chosen + (t * kv_heads + kv) * topk, topk, a->attr[D0_ATTR_BLOCK].i,
                            (int32_t *)(acc + padded));
        memset(acc, 0, padded * sizeof *acc);
        for (int64_t block; live && (n = ref_keys_page(&keys, a->page_tokens, &block, runs)) > 0;) {
            int64_t page = ref_page(a, page_table, seq_of[t], block * a->page_tokens);
            live = page >= 0;
            if (live)
                NAME(attend_page)
            (a, dtype, q + (t * heads + h) * dim, (size_t)page * kv_heads + kv, runs, n, &o, acc);
        }
        for (size_t d = 0; d < v_dim; d++)
            out[(t * heads + h) * v_dim + d] = live ? acc[d] / o.sum : NAN;
    }
}

static void NAME(attention_f32)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    NAME(attention_of_type)(a, D0_F32, first, last, thread);
}

static void NAME(attention_bf16)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    NAME(attention_of_type)(a, D0_BF16, first, last, thread);
}

static void NAME(attention_f16)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    NAME(attention_of_type)(a, D0_F16, first, last, thread);
}

static size_t NAME(attention_scratch)(const struct kern_args *a)
{
    return (size_t)((a->v_dim ? a->v_dim : a->dim) + 15) / 16 * 16 * sizeof(float) +
           (size_t)a->in_dims[7][1] * sizeof(int32_t);
}
