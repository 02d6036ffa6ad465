/* SPDX-License-Identifier: Apache-2.0
 *
 * Timing of one operator, for the conformance run. Private to this room.
 */
#ifndef VERIFY_OPS_H
#define VERIFY_OPS_H

#include "verify/opcase.h"
#include "verify/verify.h"

/* Fills gbps, gflops and ref_ratio (time of the reference / time of the device) at the shape of
 * opshape_bench(). */
int ops_bench(struct dev *d, struct dev *ref, uint32_t op, const struct optype *type,
              struct verify_op_result *r, struct err *e);

#endif
