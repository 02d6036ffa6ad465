/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the activations in float64, as ops.def writes them, with the natural scale of each.
 */
#include <math.h>

#include "verify/opcase.h"

/* The attribute `function`. */
enum {
    SILU,
    GELU_TANH,
    GELU_ERF,
    QUICK_GELU,
    SIGMOID,
    RELU2,
    TANH,
    IDENTITY,
    SWIGLUOAI,
    SITU,
    SILU_CLAMP,
    SILU_CLAMP_OUT,
    SOFTCAP,
    RELU
};

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double clip(double x, double low, double high)
{
    return isnan(x) ? x : fmax(low, fmin(x, high));
}

struct opscaled opact(const struct opshape *s, double x)
{
    const double limit = opshape_real(s, D0_ATTR_LIMIT), pi = 3.14159265358979323846;
    double y = NAN, scale = 0;
    switch (opshape_int(s, D0_ATTR_FUNCTION)) {
    case SILU:
        y = silu(x);
        break;
    case GELU_TANH: /* 1 + tanh: two terms, the larger is 1 */
        y = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
        scale = fabs(x) / 2;
        break;
    case GELU_ERF:
        y = 0.5 * x * (1 + erf(x / sqrt(2)));
        scale = fabs(x) / 2;
        break;
    case QUICK_GELU: /* the argument is rounded: a relative error of the exponential */
        y = x * sigmoid(1.702 * x);
        scale = fabs(y) * (1 + 1.702 * fabs(x));
        break;
    case SIGMOID:
        y = sigmoid(x);
        break;
    case RELU2:
        y = clip(x, 0, INFINITY) * clip(x, 0, INFINITY);
        break;
    case TANH:
        y = tanh(x);
        break;
    case IDENTITY:
        y = x;
        break;
    case SOFTCAP:
        y = limit * tanh(x / limit);
        break;
    case RELU:
        y = clip(x, 0, INFINITY);
        break;
    default:
        break;
    }
    return (struct opscaled){y, fmax(fabs(y), scale)};
}

struct opscaled opact_pair(const struct opshape *s, double gate, double up)
{
    double limit = opshape_real(s, D0_ATTR_LIMIT), alpha = opshape_real(s, D0_ATTR_ALPHA),
           beta = opshape_real(s, D0_ATTR_BETA), linear = opshape_real(s, D0_ATTR_LINEAR_BETA),
           g = clip(gate, -INFINITY, limit), u = clip(up, -limit, limit);
    struct opscaled r = {0, 0};
    switch (opshape_int(s, D0_ATTR_FUNCTION)) {
    case SWIGLUOAI: /* u + 1 is a sum, alpha * g a rounded argument */
        r.value = g * sigmoid(alpha * g) * (u + 1);
        r.scale = fabs(g * sigmoid(alpha * g)) * fmax(1, fabs(u)) * (1 + alpha * fabs(g));
        break;
    case SITU:
        r.value = beta * tanh(gate / beta) * sigmoid(gate) * linear * tanh(up / linear);
        break;
    case SILU_CLAMP:
        r.value = silu(g) * u;
        break;
    case SILU_CLAMP_OUT:
        r.value = clip(silu(gate), -INFINITY, limit) * u;
        break;
    default:
        r = opact(s, gate);
        r.value *= up;
        r.scale *= fabs(up);
    }
    r.scale = fmax(r.scale, fabs(r.value));
    return r;
}

struct opscaled opact_between(const struct opshape *s, bool pair, double g, double u)
{
    return pair ? opact_pair(s, g, u) : opact(s, g);
}

double opact_reach(const struct opshape *s, bool pair, double g, double u, double by_g, double by_u)
{
    const double step = 0x1p-20;
    struct opscaled h = opact_between(s, pair, g, u);
    double far[2] = {0, 0};
    for (int sign = -1; sign <= 1; sign += 2) {
        far[0] = fmax(far[0], fabs(opact_between(s, pair, g + sign * step * by_g, u).value - h.value) / step);
        if (pair)
            far[1] =
                fmax(far[1], fabs(opact_between(s, pair, g, u + sign * step * by_u).value - h.value) / step);
    }
    return fmax(h.scale, far[0] + far[1]);
}
