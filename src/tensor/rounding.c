/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what a row of activations becomes before its products (x_formats.def), in plain C: the scale of a run
 * of columns, the rounding, and the value that code and scale stand for. Every kernel uses it or is judged by
 * it. Refuses formats that the table does not hold.
 *
 * All arithmetic is float32, rounded after each operation. A scale s comes from the largest magnitude `a` of
 * its run:
 *
 *  LARGEST     s = a / 127 or a / 448.
 *    vLLM's dynamic_scaled_int8_quant (a / 127.0f, and the saturating nearest of x * (127 / a)), SGLang's and
 *    Ascend's int8 per token do so, FP8 per token and DeepSeek's act_quant as well. compressed-tensors'
 *    calculate_qparams takes (127 + 128) / 2 = 127.5 for int8, 0.4 % of a step more: that calibrates and
 *    emulates, and what serves such a release is the kernels above, so 127 is the definition here. They put
 *    small floors under s (1e-10; 1e-4 under a; 1/(448*512)); here there is none, so small rows keep their
 *    bits.
 *  POWER_UP    the least power of two, at least 2^-126, that is not below a / 448: DeepSeek's
 *    fast_round_scale, NVIDIA's conversion to E8M0 rounding up.
 *  POWER_NEAR  2^(e - 2), e the exponent of a once a mantissa of 1.75 or more has gone to the next; at least
 *    2^-126: compressed-tensors' generate_mxfp4_scales. Values up to 1.75 * 2^e of 1.5 * 2^e saturate.
 *  E4M3        c = (a / 6) / x_scale to the nearest E4M3, at most 448; s = c * x_scale. ModelOpt stores
 *    x_scale = largest / (6 * 448); vLLM and TensorRT-LLM compute c so.
 *  GIVEN       s = x_scale.
 *
 * The code is x / s to the nearest of its type, ties to even, at most the largest finite one; the value is
 * code * s. s == 0 gives zeroes. A run with a NaN or an infinity is NaN throughout, as it is where such
 * scales are computed; of GIVEN only the NaN itself is, and infinities saturate. A zero is positive.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/tensor.h"

static const struct tensor_rounding roundings[] = {
#define X_FORMAT(id, NAME, text, dtype, group, scale, meaning) {id, text, dtype, group, ROUNDING_##scale},
#include "day0/x_formats.def"
#undef X_FORMAT
};

const struct tensor_rounding *tensor_rounding(int64_t x_format)
{
    for (size_t i = 0; i < ARRAY_LEN(roundings); i++)
        if ((int64_t)roundings[i].id == x_format)
            return &roundings[i];
    return NULL;
}

bool tensor_rounding_given(const struct tensor_rounding *r)
{
    return r->scale == ROUNDING_GIVEN || r->scale == ROUNDING_E4M3;
}

static uint32_t bits_of(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

/* ---- codes --------------------------------------------------------------------------------------------- */

static float clamped(float v, float low, float high)
{
    v = v > high ? high : v; /* NaN passes */
    return v < low ? low : v;
}

/* v, |v| below 2^100, to `mantissa` bits behind the point of its own power of two, at least 2^least:
 * adding 1.5 * 2^23 times the distance of neighbours leaves the nearest, ties to even. */
static float nearest(float v, uint32_t mantissa, uint32_t least)
{
    uint32_t power = bits_of(v) & 0x7f800000u, floor = (127u + least) << 23;
    power = power < floor ? floor : power;
    float c = float_of((power + ((23 - mantissa) << 23)) | 0x400000u);
    return (v + c) - c;
}

static float nearest_e4m3(float v)
{
    return nearest(clamped(v, -448, 448), 3, (uint32_t)-6);
}

static float nearest_e2m1(float v)
{
    return nearest(clamped(v, -6, 6), 1, 0);
}

static float nearest_i8(float v)
{
    const float c = 12582912.0f; /* 1.5 * 2^23 */
    return (clamped(v, -128, 127) + c) - c;
}

/* ---- scales -------------------------------------------------------------------------------------------- */

static float largest_code(uint32_t dtype)
{
    return dtype == D0_I8 ? 127 : dtype == D0_F4 ? 6 : 448;
}

float tensor_rounding_scale(const struct tensor_rounding *r, float largest, float given)
{
    uint32_t u;
    if (r->scale == ROUNDING_NONE)
        return 1;
    if (r->scale == ROUNDING_GIVEN)
        return given;
    if (!isfinite(largest))
        return NAN;
    switch (r->scale) {
    case ROUNDING_POWER_UP:
        u = bits_of(largest / largest_code(r->dtype));
        return float_of((u + 0x7fffffu) & 0x7f800000u);
    case ROUNDING_POWER_NEAR:
        u = (bits_of(largest) + 0x200000u) >> 23;
        return largest == 0 ? 0 : float_of((u < 3 ? 1 : u - 2) << 23);
    case ROUNDING_E4M3:
        return nearest_e4m3(largest / largest_code(r->dtype) / given) * given;
    default:
        return largest / largest_code(r->dtype);
    }
}

float tensor_rounding_value(const struct tensor_rounding *r, float v, float scale)
{
    if (r->scale == ROUNDING_NONE)
        return bf16_to_f32(f32_to_bf16(v));
    if (scale == 0)
        return 0;
    float q = v / scale;
    return scale * (r->dtype == D0_I8   ? nearest_i8(q)
                    : r->dtype == D0_F4 ? nearest_e2m1(q)
                                        : nearest_e4m3(q));
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

static float largest_of(const float *x, size_t n)
{
    uint32_t top = 0; /* the bits of magnitudes are in order, infinity and NaN last */
    for (size_t i = 0; i < n; i++) {
        uint32_t u = bits_of(x[i]) & 0x7fffffffu;
        top = u > top ? u : top;
    }
    return float_of(top);
}

static void round_run(const struct tensor_rounding *r, float scale, const float *x, size_t n, float *out)
{
    if (scale == 0)
        for (size_t i = 0; i < n; i++)
            out[i] = 0;
    else if (r->dtype == D0_I8)
        for (size_t i = 0; i < n; i++)
            out[i] = scale * nearest_i8(x[i] / scale);
    else if (r->dtype == D0_F4)
        for (size_t i = 0; i < n; i++)
            out[i] = scale * nearest_e2m1(x[i] / scale);
    else
        for (size_t i = 0; i < n; i++)
            out[i] = scale * nearest_e4m3(x[i] / scale);
}

void tensor_round_row(const struct tensor_rounding *r, float given, const float *x, size_t n, float *out)
{
    if (r->scale == ROUNDING_NONE) {
        for (size_t i = 0; i < n; i++)
            out[i] = bf16_to_f32(f32_to_bf16(x[i]));
        return;
    }
    size_t group = r->group ? r->group : n;
    for (size_t at = 0; at < n; at += group) {
        size_t run = n - at < group ? n - at : group;
        float top = r->scale == ROUNDING_GIVEN ? 0 : largest_of(x + at, run);
        round_run(r, tensor_rounding_scale(r, top, given), x + at, run, out + at);
    }
}
