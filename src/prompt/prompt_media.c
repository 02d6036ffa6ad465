/* SPDX-License-Identifier: Apache-2.0
 *
 * The pictures of a conversation: which parts are pictures, their bytes (out of data: URLs, or from whoever
 * calls), sizes from their headers and what becomes of them. Nothing is decoded here, so whatever is to be
 * refused is refused before it costs much. Refuses videos and sound by leaving them to the template's rules.
 */
#include <openssl/evp.h>
#include <string.h>

#include "prompt/prompt_impl.h"

#define MAX_FILE_BYTES ((size_t)64 << 20)
#define MAX_ROWS       (1u << 20) /* placeholders of a whole conversation */

struct looking {
    const struct prompt_front *p;
    const struct prompt_picture_options *o;
    struct arena *arena;
    uint32_t max_pictures;
    size_t max_bytes, capacity;
    uint64_t rows; /* of all pictures so far */
    struct prompt_pictures *out;
    struct err *e;
};

/* Says where it happened. */
static int at_part(const struct looking *l, uint32_t message, uint32_t part, int rc)
{
    if (rc)
        err_ctx(l->e, "messages[%u].content[%u]", message, part);
    return rc;
}

static bool is_picture(const struct json *part)
{
    const char *type = json_string(json_get(part, "type"));
    return type && (strcmp(type, "image") == 0 || strcmp(type, "image_url") == 0);
}

int text_part_check(const struct json *part, uint32_t message, uint32_t number, struct err *e)
{
    static const char *const keys[] = {"image", "image_url", "video", "video_url", "audio", "input_audio"};
    const char *type = json_string(json_get(part, "type"));
    for (size_t i = 0; type && strcmp(type, "text") == 0 && i < ARRAY_LEN(keys); i++) {
        const struct json *v = json_get(part, keys[i]);
        if (v == NULL || v->type == JSON_NULL)
            continue;
        err_set(e, ERR_INVALID, "a part of type text has the key %s, which nobody would look at", keys[i]);
        err_ctx(e, "messages[%u].content[%u]", message, number);
        return ERR_INVALID;
    }
    return ERR_OK;
}

/* ---- bytes ---- */

static int from_base64(const struct looking *l, const char *s, size_t n, struct prompt_picture *m)
{
    size_t pad = 0;
    while (n > 0 && (s[n - 1] == '\n' || s[n - 1] == '\r'))
        n--;
    if (n == 0 || n % 4 != 0)
        return err_set(l->e, ERR_FORMAT, "base64 of %zu characters, which is no multiple of 4 above 0", n);
    if (n / 4 * 3 > l->max_bytes + 2)
        return err_set(l->e, ERR_LIMIT, "a picture of about %zu bytes, at most %zu", n / 4 * 3, l->max_bytes);
    while (pad < 2 && s[n - 1 - pad] == '=')
        pad++;
    if (memchr(s, '=', n - pad) || memchr(s, ' ', n) || memchr(s, '\n', n) || memchr(s, '\r', n) ||
        memchr(s, '\t', n) || memchr(s, '-', n))
        return err_set(l->e, ERR_FORMAT, "no base64");
    unsigned char *bytes = arena_alloc(l->arena, n / 4 * 3 + 1);
    if (bytes == NULL)
        return err_set(l->e, ERR_NOMEM, "out of memory for a picture");
    int got = EVP_DecodeBlock(bytes, (const unsigned char *)s, (int)n);
    if (got < 0)
        return err_set(l->e, ERR_FORMAT, "no base64");
    m->bytes = bytes;
    m->n = (size_t)got - pad;
    return ERR_OK;
}

static int from_data_url(const struct looking *l, const struct json *url, struct prompt_picture *m)
{
    static const char mark[] = ";base64,";
    const char *comma = memchr(url->as.string, ',', url->n);
    size_t head = comma ? (size_t)(comma + 1 - url->as.string) : 0;
    if (head < sizeof mark - 1 || memcmp(comma + 1 - (sizeof mark - 1), mark, sizeof mark - 1) != 0)
        return err_set(l->e, ERR_INVALID, "a data: URL without \";base64,\"");
    return from_base64(l, comma + 1, url->n - head, m);
}

/* What the part says of where its picture is. */
static const struct json *source_of(const struct json *part, const char **key)
{
    static const char *const keys[] = {"image_url", "image", "path", "url", "base64"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const struct json *v = json_get(part, keys[i]);
        if (v && v->type == JSON_OBJECT)
            v = json_get(v, "url");
        *key = keys[i];
        if (v && v->type != JSON_NULL)
            return v;
    }
    *key = "image_url.url";
    return NULL;
}

static int read_bytes(const struct looking *l, const struct json *part, struct prompt_picture *m)
{
    const char *key;
    const struct json *v = source_of(part, &key);
    if (json_string(v) == NULL || v->n == 0 || strlen(v->as.string) != v->n)
        return err_set(l->e, ERR_INVALID, "a picture whose %s is missing or no text", key);
    if (strcmp(key, "base64") == 0)
        return from_base64(l, v->as.string, v->n, m);
    if (str_starts(v->as.string, "data:"))
        return from_data_url(l, v, m);
    if (l->o->fetch == NULL)
        return err_set(l->e, ERR_UNSUPPORTED, "a picture other than by a data: URL is not fetched: %.100s",
                       v->as.string);
    int rc = l->o->fetch(l->o->ctx, v->as.string, l->arena, &m->bytes, &m->n, l->e);
    if (rc == 0 && m->n > l->max_bytes)
        rc = err_set(l->e, ERR_LIMIT, "a picture of %zu bytes, at most %zu", m->n, l->max_bytes);
    return rc;
}

/* ---- sizes ---- */

/* The grids that the tower is given; of a tower that is only described none but those of the processor. */
static int make_grids(const struct looking *l, struct prompt_picture *m)
{
    const struct spec *spec = l->p->spec;
    m->n_grids = m->plan.grid_h ? 1 : spec->vision ? m->plan.n_tiles : 0;
    m->grids = arena_alloc_n(l->arena, m->n_grids ? m->n_grids : 1, sizeof *m->grids);
    if (m->grids == NULL)
        return err_set(l->e, ERR_NOMEM, "out of memory for a picture");
    if (m->n_grids == 0)
        return ERR_OK;
    int rc = image_plan_grids(&m->plan, spec->vision ? spec->tower.patch : 0,
                              spec->vision && spec->tower.lines, m->grids, l->e);
    if (rc == 0 && spec->vision) {
        const struct image_tower tower = prompt_tower(&spec->tower);
        m->n_patches = image_tower_patches(&tower, m->grids, m->n_grids);
    }
    return rc;
}

static int plan(struct looking *l, struct prompt_picture *m)
{
    const struct prompt_eyes *eyes = l->p->eyes;
    const bool assumed = l->o->width && l->o->height;
    m->info = (struct image_info){.width = l->o->width, .height = l->o->height, .orientation = 1};
    int rc = assumed ? ERR_OK : image_probe(m->bytes, m->n, &l->o->image, &m->info, l->e);
    if (rc == 0 && m->info.has_alpha && eyes->processor.refuses_alpha)
        rc = err_set(l->e, ERR_UNSUPPORTED,
                     "a picture with alpha: the background that this model wants is not made here");
    if (rc == 0)
        rc = image_plan(&eyes->processor, m->info.width, m->info.height, &l->o->image, &m->plan, l->e);
    if (rc)
        return rc;
    if (m->plan.placeholders == 0)
        return err_set(l->e, ERR_UNSUPPORTED,
                       "nothing in the directory says how many tokens stand for a "
                       "picture");
    if (m->plan.placeholders > MAX_ROWS || (l->rows += m->plan.placeholders) > MAX_ROWS)
        return err_set(l->e, ERR_LIMIT, "pictures of more than %u tokens", MAX_ROWS);
    m->n_rows = (uint32_t)m->plan.placeholders;
    return make_grids(l, m);
}

static int add_picture(struct looking *l, const struct json *part, uint32_t message, uint32_t number)
{
    struct prompt_pictures *out = l->out;
    const struct prompt_eyes *eyes = l->p->eyes;
    if (eyes == NULL)
        return err_set(l->e, ERR_UNSUPPORTED, "this model takes no pictures");
    if (eyes->refused.code)
        return err_set(l->e, ERR_UNSUPPORTED, "this model's image processor is not understood: %s",
                       eyes->refused.message);
    if (eyes->token_id < 0)
        return err_set(l->e, ERR_UNSUPPORTED, "the tokenizer lacks %s, which stands for pictures",
                       eyes->rules.token);
    if (out->n == l->max_pictures)
        return err_set(l->e, ERR_LIMIT, "more than %u pictures", l->max_pictures);
    struct prompt_picture *m = &out->list[out->n];
    *m = (struct prompt_picture){.message = message, .part = number};
    int rc = l->o->width && l->o->height ? ERR_OK : read_bytes(l, part, m);
    if (rc == 0)
        rc = plan(l, m);
    out->n += rc == 0;
    return rc;
}

/* ---- messages as templates get them ---- */

static int rewrite(const struct looking *l, const struct json *message, struct json *out)
{
    static const struct json_limits limits = {.max_depth = 512};
    const struct json *content = json_get(message, "content"), *tree = NULL;
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &text, false);
    json_begin_object(&w);
    for (uint32_t i = 0; i < message->n; i++) {
        json_key(&w, message->as.members[i].key);
        if (&message->as.members[i].value != content) {
            json_write_tree(&w, &message->as.members[i].value);
            continue;
        }
        json_begin_array(&w);
        for (uint32_t k = 0; k < content->n; k++) {
            if (!is_picture(json_at(content, k))) {
                json_write_tree(&w, json_at(content, k));
                continue;
            }
            json_begin_object(&w);
            json_put_string(&w, "type", "image");
            json_end_object(&w);
        }
        json_end_array(&w);
    }
    json_end_object(&w);
    int rc = strbuf_failed(&text) ? err_set(l->e, ERR_NOMEM, "out of memory for messages")
                                  : json_parse(text.data, text.len, &limits, l->arena, &tree, l->e);
    strbuf_release(&text);
    if (rc == 0)
        *out = *tree;
    return rc;
}

static int look_at(struct looking *l, const struct json *message, uint32_t i, struct json *out)
{
    const struct json *content = json_get(message, "content");
    const uint32_t before = l->out->n;
    *out = *message;
    for (uint32_t k = 0; content && content->type == JSON_ARRAY && k < content->n; k++) {
        int rc = is_picture(json_at(content, k)) ? at_part(l, i, k, add_picture(l, json_at(content, k), i, k))
                                                 : ERR_OK;
        if (rc)
            return rc;
    }
    return l->out->n > before ? rewrite(l, message, out) : ERR_OK;
}

static uint32_t count_pictures(const struct json *messages)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < messages->n; i++) {
        const struct json *content = json_get(json_at(messages, i), "content");
        for (uint32_t k = 0; content && content->type == JSON_ARRAY && k < content->n; k++)
            n += is_picture(json_at(content, k));
    }
    return n;
}

int prompt_pictures_read(const struct prompt_front *p, const struct json *messages,
                         const struct prompt_picture_options *o, struct arena *arena,
                         struct prompt_pictures *out, struct err *e)
{
    struct looking l = {.p = p, .o = o, .arena = arena, .out = out, .e = e};
    *out = (struct prompt_pictures){.messages = messages};
    l.max_pictures =
        o->max_pictures && o->max_pictures < PROMPT_MAX_PICTURES ? o->max_pictures : PROMPT_MAX_PICTURES;
    l.max_bytes = o->max_bytes ? o->max_bytes : MAX_FILE_BYTES;
    uint32_t n = messages && messages->type == JSON_ARRAY ? count_pictures(messages) : 0;
    if (n == 0)
        return ERR_OK;
    struct json *items = arena_alloc_n(arena, messages->n, sizeof *items),
                *list = arena_alloc(arena, sizeof *list);
    out->list = arena_alloc_n(arena, n < l.max_pictures ? n : l.max_pictures, sizeof *out->list);
    if (items == NULL || list == NULL || out->list == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for messages");
    for (uint32_t i = 0; i < messages->n; i++) {
        int rc = look_at(&l, json_at(messages, i), i, &items[i]);
        if (rc)
            return rc;
    }
    *list = (struct json){.type = JSON_ARRAY, .n = messages->n, .as.items = items};
    out->messages = list;
    return ERR_OK;
}
