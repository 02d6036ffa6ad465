/* SPDX-License-Identifier: Apache-2.0
 *
 * Pictures in prompts: for each family the ids that transformers' processors make of messages with pictures
 * (golden/placeholders.json, by tools/placeholder_reference.py), places, rows and spans; what the tower is
 * given; keys; what is refused and what the refusal says.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "ckpt/ckpt.h"
#include "prompt/prompt.h"

#define TESTS TEST_SOURCE_ROOT "/tests/"

struct model {
    struct d0 d0;
    struct findings findings;
    struct ckpt *ckpt;
    struct spec *spec;
    struct prompt_front *front;
    struct arena arena;
    char dir[64];
    size_t n_class_rows; /* seen in towers */
};

static const char *const files[] = {"config.json", "tokenizer.json", "preprocessor_config.json",
                                    "processor_config.json", "chat_template.jinja"};

static const struct json *parse(struct arena *arena, const char *text, size_t n)
{
    const struct json *v = NULL;
    struct err e = {0};
    if (json_parse(text, n, NULL, arena, &v, &e))
        fail_msg("%s: %.200s", e.message, text);
    return v;
}

static const struct json *read_json(struct arena *arena, const char *path)
{
    char *text;
    size_t n;
    struct err e = {0};
    if (file_read(path, 16 << 20, arena, &text, &n, &e))
        fail_msg("%s", e.message);
    return parse(arena, text, n);
}

/* The configuration, with a vocabulary as large as the tokenizer's, the id that it has for pictures, and
 * patches as large as those of the processor of Qwen. */
static void write_config(struct json_writer *w, const struct json *v, int32_t token)
{
    if (v->type != JSON_OBJECT) {
        json_write_tree(w, v);
        return;
    }
    json_begin_object(w);
    for (uint32_t i = 0; i < v->n; i++) {
        const char *key = v->as.members[i].key;
        json_key(w, key);
        if (strcmp(key, "vocab_size") == 0)
            json_write_i64(w, 400);
        else if (strcmp(key, "window_size") == 0)
            json_write_i64(w, 56);
        else if (token >= 0 &&
                 (strcmp(key, "image_token_id") == 0 || strcmp(key, "media_placeholder_token_id") == 0))
            json_write_i64(w, token);
        else if (strcmp(key, "spatial_patch_size") == 0 ||
                 (strcmp(key, "patch_size") == 0 && json_get(v, "spatial_patch_size")))
            json_write_i64(w, 14);
        else
            write_config(w, &v->as.members[i].value, token);
    }
    json_end_object(w);
}

static void put(struct model *m, const char *name, const char *text, size_t n)
{
    char path[512];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/%s", m->dir, name);
    assert_int_equal(file_write_atomic(path, text, n, &e), 0);
}

/* without: a text whose first character becomes another one; or NULL. */
static void copy(struct model *m, const char *from, const char *name, const char *without)
{
    char *text, *at;
    size_t n;
    if (file_read(from, 16 << 20, &m->arena, &text, &n, NULL))
        return;
    while (without && (at = strstr(text, without)) != NULL)
        *at = '(';
    put(m, name, text, n);
}

/* template: of the file golden/placeholders.json; each MARKER becomes marker. NULL: none. */
static struct model *make_model(const char *family, const char *processor, const char *template,
                                const char *marker, int32_t token)
{
    struct model *m = calloc(1, sizeof *m);
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    char path[512];
    assert_non_null(m);
    m->d0.log.fd = -1;
    arena_init(&m->arena, NULL, MEM_MISC);
    findings_init(&m->findings, &m->d0.mem);
    snprintf(m->dir, sizeof m->dir, "/tmp/day0-pictures-XXXXXX");
    assert_non_null(mkdtemp(m->dir));
    snprintf(path, sizeof path, TESTS "parity/tiny/%s.json", family);
    json_writer_init(&w, &text, false);
    write_config(&w, json_get(read_json(&m->arena, path), "config"), token);
    put(m, "config.json", text.data, text.len);
    copy(m, TESTS "golden/placeholders_tokenizer.json", "tokenizer.json",
         strncmp(family, "llava", 5) == 0 ? "[IMG_BREAK]" : NULL); /* it is Pixtral's mark */
    for (size_t i = 2; i < 4; i++) {
        snprintf(path, sizeof path, TESTS "images/processors/%s/%s", processor, files[i]);
        copy(m, path, files[i], NULL);
    }
    strbuf_clear(&text);
    for (const char *s = template, *at; s && *s; s = at ? at + 6 : s + strlen(s)) {
        at = strstr(s, "MARKER");
        strbuf_add(&text, s, at ? (size_t)(at - s) : strlen(s));
        if (at)
            strbuf_puts(&text, marker);
    }
    if (template)
        put(m, "chat_template.jinja", text.data, text.len);
    strbuf_release(&text);
    return m;
}

static void describe(struct model *m)
{
    struct err e = {0};
    char why[1024];
    const struct spec_options o = {.images = false};
    if (ckpt_open(&m->ckpt, m->dir, &m->findings, &m->d0, &e) ||
        spec_open(&m->spec, m->ckpt, &o, &m->findings, &m->d0, &e))
        fail_msg("%s", err_format(&e, why, sizeof why));
    if (m->spec == NULL)
        fail_msg("%s", m->findings.n ? m->findings.items[m->findings.n - 1].evidence : "no description");
    findings_release(&m->findings);
    findings_init(&m->findings, &m->d0.mem);
}

static void open_front(struct model *m)
{
    struct err e = {0};
    if (prompt_open(&m->front, m->ckpt, m->spec, &m->findings, &m->d0, &e))
        fail_msg("%s", e.message);
}

static struct model *open_model(const char *family, const char *processor, const char *template,
                                const char *marker, int32_t token)
{
    struct model *m = make_model(family, processor, template, marker, token);
    describe(m);
    open_front(m);
    if (m->front == NULL)
        fail_msg("%s: %s", family, m->findings.items[0].evidence);
    return m;
}

static void close_model(struct model *m)
{
    char path[128];
    prompt_close(m->front);
    spec_close(m->spec);
    ckpt_close(m->ckpt);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/%s", m->dir, files[i]);
        unlink(path);
    }
    rmdir(m->dir);
    findings_release(&m->findings);
    arena_release(&m->arena);
    assert_int_equal(m->d0.mem.live[MEM_TEXT], 0);
    free(m);
}

/* "WIDTHxHEIGHT": the header of a GIF of that size; else a file of tests/images. */
static int fetch(void *ctx, const char *where, struct arena *arena, const void **bytes, size_t *n,
                 struct err *e)
{
    unsigned w, h;
    (void)ctx;
    if (sscanf(where, "%ux%u", &w, &h) == 2) {
        uint8_t *gif = arena_alloc(arena, 32);
        const uint8_t head[] = {
            'G', 'I', 'F', '8', '9', 'a', (uint8_t)w, (uint8_t)(w >> 8), (uint8_t)h, (uint8_t)(h >> 8),
            0,   0,   0};
        memcpy(gif, head, sizeof head);
        *bytes = gif;
        *n = sizeof head;
        return ERR_OK;
    }
    char path[512], *data;
    snprintf(path, sizeof path, TESTS "images/%s", where);
    int rc = file_read(path, 16 << 20, arena, &data, n, e);
    *bytes = data;
    return rc;
}

static int read_pictures(struct model *m, const struct json *messages, struct prompt_pictures *out,
                         struct err *e)
{
    const struct prompt_picture_options o = {.fetch = fetch};
    return prompt_pictures_read(m->front, messages, &o, &m->arena, out, e);
}

/* ---- against transformers ---- */

static bool same_runs(const struct json *runs, const int32_t *ids, size_t n)
{
    size_t at = 0;
    for (uint32_t i = 0; i < runs->n; i++) {
        int64_t id = -1, count = 0;
        json_i64(json_at(json_at(runs, i), 0), &id);
        json_i64(json_at(json_at(runs, i), 1), &count);
        for (; count > 0; count--, at++)
            if (at >= n || ids[at] != id)
                return false;
    }
    return at == n;
}

static size_t length_of(const struct json *runs)
{
    size_t n = 0;
    for (uint32_t i = 0; i < runs->n; i++) {
        int64_t count = 0;
        json_i64(json_at(json_at(runs, i), 1), &count);
        n += (size_t)count;
    }
    return n;
}

/* Each block stands somewhere, one behind the other. */
static bool has_blocks(const struct json *blocks, const struct ids *ids)
{
    size_t at = 0;
    for (uint32_t i = 0; i < blocks->n; i++) {
        const size_t n = length_of(json_at(blocks, i));
        while (at + n <= ids->n && !same_runs(json_at(blocks, i), ids->data + at, n))
            at++;
        if (at + n > ids->n)
            return false;
        at += n;
    }
    return true;
}

/* What is counted from headers is what the tower will be given, rows of its own included. */
static void check_patches(struct model *m, const struct prompt_pictures *pictures)
{
    for (uint32_t i = 0; m->spec->vision && i < pictures->n; i++) {
        const struct prompt_picture *q = &pictures->list[i];
        struct image_tower tower = prompt_tower(&m->spec->tower);
        struct image_rows rows;
        struct err e = {0};
        tower.taps = IMAGE_TAPS_NONE; /* the tiny towers' tables are those of other sizes */
        if (image_tower_rows(&tower, q->grids, q->n_grids, &m->arena, &rows, &e))
            fail_msg("%s: %s", m->spec->arch_name, e.message);
        assert_int_equal(q->n_patches, rows.n_rows);
        m->n_class_rows += rows.n_rows - rows.n_patches;
    }
}

static void check_layout(struct model *m, const struct prompt_pictures *pictures, const struct ids *ids)
{
    struct prompt_layout l;
    struct err e = {0};
    uint64_t rows = 0;
    if (prompt_lay_pictures(m->front, pictures, ids->data, ids->n, &m->arena, &l, &e))
        fail_msg("%s", e.message);
    for (uint32_t i = 0; i < pictures->n; i++) {
        assert_int_equal(l.feature_of[pictures->list[i].first], rows);
        rows += pictures->list[i].n_rows;
    }
    check_patches(m, pictures);
    int32_t last = -1;
    for (size_t i = 0; i < l.n; i++) {
        if (l.feature_of[i] >= 0)
            assert_int_equal(l.feature_of[i], ++last);
        if (l.spans)
            assert_in_range(i, l.spans[2 * i], l.spans[2 * i + 1] - 1);
    }
    assert_int_equal(last + 1, rows);
    if (strncmp(m->spec->arch_name, "qwen", 4) != 0) {
        assert_int_equal(l.place_delta, 0);
        assert_int_equal(l.places[3 * (l.n - 1) + 2], l.n - 1);
        return;
    }
    struct spec_tower tower = m->spec->tower;
    struct image_grid grids[8];
    int32_t *places = arena_alloc_n(&m->arena, l.n, 12), *rows_of = arena_alloc_n(&m->arena, l.n, 4);
    tower.image_token = ids->data[pictures->list[0].first];
    for (uint32_t i = 0; i < pictures->n; i++)
        grids[i] = pictures->list[i].grids[0];
    assert_int_equal(prompt_places(&tower, ids->data, l.n, grids, pictures->n, places, rows_of, &e), 0);
    assert_memory_equal(places, l.places, l.n * 12);
    assert_memory_equal(rows_of, l.feature_of, l.n * 4);
    assert_int_equal(l.place_delta, places[3 * (l.n - 1)] + 1 - (int32_t)l.n);
}

static void run_case(const struct json *c, const struct json *template, size_t *n_class_rows)
{
    const char *family = json_string(json_get(c, "family")),
               *directory = json_string(json_get(c, "directory")),
               *marker = json_string(json_get(c, "marker"));
    struct model *m = open_model(family, directory, marker ? json_string(template) : NULL, marker, -1);
    struct prompt_pictures pictures;
    struct strbuf text = STRBUF_INIT;
    struct ids ids = {0};
    struct err e = {0};
    char why[1024];
    struct prompt_chat chat = {.messages = json_get(c, "messages"), .pictures = &pictures, .now = -1};
    if (read_pictures(m, chat.messages, &pictures, &e) || prompt_chat(m->front, &chat, &text, &ids, &e))
        fail_msg("%s %s: %s", family, directory, err_format(&e, why, sizeof why));
    bool right =
        marker ? same_runs(json_get(c, "ids"), ids.data, ids.n) : has_blocks(json_get(c, "blocks"), &ids);
    if (!right)
        fail_msg("%s %s: %zu ids, not those of the reference (%zu): %.300s", family, directory, ids.n,
                 marker ? length_of(json_get(c, "ids")) : 0, strbuf_cstr(&text));
    check_layout(m, &pictures, &ids);
    *n_class_rows += m->n_class_rows;
    strbuf_release(&text);
    ids_release(&ids);
    close_model(m);
}

static void test_reference(void **state)
{
    (void)state;
    struct arena arena;
    arena_init(&arena, NULL, MEM_MISC);
    const struct json *root = read_json(&arena, TESTS "golden/placeholders.json");
    const struct json *cases = json_get(root, "cases");
    size_t n_class_rows = 0;
    assert_int_equal(cases->n, 60);
    for (uint32_t i = 0; i < cases->n; i++)
        run_case(json_at(cases, i), json_get(root, "template"), &n_class_rows);
    assert_true(n_class_rows > 0);
    arena_release(&arena);
}

/* ---- one model ---- */

#define SIMPLE                                                                                               \
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}MARKER{% elif p.type == "      \
    "'text' %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
#define QWEN   "<|image_pad|>"
#define MERGED 4 /* patches of a row of Qwen's */

static struct model *qwen(const char *marker)
{
    return open_model("qwen2_vl", "qwen_2", SIMPLE, marker, -1);
}

/* What reading, rendering or laying says: ERR_OK, or the code with a message that holds `what`. */
static void says(struct model *m, const char *messages, int code, const char *what)
{
    struct prompt_pictures pictures;
    struct prompt_layout layout;
    struct ids ids = {0};
    struct err e = {0};
    char why[1500];
    struct prompt_chat chat = {
        .messages = parse(&m->arena, messages, strlen(messages)), .pictures = &pictures, .now = -1};
    int rc = read_pictures(m, chat.messages, &pictures, &e);
    if (rc == 0)
        rc = prompt_chat(m->front, &chat, NULL, &ids, &e);
    if (rc == 0)
        rc = prompt_lay_pictures(m->front, &pictures, ids.data, ids.n, &m->arena, &layout, &e);
    ids_release(&ids);
    err_format(&e, why, sizeof why);
    if (rc != code || (rc && !strstr(why, what)))
        fail_msg("%s: %d %s", messages, rc, rc ? why : "");
}

#define PART(x) "[{\"role\":\"user\",\"content\":[" x "]}]"
#define IMAGE   "{\"type\":\"image\",\"image\":\"56x56\"}"

static void test_refused(void **state)
{
    (void)state;
    struct model *m = qwen(QWEN);
    says(m, PART(IMAGE), ERR_OK, "");
    says(m, PART("{\"type\":\"image\"}"), ERR_INVALID, "messages[0].content[0]");
    says(m, PART("{\"type\":\"image_url\",\"image_url\":{\"url\":7}}"), ERR_INVALID, "image_url");
    says(m, PART("{\"type\":\"image_url\",\"image_url\":{\"url\":\"\"}}"), ERR_INVALID, "image_url");
    says(m, PART(IMAGE ",{\"type\":\"image\",\"image\":\"none.png\"}"), ERR_MISSING, "content[1]");
    says(m, PART("{\"type\":\"image\",\"image\":\"0x5\"}"), ERR_FORMAT, "content[0]");
    says(m, PART("{\"type\":\"image\",\"image\":\"9000x9\"}"), ERR_INVALID, "200 times");
    says(m, PART("{\"type\":\"image\",\"image\":\"60000x60000\"}"), ERR_LIMIT, "pixels");
    says(m, PART(IMAGE ",{\"type\":\"video\",\"video\":\"a.mp4\"}"), ERR_UNSUPPORTED, "\"video\"");
    const char *bad[] = {"data:image/gif;base64,",
                         "data:image/gif,abcd",
                         "data:;base64,ab!d",
                         "data:;base64,abc",
                         "data:;base64,a=cd",
                         "data:;base64,ab d",
                         "data"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char text[256];
        snprintf(text, sizeof text, PART("{\"type\":\"image_url\",\"image_url\":{\"url\":\"%s\"}}"), bad[i]);
        says(m, text, i == 1 ? ERR_INVALID : i == 6 ? ERR_MISSING : ERR_FORMAT, "content[0]");
    }
    says(m, PART("{\"type\":\"image\",\"base64\":\"R0lGODlhOAA4AAAAAAAA----\"}"), ERR_FORMAT, "no base64");
    close_model(m);
}

/* R0lGODlhOAA4AAAAAA== is the header of a GIF of 56 x 56 pixels. */
static void test_data_url(void **state)
{
    (void)state;
    static const char *const forms[] = {
        "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/gif;base64,R0lGODlhOAA4AAAAAA==\"}}",
        "{\"type\":\"image_url\",\"image_url\":\"data:image/gif;charset=x;base64,R0lGODlhOAA4AAAAAA==\"}",
        "{\"type\":\"image\",\"base64\":\"R0lGODlhOAA4AAAAAA==\"}",
        "{\"type\":\"image\",\"url\":\"data:;base64,R0lGODlhOAA4AAAAAA==\"}"};
    struct model *m = qwen(QWEN);
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct prompt_pictures out;
        struct err e = {0};
        char text[512], why[1024];
        snprintf(text, sizeof text, PART("%s"), forms[i]);
        const struct prompt_picture_options o = {0};
        if (prompt_pictures_read(m->front, parse(&m->arena, text, strlen(text)), &o, &m->arena, &out, &e))
            fail_msg("%s: %s", forms[i], err_format(&e, why, sizeof why));
        assert_int_equal(out.n, 1);
        assert_int_equal(out.list[0].n, 13);
        assert_int_equal(out.list[0].info.width, 56);
        assert_int_equal(out.list[0].n_rows, 16 / MERGED);
        const struct json *part = json_at(json_get(json_at(out.messages, 0), "content"), 0);
        assert_int_equal(part->n, 1); /* the template sees no bytes */
        assert_string_equal(json_string(json_get(part, "type")), "image");
        const struct prompt_picture_options tight = {.max_bytes = 12}, enough = {.max_bytes = 13};
        assert_int_equal(prompt_pictures_read(m->front, parse(&m->arena, text, strlen(text)), &enough,
                                              &m->arena, &out, &e),
                         0);
        assert_int_equal(
            prompt_pictures_read(m->front, parse(&m->arena, text, strlen(text)), &tight, &m->arena, &out, &e),
            ERR_LIMIT);
    }
    const struct prompt_picture_options one = {.fetch = fetch, .max_pictures = 1}, none = {0},
                                        assumed = {.width = 56, .height = 112},
                                        few = {.fetch = fetch, .max_bytes = 12};
    static const char two[] = PART(IMAGE "," IMAGE);
    const struct json *messages = parse(&m->arena, two, sizeof two - 1);
    struct prompt_pictures out;
    struct err e = {0};
    assert_int_equal(prompt_pictures_read(m->front, messages, &one, &m->arena, &out, &e), ERR_LIMIT);
    assert_int_equal(prompt_pictures_read(m->front, messages, &few, &m->arena, &out, &e), ERR_LIMIT);
    assert_int_equal(prompt_pictures_read(m->front, messages, &none, &m->arena, &out, &e), ERR_UNSUPPORTED);
    assert_int_equal(prompt_pictures_read(m->front, messages, &assumed, &m->arena, &out, &e), 0);
    assert_int_equal(out.list[1].n_rows, 32 / MERGED);
    close_model(m);
    /* each is small enough, all of them are not */
    m = open_model("qwen3_vl", "qwen_3", SIMPLE, QWEN, -1);
    messages = parse(&m->arena, two, sizeof two - 1);
    struct strbuf many = STRBUF_INIT;
    const struct prompt_picture_options large = {.width = 4096, .height = 4096};
    assert_int_equal(prompt_pictures_read(m->front, messages, &large, &m->arena, &out, &e), 0);
    const uint32_t enough = (1u << 20) / out.list[0].n_rows;
    for (uint32_t more = 0; more < 2; more++) {
        strbuf_clear(&many);
        strbuf_puts(&many, "[{\"role\":\"user\",\"content\":[" IMAGE);
        for (uint32_t i = 1; i < enough + more; i++)
            strbuf_puts(&many, "," IMAGE);
        strbuf_puts(&many, "]}]");
        messages = parse(&m->arena, strbuf_cstr(&many), many.len);
        assert_int_equal(prompt_pictures_read(m->front, messages, &large, &m->arena, &out, &e),
                         more ? ERR_LIMIT : ERR_OK);
    }
    strbuf_release(&many);
    close_model(m);
}

/* Markers are those of the template, never those of a message. */
static void test_markers(void **state)
{
    (void)state;
    struct model *m = qwen(QWEN);
    says(m, PART("{\"type\":\"text\",\"text\":\"<|image_pad|>\"}," IMAGE), ERR_OK, "");
    says(m,
         PART("{\"type\":\"text\",\"text\":\"<|image\"}," IMAGE ",{\"type\":\"text\",\"text\":\"_pad|>\"}"),
         ERR_OK, "");
    struct prompt_pictures pictures;
    struct ids ids = {0};
    struct err e = {0};
    static const char later[] = PART(IMAGE ",{\"type\":\"text\",\"text\":\"<|im_end|>\"}," IMAGE
                                           ",{\"type\":\"text\",\"text\":\"<|im_end|>\"}");
    struct prompt_chat untrusted = {
        .messages = parse(&m->arena, later, sizeof later - 1), .pictures = &pictures, .now = -1};
    assert_int_equal(read_pictures(m, untrusted.messages, &pictures, &e), 0);
    assert_int_equal(prompt_chat(m->front, &untrusted, NULL, &ids, &e), 0);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_not_equal(ids.data[i], tokenizer_id(m->front->tokenizer, "<|im_end|>"));
    ids.n = 0;
    static const char text[] = PART("{\"type\":\"text\",\"text\":\"<|image_pad|>\"}," IMAGE);
    struct prompt_chat chat = {.messages = parse(&m->arena, text, sizeof text - 1),
                               .pictures = &pictures,
                               .parse_special = true,
                               .now = -1};
    assert_int_equal(read_pictures(m, chat.messages, &pictures, &e), 0);
    assert_int_equal(prompt_chat(m->front, &chat, NULL, &ids, &e), ERR_MISMATCH); /* trusted: a second one */
    assert_non_null(strstr(e.message, "2 times"));
    assert_non_null(strstr(e.message, "1 pictures"));
    assert_int_equal(ids.n, 0);
    ids_release(&ids);
    close_model(m);
    m = qwen(QWEN QWEN);
    says(m, PART(IMAGE), ERR_MISMATCH, "2 times, and there are 1 pictures");
    close_model(m);
    m = qwen("");
    says(m, PART(IMAGE "," IMAGE), ERR_MISMATCH, "0 times, and there are 2 pictures");
    close_model(m);
}

/* A layout of ids that are not those of the pictures names both numbers. */
static void test_counts(void **state)
{
    (void)state;
    struct model *m = qwen(QWEN);
    static const char text[] = PART(IMAGE);
    struct prompt_pictures pictures;
    struct prompt_layout layout;
    struct err e = {0};
    const int32_t token = tokenizer_id(m->front->tokenizer, QWEN);
    const int32_t few[] = {1, token, token, token, 2}, split[] = {token, token, 5, token, token};
    assert_int_equal(read_pictures(m, parse(&m->arena, text, sizeof text - 1), &pictures, &e), 0);
    assert_int_equal(prompt_lay_pictures(m->front, &pictures, few, 5, &m->arena, &layout, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.message, "3 tokens"));
    assert_non_null(strstr(e.message, "4 rows"));
    assert_int_equal(prompt_lay_pictures(m->front, &pictures, split, 5, &m->arena, &layout, &e),
                     ERR_MISMATCH);
    const int32_t right[] = {7, token, token, token, token, 8};
    static const int32_t want[] = {0, 0, 0, 1, 1, 1, 1, 1, 2, 1, 2, 1, 1, 2, 2, 3, 3, 3};
    assert_int_equal(prompt_lay_pictures(m->front, &pictures, right, 6, &m->arena, &layout, &e), 0);
    assert_memory_equal(layout.places, want, sizeof want);
    assert_int_equal(layout.place_delta, -2);
    assert_int_equal(pictures.list[0].first, 1);
    assert_null(layout.spans);
    close_model(m);
}

/* Gemma-3: the tokens of one picture see each other, those between pictures do not. */
static void test_spans(void **state)
{
    (void)state;
    struct model *m = open_model("gemma3", "gemma_3", SIMPLE, "<start_of_image>", -1);
    static const char text[] = PART(IMAGE "," IMAGE);
    struct prompt_pictures pictures;
    struct prompt_layout l;
    struct ids ids = {0};
    struct err e = {0};
    struct prompt_chat chat = {
        .messages = parse(&m->arena, text, sizeof text - 1), .pictures = &pictures, .now = -1};
    assert_int_equal(read_pictures(m, chat.messages, &pictures, &e), 0);
    assert_int_equal(prompt_chat(m->front, &chat, NULL, &ids, &e), 0);
    assert_int_equal(prompt_lay_pictures(m->front, &pictures, ids.data, ids.n, &m->arena, &l, &e), 0);
    assert_non_null(l.spans);
    for (uint32_t k = 0; k < 2; k++) {
        const size_t first = pictures.list[k].first, end = first + pictures.list[k].n_rows;
        assert_int_equal(end - first, 256);
        for (size_t i = first; i < end; i++) {
            assert_int_equal(l.spans[2 * i], first);
            assert_int_equal(l.spans[2 * i + 1], end);
        }
        assert_int_equal(l.spans[2 * end], end);
        assert_int_equal(l.spans[2 * end + 1], end + 1);
    }
    ids_release(&ids);
    close_model(m);
}

/* ---- pixels ---- */

struct work {
    const struct prompt_front *front;
    const struct prompt_picture *picture;
    struct arena arena;
    struct prompt_pixels pixels;
    int rc;
};

static void *make(void *arg)
{
    struct work *w = arg;
    struct err e = {0};
    arena_init(&w->arena, NULL, MEM_MISC);
    w->rc = prompt_picture_make(w->front, w->picture, NULL, &w->arena, &w->pixels, &e);
    return NULL;
}

static void test_pixels(void **state)
{
    (void)state;
    struct model *m = qwen(QWEN);
    static const char text[] =
        PART("{\"type\":\"image\",\"image\":\"rgb.png\"},{\"type\":\"image\",\"path\":\"palette_4.png\"},"
             "{\"type\":\"image\",\"image\":\"rgb.png\"}");
    struct prompt_pictures pictures;
    struct err e = {0};
    struct work work[6];
    pthread_t threads[6];
    assert_int_equal(read_pictures(m, parse(&m->arena, text, sizeof text - 1), &pictures, &e), 0);
    for (size_t i = 0; i < 6; i++) {
        work[i] = (struct work){.front = m->front, .picture = &pictures.list[i % 3]};
        assert_int_equal(pthread_create(&threads[i], NULL, make, &work[i]), 0);
    }
    for (size_t i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    static const uint8_t zero[32];
    assert_memory_not_equal(work[0].pixels.key, zero, 32);
    assert_memory_equal(work[0].pixels.key, work[2].pixels.key, 32);
    assert_memory_not_equal(work[0].pixels.key, work[1].pixels.key, 32);
    for (size_t i = 0; i < 6; i++) {
        const struct prompt_pixels *a = &work[i].pixels, *b = &work[i % 3].pixels;
        assert_int_equal(work[i].rc, 0);
        assert_int_equal(a->n_rows, work[i].picture->n_rows);
        assert_int_equal(a->n_patches, a->n_rows * MERGED);
        assert_int_equal(a->n_patches, work[i].picture->n_patches);
        assert_int_equal(a->n_inputs, b->n_inputs);
        assert_memory_equal(a->key, b->key, 32);
        bool pixels = false;
        for (uint32_t k = 0; k < a->n_inputs; k++) {
            const struct prompt_input *in = &a->inputs[k];
            pixels = pixels || in->role == D0_INPUT_PATCHES;
            assert_int_equal(in->rows, in->role == D0_INPUT_MERGE ? a->n_rows : a->n_patches);
            assert_memory_equal(in->data, b->inputs[k].data, in->rows * in->width * 4);
        }
        assert_true(pixels);
        assert_int_equal(a->n_inputs > 2, 1);
    }
    for (size_t i = 0; i < 6; i++)
        arena_release(&work[i].arena);
    close_model(m);
}

static const void *input_of(const struct prompt_pixels *p, uint32_t role, uint32_t width)
{
    for (uint32_t i = 0; i < p->n_inputs; i++)
        if (p->inputs[i].role == role && p->inputs[i].width == width)
            return p->inputs[i].data;
    fail_msg("no input of role %u and width %u", role, width);
    return NULL;
}

/* Qwen2.5-VL: patches window by window, and the numbers beside them. */
static void test_order(void **state)
{
    (void)state;
    struct model *m = open_model("qwen2_5_vl", "qwen_2", SIMPLE, QWEN, -1);
    static const char text[] = PART("{\"type\":\"image\",\"image\":\"rgb.png\"}");
    struct prompt_pictures pictures;
    struct prompt_pixels pixels;
    struct image_processor processor;
    struct image picture;
    struct image_rows rows;
    struct err e = {0};
    float *want;
    const struct spec_tower *w = &m->spec->tower;
    const struct image_tower tower = {.merge = w->merge, .window = w->window};
    const struct image_configs c = {
        .preprocessor = read_json(&m->arena, TESTS "images/processors/qwen_2/preprocessor_config.json")};
    assert_int_equal(read_pictures(m, parse(&m->arena, text, sizeof text - 1), &pictures, &e), 0);
    const struct prompt_picture *p = pictures.list;
    if (prompt_picture_make(m->front, p, NULL, &m->arena, &pixels, &e))
        fail_msg("%s", e.message);
    assert_int_equal(image_processor_open(&c, NULL, &processor, &e), 0);
    assert_int_equal(image_decode(p->bytes, p->n, NULL, processor.alpha, &m->arena, &picture, &e), 0);
    assert_int_equal(image_process(&processor, &p->plan, &picture, &m->arena, &want, &e), 0);
    assert_int_equal(image_tower_rows(&tower, p->grids, 1, &m->arena, &rows, &e), 0);
    const size_t width = (size_t)p->plan.row_floats;
    const float *got = input_of(&pixels, D0_INPUT_PATCHES, (uint32_t)width);
    bool moved = false;
    for (size_t r = 0; r < rows.n_rows; r++) {
        moved = moved || rows.patch[r] != (int32_t)r;
        assert_memory_equal(got + r * width, want + (size_t)rows.patch[r] * width, width * sizeof *got);
    }
    assert_true(moved);
    assert_memory_equal(input_of(&pixels, D0_INPUT_PLACES, 3), rows.places, rows.n_rows * 12);
    assert_memory_equal(input_of(&pixels, D0_INPUT_WINDOWS, 2), rows.windows, rows.n_rows * 8);
    assert_memory_equal(input_of(&pixels, D0_INPUT_SPANS, 2), rows.spans, rows.n_rows * 8);
    assert_memory_equal(input_of(&pixels, D0_INPUT_MERGE, 4), rows.merge, rows.n_merged * 16);
    close_model(m);
}

/* One tile [3, 16, 16] as patches of 4 x 4, behind a class row of zeros. */
static void check_cut(struct model *m, const struct prompt_picture *p, const char *pre, const float *patches)
{
    const struct image_configs c = {.preprocessor = parse(&m->arena, pre, strlen(pre))};
    struct image_processor processor;
    struct image picture;
    struct err e = {0};
    float *tile;
    assert_int_equal(image_processor_open(&c, NULL, &processor, &e), 0);
    assert_int_equal(image_decode(p->bytes, p->n, NULL, processor.alpha, &m->arena, &picture, &e), 0);
    assert_int_equal(image_process(&processor, &p->plan, &picture, &m->arena, &tile, &e), 0);
    for (size_t i = 0; i < (size_t)17 * 48; i++) {
        const size_t at = i / 48 - 1, channel = i % 48 / 16, y = i % 16 / 4 + at / 4 * 4,
                     x = i % 4 + at % 4 * 4;
        assert_true(patches[i] == (i < 48 ? 0 : tile[channel * 256 + y * 16 + x]));
    }
}

/* Towers of tiles: processors as small as the tiny towers, wide pictures that are cut. */
static void test_tiles(void **state)
{
    (void)state;
    static const struct {
        const char *family, *marker, *pre, *proc;
        uint32_t role; /* that the tower has, besides pixels */
    } all[] = {
        {"idefics3", "<image>",
         "{\"image_processor_type\":\"Idefics3ImageProcessor\",\"size\":{\"longest_edge\":32},"
         "\"max_image_size\":{\"longest_edge\":16}}",
         "{\"image_seq_len\":4}", D0_INPUT_TABLE_ROWS},
        {"llava", "<image>",
         "{\"image_processor_type\":\"CLIPImageProcessor\",\"size\":{\"shortest_edge\":16},"
         "\"crop_size\":{\"height\":16,\"width\":16}}",
         "{\"patch_size\":4,\"num_additional_image_tokens\":1,\"vision_feature_select_strategy\":"
         "\"default\"}",
         D0_INPUT_CLASS_ROWS},
        {"llava_next", "<image>",
         "{\"image_processor_type\":\"LlavaNextImageProcessor\",\"size\":{\"shortest_edge\":16},"
         "\"crop_size\":{\"height\":16,\"width\":16},\"image_grid_pinpoints\":[[16,32],[32,16],[32,32]]}",
         "{\"patch_size\":4,\"num_additional_image_tokens\":1,\"vision_feature_select_strategy\":"
         "\"default\"}",
         D0_INPUT_LINE_ROWS},
    };
    static const char text[] = PART("{\"type\":\"image\",\"image\":\"rgb.png\"}");
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        struct model *m = make_model(all[i].family, "nowhere", SIMPLE, all[i].marker, -1);
        struct prompt_pictures pictures;
        struct prompt_pixels pixels;
        struct err e = {0};
        char why[1500];
        put(m, "preprocessor_config.json", all[i].pre, strlen(all[i].pre));
        put(m, "processor_config.json", all[i].proc, strlen(all[i].proc));
        describe(m);
        open_front(m);
        assert_non_null(m->front);
        assert_non_null(m->spec->vision);
        if (read_pictures(m, parse(&m->arena, text, sizeof text - 1), &pictures, &e) ||
            prompt_picture_make(m->front, &pictures.list[0], NULL, &m->arena, &pixels, &e))
            fail_msg("%s: %s", all[i].family, err_format(&e, why, sizeof why));
        bool found = false;
        for (uint32_t k = 0; k < pixels.n_inputs; k++)
            found = found || pixels.inputs[k].role == all[i].role;
        assert_true(found);
        assert_int_equal(pixels.n_rows, pictures.list[0].plan.placeholders);
        assert_int_equal(pixels.n_patches, pictures.list[0].n_patches); /* as was said before it was made */
        if (all[i].role == D0_INPUT_CLASS_ROWS) {
            const int32_t *rows = input_of(&pixels, D0_INPUT_CLASS_ROWS, 1);
            const float *patches = input_of(&pixels, D0_INPUT_PATCHES, 48);
            assert_int_equal(pixels.n_patches, 17);
            assert_int_equal(rows[0], 0);
            assert_int_equal(rows[1], -1);
            check_cut(m, pictures.list, all[i].pre, patches);
        }
        close_model(m);
    }
}

/* The same pixels under other options have another key. */
static void test_keys(void **state)
{
    (void)state;
    static const char *const sets[][2] = {{"llava", "llava_15"},  {"llava_next", "llavanext_16"},
                                          {"gemma3", "gemma_3"},  {"gemma3", "gemma_pan"},
                                          {"qwen2_vl", "qwen_2"}, {"qwen3_vl", "qwen_3"},
                                          {"kimi_k25", "kimi_hf"}};
    static const char text[] = PART("{\"type\":\"image\",\"image\":\"rgb.png\"}");
    uint8_t keys[ARRAY_LEN(sets)][32];
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        struct model *m = open_model(sets[i][0], sets[i][1], NULL, NULL, -1);
        struct prompt_pictures pictures;
        struct prompt_pixels pixels;
        struct err e = {0};
        graph_free(m->spec->vision); /* of other patches than these processors make */
        m->spec->vision = NULL;
        assert_int_equal(read_pictures(m, parse(&m->arena, text, sizeof text - 1), &pictures, &e), 0);
        if (prompt_picture_make(m->front, &pictures.list[0], NULL, &m->arena, &pixels, &e))
            fail_msg("%s %s", sets[i][1], e.message);
        memcpy(keys[i], pixels.key, 32);
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(keys[i], keys[k], 32);
        close_model(m);
    }
}

/* ---- findings ---- */

static void finds(struct model *m, enum finding_id id, const char *what)
{
    struct findings f;
    struct err e = {0};
    findings_init(&f, NULL);
    assert_int_equal(prompt_check_pictures(m->front, &f, &e), 0);
    if (id == 0 && f.n)
        fail_msg("%s: %s", finding_code(f.items[0].id), f.items[0].evidence);
    bool found = id == 0;
    for (size_t i = 0; i < f.n; i++)
        found = found || (f.items[i].id == id && strstr(f.items[i].evidence, what));
    if (!found)
        fail_msg("no %s with %s", finding_code(id), what);
    findings_release(&f);
    close_model(m);
}

static void test_findings(void **state)
{
    (void)state;
    struct model *m = qwen(QWEN);
    const int32_t token = tokenizer_id(m->front->tokenizer, QWEN);
    close_model(m);
    finds(open_model("qwen2_vl", "qwen_2", SIMPLE, QWEN, token), (enum finding_id)0, "");
    finds(open_model("qwen2_vl", "nowhere", SIMPLE, QWEN, token), FINDING_I001, "preprocessor_config.json");
    m = make_model("qwen2_vl", "qwen_2", SIMPLE, QWEN, token);
    put(m, "processor_config.json", "{\"image_processor\": {", 21); /* a damaged file is not an absent one */
    describe(m);
    open_front(m);
    finds(m, FINDING_I001, "processor_config.json: ");
    finds(open_model("qwen2_vl", "qwen_2", SIMPLE, QWEN, token + 1), FINDING_I002, "the tokenizer has it as");
    finds(open_model("qwen2_vl", "qwen_2", SIMPLE, "", token), FINDING_I003, "0 times");
    finds(open_model("qwen2_vl", "qwen_2", "{{ raise_exception('text only') }}", "", token), FINDING_I003,
          "text only");
    m = open_model("kimi_k3", "kimi_k25", NULL, NULL, -1);
    const int32_t pad = tokenizer_id(m->front->tokenizer, "<|media_pad|>");
    finds(m, FINDING_I002, "the tokenizer has it as");
    finds(open_model("kimi_k3", "kimi_k25", NULL, NULL, pad), (enum finding_id)0, "");
}

static void test_rules(void **state)
{
    (void)state;
    static const struct {
        const char *rules, *what;
    } bad[] = {
        {"7", "no table"},
        {"{}", "marker is missing"},
        {"{\"marker\":\"\"}", "marker is missing"},
        {"{\"marker\":\"a\",\"colour\":\"b\"}", "colour is no key"},
        {"{\"marker\":\"$tokens\"}", "must hold no $tokens"},
        {"{\"marker\":\"a\",\"picture\":\"b\"}", "must hold $tokens once"},
        {"{\"marker\":\"a\",\"picture\":\"$tokens$tokens\"}", "must hold $tokens once"},
        {"{\"marker\":\"a\",\"picture\":\"$tokens$x\"}", "no known field"},
        {"{\"marker\":\"a\",\"picture\":7}", "must be a text"},
        {"{\"marker\":\"a\",\"by_grid\":1}", "true or false"},
        {"{\"marker\":\"a\",\"tiles\":1}", "tiles is no table"},
        {"{\"marker\":\"a\",\"tiles\":{}}", "tiles.tile is missing"},
        {"{\"marker\":\"a\",\"tiles\":{\"tile\":\"x\"}}", "must hold $tokens once"},
        {"[{\"needs\":\"<no>\",\"marker\":7},{\"marker\":7}]", "must be a text"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct model *m = make_model("qwen2_vl", "qwen_2", SIMPLE, QWEN, -1);
        describe(m);
        m->spec->placeholders = parse(&m->arena, bad[i].rules, strlen(bad[i].rules));
        open_front(m);
        assert_null(m->front);
        assert_int_equal(m->findings.n, 1);
        assert_int_equal(m->findings.items[0].id, FINDING_C007);
        if (!strstr(m->findings.items[0].evidence, bad[i].what))
            fail_msg("%s: %s", bad[i].rules, m->findings.items[0].evidence);
        close_model(m);
    }
    static const char absent[] = "[{\"needs\":\"<no>\",\"marker\":\"a\"}]";
    struct model *m = make_model("qwen2_vl", "qwen_2", SIMPLE, QWEN, -1);
    describe(m);
    m->spec->placeholders = parse(&m->arena, absent, sizeof absent - 1);
    open_front(m);
    says(m, PART(IMAGE), ERR_UNSUPPORTED, "takes no pictures");
    close_model(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference), cmocka_unit_test(test_refused),  cmocka_unit_test(test_data_url),
        cmocka_unit_test(test_markers),   cmocka_unit_test(test_counts),   cmocka_unit_test(test_spans),
        cmocka_unit_test(test_pixels),    cmocka_unit_test(test_order),    cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_keys),      cmocka_unit_test(test_findings), cmocka_unit_test(test_rules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
