/* SPDX-License-Identifier: Apache-2.0
 *
 * What may stand behind "is".
 */
#include <math.h>
#include <string.h>

#include "text/jinja_impl.h"

static bool is_type(const struct jcall *c, enum jtype type)
{
    return c->self.type == type;
}

static struct jval test_defined(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(!is_type(c, J_UNDEFINED));
}

static struct jval test_undefined(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(is_type(c, J_UNDEFINED));
}

static struct jval test_none(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(is_type(c, J_NONE));
}

static struct jval test_boolean(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(is_type(c, J_BOOL));
}

static struct jval test_true(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(is_type(c, J_BOOL) && c->self.as.b);
}

static struct jval test_false(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(is_type(c, J_BOOL) && !c->self.as.b);
}

static struct jval test_integer(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(is_type(c, J_INT));
}

static struct jval test_float(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(is_type(c, J_FLOAT));
}

static struct jval test_number(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(jinja_is_number(c->self));
}

static struct jval test_string(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(is_type(c, J_STRING));
}

static struct jval test_mapping(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(is_type(c, J_DICT));
}

/* has a length and subscripts: dicts too */
static struct jval test_sequence(struct jrun *x, struct jcall *c)
{
    (void)x;
    bool list = is_type(c, J_LIST) && c->self.as.list->kind <= JL_RANGE;
    return jinja_bool(list || is_type(c, J_STRING) || is_type(c, J_DICT) || is_type(c, J_UNDEFINED));
}

static struct jval test_iterable(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(is_type(c, J_LIST) || is_type(c, J_STRING) || is_type(c, J_DICT) ||
                      is_type(c, J_LOOP) || is_type(c, J_UNDEFINED));
}

static struct jval test_callable(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(c->self.type >= J_FUNCTION || is_type(c, J_UNDEFINED));
}

static struct jval test_even(struct jrun *x, struct jcall *c)
{
    return jinja_bool(jinja_equal(x, jinja_binary(x, OP_MOD, c->self, jinja_int(2)), jinja_int(0)));
}

static struct jval test_odd(struct jrun *x, struct jcall *c)
{
    return jinja_bool(jinja_equal(x, jinja_binary(x, OP_MOD, c->self, jinja_int(2)), jinja_int(1)));
}

static struct jval test_divisibleby(struct jrun *x, struct jcall *c)
{
    return jinja_bool(jinja_equal(x, jinja_binary(x, OP_MOD, c->self, c->arg[0]), jinja_int(0)));
}

static struct jval test_lower(struct jrun *x, struct jcall *c)
{
    return jinja_bool(jinja_is_cased(jinja_to_str(x, c->self), false));
}

static struct jval test_upper(struct jrun *x, struct jcall *c)
{
    return jinja_bool(jinja_is_cased(jinja_to_str(x, c->self), true));
}

static struct jval test_escaped(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(is_type(c, J_STRING) && c->self.as.s->safe);
}

static struct jval test_filter(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = jinja_as_str(x, c->self, "the name of a filter");
    return jinja_bool(jinja_find_filter(s->s, s->n) != NULL);
}

static struct jval test_test(struct jrun *x, struct jcall *c)
{
    const struct jstr *s = jinja_as_str(x, c->self, "the name of a test");
    return jinja_bool(jinja_find_test(s->s, s->n) != NULL);
}

static struct jval test_eq(struct jrun *x, struct jcall *c)
{
    return jinja_bool(jinja_equal(x, c->self, c->arg[0]));
}

static struct jval test_ne(struct jrun *x, struct jcall *c)
{
    return jinja_bool(!jinja_equal(x, c->self, c->arg[0]));
}

static struct jval test_lt(struct jrun *x, struct jcall *c)
{
    return jinja_bool(jinja_order(x, c->self, c->arg[0]) < 0);
}

static struct jval test_le(struct jrun *x, struct jcall *c)
{
    return jinja_bool(jinja_order(x, c->self, c->arg[0]) <= 0);
}

static struct jval test_gt(struct jrun *x, struct jcall *c)
{
    return jinja_bool(jinja_order(x, c->arg[0], c->self) < 0);
}

static struct jval test_ge(struct jrun *x, struct jcall *c)
{
    return jinja_bool(jinja_order(x, c->arg[0], c->self) <= 0);
}

static struct jval test_in(struct jrun *x, struct jcall *c)
{
    return jinja_bool(jinja_contains(x, c->self, c->arg[0]));
}

static struct jval test_sameas(struct jrun *x, struct jcall *c)
{
    (void)x;
    return jinja_bool(jinja_same(c->self, c->arg[0]));
}

static const struct jbuiltin tests[] = {
    {"defined", test_defined, "", 0},
    {"undefined", test_undefined, "", 0},
    {"none", test_none, "", 0},
    {"boolean", test_boolean, "", 0},
    {"true", test_true, "", 0},
    {"false", test_false, "", 0},
    {"integer", test_integer, "", 0},
    {"float", test_float, "", 0},
    {"number", test_number, "", 0},
    {"string", test_string, "", 0},
    {"mapping", test_mapping, "", 0},
    {"sequence", test_sequence, "", 0},
    {"iterable", test_iterable, "", 0},
    {"callable", test_callable, "", 0},
    {"even", test_even, "", 0},
    {"odd", test_odd, "", 0},
    {"divisibleby", test_divisibleby, "num", 1},
    {"lower", test_lower, "", 0},
    {"upper", test_upper, "", 0},
    {"escaped", test_escaped, "", 0},
    {"filter", test_filter, "", 0},
    {"test", test_test, "", 0},
    {"eq", test_eq, "other", 1},
    {"equalto", test_eq, "other", 1},
    {"==", test_eq, "other", 1},
    {"ne", test_ne, "other", 1},
    {"!=", test_ne, "other", 1},
    {"lt", test_lt, "other", 1},
    {"lessthan", test_lt, "other", 1},
    {"<", test_lt, "other", 1},
    {"le", test_le, "other", 1},
    {"<=", test_le, "other", 1},
    {"gt", test_gt, "other", 1},
    {"greaterthan", test_gt, "other", 1},
    {">", test_gt, "other", 1},
    {"ge", test_ge, "other", 1},
    {">=", test_ge, "other", 1},
    {"in", test_in, "seq", 1},
    {"sameas", test_sameas, "other", 1},
};

const struct jbuiltin *jinja_find_test(const char *name, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(tests); i++)
        if (strlen(tests[i].name) == n && memcmp(tests[i].name, name, n) == 0)
            return &tests[i];
    return NULL;
}
