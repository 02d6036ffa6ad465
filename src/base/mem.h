/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory by lifetime: arenas whose bytes are accounted to a tag in a `struct mem`. Everything that a model,
 * a request or a step needs hangs from one arena and is freed at once. Also checked size arithmetic.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MEM_TAG_MAP(X)                                                                                       \
    X(MISC, "misc")                                                                                          \
    X(CKPT, "checkpoint headers")                                                                            \
    X(SPEC, "model description")                                                                             \
    X(GRAPH, "graph")                                                                                        \
    X(TEXT, "tokenizer")                                                                                     \
    X(LOAD, "loader staging")                                                                                \
    X(WEIGHTS, "weights")                                                                                    \
    X(KV, "kv pages")                                                                                        \
    X(SCRATCH, "step scratch")                                                                               \
    X(KERNELS, "scratch of kernels")                                                                         \
    X(REQUEST, "requests")                                                                                   \
    X(REPORT, "report")

enum mem_tag {
#define X(name, text) MEM_##name,
    MEM_TAG_MAP(X)
#undef X
        MEM_N_TAGS
};

/* Accounting root. Zero-initialise. Counters may be read at any time from any thread. */
struct mem {
    _Atomic uint64_t live[MEM_N_TAGS]; /* bytes held now */
    _Atomic uint64_t peak[MEM_N_TAGS]; /* largest live value seen */
    _Atomic uint64_t allocations;      /* calls that reached malloc */
};

const char *mem_tag_name(enum mem_tag tag);
void mem_account(struct mem *m, enum mem_tag tag, int64_t delta_bytes); /* for memory got elsewhere */

/* A chain of blocks that only grows until reset or release. Not thread-safe. */
struct arena_block;
struct arena {
    struct mem *mem; /* may be NULL: no accounting */
    enum mem_tag tag;
    struct arena_block *head;
    size_t block_bytes; /* size of the next block */
    uint64_t limit;     /* refuse to hold more than this many bytes; 0 = no limit */
    uint64_t held;
};

void arena_init(struct arena *a, struct mem *mem, enum mem_tag tag);
void arena_release(struct arena *a); /* frees all; the arena may be used again as after init */
void arena_reset(struct arena *a);   /* forgets contents, keeps one block for reuse */

/* Zeroed memory aligned to 16 bytes; NULL when out of memory or past the limit. bytes may be 0. */
void *arena_alloc(struct arena *a, size_t bytes);
void *arena_alloc_n(struct arena *a, size_t n, size_t element_bytes); /* checked product */
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t n);
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Grows a malloc'ed array so that it holds at least `need` elements (doubling). *capacity in elements.
 * Returns 0 or ERR_NOMEM; on failure the array is as before. */
int vec_reserve(void **array, size_t *capacity, size_t need, size_t element_bytes);

/* true if a*b (a+b) fits; *out gets the result then. */
static inline bool mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
/* The product (sum), or UINT64_MAX where it does not fit: a size that fits nowhere. */
static inline uint64_t sat_mul(uint64_t a, uint64_t b)
{
    uint64_t product;
    return mul_u64(a, b, &product) ? product : UINT64_MAX;
}
static inline uint64_t sat_add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return add_u64(a, b, &sum) ? sum : UINT64_MAX;
}

#define ALIGN_UP(x, a) (((x) + ((a)-1)) / (a) * (a))
#define ARRAY_LEN(a)   (sizeof(a) / sizeof((a)[0]))

#endif
