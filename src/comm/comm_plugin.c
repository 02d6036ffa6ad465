/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: loading a communicator. Refuses: a table with holes.
 */
#include "base/plugin.h"
#include "comm/comm_builtin.h"

int comm_plugin_load(const char *path, void **plugin, const struct d0_comm_api **out, struct err *e)
{
    static const struct plugin_want want = {"communicator", D0_COMM_PLUGIN_SYMBOL, D0_COMM_ABI_VERSION,
                                            sizeof(struct d0_comm_api)};
    const void *table = NULL;
    int rc = plugin_load(path, &want, plugin, &table, e);
    if (rc != ERR_OK)
        return rc;
    const struct d0_comm_api *api = table;
    if (!api->name || !api->open || !api->close || !api->info || !api->all_reduce_f32 || !api->all_gather ||
        !api->broadcast || !api->barrier) {
        plugin_unload(*plugin);
        *plugin = NULL;
        return err_set(e, ERR_FORMAT, "%s: its table lacks a function that is not optional", path);
    }
    *out = api;
    return ERR_OK;
}
