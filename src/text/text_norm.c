/* SPDX-License-Identifier: Apache-2.0
 *
 * Normalizers of tokenizer.json: one table line, one reader and one runner each. Refuses, by its name, every
 * type that is not in the table. Unknown options of a type are read as the reference implementation reads
 * them.
 */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "text/text_impl.h"

static const char part[] = "normalizer";

struct norm_run {
    const struct norm_stage *stage;
    struct regex_match **match;
    const char *s;
    size_t n;
    size_t lead; /* as of text_run_pre; a runner leaves that of its result */
    struct strbuf *out;
    struct err *e;
};
struct norm_type {
    const char *name;
    int (*read)(struct tokenizer *t, const struct json *v, struct norm_stage *s, struct err *e);
    int (*run)(struct norm_run *r);
    unsigned shrink; /* bytes that it may make one of; 0: any number */
};

/* ---- readers ---- */

static int read_nothing(struct tokenizer *t, const struct json *v, struct norm_stage *s, struct err *e)
{
    (void)t, (void)v, (void)s, (void)e;
    return ERR_OK;
}

static int read_prepend(struct tokenizer *t, const struct json *v, struct norm_stage *s, struct err *e)
{
    return text_copy_string(t, json_get(v, "prepend"), &s->content) && s->content.n > 0
               ? ERR_OK
               : text_malformed(part, v, "prepend", e);
}

static int read_replace(struct tokenizer *t, const struct json *v, struct norm_stage *s, struct err *e)
{
    int rc = text_read_pattern(t, part, v, &s->pattern, &s->regex, e);
    if (rc)
        return rc;
    return text_copy_string(t, json_get(v, "content"), &s->content) ? ERR_OK
                                                                    : text_malformed(part, v, "content", e);
}

static int read_strip(struct tokenizer *t, const struct json *v, struct norm_stage *s, struct err *e)
{
    (void)t;
    if (!text_read_flag(v, "strip_left", true, &s->left) ||
        !text_read_flag(v, "strip_right", true, &s->right))
        return text_malformed(part, v, "strip_left and strip_right", e);
    return ERR_OK;
}

static int read_bert(struct tokenizer *t, const struct json *v, struct norm_stage *s, struct err *e)
{
    (void)t;
    if (!text_read_flag(v, "clean_text", true, &s->clean) ||
        !text_read_flag(v, "handle_chinese_chars", true, &s->chinese) ||
        !text_read_flag(v, "lowercase", true, &s->lower) ||
        !text_read_flag(v, "strip_accents", s->lower, &s->accents))
        return text_malformed(part, v, "a flag", e);
    return ERR_OK;
}

static int read_charsmap(struct tokenizer *t, const struct json *v, struct norm_stage *s, struct err *e)
{
    const struct json *text = json_get(v, "precompiled_charsmap");
    if (json_string(text) == NULL || text->n % 4 != 0 || text->n > (16u << 20))
        return text_malformed(part, v, "precompiled_charsmap", e);
    if (text->n == 0)
        return ERR_OK; /* maps nothing */
    unsigned char *bytes = arena_alloc(&t->arena, text->n / 4 * 3 + 4);
    if (bytes == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for a charsmap");
    int n = EVP_DecodeBlock(bytes, (const unsigned char *)text->as.string, (int)text->n);
    uint32_t units;
    if (n < 4)
        return text_malformed(part, v, "precompiled_charsmap", e);
    memcpy(&units, bytes, 4);
    if (units % 4 != 0 || units < 4 || units > (uint32_t)n - 4 || (uint32_t)n - 4 - units == 0)
        return text_malformed(part, v, "precompiled_charsmap", e);
    s->trie = (const uint32_t *)(const void *)(bytes + 4);
    s->n_trie = units / 4;
    s->content = (struct span){(const char *)bytes + 4 + units, (size_t)n - 4 - units};
    if (!utf8_valid(s->content.s, s->content.n))
        return err_set(e, ERR_FORMAT, "tokenizer.json: normalizer Precompiled: the strings are not UTF-8");
    return ERR_OK;
}

/* ---- runners ---- */

/* What replaces s[from..to) stands where its last character stood. */
static size_t lead_of_content(size_t lead, size_t to, struct span content)
{
    return lead && to <= lead ? content.n : 0;
}

void text_replace(const char *s, size_t n, struct span pattern, struct span content, size_t *lead,
                  struct strbuf *out)
{
    size_t done = 0, before = lead ? *lead : 0, behind = 0;
    const char *hit;
    while (done < n && (hit = memmem(s + done, n - done, pattern.s, pattern.n)) != NULL && !out->failed &&
           out->len <= TEXT_MAX_NORMALIZED) {
        size_t start = (size_t)(hit - s), end = start + pattern.n;
        strbuf_add(out, s + done, start - done);
        strbuf_add(out, content.s, content.n);
        behind += text_lead(before, done, start) + lead_of_content(before, end, content);
        done = end;
    }
    strbuf_add(out, s + done, n - done);
    if (lead)
        *lead = behind + text_lead(before, done, n);
}

int text_replace_regex(const struct regex *r, struct regex_match **match, const char *s, size_t n,
                       struct span content, size_t *lead, struct strbuf *out, struct err *e)
{
    struct regex_find f = {0};
    size_t done = 0, before = lead ? *lead : 0, behind = 0;
    int rc = n ? regex_next(r, match, s, n, &f, e) : ERR_OK;
    while (rc == 0 && f.found && !out->failed && out->len <= TEXT_MAX_NORMALIZED) {
        strbuf_add(out, s + done, f.start - done);
        strbuf_add(out, content.s, content.n);
        behind += text_lead(before, done, f.start) + lead_of_content(before, f.end, content);
        done = f.end;
        rc = regex_next(r, match, s, n, &f, e);
    }
    strbuf_add(out, s + done, n - done);
    if (lead)
        *lead = behind + text_lead(before, done, n);
    return rc;
}

static int run_prepend(struct norm_run *r)
{
    if (r->n) /* an empty text stays empty */
        strbuf_add(r->out, r->stage->content.s, r->stage->content.n);
    strbuf_add(r->out, r->s, r->n);
    r->lead += r->n && r->lead ? r->stage->content.n : 0;
    return ERR_OK;
}

static int run_replace(struct norm_run *r)
{
    const struct norm_stage *s = r->stage;
    if (s->regex)
        return text_replace_regex(s->regex, r->match, r->s, r->n, s->content, &r->lead, r->out, r->e);
    text_replace(r->s, r->n, s->pattern, s->content, &r->lead, r->out);
    return ERR_OK;
}

/* What works on each character by itself: the lead first. */
typedef void (*character_fn)(const char *s, size_t n, struct strbuf *out);
static void by_characters(character_fn fn, const char *s, size_t n, size_t *lead, struct strbuf *out)
{
    size_t before = *lead, mark = out->len;
    fn(s, before, out);
    *lead = out->len - mark;
    fn(s + before, n - before, out);
}

/* What of a normal form the lead becomes is near enough known from the lead alone: what it is joined with, or
 * moves behind it, begins no piece. */
static void run_form(enum unicode_form form, const char *s, size_t n, size_t *lead, struct strbuf *out)
{
    size_t mark = out->len;
    text_form(form, s, *lead, out);
    *lead = out->len - mark;
    out->len = mark;
    text_form(form, s, n, out);
}

static int run_lowercase(struct norm_run *r)
{
    by_characters(text_lower, r->s, r->n, &r->lead, r->out);
    return ERR_OK;
}

static int run_nfc(struct norm_run *r)
{
    run_form(FORM_NFC, r->s, r->n, &r->lead, r->out);
    return ERR_OK;
}

static int run_nfd(struct norm_run *r)
{
    run_form(FORM_NFD, r->s, r->n, &r->lead, r->out);
    return ERR_OK;
}

static int run_nfkc(struct norm_run *r)
{
    run_form(FORM_NFKC, r->s, r->n, &r->lead, r->out);
    return ERR_OK;
}

static int run_nfkd(struct norm_run *r)
{
    run_form(FORM_NFKD, r->s, r->n, &r->lead, r->out);
    return ERR_OK;
}

static void alphabet(const char *s, size_t n, struct strbuf *out)
{
    for (size_t i = 0; i < n; i++)
        byte_level_char((unsigned char)s[i], out);
}

static int run_byte_level(struct norm_run *r)
{
    by_characters(alphabet, r->s, r->n, &r->lead, r->out);
    return ERR_OK;
}

static int run_strip(struct norm_run *r)
{
    size_t from = 0, to = r->n, len;
    uint32_t c = 0;
    while (r->stage->left && from < to && (len = utf8_decode(r->s + from, to - from, &c)) && char_is_space(c))
        from += len;
    while (r->stage->right && to > from) {
        size_t start = to - 1;
        while (start > from && ((unsigned char)r->s[start] & 0xC0) == 0x80)
            start--;
        if (utf8_decode(r->s + start, to - start, &c) == 0 || !char_is_space(c))
            break;
        to = start;
    }
    strbuf_add(r->out, r->s + from, to - from);
    r->lead = r->lead > from ? text_lead(r->lead, from, to) : 0;
    return ERR_OK;
}

/* Characters one by one: fn gives what becomes of each, 0 for nothing (U+0000 is never kept by these). */
#define DROP UINT32_MAX
static void map_characters(const char *s, size_t n, uint32_t (*fn)(uint32_t c), struct strbuf *out)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = 0;
        char text[4];
        len = utf8_decode(s + i, n - i, &c);
        if (len == 0)
            BUG("text was checked to be UTF-8");
        c = fn(c);
        if (c != DROP)
            strbuf_add(out, text, utf8_encode(c, text));
    }
}

static uint32_t without_mark(uint32_t c)
{
    return char_is_mark(c) ? DROP : c;
}

static uint32_t without_nonspacing_one(uint32_t c)
{
    return char_is_nonspacing(c) ? DROP : c;
}

static uint32_t nmt_one(uint32_t c)
{
    if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
        return DROP;
    bool space = c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                 c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
    return space ? ' ' : c;
}

static uint32_t clean_one(uint32_t c)
{
    bool line = c == 9 || c == 10 || c == 13;
    if (c == 0 || c == 0xFFFD || (!line && char_is_other(c)))
        return DROP;
    return char_is_space(c) ? ' ' : c;
}

static void without_marks(const char *s, size_t n, struct strbuf *out)
{
    map_characters(s, n, without_mark, out);
}

static void without_nonspacing(const char *s, size_t n, struct strbuf *out)
{
    map_characters(s, n, without_nonspacing_one, out);
}

static void nmt(const char *s, size_t n, struct strbuf *out)
{
    map_characters(s, n, nmt_one, out);
}

static void clean(const char *s, size_t n, struct strbuf *out)
{
    map_characters(s, n, clean_one, out);
}

static int run_strip_accents(struct norm_run *r)
{
    by_characters(without_marks, r->s, r->n, &r->lead, r->out);
    return ERR_OK;
}

static int run_nmt(struct norm_run *r)
{
    by_characters(nmt, r->s, r->n, &r->lead, r->out);
    return ERR_OK;
}

/* The ranges of the reference implementation; 2B920 is its spelling of 2B820. */
static bool is_chinese(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) ||
           (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static void space_chinese(const char *s, size_t n, struct strbuf *out)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = 0;
        len = utf8_decode(s + i, n - i, &c);
        if (len == 0)
            BUG("text was checked to be UTF-8");
        if (is_chinese(c))
            strbuf_putc(out, ' ');
        strbuf_add(out, s + i, len);
        if (is_chinese(c))
            strbuf_putc(out, ' ');
    }
}

static int run_bert(struct norm_run *r)
{
    static const character_fn steps[] = {clean, space_chinese, NULL, without_nonspacing, text_lower};
    const struct norm_stage *s = r->stage;
    struct strbuf a = STRBUF_INIT, b = STRBUF_INIT;
    strbuf_add(&a, r->s, r->n);
    for (int step = 0; step < 5; step++) {
        bool wanted[] = {s->clean, s->chinese, s->accents, s->accents, s->lower};
        const char *text = strbuf_cstr(&a);
        if (!wanted[step])
            continue;
        strbuf_clear(&b);
        if (steps[step])
            by_characters(steps[step], text, a.len, &r->lead, &b);
        else
            run_form(FORM_NFD, text, a.len, &r->lead, &b);
        text_swap(&a, &b);
        b.failed = b.failed || a.failed;
    }
    strbuf_add(r->out, strbuf_cstr(&a), a.len);
    r->out->failed = r->out->failed || a.failed || b.failed;
    strbuf_release(&a);
    strbuf_release(&b);
    return ERR_OK;
}

/* The string for the shortest key that s begins with (the reference implementation's choice); NULL: none. */
static const char *charsmap_find(const struct norm_stage *m, const char *s, size_t n)
{
#define OFFSET(u) (((u) >> 10) << (((u) & (1u << 9)) >> 6))
    size_t at = 0;
    if (m->n_trie == 0)
        return NULL;
    at ^= OFFSET(m->trie[0]);
    for (size_t i = 0; i < n && s[i]; i++) {
        at ^= (unsigned char)s[i];
        if (at >= m->n_trie)
            return NULL;
        uint32_t unit = m->trie[at];
        if ((unit & (1u << 31 | 0xFF)) != (unsigned char)s[i])
            return NULL;
        at ^= OFFSET(unit);
        if (unit >> 8 & 1) {
            uint32_t value = at < m->n_trie ? m->trie[at] & ~(1u << 31) : UINT32_MAX;
            /* a value inside a character would give half of one */
            return value < m->content.n && ((unsigned char)m->content.s[value] & 0xC0) != 0x80
                       ? m->content.s + value
                       : NULL;
        }
    }
#undef OFFSET
    return NULL;
}

static bool charsmap_put(const struct norm_stage *m, const char *s, size_t n, struct strbuf *out)
{
    const char *to = charsmap_find(m, s, n);
    if (to)
        strbuf_add(out, to, strnlen(to, m->content.n - (size_t)(to - m->content.s)));
    return to != NULL;
}

/* Whole grapheme clusters of fewer than six bytes first, then the characters of the others. The lead is the
 * first character of what comes out: where one is cut away, the reference implementation counts on with the
 * next. */
static int run_charsmap(struct norm_run *r)
{
    size_t mark = r->out->len;
    uint32_t c;
    for (size_t i = 0, len; i < r->n && r->out->len <= TEXT_MAX_NORMALIZED; i += len) {
        len = text_grapheme(r->s + i, r->n - i);
        if (len < 6 && charsmap_put(r->stage, r->s + i, len, r->out))
            continue;
        for (size_t k = i, one; k < i + len; k += one) {
            one = utf8_decode(r->s + k, i + len - k, &c);
            if (one == 0)
                BUG("text was checked to be UTF-8");
            if (!charsmap_put(r->stage, r->s + k, one, r->out))
                strbuf_add(r->out, r->s + k, one);
        }
    }
    if (r->lead && !strbuf_failed(r->out))
        r->lead = utf8_decode(strbuf_cstr(r->out) + mark, r->out->len - mark, &c);
    return ERR_OK;
}

/* ---- the table ---- */

static const struct norm_type types[] = {
    {"NFC", read_nothing, run_nfc, 4},
    {"NFD", read_nothing, run_nfd, 1},
    {"NFKC", read_nothing, run_nfkc, 16},
    {"NFKD", read_nothing, run_nfkd, 4},
    {"Lowercase", read_nothing, run_lowercase, 3},
    {"Strip", read_strip, run_strip, 0},
    {"StripAccents", read_nothing, run_strip_accents, 0},
    {"Replace", read_replace, run_replace, 0},
    {"Prepend", read_prepend, run_prepend, 1},
    {"BertNormalizer", read_bert, run_bert, 0},
    {"Nmt", read_nothing, run_nmt, 0},
    {"Precompiled", read_charsmap, run_charsmap, 0},
    {"ByteLevel", read_nothing, run_byte_level, 1},
};

int text_read_normalizer(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e)
{
    if (text_absent(v))
        return ERR_OK;
    if (text_type_is(v, "Sequence"))
        return text_read_sequence(t, part, v, "normalizers", text_read_normalizer, depth, e);
    if (t->n_norm == TEXT_MAX_STAGES)
        return text_too_many(part, e);
    struct norm_stage *s = &t->norm[t->n_norm];
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (text_type_is(v, types[i].name)) {
            s->type = &types[i];
            t->n_norm++; /* closing the tokenizer frees what a failed reader made */
            return s->type->read(t, v, s, e);
        }
    return text_not_implemented(part, v, e);
}

int text_normalize(const struct tokenizer *t, struct regex_match **match, const char *s, size_t n,
                   size_t *lead, struct strbuf *a, struct strbuf *b, struct err *e)
{
    strbuf_clear(a);
    strbuf_add(a, s, n);
    for (size_t i = 0; i < t->n_norm; i++) {
        strbuf_clear(b);
        struct norm_run r = {&t->norm[i], match, strbuf_cstr(a), a->len, *lead, b, e};
        int rc = t->norm[i].type->run(&r);
        *lead = r.lead;
        text_swap(a, b);
        if (rc == 0)
            rc = text_check_buffer(a, e);
        if (rc)
            return rc;
    }
    return text_check_buffer(a, e);
}

size_t text_shrink_of_normalizers(const struct tokenizer *t)
{
    size_t shrink = 1;
    for (size_t i = 0; i < t->n_norm && shrink; i++) {
        const struct norm_stage *s = &t->norm[i];
        bool grows = s->type->run == run_replace && s->regex == NULL && s->content.n >= s->pattern.n;
        shrink = shrink > 4096 ? 0 : shrink * (grows ? 1 : s->type->shrink);
    }
    return shrink;
}
