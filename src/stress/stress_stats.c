/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: statistics of a load run.
 * Refuses: growing without bound, and averages of averages: every figure comes from pooled samples.
 */
#include "stress/stress_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define MAX_GAPS                                                                                             \
    (1u << 20) /* of one request; a longer answer is still timed, its further gaps are not pooled */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double sorted_quantile(const double *v, size_t n, double q)
{
    if (n == 0)
        return 0;
    /* q * n is rounded: 0.07 * 100 is a little above 7, and must not become rank 8 */
    double rank = ceil(q * (double)n - 1e-9);
    if (!(rank >= 1))
        return v[0];
    return rank >= (double)n ? v[n - 1] : v[(size_t)rank - 1];
}

double stress_quantile(double *values, size_t n, double q)
{
    if (n == 0)
        return 0;
    qsort(values, n, sizeof(*values), by_value);
    return sorted_quantile(values, n, q);
}

void stress_pool_add(struct stress_pool *p, double ms)
{
    size_t limit = p->limit ? p->limit : STRESS_POOL_LIMIT;
    if (!isfinite(ms))
        return;
    p->sum += ms;
    p->max = p->seen == 0 ? ms : fmax(p->max, ms);
    p->seen++;
    if (p->n < limit) {
        if (vec_reserve((void **)&p->values, &p->capacity, p->n + 1, sizeof(*p->values)))
            p->failed = true;
        else
            p->values[p->n++] = ms;
        return;
    }
    uint64_t at = rng_u64(0x7374726573730000u, p->seen) % p->seen;
    if (at < p->n)
        p->values[at] = ms;
}

void stress_pool_release(struct stress_pool *p)
{
    free(p->values);
    memset(p, 0, sizeof(*p));
}

void stress_pool_quantiles(struct stress_pool *p, struct quantiles *out)
{
    memset(out, 0, sizeof(*out));
    out->n = p->seen;
    if (p->n == 0)
        return;
    qsort(p->values, p->n, sizeof(*p->values), by_value);
    out->mean = p->sum / (double)p->seen;
    out->p50 = sorted_quantile(p->values, p->n, 0.5);
    out->p90 = sorted_quantile(p->values, p->n, 0.9);
    out->p99 = sorted_quantile(p->values, p->n, 0.99);
    out->max = p->max;
}

double *stress_pool_samples(struct stress_pool *p, size_t cap, size_t *n)
{
    size_t take = p->n < cap ? p->n : cap;
    double *out = take ? malloc(take * sizeof(*out)) : NULL;
    *n = 0;
    if (!out)
        return NULL;
    qsort(p->values, p->n, sizeof(*p->values), by_value);
    for (size_t i = 0; i < take; i++)
        out[i] =
            p->values[take > 1 ? (size_t)((double)i * (double)(p->n - 1) / (double)(take - 1) + 0.5) : 0];
    *n = take;
    return out;
}

void stress_times_begin(struct stress_times *t, uint64_t due)
{
    double *gaps = t->gaps;
    size_t capacity = t->gaps_capacity;
    *t = (struct stress_times){.due = due, .gaps = gaps, .gaps_capacity = capacity};
}

void stress_times_chunk(struct stress_times *t, uint64_t now)
{
    if (t->n_chunks == 0) {
        t->first = now;
    } else if (t->n_gaps < MAX_GAPS) {
        if (vec_reserve((void **)&t->gaps, &t->gaps_capacity, t->n_gaps + 1, sizeof(*t->gaps)))
            t->failed_memory = true;
        else
            t->gaps[t->n_gaps++] = now >= t->last ? (double)(now - t->last) / 1e6 : 0;
    }
    t->last = now;
    t->n_chunks++;
}

void stress_times_release(struct stress_times *t)
{
    free(t->gaps);
    memset(t, 0, sizeof(*t));
}

uint64_t stress_times_tokens(const struct stress_times *t)
{
    return t->has_usage ? t->usage_output : t->n_chunks;
}

static double ms_between(uint64_t from, uint64_t to)
{
    return to >= from ? (double)(to - from) / 1e6 : 0;
}

void stress_pools_add(struct stress_pools *p, const struct stress_times *t)
{
    uint64_t tokens = stress_times_tokens(t);
    stress_pool_add(&p->e2e, ms_between(t->due, t->end));
    if (t->n_chunks == 0) /* an answer without text has no first token */
        return;
    stress_pool_add(&p->ttft, ms_between(t->due, t->first));
    if (tokens > 1)
        stress_pool_add(&p->tpot, ms_between(t->first, t->last) / (double)(tokens - 1));
    for (size_t i = 0; i < t->n_gaps; i++)
        stress_pool_add(&p->itl, t->gaps[i]);
}

void stress_pools_release(struct stress_pools *p)
{
    stress_pool_release(&p->ttft);
    stress_pool_release(&p->tpot);
    stress_pool_release(&p->itl);
    stress_pool_release(&p->e2e);
}

uint64_t stress_next_arrival(uint64_t previous, double rate, uint64_t seed, uint64_t i)
{
    double gap = -log(1.0 - rng_f64(seed, i)) / rate * 1e9;
    return gap < 1e18 && previous < UINT64_MAX / 4 ? previous + (uint64_t)gap : previous + (uint64_t)1e18;
}
