/* SPDX-License-Identifier: Apache-2.0
 *
 * Facts about this machine: processor, caches, memory, topology (hwloc), kernel, libraries and their
 * versions, limits of this process. Every fact may be unknown, and then says so: strings are then NULL,
 * numbers 0.
 */
#ifndef HOST_HOST_H
#define HOST_HOST_H

#include "base/err.h"
#include "base/json.h"

/* version: as the library gives it at run time, or NULL where only its presence is known. */
struct host_library {
    const char *name, *version;
    const char *role;
    bool found;
};

struct host {
    struct arena arena;
    const char *hostname, *kernel, *os, *cpu_model, *arch;
    unsigned n_cores, n_threads_usable, n_sockets,
        n_numa;                  /* n_threads_usable honours affinity and the cgroup's CPU quota */
    uint64_t l2_bytes, l3_bytes; /* of one cache of that level */
    const char *cpu_flags;       /* the relevant ones: avx2 fma f16c avx512f ... amx */
    uint64_t memory_total, memory_available; /* bytes; available honours cgroup and RLIMIT_AS */
    const char *memory_limit_source;         /* "MemAvailable", "cgroup", "RLIMIT_AS" */
    uint64_t disk_free;                      /* of the directory asked about; 0 unknown */
    struct host_library *libraries;
    size_t n_libraries;
    const char *topology; /* multi-line text of sockets, caches, cores, NUMA, PCI devices */
    const char *compiler; /* that built this binary */
};

/* dir_for_disk: NULL, or a directory that may not exist yet (its nearest parent is asked). Only ERR_NOMEM is
 * possible. */
int host_open(struct host **out, const char *dir_for_disk, struct err *e);
void host_close(struct host *h);
void host_write_json(const struct host *h, struct json_writer *w);

/* The memory this process may still take, alone: cheap enough to ask before every large allocation. Returns
 * the name of the limit that binds ("MemAvailable", "cgroup", "RLIMIT_AS"), NULL when nothing is known. */
const char *host_memory_available(uint64_t *bytes);

#endif
