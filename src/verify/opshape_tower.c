/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns which shapes are tested and timed of the operators of towers, and of what a text takes from them.
 */
#include <math.h>

#include "verify/opcase.h"

/* Rows that all rows of the step may read. */
static void shared_rows(struct opshape *s, uint32_t i, int64_t width)
{
    opshape_rows(s, i, width);
    s->in[i].dims[0] = D0_DIM_ROWS;
}

static void segment_attention(unsigned i, int64_t k, struct opshape *s)
{
    const int64_t kv = opshape_vary(i, 51, 1, 3), heads = kv * opshape_vary(i, 52, 1, 3),
                  dim = i % 2 ? k : opshape_vary(i, 53, 1, 70),
                  v_dim = i % 2 ? opshape_vary(i, 54, 1, 70) : k;
    opshape_rows(s, 0, heads * dim);
    shared_rows(s, 1, kv * dim);
    shared_rows(s, 2, kv * v_dim);
    opshape_numbers(s, 3, D0_INPUT_SPANS, D0_DIM_TOKENS, 2);
    node_set_attr_i(&s->node, D0_ATTR_HEADS, heads);
    node_set_attr_i(&s->node, D0_ATTR_KV_HEADS, kv);
    node_set_attr_i(&s->node, D0_ATTR_DIM, dim);
    node_set_attr_i(&s->node, D0_ATTR_V_DIM, v_dim == dim ? 0 : v_dim);
    node_set_attr_f(&s->node, D0_ATTR_SCALE, pow((double)dim, -0.5));
}

bool opshape_default_tower(unsigned i, struct opshape *s)
{
    static const int64_t taps[] = {1, 4, 16};
    const int64_t k = i < OPSHAPE_TAILS ? (int64_t)i + 1 : (int64_t)1000 + i - OPSHAPE_TAILS, n = taps[i % 3];
    switch ((enum d0_op)s->node.op) {
    case D0_OP_SEGMENT_ATTENTION:
        segment_attention(i, k < 200 ? k : 80, s);
        break;
    case D0_OP_POSITION_EMBED:
        opshape_numbers(s, 0, D0_INPUT_TABLE_ROWS, D0_DIM_TOKENS, n);
        opshape_weight(s, 1, opshape_any_type(i), 2, 19, k, 0);
        if (n > 1 || i % 2)
            opshape_rows(s, 2, n);
        break;
    case D0_OP_SCATTER_ROWS:
        opshape_rows(s, 0, k);
        if (i % 3 == 2)
            opshape_weight(s, 1, opshape_any_type(i), 2, 11, k, 0);
        else
            shared_rows(s, 1, k);
        opshape_ints(s, 2, D0_INPUT_FEATURE_OF, D0_DIM_TOKENS);
        node_set_attr_i(&s->node, D0_ATTR_ADD, i % 2);
        break;
    default:
        return false;
    }
    return i < OPSHAPE_TAILS + 4;
}
