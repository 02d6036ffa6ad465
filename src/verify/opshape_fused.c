/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns which shapes are tested and timed of the fused operators: tails of every width, each stored type, each
 * feature of the operators that they are made of.
 */
#include <math.h>

#include "verify/opcase.h"

#define TAILS OPSHAPE_TAILS

/* Weight input i [n, k], stored in one of the ways that LINEAR takes; its bias at input `bias` now and then.
 */
static void piece(struct opshape *s, unsigned draw, uint32_t i, uint32_t bias, int64_t n, int64_t k)
{
    struct optype types[16];
    unsigned n_types = 0;
    while (n_types < ARRAY_LEN(types) && optype_default(D0_OP_LINEAR, n_types, &types[n_types]))
        n_types++;
    const struct optype mine = s->type;
    s->type = types[draw % n_types];
    opshape_stored(s, i, 0, n, k);
    s->type = mine;
    if (draw % 3 == 0)
        opshape_weight(s, bias, opshape_any_type(draw), 1, n, 0, 0);
}

static bool products(unsigned i, struct opshape *s)
{
    static const int16_t wide[][2] = {{256, 8}, {320, 2}, {1000, 0}, {2048, 64}};
    bool tail = i < TAILS, three = s->node.op == D0_OP_QKV;
    int64_t k = tail ? (int64_t)i + 1 : wide[(i - TAILS) % ARRAY_LEN(wide)][0],
            n = opshape_vary(i, 91, 1, 19);
    opshape_rows(s, 0, k);
    for (uint32_t p = 0; p < (three ? 3u : 2u); p++)
        piece(s, 3 * i + p, 1 + p, (three ? 4 : 3) + p, three ? n + p * (i % 4) : n, k);
    node_set_attr_i(&s->node, D0_ATTR_SEGMENTS, tail ? 0 : wide[(i - TAILS) % ARRAY_LEN(wide)][1]);
    if (!three) {
        node_set_attr_i(&s->node, D0_ATTR_FUNCTION, i % 14);
        node_set_attr_f(&s->node, D0_ATTR_LIMIT, i % 2 ? 7 : 1);
        node_set_attr_f(&s->node, D0_ATTR_ALPHA, 1.702);
        node_set_attr_f(&s->node, D0_ATTR_BETA, 4);
        node_set_attr_f(&s->node, D0_ATTR_LINEAR_BETA, 25);
    }
    return i < TAILS + ARRAY_LEN(wide);
}

static bool residual(unsigned i, struct opshape *s)
{
    int64_t d = i < TAILS ? (int64_t)i + 1 : 1024, groups = i % 5 == 3 ? 2 : 1;
    opshape_rows(s, 0, groups * d);
    opshape_rows(s, 1, groups * d);
    if (i % 4)
        opshape_weight(s, 2, opshape_any_type(i), 1, d, 0, 0);
    node_set_attr_f(&s->node, D0_ATTR_EPS, i % 2 ? 1e-5 : 1e-6);
    node_set_attr_i(&s->node, D0_ATTR_DIM, groups > 1 ? d : 0);
    node_set_attr_i(&s->node, D0_ATTR_PLUS_ONE, i % 4 && i % 3 == 1);
    node_set_attr_i(&s->node, D0_ATTR_SEGMENTS, i < TAILS ? 0 : 16);
    return i < TAILS + 2;
}

struct sizes {
    int64_t heads, kv_heads, dim, v_dim, turned, offset, page_tokens;
};

static void make_store(struct opshape *s, const struct sizes *z, uint32_t pages, uint32_t q_norm,
                       uint32_t k_norm)
{
    opshape_rows(s, 0, z->heads * z->dim);
    opshape_rows(s, 1, z->kv_heads * z->dim);
    opshape_rows(s, 2, z->kv_heads * z->v_dim);
    opshape_state(s, 3, pages, 4, z->kv_heads, z->page_tokens, z->dim);
    opshape_state(s, 4, pages, 4, z->kv_heads, z->page_tokens, z->v_dim);
    opshape_places(s, 5, true);
    opshape_rows(s, 8, z->turned);
    if (q_norm)
        opshape_weight(s, 9, q_norm, 1, z->dim, 0, 0);
    if (k_norm)
        opshape_weight(s, 10, k_norm, 1, z->dim, 0, 0);
    node_set_attr_i(&s->node, D0_ATTR_KV_HEADS, z->kv_heads);
    node_set_attr_i(&s->node, D0_ATTR_DIM, z->dim);
    node_set_attr_i(&s->node, D0_ATTR_V_DIM, z->v_dim);
    node_set_attr_i(&s->node, D0_ATTR_OFFSET, z->offset);
    node_set_attr_f(&s->node, D0_ATTR_EPS, 1e-6);
}

static bool store(unsigned i, struct opshape *s)
{
    static const uint8_t pages[] = {16, 8, 32, 1};
    int64_t half = i < TAILS ? 1 + (int64_t)i / 2 : 64;
    struct sizes z = {.kv_heads = opshape_vary(i, 92, 1, 3),
                      .turned = 2 * half,
                      .offset = i % 3 == 2 ? opshape_vary(i, 93, 0, 9) : 0,
                      .page_tokens = pages[i / 3 % 4]};
    z.heads = z.kv_heads * opshape_vary(i, 94, 1, 3);
    z.dim = z.offset + z.turned + (i % 3 == 1 ? opshape_vary(i, 95, 0, 9) : 0);
    z.v_dim = i % 4 == 1 ? opshape_vary(i, 96, 1, 40) : z.dim;
    make_store(s, &z, opshape_any_type(i), i % 5 ? opshape_any_type(i / 3) : 0,
               i % 7 ? opshape_any_type(i / 2) : 0);
    node_set_attr_i(&s->node, D0_ATTR_STYLE, i % 2);
    node_set_attr_i(&s->node, D0_ATTR_PLUS_ONE, i % 6 == 4);
    return i < TAILS + 2;
}

bool opshape_default_fused(unsigned i, struct opshape *s)
{
    switch ((enum d0_op)s->node.op) {
    case D0_OP_QKV:
    case D0_OP_GATE_UP:
        return products(i, s);
    case D0_OP_NORM_RESIDUAL:
        return residual(i, s);
    case D0_OP_NORM_ROPE_STORE:
        return store(i, s);
    default:
        return false;
    }
}

bool opshape_bench_fused(struct opshape *s, int64_t dims[D0_N_DIMS])
{
    const struct sizes z = {32, 8, 128, 128, 128, 0, 16};
    bool three = s->node.op == D0_OP_QKV;
    dims[0] = 1; /* what a decode step does */
    switch ((enum d0_op)s->node.op) {
    case D0_OP_QKV:
    case D0_OP_GATE_UP:
        opshape_rows(s, 0, 4096);
        for (uint32_t p = 0; p < (three ? 3u : 2u); p++)
            opshape_weight(s, 1 + p, D0_BF16, 2, three && p ? 1024 : 4096, 4096, 0);
        return true;
    case D0_OP_NORM_RESIDUAL:
        opshape_rows(s, 0, 4096);
        opshape_rows(s, 1, 4096);
        opshape_weight(s, 2, D0_BF16, 1, 4096, 0, 0);
        node_set_attr_f(&s->node, D0_ATTR_EPS, 1e-6);
        dims[0] = 64;
        return true;
    case D0_OP_NORM_ROPE_STORE:
        make_store(s, &z, D0_BF16, D0_BF16, D0_BF16);
        dims[0] = 8;
        dims[3] = 64;
        return true;
    default:
        return false;
    }
}
