/* SPDX-License-Identifier: Apache-2.0
 *
 * The text front of a model: tokenizer, special ids and chat templates of one directory. Turns messages or
 * text into ids, once and only once with BOS. Models without a chat template are rendered plainly (message
 * contents joined by newlines) and say so; a template that cannot be rendered is refused, never approximated.
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
    const char *template_kind;         /* "none (plain)", "jinja", or "jinja (not understood)" */
    struct prompt_template *templates; /* by name; the first is the default one */
    uint32_t n_templates;
    struct err template_error;      /* where there is one and it is not understood */
    const struct json *token_names; /* object: bos_token and the like -> text, for templates */
    int32_t media_ids[8];           /* what pictures, videos and sound become in a prompt */
    uint32_t n_media;
    int32_t bos_id; /* -1 none */
    bool force_bos; /* tokenizer_config.json asks for a BOS that tokenizer.json does not add */
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
    const struct json *tools; /* array, or NULL */
    const struct json
        *variables;            /* object: further variables of the template (chat_template_kwargs), or NULL */
    bool no_generation_prompt; /* add_generation_prompt: false */
    bool parse_special;        /* special tokens in messages become ids, as transformers does */
    bool media;                /* parts that are not text are allowed: the template says what they become */
    int64_t now;               /* for strftime_now; 0: the clock */
};

/* Findings T001..T003 for what is wrong with the tokenizer: then *out is NULL and the return ERR_OK. */
int prompt_open(struct prompt_front **out, struct ckpt *c, const struct spec *s, struct findings *f,
                struct d0 *d0, struct err *e);
void prompt_close(struct prompt_front *p);

/* Special tokens in the text become ids. A BOS written at its beginning counts as the one BOS. ERR_FORMAT: no
 * UTF-8; ERR_LIMIT. */
int prompt_text(const struct prompt_front *p, const char *text, size_t n, struct ids *out, struct err *e);
/* The conversation as text and ids. By the model's template: tools choose the one named tool_use where there
 * is one; the template writes BOS itself, the tokenizer adds nothing. Without a template: contents joined by
 * newlines, and only role, content and name are allowed. Special tokens within what messages, tools and
 * variables say stay text, however the template cuts and joins it: who writes a message does not end it
 * (parse_special: not so). ERR_INVALID names what is wrong with a message, or what the template says;
 * ERR_UNSUPPORTED: parts, or templates, that this build does not render; ERR_LIMIT. Either of rendered and
 * out may be NULL. */
int prompt_chat(const struct prompt_front *p, const struct prompt_chat *c, struct strbuf *rendered,
                struct ids *out, struct err *e);
/* The same for messages alone, with a generation prompt. */
int prompt_messages(const struct prompt_front *p, const struct json *messages, struct strbuf *rendered,
                    struct ids *out, struct err *e);

/* Where the tokens of a prompt with pictures stand: places [n, 3], time, height and width, and the row of the
 * tower's output that each takes, feature_of [n], -1 for text. A run of placeholders is one picture, whose
 * grid of patches comes next. Text counts up in all three; a picture begins where the text before it ended,
 * and the text behind it goes on after its longer side. ERR_MISMATCH: runs, their lengths and the grids do
 * not agree. ERR_UNSUPPORTED: the model's placeholder is not known. */
int prompt_places(const struct spec_tower *tower, const int32_t *ids, size_t n,
                  const struct image_grid *grids, size_t n_grids, int32_t *places, int32_t *feature_of,
                  struct err *e);

#endif
