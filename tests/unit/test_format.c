/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights stored as codes: every code and every scale against definitions written again here, and the layout.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "tensor/tensor.h"

/* A float of `e` exponent and `m` mantissa bits, by the words of its standard: sums of powers of two. */
static double small_float(unsigned code, unsigned e, unsigned m, int bias)
{
    unsigned exponent = code >> m & ((1u << e) - 1), mantissa = code & ((1u << m) - 1);
    double fraction = exponent ? 1 : 0;
    for (unsigned i = 0; i < m; i++)
        if (mantissa >> (m - 1 - i) & 1)
            fraction += pow(2, -(double)(i + 1));
    double v = fraction * pow(2, (double)(exponent ? (int)exponent : 1) - bias);
    return code >> (e + m) & 1 ? -v : v;
}

static void test_every_code(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 256; c++) {
        float v = tensor_code(D0_F8_E4M3, c);
        if ((c & 0x7f) == 0x7f)
            assert_true(isnan(v));
        else
            assert_true((double)v == small_float(c, 4, 3, 7));
        v = tensor_code(D0_F8_E5M2, c);
        if ((c & 0x7f) > 0x7c)
            assert_true(isnan(v));
        else if ((c & 0x7f) == 0x7c)
            assert_true(v == (c >> 7 ? -INFINITY : INFINITY));
        else
            assert_true((double)v == small_float(c, 5, 2, 15));
        assert_true(tensor_code(D0_I8, c) == (float)(c < 128 ? (int)c : (int)c - 256));
        assert_true(tensor_code(D0_U8, c) == (float)c);
        unsigned char byte = (unsigned char)c;
        v = tensor_scale(&byte, D0_F8_E8M0, 0);
        assert_true(c == 255 ? isnan(v) : (double)v == pow(2, (double)c - 127));
        v = tensor_scale(&byte, D0_F8_E4M3, 0);
        assert_true((c & 0x7f) == 0x7f ? isnan(v) : (double)v == small_float(c, 4, 3, 7));
    }
    for (unsigned c = 0; c < 16; c++) {
        assert_true((double)tensor_code(D0_F4, c) == small_float(c, 2, 1, 1));
        assert_true(tensor_code(D0_U4, c) == (float)c);
    }
    assert_true(tensor_code(D0_F8_E4M3, 0x7e) == 448 && tensor_code(D0_F8_E5M2, 0x7b) == 57344 &&
                tensor_code(D0_F4, 7) == 6);
}

static void test_every_half_scale(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 65536; c++) {
        uint16_t half = (uint16_t)c;
        float b = tensor_scale(&half, D0_BF16, 0), h = tensor_scale(&half, D0_F16, 0);
        assert_true((c & 0x7fff) > 0x7f80 ? isnan(b) : b == bf16_to_f32(half));
        if ((c & 0x7c00) != 0x7c00)
            assert_true((double)h == small_float(c, 5, 10, 15));
    }
}

/* ---- rows ---- */

struct shape {
    uint32_t dtype;
    struct d0_format format;
    int64_t matrices, n, k;
};

static void put_code(unsigned char *row, uint32_t dtype, int64_t k, unsigned code)
{
    if (dtype_bits(dtype) == 8)
        row[k] = (unsigned char)code;
    else
        row[k / 2] = (unsigned char)(k % 2 ? (row[k / 2] & 15) | code << 4 : (row[k / 2] & 0xf0) | code);
}

/* Fills the parts where the header says they lie, by its words, and keeps every number that should come out.
 */
static void check_shape(const struct shape *s, struct rng *r)
{
    struct d0_value v = {.kind = D0_VALUE_WEIGHT,
                         .dtype = s->dtype,
                         .n_dims = 3,
                         .dims = {s->matrices, s->n, s->k},
                         .format = s->format};
    const int64_t gn = s->format.group_n ? s->format.group_n : s->n,
                  gk = s->format.group_k ? s->format.group_k : s->k, blocks_n = (s->n + gn - 1) / gn,
                  blocks_k = (s->k + gk - 1) / gk, blocks = s->matrices * blocks_n * blocks_k,
                  row = (s->k * (int64_t)dtype_bits(s->dtype) + 7) / 8;
    int64_t at = s->matrices * s->n * row, scales = (at + 63) / 64 * 64,
            end = scales + blocks * (int64_t)dtype_bits(s->format.scale_dtype) / 8, zeros = 0, global = 0,
            order = 0;
    if (s->format.flags & D0_FORMAT_ZEROS)
        end = (zeros = (end + 63) / 64 * 64) + blocks;
    if (s->format.flags & D0_FORMAT_GLOBAL)
        end = (global = (end + 63) / 64 * 64) + 4 * s->matrices;
    if (s->format.flags & D0_FORMAT_ORDER)
        end = (order = (end + 63) / 64 * 64) + 4 * s->matrices * s->k;
    struct tensor_form f;
    assert_true(tensor_form_of(&v, &f));
    assert_int_equal(f.bytes, end);
    uint64_t bytes;
    assert_true(tensor_value_bytes(&v, (int64_t[D0_N_DIMS]){0}, &bytes));
    assert_int_equal(bytes, end);

    unsigned char *p = calloc(1, (size_t)end);
    float *want = calloc((size_t)(s->matrices * s->n * s->k), sizeof *want),
          *got = calloc((size_t)s->k, sizeof *got);
    assert_true(p && want && got);
    for (int64_t i = 0; i < blocks; i++) {
        float scale = (float)rng_next_f64(r) + 0.1f;
        if (dtype_bits(s->format.scale_dtype) == 8)
            p[scales + i] = (unsigned char)(40 + rng_below(r, 60));
        else
            tensor_from_f32(&scale, 1, s->format.scale_dtype,
                            p + scales + i * (int64_t)dtype_bits(s->format.scale_dtype) / 8);
        if (zeros)
            p[zeros + i] = (unsigned char)rng_below(r, 17);
    }
    for (int64_t m = 0; m < s->matrices; m++) {
        float g = (float)rng_next_f64(r) + 0.5f;
        if (global)
            memcpy(p + global + 4 * m, &g, 4);
        for (int64_t k = 0; order && k < s->k; k++) {
            int32_t group = (int32_t)rng_below(r, (uint64_t)blocks_k);
            memcpy(p + order + 4 * (m * s->k + k), &group, 4);
        }
        for (int64_t n = 0; n < s->n; n++)
            for (int64_t k = 0; k < s->k; k++) {
                unsigned code = (unsigned)rng_below(r, dtype_bits(s->dtype) == 4 ? 16 : 120);
                int32_t group = (int32_t)(k / gk);
                put_code(p + (m * s->n + n) * row, s->dtype, k, code);
                if (order)
                    memcpy(&group, p + order + 4 * (m * s->k + k), 4);
                int64_t block = (m * blocks_n + n / gn) * blocks_k + group;
                float scale = tensor_scale(p + scales, s->format.scale_dtype, (size_t)block);
                if (global)
                    scale = s->format.flags & D0_FORMAT_DIVIDE ? scale / g : scale * g;
                float zero = zeros ? (float)p[zeros + block] : (float)s->format.bias;
                want[(m * s->n + n) * s->k + k] = (tensor_code(s->dtype, code) - zero) * scale;
            }
    }
    for (int64_t i = 0; i < s->matrices * s->n; i++) {
        tensor_form_row(&f, p, (size_t)i, got);
        assert_memory_equal(got, want + i * s->k, (size_t)s->k * sizeof *got);
    }
    free(p);
    free(want);
    free(got);
}

static void test_rows(void **state)
{
    (void)state;
    static const uint32_t codes[] = {D0_F8_E4M3, D0_F8_E5M2, D0_F4, D0_I8, D0_U8, D0_U4},
                          scales[] = {D0_F32, D0_BF16, D0_F16, D0_F8_E4M3, D0_F8_E8M0};
    struct rng r;
    rng_init(&r, 11);
    for (unsigned i = 0; i < 600; i++) {
        struct shape s = {.dtype = codes[i % 6],
                          .matrices = 1 + (int64_t)rng_below(&r, 3),
                          .n = 1 + (int64_t)rng_below(&r, 40),
                          .k = 1 + (int64_t)rng_below(&r, 150)};
        bool integer = !dtype_is_float(s.dtype);
        s.format.scale_dtype = scales[rng_below(&r, 5)];
        s.format.group_n = (uint32_t)rng_below(&r, 3) * 8;
        s.format.group_k = (uint32_t)rng_below(&r, 4) * 16;
        if (rng_below(&r, 2))
            s.format.flags |= D0_FORMAT_GLOBAL | (rng_below(&r, 2) ? D0_FORMAT_DIVIDE : 0);
        if (integer && rng_below(&r, 2))
            s.format.flags |= D0_FORMAT_ZEROS;
        else if (integer)
            s.format.bias = 8;
        if (rng_below(&r, 4) == 0)
            s.format.flags |= D0_FORMAT_ORDER;
        check_shape(&s, &r);
    }
}

static void test_refused(void **state)
{
    (void)state;
    const struct d0_value good = {.kind = D0_VALUE_WEIGHT,
                                  .dtype = D0_U4,
                                  .n_dims = 2,
                                  .dims = {4, 64},
                                  .format = {.scale_dtype = D0_BF16, .group_n = 1, .group_k = 32}};
    struct tensor_form f;
    assert_true(tensor_form_of(&good, &f));
    struct d0_value v[] = {good, good, good, good, good, good, good, good};
    v[0].format.scale_dtype = D0_I32;
    v[1].format.flags = 16;
    v[2].n_dims = 1;
    v[3].dims[0] = 0;
    v[4].dtype = D0_BF16;
    v[5].format.bias = 300;
    v[6].dims[0] = v[6].dims[1] = INT64_C(1) << 40;
    v[7].dtype = D0_F4;
    v[7].format.flags = D0_FORMAT_ZEROS;
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++)
        if (tensor_form_of(&v[i], &f))
            fail_msg("format %zu was taken", i);
    /* an order that points nowhere gives no number, and reads nothing */
    v[0] = good;
    v[0].format.flags = D0_FORMAT_ORDER;
    assert_true(tensor_form_of(&v[0], &f));
    unsigned char *p = calloc(1, (size_t)f.bytes);
    float out[64];
    int32_t far = INT32_MAX;
    memcpy(p + f.order, &far, 4);
    tensor_form_row(&f, p, 0, out);
    assert_true(isnan(out[0]) && out[1] == 0);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code),
        cmocka_unit_test(test_every_half_scale),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
