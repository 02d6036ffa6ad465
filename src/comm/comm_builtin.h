/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to comm: the communicator of one rank, and the plugin loader.
 */
#ifndef COMM_COMM_BUILTIN_H
#define COMM_COMM_BUILTIN_H

#include "base/err.h"
#include "day0/comm.h"

const struct d0_comm_api *comm_self_api(void);
int comm_plugin_load(const char *path, void **plugin, const struct d0_comm_api **api, struct err *e);

#endif
