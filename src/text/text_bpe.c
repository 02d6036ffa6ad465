/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte-pair encoding: reads vocabulary and merges, applies them. Merging keeps the symbols in a linked list
 * and the candidates in a heap ordered by (rank, position), so n characters cost n log n whatever the text
 * is; short words are searched through instead, and long ones fall apart where no merge joins
 * (text_bpe_cuts.c). Refuses dropout, and merges whose parts or result are no tokens. Everything is decided
 * as the reference implementation decides it, also where that looks odd (a pending unknown token is put after
 * byte tokens that follow it).
 */
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

#define SHORT_WORD 48 /* symbols up to which searching all pairs is faster than a heap */

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

bool text_vocab_id(const struct tokenizer *t, const char *s, size_t n, int32_t *out)
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
    size_t cut = t->bpe.prefix.n < r.n ? t->bpe.prefix.n : r.n; /* the right part continues the word */
    memcpy(text, l.s, l.n);
    memcpy(text + l.n, r.s + cut, r.n - cut);
    bool known = text_vocab_id(t, l.s, l.n, &left) && text_vocab_id(t, r.s, r.n, &right) &&
                 text_vocab_id(t, text, l.n + r.n - cut, &result);
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

static int make_slots(struct bpe *b, size_t n, struct err *e)
{
    b->n_slots = 16;
    while (b->n_slots < 2 * n)
        b->n_slots *= 2;
    b->slots = malloc(b->n_slots * sizeof *b->slots);
    if (b->slots == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for %zu merges", n);
    for (size_t i = 0; i < b->n_slots; i++)
        b->slots[i].pair = UINT64_MAX;
    return ERR_OK;
}

static int read_merges(struct tokenizer *t, const struct json *merges, struct err *e)
{
    if (merges == NULL || merges->type != JSON_ARRAY)
        return err_set(e, ERR_FORMAT, "tokenizer.json: model BPE: \"merges\" is missing or no array");
    if (merges->n > TEXT_MAX_MERGES)
        return err_set(e, ERR_LIMIT, "tokenizer.json: %u merges, more than %u", merges->n, TEXT_MAX_MERGES);
    int rc = make_slots(&t->bpe, merges->n, e);
    if (rc)
        return rc;
    uint32_t rank = 0;
    for (uint32_t i = 0; i < merges->n; i++) {
        const struct json *m = json_at(merges, i);
        if (json_string(m) && str_starts(m->as.string, "#version"))
            continue; /* a line of the older merges.txt */
        rc = add_merge(t, m, rank++, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static void find_characters(struct tokenizer *t)
{
    for (uint32_t i = 0; i < BPE_DIRECT; i++) {
        char c[4];
        size_t n = utf8_encode(i, c);
        if (!text_vocab_id(t, c, n, &t->bpe.char_id[i]))
            t->bpe.char_id[i] = -1;
    }
}

int bpe_merges_from_ranks(struct tokenizer *t, struct err *e)
{
    size_t n_pairs = 0;
    int rc = ERR_OK;
    for (int pass = 0; pass < 2 && rc == 0; pass++) { /* counts, then fills */
        for (uint32_t id = 0; id < t->n_ids; id++) {
            const struct token *k = &t->tokens[id];
            int32_t left, right;
            if (!(k->flags & TOKEN_PRESENT) || k->flags & TOKEN_ADDED)
                continue;
            for (size_t i = 1; i < k->raw_bytes; i++) {
                if (((unsigned char)k->raw[i] & 0xC0) == 0x80 || !text_vocab_id(t, k->raw, i, &left) ||
                    !text_vocab_id(t, k->raw + i, k->raw_bytes - i, &right))
                    continue;
                uint64_t pair = pair_key(left, right);
                if (pass)
                    t->bpe.slots[slot_of(&t->bpe, pair)] = (struct merge_slot){pair, id, (int32_t)id};
                n_pairs += pass == 0;
            }
        }
        if (pass == 0)
            rc = make_slots(&t->bpe, n_pairs, e);
    }
    if (rc == 0)
        find_characters(t);
    return rc == 0 ? bpe_find_cuts(t, e) : rc;
}

/* dropout null (or 0), prefix and suffix as text or null */
static int read_affixes(struct tokenizer *t, const struct json *model, struct err *e)
{
    const struct json *dropout = json_get(model, "dropout");
    const char *const keys[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    double d = 0;
    if (!text_absent(dropout) && (!json_f64(dropout, &d) || d != 0))
        return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: model BPE with dropout is not implemented");
    for (int i = 0; i < 2; i++) {
        const struct json *v = json_get(model, keys[i]);
        struct span *out = i ? &t->bpe.suffix : &t->bpe.prefix;
        if (!text_absent(v) && (!text_copy_string(t, v, out) || out->n > TEXT_MAX_ADDED))
            return err_set(e, ERR_FORMAT, "tokenizer.json: model BPE: \"%s\" is no short string", keys[i]);
    }
    return ERR_OK;
}

int bpe_read(struct tokenizer *t, const struct json *model, struct err *e)
{
    struct bpe *b = &t->bpe;
    int rc = read_affixes(t, model, e);
    if (rc)
        return rc;
    const struct {
        const char *key;
        bool *out;
    } flags[] = {{"byte_fallback", &t->byte_fallback},
                 {"fuse_unk", &b->fuse_unk},
                 {"ignore_merges", &b->ignore_merges}};
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        if (!text_read_flag(model, flags[i].key, false, flags[i].out))
            return err_set(e, ERR_FORMAT, "tokenizer.json: model BPE: \"%s\" is no boolean", flags[i].key);
    const struct json *unk = json_get(model, "unk_token");
    if (!text_absent(unk) &&
        (json_string(unk) == NULL || !text_vocab_id(t, unk->as.string, unk->n, &t->unk_id)))
        return err_set(e, ERR_FORMAT,
                       "tokenizer.json: model BPE: \"unk_token\" is no token of the vocabulary");
    rc = read_merges(t, json_get(model, "merges"), e);
    if (rc == 0)
        find_characters(t);
    return rc == 0 ? bpe_find_cuts(t, e) : rc;
}

/* ---- encoding ---- */

static int add_symbol(struct model_scratch *s, size_t *n, int32_t id)
{
    if (*n >= INT32_MAX - 1 ||
        vec_reserve((void **)&s->symbols, &s->symbols_capacity, *n + 1, sizeof *s->symbols))
        return ERR_NOMEM;
    s->symbols[*n] = (struct bpe_symbol){id, (int32_t)*n - 1, (int32_t)*n + 1};
    (*n)++;
    return ERR_OK;
}

/* The bytes of s as byte tokens; *all false, and nothing added, if one has none. */
static int add_bytes(const struct tokenizer *t, struct model_scratch *scratch, size_t *n_out, const char *s,
                     size_t n, bool *all)
{
    int rc = ERR_OK;
    *all = true;
    for (size_t i = 0; i < n; i++)
        *all = *all && t->byte_id[(unsigned char)s[i]] >= 0;
    for (size_t i = 0; i < n && *all && rc == 0; i++)
        rc = add_symbol(scratch, n_out, t->byte_id[(unsigned char)s[i]]);
    return rc;
}

/* One character, as it is looked for in the vocabulary: with what marks its place in the word. */
static struct span decorated(const struct bpe *b, const char *s, size_t n, bool first, bool last,
                             char buffer[2 * TEXT_MAX_ADDED + 4])
{
    size_t before = first ? 0 : b->prefix.n, after = last ? b->suffix.n : 0;
    if (before + after == 0)
        return (struct span){s, n};
    if (before)
        memcpy(buffer, b->prefix.s, before);
    memcpy(buffer + before, s, n);
    if (after)
        memcpy(buffer + before + n, b->suffix.s, after);
    return (struct span){buffer, before + n + after};
}

/* Characters to symbols: tokens of one character, bytes, or the unknown token. */
static int split_characters(const struct tokenizer *t, struct model_scratch *scratch, const char *s, size_t n,
                            size_t *n_out)
{
    const struct bpe *b = &t->bpe;
    bool unk_pending = false;
    char buffer[2 * TEXT_MAX_ADDED + 4];
    int rc = ERR_OK;
    *n_out = 0;
    for (size_t i = 0, len; i < n && rc == 0; i += len) {
        uint32_t c;
        int32_t id = -1;
        len = utf8_decode(s + i, n - i, &c);
        if (len == 0)
            BUG("text was checked to be UTF-8");
        struct span k = decorated(b, s + i, len, i == 0, i + len == n, buffer);
        if (c < BPE_DIRECT && k.n == len)
            id = b->char_id[c];
        else
            text_vocab_id(t, k.s, k.n, &id);
        if (id >= 0) {
            if (unk_pending)
                rc = add_symbol(scratch, n_out, t->unk_id);
            unk_pending = false;
            if (rc == 0)
                rc = add_symbol(scratch, n_out, id);
            continue;
        }
        bool as_bytes = false;
        if (t->byte_fallback)
            rc = add_bytes(t, scratch, n_out, k.s, k.n, &as_bytes);
        if (!as_bytes && t->unk_id >= 0) {
            if (unk_pending && !b->fuse_unk)
                rc = add_symbol(scratch, n_out, t->unk_id);
            unk_pending = true;
        }
    }
    if (rc == 0 && unk_pending)
        rc = add_symbol(scratch, n_out, t->unk_id);
    if (*n_out)
        scratch->symbols[*n_out - 1].next = -1;
    return rc;
}

/* Short words: ranks of all neighbours side by side, the lowest (the leftmost of equals) merges first. */
static size_t merge_short(const struct bpe *b, struct bpe_symbol *symbols, size_t n)
{
    const struct merge_slot *pairs[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++)
        pairs[i] = find_merge(b, symbols[i].id, symbols[i + 1].id);
    for (;;) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (pairs[i] && (best == n || pairs[i]->rank < pairs[best]->rank))
                best = i;
        if (best == n)
            return n;
        symbols[best].id = pairs[best]->id;
        n--;
        for (size_t i = best + 1; i < n; i++) {
            symbols[i].id = symbols[i + 1].id;
            pairs[i - 1] = pairs[i];
        }
        if (best > 0)
            pairs[best - 1] = find_merge(b, symbols[best - 1].id, symbols[best].id);
        if (best + 1 < n)
            pairs[best] = find_merge(b, symbols[best].id, symbols[best + 1].id);
    }
}

static bool before(const struct bpe_merge *a, const struct bpe_merge *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

/* Puts the pair that starts at pos into the heap, if it can be merged. */
static int push_pair(const struct bpe *b, struct model_scratch *s, int32_t pos)
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

static struct bpe_merge pop_pair(struct model_scratch *s)
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

/* Symbols from `from` to before `end`, which are linked among themselves only. */
static int merge_all(const struct bpe *b, struct model_scratch *s, size_t from, size_t end)
{
    int rc = ERR_OK;
    s->n_heap = 0;
    for (size_t i = from; i < end && rc == 0; i++)
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

/* Merges a word piece by piece, cut where nothing joins. */
static int merge_pieces(const struct bpe *b, struct model_scratch *s, size_t n)
{
    int rc = ERR_OK;
    for (size_t from = 0, end; from < n && rc == 0; from = end) {
        for (end = from + 1; end < n && bpe_may_join(b, s->symbols[end - 1].id, s->symbols[end].id);)
            end++;
        s->symbols[from].prev = -1;
        s->symbols[end - 1].next = -1;
        if (end - from > SHORT_WORD) {
            rc = merge_all(b, s, from, end);
            continue;
        }
        for (size_t i = from + merge_short(b, s->symbols + from, end - from); i < end; i++)
            s->symbols[i].id = -1;
    }
    return rc;
}

int bpe_encode(const struct tokenizer *t, struct model_scratch *scratch, const char *s, size_t n,
               struct ids *out, struct err *e)
{
    int32_t whole;
    if (n == 0)
        return ERR_OK;
    if (t->bpe.ignore_merges && text_vocab_id(t, s, n, &whole))
        return ids_push(out, whole, e);
    size_t count;
    int rc = split_characters(t, scratch, s, n, &count);
    if (rc == 0 && count <= SHORT_WORD)
        count = merge_short(&t->bpe, scratch->symbols, count);
    else if (rc == 0)
        rc = merge_pieces(&t->bpe, scratch, count);
    if (rc)
        return err_set(e, ERR_NOMEM, "out of memory to tokenize %zu bytes", n);
    for (size_t i = 0; i < count && rc == 0; i++)
        if (scratch->symbols[i].id >= 0)
            rc = ids_push(out, scratch->symbols[i].id, e);
    return rc;
}
