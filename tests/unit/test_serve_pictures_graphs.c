/* SPDX-License-Identifier: Apache-2.0
 *
 * What the service says of pictures against the tower and the text as graphs, each run once: places, rows and
 * log-probabilities on another way than the service's, for each kind of model.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "picture_chat.h"
#include "oracle/oracle.h"

/* ---- the same on another way: the tower and the text as graphs, each run once ---- */

struct oracle_run {
    struct oracle_model model;
    struct dev dev;
    struct arena arena;
    float *features[SPEC_MAX_FEATURES]; /* [rows, hidden] of all pictures */
    size_t n_rows, hidden;
};

static void *room(struct oracle_run *o, size_t n)
{
    void *p = arena_alloc_n(&o->arena, n, 4);
    assert_non_null(p);
    return p;
}

static void run_tower(struct oracle_run *o, const struct prompt_front *front, const struct prompt_picture *q)
{
    const struct spec *s = o->model.spec;
    struct prompt_pixels x = {0};
    struct oracle_input in[PROMPT_MAX_INPUTS];
    struct oracle_output out[SPEC_MAX_FEATURES];
    struct err e = {0};
    if (prompt_picture_make(front, q, NULL, &o->arena, &x, &e))
        fail_msg("%s", e.message);
    for (uint32_t i = 0; i < x.n_inputs; i++)
        in[i] = (struct oracle_input){x.inputs[i].role, x.inputs[i].data,
                                      4 * (uint64_t)x.inputs[i].width * x.inputs[i].rows};
    for (uint32_t i = 0; i < s->tower.n_features; i++)
        out[i] = (struct oracle_output){s->tower.features[i], o->features[i] + o->n_rows * o->hidden,
                                        4 * x.n_rows * o->hidden};
    const int64_t dims[D0_N_DIMS] = {(int64_t)x.n_patches, 1, x.n_rows, 1};
    if (oracle_once(&o->model, s->vision, dims, in, x.n_inputs, out, s->tower.n_features, &e))
        fail_msg("%s", e.message);
    o->n_rows += x.n_rows;
}

/* Places and rows of these tokens, of Qwen by the grids; and the runs of placeholders. */
static void lay_tokens(struct oracle_run *o, enum picture_kind kind, const int32_t *ids, size_t n,
                       const struct image_grid *grids, int32_t *places, int32_t *from, int32_t *spans)
{
    struct err e = {0};
    int32_t next = 0;
    for (size_t i = 0; i < n; i++) {
        const bool placeholder = ids[i] == PICTURE_TOKEN,
                   on = placeholder && i && ids[i - 1] == PICTURE_TOKEN;
        for (size_t k = 0; k < 3; k++)
            places[3 * i + k] = (int32_t)i;
        from[i] = placeholder ? next++ : -1;
        spans[2 * i] = on ? spans[2 * i - 2] : (int32_t)i;
        for (size_t k = (size_t)spans[2 * i]; k <= i; k++)
            spans[2 * k + 1] = (int32_t)i + 1;
    }
    if (kind == PICTURE_QWEN && prompt_places(&o->model.spec->tower, ids, n, grids, 2, places, from, &e))
        fail_msg("%s", e.message);
}

/* [n, vocab] for these tokens. */
static float *run_text(struct oracle_run *o, enum picture_kind kind, const int32_t *ids, size_t n,
                       const struct image_grid *grids)
{
    const struct spec *s = o->model.spec;
    const size_t vocab = (size_t)s->vocab_size, pages = (n + s->page_tokens - 1) / s->page_tokens;
    int32_t *counted = room(o, n), *zeros = room(o, n), *places = room(o, 3 * n), *from = room(o, n),
            *spans = room(o, 2 * n);
    float *logits = room(o, n * vocab);
    struct err e = {0};
    lay_tokens(o, kind, ids, n, grids, places, from, spans);
    memset(zeros, 0, 4 * n);
    for (size_t i = 0; i < n; i++)
        counted[i] = (int32_t)i;
    struct oracle_input in[9 + SPEC_MAX_FEATURES] = {
        {D0_INPUT_IDS, ids, 4 * n},        {D0_INPUT_POSITIONS, counted, 4 * n},
        {D0_INPUT_SEQ_OF, zeros, 4 * n},   {D0_INPUT_PAGE_TABLE, counted, 4 * pages},
        {D0_INPUT_ROWS, counted, 4 * n},   {D0_INPUT_SLOTS, zeros, 4},
        {D0_INPUT_PLACES, places, 12 * n}, {D0_INPUT_FEATURE_OF, from, 4 * n},
        {D0_INPUT_SPANS, spans, 8 * n}};
    for (uint32_t i = 0; i < s->tower.n_features; i++)
        in[9 + i] = (struct oracle_input){D0_INPUT_FEATURES, o->features[i], 4 * o->n_rows * o->hidden};
    const int64_t dims[D0_N_DIMS] = {(int64_t)n, 1, (int64_t)n, (int64_t)pages};
    const struct oracle_output out = {graph_result(s->graph), logits, 4 * n * vocab};
    if (oracle_once(&o->model, s->graph, dims, in, 9 + s->tower.n_features, &out, 1, &e))
        fail_msg("%s", e.message);
    return logits;
}

/* Two pictures of different shapes among text: every token that the service gave has the log-probability that
 * the graphs give it, and is the most probable one. So pictures, rows, places, and the places of generated
 * tokens are right, not only alike each time. */
static void as_the_graphs_of(enum picture_kind kind)
{
    struct server *s = picture_server(kind, (struct serve_options){0}, (struct session_options){0});
    struct strbuf b = STRBUF_INIT, messages = STRBUF_INIT;
    struct oracle_run o = {.hidden = (size_t)s->session.spec->hidden};
    struct prompt_pictures pictures;
    struct answer a = {0};
    struct ids ids = {0};
    struct err e = {0};
    const struct json *tree = NULL;
    strbuf_puts(&b, TEXT_PART("he") ",");
    picture_part(&b, 40, 16, 1);
    strbuf_puts(&b, "," TEXT_PART("and the") ",");
    picture_part(&b, 16, 24, 2);
    assert_int_equal(ask(s, b.data, ",\"return_token_ids\":true", &a), 200);
    assert_int_equal(a.n_ids, 8);
    arena_init(&o.arena, NULL, MEM_MISC);
    strbuf_printf(&messages, "[{\"role\":\"user\",\"content\":[");
    strbuf_add(&messages, b.data, b.len);
    strbuf_puts(&messages, "]}]");
    assert_int_equal(json_parse(messages.data, messages.len, NULL, &o.arena, &tree, &e), 0);
    const struct prompt_front *front = s->session.front;
    if (prompt_pictures_read(front, tree, &(struct prompt_picture_options){0}, &o.arena, &pictures, &e) ||
        prompt_chat(front, &(struct prompt_chat){.messages = pictures.messages, .pictures = &pictures}, NULL,
                    &ids, &e))
        fail_msg("%s", e.message);
    assert_int_equal(ids.n, a.prompt);
    assert_int_equal(dev_open(&o.dev, &(struct dev_options){.name = "cpu", .n_threads = 1}, &e), 0);
    o.model =
        (struct oracle_model){.dev = &o.dev, .spec = s->session.spec, .ckpt = s->session.ckpt, .d0 = &s->d0};
    for (uint32_t i = 0; i < s->session.spec->tower.n_features; i++)
        o.features[i] = room(&o, 32 * o.hidden);
    const struct image_grid grids[2] = {pictures.list[0].grids[0], pictures.list[1].grids[0]};
    run_tower(&o, front, &pictures.list[0]);
    run_tower(&o, front, &pictures.list[1]);
    assert_int_equal(o.n_rows, a.images);
    size_t n = ids.n + a.n_ids, vocab = (size_t)s->session.spec->vocab_size;
    int32_t *all = room(&o, n);
    memcpy(all, ids.data, ids.n * 4);
    memcpy(all + ids.n, a.ids, a.n_ids * 4);
    const float *logits = run_text(&o, kind, all, n, grids);
    char *at = a.logprobs.data;
    for (size_t i = 0; i < a.n_ids; i++) {
        const float *row = logits + (ids.n + i - 1) * vocab;
        double given = strtod(at, &at), want = metrics_log_softmax(row, vocab, (size_t)a.ids[i]);
        if (!(fabs(given - want) < 1e-4))
            fail_msg("token %zu: %g, the graphs give %g", i, given, want);
        for (size_t id = 0; id < vocab; id++)
            if (!(row[id] <= row[a.ids[i]] + 1e-4f))
                fail_msg("token %zu: %zu is more probable than %d", i, id, a.ids[i]);
    }
    dev_close(&o.dev);
    ids_release(&ids);
    arena_release(&o.arena);
    answer_release(&a);
    strbuf_release(&b);
    strbuf_release(&messages);
    picture_server_stop(s);
}

static void as_the_graphs_say(void **state)
{
    (void)state;
    as_the_graphs_of(PICTURE_QWEN);
    as_the_graphs_of(PICTURE_LLAVA);
    as_the_graphs_of(PICTURE_GEMMA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_graphs_say),
    };
    return cmocka_run_group_tests_name("serve_pictures_graphs", tests, NULL, NULL);
}
