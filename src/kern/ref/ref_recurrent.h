/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to kern: what the reference and the fast kernels of SHORT_CONV and DELTA_RULE share: which slot a
 * row belongs to, and the sizes of a delta rule. Indices are untrusted: a row whose sequence, slot or
 * position does not exist becomes NaN and touches no state.
 */
#ifndef KERN_REF_RECURRENT_H
#define KERN_REF_RECURRENT_H

#include "kern/kern_table.h"

/* The three index inputs: positions[T], seq_of[T], slots[B], and how many slots the state has. */
struct ref_slots {
    const int32_t *positions, *seq_of, *slots;
    int64_t n_seqs, n_slots;
};

/* `state` and `first` (positions): numbers of inputs. */
static inline struct ref_slots ref_slots_of(const struct kern_args *a, unsigned state, unsigned first)
{
    return (struct ref_slots){a->in[first], a->in[first + 1], a->in[first + 2], a->in_dims[first + 2][0],
                              a->in_dims[state][0]};
}

/* Slot of row t, or -1. */
static inline int64_t ref_slot(const struct ref_slots *s, size_t t)
{
    int64_t seq = s->seq_of[t];
    if (seq < 0 || seq >= s->n_seqs || s->positions[t] < 0)
        return -1;
    int64_t slot = s->slots[seq];
    return slot >= 0 && slot < s->n_slots ? slot : -1;
}

struct ref_delta {
    size_t heads, v_heads, dim, v_dim;
    bool channel;             /* one decay for each row of S, not for each head */
    double eps, scale, lower; /* lower 0: none */
};

static inline struct ref_delta ref_delta_of(const struct kern_args *a)
{
    return (struct ref_delta){.heads = (size_t)a->attr[D0_ATTR_HEADS].i,
                              .v_heads = (size_t)a->attr[D0_ATTR_V_HEADS].i,
                              .dim = (size_t)a->attr[D0_ATTR_DIM].i,
                              .v_dim = (size_t)a->attr[D0_ATTR_V_DIM].i,
                              .channel = a->attr[D0_ATTR_DECAY].i != 0,
                              .eps = a->attr[D0_ATTR_EPS].f,
                              .scale = a->attr[D0_ATTR_SCALE].f,
                              .lower = a->attr[D0_ATTR_LOWER].f};
}

/* Items: one value head (DELTA_RULE), all rows in order; channels are kern_items_columns (SHORT_CONV). */
size_t ref_items_value_heads(const struct kern_args *a);

/* Rows t .. t+n-1 of value head h on its state S [dim, v_dim]; scratch of the thread, of whatever type the
 * variant uses. */
typedef void ref_delta_rows(const struct kern_args *a, const struct ref_delta *d, size_t t, size_t n,
                            size_t h, float *S, void *scratch);
/* All rows of value heads first..last-1 in order, up to `most` neighbours of one sequence at a time, on the
 * states of their slots: zero at position 0, a row of NaN where there is no such slot. What every variant has
 * in common. */
void ref_delta_walk(const struct kern_args *a, size_t first, size_t last, unsigned thread, size_t most,
                    ref_delta_rows *rows);

void ref_short_conv(const struct kern_args *a, size_t first, size_t last, unsigned thread);
void ref_delta_rule(const struct kern_args *a, size_t first, size_t last, unsigned thread);
size_t ref_delta_scratch(const struct kern_args *a);

#endif
