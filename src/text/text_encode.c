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

/* Where in a raw piece the occurrences of a normalized special token were found so far. */
struct cursor {
    uint32_t piece; /* number of the piece that `at` belongs to */
    size_t at;
};

struct encoder {
    const struct tokenizer *t;
    unsigned flags;
    const char *text; /* the whole, for offsets */
    const struct text_range *plain;
    size_t n_plain;
    struct cursor *cursors; /* one per added token, where plain ranges and normalized special tokens meet */
    uint32_t n_pieces;
    const char *piece; /* being encoded, as given */
    size_t piece_bytes;
    struct ids *out;
    struct bpe_scratch scratch;
    struct strbuf normalized, spare; /* spare: second buffer where a stage rewrites text */
    struct err *e;
};

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

/* Replaces every occurrence, left to right, not overlapping. */
void text_replace(const char *s, size_t n, struct span pattern, struct span content, struct strbuf *out)
{
    const char *end = s + n, *hit;
    while (s < end && (hit = memmem(s, (size_t)(end - s), pattern.s, pattern.n)) != NULL && !out->failed &&
           out->len <= TEXT_MAX_NORMALIZED) {
        strbuf_add(out, s, (size_t)(hit - s));
        strbuf_add(out, content.s, content.n);
        s = hit + pattern.n;
    }
    strbuf_add(out, s, (size_t)(end - s));
}

static void swap_buffers(struct strbuf *a, struct strbuf *b)
{
    struct strbuf x = *a;
    *a = *b;
    *b = x;
}

static int check_buffer(const struct strbuf *b, struct err *e)
{
    if (strbuf_failed(b))
        return err_set(e, ERR_NOMEM, "out of memory to normalize a text");
    if (b->len > TEXT_MAX_NORMALIZED)
        return err_set(e, ERR_LIMIT, "a text of %zu bytes after normalization, more than %u", b->len,
                       TEXT_MAX_NORMALIZED);
    return ERR_OK;
}

/* Leaves the result in *a; both buffers are used. */
static int normalize_into(const struct tokenizer *t, const char *s, size_t n, struct strbuf *a,
                          struct strbuf *b, struct err *e)
{
    strbuf_clear(a);
    strbuf_add(a, s, n);
    for (size_t i = 0; i < t->n_norm; i++) {
        const struct norm_stage *stage = &t->norm[i];
        strbuf_clear(b);
        if (stage->kind == NORM_REPLACE) {
            text_replace(strbuf_cstr(a), a->len, stage->pattern, stage->content, b);
        } else { /* an empty text stays empty */
            if (a->len > 0)
                strbuf_add(b, stage->content.s, stage->content.n);
            strbuf_add(b, strbuf_cstr(a), a->len);
        }
        swap_buffers(a, b);
        int rc = check_buffer(a, e);
        if (rc)
            return rc;
    }
    return check_buffer(a, e);
}

int text_normalize(const struct tokenizer *t, const char *s, size_t n, struct strbuf *out, struct err *e)
{
    struct strbuf spare = STRBUF_INIT;
    int rc = normalize_into(t, s, n, out, &spare, e);
    strbuf_release(&spare);
    return rc;
}

/* ---- pre-tokenizers ---- */

static int run_pre(struct encoder *x, size_t stage, const char *s, size_t n, bool first);

static bool begins_with(const char *s, size_t n, struct span prefix)
{
    return n >= prefix.n && memcmp(s, prefix.s, prefix.n) == 0;
}

/* Cuts before every replacement character (it stays with what follows). */
static int split_metaspace(struct encoder *x, size_t stage, const char *s, size_t n, struct span mark,
                           bool first)
{
    int rc = ERR_OK;
    while (n > 0 && rc == 0) {
        size_t from = begins_with(s, n, mark) ? mark.n : 0;
        const char *hit = memmem(s + from, n - from, mark.s, mark.n);
        size_t len = hit ? (size_t)(hit - s) : n;
        rc = run_pre(x, stage + 1, s, len, first);
        first = false;
        s += len;
        n -= len;
    }
    return rc;
}

static int run_metaspace(struct encoder *x, size_t stage, const char *s, size_t n, bool first,
                         struct strbuf *work)
{
    const struct pre_stage *p = &x->t->pre[stage];
    struct strbuf body = STRBUF_INIT;
    text_replace(s, n, (struct span){" ", 1}, p->replacement, &body);
    bool add = p->scheme == META_ALWAYS || (p->scheme == META_FIRST && first);
    if (add && !begins_with(strbuf_cstr(&body), body.len, p->replacement))
        strbuf_add(work, p->replacement.s, p->replacement.n);
    strbuf_add(work, strbuf_cstr(&body), body.len);
    if (strbuf_failed(&body))
        work->failed = true;
    strbuf_release(&body);
    int rc = check_buffer(work, x->e);
    if (rc)
        return rc;
    if (p->split)
        return split_metaspace(x, stage, strbuf_cstr(work), work->len, p->replacement, first);
    return run_pre(x, stage + 1, strbuf_cstr(work), work->len, first);
}

static int run_byte_level(struct encoder *x, size_t stage, const char *s, size_t n, bool first,
                          struct strbuf *work)
{
    if (x->t->pre[stage].add_prefix_space && s[0] != ' ')
        byte_level_char(' ', work);
    for (size_t i = 0; i < n; i++)
        byte_level_char((unsigned char)s[i], work);
    int rc = check_buffer(work, x->e);
    return rc ? rc : run_pre(x, stage + 1, strbuf_cstr(work), work->len, first);
}

/* Stages from `stage` on, then the model. Depth is bounded by the number of stages. */
static int run_pre(struct encoder *x, size_t stage, const char *s, size_t n, bool first)
{
    if (n == 0)
        return ERR_OK;
    if (stage == x->t->n_pre)
        return bpe_encode(x->t, &x->scratch, s, n, x->out, x->e);
    struct strbuf work = STRBUF_INIT;
    int rc = x->t->pre[stage].kind == PRE_METASPACE ? run_metaspace(x, stage, s, n, first, &work)
                                                    : run_byte_level(x, stage, s, n, first, &work);
    strbuf_release(&work);
    return rc;
}

/* ---- added tokens ---- */

/* Regular expression \s of the reference implementation: the White_Space property. */
static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

static size_t spaces_after(const char *s, size_t n)
{
    size_t i = 0, len;
    uint32_t c;
    while (i < n && (len = utf8_decode(s + i, n - i, &c)) > 0 && is_space(c))
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
        if (utf8_decode(s + start, end - start, &c) != end - start || !is_space(c))
            break;
        end = start;
    }
    return to - end;
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

typedef int (*piece_fn)(struct encoder *x, const char *s, size_t n, bool first);

/* Emits the ids of the added tokens of `trie` in s and hands the text between them to fn. */
static int split_added(struct encoder *x, const struct trie *trie, const char *s, size_t n, bool first,
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
        if (a->lstrip)
            start -= spaces_before(s, done, start);
        if (a->rstrip)
            stop += spaces_after(s + stop, n - stop);
        if (start > done)
            rc = fn(x, s + done, start - done, first && done == 0);
        if (rc == 0)
            rc = ids_push(x->out, a->id, x->e);
        done = i = stop;
    }
    if (rc == 0 && done < n)
        rc = fn(x, s + done, n - done, first && done == 0);
    return rc;
}

static int encode_normalized(struct encoder *x, const char *s, size_t n, bool first)
{
    return run_pre(x, 0, s, n, first);
}

static int encode_piece(struct encoder *x, const char *s, size_t n, bool first)
{
    x->n_pieces++;
    x->piece = s;
    x->piece_bytes = n;
    int rc = normalize_into(x->t, s, n, &x->normalized, &x->spare, x->e);
    if (rc)
        return rc;
    return split_added(x, &x->t->normalized, strbuf_cstr(&x->normalized), x->normalized.len, first,
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
    int rc = check_text(text, n, e);
    if (rc)
        return rc;
    if (n_plain && (x.cursors = calloc(t->n_added + 1, sizeof *x.cursors)) == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for token ids");
    bool post = flags & TOKENIZE_SPECIAL;
    for (size_t i = 0; post && i < t->n_before && rc == 0; i++)
        rc = ids_push(out, t->post_before[i], e);
    if (rc == 0 && n > 0)
        rc = split_added(&x, &t->raw, text, n, true, encode_piece);
    for (size_t i = 0; post && i < t->n_after && rc == 0; i++)
        rc = ids_push(out, t->post_after[i], e);
    free(x.cursors);
    strbuf_release(&x.normalized);
    strbuf_release(&x.spare);
    bpe_scratch_release(&x.scratch);
    if (rc)
        out->n = mark; /* all or nothing */
    return rc;
}
