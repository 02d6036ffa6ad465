/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations to text and ids: by the model's template, by the architecture file's function where no
 * template works, or plainly where it has neither. Refuses what it cannot render by name: parts that are not
 * text, keys that a plain rendering would drop, templates that are not understood.
 */
#include <stdlib.h>
#include <string.h>

#include "prompt/prompt_impl.h"

/* ---- without a template ---- */

static int add_part(const struct json *part, uint32_t message, uint32_t number, struct strbuf *out,
                    struct err *e)
{
    const char *type = json_string(json_get(part, "type"));
    const struct json *text = json_get(part, "text");
    if (type == NULL)
        return err_set(e, ERR_INVALID, "messages[%u].content: a part has no type", message);
    if (strcmp(type, "text") != 0)
        return err_set(e, ERR_UNSUPPORTED, "messages[%u].content: parts of type \"%.40s\" are not supported",
                       message, type);
    if (json_string(text) == NULL)
        return err_set(e, ERR_INVALID, "messages[%u].content: a text part has no text", message);
    int rc = text_part_check(part, message, number, e);
    if (rc)
        return rc;
    strbuf_add(out, text->as.string, text->n);
    return ERR_OK;
}

static int add_message(const struct json *m, uint32_t i, struct strbuf *out, struct err *e)
{
    const struct json *content = json_get(m, "content");
    if (m->type != JSON_OBJECT)
        return err_set(e, ERR_INVALID, "messages[%u] is no object", i);
    if (json_string(json_get(m, "role")) == NULL)
        return err_set(e, ERR_INVALID, "messages[%u].role is missing or no string", i);
    for (uint32_t k = 0; k < m->n; k++) {
        const struct json_member *member = &m->as.members[k];
        static const char *const known[] = {"role", "content", "name"};
        bool ok = member->value.type == JSON_NULL;
        for (size_t j = 0; j < ARRAY_LEN(known); j++)
            ok = ok || strcmp(member->key, known[j]) == 0;
        if (!ok)
            return err_set(e, ERR_UNSUPPORTED, "messages[%u].%.40s is not supported", i, member->key);
    }
    if (i > 0)
        strbuf_putc(out, '\n');
    if (content && content->type == JSON_STRING) {
        strbuf_add(out, content->as.string, content->n);
        return ERR_OK;
    }
    if (content == NULL || content->type != JSON_ARRAY)
        return err_set(e, ERR_INVALID, "messages[%u].content is missing or neither a string nor an array", i);
    for (uint32_t k = 0; k < content->n; k++) {
        int rc = add_part(json_at(content, k), i, k, out, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static int render_plain(const struct json *messages, struct strbuf *out, struct err *e)
{
    for (uint32_t i = 0; i < messages->n; i++) {
        int rc = add_message(json_at(messages, i), i, out, e);
        if (rc)
            return rc;
    }
    return strbuf_failed(out) ? err_set(e, ERR_NOMEM, "out of memory for the prompt") : ERR_OK;
}

/* ---- with one ---- */

/* Parts of a content that the template may see. */
static int check_parts(const struct json *content, uint32_t message, const struct prompt_chat *c,
                       struct err *e)
{
    for (uint32_t k = 0; k < content->n; k++) {
        const struct json *part = json_at(content, k);
        const char *type = json_string(json_get(part, "type"));
        const bool media = c->media || (c->pictures && type && strcmp(type, "image") == 0);
        if (part->type != JSON_OBJECT || (type == NULL && !media))
            return err_set(e, ERR_INVALID, "messages[%u].content: a part has no type", message);
        if (!media && strcmp(type, "text") != 0)
            return err_set(e, ERR_UNSUPPORTED,
                           "messages[%u].content: parts of type \"%.40s\" are not supported", message, type);
        if (!media && json_string(json_get(part, "text")) == NULL)
            return err_set(e, ERR_INVALID, "messages[%u].content: a text part has no text", message);
        int rc = c->media ? ERR_OK : text_part_check(part, message, k, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static int check_message(const struct json *m, uint32_t i, const struct prompt_chat *c, struct err *e)
{
    const struct json *content = json_get(m, "content");
    if (m->type != JSON_OBJECT)
        return err_set(e, ERR_INVALID, "messages[%u] is no object", i);
    if (json_string(json_get(m, "role")) == NULL)
        return err_set(e, ERR_INVALID, "messages[%u].role is missing or no string", i);
    if (content == NULL || content->type == JSON_STRING || content->type == JSON_NULL) {
        if (json_string(content) == NULL && !json_get(m, "tool_calls") && !json_get(m, "reasoning_content"))
            return err_set(e, ERR_INVALID, "messages[%u].content is missing", i);
        return ERR_OK;
    }
    if (content->type != JSON_ARRAY)
        return err_set(e, ERR_INVALID, "messages[%u].content is neither a string nor an array", i);
    return check_parts(content, i, c, e);
}

static int check_messages(const struct json *messages, struct err *e)
{
    if (messages == NULL || messages->type != JSON_ARRAY || messages->n == 0)
        return err_set(e, ERR_INVALID, "messages is missing, empty or no array");
    if (messages->n > PROMPT_MAX_MESSAGES)
        return err_set(e, ERR_LIMIT, "%u messages, more than %d", messages->n, PROMPT_MAX_MESSAGES);
    return ERR_OK;
}

static const struct jinja_template *choose(const struct prompt_front *p, const struct prompt_chat *c)
{
    for (uint32_t i = 0; c->tools && i < p->n_templates; i++)
        if (strcmp(p->templates[i].name, "tool_use") == 0)
            return p->templates[i].jinja;
    for (uint32_t i = 0; i < p->n_templates; i++)
        if (strcmp(p->templates[i].name, "default") == 0)
            return p->templates[i].jinja;
    return p->templates[0].jinja;
}

#define MAX_VARIABLES 128

/* What apply_chat_template gives: tokens by name, then its own, then the caller's, which win. */
static int collect(const struct prompt_front *p, const struct prompt_chat *c, struct jinja_variable *v,
                   size_t *n, struct err *e)
{
    static const struct json null = {.type = JSON_NULL}, yes = {.type = JSON_BOOL, .as.boolean = true},
                             no = {.type = JSON_BOOL};
    const struct json *lists[] = {p->token_names, c->variables};
    for (size_t k = 0; k < 2; k++) {
        const struct json *list = lists[k];
        if (k == 1) {
            v[(*n)++] = (struct jinja_variable){"messages", c->messages, NULL, true};
            v[(*n)++] = (struct jinja_variable){"tools", c->tools ? c->tools : &null, NULL, true};
            v[(*n)++] = (struct jinja_variable){"documents", &null, NULL, true};
            v[(*n)++] = (struct jinja_variable){"add_generation_prompt", c->no_generation_prompt ? &no : &yes,
                                                NULL, false};
        }
        if (list && list->type != JSON_OBJECT)
            return err_set(e, ERR_INVALID, "the variables of the template are no object");
        for (uint32_t i = 0; list && i < list->n; i++) {
            if (*n + 4 >= MAX_VARIABLES)
                return err_set(e, ERR_LIMIT, "more than %d variables for the template", MAX_VARIABLES - 8);
            const struct json_member *m = &list->as.members[i];
            v[(*n)++] = (struct jinja_variable){m->key, &m->value, NULL, k == 1};
        }
    }
    return ERR_OK;
}

int chat_render(const struct prompt_front *p, const struct prompt_chat *c, struct jinja_output *out,
                struct err *e)
{
    struct jinja_variable v[MAX_VARIABLES];
    struct jinja_options o = {.now = c->now};
    size_t n = 0;
    if (!p->template_works) {
        err_set(e, ERR_UNSUPPORTED, "this model's chat template is not understood: %s",
                p->template_error.message);
        err_hint(e, "render it elsewhere and send the text as a plain prompt");
        return ERR_UNSUPPORTED;
    }
    for (uint32_t i = 0; i < c->messages->n; i++) {
        int rc = check_message(json_at(c->messages, i), i, c, e);
        if (rc)
            return rc;
    }
    struct arena arena;
    struct prompt_chat objects = *c;
    arena_init(&arena, p->arena.mem, MEM_REQUEST);
    int rc = prompt_objects(c->messages, false, &arena, &objects.messages, e);
    const struct json effort = {.type = JSON_STRING,
                                .n = c->reasoning_effort ? (uint32_t)strlen(c->reasoning_effort) : 0,
                                .as.string = c->reasoning_effort};
    if (c->reasoning_effort)
        v[n++] = (struct jinja_variable){"reasoning_effort", &effort, NULL, true};
    if (rc == 0)
        rc = collect(p, &objects, v, &n, e);
    if (rc == 0)
        rc = jinja_render(choose(p, c), v, n, &o, out, e);
    arena_release(&arena);
    return rc;
}

/* The template writes BOS: the post-processor must not add another one. */
static int encode_rendered(const struct prompt_front *p, const struct prompt_chat *c,
                           const struct jinja_output *r, struct ids *out, struct err *e)
{
    return tokenizer_encode_parts(p->tokenizer, strbuf_cstr(&r->text), r->text.len, TOKENIZE_PARSE_SPECIAL,
                                  r->marked, c->parse_special ? 0 : r->n_marked, out, e);
}

static int chat_plain(const struct prompt_front *p, const struct prompt_chat *c, struct jinja_output *r,
                      struct ids *out, struct err *e)
{
    if (c->tools || c->variables)
        return err_set(e, ERR_UNSUPPORTED,
                       "this model has no chat template: tools and variables have no place");
    int rc = render_plain(c->messages, &r->text, e);
    unsigned flags = TOKENIZE_SPECIAL | (c->parse_special ? TOKENIZE_PARSE_SPECIAL : 0);
    return rc || !out ? rc : encode_once(p, strbuf_cstr(&r->text), r->text.len, flags, out, e);
}

/* Templates look for pictures at other keys too, {"type": "text", "image": ...}: what nobody read is not to
 * be a token that stands for nothing. */
static int no_markers(const struct prompt_front *p, const struct jinja_output *r, struct err *e)
{
    uint32_t n = placeholders_count(p, r);
    return n == 0 ? ERR_OK
                  : err_set(e, ERR_MISMATCH,
                            "the chat template writes %s %u times, and no part is of type image or image_url",
                            p->eyes->rules.marker, n);
}

/* By the template, with what stands for pictures in place of its markers. */
static int chat_rendered(const struct prompt_front *p, const struct prompt_chat *c, struct jinja_output *r,
                         struct ids *out, struct err *e)
{
    int rc = chat_render(p, c, r, e);
    if (rc == 0 && c->pictures)
        rc = placeholders_replace(p, c->pictures, c->parse_special, r, e);
    else if (rc == 0 && p->eyes && !c->media)
        rc = no_markers(p, r, e);
    return rc || !out ? rc : encode_rendered(p, c, r, out, e);
}

int prompt_chat(const struct prompt_front *p, const struct prompt_chat *asked, struct strbuf *rendered,
                struct ids *out, struct err *e)
{
    struct jinja_output r = {0};
    struct prompt_chat c = *asked;
    if (c.pictures && c.pictures->n == 0)
        c.pictures = NULL;
    if (c.pictures)
        c.messages = c.pictures->messages;
    if (p->spec->has_chat && !p->template_works)
        return prompt_by_function(p, &c, rendered, out, e);
    int rc = check_messages(c.messages, e);
    if (rc == 0 && !p->has_template && c.pictures)
        rc = err_set(e, ERR_UNSUPPORTED, "this model has no chat template: pictures have no place");
    else if (rc == 0 && !p->has_template)
        rc = chat_plain(p, &c, &r, out, e);
    else if (rc == 0)
        rc = chat_rendered(p, &c, &r, out, e);
    if (rc == 0 && rendered) {
        strbuf_add(rendered, strbuf_cstr(&r.text), r.text.len);
        if (strbuf_failed(rendered))
            rc = err_set(e, ERR_NOMEM, "out of memory for the prompt");
    }
    jinja_output_release(&r);
    return rc;
}

int prompt_messages(const struct prompt_front *p, const struct json *messages, struct strbuf *rendered,
                    struct ids *out, struct err *e)
{
    return prompt_chat(p, &(struct prompt_chat){.messages = messages}, rendered, out, e);
}
