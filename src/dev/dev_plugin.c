/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: loading a vendor's device. Refuses: a table with holes.
 */
#include "base/plugin.h"
#include "dev/builtin.h"

int dev_plugin_load(const char *path, void **plugin, const struct d0_device_api **out, struct err *e)
{
    static const struct plugin_want want = {"device", D0_DEVICE_PLUGIN_SYMBOL, D0_DEVICE_ABI_VERSION,
                                            D0_DEVICE_API_BYTES_LEAST};
    const void *table = NULL;
    int rc = plugin_load(path, &want, plugin, &table, e);
    if (rc != ERR_OK)
        return rc;
    const struct d0_device_api *api = table;
    if (!api->name || !api->open || !api->close || !api->info || !api->buffer_create ||
        !api->buffer_destroy || !api->queue_create || !api->queue_destroy || !api->queue_wait ||
        !api->event_create || !api->event_destroy || !api->event_record || !api->event_wait ||
        !api->copy_in || !api->copy_out || !api->supports || !api->compile || !api->exec_destroy ||
        !api->bind || !api->run || !api->read_output) {
        plugin_unload(*plugin);
        *plugin = NULL;
        return err_set(e, ERR_FORMAT, "%s: its table lacks a function that is not optional", path);
    }
    *out = api;
    return ERR_OK;
}
