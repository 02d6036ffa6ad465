/* SPDX-License-Identifier: Apache-2.0
 *
 * The scores of INDEX_TOPK, MIX_RESIDUAL, HYPER_IN, HYPER_OUT and HYPER_HEAD, compiled once per instruction
 * set. Long sums run in lanes; the few numbers that decide (weights of a softmax, of streams) are float64 as
 * in the reference.
 */
#include "kern/ref/ref_sparse.h"

INLINE lanes NAME(load_some)(const float *p, size_t n)
{
    return n == 16 ? lanes_load(p) : lanes_load_n(p, n);
}

INLINE void NAME(store_some)(float *p, size_t n, lanes v)
{
    if (n == 16)
        lanes_store(p, v);
    else
        lanes_store_n(p, n, v);
}

/* ---- index_topk ---- */

INLINE void NAME(score_keys)(const struct kern_args *a, const uint32_t dtype, size_t t, size_t g, size_t at,
                             size_t n, double *out)
{
    size_t dim = (size_t)a->dim, heads = (size_t)a->heads;
    size_t groups = a->attr[D0_ATTR_GROUPS].i > 0 ? (size_t)a->attr[D0_ATTR_GROUPS].i : 1,
           each = heads / groups;
    const float *q = (const float *)a->in[0] + t * heads * dim,
                *weights = a->in[5] ? (const float *)a->in[5] + t * heads : NULL;
    bool blocks = a->attr[D0_ATTR_BLOCK].i > 0;
    float scale = a->scale != 0 ? (float)a->scale : 1.0f;
    float s[REF_INDEX_KEYS] = {0}, total[REF_INDEX_KEYS];
    for (size_t i = 0; i < REF_INDEX_KEYS; i++)
        total[i] = blocks ? -INFINITY : 0;
    for (size_t h = blocks ? g * each : 0; h < (blocks ? (g + 1) * each : heads); h++) {
        lanes weight = lanes_set1(weights ? weights[h] : 1.0f);
        NAME(scores)(q + h * dim, a->in[1], dtype, at, dim, scale, 0, n, s);
        for (size_t i = 0; i < n; i += 16) {
            lanes v = lanes_load(s + i), sum = lanes_load(total + i);
            lanes_store(total + i,
                        blocks ? lanes_max(v, sum) : lanes_fma(weight, lanes_max(lanes_zero(), v), sum));
        }
    }
    for (size_t i = 0; i < n; i++)
        out[i] = (double)total[i];
}

#define INDEX_OF_TYPE(text, dtype)                                                                           \
    static void NAME(score_##text)(const struct kern_args *a, size_t t, size_t g, size_t at, size_t n,       \
                                   double *out)                                                              \
    {                                                                                                        \
        NAME(score_keys)(a, dtype, t, g, at, n, out);                                                        \
    }                                                                                                        \
    static void NAME(index_topk_##text)(const struct kern_args *a, size_t first, size_t last,                \
                                        unsigned thread)                                                     \
    {                                                                                                        \
        ref_index_rows(a, first, last, thread, NAME(score_##text));                                          \
    }
INDEX_OF_TYPE(f32, D0_F32)
INDEX_OF_TYPE(bf16, D0_BF16)
INDEX_OF_TYPE(f16, D0_F16)

/* ---- mix_residual ---- */

/* v . (norm * proj) */
static float NAME(mix_dot)(const struct kern_args *a, const float *v, size_t k)
{
    lanes acc = lanes_zero();
    for (size_t i = 0; i < k; i += 16) {
        size_t m = k - i < 16 ? k - i : 16;
        lanes norm = m == 16 ? lanes_load_any(a->in[1], a->in_dtype[1], i)
                             : lanes_load_any_n(a->in[1], a->in_dtype[1], i, m),
              proj = m == 16 ? lanes_load_any(a->in[2], a->in_dtype[2], i)
                             : lanes_load_any_n(a->in[2], a->in_dtype[2], i, m);
        acc = lanes_fma(NAME(load_some)(v + i, m), lanes_mul(norm, proj), acc);
    }
    return lanes_sum(acc);
}

static void NAME(mix_residual)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    size_t k = (size_t)a->k;
    for (size_t t = first; t < last; t++) {
        const float *v[D0_MAX_NODE_INPUTS];
        double p[D0_MAX_NODE_INPUTS], top = -INFINITY, sum = 0;
        size_t n = 0;
        for (unsigned i = 0; i < D0_MAX_NODE_INPUTS; i++)
            if ((i == 0 || i > 2) && a->in[i])
                v[n++] = (const float *)a->in[i] + t * k;
        for (size_t i = 0; i < n; i++) {
            double mean = (double)NAME(sum_squares)(v[i], k, 1) / (double)k;
            p[i] = (double)NAME(mix_dot)(a, v[i], k) / __builtin_sqrt(mean + a->eps);
            top = p[i] > top || p[i] != p[i] ? p[i] : top;
        }
        for (size_t i = 0; i < n; i++) {
            p[i] = exp(p[i] - top);
            sum += p[i];
        }
        for (size_t j = 0; j < k; j += 16) {
            size_t m = k - j < 16 ? k - j : 16;
            lanes mixed = lanes_zero();
            for (size_t i = 0; i < n; i++)
                mixed = lanes_fma(lanes_set1((float)(p[i] / sum)), NAME(load_some)(v[i] + j, m), mixed);
            NAME(store_some)((float *)a->out[0] + t * k + j, m, mixed);
        }
    }
}

/* ---- hyper-connections ---- */

static size_t NAME(hyper_scratch)(const struct kern_args *a)
{
    size_t n = (size_t)a->attr[D0_ATTR_STREAMS].i;
    return n * (n + 2) * (sizeof(double) + sizeof(float));
}

/* z[i] = fn_i . x / rms(x) for the first n rows of fn; row is room for n floats */
static void NAME(hyper_products)(const struct kern_args *a, const float *x, size_t n, double *z, float *row)
{
    size_t k = (size_t)a->k;
    double rms = __builtin_sqrt((double)NAME(sum_squares)(x, k, 1) / (double)k + a->eps);
    if (a->in_dtype[1] == D0_F32)
        NAME(scores)(x, a->in[1], D0_F32, 0, k, 1.0f, 0, n, row);
    else if (a->in_dtype[1] == D0_BF16)
        NAME(scores)(x, a->in[1], D0_BF16, 0, k, 1.0f, 0, n, row);
    else
        NAME(scores)(x, a->in[1], D0_F16, 0, k, 1.0f, 0, n, row);
    for (size_t i = 0; i < n; i++)
        z[i] = (double)row[i] / rms;
}

/* out[h] = sum over streams of weight[j] * x[j * h + .] */
static void NAME(hyper_collapse)(const float *x, const double *weight, size_t n, size_t h, float *out)
{
    for (size_t i = 0; i < h; i += 16) {
        size_t m = h - i < 16 ? h - i : 16;
        lanes sum = lanes_zero();
        for (size_t j = 0; j < n; j++)
            sum = lanes_fma(lanes_set1((float)weight[j]), NAME(load_some)(x + j * h + i, m), sum);
        NAME(store_some)(out + i, m, sum);
    }
}

static void NAME(hyper_in)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const float *x = a->in[0]; /* [T, k]: n streams of h */
    size_t k = (size_t)a->k, n = (size_t)a->attr[D0_ATTR_STREAMS].i, h = k / n;
    double *z = ref_scratch(a, thread);
    for (size_t t = first; t < last; t++) {
        NAME(hyper_products)(a, x + t * k, n * (n + 2), z, (float *)(z + n * (n + 2)));
        ref_hyper_mixture(a, z);
        NAME(hyper_collapse)(x + t * k, z, n, h, (float *)a->out[0] + t * h);
        for (size_t i = 0; i < n * (n + 1); i++)
            ((float *)a->out[1])[t * n * (n + 1) + i] = (float)z[n + i];
    }
}

static void NAME(hyper_head)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const float *x = a->in[0]; /* [T, k]: n streams of h */
    size_t k = (size_t)a->k, n = (size_t)a->attr[D0_ATTR_STREAMS].i, h = k / n;
    double *z = ref_scratch(a, thread);
    for (size_t t = first; t < last; t++) {
        NAME(hyper_products)(a, x + t * k, n, z, (float *)(z + n * (n + 2)));
        for (size_t i = 0; i < n; i++)
            z[i] = ref_hyper_sigmoid(a, z[i], i, 0) + a->attr[D0_ATTR_RENORM_EPS].f;
        NAME(hyper_collapse)(x + t * k, z, n, h, (float *)a->out[0] + t * h);
    }
}

static void NAME(hyper_out)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    size_t n = (size_t)a->attr[D0_ATTR_STREAMS].i, h = (size_t)a->k;
    for (size_t t = first; t < last; t++) {
        const float *y = (const float *)a->in[0] + t * h, *x = (const float *)a->in[1] + t * n * h,
                    *post = (const float *)a->in[2] + t * n * (n + 1), *c = post + n;
        float *out = (float *)a->out[0] + t * n * h;
        for (size_t i = 0; i < h; i += 16) {
            size_t m = h - i < 16 ? h - i : 16;
            lanes own = NAME(load_some)(y + i, m);
            for (size_t s = 0; s < n; s++) {
                lanes sum = lanes_mul(lanes_set1(post[s]), own);
                for (size_t j = 0; j < n; j++)
                    sum = lanes_fma(lanes_set1(c[j * n + s]), NAME(load_some)(x + j * h + i, m), sum);
                NAME(store_some)(out + s * h + i, m, sum);
            }
        }
    }
}
