/* SPDX-License-Identifier: Apache-2.0
 *
 * Growable text. A failed allocation sets `failed`, later calls do nothing, and the builder is checked once
 * at the end: `if (strbuf_failed(&b)) return err_set(e, ERR_NOMEM, ...)`.
 */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct strbuf {
    char *data; /* always NUL-terminated once anything was added; NULL before */
    size_t len, capacity;
    bool failed;
};

#define STRBUF_INIT                                                                                          \
    {                                                                                                        \
        0                                                                                                    \
    }

void strbuf_release(struct strbuf *b);
void strbuf_clear(struct strbuf *b); /* keeps the memory */
void strbuf_add(struct strbuf *b, const char *data, size_t n);
void strbuf_puts(struct strbuf *b, const char *s);
void strbuf_putc(struct strbuf *b, char c);
void strbuf_printf(struct strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool strbuf_failed(const struct strbuf *b);
const char *strbuf_cstr(const struct strbuf *b); /* "" when nothing was added */
char *strbuf_detach(struct strbuf *b);           /* malloc'ed string or NULL; the builder is empty after */

/* UTF-8. Decodes one code point at s (n bytes available). Returns its length 1..4, or 0 if malformed. */
size_t utf8_decode(const char *s, size_t n, uint32_t *code_point);
size_t utf8_encode(uint32_t code_point, char out[4]); /* length 1..4; 0 for surrogates and > 0x10FFFF */
bool utf8_valid(const char *s, size_t n);
/* Length of the longest prefix of s that ends on a code point boundary (an incomplete tail is left out). */
size_t utf8_complete_prefix(const char *s, size_t n);

/* "1,560,860,324,864" and "1.56 TB" (decimal units, 3 significant digits). Return buf. */
const char *format_count(uint64_t n, char *buf, size_t bytes);
const char *format_bytes(uint64_t n, char *buf, size_t bytes);

bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);
/* Edit distance (Levenshtein), for "did you mean"; strings beyond 64 bytes are cut. */
unsigned str_distance(const char *a, const char *b);
/* Strict decimal integer of the whole string; false on anything else or out of range. */
bool str_to_i64(const char *s, int64_t *out);
/* Bytes with optional suffix K, M, G, T (powers of 1000) or Ki, Mi, Gi, Ti (1024), optional B. */
bool str_to_bytes(const char *s, uint64_t *out);

#endif
