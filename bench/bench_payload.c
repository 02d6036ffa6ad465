/* SPDX-License-Identifier: Apache-2.0
 *
 * The payload check against plain reads of the same files, one after the other in every round, from the page
 * cache and from the disk (pages dropped before), without and with hashing; medians of ratios over rounds.
 * What bounds hashing is SHA-256 itself, measured beside it. usage: bench_payload MODEL [ROUNDS] [THREADS]
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/thread.h"
#include "preflight/preflight.h"

#define READ_BYTES (1u << 20)
#define MAX_ROUNDS 64

struct bench {
    struct ckpt *c;
    struct pool *pool;
    unsigned threads;
    uint64_t bytes;
    _Atomic size_t next;
    bool failed;
};

/* Each thread takes whole files and reads them from end to end into one buffer. */
static void read_files(void *context, size_t first, size_t last, unsigned thread)
{
    struct bench *b = context;
    char *buffer = malloc(READ_BYTES), path[4096];
    (void)first, (void)last, (void)thread;
    for (size_t i; buffer && (i = b->next++) < b->c->n_shards;) {
        snprintf(path, sizeof path, "%s/%s", b->c->dir, b->c->shards[i].name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        ssize_t n;
        while ((n = read(fd, buffer, READ_BYTES)) > 0)
            ;
        b->failed |= fd < 0 || n < 0;
        close(fd);
    }
    free(buffer);
}

static void drop_pages(const struct bench *b)
{
    char path[4096];
    for (size_t i = 0; i < b->c->n_shards; i++) {
        snprintf(path, sizeof path, "%s/%s", b->c->dir, b->c->shards[i].name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        fdatasync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

/* GB/s */
static double plain(struct bench *b)
{
    b->next = 0;
    uint64_t begin = clock_ns();
    pool_run(b->pool, b->threads, 1, read_files, b);
    return (double)b->bytes / (double)(clock_ns() - begin);
}

static double payload(struct bench *b, bool hash)
{
    struct findings f;
    struct preflight_payload p;
    struct err e = {0};
    findings_init(&f, NULL);
    const struct preflight_payload_options o = {.threads = b->threads, .hash = hash};
    uint64_t begin = clock_ns();
    b->failed |= preflight_payload(b->c, &o, &f, &p, &e) != ERR_OK || p.bytes_read != b->bytes;
    double speed = (double)b->bytes / (double)(clock_ns() - begin);
    preflight_payload_release(&p);
    findings_release(&f);
    return speed;
}

/* SHA-256 of bytes in memory, by all threads: what hashing can reach at most. */
static void hash_bytes(void *context, size_t first, size_t last, unsigned thread)
{
    struct bench *b = context;
    char hex[SHA256_HEX_BYTES], *bytes = calloc(1, READ_BYTES);
    (void)thread;
    for (size_t i = first * 64; bytes && i < last * 64; i++)
        b->failed |= sha256_hex(bytes, READ_BYTES, hex, NULL) != ERR_OK;
    free(bytes);
}

static double hashing(struct bench *b)
{
    uint64_t begin = clock_ns();
    pool_run(b->pool, b->threads, 1, hash_bytes, b);
    return (double)b->threads * 64 * READ_BYTES / (double)(clock_ns() - begin);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *x, unsigned n)
{
    qsort(x, n, sizeof *x, by_value);
    return x[n / 2];
}

static void measure(struct bench *b, unsigned rounds, bool cold, bool hash)
{
    double reads[MAX_ROUNDS], checks[MAX_ROUNDS], ratios[MAX_ROUNDS], hashes[MAX_ROUNDS];
    for (unsigned i = 0; i < rounds; i++) {
        if (cold)
            drop_pages(b);
        reads[i] = plain(b);
        if (cold)
            drop_pages(b);
        checks[i] = payload(b, hash);
        ratios[i] = checks[i] / reads[i];
        hashes[i] = hash ? hashing(b) : 0;
    }
    printf("%-10s  %-7s  plain read %6.2f GB/s   payload %6.2f GB/s   ratio %.2f",
           cold ? "disk" : "page cache", hash ? "hashed" : "values", median(reads, rounds),
           median(checks, rounds), median(ratios, rounds));
    if (hash)
        printf("   SHA-256 alone %.2f GB/s", median(hashes, rounds));
    printf("\n");
}

int main(int argc, char **argv)
{
    struct bench b = {.threads = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 0};
    unsigned rounds = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 5;
    struct findings f;
    struct err e = {0};
    char text[1200];
    findings_init(&f, NULL);
    if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "usage: bench_payload MODEL [ROUNDS] [THREADS]\n");
        return 2;
    }
    if (b.threads == 0)
        b.threads = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    if (ckpt_open(&b.c, argv[1], &f, NULL, &e) || pool_open(&b.pool, b.threads, &e)) {
        fprintf(stderr, "bench_payload: %s\n", err_format(&e, text, sizeof text));
        return 3;
    }
    for (size_t i = 0; i < b.c->n_shards; i++)
        b.bytes += b.c->shards[i].file_bytes;
    printf("%zu files, %.2f GB, %u threads, %u rounds\n", b.c->n_shards, (double)b.bytes * 1e-9, b.threads,
           rounds);
    plain(&b); /* fills the page cache */
    for (int cold = 0; cold < 2; cold++)
        for (int hash = 0; hash < 2; hash++)
            measure(&b, rounds, cold, hash);
    pool_close(b.pool);
    ckpt_close(b.c);
    findings_release(&f);
    if (b.failed)
        fprintf(stderr, "bench_payload: a file could not be read whole\n");
    return b.failed ? 3 : 0;
}
