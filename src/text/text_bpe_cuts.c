/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: which neighbouring symbols of a word no merge of byte-pair encoding ever joins, whatever surrounds
 * them. There a word of any length may be cut, and its pieces are merged alone with the same result: merges
 * of one piece happen in the same order with or without those of another. A tokenizer without a pre-tokenizer
 * has whole texts as words, and they fall apart into words so. Refuses to guess: a vocabulary in which
 * a token begins or ends with other symbols depending on how it was merged is never cut.
 */
#include <stdlib.h>
#include <string.h>

#include "text/text_impl.h"

#define FILTER_BITS 18 /* pairs are hashed; a pair that falls on another's bit only means one cut less */

/* By token: one merge that makes it, and its ends in symbols as a word is first split into. */
struct ends {
    int32_t left, right; /* -1: no merge makes it */
    int32_t first, last;
};

static uint32_t bit_of(int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return (uint32_t)(pair * 0x9E3779B97F4A7C15u >> (64 - FILTER_BITS));
}

bool bpe_may_join(const struct bpe *b, int32_t left, int32_t right)
{
    uint32_t bit = bit_of(left, right);
    return b->joins == NULL || (b->joins[bit / 8] >> bit % 8 & 1) != 0;
}

/* Is it one character, with what marks its place? */
static bool is_character(const struct tokenizer *t, int32_t id)
{
    const struct token *k = &t->tokens[id];
    const struct span *prefix = &t->bpe.prefix, *suffix = &t->bpe.suffix;
    const char *s = k->raw;
    size_t n = k->raw_bytes;
    uint32_t c;
    if (prefix->n && n >= prefix->n && !memcmp(s, prefix->s, prefix->n))
        s += prefix->n, n -= prefix->n;
    if (suffix->n && n >= suffix->n && !memcmp(s + n - suffix->n, suffix->s, suffix->n))
        n -= suffix->n;
    return n == 0 || utf8_decode(s, n, &c) == n;
}

/* Follows the left or right parts down to what no merge makes; false where that has no end (a part may be
 * empty text, and a token then made of itself). */
static bool find_end(struct ends *all, int32_t id, bool right)
{
    int32_t at = id;
    for (size_t steps = 0; all[at].left >= 0; steps++) {
        if (steps > TEXT_MAX_TOKEN)
            return false;
        at = right ? all[at].right : all[at].left;
    }
    *(right ? &all[id].last : &all[id].first) = at;
    return true;
}

/* A word is first split into characters, bytes and the unknown token. Does a merge make one of these, too? */
static bool makes_symbols(const struct tokenizer *t, const struct ends *all)
{
    bool made = t->unk_id >= 0 && all[t->unk_id].left >= 0;
    for (int i = 0; i < 256; i++)
        made |= t->byte_id[i] >= 0 && all[t->byte_id[i]].left >= 0;
    for (uint32_t id = 0; id < t->n_ids && !made; id++)
        made = all[id].left >= 0 && is_character(t, (int32_t)id);
    return made;
}

/* False: a token has more than one beginning or end. */
static bool collect(const struct tokenizer *t, struct ends *all, unsigned char *joins)
{
    const struct bpe *b = &t->bpe;
    for (size_t i = 0; i < b->n_slots; i++) {
        const struct merge_slot *m = &b->slots[i];
        if (m->pair == UINT64_MAX)
            continue;
        all[m->id].left = (int32_t)(m->pair >> 32);
        all[m->id].right = (int32_t)(uint32_t)m->pair;
    }
    if (makes_symbols(t, all))
        return false;
    for (uint32_t id = 0; id < t->n_ids; id++)
        if (!find_end(all, (int32_t)id, false) || !find_end(all, (int32_t)id, true))
            return false;
    for (size_t i = 0; i < b->n_slots; i++) {
        const struct merge_slot *m = &b->slots[i];
        if (m->pair == UINT64_MAX)
            continue;
        const struct ends *left = &all[m->pair >> 32], *right = &all[(uint32_t)m->pair], *made = &all[m->id];
        if (left->first != made->first || right->last != made->last)
            return false;
        uint32_t bit = bit_of(left->last, right->first);
        joins[bit / 8] |= (unsigned char)(1u << bit % 8);
    }
    return true;
}

int bpe_find_cuts(struct tokenizer *t, struct err *e)
{
    struct ends *all = malloc((size_t)t->n_ids * sizeof *all);
    unsigned char *joins = calloc(1, (size_t)1 << FILTER_BITS >> 3);
    if (all == NULL || joins == NULL) {
        free(all);
        free(joins);
        return err_set(e, ERR_NOMEM, "out of memory for the merges of %u tokens", t->n_ids);
    }
    for (uint32_t id = 0; id < t->n_ids; id++)
        all[id] = (struct ends){-1, -1, -1, -1};
    if (collect(t, all, joins))
        t->bpe.joins = joins;
    else
        free(joins);
    free(all);
    return ERR_OK;
}
