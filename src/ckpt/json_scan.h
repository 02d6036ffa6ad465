/* SPDX-License-Identifier: Apache-2.0
 *
 * A strict JSON pull scanner for the two large documents of a checkpoint: safetensors headers (up to 100 MB)
 * and the index. It builds no tree: 50 million array elements in a hostile header cost no memory, and 500,000
 * names cost little time. The text must be valid UTF-8; the caller checks that once.
 */
#ifndef CKPT_JSON_SCAN_H
#define CKPT_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

struct json_scan {
    const char *begin, *at, *end;
    const char *error; /* static text; NULL as long as all is well */
};

/* A string between its quotes. */
struct json_text {
    const char *raw;
    size_t n;
    bool escaped; /* holds backslashes */
    bool has_nul; /* holds \u0000: no C string can carry it */
};

bool json_scan_utf8(const char *text, size_t n); /* fast where all is ASCII */
void json_scan_init(struct json_scan *s, const char *text, size_t n);
bool json_scan_fail(struct json_scan *s, const char *why); /* keeps the first reason; returns false */
size_t json_scan_offset(const struct json_scan *s);

bool json_scan_take(struct json_scan *s, char c);   /* skips white space; consumes c if it is next */
bool json_scan_expect(struct json_scan *s, char c); /* fails if c is not next */
bool json_scan_string(struct json_scan *s, struct json_text *out);
bool json_scan_u64(struct json_scan *s, uint64_t *out); /* an integer without sign, fraction and exponent */
bool json_scan_skip(struct json_scan *s);               /* one value of any kind, depth <= 128 */
bool json_scan_end(struct json_scan *s);                /* nothing but white space is left */

/* Members of an object whose '{' was consumed: true with the key, positioned at its value; false at the end
 * or on failure. */
bool json_scan_member(struct json_scan *s, bool *first, struct json_text *key);
/* Elements of an array whose '[' was consumed: true when positioned at one. */
bool json_scan_element(struct json_scan *s, bool *first);

bool json_text_is(const struct json_text *t, const char *literal);    /* of a text without escapes */
char *json_text_copy(const struct json_text *t, struct arena *arena); /* decoded; NULL: out of memory */

#endif
