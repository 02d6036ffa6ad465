/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the header of one safetensors file, judged in the order of the reference reader so that both give the
 * same verdict. Stricter than it in four points: a name twice is refused (it would silently keep one), also
 * inside __metadata__; names with NUL; more than TENSOR_MAX_DIMS dimensions; a dimension beyond int64.
 * Refuses to touch anything but the header.
 */
#include "ckpt/ckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt_internal.h"
#include "ckpt/json_scan.h"

#define MAX_METADATA_BYTES (16u * 1024u * 1024u)

struct parse {
    struct arena *arena;
    struct st_file *out;
    uint64_t file_bytes;
    struct ckpt_tensor *tensors; /* while reading: offset = begin, bytes = end */
    size_t n, capacity;
    enum st_verdict verdict; /* the first bad one */
    char *why;
    size_t why_bytes;
};

const char *st_verdict_name(enum st_verdict v)
{
    static const char *const names[] = {
        [ST_OK] = "OK",
        [ST_HEADER_TOO_SMALL] = "HeaderTooSmall",
        [ST_HEADER_TOO_LARGE] = "HeaderTooLarge",
        [ST_INVALID_HEADER_LENGTH] = "InvalidHeaderLength",
        [ST_INVALID_HEADER] = "InvalidHeader",
        [ST_INVALID_HEADER_DESERIALIZATION] = "InvalidHeaderDeserialization",
        [ST_INVALID_OFFSET] = "InvalidOffset",
        [ST_VALIDATION_OVERFLOW] = "ValidationOverflow",
        [ST_MISALIGNED_SLICE] = "MisalignedSlice",
        [ST_TENSOR_INVALID_INFO] = "TensorInvalidInfo",
        [ST_METADATA_INCOMPLETE_BUFFER] = "MetadataIncompleteBuffer",
        [ST_DUPLICATE_NAME] = "DuplicateName",
        [ST_OUT_OF_MEMORY] = "OutOfMemory",
    };
    return (unsigned)v < ARRAY_LEN(names) ? names[v] : "?";
}

__attribute__((format(printf, 3, 4))) static enum st_verdict judge(struct parse *p, enum st_verdict v,
                                                                   const char *fmt, ...)
{
    if (p->verdict != ST_OK)
        return v;
    p->verdict = v;
    if (p->why_bytes) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(p->why, p->why_bytes, fmt, args);
        va_end(args);
    }
    return v;
}

static const char *shown(const char *name, char buf[100])
{
    return ckpt_show(name, buf, 100);
}

const char *ckpt_show(const char *name, char *buf, size_t bytes)
{
    size_t n = strlen(name), room = bytes - 1;
    bool cut = n > room;
    if (cut)
        n = utf8_complete_prefix(name, room - 3);
    for (size_t i = 0; i < n; i++)
        buf[i] = (unsigned char)name[i] < 0x20 || name[i] == 0x7F ? '?' : name[i];
    memcpy(buf + n, cut ? "..." : "", cut ? 4 : 1);
    return buf;
}

/* ---- reading one tensor's description */

static bool read_shape(struct json_scan *s, struct ckpt_tensor *t)
{
    bool first = true;
    if (!json_scan_expect(s, '['))
        return false;
    t->n_dims = 0;
    while (json_scan_element(s, &first)) {
        uint64_t dim;
        if (!json_scan_u64(s, &dim))
            return false;
        if (t->n_dims == TENSOR_MAX_DIMS)
            return json_scan_fail(s, "a shape of more than 8 dimensions");
        t->dims[t->n_dims++] = (int64_t)dim; /* beyond int64: negative here, refused by check_size() */
    }
    return !s->error;
}

static bool read_offsets(struct json_scan *s, struct ckpt_tensor *t)
{
    return json_scan_expect(s, '[') && json_scan_u64(s, &t->offset) && json_scan_expect(s, ',') &&
           json_scan_u64(s, &t->bytes) && json_scan_expect(s, ']');
}

static bool note_unknown_dtype(struct parse *p, const char *dtype, const char *tensor)
{
    struct st_unknown_dtype *u = p->out->unknown;
    uint32_t i = 0;
    while (i < p->out->n_unknown && strcmp(u[i].dtype, dtype) != 0)
        i++;
    if (i == ST_MAX_UNKNOWN_DTYPES)
        i--;
    if (i == p->out->n_unknown) {
        u[i] = (struct st_unknown_dtype){.dtype = arena_strdup(p->arena, dtype), .tensor = tensor};
        if (!u[i].dtype)
            return false;
        p->out->n_unknown++;
    }
    u[i].n++;
    return true;
}

static bool read_dtype(struct parse *p, struct json_scan *s, struct ckpt_tensor *t)
{
    struct json_text text;
    char name[48];
    if (!json_scan_string(s, &text))
        return false;
    if (text.n >= sizeof(name) || text.escaped)
        return json_scan_fail(s, "no type has such a name");
    memcpy(name, text.raw, text.n);
    name[text.n] = '\0';
    t->dtype = dtype_parse(name);
    if (t->dtype == 0 && !note_unknown_dtype(p, name, t->name)) {
        p->verdict = ST_OUT_OF_MEMORY;
        return json_scan_fail(s, "out of memory");
    }
    return true;
}

static bool read_tensor(struct parse *p, struct json_scan *s, struct ckpt_tensor *t)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4, ALL = 7 };
    unsigned seen = 0;
    bool first = true;
    struct json_text key;
    if (!json_scan_expect(s, '{'))
        return false;
    while (json_scan_member(s, &first, &key)) {
        unsigned field = json_text_is(&key, "dtype")          ? DTYPE
                         : json_text_is(&key, "shape")        ? SHAPE
                         : json_text_is(&key, "data_offsets") ? OFFSETS
                                                              : 0;
        if (seen & field)
            return json_scan_fail(s, "a field twice");
        seen |= field;
        bool ok = field == DTYPE     ? read_dtype(p, s, t)
                  : field == SHAPE   ? read_shape(s, t)
                  : field == OFFSETS ? read_offsets(s, t)
                                     : json_scan_skip(s);
        if (!ok)
            return false;
    }
    if (s->error)
        return false;
    return seen == ALL || json_scan_fail(s, "dtype, shape or data_offsets is missing");
}

/* ---- reading the header */

/* __metadata__: null, or an object of strings. */
static bool read_metadata(struct parse *p, struct json_scan *s)
{
    bool first = true;
    struct json_text key, value;
    if (json_scan_take(s, 'n')) {
        s->at--;
        return json_scan_skip(s);
    }
    if (!json_scan_expect(s, '{'))
        return false;
    const char *from = s->at - 1;
    while (json_scan_member(s, &first, &key)) {
        if (!json_scan_string(s, &value))
            return false;
    }
    size_t n = (size_t)(s->at - from);
    if (s->error || n > MAX_METADATA_BYTES)
        return !s->error;
    const struct json_limits limits = {.max_bytes = MAX_METADATA_BYTES};
    int rc = json_parse(from, n, &limits, p->arena, &p->out->metadata, NULL);
    if (rc == ERR_NOMEM) {
        p->verdict = ST_OUT_OF_MEMORY;
        return json_scan_fail(s, "out of memory");
    }
    /* The syntax is known to be right, so what the tree reader refuses is a key twice. */
    if (rc)
        judge(p, ST_DUPLICATE_NAME, "__metadata__ holds a key twice");
    return true;
}

static bool read_member(struct parse *p, struct json_scan *s, const struct json_text *key, bool *metadata)
{
    if (json_text_is(key, "__metadata__")) {
        if (*metadata)
            return json_scan_fail(s, "__metadata__ twice");
        *metadata = true;
        return read_metadata(p, s);
    }
    if (key->has_nul)
        return json_scan_fail(s, "a tensor name with a NUL character");
    void *list = p->tensors;
    int rc = vec_reserve(&list, &p->capacity, p->n + 1, sizeof(*p->tensors));
    p->tensors = list;
    struct ckpt_tensor t = {.name = rc ? NULL : json_text_copy(key, p->arena)};
    if (!t.name) {
        p->verdict = ST_OUT_OF_MEMORY;
        return json_scan_fail(s, "out of memory");
    }
    if (!read_tensor(p, s, &t))
        return false;
    p->tensors[p->n++] = t;
    return true;
}

static void read_header(struct parse *p, const char *text, size_t n)
{
    struct json_scan s;
    struct json_text key;
    bool first = true, metadata = false;
    json_scan_init(&s, text, n);
    if (json_scan_expect(&s, '{')) {
        while (json_scan_member(&s, &first, &key) && read_member(p, &s, &key, &metadata))
            ;
        json_scan_end(&s);
    }
    if (s.error && p->verdict != ST_OUT_OF_MEMORY) {
        p->verdict = ST_OK; /* a syntax error comes before whatever else was seen on the way */
        judge(p, ST_INVALID_HEADER_DESERIALIZATION, "header byte %zu: %s", json_scan_offset(&s), s.error);
    }
    p->out->complete = !s.error;
}

/* ---- checks on what was read */

static int by_offset(const void *x, const void *y)
{
    const struct ckpt_tensor *a = x, *b = y;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

static enum st_verdict check_size(struct parse *p, const struct ckpt_tensor *t, uint64_t held)
{
    char name[100];
    uint64_t n = 1, bits = dtype_bits(t->dtype);
    bool ok = true;
    for (uint32_t i = 0; i < t->n_dims; i++)
        ok = ok && mul_u64(n, (uint64_t)t->dims[i], &n);
    for (uint32_t i = 0; i < t->n_dims; i++)
        ok = ok && t->dims[i] >= 0;
    if (!ok || !mul_u64(n, bits, &bits))
        return judge(p, ST_VALIDATION_OVERFLOW, "tensor %s: the size of its shape overflows",
                     shown(t->name, name));
    if (t->dtype == 0)
        return ST_OK; /* its size is anyone's guess */
    if (bits % 8)
        return judge(p, ST_MISALIGNED_SLICE, "tensor %s: its bits are no whole number of bytes",
                     shown(t->name, name));
    if (bits / 8 != held)
        return judge(p, ST_TENSOR_INVALID_INFO,
                     "tensor %s: %s and its shape need %llu bytes, data_offsets give %llu",
                     shown(t->name, name), dtype_name(t->dtype), (unsigned long long)(bits / 8),
                     (unsigned long long)held);
    return ST_OK;
}

/* Tensors must follow one another without hole and overlap. Turns begin/end into absolute offset/bytes for
 * all of them, also past the first bad one, so that names and places are there for messages. */
static void check_layout(struct parse *p)
{
    uint64_t base = 8 + p->out->header_bytes, at = 0;
    enum st_verdict v = ST_OK;
    char name[100];
    for (size_t i = 0; i < p->n; i++) {
        struct ckpt_tensor *t = &p->tensors[i];
        uint64_t begin = t->offset, end = t->bytes, held = end >= begin ? end - begin : 0;
        if (v == ST_OK && (begin != at || end < begin))
            v = judge(p, ST_INVALID_OFFSET,
                      "tensor %s: bytes %llu to %llu, but the tensor before it ends at %llu: %s",
                      shown(t->name, name), (unsigned long long)begin, (unsigned long long)end,
                      (unsigned long long)at,
                      end < begin  ? "its end lies before its begin"
                      : begin > at ? "a hole"
                                   : "an overlap");
        if (v == ST_OK)
            v = check_size(p, t, held);
        at = end > at ? end : at;
        t->bytes = held;
        t->offset = sat_add(begin, base);
        for (uint32_t d = 0; d < t->n_dims; d++)
            t->dims[d] = t->dims[d] < 0 ? INT64_MAX : t->dims[d];
    }
    p->out->data_end = sat_add(base, at);
    if (v == ST_OK && p->out->data_end != p->file_bytes)
        v = judge(p, ST_METADATA_INCOMPLETE_BUFFER, "the header declares %llu bytes, the file has %llu",
                  (unsigned long long)p->out->data_end, (unsigned long long)p->file_bytes);
    p->out->layout = v;
}

static enum st_verdict check_names(struct parse *p)
{
    struct strmap map = {0};
    enum st_verdict v = ST_OK;
    char name[100];
    int rc = strmap_reserve(&map, p->n);
    for (size_t i = 0; rc != ERR_NOMEM && i < p->n; i++) {
        const char *tensor = p->tensors[i].name;
        rc = strmap_put(&map, tensor, strlen(tensor), (uint32_t)i, NULL);
        if (rc == 1 && v == ST_OK)
            v = judge(p, ST_DUPLICATE_NAME, "tensor %s twice", shown(tensor, name));
    }
    strmap_release(&map);
    return rc == ERR_NOMEM ? (p->verdict = ST_OUT_OF_MEMORY) : v;
}

/* What follows once the whole header was understood. */
static void check_all(struct parse *p)
{
    struct st_file *out = p->out;
    char name[100];
    if (out->n_unknown)
        judge(p, ST_INVALID_HEADER_DESERIALIZATION, "tensor %s: unknown type %s",
              shown(out->unknown[0].tensor, name), out->unknown[0].dtype);
    enum st_verdict names = check_names(p);
    bool sorted = true;
    for (size_t i = 1; i < p->n && sorted; i++)
        sorted = by_offset(&p->tensors[i - 1], &p->tensors[i]) <= 0;
    if (!sorted)
        qsort(p->tensors, p->n, sizeof(*p->tensors), by_offset);
    check_layout(p);
    if (names != ST_OK)
        out->layout = names;
}

static enum st_verdict check_length(struct parse *p, const char *head, size_t head_bytes)
{
    if (p->file_bytes < 8 || head_bytes < 8)
        return judge(p, ST_HEADER_TOO_SMALL, "%llu bytes; the header's length alone takes 8",
                     (unsigned long long)p->file_bytes);
    uint64_t n = 0, end;
    for (unsigned i = 0; i < 8; i++)
        n |= (uint64_t)(unsigned char)head[i] << (8 * i);
    p->out->header_bytes = n;
    if (n > ST_MAX_HEADER_BYTES)
        return judge(p, ST_HEADER_TOO_LARGE, "a header of %llu bytes; at most %u are allowed",
                     (unsigned long long)n, ST_MAX_HEADER_BYTES);
    if (!add_u64(n, 8, &end) || end > p->file_bytes || end > head_bytes)
        return judge(p, ST_INVALID_HEADER_LENGTH, "a header of %llu bytes in a file of %llu",
                     (unsigned long long)n, (unsigned long long)p->file_bytes);
    return ST_OK;
}

enum st_verdict st_parse(const char *head, size_t head_bytes, uint64_t file_bytes, struct arena *arena,
                         struct st_file *out, char *why, size_t why_bytes)
{
    struct parse p = {
        .arena = arena, .out = out, .file_bytes = file_bytes, .why = why, .why_bytes = why_bytes};
    *out = (struct st_file){0};
    if (why_bytes)
        why[0] = '\0';
    if (check_length(&p, head, head_bytes) != ST_OK)
        return p.verdict;
    size_t n = (size_t)out->header_bytes;
    if (!json_scan_utf8(head + 8, n))
        return judge(&p, ST_INVALID_HEADER, "the header is not UTF-8");
    read_header(&p, head + 8, n);
    if (out->complete)
        check_all(&p);
    /* Of a header that breaks off, what was read so far has no checked place and is given up. */
    if (out->complete && p.n) {
        out->tensors = arena_alloc_n(arena, p.n, sizeof(*out->tensors));
        if (out->tensors) {
            memcpy(out->tensors, p.tensors, p.n * sizeof(*out->tensors));
            out->n_tensors = p.n;
        } else {
            p.verdict = ST_OUT_OF_MEMORY;
        }
    }
    free(p.tensors);
    if (p.verdict == ST_OUT_OF_MEMORY) {
        out->complete = false;
        if (why_bytes)
            snprintf(why, why_bytes, "out of memory");
    }
    return p.verdict;
}
