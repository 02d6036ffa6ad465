/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to sched: the inside of a scheduler, shared by the work and the check of its invariants.
 */
#ifndef SCHED_SCHED_INTERNAL_H
#define SCHED_SCHED_INTERNAL_H

#include "sched/pages.h"
#include "sched/sched.h"
#include "sched/sched_images.h"

struct request {
    uint64_t id;
    size_t bytes;         /* of this allocation */
    struct request *next; /* in the queue */
    int32_t *tokens;      /* [n_prompt + max_new] */
    uint32_t *table;      /* [n_total] pages from position 0 */
    int32_t *stop_ids;
    uint32_t n_prompt, max_new, n_stop;
    uint32_t n_tokens, computed, n_cached, n_generated;
    uint32_t n_total, n_held; /* pages promised in all, and taken (or shared) so far */
    uint32_t slot;            /* of recurrent state, while it runs */
    uint32_t snapshot;        /* that its first run begins from, pinned until then; or SNAPSHOT_NONE */
    uint32_t cuts[2];         /* positions whose state is worth keeping, besides those of every sequence */
    uint32_t n_chained;       /* full pages looked at for the prefix cache */
    uint64_t chain;           /* cache entry of the last of them */
    bool ignore_stop;
    bool held_up; /* a span did not fit what the others left of the last step */
    struct step_sampling sampling;
    struct images *images; /* NULL: text in plain order */
};

struct piece {
    struct request *request; /* NULL: cancelled while the step was out */
    uint32_t n_tokens;
    uint32_t save; /* snapshot that it writes, ours until the result is there; or SNAPSHOT_NONE */
    bool sample;
};

struct sched {
    struct arena arena;
    struct sched_options o;
    struct pages pages;
    struct request **running; /* [max_seqs] in order of admission */
    uint32_t n_running;
    uint32_t *free_slots; /* [limits.n_slots] */
    uint32_t n_free_slots;
    struct request *first_waiting, *last_waiting;
    uint32_t n_waiting;
    struct piece *pieces; /* [max_seqs] of the step that is out, or being built */
    uint32_t n_pieces;
    bool out;
    struct feature_rows rows;
    bool picture_out;         /* through the tower */
    struct request *encoding; /* whose picture it is; NULL: cancelled since */
    struct image *image;      /* of `encoding` */
    bool encoded;             /* a picture, since the last step */
    bool gave_way;            /* decode tokens, in the last step, to a span that was held up */
    uint64_t step;
    struct sched_stats stats;
};

#endif
