/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel text files on fixture text and fixture trees; then this machine, of which only what must hold
 * anywhere is asked.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "host/host.h"
#include "host/host_parse.h"

static void test_meminfo(void **state)
{
    (void)state;
    uint64_t total, available;
    assert_true(host_parse_meminfo("MemTotal:       1000 kB\nMemFree: 10 kB\nMemAvailable:  400 kB\n", &total,
                                   &available));
    assert_int_equal(total, 1024000);
    assert_int_equal(available, 409600);
    /* before Linux 3.14 */
    assert_true(host_parse_meminfo("MemTotal: 1000 kB\nMemFree: 10 kB\nCached: 20 kB\nSwapCached: 7 kB\n",
                                   &total, &available));
    assert_int_equal(available, 30 * 1024);
    assert_false(host_parse_meminfo("MemFree: 10 kB\n", &total, &available));
    assert_false(host_parse_meminfo("", &total, &available));
    assert_true(
        host_parse_meminfo("MemTotal: 99999999999999999999999 kB\nMemAvailable: x\n", &total, &available));
    assert_true(total == UINT64_MAX);
}

static void test_cpuinfo(void **state)
{
    (void)state;
    struct host_cpuinfo c;
    host_parse_cpuinfo(
        "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nphysical id\t: 0\ncore id\t\t: 0\n"
        "flags\t\t: fpu sse4_2 fma avx2 avx512f_not amx_tile\n\n"
        "processor\t: 1\nmodel name\t: other\nphysical id\t: 0\ncore id\t\t: 0\nflags: avx512f\n\n"
        "processor\t: 2\nphysical id\t: 1\ncore id\t\t: 0\n\n"
        "processor\t: 3\nphysical id\t: 1\ncore id\t\t: 1\n",
        &c);
    assert_string_equal(c.model, "Some CPU @ 2 GHz");
    assert_string_equal(c.flags, "sse4_2 avx2 fma amx_tile");
    assert_int_equal(c.n_logical, 4);
    assert_int_equal(c.n_cores, 3);
    assert_int_equal(c.n_sockets, 2);
    host_parse_cpuinfo("", &c);
    assert_int_equal(c.n_logical, 0);
    assert_string_equal(c.model, "");
    host_parse_cpuinfo("processor : 0\nFeatures : fp asimd sve", &c);
    assert_string_equal(c.flags, "asimd sve");
}

static void test_os_release(void **state)
{
    (void)state;
    char v[16];
    const char *text = "NAME=\"A\"\nPRETTY_NAME=\"Deb 12\"\nID=debian\nLONG='0123456789012345678901'\n";
    assert_true(host_parse_os_release(text, "PRETTY_NAME", v, sizeof v));
    assert_string_equal(v, "Deb 12");
    assert_true(host_parse_os_release(text, "ID", v, sizeof v));
    assert_string_equal(v, "debian");
    assert_true(host_parse_os_release(text, "LONG", v, sizeof v));
    assert_int_equal(strlen(v), sizeof v - 1);
    assert_false(host_parse_os_release(text, "VERSION", v, sizeof v));
}

static void test_limits(void **state)
{
    (void)state;
    uint64_t v;
    assert_true(host_parse_limit("max\n", &v) && v == HOST_NO_LIMIT);
    assert_true(host_parse_limit("4096\n", &v) && v == 4096);
    assert_true(host_parse_limit("9223372036854771712\n", &v) && v == HOST_NO_LIMIT); /* v1, pages of 4 KiB */
    assert_true(host_parse_limit("9223372036854710272\n", &v) &&
                v == HOST_NO_LIMIT); /* v1, pages of 64 KiB */
    assert_true(host_parse_limit("99999999999999999999\n", &v) && v == HOST_NO_LIMIT);
    assert_false(host_parse_limit("", &v));
    assert_false(host_parse_limit("-1", &v));
    assert_int_equal(host_parse_cpu_max("max 100000\n"), 0);
    assert_int_equal(host_parse_cpu_max("150000 100000\n"), 2);
    assert_int_equal(host_parse_cpu_max("-1 100000\n"), 0);
    assert_int_equal(host_parse_cpu_max("100000"), 0);
    assert_int_equal(host_parse_stat("anon 5\ninactive_file 77\ninactive_file_x 3\n", "inactive_file"), 77);
    assert_int_equal(host_parse_stat("anon 5\n", "inactive_file"), 0);
}

static void test_cgroup_path(void **state)
{
    (void)state;
    char p[64];
    const char *text = "12:cpu,cpuacct:/a/b\n4:memory:/m\n0::/v2\n";
    assert_true(host_parse_cgroup_path(text, "cpu", p, sizeof p));
    assert_string_equal(p, "/a/b");
    assert_true(host_parse_cgroup_path(text, "memory", p, sizeof p));
    assert_string_equal(p, "/m");
    assert_true(host_parse_cgroup_path(text, NULL, p, sizeof p));
    assert_string_equal(p, "/v2");
    assert_false(host_parse_cgroup_path(text, "mem", p, sizeof p));
    assert_false(host_parse_cgroup_path("garbage\n::\n", "cpu", p, sizeof p));
    char root[64];
    const char *mounts = "30 1 0:1 / / rw - ext4 /dev/x rw\n31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 "
                         "- cgroup2 cgroup rw\n"
                         "35 31 0:32 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    assert_true(host_parse_cgroup_mount(mounts, NULL, p, sizeof p, root, sizeof root));
    assert_string_equal(p, "/sys/fs/cgroup");
    assert_string_equal(root, "/");
    assert_true(host_parse_cgroup_mount(mounts, "memory", p, sizeof p, root, sizeof root));
    assert_string_equal(p, "/sys/fs/cgroup/memory");
    assert_string_equal(root, "/docker/1");
    assert_false(host_parse_cgroup_mount(mounts, "cpu", p, sizeof p, root, sizeof root));
    assert_false(host_parse_cgroup_mount("", NULL, p, sizeof p, root, sizeof root));
}

static void put(const char *root, const char *path, const char *text)
{
    char full[512], dir[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    snprintf(dir, sizeof dir, "%s", full);
    *strrchr(dir, '/') = 0;
    assert_int_equal(dir_make(dir, NULL), 0);
    assert_int_equal(file_write_atomic(full, text, strlen(text), NULL), 0);
}

static void remove_tree(const char *root)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
}

static void test_cgroup_walk(void **state)
{
    (void)state;
    char root[] = "/tmp/day0_host_XXXXXX";
    assert_non_null(mkdtemp(root));
    const struct host_source from = {.root = root};
    assert_true(host_cgroup_memory(&from) == HOST_NO_LIMIT);
    assert_int_equal(host_cgroup_cpus(&from), 0);
    put(root, "/proc/self/cgroup", "0::/job/step\n");
    put(root, "/proc/self/mountinfo", "31 23 0:28 / /cg rw - cgroup2 cgroup rw\n");
    assert_true(host_cgroup_memory(&from) == HOST_NO_LIMIT);
    /* the level in between binds: 1000 - (600 - 100) */
    put(root, "/cg/job/step/memory.max", "max\n");
    put(root, "/cg/job/memory.max", "1000\n");
    put(root, "/cg/job/memory.current", "600\n");
    put(root, "/cg/job/memory.stat", "anon 500\ninactive_file 100\n");
    put(root, "/cg/job/cpu.max", "250000 100000\n");
    assert_int_equal(host_cgroup_memory(&from), 500);
    assert_int_equal(host_cgroup_cpus(&from), 3);
    put(root, "/cg/job/step/memory.high", "300\n");
    put(root, "/cg/job/step/memory.current", "400\n");
    assert_int_equal(host_cgroup_memory(&from), 0);
    /* v1, in a container that sees its own group as the root of the mount */
    put(root, "/proc/self/cgroup", "4:memory:/docker/x\n1:cpu:/docker/x\n");
    put(root, "/proc/self/mountinfo",
        "35 31 0:32 /docker/x /cg/memory rw - cgroup cgroup rw,memory\n"
        "36 31 0:33 /docker/x /cg/cpu rw - cgroup cgroup rw,cpu\n");
    put(root, "/cg/memory/memory.limit_in_bytes", "5000\n");
    put(root, "/cg/memory/memory.usage_in_bytes", "1000\n");
    put(root, "/cg/cpu/cpu.cfs_quota_us", "100000\n");
    put(root, "/cg/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(host_cgroup_memory(&from), 4000);
    assert_int_equal(host_cgroup_cpus(&from), 1);
    remove_tree(root);
}

static void test_least(void **state)
{
    (void)state;
    uint64_t v;
    assert_string_equal(host_least_memory(10, 20, 30, &v), "MemAvailable");
    assert_string_equal(host_least_memory(30, 20, 25, &v), "cgroup");
    assert_int_equal(v, 20);
    assert_string_equal(host_least_memory(HOST_NO_LIMIT, HOST_NO_LIMIT, 5, &v), "RLIMIT_AS");
    assert_int_equal(v, 5);
    assert_null(host_least_memory(HOST_NO_LIMIT, HOST_NO_LIMIT, HOST_NO_LIMIT, &v));
    assert_int_equal(v, 0);
    assert_int_equal(host_address_space_left(100, 40), 60);
    assert_int_equal(host_address_space_left(100, 140), 0);
}

static const char *library_version(const struct host *h, const char *name)
{
    for (size_t i = 0; i < h->n_libraries; i++)
        if (strcmp(h->libraries[i].name, name) == 0)
            return h->libraries[i].found ? h->libraries[i].version : NULL;
    return NULL;
}

static void test_this_machine(void **state)
{
    (void)state;
    struct host *h;
    struct err e;
    assert_int_equal(host_open(&h, "/tmp/does/not/exist/yet", &e), 0);
    assert_non_null(h->kernel);
    assert_non_null(h->compiler);
    assert_true(h->n_threads_usable >= 1);
    assert_true(h->memory_total > 0);
    assert_true(h->memory_available <= h->memory_total);
    assert_non_null(h->memory_limit_source);
    assert_true(h->disk_free > 0);
    assert_non_null(library_version(h, "openssl"));
    assert_non_null(library_version(h, "libevent"));
    assert_non_null(library_version(h, "libcurl"));
    struct strbuf b = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &b, true);
    host_write_json(h, &w);
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    const struct json *doc;
    assert_int_equal(json_parse(strbuf_cstr(&b), b.len, NULL, &a, &doc, &e), 0);
    assert_non_null(json_get(json_get(doc, "memory"), "limited_by"));
    assert_true(json_get(doc, "libraries")->n >= 6);
    arena_release(&a);
    strbuf_release(&b);
    host_close(h);
}

/* A limit of address space must show, less what is mapped already. */
static void test_address_space(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char text[128];
        uint64_t bytes, room = (uint64_t)1 << 30;
        if (!host_read_text(&(struct host_source){0}, "/proc/self/statm", text, sizeof text))
            _exit(8);
        rlim_t mapped = strtoull(text, NULL, 10) * (rlim_t)sysconf(_SC_PAGESIZE);
        struct rlimit r = {mapped + room, mapped + room};
        if (setrlimit(RLIMIT_AS, &r) != 0)
            _exit(9);
        const char *source = host_memory_available(&bytes);
        /* a machine may have even less than that */
        _exit(source && bytes <= room && (strcmp(source, "RLIMIT_AS") == 0) == (bytes > room / 2) ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meminfo),       cmocka_unit_test(test_cpuinfo),
        cmocka_unit_test(test_os_release),    cmocka_unit_test(test_limits),
        cmocka_unit_test(test_cgroup_path),   cmocka_unit_test(test_cgroup_walk),
        cmocka_unit_test(test_least),         cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_address_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
