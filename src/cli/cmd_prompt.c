/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 prompt: what a text becomes before a model sees it. Reads headers and the tokenizer, no weights;
 * decides nothing itself (src/prompt does).
 */
#include <string.h>

#include "base/file.h"
#include "ckpt/ckpt.h"
#include "cli/cli.h"
#include "prompt/prompt.h"

enum { KEY_TEXT = 0x2200 };
#define MAX_TEXT (64u << 20)

struct prompt_arguments {
    struct common common;
    const char *text_path;
};

/* What is printed, whatever it was made from. */
struct prompt_output {
    struct strbuf text; /* as it was tokenized */
    struct ids ids;
};

static const struct argp_option options[] = {
    {"text", KEY_TEXT, "FILE", 0, "tokenize the text of this file; - reads stdin", 1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct prompt_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        break;
    case KEY_TEXT:
        a->text_path = arg;
        break;
    case ARGP_KEY_END:
        if (!a->common.model || !a->text_path)
            argp_error(state, "a MODEL directory and --text FILE are needed");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static int read_text(const char *path, struct arena *arena, struct prompt_output *out, struct err *e)
{
    char *data, buffer[65536];
    size_t n;
    if (strcmp(path, "-") != 0) {
        int rc = file_read(path, MAX_TEXT, arena, &data, &n, e);
        if (rc == ERR_OK)
            strbuf_add(&out->text, data, n);
        return rc;
    }
    while ((n = fread(buffer, 1, sizeof buffer, stdin)) > 0 && out->text.len <= MAX_TEXT)
        strbuf_add(&out->text, buffer, n);
    if (ferror(stdin))
        return err_set(e, ERR_IO, "cannot read stdin");
    return out->text.len > MAX_TEXT ? err_set(e, ERR_LIMIT, "stdin has more than %u bytes", MAX_TEXT)
                                    : ERR_OK;
}

static void print_json(const struct prompt_output *out, struct strbuf *text)
{
    struct json_writer w;
    json_writer_init(&w, text, false);
    json_begin_object(&w);
    json_key(&w, "text");
    json_write_string_n(&w, strbuf_cstr(&out->text), out->text.len);
    json_key(&w, "ids");
    json_begin_array(&w);
    for (size_t i = 0; i < out->ids.n; i++)
        json_write_i64(&w, out->ids.data[i]);
    json_end_array(&w);
    json_key(&w, "placeholders");
    json_begin_array(&w);
    json_end_array(&w);
    json_end_object(&w);
}

/* One line an id: the id, its piece quoted as JSON does (half characters show as U+FFFD). */
static void print_people(const struct prompt_front *front, const struct prompt_output *out,
                         struct strbuf *text)
{
    for (size_t i = 0; i < out->ids.n; i++) {
        struct json_writer w;
        size_t n = 0;
        const char *piece = tokenizer_piece(front->tokenizer, out->ids.data[i], &n);
        strbuf_printf(text, "%8d  ", out->ids.data[i]);
        json_writer_init(&w, text, false);
        json_write_string_n(&w, piece ? piece : "", n);
        strbuf_putc(text, '\n');
    }
    strbuf_printf(text, "%zu ids, %zu bytes", out->ids.n, out->text.len);
}

/* The front of a directory, by its headers: *front NULL where a finding says why. */
static int open_front(const struct common *c, struct ckpt **ckpt, struct spec **spec,
                      struct prompt_front **front, struct findings *f, struct err *e)
{
    int rc = ckpt_open(ckpt, c->model, f, c->d0, e);
    if (rc == ERR_OK)
        rc = spec_open(spec, *ckpt, &(struct spec_options){.arch_path = c->arch}, f, c->d0, e);
    if (rc == ERR_OK && *spec)
        rc = prompt_open(front, *ckpt, *spec, f, c->d0, e);
    return rc;
}

static int run(struct prompt_arguments *a, struct arena *arena, struct findings *f)
{
    const struct common *c = &a->common;
    struct ckpt *ckpt = NULL;
    struct spec *spec = NULL;
    struct prompt_front *front = NULL;
    struct prompt_output out = {0};
    struct strbuf text = STRBUF_INIT;
    struct err e = {0};
    int status = EXIT_PASSED, rc = open_front(c, &ckpt, &spec, &front, f, &e);
    if (rc == ERR_OK && front)
        rc = read_text(a->text_path, arena, &out, &e);
    if (rc == ERR_OK && front)
        rc = prompt_text(front, strbuf_cstr(&out.text), out.text.len, &out.ids, &e);
    if (rc == ERR_OK && front && c->json)
        print_json(&out, &text);
    else if (rc == ERR_OK && front)
        print_people(front, &out, &text);
    if (rc != ERR_OK)
        status = cli_error(c, &e);
    else if (front)
        status = cli_print(&text, EXIT_PASSED);
    else if (c->json) {
        err_set(&e, ERR_MISMATCH, "the model's text front cannot be opened: see day0 check");
        status = cli_error(c, &e);
    } else {
        cli_print_findings(f);
        status = EXIT_CHECK_FAILED;
    }
    ids_release(&out.ids);
    strbuf_release(&out.text);
    prompt_close(front);
    spec_close(spec);
    ckpt_close(ckpt);
    return status;
}

int cmd_prompt(struct d0 *d0, int argc, char **argv)
{
    const struct argp_child children[] = {{&common_argp, 0, "Common options:", 10}, {0}};
    const struct argp argp = {
        options,  parse, "MODEL", "What a text becomes: ids and pieces. Reads no weights.",
        children, NULL,  NULL};
    struct prompt_arguments a = {.common = {.d0 = d0}};
    struct findings f;
    struct arena arena;
    cli_parse(&argp, argc, argv, &a);
    findings_init(&f, &d0->mem);
    arena_init(&arena, &d0->mem, MEM_MISC);
    int status = run(&a, &arena, &f);
    arena_release(&arena);
    findings_release(&f);
    return status;
}
