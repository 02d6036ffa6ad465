/* SPDX-License-Identifier: Apache-2.0
 *
 * Regular expressions of tokenizer files, written for Oniguruma (tokenizer.json) or Rust (tiktoken), as
 * patterns that PCRE2 reads the same way. PCRE2 compiles much that it understands otherwise (`&&` in a class
 * is two literals, \p{Han} includes scripts that share its characters, \v is a class): so whatever is not
 * known to mean the same is translated, or refused by name.
 */
#include <ctype.h>
#include <string.h>

#include "text/text_impl.h"

/* White_Space; PCRE2's \s also has U+180E. Ranges, so that a class with it stays one class. */
#define SPACE                                                                                                \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
/* Oniguruma counts six numbers of Latin-1 among the characters of words, though not within a class. */
#define WORD      "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD_ONIG WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define WORD_RUST WORD "\\p{Join_Control}"

struct translator {
    const char *s, *end;
    enum regex_dialect dialect;
    struct strbuf *out;
    const char *why; /* what cannot be translated */
};

/* General categories, two letters each; a one-letter class is all that begin with it. */
static const char categories[] = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCoCnCs";
#define N_CATEGORIES ((sizeof categories - 1) / 2)

static const struct {
    const char *name, *is;
} long_names[] = {
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"privateuse", "Co"},
    {"unassigned", "Cn"},
    {"other", "C"},
    {"digit", "Nd"},
    {"any", "Any"},
    {"alphabetic", "Alphabetic"},
    {"alpha", "Alphabetic"},
    {"uppercase", "Uppercase"},
    {"upper", "Uppercase"},
    {"lowercase", "Lowercase"},
    {"lower", "Lowercase"},
    {"whitespace", "White_Space"},
    {"space", "White_Space"},
    {"emoji", "Emoji"},
    {"extendedpictographic", "Extended_Pictographic"},
    {"ideographic", "Ideographic"},
};

static int refuse(struct translator *t, const char *why)
{
    if (t->why == NULL)
        t->why = why;
    return ERR_UNSUPPORTED;
}

/* The categories that a name of one or two letters means, as bits; 0 if none. */
static uint32_t category_bits(const char *name, size_t n)
{
    uint32_t bits = 0;
    for (size_t i = 0; i < N_CATEGORIES; i++)
        if ((n == 1 || n == 2) && memcmp(categories + 2 * i, name, n) == 0)
            bits |= 1u << i;
    return bits;
}

/* \p{...} at t->s (behind the p). *bits: the categories it means, 0 if it is something else. */
static int property(struct translator *t, bool negated, uint32_t *bits)
{
    char name[48], plain[48];
    size_t n = 0, m = 0;
    *bits = 0;
    if (t->s < t->end && *t->s != '{' && t->dialect == REGEX_RUST) {
        name[n++] = *t->s++; /* \pL */
    } else {
        const char *close = t->s < t->end ? memchr(t->s, '}', (size_t)(t->end - t->s)) : NULL;
        if (t->s == t->end || *t->s != '{' || close == NULL)
            return refuse(t, "\\p without {name}");
        for (t->s++; t->s < close; t->s++) {
            if (n == sizeof name - 1 || (unsigned char)*t->s >= 128)
                return refuse(t, "the name of a property");
            if (*t->s == '^' && n == 0)
                negated = !negated;
            else
                name[n++] = *t->s;
        }
        t->s++;
    }
    name[n] = '\0';
    for (size_t i = 0; i < n; i++) {
        if (name[i] == '=' || name[i] == ':')
            return refuse(t, "\\p{key=value}");
        if (name[i] != ' ' && name[i] != '_' && name[i] != '-')
            plain[m++] = (char)tolower((unsigned char)name[i]);
    }
    plain[m] = '\0';
    const char *is = NULL, *prefix = "";
    char two[3] = {(char)toupper((unsigned char)plain[0]), m > 1 ? plain[1] : '\0', '\0'};
    if ((m == 1 || m == 2) && category_bits(two, m))
        is = two;
    for (size_t i = 0; i < ARRAY_LEN(long_names) && is == NULL; i++)
        if (strcmp(plain, long_names[i].name) == 0)
            is = long_names[i].is;
    if (is == NULL) { /* a script: PCRE2 would read the plain name as its extensions */
        prefix = "sc:";
        is = name;
    } else if (strlen(is) <= 2) {
        *bits = category_bits(is, strlen(is));
    }
    if (n == 0)
        return refuse(t, "\\p{}");
    if (negated && *bits)
        *bits = ~*bits & ((1u << N_CATEGORIES) - 1);
    strbuf_printf(t->out, "\\%c{%s%s}", negated ? 'P' : 'p', prefix, is);
    return ERR_OK;
}

/* A code point written in hexadecimal digits, `least` to `most` of them. */
static int code_point(struct translator *t, unsigned least, unsigned most)
{
    uint32_t c = 0;
    unsigned n = 0;
    bool braces = most == 0;
    for (; t->s < t->end && isxdigit((unsigned char)*t->s) && n < (braces ? 8 : most); n++, t->s++)
        c = c * 16 + (uint32_t)(*t->s <= '9' ? *t->s - '0' : (*t->s | 32) - 'a' + 10);
    if (n < least || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000) ||
        (braces && (t->s == t->end || *t->s++ != '}')))
        return refuse(t, "a code point in hexadecimal");
    if (most == 2 && c > 127 && t->dialect == REGEX_ONIG)
        return refuse(t, "\\x80 and above, a raw byte");
    strbuf_printf(t->out, "\\x{%x}", c);
    return ERR_OK;
}

static const char *word_class(const struct translator *t, bool in_class)
{
    return t->dialect == REGEX_RUST ? WORD_RUST : in_class ? WORD : WORD_ONIG;
}

/* Escapes that mean one character or a class everywhere. */
static int escape_letter(struct translator *t, char c, bool in_class)
{
    static const char *const refused[] = {"\\G", "\\K", "\\X", "\\Q", "\\E", "\\k", "\\g", "\\N",
                                          "\\O", "\\H", "\\C", "\\M", "\\c", "\\y", "\\Y"};
    static const char simple[] = "tnrfae";
    struct strbuf *o = t->out;
    const char *w = word_class(t, in_class);
    if (strchr(simple, c))
        strbuf_printf(o, "\\%c", c);
    else if (c == 'v')
        strbuf_puts(o, "\\x{b}");
    else if (c == 's')
        strbuf_printf(o, in_class ? "%s" : "[%s]", SPACE);
    else if (c == 'S')
        strbuf_printf(o, in_class ? "\\P{White_Space}" : "[^%s]", SPACE);
    else if (c == 'd' || c == 'D')
        strbuf_printf(o, "\\%c{Nd}", c == 'd' ? 'p' : 'P');
    else if (c == 'w')
        strbuf_printf(o, in_class ? "%s" : "[%s]", w);
    else if (c == 'W' && !in_class)
        strbuf_printf(o, "[^%s]", w);
    else if (c == 'h' && t->dialect == REGEX_ONIG)
        strbuf_puts(o, in_class ? "0-9A-Fa-f" : "[0-9A-Fa-f]");
    else if (c == 'b' && in_class)
        strbuf_puts(o, "\\x{8}");
    else if (c == 'b' && !in_class)
        strbuf_printf(o, "(?:(?<=[%s])(?![%s])|(?<![%s])(?=[%s]))", w, w, w, w);
    else if (c == 'B' && !in_class)
        strbuf_printf(o, "(?:(?<=[%s])(?=[%s])|(?<![%s])(?![%s]))", w, w, w, w);
    else if (!in_class && (c == 'A' || c == 'z' || (strchr("ZR", c) && t->dialect == REGEX_ONIG)))
        strbuf_printf(o, "\\%c", c);
    else {
        for (size_t i = 0; i < ARRAY_LEN(refused); i++)
            if (refused[i][1] == c)
                return refuse(t, refused[i]);
        return refuse(t, "an escape of a letter or digit");
    }
    return ERR_OK;
}

/* Behind a backslash. *bits as of property(). */
static int escape(struct translator *t, bool in_class, uint32_t *bits)
{
    *bits = 0;
    if (t->s == t->end)
        return refuse(t, "a backslash at the end");
    unsigned char c = (unsigned char)*t->s++;
    if (c == 'p' || c == 'P')
        return property(t, c == 'P', bits);
    if (c == 'x' && t->s < t->end && *t->s == '{') {
        t->s++;
        return code_point(t, 1, 0);
    }
    if (c == 'x')
        return code_point(t, t->dialect == REGEX_ONIG ? 1 : 2, 2);
    if (c == 'u' && t->s < t->end && *t->s == '{' && t->dialect == REGEX_RUST) {
        t->s++;
        return code_point(t, 1, 0);
    }
    if (c == 'u')
        return code_point(t, 4, 4);
    if (isalnum(c))
        return escape_letter(t, (char)c, in_class);
    strbuf_putc(t->out, '\\');
    if (c >= 128)
        return refuse(t, "an escape of a character beyond ASCII");
    strbuf_putc(t->out, (char)c);
    return ERR_OK;
}

static bool next_is(const struct translator *t, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(t->end - t->s) >= n && memcmp(t->s, what, n) == 0;
}

/* Items of a class up to `]` or `&&`, neither taken. *only: the categories they mean, if they are nothing
 * else; 0 otherwise. */
static int class_items(struct translator *t, uint32_t *only)
{
    uint32_t bits, all = 0;
    bool pure = true, first = true;
    for (; t->s < t->end && !next_is(t, "&&") && (first || *t->s != ']'); first = false) {
        bits = 0;
        if (next_is(t, "--") && t->s[2] != ']' && !first)
            return refuse(t, "-- in a class");
        if (next_is(t, "~~"))
            return refuse(t, "~~ in a class");
        if (*t->s == '[')
            return refuse(t, next_is(t, "[:") ? "[:name:] in a class" : "a class inside a class");
        if (*t->s == '\\') {
            t->s++;
            int rc = escape(t, true, &bits);
            if (rc)
                return rc;
        } else if (*t->s == ']') {
            strbuf_puts(t->out, "\\]");
            t->s++;
        } else {
            strbuf_putc(t->out, *t->s++);
        }
        pure = pure && bits != 0;
        all |= bits;
    }
    *only = pure ? all : 0;
    return t->s == t->end ? refuse(t, "a class without its end") : ERR_OK;
}

/* [X&&[^Y]] with X a union of categories, which partition all characters, is [^(the other categories)Y]. */
static int intersection(struct translator *t, size_t mark, bool negated, uint32_t categories_of_x)
{
    uint32_t only;
    if (negated || categories_of_x == 0 || !next_is(t, "&&[^"))
        return refuse(t, "&& in a class, unless it is [categories&&[^...]]");
    t->s += 4;
    t->out->len = mark;
    strbuf_puts(t->out, "[^");
    for (size_t i = 0; i < N_CATEGORIES; i++)
        if (!(categories_of_x >> i & 1))
            strbuf_printf(t->out, "\\p{%.2s}", categories + 2 * i);
    int rc = class_items(t, &only);
    if (rc == 0 && !next_is(t, "]]"))
        return refuse(t, "&& in a class, unless it is [categories&&[^...]]");
    t->s += 2;
    strbuf_putc(t->out, ']');
    return rc;
}

static int class(struct translator *t)
{
    size_t mark = t->out->len;
    uint32_t only;
    bool negated = t->s < t->end && *t->s == '^';
    strbuf_puts(t->out, negated ? "[^" : "[");
    t->s += negated;
    int rc = class_items(t, &only);
    if (rc)
        return rc;
    if (*t->s == '&')
        return intersection(t, mark, negated, only);
    t->s++;
    strbuf_putc(t->out, ']');
    return ERR_OK;
}

/* Behind "(": its kind. Flags: i everywhere; Oniguruma's m is what others call s. */
static int group(struct translator *t, bool at_start)
{
    static const char *const same[] = {"?:", "?=", "?!", "?>", "?<=", "?<!"};
    strbuf_putc(t->out, '(');
    if (next_is(t, "*"))
        return refuse(t, "(*");
    if (!next_is(t, "?"))
        return ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(same); i++)
        if (next_is(t, same[i])) {
            strbuf_puts(t->out, same[i]);
            t->s += strlen(same[i]);
            return ERR_OK;
        }
    strbuf_putc(t->out, *t->s++);
    for (; t->s < t->end && (isalpha((unsigned char)*t->s) || *t->s == '-'); t->s++) {
        char c = *t->s;
        if (c == 'm' && t->dialect == REGEX_ONIG)
            c = 's';
        else if (c != 'i' && c != '-' && !(c == 's' && t->dialect == REGEX_RUST))
            return refuse(t, "a flag of a group");
        strbuf_putc(t->out, c);
    }
    /* in the middle, Oniguruma takes what follows a flag as one alternative, others do not */
    if (t->s < t->end && (*t->s == ':' || (*t->s == ')' && (at_start || t->dialect == REGEX_RUST)))) {
        strbuf_putc(t->out, *t->s++);
        return ERR_OK;
    }
    return refuse(t, "this kind of group");
}

/* At "{": a repetition, or a literal brace. */
static int repeat(struct translator *t)
{
    const char *p = t->s + 1;
    size_t low = 0, high = 0;
    bool comma = false;
    for (; p < t->end && (isdigit((unsigned char)*p) || (*p == ',' && !comma)); p++) {
        comma = comma || *p == ',';
        if (*p != ',')
            (*(comma ? &high : &low))++;
    }
    if (p == t->end || *p != '}' || low + high == 0) {
        strbuf_puts(t->out, "\\{");
        t->s++;
        return ERR_OK;
    }
    if (low == 0 && t->dialect == REGEX_RUST)
        return refuse(t, "{,n}");
    strbuf_puts(t->out, low ? "{" : "{0");
    strbuf_add(t->out, t->s + 1, (size_t)(p - t->s));
    t->s = p + 1;
    if (t->s < t->end && *t->s == '+' && t->dialect == REGEX_ONIG)
        return refuse(t, "{n,m}+, which repeats a repetition");
    return ERR_OK;
}

int regex_translate(const char *pattern, size_t n, enum regex_dialect dialect, struct strbuf *out,
                    const char **why)
{
    struct translator t = {pattern, pattern + n, dialect, out, NULL};
    bool start = true;
    int rc = ERR_OK;
    while (t.s < t.end && rc == 0) {
        uint32_t bits;
        char c = *t.s;
        if (c == '{') {
            rc = repeat(&t);
        } else {
            t.s++;
            if (c == '\\')
                rc = escape(&t, false, &bits);
            else if (c == '[')
                rc = class(&t);
            else if (c == '(')
                rc = group(&t, start);
            else
                strbuf_putc(out, c);
        }
        start = c == '(' && t.s[-1] == c;
    }
    *why = t.why;
    return rc;
}
