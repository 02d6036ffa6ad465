/* SPDX-License-Identifier: Apache-2.0
 *
 * A device plugin of another ABI version: the loader must not call anything of it but the entry point.
 */
#include "day0/device.h"

__attribute__((visibility("default"))) const struct d0_device_api *
d0_device_plugin(uint32_t host_abi_version);

const struct d0_device_api *d0_device_plugin(uint32_t host_abi_version)
{
    static const struct d0_device_api api = {
        .size = sizeof api, .abi_version = D0_DEVICE_ABI_VERSION + 1, .name = "old"};
    (void)host_abi_version;
    return &api;
}
