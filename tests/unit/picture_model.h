/* SPDX-License-Identifier: Apache-2.0
 *
 * A small model that takes pictures, and pictures for it: a random Qwen3-VL-MoE whose tokenizer is that of
 * tiny_tokenizer.h with the tokens of pictures behind it, and PNG files as data: URLs.
 */
#ifndef TESTS_PICTURE_MODEL_H
#define TESTS_PICTURE_MODEL_H

#include <stdint.h>

#include "base/str.h"

#define PICTURE_TOKEN 302
#define PICTURE_SIDE  8  /* pixels of a side for one row of features: two patches of 4 */
#define PICTURE_MOST  64 /* pixels of a side: larger ones are shrunk to about that area */

/* config.json, weights, tokenizer.json, chat_template.jinja, preprocessor_config.json. Fails the test. */
void picture_model_write(const char *dir);
void picture_model_remove(const char *dir);

/* A PNG of coloured noise, a function of (width, height, seed): its bytes into *out. */
void picture_png(struct strbuf *out, uint32_t width, uint32_t height, uint64_t seed);
void picture_base64(struct strbuf *out, const void *bytes, size_t n);
/* {"type":"image_url","image_url":{"url":"data:..."}} of such a PNG. */
void picture_part(struct strbuf *out, uint32_t width, uint32_t height, uint64_t seed);

#endif
