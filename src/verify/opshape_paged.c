/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns which shapes are tested and timed of operators that read or write states: pages of keys and values,
 * latents, pools, and slots of fixed size.
 */
#include <math.h>

#include "base/mem.h"
#include "verify/opcase.h"

#define TAILS OPSHAPE_TAILS

static const uint8_t page_sizes[] = {16, 8, 32, 1};
static const uint8_t large[] = {80, 96, 128, 192};

static void set_i(struct opshape *s, uint32_t key, int64_t value)
{
    node_set_attr_i(&s->node, key, value);
}

static void set_f(struct opshape *s, uint32_t key, double value)
{
    node_set_attr_f(&s->node, key, value);
}

/* Every tail, then four large widths. */
static bool tail(unsigned i, int64_t *dim)
{
    *dim = i < TAILS ? (int64_t)i + 1 : large[(i - TAILS) % ARRAY_LEN(large)];
    return i < TAILS + ARRAY_LEN(large);
}

struct heads {
    int64_t heads, kv_heads, dim, v_dim, page_tokens;
};

static void make_store(struct opshape *s, const struct heads *h)
{
    opshape_rows(s, 0, h->kv_heads * h->dim);
    opshape_rows(s, 1, h->kv_heads * h->v_dim);
    opshape_state(s, 2, s->type.dtype, 4, h->kv_heads, h->page_tokens, h->dim);
    opshape_state(s, 3, s->type.dtype, 4, h->kv_heads, h->page_tokens, h->v_dim);
    opshape_places(s, 4, true);
    set_i(s, D0_ATTR_KV_HEADS, h->kv_heads);
    set_i(s, D0_ATTR_DIM, h->dim);
    set_i(s, D0_ATTR_V_DIM, h->v_dim);
}

static void make_attention(struct opshape *s, const struct heads *h, double scale, int64_t window)
{
    opshape_rows(s, 0, h->heads * h->dim);
    opshape_state(s, 1, s->type.dtype, 4, h->kv_heads, h->page_tokens, h->dim);
    opshape_state(s, 2, s->type.dtype, 4, h->kv_heads, h->page_tokens, h->v_dim);
    opshape_places(s, 3, true);
    set_i(s, D0_ATTR_HEADS, h->heads);
    set_i(s, D0_ATTR_KV_HEADS, h->kv_heads);
    set_i(s, D0_ATTR_DIM, h->dim);
    set_i(s, D0_ATTR_V_DIM, h->v_dim);
    set_f(s, D0_ATTR_SCALE, scale);
    set_i(s, D0_ATTR_WINDOW, window);
}

static void attention_features(struct opshape *s, unsigned i, int64_t heads, int64_t kv_heads)
{
    static const double caps[] = {50, 30, 5, 0.5};
    if (i % 3 == 1)
        set_f(s, D0_ATTR_SOFTCAP, caps[i / 3 % 4]);
    if (i % 7 == 3)
        set_i(s, D0_ATTR_CHUNK, 1 + i % 37);
    if (i % 4 == 2)
        opshape_weight(s, 6, opshape_any_type(i), 1, heads, 0, 0);
    if (i % 6 == 5) {
        opshape_chosen(s, 7, kv_heads * opshape_vary(i, 51, 1, 9));
        set_i(s, D0_ATTR_BLOCK, i % 12 == 5 ? opshape_vary(i, 52, 1, 24) : 0);
    } else if (i % 6 == 4) {
        opshape_numbers(s, 8, D0_INPUT_SPANS, D0_DIM_TOKENS, 2);
    }
}

static bool grouped(unsigned i, struct opshape *s)
{
    static const uint8_t heads[][2] = {{1, 1}, {4, 2}, {3, 3}, {8, 1}};
    int64_t dim;
    bool more = tail(i, &dim);
    struct heads h = {heads[i % 4][0], heads[i % 4][1], dim, i % 4 == 1 ? 1 + (int64_t)(i * 5) % 67 : dim,
                      page_sizes[i / 3 % 4]};
    if (s->node.op == D0_OP_KV_STORE) {
        make_store(s, &h);
        return more;
    }
    make_attention(s, &h, i % 2 ? 0.25 : 0.5, i % 5 == 2 ? 1 + (int64_t)i % 23 : 0);
    attention_features(s, i, h.heads, h.kv_heads);
    return more;
}

static void make_mla(struct opshape *s, unsigned i, const struct heads *h, int64_t rope, int64_t latent)
{
    int64_t nope = h->dim;
    opshape_rows(s, 0, h->heads * (nope + rope));
    opshape_state(s, 1, s->type.dtype, 4, 1, h->page_tokens, latent + rope);
    opshape_weight(s, 2, opshape_any_type(i), 2, h->heads * (nope + h->v_dim), latent, 0);
    opshape_places(s, 3, true);
    set_i(s, D0_ATTR_HEADS, h->heads);
    set_i(s, D0_ATTR_NOPE, nope);
    set_i(s, D0_ATTR_ROPE, rope);
    set_i(s, D0_ATTR_V_DIM, h->v_dim);
    set_i(s, D0_ATTR_LATENT, latent);
    set_f(s, D0_ATTR_SCALE, 1 / sqrt((double)(nope + rope)));
}

/* Tails of the latent, of the rotated part and of the values in turn. */
static bool latent(unsigned i, struct opshape *s)
{
    int64_t width;
    bool more = tail(i, &width), store = s->node.op == D0_OP_LATENT_STORE;
    int64_t rope = i % 3 == 1 && !store ? width
                   : i % 5              ? opshape_vary(i, 53, 1, 20)
                                        : 0,
            wide = i % 3 == 0 || store ? width : opshape_vary(i, 54, 1, 40);
    struct heads h = {opshape_vary(i, 55, 1, 5), 1, opshape_vary(i, 56, 1, 30),
                      i % 3 == 2 ? width : opshape_vary(i, 57, 1, 30), page_sizes[i / 3 % 4]};
    if (!store) {
        make_mla(s, i, &h, rope, wide);
        set_i(s, D0_ATTR_FORM, opshape_vary(i, 59, 0, 1));
        if (i % 4 == 3)
            opshape_chosen(s, 6, opshape_vary(i, 58, 1, 30));
        return more;
    }
    opshape_rows(s, 0, wide);
    opshape_state(s, 1, s->type.dtype, 4, 1, h.page_tokens, wide + rope);
    opshape_places(s, 2, true);
    if (rope)
        opshape_rows(s, 5, rope);
    return more;
}

static void make_topk(struct opshape *s, const struct heads *h, int64_t topk, bool weights)
{
    opshape_rows(s, 0, h->heads * h->dim);
    opshape_state(s, 1, s->type.dtype, 4, 1, h->page_tokens, h->dim);
    opshape_places(s, 2, true);
    if (weights)
        opshape_rows(s, 5, h->heads);
    set_i(s, D0_ATTR_HEADS, h->heads);
    set_i(s, D0_ATTR_DIM, h->dim);
    set_i(s, D0_ATTR_TOPK, topk);
}

/* Single keys, blocks of keys, pooled entries in turn. */
static bool index_topk(unsigned i, struct opshape *s)
{
    int64_t dim, groups = i % 3 == 1 ? opshape_vary(i, 61, 1, 3) : 0;
    bool more = tail(i, &dim);
    struct heads h = {(groups ? groups : 1) * opshape_vary(i, 62, 1, 4), 1, dim, 0, page_sizes[i / 3 % 4]};
    make_topk(s, &h, opshape_vary(i, 63, 1, 12), i % 3 != 1 && i % 4);
    if (i % 5)
        set_f(s, D0_ATTR_SCALE, i % 5 == 1 ? 0.25 : 1 / sqrt((double)dim));
    if (groups) {
        set_i(s, D0_ATTR_GROUPS, groups);
        set_i(s, D0_ATTR_BLOCK, opshape_vary(i, 64, 1, 9));
    }
    if (i % 3 == 2)
        set_i(s, D0_ATTR_RATIO, opshape_vary(i, 65, 1, 4));
    return more;
}

static void make_pool_kv(struct opshape *s, int64_t dim, int64_t ratio, int64_t parts, int64_t rope,
                         int64_t rows, uint32_t t)
{
    int64_t width = parts * dim;
    opshape_rows(s, 0, width);
    opshape_rows(s, 1, width);
    opshape_weight(s, 2, t, 2, ratio, width, 0);
    opshape_weight(s, 3, t, 1, dim, 0, 0);
    opshape_weight(s, 4, D0_F32, 1, rope / 2, 0, 0);
    opshape_state(s, 5, s->type.dtype, 4, 1, rows, dim);
    opshape_state(s, 6, D0_F32, 3, 2 * parts * ratio, width, 0);
    opshape_places(s, 7, true);
    opshape_ints(s, 10, D0_INPUT_SLOTS, D0_DIM_SEQS);
    set_i(s, D0_ATTR_RATIO, ratio);
    set_i(s, D0_ATTR_DIM, dim);
    set_f(s, D0_ATTR_EPS, 1e-6);
    set_i(s, D0_ATTR_OVERLAP, parts - 1);
    set_i(s, D0_ATTR_ROPE, rope);
}

static void make_pool_attention(struct opshape *s, const struct heads *h, int64_t window, int64_t ratio,
                                int64_t pool_rows, uint32_t t)
{
    opshape_rows(s, 0, h->heads * h->dim);
    opshape_state(s, 1, s->type.dtype, 4, 1, h->page_tokens, h->dim);
    opshape_state(s, 2, s->type.dtype, 4, 1, pool_rows, h->dim);
    opshape_weight(s, 3, t, 1, h->heads, 0, 0);
    opshape_places(s, 4, true);
    set_i(s, D0_ATTR_HEADS, h->heads);
    set_i(s, D0_ATTR_DIM, h->dim);
    set_i(s, D0_ATTR_WINDOW, window);
    set_i(s, D0_ATTR_RATIO, ratio);
    set_f(s, D0_ATTR_SCALE, 1 / sqrt((double)h->dim));
}

static bool pooled(unsigned i, struct opshape *s)
{
    int64_t dim;
    bool more = tail(i, &dim);
    if (s->node.op == D0_OP_POOL_KV) {
        dim += dim == 1; /* a vector of rotations has at least one angle */
        make_pool_kv(s, dim, opshape_vary(i, 71, 1, 6), 1 + i % 2, 2 * opshape_vary(i, 72, 1, dim / 2),
                     opshape_vary(i, 73, 1, 9), opshape_any_type(i));
        return more;
    }
    int64_t ratio = opshape_vary(i, 74, 0, 5);
    struct heads h = {opshape_vary(i, 75, 1, 4), 1, dim, dim, page_sizes[i / 3 % 4]};
    make_pool_attention(s, &h, i % 4 ? opshape_vary(i, 76, 1, 20) : 0, ratio, opshape_vary(i, 77, 1, 9),
                        opshape_any_type(i));
    if (ratio && i % 2)
        opshape_chosen(s, 7, opshape_vary(i, 78, 1, 8));
    return more;
}

static bool short_conv(unsigned i, struct opshape *s)
{
    int64_t n, width = i % 2 ? 4 : opshape_vary(i, 81, 2, 9);
    bool more = tail(i, &n);
    opshape_rows(s, 0, n);
    opshape_weight(s, 1, opshape_any_type(i), 3, n, 1, width);
    opshape_state(s, 2, D0_F32, 3, width - 1, n, 0);
    opshape_places(s, 3, false);
    if (i % 3)
        opshape_weight(s, 6, opshape_any_type(i / 3), 1, n, 0, 0);
    set_i(s, D0_ATTR_WIDTH, width);
    set_i(s, D0_ATTR_FUNCTION, i % 4 < 2 ? 0 : 7);
    return more;
}

static void make_delta(struct opshape *s, unsigned i, const struct heads *h, bool channel)
{
    int64_t gates = channel ? h->heads * h->dim : h->kv_heads;
    opshape_rows(s, 0, h->heads * h->dim);
    opshape_rows(s, 1, h->heads * h->dim);
    opshape_rows(s, 2, h->kv_heads * h->v_dim);
    opshape_rows(s, 3, gates);
    opshape_rows(s, 4, h->kv_heads);
    opshape_weight(s, 5, opshape_any_type(i), 1, h->kv_heads + i % 3, 0, 0);
    opshape_weight(s, 6, opshape_any_type(i / 3), 1, gates, 0, 0);
    opshape_state(s, 7, D0_F32, 4, h->kv_heads, h->dim, h->v_dim);
    opshape_places(s, 8, false);
    set_i(s, D0_ATTR_HEADS, h->heads);
    set_i(s, D0_ATTR_V_HEADS, h->kv_heads);
    set_i(s, D0_ATTR_DIM, h->dim);
    set_i(s, D0_ATTR_V_DIM, h->v_dim);
    set_f(s, D0_ATTR_SCALE, 1 / sqrt((double)h->dim));
    set_f(s, D0_ATTR_EPS, i % 2 ? 1e-6 : 0);
    set_i(s, D0_ATTR_DECAY, channel);
    set_f(s, D0_ATTR_LOWER, i % 3 == 2 ? -5 : 0);
}

/* Tails of rows and of columns of S in turn; kv_heads are the value heads. */
static bool delta(unsigned i, struct opshape *s)
{
    int64_t width, heads = opshape_vary(i, 82, 1, 3), other = opshape_vary(i, 83, 1, 20);
    bool more = tail(i, &width);
    struct heads h = {heads, heads * opshape_vary(i, 84, 1, 3), i % 2 ? width : other, i % 2 ? other : width,
                      0};
    make_delta(s, i, &h, i / 2 % 2);
    set_i(s, D0_ATTR_FORM, opshape_vary(i, 85, 0, 1));
    return more;
}

bool opshape_default_paged(unsigned i, struct opshape *s)
{
    switch ((enum d0_op)s->node.op) {
    case D0_OP_KV_STORE:
    case D0_OP_ATTENTION:
        return grouped(i, s);
    case D0_OP_LATENT_STORE:
    case D0_OP_MLA:
        return latent(i, s);
    case D0_OP_INDEX_TOPK:
        return index_topk(i, s);
    case D0_OP_POOL_KV:
    case D0_OP_POOL_ATTENTION:
        return pooled(i, s);
    case D0_OP_SHORT_CONV:
        return short_conv(i, s);
    case D0_OP_DELTA_RULE:
        return delta(i, s);
    default:
        return false;
    }
}

void opshape_bench_paged(struct opshape *s)
{
    const struct heads h = {32, 8, 128, 128, 16}, latent_heads = {16, 1, 128, 128, 16},
                       index_heads = {64, 1, 128, 128, 16}, delta_heads = {4, 8, 128, 128, 16};
    switch ((enum d0_op)s->node.op) {
    case D0_OP_KV_STORE:
        make_store(s, &h);
        break;
    case D0_OP_ATTENTION:
        make_attention(s, &h, 0.0883883476, 0);
        break;
    case D0_OP_LATENT_STORE:
        opshape_rows(s, 0, 512);
        opshape_state(s, 1, s->type.dtype, 4, 1, 16, 576);
        opshape_places(s, 2, true);
        opshape_rows(s, 5, 64);
        break;
    case D0_OP_MLA:
        make_mla(s, 1, &latent_heads, 64, 512);
        break;
    case D0_OP_INDEX_TOPK:
        make_topk(s, &index_heads, 256, true);
        break;
    case D0_OP_POOL_KV:
        make_pool_kv(s, 512, 4, 2, 64, 4, D0_BF16);
        break;
    case D0_OP_POOL_ATTENTION:
        make_pool_attention(s, &index_heads, 128, 4, 4, D0_BF16);
        break;
    case D0_OP_SHORT_CONV:
        opshape_default_paged(TAILS + 2, s);
        break;
    default:
        make_delta(s, 1, &delta_heads, false);
    }
}
