/* SPDX-License-Identifier: Apache-2.0
 *
 * How work grows with its input: the least time of several rounds, so that tests can state ratios of one run
 * instead of seconds, which depend on the machine and on sanitizers.
 */
#ifndef TESTS_UNIT_SCALING_H
#define TESTS_UNIT_SCALING_H

#include <stdint.h>
#include <time.h>

/* Processor time of this thread: what others do on the machine does not count. */
static inline uint64_t own_ns(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Least of three runs of work(context, n), in nanoseconds; at least 1. */
static inline double least_ns(void (*work)(void *context, unsigned n), void *context, unsigned n)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        uint64_t begin = own_ns();
        work(context, n);
        uint64_t took = own_ns() - begin;
        least = took < least ? took : least;
    }
    return least ? (double)least : 1;
}

#endif
