/* SPDX-License-Identifier: Apache-2.0
 *
 * The room for pictures: the rule at its boundaries (halving, most and least that wait, where not even the
 * least fits), that a check of headers counts by it, and that an engine with the room runs a text that uses
 * none of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/api.h"
#include "picture_model.h"
#include "preflight/preflight.h"
#include "tiny_model.h"

#define CONTEXT 512
#define MIB     (UINT64_C(1) << 20)
#define GIB     (UINT64_C(1) << 30)
#define LEAST   (16 * MIB)

static const enum picture_kind kinds[] = {PICTURE_QWEN, PICTURE_LLAVA, PICTURE_GEMMA};

struct fixture {
    char dir[64];
    struct tiny_model m;
};

static void open_kind(struct fixture *x, enum picture_kind kind)
{
    strcpy(x->dir, "/tmp/day0-plan-pictures-XXXXXX");
    assert_non_null(mkdtemp(x->dir));
    picture_model_write(x->dir, kind);
    tiny_model_open(&x->m, x->dir, NULL, "ref");
    assert_non_null(x->m.s->vision);
}

static void close_kind(struct fixture *x)
{
    tiny_model_close(&x->m);
    picture_model_remove(x->dir);
}

static struct plan_options options(uint64_t memory)
{
    return (struct plan_options){.memory_bytes = memory, .max_step_tokens = 64, .max_seqs = 2};
}

static int plan(const struct spec *s, const struct plan_wishes *w, struct plan_options *o,
                struct plan_memory *out)
{
    struct err e = {0};
    int rc = plan_pictures(s, CONTEXT, w, o, out, &e);
    if (rc != ERR_OK && rc != ERR_NOMEM)
        fail_msg("%s", e.message);
    return rc;
}

/* What the tower is given for so many patches and rows, by the shapes of its inputs. */
static uint64_t inputs(const struct spec *s, uint64_t patches, uint64_t rows)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->vision->n_values; i++) {
        const struct d0_value *v = &s->vision->values[i];
        if (v->kind != D0_VALUE_INPUT)
            continue;
        assert_true(v->dims[0] == D0_DIM_TOKENS || v->dims[0] == D0_DIM_ROWS);
        sum +=
            (v->dims[0] == D0_DIM_TOKENS ? patches : rows) * (v->n_dims == 2 ? (uint64_t)v->dims[1] : 1) * 4;
    }
    return sum;
}

/* All that pictures of this many patches take beside those that wait, in plenty of memory. */
static uint64_t without_waiting(const struct spec *s, uint32_t patches)
{
    const struct plan_wishes w = {.max_patches = patches, .waiting_bytes = 1};
    struct plan_options o = options(1024 * GIB);
    struct plan_memory m;
    assert_int_equal(plan(s, &w, &o, &m), ERR_OK);
    return m.pictures - 1;
}

static void rows(void **state)
{
    (void)state;
    static const struct {
        enum picture_kind kind;
        uint32_t context;
        struct plan_wishes wishes;
        uint32_t patches, rows, all;
    } cases[] = {
        {PICTURE_QWEN, 512, {.max_patches = 40}, 40, 10, 40}, /* 2 x 2 patches become a row */
        {PICTURE_QWEN, 512, {.max_patches = 3}, 3, 1, 1},
        {PICTURE_QWEN, 512, {.max_patches = 2048}, 2048, 512, 2048},
        {PICTURE_QWEN, 512, {.max_patches = 2052}, 2052, 512, 2048}, /* no more than tokens */
        {PICTURE_QWEN, 7, {0}, 16384, 7, 28},
        {PICTURE_QWEN, 512, {.max_patches = 40, .n_feature_rows = 9}, 40, 9, 9},
        {PICTURE_QWEN, 512, {.max_patches = 40, .n_feature_rows = 11}, 40, 10, 11},
        {PICTURE_LLAVA, 512, {.max_patches = 40}, 40, 50, 200}, /* a row a patch, and ends of lines */
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fixture x;
        struct plan_memory m;
        struct plan_options o = options(64 * GIB);
        struct err e = {0};
        open_kind(&x, cases[i].kind);
        assert_int_equal(plan_pictures(x.m.s, cases[i].context, &cases[i].wishes, &o, &m, &e), ERR_OK);
        if (o.max_patches != cases[i].patches || o.max_picture_rows != cases[i].rows ||
            o.n_feature_rows != cases[i].all || o.context_tokens != cases[i].context)
            fail_msg("%zu: %u patches, %u of %u rows", i, o.max_patches, o.max_picture_rows,
                     o.n_feature_rows);
        assert_true(m.fits && m.pictures > m.tower_weights + o.waiting_bytes && m.tower_weights > 0);
        close_kind(&x);
    }
}

/* What waits: a sixteenth of the memory, but 2 GiB at most, and eight times the largest picture at least. */
static void waiting(void **state)
{
    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct fixture x;
        struct plan_memory m;
        struct picture_shape shape;
        struct plan_wishes w = {.max_patches = 2048};
        open_kind(&x, kinds[k]);
        const struct spec *s = x.m.s;
        assert_int_equal(picture_shape(s->vision, &shape, NULL), ERR_OK);
        const uint64_t most[][2] = {
            {16 * GIB, GIB}, {32 * GIB - 16, 2 * GIB - 1}, {32 * GIB, 2 * GIB}, {64 * GIB, 2 * GIB}};
        for (size_t i = 0; i < ARRAY_LEN(most); i++) {
            struct plan_options o = options(most[i][0]);
            assert_int_equal(plan(s, &w, &o, &m), ERR_OK);
            assert_int_equal(o.waiting_bytes, most[i][1]);
        }
        struct plan_options o = options(16 * LEAST);
        w.max_patches = 1024;
        assert_int_equal(plan(s, &w, &o, &m), ERR_OK);
        const uint64_t least = 8 * inputs(s, 1024, o.max_picture_rows) + LEAST;
        assert_int_equal(o.waiting_bytes, least);
        /* the messages of the largest pictures, with their heads */
        assert_true(least >= 8 * picture_plan_bytes(&shape, 1024, o.max_picture_rows));
        o = options(16 * least);
        assert_int_equal(plan(s, &w, &o, &m), ERR_OK);
        assert_int_equal(o.waiting_bytes, least);
        o = options(16 * least + 16);
        assert_int_equal(plan(s, &w, &o, &m), ERR_OK);
        assert_int_equal(o.waiting_bytes, least + 1);
        w.waiting_bytes = 12345; /* as asked */
        assert_int_equal(plan(s, &w, &o, &m), ERR_OK);
        assert_int_equal(o.waiting_bytes, 12345);
        close_kind(&x);
    }
}

/* Pictures whose messages no engine takes are refused one by one, and no room is made for them. */
static void largest_message(void **state)
{
    (void)state;
    struct fixture x;
    struct plan_memory m;
    struct picture_shape shape;
    struct plan_options o = options(16 * GIB);
    open_kind(&x, PICTURE_QWEN);
    const struct spec *s = x.m.s;
    assert_int_equal(picture_shape(s->vision, &shape, NULL), ERR_OK);
    const uint64_t most = PICTURE_MAX_BYTES;
    struct plan_wishes w = {.max_patches = (uint32_t)((most - inputs(s, 0, CONTEXT)) / inputs(s, 1, 0))};
    assert_int_equal(plan(s, &w, &o, &m), ERR_OK);
    assert_int_equal(o.max_picture_rows, CONTEXT);
    assert_int_equal(o.waiting_bytes, 8 * inputs(s, w.max_patches, CONTEXT) + LEAST);
    w.max_patches++;
    o = options(16 * GIB);
    assert_int_equal(picture_plan_bytes(&shape, w.max_patches, CONTEXT), 0);
    assert_int_equal(plan(s, &w, &o, &m), ERR_OK);
    assert_int_equal(o.waiting_bytes, 2 * most + LEAST);
    close_kind(&x);
}

/* Pictures become smaller until they take an eighth of the memory, what waits not counted. */
static void halving(void **state)
{
    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct fixture x;
        struct plan_memory m;
        const struct plan_wishes w = {.waiting_bytes = MIB};
        open_kind(&x, kinds[k]);
        const struct spec *s = x.m.s;
        size_t n = 0;
        for (uint32_t patches = 16384; patches > 1024; patches /= 2) {
            const uint64_t memory = 8 * without_waiting(s, patches);
            const struct plan_wishes exactly = {.max_patches = patches, .waiting_bytes = MIB};
            struct plan_options o = options(memory);
            if (plan(s, &exactly, &o, &m) == ERR_NOMEM)
                continue; /* the text leaves less than an eighth */
            n++;
            o = options(memory);
            assert_int_equal(plan(s, &w, &o, &m), ERR_OK);
            assert_int_equal(o.max_patches, patches);
            o = options(memory - 1);
            assert_int_equal(plan(s, &w, &o, &m), ERR_OK);
            assert_int_equal(o.max_patches, patches / 2);
            assert_true(m.fits);
        }
        assert_true(n > 0);
        /* what was asked for is not made smaller */
        const struct plan_wishes asked = {.max_patches = 16384, .waiting_bytes = MIB};
        struct plan_options o = options(8 * without_waiting(s, 16384) - 1);
        assert_int_equal(plan(s, &asked, &o, &m), ERR_OK);
        assert_int_equal(o.max_patches, 16384);
        close_kind(&x);
    }
}

/* The smallest pictures may take more than an eighth, and must fit. */
static void not_even_the_least(void **state)
{
    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct fixture x;
        struct plan_memory m;
        struct err e = {0};
        const struct plan_wishes none = {0}, one = {.max_patches = 1024};
        struct plan_options o = options(1);
        open_kind(&x, kinds[k]);
        const struct spec *s = x.m.s;
        assert_int_equal(plan(s, &one, &o, &m), ERR_NOMEM);
        const uint64_t least = m.total;
        for (size_t i = 0; i < 2; i++) {
            const struct plan_wishes *w = i ? &one : &none;
            o = options(least);
            assert_int_equal(plan(s, w, &o, &m), ERR_OK);
            assert_int_equal(o.max_patches, 1024);
            assert_int_equal(m.total, least);
            o = options(least - 1);
            assert_int_equal(plan_pictures(s, CONTEXT, w, &o, &m, &e), ERR_NOMEM);
            assert_non_null(strstr(e.message, "pictures of 1024 patches take"));
            assert_int_equal(plan_pictures(s, CONTEXT, w, &o, &m, NULL), ERR_NOMEM);
        }
        close_kind(&x);
    }
}

/* In the total: all that pictures add to the plan of the text, and to the byte what waits. */
static void total(void **state)
{
    (void)state;
    struct fixture x;
    struct plan_memory text, m;
    open_kind(&x, PICTURE_QWEN);
    struct plan_options o = options(4 * GIB);
    o.context_tokens = CONTEXT;
    assert_int_equal(plan_single(x.m.s, &o, &text, NULL), ERR_OK);
    assert_int_equal(text.pictures, 0);
    const struct plan_wishes w = {0}, more = {.waiting_bytes = GIB / 4 + 77};
    assert_int_equal(plan(x.m.s, &w, &o, &m), ERR_OK);
    assert_int_equal(o.waiting_bytes, GIB / 4);
    assert_int_equal(m.total, text.total + m.pictures);
    assert_int_equal(m.pictures, without_waiting(x.m.s, 16384) + GIB / 4);
    const uint64_t before = m.total;
    assert_int_equal(plan(x.m.s, &more, &o, &m), ERR_OK);
    assert_int_equal(m.total, before + 77);
    close_kind(&x);
}

static void no_tower(void **state)
{
    (void)state;
    struct fixture x;
    struct plan_memory m;
    struct err e = {0};
    const struct plan_wishes w = {0};
    struct plan_options o = options(64 * GIB);
    open_kind(&x, PICTURE_QWEN);
    struct graph *tower = x.m.s->vision;
    assert_int_equal(preflight_tower(x.m.s, &x.m.d, &e), ERR_OK);
    x.m.s->vision = NULL;
    assert_int_equal(plan_pictures(x.m.s, CONTEXT, &w, &o, &m, &e), ERR_UNSUPPORTED);
    assert_int_equal(preflight_tower(x.m.s, &x.m.d, &e), ERR_UNSUPPORTED);
    assert_int_equal(preflight_tower(x.m.s, NULL, NULL), ERR_UNSUPPORTED);
    x.m.s->vision = tower;
    close_kind(&x);
}

/* ---- a check of headers ---- */

static const struct finding *check(struct fixture *x, uint64_t memory, struct dev *d)
{
    struct err e = {0};
    const struct preflight_options o = {
        .memory_bytes = memory, .memory_source = "--memory", .max_step_tokens = 64, .max_seqs = 2, .dev = d};
    findings_release(&x->m.f);
    findings_init(&x->m.f, NULL);
    if (preflight_check(x->m.c, x->m.s, &o, &x->m.f, &x->m.d0, &e))
        fail_msg("%s", e.message);
    const struct finding *found = NULL;
    for (size_t i = 0; i < x->m.f.n; i++)
        if (x->m.f.items[i].id == FINDING_M001) {
            assert_null(found);
            found = &x->m.f.items[i];
        }
    return found;
}

/* Counts by the same rule, with a device and without: where the text fits alone it warns. */
static void checked(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2 * ARRAY_LEN(kinds); k++) {
        struct fixture x;
        struct plan_memory m;
        const struct plan_wishes w = {0};
        open_kind(&x, kinds[k / 2]);
        struct dev *d = k % 2 ? &x.m.d : NULL;
        struct plan_options o = options(1);
        o.device_need = d ? dev_scratch_plan : NULL;
        o.device = d;
        const struct plan_options text = o;
        assert_int_equal(plan(x.m.s, &w, &o, &m), ERR_NOMEM);
        assert_null(check(&x, m.total, d));
        const struct finding *f = check(&x, m.total - 1, d);
        assert_non_null(f);
        assert_int_equal(f->severity, SEVERITY_WARNING);
        assert_string_equal(f->subject, "pictures");
        assert_non_null(strstr(f->evidence, "pictures of 1024 patches"));
        assert_int_equal(preflight_verdict(&x.m.f, x.m.s), PREFLIGHT_PASS);
        o = text;
        o.context_tokens = CONTEXT;
        assert_int_equal(plan_single(x.m.s, &o, &m, NULL), ERR_OK);
        f = check(&x, m.total, d);
        assert_non_null(f);
        assert_int_equal(f->severity, SEVERITY_WARNING);
        f = check(&x, m.total - 1, d);
        assert_non_null(f);
        assert_int_equal(f->severity, SEVERITY_ERROR);
        assert_non_null(strstr(f->evidence, "pictures not counted"));
        /* a tower that nothing here runs is not counted */
        struct graph *tower = x.m.s->vision;
        x.m.s->vision = NULL;
        assert_null(check(&x, m.total, d));
        x.m.s->vision = tower;
        close_kind(&x);
    }
}

/* ---- an engine ---- */

/* A device that knows which bytes were written: a step that takes no row must not read what nobody wrote. */
static void text_only(void **state)
{
    (void)state;
    static const int32_t prompt[] = {1, 5, 9, 33, 7, 2, 11};
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct fixture x;
        struct session s;
        struct findings f;
        struct err e = {0};
        struct generate_result r;
        open_kind(&x, kinds[k]);
        findings_init(&f, NULL);
        const struct session_options so = {.model_dir = x.dir,
                                           .device = "null",
                                           .memory_bytes = GIB,
                                           .images = SESSION_IMAGES_ON,
                                           .max_seqs = 2,
                                           .max_tokens = 4};
        if (session_open(&s, &so, &f, &x.m.d0, &e))
            fail_msg("%s", e.message);
        assert_true(engine_limits(s.engine)->n_feature_rows > 0);
        const struct generate_options go = {.max_new = 3, .ignore_stop = true};
        if (session_generate(&s, prompt, ARRAY_LEN(prompt), &go, NULL, NULL, NULL, &r, &e))
            fail_msg("%s", e.message);
        assert_int_equal(r.n_generated, 3);
        session_close(&s);
        findings_release(&f);
        close_kind(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows),
        cmocka_unit_test(waiting),
        cmocka_unit_test(largest_message),
        cmocka_unit_test(halving),
        cmocka_unit_test(not_even_the_least),
        cmocka_unit_test(total),
        cmocka_unit_test(no_tower),
        cmocka_unit_test(checked),
        cmocka_unit_test(text_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
