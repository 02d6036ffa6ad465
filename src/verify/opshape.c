/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns which shapes an operator is tested and timed at: every tail of the widths 1 to 70, some larger ones,
 * the combinations of heads and groups of published models, and the very shapes of a given model.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "verify/opcase.h"

#define TAILS 70 /* widths 1..70: every remainder of vectors of 4 to 64 elements */

const uint32_t *op_dtypes(uint32_t op)
{
    static const uint32_t none[] = {0}, weights[] = {D0_F32, D0_BF16, D0_F16, 0};
    switch ((enum d0_op)op) {
    case D0_OP_EMBED:
    case D0_OP_LINEAR:
    case D0_OP_RMS_NORM:
    case D0_OP_KV_STORE:
    case D0_OP_ATTENTION:
        return weights;
    default:
        return none;
    }
}

const char *opshape_format(const struct opshape *s, char *buf, size_t bytes)
{
    switch ((enum d0_op)s->op) {
    case D0_OP_LINEAR:
        snprintf(buf, bytes, "K %lld, N %lld, segments %lld%s", (long long)s->k, (long long)s->n,
                 (long long)s->segments, s->bias ? ", bias" : "");
        break;
    case D0_OP_EMBED:
        snprintf(buf, bytes, "V %lld, H %lld", (long long)s->n, (long long)s->k);
        break;
    case D0_OP_RMS_NORM:
        snprintf(buf, bytes, "K %lld, dim %lld%s%s", (long long)s->k, (long long)s->dim,
                 s->plus_one ? ", 1 + w" : "", s->no_weight ? ", no w" : "");
        break;
    case D0_OP_ROPE_TABLE:
        snprintf(buf, bytes, "D %lld", (long long)s->width);
        break;
    case D0_OP_ROPE:
        snprintf(buf, bytes, "heads %lld, dim %lld, D %lld, %s", (long long)s->heads, (long long)s->dim,
                 (long long)s->width, s->style ? "pairs" : "half");
        break;
    case D0_OP_KV_STORE:
    case D0_OP_ATTENTION:
        snprintf(buf, bytes, "heads %lld/%lld, dim %lld/%lld, window %lld", (long long)s->heads,
                 (long long)s->kv_heads, (long long)s->dim, (long long)s->v_dim, (long long)s->window);
        break;
    default:
        snprintf(buf, bytes, "K %lld", (long long)s->k);
    }
    return buf;
}

static struct opshape base_shape(uint32_t op, uint32_t dtype)
{
    return (struct opshape){.op = op,
                            .dtype = dtype,
                            .k = 64,
                            .n = 16,
                            .heads = 1,
                            .kv_heads = 1,
                            .dim = 0,
                            .v_dim = 0,
                            .width = 0,
                            .page_tokens = 16,
                            .eps = 1e-5,
                            .scale = 1,
                            .factor = 0};
}

static bool linear_shape(unsigned i, struct opshape *s)
{
    static const int16_t wide[][3] = {/* K, segments, bias */
                                      {96, 1, 0},    {127, 0, 1},   {128, 4, 0}, {255, 0, 0},
                                      {256, 8, 1},   {257, 0, 0},   {320, 2, 0}, {1000, 0, 0},
                                      {2048, 64, 0}, {4096, 32, 1}, {4099, 0, 0}};
    if (i < TAILS) {
        s->k = i + 1;
        s->n = 1 + (i * 7) % 19;
        s->bias = i % 3 == 0;
        return true;
    }
    i -= TAILS;
    if (i >= ARRAY_LEN(wide))
        return false;
    s->k = wide[i][0];
    s->segments = wide[i][1];
    s->bias = wide[i][2];
    s->n = 33 + i;
    return true;
}

static bool norm_shape(unsigned i, struct opshape *s)
{
    static const int16_t more[][4] = {/* K, dim, plus_one, segments */
                                      {96, 32, 0, 0},   {80, 16, 1, 0},   {35, 7, 0, 0},
                                      {256, 128, 0, 0}, {2048, 0, 1, 64}, {4096, 0, 0, 0}};
    if (i < TAILS) {
        s->k = i + 1;
        s->no_weight = i % 7 == 6;
        s->plus_one = i % 5 == 4 && !s->no_weight;
        return true;
    }
    i -= TAILS;
    if (i >= ARRAY_LEN(more))
        return false;
    s->k = more[i][0];
    s->dim = more[i][1];
    s->plus_one = more[i][2];
    s->segments = more[i][3];
    return true;
}

static bool rope_shape(unsigned i, struct opshape *s)
{
    if (i >= TAILS)
        return false;
    s->width = 2 * (i / 2 + 1);
    s->style = i % 2;
    s->heads = 1 + i % 3;
    s->offset = i % 5 == 0 ? 3 : 0;
    s->dim = s->width + s->offset + (i % 4 == 3 ? 5 : 0);
    s->factor = i % 6 == 5 ? 1.25 : 0;
    return true;
}

static bool paged_shape(unsigned i, struct opshape *s)
{
    static const uint8_t heads[][2] = {{1, 1}, {4, 2}, {3, 3}, {8, 1}};
    static const uint8_t pages[] = {16, 8, 32, 1};
    static const uint8_t large[] = {80, 96, 128, 192};
    if (i >= TAILS + ARRAY_LEN(large))
        return false;
    s->dim = i < TAILS ? (int64_t)i + 1 : large[i - TAILS];
    s->v_dim = i % 4 == 1 ? 1 + (int64_t)(i * 5) % 67 : s->dim;
    s->heads = heads[i % 4][0];
    s->kv_heads = heads[i % 4][1];
    s->page_tokens = pages[i / 3 % 4];
    s->window = i % 5 == 2 ? 1 + (int64_t)i % 23 : 0;
    s->scale = i % 2 ? 0.25 : 0.5;
    return true;
}

bool opshape_default(uint32_t op, uint32_t dtype, unsigned i, struct opshape *out)
{
    *out = base_shape(op, dtype);
    switch ((enum d0_op)op) {
    case D0_OP_LINEAR:
        return linear_shape(i, out);
    case D0_OP_RMS_NORM:
        return norm_shape(i, out);
    case D0_OP_ROPE:
    case D0_OP_ROPE_TABLE:
        return rope_shape(i, out);
    case D0_OP_KV_STORE:
    case D0_OP_ATTENTION:
        return paged_shape(i, out);
    case D0_OP_EMBED:
    case D0_OP_ADD:
    case D0_OP_GLU:
    case D0_OP_GATHER_ROWS:
        out->k = i < TAILS ? (int64_t)i + 1 : (int64_t)1000 + (i - TAILS);
        return i < TAILS + 4;
    default:
        return false; /* no case yet */
    }
}

void opshape_bench(uint32_t op, uint32_t dtype, struct opshape *out, int64_t dims[D0_N_DIMS])
{
    static const int64_t step[D0_N_DIMS] = {64, 1, 64, 1};
    *out = base_shape(op, dtype);
    memcpy(dims, step, sizeof step);
    out->k = 4096;
    switch ((enum d0_op)op) {
    case D0_OP_LINEAR: /* one token: what a decode step does, limited by reading the weights */
        out->n = 4096;
        dims[0] = 1;
        break;
    case D0_OP_EMBED:
        out->n = 4096;
        break;
    case D0_OP_KV_STORE:
    case D0_OP_ATTENTION: /* eight tokens at the end of 1,024 */
        out->heads = 32;
        out->kv_heads = 8;
        out->dim = out->v_dim = 128;
        out->scale = 0.0883883476;
        dims[0] = 8;
        dims[3] = 64;
        break;
    case D0_OP_ROPE:
    case D0_OP_ROPE_TABLE:
        out->heads = 32;
        out->dim = out->width = 128;
        break;
    default:
        break;
    }
}

/* ---- shapes of a model ---- */

static const struct d0_value *input_of(const struct graph *g, const struct d0_node *n, uint32_t i)
{
    return i < n->n_inputs && n->inputs[i] != D0_NO_VALUE ? &g->values[n->inputs[i]] : NULL;
}

static int64_t at_most(int64_t v, int64_t limit)
{
    return v < limit ? v : limit;
}

bool opshape_of_node(const struct graph *g, const struct d0_node *n, struct opshape *out)
{
    const struct d0_value *x = input_of(g, n, 0), *w = input_of(g, n, 1);
    if (!x || op_find(n->op) == NULL)
        return false;
    *out = base_shape(n->op, 0);
    out->k = x->n_dims == 2 ? x->dims[1] : 0;
    out->segments = node_attr_i(n, D0_ATTR_SEGMENTS, 0);
    out->dim = node_attr_i(n, D0_ATTR_DIM, 0);
    out->v_dim = node_attr_i(n, D0_ATTR_V_DIM, 0);
    out->v_dim = out->v_dim ? out->v_dim : out->dim;
    out->plus_one = node_attr_i(n, D0_ATTR_PLUS_ONE, 0);
    out->eps = node_attr_f(n, D0_ATTR_EPS, 0);
    out->scale = node_attr_f(n, D0_ATTR_SCALE, 1);
    out->factor = node_attr_f(n, D0_ATTR_FACTOR, 0);
    out->style = node_attr_i(n, D0_ATTR_STYLE, 0);
    out->offset = node_attr_i(n, D0_ATTR_OFFSET, 0);
    out->window = node_attr_i(n, D0_ATTR_WINDOW, 0);
    out->heads = node_attr_i(n, D0_ATTR_HEADS, 1);
    out->kv_heads = node_attr_i(n, D0_ATTR_KV_HEADS, 1);
    out->bias = n->op == D0_OP_LINEAR && input_of(g, n, 2) != NULL;
    out->no_weight = n->op == D0_OP_RMS_NORM && !w;
    switch ((enum d0_op)n->op) {
    case D0_OP_EMBED:
        out->k = w->dims[1];
        out->n = at_most(w->dims[0], 257);
        out->dtype = w->dtype;
        break;
    case D0_OP_LINEAR: /* rows of w are computed alike: a few tiles of them show what all do */
        out->n = at_most(w->dims[0], 131);
        out->dtype = w->dtype;
        break;
    case D0_OP_RMS_NORM:
        out->dtype = w ? w->dtype : D0_F32;
        break;
    case D0_OP_ROPE_TABLE:
        out->width = 2 * w->dims[0];
        break;
    case D0_OP_ROPE:
        out->width = w->dims[1];
        out->heads = out->k / out->dim;
        break;
    case D0_OP_KV_STORE:
    case D0_OP_ATTENTION: {
        const struct d0_value *pages = input_of(g, n, n->op == D0_OP_KV_STORE ? 2 : 1);
        out->dtype = pages->dtype;
        out->page_tokens = pages->dims[2];
        break;
    }
    default:
        break;
    }
    return true;
}
