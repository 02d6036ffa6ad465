/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiny models with towers, prompts with pictures for them, and the logits that oracle_once() gives for each:
 * it runs the tower on each picture alone and then the text on their rows, in one piece. A picture is one
 * grid of patches, or several: tiles, whose places among the prompt's tokens may lie apart.
 */
#ifndef PARITY_PICTURE_CASE_H
#define PARITY_PICTURE_CASE_H

#include "ckpt/ckpt.h"
#include "oracle/oracle.h"
#include "prompt/prompt.h"
#include "recorded.h"
#include "sched/sched.h"
#include "tiny.h"

enum {
    PICTURES = 2, /* of a prompt */
    MOST_TILES = 16,
    TOWER_INPUTS = 9,
    SEEN = 0,  /* the recorded prompt, and TAIL tokens more */
    OTHER = 1, /* the same ids with other pictures */
    PLAIN = 2, /* no pictures */
    SHORT = 3, /* SEEN without its tail */
    TEXTS = 4,
    PLAIN_TOKENS = 29,
    TAIL = 8
};

struct picture_family {
    const char *name;         /* of tiny/NAME.json */
    uint32_t tiles[PICTURES]; /* of each picture; 0: one, or as many as the plan of its size makes */
    const char *patch;        /* merged into its config.json, or NULL */
    const char *own;          /* order of q, k and v where it is rewritten into the own layout, else NULL */
};
extern const struct picture_family picture_families[];
extern const size_t n_picture_families;

struct text {
    int32_t *ids; /* [n] */
    uint32_t n;
    struct step_place *place;             /* [n]; feature counted over its pictures */
    int32_t *places, *feature_of, *spans; /* [n, 3], [n], [n, 2]; spans NULL where its tokens see backwards */
    struct picture_plan *pictures[PICTURES];
    struct sched_image images[PICTURES];
    uint32_t n_pictures, rows[PICTURES + 1]; /* rows before each picture, and of all */
    int32_t place_delta;
    float *features[SPEC_MAX_FEATURES]; /* [rows, width] of the yardstick */
    float *want;                        /* [n, vocab] */
};

struct model {
    struct arena arena;
    struct d0 d0;
    struct tiny t;
    const char *layout; /* for people: behind the name of the family */
    char dir[64];
    struct findings f;
    struct ckpt *c;
    struct spec *s, *blind; /* blind: described without pictures */
    struct reference *r;
    struct picture_shape shape;
    struct image_grid grids[MOST_TILES]; /* of all pictures */
    uint32_t tiles[PICTURES];            /* of each */
    size_t n_grids;
    uint64_t placeholders; /* of all, where a processor plans them; else 0 */
    struct text texts[TEXTS];
    uint32_t vocab, width; /* of a row of features */
    /* what its pictures and prompts need of an engine */
    uint32_t max_patches, max_rows, longest, longest_span; /* longest: tokens of a prompt */
    uint64_t rows;                                         /* compared */
    char difference[256];
};

/* Its checkpoint is made in a directory of its own. model_close() is to be called in any case. */
int model_open(struct model *m, const struct picture_family *family, struct err *e);
void model_close(struct model *m);
/* Does a node of this graph read such an input? */
bool has_input(const struct graph *g, uint32_t role);
/* All that a tower may read of pictures that lie in these rows. pixels: [patches, pixel_width] in the order
 * of the processor; what is made of them is the model's. */
size_t pixel_width(const struct model *m);
void tower_inputs(struct model *m, const struct image_rows *rows, const float *pixels,
                  struct prompt_input out[TOWER_INPUTS]);
/* The first n tokens of a text in one run, where place[] says each stands, with these rows of its pictures
 * ([rows, width] for each feature). logits: [n, vocab]. */
int run_text(struct model *m, struct dev *d, const struct text *t, const struct step_place *place, size_t n,
             float *const *features, float *logits, struct err *e);
/* Fills features and want of all texts. ERR_MISMATCH: not finite, or not hanging on the pictures. */
int model_yardsticks(struct model *m, struct dev *d, struct err *e);

/* The token that takes the first row of a picture. */
uint32_t text_first(const struct text *t);
/* Does a span go on over the boundary before this token? */
bool text_cuts_span(const struct text *t, uint32_t position);
/* Tokens of t that can be known, where pages of so many hold all of it: whole pages, that end in no span, and
 * not all of t. */
uint32_t text_known(const struct text *t, uint32_t page);
/* Pictures of which rows are taken behind so many tokens. */
uint32_t text_pictures_behind(const struct text *t, uint32_t known);

#endif
