/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler under a simulator that stands for the engine: it remembers which tokens each KV page holds
 * and which each slot and snapshot of recurrent state has seen, and which row of which picture each row of
 * its store is, refuses a step that reads what was never written, and answers with tokens that depend on the
 * whole prefix. A token is its id or, where it takes a row of a picture, stands elsewhere than at its
 * position or sees others both ways, a number in which all of that counts.
 */
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
static int32_t next_token(const int32_t *tokens, uint32_t n)
{
    return (int32_t)(hash64(tokens, n * sizeof *tokens, 99) % VOCAB);
}

/* A row of a picture, never 0. */
static uint64_t row_value(const uint8_t key[32], uint32_t row)
{
    return hash64(key, 32, row + 1) | 1;
}

static uint64_t taken_value(int32_t token, const int32_t place[3], uint64_t row)
{
    uint64_t h = hash64(place, 3 * sizeof *place, (uint64_t)token);
    return hash64(&row, sizeof row, h);
}

/* Of token i of a run that begins at position `first`: all tokens of its span lie within the run. rows: what
 * each takes, 0 for none. */
static int32_t value_at(const int32_t *tokens, const struct step_place *places, const uint64_t *rows,
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

static struct live *find_live(struct sim *m, uint64_t id)
{
    for (int i = 0; i < MAX_LIVE; i++)
        if (m->live[i].used && m->live[i].id == id)
            return &m->live[i];
    return NULL;
}

static void sim_open(struct sim *m, struct sched_options o)
{
    memset(m, 0, sizeof *m);
    if (!o.limits.page_tokens)
        o.limits = (struct engine_limits){.max_tokens = 16,
                                          .max_seqs = 4,
                                          .max_rows = 4,
                                          .max_pages_per_seq = 16,
                                          .n_pages = 32,
                                          .page_tokens = PT,
                                          .vocab = VOCAB};
    if (!o.max_context)
        o.max_context = 64;
    if (!o.max_waiting)
        o.max_waiting = 32;
    m->o = o;
    m->kv = malloc(o.limits.n_pages * PT * sizeof *m->kv);
    memset(m->kv, 0xff, o.limits.n_pages * PT * sizeof *m->kv);
    assert_int_equal(sched_open(&m->s, &o, NULL), ERR_OK);
}

static void sim_close(struct sim *m)
{
    sched_close(m->s);
    free(m->kv);
}

static void check(struct sim *m)
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

static void make_values(struct live *l, const struct seen_prompt *q)
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

static void add_generated(struct live *l, int32_t token)
{
    const int32_t at = (int32_t)l->n_tokens, place = at + l->place_delta;
    const struct step_place k = {.place = {place, place, place}, .span = {at, at + 1}};
    const uint64_t none = 0;
    l->tokens[l->n_tokens] = token;
    l->values[l->n_tokens++] = value_at(&token, &k, &none, 0, (uint32_t)at);
}

static uint64_t submit_seen(struct sim *m, const int32_t *prompt, uint32_t n, uint32_t max_new,
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
        for (uint32_t i = 0; i < mine.n_images; i++) {
            l->messages[i] = (struct picture_plan){.magic = PICTURE_PLAN_MAGIC,
                                                   .bytes = sizeof(struct picture_plan),
                                                   .n_patches = 4 * mine.images[i].n_rows,
                                                   .n_rows = mine.images[i].n_rows};
            mine.images[i].message = &l->messages[i];
            mine.images[i].bytes = sizeof(struct picture_plan);
        }
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

static uint64_t submit(struct sim *m, const int32_t *prompt, uint32_t n, uint32_t max_new)
{
    return submit_seen(m, prompt, n, max_new, NULL);
}

/* A state begins at position 0 or goes on where it stands; all it has seen must be of this request. */
static void run_slot(struct sim *m, const struct step_seq *q, const int32_t *values, const struct live *l)
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
static void restore_all(struct sim *m, const struct step_plan *p)
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
static void save_all(struct sim *m, const struct step_plan *p, bool well)
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
static void run_values(const struct sim *m, const struct step_plan *p, const struct step_seq *q,
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
static int32_t run_seq(struct sim *m, const struct step_plan *p, const struct step_seq *q)
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

static void on_event(void *context, const struct sched_event *event)
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

static bool plan(struct sim *m, struct step_plan **p)
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

static void apply(struct sim *m, const struct step_plan *p)
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

static void fill_store(struct sim *m, const struct sched_job *job)
{
    const struct live *l = find_live(m, job->request);
    assert_non_null(l);
    assert_ptr_equal(job->message, &l->messages[job->image]);
    assert_true(job->first_row + job->message->n_rows <= m->o.limits.n_feature_rows);
    for (uint32_t r = 0; r < job->message->n_rows; r++)
        m->store[job->first_row + r] = row_value(l->keys[job->image], r);
    m->n_pictures++;
}

static void encode_all(struct sim *m)
{
    struct sched_job job, again;
    struct step_plan *p;
    while (sched_picture(m->s, &job)) {
        assert_int_equal(sched_plan(m->s, m->plan, sizeof m->plan, &p, NULL), ERR_BUSY);
        assert_false(sched_picture(m->s, &again));
        fill_store(m, &job);
        sched_picture_done(m->s, ERR_OK, NULL, on_event, m);
        check(m);
    }
}

static bool step(struct sim *m)
{
    struct step_plan *p;
    encode_all(m);
    if (!plan(m, &p))
        return false;
    apply(m, p);
    return true;
}

static void drain(struct sim *m)
{
    for (int i = 0; i < 10000 && step(m); i++)
        ;
    struct sched_stats st;
    sched_stats(m->s, &st);
    assert_int_equal(st.n_running + st.n_waiting, 0);
    assert_int_equal(st.pages_free, m->o.limits.n_pages);
    assert_int_equal(st.feature_rows_free, m->o.limits.n_feature_rows);
}

static void fill(int32_t *p, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        p[i] = (int32_t)(rng_u64(seed, i) % VOCAB);
}

/* A prompt with pictures at the places that `at` says (ascending, apart), the k-th with the rows and the key
 * that names[k] says; places as the Qwen-VL models have them. */
static void make_seen(struct seen_prompt *q, int32_t *prompt, uint32_t n, const uint32_t *at,
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
static void random_seen(struct seen_prompt *q, struct rng *rng, int32_t *prompt, uint32_t n)
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

/* ---- tests --------------------------------------------------------------------------------------------- */

static void test_refusals(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    sim_open(m, (struct sched_options){.max_waiting = 2});
    int32_t p[80];
    fill(p, 80, 1);
    struct err e = {0};
    struct sched_request r = {.id = 1, .prompt = p, .n_prompt = 60, .max_new = 5};
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_LIMIT); /* context */
    assert_non_null(strstr(e.message, "64"));
    r.max_new = 4;
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_OK);
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_INVALID); /* same id */
    r.id = 2;
    r.n_prompt = 0;
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_INVALID);
    r.n_prompt = 3;
    r.max_new = 0;
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_INVALID);
    r.max_new = UINT32_MAX;
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_LIMIT);
    r.max_new = 1;
    p[1] = VOCAB;
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_INVALID);
    p[1] = -1;
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_INVALID);
    p[1] = 0;
    r.sampling.temperature = -1;
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_FORMAT);
    r.sampling.temperature = 0;
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_OK);
    r.id = 3;
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_BUSY);
    check(m);
    sim_close(m);
    /* more than all pages */
    struct engine_limits few = {.max_tokens = 16,
                                .max_seqs = 4,
                                .max_rows = 4,
                                .max_pages_per_seq = 16,
                                .n_pages = 3,
                                .page_tokens = PT,
                                .vocab = VOCAB};
    sim_open(m, (struct sched_options){.limits = few});
    r = (struct sched_request){.id = 1, .prompt = p, .n_prompt = 3 * PT, .max_new = 2};
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_LIMIT);
    assert_non_null(strstr(e.message, "4 pages"));
    r.max_new = 1; /* the last token given is never computed */
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_OK);
    sim_close(m);
    few.vocab = 0;
    assert_int_equal(sched_open(&m->s, &(struct sched_options){.limits = few, .max_context = 9}, &e),
                     ERR_INVALID);
    free(m);
}

static void test_batch_order(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    sim_open(m, (struct sched_options){.prefill_chunk = 6});
    int32_t p[40];
    fill(p, 40, 4);
    uint64_t a = submit(m, p, 5, 20), b = submit(m, p, 30, 4);
    struct step_plan *s;
    assert_true(plan(m, &s));
    const struct step_seq *q = step_plan_seqs(s);
    assert_int_equal(s->n_seqs, 2);
    assert_int_equal(q[0].request, a);
    assert_int_equal(q[0].n_tokens, 5);
    assert_int_equal(q[1].request, b);
    assert_int_equal(q[1].n_tokens, 6); /* chunk */
    apply(m, s);
    assert_true(plan(m, &s));
    q = step_plan_seqs(s);
    assert_int_equal(q[0].request, a); /* decode goes first */
    assert_int_equal(q[0].n_tokens, 1);
    assert_int_equal(q[1].position, 6);
    /* one step at a time */
    struct step_plan *again;
    assert_int_equal(sched_plan(m->s, m->result, sizeof m->result, &again, NULL), ERR_BUSY);
    apply(m, s);
    /* a buffer that is too small changes nothing */
    assert_int_equal(sched_plan(m->s, m->plan, 64, &again, NULL), ERR_LIMIT);
    check(m);
    drain(m);
    sim_close(m);
    free(m);
}

/* Its request leaves meanwhile, or the tower fails. */
static void picture_goes_wrong(struct sim *m, struct rng *rng)
{
    struct sched_job job;
    struct live *l;
    if (!sched_picture(m->s, &job))
        return;
    l = find_live(m, job.request);
    fill_store(m, &job);
    if (rng_below(rng, 2)) {
        sched_cancel(m->s, job.request);
        l->used = false;
        check(m);
        sched_picture_done(m->s, ERR_OK, NULL, on_event, m);
    } else {
        uint64_t n = m->n_failed;
        sched_picture_done(m->s, ERR_DEVICE, "fog", on_event, m);
        assert_int_equal(m->n_failed, n + 1);
        assert_false(l->used);
    }
    check(m);
}

static void test_random(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    uint64_t n_restored = 0, n_saved = 0, n_pictures = 0, n_cached = 0;
    for (uint64_t seed = 0; seed < 48; seed++) {
        struct rng rng;
        rng_init(&rng, seed);
        struct engine_limits l = {.max_tokens = (uint32_t)(1 + rng_below(&rng, 24)),
                                  .max_seqs = (uint32_t)(1 + rng_below(&rng, 6)),
                                  .max_rows = (uint32_t)(1 + rng_below(&rng, 6)),
                                  .max_pages_per_seq = 16,
                                  .n_pages = (uint32_t)(8 + rng_below(&rng, 30)),
                                  .page_tokens = PT,
                                  .vocab = VOCAB};
        if (seed % 2) /* fewer slots than sequences, as many, more */
            l.n_slots = l.max_seqs / 2 + (uint32_t)rng_below(&rng, 6) + 1;
        if (seed % 4 > 1) { /* pictures, in half of them beside recurrent states */
            l.n_feature_rows = 6 + (uint32_t)rng_below(&rng, 20);
            l.max_patches = 24;
            l.max_picture_rows = 6;
        }
        l.n_snapshots =
            l.n_slots && (seed % 4 == 1 || seed % 8 == 3) ? 1 + (uint32_t)rng_below(&rng, MAX_KEPT) : 0;
        sim_open(m, (struct sched_options){
                        .limits = l,
                        .prefix_cache = seed % 3 != 0,
                        .hash_mask = seed % 4 == 1 || seed % 8 == 6 ? 3 : 0, /* collisions everywhere */
                        .snapshot_every = seed % 8 == 1 ? 1 + (uint32_t)rng_below(&rng, 20) : 0,
                        .prefill_chunk = (uint32_t)rng_below(&rng, 9)});
        int32_t p[64];
        for (int i = 0; i < 1500; i++) {
            uint64_t what = rng_below(&rng, 100);
            if (what < 30) {
                uint32_t n = (uint32_t)(1 + rng_below(&rng, 40));
                fill(p, n, rng_below(&rng, 3)); /* three families of prompts with common beginnings */
                for (uint64_t k = rng_below(&rng, 3); k > 0; k--)
                    p[rng_below(&rng, n)] = (int32_t)rng_below(&rng, VOCAB);
                struct seen_prompt seen;
                bool sees = l.n_feature_rows && rng_below(&rng, 4);
                struct rng few; /* so that pictures come again */
                rng_init(&few, rng_below(&rng, 5));
                if (sees)
                    random_seen(&seen, &few, p, n);
                submit_seen(m, p, n, (uint32_t)(1 + rng_below(&rng, 12)), sees ? &seen : NULL);
            } else if (what < 38) {
                struct live *l1 = &m->live[rng_below(&rng, MAX_LIVE)];
                sched_cancel(m->s, l1->used ? l1->id : 12345678);
                l1->used = false;
            } else if (what < 42) {
                struct step_plan *s; /* cancel while the step is out, and reuse of the id */
                if (plan(m, &s)) {
                    uint64_t id = step_plan_seqs(s)[0].request;
                    struct live *l1 = find_live(m, id);
                    sched_cancel(m->s, id);
                    l1->used = false;
                    check(m);
                    struct sched_request r = {
                        .id = id, .prompt = l1->tokens, .n_prompt = l1->n_prompt, .max_new = 2};
                    if (sched_submit(m->s, &r, NULL) == ERR_OK) {
                        sched_cancel(m->s, id);
                    }
                    apply(m, s);
                }
            } else if (what == 42 || what == 43) {
                m->break_step = what == 42;
                m->not_finite = what == 43;
                step(m);
                m->break_step = m->not_finite = false;
            } else if (what == 44) {
                struct step_plan *s;
                struct sched_job job;
                if (!rng_below(&rng, 2) || !sched_picture(m->s, &job))
                    plan(m, &s);
                sched_engine_lost(m->s);
                memset(m->kv, 0xff, l.n_pages * PT * sizeof *m->kv);
                memset(m->slots, 0xff, sizeof m->slots);
                memset(m->kept, 0xff, sizeof m->kept);
                memset(m->store, 0, sizeof m->store);
            } else if (what < 50) {
                picture_goes_wrong(m, &rng);
            } else {
                step(m);
            }
            check(m);
        }
        drain(m);
        struct sched_stats st;
        sched_stats(m->s, &st);
        if (l.n_slots && !l.n_snapshots)
            assert_int_equal(st.tokens_cached, 0); /* a page does not hold the state after it */
        n_pictures += st.images_encoded;
        n_cached += st.images_cached;
        assert_true(st.images_encoded <= m->n_pictures);
        n_restored += m->n_restored;
        n_saved += m->n_saved;
        assert_int_equal(st.snapshots_total, l.n_snapshots);
        sim_close(m);
    }
    if (n_restored < 100 || n_saved < 1000 || n_pictures < 1000 || n_cached < 100)
        fail_msg("%llu restored, %llu saved, %llu pictures, %llu cached", (unsigned long long)n_restored,
                 (unsigned long long)n_saved, (unsigned long long)n_pictures, (unsigned long long)n_cached);
    free(m);
}

/* Everyone gets through while new work never ends, also when a step is smaller than the running set. */
static void test_no_starvation(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    for (uint32_t width = 1; width <= 4; width++) {
        struct engine_limits l = {.max_tokens = width,
                                  .max_seqs = 4,
                                  .max_rows = width,
                                  .max_pages_per_seq = 16,
                                  .n_pages = 20,
                                  .page_tokens = PT,
                                  .vocab = VOCAB};
        sim_open(m, (struct sched_options){.limits = l, .max_waiting = 8});
        int32_t p[40];
        for (uint64_t i = 0; i < 4000; i++) {
            uint32_t n = i % 5 ? 2 : 40; /* large ones among many small ones */
            fill(p, n, i);
            submit(m, p, n, 8);
            step(m);
            for (int k = 0; k < MAX_LIVE; k++)
                if (m->live[k].used)
                    assert_true(m->n_steps - m->live[k].submitted_step < 1200);
        }
        drain(m);
        assert_true(m->n_finished > 100);
        sim_close(m);
    }
    free(m);
}

/* Who has begun to decode gets a token in every step, however small the steps are. */
static void test_steady_decode(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    for (uint32_t width = 1; width < 9; width++) {
        struct engine_limits l = {.max_tokens = width,
                                  .max_seqs = 4,
                                  .max_rows = 1 + width / 2,
                                  .max_pages_per_seq = 16,
                                  .n_pages = 40,
                                  .page_tokens = PT,
                                  .vocab = VOCAB};
        sim_open(m, (struct sched_options){.limits = l, .prefill_chunk = 3});
        for (uint64_t i = 0; i < 300; i++) {
            struct live before[MAX_LIVE];
            int32_t p[20];
            fill(p, 20, i);
            submit(m, p, 1 + (uint32_t)(i * 7 % 20), 20);
            memcpy(before, m->live, sizeof before);
            step(m);
            for (int k = 0; k < MAX_LIVE; k++)
                if (before[k].used && before[k].n_tokens > before[k].n_prompt)
                    assert_int_equal(m->live[k].n_tokens, before[k].n_tokens + 1);
        }
        drain(m);
        sim_close(m);
    }
    free(m);
}

static uint32_t cached_of(struct sim *m, const int32_t *p, uint32_t n, uint32_t max_new)
{
    uint64_t id = submit(m, p, n, max_new);
    assert_true(id != 0);
    struct live *l = find_live(m, id);
    drain(m);
    return l->n_cached;
}

static void test_prefix_cache(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    for (int collide = 0; collide < 2; collide++) {
        sim_open(m, (struct sched_options){.prefix_cache = true, .hash_mask = collide ? 1 : 0});
        int32_t p[40], q[40];
        fill(p, 40, 3);
        assert_int_equal(cached_of(m, p, 16, 1), 0);
        /* the last token of a prompt is always computed: three pages of four */
        assert_int_equal(cached_of(m, p, 16, 1), 12);
        assert_int_equal(cached_of(m, p, 17, 1), 16);
        assert_int_equal(cached_of(m, p, 7, 1), 4);
        assert_int_equal(cached_of(m, p, 4, 1), 0);
        /* a difference in the first page: nothing behind it may be used, although the tokens there are equal
         */
        memcpy(q, p, sizeof q);
        q[0] = (q[0] + 1) % VOCAB;
        assert_int_equal(cached_of(m, q, 17, 1), 0);
        memcpy(q, p, sizeof q);
        q[9] = (q[9] + 1) % VOCAB;
        assert_int_equal(cached_of(m, q, 17, 1), 8);
        sim_close(m);
    }
    /* equal tokens behind another beginning, with hashes that collide more often than not */
    for (uint64_t seed = 0; seed < 20; seed++) {
        sim_open(m, (struct sched_options){.prefix_cache = true, .hash_mask = 1});
        int32_t x[8], y[8];
        fill(x, 8, 100 + seed);
        memcpy(y, x, sizeof y);
        y[1] = (y[1] + 1) % VOCAB;
        assert_int_equal(cached_of(m, x, 8, 2), 0); /* computes both pages of x */
        assert_int_equal(cached_of(m, y, 5, 1), 0); /* first page of y */
        int32_t longer[9];
        memcpy(longer, y, sizeof y);
        longer[8] = 1;
        assert_int_equal(cached_of(m, longer, 9, 1), 4); /* the second page of x is not y's */
        sim_close(m);
    }
    /* what a failed request left behind is not found */
    for (int how = 0; how < 2; how++) {
        sim_open(m, (struct sched_options){.prefix_cache = true, .prefill_chunk = 8});
        int32_t x[17];
        fill(x, 17, 7);
        submit(m, x, 17, 4);
        step(m);
        m->break_step = how == 0;
        m->not_finite = how == 1;
        step(m);
        m->break_step = m->not_finite = false;
        assert_int_equal(m->n_failed, 1);
        assert_int_equal(cached_of(m, x, 17, 1), 0);
        sim_close(m);
    }
    /* generated tokens are found, too: the next turn of a conversation */
    sim_open(m, (struct sched_options){.prefix_cache = true});
    int32_t p[40];
    fill(p, 10, 5);
    uint64_t id = submit(m, p, 10, 12);
    struct live *l = find_live(m, id);
    drain(m);
    uint32_t n = l->n_tokens;
    memcpy(p, l->tokens, n * sizeof *p);
    p[n] = 1;
    assert_int_equal(cached_of(m, p, n + 1, 1), (n - 1) / PT * PT);
    struct sched_stats st;
    sched_stats(m->s, &st);
    assert_true(st.pages_cached > 0);
    /* after a loss nothing may be found */
    sched_engine_lost(m->s);
    memset(m->kv, 0xff, m->o.limits.n_pages * PT * sizeof *m->kv);
    assert_int_equal(cached_of(m, p, n + 1, 1), 0);
    sim_close(m);
    free(m);
}

/* The oldest unused prefix goes first; a prefix in use never does. */
static void test_eviction(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    struct engine_limits l = {.max_tokens = 64,
                              .max_seqs = 4,
                              .max_rows = 4,
                              .max_pages_per_seq = 16,
                              .n_pages = 9,
                              .page_tokens = PT,
                              .vocab = VOCAB};
    sim_open(m, (struct sched_options){.limits = l, .prefix_cache = true});
    int32_t a[20], b[20], c[20];
    fill(a, 20, 11);
    fill(b, 20, 12);
    fill(c, 20, 13);
    assert_int_equal(cached_of(m, a, 16, 1), 0);
    assert_int_equal(cached_of(m, b, 16, 1), 0);
    assert_int_equal(cached_of(m, a, 16, 1), 12); /* now b is the older one */
    assert_int_equal(cached_of(m, c, 16, 1), 0);  /* needs 4, one is free: 3 pages of b go, deepest first */
    assert_int_equal(cached_of(m, a, 16, 1), 12);
    assert_int_equal(cached_of(m, b, 8, 1), 4);
    sim_close(m);
    free(m);
}

static const struct engine_limits recurrent_limits = {.max_tokens = 64,
                                                      .max_seqs = 4,
                                                      .max_rows = 4,
                                                      .max_pages_per_seq = 16,
                                                      .n_pages = 48,
                                                      .page_tokens = PT,
                                                      .vocab = VOCAB,
                                                      .n_slots = 4,
                                                      .n_snapshots = 4};

static uint32_t kept_now(struct sim *m)
{
    struct sched_stats st;
    sched_stats(m->s, &st);
    return st.snapshots_kept;
}

/* Where states are kept: behind the last full page of a prompt, and where a known beginning ends. */
static void test_snapshots(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    int32_t p[40], q[40];
    for (int collide = 0; collide < 2; collide++) {
        sim_open(m, (struct sched_options){
                        .limits = recurrent_limits, .prefix_cache = true, .hash_mask = collide ? 1 : 0});
        fill(p, 40, 3);
        assert_int_equal(cached_of(m, p, 16, 1), 0);
        assert_int_equal(kept_now(m), 1);
        assert_int_equal(cached_of(m, p, 16, 1), 12);
        assert_int_equal(cached_of(m, p, 15, 1), 12);
        assert_int_equal(cached_of(m, p, 12, 1),
                         0); /* its last token must be computed: 8, and none is there */
        assert_int_equal(cached_of(m, p, 12, 1), 8);  /* the one before has left it */
        assert_int_equal(cached_of(m, p, 18, 1), 12); /* known up to 16 */
        assert_int_equal(cached_of(m, p, 18, 1), 16);
        /* parts from it within the third page; the second time there is a state */
        memcpy(q, p, sizeof q);
        q[9] = (q[9] + 1) % VOCAB;
        assert_int_equal(cached_of(m, q, 30, 1), 8);
        assert_int_equal(cached_of(m, q, 30, 1), 28);
        /* the same tokens behind another first page, which the hash does not tell apart */
        memcpy(q, p, sizeof q);
        q[1] = (q[1] + 1) % VOCAB;
        assert_int_equal(cached_of(m, q, 18, 1), 0);
        assert_int_equal(cached_of(m, q, 18, 1), 16);
        sim_close(m);
    }
    /* a beginning of two: the first leaves no state there, the second does, the third has it */
    sim_open(m, (struct sched_options){.limits = recurrent_limits, .prefix_cache = true});
    for (uint64_t i = 0; i < 3; i++) {
        fill(p, 40, 8);
        fill(q, 40, 20 + i);
        memcpy(p + 21, q, 19 * sizeof *p);
        assert_int_equal(cached_of(m, p, 40, 1), i == 2 ? 20 : 0);
    }
    sim_close(m);
    free(m);
}

/* A run ends where a state is kept, whatever the chunk; at multiples too, also of what was generated. */
static void test_snapshot_cuts(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    int32_t p[60];
    fill(p, 60, 31);
    sim_open(m, (struct sched_options){.limits = recurrent_limits,
                                       .prefix_cache = true,
                                       .prefill_chunk = 7,
                                       .snapshot_every = 9}); /* 12 */
    uint64_t id = submit(m, p, 31, 10);
    static const uint32_t ends[] = {7, 12, 19, 24, 28, 31}, saved[] = {0, 12, 0, 24, 28, 0};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        struct step_plan *s;
        assert_true(plan(m, &s));
        assert_int_equal(step_plan_seqs(s)[0].position + step_plan_seqs(s)[0].n_tokens, ends[i]);
        apply(m, s);
        assert_int_equal(m->longest_save, saved[i]);
    }
    struct live *l = find_live(m, id);
    drain(m);
    if (l->n_tokens < 37)
        fail_msg("the text ended after %u tokens: choose another one", l->n_tokens);
    assert_int_equal(m->n_saved, 4);
    memcpy(p, l->tokens, l->n_tokens * sizeof *p);
    assert_int_equal(cached_of(m, p, l->n_tokens, 1), 36);
    sim_close(m);
    /* by itself the distance is such that one text does not use up all of them */
    sim_open(m, (struct sched_options){.limits = recurrent_limits, .prefix_cache = true});
    submit(m, p, 60, 1); /* two of 64 tokens, and the last full page */
    drain(m);
    assert_int_equal(m->n_saved, 2);
    sim_close(m);
    free(m);
}

static void test_snapshot_eviction(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    struct engine_limits l = recurrent_limits;
    int32_t a[20], b[20], c[20];
    fill(a, 20, 11);
    fill(b, 20, 12);
    fill(c, 20, 13);
    /* the longest unused goes first */
    l.n_snapshots = 2;
    sim_open(m, (struct sched_options){.limits = l, .prefix_cache = true, .snapshot_every = 60});
    assert_int_equal(cached_of(m, a, 20, 1), 0);
    assert_int_equal(cached_of(m, b, 20, 1), 0);
    assert_int_equal(cached_of(m, a, 20, 1), 16);
    assert_int_equal(cached_of(m, c, 20, 1), 0);
    assert_int_equal(cached_of(m, a, 20, 1), 16);
    assert_int_equal(cached_of(m, b, 20, 1), 0); /* its pages are there, its state is not */
    sim_close(m);
    /* with its page goes the state */
    l.n_pages = 9;
    sim_open(m, (struct sched_options){.limits = l, .prefix_cache = true, .snapshot_every = 60});
    assert_int_equal(cached_of(m, a, 20, 1), 0);
    assert_int_equal(kept_now(m), 1);
    fill(b, 20, 14);
    assert_int_equal(cached_of(m, b, 4, 21), 0); /* takes six pages: of the five of a the last two go */
    assert_int_equal(kept_now(m), 0);
    sim_close(m);
    /* one that somebody begins from in the step in which another is to be kept, and no other is left */
    l = recurrent_limits;
    l.n_snapshots = 1;
    sim_open(m, (struct sched_options){.limits = l, .prefix_cache = true, .snapshot_every = 60});
    assert_int_equal(cached_of(m, a, 20, 1), 0);
    submit(m, c, 20, 1);
    submit(m, a, 20, 1);
    submit(m, a, 18, 1);
    drain(m); /* the simulator looks */
    assert_int_equal(m->n_restored, 2);
    assert_int_equal(cached_of(m, a, 20, 1), 16);
    /* ... and then leaves before it has begun, so that it is free to go */
    uint64_t id = submit(m, a, 20, 1);
    struct step_plan *s;
    assert_true(plan(m, &s));
    assert_true(step_plan_seqs(s)[0].restore != 0);
    sched_cancel(m->s, id);
    find_live(m, id)->used = false;
    apply(m, s);
    assert_int_equal(cached_of(m, c, 20, 1), 0);
    assert_int_equal(cached_of(m, c, 20, 1), 16);
    sim_close(m);
    free(m);
}

/* What a failed, cancelled or lost step has written is no state to begin from. */
static void test_snapshot_failures(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    int32_t a[20];
    fill(a, 20, 17);
    for (int how = 0; how < 4; how++) {
        sim_open(m, (struct sched_options){.limits = recurrent_limits, .prefix_cache = true});
        uint64_t id = submit(m, a, 20, 1);
        m->break_step = how == 0;
        m->not_finite = how == 1;
        struct step_plan *s;
        assert_true(plan(m, &s));
        assert_true(step_plan_seqs(s)[0].save != 0);
        if (how == 2) {
            sched_cancel(m->s, id);
            find_live(m, id)->used = false;
        }
        if (how == 3) {
            sched_engine_lost(m->s);
            memset(m->kept, 0xff, sizeof m->kept);
            memset(m->slots, 0xff, sizeof m->slots);
            check(m);
            drain(m);
        } else {
            apply(m, s);
        }
        m->break_step = m->not_finite = false;
        assert_int_equal(cached_of(m, a, 20, 1), how == 3 ? 16 : 0);
        assert_int_equal(cached_of(m, a, 20, 1), 16);
        /* what was kept before a loss is gone after it */
        sched_engine_lost(m->s);
        memset(m->kept, 0xff, sizeof m->kept);
        memset(m->kv, 0xff, m->o.limits.n_pages * PT * sizeof *m->kv);
        assert_int_equal(kept_now(m), 0);
        assert_int_equal(cached_of(m, a, 20, 1), 0);
        sim_close(m);
    }
    free(m);
}

static void test_lost_engine(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    sim_open(m, (struct sched_options){.prefill_chunk = 5});
    int32_t p[3][20];
    for (int i = 0; i < 3; i++) {
        fill(p[i], 20, (uint64_t)i + 20);
        submit(m, p[i], (uint32_t)(5 + 7 * i), 10);
    }
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < i; k++)
            step(m);
        struct step_plan *s;
        plan(m, &s);
        sched_engine_lost(m->s);
        memset(m->kv, 0xff, m->o.limits.n_pages * PT * sizeof *m->kv);
        check(m);
    }
    drain(m); /* the simulator compares every token with what the whole prefix must give */
    assert_int_equal(m->n_finished, 3);
    assert_int_equal(m->n_failed, 0);
    sim_close(m);
    free(m);
}

static void test_bad_results(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    sim_open(m, (struct sched_options){0});
    int32_t p[8];
    fill(p, 8, 1);
    submit(m, p, 8, 4);
    struct step_plan *s;
    struct step_result *r;
    struct err e = {0};
    assert_int_equal(step_result_init(m->result, sizeof m->result, 1, 0, 0, &r, NULL), ERR_OK);
    assert_int_equal(sched_apply(m->s, r, r->bytes, on_event, m, &e), ERR_INVALID); /* none is out */
    plan(m, &s);
    assert_int_equal(sched_apply(m->s, r, r->bytes, on_event, m, &e), ERR_MISMATCH); /* step number */
    r->step = s->step;
    assert_int_equal(sched_apply(m->s, r, r->bytes - 8, on_event, m, &e), ERR_FORMAT);
    step_result_seqs(r)[0].token = 1;
    step_result_seqs(r)[0].request = 77;
    assert_int_equal(sched_apply(m->s, r, r->bytes, on_event, m, &e), ERR_MISMATCH);
    step_result_init(m->result, sizeof m->result, 2, 0, 0, &r, NULL);
    r->step = s->step;
    assert_int_equal(sched_apply(m->s, r, r->bytes, on_event, m, &e), ERR_MISMATCH);
    check(m);
    /* a token that does not exist fails its request only */
    step_result_init(m->result, sizeof m->result, 1, 0, 0, &r, NULL);
    r->step = s->step;
    step_result_seqs(r)[0] =
        (struct step_seq_result){.request = step_plan_seqs(s)[0].request, .token = VOCAB};
    assert_int_equal(sched_apply(m->s, r, r->bytes, on_event, m, &e), ERR_OK);
    assert_int_equal(m->n_failed, 1);
    drain(m);
    sim_close(m);
    free(m);
}

/* ---- pictures ------------------------------------------------------------------------------------------ */

static const struct engine_limits seeing_limits = {.max_tokens = 16,
                                                   .max_seqs = 4,
                                                   .max_rows = 4,
                                                   .max_pages_per_seq = 16,
                                                   .n_pages = 64,
                                                   .page_tokens = PT,
                                                   .vocab = VOCAB,
                                                   .n_feature_rows = 16,
                                                   .max_patches = 24,
                                                   .max_picture_rows = 6};

/* One request to its end: how many tokens were found, and how many pictures went through the tower. */
static uint32_t found(struct sim *m, int32_t *prompt, uint32_t n, const struct seen_prompt *seen,
                      uint64_t *encoded)
{
    uint64_t before = m->n_pictures, id = submit_seen(m, prompt, n, 2, seen);
    struct live *l = find_live(m, id);
    assert_non_null(l);
    drain(m);
    *encoded = m->n_pictures - before;
    return l->n_cached;
}

/* Equal ids are not enough: the pictures behind them must be the same, and stand in the same places. */
static void test_pictures_cached(void **state)
{
    (void)state;
    for (int spans = 0; spans < 2; spans++) {
        struct sim *m = malloc(sizeof *m);
        sim_open(m, (struct sched_options){.limits = seeing_limits, .prefix_cache = true});
        const uint32_t at[] = {5, 14};
        int32_t p[32], text[32];
        struct seen_prompt q;
        uint64_t encoded;
        fill(p, 32, 8);
        make_seen(&q, p, 32, at, "cf", spans); /* 3 rows at 5..7, 6 at 14..19 */
        assert_int_equal(found(m, p, 32, &q, &encoded), 0);
        assert_int_equal(encoded, 2);
        assert_int_equal(found(m, p, 32, &q, &encoded), 28); /* the same again */
        assert_int_equal(encoded, 0);
        make_seen(&q, p, 32, at, "il", spans); /* others of the same sizes: only the text before them */
        assert_int_equal(found(m, p, 32, &q, &encoded), 4);
        assert_int_equal(encoded, 2);
        make_seen(&q, p, 32, at, "cl", spans); /* the first is known; with spans a page must not end in one */
        assert_int_equal(found(m, p, 32, &q, &encoded), 12);
        assert_int_equal(encoded, 1);
        memcpy(text, p, sizeof text); /* the same ids without pictures */
        assert_int_equal(found(m, text, 32, NULL, &encoded), 4);
        make_seen(&q, p, 32, at, "cf", spans);
        q.places[3 * 30]++; /* one place of the text behind */
        assert_int_equal(found(m, p, 32, &q, &encoded), 28);
        q.places[3 * 22]++;
        assert_int_equal(found(m, p, 32, &q, &encoded), 20);
        /* the cache ends within the second picture: it is encoded again, unless it cannot be cut */
        make_seen(&q, p, 18, at, "cd", spans);
        assert_int_equal(found(m, p, 18, &q, &encoded), 12);
        /* a text without pictures is found by one with plain places, and the other way */
        struct seen_prompt plain;
        fill(p, 20, 9);
        make_seen(&plain, p, 20, at, "", spans);
        assert_int_equal(found(m, p, 20, NULL, &encoded), 0);
        assert_int_equal(found(m, p, 20, &plain, &encoded), 16);
        sim_close(m);
        free(m);
    }
}

/* A prefix that ends within a picture: what is left of it needs the rows, all of them. Within a span no
 * prefix ends, and two prompts that part within one share nothing of it. */
static void test_pictures_cut(void **state)
{
    (void)state;
    for (int spans = 0; spans < 2; spans++) {
        struct sim *m = malloc(sizeof *m);
        sim_open(m, (struct sched_options){.limits = seeing_limits, .prefix_cache = true});
        const uint32_t at[] = {6};
        int32_t p[32];
        struct seen_prompt q;
        uint64_t encoded;
        fill(p, 32, 8);
        make_seen(&q, p, 13, at, "f", spans); /* 6 rows at 6..11 */
        found(m, p, 13, &q, &encoded);
        assert_int_equal(found(m, p, 12, &q, &encoded), spans ? 4 : 8);
        assert_int_equal(encoded, 1);
        sim_close(m);
        /* a span of text: another id near its end changes the tokens at its beginning */
        sim_open(m, (struct sched_options){.limits = seeing_limits, .prefix_cache = true});
        make_seen(&q, p, 20, at, "", false);
        q.has_spans = true;
        for (int i = 4; spans && i < 12; i++) {
            q.spans[2 * i] = 4;
            q.spans[2 * i + 1] = 12;
        }
        found(m, p, 20, &q, &encoded);
        p[10] = (p[10] + 1) % VOCAB;
        found(m, p, 20, &q, &encoded);
        assert_int_equal(found(m, p, 20, &q, &encoded), 16);
        p[10] = (p[10] + VOCAB - 1) % VOCAB;
        assert_int_equal(found(m, p, 20, &q, &encoded), 16);
        sim_close(m);
        free(m);
    }
}

/* Rows are promised at admission: a request waits for them, and gets them when those of another are passed.
 */
static void test_pictures_wait(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    sim_open(m, (struct sched_options){.limits = seeing_limits, .prefill_chunk = 8});
    const uint32_t at[] = {0, 6, 12};
    int32_t p[20], text[20];
    struct seen_prompt q;
    struct sched_stats st;
    fill(p, 20, 1);
    fill(text, 20, 2);
    make_seen(&q, p, 20, at, "ff", false);
    uint64_t first = submit_seen(m, p, 20, 30, &q), second = submit_seen(m, p, 20, 3, &q);
    assert_true(first && second);
    step(m); /* 8 of 20: the first picture is passed, its rows are free, too few yet for two */
    sched_stats(m->s, &st);
    assert_int_equal(st.n_running, 1);
    assert_int_equal(st.feature_rows_free, 10);
    step(m);
    sched_stats(m->s, &st);
    assert_int_equal(st.feature_rows_free, 16);
    step(m);
    sched_stats(m->s, &st);
    assert_int_equal(st.n_running, 2);
    drain(m);
    /* the store is too small for all pictures of one request */
    struct sched_request r = {.id = 99, .prompt = p, .n_prompt = 20, .max_new = 1, .n_images = 3};
    make_seen(&q, p, 20, at, "fff", false);
    struct err e = {0};
    struct picture_plan message = {.magic = PICTURE_PLAN_MAGIC, .bytes = sizeof message, .n_rows = 6};
    for (int i = 0; i < 3; i++) {
        q.images[i].message = &message;
        q.images[i].bytes = sizeof message;
    }
    r.images = q.images;
    r.feature_of = q.feature_of;
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_LIMIT);
    assert_non_null(strstr(e.message, "18 rows, there is room for 16"));
    sim_close(m);
    free(m);
}

/* Those that wait for a token get one between two pictures; a request alone does not wait. */
static void test_pictures_between(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    sim_open(m, (struct sched_options){.limits = seeing_limits});
    const uint32_t at[] = {1, 3, 5};
    int32_t p[12], text[8];
    struct seen_prompt q;
    struct sched_job job;
    fill(p, 12, 1);
    fill(text, 8, 2);
    make_seen(&q, p, 12, at, "bbb", false);
    submit_seen(m, p, 12, 1, &q);
    for (int i = 0; i < 3; i++) {
        assert_true(sched_picture(m->s, &job));
        fill_store(m, &job);
        sched_picture_done(m->s, ERR_OK, NULL, on_event, m);
    }
    assert_false(sched_picture(m->s, &job));
    drain(m);
    for (int i = 0; next_token(text, 8) == 3 || i == 0; i++) /* it must not end at once */
        text[0] = i;
    uint64_t id = submit(m, text, 8, 20);
    step(m);
    struct live *l = find_live(m, id);
    submit_seen(m, p, 12, 1, &q);
    for (int i = 0; i < 3 && l->used; i++) {
        uint32_t before = l->n_tokens;
        assert_true(sched_picture(m->s, &job));
        fill_store(m, &job);
        sched_picture_done(m->s, ERR_OK, NULL, on_event, m);
        assert_false(sched_picture(m->s, &job));
        struct step_plan *s;
        assert_true(plan(m, &s));
        assert_false(sched_picture(m->s, &job)); /* a step is out */
        apply(m, s);
        assert_true(!l->used || l->n_tokens == before + 1);
    }
    drain(m);
    sim_close(m);
    free(m);
}

/* A span that a step holds only alone gets its step, while others go on to ask for tokens. */
static void test_spans_not_starved(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    struct engine_limits l = seeing_limits;
    l.max_tokens = 6;
    l.n_pages = 64;
    sim_open(m, (struct sched_options){.limits = l});
    const uint32_t at[] = {2, 8};
    int32_t p[16], text[8];
    struct seen_prompt q;
    fill(p, 16, 1);
    make_seen(&q, p, 16, at, "ff", true);
    uint64_t id = 0;
    for (int round = 0; round < 200; round++) {
        fill(text, 8, (uint64_t)round);
        submit(m, text, 8, 30);
        if (round == 20)
            id = submit_seen(m, p, 16, 1, &q);
        step(m);
        if (id && !find_live(m, id))
            break;
    }
    assert_true(id && !find_live(m, id));
    drain(m);
    /* longer than a step: never */
    for (int i = 0; i < 7; i++) {
        q.spans[2 * i] = 0;
        q.spans[2 * i + 1] = 7;
    }
    q.spans[14] = 7;
    struct err e = {0};
    struct sched_request r = {.id = 99, .prompt = p, .n_prompt = 8, .max_new = 1, .spans = q.spans};
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_LIMIT);
    assert_non_null(strstr(e.message, "7 tokens"));
    sim_close(m);
    free(m);
}

#define NOT(code, change)                                                                                    \
    do {                                                                                                     \
        fill(p, 20, 1);                                                                                      \
        make_seen(&q, p, 20, at, "cf", true);                                                                \
        for (int k = 0; k < 2; k++) {                                                                        \
            message[k] = (struct picture_plan){.magic = PICTURE_PLAN_MAGIC,                                  \
                                               .bytes = sizeof *message,                                     \
                                               .n_patches = 24,                                              \
                                               .n_rows = q.images[k].n_rows};                                \
            q.images[k].message = &message[k];                                                               \
            q.images[k].bytes = sizeof *message;                                                             \
        }                                                                                                    \
        r = (struct sched_request){.id = 1,                                                                  \
                                   .prompt = p,                                                              \
                                   .n_prompt = 20,                                                           \
                                   .max_new = 2,                                                             \
                                   .images = q.images,                                                       \
                                   .n_images = 2,                                                            \
                                   .feature_of = q.feature_of,                                               \
                                   .places = q.places,                                                       \
                                   .spans = q.spans,                                                         \
                                   .place_delta = q.place_delta};                                            \
        change;                                                                                              \
        int rc = sched_submit(m->s, &r, &e);                                                                 \
        if (rc != (code))                                                                                    \
            fail_msg("%d for: %s", rc, #change);                                                             \
        sched_cancel(m->s, 1);                                                                               \
        check(m);                                                                                            \
    } while (0)

static void test_pictures_refused(void **state)
{
    (void)state;
    struct sim *m = malloc(sizeof *m);
    sim_open(m, (struct sched_options){.limits = seeing_limits});
    const uint32_t at[] = {2, 8};
    int32_t p[20];
    struct seen_prompt q;
    struct picture_plan message[2];
    struct sched_request r;
    struct err e = {0};
    NOT(ERR_OK, (void)0);
    NOT(ERR_INVALID, r.feature_of = NULL);
    NOT(ERR_INVALID, r.images = NULL);
    NOT(ERR_INVALID, r.n_images = 1);
    NOT(ERR_INVALID, r.n_images = 0);
    NOT(ERR_INVALID, q.feature_of[2] = -1);
    NOT(ERR_INVALID, q.feature_of[2] = -2);
    NOT(ERR_INVALID, q.feature_of[3] = 0);
    NOT(ERR_INVALID, q.feature_of[19] = 9);
    NOT(ERR_INVALID, q.images[0].message = NULL);
    NOT(ERR_INVALID, q.images[0].message = (struct picture_plan *)((char *)message + 4));
    NOT(ERR_INVALID, q.images[0].bytes--);
    NOT(ERR_INVALID, message[1].magic++);
    NOT(ERR_INVALID, message[1].n_rows--);
    NOT(ERR_INVALID, q.images[1].n_rows = message[1].n_rows = 0);
    NOT(ERR_LIMIT, message[1].n_patches++);
    NOT(ERR_LIMIT, q.images[1].n_rows = message[1].n_rows = 7);
    NOT(ERR_INVALID, memset(q.images[1].key, 0, 32));
    NOT(ERR_INVALID, q.places[30] = -1);
    NOT(ERR_INVALID, r.place_delta = -21);
    NOT(ERR_INVALID, r.place_delta = INT32_MAX);
    NOT(ERR_INVALID, q.spans[0] = 1);
    NOT(ERR_INVALID, q.spans[1] = 0);
    NOT(ERR_INVALID, q.spans[2 * 3] = 3);
    NOT(ERR_INVALID, q.spans[2 * 3 + 1] = 4);
    NOT(ERR_INVALID, q.spans[2 * 19 + 1] = 21);
    NOT(ERR_OK, r.spans = NULL);
    NOT(ERR_OK, r.places = NULL);
    sim_close(m);
    struct engine_limits blind = seeing_limits;
    blind.n_feature_rows = blind.max_patches = blind.max_picture_rows = 0;
    sim_open(m, (struct sched_options){.limits = blind});
    NOT(ERR_UNSUPPORTED, (void)0);
    NOT(ERR_UNSUPPORTED,
        r = ((struct sched_request){.id = 1, .prompt = p, .n_prompt = 9, .max_new = 1, .places = q.places}));
    struct sched_job job;
    assert_false(sched_picture(m->s, &job));
    sched_picture_done(m->s, ERR_OK, NULL, on_event, m); /* none is out: nothing happens */
    sim_close(m);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_batch_order),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_pictures_cached),
        cmocka_unit_test(test_pictures_cut),
        cmocka_unit_test(test_pictures_wait),
        cmocka_unit_test(test_pictures_between),
        cmocka_unit_test(test_spans_not_starved),
        cmocka_unit_test(test_pictures_refused),
        cmocka_unit_test(test_no_starvation),
        cmocka_unit_test(test_steady_decode),
        cmocka_unit_test(test_prefix_cache),
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_snapshot_cuts),
        cmocka_unit_test(test_snapshot_eviction),
        cmocka_unit_test(test_snapshot_failures),
        cmocka_unit_test(test_lost_engine),
        cmocka_unit_test(test_bad_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
