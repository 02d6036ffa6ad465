/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of act and glu, and the activations themselves in float64: each as ops.def writes it.
 */
#include <math.h>
#include <string.h>

#include "kc_activation.h"
#include "kc_make.h"

static const char *const names[KC_N_FUNCTIONS] = {
    "silu",     "gelu_tanh", "gelu_erf", "quick_gelu", "sigmoid",        "relu2",   "tanh",
    "identity", "swigluoai", "situ",     "silu_clamp", "silu_clamp_out", "softcap", "relu"};

const char *kc_function_name(const struct kc_case *c)
{
    return names[c->a.attr[D0_ATTR_FUNCTION].i];
}

void kc_make_function(struct kc_case *c, bool pair, unsigned index)
{
    static const double limits[] = {7, 0.5, 30, 1};
    int64_t f = index % KC_N_FUNCTIONS;
    if (!pair && f >= KC_SWIGLUOAI && f <= KC_SILU_CLAMP_OUT)
        f = index / KC_N_FUNCTIONS % KC_SWIGLUOAI;
    c->a.function = f;
    c->a.attr[D0_ATTR_FUNCTION].i = f;
    c->a.attr[D0_ATTR_LIMIT].f = limits[kc_between(c, 0, 3)];
    c->a.attr[D0_ATTR_ALPHA].f = kc_chance(c, 2) ? 1.702 : 0.3;
    c->a.attr[D0_ATTR_BETA].f = kc_chance(c, 2) ? 4 : 0.7;
    c->a.attr[D0_ATTR_LINEAR_BETA].f = kc_chance(c, 2) ? 25 : 3.3;
}

void kc_wide_gates(struct kc_case *c, unsigned i)
{
    float *gate = c->in[i].data;
    for (size_t e = 0; e < c->in[i].bytes / sizeof *gate && c->values != KC_POISON; e++)
        if (kc_chance(c, 16))
            gate[e] = (float)(kc_normal(&c->rng) * 60);
}

/* ---- definitions ---- */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* NaN stays NaN, which fmin would not do */
static double at_most(double x, double limit)
{
    return isnan(x) ? x : fmin(x, limit);
}

static double clip(double x, double limit)
{
    return isnan(x) ? x : fmax(-limit, fmin(x, limit));
}

struct kc_scaled kc_act(const struct kc_case *c, double x)
{
    double limit = c->a.attr[D0_ATTR_LIMIT].f, y = NAN, scale = 0;
    const double pi = 3.14159265358979323846;
    switch (c->a.attr[D0_ATTR_FUNCTION].i) {
    case KC_SILU:
        y = silu(x);
        break;
    case KC_GELU_TANH: /* 1 + tanh: two terms, the larger is 1 */
        y = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * pow(x, 3))));
        scale = fabs(x) / 2;
        break;
    case KC_GELU_ERF:
        y = 0.5 * x * (1 + erf(x / sqrt(2)));
        scale = fabs(x) / 2;
        break;
    case KC_QUICK_GELU: /* the argument is rounded: a relative error of the exponential */
        y = x * sigmoid(1.702 * x);
        scale = fabs(y) * (1 + 1.702 * fabs(x));
        break;
    case KC_SIGMOID:
        y = sigmoid(x);
        break;
    case KC_RELU2:
        y = isnan(x) ? x : pow(fmax(x, 0), 2);
        break;
    case KC_TANH:
        y = tanh(x);
        break;
    case KC_IDENTITY:
        y = x;
        break;
    case KC_SOFTCAP:
        y = limit * tanh(x / limit);
        break;
    case KC_RELU:
        y = isnan(x) ? x : fmax(x, 0);
        break;
    default:
        break;
    }
    return (struct kc_scaled){y, fmax(fabs(y), scale)};
}

struct kc_scaled kc_glu(const struct kc_case *c, double gate, double up)
{
    double limit = c->a.attr[D0_ATTR_LIMIT].f, alpha = c->a.attr[D0_ATTR_ALPHA].f,
           beta = c->a.attr[D0_ATTR_BETA].f, linear = c->a.attr[D0_ATTR_LINEAR_BETA].f;
    struct kc_scaled s = {.scale = 0};
    double g = at_most(gate, limit), u = clip(up, limit);
    switch (c->a.attr[D0_ATTR_FUNCTION].i) {
    case KC_SWIGLUOAI: /* u + 1 is a sum, alpha * g a rounded argument */
        s.value = g * sigmoid(alpha * g) * (u + 1);
        s.scale = fabs(g * sigmoid(alpha * g)) * fmax(1, fabs(u)) * (1 + alpha * fabs(g));
        break;
    case KC_SITU:
        s.value = beta * tanh(gate / beta) * sigmoid(gate) * linear * tanh(up / linear);
        break;
    case KC_SILU_CLAMP:
        s.value = silu(g) * u;
        break;
    case KC_SILU_CLAMP_OUT:
        s.value = at_most(silu(gate), limit) * u;
        break;
    default:
        s = kc_act(c, gate);
        s.value *= up;
        s.scale *= fabs(up);
    }
    s.scale = fmax(s.scale, fabs(s.value));
    return s;
}

/* ---- act, glu ---- */

const unsigned kc_cases_ACT = 350;

void kc_make_ACT(struct kc_case *c, unsigned index)
{
    int64_t k = c->large ? 8192 : width_of(c, index, 900), t = c->large ? 512 : kc_between(c, 0, 20);
    kc_fill(c, 0, D0_F32, t * k, k);
    poison(c, 0, t, k);
    kc_make_function(c, false, c->large ? KC_GELU_ERF : index);
    kc_wide_gates(c, 0);
    kc_output(c, t, k);
    kc_dims(c, 0, 2, (int64_t[]){t, k});
    c->a.tokens = t;
    c->a.k = k;
    c->moved = 8.0 * (double)(t * k);
    snprintf(c->shape, sizeof c->shape, "%s T=%d K=%d", kc_function_name(c), (int)t, (int)k);
}

void kc_judge_ACT(struct kc_case *c)
{
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        struct kc_scaled s = kc_act(c, kc_at(c, 0, i));
        c->want[0][i] = s.value;
        c->scale[0][i] = fmax(s.scale, SCALE_FLOOR);
    }
}

double kc_reach(const struct kc_case *c, double g, double u, double by_g, double by_u)
{
    const double step = 0x1p-20;
    const struct kc_scaled own = kc_glu(c, g, u); /* what its own arithmetic may be off by, too */
    double h = own.value, far[2] = {0, 0};
    for (int sign = -1; sign <= 1; sign += 2) {
        if (isfinite(g) && isfinite(by_g))
            far[0] = fmax(far[0], fabs(kc_glu(c, g + sign * step * by_g, u).value - h) / step);
        if (isfinite(u) && isfinite(by_u))
            far[1] = fmax(far[1], fabs(kc_glu(c, g, u + sign * step * by_u).value - h) / step);
    }
    return fmax(fmax(fabs(h), own.scale), far[0] + far[1]);
}

const unsigned kc_cases_GLU = 420;

void kc_make_GLU(struct kc_case *c, unsigned index)
{
    make_pair(c, index);
    kc_make_function(c, true, c->large ? KC_SILU : index);
    kc_wide_gates(c, 0);
    size_t n = strlen(c->shape);
    snprintf(c->shape + n, sizeof c->shape - n, " %s", kc_function_name(c));
}

void kc_judge_GLU(struct kc_case *c)
{
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        double up = kc_at(c, 1, i);
        struct kc_scaled s = kc_glu(c, kc_at(c, 0, i), up);
        c->want[0][i] = s.value;
        c->scale[0][i] = fmax(s.scale, SCALE_FLOOR * fmax(1, fabs(up)));
    }
}
