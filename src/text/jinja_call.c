/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls: arguments of a call site to values, values to the parameters of builtins and macros, the global
 * functions, the methods of dicts and lists. Refuses what jinja2's immutable sandbox refuses: methods that
 * change their object.
 */
#include <string.h>
#include <time.h>

#include "base/thread.h"
#include "text/jinja_impl.h"

/* ---- arguments ---- */

static void add_keyword(struct jrun *x, struct jcall *c, uint32_t *capacity, const struct jstr *key,
                        struct jval v)
{
    for (uint32_t i = 0; i < c->n_keys; i++)
        if (jstr_equal(c->keys[i], key))
            jinja_fail(x, ERR_INVALID, "got multiple values for keyword argument '%.60s'", key->s);
    if (c->n_keys == *capacity) {
        uint32_t more = *capacity ? 2 * *capacity : 4;
        const struct jstr **keys = jinja_alloc(x, more, sizeof *keys);
        struct jval *values = jinja_alloc(x, more, sizeof *values);
        if (c->n_keys) {
            memcpy(keys, c->keys, c->n_keys * sizeof *keys);
            memcpy(values, c->values, c->n_keys * sizeof *values);
        }
        c->keys = keys;
        c->values = values;
        *capacity = more;
    }
    c->keys[c->n_keys] = key;
    c->values[c->n_keys++] = v;
}

static void add_all_keywords(struct jrun *x, struct jcall *c, uint32_t *capacity, struct jval v)
{
    if (v.type == J_UNDEFINED)
        jinja_fail_undefined(x, v);
    if (v.type != J_DICT)
        jinja_fail(x, ERR_INVALID, "argument after ** must be a mapping, not %s", jinja_type_name(v));
    if (v.as.dict->n > 256)
        jinja_fail(x, ERR_LIMIT, "%u keyword arguments, more than 256", v.as.dict->n);
    for (uint32_t i = 0; i < v.as.dict->n; i++)
        add_keyword(x, c, capacity, jinja_as_str(x, v.as.dict->entries[i].key, "a keyword"),
                    v.as.dict->entries[i].value);
}

void jinja_arguments(struct jrun *x, const struct jscope *s, const struct jnode *n, struct jcall *c)
{
    struct jlist args = {0};
    uint32_t capacity = 0;
    for (uint32_t i = 0; i < n->n; i++) {
        const struct jnode *arg = n->items[i];
        bool inner = arg->kind == N_KEYWORD || arg->kind == N_STAR || arg->kind == N_STARSTAR;
        struct jval v = jinja_eval(x, s, inner ? arg->a : arg);
        if (arg->kind == N_KEYWORD) {
            add_keyword(x, c, &capacity, arg->name, v);
        } else if (arg->kind == N_STARSTAR) {
            add_all_keywords(x, c, &capacity, v);
        } else if (arg->kind == N_STAR) {
            const struct jlist *l = jinja_iterate(x, v);
            jinja_spend(x, l->n);
            for (uint32_t k = 0; k < l->n; k++)
                jlist_push(x, &args, l->items[k]);
        } else {
            jlist_push(x, &args, v);
        }
    }
    c->args = args.items;
    c->n = args.n;
}

/* Index of a name in "a,b,c", or -1. */
static int param_index(const char *params, const struct jstr *name)
{
    int index = 0;
    for (const char *s = params; *s; index++) {
        size_t n = strcspn(s, ",");
        if (n == name->n && memcmp(s, name->s, n) == 0)
            return index;
        s += n + (s[n] == ',');
    }
    return -1;
}

struct jval jinja_invoke(struct jrun *x, const struct jbuiltin *fn, struct jcall *c)
{
    unsigned count = fn->params[0] != '\0';
    jinja_spend(x, 1);
    if (fn->params[0] == '*')
        return fn->fn(x, c);
    for (const char *s = fn->params; *s; s++)
        count += *s == ',';
    if (c->n > count)
        jinja_fail(x, ERR_INVALID, "%s() takes at most %u arguments, %u given", fn->name, count, c->n);
    for (uint32_t i = 0; i < c->n; i++) {
        c->arg[i] = c->args[i];
        c->has[i] = true;
    }
    for (uint32_t i = 0; i < c->n_keys; i++) {
        int at = param_index(fn->params, c->keys[i]);
        if (at < 0 || at >= JINJA_MAX_PARAMS)
            jinja_fail(x, ERR_INVALID, "%s() got an unexpected keyword argument '%.60s'", fn->name,
                       c->keys[i]->s);
        if (c->has[at])
            jinja_fail(x, ERR_INVALID, "%s() got multiple values for argument '%.60s'", fn->name,
                       c->keys[i]->s);
        c->arg[at] = c->values[i];
        c->has[at] = true;
    }
    for (unsigned i = 0; i < fn->required; i++)
        if (!c->has[i])
            jinja_fail(x, ERR_INVALID, "%s() misses an argument", fn->name);
    return fn->fn(x, c);
}

jint jcall_int(struct jrun *x, const struct jcall *c, unsigned i, jint fallback)
{
    return c->has[i] && c->arg[i].type != J_NONE ? jinja_as_int(x, c->arg[i], "an argument") : fallback;
}

bool jcall_bool(const struct jcall *c, unsigned i, bool fallback)
{
    return c->has[i] ? jinja_truth(c->arg[i]) : fallback;
}

const struct jstr *jcall_str(struct jrun *x, const struct jcall *c, unsigned i)
{
    return jinja_as_str(x, c->arg[i], "an argument");
}

/* ---- macros ---- */

static bool take_keyword(struct jcall *c, bool *used, const struct jstr *name, struct jval *out)
{
    for (uint32_t i = 0; i < c->n_keys; i++)
        if (!used[i] && jstr_equal(c->keys[i], name)) {
            used[i] = true;
            *out = c->values[i];
            return true;
        }
    return false;
}

/* What is left over goes to varargs and kwargs if the macro mentions them. */
static void bind_rest(struct jrun *x, const struct jnode *m, struct jcall *c, bool *used,
                      struct jscope *scope)
{
    static const struct jstr caller_name = {.s = "caller", .n = 6, .chars = 6};
    struct jval caller = jinja_undefined(&caller_name);
    struct jlist *rest = jlist_new(x, JL_TUPLE);
    struct jdict *keywords = jdict_new(x);
    bool has_param = false;
    for (uint32_t i = 0; i < m->n; i++)
        has_param = has_param || m->items[i]->id == x->t->id_caller;
    if (!has_param && m->uses_caller) {
        take_keyword(c, used, &caller_name, &caller);
        jscope_set(x, scope, x->t->id_caller, caller);
    }
    for (uint32_t i = m->n; i < c->n; i++)
        jlist_push(x, rest, c->args[i]);
    for (uint32_t i = 0; i < c->n_keys; i++)
        if (!used[i])
            jdict_set(x, keywords, jinja_str(c->keys[i]), c->values[i]);
    const char *name = x->t->names[m->id]->s;
    if (rest->n && !m->uses_varargs)
        jinja_fail(x, ERR_INVALID, "macro '%.60s' takes not more than %u arguments", name, m->n);
    if (keywords->n && !m->uses_kwargs)
        jinja_fail(x, ERR_INVALID, "macro '%.60s' takes no keyword argument '%.60s'", name,
                   keywords->entries[0].key.as.s->s);
    if (m->uses_varargs)
        jscope_set(x, scope, x->t->id_varargs, jlist_val(rest));
    if (m->uses_kwargs)
        jscope_set(x, scope, x->t->id_kwargs, (struct jval){.type = J_DICT, .as.dict = keywords});
}

static struct jval call_macro(struct jrun *x, const struct jmacro *macro, struct jcall *c)
{
    const struct jnode *m = macro->node;
    struct jscope *scope = jinja_alloc(x, 1, sizeof *scope);
    bool *used = jinja_alloc(x, c->n_keys, sizeof *used), *given = jinja_alloc(x, m->n, sizeof *given);
    struct jval *values = jinja_alloc(x, m->n, sizeof *values);
    struct jbuf out = {.x = x};
    scope->parent = macro->scope;
    for (uint32_t i = 0; i < m->n; i++) {
        values[i] = i < c->n ? c->args[i] : jinja_undefined(m->items[i]->name);
        given[i] = i < c->n || take_keyword(c, used, m->items[i]->name, &values[i]);
    }
    bind_rest(x, m, c, used, scope);
    for (uint32_t i = 0; i < m->n; i++) /* a default may use the parameters before it */
        jscope_set(x, scope, m->items[i]->id,
                   given[i] || !m->items[i]->a ? values[i] : jinja_eval(x, scope, m->items[i]->a));
    jinja_exec(x, scope, m->body, &out);
    return jbuf_val(&out);
}

/* ---- global functions ---- */

static struct jval fn_range(struct jrun *x, struct jcall *c)
{
    jint from = 0, to = jinja_as_int(x, c->arg[0], "an argument of range"), step = 1;
    if (c->has[1]) {
        from = to;
        to = jinja_as_int(x, c->arg[1], "an argument of range");
    }
    if (c->has[2])
        step = jinja_as_int(x, c->arg[2], "an argument of range");
    const jint edge = (jint)1 << 62;
    if (step == 0)
        jinja_fail(x, ERR_INVALID, "range() step must not be zero");
    if (from > edge || from < -edge || to > edge || to < -edge || step > edge || step < -edge)
        jinja_fail(x, ERR_LIMIT, "a number of range() is too large");
    jint span = step > 0 ? to - from : from - to, size = step > 0 ? step : -step;
    jint n = span > 0 ? (span - 1) / size + 1 : 0;
    if (n > JINJA_MAX_RANGE)
        jinja_fail(x, ERR_LIMIT, "range() of more than %d numbers", JINJA_MAX_RANGE);
    struct jlist *l = jlist_new(x, JL_RANGE);
    l->range[0] = from;
    l->range[1] = to;
    l->range[2] = step;
    jinja_spend(x, (uint64_t)n);
    for (jint i = 0; i < n; i++)
        jlist_push(x, l, jinja_int(from + i * step));
    return jlist_val(l);
}

/* dict(mapping or pairs, **keywords); namespace is made the same way. */
static struct jdict *make_dict(struct jrun *x, struct jcall *c)
{
    struct jdict *d = jdict_new(x);
    if (c->n > 1)
        jinja_fail(x, ERR_INVALID, "dict expected at most 1 argument, got %u", c->n);
    if (c->n == 1 && c->args[0].type == J_UNDEFINED)
        jinja_fail_undefined(x, c->args[0]);
    if (c->n == 1 && c->args[0].type == J_DICT) {
        const struct jdict *from = c->args[0].as.dict;
        jinja_spend(x, from->n);
        for (uint32_t i = 0; i < from->n; i++)
            jdict_set(x, d, from->entries[i].key, from->entries[i].value);
    } else if (c->n == 1) {
        const struct jlist *pairs = jinja_iterate(x, c->args[0]);
        for (uint32_t i = 0; i < pairs->n; i++) {
            const struct jlist *pair = jinja_iterate(x, pairs->items[i]);
            if (pair->n != 2)
                jinja_fail(x, ERR_INVALID, "dict() needs pairs, not %u values", pair->n);
            jdict_set(x, d, pair->items[0], pair->items[1]);
        }
    }
    for (uint32_t i = 0; i < c->n_keys; i++)
        jdict_set(x, d, jinja_str(c->keys[i]), c->values[i]);
    return d;
}

static struct jval fn_dict(struct jrun *x, struct jcall *c)
{
    return (struct jval){.type = J_DICT, .as.dict = make_dict(x, c)};
}

static struct jval fn_namespace(struct jrun *x, struct jcall *c)
{
    return (struct jval){.type = J_NAMESPACE, .as.dict = make_dict(x, c)};
}

static struct jval fn_raise_exception(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = jinja_to_str(x, c->arg[0]);
    jinja_fail(x, ERR_INVALID, "the template refuses: %.*s", (int)(s->n < 600 ? s->n : 600), s->s);
}

/* Letter by letter: a template cannot ask strftime for a width. */
static struct jval fn_strftime_now(struct jrun *x, struct jcall *c)
{
    static const char known[] = "aAbBcdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%";
    struct jbuf b = {.x = x};
    const struct jstr *f = jcall_str(x, c, 0);
    time_t now = (time_t)(x->o->now ? x->o->now : clock_unix_ns() / 1000000000);
    struct tm tm;
    char text[128];
    if (localtime_r(&now, &tm) == NULL)
        jinja_fail(x, ERR_INVALID, "the time cannot be shown");
    for (uint32_t i = 0; i < f->n; i++) {
        char one[4] = "%?";
        bool flag = f->s[i] == '%' && i + 2 < f->n && f->s[i + 1] == '-';
        char letter = f->s[i] == '%' && i + 1 < f->n ? f->s[i + 1 + flag] : '\0';
        if (letter == '\0' || !strchr(known, letter)) {
            jbuf_add_str(&b, f, i, 1);
            continue;
        }
        memcpy(one, flag ? (char[]){'%', '-', letter, '\0'} : (char[]){'%', letter, '\0', '\0'}, 4);
        size_t n = strftime(text, sizeof text, one, &tm);
        jbuf_add(&b, text, n, false);
        i += 1 + flag;
    }
    return jbuf_val(&b);
}

static struct jval make_cycler(struct jrun *x, enum jtype type, const struct jlist *items)
{
    struct jcycler *cycler = jinja_alloc(x, 1, sizeof *cycler);
    cycler->items = items;
    return (struct jval){.type = type, .as.cycler = cycler};
}

static struct jval fn_cycler(struct jrun *x, struct jcall *c)
{
    struct jlist *l = jlist_new(x, JL_LIST);
    for (uint32_t i = 0; i < c->n; i++)
        jlist_push(x, l, c->args[i]);
    if (l->n == 0)
        jinja_fail(x, ERR_INVALID, "cycler() needs at least one item");
    return make_cycler(x, J_CYCLER, l);
}

static struct jval fn_joiner(struct jrun *x, struct jcall *c)
{
    struct jlist *l = jlist_new(x, JL_LIST);
    jlist_push(x, l, c->has[0] ? c->arg[0] : jinja_text(x, ", "));
    return make_cycler(x, J_JOINER, l);
}

static const struct jbuiltin functions[] = {
    {"range", fn_range, "start,stop,step", 1},
    {"dict", fn_dict, "*", 0},
    {"namespace", fn_namespace, "*", 0},
    {"raise_exception", fn_raise_exception, "message", 1},
    {"strftime_now", fn_strftime_now, "format", 1},
    {"cycler", fn_cycler, "*", 0},
    {"joiner", fn_joiner, "sep", 0},
};

static const struct jbuiltin *find(const struct jbuiltin *table, size_t n, const struct jstr *name)
{
    for (size_t i = 0; i < n; i++)
        if (jstr_is(name, table[i].name))
            return &table[i];
    return NULL;
}

const struct jbuiltin *jinja_find_function(const struct jstr *name)
{
    return find(functions, ARRAY_LEN(functions), name);
}

/* ---- methods of dicts, lists, loops, cyclers ---- */

static struct jval view(struct jrun *x, const struct jcall *c, enum jlist_kind kind)
{
    const struct jdict *d = c->self.as.dict;
    struct jlist *l = jlist_new(x, kind);
    jinja_spend(x, d->n);
    for (uint32_t i = 0; i < d->n; i++) {
        const struct jentry *e = &d->entries[i];
        jlist_push(x, l,
                   kind == JL_KEYS     ? e->key
                   : kind == JL_VALUES ? e->value
                                       : jinja_pair(x, e->key, e->value));
    }
    return jlist_val(l);
}

static struct jval dict_keys(struct jrun *x, struct jcall *c)
{
    return view(x, c, JL_KEYS);
}

static struct jval dict_values(struct jrun *x, struct jcall *c)
{
    return view(x, c, JL_VALUES);
}

static struct jval dict_items(struct jrun *x, struct jcall *c)
{
    return view(x, c, JL_ITEMS);
}

static struct jval dict_get(struct jrun *x, struct jcall *c)
{
    const struct jval *v = jdict_get(x, c->self.as.dict, c->arg[0]);
    return v ? *v : c->has[1] ? c->arg[1] : jinja_none();
}

static struct jval dict_copy(struct jrun *x, struct jcall *c)
{
    struct jcall as = {.args = &c->self, .n = 1};
    return fn_dict(x, &as);
}

static struct jval list_index(struct jrun *x, struct jcall *c)
{
    const struct jlist *l = c->self.as.list;
    for (uint32_t i = 0; i < l->n; i++)
        if (jinja_equal(x, l->items[i], c->arg[0]))
            return jinja_int(i);
    jinja_fail(x, ERR_INVALID, "the value is not in the list");
}

static struct jval list_count(struct jrun *x, struct jcall *c)
{
    jint n = 0;
    for (uint32_t i = 0; i < c->self.as.list->n; i++)
        n += jinja_equal(x, c->self.as.list->items[i], c->arg[0]);
    return jinja_int(n);
}

static struct jval list_copy(struct jrun *x, struct jcall *c)
{
    static const struct jval all[3] = {{.type = J_NONE}, {.type = J_NONE}, {.type = J_NONE}};
    return jinja_slice(x, c->self, all);
}

static struct jval loop_cycle(struct jrun *x, struct jcall *c)
{
    if (c->n == 0)
        jinja_fail(x, ERR_INVALID, "no items for cycling given");
    return c->args[c->self.as.loop->at % c->n];
}

static struct jval loop_changed(struct jrun *x, struct jcall *c)
{
    struct jloop *l = c->self.as.loop;
    struct jlist *now = jlist_new(x, JL_TUPLE);
    for (uint32_t i = 0; i < c->n; i++)
        jlist_push(x, now, c->args[i]);
    bool same = l->has_changed && jinja_equal(x, l->changed, jlist_val(now));
    l->changed = jlist_val(now);
    l->has_changed = true;
    return jinja_bool(!same);
}

static struct jval cycler_next(struct jrun *x, struct jcall *c)
{
    (void)x;
    struct jcycler *cycler = c->self.as.cycler;
    struct jval v = cycler->items->items[cycler->at];
    cycler->at = (cycler->at + 1) % cycler->items->n;
    return v;
}

static struct jval cycler_reset(struct jrun *x, struct jcall *c)
{
    (void)x;
    c->self.as.cycler->at = 0;
    return jinja_none();
}

static const struct jbuiltin dict_methods[] = {
    {"keys", dict_keys, "", 0},          {"values", dict_values, "", 0}, {"items", dict_items, "", 0},
    {"get", dict_get, "key,default", 1}, {"copy", dict_copy, "", 0},
};
static const struct jbuiltin list_methods[] = {
    {"index", list_index, "value", 1},
    {"count", list_count, "value", 1},
    {"copy", list_copy, "", 0},
};
static const struct jbuiltin loop_methods[] = {
    {"cycle", loop_cycle, "*", 0},
    {"changed", loop_changed, "*", 0},
};
static const struct jbuiltin cycler_methods[] = {
    {"next", cycler_next, "", 0},
    {"reset", cycler_reset, "", 0},
};

static bool changes(struct jval self, const struct jstr *name)
{
    static const char *const lists[] = {"append", "clear",  "extend",  "insert",
                                        "pop",    "remove", "reverse", "sort"};
    static const char *const dicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
    bool is = name->n > 4 && name->s[0] == '_' && name->s[1] == '_' && name->s[name->n - 1] == '_';
    for (size_t i = 0; self.type == J_LIST && self.as.list->kind == JL_LIST && i < ARRAY_LEN(lists); i++)
        is = is || jstr_is(name, lists[i]);
    for (size_t i = 0; self.type == J_DICT && i < ARRAY_LEN(dicts); i++)
        is = is || jstr_is(name, dicts[i]);
    return is;
}

struct jval jinja_method(struct jrun *x, struct jval self, const struct jstr *name)
{
    const struct jbuiltin *fn = NULL;
    if (self.type == J_STRING)
        fn = jinja_find_string_method(name);
    else if (self.type == J_DICT)
        fn = find(dict_methods, ARRAY_LEN(dict_methods), name);
    else if (self.type == J_LIST && self.as.list->kind <= JL_RANGE)
        fn = find(list_methods, ARRAY_LEN(list_methods) - (self.as.list->kind != JL_LIST), name);
    else if (self.type == J_LOOP)
        fn = find(loop_methods, ARRAY_LEN(loop_methods), name);
    else if (self.type == J_CYCLER)
        fn = find(cycler_methods, ARRAY_LEN(cycler_methods), name);
    if (fn == NULL) {
        struct jval v = jinja_undefined(name);
        v.unsafe = changes(self, name);
        return v;
    }
    struct jmethod *method = jinja_alloc(x, 1, sizeof *method);
    *method = (struct jmethod){fn, self};
    return (struct jval){.type = J_METHOD, .as.method = method};
}

/* ---- the call ---- */

struct jval jinja_call(struct jrun *x, struct jval fn, struct jcall *c)
{
    struct jval v = jinja_none();
    jinja_enter(x);
    switch (fn.type) {
    case J_FUNCTION:
        v = jinja_invoke(x, fn.as.fn, c);
        break;
    case J_METHOD:
        c->self = fn.as.method->self;
        v = jinja_invoke(x, fn.as.method->fn, c);
        break;
    case J_MACRO:
        v = call_macro(x, fn.as.macro, c);
        break;
    case J_LOOP:
        if (!fn.as.loop->node->recursive || c->n != 1 || c->n_keys)
            jinja_fail(x, ERR_INVALID,
                       "only the loop of a recursive for can be called, with what it runs over");
        v = jinja_run_loop(x, fn.as.loop, c->args[0]);
        break;
    case J_JOINER:
        v = fn.as.cycler->at ? fn.as.cycler->items->items[0] : jinja_text(x, "");
        fn.as.cycler->at = 1;
        break;
    case J_UNDEFINED:
        jinja_fail_undefined(x, fn);
    default:
        jinja_fail(x, ERR_INVALID, "'%s' object is not callable", jinja_type_name(fn));
    }
    jinja_leave(x);
    return v;
}
