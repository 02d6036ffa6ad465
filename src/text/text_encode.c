/* SPDX-License-Identifier: Apache-2.0
 *
 * Text to ids. Order of work, as in the reference implementation: added tokens that are matched in the text
 * as given; normalizers on every piece between them; added tokens that are matched in normalized text;
 * pre-tokenizers; the model; the post-processor. Refuses text that is not UTF-8 and text beyond
 * TEXT_MAX_INPUT.
 */
#include <stdlib.h>
#include <string.h>

#include "text/text_impl.h"

int ids_push(struct ids *v, int32_t id, struct err *e)
{
    if (v->n == v->capacity && vec_reserve((void **)&v->data, &v->capacity, v->n + 1, sizeof *v->data))
        return err_set(e, ERR_NOMEM, "out of memory for token ids");
    v->data[v->n++] = id;
    return ERR_OK;
}

void ids_release(struct ids *v)
{
    free(v->data);
    *v = (struct ids){0};
}

/* GPT-2's table: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards. */
void byte_level_char(unsigned char b, struct strbuf *out)
{
    uint32_t c = b;
    if (b <= 32)
        c = 256u + b;
    else if (b >= 127 && b <= 160)
        c = 256u + 33 + (b - 127u);
    else if (b == 173)
        c = 256u + 67;
    char text[4];
    strbuf_add(out, text, utf8_encode(c, text));
}

void text_swap(struct strbuf *a, struct strbuf *b)
{
    struct strbuf x = *a;
    *a = *b;
    *b = x;
}

size_t text_lead(size_t lead, size_t from, size_t to)
{
    return from >= lead ? 0 : (to < lead ? to : lead) - from;
}

int text_check_buffer(const struct strbuf *b, struct err *e)
{
    if (strbuf_failed(b))
        return err_set(e, ERR_NOMEM, "out of memory to normalize a text");
    if (b->len > TEXT_MAX_NORMALIZED)
        return err_set(e, ERR_LIMIT, "a text of %zu bytes after normalization, more than %u", b->len,
                       TEXT_MAX_NORMALIZED);
    return ERR_OK;
}

int text_encode_word(struct encoder *x, const char *s, size_t n, bool alphabet)
{
    uint64_t hash = 0;
    size_t n_ids = 0, mark = x->out->n;
    int rc = ERR_OK;
    if (n == 0)
        return ERR_OK;
    const int32_t *known = word_cache_get(x->cache, s, n, &hash, &n_ids);
    for (size_t i = 0; i < n_ids && known && rc == 0; i++)
        rc = ids_push(x->out, known[i], x->e);
    if (known)
        return rc;
    const char *word = s;
    size_t word_n = n;
    if (alphabet) {
        strbuf_clear(&x->alphabet);
        for (size_t i = 0; i < n; i++)
            byte_level_char((unsigned char)s[i], &x->alphabet);
        rc = text_check_buffer(&x->alphabet, x->e);
        word = strbuf_cstr(&x->alphabet);
        word_n = x->alphabet.len;
    }
    if (rc == 0)
        rc = x->t->model == MODEL_BPE ? bpe_encode(x->t, &x->scratch, word, word_n, x->out, x->e)
                                      : words_encode(x->t, &x->scratch, word, word_n, x->out, x->e);
    if (rc == 0 && x->out->n > mark) /* a word may give no ids, before there is memory for any */
        word_cache_put(x->cache, s, n, hash, x->out->data + mark, x->out->n - mark);
    return rc;
}

/* ---- added tokens ---- */

static size_t spaces_after(const char *s, size_t n)
{
    size_t i = 0, len;
    uint32_t c;
    while (i < n && (len = utf8_decode(s + i, n - i, &c)) > 0 && char_is_space(c))
        i += len;
    return i;
}

/* Spaces at the end of s[from..to); no further back than from. */
static size_t spaces_before(const char *s, size_t from, size_t to)
{
    size_t end = to;
    while (end > from) {
        size_t start = end - 1;
        while (start > from && ((unsigned char)s[start] & 0xC0) == 0x80)
            start--;
        uint32_t c;
        if (utf8_decode(s + start, end - start, &c) != end - start || !char_is_space(c))
            break;
        end = start;
    }
    return to - end;
}

/* Does a character of a word begin at s, or end before it? Tokens of single_word match between others only.
 */
static int is_word_at(struct encoder *x, const char *s, size_t n, bool *is)
{
    struct regex_find f = {0};
    *is = false;
    if (n == 0)
        return ERR_OK;
    int rc = regex_next(x->t->word, &x->match, s, n, &f, x->e);
    *is = rc == 0 && f.found;
    return rc;
}

static int stands_alone(struct encoder *x, const char *s, size_t n, size_t from, size_t to, bool *alone)
{
    bool before, after;
    size_t start = from, len = 0;
    uint32_t c;
    while (start > 0 && ((unsigned char)s[--start] & 0xC0) == 0x80) {
    }
    if (to < n)
        len = utf8_decode(s + to, n - to, &c);
    int rc = is_word_at(x, s + start, from - start, &before);
    if (rc == 0)
        rc = is_word_at(x, s + to, len, &after);
    *alone = rc == 0 && !before && !after;
    return rc;
}

/* Does text[from..to) touch a range whose special tokens are text? */
static bool is_plain(const struct encoder *x, size_t from, size_t to)
{
    size_t lo = 0, hi = x->n_plain;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (x->plain[mid].to <= from)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < x->n_plain && x->plain[lo].from < to;
}

/* The same for a token found in normalized text, where offsets are lost: its k-th occurrence is taken to be
 * the k-th of its content in the piece as given. One that is not found there counts as plain where the piece
 * touches a range: a special token is never made up from text that must not have any. */
static bool is_plain_normalized(struct encoder *x, int32_t index)
{
    const struct span content = x->t->added[index].content;
    struct cursor *c = &x->cursors[index];
    size_t base = (size_t)(x->piece - x->text);
    if (c->piece != x->n_pieces)
        *c = (struct cursor){x->n_pieces, 0};
    const char *hit = memmem(x->piece + c->at, x->piece_bytes - c->at, content.s, content.n);
    if (hit == NULL) {
        c->at = x->piece_bytes;
        return is_plain(x, base, base + x->piece_bytes);
    }
    size_t at = (size_t)(hit - x->piece);
    c->at = at + content.n;
    return is_plain(x, base + at, base + at + content.n);
}

/* May this special token, found at s, not become an id? */
static bool stays_text(struct encoder *x, const struct trie *trie, int32_t index, const char *s, size_t len)
{
    if (!(x->flags & TOKENIZE_PARSE_SPECIAL))
        return true;
    if (x->n_plain == 0)
        return false;
    if (trie == &x->t->normalized)
        return is_plain_normalized(x, index);
    return is_plain(x, (size_t)(s - x->text), (size_t)(s - x->text) + len);
}

typedef int (*piece_fn)(struct encoder *x, const char *s, size_t n, size_t lead);

/* Emits the ids of the added tokens of `trie` in s and hands the text between them to fn. White space that a
 * token took with it is looked through for others once more, as the reference implementation does. */
static int split_added(struct encoder *x, const struct trie *trie, const char *s, size_t n, size_t lead,
                       piece_fn fn)
{
    size_t done = 0, i = 0;
    int rc = ERR_OK;
    while (i < n && rc == 0) {
        size_t len = 0;
        int32_t index = trie_longest(trie, s + i, n - i, &len);
        if (index < 0) {
            i++;
            continue;
        }
        const struct added *a = &x->t->added[index];
        if (a->special && stays_text(x, trie, index, s + i, len)) {
            i += len; /* plain text, but no other token may begin inside it */
            continue;
        }
        size_t start = i, stop = i + len;
        bool alone = true;
        if (a->single_word && (rc = stands_alone(x, s, n, start, stop, &alone)) != 0)
            return rc;
        if (!alone) {
            i = stop;
            continue;
        }
        if (a->lstrip) {
            start -= spaces_before(s, done, start);
            start = start < done ? done : start;
        }
        if (a->rstrip)
            stop += spaces_after(s + stop, n - stop);
        if (start > done)
            rc = fn(x, s + done, start - done, text_lead(lead, done, start));
        if (rc == 0 && start < stop) /* else another token took all of it */
            rc = ids_push(x->out, a->id, x->e);
        done = stop;
        i += len;
    }
    if (rc == 0 && done < n)
        rc = fn(x, s + done, n - done, text_lead(lead, done, n));
    return rc;
}

static int encode_normalized(struct encoder *x, const char *s, size_t n, size_t lead)
{
    return text_run_pre(x, 0, s, n, lead);
}

static int encode_piece(struct encoder *x, const char *s, size_t n, size_t lead)
{
    x->n_pieces++;
    x->piece = s;
    x->piece_bytes = n;
    int rc = text_normalize(x->t, &x->match, s, n, &lead, &x->normalized, &x->spare, x->e);
    if (rc)
        return rc;
    return split_added(x, &x->t->normalized, strbuf_cstr(&x->normalized), x->normalized.len, lead,
                       encode_normalized);
}

static int check_text(const char *text, size_t n, struct err *e)
{
    if (n > TEXT_MAX_INPUT)
        return err_set(e, ERR_LIMIT, "a text of %zu bytes, more than %u", n, TEXT_MAX_INPUT);
    if (utf8_valid(text, n))
        return ERR_OK;
    size_t at = 0, len;
    uint32_t c;
    while (at < n && (len = utf8_decode(text + at, n - at, &c)) > 0)
        at += len;
    return err_set(e, ERR_FORMAT, "text is not valid UTF-8 at byte %zu", at);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags, struct ids *out,
                     struct err *e)
{
    return tokenizer_encode_parts(t, text, n, flags, NULL, 0, out, e);
}

int tokenizer_encode_parts(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                           const struct text_range *plain, size_t n_plain, struct ids *out, struct err *e)
{
    struct encoder x = {
        .t = t, .flags = flags, .text = text, .plain = plain, .n_plain = n_plain, .out = out, .e = e};
    size_t mark = out->n;
    uint32_t c;
    int rc = check_text(text, n, e);
    if (rc)
        return rc;
    if (n_plain && (x.cursors = calloc(t->n_added + 1, sizeof *x.cursors)) == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for token ids");
    bool post = flags & TOKENIZE_SPECIAL;
    for (size_t i = 0; post && i < t->n_before && rc == 0; i++)
        rc = ids_push(out, t->post_before[i], e);
    if (rc == 0 && n > 0)
        rc = regex_match_new(&x.match, n, e);
    x.cache = word_cache_new(n);
    if (rc == 0 && n > 0)
        rc = split_added(&x, &t->raw, text, n, utf8_decode(text, n, &c), encode_piece);
    for (size_t i = 0; post && i < t->n_after && rc == 0; i++)
        rc = ids_push(out, t->post_after[i], e);
    free(x.cursors);
    strbuf_release(&x.normalized);
    strbuf_release(&x.spare);
    strbuf_release(&x.alphabet);
    model_scratch_release(&x.scratch);
    regex_match_free(x.match);
    word_cache_free(x.cache);
    if (rc)
        out->n = mark; /* all or nothing */
    return rc;
}
