/* SPDX-License-Identifier: Apache-2.0
 *
 * SEGMENT_ATTENTION and POSITION_EMBED, compiled once per instruction set. Attention takes one (row, head)
 * pair at a time: blocks of SPAN_BLOCK rows from the first row of the span, in order, with the online softmax
 * of the paged kernel. The order depends on the span alone, so neither the batch nor the threads change a
 * bit.
 */
#define SPAN_BLOCK 64

/* out[i] = scale * q . key i for n rows of keys, `stride` values apart */
INLINE void NAME(span_scores)(const float *q, const float *keys, size_t stride, size_t dim, float scale,
                              size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = lanes_sum(NAME(dot)(q, keys + i * stride, D0_F32, 0, dim)) * scale;
}

/* acc[n] = acc * shrink + sum of p[i] * row i of the values; acc is padded to whole vectors */
INLINE void NAME(span_weigh)(float *acc, float shrink, const float *p, const float *values, size_t stride,
                             size_t rows, size_t n)
{
    for (size_t d = 0; d < n; d += 16) {
        size_t m = n - d < 16 ? n - d : 16;
        lanes sum = lanes_mul(lanes_load(acc + d), lanes_set1(shrink));
        for (size_t i = 0; i < rows; i++) {
            const float *v = values + i * stride + d;
            sum = lanes_fma(lanes_set1(p[i]), m == 16 ? lanes_load(v) : lanes_load_n(v, m), sum);
        }
        lanes_store(acc + d, sum);
    }
}

static void NAME(segment_attention)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const float *q = a->in[0], *k = a->in[1], *v = a->in[2]; /* [T, heads * dim], [S, kv_heads * .] */
    const int32_t *spans = a->in[3];                         /* [T, 2] */
    float *out = a->out[0];                                  /* [T, heads * v_dim] */
    size_t heads = (size_t)a->heads, kv_heads = (size_t)a->kv_heads, dim = (size_t)a->dim,
           v_dim = a->v_dim ? (size_t)a->v_dim : dim, padded = (v_dim + 15) / 16 * 16;
    float *acc = (float *)((unsigned char *)a->scratch + (size_t)thread * a->scratch_bytes); /* [padded] */
    float scores[SPAN_BLOCK + 16];
    for (size_t item = first; item < last; item++) {
        size_t t = item / heads, g = item % heads * kv_heads / heads;
        int64_t from = spans[2 * t], to = spans[2 * t + 1];
        bool there = from >= 0 && from < to && to <= a->in_dims[1][0];
        struct NAME(online) o = {-INFINITY, 0};
        memset(acc, 0, padded * sizeof *acc);
        for (size_t n, at = there ? (size_t)from : 0; there && at < (size_t)to; at += n) {
            n = (size_t)to - at < SPAN_BLOCK ? (size_t)to - at : SPAN_BLOCK;
            struct ref_run run = {.from = 0, .to = n};
            NAME(clear_gaps)(&run, 1, scores);
            NAME(span_scores)
            (q + item * dim, k + (at * kv_heads + g) * dim, kv_heads * dim, dim, (float)a->scale, n, scores);
            float shrink = NAME(online_page)(&o, &run, 1, scores);
            NAME(span_weigh)
            (acc, shrink, scores, v + (at * kv_heads + g) * v_dim, kv_heads * v_dim, n, v_dim);
        }
        for (size_t d = 0; d < v_dim; d++)
            out[item * v_dim + d] = there ? acc[d] / o.sum : NAN;
    }
}

static size_t NAME(segment_attention_scratch)(const struct kern_args *a)
{
    return (size_t)((a->v_dim ? a->v_dim : a->dim) + 15) / 16 * 16 * sizeof(float);
}

static void NAME(position_embed)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const int32_t *rows = a->in[0];  /* [T, m] */
    const float *weights = a->in[2]; /* [T, m] or NULL */
    float *out = a->out[0];          /* [T, n] */
    size_t m = (size_t)a->in_dims[0][1], n = (size_t)a->n;
    for (size_t t = first; t < last; t++)
        for (size_t i = 0; i < n; i += 16) {
            size_t wide = n - i < 16 ? n - i : 16;
            lanes sum = lanes_zero();
            for (size_t j = t * m; j < (t + 1) * m; j++) {
                bool there = rows[j] >= 0 && rows[j] < a->in_dims[1][0];
                lanes w = lanes_set1(weights ? weights[j] : 1.0f);
                if (there)
                    sum = lanes_fma(
                        w, lanes_load_any_n(a->in[1], a->in_dtype[1], (size_t)rows[j] * n + i, wide), sum);
                else if (rows[j] != -1)
                    sum = lanes_set1(NAN);
            }
            lanes_store_n(out + t * n + i, wide, sum);
        }
}
