/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: arenas, their accounting by tag, and growing arrays.
 * Refuses: freeing single objects, and aborting when memory is out: callers see NULL or ERR_NOMEM.
 */
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define FIRST_BLOCK_BYTES 4096u
#define LAST_BLOCK_BYTES  (1024u * 1024u)
#define ALIGNMENT         16u

struct arena_block {
    struct arena_block *next;
    size_t bytes; /* of data */
    size_t used;
    size_t padding; /* keeps data aligned to 16 */
    unsigned char data[];
};

const char *mem_tag_name(enum mem_tag tag)
{
    static const char *const names[MEM_N_TAGS] = {
#define X(name, text) [MEM_##name] = text,
        MEM_TAG_MAP(X)
#undef X
    };
    return (unsigned)tag < MEM_N_TAGS ? names[tag] : "unknown";
}

void mem_account(struct mem *m, enum mem_tag tag, int64_t delta_bytes)
{
    if (!m || (unsigned)tag >= MEM_N_TAGS)
        return;
    uint64_t live = atomic_fetch_add(&m->live[tag], (uint64_t)delta_bytes) + (uint64_t)delta_bytes;
    if (delta_bytes <= 0)
        return;
    uint64_t peak = atomic_load(&m->peak[tag]);
    while (live > peak && !atomic_compare_exchange_weak(&m->peak[tag], &peak, live))
        ;
}

void arena_init(struct arena *a, struct mem *mem, enum mem_tag tag)
{
    *a = (struct arena){.mem = mem, .tag = tag, .block_bytes = FIRST_BLOCK_BYTES};
}

static void block_free(struct arena *a, struct arena_block *b)
{
    uint64_t bytes = b->bytes + sizeof(*b);
    a->held -= bytes;
    mem_account(a->mem, a->tag, -(int64_t)bytes);
    free(b);
}

void arena_release(struct arena *a)
{
    while (a->head) {
        struct arena_block *next = a->head->next;
        block_free(a, a->head);
        a->head = next;
    }
    a->block_bytes = FIRST_BLOCK_BYTES;
}

void arena_reset(struct arena *a)
{
    if (!a->head)
        return;
    /* The newest block is the one that the next round will most likely fit into. */
    while (a->head->next) {
        struct arena_block *second = a->head->next;
        a->head->next = second->next;
        block_free(a, second);
    }
    a->head->used = 0;
}

static struct arena_block *block_new(struct arena *a, size_t bytes)
{
    size_t total;
    if (__builtin_add_overflow(bytes, sizeof(struct arena_block), &total) || total > PTRDIFF_MAX)
        return NULL;
    if (a->limit && (a->held > a->limit || total > a->limit - a->held))
        return NULL;
    struct arena_block *b = malloc(total);
    if (!b)
        return NULL;
    b->next = NULL;
    b->bytes = bytes;
    b->used = 0;
    a->held += total;
    if (a->mem)
        atomic_fetch_add(&a->mem->allocations, 1);
    mem_account(a->mem, a->tag, (int64_t)total);
    return b;
}

/* A block with room for `need` bytes. What is larger than a usual block gets one of its own behind the head,
 * so that the rest of the head is not lost. */
static struct arena_block *block_for(struct arena *a, size_t need)
{
    struct arena_block *head = a->head;
    if (head && head->bytes - head->used >= need)
        return head;
    if (a->block_bytes == 0) /* a zero-initialised arena works, too */
        a->block_bytes = FIRST_BLOCK_BYTES;
    bool large = need > a->block_bytes;
    struct arena_block *b = block_new(a, large ? need : a->block_bytes);
    if (!b && !large) /* near the limit a block that just fits may still do */
        b = block_new(a, need);
    if (!b)
        return NULL;
    if (large && head) {
        b->next = head->next;
        head->next = b;
        return b;
    }
    b->next = head;
    a->head = b;
    if (a->block_bytes < LAST_BLOCK_BYTES)
        a->block_bytes *= 2;
    return b;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    if (bytes > PTRDIFF_MAX)
        return NULL;
    size_t need = bytes ? ALIGN_UP(bytes, ALIGNMENT) : ALIGNMENT;
    struct arena_block *b = block_for(a, need);
    if (!b)
        return NULL;
    void *p = b->data + b->used;
    b->used += need;
    return memset(p, 0, need);
}

void *arena_alloc_n(struct arena *a, size_t n, size_t element_bytes)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, element_bytes, &bytes))
        return NULL;
    return arena_alloc(a, bytes);
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    if (n >= PTRDIFF_MAX)
        return NULL;
    char *copy = arena_alloc(a, n + 1);
    if (copy && n)
        memcpy(copy, s, n);
    return copy;
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *text = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1);
    if (text)
        vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}

int vec_reserve(void **array, size_t *capacity, size_t need, size_t element_bytes)
{
    if (need <= *capacity)
        return 0;
    size_t n = *capacity < 8 ? 8 : *capacity;
    while (n < need) {
        if (__builtin_mul_overflow(n, (size_t)2, &n))
            return ERR_NOMEM;
    }
    size_t bytes;
    if (__builtin_mul_overflow(n, element_bytes, &bytes) || bytes > PTRDIFF_MAX)
        return ERR_NOMEM;
    void *grown = realloc(*array, bytes);
    if (!grown)
        return ERR_NOMEM;
    *array = grown;
    *capacity = n;
    return 0;
}
