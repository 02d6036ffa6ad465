/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: dlopen for plugins. Refuses: a table of another ABI version and a shorter table; symbols of one
 * plugin are not seen by another.
 */
#include "base/plugin.h"

#include <dlfcn.h>
#include <string.h>

#include "base/file.h"

static int check_table(const char *path, const struct plugin_want *want, const struct plugin_table *t,
                       struct err *e)
{
    if (!t)
        return err_set(e, ERR_UNSUPPORTED, "%s: the plugin refuses ABI version %u", path, want->abi_version);
    if (t->abi_version != want->abi_version)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s ABI version %u, this program has %u", path, want->what,
                       t->abi_version, want->abi_version);
    if (t->size < want->table_bytes)
        return err_set(e, ERR_UNSUPPORTED, "%s: its table has %u bytes, version %u needs %zu", path, t->size,
                       want->abi_version, want->table_bytes);
    return ERR_OK;
}

int plugin_load(const char *path, const struct plugin_want *want, void **handle, const void **table,
                struct err *e)
{
    struct file_info info;
    int rc = file_stat(path, &info, e);
    if (rc != ERR_OK)
        return rc;
    if (!info.is_file)
        return err_set(e, ERR_MISSING, "%s: no such file", path);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        const char *why = dlerror();
        return err_set(e, ERR_FORMAT, "cannot load the %s: %s", want->what, why ? why : path);
    }
    /* POSIX guarantees the round trip of a function pointer through void *, ISO C does not */
    void *symbol = dlsym(object, want->symbol);
    const void *(*entry)(uint32_t);
    memcpy(&entry, &symbol, sizeof(entry));
    if (!symbol)
        rc = err_set(e, ERR_FORMAT, "%s: exports no %s, so it is no %s", path, want->symbol, want->what);
    const void *got = symbol ? entry(want->abi_version) : NULL;
    if (rc == ERR_OK)
        rc = check_table(path, want, got, e);
    if (rc != ERR_OK) {
        dlclose(object);
        return rc;
    }
    *handle = object;
    *table = got;
    return ERR_OK;
}

void plugin_unload(void *handle)
{
    if (handle)
        dlclose(handle);
}
