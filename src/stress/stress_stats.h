/* SPDX-License-Identifier: Apache-2.0
 *
 * Times of one request and pools of samples, free of any network: what the definitions say, as code.
 */
#ifndef STRESS_STRESS_STATS_H
#define STRESS_STRESS_STATS_H

#include "stress/stress.h"

/* A pool of milliseconds. Up to STRESS_POOL_LIMIT samples are all kept; beyond that a uniform sample of them
 * (reservoir, seeded), while n, mean and max stay exact. */
#define STRESS_POOL_LIMIT 1000000u
struct stress_pool {
    double *values;
    size_t n, capacity; /* kept */
    size_t limit;       /* 0: STRESS_POOL_LIMIT */
    uint64_t seen;
    double sum, max;
    bool failed; /* out of memory: samples were lost */
};
void stress_pool_add(struct stress_pool *p, double ms);
void stress_pool_release(struct stress_pool *p);
void stress_pool_quantiles(struct stress_pool *p, struct quantiles *out); /* sorts the pool */
/* At most cap samples, evenly spread over the sorted pool; malloc'ed. */
double *stress_pool_samples(struct stress_pool *p, size_t cap, size_t *n);

/* One request from due to end; clock_ns() times. Reused for the next request after stress_times_begin. */
struct stress_times {
    uint64_t due, first, last, end;
    uint64_t n_chunks; /* with text */
    double *gaps;      /* milliseconds between chunks with text */
    size_t n_gaps, gaps_capacity;
    bool has_usage, failed_memory;
    uint64_t usage_prompt, usage_output;
};
void stress_times_begin(struct stress_times *t, uint64_t due);
void stress_times_chunk(struct stress_times *t, uint64_t now); /* a chunk with text arrived */
void stress_times_release(struct stress_times *t);
uint64_t stress_times_tokens(const struct stress_times *t); /* of usage, else counted chunks */

struct stress_pools {
    struct stress_pool ttft, tpot, itl, e2e;
};
/* Adds a successful request that ended at t->end. */
void stress_pools_add(struct stress_pools *p, const struct stress_times *t);
void stress_pools_release(struct stress_pools *p);

/* Arrival of request i of an open loop in nanoseconds after the start, given the arrival of i - 1: seeded
 * exponential gaps. */
uint64_t stress_next_arrival(uint64_t previous, double rate, uint64_t seed, uint64_t i);

#endif
