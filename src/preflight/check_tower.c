/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: whether a model's tower can run: weights as they are stored, nodes on a device. Refuses: the inputs
 * of a tower, which are an engine's to judge (picture_shape).
 */
#include "preflight/preflight.h"

#define SOME_PATCHES 1024 /* a device judges nodes, not sizes */

int preflight_tower(const struct spec *s, struct dev *dev, struct err *e)
{
    static const int64_t dims[D0_N_DIMS] = {SOME_PATCHES, 1, SOME_PATCHES, 1};
    struct graph *g = NULL;
    struct d0_part part;
    char reason[256];
    int rc;
    if (!s->vision) {
        rc = err_set(e, ERR_UNSUPPORTED, "%s takes no pictures here", s->architecture);
        err_hint(e, "it has no tower, or one that its architecture file only describes");
        return rc;
    }
    for (uint32_t i = 0; i < s->vision->n_values; i++)
        if (s->vision->values[i].kind == D0_VALUE_WEIGHT && !spec_value_computed(s->vision, i))
            return err_set(e, ERR_UNSUPPORTED, "no kernel of this build reads the tower's %s as it is stored",
                           s->vision->info[i].name);
    if (!dev)
        return ERR_OK;
    rc = graph_copy(s->vision, &g, e);
    if (rc == ERR_OK)
        rc = graph_plan_memory(g, dims, false, e);
    if (rc == ERR_OK)
        graph_part(g, &part);
    for (uint32_t i = 0; rc == ERR_OK && i < g->n_nodes; i++)
        if (!dev_supports(dev, &part, i, reason, sizeof reason))
            rc = err_set(e, ERR_UNSUPPORTED, "the device does not run node %u of the tower: %s", i, reason);
    graph_free(g);
    return rc;
}
