/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of struct host that come from outside libraries. Private to this room.
 */
#ifndef HOST_HOST_INTERNAL_H
#define HOST_HOST_INTERNAL_H

#include "host/host.h"

/* Counts, cache sizes and the text of the topology; leaves everything unknown if hwloc fails. */
void host_probe_topology(struct host *h);
/* 0 or ERR_NOMEM. */
int host_probe_libraries(struct host *h);

#endif
