/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: reading, replacing and listing files, with messages that name the path.
 * Refuses: unbounded reads, FIFOs and devices where a file is expected, and half-written files.
 */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(struct err *e, const char *what, const char *path)
{
    int code = errno;
    /* %m is errno's text, thread-safe in glibc and musl */
    return err_set(e,
                   code == ENOENT || code == ENOTDIR ? ERR_MISSING
                   : code == ENOMEM                  ? ERR_NOMEM
                                                     : ERR_IO,
                   "%s: %s: %m", path, what);
}

static void fill_info(const struct stat *st, struct file_info *out)
{
    *out = (struct file_info){
        .exists = true,
        .is_dir = S_ISDIR(st->st_mode),
        .is_file = S_ISREG(st->st_mode),
        .bytes = (uint64_t)st->st_size,
        .disk_bytes = (uint64_t)st->st_blocks * 512,
        .mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
        .inode = st->st_ino,
        .device = st->st_dev,
    };
}

int file_stat(const char *path, struct file_info *out, struct err *e)
{
    struct stat st;
    if (stat(path, &st) == 0) {
        fill_info(&st, out);
        return ERR_OK;
    }
    if (errno != ENOENT && errno != ENOTDIR)
        return fail(e, "cannot look at it", path);
    *out = (struct file_info){0};
    return ERR_OK;
}

int file_open_read(const char *path, int *fd, struct err *e)
{
    /* O_NONBLOCK: opening a FIFO must not wait for its writer. It means nothing for a regular file. */
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (f < 0)
        return fail(e, "cannot open", path);
    struct stat st;
    int rc = ERR_OK;
    if (fstat(f, &st) != 0)
        rc = fail(e, "cannot look at it", path);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(e, ERR_INVALID, "%s: %s, not a regular file", path,
                     S_ISDIR(st.st_mode) ? "a directory" : "a special file");
    if (rc) {
        close(f);
        return rc;
    }
    *fd = f;
    return ERR_OK;
}

int file_pread(int fd, const char *path, void *buf, size_t n, uint64_t offset, struct err *e)
{
    uint64_t end;
    if (!add_u64(offset, n, &end) || end > INT64_MAX)
        return err_set(e, ERR_INVALID, "%s: offset %llu is beyond any file", path,
                       (unsigned long long)offset);
    char *to = buf;
    size_t done = 0;
    while (done < n) {
        ssize_t got = pread(fd, to + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(e, "cannot read", path);
        if (got == 0)
            return err_set(e, ERR_IO, "%s: %zu bytes short at offset %llu", path, n - done,
                           (unsigned long long)(offset + done));
        done += (size_t)got;
    }
    return ERR_OK;
}

/* Reads until the end or until buf is full. */
static int read_some(int fd, const char *path, char *buf, size_t n, size_t *done, struct err *e)
{
    *done = 0;
    while (*done < n) {
        ssize_t got = read(fd, buf + *done, n - *done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(e, "cannot read", path);
        if (got == 0)
            break;
        *done += (size_t)got;
    }
    return ERR_OK;
}

/* Kernel files (/proc) say 0 bytes and hold more: their size is known only after reading. */
static int read_unsized(int fd, const char *path, size_t max_bytes, struct arena *arena, char **data,
                        size_t *n, struct err *e)
{
    void *buf = NULL;
    size_t capacity = 0, used = 0, got = 1;
    int rc = ERR_OK;
    while (!rc && got > 0) {
        if (used > max_bytes) {
            rc = err_set(e, ERR_LIMIT, "%s: larger than %zu bytes", path, max_bytes);
            break;
        }
        if (vec_reserve(&buf, &capacity, used + 4096, 1)) {
            rc = err_set(e, ERR_NOMEM, "%s: no memory to read it", path);
            break;
        }
        rc = read_some(fd, path, (char *)buf + used, capacity - used, &got, e);
        used += got;
    }
    char *copy = NULL;
    if (!rc && used > max_bytes)
        rc = err_set(e, ERR_LIMIT, "%s: larger than %zu bytes", path, max_bytes);
    if (!rc && !(copy = arena_strndup(arena, buf ? buf : "", used)))
        rc = err_set(e, ERR_NOMEM, "%s: no memory to read it", path);
    free(buf);
    if (rc)
        return rc;
    *data = copy;
    *n = used;
    return ERR_OK;
}

int file_read(const char *path, size_t max_bytes, struct arena *arena, char **data, size_t *n, struct err *e)
{
    int fd;
    int rc = file_open_read(path, &fd, e);
    if (rc)
        return rc;
    struct stat st;
    char *text = NULL;
    size_t got = 0;
    if (fstat(fd, &st) != 0) {
        rc = fail(e, "cannot look at it", path);
    } else if (st.st_size == 0) {
        rc = read_unsized(fd, path, max_bytes, arena, data, n, e);
        close(fd);
        return rc;
    } else if ((uint64_t)st.st_size > max_bytes) {
        rc = err_set(e, ERR_LIMIT, "%s: %llu bytes, more than the %zu allowed", path,
                     (unsigned long long)st.st_size, max_bytes);
    } else if (!(text = arena_alloc(arena, (size_t)st.st_size + 1))) {
        rc = err_set(e, ERR_NOMEM, "%s: no memory for its %llu bytes", path, (unsigned long long)st.st_size);
    } else {
        rc = read_some(fd, path, text, (size_t)st.st_size, &got, e);
    }
    close(fd);
    if (rc)
        return rc;
    text[got] = '\0';
    *data = text;
    *n = got;
    return ERR_OK;
}

static int write_all(int fd, const char *path, const char *data, size_t n, struct err *e)
{
    while (n > 0) {
        ssize_t put = write(fd, data, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return fail(e, "cannot write", path);
        data += put;
        n -= (size_t)put;
    }
    return ERR_OK;
}

/* A new file beside `path` under a name that nobody else uses. */
static int open_temporary(const char *path, char *name, size_t bytes, int *fd, struct err *e)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        uint64_t random;
        if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
            random = (uint64_t)getpid() << 8 | (uint64_t)attempt;
        int n = snprintf(name, bytes, "%s.%016llx.tmp", path, (unsigned long long)random);
        if (n < 0 || (size_t)n >= bytes)
            return err_set(e, ERR_INVALID, "%s: the path is too long", path);
        *fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (*fd >= 0)
            return ERR_OK;
        if (errno != EEXIST)
            break;
    }
    return fail(e, "cannot create", path);
}

/* The new name is durable only when the directory is. File systems that cannot sync one are no failure. */
static void sync_parent(const char *path)
{
    char dir[4096];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (n >= sizeof(dir))
        return;
    memcpy(dir, path, n);
    dir[n] = '\0';
    int fd = open(n ? dir : slash ? "/" : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)!fsync(fd);
    close(fd);
}

int file_write_atomic(const char *path, const void *data, size_t n, struct err *e)
{
    char name[4096];
    int fd = -1;
    int rc = open_temporary(path, name, sizeof(name), &fd, e);
    if (rc)
        return rc;
    rc = write_all(fd, path, data, n, e);
    if (!rc && fsync(fd) != 0)
        rc = fail(e, "cannot sync", path);
    if (close(fd) != 0 && !rc)
        rc = fail(e, "cannot close", path);
    if (!rc && rename(name, path) != 0)
        rc = fail(e, "cannot rename the new content into place", path);
    if (rc) {
        unlink(name);
        return rc;
    }
    sync_parent(path);
    return ERR_OK;
}

int dir_make(const char *path, struct err *e)
{
    char prefix[4096];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof(prefix))
        return err_set(e, ERR_INVALID, "%s: not a usable directory name", n ? path : "\"\"");
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(prefix, path, i);
        prefix[i] = '\0';
        if (mkdir(prefix, 0777) == 0)
            continue;
        /* An existing parent may also say EACCES or EROFS: what counts is whether it is there. */
        int why = errno;
        struct stat st;
        if (stat(prefix, &st) == 0 && S_ISDIR(st.st_mode))
            continue;
        errno = why == EEXIST ? ENOTDIR : why;
        return err_set(e, ERR_IO, "%s: cannot create the directory: %m", prefix);
    }
    return ERR_OK;
}

static bool is_file_or_dir(int dir_fd, const struct dirent *entry)
{
    if (entry->d_type == DT_REG || entry->d_type == DT_DIR)
        return true;
    if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN)
        return false;
    struct stat st; /* model caches are directories full of links: what a link leads to counts */
    return fstatat(dir_fd, entry->d_name, &st, 0) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int dir_list(const char *dir, struct arena *arena, char ***names, size_t *n, struct err *e)
{
    DIR *d = opendir(dir);
    if (!d)
        return fail(e, "cannot open the directory", dir);
    void *list = NULL;
    size_t capacity = 0, count = 0;
    int rc = ERR_OK;
    while (!rc) {
        errno = 0;
        struct dirent *entry = readdir(d);
        if (!entry) {
            if (errno)
                rc = fail(e, "cannot list", dir);
            break;
        }
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") || !is_file_or_dir(dirfd(d), entry))
            continue;
        char *name = arena_strdup(arena, entry->d_name);
        if (!name || vec_reserve(&list, &capacity, count + 1, sizeof(char *)))
            rc = err_set(e, ERR_NOMEM, "%s: no memory to list it", dir);
        else
            ((char **)list)[count++] = name;
    }
    closedir(d);
    char **sorted = rc ? NULL : arena_alloc_n(arena, count + 1, sizeof(char *));
    if (!rc && !sorted)
        rc = err_set(e, ERR_NOMEM, "%s: no memory to list it", dir);
    if (!rc && count) {
        qsort(list, count, sizeof(char *), by_bytes);
        memcpy(sorted, list, count * sizeof(char *));
    }
    free(list);
    if (rc)
        return rc;
    *names = sorted;
    *n = count;
    return ERR_OK;
}

char *path_join(struct arena *arena, const char *dir, const char *name)
{
    size_t n = strlen(dir);
    return arena_printf(arena, "%s%s%s", dir, n == 0 || dir[n - 1] == '/' ? "" : "/", name);
}

bool path_is_plain_name(const char *name)
{
    if (name[0] == '\0' || !strcmp(name, ".") || !strcmp(name, ".."))
        return false;
    for (const char *p = name; *p; p++) {
        if (*p == '/' || (unsigned char)*p < 0x20 || *p == 0x7F)
            return false;
    }
    return true;
}
