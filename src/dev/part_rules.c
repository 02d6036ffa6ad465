/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the rules of the operators of a dense text model, and what all rules share. Refuses: what no kernel
 * of this device computes, with the reason in words.
 */
#include "dev/part_rules.h"

#include <float.h>
#include <stdarg.h>
#include <stdio.h>

#include "tensor/tensor.h"

bool rule_need(const struct rule *r, bool met, const char *fmt, ...)
{
    if (met || r->bytes == 0)
        return met;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->reason, r->bytes, fmt, ap);
    va_end(ap);
    return met;
}

const struct d0_value *rule_input(const struct rule *r, uint32_t i)
{
    if (i >= r->n->n_inputs || r->n->inputs[i] == D0_NO_VALUE)
        return NULL;
    return &r->p->values[r->n->inputs[i]];
}

const struct d0_value *rule_output(const struct rule *r, uint32_t i)
{
    return &r->p->values[r->n->outputs[i]];
}

int64_t rule_attr(const struct rule *r, uint32_t key)
{
    return part_attr_i(r->n, key, 0);
}

/* float32 [rows, width], a row being of fixed width */
bool rule_is_matrix(const struct d0_value *v)
{
    return v && v->dtype == D0_F32 && v->n_dims == 2 && v->dims[1] > 0;
}

bool rule_is_rows(const struct d0_value *v, int64_t rows, int64_t width)
{
    return rule_is_matrix(v) && v->dims[0] == rows && v->dims[1] == width;
}

bool rule_is_ints(const struct d0_value *v, int64_t n)
{
    return v && v->dtype == D0_I32 && v->n_dims == 1 && v->dims[0] == n;
}

bool rule_is_int_rows(const struct d0_value *v, int64_t n, int64_t width)
{
    return v && v->dtype == D0_I32 && v->n_dims == 2 && v->dims[0] == n && v->dims[1] == width;
}

bool rule_is_weight_type(const struct d0_value *v)
{
    return v->dtype == D0_F32 || v->dtype == D0_BF16 || v->dtype == D0_F16;
}

/* [a], or [a, b] where b > 0; all sizes fixed */
bool rule_is_weight(const struct d0_value *v, int64_t a, int64_t b)
{
    if (!v || !rule_is_weight_type(v) || a <= 0)
        return false;
    return b > 0 ? v->n_dims == 2 && v->dims[0] == a && v->dims[1] == b : v->n_dims == 1 && v->dims[0] == a;
}

bool rule_is_stored(const struct d0_value *v, int64_t e, int64_t n, int64_t k)
{
    struct tensor_form form;
    uint32_t lead = e > 0;
    if (!v || v->kind != D0_VALUE_WEIGHT || v->n_dims != 2 + lead || (lead && v->dims[0] != e) || n <= 0 ||
        k <= 0 || v->dims[lead] != n || v->dims[lead + 1] != k)
        return false;
    return v->format.scale_dtype ? tensor_form_of(v, &form) : rule_is_weight_type(v);
}

bool rule_form(const struct rule *r)
{
    int64_t form = rule_attr(r, D0_ATTR_FORM);
    return rule_need(r, form == 0 || form == 1, "form %lld", (long long)form);
}

bool rule_same_shape(const struct d0_value *a, const struct d0_value *b)
{
    return a->dims[0] == b->dims[0] && a->dims[1] == b->dims[1];
}

bool rule_segments(const struct rule *r, int64_t k)
{
    int64_t s = rule_attr(r, D0_ATTR_SEGMENTS);
    s = s ? s : 1;
    return rule_need(r, s > 0 && s <= 64 && (s & (s - 1)) == 0 && k % s == 0, "%lld segments of %lld values",
                     (long long)s, (long long)k);
}

bool rule_EMBED(const struct rule *r)
{
    const struct d0_value *ids = rule_input(r, 0), *w = rule_input(r, 1), *o = rule_output(r, 0);
    return rule_need(r, ids && ids->n_dims == 1 && rule_is_ints(ids, ids->dims[0]), "ids must be i32 [T]") &&
           rule_need(r, rule_is_matrix(o) && o->dims[0] == ids->dims[0], "output must be f32 [T, H]") &&
           rule_need(r, w && w->n_dims == 2 && rule_is_weight(w, w->dims[0], o->dims[1]),
                     "table must be f32, bf16 or f16 [V, H]");
}

bool rule_rounding(const struct rule *r, uint32_t scale_key)
{
    int64_t format = rule_attr(r, D0_ATTR_X_FORMAT);
    double scale = part_attr_f(r->n, scale_key, 0);
    const struct tensor_rounding *rounding = tensor_rounding(format);
    if (!rule_need(r, format == D0_X_EXACT || rounding, "rounding %lld of activations is unknown",
                   (long long)format))
        return false;
    if (rounding && tensor_rounding_given(rounding))
        return rule_need(r, (float)scale >= FLT_MIN && (float)scale <= FLT_MAX,
                         "rounding to %s needs a scale, not %g", rounding->name, scale);
    return rule_need(r, scale == 0, "a scale of activations without a rounding that takes it");
}

bool rule_LINEAR(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0), *w = rule_input(r, 1), *bias = rule_input(r, 2),
                          *o = rule_output(r, 0);
    return rule_need(r, rule_is_matrix(x) && rule_is_matrix(o) && x->dims[0] == o->dims[0],
                     "x and output must be f32 [T, .]") &&
           rule_need(r, rule_is_stored(w, 0, o->dims[1], x->dims[1]),
                     "w must be f32, bf16, f16 or codes [N, K]") &&
           rule_need(r, !bias || rule_is_weight(bias, o->dims[1], 0), "bias must be f32, bf16 or f16 [N]") &&
           rule_segments(r, x->dims[1]) && rule_rounding(r, D0_ATTR_X_SCALE);
}

bool rule_RMS_NORM(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0), *w = rule_input(r, 1), *o = rule_output(r, 0);
    if (!rule_need(r, rule_is_matrix(x) && rule_is_matrix(o) && rule_same_shape(x, o),
                   "x and output must be f32 [T, K]"))
        return false;
    int64_t d = rule_attr(r, D0_ATTR_DIM);
    d = d ? d : x->dims[1];
    return rule_need(r, d > 0 && x->dims[1] % d == 0, "groups of %lld do not divide %lld", (long long)d,
                     (long long)x->dims[1]) &&
           rule_need(r, !w || rule_is_weight(w, d, 0), "w must be f32, bf16 or f16 [%lld]", (long long)d) &&
           rule_segments(r, d);
}

static bool pair(const struct rule *r)
{
    const struct d0_value *a = rule_input(r, 0), *b = rule_input(r, 1), *o = rule_output(r, 0);
    return rule_need(r,
                     rule_is_matrix(a) && rule_is_matrix(b) && rule_is_matrix(o) && rule_same_shape(a, b) &&
                         rule_same_shape(a, o),
                     "both inputs and the output must be f32 of one shape");
}

/* The sections of image positions. Those of text are equal in all three rows, so they change no angle. */
static bool sections_whole(const struct rule *r, int64_t half)
{
    int64_t rest = half, n;
    for (uint32_t key = D0_ATTR_SECTION_T; key <= D0_ATTR_SECTION_W; key++, rest -= n) {
        n = rule_attr(r, key);
        if (!rule_need(r, n >= 0 && n <= rest, "a section of %lld of %lld angles", (long long)n,
                       (long long)half))
            return false;
    }
    return rule_need(r, rest == 0 || rest == half, "sections leave out %lld of %lld angles", (long long)rest,
                     (long long)half);
}

bool rule_ROPE_TABLE(const struct rule *r)
{
    const struct d0_value *pos = rule_input(r, 0), *f = rule_input(r, 1), *o = rule_output(r, 0);
    const int64_t interleave = rule_attr(r, D0_ATTR_INTERLEAVE);
    return rule_need(r,
                     rule_is_matrix(o) && o->dims[1] % 2 == 0 &&
                         (rule_is_ints(pos, o->dims[0]) || rule_is_int_rows(pos, o->dims[0], 3)),
                     "positions must be i32 [T] or [T, 3], output f32 [T, D]") &&
           rule_need(r, f && f->dtype == D0_F32 && f->n_dims == 1 && f->dims[0] == o->dims[1] / 2,
                     "inv_freq must be f32 [D/2]") &&
           rule_need(r, interleave >= 0 && interleave <= 2, "interleave %lld", (long long)interleave) &&
           sections_whole(r, o->dims[1] / 2);
}

bool rule_ROPE(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0), *t = rule_input(r, 1), *o = rule_output(r, 0);
    if (!rule_need(r, rule_is_matrix(x) && rule_is_matrix(o) && rule_same_shape(x, o),
                   "x and output must be f32 of one shape") ||
        !rule_need(r, rule_is_matrix(t) && t->dims[0] == x->dims[0] && t->dims[1] % 2 == 0,
                   "table must be f32 [T, D]"))
        return false;
    int64_t dim = rule_attr(r, D0_ATTR_DIM), offset = rule_attr(r, D0_ATTR_OFFSET),
            style = rule_attr(r, D0_ATTR_STYLE), inverse = rule_attr(r, D0_ATTR_INVERSE);
    return rule_need(r, dim > 0 && x->dims[1] % dim == 0, "heads of %lld do not divide %lld", (long long)dim,
                     (long long)x->dims[1]) &&
           rule_need(r, offset >= 0 && offset <= dim && t->dims[1] <= dim - offset,
                     "%lld values from %lld in a head of %lld", (long long)t->dims[1], (long long)offset,
                     (long long)dim) &&
           rule_need(r, style == 0 || style == 1, "style %lld", (long long)style) &&
           rule_need(r, inverse == 0 || inverse == 1, "inverse %lld", (long long)inverse);
}

bool rule_is_pages(const struct d0_value *v, const struct d0_value *like, int64_t heads, int64_t dim)
{
    return v && rule_is_weight_type(v) && v->n_dims == 4 && v->dims[0] > 0 && v->dims[1] == heads &&
           v->dims[2] > 0 && v->dims[3] == dim && v->kind == D0_VALUE_STATE && v->dims[0] == like->dims[0] &&
           v->dims[2] == like->dims[2] && v->dtype == like->dtype;
}

bool rule_indices(const struct rule *r, uint32_t first, int64_t rows)
{
    const struct d0_value *table = rule_input(r, first + 2);
    return rule_need(r,
                     rule_is_ints(rule_input(r, first), rows) && rule_is_ints(rule_input(r, first + 1), rows),
                     "positions and seq_of must be i32 [T]") &&
           rule_need(r,
                     table && table->dtype == D0_I32 && table->n_dims == 2 && table->dims[0] == D0_DIM_SEQS &&
                         table->dims[1] == D0_DIM_PAGES,
                     "page_table must be i32 [B, P]");
}

bool rule_paged(const struct rule *r, uint32_t first, int64_t rows)
{
    int64_t heads = rule_attr(r, D0_ATTR_KV_HEADS), dim = rule_attr(r, D0_ATTR_DIM),
            v_dim = rule_attr(r, D0_ATTR_V_DIM);
    v_dim = v_dim ? v_dim : dim;
    const struct d0_value *k = rule_input(r, first), *v = rule_input(r, first + 1);
    return rule_need(r, heads > 0 && dim > 0 && v_dim > 0, "%lld heads of %lld and %lld values",
                     (long long)heads, (long long)dim, (long long)v_dim) &&
           rule_need(r, k && v && rule_is_pages(k, k, heads, dim) && rule_is_pages(v, k, heads, v_dim),
                     "pages must be states f32, bf16 or f16 [pages, kv_heads, page_tokens, dim]") &&
           rule_indices(r, first + 2, rows);
}

bool rule_KV_STORE(const struct rule *r)
{
    const struct d0_value *k = rule_input(r, 0), *v = rule_input(r, 1);
    if (!rule_need(r, rule_is_matrix(k) && rule_is_matrix(v) && k->dims[0] == v->dims[0],
                   "k and v must be f32 [T, .]") ||
        !rule_paged(r, 2, k->dims[0]))
        return false;
    int64_t heads = rule_attr(r, D0_ATTR_KV_HEADS);
    return rule_need(r,
                     k->dims[1] / heads == rule_input(r, 2)->dims[3] && k->dims[1] % heads == 0 &&
                         v->dims[1] / heads == rule_input(r, 3)->dims[3] && v->dims[1] % heads == 0,
                     "rows of k and v must be kv_heads * dim values");
}

bool rule_GATHER_ROWS(const struct rule *r)
{
    const struct d0_value *x = rule_input(r, 0), *rows = rule_input(r, 1), *o = rule_output(r, 0);
    const int64_t m = rows && rows->n_dims == 2 ? rows->dims[1] : 1;
    return rule_need(r,
                     rule_is_matrix(x) && rule_is_matrix(o) && m > 0 && o->dims[1] % m == 0 &&
                         o->dims[1] / m == x->dims[1] &&
                         (rule_is_ints(rows, o->dims[0]) || rule_is_int_rows(rows, o->dims[0], m)),
                     "x must be f32 [T, K], rows i32 [R] or [R, m], output f32 [R, m*K]");
}

bool rule_ADD(const struct rule *r)
{
    return pair(r);
}

bool rule_GLU(const struct rule *r)
{
    return pair(r) && rule_function(r, true);
}

/* Operators that are described but computed by no kernel here. */
#define OP(...)
#define ATTR(...)
#define NO_KERNEL(NAME)                                                                                      \
    bool rule_##NAME(const struct rule *r)                                                                   \
    {                                                                                                        \
        return rule_need(r, false, "no kernel on this device");                                              \
    }
#include "day0/ops.def"
#undef OP
#undef ATTR
#undef NO_KERNEL
