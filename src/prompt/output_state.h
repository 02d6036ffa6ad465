/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to output_parser.c (the steps) and output_events.c (what they do): the parser's state.
 */
#ifndef PROMPT_OUTPUT_STATE_H
#define PROMPT_OUTPUT_STATE_H

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

struct found {
    size_t at;                /* of in; where the undecided part begins if !marker */
    const struct marker *hit; /* NULL: none yet */
};

/* Events. send_raw: as it is, markers by their names; give: white space at the edges that may be layout is
 * held. */
void output_send_raw(struct output_parser *p, enum output_kind kind, const char *s, size_t n);
void output_give(struct output_parser *p, enum output_kind kind, const char *s, size_t n);
void output_flush_space(struct output_parser *p);
void output_at_marker(struct output_parser *p);
bool output_is_space(char c);
/* Why something came out as text. */
void output_note(struct output_parser *p, const char *why);
/* Undecided bytes that turned out to be text of the state around. */
void output_give_back(struct output_parser *p, const char *s, size_t n);

/* Markers that the state looks for, at most OUTPUT_MAX_MARKERS; the first place from `from` on where one of
 * them stands or, not at the end, could still come to stand. */
uint32_t output_markers_of(const struct output_parser *p, const struct marker **set);
struct found output_find(const struct output_parser *p, const struct marker *const *set, uint32_t n,
                         size_t from, bool last);

/* Calls. step_call: one step within one, *more: there is something left to decide. read_call: in[at..at+n) is
 * the body of one, which is sent; ERR_FORMAT: it is none, *why says so and *e nothing. unfinished: counts a
 * call that the end of the output cut, and says so. */
void output_begin_call(struct output_parser *p);
void output_keep_opening(struct output_parser *p, const struct marker *m);
int output_step_call(struct output_parser *p, bool last, bool *more, struct err *e);
int output_read_call(struct output_parser *p, size_t n, struct err *why, struct err *e);
void output_unfinished(struct output_parser *p);
/* Messages with headers. end_message_call: the body of n bytes was a call's. */
void output_read_header(struct output_parser *p);
int output_end_message_call(struct output_parser *p, size_t n, bool whole, struct err *e);

#endif
