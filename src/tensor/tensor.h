/* SPDX-License-Identifier: Apache-2.0
 *
 * Element types, shapes, exact conversions between types, and metrics that compare two arrays.
 * dtype values are those of include/day0/device.h.
 */
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H

#include "base/err.h"
#include "base/json.h"
#include "day0/device.h"

/* ---- element types ---- */
unsigned dtype_bits(uint32_t dtype);                /* bits of one element; 0 for an unknown type */
const char *dtype_name(uint32_t dtype);             /* safetensors spelling, "BF16"; "?" if unknown */
uint32_t dtype_parse(const char *safetensors_name); /* 0 if unknown */
uint32_t dtype_parse_torch(const char *name);       /* "bfloat16", "torch.float32" -> dtype; 0 if unknown */
bool dtype_is_float(uint32_t dtype);
double dtype_max_finite(uint32_t dtype); /* largest finite magnitude of a float type; 0 else */

/* ---- shapes ---- */
#define TENSOR_MAX_DIMS 8
/* Product of dims and dtype bits, checked: false on overflow or a byte count that is not whole. */
bool shape_elements(const int64_t *dims, unsigned n_dims, uint64_t *out);
bool shape_bytes(const int64_t *dims, unsigned n_dims, uint32_t dtype, uint64_t *out);
const char *shape_format(const int64_t *dims, unsigned n_dims, char *buf, size_t bytes); /* "[512, 64]" */

/* ---- conversions, exact where the target holds the value, else round to nearest even ---- */
static inline float bf16_to_f32(uint16_t v)
{
    union {
        uint32_t u;
        float f;
    } x = {.u = (uint32_t)v << 16};
    return x.f;
}
uint16_t f32_to_bf16(float v); /* NaN stays NaN */
float f16_to_f32(uint16_t v);
uint16_t f32_to_f16(float v);
/* n elements of a float type (F64, F32, BF16, F16) to float32. false if the type is not one of them. */
bool tensor_to_f32(const void *src, uint32_t dtype, size_t n, float *dst);
bool tensor_from_f32(const float *src, size_t n, uint32_t dtype, void *dst);

/* Values of an array that are not finite, and whether all are zero. Streaming: add chunk by chunk. */
struct tensor_scan {
    uint64_t n, n_nan, n_inf, n_zero;
    double max_abs; /* of the finite ones */
};
bool tensor_scan_add(struct tensor_scan *s, const void *data, uint32_t dtype,
                     size_t n); /* false: type not scanned */

/* ---- weights stored as codes: see d0_format ---- */
/* Value of one code of a type that codes come in, exactly: F8_E4M3, F8_E5M2, F4 (code 0..15), I8, U8, U4. */
float tensor_code(uint32_t dtype, unsigned code);
/* Value of a scale of type F32, BF16, F16, F8_E4M3, F8_E8M0. */
float tensor_scale(const void *scales, uint32_t dtype, size_t i);

struct tensor_form {
    struct d0_format format;
    uint32_t dtype;                               /* of the codes */
    int64_t matrices, n, k;                       /* of [..., N, K] */
    int64_t groups_n, groups_k;                   /* blocks of rows, of columns */
    uint64_t row_bytes;                           /* of codes */
    uint64_t scales, zeros, global, order, bytes; /* where the parts begin; all of it */
};
/* Sizes and places of a weight's parts. false: no such format (types, groups, fewer than two dimensions), or
 * too large. A plain value has scale_dtype 0 and is no such weight: false. */
bool tensor_form_of(const struct d0_value *v, struct tensor_form *out);
/* The float32 values of one row, counted over all matrices: out[k]. The definition of what such a weight is.
 */
void tensor_form_row(const struct tensor_form *f, const void *data, size_t row, float *out);
/* Columns from .. from + n - 1 of it: out[n]. */
void tensor_form_run(const struct tensor_form *f, const void *data, size_t row, size_t from, size_t n,
                     float *out);
/* Bytes of a value, its negative dims replaced by those of `dims` (index -1 - enum d0_dim). false: too large,
 * or a format that does not exist. */
bool tensor_value_bytes(const struct d0_value *v, const int64_t dims[D0_N_DIMS], uint64_t *out);

/* ---- rounding of activations: see d0_x_format, and rounding.c for each number ---- */
enum tensor_rounding_scale {
    ROUNDING_NONE,
    ROUNDING_LARGEST,
    ROUNDING_POWER_UP,
    ROUNDING_POWER_NEAR,
    ROUNDING_E4M3,
    ROUNDING_GIVEN,
};
struct tensor_rounding {
    uint32_t id; /* enum d0_x_format */
    const char *name;
    uint32_t dtype; /* of the codes */
    uint32_t group; /* columns of one scale; 0: the row */
    uint32_t scale; /* enum tensor_rounding_scale */
};
const struct tensor_rounding *tensor_rounding(int64_t x_format); /* NULL: no such format, or 0 */
bool tensor_rounding_given(const struct tensor_rounding *r);     /* does it take a given scale? */
/* Scale of a run whose largest magnitude is `largest` (not finite: NaN), and what v becomes under it. */
float tensor_rounding_scale(const struct tensor_rounding *r, float largest, float given);
float tensor_rounding_value(const struct tensor_rounding *r, float v, float scale);
/* A row x[n] to out[n], which may be x. given: the attribute x_scale, finite and positive where the format
 * takes one. */
void tensor_round_row(const struct tensor_rounding *r, float given, const float *x, size_t n, float *out);

/* ---- comparison ---- */
struct metrics {
    uint64_t n;
    uint64_t n_nonfinite; /* positions where exactly one of the two is not finite, or both differ in kind */
    uint64_t n_different_bits;
    double max_abs;      /* largest |a - b| */
    uint64_t max_abs_at; /* its index */
    double relative_l2;  /* ||a - b|| / ||b||; 0 if both are zero */
    double cosine;       /* 1 if both are zero */
    double nmse;         /* mean((a-b)^2) / var(b) */
    double max_ulp;      /* largest difference in units in the last place of b (float32) */
};
/* Distance of two finite floats in representable values of float32. */
double metrics_ulp(float a, float b);
/* a: measured, b: reference, both float32[n]. Sums in float64. */
void metrics_compare(const float *a, const float *b, size_t n, struct metrics *out);
/* log(softmax(x)[at]) of logits x[n], at < n: the log-probability of one id. NaN where one of them is NaN. */
double metrics_log_softmax(const float *x, size_t n, size_t at);
/* Rows of logits: KL(softmax(b) || softmax(a)) in nats, and whether the k largest of b are the k largest of
 * a. */
double metrics_kl(const float *a, const float *b, size_t n);
unsigned metrics_top_k_agreement(const float *a, const float *b, size_t n,
                                 unsigned k); /* 0..k common indices */
/* Index of the largest value, lowest index on ties; NaN counts as smallest. n > 0. */
size_t argmax_f32(const float *x, size_t n);
void metrics_write_json(const struct metrics *m, struct json_writer *w);

#endif
