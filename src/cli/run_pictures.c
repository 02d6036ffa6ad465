/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: text and files of day0 run as one message of a conversation, on the way that the service takes as
 * well: prompt_pictures_read, prompt_chat, prompt_lay_pictures, prompt_picture_make. Refuses a model that was
 * opened without its tower.
 */
#include "cli/run_pictures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define MAX_FILE ((size_t)256 << 20)

struct files {
    const char *const *paths;
    uint32_t n;
};

/* A picture is named by its number: a path need not be UTF-8. */
static int fetch_file(void *ctx, const char *where, struct arena *arena, const void **bytes, size_t *n,
                      struct err *e)
{
    const struct files *f = ctx;
    unsigned long i = strtoul(where, NULL, 10);
    char *data;
    if (i >= f->n)
        BUG("a picture of number %lu among %u files", i, f->n);
    int rc = file_read(f->paths[i], MAX_FILE, arena, &data, n, e);
    *bytes = rc ? NULL : data;
    return rc;
}

static void put_picture(struct json_writer *w, uint32_t i)
{
    char number[16];
    snprintf(number, sizeof number, "%u", i);
    json_begin_object(w);
    json_put_string(w, "type", "image");
    json_put_string(w, "path", number);
    json_end_object(w);
}

static void put_text(struct json_writer *w, const char *text, size_t n)
{
    if (n == 0)
        return;
    json_begin_object(w);
    json_put_string(w, "type", "text");
    json_key(w, "text");
    json_write_string_n(w, text, n);
    json_end_object(w);
}

static const char *next_marker(const char *text, size_t n)
{
    return memmem(text, n, RUN_MARKER, sizeof RUN_MARKER - 1);
}

static uint32_t count_markers(const char *text, size_t n)
{
    const char *end = text + n;
    uint32_t count = 0;
    for (const char *at = text; (at = next_marker(at, (size_t)(end - at))); at += sizeof RUN_MARKER - 1)
        count++;
    return count;
}

static int make_messages(struct arena *arena, const char *text, size_t n, uint32_t n_files,
                         const struct json **out, struct err *e)
{
    const char *end = text + n;
    uint32_t n_markers = count_markers(text, n), next = 0;
    struct strbuf b = STRBUF_INIT;
    struct json_writer w;
    if (n_markers > n_files)
        return err_set(e, ERR_INVALID, "the text has %u times " RUN_MARKER ", and there are %u pictures",
                       n_markers, n_files);
    json_writer_init(&w, &b, false);
    json_begin_array(&w);
    json_begin_object(&w);
    json_put_string(&w, "role", "user");
    json_key(&w, "content");
    json_begin_array(&w);
    while (next < n_files - n_markers)
        put_picture(&w, next++);
    for (const char *at = text; at;) {
        const char *marker = next_marker(at, (size_t)(end - at));
        put_text(&w, at, (size_t)((marker ? marker : end) - at));
        if (marker)
            put_picture(&w, next++);
        at = marker ? marker + sizeof RUN_MARKER - 1 : NULL;
    }
    json_end_array(&w);
    json_end_object(&w);
    json_end_array(&w);
    int rc = strbuf_failed(&b) ? err_set(e, ERR_NOMEM, "no memory for the prompt")
                               : json_parse(b.data, b.len, NULL, arena, out, e);
    strbuf_release(&b);
    return rc;
}

static int make_images(struct run_pictures *r, const struct session *s, const char *const *files,
                       struct err *e)
{
    const struct picture_shape *shape = engine_picture_shape(s->engine);
    r->images = arena_alloc_n(&r->arena, r->pictures.n, sizeof *r->images);
    if (r->images == NULL)
        return err_set(e, ERR_NOMEM, "no memory for %u pictures", r->pictures.n);
    for (uint32_t i = 0; i < r->pictures.n; i++) {
        struct sched_image *image = &r->images[i];
        struct picture_plan *message = NULL;
        struct prompt_pixels pixels = {0};
        struct arena work;
        arena_init(&work, r->arena.mem, MEM_REQUEST);
        int rc = prompt_picture_make(s->front, &r->pictures.list[i], NULL, &work, &pixels, e);
        if (rc == ERR_OK)
            rc = prompt_picture_message(&pixels, shape, &message, &image->bytes, e);
        arena_release(&work);
        if (rc != ERR_OK) {
            err_ctx(e, "picture %s", files[i]);
            return rc;
        }
        memcpy(image->key, pixels.key, sizeof image->key);
        image->n_rows = pixels.n_rows;
        image->message = message;
        r->decode_ns += pixels.decode_ns;
        r->process_ns += pixels.process_ns;
    }
    return ERR_OK;
}

int run_pictures_make(struct run_pictures *r, const struct session *s, const char *text, size_t n,
                      const char *const *files, uint32_t n_files, struct ids *ids, struct err *e)
{
    struct files f = {.paths = files, .n = n_files};
    struct prompt_picture_options o = {.fetch = fetch_file, .ctx = &f, .max_bytes = MAX_FILE};
    const struct json *messages = NULL;
    struct strbuf rendered = STRBUF_INIT;
    memset(r, 0, sizeof *r);
    arena_init(&r->arena, s->front->arena.mem, MEM_REQUEST);
    int rc = make_messages(&r->arena, text, n, n_files, &messages, e);
    if (rc == ERR_OK)
        rc = prompt_pictures_read(s->front, messages, &o, &r->arena, &r->pictures, e);
    if (rc == ERR_OK && engine_limits(s->engine)->n_feature_rows == 0)
        rc = err_set(e, ERR_UNSUPPORTED, "the tower of this model does not run here");
    struct prompt_chat chat = {.messages = r->pictures.messages, .pictures = &r->pictures};
    if (rc == ERR_OK)
        rc = prompt_chat(s->front, &chat, &rendered, ids, e);
    if (rc == ERR_OK)
        rc = prompt_lay_pictures(s->front, &r->pictures, ids->data, ids->n, &r->arena, &r->layout, e);
    if (rc == ERR_OK)
        rc = make_images(r, s, files, e);
    r->generate = (struct generate_pictures){.images = r->images,
                                             .n_images = r->pictures.n,
                                             .feature_of = r->layout.feature_of,
                                             .places = r->layout.places,
                                             .spans = r->layout.spans,
                                             .place_delta = r->layout.place_delta};
    strbuf_release(&rendered);
    return rc;
}

void run_pictures_release(struct run_pictures *r)
{
    for (uint32_t i = 0; r->images && i < r->pictures.n; i++)
        free((void *)(uintptr_t)r->images[i].message); /* ours, and const to the scheduler only */
    arena_release(&r->arena);
    memset(r, 0, sizeof *r);
}
