/* SPDX-License-Identifier: Apache-2.0
 *
 * LAYER_NORM, GATED_NORM, MUL and SCALE, compiled once per instruction set. Needs rows_tmpl.h and act_tmpl.h.
 */

INLINE lanes NAME(load_up_to)(const float *p, size_t n)
{
    return n >= 16 ? lanes_load(p) : lanes_load_n(p, n);
}

INLINE lanes NAME(load_any_up_to)(const void *p, uint32_t dtype, size_t i, size_t n)
{
    return n >= 16 ? lanes_load_any(p, dtype, i) : lanes_load_any_n(p, dtype, i, n);
}

INLINE void NAME(store_up_to)(float *p, size_t n, lanes v)
{
    if (n >= 16)
        lanes_store(p, v);
    else
        lanes_store_n(p, n, v);
}

/* ---- layer_norm ---------------------------------------------------------------------------------------- */

/* Sums over x[n] of d = x - mean and of d^2: lanes and horizontal tree for every 256 elements, these in
 * float64, so that many small equal terms do not vanish one by one beside a large sum. */
static void NAME(deviations)(const float *x, size_t n, float mean, double sums[2])
{
    sums[0] = sums[1] = 0;
    for (size_t from = 0, to; from < n; from = to) {
        lanes sum = lanes_zero(), squares = lanes_zero(), m = lanes_set1(mean);
        size_t i = from;
        to = n - from < 256 ? n : from + 256;
        for (; i + 16 <= to; i += 16) {
            lanes d = lanes_sub(lanes_load(x + i), m);
            sum = lanes_add(sum, d);
            squares = lanes_fma(d, d, squares);
        }
        if (i < to) { /* lanes past the end stay zero */
            float t[16];
            lanes_store(t, lanes_sub(lanes_load_n(x + i, to - i), m));
            lanes d = lanes_load_n(t, to - i);
            sum = lanes_add(sum, d);
            squares = lanes_fma(d, d, squares);
        }
        sums[0] += (double)lanes_sum(sum);
        sums[1] += (double)lanes_sum(squares);
    }
}

/* Mean of x[n] in two float32 parts, to be subtracted in order, and 1 / deviation. The second pass measures
 * from the first mean and so finds what that lacks: always taken into the variance, and into the mean where
 * values lie far from zero beside their deviation; elsewhere it is smaller than its own rounding. */
struct NAME(moments) {
    float mean, rest, inverse;
};

static struct NAME(moments) NAME(moments_of)(const float *x, size_t n, double eps)
{
    double sums[2];
    struct NAME(moments) m;
    NAME(deviations)(x, n, 0.0f, sums);
    m.mean = (float)(sums[0] / (double)n);
    NAME(deviations)(x, n, m.mean, sums);
    double rest = sums[0] / (double)n, variance = sums[1] / (double)n - rest * rest;
    m.rest = (double)m.mean * (double)m.mean > 256 * variance ? (float)rest : 0.0f;
    m.inverse = (float)(1.0 / __builtin_sqrt((variance < 0 ? 0 : variance) + eps));
    return m;
}

static void NAME(layer_norm)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    size_t k = (size_t)a->k, dim = a->attr[D0_ATTR_DIM].i > 0 ? (size_t)a->attr[D0_ATTR_DIM].i : k;
    for (size_t at = first * k; at < last * k; at += dim) {
        const float *x = (const float *)a->in[0] + at; /* of [n_rows, k] */
        float *out = (float *)a->out[0] + at;
        struct NAME(moments) m = NAME(moments_of)(x, dim, a->attr[D0_ATTR_EPS].f);
        lanes mean = lanes_set1(m.mean), rest = lanes_set1(m.rest), inverse = lanes_set1(m.inverse);
        for (size_t i = 0; i < dim; i += 16) {
            size_t n = dim - i;
            lanes y = lanes_mul(lanes_sub(lanes_sub(NAME(load_up_to)(x + i, n), mean), rest), inverse);
            if (a->in[1])
                y = lanes_mul(y, NAME(load_any_up_to)(a->in[1], a->in_dtype[1], i, n));
            if (a->in[2])
                y = lanes_add(y, NAME(load_any_up_to)(a->in[2], a->in_dtype[2], i, n));
            NAME(store_up_to)(out + i, n, y);
        }
    }
}

/* ---- gated_norm ---------------------------------------------------------------------------------------- */

/* out[n] *= x[n], and the norm of that times w */
static void NAME(gate_first)(const struct kern_args *a, const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        NAME(store_up_to)
    (out + i, n - i, lanes_mul(NAME(load_up_to)(x + i, n - i), NAME(load_up_to)(out + i, n - i)));
    double mean = (double)NAME(sum_squares)(out, n, 1) / (double)n;
    NAME(norm_group)
    (out, a->in[2], a->in_dtype[2], false, (float)(1.0 / __builtin_sqrt(mean + a->attr[D0_ATTR_EPS].f)), n,
     out);
}

/* out[n] *= the norm of x[n] times w */
static void NAME(gate_last)(const struct kern_args *a, const float *x, float *out, size_t n)
{
    double mean = (double)NAME(sum_squares)(x, n, 1) / (double)n;
    lanes inverse = lanes_set1((float)(1.0 / __builtin_sqrt(mean + a->attr[D0_ATTR_EPS].f)));
    for (size_t i = 0; i < n; i += 16) {
        lanes y = lanes_mul(NAME(load_up_to)(x + i, n - i), inverse);
        if (a->in[2])
            y = lanes_mul(y, NAME(load_any_up_to)(a->in[2], a->in_dtype[2], i, n - i));
        NAME(store_up_to)(out + i, n - i, lanes_mul(y, NAME(load_up_to)(out + i, n - i)));
    }
}

static void NAME(gated_norm)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0], *gate = a->in[1]; /* [n_rows, k] */
    float *out = a->out[0];
    size_t k = (size_t)a->k, dim = a->attr[D0_ATTR_DIM].i > 0 ? (size_t)a->attr[D0_ATTR_DIM].i : k;
    NAME(act_run)(a, gate + first * k, out + first * k, (last - first) * k);
    for (size_t at = first * k; at < last * k; at += dim)
        (a->attr[D0_ATTR_BEFORE].i ? NAME(gate_first) : NAME(gate_last))(a, x + at, out + at, dim);
}

/* ---- mul, scale ---------------------------------------------------------------------------------------- */

/* out[n] = x[n] * y[n], or times the same y */
INLINE void NAME(mul_loop)(const float *x, const float *y, const bool same, float *out, size_t n)
{
    lanes one = lanes_set1(*y);
    for (size_t i = 0; i < n; i += 16)
        NAME(store_up_to)
    (out + i, n - i, lanes_mul(NAME(load_up_to)(x + i, n - i), same ? one : NAME(load_up_to)(y + i, n - i)));
}

static void NAME(mul)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0], *y = a->in[1]; /* [n_rows, n], [n_rows, n / run] */
    float *out = a->out[0];
    size_t run = (size_t)(a->n / a->in_dims[1][1]);
    if (run == 1) {
        NAME(mul_loop)(x + first, y + first, false, out + first, last - first);
        return;
    }
    for (size_t i = first, end; i < last; i = end) {
        end = (i / run + 1) * run < last ? (i / run + 1) * run : last;
        NAME(mul_loop)(x + i, y + i / run, true, out + i, end - i);
    }
}

static void NAME(scale)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const unsigned char *w = a->in[1]; /* [n], [1] or NULL */
    size_t n = (size_t)a->n;
    bool many = w && a->in_dims[1][0] > 1;
    lanes factor = lanes_set1((float)a->attr[D0_ATTR_FACTOR].f),
          one = lanes_set1(w ? ref_load(w, a->in_dtype[1], 0) : 1.0f);
    for (size_t t = first; t < last; t++)
        for (size_t i = 0; i < n; i += 16) {
            lanes y = lanes_mul(NAME(load_up_to)((const float *)a->in[0] + t * n + i, n - i), factor);
            y = lanes_mul(y, many ? NAME(load_any_up_to)(w, a->in_dtype[1], i, n - i) : one);
            NAME(store_up_to)((float *)a->out[0] + t * n + i, n - i, y);
        }
}
