/* SPDX-License-Identifier: Apache-2.0
 *
 * A communicator of one rank that is wrong on purpose: all_reduce changes the middle element by one unit in
 * the last place. Argument "broadcast" corrupts a byte of broadcast instead, "timeout" lets every barrier
 * miss its deadline.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "day0/comm.h"

struct d0_comm {
    char fault[16];
};

static int bad_open(const struct d0_comm_options *o, struct d0_comm **out, struct d0_status *st)
{
    (void)st;
    struct d0_comm *c = calloc(1, sizeof *c);
    if (!c)
        return D0_E_NOMEM;
    snprintf(c->fault, sizeof c->fault, "%s", o->arguments ? o->arguments : "all_reduce");
    *out = c;
    return D0_OK;
}

static void bad_close(struct d0_comm *c)
{
    free(c);
}

static int bad_info(struct d0_comm *c, struct d0_comm_info *out)
{
    (void)c;
    *out = (struct d0_comm_info){.size = sizeof *out, .n_ranks = 1, .order = D0_COMM_FIXED_TREE};
    snprintf(out->name, sizeof out->name, "bad");
    snprintf(out->description, sizeof out->description, "wrong on purpose");
    return D0_OK;
}

static int bad_all_reduce(struct d0_comm *c, float *data, uint64_t n, uint64_t timeout_ns,
                          struct d0_status *st)
{
    (void)timeout_ns, (void)st;
    if (n && !strcmp(c->fault, "all_reduce")) {
        uint32_t bits;
        memcpy(&bits, &data[n / 2], sizeof bits);
        bits ^= 1;
        memcpy(&data[n / 2], &bits, sizeof bits);
    }
    return D0_OK;
}

static int bad_all_gather(struct d0_comm *c, const void *in, void *out, uint64_t bytes, uint64_t timeout_ns,
                          struct d0_status *st)
{
    (void)c, (void)timeout_ns, (void)st;
    memmove(out, in, bytes);
    return D0_OK;
}

static int bad_broadcast(struct d0_comm *c, void *data, uint64_t bytes, uint32_t root, uint64_t timeout_ns,
                         struct d0_status *st)
{
    (void)root, (void)timeout_ns, (void)st;
    if (bytes && !strcmp(c->fault, "broadcast"))
        ((unsigned char *)data)[bytes - 1] ^= 0x40;
    return D0_OK;
}

static int bad_barrier(struct d0_comm *c, uint64_t timeout_ns, struct d0_status *st)
{
    (void)timeout_ns;
    if (strcmp(c->fault, "timeout"))
        return D0_OK;
    if (st)
        snprintf(st->message, sizeof st->message, "bad: rank 0 was last seen in barrier");
    return D0_E_TIMEOUT;
}

__attribute__((visibility("default"))) const struct d0_comm_api *d0_comm_plugin(uint32_t host_abi_version);

const struct d0_comm_api *d0_comm_plugin(uint32_t host_abi_version)
{
    static const struct d0_comm_api api = {
        .size = sizeof api,
        .abi_version = D0_COMM_ABI_VERSION,
        .name = "bad",
        .open = bad_open,
        .close = bad_close,
        .info = bad_info,
        .all_reduce_f32 = bad_all_reduce,
        .all_gather = bad_all_gather,
        .broadcast = bad_broadcast,
        .barrier = bad_barrier,
    };
    return host_abi_version == D0_COMM_ABI_VERSION ? &api : NULL;
}
