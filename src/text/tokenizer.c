/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens tokenizer.json: vocabulary, added tokens, then the stages. Owns the tokenizer and its arena;
 * immutable once open. Refuses files whose ids collide, are absurdly sparse, or whose added tokens contradict
 * the vocabulary.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/text_impl.h"

int text_set_token(struct tokenizer *t, uint32_t id, struct span text, uint32_t flags, struct err *e)
{
    struct token *token = &t->tokens[id];
    if (token->flags & TOKEN_PRESENT &&
        (token->raw_bytes != text.n || memcmp(token->raw, text.s, text.n) != 0))
        return err_set(e, ERR_FORMAT, "tokenizer.json: two tokens have the id %u", id);
    token->raw = text.s;
    token->raw_bytes = (uint32_t)text.n;
    token->flags |= TOKEN_PRESENT | flags;
    return ERR_OK;
}

/* Entry i of the vocabulary: {"text": id, ...}, or [["text", score], ...] whose ids are the places. */
static bool vocab_entry(const struct json *vocab, uint32_t i, struct span *text, uint64_t *id)
{
    if (vocab->type == JSON_OBJECT) {
        const struct json_member *m = &vocab->as.members[i];
        *text = (struct span){m->key, m->key_bytes};
        return json_u64(&m->value, id);
    }
    const struct json *s = json_at(json_at(vocab, i), 0);
    if (json_string(s) == NULL)
        return false;
    *text = (struct span){s->as.string, s->n};
    *id = i;
    return true;
}

/* Largest id + 1 over vocabulary and added tokens; sparse ids would cost memory that no token pays for. */
static int count_ids(const struct json *vocab, const struct json *added, uint32_t *out, struct err *e)
{
    uint64_t total = (uint64_t)vocab->n + (added ? added->n : 0), top = 0, id;
    struct span text;
    for (uint32_t i = 0; i < total; i++) {
        bool known = i < vocab->n ? vocab_entry(vocab, i, &text, &id)
                                  : json_u64(json_get(json_at(added, i - vocab->n), "id"), &id);
        if (!known)
            return err_set(e, ERR_FORMAT, "tokenizer.json: %s %u has no id of its own",
                           i < vocab->n ? "vocabulary entry" : "added token",
                           i < vocab->n ? i : i - vocab->n);
        top = id >= top ? id + 1 : top;
        if (top == 0 || top > 2 * total + TEXT_SPARSE_IDS)
            return err_set(e, ERR_LIMIT, "tokenizer.json: token id %llu, but there are only %llu tokens",
                           (unsigned long long)id, (unsigned long long)total);
    }
    *out = (uint32_t)top;
    return ERR_OK;
}

static int read_vocab(struct tokenizer *t, const struct json *vocab, struct err *e)
{
    if (strmap_reserve(&t->map, vocab->n))
        return err_set(e, ERR_NOMEM, "out of memory for %u tokens", vocab->n);
    for (uint32_t i = 0; i < vocab->n; i++) {
        struct span text = {0};
        uint64_t id = 0;
        vocab_entry(vocab, i, &text, &id); /* count_ids saw all of them */
        if (text.n > TEXT_MAX_TOKEN)
            return err_set(e, ERR_LIMIT, "tokenizer.json: token %llu has %zu bytes, more than %d",
                           (unsigned long long)id, text.n, TEXT_MAX_TOKEN);
        char *copy = arena_alloc(&t->arena, text.n + 1);
        if (copy == NULL)
            return err_set(e, ERR_NOMEM, "out of memory for %u tokens", vocab->n);
        memcpy(copy, text.s, text.n);
        int rc = text_set_token(t, (uint32_t)id, (struct span){copy, text.n}, 0, e);
        if (rc)
            return rc;
        rc = strmap_put(&t->map, copy, text.n, (uint32_t)id, NULL);
        if (rc)
            return rc < 0 ? err_set(e, ERR_NOMEM, "out of memory for %u tokens", vocab->n)
                          : err_set(e, ERR_FORMAT, "tokenizer.json: token %llu is there twice",
                                    (unsigned long long)id);
    }
    t->n_vocab = vocab->n;
    return ERR_OK;
}

static int read_added(struct tokenizer *t, const struct json *v, struct added *a, struct err *e)
{
    uint64_t id = 0;
    uint32_t in_vocab;
    json_u64(json_get(v, "id"), &id);
    if (!text_copy_string(t, json_get(v, "content"), &a->content))
        return err_set(e, ERR_FORMAT, "tokenizer.json: added token %llu has no content",
                       (unsigned long long)id);
    if (a->content.n > TEXT_MAX_ADDED)
        return err_set(e, ERR_LIMIT, "tokenizer.json: added token %llu has %zu bytes, more than %d",
                       (unsigned long long)id, a->content.n, TEXT_MAX_ADDED);
    a->id = (int32_t)id;
    if (!text_read_flag(v, "special", false, &a->special) ||
        !text_read_flag(v, "lstrip", false, &a->lstrip) || !text_read_flag(v, "rstrip", false, &a->rstrip) ||
        !text_read_flag(v, "single_word", false, &a->single_word) ||
        !text_read_flag(v, "normalized", !a->special, &a->normalized))
        return err_set(e, ERR_FORMAT, "tokenizer.json: added token %.60s has a flag that is no boolean",
                       a->content.s);
    if (strmap_get(&t->map, a->content.s, a->content.n, &in_vocab) && in_vocab != id)
        return err_set(e, ERR_FORMAT,
                       "tokenizer.json: added token %.60s has the id %llu, in the vocabulary %u",
                       a->content.s, (unsigned long long)id, in_vocab);
    a->again = id < t->n_ids && t->tokens[id].flags & TOKEN_ADDED; /* text_set_token compares */
    return text_set_token(t, (uint32_t)id, a->content, TOKEN_ADDED | (a->special ? TOKEN_SPECIAL : 0), e);
}

/* The reference implementation counts on from the vocabulary and does not look at the ids of the file: where
 * they are others, one of the two gives ids that the model was not trained with. */
static int check_added_id(const struct tokenizer *t, const struct added *a, int32_t *last, struct err *e)
{
    uint32_t in_vocab, n = t->n_vocab, next = *last >= 0 && (uint32_t)*last >= n ? (uint32_t)*last + 1 : n;
    bool known = a->again || a->content.n == 0 || strmap_get(&t->map, a->content.s, a->content.n, &in_vocab);
    if (!known && (uint32_t)a->id != next)
        return err_set(e, ERR_UNSUPPORTED,
                       "tokenizer.json: added token %.60s has the id %d, the next one is %u: the reference "
                       "implementation would take that",
                       a->content.s, a->id, next);
    *last = a->id > *last ? a->id : *last;
    return ERR_OK;
}

static int read_all_added(struct tokenizer *t, const struct json *list, struct err *e)
{
    int32_t last = -1;
    t->n_added = list ? list->n : 0;
    t->added = arena_alloc_n(&t->arena, t->n_added, sizeof *t->added);
    if (t->added == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the added tokens");
    for (size_t i = 0; i < t->n_added; i++) {
        int rc = read_added(t, json_at(list, i), &t->added[i], e);
        if (rc == 0)
            rc = check_added_id(t, &t->added[i], &last, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

/* Finds a by its key from now on. Versions of the reference implementation disagree on which of two is taken.
 */
static int add_key(struct tokenizer *t, int32_t index, struct span key, struct err *e)
{
    const struct added *a = &t->added[index];
    struct trie *trie = a->normalized ? &t->normalized : &t->raw;
    size_t len = 0;
    if (key.n > 4 * TEXT_MAX_ADDED)
        return err_set(e, ERR_LIMIT, "tokenizer.json: added token %.60s is too long after normalization",
                       a->content.s);
    if (key.n == 0 && a->content.n > 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "tokenizer.json: nothing is left of added token %.60s behind the normalizers",
                       a->content.s);
    int32_t other = trie_longest(trie, key.s, key.n, &len);
    if (other >= 0 && len == key.n && t->added[other].id != a->id)
        return err_set(e, ERR_UNSUPPORTED,
                       "tokenizer.json: added tokens %.60s and %.60s are the same behind the normalizers",
                       t->added[other].content.s, a->content.s);
    if (key.n > 0 && trie_add(trie, key, index))
        return err_set(e, ERR_NOMEM, "out of memory for the added tokens");
    return ERR_OK;
}

/* The content of an added token behind the normalizers, which it is looked for as, decodes from, too. */
static int keep_normalized(struct tokenizer *t, uint32_t index, const struct strbuf *text, struct err *e)
{
    struct added *a = &t->added[index];
    char *copy = arena_alloc(&t->arena, text->len + 1);
    if (copy == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the added tokens");
    memcpy(copy, strbuf_cstr(text), text->len);
    a->decoded = (struct span){copy, text->len};
    t->tokens[a->id].flags |= TOKEN_NORMALIZED;
    t->tokens[a->id].added = index;
    return ERR_OK;
}

/* After the normalizers are known: the content of some added tokens passes through them. */
int text_build_tries(struct tokenizer *t, struct err *e)
{
    static const char word[] = "\\w";
    struct strbuf text = STRBUF_INIT, spare = STRBUF_INIT;
    struct regex_match *match = NULL;
    int rc = ERR_OK;
    for (size_t i = 0; i < t->n_added && rc == 0; i++)
        if (t->added[i].single_word && t->word == NULL)
            rc = regex_compile(&t->word, word, strlen(word), REGEX_RUST, "added_tokens", e);
    for (size_t i = 0; i < t->n_added && rc == 0; i++) {
        struct span key = t->added[i].content;
        if (t->added[i].normalized) {
            size_t lead = 0;
            rc = text_normalize(t, &match, key.s, key.n, &lead, &text, &spare, e);
            key = (struct span){strbuf_cstr(&text), text.len};
            if (rc == 0 && t->n_norm && t->added[i].content.n)
                rc = keep_normalized(t, (uint32_t)i, &text, e);
        }
        if (rc == 0)
            rc = add_key(t, (int32_t)i, key, e);
    }
    regex_match_free(match);
    strbuf_release(&text);
    strbuf_release(&spare);
    return rc;
}

/* See tokenizer_bytes_per_id. A byte of text never becomes less than a byte of a token, unless one of these
 * says otherwise. */
void text_find_bytes_per_id(struct tokenizer *t)
{
    bool bytes = t->byte_fallback;
    bool alphabet = t->model == MODEL_BPE && t->n_pre > 0 && text_pre_is_byte_level(&t->pre[t->n_pre - 1]);
    struct strbuf text = STRBUF_INIT;
    for (int i = 0; i < 256; i++) {
        uint32_t id;
        strbuf_clear(&text);
        byte_level_char((unsigned char)i, &text);
        bytes = bytes && t->byte_id[i] >= 0;
        alphabet = alphabet && strmap_get(&t->map, strbuf_cstr(&text), text.len, &id);
    }
    strbuf_release(&text);
    bool bounded = bytes || alphabet || (t->model == MODEL_BPE && t->unk_id >= 0 && !t->bpe.fuse_unk);
    bounded = bounded && (t->model == MODEL_BPE || t->model == MODEL_UNIGRAM);
    for (size_t i = 0; i < t->n_pre; i++)
        bounded = bounded && text_pre_keeps_all(&t->pre[i]);
    for (size_t i = 0; i < t->n_added; i++)
        bounded = bounded && !t->added[i].lstrip && !t->added[i].rstrip;
    size_t longest = 4; /* an unknown character */
    for (uint32_t i = 0; i < t->n_ids; i++)
        longest = t->tokens[i].raw_bytes > longest ? t->tokens[i].raw_bytes : longest;
    t->bytes_per_id = bounded ? longest * text_shrink_of_normalizers(t) : 0;
}

/* Files from before "type" was written: by what the model has. */
static int model_kind(const struct json *model, enum model_kind *out, struct err *e)
{
    static const char *const names[] = {"BPE", "Unigram", "WordPiece", "WordLevel"};
    const struct json *type = json_get(model, "type"), *vocab = json_get(model, "vocab");
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (text_type_is(model, names[i])) {
            *out = (enum model_kind)i;
            return ERR_OK;
        }
    if (!text_absent(type))
        return text_not_implemented("model", model, e);
    *out = json_get(model, "merges")                                   ? MODEL_BPE
           : vocab && vocab->type == JSON_ARRAY                        ? MODEL_UNIGRAM
           : !text_absent(json_get(model, "max_input_chars_per_word")) ? MODEL_WORDPIECE
                                                                       : MODEL_WORDLEVEL;
    return ERR_OK;
}

static int read_model(struct tokenizer *t, const struct json *model, struct err *e)
{
    for (int i = 0; i < 256; i++) {
        char name[8];
        int n = snprintf(name, sizeof name, "<0x%02X>", i);
        if (!text_vocab_id(t, name, (size_t)n, &t->byte_id[i]))
            t->byte_id[i] = -1;
    }
    return t->model == MODEL_BPE ? bpe_read(t, model, e) : words_read(t, model, e);
}

static int read_file(struct tokenizer *t, const struct json *root, struct err *e)
{
    const struct json *model = json_get(root, "model"), *vocab = json_get(model, "vocab");
    const struct json *added = json_get(root, "added_tokens");
    if (root->type != JSON_OBJECT || model == NULL || model->type != JSON_OBJECT)
        return err_set(e, ERR_FORMAT, "tokenizer.json: no object \"model\"");
    int rc = model_kind(model, &t->model, e);
    if (rc)
        return rc;
    bool list = t->model == MODEL_UNIGRAM;
    if (vocab == NULL || vocab->type != (list ? JSON_ARRAY : JSON_OBJECT))
        return err_set(e, ERR_FORMAT, "tokenizer.json: model: \"vocab\" is missing or no %s",
                       list ? "array" : "object");
    if (added && added->type == JSON_NULL)
        added = NULL;
    if (added && added->type != JSON_ARRAY)
        return err_set(e, ERR_FORMAT, "tokenizer.json: \"added_tokens\" is no array");
    rc = count_ids(vocab, added, &t->n_ids, e);
    if (rc)
        return rc;
    t->tokens = arena_alloc_n(&t->arena, t->n_ids, sizeof *t->tokens);
    if (t->tokens == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for %u tokens", t->n_ids);
    if (rc == 0)
        rc = read_vocab(t, vocab, e);
    if (rc == 0)
        rc = read_all_added(t, added, e);
    if (rc == 0)
        rc = text_read_normalizer(t, json_get(root, "normalizer"), 0, e);
    if (rc == 0)
        rc = text_build_tries(t, e);
    if (rc == 0)
        rc = text_read_pre_tokenizer(t, json_get(root, "pre_tokenizer"), 0, e);
    if (rc == 0)
        rc = read_model(t, model, e);
    if (rc == 0)
        rc = text_read_post_processor(t, json_get(root, "post_processor"), e);
    if (rc == 0)
        rc = text_read_decoder(t, json_get(root, "decoder"), 0, e);
    if (rc == 0)
        rc = text_prepare_pieces(t, e);
    if (rc == 0)
        text_find_bytes_per_id(t);
    return rc;
}

struct tokenizer *tokenizer_new(struct mem *mem)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    arena_init(&t->arena, mem, MEM_TEXT);
    trie_init(&t->raw);
    trie_init(&t->normalized);
    trie_init(&t->words.start);
    trie_init(&t->words.inner);
    t->unk_id = -1;
    return t;
}

int tokenizer_open(struct tokenizer **out, const char *json, size_t n, struct mem *mem, struct err *e)
{
    struct arena parse;
    const struct json *root = NULL;
    struct tokenizer *t = tokenizer_new(mem);
    if (t == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the tokenizer");
    arena_init(&parse, mem, MEM_TEXT);
    int rc = json_parse(json, n, NULL, &parse, &root, e);
    if (rc)
        err_ctx(e, "reading tokenizer.json");
    else
        rc = read_file(t, root, e);
    arena_release(&parse);
    if (rc) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return ERR_OK;
}

void tokenizer_close(struct tokenizer *t)
{
    if (t == NULL)
        return;
    strmap_release(&t->map);
    trie_release(&t->raw);
    trie_release(&t->normalized);
    free(t->bpe.slots);
    free(t->bpe.joins);
    words_release(&t->words);
    regex_free(t->word);
    for (size_t i = 0; i < TEXT_MAX_STAGES; i++) {
        regex_free(t->norm[i].regex);
        regex_free(t->pre[i].regex);
        regex_free(t->dec[i].regex);
    }
    arena_release(&t->arena);
    free(t);
}

uint32_t tokenizer_vocab(const struct tokenizer *t)
{
    return t->n_ids;
}

size_t tokenizer_bytes_per_id(const struct tokenizer *t)
{
    return t->bytes_per_id;
}

int32_t tokenizer_id(const struct tokenizer *t, const char *token)
{
    uint32_t id;
    size_t n = strlen(token);
    if (strmap_get(&t->map, token, n, &id))
        return (int32_t)id;
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].content.n == n && memcmp(t->added[i].content.s, token, n) == 0)
            return t->added[i].id;
    return -1;
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *n)
{
    if (id < 0 || (uint32_t)id >= t->n_ids || !(t->tokens[id].flags & TOKEN_PRESENT))
        return NULL;
    if (n)
        *n = t->tokens[id].raw_bytes;
    return t->tokens[id].raw;
}

const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *n)
{
    if (tokenizer_token(t, id, NULL) == NULL)
        return NULL;
    *n = t->tokens[id].piece_bytes;
    return t->tokens[id].piece;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->n_ids && (t->tokens[id].flags & TOKEN_SPECIAL);
}
