/* SPDX-License-Identifier: Apache-2.0
 *
 * Ids to text, one after another. What a token decodes to by itself is prepared once (text_prepare_pieces); a
 * stream then only joins bytes into whole characters and cuts the beginning where the file says so.
 *
 * Broken UTF-8: ByteLevel gives one U+FFFD for each longest broken prefix of a character; ByteFallback one
 * for each byte of it. The reference implementation turns the whole run of byte tokens into U+FFFD if any of
 * it is broken; a stream cannot know that in advance, so here the valid characters of such a run are kept.
 * Valid text is equal in both.
 */
#include <stdlib.h>
#include <string.h>

#include "text/text_impl.h"

static const char replacement[] = "\xEF\xBF\xBD";

/* ---- per-token decoders ---- */

static void dec_metaspace(const struct dec_stage *d, const char *s, size_t n, bool first, struct strbuf *out)
{
    bool drop = first && d->scheme != META_NEVER;
    text_replace(s, n, d->pattern, (struct span){drop ? "" : " ", drop ? 0 : 1}, NULL, out);
}

static void dec_strip(const struct dec_stage *d, const char *s, size_t n, struct strbuf *out)
{
    size_t m = d->content.n;
    for (uint32_t i = 0; i < d->start && n >= m && memcmp(s, d->content.s, m) == 0; i++) {
        s += m;
        n -= m;
    }
    for (uint32_t i = 0; i < d->stop && n >= m && memcmp(s + n - m, d->content.s, m) == 0; i++)
        n -= m;
    strbuf_add(out, s, n);
}

/* All tokens but the first: a space, or the prefix that says there is none. Then the spaces that English
 * punctuation does not want, in the reference implementation's order. */
static void dec_wordpiece(const struct dec_stage *d, const char *s, size_t n, bool first, struct strbuf *out)
{
    static const char *const pairs[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    struct strbuf a = STRBUF_INIT, b = STRBUF_INIT;
    bool inner = !first && n >= d->pattern.n && memcmp(s, d->pattern.s, d->pattern.n) == 0;
    if (!first && !inner)
        strbuf_putc(&a, ' ');
    strbuf_add(&a, inner ? s + d->pattern.n : s, inner ? n - d->pattern.n : n);
    for (size_t i = 0; d->cleanup && i < ARRAY_LEN(pairs); i++) {
        strbuf_clear(&b);
        text_replace(strbuf_cstr(&a), a.len, (struct span){pairs[i][0], strlen(pairs[i][0])},
                     (struct span){pairs[i][1], strlen(pairs[i][1])}, NULL, &b);
        text_swap(&a, &b);
    }
    strbuf_add(out, strbuf_cstr(&a), a.len);
    out->failed = out->failed || a.failed || b.failed;
    strbuf_release(&a);
    strbuf_release(&b);
}

static struct span source_of(const struct tokenizer *t, uint32_t id)
{
    const struct token *token = &t->tokens[id];
    if (token->flags & TOKEN_NORMALIZED)
        return t->added[token->added].decoded;
    return (struct span){token->raw, token->raw_bytes};
}

/* Text of one token after the per-token decoders, in *a. */
enum { AT_FIRST = 1, AT_LAST = 2 };
static int decode_token(const struct tokenizer *t, uint32_t id, unsigned place, struct regex_match **match,
                        struct strbuf *a, struct strbuf *b, struct err *e)
{
    struct span source = source_of(t, id);
    bool first = place & AT_FIRST, last = place & AT_LAST;
    int rc = ERR_OK;
    strbuf_clear(a);
    strbuf_add(a, source.s, source.n);
    for (size_t i = 0; i < t->n_dec && rc == 0; i++) {
        const struct dec_stage *d = &t->dec[i];
        const char *s = strbuf_cstr(a);
        strbuf_clear(b);
        if (d->kind == DEC_REPLACE && d->regex)
            rc = text_replace_regex(d->regex, match, s, a->len, d->content, NULL, b, e);
        else if (d->kind == DEC_REPLACE)
            text_replace(s, a->len, d->pattern, d->content, NULL, b);
        else if (d->kind == DEC_METASPACE)
            dec_metaspace(d, s, a->len, first, b);
        else if (d->kind == DEC_WORDPIECE)
            dec_wordpiece(d, s, a->len, first, b);
        else if (d->kind == DEC_BPE)
            text_replace(s, a->len, d->pattern, (struct span){last ? "" : " ", last ? 0 : 1}, NULL, b);
        else
            dec_strip(d, s, a->len, b);
        text_swap(a, b);
        if (rc == 0 && a->len > TEXT_MAX_TOKEN)
            rc = err_set(e, ERR_LIMIT, "tokenizer.json: a token decodes to more than %d bytes",
                         TEXT_MAX_TOKEN);
    }
    return rc;
}

/* The byte that a character of the byte-level alphabet stands for, or -1. */
static int byte_of_char(uint32_t c)
{
    if (c >= 256 && c <= 256 + 32)
        return (int)(c - 256);
    if (c >= 256 + 33 && c <= 256 + 66)
        return (int)(c - 256 - 33 + 127);
    if (c == 256 + 67)
        return 173;
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 255 && c != 173))
        return (int)c;
    return -1;
}

/* Byte-level characters to bytes; a token with any other character stays as it is. */
static void unmap_byte_level(const struct strbuf *in, struct strbuf *out)
{
    const char *s = strbuf_cstr(in);
    strbuf_clear(out);
    for (size_t i = 0, len; i < in->len; i += len) {
        uint32_t c = 0;
        len = utf8_decode(s + i, in->len - i, &c);
        int b = len ? byte_of_char(c) : -1;
        if (b < 0) {
            strbuf_clear(out);
            strbuf_add(out, s, in->len);
            return;
        }
        strbuf_putc(out, (char)b);
    }
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool byte_token(const struct strbuf *s, char *byte)
{
    const char *p = strbuf_cstr(s);
    if (s->len != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>' || hex_digit(p[3]) < 0 || hex_digit(p[4]) < 0)
        return false;
    *byte = (char)(hex_digit(p[3]) * 16 + hex_digit(p[4]));
    return true;
}

int text_prepare_pieces(struct tokenizer *t, struct err *e)
{
    struct strbuf a = STRBUF_INIT, b = STRBUF_INIT;
    struct regex_match *match = NULL; /* one for all: patterns may take so long for the whole vocabulary */
    size_t bytes = 0;
    for (uint32_t i = 0; i < t->n_ids; i++)
        bytes += t->tokens[i].raw_bytes;
    int rc = regex_match_new(&match, bytes, e);
    for (uint32_t i = 0; i < t->n_ids && rc == 0; i++) {
        struct token *token = &t->tokens[i];
        if (!(token->flags & TOKEN_PRESENT))
            continue;
        rc = decode_token(t, i, 0, &match, &a, &b, e);
        if (rc)
            break;
        const struct strbuf *piece = &a;
        char byte;
        if (t->join == JOIN_BYTE_LEVEL) {
            unmap_byte_level(&a, &b);
            piece = &b;
        } else if (t->join == JOIN_BYTE_FALLBACK && byte_token(&a, &byte)) {
            token->flags |= TOKEN_BYTE;
            strbuf_clear(&a);
            strbuf_putc(&a, byte);
        }
        if (strbuf_failed(&a) || strbuf_failed(&b))
            rc = err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
        else if (piece->len > TEXT_MAX_TOKEN)
            rc = err_set(e, ERR_LIMIT, "tokenizer.json: token %u decodes to %zu bytes, more than %d", i,
                         piece->len, TEXT_MAX_TOKEN);
        if (rc)
            break;
        if (piece->len == token->raw_bytes && memcmp(strbuf_cstr(piece), token->raw, piece->len) == 0) {
            token->piece = token->raw;
        } else {
            char *copy = arena_alloc(&t->arena, piece->len + 1);
            if (copy == NULL)
                rc = err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
            else
                memcpy(copy, strbuf_cstr(piece), piece->len);
            token->piece = copy;
        }
        token->piece_bytes = (uint32_t)piece->len;
    }
    regex_match_free(match);
    strbuf_release(&a);
    strbuf_release(&b);
    return rc;
}

/* ---- the stream ---- */

void detokenizer_init(struct detokenizer *d, const struct tokenizer *t, bool keep_special)
{
    memset(d, 0, sizeof *d);
    d->held = -1;
    d->t = t;
    d->keep_special = keep_special;
}

/* Appends valid UTF-8, less what Strip cuts from the beginning of the text. */
static void emit(struct detokenizer *d, const char *s, size_t n, struct strbuf *out)
{
    const struct span *cut = &d->t->strip_char;
    while (d->stripped < d->t->strip_start && n > 0) {
        if (n >= cut->n && memcmp(s, cut->s, cut->n) == 0) {
            s += cut->n;
            n -= cut->n;
            d->stripped++;
        } else {
            d->stripped = UINT32_MAX; /* the text has begun */
        }
    }
    strbuf_add(out, s, n);
}

/* What is pending can never become a character. */
static void flush_broken(struct detokenizer *d, struct strbuf *out)
{
    unsigned n = d->t->join == JOIN_BYTE_FALLBACK ? d->n_pending : d->n_pending > 0;
    for (unsigned i = 0; i < n; i++)
        emit(d, replacement, 3, out);
    d->n_pending = 0;
}

/* Total length of a character that begins with these n bytes (n >= 1), 0 if none does. */
static unsigned character_length(const unsigned char *s, unsigned n)
{
    unsigned char a = s[0], lo = 0x80, hi = 0xBF;
    unsigned len = a < 0x80                 ? 1
                   : a >= 0xC2 && a <= 0xDF ? 2
                   : (a & 0xF0) == 0xE0     ? 3
                   : a >= 0xF0 && a <= 0xF4 ? 4
                                            : 0;
    if (a == 0xE0)
        lo = 0xA0; /* overlong */
    else if (a == 0xED)
        hi = 0x9F; /* surrogates */
    else if (a == 0xF0)
        lo = 0x90; /* overlong */
    else if (a == 0xF4)
        hi = 0x8F; /* beyond U+10FFFF */
    for (unsigned i = 1; i < n && len; i++) {
        if (s[i] < lo || s[i] > hi)
            return 0;
        lo = 0x80;
        hi = 0xBF;
    }
    return len;
}

static void feed_byte(struct detokenizer *d, unsigned char byte, struct strbuf *out)
{
    d->pending[d->n_pending] = byte;
    unsigned len = character_length(d->pending, d->n_pending + 1);
    if (len == 0 && d->n_pending > 0) {
        flush_broken(d, out);
        d->pending[0] = byte;
        len = character_length(d->pending, 1);
    }
    d->n_pending++;
    if (len == 0) {
        flush_broken(d, out);
    } else if (d->n_pending == len) {
        emit(d, (const char *)d->pending, len, out);
        d->n_pending = 0;
    }
}

/* A token whose place changes its text: decoded when it comes, not ahead. */
static int feed_placed(struct detokenizer *d, uint32_t id, unsigned place, struct strbuf *out, struct err *e)
{
    struct strbuf a = STRBUF_INIT, b = STRBUF_INIT;
    struct regex_match *match = NULL;
    char byte;
    int rc = decode_token(d->t, id, place, &match, &a, &b, e);
    regex_match_free(match);
    if (rc) {
        strbuf_release(&a);
        strbuf_release(&b);
        return rc;
    }
    if (d->t->join == JOIN_BYTE_LEVEL) {
        unmap_byte_level(&a, &b);
        for (size_t i = 0; i < b.len; i++)
            feed_byte(d, (unsigned char)b.data[i], out);
    } else if (d->t->join == JOIN_BYTE_FALLBACK && byte_token(&a, &byte)) {
        feed_byte(d, (unsigned char)byte, out);
    } else {
        flush_broken(d, out);
        emit(d, strbuf_cstr(&a), a.len, out);
    }
    bool failed = strbuf_failed(&a) || strbuf_failed(&b);
    strbuf_release(&a);
    strbuf_release(&b);
    return failed ? err_set(e, ERR_NOMEM, "out of memory to decode a token") : ERR_OK;
}

static int feed_token(struct detokenizer *d, int32_t id, bool last, struct strbuf *out, struct err *e)
{
    const struct tokenizer *t = d->t;
    const struct token *token = &t->tokens[id];
    bool first = !d->started;
    d->started = true;
    if ((first && t->first_differs) || (last && t->last_differs)) {
        int rc = feed_placed(d, (uint32_t)id, (first ? AT_FIRST : 0) | (last ? AT_LAST : 0), out, e);
        if (rc)
            return rc;
    } else if (t->join == JOIN_BYTE_LEVEL || (token->flags & TOKEN_BYTE)) {
        for (uint32_t i = 0; i < token->piece_bytes; i++)
            feed_byte(d, (unsigned char)token->piece[i], out);
    } else {
        flush_broken(d, out);
        if (t->join == JOIN_SPACE && !first)
            emit(d, " ", 1, out);
        emit(d, token->piece, token->piece_bytes, out);
    }
    return strbuf_failed(out) ? err_set(e, ERR_NOMEM, "out of memory to decode a token") : ERR_OK;
}

/* The token held back, if any. */
static int feed_held(struct detokenizer *d, bool last, struct strbuf *out, struct err *e)
{
    int32_t id = d->held;
    d->held = -1;
    return id < 0 ? ERR_OK : feed_token(d, id, last, out, e);
}

int detokenizer_feed(struct detokenizer *d, int32_t id, struct strbuf *out, struct err *e)
{
    const struct tokenizer *t = d->t;
    if (id < 0 || (uint32_t)id >= t->n_ids)
        return err_set(e, ERR_INVALID, "token id %d is outside the vocabulary of %u", id, t->n_ids);
    const struct token *token = &t->tokens[id];
    /* ids that no token has give no text, as in the reference implementation */
    if (!(token->flags & TOKEN_PRESENT) || ((token->flags & TOKEN_SPECIAL) && !d->keep_special))
        return ERR_OK;
    if (!t->last_differs)
        return feed_token(d, id, false, out, e);
    int rc = feed_held(d, false, out, e);
    d->held = id;
    return rc;
}

int detokenizer_skip(struct detokenizer *d, const int32_t *ids, size_t n, struct err *e)
{
    struct strbuf nowhere = STRBUF_INIT;
    int rc = ERR_OK;
    for (size_t i = 0; i < n && rc == 0; i++) {
        strbuf_clear(&nowhere);
        rc = detokenizer_feed(d, ids[i], &nowhere, e);
    }
    if (rc == 0)
        rc = feed_held(d, false, &nowhere, e);
    strbuf_release(&nowhere);
    return rc;
}

int detokenizer_finish(struct detokenizer *d, struct strbuf *out, struct err *e)
{
    int rc = feed_held(d, true, out, e);
    flush_broken(d, out);
    if (rc)
        return rc;
    return strbuf_failed(out) ? err_set(e, ERR_NOMEM, "out of memory to decode a token") : ERR_OK;
}
