/* SPDX-License-Identifier: Apache-2.0
 *
 * The models other than BPE: Unigram (the most likely way to cut a word, by dynamic programming), WordPiece
 * (the longest piece first) and WordLevel (whole words). Owns their tries. Every choice, ties included, is
 * the reference implementation's. Refuses tokens longer than TEXT_MAX_ADDED bytes in Unigram and WordPiece,
 * which bounds the work per byte of text, and words that the memory of a Unigram search was not meant for.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/text_impl.h"

#define UNK_PENALTY 10.0
#define MAX_WORD    (16u << 20) /* bytes of one word in a Unigram search */

void model_scratch_release(struct model_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    free(s->best);
    memset(s, 0, sizeof *s);
}

void words_release(struct words *w)
{
    free(w->score);
    trie_release(&w->start);
    trie_release(&w->inner);
}

/* ---- reading ---- */

static int add_key(struct trie *trie, struct span key, int32_t id, struct err *e)
{
    if (key.n > TEXT_MAX_ADDED)
        return err_set(e, ERR_LIMIT, "tokenizer.json: token %d has %zu bytes, more than %d", id, key.n,
                       TEXT_MAX_ADDED);
    return key.n && trie_add(trie, key, id) ? err_set(e, ERR_NOMEM, "out of memory for the vocabulary")
                                            : ERR_OK;
}

/* "unk_token" by name; the reference implementation needs it only when something is unknown. */
static int read_unk(struct tokenizer *t, const struct json *model, const char *fallback, struct err *e)
{
    const struct json *unk = json_get(model, "unk_token");
    if (!text_absent(unk) && json_string(unk) == NULL)
        return text_malformed("model", model, "unk_token", e);
    const char *name = json_string(unk) ? json_string(unk) : fallback;
    if (!text_vocab_id(t, name, strlen(name), &t->unk_id))
        t->unk_id = -1;
    return ERR_OK;
}

static int read_unigram(struct tokenizer *t, const struct json *model, struct err *e)
{
    const struct json *vocab = json_get(model, "vocab"), *unk = json_get(model, "unk_id");
    struct words *w = &t->words;
    double least = INFINITY;
    uint64_t id;
    if (!text_read_flag(model, "byte_fallback", false, &t->byte_fallback) ||
        !text_read_flag(model, "fuse_unk", true, &w->fuse_unk))
        return text_malformed("model", model, "a flag", e);
    if (!text_absent(unk)) {
        if (!json_u64(unk, &id) || id >= vocab->n)
            return text_malformed("model", model, "unk_id", e);
        t->unk_id = (int32_t)id;
    }
    w->score = calloc((size_t)vocab->n + 1, sizeof *w->score);
    if (w->score == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for %u tokens", vocab->n);
    for (uint32_t i = 0; i < vocab->n; i++) {
        if (!json_f64(json_at(json_at(vocab, i), 1), &w->score[i]) || !isfinite(w->score[i]))
            return err_set(e, ERR_FORMAT, "tokenizer.json: model Unigram: token %u has no score", i);
        least = w->score[i] < least ? w->score[i] : least;
        int rc = add_key(&w->start, (struct span){t->tokens[i].raw, t->tokens[i].raw_bytes}, (int32_t)i, e);
        if (rc)
            return rc;
    }
    w->unk_score = least - UNK_PENALTY;
    return ERR_OK;
}

static int read_wordpiece(struct tokenizer *t, const struct json *model, struct err *e)
{
    const struct json *vocab = json_get(model, "vocab"), *p = json_get(model, "continuing_subword_prefix");
    const struct json *most = json_get(model, "max_input_chars_per_word");
    struct span prefix = {"##", 2};
    t->words.max_chars = 100;
    if (!text_absent(most) && !json_u64(most, &t->words.max_chars))
        return text_malformed("model", model, "max_input_chars_per_word", e);
    if (!text_absent(p) && !text_copy_string(t, p, &prefix))
        return text_malformed("model", model, "continuing_subword_prefix", e);
    int rc = read_unk(t, model, "[UNK]", e);
    for (uint32_t i = 0; i < vocab->n && rc == 0; i++) {
        const struct json_member *m = &vocab->as.members[i];
        uint64_t id = 0;
        json_u64(&m->value, &id);
        struct span key = {t->tokens[id].raw, t->tokens[id].raw_bytes};
        rc = add_key(&t->words.start, key, (int32_t)id, e);
        if (rc == 0 && key.n >= prefix.n && memcmp(key.s, prefix.s, prefix.n) == 0)
            rc = add_key(&t->words.inner, (struct span){key.s + prefix.n, key.n - prefix.n}, (int32_t)id, e);
    }
    return rc;
}

int words_read(struct tokenizer *t, const struct json *model, struct err *e)
{
    if (t->model == MODEL_UNIGRAM)
        return read_unigram(t, model, e);
    if (t->model == MODEL_WORDPIECE)
        return read_wordpiece(t, model, e);
    return read_unk(t, model, "<unk>", e);
}

/* ---- encoding ---- */

static int unknown(const struct tokenizer *t, struct ids *out, struct err *e)
{
    if (t->unk_id < 0)
        return err_set(e, ERR_FORMAT,
                       "the text has a word that the tokenizer has no token for, not even an "
                       "unknown one");
    return ids_push(out, t->unk_id, e);
}

/* Fills best[1..n]: the best way to end behind each character of s. */
static int search(const struct tokenizer *t, struct best *best, const char *s, size_t n, struct err *e)
{
    const struct words *w = &t->words;
    for (size_t i = 0; i <= n; i++)
        best[i] = (struct best){0, -1, UINT32_MAX};
    for (size_t at = 0, len; at < n; at += len) {
        double here = best[at].score;
        bool single = false;
        uint32_t c, node = 0;
        int32_t id;
        len = utf8_decode(s + at, n - at, &c);
        if (len == 0)
            BUG("text was checked to be UTF-8");
        for (size_t k = at; k < n && trie_step(&w->start, &node, (unsigned char)s[k], &id); k++) {
            if (id < 0)
                continue;
            struct best *to = &best[k + 1];
            double score = w->score[id] + here;
            if (to->from == UINT32_MAX || score > to->score)
                *to = (struct best){score, id, (uint32_t)at};
            single = single || k + 1 == at + len;
        }
        struct best *to = &best[at + len];
        if (single || (to->from != UINT32_MAX && w->unk_score + here <= to->score))
            continue;
        if (t->unk_id < 0) /* only where it would be taken: longer tokens may cover the character */
            return unknown(t, NULL, e);
        *to = (struct best){w->unk_score + here, t->unk_id, (uint32_t)at};
    }
    return ERR_OK;
}

/* A part that no token has as its text: bytes, or unknown. */
static int push_part(const struct tokenizer *t, const char *s, size_t n, struct ids *out, struct err *e)
{
    int32_t id;
    bool bytes = t->byte_fallback;
    int rc = ERR_OK;
    if (text_vocab_id(t, s, n, &id))
        return ids_push(out, id, e);
    for (size_t i = 0; i < n; i++)
        bytes = bytes && t->byte_id[(unsigned char)s[i]] >= 0;
    if (!bytes)
        return unknown(t, out, e);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = ids_push(out, t->byte_id[(unsigned char)s[i]], e);
    return rc;
}

static int unigram(const struct tokenizer *t, struct model_scratch *x, const char *s, size_t n,
                   struct ids *out, struct err *e)
{
    if (n > MAX_WORD)
        return err_set(e, ERR_LIMIT, "a word of %zu bytes, more than %u", n, MAX_WORD);
    if (vec_reserve((void **)&x->best, &x->best_capacity, n + 1, sizeof *x->best))
        return err_set(e, ERR_NOMEM, "out of memory to tokenize %zu bytes", n);
    int rc = search(t, x->best, s, n, e);
    if (rc)
        return rc;
    /* the chain leads back from the end: turn it around, each start then names its end */
    uint32_t end = (uint32_t)n;
    for (uint32_t at = end, from; at > 0; at = from) {
        from = x->best[at].from;
        x->best[at].from = end; /* the next end behind this one */
        end = at;
        if (from == 0)
            x->best[0].from = at;
    }
    for (uint32_t at = 0; at < n && rc == 0;) {
        uint32_t to = at == 0 ? x->best[0].from : x->best[at].from;
        while (t->words.fuse_unk && t->unk_id >= 0 && x->best[to].id == t->unk_id && to < n &&
               x->best[x->best[to].from].id == t->unk_id)
            to = x->best[to].from;
        rc = push_part(t, s + at, to - at, out, e);
        at = to;
    }
    return rc;
}

static int wordpiece(const struct tokenizer *t, const char *s, size_t n, struct ids *out, struct err *e)
{
    size_t mark = out->n, chars = 0;
    int rc = ERR_OK;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    if (chars > t->words.max_chars)
        return unknown(t, out, e);
    for (size_t at = 0, len = 0; at < n && rc == 0; at += len) {
        int32_t id = trie_longest(at ? &t->words.inner : &t->words.start, s + at, n - at, &len);
        if (id < 0) {
            out->n = mark; /* one unknown part makes the word unknown */
            return unknown(t, out, e);
        }
        rc = ids_push(out, id, e);
    }
    return rc;
}

int words_encode(const struct tokenizer *t, struct model_scratch *scratch, const char *s, size_t n,
                 struct ids *out, struct err *e)
{
    int32_t id;
    if (n == 0)
        return ERR_OK;
    if (t->model == MODEL_UNIGRAM)
        return unigram(t, scratch, s, n, out, e);
    if (t->model == MODEL_WORDPIECE)
        return wordpiece(t, s, n, out, e);
    return text_vocab_id(t, s, n, &id) ? ids_push(out, id, e) : unknown(t, out, e);
}
