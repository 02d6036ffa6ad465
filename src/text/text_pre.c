/* SPDX-License-Identifier: Apache-2.0
 *
 * Pre-tokenizers of tokenizer.json: one table line, one reader and one runner each. A runner cuts a piece and
 * hands each part to the next stage at once, so nothing holds all words of a text. Refuses, by its name,
 * every type that is not in the table.
 */
#include <string.h>

#include "text/jinja_impl.h"
#include "text/text_impl.h"

static const char part[] = "pre_tokenizer";

/* A piece on its way through the stages; lead as of text_run_pre. */
struct piece {
    const char *s;
    size_t n, lead;
};
struct pre_type {
    const char *name;
    int (*read)(struct tokenizer *t, const struct json *v, struct pre_stage *s, struct err *e);
    int (*run)(struct encoder *x, size_t stage, struct piece p);
};

/* ---- cutting ---- */

/* Takes matches and what lies between them in order, and joins them as the behavior says. */
struct splitter {
    struct encoder *x;
    size_t stage;
    struct piece p;
    enum split_behavior behavior;
    bool invert;
    size_t from, to; /* held back: may still grow; empty if from == to */
    bool held, last_was_match;
};

static int emit(struct splitter *c, size_t from, size_t to)
{
    if (from == to)
        return ERR_OK;
    return text_run_pre(c->x, c->stage + 1, c->p.s + from, to - from, text_lead(c->p.lead, from, to));
}

static int flush(struct splitter *c)
{
    bool held = c->held;
    c->held = false;
    return held ? emit(c, c->from, c->to) : ERR_OK;
}

static int hold(struct splitter *c, size_t from, size_t to)
{
    int rc = flush(c);
    c->from = from;
    c->to = to;
    c->held = true;
    return rc;
}

/* s[from..to) is a match, or lies between two. */
static int segment(struct splitter *c, size_t from, size_t to, bool match)
{
    bool last = c->last_was_match;
    match = match != c->invert;
    c->last_was_match = match;
    switch (c->behavior) {
    case SPLIT_REMOVED:
        return match ? ERR_OK : emit(c, from, to);
    case SPLIT_ISOLATED:
        return emit(c, from, to);
    case SPLIT_PREVIOUS:
        if (match && !last && c->held) {
            c->to = to;
            return ERR_OK;
        }
        return hold(c, from, to);
    case SPLIT_CONTIGUOUS:
        if (match == last && c->held) {
            c->to = to;
            return ERR_OK;
        }
        return hold(c, from, to);
    case SPLIT_NEXT:
        if (match)
            return hold(c, from, to);
        if (c->held)
            from = c->from;
        c->held = false;
        return emit(c, from, to);
    }
    BUG("no such behavior");
}

static int split_regex(struct splitter *c, const struct regex *r)
{
    struct regex_find f = {0};
    size_t done = 0;
    int rc = regex_next(r, &c->x->match, c->p.s, c->p.n, &f, c->x->e);
    while (rc == 0 && f.found) {
        if (f.start > done)
            rc = segment(c, done, f.start, false);
        if (rc == 0)
            rc = segment(c, f.start, f.end, true);
        done = f.end;
        if (rc == 0)
            rc = regex_next(r, &c->x->match, c->p.s, c->p.n, &f, c->x->e);
    }
    if (rc == 0 && done < c->p.n)
        rc = segment(c, done, c->p.n, false);
    return rc ? rc : flush(c);
}

static int split_string(struct splitter *c, struct span pattern)
{
    size_t done = 0;
    const char *hit;
    int rc = ERR_OK;
    while (rc == 0 && (hit = memmem(c->p.s + done, c->p.n - done, pattern.s, pattern.n)) != NULL) {
        size_t start = (size_t)(hit - c->p.s);
        if (start > done)
            rc = segment(c, done, start, false);
        if (rc == 0)
            rc = segment(c, start, start + pattern.n, true);
        done = start + pattern.n;
    }
    if (rc == 0 && done < c->p.n)
        rc = segment(c, done, c->p.n, false);
    return rc ? rc : flush(c);
}

/* Every character of the class is a match of its own. */
static int split_class(struct splitter *c, bool (*is)(uint32_t c))
{
    size_t done = 0, len;
    int rc = ERR_OK;
    for (size_t i = 0; i < c->p.n && rc == 0; i += len) {
        uint32_t code = 0;
        len = utf8_decode(c->p.s + i, c->p.n - i, &code);
        if (len == 0)
            BUG("text was checked to be UTF-8");
        if (!is(code))
            continue;
        if (i > done)
            rc = segment(c, done, i, false);
        if (rc == 0)
            rc = segment(c, i, i + len, true);
        done = i + len;
    }
    if (rc == 0 && done < c->p.n)
        rc = segment(c, done, c->p.n, false);
    return rc ? rc : flush(c);
}

/* ---- readers ---- */

static int read_nothing(struct tokenizer *t, const struct json *v, struct pre_stage *s, struct err *e)
{
    (void)t, (void)v, (void)s, (void)e;
    return ERR_OK;
}

static int compile_own(struct pre_stage *s, const char *pattern, enum regex_dialect dialect, struct err *e)
{
    return regex_compile(&s->regex, pattern, strlen(pattern), dialect, "tokenizer.json: pre_tokenizer", e);
}

static int read_byte_level(struct tokenizer *t, const struct json *v, struct pre_stage *s, struct err *e)
{
    (void)t;
    bool regex;
    if (!text_read_flag(v, "use_regex", true, &regex))
        return text_malformed(part, v, "use_regex", e);
    if (!text_read_flag(v, "add_prefix_space", true, &s->add_prefix_space))
        return text_malformed(part, v, "add_prefix_space", e);
    if (!regex)
        return ERR_OK;
    return compile_own(s,
                       "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
                       REGEX_ONIG, e);
}

static int read_whitespace(struct tokenizer *t, const struct json *v, struct pre_stage *s, struct err *e)
{
    (void)t, (void)v;
    return compile_own(s, "\\w+|[^\\w\\s]+", REGEX_RUST, e);
}

static int read_behavior(const struct json *v, enum split_behavior *out)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};
    const char *name = json_string(json_get(v, "behavior"));
    for (size_t i = 0; name && i < ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum split_behavior)i;
            return ERR_OK;
        }
    return ERR_FORMAT;
}

static int read_split(struct tokenizer *t, const struct json *v, struct pre_stage *s, struct err *e)
{
    if (read_behavior(v, &s->behavior))
        return text_malformed(part, v, "behavior", e);
    if (!text_read_flag(v, "invert", false, &s->invert))
        return text_malformed(part, v, "invert", e);
    return text_read_pattern(t, part, v, &s->replacement, &s->regex, e);
}

static int read_punctuation(struct tokenizer *t, const struct json *v, struct pre_stage *s, struct err *e)
{
    (void)t;
    s->behavior = SPLIT_ISOLATED;
    if (!text_absent(json_get(v, "behavior")) && read_behavior(v, &s->behavior))
        return text_malformed(part, v, "behavior", e);
    return ERR_OK;
}

static int read_digits(struct tokenizer *t, const struct json *v, struct pre_stage *s, struct err *e)
{
    (void)t;
    bool each;
    if (!text_read_flag(v, "individual_digits", false, &each))
        return text_malformed(part, v, "individual_digits", e);
    s->behavior = each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    return ERR_OK;
}

static int read_delimiter(struct tokenizer *t, const struct json *v, struct pre_stage *s, struct err *e)
{
    s->behavior = SPLIT_REMOVED;
    if (!text_copy_string(t, json_get(v, "delimiter"), &s->replacement) || s->replacement.n == 0)
        return text_malformed(part, v, "delimiter", e);
    return ERR_OK;
}

static int read_metaspace(struct tokenizer *t, const struct json *v, struct pre_stage *s, struct err *e)
{
    return text_read_metaspace(t, part, v, &s->replacement, &s->scheme, &s->split, e);
}

/* ---- runners ---- */

static bool begins_with(const char *s, size_t n, struct span prefix)
{
    return n >= prefix.n && memcmp(s, prefix.s, prefix.n) == 0;
}

static int run_metaspace(struct encoder *x, size_t stage, struct piece p)
{
    const struct pre_stage *m = &x->t->pre[stage];
    struct strbuf body = STRBUF_INIT, work = STRBUF_INIT;
    text_replace(p.s, p.n, (struct span){" ", 1}, m->replacement, &p.lead, &body);
    bool add = m->scheme == META_ALWAYS || (m->scheme == META_FIRST && p.lead > 0);
    if (add && !begins_with(strbuf_cstr(&body), body.len, m->replacement)) {
        strbuf_add(&work, m->replacement.s, m->replacement.n);
        strbuf_add(&work, strbuf_cstr(&body), body.len);
        text_swap(&body, &work);
        p.lead += p.lead ? m->replacement.n : 0;
    }
    body.failed = body.failed || work.failed;
    int rc = text_check_buffer(&body, x->e);
    struct splitter c = {x, stage, {strbuf_cstr(&body), body.len, p.lead}, SPLIT_NEXT, false, 0, 0, 0, 0};
    if (rc == 0)
        rc = m->split ? split_string(&c, m->replacement) : emit(&c, 0, body.len);
    strbuf_release(&body);
    strbuf_release(&work);
    return rc;
}

/* The last stage: its words go to the model, each written in the byte-level alphabet. */
static int byte_level_words(struct encoder *x, const struct pre_stage *b, struct piece p)
{
    struct regex_find f = {0};
    size_t done = 0;
    int rc = ERR_OK;
    if (b->regex == NULL)
        return text_encode_word(x, p.s, p.n, true);
    do {
        rc = regex_next(b->regex, &x->match, p.s, p.n, &f, x->e);
        size_t start = f.found ? f.start : p.n;
        if (rc == 0 && start > done)
            rc = text_encode_word(x, p.s + done, start - done, true);
        if (rc == 0 && f.found && f.end > start)
            rc = text_encode_word(x, p.s + start, f.end - start, true);
        done = f.end;
    } while (rc == 0 && f.found);
    return rc;
}

static int byte_level_pieces(struct encoder *x, size_t stage, struct piece p)
{
    const struct pre_stage *b = &x->t->pre[stage];
    struct regex_find f = {0};
    struct strbuf word = STRBUF_INIT;
    size_t done = 0;
    int rc = ERR_OK;
    bool more = true;
    while (more && rc == 0) { /* without a pattern: one piece, the whole */
        if (b->regex)
            rc = regex_next(b->regex, &x->match, p.s, p.n, &f, x->e);
        more = f.found;
        size_t ends[] = {f.found ? f.start : p.n, f.found ? f.end : p.n};
        for (int k = 0; k < 2 && rc == 0; k++) {
            if (ends[k] == done)
                continue;
            strbuf_clear(&word);
            size_t lead = 0;
            for (size_t i = done; i < ends[k]; i++) {
                byte_level_char((unsigned char)p.s[i], &word);
                lead = i < p.lead ? word.len : lead;
            }
            rc = text_check_buffer(&word, x->e);
            if (rc == 0)
                rc = text_run_pre(x, stage + 1, strbuf_cstr(&word), word.len, lead);
            done = ends[k];
        }
    }
    strbuf_release(&word);
    return rc;
}

static int run_byte_level(struct encoder *x, size_t stage, struct piece p)
{
    struct strbuf spaced = STRBUF_INIT;
    int rc = ERR_OK;
    if (x->t->pre[stage].add_prefix_space && p.s[0] != ' ') {
        strbuf_putc(&spaced, ' ');
        strbuf_add(&spaced, p.s, p.n);
        rc = text_check_buffer(&spaced, x->e);
        p.s = strbuf_cstr(&spaced);
        p.n = spaced.len;
        p.lead += p.lead ? 1 : 0;
    }
    if (rc == 0)
        rc = stage + 1 == x->t->n_pre ? byte_level_words(x, &x->t->pre[stage], p)
                                      : byte_level_pieces(x, stage, p);
    strbuf_release(&spaced);
    return rc;
}

static int run_split(struct encoder *x, size_t stage, struct piece p)
{
    const struct pre_stage *s = &x->t->pre[stage];
    struct splitter c = {x, stage, p, s->behavior, s->invert, 0, 0, false, false};
    return s->regex ? split_regex(&c, s->regex) : split_string(&c, s->replacement);
}

static int run_words(struct encoder *x, size_t stage, struct piece p)
{
    struct splitter c = {x, stage, p, SPLIT_REMOVED, true, 0, 0, false, false};
    return split_regex(&c, x->t->pre[stage].regex);
}

static int run_spaces(struct encoder *x, size_t stage, struct piece p)
{
    struct splitter c = {x, stage, p, SPLIT_REMOVED, false, 0, 0, false, false};
    return split_class(&c, char_is_space);
}

static int run_punctuation(struct encoder *x, size_t stage, struct piece p)
{
    struct splitter c = {x, stage, p, x->t->pre[stage].behavior, false, 0, 0, false, false};
    return split_class(&c, char_is_punctuation);
}

static int run_digits(struct encoder *x, size_t stage, struct piece p)
{
    struct splitter c = {x, stage, p, x->t->pre[stage].behavior, false, 0, 0, false, false};
    return split_class(&c, char_is_number);
}

/* Spaces go, punctuation stands alone. */
static int run_bert(struct encoder *x, size_t stage, struct piece p)
{
    size_t done = 0, len;
    int rc = ERR_OK;
    for (size_t i = 0; i <= p.n && rc == 0; i += len) {
        uint32_t c = ' ';
        len = i < p.n ? utf8_decode(p.s + i, p.n - i, &c) : 1;
        bool space = i == p.n || char_is_space(c), punctuation = !space && char_is_punctuation(c);
        if (!space && !punctuation)
            continue;
        if (i > done)
            rc = text_run_pre(x, stage + 1, p.s + done, i - done, text_lead(p.lead, done, i));
        if (rc == 0 && punctuation)
            rc = text_run_pre(x, stage + 1, p.s + i, len, text_lead(p.lead, i, i + len));
        done = i + len;
    }
    return rc;
}

/* What tiktoken's callers do since it fails on long text: cuts that tokens do not reach across. */
static int run_cut(struct encoder *x, size_t stage, struct piece p)
{
    const struct pre_stage *s = &x->t->pre[stage];
    struct splitter c = {x, stage, p, SPLIT_ISOLATED, false, 0, 0, false, false};
    size_t done = 0, len;
    uint32_t chars = 0, run = 0;
    bool last = false;
    int rc = ERR_OK;
    for (size_t i = 0; i < p.n && rc == 0; i += len) {
        uint32_t code = 0;
        len = utf8_decode(p.s + i, p.n - i, &code);
        if (len == 0)
            BUG("text was checked to be UTF-8");
        bool space = junicode_space(code), full = s->piece_chars && chars == s->piece_chars;
        if (full)
            chars = 0;
        run = chars == 0 || space != last ? 1 : run + 1;
        if (full || (s->run_chars && run > s->run_chars)) {
            rc = emit(&c, done, i);
            done = i;
            run = 1;
        }
        last = space;
        chars++;
    }
    return rc ? rc : emit(&c, done, p.n);
}

/* ---- the table ---- */

static const struct pre_type types[] = {
    {"ByteLevel", read_byte_level, run_byte_level},
    {"Split", read_split, run_split},
    {"Metaspace", read_metaspace, run_metaspace},
    {"Whitespace", read_whitespace, run_words},
    {"WhitespaceSplit", read_nothing, run_spaces},
    {"Punctuation", read_punctuation, run_punctuation},
    {"Digits", read_digits, run_digits},
    {"BertPreTokenizer", read_nothing, run_bert},
    {"CharDelimiterSplit", read_delimiter, run_split},
};

int text_read_pre_tokenizer(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e)
{
    if (text_absent(v))
        return ERR_OK;
    if (text_type_is(v, "Sequence"))
        return text_read_sequence(t, part, v, "pretokenizers", text_read_pre_tokenizer, depth, e);
    if (t->n_pre == TEXT_MAX_STAGES)
        return text_too_many(part, e);
    struct pre_stage *s = &t->pre[t->n_pre];
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (text_type_is(v, types[i].name)) {
            s->type = &types[i];
            t->n_pre++; /* closing the tokenizer frees what a failed reader made */
            return s->type->read(t, v, s, e);
        }
    return text_not_implemented(part, v, e);
}

void text_add_cut(struct tokenizer *t, uint32_t piece_chars, uint32_t run_chars)
{
    static const struct pre_type cut = {"", NULL, run_cut};
    if (t->n_pre == TEXT_MAX_STAGES)
        BUG("a tokenizer with too many stages of our own");
    t->pre[t->n_pre++] = (struct pre_stage){.type = &cut, .piece_chars = piece_chars, .run_chars = run_chars};
}

int text_run_pre(struct encoder *x, size_t stage, const char *s, size_t n, size_t lead)
{
    if (n == 0)
        return ERR_OK;
    if (stage == x->t->n_pre)
        return text_encode_word(x, s, n, false);
    return x->t->pre[stage].type->run(x, stage, (struct piece){s, n, lead});
}

bool text_pre_is_byte_level(const struct pre_stage *s)
{
    return s->type->run == run_byte_level;
}

bool text_pre_keeps_all(const struct pre_stage *s)
{
    bool split = s->type->run == run_split && s->behavior != SPLIT_REMOVED;
    return split || s->type->run == run_byte_level || s->type->run == run_cut ||
           s->type->run == run_metaspace || s->type->run == run_digits ||
           (s->type->run == run_punctuation && s->behavior != SPLIT_REMOVED);
}
