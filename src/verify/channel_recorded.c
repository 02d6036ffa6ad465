/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the conversation of a recording as messages that the examiner can take: a part that says "image"
 * alone names the next picture of the file. Refuses: messages that are no array, pictures that the file
 * lacks.
 */
#include <stdio.h>
#include <string.h>

#include "verify/channel_impl.h"

int channel_recorded_picture(void *ctx, const char *where, struct arena *arena, const void **bytes, size_t *n,
                             struct err *e)
{
    const struct reference *r = ctx;
    int64_t i;
    (void)arena;
    if (!str_to_i64(where, &i) || i < 0 || (uint64_t)i >= r->n_pictures)
        return err_set(e, ERR_MISSING, "%s: messages take picture %s, counted from 0, and the file holds %zu",
                       r->path, where, r->n_pictures);
    *bytes = r->pictures[i].bytes;
    *n = r->pictures[i].n;
    return ERR_OK;
}

static void write_part(struct json_writer *w, const struct json *part, size_t *picture)
{
    const char *type = json_string(json_get(part, "type"));
    if (!type || strcmp(type, "image") != 0) {
        json_write_tree(w, part);
        return;
    }
    char number[24];
    snprintf(number, sizeof number, "%zu", (*picture)++);
    json_begin_object(w);
    json_put_string(w, "type", "image");
    json_put_string(w, "path", number);
    json_end_object(w);
}

/* {"type": "image"} becomes a part that names a picture of the file. */
int channel_recorded_messages(const struct reference *r, struct arena *arena, const struct json **out,
                              struct err *e)
{
    const struct json *messages = NULL;
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    size_t picture = 0;
    struct err why = {0};
    int rc = json_parse(r->messages, strlen(r->messages), NULL, arena, &messages, &why);
    if (rc)
        rc = err_set(e, rc, "%s: messages: %s", r->path, why.message);
    else if (messages->type != JSON_ARRAY)
        rc = err_set(e, ERR_FORMAT, "%s: messages are no array", r->path);
    json_writer_init(&w, &text, false);
    json_begin_array(&w);
    for (size_t i = 0; rc == 0 && i < messages->n; i++) {
        const struct json *m = json_at(messages, i), *content = json_get(m, "content");
        json_begin_object(&w);
        json_put_string(&w, "role", json_string(json_get(m, "role")));
        json_key(&w, "content");
        if (content && content->type == JSON_ARRAY) {
            json_begin_array(&w);
            for (size_t k = 0; k < content->n; k++)
                write_part(&w, json_at(content, k), &picture);
            json_end_array(&w);
        } else {
            json_write_string(&w, json_string(content) ? json_string(content) : "");
        }
        json_end_object(&w);
    }
    json_end_array(&w);
    if (rc == 0)
        rc = json_parse(strbuf_cstr(&text), text.len, NULL, arena, out, e);
    strbuf_release(&text);
    return rc;
}
