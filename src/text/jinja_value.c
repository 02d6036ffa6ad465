/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of a rendering: lists, dicts in the order of insertion, truth, equality, order, membership and
 * iteration as Python has them. What Python answers with a TypeError fails here too.
 */
#include <math.h>
#include <string.h>

#include "text/jinja_impl.h"

struct jval jinja_none(void)
{
    return (struct jval){.type = J_NONE};
}

struct jval jinja_bool(bool b)
{
    return (struct jval){.type = J_BOOL, .as.b = b};
}

struct jval jinja_int(jint i)
{
    return (struct jval){.type = J_INT, .as.i = i};
}

struct jval jinja_float(double f)
{
    return (struct jval){.type = J_FLOAT, .as.f = f};
}

struct jval jinja_str(const struct jstr *s)
{
    return (struct jval){.type = J_STRING, .as.s = s};
}

struct jval jinja_undefined(const struct jstr *name)
{
    return (struct jval){.type = J_UNDEFINED, .as.s = name};
}

struct jval jlist_val(struct jlist *l)
{
    return (struct jval){.type = J_LIST, .as.list = l};
}

const char *jinja_type_name(struct jval v)
{
    static const char *const names[] = {"Undefined", "NoneType", "bool",        "int",       "float",
                                        "str",       "list",     "dict",        "Namespace", "function",
                                        "method",    "macro",    "LoopContext", "Cycler",    "Joiner"};
    static const char *const lists[] = {"list",      "tuple",       "range",     "generator",
                                        "dict_keys", "dict_values", "dict_items"};
    return v.type == J_LIST ? lists[v.as.list->kind] : names[v.type];
}

/* ---- lists ---- */

struct jlist *jlist_new(struct jrun *x, enum jlist_kind kind)
{
    struct jlist *l = jinja_alloc(x, 1, sizeof *l);
    l->kind = kind;
    return l;
}

void jlist_push(struct jrun *x, struct jlist *l, struct jval v)
{
    if (l->n == l->capacity) {
        uint32_t capacity = l->capacity ? 2 * l->capacity : 4;
        struct jval *more = jinja_alloc(x, capacity, sizeof *more);
        if (l->n)
            memcpy(more, l->items, l->n * sizeof *more);
        l->items = more;
        l->capacity = capacity;
    }
    l->items[l->n++] = v;
}

struct jval jinja_pair(struct jrun *x, struct jval a, struct jval b)
{
    struct jlist *l = jlist_new(x, JL_TUPLE);
    jlist_push(x, l, a);
    jlist_push(x, l, b);
    return jlist_val(l);
}

/* ---- dicts ---- */

#define SMALL_DICT 8 /* up to here entries are compared one by one */

static uint64_t hash_value(struct jrun *x, struct jval v)
{
    double f;
    switch (v.type) {
    case J_STRING:
        return hash64(v.as.s->s, v.as.s->n, 0);
    case J_BOOL:
    case J_INT: {
        jint i = v.type == J_BOOL ? v.as.b : v.as.i;
        f = (double)i; /* equal numbers have equal hashes */
        return hash64(&f, sizeof f, 1);
    }
    case J_FLOAT:
        f = v.as.f == 0 ? 0 : v.as.f;
        return hash64(&f, sizeof f, 1);
    case J_LIST: {
        if (v.as.list->kind != JL_TUPLE)
            break;
        uint64_t h = 2;
        jinja_enter(x);
        jinja_spend(x, v.as.list->n);
        for (uint32_t i = 0; i < v.as.list->n; i++) {
            uint64_t pair[2] = {h, hash_value(x, v.as.list->items[i])};
            h = hash64(pair, sizeof pair, 2);
        }
        jinja_leave(x);
        return h;
    }
    case J_NONE:
        return 3;
    case J_UNDEFINED:
        return 4;
    default:
        break;
    }
    jinja_fail(x, ERR_INVALID, "unhashable type: '%s'", jinja_type_name(v));
}

struct jdict *jdict_new(struct jrun *x)
{
    return jinja_alloc(x, 1, sizeof(struct jdict));
}

/* Index of the entry, or n. */
static uint32_t find(struct jrun *x, const struct jdict *d, struct jval key, uint64_t hash)
{
    if (d->index == NULL) {
        for (uint32_t i = 0; i < d->n; i++)
            if (d->entries[i].hash == hash && jinja_equal(x, d->entries[i].key, key))
                return i;
        return d->n;
    }
    for (uint32_t at = (uint32_t)hash & (d->index_size - 1);; at = (at + 1) & (d->index_size - 1)) {
        uint32_t i = d->index[at];
        if (i == 0)
            return d->n;
        if (d->entries[i - 1].hash == hash && jinja_equal(x, d->entries[i - 1].key, key))
            return i - 1;
    }
}

static void enter_index(struct jdict *d, uint32_t entry)
{
    uint32_t at = (uint32_t)d->entries[entry].hash & (d->index_size - 1);
    while (d->index[at])
        at = (at + 1) & (d->index_size - 1);
    d->index[at] = entry + 1;
}

static void make_room(struct jrun *x, struct jdict *d)
{
    if (d->n < d->capacity)
        return;
    uint32_t capacity = d->capacity ? 2 * d->capacity : 4;
    struct jentry *more = jinja_alloc(x, capacity, sizeof *more);
    if (d->n)
        memcpy(more, d->entries, d->n * sizeof *more);
    d->entries = more;
    d->capacity = capacity;
    if (capacity > SMALL_DICT) {
        d->index_size = 2 * capacity;
        d->index = jinja_alloc(x, d->index_size, sizeof *d->index);
        for (uint32_t i = 0; i < d->n; i++)
            enter_index(d, i);
    }
}

void jdict_set(struct jrun *x, struct jdict *d, struct jval key, struct jval value)
{
    uint64_t hash = hash_value(x, key);
    uint32_t at = find(x, d, key, hash);
    if (at < d->n) {
        d->entries[at].value = value;
        return;
    }
    make_room(x, d);
    d->entries[d->n++] = (struct jentry){key, value, hash};
    if (d->index)
        enter_index(d, d->n - 1);
}

const struct jval *jdict_get(struct jrun *x, const struct jdict *d, struct jval key)
{
    uint64_t hash = hash_value(x, key);
    uint32_t at = find(x, d, key, hash);
    return at < d->n ? &d->entries[at].value : NULL;
}

const struct jval *jdict_get_str(struct jrun *x, const struct jdict *d, const struct jstr *key)
{
    return jdict_get(x, d, jinja_str(key));
}

/* ---- what Python's operators ask ---- */

bool jinja_truth(struct jval v)
{
    switch (v.type) {
    case J_UNDEFINED:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.as.b;
    case J_INT:
        return v.as.i != 0;
    case J_FLOAT:
        return v.as.f != 0;
    case J_STRING:
        return v.as.s->n > 0;
    case J_LIST:
        return v.as.list->kind == JL_GENERATOR || v.as.list->n > 0;
    case J_DICT:
        return v.as.dict->n > 0;
    default:
        return true;
    }
}

bool jinja_is_number(struct jval v)
{
    return v.type == J_BOOL || v.type == J_INT || v.type == J_FLOAT;
}

double jinja_as_float(struct jval v)
{
    return v.type == J_FLOAT ? v.as.f : (double)(v.type == J_BOOL ? v.as.b : v.as.i);
}

jint jinja_as_int(struct jrun *x, struct jval v, const char *what)
{
    if (v.type == J_UNDEFINED)
        jinja_fail_undefined(x, v);
    if (v.type != J_INT && v.type != J_BOOL)
        jinja_fail(x, ERR_INVALID, "%s must be an integer, not %s", what, jinja_type_name(v));
    return v.type == J_BOOL ? v.as.b : v.as.i;
}

const struct jstr *jinja_as_str(struct jrun *x, struct jval v, const char *what)
{
    if (v.type == J_UNDEFINED)
        jinja_fail_undefined(x, v);
    if (v.type != J_STRING)
        jinja_fail(x, ERR_INVALID, "%s must be a string, not %s", what, jinja_type_name(v));
    return v.as.s;
}

static int order_numbers(struct jval a, struct jval b)
{
    if (a.type != J_FLOAT && b.type != J_FLOAT) {
        jint p = a.type == J_BOOL ? a.as.b : a.as.i, q = b.type == J_BOOL ? b.as.b : b.as.i;
        return p < q ? -1 : p > q;
    }
    double p = jinja_as_float(a), q = jinja_as_float(b);
    return isnan(p) || isnan(q) ? 2 : p < q ? -1 : p > q;
}

static bool equal_lists(struct jrun *x, const struct jlist *a, const struct jlist *b)
{
    if (a == b)
        return true;
    bool views = a->kind >= JL_GENERATOR || b->kind >= JL_GENERATOR;
    if (views || a->kind != b->kind || a->n != b->n)
        return false;
    jinja_enter(x);
    bool equal = true;
    for (uint32_t i = 0; i < a->n && equal; i++)
        equal = jinja_same(a->items[i], b->items[i]) || jinja_equal(x, a->items[i], b->items[i]);
    jinja_leave(x);
    return equal;
}

static bool equal_dicts(struct jrun *x, const struct jdict *a, const struct jdict *b)
{
    if (a == b)
        return true;
    if (a->n != b->n)
        return false;
    jinja_enter(x);
    bool equal = true;
    for (uint32_t i = 0; i < a->n && equal; i++) {
        const struct jval *other = jdict_get(x, b, a->entries[i].key);
        equal = other && jinja_equal(x, a->entries[i].value, *other);
    }
    jinja_leave(x);
    return equal;
}

bool jinja_equal(struct jrun *x, struct jval a, struct jval b)
{
    jinja_spend(x, 1);
    bool mixed = (a.type == J_BOOL) != (b.type == J_BOOL); /* Python: True == 1 */
    if (jinja_is_number(a) && jinja_is_number(b) && !(mixed && x->o->json_spelling))
        return order_numbers(a, b) == 0;
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case J_UNDEFINED:
    case J_NONE:
        return true;
    case J_STRING:
        jinja_spend(x, a.as.s->n == b.as.s->n ? a.as.s->n / 64 : 0);
        return jstr_equal(a.as.s, b.as.s);
    case J_LIST:
        return equal_lists(x, a.as.list, b.as.list);
    case J_DICT:
        return equal_dicts(x, a.as.dict, b.as.dict);
    default:
        return jinja_same(a, b);
    }
}

bool jinja_same(struct jval a, struct jval b)
{
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case J_NONE:
        return true;
    case J_UNDEFINED:
        return false;
    case J_BOOL:
        return a.as.b == b.as.b;
    case J_INT:
        return a.as.i == b.as.i;
    case J_FLOAT:
        return a.as.f == b.as.f;
    case J_STRING:
        return jstr_equal(a.as.s, b.as.s); /* Python shares short strings: identity is not observable here */
    case J_LIST:
        return a.as.list == b.as.list;
    case J_DICT:
    case J_NAMESPACE:
        return a.as.dict == b.as.dict;
    case J_LOOP:
        return a.as.loop == b.as.loop;
    default:
        return a.as.fn == b.as.fn;
    }
}

int jinja_order(struct jrun *x, struct jval a, struct jval b)
{
    jinja_spend(x, 1);
    if (jinja_is_number(a) && jinja_is_number(b))
        return order_numbers(a, b);
    if (a.type == J_STRING && b.type == J_STRING) {
        jinja_spend(x, a.as.s->n / 64);
        return jstr_compare(a.as.s, b.as.s);
    }
    bool lists = a.type == J_LIST && b.type == J_LIST && a.as.list->kind == b.as.list->kind &&
                 a.as.list->kind <= JL_TUPLE;
    if (lists) {
        const struct jlist *p = a.as.list, *q = b.as.list;
        jinja_enter(x);
        for (uint32_t i = 0; i < p->n && i < q->n; i++)
            if (!jinja_equal(x, p->items[i], q->items[i])) {
                int order = jinja_order(x, p->items[i], q->items[i]);
                jinja_leave(x);
                return order;
            }
        jinja_leave(x);
        return p->n < q->n ? -1 : p->n > q->n;
    }
    if (a.type == J_UNDEFINED || b.type == J_UNDEFINED)
        jinja_fail_undefined(x, a.type == J_UNDEFINED ? a : b);
    jinja_fail(x, ERR_INVALID, "'<' not supported between instances of '%s' and '%s'", jinja_type_name(a),
               jinja_type_name(b));
}

bool jinja_contains(struct jrun *x, struct jval what, struct jval in)
{
    if (in.type == J_STRING) {
        if (x->o->json_spelling && what.type == J_UNDEFINED)
            return false;
        const struct jstr *s = jinja_as_str(x, what, "the left operand of 'in <string>'");
        jinja_spend(x, in.as.s->n / 16);
        return jinja_find(in.as.s, s, 0) != SIZE_MAX;
    }
    if (in.type == J_DICT)
        return jdict_get(x, in.as.dict, what) != NULL;
    const struct jlist *l = jinja_iterate(x, in);
    for (uint32_t i = 0; i < l->n; i++)
        if (jinja_same(what, l->items[i]) || jinja_equal(x, what, l->items[i]))
            return true;
    return false;
}

static const struct jlist *characters(struct jrun *x, const struct jstr *s)
{
    struct jlist *l = jlist_new(x, JL_LIST);
    if (s->safe) { /* Python's Markup gives plain characters */
        struct jstr *plain = jinja_alloc(x, 1, sizeof *plain);
        *plain = *s;
        plain->safe = false;
        s = plain;
    }
    for (size_t i = 0, len; i < s->n; i += len) {
        for (len = 1; i + len < s->n && ((unsigned char)s->s[i + len] & 0xC0) == 0x80;)
            len++;
        jlist_push(x, l, jinja_sub(x, s, i, len));
    }
    return l;
}

const struct jlist *jinja_iterate(struct jrun *x, struct jval v)
{
    struct jlist *l;
    switch (v.type) {
    case J_UNDEFINED:
        return jlist_new(x, JL_LIST);
    case J_STRING:
        return characters(x, v.as.s);
    case J_LIST:
        if (v.as.list->kind != JL_GENERATOR)
            return v.as.list;
        if (v.as.list->used)
            return jlist_new(x, JL_LIST);
        v.as.list->used = true;
        return v.as.list;
    case J_DICT:
        l = jlist_new(x, JL_LIST);
        for (uint32_t i = 0; i < v.as.dict->n; i++)
            jlist_push(x, l, v.as.dict->entries[i].key);
        return l;
    default:
        jinja_fail(x, ERR_INVALID, "'%s' object is not iterable", jinja_type_name(v));
    }
}

jint jinja_length(struct jrun *x, struct jval v)
{
    if (v.type == J_STRING)
        return jstr_chars(v.as.s);
    if (v.type == J_LIST && v.as.list->kind != JL_GENERATOR)
        return v.as.list->n;
    if (v.type == J_LIST && x->o->json_spelling)
        return v.as.list->n;
    if (v.type == J_DICT)
        return v.as.dict->n;
    if (v.type == J_UNDEFINED)
        return 0;
    if (v.type == J_LOOP)
        return v.as.loop->items->n;
    jinja_fail(x, ERR_INVALID, "object of type '%s' has no len()", jinja_type_name(v));
}

/* ---- from outside ---- */

static bool is_plain_word(const char *s, uint32_t n)
{
    static const char *const words[] = JINJA_PLAIN_WORDS;
    for (size_t i = 0; n <= 9 && i < ARRAY_LEN(words); i++)
        if (strlen(words[i]) == n && memcmp(words[i], s, n) == 0)
            return true;
    return false;
}

static struct jval json_text(struct jrun *x, const char *s, uint32_t n, bool marked)
{
    marked = marked && !is_plain_word(s, n);
    struct jstr *str = jinja_alloc(x, 1, sizeof *str);
    *str = (struct jstr){.s = s, .n = n, .chars = UINT32_MAX, .marked = marked}; /* outlives the rendering */
    str->chars = jstr_chars(str);
    return jinja_str(str);
}

struct jval jinja_from_json(struct jrun *x, const struct json *v, bool marked)
{
    struct jval out = jinja_none();
    jinja_spend(x, 1);
    jinja_enter(x);
    switch (v->type) {
    case JSON_BOOL:
        out = jinja_bool(v->as.boolean);
        break;
    case JSON_INT:
        out = jinja_int(v->as.i);
        break;
    case JSON_UINT:
        out = jinja_int((jint)v->as.u);
        break;
    case JSON_DOUBLE:
        out = jinja_float(v->as.d);
        break;
    case JSON_STRING:
        out = json_text(x, v->as.string, v->n, marked);
        break;
    case JSON_ARRAY: {
        struct jlist *l = jlist_new(x, JL_LIST);
        for (uint32_t i = 0; i < v->n; i++)
            jlist_push(x, l, jinja_from_json(x, &v->as.items[i], marked));
        out = jlist_val(l);
        break;
    }
    case JSON_OBJECT: {
        struct jdict *d = jdict_new(x);
        for (uint32_t i = 0; i < v->n; i++) {
            const struct json_member *m = &v->as.members[i];
            jdict_set(x, d, json_text(x, m->key, m->key_bytes, marked),
                      jinja_from_json(x, &m->value, marked));
        }
        out = (struct jval){.type = J_DICT, .as.dict = d};
        break;
    }
    case JSON_NULL:
        break;
    }
    jinja_leave(x);
    return out;
}
