/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to dev: the built-in devices and the plugin loader, for the registry.
 */
#ifndef DEV_BUILTIN_H
#define DEV_BUILTIN_H

#include "base/err.h"
#include "base/mem.h"
#include "day0/device.h"

const struct d0_device_api *cpu_device_api(void);
const struct d0_device_api *null_device_api(void);
/* The ABI has no place for our accounting: the registry hands it over after open. */
void cpu_device_account(struct d0_device *device, struct mem *mem);

/* Loads a shared object and checks the table that it gives. *plugin is for dlclose. */
int dev_plugin_load(const char *path, void **plugin, const struct d0_device_api **api, struct err *e);

#endif
