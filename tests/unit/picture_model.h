/* SPDX-License-Identifier: Apache-2.0
 *
 * Small models that take pictures, and pictures for them: random ones whose tokenizer is that of
 * tiny_tokenizer.h with the tokens of pictures behind it, and PNG files as data: URLs.
 */
#ifndef TESTS_PICTURE_MODEL_H
#define TESTS_PICTURE_MODEL_H

#include <stdint.h>

#include "base/str.h"

enum picture_kind {
    PICTURE_QWEN,  /* Qwen3-VL-MoE: pictures of any size */
    PICTURE_LLAVA, /* CLIP: 16 x 16 pixels are 17 patches, a class row among them, and 16 rows */
    PICTURE_GEMMA  /* 16 rows that see each other, of 64 patches */
};

#define PICTURE_TOKEN 302
#define PICTURE_SIDE  8  /* pixels of a side for one row of features: two patches of 4 */
#define PICTURE_MOST  64 /* pixels of a side: larger ones are shrunk to about that area */

/* config.json, weights, tokenizer.json, chat_template.jinja, preprocessor_config.json. Fails the test. */
void picture_model_write(const char *dir, enum picture_kind kind);
/* The same of so many positions instead of 512. */
void picture_model_write_long(const char *dir, enum picture_kind kind, uint32_t positions);
void picture_model_remove(const char *dir);

/* A PNG of coloured noise, a function of (width, height, seed): its bytes into *out. */
void picture_png(struct strbuf *out, uint32_t width, uint32_t height, uint64_t seed);
void picture_base64(struct strbuf *out, const void *bytes, size_t n);
/* {"type":"image_url","image_url":{"url":"data:..."}} of such a PNG. */
void picture_part(struct strbuf *out, uint32_t width, uint32_t height, uint64_t seed);

#endif
