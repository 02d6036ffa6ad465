/* SPDX-License-Identifier: Apache-2.0
 *
 * Shape and type rules, one function an operator, in the order of include/day0/ops.def. Refuses what the
 * definition of the operator does not state; knows nothing of devices, so a weight type that no device
 * computes is the device's to refuse.
 */
#include "graph/shape_tools.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tensor/tensor.h"

bool shape_broken(const struct rule *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->why, r->why_bytes, fmt, ap);
    va_end(ap);
    return false;
}

const char *dims_format(const struct d0_value *v, char *buf, size_t bytes)
{
    static const char *const symbols[D0_N_DIMS] = {"T", "B", "R", "P"};
    size_t at = 0;
    at += (size_t)snprintf(buf, bytes, "[");
    for (uint32_t i = 0; i < v->n_dims && i < D0_MAX_DIMS && at < bytes; i++) {
        const char *comma = i ? ", " : "";
        if (v->dims[i] < 0 && v->dims[i] >= -D0_N_DIMS)
            at += (size_t)snprintf(buf + at, bytes - at, "%s%s", comma, symbols[-1 - v->dims[i]]);
        else
            at += (size_t)snprintf(buf + at, bytes - at, "%s%lld", comma, (long long)v->dims[i]);
    }
    if (at < bytes)
        snprintf(buf + at, bytes - at, "]");
    return buf;
}

const struct d0_value *shape_input(const struct rule *r, uint32_t i)
{
    if (i >= r->n->n_inputs || r->n->inputs[i] >= r->g->n_values)
        return NULL;
    return &r->g->values[r->n->inputs[i]];
}

static bool same_dims(const struct d0_value *a, const struct d0_value *b)
{
    return a->n_dims == b->n_dims && memcmp(a->dims, b->dims, a->n_dims * sizeof a->dims[0]) == 0;
}

/* Input i must have this type and number of dimensions. dtype 0: any float type (a weight). */
bool shape_want(const struct rule *r, uint32_t i, const char *name, uint32_t dtype, uint32_t n_dims)
{
    const struct d0_value *v = shape_input(r, i);
    if (v == NULL)
        return shape_broken(r, "input %u (%s) is missing", i, name);
    if (dtype ? v->dtype != dtype : !dtype_is_float(v->dtype))
        return shape_broken(r, "input %u (%s) is %s, must be %s", i, name, dtype_name(v->dtype),
                            dtype ? dtype_name(dtype) : "a float type");
    if (v->n_dims != n_dims)
        return shape_broken(r, "input %u (%s) has %u dimensions, must have %u", i, name, v->n_dims, n_dims);
    return true;
}

/* A weight in whatever type the checkpoint holds it: floats, or the integers that packed codes come in. */
bool shape_want_stored(const struct rule *r, uint32_t i, const char *name, uint32_t n_dims)
{
    const struct d0_value *v = shape_input(r, i);
    if (v && (v->dtype == D0_U8 || v->dtype == D0_U4 || v->dtype == D0_I8 || v->dtype == D0_I32))
        return shape_want(r, i, name, v->dtype, n_dims);
    return shape_want(r, i, name, 0, n_dims);
}

bool shape_want_dim(const struct rule *r, uint32_t i, const char *name, uint32_t d, int64_t expected)
{
    const struct d0_value *v = shape_input(r, i);
    char buf[96];
    if (v->dims[d] != expected)
        return shape_broken(r, "input %u (%s) is %s, dimension %u must be %lld", i, name,
                            dims_format(v, buf, sizeof buf), d, (long long)expected);
    return true;
}

/* x[rows, K] float32 with a known K. */
bool shape_want_rows(const struct rule *r, uint32_t i, const char *name)
{
    if (!shape_want(r, i, name, D0_F32, 2))
        return false;
    if (shape_input(r, i)->dims[1] <= 0)
        return shape_broken(r, "input %u (%s): its last dimension must be a number", i, name);
    return true;
}

bool shape_give(const struct rule *r, int64_t rows, int64_t width)
{
    if (width <= 0 || width > GRAPH_MAX_DIM)
        return shape_broken(r, "the result would be %lld wide", (long long)width);
    r->out[0] =
        (struct d0_value){.kind = D0_VALUE_ACTIVATION, .dtype = D0_F32, .n_dims = 2, .dims = {rows, width}};
    return true;
}

/* Positive attribute within bounds; shape_broken() otherwise. */
bool shape_positive(const struct rule *r, uint32_t key, int64_t *out)
{
    *out = node_attr_i(r->n, key, 0);
    if (*out <= 0 || *out > INT32_MAX)
        return shape_broken(r, "%s is %lld, must be 1..2147483647", attr_name(key), (long long)*out);
    return true;
}

static bool rule_embed(const struct rule *r)
{
    if (!shape_want(r, 0, "ids", D0_I32, 1) || !shape_want(r, 1, "table", 0, 2))
        return false;
    return shape_give(r, shape_input(r, 0)->dims[0], shape_input(r, 1)->dims[1]);
}

bool shape_segments(const struct rule *r, int64_t k)
{
    int64_t s = node_attr_i(r->n, D0_ATTR_SEGMENTS, 0);
    if (s < 0 || s > 64 || (s & (s - 1)))
        return shape_broken(r, "segments is %lld, must be a power of two up to 64", (long long)s);
    if (s > 0 && k % s)
        return shape_broken(r, "segments %lld does not divide %lld", (long long)s, (long long)k);
    return true;
}

bool shape_rounding(const struct rule *r)
{
    int64_t format = node_attr_i(r->n, D0_ATTR_X_FORMAT, 0);
    if (format == D0_X_EXACT || tensor_rounding(format))
        return true;
    return shape_broken(r, "x_format %lld is unknown", (long long)format);
}

static bool rule_linear(const struct rule *r)
{
    if (!shape_want_rows(r, 0, "x") || !shape_want_stored(r, 1, "w", 2))
        return false;
    int64_t k = shape_input(r, 0)->dims[1], n = shape_input(r, 1)->dims[0];
    if (!shape_want_dim(r, 1, "w", 1, k) || !shape_segments(r, k) || !shape_rounding(r))
        return false;
    if (shape_input(r, 2) && (!shape_want(r, 2, "bias", 0, 1) || !shape_want_dim(r, 2, "bias", 0, n)))
        return false;
    return shape_give(r, shape_input(r, 0)->dims[0], n);
}

static bool rule_rms_norm(const struct rule *r)
{
    if (!shape_want_rows(r, 0, "x"))
        return false;
    int64_t k = shape_input(r, 0)->dims[1], dim = node_attr_i(r->n, D0_ATTR_DIM, 0);
    int64_t d = dim ? dim : k;
    if (d < 0 || k % d)
        return shape_broken(r, "dim %lld does not divide %lld", (long long)dim, (long long)k);
    if (shape_input(r, 1) && (!shape_want(r, 1, "w", 0, 1) || !shape_want_dim(r, 1, "w", 0, d)))
        return false;
    if (node_attr_f(r->n, D0_ATTR_EPS, -1) < 0)
        return shape_broken(r, "eps is negative");
    if (!shape_segments(r, d))
        return false;
    return shape_give(r, shape_input(r, 0)->dims[0], k);
}

bool shape_pair(const struct rule *r, const char *a, const char *b)
{
    if (!shape_want_rows(r, 0, a) || !shape_want_rows(r, 1, b))
        return false;
    char x[96], y[96];
    if (!same_dims(shape_input(r, 0), shape_input(r, 1)))
        return shape_broken(r, "%s is %s but %s is %s", a, dims_format(shape_input(r, 0), x, sizeof x), b,
                            dims_format(shape_input(r, 1), y, sizeof y));
    return shape_give(r, shape_input(r, 0)->dims[0], shape_input(r, 0)->dims[1]);
}

static bool rule_rope_table(const struct rule *r)
{
    const struct d0_value *p = shape_input(r, 0);
    const bool three = p && p->n_dims == 2; /* t, h, w */
    if (!shape_want(r, 0, "positions", D0_I32, three ? 2 : 1) || !shape_want(r, 1, "inv_freq", D0_F32, 1) ||
        (three && !shape_want_dim(r, 0, "positions", 1, 3)))
        return false;
    return shape_give(r, shape_input(r, 0)->dims[0], 2 * shape_input(r, 1)->dims[0]);
}

static bool rule_rope(const struct rule *r)
{
    int64_t dim, offset = node_attr_i(r->n, D0_ATTR_OFFSET, 0), style = node_attr_i(r->n, D0_ATTR_STYLE, 0);
    if (!shape_want_rows(r, 0, "x") || !shape_want_rows(r, 1, "table") ||
        !shape_positive(r, D0_ATTR_DIM, &dim))
        return false;
    int64_t k = shape_input(r, 0)->dims[1], d = shape_input(r, 1)->dims[1];
    if (k % dim)
        return shape_broken(r, "dim %lld does not divide %lld", (long long)dim, (long long)k);
    if (d % 2)
        return shape_broken(r, "the table is %lld wide, must be even", (long long)d);
    if (offset < 0 || offset > dim || d > dim - offset)
        return shape_broken(r, "%lld values from %lld do not lie in a head of %lld", (long long)d,
                            (long long)offset, (long long)dim);
    if (style < 0 || style > 1)
        return shape_broken(r, "style %lld is unknown", (long long)style);
    if (!shape_want_dim(r, 1, "table", 0, shape_input(r, 0)->dims[0]))
        return false;
    return shape_give(r, shape_input(r, 0)->dims[0], k);
}

/* Pages [pages, kv_heads, page_tokens, dim] at input i, whose page size must agree with the pages at input
 * `as`. */
bool shape_want_pages(const struct rule *r, uint32_t i, const char *name, int64_t kv_heads, int64_t dim,
                      uint32_t as)
{
    if (!shape_want(r, i, name, 0, 4) || !shape_want_dim(r, i, name, 1, kv_heads) ||
        !shape_want_dim(r, i, name, 3, dim))
        return false;
    return shape_want_dim(r, i, name, 0, shape_input(r, as)->dims[0]) &&
           shape_want_dim(r, i, name, 2, shape_input(r, as)->dims[2]);
}

/* positions[T], seq_of[T], page_table[B, P] from input i on. */
bool shape_want_places(const struct rule *r, uint32_t i, int64_t rows)
{
    return shape_want(r, i, "positions", D0_I32, 1) && shape_want_dim(r, i, "positions", 0, rows) &&
           shape_want(r, i + 1, "seq_of", D0_I32, 1) && shape_want_dim(r, i + 1, "seq_of", 0, rows) &&
           shape_want(r, i + 2, "page_table", D0_I32, 2);
}

/* The attributes of grouped heads. */
static bool kv_sizes(const struct rule *r, int64_t *kv_heads, int64_t *dim, int64_t *v_dim)
{
    if (!shape_positive(r, D0_ATTR_KV_HEADS, kv_heads) || !shape_positive(r, D0_ATTR_DIM, dim))
        return false;
    *v_dim = node_attr_i(r->n, D0_ATTR_V_DIM, 0);
    if (*v_dim == 0)
        *v_dim = *dim;
    return *v_dim > 0 && *v_dim <= INT32_MAX ? true : shape_broken(r, "v_dim is %lld", (long long)*v_dim);
}

static bool rule_kv_store(const struct rule *r)
{
    int64_t kv_heads, dim, v_dim;
    if (!kv_sizes(r, &kv_heads, &dim, &v_dim) || !shape_want_rows(r, 0, "k") || !shape_want_rows(r, 1, "v"))
        return false;
    return shape_want_dim(r, 0, "k", 1, kv_heads * dim) && shape_want_dim(r, 1, "v", 1, kv_heads * v_dim) &&
           shape_want_dim(r, 1, "v", 0, shape_input(r, 0)->dims[0]) &&
           shape_want_pages(r, 2, "k_pages", kv_heads, dim, 2) &&
           shape_want_pages(r, 3, "v_pages", kv_heads, v_dim, 2) &&
           shape_want_places(r, 4, shape_input(r, 0)->dims[0]);
}

static bool attention_extras(const struct rule *r, int64_t heads, int64_t kv_heads)
{
    int64_t chunk = node_attr_i(r->n, D0_ATTR_CHUNK, 0), block = node_attr_i(r->n, D0_ATTR_BLOCK, 0);
    if (node_attr_f(r->n, D0_ATTR_SOFTCAP, 0) < 0)
        return shape_broken(r, "softcap is negative");
    if (chunk < 0 || chunk > INT32_MAX || block < 0 || block > INT32_MAX)
        return shape_broken(r, "chunk or block is negative");
    if (shape_input(r, 6) && (!shape_want(r, 6, "sinks", 0, 1) || !shape_want_dim(r, 6, "sinks", 0, heads)))
        return false;
    if (shape_input(r, 8) && (!shape_want(r, 8, "spans", D0_I32, 2) || !shape_want_dim(r, 8, "spans", 1, 2) ||
                              !shape_want_dim(r, 8, "spans", 0, shape_input(r, 0)->dims[0])))
        return false;
    if (shape_input(r, 7) == NULL)
        return true;
    if (shape_input(r, 8))
        return shape_broken(r, "spans and chosen keys exclude each other");
    return shape_want(r, 7, "chosen", D0_I32, 2) &&
           (shape_input(r, 7)->dims[1] % kv_heads == 0 ? true
                                                       : shape_broken(r, "chosen keys are not whole heads"));
}

static bool rule_attention(const struct rule *r)
{
    int64_t heads, kv_heads, dim, v_dim, window = node_attr_i(r->n, D0_ATTR_WINDOW, 0);
    if (!shape_positive(r, D0_ATTR_HEADS, &heads) || !kv_sizes(r, &kv_heads, &dim, &v_dim) ||
        !shape_want_rows(r, 0, "q"))
        return false;
    if (heads % kv_heads)
        return shape_broken(r, "%lld kv heads do not divide %lld heads", (long long)kv_heads,
                            (long long)heads);
    if (window < 0 || window > INT32_MAX)
        return shape_broken(r, "window is %lld", (long long)window);
    if (!shape_want_dim(r, 0, "q", 1, heads * dim) || !shape_want(r, 1, "k_pages", 0, 4) ||
        !shape_want_pages(r, 1, "k_pages", kv_heads, dim, 1) ||
        !shape_want_pages(r, 2, "v_pages", kv_heads, v_dim, 1) ||
        !shape_want_places(r, 3, shape_input(r, 0)->dims[0]))
        return false;
    return attention_extras(r, heads, kv_heads) && shape_give(r, shape_input(r, 0)->dims[0], heads * v_dim);
}

static bool rule_glu(const struct rule *r)
{
    return shape_function(r) && shape_pair(r, "gate", "up");
}

static bool rule_gather_rows(const struct rule *r)
{
    const struct d0_value *rows = shape_input(r, 1);
    const bool several = rows && rows->n_dims == 2; /* that become one */
    if (!shape_want_rows(r, 0, "x") || !shape_want(r, 1, "rows", D0_I32, several ? 2 : 1))
        return false;
    if (several && (rows->dims[1] < 1 || rows->dims[1] > GRAPH_MAX_DIM / shape_input(r, 0)->dims[1]))
        return shape_broken(r, "%lld rows of %lld become one", (long long)rows->dims[1],
                            (long long)shape_input(r, 0)->dims[1]);
    return shape_give(r, rows->dims[0], shape_input(r, 0)->dims[1] * (several ? rows->dims[1] : 1));
}

static bool rule_segment_attention(const struct rule *r)
{
    int64_t heads, kv_heads, dim, v_dim;
    if (!shape_positive(r, D0_ATTR_HEADS, &heads) || !kv_sizes(r, &kv_heads, &dim, &v_dim) ||
        !shape_want_rows(r, 0, "q") || !shape_want_rows(r, 1, "k") || !shape_want_rows(r, 2, "v"))
        return false;
    if (heads % kv_heads)
        return shape_broken(r, "%lld kv heads do not divide %lld heads", (long long)kv_heads,
                            (long long)heads);
    return shape_want_dim(r, 0, "q", 1, heads * dim) && shape_want_dim(r, 1, "k", 1, kv_heads * dim) &&
           shape_want_dim(r, 2, "v", 1, kv_heads * v_dim) &&
           shape_want_dim(r, 2, "v", 0, shape_input(r, 1)->dims[0]) && shape_want(r, 3, "spans", D0_I32, 2) &&
           shape_want_dim(r, 3, "spans", 0, shape_input(r, 0)->dims[0]) &&
           shape_want_dim(r, 3, "spans", 1, 2) && shape_give(r, shape_input(r, 0)->dims[0], heads * v_dim);
}

static bool rule_position_embed(const struct rule *r)
{
    if (!shape_want(r, 0, "rows", D0_I32, 2) || !shape_want(r, 1, "table", 0, 2))
        return false;
    const struct d0_value *rows = shape_input(r, 0);
    if (rows->dims[1] < 1)
        return shape_broken(r, "no row of the table is read");
    if (shape_input(r, 2) &&
        (!shape_want_rows(r, 2, "weights") || !shape_want_dim(r, 2, "weights", 0, rows->dims[0]) ||
         !shape_want_dim(r, 2, "weights", 1, rows->dims[1])))
        return false;
    return shape_give(r, rows->dims[0], shape_input(r, 1)->dims[1]);
}

static bool rule_scatter_rows(const struct rule *r)
{
    int64_t add = node_attr_i(r->n, D0_ATTR_ADD, 0);
    if (add < 0 || add > 1)
        return shape_broken(r, "add is %lld, must be 0 or 1", (long long)add);
    const struct d0_value *features = shape_input(r, 1);
    const bool learned = features && features->kind == D0_VALUE_WEIGHT;
    return shape_want_rows(r, 0, "x") &&
           (learned ? shape_want(r, 1, "features", 0, 2) : shape_want_rows(r, 1, "features")) &&
           shape_want_dim(r, 1, "features", 1, shape_input(r, 0)->dims[1]) &&
           shape_want(r, 2, "from", D0_I32, 1) &&
           shape_want_dim(r, 2, "from", 0, shape_input(r, 0)->dims[0]) &&
           shape_give(r, shape_input(r, 0)->dims[0], shape_input(r, 0)->dims[1]);
}

bool shape_rule(const struct graph *g, const struct d0_node *n, struct d0_value outs[D0_MAX_NODE_OUTPUTS],
                char *why, size_t why_bytes)
{
    struct rule r = {.g = g, .n = n, .out = outs, .why = why, .why_bytes = why_bytes};
    switch ((enum d0_op)n->op) {
    case D0_OP_EMBED:
        return rule_embed(&r);
    case D0_OP_LINEAR:
        return rule_linear(&r);
    case D0_OP_RMS_NORM:
        return rule_rms_norm(&r);
    case D0_OP_ADD:
        return shape_pair(&r, "a", "b");
    case D0_OP_ROPE_TABLE:
        return rule_rope_table(&r);
    case D0_OP_ROPE:
        return rule_rope(&r);
    case D0_OP_KV_STORE:
        return rule_kv_store(&r);
    case D0_OP_ATTENTION:
        return rule_attention(&r);
    case D0_OP_GLU:
        return rule_glu(&r);
    case D0_OP_GATHER_ROWS:
        return rule_gather_rows(&r);
    case D0_OP_SEGMENT_ATTENTION:
        return rule_segment_attention(&r);
    case D0_OP_POSITION_EMBED:
        return rule_position_embed(&r);
    case D0_OP_SCATTER_ROWS:
        return rule_scatter_rows(&r);
    case D0_OP_QKV:
    case D0_OP_GATE_UP:
    case D0_OP_NORM_RESIDUAL:
    case D0_OP_NORM_ROPE_STORE:
        return shape_rule_fused(&r);
    default:
        return shape_rule_family(&r);
    }
}

static bool attrs_form(const struct d0_node *n, const struct op_info *op, char *why, size_t why_bytes)
{
    for (uint32_t i = 0; i < n->n_attrs; i++) {
        const struct d0_attr *a = &n->attrs[i];
        if (op_attr_use(op, a->key) == ATTR_NOT_USED) {
            snprintf(why, why_bytes, "it has no attribute %s (key %u)", attr_name(a->key), a->key);
            return false;
        }
        if ((a->is_float != 0) != attr_is_float(a->key) || (a->is_float && !isfinite(a->v.f))) {
            snprintf(why, why_bytes, "attribute %s must be a finite %s", attr_name(a->key),
                     attr_is_float(a->key) ? "number" : "integer");
            return false;
        }
        for (uint32_t j = 0; j < i; j++)
            if (n->attrs[j].key == a->key) {
                snprintf(why, why_bytes, "attribute %s is given twice", attr_name(a->key));
                return false;
            }
    }
    uint32_t key;
    for (size_t i = 0; (key = attr_all(i)) != 0; i++) {
        bool present = false;
        for (uint32_t j = 0; j < n->n_attrs; j++)
            present |= n->attrs[j].key == key;
        if (!present && op_attr_use(op, key) == ATTR_REQUIRED) {
            snprintf(why, why_bytes, "attribute %s is missing", attr_name(key));
            return false;
        }
    }
    return true;
}

bool node_form(const struct d0_node *n, char *why, size_t why_bytes)
{
    const struct op_info *op = op_find(n->op);
    if (op == NULL) {
        snprintf(why, why_bytes, "operator %u is unknown", n->op);
        return false;
    }
    if (n->n_inputs < op->min_inputs || n->n_inputs > op->max_inputs) {
        snprintf(why, why_bytes, "%u inputs, takes %u to %u", n->n_inputs, op->min_inputs, op->max_inputs);
        return false;
    }
    for (uint32_t i = 0; i < op->min_inputs; i++)
        if (n->inputs[i] == D0_NO_VALUE) {
            snprintf(why, why_bytes, "input %u is absent but required", i);
            return false;
        }
    if (n->n_attrs > D0_MAX_NODE_ATTRS) {
        snprintf(why, why_bytes, "%u attributes, at most %u", n->n_attrs, (unsigned)D0_MAX_NODE_ATTRS);
        return false;
    }
    return attrs_form(n, op, why, why_bytes);
}

bool value_form(const struct d0_value *v, char *why, size_t why_bytes)
{
    if (v->kind < D0_VALUE_INPUT || v->kind > D0_VALUE_OUTPUT) {
        snprintf(why, why_bytes, "kind %u is unknown", v->kind);
        return false;
    }
    if (dtype_bits(v->dtype) == 0) {
        snprintf(why, why_bytes, "type %u is unknown", v->dtype);
        return false;
    }
    if (v->n_dims < 1 || v->n_dims > D0_MAX_DIMS) {
        snprintf(why, why_bytes, "%u dimensions, must be 1 to %d", v->n_dims, D0_MAX_DIMS);
        return false;
    }
    bool symbolic = v->kind != D0_VALUE_WEIGHT && v->kind != D0_VALUE_STATE;
    for (uint32_t i = 0; i < v->n_dims; i++) {
        int64_t d = v->dims[i];
        if (d > GRAPH_MAX_DIM || d == 0 || (d < 0 && (!symbolic || d < -D0_N_DIMS))) {
            snprintf(why, why_bytes, "dimension %u is %lld", i, (long long)d);
            return false;
        }
    }
    if (v->kind == D0_VALUE_INPUT ? v->role < D0_INPUT_IDS || v->role > D0_INPUT_LAST : v->role != 0) {
        snprintf(why, why_bytes, "role %u does not fit its kind", v->role);
        return false;
    }
    return true;
}
