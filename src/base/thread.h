/* SPDX-License-Identifier: Apache-2.0
 *
 * A fixed pool of worker threads for data-parallel loops, and monotonic time.
 * Which thread runs which item never changes a result: items write disjoint outputs.
 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include "base/err.h"
#include "base/mem.h"

struct pool;

int pool_open(struct pool **out, unsigned n_threads, struct err *e); /* >= 1; the caller is thread 0 */
void pool_close(struct pool *p);
unsigned pool_threads(const struct pool *p);

/* Calls fn(context, first, last, thread) over [0, n) cut into ranges whose length is a multiple of `grain`
 * (except the last); returns when all are done. Allocates nothing. Not reentrant: one caller at a time. */
typedef void (*pool_fn)(void *context, size_t first, size_t last, unsigned thread);
void pool_run(struct pool *p, size_t n, size_t grain, pool_fn fn, void *context);

uint64_t clock_ns(void);     /* monotonic */
int64_t clock_unix_ns(void); /* wall clock */
void clock_sleep_ns(uint64_t ns);

#endif
