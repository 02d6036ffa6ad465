/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the rules of sparse and pooled attention and of mixed residuals. Refuses: what no kernel of this
 * device computes, with the reason in words.
 */
#include "dev/part_rules.h"

/* float32 [rows, a * b] where both are known to be positive */
static bool is_product(const struct d0_value *v, int64_t rows, int64_t a, int64_t b)
{
    return rule_is_matrix(v) && v->dims[0] == rows && v->dims[1] % a == 0 && v->dims[1] / a == b;
}

static bool is_int_rows(const struct d0_value *v, int64_t rows)
{
    return v && v->dtype == D0_I32 && v->n_dims == 2 && v->dims[0] == rows && v->dims[1] > 0;
}

/* ---- index_topk, pool_attention, pool_kv ---- */

bool rule_INDEX_TOPK(const struct rule *r)
{
    const struct d0_value *q = rule_input(r, 0), *k = rule_input(r, 1), *w = rule_input(r, 5),
                          *o = rule_output(r, 0);
    int64_t heads = rule_attr(r, D0_ATTR_HEADS), dim = rule_attr(r, D0_ATTR_DIM),
            topk = rule_attr(r, D0_ATTR_TOPK), block = rule_attr(r, D0_ATTR_BLOCK),
            groups = rule_attr(r, D0_ATTR_GROUPS), ratio = rule_attr(r, D0_ATTR_RATIO);
    groups = groups ? groups : 1;
    return rule_need(r, heads > 0 && dim > 0 && topk > 0 && block >= 0 && ratio >= 0 && groups > 0,
                     "%lld heads of %lld values, topk %lld, block %lld, ratio %lld, %lld groups",
                     (long long)heads, (long long)dim, (long long)topk, (long long)block, (long long)ratio,
                     (long long)groups) &&
           rule_need(r, block ? heads % groups == 0 && !w && !ratio : groups == 1,
                     "groups go with blocks of keys, weights and pooled entries with single keys") &&
           rule_need(r, rule_is_matrix(q) && is_product(q, q->dims[0], heads, dim),
                     "q must be f32 [T, heads * dim]") &&
           rule_need(r, k && rule_is_pages(k, k, 1, dim),
                     "keys must be states f32, bf16 or f16 [pages, 1, page_tokens, dim]") &&
           rule_indices(r, 2, q->dims[0]) &&
           rule_need(r, !w || rule_is_rows(w, q->dims[0], heads), "weights must be f32 [T, heads]") &&
           rule_need(r, is_int_rows(o, q->dims[0]) && o->dims[1] % groups == 0 && o->dims[1] / groups == topk,
                     "output must be i32 [T, groups * topk]");
}

bool rule_POOL_ATTENTION(const struct rule *r)
{
    const struct d0_value *q = rule_input(r, 0), *k = rule_input(r, 1), *pool = rule_input(r, 2),
                          *chosen = rule_input(r, 7), *o = rule_output(r, 0);
    int64_t heads = rule_attr(r, D0_ATTR_HEADS), dim = rule_attr(r, D0_ATTR_DIM),
            window = rule_attr(r, D0_ATTR_WINDOW), ratio = rule_attr(r, D0_ATTR_RATIO);
    return rule_need(r, heads > 0 && dim > 0 && window >= 0 && ratio >= 0,
                     "%lld heads of %lld values, window %lld, ratio %lld", (long long)heads, (long long)dim,
                     (long long)window, (long long)ratio) &&
           rule_need(r,
                     rule_is_matrix(q) && is_product(q, q->dims[0], heads, dim) && rule_is_matrix(o) &&
                         rule_same_shape(q, o),
                     "q and output must be f32 [T, heads * dim]") &&
           rule_need(r,
                     k && pool && rule_is_pages(k, k, 1, dim) && rule_is_pages(pool, pool, 1, dim) &&
                         k->dtype == pool->dtype,
                     "latents and pool must be states f32, bf16 or f16 [pages, 1, page_tokens, dim]") &&
           rule_need(r, rule_is_weight(rule_input(r, 3), heads, 0),
                     "sinks must be f32, bf16 or f16 [heads]") &&
           rule_indices(r, 4, q->dims[0]) &&
           rule_need(r, !chosen || (ratio > 0 && is_int_rows(chosen, q->dims[0])),
                     "chosen entries must be i32 [T, C], of a pool");
}

bool rule_POOL_KV(const struct rule *r)
{
    const struct d0_value *kv = rule_input(r, 0), *gate = rule_input(r, 1), *pool = rule_input(r, 5),
                          *rest = rule_input(r, 6), *table = rule_input(r, 9);
    int64_t ratio = rule_attr(r, D0_ATTR_RATIO), dim = rule_attr(r, D0_ATTR_DIM),
            rope = rule_attr(r, D0_ATTR_ROPE), parts = rule_attr(r, D0_ATTR_OVERLAP) ? 2 : 1;
    /* the bounds keep products of sizes far from overflow */
    return rule_need(r, ratio > 0 && ratio <= 1 << 20 && dim > 0 && dim <= 1 << 20,
                     "ratio %lld, entries of %lld values", (long long)ratio, (long long)dim) &&
           rule_need(r, rope >= 0 && rope <= dim && rope % 2 == 0, "%lld rotated values of %lld",
                     (long long)rope, (long long)dim) &&
           rule_need(r,
                     rule_is_matrix(kv) && rule_is_rows(kv, kv->dims[0], parts * dim) &&
                         rule_is_rows(gate, kv->dims[0], parts * dim),
                     "kv and gate must be f32 [T, %lld]", (long long)(parts * dim)) &&
           rule_need(r,
                     rule_is_weight(rule_input(r, 2), ratio, parts * dim) &&
                         rule_is_weight(rule_input(r, 3), dim, 0) &&
                         (rope == 0 || rule_is_weight(rule_input(r, 4), rope / 2, 0)),
                     "ape, norm and inv_freq must be f32, bf16 or f16 [ratio, %lld], [dim], [rope / 2]",
                     (long long)(parts * dim)) &&
           rule_need(r, pool && rule_is_pages(pool, pool, 1, dim),
                     "pool must be a state f32, bf16 or f16 [pages, 1, page_tokens, dim]") &&
           rule_need(r,
                     rest && rest->kind == D0_VALUE_STATE && rest->dtype == D0_F32 && rest->n_dims == 3 &&
                         rest->dims[0] > 0 && rest->dims[1] == 2 * parts * ratio &&
                         rest->dims[2] == parts * dim,
                     "rest must be a state f32 [slots, %lld, %lld]", (long long)(2 * parts * ratio),
                     (long long)(parts * dim)) &&
           rule_indices(r, 7, kv->dims[0]) &&
           rule_need(r, rule_is_ints(rule_input(r, 10), table->dims[0]), "slots must be i32 [B]");
}

/* ---- mixed residuals ---- */

bool rule_MIX_RESIDUAL(const struct rule *r)
{
    const struct d0_value *s = rule_input(r, 0), *o = rule_output(r, 0);
    if (!rule_need(r, rule_is_matrix(s) && rule_is_matrix(o) && rule_same_shape(s, o),
                   "s and output must be f32 [T, K]"))
        return false;
    for (uint32_t i = 3; i < r->n->n_inputs; i++)
        if (!rule_need(r, rule_is_rows(rule_input(r, i), s->dims[0], s->dims[1]),
                       "input %u must be f32 [T, %lld]", i, (long long)s->dims[1]))
            return false;
    return rule_need(
        r, rule_is_weight(rule_input(r, 1), s->dims[1], 0) && rule_is_weight(rule_input(r, 2), 1, s->dims[1]),
        "norm and proj must be f32, bf16 or f16 [K], [1, K]");
}

/* x = [T, n * H] as n streams; n within what is sensible */
static bool streams(const struct rule *r, const struct d0_value *x, int64_t *n)
{
    *n = rule_attr(r, D0_ATTR_STREAMS);
    return rule_need(r, *n > 0 && *n <= 64, "%lld streams", (long long)*n) &&
           rule_need(r, rule_is_matrix(x) && x->dims[1] % *n == 0, "X must be f32 [T, %lld * H]",
                     (long long)*n);
}

/* fn, base and scale: weights for `rows` products and `scales` factors */
static bool mixture(const struct rule *r, int64_t rows, int64_t scales)
{
    return rule_need(r,
                     rule_is_weight(rule_input(r, 1), rows, rule_input(r, 0)->dims[1]) &&
                         rule_is_weight(rule_input(r, 2), rows, 0) &&
                         rule_is_weight(rule_input(r, 3), scales, 0),
                     "fn, base and scale must be f32, bf16 or f16 [%lld, n * H], [%lld], [%lld]",
                     (long long)rows, (long long)rows, (long long)scales);
}

bool rule_HYPER_IN(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0);
    int64_t n, rounds = rule_attr(r, D0_ATTR_ROUNDS);
    return streams(r, x, &n) && mixture(r, n * (n + 2), 3) &&
           rule_need(r, rounds >= 0 && rounds <= 1000, "%lld rounds", (long long)rounds) &&
           rule_need(r,
                     rule_is_rows(rule_output(r, 0), x->dims[0], x->dims[1] / n) &&
                         rule_is_rows(rule_output(r, 1), x->dims[0], n * (n + 1)),
                     "outputs must be f32 [T, H] and [T, %lld]", (long long)(n * (n + 1)));
}

bool rule_HYPER_OUT(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 1), *o = rule_output(r, 0);
    int64_t n;
    return streams(r, x, &n) &&
           rule_need(r, rule_is_rows(rule_input(r, 0), x->dims[0], x->dims[1] / n), "y must be f32 [T, H]") &&
           rule_need(r, rule_is_rows(rule_input(r, 2), x->dims[0], n * (n + 1)), "m must be f32 [T, %lld]",
                     (long long)(n * (n + 1))) &&
           rule_need(r, rule_is_matrix(o) && rule_same_shape(x, o), "output must be f32 as X");
}

bool rule_HYPER_HEAD(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0);
    int64_t n;
    return streams(r, x, &n) && mixture(r, n, 1) &&
           rule_need(r, rule_is_rows(rule_output(r, 0), x->dims[0], x->dims[1] / n),
                     "output must be f32 [T, H]");
}
