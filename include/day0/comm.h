/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 communicator ABI: collectives between the ranks of one layout.
 *
 * A communicator states its reduction order: "fixed tree" (ranks combined by the fixed binary tree of
 * neighbouring pairs, the same bits at any message size) or "not exact". Every call has a deadline; a rank
 * that misses it is named in the status. Nothing here may hang, exit or abort.
 */
#ifndef DAY0_COMM_H
#define DAY0_COMM_H

#include "day0/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D0_COMM_ABI_VERSION 1u

enum d0_comm_order { D0_COMM_NOT_EXACT = 0, D0_COMM_FIXED_TREE = 1 };

struct d0_comm_options {
    uint32_t size;
    uint32_t rank, n_ranks;
    uint32_t reserved;
    const char *arguments; /* transport-specific; may be NULL */
};

struct d0_comm_info {
    uint32_t size;
    uint32_t rank, n_ranks;
    uint32_t order; /* enum d0_comm_order */
    char name[64];
    char description[192];
};

struct d0_comm;

struct d0_comm_api {
    uint32_t size;
    uint32_t abi_version;
    const char *name;
    int (*open)(const struct d0_comm_options *options, struct d0_comm **out, struct d0_status *status);
    void (*close)(struct d0_comm *comm);
    int (*info)(struct d0_comm *comm, struct d0_comm_info *out);
    /* Host-memory collectives (host-staged path, always present). float32, elementwise sum, in place. */
    int (*all_reduce_f32)(struct d0_comm *comm, float *data, uint64_t n, uint64_t timeout_ns,
                          struct d0_status *status);
    /* out holds n_ranks * bytes; rank r's contribution at r * bytes. */
    int (*all_gather)(struct d0_comm *comm, const void *in, void *out, uint64_t bytes, uint64_t timeout_ns,
                      struct d0_status *status);
    int (*broadcast)(struct d0_comm *comm, void *data, uint64_t bytes, uint32_t root, uint64_t timeout_ns,
                     struct d0_status *status);
    int (*barrier)(struct d0_comm *comm, uint64_t timeout_ns, struct d0_status *status);
};

#define D0_COMM_PLUGIN_SYMBOL "d0_comm_plugin"
typedef const struct d0_comm_api *(*d0_comm_plugin_fn)(uint32_t host_abi_version);

#ifdef __cplusplus
}
#endif
#endif
