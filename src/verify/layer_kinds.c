/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the question which layers are alike: same operators, attributes, types and sizes, whatever the weights
 * hold.
 */
#include "verify/layer_kinds.h"

#include "base/hash.h"

static uint64_t kind_of(const struct graph *g, int32_t layer)
{
    uint64_t h = 1;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        if (n->layer != layer)
            continue;
        h = hash64(&n->op, sizeof n->op, h);
        for (uint32_t k = 0; k < n->n_attrs; k++) {
            h = hash64(&n->attrs[k].key, sizeof n->attrs[k].key, h);
            h = hash64(&n->attrs[k].v, sizeof n->attrs[k].v, h);
        }
        for (uint32_t k = 0; k < n->n_inputs; k++) {
            if (n->inputs[k] == D0_NO_VALUE)
                continue;
            const struct d0_value *v = &g->values[n->inputs[k]];
            h = hash64(&v->dtype, sizeof v->dtype, h);
            h = hash64(v->dims, v->n_dims * sizeof v->dims[0], h);
        }
    }
    return h;
}

int32_t layer_last(const struct graph *g)
{
    int32_t last = -1;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        last = g->nodes[i].layer > last ? g->nodes[i].layer : last;
    return last;
}

size_t layer_kinds(const struct graph *g, struct layer_kind *out, size_t cap)
{
    int32_t last = layer_last(g);
    size_t n = 0;
    for (int32_t layer = 0; layer <= last; layer++) {
        uint64_t h = kind_of(g, layer);
        size_t k = 0;
        while (k < n && out[k].hash != h)
            k++;
        if (k < n)
            out[k].count++;
        else if (n < cap)
            out[n++] = (struct layer_kind){h, layer, 1};
    }
    return n;
}
