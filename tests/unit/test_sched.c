/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler under a simulator (sched_sim.h): batches, prefix cache, slots and snapshots, losses, and
 * whatever a long row of random events brings, pictures among them.
 */
#include "sched_sim.h"

/* ---- tests --------------------------------------------------------------------------------------------- */

static void test_refusals(void **state)
{
    (void)state;
    struct sim *m = sim_open((struct sched_options){.max_waiting = 2});
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
    struct engine_limits few = usual_limits;
    few.n_pages = 3;
    m = sim_open((struct sched_options){.limits = few});
    r = (struct sched_request){.id = 1, .prompt = p, .n_prompt = 3 * PT, .max_new = 2};
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_LIMIT);
    assert_non_null(strstr(e.message, "4 pages"));
    r.max_new = 1; /* the last token given is never computed */
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_OK);
    sim_close(m);
    few.vocab = 0;
    struct sched *none;
    assert_int_equal(sched_open(&none, &(struct sched_options){.limits = few, .max_context = 9}, &e),
                     ERR_INVALID);
}

static void test_batch_order(void **state)
{
    (void)state;
    struct sim *m = sim_open((struct sched_options){.prefill_chunk = 6});
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
        uint64_t n = m->n_events; /* however it ends, nobody hears of it */
        sched_picture_done(m->s, rng_below(rng, 2) ? ERR_OK : ERR_DEVICE, NULL, on_event, m);
        assert_int_equal(m->n_events, n);
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
        struct sim *m = sim_open((struct sched_options){
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
                lose(m);
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
}

/* Everyone gets through while new work never ends, also when a step is smaller than the running set. */
static void test_no_starvation(void **state)
{
    (void)state;
    for (uint32_t width = 1; width <= 4; width++) {
        struct engine_limits l = usual_limits;
        l.max_tokens = width;
        l.max_rows = width;
        l.n_pages = 20;
        struct sim *m = sim_open((struct sched_options){.limits = l, .max_waiting = 8});
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
}

/* Who has begun to decode gets a token in every step, however small the steps are. */
static void test_steady_decode(void **state)
{
    (void)state;
    for (uint32_t width = 1; width < 9; width++) {
        struct engine_limits l = usual_limits;
        l.max_tokens = width;
        l.max_rows = 1 + width / 2;
        l.n_pages = 40;
        struct sim *m = sim_open((struct sched_options){.limits = l, .prefill_chunk = 3});
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
    for (int collide = 0; collide < 2; collide++) {
        struct sim *m = sim_open((struct sched_options){.prefix_cache = true, .hash_mask = collide ? 1 : 0});
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
        struct sim *m = sim_open((struct sched_options){.prefix_cache = true, .hash_mask = 1});
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
        struct sim *m = sim_open((struct sched_options){.prefix_cache = true, .prefill_chunk = 8});
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
    struct sim *m = sim_open((struct sched_options){.prefix_cache = true});
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
    lose(m);
    assert_int_equal(cached_of(m, p, n + 1, 1), 0);
    sim_close(m);
}

/* The oldest unused prefix goes first; a prefix in use never does. */
static void test_eviction(void **state)
{
    (void)state;
    struct engine_limits l = usual_limits;
    l.max_tokens = 64;
    l.n_pages = 9;
    struct sim *m = sim_open((struct sched_options){.limits = l, .prefix_cache = true});
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
    int32_t p[40], q[40];
    for (int collide = 0; collide < 2; collide++) {
        struct sim *m = sim_open((struct sched_options){
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
    struct sim *m = sim_open((struct sched_options){.limits = recurrent_limits, .prefix_cache = true});
    for (uint64_t i = 0; i < 3; i++) {
        fill(p, 40, 8);
        fill(q, 40, 20 + i);
        memcpy(p + 21, q, 19 * sizeof *p);
        assert_int_equal(cached_of(m, p, 40, 1), i == 2 ? 20 : 0);
    }
    sim_close(m);
}

/* A run ends where a state is kept, whatever the chunk; at multiples too, also of what was generated. */
static void test_snapshot_cuts(void **state)
{
    (void)state;
    int32_t p[60];
    fill(p, 60, 31);
    struct sim *m = sim_open((struct sched_options){
        .limits = recurrent_limits, .prefix_cache = true, .prefill_chunk = 7, .snapshot_every = 9}); /* 12 */
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
    m = sim_open((struct sched_options){.limits = recurrent_limits, .prefix_cache = true});
    submit(m, p, 60, 1); /* two of 64 tokens, and the last full page */
    drain(m);
    assert_int_equal(m->n_saved, 2);
    sim_close(m);
}

static void test_snapshot_eviction(void **state)
{
    (void)state;
    struct engine_limits l = recurrent_limits;
    int32_t a[20], b[20], c[20];
    fill(a, 20, 11);
    fill(b, 20, 12);
    fill(c, 20, 13);
    /* the longest unused goes first */
    l.n_snapshots = 2;
    struct sim *m = sim_open((struct sched_options){.limits = l, .prefix_cache = true, .snapshot_every = 60});
    assert_int_equal(cached_of(m, a, 20, 1), 0);
    assert_int_equal(cached_of(m, b, 20, 1), 0);
    assert_int_equal(cached_of(m, a, 20, 1), 16);
    assert_int_equal(cached_of(m, c, 20, 1), 0);
    assert_int_equal(cached_of(m, a, 20, 1), 16);
    assert_int_equal(cached_of(m, b, 20, 1), 0); /* its pages are there, its state is not */
    sim_close(m);
    /* with its page goes the state */
    l.n_pages = 9;
    m = sim_open((struct sched_options){.limits = l, .prefix_cache = true, .snapshot_every = 60});
    assert_int_equal(cached_of(m, a, 20, 1), 0);
    assert_int_equal(kept_now(m), 1);
    fill(b, 20, 14);
    assert_int_equal(cached_of(m, b, 4, 21), 0); /* takes six pages: of the five of a the last two go */
    assert_int_equal(kept_now(m), 0);
    sim_close(m);
    /* one that somebody begins from in the step in which another is to be kept, and no other is left */
    l = recurrent_limits;
    l.n_snapshots = 1;
    m = sim_open((struct sched_options){.limits = l, .prefix_cache = true, .snapshot_every = 60});
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
}

/* What a failed, cancelled or lost step has written is no state to begin from. */
static void test_snapshot_failures(void **state)
{
    (void)state;
    int32_t a[20];
    fill(a, 20, 17);
    for (int how = 0; how < 4; how++) {
        struct sim *m = sim_open((struct sched_options){.limits = recurrent_limits, .prefix_cache = true});
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
            lose(m);
            check(m);
            drain(m);
        } else {
            apply(m, s);
        }
        m->break_step = m->not_finite = false;
        assert_int_equal(cached_of(m, a, 20, 1), how == 3 ? 16 : 0);
        assert_int_equal(cached_of(m, a, 20, 1), 16);
        /* what was kept before a loss is gone after it */
        lose(m);
        assert_int_equal(kept_now(m), 0);
        assert_int_equal(cached_of(m, a, 20, 1), 0);
        sim_close(m);
    }
}

static void test_lost_engine(void **state)
{
    (void)state;
    struct sim *m = sim_open((struct sched_options){.prefill_chunk = 5});
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
        lose(m);
        check(m);
    }
    drain(m); /* the simulator compares every token with what the whole prefix must give */
    assert_int_equal(m->n_finished, 3);
    assert_int_equal(m->n_failed, 0);
    sim_close(m);
}

static void test_bad_results(void **state)
{
    (void)state;
    struct sim *m = sim_open((struct sched_options){0});
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_batch_order),
        cmocka_unit_test(test_random),
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
