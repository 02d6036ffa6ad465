/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the reader of reference files (docs/references.md): a safetensors file with token ids, logits and
 * probes. Content is read into memory and checked whole, so that nobody after it meets a wrong shape or a
 * value that is not finite. Refuses what contradicts itself.
 */
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/str.h"
#include "verify/verify.h"

#define REFERENCE_MAX_HEADER ((uint64_t)64 << 20)
#define REFERENCE_MAX_TOKENS ((uint64_t)1 << 24)

struct reader {
    struct reference *r;
    const char *path;
    int fd;
    struct st_file file;
};

static const struct ckpt_tensor *find(const struct reader *in, const char *name)
{
    for (size_t i = 0; i < in->file.n_tensors; i++)
        if (strcmp(in->file.tensors[i].name, name) == 0)
            return &in->file.tensors[i];
    return NULL;
}

/* The tensor's bytes as they are, in the arena. */
static int read_bytes(struct reader *in, const struct ckpt_tensor *t, const void **out, struct err *e)
{
    void *bytes = arena_alloc(&in->r->arena, (size_t)t->bytes);
    if (!bytes)
        return err_set(e, ERR_NOMEM, "%s: no memory for %s", in->path, t->name);
    *out = bytes;
    return file_pread(in->fd, in->path, bytes, (size_t)t->bytes, t->offset, e);
}

/* The tensor's bytes as float32, in the arena. */
static int read_floats(struct reader *in, const struct ckpt_tensor *t, const float **out, struct err *e)
{
    uint64_t n;
    if (!dtype_is_float(t->dtype) || !shape_elements(t->dims, t->n_dims, &n))
        return err_set(e, ERR_FORMAT, "%s: %s is of type %s, wanted a float type", in->path, t->name,
                       dtype_name(t->dtype));
    float *data = n > SIZE_MAX ? NULL : arena_alloc_n(&in->r->arena, (size_t)n, sizeof *data);
    if (!data)
        return err_set(e, ERR_NOMEM, "%s: no memory for %llu values of %s", in->path, (unsigned long long)n,
                       t->name);
    if (t->dtype == D0_F32) {
        int rc = file_pread(in->fd, in->path, data, (size_t)t->bytes, t->offset, e);
        if (rc)
            return rc;
    } else {
        void *raw = malloc(t->bytes ? (size_t)t->bytes : 1);
        int rc = raw ? file_pread(in->fd, in->path, raw, (size_t)t->bytes, t->offset, e)
                     : err_set(e, ERR_NOMEM, "%s: no memory for %s", in->path, t->name);
        if (rc == 0 && !tensor_to_f32(raw, t->dtype, (size_t)n, data))
            rc = err_set(e, ERR_FORMAT, "%s: %s is of type %s, which this reader does not widen", in->path,
                         t->name, dtype_name(t->dtype));
        free(raw);
        if (rc)
            return rc;
    }
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(data[i]))
            return err_set(e, ERR_FORMAT, "%s: value %llu of %s is not finite", in->path,
                           (unsigned long long)i, t->name);
    *out = data;
    return ERR_OK;
}

static int read_ids(struct reader *in, struct err *e)
{
    struct reference *r = in->r;
    const struct ckpt_tensor *t = find(in, "token_ids");
    if (!t)
        return err_set(e, ERR_FORMAT, "%s: no tensor \"token_ids\"", in->path);
    if ((t->dtype != D0_I32 && t->dtype != D0_I64) || t->n_dims != 1 || t->dims[0] < 1 ||
        (uint64_t)t->dims[0] > REFERENCE_MAX_TOKENS)
        return err_set(e, ERR_FORMAT, "%s: token_ids must be I32 or I64 of shape [T], T >= 1", in->path);
    r->n_ids = (size_t)t->dims[0];
    r->ids = arena_alloc_n(&r->arena, r->n_ids, sizeof *r->ids);
    void *raw = malloc((size_t)t->bytes);
    int rc = r->ids && raw ? file_pread(in->fd, in->path, raw, (size_t)t->bytes, t->offset, e)
                           : err_set(e, ERR_NOMEM, "%s: no memory for token_ids", in->path);
    for (size_t i = 0; rc == 0 && i < r->n_ids; i++) {
        int64_t v = 0;
        if (t->dtype == D0_I64)
            memcpy(&v, (char *)raw + 8 * i, 8);
        else {
            int32_t v32;
            memcpy(&v32, (char *)raw + 4 * i, 4);
            v = v32;
        }
        if (v < 0 || v > INT32_MAX)
            rc = err_set(e, ERR_FORMAT, "%s: token_ids[%zu] is %lld", in->path, i, (long long)v);
        r->ids[i] = (int32_t)v;
    }
    free(raw);
    return rc;
}

static int read_logits(struct reader *in, struct err *e)
{
    struct reference *r = in->r;
    const struct ckpt_tensor *t = find(in, "logits");
    if (!t)
        return ERR_OK;
    if (t->n_dims != 2 || (uint64_t)t->dims[0] != r->n_ids || t->dims[1] < 1) {
        char shape[96];
        return err_set(e, ERR_FORMAT, "%s: logits are %s for %zu token ids, wanted [%zu, vocabulary]",
                       in->path, shape_format(t->dims, t->n_dims, shape, sizeof shape), r->n_ids, r->n_ids);
    }
    r->vocab = (size_t)t->dims[1];
    return read_floats(in, t, &r->logits, e);
}

/* picture.0, picture.1, ...: files as they are. Each is looked for among all tensors. */
static int read_pictures(struct reader *in, struct err *e)
{
    struct reference *r = in->r;
    char name[32];
    while (snprintf(name, sizeof name, "picture.%zu", r->n_pictures), find(in, name))
        if (r->n_pictures++ == PROMPT_MAX_PICTURES)
            return err_set(e, ERR_LIMIT, "%s: more than %d pictures", in->path, PROMPT_MAX_PICTURES);
    r->pictures = arena_alloc_n(&r->arena, r->n_pictures + 1, sizeof *r->pictures);
    if (!r->pictures)
        return err_set(e, ERR_NOMEM, "%s: no memory for pictures", in->path);
    for (size_t i = 0; i < r->n_pictures; i++) {
        snprintf(name, sizeof name, "picture.%zu", i);
        const struct ckpt_tensor *t = find(in, name);
        const void *bytes;
        if (t->dtype != D0_U8 || t->n_dims != 1)
            return err_set(e, ERR_FORMAT, "%s: %s must be U8 of shape [bytes]", in->path, name);
        int rc = read_bytes(in, t, &bytes, e);
        if (rc)
            return rc;
        r->pictures[i] = (struct reference_picture){bytes, (size_t)t->bytes};
    }
    return ERR_OK;
}

static int read_grids(struct reader *in, struct err *e)
{
    struct reference *r = in->r;
    const struct ckpt_tensor *t = find(in, "grids");
    if (!t)
        return ERR_OK;
    if (t->dtype != D0_I32 || t->n_dims != 2 || t->dims[1] != 3)
        return err_set(e, ERR_FORMAT, "%s: grids must be I32 of shape [pictures, 3]", in->path);
    const void *grids;
    int rc = read_bytes(in, t, &grids, e);
    if (rc)
        return rc;
    r->grids = grids;
    r->n_grids = (size_t)t->dims[0];
    return ERR_OK;
}

/* What a conversation with pictures has besides. */
static int read_conversation(struct reader *in, struct err *e)
{
    struct reference *r = in->r;
    const struct ckpt_tensor *t = find(in, "pixel_values");
    int rc = read_pictures(in, e);
    if (rc == 0)
        rc = read_grids(in, e);
    if (rc || !t)
        return rc;
    if (t->n_dims < 2 || t->dims[0] < 1 || t->bytes == 0)
        return err_set(e, ERR_FORMAT, "%s: pixel_values must be [patches, width]", in->path);
    uint64_t n = 0;
    rc = read_floats(in, t, &r->pixels, e);
    if (rc == 0 && shape_elements(t->dims, t->n_dims, &n)) {
        r->n_patches = (size_t)t->dims[0];
        r->patch_width = (size_t)(n / r->n_patches);
    }
    return rc;
}

static bool of_conversation(const char *name)
{
    return strcmp(name, "pixel_values") == 0 || strcmp(name, "grids") == 0 ||
           strncmp(name, "picture.", 8) == 0;
}

/* Every other tensor of a float type is a probe [T, width...]; integers are choices that a recording handed
 * on. */
static int read_probes(struct reader *in, struct err *e)
{
    struct reference *r = in->r;
    r->probes = arena_alloc_n(&r->arena, in->file.n_tensors, sizeof *r->probes);
    if (!r->probes)
        return err_set(e, ERR_NOMEM, "%s: no memory for %zu probes", in->path, in->file.n_tensors);
    for (size_t i = 0; i < in->file.n_tensors; i++) {
        const struct ckpt_tensor *t = &in->file.tensors[i];
        if (strcmp(t->name, "token_ids") == 0 || strcmp(t->name, "logits") == 0)
            continue;
        if (t->dtype == D0_I32 || of_conversation(t->name))
            continue;
        uint64_t n;
        if (t->n_dims < 2 || !shape_elements(t->dims, t->n_dims, &n) || (uint64_t)t->dims[0] != r->n_ids ||
            n == 0)
            return err_set(e, ERR_FORMAT, "%s: probe %s must be [%zu, width]", in->path, t->name, r->n_ids);
        struct reference_probe *p = &r->probes[r->n_probes++];
        *p = (struct reference_probe){.name = t->name, .rows = r->n_ids, .width = (size_t)(n / r->n_ids)};
        int rc = read_floats(in, t, &p->data, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static const char *meta(const struct reader *in, const char *key)
{
    return json_string(json_get(in->file.metadata, key));
}

static int read_metadata(struct reader *in, struct err *e)
{
    struct reference *r = in->r;
    const char *producer = meta(in, "producer"), *greedy = meta(in, "greedy"),
               *prompt = meta(in, "prompt_tokens");
    const char *precision = meta(in, "dtype");
    r->producer = producer && *producer ? producer : "unknown";
    r->precision = precision && *precision ? precision : "float32";
    r->greedy = greedy && (strcmp(greedy, "true") == 0 || strcmp(greedy, "1") == 0);
    r->messages = meta(in, "messages");
    r->rendered = meta(in, "rendered");
    r->n_prompt = r->n_ids;
    int64_t n;
    if (prompt) {
        if (!str_to_i64(prompt, &n) || n < 1 || (uint64_t)n > r->n_ids)
            return err_set(e, ERR_FORMAT, "%s: prompt_tokens is \"%.32s\" for %zu token ids", in->path,
                           prompt, r->n_ids);
        r->n_prompt = (size_t)n;
    } else if (r->greedy) {
        return err_set(e, ERR_FORMAT, "%s: a greedy reference must say how many prompt_tokens it starts from",
                       in->path);
    }
    return ERR_OK;
}

int reference_open(struct reference **out, const char *path, struct err *e)
{
    struct file_info info;
    int rc = file_stat(path, &info, e);
    if (rc)
        return rc;
    if (!info.exists)
        return err_set(e, ERR_MISSING, "%s: no such reference file", path);
    struct reference *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "no memory for a reference");
    arena_init(&r->arena, NULL, MEM_MISC);
    struct reader in = {.r = r, .path = path, .fd = -1};
    r->path = arena_strdup(&r->arena, path);
    rc = r->path ? file_open_read(path, &in.fd, e) : err_set(e, ERR_NOMEM, "no memory for a path");
    if (rc == 0)
        rc = st_read_head(in.fd, path, info.bytes, REFERENCE_MAX_HEADER, &r->arena, &in.file, e);
    if (rc == 0)
        rc = read_ids(&in, e);
    if (rc == 0)
        rc = read_metadata(&in, e);
    if (rc == 0)
        rc = read_logits(&in, e);
    if (rc == 0)
        rc = read_probes(&in, e);
    if (rc == 0)
        rc = read_conversation(&in, e);
    if (rc == 0)
        rc = sha256_file(path, r->sha256, e);
    if (in.fd >= 0)
        close(in.fd);
    if (rc) {
        reference_close(r);
        return rc;
    }
    *out = r;
    return ERR_OK;
}

void reference_close(struct reference *r)
{
    if (!r)
        return;
    arena_release(&r->arena);
    free(r);
}
