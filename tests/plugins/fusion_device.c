/* SPDX-License-Identifier: Apache-2.0
 *
 * The built-in CPU device with one wrong kernel: its norm_residual takes another eps than the graph says. All
 * other operators, the ones that this one stands for among them, are right, but norm_rope_store, which it
 * does not run. For tests of the acceptance of fusions.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "day0/device.h"
#include "dev/builtin.h"

static int fewer_supports(struct d0_device *d, const struct d0_part *part, uint32_t node, char *reason,
                          size_t reason_bytes)
{
    if (part->nodes[node].op != D0_OP_NORM_ROPE_STORE)
        return cpu_device_api()->supports(d, part, node, reason, reason_bytes);
    snprintf(reason, reason_bytes, "not on this device");
    return 0;
}

static int wrong_compile(struct d0_device *d, const struct d0_part *part, struct d0_exec **out,
                         struct d0_status *st)
{
    const struct d0_device_api *cpu = cpu_device_api();
    struct d0_part wrong = *part;
    struct d0_node *nodes = calloc(part->n_nodes + 1u, sizeof *nodes);
    if (!nodes)
        return D0_E_NOMEM;
    memcpy(nodes, part->nodes, part->n_nodes * sizeof *nodes);
    for (uint32_t i = 0; i < part->n_nodes; i++)
        for (uint32_t k = 0; nodes[i].op == D0_OP_NORM_RESIDUAL && k < nodes[i].n_attrs; k++)
            if (nodes[i].attrs[k].key == D0_ATTR_EPS)
                nodes[i].attrs[k].v.f += 1e-3;
    wrong.nodes = nodes;
    int rc = cpu->compile(d, &wrong, out, st);
    free(nodes);
    return rc;
}

__attribute__((visibility("default"))) const struct d0_device_api *
d0_device_plugin(uint32_t host_abi_version);

const struct d0_device_api *d0_device_plugin(uint32_t host_abi_version)
{
    static struct d0_device_api api;
    api = *cpu_device_api();
    api.name = "wrong-fusion";
    api.supports = fewer_supports;
    api.compile = wrong_compile;
    return host_abi_version == D0_DEVICE_ABI_VERSION ? &api : NULL;
}
