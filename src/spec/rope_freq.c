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

/* Yarn: the ramp between the pairs that turn often (kept) and those that turn slowly (stretched). The limits
 * are Python floats: double. */
static double turning_pair(double turns, int64_t dim, double theta, double length)
{
    return ((double)dim * log(length / (turns * 2 * 3.141592653589793))) / (2 * log(theta));
}

static void yarn(int64_t dim, double theta, const struct rope_scaling *s, float *out)
{
    double low = turning_pair(s->high, dim, theta, s->original),
           high = turning_pair(s->low, dim, theta, s->original);
    if (s->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0 ? low : 0;
    high = high < (double)(dim - 1) ? high : (double)(dim - 1);
    if (low == high)
        high += 0.001;
    for (int64_t j = 0; j < dim / 2; j++) {
        float power = (float)pow((double)(float)theta, (double)((float)(2 * j) / (float)dim));
        float ramp = ((float)j - (float)low) / (float)(high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        float kept = 1.0f - ramp;
        float inter = 1.0f / ((float)s->factor * power), extra = 1.0f / power;
        out[j] = inter * (1.0f - kept) + extra * kept;
    }
}

void rope_inv_freq(int64_t dim, double theta, const struct rope_scaling *s, float *out)
{
    if (s->type == ROPE_YARN) {
        yarn(dim, theta, s, out);
        return;
    }
    for (int64_t j = 0; j < dim / 2; j++) {
        float exponent = (float)(2 * j) / (float)dim;
        float inv = 1.0f / (float)pow((double)(float)theta, (double)exponent);
        if (s->type == ROPE_LINEAR)
            inv /= (float)s->factor;
        else if (s->type == ROPE_LLAMA3)
            inv = llama3(inv, s);
        else if (s->type == ROPE_FACTORS)
            inv = 1.0f / (s->factors[j] * (float)pow((double)(float)theta, (double)exponent));
        else if (s->type == ROPE_PROPORTIONAL && j >= s->live)
            inv = 0;
        out[j] = inv;
    }
}
