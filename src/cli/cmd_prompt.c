/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 prompt: what a conversation, or a text, becomes before the model sees it. Reads headers, tokenizer and
 * template; no weight.
 */
#include <string.h>

#include "base/file.h"
#include "ckpt/ckpt.h"
#include "cli/cli.h"
#include "prompt/prompt.h"
#include "spec/spec.h"

#define MAX_REQUEST (64u << 20)

enum { KEY_MESSAGES = 0x3000, KEY_TEXT, KEY_TOOLS, KEY_PARSE_SPECIAL, KEY_NOW };

struct prompt_arguments {
    struct common c;
    const char *messages, *tools, *text;
    bool parse_special;
    int64_t now;
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
    {"now", KEY_NOW, "SECONDS", 0, "time that strftime_now shows, since 1970 (default: now)", 1},
    {0},
};

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

static bool is_media(const struct prompt_front *p, int32_t id)
{
    for (uint32_t i = 0; i < p->n_media; i++)
        if (p->media_ids[i] == id)
            return true;
    return false;
}

static int print_json(const struct prompt_front *p, const struct strbuf *text, const struct ids *ids)
{
    struct strbuf out = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &out, true);
    json_begin_object(&w);
    json_key(&w, "text");
    json_write_string_n(&w, strbuf_cstr(text), text->len);
    cli_put_ids(&w, "ids", ids);
    json_key(&w, "placeholders");
    json_begin_array(&w);
    for (size_t i = 0; i < ids->n; i++) {
        if (!is_media(p, ids->data[i]))
            continue;
        json_begin_object(&w);
        json_put_u64(&w, "position", i);
        json_put_i64(&w, "id", ids->data[i]);
        json_put_string(&w, "token", tokenizer_token(p->tokenizer, ids->data[i], NULL));
        json_end_object(&w);
    }
    json_end_array(&w);
    json_end_object(&w);
    return cli_print(&out, EXIT_PASSED);
}

static int print_people(const struct prompt_front *p, const struct strbuf *text, const struct ids *ids)
{
    size_t media = 0;
    printf("template      %s\n%s\n%zu ids\n", p->template_kind, strbuf_cstr(text), ids->n);
    for (size_t i = 0; i < ids->n; i++)
        printf("%d%c", ids->data[i], i + 1 == ids->n || i % 16 == 15 ? '\n' : ' ');
    for (size_t i = 0; i < ids->n; i++)
        if (is_media(p, ids->data[i]) && ++media)
            printf("placeholder   position %zu, %s\n", i, tokenizer_token(p->tokenizer, ids->data[i], NULL));
    if (p->n_media && media == 0)
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

static int show_text(const struct prompt_arguments *a, const struct prompt_front *p, struct arena *arena,
                     struct err *e)
{
    struct strbuf text = STRBUF_INIT;
    struct ids ids = {0};
    char *data;
    size_t n;
    int rc = file_read(a->text, MAX_REQUEST, arena, &data, &n, e);
    if (rc == 0)
        rc = prompt_text(p, data, n, &ids, e);
    if (rc == 0)
        strbuf_add(&text, data, n);
    if (rc)
        rc = cli_error(&a->c, e);
    else
        rc = a->c.json ? print_json(p, &text, &ids) : print_pieces(p, n, &ids);
    strbuf_release(&text);
    ids_release(&ids);
    return rc;
}

static int show(const struct prompt_arguments *a, const struct prompt_front *p,
                const struct prompt_chat *chat, struct err *e)
{
    struct strbuf text = STRBUF_INIT;
    struct ids ids = {0};
    int rc = prompt_chat(p, chat, &text, &ids, e);
    if (rc)
        rc = cli_error(&a->c, e);
    else
        rc = a->c.json ? print_json(p, &text, &ids) : print_people(p, &text, &ids);
    strbuf_release(&text);
    ids_release(&ids);
    return rc;
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
        status = a->messages ? show(a, front, &chat, e) : show_text(a, front, arena, e);
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
