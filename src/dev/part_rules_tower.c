/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the rules of the operators of towers, and of what a text takes from them. Refuses: heads that do not
 * divide, tables of other types than F32, BF16, F16, inputs of other sizes than their rows.
 */
#include "dev/part_rules.h"

bool rule_SEGMENT_ATTENTION(const struct rule *r)
{
    const struct d0_value *q = rule_input(r, 0), *k = rule_input(r, 1), *v = rule_input(r, 2),
                          *o = rule_output(r, 0);
    const int64_t heads = rule_attr(r, D0_ATTR_HEADS), kv = rule_attr(r, D0_ATTR_KV_HEADS),
                  dim = rule_attr(r, D0_ATTR_DIM), wide = rule_attr(r, D0_ATTR_V_DIM),
                  v_dim = wide ? wide : dim;
    return rule_need(r, heads > 0 && kv > 0 && heads % kv == 0 && dim > 0 && v_dim > 0,
                     "%lld heads, %lld of keys, of %lld and %lld values", (long long)heads, (long long)kv,
                     (long long)dim, (long long)v_dim) &&
           rule_need(r,
                     rule_is_matrix(q) && rule_is_rows(q, q->dims[0], heads * dim) &&
                         rule_is_rows(o, q->dims[0], heads * v_dim),
                     "q must be f32 [T, heads * dim], output f32 [T, heads * v_dim]") &&
           rule_need(r,
                     rule_is_matrix(k) && rule_is_rows(k, k->dims[0], kv * dim) &&
                         rule_is_rows(v, k->dims[0], kv * v_dim),
                     "k and v must be f32 [S, kv_heads * dim]") &&
           rule_need(r, rule_is_int_rows(rule_input(r, 3), q->dims[0], 2), "spans must be i32 [T, 2]");
}

bool rule_POSITION_EMBED(const struct rule *r)
{
    const struct d0_value *rows = rule_input(r, 0), *table = rule_input(r, 1), *weights = rule_input(r, 2),
                          *o = rule_output(r, 0);
    return rule_need(r,
                     rows && rule_is_matrix(o) && rows->n_dims == 2 && rows->dims[1] > 0 &&
                         rule_is_int_rows(rows, o->dims[0], rows->dims[1]),
                     "rows must be i32 [T, n], output f32 [T, K]") &&
           rule_need(r, table && table->n_dims == 2 && rule_is_weight(table, table->dims[0], o->dims[1]),
                     "table must be f32, bf16 or f16 [V, K]") &&
           rule_need(r, !weights || rule_is_rows(weights, o->dims[0], rows->dims[1]),
                     "weights must be f32 [T, n]");
}

bool rule_SCATTER_ROWS(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0), *f = rule_input(r, 1), *o = rule_output(r, 0);
    const int64_t add = rule_attr(r, D0_ATTR_ADD);
    return rule_need(r, add == 0 || add == 1, "add %lld", (long long)add) &&
           rule_need(r,
                     rule_is_matrix(x) && rule_is_matrix(o) && rule_same_shape(x, o) && f && f->n_dims == 2 &&
                         f->dims[1] == x->dims[1] &&
                         (rule_is_matrix(f) || rule_is_weight(f, f->dims[0], x->dims[1])),
                     "x and output must be f32 [T, K], features f32 [F, K] or a weight f32, bf16 or f16") &&
           rule_need(r, rule_is_ints(rule_input(r, 2), o->dims[0]), "from must be i32 [T]");
}
