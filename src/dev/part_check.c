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

#include "dev/part_rules.h"
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
    if (v->format.scale_dtype && v->kind != D0_VALUE_WEIGHT)
        return status_set(st, D0_E_INVALID, "value %u is no weight and stored as codes", i);
    uint64_t bytes;
    if (!tensor_value_bytes(v, p->max_dims, &bytes))
        return status_set(st, D0_E_INVALID, "value %u is too large to address, or in no known format", i);
    if (v->kind != D0_VALUE_ACTIVATION && v->kind != D0_VALUE_OUTPUT)
        return D0_OK;
    if (v->offset % 64 || v->offset > p->scratch_bytes || bytes > p->scratch_bytes - v->offset)
        return status_set(st, D0_E_INVALID, "value %u: offset %llu + %llu bytes do not fit a scratch of %llu",
                          i, (unsigned long long)v->offset, (unsigned long long)bytes,
                          (unsigned long long)p->scratch_bytes);
    return D0_OK;
}

/* Each attribute known, once and of its own type: rules and kernels must not see different ones. */
static bool attributes_clear(const struct d0_node *n)
{
    static const unsigned char is_float[D0_N_ATTRS] = {
#define OP(...)
#define ATTR(id, NAME, text, is_float_, meaning) [id] = (is_float_),
#include "day0/ops.def"
#undef OP
#undef ATTR
    };
    for (uint32_t i = 0; i < n->n_attrs; i++) {
        const struct d0_attr *a = &n->attrs[i];
        if (a->key == 0 || a->key >= D0_N_ATTRS || find_attr(n, a->key) != a ||
            (a->is_float != 0) != is_float[a->key])
            return false;
    }
    return true;
}

static int check_node(const struct d0_part *p, uint32_t i, bool *written, struct d0_status *st)
{
    const struct d0_node *n = &p->nodes[i];
    if (n->n_inputs > D0_MAX_NODE_INPUTS || n->n_outputs > D0_MAX_NODE_OUTPUTS ||
        n->n_attrs > D0_MAX_NODE_ATTRS)
        return status_set(st, D0_E_INVALID, "node %u has %u inputs, %u outputs, %u attributes", i,
                          n->n_inputs, n->n_outputs, n->n_attrs);
    if (!attributes_clear(n))
        return status_set(st, D0_E_INVALID,
                          "node %u has an attribute that is unknown, there twice or of the wrong type", i);
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

struct op_row {
    uint32_t op, min_inputs, max_inputs, n_outputs;
    bool (*rule)(const struct rule *r);
};

bool part_node_check(const struct d0_part *p, uint32_t node, char *reason, size_t reason_bytes)
{
    static const struct op_row rows[] = {
#define OP(id, NAME, text, min_in, max_in, n_out, ...) {id, min_in, max_in, n_out, rule_##NAME},
#define ATTR(id, NAME, ...)
#include "day0/ops.def"
#undef OP
#undef ATTR
    };
    struct rule r = {p, NULL, reason, reason_bytes};
    if (!rule_need(&r, node < p->n_nodes, "node %u of %u", node, p->n_nodes))
        return false;
    r.n = &p->nodes[node];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].op != r.n->op)
            continue;
        return rule_need(&r,
                         r.n->n_inputs >= rows[i].min_inputs && r.n->n_inputs <= rows[i].max_inputs &&
                             r.n->n_outputs == rows[i].n_outputs,
                         "%u inputs and %u outputs", r.n->n_inputs, r.n->n_outputs) &&
               rows[i].rule(&r);
    }
    return rule_need(&r, false, "unknown operator %u", r.n->op);
}
