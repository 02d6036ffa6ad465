/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what each activation of ops.def is, for one value in float64. Forms are chosen so that no small
 * result is the difference of large ones. Refuses nothing: rules look at functions before kernels run.
 */
#include "kern/ref/ref_activation.h"

#include <math.h>

/* Comparisons that are false for NaN let it through. */
static double at_most(double x, double limit)
{
    return x > limit ? limit : x;
}

static double clip(double x, double limit)
{
    return x < -limit ? -limit : at_most(x, limit);
}

/* x * sigmoid(z) */
static double gated(double x, double z)
{
    return x / (1.0 + exp(-z));
}

double ref_activation(int64_t function, double x, double alpha, double limit)
{
    const double root = 0.79788456080286535588, half_root = 0.70710678118654752440; /* of 2/pi, of 1/2 */
    switch (function) {
    case REF_SILU:
        return gated(x, x);
    case REF_GELU_TANH: /* (1 + tanh z) / 2 is sigmoid(2 z) */
        return gated(x, 2 * root * (x + 0.044715 * x * x * x));
    case REF_GELU_ERF:
        return 0.5 * x * erfc(-x * half_root);
    case REF_QUICK_GELU:
        return gated(x, 1.702 * x);
    case REF_SIGMOID:
        return gated(1.0, x);
    case REF_RELU2:
        return x < 0 ? 0 : x * x;
    case REF_TANH:
        return tanh(x);
    case REF_IDENTITY:
        return x;
    case REF_SWIGLUOAI:
        return gated(at_most(x, limit), alpha * at_most(x, limit));
    case REF_SILU_CLAMP:
        return gated(at_most(x, limit), at_most(x, limit));
    case REF_SILU_CLAMP_OUT:
        return at_most(gated(x, x), limit);
    case REF_SOFTCAP:
        return limit * tanh(x / limit);
    case REF_RELU:
        return x < 0 ? 0 : x;
    default:
        return NAN;
    }
}

double ref_glu_value(int64_t function, double gate, double up, double alpha, double limit, double beta,
                     double linear_beta)
{
    switch (function) {
    case REF_SITU:
        return beta * tanh(gate / beta) * gated(1.0, gate) * (linear_beta * tanh(up / linear_beta));
    case REF_SWIGLUOAI:
        return ref_activation(function, gate, alpha, limit) * (clip(up, limit) + 1.0);
    case REF_SILU_CLAMP:
    case REF_SILU_CLAMP_OUT:
        return ref_activation(function, gate, alpha, limit) * clip(up, limit);
    default:
        return ref_activation(function, gate, alpha, limit) * up;
    }
}
