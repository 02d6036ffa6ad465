/* SPDX-License-Identifier: Apache-2.0
 *
 * Files: bounded reads, exact preads, atomic writes (temporary name, fsync, rename), directories.
 * Error messages always carry the path and errno's text.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/err.h"
#include "base/mem.h"

struct file_info {
    bool exists, is_dir, is_file;
    uint64_t bytes;
    uint64_t disk_bytes; /* blocks really allocated: less than bytes in a sparse file */
    int64_t mtime_ns;
    uint64_t inode, device;
};

int file_stat(const char *path, struct file_info *out, struct err *e); /* absence is no error: exists=false */

/* Whole file into the arena, NUL added after it. ERR_MISSING, ERR_LIMIT (over max_bytes), ERR_IO, ERR_NOMEM.
 */
int file_read(const char *path, size_t max_bytes, struct arena *arena, char **data, size_t *n, struct err *e);

int file_open_read(const char *path, int *fd, struct err *e); /* O_CLOEXEC, refuses FIFOs and devices */
/* Exactly n bytes or an error; ERR_IO "N bytes short at offset" on early end. Retries EINTR. */
int file_pread(int fd, const char *path, void *buf, size_t n, uint64_t offset, struct err *e);

/* Replaces path atomically; readers see the old or the new content, never a part. */
int file_write_atomic(const char *path, const void *data, size_t n, struct err *e);
int dir_make(const char *path, struct err *e); /* with parents; existing is fine */
/* Regular file and directory names in dir, sorted by bytes, without . and ..; in the arena. */
int dir_list(const char *dir, struct arena *arena, char ***names, size_t *n, struct err *e);
char *path_join(struct arena *arena, const char *dir, const char *name);
/* true if name is a plain file name: not empty, no '/', not "." or "..", no NUL, no control characters */
bool path_is_plain_name(const char *name);

#endif
