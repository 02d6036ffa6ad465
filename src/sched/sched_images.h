/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to sched: the pictures of a request. Where their rows are in the engine's store, what each token
 * takes of them, how long a run of tokens may be, and by what a page of the prefix cache is known besides its
 * token ids.
 */
#ifndef SCHED_SCHED_IMAGES_H
#define SCHED_SCHED_IMAGES_H

#include "sched/pages.h"
#include "sched/sched.h"

#define ROW_NONE UINT32_MAX

struct image {
    uint8_t key[32];
    uint32_t n_rows, base; /* base: rows of the images before it */
    uint32_t first, last;  /* positions of the tokens that take its first and its last row */
    uint32_t row;          /* of the store, while it has rows there; else ROW_NONE */
    bool encoded;          /* these rows are filled */
    const struct picture_plan *message;
    size_t bytes;
};

/* What a request has beside its tokens; one allocation. NULL in a request that is all text in plain order. */
struct images {
    size_t bytes; /* of this allocation */
    uint32_t n, n_prompt;
    int32_t place_delta;
    struct image *image; /* [n] */
    struct step_place
        *place;       /* [n_prompt] as in a plan, but `feature` is counted over the images of the request */
    uint8_t *digests; /* [n_pages][PAGE_DIGEST_BYTES] of its pages; all zeros: text in plain order */
};

/* Which rows of the engine's store are promised. */
struct feature_rows {
    bool *used; /* [n] */
    uint32_t n, n_free;
};

/* Everything that a request says of pictures; errors as of sched_submit(). max_span: tokens of one run. */
int images_validate(const struct sched_request *q, const struct engine_limits *l, uint32_t max_span,
                    struct err *e);
/* *out is NULL where there is nothing to remember. n_pages: full ones that it can have. free() ends it. */
int images_make(const struct sched_request *q, uint32_t page_tokens, uint32_t n_pages, struct images **out,
                struct err *e);
/* PAGE_DIGEST_BYTES of a page of the sequence: equal where places, spans and rows of pictures of its tokens
 * are equal, and for a span all of its tokens. */
const uint8_t *images_digest(const struct images *m, uint32_t page);
/* Would a run that ends before this position cut a span? */
bool images_cuts_span(const struct images *m, uint32_t position);

/* Rows for every image whose tokens are not all computed: all or none. */
bool images_reserve(struct images *m, struct feature_rows *f, uint32_t computed);
void images_release(struct images *m, struct feature_rows *f); /* whatever it has */
void images_passed(struct images *m, struct feature_rows *f, uint32_t computed);

/* The first image that a run of n tokens from `computed` on, or the rest of a span in which it ends, takes
 * rows of and whose rows are not filled; NULL: none. */
struct image *images_wanted(const struct images *m, uint32_t computed, uint32_t n);
/* The longest run of at most n tokens that cuts no span and takes no row that is not filled; a span goes on
 * up to `most` tokens. *tight: the run is empty because `most` is smaller than a span. */
uint32_t images_run(const struct images *m, uint32_t computed, uint32_t n, uint32_t most, bool *tight);
/* Of the token at this position. */
struct step_place images_place(const struct images *m, uint32_t position);

#endif
