/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler and pictures, under a simulator (sched_sim.h): whose pages are found by whom, when a picture
 * goes through the tower, when its rows are free again, spans that no step cuts, and what submission refuses.
 */
#include "sched_sim.h"

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
        struct sim *m = sim_open((struct sched_options){.limits = seeing_limits, .prefix_cache = true});
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
    }
}

/* A prefix that ends within a picture: what is left of it needs the rows, all of them. Within a span no
 * prefix ends, and two prompts that part within one share nothing of it. */
static void test_pictures_cut(void **state)
{
    (void)state;
    for (int spans = 0; spans < 2; spans++) {
        struct sim *m = sim_open((struct sched_options){.limits = seeing_limits, .prefix_cache = true});
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
        m = sim_open((struct sched_options){.limits = seeing_limits, .prefix_cache = true});
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
    }
}

/* Rows are promised at admission: a request waits for them, and gets them when those of another are passed.
 */
static void test_pictures_wait(void **state)
{
    (void)state;
    struct sim *m = sim_open((struct sched_options){.limits = seeing_limits, .prefill_chunk = 8});
    const uint32_t at[] = {0, 6, 12};
    int32_t p[20];
    struct seen_prompt q;
    struct sched_stats st;
    fill(p, 20, 1);
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
    struct picture_plan message;
    for (int i = 0; i < 3; i++)
        put_message(&q.images[i], &message);
    r.images = q.images;
    r.feature_of = q.feature_of;
    assert_int_equal(sched_submit(m->s, &r, &e), ERR_LIMIT);
    assert_non_null(strstr(e.message, "18 rows, there is room for 16"));
    sim_close(m);
}

/* Those that wait for a token get one between two pictures; a request alone does not wait. */
static void test_pictures_between(void **state)
{
    (void)state;
    struct sim *m = sim_open((struct sched_options){.limits = seeing_limits});
    const uint32_t at[] = {1, 3, 5};
    int32_t p[12], text[8];
    struct seen_prompt q;
    struct sched_job job;
    fill(p, 12, 1);
    fill(text, 8, 2);
    make_seen(&q, p, 12, at, "bbb", false);
    submit_seen(m, p, 12, 1, &q);
    for (int i = 0; i < 3; i++)
        assert_true(encode(m));
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
        assert_true(encode(m));
        assert_false(sched_picture(m->s, &job));
        struct step_plan *s;
        assert_true(plan(m, &s));
        assert_false(sched_picture(m->s, &job)); /* a step is out */
        apply(m, s);
        assert_true(!l->used || l->n_tokens == before + 1);
    }
    drain(m);
    sim_close(m);
}

/* A span that a step holds only alone gets its step, while others go on to ask for tokens. */
static void test_spans_not_starved(void **state)
{
    (void)state;
    struct engine_limits l = seeing_limits;
    l.max_tokens = 6;
    l.n_pages = 64;
    struct sim *m = sim_open((struct sched_options){.limits = l});
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
}

#define NOT(code, change)                                                                                    \
    do {                                                                                                     \
        fill(p, 20, 1);                                                                                      \
        make_seen(&q, p, 20, at, "cf", true);                                                                \
        for (int k = 0; k < 2; k++)                                                                          \
            put_message(&q.images[k], &message[k]);                                                          \
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
    struct sim *m = sim_open((struct sched_options){.limits = seeing_limits});
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
    m = sim_open((struct sched_options){.limits = blind});
    NOT(ERR_UNSUPPORTED, (void)0);
    NOT(ERR_UNSUPPORTED,
        r = ((struct sched_request){.id = 1, .prompt = p, .n_prompt = 9, .max_new = 1, .places = q.places}));
    struct sched_job job;
    assert_false(sched_picture(m->s, &job));
    sched_picture_done(m->s, ERR_OK, NULL, on_event, m); /* none is out: nothing happens */
    sim_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pictures_cached),   cmocka_unit_test(test_pictures_cut),
        cmocka_unit_test(test_pictures_wait),     cmocka_unit_test(test_pictures_between),
        cmocka_unit_test(test_spans_not_starved), cmocka_unit_test(test_pictures_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
