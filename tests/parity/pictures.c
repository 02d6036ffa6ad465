/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: parity of towers, and of texts that take up pictures, with transformers. For each tiny model whose
 * JSON names "pictures": makes its checkpoint, lays out the patches of two pictures from their grids, runs
 * the tower on pixels that are a pure function of their number, and holds what it gives, the places of all
 * tokens (where the text turns by them) and the logits behind the pictures against what transformers computed
 * from the same files (golden/FAMILY.pictures.safetensors, recorded by tools/reference_pictures.py). The
 * places are equal; rows are within LIMIT. Then one number is changed at a time: pixels, windows, the table
 * of places, the order of merged rows, class rows, ends of lines, the places, the spans: the result must
 * move, or nothing was shown. A family without such an input skips that change.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/image.h"
#include "picture_case.h"
#include "tap.h"

#define LIMIT   1e-4 /* relative L2 of a row, free running from the pixels on */
#define MOVES   3e-4 /* a change moves the worst row by this at least: LIMIT would not let it pass */
#define THREADS 2

#define TREE TEST_SOURCE_ROOT "/tests/parity"

/* What is fed wrongly on purpose. */
enum change {
    NOTHING,
    PIXELS,
    PLANE,
    WINDOWS,
    TABLE,
    MERGE,
    CLASS,
    LINES,
    PLACES,
    SPANS,
    FEATURES,
    N_CHANGES
};
static const char *const changes[N_CHANGES] = {"nothing",
                                               "two pixels swapped",
                                               "height and width of patches swapped",
                                               "windows as large as their picture",
                                               "table of places from its first row",
                                               "two rows that are merged swapped",
                                               "class rows as patches",
                                               "ends of lines as patches",
                                               "places of pictures as those of text",
                                               "tokens of pictures that see backwards only",
                                               "rows of pictures one token late"};

/* The pictures of a prompt in one run of the tower, and the tokens that are recorded. */
struct whole {
    struct model m;
    struct image_rows rows;
    size_t n;                           /* tokens: the text of m goes on behind them */
    float *pixels;                      /* [patches, pixel_width] in the order of the processor */
    float *features[SPEC_MAX_FEATURES]; /* [R, m.width] */
};

/* Numbers in -1..1 that tools/reference_pictures.py makes as well. */
static void make_pixels(float *x, size_t n, uint32_t seed)
{
    uint32_t state = seed;
    for (size_t i = 0; i < n; i++) {
        state = (state * 1103515245u + 12345u) & 0x7FFFFFFFu;
        x[i] = (float)(state >> 8) / 4194304.0f - 1.0f;
    }
}

/* A row of the tower is the mean of those that become one: their order is nothing. */
static bool averaged(const struct model *m)
{
    bool yes = false;
    return json_bool(json_get(json_get(m->t.root, "pictures"), "averaged"), &yes) && yes;
}

static int whole_open(struct whole *x, const struct picture_family *family, struct err *e)
{
    struct model *m = &x->m;
    int rc = model_open(m, family, e);
    if (rc)
        return rc;
    const struct text *t = &m->texts[SEEN];
    const struct image_tower tower = prompt_tower(&m->s->tower);
    rc = image_tower_rows(&tower, m->grids, m->n_grids, &m->arena, &x->rows, e);
    if (rc == 0 && x->rows.n_merged != t->rows[t->n_pictures])
        rc = err_set(e, ERR_MISMATCH, "%zu rows of all pictures at once, %u of one after the other",
                     x->rows.n_merged, t->rows[t->n_pictures]);
    if (rc)
        return rc;
    if (m->r->vocab != m->vocab)
        return err_set(e, ERR_MISMATCH, "logits of %zu ids are recorded, the text gives %u",
                       (size_t)m->r->vocab, m->vocab);
    x->n = m->r->n_ids;
    x->pixels = arena_alloc_n(&m->arena, x->rows.n_patches * pixel_width(m), sizeof *x->pixels);
    if (!x->pixels)
        return err_set(e, ERR_NOMEM, "no memory for pixels");
    make_pixels(x->pixels, x->rows.n_patches * pixel_width(m), (uint32_t)m->t.seed);
    for (uint32_t i = 0; i < m->s->tower.n_features; i++)
        if (!(x->features[i] = arena_alloc_n(&m->arena, x->rows.n_merged * m->width, sizeof(float))))
            return err_set(e, ERR_NOMEM, "no memory for rows of pictures");
    return ERR_OK;
}

/* ---- what is changed ------------------------------------------------------------------------------------
 */

/* A copy of one of the inputs, which stands in its place from now on. */
static void *own(struct model *m, struct prompt_input all[TOWER_INPUTS], uint32_t role)
{
    struct prompt_input *i = all;
    while (i->role != role)
        i++;
    const size_t bytes = 4 * i->width * i->rows;
    void *p = arena_alloc(&m->arena, bytes + 1);
    if (!p)
        abort();
    i->data = memcpy(p, i->data, bytes);
    return p;
}

static void swap_ints(int32_t *a, int32_t *b)
{
    const int32_t x = *a;
    *a = *b;
    *b = x;
}

static void fill(int32_t *p, size_t n, int32_t value)
{
    for (size_t i = 0; i < n; i++)
        p[i] = value;
}

static void change_tower(struct whole *x, struct prompt_input all[TOWER_INPUTS], enum change change)
{
    const struct image_rows *r = &x->rows;
    const size_t width = pixel_width(&x->m), unit = (size_t)x->m.s->tower.merge * x->m.s->tower.merge,
                 first = r->patch[0] < 0; /* of the patches */
    int32_t *p;
    switch (change) {
    case PIXELS: {
        float *row = (float *)own(&x->m, all, D0_INPUT_PATCHES) + first * width;
        const float one = row[1];
        row[1] = row[width - 1];
        row[width - 1] = one;
        return;
    }
    case PLANE:
        p = own(&x->m, all, D0_INPUT_PLACES);
        for (size_t i = 0; i < r->n_rows; i++)
            swap_ints(&p[3 * i + 1], &p[3 * i + 2]);
        return;
    case WINDOWS: /* the widest there are */
        memcpy(own(&x->m, all, D0_INPUT_WINDOWS), r->spans, 8 * r->n_rows);
        return;
    case TABLE:
        fill(own(&x->m, all, D0_INPUT_TABLE_ROWS), r->n_rows * r->n_taps, 0);
        return;
    case MERGE:
        p = own(&x->m, all, D0_INPUT_MERGE);
        swap_ints(&p[0], &p[unit > 1 && !averaged(&x->m) ? unit - 1 : unit]);
        return;
    case CLASS:
        fill(own(&x->m, all, D0_INPUT_CLASS_ROWS), r->n_rows, -1);
        return;
    case LINES:
        fill(own(&x->m, all, D0_INPUT_LINE_ROWS), r->n_merged, -1);
        return;
    default:
        return;
    }
}

static void change_places(struct step_place *place, size_t n, enum change change)
{
    for (size_t k = n; k > 0; k--) {
        const int32_t at = (int32_t)k - 1;
        struct step_place *p = &place[at];
        if (change == PLACES)
            p->place[0] = p->place[1] = p->place[2] = at;
        if (change == SPANS) {
            p->span[0] = at;
            p->span[1] = at + 1;
        }
        if (change == FEATURES && at > 0)
            p->feature = p[-1].feature;
    }
}

/* ---- the runs -------------------------------------------------------------------------------------------
 */

static int run_tower(struct whole *x, struct dev *d, enum change change, struct err *e)
{
    struct model *m = &x->m;
    const struct image_rows *r = &x->rows;
    const struct oracle_model model = {.dev = d, .spec = m->s, .ckpt = m->c, .d0 = &m->d0};
    const int64_t dims[D0_N_DIMS] = {(int64_t)r->n_rows, 1, (int64_t)r->n_merged, 1};
    struct prompt_input all[TOWER_INPUTS];
    struct oracle_input in[TOWER_INPUTS];
    struct oracle_output out[SPEC_MAX_FEATURES];
    tower_inputs(m, r, x->pixels, all);
    change_tower(x, all, change);
    for (size_t i = 0; i < TOWER_INPUTS; i++)
        in[i] = (struct oracle_input){all[i].role, all[i].data, 4 * (uint64_t)all[i].width * all[i].rows};
    for (uint32_t i = 0; i < m->s->tower.n_features; i++)
        out[i] = (struct oracle_output){m->s->tower.features[i], x->features[i], 4 * r->n_merged * m->width};
    return oracle_once(&model, m->s->vision, dims, in, TOWER_INPUTS, out, m->s->tower.n_features, e);
}

static int run_tokens(struct whole *x, struct dev *d, enum change change, float *logits, struct err *e)
{
    const struct text *t = &x->m.texts[SEEN];
    struct step_place *place = malloc(x->n * sizeof *place);
    if (!place)
        return err_set(e, ERR_NOMEM, "no memory for a prompt");
    memcpy(place, t->place, x->n * sizeof *place);
    change_places(place, x->n, change);
    int rc = run_text(&x->m, d, t, place, x->n, x->features, logits, e);
    free(place);
    return rc;
}

/* Worst row of what the tower gave against the rows that the recording has beside the tokens. */
static int features_error(const struct whole *x, double *worst, struct err *e)
{
    const struct model *m = &x->m;
    *worst = 0;
    for (uint32_t k = 0; k < m->s->tower.n_features; k++) {
        char name[32];
        snprintf(name, sizeof name, "features.%u", k);
        const struct reference_probe *p = recorded_probe(m->r, name);
        if (!p || p->width != m->width)
            return err_set(e, ERR_MISMATCH, "%s is not recorded", name);
        for (size_t i = 0; i < x->n; i++) {
            const int32_t row = m->texts[SEEN].place[i].feature;
            if (row >= 0)
                *worst = fmax(*worst, row_error(x->features[k] + (size_t)row * m->width,
                                                p->data + i * m->width, m->width));
        }
    }
    return ERR_OK;
}

static int places_equal(const struct whole *x, struct err *e)
{
    const struct model *m = &x->m;
    if (!has_input(m->s->graph, D0_INPUT_PLACES))
        return ERR_OK;
    const struct reference_probe *p = recorded_probe(m->r, "places");
    if (!p || p->width != 3)
        return err_set(e, ERR_MISMATCH, "places are not recorded");
    for (size_t i = 0; i < 3 * x->n; i++) {
        const int32_t place = m->texts[SEEN].place[i / 3].place[i % 3];
        if ((float)place != p->data[i])
            return err_set(e, ERR_MISMATCH, "place %zu of token %zu is %d, recorded %g", i % 3, i / 3, place,
                           (double)p->data[i]);
    }
    return ERR_OK;
}

static int measure(struct whole *x, struct dev *d, enum change change, double *features, double *logits,
                   struct err *e)
{
    const size_t v = x->m.vocab;
    float *given = malloc(x->n * v * sizeof *given);
    *logits = 0;
    int rc = given ? run_tower(x, d, change, e) : err_set(e, ERR_NOMEM, "no memory for logits");
    if (rc == 0)
        rc = features_error(x, features, e);
    if (rc == 0)
        rc = run_tokens(x, d, change, given, e);
    for (size_t i = 0; rc == 0 && i < x->n; i++)
        *logits = fmax(*logits, row_error(given + i * v, x->m.r->logits + i * v, v));
    free(given);
    return rc;
}

static bool concerns(const struct model *m, enum change change)
{
    switch (change) {
    case PLANE:
        return has_input(m->s->vision, D0_INPUT_PLACES);
    case WINDOWS:
        return has_input(m->s->vision, D0_INPUT_WINDOWS);
    case TABLE:
        return has_input(m->s->vision, D0_INPUT_TABLE_ROWS);
    case CLASS:
        return has_input(m->s->vision, D0_INPUT_CLASS_ROWS);
    case LINES:
        return has_input(m->s->vision, D0_INPUT_LINE_ROWS);
    case SPANS:
        return has_input(m->s->graph, D0_INPUT_SPANS);
    case PLACES:
        return has_input(m->s->graph, D0_INPUT_PLACES);
    default:
        return true;
    }
}

static void test_changes(struct tap *tap, struct whole *x, struct dev *d)
{
    for (enum change c = PIXELS; c < N_CHANGES; c++) {
        double features, logits;
        char name[128], detail[1200];
        struct err e;
        err_clear(&e);
        if (!concerns(&x->m, c))
            continue;
        snprintf(name, sizeof name, "%s%s with %s", x->m.t.family, x->m.layout, changes[c]);
        int rc = measure(x, d, c, &features, &logits, &e);
        snprintf(detail, sizeof detail, "features off by %.1e, logits by %.1e (at least %.0e): %s", features,
                 logits, MOVES, rc ? e.message : "moved");
        result(tap, rc == 0 && logits >= MOVES && (c >= PLACES || features >= MOVES), name, detail);
    }
}

static void test_device(struct tap *tap, struct whole *x, const char *isa)
{
    struct dev d;
    struct err e;
    double features = INFINITY, logits = INFINITY;
    char name[96], detail[1200];
    err_clear(&e);
    snprintf(name, sizeof name, "%s%s %s", x->m.t.family, x->m.layout, isa);
    int rc = dev_open(&d, &(struct dev_options){.name = "cpu", .isa = isa, .n_threads = THREADS}, &e);
    if (rc) {
        result(tap, false, name, e.message);
        return;
    }
    rc = measure(x, &d, NOTHING, &features, &logits, &e);
    snprintf(detail, sizeof detail, "%zu patches, %zu rows, features %.1e, logits %.1e (limit %.0e) %s",
             x->rows.n_rows, x->rows.n_merged, features, logits, LIMIT, rc ? e.message : "");
    result(tap, rc == 0 && features <= LIMIT && logits <= LIMIT, name, detail);
    if (rc == 0 && strcmp(isa, "ref") == 0)
        test_changes(tap, x, &d);
    dev_close(&d);
}

static bool known(const char *name)
{
    for (size_t i = 0; i < n_picture_families; i++)
        if (strcmp(picture_families[i].name, name) == 0)
            return true;
    return false;
}

static void test_family(struct tap *tap, const struct picture_family *family)
{
    struct whole x = {.n = 0};
    struct err e;
    char name[96];
    err_clear(&e);
    int rc = whole_open(&x, family, &e);
    if (rc == 0)
        rc = places_equal(&x, &e);
    snprintf(name, sizeof name, "%s%s: places of tokens and pictures", family->name, x.m.layout);
    result(tap, rc == 0, name, rc ? e.message : "equal");
    if (rc == 0) {
        test_device(tap, &x, "ref");
        test_device(tap, &x, "fast");
    }
    model_close(&x.m);
}

int main(void)
{
    struct tap tap = {0};
    struct arena arena;
    struct err e;
    char **names;
    size_t n = 0;
    arena_init(&arena, NULL, MEM_MISC);
    int rc = tiny_families(TREE, &arena, &names, &n, &e);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        struct tiny t;
        if (tiny_open(&t, TREE, names[i], &e)) {
            result(&tap, false, names[i], e.message);
            continue;
        }
        if (json_get(t.root, "pictures") && !known(names[i]))
            result(&tap, false, names[i], "picture_case.c does not know it");
        tiny_close(&t);
    }
    for (size_t i = 0; rc == 0 && i < n_picture_families; i++)
        test_family(&tap, &picture_families[i]);
    arena_release(&arena);
    return tap_end(&tap) || rc;
}
