/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes sequences of a step, page tables and pages for the cases of sparse and pooled attention.
 */
#include <stdlib.h>
#include <string.h>

#include "kc_steps.h"

void *kc_room(struct kc_case *c, size_t n, size_t size)
{
    void *p = arena_alloc_n(c->arena, n ? n : 1, size);
    if (!p)
        abort();
    return p;
}

void kc_steps_make(struct kc_case *c, unsigned at, int64_t longest, int64_t largest, struct kc_steps *p)
{
    p->tokens = 0;
    p->n = c->large ? 1 : kc_between(c, 1, 3);
    for (int64_t s = 0; s < p->n; s++) {
        p->chunks[s] = c->large ? largest : kc_between(c, 0, largest);
        p->lengths[s] = c->large || kc_chance(c, 5) ? longest
                        : kc_chance(c, 5)           ? p->chunks[s]
                                                    : kc_between(c, p->chunks[s], longest);
        p->lengths[s] = p->lengths[s] < 1 ? 1 : p->lengths[s];
        p->tokens += p->chunks[s];
    }
    p->positions = kc_ints(c, at, p->tokens, 1);
    p->seq_of = kc_ints(c, at + 1, p->tokens, 1);
    for (int64_t s = 0, t = 0; s < p->n; s++)
        for (int64_t i = 0; i < p->chunks[s]; i++, t++) {
            p->positions[t] = (int32_t)(p->lengths[s] - p->chunks[s] + i);
            p->seq_of[t] = (int32_t)s;
        }
    c->a.tokens = p->tokens;
    c->a.seqs = p->n;
}

int64_t kc_table_make(struct kc_case *c, unsigned at, struct kc_steps *p)
{
    int64_t needed = 0, most = 1;
    for (int64_t s = 0; s < p->n; s++) {
        needed += p->columns[s];
        most = p->columns[s] > most ? p->columns[s] : most;
    }
    int64_t width = most + kc_between(c, 0, 2), pages = needed + kc_between(c, 1, 4);
    int32_t *order = kc_room(c, (size_t)pages, sizeof *order);
    for (int64_t i = 0; i < pages; i++) {
        int64_t other = kc_between(c, 0, i);
        order[i] = order[other];
        order[other] = (int32_t)i;
    }
    p->table = kc_ints(c, at, p->n * width, 0);
    for (int64_t s = 0, next = 0; s < p->n; s++)
        for (int64_t i = 0; i < width; i++)
            p->table[s * width + i] = i < p->columns[s] ? order[next++] : -1;
    kc_dims(c, at, 2, (int64_t[]){p->n, width});
    c->a.table = width;
    return pages;
}

void kc_steps_break(struct kc_case *c, struct kc_steps *p)
{
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX};
    if (c->large || !kc_chance(c, 6))
        return;
    p->table[kc_between(c, 0, p->n * c->a.table - 1)] =
        kc_chance(c, 2) ? (int32_t)p->n * 1000 : wrong[kc_between(c, 0, 2)];
    if (p->tokens && kc_chance(c, 2))
        p->positions[kc_between(c, 0, p->tokens - 1)] = kc_chance(c, 2) ? INT32_MAX : -1;
    if (p->tokens && kc_chance(c, 2))
        p->seq_of[kc_between(c, 0, p->tokens - 1)] = kc_chance(c, 2) ? (int32_t)p->n : -1;
}

int64_t kc_slot_of(const struct kc_case *c, unsigned pages, unsigned table, int64_t seq, int64_t key)
{
    int64_t rows = c->a.in_dims[pages][2], width = c->a.in_dims[table][1];
    if (seq < 0 || seq >= c->a.in_dims[table][0] || key < 0 || key >= width * rows)
        return -1;
    int64_t page = ((const int32_t *)c->in[table].data)[seq * width + key / rows];
    return page < 0 || page >= c->a.in_dims[pages][0] ? -1 : page * rows + key % rows;
}

void kc_pages_make(struct kc_case *c, unsigned i, int64_t pages, int64_t rows, int64_t dim)
{
    size_t bytes = (size_t)(pages * rows * dim) * kc_width(c->dtype);
    c->in[i] = (struct kc_array){kc_room(c, bytes, 1), bytes, 0};
    c->a.in_dtype[i] = c->dtype;
    memset(c->in[i].data, 0xFF, bytes);
    kc_dims(c, i, 4, (int64_t[]){pages, 1, rows, dim});
}

void kc_put(struct kc_case *c, unsigned i, int64_t element, double value)
{
    float v = (float)value;
    tensor_from_f32(&v, 1, c->dtype, (unsigned char *)c->in[i].data + (size_t)element * kc_width(c->dtype));
}

bool kc_sees_all(const struct kc_case *c, unsigned pages, unsigned table, int64_t seq, int64_t from,
                 int64_t n)
{
    for (int64_t key = from; key < n; key++)
        if (kc_slot_of(c, pages, table, seq, key) < 0)
            return false;
    return true;
}

int64_t kc_attr_of(const struct kc_case *c, uint32_t key)
{
    return c->a.attr[key].i;
}
