/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the output parser: the rules of arch/chat.lua, and a run of the parser whose events are
 * written down as one text: C[content] R[reasoning] T(name|id|arguments), neighbouring texts joined.
 */
#ifndef TESTS_OUTPUT_RUN_H
#define TESTS_OUTPUT_RUN_H

#include <string.h>

#include "prompt/prompt.h"
#include "script/script.h"
#include "spec/spec_internal.h"

struct event_log {
    struct strbuf text;
    char open; /* kind of the open bracket; 0 none */
    uint32_t notes;
};

static inline void log_close(struct event_log *l)
{
    if (l->open)
        strbuf_putc(&l->text, ']');
    l->open = 0;
}

static inline void log_event(void *ctx, const struct output_event *ev)
{
    struct event_log *l = ctx;
    char kind = ev->kind == OUTPUT_CONTENT ? 'C' : ev->kind == OUTPUT_REASONING ? 'R' : 0;
    if (ev->kind == OUTPUT_NOTE) {
        l->notes++;
        return;
    }
    if (kind && kind != l->open) {
        log_close(l);
        strbuf_printf(&l->text, "%c[", kind);
        l->open = kind;
    }
    if (!kind)
        log_close(l);
    if (ev->kind == OUTPUT_CALL)
        strbuf_printf(&l->text, "T(%s|%s|", ev->name, ev->id);
    else if (ev->kind == OUTPUT_CALL_END)
        strbuf_putc(&l->text, ')');
    else
        strbuf_add(&l->text, ev->text, ev->n);
}

/* All formats of arch/chat.lua, in the arena. */
static inline const struct json *all_formats(struct arena *arena)
{
    static const char get[] = "function formats() return talk.formats end";
    struct script *s = NULL;
    const struct json *v = NULL;
    int rc = script_open(&s, NULL, NULL);
    for (size_t i = 0; rc == 0 && i < ARCH_N_SHARED; i++)
        rc = script_load(s, arch_embedded[i].name, arch_embedded[i].text, arch_embedded[i].n, NULL, NULL);
    if (rc == 0)
        rc = script_load(s, "get", get, sizeof get - 1, NULL, NULL);
    if (rc == 0)
        rc = script_call(s, "formats", NULL, 0, arena, &v, NULL);
    script_close(s);
    return rc ? NULL : v;
}

/* Without the conditions under which rules are chosen. */
static inline const struct json *without_needs(struct arena *arena, const struct json *v)
{
    struct json *copy = arena_alloc(arena, sizeof *copy);
    struct json_member *members = arena_alloc_n(arena, v->n, sizeof *members);
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->n; i++)
        if (strcmp(v->as.members[i].key, "needs") != 0 && strcmp(v->as.members[i].key, "template") != 0)
            members[n++] = v->as.members[i];
    *copy = *v;
    copy->n = n;
    copy->as.members = members;
    return copy;
}

#endif
