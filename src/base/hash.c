/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: SHA-256 through OpenSSL, one fast hash, the string map on it, and counter-based random numbers.
 * Refuses: cryptographic claims for anything but SHA-256.
 */
#include "base/hash.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/file.h"

#define READ_BYTES (1024u * 1024u)

/* ---- SHA-256 */

struct sha256 {
    EVP_MD_CTX *context;
};

int sha256_begin(struct sha256 **out, struct err *e)
{
    struct sha256 *s = malloc(sizeof(*s));
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for a SHA-256 state");
    s->context = EVP_MD_CTX_new();
    if (!s->context || EVP_DigestInit_ex(s->context, EVP_sha256(), NULL) != 1) {
        sha256_abort(s);
        return err_set(e, ERR_UNSUPPORTED, "OpenSSL offers no SHA-256");
    }
    *out = s;
    return ERR_OK;
}

int sha256_update(struct sha256 *s, const void *data, size_t n)
{
    return EVP_DigestUpdate(s->context, data, n) == 1 ? ERR_OK : ERR_NOMEM;
}

int sha256_end(struct sha256 *s, char hex[SHA256_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    int ok = EVP_DigestFinal_ex(s->context, digest, &n) == 1 && n == 32;
    sha256_abort(s);
    hex[0] = '\0';
    if (!ok)
        return ERR_NOMEM;
    for (unsigned i = 0; i < 32; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[64] = '\0';
    return ERR_OK;
}

void sha256_abort(struct sha256 *s)
{
    if (!s)
        return;
    EVP_MD_CTX_free(s->context);
    free(s);
}

int sha256_hex(const void *data, size_t n, char hex[SHA256_HEX_BYTES], struct err *e)
{
    struct sha256 *s;
    int rc = sha256_begin(&s, e);
    if (rc)
        return rc;
    int updated = sha256_update(s, data, n);
    rc = sha256_end(s, hex);
    if (updated || rc)
        return err_set(e, ERR_NOMEM, "OpenSSL could not compute a SHA-256");
    return ERR_OK;
}

int sha256_file(const char *path, char hex[SHA256_HEX_BYTES], struct err *e)
{
    int fd;
    int rc = file_open_read(path, &fd, e);
    if (rc)
        return rc;
    struct sha256 *s = NULL;
    struct file_info info;
    char *buf = malloc(READ_BYTES);
    rc = buf ? sha256_begin(&s, e) : err_set(e, ERR_NOMEM, "%s: no memory to hash it", path);
    if (!rc)
        rc = file_stat(path, &info, e);
    for (uint64_t at = 0; !rc && at < info.bytes;) {
        size_t n = info.bytes - at < READ_BYTES ? (size_t)(info.bytes - at) : READ_BYTES;
        rc = file_pread(fd, path, buf, n, at, e);
        if (!rc && sha256_update(s, buf, n))
            rc = err_set(e, ERR_NOMEM, "%s: OpenSSL could not hash it", path);
        at += n;
    }
    if (rc)
        sha256_abort(s);
    else if (sha256_end(s, hex))
        rc = err_set(e, ERR_NOMEM, "%s: OpenSSL could not hash it", path);
    free(buf);
    close(fd);
    return rc;
}

/* ---- fast hash: 64-bit words folded by a 64x64 -> 128 multiplication */

static uint64_t fold(uint64_t a, uint64_t b)
{
    __uint128_t product = (__uint128_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t load_le(const unsigned char *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

uint64_t hash64(const void *data, size_t n, uint64_t seed)
{
    const uint64_t k0 = 0x9E3779B97F4A7C15u, k1 = 0xD6E8FEB86659FD93u, k2 = 0xA0761D6478BD642Fu;
    const unsigned char *p = data;
    uint64_t h = fold(seed ^ k0, k1) ^ n;
    size_t left = n;
    for (; left >= 8; left -= 8, p += 8)
        h = fold(h ^ load_le(p, 8), k2) + k0;
    if (left)
        h = fold(h ^ load_le(p, left), k1) + k0;
    return fold(h ^ k1, k2);
}

/* ---- string map: open addressing, linear probing, at most half full */

struct strmap_slot {
    const char *key; /* NULL: free */
    size_t key_bytes;
    uint64_t hash;
    uint32_t value;
};

void strmap_release(struct strmap *m)
{
    free(m->slots);
    *m = (struct strmap){0};
}

static struct strmap_slot *find_slot(const struct strmap *m, const char *key, size_t key_bytes, uint64_t hash)
{
    size_t mask = m->capacity - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        struct strmap_slot *slot = &m->slots[i];
        if (!slot->key || (slot->hash == hash && slot->key_bytes == key_bytes &&
                           (key_bytes == 0 || memcmp(slot->key, key, key_bytes) == 0)))
            return slot;
    }
}

int strmap_reserve(struct strmap *m, size_t n)
{
    size_t capacity = 16;
    while (capacity / 2 < n) {
        if (__builtin_mul_overflow(capacity, (size_t)2, &capacity))
            return ERR_NOMEM;
    }
    if (capacity <= m->capacity)
        return 0;
    struct strmap grown = {.n = m->n, .capacity = capacity, .seed = m->seed};
    grown.slots = calloc(capacity, sizeof(*grown.slots));
    if (!grown.slots)
        return ERR_NOMEM;
    /* Keys come from files and clients: an unguessable seed keeps chosen collisions out. Order never shows.
     */
    if (!m->slots && getrandom(&grown.seed, sizeof(grown.seed), GRND_NONBLOCK) != (ssize_t)sizeof(grown.seed))
        grown.seed = (uint64_t)(uintptr_t)grown.slots;
    for (size_t i = 0; i < m->capacity; i++) {
        const struct strmap_slot *old = &m->slots[i];
        if (old->key)
            *find_slot(&grown, old->key, old->key_bytes, old->hash) = *old;
    }
    free(m->slots);
    *m = grown;
    return 0;
}

int strmap_put(struct strmap *m, const char *key, size_t key_bytes, uint32_t value, uint32_t *old)
{
    if (m->n == SIZE_MAX || strmap_reserve(m, m->n + 1))
        return ERR_NOMEM;
    uint64_t hash = hash64(key, key_bytes, m->seed);
    struct strmap_slot *slot = find_slot(m, key, key_bytes, hash);
    if (slot->key) {
        if (old)
            *old = slot->value;
        return 1;
    }
    *slot = (struct strmap_slot){.key = key ? key : "", .key_bytes = key_bytes, .hash = hash, .value = value};
    m->n++;
    return 0;
}

bool strmap_get(const struct strmap *m, const char *key, size_t key_bytes, uint32_t *value)
{
    if (!m->slots)
        return false;
    const struct strmap_slot *slot = find_slot(m, key, key_bytes, hash64(key, key_bytes, m->seed));
    if (!slot->key)
        return false;
    if (value)
        *value = slot->value;
    return true;
}

/* ---- random numbers */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint64_t rng_u64(uint64_t seed, uint64_t counter)
{
    /* The seed is mixed first, so that neighbouring seeds do not give shifted copies of one sequence. */
    return mix(mix(seed + 0x9E3779B97F4A7C15u) + (counter + 1) * 0x9E3779B97F4A7C15u);
}

static double to_unit(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

double rng_f64(uint64_t seed, uint64_t counter)
{
    return to_unit(rng_u64(seed, counter));
}

void rng_init(struct rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        r->s[i] = mix(seed += 0x9E3779B97F4A7C15u);
}

static uint64_t rotate(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

uint64_t rng_next(struct rng *r)
{
    uint64_t *s = r->s;
    uint64_t result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

double rng_next_f64(struct rng *r)
{
    return to_unit(rng_next(r));
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
    if (n == 0)
        BUG("rng_below(0)");
    /* Values below 2^64 mod n would make small results likelier: draw again. */
    uint64_t unfair = (0 - n) % n, x;
    do
        x = rng_next(r);
    while (x < unfair);
    return x % n;
}
