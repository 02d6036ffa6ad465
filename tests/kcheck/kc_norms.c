/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of layer_norm and gated_norm. Definitions in float64; natural scales as in docs/numerics.md.
 */
#include <math.h>

#include "kc_activation.h"
#include "kc_make.h"

struct sizes {
    int64_t t, d, groups;
};

/* Rows, run and eps; input 0 without values yet. */
static struct sizes norm_sizes(struct kc_case *c, unsigned index)
{
    struct sizes s = {kc_between(c, 0, 12), width_of(c, index, 1200), kc_between(c, 1, 3)};
    if (c->large)
        s = (struct sizes){512, 4096, 1};
    c->a.dim = s.groups > 1 || kc_chance(c, 2) ? s.d : 0;
    c->a.attr[D0_ATTR_DIM].i = c->a.dim;
    c->a.eps = kc_chance(c, 2) ? 1e-6 : 1e-5;
    c->a.attr[D0_ATTR_EPS].f = c->a.eps;
    c->a.tokens = s.t;
    c->a.k = s.d * s.groups;
    kc_output(c, s.t, c->a.k);
    c->moved = 8.0 * (double)(s.t * c->a.k);
    return s;
}

static void maybe_vector(struct kc_case *c, unsigned i, int64_t d)
{
    if (c->large || !kc_chance(c, 4)) {
        kc_fill(c, i, kc_any_type(c), d, 0);
        kc_dims(c, i, 1, &d);
    }
}

static const char *type_of(const struct kc_case *c, unsigned i)
{
    return c->in[i].data ? dtype_name(c->a.in_dtype[i]) : "none";
}

/* ---- layer_norm ---- */

const unsigned kc_cases_LAYER_NORM = TAILS + 150;

void kc_make_LAYER_NORM(struct kc_case *c, unsigned index)
{
    static const float means[] = {0, 1, -30, 1000};
    struct sizes s = norm_sizes(c, index);
    float unit = c->values == KC_TINY   ? 0x1p-40f
                 : c->values == KC_HUGE ? 0x1p30f
                                        : 1,
          mean = c->large ? 0 : means[kc_between(c, 0, 3)] * unit;
    kc_fill(c, 0, D0_F32, s.t * c->a.k, c->a.k);
    float *x = c->in[0].data;
    for (int64_t i = 0; i < s.t * c->a.k; i++)
        x[i] += mean;
    poison(c, 0, s.t, c->a.k);
    kc_dims(c, 0, 2, (int64_t[]){s.t, c->a.k});
    maybe_vector(c, 1, s.d);
    maybe_vector(c, 2, s.d);
    snprintf(c->shape, sizeof c->shape, "T=%d D=%d groups=%d w=%s b=%s mean=%g", (int)s.t, (int)s.d,
             (int)s.groups, type_of(c, 1), type_of(c, 2), (double)mean);
}

void kc_judge_LAYER_NORM(struct kc_case *c)
{
    size_t d = (size_t)(c->a.dim ? c->a.dim : c->a.k);
    kc_judge_begin(c);
    for (size_t g = 0; g < kc_outputs(c, 0); g += d) {
        double sum = 0, raw = 0, squares = 0;
        for (size_t i = g; i < g + d; i++) {
            sum += kc_at(c, 0, i);
            raw += pow(kc_at(c, 0, i), 2);
        }
        double mean = sum / (double)d, mean_scale = fmax(fabs(mean), 2 * sqrt(raw) / (double)d);
        for (size_t i = g; i < g + d; i++)
            squares += pow(kc_at(c, 0, i) - mean, 2);
        double deviation = sqrt(squares / (double)d + c->a.eps);
        for (size_t i = 0; i < d; i++) {
            double x = kc_at(c, 0, g + i), w = c->in[1].data ? kc_at(c, 1, i) : 1,
                   b = c->in[2].data ? kc_at(c, 2, i) : 0;
            c->want[0][g + i] = (x - mean) / deviation * w + b;
            c->scale[0][g + i] =
                fmax(SCALE_FLOOR, fmax(fmax(fabs(x), mean_scale) / deviation * fabs(w), fabs(b)));
        }
    }
}

/* ---- gated_norm ---- */

const unsigned kc_cases_GATED_NORM = TAILS + 210;

void kc_make_GATED_NORM(struct kc_case *c, unsigned index)
{
    struct sizes s = norm_sizes(c, index);
    enum kc_values values = c->values;
    kc_fill(c, 0, D0_F32, s.t * c->a.k, c->a.k);
    poison(c, 0, s.t, c->a.k);
    kc_dims(c, 0, 2, (int64_t[]){s.t, c->a.k});
    c->values = values == KC_HUGE ? KC_NORMAL : values; /* squares of x * act(gate) stay within float32 */
    kc_fill(c, 1, D0_F32, s.t * c->a.k, c->a.k);
    c->values = values;
    poison(c, 1, s.t, c->a.k);
    kc_dims(c, 1, 2, (int64_t[]){s.t, c->a.k});
    maybe_vector(c, 2, s.d);
    kc_make_function(c, false, c->large ? KC_SILU : index);
    kc_wide_gates(c, 1);
    c->a.attr[D0_ATTR_BEFORE].i = !c->large && kc_chance(c, 2);
    c->moved *= 1.5;
    snprintf(c->shape, sizeof c->shape, "%s%s T=%d D=%d groups=%d w=%s", kc_function_name(c),
             c->a.attr[D0_ATTR_BEFORE].i ? " before" : "", (int)s.t, (int)s.d, (int)s.groups, type_of(c, 2));
}

void kc_judge_GATED_NORM(struct kc_case *c)
{
    size_t d = (size_t)(c->a.dim ? c->a.dim : c->a.k);
    bool before = c->a.attr[D0_ATTR_BEFORE].i != 0;
    kc_judge_begin(c);
    for (size_t g = 0; g < kc_outputs(c, 0); g += d) {
        double squares = 0, errors = 0;
        for (size_t i = g; i < g + d; i++) {
            struct kc_scaled gate = before ? kc_act(c, kc_at(c, 1, i)) : (struct kc_scaled){1, 1};
            squares += pow(kc_at(c, 0, i) * gate.value, 2);
            errors += pow(kc_at(c, 0, i), 2) * fabs(gate.value) * gate.scale;
        }
        /* how much less precise than its terms the mean of squares is: gates that are small differences */
        double loose = squares > 0 ? fmax(1, errors / squares) : 1;
        double root = sqrt(squares / (double)d + c->a.eps);
        for (size_t i = 0; i < d; i++) {
            struct kc_scaled gate = kc_act(c, kc_at(c, 1, g + i));
            double y = kc_at(c, 0, g + i) / root * (c->in[2].data ? kc_at(c, 2, i) : 1);
            c->want[0][g + i] = y * gate.value;
            c->scale[0][g + i] =
                fmax(fabs(y) * fmax(gate.scale, fabs(gate.value) * loose), SCALE_FLOOR * fmax(1, fabs(y)));
        }
    }
}
