/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the checks of a graph part that stand between a caller and the memory of the built-in devices.
 * Refuses: trust. A part may come from another process or a broken pass; nothing of it is used before it was
 * checked.
 */
#include "dev/part_check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"

#define MAX_VALUES (1u << 24)
#define MAX_EXTENT (INT64_C(1) << 40) /* of one dimension */

int status_set(struct d0_status *status, int code, const char *fmt, ...)
{
    if (!status || status->size < sizeof(*status))
        return code;
    status->code = code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(status->message, sizeof(status->message), fmt, ap);
    va_end(ap);
    return code;
}

int64_t part_dim(int64_t dim, const int64_t dims[D0_N_DIMS])
{
    return dim < 0 ? dims[-1 - dim] : dim;
}

bool part_value_bytes(const struct d0_value *v, const int64_t dims[D0_N_DIMS], uint64_t *out)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < v->n_dims; i++)
        if (__builtin_mul_overflow(n, (uint64_t)part_dim(v->dims[i], dims), &n))
            return false;
    uint64_t bits;
    if (__builtin_mul_overflow(n, (uint64_t)dtype_bits(v->dtype), &bits) || bits > UINT64_MAX - 7)
        return false;
    *out = (bits + 7) / 8;
    return true;
}

static const struct d0_attr *find_attr(const struct d0_node *n, uint32_t key)
{
    for (uint32_t i = 0; i < n->n_attrs; i++)
        if (n->attrs[i].key == key)
            return &n->attrs[i];
    return NULL;
}

int64_t part_attr_i(const struct d0_node *n, uint32_t key, int64_t absent)
{
    const struct d0_attr *a = find_attr(n, key);
    return a && !a->is_float ? a->v.i : absent;
}

double part_attr_f(const struct d0_node *n, uint32_t key, double absent)
{
    const struct d0_attr *a = find_attr(n, key);
    return a && a->is_float ? a->v.f : absent;
}

/* ---- the part as such ---------------------------------------------------------------------------------- */

static int check_value(const struct d0_part *p, uint32_t i, struct d0_status *st)
{
    const struct d0_value *v = &p->values[i];
    if (v->kind < D0_VALUE_INPUT || v->kind > D0_VALUE_OUTPUT)
        return status_set(st, D0_E_INVALID, "value %u has kind %u", i, v->kind);
    if (dtype_bits(v->dtype) == 0 || v->n_dims < 1 || v->n_dims > D0_MAX_DIMS)
        return status_set(st, D0_E_INVALID, "value %u has type %u and %u dimensions", i, v->dtype, v->n_dims);
    for (uint32_t k = 0; k < v->n_dims; k++)
        if (v->dims[k] == 0 || v->dims[k] < -D0_N_DIMS || v->dims[k] > MAX_EXTENT)
            return status_set(st, D0_E_INVALID, "value %u has dimension %lld", i, (long long)v->dims[k]);
    uint64_t bytes;
    if (!part_value_bytes(v, p->max_dims, &bytes))
        return status_set(st, D0_E_INVALID, "value %u is too large to address", i);
    if (v->kind != D0_VALUE_ACTIVATION && v->kind != D0_VALUE_OUTPUT)
        return D0_OK;
    if (v->offset % 64 || v->offset > p->scratch_bytes || bytes > p->scratch_bytes - v->offset)
        return status_set(st, D0_E_INVALID, "value %u: offset %llu + %llu bytes do not fit a scratch of %llu",
                          i, (unsigned long long)v->offset, (unsigned long long)bytes,
                          (unsigned long long)p->scratch_bytes);
    return D0_OK;
}

static int check_node(const struct d0_part *p, uint32_t i, bool *written, struct d0_status *st)
{
    const struct d0_node *n = &p->nodes[i];
    if (n->n_inputs > D0_MAX_NODE_INPUTS || n->n_outputs > D0_MAX_NODE_OUTPUTS ||
        n->n_attrs > D0_MAX_NODE_ATTRS)
        return status_set(st, D0_E_INVALID, "node %u has %u inputs, %u outputs, %u attributes", i,
                          n->n_inputs, n->n_outputs, n->n_attrs);
    for (uint32_t k = 0; k < n->n_inputs; k++) {
        uint32_t id = n->inputs[k];
        if (id == D0_NO_VALUE)
            continue;
        if (id >= p->n_values)
            return status_set(st, D0_E_INVALID, "node %u: input %u is value %u of %u", i, k, id, p->n_values);
        uint32_t kind = p->values[id].kind;
        if ((kind == D0_VALUE_ACTIVATION || kind == D0_VALUE_OUTPUT) && !written[id])
            return status_set(st, D0_E_INVALID, "node %u reads value %u before any node has written it", i,
                              id);
    }
    for (uint32_t k = 0; k < n->n_outputs; k++) {
        uint32_t id = n->outputs[k];
        if (id >= p->n_values)
            return status_set(st, D0_E_INVALID, "node %u: output %u is value %u of %u", i, k, id,
                              p->n_values);
        uint32_t kind = p->values[id].kind;
        if ((kind != D0_VALUE_ACTIVATION && kind != D0_VALUE_OUTPUT) || written[id])
            return status_set(st, D0_E_INVALID, "node %u may not write value %u", i, id);
        written[id] = true;
    }
    return D0_OK;
}

int part_check(const struct d0_part *p, struct d0_status *st)
{
    if (p->size < sizeof(*p) || p->abi_version != D0_DEVICE_ABI_VERSION)
        return status_set(st, D0_E_INVALID,
                          "a part of ABI version %u and %u bytes, this device has version %u and %zu",
                          p->abi_version, p->size, D0_DEVICE_ABI_VERSION, sizeof(*p));
    if (p->n_values > MAX_VALUES || p->n_nodes > MAX_VALUES || (p->n_values && !p->values) ||
        (p->n_nodes && !p->nodes))
        return status_set(st, D0_E_INVALID, "a part of %u values and %u nodes", p->n_values, p->n_nodes);
    for (int i = 0; i < D0_N_DIMS; i++)
        if (p->max_dims[i] < 0 || p->max_dims[i] > MAX_EXTENT)
            return status_set(st, D0_E_INVALID, "largest size %d is %lld", i, (long long)p->max_dims[i]);
    bool *written = calloc(p->n_values + 1u, sizeof(*written));
    if (!written)
        return status_set(st, D0_E_NOMEM, "no memory to check %u values", p->n_values);
    int rc = D0_OK;
    for (uint32_t i = 0; rc == D0_OK && i < p->n_values; i++)
        rc = check_value(p, i, st);
    for (uint32_t i = 0; rc == D0_OK && i < p->n_nodes; i++)
        rc = check_node(p, i, written, st);
    free(written);
    return rc;
}

int part_dims_check(const int64_t max_dims[D0_N_DIMS], const struct d0_step_dims *dims, struct d0_status *st)
{
    if (!dims || dims->size < sizeof(*dims))
        return status_set(st, D0_E_INVALID, "the sizes of the step are missing or of another version");
    for (int i = 0; i < D0_N_DIMS; i++)
        if (dims->dims[i] < 0 || dims->dims[i] > max_dims[i])
            return status_set(st, D0_E_INVALID, "size %d of the step is %lld, compiled for at most %lld", i,
                              (long long)dims->dims[i], (long long)max_dims[i]);
    return D0_OK;
}

/* ---- operators ----------------------------------------------------------------------------------------- */

struct rule {
    const struct d0_part *p;
    const struct d0_node *n;
    char *reason;
    size_t bytes;
};

static __attribute__((format(printf, 3, 4))) bool need(const struct rule *r, bool met, const char *fmt, ...)
{
    if (met || r->bytes == 0)
        return met;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->reason, r->bytes, fmt, ap);
    va_end(ap);
    return met;
}

static const struct d0_value *input(const struct rule *r, uint32_t i)
{
    if (i >= r->n->n_inputs || r->n->inputs[i] == D0_NO_VALUE)
        return NULL;
    return &r->p->values[r->n->inputs[i]];
}

static const struct d0_value *output(const struct rule *r)
{
    return &r->p->values[r->n->outputs[0]];
}

static int64_t attr(const struct rule *r, uint32_t key)
{
    return part_attr_i(r->n, key, 0);
}

/* float32 [rows, width], a row being of fixed width */
static bool is_matrix(const struct d0_value *v)
{
    return v && v->dtype == D0_F32 && v->n_dims == 2 && v->dims[1] > 0;
}

static bool is_ints(const struct d0_value *v, int64_t n)
{
    return v && v->dtype == D0_I32 && v->n_dims == 1 && v->dims[0] == n;
}

static bool is_weight_type(const struct d0_value *v)
{
    return v->dtype == D0_F32 || v->dtype == D0_BF16 || v->dtype == D0_F16;
}

/* [a], or [a, b] where b > 0; all sizes fixed */
static bool is_weight(const struct d0_value *v, int64_t a, int64_t b)
{
    if (!v || !is_weight_type(v) || a <= 0)
        return false;
    return b > 0 ? v->n_dims == 2 && v->dims[0] == a && v->dims[1] == b : v->n_dims == 1 && v->dims[0] == a;
}

static bool same_shape(const struct d0_value *a, const struct d0_value *b)
{
    return a->dims[0] == b->dims[0] && a->dims[1] == b->dims[1];
}

static bool segments_divide(const struct rule *r, int64_t k)
{
    int64_t s = attr(r, D0_ATTR_SEGMENTS);
    s = s ? s : 1;
    return need(r, s > 0 && s <= 64 && (s & (s - 1)) == 0 && k % s == 0, "%lld segments of %lld values",
                (long long)s, (long long)k);
}

static bool rule_embed(const struct rule *r)
{
    const struct d0_value *ids = input(r, 0), *w = input(r, 1), *o = output(r);
    return need(r, ids && ids->n_dims == 1 && is_ints(ids, ids->dims[0]), "ids must be i32 [T]") &&
           need(r, is_matrix(o) && o->dims[0] == ids->dims[0], "output must be f32 [T, H]") &&
           need(r, w && w->n_dims == 2 && is_weight(w, w->dims[0], o->dims[1]),
                "table must be f32, bf16 or f16 [V, H]");
}

static bool rule_linear(const struct rule *r)
{
    const struct d0_value *x = input(r, 0), *w = input(r, 1), *bias = input(r, 2), *o = output(r);
    return need(r, is_matrix(x) && is_matrix(o) && x->dims[0] == o->dims[0],
                "x and output must be f32 [T, .]") &&
           need(r, is_weight(w, o->dims[1], x->dims[1]), "w must be f32, bf16 or f16 [N, K]") &&
           need(r, !bias || is_weight(bias, o->dims[1], 0), "bias must be f32, bf16 or f16 [N]") &&
           segments_divide(r, x->dims[1]);
}

static bool rule_rms_norm(const struct rule *r)
{
    const struct d0_value *x = input(r, 0), *w = input(r, 1), *o = output(r);
    if (!need(r, is_matrix(x) && is_matrix(o) && same_shape(x, o), "x and output must be f32 [T, K]"))
        return false;
    int64_t d = attr(r, D0_ATTR_DIM);
    d = d ? d : x->dims[1];
    return need(r, d > 0 && x->dims[1] % d == 0, "groups of %lld do not divide %lld", (long long)d,
                (long long)x->dims[1]) &&
           need(r, !w || is_weight(w, d, 0), "w must be f32, bf16 or f16 [%lld]", (long long)d) &&
           segments_divide(r, d);
}

static bool rule_pair(const struct rule *r)
{
    const struct d0_value *a = input(r, 0), *b = input(r, 1), *o = output(r);
    return need(r, is_matrix(a) && is_matrix(b) && is_matrix(o) && same_shape(a, b) && same_shape(a, o),
                "both inputs and the output must be f32 of one shape") &&
           need(r, r->n->op != D0_OP_GLU || attr(r, D0_ATTR_FUNCTION) == 0, "activation function %lld",
                (long long)attr(r, D0_ATTR_FUNCTION));
}

static bool rule_rope_table(const struct rule *r)
{
    const struct d0_value *pos = input(r, 0), *f = input(r, 1), *o = output(r);
    return need(r, is_matrix(o) && o->dims[1] % 2 == 0 && is_ints(pos, o->dims[0]),
                "positions must be i32 [T], output f32 [T, D]") &&
           need(r, f && f->dtype == D0_F32 && f->n_dims == 1 && f->dims[0] == o->dims[1] / 2,
                "inv_freq must be f32 [D/2]");
}

static bool rule_rope(const struct rule *r)
{
    const struct d0_value *x = input(r, 0), *t = input(r, 1), *o = output(r);
    if (!need(r, is_matrix(x) && is_matrix(o) && same_shape(x, o), "x and output must be f32 of one shape") ||
        !need(r, is_matrix(t) && t->dims[0] == x->dims[0] && t->dims[1] % 2 == 0, "table must be f32 [T, D]"))
        return false;
    int64_t dim = attr(r, D0_ATTR_DIM), offset = attr(r, D0_ATTR_OFFSET), style = attr(r, D0_ATTR_STYLE);
    return need(r, dim > 0 && x->dims[1] % dim == 0, "heads of %lld do not divide %lld", (long long)dim,
                (long long)x->dims[1]) &&
           need(r, offset >= 0 && offset <= dim && t->dims[1] <= dim - offset,
                "%lld values from %lld in a head of %lld", (long long)t->dims[1], (long long)offset,
                (long long)dim) &&
           need(r, style == 0 || style == 1, "style %lld", (long long)style);
}

static bool is_pages(const struct d0_value *v, const struct d0_value *like, int64_t heads, int64_t dim)
{
    return v && is_weight_type(v) && v->n_dims == 4 && v->dims[0] > 0 && v->dims[1] == heads &&
           v->dims[2] > 0 && v->dims[3] == dim && v->kind == D0_VALUE_STATE && v->dims[0] == like->dims[0] &&
           v->dims[2] == like->dims[2] && v->dtype == like->dtype;
}

/* Pages from input `first` on, and the three index arrays that follow them. */
static bool paged(const struct rule *r, uint32_t first, int64_t rows)
{
    int64_t heads = attr(r, D0_ATTR_KV_HEADS), dim = attr(r, D0_ATTR_DIM), v_dim = attr(r, D0_ATTR_V_DIM);
    v_dim = v_dim ? v_dim : dim;
    const struct d0_value *k = input(r, first), *v = input(r, first + 1), *table = input(r, first + 4);
    return need(r, heads > 0 && dim > 0 && v_dim > 0, "%lld heads of %lld and %lld values", (long long)heads,
                (long long)dim, (long long)v_dim) &&
           need(r, k && v && is_pages(k, k, heads, dim) && is_pages(v, k, heads, v_dim),
                "pages must be states f32, bf16 or f16 [pages, kv_heads, page_tokens, dim]") &&
           need(r, is_ints(input(r, first + 2), rows) && is_ints(input(r, first + 3), rows),
                "positions and seq_of must be i32 [T]") &&
           need(r, table && table->dtype == D0_I32 && table->n_dims == 2, "page_table must be i32 [B, P]");
}

static bool rule_kv_store(const struct rule *r)
{
    const struct d0_value *k = input(r, 0), *v = input(r, 1);
    if (!need(r, is_matrix(k) && is_matrix(v) && k->dims[0] == v->dims[0], "k and v must be f32 [T, .]") ||
        !paged(r, 2, k->dims[0]))
        return false;
    int64_t heads = attr(r, D0_ATTR_KV_HEADS);
    return need(r,
                k->dims[1] / heads == input(r, 2)->dims[3] && k->dims[1] % heads == 0 &&
                    v->dims[1] / heads == input(r, 3)->dims[3] && v->dims[1] % heads == 0,
                "rows of k and v must be kv_heads * dim values");
}

static bool rule_attention(const struct rule *r)
{
    const struct d0_value *q = input(r, 0), *o = output(r);
    if (!need(r, is_matrix(q) && is_matrix(o) && q->dims[0] == o->dims[0],
              "q and output must be f32 [T, .]") ||
        !paged(r, 1, q->dims[0]))
        return false;
    int64_t heads = attr(r, D0_ATTR_HEADS), kv_heads = attr(r, D0_ATTR_KV_HEADS);
    return need(r, heads > 0 && heads % kv_heads == 0, "%lld heads over %lld kv heads", (long long)heads,
                (long long)kv_heads) &&
           need(r,
                q->dims[1] / heads == input(r, 1)->dims[3] && q->dims[1] % heads == 0 &&
                    o->dims[1] / heads == input(r, 2)->dims[3] && o->dims[1] % heads == 0,
                "rows of q and output must be heads * dim values") &&
           need(r, attr(r, D0_ATTR_WINDOW) >= 0, "window %lld", (long long)attr(r, D0_ATTR_WINDOW));
}

static bool rule_gather(const struct rule *r)
{
    const struct d0_value *x = input(r, 0), *o = output(r);
    return need(r,
                is_matrix(x) && is_matrix(o) && x->dims[1] == o->dims[1] && is_ints(input(r, 1), o->dims[0]),
                "x must be f32 [T, K], rows i32 [R], output f32 [R, K]");
}

/* Parts of operators that are described but not computed here (ops.def, NO_KERNEL). */
static bool computed(const struct rule *r)
{
    static const uint32_t newer[] = {D0_ATTR_SOFTCAP, D0_ATTR_CHUNK, D0_ATTR_BIDIRECTIONAL, D0_ATTR_BLOCK,
                                     D0_ATTR_INVERSE};
    for (uint32_t i = 0; i < r->n->n_attrs; i++)
        for (size_t k = 0; k < sizeof(newer) / sizeof(newer[0]); k++)
            if (!need(r, r->n->attrs[i].key != newer[k], "attribute %u is not computed yet", newer[k]))
                return false;
    return need(r, r->n->op != D0_OP_ATTENTION || (!input(r, 6) && !input(r, 7)),
                "sinks and chosen keys are not computed yet");
}

static bool rule_of(const struct rule *r)
{
    if (!computed(r))
        return false;
    switch (r->n->op) {
    case D0_OP_EMBED:
        return rule_embed(r);
    case D0_OP_LINEAR:
        return rule_linear(r);
    case D0_OP_RMS_NORM:
        return rule_rms_norm(r);
    case D0_OP_ADD:
    case D0_OP_GLU:
        return rule_pair(r);
    case D0_OP_ROPE_TABLE:
        return rule_rope_table(r);
    case D0_OP_ROPE:
        return rule_rope(r);
    case D0_OP_KV_STORE:
        return rule_kv_store(r);
    case D0_OP_ATTENTION:
        return rule_attention(r);
    case D0_OP_GATHER_ROWS:
        return rule_gather(r);
    default:
        return need(r, false, "no kernel on this device");
    }
}

struct op_row {
    uint32_t op, min_inputs, max_inputs, n_outputs;
};

bool part_node_check(const struct d0_part *p, uint32_t node, char *reason, size_t reason_bytes)
{
    static const struct op_row rows[] = {
#define OP(id, NAME, text, min_in, max_in, n_out, ...) {id, min_in, max_in, n_out},
#define ATTR(id, NAME, ...)
#include "day0/ops.def"
#undef OP
#undef ATTR
    };
    struct rule r = {p, NULL, reason, reason_bytes};
    if (!need(&r, node < p->n_nodes, "node %u of %u", node, p->n_nodes))
        return false;
    r.n = &p->nodes[node];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].op != r.n->op)
            continue;
        return need(&r,
                    r.n->n_inputs >= rows[i].min_inputs && r.n->n_inputs <= rows[i].max_inputs &&
                        r.n->n_outputs == rows[i].n_outputs,
                    "%u inputs and %u outputs", r.n->n_inputs, r.n->n_outputs) &&
               rule_of(&r);
    }
    return need(&r, false, "unknown operator %u", r.n->op);
}
