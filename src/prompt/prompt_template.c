/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the chat templates of a directory and what they are given besides messages. Where transformers looks,
 * in its order: chat_template.jinja with additional_chat_templates/, then chat_template.json, then
 * tokenizer_config.json (one template, or a list of named ones). A template that is not understood does not
 * keep the model from being opened.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "prompt/prompt_impl.h"

#define MAX_TEMPLATE_FILE (1u << 20)
#define MAX_TEMPLATES     16

/* Contents of a file, or NULL where it does not exist. */
static int read_optional(struct prompt_front *p, struct ckpt *c, const char *name, size_t most, char **data,
                         size_t *n, struct err *e)
{
    struct err why = {0};
    const char *path = ckpt_path(c, name);
    *data = NULL;
    if (path == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for a path");
    int rc = file_read(path, most, &p->arena, data, n, &why);
    if (rc == ERR_MISSING) {
        *data = NULL;
        return ERR_OK;
    }
    if (rc && e)
        *e = why;
    return rc;
}

static int add_template(struct prompt_front *p, const char *name, const char *text, size_t n, struct err *e)
{
    struct err why = {0};
    struct jinja_template *t = NULL;
    p->has_template = true;
    if (p->template_text == NULL && (p->template_text = arena_strndup(&p->arena, text, n)) == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the chat template");
    if (p->n_templates == MAX_TEMPLATES)
        return ERR_OK; /* more names than anybody asks for */
    if (p->templates == NULL)
        p->templates = arena_alloc_n(&p->arena, MAX_TEMPLATES, sizeof *p->templates);
    char *copy = arena_strdup(&p->arena, name);
    if (p->templates == NULL || copy == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the chat template");
    int rc = jinja_open(&t, text, n, p->arena.mem, &why);
    if (rc == ERR_NOMEM) {
        if (e)
            *e = why;
        return rc;
    }
    if (rc) { /* the first reason is told */
        if (p->template_error.code == 0)
            p->template_error = why;
        return ERR_OK;
    }
    p->templates[p->n_templates++] = (struct prompt_template){copy, t};
    return ERR_OK;
}

/* A string, or [{"name": ..., "template": ...}, ...] */
static int add_from_json(struct prompt_front *p, const struct json *v, struct err *e)
{
    int rc = ERR_OK;
    if (json_string(v))
        return add_template(p, "default", v->as.string, v->n, e);
    for (uint32_t i = 0; v && v->type == JSON_ARRAY && i < v->n && rc == 0; i++) {
        const struct json *name = json_get(json_at(v, i), "name"),
                          *text = json_get(json_at(v, i), "template");
        if (json_string(name) && json_string(text))
            rc = add_template(p, name->as.string, text->as.string, text->n, e);
    }
    return rc;
}

/* *text NULL: it does not exist, or it is too long, which is told like one that is not understood. */
static int read_template(struct prompt_front *p, struct ckpt *c, const char *name, char **text, size_t *n,
                         struct err *e)
{
    struct err why = {0};
    int rc = read_optional(p, c, name, MAX_TEMPLATE_FILE, text, n, &why);
    if (rc == ERR_LIMIT) {
        p->has_template = true;
        if (p->template_error.code == 0)
            p->template_error = why;
        return ERR_OK;
    }
    if (rc && e)
        *e = why;
    return rc;
}

/* chat_template.json. One that is damaged may hold a template: it is told like one that is not understood. */
static int add_processor_template(struct prompt_front *p, struct ckpt *c, struct err *e)
{
    const struct json *file = NULL;
    struct err why = {0};
    char *text;
    size_t n;
    int rc = read_template(p, c, "chat_template.json", &text, &n, e);
    if (rc || text == NULL)
        return rc;
    rc = json_parse(text, n, NULL, &p->arena, &file, &why);
    if (rc == ERR_NOMEM && e)
        *e = why;
    if (rc == 0)
        return add_from_json(p, json_get(file, "chat_template"), e);
    p->has_template = true;
    p->template_error = why;
    return rc == ERR_NOMEM ? rc : ERR_OK;
}

/* additional_chat_templates/NAME.jinja, in the order of their names. */
static int add_folder(struct prompt_front *p, struct ckpt *c, struct err *e)
{
    char *names[MAX_TEMPLATES], path[320];
    size_t n_names = 0;
    const char *folder = ckpt_path(c, "additional_chat_templates");
    DIR *d = folder ? opendir(folder) : NULL;
    int rc = ERR_OK;
    for (struct dirent *entry; d && n_names < MAX_TEMPLATES && (entry = readdir(d)) != NULL;)
        if (str_ends(entry->d_name, ".jinja") && entry->d_name[0] != '.' &&
            (names[n_names] = arena_strdup(&p->arena, entry->d_name)) != NULL)
            n_names++;
    if (d)
        closedir(d);
    for (size_t i = 1; i < n_names; i++)
        for (size_t k = i; k > 0 && strcmp(names[k - 1], names[k]) > 0; k--) {
            char *swap = names[k];
            names[k] = names[k - 1];
            names[k - 1] = swap;
        }
    for (size_t i = 0; i < n_names && rc == 0; i++) {
        char *text;
        size_t n;
        snprintf(path, sizeof path, "additional_chat_templates/%s", names[i]);
        rc = read_template(p, c, path, &text, &n, e);
        names[i][strlen(names[i]) - strlen(".jinja")] = '\0';
        if (rc == 0 && text)
            rc = add_template(p, names[i], text, n, e);
    }
    return rc;
}

int front_json(struct prompt_front *p, struct ckpt *c, const char *name, const struct json **out,
               struct err *damaged, struct err *e)
{
    char *data;
    size_t n;
    struct err why = {0};
    *out = NULL;
    int rc = read_optional(p, c, name, 16u << 20, &data, &n, &why);
    if (rc == 0 && data)
        rc = json_parse(data, n, NULL, &p->arena, out, &why);
    if (rc == ERR_NOMEM && e)
        *e = why;
    else if (rc && damaged)
        err_set(damaged, rc, "%s: %s", name, why.message);
    return rc == ERR_NOMEM ? rc : ERR_OK;
}

/* ---- tokens by name ---- */

static void put_token(struct json_writer *w, const struct json_member *m)
{
    const struct json *text = json_string(&m->value) ? &m->value : json_get(&m->value, "content");
    if (!json_string(text) || !str_ends(m->key, "_token"))
        return;
    json_key(w, m->key);
    json_write_string_n(w, text->as.string, text->n);
}

/* {"bos_token": "<s>", ...} of tokenizer_config.json, what it has as extra_special_tokens, and
 * special_tokens_map.json: whoever names a token first. */
static int read_token_names(struct prompt_front *p, struct ckpt *c, const struct json *config, struct err *e)
{
    const struct json *map, *lists[3];
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    int rc = front_json(p, c, "special_tokens_map.json", &map, NULL, e);
    if (rc)
        return rc;
    lists[0] = config;
    lists[1] = json_get(config, "extra_special_tokens");
    lists[2] = map;
    json_writer_init(&w, &text, false);
    json_begin_object(&w);
    for (size_t k = 0; k < 3; k++)
        for (uint32_t i = 0; lists[k] && lists[k]->type == JSON_OBJECT && i < lists[k]->n; i++) {
            const struct json_member *m = &lists[k]->as.members[i];
            bool said = false;
            for (size_t before = 0; before < k; before++)
                said = said || json_get(lists[before], m->key) != NULL;
            if (!said)
                put_token(&w, m);
        }
    json_end_object(&w);
    rc = strbuf_failed(&text) ? err_set(e, ERR_NOMEM, "out of memory for the names of tokens")
                              : json_parse(text.data, text.len, NULL, &p->arena, &p->token_names, e);
    strbuf_release(&text);
    return rc;
}

void front_add_media(struct prompt_front *p, int64_t id)
{
    for (uint32_t i = 0; i < p->n_media; i++)
        if (p->media_ids[i] == id)
            return;
    if (id >= 0 && id <= INT32_MAX && p->n_media < ARRAY_LEN(p->media_ids))
        p->media_ids[p->n_media++] = (int32_t)id;
}

static int read_media(struct prompt_front *p, struct ckpt *c, struct err *e)
{
    static const char *const ids[] = {"image_token_id",    "image_token_index", "video_token_id",
                                      "video_token_index", "audio_token_id",    "audio_token_index"};
    static const char *const names[] = {"image_token", "video_token", "audio_token"};
    const struct json *config;
    int64_t id;
    int rc = front_json(p, c, "config.json", &config, NULL, e);
    for (size_t i = 0; i < ARRAY_LEN(ids); i++)
        if (json_i64(json_get(config, ids[i]), &id))
            front_add_media(p, id);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *text = json_string(json_get(p->token_names, names[i]));
        if (text)
            front_add_media(p, tokenizer_id(p->tokenizer, text));
    }
    return rc;
}

int templates_read(struct prompt_front *p, struct ckpt *c, const struct json *config, struct err *e)
{
    char *text;
    size_t n;
    int rc = read_template(p, c, "chat_template.jinja", &text, &n, e);
    if (rc == 0 && text)
        rc = add_template(p, "default", text, n, e);
    if (rc == 0)
        rc = add_folder(p, c, e);
    if (rc == 0 && !p->has_template)
        rc = add_processor_template(p, c, e);
    if (rc == 0 && !p->has_template)
        rc = add_from_json(p, json_get(config, "chat_template"), e);
    if (rc == 0)
        rc = read_token_names(p, c, config, e);
    if (rc == 0)
        rc = read_media(p, c, e);
    p->template_works = p->n_templates > 0 && p->template_error.code == 0;
    p->template_kind = !p->has_template    ? "none (plain)"
                       : p->template_works ? "jinja"
                                           : "jinja (not understood)";
    return rc;
}
