/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what a weight stored as codes is (d0_format): where its parts lie and what each code means, in plain
 * C. Every kernel that computes with codes is judged by this file. Refuses formats that the device header
 * does not define.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/tensor.h"

/* ---- single codes ---- */

/* Sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity; all ones: NaN. The same bits as an F16 have
 * a bias of 15: 2^8 less. */
static float e4m3(unsigned code)
{
    if ((code & 0x7f) == 0x7f)
        return NAN;
    return 256 * f16_to_f32((uint16_t)((code & 0x7f) << 7 | (code & 0x80) << 8));
}

/* Sign, 2 bits of exponent, 1 of mantissa: 0 0.5 1 1.5 2 3 4 6. */
static float e2m1(unsigned code)
{
    static const float magnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -magnitude[code & 7] : magnitude[code & 7];
}

static float e8m0(unsigned code)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = code ? code << 23 : 1u << 22}; /* 2^-127 is subnormal */
    return code == 255 ? NAN : v.f;
}

float tensor_code(uint32_t dtype, unsigned code)
{
    switch (dtype) {
    case D0_F8_E4M3:
        return e4m3(code);
    case D0_F8_E5M2: /* the upper half of an F16 */
        return f16_to_f32((uint16_t)(code << 8));
    case D0_F4:
        return e2m1(code);
    case D0_I8:
        return (float)(int8_t)code;
    default:
        return (float)code;
    }
}

float tensor_scale(const void *scales, uint32_t dtype, size_t i)
{
    float v = NAN;
    uint16_t half;
    switch (dtype) {
    case D0_F32:
        memcpy(&v, (const unsigned char *)scales + 4 * i, sizeof v);
        return v;
    case D0_BF16:
    case D0_F16:
        memcpy(&half, (const unsigned char *)scales + 2 * i, sizeof half);
        return dtype == D0_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
    case D0_F8_E4M3:
        return e4m3(((const unsigned char *)scales)[i]);
    case D0_F8_E8M0:
        return e8m0(((const unsigned char *)scales)[i]);
    default:
        return v;
    }
}

/* ---- layout ---- */

static bool is_code(uint32_t dtype)
{
    return dtype == D0_F8_E4M3 || dtype == D0_F8_E5M2 || dtype == D0_F4 || dtype == D0_I8 || dtype == D0_U8 ||
           dtype == D0_U4;
}

static bool is_scale(uint32_t dtype)
{
    return dtype == D0_F32 || dtype == D0_BF16 || dtype == D0_F16 || dtype == D0_F8_E4M3 ||
           dtype == D0_F8_E8M0;
}

/* `count` elements of `bits` from the next multiple of 64 on: where they begin, and *end moved behind them.
 */
static bool part_after(uint64_t *end, uint64_t count, uint64_t bits, uint64_t *begin)
{
    uint64_t n;
    if (*end > UINT64_MAX - 64 || !mul_u64(count, bits, &n) || n > UINT64_MAX - 7)
        return false;
    *begin = ALIGN_UP(*end, 64);
    return add_u64(*begin, (n + 7) / 8, end);
}

bool tensor_form_of(const struct d0_value *v, struct tensor_form *out)
{
    const struct d0_format *f = &v->format;
    struct tensor_form t = {.format = *f, .dtype = v->dtype, .matrices = 1};
    const uint32_t known = D0_FORMAT_ZEROS | D0_FORMAT_GLOBAL | D0_FORMAT_DIVIDE | D0_FORMAT_ORDER;
    if (!is_scale(f->scale_dtype) || !is_code(v->dtype) || v->n_dims < 2 || v->n_dims > D0_MAX_DIMS ||
        (f->flags & ~known) || f->bias < -255 || f->bias > 255)
        return false;
    if (dtype_is_float(v->dtype) && (f->bias || (f->flags & D0_FORMAT_ZEROS)))
        return false;
    uint64_t matrices = 1, rows, scales;
    for (uint32_t i = 0; i < v->n_dims; i++)
        if (v->dims[i] <= 0)
            return false;
    for (uint32_t i = 0; i + 2 < v->n_dims; i++)
        if (!mul_u64(matrices, (uint64_t)v->dims[i], &matrices))
            return false;
    t.n = v->dims[v->n_dims - 2];
    t.k = v->dims[v->n_dims - 1];
    int64_t group_n = f->group_n && f->group_n < t.n ? f->group_n : t.n,
            group_k = f->group_k && f->group_k < t.k ? f->group_k : t.k;
    t.groups_n = (t.n - 1) / group_n + 1;
    t.groups_k = (t.k - 1) / group_k + 1;
    uint64_t end = 0, begin, bits = dtype_bits(v->dtype);
    if (t.k > INT64_MAX / 64 || matrices > INT64_MAX / 64)
        return false;
    t.matrices = (int64_t)matrices;
    t.row_bytes = ((uint64_t)t.k * bits + 7) / 8;
    if (!mul_u64(matrices, (uint64_t)t.n, &rows) || !part_after(&end, rows, 8 * t.row_bytes, &begin) ||
        !mul_u64(matrices, (uint64_t)t.groups_n, &scales) ||
        !mul_u64(scales, (uint64_t)t.groups_k, &scales) ||
        !part_after(&end, scales, dtype_bits(f->scale_dtype), &t.scales))
        return false;
    if ((f->flags & D0_FORMAT_ZEROS) && !part_after(&end, scales, 8, &t.zeros))
        return false;
    if ((f->flags & D0_FORMAT_GLOBAL) && !part_after(&end, matrices, 32, &t.global))
        return false;
    if ((f->flags & D0_FORMAT_ORDER) &&
        (!mul_u64(matrices, (uint64_t)t.k, &rows) || !part_after(&end, rows, 32, &t.order)))
        return false;
    t.bytes = end;
    *out = t;
    return true;
}

bool tensor_value_bytes(const struct d0_value *v, const int64_t dims[D0_N_DIMS], uint64_t *out)
{
    struct tensor_form f;
    if (v->format.scale_dtype) {
        if (!tensor_form_of(v, &f))
            return false;
        *out = f.bytes;
        return true;
    }
    uint64_t n = 1, bits = dtype_bits(v->dtype);
    for (uint32_t i = 0; i < v->n_dims && i < D0_MAX_DIMS; i++) {
        int64_t d = v->dims[i];
        if (d < 0)
            d = d >= -D0_N_DIMS ? dims[-1 - d] : -1;
        if (d < 0 || !mul_u64(n, (uint64_t)d, &n))
            return false;
    }
    if (bits == 0 || !mul_u64(n, bits, &n) || !add_u64(n, 7, &n))
        return false;
    *out = n / 8;
    return true;
}

/* ---- rows ---- */

static unsigned code_at(const unsigned char *row, uint32_t dtype, size_t k)
{
    if (dtype != D0_F4 && dtype != D0_U4)
        return row[k];
    return k % 2 ? row[k / 2] >> 4 : row[k / 2] & 15;
}

void tensor_form_row(const struct tensor_form *f, const void *data, size_t row, float *out)
{
    tensor_form_run(f, data, row, 0, (size_t)f->k, out);
}

void tensor_form_run(const struct tensor_form *f, const void *data, size_t row, size_t from, size_t n,
                     float *out)
{
    const unsigned char *bytes = data, *codes = bytes + row * f->row_bytes;
    const size_t matrix = row / (size_t)f->n, k_groups = (size_t)f->groups_k;
    const uint32_t flags = f->format.flags;
    size_t group_n = f->format.group_n && f->format.group_n < f->n ? f->format.group_n : (size_t)f->n,
           group_k = f->format.group_k && f->format.group_k < f->k ? f->format.group_k : (size_t)f->k;
    size_t first = (matrix * (size_t)f->groups_n + row % (size_t)f->n / group_n) * k_groups;
    float global = 1;
    if (flags & D0_FORMAT_GLOBAL)
        memcpy(&global, bytes + f->global + 4 * matrix, sizeof global);
    for (size_t k = from; k < from + n; k++, out++) {
        size_t group = k / group_k;
        if (flags & D0_FORMAT_ORDER) {
            int32_t g;
            memcpy(&g, bytes + f->order + 4 * (matrix * (size_t)f->k + k), sizeof g);
            group = (size_t)g;
            if (g < 0 || group >= k_groups) { /* not from a checked file: no number */
                *out = NAN;
                continue;
            }
        }
        float scale = tensor_scale(bytes + f->scales, f->format.scale_dtype, first + group);
        if (flags & D0_FORMAT_GLOBAL)
            scale = flags & D0_FORMAT_DIVIDE ? scale / global : scale * global;
        float zero =
            (flags & D0_FORMAT_ZEROS) ? (float)bytes[f->zeros + first + group] : (float)f->format.bias;
        *out = (tensor_code(f->dtype, code_at(codes, f->dtype, k)) - zero) * scale;
    }
}
