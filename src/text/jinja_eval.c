/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks the tree: expressions to values, statements to text. Owns scopes (for, with, macro, call block and
 * generation open one; if and set do not) and the caps on steps, memory, bytes and nesting. A template that
 * raises, or that the caps stop, gives an error and no text.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_impl.h"

/* ---- leaving early, caps ---- */

void jinja_fail(struct jrun *x, int code, const char *fmt, ...)
{
    char text[800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    text[utf8_complete_prefix(text, strlen(text))] = '\0';
    x->rc = err_set(x->e, code, "template line %u: %s", x->line, text);
    longjmp(x->escape, 1);
}

void jinja_fail_undefined(struct jrun *x, struct jval v)
{
    const struct jstr *name = v.as.s;
    if (v.unsafe)
        jinja_fail(x, ERR_INVALID, "'%.*s' changes its object or is private: templates may not use it",
                   (int)(name->n < 60 ? name->n : 60), name->s);
    if (name)
        jinja_fail(x, ERR_INVALID, "'%.*s' is undefined", (int)(name->n < 60 ? name->n : 60), name->s);
    jinja_fail(x, ERR_INVALID, "an element that does not exist is used");
}

void jinja_spend(struct jrun *x, uint64_t steps)
{
    x->steps += steps;
    if (x->steps > x->max_steps)
        jinja_fail(x, ERR_LIMIT, "the template takes more than %llu steps", (unsigned long long)x->max_steps);
}

void *jinja_alloc(struct jrun *x, size_t n, size_t element_bytes)
{
    uint64_t bytes = 0;
    if (!mul_u64(n, element_bytes, &bytes))
        jinja_fail(x, ERR_LIMIT, "a size overflows");
    jinja_spend(x, bytes / 256); /* memory is also time */
    void *v = arena_alloc(x->arena, bytes);
    if (v == NULL)
        jinja_fail(x, x->arena->held + bytes + (1 << 20) > x->arena->limit ? ERR_LIMIT : ERR_NOMEM,
                   "the template needs more than %llu bytes", (unsigned long long)x->arena->limit);
    return v;
}

void jinja_enter(struct jrun *x)
{
    if (++x->depth > x->max_depth)
        jinja_fail(x, ERR_LIMIT, "nested deeper than %u", x->max_depth);
}

/* ---- scopes ---- */

void jscope_set(struct jrun *x, struct jscope *s, uint32_t id, struct jval v)
{
    jinja_spend(x, s->n / 16);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->vars[i].id == id) {
            s->vars[i].value = v;
            return;
        }
    if (s->n == s->capacity) {
        uint32_t capacity = s->capacity ? 2 * s->capacity : 4;
        struct jvar *more = jinja_alloc(x, capacity, sizeof *more);
        if (s->n)
            memcpy(more, s->vars, s->n * sizeof *more);
        s->vars = more;
        s->capacity = capacity;
    }
    s->vars[s->n++] = (struct jvar){id, v};
}

static struct jval look_up(struct jrun *x, const struct jscope *s, uint32_t id)
{
    const struct jstr *name = x->t->names[id];
    for (; s; jinja_spend(x, s->n / 16), s = s->parent)
        for (uint32_t i = 0; i < s->n; i++)
            if (s->vars[i].id == id)
                return s->vars[i].value;
    const struct jbuiltin *fn = jinja_find_function(name);
    if (fn)
        return (struct jval){.type = J_FUNCTION, .as.fn = fn};
    if (x->o->json_spelling && jstr_is(name, "null"))
        return jinja_none();
    return jinja_undefined(name);
}

static struct jscope *open_scope(struct jrun *x, const struct jscope *parent)
{
    struct jscope *s = jinja_alloc(x, 1, sizeof *s);
    s->parent = parent;
    return s;
}

/* ---- expressions ---- */

static struct jval eval_list(struct jrun *x, const struct jscope *s, const struct jnode *n)
{
    struct jlist *l = jlist_new(x, n->kind == N_TUPLE ? JL_TUPLE : JL_LIST);
    for (uint32_t i = 0; i < n->n; i++)
        jlist_push(x, l, jinja_eval(x, s, n->items[i]));
    return jlist_val(l);
}

static struct jval eval_dict(struct jrun *x, const struct jscope *s, const struct jnode *n)
{
    struct jdict *d = jdict_new(x);
    for (uint32_t i = 0; i + 1 < n->n; i += 2) {
        struct jval key = jinja_eval(x, s, n->items[i]);
        jdict_set(x, d, key, jinja_eval(x, s, n->items[i + 1]));
    }
    return (struct jval){.type = J_DICT, .as.dict = d};
}

static struct jval eval_item(struct jrun *x, const struct jscope *s, const struct jnode *n)
{
    struct jval a = jinja_eval(x, s, n->a), bound[3];
    if (n->b->kind != N_SLICE)
        return jinja_item(x, a, jinja_eval(x, s, n->b));
    const struct jnode *parts[] = {n->b->a, n->b->b, n->b->c};
    for (int i = 0; i < 3; i++)
        bound[i] = parts[i] ? jinja_eval(x, s, parts[i]) : jinja_none();
    return jinja_slice(x, a, bound);
}

static struct jval eval_call(struct jrun *x, const struct jscope *s, const struct jnode *n,
                             struct jval *caller)
{
    struct jcall c = {0};
    struct jval fn = jinja_eval(x, s, n->a);
    jinja_arguments(x, s, n, &c);
    x->line = n->line;
    if (caller) {
        static const struct jstr name = {.s = "caller", .n = 6, .chars = 6};
        const struct jstr **keys = jinja_alloc(x, c.n_keys + 1, sizeof *keys);
        struct jval *values = jinja_alloc(x, c.n_keys + 1, sizeof *values);
        for (uint32_t i = 0; i < c.n_keys; i++) {
            keys[i] = c.keys[i];
            values[i] = c.values[i];
        }
        keys[c.n_keys] = &name;
        values[c.n_keys++] = *caller;
        c.keys = keys;
        c.values = values;
    }
    return jinja_call(x, fn, &c);
}

static struct jval eval_filter(struct jrun *x, const struct jscope *s, const struct jnode *n,
                               struct jval text)
{
    struct jcall c = {0};
    bool block = n->a == NULL || (n->a->kind == N_FILTER && text.type == J_STRING);
    c.self = !block ? jinja_eval(x, s, n->a) : n->a ? eval_filter(x, s, n->a, text) : text;
    if (n->fn == NULL)
        jinja_fail(x, ERR_UNSUPPORTED, "no filter named '%.60s'", n->name->s);
    jinja_arguments(x, s, n, &c);
    x->line = n->line;
    return jinja_invoke(x, n->fn, &c);
}

static struct jval eval_test(struct jrun *x, const struct jscope *s, const struct jnode *n)
{
    struct jcall c = {.self = jinja_eval(x, s, n->a)};
    if (n->fn == NULL)
        jinja_fail(x, ERR_UNSUPPORTED, "no test named '%.60s'", n->name->s);
    jinja_arguments(x, s, n, &c);
    return jinja_invoke(x, n->fn, &c);
}

static struct jval eval_concat(struct jrun *x, const struct jscope *s, const struct jnode *n)
{
    struct jbuf b = {.x = x};
    for (uint32_t i = 0; i < n->n; i++)
        jinja_print(&b, jinja_eval(x, s, n->items[i]));
    return jbuf_val(&b);
}

static bool compare(struct jrun *x, enum jop op, struct jval a, struct jval b)
{
    if (op == OP_EQ || op == OP_NE)
        return jinja_equal(x, a, b) == (op == OP_EQ);
    if (op == OP_IN || op == OP_NOT_IN)
        return jinja_contains(x, a, b) == (op == OP_IN);
    int order = jinja_order(x, a, b);
    if (order == 2)
        return false;
    return op == OP_LT ? order < 0 : op == OP_LE ? order <= 0 : op == OP_GT ? order > 0 : order >= 0;
}

static struct jval eval_compare(struct jrun *x, const struct jscope *s, const struct jnode *n)
{
    struct jval a = jinja_eval(x, s, n->a);
    for (uint32_t i = 0; i < n->n; i++) {
        struct jval b = jinja_eval(x, s, n->items[i]->a);
        if (!compare(x, n->items[i]->op, a, b))
            return jinja_bool(false);
        a = b;
    }
    return jinja_bool(true);
}

static struct jval eval_logic(struct jrun *x, const struct jscope *s, const struct jnode *n)
{
    struct jval a = jinja_eval(x, s, n->a);
    return jinja_truth(a) == (n->kind == N_OR) ? a : jinja_eval(x, s, n->b);
}

static struct jval eval_condition(struct jrun *x, const struct jscope *s, const struct jnode *n)
{
    if (jinja_truth(jinja_eval(x, s, n->b)))
        return jinja_eval(x, s, n->a);
    return n->c ? jinja_eval(x, s, n->c) : jinja_undefined(NULL);
}

static struct jval eval_binary(struct jrun *x, const struct jscope *s, const struct jnode *n)
{
    struct jval a = jinja_eval(x, s, n->a), b = jinja_eval(x, s, n->b);
    x->line = n->line;
    return jinja_binary(x, n->op, a, b);
}

static struct jval eval_kind(struct jrun *x, const struct jscope *s, const struct jnode *n)
{
    switch (n->kind) {
    case N_LIST:
    case N_TUPLE:
        return eval_list(x, s, n);
    case N_DICT:
        return eval_dict(x, s, n);
    case N_ITEM:
        return eval_item(x, s, n);
    case N_CALL:
        return eval_call(x, s, n, NULL);
    case N_FILTER:
        return eval_filter(x, s, n, jinja_none());
    case N_TEST:
        return eval_test(x, s, n);
    case N_UNARY:
        return jinja_unary(x, n->op, jinja_eval(x, s, n->a));
    case N_BINARY:
        return eval_binary(x, s, n);
    case N_AND:
    case N_OR:
        return eval_logic(x, s, n);
    case N_CONCAT:
        return eval_concat(x, s, n);
    case N_COMPARE:
        return eval_compare(x, s, n);
    case N_COND:
        return eval_condition(x, s, n);
    default:
        BUG("a node of kind %d is no expression", (int)n->kind);
    }
}

struct jval jinja_eval(struct jrun *x, const struct jscope *s, const struct jnode *n)
{
    struct jval v;
    jinja_spend(x, 1);
    if (n->kind == N_CONST)
        return n->value;
    if (n->kind == N_NAME)
        return look_up(x, s, n->id);
    jinja_enter(x);
    x->line = n->line;
    v = n->kind == N_ATTR ? jinja_attr(x, jinja_eval(x, s, n->a), n->name) : eval_kind(x, s, n);
    jinja_leave(x);
    return v;
}

/* ---- statements ---- */

static void assign(struct jrun *x, struct jscope *s, const struct jnode *target, struct jval v)
{
    if (target->kind == N_NAME) {
        jscope_set(x, s, target->id, v);
    } else if (target->kind == N_NSREF) {
        struct jval ns = look_up(x, s, target->id);
        if (ns.type != J_NAMESPACE)
            jinja_fail(x, ERR_INVALID, "cannot assign attribute on non-namespace object");
        jdict_set(x, ns.as.dict, jinja_str(target->name), v);
    } else {
        const struct jlist *l = jinja_iterate(x, v);
        if (v.type == J_UNDEFINED)
            jinja_fail_undefined(x, v);
        if (l->n != target->n)
            jinja_fail(x, ERR_INVALID, "%u values to unpack, expected %u", l->n, target->n);
        for (uint32_t i = 0; i < l->n; i++)
            assign(x, s, target->items[i], l->items[i]);
    }
}

/* The elements that pass the loop's own condition. */
static const struct jlist *loop_items(struct jrun *x, const struct jscope *s, const struct jnode *n,
                                      struct jval v)
{
    const struct jlist *all = jinja_iterate(x, v);
    if (n->c == NULL)
        return all;
    struct jlist *kept = jlist_new(x, JL_LIST);
    for (uint32_t i = 0; i < all->n; i++) {
        struct jscope *scope = open_scope(x, s);
        assign(x, scope, n->a, all->items[i]);
        if (jinja_truth(jinja_eval(x, scope, n->c)))
            jlist_push(x, kept, all->items[i]);
    }
    return kept;
}

static enum jflow run_for(struct jrun *x, const struct jscope *s, const struct jnode *n, struct jval items,
                          uint32_t depth, struct jbuf *out)
{
    struct jloop *loop = jinja_alloc(x, 1, sizeof *loop);
    loop->node = n;
    loop->scope = s;
    loop->depth = depth;
    loop->items = loop_items(x, s, n, items);
    if (loop->items->n == 0)
        return n->otherwise ? jinja_exec(x, open_scope(x, s), n->otherwise, out) : FLOW_NEXT;
    for (uint32_t i = 0; i < loop->items->n; i++) {
        struct jscope *scope = open_scope(x, s);
        loop->at = i;
        jscope_set(x, scope, x->t->id_loop, (struct jval){.type = J_LOOP, .as.loop = loop});
        assign(x, scope, n->a, loop->items->items[i]);
        if (jinja_exec(x, scope, n->body, out) == FLOW_BREAK)
            break;
    }
    return FLOW_NEXT;
}

struct jval jinja_run_loop(struct jrun *x, const struct jloop *outer, struct jval items)
{
    struct jbuf out = {.x = x};
    run_for(x, outer->scope, outer->node, items, outer->depth + 1, &out);
    return jbuf_val(&out);
}

static enum jflow exec_if(struct jrun *x, struct jscope *s, const struct jnode *n, struct jbuf *out)
{
    for (uint32_t i = 0; i + 1 < n->n; i += 2)
        if (jinja_truth(jinja_eval(x, s, n->items[i])))
            return jinja_exec(x, s, n->items[i + 1], out);
    return n->b ? jinja_exec(x, s, n->b, out) : FLOW_NEXT;
}

static enum jflow exec_set_block(struct jrun *x, struct jscope *s, const struct jnode *n)
{
    struct jbuf text = {.x = x};
    enum jflow flow = jinja_exec(x, open_scope(x, s), n->body, &text);
    if (flow != FLOW_NEXT)
        return flow;
    struct jval v = jbuf_val(&text);
    assign(x, s, n->a, n->b ? eval_filter(x, s, n->b, v) : v);
    return FLOW_NEXT;
}

static enum jflow exec_with(struct jrun *x, struct jscope *s, const struct jnode *n, struct jbuf *out)
{
    struct jscope *scope = open_scope(x, s);
    for (uint32_t i = 0; i + 1 < n->n; i += 2)
        assign(x, scope, n->items[i], jinja_eval(x, s, n->items[i + 1]));
    return jinja_exec(x, scope, n->body, out);
}

static struct jval make_macro(struct jrun *x, const struct jscope *s, const struct jnode *n)
{
    struct jmacro *m = jinja_alloc(x, 1, sizeof *m);
    *m = (struct jmacro){n, s};
    return (struct jval){.type = J_MACRO, .as.macro = m};
}

static enum jflow exec_filter_block(struct jrun *x, struct jscope *s, const struct jnode *n, struct jbuf *out)
{
    struct jbuf text = {.x = x};
    enum jflow flow = jinja_exec(x, open_scope(x, s), n->body, &text);
    if (flow == FLOW_NEXT)
        jinja_print(out, eval_filter(x, s, n->a, jbuf_val(&text)));
    return flow;
}

/* Values marked as safe are not told from others, so what would have to be escaped is not known. */
static enum jflow exec_autoescape(struct jrun *x, struct jscope *s, const struct jnode *n, struct jbuf *out)
{
    if (jinja_truth(jinja_eval(x, s, n->a)))
        jinja_fail(x, ERR_UNSUPPORTED, "autoescape is not implemented (false is)");
    return jinja_exec(x, open_scope(x, s), n->body, out);
}

static enum jflow exec_body(struct jrun *x, struct jscope *s, const struct jnode *n, struct jbuf *out)
{
    enum jflow flow = FLOW_NEXT;
    for (uint32_t i = 0; i < n->n && flow == FLOW_NEXT; i++)
        flow = jinja_exec(x, s, n->items[i], out);
    return flow;
}

static enum jflow exec_kind(struct jrun *x, struct jscope *s, const struct jnode *n, struct jbuf *out)
{
    struct jval v;
    switch (n->kind) {
    case N_BODY:
        return exec_body(x, s, n, out);
    case N_PRINT:
        jinja_print(out, jinja_eval(x, s, n->a));
        return FLOW_NEXT;
    case N_IF:
        return exec_if(x, s, n, out);
    case N_FOR:
        return run_for(x, s, n, jinja_eval(x, s, n->b), 0, out);
    case N_SET:
        assign(x, s, n->a, jinja_eval(x, s, n->b));
        return FLOW_NEXT;
    case N_SETBLOCK:
        return exec_set_block(x, s, n);
    case N_WITH:
        return exec_with(x, s, n, out);
    case N_MACRO:
        jscope_set(x, s, n->id, make_macro(x, s, n));
        return FLOW_NEXT;
    case N_CALLBLOCK:
        v = make_macro(x, s, n->b);
        jinja_print(out, eval_call(x, s, n->a, &v));
        return FLOW_NEXT;
    case N_AUTOESCAPE:
        return exec_autoescape(x, s, n, out);
    case N_FILTERBLOCK:
        return exec_filter_block(x, s, n, out);
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    default:
        BUG("a node of kind %d is no statement", (int)n->kind);
    }
}

enum jflow jinja_exec(struct jrun *x, struct jscope *s, const struct jnode *n, struct jbuf *out)
{
    jinja_spend(x, 1);
    if (n->kind == N_DATA) {
        jbuf_add_str(out, n->value.as.s, 0, n->value.as.s->n);
        return FLOW_NEXT;
    }
    jinja_enter(x);
    x->line = n->line;
    enum jflow flow = exec_kind(x, s, n, out);
    jinja_leave(x);
    return flow;
}

/* ---- rendering ---- */

static void set_variables(struct jrun *x, const struct jinja_variable *variables, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct jinja_variable *v = &variables[i];
        uint32_t id;
        if (!strmap_get(&x->t->ids, v->name, strlen(v->name), &id))
            continue; /* the template does not mention it */
        if (v->value) {
            jscope_set(x, &x->root, id, jinja_from_json(x, v->value, v->marked));
        } else {
            struct jbuf b = {.x = x};
            jbuf_add(&b, v->text, strlen(v->text), v->marked);
            jscope_set(x, &x->root, id, jbuf_val(&b));
        }
    }
}

static void run(struct jrun *x, const struct jinja_variable *variables, size_t n, struct jbuf *out)
{
    if (setjmp(x->escape))
        return;
    set_variables(x, variables, n);
    /* what the template sets shadows the variables, as in the reference */
    jinja_exec(x, open_scope(x, &x->root), x->t->body, out);
}

static int copy_out(const struct jbuf *b, struct jinja_output *out, struct err *e)
{
    strbuf_add(&out->text, b->s, b->n);
    for (size_t i = 0; i < b->n;) {
        size_t from = i;
        bool marked = b->marks ? b->marks[i] : b->marked;
        while (i < b->n && (b->marks ? b->marks[i] : b->marked) == marked)
            i++;
        if (!marked)
            continue;
        if (vec_reserve((void **)&out->marked, &out->capacity, out->n_marked + 1, sizeof *out->marked))
            return err_set(e, ERR_NOMEM, "out of memory for the prompt");
        out->marked[out->n_marked++] = (struct text_range){from, i};
    }
    return strbuf_failed(&out->text) ? err_set(e, ERR_NOMEM, "out of memory for the prompt") : ERR_OK;
}

int jinja_render(const struct jinja_template *t, const struct jinja_variable *variables, size_t n,
                 const struct jinja_options *o, struct jinja_output *out, struct err *e)
{
    static const struct jinja_options defaults = {0};
    struct arena arena;
    o = o ? o : &defaults;
    arena_init(&arena, t->arena.mem, MEM_REQUEST);
    arena.limit = o->max_memory ? o->max_memory : 256u << 20;
    struct jrun x = {.t = t, .o = o, .arena = &arena, .e = e, .line = 1};
    x.max_steps = o->max_steps ? o->max_steps : 20000000;
    x.max_output = o->max_output ? o->max_output : 16u << 20;
    x.max_depth = o->max_depth ? o->max_depth : 600;
    struct jbuf text = {.x = &x};
    *out = (struct jinja_output){0};
    run(&x, variables, n, &text);
    int rc = x.rc ? x.rc : copy_out(&text, out, e);
    arena_release(&arena);
    if (rc)
        jinja_output_release(out);
    return rc;
}

void jinja_output_release(struct jinja_output *out)
{
    strbuf_release(&out->text);
    free(out->marked);
    *out = (struct jinja_output){0};
}
