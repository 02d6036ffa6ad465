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
#include "oracle/oracle.h"
#include "own_layout.h"
#include "prompt/prompt.h"
#include "recorded.h"
#include "tiny.h"

#define LIMIT    1e-4 /* relative L2 of a row, free running from the pixels on */
#define MOVES    3e-4 /* a change moves the worst row by this at least: LIMIT would not let it pass */
#define PICTURES 16   /* or tiles of them */
#define THREADS  2

#define TREE TEST_SOURCE_ROOT "/tests/parity"

struct tap {
    unsigned n, failed;
};

static void result(struct tap *tap, bool ok, const char *name, const char *detail)
{
    tap->failed += !ok;
    printf("%sok %u - %s: %s\n", ok ? "" : "not ", ++tap->n, name, detail);
    fflush(stdout);
}

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

struct model {
    struct arena arena;
    struct d0 d0;
    struct tiny t;
    const char *layout; /* for people: behind the name of the family */
    char dir[64];
    struct findings f;
    struct ckpt *c;
    struct spec *s;
    struct reference *r;
    struct image_grid grids[PICTURES];
    size_t n_grids;
    struct image_rows rows;
    size_t width, hidden;               /* of a row of pixels, and of what the tower gives */
    float *pixels;                      /* [T, width] in the order of the processor */
    float *features[SPEC_MAX_FEATURES]; /* [R, hidden] */
    int32_t *places, *feature_of;       /* of the prompt: [n, 3], [n] */
    int32_t *spans;                     /* [n, 2] the run of placeholders that a token is in, or itself */
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

/* Sizes of pictures that a processor cuts into tiles, whose grids follow from its plan. */
static int plan_grids(struct model *m, const struct json *pictures, uint64_t *placeholders, struct err *e)
{
    const struct json *list = json_get(pictures, "sizes");
    const struct image_configs files = {json_get(pictures, "processor"), NULL, json_get(m->t.root, "config")};
    struct image_processor p;
    struct image_plan plan;
    int64_t h, w;
    int rc = image_processor_open(&files, NULL, &p, e);
    for (size_t i = 0; rc == 0 && list && list->type == JSON_ARRAY && i < list->n; i++) {
        if (!json_i64(json_at(json_at(list, i), 0), &h) || !json_i64(json_at(json_at(list, i), 1), &w))
            return err_set(e, ERR_FORMAT, "size %zu is no two numbers", i);
        rc = image_plan(&p, (uint32_t)w, (uint32_t)h, NULL, &plan, e);
        if (rc == 0 && plan.n_tiles > PICTURES - m->n_grids)
            rc = err_set(e, ERR_FORMAT, "more than %d tiles", PICTURES);
        if (rc == 0)
            rc = image_plan_grids(&plan, m->s->tower.patch, m->s->tower.lines, m->grids + m->n_grids, e);
        *placeholders += plan.placeholders;
        m->n_grids += rc ? 0 : plan.n_tiles;
    }
    return rc;
}

static int read_grids(struct model *m, const struct json *list, struct err *e)
{
    for (size_t i = 0; list && list->type == JSON_ARRAY && i < list->n && i < PICTURES; i++) {
        int64_t v[3];
        for (size_t k = 0; k < 3; k++)
            if (!json_i64(json_at(json_at(list, i), k), &v[k]) || v[k] < 1 || v[k] > 1000)
                return err_set(e, ERR_FORMAT, "grid %zu is no three numbers", i);
        m->grids[m->n_grids++] = (struct image_grid){(uint32_t)v[0], (uint32_t)v[1], (uint32_t)v[2]};
    }
    return m->n_grids ? ERR_OK : err_set(e, ERR_FORMAT, "no grids of pictures");
}

static bool has_input(const struct graph *g, uint32_t role)
{
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == D0_VALUE_INPUT && g->values[i].role == role)
            return true;
    return false;
}

/* The placeholders take the rows in turn, and there are as many. */
static int take_in_turn(struct model *m, struct err *e)
{
    size_t n = 0;
    for (size_t i = 0; i < m->r->n_ids; i++) {
        const bool placeholder = m->r->ids[i] == tiny_image_token(&m->t, m->s);
        m->feature_of[i] = placeholder ? (int32_t)n++ : -1;
        for (size_t k = 0; k < 3; k++)
            m->places[3 * i + k] = (int32_t)i;
    }
    return n == m->rows.n_merged
               ? ERR_OK
               : err_set(e, ERR_MISMATCH, "%zu rows for %zu placeholders", m->rows.n_merged, n);
}

/* A row of the tower is the mean of those that become one: their order is nothing. */
static bool averaged(const struct model *m)
{
    bool yes = false;
    return json_bool(json_get(json_get(m->t.root, "pictures"), "averaged"), &yes) && yes;
}

/* Placeholders next to each other are a picture whose tokens see each other, where the text wants that. */
static void put_spans(struct model *m, int32_t token)
{
    const size_t n = m->r->n_ids;
    for (size_t at = 0, end; at < n; at = end) {
        end = at + 1;
        while (m->r->ids[at] == token && end < n && m->r->ids[end] == token)
            end++;
        for (size_t i = at; i < end; i++) {
            m->spans[2 * i] = (int32_t)at;
            m->spans[2 * i + 1] = (int32_t)end;
        }
    }
}

static int make_inputs(struct model *m, struct err *e)
{
    const struct spec_tower *w = &m->s->tower;
    const struct image_tower tower = prompt_tower(w);
    const struct json *pictures = json_get(m->t.root, "pictures");
    uint64_t placeholders = 0;
    m->hidden = (size_t)m->s->hidden;
    m->width = (size_t)w->channels * w->frames * w->patch * w->patch;
    int rc = json_get(pictures, "sizes") ? plan_grids(m, pictures, &placeholders, e)
                                         : read_grids(m, json_get(pictures, "grids"), e);
    if (rc == 0)
        rc = image_tower_rows(&tower, m->grids, m->n_grids, &m->arena, &m->rows, e);
    if (rc == 0 && placeholders && placeholders != m->rows.n_merged)
        rc = err_set(e, ERR_MISMATCH, "%llu placeholders are planned, %zu rows laid",
                     (unsigned long long)placeholders, m->rows.n_merged);
    if (rc)
        return rc;
    m->pixels = arena_alloc_n(&m->arena, m->rows.n_patches * m->width, sizeof *m->pixels);
    m->places = arena_alloc_n(&m->arena, m->r->n_ids, 3 * sizeof *m->places);
    m->feature_of = arena_alloc_n(&m->arena, m->r->n_ids, sizeof *m->feature_of);
    for (uint32_t i = 0; i < w->n_features; i++)
        if (!(m->features[i] = arena_alloc_n(&m->arena, m->rows.n_merged * m->hidden, sizeof(float))))
            return err_set(e, ERR_NOMEM, "no memory for rows of pictures");
    m->spans = arena_alloc_n(&m->arena, m->r->n_ids, 2 * sizeof *m->spans);
    if (!m->pixels || !m->places || !m->feature_of || !m->spans)
        return err_set(e, ERR_NOMEM, "no memory for pixels");
    put_spans(m, tiny_image_token(&m->t, m->s));
    make_pixels(m->pixels, m->rows.n_patches * m->width, (uint32_t)m->t.seed);
    if (!has_input(m->s->graph, D0_INPUT_PLACES))
        return take_in_turn(m, e);
    return prompt_places(w, m->r->ids, m->r->n_ids, m->grids, m->n_grids, m->places, m->feature_of, e);
}

/* own: the order of q, k and v where the directory is rewritten into InternVL's own layout; NULL: it is not.
 */
static int open_model(struct model *m, const char *family, const char *own, struct err *e)
{
    char path[512];
    arena_init(&m->arena, NULL, MEM_MISC);
    m->d0 = (struct d0){.log = {.fd = -1}};
    findings_init(&m->f, NULL);
    strcpy(m->dir, "/tmp/day0-pictures-XXXXXX");
    if (!mkdtemp(m->dir))
        return err_set(e, ERR_IO, "no temporary directory");
    int rc = tiny_open(&m->t, TREE, family, e);
    if (rc == 0)
        rc = tiny_write(&m->t, m->dir, &m->d0, e);
    if (rc == 0 && own)
        rc = own_layout_rewrite(m->dir, own, &m->d0, e);
    if (rc == 0)
        rc = ckpt_open(&m->c, m->dir, &m->f, &m->d0, e);
    const struct spec_options o = {.kv_dtype = D0_F32, .images = true};
    if (rc == 0)
        rc = spec_open(&m->s, m->c, &o, &m->f, &m->d0, e);
    if (rc == 0 && (!m->s || !m->s->vision))
        rc = err_set(e, ERR_FORMAT, "no graph of its tower: %s", m->f.n ? m->f.items[0].evidence : "?");
    snprintf(path, sizeof path, TREE "/golden/%s.pictures.safetensors", family);
    if (rc == 0)
        rc = reference_open(&m->r, path, e);
    return rc ? rc : make_inputs(m, e);
}

static void close_model(struct model *m)
{
    reference_close(m->r);
    spec_close(m->s);
    ckpt_close(m->c);
    findings_release(&m->f);
    tiny_close(&m->t);
    tiny_remove(m->dir);
    arena_release(&m->arena);
}

/* A copy in the arena: what is changed is changed there. */
static void *copied(struct model *m, const void *from, size_t bytes)
{
    void *p = arena_alloc(&m->arena, bytes + 1);
    if (!p)
        abort();
    memcpy(p, from, bytes);
    return p;
}

static void swap_ints(int32_t *a, int32_t *b)
{
    const int32_t x = *a;
    *a = *b;
    *b = x;
}

static int run_tower(struct model *m, struct dev *d, enum change change, struct err *e)
{
    const struct image_rows *r = &m->rows;
    const size_t t = r->n_rows, unit = (size_t)m->s->tower.merge * m->s->tower.merge,
                 first = r->patch[0] < 0; /* of the patches */
    const struct oracle_model model = {.dev = d, .spec = m->s, .ckpt = m->c, .d0 = &m->d0};
    const int64_t dims[D0_N_DIMS] = {(int64_t)t, 1, (int64_t)r->n_merged, 1};
    float *patches = arena_alloc_n(&m->arena, t * m->width, sizeof *patches);
    int32_t *places = copied(m, r->places, 12 * t), *merge = copied(m, r->merge, 4 * r->n_merged * unit),
            *class_rows = copied(m, r->class_rows, 4 * t), *lines = copied(m, r->line_rows, 4 * r->n_merged),
            *table = copied(m, r->table_rows, 4 * t * r->n_taps);
    if (!patches)
        return err_set(e, ERR_NOMEM, "no memory for pixels");
    memset(patches, 0, t * m->width * sizeof *patches);
    for (size_t i = 0; i < t; i++)
        if (r->patch[i] >= 0)
            memcpy(patches + i * m->width, m->pixels + (size_t)r->patch[i] * m->width,
                   m->width * sizeof *patches);
    if (change == PIXELS) {
        float *row = patches + first * m->width;
        const float x = row[1];
        row[1] = row[m->width - 1];
        row[m->width - 1] = x;
    }
    for (size_t i = 0; change == PLANE && i < t; i++)
        swap_ints(&places[3 * i + 1], &places[3 * i + 2]);
    if (change == MERGE)
        swap_ints(&merge[0], &merge[unit > 1 && !averaged(m) ? unit - 1 : unit]);
    for (size_t i = 0; change == CLASS && i < t; i++)
        class_rows[i] = -1;
    for (size_t i = 0; change == LINES && i < r->n_merged; i++)
        lines[i] = -1;
    for (size_t i = 0; change == TABLE && i < t * r->n_taps; i++)
        table[i] = 0;
    const struct oracle_input in[] = {
        {D0_INPUT_PATCHES, patches, 4 * t * m->width},
        {D0_INPUT_PLACES, places, 12 * t},
        {D0_INPUT_SPANS, r->spans, 8 * t},
        {D0_INPUT_WINDOWS, change == WINDOWS ? r->spans : r->windows, 8 * t},
        {D0_INPUT_MERGE, merge, 4 * r->n_merged * unit},
        {D0_INPUT_CLASS_ROWS, class_rows, 4 * t},
        {D0_INPUT_LINE_ROWS, lines, 4 * r->n_merged},
        {D0_INPUT_TABLE_ROWS, table, 4 * t * r->n_taps},
        {D0_INPUT_TABLE_WEIGHTS, r->table_weights, 4 * t * r->n_taps},
    };
    struct oracle_output out[SPEC_MAX_FEATURES];
    for (uint32_t i = 0; i < m->s->tower.n_features; i++)
        out[i] = (struct oracle_output){m->s->tower.features[i], m->features[i], 4 * r->n_merged * m->hidden};
    return oracle_once(&model, m->s->vision, dims, in, ARRAY_LEN(in), out, m->s->tower.n_features, e);
}

static int run_text(struct model *m, struct dev *d, enum change change, float *logits, struct err *e)
{
    const size_t n = m->r->n_ids, page = m->s->page_tokens, pages = (n + page - 1) / page;
    const struct oracle_model model = {.dev = d, .spec = m->s, .ckpt = m->c, .d0 = &m->d0};
    const int64_t dims[D0_N_DIMS] = {(int64_t)n, 1, (int64_t)n, (int64_t)pages};
    int32_t *counted = arena_alloc_n(&m->arena, n, sizeof *counted),
            *zeros = arena_alloc_n(&m->arena, n, sizeof *zeros), *places = copied(m, m->places, 12 * n),
            *from = copied(m, m->feature_of, 4 * n), *spans = copied(m, m->spans, 8 * n);
    if (!counted || !zeros)
        return err_set(e, ERR_NOMEM, "no memory for a prompt");
    for (size_t i = 0; i < n; i++) {
        counted[i] = (int32_t)i;
        zeros[i] = 0;
        for (size_t k = 0; change == PLACES && k < 3; k++)
            places[3 * i + k] = (int32_t)i;
        for (size_t k = 0; change == SPANS && k < 2; k++)
            spans[2 * i + k] = (int32_t)(i + k);
    }
    if (change == FEATURES)
        for (size_t i = n - 1; i > 0; i--)
            from[i] = from[i - 1];
    struct oracle_input in[9 + SPEC_MAX_FEATURES] = {
        {D0_INPUT_IDS, m->r->ids, 4 * n},  {D0_INPUT_POSITIONS, counted, 4 * n},
        {D0_INPUT_SEQ_OF, zeros, 4 * n},   {D0_INPUT_PAGE_TABLE, counted, 4 * pages},
        {D0_INPUT_ROWS, counted, 4 * n},   {D0_INPUT_SLOTS, zeros, 4},
        {D0_INPUT_PLACES, places, 12 * n}, {D0_INPUT_FEATURE_OF, from, 4 * n},
        {D0_INPUT_SPANS, spans, 8 * n},
    };
    const size_t n_features = m->s->tower.n_features;
    for (size_t i = 0; i < n_features; i++)
        in[9 + i] =
            (struct oracle_input){D0_INPUT_FEATURES, m->features[i], 4 * m->rows.n_merged * m->hidden};
    const struct oracle_output out = {graph_result(m->s->graph), logits, 4 * n * m->r->vocab};
    return oracle_once(&model, m->s->graph, dims, in, 9 + n_features, &out, 1, e);
}

/* Worst row of what the tower gave against the rows that the recording has beside the tokens. */
static int features_error(const struct model *m, double *worst, struct err *e)
{
    *worst = 0;
    for (uint32_t k = 0; k < m->s->tower.n_features; k++) {
        char name[32];
        snprintf(name, sizeof name, "features.%u", k);
        const struct reference_probe *p = recorded_probe(m->r, name);
        if (!p || p->width != m->hidden)
            return err_set(e, ERR_MISMATCH, "%s is not recorded", name);
        for (size_t i = 0; i < m->r->n_ids; i++)
            if (m->feature_of[i] >= 0)
                *worst = fmax(*worst, row_error(m->features[k] + (size_t)m->feature_of[i] * m->hidden,
                                                p->data + i * m->hidden, m->hidden));
    }
    return ERR_OK;
}

static int places_equal(const struct model *m, struct err *e)
{
    if (!has_input(m->s->graph, D0_INPUT_PLACES))
        return ERR_OK;
    const struct reference_probe *p = recorded_probe(m->r, "places");
    if (!p || p->width != 3)
        return err_set(e, ERR_MISMATCH, "places are not recorded");
    for (size_t i = 0; i < 3 * m->r->n_ids; i++)
        if ((float)m->places[i] != p->data[i])
            return err_set(e, ERR_MISMATCH, "place %zu of token %zu is %d, recorded %g", i % 3, i / 3,
                           m->places[i], (double)p->data[i]);
    return ERR_OK;
}

static int measure(struct model *m, struct dev *d, enum change change, double *features, double *logits,
                   struct err *e)
{
    const size_t v = m->r->vocab;
    float *x = malloc(m->r->n_ids * v * sizeof *x);
    *logits = 0;
    int rc = x ? run_tower(m, d, change, e) : err_set(e, ERR_NOMEM, "no memory for logits");
    if (rc == 0)
        rc = features_error(m, features, e);
    if (rc == 0)
        rc = run_text(m, d, change, x, e);
    for (size_t i = 0; rc == 0 && i < m->r->n_ids; i++)
        *logits = fmax(*logits, row_error(x + i * v, m->r->logits + i * v, v));
    free(x);
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

static void test_changes(struct tap *tap, struct model *m, struct dev *d)
{
    for (enum change c = PIXELS; c < N_CHANGES; c++) {
        double features, logits;
        char name[128], detail[1200];
        struct err e;
        err_clear(&e);
        if (!concerns(m, c))
            continue;
        snprintf(name, sizeof name, "%s%s with %s", m->t.family, m->layout, changes[c]);
        int rc = measure(m, d, c, &features, &logits, &e);
        snprintf(detail, sizeof detail, "features off by %.1e, logits by %.1e (at least %.0e): %s", features,
                 logits, MOVES, rc ? e.message : "moved");
        result(tap, rc == 0 && logits >= MOVES && (c >= PLACES || features >= MOVES), name, detail);
    }
}

static void test_device(struct tap *tap, struct model *m, const char *isa)
{
    struct dev d;
    struct err e;
    double features = INFINITY, logits = INFINITY;
    char name[96], detail[1200];
    err_clear(&e);
    snprintf(name, sizeof name, "%s%s %s", m->t.family, m->layout, isa);
    int rc = dev_open(&d, &(struct dev_options){.name = "cpu", .isa = isa, .n_threads = THREADS}, &e);
    if (rc) {
        result(tap, false, name, e.message);
        return;
    }
    rc = measure(m, &d, NOTHING, &features, &logits, &e);
    snprintf(detail, sizeof detail, "%zu patches, %zu rows, features %.1e, logits %.1e (limit %.0e) %s",
             m->rows.n_rows, m->rows.n_merged, features, logits, LIMIT, rc ? e.message : "");
    result(tap, rc == 0 && features <= LIMIT && logits <= LIMIT, name, detail);
    if (rc == 0 && strcmp(isa, "ref") == 0)
        test_changes(tap, m, &d);
    dev_close(&d);
}

static void test_family(struct tap *tap, const char *family, const char *own)
{
    struct model m = {.layout = own ? " in its own layout" : ""};
    struct err e;
    char name[96];
    err_clear(&e);
    int rc = open_model(&m, family, own, &e);
    if (rc == 0)
        rc = places_equal(&m, &e);
    snprintf(name, sizeof name, "%s%s: places of tokens and pictures", family, m.layout);
    result(tap, rc == 0, name, rc ? e.message : "equal");
    if (rc == 0) {
        test_device(tap, &m, "ref");
        test_device(tap, &m, "fast");
    }
    close_model(&m);
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
        const bool has = json_get(t.root, "pictures") != NULL, own = own_layout_has(&t, NULL);
        tiny_close(&t);
        if (has)
            test_family(&tap, names[i], NULL);
        if (has && own)
            test_family(&tap, names[i], "qkv");
    }
    arena_release(&arena);
    printf("1..%u\n", tap.n);
    return rc || tap.failed || tap.n == 0 ? 1 : 0;
}
