/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: loading a communicator from a shared object, and the checks before the first call into it.
 * Refuses: a table of another ABI version, a shorter table, and a table with holes.
 */
#include <dlfcn.h>
#include <string.h>

#include "base/file.h"
#include "comm/comm_builtin.h"

static int check_table(const char *path, const struct d0_comm_api *api, struct err *e)
{
    if (!api)
        return err_set(e, ERR_UNSUPPORTED, "%s: the plugin refuses ABI version %u", path,
                       D0_COMM_ABI_VERSION);
    if (api->abi_version != D0_COMM_ABI_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "%s: communicator ABI version %u, this program has %u", path,
                       api->abi_version, D0_COMM_ABI_VERSION);
    if (api->size < sizeof(*api))
        return err_set(e, ERR_UNSUPPORTED, "%s: its table has %u bytes, version %u needs %zu", path,
                       api->size, D0_COMM_ABI_VERSION, sizeof(*api));
    if (!api->name || !api->open || !api->close || !api->info || !api->all_reduce_f32 || !api->all_gather ||
        !api->broadcast || !api->barrier)
        return err_set(e, ERR_FORMAT, "%s: its table lacks a function that is not optional", path);
    return ERR_OK;
}

int comm_plugin_load(const char *path, void **plugin, const struct d0_comm_api **api, struct err *e)
{
    struct file_info info;
    int rc = file_stat(path, &info, e);
    if (rc != ERR_OK)
        return rc;
    if (!info.is_file)
        return err_set(e, ERR_MISSING, "%s: no such file", path);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *why = dlerror();
        return err_set(e, ERR_FORMAT, "cannot load the communicator: %s", why ? why : path);
    }
    /* POSIX guarantees the round trip of a function pointer through void *, ISO C does not */
    void *symbol = dlsym(handle, D0_COMM_PLUGIN_SYMBOL);
    d0_comm_plugin_fn entry;
    memcpy(&entry, &symbol, sizeof(entry));
    if (!symbol)
        rc = err_set(e, ERR_FORMAT, "%s: exports no %s, so it is no communicator", path,
                     D0_COMM_PLUGIN_SYMBOL);
    const struct d0_comm_api *table = symbol ? entry(D0_COMM_ABI_VERSION) : NULL;
    if (rc == ERR_OK)
        rc = check_table(path, table, e);
    if (rc != ERR_OK) {
        dlclose(handle);
        return rc;
    }
    *plugin = handle;
    *api = table;
    return ERR_OK;
}

void comm_plugin_unload(void *plugin)
{
    if (plugin)
        dlclose(plugin);
}
