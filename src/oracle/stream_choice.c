/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: EXPERTS of which only some fit into memory. The node gets room for that many; which experts are in it
 * changes from chunk to chunk of tokens, as the ids say that the router gave. An expert that the next chunk
 * chooses too stays where it is; the ones that were not used for longest make room. What a row gives does not
 * depend on the number of an expert nor on the other rows, so its bits are those of the whole. Refuses a
 * token whose own experts do not fit.
 */
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "oracle/stream.h"
#include "tensor/tensor.h"

#define NOWHERE UINT32_MAX
#define PARTS   5u /* of a weight stored as codes; between any two there may be a gap */

struct place {
    uint32_t number, expert;
    uint64_t used; /* last chunk that did; 0: never */
};

struct stream_choice {
    uint32_t ids; /* value: int32 [T, slots] */
    uint32_t slots, experts, places;
    uint32_t *place_of; /* [experts] or NOWHERE */
    uint64_t *wanted;   /* [experts] last chunk that chose it */
    uint64_t chunk;
    struct place *room;    /* [places] by number */
    struct place *by_age;  /* [places] scratch of one load */
    uint32_t *read, *into; /* [places] experts to read, ascending, and where to */
    int32_t *rows;         /* [tokens of a chunk, slots] */
};

/* ---- how many fit ---- */

static bool weight_input(const struct graph *g, const struct d0_node *n, uint32_t k)
{
    return n->inputs[k] != D0_NO_VALUE && g->values[n->inputs[k]].kind == D0_VALUE_WEIGHT;
}

uint64_t stream_choice_bytes(const struct stream *s, const struct d0_node *n, uint64_t places)
{
    const int64_t experts = s->g->values[n->inputs[3]].dims[0];
    uint64_t sum = 0;
    for (uint32_t k = 0; k < n->n_inputs; k++) {
        const uint64_t each =
            weight_input(s->g, n, k) ? s->value_bytes[n->inputs[k]] / (uint64_t)experts + 1 : 0;
        sum = sat_add(sum, sat_add(sat_mul(each, places), PARTS * 64));
    }
    return sum;
}

/* Each of its weights is a matrix or a row of every expert, and the ids come from before it. */
static bool can_be_chosen(const struct stream *s, const struct d0_node *n)
{
    const struct d0_value *ids = &s->g->values[n->inputs[1]];
    const uint32_t maker = s->maker[n->inputs[1]];
    const int64_t experts = s->g->values[n->inputs[3]].dims[0];
    if (n->op != D0_OP_EXPERTS || maker == D0_NO_VALUE || s->positional[maker] || experts < 1 ||
        experts > INT32_MAX || ids->dtype != D0_I32 || ids->n_dims != 2 || ids->dims[1] < 1 ||
        ids->dims[1] > INT32_MAX)
        return false;
    for (uint32_t k = 0; k < n->n_inputs; k++)
        if (weight_input(s->g, n, k) && (s->g->values[n->inputs[k]].dims[0] != experts ||
                                         s->g->info[n->inputs[k]].constant || n->inputs[k] == n->inputs[1]))
            return false;
    return true;
}

uint32_t stream_choice_places(const struct stream *s, const struct d0_node *n)
{
    if (!can_be_chosen(s, n))
        return 0;
    const uint64_t left = s->budget > s->carried ? s->budget - s->carried : 0, limit = stream_piece_limit(s),
                   experts = (uint64_t)s->g->values[n->inputs[3]].dims[0],
                   slots = (uint64_t)s->g->values[n->inputs[1]].dims[1];
    const uint64_t least = slots < experts ? slots : experts, useful = slots * s->n_tokens;
    uint64_t room = left / 8 * 3; /* so much leaves room to read ahead what comes after */
    if (stream_choice_bytes(s, n, least) > room)
        room = limit;
    uint64_t fit = 0;
    for (uint64_t step = experts; step > 0; step /= 2)
        while (fit + step <= experts && stream_choice_bytes(s, n, fit + step) <= room)
            fit += step;
    fit = fit < useful ? fit : useful;
    return fit >= least ? (uint32_t)fit : 0;
}

/* ---- the part ---- */

static bool choice_memory(struct stream_choice *c, uint64_t tokens)
{
    uint64_t ids;
    if (!mul_u64(tokens, c->slots, &ids) || ids > SIZE_MAX / sizeof *c->rows)
        return false;
    c->place_of = malloc(c->experts * sizeof *c->place_of);
    c->wanted = calloc(c->experts, sizeof *c->wanted);
    c->room = calloc(c->places, sizeof *c->room);
    c->by_age = calloc(c->places, sizeof *c->by_age);
    c->read = calloc(c->places, sizeof *c->read);
    c->into = calloc(c->places, sizeof *c->into);
    c->rows = calloc((size_t)ids, sizeof *c->rows);
    return c->place_of && c->wanted && c->room && c->by_age && c->read && c->into && c->rows;
}

int stream_choice_make(const struct stream *s, uint32_t places, struct stream_part *p, struct err *e)
{
    const struct d0_node *n = NULL;
    for (uint32_t i = 0; i < p->g->n_nodes; i++)
        if (p->g->nodes[i].op == D0_OP_EXPERTS)
            n = &p->g->nodes[i];
    struct stream_choice *c = n ? calloc(1, sizeof *c) : NULL;
    if (!c)
        return err_set(e, ERR_NOMEM, "no memory to choose experts");
    p->choice = c;
    c->ids = n->inputs[1];
    c->slots = (uint32_t)p->g->values[c->ids].dims[1];
    c->experts = (uint32_t)p->g->values[n->inputs[3]].dims[0];
    c->places = places;
    if (!choice_memory(c, s->n_tokens))
        return err_set(e, ERR_NOMEM, "no memory to choose among %u experts", c->experts);
    memset(c->place_of, 0xff, c->experts * sizeof *c->place_of);
    for (uint32_t i = 0; i < places; i++)
        c->room[i] = (struct place){.number = i, .expert = NOWHERE};
    for (uint32_t k = 0; k < n->n_inputs; k++)
        if (weight_input(p->g, n, k))
            p->g->values[n->inputs[k]].dims[0] = places;
    return ERR_OK;
}

void stream_choice_free(struct stream_choice *c)
{
    if (!c)
        return;
    free(c->place_of);
    free(c->wanted);
    free(c->room);
    free(c->by_age);
    free(c->read);
    free(c->into);
    free(c->rows);
    free(c);
}

bool stream_choice_is(const struct stream_choice *c, uint32_t value)
{
    return value == c->ids;
}

/* ---- a chunk ---- */

/* Marks the experts of as many tokens as there is room for. */
static uint32_t count_tokens(struct stream_choice *c, uint32_t n)
{
    uint32_t chosen = 0;
    c->chunk++;
    for (uint32_t t = 0; t < n; t++) {
        const int32_t *ids = c->rows + (size_t)t * c->slots;
        uint32_t before = chosen;
        for (uint32_t k = 0; k < c->slots; k++) {
            if (ids[k] < 0 || (uint32_t)ids[k] >= c->experts || c->wanted[ids[k]] == c->chunk)
                continue;
            if (chosen == c->places) { /* not this token: what it brought goes */
                while (chosen > before)
                    c->wanted[c->read[--chosen]] = 0;
                return t;
            }
            c->wanted[ids[k]] = c->chunk;
            c->read[chosen++] = (uint32_t)ids[k];
        }
    }
    return n;
}

static int by_age(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return x->used != y->used ? (x->used > y->used) - (x->used < y->used)
                              : (x->number > y->number) - (x->number < y->number);
}

/* Which of the wanted ones are not there, and where they go. */
static uint32_t choose_places(struct stream_choice *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->places; i++) {
        struct place *r = &c->room[i];
        if (r->expert != NOWHERE && c->wanted[r->expert] == c->chunk)
            r->used = c->chunk;
    }
    memcpy(c->by_age, c->room, c->places * sizeof *c->room);
    qsort(c->by_age, c->places, sizeof *c->by_age, by_age);
    for (uint32_t x = 0; x < c->experts; x++) {
        if (c->wanted[x] != c->chunk || c->place_of[x] != NOWHERE)
            continue;
        struct place *r = &c->room[c->by_age[n].number];
        if (r->expert != NOWHERE)
            c->place_of[r->expert] = NOWHERE;
        *r = (struct place){.number = r->number, .expert = x, .used = c->chunk};
        c->place_of[x] = r->number;
        c->read[n] = x;
        c->into[n++] = r->number;
    }
    return n;
}

static int read_experts(struct stream *s, struct stream_part *p, uint32_t n, struct err *e)
{
    static const int64_t no_dims[D0_N_DIMS];
    const struct stream_choice *c = p->choice;
    const struct load_choice choice = {.matrix = c->read, .place = c->into, .n = n, .of = c->experts};
    struct load_reader r = {.g = p->g,
                            .spec = s->m->spec,
                            .c = s->m->ckpt,
                            .staging = malloc(STREAM_STAGING_BYTES),
                            .staging_bytes = STREAM_STAGING_BYTES,
                            .readers = s->choice_readers,
                            .sink = stream_no_sink,
                            .choice = &choice};
    int rc = r.staging ? ERR_OK : err_set(e, ERR_NOMEM, "no memory to read weights");
    unsigned char *at = p->slot;
    for (uint32_t i = 0; rc == 0 && i < p->g->n_values; i++) {
        uint64_t bytes;
        if (p->g->values[i].kind != D0_VALUE_WEIGHT || !tensor_value_bytes(&p->g->values[i], no_dims, &bytes))
            continue;
        r.direct = at;
        rc = load_value_read(&r, i, e);
        if (rc)
            err_ctx(e, "while loading %s", p->g->info[i].name);
        at += ALIGN_UP(bytes, 64);
        s->cost.weight_bytes += bytes / c->places * n;
    }
    free(r.staging);
    return rc;
}

int stream_choice_load(struct stream *s, size_t piece, struct stream_part *p, const struct stream_io *io,
                       uint32_t first, uint32_t *n, struct err *e)
{
    struct stream_choice *c = p->choice;
    int rc = io->input(io->context, piece, p->g->info[c->ids].origin - 1, first, *n, c->slots, c->rows, e);
    if (rc)
        return rc;
    *n = count_tokens(c, *n);
    if (*n == 0)
        BUG("no room for the experts of token %u", first);
    const uint32_t n_read = choose_places(c);
    const uint64_t begin = clock_ns();
    if (n_read)
        rc = read_experts(s, p, n_read, e);
    s->cost.experts += n_read;
    s->cost.read_seconds += (double)(clock_ns() - begin) * 1e-9;
    return rc;
}

void stream_choice_rename(const struct stream_choice *c, int32_t *ids, uint32_t n)
{
    for (size_t i = 0; i < (size_t)n * c->slots; i++) {
        const int64_t past = (int64_t)ids[i] - c->experts; /* an identity, or nothing at all */
        if (ids[i] < 0 || past >= (int64_t)INT32_MAX - c->places)
            ids[i] = -1;
        else
            ids[i] = past >= 0 ? (int32_t)(past + c->places) : (int32_t)c->place_of[ids[i]];
    }
}
