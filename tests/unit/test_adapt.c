/* SPDX-License-Identifier: Apache-2.0
 *
 * The job's own rules without a service: options, the directory it may write to, keys and storing of stages,
 * hostile stored stages, and what counts as writing. The whole job is tested end to end (tests/e2e/rows.sh).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapt/job.h"
#include "base/file.h"

static int forget(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

struct place {
    char dir[64];
    char model[96], out[96];
};

static void place_open(struct place *p)
{
    struct err e = {0};
    snprintf(p->dir, sizeof(p->dir), "/tmp/day0-adapt-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    snprintf(p->model, sizeof(p->model), "%s/model", p->dir);
    snprintf(p->out, sizeof(p->out), "%s/out", p->dir);
    assert_int_equal(dir_make(p->model, &e), ERR_OK);
}

static void place_close(struct place *p)
{
    nftw(p->dir, forget, 16, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[200];
    struct err e = {0};
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), &e), ERR_OK);
}

/* d0 must outlive the result: its memory is accounted there. */
static int run(const struct adapt_options *o, struct adapt_result *r, struct d0 *d0, struct err *e)
{
    *d0 = (struct d0){.log = {.fd = -1}};
    err_clear(e);
    return adapt_run(o, r, d0, e);
}

static void test_options(void **state)
{
    (void)state;
    struct place p;
    struct adapt_result r;
    struct d0 d0;
    struct err e = {0};
    place_open(&p);
    struct adapt_override weather = {"weather", "sunny"};
    const struct {
        struct adapt_options o;
        int code;
    } cases[] = {{{.program = "x"}, ERR_USAGE},
                 {{.model_dir = "/nowhere/at/all", .program = "x"}, ERR_MISSING},
                 {{.model_dir = p.model}, ERR_USAGE},
                 {{.model_dir = p.model, .program = "x", .reference = "/nowhere.safetensors"}, ERR_MISSING},
                 {{.model_dir = p.model, .service_url = "ftp://x"}, ERR_USAGE},
                 {{.model_dir = p.model, .program = "x", .root = "x.json"}, ERR_USAGE},
                 {{.model_dir = p.model, .program = "x", .rules = "/nowhere.json"}, ERR_MISSING},
                 {{.model_dir = p.model, .program = "x", .accept = &weather, .n_accept = 1}, ERR_USAGE},
                 {{.model_dir = p.model, .program = "x", .waive = &weather, .n_waive = 1}, ERR_USAGE}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct adapt_options o = cases[i].o;
        o.out_dir = p.out;
        assert_int_equal(run(&o, &r, &d0, &e), cases[i].code);
        assert_true(e.message[0] != '\0');
    }
    place_close(&p);
}

/* An empty model directory: every stage says why it cannot, every row is there, the report is written, the
 * verdict is fail. */
static void test_empty_model(void **state)
{
    (void)state;
    struct place p;
    struct adapt_result r;
    struct d0 d0;
    struct err e = {0};
    struct file_info info;
    place_open(&p);
    struct adapt_options o = {.model_dir = p.model, .out_dir = p.out, .program = "/bin/false"};
    assert_int_equal(run(&o, &r, &d0, &e), ERR_OK);
    assert_int_equal(r.verdict, VERDICT_FAIL);
    assert_int_equal(adapt_exit_status(&r), 1);
    assert_int_equal(r.rows[ROW_WEIGHTS].state, ROW_FAILED);
    for (unsigned i = 0; i < ROW_N; i++)
        assert_true(r.rows[i].state != ROW_PASSED || i == ROW_COMM);
    assert_int_equal(r.stages[0].state, STAGE_FAILED);
    for (unsigned i = 1; i < 5; i++) {
        assert_int_equal(r.stages[i].state, STAGE_NOT_RUN);
        assert_non_null(strstr(r.stages[i].summary, "not run"));
    }
    assert_int_equal(file_stat(r.report_json_path, &info, &e), ERR_OK);
    assert_true(info.exists && info.bytes > 1000);
    assert_int_equal(file_stat(r.report_html_path, &info, &e), ERR_OK);
    assert_true(info.exists && info.bytes > 1000);
    adapt_result_release(&r);
    place_close(&p);
}

static void test_directory_of_somebody_else(void **state)
{
    (void)state;
    struct place p;
    struct adapt_result r;
    struct d0 d0;
    struct err e = {0};
    struct arena arena;
    char path[200], *text;
    size_t n;
    place_open(&p);
    assert_int_equal(dir_make(p.out, &e), ERR_OK);
    put(p.out, "index.html", "precious");
    struct adapt_options o = {.model_dir = p.model, .out_dir = p.out, .program = "/bin/false"};
    assert_int_equal(run(&o, &r, &d0, &e), ERR_USAGE);
    assert_non_null(strstr(e.message, "index.html"));
    arena_init(&arena, NULL, MEM_MISC);
    snprintf(path, sizeof(path), "%s/index.html", p.out);
    assert_int_equal(file_read(path, 100, &arena, &text, &n, &e), ERR_OK);
    assert_string_equal(text, "precious");
    arena_release(&arena);
    /* a file where the directory should be */
    snprintf(path, sizeof(path), "%s/index.html", p.out);
    o.out_dir = path;
    assert_int_equal(run(&o, &r, &d0, &e), ERR_USAGE);
    place_close(&p);
}

/* ---- keys and stored stages, on a job put together by hand */

struct stored {
    struct place place;
    struct adapt_options o;
    struct adapt_result r;
    struct d0 d0;
    struct job j;
    struct err e;
};

static void stored_open(struct stored *s)
{
    memset(s, 0, sizeof(*s));
    place_open(&s->place);
    put(s->place.model, "config.json", "{}");
    put(s->place.model, "model.safetensors", "12345678");
    s->o = (struct adapt_options){.model_dir = s->place.model, .out_dir = s->place.out, .program = "day0"};
    s->d0.log.fd = -1;
    arena_init(&s->r.arena, NULL, MEM_REPORT);
    findings_init(&s->r.findings, NULL);
    s->j = (struct job){.o = &s->o,
                        .out = &s->r,
                        .d0 = &s->d0,
                        .arena = &s->r.arena,
                        .f = &s->r.findings,
                        .out_dir = s->place.out,
                        .memory_source = "test"};
    assert_int_equal(host_open(&s->j.host, s->place.model, &s->e), ERR_OK);
    s->j.stage_dir = path_join(&s->r.arena, s->place.out, "stages");
    assert_int_equal(outdir_prepare(&s->j, &s->e), ERR_OK);
    assert_int_equal(outdir_prepare(&s->j, &s->e), ERR_OK); /* ours now */
}

static void stored_close(struct stored *s)
{
    host_close(s->j.host);
    adapt_result_release(&s->r);
    place_close(&s->place);
}

typedef char keys_type[REPORT_STAGES][SHA256_HEX_BYTES];

/* Which stages have another key than before: the number of the first, or 5. */
static unsigned first_changed(struct stored *s, keys_type before)
{
    keys_type now;
    unsigned first = REPORT_STAGES;
    assert_int_equal(resume_keys(&s->j, now, &s->e), ERR_OK);
    for (unsigned i = REPORT_STAGES; i-- > 0;) {
        if (strcmp(now[i], before[i]) != 0)
            first = i;
    }
    for (unsigned i = first; i < REPORT_STAGES; i++) /* a change changes everything after it */
        assert_string_not_equal(now[i], before[i]);
    return first;
}

static void test_keys(void **state)
{
    (void)state;
    struct stored s;
    keys_type keys;
    stored_open(&s);
    assert_int_equal(resume_keys(&s.j, keys, &s.e), ERR_OK);
    assert_int_equal(first_changed(&s, keys), REPORT_STAGES);
    s.o.stress_requests = 9;
    assert_int_equal(first_changed(&s, keys), STAGE_STRESS);
    s.o.stress_requests = 0;
    s.o.memory_bytes = 5;
    assert_int_equal(first_changed(&s, keys), STAGE_LAYOUT);
    s.o.memory_bytes = 0;
    s.j.plan_options.max_patches = 1024; /* pictures of another size, or now some where there were none */
    assert_int_equal(first_changed(&s, keys), STAGE_LAYOUT);
    s.j.plan_options.max_patches = 0;
    put(s.place.dir, "reference", "a");
    char reference[100];
    snprintf(reference, sizeof(reference), "%s/reference", s.place.dir);
    s.o.reference = reference;
    keys_type with;
    assert_int_equal(first_changed(&s, keys), STAGE_MINIMAL);
    assert_int_equal(resume_keys(&s.j, with, &s.e), ERR_OK);
    put(s.place.dir, "reference", "b"); /* same name, other content */
    assert_int_equal(first_changed(&s, with), STAGE_MINIMAL);
    s.o.reference = NULL;
    s.o.isa = "ref";
    assert_int_equal(first_changed(&s, keys), STAGE_ENVIRONMENT);
    s.o.isa = NULL;
    put(s.place.dir, "rules", "a");
    char rules[100];
    snprintf(rules, sizeof(rules), "%s/rules", s.place.dir);
    s.o.rules = rules;
    assert_int_equal(first_changed(&s, keys), STAGE_ENVIRONMENT);
    assert_int_equal(resume_keys(&s.j, with, &s.e), ERR_OK);
    put(s.place.dir, "rules", "b");
    assert_int_equal(first_changed(&s, with), STAGE_ENVIRONMENT);
    s.o.rules = NULL;
    put(s.place.model, "model.safetensors", "87654321"); /* same size */
    assert_int_equal(first_changed(&s, keys), STAGE_ENVIRONMENT);
    stored_close(&s);
}

static void store(struct stored *s, unsigned stage, enum stage_state state, const char *key)
{
    struct row before[ROW_N];
    size_t first = s->r.findings.n;
    memcpy(before, s->r.rows, sizeof(before));
    stage_say(&s->j, stage, state, "it went \"well\"");
    s->r.stages[stage].seconds = 2.5;
    job_row(&s->j, ROW_WEIGHTS, ROW_PASSED, "146 tensors");
    finding_add(&s->r.findings, FINDING_C005, "key", "unread %d", 1);
    assert_int_equal(resume_store(&s->j, stage, key, "{\"a\": 1}", before, first, &s->e), ERR_OK);
    memset(s->r.rows, 0, sizeof(s->r.rows));
    memset(s->r.stages, 0, sizeof(s->r.stages));
    s->r.findings.n = 0;
}

static void test_store_and_load(void **state)
{
    (void)state;
    struct stored s;
    stored_open(&s);
    store(&s, 0, STAGE_PASSED, "k1");
    assert_false(resume_load(&s.j, 0, "k2"));
    assert_int_equal(s.r.findings.n, 0);
    assert_true(resume_load(&s.j, 0, "k1"));
    assert_true(s.r.stages[0].resumed && s.r.stages[0].seconds == 2.5);
    assert_string_equal(s.r.stages[0].summary, "it went \"well\"");
    assert_int_equal(s.r.rows[ROW_WEIGHTS].state, ROW_PASSED);
    assert_string_equal(s.r.rows[ROW_WEIGHTS].evidence, "146 tensors");
    assert_int_equal(s.r.findings.n, 1);
    assert_int_equal(s.r.findings.items[0].id, FINDING_C005);
    int64_t a = 0;
    assert_true(json_i64(json_get(s.j.facts[0], "a"), &a) && a == 1);
    /* what failed or was cut short is never taken over */
    static const enum stage_state not_these[] = {STAGE_FAILED, STAGE_NOT_RUN, STAGE_PARTIAL};
    for (size_t i = 0; i < ARRAY_LEN(not_these); i++) {
        store(&s, 0, not_these[i], "k1");
        assert_false(resume_load(&s.j, 0, "k1"));
    }
    s.j.rules_open = true; /* nobody can judge a rule: the next run could not either */
    store(&s, 0, STAGE_PARTIAL, "k1");
    assert_true(resume_load(&s.j, 0, "k1"));
    s.j.external = true;
    store(&s, STAGE_LAYOUT, STAGE_PASSED, "k1");
    assert_false(resume_load(&s.j, STAGE_LAYOUT, "k1"));
    stored_close(&s);
}

static void test_hostile_stored_stage(void **state)
{
    (void)state;
    static const char *const head = "{\"generator\":\"day0\",\"schema_version\":1,\"key\":\"k\",\"complete\":"
                                    "true,\"state\":1,\"summary\":\"s\",";
    static const char *const tails[] = {
        "",
        "\"facts\":{}}",
        "\"rows\":[],\"facts\":{}}",
        "\"rows\":{},\"findings\":[],\"facts\":{}}",
        "\"rows\":[{\"row\":\"weather\",\"state\":1,\"evidence\":\"e\"}],\"findings\":[],\"facts\":{}}",
        "\"rows\":[{\"row\":\"text\",\"state\":77,\"evidence\":\"e\"}],\"findings\":[],\"facts\":{}}",
        ("\"rows\":[],\"findings\":[{\"id\":\"X999\",\"subject\":\"s\",\"evidence\":\"e\",\"remedy\":\"r\"}],"
         "\"facts\":{}}"),
        "\"rows\":[],\"findings\":[{\"id\":7}],\"facts\":{}}",
        "\"rows\":[],\"findings\":[]}"};
    struct stored s;
    stored_open(&s);
    for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
        char text[600];
        snprintf(text, sizeof(text), "%s%s", head, tails[i]);
        put(s.j.stage_dir, "1.json", text);
        assert_false(resume_load(&s.j, 0, "k"));
        assert_int_equal(s.r.findings.n, 0);
        assert_int_equal(s.r.rows[ROW_TEXT].state, ROW_NOT_CHECKED);
    }
    char good[600];
    snprintf(good, sizeof(good), "%s\"rows\":[],\"findings\":[],\"facts\":{}}", head);
    put(s.j.stage_dir, "1.json", good);
    assert_true(resume_load(&s.j, 0, "k"));
    stored_close(&s);
}

/* ---- writing or noise */

static double odd(const char *text)
{
    struct text_shape t = {0};
    text_shape_add(&t, text, strlen(text));
    return t.pairs ? (double)t.odd / (double)t.pairs : 0;
}

static void test_text_shape(void **state)
{
    (void)state;
    static const char *const writing[] = {
        "Once upon a time, there was a little girl named Lily. She said: \"I don't know!\" (In 2024, 3 "
        "well-known mice ran.)",
        "Gr\xc3\xbc\xc3\x9f"
        "e aus K\xc3\xb6ln, sagte \xc3\x89mile.",
        "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82, \xd0\xbc\xd0\xb8\xd1\x80.",
        "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c GPT\xe6\xa8\xa1\xe5\x9e\x8b", ""};
    static const char *const noise[] = {"eir h One5\xe2\x82\xac\"N weir4 toN weir4 thatin want They Bf want4",
                                        "riwhiBvebo star circle ri1 crossG an4boelow circleCwhi",
                                        "foo.barBaz+=qux%9Lib",
                                        ("\xd0\x9f"
                                         "r\xd0\xb8v\xd0\xb5t")};
    for (size_t i = 0; i < ARRAY_LEN(writing); i++)
        assert_true(odd(writing[i]) < 0.02);
    for (size_t i = 0; i < ARRAY_LEN(noise); i++)
        assert_true(odd(noise[i]) > 0.1);
    assert_true(odd("\xff\xfe\x80 \xc3") == 0);
}

/* What a peak is held against: all that is planned but the room for pictures that wait. Other pictures stay
 * in, and so does everything where none are taken. */
static void test_to_hold(void **state)
{
    (void)state;
    struct job j = {.plan = {.total = 1000, .pictures = 300}, .plan_options = {.waiting_bytes = 200}};
    assert_int_equal(job_to_hold(&j), 800);
    j.plan.total += 50; /* 50 more wait: the total grows, what is held does not */
    j.plan.pictures += 50;
    j.plan_options.waiting_bytes += 50;
    assert_int_equal(job_to_hold(&j), 800);
    j.plan.total += 50; /* 50 more for the tower: both grow */
    j.plan.pictures += 50;
    assert_int_equal(job_to_hold(&j), 850);
    j.plan.pictures = 0; /* a wish of which nothing came */
    assert_int_equal(job_to_hold(&j), 1100);
    j.plan_options.waiting_bytes = 0;
    assert_int_equal(job_to_hold(&j), 1100);
}

/* A terabyte from a slow disk takes hours; a small model has two minutes for all else. */
static void test_patience(void **state)
{
    (void)state;
    assert_int_equal(service_patience_ns(0), UINT64_C(120) * 1000000000);
    assert_int_equal(service_patience_ns(UINT64_C(1000000000000)), UINT64_C(20120) * 1000000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_options),
                                       cmocka_unit_test(test_empty_model),
                                       cmocka_unit_test(test_directory_of_somebody_else),
                                       cmocka_unit_test(test_keys),
                                       cmocka_unit_test(test_store_and_load),
                                       cmocka_unit_test(test_hostile_stored_stage),
                                       cmocka_unit_test(test_text_shape),
                                       cmocka_unit_test(test_to_hold),
                                       cmocka_unit_test(test_patience)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
