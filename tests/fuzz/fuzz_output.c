/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as the output of a model: byte 0 chooses the rules of a family (or, by its upper half, rules that
 * stand as JSON before the first NUL), byte 1 how it is cut and how it ends. Whole or cut, the events are the
 * same, nothing of the text is lost to a crash, and arguments are JSON.
 */
#include <stdlib.h>
#include <string.h>

#include "../unit/output_run.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_event(void *ctx, const struct output_event *ev)
{
    struct event_log *l = ctx;
    if (ev->kind == OUTPUT_ARGUMENTS) {
        struct arena a;
        const struct json *v = NULL;
        struct json_limits limits = {.max_depth = 64, .max_bytes = 4u << 20};
        arena_init(&a, NULL, MEM_MISC);
        if (json_parse(ev->text, ev->n, &limits, &a, &v, NULL) != ERR_OK || v->type != JSON_OBJECT)
            abort();
        arena_release(&a);
    }
    if (ev->kind == OUTPUT_CALL && ev->name[0] == '\0')
        abort();
    log_event(l, ev);
}

static void read_it(const struct output_rules *r, const struct output_options *o, bool stopped,
                    const char *text, size_t n, size_t piece, struct event_log *log)
{
    struct output_parser *p = NULL;
    if (output_open(&p, r, o, check_event, log, NULL) != ERR_OK)
        abort();
    for (size_t i = 0; i < n; i += piece)
        if (output_text(p, text + i, piece < n - i ? piece : n - i, NULL) != ERR_OK)
            abort();
    if (output_finish(p, stopped, NULL) != ERR_OK)
        abort();
    log_close(log);
    output_close(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct arena formats_arena;
    static const struct json *formats; /* a sandbox for every input would be most of the work */
    struct arena arena;
    struct output_rules *r = NULL;
    struct err e = {0};
    const struct json *rules;
    if (size < 3)
        return 0;
    if (formats == NULL) {
        arena_init(&formats_arena, NULL, MEM_MISC);
        formats = all_formats(&formats_arena);
        if (formats == NULL)
            abort();
    }
    arena_init(&arena, NULL, MEM_MISC);
    unsigned which = data[0], how = data[1];
    const char *text = (const char *)data + 2;
    size_t n = size - 2;
    const char *end = which >= 128 ? memchr(text, 0, n) : NULL;
    if (end) {
        if (json_parse(text, (size_t)(end - text), NULL, &arena, &rules, NULL) != ERR_OK)
            rules = NULL;
        n -= (size_t)(end + 1 - text);
        text = end + 1;
    } else {
        rules = without_needs(&arena, &formats->as.members[which % formats->n].value);
    }
    static const char *const prompts[] = {"", "<think>", "<|start|>assistant", "<|open|>think<|sep|>"};
    struct output_options o = {.calls = !(how & 1), .prompt = prompts[how >> 1 & 3]};
    o.n_prompt = strlen(o.prompt);
    if (rules && output_rules_compile(&r, rules, NULL, "", &arena, &e) == ERR_OK && r) {
        struct event_log whole = {0}, cut = {0};
        read_it(r, &o, how & 8, text, n, n ? n : 1, &whole);
        read_it(r, &o, how & 8, text, n, 1 + (how >> 4), &cut);
        if (whole.text.len != cut.text.len ||
            memcmp(strbuf_cstr(&whole.text), strbuf_cstr(&cut.text), cut.text.len) != 0)
            abort();
        strbuf_release(&whole.text);
        strbuf_release(&cut.text);
    } else if (rules && r == NULL && e.code && e.message[0] == '\0') {
        abort();
    }
    arena_release(&arena);
    return 0;
}
