/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON: a strict reader into an immutable tree in an arena, and a writer into a strbuf.
 *
 * The reader refuses: duplicate keys, trailing data, comments, NaN/Infinity, invalid UTF-8, lone surrogates,
 * depth and size beyond the limits. 64-bit integers are exact; a number with fraction or exponent, or an
 * integer beyond int64/uint64, is a double and says so. Errors give line, column and byte offset.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

enum json_type {
    JSON_NULL,
    JSON_BOOL,
    JSON_INT,
    JSON_UINT,
    JSON_DOUBLE,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};
/* JSON_UINT only for integers above INT64_MAX */

struct json {
    enum json_type type;
    uint32_t n; /* STRING: bytes; ARRAY: elements; OBJECT: members */
    union {
        bool boolean;
        int64_t i;
        uint64_t u;
        double d;
        const char *string;                /* NUL-terminated; may contain NUL bytes, see n */
        const struct json *items;          /* ARRAY: n consecutive values */
        const struct json_member *members; /* OBJECT: n members in file order */
    } as;
};

struct json_member {
    const char *key;
    uint32_t key_bytes;
    uint32_t hash; /* internal */
    struct json value;
};

struct json_limits {
    size_t max_bytes;   /* 0: 128 MiB */
    unsigned max_depth; /* 0: 64; at most 512 */
};

/* Parses text[0..n). The tree and its strings live in `arena` and hold no pointer into text.
 * Errors: ERR_FORMAT (position in the message), ERR_LIMIT, ERR_NOMEM. */
int json_parse(const char *text, size_t n, const struct json_limits *limits, struct arena *arena,
               const struct json **out, struct err *e);

/* Member by key, or NULL (also when v is NULL or no object). Constant time in large objects. */
const struct json *json_get(const struct json *v, const char *key);
const struct json *json_at(const struct json *v, size_t index); /* array element or NULL */

/* Typed reads; false (and *out untouched) if v is NULL or of another type or out of range.
 * json_f64 takes integers too. */
bool json_i64(const struct json *v, int64_t *out);
bool json_u64(const struct json *v, uint64_t *out);
bool json_f64(const struct json *v, double *out);
bool json_bool(const struct json *v, bool *out);
const char *json_string(const struct json *v); /* NULL if not a string */
const char *json_type_name(enum json_type t);

/* ---- writer: commas, quoting and indentation are its business. Doubles print shortest round-trip;
 *      NaN and infinities print as null. */
#define JSON_WRITER_DEPTH 1024 /* deeper is a bug of the caller; a parsed tree is at most 512 deep */
struct json_writer {
    struct strbuf *out;
    unsigned depth;
    bool pretty;
    bool first; /* nothing written yet at this level */
    bool after_key;
    uint64_t is_array[JSON_WRITER_DEPTH / 64]; /* bit per level */
};

void json_writer_init(struct json_writer *w, struct strbuf *out, bool pretty);
void json_begin_object(struct json_writer *w);
void json_end_object(struct json_writer *w);
void json_begin_array(struct json_writer *w);
void json_end_array(struct json_writer *w);
void json_key(struct json_writer *w, const char *key);
void json_write_string(struct json_writer *w, const char *s);             /* NULL prints null */
void json_write_string_n(struct json_writer *w, const char *s, size_t n); /* bad UTF-8 becomes U+FFFD */
void json_write_i64(struct json_writer *w, int64_t v);
void json_write_u64(struct json_writer *w, uint64_t v);
void json_write_f64(struct json_writer *w, double v);
void json_write_bool(struct json_writer *w, bool v);
void json_write_null(struct json_writer *w);
void json_write_tree(struct json_writer *w, const struct json *v);
void json_write_raw(struct json_writer *w, const char *text); /* text is one valid JSON value */
/* key and value in one call */
void json_put_string(struct json_writer *w, const char *key, const char *s);
void json_put_i64(struct json_writer *w, const char *key, int64_t v);
void json_put_u64(struct json_writer *w, const char *key, uint64_t v);
void json_put_f64(struct json_writer *w, const char *key, double v);
void json_put_bool(struct json_writer *w, const char *key, bool v);

#endif
