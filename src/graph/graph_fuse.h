/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to src/graph: what the passes of fusions.def share. A pass looks at a working copy whose value ids
 * are those of the source, rewrites nodes in place, and says which it took away; the frame drops those and
 * the values that nobody makes any more.
 */
#ifndef GRAPH_GRAPH_FUSE_H
#define GRAPH_GRAPH_FUSE_H

#include "graph/graph_internal.h"

struct fuse {
    struct graph *g;
    bool keep_probes;
    uint8_t *gone;     /* [n_nodes]: taken into another node */
    uint32_t *by;      /* [n_nodes]: mask of the fusions that made or changed it */
    uint32_t *maker;   /* [n_values]: the node that makes it, or D0_NO_VALUE */
    uint32_t *readers; /* [n_values]: inputs of nodes that it is */
    uint32_t result;   /* of the graph */
    enum fusion which; /* whose turn it is */
    uint32_t nodes;    /* that it made or changed so far */
};

/* Nobody but one input of one node wants this value: it may fall away. */
bool fuse_private(const struct fuse *f, uint32_t value);
/* Node i now is `n`, made or changed by the fusion whose turn it is; the tables follow. */
void fuse_replace(struct fuse *f, uint32_t i, const struct d0_node *n);
/* Node i is taken into another one. */
void fuse_take(struct fuse *f, uint32_t i);
/* Copies an attribute where the node has it; false where there is no room. */
bool fuse_attr(struct d0_node *to, const struct d0_node *from, uint32_t key);

#define FUSION(ID, ...) void fuse_##ID(struct fuse *f);
#include "graph/fusions.def"
#undef FUSION

#endif
