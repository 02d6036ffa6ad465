/* SPDX-License-Identifier: Apache-2.0
 *
 * Bugs planted into the rounding of activations. One bug per function; phase 1 is the reference.
 */
#include <math.h>
#include <string.h>

#include "kc.h"

static size_t products(const struct kern_args *a)
{
    return kc_ref_items(D0_OP_LINEAR, a);
}

static size_t scratch(const struct kern_args *a)
{
    return kc_ref_scratch(D0_OP_LINEAR, a);
}

static size_t shared(const struct kern_args *a)
{
    return kc_ref_shared(D0_OP_LINEAR, a);
}

static size_t experts_items(const struct kern_args *a)
{
    return kc_ref_items(D0_OP_EXPERTS, a);
}

static size_t experts_scratch(const struct kern_args *a)
{
    return kc_ref_scratch(D0_OP_EXPERTS, a);
}

typedef void row_fn(const struct tensor_rounding *r, float given, const float *x, size_t n, float *out);

static void linear_with(row_fn *row, const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const struct tensor_rounding *r = tensor_rounding(a->attr[D0_ATTR_X_FORMAT].i);
    size_t k = (size_t)a->k;
    if (a->phase)
        kern_pick(D0_OP_LINEAR, D0_F32, KERN_REF)->run(a, first, last, thread);
    else
        for (size_t t = first; t < last; t++)
            row(r, (float)a->attr[D0_ATTR_X_SCALE].f, (const float *)a->in[0] + t * k, k,
                (float *)a->shared + t * k);
}

#define ROW_BUG(name)                                                                                        \
    static row_fn name##_row;                                                                                \
    static void name(const struct kern_args *a, size_t first, size_t last, unsigned thread)                  \
    {                                                                                                        \
        linear_with(name##_row, a, first, last, thread);                                                     \
    }                                                                                                        \
    static void name##_row(const struct tensor_rounding *r, float given, const float *x, size_t n, float *out)

ROW_BUG(one_scale)
{
    struct tensor_rounding whole = *r;
    whole.group = 0;
    tensor_round_row(&whole, given, x, n, out);
}

ROW_BUG(long_groups)
{
    struct tensor_rounding twice = *r;
    twice.group *= 2;
    tensor_round_row(&twice, given, x, n, out);
}

ROW_BUG(no_power)
{
    struct tensor_rounding plain = *r;
    if (plain.scale == ROUNDING_POWER_UP)
        plain.scale = ROUNDING_LARGEST;
    tensor_round_row(&plain, given, x, n, out);
}

ROW_BUG(power_down)
{
    struct tensor_rounding near = *r;
    if (near.scale == ROUNDING_POWER_UP)
        near.scale = ROUNDING_POWER_NEAR;
    tensor_round_row(&near, given, x, n, out);
}

ROW_BUG(plain_group_scale)
{
    struct tensor_rounding plain = *r;
    if (plain.scale == ROUNDING_E4M3)
        plain.scale = ROUNDING_LARGEST;
    tensor_round_row(&plain, given, x, n, out);
}

ROW_BUG(twice_rounded) /* through BF16, as a card whose input is BF16 */
{
    for (size_t i = 0; i < n; i++)
        out[i] = bf16_to_f32(f32_to_bf16(x[i]));
    tensor_round_row(r, given, out, n, out);
}

ROW_BUG(cut_off)
{
    tensor_round_row(r, given, x, n, out);
    for (size_t i = 0; i < n && r->scale == ROUNDING_NONE; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        u &= 0xffff0000u;
        memcpy(&out[i], &u, sizeof u);
    }
}

ROW_BUG(deaf)
{
    for (size_t i = 0; i < n; i++)
        out[i] = isnan(x[i]) ? 0 : x[i];
    tensor_round_row(r, given, out, n, out);
}

ROW_BUG(wide_codes) /* saturates at what the scale was made for, but not beyond the codes */
{
    tensor_round_row(r, given, x, n, out);
    for (size_t i = 0; i < n && r->scale == ROUNDING_GIVEN && r->dtype == D0_I8; i++)
        out[i] = fabsf(x[i] / given) > 127 && isfinite(x[i]) ? rintf(x[i] / given) * given : out[i];
}

static void batch_scale(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const struct tensor_rounding *r = tensor_rounding(a->attr[D0_ATTR_X_FORMAT].i);
    const float *x = a->in[0];
    size_t n = (size_t)(a->k * a->n_rows);
    float top = 0, *out = a->shared;
    if (a->phase || r->scale != ROUNDING_LARGEST || r->group) {
        kern_pick(D0_OP_LINEAR, D0_F32, KERN_REF)->run(a, first, last, thread);
        return;
    }
    for (size_t i = 0; i < n; i++)
        top = fmaxf(top, fabsf(x[i]));
    for (size_t i = first * (size_t)a->k; i < last * (size_t)a->k; i++)
        out[i] = tensor_rounding_value(r, x[i], tensor_rounding_scale(r, top, 0));
}

/* The inner values, or what goes in, as they are: by a format that takes them whole. */
static void experts_as(const struct kern_args *a, int64_t format, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_X_FORMAT].i = format;
    kern_pick(D0_OP_EXPERTS, D0_F32, KERN_REF)->run(&b, first, last, thread);
}

static void exact_experts(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    experts_as(a, D0_X_EXACT, first, last, thread);
}

static void x_scale_for_h(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_H_SCALE].f = b.attr[D0_ATTR_X_SCALE].f;
    kern_pick(D0_OP_EXPERTS, D0_F32, KERN_REF)->run(&b, first, last, thread);
}

#define PLANTED(fn, bug)                                                                                     \
    {                                                                                                        \
        {D0_OP_LINEAR, D0_F32, KERN_REF, "planted_" #fn, fn, products, 1, scratch, shared, 2, 0}, bug        \
    }
#define OF_EXPERTS(fn, bug)                                                                                  \
    {                                                                                                        \
        {                                                                                                    \
            D0_OP_EXPERTS, D0_F32, KERN_REF, "planted_" #fn, fn, experts_items, 1, experts_scratch,          \
            NULL,          0,      0},                                                                       \
            bug                                                                                              \
    }

static const struct kc_planted planted[] = {
    PLANTED(one_scale, "one scale for the row"),
    PLANTED(long_groups, "groups twice as long"),
    PLANTED(no_power, "scales that are no powers of two"),
    PLANTED(power_down, "powers of two rounded as MXFP4 does"),
    PLANTED(plain_group_scale, "scales of groups not rounded to E4M3"),
    PLANTED(twice_rounded, "rounds to BF16 first"),
    PLANTED(cut_off, "cuts BF16 off"),
    PLANTED(deaf, "hides NaN"),
    PLANTED(wide_codes, "integers beyond 8 bits"),
    PLANTED(batch_scale, "one scale for the batch"),
    OF_EXPERTS(exact_experts, "rounds nothing in experts"),
    OF_EXPERTS(x_scale_for_h, "the scale of x for the inner values"),
};

size_t kc_planted_rounding(const struct kc_planted **out)
{
    *out = planted;
    return ARRAY_LEN(planted);
}
