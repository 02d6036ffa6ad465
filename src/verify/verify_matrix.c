/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the operator x device matrix: one row per operator and combination of weight types of a graph, and
 * whether the device runs it.
 */
#include <stdio.h>
#include <string.h>

#include "verify/opcase.h"
#include "verify/verify.h"

/* Name of input `index` as the operator's meaning in ops.def gives it: "x[T, K], w W[N, K], ?bias W[N] ->
 * ...". */
static void input_name(const struct op_info *op, uint32_t index, char *out, size_t bytes)
{
    const char *p = op->meaning;
    for (uint32_t i = 0; i < index; i++) {
        for (int depth = 0; *p && (depth > 0 || *p != ','); p++)
            depth += (*p == '[' || *p == '(') - (*p == ']' || *p == ')');
        p += *p == ',';
    }
    p += strspn(p, " ?");
    size_t n = strcspn(p, " [,");
    if (n == 0 || n >= bytes || strncmp(p, "->", 2) == 0)
        snprintf(out, bytes, "input %u", index);
    else
        snprintf(out, bytes, "%.*s", (int)n, p);
}

/* "x F32, w F4 1x32 F8_E8M0": of the first input and of all weights and states. */
static void format_types(const struct graph *g, const struct d0_node *n, const struct op_info *op, char *out,
                         size_t bytes)
{
    size_t len = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < n->n_inputs; i++) {
        if (n->inputs[i] == D0_NO_VALUE)
            continue;
        const struct d0_value *v = &g->values[n->inputs[i]];
        if (i > 0 && v->kind != D0_VALUE_WEIGHT && v->kind != D0_VALUE_STATE)
            continue;
        char name[24], type[48];
        input_name(op, i, name, sizeof name);
        optype_name(&(struct optype){.dtype = v->dtype, .format = v->format}, type, sizeof type);
        int w = snprintf(out + len, bytes - len, "%s%s %s", len ? ", " : "", name, type);
        if (w < 0 || (size_t)w >= bytes - len)
            return;
        len += (size_t)w;
    }
}

/* What finding P005 tells of (preflight_kernels). */
static bool is_beyond_build(const struct graph *g, const struct d0_node *n)
{
    bool beyond = op_no_kernel(n->op);
    for (uint32_t i = 0; i < n->n_inputs; i++)
        beyond |= n->inputs[i] != D0_NO_VALUE && !spec_value_computed(g, n->inputs[i]);
    return beyond;
}

static bool told_already(const struct findings *f)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->items[i].id == FINDING_P005)
            return true;
    return false;
}

int verify_matrix(struct dev *d, const struct graph *g, struct arena *arena, struct verify_op_row **rows,
                  size_t *n, struct findings *f, struct err *e)
{
    static const int64_t smallest[D0_N_DIMS] = {1, 1, 1, 1};
    struct graph *copy = NULL;
    struct d0_part part;
    size_t capacity = 0;
    struct verify_op_row *list = NULL;
    *n = 0;
    /* a device may look at sizes: show it a planned part */
    int rc = graph_copy(g, &copy, e);
    if (rc == 0)
        rc = graph_plan_memory(copy, smallest, false, e);
    if (rc == 0 && !(list = arena_alloc_n(arena, capacity = (size_t)copy->n_nodes + 1, sizeof *list)))
        rc = err_set(e, ERR_NOMEM, "no memory for a matrix of %u nodes", copy->n_nodes);
    if (rc == 0)
        graph_part(copy, &part);
    for (uint32_t i = 0; rc == 0 && i < copy->n_nodes; i++) {
        const struct op_info *op = op_find(copy->nodes[i].op);
        struct verify_op_row row = {
            .op = op ? op->name : "?", .count = 1, .beyond_build = is_beyond_build(copy, &copy->nodes[i])};
        if (op)
            format_types(copy, &copy->nodes[i], op, row.types, sizeof row.types);
        row.supported = dev_supports(d, &part, i, row.reason, sizeof row.reason);
        if (row.supported)
            row.reason[0] = 0;
        size_t k = 0;
        /* one refused node is enough to refuse a row, so refused and accepted ones are kept apart */
        while (k < *n && (list[k].supported != row.supported || list[k].beyond_build != row.beyond_build ||
                          strcmp(list[k].op, row.op) != 0 || strcmp(list[k].types, row.types) != 0))
            k++;
        if (k < *n)
            list[k].count++;
        else if (*n < capacity)
            list[(*n)++] = row;
    }
    const bool told = told_already(f);
    for (size_t k = 0; rc == 0 && k < *n; k++)
        if (!list[k].supported && !(list[k].beyond_build && told))
            finding_add(f, FINDING_P001, list[k].op, "%u nodes (%s): %s", list[k].count, list[k].types,
                        list[k].reason);
    graph_free(copy);
    *rows = list;
    return rc;
}
