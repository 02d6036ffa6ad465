/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: requests from submission to their last event, and the choice of each step's batch.
 * Refuses: to take a page from a running request (all it can need is promised at admission), to let a request
 * overtake another in the queue, to have two steps out at once, a prefix whose recurrent state no
 * snapshot holds, and one that ends within a span. One thread.
 *
 * A request is its tokens (prompt, then what was sampled) and how many of them are computed. What is pending
 * is a decode token or a piece of the prompt; when nothing would stay pending, the step samples the next
 * token. So prompt, decode, prefix hit and restart after a lost engine are one and the same thing.
 */
#include "sched/sched_internal.h"

#include <stdlib.h>
#include <string.h>

const char *sched_finish_name(enum sched_finish f)
{
    static const char *const names[] = {"running", "stop", "length", "cancelled", "failed"};
    return (unsigned)f < ARRAY_LEN(names) ? names[f] : "unknown";
}

static uint32_t snapshot_every(const struct sched_options *o)
{
    uint64_t pt = o->limits.page_tokens, half = o->limits.n_snapshots / 2, every = o->snapshot_every;
    if (!every)
        every = ((uint64_t)o->max_context + half) / (half ? half : 1);
    every = (every + pt - 1) / pt * pt;
    return every > INT32_MAX ? INT32_MAX / (uint32_t)pt * (uint32_t)pt : (uint32_t)every;
}

int sched_open(struct sched **out, const struct sched_options *o, struct err *e)
{
    const struct engine_limits *l = &o->limits;
    if (!l->max_tokens || !l->max_seqs || !l->max_rows || !l->max_pages_per_seq || !l->n_pages ||
        !l->page_tokens || !l->vocab || !o->max_context)
        return err_set(e, ERR_INVALID, "scheduler: a limit of the engine is zero");
    struct sched *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(e, ERR_NOMEM, "scheduler: out of memory");
    s->o = *o;
    if (!s->o.prefill_chunk || s->o.prefill_chunk > l->max_tokens)
        s->o.prefill_chunk = l->max_tokens;
    arena_init(&s->arena, o->mem, MEM_REQUEST);
    s->running = arena_alloc_n(&s->arena, l->max_seqs, sizeof(struct request *));
    s->pieces = arena_alloc_n(&s->arena, l->max_seqs, sizeof(*s->pieces));
    s->free_slots = arena_alloc_n(&s->arena, l->n_slots + (size_t)1, sizeof(*s->free_slots));
    for (uint32_t i = l->n_slots; s->free_slots && i-- > 0;)
        s->free_slots[s->n_free_slots++] = i;
    s->rows = (struct feature_rows){.used = arena_alloc_n(&s->arena, l->n_feature_rows + (size_t)1, 1),
                                    .n = l->n_feature_rows,
                                    .n_free = l->n_feature_rows};
    s->o.prefix_cache = o->prefix_cache && (!l->n_slots || l->n_snapshots);
    s->o.snapshot_every = snapshot_every(o);
    int rc = s->running && s->pieces && s->free_slots && s->rows.used
                 ? ERR_OK
                 : err_set(e, ERR_NOMEM, "scheduler: out of memory");
    if (rc == ERR_OK)
        rc = pages_init(&s->pages, &s->arena, l->n_pages, l->page_tokens, l->n_snapshots, o->hash_mask, e);
    if (rc != ERR_OK) {
        sched_close(s);
        return rc;
    }
    *out = s;
    return ERR_OK;
}

static void request_free(struct sched *s, struct request *r)
{
    mem_account(s->o.mem, MEM_REQUEST, -(int64_t)r->bytes);
    if (r->images)
        free(r->images);
    free(r);
}

void sched_close(struct sched *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->n_running; i++)
        request_free(s, s->running[i]);
    while (s->first_waiting) {
        struct request *r = s->first_waiting;
        s->first_waiting = r->next;
        request_free(s, r);
    }
    arena_release(&s->arena);
    free(s);
}

/* ---- submission ---------------------------------------------------------------------------------------- */

static bool is_live(const struct sched *s, uint64_t id)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->id == id)
            return true;
    for (const struct request *r = s->first_waiting; r; r = r->next)
        if (r->id == id)
            return true;
    return false;
}

/* The last token given is never computed, so it needs no slot. */
static uint64_t pages_needed(const struct sched *s, uint64_t n_prompt, uint64_t max_new)
{
    uint64_t pt = s->o.limits.page_tokens;
    return (n_prompt + max_new - 1 + pt - 1) / pt;
}

static int check_request(const struct sched *s, const struct sched_request *q, struct err *e)
{
    const struct engine_limits *l = &s->o.limits;
    if (!q->n_prompt || !q->prompt)
        return err_set(e, ERR_INVALID, "the prompt is empty");
    if (!q->max_new)
        return err_set(e, ERR_INVALID, "no token is asked for");
    uint64_t total = (uint64_t)q->n_prompt + q->max_new;
    if (total > s->o.max_context)
        return err_set(e, ERR_LIMIT, "prompt of %u and %u new tokens are %llu, the context holds %u",
                       q->n_prompt, q->max_new, (unsigned long long)total, s->o.max_context);
    uint64_t pages = pages_needed(s, q->n_prompt, q->max_new);
    uint32_t most = l->n_pages < l->max_pages_per_seq ? l->n_pages : l->max_pages_per_seq;
    if (pages > most)
        return err_set(e, ERR_LIMIT,
                       "prompt of %u and %u new tokens need %llu pages of %u tokens, there are %u",
                       q->n_prompt, q->max_new, (unsigned long long)pages, l->page_tokens, most);
    for (uint32_t i = 0; i < q->n_prompt; i++)
        if (q->prompt[i] < 0 || (uint32_t)q->prompt[i] >= l->vocab)
            return err_set(e, ERR_INVALID, "prompt token %u is %d, the vocabulary has %u", i, q->prompt[i],
                           l->vocab);
    /* a bad parameter found by the engine would fail everybody in the batch */
    int rc = step_sampling_validate(&q->sampling, l->vocab, e);
    if (rc != ERR_OK)
        return rc;
    rc = images_validate(q, l, s->o.prefill_chunk, e);
    if (rc != ERR_OK)
        return rc;
    if (is_live(s, q->id))
        return err_set(e, ERR_INVALID, "request %llu exists already", (unsigned long long)q->id);
    if (s->n_waiting >= s->o.max_waiting)
        return err_set(e, ERR_BUSY, "%u requests are waiting already", s->n_waiting);
    return ERR_OK;
}

static void queue_push(struct sched *s, struct request *r, bool front)
{
    r->next = front ? s->first_waiting : NULL;
    if (front)
        s->first_waiting = r;
    else if (s->last_waiting)
        s->last_waiting->next = r;
    else
        s->first_waiting = r;
    if (!front || !s->last_waiting)
        s->last_waiting = r;
    s->n_waiting++;
}

int sched_submit(struct sched *s, const struct sched_request *q, struct err *e)
{
    int rc = check_request(s, q, e);
    if (rc != ERR_OK)
        return rc;
    uint32_t n_total = (uint32_t)pages_needed(s, q->n_prompt, q->max_new);
    uint64_t n_ints = (uint64_t)q->n_prompt + q->max_new + n_total + q->n_stop;
    size_t bytes = sizeof(struct request) + n_ints * sizeof(int32_t);
    const uint32_t full = (uint32_t)(((uint64_t)q->n_prompt + q->max_new) / s->o.limits.page_tokens);
    struct images *images;
    rc = images_make(q, s->o.limits.page_tokens, s->o.prefix_cache ? full : 0, &images, e);
    if (rc != ERR_OK)
        return rc;
    struct request *r = calloc(1, bytes);
    if (!r) {
        free(images);
        return err_set(e, ERR_NOMEM, "no memory for a request of %zu bytes", bytes);
    }
    bytes += images ? images->bytes : 0;
    mem_account(s->o.mem, MEM_REQUEST, (int64_t)bytes);
    *r = (struct request){.id = q->id,
                          .bytes = bytes,
                          .n_prompt = q->n_prompt,
                          .max_new = q->max_new,
                          .n_stop = q->n_stop,
                          .n_tokens = q->n_prompt,
                          .n_total = n_total,
                          .snapshot = SNAPSHOT_NONE,
                          .ignore_stop = q->ignore_stop,
                          .sampling = q->sampling,
                          .images = images};
    r->tokens = (int32_t *)(r + 1);
    r->table = (uint32_t *)(r->tokens + q->n_prompt + q->max_new);
    r->stop_ids = (int32_t *)(r->table + n_total);
    memcpy(r->tokens, q->prompt, q->n_prompt * sizeof(int32_t));
    if (q->n_stop)
        memcpy(r->stop_ids, q->stop_ids, q->n_stop * sizeof(int32_t));
    queue_push(s, r, false);
    return ERR_OK;
}

/* ---- leaving ------------------------------------------------------------------------------------------- */

/* It has begun, or never will. */
static void let_snapshot_go(struct sched *s, struct request *r)
{
    if (r->snapshot != SNAPSHOT_NONE)
        snapshots_unpin(&s->pages.snapshots, r->snapshot);
    r->snapshot = SNAPSHOT_NONE;
}

/* Last page first: deeper pages of a prefix are evicted before those that they depend on. */
static void release(struct sched *s, struct request *r, bool keep)
{
    let_snapshot_go(s, r);
    images_release(r->images, &s->rows);
    r->held_up = false;
    if (s->encoding == r) /* its picture may still be out; nobody gets the rows before it is back */
        s->encoding = NULL;
    if (s->o.limits.n_slots)
        s->free_slots[s->n_free_slots++] = r->slot;
    s->pages.n_reserved -= r->n_total - r->n_held;
    while (r->n_held)
        pages_unref(&s->pages, r->table[--r->n_held], keep);
}

static void running_remove(struct sched *s, uint32_t at)
{
    s->n_running--;
    memmove(&s->running[at], &s->running[at + 1], (s->n_running - at) * sizeof(*s->running));
}

static void finish(struct sched *s, struct request *r, enum sched_finish why)
{
    uint32_t at = 0;
    while (at < s->n_running && s->running[at] != r)
        at++;
    if (at == s->n_running)
        BUG("request %llu is not running", (unsigned long long)r->id);
    running_remove(s, at);
    /* pages of a request that failed may hold anything: nobody shall find them */
    release(s, r, why != SCHED_FAILED);
    s->stats.finished[why]++;
    request_free(s, r);
}

void sched_cancel(struct sched *s, uint64_t id)
{
    for (uint32_t i = 0; i < s->n_running; i++) {
        if (s->running[i]->id != id)
            continue;
        for (uint32_t k = 0; k < s->n_pieces; k++)
            if (s->pieces[k].request == s->running[i])
                s->pieces[k].request = NULL;
        finish(s, s->running[i], SCHED_CANCELLED);
        return;
    }
    struct request *before = NULL;
    for (struct request *r = s->first_waiting; r; before = r, r = r->next) {
        if (r->id != id)
            continue;
        if (before)
            before->next = r->next;
        else
            s->first_waiting = r->next;
        if (s->last_waiting == r)
            s->last_waiting = before;
        s->n_waiting--;
        s->stats.finished[SCHED_CANCELLED]++;
        request_free(s, r);
        return;
    }
}

void sched_engine_lost(struct sched *s)
{
    s->out = s->picture_out = false;
    s->n_pieces = 0;
    while (s->n_running) {
        struct request *r = s->running[--s->n_running];
        release(s, r, false);
        r->computed = 0;
        r->chain = 0;
        r->n_chained = 0;
        queue_push(s, r, true);
    }
    pages_forget(&s->pages);
}

/* ---- admission ----------------------------------------------------------------------------------------- */

struct prefix {
    uint32_t known;  /* cached pages that hold the beginning */
    uint32_t usable; /* those of them that it can go on behind */
    uint32_t idle;   /* usable ones without a reference */
};

/* At least one token is left to compute, since logits come from computing. */
static void match_prefix(const struct sched *s, const struct request *r, uint32_t *table, struct prefix *out)
{
    uint32_t pt = s->o.limits.page_tokens, most = (r->n_tokens - 1) / pt, n = 0, idle = 0;
    uint64_t parent = 0;
    *out = (struct prefix){0};
    for (; s->o.prefix_cache && n < most; n++) {
        const struct page_text text = {r->tokens + (size_t)n * pt, images_digest(r->images, n)};
        uint32_t id = pages_find(&s->pages, parent, &text);
        if (id == PAGE_NONE)
            break;
        table[n] = id;
        parent = s->pages.page[id].uid;
        idle += s->pages.page[id].refs == 0;
        if ((s->o.limits.n_slots && s->pages.page[id].snapshot == SNAPSHOT_NONE) ||
            images_cuts_span(r->images, (n + 1) * pt))
            continue;
        out->usable = n + 1;
        out->idle = idle;
    }
    out->known = n;
}

/* Where the state of r will be wanted again: where what others begin with ends, and behind the last full page
 * of its prompt. */
static void choose_cuts(const struct sched *s, struct request *r, const struct prefix *p)
{
    uint32_t pt = s->o.limits.page_tokens;
    r->cuts[0] = p->known > p->usable ? p->known * pt : 0;
    r->cuts[1] = (r->n_tokens - 1) / pt * pt;
}

/* The next position at which a run of r ends so that its state can be kept; UINT32_MAX: none. */
static uint32_t next_cut(const struct sched *s, const struct request *r)
{
    if (!s->o.prefix_cache || !s->o.limits.n_slots)
        return UINT32_MAX;
    uint32_t every = s->o.snapshot_every, cut = (r->computed / every + 1) * every;
    for (size_t i = 0; i < ARRAY_LEN(r->cuts); i++)
        if (r->cuts[i] > r->computed && r->cuts[i] < cut)
            cut = r->cuts[i];
    return cut;
}

static bool admit(struct sched *s, struct request *r)
{
    struct prefix p;
    match_prefix(s, r, r->table, &p);
    uint32_t n = p.usable, n_idle = p.idle;
    /* idle pages that we are about to hold no longer count as available to anyone */
    if ((uint64_t)(r->n_total - n) + n_idle > pages_available(&s->pages))
        return false;
    if (!images_reserve(r->images, &s->rows, n * s->o.limits.page_tokens))
        return false;
    for (uint32_t i = 0; i < n; i++)
        pages_ref(&s->pages, r->table[i]);
    if (n)
        r->chain = s->pages.page[r->table[n - 1]].uid;
    if (s->o.limits.n_slots) {
        r->slot = s->free_slots[--s->n_free_slots];
        choose_cuts(s, r, &p);
    }
    if (s->o.limits.n_slots && n) {
        r->snapshot = s->pages.page[r->table[n - 1]].snapshot;
        snapshots_pin(&s->pages.snapshots, r->snapshot);
        s->stats.snapshot_hits++;
    }
    r->n_chained = n;
    r->n_held = n;
    s->pages.n_reserved += r->n_total - n;
    r->computed = n * s->o.limits.page_tokens;
    if (!r->n_generated)
        r->n_cached = r->computed;
    for (uint32_t i = 0; r->images && i < r->images->n; i++)
        s->stats.images_cached += r->images->image[i].last < r->computed;
    s->stats.tokens_cached += r->computed;
    return true;
}

static void admit_waiting(struct sched *s)
{
    while (s->first_waiting && s->n_running < s->o.limits.max_seqs &&
           (!s->o.limits.n_slots || s->n_free_slots)) {
        struct request *r = s->first_waiting;
        if (!admit(s, r))
            return; /* nobody overtakes: else a large request could wait for ever */
        s->first_waiting = r->next;
        if (!r->next)
            s->last_waiting = NULL;
        r->next = NULL;
        s->n_waiting--;
        s->running[s->n_running++] = r;
    }
}

/* ---- the batch ----------------------------------------------------------------------------------------- */

struct budget {
    uint32_t tokens, rows;
};

static uint32_t pending(const struct request *r)
{
    return r->n_tokens - r->computed;
}

static bool is_decode(const struct request *r)
{
    return r->n_generated && pending(r) == 1;
}

static void add_piece(struct sched *s, struct budget *b, struct request *r, uint32_t n)
{
    bool sample = n == pending(r);
    s->pieces[s->n_pieces++] =
        (struct piece){.request = r, .n_tokens = n, .save = SNAPSHOT_NONE, .sample = sample};
    b->tokens -= n;
    b->rows -= sample;
}

/* A request only starts to decode with a row and a token that the others leave, so all of them fit in every
 * step. After a loss of the engine more may be due than fit; those at the back then wait until others end. */
static void choose_decodes(struct sched *s, struct budget *b)
{
    for (uint32_t i = 0; i < s->n_running && b->tokens && b->rows; i++)
        if (is_decode(s->running[i]))
            add_piece(s, b, s->running[i], 1);
}

/* The next piece of a prompt. */
static void choose_prompt(struct sched *s, struct budget *b, struct request *r)
{
    uint32_t n = pending(r), cut = next_cut(s, r) - r->computed, most = s->o.prefill_chunk;
    most = most < b->tokens ? most : b->tokens;
    if (n <= most && !b->rows)
        most = n - 1; /* the last token has to wait for a row of logits */
    n = n < cut ? n : cut;
    n = n < most ? n : most;
    n = images_run(r->images, r->computed, n, most, &r->held_up);
    if (n)
        add_piece(s, b, r, n);
}

/* A span that the decode tokens leave no room for would wait until they end: in every other step they are
 * chosen behind it. */
static struct request *choose_held_up(struct sched *s, struct budget *b)
{
    struct request *first = NULL;
    for (uint32_t i = 0; i < s->n_running && !first && !s->gave_way; i++)
        if (s->running[i]->held_up)
            first = s->running[i];
    s->gave_way = first != NULL;
    if (first)
        choose_prompt(s, b, first);
    return first;
}

static void choose_prompts(struct sched *s, struct budget *b, const struct request *but)
{
    for (uint32_t i = 0; i < s->n_running && b->tokens; i++)
        if (s->running[i] != but && !is_decode(s->running[i]))
            choose_prompt(s, b, s->running[i]);
}

static uint32_t table_pages(const struct sched *s, const struct piece *p)
{
    uint32_t pt = s->o.limits.page_tokens;
    return (uint32_t)(((uint64_t)p->request->computed + p->n_tokens + pt - 1) / pt);
}

static void fill_plan(struct sched *s, struct step_plan *plan)
{
    struct step_seq *q = step_plan_seqs(plan);
    int32_t *tokens = step_plan_tokens(plan), *pages = step_plan_pages(plan);
    struct step_place *places = step_plan_places(plan);
    uint32_t n_tokens = 0, n_pages = 0;
    for (uint32_t i = 0; i < s->n_pieces; i++, q++) {
        struct request *r = s->pieces[i].request;
        uint32_t need = table_pages(s, &s->pieces[i]);
        for (; r->n_held < need; s->pages.n_reserved--) {
            uint32_t id = pages_take(&s->pages);
            if (id == PAGE_NONE)
                BUG("a promised page is not there");
            r->table[r->n_held++] = id;
        }
        if (r->computed + s->pieces[i].n_tokens == next_cut(s, r))
            s->pieces[i].save = pages_take_snapshot(&s->pages);
        /* SNAPSHOT_NONE is the largest number: one more is 0, as a message says "none" */
        *q = (struct step_seq){.request = r->id,
                               .first_token = n_tokens,
                               .n_tokens = s->pieces[i].n_tokens,
                               .position = r->computed,
                               .first_page = n_pages,
                               .n_pages = need,
                               .flags = s->pieces[i].sample ? STEP_SAMPLE : 0,
                               .slot = r->slot,
                               .restore = r->snapshot + 1,
                               .save = s->pieces[i].save + 1,
                               .sampling = r->sampling};
        memcpy(tokens + n_tokens, r->tokens + r->computed, q->n_tokens * sizeof(int32_t));
        for (uint32_t k = 0; k < need; k++)
            pages[n_pages + k] = (int32_t)r->table[k];
        for (uint32_t k = 0; k < q->n_tokens && plan->n_places; k++)
            places[n_tokens + k] = images_place(r->images, r->computed + k);
        n_tokens += q->n_tokens;
        n_pages += need;
    }
}

int sched_plan(struct sched *s, void *buf, size_t cap, struct step_plan **plan, struct err *e)
{
    *plan = NULL;
    if (s->out)
        return err_set(e, ERR_BUSY, "step %llu is still out", (unsigned long long)s->step);
    if (s->picture_out)
        return err_set(e, ERR_BUSY, "a picture is still out");
    admit_waiting(s);
    struct budget b = {s->o.limits.max_tokens, s->o.limits.max_rows};
    s->n_pieces = 0;
    const struct request *first = choose_held_up(s, &b);
    choose_decodes(s, &b);
    choose_prompts(s, &b, first);
    if (!s->n_pieces)
        return ERR_OK;
    uint64_t n_pages = 0;
    uint32_t n_tokens = s->o.limits.max_tokens - b.tokens;
    for (uint32_t i = 0; i < s->n_pieces; i++)
        n_pages += table_pages(s, &s->pieces[i]);
    int rc = n_pages > UINT32_MAX ? err_set(e, ERR_LIMIT, "the step's page tables are too long") : ERR_OK;
    if (rc == ERR_OK)
        rc = (s->rows.n ? step_plan_init_places : step_plan_init)(buf, cap, s->n_pieces, n_tokens,
                                                                  (uint32_t)n_pages, plan, e);
    if (rc != ERR_OK) {
        s->n_pieces = 0;
        return rc;
    }
    (*plan)->step = ++s->step;
    fill_plan(s, *plan);
    s->out = true;
    s->encoded = false;
    s->stats.last_batch_seqs = s->n_pieces;
    s->stats.last_batch_tokens = n_tokens;
    return ERR_OK;
}

/* ---- pictures ------------------------------------------------------------------------------------------ */

static bool any_decode(const struct sched *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (is_decode(s->running[i]))
            return true;
    return false;
}

bool sched_picture(struct sched *s, struct sched_job *job)
{
    if (!s->rows.n || s->out || s->picture_out)
        return false;
    admit_waiting(s);
    if (s->encoded && any_decode(s)) /* those that wait for a token wait for one picture at a time */
        return false;
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct request *r = s->running[i];
        uint32_t n = pending(r) < s->o.prefill_chunk ? pending(r) : s->o.prefill_chunk;
        struct image *image = images_wanted(r->images, r->computed, n);
        if (!image)
            continue;
        s->picture_out = true;
        s->encoding = r;
        s->image = image;
        *job = (struct sched_job){.request = r->id,
                                  .image = (uint32_t)(image - r->images->image),
                                  .first_row = image->row,
                                  .message = image->message,
                                  .bytes = image->bytes};
        return true;
    }
    return false;
}

/* ---- results ------------------------------------------------------------------------------------------- */

struct sink {
    sched_event_fn fn;
    void *context;
};

static void emit(const struct sink *sink, const struct request *r, struct sched_event *event)
{
    event->id = r->id;
    event->n_prompt = r->n_prompt;
    event->n_cached = r->n_cached;
    event->n_generated = r->n_generated;
    if (sink->fn)
        sink->fn(sink->context, event);
}

static void fail(struct sched *s, const struct sink *sink, struct request *r, const char *why)
{
    struct sched_event event = {.token = -1, .finish = SCHED_FAILED, .why = why};
    emit(sink, r, &event);
    finish(s, r, SCHED_FAILED);
}

/* Full pages become findable once they are computed, and with the last of them the state behind it. */
static void enter_pages(struct sched *s, struct piece *p)
{
    struct request *r = p->request;
    uint32_t pt = s->o.limits.page_tokens, entry = PAGE_NONE;
    for (; s->o.prefix_cache && r->n_chained < r->computed / pt; r->n_chained++) {
        const struct page_text text = {r->tokens + (size_t)r->n_chained * pt,
                                       images_digest(r->images, r->n_chained)};
        entry = pages_enter(&s->pages, r->table[r->n_chained], r->chain, &text);
        r->chain = s->pages.page[entry].uid;
    }
    if (p->save == SNAPSHOT_NONE)
        return;
    pages_keep_snapshot(&s->pages, entry, p->save);
    p->save = SNAPSHOT_NONE;
}

void sched_picture_done(struct sched *s, int rc, const char *why, sched_event_fn fn, void *context)
{
    const struct sink sink = {fn, context};
    struct request *r = s->encoding;
    if (!s->picture_out)
        return;
    s->picture_out = false;
    s->encoding = NULL;
    s->encoded = true;
    if (!r)
        return;
    if (rc != ERR_OK) {
        fail(s, &sink, r, why ? why : "the picture could not be encoded");
        return;
    }
    s->image->encoded = true;
    s->stats.images_encoded++;
}

static bool is_stop(const struct request *r, int32_t token)
{
    for (uint32_t i = 0; !r->ignore_stop && i < r->n_stop; i++)
        if (r->stop_ids[i] == token)
            return true;
    return false;
}

static void apply_piece(struct sched *s, const struct sink *sink, struct piece *p,
                        const struct step_seq_result *q, const struct step_top *tops)
{
    struct request *r = p->request;
    if (q->status != STEP_OK) {
        fail(s, sink, r, "the logits hold NaN or infinity");
        return;
    }
    if (p->sample && (q->token < 0 || (uint32_t)q->token >= s->o.limits.vocab)) {
        fail(s, sink, r, "the engine gave a token outside the vocabulary");
        return;
    }
    r->computed += p->n_tokens;
    if (!r->n_generated)
        s->stats.tokens_prefilled += p->n_tokens;
    let_snapshot_go(s, r);
    images_passed(r->images, &s->rows, r->computed);
    enter_pages(s, p);
    if (!p->sample)
        return;
    r->tokens[r->n_tokens++] = q->token;
    r->n_generated++;
    s->stats.tokens_generated++;
    enum sched_finish f = is_stop(r, q->token)           ? SCHED_STOP
                          : r->n_generated == r->max_new ? SCHED_LENGTH
                                                         : SCHED_RUNNING;
    struct sched_event event = {.token = q->token,
                                .logprob = q->logprob,
                                .top = q->n_top ? tops + q->first_top : NULL,
                                .n_top = q->n_top,
                                .finish = f};
    emit(sink, r, &event);
    if (f != SCHED_RUNNING)
        finish(s, r, f);
}

static int check_result(const struct sched *s, const struct step_result *r, size_t bytes, struct err *e)
{
    if (!s->out)
        return err_set(e, ERR_INVALID, "no step is out");
    int rc = step_result_validate(r, bytes, e);
    if (rc != ERR_OK)
        return rc;
    if (r->step != s->step)
        return err_set(e, ERR_MISMATCH, "result of step %llu, expected %llu", (unsigned long long)r->step,
                       (unsigned long long)s->step);
    if (r->error)
        return ERR_OK;
    if (r->n_seqs != s->n_pieces)
        return err_set(e, ERR_MISMATCH, "result of %u sequences, expected %u", r->n_seqs, s->n_pieces);
    const struct step_seq_result *q = (const struct step_seq_result *)((const char *)r + r->seqs_at);
    for (uint32_t i = 0; i < s->n_pieces; i++)
        if (s->pieces[i].request && q[i].request != s->pieces[i].request->id)
            return err_set(e, ERR_MISMATCH, "result for request %llu, expected %llu",
                           (unsigned long long)q[i].request, (unsigned long long)s->pieces[i].request->id);
    return ERR_OK;
}

int sched_apply(struct sched *s, const struct step_result *r, size_t bytes, sched_event_fn fn, void *context,
                struct err *e)
{
    int rc = check_result(s, r, bytes, e);
    if (rc != ERR_OK)
        return rc;
    struct sink sink = {fn, context};
    const struct step_seq_result *q = (const struct step_seq_result *)((const char *)r + r->seqs_at);
    const struct step_top *tops = (const struct step_top *)((const char *)r + r->tops_at);
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        struct piece *p = &s->pieces[i];
        if (p->request && r->error)
            fail(s, &sink, p->request, (const char *)r + r->error_at);
        else if (p->request)
            apply_piece(s, &sink, p, &q[i], tops);
        if (p->save != SNAPSHOT_NONE) /* of a request that failed or has left */
            snapshots_free(&s->pages.snapshots, p->save);
    }
    s->out = false;
    s->n_pieces = 0;
    s->stats.steps++;
    return ERR_OK;
}

/* ---- views --------------------------------------------------------------------------------------------- */

void sched_stats(const struct sched *s, struct sched_stats *out)
{
    *out = s->stats;
    out->n_running = s->n_running;
    out->n_waiting = s->n_waiting;
    out->pages_total = s->pages.n;
    out->pages_free = s->pages.n_free + s->pages.n_cached;
    out->pages_cached = s->pages.n_cached;
    out->snapshots_total = s->pages.snapshots.n;
    out->snapshots_kept = s->pages.snapshots.n_kept;
    out->feature_rows_total = s->rows.n;
    out->feature_rows_free = s->rows.n_free;
}
