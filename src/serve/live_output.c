/* SPDX-License-Identifier: Apache-2.0
 *
 * The output of one chat on its way through the rules of its model: tokens in; text for the stop strings,
 * reasoning and tool calls out. Owns what was read and is not yet sent. Stop strings look at the text of the
 * answer only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/serve_impl.h"

#define TAIL_BYTES 256 /* of the prompt: longer than any marker */

static void add_call(struct live_request *r, const struct output_event *ev)
{
    struct live_output *o = &r->output;
    if (vec_reserve((void **)&o->calls, &o->calls_capacity, o->n_calls + 1, sizeof *o->calls)) {
        o->failed = true;
        return;
    }
    struct live_call *c = &o->calls[o->n_calls++];
    *c = (struct live_call){0};
    if (ev->id[0] && strlen(ev->id) < sizeof c->id)
        snprintf(c->id, sizeof c->id, "%s", ev->id);
    else
        snprintf(c->id, sizeof c->id, "call-%s-%u", r->name, ev->index);
    strbuf_puts(&c->name, ev->name);
}

static void on_output(void *ctx, const struct output_event *ev)
{
    struct live_request *r = ctx;
    struct live_output *o = &r->output;
    switch (ev->kind) {
    case OUTPUT_CONTENT:
        strbuf_add(&o->new_text, ev->text, ev->n);
        break;
    case OUTPUT_REASONING:
        strbuf_add(&o->reasoning, ev->text, ev->n);
        break;
    case OUTPUT_CALL:
        add_call(r, ev);
        break;
    case OUTPUT_ARGUMENTS:
        if (o->n_calls > 0 && !o->failed)
            strbuf_add(&o->calls[o->n_calls - 1].arguments, ev->text, ev->n);
        break;
    case OUTPUT_CALL_END:
        break;
    case OUTPUT_NOTE:
        if (o->n_notes < OUTPUT_MAX_NOTES) {
            char *note = o->notes[o->n_notes++];
            snprintf(note, OUTPUT_NOTE_BYTES, "%.*s", (int)ev->n, ev->text);
            note[utf8_complete_prefix(note, strlen(note))] = '\0';
        }
        break;
    }
}

/* The request's tools outlive its body: arguments that are written as text have their types. */
static int keep_tools(struct live_output *o, const struct json *tools, struct err *e)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &text, false);
    json_write_tree(&w, tools);
    int rc = strbuf_failed(&text) ? err_set(e, ERR_NOMEM, "out of memory")
                                  : json_parse(text.data, text.len, NULL, &o->arena, &o->tools, e);
    strbuf_release(&text);
    return rc;
}

int output_begin(struct live_request *r, const struct request_params *p, const struct strbuf *rendered,
                 struct err *e)
{
    struct live_output *o = &r->output;
    const struct output_rules *rules = r->serve->front->output;
    arena_init(&o->arena, &r->serve->d0->mem, MEM_REQUEST);
    if (rules == NULL || p->endpoint != ENDPOINT_CHAT)
        return ERR_OK;
    int rc = p->tools ? keep_tools(o, p->tools, e) : ERR_OK;
    size_t n = rendered->len < TAIL_BYTES ? rendered->len : TAIL_BYTES;
    struct output_options options = {.calls = o->tools && !p->no_calls,
                                     .tools = o->tools,
                                     .prompt = strbuf_cstr(rendered) + rendered->len - n,
                                     .n_prompt = n};
    return rc ? rc : output_open(&o->parser, rules, &options, on_output, r, e);
}

void output_release(struct live_output *o)
{
    output_close(o->parser);
    arena_release(&o->arena);
    strbuf_release(&o->piece);
    strbuf_release(&o->reasoning);
    strbuf_release(&o->new_text);
    for (size_t i = 0; i < o->n_calls; i++) {
        strbuf_release(&o->calls[i].name);
        strbuf_release(&o->calls[i].arguments);
    }
    free(o->calls);
}

static int flush(struct live_request *r, struct err *e)
{
    struct live_output *o = &r->output;
    int rc = output_text(o->parser, strbuf_cstr(&o->piece), o->piece.len, e);
    strbuf_clear(&o->piece);
    return rc;
}

static void count(struct live_request *r)
{
    const struct output_counts *c = output_counts(r->output.parser);
    struct service_metrics *m = &r->serve->metrics;
    m->calls += c->calls;
    m->malformed_calls += c->malformed;
    m->unfinished_calls += c->unfinished;
}

int output_feed(struct live_request *r, const struct engine_event *ev, struct err *e)
{
    struct live_output *o = &r->output;
    bool text = ev->token >= 0 && ev->finish != SCHED_STOP, last = ev->finish != SCHED_RUNNING;
    bool marker = text && output_is_marker(o->parser, ev->token);
    int rc = ERR_OK;
    if (text && !marker)
        rc = detokenizer_feed(&r->detokenizer, ev->token, &o->piece, e);
    if (rc == 0 && (marker || last)) /* what is left of a character ends before a marker */
        rc = detokenizer_finish(&r->detokenizer, &o->piece, e);
    if (rc == 0)
        rc = flush(r, e);
    if (rc == 0 && marker)
        rc = output_marker(o->parser, ev->token, e);
    if (rc == 0 && last) {
        rc = output_finish(o->parser, ev->finish == SCHED_STOP, e);
        count(r);
    }
    strbuf_add(&r->out.held, strbuf_cstr(&o->new_text), o->new_text.len);
    strbuf_clear(&o->new_text);
    bool failed =
        o->failed || strbuf_failed(&o->reasoning) || strbuf_failed(&o->piece) || strbuf_failed(&o->new_text);
    return rc == 0 && failed ? err_set(e, ERR_NOMEM, "out of memory") : rc;
}
