/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: reading the header of one safetensors file that is no shard of a checkpoint (references, traces).
 * Refuses whatever st_parse() refuses, and headers beyond the caller's limit.
 */
#include <stdlib.h>

#include "base/file.h"
#include "ckpt/ckpt.h"

int st_read_head(int fd, const char *path, uint64_t file_bytes, uint64_t most, struct arena *arena,
                 struct st_file *out, struct err *e)
{
    uint8_t length[8];
    if (file_bytes < 8)
        return err_set(e, ERR_FORMAT, "%s: %llu bytes are no safetensors file", path,
                       (unsigned long long)file_bytes);
    int rc = file_pread(fd, path, length, 8, 0, e);
    if (rc)
        return rc;
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | length[i];
    if (n > most || n > file_bytes - 8)
        return err_set(e, ERR_FORMAT, "%s: header of %llu bytes in a file of %llu", path,
                       (unsigned long long)n, (unsigned long long)file_bytes);
    char *head = malloc((size_t)n + 8), why[256] = "";
    if (!head)
        return err_set(e, ERR_NOMEM, "%s: no memory for a header of %llu bytes", path, (unsigned long long)n);
    rc = file_pread(fd, path, head, (size_t)n + 8, 0, e);
    if (rc == 0) {
        enum st_verdict v = st_parse(head, (size_t)n + 8, file_bytes, arena, out, why, sizeof why);
        if (v != ST_OK)
            rc = err_set(e, ERR_FORMAT, "%s: %s: %s", path, st_verdict_name(v), why);
    }
    free(head);
    return rc;
}
