/* SPDX-License-Identifier: Apache-2.0
 *
 * The operator and attribute tables, expanded from include/day0/ops.def, and reads of node attributes. Owns
 * no other knowledge of operators: shapes are shape_rules.c, numbers are the kernels'.
 */
#include "graph/graph.h"

#include <string.h>

static const struct op_info op_table[] = {
#define OP(id_, NAME, text, min_in, max_in, outs, attrs, tolerance, since_, meaning_)                        \
    {.id = (id_),                                                                                            \
     .name = (text),                                                                                         \
     .min_inputs = (min_in),                                                                                 \
     .max_inputs = (max_in),                                                                                 \
     .n_outputs = (outs),                                                                                    \
     .attributes = (attrs),                                                                                  \
     .tolerance_ulp = (tolerance),                                                                           \
     .since = (since_),                                                                                      \
     .meaning = (meaning_)},
#define ATTR(...)
#include "day0/ops.def"
#undef OP
#undef ATTR
};

bool op_no_kernel(uint32_t id)
{
    static const uint32_t ids[] = {
#define OP(...)
#define ATTR(...)
#define NO_KERNEL(NAME) D0_OP_##NAME,
#include "day0/ops.def"
#undef OP
#undef ATTR
#undef NO_KERNEL
        0,
    };
    for (size_t i = 0; ids[i]; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static const struct attr_info {
    uint32_t key;
    const char *name;
    bool is_float;
    const char *meaning;
} attr_table[] = {
#define OP(...)
#define ATTR(id_, NAME, text, is_float_, meaning_) {(id_), (text), (is_float_) != 0, (meaning_)},
#include "day0/ops.def"
#undef OP
#undef ATTR
};

#define OP(id_, NAME, text, min_in, max_in, outs, ...)                                                       \
    _Static_assert((min_in) <= (max_in) && (max_in) <= D0_MAX_NODE_INPUTS && (outs) <= D0_MAX_NODE_OUTPUTS,  \
                   "arity of " text);
#define ATTR(...)
#include "day0/ops.def"
#undef OP
#undef ATTR

const struct op_info *op_find(uint32_t id)
{
    for (size_t i = 0; i < ARRAY_LEN(op_table); i++)
        if (op_table[i].id == id)
            return &op_table[i];
    return NULL;
}

const struct op_info *op_find_name(const char *name)
{
    if (name == NULL)
        return NULL;
    for (size_t i = 0; i < ARRAY_LEN(op_table); i++)
        if (strcmp(op_table[i].name, name) == 0)
            return &op_table[i];
    return NULL;
}

size_t op_all(const struct op_info **out)
{
    *out = op_table;
    return ARRAY_LEN(op_table);
}

static const struct attr_info *attr_info_of(uint32_t key)
{
    for (size_t i = 0; i < ARRAY_LEN(attr_table); i++)
        if (attr_table[i].key == key)
            return &attr_table[i];
    return NULL;
}

uint32_t attr_find(const char *name)
{
    if (name == NULL)
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(attr_table); i++)
        if (strcmp(attr_table[i].name, name) == 0)
            return attr_table[i].key;
    return 0;
}

const char *attr_name(uint32_t key)
{
    const struct attr_info *a = attr_info_of(key);
    return a ? a->name : "?";
}

const char *attr_meaning(uint32_t key)
{
    const struct attr_info *a = attr_info_of(key);
    return a ? a->meaning : "?";
}

uint32_t attr_all(size_t index)
{
    return index < ARRAY_LEN(attr_table) ? attr_table[index].key : 0;
}

bool attr_is_float(uint32_t key)
{
    const struct attr_info *a = attr_info_of(key);
    return a && a->is_float;
}

enum attr_use op_attr_use(const struct op_info *op, uint32_t key)
{
    const char *name = attr_name(key);
    size_t n = strlen(name);
    for (const char *p = op->attributes; *p;) {
        bool optional = *p == '?';
        if (optional)
            p++;
        size_t len = strcspn(p, ",");
        if (len == n && memcmp(p, name, n) == 0)
            return optional ? ATTR_OPTIONAL : ATTR_REQUIRED;
        p += len;
        if (*p == ',')
            p++;
    }
    return ATTR_NOT_USED;
}

static const struct d0_attr *node_attr(const struct d0_node *n, uint32_t key)
{
    for (uint32_t i = 0; i < n->n_attrs && i < D0_MAX_NODE_ATTRS; i++)
        if (n->attrs[i].key == key)
            return &n->attrs[i];
    return NULL;
}

int64_t node_attr_i(const struct d0_node *n, uint32_t key, int64_t absent)
{
    const struct d0_attr *a = node_attr(n, key);
    return a && !a->is_float ? a->v.i : absent;
}

double node_attr_f(const struct d0_node *n, uint32_t key, double absent)
{
    const struct d0_attr *a = node_attr(n, key);
    return a && a->is_float ? a->v.f : absent;
}

/* In the place of one with the same key, or behind the last; false: there is no room. */
static bool set_attr(struct d0_node *n, struct d0_attr attr)
{
    struct d0_attr *a = (struct d0_attr *)node_attr(n, attr.key);
    if (a == NULL) {
        if (n->n_attrs >= D0_MAX_NODE_ATTRS)
            return false;
        a = &n->attrs[n->n_attrs++];
    }
    *a = attr;
    return true;
}

bool node_set_attr_i(struct d0_node *n, uint32_t key, int64_t value)
{
    return set_attr(n, (struct d0_attr){.key = key, .is_float = 0, .v.i = value});
}

bool node_set_attr_f(struct d0_node *n, uint32_t key, double value)
{
    return set_attr(n, (struct d0_attr){.key = key, .is_float = 1, .v.f = value});
}

const char *partition_name(enum partition p)
{
    switch (p) {
    case PART_REPLICATED:
        return "rep";
    case PART_COLUMN:
        return "col";
    case PART_ROW:
        return "row";
    case PART_HEADS:
        return "heads";
    case PART_VOCAB:
        return "vocab";
    case PART_EXPERT:
        return "expert";
    }
    return "?";
}
