/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiny models of real families (tests/parity/tiny/FAMILY.json): config.json as data, and weights that are a
 * pure function of seed, tensor name and element index. Names, shapes and types are those that day0's own
 * description of the config expects; transformers loads the same files.
 */
#ifndef PARITY_TINY_H
#define PARITY_TINY_H

#include "base/finding.h"
#include "ckpt/ckpt.h"
#include "spec/spec.h"

struct tiny {
    struct arena arena;
    const char *family;
    const struct json *root;   /* tests/parity/tiny/FAMILY.json */
    const struct json *common; /* tests/parity/fill.json */
    uint64_t seed;
};

/* `tree` is the folder that holds tiny/, golden/ and fill.json. */
int tiny_open(struct tiny *t, const char *tree, const char *family, struct err *e);
void tiny_close(struct tiny *t);
/* Writes dir/config.json; `patch` is merged into it as RFC 7386 says (NULL: nothing). */
int tiny_write_config(const struct tiny *t, const char *dir, const struct json *patch, struct err *e);
/* Writes dir/config.json and dir/model.safetensors. dir must exist. */
int tiny_write(const struct tiny *t, const char *dir, struct d0 *d0, struct err *e);
/* The same with config.json patched as by tiny_write_config(). */
int tiny_write_patched(const struct tiny *t, const char *dir, const struct json *patch, struct d0 *d0,
                       struct err *e);
/* The same numbers (they all are bfloat16 numbers), stored as BF16 where a release would. */
int tiny_write_halves(struct tiny *t, const char *dir, struct d0 *d0, struct err *e);
/* The token that takes a row of a picture: as the description says, else as the family's config.json does. */
int32_t tiny_image_token(const struct tiny *t, const struct spec *s);
/* What tiny_write wrote, and dir. */
void tiny_remove(const char *dir);
/* Names of all families, in the arena. */
int tiny_families(const char *tree, struct arena *arena, char ***names, size_t *n, struct err *e);
/* A checkpoint and its description; findings of severity error are an error here. */
struct tiny_model {
    struct findings f;
    struct ckpt *c;
    struct spec *s;
};
int tiny_model_open(struct tiny_model *m, const char *dir, struct d0 *d0, struct err *e);
/* With KV pages of another type than float32. */
int tiny_model_open_pages(struct tiny_model *m, const char *dir, uint32_t kv_dtype, struct d0 *d0,
                          struct err *e);
/* tiny_open, tiny_write and tiny_model_open in one; a finding is an error. */
int tiny_make(struct tiny *t, struct tiny_model *m, const char *tree, const char *family, const char *dir,
              struct d0 *d0, struct err *e);
void tiny_model_close(struct tiny_model *m);

#endif
