/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators behind include/day0/comm.h: `self` (one rank) and plugins by path. Every call has a deadline.
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include "base/err.h"
#include "day0/comm.h"

struct comm {
    const struct d0_comm_api *api;
    struct d0_comm *handle;
    void *plugin;
};

/* name: "self" or the path of a plugin (contains '/'). */
int comm_open(struct comm *out, const char *name, uint32_t rank, uint32_t n_ranks, const char *arguments,
              struct err *e);
void comm_close(struct comm *c);
int comm_info(struct comm *c, struct d0_comm_info *out, struct err *e);
int comm_all_reduce_f32(struct comm *c, float *data, uint64_t n, uint64_t timeout_ns, struct err *e);
int comm_all_gather(struct comm *c, const void *in, void *out, uint64_t bytes, uint64_t timeout_ns,
                    struct err *e);
int comm_broadcast(struct comm *c, void *data, uint64_t bytes, uint32_t root, uint64_t timeout_ns,
                   struct err *e);
int comm_barrier(struct comm *c, uint64_t timeout_ns, struct err *e);
/* Known patterns through every collective, compared exactly. 0, or ERR_COMM saying which collective gave
 * what. *what describes the evidence. */
int comm_self_test(struct comm *c, uint64_t bytes, char *what, size_t what_bytes, struct err *e);

#endif
