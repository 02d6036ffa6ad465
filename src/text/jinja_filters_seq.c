/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters on sequences and dicts. Sorting is stable and without regard to case unless asked for, as in the
 * reference; map, select, unique and the like give generators: they can be looped over once and have no
 * length.
 */
#include <string.h>

#include "text/jinja_filters.h"

static struct jval ignore_case(struct jrun *x, struct jval v)
{
    return v.type == J_STRING ? jinja_lower(x, v.as.s) : v;
}

/* What elements are compared by: the element or its attribute, lower case unless case counts. */
static struct jval sort_key(struct jrun *x, struct jval v, struct jval attribute, bool case_sensitive)
{
    if (attribute.type != J_UNDEFINED && attribute.type != J_NONE)
        v = jinja_dotted(x, v, attribute, jinja_none());
    return case_sensitive ? v : ignore_case(x, v);
}

/* sort(attribute="a,b"): by a, then by b. Always a list, as in the reference: equal keys are never ordered,
 * so values that have no order may be equal. */
static struct jval sort_keys(struct jrun *x, struct jval v, struct jval attribute, bool case_sensitive)
{
    const struct jstr *s = attribute.type == J_STRING ? attribute.as.s : NULL;
    struct jlist *keys = jlist_new(x, JL_LIST);
    for (size_t from = 0; s && from <= s->n;) {
        const char *comma = memchr(s->s + from, ',', s->n - from);
        size_t to = comma ? (size_t)(comma - s->s) : s->n;
        jlist_push(x, keys, sort_key(x, v, jinja_sub(x, s, from, to - from), case_sensitive));
        from = to + 1;
    }
    if (s == NULL)
        jlist_push(x, keys, sort_key(x, v, attribute, case_sensitive));
    return jlist_val(keys);
}

struct sort_item {
    struct jval key, value;
};

static bool goes_first(struct jrun *x, struct jval a, struct jval b, bool reverse)
{
    return reverse ? jinja_order(x, a, b) < 0 : jinja_order(x, b, a) < 0;
}

static void merge_sort(struct jrun *x, struct sort_item *v, struct sort_item *spare, uint32_t n, bool reverse)
{
    if (n < 2)
        return;
    uint32_t half = n / 2, i = 0, k = half, out = 0;
    merge_sort(x, v, spare, half, reverse);
    merge_sort(x, v + half, spare, n - half, reverse);
    while (i < half || k < n) {
        bool second = i == half || (k < n && goes_first(x, v[i].key, v[k].key, reverse));
        spare[out++] = second ? v[k++] : v[i++];
    }
    memcpy(v, spare, n * sizeof *v);
}

typedef struct jval (*key_fn)(struct jrun *x, struct jval v, struct jval attribute, bool case_sensitive);

static struct jlist *sorted(struct jrun *x, const struct jlist *l, key_fn key, struct jval attribute,
                            bool case_sensitive, bool reverse)
{
    struct jlist *out = jlist_new(x, JL_LIST);
    struct sort_item *items = jinja_alloc(x, 2 * (size_t)l->n, sizeof *items);
    for (uint32_t i = 0; i < l->n; i++)
        items[i] = (struct sort_item){key(x, l->items[i], attribute, case_sensitive), l->items[i]};
    merge_sort(x, items, items + l->n, l->n, reverse);
    for (uint32_t i = 0; i < l->n; i++)
        jlist_push(x, out, items[i].value);
    return out;
}

struct jval filter_sort(struct jrun *x, struct jcall *c)
{
    return jlist_val(sorted(x, jinja_iterate(x, c->self), sort_keys, c->has[2] ? c->arg[2] : jinja_none(),
                            jcall_bool(c, 1, false), jcall_bool(c, 0, false)));
}

struct jval filter_dictsort(struct jrun *x, struct jcall *c)
{
    struct jlist *pairs = jlist_new(x, JL_LIST);
    const struct jstr *by = c->has[1] ? jcall_str(x, c, 1) : jinja_text(x, "key").as.s;
    if (!jstr_is(by, "key") && !jstr_is(by, "value"))
        jinja_fail(x, ERR_INVALID, "dictsort: by must be \"key\" or \"value\"");
    if (c->self.type != J_DICT)
        jinja_fail(x, ERR_INVALID, "dictsort: '%s' object has no items", jinja_type_name(c->self));
    for (uint32_t i = 0; i < c->self.as.dict->n; i++)
        jlist_push(x, pairs,
                   jinja_pair(x, c->self.as.dict->entries[i].key, c->self.as.dict->entries[i].value));
    return jlist_val(sorted(x, pairs, sort_key, jinja_int(jstr_is(by, "value")), jcall_bool(c, 0, false),
                            jcall_bool(c, 2, false)));
}

static struct jval extreme(struct jrun *x, struct jcall *c, bool largest)
{
    const struct jlist *l = jinja_iterate(x, c->self);
    struct jval attribute = c->has[1] ? c->arg[1] : jinja_none(), best_key = jinja_none();
    uint32_t best = 0;
    if (l->n == 0)
        return jinja_undefined(NULL);
    for (uint32_t i = 0; i < l->n; i++) {
        struct jval key = sort_key(x, l->items[i], attribute, jcall_bool(c, 0, false));
        if (i == 0 || (largest ? jinja_order(x, best_key, key) < 0 : jinja_order(x, key, best_key) < 0)) {
            best = i;
            best_key = key;
        }
    }
    return l->items[best];
}

struct jval filter_max(struct jrun *x, struct jcall *c)
{
    return extreme(x, c, true);
}

struct jval filter_min(struct jrun *x, struct jcall *c)
{
    return extreme(x, c, false);
}

struct jval filter_unique(struct jrun *x, struct jcall *c)
{
    const struct jlist *l = jinja_iterate(x, c->self);
    struct jlist *out = jlist_new(x, JL_GENERATOR);
    struct jdict *seen = jdict_new(x);
    for (uint32_t i = 0; i < l->n; i++) {
        struct jval key =
            sort_key(x, l->items[i], c->has[1] ? c->arg[1] : jinja_none(), jcall_bool(c, 0, false));
        if (jdict_get(x, seen, key))
            continue;
        jdict_set(x, seen, key, jinja_none());
        jlist_push(x, out, l->items[i]);
    }
    return jlist_val(out);
}

struct jval filter_groupby(struct jrun *x, struct jcall *c)
{
    const struct jlist *l = jinja_iterate(x, c->self);
    struct jlist *out = jlist_new(x, JL_LIST), *group = NULL;
    struct jval fallback = c->has[1] ? c->arg[1] : jinja_none(), last = jinja_none();
    struct sort_item *items = jinja_alloc(x, 2 * (size_t)l->n, sizeof *items);
    bool case_sensitive = jcall_bool(c, 2, false);
    for (uint32_t i = 0; i < l->n; i++) {
        struct jval key = jinja_dotted(x, l->items[i], c->arg[0], fallback);
        items[i] = (struct sort_item){case_sensitive ? key : ignore_case(x, key), l->items[i]};
    }
    merge_sort(x, items, items + l->n, l->n, false);
    for (uint32_t i = 0; i < l->n; i++) {
        if (group == NULL || !jinja_equal(x, items[i].key, last)) {
            group = jlist_new(x, JL_LIST);
            struct jval shown = jinja_dotted(x, items[i].value, c->arg[0], fallback);
            jlist_push(x, out, jinja_pair(x, shown, jlist_val(group)));
            last = items[i].key;
        }
        jlist_push(x, group, items[i].value);
    }
    return jlist_val(out);
}

/* ---- plain ones ---- */

struct jval filter_length(struct jrun *x, struct jcall *c)
{
    return jinja_int(jinja_length(x, c->self));
}

struct jval filter_list(struct jrun *x, struct jcall *c)
{
    const struct jlist *l = jinja_iterate(x, c->self);
    struct jlist *out = jlist_new(x, JL_LIST);
    jinja_spend(x, l->n);
    for (uint32_t i = 0; i < l->n; i++)
        jlist_push(x, out, l->items[i]);
    return jlist_val(out);
}

struct jval filter_first(struct jrun *x, struct jcall *c)
{
    const struct jlist *l = jinja_iterate(x, c->self);
    return l->n ? l->items[0] : jinja_undefined(NULL);
}

struct jval filter_last(struct jrun *x, struct jcall *c)
{
    if (c->self.type == J_LIST && c->self.as.list->kind == JL_GENERATOR && !x->o->json_spelling)
        jinja_fail(x, ERR_INVALID, "last: 'generator' object is not reversible");
    const struct jlist *l = jinja_iterate(x, c->self);
    return l->n ? l->items[l->n - 1] : jinja_undefined(NULL);
}

struct jval filter_reverse(struct jrun *x, struct jcall *c)
{
    static const struct jval backwards[3] = {{.type = J_NONE}, {.type = J_NONE}, {.type = J_INT, .as.i = -1}};
    if (c->self.type == J_STRING)
        return jinja_slice(x, c->self, backwards);
    const struct jlist *l = jinja_iterate(x, c->self);
    struct jlist *out = jlist_new(x, JL_GENERATOR);
    for (uint32_t i = l->n; i > 0; i--)
        jlist_push(x, out, l->items[i - 1]);
    return jlist_val(out);
}

struct jval filter_items(struct jrun *x, struct jcall *c)
{
    struct jlist *out = jlist_new(x, JL_GENERATOR);
    if (c->self.type == J_UNDEFINED)
        return jlist_val(out);
    if (c->self.type != J_DICT)
        jinja_fail(x, ERR_INVALID, "can only get item pairs from a mapping");
    for (uint32_t i = 0; i < c->self.as.dict->n; i++)
        jlist_push(x, out, jinja_pair(x, c->self.as.dict->entries[i].key, c->self.as.dict->entries[i].value));
    return jlist_val(out);
}

struct jval filter_join(struct jrun *x, struct jcall *c)
{
    struct jbuf b = {.x = x};
    const struct jlist *l = jinja_iterate(x, c->self);
    const struct jstr *between = c->has[0] ? jinja_to_str(x, c->arg[0]) : NULL;
    for (uint32_t i = 0; i < l->n; i++) {
        struct jval v = l->items[i];
        if (c->has[1] && c->arg[1].type != J_NONE)
            v = jinja_dotted(x, v, c->arg[1], jinja_none());
        if (i && between)
            jbuf_add_str(&b, between, 0, between->n);
        jinja_spend(x, 1);
        jinja_print(&b, v);
    }
    return jbuf_val(&b);
}

struct jval filter_sum(struct jrun *x, struct jcall *c)
{
    const struct jlist *l = jinja_iterate(x, c->self);
    struct jval sum = c->has[1] ? c->arg[1] : jinja_int(0);
    for (uint32_t i = 0; i < l->n; i++) {
        struct jval v = l->items[i];
        if (c->has[0] && c->arg[0].type != J_NONE)
            v = jinja_dotted(x, v, c->arg[0], jinja_none());
        sum = jinja_binary(x, OP_ADD, sum, v);
    }
    return sum;
}

struct jval filter_batch(struct jrun *x, struct jcall *c)
{
    const struct jlist *l = jinja_iterate(x, c->self);
    struct jlist *out = jlist_new(x, JL_GENERATOR), *row = NULL;
    jint size = jinja_as_int(x, c->arg[0], "batch: the size");
    if (size == 0) /* one below it is never reached: a single row */
        jinja_fail(x, ERR_INVALID, "batch: the size must not be 0");
    for (uint32_t i = 0; i < l->n; i++) {
        if (row == NULL || row->n == size) {
            row = jlist_new(x, JL_LIST);
            jlist_push(x, out, jlist_val(row));
        }
        jlist_push(x, row, l->items[i]);
    }
    while (row && row->n < size && c->has[1] && c->arg[1].type != J_NONE) {
        jinja_spend(x, 1);
        jlist_push(x, row, c->arg[1]);
    }
    return jlist_val(out);
}

struct jval filter_slice(struct jrun *x, struct jcall *c)
{
    const struct jlist *l = jinja_iterate(x, c->self);
    struct jlist *out = jlist_new(x, JL_GENERATOR);
    jint slices = jinja_as_int(x, c->arg[0], "slice: the number");
    if (slices == 0)
        jinja_fail(x, ERR_INVALID, "slice: the number must not be 0");
    jint each = l->n / slices, longer = l->n % slices, at = 0;
    for (jint i = 0; i < slices; i++) {
        struct jlist *row = jlist_new(x, JL_LIST);
        jint n = each + (i < longer);
        jinja_spend(x, 1);
        for (jint k = 0; k < n; k++)
            jlist_push(x, row, l->items[at++]);
        if (c->has[1] && c->arg[1].type != J_NONE && i >= longer)
            jlist_push(x, row, c->arg[1]);
        jlist_push(x, out, jlist_val(row));
    }
    return jlist_val(out);
}

/* ---- map and select ---- */

static struct jval named_argument(const struct jcall *c, const char *name, bool *has)
{
    for (uint32_t i = 0; i < c->n_keys; i++)
        if (jstr_is(c->keys[i], name)) {
            *has = true;
            return c->values[i];
        }
    *has = false;
    return jinja_none();
}

/* The rest of the arguments belong to the filter or test that the first one names. */
static struct jval apply(struct jrun *x, const struct jbuiltin *fn, const struct jcall *c, uint32_t skip,
                         struct jval v)
{
    struct jcall inner = {.self = v,
                          .args = c->args + skip,
                          .n = c->n > skip ? c->n - skip : 0,
                          .keys = c->keys,
                          .values = c->values,
                          .n_keys = c->n_keys};
    return jinja_invoke(x, fn, &inner);
}

struct jval filter_map(struct jrun *x, struct jcall *c)
{
    bool has, has_default;
    struct jval attribute = named_argument(c, "attribute", &has);
    struct jval fallback = named_argument(c, "default", &has_default);
    const struct jbuiltin *fn = NULL;
    if (!has || c->n) {
        if (c->n == 0)
            jinja_fail(x, ERR_INVALID, "map requires a filter argument");
        const struct jstr *name = jinja_as_str(x, c->args[0], "the name of a filter");
        fn = jinja_find_filter(name->s, name->n);
        if (fn == NULL)
            jinja_fail(x, ERR_UNSUPPORTED, "no filter named '%.*s'", (int)(name->n < 60 ? name->n : 60),
                       name->s);
    }
    struct jlist *out = jlist_new(x, JL_GENERATOR);
    if (!jinja_truth(c->self)) /* None too */
        return jlist_val(out);
    const struct jlist *l = jinja_iterate(x, c->self);
    for (uint32_t i = 0; i < l->n; i++) {
        jlist_push(x, out,
                   fn ? apply(x, fn, c, 1, l->items[i])
                      : jinja_dotted(x, l->items[i], attribute, has_default ? fallback : jinja_none()));
    }
    return jlist_val(out);
}

static struct jval choose(struct jrun *x, struct jcall *c, bool by_attribute, bool wanted)
{
    struct jlist *out = jlist_new(x, JL_GENERATOR);
    const struct jbuiltin *fn = NULL;
    uint32_t at = by_attribute;
    if (!jinja_truth(c->self)) /* None too */
        return jlist_val(out);
    const struct jlist *l = jinja_iterate(x, c->self);
    if (by_attribute && c->n == 0)
        jinja_fail(x, ERR_INVALID, "missing parameter for attribute name");
    if (c->n > at) {
        const struct jstr *name = jinja_as_str(x, c->args[at], "the name of a test");
        fn = jinja_find_test(name->s, name->n);
        if (fn == NULL)
            jinja_fail(x, ERR_UNSUPPORTED, "no test named '%.*s'", (int)(name->n < 60 ? name->n : 60),
                       name->s);
    }
    for (uint32_t i = 0; i < l->n; i++) {
        struct jval v = by_attribute ? jinja_dotted(x, l->items[i], c->args[0], jinja_none()) : l->items[i];
        jinja_spend(x, 1);
        if (jinja_truth(fn ? apply(x, fn, c, at + 1, v) : v) == wanted)
            jlist_push(x, out, l->items[i]);
    }
    return jlist_val(out);
}

struct jval filter_select(struct jrun *x, struct jcall *c)
{
    return choose(x, c, false, true);
}

struct jval filter_reject(struct jrun *x, struct jcall *c)
{
    return choose(x, c, false, false);
}

struct jval filter_selectattr(struct jrun *x, struct jcall *c)
{
    return choose(x, c, true, true);
}

struct jval filter_rejectattr(struct jrun *x, struct jcall *c)
{
    return choose(x, c, true, false);
}
