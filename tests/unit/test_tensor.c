/* SPDX-License-Identifier: Apache-2.0
 *
 * Types, shapes, conversions of every 16-bit code with ties and edges, scans, and metrics on examples worked
 * by hand.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "tensor/tensor.h"

static uint32_t bits_of(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

static float of_bits(uint32_t u)
{
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

/* The value of a code by its definition, for types of `exponent` and `mantissa` bits with infinities. */
static double value_of(uint16_t code, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, e = code >> mantissa_bits & ((1 << exponent_bits) - 1),
        m = code & ((1 << mantissa_bits) - 1);
    double sign = code & 0x8000 ? -1 : 1;
    if (e == (1 << exponent_bits) - 1)
        return m ? (double)NAN : sign * (double)INFINITY;
    if (e == 0)
        return sign * ldexp(m, 1 - bias - mantissa_bits);
    return sign * ldexp((1 << mantissa_bits) + m, e - bias - mantissa_bits);
}

static void every_code_widens_exactly_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x10000; c++) {
        uint16_t code = (uint16_t)c;
        double b = value_of(code, 8, 7), h = value_of(code, 5, 10);
        float wide_b = bf16_to_f32(code), wide_h = f16_to_f32(code);
        if (isnan(b)) {
            assert_true(isnan(wide_b) && isnan(bf16_to_f32(f32_to_bf16(wide_b))));
        } else {
            assert_true((double)wide_b == b && !signbit(wide_b) == !signbit(b));
            assert_int_equal(f32_to_bf16(wide_b), code);
        }
        if (isnan(h)) {
            assert_true(isnan(wide_h) && isnan(f16_to_f32(f32_to_f16(wide_h))));
        } else {
            assert_true((double)wide_h == h && !signbit(wide_h) == !signbit(h));
            assert_int_equal(f32_to_f16(wide_h), code);
        }
    }
}

/* Between neighbouring codes: the middle goes to the even one, what is beside it to the nearer one. */
static void check_between(uint16_t low, uint16_t (*narrow)(float), float (*widen)(uint16_t))
{
    uint16_t high = (uint16_t)(low + 1), even = low & 1 ? high : low;
    double a = (double)widen(low), b = (double)widen(high);
    float middle = (float)((a + b) / 2);
    assert_true((double)middle == (a + b) / 2);
    assert_int_equal(narrow(middle), even);
    assert_int_equal(narrow(nextafterf(middle, (float)a)), low);
    assert_int_equal(narrow(nextafterf(middle, (float)b)), high);
    assert_int_equal(narrow(-middle), even | 0x8000);
}

static float widen_bf16(uint16_t v)
{
    return bf16_to_f32(v);
}

static void ties_go_to_even(void **state)
{
    (void)state;
    for (uint16_t c = 0; c < 0x7F7F; c++)
        check_between(c, f32_to_bf16, widen_bf16);
    for (uint16_t c = 0; c < 0x7BFF; c++)
        check_between(c, f32_to_f16, f16_to_f32);
}

static void edges_of_the_range(void **state)
{
    (void)state;
    assert_int_equal(f32_to_f16(65504), 0x7BFF);
    assert_int_equal(f32_to_f16(nextafterf(65520, 0)), 0x7BFF);
    assert_int_equal(f32_to_f16(65520), 0x7C00);
    assert_int_equal(f32_to_f16(-1e30f), 0xFC00);
    assert_int_equal(f32_to_f16(0x1p-24f), 1);
    assert_int_equal(f32_to_f16(0x1p-25f), 0);
    assert_int_equal(f32_to_f16(nextafterf(0x1p-25f, 1)), 1);
    assert_int_equal(f32_to_f16(-0x1p-149f), 0x8000);
    assert_int_equal(f32_to_bf16(FLT_MAX), 0x7F80);
    assert_int_equal(f32_to_bf16(of_bits(0x7F7F7FFF)), 0x7F7F);
    assert_int_equal(f32_to_bf16(INFINITY), 0x7F80);
    assert_true(isnan(bf16_to_f32(f32_to_bf16(of_bits(0x7F800001))))); /* a NaN of low bits only */
    assert_true(isnan(f16_to_f32(f32_to_f16(of_bits(0xFF800001)))));
}

static void random_floats_round_to_the_nearest_code(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 200000; i++) {
        float v = of_bits((uint32_t)rng_u64(7, i));
        if (!isfinite(v))
            continue;
        uint16_t b = f32_to_bf16(v), h = f32_to_f16(v);
        double eb = fabs((double)bf16_to_f32(b) - (double)v), eh = fabs((double)f16_to_f32(h) - (double)v);
        for (int step = -1; step <= 1; step += 2) {
            double nb = value_of((uint16_t)(b + step), 8, 7), nh = value_of((uint16_t)(h + step), 5, 10);
            assert_true(isinf(eb) || !isfinite(nb) || fabs(nb - (double)v) >= eb);
            assert_true(isinf(eh) || !isfinite(nh) || fabs(nh - (double)v) >= eh);
        }
    }
}

static void arrays_convert_from_any_address(void **state)
{
    (void)state;
    static const uint32_t types[] = {D0_F64, D0_F32, D0_BF16, D0_F16};
    const float x[5] = {1.5f, -2, 0, 0.25f, 1024};
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        unsigned char bytes[64] = {0};
        float back[5];
        assert_true(tensor_from_f32(x, 5, types[t], bytes + 1));
        assert_true(tensor_to_f32(bytes + 1, types[t], 5, back));
        assert_memory_equal(x, back, sizeof x);
    }
    float none;
    assert_false(tensor_to_f32(x, D0_I32, 1, &none));
    assert_false(tensor_from_f32(x, 1, D0_F8_E4M3, &none));
    assert_true(tensor_to_f32(NULL, D0_F32, 0, NULL));
}

static void types_have_names_and_sizes(void **state)
{
    (void)state;
    unsigned known = 0;
    for (uint32_t t = 0; t < 64; t++) {
        if (!dtype_bits(t)) {
            assert_string_equal(dtype_name(t), "?");
            continue;
        }
        known++;
        assert_int_equal(dtype_parse(dtype_name(t)), t == D0_U4 ? 0 : t); /* no file says U4 */
        assert_true(dtype_is_float(t) == (dtype_max_finite(t) > 0));
    }
    assert_int_equal(known, 23);
    assert_int_equal(dtype_bits(D0_F4), 4);
    assert_int_equal(dtype_parse("bf16"), 0);
    assert_int_equal(dtype_parse_torch("torch.bfloat16"), D0_BF16);
    assert_int_equal(dtype_parse_torch("float8_e4m3fn"), D0_F8_E4M3);
    assert_int_equal(dtype_parse_torch("torch."), 0);
    assert_true(dtype_max_finite(D0_BF16) == (double)bf16_to_f32(0x7F7F));
    assert_true(dtype_max_finite(D0_F16) == (double)f16_to_f32(0x7BFF));
    assert_true(dtype_max_finite(D0_F32) == (double)FLT_MAX);
}

static void shapes_are_checked(void **state)
{
    (void)state;
    uint64_t n = 7;
    char text[64], small[8];
    const int64_t matrix[2] = {512, 64}, huge[3] = {INT64_MAX, 4, 1}, negative[1] = {-1}, odd[1] = {3},
                  empty[2] = {0, 5};
    assert_true(shape_elements(matrix, 2, &n) && n == 32768);
    assert_true(shape_bytes(matrix, 2, D0_BF16, &n) && n == 65536);
    assert_true(shape_elements(NULL, 0, &n) && n == 1);
    assert_true(shape_bytes(empty, 2, D0_F32, &n) && n == 0);
    n = 7;
    assert_false(shape_elements(huge, 3, &n));
    assert_false(shape_elements(negative, 1, &n));
    assert_false(shape_bytes(odd, 1, D0_F4, &n)); /* twelve bits are no whole bytes */
    assert_false(shape_bytes(matrix, 2, 99, &n));
    assert_int_equal(n, 7);
    assert_string_equal(shape_format(matrix, 2, text, sizeof text), "[512, 64]");
    assert_string_equal(shape_format(NULL, 0, text, sizeof text), "[]");
    assert_true(strlen(shape_format(matrix, 2, small, sizeof small)) < sizeof small);
}

static void scans_count(void **state)
{
    (void)state;
    struct tensor_scan s = {0};
    const float x[6] = {NAN, INFINITY, -INFINITY, 0, -0.0f, -3};
    const uint16_t half[3] = {0x7C00, 0x7E00, 0x4400}; /* infinity, NaN, 4 */
    assert_true(tensor_scan_add(&s, x, D0_F32, 6));
    assert_true(tensor_scan_add(&s, half, D0_F16, 3));
    assert_false(tensor_scan_add(&s, x, D0_U8, 6));
    assert_true(s.n == 9 && s.n_nan == 2 && s.n_inf == 3 && s.n_zero == 2 && s.max_abs == 4);
}

static void metrics_of_equal_arrays(void **state)
{
    (void)state;
    const float x[4] = {1, NAN, -INFINITY, 2}, zero[2] = {0, 0};
    struct metrics m;
    metrics_compare(x, x, 4, &m);
    assert_true(m.n == 4 && m.n_nonfinite == 0 && m.n_different_bits == 0 && m.max_abs == 0);
    assert_true(m.relative_l2 == 0 && m.cosine == 1 && m.nmse == 0 && m.max_ulp == 0);
    metrics_compare(zero, zero, 2, &m);
    assert_true(m.cosine == 1 && m.relative_l2 == 0 && m.nmse == 0);
    metrics_compare(zero, zero, 0, &m);
    assert_true(m.n == 0 && m.cosine == 1 && m.relative_l2 == 0);
}

static void metrics_worked_by_hand(void **state)
{
    (void)state;
    const float b[2] = {3, 4}, a[2] = {3, 4.5f};
    struct metrics m;
    metrics_compare(a, b, 2, &m);
    assert_true(m.max_abs == 0.5 && m.max_abs_at == 1 && m.n_different_bits == 1);
    assert_true(fabs(m.relative_l2 - 0.1) < 1e-15);   /* 0.5 / 5 */
    assert_true(fabs(m.nmse - 0.125 / 0.25) < 1e-15); /* var(3, 4) = 1/4 */
    assert_true(fabs(m.cosine - 27 / (5 * sqrt(9 + 20.25))) < 1e-15);
    assert_true(m.max_ulp == 0x1p20); /* 0.5 in steps of 2^-21 */
    const float c[3] = {NAN, 1, INFINITY}, d[3] = {1, 1, -INFINITY};
    metrics_compare(c, d, 3, &m);
    assert_true(m.n_nonfinite == 2 && m.max_abs == 0);
    const float minus = -0.0f, plus = 0;
    metrics_compare(&minus, &plus, 1, &m);
    assert_true(m.n_different_bits == 1 && m.max_ulp == 0 && bits_of(minus) != bits_of(plus));
    const float up = of_bits(1), down = of_bits(0x80000001);
    metrics_compare(&up, &down, 1, &m);
    assert_true(m.max_ulp == 2); /* across zero */
}

static void logits(void **state)
{
    (void)state;
    const float a[3] = {0, 0, 0}, b[3] = {logf(2), 0, 0}; /* p = 1/3 each against 1/2, 1/4, 1/4 */
    assert_true(fabs(metrics_kl(a, b, 3) - (0.5 * log(1.5) + 0.5 * log(0.75))) < 1e-7);
    assert_true(metrics_kl(b, b, 3) == 0);
    const float x[5] = {1, 5, 3, 5, 2}, y[5] = {9, 5, 3, 1, 2};
    assert_int_equal(metrics_top_k_agreement(x, y, 5, 1), 0);
    assert_int_equal(metrics_top_k_agreement(x, y, 5, 2), 1); /* {1, 3} and {0, 1} */
    assert_int_equal(metrics_top_k_agreement(x, y, 5, 5), 5);
    assert_int_equal(argmax_f32(x, 5), 1); /* the lower of two */
    const float z[3] = {NAN, -INFINITY, NAN}, all[2] = {NAN, NAN};
    assert_int_equal(argmax_f32(z, 3), 1);
    assert_int_equal(argmax_f32(all, 2), 0);
}

static void probabilities_of_one_id(void **state)
{
    (void)state;
    const float even[4] = {3, 3, 3, 3}, one[1] = {-7}, two[2] = {0, logf(3)};
    assert_true(fabs(metrics_log_softmax(even, 4, 2) + log(4)) < 1e-15);
    assert_true(metrics_log_softmax(one, 1, 0) == 0);
    assert_true(fabs(metrics_log_softmax(two, 2, 0) - log(0.25)) < 1e-7);
    assert_true(fabs(metrics_log_softmax(two, 2, 1) - log(0.75)) < 1e-7);
    const float large[2] = {3e38f, 3e38f}, far[3] = {30000, 0, -INFINITY}; /* exp of any would overflow */
    assert_true(fabs(metrics_log_softmax(large, 2, 1) + log(2)) < 1e-15);
    assert_true(metrics_log_softmax(far, 3, 0) == 0 && metrics_log_softmax(far, 3, 1) == -30000);
    assert_true(metrics_log_softmax(far, 3, 2) == -INFINITY);
    const float bad[2] = {1, NAN};
    assert_true(isnan(metrics_log_softmax(bad, 2, 0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_widens_exactly_and_comes_back),
        cmocka_unit_test(ties_go_to_even),
        cmocka_unit_test(edges_of_the_range),
        cmocka_unit_test(random_floats_round_to_the_nearest_code),
        cmocka_unit_test(arrays_convert_from_any_address),
        cmocka_unit_test(types_have_names_and_sizes),
        cmocka_unit_test(shapes_are_checked),
        cmocka_unit_test(scans_count),
        cmocka_unit_test(metrics_of_equal_arrays),
        cmocka_unit_test(metrics_worked_by_hand),
        cmocka_unit_test(logits),
        cmocka_unit_test(probabilities_of_one_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
