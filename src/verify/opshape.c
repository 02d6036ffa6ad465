/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns what shapes of operators share: types worth testing, text, the means to make one, and the very shapes
 * of a given model, cut to what a test needs. Which shapes are tested without a model: opshape_rows.c,
 * opshape_paged.c.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/tensor.h"
#include "verify/opcase.h"

/* ---- types ---- */

/* How published checkpoints store weights. */
static const struct optype stored[] = {
    {.dtype = D0_F32},
    {.dtype = D0_BF16},
    {.dtype = D0_F16},
    {.dtype = D0_F8_E4M3, .format = {.scale_dtype = D0_F32}},
    {.dtype = D0_F8_E4M3, .format = {.scale_dtype = D0_F32, .group_n = 1}},
    {.dtype = D0_F8_E4M3, .format = {.scale_dtype = D0_F32, .group_n = 128, .group_k = 128}},
    {.dtype = D0_I8, .format = {.scale_dtype = D0_BF16, .group_n = 1}},
    {.dtype = D0_U4,
     .format = {.scale_dtype = D0_F16, .group_n = 1, .group_k = 32, .flags = D0_FORMAT_ZEROS}},
    {.dtype = D0_F4, .format = {.scale_dtype = D0_F8_E8M0, .group_n = 1, .group_k = 32}},
    {.dtype = D0_F4,
     .format = {.scale_dtype = D0_F8_E4M3, .group_n = 1, .group_k = 16, .flags = D0_FORMAT_GLOBAL}},
};

bool optype_default(uint32_t op, unsigned i, struct optype *out)
{
    unsigned n = 1;
    switch ((enum d0_op)op) {
    case D0_OP_LINEAR:
    case D0_OP_GROUP_LINEAR:
    case D0_OP_EXPERTS:
        n = ARRAY_LEN(stored);
        break;
    case D0_OP_EMBED:
    case D0_OP_RMS_NORM:
    case D0_OP_KV_STORE:
    case D0_OP_ATTENTION:
    case D0_OP_LATENT_STORE:
    case D0_OP_MLA:
    case D0_OP_INDEX_TOPK:
    case D0_OP_POOL_KV:
    case D0_OP_POOL_ATTENTION:
        n = 3;
        break;
    default:
        *out = (struct optype){.dtype = 0};
        return i == 0;
    }
    if (i < n)
        *out = stored[i];
    return i < n;
}

/* "x128", "xall" */
static void group_name(uint32_t n, char *buf, size_t bytes)
{
    if (n)
        snprintf(buf, bytes, "%u", n);
    else
        snprintf(buf, bytes, "all");
}

const char *optype_name(const struct optype *t, char *buf, size_t bytes)
{
    char rows[16], columns[16];
    const struct d0_format *f = &t->format;
    buf[0] = 0;
    if (t->dtype && f->scale_dtype == 0)
        snprintf(buf, bytes, "%s", dtype_name(t->dtype));
    if (t->dtype == 0 || f->scale_dtype == 0)
        return buf;
    group_name(f->group_n, rows, sizeof rows);
    group_name(f->group_k, columns, sizeof columns);
    snprintf(buf, bytes, "%s %sx%s %s%s%s%s", dtype_name(t->dtype), rows, columns, dtype_name(f->scale_dtype),
             f->flags & D0_FORMAT_ZEROS ? " zeros" : "", f->flags & D0_FORMAT_GLOBAL ? " global" : "",
             f->flags & D0_FORMAT_ORDER ? " order" : "");
    return buf;
}

/* ---- reading ---- */

int64_t opshape_int(const struct opshape *s, uint32_t key)
{
    return node_attr_i(&s->node, key, 0);
}

double opshape_real(const struct opshape *s, uint32_t key)
{
    return node_attr_f(&s->node, key, 0);
}

uint32_t opshape_role(const struct opshape *s, uint32_t role)
{
    for (uint32_t i = 0; i < s->node.n_inputs; i++)
        if (s->node.inputs[i] != D0_NO_VALUE && s->in[i].kind == D0_VALUE_INPUT && s->in[i].role == role)
            return i;
    return D0_NO_VALUE;
}

/* Is the state at input i one of pooled entries? */
static bool is_pool(const struct opshape *s, uint32_t i)
{
    return s->node.op == D0_OP_INDEX_TOPK || s->node.op == D0_OP_POOL_KV ||
           (s->node.op == D0_OP_POOL_ATTENTION && i == 2);
}

int64_t opshape_page_span(const struct opshape *s)
{
    int64_t span = 0, ratio = opshape_int(s, D0_ATTR_RATIO);
    for (uint32_t i = 0; i < s->node.n_inputs; i++) {
        if (s->node.inputs[i] == D0_NO_VALUE || s->in[i].kind != D0_VALUE_STATE || s->in[i].n_dims != 4)
            continue;
        int64_t holds = s->in[i].dims[2] * (is_pool(s, i) && ratio ? ratio : 1);
        span = span == 0 || holds < span ? holds : span;
    }
    return span ? span : 16;
}

int64_t opshape_columns(const struct opshape *s, int64_t tokens)
{
    return (tokens + 2 * opshape_int(s, D0_ATTR_RATIO)) / opshape_page_span(s) + 1;
}

/* "w 9x17, segments 4": widths of rows, sizes of weights and states, attributes that are not 0. */
const char *opshape_format(const struct opshape *s, char *buf, size_t bytes)
{
    size_t at = 0;
    buf[0] = 0;
    for (uint32_t i = 0; i < s->node.n_inputs && at < bytes; i++) {
        const struct d0_value *v = &s->in[i];
        if (s->node.inputs[i] == D0_NO_VALUE || (v->kind == D0_VALUE_INPUT && v->n_dims < 2) ||
            v->role == D0_INPUT_PAGE_TABLE)
            continue;
        at += (size_t)snprintf(buf + at, bytes - at, "%s%u:", at ? " " : "", i);
        for (uint32_t d = v->kind != D0_VALUE_WEIGHT; d < v->n_dims && at < bytes; d++)
            at += (size_t)snprintf(buf + at, bytes - at, "%s%lld",
                                   d > (v->kind != D0_VALUE_WEIGHT) ? "x" : "", (long long)v->dims[d]);
    }
    for (uint32_t i = 0; i < s->node.n_attrs && at < bytes; i++) {
        const struct d0_attr *a = &s->node.attrs[i];
        if (!a->is_float && a->v.i)
            at += (size_t)snprintf(buf + at, bytes - at, " %s %lld", attr_name(a->key), (long long)a->v.i);
    }
    return buf;
}

/* ---- making ---- */

void opshape_begin(struct opshape *s, uint32_t op, const struct optype *type)
{
    memset(s, 0, sizeof *s);
    s->type = *type;
    s->node.op = op;
    s->node.layer = -1;
    memset(s->node.inputs, 0xff, sizeof s->node.inputs);
}

static void put(struct opshape *s, uint32_t i, struct d0_value v)
{
    s->in[i] = v;
    s->node.inputs[i] = i;
    s->node.n_inputs = i >= s->node.n_inputs ? i + 1 : s->node.n_inputs;
}

void opshape_rows(struct opshape *s, uint32_t i, int64_t width)
{
    put(s, i,
        (struct d0_value){.kind = D0_VALUE_INPUT,
                          .dtype = D0_F32,
                          .role = D0_INPUT_HIDDEN,
                          .n_dims = 2,
                          .dims = {D0_DIM_TOKENS, width}});
}

void opshape_chosen(struct opshape *s, uint32_t i, int64_t width)
{
    opshape_rows(s, i, width);
    s->in[i].dtype = D0_I32;
}

void opshape_ints(struct opshape *s, uint32_t i, uint32_t role, int64_t dim)
{
    put(s, i,
        (struct d0_value){.kind = D0_VALUE_INPUT, .dtype = D0_I32, .role = role, .n_dims = 1, .dims = {dim}});
}

void opshape_numbers(struct opshape *s, uint32_t i, uint32_t role, int64_t dim, int64_t width)
{
    opshape_ints(s, i, role, dim);
    s->in[i].n_dims = 2;
    s->in[i].dims[1] = width;
}

void opshape_weight(struct opshape *s, uint32_t i, uint32_t dtype, uint32_t n_dims, int64_t a, int64_t b,
                    int64_t c)
{
    put(s, i,
        (struct d0_value){.kind = D0_VALUE_WEIGHT, .dtype = dtype, .n_dims = n_dims, .dims = {a, b, c}});
}

void opshape_stored(struct opshape *s, uint32_t i, int64_t e, int64_t n, int64_t k)
{
    opshape_weight(s, i, s->type.dtype, e ? 3 : 2, e ? e : n, e ? n : k, e ? k : 0);
    s->in[i].format = s->type.format;
}

void opshape_state(struct opshape *s, uint32_t i, uint32_t dtype, uint32_t n_dims, int64_t a, int64_t b,
                   int64_t c)
{
    put(s, i,
        (struct d0_value){.kind = D0_VALUE_STATE, .dtype = dtype, .n_dims = n_dims, .dims = {1, a, b, c}});
}

void opshape_places(struct opshape *s, uint32_t first, bool paged)
{
    opshape_ints(s, first, D0_INPUT_POSITIONS, D0_DIM_TOKENS);
    opshape_ints(s, first + 1, D0_INPUT_SEQ_OF, D0_DIM_TOKENS);
    opshape_ints(s, first + 2, paged ? D0_INPUT_PAGE_TABLE : D0_INPUT_SLOTS, D0_DIM_SEQS);
    if (paged) {
        s->in[first + 2].n_dims = 2;
        s->in[first + 2].dims[1] = D0_DIM_PAGES;
    }
}

int64_t opshape_vary(unsigned i, unsigned salt, int64_t low, int64_t high)
{
    return low + (int64_t)(hash64(&(uint32_t[2]){i, salt}, 8, 77) % (uint64_t)(high - low + 1));
}

uint32_t opshape_any_type(unsigned i)
{
    static const uint32_t types[] = {D0_F32, D0_BF16, D0_F16};
    return types[i % 3];
}

bool opshape_default(uint32_t op, const struct optype *type, unsigned i, struct opshape *out)
{
    opshape_begin(out, op, type);
    return opshape_default_rows(i, out) || opshape_default_paged(i, out) || opshape_default_fused(i, out) ||
           opshape_default_tower(i, out);
}

/* ---- shapes of a model ---- */

static void cut(int64_t *v, int64_t limit)
{
    if (*v > limit)
        *v = limit;
}

/* Every expert is computed alike, and so is every row of its matrices. The width of x stays. */
static void cut_experts(struct opshape *s)
{
    int64_t inter = opshape_int(s, D0_ATTR_INTER), layout = opshape_int(s, D0_ATTR_LAYOUT),
            d = s->in[0].dims[1];
    bool turned = opshape_int(s, D0_ATTR_TRANSPOSED) != 0, fused = layout == 1 || layout == 2;
    cut(&inter, 131);
    node_set_attr_i(&s->node, D0_ATTR_INTER, inter);
    cut(&s->in[1].dims[1], 4);
    cut(&s->in[2].dims[1], 4);
    for (uint32_t i = 3; i < s->node.n_inputs; i++) {
        if (s->node.inputs[i] == D0_NO_VALUE)
            continue;
        struct d0_value *v = &s->in[i];
        int64_t rows = i == 3 || i == 8   ? d
                       : i == 4 || i == 6 ? (fused ? 2 * inter : inter)
                                          : inter,
                columns = i == 3 ? inter : d;
        cut(&v->dims[0], 4);
        v->dims[1] = i < 6 && turned ? columns : rows;
        if (i < 6)
            v->dims[2] = turned ? rows : columns;
    }
}

/* Heads are computed alike. */
static void cut_mla(struct opshape *s)
{
    int64_t heads = opshape_int(s, D0_ATTR_HEADS), few = heads;
    cut(&few, 4);
    s->in[0].dims[1] = s->in[0].dims[1] / heads * few;
    s->in[2].dims[0] = s->in[2].dims[0] / heads * few;
    node_set_attr_i(&s->node, D0_ATTR_HEADS, few);
}

static void cut_shape(struct opshape *s)
{
    int64_t groups = opshape_int(s, D0_ATTR_GROUPS), n;
    groups = groups ? groups : 1;
    switch ((enum d0_op)s->node.op) {
    case D0_OP_EMBED:
        cut(&s->in[1].dims[0], 257);
        break;
    case D0_OP_LINEAR: /* rows of w are computed alike: a few tiles of them show what all do */
        cut(&s->in[1].dims[0], 131);
        cut(&s->in[2].dims[0], 131);
        break;
    case D0_OP_GROUP_LINEAR:
        n = s->in[1].dims[0] / groups;
        cut(&n, 33);
        s->in[1].dims[0] = n * groups;
        break;
    case D0_OP_ROUTE:
        cut(&s->in[2].dims[0], 257);
        break;
    case D0_OP_EXPERTS:
        cut_experts(s);
        break;
    case D0_OP_MLA:
        cut_mla(s);
        break;
    case D0_OP_INDEX_TOPK: /* else all keys of a short case are chosen */
        n = opshape_int(s, D0_ATTR_TOPK);
        cut(&n, 16);
        node_set_attr_i(&s->node, D0_ATTR_TOPK, n);
        break;
    default:
        break;
    }
}

/* Which input's type a row of results is about: NULL where operators mix types. */
static const struct d0_value *typed_input(const struct opshape *s)
{
    uint32_t i = 1;
    switch ((enum d0_op)s->node.op) {
    case D0_OP_KV_STORE:
        i = 2;
        break;
    case D0_OP_EXPERTS:
        i = 3;
        break;
    case D0_OP_POOL_KV:
        i = 5;
        break;
    case D0_OP_EMBED:
    case D0_OP_LINEAR:
    case D0_OP_RMS_NORM:
    case D0_OP_GROUP_LINEAR:
    case D0_OP_ATTENTION:
    case D0_OP_LATENT_STORE:
    case D0_OP_MLA:
    case D0_OP_INDEX_TOPK:
    case D0_OP_POOL_ATTENTION:
        break;
    default:
        return NULL;
    }
    return s->node.inputs[i] == D0_NO_VALUE ? NULL : &s->in[i];
}

static void set_type(struct opshape *out)
{
    const struct d0_value *typed = typed_input(out);
    if (typed)
        out->type = (struct optype){.dtype = typed->dtype, .format = typed->format};
    else if (out->node.op == D0_OP_RMS_NORM)
        out->type.dtype = D0_F32;
}

bool opshape_whole_node(const struct graph *g, const struct d0_node *n, struct opshape *out)
{
    if (op_find(n->op) == NULL || n->n_inputs == 0)
        return false;
    opshape_begin(out, n->op, &(struct optype){.dtype = 0});
    memcpy(out->node.attrs, n->attrs, sizeof out->node.attrs);
    out->node.n_attrs = n->n_attrs;
    out->node.n_inputs = n->n_inputs;
    for (uint32_t i = 0; i < n->n_inputs; i++) {
        if (n->inputs[i] == D0_NO_VALUE)
            continue;
        struct d0_value *v = &out->in[i];
        *v = g->values[n->inputs[i]];
        v->offset = 0;
        out->node.inputs[i] = i;
        if (v->kind == D0_VALUE_STATE)
            v->dims[0] = 1;
        if (v->kind == D0_VALUE_ACTIVATION || v->kind == D0_VALUE_OUTPUT) {
            v->kind = D0_VALUE_INPUT;
            v->role = D0_INPUT_HIDDEN;
        }
        if (v->role == D0_INPUT_HIDDEN) /* rows for logits are rows like others */
            v->dims[0] = D0_DIM_TOKENS;
    }
    set_type(out);
    return true;
}

bool opshape_of_node(const struct graph *g, const struct d0_node *n, struct opshape *out)
{
    if (!opshape_whole_node(g, n, out))
        return false;
    cut_shape(out);
    set_type(out);
    return true;
}
