/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of an architecture file (docs/arch-files.md) -> compiled rules. Owns the choice among alternatives by
 * what the tokenizer and the template hold. Refuses, naming it, a key that it does not know, and markers of
 * one state of which one begins the other: what they mean would depend on how the text is cut.
 */
#include <string.h>

#include "prompt/output_impl.h"

struct compiling {
    const struct tokenizer *t;
    struct arena *arena;
    struct output_rules *r;
    struct err *e;
};

static int wrong(struct compiling *c, const char *key, const char *what)
{
    return err_set(c->e, ERR_FORMAT, "output rules: %.60s %s", key, what);
}

/* Copies a marker, tokens that the tokenizer has in their own bytes. */
static int encode(struct compiling *c, const char *key, const char *s, size_t n, struct marker *out)
{
    struct strbuf b = STRBUF_INIT;
    size_t i = 0;
    if (n == 0 || n > 256)
        return wrong(c, key, "must be a string of 1 to 256 bytes");
    while (i < n) {
        const struct output_token *hit = NULL;
        for (uint32_t k = 0; k < c->r->n_tokens && !hit; k++) {
            size_t len = c->r->tokens[k].mark.n - 2; /* without the two bytes around it */
            if (len <= n - i && memcmp(s + i, c->r->tokens[k].mark.text + 1, len) == 0)
                hit = &c->r->tokens[k];
        }
        if (hit) {
            strbuf_add(&b, hit->mark.text, hit->mark.n);
            i += hit->mark.n - 2;
        } else {
            strbuf_putc(&b, s[i++]);
        }
    }
    out->n = (uint32_t)b.len;
    out->text = strbuf_failed(&b) ? NULL : arena_strndup(c->arena, b.data, b.len);
    strbuf_release(&b);
    return out->text ? ERR_OK : err_set(c->e, ERR_NOMEM, "out of memory for output rules");
}

static int read_marker(struct compiling *c, const struct json *table, const char *key, bool needed,
                       struct marker *out)
{
    const struct json *v = json_get(table, key);
    if (v == NULL || v->type == JSON_NULL)
        return needed ? wrong(c, key, "is missing") : ERR_OK;
    if (v->type != JSON_STRING)
        return wrong(c, key, "is no string");
    return encode(c, key, v->as.string, v->n, out);
}

static int read_markers(struct compiling *c, const struct json *table, const char *key, struct marker *out,
                        uint32_t room, uint32_t *n)
{
    const struct json *list = json_get(table, key);
    *n = 0;
    if (list == NULL)
        return ERR_OK;
    if (list->type != JSON_ARRAY || list->n > room)
        return wrong(c, key, "is no list of a few strings");
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *v = json_at(list, i);
        if (v->type != JSON_STRING)
            return wrong(c, key, "is no list of a few strings");
        int rc = encode(c, key, v->as.string, v->n, &out[(*n)++]);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static int known_keys(struct compiling *c, const struct json *table, const char *const *known,
                      const char *what)
{
    if (table->type != JSON_OBJECT)
        return wrong(c, what, "is no table");
    for (uint32_t i = 0; i < table->n; i++) {
        bool ok = false;
        for (size_t k = 0; known[k] && !ok; k++)
            ok = strcmp(known[k], table->as.members[i].key) == 0;
        if (!ok)
            return wrong(c, table->as.members[i].key, "is no key of such rules");
    }
    return ERR_OK;
}

/* ---- patterns ---- */

static const struct {
    const char *name;
    enum part_kind kind;
} fields[] = {{"name", PART_NAME},   {"id", PART_ID},     {"json", PART_JSON}, {"call", PART_CALL},
              {"args", PART_ARGS},   {"key", PART_KEY},   {"type", PART_TYPE}, {"string", PART_STRING},
              {"value", PART_VALUE}, {"skip", PART_SKIP}, {"_", PART_SPACE}};

static const char *field_at(const char *s, size_t n, enum part_kind *kind)
{
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        size_t len = strlen(fields[i].name);
        if (len < n && memcmp(s + 1, fields[i].name, len) == 0) {
            *kind = fields[i].kind;
            return s + 1 + len;
        }
    }
    return NULL;
}

static bool is_field(enum part_kind k)
{
    return k != PART_TEXT && k != PART_SPACE;
}

static int read_pattern(struct compiling *c, const char *key, const struct json *v, struct pattern *p)
{
    if (v->type != JSON_STRING || v->n == 0 || v->n > 512)
        return wrong(c, key, "must be a string of 1 to 512 bytes");
    const char *s = v->as.string, *end = s + v->n;
    while (s < end) {
        if (p->n == OUTPUT_MAX_PARTS)
            return wrong(c, key, "has too many parts");
        struct pattern_part *part = &p->parts[p->n];
        if (*s == '$') {
            const char *next = field_at(s, (size_t)(end - s), &part->kind);
            if (next == NULL)
                return wrong(c, key, "holds a $ that begins no known field");
            bool follows = p->n > 0 && is_field(p->parts[p->n - 1].kind) && is_field(part->kind);
            if (follows && part->kind != PART_ARGS)
                return wrong(c, key, "has two fields with nothing between them");
            s = next;
        } else {
            const char *dollar = memchr(s, '$', (size_t)(end - s));
            const char *stop = dollar ? dollar : end;
            int rc = encode(c, key, s, (size_t)(stop - s), &part->text);
            if (rc)
                return rc;
            part->kind = PART_TEXT;
            s = stop;
        }
        p->n++;
    }
    return ERR_OK;
}

static bool has_part(const struct pattern *p, enum part_kind kind)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->parts[i].kind == kind)
            return true;
    return false;
}

/* ---- calls ---- */

static int check_body(struct compiling *c, const struct pattern *p)
{
    bool call = has_part(p, PART_CALL), named = has_part(p, PART_NAME) || has_part(p, PART_ID);
    bool arguments = has_part(p, PART_JSON) || has_part(p, PART_ARGS);
    if (call ? named || arguments : !named || !arguments)
        return wrong(c, "body", "needs $call, or a name ($name, $id) and arguments ($json, $args)");
    if (has_part(p, PART_ARGS) && c->r->calls.argument.n == 0)
        return wrong(c, "argument", "is missing: body holds $args");
    return ERR_OK;
}

/* One argument of a call: another pattern within it, or what only a body has, has no meaning there. */
static int check_argument(struct compiling *c, const struct pattern *p)
{
    static const enum part_kind strange[] = {PART_NAME, PART_ID, PART_JSON, PART_CALL, PART_ARGS};
    for (size_t i = 0; i < ARRAY_LEN(strange); i++)
        if (has_part(p, strange[i]))
            return wrong(c, "argument", "holds a field of body");
    if (!has_part(p, PART_KEY) || !has_part(p, PART_VALUE) || p->parts[0].kind != PART_TEXT)
        return wrong(c, "argument", "needs $key and $value, and begins with text");
    return ERR_OK;
}

static int read_calls(struct compiling *c, const struct json *v)
{
    static const char *const known[] = {"section_open", "section_close", "open",     "close",
                                        "bare",         "unescape",      "argument", "body",
                                        "id_prefix",    "trim_newline",  NULL};
    struct call_rules *r = &c->r->calls;
    const struct json *body = json_get(v, "body"), *argument = json_get(v, "argument");
    int rc = known_keys(c, v, known, "tools");
    json_bool(json_get(v, "bare"), &r->bare);
    json_bool(json_get(v, "unescape"), &r->unescape);
    json_bool(json_get(v, "trim_newline"), &r->trim_newline);
    if (!rc)
        rc = read_marker(c, v, "section_open", false, &r->section_open);
    if (!rc)
        rc = read_marker(c, v, "section_close", r->section_open.n > 0, &r->section_close);
    if (!rc)
        rc = read_marker(c, v, "open", !r->bare, &r->open);
    if (!rc)
        rc = read_marker(c, v, "close", !r->bare, &r->close);
    if (!rc)
        rc = read_marker(c, v, "id_prefix", false, &r->id_prefix);
    if (!rc && r->bare && (r->section_open.n || r->close.n))
        rc = wrong(c, "bare", "goes with no section and no close");
    if (!rc && argument) {
        rc = read_pattern(c, "argument", argument, &r->argument);
        if (!rc)
            rc = check_argument(c, &r->argument);
    }
    bool list = body && body->type == JSON_ARRAY;
    uint32_t n = list ? body->n : 1;
    if (!rc && (body == NULL || n == 0 || n > OUTPUT_MAX_BODIES))
        rc = wrong(c, "body", "must be a pattern or a list of up to 4");
    for (uint32_t i = 0; !rc && i < n; i++) {
        rc = read_pattern(c, "body", list ? json_at(body, i) : body, &r->bodies[i]);
        if (!rc)
            rc = check_body(c, &r->bodies[i]);
        r->n_bodies++;
    }
    if (!rc && r->bare && !call_is_json(r))
        rc = wrong(c, "bare", "goes with $call and $json only");
    c->r->has_calls = true;
    return rc;
}

/* ---- the rest ---- */

static int read_reasoning(struct compiling *c, const struct json *v)
{
    static const char *const known[] = {"open", "close", "ends_at_tools", NULL};
    int rc = known_keys(c, v, known, "reasoning");
    json_bool(json_get(v, "ends_at_tools"), &c->r->calls_end_reasoning);
    if (!rc)
        rc = read_marker(c, v, "open", true, &c->r->think_open);
    if (!rc)
        rc = read_marker(c, v, "close", true, &c->r->think_close);
    c->r->has_reasoning = true;
    return rc;
}

static int read_words(struct compiling *c, const struct json *table, const char *key, struct word_list *out)
{
    const struct json *list = json_get(table, key);
    if (list == NULL || list->type != JSON_ARRAY || list->n > ARRAY_LEN(out->words))
        return wrong(c, key, "is no list of a few strings");
    for (uint32_t i = 0; i < list->n; i++) {
        const char *s = json_string(json_at(list, i));
        if (s == NULL)
            return wrong(c, key, "is no list of a few strings");
        if ((out->words[out->n++] = arena_strdup(c->arena, s)) == NULL)
            return err_set(c->e, ERR_NOMEM, "out of memory for output rules");
    }
    return ERR_OK;
}

static int read_word(struct compiling *c, const struct json *table, const char *key, const char **out)
{
    const char *s = json_string(json_get(table, key));
    if (s == NULL)
        return wrong(c, key, "is missing or no string");
    *out = arena_strdup(c->arena, s);
    return *out ? ERR_OK : err_set(c->e, ERR_NOMEM, "out of memory for output rules");
}

static int read_messages(struct compiling *c, const struct json *v)
{
    static const char *const known[] = {"start",   "channel", "body",        "ends", "reasoning",
                                        "content", "role",    "call_prefix", NULL};
    struct message_rules *m = &c->r->messages;
    int rc = known_keys(c, v, known, "messages");
    if (!rc)
        rc = read_marker(c, v, "start", true, &m->start);
    if (!rc)
        rc = read_marker(c, v, "channel", true, &m->channel);
    if (!rc)
        rc = read_marker(c, v, "body", true, &m->body);
    if (!rc)
        rc = read_markers(c, v, "ends", m->ends, ARRAY_LEN(m->ends), &m->n_ends);
    if (!rc && m->n_ends == 0)
        rc = wrong(c, "ends", "is missing");
    if (!rc)
        rc = read_words(c, v, "reasoning", &m->reasoning);
    if (!rc)
        rc = read_words(c, v, "content", &m->content);
    if (!rc)
        rc = read_word(c, v, "role", &m->role);
    if (!rc)
        rc = read_word(c, v, "call_prefix", &m->call_prefix);
    c->r->has_messages = true;
    return rc;
}

static int read_tokens(struct compiling *c, const struct json *list)
{
    if (list == NULL)
        return ERR_OK;
    if (list->type != JSON_ARRAY || list->n > OUTPUT_MAX_TOKENS)
        return wrong(c, "tokens", "is no list of up to 32 names");
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *v = json_at(list, i);
        const char *name = json_string(v);
        if (name == NULL || v->n == 0 || v->n > 128 || strlen(name) != v->n)
            return wrong(c, "tokens", "holds what is no name of a token");
        int32_t id = c->t ? tokenizer_id(c->t, name) : -1;
        if (id < 0)
            continue; /* it comes as text then */
        struct output_token *tok = &c->r->tokens[c->r->n_tokens++];
        tok->id = id;
        tok->mark.n = v->n + 2;
        tok->mark.text = arena_printf(c->arena, "%c%s%c", TOKEN_OPEN, name, TOKEN_CLOSE);
        if (tok->mark.text == NULL)
            return err_set(c->e, ERR_NOMEM, "out of memory for output rules");
    }
    return ERR_OK;
}

/* Markers that one state may meet: none may begin another. */
static int check_apart(struct compiling *c)
{
    const struct output_rules *r = c->r;
    const struct marker *all[32];
    uint32_t n = 0;
    const struct marker *fixed[] = {&r->think_open,          &r->think_close,  &r->calls.section_open,
                                    &r->calls.section_close, &r->calls.open,   &r->messages.start,
                                    &r->messages.channel,    &r->messages.body};
    for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
        all[n++] = fixed[i];
    for (uint32_t i = 0; i < r->n_skip; i++)
        all[n++] = &r->skip[i];
    for (uint32_t i = 0; i < r->messages.n_ends; i++)
        all[n++] = &r->messages.ends[i];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++)
            if (i != k && all[i]->n && all[k]->n && all[i]->n <= all[k]->n &&
                memcmp(all[i]->text, all[k]->text, all[i]->n) == 0)
                return wrong(c, "a marker", "begins another one");
    return ERR_OK;
}

static int compile(struct compiling *c, const struct json *v)
{
    static const char *const known[] = {"name",  "tokens", "needs", "template", "reasoning",
                                        "tools", "skip",   "trim",  "messages", NULL};
    const struct json *part;
    int rc = known_keys(c, v, known, "output");
    if (!rc)
        rc = read_word(c, v, "name", &c->r->name);
    if (!rc)
        rc = read_tokens(c, json_get(v, "tokens"));
    json_bool(json_get(v, "trim"), &c->r->trim);
    if (!rc && (part = json_get(v, "reasoning")) != NULL)
        rc = read_reasoning(c, part);
    if (!rc && (part = json_get(v, "tools")) != NULL)
        rc = read_calls(c, part);
    if (!rc && (part = json_get(v, "messages")) != NULL)
        rc = read_messages(c, part);
    if (!rc)
        rc = read_markers(c, v, "skip", c->r->skip, ARRAY_LEN(c->r->skip), &c->r->n_skip);
    if (!rc && c->r->has_messages && (c->r->has_calls || c->r->has_reasoning || c->r->n_skip))
        rc = wrong(c, "messages", "goes with no reasoning, tools or skip");
    return rc ? rc : check_apart(c);
}

/* needs: a token that the tokenizer must have; template: text that the chat template must hold. */
static bool applies(const struct json *v, const struct tokenizer *t, const char *template_text)
{
    const char *needs = json_string(json_get(v, "needs")), *has = json_string(json_get(v, "template"));
    if (needs && (t == NULL || tokenizer_id(t, needs) < 0))
        return false;
    return has == NULL || (template_text && strstr(template_text, has));
}

int output_rules_compile(struct output_rules **out, const struct json *rules, const struct tokenizer *t,
                         const char *template_text, struct arena *arena, struct err *e)
{
    struct compiling c = {.t = t, .arena = arena, .e = e};
    const struct json *chosen = NULL;
    *out = NULL;
    if (rules == NULL || rules->type == JSON_NULL)
        return ERR_OK;
    bool list = rules->type == JSON_ARRAY;
    for (uint32_t i = 0; i < (list ? rules->n : 1) && !chosen; i++) {
        const struct json *v = list ? json_at(rules, i) : rules;
        if (v->type != JSON_OBJECT)
            return wrong(&c, "output", "is no table");
        if (applies(v, t, template_text))
            chosen = v;
    }
    if (chosen == NULL)
        return ERR_OK;
    c.r = arena_alloc(arena, sizeof *c.r);
    if (c.r == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for output rules");
    int rc = compile(&c, chosen);
    if (rc == 0)
        *out = c.r;
    return rc;
}

const char *output_rules_name(const struct output_rules *r)
{
    return r ? r->name : "none";
}
