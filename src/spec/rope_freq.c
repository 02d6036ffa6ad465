/* SPDX-License-Identifier: Apache-2.0
 *
 * Inverse frequencies of the rotation, in the arithmetic of the reference (transformers, PyTorch): every
 * operation rounds to float32, a Python scalar becomes float32 when it meets a tensor, and scalar / tensor is
 * reciprocal(tensor) * scalar. The power alone is computed in double and rounded once, which is the correctly
 * rounded float32 power in all but hopeless cases.
 */
#include "spec/spec_internal.h"

#include <math.h>

/* Llama 3: long waves are stretched by `factor`, short ones kept, those between blended. */
static float llama3(float inv, const struct rope_scaling *s)
{
    /* these three are Python floats: double until they meet the tensor */
    float low_wave = (float)(s->original / s->low), high_wave = (float)(s->original / s->high);
    float wave = (1.0f / inv) * (float)(2 * 3.141592653589793);
    if (wave < high_wave)
        return inv;
    float scaled = inv / (float)s->factor;
    if (wave > low_wave)
        return scaled;
    float blend = ((1.0f / wave) * (float)s->original - (float)s->low) / (float)(s->high - s->low);
    return (1.0f - blend) * inv / (float)s->factor + blend * inv;
}

void rope_inv_freq(int64_t dim, double theta, const struct rope_scaling *s, float *out)
{
    for (int64_t j = 0; j < dim / 2; j++) {
        float exponent = (float)(2 * j) / (float)dim;
        float inv = 1.0f / (float)pow((double)(float)theta, (double)exponent);
        if (s->type == ROPE_LINEAR)
            inv /= (float)s->factor;
        else if (s->type == ROPE_LLAMA3)
            inv = llama3(inv, s);
        out[j] = inv;
    }
}
