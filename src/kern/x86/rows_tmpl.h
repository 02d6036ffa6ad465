/* SPDX-License-Identifier: Apache-2.0
 *
 * RMS_NORM, ADD and ROPE, compiled once per instruction set.
 */

/* Sum of squares of x[n] in `segments` runs: lanes, horizontal tree, tree over segments. */
static float NAME(sum_squares)(const float *x, size_t n, size_t segments)
{
    float part[64];
    size_t length = n / segments;
    for (size_t s = 0; s < segments; s++) {
        const float *v = x + s * length;
        lanes acc = lanes_zero();
        size_t i = 0;
        for (; i + 16 <= length; i += 16) {
            lanes a = lanes_load(v + i);
            acc = lanes_fma(a, a, acc);
        }
        if (i < length) {
            lanes a = lanes_load_n(v + i, length - i);
            acc = lanes_fma(a, a, acc);
        }
        part[s] = lanes_sum(acc);
    }
    return ref_tree_sum(part, segments);
}

static void NAME(norm_group)(const float *x, const unsigned char *w, uint32_t w_dtype, bool plus_one,
                             float inverse, size_t n, float *out)
{
    lanes inv = lanes_set1(inverse), one = lanes_set1(plus_one ? 1.0f : 0.0f);
    for (size_t i = 0; i < n; i += 16) {
        size_t m = n - i < 16 ? n - i : 16;
        lanes v = lanes_mul(m == 16 ? lanes_load(x + i) : lanes_load_n(x + i, m), inv);
        if (w) {
            lanes weight = m == 16 ? lanes_load_any(w, w_dtype, i) : lanes_load_any_n(w, w_dtype, i, m);
            v = lanes_mul(v, lanes_add(weight, one));
        }
        if (m == 16)
            lanes_store(out + i, v);
        else
            lanes_store_n(out + i, m, v);
    }
}

static void NAME(rms_norm)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0]; /* [n_rows, k] */
    float *out = a->out[0];    /* [n_rows, k] */
    size_t k = (size_t)a->k, dim = a->dim > 0 ? (size_t)a->dim : k,
           segments = a->segments > 1 ? (size_t)a->segments : 1;
    for (size_t t = first; t < last; t++)
        for (size_t g = 0; g < k; g += dim) {
            double mean = (double)NAME(sum_squares)(x + t * k + g, dim, segments) / (double)dim;
            float inverse = (float)(1.0 / __builtin_sqrt(mean + a->eps));
            NAME(norm_group)
            (x + t * k + g, a->in[1], a->in_dtype[1], a->plus_one != 0, inverse, dim, out + t * k + g);
        }
}

static void NAME(add)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0], *y = a->in[1];
    float *out = a->out[0];
    size_t i = first;
    for (; i + 16 <= last; i += 16)
        lanes_store(out + i, lanes_add(lanes_load(x + i), lanes_load(y + i)));
    for (; i < last; i++)
        out[i] = x[i] + y[i];
}

/* One head, halves apart: p = u c - v s, q = v c + u s, each with one fused step. inverse: by -s. */
static void NAME(rope_half)(const float *x, const float *c, const float *s, size_t half, bool inverse,
                            float *out)
{
    for (size_t j = 0; j < half; j += 16) {
        size_t m = half - j < 16 ? half - j : 16;
        bool full = m == 16;
        lanes u = full ? lanes_load(x + j) : lanes_load_n(x + j, m),
              v = full ? lanes_load(x + half + j) : lanes_load_n(x + half + j, m);
        lanes cj = full ? lanes_load(c + j) : lanes_load_n(c + j, m),
              sj = full ? lanes_load(s + j) : lanes_load_n(s + j, m);
        sj = inverse ? lanes_sub(lanes_zero(), sj) : sj;
        lanes p = lanes_fma(u, cj, lanes_sub(lanes_zero(), lanes_mul(v, sj))),
              q = lanes_fma(v, cj, lanes_mul(u, sj));
        if (full) {
            lanes_store(out + j, p);
            lanes_store(out + half + j, q);
        } else {
            lanes_store_n(out + j, m, p);
            lanes_store_n(out + half + j, m, q);
        }
    }
}

static void NAME(rope)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    if (a->style) {
        ref_rope(a, first, last,
                 thread); /* interleaved pairs: rare, and not worth a second shuffle network */
        return;
    }
    const float *x = a->in[0];     /* [T, k] */
    const float *table = a->in[1]; /* [T, table_width]: cosines, then sines */
    float *out = a->out[0];
    size_t k = (size_t)a->k, dim = (size_t)a->dim, half = (size_t)a->table_width / 2,
           offset = (size_t)a->offset;
    bool inverse = a->attr[D0_ATTR_INVERSE].i != 0;
    for (size_t t = first; t < last; t++) {
        const float *c = table + t * 2 * half;
        if (2 * half != dim)
            memcpy(out + t * k, x + t * k, k * sizeof *out);
        for (size_t h = 0; h + dim <= k; h += dim)
            NAME(rope_half)(x + t * k + h + offset, c, c + half, half, inverse, out + t * k + h + offset);
    }
}
