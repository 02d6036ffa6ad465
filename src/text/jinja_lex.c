/* SPDX-License-Identifier: Apache-2.0
 *
 * Template source to tokens, with the white space rules of jinja2 under trim_blocks and lstrip_blocks: a
 * newline behind a block or comment goes, white space in front of one on its own line goes, "-" takes all
 * white space, "+" keeps it, one newline at the very end goes. Refuses source that is not UTF-8, and
 * unbalanced brackets.
 */
#include <string.h>

#include "text/jinja_impl.h"

struct lexer {
    struct jparser *p;
    const char *s;
    size_t n, at;
    uint32_t line;
    bool line_starting; /* the last match ended with a newline */
    char open[JINJA_MAX_PARSE];
    unsigned n_open;
};

static void push(struct lexer *l, enum jtoken_kind kind, const char *s, size_t n)
{
    struct jparser *p = l->p;
    if (p->n_tokens == p->capacity) {
        size_t capacity = p->capacity ? 2 * p->capacity : 256;
        struct jtoken *more = jparse_alloc(p, capacity, sizeof *more);
        if (p->n_tokens)
            memcpy(more, p->tokens, p->n_tokens * sizeof *more);
        p->tokens = more;
        p->capacity = capacity;
    }
    p->tokens[p->n_tokens++] = (struct jtoken){kind, l->line, s, (uint32_t)n};
}

static void count_lines(struct lexer *l, size_t from, size_t to)
{
    for (const char *s = l->s + from; (s = memchr(s, '\n', (size_t)(l->s + to - s))) != NULL; s++)
        l->line++;
}

/* Bytes of white space at s[at..n). */
static size_t spaces(const char *s, size_t n, size_t at)
{
    size_t from = at, len;
    uint32_t c;
    while (at < n && (len = utf8_decode(s + at, n - at, &c)) > 0 && junicode_space(c))
        at += len;
    return at - from;
}

static size_t without_trailing_space(const char *s, size_t from, size_t to)
{
    while (to > from) {
        size_t start = to - 1;
        uint32_t c;
        while (start > from && ((unsigned char)s[start] & 0xC0) == 0x80)
            start--;
        if (utf8_decode(s + start, to - start, &c) != to - start || !junicode_space(c))
            break;
        to = start;
    }
    return to;
}

/* Text in front of a tag: s[from..to); sign of the tag; may_lstrip for blocks and comments. */
static void push_text(struct lexer *l, size_t from, size_t to, char sign, bool may_lstrip)
{
    size_t end = to;
    if (sign == '-') {
        end = without_trailing_space(l->s, from, to);
    } else if (sign != '+' && may_lstrip) {
        size_t start = to;
        while (start > from && l->s[start - 1] != '\n')
            start--;
        if ((start > from || l->line_starting) && spaces(l->s, to, start) == to - start)
            end = start;
    }
    if (end > from)
        push(l, TOK_DATA, l->s + from, end - from);
    count_lines(l, from, to);
}

static char sign_at(const struct lexer *l, size_t at)
{
    return at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : '\0';
}

/* Behind a tag that ended at `at`: what its end takes along. */
static size_t after_end(struct lexer *l, size_t at, char sign, bool trim)
{
    size_t end = at;
    if (sign == '-')
        end += spaces(l->s, l->n, end);
    else if (sign != '+' && trim && end < l->n && l->s[end] == '\n')
        end++;
    return end;
}

static void advance(struct lexer *l, size_t to)
{
    count_lines(l, l->at, to);
    l->at = to;
    l->line_starting = to > 0 && l->s[to - 1] == '\n';
}

/* ---- comments, raw ---- */

static void skip_comment(struct lexer *l)
{
    size_t start = l->at + 2 + (sign_at(l, l->at + 2) != '\0');
    const char *hit = start < l->n ? memmem(l->s + start, l->n - start, "#}", 2) : NULL;
    if (hit == NULL)
        jparse_fail(l->p, ERR_FORMAT, l->line, "a comment has no end");
    size_t end = (size_t)(hit - l->s);
    char sign = end > start ? sign_at(l, end - 1) : '\0';
    advance(l, after_end(l, end + 2, sign, true));
}

/* "{%- raw -%}" and "{%- endraw -%}": the end of the tag's name, or 0. */
static size_t tag_of(const struct lexer *l, size_t at, const char *name)
{
    size_t n = strlen(name);
    at += 2 + (sign_at(l, at + 2) != '\0');
    at += spaces(l->s, l->n, at);
    if (at + n > l->n || memcmp(l->s + at, name, n) != 0)
        return 0;
    return at + n + spaces(l->s, l->n, at + n);
}

/* Position behind "%}", or 0 if the tag does not end at `at`. */
static size_t tag_end(struct lexer *l, size_t at, bool plus, bool trim)
{
    char sign = sign_at(l, at);
    size_t close = at + (sign != '\0');
    if (close + 2 > l->n || l->s[close] != '%' || l->s[close + 1] != '}' || (sign == '+' && !plus))
        return 0;
    return after_end(l, close + 2, sign, trim);
}

static bool skip_raw(struct lexer *l)
{
    size_t name = tag_of(l, l->at, "raw"), begin = name ? tag_end(l, name, false, false) : 0;
    if (begin == 0)
        return false;
    advance(l, begin);
    if (begin == l->n) /* the reference misses that it has no end */
        return true;
    for (size_t at = begin; at + 1 < l->n; at++) {
        if (l->s[at] != '{' || l->s[at + 1] != '%')
            continue;
        size_t end = tag_of(l, at, "endraw");
        end = end ? tag_end(l, end, true, true) : 0;
        if (end == 0)
            continue;
        push_text(l, begin, at, sign_at(l, at + 2), true);
        l->at = at;
        advance(l, end);
        return true;
    }
    jparse_fail(l->p, ERR_FORMAT, l->line, "a raw block has no end");
}

/* ---- inside of tags ---- */

static bool is_digit(const struct lexer *l, size_t at)
{
    return at < l->n && l->s[at] >= '0' && l->s[at] <= '9';
}

/* (\d+_)*\d+ ; returns its end, or at. */
static size_t digits(const struct lexer *l, size_t at)
{
    while (is_digit(l, at)) {
        at++;
        if (at < l->n && l->s[at] == '_' && is_digit(l, at + 1))
            at++;
    }
    return at;
}

static size_t based_digits(const struct lexer *l, size_t at, int base)
{
    for (; at < l->n; at++) {
        char c = l->s[at];
        int v = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : 99;
        if (v >= base && c != '_')
            break;
    }
    return at;
}

static void lex_number(struct lexer *l)
{
    const char *s = l->s;
    size_t at = l->at, whole = digits(l, at), end = whole;
    enum jtoken_kind kind = TOK_INT;
    char second = at + 1 < l->n ? (char)(s[at + 1] | 32) : '\0';
    if (at == 0 || s[at - 1] != '.') { /* in x.0.1 both numbers are integers */
        if (end + 1 < l->n && s[end] == '.' && is_digit(l, end + 1))
            end = digits(l, end + 1);
        if (end < l->n && (s[end] | 32) == 'e') {
            size_t exponent = end + 1 + (end + 1 < l->n && (s[end + 1] == '+' || s[end + 1] == '-'));
            if (is_digit(l, exponent))
                end = digits(l, exponent);
        }
        if (end > whole)
            kind = TOK_FLOAT;
    }
    if (kind == TOK_INT && s[at] == '0' && (second == 'x' || second == 'o' || second == 'b')) {
        end = based_digits(l, at + 2, second == 'x' ? 16 : second == 'o' ? 8 : 2);
    } else if (kind == TOK_INT && s[at] == '0') {
        end = at + 1; /* 012 is two numbers, hence an error */
        while (end < whole && (s[end] == '0' || s[end] == '_'))
            end++;
    }
    push(l, kind, s + at, end - at);
    l->at = end;
}

static void lex_string(struct lexer *l)
{
    char quote = l->s[l->at];
    size_t at = l->at + 1;
    while (at < l->n && l->s[at] != quote)
        at += l->s[at] == '\\' ? 2 : 1;
    if (at >= l->n)
        jparse_fail(l->p, ERR_FORMAT, l->line, "a string has no end");
    push(l, TOK_STRING, l->s + l->at + 1, at - l->at - 1);
    count_lines(l, l->at, at);
    l->at = at + 1;
}

static bool is_name_byte(const struct lexer *l, size_t at)
{
    unsigned char c = at < l->n ? (unsigned char)l->s[at] : 0;
    return c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z' && c < 128) ||
           (c >= 128 && spaces(l->s, l->n, at) == 0);
}

static void lex_operator(struct lexer *l)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    char c = l->s[l->at];
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(two) && n == 0; i++)
        if (l->at + 2 <= l->n && memcmp(l->s + l->at, two[i], 2) == 0)
            n = 2;
    if (n == 0 && c != '\0' && strchr("+-/*%~[](){}><=.:|,;", c))
        n = 1;
    if (n == 0)
        jparse_fail(l->p, ERR_FORMAT, l->line, "unexpected character '%c'", c >= 32 && c < 127 ? c : '?');
    if (c == '(' || c == '[' || c == '{') {
        if (l->n_open == sizeof l->open)
            jparse_fail(l->p, ERR_LIMIT, l->line, "brackets are nested deeper than %d", JINJA_MAX_PARSE);
        l->open[l->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (l->n_open == 0 || l->open[l->n_open - 1] != c)
            jparse_fail(l->p, ERR_FORMAT, l->line, "unexpected '%c'", c);
        l->n_open--;
    }
    push(l, TOK_OP, l->s + l->at, n);
    l->at += n;
}

/* True if the tag ended. */
static bool lex_end(struct lexer *l, char second)
{
    char sign = sign_at(l, l->at);
    size_t close = l->at + (sign != '\0');
    if (sign == '+' && second == '}')
        return false; /* a variable has no "+" at its end */
    if (close + 2 > l->n || l->s[close] != second || l->s[close + 1] != '}')
        return false;
    push(l, second == '%' ? TOK_BLOCK_END : TOK_VAR_END, l->s + close, 2);
    advance(l, after_end(l, close + 2, sign, second == '%'));
    return true;
}

static void lex_tag(struct lexer *l)
{
    char second = l->s[l->at + 1] == '%' ? '%' : '}';
    uint32_t line = l->line;
    push(l, second == '%' ? TOK_BLOCK_BEGIN : TOK_VAR_BEGIN, l->s + l->at, 2);
    l->at += 2 + (sign_at(l, l->at + 2) != '\0');
    l->n_open = 0;
    for (;;) {
        size_t white = spaces(l->s, l->n, l->at);
        count_lines(l, l->at, l->at + white);
        l->at += white;
        if (l->at >= l->n)
            jparse_fail(l->p, ERR_FORMAT, line, "a tag has no end");
        char c = l->s[l->at];
        if (l->n_open == 0 && lex_end(l, second))
            return;
        if (c >= '0' && c <= '9') {
            lex_number(l);
        } else if (c == '"' || c == '\'') {
            lex_string(l);
        } else if (is_name_byte(l, l->at)) {
            size_t end = l->at;
            while (is_name_byte(l, end))
                end++;
            push(l, TOK_NAME, l->s + l->at, end - l->at);
            l->at = end;
        } else {
            lex_operator(l);
        }
    }
}

/* ---- the whole ---- */

/* \r\n and \r become \n; one newline at the end goes. */
static void normalize_newlines(struct lexer *l)
{
    char *copy = jparse_alloc(l->p, l->p->n + 1, 1);
    size_t n = 0;
    for (size_t i = 0; i < l->p->n; i++) {
        char c = l->p->source[i];
        if (c == '\r') {
            c = '\n';
            if (i + 1 < l->p->n && l->p->source[i + 1] == '\n')
                i++;
        }
        copy[n++] = c;
    }
    l->s = copy;
    l->n = n > 0 && copy[n - 1] == '\n' ? n - 1 : n;
}

void jinja_lex(struct jparser *p)
{
    struct lexer l = {.p = p, .line = 1, .line_starting = true};
    if (!utf8_valid(p->source, p->n))
        jparse_fail(p, ERR_FORMAT, 1, "the template is not UTF-8");
    normalize_newlines(&l);
    while (l.at < l.n) {
        size_t hit = l.at;
        while (hit + 1 < l.n &&
               !(l.s[hit] == '{' && (l.s[hit + 1] == '{' || l.s[hit + 1] == '%' || l.s[hit + 1] == '#')))
            hit++;
        if (hit + 1 >= l.n) {
            push(&l, TOK_DATA, l.s + l.at, l.n - l.at);
            break;
        }
        push_text(&l, l.at, hit, sign_at(&l, hit + 2), l.s[hit + 1] != '{');
        l.at = hit;
        if (l.s[hit + 1] == '#')
            skip_comment(&l);
        else if (l.s[hit + 1] == '{' || !skip_raw(&l))
            lex_tag(&l);
    }
    push(&l, TOK_EOF, "", 0);
}
