/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of this room: prompt.c opens a directory, prompt_template.c finds its chat templates, prompt_chat.c
 * renders conversations, chat.c prepares them and does so by the architecture file's function.
 */
#ifndef PROMPT_PROMPT_IMPL_H
#define PROMPT_PROMPT_IMPL_H

#include "prompt/prompt.h"

/* Fills the template_* members, token_names and media_ids. config: tokenizer_config.json, or NULL. A template
 * that is not understood is no error here: messages are refused later, with its reason. */
int templates_read(struct prompt_front *p, struct ckpt *c, const struct json *config, struct err *e);

/* The messages (objects all) with the arguments of tool calls that are text of a JSON object as that object;
 * keep_text: that text beside it as arguments_text. *out: in arena, or the messages themselves. */
int prompt_objects(const struct json *messages, bool keep_text, struct arena *arena, const struct json **out,
                   struct err *e);

/* Appends the ids with exactly one BOS in front where the model has one. */
int encode_once(const struct prompt_front *p, const char *text, size_t n, unsigned flags, struct ids *out,
                struct err *e);

/* A side file of the directory as JSON, in the front's arena; *out NULL where it is absent or cannot be read.
 * damaged (may be NULL): set where it is there and cannot be read. ERR_NOMEM. */
int front_json(struct prompt_front *p, struct ckpt *c, const char *name, const struct json **out,
               struct err *damaged, struct err *e);

/* Messages by the template: text, and what of it came from messages. */
int chat_render(const struct prompt_front *p, const struct prompt_chat *c, struct jinja_output *out,
                struct err *e);

void front_add_media(struct prompt_front *p, int64_t id); /* to media_ids; -1: none */

/* ---- pictures ---- */

/* A part of type text that names a picture, a video or sound besides, which would silently be left out:
 * ERR_INVALID. */
int text_part_check(const struct json *part, uint32_t message, uint32_t number, struct err *e);

/* `placeholders` of an architecture file; texts live as long as the description. */
struct placeholder_rules {
    const char *marker; /* what a template writes for a picture */
    const char *token;  /* takes one row of features */
    const char *picture;
    const char *line, *last_line;                    /* behind each row of tokens; or NULL */
    const char *first, *tile, *between, *row, *last; /* of a picture in tiles; tile NULL: as any other */
    bool by_grid;                                    /* places count down and across */
    bool both_ways;                                  /* the tokens of a run see each other */
};

struct prompt_eyes {
    struct placeholder_rules rules;
    int32_t token_id; /* -1: the tokenizer lacks it */
    struct image_processor processor;
    struct err refused; /* code 0: the processor is known */
};

/* *found: a rule applies. ERR_FORMAT names what is wrong with them. */
int placeholders_compile(const struct prompt_front *p, bool *found, struct placeholder_rules *out,
                         struct err *e);
/* Appends what stands for one picture. ERR_MISMATCH: other than n_rows tokens. */
int placeholders_write(const struct prompt_front *p, const struct prompt_picture *m, struct strbuf *out,
                       struct err *e);
/* In a rendering, each marker becomes what stands for its picture. trust: also those within messages.
 * ERR_MISMATCH: other numbers of markers and pictures. */
int placeholders_replace(const struct prompt_front *p, const struct prompt_pictures *pictures, bool trust,
                         struct jinja_output *r, struct err *e);
uint32_t placeholders_count(const struct prompt_front *p, const struct jinja_output *r);

/* Fills p->eyes. A rule that is wrong is finding C007, and *bad. */
int eyes_open(struct prompt_front *p, struct ckpt *c, struct findings *f, bool *bad, struct err *e);

#endif
