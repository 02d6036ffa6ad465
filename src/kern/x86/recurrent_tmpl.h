/* SPDX-License-Identifier: Apache-2.0
 *
 * SHORT_CONV, and DELTA_RULE in its recurrent form, one row at a time, compiled once per instruction set.
 * Channels, and columns of S, lie in lanes: no sum runs across lanes but the squares of q and k, so where a
 * column lies changes no bit.
 */

/* ---- short_conv ---------------------------------------------------------------------------------------- */

static size_t NAME(conv_scratch)(const struct kern_args *a)
{
    return (size_t)a->attr[D0_ATTR_WIDTH].i * 16 * sizeof(float);
}

/* n <= 16 channels of one row. taps: [width][16] */
static void NAME(conv_row)(size_t width, size_t stride, size_t n, const float *taps, float *tail,
                           const float *x, lanes bias, bool silu, float *out)
{
    lanes now = NAME(some_load)(x, n), sum = lanes_zero();
    for (size_t j = 0; j + 1 < width; j++) {
        lanes was = NAME(some_load)(tail + j * stride, n);
        sum = lanes_fma(was, lanes_load(taps + j * 16), sum);
        if (j > 0)
            NAME(some_store)(tail + (j - 1) * stride, n, was);
    }
    NAME(some_store)(tail + (width - 2) * stride, n, now);
    sum = lanes_add(lanes_fma(now, lanes_load(taps + (width - 1) * 16), sum), bias);
    NAME(some_store)(out, n, silu ? NAME(silu)(sum) : sum);
}

static void NAME(conv_channels)(const struct kern_args *a, const struct ref_slots *slots, size_t c, size_t n,
                                float *taps)
{
    const float *x = a->in[0];                    /* [T, C] */
    float *tails = a->state[0], *out = a->out[0]; /* [slots, width - 1, C], [T, C] */
    size_t width = (size_t)a->attr[D0_ATTR_WIDTH].i, stride = (size_t)a->n;
    bool silu = a->attr[D0_ATTR_FUNCTION].i == 0;
    for (size_t j = 0; j < width; j++)
        for (size_t i = 0; i < 16; i++)
            taps[j * 16 + i] = i < n ? ref_load(a->in[1], a->in_dtype[1], (c + i) * width + j) : 0;
    lanes bias = lanes_zero();
    if (a->in[6])
        bias = n == 16 ? lanes_load_any(a->in[6], a->in_dtype[6], c)
                       : lanes_load_any_n(a->in[6], a->in_dtype[6], c, n);
    for (size_t t = 0; t < (size_t)a->n_rows; t++) {
        int64_t slot = ref_slot(slots, t);
        if (slot < 0) {
            NAME(some_store)(out + t * stride + c, n, lanes_set1(NAN));
            continue;
        }
        float *tail = tails + (size_t)slot * (width - 1) * stride + c;
        for (size_t j = 0; slots->positions[t] == 0 && j + 1 < width; j++)
            NAME(some_store)(tail + j * stride, n, lanes_zero());
        NAME(conv_row)(width, stride, n, taps, tail, x + t * stride + c, bias, silu, out + t * stride + c);
    }
}

static void NAME(short_conv)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct ref_slots slots = ref_slots_of(a, 2, 3);
    float *taps = (float *)((unsigned char *)a->scratch + (size_t)thread * a->scratch_bytes);
    for (size_t c = first; c < last; c += 16)
        NAME(conv_channels)(a, &slots, c, last - c < 16 ? last - c : 16, taps);
}

/* ---- delta_rule; scratch: three rows of dim values in whole vectors -------------------------------------
 */

/* ln(1 + u) for 0 <= u <= 1, as 2 atanh(u / (2 + u)): the series in s^2 <= 1/9 ends 2^-25 below its sum. */
INLINE lanes NAME(log1p_unit)(lanes u)
{
    lanes s = lanes_div(u, lanes_add(u, lanes_set1(2.0f))), z = lanes_mul(s, s), p = lanes_set1(1.0f / 15);
    for (int k = 13; k >= 3; k -= 2)
        p = lanes_fma(p, z, lanes_set1(1.0f / (float)k));
    lanes twice = lanes_add(s, s);
    return lanes_fma(lanes_mul(p, z), twice, twice);
}

/* exp of the log decay of sixteen gate values; rate is exp(A_log) */
INLINE lanes NAME(decay)(lanes z, float rate, float lower)
{
    lanes minus = lanes_sub(lanes_zero(), z);
    if (lower != 0) {
        lanes e = lanes_exp(lanes_mul(minus, lanes_set1(rate)));
        return lanes_exp(lanes_div(lanes_set1(lower), lanes_add(lanes_set1(1.0f), e)));
    }
    lanes softplus =
        lanes_add(lanes_max(lanes_zero(), z), NAME(log1p_unit)(lanes_exp(lanes_min(z, minus)))); /* e^-|z| */
    return lanes_exp(lanes_mul(softplus, lanes_set1(-rate)));
}

/* The decays of one row and head: decay[dim]. */
static void NAME(decays)(const struct kern_args *a, const struct ref_delta *d, size_t t, size_t h,
                         float *decay)
{
    const float *g = a->in[3];
    float rate = (float)exp((double)ref_load(a->in[5], a->in_dtype[5], h)), lower = (float)d->lower;
    if (!d->channel) {
        float z = g[t * d->v_heads + h] + ref_load(a->in[6], a->in_dtype[6], h), all[16];
        lanes_store(all, NAME(decay)(lanes_set1(z), rate, lower));
        for (size_t i = 0; i < d->dim; i++)
            decay[i] = all[0];
        return;
    }
    size_t from = h * d->heads / d->v_heads * d->dim;
    for (size_t i = 0; i < d->dim; i += 16) {
        size_t n = d->dim - i < 16 ? d->dim - i : 16;
        lanes dt = n == 16 ? lanes_load_any(a->in[6], a->in_dtype[6], from + i)
                           : lanes_load_any_n(a->in[6], a->in_dtype[6], from + i, n);
        lanes z = lanes_add(NAME(some_load)(g + t * d->heads * d->dim + from + i, n), dt);
        NAME(some_store)(decay + i, n, NAME(decay)(z, rate, lower));
    }
}

static void NAME(unit_row)(const struct ref_delta *d, const float *x, double scale, float *out)
{
    if (d->eps > 0)
        scale /= __builtin_sqrt((double)NAME(sum_squares)(x, d->dim, 1) + d->eps);
    lanes by = lanes_set1((float)scale);
    for (size_t i = 0; i < d->dim; i += 16) {
        size_t n = d->dim - i < 16 ? d->dim - i : 16;
        NAME(some_store)(out + i, n, lanes_mul(NAME(some_load)(x + i, n), by));
    }
}

/* `blocks` vectors of columns (n values in the last) of S take up one row and give o. Twice down the rows:
 * what S says of k, then the correction and what the new S says of q. */
INLINE void NAME(delta_columns)(const struct ref_delta *d, float *S, const float *decay, const float *k,
                                const float *q, const float *v, float beta, float *o, int blocks, size_t n)
{
    lanes said[4], change[4], out[4];
    for (int b = 0; b < blocks; b++)
        said[b] = out[b] = lanes_zero();
    for (size_t i = 0; i < d->dim; i++) {
        lanes a = lanes_set1(decay[i]), ki = lanes_set1(k[i]);
        for (int b = 0; b < blocks; b++) {
            lanes s = lanes_mul(NAME(some_load)(S + i * d->v_dim + (size_t)b * 16, n), a);
            said[b] = lanes_fma(s, ki, said[b]);
        }
    }
    for (int b = 0; b < blocks; b++)
        change[b] = lanes_mul(lanes_sub(NAME(some_load)(v + (size_t)b * 16, n), said[b]), lanes_set1(beta));
    for (size_t i = 0; i < d->dim; i++) {
        lanes a = lanes_set1(decay[i]), ki = lanes_set1(k[i]), qi = lanes_set1(q[i]);
        for (int b = 0; b < blocks; b++) {
            float *at = S + i * d->v_dim + (size_t)b * 16;
            lanes s = lanes_fma(change[b], ki, lanes_mul(NAME(some_load)(at, n), a));
            NAME(some_store)(at, n, s);
            out[b] = lanes_fma(s, qi, out[b]);
        }
    }
    for (int b = 0; b < blocks; b++)
        NAME(some_store)(o + (size_t)b * 16, n, out[b]);
}

static void NAME(delta_row)(const struct kern_args *a, const struct ref_delta *d, size_t t, size_t n,
                            size_t h, float *S, void *scratch)
{
    (void)n; /* one */
    const float *q = a->in[0], *k = a->in[1], *beta = a->in[4];
    size_t each = ALIGN_UP(d->dim, 16), at = (t * d->heads + h * d->heads / d->v_heads) * d->dim,
           value = (t * d->v_heads + h) * d->v_dim, j = 0;
    const float *v = (const float *)a->in[2] + value;
    float *out = (float *)a->out[0] + value, b = beta[t * d->v_heads + h];
    float *decay = scratch, *unit_k = decay + each, *unit_q = unit_k + each;
    NAME(decays)(a, d, t, h, decay);
    NAME(unit_row)(d, k + at, 1.0, unit_k);
    NAME(unit_row)(d, q + at, d->scale, unit_q);
    for (; j + 64 <= d->v_dim; j += 64)
        NAME(delta_columns)(d, S + j, decay, unit_k, unit_q, v + j, b, out + j, 4, 16);
    for (; j + 16 <= d->v_dim; j += 16)
        NAME(delta_columns)(d, S + j, decay, unit_k, unit_q, v + j, b, out + j, 1, 16);
    if (j < d->v_dim)
        NAME(delta_columns)(d, S + j, decay, unit_k, unit_q, v + j, b, out + j, 1, d->v_dim - j);
}
