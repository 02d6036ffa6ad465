/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the list of communicators and the translation of d0_status into struct err.
 * Refuses: policy; it adds nothing to what the communicator said but its name.
 */
#include "comm/comm.h"

#include <string.h>

#include "base/plugin.h"
#include "comm/comm_builtin.h"

#define STATUS_INIT                                                                                          \
    {                                                                                                        \
        .size = sizeof(struct d0_status)                                                                     \
    }

static int code_of(int d0)
{
    switch (d0) {
    case D0_E_NOMEM:
        return ERR_NOMEM;
    case D0_E_UNSUPPORTED:
        return ERR_UNSUPPORTED;
    case D0_E_INVALID:
        return ERR_INVALID;
    case D0_E_TIMEOUT:
        return ERR_TIMEOUT;
    default:
        return ERR_COMM;
    }
}

static int translate(const struct comm *c, int rc, struct d0_status *st, const char *doing, struct err *e)
{
    if (rc == D0_OK)
        return ERR_OK;
    st->message[sizeof(st->message) - 1] = '\0';
    if (st->message[0])
        return err_set(e, code_of(rc), "%s: %s", doing, st->message);
    return err_set(e, code_of(rc), "communicator %s: %s failed with code %d", c->api->name, doing, rc);
}

int comm_open(struct comm *out, const char *name, uint32_t rank, uint32_t n_ranks, const char *arguments,
              struct err *e)
{
    struct comm c = {0};
    int rc = ERR_OK;
    if (!name || !strcmp(name, "self")) {
        c.api = comm_self_api();
    } else if (strchr(name, '/')) {
        rc = comm_plugin_load(name, &c.plugin, &c.api, e);
    } else {
        rc = err_set(e, ERR_INVALID, "unknown communicator %s", name);
        err_hint(e, "known is self; a plugin is named by its path, as in ./libcomm.so");
    }
    if (rc != ERR_OK)
        return rc;
    struct d0_comm_options o = {.size = sizeof(o), .rank = rank, .n_ranks = n_ranks, .arguments = arguments};
    struct d0_status st = STATUS_INIT;
    rc = translate(&c, c.api->open(&o, &c.handle, &st), &st, "open", e);
    if (rc != ERR_OK) {
        plugin_unload(c.plugin);
        return rc;
    }
    *out = c;
    return ERR_OK;
}

void comm_close(struct comm *c)
{
    if (!c || !c->api)
        return;
    c->api->close(c->handle);
    plugin_unload(c->plugin);
    memset(c, 0, sizeof(*c));
}

int comm_info(struct comm *c, struct d0_comm_info *out, struct err *e)
{
    memset(out, 0, sizeof(*out));
    out->size = sizeof(*out);
    int rc = c->api->info(c->handle, out);
    if (rc != D0_OK)
        return err_set(e, code_of(rc), "communicator %s does not describe itself (code %d)", c->api->name,
                       rc);
    out->name[sizeof(out->name) - 1] = '\0';
    out->description[sizeof(out->description) - 1] = '\0';
    return ERR_OK;
}

int comm_all_reduce_f32(struct comm *c, float *data, uint64_t n, uint64_t timeout_ns, struct err *e)
{
    struct d0_status st = STATUS_INIT;
    return translate(c, c->api->all_reduce_f32(c->handle, data, n, timeout_ns, &st), &st, "all_reduce", e);
}

int comm_all_gather(struct comm *c, const void *in, void *out, uint64_t bytes, uint64_t timeout_ns,
                    struct err *e)
{
    struct d0_status st = STATUS_INIT;
    return translate(c, c->api->all_gather(c->handle, in, out, bytes, timeout_ns, &st), &st, "all_gather", e);
}

int comm_broadcast(struct comm *c, void *data, uint64_t bytes, uint32_t root, uint64_t timeout_ns,
                   struct err *e)
{
    struct d0_status st = STATUS_INIT;
    return translate(c, c->api->broadcast(c->handle, data, bytes, root, timeout_ns, &st), &st, "broadcast",
                     e);
}

int comm_barrier(struct comm *c, uint64_t timeout_ns, struct err *e)
{
    struct d0_status st = STATUS_INIT;
    return translate(c, c->api->barrier(c->handle, timeout_ns, &st), &st, "barrier", e);
}
