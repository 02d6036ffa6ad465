/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages through the chat function of an architecture file: the request as plain data in, segments out, ids
 * from them. Owns the preparation of the data (arguments of tool calls become objects where their text is
 * one) and the check of what came back. Text of a message is tokenized as text, whatever it looks like: only
 * what the function itself marked becomes a special token, and it must be one.
 */
#include <string.h>
#include <time.h>

#include "base/thread.h"
#include "prompt/prompt_impl.h"

#define CHAT_MAX_TEXT (32u << 20) /* bytes of a rendering */
#define CHAT_MAX_LIST (1u << 20)  /* segments */

/* ---- the request as the function gets it ---- */

static const struct json *object_in(const struct json *text, struct arena *scratch)
{
    static const struct json_limits limits = {.max_bytes = 16u << 20, .max_depth = 64};
    const struct json *v = NULL;
    if (json_parse(text->as.string, text->n, &limits, scratch, &v, NULL) != ERR_OK)
        return NULL;
    return v->type == JSON_OBJECT ? v : NULL;
}

/* Writes messages with the arguments of their tool calls as objects. */
struct rewriting {
    struct json_writer w;
    struct arena *scratch;
    bool keep_text; /* as arguments_text beside the object */
    bool changed;
};

/* {"name", "arguments": "{...}"}: arguments become the object. */
static void write_function(struct rewriting *r, const struct json *f)
{
    struct json_writer *w = &r->w;
    json_begin_object(w);
    for (uint32_t i = 0; i < f->n; i++) {
        const struct json_member *m = &f->as.members[i];
        bool text = strcmp(m->key, "arguments") == 0 && m->value.type == JSON_STRING;
        const struct json *v = text ? object_in(&m->value, r->scratch) : NULL;
        if (r->keep_text && strcmp(m->key, "arguments_text") == 0)
            continue;
        r->changed = r->changed || v;
        if (text && r->keep_text) {
            json_key(w, "arguments_text");
            json_write_tree(w, &m->value);
        }
        json_key(w, m->key);
        json_write_tree(w, v ? v : &m->value);
    }
    json_end_object(w);
}

static void write_call(struct rewriting *r, const struct json *call)
{
    struct json_writer *w = &r->w;
    const struct json *f = json_get(call, "function");
    if (call->type != JSON_OBJECT) {
        json_write_tree(w, call);
        return;
    }
    if (f == NULL || f->type != JSON_OBJECT) {
        write_function(r, call);
        return;
    }
    json_begin_object(w);
    for (uint32_t i = 0; i < call->n; i++) {
        json_key(w, call->as.members[i].key);
        if (&call->as.members[i].value == f)
            write_function(r, f);
        else
            json_write_tree(w, &call->as.members[i].value);
    }
    json_end_object(w);
}

static void write_message(struct rewriting *r, const struct json *m)
{
    struct json_writer *w = &r->w;
    json_begin_object(w);
    for (uint32_t i = 0; i < m->n; i++) {
        const struct json_member *member = &m->as.members[i];
        json_key(w, member->key);
        if (strcmp(member->key, "tool_calls") != 0 || member->value.type != JSON_ARRAY) {
            json_write_tree(w, &member->value);
            continue;
        }
        json_begin_array(w);
        for (uint32_t k = 0; k < member->value.n; k++)
            write_call(r, json_at(&member->value, k));
        json_end_array(w);
    }
    json_end_object(w);
}

/* A part of type image is a marker to a function, so it must be the place of a picture. */
static int check_parts(const struct prompt_chat *q, const struct json *content, uint32_t i, struct err *e)
{
    for (uint32_t k = 0; content && content->type == JSON_ARRAY && k < content->n; k++) {
        const char *type = json_string(json_get(json_at(content, k), "type"));
        if (type && strcmp(type, "image") == 0 && !q->pictures && !q->media)
            return err_set(e, ERR_UNSUPPORTED,
                           "messages[%u].content: parts of type \"image\" are not supported", i);
        int rc = q->media ? ERR_OK : text_part_check(json_at(content, k), i, k, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static int check_messages(const struct prompt_chat *q, struct err *e)
{
    const struct json *messages = q->messages;
    if (messages == NULL || messages->type != JSON_ARRAY || messages->n == 0)
        return err_set(e, ERR_INVALID, "messages is missing, empty or no array");
    if (messages->n > PROMPT_MAX_MESSAGES)
        return err_set(e, ERR_LIMIT, "%u messages, more than %d", messages->n, PROMPT_MAX_MESSAGES);
    for (uint32_t i = 0; i < messages->n; i++) {
        const struct json *m = json_at(messages, i);
        if (m->type != JSON_OBJECT)
            return err_set(e, ERR_INVALID, "messages[%u] is no object", i);
        if (json_string(json_get(m, "role")) == NULL)
            return err_set(e, ERR_INVALID, "messages[%u].role is missing or no string", i);
        int rc = check_parts(q, json_get(m, "content"), i, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static int write_and_read(struct strbuf *text, struct arena *arena, const struct json **out, struct err *e)
{
    static const struct json_limits limits = {.max_bytes = 64u << 20, .max_depth = 200};
    int rc = strbuf_failed(text) ? err_set(e, ERR_NOMEM, "out of memory for messages")
                                 : json_parse(text->data, text->len, &limits, arena, out, e);
    strbuf_release(text);
    return rc;
}

int prompt_objects(const struct json *messages, bool keep_text, struct arena *arena, const struct json **out,
                   struct err *e)
{
    struct strbuf text = STRBUF_INIT;
    struct rewriting r = {.scratch = arena, .keep_text = keep_text};
    bool calls = keep_text;
    *out = messages;
    for (uint32_t i = 0; i < messages->n && !calls; i++)
        calls = json_get(json_at(messages, i), "tool_calls") != NULL;
    if (!calls)
        return ERR_OK;
    json_writer_init(&r.w, &text, false);
    json_begin_array(&r.w);
    for (uint32_t i = 0; i < messages->n; i++)
        write_message(&r, json_at(messages, i));
    json_end_array(&r.w);
    if (r.changed || keep_text)
        return write_and_read(&text, arena, out, e);
    strbuf_release(&text);
    return ERR_OK;
}

static bool has_variable(const struct prompt_chat *q, const char *key)
{
    return json_get(q->variables, key) != NULL;
}

static void write_date(struct json_writer *w, int64_t now)
{
    char date[16] = "";
    struct tm tm;
    time_t t = (time_t)now;
    if (gmtime_r(&t, &tm) && strftime(date, sizeof date, "%Y-%m-%d", &tm) > 0)
        json_put_string(w, "current_date", date);
}

/* What the request names itself comes before what it passes on. */
static int prepare_options(const struct prompt_chat *q, struct arena *arena, const struct json **out,
                           struct err *e)
{
    static const char *const ours[] = {"tools", "add_generation_prompt", "tool_choice", "reasoning_effort"};
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    if (q->variables && q->variables->type != JSON_OBJECT)
        return err_set(e, ERR_INVALID, "chat_template_kwargs is no object");
    json_writer_init(&w, &text, false);
    json_begin_object(&w);
    if (q->tools) {
        json_key(&w, "tools");
        json_write_tree(&w, q->tools);
    }
    json_put_bool(&w, "add_generation_prompt", !q->no_generation_prompt);
    if (q->tool_choice)
        json_put_string(&w, "tool_choice", q->tool_choice);
    if (q->reasoning_effort)
        json_put_string(&w, "reasoning_effort", q->reasoning_effort);
    else if (has_variable(q, "reasoning_effort")) {
        json_key(&w, "reasoning_effort");
        json_write_tree(&w, json_get(q->variables, "reasoning_effort"));
    }
    if (!has_variable(q, "current_date") && q->now >= 0)
        write_date(&w, q->now ? q->now : (int64_t)(clock_unix_ns() / 1000000000));
    for (uint32_t i = 0; q->variables && i < q->variables->n; i++) {
        bool taken = false;
        for (size_t k = 0; k < ARRAY_LEN(ours); k++)
            taken = taken || strcmp(ours[k], q->variables->as.members[i].key) == 0;
        if (taken)
            continue;
        json_key(&w, q->variables->as.members[i].key);
        json_write_tree(&w, &q->variables->as.members[i].value);
    }
    json_end_object(&w);
    return write_and_read(&text, arena, out, e);
}

/* ---- what came back ---- */

static int check_segments(const struct spec *s, const struct json *list, struct err *e)
{
    uint64_t bytes = 0;
    const char *who = s->arch_name;
    if (list->type != JSON_ARRAY || list->n > CHAT_MAX_LIST)
        return err_set(e, ERR_FORMAT, "%s: chat returned no list of segments, or more than %u", who,
                       CHAT_MAX_LIST);
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *text = json_get(json_at(list, i), "text");
        const struct json *special = json_get(json_at(list, i), "special");
        if (json_string(text) == NULL || special == NULL || special->type != JSON_BOOL)
            return err_set(e, ERR_FORMAT, "%s: segment %u of chat has no text or no special", who, i + 1);
        bytes += text->n;
    }
    if (bytes > CHAT_MAX_TEXT)
        return err_set(e, ERR_LIMIT, "%s: chat returned %llu bytes, at most %u", who,
                       (unsigned long long)bytes, CHAT_MAX_TEXT);
    return ERR_OK;
}

int prompt_segments(const struct spec *s, const struct prompt_chat *q, struct arena *arena,
                    const struct json **segments, struct err *e)
{
    const struct json *messages = NULL, *options = NULL;
    int rc = check_messages(q, e);
    if (rc == 0)
        rc = prompt_objects(q->messages, true, arena, &messages, e);
    if (rc == 0)
        rc = prepare_options(q, arena, &options, e);
    if (rc == 0)
        rc = spec_chat(s, messages, options, arena, segments, e);
    return rc ? rc : check_segments(s, *segments, e);
}

static int add_special(const struct prompt_front *p, const char *text, struct ids *out, struct err *e)
{
    int32_t id = tokenizer_id(p->tokenizer, text);
    if (id < 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: chat writes %.60s, which the tokenizer does not have",
                       p->spec->arch_name, text);
    if (vec_reserve((void **)&out->data, &out->capacity, out->n + 1, sizeof *out->data))
        return err_set(e, ERR_NOMEM, "out of memory for token ids");
    out->data[out->n++] = id;
    return ERR_OK;
}

/* One segment, which may be the marker of the next picture. */
static int add_segment(const struct prompt_front *p, const struct prompt_pictures *pictures, uint32_t *used,
                       const struct json *segment, struct strbuf *rendered, struct ids *out, struct err *e)
{
    const struct json *text = json_get(segment, "text");
    struct strbuf stands = STRBUF_INIT;
    bool special = false;
    json_bool(json_get(segment, "special"), &special);
    if (pictures == NULL || !special || strcmp(text->as.string, p->eyes->rules.marker) != 0) {
        if (rendered)
            strbuf_add(rendered, text->as.string, text->n);
        return special ? add_special(p, text->as.string, out, e)
                       : tokenizer_encode(p->tokenizer, text->as.string, text->n, 0, out, e);
    }
    if (++*used > pictures->n)
        return ERR_OK; /* counted; whoever calls refuses */
    int rc = placeholders_write(p, &pictures->list[*used - 1], &stands, e);
    if (rc == 0)
        rc = tokenizer_encode(p->tokenizer, stands.data, stands.len, TOKENIZE_PARSE_SPECIAL, out, e);
    if (rc == 0 && rendered)
        strbuf_add(rendered, stands.data, stands.len);
    strbuf_release(&stands);
    return rc;
}

int prompt_by_function(const struct prompt_front *p, const struct prompt_chat *q, struct strbuf *rendered,
                       struct ids *out, struct err *e)
{
    struct arena arena;
    const struct json *list = NULL;
    struct ids nobody = {0}; /* wants them, yet they are made: an unknown special token is an error */
    out = out ? out : &nobody;
    size_t mark = out->n;
    uint32_t used = 0;
    arena_init(&arena, p->arena.mem, MEM_REQUEST);
    int rc = prompt_segments(p->spec, q, &arena, &list, e);
    for (uint32_t i = 0; rc == 0 && i < list->n; i++)
        rc = add_segment(p, q->pictures, &used, json_at(list, i), rendered, out, e);
    if (rc == 0 && q->pictures && used != q->pictures->n)
        rc = err_set(e, ERR_MISMATCH, "%s: chat writes %s %u times, and there are %u pictures",
                     p->spec->arch_name, p->eyes->rules.marker, used, q->pictures->n);
    if (rc == 0 && rendered && strbuf_failed(rendered))
        rc = err_set(e, ERR_NOMEM, "out of memory for the prompt");
    if (rc)
        out->n = mark;
    ids_release(&nobody);
    arena_release(&arena);
    return rc;
}
