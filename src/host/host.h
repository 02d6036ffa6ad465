/* SPDX-License-Identifier: Apache-2.0
 *
 * Facts about this machine: processor, caches, memory, topology (hwloc), kernel, libraries and their versions, limits of this process.
 * Every fact may be unknown, and then says so.
 */
#ifndef HOST_HOST_H
#define HOST_HOST_H

#include "base/err.h"
#include "base/json.h"

struct host_library { const char *name, *version; const char *role; bool found; };

struct host {
    struct arena arena;
    const char *hostname, *kernel, *os, *cpu_model, *arch;
    unsigned n_cores, n_threads_usable, n_sockets, n_numa;
    uint64_t l2_bytes, l3_bytes;
    const char *cpu_flags;        /* the relevant ones: avx2 fma f16c avx512f ... amx */
    uint64_t memory_total, memory_available; /* bytes; available honours cgroup and RLIMIT_AS */
    const char *memory_limit_source;         /* "MemAvailable", "cgroup", "RLIMIT_AS" */
    uint64_t disk_free;           /* of the directory asked about; 0 unknown */
    struct host_library *libraries;
    size_t n_libraries;
    const char *topology;         /* multi-line text of sockets, caches, cores, NUMA, PCI devices */
    const char *compiler;         /* that built this binary */
};

int host_open(struct host **out, const char *dir_for_disk, struct err *e);
void host_close(struct host *h);
void host_write_json(const struct host *h, struct json_writer *w);

#endif
