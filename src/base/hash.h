/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 (OpenSSL), a fast non-cryptographic hash, a string map, and counter-based random numbers.
 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include "base/err.h"
#include "base/mem.h"

#define SHA256_HEX_BYTES 65

struct sha256; /* streaming state */
int sha256_begin(struct sha256 **out, struct err *e);
int sha256_update(struct sha256 *s, const void *data, size_t n);
int sha256_end(struct sha256 *s, char hex[SHA256_HEX_BYTES]); /* frees s */
void sha256_abort(struct sha256 *s);
int sha256_hex(const void *data, size_t n, char hex[SHA256_HEX_BYTES], struct err *e);
int sha256_file(const char *path, char hex[SHA256_HEX_BYTES], struct err *e); /* streaming, 1 MiB buffer */

uint64_t hash64(const void *data, size_t n, uint64_t seed); /* stable over machines and versions */

/* String -> uint32 map over keys that the caller keeps alive. */
struct strmap {
    struct strmap_slot *slots;
    size_t n, capacity;
    uint64_t seed;
};
void strmap_release(struct strmap *m);
int strmap_reserve(struct strmap *m, size_t n); /* 0 or ERR_NOMEM */
/* Inserts; returns 0, or 1 if the key was there (value unchanged; *old gets it when not NULL), or ERR_NOMEM.
 */
int strmap_put(struct strmap *m, const char *key, size_t key_bytes, uint32_t value, uint32_t *old);
bool strmap_get(const struct strmap *m, const char *key, size_t key_bytes, uint32_t *value);

/* Counter-based random bits: a pure function of (seed, counter) (SplitMix64 finaliser over both). */
uint64_t rng_u64(uint64_t seed, uint64_t counter);
double rng_f64(uint64_t seed, uint64_t counter); /* [0, 1), 53 bits */
/* Small stateful generator for tests and load: xoshiro256**. */
struct rng {
    uint64_t s[4];
};
void rng_init(struct rng *r, uint64_t seed);
uint64_t rng_next(struct rng *r);
double rng_next_f64(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t n); /* unbiased, n > 0 */

#endif
