/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns which shapes are tested and timed of operators whose rows know nothing of each other: every tail of
 * the widths 1 to 70 and some larger ones, each function and feature in turn.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/tensor.h"
#include "verify/opcase.h"

#define TAILS OPSHAPE_TAILS

/* A width of every tail, then four odd ones near 1,000. */
static bool tail(unsigned i, int64_t *k)
{
    *k = i < TAILS ? (int64_t)i + 1 : (int64_t)1000 + (i - TAILS);
    return i < TAILS + 4;
}

static void set_i(struct opshape *s, uint32_t key, int64_t value)
{
    node_set_attr_i(&s->node, key, value);
}

static void set_f(struct opshape *s, uint32_t key, double value)
{
    node_set_attr_f(&s->node, key, value);
}

#define N_ROUNDINGS 10 /* of x_formats.def */

/* Activations rounded in format `x`; scales that leave some values saturated. */
static bool round_activations(struct opshape *s, int64_t x)
{
    const struct tensor_rounding *r = tensor_rounding(x);
    set_i(s, D0_ATTR_X_FORMAT, x);
    if (r && tensor_rounding_given(r))
        set_f(s, D0_ATTR_X_SCALE, r->dtype == D0_F4 ? 0x1p-9 : 0x1p-6);
    if (r && tensor_rounding_given(r) && s->node.op == D0_OP_EXPERTS)
        set_f(s, D0_ATTR_H_SCALE, r->dtype == D0_F4 ? 0x1p-10 : 0x1p-7);
    return r != NULL;
}

static void make_linear(struct opshape *s, int64_t k, int64_t n, int64_t segments, bool bias)
{
    opshape_rows(s, 0, k);
    opshape_stored(s, 1, 0, n, k);
    if (bias)
        opshape_weight(s, 2, s->type.format.scale_dtype ? D0_BF16 : s->type.dtype, 1, n, 0, 0);
    set_i(s, D0_ATTR_SEGMENTS, segments);
}

static bool linear(unsigned i, struct opshape *s)
{
    static const int16_t wide[][3] = {/* K, segments, bias */
                                      {96, 1, 0},    {127, 0, 1},   {128, 4, 0}, {255, 0, 0},
                                      {256, 8, 1},   {257, 0, 0},   {320, 2, 0}, {1000, 0, 0},
                                      {2048, 64, 0}, {4096, 32, 1}, {4099, 0, 0}};
    if (i < TAILS) {
        make_linear(s, i + 1, 1 + (i * 7) % 19, 0, i % 3 == 0);
        return true;
    }
    i -= TAILS;
    if (i < ARRAY_LEN(wide)) {
        make_linear(s, wide[i][0], i == 6 ? 131 : 33 + i, wide[i][1], wide[i][2] != 0);
        return true;
    }
    i -= ARRAY_LEN(wide);
    make_linear(s, 37 + 64 * i, 20 + i, 0, i % 3 == 0);
    return i < N_ROUNDINGS && round_activations(s, 1 + i);
}

static bool group_linear(unsigned i, struct opshape *s)
{
    int64_t k, groups = opshape_vary(i, 1, 1, 5);
    bool more = tail(i, &k);
    opshape_rows(s, 0, groups * k);
    opshape_stored(s, 1, 0, groups * (1 + (i * 5) % 17), k);
    set_i(s, D0_ATTR_GROUPS, groups);
    if (i % 5 == 4)
        round_activations(s, 1 + i / 5 % N_ROUNDINGS);
    return more;
}

static bool rms_norm(unsigned i, struct opshape *s)
{
    static const int16_t wide[][4] = {/* K, dim, plus_one, segments */
                                      {96, 32, 0, 0},   {80, 16, 1, 0},   {35, 7, 0, 0},
                                      {256, 128, 0, 0}, {2048, 0, 1, 64}, {4096, 0, 0, 0}};
    int64_t k = i + 1, dim = 0, plus_one = 0, segments = 0;
    bool weight = i >= TAILS || i % 7 != 6;
    if (i < TAILS) {
        plus_one = i % 5 == 4 && weight;
    } else if (i - TAILS < ARRAY_LEN(wide)) {
        const int16_t *w = wide[i - TAILS];
        k = w[0];
        dim = w[1];
        plus_one = w[2];
        segments = w[3];
    } else {
        return false;
    }
    opshape_rows(s, 0, k);
    if (weight)
        opshape_weight(s, 1, s->type.dtype, 1, dim ? dim : k, 0, 0);
    set_f(s, D0_ATTR_EPS, 1e-5);
    set_i(s, D0_ATTR_DIM, dim);
    set_i(s, D0_ATTR_PLUS_ONE, plus_one);
    set_i(s, D0_ATTR_SEGMENTS, segments);
    return true;
}

/* Function i of those of a gate alone (or, pair, of a gate and another value), with its bounds. */
static void set_function(struct opshape *s, unsigned i, bool pair)
{
    static const int64_t alone[] = {0, 1, 2, 3, 4, 5, 6, 7, 12, 13};
    static const double limits[] = {7, 0.5, 30, 1};
    bool bounds = s->node.op != D0_OP_GATED_NORM;
    int64_t function = pair ? (int64_t)(i % 14) : alone[i % 10];
    if (!bounds && function == 12) /* its bound is an attribute that this operator has not */
        function = 0;
    set_i(s, D0_ATTR_FUNCTION, function);
    if (bounds)
        set_f(s, D0_ATTR_LIMIT, limits[opshape_vary(i, 2, 0, 3)]);
    if (pair) {
        set_f(s, D0_ATTR_ALPHA, i % 4 < 2 ? 1.702 : 0.3);
        set_f(s, D0_ATTR_BETA, i % 3 ? 4 : 0.7);
        set_f(s, D0_ATTR_LINEAR_BETA, i % 5 ? 25 : 3.3);
    }
}

/* glu and act; the first is the plainest */
static bool activation(unsigned i, struct opshape *s)
{
    int64_t k;
    bool more = tail(i, &k), pair = s->node.op == D0_OP_GLU;
    opshape_rows(s, 0, k);
    if (pair)
        opshape_rows(s, 1, k);
    set_function(s, i / 2, pair);
    return more;
}

static bool other_norm(unsigned i, struct opshape *s)
{
    int64_t d, groups = opshape_vary(i, 3, 1, 3);
    bool more = tail(i, &d), gated = s->node.op == D0_OP_GATED_NORM;
    uint32_t at = gated ? 2 : 1;
    opshape_rows(s, 0, groups * d);
    if (gated)
        opshape_rows(s, 1, groups * d);
    if (i % 4)
        opshape_weight(s, at, opshape_any_type(i), 1, d, 0, 0);
    if (!gated && i % 3)
        opshape_weight(s, 2, opshape_any_type(i / 3), 1, d, 0, 0);
    set_f(s, D0_ATTR_EPS, i % 2 ? 1e-5 : 1e-6);
    set_i(s, D0_ATTR_DIM, groups > 1 || i % 2 ? d : 0);
    if (gated) {
        set_function(s, i, false);
        set_i(s, D0_ATTR_BEFORE, i / 10 % 2);
    }
    return more;
}

/* add, mul, scale, gather_rows, embed, position_scale */
static bool simple(unsigned i, struct opshape *s)
{
    static const double factors[] = {0.5, 1, 1.0 / 3, 73.3212111, -2.7, 0};
    static const int64_t lengths[] = {8192, 1, 7, 100};
    int64_t k, run = 1;
    bool more = tail(i, &k);
    switch ((enum d0_op)s->node.op) {
    case D0_OP_EMBED:
        opshape_ints(s, 0, D0_INPUT_IDS, D0_DIM_TOKENS);
        opshape_weight(s, 1, s->type.dtype, 2, 16, k, 0);
        return more;
    case D0_OP_GATHER_ROWS:
        opshape_rows(s, 0, k);
        if (i % 3 == 1) /* several rows become one */
            opshape_numbers(s, 1, D0_INPUT_ROWS, D0_DIM_ROWS, opshape_vary(i, 9, 1, 5));
        else
            opshape_ints(s, 1, D0_INPUT_ROWS, D0_DIM_ROWS);
        return more;
    case D0_OP_MUL:
        run = i % 3 ? 1 : opshape_vary(i, 4, 2, 70);
        opshape_rows(s, 0, k * run);
        opshape_rows(s, 1, i % 6 ? k : run);
        if (i % 6 == 0)
            s->in[0].dims[1] = run * k;
        return more;
    case D0_OP_SCALE:
        opshape_rows(s, 0, k);
        if (i % 4)
            opshape_weight(s, 1, opshape_any_type(i), 1, i % 2 ? 1 : k, 0, 0);
        set_f(s, D0_ATTR_FACTOR, factors[i % 6]);
        return more;
    case D0_OP_POSITION_SCALE:
        opshape_rows(s, 0, k);
        opshape_ints(s, 1, D0_INPUT_POSITIONS, D0_DIM_TOKENS);
        set_i(s, D0_ATTR_LENGTH, lengths[i % 4]);
        set_f(s, D0_ATTR_BETA, i % 3 ? 0.1 : 0.7);
        set_i(s, D0_ATTR_OFFSET, i / 2 % 2);
        return more;
    default: /* ADD */
        opshape_rows(s, 0, k);
        opshape_rows(s, 1, k);
        return more;
    }
}

static bool cuts(unsigned i, struct opshape *s)
{
    int64_t k, groups = i % 2 ? opshape_vary(i, 5, 2, 5) : 1;
    bool more = tail(i, &k);
    set_i(s, D0_ATTR_GROUPS, i % 4 ? groups : 0);
    groups = i % 4 ? groups : 1;
    if (s->node.op == D0_OP_CONCAT) {
        uint32_t n = (uint32_t)opshape_vary(i, 6, 2, 8);
        for (uint32_t j = 0; j < n; j++)
            opshape_rows(s, j, groups * (j == i % n ? k : opshape_vary(i, 10 + j, 1, 40)));
        return more;
    }
    int64_t before = i % 3 ? opshape_vary(i, 7, 0, 40) : 0, after = i % 5 ? opshape_vary(i, 8, 0, 40) : 0;
    opshape_rows(s, 0, groups * (before + k + after));
    set_i(s, D0_ATTR_DIM, k);
    set_i(s, D0_ATTR_OFFSET, before);
    return more;
}

static bool rope(unsigned i, struct opshape *s)
{
    int64_t width = 2 * (i / 2 + 1), offset = i % 5 == 0 ? 3 : 0, dim = width + offset + (i % 4 == 3 ? 5 : 0);
    if (s->node.op == D0_OP_ROPE_TABLE) {
        opshape_ints(s, 0, D0_INPUT_POSITIONS, D0_DIM_TOKENS);
        opshape_weight(s, 1, D0_F32, 1, width / 2, 0, 0);
        set_f(s, D0_ATTR_FACTOR, i % 6 == 5 ? 1.25 : 0);
        if (i % 4 == 2) { /* time, height and width */
            int64_t t = opshape_vary(i, 11, 0, width / 2), h = opshape_vary(i, 12, 0, width / 2 - t);
            opshape_numbers(s, 0, D0_INPUT_PLACES, D0_DIM_TOKENS, 3);
            set_i(s, D0_ATTR_SECTION_T, t);
            set_i(s, D0_ATTR_SECTION_H, h);
            set_i(s, D0_ATTR_SECTION_W, width / 2 - t - h);
            set_i(s, D0_ATTR_INTERLEAVE, i / 4 % 3);
        }
        return i < TAILS;
    }
    opshape_rows(s, 0, (1 + i % 3) * dim);
    opshape_rows(s, 1, width);
    set_i(s, D0_ATTR_DIM, dim);
    set_i(s, D0_ATTR_STYLE, i % 2);
    set_i(s, D0_ATTR_OFFSET, offset);
    set_i(s, D0_ATTR_INVERSE, i / 3 % 2);
    return i < TAILS;
}

static bool route(unsigned i, struct opshape *s)
{
    int64_t groups = i % 3 ? 1 : opshape_vary(i, 20, 2, 8),
            each = groups > 1 ? opshape_vary(i, 21, 1, 12) : 0,
            n = each        ? groups * each
                : i < TAILS ? (int64_t)i + 1
                            : 256,
            kept = each ? opshape_vary(i, 22, 0, groups) : 0, most = each ? each * (kept ? kept : groups) : n;
    opshape_rows(s, 0, n);
    int64_t topk = opshape_vary(i, 23, 1, most < 24 ? most : 24);
    if (i % 2)
        opshape_weight(s, 1, opshape_any_type(i), 1, n, 0, 0);
    if (i % 7 == 3) {
        opshape_weight(s, 2, i % 2 ? D0_I64 : D0_I32, 2, 19, topk, 0);
        opshape_ints(s, 3, D0_INPUT_IDS, D0_DIM_TOKENS);
    }
    if (i % 5 == 1)
        opshape_weight(s, 4, opshape_any_type(i), 1, n, 0, 0);
    set_i(s, D0_ATTR_TOPK, topk);
    set_i(s, D0_ATTR_SCORE, i / 2 % 4);
    if (each) {
        set_i(s, D0_ATTR_GROUPS, groups);
        set_i(s, D0_ATTR_GROUPS_KEPT, kept);
        set_i(s, D0_ATTR_GROUP_SCORE, i % 2);
    }
    set_i(s, D0_ATTR_RENORMALIZE, i / 3 % 2);
    set_f(s, D0_ATTR_RENORM_EPS, i % 4 ? 1e-20 : 0.125);
    set_f(s, D0_ATTR_SCALE, i % 3 ? 0 : 2.5);
    return i < TAILS + 4;
}

static void make_experts(unsigned i, struct opshape *s, int64_t n, int64_t d, int64_t inter, int64_t slots)
{
    int64_t layout = i % 4, wide = layout == 1 || layout == 2 ? 2 * inter : inter;
    bool turned = i % 3 == 2 && s->type.format.scale_dtype == 0;
    uint32_t t = opshape_any_type(i);
    opshape_rows(s, 0, d);
    opshape_chosen(s, 1, slots);
    opshape_rows(s, 2, slots);
    opshape_stored(s, 3, n, turned ? inter : d, turned ? d : inter);
    if (layout != 3)
        opshape_stored(s, 4, n, turned ? d : wide, turned ? wide : d);
    if (layout == 0 || layout == 3)
        opshape_stored(s, 5, n, turned ? d : inter, turned ? inter : d);
    if (i % 5 == 1 && layout != 3)
        opshape_weight(s, 6, t, 2, n, wide, 0);
    if (i % 5 == 1 && wide == inter)
        opshape_weight(s, 7, t, 2, n, inter, 0);
    if (i % 5 <= 1)
        opshape_weight(s, 8, t, 2, n, d, 0);
    set_i(s, D0_ATTR_INTER, inter);
    set_i(s, D0_ATTR_LAYOUT, layout);
    set_i(s, D0_ATTR_TRANSPOSED, turned);
    set_i(s, D0_ATTR_INPUT_WEIGHTED, i / 4 % 3 == 1);
    set_i(s, D0_ATTR_ZERO, i / 4 % 5 == 1 ? 2 : 0);
    set_function(s, i / 2, layout != 3);
}

static bool experts(unsigned i, struct opshape *s)
{
    int64_t d = i < TAILS ? (i % 2 ? (int64_t)i + 1 : opshape_vary(i, 31, 1, 40)) : 260,
            inter = i < TAILS ? (i % 2 ? opshape_vary(i, 32, 1, 40) : (int64_t)i + 1) : 96;
    make_experts(i, s, opshape_vary(i, 33, 1, 6), d, inter, opshape_vary(i, 34, 1, 4));
    set_i(s, D0_ATTR_FORM, opshape_vary(i, 35, 0, 1));
    if (i % 5 == 4)
        round_activations(s, 1 + i / 5 % N_ROUNDINGS);
    return i < TAILS + 2;
}

static bool streams(unsigned i, struct opshape *s)
{
    int64_t h, n = i % 5 + 1;
    bool more = tail(i, &h), head = s->node.op == D0_OP_HYPER_HEAD;
    h = i < TAILS ? h : h / 4;
    set_i(s, D0_ATTR_STREAMS, n);
    if (s->node.op == D0_OP_HYPER_OUT) {
        opshape_rows(s, 0, h);
        opshape_rows(s, 1, n * h);
        opshape_rows(s, 2, n * (n + 1));
        return more;
    }
    int64_t products = head ? n : n * (n + 2);
    opshape_rows(s, 0, n * h);
    opshape_weight(s, 1, opshape_any_type(i), 2, products, n * h, 0);
    opshape_weight(s, 2, opshape_any_type(i / 3), 1, products, 0, 0);
    opshape_weight(s, 3, D0_F32, 1, head ? 1 : 3, 0, 0);
    set_f(s, D0_ATTR_EPS, 1e-6);
    set_f(s, D0_ATTR_RENORM_EPS, i % 3 ? 1e-6 : 0);
    if (!head)
        set_i(s, D0_ATTR_ROUNDS, opshape_vary(i, 41, 0, i % 2 ? 3 : 20));
    return more;
}

static bool mix(unsigned i, struct opshape *s)
{
    int64_t k;
    bool more = tail(i, &k);
    opshape_rows(s, 0, k);
    opshape_weight(s, 1, opshape_any_type(i), 1, k, 0, 0);
    opshape_weight(s, 2, opshape_any_type(i / 3), 2, 1, k, 0);
    for (uint32_t b = 0; b < i % 10; b++)
        opshape_rows(s, 3 + b, k);
    set_f(s, D0_ATTR_EPS, 1e-6);
    return more;
}

bool opshape_default_rows(unsigned i, struct opshape *s)
{
    switch ((enum d0_op)s->node.op) {
    case D0_OP_LINEAR:
        return linear(i, s);
    case D0_OP_GROUP_LINEAR:
        return group_linear(i, s);
    case D0_OP_RMS_NORM:
        return rms_norm(i, s);
    case D0_OP_GLU:
    case D0_OP_ACT:
        return activation(i, s);
    case D0_OP_LAYER_NORM:
    case D0_OP_GATED_NORM:
        return other_norm(i, s);
    case D0_OP_EMBED:
    case D0_OP_ADD:
    case D0_OP_MUL:
    case D0_OP_SCALE:
    case D0_OP_GATHER_ROWS:
    case D0_OP_POSITION_SCALE:
        return simple(i, s);
    case D0_OP_SLICE:
    case D0_OP_CONCAT:
        return cuts(i, s);
    case D0_OP_ROPE:
    case D0_OP_ROPE_TABLE:
        return rope(i, s);
    case D0_OP_ROUTE:
        return route(i, s);
    case D0_OP_EXPERTS:
        return experts(i, s);
    case D0_OP_HYPER_IN:
    case D0_OP_HYPER_OUT:
    case D0_OP_HYPER_HEAD:
        return streams(i, s);
    case D0_OP_MIX_RESIDUAL:
        return mix(i, s);
    default:
        return false;
    }
}

/* ---- timing ---- */

static void bench_rows(struct opshape *s)
{
    const int64_t k = 4096;
    switch ((enum d0_op)s->node.op) {
    case D0_OP_EMBED:
        opshape_ints(s, 0, D0_INPUT_IDS, D0_DIM_TOKENS);
        opshape_weight(s, 1, s->type.dtype, 2, 4096, k, 0);
        return;
    case D0_OP_GATHER_ROWS:
        opshape_ints(s, 1, D0_INPUT_ROWS, D0_DIM_ROWS);
        break;
    case D0_OP_ADD:
    case D0_OP_MUL:
    case D0_OP_GLU:
    case D0_OP_CONCAT:
        opshape_rows(s, 1, k);
        break;
    case D0_OP_SLICE:
        set_i(s, D0_ATTR_DIM, k / 2);
        break;
    case D0_OP_SCALE:
        set_f(s, D0_ATTR_FACTOR, 0.5);
        break;
    case D0_OP_GATED_NORM:
        opshape_rows(s, 1, k);
        opshape_weight(s, 2, D0_BF16, 1, k, 0, 0);
        set_f(s, D0_ATTR_EPS, 1e-6);
        break;
    case D0_OP_RMS_NORM:
    case D0_OP_LAYER_NORM:
        opshape_weight(s, 1, s->type.dtype ? s->type.dtype : D0_BF16, 1, k, 0, 0);
        set_f(s, D0_ATTR_EPS, 1e-6);
        break;
    case D0_OP_POSITION_SCALE:
        opshape_ints(s, 1, D0_INPUT_POSITIONS, D0_DIM_TOKENS);
        set_i(s, D0_ATTR_LENGTH, 8192);
        set_f(s, D0_ATTR_BETA, 0.1);
        break;
    case D0_OP_ACT:
        set_i(s, D0_ATTR_FUNCTION, 2);
        break;
    default:
        break;
    }
    opshape_rows(s, 0, k);
}

static void bench_other(struct opshape *s)
{
    switch ((enum d0_op)s->node.op) {
    case D0_OP_ROPE_TABLE:
        opshape_ints(s, 0, D0_INPUT_POSITIONS, D0_DIM_TOKENS);
        opshape_weight(s, 1, D0_F32, 1, 64, 0, 0);
        return;
    case D0_OP_ROPE:
        opshape_rows(s, 0, 32 * 128);
        opshape_rows(s, 1, 128);
        set_i(s, D0_ATTR_DIM, 128);
        return;
    case D0_OP_GROUP_LINEAR:
        opshape_rows(s, 0, 8 * 2048);
        opshape_stored(s, 1, 0, 8 * 256, 2048);
        set_i(s, D0_ATTR_GROUPS, 8);
        return;
    case D0_OP_ROUTE:
        opshape_rows(s, 0, 256);
        set_i(s, D0_ATTR_TOPK, 8);
        return;
    case D0_OP_EXPERTS:
        make_experts(0, s, 16, 1024, 512, 4);
        set_i(s, D0_ATTR_FORM, 1);
        return;
    case D0_OP_MIX_RESIDUAL:
        opshape_default_rows(OPSHAPE_TAILS + 3, s);
        return;
    default:
        opshape_default_rows(OPSHAPE_TAILS + 3, s);
    }
}

void opshape_bench(uint32_t op, const struct optype *type, struct opshape *out, int64_t dims[D0_N_DIMS])
{
    static const int64_t step[D0_N_DIMS] = {64, 1, 64, 1};
    opshape_begin(out, op, type);
    memcpy(dims, step, sizeof step);
    switch ((enum d0_op)op) {
    case D0_OP_LINEAR: /* one token: what a decode step does, limited by reading the weights */
        make_linear(out, 4096, 4096, 0, false);
        dims[0] = 1;
        return;
    case D0_OP_ROPE:
    case D0_OP_ROPE_TABLE:
    case D0_OP_GROUP_LINEAR:
    case D0_OP_ROUTE:
    case D0_OP_EXPERTS:
    case D0_OP_MIX_RESIDUAL:
    case D0_OP_HYPER_IN:
    case D0_OP_HYPER_OUT:
    case D0_OP_HYPER_HEAD:
        bench_other(out);
        return;
    default:
        break;
    }
    if (opshape_bench_fused(out, dims) || opshape_default_tower(OPSHAPE_TAILS + 3, out))
        return;
    struct opshape paged = *out;
    if (opshape_default_paged(0, &paged)) {
        opshape_bench_paged(out);
        dims[0] = 8;
        dims[3] = 1024 / opshape_page_span(out);
        return;
    }
    bench_rows(out);
}
