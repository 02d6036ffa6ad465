/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the cutting of nodes into pieces that fit into memory, and the loop that reads one piece while the
 * one before is computed. Refuses an operator that does not fit by itself; what lies between pieces is the
 * caller's.
 */
#include "oracle/stream.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/thread.h"
#include "host/host.h"

#define ACTIVATIONS_MOST ((uint64_t)1 << 30) /* kept free for them, of a large memory */
#define READERS          4u /* threads that read a weight: they wait more than they work; see bench/NOTES.md */

/* ---- opening ---- */

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int unique_ids(struct stream *s, struct err *e)
{
    s->unique = arena_alloc_n(&s->arena, s->n_tokens, sizeof *s->unique);
    s->place = arena_alloc_n(&s->arena, s->n_tokens, sizeof *s->place);
    if (!s->unique || !s->place)
        return err_set(e, ERR_NOMEM, "no memory for %u tokens", s->n_tokens);
    memcpy(s->unique, s->ids, s->n_tokens * sizeof *s->ids);
    qsort(s->unique, s->n_tokens, sizeof *s->unique, by_number);
    for (uint32_t i = 0; i < s->n_tokens; i++)
        if (s->n_unique == 0 || s->unique[i] != s->unique[s->n_unique - 1])
            s->unique[s->n_unique++] = s->unique[i];
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        const int32_t *at = bsearch(&s->ids[i], s->unique, s->n_unique, sizeof *s->unique, by_number);
        s->place[i] = (int32_t)(at - s->unique);
    }
    return ERR_OK;
}

/* What a token may be: a row of every embedding, and of the vocabulary. */
static int check_ids(const struct stream *s, struct err *e)
{
    int64_t vocab = s->m->spec->vocab_size;
    for (uint32_t i = 0; i < s->g->n_nodes; i++) {
        const struct d0_node *n = &s->g->nodes[i];
        if (n->op == D0_OP_EMBED && s->g->values[n->inputs[1]].dims[0] < vocab)
            vocab = s->g->values[n->inputs[1]].dims[0];
    }
    for (uint32_t i = 0; i < s->n_tokens; i++)
        if (s->ids[i] < 0 || s->ids[i] >= vocab)
            return err_set(e, ERR_INVALID, "token %u has id %d, the vocabulary has %lld", i, s->ids[i],
                           (long long)vocab);
    if (s->m->spec->max_positions > 0 && s->n_tokens > (uint64_t)s->m->spec->max_positions)
        return err_set(e, ERR_LIMIT, "%u tokens are more than the %lld positions of the model", s->n_tokens,
                       (long long)s->m->spec->max_positions);
    return ERR_OK;
}

/* All that headers can show to be wrong, before the first byte is read. */
int stream_weigh(struct stream *s, const uint8_t *wanted, struct err *e)
{
    const struct load_reader r = {.g = s->g, .spec = s->m->spec, .c = s->m->ckpt};
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == 0 && i < s->g->n_nodes; i++) {
        const struct d0_node *n = &s->g->nodes[i];
        for (uint32_t k = 0; rc == 0 && wanted[i] && k < n->n_inputs; k++) {
            uint32_t v = n->inputs[k];
            if (v == D0_NO_VALUE || s->g->values[v].kind != D0_VALUE_WEIGHT || s->value_bytes[v])
                continue;
            rc = load_value_check(&r, v, &s->value_bytes[v], e);
        }
    }
    return rc;
}

static int prepare(struct stream *s, struct err *e)
{
    const struct graph *g = s->g;
    s->value_bytes = arena_alloc_n(&s->arena, g->n_values + (size_t)1, sizeof *s->value_bytes);
    s->maker = arena_alloc_n(&s->arena, g->n_values + (size_t)1, sizeof *s->maker);
    s->positional = arena_alloc(&s->arena, g->n_nodes + (size_t)1);
    s->states = arena_alloc_n(&s->arena, g->n_values + (size_t)1, sizeof *s->states);
    if (!s->value_bytes || !s->maker || !s->positional || !s->states)
        return err_set(e, ERR_NOMEM, "no memory for a graph of %u nodes", g->n_nodes);
    memset(s->maker, 0xff, (g->n_values + (size_t)1) * sizeof *s->maker);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i].n_outputs; k++)
            s->maker[g->nodes[i].outputs[k]] = i;
    int rc = graph_positional(g, s->positional, e);
    if (rc == 0)
        rc = unique_ids(s, e);
    return rc ? rc : check_ids(s, e);
}

int stream_open(struct stream *s, const struct oracle_model *m, const int32_t *ids, size_t n_ids,
                struct err *e)
{
    *s = (struct stream){.m = m, .g = m->spec->graph, .ids = ids, .n_tokens = (uint32_t)n_ids};
    arena_init(&s->arena, m->d0 ? &m->d0->mem : NULL, MEM_MISC);
    if (!m->dev->computes)
        return err_set(e, ERR_UNSUPPORTED, "device %s computes nothing: there is nothing to record",
                       m->dev->api->name);
    if (n_ids < 1 || n_ids > INT32_MAX)
        return err_set(e, ERR_INVALID, "%zu tokens", n_ids);
    s->budget = m->memory;
    if (!s->budget) {
        if (!host_memory_available(&s->budget))
            s->budget = UINT64_MAX / 4;
        s->budget -= s->budget / 10;
    }
    return prepare(s, e);
}

static void free_states(struct stream *s)
{
    for (uint32_t i = 0; s->states && i < s->g->n_values; i++) {
        dev_buffer_free(s->m->dev, s->states[i]);
        s->states[i] = NULL;
    }
}

void stream_close(struct stream *s)
{
    free_states(s);
    for (size_t i = 0; i < s->n_pieces; i++) {
        free(s->pieces[i].nodes);
        free(s->pieces[i].outputs);
    }
    free(s->pieces);
    arena_release(&s->arena);
    *s = (struct stream){0};
}

/* ---- pieces ---- */

uint64_t stream_piece_limit(const struct stream *s)
{
    uint64_t left = s->budget > s->carried ? s->budget - s->carried : 0;
    /* the rest is for activations: steps get shorter until theirs fit */
    return left - (left / 4 < ACTIVATIONS_MOST ? left / 4 : ACTIVATIONS_MOST);
}

static uint64_t node_bytes(const struct stream *s, const struct d0_node *n)
{
    uint64_t sum = 0;
    for (uint32_t k = 0; k < n->n_inputs; k++) {
        uint32_t v = n->inputs[k];
        if (v == D0_NO_VALUE || s->g->values[v].kind != D0_VALUE_WEIGHT)
            continue;
        uint64_t bytes = s->value_bytes[v];
        int64_t rows = s->g->values[v].dims[0];
        if (n->op == D0_OP_EMBED && k == 1 && rows > (int64_t)s->n_unique)
            bytes = bytes / (uint64_t)rows * s->n_unique; /* as stream_load reads it, where it can */
        sum += ALIGN_UP(bytes, 64);
    }
    return sum;
}

static int open_piece(struct stream *s, uint32_t group, int32_t layer, struct err *e)
{
    if (vec_reserve((void **)&s->pieces, &s->capacity, s->n_pieces + 1, sizeof *s->pieces))
        return err_set(e, ERR_NOMEM, "no memory for %zu pieces", s->n_pieces + 1);
    s->pieces[s->n_pieces++] = (struct stream_piece){.group = group, .layer = layer};
    return ERR_OK;
}

static int append(uint32_t **list, uint32_t *n, uint32_t value, struct err *e)
{
    if ((*n & (*n - 1)) == 0) { /* full at every power of two */
        uint32_t *more = realloc(*list, (*n ? 2 * (size_t)*n : 1) * sizeof **list);
        if (!more)
            return err_set(e, ERR_NOMEM, "no memory for the nodes of a piece");
        *list = more;
    }
    (*list)[(*n)++] = value;
    return ERR_OK;
}

static int too_large(const struct stream *s, const struct d0_node *node, uint64_t bytes, struct err *e)
{
    char want[32], have[32];
    const char *name = node->n_outputs ? s->g->info[node->outputs[0]].name : op_find(node->op)->name;
    const bool experts = node->op == D0_OP_EXPERTS;
    if (experts) /* one token's */
        bytes = stream_choice_bytes(s, node, (uint64_t)s->g->values[node->inputs[1]].dims[1]);
    err_set(e, ERR_NOMEM, "%s alone needs %s of weights%s, there is room for %s", name,
            format_bytes(bytes, want, sizeof want), experts ? " for the experts of one token" : "",
            format_bytes(stream_piece_limit(s), have, sizeof have));
    err_hint(e, "use a machine with more memory, or raise --memory");
    return ERR_NOMEM;
}

static int add_node(struct stream_piece *p, uint32_t node, uint64_t bytes, struct err *e)
{
    p->node_bytes += bytes;
    return append(&p->nodes, &p->n_nodes, node, e);
}

/* A piece that has room for some experts at a time. */
static int add_experts(struct stream *s, uint32_t node, uint32_t group, struct err *e)
{
    const struct d0_node *n = &s->g->nodes[node];
    const uint32_t places = stream_choice_places(s, n);
    if (!places)
        return too_large(s, n, node_bytes(s, n), e);
    int rc = open_piece(s, group, n->layer, e);
    if (rc)
        return rc;
    s->pieces[s->n_pieces - 1].places = places;
    return add_node(&s->pieces[s->n_pieces - 1], node, stream_choice_bytes(s, n, places), e);
}

int stream_add(struct stream *s, const uint32_t *nodes, uint32_t n, uint32_t group, struct err *e)
{
    const uint64_t limit = stream_piece_limit(s);
    struct stream_piece *p = NULL;
    for (uint32_t i = 0; i < n; i++) {
        const struct d0_node *node = &s->g->nodes[nodes[i]];
        const uint64_t bytes = node_bytes(s, node);
        if (s->positional[nodes[i]])
            continue;
        if (bytes > limit && node->op != D0_OP_EXPERTS)
            return too_large(s, node, bytes, e);
        if (bytes > limit) {
            int rc = add_experts(s, nodes[i], group, e);
            if (rc)
                return rc;
            p = NULL; /* nothing else comes into that piece */
            continue;
        }
        if (!p || p->layer != node->layer || bytes > limit - p->node_bytes) {
            int rc = open_piece(s, group, node->layer, e);
            if (rc)
                return rc;
            p = &s->pieces[s->n_pieces - 1];
        }
        int rc = add_node(p, nodes[i], bytes, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

int stream_want(struct stream *s, size_t first_piece, uint32_t value, struct err *e)
{
    const uint32_t maker = s->maker[value];
    for (size_t i = first_piece; i < s->n_pieces; i++) {
        struct stream_piece *p = &s->pieces[i];
        for (uint32_t k = 0; k < p->n_nodes; k++) {
            if (p->nodes[k] != maker)
                continue;
            for (uint32_t j = 0; j < p->n_outputs; j++)
                if (p->outputs[j] == value)
                    return ERR_OK;
            return append(&p->outputs, &p->n_outputs, value, e);
        }
    }
    BUG("no piece makes %s", s->g->info[value].name);
}

static const char *output_name(const struct graph *g, uint32_t maker, uint32_t value, char *buf, size_t bytes)
{
    for (uint32_t k = 1; maker != D0_NO_VALUE && k < g->nodes[maker].n_outputs; k++)
        if (g->nodes[maker].outputs[k] == value) {
            snprintf(buf, bytes, "%s:%u", g->info[value].name, k);
            return buf;
        }
    return g->info[value].name;
}

const char *stream_name(const struct stream *s, uint32_t value, char *buf, size_t bytes)
{
    return output_name(s->g, s->maker[value], value, buf, bytes);
}

bool stream_layer_result(const struct graph_value_info *info)
{
    char number[16];
    snprintf(number, sizeof number, ".%d", info->layer);
    return info->layer >= 0 && str_ends(info->name, number);
}

const struct trace_tensor *oracle_trace_of(const struct trace *t, const struct graph *g, uint32_t value)
{
    char name[256];
    const struct trace_tensor *x = value == graph_result(g) ? trace_find(t, TRACE_LOGITS) : NULL;
    uint32_t maker = D0_NO_VALUE;
    for (uint32_t i = 0; !x && i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i].n_outputs; k++)
            maker = g->nodes[i].outputs[k] == value ? i : maker;
    return x ? x : trace_find(t, output_name(g, maker, value, name, sizeof name));
}

/* ---- states ---- */

/* By state value: the last piece of its group that touches it, for the piece that touches it first. */
static bool touches(const struct stream *s, size_t piece, uint32_t state)
{
    const struct stream_piece *p = &s->pieces[piece];
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const struct d0_node *n = &s->g->nodes[p->nodes[i]];
        for (uint32_t k = 0; k < n->n_inputs; k++)
            if (n->inputs[k] == state)
                return true;
    }
    return false;
}

static bool needed_later(const struct stream *s, size_t piece, uint32_t state)
{
    for (size_t i = piece + 1; i < s->n_pieces && s->pieces[i].group == s->pieces[piece].group; i++)
        if (touches(s, i, state))
            return true;
    return false;
}

/* Marks the pieces after which no state is alive. */
static void mark_clean(struct stream *s)
{
    for (size_t i = 0; i < s->n_pieces; i++)
        s->pieces[i].clean = true;
    for (uint32_t v = 0; v < s->g->n_values; v++) {
        if (s->g->values[v].kind != D0_VALUE_STATE)
            continue;
        for (size_t i = 0, first = SIZE_MAX; i < s->n_pieces; i++) {
            if (i && s->pieces[i].group != s->pieces[i - 1].group)
                first = SIZE_MAX;
            if (!touches(s, i, v))
                continue;
            for (size_t k = first; k < i; k++)
                s->pieces[k].clean = false;
            first = i;
        }
    }
}

static void drop_states(struct stream *s, size_t piece)
{
    if (s->pieces[piece].clean) {
        free_states(s);
        return;
    }
    for (uint32_t v = 0; v < s->g->n_values; v++)
        if (s->states[v] && !needed_later(s, piece, v)) {
            dev_buffer_free(s->m->dev, s->states[v]);
            s->states[v] = NULL;
        }
}

/* ---- the loop ---- */

struct slots {
    unsigned char *memory[2];
    size_t bytes[2];
};

static int slot_get(struct slots *x, unsigned which, uint64_t bytes, unsigned char **out, struct err *e)
{
    const uint64_t huge = (uint64_t)2 << 20;
    if (bytes > SIZE_MAX - huge)
        return err_set(e, ERR_NOMEM, "no memory for %llu bytes of weights", (unsigned long long)bytes);
    size_t whole = (size_t)ALIGN_UP(bytes ? bytes : 64, huge);
    if (whole > x->bytes[which]) {
        if (x->memory[which])
            munmap(x->memory[which], x->bytes[which]);
        x->bytes[which] = 0;
        x->memory[which] = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (x->memory[which] == MAP_FAILED) {
            x->memory[which] = NULL;
            return err_set(e, ERR_NOMEM, "no memory for %llu bytes of weights", (unsigned long long)bytes);
        }
        x->bytes[which] = whole;
        madvise(x->memory[which], whole, MADV_HUGEPAGE); /* advice: only speed is lost without it */
    }
    *out = x->memory[which];
    return ERR_OK;
}

struct loop {
    struct stream *s;
    const struct stream_io *io;
    struct slots slots;
    struct stream_part parts[2];
    uint64_t scratch_room;
    pthread_t thread;
    bool running; /* the thread that loads */
    struct {
        const struct stream *s;
        struct stream_part *p;
    } job;
};

static void *load_in_thread(void *context)
{
    struct loop *l = context;
    stream_part_load(l->job.s, l->job.p);
    return NULL;
}

static int begin_load(struct loop *l, size_t piece, struct err *e)
{
    const unsigned which = l->s->cost.ahead ? piece % 2 : 0;
    struct stream_part *p = &l->parts[which];
    int rc = stream_part_make(l->s, &l->s->pieces[piece], l->scratch_room, p, e);
    if (rc == 0)
        rc = slot_get(&l->slots, which, p->weight_bytes, &p->slot, e);
    if (rc)
        return rc;
    l->s->cost.weight_bytes += p->choice ? 0 : p->weight_bytes;
    if (p->weight_bytes > l->s->cost.largest)
        l->s->cost.largest = p->weight_bytes;
    l->job.s = l->s;
    l->job.p = p;
    l->running = l->s->cost.ahead && pthread_create(&l->thread, NULL, load_in_thread, l) == 0;
    if (!l->running)
        stream_part_load(l->s, p);
    return ERR_OK;
}

static int end_load(struct loop *l, struct err *e)
{
    if (l->running)
        pthread_join(l->thread, NULL);
    l->running = false;
    l->s->cost.read_seconds += l->job.p->seconds;
    if (l->job.p->rc && e)
        *e = l->job.p->err;
    return l->job.p->rc;
}

static int run_pieces(struct loop *l, size_t first, struct err *e)
{
    struct stream *s = l->s;
    int rc = first < s->n_pieces ? begin_load(l, first, e) : ERR_OK;
    for (size_t i = first; rc == 0 && i < s->n_pieces; i++) {
        struct stream_part *p = &l->parts[s->cost.ahead ? i % 2 : 0];
        rc = end_load(l, e);
        if (rc == 0 && s->cost.ahead && i + 1 < s->n_pieces)
            rc = begin_load(l, i + 1, e);
        if (rc == 0)
            rc = stream_part_run(s, i, p, l->io, e);
        stream_part_free(p);
        if (rc == 0)
            drop_states(s, i);
        if (rc == 0)
            rc = l->io->done(l->io->context, i, e);
        if (rc == 0 && !s->cost.ahead && i + 1 < s->n_pieces)
            rc = begin_load(l, i + 1, e);
        if (rc)
            err_ctx(e, "in piece %zu of %zu (layer %d)", i + 1, s->n_pieces, s->pieces[i].layer);
    }
    if (l->running)
        pthread_join(l->thread, NULL);
    return rc;
}

/* Every node, before the first byte is read: a long run does not end at an operator that was known to be
 * missing. */
static int check_support(const struct stream *s, size_t piece, struct err *e)
{
    struct stream_part p;
    struct d0_part part;
    int rc = stream_part_make(s, &s->pieces[piece], UINT64_MAX, &p, e);
    if (rc)
        return rc;
    graph_part(p.g, &part);
    for (uint32_t i = 0; rc == 0 && i < p.g->n_nodes; i++) {
        const struct d0_node *n = &p.g->nodes[i];
        char reason[160] = "";
        if (!dev_supports(s->m->dev, &part, i, reason, sizeof reason))
            rc = err_set(e, ERR_UNSUPPORTED, "layer %d: device %s does not run %s %s: %s", n->layer,
                         s->m->dev->api->name, op_find(n->op)->name,
                         n->n_outputs ? p.g->info[n->outputs[0]].name : "", reason);
    }
    stream_part_free(&p);
    return rc;
}

/* Without them one thread reads: only speed is lost. */
static void open_readers(struct stream *s, size_t first)
{
    bool choice = false;
    for (size_t i = first; i < s->n_pieces; i++)
        choice |= s->pieces[i].places > 0;
    if (load_readers_open(&s->ahead_readers, READERS, NULL))
        s->ahead_readers = NULL;
    if (choice && load_readers_open(&s->choice_readers, READERS, NULL))
        s->choice_readers = NULL;
}

static void close_readers(struct stream *s)
{
    load_readers_close(s->ahead_readers);
    load_readers_close(s->choice_readers);
    s->ahead_readers = s->choice_readers = NULL;
}

int stream_run(struct stream *s, size_t first, const struct stream_io *io, struct err *e)
{
    struct loop l = {.s = s, .io = io};
    uint64_t begin = clock_ns(), largest = 64;
    for (size_t i = first; i < s->n_pieces; i++)
        largest = s->pieces[i].node_bytes > largest ? s->pieces[i].node_bytes : largest;
    uint64_t left = s->budget > s->carried ? s->budget - s->carried : 0;
    s->cost.ahead = s->n_pieces > first + 1 && largest <= left / 8 * 3;
    uint64_t held = (s->cost.ahead ? 2 : 1) * largest;
    l.scratch_room = left > held ? (left - held) / 2 : 0;
    mark_clean(s);
    int rc = ERR_OK;
    for (size_t i = first; rc == 0 && i < s->n_pieces; i++)
        rc = check_support(s, i, e);
    open_readers(s, first);
    if (rc == 0)
        rc = run_pieces(&l, first, e);
    close_readers(s);
    for (unsigned k = 0; k < 2; k++) {
        stream_part_free(&l.parts[k]);
        if (l.slots.memory[k])
            munmap(l.slots.memory[k], l.slots.bytes[k]);
    }
    s->cost.seconds += (double)(clock_ns() - begin) * 1e-9;
    return rc;
}
