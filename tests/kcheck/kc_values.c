/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes inputs: values of a class in a type, from the case's own generator.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc.h"

double kc_normal(struct rng *r)
{
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += rng_next_f64(r);
    return (sum - 2) * 1.7320508075688772; /* variance 1, within +-3.5 */
}

int64_t kc_between(struct kc_case *c, int64_t low, int64_t high)
{
    return low + (int64_t)rng_below(&c->rng, (uint64_t)(high - low + 1));
}

bool kc_chance(struct kc_case *c, unsigned one_in)
{
    return rng_below(&c->rng, one_in) == 0;
}

uint32_t kc_any_type(struct kc_case *c)
{
    static const uint32_t types[] = {D0_F32, D0_BF16, D0_F16};
    return types[rng_below(&c->rng, ARRAY_LEN(types))];
}

size_t kc_width(uint32_t dtype)
{
    return dtype_bits(dtype) / 8;
}

double kc_value(struct kc_case *c, uint32_t dtype)
{
    double v = kc_normal(&c->rng);
    switch (c->values) {
    case KC_TINY:
        return ldexp(v, dtype == D0_F16 ? -12 : -40); /* reaches the subnormal numbers of F16 */
    case KC_HUGE:
        return ldexp(v, dtype == D0_F16 ? 10 : 30);
    case KC_SPARSE:
        return kc_chance(c, 10) ? v : copysign(0, v);
    case KC_OUTLIER:
        return kc_chance(c, 64) ? ldexp(v, 10) : v;
    case KC_POSITIVE:
        return fabs(v) + 1e-3;
    default:
        return v;
    }
}

void kc_fill(struct kc_case *c, unsigned i, uint32_t dtype, int64_t n, int64_t row_elements)
{
    size_t width = kc_width(dtype);
    unsigned char *p = arena_alloc(c->arena, (size_t)n * width);
    if (!p)
        abort();
    for (int64_t e = 0; e < n; e++) {
        float v = (float)kc_value(c, dtype);
        tensor_from_f32(&v, 1, dtype, p + (size_t)e * width);
    }
    c->in[i] = (struct kc_array){p, (size_t)n * width, (size_t)row_elements * width};
    c->a.in_dtype[i] = dtype;
}

/* A code that is a number; in a case of poison any. */
static unsigned some_code(struct kc_case *c, uint32_t dtype)
{
    unsigned code = (unsigned)kc_between(c, 0, dtype == D0_F4 || dtype == D0_U4 ? 15 : 255);
    while (c->values != KC_POISON && !isfinite(tensor_code(dtype, code)))
        code = (unsigned)kc_between(c, 0, 255);
    return code;
}

static void fill_codes(struct kc_case *c, const struct tensor_form *f, unsigned char *p)
{
    const uint64_t rows = (uint64_t)(f->matrices * f->n);
    const bool half = dtype_bits(f->dtype) == 4;
    for (uint64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < f->k; k++) {
            unsigned char *at = p + r * f->row_bytes + (half ? k / 2 : k);
            unsigned code = some_code(c, f->dtype);
            *at = (unsigned char)(half ? *at | code << (k % 2 ? 4 : 0) : code);
        }
}

static void fill_scales(struct kc_case *c, const struct tensor_form *f, unsigned char *p, int small)
{
    const uint64_t n = (uint64_t)(f->matrices * f->groups_n * f->groups_k);
    const uint32_t dtype = f->format.scale_dtype;
    for (uint64_t i = 0; i < n; i++) {
        float v = (float)ldexp(0.5 + rng_next_f64(&c->rng), (int)kc_between(c, -6, 1) - small);
        if (dtype == D0_F8_E8M0)
            p[f->scales + i] = (unsigned char)kc_between(c, 118 - small, 130 - small);
        else if (dtype == D0_F8_E4M3)
            p[f->scales + i] = (unsigned char)kc_between(c, 1, small ? 0x30 : 0x7e);
        else
            tensor_from_f32(&v, 1, dtype, p + f->scales + i * kc_width(dtype));
        if (f->zeros)
            p[f->zeros + i] = (unsigned char)kc_between(c, 0, 16);
    }
    for (int64_t m = 0; m < f->matrices; m++) {
        float v = (float)(0.25 + rng_next_f64(&c->rng));
        if (f->global)
            memcpy(p + f->global + 4 * m, &v, sizeof v);
        for (int64_t k = 0; f->order && k < f->k; k++) {
            int32_t group = (int32_t)kc_between(c, 0, f->groups_k - 1);
            memcpy(p + f->order + 4 * (m * f->k + k), &group, sizeof group);
        }
    }
}

static struct d0_format some_format(struct kc_case *c, uint32_t dtype)
{
    static const uint32_t scales[] = {D0_F32, D0_BF16, D0_F16, D0_F8_E4M3, D0_F8_E8M0},
                          groups[] = {0, 16, 32, 128, 1, 7};
    const bool integer = !dtype_is_float(dtype);
    struct d0_format f = {.scale_dtype = scales[kc_between(c, 0, 4)],
                          .group_n = kc_chance(c, 2) ? 1 : groups[kc_between(c, 0, 5)],
                          .group_k = groups[kc_between(c, 0, 5)]};
    if (integer && kc_chance(c, 2))
        f.flags |= D0_FORMAT_ZEROS;
    else if (integer)
        f.bias = dtype == D0_U4 ? 8 : dtype == D0_U8 ? 128 : 0;
    if (kc_chance(c, 4))
        f.flags |= D0_FORMAT_GLOBAL | (kc_chance(c, 2) ? D0_FORMAT_DIVIDE : 0);
    if (integer && kc_chance(c, 6))
        f.flags |= D0_FORMAT_ORDER;
    return f;
}

bool kc_is_code(uint32_t dtype)
{
    return dtype != D0_F32 && dtype != D0_BF16 && dtype != D0_F16;
}

static void *zeroed(struct kc_case *c, size_t bytes)
{
    void *p = arena_alloc(c->arena, bytes);
    if (!p)
        abort();
    return memset(p, 0, bytes);
}

void kc_weight(struct kc_case *c, unsigned i, uint32_t dtype, int64_t matrices, int64_t n, int64_t k,
               int small)
{
    const int64_t dims[3] = {matrices, n, k};
    struct tensor_form *form = zeroed(c, sizeof *form);
    struct d0_value v = {.kind = D0_VALUE_WEIGHT, .dtype = dtype, .n_dims = 3, .dims = {matrices, n, k}};
    kc_dims(c, i, 3, dims);
    if (!kc_is_code(dtype)) {
        kc_fill(c, i, dtype, matrices * n * k, 0);
        return;
    }
    v.format = some_format(c, dtype);
    if (!tensor_form_of(&v, form))
        abort();
    unsigned char *p = zeroed(c, (size_t)form->bytes);
    float *wide = arena_alloc_n(c->arena, (size_t)(matrices * n * k) + 1, sizeof *wide);
    if (!wide)
        abort();
    fill_codes(c, form, p);
    fill_scales(c, form, p, small);
    for (int64_t row = 0; row < matrices * n; row++)
        tensor_form_row(form, p, (size_t)row, wide + row * k);
    c->in[i] = (struct kc_array){p, (size_t)form->bytes, 0};
    c->a.in_dtype[i] = dtype;
    c->a.in_form[i] = form;
    c->wide[i] = wide;
}

int32_t *kc_ints(struct kc_case *c, unsigned i, int64_t n, int64_t row_elements)
{
    int32_t *p = arena_alloc(c->arena, (size_t)n * sizeof *p);
    if (!p)
        abort();
    c->in[i] = (struct kc_array){p, (size_t)n * sizeof *p, (size_t)row_elements * sizeof *p};
    c->a.in_dtype[i] = D0_I32;
    return p;
}

void kc_output_of(struct kc_case *c, unsigned o, bool ints, int64_t rows, int64_t row_elements)
{
    _Static_assert(sizeof(float) == sizeof(int32_t), "both types of outputs have four bytes");
    c->out[o] = (struct kc_array){NULL, (size_t)(rows * row_elements) * sizeof(float),
                                  (size_t)row_elements * sizeof(float)};
    c->out_ints[o] = ints;
    memcpy(c->a.out_dims[o], ((int64_t[]){rows, row_elements, 1, 1}), sizeof c->a.out_dims[o]);
    if (o == 0) {
        c->a.n_rows = rows;
        c->a.n = row_elements;
    }
}

void kc_output(struct kc_case *c, int64_t rows, int64_t row_elements)
{
    kc_output_of(c, 0, false, rows, row_elements);
}

void kc_dims(struct kc_case *c, unsigned i, unsigned n_dims, const int64_t *dims)
{
    for (unsigned k = 0; k < D0_MAX_DIMS; k++)
        c->a.in_dims[i][k] = k < n_dims ? dims[k] : 1;
}

void *kc_state(struct kc_case *c, unsigned s, size_t bytes)
{
    void *p = arena_alloc(c->arena, bytes);
    if (!p)
        abort();
    memset(p, 0, bytes);
    c->state[s] = (struct kc_array){p, bytes, 0};
    return p;
}

double kc_at(const struct kc_case *c, unsigned i, size_t element)
{
    return (double)c->wide[i][element];
}

size_t kc_outputs(const struct kc_case *c, unsigned o)
{
    return c->out[o].bytes / sizeof(float);
}

void kc_judge_begin(struct kc_case *c)
{
    for (unsigned o = 0; o < KC_OUTS; o++) {
        c->want[o] = arena_alloc_n(c->arena, kc_outputs(c, o) + 1, sizeof *c->want[o]);
        c->scale[o] = arena_alloc_n(c->arena, kc_outputs(c, o) + 1, sizeof *c->scale[o]);
        if (!c->want[o] || !c->scale[o])
            abort();
    }
    for (unsigned i = 0; i < D0_MAX_NODE_INPUTS; i++) {
        if (!dtype_is_float(c->a.in_dtype[i]) || !c->in[i].data || c->wide[i])
            continue;
        size_t n = c->in[i].bytes / kc_width(c->a.in_dtype[i]);
        c->wide[i] = arena_alloc_n(c->arena, n, sizeof *c->wide[i]);
        if (!c->wide[i])
            abort();
        tensor_to_f32(c->in[i].data, c->a.in_dtype[i], n, c->wide[i]);
    }
}

size_t kc_judge_state(struct kc_case *c, unsigned s)
{
    uint32_t dtype = c->a.in_dtype[kern_state_input(c->op, s)];
    size_t n = c->state[s].bytes / kc_width(dtype);
    float *before = arena_alloc_n(c->arena, n, sizeof *before);
    c->want_state_f64[s] = arena_alloc_n(c->arena, n, sizeof(double));
    c->state_scale[s] = arena_alloc_n(c->arena, n, sizeof(double));
    if (!before || !c->want_state_f64[s] || !c->state_scale[s])
        abort();
    tensor_to_f32(c->state[s].data, dtype, n, before);
    for (size_t i = 0; i < n; i++) {
        c->want_state_f64[s][i] = (double)before[i];
        c->state_scale[s][i] = 0;
    }
    return n;
}

const char *kc_values_name(enum kc_values v)
{
    static const char *const names[KC_N_VALUES] = {"normal",  "tiny",     "huge",  "sparse",
                                                   "outlier", "positive", "poison"};
    return v < KC_N_VALUES ? names[v] : "?";
}
