/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the rules of attention and of the operators on latent pages. Refuses: sizes, attributes and types
 * that would take a kernel out of the memory it was given.
 */
#include <math.h>

#include "dev/part_rules.h"

/* An attribute in 0..2147483647: sums and products of two of them stay within 64 bits. */
static bool natural(const struct rule *r, uint32_t key, const char *name, int64_t *out)
{
    *out = rule_attr(r, key);
    return rule_need(r, *out >= 0 && *out <= INT32_MAX, "%s %lld", name, (long long)*out);
}

static bool positive(const struct rule *r, uint32_t key, const char *name, int64_t *out)
{
    return natural(r, key, name, out) && rule_need(r, *out > 0, "%s 0", name);
}

/* chosen[T, C], C numbers for each of the groups */
static bool chosen(const struct rule *r, uint32_t i, int64_t rows, int64_t groups)
{
    const struct d0_value *v = rule_input(r, i);
    return rule_need(r,
                     !v || (v->dtype == D0_I32 && v->n_dims == 2 && v->dims[0] == rows && v->dims[1] > 0 &&
                            v->dims[1] % groups == 0),
                     "chosen must be i32 [T, C], C a multiple of %lld", (long long)groups);
}

/* Which tokens see each other: positions, which the kernel takes no further than the pages go. */
static bool spans(const struct rule *r, int64_t rows)
{
    const struct d0_value *v = rule_input(r, 8);
    return rule_need(r, !v || rule_is_int_rows(v, rows, 2), "spans must be i32 [T, 2]") &&
           rule_need(r, !v || !rule_input(r, 7), "spans and chosen keys exclude each other");
}

static bool mask(const struct rule *r)
{
    int64_t window, chunk, block;
    double cap = part_attr_f(r->n, D0_ATTR_SOFTCAP, 0);
    return natural(r, D0_ATTR_WINDOW, "window", &window) && natural(r, D0_ATTR_CHUNK, "chunk", &chunk) &&
           natural(r, D0_ATTR_BLOCK, "block", &block) &&
           rule_need(r, cap >= 0 && isfinite(cap), "softcap %g", cap);
}

bool rule_ATTENTION(const struct rule *r)
{
    const struct d0_value *q = rule_input(r, 0), *o = rule_output(r, 0), *sinks = rule_input(r, 6);
    if (!rule_need(r, rule_is_matrix(q) && rule_is_matrix(o) && q->dims[0] == o->dims[0],
                   "q and output must be f32 [T, .]") ||
        !rule_paged(r, 1, q->dims[0]))
        return false;
    int64_t heads = rule_attr(r, D0_ATTR_HEADS), kv_heads = rule_attr(r, D0_ATTR_KV_HEADS);
    return rule_need(r, heads > 0 && heads % kv_heads == 0, "%lld heads over %lld kv heads", (long long)heads,
                     (long long)kv_heads) &&
           rule_need(r,
                     q->dims[1] / heads == rule_input(r, 1)->dims[3] && q->dims[1] % heads == 0 &&
                         o->dims[1] / heads == rule_input(r, 2)->dims[3] && o->dims[1] % heads == 0,
                     "rows of q and output must be heads * dim values") &&
           rule_need(r, !sinks || rule_is_weight(sinks, heads, 0), "sinks must be f32, bf16 or f16 [%lld]",
                     (long long)heads) &&
           chosen(r, 7, q->dims[0], kv_heads) && spans(r, q->dims[0]) && mask(r);
}

/* State [pages, 1, page_tokens, width] at input 1 */
static bool latent_pages(const struct rule *r, int64_t width)
{
    const struct d0_value *v = rule_input(r, 1);
    return rule_need(r, v && rule_is_pages(v, v, 1, width),
                     "pages must be a state f32, bf16 or f16 [pages, 1, page_tokens, %lld]",
                     (long long)width);
}

bool rule_LATENT_STORE(const struct rule *r)
{
    const struct d0_value *c = rule_input(r, 0), *k_pe = rule_input(r, 5);
    return rule_need(r, rule_is_matrix(c), "c must be f32 [T, L]") &&
           rule_need(r, !k_pe || (rule_is_matrix(k_pe) && k_pe->dims[0] == c->dims[0]),
                     "k_pe must be f32 [T, R]") &&
           latent_pages(r, c->dims[1] + (k_pe ? k_pe->dims[1] : 0)) && rule_indices(r, 2, c->dims[0]);
}

bool rule_MLA(const struct rule *r)
{
    int64_t heads, nope, rope, v_dim, latent;
    if (!positive(r, D0_ATTR_HEADS, "heads", &heads) || !positive(r, D0_ATTR_NOPE, "nope", &nope) ||
        !natural(r, D0_ATTR_ROPE, "rope", &rope) || !positive(r, D0_ATTR_V_DIM, "v_dim", &v_dim) ||
        !positive(r, D0_ATTR_LATENT, "latent", &latent))
        return false;
    const struct d0_value *q = rule_input(r, 0), *o = rule_output(r, 0);
    return rule_need(r,
                     rule_is_matrix(q) && rule_is_matrix(o) && q->dims[1] == heads * (nope + rope) &&
                         rule_is_rows(o, q->dims[0], heads * v_dim),
                     "q must be f32 [T, heads * (nope + rope)], output f32 [T, heads * v_dim]") &&
           latent_pages(r, latent + rope) &&
           rule_need(r, rule_is_stored(rule_input(r, 2), 0, heads * (nope + v_dim), latent),
                     "kv_b must be f32, bf16 or f16 [heads * (nope + v_dim), latent]") &&
           rule_indices(r, 3, q->dims[0]) && chosen(r, 6, q->dims[0], 1) && rule_form(r);
}
