/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the rules of the operators of a mixture of experts: route and experts. Refuses: shapes and attributes
 * by which a kernel would choose what is not there or leave an array.
 */
#include "dev/part_rules.h"

/* [E, a, b] of a type that kernels widen; codes lie along the input of the expert, never turned */
static bool is_experts(const struct rule *r, const struct d0_value *v, int64_t n, int64_t a, int64_t b)
{
    return rule_is_stored(v, n, a, b) && (!v->format.scale_dtype || rule_attr(r, D0_ATTR_TRANSPOSED) == 0);
}

static double attr_f(const struct rule *r, uint32_t key)
{
    return part_attr_f(r->n, key, 0);
}

static int64_t rows_largest(const struct rule *r, const struct d0_value *v)
{
    return v->dims[0] < 0 ? r->p->max_dims[-1 - v->dims[0]] : v->dims[0];
}

/* int32 [T, k] */
static bool is_ids(const struct d0_value *v, int64_t rows)
{
    return v && v->dtype == D0_I32 && v->n_dims == 2 && v->dims[0] == rows && v->dims[1] > 0;
}

static bool groups_fit(const struct rule *r, int64_t experts, int64_t topk)
{
    int64_t groups = rule_attr(r, D0_ATTR_GROUPS), kept = rule_attr(r, D0_ATTR_GROUPS_KEPT);
    groups = groups ? groups : 1;
    return rule_need(r, groups > 0 && groups <= experts && experts % groups == 0,
                     "%lld groups of %lld experts", (long long)groups, (long long)experts) &&
           rule_need(r, kept >= 0 && kept <= groups, "%lld of %lld groups kept", (long long)kept,
                     (long long)groups) &&
           rule_need(r, topk <= experts / groups * (kept ? kept : groups),
                     "%lld of %lld experts in %lld groups", (long long)topk, (long long)experts,
                     (long long)(kept ? kept : groups));
}

bool rule_ROUTE(const struct rule *r)
{
    const struct d0_value *logits = rule_input(r, 0), *bias = rule_input(r, 1), *table = rule_input(r, 2),
                          *scale = rule_input(r, 4), *ids = rule_output(r, 0), *weights = rule_output(r, 1);
    int64_t topk = rule_attr(r, D0_ATTR_TOPK), score = rule_attr(r, D0_ATTR_SCORE),
            how = rule_attr(r, D0_ATTR_GROUP_SCORE), zero = rule_attr(r, D0_ATTR_ZERO);
    if (!rule_need(r, rule_is_matrix(logits) && logits->dims[1] <= INT32_MAX, "logits must be f32 [T, E]"))
        return false;
    int64_t rows = logits->dims[0], experts = logits->dims[1];
    return rule_need(r, topk > 0 && topk <= experts, "%lld of %lld experts", (long long)topk,
                     (long long)experts) &&
           groups_fit(r, experts, topk) &&
           rule_need(r, score >= 0 && score <= 3 && (how == 0 || how == 1), "score %lld, group score %lld",
                     (long long)score, (long long)how) &&
           rule_need(r, zero >= 0 && zero < experts, "%lld of %lld experts are the identity", (long long)zero,
                     (long long)experts) &&
           rule_need(r, !bias || rule_is_weight(bias, experts, 0), "bias must be f32, bf16 or f16 [E]") &&
           rule_need(r, !scale || rule_is_weight(scale, experts, 0),
                     "expert_scale must be f32, bf16 or f16 [E]") &&
           rule_need(r,
                     !table || ((table->dtype == D0_I64 || table->dtype == D0_I32) && table->n_dims == 2 &&
                                table->dims[0] > 0 && table->dims[1] == topk &&
                                rule_is_ints(rule_input(r, 3), rows)),
                     "table must be i32 or i64 [V, topk], ids i32 [T]") &&
           rule_need(r, is_ids(ids, rows) && ids->dims[1] == topk && rule_is_rows(weights, rows, topk),
                     "outputs must be i32 and f32 [T, topk]");
}

/* ---- experts ------------------------------------------------------------------------------------------- */

static bool function_fits(const struct rule *r, int64_t layout)
{
    int64_t f = rule_attr(r, D0_ATTR_FUNCTION);
    bool pair = f >= 8 && f <= 11, bounded = f == 8 || (f >= 10 && f <= 12);
    return rule_need(r, f >= 0 && f <= 13 && !(pair && layout == 3),
                     "activation function %lld in layout %lld", (long long)f, (long long)layout) &&
           rule_need(r, !bounded || attr_f(r, D0_ATTR_LIMIT) > 0, "activation function %lld needs a limit",
                     (long long)f) &&
           rule_need(r, f != 9 || (attr_f(r, D0_ATTR_BETA) > 0 && attr_f(r, D0_ATTR_LINEAR_BETA) > 0),
                     "activation function 9 needs beta and linear_beta");
}

static bool biases_fit(const struct rule *r, int64_t n, int64_t wide, int64_t inter, int64_t d)
{
    const struct d0_value *gate = rule_input(r, 6), *up = rule_input(r, 7), *down = rule_input(r, 8);
    return rule_need(r, !gate || rule_is_weight(gate, n, wide),
                     "gate bias must be f32, bf16 or f16 [E, %lld]", (long long)wide) &&
           rule_need(r, !up || rule_is_weight(up, n, inter), "up bias must be f32, bf16 or f16 [E, I]") &&
           rule_need(r, !down || rule_is_weight(down, n, d), "down bias must be f32, bf16 or f16 [E, D]");
}

/* Ids of pairs of token and slot are int32 within the kernels. */
static bool pairs_fit(const struct rule *r, const struct d0_value *ids)
{
    int64_t rows = rows_largest(r, ids);
    return rule_need(r, rows <= INT32_MAX / ids->dims[1], "%lld tokens with %lld experts each",
                     (long long)rows, (long long)ids->dims[1]);
}

bool rule_EXPERTS(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0), *ids = rule_input(r, 1), *weights = rule_input(r, 2),
                          *down = rule_input(r, 3), *o = rule_output(r, 0);
    int64_t inter = rule_attr(r, D0_ATTR_INTER), layout = rule_attr(r, D0_ATTR_LAYOUT),
            turned = rule_attr(r, D0_ATTR_TRANSPOSED), zero = rule_attr(r, D0_ATTR_ZERO);
    if (!rule_need(r, rule_is_matrix(x) && rule_is_matrix(o) && rule_same_shape(x, o),
                   "x and output must be f32 [T, D]") ||
        !rule_need(r, is_ids(ids, x->dims[0]) && rule_is_rows(weights, x->dims[0], ids->dims[1]),
                   "experts must be i32 [T, k], weights f32 [T, k]") ||
        !rule_need(
            r, inter > 0 && inter <= INT32_MAX && layout >= 0 && layout <= 3 && (turned == 0 || turned == 1),
            "%lld inner values in layout %lld", (long long)inter, (long long)layout) ||
        !rule_need(r, down && down->n_dims == 3 && down->dims[0] > 0, "down must be [E, D, I]"))
        return false;
    int64_t n = down->dims[0], d = x->dims[1], wide = layout == 1 || layout == 2 ? 2 * inter : inter;
    bool fused = layout == 1 || layout == 2;
    return rule_need(r, zero >= 0 && n <= INT32_MAX && zero <= INT32_MAX - n,
                     "%lld experts and %lld identities", (long long)n, (long long)zero) &&
           rule_need(r, is_experts(r, down, n, turned ? inter : d, turned ? d : inter),
                     "down must be f32, bf16, f16 or codes [E, D, I]") &&
           rule_need(r, layout != 3 || (!rule_input(r, 4) && !rule_input(r, 6)),
                     "a gate in a layout without") &&
           rule_need(r,
                     layout == 3 || is_experts(r, rule_input(r, 4), n, turned ? d : wide, turned ? wide : d),
                     "gate must be f32, bf16 or f16 [E, %lld, D]", (long long)wide) &&
           rule_need(r, !fused || (!rule_input(r, 5) && !rule_input(r, 7)),
                     "gate and up are one, yet up is given") &&
           rule_need(r, fused || is_experts(r, rule_input(r, 5), n, turned ? d : inter, turned ? inter : d),
                     "up must be f32, bf16 or f16 [E, I, D]") &&
           biases_fit(r, n, wide, inter, d) && function_fits(r, layout) && pairs_fit(r, ids) &&
           rule_form(r) && rule_rounding(r, D0_ATTR_X_SCALE) && rule_rounding(r, D0_ATTR_H_SCALE);
}
