/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to kern: the activations of ops.def for one value, in float64. ACT, GLU and EXPERTS share them.
 */
#ifndef KERN_REF_ACTIVATION_H
#define KERN_REF_ACTIVATION_H

#include <stdint.h>

/* enum of the attribute `function` (ops.def) */
enum ref_function {
    REF_SILU,
    REF_GELU_TANH,
    REF_GELU_ERF,
    REF_QUICK_GELU,
    REF_SIGMOID,
    REF_RELU2,
    REF_TANH,
    REF_IDENTITY,
    REF_SWIGLUOAI,
    REF_SITU,
    REF_SILU_CLAMP,
    REF_SILU_CLAMP_OUT,
    REF_SOFTCAP,
    REF_RELU,
    REF_N_FUNCTIONS
};

/* act(x). Of the pairs swigluoai, silu_clamp and silu_clamp_out the part that the gate goes through; NaN for
 * situ and what is unknown. NaN stays NaN. */
double ref_activation(int64_t function, double x, double alpha, double limit);

/* act(gate) joined with up, every function */
double ref_glu_value(int64_t function, double gate, double up, double alpha, double limit, double beta,
                     double linear_beta);

#endif
