/* SPDX-License-Identifier: Apache-2.0
 *
 * Readers of kernel text files, pure functions over text so that tests can feed them fixtures. Private to
 * this room and its test.
 */
#ifndef HOST_HOST_PARSE_H
#define HOST_HOST_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"

#define HOST_NO_LIMIT UINT64_MAX

/* Where kernel files are read: this machine (all NULL), a tree of fixtures below `root`, or the files of a
 * capture. With `record` set, all that is read is kept there: that is what a capture holds. */
struct host_record;
struct host_source {
    const char *root;           /* put before every path; NULL: nothing */
    const struct json *capture; /* object: path -> text; NULL: the file system */
    struct host_record *record;
};

/* Bytes; MemAvailable is estimated as MemFree + Cached on kernels without it. false if MemTotal is missing.
 */
bool host_parse_meminfo(const char *text, uint64_t *total, uint64_t *available);

struct host_cpuinfo {
    char model[128];                        /* empty if unknown */
    unsigned n_logical, n_cores, n_sockets; /* cores and sockets 0 if the file does not tell them */
    char flags[512];                        /* the ones that matter here, in a fixed order */
};
void host_parse_cpuinfo(const char *text, struct host_cpuinfo *out);

/* Value of KEY= in /etc/os-release, unquoted. */
bool host_parse_os_release(const char *text, const char *key, char *out, size_t bytes);

/* A limit file of a cgroup: a number, or "max". v1 writes no limit as a number near INT64_MAX. false: not
 * such a file. */
bool host_parse_limit(const char *text, uint64_t *out);
/* "quota period" of cpu.max -> whole CPUs, rounded up; 0 for no quota. */
unsigned host_parse_cpu_max(const char *text);
/* Value of `key` in a "key value" table (memory.stat); 0 if absent. */
uint64_t host_parse_stat(const char *text, const char *key);

/* Path of this process in the v1 hierarchy that has `controller`, or in v2 (controller NULL), from
 * /proc/self/cgroup. */
bool host_parse_cgroup_path(const char *text, const char *controller, char *out, size_t bytes);
/* Where that hierarchy is mounted and which of its directories is the mount's root, from
 * /proc/self/mountinfo. */
bool host_parse_cgroup_mount(const char *text, const char *controller, char *point, size_t point_bytes,
                             char *root, size_t root_bytes);

/* What may still be taken under the cgroups of this process: the least over all levels of limit - (usage -
 * reclaimable page cache). HOST_NO_LIMIT if no level limits. */
uint64_t host_cgroup_memory(const struct host_source *from);
/* CPUs granted by quota, 0 for no limit. */
unsigned host_cgroup_cpus(const struct host_source *from);
/* Bytes left under a limit of address space of which `mapped` is in use. */
uint64_t host_address_space_left(uint64_t limit, uint64_t mapped);
/* The smallest of the three and its name. */
const char *host_least_memory(uint64_t mem_available, uint64_t cgroup, uint64_t address_space, uint64_t *out);

/* Text of a small file, NUL-terminated, cut to bytes - 1. false if it cannot be read. */
bool host_read_text(const struct host_source *from, const char *path, char *out, size_t bytes);
/* Names in a directory, sorted, at most `cap`; those of a capture are what its paths tell. In the arena. */
size_t host_list(const struct host_source *from, const char *dir, struct arena *arena, const char **names,
                 size_t cap);

#endif
