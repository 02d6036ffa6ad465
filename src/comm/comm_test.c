/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the self test of a communicator: patterns whose outcome every rank can compute alone, compared bit
 * for bit. Refuses: tolerance. Integer patterns have one right sum in any order; where a communicator states
 * a fixed tree, a second pattern whose sum depends on the order must come out as that tree gives it.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

#define DEADLINE_NS UINT64_C(20000000000)
#define MAX_RANKS   4096u

struct test {
    struct comm *c;
    uint32_t rank, n_ranks;
    uint64_t n;         /* floats */
    float *data, *part; /* [n], [n_ranks] */
    unsigned char *out; /* [n_ranks * n * 4] */
};

/* Small integers: exact in float32 also when thousands of ranks are summed. */
static float whole(uint32_t rank, uint64_t i)
{
    return (float)((int64_t)(rng_u64(rank, i) % 2001) - 1000);
}

/* Magnitudes far apart and both signs: the sum shows in which order it was made. */
static float uneven(uint32_t rank, uint64_t i)
{
    uint64_t r = rng_u64(rank + UINT64_C(0x10000), i);
    float v = (float)(1 + r % 8191);
    v = (r >> 32) % 3 ? v / 8192 : v * 4096;
    return (r >> 40) & 1 ? -v : v;
}

/* The fixed tree: neighbouring pairs, an odd one out goes up unchanged. */
static float tree_sum(float *part, uint32_t n)
{
    for (; n > 1; n = (n + 1) / 2)
        for (uint32_t i = 0; i < (n + 1) / 2; i++)
            part[i] = 2 * i + 1 < n ? part[2 * i] + part[2 * i + 1] : part[2 * i];
    return part[0];
}

static int test_reduce(const struct test *t, float (*pattern)(uint32_t, uint64_t), const char *name,
                       struct err *e)
{
    for (uint64_t i = 0; i < t->n; i++)
        t->data[i] = pattern(t->rank, i);
    int rc = comm_all_reduce_f32(t->c, t->data, t->n, DEADLINE_NS, e);
    for (uint64_t i = 0; rc == ERR_OK && i < t->n; i++) {
        for (uint32_t r = 0; r < t->n_ranks; r++)
            t->part[r] = pattern(r, i);
        float want = tree_sum(t->part, t->n_ranks);
        if (memcmp(&want, &t->data[i], sizeof(want)))
            rc = err_set(e, ERR_COMM,
                         "all_reduce (%s): element %llu of %llu is %.9g, must be %.9g, on rank %u of %u",
                         name, (unsigned long long)i, (unsigned long long)t->n, (double)t->data[i],
                         (double)want, t->rank, t->n_ranks);
    }
    return rc;
}

static unsigned char byte_of(uint32_t rank, uint64_t i)
{
    return (unsigned char)(rng_u64(rank + UINT64_C(0x20000), i / 8) >> (i % 8 * 8));
}

static int test_gather(const struct test *t, struct err *e)
{
    uint64_t bytes = t->n * sizeof(float);
    unsigned char *in = (unsigned char *)t->data;
    for (uint64_t i = 0; i < bytes; i++)
        in[i] = byte_of(t->rank, i);
    memset(t->out, 0, bytes * t->n_ranks);
    int rc = comm_all_gather(t->c, in, t->out, bytes, DEADLINE_NS, e);
    for (uint64_t i = 0; rc == ERR_OK && i < bytes * t->n_ranks; i++)
        if (t->out[i] != byte_of((uint32_t)(i / bytes), i % bytes))
            rc =
                err_set(e, ERR_COMM, "all_gather: byte %llu of rank %llu is %u, must be %u, on rank %u of %u",
                        (unsigned long long)(i % bytes), (unsigned long long)(i / bytes), t->out[i],
                        byte_of((uint32_t)(i / bytes), i % bytes), t->rank, t->n_ranks);
    return rc;
}

static int test_broadcast(const struct test *t, uint32_t root, struct err *e)
{
    uint64_t bytes = t->n * sizeof(float);
    unsigned char *data = (unsigned char *)t->data;
    for (uint64_t i = 0; i < bytes; i++)
        data[i] = t->rank == root ? byte_of(root + 7, i) : 0;
    int rc = comm_broadcast(t->c, data, bytes, root, DEADLINE_NS, e);
    for (uint64_t i = 0; rc == ERR_OK && i < bytes; i++)
        if (data[i] != byte_of(root + 7, i))
            rc = err_set(e, ERR_COMM, "broadcast from rank %u: byte %llu is %u, must be %u, on rank %u of %u",
                         root, (unsigned long long)i, data[i], byte_of(root + 7, i), t->rank, t->n_ranks);
    return rc;
}

static int run_all(const struct test *t, bool fixed_tree, struct err *e)
{
    int rc = comm_barrier(t->c, DEADLINE_NS, e);
    if (rc == ERR_OK)
        rc = test_reduce(t, whole, "whole numbers", e);
    if (rc == ERR_OK && fixed_tree)
        rc = test_reduce(t, uneven, "fixed tree", e);
    if (rc == ERR_OK)
        rc = test_gather(t, e);
    if (rc == ERR_OK)
        rc = test_broadcast(t, 0, e);
    if (rc == ERR_OK && t->n_ranks > 1)
        rc = test_broadcast(t, t->n_ranks - 1, e);
    return rc == ERR_OK ? comm_barrier(t->c, DEADLINE_NS, e) : rc;
}

int comm_self_test(struct comm *c, uint64_t bytes, char *what, size_t what_bytes, struct err *e)
{
    struct d0_comm_info info;
    int rc = comm_info(c, &info, e);
    if (rc != ERR_OK)
        return rc;
    if (info.n_ranks < 1 || info.n_ranks > MAX_RANKS || info.rank >= info.n_ranks)
        return err_set(e, ERR_COMM, "communicator %s: rank %u of %u", c->api->name, info.rank, info.n_ranks);
    struct test t = {.c = c, .rank = info.rank, .n_ranks = info.n_ranks, .n = bytes / sizeof(float)};
    t.n = t.n ? t.n : 1;
    uint64_t out_bytes;
    if (!mul_u64(t.n, sizeof(float) * info.n_ranks, &out_bytes) || out_bytes > PTRDIFF_MAX)
        return err_set(e, ERR_LIMIT, "self test of %llu bytes on %u ranks is too large",
                       (unsigned long long)bytes, info.n_ranks);
    t.data = malloc(t.n * sizeof(float));
    t.part = malloc(info.n_ranks * sizeof(float));
    t.out = malloc(out_bytes);
    bool fixed = info.order == D0_COMM_FIXED_TREE;
    rc = t.data && t.part && t.out
             ? run_all(&t, fixed, e)
             : err_set(e, ERR_NOMEM, "no memory for a self test of %llu bytes", (unsigned long long)bytes);
    free(t.data);
    free(t.part);
    free(t.out);
    if (rc == ERR_OK)
        snprintf(what, what_bytes,
                 "%s, %u rank%s: all_reduce, all_gather, broadcast and barrier exact on %llu bytes%s",
                 info.name, info.n_ranks, info.n_ranks == 1 ? "" : "s",
                 (unsigned long long)(t.n * sizeof(float)), fixed ? ", order fixed" : ", order not fixed");
    else
        snprintf(what, what_bytes, "%s, %u rank%s: failed", info.name, info.n_ranks,
                 info.n_ranks == 1 ? "" : "s");
    return rc;
}
