/* SPDX-License-Identifier: Apache-2.0
 *
 * The text front of a model: tokenizer, special ids and chat templates of one directory. Turns messages or
 * text into ids, once and only once with BOS. A model is rendered by its chat template, by the chat function
 * of its architecture file where no template works, or plainly (message contents joined by newlines), and
 * says so; a template that cannot be rendered is refused where there is no function, never approximated.
 * Pictures of a conversation: which tokens stand for them, by rules of the architecture file, and what the
 * tower is given. Also reads what a model writes: reasoning, text, tool calls.
 */
#ifndef PROMPT_PROMPT_H
#define PROMPT_PROMPT_H

#include "base/finding.h"
#include "image/image.h"
#include "spec/spec.h"
#include "text/text.h"

struct prompt_front {
    struct tokenizer *tokenizer;
    const struct spec *spec;
    const char *model_name; /* last component of the directory */
    int32_t stop_ids[20];   /* union of spec's eos and the tokenizer's */
    uint32_t n_stop;
    uint32_t vocab_limit;              /* ids from here on cannot be sampled: no token has them; 0 none */
    bool has_template;                 /* a chat template exists */
    bool template_works;               /* and is understood */
    const char *template_kind;         /* "chat function of NAME.lua", "none (plain)", "jinja", or "jinja (not
                                          understood)" */
    struct output_rules *output;       /* how to read what the model writes; NULL: all of it is text */
    struct prompt_template *templates; /* by name; the first is the default one */
    uint32_t n_templates;
    const char *template_text;      /* of the first one read, understood or not; NULL: none */
    struct err template_error;      /* where there is one and it is not understood */
    const struct json *token_names; /* object: bos_token and the like -> text, for templates */
    int32_t media_ids[8];           /* what pictures, videos and sound become in a prompt */
    uint32_t n_media;
    struct prompt_eyes *eyes; /* how it takes pictures; NULL: not at all */
    int32_t bos_id;           /* -1 none */
    bool force_bos;           /* tokenizer_config.json asks for a BOS that tokenizer.json does not add */
    struct arena arena;
};

#define PROMPT_MAX_MESSAGES 4096

struct prompt_template {
    const char *name; /* "default", "tool_use", ... */
    struct jinja_template *jinja;
};

/* A conversation as chat/completions has it. */
struct prompt_chat {
    const struct json *messages;
    const struct json *tools;     /* array, or NULL */
    const struct json *variables; /* object: further variables (chat_template_kwargs), or NULL */
    const char *tool_choice, *reasoning_effort; /* or NULL */
    bool no_generation_prompt;                  /* add_generation_prompt: false */
    bool parse_special; /* special tokens in messages become ids, as transformers does; not with a function */
    bool media;         /* parts that are not text are allowed: the template says what they become */
    const struct prompt_pictures *pictures; /* of these messages: placeholders stand for them; or NULL */
    int64_t now;                            /* Unix seconds, for today's date; 0: the clock; negative: none */
};

/* Findings T001..T003 for what is wrong with the tokenizer: then *out is NULL and the return ERR_OK. */
int prompt_open(struct prompt_front **out, struct ckpt *c, const struct spec *s, struct findings *f,
                struct d0 *d0, struct err *e);
void prompt_close(struct prompt_front *p);

/* Special tokens in the text become ids. A BOS written at its beginning counts as the one BOS. ERR_FORMAT: no
 * UTF-8; ERR_LIMIT. */
int prompt_text(const struct prompt_front *p, const char *text, size_t n, struct ids *out, struct err *e);
/* The conversation as text and ids. By the model's template (by the architecture file's chat function where
 * no template works): tools choose the one named tool_use where there is one; the template writes BOS itself,
 * the tokenizer adds nothing. Without a template: contents joined by newlines, and only role, content and
 * name are allowed. Special tokens within what messages, tools and variables say stay text, however the
 * template cuts and joins it: who writes a message does not end it (parse_special: not so). ERR_INVALID names
 * what is wrong with a message, or what the template says; ERR_UNSUPPORTED: parts, or templates, that this
 * build does not render; ERR_LIMIT. Either of rendered and out may be NULL. */
int prompt_chat(const struct prompt_front *p, const struct prompt_chat *c, struct strbuf *rendered,
                struct ids *out, struct err *e);
/* By the architecture file's chat function: a list of {"text", "special"}, checked; in the arena. ERR_FORMAT:
 * the function refused or failed; ERR_INVALID, ERR_LIMIT. */
int prompt_segments(const struct spec *s, const struct prompt_chat *q, struct arena *arena,
                    const struct json **segments, struct err *e);
/* The same as ids and as text; either may be NULL. ERR_UNSUPPORTED: a special token that the tokenizer lacks.
 */
int prompt_by_function(const struct prompt_front *p, const struct prompt_chat *q, struct strbuf *rendered,
                       struct ids *out, struct err *e);
/* prompt_chat() of messages alone, with a generation prompt. */
int prompt_messages(const struct prompt_front *p, const struct json *messages, struct strbuf *rendered,
                    struct ids *out, struct err *e);

/* ---- pictures ----
 *
 * In turn: prompt_pictures_read (sizes only: every refusal comes early), prompt_chat with .pictures,
 * prompt_lay_pictures; and prompt_picture_make for each, on any thread.
 */

/* Bytes of a picture that is named other than by a data: URL: a URL, or a path. They must live as long as the
 * arena. ERR_UNSUPPORTED: this caller fetches no such thing. */
typedef int (*prompt_fetch)(void *ctx, const char *where, struct arena *arena, const void **bytes, size_t *n,
                            struct err *e);

#define PROMPT_MAX_PICTURES 256

struct prompt_picture_options {
    prompt_fetch fetch; /* NULL: data: URLs only */
    void *ctx;
    uint32_t max_pictures; /* 0: PROMPT_MAX_PICTURES */
    size_t max_bytes;      /* of one file; 0: 64 MiB */
    struct image_limits image;
    uint32_t width, height; /* not 0: no bytes are asked for, every picture counts as one of this size */
};

struct prompt_picture {
    uint32_t message, part; /* where it stands */
    const void *bytes;      /* the file, n bytes; needed until prompt_picture_make */
    size_t n;
    struct image_info info;
    struct image_plan plan;
    struct image_grid *grids; /* [n_grids] as the tower is given them: one, or one for each tile */
    uint32_t n_grids;
    uint64_t n_patches; /* rows of the tower, class rows too; 0: the model has no graph of its tower */
    uint32_t n_rows;    /* rows of features: so many tokens stand for it */
    size_t first;       /* by prompt_lay_pictures: token that takes its first row */
};

struct prompt_pictures {
    const struct json *messages; /* as a template gets them: each picture is {"type": "image"} */
    struct prompt_picture *list;
    uint32_t n;
};

/* The pictures of a conversation, in order: parts {"type": "image_url", "image_url": {"url": ...}} and
 * {"type": "image", "image" or "path" or "url": ..., or "base64": ...}. Reads headers, decodes nothing.
 * Everything in the arena. ERR_INVALID names the part and what is wrong with it; ERR_UNSUPPORTED: the model
 * takes no pictures, or not this one; ERR_FORMAT: a damaged header; ERR_LIMIT. */
int prompt_pictures_read(const struct prompt_front *p, const struct json *messages,
                         const struct prompt_picture_options *o, struct arena *arena,
                         struct prompt_pictures *out, struct err *e);

/* Where the tokens of a prompt with pictures stand. */
struct prompt_layout {
    size_t n;
    int32_t *places;     /* [n, 3] time, height, width; all three the token's number where the model does not
                            turn by them */
    int32_t *feature_of; /* [n] row among those of all pictures of the prompt, or -1 */
    int32_t *spans;      /* [n, 2] first token and the one behind the last that a token sees both ways;
                            NULL: no picture is seen so */
    int32_t place_delta; /* a generated token at position p has place p + place_delta */
};

/* From the ids that prompt_chat() gave; sets `first` of each picture. In the arena. ERR_MISMATCH names both
 * numbers: tokens that stand for pictures, and rows that there are. */
int prompt_lay_pictures(const struct prompt_front *p, const struct prompt_pictures *pictures,
                        const int32_t *ids, size_t n, struct arena *arena, struct prompt_layout *out,
                        struct err *e);

/* One input of the tower: `rows` rows of `width` numbers, float32 or int32 as the role (enum d0_input_role)
 * has it. */
struct prompt_input {
    uint32_t role;
    uint32_t width;
    size_t rows;
    const void *data;
};
#define PROMPT_MAX_INPUTS 12

struct prompt_pixels {
    uint8_t key[32]; /* SHA-256 of pixels, sizes and whatever of the processor changes what becomes of them */
    size_t n_patches; /* T: rows of the tower, class rows too; 0: the model has no graph of its tower */
    uint32_t n_rows;  /* R: rows that leave it */
    uint32_t n_inputs;
    struct prompt_input inputs[PROMPT_MAX_INPUTS]; /* exactly those that spec->vision has */
    uint64_t decode_ns, process_ns;
};

/* What its inputs are made by. */
struct image_tower prompt_tower(const struct spec_tower *w);

/* Decodes and processes one picture into the arena. Touches nothing else: any number of threads may, each
 * with an arena of its own. ERR_FORMAT (damaged), ERR_UNSUPPORTED, ERR_LIMIT, ERR_NOMEM. */
int prompt_picture_make(const struct prompt_front *p, const struct prompt_picture *picture,
                        const struct image_limits *limits, struct arena *arena, struct prompt_pixels *out,
                        struct err *e);

/* Memory that prompt_picture_make takes while it works, at most, from header and plan alone; what it leaves
 * in the arena is part of it. UINT64_MAX: more than can be said. */
uint64_t prompt_picture_bytes(const struct prompt_front *p, const struct prompt_picture *picture);

/* The message that an engine's tower of this shape takes, malloc'ed: free(*out). ERR_MISMATCH: an input of
 * the tower is not there, or of another size. ERR_LIMIT, ERR_NOMEM. */
struct picture_shape;
struct picture_plan;
int prompt_picture_message(const struct prompt_pixels *pixels, const struct picture_shape *shape,
                           struct picture_plan **out, size_t *bytes, struct err *e);

/* The image processor of the directory, as long as the front lives; NULL: none, or refused. */
const struct image_processor *prompt_processor(const struct prompt_front *p);
/* The token that takes a row of a picture, as the tokenizer has it, whatever config.json says; -1: none. */
int32_t prompt_picture_token(const struct prompt_front *p);
/* The same by another processor that plans the same sizes, and with red and blue exchanged: what somebody
 * makes who has them wrong. */
int prompt_picture_make_by(const struct prompt_front *p, const struct prompt_picture *picture,
                           const struct image_processor *by, bool bgr, const struct image_limits *limits,
                           struct arena *arena, struct prompt_pixels *out, struct err *e);

/* Findings I001 to I003: what keeps a model whose architecture file has rules for pictures from taking any.
 */
int prompt_check_pictures(const struct prompt_front *p, struct findings *f, struct err *e);

/* Where the tokens stand whose runs are whole pictures: places [n, 3], time, height and width, and the row of
 * the tower's output that each takes, feature_of [n], -1 for text. A run of placeholders is one picture,
 * whose grid of patches comes next. Text counts up in all three; a picture begins where the text before it
 * ended, and the text behind it goes on after its longer side. ERR_MISMATCH: runs, their lengths and the
 * grids do not agree. ERR_UNSUPPORTED: the model's placeholder is not known. */
int prompt_places(const struct spec_tower *tower, const int32_t *ids, size_t n,
                  const struct image_grid *grids, size_t n_grids, int32_t *places, int32_t *feature_of,
                  struct err *e);

/* ---- what a model writes: reasoning, text and tool calls ---- */

struct output_rules;
/* From `output` of an architecture file (docs/arch-files.md): one table, or the first of a list that suits
 * the tokenizer and the template. Tokens that `t` has are known by id; with t NULL all markers are text. *out
 * NULL: none suits. Lives in the arena. ERR_FORMAT names what is wrong. */
int output_rules_compile(struct output_rules **out, const struct json *rules, const struct tokenizer *t,
                         const char *template_text, struct arena *arena, struct err *e);
const char *output_rules_name(const struct output_rules *r); /* "none" for NULL */

enum output_kind {
    OUTPUT_CONTENT,
    OUTPUT_REASONING,
    OUTPUT_CALL,      /* a call begins: name, id (may be empty: it has none), index */
    OUTPUT_ARGUMENTS, /* text: JSON of an object, or a piece of it */
    OUTPUT_CALL_END,
    OUTPUT_NOTE /* text: why something was passed on as text; for people */
};
struct output_event {
    enum output_kind kind;
    uint32_t index; /* of the call */
    const char *text;
    size_t n;
    const char *name, *id;
};
typedef void (*output_sink)(void *ctx, const struct output_event *ev); /* pointers hold during the call */

struct output_options {
    bool calls;               /* the request offers tools: calls are looked for */
    const struct json *tools; /* the request's; types of arguments that are not marked. May be NULL */
    const char *prompt;       /* the rendered prompt, or its end: it may have opened the reasoning */
    size_t n_prompt;
};
struct output_counts {
    uint32_t calls, malformed, unfinished;
};

struct output_parser;
/* tools must live as long as the parser. ERR_NOMEM. */
int output_open(struct output_parser **out, const struct output_rules *r, const struct output_options *o,
                output_sink sink, void *ctx, struct err *e);
void output_close(struct output_parser *p);
/* Text as it is decoded, cut anywhere: the events do not depend on the cuts, but for how texts are cut.
 * ERR_NOMEM: the parser is of no more use. */
int output_text(struct output_parser *p, const char *text, size_t n, struct err *e);
bool output_is_marker(const struct output_parser *p, int32_t id); /* to be fed as a token, not as text */
int output_marker(struct output_parser *p, int32_t id, struct err *e);
/* The end. stopped: by the model's end token, not by a limit. */
int output_finish(struct output_parser *p, bool stopped, struct err *e);
const struct output_counts *output_counts(const struct output_parser *p);

#endif
