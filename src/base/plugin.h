/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared objects that bring an ABI table (devices, communicators): loading, and the checks that every such
 * table needs before the first call into it. Which functions of the table are not optional is its room's
 * business.
 */
#ifndef BASE_PLUGIN_H
#define BASE_PLUGIN_H

#include "base/err.h"

#include <stdint.h>

/* Every ABI table starts so. */
struct plugin_table {
    uint32_t size, abi_version;
};

struct plugin_want {
    const char *what;   /* "device", for messages */
    const char *symbol; /* exported function: const table *(*)(uint32_t host_abi_version) */
    uint32_t abi_version;
    size_t table_bytes;
};

/* path must be a regular file. ERR_MISSING, ERR_FORMAT (not loadable, no such symbol), ERR_UNSUPPORTED
 * (refused, other version, shorter table). *table lives until plugin_unload(*handle). */
int plugin_load(const char *path, const struct plugin_want *want, void **handle, const void **table,
                struct err *e);
void plugin_unload(void *handle); /* NULL is fine */

#endif
