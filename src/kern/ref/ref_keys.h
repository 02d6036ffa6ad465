/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to kern: which keys a query sees, page by page. One walk for the reference and the fast variants,
 * so that all visit the same keys in the same order: ascending positions, cut at pages. Refuses nothing:
 * chosen blocks are untrusted, and what lies outside of 0..last is passed over.
 */
#ifndef KERN_REF_REF_KEYS_H
#define KERN_REF_REF_KEYS_H

#include "kern/kern.h"

/* Neighbouring slots [from, to) of one page. */
struct ref_run {
    size_t from, to;
};

/* Runs of one page that do not touch: every other slot at most. */
#define REF_MAX_RUNS (KERN_MAX_PAGE_TOKENS / 2 + 1)

struct ref_keys {
    int64_t at, last;      /* next position to look at; the last one: the own, or the end of its span */
    const int32_t *chosen; /* block numbers, ascending, none negative; NULL: all keys */
    size_t n_chosen, next;
    int64_t block; /* keys of one chosen block */
};

/* All keys of position `last` >= 0, from the start of its window and of its chunk (0: none). */
static inline struct ref_keys ref_keys_all(int64_t last, int64_t window, int64_t chunk)
{
    int64_t by_window = window > 0 && last >= window ? last - window + 1 : 0,
            by_chunk = chunk > 0 ? last / chunk * chunk : 0;
    return (struct ref_keys){.at = by_window > by_chunk ? by_window : by_chunk, .last = last};
}

/* The same with span {first, behind the last} position: on to its end. false: `last` is not in the span, and
 * nothing is to be seen. NULL: no span. */
static inline bool ref_keys_span(struct ref_keys *k, const int32_t *span)
{
    const int64_t own = k->last;
    if (!span)
        return true;
    k->last = span[1] - INT64_C(1);
    return span[0] >= 0 && span[0] <= own && own <= k->last;
}

/* Of them only those in the blocks list[0..n), in any order, each as often as it may be, < 0 none. `room` for
 * n numbers stays in use. */
static inline void ref_keys_choose(struct ref_keys *k, const int32_t *list, size_t n, int64_t block,
                                   int32_t *room)
{
    bool ascending = true;
    k->chosen = room;
    k->block = block > 0 ? block : 1;
    k->n_chosen = k->next = 0;
    for (size_t i = 0; i < n; i++) {
        if (list[i] < 0)
            continue;
        room[k->n_chosen] = list[i];
        ascending = ascending && (k->n_chosen == 0 || room[k->n_chosen - 1] <= list[i]);
        k->n_chosen++;
    }
    for (size_t gap = ascending ? 0 : k->n_chosen / 2; gap > 0; gap /= 2) /* the index gives them in order */
        for (size_t i = gap; i < k->n_chosen; i++) {
            int32_t v = room[i];
            size_t j = i;
            for (; j >= gap && room[j - gap] > v; j -= gap)
                room[j] = room[j - gap];
            room[j] = v;
        }
}

/* Takes the visible keys of the next page that has any: its runs in order, and its number within the
 * sequence. 0: there are no more. */
static inline size_t ref_keys_page(struct ref_keys *k, int64_t page_tokens, int64_t *page,
                                   struct ref_run runs[REF_MAX_RUNS])
{
    size_t n = 0;
    while (k->at <= k->last) {
        int64_t end = k->last + 1;
        if (k->chosen) {
            while (k->next < k->n_chosen && (k->chosen[k->next] + INT64_C(1)) * k->block <= k->at)
                k->next++;
            if (k->next == k->n_chosen)
                break;
            int64_t start = k->chosen[k->next] * k->block;
            k->at = start > k->at ? start : k->at;
            end = start + k->block < end ? start + k->block : end;
            if (k->at > k->last)
                break;
        }
        int64_t number = k->at / page_tokens, first = number * page_tokens;
        if (n && number != *page)
            break;
        *page = number;
        end = first + page_tokens < end ? first + page_tokens : end;
        size_t from = (size_t)(k->at - first), to = (size_t)(end - first);
        if (n && runs[n - 1].to == from)
            runs[n - 1].to = to;
        else
            runs[n++] = (struct ref_run){from, to};
        k->at = end;
    }
    return n;
}

#endif
