/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the header of one .npy file (NumPy's format, versions 1 to 3): element type, shape and where the data
 * begin. Refuses what is not plain: column order, other byte order, objects, and headers that say more or
 * less than descr, fortran_order and shape.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "oracle/import_impl.h"

#define NPY_MAX_HEADER 65536u

struct reading {
    const char *path, *text;
    size_t at;
};

static void blanks(struct reading *r)
{
    r->at += strspn(r->text + r->at, " \t\r\n");
}

static bool accept(struct reading *r, const char *word)
{
    blanks(r);
    if (strncmp(r->text + r->at, word, strlen(word)) != 0)
        return false;
    r->at += strlen(word);
    return true;
}

/* 'descr' in either kind of quotes; no escapes */
static bool quoted(struct reading *r, char *out, size_t bytes)
{
    blanks(r);
    const char mark = r->text[r->at], *begin = r->text + r->at + 1;
    if (mark != '\'' && mark != '"')
        return false;
    const char *end = strchr(begin, mark);
    if (!end || (size_t)(end - begin) >= bytes)
        return false;
    memcpy(out, begin, (size_t)(end - begin));
    out[end - begin] = '\0';
    r->at += (size_t)(end - begin) + 2;
    return true;
}

static uint32_t dtype_of(const char *descr)
{
    static const struct {
        const char *descr;
        uint32_t dtype;
    } types[] = {{"<f4", D0_F32}, {"<f2", D0_F16},  {"<f8", D0_F64},  {"<i4", D0_I32},
                 {"<i8", D0_I64}, {"<V2", D0_BF16}, {"|V2", D0_BF16}, {"bfloat16", D0_BF16}};
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (!strcmp(descr, types[i].descr))
            return types[i].dtype;
    return 0;
}

static bool shape(struct reading *r, struct import_source *s)
{
    if (!accept(r, "("))
        return false;
    while (!accept(r, ")")) {
        int64_t v = 0;
        blanks(r);
        size_t begin = r->at;
        for (; r->text[r->at] >= '0' && r->text[r->at] <= '9' && v < ((int64_t)1 << 40); r->at++)
            v = 10 * v + (r->text[r->at] - '0');
        if (r->at == begin || s->n_dims == TENSOR_MAX_DIMS || v >= (int64_t)1 << 40)
            return false;
        s->dims[s->n_dims++] = v;
        if (!accept(r, ",") && r->text[r->at] != ')')
            return false;
    }
    return true;
}

static int parse(struct reading *r, struct import_source *s, struct err *e)
{
    char key[32], descr[32] = "";
    bool order = false, sized = false, fine = accept(r, "{");
    while (fine && !accept(r, "}")) {
        fine = quoted(r, key, sizeof key) && accept(r, ":");
        if (fine && !strcmp(key, "descr")) {
            fine = quoted(r, descr, sizeof descr);
        } else if (fine && !strcmp(key, "fortran_order")) {
            fine = order = accept(r, "False");
            if (!fine)
                return err_set(e, ERR_UNSUPPORTED, "%s: stored by columns: save it with order='C'", r->path);
        } else {
            fine = fine && !strcmp(key, "shape") && !sized && (sized = shape(r, s));
        }
        fine = fine && (accept(r, ",") || r->text[r->at] == '}');
    }
    if (!fine || !order || !sized || !descr[0])
        return err_set(e, ERR_FORMAT, "%s: its header is none of a plain array, at \"%.24s\"", r->path,
                       r->text + r->at);
    s->dtype = dtype_of(descr);
    if (!s->dtype)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: elements of type %s; float16, bfloat16 (as V2), float32, float64, int32 and int64 are "
            "read",
            r->path, descr);
    return ERR_OK;
}

int npy_open(int fd, const char *path, uint64_t file_bytes, struct import_source *out, struct err *e)
{
    unsigned char head[12];
    if (file_bytes < sizeof head)
        return err_set(e, ERR_FORMAT, "%s: %llu bytes are no .npy file", path,
                       (unsigned long long)file_bytes);
    int rc = file_pread(fd, path, head, sizeof head, 0, e);
    if (rc)
        return rc;
    if (memcmp(head, "\x93NUMPY", 6) != 0 || head[6] < 1 || head[6] > 3)
        return err_set(e, ERR_FORMAT, "%s: no .npy file of version 1 to 3", path);
    uint64_t begin = head[6] == 1 ? 10 : 12, n = head[8] | (uint64_t)head[9] << 8, bytes;
    if (head[6] > 1)
        n |= (uint64_t)head[10] << 16 | (uint64_t)head[11] << 24;
    if (n > NPY_MAX_HEADER || n > file_bytes - begin)
        return err_set(e, ERR_FORMAT, "%s: a header of %llu bytes", path, (unsigned long long)n);
    char *text = calloc(1, (size_t)n + 1);
    rc = text ? file_pread(fd, path, text, (size_t)n, begin, e)
              : err_set(e, ERR_NOMEM, "%s: no memory for its header", path);
    struct reading r = {.path = path, .text = text};
    if (rc == 0)
        rc = parse(&r, out, e);
    free(text);
    out->offset = begin + n;
    if (rc == 0 &&
        (!shape_bytes(out->dims, out->n_dims, out->dtype, &bytes) || bytes != file_bytes - out->offset))
        rc = err_set(e, ERR_FORMAT, "%s: %llu bytes of data are not what its shape says", path,
                     (unsigned long long)(file_bytes - out->offset));
    return rc;
}
