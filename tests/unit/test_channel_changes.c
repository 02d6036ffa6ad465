/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: each change of a conversation (verify/channel_changes.def) does what it says and nothing before it:
 * which of ids, pixels, places, features and logits move, for a small model that takes pictures; and each is
 * refused where it has nothing to change; the order of pictures in a recording. Readings of recorded
 * conversations that contradict themselves are refused.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "picture_model.h"
#include "verify/channel_impl.h"
#include "verify/verify.h"

struct model {
    struct arena arena;
    struct d0 d0;
    char dir[64];
    struct findings f;
    struct dev dev;
    struct ckpt *ckpt;
    struct spec *spec;
    struct prompt_front *front;
    struct channel_model m;
};

static const char processor[] =
    "{\"size\":{\"longest_edge\":4096,\"shortest_edge\":64},\"patch_size\":4,\"temporal_patch_size\":2,"
    "\"merge_size\":2,\"image_mean\":[0.48,0.45,0.40],\"image_std\":[0.26,0.27,0.28],\"resample\":3,"
    "\"processor_class\":\"Qwen3VLProcessor\",\"image_processor_type\":\"Qwen2VLImageProcessorFast\"}";
static const char template[] =
    "{{- '<s>' }}{%- for m in messages %}{{- m.role }}{%- if m.content is string %}{{- m.content }}{%- else "
    "%}"
    "{%- for p in m.content %}{%- if p.type == 'image' %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else %}{{- p.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}{%- endfor %}";

static void put(const char *dir, const char *name, const char *text)
{
    char path[128];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (file_write_atomic(path, text, strlen(text), &e))
        fail_msg("%s", e.message);
}

static int open_model(void **state)
{
    struct model *m = calloc(1, sizeof *m);
    struct err e = {0};
    assert_non_null(m);
    arena_init(&m->arena, NULL, MEM_MISC);
    m->d0.log.fd = -1;
    strcpy(m->dir, "/tmp/day0-channels-XXXXXX");
    assert_non_null(mkdtemp(m->dir));
    picture_model_write(m->dir, PICTURE_QWEN);
    put(m->dir, "preprocessor_config.json", processor);
    put(m->dir, "chat_template.jinja", template);
    put(m->dir, "tokenizer_config.json", "{\"bos_token\":\"<s>\",\"add_bos_token\":true}");
    findings_init(&m->f, NULL);
    int rc = dev_open(&m->dev, &(struct dev_options){.name = "cpu", .n_threads = 2}, &e);
    if (!rc)
        rc = ckpt_open(&m->ckpt, m->dir, &m->f, &m->d0, &e);
    if (!rc)
        rc = spec_open(&m->spec, m->ckpt, &(struct spec_options){.images = true}, &m->f, &m->d0, &e);
    if (!rc && m->spec)
        rc = prompt_open(&m->front, m->ckpt, m->spec, &m->f, &m->d0, &e);
    if (rc)
        fail_msg("%s", e.message);
    assert_non_null(m->front);
    m->m = (struct channel_model){
        .dev = &m->dev, .ckpt = m->ckpt, .spec = m->spec, .front = m->front, .d0 = &m->d0};
    *state = m;
    return 0;
}

static int close_model(void **state)
{
    struct model *m = *state;
    prompt_close(m->front);
    spec_close(m->spec);
    ckpt_close(m->ckpt);
    dev_close(&m->dev);
    findings_release(&m->f);
    char path[128];
    snprintf(path, sizeof path, "%s/tokenizer_config.json", m->dir);
    unlink(path);
    picture_model_remove(m->dir);
    arena_release(&m->arena);
    free(m);
    return 0;
}

/* A system turn, and a user turn with n pictures of different sizes. */
static const struct json *conversation(struct model *m, bool system, unsigned n)
{
    struct strbuf b = STRBUF_INIT;
    const struct json *out = NULL;
    struct err e = {0};
    strbuf_puts(&b, "[");
    if (system)
        strbuf_puts(&b, "{\"role\":\"system\",\"content\":\"be the bell\"},");
    strbuf_puts(&b, "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"and\"}");
    for (unsigned i = 0; i < n; i++) {
        strbuf_puts(&b, ",");
        picture_part(&b, i ? 30 : 44, i ? 44 : 28, 7 + i);
    }
    strbuf_puts(&b, "]}]");
    if (json_parse(b.data, b.len, NULL, &m->arena, &out, &e))
        fail_msg("%s", e.message);
    strbuf_release(&b);
    return out;
}

struct computed {
    struct channel_case c;
    float *logits;
};

static int compute(struct model *m, const struct json *messages, uint32_t changes, struct computed *out,
                   struct err *e)
{
    int rc = channel_make(&m->m, messages, changes, &m->arena, &out->c, e);
    if (!rc)
        rc = channel_features(&m->m, &out->c, &m->arena, e);
    return rc ? rc : channel_logits(&m->m, &out->c, NULL, 0, out->c.n - 1, 1, &m->arena, &out->logits, e);
}

static const struct prompt_input *patches(const struct channel_case *c, unsigned picture)
{
    for (uint32_t i = 0; i < c->pixels[picture].n_inputs; i++)
        if (c->pixels[picture].inputs[i].role == D0_INPUT_PATCHES)
            return &c->pixels[picture].inputs[i];
    return NULL;
}

static bool same_pixels(const struct channel_case *a, const struct channel_case *b)
{
    for (unsigned i = 0; i < a->pictures.n; i++) {
        const struct prompt_input *x = patches(a, i), *y = patches(b, i);
        if (x->rows != y->rows || memcmp(x->data, y->data, x->rows * x->width * sizeof(float)) != 0)
            return false;
    }
    return true;
}

enum { IDS = 1, PIXELS = 2, PLACES = 4, FEATURES = 8, LOGITS = 16 };
static const struct {
    enum channel_change change;
    int tokens; /* more, or fewer, than intact; 99: any */
    unsigned moves;
} expected[] = {
    {CHANNEL_NO_SYSTEM, 99, IDS | PLACES | LOGITS},
    {CHANNEL_BOS_TWICE, 1, IDS | PLACES | LOGITS},
    {CHANNEL_MEAN_STD, 0, PIXELS | FEATURES | LOGITS},
    {CHANNEL_NOT_NORMALISED, 0, PIXELS | FEATURES | LOGITS},
    {CHANNEL_BGR, 0, PIXELS | FEATURES | LOGITS},
    {CHANNEL_NEAREST, 0, PIXELS | FEATURES | LOGITS},
    {CHANNEL_BILINEAR, 0, PIXELS | FEATURES | LOGITS},
    {CHANNEL_LANCZOS, 0, PIXELS | FEATURES | LOGITS},
    {CHANNEL_FEWER, -2, IDS | PLACES | LOGITS},
    {CHANNEL_FIRST_ROW, -2, IDS | PLACES | LOGITS},
    {CHANNEL_MORE, 2, IDS | PLACES | LOGITS},
    {CHANNEL_FLAT, 0, PLACES | LOGITS},
    {CHANNEL_TURNED, 0, PLACES | LOGITS},
    {CHANNEL_SECTIONS_HTW, 0, LOGITS},
    {CHANNEL_SECTIONS_WHT, 0, 0}, /* of eight alternating angles width has two either way */
    {CHANNEL_SECTIONS_OTHER, 0, LOGITS},
    {CHANNEL_SWAPPED, 0, PIXELS | PLACES | FEATURES | LOGITS},
    {CHANNEL_UNSEEN, 0, LOGITS},
};

static unsigned moved(const struct model *m, const struct computed *a, const struct computed *b)
{
    const size_t vocab = (size_t)m->spec->vocab_size, hidden = (size_t)m->spec->hidden;
    unsigned out = 0;
    if (a->c.n != b->c.n || memcmp(a->c.ids, b->c.ids, a->c.n * sizeof(int32_t)) != 0)
        out |= IDS;
    if (!same_pixels(&a->c, &b->c))
        out |= PIXELS;
    if (a->c.n != b->c.n || memcmp(a->c.layout.places, b->c.layout.places, a->c.n * 3 * sizeof(int32_t)) != 0)
        out |= PLACES;
    if (a->c.n_rows != b->c.n_rows ||
        memcmp(a->c.features[0], b->c.features[0], a->c.n_rows * hidden * sizeof(float)) != 0)
        out |= FEATURES;
    if (memcmp(a->logits, b->logits, vocab * sizeof(float)) != 0)
        out |= LOGITS;
    return out;
}

static void test_changes(void **state)
{
    struct model *m = *state;
    const struct json *messages = conversation(m, true, 2);
    struct computed intact, other;
    struct err e = {0};
    if (compute(m, messages, 0, &intact, &e))
        fail_msg("%s", e.message);
    assert_int_equal(intact.c.pictures.n, 2);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const char *name = channel_change_info(expected[i].change)->name;
        e = (struct err){0};
        if (compute(m, messages, CHANNEL_BIT(expected[i].change), &other, &e))
            fail_msg("%s: %s", name, e.message);
        if (expected[i].tokens != 99 && (int)other.c.n - (int)intact.c.n != expected[i].tokens)
            fail_msg("%s: %d tokens more", name, (int)other.c.n - (int)intact.c.n);
        if (moved(m, &intact, &other) != expected[i].moves)
            fail_msg("%s: moves %x, expected %x", name, moved(m, &intact, &other), expected[i].moves);
    }
}

/* Which rows of two pictures are taken up when one of each is not. */
static void test_fewer(void **state)
{
    struct model *m = *state;
    const struct json *messages = conversation(m, true, 2);
    static const enum channel_change which[] = {CHANNEL_FEWER, CHANNEL_FIRST_ROW};
    for (unsigned k = 0; k < 2; k++) {
        struct channel_case c;
        struct err e = {0};
        assert_int_equal(channel_make(&m->m, messages, CHANNEL_BIT(which[k]), &m->arena, &c, &e), ERR_OK);
        const int32_t second = (int32_t)c.pictures.list[0].n_rows, all = (int32_t)c.n_rows;
        int32_t next = 0;
        for (size_t i = 0; i < c.n; i++) {
            if (c.layout.feature_of[i] < 0)
                continue;
            next += next == (k ? 0 : second - 1) || next == (k ? second : all - 1);
            assert_int_equal(c.layout.feature_of[i], next++);
        }
        assert_int_equal(next, k ? all : all - 1);
    }
}

/* A recording whose pictures stand as `at` says: what is said of them. at NULL: pixels that are none of ours.
 */
static struct channel_order ordered(struct model *m, const struct json *messages, const uint32_t *at)
{
    struct channel_case c;
    struct channel_pixel_values v;
    struct channel_order out;
    struct err e = {0};
    assert_int_equal(channel_make(&m->m, messages, 0, &m->arena, &c, &e), ERR_OK);
    assert_int_equal(channel_pixel_values(&m->m, &c, NULL, 0, &m->arena, &v, &e), ERR_OK);
    float *pixels = arena_alloc_n(&m->arena, v.n_values + 1, sizeof *pixels);
    size_t to = 0;
    for (uint32_t i = 0; i < c.pictures.n; i++) {
        size_t from = 0, n = 0;
        for (uint32_t k = 0; k <= (at ? at[i] : i); k++) {
            from += n;
            n = (size_t)(c.pictures.list[k].plan.n_rows * c.pictures.list[k].plan.row_floats);
        }
        memcpy(pixels + to, v.values + from, n * sizeof *pixels);
        pixels[to += n] = 0;
        if (!at)
            pixels[to - 1] += 0.1f;
    }
    const struct reference r = {.pixels = pixels, .n_patches = v.n_values, .patch_width = 1};
    assert_int_equal(channel_order(&m->m, &c, &r, &out, &e), ERR_OK);
    return out;
}

static void test_order(void **state)
{
    struct model *m = *state;
    static const uint32_t same[] = {0, 1, 2}, swapped[] = {1, 0}, turned[] = {1, 2, 0};
    const struct json *three = conversation(m, false, 3), *two = conversation(m, false, 2), *twins = NULL;
    struct channel_order o = ordered(m, three, same);
    assert_true(o.told && o.same);
    o = ordered(m, two, swapped);
    assert_true(o.told && !o.same);
    o = ordered(m, three, turned);
    assert_true(o.told && !o.same);
    assert_non_null(strstr(o.words, "picture 1 stands where the reference has picture 0"));
    o = ordered(m, two, NULL);
    assert_true(!o.told && strstr(o.words, "none of ours"));
    o = ordered(m, conversation(m, false, 1), same);
    assert_true(!o.told && strstr(o.words, "no two pictures"));
    struct strbuf b = STRBUF_INIT;
    struct err e = {0};
    strbuf_puts(&b, "[{\"role\":\"user\",\"content\":[");
    picture_part(&b, 44, 28, 7);
    strbuf_puts(&b, ",");
    picture_part(&b, 44, 28, 7);
    strbuf_puts(&b, "]}]");
    assert_int_equal(json_parse(b.data, b.len, NULL, &m->arena, &twins, &e), ERR_OK);
    strbuf_release(&b);
    o = ordered(m, twins, same);
    assert_true(!o.told && strstr(o.words, "look alike"));
}

/* Two sections of equal size, the filter that is there, one picture, no system turn, no picture. */
static void test_nothing_to_change(void **state)
{
    struct model *m = *state;
    const struct json *both = conversation(m, true, 2), *one = conversation(m, false, 1),
                      *none = conversation(m, true, 0);
    struct computed out;
    struct err e = {0};
    assert_int_equal(compute(m, both, CHANNEL_BIT(CHANNEL_SECTIONS_TWH), &out, &e), ERR_MISSING);
    assert_int_equal(compute(m, both, CHANNEL_BIT(CHANNEL_BICUBIC), &out, &e), ERR_MISSING);
    assert_int_equal(compute(m, one, CHANNEL_BIT(CHANNEL_SWAPPED), &out, &e), ERR_MISSING);
    assert_int_equal(compute(m, one, CHANNEL_BIT(CHANNEL_NO_SYSTEM), &out, &e), ERR_MISSING);
    for (unsigned i = 0; i < CHANNEL_CHANGES; i++)
        if (channel_change_info((enum channel_change)i)->image)
            assert_int_equal(compute(m, none, CHANNEL_BIT(i), &out, &e), ERR_MISSING);
    assert_int_equal(compute(m, none, 0, &out, &e), ERR_OK);
}

/* Rows behind a prompt are those of the same tokens at once. */
static void test_rows(void **state)
{
    struct model *m = *state;
    const size_t vocab = (size_t)m->spec->vocab_size;
    const int32_t answer[] = {40, 50, 60};
    struct computed c;
    float *all;
    struct err e = {0};
    assert_int_equal(compute(m, conversation(m, true, 1), 0, &c, &e), ERR_OK);
    assert_int_equal(channel_logits(&m->m, &c.c, answer, 3, 0, c.c.n + 3, &m->arena, &all, &e), ERR_OK);
    assert_memory_equal(all + (c.c.n - 1) * vocab, c.logits, vocab * sizeof(float));
    assert_int_equal(channel_logits(&m->m, &c.c, answer, 3, 4, c.c.n, &m->arena, &all, &e), ERR_INVALID);
    double sum = 0;
    for (size_t i = 0; i < vocab; i++)
        sum += __builtin_exp(metrics_log_softmax(c.logits, vocab, i));
    assert_float_equal((float)sum, 1.0f, 1e-5f);
}

/* The model's own numbers as a recording are equal at every step that it has; one that is no number is not.
 */
static void test_not_a_number(void **state)
{
    struct model *m = *state;
    struct strbuf png = STRBUF_INIT;
    struct computed c;
    struct channel_held steps[CHANNEL_STEPS];
    struct findings f;
    float *logits;
    struct err e = {0};
    assert_int_equal(compute(m, conversation(m, true, 1), 0, &c, &e), ERR_OK);
    assert_int_equal(channel_logits(&m->m, &c.c, NULL, 0, 0, c.c.n, &m->arena, &logits, &e), ERR_OK);
    picture_png(&png, 44, 28, 7);
    struct reference_picture picture = {png.data, png.len};
    const struct reference r = {
        .producer = "itself",
        .precision = "float32",
        .path = "memory",
        .ids = c.c.ids,
        .n_ids = c.c.n,
        .n_prompt = c.c.n,
        .logits = logits,
        .vocab = (size_t)m->spec->vocab_size,
        .messages = "[{\"role\":\"system\",\"content\":\"be the bell\"},{\"role\":\"user\","
                    "\"content\":[{\"type\":\"text\",\"text\":\"and\"},{\"type\":\"image\"}]}]",
        .pictures = &picture,
        .n_pictures = 1};
    findings_init(&f, NULL);
    assert_int_equal(channel_reference(&m->m, &r, &m->arena, steps, &f, &e), ERR_OK);
    assert_true(steps[CHANNEL_AT_LOGITS].held && steps[CHANNEL_AT_LOGITS].equal);
    assert_int_equal(f.n, 0);
    logits[(c.c.n - 1) * r.vocab + 5] = NAN;
    assert_int_equal(channel_reference(&m->m, &r, &m->arena, steps, &f, &e), ERR_OK);
    assert_true(steps[CHANNEL_AT_LOGITS].held && !steps[CHANNEL_AT_LOGITS].equal);
    assert_int_equal(f.n, 1);
    findings_release(&f);
    strbuf_release(&png);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changes), cmocka_unit_test(test_fewer),
        cmocka_unit_test(test_order),   cmocka_unit_test(test_nothing_to_change),
        cmocka_unit_test(test_rows),    cmocka_unit_test(test_not_a_number)};
    return cmocka_run_group_tests(tests, open_model, close_model);
}
