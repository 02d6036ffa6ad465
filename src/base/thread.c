/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: a fixed pool of threads for data-parallel loops, and the clocks.
 * Refuses: queues, futures, work stealing: the cut of a loop depends on n, grain and the number of threads
 * only.
 *
 * A loop is announced by raising `generation`; workers look for that a short while without sleeping, since
 * the loops of one step follow each other within microseconds, and then sleep on a condition variable.
 */
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_THREADS 4096u
#define SPINS       2000u

struct worker {
    struct pool *pool;
    pthread_t thread;
    unsigned index;
};

struct pool {
    unsigned n_threads;
    unsigned n_started; /* workers alive, the caller not counted */
    pthread_mutex_t mutex;
    pthread_cond_t start, done;
    _Atomic uint64_t generation;
    _Atomic unsigned sleepers;
    _Atomic unsigned pending; /* workers not yet through with this loop */
    _Atomic bool caller_sleeps;
    bool stop; /* written before generation is raised, like the four below */
    size_t n, grain;
    pool_fn fn;
    void *context;
    struct worker workers[];
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Thread t gets grains [t*q + min(t, r), ...): whole grains, sizes differing by one at most. */
static void run_share(const struct pool *p, unsigned t)
{
    size_t grains = p->n / p->grain + (p->n % p->grain != 0);
    size_t q = grains / p->n_threads, r = grains % p->n_threads;
    size_t begin = t * q + (t < r ? t : r), end = begin + q + (t < r);
    if (begin == end)
        return;
    p->fn(p->context, begin * p->grain, end == grains ? p->n : end * p->grain, t);
}

static void wait_for_work(struct pool *p, uint64_t seen)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (atomic_load(&p->generation) != seen)
            return;
        relax();
    }
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->generation) == seen)
        pthread_cond_wait(&p->start, &p->mutex);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->mutex);
}

static void *work(void *argument)
{
    struct worker *w = argument;
    struct pool *p = w->pool;
    for (uint64_t seen = 0;; seen++) {
        wait_for_work(p, seen);
        if (p->stop)
            return NULL;
        run_share(p, w->index);
        if (atomic_fetch_sub(&p->pending, 1) == 1 && atomic_load(&p->caller_sleeps)) {
            pthread_mutex_lock(&p->mutex);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->mutex);
        }
    }
}

/* The order "raise generation, look for sleepers" here and "count as sleeper, look at generation" there, all
 * sequentially consistent, leaves no gap in which a worker could miss the call. */
static void announce(struct pool *p)
{
    atomic_fetch_add(&p->generation, 1);
    if (atomic_load(&p->sleepers) == 0)
        return;
    pthread_mutex_lock(&p->mutex);
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->mutex);
}

static void wait_for_workers(struct pool *p)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (atomic_load(&p->pending) == 0)
            return;
        relax();
    }
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->caller_sleeps, true);
    while (atomic_load(&p->pending) != 0)
        pthread_cond_wait(&p->done, &p->mutex);
    atomic_store(&p->caller_sleeps, false);
    pthread_mutex_unlock(&p->mutex);
}

void pool_run(struct pool *p, size_t n, size_t grain, pool_fn fn, void *context)
{
    if (n == 0)
        return;
    if (grain == 0)
        grain = 1;
    if (p->n_threads == 1 || n <= grain) { /* nothing to share: wake nobody */
        fn(context, 0, n, 0);
        return;
    }
    p->n = n;
    p->grain = grain;
    p->fn = fn;
    p->context = context;
    atomic_store(&p->pending, p->n_threads - 1);
    announce(p);
    run_share(p, 0);
    wait_for_workers(p);
}

int pool_open(struct pool **out, unsigned n_threads, struct err *e)
{
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return err_set(e, ERR_INVALID, "%u threads: must be 1 to %u", n_threads, MAX_THREADS);
    struct pool *p = calloc(1, sizeof(*p) + n_threads * sizeof(struct worker));
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for a pool of %u threads", n_threads);
    p->n_threads = n_threads;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->start, NULL);
    pthread_cond_init(&p->done, NULL);
    /* Signals belong to the program's own threads, not to workers. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    for (unsigned i = 1; i < n_threads && !failed; i++) {
        struct worker *w = &p->workers[i];
        w->pool = p;
        w->index = i;
        failed = pthread_create(&w->thread, NULL, work, w);
        p->n_started += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        int rc = err_set(e, ERR_NOMEM, "cannot start thread %u of %u: %s", p->n_started + 2, n_threads,
                         strerrordesc_np(failed));
        pool_close(p);
        return rc;
    }
    *out = p;
    return ERR_OK;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    p->stop = true;
    announce(p);
    for (unsigned i = 1; i <= p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->start);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

unsigned pool_threads(const struct pool *p)
{
    return p->n_threads;
}

/* ---- clocks */

uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int64_t clock_unix_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void clock_sleep_ns(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}
