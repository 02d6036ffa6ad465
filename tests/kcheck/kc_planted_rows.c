/* SPDX-License-Identifier: Apache-2.0
 *
 * Variants with one known bug each of the operators that work row by row: products, activations, pieces,
 * norms, grouped linear, and the inverse rotation. Run only by --planted.
 */
#include <math.h>
#include <string.h>

#include "kc_activation.h"

static size_t rows(const struct kern_args *a)
{
    return (size_t)a->n_rows;
}

static size_t elements(const struct kern_args *a)
{
    return (size_t)(a->n_rows * a->n);
}

static size_t row_scratch(const struct kern_args *a)
{
    return (size_t)a->k * sizeof(float);
}

static void ref(uint32_t op, const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    kern_pick(op, D0_F32, KERN_REF)->run(a, first, last, thread);
}

/* ---- products ---- */

/* b repeated as a whole, not each of its values */
static void tiled_mul(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const float *x = a->in[0], *y = a->in[1];
    size_t k = (size_t)a->n, n = (size_t)a->in_dims[1][1];
    (void)thread;
    for (size_t i = first; i < last; i++)
        ((float *)a->out[0])[i] = x[i] * y[i / k * n + i % k % n];
}

static void wide_mul(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    for (size_t i = first; i < last; i++) /* b taken to be as wide as a */
        ((float *)a->out[0])[i] = ((const float *)a->in[0])[i] * ((const float *)a->in[1])[i];
}

/* one rounding where there are two */
static void fused_scale(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_SCALE, a, first, last, thread);
    const float *x = a->in[0], *w = a->in[1];
    size_t n = (size_t)a->n;
    for (size_t i = first * n; i < last * n && w && a->in_dtype[1] == D0_F32; i++)
        ((float *)a->out[0])[i] =
            x[i] * ((float)a->attr[D0_ATTR_FACTOR].f * w[a->in_dims[1][0] == 1 ? 0 : i % n]);
}

static void factor_one(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a; /* takes 0 for an attribute that is not there */
    b.attr[D0_ATTR_FACTOR].f = a->attr[D0_ATTR_FACTOR].f != 0 ? a->attr[D0_ATTR_FACTOR].f : 1;
    ref(D0_OP_SCALE, &b, first, last, thread);
}

/* ---- activations: the bug is another function or number where one is asked for ---- */

static void act_as(const struct kern_args *a, size_t first, size_t last, int64_t asked, int64_t given)
{
    struct kern_args b = *a;
    if (a->attr[D0_ATTR_FUNCTION].i == asked)
        b.attr[D0_ATTR_FUNCTION].i = given;
    ref(D0_OP_ACT, &b, first, last, 0);
}

static void tanh_for_erf(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    act_as(a, first, last, KC_GELU_ERF, KC_GELU_TANH);
}

static void quick_for_tanh(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    act_as(a, first, last, KC_GELU_TANH, KC_QUICK_GELU);
}

static void deaf_relu(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_ACT, a, first, last, thread);
    float *out = a->out[0];
    for (size_t i = first; i < last; i++) /* NaN becomes 0 */
        if (a->attr[D0_ATTR_FUNCTION].i == KC_RELU && isnan(out[i]))
            out[i] = 0;
}

static void bare_tanh(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_ACT, a, first, last, thread);
    const float *x = a->in[0];
    for (size_t i = first; i < last && a->attr[D0_ATTR_FUNCTION].i == KC_TANH; i++) {
        float e = expf(2 * x[i]); /* small x vanish beside 1; large ones make infinity / infinity */
        ((float *)a->out[0])[i] = (e - 1) / (e + 1);
    }
}

static void glu_with(const struct kern_args *a, size_t first, size_t last, int64_t function, uint32_t key,
                     double value)
{
    struct kern_args b = *a;
    if (a->attr[D0_ATTR_FUNCTION].i == function)
        b.attr[key].f = value;
    ref(D0_OP_GLU, &b, first, last, 0);
}

static void fixed_alpha(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    glu_with(a, first, last, KC_SWIGLUOAI, D0_ATTR_ALPHA, 1.702);
}

static void no_linear_beta(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    glu_with(a, first, last, KC_SITU, D0_ATTR_LINEAR_BETA, 1e6);
}

static void one_more_up(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a; /* without the 1 added to up */
    if (a->attr[D0_ATTR_FUNCTION].i == KC_SWIGLUOAI && a->attr[D0_ATTR_ALPHA].f < 1)
        b.attr[D0_ATTR_FUNCTION].i = KC_SILU_CLAMP;
    ref(D0_OP_GLU, &b, first, last, thread);
}

static void clamp_after(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a; /* the gate clamped after silu, not before */
    if (a->attr[D0_ATTR_FUNCTION].i == KC_SILU_CLAMP)
        b.attr[D0_ATTR_FUNCTION].i = KC_SILU_CLAMP_OUT;
    ref(D0_OP_GLU, &b, first, last, thread);
}

static void one_sided_clip(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_GLU, a, first, last, thread);
    const float *gate = a->in[0], *up = a->in[1];
    float limit = (float)a->attr[D0_ATTR_LIMIT].f;
    for (size_t i = first; i < last && a->attr[D0_ATTR_FUNCTION].i == KC_SILU_CLAMP; i++)
        if (up[i] < -limit) {
            float g = fminf(gate[i], limit);
            ((float *)a->out[0])[i] = g / (1 + expf(-g)) * up[i];
        }
}

/* ---- pieces ---- */

static void no_offset(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_OFFSET].i = 0;
    ref(D0_OP_SLICE, &b, first, last, thread);
}

static void one_group_slice(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    int64_t groups = a->attr[D0_ATTR_GROUPS].i ? a->attr[D0_ATTR_GROUPS].i : 1;
    struct kern_args b = *a; /* all groups as one run */
    b.attr[D0_ATTR_GROUPS].i = 1;
    b.attr[D0_ATTR_DIM].i = a->attr[D0_ATTR_DIM].i * groups;
    ref(D0_OP_SLICE, &b, first, last, thread);
}

static void one_group_concat(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_GROUPS].i = 1;
    ref(D0_OP_CONCAT, &b, first, last, thread);
}

static void swapped_concat(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in[0] = a->in[1];
    b.in[1] = a->in[0];
    memcpy(b.in_dims[0], a->in_dims[1], sizeof b.in_dims[0]);
    memcpy(b.in_dims[1], a->in_dims[0], sizeof b.in_dims[1]);
    ref(D0_OP_CONCAT, &b, first, last, thread);
}

/* ---- norms ---- */

static void no_mean(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    size_t k = (size_t)a->k, dim = a->dim ? (size_t)a->dim : k;
    for (size_t at = first * k; at < last * k; at += dim) { /* variance as a difference of float32 sums */
        const float *x = (const float *)a->in[0] + at;
        float sum = 0, squares = 0;
        for (size_t i = 0; i < dim; i++) {
            sum += x[i];
            squares += x[i] * x[i];
        }
        float mean = sum / (float)dim,
              inverse = 1 / sqrtf(squares / (float)dim - mean * mean + (float)a->eps);
        for (size_t i = 0; i < dim; i++) {
            float w = a->in[1] && a->in_dtype[1] == D0_F32 ? ((const float *)a->in[1])[i] : 1,
                  b = a->in[2] && a->in_dtype[2] == D0_F32 ? ((const float *)a->in[2])[i] : 0;
            ((float *)a->out[0])[at + i] = (x[i] - mean) * inverse * w + b;
        }
        if ((a->in[1] && a->in_dtype[1] != D0_F32) || (a->in[2] && a->in_dtype[2] != D0_F32))
            ref(D0_OP_LAYER_NORM, a, at / k, at / k + 1, 0);
    }
}

static void sample_variance(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_LAYER_NORM, a, first, last, thread);
    size_t k = (size_t)a->k, dim = a->dim ? (size_t)a->dim : k; /* divided by dim - 1 */
    for (size_t i = first * k; i < last * k && !a->in[2] && dim > 1; i++)
        ((float *)a->out[0])[i] *= sqrtf((float)(dim - 1) / (float)dim);
}

static void bias_scaled(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in[2] = NULL;
    ref(D0_OP_LAYER_NORM, a->in[1] ? a : &b, first, last, thread); /* the bias only where there is a weight */
}

static void never_before(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_BEFORE].i = 0;
    ref(D0_OP_GATED_NORM, &b, first, last, thread);
}

static void always_silu(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_FUNCTION].i = KC_SILU;
    ref(D0_OP_GATED_NORM, &b, first, last, thread);
}

static void whole_row(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a; /* the mean over the row, not over each group */
    b.attr[D0_ATTR_DIM].i = a->in[2] ? a->attr[D0_ATTR_DIM].i : 0;
    ref(D0_OP_GATED_NORM, &b, first, last, thread);
}

/* ---- position_scale, group_linear, rope ---- */

static void no_floor(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const int32_t *positions = a->in[1];
    size_t n = (size_t)a->n;
    (void)thread;
    for (size_t i = first * n; i < last * n; i++) {
        double p = (double)positions[i / n] + (double)a->attr[D0_ATTR_OFFSET].i;
        ((float *)a->out[0])[i] =
            (float)((double)((const float *)a->in[0])[i] *
                    (1 + a->attr[D0_ATTR_BETA].f * log(1 + p / (double)a->attr[D0_ATTR_LENGTH].i)));
    }
}

static void early_position(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_OFFSET].i = 0;
    ref(D0_OP_POSITION_SCALE, &b, first, last, thread);
}

static void first_group(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    size_t k = (size_t)a->in_dims[1][1];
    (void)thread;
    for (size_t j = first; j < last; j++) /* every group of rows of w meets the first group of x */
        for (size_t t = 0; t < (size_t)a->n_rows; t++) {
            double sum = 0;
            for (size_t i = 0; i < k; i++)
                sum += (double)((const float *)a->in[0])[t * (size_t)a->k + i] *
                       (double)((const float *)a->in[1])[j * k + i];
            ((float *)a->out[0])[t * (size_t)a->n + j] = (float)sum;
        }
}

static void dealt_groups(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    size_t k = (size_t)a->in_dims[1][1], groups = (size_t)a->k / k;
    (void)thread;
    for (size_t j = first; j < last; j++) /* row j of w for group j % groups */
        for (size_t t = 0; t < (size_t)a->n_rows; t++) {
            const float *x = (const float *)a->in[0] + t * (size_t)a->k + j % groups * k;
            double sum = 0;
            for (size_t i = 0; i < k; i++)
                sum += (double)x[i] * (double)((const float *)a->in[1])[j * k + i];
            ((float *)a->out[0])[t * (size_t)a->n + j] = (float)sum;
        }
}

static void only_forward(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_INVERSE].i = 0;
    ref(D0_OP_ROPE, &b, first, last, thread);
}

#define PLANTED(OP, type, items, scratch, fn, bug)                                                           \
    {                                                                                                        \
        {D0_OP_##OP, type, KERN_REF, "planted_" #fn, fn, items, 1, scratch}, bug                             \
    }

static size_t products(const struct kern_args *a)
{
    return kc_ref_items(D0_OP_LINEAR, a);
}

static size_t rounded(const struct kern_args *a)
{
    return kc_ref_shared(D0_OP_LINEAR, a);
}

#define PRODUCT(OP, type, scratch, fn, bug)                                                                  \
    {                                                                                                        \
        {D0_OP_##OP, type, KERN_REF, "planted_" #fn, fn, products, 1, scratch, rounded, 2, 0}, bug           \
    }

static const struct kc_planted planted[] = {
    PLANTED(MUL, 0, elements, NULL, tiled_mul, "b repeated as a whole"),
    PLANTED(MUL, 0, elements, NULL, wide_mul, "b taken to be as wide as a"),
    PLANTED(SCALE, 0, rows, NULL, fused_scale, "rounds once where two roundings are defined"),
    PLANTED(SCALE, 0, rows, NULL, factor_one, "takes a factor of 0 for none"),
    PLANTED(ACT, 0, elements, NULL, tanh_for_erf, "the other gelu"),
    PLANTED(ACT, 0, elements, NULL, quick_for_tanh, "quick_gelu for gelu_tanh"),
    PLANTED(ACT, 0, elements, NULL, deaf_relu, "relu hides NaN"),
    PLANTED(ACT, 0, elements, NULL, bare_tanh, "tanh from a bare exponential"),
    PLANTED(GLU, 0, elements, NULL, fixed_alpha, "alpha of one model"),
    PLANTED(GLU, 0, elements, NULL, no_linear_beta, "up without its bound"),
    PLANTED(GLU, 0, elements, NULL, one_more_up, "forgets up + 1"),
    PLANTED(GLU, 0, elements, NULL, clamp_after, "clamps after silu"),
    PLANTED(GLU, 0, elements, NULL, one_sided_clip, "clips up on one side"),
    PLANTED(SLICE, 0, rows, NULL, no_offset, "ignores offset"),
    PLANTED(SLICE, 0, rows, NULL, one_group_slice, "all groups as one run"),
    PLANTED(CONCAT, 0, rows, NULL, one_group_concat, "ignores groups"),
    PLANTED(CONCAT, 0, rows, NULL, swapped_concat, "two inputs swapped"),
    PLANTED(LAYER_NORM, 0, rows, NULL, no_mean, "variance from raw squares"),
    PLANTED(LAYER_NORM, 0, rows, NULL, sample_variance, "variance over dim - 1"),
    PLANTED(LAYER_NORM, 0, rows, NULL, bias_scaled, "no bias without a weight"),
    PLANTED(GATED_NORM, 0, rows, NULL, never_before, "ignores before"),
    PLANTED(GATED_NORM, 0, rows, NULL, always_silu, "silu whatever is asked for"),
    PLANTED(GATED_NORM, 0, rows, NULL, whole_row, "one norm for all groups"),
    PLANTED(POSITION_SCALE, 0, rows, NULL, no_floor, "steps not rounded down"),
    PLANTED(POSITION_SCALE, 0, rows, NULL, early_position, "ignores offset"),
    PRODUCT(GROUP_LINEAR, D0_F32, row_scratch, first_group, "only the first group of x"),
    PRODUCT(GROUP_LINEAR, D0_F32, row_scratch, dealt_groups, "rows of w dealt in turn"),
    PLANTED(ROPE, 0, rows, NULL, only_forward, "ignores inverse"),
};

size_t kc_planted_rows(const struct kc_planted **out)
{
    *out = planted;
    return ARRAY_LEN(planted);
}
