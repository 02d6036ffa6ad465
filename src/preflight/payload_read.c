/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: reading every byte of every weight file once, by all threads, with hashing and looking at values on
 * the way. Refuses to map files (a file system that fails would end the process) and to hold more than a
 * small buffer a thread. Threads take chunks: each its own file as long as there are enough, then several one
 * file. Looking at values may run in any order; the hash of a file takes its chunks in theirs.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "preflight/payload_internal.h"

#define MAX_BUFFERS (64u << 20)  /* of all threads */
#define MAX_CHUNK   (128u << 10) /* stays in a core's own cache while it is looked at and hashed */
#define MIN_CHUNK   (16u << 10)
#define OVERLAP     8u /* an element that begins in a chunk is looked at with it */
#define AHEAD       (8u << 20)
#define AHEAD_STEP  (2u << 20)
#define PROGRESS_NS 100000000u
#define SETTLED_NS  2000000000

struct job {
    uint32_t shard;
    uint64_t bytes, next, hashed, finished; /* next: handed out; hashed: in the hash */
    unsigned workers;
    bool opened, cold; /* cold: bytes come from the disk, not from memory: ask for them ahead */
    struct sha256 *hash;
    const uint32_t *tensors; /* by offset */
    size_t n_tensors;
    struct value_tally *tallies;
};

struct run {
    struct ckpt *c;
    const struct preflight_payload_options *o;
    struct preflight_payload *out;
    struct payload_file *files;
    struct job *jobs; /* largest first */
    size_t n_jobs, first_open;
    uint32_t *order; /* tensors by shard and offset */
    size_t chunk;
    unsigned char *buffers; /* one a thread */
    bool *want_hash;        /* by shard */
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint64_t done, total, last_news;
    int rc;
    struct err e;
};

/* ---- taking work; all under the lock */

static int open_job(struct run *r, struct job *j)
{
    struct payload_file *file = &r->files[j->shard];
    struct err *e = &r->e;
    j->opened = true;
    j->tallies = calloc(j->n_tensors ? j->n_tensors : 1, sizeof(*j->tallies));
    int rc = j->tallies
                 ? ERR_OK
                 : err_set(e, ERR_NOMEM, "%s: no memory for its %zu tensors", file->path, j->n_tensors);
    if (!rc && r->want_hash[j->shard])
        rc = sha256_begin(&j->hash, e);
    if (!rc && file->fd < 0)
        rc = file_open_read(file->path, &file->fd, e);
    if (!rc)
        (void)posix_fadvise(file->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return rc;
}

/* The job this thread is at, else one that nobody has begun, else the one with the fewest threads. */
static struct job *choose(struct run *r, struct job *mine)
{
    struct job *best = NULL;
    if (mine && mine->next < mine->bytes)
        return mine;
    while (r->first_open < r->n_jobs && r->jobs[r->first_open].next >= r->jobs[r->first_open].bytes)
        r->first_open++;
    for (size_t i = r->first_open; i < r->n_jobs; i++) {
        struct job *j = &r->jobs[i];
        if (j->next >= j->bytes)
            continue;
        if (!j->opened)
            return j;
        if (!best || j->workers < best->workers)
            best = j;
    }
    return best;
}

static bool take(struct run *r, struct job **mine, uint64_t *at, size_t *n)
{
    struct job *j = r->rc ? NULL : choose(r, *mine);
    if (!j)
        return false;
    if (*mine != j) {
        if (*mine)
            (*mine)->workers--;
        j->workers++;
        *mine = j;
    }
    if (!j->opened && (r->rc = open_job(r, j)) != ERR_OK)
        return false;
    *at = j->next;
    *n = j->bytes - j->next < r->chunk ? (size_t)(j->bytes - j->next) : r->chunk;
    j->next += *n;
    return true;
}

/* ---- one chunk */

/* First of the job's tensors that ends beyond `at`. */
static size_t first_tensor(const struct run *r, const struct job *j, uint64_t at)
{
    size_t low = 0, high = j->n_tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct ckpt_tensor *t = &r->c->tensors[j->tensors[middle]];
        if (t->offset + t->bytes <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The elements that begin in [at, at + n). A tensor that lies in this chunk alone is nobody else's; what is
 * of one that goes on before or after is added under the lock. */
static void look_at_values(struct run *r, struct job *j, const unsigned char *data, uint64_t at, size_t n)
{
    for (size_t i = first_tensor(r, j, at); i < j->n_tensors; i++) {
        const struct ckpt_tensor *t = &r->c->tensors[j->tensors[i]];
        if (t->offset >= at + n)
            break;
        struct value_kind k = value_kind_of(t->dtype);
        struct value_tally tally = {0};
        uint64_t all = t->bytes / k.width;
        uint64_t first = at > t->offset ? (at - t->offset + k.width - 1) / k.width : 0;
        uint64_t end = (at + n - t->offset + k.width - 1) / k.width;
        end = end < all ? end : all;
        if (first < end)
            value_tally_add(&tally, &k, data + (t->offset + first * k.width - at), (size_t)(end - first),
                            first);
        if (t->offset >= at && t->offset + t->bytes <= at + n) {
            j->tallies[i] = tally;
        } else {
            pthread_mutex_lock(&r->lock);
            value_tally_merge(&j->tallies[i], &tally);
            pthread_mutex_unlock(&r->lock);
        }
    }
}

static int read_chunk(struct run *r, struct job *j, unsigned char *buffer, uint64_t at, size_t n,
                      struct err *e)
{
    const struct payload_file *file = &r->files[j->shard];
    uint64_t left = j->bytes - at - n;
    size_t more = left < OVERLAP ? (size_t)left : OVERLAP;
    if (__atomic_load_n(&j->cold, __ATOMIC_RELAXED) && at % AHEAD_STEP < n)
        (void)posix_fadvise(file->fd, (off_t)(at + AHEAD), AHEAD_STEP, POSIX_FADV_WILLNEED);
    uint64_t begin = clock_ns();
    int rc = file_pread(file->fd, file->path, buffer, n + more, at, e);
    if (clock_ns() - begin > n / 3) /* less than 3 GB/s */
        __atomic_store_n(&j->cold, true, __ATOMIC_RELAXED);
    return rc;
}

/* Waits until all before is in the hash. False: another thread failed. */
static bool await_turn(struct run *r, struct job *j, uint64_t at)
{
    pthread_mutex_lock(&r->lock);
    while (!r->rc && j->hashed != at)
        pthread_cond_wait(&r->turn, &r->lock);
    bool go = !r->rc;
    pthread_mutex_unlock(&r->lock);
    return go;
}

/* Common and meant: biases that were not trained, zero points of symmetric quantisation. */
static bool zero_is_usual(const struct ckpt_tensor *t)
{
    return strstr(t->name, "bias") || strstr(t->name, "zero") || t->bytes == 0 ||
           (!dtype_is_float(t->dtype) && (t->n_dims < 2 || t->bytes < 4096));
}

static void sum_up(const struct run *r, const struct job *j, struct payload_found *x)
{
    *x = (struct payload_found){.tensors = j->n_tensors};
    for (size_t i = 0; i < j->n_tensors; i++) {
        const struct ckpt_tensor *t = &r->c->tensors[j->tensors[i]];
        const struct value_tally *v = &j->tallies[i];
        if (v->n_nan + v->n_inf) {
            if (x->n_not_finite < PAYLOAD_KEPT)
                x->bad[x->n_not_finite] = (struct payload_tensor){
                    t->name, t->bytes / value_kind_of(t->dtype).width, v->n_nan, v->n_inf, v->first_bad};
            x->n_not_finite++;
            x->values_nan += v->n_nan;
            x->values_inf += v->n_inf;
        } else if (!v->nonzero && !zero_is_usual(t)) {
            if (x->n_all_zero < PAYLOAD_KEPT)
                x->zero[x->n_all_zero] = t->name;
            x->n_all_zero++;
        }
    }
}

/* The last chunk is done: nobody else works on this file any more. */
static int finish_job(struct run *r, struct job *j, struct err *e)
{
    struct payload_file *file = &r->files[j->shard];
    struct preflight_payload_shard *s = &r->out->shards[j->shard];
    struct file_info now;
    int rc = file_stat(file->path, &now, e);
    if (rc)
        return rc;
    if (!now.exists || now.bytes != file->info.bytes || now.mtime_ns != file->info.mtime_ns) {
        err_set(e, ERR_BUSY, "%s changed while it was read", file->path);
        err_hint(e, "run the check again when nothing writes to it");
        return ERR_BUSY;
    }
    if (j->hash && sha256_end(j->hash, s->sha256))
        rc = err_set(e, ERR_NOMEM, "%s: cannot hash it", file->path);
    j->hash = NULL;
    sum_up(r, j, &file->found);
    file->read = !rc;
    s->read = !rc;
    free(j->tallies);
    j->tallies = NULL;
    close(file->fd);
    file->fd = -1;
    return rc;
}

static void note_error(struct run *r, int rc, const struct err *e)
{
    if (rc && !r->rc) {
        r->rc = rc;
        r->e = *e;
    }
}

static void do_chunk(struct run *r, struct job *j, unsigned char *buffer, uint64_t at, size_t n)
{
    struct err e = {0};
    int rc = read_chunk(r, j, buffer, at, n, &e);
    if (!rc)
        look_at_values(r, j, buffer, at, n);
    if (!rc && j->hash && await_turn(r, j, at) && sha256_update(j->hash, buffer, n))
        rc = err_set(&e, ERR_NOMEM, "%s: cannot hash it", r->files[j->shard].path);
    pthread_mutex_lock(&r->lock);
    note_error(r, rc, &e);
    j->finished += n;
    j->hashed = at + n;
    r->done += n;
    if (rc || (j->hash && j->workers > 1))
        pthread_cond_broadcast(&r->turn);
    bool last = j->finished == j->bytes && !r->rc;
    pthread_mutex_unlock(&r->lock);
    if (!last)
        return;
    rc = finish_job(r, j, &e);
    pthread_mutex_lock(&r->lock);
    note_error(r, rc, &e);
    if (rc)
        pthread_cond_broadcast(&r->turn);
    r->out->bytes_read += j->bytes;
    pthread_mutex_unlock(&r->lock);
}

static void tell(struct run *r, unsigned thread, bool now)
{
    uint64_t t = clock_ns();
    if (thread != 0 || !r->o->progress || (!now && t - r->last_news < PROGRESS_NS))
        return;
    r->last_news = t;
    pthread_mutex_lock(&r->lock);
    uint64_t done = r->done;
    pthread_mutex_unlock(&r->lock);
    r->o->progress(r->o->context, done, r->total);
}

/* One item a thread: each takes chunks until there are none. */
static void work(void *context, size_t first, size_t last, unsigned thread)
{
    struct run *r = context;
    unsigned char *buffer = r->buffers + thread * (r->chunk + OVERLAP);
    struct job *mine = NULL;
    (void)first, (void)last;
    for (;;) {
        uint64_t at;
        size_t n;
        pthread_mutex_lock(&r->lock);
        bool more = take(r, &mine, &at, &n);
        if (r->rc)
            pthread_cond_broadcast(&r->turn);
        pthread_mutex_unlock(&r->lock);
        if (!more)
            break;
        do_chunk(r, mine, buffer, at, n);
        tell(r, thread, false);
    }
}

/* ---- before and after */

/* Tensors by shard and offset; those that lie wholly in a file whose header can be believed. */
struct place {
    uint32_t shard, tensor;
    uint64_t offset;
};

static int by_place(const void *x, const void *y)
{
    const struct place *a = x, *b = y;
    if (a->shard != b->shard)
        return a->shard < b->shard ? -1 : 1;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return a->tensor < b->tensor ? -1 : a->tensor > b->tensor;
}

static int by_size(const void *x, const void *y)
{
    const struct job *a = x, *b = y;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->shard < b->shard ? -1 : a->shard > b->shard;
}

static int sort_tensors(struct run *r, struct err *e)
{
    const struct ckpt *c = r->c;
    struct place *places = malloc((c->n_tensors + 1) * sizeof(*places));
    r->order = malloc((c->n_tensors + 1) * sizeof(*r->order));
    if (!places || !r->order) {
        free(places);
        return err_set(e, ERR_NOMEM, "no memory to sort %zu tensors", c->n_tensors);
    }
    size_t n = 0;
    for (size_t i = 0; i < c->n_tensors; i++) {
        const struct ckpt_tensor *t = &c->tensors[i];
        uint64_t end;
        if (!c->shards[t->shard].malformed && add_u64(t->offset, t->bytes, &end) &&
            end <= r->files[t->shard].info.bytes)
            places[n++] = (struct place){t->shard, (uint32_t)i, t->offset};
    }
    qsort(places, n, sizeof(*places), by_place);
    for (size_t i = 0; i < n; i++)
        r->order[i] = places[i].tensor;
    for (size_t k = 0; k < r->n_jobs; k++) {
        struct job *j = &r->jobs[k];
        struct place from = {.shard = j->shard};
        size_t low = 0, high = n;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (by_place(&places[middle], &from) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        j->tensors = r->order + low;
        while (low + j->n_tensors < n && places[low + j->n_tensors].shard == j->shard)
            j->n_tensors++;
    }
    free(places);
    return ERR_OK;
}

static int read_all(struct run *r, struct err *e)
{
    struct pool *pool = NULL;
    unsigned threads = r->o->threads ? r->o->threads : (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    threads = threads < 1 ? 1 : threads > 1024 ? 1024 : threads;
    r->chunk = MAX_BUFFERS / threads;
    r->chunk = r->chunk > MAX_CHUNK ? MAX_CHUNK : r->chunk < MIN_CHUNK ? MIN_CHUNK : r->chunk;
    r->out->threads = threads;
    for (size_t i = 0; i < r->n_jobs; i++)
        r->total += r->jobs[i].bytes;
    if (r->n_jobs == 0)
        return ERR_OK;
    qsort(r->jobs, r->n_jobs, sizeof(*r->jobs), by_size);
    int rc = sort_tensors(r, e);
    if (!rc)
        rc = pool_open(&pool, threads, e);
    if (!rc && !(r->buffers = malloc(threads * (r->chunk + OVERLAP))))
        rc = err_set(e, ERR_NOMEM, "no memory for reading weights");
    if (!rc) {
        pthread_mutex_init(&r->lock, NULL);
        pthread_cond_init(&r->turn, NULL);
        pool_run(pool, threads, 1, work, r);
        tell(r, 0, true);
        pthread_cond_destroy(&r->turn);
        pthread_mutex_destroy(&r->lock);
        rc = r->rc;
        if (rc && e)
            *e = r->e;
    }
    pool_close(pool);
    return rc;
}

/* Which files there are, what should be hashed, and which results are known already. */
static int prepare(struct run *r, const struct payload_manifest *m, const struct payload_cache *cache,
                   struct err *e)
{
    struct preflight_payload *out = r->out;
    int64_t now = clock_unix_ns();
    for (size_t i = 0; i < m->n; i++) {
        struct preflight_payload_shard *s = &out->shards[m->items[i].shard];
        r->want_hash[m->items[i].shard] = true;
        s->expected = s->expected ? s->expected : m->items[i].sha256;
        s->expected_from = s->expected_from ? s->expected_from : m->items[i].from;
    }
    for (size_t i = 0; i < r->c->n_shards; i++) {
        struct payload_file *file = &r->files[i];
        struct preflight_payload_shard *s = &out->shards[i];
        char *path = r->c->shards[i].present ? path_join(&out->arena, r->c->dir, r->c->shards[i].name) : NULL;
        char *real = path ? realpath(path, NULL) : NULL;
        *s = (struct preflight_payload_shard){.name = r->c->shards[i].name,
                                              .expected = s->expected,
                                              .expected_from = s->expected_from,
                                              .same_as = -1};
        file->fd = -1;
        file->path = real ? arena_strdup(&out->arena, real) : path;
        free(real);
        if (!file->path)
            continue;
        int rc = file_stat(file->path, &file->info, e);
        if (rc)
            return rc;
        s->bytes = file->info.bytes;
        file->here = file->info.is_file && file->info.bytes > 0;
        file->settled = now - file->info.mtime_ns > SETTLED_NS;
        r->want_hash[i] = (r->want_hash[i] || r->o->hash) && !r->c->shards[i].arriving;
        if (!file->here)
            continue;
        if (payload_cache_get(cache, file, r->want_hash[i], s->sha256, &file->found)) {
            s->from_cache = true;
            out->bytes_cached += file->info.bytes;
        } else {
            r->jobs[r->n_jobs++] = (struct job){.shard = (uint32_t)i, .bytes = file->info.bytes};
        }
    }
    return ERR_OK;
}

static int check_all(struct run *r, struct findings *f, struct err *e)
{
    struct preflight_payload *out = r->out;
    struct payload_manifest m = {0};
    struct payload_cache cache = {0};
    struct err trouble = {0};
    int rc = payload_manifest_read(r->c, &out->arena, &m, e);
    if (!rc)
        rc = payload_cache_open(&cache, r->o->cache_path, &out->arena, e);
    if (!rc)
        rc = prepare(r, &m, &cache, e);
    if (!rc)
        rc = read_all(r, e);
    if (!rc)
        payload_report(r->c, r->files, &m, f, out);
    if (!rc && r->o->cache_path &&
        payload_cache_write(&cache, r->files, out->shards, out->n_shards, &trouble))
        snprintf(out->cache_trouble, sizeof(out->cache_trouble), "%.190s", trouble.message);
    for (size_t i = 0; i < out->n_shards; i++) { /* the manifest goes, what it said stays */
        struct preflight_payload_shard *s = &out->shards[i];
        s->expected = s->expected ? arena_strdup(&out->arena, s->expected) : NULL;
    }
    payload_cache_release(&cache);
    payload_manifest_release(&m);
    return rc;
}

int preflight_payload(struct ckpt *c, const struct preflight_payload_options *o, struct findings *f,
                      struct preflight_payload *out, struct err *e)
{
    static const struct preflight_payload_options defaults;
    struct run r = {.c = c, .o = o ? o : &defaults, .out = out};
    size_t n = c->n_shards + 1;
    uint64_t begin = clock_ns();
    memset(out, 0, sizeof(*out));
    arena_init(&out->arena, c->arena.mem, MEM_CKPT);
    out->n_shards = c->n_shards;
    out->shards = arena_alloc_n(&out->arena, n, sizeof(*out->shards));
    r.files = calloc(n, sizeof(*r.files));
    r.jobs = calloc(n, sizeof(*r.jobs));
    r.want_hash = calloc(n, sizeof(*r.want_hash));
    int rc = out->shards && r.files && r.jobs && r.want_hash
                 ? check_all(&r, f, e)
                 : err_set(e, ERR_NOMEM, "no memory to check %zu files", c->n_shards);
    for (size_t i = 0; r.files && i < c->n_shards; i++) {
        if (r.files[i].path && r.files[i].fd >= 0)
            close(r.files[i].fd);
    }
    for (size_t i = 0; i < r.n_jobs; i++) {
        sha256_abort(r.jobs[i].hash);
        free(r.jobs[i].tallies);
    }
    free(r.files);
    free(r.jobs);
    free(r.want_hash);
    free(r.order);
    free(r.buffers);
    out->seconds = (double)(clock_ns() - begin) * 1e-9;
    return rc;
}

void preflight_payload_release(struct preflight_payload *p)
{
    arena_release(&p->arena);
    p->shards = NULL;
    p->n_shards = 0;
}
