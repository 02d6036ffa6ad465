/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens tiktoken's rank files. A token's bytes are written in the byte-level alphabet, so that what follows
 * is the same tokenizer as any other: one Split, ByteLevel, BPE whose merges are the pairs whose text
 * together is a token, in the order of their ranks. Refuses lines that are not "BASE64 RANK" and files that
 * lack a byte.
 */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "text/text_impl.h"

#define MAX_TOKEN 4096 /* bytes of one token */

static int bad_line(size_t line, const char *what, struct err *e)
{
    return err_set(e, ERR_FORMAT, "tiktoken file, line %zu: %s", line, what);
}

/* One line; *text in the alphabet, *rank. */
static int read_line(const char *s, size_t n, size_t line, struct strbuf *text, uint64_t *rank, struct err *e)
{
    unsigned char bytes[MAX_TOKEN + 4];
    const char *space = memchr(s, ' ', n);
    size_t coded = space ? (size_t)(space - s) : 0, digits = n - coded - 1, pad = 0;
    if (coded == 0 || coded % 4 != 0 || digits == 0 || digits > 9)
        return bad_line(line, "not \"BASE64 RANK\"", e);
    if (coded / 4 * 3 > MAX_TOKEN)
        return bad_line(line, "a token of more than 4096 bytes", e);
    *rank = 0;
    for (size_t i = 0; i < digits; i++) {
        if (space[1 + i] < '0' || space[1 + i] > '9')
            return bad_line(line, "the rank is no number", e);
        *rank = *rank * 10 + (uint64_t)(space[1 + i] - '0');
    }
    while (pad < 2 && s[coded - 1 - pad] == '=')
        pad++;
    int got = EVP_DecodeBlock(bytes, (const unsigned char *)s, (int)coded);
    if (got < 0)
        return bad_line(line, "not base64", e);
    strbuf_clear(text);
    for (size_t i = 0; i < (size_t)got - pad; i++)
        byte_level_char(bytes[i], text);
    return strbuf_failed(text) ? err_set(e, ERR_NOMEM, "out of memory for the vocabulary") : ERR_OK;
}

static int add_token(struct tokenizer *t, const struct strbuf *text, uint32_t id, size_t line, struct err *e)
{
    char *copy = arena_alloc(&t->arena, text->len + 1);
    if (copy == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
    memcpy(copy, strbuf_cstr(text), text->len);
    if (t->tokens[id].flags & TOKEN_PRESENT)
        return bad_line(line, "the rank is there twice", e);
    int rc = text_set_token(t, id, (struct span){copy, text->len}, 0, e);
    if (rc)
        return rc;
    rc = strmap_put(&t->map, copy, text->len, id, NULL);
    if (rc > 0)
        return bad_line(line, "the token is there twice", e);
    t->n_vocab++;
    return rc ? err_set(e, ERR_NOMEM, "out of memory for the vocabulary") : ERR_OK;
}

static int read_ranks(struct tokenizer *t, const char *s, size_t n, size_t lines, struct err *e)
{
    struct strbuf text = STRBUF_INIT;
    int rc =
        strmap_reserve(&t->map, lines) ? err_set(e, ERR_NOMEM, "out of memory for %zu tokens", lines) : 0;
    for (size_t line = 1; n > 0 && rc == 0; line++) {
        const char *end = memchr(s, '\n', n);
        size_t len = end ? (size_t)(end - s) : n, taken = end ? len + 1 : len;
        uint64_t rank = 0;
        len -= len && s[len - 1] == '\r';
        if (len)
            rc = read_line(s, len, line, &text, &rank, e);
        if (len && rc == 0 && rank >= t->n_ids)
            rc = bad_line(line, "the rank is far beyond the number of tokens", e);
        if (len && rc == 0)
            rc = add_token(t, &text, (uint32_t)rank, line, e);
        s += taken;
        n -= taken;
    }
    strbuf_release(&text);
    return rc;
}

static int add_special(struct tokenizer *t, const struct tiktoken_special *list, size_t n, struct err *e)
{
    t->added = arena_alloc_n(&t->arena, n, sizeof *t->added);
    if (t->added == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the special tokens");
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(list[i].text);
        char *copy = arena_strndup(&t->arena, list[i].text, len);
        if (copy == NULL)
            return err_set(e, ERR_NOMEM, "out of memory for the special tokens");
        if (list[i].id < 0 || (uint32_t)list[i].id >= t->n_ids || len == 0 || len > TEXT_MAX_ADDED ||
            !utf8_valid(copy, len))
            return err_set(e, ERR_FORMAT, "special token %.60s with the id %d cannot be", copy, list[i].id);
        t->added[t->n_added++] =
            (struct added){.id = list[i].id, .special = list[i].special, .content = {copy, len}};
        int rc = text_set_token(t, (uint32_t)list[i].id, (struct span){copy, len},
                                TOKEN_ADDED | (list[i].special ? TOKEN_SPECIAL : 0), e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

/* Ids behind the ranks that special_tokens did not name. */
static int add_reserved(struct tokenizer *t, uint32_t reserved, struct err *e)
{
    uint32_t base = t->n_vocab;
    struct added *all = arena_alloc_n(&t->arena, t->n_added + (size_t)reserved, sizeof *all);
    if (all == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the special tokens");
    if (t->n_added)
        memcpy(all, t->added, t->n_added * sizeof *all);
    t->added = all;
    for (uint32_t id = base; id < base + reserved; id++) {
        if (id >= t->n_ids)
            return err_set(e, ERR_FORMAT, "tiktoken file: no room for %u special tokens", reserved);
        if (t->tokens[id].flags & TOKEN_PRESENT)
            continue;
        char *name = arena_printf(&t->arena, "<|reserved_token_%u|>", id);
        if (name == NULL)
            return err_set(e, ERR_NOMEM, "out of memory for the special tokens");
        struct span content = {name, strlen(name)};
        t->added[t->n_added++] = (struct added){.id = (int32_t)id, .special = true, .content = content};
        int rc = text_set_token(t, id, content, TOKEN_ADDED | TOKEN_SPECIAL, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

/* What a rank file leaves out, said as tokenizer.json would. */
static int add_stages(struct tokenizer *t, const struct tiktoken_rule *rule, struct err *e)
{
    static const char split[] =
        "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"String\":\" \"}}";
    static const char bytes[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}";
    struct arena a;
    const struct json *v[2];
    arena_init(&a, NULL, MEM_TEXT);
    int rc = json_parse(split, strlen(split), NULL, &a, &v[0], e);
    if (rule->piece_chars || rule->run_chars)
        text_add_cut(t, rule->piece_chars, rule->run_chars);
    struct pre_stage *cut_by_pattern = &t->pre[t->n_pre];
    if (rc == 0)
        rc = json_parse(bytes, strlen(bytes), NULL, &a, &v[1], e);
    for (int i = 0; i < 2 && rc == 0; i++)
        rc = text_read_pre_tokenizer(t, v[i], 0, e);
    if (rc == 0)
        rc = text_read_decoder(t, v[1], 0, e);
    if (rc == 0)
        rc = regex_compile(&cut_by_pattern->regex, rule->pattern, strlen(rule->pattern), REGEX_RUST,
                           "tiktoken", e);
    arena_release(&a);
    return rc;
}

static int check_bytes(const struct tokenizer *t, struct err *e)
{
    struct strbuf c = STRBUF_INIT;
    int rc = ERR_OK;
    for (int i = 0; i < 256 && rc == 0; i++) {
        int32_t id;
        strbuf_clear(&c);
        byte_level_char((unsigned char)i, &c);
        if (!text_vocab_id(t, strbuf_cstr(&c), c.len, &id))
            rc = err_set(e, ERR_FORMAT, "tiktoken file: no token is the byte %d", i);
    }
    strbuf_release(&c);
    return rc;
}

static int read_all(struct tokenizer *t, const char *ranks, size_t n, const struct tiktoken_rule *rule,
                    const struct tiktoken_special *special, size_t n_special, struct err *e)
{
    size_t lines = 1;
    int32_t top = -1;
    for (size_t i = 0; i < n; i++)
        lines += ranks[i] == '\n';
    for (size_t i = 0; i < n_special; i++)
        top = special[i].id > top ? special[i].id : top;
    if (rule->reserved > TEXT_SPARSE_IDS)
        return err_set(e, ERR_LIMIT, "%u reserved tokens, more than %u", rule->reserved, TEXT_SPARSE_IDS);
    if (lines > TEXT_MAX_MERGES / 4 || n_special > TEXT_SPARSE_IDS)
        return err_set(e, ERR_LIMIT, "tiktoken file: %zu lines, more than %u", lines, TEXT_MAX_MERGES / 4);
    uint64_t room = 2 * ((uint64_t)lines + n_special) + TEXT_SPARSE_IDS;
    if ((int64_t)top >= (int64_t)room)
        return err_set(e, ERR_LIMIT, "special token id %d, but there are only %zu tokens", top, lines);
    t->n_ids = (uint32_t)room; /* until all are known */
    t->tokens = arena_alloc_n(&t->arena, room, sizeof *t->tokens);
    if (t->tokens == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for %zu tokens", lines);
    for (int i = 0; i < 256; i++)
        t->byte_id[i] = -1;
    int rc = read_ranks(t, ranks, n, lines, e);
    if (rc == 0)
        rc = add_special(t, special, n_special, e);
    if (rc == 0)
        rc = add_reserved(t, rule->reserved, e);
    if (rc == 0)
        rc = text_build_tries(t, e);
    while (rc == 0 && t->n_ids > 0 && !(t->tokens[t->n_ids - 1].flags & TOKEN_PRESENT))
        t->n_ids--;
    if (rc == 0)
        rc = check_bytes(t, e);
    if (rc == 0)
        rc = add_stages(t, rule, e);
    t->bpe.ignore_merges = true;
    if (rc == 0)
        rc = bpe_merges_from_ranks(t, e);
    if (rc == 0)
        rc = text_prepare_pieces(t, e);
    if (rc == 0)
        text_find_bytes_per_id(t);
    return rc;
}

int tokenizer_open_tiktoken(struct tokenizer **out, const char *ranks, size_t n,
                            const struct tiktoken_rule *rule, const struct tiktoken_special *special,
                            size_t n_special, struct mem *mem, struct err *e)
{
    struct tokenizer *t = tokenizer_new(mem);
    if (t == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the tokenizer");
    int rc = read_all(t, ranks, n, rule, special, n_special, e);
    if (rc) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return ERR_OK;
}

/* "added_tokens_decoder": {"163584": {"content": "[BOS]", "special": true}, ...} */
static int special_tokens(const struct json *config, struct arena *arena, struct tiktoken_special **out,
                          size_t *n, struct err *e)
{
    const struct json *list = json_get(config, "added_tokens_decoder");
    *n = list && list->type == JSON_OBJECT ? list->n : 0;
    *out = arena_alloc_n(arena, *n, sizeof **out);
    if (*out == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the special tokens");
    for (size_t i = 0; i < *n; i++) {
        const struct json_member *m = &list->as.members[i];
        const char *content = json_string(json_get(&m->value, "content"));
        int64_t id;
        bool special = true;
        json_bool(json_get(&m->value, "special"), &special);
        if (content == NULL || !str_to_i64(m->key, &id) || id < 0 || id > INT32_MAX)
            return err_set(e, ERR_FORMAT,
                           "tokenizer_config.json: added_tokens_decoder: %.40s is no token with an id",
                           m->key);
        (*out)[i] = (struct tiktoken_special){(int32_t)id, content, special};
    }
    return ERR_OK;
}

int tokenizer_open_ranks(struct tokenizer **out, const char *ranks, size_t n, const struct json *config,
                         const struct tiktoken_rule *rule, struct mem *mem, struct err *e)
{
    struct tiktoken_special *special = NULL;
    struct arena a;
    size_t n_special;
    const char *own = json_string(json_get(config, "pat_str"));
    struct tiktoken_rule r = *rule;
    r.pattern = own ? own : rule->pattern;
    if (r.pattern == NULL)
        return err_set(e, ERR_UNSUPPORTED,
                       "tiktoken.model needs a pattern that cuts text: neither \"pat_str\" of "
                       "tokenizer_config.json nor the architecture file has one");
    arena_init(&a, NULL, MEM_TEXT);
    int rc = special_tokens(config, &a, &special, &n_special, e);
    if (rc == 0)
        rc = tokenizer_open_tiktoken(out, ranks, n, &r, special, n_special, mem, e);
    arena_release(&a);
    return rc;
}
