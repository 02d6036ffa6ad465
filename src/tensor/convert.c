/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions between float types, exact where the target holds the value, else rounded to nearest even; and
 * the scan of values that are not finite. Integer arithmetic only, so that every compiler gives the same
 * bits.
 */
#include <math.h>
#include <string.h>

#include "tensor/tensor.h"

static uint32_t float_bits(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

static float bits_float(uint32_t u)
{
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

uint16_t f32_to_bf16(float v)
{
    uint32_t u = float_bits(v);
    if ((u & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(u >> 16 | 0x40); /* keep it a NaN even if its payload sat in the low half */
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

float f16_to_f32(uint16_t v)
{
    uint32_t sign = (uint32_t)(v & 0x8000) << 16, exponent = v >> 10 & 0x1F, mantissa = v & 0x3FF;
    if (exponent == 0x1F)
        return bits_float(sign | 0x7F800000 | mantissa << 13);
    if (exponent)
        return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
    /* subnormal: mantissa * 2^-24, exact in float32 */
    float magnitude = (float)mantissa * 0x1p-24f;
    return bits_float(sign | float_bits(magnitude));
}

uint16_t f32_to_f16(float v)
{
    uint32_t u = float_bits(v), sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFF;
    if (a > 0x7F800000)
        return (uint16_t)(sign | 0x7E00 | (a >> 13 & 0x3FF));
    if (a >= 0x477FF000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7C00);
    if (a >= 0x38800000) { /* normal: from 2^-14 */
        uint32_t rounded = a + 0xFFF + (a >> 13 & 1);
        return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
    }
    if (a < 0x33000000) /* below 2^-25: zero; 2^-25 itself ties to even, zero too */
        return (uint16_t)sign;
    uint32_t exponent = a >> 23, mantissa = (a & 0x7FFFFF) | 0x800000, shift = 126 - exponent;
    uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1));
    return (uint16_t)(sign | kept);
}

bool tensor_to_f32(const void *src, uint32_t dtype, size_t n, float *dst)
{
    const unsigned char *p = src; /* may be unaligned: safetensors promise nothing */
    switch (dtype) {
    case D0_F32:
        if (n)
            memcpy(dst, src, n * sizeof *dst);
        return true;
    case D0_F64:
        for (size_t i = 0; i < n; i++) {
            double v;
            memcpy(&v, p + 8 * i, sizeof v);
            dst[i] = (float)v;
        }
        return true;
    case D0_BF16:
    case D0_F16:
        for (size_t i = 0; i < n; i++) {
            uint16_t v;
            memcpy(&v, p + 2 * i, sizeof v);
            dst[i] = dtype == D0_BF16 ? bf16_to_f32(v) : f16_to_f32(v);
        }
        return true;
    default:
        return false;
    }
}

bool tensor_from_f32(const float *src, size_t n, uint32_t dtype, void *dst)
{
    unsigned char *p = dst;
    switch (dtype) {
    case D0_F32:
        if (n)
            memcpy(dst, src, n * sizeof *src);
        return true;
    case D0_F64:
        for (size_t i = 0; i < n; i++) {
            double v = (double)src[i];
            memcpy(p + 8 * i, &v, sizeof v);
        }
        return true;
    case D0_BF16:
    case D0_F16:
        for (size_t i = 0; i < n; i++) {
            uint16_t v = dtype == D0_BF16 ? f32_to_bf16(src[i]) : f32_to_f16(src[i]);
            memcpy(p + 2 * i, &v, sizeof v);
        }
        return true;
    default:
        return false;
    }
}

static void scan_value(struct tensor_scan *s, double v)
{
    double magnitude = fabs(v);
    s->n++;
    if (isnan(v))
        s->n_nan++;
    else if (isinf(v))
        s->n_inf++;
    else if (magnitude > s->max_abs)
        s->max_abs = magnitude;
    s->n_zero += v == 0;
}

bool tensor_scan_add(struct tensor_scan *s, const void *data, uint32_t dtype, size_t n)
{
    const unsigned char *p = data;
    if (dtype == D0_F64) {
        for (size_t i = 0; i < n; i++) {
            double v;
            memcpy(&v, p + 8 * i, sizeof v);
            scan_value(s, v);
        }
        return true;
    }
    if (dtype != D0_F32 && dtype != D0_BF16 && dtype != D0_F16)
        return false;
    size_t width = dtype == D0_F32 ? 4 : 2;
    float chunk[256];
    for (size_t at = 0; at < n; at += ARRAY_LEN(chunk)) {
        size_t m = n - at < ARRAY_LEN(chunk) ? n - at : ARRAY_LEN(chunk);
        tensor_to_f32(p + at * width, dtype, m, chunk);
        for (size_t i = 0; i < m; i++)
            scan_value(s, (double)chunk[i]);
    }
    return true;
}
