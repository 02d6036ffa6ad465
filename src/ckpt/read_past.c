/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: reading of a tensor past the page cache, for models that are streamed once. What is in the cache is
 * taken from there; the rest comes by direct reads into aligned memory and is copied to its place, since
 * tensors begin anywhere. Refuses to fail where only this way fails: then it is an ordinary read.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt/ckpt_internal.h"

#define CANNOT    (-2)
#define MAX_PAGES 2048u /* looked at in one call */

/* The same file opened once more, by its descriptor: its name may mean another one by now. */
static int past_fd(struct ckpt_shard *s, int fd)
{
    int have = __atomic_load_n(&s->past_fd, __ATOMIC_ACQUIRE);
    if (have != -1)
        return have;
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    opened = opened < 0 ? CANNOT : opened;
    if (__atomic_compare_exchange_n(&s->past_fd, &have, opened, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return opened;
    if (opened >= 0)
        close(opened);
    return have;
}

/* Whether the cache holds all of these bytes. Nothing is touched: the mapping is there to be asked about. */
static bool cached(int fd, uint64_t at, uint64_t n)
{
    unsigned char in[MAX_PAGES];
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), begin = at / page * page;
    const uint64_t pages = (at + n - begin + page - 1) / page;
    if (pages > MAX_PAGES)
        return false;
    void *map = mmap(NULL, pages * page, PROT_READ, MAP_SHARED, fd, (off_t)begin);
    if (map == MAP_FAILED)
        return false;
    bool all = mincore(map, pages * page, in) == 0;
    for (uint64_t i = 0; all && i < pages; i++)
        all = in[i] & 1;
    munmap(map, pages * page);
    return all;
}

/* All of the bytes, or false: then nothing is said about why. */
static bool direct(int fd, uint64_t at, uint64_t n, void *buf, unsigned char *bounce)
{
    const uint64_t begin = at / CKPT_PAST_ALIGN * CKPT_PAST_ALIGN,
                   want = ALIGN_UP(at + n, CKPT_PAST_ALIGN) - begin;
    uint64_t got = 0;
    while (got < at + n - begin) {
        ssize_t r = pread(fd, bounce + got, want - got, (off_t)(begin + got));
        if (r < 0 && errno == EINTR)
            continue;
        /* a short read goes on only from where a direct read may begin */
        if (r <= 0 || (r % CKPT_PAST_ALIGN && got + (uint64_t)r < at + n - begin))
            return false;
        got += (uint64_t)r;
    }
    memcpy(buf, bounce + (at - begin), n);
    return true;
}

int ckpt_read_past(struct ckpt *c, const struct ckpt_tensor *t, uint64_t offset, void *buf, uint64_t n,
                   unsigned char *bounce, struct err *e)
{
    uint64_t at = 0;
    int fd, rc = ckpt_range(c, t, offset, n, &at, e);
    if (rc || n == 0)
        return rc;
    struct ckpt_shard *s = &c->shards[t->shard];
    rc = ckpt_shard_fd(c, s, &fd, e);
    if (rc)
        return rc;
    int past = past_fd(s, fd);
    if (past >= 0 && !cached(fd, at, n) && direct(past, at, n, buf, bounce))
        return ERR_OK;
    return ckpt_read(c, t, offset, buf, n, e);
}
