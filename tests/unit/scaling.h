/* SPDX-License-Identifier: Apache-2.0
 *
 * How work grows with its input: the least time of several rounds, so that tests can state ratios of one run
 * instead of seconds, which depend on the machine and on sanitizers.
 */
#ifndef TESTS_UNIT_SCALING_H
#define TESTS_UNIT_SCALING_H

#include "base/thread.h"

/* Least of three runs of work(context, n), in nanoseconds; at least 1. */
static inline double least_ns(void (*work)(void *context, unsigned n), void *context, unsigned n)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        uint64_t begin = clock_ns();
        work(context, n);
        uint64_t took = clock_ns() - begin;
        least = took < least ? took : least;
    }
    return least ? (double)least : 1;
}

#endif
