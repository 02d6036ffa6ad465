/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of pictures, and the places of tokens in messages of steps: the shape is what the tower's graph
 * reads, what the builder lays out is accepted, any other value of a field is refused, numbers may reach as
 * far as what they count and no further, and no byte pattern makes the checks read out of bounds.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "engine/engine.h"

#define PATCHES 8
#define ROWS    2

static const struct engine_limits limits = {.max_tokens = 32,
                                            .max_seqs = 4,
                                            .max_rows = 12,
                                            .max_pages_per_seq = 6,
                                            .n_pages = 20,
                                            .page_tokens = 8,
                                            .vocab = 320,
                                            .n_feature_rows = 40,
                                            .max_patches = PATCHES,
                                            .max_picture_rows = ROWS};

/* ---- a tower ------------------------------------------------------------------------------------------- */

static uint32_t value(struct graph *g, uint32_t kind, uint32_t dtype, uint32_t role, int64_t rows,
                      int64_t width)
{
    const struct d0_value v = {
        .kind = kind, .dtype = dtype, .n_dims = width ? 2 : 1, .role = role, .dims = {rows, width}};
    const struct graph_value_info i = {.name = "value", .layer = -1};
    struct err e = {0};
    uint32_t id;
    if (graph_add_value(g, &v, &i, &id, &e))
        fail_msg("%s", e.message);
    return id;
}

static uint32_t node(struct graph *g, const struct d0_node *n)
{
    struct err e = {0};
    uint32_t out;
    if (graph_add_node(g, n, "node", &out, &e))
        fail_msg("%s", e.message);
    return out;
}

#define ATTR(k, x)                                                                                           \
    {                                                                                                        \
        .key = D0_ATTR_##k, .v.i = (x)                                                                       \
    }

/* Patches of 6 numbers with a place from a table of 9, that see those of their window, four of them a row. */
static struct graph *make_tower(void)
{
    struct graph *g;
    assert_int_equal(graph_open(&g, NULL, NULL), ERR_OK);
    const int64_t t = D0_DIM_TOKENS;
    uint32_t patches = value(g, D0_VALUE_INPUT, D0_F32, D0_INPUT_PATCHES, t, 6);
    uint32_t rows = value(g, D0_VALUE_INPUT, D0_I32, D0_INPUT_TABLE_ROWS, t, 3);
    uint32_t shares = value(g, D0_VALUE_INPUT, D0_F32, D0_INPUT_TABLE_WEIGHTS, t, 3);
    uint32_t windows = value(g, D0_VALUE_INPUT, D0_I32, D0_INPUT_WINDOWS, t, 2);
    uint32_t merge = value(g, D0_VALUE_INPUT, D0_I32, D0_INPUT_MERGE, D0_DIM_ROWS, 4);
    value(g, D0_VALUE_INPUT, D0_I32, D0_INPUT_PLACES, t, 3); /* nobody reads it */
    uint32_t table = value(g, D0_VALUE_WEIGHT, D0_F32, 0, 9, 6);
    uint32_t at =
        node(g, &(struct d0_node){
                    .op = D0_OP_POSITION_EMBED, .n_inputs = 3, .inputs = {rows, table, shares}, .layer = -1});
    uint32_t x =
        node(g, &(struct d0_node){.op = D0_OP_ADD, .n_inputs = 2, .inputs = {patches, at}, .layer = -1});
    struct d0_node see = {.op = D0_OP_SEGMENT_ATTENTION,
                          .n_inputs = 4,
                          .inputs = {x, x, x, windows},
                          .n_attrs = 4,
                          .attrs = {ATTR(HEADS, 1), ATTR(KV_HEADS, 1), ATTR(DIM, 6)},
                          .layer = -1};
    see.attrs[3] = (struct d0_attr){.key = D0_ATTR_SCALE, .is_float = 1, .v.f = 0.5};
    x = node(g, &see);
    node(g, &(struct d0_node){.op = D0_OP_GATHER_ROWS, .n_inputs = 2, .inputs = {x, merge}, .layer = -1});
    return g;
}

static void shape_of(struct picture_shape *out)
{
    struct graph *g = make_tower();
    assert_int_equal(picture_shape(g, out, NULL), ERR_OK);
    graph_free(g);
}

static void test_shape(void **state)
{
    (void)state;
    struct picture_shape s;
    shape_of(&s);
    const struct picture_input want[] = {
        {D0_INPUT_PATCHES, D0_F32, 6, D0_DIM_TOKENS, 0, false, false},
        {D0_INPUT_TABLE_ROWS, D0_I32, 3, D0_DIM_TOKENS, 9, true, false},
        {D0_INPUT_TABLE_WEIGHTS, D0_F32, 3, D0_DIM_TOKENS, 0, false, false},
        {D0_INPUT_WINDOWS, D0_I32, 2, D0_DIM_TOKENS, D0_DIM_TOKENS, false, true},
        {D0_INPUT_MERGE, D0_I32, 4, D0_DIM_ROWS, D0_DIM_TOKENS, false, false},
        {D0_INPUT_PLACES, D0_I32, 3, D0_DIM_TOKENS, INT32_MAX, false, false}};
    assert_int_equal(s.n, ARRAY_LEN(want));
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        const struct picture_input *a = &s.inputs[i], *b = &want[i];
        if (a->role != b->role || a->dtype != b->dtype || a->width != b->width || a->rows != b->rows ||
            a->below != b->below || a->none != b->none || a->pairs != b->pairs)
            fail_msg("input %zu of role %u: width %u, below %lld", i, a->role, a->width, (long long)a->below);
    }
    struct err e = {0};
    struct graph *g = make_tower();
    value(g, D0_VALUE_INPUT, D0_I32, D0_INPUT_MERGE, D0_DIM_ROWS, 4);
    assert_int_equal(picture_shape(g, &s, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.message, "two inputs"));
    graph_free(g);
    g = make_tower(); /* what only a text has */
    value(g, D0_VALUE_INPUT, D0_I32, D0_INPUT_IDS, D0_DIM_TOKENS, 0);
    assert_int_equal(picture_shape(g, &s, &e), ERR_UNSUPPORTED);
    graph_free(g);
}

/* ---- pictures ------------------------------------------------------------------------------------------ */

static struct picture_plan *sample(void *buf, size_t cap, const struct picture_shape *s)
{
    struct picture_plan *p;
    assert_int_equal(picture_plan_init(buf, cap, s, PATCHES, ROWS, &p, NULL), ERR_OK);
    float *patches = picture_plan_array(p, D0_INPUT_PATCHES),
          *shares = picture_plan_array(p, D0_INPUT_TABLE_WEIGHTS);
    int32_t *rows = picture_plan_array(p, D0_INPUT_TABLE_ROWS),
            *windows = picture_plan_array(p, D0_INPUT_WINDOWS),
            *merge = picture_plan_array(p, D0_INPUT_MERGE);
    for (int i = 0; i < PATCHES * 6; i++)
        patches[i] = (float)i;
    for (int i = 0; i < PATCHES * 3; i++) {
        rows[i] = i % 10 - 1;
        shares[i] = 0.5f;
    }
    for (int i = 0; i < PATCHES; i++) {
        windows[2 * i] = i / 4 * 4;
        windows[2 * i + 1] = i / 4 * 4 + 4;
        merge[i] = PATCHES - 1 - i;
    }
    return p;
}

static int validate(const void *p, size_t n, const struct picture_shape *s)
{
    struct err e = {0};
    int rc = picture_plan_validate(p, n, s, &limits, &e);
    assert_true(rc == ERR_OK || e.message[0]);
    return rc;
}

static void test_fields(void **state)
{
    (void)state;
    struct picture_shape s;
    shape_of(&s);
    _Alignas(8) char good[4096], bad[4096];
    struct picture_plan *p = sample(good, sizeof good, &s);
    const size_t n = p->bytes;
    struct err e = {0};
    assert_int_equal(validate(good, n, &s), ERR_OK);
    assert_int_equal(n, picture_plan_bytes(&s, PATCHES, ROWS));
    assert_null(picture_plan_array(p, D0_INPUT_SPANS));
    for (size_t at = 0; at < sizeof(struct picture_plan); at += 4) {
        uint32_t was;
        memcpy(&was, good + at, 4);
        const uint32_t values[] = {0,        1,          was + 1,   was - 1,          was ^ 64,
                                   was + 64, UINT32_MAX, INT32_MAX, was ^ 0x80000000u};
        for (size_t k = 0; k < ARRAY_LEN(values); k++) {
            if (values[k] == was)
                continue;
            memcpy(bad, good, n);
            memcpy(bad + at, &values[k], 4);
            if (validate(bad, n, &s) == ERR_OK)
                fail_msg("field at %zu: %u instead of %u was accepted", at, values[k], was);
        }
    }
    for (size_t cut = 0; cut < n; cut++)
        assert_int_not_equal(validate(good, cut, &s), ERR_OK);
    assert_int_not_equal(validate(good, n + 64, &s), ERR_OK);
    assert_int_equal(picture_plan_validate(good + 4, n, &s, &limits, &e), ERR_INVALID);
    /* every byte that is not in an array */
    for (uint32_t i = 0; i < s.n; i++) {
        const uint64_t rows = s.inputs[i].rows == D0_DIM_ROWS ? ROWS : PATCHES;
        const uint64_t end = p->arrays[i].at + 4 * rows * s.inputs[i].width,
                       next = i + 1 < s.n ? p->arrays[i + 1].at : n;
        assert_int_equal(p->arrays[i].at % 64, 0);
        for (uint64_t at = end; at < next; at++) {
            memcpy(bad, good, n);
            bad[at] = 1;
            assert_int_equal(validate(bad, n, &s), ERR_FORMAT);
        }
    }
    /* the builder */
    assert_int_equal(picture_plan_init(bad, n - 1, &s, PATCHES, ROWS, &p, &e), ERR_LIMIT);
    assert_int_equal(picture_plan_init(bad + 4, 4000, &s, PATCHES, ROWS, &p, &e), ERR_INVALID);
    assert_int_equal(picture_plan_init(bad, SIZE_MAX, &s, UINT32_MAX, UINT32_MAX, &p, &e), ERR_LIMIT);
    assert_int_equal(picture_plan_bytes(&s, UINT32_MAX, 1), 0);
    assert_int_equal(picture_plan_bytes(&s, 1u << 23, 1), 0);
}

#define NUMBER(role, i, x, code)                                                                             \
    do {                                                                                                     \
        struct picture_plan *q = sample(buf, sizeof buf, &s);                                                \
        ((int32_t *)picture_plan_array(q, role))[i] = (x);                                                   \
        if (validate(q, q->bytes, &s) != (code))                                                             \
            fail_msg("%s[%d] = %s", #role, i, #x);                                                           \
    } while (0)
#define FLOAT(role, i, x)                                                                                    \
    do {                                                                                                     \
        struct picture_plan *q = sample(buf, sizeof buf, &s);                                                \
        ((float *)picture_plan_array(q, role))[i] = (x);                                                     \
        assert_int_equal(validate(q, q->bytes, &s), ERR_FORMAT);                                             \
    } while (0)

static void test_numbers(void **state)
{
    (void)state;
    struct picture_shape s;
    shape_of(&s);
    _Alignas(8) char buf[4096];
    NUMBER(D0_INPUT_TABLE_ROWS, 0, -1, ERR_OK);
    NUMBER(D0_INPUT_TABLE_ROWS, 5, 8, ERR_OK);
    NUMBER(D0_INPUT_TABLE_ROWS, 5, 9, ERR_FORMAT);
    NUMBER(D0_INPUT_TABLE_ROWS, 23, -2, ERR_FORMAT);
    NUMBER(D0_INPUT_MERGE, 7, 7, ERR_OK);
    NUMBER(D0_INPUT_MERGE, 7, 8, ERR_FORMAT);
    NUMBER(D0_INPUT_MERGE, 0, -1, ERR_FORMAT);
    NUMBER(D0_INPUT_WINDOWS, 15, 8, ERR_OK);
    NUMBER(D0_INPUT_WINDOWS, 15, 9, ERR_FORMAT);
    NUMBER(D0_INPUT_WINDOWS, 15, 4, ERR_FORMAT); /* empty */
    NUMBER(D0_INPUT_WINDOWS, 0, -1, ERR_FORMAT);
    NUMBER(D0_INPUT_PLACES, 23, INT32_MAX - 1, ERR_OK);
    NUMBER(D0_INPUT_PLACES, 23, -1, ERR_FORMAT);
    FLOAT(D0_INPUT_PATCHES, 47, NAN);
    FLOAT(D0_INPUT_PATCHES, 0, INFINITY);
    FLOAT(D0_INPUT_TABLE_WEIGHTS, 23, -INFINITY);
}

static void test_damage(void **state)
{
    (void)state;
    struct picture_shape s;
    shape_of(&s);
    _Alignas(8) char good[4096];
    const struct picture_plan *p = sample(good, sizeof good, &s);
    const size_t n = p->bytes;
    char *bad = malloc(n); /* its end is where valgrind and ASan look */
    struct rng rng;
    rng_init(&rng, 1);
    uint32_t n_accepted = 0;
    for (int round = 0; round < 100000; round++) {
        memcpy(bad, good, n);
        for (uint64_t k = 1 + rng_below(&rng, 3); k > 0; k--)
            bad[rng_below(&rng, n)] = (char)(rng_below(&rng, 2) ? rng_next(&rng) : rng_below(&rng, 9));
        if (validate(bad, n, &s) != ERR_OK)
            continue;
        n_accepted++;
        const int32_t *merge = picture_plan_array((struct picture_plan *)bad, D0_INPUT_MERGE);
        for (int i = 0; i < PATCHES; i++)
            assert_true(merge[i] >= 0 && merge[i] < PATCHES);
    }
    assert_true(n_accepted > 100);
    free(bad);
}

/* ---- places of tokens ---------------------------------------------------------------------------------- */

/* Two runs of 5 and 4 tokens, the second from position 8 on; in each a span of 3. */
static struct step_plan *sample_step(void *buf, size_t cap)
{
    struct step_plan *p;
    assert_int_equal(step_plan_init_places(buf, cap, 2, 9, 3, &p, NULL), ERR_OK);
    struct step_seq *q = step_plan_seqs(p);
    q[0] = (struct step_seq){.request = 1, .n_tokens = 5, .n_pages = 1};
    q[1] = (struct step_seq){
        .request = 2, .first_token = 5, .n_tokens = 4, .position = 8, .first_page = 1, .n_pages = 2};
    for (int t = 0; t < 9; t++) {
        const int32_t at = t < 5 ? t : t + 3, first = t < 5 ? 1 : 9;
        step_plan_places(p)[t] =
            (struct step_place){.place = {at, at, at}, .feature = t % 3 ? -1 : 10 + t, .span = {at, at + 1}};
        if (at >= first && at < first + 3) {
            step_plan_places(p)[t].span[0] = first;
            step_plan_places(p)[t].span[1] = first + 3;
        }
    }
    step_plan_pages(p)[1] = 1;
    step_plan_pages(p)[2] = 2;
    return p;
}

#define PLACE(code, change)                                                                                  \
    do {                                                                                                     \
        struct step_plan *p = sample_step(buf, sizeof buf);                                                  \
        struct step_place *k = step_plan_places(p);                                                          \
        (void)k;                                                                                             \
        change;                                                                                              \
        if (step_plan_validate(p, p->bytes, &limits, &e) != (code))                                          \
            fail_msg("%s: %s", #change, e.message);                                                          \
    } while (0)

static void test_places(void **state)
{
    (void)state;
    _Alignas(8) char buf[4096];
    struct err e = {0};
    PLACE(ERR_OK, (void)k);
    PLACE(ERR_OK, k[3].feature = 39);
    PLACE(ERR_FORMAT, k[3].feature = 40);
    PLACE(ERR_FORMAT, k[8].feature = -2);
    PLACE(ERR_OK, k[8].place[2] = INT32_MAX);
    PLACE(ERR_FORMAT, k[0].place[0] = -1);
    PLACE(ERR_FORMAT, k[8].place[2] = INT32_MIN);
    PLACE(ERR_FORMAT, k[0].span[0] = -1);
    PLACE(ERR_FORMAT, k[0].span[1] = 0);
    PLACE(ERR_FORMAT, k[0].span[1] = 2);
    PLACE(ERR_FORMAT, k[2].span[0] = 2);
    PLACE(ERR_FORMAT, k[2].span[1] = 3);
    PLACE(ERR_FORMAT, k[3].span[1] = 5);
    PLACE(ERR_FORMAT, k[2].span[1] = 5); /* another than the token before has */
    PLACE(ERR_FORMAT, k[4].span[0] = 3);
    PLACE(ERR_FORMAT, k[4].span[1] = 6); /* beyond its run */
    PLACE(ERR_FORMAT, k[5].span[0] = 7); /* before it */
    for (int i = 6; i < 9; i++)
        PLACE(ERR_FORMAT, k[i].span[1] = 13);
    PLACE(ERR_FORMAT, p->n_places = 0);
    PLACE(ERR_FORMAT, p->n_places = 8);
    PLACE(ERR_FORMAT, p->places_at += 8);
    struct step_plan *p; /* one without places is not for this engine, and the other way */
    assert_int_equal(step_plan_init(buf, sizeof buf, 1, 1, 1, &p, &e), ERR_OK);
    step_plan_seqs(p)[0] = (struct step_seq){.n_tokens = 1, .n_pages = 1};
    assert_int_equal(step_plan_validate(p, p->bytes, &limits, &e), ERR_FORMAT);
    struct engine_limits blind = limits;
    blind.n_feature_rows = 0;
    assert_int_equal(step_plan_validate(p, p->bytes, &blind, &e), ERR_OK);
    p = sample_step(buf, sizeof buf);
    assert_int_equal(step_plan_validate(p, p->bytes, &blind, &e), ERR_FORMAT);
    assert_true(step_plan_bytes(&limits) >= step_plan_bytes(&blind) + 32 * sizeof(struct step_place));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shape), cmocka_unit_test(test_fields),
                                       cmocka_unit_test(test_numbers), cmocka_unit_test(test_damage),
                                       cmocka_unit_test(test_places)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
