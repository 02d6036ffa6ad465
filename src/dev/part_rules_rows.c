/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the rules of operators that work row by row: products, activations, pieces, norms, grouped linear.
 * Refuses: sizes that do not fit together, and functions whose numbers are missing or no numbers.
 */
#include <math.h>

#include "dev/part_check.h"
#include "dev/part_rules.h"

/* Values of ATTR FUNCTION in ops.def. */
enum { SWIGLUOAI = 8, SITU, SILU_CLAMP, SILU_CLAMP_OUT, SOFTCAP, LAST_FUNCTION = 13 };

static bool positive(const struct rule *r, uint32_t key, const char *name)
{
    double v = part_attr_f(r->n, key, 0);
    return rule_need(r, isfinite(v) && v > 0, "%s %g", name, v);
}

bool rule_function(const struct rule *r, bool pair)
{
    int64_t f = rule_attr(r, D0_ATTR_FUNCTION);
    if (!rule_need(r, f >= 0 && f <= LAST_FUNCTION, "activation function %lld", (long long)f) ||
        !rule_need(r, pair || f < SWIGLUOAI || f > SILU_CLAMP_OUT,
                   "activation function %lld is one of a gate and another value", (long long)f))
        return false;
    if (f == SITU)
        return positive(r, D0_ATTR_BETA, "beta") && positive(r, D0_ATTR_LINEAR_BETA, "linear_beta");
    if (f >= SWIGLUOAI && f <= SOFTCAP && !positive(r, D0_ATTR_LIMIT, "limit"))
        return false;
    return f != SWIGLUOAI || positive(r, D0_ATTR_ALPHA, "alpha");
}

/* x at input 0 and the output: float32 of one shape */
static bool same_rows(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0), *o = rule_output(r, 0);
    return rule_need(r, rule_is_matrix(x) && rule_is_matrix(o) && rule_same_shape(x, o),
                     "x and output must be f32 of one shape");
}

static bool groups_of(const struct rule *r, int64_t width, int64_t *groups)
{
    *groups = rule_attr(r, D0_ATTR_GROUPS);
    *groups = *groups ? *groups : 1;
    return rule_need(r, *groups > 0 && width % *groups == 0, "%lld groups of %lld values", (long long)*groups,
                     (long long)width);
}

bool rule_MUL(const struct rule *r)
{
    const struct d0_value *b = rule_input(r, 1), *o = rule_output(r, 0);
    return same_rows(r) &&
           rule_need(r, rule_is_matrix(b) && b->dims[0] == o->dims[0] && o->dims[1] % b->dims[1] == 0,
                     "b must be f32 [T, N], N a divisor of %lld", (long long)o->dims[1]);
}

bool rule_SCALE(const struct rule *r)
{
    const struct d0_value *w = rule_input(r, 1), *o = rule_output(r, 0);
    return same_rows(r) && rule_need(r, !w || rule_is_weight(w, 1, 0) || rule_is_weight(w, o->dims[1], 0),
                                     "w must be f32, bf16 or f16 [1] or [%lld]", (long long)o->dims[1]);
}

bool rule_ACT(const struct rule *r)
{
    return same_rows(r) && rule_function(r, false);
}

bool rule_SLICE(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0), *o = rule_output(r, 0);
    int64_t groups, dim = rule_attr(r, D0_ATTR_DIM), offset = rule_attr(r, D0_ATTR_OFFSET);
    if (!rule_need(r, rule_is_matrix(x), "x must be f32 [T, .]") || !groups_of(r, x->dims[1], &groups))
        return false;
    int64_t whole = x->dims[1] / groups;
    return rule_need(r, dim > 0 && offset >= 0 && offset <= whole && dim <= whole - offset,
                     "%lld values from %lld of %lld", (long long)dim, (long long)offset, (long long)whole) &&
           rule_need(r, rule_is_rows(o, x->dims[0], groups * dim), "output must be f32 [T, %lld]",
                     (long long)(groups * dim));
}

bool rule_CONCAT(const struct rule *r)
{
    const struct d0_value *o = rule_output(r, 0);
    int64_t groups, width = 0;
    for (uint32_t i = 0; i < r->n->n_inputs; i++) {
        const struct d0_value *x = rule_input(r, i);
        if (!rule_need(r, rule_is_matrix(x) && x->dims[0] == o->dims[0], "input %u must be f32 [T, .]", i) ||
            !groups_of(r, x->dims[1], &groups))
            return false;
        width += x->dims[1]; /* sizes are below 2^41 (part_check) */
    }
    return rule_need(r, rule_is_rows(o, o->dims[0], width), "output must be f32 [T, %lld]", (long long)width);
}

/* eps, and dim: the width of one run */
static bool runs_of(const struct rule *r, int64_t width, int64_t *d)
{
    *d = rule_attr(r, D0_ATTR_DIM);
    *d = *d ? *d : width;
    double eps = part_attr_f(r->n, D0_ATTR_EPS, 0);
    return rule_need(r, *d > 0 && width % *d == 0, "groups of %lld do not divide %lld", (long long)*d,
                     (long long)width) &&
           rule_need(r, isfinite(eps) && eps >= 0, "eps %g", eps);
}

/* W[n] at input i, which may be absent */
static bool vector(const struct rule *r, uint32_t i, const char *name, int64_t n)
{
    const struct d0_value *w = rule_input(r, i);
    return rule_need(r, !w || rule_is_weight(w, n, 0), "%s must be f32, bf16 or f16 [%lld]", name,
                     (long long)n);
}

bool rule_LAYER_NORM(const struct rule *r)
{
    int64_t d;
    return same_rows(r) && runs_of(r, rule_output(r, 0)->dims[1], &d) && vector(r, 1, "w", d) &&
           vector(r, 2, "b", d);
}

bool rule_GATED_NORM(const struct rule *r)
{
    const struct d0_value *gate = rule_input(r, 1), *o = rule_output(r, 0);
    int64_t d, before = rule_attr(r, D0_ATTR_BEFORE);
    return same_rows(r) &&
           rule_need(r, rule_is_matrix(gate) && rule_same_shape(gate, o), "gate must have the shape of x") &&
           runs_of(r, o->dims[1], &d) && vector(r, 2, "w", d) && rule_function(r, false) &&
           rule_need(r, before == 0 || before == 1, "before %lld", (long long)before);
}

bool rule_GROUP_LINEAR(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0), *w = rule_input(r, 1), *o = rule_output(r, 0);
    int64_t groups;
    return rule_need(r, rule_is_matrix(x) && rule_is_matrix(o) && x->dims[0] == o->dims[0],
                     "x and output must be f32 [T, .]") &&
           groups_of(r, x->dims[1], &groups) && groups_of(r, o->dims[1], &groups) &&
           rule_need(r, rule_is_stored(w, 0, o->dims[1], x->dims[1] / groups),
                     "w must be f32, bf16, f16 or codes [%lld, %lld]", (long long)o->dims[1],
                     (long long)(x->dims[1] / groups)) &&
           rule_rounding(r, D0_ATTR_X_SCALE);
}

bool rule_POSITION_SCALE(const struct rule *r)
{
    int64_t length = rule_attr(r, D0_ATTR_LENGTH), offset = rule_attr(r, D0_ATTR_OFFSET);
    return same_rows(r) &&
           rule_need(r, rule_is_ints(rule_input(r, 1), rule_output(r, 0)->dims[0]),
                     "positions must be i32 [T]") &&
           rule_need(r, length > 0 && length <= INT32_MAX, "length %lld", (long long)length) &&
           rule_need(r, offset >= 0 && offset <= INT32_MAX, "offset %lld", (long long)offset);
}
