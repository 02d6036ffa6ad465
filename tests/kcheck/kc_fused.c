/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of the fused operators, and variants of them with one known bug each. Definitions in float64, written
 * here once more as the operators they are made of, one after the other. Weights, and pages, are of every
 * type in turn: no variant is for one.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc_activation.h"
#include "kc_make.h"

static uint32_t any_stored(struct kc_case *c)
{
    static const uint32_t types[] = {D0_F32, D0_BF16, D0_F16, D0_F8_E4M3, D0_F8_E5M2,
                                     D0_F4,  D0_I8,   D0_U8,  D0_U4};
    return c->large ? D0_BF16 : types[kc_between(c, 0, ARRAY_LEN(types) - 1)];
}

static void maybe_bias(struct kc_case *c, unsigned i, int64_t n)
{
    if (!c->large && kc_chance(c, 2))
        kc_fill(c, i, kc_any_type(c), n, 0);
}

/* The sum of row t of input 0 with row j of weight w, and its natural scale */
static double product(const struct kc_case *c, unsigned w, unsigned bias, size_t t, size_t j, double *scale)
{
    size_t k = (size_t)c->a.k;
    double b = c->in[bias].data ? kc_at(c, bias, j) : 0, sum = 0, squares = b * b;
    for (size_t i = 0; i < k; i++) {
        double term = kc_at(c, 0, t * k + i) * kc_at(c, w, j * k + i);
        sum += term;
        squares += term * term;
    }
    *scale = fmax(SCALE_FLOOR, fmax(fabs(sum + b), 2 * sqrt(squares)));
    return sum + b;
}

static void sizes_of(struct kc_case *c, unsigned index, int64_t *t, int64_t *k)
{
    *t = c->large ? 1 : kc_between(c, 0, kc_chance(c, 3) ? 45 : 14);
    *k = c->large ? 4096 : width_of(c, index, 400);
    if (!c->large && index >= TAILS && kc_chance(c, 3)) {
        c->a.segments = INT64_C(1) << kc_between(c, 1, 4);
        *k = c->a.segments * kc_between(c, 1, 24);
    }
    c->a.tokens = *t;
    c->a.k = *k;
    kc_fill(c, 0, D0_F32, *t * *k, *k);
    kc_dims(c, 0, 2, (int64_t[]){*t, *k});
}

/* ---- qkv ---- */

const unsigned kc_cases_QKV = TAILS + 130;

void kc_make_QKV(struct kc_case *c, unsigned index)
{
    int64_t t, k, n[3] = {c->large ? 4096 : kc_between(c, 1, 60), c->large ? 1024 : kc_between(c, 1, 30), 0};
    sizes_of(c, index, &t, &k);
    n[2] = c->large || kc_chance(c, 2) ? n[1] : kc_between(c, 1, 130);
    poison(c, 0, t, k);
    for (unsigned i = 0; i < 3; i++) {
        kc_weight(c, 1 + i, any_stored(c), 1, n[i], k, 0);
        maybe_bias(c, 4 + i, n[i]);
        kc_output_of(c, i, false, t, n[i]);
    }
    c->moved = (double)(c->in[1].bytes + c->in[2].bytes + c->in[3].bytes);
    c->flops = 2.0 * (double)(t * k * (n[0] + n[1] + n[2]));
    snprintf(c->shape, sizeof c->shape, "T=%d K=%d N=%d,%d,%d S=%d w=%s,%s,%s", (int)t, (int)k, (int)n[0],
             (int)n[1], (int)n[2], (int)c->a.segments, dtype_name(c->a.in_dtype[1]),
             dtype_name(c->a.in_dtype[2]), dtype_name(c->a.in_dtype[3]));
}

void kc_judge_QKV(struct kc_case *c)
{
    kc_judge_begin(c);
    for (unsigned o = 0; o < 3; o++) {
        size_t n = (size_t)c->a.out_dims[o][1];
        for (size_t i = 0; i < kc_outputs(c, o); i++)
            c->want[o][i] = product(c, 1 + o, 4 + o, i / n, i % n, &c->scale[o][i]);
    }
}

/* ---- gate_up ---- */

const unsigned kc_cases_GATE_UP = TAILS + 170;

void kc_make_GATE_UP(struct kc_case *c, unsigned index)
{
    bool spoil = c->values == KC_POISON;
    if (c->values == KC_HUGE || spoil) /* products of two sums stay within float32 */
        c->values = KC_NORMAL;
    int64_t t, k, n = c->large ? 14336 : kc_between(c, 1, kc_chance(c, 4) ? 230 : 40);
    sizes_of(c, index, &t, &k);
    for (unsigned i = 0; i < 2; i++) {
        kc_weight(c, 1 + i, any_stored(c), 1, n, k, 0);
        maybe_bias(c, 3 + i, n);
    }
    int64_t bad = spoil && t ? kc_between(c, 0, t - 1) : -1;
    for (int64_t i = 0; bad >= 0 && i < k; i++)
        ((float *)c->in[0].data)[bad * k + i] = NAN;
    kc_output(c, t, n);
    kc_make_function(c, true, c->large ? KC_SILU : index);
    c->moved = (double)(c->in[1].bytes + c->in[2].bytes);
    c->flops = 4.0 * (double)(t * k * n);
    snprintf(c->shape, sizeof c->shape, "%s T=%d K=%d N=%d S=%d w=%s,%s", kc_function_name(c), (int)t, (int)k,
             (int)n, (int)c->a.segments, dtype_name(c->a.in_dtype[1]), dtype_name(c->a.in_dtype[2]));
}

void kc_judge_GATE_UP(struct kc_case *c)
{
    size_t n = (size_t)c->a.n;
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        double by_g, by_u, g = product(c, 1, 3, i / n, i % n, &by_g),
                           u = product(c, 2, 4, i / n, i % n, &by_u);
        c->want[0][i] = kc_glu(c, g, u).value;
        c->scale[0][i] = fmax(SCALE_FLOOR * fmax(1, fabs(u)), kc_reach(c, g, u, by_g, by_u));
    }
}

/* ---- norm_residual ---- */

/* x[d] normed by weight input w (absent: 1): value and natural scale of each */
static void norm_run(const struct kc_case *c, const double *x, size_t d, unsigned w, double *value,
                     double *scale)
{
    double squares = 0;
    for (size_t i = 0; i < d; i++)
        squares += x[i] * x[i];
    double inverse = 1 / sqrt(squares / (double)d + c->a.eps);
    for (size_t i = 0; i < d; i++) {
        double by = c->in[w].data ? kc_at(c, w, i) : 1, v = x[i] * inverse;
        value[i] = v * (by + (c->a.plus_one ? 1 : 0));
        scale[i] = fmax(SCALE_FLOOR, c->a.plus_one ? fabs(v) * fmax(1, fabs(by)) : fabs(value[i]));
    }
}

const unsigned kc_cases_NORM_RESIDUAL = TAILS + 110;

void kc_make_NORM_RESIDUAL(struct kc_case *c, unsigned index)
{
    int64_t d = c->large ? 4096 : width_of(c, index, 900), groups = c->large ? 1 : kc_between(c, 1, 3),
            t = c->large ? 512 : kc_between(c, 0, 12);
    if (!c->large && index >= TAILS && kc_chance(c, 2)) {
        c->a.segments = INT64_C(1) << kc_between(c, 1, 6);
        d = c->a.segments * kc_between(c, 1, 16);
    }
    for (unsigned i = 0; i < 2; i++) {
        kc_fill(c, i, D0_F32, t * d * groups, d * groups);
        poison(c, i, t, d * groups);
    }
    bool weight = c->large || !kc_chance(c, 4);
    if (weight)
        kc_fill(c, 2, kc_any_type(c), d, 0);
    c->a.dim = groups > 1 || kc_chance(c, 2) ? d : 0;
    c->a.plus_one = weight && kc_chance(c, 2);
    c->a.eps = kc_chance(c, 2) ? 1e-6 : 1e-5;
    kc_output_of(c, 0, false, t, d * groups);
    kc_output_of(c, 1, false, t, d * groups);
    c->a.tokens = t;
    c->a.k = d * groups;
    c->moved = 16.0 * (double)(t * d * groups);
    snprintf(c->shape, sizeof c->shape, "T=%d D=%d groups=%d S=%d w=%s%s", (int)t, (int)d, (int)groups,
             (int)c->a.segments, weight ? dtype_name(c->a.in_dtype[2]) : "none",
             c->a.plus_one ? " plus one" : "");
}

void kc_judge_NORM_RESIDUAL(struct kc_case *c)
{
    size_t d = (size_t)(c->a.dim ? c->a.dim : c->a.k);
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        c->want[0][i] = (double)(float)(kc_at(c, 0, i) + kc_at(c, 1, i));
        c->scale[0][i] = 0; /* the very bits */
    }
    for (size_t g = 0; g < kc_outputs(c, 0); g += d)
        norm_run(c, c->want[0] + g, d, 2, c->want[1] + g, c->scale[1] + g);
}

/* ---- norm_rope_store ---- */

const unsigned kc_cases_NORM_ROPE_STORE = 2 * TAILS + 100;

static void store_pages(struct kc_case *c, unsigned s, uint32_t dtype, int64_t dim)
{
    size_t bytes = (size_t)(c->a.pages * c->a.kv_heads * c->a.page_tokens * dim) * kc_width(dtype);
    memset(kc_state(c, s, bytes), 0xFF, bytes);
    c->a.in_dtype[3 + s] = dtype;
    kc_dims(c, 3 + s, 4, (int64_t[]){c->a.pages, c->a.kv_heads, c->a.page_tokens, dim});
}

static void turns(struct kc_case *c, int64_t t, int64_t half)
{
    kc_fill(c, 8, D0_F32, t * 2 * half, 2 * half);
    kc_dims(c, 8, 2, (int64_t[]){t, 2 * half});
    float *table = c->in[8].data;
    for (int64_t i = 0; i < t * half; i++) {
        double angle = 6.3 * rng_next_f64(&c->rng);
        table[i / half * 2 * half + i % half] = (float)cos(angle);
        table[i / half * 2 * half + half + i % half] = (float)sin(angle);
    }
}

void kc_make_NORM_ROPE_STORE(struct kc_case *c, unsigned index)
{
    struct kc_paged p;
    uint32_t dtype = kc_any_type(c);
    if (c->values == KC_HUGE || (dtype == D0_F16 && c->values == KC_OUTLIER))
        c->values = KC_NORMAL; /* what the pages cannot hold is infinite */
    int64_t half = c->large ? 64 : index < 2 * TAILS ? index / 2 + 1 : kc_between(c, 1, 70);
    int64_t before = c->large || kc_chance(c, 2) ? 0 : kc_between(c, 0, 20),
            dim = before + 2 * half + (c->large || kc_chance(c, 2) ? 0 : kc_between(c, 0, 20));
    c->a.kv_heads = c->large ? 8 : kc_between(c, 1, 3);
    c->a.dim = dim;
    c->a.offset = before;
    c->a.style = c->large ? 0 : index % 2;
    c->a.v_dim = c->large || kc_chance(c, 2) ? dim : kc_between(c, 1, 90);
    c->a.eps = kc_chance(c, 2) ? 1e-6 : 1e-5;
    c->a.plus_one = kc_chance(c, 3);
    kc_paged_make(c, 5, &p);
    kc_paged_break(c, &p);
    int64_t widths[3] = {c->a.kv_heads * dim * (c->large ? 4 : kc_between(c, 1, 3)), c->a.kv_heads * dim,
                         c->a.kv_heads * c->a.v_dim};
    for (unsigned i = 0; i < 3; i++) {
        kc_fill(c, i, D0_F32, p.tokens * widths[i], widths[i]);
        poison(c, i, i < 2 ? p.tokens : 0, widths[i]);
        kc_dims(c, i, 2, (int64_t[]){p.tokens, widths[i]});
    }
    turns(c, p.tokens, half);
    for (unsigned i = 9; i < 11; i++)
        if (c->large || !kc_chance(c, 3))
            kc_fill(c, i, kc_any_type(c), dim, 0);
    store_pages(c, 0, dtype, dim);
    store_pages(c, 1, dtype, c->a.v_dim);
    kc_output(c, p.tokens, widths[0]);
    c->a.k = widths[0];
    c->moved = 8.0 * (double)(p.tokens * (widths[0] + widths[1] + widths[2]));
    snprintf(
        c->shape, sizeof c->shape,
        "T=%d B=%d q=%d kv_heads=%d dim=%d v_dim=%d D=%d offset=%d style=%d pages=%s q_norm=%d k_norm=%d%s",
        (int)p.tokens, (int)c->a.seqs, (int)widths[0], (int)c->a.kv_heads, (int)dim, (int)c->a.v_dim,
        2 * (int)half, (int)before, (int)c->a.style, dtype_name(dtype), c->in[9].data != NULL,
        c->in[10].data != NULL, c->a.plus_one ? " plus one" : "");
}

/* One head at element `at` of input i, of row t: value and natural scale (0: passes through) of each. */
static void turned_head(const struct kc_case *c, unsigned i, unsigned w, size_t at, size_t t, double *value,
                        double *scale)
{
    size_t dim = (size_t)c->a.dim, width = (size_t)c->a.in_dims[8][1], half = width / 2;
    double *x = malloc(3 * dim * sizeof *x), *normed = x + dim, *size = normed + dim;
    if (!x)
        abort();
    for (size_t j = 0; j < dim; j++) {
        x[j] = normed[j] = kc_at(c, i, at + j);
        size[j] = 0;
    }
    if (c->in[w].data)
        norm_run(c, x, dim, w, normed, size);
    memcpy(value, normed, dim * sizeof *value);
    memcpy(scale, size, dim * sizeof *scale);
    for (size_t j = 0; j < half; j++) {
        size_t p = (size_t)c->a.offset + (c->a.style ? 2 * j : j), q = c->a.style ? p + 1 : p + half;
        double cosine = kc_at(c, 8, t * width + j), sine = kc_at(c, 8, t * width + half + j);
        value[p] = normed[p] * cosine - normed[q] * sine;
        value[q] = normed[q] * cosine + normed[p] * sine;
        scale[p] = scale[q] =
            fmax(fmax(SCALE_FLOOR, fmax(size[p], size[q])), fmax(fabs(normed[p]), fabs(normed[q])));
    }
    free(x);
}

static void judge_values_pages(struct kc_case *c)
{
    const int32_t *positions = c->in[5].data, *seq_of = c->in[6].data, *table = c->in[7].data;
    size_t width = kc_width(c->a.in_dtype[4]);
    unsigned char *want = arena_alloc(c->arena, c->state[1].bytes);
    if (!want)
        abort();
    memcpy(want, c->state[1].data, c->state[1].bytes);
    for (int64_t t = 0; t < c->a.tokens; t++)
        for (int64_t h = 0; h < c->a.kv_heads; h++) {
            int64_t slot = kc_slot(c, table, seq_of[t], positions[t], h), n = c->a.v_dim;
            const float *x = (const float *)c->in[2].data + (t * c->a.kv_heads + h) * n;
            if (slot >= 0)
                tensor_from_f32(x, (size_t)n, c->a.in_dtype[4], want + (size_t)(slot * n) * width);
        }
    c->want_state[1] = want;
}

void kc_judge_NORM_ROPE_STORE(struct kc_case *c)
{
    const int32_t *positions = c->in[5].data, *seq_of = c->in[6].data, *table = c->in[7].data;
    size_t dim = (size_t)c->a.dim, heads = (size_t)c->a.k / dim, kv_heads = (size_t)c->a.kv_heads;
    double *value = malloc(2 * dim * sizeof *value), *scale = value + dim;
    if (!value)
        abort();
    kc_judge_begin(c);
    for (size_t h = 0; h < (size_t)c->a.tokens * heads; h++)
        turned_head(c, 0, 9, h * dim, h / heads, c->want[0] + h * dim, c->scale[0] + h * dim);
    kc_judge_state(c, 0);
    for (size_t h = 0; h < (size_t)c->a.tokens * kv_heads; h++) {
        size_t t = h / kv_heads;
        int64_t slot = kc_slot(c, table, seq_of[t], positions[t], (int64_t)(h % kv_heads));
        turned_head(c, 1, 10, h * dim, t, value, scale);
        for (size_t j = 0; slot >= 0 && j < dim; j++) {
            /* what passes through is rounded to the type of the pages, no more */
            c->want_state_f64[0][(size_t)slot * dim + j] = value[j];
            c->state_scale[0][(size_t)slot * dim + j] = fmax(scale[j], SCALE_FLOOR);
        }
    }
    judge_values_pages(c);
    free(value);
}

/* ---- planted bugs ---- */

static void ref(uint32_t op, const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    kern_pick(op, 0, KERN_REF)->run(a, first, last, thread);
}

static void swapped_kv(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    if (a->out_dims[1][1] == a->out_dims[2][1]) {
        b.out[1] = a->out[2];
        b.out[2] = a->out[1];
    }
    ref(D0_OP_QKV, &b, first, last, thread);
}

static void first_bias(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in[5] = b.in[6] = NULL;
    ref(D0_OP_QKV, &b, first, last, thread);
}

static void swapped_gate(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    for (unsigned i = 1; i < 4; i += 2)
        for (unsigned k = 0; k < 2; k++) {
            b.in[i + k] = a->in[i + 1 - k];
            b.in_dtype[i + k] = a->in_dtype[i + 1 - k];
            b.in_form[i + k] = a->in_form[i + 1 - k];
        }
    ref(D0_OP_GATE_UP, &b, first, last, thread);
}

static void no_up_bias(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in[4] = NULL;
    ref(D0_OP_GATE_UP, &b, first, last, thread);
}

static void norm_of_a(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    ref(D0_OP_NORM_RESIDUAL, a, first, last, thread);
    b.in[1] = a->in[2];
    b.in_dtype[1] = a->in_dtype[2];
    b.out[0] = a->out[1];
    ref(D0_OP_RMS_NORM, &b, first, last, thread);
}

static void sum_lost(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_NORM_RESIDUAL, a, first, last, thread);
    size_t k = (size_t)a->k;
    memcpy((float *)a->out[0] + first * k, (const float *)a->in[0] + first * k,
           (last - first) * k * sizeof(float));
}

static void one_head_norm(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a; /* the norm of the keys for the queries, too */
    b.in[9] = a->in[10];
    b.in_dtype[9] = a->in_dtype[10];
    ref(D0_OP_NORM_ROPE_STORE, &b, first, last, thread);
}

static void raw_keys(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in[10] = NULL;
    ref(D0_OP_NORM_ROPE_STORE, &b, first, last, thread);
}

static void head_start(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.offset = 0;
    ref(D0_OP_NORM_ROPE_STORE, &b, first, last, thread);
}

static void early_turn(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    for (size_t t = first; t < last; t++) { /* every row turned as the first one */
        struct kern_args b = *a;
        for (unsigned i = 0; i < 3; i++)
            b.in[i] = (const float *)a->in[i] + t * (size_t)a->in_dims[i][1];
        b.in[5] = (const int32_t *)a->in[5] + t;
        b.in[6] = (const int32_t *)a->in[6] + t;
        b.out[0] = (float *)a->out[0] + t * (size_t)a->k;
        ref(D0_OP_NORM_ROPE_STORE, &b, 0, 1, thread);
    }
}

#define OF_REF(OP, name)                                                                                     \
    static size_t name##_items(const struct kern_args *a)                                                    \
    {                                                                                                        \
        return kc_ref_items(D0_OP_##OP, a);                                                                  \
    }                                                                                                        \
    static size_t name##_scratch(const struct kern_args *a)                                                  \
    {                                                                                                        \
        return kc_ref_scratch(D0_OP_##OP, a);                                                                \
    }                                                                                                        \
    static size_t name##_shared(const struct kern_args *a)                                                   \
    {                                                                                                        \
        const struct kern_variant *v = kern_pick(D0_OP_##OP, 0, KERN_REF);                                   \
        return v->shared ? v->shared(a) : 0;                                                                 \
    }
OF_REF(QKV, qkv)
OF_REF(GATE_UP, gate_up)
OF_REF(NORM_RESIDUAL, norm_residual)
OF_REF(NORM_ROPE_STORE, norm_rope_store)

#define PLANTED(OP, name, fn, bug)                                                                           \
    {                                                                                                        \
        {D0_OP_##OP, 0, KERN_REF, "planted_" #fn, fn, name##_items, 1, name##_scratch, name##_shared}, bug   \
    }

static const struct kc_planted planted[] = {
    PLANTED(QKV, qkv, swapped_kv, "keys and values swapped"),
    PLANTED(QKV, qkv, first_bias, "only the first bias"),
    PLANTED(GATE_UP, gate_up, swapped_gate, "gate and up swapped"),
    PLANTED(GATE_UP, gate_up, no_up_bias, "forgets the bias of up"),
    PLANTED(NORM_RESIDUAL, norm_residual, norm_of_a, "norm of one summand"),
    PLANTED(NORM_RESIDUAL, norm_residual, sum_lost, "the sum is not handed on"),
    PLANTED(NORM_ROPE_STORE, norm_rope_store, one_head_norm, "one norm for queries and keys"),
    PLANTED(NORM_ROPE_STORE, norm_rope_store, raw_keys, "keys without their norm"),
    PLANTED(NORM_ROPE_STORE, norm_rope_store, head_start, "ignores offset"),
    PLANTED(NORM_ROPE_STORE, norm_rope_store, early_turn, "every row turned as the first"),
};

size_t kc_planted_fused(const struct kc_planted **out)
{
    *out = planted;
    return ARRAY_LEN(planted);
}
