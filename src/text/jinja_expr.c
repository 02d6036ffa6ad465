/* SPDX-License-Identifier: Apache-2.0
 *
 * Expressions of templates: the grammar of jinja2's parser, function by function, so that precedence and odd
 * corners (names that are keywords, tests with one bare argument, "-1|abs") agree with it.
 */
#include <stdlib.h>
#include <string.h>

#include "text/jinja_impl.h"

static const struct jnode *parse_unary(struct jparser *p, bool with_filter);

static struct jnode *node_of(struct jparser *p, enum jkind kind, const struct jnode *a)
{
    struct jnode *n = jparse_node(p, kind);
    n->a = a;
    return n;
}

static const struct jnode *constant(struct jparser *p, struct jval v)
{
    struct jnode *n = jparse_node(p, N_CONST);
    n->value = v;
    return jparse_done(p, n);
}

static bool token_is(const struct jtoken *t, const char *s)
{
    return t->n == strlen(s) && memcmp(t->s, s, t->n) == 0;
}

/* ---- literals ---- */

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

static bool read_digits(const char *s, size_t n, size_t want, uint32_t *out)
{
    uint32_t v = 0;
    if (n < want)
        return false;
    for (size_t i = 0; i < want; i++) {
        int d = hex_value(s[i]);
        if (d < 0)
            return false;
        v = v * 16 + (uint32_t)d;
    }
    *out = v;
    return true;
}

/* One escape at s[0] == '\\', n >= 2. Returns the bytes read; *out gets up to 4 bytes, n_out of them. */
static size_t read_escape(struct jparser *p, const char *s, size_t n, char *out, size_t *n_out)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char *hit = s[1] ? strchr(from, s[1]) : NULL;
    uint32_t c = 0, low;
    size_t used = 2;
    *n_out = 1;
    if (hit) {
        *out = to[hit - from];
        return 2;
    }
    if (s[1] == '\n') {
        *n_out = 0;
        return 2;
    }
    if (s[1] == 'x' || s[1] == 'u' || s[1] == 'U') {
        size_t digits = s[1] == 'x' ? 2 : s[1] == 'u' ? 4 : 8;
        if (!read_digits(s + 2, n - 2, digits, &c))
            jparse_fail(p, ERR_FORMAT, jparse_peek(p)->line, "an escape \\%c needs %zu hexadecimal digits",
                        s[1], digits);
        used += digits;
        if (c >= 0xD800 && c < 0xDC00 && n >= used + 6 && s[used] == '\\' && s[used + 1] == 'u' &&
            read_digits(s + used + 2, n - used - 2, 4, &low) && low >= 0xDC00 && low < 0xE000) {
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
            used += 6;
        }
    } else if (s[1] >= '0' && s[1] <= '7') {
        for (used = 1; used < n && used < 4 && s[used] >= '0' && s[used] <= '7'; used++)
            c = c * 8 + (uint32_t)(s[used] - '0');
    } else if (s[1] == 'N') {
        jparse_fail(p, ERR_UNSUPPORTED, jparse_peek(p)->line, "escapes by name (\\N) are not implemented");
    } else { /* the backslash stays */
        *out = '\\';
        return 1;
    }
    *n_out = utf8_encode(c, out);
    if (*n_out == 0)
        jparse_fail(p, ERR_FORMAT, jparse_peek(p)->line, "an escape names no character");
    return used;
}

static const struct jnode *parse_strings(struct jparser *p)
{
    size_t bytes = 0, n = 0;
    for (size_t i = p->at; p->tokens[i].kind == TOK_STRING; i++)
        bytes += p->tokens[i].n;
    char *text = jparse_alloc(p, bytes + 4, 1);
    for (; jparse_peek(p)->kind == TOK_STRING; p->at++) {
        const struct jtoken *t = jparse_peek(p);
        for (size_t i = 0; i < t->n;) {
            size_t got = 1;
            if (t->s[i] == '\\')
                i += read_escape(p, t->s + i, t->n - i, text + n, &got);
            else
                text[n] = t->s[i++];
            n += got;
        }
    }
    return constant(p, jinja_str(jparse_string(p, text, n)));
}

static const struct jnode *parse_integer(struct jparser *p)
{
    const struct jtoken *t = jparse_peek(p);
    unsigned base = 10;
    size_t i = 0;
    jint v = 0;
    if (t->n > 2 && t->s[0] == '0' && !(t->s[1] >= '0' && t->s[1] <= '9') && t->s[1] != '_') {
        base = (t->s[1] | 32) == 'x' ? 16 : (t->s[1] | 32) == 'o' ? 8 : 2;
        i = 2;
    }
    for (; i < t->n; i++) {
        int d = t->s[i] == '_' ? -1 : hex_value(t->s[i]);
        if (d >= 0 && (__builtin_mul_overflow(v, (jint)base, &v) || __builtin_add_overflow(v, (jint)d, &v)))
            jparse_fail(p, ERR_LIMIT, t->line, "an integer of more than 127 bits");
    }
    p->at++;
    return constant(p, jinja_int(v));
}

static const struct jnode *parse_float(struct jparser *p)
{
    const struct jtoken *t = jparse_peek(p);
    char *copy = jparse_alloc(p, (size_t)t->n + 1, 1);
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        if (t->s[i] != '_')
            copy[n++] = t->s[i];
    p->at++;
    return constant(p, jinja_float(strtod(copy, NULL)));
}

/* ---- primaries ---- */

static const struct jnode *parse_name(struct jparser *p, bool namespaces)
{
    static const struct {
        const char *name;
        int value;
    } constants[] = {{"true", 1}, {"True", 1}, {"false", 0}, {"False", 0}, {"none", -1}, {"None", -1}};
    const struct jtoken *t = jparse_peek(p);
    p->at++;
    for (size_t i = 0; i < ARRAY_LEN(constants); i++)
        if (token_is(t, constants[i].name))
            return constant(p, constants[i].value < 0 ? jinja_none() : jinja_bool(constants[i].value));
    struct jnode *n = jparse_node(p, N_NAME);
    n->id = jparse_id(p, t->s, t->n);
    if (namespaces && jparse_skip_op(p, ".")) {
        const struct jtoken *attr = jparse_expect_name(p);
        n->kind = N_NSREF;
        n->name = jparse_string(p, attr->s, attr->n);
        return jparse_done(p, n);
    }
    for (unsigned i = 0; i < p->n_macros; i++) {
        struct jnode *m = p->macro[i];
        m->uses_caller = m->uses_caller || n->id == p->t->id_caller;
        m->uses_varargs = m->uses_varargs || n->id == p->t->id_varargs;
        m->uses_kwargs = m->uses_kwargs || n->id == p->t->id_kwargs;
    }
    return jparse_done(p, n);
}

/* Behind an opening bracket: expressions (of a dict: pairs) with commas, one of them may trail. */
static const struct jnode *parse_items(struct jparser *p, enum jkind kind, const char *close)
{
    struct jnode *n = jparse_node(p, kind);
    struct jnodes items = {0};
    while (!jparse_is_op(p, close)) {
        if (items.n)
            jparse_expect_op(p, ",");
        if (jparse_is_op(p, close))
            break;
        jparse_push(p, &items, jparse_expression(p, true));
        if (kind == N_DICT) {
            jparse_expect_op(p, ":");
            jparse_push(p, &items, jparse_expression(p, true));
        }
    }
    jparse_expect_op(p, close);
    return jparse_done_with(p, n, &items);
}

static const struct jnode *parse_primary(struct jparser *p, bool namespaces)
{
    const struct jtoken *t = jparse_peek(p);
    switch (t->kind) {
    case TOK_NAME:
        return parse_name(p, namespaces);
    case TOK_STRING:
        return parse_strings(p);
    case TOK_INT:
        return parse_integer(p);
    case TOK_FLOAT:
        return parse_float(p);
    default:
        break;
    }
    if (jparse_skip_op(p, "(")) {
        const struct jnode *n = jparse_tuple(p, (struct jtuple_rules){.parentheses = true});
        jparse_expect_op(p, ")");
        return n;
    }
    if (jparse_skip_op(p, "["))
        return parse_items(p, N_LIST, "]");
    if (jparse_skip_op(p, "{"))
        return parse_items(p, N_DICT, "}");
    jparse_fail(p, ERR_FORMAT, t->line, "unexpected %s%.*s", t->kind == TOK_EOF ? "end of the template" : "",
                (int)(t->n < 40 ? t->n : 40), t->s);
}

static bool tuple_ends(const struct jparser *p, const char *name)
{
    const struct jtoken *t = jparse_peek(p);
    return t->kind == TOK_VAR_END || t->kind == TOK_BLOCK_END || jparse_is_op(p, ")") ||
           (name && jparse_is_name(p, name));
}

const struct jnode *jparse_tuple(struct jparser *p, struct jtuple_rules rules)
{
    struct jnode *n = jparse_node(p, N_TUPLE);
    struct jnodes items = {0};
    bool is_tuple = false;
    jparse_enter(p);
    for (;;) {
        if (items.n)
            jparse_expect_op(p, ",");
        if (tuple_ends(p, rules.end_name))
            break;
        jparse_push(p, &items,
                    rules.simplified ? parse_primary(p, rules.namespaces)
                                     : jparse_expression(p, !rules.no_condition));
        if (!jparse_is_op(p, ","))
            break;
        is_tuple = true;
    }
    jparse_leave(p);
    if (!is_tuple && items.n)
        return items.items[0];
    if (!is_tuple && !rules.parentheses)
        jparse_fail(p, ERR_FORMAT, jparse_peek(p)->line, "an expression is missing");
    return jparse_done_with(p, n, &items);
}

/* ---- postfix ---- */

static const struct jnode *parse_subscribed(struct jparser *p)
{
    const struct jnode *bound[3] = {0};
    struct jnode *n = jparse_node(p, N_SLICE);
    if (!jparse_is_op(p, ":")) {
        bound[0] = jparse_expression(p, true);
        if (!jparse_is_op(p, ":"))
            return bound[0];
    }
    for (int i = 1; i < 3 && jparse_skip_op(p, ":"); i++)
        if (!jparse_is_op(p, ":") && !jparse_is_op(p, "]") && !jparse_is_op(p, ","))
            bound[i] = jparse_expression(p, true);
    n->a = bound[0];
    n->b = bound[1];
    n->c = bound[2];
    return jparse_done(p, n);
}

static const struct jnode *parse_subscript(struct jparser *p, const struct jnode *a)
{
    struct jnode *n = node_of(p, N_ITEM, a);
    if (jparse_skip_op(p, ".")) {
        const struct jtoken *t = jparse_peek(p);
        if (t->kind == TOK_INT) {
            n->b = parse_integer(p);
            return jparse_done(p, n);
        }
        jparse_expect_name(p);
        n->kind = N_ATTR;
        n->name = jparse_string(p, t->s, t->n);
        return jparse_done(p, n);
    }
    struct jnodes items = {0};
    struct jnode *tuple = jparse_node(p, N_TUPLE);
    jparse_expect_op(p, "[");
    while (!jparse_is_op(p, "]")) {
        if (items.n)
            jparse_expect_op(p, ",");
        jparse_push(p, &items, parse_subscribed(p));
    }
    jparse_expect_op(p, "]");
    n->b = items.n == 1 ? items.items[0] : jparse_done_with(p, tuple, &items);
    for (size_t i = 0; items.n > 1 && i < items.n; i++)
        if (items.items[i]->kind == N_SLICE)
            jparse_fail(p, ERR_UNSUPPORTED, n->line, "several slices in one subscript are not implemented");
    return jparse_done(p, n);
}

static void parse_arguments(struct jparser *p, struct jnodes *out)
{
    bool comma = false, keywords = false, star = false, star_star = false;
    uint32_t line = jparse_peek(p)->line;
    jparse_expect_op(p, "(");
    while (!jparse_is_op(p, ")")) {
        if (comma)
            jparse_expect_op(p, ",");
        if (jparse_is_op(p, ")"))
            break;
        const struct jtoken *t = jparse_peek(p), *next = t->kind == TOK_EOF ? t : t + 1;
        struct jnode *n = jparse_node(p, N_STAR);
        bool bad = star_star;
        if (jparse_skip_op(p, "*")) {
            bad = bad || star;
            star = true;
        } else if (jparse_skip_op(p, "**")) {
            n->kind = N_STARSTAR;
            star_star = true;
        } else if (t->kind == TOK_NAME && next->kind == TOK_OP && token_is(next, "=")) {
            n->kind = N_KEYWORD;
            n->name = jparse_string(p, t->s, t->n);
            p->at += 2;
            keywords = true;
        } else {
            bad = bad || star || keywords;
            n = NULL;
        }
        if (bad)
            jparse_fail(p, ERR_FORMAT, line, "arguments of a call are in an order that is not allowed");
        const struct jnode *value = jparse_expression(p, true);
        if (n)
            n->a = value;
        jparse_push(p, out, n ? jparse_done(p, n) : value);
        comma = true;
    }
    jparse_expect_op(p, ")");
}

static const struct jnode *parse_call(struct jparser *p, const struct jnode *a)
{
    struct jnode *n = node_of(p, N_CALL, a);
    struct jnodes items = {0};
    parse_arguments(p, &items);
    return jparse_done_with(p, n, &items);
}

static const struct jnode *parse_postfix(struct jparser *p, const struct jnode *n)
{
    for (;;) {
        if (jparse_is_op(p, ".") || jparse_is_op(p, "["))
            n = parse_subscript(p, n);
        else if (jparse_is_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

const struct jnode *jparse_filters(struct jparser *p, const struct jnode *a, bool inline_first)
{
    while (inline_first || jparse_skip_op(p, "|")) {
        inline_first = false;
        struct jnode *n = node_of(p, N_FILTER, a);
        struct jnodes items = {0};
        const struct jtoken *t = jparse_expect_name(p);
        n->name = jparse_string(p, t->s, t->n);
        n->fn = jinja_find_filter(t->s, t->n);
        if (jparse_is_op(p, "."))
            jparse_fail(p, ERR_UNSUPPORTED, t->line, "there is no filter named %.40s.*", n->name->s);
        if (jparse_is_op(p, "("))
            parse_arguments(p, &items);
        a = jparse_done_with(p, n, &items);
    }
    return a;
}

static const struct jnode *negate(struct jparser *p, const struct jnode *a)
{
    struct jnode *n = node_of(p, N_UNARY, a);
    n->op = OP_NOT;
    return jparse_done(p, n);
}

static const struct jnode *parse_test(struct jparser *p, const struct jnode *a)
{
    struct jnode *n = node_of(p, N_TEST, a);
    struct jnodes items = {0};
    p->at++; /* "is" */
    bool negated = jparse_skip_name(p, "not");
    const struct jtoken *t = jparse_expect_name(p), *next = jparse_peek(p);
    n->name = jparse_string(p, t->s, t->n);
    n->fn = jinja_find_test(t->s, t->n);
    bool argument = (next->kind == TOK_NAME && !jparse_is_name(p, "else") && !jparse_is_name(p, "or") &&
                     !jparse_is_name(p, "and")) ||
                    next->kind == TOK_STRING || next->kind == TOK_INT || next->kind == TOK_FLOAT ||
                    jparse_is_op(p, "[") || jparse_is_op(p, "{");
    if (jparse_is_op(p, "(")) {
        parse_arguments(p, &items);
    } else if (argument) {
        if (jparse_is_name(p, "is"))
            jparse_fail(p, ERR_FORMAT, next->line, "tests cannot be chained with \"is\"");
        jparse_push(p, &items, parse_postfix(p, parse_primary(p, false)));
    }
    const struct jnode *test = jparse_done_with(p, n, &items);
    return negated ? negate(p, test) : test;
}

static const struct jnode *parse_filter_expression(struct jparser *p, const struct jnode *n)
{
    for (;;) {
        if (jparse_is_op(p, "|"))
            n = jparse_filters(p, n, false);
        else if (jparse_is_name(p, "is"))
            n = parse_test(p, n);
        else if (jparse_is_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

/* ---- operators, weakest last ---- */

static const struct jnode *parse_unary(struct jparser *p, bool with_filter)
{
    const struct jnode *n;
    bool minus = jparse_is_op(p, "-"), sign = minus || jparse_is_op(p, "+");
    jparse_enter(p);
    if (sign) {
        struct jnode *u = jparse_node(p, N_UNARY);
        u->op = minus ? OP_NEG : OP_POS;
        p->at++;
        u->a = parse_unary(p, false);
        n = jparse_done(p, u);
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    if (with_filter)
        n = parse_filter_expression(p, n);
    jparse_leave(p);
    return n;
}

struct operator_name {
    const char *text;
    enum jop op;
};

static const struct operator_name *which(const struct jparser *p, const struct operator_name *ops, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (jparse_is_op(p, ops[i].text))
            return &ops[i];
    return NULL;
}

static const struct jnode *binary(struct jparser *p, enum jop op, const struct jnode *a,
                                  const struct jnode *b)
{
    struct jnode *n = node_of(p, N_BINARY, a);
    n->op = op;
    n->b = b;
    return jparse_done(p, n);
}

static const struct jnode *parse_pow(struct jparser *p)
{
    const struct jnode *n = parse_unary(p, true);
    while (jparse_skip_op(p, "**"))
        n = binary(p, OP_POW, n, parse_unary(p, true));
    return n;
}

static const struct jnode *parse_product(struct jparser *p)
{
    static const struct operator_name ops[] = {
        {"*", OP_MUL}, {"/", OP_DIV}, {"//", OP_FLOORDIV}, {"%", OP_MOD}};
    const struct operator_name *o;
    const struct jnode *n = parse_pow(p);
    while ((o = which(p, ops, ARRAY_LEN(ops))) != NULL) {
        p->at++;
        n = binary(p, o->op, n, parse_pow(p));
    }
    return n;
}

static const struct jnode *parse_concat(struct jparser *p)
{
    struct jnodes items = {0};
    const struct jnode *first = parse_product(p);
    if (!jparse_is_op(p, "~"))
        return first;
    struct jnode *n = jparse_node(p, N_CONCAT);
    jparse_push(p, &items, first);
    while (jparse_skip_op(p, "~"))
        jparse_push(p, &items, parse_product(p));
    return jparse_done_with(p, n, &items);
}

static const struct jnode *parse_sum(struct jparser *p)
{
    static const struct operator_name ops[] = {{"+", OP_ADD}, {"-", OP_SUB}};
    const struct operator_name *o;
    const struct jnode *n = parse_concat(p);
    while ((o = which(p, ops, ARRAY_LEN(ops))) != NULL) {
        p->at++;
        n = binary(p, o->op, n, parse_concat(p));
    }
    return n;
}

static bool comparison(struct jparser *p, enum jop *op)
{
    static const struct operator_name ops[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<", OP_LT},
                                               {"<=", OP_LE}, {">", OP_GT},  {">=", OP_GE}};
    const struct operator_name *o = which(p, ops, ARRAY_LEN(ops));
    const struct jtoken *t = jparse_peek(p);
    if (o) {
        *op = o->op;
        p->at++;
        return true;
    }
    if (jparse_skip_name(p, "in")) {
        *op = OP_IN;
        return true;
    }
    if (jparse_is_name(p, "not") && t[1].kind == TOK_NAME && token_is(t + 1, "in")) {
        *op = OP_NOT_IN;
        p->at += 2;
        return true;
    }
    return false;
}

static const struct jnode *parse_compare(struct jparser *p)
{
    struct jnodes items = {0};
    const struct jnode *first = parse_sum(p);
    enum jop op;
    while (comparison(p, &op)) {
        struct jnode *n = jparse_node(p, N_OPERAND);
        n->op = op;
        n->a = parse_sum(p);
        jparse_push(p, &items, jparse_done(p, n));
    }
    return items.n ? jparse_done_with(p, node_of(p, N_COMPARE, first), &items) : first;
}

static const struct jnode *parse_not(struct jparser *p)
{
    if (!jparse_skip_name(p, "not"))
        return parse_compare(p);
    jparse_enter(p);
    const struct jnode *a = parse_not(p);
    jparse_leave(p);
    return negate(p, a);
}

static const struct jnode *parse_and(struct jparser *p)
{
    const struct jnode *n = parse_not(p);
    while (jparse_skip_name(p, "and")) {
        struct jnode *both = node_of(p, N_AND, n);
        both->b = parse_not(p);
        n = jparse_done(p, both);
    }
    return n;
}

static const struct jnode *parse_or(struct jparser *p)
{
    const struct jnode *n = parse_and(p);
    while (jparse_skip_name(p, "or")) {
        struct jnode *either = node_of(p, N_OR, n);
        either->b = parse_and(p);
        n = jparse_done(p, either);
    }
    return n;
}

const struct jnode *jparse_expression(struct jparser *p, bool with_condition)
{
    jparse_enter(p);
    const struct jnode *n = parse_or(p);
    while (with_condition && jparse_skip_name(p, "if")) {
        struct jnode *c = node_of(p, N_COND, n);
        c->b = parse_or(p);
        if (jparse_skip_name(p, "else"))
            c->c = jparse_expression(p, true);
        n = jparse_done(p, c);
    }
    jparse_leave(p);
    return n;
}
