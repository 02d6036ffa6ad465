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

#include "prompt/output_impl.h"

enum state {
    AT_START, /* bare calls only: nothing but white space so far */
    TEXT,
    REASONING,
    SECTION, /* between the calls of a section */
    IN_CALL,
    AFTER_TAG, /* bare calls: behind the opening marker or another call */
    BETWEEN,   /* messages: none is open */
    HEADER,
    BODY
};

struct output_parser {
    const struct output_rules *r;
    struct output_options o;
    output_sink sink;
    void *ctx;
    enum state state;
    struct strbuf in; /* not yet decided */
    size_t at;        /* of in: where the first undecided byte is */
    size_t seen;      /* IN_CALL: bytes of in behind `at` in which no end was found */
    /* JSON in a call: where the scan of its strings stands */
    size_t json_at;
    unsigned depth;
    bool json_begun, in_string, escaped, broken;
    bool tagged;     /* the bare call had its marker */
    bool in_section; /* where a call goes back to */
    bool lead;       /* trim: white space at the beginning of what comes is layout */
    bool noted_section;
    struct strbuf space; /* trim: white space that is layout if a marker follows */
    enum output_kind space_kind;
    struct strbuf call;         /* text of the marker that opened the call, or of a header */
    enum output_kind body_kind; /* BODY: OUTPUT_CALL for a call */
    struct strbuf recipient;
    struct parsed_call parsed;
    struct strbuf shown;
    struct output_counts counts;
};

/* ---- events ---- */

static void send(struct output_parser *p, enum output_kind kind, const char *s, size_t n)
{
    if (n > 0)
        p->sink(p->ctx, &(struct output_event){.kind = kind, .text = s, .n = n});
}

/* Token bytes are taken off: the name of the token stays. */
static void send_raw(struct output_parser *p, enum output_kind kind, const char *s, size_t n)
{
    strbuf_clear(&p->shown);
    for (size_t i = 0; i < n; i++)
        if (s[i] != TOKEN_OPEN && s[i] != TOKEN_CLOSE)
            strbuf_putc(&p->shown, s[i]);
    send(p, kind, strbuf_cstr(&p->shown), p->shown.len);
}

static void note(struct output_parser *p, const char *why)
{
    send(p, OUTPUT_NOTE, why, strlen(why));
}

static void flush_space(struct output_parser *p)
{
    send(p, p->space_kind, strbuf_cstr(&p->space), p->space.len);
    strbuf_clear(&p->space);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Text of the answer or of the reasoning, perhaps with white space at its edges that is layout. */
static void give(struct output_parser *p, enum output_kind kind, const char *s, size_t n)
{
    if (!p->r->trim) {
        send_raw(p, kind, s, n);
        return;
    }
    while (p->lead && n > 0 && is_space(*s))
        s++, n--;
    if (n == 0)
        return;
    p->lead = false;
    size_t solid = n;
    while (solid > 0 && is_space(s[solid - 1]))
        solid--;
    if (solid > 0) {
        flush_space(p);
        send_raw(p, kind, s, solid);
    }
    strbuf_add(&p->space, s + solid, n - solid);
    p->space_kind = kind;
}

/* What looked like more than text, as text. */
static void give_back(struct output_parser *p, const char *s, size_t n)
{
    flush_space(p);
    send_raw(p, OUTPUT_CONTENT, s, n);
    p->lead = false;
}

static void at_marker(struct output_parser *p)
{
    strbuf_clear(&p->space);
    p->lead = p->r->trim;
}

/* ---- markers ---- */

struct found {
    size_t at;                /* of in; where the undecided part begins if !marker */
    const struct marker *hit; /* NULL: none yet */
};

static void look_for(const struct marker **set, uint32_t *n, const struct marker *m)
{
    if (m->n > 0 && *n < OUTPUT_MAX_MARKERS)
        set[(*n)++] = m;
}

/* The first place from `from` on where one of the set stands, or, not at the end, could still come to stand.
 */
static struct found find(const struct output_parser *p, const struct marker *const *set, uint32_t n,
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

static uint32_t markers_of(const struct output_parser *p, const struct marker **set)
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
static void begin_call(struct output_parser *p)
{
    p->state = IN_CALL;
    p->seen = p->json_at = 0;
    p->depth = 0;
    p->json_begun = p->in_string = p->escaped = p->broken = false;
}

static void keep_opening(struct output_parser *p, const struct marker *m)
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
    at_marker(p);
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

/* in[at..at+n) is the body of a call, `close` what ended it. */
static int end_call(struct output_parser *p, size_t n, const struct marker *close, struct err *e)
{
    const char *s = strbuf_cstr(&p->in) + p->at;
    struct err why = {0};
    clear_parsed(p);
    int rc = call_parse(&p->r->calls, p->o.tools, s, n, &p->parsed, &why);
    if (rc && rc != ERR_FORMAT) {
        if (e)
            *e = why;
        return rc;
    }
    p->state = p->in_section ? SECTION : p->r->calls.bare ? AFTER_TAG : TEXT;
    if (rc == 0) {
        send_call(p);
        p->tagged = p->tagged || p->r->calls.bare; /* what follows as an object is a call too */
        strbuf_clear(&p->call);
    } else {
        bool plain = p->r->calls.bare && !p->tagged; /* JSON was asked for, perhaps */
        p->counts.malformed += !plain;
        give_back(p, strbuf_cstr(&p->call), p->call.len);
        send_raw(p, OUTPUT_CONTENT, s, n);
        if (close)
            send_raw(p, OUTPUT_CONTENT, close->text, close->n);
        if (!plain)
            note(p, why.message);
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
    give_back(p, strbuf_cstr(&p->call), p->call.len);
    send_raw(p, OUTPUT_CONTENT, strbuf_cstr(&p->in) + p->at, OUTPUT_MAX_CALL);
    p->counts.malformed++;
    note(p, "a call of more than 1 MiB");
    p->at += OUTPUT_MAX_CALL;
    p->state = p->in_section ? SECTION : TEXT;
    return true;
}

static int step_call(struct output_parser *p, bool last, bool *more, struct err *e)
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
        struct found f = find(p, set, 1, p->at + p->seen, last);
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
    return i >= n || is_space(s[i]) || s[i] == TOKEN_OPEN || s[i] == TOKEN_CLOSE ||
           (n - i >= m->channel.n && memcmp(s + i, m->channel.text, m->channel.n) == 0) ||
           (n - i >= 2 && memcmp(s + i, "<|", 2) == 0);
}

/* ROLE [to=RECIPIENT]<|channel|>CHANNEL [to=RECIPIENT] [<|constrain|>TYPE] */
static void read_header(struct output_parser *p)
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
        note(p, "a message of another role than the model's");
    } else if (p->recipient.len > 0 && strcmp(strbuf_cstr(&p->recipient), m->role) != 0) {
        p->body_kind = p->o.calls ? OUTPUT_CALL : OUTPUT_CONTENT;
    } else if (channel && in_list(&m->reasoning, channel, channel_n)) {
        p->body_kind = OUTPUT_REASONING;
    } else if (channel && !in_list(&m->content, channel, channel_n)) {
        note(p, "a message in an unknown channel");
    }
}

/* A message to a tool is over; in[at..at+n) is its text. */
static int end_message_call(struct output_parser *p, size_t n, bool whole, struct err *e)
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
    if (rc == 0) {
        send_call(p);
        return ERR_OK;
    }
    if (rc != ERR_FORMAT) {
        if (e)
            *e = why;
        return rc;
    }
    give_back(p, s, n);
    if (whole) {
        p->counts.malformed++;
        note(p, why.message);
    } else {
        p->counts.unfinished++;
        note(p, "the output ended within a call");
    }
    return ERR_OK;
}

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
    while (!p->noted_section && n > 0 && is_space(*s))
        s++, n--;
    if (n == 0)
        return;
    if (!p->noted_section) {
        p->counts.malformed++;
        note(p, "text stands between calls or messages");
    }
    p->noted_section = true;
    give_back(p, s, n);
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
        read_header(p);
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
        at_marker(p);
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
        keep_opening(p, m);
    } else if (m == &r->calls.open) {
        keep_opening(p, m);
        begin_call(p);
    } else if (r->has_messages) {
        in_message(p, m);
    } else { /* skipped */
        at_marker(p);
    }
}

/* AT_START and AFTER_TAG: a { begins a call, anything else is text. */
static bool step_bare(struct output_parser *p, bool last)
{
    const char *s = strbuf_cstr(&p->in);
    size_t i = p->at;
    while (i < p->in.len && (is_space(s[i]) || (p->state == AFTER_TAG && s[i] == ';')))
        i++;
    if (i == p->in.len && !last)
        return false;
    if (i < p->in.len && s[i] == '{') {
        strbuf_add(&p->call, s + p->at, i - p->at);
        p->at = i;
        begin_call(p);
        return true;
    }
    if (p->state == AFTER_TAG && p->call.len > 0) { /* a marker and no call behind it */
        p->counts.malformed++;
        give_back(p, strbuf_cstr(&p->call), p->call.len);
        note(p, "no call follows the marker");
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
        read_header(p);
        return;
    }
    p->counts.malformed++;
    give_back(p, strbuf_cstr(&p->call), p->call.len);
    note(p, "a header without a message");
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
        note(p, "a call of more than 1 MiB");
        p->body_kind = OUTPUT_CONTENT;
        *more = true;
        return ERR_OK;
    }
    if (f.hit == NULL)
        return ERR_OK;
    int rc = end_message_call(p, have, true, e);
    p->at = f.at + f.hit->n;
    in_message(p, f.hit);
    return rc;
}

static bool step_beginning(struct output_parser *p, bool last)
{
    const struct marker *set[OUTPUT_MAX_MARKERS];
    const char *s = strbuf_cstr(&p->in);
    size_t i = p->at;
    while (i < p->in.len && is_space(s[i]))
        i++;
    struct found f = find(p, set, markers_of(p, set), i, last);
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
        return step_call(p, last, more, e);
    if (p->state == AT_START || p->state == AFTER_TAG) {
        *more = step_beginning(p, last);
        return ERR_OK;
    }
    bool held_call = p->state == BODY && p->body_kind == OUTPUT_CALL;
    struct found f = find(p, set, markers_of(p, set), p->at + (held_call ? p->seen : 0), last);
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
        give(p, text_kind(p), s, n);
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
    while (trim && n > 0 && is_space(o->prompt[n - 1]))
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

static void unfinished(struct output_parser *p)
{
    p->counts.unfinished++;
    note(p, "the output ended within a call");
}

/* What the end finds open. */
static int finish_open(struct output_parser *p, bool stopped, struct err *e)
{
    size_t left = p->in.len - p->at;
    if (p->state == IN_CALL && call_is_json(&p->r->calls)) {
        struct err why = {0};
        clear_parsed(p);
        int rc = call_parse(&p->r->calls, p->o.tools, strbuf_cstr(&p->in) + p->at, left, &p->parsed, &why);
        if (rc == 0) {
            send_call(p);
            return ERR_OK;
        }
        if (rc != ERR_FORMAT) {
            if (e)
                *e = why;
            return rc;
        }
    }
    if (p->state == IN_CALL) {
        give_back(p, strbuf_cstr(&p->call), p->call.len);
        send_raw(p, OUTPUT_CONTENT, strbuf_cstr(&p->in) + p->at, left);
        unfinished(p);
    } else if (p->state == BODY && p->body_kind == OUTPUT_CALL) {
        return end_message_call(p, left, stopped, e);
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
        flush_space(p);
    return rc;
}

const struct output_counts *output_counts(const struct output_parser *p)
{
    return &p->counts;
}
