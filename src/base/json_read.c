/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the JSON reader and access to its trees.
 * Refuses: everything that RFC 8259 does, and what it leaves open: duplicate keys, lone surrogates, numbers
 * that are infinite as a double, a byte order mark.
 *
 * The reader does not recurse. Finished values wait on `stack` until their container closes; then they move
 * into the arena as one array. An object of more than FEW members carries an index behind its members: a seed
 * and an open-addressed table of member numbers, so that neither duplicates nor look-ups cost more than
 * constant time.
 */
#include "base/json.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/hash.h"

#define FEW               8u
#define DEFAULT_MAX_BYTES ((size_t)128 << 20)
#define DEFAULT_MAX_DEPTH 64u
#define HARD_MAX_DEPTH    512u
#define POOL_BYTES        ((size_t)64 << 10)

struct frame {
    size_t base; /* first value of this container on the stack */
    bool is_object;
};

struct reader {
    const char *text, *p, *end;
    struct arena *arena;
    struct err *e;
    unsigned max_depth, depth;
    struct frame frames[HARD_MAX_DEPTH];
    void *stack; /* struct json_member; `hash` holds the key's offset in the text until the object closes */
    size_t n_stack, stack_capacity;
    char *pool; /* where the next string goes */
    size_t pool_left;
    uint64_t seed; /* chosen once per text: keys that collide cannot be prepared */
};

static struct json_member *stack_at(const struct reader *r, size_t i)
{
    return (struct json_member *)r->stack + i;
}

/* ---- errors */

static __attribute__((format(printf, 4, 5))) int complain(struct reader *r, int code, const char *at,
                                                          const char *fmt, ...)
{
    size_t line = 1, column = 1;
    for (const char *p = r->text; p < at; p++) {
        column++;
        if (*p == '\n') {
            line++;
            column = 1;
        }
    }
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    return err_set(r->e, code, "line %zu, column %zu (byte %zu): %s", line, column, (size_t)(at - r->text),
                   what);
}

static int no_memory(struct reader *r)
{
    return err_set(r->e, ERR_NOMEM, "no memory for the JSON tree of %zu bytes of text",
                   (size_t)(r->end - r->text));
}

/* "expected X, found Y" */
static int unexpected(struct reader *r, const char *expected)
{
    if (r->p >= r->end)
        return complain(r, ERR_FORMAT, r->p, "expected %s, found the end", expected);
    unsigned char c = (unsigned char)*r->p;
    if (c > 0x20 && c < 0x7F)
        return complain(r, ERR_FORMAT, r->p, "expected %s, found '%c'", expected, c);
    return complain(r, ERR_FORMAT, r->p, "expected %s, found byte 0x%02X", expected, c);
}

/* ---- strings */

/* Room for n bytes from a block of 64 KiB, so that a million short strings need no million aligned pieces. */
static char *pool_take(struct reader *r, size_t n)
{
    if (n > r->pool_left) {
        if (n > POOL_BYTES / 4)
            return arena_alloc(r->arena, n);
        size_t all = (size_t)(r->end - r->text) + 1, want = all < POOL_BYTES ? all : POOL_BYTES;
        if (want < n)
            want = n;
        char *fresh = arena_alloc(r->arena, want);
        if (!fresh)
            return NULL;
        r->pool = fresh;
        r->pool_left = want;
    }
    char *p = r->pool;
    r->pool += n;
    r->pool_left -= n;
    return p;
}

static bool read_hex4(const char *p, const char *end, uint32_t *out)
{
    uint32_t v = 0;
    if (end - p < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        unsigned char c = (unsigned char)p[i], letter = c | 0x20;
        unsigned digit = 16;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if (letter >= 'a' && letter <= 'f')
            digit = letter - 'a' + 10;
        if (digit > 15)
            return false;
        v = v << 4 | digit;
    }
    *out = v;
    return true;
}

/* *at stands on "\u"; moves behind the escape and writes its UTF-8. Returns its length, 0 after an error. */
static size_t unescape_unicode(struct reader *r, const char **at, const char *end, char out[4])
{
    const char *p = *at;
    uint32_t c, low;
    if (!read_hex4(p + 2, end, &c)) {
        complain(r, ERR_FORMAT, p, "\\u needs four hexadecimal digits");
        return 0;
    }
    p += 6;
    if (c >= 0xD800 && c <= 0xDBFF && end - p >= 6 && p[0] == '\\' && p[1] == 'u' &&
        read_hex4(p + 2, end, &low) && low >= 0xDC00 && low <= 0xDFFF) {
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        p += 6;
    }
    size_t n = utf8_encode(c, out);
    if (n == 0)
        complain(r, ERR_FORMAT, *at, "lone surrogate \\u%04X", c);
    *at = p;
    return n;
}

/* Copies the raw string [p, end), which holds escapes, to `to`; *n gets its length. */
static int unescape(struct reader *r, const char *p, const char *end, char *to, size_t *n)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    char *start = to;
    while (p < end) {
        if (*p != '\\') {
            *to++ = *p++;
            continue;
        }
        if (p[1] == 'u') {
            char bytes[4];
            size_t k = unescape_unicode(r, &p, end, bytes);
            if (k == 0)
                return ERR_FORMAT;
            memcpy(to, bytes, k);
            to += k;
            continue;
        }
        const char *which = p[1] ? strchr(from, p[1]) : NULL;
        if (!which)
            return complain(r, ERR_FORMAT, p, "unknown escape in a string");
        *to++ = into[which - from];
        p += 2;
    }
    *n = (size_t)(to - start);
    return ERR_OK;
}

/* Finds the closing quote of the string whose content begins at r->p, checking characters on the way. */
static int find_quote(struct reader *r, const char **quote, bool *escaped)
{
    const char *p = r->p, *end = r->end;
    *escaped = false;
    while (p < end) {
        unsigned char c = (unsigned char)*p;
        if (c == '"') {
            *quote = p;
            return ERR_OK;
        }
        if (c == '\\') {
            *escaped = true;
            if (end - p < 2)
                break;
            /* The byte behind it is judged when unescaping; a non-ASCII one is judged here, in the next
             * round. */
            p += (unsigned char)p[1] < 0x80 ? 2 : 1;
        } else if (c < 0x20) {
            return complain(r, ERR_FORMAT, p, "control character 0x%02X in a string", c);
        } else if (c < 0x80) {
            p++;
        } else {
            uint32_t ignored;
            size_t n = utf8_decode(p, (size_t)(end - p), &ignored);
            if (n == 0)
                return complain(r, ERR_FORMAT, p, "invalid UTF-8 (byte 0x%02X)", c);
            p += n;
        }
    }
    return complain(r, ERR_FORMAT, r->p - 1, "string without end");
}

/* r->p stands on the opening quote. */
static int read_string(struct reader *r, const char **out, uint32_t *n_out)
{
    const char *quote = NULL;
    bool escaped;
    r->p++;
    int rc = find_quote(r, &quote, &escaped);
    if (rc)
        return rc;
    size_t raw = (size_t)(quote - r->p), n = raw;
    char *to = pool_take(r, raw + 1); /* no escape is shorter than what it stands for */
    if (!to)
        return no_memory(r);
    if (!escaped)
        memcpy(to, r->p, raw);
    else if ((rc = unescape(r, r->p, quote, to, &n)))
        return rc;
    to[n] = '\0';
    r->p = quote + 1;
    *out = to;
    *n_out = (uint32_t)n;
    return ERR_OK;
}

/* ---- numbers */

static int read_double(struct reader *r, const char *start, struct json *v)
{
    char small[128], *copy = small;
    size_t n = (size_t)(r->p - start);
    if (n >= sizeof(small) && !(copy = malloc(n + 1)))
        return no_memory(r);
    memcpy(copy, start, n);
    copy[n] = '\0';
    /* strtod alone would expect a comma in some locales. "C" is a constant object in libc: nothing to free.
     */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    v->type = JSON_DOUBLE;
    v->as.d = strtod_l(copy, NULL, c);
    freelocale(c);
    if (copy != small)
        free(copy);
    if (!isfinite(v->as.d))
        return complain(r, ERR_FORMAT, start, "number too large for a double");
    return ERR_OK;
}

static bool skip_digits(struct reader *r)
{
    const char *start = r->p;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9')
        r->p++;
    return r->p > start;
}

/* Checks the grammar of a number and moves r->p behind it. *integer: neither fraction nor exponent. */
static int scan_number(struct reader *r, bool *integer)
{
    const char *digits = r->p + (*r->p == '-');
    r->p = digits;
    if (!skip_digits(r))
        return unexpected(r, "a digit");
    if (*digits == '0' && r->p - digits > 1)
        return complain(r, ERR_FORMAT, digits, "number with a leading zero");
    *integer = true;
    if (r->p < r->end && *r->p == '.') {
        *integer = false;
        r->p++;
        if (!skip_digits(r))
            return unexpected(r, "a digit after the decimal point");
    }
    if (r->p < r->end && (*r->p == 'e' || *r->p == 'E')) {
        *integer = false;
        r->p++;
        if (r->p < r->end && (*r->p == '+' || *r->p == '-'))
            r->p++;
        if (!skip_digits(r))
            return unexpected(r, "a digit in the exponent");
    }
    return ERR_OK;
}

static int read_number(struct reader *r, struct json *v)
{
    const char *start = r->p;
    bool negative = *start == '-', integer;
    int rc = scan_number(r, &integer);
    if (rc)
        return rc;
    uint64_t u = 0;
    for (const char *p = start + negative; integer && p < r->p; p++)
        integer = !__builtin_mul_overflow(u, (uint64_t)10, &u) &&
                  !__builtin_add_overflow(u, (uint64_t)(*p - '0'), &u);
    if (!integer || (negative && u > (uint64_t)INT64_MAX + 1))
        return read_double(r, start, v);
    if (!negative && u > INT64_MAX) {
        v->type = JSON_UINT;
        v->as.u = u;
        return ERR_OK;
    }
    v->type = JSON_INT;
    v->as.i = negative ? (int64_t)(0 - u) : (int64_t)u;
    return ERR_OK;
}

/* ---- the index of a large object */

static size_t index_slots(uint32_t n)
{
    size_t slots = 32;
    while (slots < (size_t)n * 2)
        slots *= 2;
    return slots;
}

static bool same_key(const struct json_member *m, const char *key, size_t key_bytes)
{
    return m->key_bytes == key_bytes && memcmp(m->key, key, key_bytes) == 0;
}

/* The slot of a key: holds 1 + its member number, or 0 where the key is absent. */
static const uint32_t *index_find(const struct json_member *members, uint32_t n, const char *key,
                                  size_t key_bytes, uint32_t *hash)
{
    const uint64_t *seed = (const uint64_t *)(members + n);
    const uint32_t *slots = (const uint32_t *)(seed + 1);
    size_t mask = index_slots(n) - 1;
    *hash = (uint32_t)hash64(key, key_bytes, *seed);
    for (size_t i = *hash & mask;; i = (i + 1) & mask) {
        if (slots[i] == 0)
            return &slots[i];
        const struct json_member *m = &members[slots[i] - 1];
        if (m->hash == *hash && same_key(m, key, key_bytes))
            return &slots[i];
    }
}

static int duplicate(struct reader *r, const struct json_member *m, uint32_t at)
{
    char key[64];
    size_t n = utf8_complete_prefix(m->key, m->key_bytes < sizeof(key) ? m->key_bytes : sizeof(key) - 1);
    memcpy(key, m->key, n);
    key[n] = '\0';
    for (size_t i = 0; i < n; i++) /* this text goes to terminals and logs */
        if ((unsigned char)key[i] < 0x20)
            key[i] = '?';
    return complain(r, ERR_FORMAT, r->text + at, "duplicate key \"%s\"", key);
}

/* Fills the index, which refuses duplicates on the way. */
static int build_index(struct reader *r, struct json_member *members, uint32_t n)
{
    *(uint64_t *)(members + n) = r->seed;
    for (uint32_t i = 0; i < n; i++) {
        struct json_member *m = &members[i];
        uint32_t at = m->hash, hash;
        uint32_t *slot = (uint32_t *)index_find(members, n, m->key, m->key_bytes, &hash);
        if (*slot)
            return duplicate(r, m, at);
        m->hash = hash;
        *slot = i + 1;
    }
    return ERR_OK;
}

/* ---- containers */

static int close_object(struct reader *r, size_t base, struct json *v)
{
    size_t n = r->n_stack - base, bytes = n * sizeof(struct json_member);
    if (n > FEW)
        bytes += sizeof(uint64_t) + index_slots((uint32_t)n) * sizeof(uint32_t);
    struct json_member *members = arena_alloc(r->arena, bytes);
    if (!members)
        return no_memory(r);
    if (n)
        memcpy(members, stack_at(r, base), n * sizeof(*members));
    v->type = JSON_OBJECT;
    v->n = (uint32_t)n;
    v->as.members = members;
    if (n > FEW)
        return build_index(r, members, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++)
            if (same_key(&members[j], members[i].key, members[i].key_bytes))
                return duplicate(r, &members[i], members[i].hash);
    }
    return ERR_OK;
}

static int close_array(struct reader *r, size_t base, struct json *v)
{
    size_t n = r->n_stack - base;
    struct json *items = arena_alloc_n(r->arena, n, sizeof(*items));
    if (!items)
        return no_memory(r);
    for (size_t i = 0; i < n; i++)
        items[i] = stack_at(r, base + i)->value;
    v->type = JSON_ARRAY;
    v->n = (uint32_t)n;
    v->as.items = items;
    return ERR_OK;
}

static int close_container(struct reader *r, struct json *v)
{
    struct frame *f = &r->frames[--r->depth];
    r->p++;
    int rc = f->is_object ? close_object(r, f->base, v) : close_array(r, f->base, v);
    r->n_stack = f->base;
    return rc;
}

static void skip_space(struct reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t'))
        r->p++;
}

static int push(struct reader *r, const struct json_member *m)
{
    if (vec_reserve(&r->stack, &r->stack_capacity, r->n_stack + 1, sizeof(*m)))
        return no_memory(r);
    *stack_at(r, r->n_stack++) = *m;
    return ERR_OK;
}

/* A key and its colon; its value follows on the same stack element. */
static int read_key(struct reader *r)
{
    skip_space(r);
    if (r->p >= r->end || *r->p != '"')
        return unexpected(r, "a key in double quotes");
    struct json_member m = {.hash = (uint32_t)(r->p - r->text)};
    int rc = read_string(r, &m.key, &m.key_bytes);
    if (rc)
        return rc;
    skip_space(r);
    if (r->p >= r->end || *r->p != ':')
        return unexpected(r, "':'");
    r->p++;
    return push(r, &m);
}

static int open_container(struct reader *r, struct json *v, bool *complete)
{
    bool is_object = *r->p == '{';
    if (r->depth >= r->max_depth)
        return complain(r, ERR_LIMIT, r->p, "nested deeper than %u levels", r->max_depth);
    r->frames[r->depth++] = (struct frame){.base = r->n_stack, .is_object = is_object};
    r->p++;
    skip_space(r);
    *complete = r->p < r->end && *r->p == (is_object ? '}' : ']');
    if (*complete)
        return close_container(r, v);
    return is_object ? read_key(r) : ERR_OK;
}

static int read_word(struct reader *r, const char *word, struct json *v, enum json_type type, bool boolean)
{
    size_t n = strlen(word);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n) != 0)
        return unexpected(r, "a value");
    r->p += n;
    v->type = type;
    if (type == JSON_BOOL)
        v->as.boolean = boolean;
    return ERR_OK;
}

/* Reads a value, or the beginning of a container whose first value follows (then *complete is false). */
static int begin_value(struct reader *r, struct json *v, bool *complete)
{
    *v = (struct json){0};
    *complete = true;
    skip_space(r);
    if (r->p >= r->end)
        return unexpected(r, "a value");
    switch (*r->p) {
    case '{':
    case '[':
        return open_container(r, v, complete);
    case '"':
        v->type = JSON_STRING;
        return read_string(r, &v->as.string, &v->n);
    case 't':
        return read_word(r, "true", v, JSON_BOOL, true);
    case 'f':
        return read_word(r, "false", v, JSON_BOOL, false);
    case 'n':
        return read_word(r, "null", v, JSON_NULL, false);
    default:
        if (*r->p == '-' || (*r->p >= '0' && *r->p <= '9'))
            return read_number(r, v);
        return unexpected(r, "a value");
    }
}

/* Gives *v to its container and reads on: a comma (another value follows) or the end of the container, which
 * is then the complete value in *v. */
static int after_value(struct reader *r, struct json *v, bool *complete)
{
    bool is_object = r->frames[r->depth - 1].is_object;
    struct json_member element = {.value = *v};
    if (is_object)
        stack_at(r, r->n_stack - 1)->value = *v;
    else if (push(r, &element))
        return ERR_NOMEM;
    skip_space(r);
    char c = r->p < r->end ? *r->p : '\0';
    *complete = c == (is_object ? '}' : ']');
    if (*complete)
        return close_container(r, v);
    if (c != ',')
        return unexpected(r, is_object ? "',' or '}'" : "',' or ']'");
    r->p++;
    return is_object ? read_key(r) : ERR_OK;
}

static int read_document(struct reader *r, struct json *root)
{
    bool complete;
    for (;;) {
        int rc = begin_value(r, root, &complete);
        while (!rc && complete && r->depth > 0)
            rc = after_value(r, root, &complete);
        if (rc)
            return rc;
        if (complete)
            break;
    }
    skip_space(r);
    if (r->p < r->end)
        return unexpected(r, "nothing after the value");
    return ERR_OK;
}

int json_parse(const char *text, size_t n, const struct json_limits *limits, struct arena *arena,
               const struct json **out, struct err *e)
{
    size_t max_bytes = limits && limits->max_bytes ? limits->max_bytes : DEFAULT_MAX_BYTES;
    unsigned max_depth = limits && limits->max_depth ? limits->max_depth : DEFAULT_MAX_DEPTH;
    if (n > max_bytes || n >= UINT32_MAX)
        return err_set(e, ERR_LIMIT, "%zu bytes of JSON, more than the %zu allowed", n, max_bytes);
    struct reader r = {.arena = arena, .e = e};
    r.text = r.p = text;
    r.end = text + n;
    r.max_depth = max_depth < HARD_MAX_DEPTH ? max_depth : HARD_MAX_DEPTH;
    if (getrandom(&r.seed, sizeof(r.seed), GRND_NONBLOCK) != (ssize_t)sizeof(r.seed))
        r.seed = (uint64_t)(uintptr_t)&r ^ (uint64_t)(uintptr_t)text;
    struct json root;
    struct json *kept = NULL;
    int rc = read_document(&r, &root);
    if (!rc && !(kept = arena_alloc(arena, sizeof(*kept))))
        rc = no_memory(&r);
    free(r.stack);
    if (rc)
        return rc;
    *kept = root;
    *out = kept;
    return ERR_OK;
}

/* ---- access */

const struct json *json_get(const struct json *v, const char *key)
{
    if (!v || v->type != JSON_OBJECT)
        return NULL;
    size_t key_bytes = strlen(key);
    if (v->n > FEW) {
        uint32_t hash;
        uint32_t slot = *index_find(v->as.members, v->n, key, key_bytes, &hash);
        return slot ? &v->as.members[slot - 1].value : NULL;
    }
    for (uint32_t i = 0; i < v->n; i++) {
        if (same_key(&v->as.members[i], key, key_bytes))
            return &v->as.members[i].value;
    }
    return NULL;
}

const struct json *json_at(const struct json *v, size_t index)
{
    return v && v->type == JSON_ARRAY && index < v->n ? &v->as.items[index] : NULL;
}

bool json_i64(const struct json *v, int64_t *out)
{
    if (!v || v->type != JSON_INT)
        return false;
    *out = v->as.i;
    return true;
}

bool json_u64(const struct json *v, uint64_t *out)
{
    if (!v || (v->type != JSON_UINT && (v->type != JSON_INT || v->as.i < 0)))
        return false;
    *out = v->type == JSON_UINT ? v->as.u : (uint64_t)v->as.i;
    return true;
}

bool json_f64(const struct json *v, double *out)
{
    if (!v || (v->type != JSON_DOUBLE && v->type != JSON_INT && v->type != JSON_UINT))
        return false;
    *out = v->type == JSON_DOUBLE ? v->as.d : v->type == JSON_INT ? (double)v->as.i : (double)v->as.u;
    return true;
}

bool json_bool(const struct json *v, bool *out)
{
    if (!v || v->type != JSON_BOOL)
        return false;
    *out = v->as.boolean;
    return true;
}

const char *json_string(const struct json *v)
{
    return v && v->type == JSON_STRING ? v->as.string : NULL;
}

const char *json_type_name(enum json_type t)
{
    static const char *const names[] = {"null",   "boolean", "integer", "integer",
                                        "number", "string",  "array",   "object"};
    return (unsigned)t < ARRAY_LEN(names) ? names[t] : "unknown";
}
