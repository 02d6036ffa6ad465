/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to src/prompt: the compiled form of the rules by which a model's output is read, and the bytes in
 * which text and marker tokens travel through the parser.
 *
 * A token that the rules name and that the tokenizer has travels as TOKEN_OPEN name TOKEN_CLOSE: bytes that
 * no UTF-8 has, so text that merely looks like a marker never is one.
 */
#ifndef PROMPT_OUTPUT_IMPL_H
#define PROMPT_OUTPUT_IMPL_H

#include "prompt/prompt.h"

#define TOKEN_OPEN  '\xff'
#define TOKEN_CLOSE '\xfe'

#define OUTPUT_MAX_TOKENS  32
#define OUTPUT_MAX_MARKERS 12 /* of one state */
#define OUTPUT_MAX_PARTS   24 /* of one pattern */
#define OUTPUT_MAX_BODIES  4
#define OUTPUT_MAX_CALL    (1u << 20) /* bytes of one call; more is passed on as text */
#define OUTPUT_MAX_HEADER  4096
#define OUTPUT_MAX_NAME    256

struct marker {
    const char *text; /* NULL: none */
    uint32_t n;
};

enum part_kind {
    PART_TEXT,  /* literally */
    PART_SPACE, /* $_: any white space */
    PART_NAME,
    PART_ID, /* $id: the name stands in it */
    PART_JSON,
    PART_CALL, /* $call: a JSON object with name and arguments */
    PART_ARGS, /* $args: any number of `argument` */
    PART_KEY,
    PART_TYPE,   /* $type: the JSON type of the value */
    PART_STRING, /* $string: "true" if the value is a string */
    PART_VALUE,
    PART_SKIP /* $skip: anything */
};

struct pattern {
    uint32_t n; /* 0: none */
    struct pattern_part {
        enum part_kind kind;
        struct marker text; /* TEXT */
    } parts[OUTPUT_MAX_PARTS];
};

struct call_rules {
    struct marker section_open, section_close; /* around all calls of an answer; perhaps none */
    struct marker open, close;                 /* around one call */
    bool bare;                                 /* an answer that begins with { may be a call */
    bool unescape;                             /* names and keys hold &quot; and &amp; */
    bool trim_newline;                         /* one line end at each end of a value is layout */
    struct marker id_prefix;
    struct pattern bodies[OUTPUT_MAX_BODIES]; /* the first that matches */
    uint32_t n_bodies;
    struct pattern argument;
};

struct word_list {
    const char *words[8];
    uint32_t n;
};

/* Answers that are a row of messages with headers. */
struct message_rules {
    struct marker start, channel, body, ends[4];
    uint32_t n_ends;
    const char *role, *call_prefix;
    struct word_list reasoning, content; /* channels */
};

struct output_rules {
    const char *name;
    struct output_token {
        int32_t id;
        struct marker mark; /* as it travels */
    } tokens[OUTPUT_MAX_TOKENS];
    uint32_t n_tokens;
    bool has_reasoning, has_calls, has_messages;
    bool calls_end_reasoning;
    bool trim; /* white space beside markers is layout */
    struct marker think_open, think_close;
    struct marker skip[8]; /* markers that stand for nothing */
    uint32_t n_skip;
    struct call_rules calls;
    struct message_rules messages;
};

struct parsed_call {
    struct strbuf name, id, arguments; /* arguments: JSON text of an object */
};

/* One call from what stood between its markers. ERR_FORMAT with the reason: it is none; ERR_NOMEM. */
int call_parse(const struct call_rules *r, const struct json *tools, const char *body, size_t n,
               struct parsed_call *out, struct err *e);
/* Arguments that stand alone: a JSON object. */
int call_arguments(const char *text, size_t n, struct strbuf *out, struct err *e);
bool call_name_good(const char *s, size_t n);
/* A call of such rules is whole as soon as its JSON is, also without a marker behind it. */
bool call_is_json(const struct call_rules *r);
void trim_space(const char **s, size_t *n);

#endif
