/* SPDX-License-Identifier: Apache-2.0
 *
 * The built-in CPU device without the one operator that only towers have: it runs every text, and says of a
 * tower that it does not, before and when it is given one.
 */
#include <stdio.h>

#include "day0/device.h"
#include "dev/builtin.h"

#define LACKS D0_OP_SEGMENT_ATTENTION

static int fewer_supports(struct d0_device *d, const struct d0_part *part, uint32_t node, char *reason,
                          size_t reason_bytes)
{
    if (part->nodes[node].op != LACKS)
        return cpu_device_api()->supports(d, part, node, reason, reason_bytes);
    snprintf(reason, reason_bytes, "segments are not on this device");
    return 0;
}

static int fewer_compile(struct d0_device *d, const struct d0_part *part, struct d0_exec **out,
                         struct d0_status *status)
{
    for (uint32_t i = 0; i < part->n_nodes; i++)
        if (part->nodes[i].op == LACKS) {
            if (status)
                snprintf(status->message, sizeof status->message, "node %u: segments are not on this device",
                         i);
            return D0_E_UNSUPPORTED;
        }
    return cpu_device_api()->compile(d, part, out, status);
}

__attribute__((visibility("default"))) const struct d0_device_api *
d0_device_plugin(uint32_t host_abi_version);

const struct d0_device_api *d0_device_plugin(uint32_t host_abi_version)
{
    static struct d0_device_api api;
    api = *cpu_device_api();
    api.name = "sightless";
    api.supports = fewer_supports;
    api.compile = fewer_compile;
    return host_abi_version == D0_DEVICE_ABI_VERSION ? &api : NULL;
}
