/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns struct host: gathers the facts of this machine and of this process's limits. Runs no other program and
 * needs no privilege; a fact that cannot be had stays unknown.
 */
#include "host/host.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "host/host_internal.h"
#include "host/host_parse.h"

#define HOST_CPUINFO_BYTES ((size_t)8 << 20) /* thousands of processors of about 2 kB each */

#if defined(__clang__)
#define HOST_COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define HOST_COMPILER "gcc " __VERSION__
#else
#define HOST_COMPILER NULL
#endif

static const struct host_source this_machine = {0};

static uint64_t address_space_left(void)
{
    struct rlimit r;
    char text[128];
    if (getrlimit(RLIMIT_AS, &r) != 0 || r.rlim_cur == RLIM_INFINITY)
        return HOST_NO_LIMIT;
    uint64_t pages = 0;
    if (host_read_text(&this_machine, "/proc/self/statm", text, sizeof text))
        pages = strtoull(text, NULL, 10);
    return host_address_space_left(r.rlim_cur, pages * (uint64_t)sysconf(_SC_PAGESIZE));
}

static const char *memory_facts(const struct host_source *from, uint64_t address_space, uint64_t *total,
                                uint64_t *available)
{
    char text[8192];
    uint64_t free_bytes = HOST_NO_LIMIT;
    *total = 0;
    if (!host_read_text(from, "/proc/meminfo", text, sizeof text) ||
        !host_parse_meminfo(text, total, &free_bytes))
        free_bytes = HOST_NO_LIMIT;
    return host_least_memory(free_bytes, host_cgroup_memory(from), address_space, available);
}

const char *host_memory_available(uint64_t *bytes)
{
    uint64_t total;
    return memory_facts(&this_machine, address_space_left(), &total, bytes);
}

static void read_cpu(struct host *h, const struct host_source *from)
{
    struct host_cpuinfo info = {0};
    char *text = malloc(HOST_CPUINFO_BYTES);
    if (text && host_read_text(from, "/proc/cpuinfo", text, HOST_CPUINFO_BYTES))
        host_parse_cpuinfo(text, &info);
    free(text);
    if (info.model[0])
        h->cpu_model = arena_strdup(&h->arena, info.model);
    if (info.flags[0])
        h->cpu_flags = arena_strdup(&h->arena, info.flags);
    /* hwloc knows better where it ran */
    if (!h->n_cores)
        h->n_cores = info.n_cores ? info.n_cores : info.n_logical;
    if (!h->n_sockets)
        h->n_sockets = info.n_sockets;
    unsigned usable = h->n_threads_allowed ? h->n_threads_allowed : info.n_logical;
    unsigned quota = host_cgroup_cpus(from);
    h->n_threads_usable = quota && quota < usable ? quota : usable;
}

void host_read_facts(struct host *h, const struct host_source *from)
{
    char text[8192], name[256];
    if ((host_read_text(from, "/etc/os-release", text, sizeof text) ||
         host_read_text(from, "/usr/lib/os-release", text, sizeof text)) &&
        host_parse_os_release(text, "PRETTY_NAME", name, sizeof name))
        h->os = arena_strdup(&h->arena, name);
    read_cpu(h, from);
    host_read_devices(h, from);
    h->memory_limit_source =
        memory_facts(from, h->address_space_left, &h->memory_total, &h->memory_available);
}

/* What the kernel tells by calls, not by text. */
static void probe_system(struct host *h)
{
    struct utsname u;
    cpu_set_t set;
    if (uname(&u) == 0) {
        h->hostname = arena_strdup(&h->arena, u.nodename);
        h->kernel = arena_printf(&h->arena, "%s %s", u.sysname, u.release);
        h->arch = arena_strdup(&h->arena, u.machine);
    }
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        h->n_threads_allowed = (unsigned)CPU_COUNT(&set);
    h->address_space_left = address_space_left();
    if (HOST_COMPILER)
        h->compiler = arena_strdup(&h->arena, HOST_COMPILER);
}

/* Free bytes for us where `dir` is or will be: asks the nearest directory that exists. */
static uint64_t disk_free(const char *dir)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s", *dir ? dir : ".");
    if (n < 0 || (size_t)n >= sizeof path)
        return 0;
    for (;;) {
        struct statvfs v;
        if (statvfs(path, &v) == 0)
            return sat_mul(v.f_bavail, v.f_frsize);
        char *slash = strrchr(path, '/');
        if (!slash && path[0] == '.' && path[1] == 0)
            return 0;
        if (slash == path && path[1] == 0)
            return 0;
        if (slash)
            slash[slash == path] = 0;
        else
            memcpy(path, ".", 2);
    }
}

int host_open_live(struct host **out, const char *dir_for_disk, struct host_record *record, struct err *e)
{
    const struct host_source from = {.record = record};
    struct host *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, ERR_NOMEM, "no memory for the facts of this machine");
    arena_init(&h->arena, NULL, MEM_MISC);
    host_probe_topology(h);
    probe_system(h);
    if (dir_for_disk)
        h->disk_free = disk_free(dir_for_disk);
    if (host_probe_libraries(h) != 0) {
        host_close(h);
        return err_set(e, ERR_NOMEM, "no memory for the list of libraries");
    }
    host_read_facts(h, &from);
    *out = h;
    return ERR_OK;
}

int host_open(struct host **out, const char *dir_for_disk, struct err *e)
{
    return host_open_live(out, dir_for_disk, NULL, e);
}

void host_close(struct host *h)
{
    if (!h)
        return;
    arena_release(&h->arena);
    free(h);
}

void host_put_known(struct json_writer *w, const char *key, uint64_t v, uint64_t unknown)
{
    json_key(w, key);
    if (v == unknown)
        json_write_null(w);
    else
        json_write_u64(w, v);
}

static void put_count(struct json_writer *w, const char *key, uint64_t v)
{
    host_put_known(w, key, v, 0);
}

static void write_devices(const struct host *h, struct json_writer *w)
{
    json_key(w, "cards");
    json_begin_array(w);
    for (size_t i = 0; i < h->n_cards; i++) {
        json_begin_object(w);
        json_put_string(w, "address", h->cards[i].address);
        json_put_string(w, "vendor", h->cards[i].vendor);
        json_put_string(w, "device", h->cards[i].device);
        json_put_string(w, "model", h->cards[i].model);
        json_end_object(w);
    }
    json_end_array(w);
    json_key(w, "links");
    json_begin_array(w);
    for (size_t i = 0; i < h->n_links; i++) {
        json_begin_object(w);
        json_put_string(w, "name", h->links[i].name);
        json_put_string(w, "rate", h->links[i].rate);
        json_put_string(w, "state", h->links[i].state);
        json_end_object(w);
    }
    json_end_array(w);
}

void host_write_members(const struct host *h, struct json_writer *w)
{
    json_put_string(w, "hostname", h->hostname);
    json_put_string(w, "os", h->os);
    json_put_string(w, "kernel", h->kernel);
    json_put_string(w, "arch", h->arch);
    json_put_string(w, "compiler", h->compiler);
    json_key(w, "cpu");
    json_begin_object(w);
    json_put_string(w, "model", h->cpu_model);
    json_put_string(w, "flags", h->cpu_flags);
    put_count(w, "sockets", h->n_sockets);
    put_count(w, "numa_nodes", h->n_numa);
    put_count(w, "cores", h->n_cores);
    put_count(w, "threads_usable", h->n_threads_usable);
    put_count(w, "l2_bytes", h->l2_bytes);
    put_count(w, "l3_bytes", h->l3_bytes);
    json_end_object(w);
    json_key(w, "memory");
    json_begin_object(w);
    put_count(w, "total_bytes", h->memory_total);
    json_key(w, "available_bytes");
    if (h->memory_limit_source)
        json_write_u64(w, h->memory_available);
    else
        json_write_null(w);
    json_put_string(w, "limited_by", h->memory_limit_source);
    json_end_object(w);
    put_count(w, "disk_free_bytes", h->disk_free);
    host_put_libraries(w, h);
    write_devices(h, w);
    json_put_string(w, "topology", h->topology);
    json_put_string(w, "capture", h->capture);
    json_put_string(w, "taken_at", h->taken_at);
}

void host_write_json(const struct host *h, struct json_writer *w)
{
    json_begin_object(w);
    host_write_members(h, w);
    json_end_object(w);
}
