/* SPDX-License-Identifier: Apache-2.0
 *
 * What the reading of an output does between its steps: gives out text and calls, holds layout back, finds
 * markers, follows a call until it is whole, reads the header of a message. Owns nothing of its own: the
 * state is the parser's (output_state.h). Refuses to decide which step comes next, but for where a call ends.
 */
#include <stdlib.h>
#include <string.h>

#include "prompt/output_state.h"

/* ---- events ---- */

static void send(struct output_parser *p, enum output_kind kind, const char *s, size_t n)
{
    if (n > 0)
        p->sink(p->ctx, &(struct output_event){.kind = kind, .text = s, .n = n});
}

/* Token bytes are taken off: the name of the token stays. */
void output_send_raw(struct output_parser *p, enum output_kind kind, const char *s, size_t n)
{
    strbuf_clear(&p->shown);
    for (size_t i = 0; i < n; i++)
        if (s[i] != TOKEN_OPEN && s[i] != TOKEN_CLOSE)
            strbuf_putc(&p->shown, s[i]);
    send(p, kind, strbuf_cstr(&p->shown), p->shown.len);
}

void output_note(struct output_parser *p, const char *why)
{
    send(p, OUTPUT_NOTE, why, strlen(why));
}

void output_flush_space(struct output_parser *p)
{
    send(p, p->space_kind, strbuf_cstr(&p->space), p->space.len);
    strbuf_clear(&p->space);
}

bool output_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Text of the answer or of the reasoning, perhaps with white space at its edges that is layout. */
void output_give(struct output_parser *p, enum output_kind kind, const char *s, size_t n)
{
    if (!p->r->trim) {
        output_send_raw(p, kind, s, n);
        return;
    }
    while (p->lead && n > 0 && output_is_space(*s))
        s++, n--;
    if (n == 0)
        return;
    p->lead = false;
    size_t solid = n;
    while (solid > 0 && output_is_space(s[solid - 1]))
        solid--;
    if (solid > 0) {
        output_flush_space(p);
        output_send_raw(p, kind, s, solid);
    }
    strbuf_add(&p->space, s + solid, n - solid);
    p->space_kind = kind;
}

/* What looked like more than text, as text. */
void output_give_back(struct output_parser *p, const char *s, size_t n)
{
    output_flush_space(p);
    output_send_raw(p, OUTPUT_CONTENT, s, n);
    p->lead = false;
}

void output_at_marker(struct output_parser *p)
{
    strbuf_clear(&p->space);
    p->lead = p->r->trim;
}

/* ---- markers ---- */

static void look_for(const struct marker **set, uint32_t *n, const struct marker *m)
{
    if (m->n > 0 && *n < OUTPUT_MAX_MARKERS)
        set[(*n)++] = m;
}

/* The first place from `from` on where one of the set stands, or, not at the end, could still come to stand.
 */
struct found output_find(const struct output_parser *p, const struct marker *const *set, uint32_t n,
                         size_t from, bool last)
{
    const char *s = strbuf_cstr(&p->in);
    size_t len = p->in.len;
    for (size_t i = from; i < len; i++)
        for (uint32_t k = 0; k < n; k++) {
            size_t room = len - i, want = set[k]->n;
            if (s[i] != set[k]->text[0])
                continue;
            if (memcmp(s + i, set[k]->text, room < want ? room : want) != 0)
                continue;
            if (room >= want)
                return (struct found){i, set[k]};
            if (!last)
                return (struct found){i, NULL};
        }
    return (struct found){len, NULL};
}

uint32_t output_markers_of(const struct output_parser *p, const struct marker **set)
{
    const struct output_rules *r = p->r;
    const struct message_rules *m = &r->messages;
    bool calls = p->o.calls && r->has_calls;
    uint32_t n = 0;
    switch (p->state) {
    case REASONING:
        look_for(set, &n, &r->think_close);
        calls = calls && r->calls_end_reasoning;
        break;
    case TEXT:
    case AT_START:
    case AFTER_TAG:
        look_for(set, &n, &r->think_open);
        for (uint32_t i = 0; i < r->n_skip; i++)
            look_for(set, &n, &r->skip[i]);
        break;
    case SECTION:
        look_for(set, &n, &r->calls.section_close);
        look_for(set, &n, &r->calls.open);
        return n;
    case BETWEEN:
        look_for(set, &n, &m->start);
        look_for(set, &n, &m->channel);
        look_for(set, &n, &m->body);
        return n;
    case HEADER:
        look_for(set, &n, &m->body);
        /* fall through */
    case BODY:
        look_for(set, &n, &m->start);
        for (uint32_t i = 0; i < m->n_ends; i++)
            look_for(set, &n, &m->ends[i]);
        return n;
    case IN_CALL:
        look_for(set, &n, &r->calls.close);
        return n;
    }
    if (calls)
        look_for(set, &n, r->calls.section_open.n ? &r->calls.section_open : &r->calls.open);
    return n;
}

/* p->call holds what opened it, to be given back with it. */
void output_begin_call(struct output_parser *p)
{
    p->state = IN_CALL;
    p->seen = p->json_at = 0;
    p->depth = 0;
    p->json_begun = p->in_string = p->escaped = p->broken = false;
}

void output_keep_opening(struct output_parser *p, const struct marker *m)
{
    strbuf_clear(&p->call);
    strbuf_add(&p->call, m->text, m->n);
}

static void send_call(struct output_parser *p)
{
    struct parsed_call *c = &p->parsed;
    struct output_event ev = {.kind = OUTPUT_CALL,
                              .index = p->counts.calls++,
                              .name = strbuf_cstr(&c->name),
                              .id = strbuf_cstr(&c->id)};
    output_at_marker(p);
    p->sink(p->ctx, &ev);
    ev.kind = OUTPUT_ARGUMENTS;
    ev.text = strbuf_cstr(&c->arguments);
    ev.n = c->arguments.len;
    p->sink(p->ctx, &ev);
    ev.kind = OUTPUT_CALL_END;
    ev.text = NULL;
    ev.n = 0;
    p->sink(p->ctx, &ev);
}

static void clear_parsed(struct output_parser *p)
{
    strbuf_clear(&p->parsed.name);
    strbuf_clear(&p->parsed.id);
    strbuf_clear(&p->parsed.arguments);
}

/* Sends the call that was read with rc and *why. Returns rc; *e is for what is not ERR_FORMAT. */
static int settle_call(struct output_parser *p, int rc, const struct err *why, struct err *e)
{
    if (rc == 0)
        send_call(p);
    else if (rc != ERR_FORMAT && e)
        *e = *why;
    return rc;
}

int output_read_call(struct output_parser *p, size_t n, struct err *why, struct err *e)
{
    clear_parsed(p);
    int rc = call_parse(&p->r->calls, p->o.tools, strbuf_cstr(&p->in) + p->at, n, &p->parsed, why);
    return settle_call(p, rc, why, e);
}

void output_unfinished(struct output_parser *p)
{
    p->counts.unfinished++;
    output_note(p, "the output ended within a call");
}

/* in[at..at+n) is the body of a call, `close` what ended it. */
static int end_call(struct output_parser *p, size_t n, const struct marker *close, struct err *e)
{
    const char *s = strbuf_cstr(&p->in) + p->at;
    struct err why = {0};
    int rc = output_read_call(p, n, &why, e);
    if (rc && rc != ERR_FORMAT)
        return rc;
    p->state = p->in_section ? SECTION : p->r->calls.bare ? AFTER_TAG : TEXT;
    if (rc == 0) {
        p->tagged = p->tagged || p->r->calls.bare; /* what follows as an object is a call too */
        strbuf_clear(&p->call);
    } else {
        bool plain = p->r->calls.bare && !p->tagged; /* JSON was asked for, perhaps */
        p->counts.malformed += !plain;
        output_give_back(p, strbuf_cstr(&p->call), p->call.len);
        output_send_raw(p, OUTPUT_CONTENT, s, n);
        if (close)
            output_send_raw(p, OUTPUT_CONTENT, close->text, close->n);
        if (!plain)
            output_note(p, why.message);
        if (p->r->calls.bare)
            p->state = TEXT;
    }
    p->at += n + (close ? close->n : 0);
    return ERR_OK;
}

/* ---- within a call ---- */

/* Follows the strings of the JSON in the call up to `end` (an offset behind at). A bare call ends where its
 * object does: returns the offset behind it, else SIZE_MAX. */
static size_t follow_json(struct output_parser *p, size_t end)
{
    const char *s = strbuf_cstr(&p->in) + p->at;
    for (; p->json_at < end; p->json_at++) {
        char c = s[p->json_at];
        if (p->in_string) {
            p->broken = p->broken || (unsigned char)c < 0x20;
            if (p->escaped)
                p->escaped = false;
            else if (c == '\\')
                p->escaped = true;
            else
                p->in_string = c != '"';
            continue;
        }
        if (c == '{' || c == '[') {
            p->json_begun = true;
            p->depth++;
        } else if (p->json_begun && c == '"') {
            p->in_string = true;
        } else if (p->depth > 0 && (c == '}' || c == ']')) {
            if (--p->depth == 0 && p->r->calls.bare)
                return ++p->json_at;
        }
    }
    return SIZE_MAX;
}

/* true: something was decided. */
static bool too_long(struct output_parser *p, size_t have)
{
    if (have <= OUTPUT_MAX_CALL + 512)
        return false;
    output_give_back(p, strbuf_cstr(&p->call), p->call.len);
    output_send_raw(p, OUTPUT_CONTENT, strbuf_cstr(&p->in) + p->at, OUTPUT_MAX_CALL);
    p->counts.malformed++;
    output_note(p, "a call of more than 1 MiB");
    p->at += OUTPUT_MAX_CALL;
    p->state = p->in_section ? SECTION : TEXT;
    return true;
}

int output_step_call(struct output_parser *p, bool last, bool *more, struct err *e)
{
    size_t have = p->in.len - p->at;
    size_t limit = have < OUTPUT_MAX_CALL ? have : OUTPUT_MAX_CALL;
    *more = true;
    if (p->r->calls.bare) {
        size_t end = follow_json(p, limit);
        if (end != SIZE_MAX)
            return end_call(p, end, NULL, e);
        *more = too_long(p, have);
        return ERR_OK;
    }
    const struct marker *set[] = {&p->r->calls.close};
    bool json = call_is_json(&p->r->calls), token = set[0]->text[0] == TOKEN_OPEN;
    for (;;) {
        struct found f = output_find(p, set, 1, p->at + p->seen, last);
        size_t at = f.at - p->at;
        if (at > limit)
            break;
        p->seen = at;
        if (f.hit == NULL)
            break;
        if (json && !token)
            follow_json(p, at);
        if (!json || token || !p->in_string || p->broken)
            return end_call(p, at, f.hit, e);
        p->seen = at + 1; /* it stands within a string */
    }
    *more = too_long(p, have);
    return ERR_OK;
}

/* ---- messages with headers ---- */

static bool in_list(const struct word_list *l, const char *s, size_t n)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (strlen(l->words[i]) == n && memcmp(l->words[i], s, n) == 0)
            return true;
    return false;
}

static bool ends_word(const struct message_rules *m, const char *s, size_t n, size_t i)
{
    return i >= n || output_is_space(s[i]) || s[i] == TOKEN_OPEN || s[i] == TOKEN_CLOSE ||
           (n - i >= m->channel.n && memcmp(s + i, m->channel.text, m->channel.n) == 0) ||
           (n - i >= 2 && memcmp(s + i, "<|", 2) == 0);
}

/* ROLE [to=RECIPIENT]<|channel|>CHANNEL [to=RECIPIENT] [<|constrain|>TYPE] */
void output_read_header(struct output_parser *p)
{
    const struct message_rules *m = &p->r->messages;
    const char *s = strbuf_cstr(&p->call), *role = NULL, *channel = NULL;
    size_t n = p->call.len, role_n = 0, channel_n = 0, i = 0;
    bool after_channel = false;
    strbuf_clear(&p->recipient);
    while (i < n) {
        if (n - i >= m->channel.n && memcmp(s + i, m->channel.text, m->channel.n) == 0) {
            after_channel = true;
            i += m->channel.n;
            continue;
        }
        size_t k = i;
        while (!ends_word(m, s, n, k))
            k++;
        if (k - i > 3 && memcmp(s + i, "to=", 3) == 0) {
            strbuf_clear(&p->recipient);
            strbuf_add(&p->recipient, s + i + 3, k - i - 3);
        } else if (k > i && after_channel && !channel) {
            channel = s + i, channel_n = k - i;
        } else if (k > i && !after_channel && !role) {
            role = s + i, role_n = k - i;
        }
        i = k > i ? k : k + 1;
    }
    bool ours = role == NULL || (role_n == strlen(m->role) && memcmp(role, m->role, role_n) == 0);
    p->body_kind = OUTPUT_CONTENT;
    if (!ours) {
        p->counts.malformed++;
        output_note(p, "a message of another role than the model's");
    } else if (p->recipient.len > 0 && strcmp(strbuf_cstr(&p->recipient), m->role) != 0) {
        p->body_kind = p->o.calls ? OUTPUT_CALL : OUTPUT_CONTENT;
    } else if (channel && in_list(&m->reasoning, channel, channel_n)) {
        p->body_kind = OUTPUT_REASONING;
    } else if (channel && !in_list(&m->content, channel, channel_n)) {
        output_note(p, "a message in an unknown channel");
    }
}

/* A message to a tool is over; in[at..at+n) is its text. */
int output_end_message_call(struct output_parser *p, size_t n, bool whole, struct err *e)
{
    const char *s = strbuf_cstr(&p->in) + p->at, *name = strbuf_cstr(&p->recipient);
    const char *prefix = p->r->messages.call_prefix;
    struct err why = {0};
    if (str_starts(name, prefix))
        name += strlen(prefix);
    clear_parsed(p);
    strbuf_puts(&p->parsed.name, name);
    int rc = call_name_good(name, strlen(name)) ? call_arguments(s, n, &p->parsed.arguments, &why)
                                                : err_set(&why, ERR_FORMAT, "the message has no recipient");
    if (settle_call(p, rc, &why, e) != ERR_FORMAT)
        return rc;
    output_give_back(p, s, n);
    if (whole) {
        p->counts.malformed++;
        output_note(p, why.message);
    } else {
        output_unfinished(p);
    }
    return ERR_OK;
}
