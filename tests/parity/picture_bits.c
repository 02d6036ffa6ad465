/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: equal bits of prompts with pictures. For tiny models with towers, on ref and on the fastest
 * instruction set: the yardstick is oracle_once(), which runs the tower on each picture alone and then the
 * text on their rows, in one piece. The engine then takes the same prompt whole, cut behind every token,
 * beside others (the same ids with other pictures, and a text), with its pictures' rows anywhere in the
 * store, with and without fusions, on 1 and 2 threads; and through the scheduler: in chunks, found in the
 * prefix cache, and begun anew in a second engine after the first was lost. Every row of logits is compared
 * with memcmp. A text without pictures has the same bits as in an engine without a tower. Refuses: any
 * tolerance; a prompt whose logits do not hang on its pictures.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/api.h"
#include "base/file.h"
#include "base/str.h"
#include "picture_case.h"
#include "tap.h"

/* ---- counting what reaches the allocator (--wrap at link time) ----------------------------------------- */

static _Atomic uint64_t n_allocator_calls;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);

void *__wrap_malloc(size_t n)
{
    n_allocator_calls++;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    n_allocator_calls++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    n_allocator_calls++;
    return __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    n_allocator_calls++;
    return __real_aligned_alloc(align, n);
}

/* -------------------------------------------------------------------------------------------------------- */

enum { SEQS = 4 };

/* ---- engine -------------------------------------------------------------------------------------------- */

struct rig {
    struct model *m;
    struct dev *d;
    struct weights *weights, *tower;
    struct engine *x;
    struct step_plan *plan;
    void *result;
    size_t plan_bytes, result_bytes;
    uint64_t step;
    uint32_t fusions, store;   /* store: rows */
    uint32_t row[2][PICTURES]; /* where by_hand() puts the pictures of SEEN and OTHER */
};

/* In any order, with gaps. */
static void choose_rows(struct rig *r)
{
    const struct {
        uint32_t text, picture, gap;
    } order[] = {{SEEN, 0, 3}, {OTHER, 1, 1}, {OTHER, 0, 0}, {SEEN, 1, 2}};
    r->store = 0;
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        r->store += order[i].gap;
        r->row[order[i].text][order[i].picture] = r->store;
        r->store += r->m->texts[order[i].text].images[order[i].picture].n_rows;
    }
    r->store++;
}

static int open_engine(struct rig *r, struct err *e)
{
    struct model *m = r->m;
    const uint32_t page = m->s->page_tokens, pages = m->longest / page + 1,
                   tokens = 2 * m->longest + PLAIN_TOKENS;
    const struct engine_tower tower = {.graph = m->s->vision,
                                       .weights = r->tower,
                                       .features = m->s->tower.features,
                                       .n_features = m->s->tower.n_features};
    const struct engine_options o = {.limits = {.max_tokens = tokens,
                                                .max_seqs = SEQS,
                                                .max_rows = tokens,
                                                .max_pages_per_seq = pages,
                                                .n_pages = 2 * SEQS * pages,
                                                .n_snapshots = 6,
                                                .n_feature_rows = r->store,
                                                .max_patches = m->max_patches,
                                                .max_picture_rows = m->max_rows},
                                     .fusions = r->fusions,
                                     .poison = true,
                                     .tower = &tower};
    return engine_open(&r->x, r->d, m->s->graph, r->weights, &o, e);
}

static int open_rig(struct rig *r, struct model *m, struct dev *d, uint32_t fusions, struct err *e)
{
    const struct load_options load = {.spec = m->s};
    *r = (struct rig){.m = m, .d = d, .fusions = fusions};
    choose_rows(r);
    int rc = weights_load(&r->weights, m->s->graph, m->c, d, &load, e);
    if (rc == 0)
        rc = weights_load(&r->tower, m->s->vision, m->c, d, &load, e);
    if (rc == 0)
        rc = open_engine(r, e);
    if (rc)
        return rc;
    r->plan_bytes = step_plan_bytes(engine_limits(r->x));
    r->result_bytes = engine_result_bytes(engine_limits(r->x), true);
    r->plan = malloc(r->plan_bytes);
    r->result = malloc(r->result_bytes);
    return r->plan && r->result ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for messages");
}

static void close_rig(struct rig *r)
{
    engine_close(r->x);
    weights_free(r->weights);
    weights_free(r->tower);
    free(r->plan);
    free(r->result);
}

static void check_rows(struct model *m, const struct text *t, uint32_t first, uint32_t n, const float *got,
                       const char *where)
{
    for (uint32_t i = 0; i < n; i++, m->rows++)
        if (memcmp(got + (size_t)i * m->vocab, t->want + (size_t)(first + i) * m->vocab,
                   m->vocab * sizeof(float)) != 0 &&
            !m->difference[0])
            snprintf(m->difference, sizeof m->difference, "%s: text %d, position %u of %u", where,
                     (int)(t - m->texts), first + i, t->n);
}

struct run {
    uint32_t text, at, n, place; /* place: number of the sequence, for slot and pages */
    uint32_t row[PICTURES];      /* where its pictures are in the store */
};

/* One step of these runs, all logits compared. */
static int step(struct rig *r, const struct run *runs, uint32_t n, const char *where, struct err *e)
{
    const struct engine_limits *l = engine_limits(r->x);
    uint32_t tokens = 0, pages = 0;
    struct step_plan *p;
    for (uint32_t i = 0; i < n; i++) {
        tokens += runs[i].n;
        pages += (runs[i].at + runs[i].n + l->page_tokens - 1) / l->page_tokens;
    }
    int rc = step_plan_init_places(r->plan, r->plan_bytes, n, tokens, pages, &p, e);
    if (rc)
        return rc;
    p->step = ++r->step;
    tokens = pages = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct run *u = &runs[i];
        const struct text *t = &r->m->texts[u->text];
        const uint32_t own = (u->at + u->n + l->page_tokens - 1) / l->page_tokens;
        step_plan_seqs(p)[i] = (struct step_seq){.request = i,
                                                 .first_token = tokens,
                                                 .n_tokens = u->n,
                                                 .position = u->at,
                                                 .first_page = pages,
                                                 .n_pages = own,
                                                 .flags = STEP_ALL_LOGITS,
                                                 .slot = l->n_slots ? u->place : 0,
                                                 .sampling = {.top_p = 1}};
        memcpy(step_plan_tokens(p) + tokens, t->ids + u->at, u->n * sizeof(int32_t));
        for (uint32_t k = 0; k < own; k++)
            step_plan_pages(p)[pages + k] = (int32_t)(u->place * l->max_pages_per_seq + k);
        for (uint32_t k = 0; k < u->n; k++) {
            struct step_place at = t->place[u->at + k];
            uint32_t picture = 0;
            while (at.feature >= 0 && (uint32_t)at.feature >= t->rows[picture + 1])
                picture++;
            if (at.feature >= 0)
                at.feature = (int32_t)(u->row[picture] + (uint32_t)at.feature - t->rows[picture]);
            step_plan_places(p)[tokens + k] = at;
        }
        tokens += u->n;
        pages += own;
    }
    rc = engine_step(r->x, p, p->bytes, r->result, r->result_bytes, e);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        check_rows(r->m, &r->m->texts[runs[i].text], runs[i].at, runs[i].n,
                   step_result_logits(r->result) + step_result_seqs(r->result)[i].first_logit, where);
    return rc;
}

static int encode(struct rig *r, struct run *u, uint32_t picture, struct err *e)
{
    const struct picture_plan *p = r->m->texts[u->text].pictures[picture];
    u->row[picture] = r->row[u->text][picture];
    return engine_picture(r->x, p, p->bytes, u->row[picture], e);
}

static int wants(int rc, int code, const char *what, struct err *e)
{
    return rc == code ? ERR_OK : err_set(e, ERR_MISMATCH, "%s: %d instead of %d", what, rc, code);
}

/* Cut behind every token; a cut within a span is refused. */
static int cut_everywhere(struct rig *r, struct run seen, struct err *e)
{
    const struct text *t = &r->m->texts[seen.text];
    struct err mine = {0};
    int rc = ERR_OK;
    for (uint32_t cut = 1; rc == 0 && cut < t->n; cut++) {
        char where[32];
        snprintf(where, sizeof where, "cut at %u", cut);
        seen.at = 0;
        seen.n = cut;
        if (text_cuts_span(t, cut)) {
            rc = wants(step(r, &seen, 1, where, &mine), ERR_FORMAT, "a run that ends within a span", e);
            continue;
        }
        rc = step(r, &seen, 1, where, e);
        seen.at = cut;
        seen.n = t->n - cut;
        if (rc == 0)
            rc = step(r, &seen, 1, where, e);
    }
    return rc;
}

/* Whole; cut behind every token; beside others, each cut elsewhere. */
static int by_hand(struct rig *r, struct err *e)
{
    struct run seen = {.text = SEEN, .place = 1}, other = {.text = OTHER},
               plain = {.text = PLAIN, .place = 3};
    const uint32_t n = r->m->texts[SEEN].n;
    int rc = ERR_OK;
    for (uint32_t i = PICTURES; rc == 0 && i-- > 0;) {
        rc = encode(r, &other, i, e);
        if (rc == 0)
            rc = encode(r, &seen, i, e);
    }
    seen.n = n;
    if (rc == 0)
        rc = step(r, &seen, 1, "whole", e);
    if (rc == 0)
        rc = cut_everywhere(r, seen, e);
    for (uint32_t cut = 1; rc == 0 && cut < n; cut += 3) {
        if (text_cuts_span(&r->m->texts[SEEN], cut) || text_cuts_span(&r->m->texts[OTHER], n - cut))
            continue;
        const uint32_t half = cut < PLAIN_TOKENS ? cut : PLAIN_TOKENS - 1;
        struct run a[] = {plain, seen, other}, b[] = {seen, other, plain};
        a[0].n = half;
        a[1].at = 0;
        a[1].n = cut;
        a[2].n = n - cut;
        b[0].at = cut;
        b[0].n = n - cut;
        b[1].at = n - cut;
        b[1].n = cut;
        b[2].at = half;
        b[2].n = PLAIN_TOKENS - half;
        rc = step(r, a, 3, "beside others", e);
        if (rc == 0)
            rc = step(r, b, 3, "beside others", e);
    }
    return rc;
}

/* ---- scheduler ----------------------------------------------------------------------------------------- */

struct served {
    struct rig *r;
    struct sched *s;
    uint32_t ended, cached[8]; /* by id */
    uint32_t n_pictures;
    bool failed;
    uint64_t allocator_calls;
};

static void on_event(void *context, const struct sched_event *event)
{
    struct served *v = context;
    v->ended += event->finish != SCHED_RUNNING;
    v->failed |= event->finish != SCHED_RUNNING && event->finish != SCHED_LENGTH;
    v->cached[event->id % ARRAY_LEN(v->cached)] = event->n_cached;
}

/* id % 4 is the text. */
static int submit(struct served *v, uint64_t id, struct err *e)
{
    const struct text *t = &v->r->m->texts[id % 4];
    const struct sched_request q = {.id = id,
                                    .prompt = t->ids,
                                    .n_prompt = t->n,
                                    .max_new = 1,
                                    .ignore_stop = true,
                                    .sampling = {.top_p = 1},
                                    .images = t->images,
                                    .n_images = t->n_pictures,
                                    .feature_of = t->feature_of,
                                    .places = t->places,
                                    .place_delta = t->place_delta,
                                    .spans = t->spans};
    return sched_submit(v->s, &q, e);
}

/* One picture, or one step whose result is in r->result; NULL plan: a picture. */
static int picture_or_step(struct served *v, struct step_plan **p, struct err *e)
{
    struct rig *r = v->r;
    struct sched_job job;
    *p = NULL;
    if (sched_picture(v->s, &job)) {
        int rc = engine_picture(r->x, job.message, job.bytes, job.first_row, e);
        sched_picture_done(v->s, rc, e->message, on_event, v);
        v->n_pictures++;
        return rc;
    }
    int rc = sched_plan(v->s, r->plan, r->plan_bytes, p, e);
    if (rc == 0 && !*p)
        rc = err_set(e, ERR_MISMATCH, "the scheduler has stopped");
    for (uint32_t i = 0; rc == 0 && i < (*p)->n_seqs; i++)
        step_plan_seqs(*p)[i].flags |= STEP_ALL_LOGITS;
    return rc ? rc : engine_step(r->x, *p, (*p)->bytes, r->result, r->result_bytes, e);
}

static int one_round(struct served *v, struct err *e)
{
    struct rig *r = v->r;
    struct step_plan *p;
    const uint64_t before = n_allocator_calls;
    int rc = picture_or_step(v, &p, e);
    v->allocator_calls += n_allocator_calls - before;
    if (rc || !p)
        return rc;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct step_seq *q = &step_plan_seqs(p)[i];
        check_rows(r->m, &r->m->texts[q->request % 4], q->position, q->n_tokens,
                   step_result_logits(r->result) + step_result_seqs(r->result)[i].first_logit, "scheduled");
    }
    return sched_apply(v->s, r->result, ((struct step_result *)r->result)->bytes, on_event, v, e);
}

static int serve_until(struct served *v, uint32_t ended, struct err *e)
{
    int rc = ERR_OK;
    for (int i = 0; rc == 0 && v->ended < ended && i < 500; i++)
        rc = one_round(v, e);
    return rc ? rc
              : (v->ended == ended && !v->failed ? ERR_OK
                                                 : err_set(e, ERR_MISMATCH, "%u have ended", v->ended));
}

static int expect(const struct served *v, uint64_t id, uint32_t cached, uint32_t n_pictures, struct err *e)
{
    if (v->cached[id] != cached || v->n_pictures != n_pictures)
        return err_set(e, ERR_MISMATCH, "request %llu: %u tokens cached, %u pictures, expected %u and %u",
                       (unsigned long long)id, v->cached[id], v->n_pictures, cached, n_pictures);
    return ERR_OK;
}

/* In the middle of a request; another engine, with nothing in its store, goes on. */
static int lost(struct served *v, struct err *e)
{
    struct rig *r = v->r;
    const uint32_t ended = v->ended;
    sched_engine_lost(v->s); /* so that nothing is cached */
    int rc = submit(v, SEEN, e);
    for (int i = 0; rc == 0 && i < 2; i++)
        rc = one_round(v, e);
    if (rc)
        return rc;
    const uint32_t n_pictures = v->n_pictures;
    sched_engine_lost(v->s);
    engine_close(r->x);
    r->x = NULL;
    rc = open_engine(r, e);
    if (rc == 0 && v->ended != ended)
        rc = err_set(e, ERR_MISMATCH, "it has ended before the engine was lost");
    if (rc == 0)
        rc = serve_until(v, ended + 1, e);
    return rc ? rc : expect(v, SEEN, 0, n_pictures + 2, e);
}

/* What is known of a text when it comes again; pictures wholly in that are not encoded. */
static int expect_known(const struct served *v, uint64_t id, uint32_t *n_pictures, struct err *e)
{
    const struct model *m = v->r->m;
    const struct text *t = &m->texts[id % 4];
    const uint32_t known = text_known(t, m->s->page_tokens);
    *n_pictures += text_pictures_behind(t, known);
    return expect(v, id, known, *n_pictures, e);
}

static int submit_and_serve(struct served *v, uint64_t id, struct err *e)
{
    const uint32_t ended = v->ended + 1;
    int rc = submit(v, id, e);
    return rc ? rc : serve_until(v, ended, e);
}

static int in_turn(struct served *v, struct err *e)
{
    const struct model *m = v->r->m;
    const uint32_t page = m->s->page_tokens, first = text_first(&m->texts[OTHER]);
    uint32_t n_pictures = 4;
    int rc = submit_and_serve(v, SEEN, e);
    if (rc == 0)
        rc = expect(v, SEEN, 0, 2, e);
    if (rc == 0) /* equal ids, other pictures: only what comes before them */
        rc = submit_and_serve(v, OTHER, e);
    if (rc == 0)
        rc = expect(v, OTHER, first / page * page, 4, e);
    if (rc == 0) /* its known pages may end within a picture, or a span */
        rc = submit_and_serve(v, SHORT, e);
    if (rc == 0)
        rc = expect_known(v, SHORT, &n_pictures, e);
    for (uint64_t id = 4; rc == 0 && id < 7; id++) /* all three together; two of them are known */
        rc = submit(v, id, e);
    if (rc == 0)
        rc = serve_until(v, 6, e);
    n_pictures += text_pictures_behind(&m->texts[OTHER], text_known(&m->texts[OTHER], page));
    if (rc == 0)
        rc = expect_known(v, SEEN + 4, &n_pictures, e);
    return rc ? rc : expect(v, OTHER + 4, text_known(&m->texts[OTHER], page), n_pictures, e);
}

/* A span that is longer than a chunk can never go through a step whole. */
static int refuses_span(struct rig *r, struct sched_options o, struct err *e)
{
    struct served v = {.r = r};
    struct err mine = {0};
    o.prefill_chunk = r->m->longest_span - 1;
    int rc = sched_open(&v.s, &o, e);
    if (rc == 0)
        rc = wants(submit(&v, SEEN, &mine), ERR_LIMIT, "a span longer than a chunk", e);
    if (rc == 0)
        rc = submit(&v, PLAIN, e);
    sched_close(v.s);
    return rc;
}

static int scheduled(struct rig *r, uint32_t chunk, struct err *e)
{
    struct served v = {.r = r};
    const struct model *m = r->m;
    const struct sched_options o = {.limits = *engine_limits(r->x),
                                    .max_context = m->longest + 1,
                                    .prefill_chunk = chunk > m->longest_span ? chunk : m->longest_span,
                                    .max_waiting = 8,
                                    .snapshot_every = m->s->page_tokens,
                                    .prefix_cache = true};
    int rc = m->longest_span > 1 ? refuses_span(r, o, e) : ERR_OK;
    if (rc == 0)
        rc = sched_open(&v.s, &o, e);
    if (rc == 0)
        rc = in_turn(&v, e);
    if (rc == 0)
        rc = lost(&v, e);
    if (rc == 0)
        rc = sched_check(v.s, e);
    if (rc == 0 && v.allocator_calls)
        rc = err_set(e, ERR_MISMATCH, "pictures and steps made %llu calls of the allocator",
                     (unsigned long long)v.allocator_calls);
    sched_close(v.s);
    return rc;
}

/* ---- behind a socket, and refusals --------------------------------------------------------------------- */

struct behind {
    struct engine *x;
    int fd;
};

static void *serve_socket(void *context)
{
    struct behind *b = context;
    if (engine_serve_fd(b->x, b->fd, NULL) != ERR_OK)
        b->x = NULL;
    close(b->fd);
    return NULL;
}

/* The same bytes as the engine itself has filled the message with; rows of a picture that came over it. */
static int over_socket(struct rig *r, int fd, struct err *e)
{
    const struct text *t = &r->m->texts[SEEN];
    const uint64_t wait = UINT64_C(20000000000);
    struct step_result *res = r->result;
    struct picture_plan *p = t->pictures[0];
    struct run seen = {.text = SEEN, .n = t->n, .row = {t->images[1].n_rows + 2, 0}};
    const float pixel = *(float *)picture_plan_array(p, D0_INPUT_PATCHES);
    struct err mine = {0};
    int rc = wants(engine_picture(r->x, p, p->bytes, r->store - p->n_rows + 1, &mine), ERR_LIMIT,
                   "past the store", e);
    if (rc == 0)
        rc = wants(step(r, &seen, 1, "empty rows", &mine), ERR_FORMAT, "empty rows", e);
    /* step() has laid out the message that is sent below */
    *(float *)picture_plan_array(p, D0_INPUT_PATCHES) = NAN;
    if (rc == 0)
        rc = engine_call_picture_fd(fd, p, seen.row[0], 7, res, r->result_bytes, wait, e);
    *(float *)picture_plan_array(p, D0_INPUT_PATCHES) = pixel;
    if (rc == 0)
        rc = wants(res->error, ERR_FORMAT, "a pixel of NaN", e);
    for (uint32_t i = 0; rc == 0 && i < 2; i++) {
        rc = engine_call_picture_fd(fd, t->pictures[i], seen.row[i], 8 + i, res, r->result_bytes, wait, e);
        if (rc == 0)
            rc = wants(res->error, ERR_OK, "a picture", e);
    }
    if (rc == 0)
        rc = engine_call_fd(fd, r->plan, res, r->result_bytes, wait, e);
    if (rc == 0)
        rc = wants(res->error, ERR_OK, "a step", e);
    if (rc == 0)
        check_rows(r->m, t, 0, t->n, step_result_logits(res) + step_result_seqs(res)[0].first_logit,
                   "socket");
    return rc;
}

static int behind_socket(struct rig *r, struct err *e)
{
    struct behind b;
    pthread_t thread;
    int fds[2];
    engine_close(r->x); /* a fresh one: its store is empty */
    r->x = NULL;
    int rc = open_engine(r, e);
    if (rc)
        return rc;
    b.x = r->x;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
        return err_set(e, ERR_IO, "no sockets");
    b.fd = fds[1];
    if (pthread_create(&thread, NULL, serve_socket, &b))
        return err_set(e, ERR_IO, "no thread");
    rc = over_socket(r, fds[0], e);
    close(fds[0]);
    pthread_join(thread, NULL);
    return rc || b.x ? rc : err_set(e, ERR_MISMATCH, "the service ended with an error");
}

/* ---- a text in an engine without a tower --------------------------------------------------------------- */

static int without_tower(struct model *m, struct dev *d, struct err *e)
{
    const struct runner_size size = {.tokens = PLAIN_TOKENS, .seqs = 1, .rows = PLAIN_TOKENS, .context = 64};
    const struct text *t = &m->texts[PLAIN];
    const struct runner_run one = {.tokens = t->ids, .n = t->n, .flags = STEP_ALL_LOGITS};
    struct runner r;
    struct step_result *res;
    int rc = runner_open_model(&r, d, m->blind, m->c, &size, NULL, e);
    if (rc)
        return rc;
    rc = runner_step(&r, &one, 1, &res, e);
    if (rc == 0)
        check_rows(m, t, 0, t->n, step_result_logits(res), "without a tower");
    runner_close(&r);
    return rc;
}

/* ---- the whole model, opened as a command opens it ----------------------------------------------------- */

/* A vocabulary of as many names as the model has ids. */
static int write_tokenizer(const char *path, uint32_t n, struct err *e)
{
    struct strbuf b = STRBUF_INIT;
    strbuf_puts(&b,
                "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":null,"
                "\"post_processor\":null,\"decoder\":null,\"model\":{\"type\":\"BPE\",\"unk_token\":\"t0\","
                "\"vocab\":{");
    for (uint32_t i = 0; i < n; i++)
        strbuf_printf(&b, "%s\"t%u\":%u", i ? "," : "", i, i);
    strbuf_puts(&b, "},\"merges\":[]}}");
    int rc = strbuf_failed(&b) ? err_set(e, ERR_NOMEM, "no memory for a tokenizer")
                               : file_write_atomic(path, b.data, b.len, e);
    strbuf_release(&b);
    return rc;
}

static int open_session(struct model *m, struct session *s, enum session_images images, uint32_t max_patches,
                        uint64_t memory, struct err *e)
{
    const struct session_options o = {.model_dir = m->dir,
                                      .isa = "fast",
                                      .n_threads = 2,
                                      .kv_dtype = D0_F32,
                                      .memory_bytes = memory,
                                      .images = images,
                                      .max_patches = max_patches,
                                      .max_seqs = 2};
    struct findings f;
    findings_init(&f, NULL);
    int rc = session_open(s, &o, &f, &m->d0, e);
    findings_release(&f);
    return rc;
}

/* The first token is that of the yardstick, which ran on the same instruction set last. */
static int generates(struct model *m, struct session *s, struct err *e)
{
    const struct text *t = &m->texts[SEEN];
    const float *last = t->want + (size_t)(t->n - 1) * m->vocab;
    const struct generate_pictures pictures = {.images = t->images,
                                               .n_images = t->n_pictures,
                                               .feature_of = t->feature_of,
                                               .places = t->places,
                                               .spans = t->spans,
                                               .place_delta = t->place_delta};
    const struct generate_options o = {.max_new = 3,
                                       .ignore_stop = true,
                                       .sampling = {.top_p = 1, .vocab_limit = m->vocab},
                                       .pictures = &pictures};
    struct ids out = {0};
    int32_t best = 0;
    for (uint32_t i = 1; i < m->vocab; i++)
        best = last[i] > last[best] ? (int32_t)i : best;
    struct err mine = {0};
    if (t->n + o.max_new > s->context) /* LLaVA-NeXT's lines are more tokens than its tiny text has places */
        return wants(session_generate(s, t->ids, t->n, &o, NULL, NULL, NULL, NULL, &mine), ERR_LIMIT,
                     "a prompt over the context", e);
    int rc = session_generate(s, t->ids, t->n, &o, NULL, NULL, &out, NULL, e);
    if (rc == 0 && (out.n != 3 || out.data[0] != best))
        rc = err_set(e, ERR_MISMATCH, "%zu tokens, the first is %d, expected %d", out.n,
                     out.n ? out.data[0] : -1, best);
    free(out.data);
    return rc;
}

static int takes_pictures(struct model *m, struct err *e)
{
    struct session s;
    int rc = open_session(m, &s, SESSION_IMAGES_AUTO, m->max_patches, (uint64_t)1 << 30, e);
    uint64_t kv, scratch;
    if (rc == 0 && engine_limits(s.engine)->max_patches != m->max_patches)
        rc = err_set(e, ERR_MISMATCH, "it opens without its tower");
    if (rc == 0) { /* what was predicted holds what was made */
        engine_memory(s.engine, &kv, &scratch);
        const uint64_t held = engine_feature_bytes(s.engine) + s.picture_bytes;
        if (s.picture_bytes != 1u << 26 || s.memory.pictures < held + s.tower_weights->bytes ||
            s.memory.pictures + s.memory.scratch < held + scratch)
            rc = err_set(e, ERR_MISMATCH, "pictures take more than was planned");
    }
    if (rc == 0)
        rc = generates(m, &s, e);
    session_close(&s);
    if (rc)
        return rc;
    /* the default is as large as the memory allows */
    rc = open_session(m, &s, SESSION_IMAGES_AUTO, 0, (uint64_t)1 << 30, e);
    if (rc == 0 &&
        (engine_limits(s.engine)->max_patches < 1024 || s.memory.pictures - s.picture_bytes > (1u << 30) / 8))
        rc = err_set(e, ERR_MISMATCH, "pictures of %u patches by default",
                     engine_limits(s.engine)->max_patches);
    session_close(&s);
    return rc;
}

static int does_without(struct model *m, struct err *e)
{
    struct session s;
    struct err mine = {0};
    int rc = open_session(m, &s, SESSION_IMAGES_OFF, 0, (uint64_t)1 << 30, e);
    if (rc == 0 &&
        (engine_limits(s.engine)->n_feature_rows || s.tower_weights || s.memory.pictures || s.picture_bytes))
        rc = err_set(e, ERR_MISMATCH, "a tower, though off");
    const uint64_t text = s.memory.total;
    session_close(&s);
    if (rc)
        return rc;
    /* memory for the text alone */
    rc = open_session(m, &s, SESSION_IMAGES_AUTO, 4000000, text + (1u << 20), e);
    if (rc == 0 && (engine_limits(s.engine)->n_feature_rows || !strstr(s.no_pictures, "4000000 patches")))
        rc = err_set(e, ERR_MISMATCH, "a tower that the memory does not hold");
    session_close(&s);
    if (rc == 0)
        rc = wants(open_session(m, &s, SESSION_IMAGES_ON, 4000000, text + (1u << 20), &mine), ERR_NOMEM,
                   "pictures asked for without memory", e);
    session_close(&s);
    return rc;
}

static void test_session(struct tap *tap, struct model *m)
{
    char path[128], name[96];
    struct err e;
    err_clear(&e);
    snprintf(path, sizeof path, "%s/tokenizer.json", m->dir);
    int rc = write_tokenizer(path, m->vocab, &e);
    if (rc == 0)
        rc = takes_pictures(m, &e);
    if (rc == 0)
        rc = does_without(m, &e);
    unlink(path);
    snprintf(name, sizeof name, "%s%s: opened whole", m->t.family, m->layout);
    result(tap, rc == 0, name, rc ? e.message : "takes pictures, or does without");
}

/* ---- families ------------------------------------------------------------------------------------------ */

static int run_threads(struct model *m, const char *isa, unsigned threads, struct err *e)
{
    const struct dev_options o = {.name = "cpu", .isa = isa, .n_threads = threads};
    struct rig r;
    struct dev d;
    int rc = dev_open(&d, &o, e);
    if (rc)
        return rc;
    if (threads == 1)
        rc = model_yardsticks(m, &d, e);
    if (rc == 0)
        rc = without_tower(m, &d, e);
    if (rc == 0) {
        rc = open_rig(&r, m, &d, threads == 2 ? fusions_exact() : 0, e);
        if (rc == 0)
            rc = by_hand(&r, e);
        if (rc == 0)
            rc = scheduled(&r, threads == 1 ? 7 : m->longest, e);
        if (rc == 0)
            rc = behind_socket(&r, e);
        close_rig(&r);
    }
    dev_close(&d);
    return rc;
}

static void test_isa(struct tap *tap, struct model *m, const char *isa)
{
    char name[96], detail[1400];
    struct err e;
    err_clear(&e);
    m->rows = 0;
    m->difference[0] = '\0';
    int rc = run_threads(m, isa, 1, &e);
    if (rc == 0)
        rc = run_threads(m, isa, 2, &e);
    snprintf(name, sizeof name, "%s%s %s", m->t.family, m->layout, isa);
    snprintf(detail, sizeof detail, "%llu rows equal the yardstick%s%s %s", (unsigned long long)m->rows,
             m->difference[0] ? " but for " : "", m->difference, rc ? e.message : "");
    result(tap, rc == 0 && !m->difference[0] && m->rows > 1000, name, detail);
}

int main(void)
{
    struct tap tap = {0};
    for (size_t i = 0; i < n_picture_families; i++) {
        struct model m = {.c = NULL};
        struct err e;
        err_clear(&e);
        if (model_open(&m, &picture_families[i], &e)) {
            result(&tap, false, picture_families[i].name, e.message);
        } else {
            test_isa(&tap, &m, "ref");
            test_isa(&tap, &m, "fast");
            test_session(&tap, &m);
        }
        model_close(&m);
    }
    return tap_end(&tap);
}
