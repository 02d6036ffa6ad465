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
    for (unsigned o = 0; o < 2; o++) {
        c->want[o] = arena_alloc_n(c->arena, kc_outputs(c, o) + 1, sizeof *c->want[o]);
        c->scale[o] = arena_alloc_n(c->arena, kc_outputs(c, o) + 1, sizeof *c->scale[o]);
        if (!c->want[o] || !c->scale[o])
            abort();
    }
    for (unsigned i = 0; i < D0_MAX_NODE_INPUTS; i++) {
        if (!dtype_is_float(c->a.in_dtype[i]) || !c->in[i].data)
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
