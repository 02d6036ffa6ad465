/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators, subscripts and attributes. Integers that leave 127 bits are refused, never rounded; attributes
 * that jinja2's immutable sandbox hides (what changes a list or dict, names with underscores) are undefined
 * in a way that says so when they are used.
 */
#include <math.h>
#include <string.h>

#include "text/jinja_impl.h"

static _Noreturn void bad_operands(struct jrun *x, const char *op, struct jval a, struct jval b)
{
    if (a.type == J_UNDEFINED || b.type == J_UNDEFINED)
        jinja_fail_undefined(x, a.type == J_UNDEFINED ? a : b);
    jinja_fail(x, ERR_INVALID, "unsupported operand types for %s: '%s' and '%s'", op, jinja_type_name(a),
               jinja_type_name(b));
}

static const char *op_name(enum jop op)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    return op <= OP_POW ? names[op] : "?";
}

static jint floor_div(jint a, jint b)
{
    jint q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

static bool int_pow(jint base, jint exponent, jint *out)
{
    jint v = 1;
    if (base == 0 || base == 1) {
        *out = exponent == 0 ? 1 : base;
        return true;
    }
    if (base == -1) {
        *out = exponent % 2 ? -1 : 1;
        return true;
    }
    for (; exponent > 0; exponent--) /* at most 127 times: then it overflows */
        if (__builtin_mul_overflow(v, base, &v))
            return false;
    *out = v;
    return true;
}

static struct jval int_op(struct jrun *x, enum jop op, jint a, jint b)
{
    jint v = 0;
    bool ok = true;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        jinja_fail(x, ERR_INVALID, "division by zero");
    if (op == OP_DIV)
        return jinja_float((double)a / (double)b);
    if (op == OP_POW && b < 0 && a == 0)
        jinja_fail(x, ERR_INVALID, "0.0 cannot be raised to a negative power");
    if (op == OP_POW && b < 0)
        return jinja_float(pow((double)a, (double)b));
    if (op == OP_ADD)
        ok = !__builtin_add_overflow(a, b, &v);
    else if (op == OP_SUB)
        ok = !__builtin_sub_overflow(a, b, &v);
    else if (op == OP_MUL)
        ok = !__builtin_mul_overflow(a, b, &v);
    else if (op == OP_POW)
        ok = int_pow(a, b, &v);
    else if (b == -1) /* the one division that overflows */
        ok = op == OP_MOD || !__builtin_sub_overflow((jint)0, a, &v);
    else
        v = op == OP_FLOORDIV ? floor_div(a, b) : a - b * floor_div(a, b);
    if (!ok)
        jinja_fail(x, ERR_LIMIT, "an integer of more than 127 bits");
    return jinja_int(v);
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m != 0 && (m < 0) != (b < 0))
        m += b;
    return m == 0 ? copysign(0.0, b) : m;
}

static struct jval float_op(struct jrun *x, enum jop op, double a, double b)
{
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        jinja_fail(x, ERR_INVALID, "float division by zero");
    switch (op) {
    case OP_ADD:
        return jinja_float(a + b);
    case OP_SUB:
        return jinja_float(a - b);
    case OP_MUL:
        return jinja_float(a * b);
    case OP_DIV:
        return jinja_float(a / b);
    case OP_FLOORDIV: {
        double q = (a - float_mod(a, b)) / b, down = floor(q);
        return jinja_float(q - down > 0.5 ? down + 1 : down);
    }
    case OP_MOD:
        return jinja_float(float_mod(a, b));
    default:
        return jinja_float(pow(a, b));
    }
}

static struct jval add_strings(struct jrun *x, const struct jstr *a, const struct jstr *b)
{
    struct jbuf out = {.x = x};
    bool safe = a->safe || b->safe;
    if (safe && !a->safe)
        a = jinja_escape(x, a).as.s;
    if (safe && !b->safe)
        b = jinja_escape(x, b).as.s;
    jbuf_add_str(&out, a, 0, a->n);
    jbuf_add_str(&out, b, 0, b->n);
    if (!safe)
        return jbuf_val(&out);
    struct jstr *both = jinja_alloc(x, 1, sizeof *both);
    *both = *jbuf_str(&out);
    both->safe = true;
    return jinja_str(both);
}

static struct jval add_lists(struct jrun *x, const struct jlist *a, const struct jlist *b)
{
    struct jlist *out = jlist_new(x, a->kind);
    jinja_spend(x, (uint64_t)a->n + b->n);
    for (uint32_t i = 0; i < a->n; i++)
        jlist_push(x, out, a->items[i]);
    for (uint32_t i = 0; i < b->n; i++)
        jlist_push(x, out, b->items[i]);
    return jlist_val(out);
}

static struct jval repeat(struct jrun *x, struct jval v, jint times)
{
    if (v.type == J_STRING) {
        struct jbuf b = {.x = x};
        for (jint i = 0; i < times && v.as.s->n; i++) {
            jinja_spend(x, 1);
            jbuf_add_str(&b, v.as.s, 0, v.as.s->n);
        }
        return jbuf_val(&b);
    }
    struct jlist *out = jlist_new(x, v.as.list->kind);
    for (jint i = 0; i < times && v.as.list->n; i++) {
        jinja_spend(x, v.as.list->n);
        for (uint32_t k = 0; k < v.as.list->n; k++)
            jlist_push(x, out, v.as.list->items[k]);
    }
    return jlist_val(out);
}

static bool is_sequence(struct jval v)
{
    return v.type == J_STRING || (v.type == J_LIST && v.as.list->kind <= JL_TUPLE);
}

static struct jval add_loosely(struct jrun *x, struct jval a, struct jval b)
{
    return add_strings(x, jinja_to_str(x, a), jinja_to_str(x, b));
}

struct jval jinja_binary(struct jrun *x, enum jop op, struct jval a, struct jval b)
{
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.type == J_FLOAT || b.type == J_FLOAT)
            return float_op(x, op, jinja_as_float(a), jinja_as_float(b));
        return int_op(x, op, jinja_as_int(x, a, "an operand"), jinja_as_int(x, b, "an operand"));
    }
    if (op == OP_ADD && a.type == J_STRING && b.type == J_STRING)
        return add_strings(x, a.as.s, b.as.s);
    if (op == OP_ADD && is_sequence(a) && is_sequence(b) && a.type == J_LIST && b.type == J_LIST &&
        a.as.list->kind == b.as.list->kind)
        return add_lists(x, a.as.list, b.as.list);
    if (op == OP_MUL && is_sequence(a) && (b.type == J_INT || b.type == J_BOOL))
        return repeat(x, a, jinja_as_int(x, b, "a factor"));
    if (op == OP_MUL && is_sequence(b) && (a.type == J_INT || a.type == J_BOOL))
        return repeat(x, b, jinja_as_int(x, a, "a factor"));
    if (op == OP_MOD && a.type == J_STRING)
        return jinja_percent(x, a.as.s, b);
    if (op == OP_ADD && x->o->json_spelling && (a.type == J_STRING || b.type == J_STRING))
        return add_loosely(x, a, b);
    bad_operands(x, op_name(op), a, b);
}

struct jval jinja_unary(struct jrun *x, enum jop op, struct jval a)
{
    if (op == OP_NOT)
        return jinja_bool(!jinja_truth(a));
    if (a.type == J_FLOAT)
        return jinja_float(op == OP_NEG ? -a.as.f : a.as.f);
    jint i = jinja_as_int(x, a, "the operand of a sign");
    return op == OP_NEG ? int_op(x, OP_SUB, 0, i) : jinja_int(i);
}

/* ---- subscripts ---- */

/* Python's slice.indices: the edges, the step and the number of elements. */
static void slice_indices(struct jrun *x, const struct jval bound[3], jint n, jint edge[2], jint *step,
                          jint *count)
{
    *step = bound[2].type == J_NONE ? 1 : jinja_as_int(x, bound[2], "the step of a slice");
    if (*step == 0)
        jinja_fail(x, ERR_INVALID, "slice step cannot be zero");
    for (int i = 0; i < 2; i++) {
        jint low = *step < 0 ? -1 : 0, high = *step < 0 ? n - 1 : n;
        if (bound[i].type == J_NONE) {
            edge[i] = (*step < 0) == (i == 0) ? high : low;
            continue;
        }
        jint v = jinja_as_int(x, bound[i], "the bound of a slice");
        v += v < 0 ? n : 0;
        edge[i] = v < low ? low : v > high ? high : v;
    }
    jint span = *step < 0 ? edge[0] - edge[1] : edge[1] - edge[0];
    jint size = *step < 0 ? (*step < -n ? n + 1 : -*step) : *step;
    *count = span <= 0 ? 0 : (span - 1) / size + 1;
}

static struct jval slice_string(struct jrun *x, const struct jstr *s, const struct jval bound[3])
{
    struct jbuf b = {.x = x};
    jint n = jstr_chars(s), edge[2], first, step, count;
    slice_indices(x, bound, n, edge, &step, &count);
    first = edge[0];
    if (count == 0)
        return jinja_sub(x, s, 0, 0);
    if (step == 1) {
        size_t from = jstr_offset(s, (uint32_t)first);
        return jinja_sub(x, s, from, jstr_offset(s, (uint32_t)(first + count)) - from);
    }
    uint32_t *offsets = jinja_alloc(x, (size_t)n + 1, sizeof *offsets);
    uint32_t k = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (((unsigned char)s->s[i] & 0xC0) != 0x80)
            offsets[k++] = i;
    offsets[n] = s->n;
    for (jint i = 0; i < count; i++) {
        jint at = first + i * step;
        jbuf_add_str(&b, s, offsets[at], offsets[at + 1] - offsets[at]);
    }
    return jbuf_val(&b);
}

struct jval jinja_slice(struct jrun *x, struct jval a, const struct jval bound[3])
{
    jint edge[2], step, count;
    if (a.type == J_STRING)
        return slice_string(x, a.as.s, bound);
    bool sliced = a.type == J_LIST && (a.as.list->kind <= JL_RANGE || x->o->json_spelling);
    if (a.type == J_UNDEFINED)
        jinja_fail_undefined(x, a);
    if (!sliced)
        jinja_fail(x, ERR_INVALID, "'%s' object cannot be sliced", jinja_type_name(a));
    const struct jlist *l = a.as.list;
    struct jlist *out = jlist_new(x, l->kind <= JL_RANGE ? l->kind : JL_LIST);
    slice_indices(x, bound, l->n, edge, &step, &count);
    jinja_spend(x, (uint64_t)count);
    for (jint i = 0; i < count; i++)
        jlist_push(x, out, l->items[edge[0] + i * step]);
    if (l->kind == JL_RANGE) { /* edges are at most the length: nothing overflows that range() let through */
        for (int i = 0; i < 2; i++)
            out->range[i] = l->range[0] + edge[i] * l->range[2];
        if (__builtin_mul_overflow(l->range[2], step, &out->range[2]))
            jinja_fail(x, ERR_LIMIT, "an integer of more than 127 bits");
    }
    return jlist_val(out);
}

static struct jval element(struct jrun *x, struct jval a, jint at)
{
    jint n = a.type == J_STRING ? (jint)jstr_chars(a.as.s) : (jint)a.as.list->n;
    at = at < 0 ? at + n : at;
    if (at < 0 || at >= n)
        return jinja_undefined(NULL);
    if (a.type == J_LIST)
        return a.as.list->items[at];
    size_t from = jstr_offset(a.as.s, (uint32_t)at), len = 1;
    while (from + len < a.as.s->n && ((unsigned char)a.as.s->s[from + len] & 0xC0) == 0x80)
        len++;
    jinja_spend(x, from / 64);
    return jinja_sub(x, a.as.s, from, len);
}

struct jval jinja_item(struct jrun *x, struct jval a, struct jval key)
{
    if (a.type == J_UNDEFINED)
        jinja_fail_undefined(x, a);
    if (a.type == J_DICT && (key.type != J_LIST || key.as.list->kind == JL_TUPLE) && key.type != J_DICT) {
        const struct jval *v = jdict_get(x, a.as.dict, key);
        if (v)
            return *v;
    }
    bool indexed =
        a.type == J_STRING || (a.type == J_LIST && (a.as.list->kind <= JL_RANGE || x->o->json_spelling));
    if (indexed && (key.type == J_INT || key.type == J_BOOL))
        return element(x, a, jinja_as_int(x, key, "an index"));
    if (key.type == J_STRING) {
        struct jval v = a.type == J_DICT ? jinja_method(x, a, key.as.s) : jinja_attr(x, a, key.as.s);
        if (v.type != J_UNDEFINED || v.unsafe)
            return v;
        return jinja_undefined(key.as.s);
    }
    return jinja_undefined(NULL);
}

/* ---- attributes ---- */

static struct jval loop_attr(struct jrun *x, const struct jloop *l, const struct jstr *name)
{
    uint32_t n = l->items->n;
    const struct {
        const char *name;
        struct jval v;
    } all[] = {
        {"index", jinja_int((jint)l->at + 1)},
        {"index0", jinja_int(l->at)},
        {"revindex", jinja_int((jint)n - l->at)},
        {"revindex0", jinja_int((jint)n - l->at - 1)},
        {"first", jinja_bool(l->at == 0)},
        {"last", jinja_bool(l->at + 1 == n)},
        {"length", jinja_int(n)},
        {"depth", jinja_int((jint)l->depth + 1)},
        {"depth0", jinja_int(l->depth)},
        {"previtem", l->at > 0 ? l->items->items[l->at - 1] : jinja_undefined(name)},
        {"nextitem", l->at + 1 < n ? l->items->items[l->at + 1] : jinja_undefined(name)},
    };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (jstr_is(name, all[i].name))
            return all[i].v;
    (void)x;
    return jinja_undefined(name);
}

struct jval jinja_attr(struct jrun *x, struct jval a, const struct jstr *name)
{
    const struct jval *found = NULL;
    if (a.type == J_UNDEFINED)
        jinja_fail_undefined(x, a);
    struct jval v = jinja_method(x, a, name);
    if (v.type != J_UNDEFINED || v.unsafe)
        return v;
    if (a.type == J_DICT || a.type == J_NAMESPACE)
        found = jdict_get_str(x, a.as.dict, name);
    if (found)
        return *found;
    if (a.type == J_LOOP)
        return loop_attr(x, a.as.loop, name);
    if (a.type == J_MACRO && jstr_is(name, "name"))
        return jinja_str(x->t->names[a.as.macro->node->id]);
    return jinja_undefined(name);
}

static struct jval dotted_step(struct jrun *x, struct jval v, const struct jstr *part)
{
    bool digits = part->n > 0 && part->n < 10;
    jint index = 0;
    for (uint32_t i = 0; i < part->n && digits; i++) {
        digits = part->s[i] >= '0' && part->s[i] <= '9';
        index = index * 10 + (part->s[i] - '0');
    }
    return jinja_item(x, v, digits ? jinja_int(index) : jinja_str(part));
}

static struct jval or_else(struct jval v, struct jval fallback)
{
    return v.type == J_UNDEFINED && fallback.type != J_NONE ? fallback : v;
}

struct jval jinja_dotted(struct jrun *x, struct jval v, struct jval attribute, struct jval fallback)
{
    if (attribute.type != J_STRING)
        return or_else(jinja_item(x, v, attribute), fallback);
    const struct jstr *s = attribute.as.s;
    for (size_t from = 0;;) {
        const char *dot = memchr(s->s + from, '.', s->n - from);
        size_t to = dot ? (size_t)(dot - s->s) : s->n;
        jinja_spend(x, 1);
        v = or_else(dotted_step(x, v, jinja_sub(x, s, from, to - from).as.s), fallback);
        if (dot == NULL)
            return v;
        from = to + 1;
    }
}
