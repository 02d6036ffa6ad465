/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the queue of sets and the threads that work on them, picture by picture. A set that was cancelled
 * while a thread is in one of its pictures goes when that one is done: decoding cannot be broken off, but it
 * is bounded. Refuses to say what is wrong with a picture by itself: it passes on what the rooms below say.
 */
#include "serve/picture_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"

#define MAX_THREADS 64

struct picture_pool {
    struct picture_pool_options o;
    pthread_t threads[MAX_THREADS];
    unsigned n_threads; /* started */
    _Atomic uint64_t held_bytes;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t wake;
    bool stop, notified;
    uint64_t working_bytes;                     /* of pictures in progress, as predicted */
    struct picture_set *first, *last;           /* with pictures that no thread has begun */
    struct picture_set *first_done, *last_done; /* to be taken */
    struct picture_set *running;                /* all begun, not all done */
    struct pool_call *calls, *last_call;        /* to be run */
    struct pool_call *returned, *last_returned;
    struct picture_pool_stats stats;
};

/* ---- lists, under the lock ---- */

static void push(struct picture_set **first, struct picture_set **last, struct picture_set *s)
{
    s->next = NULL;
    if (*first)
        (*last)->next = s;
    else
        *first = s;
    *last = s;
}

/* last: NULL for a list that nobody appends to. */
static void unlink_set(struct picture_set **first, struct picture_set **last, struct picture_set *s)
{
    struct picture_set *before = NULL;
    for (struct picture_set *i = *first; i && i != s; i = i->next)
        before = i;
    if (before)
        before->next = s->next;
    else
        *first = s->next;
    if (last && *last == s)
        *last = before;
}

static struct picture_set *find(struct picture_set *first, uint64_t id)
{
    while (first && first->id != id)
        first = first->next;
    return first;
}

static void push_call(struct pool_call **first, struct pool_call **last, struct pool_call *c)
{
    c->next = NULL;
    if (*first)
        (*last)->next = c;
    else
        *first = c;
    *last = c;
}

static struct pool_call *pop_call(struct pool_call **first)
{
    struct pool_call *c = *first;
    if (c)
        *first = c->next;
    return c;
}

/* ---- one picture, outside of the lock ---- */

static int make_message(const struct picture_pool *p, const struct prompt_pixels *pixels,
                        struct sched_image *out, struct err *e)
{
    struct picture_plan *message;
    int rc = prompt_picture_message(pixels, p->o.shape, &message, &out->bytes, e);
    if (rc)
        return rc;
    memcpy(out->key, pixels->key, sizeof out->key);
    out->n_rows = pixels->n_rows;
    out->message = message;
    return ERR_OK;
}

static int make_picture(struct picture_pool *p, const struct prompt_picture *picture, struct sched_image *out,
                        struct prompt_pixels *pixels, struct err *e)
{
    struct arena arena;
    arena_init(&arena, p->o.mem, MEM_REQUEST);
    int rc = prompt_picture_make(p->o.front, picture, &p->o.limits, &arena, pixels, e);
    if (rc == 0)
        rc = make_message(p, pixels, out, e);
    arena_release(&arena);
    return rc;
}

/* ---- threads ---- */

static bool must_tell(struct picture_pool *p)
{
    bool tell = !p->notified;
    p->notified = true;
    return tell;
}

/* Called with the lock held, when a picture of s is done. True: the loop is to be told. */
static bool settle(struct picture_pool *p, struct picture_set *s)
{
    bool over = s->n_running == 0 && (s->cancelled || s->code || s->n_done == s->pictures.n);
    if (!over)
        return false;
    bool queued = find(p->first, s->id) == s;
    if (queued)
        p->stats.n_waiting -= s->pictures.n - s->n_begun;
    unlink_set(queued ? &p->first : &p->running, queued ? &p->last : NULL, s);
    if (s->cancelled) {
        picture_set_free(s);
        return false;
    }
    push(&p->first_done, &p->last_done, s);
    return must_tell(p);
}

static void note(struct picture_pool *p, struct picture_set *s, uint32_t i, int rc, const struct err *e,
                 const struct prompt_pixels *pixels, uint64_t ns)
{
    s->n_running--;
    s->n_done++;
    p->stats.busy_ns += ns;
    if (rc) {
        p->stats.n_failed++;
        if (s->code == 0) {
            s->code = rc;
            s->failed = i;
            snprintf(s->why, sizeof s->why, "%.255s", e->message);
        }
        return;
    }
    p->stats.n_done++;
    s->decode_ns += pixels->decode_ns;
    s->process_ns += pixels->process_ns;
    histogram_add(&p->stats.decode, (double)pixels->decode_ns / 1e9);
    histogram_add(&p->stats.process, (double)pixels->process_ns / 1e9);
}

/* Half of the memory is for what is held, half for work: so a picture that waits for room to be decoded in
 * gets it when those in progress are done, however much others hold. */
static uint64_t half(const struct picture_pool *p)
{
    return p->o.max_bytes / 2;
}

/* Nobody overtakes a picture that waits for room: a large one would wait for ever. */
static bool has_room(const struct picture_pool *p, const struct picture_set *s)
{
    return s->work_bytes[s->n_begun] <= half(p) - p->working_bytes;
}

/* The next picture of the first set; a set whose pictures are all begun leaves the queue. */
static uint32_t begin(struct picture_pool *p, struct picture_set *s)
{
    uint32_t i = s->n_begun++;
    s->n_running++;
    p->working_bytes += s->work_bytes[i];
    if (p->working_bytes > p->stats.most_working_bytes)
        p->stats.most_working_bytes = p->working_bytes;
    p->stats.n_waiting--;
    if (s->n_begun == s->pictures.n) {
        unlink_set(&p->first, &p->last, s);
        s->next = p->running;
        p->running = s;
    }
    return i;
}

/* Both are called with the lock held, and give it up while they work. True: the loop is to be told. */
static bool run_picture(struct picture_pool *p, struct picture_set *s)
{
    uint32_t i = begin(p, s);
    pthread_mutex_unlock(&p->lock);
    struct prompt_pixels pixels = {0};
    struct err e = {0};
    uint64_t start = clock_ns();
    int rc = make_picture(p, &s->pictures.list[i], &s->images[i], &pixels, &e);
    uint64_t ns = clock_ns() - start;
    pthread_mutex_lock(&p->lock);
    p->working_bytes -= s->work_bytes[i];
    pthread_cond_broadcast(&p->wake); /* others may wait for its room */
    note(p, s, i, rc, &e, &pixels, ns);
    return settle(p, s);
}

static bool run_call(struct picture_pool *p, struct pool_call *c)
{
    pthread_mutex_unlock(&p->lock);
    uint64_t start = clock_ns();
    c->run(c);
    uint64_t ns = clock_ns() - start;
    pthread_mutex_lock(&p->lock);
    p->stats.busy_ns += ns;
    push_call(&p->returned, &p->last_returned, c);
    return must_tell(p);
}

static void *pool_main(void *arg)
{
    struct picture_pool *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        struct pool_call *c = pop_call(&p->calls);
        struct picture_set *s = p->first;
        while (s && (s->cancelled || s->code)) /* settles with the picture in progress */
            s = s->next;
        if (c == NULL && (s == NULL || !has_room(p, s))) {
            pthread_cond_wait(&p->wake, &p->lock);
        } else if (c ? run_call(p, c) : run_picture(p, s)) {
            pthread_mutex_unlock(&p->lock);
            p->o.notify(p->o.context);
            pthread_mutex_lock(&p->lock);
        }
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- sets ---- */

struct picture_set *picture_set_new(struct picture_pool *p)
{
    struct picture_set *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->pool = p;
    arena_init(&s->arena, p->o.mem, MEM_REQUEST);
    return s;
}

void picture_set_free(struct picture_set *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; s->images && i < s->pictures.n; i++)
        free((void *)(uintptr_t)s->images[i].message); /* ours, and const to the scheduler only */
    atomic_fetch_sub(&s->pool->held_bytes, s->bytes);
    arena_release(&s->arena);
    free(s);
}

/* Counts bytes, or says why not. */
static int hold(struct picture_pool *p, uint64_t bytes, struct err *e)
{
    if (bytes > half(p))
        return err_set(e, ERR_LIMIT, "its pictures take %llu bytes, all requests together may have %llu",
                       (unsigned long long)bytes, (unsigned long long)half(p));
    if (atomic_fetch_add(&p->held_bytes, bytes) + bytes <= half(p))
        return ERR_OK;
    atomic_fetch_sub(&p->held_bytes, bytes);
    return err_set(e, ERR_BUSY, "pictures of other requests are being worked on, try again later");
}

int picture_pool_reserve(struct picture_set *s, struct err *e)
{
    struct picture_pool *p = s->pool;
    uint64_t need = 0;
    s->images = arena_alloc_n(&s->arena, s->pictures.n, sizeof *s->images);
    s->work_bytes = arena_alloc_n(&s->arena, s->pictures.n, sizeof *s->work_bytes);
    if (s->images == NULL || s->work_bytes == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for %u pictures", s->pictures.n);
    for (uint32_t i = 0; i < s->pictures.n; i++) {
        const struct prompt_picture *q = &s->pictures.list[i];
        uint64_t bytes =
            q->n_patches > UINT32_MAX ? 0 : picture_plan_bytes(p->o.shape, (uint32_t)q->n_patches, q->n_rows);
        s->work_bytes[i] = prompt_picture_bytes(p->o.front, q);
        if (bytes == 0)
            err_set(e, ERR_LIMIT, "it becomes %llu patches, more than one message holds",
                    (unsigned long long)q->n_patches);
        else if (s->work_bytes[i] > half(p))
            err_set(
                e, ERR_LIMIT,
                "a picture of %u x %u pixels takes up to %llu bytes to decode and process, this server has "
                "%llu for that",
                q->info.width, q->info.height, (unsigned long long)s->work_bytes[i],
                (unsigned long long)half(p));
        if (bytes == 0 || s->work_bytes[i] > half(p)) {
            err_ctx(e, "messages[%u].content[%u]", q->message, q->part);
            return ERR_LIMIT;
        }
        need += bytes + q->n;
    }
    int rc = hold(p, need, e);
    s->bytes = rc ? 0 : need;
    return rc;
}

int picture_pool_call(struct picture_pool *p, struct pool_call *call, uint64_t bytes, struct err *e)
{
    int rc = hold(p, bytes, e);
    if (rc)
        return rc;
    call->bytes = bytes;
    pthread_mutex_lock(&p->lock);
    push_call(&p->calls, &p->last_call, call);
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    return ERR_OK;
}

bool picture_pool_uncall(struct picture_pool *p, struct pool_call *call)
{
    struct pool_call *before = NULL;
    pthread_mutex_lock(&p->lock);
    struct pool_call *c = p->calls;
    for (; c && c != call; c = c->next)
        before = c;
    if (c && before)
        before->next = c->next;
    else if (c)
        p->calls = c->next;
    if (c && p->last_call == c)
        p->last_call = before;
    pthread_mutex_unlock(&p->lock);
    if (c == NULL)
        return false;
    atomic_fetch_sub(&p->held_bytes, c->bytes);
    c->drop(c);
    return true;
}

struct pool_call *picture_pool_returned(struct picture_pool *p)
{
    pthread_mutex_lock(&p->lock);
    struct pool_call *c = pop_call(&p->returned);
    if (c == NULL)
        p->notified = false;
    pthread_mutex_unlock(&p->lock);
    if (c)
        atomic_fetch_sub(&p->held_bytes, c->bytes);
    return c;
}

void picture_pool_submit(struct picture_set *s)
{
    struct picture_pool *p = s->pool;
    pthread_mutex_lock(&p->lock);
    push(&p->first, &p->last, s);
    p->stats.n_waiting += s->pictures.n;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void picture_pool_cancel(struct picture_pool *p, uint64_t id)
{
    pthread_mutex_lock(&p->lock);
    struct picture_set *s = find(p->first, id), *done = find(p->first_done, id);
    s = s ? s : find(p->running, id);
    if (done) {
        unlink_set(&p->first_done, &p->last_done, done);
        picture_set_free(done);
    } else if (s) {
        s->cancelled = true;
        settle(p, s);
        pthread_cond_broadcast(&p->wake); /* what waited behind it may have room */
    }
    pthread_mutex_unlock(&p->lock);
}

struct picture_set *picture_pool_take(struct picture_pool *p)
{
    pthread_mutex_lock(&p->lock);
    struct picture_set *s = p->first_done;
    if (s)
        unlink_set(&p->first_done, &p->last_done, s);
    else
        p->notified = false;
    pthread_mutex_unlock(&p->lock);
    return s;
}

void picture_pool_stats(struct picture_pool *p, struct picture_pool_stats *out)
{
    pthread_mutex_lock(&p->lock);
    *out = p->stats;
    out->working_bytes = p->working_bytes;
    pthread_mutex_unlock(&p->lock);
    out->n_threads = p->n_threads;
    out->max_bytes = p->o.max_bytes;
    out->held_bytes = atomic_load(&p->held_bytes);
}

/* ---- life ---- */

int picture_pool_open(struct picture_pool **out, const struct picture_pool_options *o, struct err *e)
{
    struct picture_pool *p = calloc(1, sizeof *p);
    if (p == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the threads of pictures");
    p->o = *o;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    unsigned n = o->n_threads < MAX_THREADS ? o->n_threads : MAX_THREADS;
    for (; p->n_threads < n; p->n_threads++) {
        int rc = pthread_create(&p->threads[p->n_threads], NULL, pool_main, p);
        if (rc) {
            picture_pool_close(p);
            return err_set(e, ERR_NOMEM, "cannot start a thread for pictures: %s", strerror(rc));
        }
    }
    *out = p;
    return ERR_OK;
}

static void free_list(struct picture_set *s)
{
    while (s) {
        struct picture_set *next = s->next;
        picture_set_free(s);
        s = next;
    }
}

static void drop_calls(struct pool_call *c)
{
    while (c) {
        struct pool_call *next = c->next;
        c->drop(c);
        c = next;
    }
}

void picture_pool_stop(struct picture_pool *p)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    p->n_threads = 0;
}

void picture_pool_close(struct picture_pool *p)
{
    if (p == NULL)
        return;
    picture_pool_stop(p);
    free_list(p->first);
    free_list(p->running);
    free_list(p->first_done);
    drop_calls(p->calls);
    drop_calls(p->returned);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
