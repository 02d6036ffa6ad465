/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to dev: what the built-in devices ask of a part before they touch it, and small helpers over the
 * ABI's structs. Includes the ABI and nothing of the graph, like any vendor's device.
 */
#ifndef DEV_PART_CHECK_H
#define DEV_PART_CHECK_H

#include <stdbool.h>

#include "day0/device.h"

/* Fills *status (may be NULL) and returns code. */
int status_set(struct d0_status *status, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

int64_t part_dim(int64_t dim, const int64_t dims[D0_N_DIMS]); /* symbolic sizes replaced */
int64_t part_attr_i(const struct d0_node *n, uint32_t key, int64_t absent);
double part_attr_f(const struct d0_node *n, uint32_t key, double absent);

/* Ids, kinds, sizes, offsets and order of definition: after this every index of the part may be used. */
int part_check(const struct d0_part *p, struct d0_status *status);
/* The operator's own rules (shapes, types, attributes) for one node of a checked part; reason says what
 * breaks them. */
bool part_node_check(const struct d0_part *p, uint32_t node, char *reason, size_t reason_bytes);
int part_dims_check(const int64_t max_dims[D0_N_DIMS], const struct d0_step_dims *dims,
                    struct d0_status *status);

#endif
