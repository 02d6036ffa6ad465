/* SPDX-License-Identifier: Apache-2.0
 *
 * ACT and GLU, compiled once per instruction set: every function of ops.def on sixteen lanes. The function is
 * chosen once per range of elements, not per element.
 */
#include "kern/ref/ref_activation.h"

/* x / (1 + e^-a), x times the sigmoid of a. Below -18 the 1 is lost in float32 and e^-a may overflow though
 * the quotient is an ordinary number: there x * e^(a/2) * e^(a/2). */
INLINE lanes NAME(sigmoid_times)(lanes x, lanes a)
{
    const float far = -18.0f;
    lanes half = lanes_mul(a, lanes_set1(0.5f));
    lanes e = lanes_exp(lanes_select_below(a, far, half, lanes_sub(lanes_zero(), a)));
    lanes near = lanes_div(x, lanes_add(lanes_set1(1.0f), e));
    return lanes_select_below(a, far, lanes_mul(lanes_mul(x, e), e), near);
}

INLINE lanes NAME(silu)(lanes x)
{
    return NAME(sigmoid_times)(x, x);
}

INLINE lanes NAME(magnitude)(lanes x)
{
    return lanes_max(lanes_sub(lanes_zero(), x), x);
}

INLINE lanes NAME(at_most)(lanes x, lanes limit)
{
    return lanes_min(limit, x);
}

INLINE lanes NAME(clip)(lanes x, lanes limit)
{
    return lanes_min(limit, lanes_max(lanes_sub(lanes_zero(), limit), x));
}

/* To 2 ulp. From 5/8 on (e^2x - 1) / (e^2x + 1); below, where that would cancel, the continued fraction of
 * five levels, x (945 + 105 z + z^2) / (945 + 420 z + 15 z^2) with z = x^2 (remainder 1e-9 of the result). */
INLINE lanes NAME(tanh)(lanes x)
{
    const float small = 0.625f;
    lanes m = lanes_min(lanes_set1(10.0f), NAME(magnitude)(x)), z = lanes_mul(m, m); /* tanh(10) is 1 */
    lanes e = lanes_exp(lanes_add(m, m)), one = lanes_set1(1.0f);
    lanes over = lanes_fma(lanes_add(z, lanes_set1(105.0f)), z, lanes_set1(945.0f)),
          under = lanes_fma(lanes_fma(lanes_set1(15.0f), z, lanes_set1(420.0f)), z, lanes_set1(945.0f));
    over = lanes_select_below(m, small, lanes_mul(m, over), lanes_sub(e, one));
    under = lanes_select_below(m, small, under, lanes_add(e, one));
    lanes y = lanes_div(over, under);
    return lanes_select_below(x, 0.0f, lanes_sub(lanes_zero(), y), y);
}

/* x times the normal distribution's share below x. The share beyond |x| is (a1 t + ... + a5 t^5) e^(-x^2/2) /
 * 2, t = 1 / (1 + p |x| / sqrt 2): Abramowitz and Stegun 7.1.26, to 8e-8. */
INLINE lanes NAME(gelu_erf)(lanes x)
{
    lanes z = lanes_mul(NAME(magnitude)(x), lanes_set1(0.70710678118654752f)), one = lanes_set1(1.0f);
    lanes t = lanes_div(one, lanes_fma(lanes_set1(0.3275911f), z, one));
    lanes p = lanes_fma(lanes_set1(1.061405429f), t, lanes_set1(-1.453152027f));
    p = lanes_fma(p, t, lanes_set1(1.421413741f));
    p = lanes_fma(p, t, lanes_set1(-0.284496736f));
    p = lanes_mul(lanes_fma(p, t, lanes_set1(0.254829592f)), t);
    lanes beyond =
        lanes_mul(lanes_mul(p, lanes_set1(0.5f)), lanes_exp(lanes_sub(lanes_zero(), lanes_mul(z, z))));
    return lanes_mul(x, lanes_select_below(x, 0.0f, beyond, lanes_sub(one, beyond)));
}

/* (1 + tanh s) / 2 is the sigmoid of 2 s; s = sqrt(2/pi) (x + 0.044715 x^3) */
INLINE lanes NAME(gelu_tanh)(lanes x)
{
    const float twice = 1.5957691216057308f; /* 2 sqrt(2/pi) */
    lanes p = lanes_fma(lanes_mul(x, x), lanes_set1(0.044715f * twice), lanes_set1(twice));
    return NAME(sigmoid_times)(x, lanes_mul(x, p));
}

/* The numbers of a function, in every lane. */
struct NAME(numbers) {
    lanes limit, by_limit, alpha, beta, by_beta, linear, by_linear; /* by_: one over it */
};

static struct NAME(numbers) NAME(numbers_of)(const struct kern_args *a)
{
    double limit = a->attr[D0_ATTR_LIMIT].f, beta = a->attr[D0_ATTR_BETA].f,
           linear = a->attr[D0_ATTR_LINEAR_BETA].f;
    return (struct NAME(numbers)){.limit = lanes_set1((float)limit),
                                  .by_limit = lanes_set1((float)(1.0 / limit)),
                                  .alpha = lanes_set1((float)a->attr[D0_ATTR_ALPHA].f),
                                  .beta = lanes_set1((float)beta),
                                  .by_beta = lanes_set1((float)(1.0 / beta)),
                                  .linear = lanes_set1((float)linear),
                                  .by_linear = lanes_set1((float)(1.0 / linear))};
}

INLINE lanes NAME(bounded)(lanes x, lanes bound, lanes by_bound)
{
    return lanes_mul(bound, NAME(tanh)(lanes_mul(x, by_bound)));
}

/* The functions of one value; `function` is a constant wherever this is used. */
INLINE lanes NAME(act_of)(const int64_t function, const struct NAME(numbers) * p, lanes x)
{
    switch (function) {
    case REF_SILU:
        return NAME(silu)(x);
    case REF_GELU_TANH:
        return NAME(gelu_tanh)(x);
    case REF_GELU_ERF:
        return NAME(gelu_erf)(x);
    case REF_QUICK_GELU:
        return NAME(sigmoid_times)(x, lanes_mul(x, lanes_set1(1.702f)));
    case REF_SIGMOID:
        return NAME(sigmoid_times)(lanes_set1(1.0f), x);
    case REF_RELU2:
        x = lanes_max(lanes_zero(), x);
        return lanes_mul(x, x);
    case REF_TANH:
        return NAME(tanh)(x);
    case REF_SOFTCAP:
        return NAME(bounded)(x, p->limit, p->by_limit);
    case REF_RELU:
        return lanes_max(lanes_zero(), x);
    default:
        return x; /* identity */
    }
}

INLINE lanes NAME(glu_of)(const int64_t function, const struct NAME(numbers) * p, lanes g, lanes u)
{
    switch (function) {
    case REF_SWIGLUOAI:
        g = NAME(at_most)(g, p->limit);
        return lanes_mul(NAME(sigmoid_times)(g, lanes_mul(g, p->alpha)),
                         lanes_add(NAME(clip)(u, p->limit), lanes_set1(1.0f)));
    case REF_SITU:
        return lanes_mul(NAME(sigmoid_times)(NAME(bounded)(g, p->beta, p->by_beta), g),
                         NAME(bounded)(u, p->linear, p->by_linear));
    case REF_SILU_CLAMP:
        return lanes_mul(NAME(silu)(NAME(at_most)(g, p->limit)), NAME(clip)(u, p->limit));
    case REF_SILU_CLAMP_OUT:
        return lanes_mul(NAME(at_most)(NAME(silu)(g), p->limit), NAME(clip)(u, p->limit));
    default:
        return lanes_mul(NAME(act_of)(function, p, g), u);
    }
}

#define EACH_ACT(X)                                                                                          \
    X(REF_SILU)                                                                                              \
    X(REF_GELU_TANH)                                                                                         \
    X(REF_GELU_ERF)                                                                                          \
    X(REF_QUICK_GELU)                                                                                        \
    X(REF_SIGMOID)                                                                                           \
    X(REF_RELU2)                                                                                             \
    X(REF_TANH)                                                                                              \
    X(REF_IDENTITY)                                                                                          \
    X(REF_SOFTCAP)                                                                                           \
    X(REF_RELU)
#define EACH_GLU(X)                                                                                          \
    EACH_ACT(X)                                                                                              \
    X(REF_SWIGLUOAI)                                                                                         \
    X(REF_SITU)                                                                                              \
    X(REF_SILU_CLAMP)                                                                                        \
    X(REF_SILU_CLAMP_OUT)

INLINE void NAME(act_loop)(const int64_t function, const struct NAME(numbers) * p, const float *x, float *out,
                           size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        lanes_store(out + i, NAME(act_of)(function, p, lanes_load(x + i)));
    if (i < n)
        lanes_store_n(out + i, n - i, NAME(act_of)(function, p, lanes_load_n(x + i, n - i)));
}

INLINE void NAME(glu_loop)(const int64_t function, const struct NAME(numbers) * p, const float *gate,
                           const float *up, float *out, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        lanes_store(out + i, NAME(glu_of)(function, p, lanes_load(gate + i), lanes_load(up + i)));
    if (i < n)
        lanes_store_n(out + i, n - i,
                      NAME(glu_of)(function, p, lanes_load_n(gate + i, n - i), lanes_load_n(up + i, n - i)));
}

#define ACT_CASE(FUNCTION)                                                                                   \
    case FUNCTION:                                                                                           \
        NAME(act_loop)(FUNCTION, &p, x, out, n);                                                             \
        break;
#define GLU_CASE(FUNCTION)                                                                                   \
    case FUNCTION:                                                                                           \
        NAME(glu_loop)(FUNCTION, &p, gate, up, out, n);                                                      \
        break;

/* out[n] = act(x[n]) */
static void NAME(act_run)(const struct kern_args *a, const float *x, float *out, size_t n)
{
    const struct NAME(numbers) p = NAME(numbers_of)(a);
    switch (a->attr[D0_ATTR_FUNCTION].i) {
        EACH_ACT(ACT_CASE)
    }
}

static void NAME(act)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    NAME(act_run)(a, (const float *)a->in[0] + first, (float *)a->out[0] + first, last - first);
}

/* out[n] = glu(gate[n], up[n]) */
static void NAME(glu_run)(const struct kern_args *a, const float *gate, const float *up, float *out, size_t n)
{
    const struct NAME(numbers) p = NAME(numbers_of)(a);
    switch (a->attr[D0_ATTR_FUNCTION].i) {
        EACH_GLU(GLU_CASE)
    }
}

static void NAME(glu)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    NAME(glu_run)
    (a, (const float *)a->in[0] + first, (const float *)a->in[1] + first, (float *)a->out[0] + first,
     last - first);
}
