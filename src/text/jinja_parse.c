/* SPDX-License-Identifier: Apache-2.0
 *
 * Statements of templates, and the template itself: opened once, immutable afterwards, any number of threads
 * may render it. Refuses, by name, what chat templates have no use for (inheritance, import, include) and
 * trees that are too deep to be walked on a thread's stack.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_impl.h"

static const struct jnode *parse_body(struct jparser *p, const char *const *ends, size_t n_ends);

/* ---- tools of the parser ---- */

void jparse_fail(struct jparser *p, int code, uint32_t line, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    text[utf8_complete_prefix(text, strlen(text))] = '\0';
    p->rc = err_set(p->e, code, "template line %u: %s", line, text);
    longjmp(p->escape, 1);
}

void *jparse_alloc(struct jparser *p, size_t n, size_t element_bytes)
{
    void *v = arena_alloc_n(&p->t->arena, n, element_bytes);
    if (v == NULL)
        jparse_fail(p, ERR_LIMIT, 0, "the template needs more than %u bytes", JINJA_MAX_PARSED);
    return v;
}

const struct jstr *jparse_string(struct jparser *p, const char *s, size_t n)
{
    struct jstr *str = jparse_alloc(p, 1, sizeof *str);
    char *copy = jparse_alloc(p, n + 1, 1);
    memcpy(copy, s, n);
    *str = (struct jstr){.s = copy, .n = (uint32_t)n};
    str->chars = jstr_chars(&(struct jstr){.s = copy, .n = (uint32_t)n, .chars = UINT32_MAX});
    return str;
}

uint32_t jparse_id(struct jparser *p, const char *s, size_t n)
{
    struct jinja_template *t = p->t;
    uint32_t id;
    if (strmap_get(&t->ids, s, n, &id))
        return id;
    const struct jstr *name = jparse_string(p, s, n);
    id = (uint32_t)t->n_names;
    if (vec_reserve((void **)&t->names, &t->names_capacity, t->n_names + 1, sizeof *t->names) ||
        strmap_put(&t->ids, name->s, n, id, NULL))
        jparse_fail(p, ERR_NOMEM, 0, "out of memory for the template");
    t->names[t->n_names++] = name;
    return id;
}

struct jnode *jparse_node(struct jparser *p, enum jkind kind)
{
    struct jnode *n = jparse_alloc(p, 1, sizeof *n);
    n->kind = kind;
    n->line = jparse_peek(p)->line;
    return n;
}

const struct jnode *jparse_done(struct jparser *p, struct jnode *n)
{
    const struct jnode *const parts[] = {n->a, n->b, n->c, n->body, n->otherwise};
    uint32_t height = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (parts[i] && parts[i]->height > height)
            height = parts[i]->height;
    for (uint32_t i = 0; i < n->n; i++)
        if (n->items[i]->height > height)
            height = n->items[i]->height;
    n->height = height + 1;
    if (n->height > JINJA_MAX_TREE)
        jparse_fail(p, ERR_LIMIT, n->line, "more than %d operations within each other", JINJA_MAX_TREE);
    return n;
}

void jparse_push(struct jparser *p, struct jnodes *v, const struct jnode *node)
{
    if (v->n == v->capacity) {
        size_t capacity = v->capacity ? 2 * v->capacity : 4;
        const struct jnode **more = jparse_alloc(p, capacity, sizeof *more);
        if (v->n)
            memcpy(more, v->items, v->n * sizeof *more);
        v->items = more;
        v->capacity = capacity;
    }
    v->items[v->n++] = node;
}

const struct jnode *jparse_done_with(struct jparser *p, struct jnode *n, const struct jnodes *items)
{
    n->items = items->items;
    n->n = (uint32_t)items->n;
    return jparse_done(p, n);
}

static bool is_text(const struct jtoken *t, enum jtoken_kind kind, const char *s)
{
    return t->kind == kind && t->n == strlen(s) && memcmp(t->s, s, t->n) == 0;
}

bool jparse_is_op(const struct jparser *p, const char *op)
{
    return is_text(jparse_peek(p), TOK_OP, op);
}

bool jparse_is_name(const struct jparser *p, const char *name)
{
    return is_text(jparse_peek(p), TOK_NAME, name);
}

bool jparse_skip_op(struct jparser *p, const char *op)
{
    bool is = jparse_is_op(p, op);
    p->at += is;
    return is;
}

bool jparse_skip_name(struct jparser *p, const char *name)
{
    bool is = jparse_is_name(p, name);
    p->at += is;
    return is;
}

static _Noreturn void unexpected(struct jparser *p, const char *wanted)
{
    const struct jtoken *t = jparse_peek(p);
    if (t->kind == TOK_EOF)
        jparse_fail(p, ERR_FORMAT, t->line, "the template ends where %s is expected", wanted);
    jparse_fail(p, ERR_FORMAT, t->line, "%s is expected, not \"%.*s\"", wanted, (int)(t->n < 40 ? t->n : 40),
                t->s);
}

void jparse_expect_op(struct jparser *p, const char *op)
{
    if (!jparse_skip_op(p, op))
        unexpected(p, op);
}

const struct jtoken *jparse_expect_name(struct jparser *p)
{
    const struct jtoken *t = jparse_peek(p);
    if (t->kind != TOK_NAME)
        unexpected(p, "a name");
    p->at++;
    return t;
}

static void expect(struct jparser *p, enum jtoken_kind kind, const char *text)
{
    if (jparse_peek(p)->kind != kind)
        unexpected(p, text);
    p->at++;
}

void jparse_enter(struct jparser *p)
{
    if (++p->depth > JINJA_MAX_PARSE)
        jparse_fail(p, ERR_LIMIT, jparse_peek(p)->line, "nested deeper than %d", JINJA_MAX_PARSE);
}

void jparse_leave(struct jparser *p)
{
    p->depth--;
}

/* ---- statements ---- */

/* ":"? "%}" body, up to the tag that is one of ends (its name is the next token then). */
static const struct jnode *parse_block(struct jparser *p, const char *const *ends, size_t n_ends)
{
    jparse_skip_op(p, ":");
    expect(p, TOK_BLOCK_END, "%}");
    const struct jnode *body = parse_body(p, ends, n_ends);
    if (jparse_peek(p)->kind == TOK_EOF)
        jparse_fail(p, ERR_FORMAT, jparse_peek(p)->line, "the template ends where \"%s\" is expected",
                    ends[n_ends - 1]);
    return body;
}

static const struct jnode *parse_until(struct jparser *p, const char *end)
{
    const struct jnode *body = parse_block(p, &end, 1);
    p->at++;
    return body;
}

static void check_target(struct jparser *p, const struct jnode *n)
{
    if (n->kind == N_TUPLE) {
        for (uint32_t i = 0; i < n->n; i++)
            check_target(p, n->items[i]);
    } else if (n->kind != N_NAME && n->kind != N_NSREF) {
        jparse_fail(p, ERR_FORMAT, n->line, "nothing can be assigned to this");
    }
}

static const struct jnode *parse_target(struct jparser *p, bool namespaces, const char *end_name)
{
    const struct jnode *n = jparse_tuple(
        p, (struct jtuple_rules){.simplified = true, .namespaces = namespaces, .end_name = end_name});
    check_target(p, n);
    return n;
}

static const struct jnode *parse_for(struct jparser *p)
{
    static const char *const ends[] = {"else", "endfor"};
    struct jnode *n = jparse_node(p, N_FOR);
    n->a = parse_target(p, false, "in");
    if (!jparse_skip_name(p, "in"))
        unexpected(p, "in");
    n->b = jparse_tuple(p, (struct jtuple_rules){.no_condition = true, .end_name = "recursive"});
    if (jparse_skip_name(p, "if"))
        n->c = jparse_expression(p, true);
    n->recursive = jparse_skip_name(p, "recursive");
    p->loops++;
    n->body = parse_block(p, ends, 2);
    p->loops--;
    if (jparse_skip_name(p, "else"))
        n->otherwise = parse_until(p, "endfor");
    else
        p->at++;
    return jparse_done(p, n);
}

static const struct jnode *parse_if(struct jparser *p)
{
    static const char *const ends[] = {"elif", "else", "endif"};
    struct jnode *n = jparse_node(p, N_IF);
    struct jnodes items = {0};
    do {
        jparse_push(p, &items, jparse_tuple(p, (struct jtuple_rules){.no_condition = true}));
        jparse_push(p, &items, parse_block(p, ends, 3));
    } while (jparse_skip_name(p, "elif"));
    if (jparse_skip_name(p, "else"))
        n->b = parse_until(p, "endif");
    else
        p->at++;
    return jparse_done_with(p, n, &items);
}

static const struct jnode *parse_set(struct jparser *p)
{
    struct jnode *n = jparse_node(p, N_SET);
    n->a = parse_target(p, true, NULL);
    if (jparse_skip_op(p, "=")) {
        n->b = jparse_tuple(p, (struct jtuple_rules){0});
        return jparse_done(p, n);
    }
    n->kind = N_SETBLOCK;
    n->b = jparse_filters(p, NULL, false);
    n->body = parse_until(p, "endset");
    return jparse_done(p, n);
}

static const struct jnode *parse_with(struct jparser *p)
{
    struct jnode *n = jparse_node(p, N_WITH);
    struct jnodes items = {0};
    while (jparse_peek(p)->kind != TOK_BLOCK_END) {
        if (items.n)
            jparse_expect_op(p, ",");
        jparse_push(p, &items, parse_target(p, false, NULL));
        jparse_expect_op(p, "=");
        jparse_push(p, &items, jparse_expression(p, true));
    }
    n->body = parse_until(p, "endwith");
    return jparse_done_with(p, n, &items);
}

static void parse_signature(struct jparser *p, struct jnode *macro)
{
    struct jnodes items = {0};
    jparse_expect_op(p, "(");
    while (!jparse_is_op(p, ")")) {
        if (items.n)
            jparse_expect_op(p, ",");
        struct jnode *n = jparse_node(p, N_KEYWORD);
        const struct jtoken *t = jparse_expect_name(p);
        n->id = jparse_id(p, t->s, t->n);
        n->name = p->t->names[n->id];
        if (jparse_skip_op(p, "="))
            n->a = jparse_expression(p, true);
        else if (items.n && items.items[items.n - 1]->a)
            jparse_fail(p, ERR_FORMAT, t->line, "a parameter without default follows one with a default");
        jparse_push(p, &items, jparse_done(p, n));
    }
    jparse_expect_op(p, ")");
    macro->items = items.items;
    macro->n = (uint32_t)items.n;
}

/* Signature (optional for call blocks) and body. */
static void begin_macro(struct jparser *p, struct jnode *n)
{
    if (p->n_macros == ARRAY_LEN(p->macro))
        jparse_fail(p, ERR_LIMIT, n->line, "more than %zu macros within each other", ARRAY_LEN(p->macro));
    p->macro[p->n_macros++] = n;
}

/* A body of its own: break and continue do not reach the loop outside. */
static const struct jnode *macro_body(struct jparser *p, const char *end)
{
    unsigned loops = p->loops;
    p->loops = 0;
    const struct jnode *body = parse_until(p, end);
    p->loops = loops;
    p->n_macros--;
    return body;
}

static const struct jnode *parse_macro(struct jparser *p)
{
    struct jnode *n = jparse_node(p, N_MACRO);
    const struct jtoken *t = jparse_expect_name(p);
    n->id = jparse_id(p, t->s, t->n);
    begin_macro(p, n);
    parse_signature(p, n);
    n->body = macro_body(p, "endmacro");
    return jparse_done(p, n);
}

static const struct jnode *parse_call_block(struct jparser *p)
{
    struct jnode *n = jparse_node(p, N_CALLBLOCK), *m = jparse_node(p, N_MACRO);
    m->id = p->t->id_caller;
    if (jparse_is_op(p, "("))
        parse_signature(p, m);
    n->a = jparse_expression(p, true);
    if (n->a->kind != N_CALL)
        jparse_fail(p, ERR_FORMAT, n->line, "a call block needs a call");
    begin_macro(p, m);
    m->body = macro_body(p, "endcall");
    n->b = jparse_done(p, m);
    return jparse_done(p, n);
}

static const struct jnode *parse_autoescape(struct jparser *p)
{
    struct jnode *n = jparse_node(p, N_AUTOESCAPE);
    n->a = jparse_expression(p, true);
    n->body = parse_until(p, "endautoescape");
    return jparse_done(p, n);
}

/* {% print a, b %} is {{ a }}{{ b }}. */
static const struct jnode *parse_print_tag(struct jparser *p)
{
    struct jnode *n = jparse_node(p, N_BODY);
    struct jnodes items = {0};
    while (jparse_peek(p)->kind != TOK_BLOCK_END) {
        if (items.n)
            jparse_expect_op(p, ",");
        struct jnode *print = jparse_node(p, N_PRINT);
        print->a = jparse_expression(p, true);
        jparse_push(p, &items, jparse_done(p, print));
    }
    return jparse_done_with(p, n, &items);
}

static const struct jnode *parse_filter_block(struct jparser *p)
{
    struct jnode *n = jparse_node(p, N_FILTERBLOCK);
    n->a = jparse_filters(p, NULL, true);
    n->body = parse_until(p, "endfilter");
    return jparse_done(p, n);
}

/* What the tag marks is trained on; rendering is not concerned. Its names stay inside, as in a call block. */
static const struct jnode *parse_generation(struct jparser *p)
{
    struct jnode *n = jparse_node(p, N_WITH);
    unsigned loops = p->loops;
    p->loops = 0;
    n->body = parse_until(p, "endgeneration");
    p->loops = loops;
    return jparse_done(p, n);
}

static const struct jnode *parse_jump(struct jparser *p, enum jkind kind)
{
    struct jnode *n = jparse_node(p, kind);
    if (p->loops == 0)
        jparse_fail(p, ERR_FORMAT, n->line, "break or continue outside of a loop");
    return jparse_done(p, n);
}

static const struct jnode *parse_break(struct jparser *p)
{
    return parse_jump(p, N_BREAK);
}

static const struct jnode *parse_continue(struct jparser *p)
{
    return parse_jump(p, N_CONTINUE);
}

static const struct jnode *parse_statement(struct jparser *p)
{
    static const struct {
        const char *name;
        const struct jnode *(*parse)(struct jparser *p);
    } statements[] = {
        {"for", parse_for},
        {"if", parse_if},
        {"set", parse_set},
        {"with", parse_with},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"filter", parse_filter_block},
        {"autoescape", parse_autoescape},
        {"print", parse_print_tag},
        {"generation", parse_generation},
        {"break", parse_break},
        {"continue", parse_continue},
    };
    static const char *const refused[] = {"extends", "block", "include", "import", "from"};
    const struct jtoken *t = jparse_expect_name(p);
    for (size_t i = 0; i < ARRAY_LEN(statements); i++)
        if (is_text(t, TOK_NAME, statements[i].name))
            return statements[i].parse(p);
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        if (is_text(t, TOK_NAME, refused[i]))
            jparse_fail(p, ERR_UNSUPPORTED, t->line, "the tag \"%s\" is not implemented", refused[i]);
    jparse_fail(p, ERR_FORMAT, t->line, "unknown tag \"%.*s\"", (int)(t->n < 40 ? t->n : 40), t->s);
}

static const struct jnode *parse_data(struct jparser *p)
{
    struct jnode *n = jparse_node(p, N_DATA);
    const struct jtoken *t = jparse_peek(p);
    n->value = jinja_str(jparse_string(p, t->s, t->n));
    p->at++;
    return jparse_done(p, n);
}

static const struct jnode *parse_variable(struct jparser *p)
{
    struct jnode *n = jparse_node(p, N_PRINT);
    p->at++;
    n->a = jparse_tuple(p, (struct jtuple_rules){0});
    expect(p, TOK_VAR_END, "}}");
    return jparse_done(p, n);
}

/* Up to the end of the template, or to a tag with one of these names, which is the next token then. */
static const struct jnode *parse_body(struct jparser *p, const char *const *ends, size_t n_ends)
{
    struct jnode *n = jparse_node(p, N_BODY);
    struct jnodes items = {0};
    bool done = false;
    jparse_enter(p);
    while (!done && jparse_peek(p)->kind != TOK_EOF) {
        if (jparse_peek(p)->kind == TOK_DATA) {
            jparse_push(p, &items, parse_data(p));
            continue;
        }
        if (jparse_peek(p)->kind == TOK_VAR_BEGIN) {
            jparse_push(p, &items, parse_variable(p));
            continue;
        }
        p->at++; /* "{%" */
        for (size_t i = 0; i < n_ends; i++)
            done = done || jparse_is_name(p, ends[i]);
        if (!done) {
            jparse_push(p, &items, parse_statement(p));
            expect(p, TOK_BLOCK_END, "%}");
        }
    }
    jparse_leave(p);
    return jparse_done_with(p, n, &items);
}

/* ---- opening ---- */

static void parse_template(struct jparser *p)
{
    if (setjmp(p->escape))
        return;
    p->t->id_loop = jparse_id(p, "loop", 4);
    p->t->id_caller = jparse_id(p, "caller", 6);
    p->t->id_varargs = jparse_id(p, "varargs", 7);
    p->t->id_kwargs = jparse_id(p, "kwargs", 6);
    jinja_lex(p);
    p->t->body = parse_body(p, NULL, 0);
}

int jinja_open(struct jinja_template **out, const char *source, size_t n, struct mem *mem, struct err *e)
{
    *out = NULL;
    if (n > JINJA_MAX_SOURCE)
        return err_set(e, ERR_LIMIT, "a template of %zu bytes, more than %u", n, JINJA_MAX_SOURCE);
    struct jinja_template *t = calloc(1, sizeof *t);
    if (t == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the template");
    arena_init(&t->arena, mem, MEM_TEXT);
    t->arena.limit = JINJA_MAX_PARSED;
    struct jparser p = {.t = t, .source = source, .n = n, .e = e};
    parse_template(&p);
    if (p.rc) {
        jinja_close(t);
        return p.rc;
    }
    *out = t;
    return ERR_OK;
}

void jinja_close(struct jinja_template *t)
{
    if (t == NULL)
        return;
    strmap_release(&t->ids);
    free(t->names);
    arena_release(&t->arena);
    free(t);
}

bool jinja_uses(const struct jinja_template *t, const char *name)
{
    uint32_t id;
    return strmap_get(&t->ids, name, strlen(name), &id);
}
