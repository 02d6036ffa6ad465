/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: token ids from a file. Refuses numbers that are no ids, and text that is no list of numbers.
 */
#include <string.h>

#include "base/file.h"
#include "oracle/trace_file.h"
#include "oracle/oracle.h"

#define IDS_MAX_BYTES ((size_t)256 << 20)

static int from_trace(const char *path, struct arena *arena, int32_t **ids, size_t *n, struct err *e)
{
    struct trace *t;
    int rc = trace_open(&t, path, e);
    if (rc)
        return rc;
    *ids = arena_alloc_n(arena, t->n_ids, sizeof **ids);
    *n = t->n_ids;
    if (*ids)
        memcpy(*ids, t->ids, t->n_ids * sizeof **ids);
    else
        rc = err_set(e, ERR_NOMEM, "no memory for %zu ids", t->n_ids);
    trace_close(t);
    return rc;
}

/* Blanks, commas and the brackets of a JSON array stand between numbers. */
static int next_number(const char *path, const char *text, size_t *at, int64_t *out, struct err *e)
{
    *out = -1;
    *at += strspn(text + *at, " \t\r\n,[]");
    if (!text[*at])
        return ERR_OK;
    size_t begin = *at;
    int64_t v = 0;
    for (; text[*at] >= '0' && text[*at] <= '9' && v <= INT32_MAX; (*at)++)
        v = 10 * v + (text[*at] - '0');
    if (*at == begin || v > INT32_MAX || (text[*at] && !strchr(" \t\r\n,[]", text[*at])))
        return err_set(e, ERR_FORMAT, "%s: byte %zu: %.16s is no token id", path, begin, text + begin);
    *out = v;
    return ERR_OK;
}

int oracle_read_ids(const char *path, struct arena *arena, int32_t **ids, size_t *n, struct err *e)
{
    char *text;
    size_t bytes, at = 0;
    int64_t v = 0;
    if (str_ends(path, ".safetensors"))
        return from_trace(path, arena, ids, n, e);
    int rc = file_read(path, IDS_MAX_BYTES, arena, &text, &bytes, e);
    if (rc)
        return rc;
    if (strlen(text) != bytes)
        return err_set(e, ERR_FORMAT, "%s: holds a zero byte: it is no text", path);
    *ids = arena_alloc_n(arena, bytes / 2 + 1, sizeof **ids); /* a digit and a blank each */
    if (!*ids)
        return err_set(e, ERR_NOMEM, "%s: no memory for its ids", path);
    for (*n = 0; rc == 0; (*n)++) {
        rc = next_number(path, text, &at, &v, e);
        if (rc || v < 0)
            break;
        if (*n >= TRACE_MAX_TOKENS)
            return err_set(e, ERR_LIMIT, "%s: more than %llu ids", path,
                           (unsigned long long)TRACE_MAX_TOKENS);
        (*ids)[*n] = (int32_t)v;
    }
    return rc == 0 && *n == 0 ? err_set(e, ERR_FORMAT, "%s: no token ids", path) : rc;
}
