/* SPDX-License-Identifier: Apache-2.0
 *
 * The built-in CPU device on which no run of more than ROWS rows succeeds, and all others do: with steps of
 * fewer tokens a large picture fails in the tower while everything else goes on.
 */
#include <stdio.h>

#include "day0/device.h"
#include "dev/builtin.h"

#define ROWS 200

static int run_few(struct d0_queue *queue, struct d0_exec *exec, const struct d0_step_dims *dims,
                   struct d0_status *status)
{
    if (dims->dims[0] <= ROWS)
        return cpu_device_api()->run(queue, exec, dims, status);
    if (status)
        snprintf(status->message, sizeof status->message, "%lld rows are too many for this device",
                 (long long)dims->dims[0]);
    return D0_E_DEVICE;
}

__attribute__((visibility("default"))) const struct d0_device_api *
d0_device_plugin(uint32_t host_abi_version);

const struct d0_device_api *d0_device_plugin(uint32_t host_abi_version)
{
    static struct d0_device_api api;
    api = *cpu_device_api();
    api.name = "small-tower";
    api.run = run_few;
    return host_abi_version == D0_DEVICE_ABI_VERSION ? &api : NULL;
}
