/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte-pair encoding: reads vocabulary and merges, applies them. Merging keeps the symbols in a linked list
 * and the candidates in a heap ordered by (rank, position), so n characters cost n log n whatever the text
 * is. Refuses dropout, subword prefixes and suffixes, and merges whose parts or result are no tokens.
 * Everything is decided as the reference implementation decides it, also where that looks odd (a pending
 * unknown token is put after byte tokens that follow it).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/text_impl.h"

struct bpe_symbol {
    int32_t id; /* -1: merged into its left neighbour */
    int32_t prev, next;
};
struct bpe_merge {
    uint32_t rank;
    int32_t pos;
    int32_t id;
};

void bpe_scratch_release(struct bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    memset(s, 0, sizeof *s);
}

/* ---- reading ---- */

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static size_t slot_of(const struct bpe *b, uint64_t pair)
{
    uint64_t h = pair * 0x9E3779B97F4A7C15u;
    size_t i = (size_t)(h ^ h >> 32) & (b->n_slots - 1);
    while (b->slots[i].pair != UINT64_MAX && b->slots[i].pair != pair)
        i = (i + 1) & (b->n_slots - 1);
    return i;
}

static const struct merge_slot *find_merge(const struct bpe *b, int32_t left, int32_t right)
{
    const struct merge_slot *s = &b->slots[slot_of(b, pair_key(left, right))];
    return s->pair == UINT64_MAX ? NULL : s;
}

static bool vocab_id(const struct tokenizer *t, const char *s, size_t n, int32_t *out)
{
    uint32_t id;
    if (!strmap_get(&t->map, s, n, &id))
        return false;
    *out = (int32_t)id;
    return true;
}

/* Both spellings: "left right" and ["left", "right"]. */
static bool split_merge(const struct json *v, struct span *left, struct span *right)
{
    if (v->type == JSON_ARRAY) {
        const struct json *l = json_at(v, 0), *r = json_at(v, 1);
        if (v->n != 2 || json_string(l) == NULL || json_string(r) == NULL)
            return false;
        *left = (struct span){l->as.string, l->n};
        *right = (struct span){r->as.string, r->n};
        return true;
    }
    if (json_string(v) == NULL)
        return false;
    const char *s = v->as.string, *space = memchr(s, ' ', v->n);
    if (space == NULL)
        return false;
    *left = (struct span){s, (size_t)(space - s)};
    *right = (struct span){space + 1, v->n - left->n - 1};
    return memchr(right->s, ' ', right->n) == NULL;
}

static int add_merge(struct tokenizer *t, const struct json *v, uint32_t rank, struct err *e)
{
    struct span l, r;
    int32_t left, right, result;
    char joined[2 * TEXT_MAX_ADDED], *text = joined;
    if (!split_merge(v, &l, &r))
        return err_set(e, ERR_FORMAT, "tokenizer.json: merge %u is neither \"a b\" nor [\"a\", \"b\"]", rank);
    if (l.n + r.n > TEXT_MAX_TOKEN)
        return err_set(e, ERR_LIMIT, "tokenizer.json: merge %u is longer than %d bytes", rank,
                       TEXT_MAX_TOKEN);
    if (l.n + r.n > sizeof joined && (text = malloc(l.n + r.n)) == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the merges");
    memcpy(text, l.s, l.n);
    memcpy(text + l.n, r.s, r.n);
    bool known = vocab_id(t, l.s, l.n, &left) && vocab_id(t, r.s, r.n, &right) &&
                 vocab_id(t, text, l.n + r.n, &result);
    if (text != joined)
        free(text);
    if (!known)
        return err_set(
            e, ERR_FORMAT,
            "tokenizer.json: merge %u (%.*s + %.*s): a part or the result is no token of the vocabulary",
            rank, l.n > 40 ? 40 : (int)l.n, l.s, r.n > 40 ? 40 : (int)r.n, r.s);
    uint64_t pair = pair_key(left, right);
    t->bpe.slots[slot_of(&t->bpe, pair)] = (struct merge_slot){pair, rank, result};
    return ERR_OK;
}

static int read_merges(struct tokenizer *t, const struct json *merges, struct err *e)
{
    struct bpe *b = &t->bpe;
    if (merges == NULL || merges->type != JSON_ARRAY)
        return err_set(e, ERR_FORMAT, "tokenizer.json: model BPE: \"merges\" is missing or no array");
    if (merges->n > TEXT_MAX_MERGES)
        return err_set(e, ERR_LIMIT, "tokenizer.json: %u merges, more than %u", merges->n, TEXT_MAX_MERGES);
    b->n_slots = 16;
    while (b->n_slots < 2 * (size_t)merges->n)
        b->n_slots *= 2;
    b->slots = malloc(b->n_slots * sizeof *b->slots);
    if (b->slots == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for %u merges", merges->n);
    for (size_t i = 0; i < b->n_slots; i++)
        b->slots[i].pair = UINT64_MAX;
    uint32_t rank = 0;
    for (uint32_t i = 0; i < merges->n; i++) {
        const struct json *m = json_at(merges, i);
        if (json_string(m) && str_starts(m->as.string, "#version"))
            continue; /* a line of the older merges.txt */
        int rc = add_merge(t, m, rank++, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static int refuse_option(const struct json *model, const char *key, struct err *e)
{
    const struct json *v = json_get(model, key);
    const char *s = json_string(v);
    double d;
    if (v == NULL || v->type == JSON_NULL || (s && *s == '\0') || (json_f64(v, &d) && d == 0))
        return ERR_OK;
    return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: model BPE with %s is not implemented", key);
}

static int read_options(struct tokenizer *t, const struct json *model, struct err *e)
{
    struct bpe *b = &t->bpe;
    static const char *const refused[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        int rc = refuse_option(model, refused[i], e);
        if (rc)
            return rc;
    }
    const struct {
        const char *key;
        bool *out;
    } flags[] = {{"byte_fallback", &b->byte_fallback},
                 {"fuse_unk", &b->fuse_unk},
                 {"ignore_merges", &b->ignore_merges}};
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        const struct json *v = json_get(model, flags[i].key);
        if (v && v->type != JSON_NULL && !json_bool(v, flags[i].out))
            return err_set(e, ERR_FORMAT, "tokenizer.json: model BPE: \"%s\" is no boolean", flags[i].key);
    }
    const struct json *unk = json_get(model, "unk_token");
    b->unk_id = -1;
    if (unk && unk->type != JSON_NULL &&
        (json_string(unk) == NULL || !vocab_id(t, unk->as.string, unk->n, &b->unk_id)))
        return err_set(e, ERR_FORMAT,
                       "tokenizer.json: model BPE: \"unk_token\" is no token of the vocabulary");
    return ERR_OK;
}

int bpe_read(struct tokenizer *t, const struct json *model, struct err *e)
{
    const struct json *type = json_get(model, "type");
    if (type && type->type != JSON_NULL && (json_string(type) == NULL || strcmp(type->as.string, "BPE") != 0))
        return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: model %.60s is not implemented",
                       json_string(type) ? type->as.string : "(no type)");
    int rc = read_options(t, model, e);
    if (rc == 0)
        rc = read_merges(t, json_get(model, "merges"), e);
    if (rc)
        return rc;
    for (int i = 0; i < 256; i++) {
        char name[8];
        int n = snprintf(name, sizeof name, "<0x%02X>", i);
        if (!vocab_id(t, name, (size_t)n, &t->bpe.byte_id[i]))
            t->bpe.byte_id[i] = -1;
    }
    for (int i = 0; i < 128; i++) {
        char c = (char)i;
        if (!vocab_id(t, &c, 1, &t->bpe.char_id[i]))
            t->bpe.char_id[i] = -1;
    }
    return ERR_OK;
}

/* ---- encoding ---- */

static int add_symbol(struct bpe_scratch *s, size_t *n, int32_t id)
{
    if (*n >= INT32_MAX - 1 ||
        vec_reserve((void **)&s->symbols, &s->symbols_capacity, *n + 1, sizeof *s->symbols))
        return ERR_NOMEM;
    s->symbols[*n] = (struct bpe_symbol){id, (int32_t)*n - 1, (int32_t)*n + 1};
    (*n)++;
    return ERR_OK;
}

static bool all_bytes_known(const struct bpe *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (b->byte_id[(unsigned char)s[i]] < 0)
            return false;
    return true;
}

/* Characters to symbols: tokens of one character, bytes, or the unknown token. */
static int split_characters(const struct tokenizer *t, struct bpe_scratch *scratch, const char *s, size_t n,
                            size_t *n_out)
{
    const struct bpe *b = &t->bpe;
    bool unk_pending = false;
    int rc = ERR_OK;
    *n_out = 0;
    for (size_t i = 0, len; i < n && rc == 0; i += len) {
        uint32_t c;
        int32_t id = -1;
        len = utf8_decode(s + i, n - i, &c);
        if (len == 0)
            BUG("text was checked to be UTF-8");
        if (c < 128)
            id = b->char_id[c];
        else
            vocab_id(t, s + i, len, &id);
        if (id >= 0) {
            if (unk_pending)
                rc = add_symbol(scratch, n_out, b->unk_id);
            unk_pending = false;
            if (rc == 0)
                rc = add_symbol(scratch, n_out, id);
        } else if (b->byte_fallback && all_bytes_known(b, s + i, len)) {
            for (size_t k = 0; k < len && rc == 0; k++)
                rc = add_symbol(scratch, n_out, b->byte_id[(unsigned char)s[i + k]]);
        } else if (b->unk_id >= 0) {
            if (unk_pending && !b->fuse_unk)
                rc = add_symbol(scratch, n_out, b->unk_id);
            unk_pending = true;
        }
    }
    if (rc == 0 && unk_pending)
        rc = add_symbol(scratch, n_out, b->unk_id);
    if (*n_out)
        scratch->symbols[*n_out - 1].next = -1;
    return rc;
}

static bool before(const struct bpe_merge *a, const struct bpe_merge *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

/* Puts the pair that starts at pos into the heap, if it can be merged. */
static int push_pair(const struct bpe *b, struct bpe_scratch *s, int32_t pos)
{
    const struct bpe_symbol *left = &s->symbols[pos];
    if (left->next < 0)
        return ERR_OK;
    const struct merge_slot *m = find_merge(b, left->id, s->symbols[left->next].id);
    if (m == NULL)
        return ERR_OK;
    if (vec_reserve((void **)&s->heap, &s->heap_capacity, s->n_heap + 1, sizeof *s->heap))
        return ERR_NOMEM;
    struct bpe_merge item = {m->rank, pos, m->id};
    size_t i = s->n_heap++;
    for (size_t parent; i > 0 && before(&item, &s->heap[parent = (i - 1) / 2]); i = parent)
        s->heap[i] = s->heap[parent];
    s->heap[i] = item;
    return ERR_OK;
}

static struct bpe_merge pop_pair(struct bpe_scratch *s)
{
    struct bpe_merge top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < s->n_heap; i = child) {
        if (child + 1 < s->n_heap && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}

static int merge_all(const struct bpe *b, struct bpe_scratch *s, size_t n)
{
    int rc = ERR_OK;
    s->n_heap = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = push_pair(b, s, (int32_t)i);
    while (s->n_heap > 0 && rc == 0) {
        struct bpe_merge top = pop_pair(s);
        struct bpe_symbol *left = &s->symbols[top.pos];
        if (left->id < 0 || left->next < 0)
            continue;
        struct bpe_symbol *right = &s->symbols[left->next];
        /* an entry from before one of its sides was merged away: stands for another pair now */
        const struct merge_slot *m = find_merge(b, left->id, right->id);
        if (m == NULL || m->id != top.id)
            continue;
        left->id = top.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            s->symbols[left->next].prev = top.pos;
        if (left->prev >= 0)
            rc = push_pair(b, s, left->prev);
        if (rc == 0)
            rc = push_pair(b, s, top.pos);
    }
    return rc;
}

int bpe_encode(const struct tokenizer *t, struct bpe_scratch *scratch, const char *s, size_t n,
               struct ids *out, struct err *e)
{
    int32_t whole;
    if (n == 0)
        return ERR_OK;
    if (t->bpe.ignore_merges && vocab_id(t, s, n, &whole))
        return ids_push(out, whole, e);
    size_t count;
    int rc = split_characters(t, scratch, s, n, &count);
    if (rc == 0)
        rc = merge_all(&t->bpe, scratch, count);
    if (rc)
        return err_set(e, ERR_NOMEM, "out of memory to tokenize %zu bytes", n);
    for (size_t i = 0; i < count && rc == 0; i++)
        if (scratch->symbols[i].id >= 0)
            rc = ids_push(out, scratch->symbols[i].id, e);
    return rc;
}
