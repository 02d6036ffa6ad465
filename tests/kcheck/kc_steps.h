/* SPDX-License-Identifier: Apache-2.0
 *
 * Sequences of a step and their keys in pages, as the cases of sparse and pooled attention make them.
 */
#ifndef KCHECK_KC_STEPS_H
#define KCHECK_KC_STEPS_H

#include "kc.h"

struct kc_steps {
    int64_t n, tokens, lengths[4], chunks[4];
    int64_t columns[4]; /* of the page table that a sequence needs */
    int32_t *positions, *seq_of, *table;
};

void *kc_room(struct kc_case *c, size_t n, size_t size); /* or abort */
int64_t kc_attr_of(const struct kc_case *c, uint32_t key);
/* One to three sequences; the last chunks[s] (at most `largest`) of lengths[s] (at most `longest`) positions
 * are in this step. Inputs `at` (positions) and at + 1. The caller then fills columns[]. */
void kc_steps_make(struct kc_case *c, unsigned at, int64_t longest, int64_t largest, struct kc_steps *p);
/* The page table, input `at`: pages in any order, -1 where a sequence needs none. How many pages there are.
 */
int64_t kc_table_make(struct kc_case *c, unsigned at, struct kc_steps *p);
/* Now and then a page that does not exist, a position or a sequence that is not there. */
void kc_steps_break(struct kc_case *c, struct kc_steps *p);
/* Pages [pages, 1, rows, dim] of the case's type as input i, all NaN. */
void kc_pages_make(struct kc_case *c, unsigned i, int64_t pages, int64_t rows, int64_t dim);
void kc_put(struct kc_case *c, unsigned i, int64_t element, double value); /* into such pages */
/* Slot of key `key` of a sequence, counted over all pages of input `pages`; -1: there is none. */
int64_t kc_slot_of(const struct kc_case *c, unsigned pages, unsigned table, int64_t seq, int64_t key);
bool kc_sees_all(const struct kc_case *c, unsigned pages, unsigned table, int64_t seq, int64_t from,
                 int64_t n);

#endif
