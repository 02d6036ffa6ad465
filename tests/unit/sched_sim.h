/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler under a simulator that stands for the engine: it remembers which tokens each KV page holds
 * and which each slot and snapshot of recurrent state has seen, and which row of which picture each row of
 * its store is, refuses a step that reads what was never written, and answers with tokens that depend on the
 * whole prefix. A token is its id or, where it takes a row of a picture, stands elsewhere than at its
 * position or sees others both ways, a number in which all of that counts.
 */
#ifndef TESTS_SCHED_SIM_H
#define TESTS_SCHED_SIM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "sched/sched.h"

#define PT        4
#define VOCAB     50
#define MAX_LIVE  64
#define MAX_SLOTS 12
#define MAX_KEPT  8
#define MAX_ROWS  64
#define MAX_SEEN  6     /* pictures of a request */
#define GARBAGE   99999 /* tokens that a state has seen which nobody may go on from */

/* ---- simulator ----------------------------------------------------------------------------------------- */

struct live {
    bool used;
    uint64_t id;
    int32_t tokens[512]; /* prompt, then what came back */
    int32_t values[512]; /* what their pages must hold */
    int32_t place_delta;
    uint8_t keys[MAX_SEEN][32]; /* of its pictures */
    struct picture_plan messages[MAX_SEEN];
    uint32_t n_prompt, max_new, n_tokens;
    uint32_t n_cached;
    uint64_t submitted_step;
};

struct sim {
    struct sched *s;
    struct sched_options o;
    int32_t *kv; /* [n_pages][PT] token in each slot; -1: never written */
    struct seen {
        int32_t tokens[512];
        uint32_t n;
    } slots[MAX_SLOTS], kept[MAX_KEPT]; /* what the recurrent state of each slot and snapshot has seen */
    uint64_t n_restored, n_saved;
    uint32_t longest_save; /* end of the longest run of the last step whose state was kept; 0: none */
    _Alignas(8) char plan[1 << 16], result[1 << 16];
    struct live live[MAX_LIVE];
    uint64_t n_events, n_finished, n_failed, last_id, n_steps;
    uint64_t n_computed; /* tokens that steps carried */
    bool break_step, not_finite;
    uint64_t store[MAX_ROWS]; /* which row of which picture; 0: none */
    uint64_t n_pictures;      /* that went through the tower */
};

/* What the "model" says after a prefix: every token of it matters. */
static inline int32_t next_token(const int32_t *tokens, uint32_t n)
{
    return (int32_t)(hash64(tokens, n * sizeof *tokens, 99) % VOCAB);
}

/* A row of a picture, never 0. */
static inline uint64_t row_value(const uint8_t key[32], uint32_t row)
{
    return hash64(key, 32, row + 1) | 1;
}

static inline uint64_t taken_value(int32_t token, const int32_t place[3], uint64_t row)
{
    uint64_t h = hash64(place, 3 * sizeof *place, (uint64_t)token);
    return hash64(&row, sizeof row, h);
}

/* Of token i of a run that begins at position `first`: all tokens of its span lie within the run. rows: what
 * each takes, 0 for none. */
static inline int32_t value_at(const int32_t *tokens, const struct step_place *places, const uint64_t *rows,
                               uint32_t i, uint32_t first)
{
    const struct step_place *k = &places[i];
    const int32_t at = (int32_t)(first + i);
    bool plain = k->place[0] == at && k->place[1] == at && k->place[2] == at && !rows[i] &&
                 k->span[1] - k->span[0] == 1;
    if (plain)
        return tokens[i];
    uint64_t h = taken_value(tokens[i], k->place, rows[i]);
    for (int32_t p = k->span[0]; k->span[1] - k->span[0] > 1 && p < k->span[1]; p++) {
        const uint32_t j = (uint32_t)p - first;
        h = hash64(&h, sizeof h, taken_value(tokens[j], places[j].place, rows[j]));
    }
    return (int32_t)(VOCAB + h % 1000000000);
}

static inline struct live *find_live(struct sim *m, uint64_t id)
{
    for (int i = 0; i < MAX_LIVE; i++)
        if (m->live[i].used && m->live[i].id == id)
            return &m->live[i];
    return NULL;
}

static const struct engine_limits usual_limits = {.max_tokens = 16,
                                                  .max_seqs = 4,
                                                  .max_rows = 4,
                                                  .max_pages_per_seq = 16,
                                                  .n_pages = 32,
                                                  .page_tokens = PT,
                                                  .vocab = VOCAB};

static inline struct sim *sim_open(struct sched_options o)
{
    struct sim *m = calloc(1, sizeof *m);
    assert_non_null(m);
    if (!o.limits.page_tokens)
        o.limits = usual_limits;
    if (!o.max_context)
        o.max_context = 64;
    if (!o.max_waiting)
        o.max_waiting = 32;
    m->o = o;
    m->kv = malloc(o.limits.n_pages * PT * sizeof *m->kv);
    assert_non_null(m->kv);
    memset(m->kv, 0xff, o.limits.n_pages * PT * sizeof *m->kv);
    assert_int_equal(sched_open(&m->s, &o, NULL), ERR_OK);
    return m;
}

static inline void sim_close(struct sim *m)
{
    sched_close(m->s);
    free(m->kv);
    free(m);
}

static inline void check(struct sim *m)
{
    struct err e = {0};
    if (sched_check(m->s, &e) != ERR_OK)
        fail_msg("sched_check: %s", e.message);
}

/* Pictures of a request; the fields that sched_request points to. */
struct seen_prompt {
    struct sched_image images[MAX_SEEN];
    int32_t feature_of[64], places[3 * 64], spans[2 * 64];
    uint32_t n_images;
    int32_t place_delta;
    bool has_spans;
};

static inline void make_values(struct live *l, const struct seen_prompt *q)
{
    struct step_place places[64];
    uint64_t rows[64] = {0};
    uint32_t image = 0, base = 0;
    memcpy(l->values, l->tokens, l->n_prompt * sizeof *l->values);
    for (uint32_t p = 0; q && p < l->n_prompt; p++) {
        const int32_t at = (int32_t)p, f = q->feature_of[p];
        places[p] = (struct step_place){.span = {at, at + 1}};
        memcpy(places[p].place, q->places + 3 * (size_t)p, sizeof places[p].place);
        if (q->has_spans)
            memcpy(places[p].span, q->spans + 2 * (size_t)p, sizeof places[p].span);
        if (f >= 0 && (uint32_t)f == base + q->images[image].n_rows)
            base += q->images[image++].n_rows;
        if (f >= 0)
            rows[p] = row_value(q->images[image].key, (uint32_t)f - base);
    }
    for (uint32_t p = 0; q && p < l->n_prompt; p++)
        l->values[p] = value_at(l->tokens, places, rows, p, 0);
}

static inline void add_generated(struct live *l, int32_t token)
{
    const int32_t at = (int32_t)l->n_tokens, place = at + l->place_delta;
    const struct step_place k = {.place = {place, place, place}, .span = {at, at + 1}};
    const uint64_t none = 0;
    l->tokens[l->n_tokens] = token;
    l->values[l->n_tokens++] = value_at(&token, &k, &none, 0, (uint32_t)at);
}

/* The message of a picture: four patches make a row. */
static inline void put_message(struct sched_image *image, struct picture_plan *message)
{
    *message = (struct picture_plan){.magic = PICTURE_PLAN_MAGIC,
                                     .bytes = sizeof *message,
                                     .n_patches = 4 * image->n_rows,
                                     .n_rows = image->n_rows};
    image->message = message;
    image->bytes = sizeof *message;
}

static inline uint64_t submit_seen(struct sim *m, const int32_t *prompt, uint32_t n, uint32_t max_new,
                                   const struct seen_prompt *seen)
{
    struct live *l = m->live;
    while (l < m->live + MAX_LIVE && l->used)
        l++;
    if (l == m->live + MAX_LIVE)
        return 0;
    const int32_t stop[] = {3};
    struct sched_request r = {.id = m->last_id + 1,
                              .prompt = prompt,
                              .n_prompt = n,
                              .max_new = max_new,
                              .stop_ids = stop,
                              .n_stop = 1};
    struct seen_prompt mine = {0};
    if (seen) {
        mine = *seen;
        for (uint32_t i = 0; i < mine.n_images; i++)
            put_message(&mine.images[i], &l->messages[i]);
        seen = &mine;
        r.images = seen->images;
        r.n_images = seen->n_images;
        r.feature_of = seen->feature_of;
        r.places = seen->places;
        r.spans = seen->has_spans ? seen->spans : NULL;
        r.place_delta = seen->place_delta;
    }
    if (sched_submit(m->s, &r, NULL) != ERR_OK)
        return 0;
    l->used = true; /* its messages stay where they are */
    l->id = ++m->last_id;
    l->n_prompt = l->n_tokens = n;
    l->max_new = max_new;
    l->n_cached = 0;
    for (uint32_t i = 0; seen && i < seen->n_images; i++)
        memcpy(l->keys[i], seen->images[i].key, sizeof l->keys[i]);
    l->submitted_step = m->n_steps;
    memcpy(l->tokens, prompt, n * sizeof *prompt);
    l->place_delta = seen ? seen->place_delta : 0;
    make_values(l, seen);
    return l->id;
}

static inline uint64_t submit(struct sim *m, const int32_t *prompt, uint32_t n, uint32_t max_new)
{
    return submit_seen(m, prompt, n, max_new, NULL);
}

/* A state begins at position 0 or goes on where it stands; all it has seen must be of this request. */
static inline void run_slot(struct sim *m, const struct step_seq *q, const int32_t *values,
                            const struct live *l)
{
    if (!m->o.limits.n_slots) {
        assert_int_equal(q->slot, 0);
        return;
    }
    assert_true(q->slot < m->o.limits.n_slots);
    if (q->position == 0)
        m->slots[q->slot].n = 0;
    assert_int_equal(m->slots[q->slot].n, q->position);
    for (uint32_t i = 0; i < q->n_tokens; i++)
        m->slots[q->slot].tokens[m->slots[q->slot].n++] = values[i];
    assert_memory_equal(m->slots[q->slot].tokens, l->values, m->slots[q->slot].n * sizeof *values);
}

/* Before anything runs. No snapshot that a step writes is read by it, or written twice. */
static inline void restore_all(struct sim *m, const struct step_plan *p)
{
    const struct step_seq *q = (const struct step_seq *)((const char *)p + p->seqs_at);
    uint32_t written = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        assert_false(q[i].save && written >> (q[i].save - 1) & 1);
        written |= q[i].save ? 1u << (q[i].save - 1) : 0;
    }
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        if (!q[i].restore)
            continue;
        assert_false(written >> (q[i].restore - 1) & 1);
        assert_int_equal(m->kept[q[i].restore - 1].n, q[i].position);
        m->slots[q[i].slot] = m->kept[q[i].restore - 1];
        m->n_restored++;
    }
}

/* Of a run that did not end well the snapshot must never be used. */
static inline void save_all(struct sim *m, const struct step_plan *p, bool well)
{
    const struct step_seq *q = (const struct step_seq *)((const char *)p + p->seqs_at);
    m->longest_save = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        if (!q[i].save)
            continue;
        uint32_t end = q[i].position + q[i].n_tokens;
        assert_int_equal(end % PT, 0);
        m->kept[q[i].save - 1] = m->slots[q[i].slot];
        if (!well || !find_live(m, q[i].request))
            m->kept[q[i].save - 1].n = GARBAGE;
        m->longest_save = end > m->longest_save ? end : m->longest_save;
        m->n_saved++;
    }
}

/* What the tokens of a run are; rows of pictures come out of the store. */
static inline void run_values(const struct sim *m, const struct step_plan *p, const struct step_seq *q,
                              int32_t *values)
{
    const int32_t *tokens = (const int32_t *)((const char *)p + p->tokens_at) + q->first_token;
    const struct step_place *places =
        (const struct step_place *)((const char *)p + p->places_at) + q->first_token;
    uint64_t rows[512] = {0};
    for (uint32_t i = 0; p->n_places && i < q->n_tokens; i++) {
        rows[i] = places[i].feature < 0 ? 0 : m->store[places[i].feature];
        assert_true(places[i].feature < 0 || rows[i]); /* filled */
    }
    for (uint32_t i = 0; i < q->n_tokens; i++)
        values[i] = p->n_places ? value_at(tokens, places, rows, i, q->position) : tokens[i];
}

/* Runs one sequence: writes its slots, then reads the whole prefix back from the pages. */
static inline int32_t run_seq(struct sim *m, const struct step_plan *p, const struct step_seq *q)
{
    const int32_t *tokens = (const int32_t *)((const char *)p + p->tokens_at) + q->first_token;
    const int32_t *pages = (const int32_t *)((const char *)p + p->pages_at) + q->first_page;
    struct live *l = find_live(m, q->request);
    int32_t values[512];
    assert_non_null(l);
    run_values(m, p, q, values);
    run_slot(m, q, values, l);
    for (uint32_t i = 0; i < q->n_tokens; i++) {
        uint32_t at = q->position + i;
        assert_true(at < l->n_tokens);
        assert_int_equal(tokens[i], l->tokens[at]);
        assert_int_equal(values[i], l->values[at]);
        m->kv[pages[at / PT] * PT + (int32_t)(at % PT)] = values[i];
    }
    for (uint32_t at = 0; at < q->position + q->n_tokens; at++)
        if (m->kv[pages[at / PT] * PT + (int32_t)(at % PT)] != l->values[at])
            fail_msg("request %llu reads a wrong token at %u", (unsigned long long)q->request, at);
    bool last = q->position + q->n_tokens == l->n_tokens;
    assert_int_equal((q->flags & STEP_SAMPLE) != 0, last);
    return last ? next_token(l->tokens, l->n_tokens) : -1;
}

static inline void on_event(void *context, const struct sched_event *event)
{
    struct sim *m = context;
    struct live *l = find_live(m, event->id);
    assert_non_null(l);
    m->n_events++;
    if (event->token >= 0) {
        assert_int_equal(event->token, next_token(l->tokens, l->n_tokens));
        add_generated(l, event->token);
        l->n_cached = event->n_cached;
        assert_int_equal(event->n_generated, l->n_tokens - l->n_prompt);
        bool stop = event->token == 3, full = event->n_generated == l->max_new;
        assert_int_equal(event->finish, stop ? SCHED_STOP : full ? SCHED_LENGTH : SCHED_RUNNING);
    } else {
        assert_int_equal(event->finish, SCHED_FAILED);
        assert_non_null(event->why);
        m->n_failed++;
    }
    if (event->finish != SCHED_RUNNING) {
        l->used = false;
        m->n_finished++;
    }
}

static inline bool plan(struct sim *m, struct step_plan **p)
{
    struct err e = {0};
    if (sched_plan(m->s, m->plan, sizeof m->plan, p, &e) != ERR_OK)
        fail_msg("sched_plan: %s", e.message);
    check(m);
    if (!*p)
        return false;
    if (step_plan_validate(*p, (*p)->bytes, &m->o.limits, &e) != ERR_OK)
        fail_msg("plan refused: %s", e.message);
    return true;
}

static inline void apply(struct sim *m, const struct step_plan *p)
{
    struct err e = {0};
    struct step_result *r;
    const struct step_seq *q = (const struct step_seq *)((const char *)p + p->seqs_at);
    m->n_steps++;
    m->n_computed += p->n_tokens;
    restore_all(m, p);
    if (m->break_step) {
        save_all(m, p, false);
        step_result_error(m->result, sizeof m->result, p->step, ERR_DEVICE, "lightning", &r, NULL);
    } else {
        assert_int_equal(step_result_init(m->result, sizeof m->result, p->n_seqs, 0, 0, &r, NULL), ERR_OK);
        r->step = p->step;
        for (uint32_t i = 0; i < p->n_seqs; i++) {
            struct step_seq_result *o = &step_result_seqs(r)[i];
            *o = (struct step_seq_result){.request = q[i].request, .token = -1};
            if (find_live(m, q[i].request))
                o->token = run_seq(m, p, &q[i]);
            if (m->not_finite) {
                o->token = -1;
                o->status = STEP_NOT_FINITE;
            }
        }
        save_all(m, p, !m->not_finite);
    }
    if (sched_apply(m->s, r, r->bytes, on_event, m, &e) != ERR_OK)
        fail_msg("sched_apply: %s", e.message);
    check(m);
}

static inline void fill_store(struct sim *m, const struct sched_job *job)
{
    const struct live *l = find_live(m, job->request);
    assert_non_null(l);
    assert_ptr_equal(job->message, &l->messages[job->image]);
    assert_true(job->first_row + job->message->n_rows <= m->o.limits.n_feature_rows);
    for (uint32_t r = 0; r < job->message->n_rows; r++)
        m->store[job->first_row + r] = row_value(l->keys[job->image], r);
    m->n_pictures++;
}

/* One picture through the tower; false: none is asked for. */
static inline bool encode(struct sim *m)
{
    struct sched_job job, again;
    struct step_plan *p;
    if (!sched_picture(m->s, &job))
        return false;
    assert_int_equal(sched_plan(m->s, m->plan, sizeof m->plan, &p, NULL), ERR_BUSY);
    assert_false(sched_picture(m->s, &again));
    fill_store(m, &job);
    sched_picture_done(m->s, ERR_OK, NULL, on_event, m);
    check(m);
    return true;
}

/* All that the engine held is gone. */
static inline void lose(struct sim *m)
{
    sched_engine_lost(m->s);
    memset(m->kv, 0xff, m->o.limits.n_pages * PT * sizeof *m->kv);
    memset(m->slots, 0xff, sizeof m->slots);
    memset(m->kept, 0xff, sizeof m->kept);
    memset(m->store, 0, sizeof m->store);
}

static inline bool step(struct sim *m)
{
    struct step_plan *p;
    while (encode(m))
        ;
    if (!plan(m, &p))
        return false;
    apply(m, p);
    return true;
}

static inline void drain(struct sim *m)
{
    for (int i = 0; i < 10000 && step(m); i++)
        ;
    struct sched_stats st;
    sched_stats(m->s, &st);
    assert_int_equal(st.n_running + st.n_waiting, 0);
    assert_int_equal(st.pages_free, m->o.limits.n_pages);
    assert_int_equal(st.feature_rows_free, m->o.limits.n_feature_rows);
}

static inline void fill(int32_t *p, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        p[i] = (int32_t)(rng_u64(seed, i) % VOCAB);
}

/* A prompt with pictures at the places that `at` says (ascending, apart), the k-th with the rows and the key
 * that names[k] says; places as the Qwen-VL models have them. */
static inline void make_seen(struct seen_prompt *q, int32_t *prompt, uint32_t n, const uint32_t *at,
                             const char *names, bool spans)
{
    int32_t place = 0, row = 0;
    memset(q, 0, sizeof *q);
    q->has_spans = spans;
    for (uint32_t p = 0; p < n;) {
        const char name = names[q->n_images];
        const uint32_t rows = name && p == at[q->n_images] ? 1 + (uint32_t)(name - 'a') % 6 : 0;
        for (uint32_t i = 0; i < (rows ? rows : 1); i++, p++) {
            q->feature_of[p] = rows ? row++ : -1;
            q->places[3 * p] = place;
            q->places[3 * p + 1] = place + (int32_t)i / 2;
            q->places[3 * p + 2] = place + (int32_t)i % 2;
            q->spans[2 * p] = (int32_t)(p - i);
            q->spans[2 * p + 1] = (int32_t)(p - i + (rows ? rows : 1));
            if (rows)
                prompt[p] = 7; /* the same id for all: pictures differ by their keys alone */
        }
        place += rows ? ((int32_t)rows + 1) / 2 : 1;
        if (rows) {
            q->images[q->n_images] = (struct sched_image){.n_rows = rows};
            memset(q->images[q->n_images++].key, name, 32);
        }
    }
    q->place_delta = place - (int32_t)n;
}

/* Up to four pictures of few kinds, so that prompts begin alike. 'a' and 'g' have as many rows, and so on. */
static inline void random_seen(struct seen_prompt *q, struct rng *rng, int32_t *prompt, uint32_t n)
{
    uint32_t at[4], next = (uint32_t)rng_below(rng, 4);
    char names[5] = {0};
    for (uint32_t i = 0; i < 4; i++) {
        const char name = (char)('a' + rng_below(rng, 2) * 6 + (i + 2) % 6);
        const uint32_t rows = 1 + (uint32_t)(name - 'a') % 6;
        if (next + rows > n)
            break;
        at[i] = next;
        names[i] = name;
        next += rows + (uint32_t)rng_below(rng, 2) * 5;
    }
    make_seen(q, prompt, n, at, names, rng_below(rng, 2));
}

#endif
