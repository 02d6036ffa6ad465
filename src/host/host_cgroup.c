/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the walk over the control groups of this process, v2 and v1, for memory and CPU limits. A container
 * may show its own group as the root of the mount, so levels that do not exist below the mount point are
 * passed over.
 */
#include "host/host_parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool in_list(const char *list, size_t n, const char *word)
{
    size_t k = strlen(word);
    for (size_t i = 0; i <= n;) {
        size_t end = i;
        while (end < n && list[end] != ',')
            end++;
        if (end - i == k && memcmp(list + i, word, k) == 0)
            return true;
        i = end + 1;
    }
    return false;
}

static bool copy_whole(char *out, size_t bytes, const char *s, size_t n)
{
    if (n >= bytes)
        return false;
    memcpy(out, s, n);
    out[n] = 0;
    return true;
}

/* Lines "ID:controllers:/path"; v2 is the one with an empty list of controllers. */
bool host_parse_cgroup_path(const char *text, const char *controller, char *out, size_t bytes)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        const char *a = memchr(text, ':', n);
        const char *b = a ? memchr(a + 1, ':', n - (size_t)(a + 1 - text)) : NULL;
        if (b) {
            size_t list_n = (size_t)(b - a - 1);
            bool match = controller ? in_list(a + 1, list_n, controller) : list_n == 0;
            if (match)
                return copy_whole(out, bytes, b + 1, n - (size_t)(b + 1 - text));
        }
        text += n;
        text += *text == '\n';
    }
    return false;
}

/* Splits a line at blanks; returns the number of fields, at most cap. */
static size_t split(const char *line, size_t n, const char **field, size_t *length, size_t cap)
{
    size_t count = 0, i = 0;
    while (i < n && count < cap) {
        while (i < n && line[i] == ' ')
            i++;
        size_t start = i;
        while (i < n && line[i] != ' ')
            i++;
        if (i > start) {
            field[count] = line + start;
            length[count++] = i - start;
        }
    }
    return count;
}

static bool is_word(const char *field, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(field, word, n) == 0;
}

/* mountinfo: id parent major:minor root point options [optional...] - type source super-options */
bool host_parse_cgroup_mount(const char *text, const char *controller, char *point, size_t point_bytes,
                             char *root, size_t root_bytes)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        const char *f[64];
        size_t l[64];
        size_t count = split(text, n, f, l, 64), dash = 6;
        while (dash < count && !is_word(f[dash], l[dash], "-"))
            dash++;
        if (count > 6 && dash + 3 < count) {
            bool v2 = is_word(f[dash + 1], l[dash + 1], "cgroup2");
            bool v1 = is_word(f[dash + 1], l[dash + 1], "cgroup");
            bool match = controller ? v1 && in_list(f[dash + 3], l[dash + 3], controller) : v2;
            if (match)
                return copy_whole(root, root_bytes, f[3], l[3]) && copy_whole(point, point_bytes, f[4], l[4]);
        }
        text += n;
        text += *text == '\n';
    }
    return false;
}

#define HOST_PATH 2048
#define HOST_TEXT 16384

struct group_files {
    const char *controller; /* NULL: v2 */
    const char *limits[2];
    const char *usage, *reclaimable;
};

static bool read_file(const struct host_source *from, const char *dir, const char *name, char *out,
                      size_t bytes)
{
    char path[2 * HOST_PATH + 64];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n > 0 && (size_t)n < sizeof path && host_read_text(from, path, out, bytes);
}

/* Directory of this process's group, as seen below the mount point. *point_length: where walking up must
 * stop. */
static bool group_dir(const struct host_source *from, const char *controller, char *dir, size_t bytes,
                      size_t *point_length)
{
    char path[HOST_PATH], point[HOST_PATH], mount_root[HOST_PATH];
    char *text = malloc(1 << 20);
    if (!text)
        return false;
    bool ok = host_read_text(from, "/proc/self/cgroup", text, 1 << 20) &&
              host_parse_cgroup_path(text, controller, path, sizeof path) &&
              host_read_text(from, "/proc/self/mountinfo", text, 1 << 20) &&
              host_parse_cgroup_mount(text, controller, point, sizeof point, mount_root, sizeof mount_root);
    free(text);
    if (!ok || strstr(path, ".."))
        return false;
    const char *below = path;
    size_t k = strlen(mount_root);
    if (k > 1 && strncmp(path, mount_root, k) == 0 && (path[k] == '/' || path[k] == 0))
        below = path + k;
    int n = snprintf(dir, bytes, "%s%s", point, below);
    if (n < 0 || (size_t)n >= bytes)
        return false;
    *point_length = strlen(point);
    while (n > (int)*point_length && dir[n - 1] == '/')
        dir[--n] = 0;
    return true;
}

/* Cuts the last component; false once the mount point itself was visited. */
static bool parent(char *dir, size_t point_length)
{
    size_t n = strlen(dir);
    if (n <= point_length)
        return false;
    while (n > point_length && dir[n - 1] != '/')
        n--;
    while (n > point_length && dir[n - 1] == '/')
        n--;
    dir[n] = 0;
    return true;
}

static uint64_t level_memory(const struct host_source *from, const char *dir, const struct group_files *g,
                             char *text)
{
    uint64_t limit = HOST_NO_LIMIT, v;
    for (int i = 0; i < 2; i++)
        if (g->limits[i] && read_file(from, dir, g->limits[i], text, HOST_TEXT) &&
            host_parse_limit(text, &v) && v < limit)
            limit = v;
    if (limit == HOST_NO_LIMIT)
        return limit;
    uint64_t usage = 0, cache = 0;
    if (read_file(from, dir, g->usage, text, HOST_TEXT) && host_parse_limit(text, &v) && v != HOST_NO_LIMIT)
        usage = v;
    if (read_file(from, dir, "memory.stat", text, HOST_TEXT))
        cache = host_parse_stat(text, g->reclaimable);
    /* pages of files not used lately are given up before the group is out of memory */
    usage = cache >= usage ? 0 : usage - cache;
    return usage >= limit ? 0 : limit - usage;
}

uint64_t host_cgroup_memory(const struct host_source *from)
{
    static const struct group_files versions[] = {
        {NULL, {"memory.max", "memory.high"}, "memory.current", "inactive_file"},
        {"memory", {"memory.limit_in_bytes", NULL}, "memory.usage_in_bytes", "total_inactive_file"},
    };
    char dir[2 * HOST_PATH];
    char *text = malloc(HOST_TEXT);
    uint64_t least = HOST_NO_LIMIT;
    size_t point;
    for (size_t i = 0; text && i < 2; i++) {
        if (!group_dir(from, versions[i].controller, dir, sizeof dir, &point))
            continue;
        do {
            uint64_t v = level_memory(from, dir, &versions[i], text);
            least = v < least ? v : least;
        } while (parent(dir, point));
    }
    free(text);
    return least;
}

unsigned host_cgroup_cpus(const struct host_source *from)
{
    char dir[2 * HOST_PATH], text[256], period[128];
    unsigned least = 0;
    size_t point;
    for (int v1 = 0; v1 < 2; v1++) {
        if (!group_dir(from, v1 ? "cpu" : NULL, dir, sizeof dir, &point))
            continue;
        do {
            unsigned cpus = 0;
            if (v1 && read_file(from, dir, "cpu.cfs_quota_us", text, 100) &&
                read_file(from, dir, "cpu.cfs_period_us", period, sizeof period)) {
                size_t n = strcspn(text, "\n");
                snprintf(text + n, sizeof text - n, " %s", period);
                cpus = host_parse_cpu_max(text);
            } else if (!v1 && read_file(from, dir, "cpu.max", text, sizeof text)) {
                cpus = host_parse_cpu_max(text);
            }
            if (cpus && (!least || cpus < least))
                least = cpus;
        } while (parent(dir, point));
    }
    return least;
}
