/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the communicator of a layout with one rank: every collective is the identity.
 * Refuses: more than one rank, and sizes that a real communicator would refuse, so that a mistake shows up
 * early.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_builtin.h"

struct d0_comm {
    char nothing;
};

static int refuse(struct d0_status *st, const char *what)
{
    if (st && st->size >= sizeof(*st)) {
        st->code = D0_E_INVALID;
        snprintf(st->message, sizeof(st->message), "self: %s", what);
    }
    return D0_E_INVALID;
}

static int self_open(const struct d0_comm_options *o, struct d0_comm **out, struct d0_status *st)
{
    if (!o || o->size < sizeof(*o))
        return refuse(st, "the options are of another version");
    if (o->rank != 0 || o->n_ranks != 1)
        return refuse(st, "holds exactly one rank");
    *out = calloc(1, sizeof(**out));
    if (!*out) {
        refuse(st, "out of memory");
        return D0_E_NOMEM;
    }
    return D0_OK;
}

static void self_close(struct d0_comm *c)
{
    free(c);
}

static int self_info(struct d0_comm *c, struct d0_comm_info *out)
{
    (void)c;
    if (out->size < sizeof(*out))
        return D0_E_INVALID;
    *out = (struct d0_comm_info){.size = sizeof(*out), .n_ranks = 1, .order = D0_COMM_FIXED_TREE};
    snprintf(out->name, sizeof(out->name), "self");
    snprintf(out->description, sizeof(out->description), "one rank, no communication");
    return D0_OK;
}

static int self_all_reduce(struct d0_comm *c, float *data, uint64_t n, uint64_t timeout_ns,
                           struct d0_status *st)
{
    (void)c, (void)timeout_ns;
    return n && !data ? refuse(st, "no data to reduce") : D0_OK;
}

static int self_all_gather(struct d0_comm *c, const void *in, void *out, uint64_t bytes, uint64_t timeout_ns,
                           struct d0_status *st)
{
    (void)c, (void)timeout_ns;
    if (bytes && (!in || !out))
        return refuse(st, "no data to gather");
    if (bytes && in != out)
        memmove(out, in, bytes);
    return D0_OK;
}

static int self_broadcast(struct d0_comm *c, void *data, uint64_t bytes, uint32_t root, uint64_t timeout_ns,
                          struct d0_status *st)
{
    (void)c, (void)timeout_ns;
    if (bytes && !data)
        return refuse(st, "no data to broadcast");
    return root ? refuse(st, "broadcast from a rank that does not exist") : D0_OK;
}

static int self_barrier(struct d0_comm *c, uint64_t timeout_ns, struct d0_status *st)
{
    (void)c, (void)timeout_ns, (void)st;
    return D0_OK;
}

const struct d0_comm_api *comm_self_api(void)
{
    static const struct d0_comm_api api = {
        .size = sizeof(api),
        .abi_version = D0_COMM_ABI_VERSION,
        .name = "self",
        .open = self_open,
        .close = self_close,
        .info = self_info,
        .all_reduce_f32 = self_all_reduce,
        .all_gather = self_all_gather,
        .broadcast = self_broadcast,
        .barrier = self_barrier,
    };
    return &api;
}
