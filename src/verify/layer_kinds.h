/* SPDX-License-Identifier: Apache-2.0
 *
 * Which layers of a graph are alike. Private to this room.
 */
#ifndef VERIFY_LAYER_KINDS_H
#define VERIFY_LAYER_KINDS_H

#include "graph/graph.h"

struct layer_kind {
    uint64_t hash;
    int32_t layer; /* the first of its kind */
    uint32_t count;
};

/* Kinds of layers in the order of their first ones, at most cap; how many. */
size_t layer_kinds(const struct graph *g, struct layer_kind *out, size_t cap);
int32_t layer_last(const struct graph *g); /* -1: there is none */

#endif
