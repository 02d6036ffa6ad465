/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 prompt: what a conversation, its pictures, or a text become before the model sees them. Reads headers,
 * tokenizer and template; no weight.
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "ckpt/ckpt.h"
#include "cli/cli.h"
#include "prompt/prompt.h"
#include "spec/spec.h"

#define MAX_REQUEST (64u << 20)

enum { KEY_MESSAGES = 0x3000, KEY_TEXT, KEY_TOOLS, KEY_PARSE_SPECIAL, KEY_NOW, KEY_IMAGE_SIZE };

struct prompt_arguments {
    struct common c;
    const char *messages, *tools, *text;
    bool parse_special;
    int64_t now;
    uint32_t width, height; /* --image-size; 0: pictures are read */
};

static const struct argp_option options[] = {
    {"messages", KEY_MESSAGES, "FILE", 0,
     "JSON: a chat/completions body (messages, tools, add_generation_prompt, chat_template_kwargs), or the "
     "array "
     "of messages",
     1},
    {"text", KEY_TEXT, "FILE", 0, "a text instead of messages: no template, ids and pieces", 1},
    {"tools", KEY_TOOLS, "FILE", 0, "JSON array of tools, instead of those in FILE", 1},
    {"parse-special", KEY_PARSE_SPECIAL, NULL, 0,
     "special tokens within messages become ids, as in transformers", 1},
    {"image-size", KEY_IMAGE_SIZE, "WxH", 0, "every picture counts as one of W x H pixels; none is read", 1},
    {"now", KEY_NOW, "SECONDS", 0, "time that strftime_now shows, since 1970 (default: now)", 1},
    {0},
};

static void parse_size(struct argp_state *state, const char *arg, struct prompt_arguments *a)
{
    int end = 0;
    if (sscanf(arg, "%5ux%5u%n", &a->width, &a->height, &end) != 2 || arg[end] || !a->width || !a->height)
        argp_error(state, "--image-size %s: two whole numbers of pixels are wanted, such as 640x480", arg);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct prompt_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->c;
        break;
    case KEY_MESSAGES:
        a->messages = arg;
        break;
    case KEY_TEXT:
        a->text = arg;
        break;
    case KEY_TOOLS:
        a->tools = arg;
        break;
    case KEY_PARSE_SPECIAL:
        a->parse_special = true;
        break;
    case KEY_NOW:
        a->now = cli_int(state, "--now", arg, 1, INT32_MAX);
        break;
    case KEY_IMAGE_SIZE:
        parse_size(state, arg, a);
        break;
    case ARGP_KEY_END:
        if (!a->messages == !a->text)
            argp_error(state, "one of --messages FILE and --text FILE is required");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static int read_json(const char *path, struct arena *arena, const struct json **out, struct err *e)
{
    char *data;
    size_t n;
    int rc = file_read(path, MAX_REQUEST, arena, &data, &n, e);
    if (rc == 0)
        rc = json_parse(data, n, NULL, arena, out, e);
    if (rc)
        err_ctx(e, "reading %s", path);
    return rc;
}

/* Members that are no parameters of the template. */
static bool is_known(const char *key)
{
    static const char *const known[] = {"messages", "tools", "add_generation_prompt", "chat_template_kwargs",
                                        "model"};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(known[i], key) == 0)
            return true;
    return false;
}

/* chat_template_kwargs and every member that is not known, as one object. */
static int gather_variables(const struct json *root, struct arena *arena, const struct json **out,
                            struct err *e)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    const struct json *kwargs = json_get(root, "chat_template_kwargs");
    if (kwargs && kwargs->type != JSON_OBJECT && kwargs->type != JSON_NULL)
        return err_set(e, ERR_INVALID, "chat_template_kwargs is no object");
    json_writer_init(&w, &text, false);
    json_begin_object(&w);
    for (uint32_t i = 0; kwargs && kwargs->type == JSON_OBJECT && i < kwargs->n; i++) {
        json_key(&w, kwargs->as.members[i].key);
        json_write_tree(&w, &kwargs->as.members[i].value);
    }
    for (uint32_t i = 0; i < root->n; i++)
        if (!is_known(root->as.members[i].key) && !json_get(kwargs, root->as.members[i].key)) {
            json_key(&w, root->as.members[i].key);
            json_write_tree(&w, &root->as.members[i].value);
        }
    json_end_object(&w);
    int rc = strbuf_failed(&text) ? err_set(e, ERR_NOMEM, "out of memory for the request")
                                  : json_parse(text.data, text.len, NULL, arena, out, e);
    strbuf_release(&text);
    if (rc == 0 && (*out)->n == 0)
        *out = NULL;
    return rc;
}

static int read_request(const struct prompt_arguments *a, struct arena *arena, struct prompt_chat *chat,
                        struct err *e)
{
    const struct json *root = NULL, *tools = NULL;
    bool generate = true;
    int rc = read_json(a->messages, arena, &root, e);
    if (rc == 0 && a->tools)
        rc = read_json(a->tools, arena, &tools, e);
    if (rc)
        return rc;
    *chat = (struct prompt_chat){.parse_special = a->parse_special, .media = true, .now = a->now};
    chat->messages = root->type == JSON_ARRAY ? root : json_get(root, "messages");
    if (root->type == JSON_OBJECT)
        rc = gather_variables(root, arena, &chat->variables, e);
    tools = tools ? tools : json_get(root, "tools");
    if (tools && tools->type != JSON_ARRAY && tools->type != JSON_NULL)
        return err_set(e, ERR_INVALID, "tools is no array");
    chat->tools = tools && tools->type == JSON_ARRAY ? tools : NULL;
    json_bool(json_get(root, "add_generation_prompt"), &generate);
    chat->no_generation_prompt = !generate;
    return rc;
}

/* ---- pictures ---- */

struct shown {
    const struct prompt_arguments *a;
    const struct prompt_front *front;
    struct prompt_pictures pictures;
    struct prompt_pixels *pixels; /* [pictures.n]; NULL: none was read */
    struct prompt_layout layout;
    struct strbuf text;
    struct ids ids;
    struct arena arena;
};

/* A path is taken from the folder of the messages. */
static int fetch(void *ctx, const char *where, struct arena *arena, const void **bytes, size_t *n,
                 struct err *e)
{
    const struct prompt_arguments *a = ctx;
    const char *slash = strrchr(a->messages, '/');
    char *data;
    if (strstr(where, "://")) {
        err_set(e, ERR_UNSUPPORTED, "a picture of another machine is not fetched: %.100s", where);
        err_hint(e, "--image-size WxH stands in for it");
        return ERR_UNSUPPORTED;
    }
    const char *path = *where == '/' || !slash
                           ? where
                           : arena_printf(arena, "%.*s/%s", (int)(slash - a->messages), a->messages, where);
    if (path == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for a path");
    int rc = file_read(path, MAX_REQUEST, arena, &data, n, e);
    *bytes = data;
    return rc;
}

static int read_pictures(struct shown *s, struct prompt_chat *chat, struct err *e)
{
    const struct prompt_picture_options o = {
        .fetch = fetch, .ctx = (void *)s->a, .width = s->a->width, .height = s->a->height};
    int rc = prompt_pictures_read(s->front, chat->messages, &o, &s->arena, &s->pictures, e);
    if (rc == 0)
        chat->pictures = &s->pictures;
    return rc;
}

/* What a service would do with them before the first step. */
static int make_pictures(struct shown *s, struct err *e)
{
    const uint32_t n = s->pictures.n;
    int rc = prompt_lay_pictures(s->front, &s->pictures, s->ids.data, s->ids.n, &s->arena, &s->layout, e);
    if (rc || s->a->width)
        return rc;
    s->pixels = arena_alloc_n(&s->arena, n, sizeof *s->pixels);
    if (s->pixels == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for pictures");
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        struct arena once;
        arena_init(&once, s->arena.mem, MEM_MISC);
        rc = prompt_picture_make(s->front, &s->pictures.list[i], NULL, &once, &s->pixels[i], e);
        arena_release(&once); /* numbers are shown, not tensors */
        if (rc)
            err_ctx(e, "picture %u", i);
    }
    return rc;
}

static bool is_media(const struct prompt_front *p, int32_t id)
{
    for (uint32_t i = 0; i < p->n_media; i++)
        if (p->media_ids[i] == id)
            return true;
    return false;
}

/* Ids alike from `at` on. */
static size_t run_of(const struct ids *ids, size_t at)
{
    size_t n = 1;
    while (at + n < ids->n && ids->data[at + n] == ids->data[at])
        n++;
    return n;
}

static void put_picture(struct json_writer *w, const struct shown *s, uint32_t i)
{
    const struct prompt_picture *m = &s->pictures.list[i];
    char key[65];
    json_begin_object(w);
    json_put_u64(w, "picture", i);
    json_put_u64(w, "message", m->message);
    json_put_u64(w, "part", m->part);
    json_put_u64(w, "first", m->first);
    json_put_u64(w, "count", m->n_rows);
    json_put_u64(w, "width", m->info.width);
    json_put_u64(w, "height", m->info.height);
    json_put_u64(w, "tiles", m->plan.n_tiles);
    json_key(w, "grid");
    json_begin_array(w);
    for (size_t k = 0; m->n_grids && k < 3; k++)
        json_write_u64(w, k == 0 ? m->grids[0].t : k == 1 ? m->grids[0].h : m->grids[0].w);
    json_end_array(w);
    if (s->pixels) {
        for (size_t k = 0; k < 32; k++)
            snprintf(key + 2 * k, 3, "%02x", s->pixels[i].key[k]);
        json_put_string(w, "format", image_format_name(m->info.format));
        json_put_string(w, "key", key);
        json_put_u64(w, "patches", s->pixels[i].n_patches);
        json_put_f64(w, "decode_seconds", (double)s->pixels[i].decode_ns * 1e-9);
        json_put_f64(w, "process_seconds", (double)s->pixels[i].process_ns * 1e-9);
    }
    json_end_object(w);
}

static int print_json(struct shown *s)
{
    const struct prompt_front *p = s->front;
    const struct ids *ids = &s->ids;
    struct strbuf out = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &out, true);
    json_begin_object(&w);
    json_key(&w, "text");
    json_write_string_n(&w, strbuf_cstr(&s->text), s->text.len);
    cli_put_ids(&w, "ids", ids);
    json_key(&w, "placeholders");
    json_begin_array(&w);
    for (uint32_t i = 0; i < s->pictures.n; i++)
        put_picture(&w, s, i);
    for (size_t i = 0; i < ids->n && s->pictures.n == 0; i += run_of(ids, i)) {
        if (!is_media(p, ids->data[i]))
            continue;
        json_begin_object(&w);
        json_put_u64(&w, "first", i);
        json_put_u64(&w, "count", run_of(ids, i));
        json_put_i64(&w, "id", ids->data[i]);
        json_put_string(&w, "token", tokenizer_token(p->tokenizer, ids->data[i], NULL));
        json_end_object(&w);
    }
    json_end_array(&w);
    if (s->pictures.n)
        json_put_i64(&w, "place_delta", s->layout.place_delta);
    json_end_object(&w);
    return cli_print(&out, EXIT_PASSED);
}

/* Ids, 16 a line; a run of placeholders as one entry, "ID x COUNT". */
static void print_ids(const struct prompt_front *p, const struct ids *ids)
{
    unsigned column = 0;
    for (size_t i = 0, n; i < ids->n; i += n) {
        n = is_media(p, ids->data[i]) ? run_of(ids, i) : 1;
        printf(n > 1 ? "%d x %zu" : "%d", ids->data[i], n);
        column++;
        putchar(i + n == ids->n || column % 16 == 0 ? '\n' : ' ');
    }
}

static void print_picture(const struct shown *s, uint32_t i)
{
    const struct prompt_picture *m = &s->pictures.list[i];
    printf("picture %-5u messages[%u].content[%u], %u x %u pixels: %u placeholders from position %zu", i,
           m->message, m->part, m->info.width, m->info.height, m->n_rows, m->first);
    if (m->plan.n_tiles > 1)
        printf(", %u tiles", m->plan.n_tiles);
    if (m->n_grids)
        printf(", grid %u x %u", m->grids[0].h, m->grids[0].w);
    if (s->pixels)
        printf(", decoded in %.1f ms, processed in %.1f ms", (double)s->pixels[i].decode_ns * 1e-6,
               (double)s->pixels[i].process_ns * 1e-6);
    putchar('\n');
}

static int print_people(struct shown *s)
{
    const struct prompt_front *p = s->front;
    const struct ids *ids = &s->ids;
    size_t media = 0;
    printf("template      %s\n%s\n%zu ids\n", p->template_kind, strbuf_cstr(&s->text), ids->n);
    print_ids(p, ids);
    for (uint32_t i = 0; i < s->pictures.n; i++)
        print_picture(s, i);
    for (size_t i = 0; i < ids->n && s->pictures.n == 0; i++)
        if (is_media(p, ids->data[i]) && ++media)
            printf("placeholder   position %zu, %s\n", i, tokenizer_token(p->tokenizer, ids->data[i], NULL));
    if (p->n_media && media == 0 && s->pictures.n == 0)
        printf("no placeholders\n");
    return EXIT_PASSED;
}

/* One line an id: its piece quoted as JSON does (half characters show as U+FFFD). */
static int print_pieces(const struct prompt_front *p, size_t bytes, const struct ids *ids)
{
    struct strbuf text = STRBUF_INIT;
    for (size_t i = 0; i < ids->n; i++) {
        struct json_writer w;
        size_t n = 0;
        const char *piece = tokenizer_piece(p->tokenizer, ids->data[i], &n);
        strbuf_printf(&text, "%8d  ", ids->data[i]);
        json_writer_init(&w, &text, false);
        json_write_string_n(&w, piece ? piece : "", n);
        strbuf_putc(&text, '\n');
    }
    strbuf_printf(&text, "%zu ids, %zu bytes", ids->n, bytes);
    return cli_print(&text, EXIT_PASSED);
}

static int show_text(struct shown *s, struct err *e)
{
    char *data;
    size_t n;
    int rc = file_read(s->a->text, MAX_REQUEST, &s->arena, &data, &n, e);
    if (rc == 0)
        rc = prompt_text(s->front, data, n, &s->ids, e);
    if (rc)
        return cli_error(&s->a->c, e);
    strbuf_add(&s->text, data, n);
    return s->a->c.json ? print_json(s) : print_pieces(s->front, n, &s->ids);
}

static int show_messages(struct shown *s, struct prompt_chat *chat, struct err *e)
{
    int rc = s->front->eyes ? read_pictures(s, chat, e) : ERR_OK;
    if (rc == 0)
        rc = prompt_chat(s->front, chat, &s->text, &s->ids, e);
    if (rc == 0 && s->pictures.n)
        rc = make_pictures(s, e);
    if (rc)
        return cli_error(&s->a->c, e);
    return s->a->c.json ? print_json(s) : print_people(s);
}

/* chat: NULL where a text is shown. */
static int show(const struct prompt_arguments *a, const struct prompt_front *p, struct prompt_chat *chat,
                struct err *e)
{
    struct shown s = {.a = a, .front = p};
    arena_init(&s.arena, &a->c.d0->mem, MEM_MISC);
    int status = chat ? show_messages(&s, chat, e) : show_text(&s, e);
    strbuf_release(&s.text);
    ids_release(&s.ids);
    arena_release(&s.arena);
    return status;
}

static int run(const struct prompt_arguments *a, struct arena *arena, struct findings *f, struct err *e)
{
    struct spec_options o = {.arch_path = a->c.arch};
    struct ckpt *ckpt = NULL;
    struct spec *spec = NULL;
    struct prompt_front *front = NULL;
    struct prompt_chat chat;
    int status = EXIT_PASSED;
    int rc = a->messages ? read_request(a, arena, &chat, e) : ERR_OK;
    if (rc == 0)
        rc = ckpt_open(&ckpt, a->c.model, f, a->c.d0, e);
    if (rc == 0)
        rc = spec_open(&spec, ckpt, &o, f, a->c.d0, e);
    if (rc == 0 && spec)
        rc = prompt_open(&front, ckpt, spec, f, a->c.d0, e);
    if (rc == 0 && front) {
        status = show(a, front, a->messages ? &chat : NULL, e);
    } else if (rc == 0) {
        cli_print_findings(f);
        status = EXIT_CHECK_FAILED;
    }
    prompt_close(front);
    spec_close(spec);
    ckpt_close(ckpt);
    return rc ? cli_error(&a->c, e) : status;
}

int cmd_prompt(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_child children[] = {{&common_argp, 0, "Common options:", 2}, {0}};
    static const struct argp argp = {
        options,
        parse,
        "MODEL --messages FILE|--text FILE",
        "Renders a conversation by the model's chat template and tokenizes it; reads no "
        "weights.",
        children,
        NULL,
        NULL};
    struct prompt_arguments a = {.c = {.d0 = d0, .needs_model = true}};
    struct findings f;
    struct arena arena;
    struct err e = {0};
    cli_parse(&argp, argc, argv, &a);
    findings_init(&f, &d0->mem);
    arena_init(&arena, &d0->mem, MEM_MISC);
    int status = run(&a, &arena, &f, &e);
    arena_release(&arena);
    findings_release(&f);
    return status;
}
