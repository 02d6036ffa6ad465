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

#endif
