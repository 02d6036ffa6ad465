/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the rules of the operators with a state of fixed size for each sequence. Refuses: states that are not
 * float32 (a step would see its own rows whole and earlier ones rounded: chunks would change bits), and
 * shapes that do not follow from the attributes.
 */
#include <math.h>

#include "dev/part_rules.h"

#define MAX_WIDTH 64 /* taps of a convolution */

/* positions[T], seq_of[T], slots[B] from input `first` on */
static bool slot_indices(const struct rule *r, uint32_t first, int64_t rows)
{
    const struct d0_value *slots = rule_input(r, first + 2);
    return rule_need(r,
                     rule_is_ints(rule_input(r, first), rows) && rule_is_ints(rule_input(r, first + 1), rows),
                     "positions and seq_of must be i32 [T]") &&
           rule_need(r, slots && slots->n_dims == 1 && slots->dtype == D0_I32, "slots must be i32 [B]");
}

/* State float32 [slots, ...] with these sizes after the slots; c 0: two sizes */
static bool is_slots(const struct d0_value *v, int64_t a, int64_t b, int64_t c)
{
    return v && v->kind == D0_VALUE_STATE && v->dtype == D0_F32 && v->n_dims == (c ? 4 : 3) &&
           v->dims[0] > 0 && v->dims[1] == a && v->dims[2] == b && (!c || v->dims[3] == c);
}

bool rule_SHORT_CONV(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0), *w = rule_input(r, 1), *bias = rule_input(r, 6),
                          *o = rule_output(r, 0);
    int64_t width = rule_attr(r, D0_ATTR_WIDTH), function = rule_attr(r, D0_ATTR_FUNCTION);
    if (!rule_need(r, rule_is_matrix(x) && rule_is_matrix(o) && rule_same_shape(x, o),
                   "x and output must be f32 [T, C]"))
        return false;
    int64_t c = x->dims[1];
    return rule_need(r, width >= 2 && width <= MAX_WIDTH, "%lld taps, 2 to %d are computed", (long long)width,
                     MAX_WIDTH) &&
           rule_need(r, function == 0 || function == 7, "activation function %lld", (long long)function) &&
           rule_need(r,
                     w && rule_is_weight_type(w) && w->n_dims == 3 && w->dims[0] == c && w->dims[1] == 1 &&
                         w->dims[2] == width,
                     "w must be f32, bf16 or f16 [C, 1, width]") &&
           rule_need(r, is_slots(rule_input(r, 2), width - 1, c, 0),
                     "tail must be a state f32 [slots, width - 1, C]") &&
           rule_need(r, !bias || rule_is_weight(bias, c, 0), "bias must be f32, bf16 or f16 [C]") &&
           slot_indices(r, 3, x->dims[0]);
}

/* width of a row is a * b */
static bool is_product(int64_t width, int64_t a, int64_t b)
{
    return a > 0 && b > 0 && width / a == b && width % a == 0;
}

static bool delta_sizes(const struct rule *r)
{
    const struct d0_value *q = rule_input(r, 0), *v = rule_input(r, 2), *o = rule_output(r, 0);
    int64_t heads = rule_attr(r, D0_ATTR_HEADS), v_heads = rule_attr(r, D0_ATTR_V_HEADS);
    return rule_need(r,
                     rule_is_matrix(q) && rule_is_matrix(v) && rule_is_matrix(o) &&
                         q->dims[0] == o->dims[0] && rule_same_shape(v, o),
                     "q, v and output must be f32 [T, .]") &&
           rule_need(r, heads > 0 && v_heads > 0 && v_heads % heads == 0, "%lld value heads over %lld heads",
                     (long long)v_heads, (long long)heads) &&
           rule_need(r,
                     is_product(q->dims[1], heads, rule_attr(r, D0_ATTR_DIM)) &&
                         is_product(v->dims[1], v_heads, rule_attr(r, D0_ATTR_V_DIM)),
                     "rows of q must be heads * dim, of v v_heads * v_dim values");
}

bool rule_DELTA_RULE(const struct rule *r)
{
    if (!delta_sizes(r))
        return false;
    const struct d0_value *q = rule_input(r, 0), *a_log = rule_input(r, 5);
    int64_t decay = rule_attr(r, D0_ATTR_DECAY), v_heads = rule_attr(r, D0_ATTR_V_HEADS), t = q->dims[0],
            gates = decay ? q->dims[1] : v_heads;
    double eps = part_attr_f(r->n, D0_ATTR_EPS, 0), lower = part_attr_f(r->n, D0_ATTR_LOWER, 0);
    return rule_need(r, decay == 0 || decay == 1, "decay %lld", (long long)decay) &&
           rule_need(r, isfinite(eps) && eps >= 0, "eps %g", eps) &&
           rule_need(r, isfinite(lower) && lower <= 0, "lower bound %g of a log decay", lower) &&
           rule_need(r, isfinite(part_attr_f(r->n, D0_ATTR_SCALE, 0)), "scale is not finite") &&
           rule_form(r) &&
           rule_need(r, rule_is_rows(rule_input(r, 1), t, q->dims[1]), "k must be f32 like q") &&
           rule_need(r, rule_is_rows(rule_input(r, 3), t, gates), "g must be f32 [T, %lld]",
                     (long long)gates) &&
           rule_need(r, rule_is_rows(rule_input(r, 4), t, v_heads), "beta must be f32 [T, v_heads]") &&
           rule_need(r,
                     a_log && rule_is_weight_type(a_log) && a_log->n_dims == 1 && a_log->dims[0] >= v_heads,
                     "A_log must be f32, bf16 or f16 of at least v_heads values") &&
           rule_need(r, rule_is_weight(rule_input(r, 6), gates, 0), "dt_bias must be f32, bf16 or f16 [%lld]",
                     (long long)gates) &&
           rule_need(
               r, is_slots(rule_input(r, 7), v_heads, rule_attr(r, D0_ATTR_DIM), rule_attr(r, D0_ATTR_V_DIM)),
               "S must be a state f32 [slots, v_heads, dim, v_dim]") &&
           slot_indices(r, 8, t);
}
