/* SPDX-License-Identifier: Apache-2.0
 *
 * ATTENTION, compiled once per instruction set. One (token, head) pair at a time: KV blocks of one page in
 * order from the block that holds the first visible position, online softmax, only live keys read. The order
 * depends on (position, window) alone.
 */

INLINE float NAME(dot)(const float *q, const void *keys, uint32_t dtype, size_t at, size_t n)
{
    lanes acc = lanes_zero();
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        acc = lanes_fma(lanes_load(q + i), lanes_load_any(keys, dtype, at + i), acc);
    if (i < n)
        acc = lanes_fma(lanes_load_n(q + i, n - i), lanes_load_any_n(keys, dtype, at + i, n - i), acc);
    return lanes_sum(acc);
}

/* acc[n] = acc * shrink + sum over live keys of p[i] * v[i], keys in order */
INLINE void NAME(weigh)(float *acc, float shrink, const float *p, const void *values, uint32_t dtype,
                        size_t at, size_t from, size_t to, size_t n)
{
    for (size_t d = 0; d < n; d += 16) {
        size_t m = n - d < 16 ? n - d : 16;
        lanes sum = lanes_mul(lanes_load(acc + d), lanes_set1(shrink)); /* acc is padded to whole vectors */
        for (size_t i = from; i < to; i++) {
            lanes v = m == 16 ? lanes_load_any(values, dtype, at + i * n + d)
                              : lanes_load_any_n(values, dtype, at + i * n + d, m);
            sum = lanes_fma(lanes_set1(p[i]), v, sum);
        }
        lanes_store(acc + d, sum);
    }
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

INLINE void NAME(attend_block)(const struct kern_args *a, const uint32_t dtype, const float *q,
                               size_t page_head, size_t from, size_t to, struct NAME(online) * o, float *acc)
{
    size_t dim = (size_t)a->dim, v_dim = a->v_dim ? (size_t)a->v_dim : dim, tokens = (size_t)a->page_tokens;
    float scores[KERN_MAX_PAGE_TOKENS + 16];
    float top = o->top, scale = (float)a->scale;
    size_t end = (to + 15) / 16 * 16;
    for (size_t i = from / 16 * 16; i < end; i++)
        scores[i] = -INFINITY;
    for (size_t i = from; i < to; i++) {
        scores[i] = NAME(dot)(q, a->in[1], dtype, (page_head * tokens + i) * dim, dim) * scale;
        top = scores[i] > top || scores[i] != scores[i] ? scores[i] : top;
    }
    float shrink = o->top == -INFINITY ? 0.0f : exp_one(o->top - top);
    float sum = NAME(exponentials)(scores, from, to, top);
    o->sum = o->sum * shrink + sum;
    NAME(weigh)(acc, shrink, scores, a->in[2], dtype, page_head * tokens * v_dim, from, to, v_dim);
    o->top = top;
}

INLINE void NAME(attention_of_type)(const struct kern_args *a, const uint32_t dtype, size_t first,
                                    size_t last, unsigned thread)
{
    const float *q = a->in[0]; /* [T, heads * dim] */
    const int32_t *positions = a->in[3], *seq_of = a->in[4], *page_table = a->in[5];
    float *out = a->out[0]; /* [T, heads * v_dim] */
    size_t heads = (size_t)a->heads, kv_heads = (size_t)a->kv_heads, dim = (size_t)a->dim,
           v_dim = a->v_dim ? (size_t)a->v_dim : dim;
    int64_t tokens = a->page_tokens;
    float *acc = (float *)((unsigned char *)a->scratch +
                           (size_t)thread * a->scratch_bytes); /* [v_dim, padded to 16] */
    for (size_t item = first; item < last; item++) {
        size_t t = item / heads, h = item % heads;
        int64_t p = positions[t], begin = a->window > 0 && p >= a->window ? p - a->window + 1 : 0;
        struct NAME(online) o = {-INFINITY, 0};
        bool live = p >= 0;
        memset(acc, 0, (v_dim + 15) / 16 * 16 * sizeof *acc);
        for (int64_t block = begin / tokens; live && block <= p / tokens; block++) {
            int64_t page = ref_page(a, page_table, seq_of[t], block * tokens),
                    from = block * tokens > begin ? 0 : begin - block * tokens;
            int64_t to = p - block * tokens + 1 < tokens ? p - block * tokens + 1 : tokens;
            live = page >= 0;
            if (live)
                NAME(attend_block)
            (a, dtype, q + (t * heads + h) * dim, (size_t)page * kv_heads + h * kv_heads / heads,
             (size_t)from, (size_t)to, &o, acc);
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
    return (size_t)((a->v_dim ? a->v_dim : a->dim) + 15) / 16 * 16 * sizeof(float);
}
