/* SPDX-License-Identifier: Apache-2.0
 *
 * Activations between products, compiled once per instruction set: those that come down to one exponential,
 * sixteen at a time; the others one by one as the reference computes them.
 */
#include "kern/ref/ref_activation.h"

struct NAME(activation) {
    int64_t function;
    double alpha, limit, beta, linear_beta;
};

static struct NAME(activation) NAME(activation_of)(const struct kern_args *a)
{
    return (struct NAME(activation)){a->attr[D0_ATTR_FUNCTION].i, a->attr[D0_ATTR_ALPHA].f,
                                     a->attr[D0_ATTR_LIMIT].f, a->attr[D0_ATTR_BETA].f,
                                     a->attr[D0_ATTR_LINEAR_BETA].f};
}

/* x / (1 + e^-z), z of the sign of x or x 1. Below -18 the 1 is lost in float32 and e^-z may overflow though
 * the quotient is an ordinary number: there x * e^(z/2) * e^(z/2). */
INLINE lanes NAME(gated)(lanes x, lanes z)
{
    const float far = -18.0f;
    lanes half = lanes_mul(z, lanes_set1(0.5f));
    lanes e = lanes_exp(lanes_select_below(z, far, half, lanes_sub(lanes_zero(), z)));
    lanes near = lanes_div(x, lanes_add(lanes_set1(1.0f), e));
    return lanes_select_below(z, far, lanes_mul(lanes_mul(x, e), e), near);
}

/* The bound comes first: min and max keep a NaN that comes second. */
INLINE lanes NAME(at_most)(lanes x, float limit)
{
    return lanes_min(lanes_set1(limit), x);
}

INLINE lanes NAME(clip)(lanes x, float limit)
{
    return lanes_max(lanes_set1(-limit), NAME(at_most)(x, limit));
}

INLINE lanes NAME(positive)(lanes x)
{
    return lanes_max(lanes_zero(), x);
}

/* 2 sqrt(2/pi) (x + 0.044715 x^3) */
INLINE lanes NAME(gelu_argument)(lanes x)
{
    lanes cubed = lanes_mul(lanes_mul(x, x), x);
    return lanes_mul(lanes_fma(cubed, lanes_set1(0.044715f), x), lanes_set1(1.5957691216057308f));
}

static bool NAME(in_lanes)(int64_t function)
{
    return function != REF_GELU_ERF && function != REF_TANH && function != REF_SITU &&
           function != REF_SOFTCAP;
}

/* Sixteen of act(gate), and of up what it is multiplied by */
INLINE lanes NAME(activate)(const struct NAME(activation) * f, lanes g)
{
    float limit = (float)f->limit;
    switch (f->function) {
    case REF_SILU:
        return NAME(gated)(g, g);
    case REF_GELU_TANH:
        return NAME(gated)(g, NAME(gelu_argument)(g));
    case REF_QUICK_GELU:
        return NAME(gated)(g, lanes_mul(g, lanes_set1(1.702f)));
    case REF_SIGMOID:
        return NAME(gated)(lanes_set1(1.0f), g);
    case REF_RELU2:
        return lanes_mul(NAME(positive)(g), NAME(positive)(g));
    case REF_SWIGLUOAI:
        g = NAME(at_most)(g, limit);
        return NAME(gated)(g, lanes_mul(g, lanes_set1((float)f->alpha)));
    case REF_SILU_CLAMP:
        g = NAME(at_most)(g, limit);
        return NAME(gated)(g, g);
    case REF_SILU_CLAMP_OUT:
        return NAME(at_most)(NAME(gated)(g, g), limit);
    case REF_RELU:
        return NAME(positive)(g);
    default:
        return g; /* identity */
    }
}

INLINE lanes NAME(factor_of)(const struct NAME(activation) * f, lanes u)
{
    float limit = (float)f->limit;
    if (f->function == REF_SWIGLUOAI)
        return lanes_add(NAME(clip)(u, limit), lanes_set1(1.0f));
    return f->function == REF_SILU_CLAMP || f->function == REF_SILU_CLAMP_OUT ? NAME(clip)(u, limit) : u;
}

/* out[n] = glu(gate[n], up[n]); without a gate act(up[n]) */
static void NAME(glu_row)(const struct NAME(activation) * f, const float *gate, const float *up, size_t n,
                          float *out)
{
    for (size_t i = 0; i < n && !NAME(in_lanes)(f->function); i++)
        out[i] = (float)(gate ? ref_glu_value(f->function, (double)gate[i], (double)up[i], f->alpha, f->limit,
                                              f->beta, f->linear_beta)
                              : ref_activation(f->function, (double)up[i], f->alpha, f->limit));
    for (size_t i = 0; i < n && NAME(in_lanes)(f->function); i += 16) {
        size_t m = n - i < 16 ? n - i : 16;
        lanes u = m == 16 ? lanes_load(up + i) : lanes_load_n(up + i, m), y;
        if (gate) {
            lanes g = m == 16 ? lanes_load(gate + i) : lanes_load_n(gate + i, m);
            y = lanes_mul(NAME(activate)(f, g), NAME(factor_of)(f, u));
        } else {
            y = NAME(activate)(f, u);
        }
        if (m == 16)
            lanes_store(out + i, y);
        else
            lanes_store_n(out + i, m, y);
    }
}
