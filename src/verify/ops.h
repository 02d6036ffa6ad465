/* SPDX-License-Identifier: Apache-2.0
 *
 * One operator: judging a case of it, and timing it. Private to this room.
 */
#ifndef VERIFY_OPS_H
#define VERIFY_OPS_H

#include "verify/opcase.h"
#include "verify/verify.h"

struct row_test {
    struct dev *d, *ref;
    const struct op_info *op;
    bool exact, guard;
    const char *values; /* what the inputs are, for messages */
    uint64_t seed;      /* of this row */
    unsigned shapes, runs;
    struct verify_op_result *r;
    struct opresult got, want, alone;
    struct opscale scale;
};

/* The case failed: message and shape go into t->r. */
__attribute__((format(printf, 3, 4))) void optest_failed(struct row_test *t, const struct opcase *c,
                                                         const char *fmt, ...);
/* Runs the case on both devices and judges it; t->got and t->want stay until optest_free, which is to be
 * called after errors, too. Error: the device's own, or ERR_NOMEM, ERR_LIMIT. */
int optest_room(struct row_test *t, const struct opcase *c, struct err *e); /* memory for results only */
int optest_execute(struct row_test *t, struct opsession *dut, struct opsession *ref, struct opcase *c,
                   uint32_t *touched, struct err *e);          /* runs only; touched as in opsession_run */
bool optest_judge(struct row_test *t, const struct opcase *c); /* of what was run; false: t->r says why */
int optest_run(struct row_test *t, struct opsession *dut, struct opsession *ref, struct opcase *c,
               struct err *e);
void optest_free(struct row_test *t);
/* A device that refuses or fails is a failed case; what we could not do ourselves is an error. */
int optest_device_failed(struct row_test *t, const struct opcase *c, int rc, struct err *e);

/* Fills gbps, gflops and ref_ratio (time of the reference / time of the device) at the shape of
 * opshape_bench(). */
int ops_bench(struct dev *d, struct dev *ref, uint32_t op, const struct optype *type,
              struct verify_op_result *r, struct err *e);

#endif
