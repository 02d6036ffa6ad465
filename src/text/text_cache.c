/* SPDX-License-Identifier: Apache-2.0
 *
 * Words of one text that were encoded before, with their ids. Lives as long as one call, so that a tokenizer
 * stays immutable; a table of fixed size whose newest entry wins. Refuses long words and short texts.
 */
#include <stdlib.h>
#include <string.h>

#include "text/text_impl.h"

#define MAX_WORD  32 /* bytes */
#define MAX_IDS   14
#define MIN_TEXT  256 /* bytes of text from which it pays */
#define MIN_SLOTS 64
#define MAX_SLOTS 16384

struct cache_slot {
    uint64_t hash;
    unsigned char n, n_ids; /* n 0: empty */
    char word[MAX_WORD];
    int32_t ids[MAX_IDS];
};
struct word_cache {
    size_t mask;
    struct cache_slot slots[];
};

struct word_cache *word_cache_new(size_t text_bytes)
{
    size_t n = MIN_SLOTS;
    while (n < text_bytes / 8 && n < MAX_SLOTS)
        n *= 2;
    if (text_bytes < MIN_TEXT)
        return NULL;
    struct word_cache *c = calloc(1, sizeof *c + n * sizeof c->slots[0]);
    if (c)
        c->mask = n - 1;
    return c;
}

void word_cache_free(struct word_cache *c)
{
    free(c);
}

const int32_t *word_cache_get(struct word_cache *c, const char *s, size_t n, uint64_t *hash, size_t *n_ids)
{
    if (c == NULL || n > MAX_WORD || n == 0)
        return NULL;
    *hash = hash64(s, n, 0);
    const struct cache_slot *slot = &c->slots[*hash & c->mask];
    if (slot->n != n || slot->hash != *hash || memcmp(slot->word, s, n) != 0)
        return NULL;
    *n_ids = slot->n_ids;
    return slot->ids;
}

void word_cache_put(struct word_cache *c, const char *s, size_t n, uint64_t hash, const int32_t *ids,
                    size_t n_ids)
{
    if (c == NULL || n > MAX_WORD || n == 0 || n_ids > MAX_IDS)
        return;
    struct cache_slot *slot = &c->slots[hash & c->mask];
    slot->hash = hash;
    slot->n = (unsigned char)n;
    slot->n_ids = (unsigned char)n_ids;
    memcpy(slot->word, s, n);
    memcpy(slot->ids, ids, n_ids * sizeof *ids);
}
