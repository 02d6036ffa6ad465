/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounding of activations, number by number: every code of every type stays what it is, midpoints go to the
 * even neighbour, and the edges: zero rows, subnormal scales, NaN, infinities, saturation.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tensor/tensor.h"

#define N_FORMATS 10

static const struct tensor_rounding *of(int64_t format)
{
    const struct tensor_rounding *r = tensor_rounding(format);
    assert_non_null(r);
    return r;
}

static float one(int64_t format, float given, float v)
{
    float out;
    tensor_round_row(of(format), given, &v, 1, &out);
    return out;
}

static void test_table(void **state)
{
    (void)state;
    assert_null(tensor_rounding(D0_X_EXACT));
    assert_null(tensor_rounding(-1));
    assert_null(tensor_rounding(N_FORMATS + 1));
    for (int64_t f = 1; f <= N_FORMATS; f++)
        assert_true(dtype_bits(of(f)->dtype) > 0);
    assert_true(tensor_rounding_given(of(D0_X_F4_NV)) && tensor_rounding_given(of(D0_X_F8_STATIC)));
    assert_false(tensor_rounding_given(of(D0_X_F8_BLOCK)));
}

/* Every finite code under a scale of 1 is itself; between two neighbours the middle goes to the even one, and
 * a hair beyond to the nearer. */
static void codes_of(int64_t format, unsigned n_codes)
{
    const struct tensor_rounding *r = of(format);
    for (unsigned c = 0; c + 1 < n_codes; c++) {
        float low = tensor_code(r->dtype, c), high = tensor_code(r->dtype, c + 1), middle = (low + high) / 2;
        assert_true(tensor_rounding_value(r, low, 1) == low);
        assert_true(tensor_rounding_value(r, -low, 1) == -low);
        assert_true(tensor_rounding_value(r, high, 1) == high);
        assert_true(tensor_rounding_value(r, middle, 1) == (c % 2 ? high : low));
        assert_true(tensor_rounding_value(r, -middle, 1) == (c % 2 ? -high : -low));
        assert_true(tensor_rounding_value(r, nextafterf(middle, INFINITY), 1) == high);
        assert_true(tensor_rounding_value(r, nextafterf(middle, 0), 1) == low);
        assert_true(tensor_rounding_value(r, middle * 0.25f, 0.25f) == (c % 2 ? high : low) * 0.25f);
    }
}

static void test_codes(void **state)
{
    (void)state;
    codes_of(D0_X_F8_STATIC, 127); /* 0x7f is NaN */
    codes_of(D0_X_F4_NV, 8);
    codes_of(D0_X_I8_STATIC, 128);
    for (uint32_t c = 0; c < 0x10000; c++) { /* all of BF16, and the middle above each */
        float v = bf16_to_f32((uint16_t)c), y = one(D0_X_BF16, 0, v);
        assert_true(isnan(v) ? isnan(y) : y == v && signbit(y) == signbit(v));
    }
    assert_true(one(D0_X_BF16, 0, 1 + 0x1p-8f) == 1);
    assert_true(one(D0_X_BF16, 0, 1 + 3 * 0x1p-8f) == 1 + 0x1p-6f);
    assert_true(one(D0_X_BF16, 0, FLT_MAX) == INFINITY);
}

static void test_saturation(void **state)
{
    (void)state;
    assert_true(one(D0_X_F8_STATIC, 1, 1e9f) == 448 && one(D0_X_F8_STATIC, 1, -INFINITY) == -448);
    assert_true(one(D0_X_F8_STATIC, 0x1p-3f, 1e9f) == 56);
    assert_true(one(D0_X_I8_STATIC, 1, 1000) == 127 && one(D0_X_I8_STATIC, 1, -1000) == -128);
    assert_true(isnan(one(D0_X_I8_STATIC, 1, NAN)) && isnan(one(D0_X_F8_STATIC, 1, NAN)));
    /* a global scale too small: the scale of the group saturates, then its codes */
    assert_true(one(D0_X_F4_NV, 0x1p-20f, 100) == 448 * 0x1p-20f * 6);
    assert_true(one(D0_X_F4_NV, 1, 1e-6f) == 0); /* too large: the group's scale becomes 0 */
    assert_true(one(D0_X_F4_MX, 0, 7) == 8 && one(D0_X_F4_MX, 0, 6.9f) == 6);
}

/* The row's largest is what the largest code stands for. */
static void test_scales(void **state)
{
    (void)state;
    float x[256], y[256];
    for (int i = 0; i < 256; i++)
        x[i] = (i % 2 ? -1 : 1) * (float)(i + 1) * (i < 128 ? 0x1p-10f : 1);
    tensor_round_row(of(D0_X_I8_TOKEN), 0, x, 256, y);
    assert_true(y[255] == 127 * (256 / 127.0f) * -1 && y[0] == 0);
    assert_true(y[200] == rintf(x[200] / (256 / 127.0f)) * (256 / 127.0f));
    tensor_round_row(of(D0_X_F8_BLOCK), 0, x, 256, y);
    assert_true(y[127] == -448 * (0.125f / 448) && y[255] == -448 * (256 / 448.0f));
    assert_true(fabsf(y[0] - x[0]) <= x[0] / 16); /* by the scale of its own group */
    tensor_round_row(of(D0_X_F8_TOKEN), 0, x, 256, y);
    assert_true(y[0] != x[0]); /* by that of the row */
    tensor_round_row(of(D0_X_F8_BLOCK_POWER), 0, x, 256, y);
    assert_true(tensor_rounding_scale(of(D0_X_F8_BLOCK_POWER), 256, 0) == 1 && y[255] == -256);
    assert_true(tensor_rounding_scale(of(D0_X_F8_BLOCK_POWER), 448, 0) == 1);
    assert_true(tensor_rounding_scale(of(D0_X_F8_BLOCK_POWER), nextafterf(448, 449), 0) == 2);
    assert_true(tensor_rounding_scale(of(D0_X_F8_MX), 224, 0) == 0.5f);
    assert_true(tensor_rounding_scale(of(D0_X_F4_MX), 6.9f, 0) == 1); /* 1.75 goes to the next power */
    assert_true(tensor_rounding_scale(of(D0_X_F4_MX), 7, 0) == 2);
    /* NVFP4: 6 * 448 * x_scale is the largest that fits */
    assert_true(tensor_rounding_scale(of(D0_X_F4_NV), 2688, 1) == 448);
    assert_true(tensor_rounding_scale(of(D0_X_F4_NV), 6.3f, 1) == 1 && one(D0_X_F4_NV, 1, 6.3f) == 6);
}

static void test_edges(void **state)
{
    (void)state;
    for (int64_t f = 1; f <= N_FORMATS; f++) {
        const struct tensor_rounding *r = of(f);
        bool own = r->scale != ROUNDING_GIVEN && r->scale != ROUNDING_NONE;
        float x[70], y[70];
        for (int i = 0; i < 70; i++)
            x[i] = i % 2 ? -0.0f : 0;
        tensor_round_row(r, 1, x, 70, y);
        for (int i = 0; i < 70; i++)
            assert_true(y[i] == 0 && (r->scale == ROUNDING_NONE || !signbit(y[i])));
        for (int i = 0; i < 70; i++) /* subnormal numbers, and scales that are, or are none */
            x[i] = (float)(i + 1) * 0x1p-149f;
        tensor_round_row(r, 1, x, 70, y);
        for (int i = 0; i < 70; i++)
            assert_true(isfinite(y[i]) && fabsf(y[i] - x[i]) <= 0x1p-126f);
        for (int i = 0; i < 70; i++)
            x[i] = 1;
        x[69] = INFINITY;
        tensor_round_row(r, 1, x, 70, y);
        assert_true(own ? isnan(y[69]) : !isnan(y[69]));
        assert_true(own && (r->group == 0 || r->group > 69) ? isnan(y[0]) : fabsf(y[0] - 1) < 0.1f);
        x[69] = NAN;
        tensor_round_row(r, 1, x, 70, y);
        assert_true(isnan(y[69]) &&
                    (own && (r->group == 0 || r->group > 69) ? isnan(y[0]) : fabsf(y[0] - 1) < 0.1f));
        x[69] = FLT_MAX / 4;
        tensor_round_row(r, 1, x, 70, y);
        assert_true(r->scale == ROUNDING_NONE || isfinite(y[69]));
        memcpy(y, x, sizeof y); /* in place */
        tensor_round_row(r, 1, y, 70, y);
        float z[70];
        tensor_round_row(r, 1, x, 70, z);
        assert_memory_equal(y, z, sizeof y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),  cmocka_unit_test(test_codes), cmocka_unit_test(test_saturation),
        cmocka_unit_test(test_scales), cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
