/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a model's output as it comes: text in, events out. Owns the states (text, reasoning, between calls,
 * within a call, within a message) and what is held back because it may become a marker. Refuses to lose or
 * to invent text: what looked like a call and is none comes out as text, with a note that says why.
 *
 * Events do not depend on how the input is cut: a place is decided only when every marker that could begin
 * there is complete or impossible, and the leftmost wins. Calls are held until they are whole, because only
 * then it is known that they are calls.
 */
#include <stdlib.h>
#include <string.h>

#include "prompt/output_state.h"

/* ---- steps ---- */

static enum output_kind text_kind(const struct output_parser *p)
{
    if (p->state == REASONING)
        return OUTPUT_REASONING;
    return p->state == BODY ? p->body_kind : OUTPUT_CONTENT;
}

/* Text outside of all markers: white space between calls and messages is layout. */
static void give_between(struct output_parser *p, const char *s, size_t n)
{
    while (!p->noted_section && n > 0 && output_is_space(*s))
        s++, n--;
    if (n == 0)
        return;
    if (!p->noted_section) {
        p->counts.malformed++;
        output_note(p, "text stands between calls or messages");
    }
    p->noted_section = true;
    output_give_back(p, s, n);
}

static void in_message(struct output_parser *p, const struct marker *m)
{
    const struct message_rules *r = &p->r->messages;
    if (m == &r->start || m == &r->channel || m == &r->body)
        strbuf_clear(&p->call);
    if (m == &r->channel)
        strbuf_add(&p->call, m->text, m->n);
    p->noted_section = false;
    p->state = m == &r->start || m == &r->channel ? HEADER : m == &r->body ? BODY : BETWEEN;
    if (m == &r->body)
        output_read_header(p);
}

/* Where nothing of the answer came yet, or only reasoning. */
static enum state text_state(const struct output_parser *p)
{
    return p->r->calls.bare && p->o.calls ? AT_START : TEXT;
}

static void on_marker(struct output_parser *p, const struct marker *m)
{
    const struct output_rules *r = p->r;
    if (m == &r->think_open || m == &r->think_close) {
        output_at_marker(p);
        p->state = m == &r->think_open ? REASONING : text_state(p);
    } else if (m == &r->calls.section_open) {
        p->state = SECTION;
        p->in_section = true;
        p->noted_section = false;
    } else if (m == &r->calls.section_close) {
        p->state = TEXT;
        p->in_section = false;
    } else if (m == &r->calls.open && r->calls.bare) {
        p->state = AFTER_TAG;
        p->tagged = true;
        output_keep_opening(p, m);
    } else if (m == &r->calls.open) {
        output_keep_opening(p, m);
        output_begin_call(p);
    } else if (r->has_messages) {
        in_message(p, m);
    } else { /* skipped */
        output_at_marker(p);
    }
}

/* AT_START and AFTER_TAG: a { begins a call, anything else is text. */
static bool step_bare(struct output_parser *p, bool last)
{
    const char *s = strbuf_cstr(&p->in);
    size_t i = p->at;
    while (i < p->in.len && (output_is_space(s[i]) || (p->state == AFTER_TAG && s[i] == ';')))
        i++;
    if (i == p->in.len && !last)
        return false;
    if (i < p->in.len && s[i] == '{') {
        strbuf_add(&p->call, s + p->at, i - p->at);
        p->at = i;
        output_begin_call(p);
        return true;
    }
    if (p->state == AFTER_TAG && p->call.len > 0) { /* a marker and no call behind it */
        p->counts.malformed++;
        output_give_back(p, strbuf_cstr(&p->call), p->call.len);
        output_note(p, "no call follows the marker");
    }
    strbuf_clear(&p->call);
    p->state = TEXT;
    return true;
}

static void step_header(struct output_parser *p, struct found f, bool *more)
{
    const struct message_rules *m = &p->r->messages;
    size_t n = f.at - p->at, room = OUTPUT_MAX_HEADER - p->call.len;
    bool over = n > room;
    n = over ? room : n;
    strbuf_add(&p->call, strbuf_cstr(&p->in) + p->at, n);
    p->at += n;
    if (!over && f.hit == NULL)
        return;
    if (!over && f.hit == &m->body) {
        p->at += f.hit->n;
        p->state = BODY;
        p->seen = 0;
        output_read_header(p);
        return;
    }
    p->counts.malformed++;
    output_give_back(p, strbuf_cstr(&p->call), p->call.len);
    output_note(p, "a header without a message");
    p->state = BETWEEN;
    p->noted_section = over; /* what follows belongs to it */
    *more = true;
    if (!over && f.hit != &m->start)
        p->at += f.hit->n;
}

/* The text of a call is held; *more stays true where it is decided. */
static int step_body_call(struct output_parser *p, struct found f, bool *more, struct err *e)
{
    size_t have = f.at - p->at;
    p->seen = have;
    if (have > OUTPUT_MAX_CALL) {
        p->counts.malformed++;
        output_note(p, "a call of more than 1 MiB");
        p->body_kind = OUTPUT_CONTENT;
        *more = true;
        return ERR_OK;
    }
    if (f.hit == NULL)
        return ERR_OK;
    int rc = output_end_message_call(p, have, true, e);
    p->at = f.at + f.hit->n;
    in_message(p, f.hit);
    return rc;
}

static bool step_beginning(struct output_parser *p, bool last)
{
    const struct marker *set[OUTPUT_MAX_MARKERS];
    const char *s = strbuf_cstr(&p->in);
    size_t i = p->at;
    while (i < p->in.len && output_is_space(s[i]))
        i++;
    struct found f = output_find(p, set, output_markers_of(p, set), i, last);
    if (f.at > i || i == p->in.len)
        return step_bare(p, last);
    if (f.hit == NULL)
        return false; /* what begins here may become a marker */
    p->at = i + f.hit->n;
    on_marker(p, f.hit);
    return true;
}

/* Decides what can be decided next. *more: call again. */
static int step(struct output_parser *p, bool last, bool *more, struct err *e)
{
    const struct marker *set[OUTPUT_MAX_MARKERS];
    if (p->state == IN_CALL)
        return output_step_call(p, last, more, e);
    if (p->state == AT_START || p->state == AFTER_TAG) {
        *more = step_beginning(p, last);
        return ERR_OK;
    }
    bool held_call = p->state == BODY && p->body_kind == OUTPUT_CALL;
    struct found f = output_find(p, set, output_markers_of(p, set), p->at + (held_call ? p->seen : 0), last);
    *more = f.hit != NULL;
    if (held_call)
        return step_body_call(p, f, more, e);
    if (p->state == HEADER) {
        step_header(p, f, more);
        return ERR_OK;
    }
    const char *s = strbuf_cstr(&p->in) + p->at;
    size_t n = f.at - p->at;
    if (!f.hit && !last)
        n = utf8_complete_prefix(s, n);
    if (p->state == SECTION || p->state == BETWEEN)
        give_between(p, s, n);
    else
        output_give(p, text_kind(p), s, n);
    p->at += n;
    if (f.hit) {
        p->at = f.at + f.hit->n;
        on_marker(p, f.hit);
    }
    return ERR_OK;
}

static int run(struct output_parser *p, bool last, struct err *e)
{
    bool more = true;
    while (more) {
        int rc = step(p, last, &more, e);
        if (rc)
            return rc;
    }
    if (p->at > 0) {
        memmove(p->in.data, p->in.data + p->at, p->in.len - p->at);
        p->in.len -= p->at;
        p->in.data[p->in.len] = '\0';
        p->at = 0;
    }
    bool failed = strbuf_failed(&p->in) || strbuf_failed(&p->space) || strbuf_failed(&p->call) ||
                  strbuf_failed(&p->shown) || strbuf_failed(&p->recipient);
    return failed ? err_set(e, ERR_NOMEM, "out of memory for the output") : ERR_OK;
}

/* ---- the interface ---- */

static bool prompt_ends_with(const struct output_options *o, const struct marker *m, bool trim)
{
    size_t n = o->n_prompt, k = m->n;
    while (trim && n > 0 && output_is_space(o->prompt[n - 1]))
        n--;
    if (m->n == 0)
        return false;
    while (k > 0) { /* the prompt is text: tokens stand there by their names */
        char c = m->text[--k];
        if (c == TOKEN_OPEN || c == TOKEN_CLOSE)
            continue;
        if (n == 0 || o->prompt[--n] != c)
            return false;
    }
    return true;
}

static void begin(struct output_parser *p)
{
    const struct output_rules *r = p->r;
    p->state = text_state(p);
    if (r->has_reasoning && prompt_ends_with(&p->o, &r->think_open, true)) {
        p->state = REASONING;
        p->lead = r->trim;
    } else if (r->has_reasoning && prompt_ends_with(&p->o, &r->think_close, true)) {
        p->lead = r->trim;
    }
}

/* The prompt opened a message: its header goes on in the output. */
static void begin_message(struct output_parser *p)
{
    const struct message_rules *m = &p->r->messages;
    struct output_options cut = p->o;
    size_t k = strlen(m->role);
    p->state = BETWEEN;
    if (cut.n_prompt < k || memcmp(cut.prompt + cut.n_prompt - k, m->role, k) != 0)
        return;
    cut.n_prompt -= k;
    if (prompt_ends_with(&cut, &m->start, false)) {
        p->state = HEADER;
        strbuf_puts(&p->call, m->role);
    }
}

int output_open(struct output_parser **out, const struct output_rules *r, const struct output_options *o,
                output_sink sink, void *ctx, struct err *e)
{
    struct output_parser *p = calloc(1, sizeof *p);
    if (p == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the output");
    p->r = r;
    p->o = *o;
    p->sink = sink;
    p->ctx = ctx;
    if (r->has_messages)
        begin_message(p);
    else
        begin(p);
    p->o.prompt = NULL;
    p->o.n_prompt = 0;
    if (strbuf_failed(&p->call)) {
        output_close(p);
        return err_set(e, ERR_NOMEM, "out of memory for the output");
    }
    *out = p;
    return ERR_OK;
}

void output_close(struct output_parser *p)
{
    if (p == NULL)
        return;
    strbuf_release(&p->in);
    strbuf_release(&p->space);
    strbuf_release(&p->call);
    strbuf_release(&p->recipient);
    strbuf_release(&p->shown);
    strbuf_release(&p->parsed.name);
    strbuf_release(&p->parsed.id);
    strbuf_release(&p->parsed.arguments);
    free(p);
}

int output_text(struct output_parser *p, const char *text, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++) /* no UTF-8 holds these two bytes */
        strbuf_putc(&p->in, text[i] == TOKEN_OPEN || text[i] == TOKEN_CLOSE ? '?' : text[i]);
    return run(p, false, e);
}

static const struct output_token *token_of(const struct output_parser *p, int32_t id)
{
    for (uint32_t i = 0; i < p->r->n_tokens; i++)
        if (p->r->tokens[i].id == id)
            return &p->r->tokens[i];
    return NULL;
}

bool output_is_marker(const struct output_parser *p, int32_t id)
{
    return token_of(p, id) != NULL;
}

int output_marker(struct output_parser *p, int32_t id, struct err *e)
{
    const struct output_token *t = token_of(p, id);
    if (t == NULL)
        BUG("a token that is no marker of the rules");
    strbuf_add(&p->in, t->mark.text, t->mark.n);
    return run(p, false, e);
}

/* What the end finds open. */
static int finish_open(struct output_parser *p, bool stopped, struct err *e)
{
    size_t left = p->in.len - p->at;
    if (p->state == IN_CALL && call_is_json(&p->r->calls)) {
        struct err why = {0};
        int rc = output_read_call(p, left, &why, e);
        if (rc != ERR_FORMAT)
            return rc;
    }
    if (p->state == IN_CALL) {
        output_give_back(p, strbuf_cstr(&p->call), p->call.len);
        output_send_raw(p, OUTPUT_CONTENT, strbuf_cstr(&p->in) + p->at, left);
        output_unfinished(p);
    } else if (p->state == BODY && p->body_kind == OUTPUT_CALL) {
        return output_end_message_call(p, left, stopped, e);
    } else if (p->state == HEADER && p->call.len + left > 0 && !stopped) {
        p->counts.unfinished++; /* no text of the answer: nothing is given out */
    }
    return ERR_OK;
}

int output_finish(struct output_parser *p, bool stopped, struct err *e)
{
    int rc = run(p, true, e);
    if (rc == 0)
        rc = finish_open(p, stopped, e);
    if (rc == 0)
        output_flush_space(p);
    return rc;
}

const struct output_counts *output_counts(const struct output_parser *p)
{
    return &p->counts;
}
