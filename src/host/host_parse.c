/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the meaning of kernel text files: meminfo, cpuinfo, os-release, cgroup control files. Refuses to fail:
 * what cannot be read or understood is unknown.
 */
#include "host/host_parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Next line of *text without its newline; false at the end. */
static bool next_line(const char **text, const char **line, size_t *n)
{
    if (**text == 0)
        return false;
    *line = *text;
    *n = strcspn(*text, "\n");
    *text += *n;
    if (**text == '\n')
        (*text)++;
    return true;
}

static void copy_text(char *out, size_t bytes, const char *s, size_t n)
{
    if (bytes == 0)
        return;
    if (n >= bytes)
        n = bytes - 1;
    memcpy(out, s, n);
    out[n] = 0;
}

/* "MemTotal:   123 kB" in bytes; saturates. */
static bool meminfo_line(const char *line, size_t n, const char *key, uint64_t *out)
{
    size_t k = strlen(key);
    if (n <= k || memcmp(line, key, k) != 0 || line[k] != ':')
        return false;
    *out = sat_mul(strtoull(line + k + 1, NULL, 10), 1024);
    return true;
}

bool host_parse_meminfo(const char *text, uint64_t *total, uint64_t *available)
{
    uint64_t t = 0, a = 0, free_bytes = 0, cached = 0;
    bool have_total = false, have_available = false;
    const char *line;
    size_t n;
    while (next_line(&text, &line, &n)) {
        have_total |= meminfo_line(line, n, "MemTotal", &t);
        have_available |= meminfo_line(line, n, "MemAvailable", &a);
        meminfo_line(line, n, "MemFree", &free_bytes);
        meminfo_line(line, n, "Cached", &cached);
    }
    if (!have_total)
        return false;
    if (!have_available)
        a = sat_add(free_bytes, cached);
    *total = t;
    *available = a < t ? a : t;
    return true;
}

/* "key<blanks>: value" of /proc/cpuinfo. */
static bool cpuinfo_value(const char *line, size_t n, const char *key, const char **value, size_t *value_n)
{
    size_t k = strlen(key);
    if (n <= k || memcmp(line, key, k) != 0)
        return false;
    size_t i = k;
    while (i < n && (line[i] == ' ' || line[i] == '\t'))
        i++;
    if (i >= n || line[i] != ':')
        return false;
    i++;
    while (i < n && line[i] == ' ')
        i++;
    *value = line + i;
    *value_n = n - i;
    return true;
}

static bool has_word(const char *s, size_t n, const char *word)
{
    size_t k = strlen(word);
    for (size_t i = 0; i + k <= n;) {
        size_t end = i;
        while (end < n && s[end] != ' ')
            end++;
        if (end - i == k && memcmp(s + i, word, k) == 0)
            return true;
        i = end + 1;
    }
    return false;
}

static void pick_flags(const char *s, size_t n, char *out, size_t bytes)
{
    static const char *const wanted[] = {
        "sse4_2",     "avx",          "avx2",     "fma",      "f16c",        "avx_vnni",    "avx512f",
        "avx512bw",   "avx512dq",     "avx512vl", "avx512cd", "avx512_vnni", "avx512_bf16", "avx512_fp16",
        "avx512vbmi", "avx512_vbmi2", "amx_tile", "amx_bf16", "amx_int8",    "asimd",       "asimddp",
        "sve",        "sve2",         "bf16",     "i8mm",     "hypervisor",
    };
    size_t len = 0;
    out[0] = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (!has_word(s, n, wanted[i]))
            continue;
        int w = snprintf(out + len, bytes - len, "%s%s", len ? " " : "", wanted[i]);
        if (w < 0 || (size_t)w >= bytes - len) {
            out[len] = 0;
            return;
        }
        len += (size_t)w;
    }
}

#define HOST_MAX_CPUS 4096

/* Adds key to a sorted-by-arrival set; returns whether it was new. Past the cap nothing is new. */
static bool set_add(uint64_t *set, unsigned *n, uint64_t key)
{
    for (unsigned i = *n; i > 0; i--)
        if (set[i - 1] == key)
            return false;
    if (*n >= HOST_MAX_CPUS)
        return false;
    set[(*n)++] = key;
    return true;
}

void host_parse_cpuinfo(const char *text, struct host_cpuinfo *out)
{
    memset(out, 0, sizeof *out);
    uint64_t *cores = calloc(2 * (size_t)HOST_MAX_CPUS, sizeof *cores);
    uint64_t *sockets = cores ? cores + HOST_MAX_CPUS : NULL;
    uint64_t physical = 0;
    const char *line, *v;
    size_t n, vn;
    while (next_line(&text, &line, &n)) {
        if (cpuinfo_value(line, n, "processor", &v, &vn)) {
            out->n_logical++;
            physical = 0;
        } else if (!out->model[0] && cpuinfo_value(line, n, "model name", &v, &vn)) {
            copy_text(out->model, sizeof out->model, v, vn);
        } else if (!out->flags[0] && (cpuinfo_value(line, n, "flags", &v, &vn) ||
                                      cpuinfo_value(line, n, "Features", &v, &vn))) {
            pick_flags(v, vn, out->flags, sizeof out->flags);
        } else if (cores && cpuinfo_value(line, n, "physical id", &v, &vn)) {
            physical = strtoull(v, NULL, 10) & 0xffffffffu;
            set_add(sockets, &out->n_sockets, physical);
        } else if (cores && cpuinfo_value(line, n, "core id", &v, &vn)) {
            set_add(cores, &out->n_cores, physical << 32 | (strtoull(v, NULL, 10) & 0xffffffffu));
        }
    }
    free(cores);
}

bool host_parse_os_release(const char *text, const char *key, char *out, size_t bytes)
{
    size_t k = strlen(key);
    const char *line;
    size_t n;
    while (next_line(&text, &line, &n)) {
        if (n <= k || memcmp(line, key, k) != 0 || line[k] != '=')
            continue;
        const char *v = line + k + 1;
        size_t vn = n - k - 1;
        if (vn >= 2 && (v[0] == '"' || v[0] == '\'') && v[vn - 1] == v[0]) {
            v++;
            vn -= 2;
        }
        copy_text(out, bytes, v, vn);
        return true;
    }
    return false;
}

bool host_parse_limit(const char *text, uint64_t *out)
{
    while (*text == ' ')
        text++;
    if (strncmp(text, "max", 3) == 0) {
        *out = HOST_NO_LIMIT;
        return true;
    }
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    uint64_t v = strtoull(text, NULL, 10);
    /* v1 prints "no limit" as INT64_MAX rounded down to a page */
    *out = errno || v >= (uint64_t)INT64_MAX / 65536 * 65536 ? HOST_NO_LIMIT : v;
    return true;
}

unsigned host_parse_cpu_max(const char *text)
{
    if (*text < '0' || *text > '9')
        return 0;
    char *end;
    uint64_t quota = strtoull(text, &end, 10);
    uint64_t period = strtoull(end, NULL, 10);
    if (quota == 0 || period == 0)
        return 0;
    uint64_t cpus = quota / period + (quota % period != 0);
    return cpus > HOST_MAX_CPUS ? 0 : (unsigned)cpus;
}

uint64_t host_parse_stat(const char *text, const char *key)
{
    size_t k = strlen(key);
    const char *line;
    size_t n;
    while (next_line(&text, &line, &n))
        if (n > k && memcmp(line, key, k) == 0 && line[k] == ' ')
            return strtoull(line + k + 1, NULL, 10);
    return 0;
}

uint64_t host_address_space_left(uint64_t limit, uint64_t mapped)
{
    if (limit == HOST_NO_LIMIT)
        return HOST_NO_LIMIT;
    return mapped >= limit ? 0 : limit - mapped;
}

const char *host_least_memory(uint64_t mem_available, uint64_t cgroup, uint64_t address_space, uint64_t *out)
{
    const char *source = mem_available == HOST_NO_LIMIT ? NULL : "MemAvailable";
    *out = mem_available;
    if (cgroup < *out) {
        *out = cgroup;
        source = "cgroup";
    }
    if (address_space < *out) {
        *out = address_space;
        source = "RLIMIT_AS";
    }
    if (!source)
        *out = 0;
    return source;
}
