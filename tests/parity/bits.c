/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: equal bits for whole models. Each tiny model of tests/parity/tiny runs on every instruction set of
 * this machine: the logits of a text alone, in one step, are the yardstick; the same text is then fed in
 * mixes of 1 to 16 sequences, in chunks of 1, 5, 64 or whole, from its start or behind pages that a text with
 * the same beginning has filled (from a snapshot of its states, where there are any), on 1 or 2 threads.
 * Every row of every sequence of a mix is held against its own yardstick with memcmp. Neighbours begin and
 * end at any time, in pages and slots that others have left; some are made of one token whose embedding is
 * NaN, so that their rows, pages, slots and snapshots are full of NaN, and so are the pages that nobody has
 * written. Before each mix a step of nothing but that token fills slots, snapshots and the rows of every
 * activation. Then the scheduler runs the texts with its prefix cache. Some families run a second time with
 * pages of BF16 or F16: one for each operator that keeps keys. The
 * yardstick is the graph as described; mixes on 2 threads and the scheduler run with every fusion that claims
 * equal bits.
 * Refuses: any tolerance, and a yardstick that is not finite.
 *
 *   bits [--only FAMILY]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "kern/kern.h"
#include "sched/sched.h"
#include "tiny.h"
#include "verify/runner.h"

#define TREE TEST_SOURCE_ROOT "/tests/parity"

enum {
    BATCHES = 16,
    SEQS = BATCHES + 1, /* one slot and its pages more than run, so that slots change hands */
    CHUNKS = 4,
    THREADS = 2,
    MIXES = CHUNKS * 2 * THREADS, /* as many as batch sizes: each size meets one combination of the rest */
    TEXTS = 12,
    BAD = TEXTS - 1, /* the text of NaN */
    SUBJECT = 0,
    TWIN = 1, /* begins as the subject does */
    TOKENS = 1024,
    SINGLE = 20, /* token by token: so many at either end, the middle in one piece */
    CONTEXT = 176,
    NAN_ROWS = 32, /* of the step of NaN before each mix */
    NAN_ROWS_ONCE = 160,
    SNAPSHOTS = 12,
    KEPT = 1,     /* 1 + snapshot of the twin where the subject begins */
    KEPT_BAD = 2, /* and of NaN */
    MAX_PAGES = 32,
    ROW_BYTES = 4096, /* of the embedding, at most */
    SEED = 20240
};
#define WAIT_NS UINT64_C(10000000000)

static const uint32_t chunks[CHUNKS] = {1, 5, 64, UINT32_MAX};
_Static_assert(MIXES == BATCHES, "a mix for each batch size");

/* Attention, latent, latent with an index, pools, attention beside recurrent states. */
static const struct {
    const char *family;
    uint32_t kv_dtype;
} narrow[] = {{"llama", D0_F16},
              {"deepseek_v3", D0_BF16},
              {"deepseek_v32", D0_F16},
              {"deepseek_v4_pools", D0_BF16},
              {"qwen3_next", D0_BF16}};

struct tap {
    unsigned n, failed;
    uint32_t fusions; /* seen in some family */
};

struct text {
    int32_t ids[CONTEXT];
    uint32_t n;
    float *want[KERN_N_ISA]; /* [n, vocab], alone */
};

struct family {
    struct tap *tap;
    const char *name;
    enum spec_activations activations;
    uint32_t kv_dtype;
    char label[64]; /* name, and pages where they are not float32 */
    struct d0 d0;
    struct tiny t;
    struct tiny_model m;
    struct text texts[TEXTS];
    uint64_t seed;
    uint32_t vocab, columns;      /* of a row; of those the ones compared */
    uint32_t page_tokens, prefix; /* tokens that subject and twin share: two pages */
    uint32_t embed;               /* value: its last row becomes NaN */
    unsigned char last_row[ROW_BYTES];
    bool recurrent, cached; /* cached: a prefix can be gone on behind */
};

/* What was seen of one family on one instruction set. */
struct seen {
    uint32_t batches, chunks, threads; /* masks */
    uint32_t behind_prefix;            /* mixes */
    uint64_t rows, bad_rows;
    uint32_t fusions; /* that changed a node */
    char difference[256];
};

static void result(struct tap *tap, bool ok, const char *name, const char *detail)
{
    tap->failed += !ok;
    printf("%sok %u - %s: %s\n", ok ? "" : "not ", ++tap->n, name, detail);
    fflush(stdout);
}

/* ---- texts ---- */

static int make_texts(struct family *f, struct err *e)
{
    static const uint32_t lengths[TEXTS] = {0, 53, 1, 2, 15, 16, 17, 31, 33, 40, 59, 21};
    uint64_t prompt = 0, at = 0;
    json_u64(json_get(f->t.root, "prompt"), &prompt);
    for (uint32_t i = 0; i < TEXTS; i++) {
        struct text *t = &f->texts[i];
        /* the subject: behind the prefix more than a chunk of 64 is left. Bits are asked for, not sense: what
         * the tiny config says of its longest text does not matter */
        t->n = i ? lengths[i] : prompt > 97 ? (uint32_t)prompt + 10 : 97;
        if (t->n > CONTEXT)
            return err_set(e, ERR_LIMIT, "a text of %u tokens is too long", t->n);
        for (uint32_t k = 0; k < t->n; k++)
            t->ids[k] = i == BAD ? (int32_t)f->vocab - 1 : (int32_t)(rng_u64(f->seed, at++) % (f->vocab - 1));
    }
    f->prefix = 2 * f->page_tokens;
    if (f->cached && (f->prefix + 64 >= f->texts[SUBJECT].n || f->prefix >= f->texts[TWIN].n))
        return err_set(e, ERR_LIMIT, "pages of %u tokens are too long for the texts", f->page_tokens);
    uint32_t same = f->prefix < f->texts[TWIN].n ? f->prefix : f->texts[TWIN].n - 1;
    memcpy(f->texts[TWIN].ids, f->texts[SUBJECT].ids, same * sizeof(int32_t));
    f->texts[TWIN].ids[same] = (f->texts[SUBJECT].ids[same] + 1) % (int32_t)(f->vocab - 1);
    return ERR_OK;
}

/* An entry of a pool that stands for more tokens than a page lies in a page ahead of them, which a sequence
 * with the same beginning would share. */
static bool pools_run_ahead(const struct graph *g, uint32_t page_tokens)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == D0_OP_POOL_KV && node_attr_i(&g->nodes[i], D0_ATTR_RATIO, 0) > page_tokens)
            return true;
    return false;
}

static int open_family(struct family *f, const char *dir, struct err *e)
{
    int rc = tiny_open(&f->t, TREE, f->name, e);
    if (rc == 0)
        rc = tiny_write(&f->t, dir, &f->d0, e);
    if (rc == 0)
        rc = tiny_model_open_pages(&f->m, dir, f->kv_dtype, &f->d0, e);
    if (rc == 0)
        rc = spec_set_activations(f->m.s, f->m.c, f->activations, e);
    if (rc == 0 && f->activations && spec_activation_bits(f->m.s->graph) == 0)
        rc = err_set(e, ERR_MISMATCH, "nothing is rounded");
    if (rc)
        return rc;
    const struct graph *g = f->m.s->graph;
    uint32_t n_pages = 0;
    f->vocab = (uint32_t)g->values[graph_result(g)].dims[1];
    f->page_tokens = graph_page_tokens(g);
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == D0_VALUE_STATE && g->info[i].state == STATE_PAGES)
            n_pages += g->values[i].dtype == f->kv_dtype;
    if (!n_pages)
        return err_set(e, ERR_MISMATCH, "no pages of %s", dtype_name(f->kv_dtype));
    for (uint32_t i = 0; i < g->n_values; i++)
        f->recurrent |= g->values[i].kind == D0_VALUE_STATE && g->info[i].state == STATE_SLOTS;
    f->cached = !f->recurrent || !pools_run_ahead(g, f->page_tokens);
    f->seed = SEED ^ f->t.seed << 32;
    f->columns = f->vocab;
    f->embed = D0_NO_VALUE;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        if (n->op == D0_OP_EMBED)
            f->embed = n->inputs[1];
        else if (n->op == D0_OP_LINEAR && n->inputs[1] == f->embed)
            f->columns = f->vocab - 1;
    }
    if (f->embed == D0_NO_VALUE || g->values[f->embed].dims[0] != (int64_t)f->vocab)
        return err_set(e, ERR_UNSUPPORTED, "no embedding of %u rows", f->vocab);
    rc = make_texts(f, e);
    for (uint32_t i = 0; rc == 0 && i < TEXTS; i++)
        for (uint32_t k = 0; k < KERN_N_ISA; k++)
            if (!(f->texts[i].want[k] = calloc((size_t)f->texts[i].n * f->vocab, sizeof(float))))
                rc = err_set(e, ERR_NOMEM, "no memory for logits");
    return rc;
}

static void close_family(struct family *f)
{
    for (uint32_t i = 0; i < TEXTS; i++)
        for (uint32_t k = 0; k < KERN_N_ISA; k++)
            free(f->texts[i].want[k]);
    if (f->m.c)
        tiny_model_close(&f->m);
    tiny_close(&f->t);
}

/* The last row of the embedding becomes NaN on the device, or what it was before. Where the head is the same
 * buffer, the last logit of every row is NaN too, and is not compared. */
static int spoil_last_token(struct family *f, struct dev *d, const struct weights *w, bool spoil,
                            struct err *e)
{
    const struct graph *g = f->m.s->graph;
    const struct d0_value *v = &g->values[f->embed];
    struct d0_queue *q = NULL;
    unsigned char ones[ROW_BYTES];
    uint64_t bytes = (uint64_t)v->dims[1] * dtype_bits(v->dtype) / 8, at = bytes * (f->vocab - 1);
    memset(ones, 0xff, sizeof ones); /* NaN in every float type */
    if (bytes > ROW_BYTES)
        return err_set(e, ERR_LIMIT, "an embedding of %llu bytes", (unsigned long long)bytes);
    int rc = dev_queue(d, &q, e);
    if (rc == 0 && spoil)
        rc = dev_copy_out(d, q, w->buffers[f->embed], at, f->last_row, bytes, e);
    if (rc == 0)
        rc = dev_wait(d, q, WAIT_NS, e);
    if (rc == 0)
        rc = dev_copy_in(d, q, w->buffers[f->embed], at, spoil ? ones : f->last_row, bytes, e);
    if (rc == 0)
        rc = dev_wait(d, q, WAIT_NS, e);
    dev_queue_free(d, q);
    return rc;
}

/* ---- one mix ---- */

struct lane {
    uint32_t text, at, slot;
    uint32_t restore, save;     /* as in struct step_seq, of the next run */
    uint32_t n_pages, n_shared; /* the first n_shared are another's */
    int32_t pages[MAX_PAGES];
};

struct mix {
    struct family *f;
    struct runner *r;
    struct seen *seen;
    enum kern_isa isa;
    uint32_t batch, chunk;
    bool behind_prefix;
    char name[96];
    uint64_t seed, drawn;
    struct lane lanes[BATCHES];
    int32_t free_pages[SEQS * MAX_PAGES];
    uint32_t free_slots[SEQS], n_free_pages, n_free_slots;
};

static uint32_t draw(struct mix *m, uint32_t below)
{
    return (uint32_t)(rng_u64(m->seed, m->drawn++) % below);
}

/* All but the last page, which stays as the engine was opened: NaN. */
static void free_all(struct mix *m)
{
    const struct engine_limits *l = engine_limits(m->r->x);
    m->n_free_pages = l->n_pages - 1;
    m->n_free_slots = SEQS;
    for (uint32_t i = 0; i < m->n_free_pages; i++)
        m->free_pages[i] = (int32_t)i;
    for (uint32_t i = 0; i < SEQS; i++)
        m->free_slots[i] = i;
}

static void take_pages(struct mix *m, struct lane *a, uint32_t n)
{
    for (; a->n_pages < n; a->n_pages++) {
        uint32_t i = draw(m, m->n_free_pages);
        a->pages[a->n_pages] = m->free_pages[i];
        m->free_pages[i] = m->free_pages[--m->n_free_pages];
    }
}

static void begin_lane(struct mix *m, struct lane *a, uint32_t text)
{
    uint32_t i = draw(m, m->n_free_slots);
    *a = (struct lane){.text = text, .slot = m->free_slots[i]};
    m->free_slots[i] = m->free_slots[--m->n_free_slots];
}

static void end_lane(struct mix *m, const struct lane *a)
{
    for (uint32_t i = a->n_shared; i < a->n_pages; i++)
        m->free_pages[m->n_free_pages++] = a->pages[i];
    m->free_slots[m->n_free_slots++] = a->slot;
}

static void check_row(struct mix *m, const struct lane *a, uint32_t position, const float *got)
{
    const struct family *f = m->f;
    const float *want = f->texts[a->text].want[m->isa] + (size_t)position * f->vocab;
    m->seen->rows += a->text != BAD;
    if (a->text == BAD) { /* its NaN must really be there */
        m->seen->bad_rows++;
        if (!isnan(got[0]) && !m->seen->difference[0])
            snprintf(m->seen->difference, sizeof m->seen->difference, "%s: a row of NaN gave %g", m->name,
                     (double)got[0]);
        return;
    }
    if (memcmp(got, want, f->columns * sizeof *got) == 0 || m->seen->difference[0])
        return;
    uint32_t i = 0;
    while (memcmp(&got[i], &want[i], sizeof *got) == 0)
        i++;
    snprintf(m->seen->difference, sizeof m->seen->difference,
             "%s: text %u, position %u, id %u: %.9g, alone %.9g", m->name, a->text, position, i,
             (double)got[i], (double)want[i]);
}

/* One step of some lanes: what[i] tokens of lane i. */
static int step(struct mix *m, struct lane *const *lanes, const uint32_t *what, uint32_t n, struct err *e)
{
    struct runner_run runs[BATCHES] = {0};
    int32_t tables[BATCHES][MAX_PAGES + 1];
    uint32_t bad_saved = 0;
    struct step_result *res;
    for (uint32_t i = 0; i < n; i++) {
        struct lane *a = lanes[i];
        take_pages(m, a, (a->at + what[i] + m->f->page_tokens - 1) / m->f->page_tokens);
        memcpy(tables[i], a->pages, a->n_pages * sizeof(int32_t));
        /* a table may name more pages than the sequence has reached: one of NaN */
        tables[i][a->n_pages] = (int32_t)engine_limits(m->r->x)->n_pages - 1;
        if (a->text == BAD && m->f->recurrent && m->f->cached && !bad_saved)
            a->save = bad_saved = KEPT_BAD;
        runs[i] = (struct runner_run){.slot = a->slot,
                                      .restore = a->restore,
                                      .save = a->save,
                                      .tokens = m->f->texts[a->text].ids + a->at,
                                      .n = what[i],
                                      .position = a->at,
                                      .flags = STEP_ALL_LOGITS,
                                      .pages = tables[i],
                                      .n_pages = a->n_pages + draw(m, 2)};
        a->restore = a->save = 0;
    }
    int rc = runner_step(m->r, runs, n, &res, e);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        const float *rows = step_result_logits(res) + step_result_seqs(res)[i].first_logit;
        for (uint32_t k = 0; k < what[i]; k++)
            check_row(m, lanes[i], lanes[i]->at + k, rows + (size_t)k * m->f->vocab);
        lanes[i]->at += what[i];
    }
    return rc;
}

static uint32_t left(const struct mix *m, const struct lane *a)
{
    return m->f->texts[a->text].n - a->at;
}

/* Neighbours mostly decode; now and then a longer piece of a prompt comes. */
static uint32_t neighbour_piece(struct mix *m, const struct lane *a, uint32_t room)
{
    uint32_t kind = draw(m, 64), n = kind == 0 ? UINT32_MAX : kind == 1 ? 64 : kind < 8 ? 5 : 1;
    n = n < left(m, a) ? n : left(m, a);
    return n < room ? n : room;
}

static void begin_neighbour(struct mix *m, struct lane *a)
{
    uint32_t text = draw(m, TEXTS + 2);
    begin_lane(m, a, text < TEXTS ? text : BAD);
}

/* The twin up to where the subject's text parts from its own; the subject then takes over those pages. */
static int fill_prefix(struct mix *m, struct lane *twin, struct err *e)
{
    int rc = ERR_OK;
    begin_lane(m, twin, TWIN);
    while (rc == 0 && twin->at < m->f->prefix) {
        uint32_t n = m->f->prefix - twin->at, piece = 1 + draw(m, n);
        twin->save = m->f->recurrent && piece == n ? KEPT : 0;
        rc = step(m, &twin, &piece, 1, e);
    }
    twin->n_shared = twin->n_pages; /* nobody frees them before the mix is over */
    return rc;
}

/* A step of NaN alone: whatever the next one does not write itself is NaN then, the rows of activations
 * behind its own too. */
static int poison(struct mix *m, uint32_t rows, struct err *e)
{
    int32_t bad[NAN_ROWS];
    struct runner_run runs[BATCHES] = {0};
    struct step_result *res;
    for (uint32_t i = 0; i < NAN_ROWS; i++)
        bad[i] = (int32_t)m->f->vocab - 1;
    for (uint32_t i = 0; i < BATCHES; i++) {
        runs[i] =
            (struct runner_run){.slot = i, .tokens = bad, .n = rows / BATCHES, .flags = STEP_ALL_LOGITS};
        runs[i].save = m->f->recurrent && m->f->cached && i < SNAPSHOTS ? i + 1 : 0;
    }
    int rc = runner_step(m->r, runs, BATCHES, &res, e);
    const float *logits = step_result_logits(res);
    for (uint64_t i = 0; rc == 0 && i < res->n_logits; i += m->f->vocab)
        if (!isnan(logits[i]))
            rc = err_set(e, ERR_MISMATCH, "a step of NaN gave %g", (double)logits[i]);
    return rc;
}

static int begin_mix(struct mix *m, struct err *e)
{
    struct lane *subject = &m->lanes[0], twin;
    free_all(m);
    int rc = poison(m, NAN_ROWS, e);
    if (rc == 0 && m->behind_prefix)
        rc = fill_prefix(m, &twin, e);
    begin_lane(m, subject, SUBJECT);
    if (rc == 0 && m->behind_prefix) {
        memcpy(subject->pages, twin.pages, sizeof twin.pages);
        subject->n_pages = subject->n_shared = twin.n_pages;
        subject->at = m->f->prefix;
        subject->restore = m->f->recurrent ? KEPT : 0;
        if (m->batch == 1)
            end_lane(m, &twin);
        else
            m->lanes[1] = twin; /* goes on beside the subject, both reading the same pages */
    }
    for (uint32_t i = m->behind_prefix ? 2 : 1; i < m->batch; i++)
        begin_neighbour(m, &m->lanes[i]);
    return rc;
}

static uint32_t subject_piece(const struct mix *m, uint32_t begin)
{
    const struct lane *a = &m->lanes[0];
    uint32_t most = left(m, a);
    if (m->chunk == 1 && a->at == begin + SINGLE && most > SINGLE)
        return most - SINGLE;
    return m->chunk < most ? m->chunk : most;
}

static int run_mix(struct mix *m, struct err *e)
{
    int rc = begin_mix(m, e);
    uint32_t begin = m->lanes[0].at;
    while (rc == 0 && left(m, &m->lanes[0])) {
        struct lane *order[BATCHES];
        uint32_t what[BATCHES], first = draw(m, m->batch);
        uint32_t mine = subject_piece(m, begin), room = TOKENS - mine - m->batch;
        for (uint32_t i = 0; i < m->batch; i++) {
            uint32_t k = (i + first) % m->batch;
            order[i] = &m->lanes[k];
            what[i] = k ? neighbour_piece(m, order[i], room + 1) : mine;
            room -= k ? what[i] - 1 : 0;
        }
        rc = step(m, order, what, m->batch, e);
        for (uint32_t i = 1; rc == 0 && i < m->batch; i++)
            if (!left(m, &m->lanes[i])) {
                end_lane(m, &m->lanes[i]);
                begin_neighbour(m, &m->lanes[i]);
            }
    }
    return rc;
}

/* ---- the scheduler ---- */

struct served {
    struct family *f;
    uint32_t ended;
    int wrong;
    char why[160];
};

/* Ids of requests are text numbers, plus TEXTS for the subject's second run. */
static void served_event(void *context, const struct sched_event *event)
{
    struct served *v = context;
    const struct family *f = v->f;
    uint32_t n = f->texts[event->id % TEXTS].n, want = 0;
    if (event->finish == SCHED_RUNNING)
        return;
    v->ended++;
    if (f->cached && event->id == TWIN)
        want = f->prefix;
    if (f->cached && event->id == SUBJECT + TEXTS)
        want = (n - 1) / f->page_tokens * f->page_tokens;
    if ((event->finish != SCHED_LENGTH || event->n_cached != want) && !v->wrong++)
        snprintf(v->why, sizeof v->why, "request %llu: %s, %u tokens cached, expected %u",
                 (unsigned long long)event->id, event->why ? event->why : sched_finish_name(event->finish),
                 event->n_cached, want);
}

static void check_served(struct mix *m, struct step_plan *p, struct step_result *res)
{
    const struct step_seq *q = step_plan_seqs(p);
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        struct lane a = {.text = (uint32_t)(q[i].request % TEXTS)};
        const float *rows = step_result_logits(res) + step_result_seqs(res)[i].first_logit;
        for (uint32_t k = 0; k < q[i].n_tokens; k++)
            check_row(m, &a, q[i].position + k, rows + (size_t)k * m->f->vocab);
    }
}

static int serve_until(struct mix *m, struct sched *s, struct served *v, uint32_t ended, struct err *e)
{
    struct runner *r = m->r;
    int rc = ERR_OK;
    for (unsigned steps = 0; rc == 0 && v->ended < ended; steps++) {
        struct step_plan *p;
        rc = sched_plan(s, r->plan, r->plan_bytes, &p, e);
        if (rc == 0 && (!p || steps > 1000))
            rc = err_set(e, ERR_MISMATCH, "the scheduler has stopped with %u of %u ended", v->ended, ended);
        for (uint32_t i = 0; rc == 0 && i < p->n_seqs; i++)
            step_plan_seqs(p)[i].flags |= STEP_ALL_LOGITS;
        if (rc == 0)
            rc = engine_step(r->x, p, p->bytes, r->result, r->result_bytes, e);
        if (rc == 0) {
            check_served(m, p, r->result);
            rc = sched_apply(s, r->result, ((struct step_result *)r->result)->bytes, served_event, v, e);
        }
    }
    return rc;
}

static int submit(struct sched *s, const struct family *f, uint64_t id, struct err *e)
{
    const struct text *t = &f->texts[id % TEXTS];
    /* one new token: it is never fed, so every row is of the text */
    struct sched_request r = {.id = id,
                              .prompt = t->ids,
                              .n_prompt = t->n,
                              .max_new = 1,
                              .ignore_stop = true,
                              .sampling = {.top_p = 1}};
    return sched_submit(s, &r, e);
}

/* The subject alone; then its twin, the subject again and others, whose beginnings are cached where that is
 * right. */
static int run_scheduler(struct mix *m, struct served *v, struct err *e)
{
    static const uint64_t second[] = {4, TWIN, 9, SUBJECT + TEXTS, 6};
    struct sched *s = NULL;
    struct sched_options o = {.limits = *engine_limits(m->r->x),
                              .max_context = CONTEXT,
                              .prefill_chunk = 24,
                              .max_waiting = 8,
                              .snapshot_every = m->f->prefix,
                              .prefix_cache = true};
    int rc = sched_open(&s, &o, e);
    if (rc == 0)
        rc = submit(s, m->f, SUBJECT, e);
    if (rc == 0)
        rc = serve_until(m, s, v, 1, e);
    for (uint32_t i = 0; rc == 0 && i < ARRAY_LEN(second); i++)
        rc = submit(s, m->f, second[i], e);
    if (rc == 0)
        rc = serve_until(m, s, v, 1 + ARRAY_LEN(second), e);
    sched_close(s);
    return rc;
}

/* ---- one family on one instruction set ---- */

static int record_alone(struct family *f, struct runner *r, enum kern_isa isa, struct err *e)
{
    for (uint32_t i = 0; i < TEXTS; i++) {
        struct text *t = &f->texts[i];
        struct step_result *res;
        /* each in a slot and pages that nobody has touched */
        struct runner_run one = {.slot = i, .tokens = t->ids, .n = t->n, .flags = STEP_ALL_LOGITS};
        int rc = runner_step(r, &one, 1, &res, e);
        if (rc)
            return rc;
        memcpy(t->want[isa], step_result_logits(res), (size_t)t->n * f->vocab * sizeof(float));
        for (uint32_t k = 0; i != BAD && k < t->n * f->vocab; k++)
            if (k % f->vocab < f->columns && !isfinite(t->want[isa][k]))
                return err_set(e, ERR_MISMATCH, "text %u alone is not finite at position %u", i,
                               k / f->vocab);
    }
    return ERR_OK;
}

static void note(const struct mix *m, uint32_t threads, uint32_t chunk)
{
    m->seen->batches |= 1u << (m->batch - 1);
    m->seen->chunks |= 1u << chunk;
    m->seen->threads |= 1u << (threads - 1);
    m->seen->behind_prefix += m->behind_prefix;
}

/* The mixes of one number of threads; `place` says which batch size each combination has. */
static int run_mixes(struct mix *m, uint32_t threads, const uint32_t *place, struct err *e)
{
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == 0 && i < MIXES; i++) {
        uint32_t chunk = i / 2 % CHUNKS;
        if (i / (2 * CHUNKS) + 1 != threads)
            continue;
        m->batch = place[i] + 1;
        m->chunk = chunks[chunk];
        m->behind_prefix = i % 2 && m->f->cached;
        m->drawn = 0;
        m->seed = m->f->seed ^ (uint64_t)(i + 1) << 8 ^ m->isa;
        snprintf(m->name, sizeof m->name, "batch of %u, chunks of %d, %s, %u threads", m->batch,
                 (int32_t)m->chunk, m->behind_prefix ? "behind a prefix" : "from the start", threads);
        rc = run_mix(m, e);
        note(m, threads, chunk);
    }
    return rc;
}

static int run_threads(struct family *f, enum kern_isa isa, uint32_t threads, const uint32_t *place,
                       struct seen *seen, struct served *served, struct err *e)
{
    const struct dev_options o = {.name = "cpu", .isa = kern_isa_name(isa), .n_threads = threads};
    const struct runner_size size = {.tokens = TOKENS,
                                     .seqs = SEQS,
                                     .rows = TOKENS,
                                     .context = CONTEXT,
                                     .snapshots = SNAPSHOTS,
                                     .fusions = threads == THREADS ? fusions_exact() : 0};
    struct runner r = {.x = NULL};
    struct mix m = {.f = f, .r = &r, .seen = seen, .isa = isa};
    struct dev d;
    int rc = dev_open(&d, &o, e);
    if (rc)
        return rc;
    rc = runner_open_model(&r, &d, f->m.s, f->m.c, &size, NULL, e);
    if (rc == 0 && engine_limits(r.x)->max_pages_per_seq > MAX_PAGES)
        rc = err_set(e, ERR_LIMIT, "pages of %u tokens are too many", engine_limits(r.x)->page_tokens);
    if (rc == 0 && engine_limits(r.x)->n_snapshots != (f->recurrent && f->cached ? SNAPSHOTS : 0))
        rc = err_set(e, ERR_MISMATCH, "the engine has %u snapshots", engine_limits(r.x)->n_snapshots);
    if (rc == 0)
        seen->fusions |= engine_fusions(r.x);
    if (rc == 0)
        rc = spoil_last_token(f, &d, r.weights, true, e);
    if (rc == 0 && threads == 1)
        rc = record_alone(f, &r, isa, e);
    if (rc == 0)
        rc = poison(&m, NAN_ROWS_ONCE, e);
    if (rc == 0)
        rc = run_mixes(&m, threads, place, e);
    /* a head of the same buffer would give NaN, and no token; pages and slots stay as they are */
    if (rc == 0)
        rc = spoil_last_token(f, &d, r.weights, false, e);
    if (rc == 0 && threads == THREADS) {
        snprintf(m.name, sizeof m.name, "by the scheduler");
        rc = run_scheduler(&m, served, e);
    }
    runner_close(&r);
    dev_close(&d);
    return rc;
}

static void shuffle(uint32_t *place, uint64_t seed)
{
    for (uint32_t i = 0; i < MIXES; i++)
        place[i] = i;
    for (uint32_t i = MIXES - 1; i > 0; i--) {
        uint32_t k = (uint32_t)(rng_u64(seed, i) % (i + 1)), was = place[i];
        place[i] = place[k];
        place[k] = was;
    }
}

static void test_isa(struct family *f, enum kern_isa isa)
{
    struct seen seen = {.batches = 0};
    struct served served = {.f = f};
    uint32_t place[MIXES];
    char name[96], detail[1400], fused[FUSIONS_TEXT];
    struct err e;
    int rc = ERR_OK;
    err_clear(&e);
    shuffle(place, f->seed ^ ((uint64_t)isa + 1) << 16);
    for (uint32_t threads = 1; rc == 0 && threads <= THREADS; threads++)
        rc = run_threads(f, isa, threads, place, &seen, &served, &e);
    bool all = seen.batches == (1u << BATCHES) - 1 && seen.chunks == (1u << CHUNKS) - 1 &&
               seen.threads == (1u << THREADS) - 1 && seen.behind_prefix == (f->cached ? MIXES / 2 : 0) &&
               seen.rows && seen.bad_rows;
    snprintf(name, sizeof name, "%s %s equal bits", f->label, kern_isa_name(isa));
    if (rc)
        snprintf(detail, sizeof detail, "%s", e.message);
    else if (seen.difference[0] || !all)
        snprintf(detail, sizeof detail, "%s", all ? seen.difference : "not every combination has run");
    else
        snprintf(detail, sizeof detail,
                 "%d mixes, %u behind a prefix, %llu rows beside %llu of NaN; fused: %s", MIXES,
                 seen.behind_prefix, (unsigned long long)seen.rows, (unsigned long long)seen.bad_rows,
                 fusions_format(seen.fusions, fused, sizeof fused));
    f->tap->fusions |= seen.fusions;
    result(f->tap, rc == 0 && all && !seen.difference[0], name, detail);
    if (rc)
        return;
    snprintf(name, sizeof name, "%s %s prefix cache", f->label, kern_isa_name(isa));
    result(f->tap, !served.wrong, name,
           served.wrong   ? served.why
           : !f->cached   ? "off: entries of its pools lie in pages ahead of their tokens"
           : f->recurrent ? "pages and states of a twin and of itself"
                          : "pages of a twin and of itself");
}

/* The two families of vector instructions share one order of sums. */
static void compare_vectors(struct family *f)
{
    uint64_t rows = 0, equal = 0;
    char name[96], detail[96];
    for (uint32_t i = 0; i < BAD; i++)
        for (uint32_t k = 0; k < f->texts[i].n; k++, rows++)
            equal +=
                memcmp(f->texts[i].want[KERN_AVX2] + (size_t)k * f->vocab,
                       f->texts[i].want[KERN_AVX512] + (size_t)k * f->vocab, f->columns * sizeof(float)) == 0;
    snprintf(name, sizeof name, "%s avx2 as avx512", f->label);
    snprintf(detail, sizeof detail, "%llu of %llu rows equal", (unsigned long long)equal,
             (unsigned long long)rows);
    result(f->tap, equal == rows, name, detail);
}

/* Activations that are rounded before products: the same in any mix, too. */
static const struct {
    const char *family;
    enum spec_activations activations;
} rounded[] = {
    {"qwen2", ACTIVATIONS_BF16},
    {"gpt_oss", ACTIVATIONS_BF16},
    {"deepseek_v3_fp8", ACTIVATIONS_RELEASED},
    {"qwen3_moe_fp8", ACTIVATIONS_RELEASED},
};

static void test_family(struct tap *tap, const char *name, uint32_t kv_dtype, enum spec_activations a)
{
    struct family f = {
        .tap = tap, .name = name, .kv_dtype = kv_dtype, .activations = a, .d0 = {.log = {.fd = -1}}};
    char dir[] = "/tmp/day0-bits-XXXXXX";
    struct err e;
    err_clear(&e);
    snprintf(f.label, sizeof f.label, "%s%s%s%s%s", name, kv_dtype == D0_F32 ? "" : " pages of ",
             kv_dtype == D0_F32 ? "" : dtype_name(kv_dtype), a ? " activations " : "",
             a ? spec_activations_name(a) : "");
    if (!mkdtemp(dir)) {
        result(tap, false, f.label, "no temporary directory");
        return;
    }
    int rc = open_family(&f, dir, &e);
    if (rc)
        result(tap, false, f.label, e.message);
    for (uint32_t isa = 0; rc == 0 && isa < KERN_N_ISA; isa++)
        if (kern_isa_available(isa) && (a || isa != KERN_AVX512BF16)) /* else that is avx512 */
            test_isa(&f, isa);
    if (rc == 0 && kern_isa_available(KERN_AVX2) && kern_isa_available(KERN_AVX512))
        compare_vectors(&f);
    close_family(&f);
    tiny_remove(dir);
}

int main(int argc, char **argv)
{
    struct tap tap = {0};
    struct arena arena;
    struct err e;
    char **names;
    size_t n;
    err_clear(&e);
    const char *only = argc == 3 && strcmp(argv[1], "--only") == 0 ? argv[2] : NULL;
    if (argc > 1 && !only) {
        fprintf(stderr, "usage: bits [--only FAMILY]\n");
        return 2;
    }
    arena_init(&arena, NULL, MEM_MISC);
    if (tiny_families(TREE, &arena, &names, &n, &e)) {
        printf("not ok 1 - %s\n", e.message);
        return 1;
    }
    for (size_t i = 0; i < n; i++)
        if (!only || strcmp(only, names[i]) == 0)
            test_family(&tap, names[i], D0_F32, ACTIVATIONS_EXACT);
    for (size_t i = 0; i < ARRAY_LEN(narrow); i++)
        if (!only || strcmp(only, narrow[i].family) == 0)
            test_family(&tap, narrow[i].family, narrow[i].kv_dtype, ACTIVATIONS_EXACT);
    for (size_t i = 0; i < ARRAY_LEN(rounded); i++)
        if (!only || strcmp(only, rounded[i].family) == 0)
            test_family(&tap, rounded[i].family, D0_F32, rounded[i].activations);
    arena_release(&arena);
    const uint32_t all = FUSION_BIT(FUSION_QKV) | FUSION_BIT(FUSION_GATE_UP) |
                         FUSION_BIT(FUSION_NORM_RESIDUAL) | FUSION_BIT(FUSION_NORM_ROPE_STORE) |
                         FUSION_BIT(FUSION_EXPERT_GROUPING);
    char text[FUSIONS_TEXT];
    if (!only)
        result(&tap, (tap.fusions & all) == all, "fusions seen",
               fusions_format(tap.fusions, text, sizeof text));
    printf("1..%u\n", tap.n);
    return tap.failed || tap.n == 0;
}
