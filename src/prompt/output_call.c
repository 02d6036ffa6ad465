/* SPDX-License-Identifier: Apache-2.0
 *
 * What stood between the markers of one call -> name, id, arguments. Owns the matching of patterns and the
 * typing of arguments that come as text. Refuses whatever is not wholly a call: arguments are given out only
 * if they are one JSON object by the strict reader. JSON that the model wrote is passed on byte for byte.
 */
#include <string.h>

#include "prompt/output_impl.h"

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

void trim_space(const char **s, size_t *n)
{
    while (*n > 0 && is_space((*s)[*n - 1]))
        --*n;
    while (*n > 0 && is_space(**s))
        ++*s, --*n;
}

bool call_name_good(const char *s, size_t n)
{
    if (n == 0 || n > OUTPUT_MAX_NAME || !utf8_valid(s, n))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] <= 0x20 || s[i] == 0x7f)
            return false;
    return true;
}

bool call_is_json(const struct call_rules *r)
{
    for (uint32_t b = 0; b < r->n_bodies; b++)
        for (uint32_t i = 0; i < r->bodies[b].n; i++)
            if (r->bodies[b].parts[i].kind == PART_ARGS)
                return false;
    return true;
}

/* ---- JSON ---- */

static int parse(struct arena *a, const char *s, size_t n, const struct json **out, struct err *e)
{
    static const struct json_limits limits = {.max_bytes = OUTPUT_MAX_CALL + 4096, .max_depth = 64};
    int rc = json_parse(s, n, &limits, a, out, e);
    return rc == ERR_LIMIT ? ERR_FORMAT : rc;
}

int call_arguments(const char *text, size_t n, struct strbuf *out, struct err *e)
{
    struct arena a;
    const struct json *v = NULL;
    trim_space(&text, &n);
    arena_init(&a, NULL, MEM_TEXT);
    int rc = parse(&a, text, n, &v, e);
    if (rc == 0 && v->type != JSON_OBJECT)
        rc = err_set(e, ERR_FORMAT, "the arguments are no JSON object");
    if (rc == 0)
        strbuf_add(out, text, n);
    arena_release(&a);
    return rc;
}

static size_t skip_space(const char *s, size_t n, size_t i)
{
    while (i < n && is_space(s[i]))
        i++;
    return i;
}

static size_t skip_string(const char *s, size_t n, size_t i)
{
    for (i++; i < n && s[i] != '"'; i++)
        i += s[i] == '\\';
    return i < n ? i + 1 : n;
}

/* Behind the value that begins at i, of text known to be valid JSON. */
static size_t skip_value(const char *s, size_t n, size_t i)
{
    unsigned depth = 0;
    do {
        if (s[i] == '"') {
            i = skip_string(s, n, i);
            continue;
        }
        if (s[i] == '{' || s[i] == '[')
            depth++;
        else if (s[i] == '}' || s[i] == ']')
            depth--;
        i++;
    } while (i < n && (depth > 0 || (s[i] != ',' && s[i] != '}' && s[i] != ']')));
    return i;
}

/* The text of a member of the valid object s, as it was written; NULL: none whose key is written so. */
static const char *raw_member(const char *s, size_t n, const char *key, size_t *len)
{
    size_t key_len = strlen(key), i = skip_space(s, n, 1);
    while (i < n && s[i] == '"') {
        size_t k = i + 1, end = skip_string(s, n, i);
        bool hit = end - 1 - k == key_len && memcmp(s + k, key, key_len) == 0;
        i = skip_space(s, n, skip_space(s, n, end) + 1); /* behind the colon */
        end = skip_value(s, n, i);
        if (hit) {
            const char *at = s + i;
            *len = end - i;
            trim_space(&at, len);
            return at;
        }
        i = skip_space(s, n, skip_space(s, n, end) + 1); /* behind the comma */
    }
    return NULL;
}

/* {"name": ..., "arguments" or "parameters": ...} */
static int call_object(const char *s, size_t n, struct parsed_call *out, struct err *e)
{
    static const char *const keys[] = {"arguments", "parameters"};
    struct arena a;
    const struct json *v = NULL, *args = NULL;
    const char *raw = NULL;
    size_t len = 0;
    trim_space(&s, &n);
    arena_init(&a, NULL, MEM_TEXT);
    int rc = parse(&a, s, n, &v, e);
    const struct json *name = rc ? NULL : json_get(v, "name");
    if (rc == 0 && (json_string(name) == NULL || !call_name_good(name->as.string, name->n)))
        rc = err_set(e, ERR_FORMAT, "the call has no name");
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(keys) && !args; i++) {
        args = json_get(v, keys[i]);
        raw = args ? raw_member(s, n, keys[i], &len) : NULL;
    }
    if (rc == 0) {
        strbuf_add(&out->name, name->as.string, name->n);
        if (args && args->type == JSON_STRING) /* JSON within a string */
            rc = call_arguments(args->as.string, args->n, &out->arguments, e);
        else if (args && args->type == JSON_OBJECT && raw)
            strbuf_add(&out->arguments, raw, len);
        else if (args == NULL || args->type == JSON_NULL)
            strbuf_puts(&out->arguments, "{}");
        else
            rc = err_set(e, ERR_FORMAT, "the arguments are no JSON object");
    }
    arena_release(&a);
    return rc;
}

/* ---- patterns ---- */

struct slice {
    const char *s;
    size_t n;
};

struct match {
    struct slice name, id, json, call, args, key, type, string, value;
};

static struct slice *field_of(struct match *m, enum part_kind k)
{
    switch (k) {
    case PART_NAME:
        return &m->name;
    case PART_ID:
        return &m->id;
    case PART_JSON:
        return &m->json;
    case PART_CALL:
        return &m->call;
    case PART_ARGS:
        return &m->args;
    case PART_KEY:
        return &m->key;
    case PART_TYPE:
        return &m->type;
    case PART_STRING:
        return &m->string;
    case PART_VALUE:
        return &m->value;
    case PART_TEXT:
    case PART_SPACE:
    case PART_SKIP:
        break;
    }
    return NULL;
}

/* Where the field that begins at pos ends: before the text that follows it. JSON may hold that text, so it
 * ends at the last one. SIZE_MAX: nowhere. */
static size_t field_end(const struct pattern *p, uint32_t part, const struct pattern *argument, const char *s,
                        size_t n, size_t pos)
{
    const struct marker *next = NULL;
    bool optional = false;
    for (uint32_t i = part + 1; i < p->n && !next; i++) {
        if (p->parts[i].kind == PART_TEXT)
            next = &p->parts[i].text;
        optional = optional || p->parts[i].kind == PART_ARGS;
    }
    const char *at = next ? memmem(s + pos, n - pos, next->text, next->n) : NULL;
    if (next && at == NULL)
        return SIZE_MAX;
    enum part_kind kind = p->parts[part].kind;
    for (const char *later = at; later && kind == PART_JSON;) {
        later = memmem(at + 1, (size_t)(s + n - at - 1), next->text, next->n);
        at = later ? later : at;
    }
    size_t end = at ? (size_t)(at - s) : n;
    if (optional && kind != PART_ARGS) { /* arguments, if there are any, end it before */
        const struct marker *first = &argument->parts[0].text;
        at = memmem(s + pos, end - pos, first->text, first->n);
        end = at ? (size_t)(at - s) : end;
    }
    return end;
}

/* From pos on; returns where the pattern ends, SIZE_MAX if it does not match. */
static size_t match_at(const struct pattern *p, const struct pattern *argument, const char *s, size_t n,
                       size_t pos, struct match *m)
{
    for (uint32_t i = 0; i < p->n; i++) {
        const struct pattern_part *part = &p->parts[i];
        if (part->kind == PART_SPACE) {
            pos = skip_space(s, n, pos);
        } else if (part->kind == PART_TEXT) {
            if (part->text.n > n - pos || memcmp(s + pos, part->text.text, part->text.n) != 0)
                return SIZE_MAX;
            pos += part->text.n;
        } else {
            size_t end;
            struct slice *f = field_of(m, part->kind);
            if (part->kind == PART_ARGS) { /* its arguments decide where it ends */
                struct match one = {0};
                size_t next;
                end = pos;
                while ((next = match_at(argument, NULL, s, n, skip_space(s, n, end), &one)) != SIZE_MAX)
                    end = next;
            } else {
                end = field_end(p, i, argument, s, n, pos);
            }
            if (end == SIZE_MAX)
                return SIZE_MAX;
            if (f)
                *f = (struct slice){s + pos, end - pos};
            pos = part->kind == PART_ARGS ? skip_space(s, n, end) : end;
        }
    }
    return pos;
}

/* ---- arguments one by one ---- */

static void add_unescaped(struct strbuf *out, const struct slice *v, bool unescape)
{
    static const struct {
        const char *from;
        char to;
    } table[] = {{"&quot;", '"'}, {"&amp;", '&'}};
    for (size_t i = 0; i < v->n; i++) {
        char c = v->s[i];
        for (size_t k = 0; unescape && k < ARRAY_LEN(table); k++) {
            size_t len = strlen(table[k].from);
            if (len <= v->n - i && memcmp(v->s + i, table[k].from, len) == 0) {
                c = table[k].to;
                i += len - 1;
                break;
            }
        }
        strbuf_putc(out, c);
    }
}

static bool slice_is(const struct slice *v, const char *word)
{
    return v->s && v->n == strlen(word) && memcmp(v->s, word, v->n) == 0;
}

/* Type of an argument in the schema of the request's tool, or NULL. */
static const char *schema_type(const struct json *tools, const char *name, const char *key)
{
    for (uint32_t i = 0; tools && tools->type == JSON_ARRAY && i < tools->n; i++) {
        const struct json *f = json_get(json_at(tools, i), "function");
        const char *its = json_string(json_get(f, "name"));
        if (its == NULL || strcmp(its, name) != 0)
            continue;
        const struct json *properties = json_get(json_get(f, "parameters"), "properties");
        return json_string(json_get(json_get(properties, key), "type"));
    }
    return NULL;
}

enum value_as { AS_STRING, AS_JSON, AS_EITHER };

static enum value_as value_kind(const struct match *m, const struct json *tools, const char *name,
                                const char *key)
{
    if (m->type.s)
        return slice_is(&m->type, "string") ? AS_STRING : AS_JSON;
    if (m->string.s)
        return slice_is(&m->string, "true") ? AS_STRING : AS_JSON;
    const char *type = schema_type(tools, name, key);
    return type && strcmp(type, "string") == 0 ? AS_STRING : AS_EITHER;
}

static int add_value(struct json_writer *w, struct slice v, enum value_as as, struct err *e)
{
    struct arena a;
    const struct json *tree = NULL;
    struct err why = {0};
    if (memchr(v.s, TOKEN_OPEN, v.n))
        return err_set(e, ERR_FORMAT, "a marker stands within an argument");
    if (as == AS_STRING) {
        json_write_string_n(w, v.s, v.n);
        return ERR_OK;
    }
    const char *text = v.s;
    size_t n = v.n;
    trim_space(&text, &n);
    arena_init(&a, NULL, MEM_TEXT);
    int rc = parse(&a, text, n, &tree, &why);
    if (rc == 0) {
        const char *copy = arena_strndup(&a, text, n);
        if (copy == NULL)
            rc = err_set(e, ERR_NOMEM, "out of memory for an argument");
        else
            json_write_raw(w, copy);
    } else if (rc == ERR_FORMAT && as == AS_EITHER) {
        json_write_string_n(w, v.s, v.n);
        rc = ERR_OK;
    } else {
        rc = err_set(e, rc, "an argument is no JSON: %.200s", why.message);
    }
    arena_release(&a);
    return rc;
}

static struct slice value_text(const struct call_rules *r, struct slice v)
{
    if (r->trim_newline && v.n > 0 && v.s[0] == '\n')
        v.s++, v.n--;
    if (r->trim_newline && v.n > 0 && v.s[v.n - 1] == '\n')
        v.n--;
    return v;
}

static int add_arguments(const struct call_rules *r, const struct json *tools, struct slice args,
                         const char *name, struct strbuf *out, struct err *e)
{
    struct json_writer w;
    struct strbuf key = STRBUF_INIT, text = STRBUF_INIT;
    size_t pos = 0;
    int rc = ERR_OK;
    json_writer_init(&w, &text, false);
    json_begin_object(&w);
    while (rc == 0) {
        struct match m = {0};
        size_t next = match_at(&r->argument, NULL, args.s, args.n, skip_space(args.s, args.n, pos), &m);
        if (next == SIZE_MAX)
            break;
        pos = next;
        trim_space(&m.key.s, &m.key.n);
        strbuf_clear(&key);
        add_unescaped(&key, &m.key, r->unescape);
        if (!call_name_good(strbuf_cstr(&key), key.len)) {
            rc = err_set(e, ERR_FORMAT, "an argument has no name");
            break;
        }
        json_key(&w, strbuf_cstr(&key));
        rc = add_value(&w, value_text(r, m.value), value_kind(&m, tools, name, strbuf_cstr(&key)), e);
    }
    if (rc == 0)
        json_end_object(&w);
    if (rc == 0 && (strbuf_failed(&text) || strbuf_failed(&key)))
        rc = err_set(e, ERR_NOMEM, "out of memory for arguments");
    if (rc == 0) /* finds keys that come twice */
        rc = call_arguments(strbuf_cstr(&text), text.len, out, e);
    strbuf_release(&key);
    strbuf_release(&text);
    return rc;
}

/* ---- a call ---- */

/* functions.NAME:INDEX */
static struct slice name_in_id(const struct call_rules *r, struct slice id)
{
    if (r->id_prefix.n && id.n > r->id_prefix.n && memcmp(id.s, r->id_prefix.text, r->id_prefix.n) == 0)
        id.s += r->id_prefix.n, id.n -= r->id_prefix.n;
    size_t n = id.n;
    while (n > 0 && id.s[n - 1] >= '0' && id.s[n - 1] <= '9')
        n--;
    if (n > 0 && n < id.n && id.s[n - 1] == ':')
        id.n = n - 1;
    return id;
}

static int take(const struct call_rules *r, const struct json *tools, struct match *m,
                struct parsed_call *out, struct err *e)
{
    if (m->call.s)
        return call_object(m->call.s, m->call.n, out, e);
    if (m->id.s) {
        trim_space(&m->id.s, &m->id.n);
        m->name = name_in_id(r, m->id);
        if (!call_name_good(m->id.s, m->id.n))
            return err_set(e, ERR_FORMAT, "the call has no id");
        strbuf_add(&out->id, m->id.s, m->id.n);
    }
    trim_space(&m->name.s, &m->name.n);
    add_unescaped(&out->name, &m->name, r->unescape);
    if (strbuf_failed(&out->name))
        return err_set(e, ERR_NOMEM, "out of memory for a call");
    if (!call_name_good(strbuf_cstr(&out->name), out->name.len))
        return err_set(e, ERR_FORMAT, "the call has no name");
    if (m->json.s)
        return call_arguments(m->json.s, m->json.n, &out->arguments, e);
    return add_arguments(r, tools, m->args, strbuf_cstr(&out->name), &out->arguments, e);
}

int call_parse(const struct call_rules *r, const struct json *tools, const char *body, size_t n,
               struct parsed_call *out, struct err *e)
{
    int rc = err_set(e, ERR_FORMAT, "it is not written as a call");
    trim_space(&body, &n);
    for (uint32_t i = 0; i < r->n_bodies && rc == ERR_FORMAT; i++) {
        struct match m = {0};
        size_t end = match_at(&r->bodies[i], &r->argument, body, n, 0, &m);
        if (end == SIZE_MAX || skip_space(body, n, end) != n)
            continue;
        err_clear(e);
        strbuf_clear(&out->name);
        strbuf_clear(&out->id);
        strbuf_clear(&out->arguments);
        rc = take(r, tools, &m, out, e);
    }
    bool failed = strbuf_failed(&out->name) || strbuf_failed(&out->id) || strbuf_failed(&out->arguments);
    return rc == 0 && failed ? err_set(e, ERR_NOMEM, "out of memory for a call") : rc;
}
