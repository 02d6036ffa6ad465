/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: where kernel text comes from: this machine, a tree of fixtures, or a capture; and keeping what was
 * read for a capture. Refuses to follow a capture's paths anywhere: they are names in a table and never reach
 * the file system.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/host_internal.h"
#include "host/host_parse.h"

static bool read_real(const char *root, const char *path, char *out, size_t bytes)
{
    char full[4096];
    int n = snprintf(full, sizeof full, "%s%s", root ? root : "", path);
    if (n < 0 || (size_t)n >= sizeof full)
        return false;
    int fd = open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    size_t have = 0;
    bool ok = true;
    while (have < bytes - 1) {
        ssize_t r = read(fd, out + have, bytes - 1 - have);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            ok = false;
        if (r <= 0)
            break;
        have += (size_t)r;
    }
    close(fd);
    out[have] = 0;
    return ok;
}

static bool read_captured(const struct json *files, const char *path, char *out, size_t bytes)
{
    const char *text = json_string(json_get(files, path));
    if (!text)
        return false;
    size_t n = strnlen(text, bytes - 1);
    memcpy(out, text, n);
    out[n] = 0;
    return true;
}

/* Of all mounts only those of control groups are anybody's business. */
static char *cgroup_lines(struct arena *arena, const char *text)
{
    struct strbuf b = STRBUF_INIT;
    while (*text) {
        size_t n = strcspn(text, "\n");
        const char *dash = strstr(text, " - cgroup");
        if (dash && dash < text + n) {
            strbuf_add(&b, text, n);
            strbuf_putc(&b, '\n');
        }
        text += n;
        text += *text == '\n';
    }
    char *copy = arena_strdup(arena, strbuf_cstr(&b));
    strbuf_release(&b);
    return copy;
}

static void record(struct host_record *r, const char *path, const char *text)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->files[i].path, path) == 0)
            return;
    if (r->n == HOST_MAX_CAPTURED || strlen(text) > HOST_MAX_CAPTURED_TEXT)
        return;
    char *name = arena_strdup(&r->arena, path);
    char *copy = strcmp(path, "/proc/self/mountinfo") == 0 ? cgroup_lines(&r->arena, text)
                                                           : arena_strdup(&r->arena, text);
    if (name && copy)
        r->files[r->n++] = (struct host_recorded){name, copy};
}

bool host_read_text(const struct host_source *from, const char *path, char *out, size_t bytes)
{
    if (bytes == 0)
        return false;
    if (from->capture)
        return read_captured(from->capture, path, out, bytes);
    if (!read_real(from->root, path, out, bytes))
        return false;
    if (from->record)
        record(from->record, path, out);
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Adds a name of n bytes unless it is there or the list is full. */
static void add_name(struct arena *arena, const char **names, size_t *n, size_t cap, const char *s,
                     size_t bytes)
{
    for (size_t i = 0; i < *n; i++)
        if (strncmp(names[i], s, bytes) == 0 && names[i][bytes] == 0)
            return;
    char *copy = *n < cap ? arena_strndup(arena, s, bytes) : NULL;
    if (copy)
        names[(*n)++] = copy;
}

size_t host_list(const struct host_source *from, const char *dir, struct arena *arena, const char **names,
                 size_t cap)
{
    size_t n = 0, length = strlen(dir);
    if (from->capture) {
        for (uint32_t i = 0; from->capture->type == JSON_OBJECT && i < from->capture->n; i++) {
            const char *path = from->capture->as.members[i].key;
            if (strncmp(path, dir, length) == 0 && path[length] == '/' && path[length + 1])
                add_name(arena, names, &n, cap, path + length + 1, strcspn(path + length + 1, "/"));
        }
    } else {
        char full[4096];
        int k = snprintf(full, sizeof full, "%s%s", from->root ? from->root : "", dir);
        DIR *d = k > 0 && (size_t)k < sizeof full ? opendir(full) : NULL;
        for (struct dirent *entry; d && n < cap && (entry = readdir(d)) != NULL;)
            if (entry->d_name[0] != '.')
                add_name(arena, names, &n, cap, entry->d_name, strlen(entry->d_name));
        if (d)
            closedir(d);
    }
    if (n > 1)
        qsort(names, n, sizeof *names, by_name);
    return n;
}
