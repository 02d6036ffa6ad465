/* SPDX-License-Identifier: Apache-2.0
 *
 * Shape rules of the operators that model families add to the basic set: experts, compressed attention,
 * recurrent states, mixed residuals. Refuses by naming the input or attribute; computes nothing.
 */
#include "graph/shape_tools.h"

#define MAX_FUNCTION 13 /* as listed at the attribute */

static int64_t rows_of(const struct rule *r, uint32_t i)
{
    return shape_input(r, i)->dims[0];
}

static int64_t width_of(const struct rule *r, uint32_t i)
{
    return shape_input(r, i)->dims[1];
}

/* An attribute from 0 on. */
static bool natural(const struct rule *r, uint32_t key, int64_t *out)
{
    *out = node_attr_i(r->n, key, 0);
    return *out >= 0 && *out <= INT32_MAX
               ? true
               : shape_broken(r, "%s is %lld, must be 0..2147483647", attr_name(key), (long long)*out);
}

bool shape_function(const struct rule *r)
{
    int64_t f = node_attr_i(r->n, D0_ATTR_FUNCTION, 0);
    return f >= 0 && f <= MAX_FUNCTION ? true : shape_broken(r, "function %lld is unknown", (long long)f);
}

/* x[rows, width] at input i */
static bool want_matrix(const struct rule *r, uint32_t i, const char *name, int64_t rows, int64_t width)
{
    return shape_want_rows(r, i, name) && shape_want_dim(r, i, name, 0, rows) &&
           shape_want_dim(r, i, name, 1, width);
}

/* W[n] at input i, which may be absent */
static bool maybe_vector(const struct rule *r, uint32_t i, const char *name, int64_t n)
{
    return shape_input(r, i) == NULL || (shape_want(r, i, name, 0, 1) && shape_want_dim(r, i, name, 0, n));
}

static bool want_vector(const struct rule *r, uint32_t i, const char *name, int64_t n)
{
    return shape_want(r, i, name, 0, 1) && shape_want_dim(r, i, name, 0, n);
}

static bool want_weight(const struct rule *r, uint32_t i, const char *name, int64_t n, int64_t k)
{
    return shape_want_stored(r, i, name, 2) && shape_want_dim(r, i, name, 0, n) &&
           shape_want_dim(r, i, name, 1, k);
}

static bool give_ints(const struct rule *r, uint32_t at, int64_t rows, int64_t width)
{
    if (width <= 0 || width > GRAPH_MAX_DIM)
        return shape_broken(r, "the result would be %lld wide", (long long)width);
    r->out[at] =
        (struct d0_value){.kind = D0_VALUE_ACTIVATION, .dtype = D0_I32, .n_dims = 2, .dims = {rows, width}};
    return true;
}

static bool give_second(const struct rule *r, int64_t rows, int64_t width)
{
    struct d0_value first = r->out[0];
    if (!shape_give(r, rows, width))
        return false;
    r->out[1] = r->out[0];
    r->out[0] = first;
    return true;
}

/* ---- elementwise ---- */

static bool rule_mul(const struct rule *r)
{
    if (!shape_want_rows(r, 0, "a") || !shape_want_rows(r, 1, "b") ||
        !shape_want_dim(r, 1, "b", 0, rows_of(r, 0)))
        return false;
    if (width_of(r, 0) % width_of(r, 1))
        return shape_broken(r, "b is %lld wide, which does not divide %lld", (long long)width_of(r, 1),
                            (long long)width_of(r, 0));
    return shape_give(r, rows_of(r, 0), width_of(r, 0));
}

static bool rule_scale(const struct rule *r)
{
    if (!shape_want_rows(r, 0, "x"))
        return false;
    const struct d0_value *w = shape_input(r, 1);
    if (w &&
        (!shape_want(r, 1, "w", 0, 1) || (w->dims[0] != 1 && !shape_want_dim(r, 1, "w", 0, width_of(r, 0)))))
        return false;
    return shape_give(r, rows_of(r, 0), width_of(r, 0));
}

static bool rule_act(const struct rule *r)
{
    return shape_function(r) && shape_want_rows(r, 0, "x") && shape_give(r, rows_of(r, 0), width_of(r, 0));
}

static bool groups_of(const struct rule *r, int64_t width, int64_t *groups)
{
    if (!natural(r, D0_ATTR_GROUPS, groups))
        return false;
    *groups = *groups ? *groups : 1;
    return width % *groups == 0
               ? true
               : shape_broken(r, "%lld groups do not divide %lld", (long long)*groups, (long long)width);
}

static bool rule_slice(const struct rule *r)
{
    int64_t dim, offset, groups;
    if (!shape_want_rows(r, 0, "x") || !shape_positive(r, D0_ATTR_DIM, &dim) ||
        !natural(r, D0_ATTR_OFFSET, &offset) || !groups_of(r, width_of(r, 0), &groups))
        return false;
    int64_t whole = width_of(r, 0) / groups;
    if (offset > whole || dim > whole - offset)
        return shape_broken(r, "%lld values from %lld do not lie in %lld", (long long)dim, (long long)offset,
                            (long long)whole);
    return shape_give(r, rows_of(r, 0), dim * groups);
}

static bool rule_concat(const struct rule *r)
{
    int64_t width = 0, groups;
    for (uint32_t i = 0; i < r->n->n_inputs; i++) {
        if (!shape_want_rows(r, i, "x") || !shape_want_dim(r, i, "x", 0, rows_of(r, 0)) ||
            !groups_of(r, width_of(r, i), &groups))
            return false;
        width += width_of(r, i);
    }
    return shape_give(r, rows_of(r, 0), width);
}

static bool norm_dim(const struct rule *r, int64_t *d)
{
    if (!shape_want_rows(r, 0, "x") || !natural(r, D0_ATTR_DIM, d))
        return false;
    *d = *d ? *d : width_of(r, 0);
    if (width_of(r, 0) % *d)
        return shape_broken(r, "dim %lld does not divide %lld", (long long)*d, (long long)width_of(r, 0));
    return node_attr_f(r->n, D0_ATTR_EPS, -1) >= 0 ? true : shape_broken(r, "eps is negative");
}

static bool rule_layer_norm(const struct rule *r)
{
    int64_t d;
    return norm_dim(r, &d) && maybe_vector(r, 1, "w", d) && maybe_vector(r, 2, "b", d) &&
           shape_give(r, rows_of(r, 0), width_of(r, 0));
}

static bool rule_gated_norm(const struct rule *r)
{
    int64_t d;
    return norm_dim(r, &d) && shape_function(r) && want_matrix(r, 1, "gate", rows_of(r, 0), width_of(r, 0)) &&
           maybe_vector(r, 2, "w", d) && shape_give(r, rows_of(r, 0), width_of(r, 0));
}

static bool rule_position_scale(const struct rule *r)
{
    int64_t length;
    return shape_positive(r, D0_ATTR_LENGTH, &length) && shape_want_rows(r, 0, "x") &&
           shape_want(r, 1, "positions", D0_I32, 1) && shape_want_dim(r, 1, "positions", 0, rows_of(r, 0)) &&
           shape_give(r, rows_of(r, 0), width_of(r, 0));
}

/* ---- compressed and sparse attention ---- */

static bool rule_latent_store(const struct rule *r)
{
    if (!shape_want_rows(r, 0, "c") || !shape_want(r, 1, "pages", 0, 4))
        return false;
    int64_t width = width_of(r, 0);
    if (shape_input(r, 5)) {
        if (!shape_want_rows(r, 5, "k_pe") || !shape_want_dim(r, 5, "k_pe", 0, rows_of(r, 0)))
            return false;
        width += width_of(r, 5);
    }
    return shape_want_pages(r, 1, "pages", 1, width, 1) && shape_want_places(r, 2, rows_of(r, 0));
}

static bool form_known(const struct rule *r)
{
    int64_t form = node_attr_i(r->n, D0_ATTR_FORM, 0);
    return form == 0 || form == 1 || shape_broken(r, "form %lld is unknown", (long long)form);
}

static bool rule_mla(const struct rule *r)
{
    int64_t heads, nope, rope, v_dim, latent;
    if (!shape_positive(r, D0_ATTR_HEADS, &heads) || !shape_positive(r, D0_ATTR_NOPE, &nope) ||
        !natural(r, D0_ATTR_ROPE, &rope) || !shape_positive(r, D0_ATTR_V_DIM, &v_dim) ||
        !shape_positive(r, D0_ATTR_LATENT, &latent) || !shape_want_rows(r, 0, "q"))
        return false;
    if (!shape_want_dim(r, 0, "q", 1, heads * (nope + rope)) || !shape_want(r, 1, "pages", 0, 4) ||
        !shape_want_pages(r, 1, "pages", 1, latent + rope, 1) ||
        !want_weight(r, 2, "kv_b", heads * (nope + v_dim), latent) ||
        !shape_want_places(r, 3, rows_of(r, 0)) || !form_known(r))
        return false;
    if (shape_input(r, 6) &&
        (!shape_want(r, 6, "chosen", D0_I32, 2) || !shape_want_dim(r, 6, "chosen", 0, rows_of(r, 0))))
        return false;
    return shape_give(r, rows_of(r, 0), heads * v_dim);
}

static bool rule_index_topk(const struct rule *r)
{
    int64_t heads, dim, topk, block, groups;
    if (!shape_positive(r, D0_ATTR_HEADS, &heads) || !shape_positive(r, D0_ATTR_DIM, &dim) ||
        !shape_positive(r, D0_ATTR_TOPK, &topk) || !natural(r, D0_ATTR_BLOCK, &block) ||
        !natural(r, D0_ATTR_GROUPS, &groups) || !shape_want_rows(r, 0, "q"))
        return false;
    if (!shape_want_dim(r, 0, "q", 1, heads * dim) || !shape_want(r, 1, "key pages", 0, 4) ||
        !shape_want_dim(r, 1, "key pages", 1, 1) || !shape_want_dim(r, 1, "key pages", 3, dim) ||
        !shape_want_places(r, 2, rows_of(r, 0)))
        return false;
    if (shape_input(r, 5) && !want_matrix(r, 5, "weights", rows_of(r, 0), heads))
        return false;
    return give_ints(r, 0, rows_of(r, 0), topk * (groups ? groups : 1));
}

static bool rule_pool_kv(const struct rule *r)
{
    int64_t ratio, dim, rope, c = node_attr_i(r->n, D0_ATTR_OVERLAP, 0) ? 2 : 1;
    if (!shape_positive(r, D0_ATTR_RATIO, &ratio) || !shape_positive(r, D0_ATTR_DIM, &dim) ||
        !natural(r, D0_ATTR_ROPE, &rope) || !shape_want_rows(r, 0, "kv"))
        return false;
    if (rope % 2 || rope > dim)
        return shape_broken(r, "rope %lld does not fit in %lld", (long long)rope, (long long)dim);
    return shape_want_dim(r, 0, "kv", 1, c * dim) && want_matrix(r, 1, "gate", rows_of(r, 0), c * dim) &&
           want_weight(r, 2, "ape", ratio, c * dim) && want_vector(r, 3, "norm", dim) &&
           want_vector(r, 4, "inv_freq", rope / 2) && shape_want(r, 5, "pool", 0, 4) &&
           shape_want_pages(r, 5, "pool", 1, dim, 5) && shape_want(r, 6, "rest", D0_F32, 3) &&
           shape_want_dim(r, 6, "rest", 1, 2 * c * ratio) && shape_want_dim(r, 6, "rest", 2, c * dim) &&
           shape_want_places(r, 7, rows_of(r, 0)) && shape_want(r, 10, "slots", D0_I32, 1);
}

static bool rule_pool_attention(const struct rule *r)
{
    int64_t heads, dim, window, ratio;
    if (!shape_positive(r, D0_ATTR_HEADS, &heads) || !shape_positive(r, D0_ATTR_DIM, &dim) ||
        !natural(r, D0_ATTR_WINDOW, &window) || !natural(r, D0_ATTR_RATIO, &ratio) ||
        !shape_want_rows(r, 0, "q"))
        return false;
    if (shape_input(r, 7) &&
        (!shape_want(r, 7, "chosen", D0_I32, 2) || !shape_want_dim(r, 7, "chosen", 0, rows_of(r, 0))))
        return false;
    return shape_want_dim(r, 0, "q", 1, heads * dim) && shape_want(r, 1, "latents", 0, 4) &&
           shape_want_pages(r, 1, "latents", 1, dim, 1) && shape_want(r, 2, "pool", 0, 4) &&
           shape_want_dim(r, 2, "pool", 3, dim) && want_vector(r, 3, "sinks", heads) &&
           shape_want_places(r, 4, rows_of(r, 0)) && shape_give(r, rows_of(r, 0), heads * dim);
}

/* ---- experts ---- */

static bool rule_route(const struct rule *r)
{
    int64_t k, groups, kept;
    if (!shape_want_rows(r, 0, "logits") || !shape_positive(r, D0_ATTR_TOPK, &k) ||
        !natural(r, D0_ATTR_GROUPS_KEPT, &kept) || !groups_of(r, width_of(r, 0), &groups))
        return false;
    int64_t experts = width_of(r, 0), score = node_attr_i(r->n, D0_ATTR_SCORE, 0);
    const struct d0_value *table = shape_input(r, 2);
    if (k > experts || kept > groups || (kept && k > experts / groups * kept))
        return shape_broken(r, "%lld of %lld experts in %lld of %lld groups", (long long)k,
                            (long long)experts, (long long)kept, (long long)groups);
    if (score < 0 || score > 3)
        return shape_broken(r, "score %lld is unknown", (long long)score);
    if (!maybe_vector(r, 1, "bias", experts) || !maybe_vector(r, 4, "expert_scale", experts))
        return false;
    if (table && ((table->dtype != D0_I64 && table->dtype != D0_I32) || table->n_dims != 2 ||
                  !shape_want_dim(r, 2, "table", 1, k) || !shape_want(r, 3, "ids", D0_I32, 1)))
        return shape_broken(r, "table must be integers [V, %lld], with ids", (long long)k);
    return give_ints(r, 0, rows_of(r, 0), k) && give_second(r, rows_of(r, 0), k);
}

/* W[E, a, b], or [E, b, a] if they are stored the other way */
static bool want_experts(const struct rule *r, uint32_t i, const char *name, int64_t n, int64_t a, int64_t b)
{
    bool turned = node_attr_i(r->n, D0_ATTR_TRANSPOSED, 0) != 0;
    return shape_want_stored(r, i, name, 3) && shape_want_dim(r, i, name, 0, n) &&
           shape_want_dim(r, i, name, 1, turned ? b : a) && shape_want_dim(r, i, name, 2, turned ? a : b);
}

static bool maybe_expert_bias(const struct rule *r, uint32_t i, const char *name, int64_t n, int64_t width)
{
    return shape_input(r, i) == NULL || (shape_want(r, i, name, 0, 2) && shape_want_dim(r, i, name, 0, n) &&
                                         shape_want_dim(r, i, name, 1, width));
}

static bool rule_experts(const struct rule *r)
{
    int64_t inter, layout = node_attr_i(r->n, D0_ATTR_LAYOUT, 0);
    if (!shape_want_rows(r, 0, "x") || !shape_want(r, 1, "experts", D0_I32, 2) ||
        !shape_want_rows(r, 2, "weights") || !shape_positive(r, D0_ATTR_INTER, &inter) ||
        !shape_function(r) || !shape_rounding(r) || !shape_want_stored(r, 3, "down", 3) || !form_known(r))
        return false;
    if (layout < 0 || layout > 3)
        return shape_broken(r, "layout %lld is unknown", (long long)layout);
    bool fused = layout == 1 || layout == 2;
    int64_t n = rows_of(r, 3), d = width_of(r, 0), wide = fused ? 2 * inter : inter;
    if (!want_experts(r, 3, "down", n, d, inter))
        return false;
    if (layout != 3 && !want_experts(r, 4, "gate", n, wide, d))
        return false;
    if (!fused && !want_experts(r, 5, "up", n, inter, d))
        return false;
    return maybe_expert_bias(r, 6, "gate bias", n, wide) && maybe_expert_bias(r, 7, "up bias", n, inter) &&
           maybe_expert_bias(r, 8, "down bias", n, d) && shape_give(r, rows_of(r, 0), d);
}

/* ---- recurrent states ---- */

/* positions[T], seq_of[T], slots[B] from input i on */
static bool want_slots(const struct rule *r, uint32_t i, int64_t rows)
{
    return shape_want(r, i, "positions", D0_I32, 1) && shape_want_dim(r, i, "positions", 0, rows) &&
           shape_want(r, i + 1, "seq_of", D0_I32, 1) && shape_want_dim(r, i + 1, "seq_of", 0, rows) &&
           shape_want(r, i + 2, "slots", D0_I32, 1);
}

static bool rule_short_conv(const struct rule *r)
{
    int64_t width;
    if (!shape_want_rows(r, 0, "x") || !shape_positive(r, D0_ATTR_WIDTH, &width) || !shape_function(r))
        return false;
    int64_t c = width_of(r, 0);
    if (width < 2)
        return shape_broken(r, "a convolution of one tap");
    return shape_want(r, 1, "w", 0, 3) && shape_want_dim(r, 1, "w", 0, c) &&
           shape_want_dim(r, 1, "w", 1, 1) && shape_want_dim(r, 1, "w", 2, width) &&
           shape_want(r, 2, "tail", 0, 3) && shape_want_dim(r, 2, "tail", 1, width - 1) &&
           shape_want_dim(r, 2, "tail", 2, c) && want_slots(r, 3, rows_of(r, 0)) &&
           maybe_vector(r, 6, "bias", c) && shape_give(r, rows_of(r, 0), c);
}

static bool rule_delta(const struct rule *r)
{
    int64_t heads, v_heads, dim, v_dim, channel = node_attr_i(r->n, D0_ATTR_DECAY, 0);
    if (!shape_positive(r, D0_ATTR_HEADS, &heads) || !shape_positive(r, D0_ATTR_V_HEADS, &v_heads) ||
        !shape_positive(r, D0_ATTR_DIM, &dim) || !shape_positive(r, D0_ATTR_V_DIM, &v_dim) ||
        !shape_want_rows(r, 0, "q"))
        return false;
    if (v_heads % heads)
        return shape_broken(r, "%lld heads do not divide %lld value heads", (long long)heads,
                            (long long)v_heads);
    int64_t t = rows_of(r, 0), g = channel ? heads * dim : v_heads;
    if (!shape_want_dim(r, 0, "q", 1, heads * dim) || !want_matrix(r, 1, "k", t, heads * dim) ||
        !want_matrix(r, 2, "v", t, v_heads * v_dim) || !want_matrix(r, 3, "g", t, g) ||
        !want_matrix(r, 4, "beta", t, v_heads) || !shape_want(r, 5, "A_log", 0, 1) ||
        !want_vector(r, 6, "dt_bias", g) || !shape_want(r, 7, "S", D0_F32, 4) || !form_known(r))
        return false;
    if (rows_of(r, 5) < v_heads)
        return shape_broken(r, "A_log has %lld entries for %lld heads", (long long)rows_of(r, 5),
                            (long long)v_heads);
    return shape_want_dim(r, 7, "S", 1, v_heads) && shape_want_dim(r, 7, "S", 2, dim) &&
           shape_want_dim(r, 7, "S", 3, v_dim) && want_slots(r, 8, t) && shape_give(r, t, v_heads * v_dim);
}

/* ---- residuals ---- */

static bool rule_mix_residual(const struct rule *r)
{
    if (!shape_want_rows(r, 0, "s"))
        return false;
    int64_t k = width_of(r, 0);
    for (uint32_t i = 3; i < r->n->n_inputs; i++)
        if (!want_matrix(r, i, "block", rows_of(r, 0), k))
            return false;
    return want_vector(r, 1, "norm", k) && want_weight(r, 2, "proj", 1, k) && shape_give(r, rows_of(r, 0), k);
}

static bool streams_of(const struct rule *r, uint32_t i, int64_t *n)
{
    if (!shape_positive(r, D0_ATTR_STREAMS, n) || !shape_want_rows(r, i, "X"))
        return false;
    return *n <= 64 && width_of(r, i) % *n == 0
               ? true
               : shape_broken(r, "%lld streams in %lld values", (long long)*n, (long long)width_of(r, i));
}

static bool rule_hyper_in(const struct rule *r)
{
    int64_t n;
    if (!streams_of(r, 0, &n))
        return false;
    return want_weight(r, 1, "fn", n * (n + 2), width_of(r, 0)) && want_vector(r, 2, "base", n * (n + 2)) &&
           want_vector(r, 3, "scale", 3) && shape_give(r, rows_of(r, 0), width_of(r, 0) / n) &&
           give_second(r, rows_of(r, 0), n * (n + 1));
}

static bool rule_hyper_out(const struct rule *r)
{
    int64_t n;
    if (!streams_of(r, 1, &n))
        return false;
    return want_matrix(r, 0, "y", rows_of(r, 1), width_of(r, 1) / n) &&
           want_matrix(r, 2, "m", rows_of(r, 1), n * (n + 1)) && shape_give(r, rows_of(r, 1), width_of(r, 1));
}

static bool rule_hyper_head(const struct rule *r)
{
    int64_t n;
    if (!streams_of(r, 0, &n))
        return false;
    return want_weight(r, 1, "fn", n, width_of(r, 0)) && want_vector(r, 2, "base", n) &&
           want_vector(r, 3, "scale", 1) && shape_give(r, rows_of(r, 0), width_of(r, 0) / n);
}

static bool rule_group_linear(const struct rule *r)
{
    int64_t groups;
    if (!shape_want_rows(r, 0, "x") || !groups_of(r, width_of(r, 0), &groups) || !shape_rounding(r) ||
        !shape_want_stored(r, 1, "w", 2) || !shape_want_dim(r, 1, "w", 1, width_of(r, 0) / groups))
        return false;
    int64_t n = rows_of(r, 1);
    return n % groups
               ? shape_broken(r, "%lld groups do not divide %lld rows", (long long)groups, (long long)n)
               : shape_give(r, rows_of(r, 0), n);
}

bool shape_rule_family(const struct rule *r)
{
    static const struct {
        uint32_t op;
        bool (*rule)(const struct rule *r);
    } rules[] = {
        {D0_OP_MUL, rule_mul},
        {D0_OP_SCALE, rule_scale},
        {D0_OP_ACT, rule_act},
        {D0_OP_SLICE, rule_slice},
        {D0_OP_CONCAT, rule_concat},
        {D0_OP_LAYER_NORM, rule_layer_norm},
        {D0_OP_GATED_NORM, rule_gated_norm},
        {D0_OP_LATENT_STORE, rule_latent_store},
        {D0_OP_MLA, rule_mla},
        {D0_OP_INDEX_TOPK, rule_index_topk},
        {D0_OP_ROUTE, rule_route},
        {D0_OP_EXPERTS, rule_experts},
        {D0_OP_SHORT_CONV, rule_short_conv},
        {D0_OP_DELTA_RULE, rule_delta},
        {D0_OP_MIX_RESIDUAL, rule_mix_residual},
        {D0_OP_HYPER_IN, rule_hyper_in},
        {D0_OP_HYPER_OUT, rule_hyper_out},
        {D0_OP_HYPER_HEAD, rule_hyper_head},
        {D0_OP_GROUP_LINEAR, rule_group_linear},
        {D0_OP_POOL_KV, rule_pool_kv},
        {D0_OP_POOL_ATTENTION, rule_pool_attention},
        {D0_OP_POSITION_SCALE, rule_position_scale},
    };
    for (size_t i = 0; i < ARRAY_LEN(rules); i++)
        if (rules[i].op == r->n->op)
            return rules[i].rule(r);
    return shape_broken(r, "operator %u is unknown", r->n->op);
}
