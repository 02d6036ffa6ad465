/* SPDX-License-Identifier: Apache-2.0
 *
 * From the bytes of a body to what a generation needs: parameters, pictures, ids. In two halves: what any
 * thread may do (JSON, headers of pictures: a large body holds nobody up), and what is the loop's (template,
 * tokenizer, room for pictures). Every refusal is an error in OpenAI's shape.
 */
#include <stdio.h>
#include <string.h>

#include "serve/serve_impl.h"

#define MAX_JSON_DEPTH 64

/* ---- prompts ---- */

/* Errors of tokenizing and rendering as the client sees them. */
static int prompt_error(struct api_error *err, const struct request_params *p, const struct err *e)
{
    const char *param = p->messages ? "messages" : "prompt";
    char text[600];
    for (int i = 0; i < e->n_frames; i++) /* the part of a message that it is about */
        param = str_starts(e->frames[i], "messages[") ? e->frames[i] : param;
    int status = e->code == ERR_NOMEM ? 500 : 400;
    return api_error(err, status,
                     e->code == ERR_UNSUPPORTED ? "unsupported"
                     : status == 500            ? "internal"
                                                : "invalid_value",
                     param, "%s", err_format(e, text, sizeof text));
}

static int too_long(const struct serve *s, struct api_error *err, const struct request_params *p,
                    uint64_t n_prompt, uint64_t max_tokens)
{
    return api_error(err, 400, "context_length_exceeded", p->messages ? "messages" : "prompt",
                     "the context holds %u tokens; the prompt has %llu and max_tokens is %llu, together %llu",
                     s->max_context, (unsigned long long)n_prompt, (unsigned long long)max_tokens,
                     (unsigned long long)(n_prompt + max_tokens));
}

static int ids_from_json(const struct serve *s, const struct json *v, struct ids *ids, struct api_error *err)
{
    int64_t vocab = s->front->spec->vocab_size;
    if (vec_reserve((void **)&ids->data, &ids->capacity, v->n, sizeof *ids->data))
        return api_error(err, 500, "internal", "prompt", "out of memory");
    for (uint32_t i = 0; i < v->n; i++) {
        int64_t id = -1;
        json_i64(json_at(v, i), &id);
        if (id < 0 || id >= vocab)
            return api_error(err, 400, "invalid_value", "prompt",
                             "token id %lld at position %u is outside the vocabulary of %lld", (long long)id,
                             i, (long long)vocab);
        ids->data[ids->n++] = (int32_t)id;
    }
    return 0;
}

/* A text that cannot fit however it is cut need not be tokenized, which would hold up everybody else. */
static bool hopeless(const struct serve *s, size_t text_bytes)
{
    size_t per_id = tokenizer_bytes_per_id(s->front->tokenizer);
    return per_id > 0 && text_bytes / per_id > s->max_context;
}

static size_t content_bytes(const struct json *messages)
{
    size_t n = 0;
    for (uint32_t i = 0; i < messages->n; i++) {
        const struct json *content = json_get(json_at(messages, i), "content");
        if (json_string(content))
            n += content->n;
        for (uint32_t k = 0; content && content->type == JSON_ARRAY && k < content->n; k++) {
            const struct json *text = json_get(json_at(content, k), "text");
            n += json_string(text) ? text->n : 0;
        }
    }
    return n;
}

/* ---- pictures ---- */

static bool is_picture(const struct json *part)
{
    const char *type = json_string(json_get(part, "type"));
    return type && (strcmp(type, "image_url") == 0 || strcmp(type, "image") == 0);
}

/* The first part that is a picture. */
static bool find_picture(const struct json *messages, uint32_t *message, uint32_t *part)
{
    for (uint32_t i = 0; i < messages->n; i++) {
        const struct json *content = json_get(json_at(messages, i), "content");
        for (uint32_t k = 0; content && content->type == JSON_ARRAY && k < content->n; k++)
            if (is_picture(json_at(content, k))) {
                *message = i;
                *part = k;
                return true;
            }
    }
    return false;
}

static int picture_error(struct api_error *err, uint32_t message, uint32_t part, const char *code,
                         const char *text)
{
    char param[64];
    snprintf(param, sizeof param, "messages[%u].content[%u]", message, part);
    return api_error(err, 400, code, param, "%s: %s", param, text);
}

/* How fine a picture is looked at is the model's own rule: who asks for less of it would not get that. */
static int check_details(const struct json *messages, struct api_error *err)
{
    char text[128];
    for (uint32_t i = 0; i < messages->n; i++) {
        const struct json *content = json_get(json_at(messages, i), "content");
        for (uint32_t k = 0; content && content->type == JSON_ARRAY && k < content->n; k++) {
            const struct json *detail = json_get(json_get(json_at(content, k), "image_url"), "detail");
            const char *s = json_string(detail);
            if (detail == NULL || detail->type == JSON_NULL ||
                (s && (strcmp(s, "auto") == 0 || strcmp(s, "high") == 0)))
                continue;
            snprintf(text, sizeof text, "image_url.detail %.40s is not supported unless it is auto or high",
                     s ? s : "");
            text[utf8_complete_prefix(text, strlen(text))] = '\0';
            return picture_error(err, i, k, "unsupported", text);
        }
    }
    return 0;
}

/* Files are looked for nowhere: what the client says is all there is. */
static int fetch_nothing(void *ctx, const char *where, struct arena *arena, const void **bytes, size_t *n,
                         struct err *e)
{
    (void)ctx, (void)arena, (void)bytes, (void)n;
    err_set(e, ERR_UNSUPPORTED, "\"%.80s\": this server fetches nothing", where);
    err_hint(e, "send the picture itself: \"data:image/png;base64,...\"");
    return ERR_UNSUPPORTED;
}

/* What the tower cannot take is refused before anything is decoded. */
static int check_sizes(const struct serve *s, const struct picture_set *set, struct api_error *err)
{
    const struct engine_limits *l = engine_limits(s->engine);
    char text[200];
    uint64_t rows = 0;
    for (uint32_t i = 0; i < set->pictures.n; i++) {
        const struct prompt_picture *q = &set->pictures.list[i];
        const uint64_t patches = q->n_patches;
        rows += q->n_rows;
        const bool room =
            patches <= l->max_patches && q->n_rows <= l->max_picture_rows && rows <= l->n_feature_rows;
        if (room && rows <= s->max_context)
            continue;
        if (room) { /* not worth writing and tokenizing, which would hold up everybody else */
            snprintf(text, sizeof text, "the pictures up to this one take %llu tokens, the context holds %u",
                     (unsigned long long)rows, s->max_context);
            return picture_error(err, q->message, q->part, "context_length_exceeded", text);
        }
        if (patches > l->max_patches || q->n_rows > l->max_picture_rows)
            snprintf(text, sizeof text,
                     "a picture of %u x %u pixels becomes %llu patches, this server takes %u; send a smaller "
                     "one",
                     q->info.width, q->info.height, (unsigned long long)patches, l->max_patches);
        else
            snprintf(text, sizeof text,
                     "the pictures up to this one take %llu tokens, this server holds %u at a time",
                     (unsigned long long)rows, l->n_feature_rows);
        return picture_error(err, q->message, q->part, "image_too_large", text);
    }
    return 0;
}

/* Headers of the pictures; sets in->pictures where there are any. */
static int read_pictures(struct serve *s, struct request_input *in, struct api_error *err)
{
    struct prompt_picture_options o = {
        .fetch = fetch_nothing, .max_pictures = s->o.max_pictures, .image.max_pixels = s->o.max_pixels};
    uint32_t message, part;
    struct err e = {0};
    if (in->params.messages == NULL || !find_picture(in->params.messages, &message, &part))
        return 0;
    if (s->pool == NULL)
        return picture_error(err, message, part, "unsupported",
                             s->front->eyes ? "this server was started without pictures"
                                            : "this model takes no pictures");
    int rc = check_details(in->params.messages, err);
    if (rc)
        return rc;
    in->pictures = picture_set_new(s->pool);
    if (in->pictures == NULL)
        return api_error(err, 500, "internal", "messages", "out of memory");
    struct picture_set *set = in->pictures;
    if (prompt_pictures_read(s->front, in->params.messages, &o, &set->arena, &set->pictures, &e))
        return prompt_error(err, &in->params, &e);
    return check_sizes(s, set, err);
}

/* Tokens that see each other go through one step whole, or never. */
static int check_spans(const struct serve *s, const struct picture_set *set, struct api_error *err)
{
    const uint32_t most = engine_limits(s->engine)->max_tokens,
                   chunk = s->o.prefill_chunk && s->o.prefill_chunk < most ? s->o.prefill_chunk : most;
    char text[160];
    for (uint32_t i = 0; set->layout.spans && i < set->pictures.n; i++) {
        const struct prompt_picture *q = &set->pictures.list[i];
        const int32_t *span = set->layout.spans + 2 * q->first;
        if ((uint32_t)(span[1] - span[0]) <= chunk)
            continue;
        snprintf(text, sizeof text,
                 "%d tokens of pictures see each other and go through one step whole; this server's take %u",
                 span[1] - span[0], chunk);
        return picture_error(err, q->message, q->part, "image_too_large", text);
    }
    return 0;
}

/* Where they stand in the prompt, and room for them. */
static int place_pictures(struct serve *s, struct request_input *in, struct api_error *err)
{
    struct picture_set *set = in->pictures;
    struct err e = {0};
    int rc =
        prompt_lay_pictures(s->front, &set->pictures, in->ids.data, in->ids.n, &set->arena, &set->layout, &e);
    if (rc)
        return prompt_error(err, &in->params, &e);
    rc = check_spans(s, set, err);
    if (rc)
        return rc;
    rc = picture_pool_reserve(set, &e);
    if (rc == ERR_BUSY)
        return api_error(err, 429, "queue_full", "messages", "%s", e.message);
    return rc ? prompt_error(err, &in->params, &e) : 0;
}

/* ---- bodies ---- */

static int make_prompt(struct serve *s, struct request_input *in, struct api_error *err)
{
    const struct request_params *p = &in->params;
    struct ids *ids = &in->ids;
    struct err e = {0};
    int rc;
    if (p->ids)
        return ids_from_json(s, p->ids, ids, err);
    size_t bytes = p->prompt ? p->prompt->n : content_bytes(p->messages);
    if (hopeless(s, bytes))
        return api_error(err, 400, "context_length_exceeded", p->messages ? "messages" : "prompt",
                         "the context holds %u tokens; a prompt of %zu bytes has more", s->max_context,
                         bytes);
    struct prompt_chat chat = {.messages = p->messages,
                               .tools = p->tools,
                               .variables = p->template_kwargs,
                               .tool_choice = p->no_calls ? "none" : NULL,
                               .reasoning_effort = p->reasoning_effort,
                               .no_generation_prompt = p->no_generation_prompt};
    if (in->pictures) {
        chat.messages = in->pictures->pictures.messages;
        chat.pictures = &in->pictures->pictures;
    }
    if (p->prompt)
        rc = prompt_text(s->front, p->prompt->as.string, p->prompt->n, ids, &e);
    else
        rc = prompt_chat(s->front, &chat, &in->rendered, ids, &e);
    return rc ? prompt_error(err, p, &e) : 0;
}

/* max_tokens as it will be: given, or OpenAI's default of 16 for completions, or the rest of the context. */
static int check_length(const struct serve *s, struct request_params *p, size_t n_prompt,
                        struct api_error *err)
{
    if (n_prompt == 0)
        return api_error(err, 400, "invalid_value", "prompt",
                         "the prompt is empty and this model has no first token");
    uint64_t rest = n_prompt < s->max_context ? s->max_context - n_prompt : 0;
    if (p->max_tokens < 0 && p->endpoint == ENDPOINT_COMPLETIONS)
        p->max_tokens = rest > 0 && rest < 16 ? (int64_t)rest : 16;
    else if (p->max_tokens < 0)
        p->max_tokens = rest > 0 ? (int64_t)rest : 1;
    return (uint64_t)p->max_tokens > rest ? too_long(s, err, p, n_prompt, (uint64_t)p->max_tokens) : 0;
}

/* ---- both halves ---- */

void input_init(struct request_input *in, struct serve *s, uint64_t arrived_ns)
{
    *in = (struct request_input){.arrived_ns = arrived_ns, .rendered = STRBUF_INIT};
    arena_init(&in->arena, &s->d0->mem, MEM_REQUEST);
}

void input_release(struct request_input *in)
{
    ids_release(&in->ids);
    picture_set_free(in->pictures);
    strbuf_release(&in->rendered);
    arena_release(&in->arena);
    in->pictures = NULL;
}

int input_read(struct serve *s, enum endpoint endpoint, const char *body, size_t n, struct request_input *in,
               struct api_error *err)
{
    struct request_params *p = &in->params;
    const struct json *root;
    struct err e = {0};
    struct json_limits limits = {.max_bytes = s->o.max_body, .max_depth = MAX_JSON_DEPTH};
    int rc = json_parse(body, n, &limits, &in->arena, &root, &e);
    if (rc)
        return api_error(err, rc == ERR_NOMEM ? 500 : 400, rc == ERR_NOMEM ? "internal" : "invalid_json",
                         NULL, "%s", e.message);
    rc = request_params_read(root, endpoint, p, err);
    if (rc)
        return rc;
    if (strcmp(p->model, s->model_name) != 0)
        return api_error(err, 404, "model_not_found", "model",
                         "the model \"%.200s\" does not exist; this server has \"%.200s\"", p->model,
                         s->model_name);
    return read_pictures(s, in, err);
}

int input_place(struct serve *s, struct request_input *in, struct api_error *err)
{
    int rc = make_prompt(s, in, err);
    if (rc == 0)
        rc = check_length(s, &in->params, in->ids.n, err);
    return rc || in->pictures == NULL ? rc : place_pictures(s, in, err);
}
