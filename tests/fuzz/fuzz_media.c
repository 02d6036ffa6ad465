/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as messages with pictures: byte 0 chooses the processor and whether special tokens in messages
 * count; then rules of placeholders as JSON (or nothing: usual ones), a NUL, and messages as JSON. Refused
 * with a message, or as many tokens as rows, each row taken once and in order, and pictures made or refused.
 */
#include <stdlib.h>
#include <string.h>

#include "../unit/tiny_tokenizer.h"
#include "prompt/prompt_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char usual[] = "{\"marker\":\"<s>\",\"token\":\"</s>\",\"picture\":\"[$tokens]\",\"tiles\":{"
                            "\"first\":\"$tokens\",\"tile\":\"$row $column $tokens\",\"last\":\"$tokens\"}}";
static const char template[] =
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% "
    "if p.type == 'image' %}<s>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
static const char *const processors[] = {
    "{\"image_processor_type\":\"Qwen2VLImageProcessor\",\"min_pixels\":784,\"max_pixels\":12544}",
    "{\"image_processor_type\":\"Idefics3ImageProcessor\",\"size\":{\"longest_edge\":64},\"max_image_size\":{"
    "\"longest_edge\":32}}",
    "{\"image_processor_type\":\"Gemma3ImageProcessor\",\"size\":{\"height\":32,\"width\":32}}",
    "{\"image_processor_type\":\"GotOcr2ImageProcessor\",\"crop_to_patches\":true,\"size\":{\"height\":28,"
    "\"width\":28}}",
};

static void open_front(struct prompt_front *p, struct prompt_template *t)
{
    struct strbuf text = STRBUF_INIT;
    struct err e = {0};
    tiny_tokenizer(&text, &(struct tiny_options){0});
    *p = (struct prompt_front){.bos_id = -1, .has_template = true, .template_works = true};
    arena_init(&p->arena, NULL, MEM_TEXT);
    if (tokenizer_open(&p->tokenizer, text.data, text.len, NULL, &e) ||
        jinja_open(&t->jinja, template, sizeof template - 1, NULL, &e))
        abort();
    t->name = "default";
    p->templates = t;
    p->n_templates = 1;
    strbuf_release(&text);
}

static int eyes_of(const struct prompt_front *p, struct prompt_eyes *eyes, unsigned which, struct arena *a)
{
    struct image_configs c = {0};
    struct err e = {0};
    bool found = false;
    if (json_parse(processors[which], strlen(processors[which]), NULL, a, &c.preprocessor, &e) ||
        image_processor_open(&c, NULL, &eyes->processor, &e))
        abort();
    int rc = placeholders_compile(p, &found, &eyes->rules, &e);
    if (rc && e.message[0] == '\0')
        abort();
    if (rc == 0 && found)
        eyes->token_id = tokenizer_id(p->tokenizer, eyes->rules.token);
    return rc || !found;
}

static void check_layout(const struct prompt_pictures *pictures, const struct prompt_layout *l)
{
    uint64_t rows = 0;
    int32_t next = 0;
    for (uint32_t i = 0; i < pictures->n; i++) {
        if (l->feature_of[pictures->list[i].first] != (int64_t)rows)
            abort();
        rows += pictures->list[i].n_rows;
    }
    for (size_t i = 0; i < l->n; i++)
        if (l->feature_of[i] >= 0 && l->feature_of[i] != next++)
            abort();
    if ((uint64_t)next != rows)
        abort();
}

static void use(const struct prompt_front *p, const struct json *messages, bool special, struct arena *a)
{
    const struct prompt_picture_options o = {.image = {.max_pixels = 1 << 14}};
    struct prompt_pictures pictures;
    struct prompt_layout layout;
    struct ids ids = {0};
    struct err e = {0};
    struct prompt_chat chat = {
        .messages = messages, .pictures = &pictures, .parse_special = special, .now = -1};
    int rc = prompt_pictures_read(p, messages, &o, a, &pictures, &e);
    if (rc == 0)
        rc = prompt_chat(p, &chat, NULL, &ids, &e);
    if (rc == 0 && pictures.n)
        rc = prompt_lay_pictures(p, &pictures, ids.data, ids.n, a, &layout, &e);
    if (rc && e.message[0] == '\0')
        abort();
    if (rc == 0 && pictures.n)
        check_layout(&pictures, &layout);
    for (uint32_t i = 0; rc == 0 && i < pictures.n && i < 4; i++) {
        struct prompt_pixels pixels;
        if (prompt_picture_make(p, &pictures.list[i], &o.image, a, &pixels, &e) && e.message[0] == '\0')
            abort();
    }
    ids_release(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct prompt_front front;
    static struct prompt_template opened;
    const struct json_limits limits = {.max_bytes = 1 << 18};
    const struct json *rules, *messages;
    struct prompt_eyes eyes = {.token_id = -1};
    struct spec spec = {.arch_name = "fuzz.lua"};
    struct arena a;
    if (size < 2)
        return 0;
    if (front.tokenizer == NULL)
        open_front(&front, &opened);
    const char *text = (const char *)data + 1, *end = memchr(text, 0, size - 1);
    const char *first = end && end > text ? text : usual;
    const size_t n = end && end > text ? (size_t)(end - text) : sizeof usual - 1;
    const char *rest = end ? end + 1 : text;
    arena_init(&a, NULL, MEM_REQUEST);
    if (json_parse(first, n, &limits, &a, &rules, NULL) == ERR_OK &&
        json_parse(rest, size - (size_t)(rest - (const char *)data), &limits, &a, &messages, NULL) ==
            ERR_OK) {
        struct prompt_front p = front;
        spec.placeholders = rules;
        p.spec = &spec;
        if (eyes_of(&p, &eyes, data[0] % ARRAY_LEN(processors), &a) == 0) {
            p.eyes = &eyes;
            use(&p, messages, data[0] & 128, &a);
        }
    }
    arena_release(&a);
    return 0;
}
