/* SPDX-License-Identifier: Apache-2.0
 *
 * Activations in float64, written from ops.def, with the natural scale of their results.
 */
#ifndef KCHECK_KC_ACTIVATION_H
#define KCHECK_KC_ACTIVATION_H

#include "kc.h"

/* Values of the attribute `function`. */
enum {
    KC_SILU,
    KC_GELU_TANH,
    KC_GELU_ERF,
    KC_QUICK_GELU,
    KC_SIGMOID,
    KC_RELU2,
    KC_TANH,
    KC_IDENTITY,
    KC_SWIGLUOAI,
    KC_SITU,
    KC_SILU_CLAMP,
    KC_SILU_CLAMP_OUT,
    KC_SOFTCAP,
    KC_RELU,
    KC_N_FUNCTIONS
};

struct kc_scaled {
    double value, scale; /* scale: as docs/numerics.md says, without a floor */
};

/* The attribute `function` of the case: one of all, or of those of a single value; and its numbers. */
void kc_make_function(struct kc_case *c, bool pair, unsigned index);
const char *kc_function_name(const struct kc_case *c);
/* Some values of input i where exponentials leave float32. Not in poisoned cases: there 0 * infinity would
 * meet a result that float32 cannot hold. */
void kc_wide_gates(struct kc_case *c, unsigned i);

struct kc_scaled kc_act(const struct kc_case *c, double x);
struct kc_scaled kc_glu(const struct kc_case *c, double gate, double up);
/* How far glu(g, u) moves, in its own units, when g or u does, whose natural scales are by_g and by_u: what
 * an error of a sum becomes. */
double kc_reach(const struct kc_case *c, double g, double u, double by_g, double by_u);

#endif
