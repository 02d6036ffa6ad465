/* SPDX-License-Identifier: Apache-2.0
 *
 * Shape rules of the fused operators: those of the operators they are made of, piece by piece.
 */
#include "graph/shape_tools.h"

#include "tensor/tensor.h"

static bool linear_piece(const struct rule *r, uint32_t w, uint32_t bias, int64_t *n)
{
    if (!shape_want_stored(r, w, "w", 2) || !shape_want_dim(r, w, "w", 1, shape_input(r, 0)->dims[1]))
        return false;
    *n = shape_input(r, w)->dims[0];
    return !shape_input(r, bias) ||
           (shape_want(r, bias, "bias", 0, 1) && shape_want_dim(r, bias, "bias", 0, *n));
}

static bool rule_qkv(const struct rule *r)
{
    int64_t n[3];
    if (!shape_want_rows(r, 0, "x") || !shape_segments(r, shape_input(r, 0)->dims[1]))
        return false;
    for (uint32_t i = 0; i < 3; i++)
        if (!linear_piece(r, 1 + i, 4 + i, &n[i]))
            return false;
    for (uint32_t i = 3; i-- > 0;) { /* the first stays in out[0] */
        if (!shape_give(r, shape_input(r, 0)->dims[0], n[i]))
            return false;
        r->out[i] = r->out[0];
    }
    return true;
}

static bool rule_gate_up(const struct rule *r)
{
    int64_t n, up;
    if (!shape_want_rows(r, 0, "x") || !shape_segments(r, shape_input(r, 0)->dims[1]) || !shape_function(r) ||
        !linear_piece(r, 1, 3, &n) || !linear_piece(r, 2, 4, &up))
        return false;
    if (n != up)
        return shape_broken(r, "gate has %lld rows and up %lld", (long long)n, (long long)up);
    return shape_give(r, shape_input(r, 0)->dims[0], n);
}

static bool rule_norm_residual(const struct rule *r)
{
    if (!shape_pair(r, "a", "b"))
        return false;
    int64_t k = shape_input(r, 0)->dims[1], dim = node_attr_i(r->n, D0_ATTR_DIM, 0), d = dim ? dim : k;
    if (d < 0 || k % d)
        return shape_broken(r, "dim %lld does not divide %lld", (long long)dim, (long long)k);
    if (shape_input(r, 2) && (!shape_want(r, 2, "w", 0, 1) || !shape_want_dim(r, 2, "w", 0, d)))
        return false;
    if (node_attr_f(r->n, D0_ATTR_EPS, -1) < 0)
        return shape_broken(r, "eps is negative");
    r->out[1] = r->out[0];
    return shape_segments(r, d);
}

static bool heads_piece(const struct rule *r, uint32_t i, const char *name, uint32_t norm, int64_t dim)
{
    if (!shape_want_rows(r, i, name) || !shape_want_dim(r, i, name, 0, shape_input(r, 0)->dims[0]))
        return false;
    if (shape_input(r, i)->dims[1] % dim)
        return shape_broken(r, "%s is no whole heads of %lld values", name, (long long)dim);
    return !shape_input(r, norm) ||
           (shape_want(r, norm, "norm", 0, 1) && shape_want_dim(r, norm, "norm", 0, dim));
}

static bool rule_norm_rope_store(const struct rule *r)
{
    int64_t kv_heads, dim, v_dim = node_attr_i(r->n, D0_ATTR_V_DIM, 0),
                           offset = node_attr_i(r->n, D0_ATTR_OFFSET, 0),
                           style = node_attr_i(r->n, D0_ATTR_STYLE, 0);
    if (!shape_positive(r, D0_ATTR_KV_HEADS, &kv_heads) || !shape_positive(r, D0_ATTR_DIM, &dim))
        return false;
    v_dim = v_dim ? v_dim : dim;
    if (v_dim < 0 || v_dim > INT32_MAX || node_attr_f(r->n, D0_ATTR_EPS, 0) < 0)
        return shape_broken(r, "v_dim or eps is negative");
    if (!heads_piece(r, 0, "q", 9, dim) || !heads_piece(r, 1, "k", 10, dim) || !shape_want_rows(r, 2, "v"))
        return false;
    int64_t rows = shape_input(r, 0)->dims[0];
    if (!shape_want_dim(r, 1, "k", 1, kv_heads * dim) || !shape_want_dim(r, 2, "v", 1, kv_heads * v_dim) ||
        !shape_want_dim(r, 2, "v", 0, rows) || !shape_want(r, 3, "k_pages", 0, 4) ||
        !shape_want_pages(r, 3, "k_pages", kv_heads, dim, 3) ||
        !shape_want_pages(r, 4, "v_pages", kv_heads, v_dim, 3) || !shape_want_places(r, 5, rows) ||
        !shape_want_rows(r, 8, "table") || !shape_want_dim(r, 8, "table", 0, rows))
        return false;
    int64_t d = shape_input(r, 8)->dims[1];
    if (d % 2 || offset < 0 || offset > dim || d > dim - offset || style < 0 || style > 1)
        return shape_broken(r, "%lld values from %lld, style %lld, do not lie in a head of %lld",
                            (long long)d, (long long)offset, (long long)style, (long long)dim);
    return shape_give(r, rows, shape_input(r, 0)->dims[1]);
}

bool shape_rule_fused(const struct rule *r)
{
    switch ((enum d0_op)r->n->op) {
    case D0_OP_QKV:
        return rule_qkv(r);
    case D0_OP_GATE_UP:
        return rule_gate_up(r);
    case D0_OP_NORM_RESIDUAL:
        return rule_norm_residual(r);
    case D0_OP_NORM_ROPE_STORE:
        return rule_norm_rope_store(r);
    default:
        return shape_broken(r, "operator %u has no shape rule", r->n->op);
    }
}
