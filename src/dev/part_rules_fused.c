/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the rules of the fused operators: what the operators they are made of want, of each piece. Refuses:
 * sizes that do not fit together, as those would.
 */
#include "dev/part_check.h"
#include "dev/part_rules.h"

/* Weight input w [n, k] and its bias, if there is one */
static bool weights_fit(const struct rule *r, uint32_t w, uint32_t bias, int64_t n, int64_t k)
{
    const struct d0_value *b = rule_input(r, bias);
    return rule_need(r, rule_is_stored(rule_input(r, w), 0, n, k),
                     "input %u must be f32, bf16, f16 or codes [N, K]", w) &&
           rule_need(r, !b || rule_is_weight(b, n, 0), "input %u must be f32, bf16 or f16 [N]", bias);
}

bool rule_QKV(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0);
    if (!rule_need(r, rule_is_matrix(x), "x must be f32 [T, K]"))
        return false;
    for (uint32_t i = 0; i < 3; i++) {
        const struct d0_value *o = rule_output(r, i);
        if (!rule_need(r, rule_is_matrix(o) && o->dims[0] == x->dims[0], "output %u must be f32 [T, N]", i) ||
            !weights_fit(r, 1 + i, 4 + i, o->dims[1], x->dims[1]))
            return false;
    }
    return rule_segments(r, x->dims[1]);
}

bool rule_GATE_UP(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0), *o = rule_output(r, 0);
    return rule_need(r, rule_is_matrix(x) && rule_is_matrix(o) && x->dims[0] == o->dims[0],
                     "x and output must be f32 [T, .]") &&
           weights_fit(r, 1, 3, o->dims[1], x->dims[1]) && weights_fit(r, 2, 4, o->dims[1], x->dims[1]) &&
           rule_segments(r, x->dims[1]) && rule_function(r, true);
}

bool rule_NORM_RESIDUAL(const struct rule *r)
{
    const struct d0_value *a = rule_input(r, 0), *b = rule_input(r, 1), *w = rule_input(r, 2),
                          *s = rule_output(r, 0), *o = rule_output(r, 1);
    if (!rule_need(r,
                   rule_is_matrix(a) && rule_is_matrix(b) && rule_is_matrix(s) && rule_is_matrix(o) &&
                       rule_same_shape(a, b) && rule_same_shape(a, s) && rule_same_shape(a, o),
                   "both inputs and outputs must be f32 of one shape"))
        return false;
    int64_t d = rule_attr(r, D0_ATTR_DIM);
    d = d ? d : a->dims[1];
    return rule_need(r, d > 0 && a->dims[1] % d == 0, "groups of %lld do not divide %lld", (long long)d,
                     (long long)a->dims[1]) &&
           rule_need(r, !w || rule_is_weight(w, d, 0), "w must be f32, bf16 or f16 [%lld]", (long long)d) &&
           rule_segments(r, d);
}

/* Rows of heads of q or k, and the norm of a head. */
static bool heads_fit(const struct rule *r, uint32_t i, uint32_t norm, int64_t rows)
{
    int64_t dim = rule_attr(r, D0_ATTR_DIM);
    const struct d0_value *x = rule_input(r, i), *w = rule_input(r, norm);
    return rule_need(r, rule_is_matrix(x) && x->dims[0] == rows && x->dims[1] % dim == 0,
                     "input %u must be f32 [T, heads * %lld]", i, (long long)dim) &&
           rule_need(r, !w || rule_is_weight(w, dim, 0), "input %u must be f32, bf16 or f16 [%lld]", norm,
                     (long long)dim);
}

bool rule_NORM_ROPE_STORE(const struct rule *r)
{
    const struct d0_value *q = rule_input(r, 0), *k = rule_input(r, 1), *v = rule_input(r, 2),
                          *t = rule_input(r, 8), *o = rule_output(r, 0);
    if (!rule_need(r, rule_is_matrix(q) && rule_is_matrix(o) && rule_same_shape(q, o),
                   "q and output must be f32 of one shape") ||
        !rule_paged(r, 3, q->dims[0]) || !heads_fit(r, 0, 9, q->dims[0]) || !heads_fit(r, 1, 10, q->dims[0]))
        return false;
    int64_t heads = rule_attr(r, D0_ATTR_KV_HEADS), dim = rule_attr(r, D0_ATTR_DIM),
            offset = rule_attr(r, D0_ATTR_OFFSET), style = rule_attr(r, D0_ATTR_STYLE);
    return rule_need(
               r, k->dims[1] == heads * dim && rule_is_rows(v, q->dims[0], heads * rule_input(r, 4)->dims[3]),
               "rows of k and v must be kv_heads * dim values") &&
           rule_need(r, rule_is_matrix(t) && t->dims[0] == q->dims[0] && t->dims[1] % 2 == 0,
                     "table must be f32 [T, D]") &&
           rule_need(r, offset >= 0 && offset <= dim && t->dims[1] <= dim - offset,
                     "%lld values from %lld in a head of %lld", (long long)t->dims[1], (long long)offset,
                     (long long)dim) &&
           rule_need(r, style == 0 || style == 1, "style %lld", (long long)style);
}
