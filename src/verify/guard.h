/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory that ends at inaccessible pages, and a trap that records a touch of them and lets the program
 * go on. Private to this room.
 */
#ifndef VERIFY_GUARD_H
#define VERIFY_GUARD_H

#include <signal.h>

#include "base/err.h"
#include "base/mem.h"

struct guard {
    void *base;
    size_t total;
    void *data; /* aligned to 64 bytes; less than 64 bytes, all ones, lie between its end and the guard */
};

int guard_alloc(struct guard *g, uint64_t bytes, struct err *e);
void guard_free(struct guard *g); /* zeroed is fine */
bool guard_touched(const struct guard *g);

/* While a trap is set, touching a guard of this process makes it accessible and marks it; other faults end
 * the program as before. */
struct guard_trap {
    struct sigaction before_segv, before_bus;
    bool set;
};
void guard_trap_set(struct guard_trap *t);
void guard_trap_clear(struct guard_trap *t);

#endif
