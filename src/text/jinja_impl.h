/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the template interpreter, shared by the jinja_*.c files only. Source becomes tokens
 * (jinja_lex.c), tokens a tree (jinja_parse.c, jinja_expr.c), and the tree is walked once per rendering
 * (jinja_eval.c, jinja_call.c). Everything of a template lives in its arena, everything of a rendering in
 * that of the rendering. A failure leaves with a long jump: only arenas hold memory, so nothing is lost.
 */
#ifndef TEXT_JINJA_IMPL_H
#define TEXT_JINJA_IMPL_H

#include <setjmp.h>

#include "base/hash.h"
#include "text/text.h"

/* Python's integers have no end; ours hold every number of JSON and say so when they overflow. */
__extension__ typedef __int128 jint;

#define JINJA_MAX_SOURCE (1u << 20)   /* bytes of a template */
#define JINJA_MAX_PARSED (256u << 20) /* bytes of the tree */
#define JINJA_MAX_PARSE  150          /* nesting while parsing */
#define JINJA_MAX_TREE   400          /* height of the tree: a chain of operators is that high */
#define JINJA_MAX_PARAMS 8
#define JINJA_MAX_RANGE  100000 /* of the reference's sandbox */

enum jtype {
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STRING,
    J_LIST, /* list, tuple, range, generator, views of a dict */
    J_DICT,
    J_NAMESPACE,
    J_FUNCTION,
    J_METHOD,
    J_MACRO,
    J_LOOP,
    J_CYCLER,
    J_JOINER,
};

/* Bytes and who wrote them: a byte is marked if it came from a marked variable. */
struct jstr {
    const char *s;
    const uint8_t *marks; /* n bytes of 0 and 1; NULL: all are `marked` */
    uint32_t n;
    uint32_t chars; /* code points; UINT32_MAX: not counted yet */
    bool marked;
    bool safe; /* Python's Markup */
};

struct jval {
    enum jtype type;
    bool unsafe; /* UNDEFINED: an attribute that the reference's sandbox forbids */
    union {
        bool b;
        jint i;
        double f;
        const struct jstr *s; /* UNDEFINED: the name that was looked for, or NULL */
        struct jlist *list;
        struct jdict *dict; /* DICT and NAMESPACE */
        const struct jbuiltin *fn;
        const struct jmethod *method;
        const struct jmacro *macro;
        struct jloop *loop;
        struct jcycler *cycler;
    } as;
};

enum jlist_kind { JL_LIST, JL_TUPLE, JL_RANGE, JL_GENERATOR, JL_KEYS, JL_VALUES, JL_ITEMS };
struct jlist {
    struct jval *items;
    uint32_t n, capacity;
    enum jlist_kind kind;
    bool used;     /* GENERATOR: was iterated, is empty now */
    jint range[3]; /* RANGE: start, stop, step, for printing */
};

struct jentry {
    struct jval key, value;
    uint64_t hash;
};
struct jdict {
    struct jentry *entries; /* in the order of insertion */
    uint32_t n, capacity;
    uint32_t *index; /* of n + 1, 0 empty; NULL while small */
    uint32_t index_size;
};

struct jcycler {
    const struct jlist *items; /* CYCLER; JOINER: the separator alone */
    uint32_t at;
};

/* ---- the tree ---- */

enum jkind {
    /* expressions */
    N_CONST,
    N_NAME,   /* id */
    N_LIST,   /* items */
    N_TUPLE,  /* items */
    N_DICT,   /* items: key, value, key, value */
    N_ATTR,   /* a.name */
    N_ITEM,   /* a[b] */
    N_SLICE,  /* only as b of ITEM: a:b:c, each may be NULL */
    N_CALL,   /* a(items) */
    N_FILTER, /* a|name(items); a NULL: the text of a block */
    N_TEST,   /* a is name(items) */
    N_UNARY,  /* op a */
    N_BINARY, /* a op b */
    N_AND,
    N_OR,
    N_CONCAT,   /* items */
    N_COMPARE,  /* a, then items of N_OPERAND */
    N_OPERAND,  /* op a */
    N_COND,     /* a if b else c */
    N_KEYWORD,  /* argument name=a */
    N_STAR,     /* argument *a */
    N_STARSTAR, /* argument **a */
    N_NSREF,    /* target id.name */
    /* statements */
    N_DATA,        /* value */
    N_PRINT,       /* a */
    N_BODY,        /* items */
    N_IF,          /* items: test, body, test, body...; b: else */
    N_FOR,         /* a target, b iterable, c test, body, otherwise */
    N_SET,         /* a target, b */
    N_SETBLOCK,    /* a target, b filter or NULL, body */
    N_WITH,        /* items: target, value...; body */
    N_MACRO,       /* id, items: parameters (N_KEYWORD, a: default or NULL), body */
    N_CALLBLOCK,   /* a call, b macro */
    N_FILTERBLOCK, /* a filter, body */
    N_AUTOESCAPE,  /* a condition, body */
    N_BREAK,
    N_CONTINUE,
};

enum jop {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
    OP_NOT,
    OP_NEG,
    OP_POS,
};

struct jnode {
    enum jkind kind;
    enum jop op;
    uint32_t line;
    uint32_t height;
    uint32_t id; /* of a name: index of the template's names */
    uint32_t n;
    bool recursive;                              /* FOR */
    bool uses_varargs, uses_kwargs, uses_caller; /* MACRO */
    const struct jstr *name;
    const struct jbuiltin *fn; /* FILTER, TEST; NULL: there is none of this name */
    struct jval value;
    const struct jnode *a, *b, *c, *body, *otherwise;
    const struct jnode **items;
};

struct jinja_template {
    struct arena arena;
    const struct jnode *body;
    struct strmap ids; /* name -> id */
    const struct jstr **names;
    size_t n_names, names_capacity;
    uint32_t id_loop, id_caller, id_varargs, id_kwargs;
};

/* ---- tokens ---- */

enum jtoken_kind {
    TOK_EOF,
    TOK_DATA,
    TOK_VAR_BEGIN,
    TOK_VAR_END,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_NAME,
    TOK_STRING,
    TOK_INT,
    TOK_FLOAT,
    TOK_OP, /* s, n: its spelling */
};
struct jtoken {
    enum jtoken_kind kind;
    uint32_t line;
    const char *s; /* STRING: without its quotes, escapes as written */
    uint32_t n;
};

struct jparser {
    struct jinja_template *t;
    const char *source;
    size_t n;
    struct jtoken *tokens;
    size_t n_tokens, capacity, at;
    unsigned depth;
    struct jnode *macro[16]; /* being parsed, outermost first */
    unsigned n_macros;
    unsigned loops; /* being parsed */
    jmp_buf escape;
    int rc;
    struct err *e;
};

_Noreturn void jparse_fail(struct jparser *p, int code, uint32_t line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void *jparse_alloc(struct jparser *p, size_t n, size_t element_bytes);
void jinja_lex(struct jparser *p); /* jinja_lex.c: fills tokens */
const struct jstr *jparse_string(struct jparser *p, const char *s, size_t n);
uint32_t jparse_id(struct jparser *p, const char *s, size_t n);
struct jnode *jparse_node(struct jparser *p, enum jkind kind);
const struct jnode *jparse_done(struct jparser *p, struct jnode *node); /* sets the height, checks it */
/* growing list of nodes */
struct jnodes {
    const struct jnode **items;
    size_t n, capacity;
};
void jparse_push(struct jparser *p, struct jnodes *v, const struct jnode *node);
const struct jnode *jparse_done_with(struct jparser *p, struct jnode *node, const struct jnodes *items);

static inline const struct jtoken *jparse_peek(const struct jparser *p)
{
    return &p->tokens[p->at];
}
bool jparse_is_op(const struct jparser *p, const char *op);
bool jparse_is_name(const struct jparser *p, const char *name);
bool jparse_skip_op(struct jparser *p, const char *op);
bool jparse_skip_name(struct jparser *p, const char *name);
void jparse_expect_op(struct jparser *p, const char *op);
const struct jtoken *jparse_expect_name(struct jparser *p);
void jparse_enter(struct jparser *p);
void jparse_leave(struct jparser *p);
/* jinja_expr.c */
const struct jnode *jparse_expression(struct jparser *p, bool with_condition);
struct jtuple_rules {
    bool simplified, no_condition, parentheses, namespaces;
    const char *end_name; /* a name that also ends the tuple, or NULL */
};
const struct jnode *jparse_tuple(struct jparser *p, struct jtuple_rules rules);
const struct jnode *jparse_filters(struct jparser *p, const struct jnode *a, bool inline_first);

/* ---- rendering ---- */

struct jvar {
    uint32_t id;
    struct jval value;
};
struct jscope {
    const struct jscope *parent;
    struct jvar *vars;
    uint32_t n, capacity;
};

struct jmacro {
    const struct jnode *node;
    const struct jscope *scope; /* where it was defined */
};

struct jloop {
    const struct jlist *items;
    const struct jnode *node; /* recursive loops are called */
    const struct jscope *scope;
    uint32_t at, depth;
    struct jval changed;
    bool has_changed;
};

struct jrun {
    const struct jinja_template *t;
    const struct jinja_options *o;
    struct arena *arena;
    uint64_t steps, max_steps;
    size_t max_output;
    unsigned depth, max_depth;
    uint32_t line;
    jmp_buf escape;
    int rc;
    struct err *e;
    struct jscope root;
};

/* Arguments of a builtin. given: as called; arg: by the builtin's parameter list. */
struct jcall {
    struct jval self; /* what is filtered, tested, or whose method it is */
    struct jval *args;
    uint32_t n;
    const struct jstr **keys; /* keyword arguments */
    struct jval *values;
    uint32_t n_keys;
    struct jval arg[JINJA_MAX_PARAMS]; /* UNDEFINED where absent */
    bool has[JINJA_MAX_PARAMS];
};

typedef struct jval (*jbuiltin_fn)(struct jrun *x, struct jcall *c);
struct jbuiltin {
    const char *name;
    jbuiltin_fn fn;
    const char *params; /* "a,b,c" or "*": takes args and keys as they are */
    unsigned required;
};
struct jmethod {
    const struct jbuiltin *fn;
    struct jval self;
};

_Noreturn void jinja_fail(struct jrun *x, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void jinja_fail_undefined(struct jrun *x, struct jval v);
void *jinja_alloc(struct jrun *x, size_t n, size_t element_bytes);
void jinja_enter(struct jrun *x);
static inline void jinja_leave(struct jrun *x)
{
    x->depth--;
}
void jinja_spend(struct jrun *x, uint64_t steps); /* fails when all are spent */

/* jinja_text.c: strings */
struct jbuf {
    struct jrun *x;
    char *s;
    uint8_t *marks;
    size_t n, capacity;
    bool marked; /* while marks is NULL: of all bytes */
};
void jbuf_add(struct jbuf *b, const char *s, size_t n, bool marked);
void jbuf_puts(struct jbuf *b, const char *s);
void jbuf_add_str(struct jbuf *b, const struct jstr *s, size_t from, size_t n); /* bytes, with their marks */
void jbuf_char(struct jbuf *b, uint32_t c, bool marked);
const struct jstr *jbuf_str(struct jbuf *b);
struct jval jbuf_val(struct jbuf *b);
static inline bool jstr_mark(const struct jstr *s, size_t at)
{
    return s->marks ? s->marks[at] : s->marked;
}
struct jval jinja_text(struct jrun *x, const char *s);
struct jval jinja_sub(struct jrun *x, const struct jstr *s, size_t from, size_t n); /* bytes */
uint32_t jstr_chars(const struct jstr *s);
size_t jstr_offset(const struct jstr *s, uint32_t chars); /* byte offset of a code point */
bool jstr_is(const struct jstr *s, const char *text);
bool jstr_equal(const struct jstr *a, const struct jstr *b);
int jstr_compare(const struct jstr *a, const struct jstr *b);
struct jval jinja_strip(struct jrun *x, const struct jstr *s, const struct jstr *chars, bool left,
                        bool right);
struct jval jinja_upper(struct jrun *x, const struct jstr *s);
struct jval jinja_lower(struct jrun *x, const struct jstr *s);
struct jval jinja_capitalize(struct jrun *x, const struct jstr *s);
struct jval jinja_replace(struct jrun *x, const struct jstr *s, const struct jstr *from,
                          const struct jstr *to, jint count);
struct jval jinja_escape(struct jrun *x, const struct jstr *s);
bool jinja_is_cased(const struct jstr *s, bool upper);
struct jlist *jinja_splitlines(struct jrun *x, const struct jstr *s, bool keep);
size_t jinja_find(const struct jstr *s, const struct jstr *what, size_t from); /* bytes; SIZE_MAX */

/* jinja_unicode.c */
bool junicode_space(uint32_t c);
bool junicode_printable(uint32_t c);
bool junicode_alpha(uint32_t c);
uint32_t junicode_lower(uint32_t c);
uint32_t junicode_upper(uint32_t c);
bool junicode_cased(uint32_t c);
const char *junicode_upper_special(uint32_t c); /* several characters, or NULL */

/* jinja_value.c */
struct jval jinja_none(void);
struct jval jinja_bool(bool b);
struct jval jinja_int(jint i);
struct jval jinja_float(double f);
struct jval jinja_str(const struct jstr *s);
struct jval jinja_undefined(const struct jstr *name);
struct jlist *jlist_new(struct jrun *x, enum jlist_kind kind);
void jlist_push(struct jrun *x, struct jlist *l, struct jval v);
struct jval jlist_val(struct jlist *l);
struct jval jinja_pair(struct jrun *x, struct jval a, struct jval b); /* tuple */
struct jdict *jdict_new(struct jrun *x);
void jdict_set(struct jrun *x, struct jdict *d, struct jval key, struct jval value);
const struct jval *jdict_get(struct jrun *x, const struct jdict *d, struct jval key);
const struct jval *jdict_get_str(struct jrun *x, const struct jdict *d, const struct jstr *key);
bool jinja_truth(struct jval v);
bool jinja_equal(struct jrun *x, struct jval a, struct jval b);
bool jinja_same(struct jval a, struct jval b); /* Python's `is` */
int jinja_order(struct jrun *x, struct jval a,
                struct jval b); /* <0, 0, >0; 2 unordered (NaN); fails on types */
bool jinja_contains(struct jrun *x, struct jval what, struct jval in);
const char *jinja_type_name(struct jval v);
/* What a loop sees; fails on what cannot be iterated. Consumes a generator. */
const struct jlist *jinja_iterate(struct jrun *x, struct jval v);
bool jinja_is_number(struct jval v); /* bool, int, float */
jint jinja_as_int(struct jrun *x, struct jval v, const char *what);
double jinja_as_float(struct jval v);
const struct jstr *jinja_as_str(struct jrun *x, struct jval v, const char *what);
struct jval jinja_from_json(struct jrun *x, const struct json *v, bool marked);
jint jinja_length(struct jrun *x, struct jval v);

/* jinja_print.c */
const struct jstr *jinja_to_str(struct jrun *x, struct jval v); /* Python's str() */
void jinja_print(struct jbuf *b, struct jval v);
void jinja_repr(struct jbuf *b, struct jval v);
struct jjson_style {
    bool ensure_ascii, sort_keys;
    const struct jstr *indent;     /* one level, or NULL */
    const struct jstr *item, *key; /* separators */
};
void jinja_dump_json(struct jbuf *b, struct jval v, const struct jjson_style *style);
void jinja_print_int(struct jbuf *b, jint i);
void jinja_print_float(struct jbuf *b, double f);

/* jinja_ops.c */
struct jval jinja_binary(struct jrun *x, enum jop op, struct jval a, struct jval b);
struct jval jinja_unary(struct jrun *x, enum jop op, struct jval a);
struct jval jinja_item(struct jrun *x, struct jval a, struct jval key);
struct jval jinja_attr(struct jrun *x, struct jval a, const struct jstr *name);
struct jval jinja_slice(struct jrun *x, struct jval a, const struct jval bound[3]);
/* 'a.b.0' of filters; fallback stands in for every part that is undefined, if it is not None */
struct jval jinja_dotted(struct jrun *x, struct jval v, struct jval attribute, struct jval fallback);

/* jinja_format.c */
struct jval jinja_percent(struct jrun *x, const struct jstr *f, struct jval args);
struct jval jinja_str_format(struct jrun *x, struct jcall *c);

/* jinja_eval.c */
struct jval jinja_eval(struct jrun *x, const struct jscope *s, const struct jnode *n);
enum jflow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };
enum jflow jinja_exec(struct jrun *x, struct jscope *s, const struct jnode *n, struct jbuf *out);
void jscope_set(struct jrun *x, struct jscope *s, uint32_t id, struct jval v);
struct jval jinja_run_loop(struct jrun *x, const struct jloop *outer, struct jval items);
/* jinja_call.c */
struct jval jinja_call(struct jrun *x, struct jval fn, struct jcall *c);
struct jval jinja_invoke(struct jrun *x, const struct jbuiltin *fn, struct jcall *c);
void jinja_arguments(struct jrun *x, const struct jscope *s, const struct jnode *n, struct jcall *c);
/* the value if the argument was given and is not None-like, else fallback */
jint jcall_int(struct jrun *x, const struct jcall *c, unsigned i, jint fallback);
bool jcall_bool(const struct jcall *c, unsigned i, bool fallback);
const struct jstr *jcall_str(struct jrun *x, const struct jcall *c, unsigned i);

/* tables */
const struct jbuiltin *jinja_find_filter(const char *name, size_t n);
const struct jbuiltin *jinja_find_test(const char *name, size_t n);
const struct jbuiltin *jinja_find_string_method(const struct jstr *name);
const struct jbuiltin *jinja_find_function(const struct jstr *name);                 /* globals */
struct jval jinja_method(struct jrun *x, struct jval self, const struct jstr *name); /* UNDEFINED: none */

#endif
