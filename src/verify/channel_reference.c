/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: a directory against a recorded conversation with pictures, step by step: text, ids, order of
 * pictures, pixels, placeholders, places, features, logits. The first step that differs is the finding; where
 * a known mistake explains it, the mistake is named. Refuses: calling anything equal that was not compared: a
 * step that the file is silent about is not held.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "verify/channel_impl.h"

#define LIMIT_F32   1e-4   /* relative L2 of a row; largest difference of a logit over the largest logit */
#define LIMIT_16BIT 0.0157 /* 2^-6: where either side has 16 bits */

struct holding {
    const struct channel_model *m;
    const struct reference *r;
    struct arena *arena;
    struct channel_held *steps;
    struct channel_case c;
    struct channel_model here; /* *m with the files of the reference, and its rounding */
    enum image_backend backend;
    struct findings *f;
    bool told; /* the first difference is a finding already */
    size_t n_prompt;
};

static const char *words(struct holding *h, const char *text)
{
    const char *copy = arena_strdup(h->arena, text);
    return copy ? copy : "out of memory";
}

static void held(struct holding *h, enum channel_step step, bool equal, double figure, double limit,
                 const char *text)
{
    h->steps[step] = (struct channel_held){step, true, equal, figure, limit, words(h, text)};
}

/* Only the first difference is a finding: what comes behind it follows from it. */
static void tell(struct holding *h, enum finding_id id, enum channel_step step, const char *text)
{
    if (!h->told)
        finding_add(h->f, id, channel_step_name(step), "%s", text);
    h->told = true;
}

static void differs(struct holding *h, enum channel_step step, enum finding_id id, double figure,
                    double limit, const char *text)
{
    held(h, step, false, figure, limit, text);
    tell(h, id, step, text);
}

/* ---- text and ids */

static int32_t picture_id(const struct holding *h)
{
    return prompt_picture_token(h->m->front);
}

/* Ids without what repeats a placeholder; runs [n_runs] are the lengths. */
static size_t collapse(const struct holding *h, const int32_t *ids, size_t n, int32_t *out, size_t *runs,
                       size_t max_runs, size_t *n_runs)
{
    size_t to = 0;
    *n_runs = 0;
    for (size_t i = 0; i < n; i++) {
        const bool again = i > 0 && ids[i] == picture_id(h) && ids[i - 1] == picture_id(h);
        if (ids[i] == picture_id(h)) {
            if (!again && *n_runs < max_runs)
                runs[(*n_runs)++] = 0;
            if (*n_runs)
                runs[*n_runs - 1]++;
        }
        if (!again)
            out[to++] = ids[i];
    }
    return to;
}

/* What ids stand for, for people. */
static void decoded(const struct holding *h, const int32_t *ids, size_t n, struct strbuf *out)
{
    struct detokenizer d;
    struct err e = {0};
    detokenizer_init(&d, h->m->front->tokenizer, true);
    for (size_t i = 0; i < n && out->len < 120; i++)
        (void)detokenizer_feed(&d, ids[i], out, &e);
    (void)detokenizer_finish(&d, out, &e);
}

static bool has_system(const struct json *messages)
{
    for (size_t i = 0; i < messages->n; i++) {
        const char *role = json_string(json_get(json_at(messages, i), "role"));
        if (role && strcmp(role, "system") == 0)
            return true;
    }
    return false;
}

/* a: ours, b: the reference's, both without repeated placeholders. Names where they part. */
static void name_text(struct holding *h, const struct json *messages, const int32_t *a, size_t na,
                      const int32_t *b, size_t nb)
{
    const int32_t bos = h->m->front->bos_id;
    char text[600];
    if (na == nb + 1 && bos >= 0 && a[0] == bos && a[1] == bos && memcmp(a + 1, b, nb * sizeof *a) == 0) {
        differs(h, CHANNEL_AT_IDS, FINDING_T006, NAN, NAN,
                "the first token (BOS) stands twice, and once in the reference");
        return;
    }
    size_t first = 0, last = 0;
    while (first < na && first < nb && a[first] == b[first])
        first++;
    while (last < na - first && last < nb - first && a[na - 1 - last] == b[nb - 1 - last])
        last++;
    struct strbuf ours = STRBUF_INIT, theirs = STRBUF_INIT;
    decoded(h, a + first, na - first - last, &ours);
    decoded(h, b + first, nb - first - last, &theirs);
    /* a whole turn that is only there in the reference, at the beginning of a conversation that has one */
    const bool system =
        has_system(messages) && nb > na && nb - na >= 2 && na - first - last <= 1 && first <= 8;
    snprintf(text, sizeof text, "%stoken %zu on: here \"%.150s\", in the reference \"%.150s\"",
             system ? "the system turn is missing: " : "", first, strbuf_cstr(&ours), strbuf_cstr(&theirs));
    differs(h, CHANNEL_AT_RENDER, FINDING_T007, NAN, NAN, text);
    strbuf_release(&ours);
    strbuf_release(&theirs);
}

/* Before counts and grids: those of pictures in each other's place differ, too. */
static int hold_order(struct holding *h, struct err *e)
{
    struct channel_order o;
    int rc = channel_order(h->m, &h->c, h->r, &o, e);
    if (rc)
        return rc;
    if (!o.told) {
        h->steps[CHANNEL_AT_ORDER].words = words(h, o.words);
    } else if (o.same) {
        held(h, CHANNEL_AT_ORDER, true, NAN, NAN, o.words);
    } else {
        held(h, CHANNEL_AT_PIXELS, true, NAN, NAN, "those of each picture, in other places");
        differs(h, CHANNEL_AT_ORDER, FINDING_I007, NAN, NAN, o.words);
    }
    return ERR_OK;
}

#define MAX_RUNS 64
static int hold_ids(struct holding *h, const struct json *messages, struct err *e)
{
    const size_t na = h->c.n, nb = h->n_prompt;
    int32_t *a = arena_alloc_n(h->arena, na + 1, sizeof *a), *b = arena_alloc_n(h->arena, nb + 1, sizeof *b);
    size_t runs_a[MAX_RUNS], runs_b[MAX_RUNS], n_runs_a, n_runs_b;
    char text[240];
    if (!a || !b)
        return err_set(e, ERR_NOMEM, "out of memory for ids");
    const size_t ca = collapse(h, h->c.ids, na, a, runs_a, MAX_RUNS, &n_runs_a);
    const size_t cb = collapse(h, h->r->ids, nb, b, runs_b, MAX_RUNS, &n_runs_b);
    if (ca != cb || memcmp(a, b, ca * sizeof *a) != 0) {
        name_text(h, messages, a, ca, b, cb);
        return ERR_OK;
    }
    snprintf(text, sizeof text, "%zu ids beside placeholders", ca);
    held(h, CHANNEL_AT_RENDER, true, NAN, NAN, text);
    held(h, CHANNEL_AT_IDS, true, NAN, NAN, text);
    int rc = hold_order(h, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < n_runs_a && i < n_runs_b; i++)
        if (runs_a[i] != runs_b[i]) {
            snprintf(text, sizeof text, "picture %zu: %zu tokens stand for it, %zu in the reference", i,
                     runs_a[i], runs_b[i]);
            differs(h, CHANNEL_AT_PLACEHOLDERS, FINDING_I005, NAN, NAN, text);
            return ERR_OK;
        }
    snprintf(text, sizeof text, "%zu tokens for %u pictures, as their grids ask for", h->c.n_rows,
             h->c.pictures.n);
    held(h, CHANNEL_AT_PLACEHOLDERS, true, NAN, NAN, text);
    return ERR_OK;
}

/* ---- pixels */

/* The distance under a change, with the backend that is nearer; INFINITY where it cannot be told. */
static int pixel_distance(struct holding *h, uint32_t changes, double *out, enum image_backend *nearer,
                          struct err *e)
{
    *out = INFINITY;
    for (int b = IMAGE_TORCHVISION; b <= IMAGE_PILLOW; b++) {
        const enum image_backend backend = (enum image_backend)b;
        struct channel_pixel_values v;
        struct arena scratch;
        arena_init(&scratch, NULL, MEM_REPORT);
        int rc = channel_pixel_values(h->m, &h->c, &backend, changes, &scratch, &v, e);
        if (rc == 0 && v.n_values == h->r->n_patches * h->r->patch_width) {
            const double d = channel_largest_difference(v.values, h->r->pixels, v.n_values);
            if (d < *out) {
                *out = d;
                *nearer = backend;
            }
        }
        arena_release(&scratch);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static int name_pixels(struct holding *h, double distance, struct err *e)
{
    char text[320];
    for (unsigned i = 0; i < CHANNEL_CHANGES; i++) {
        const struct channel_change_info *c = channel_change_info((enum channel_change)i);
        double d = INFINITY;
        enum image_backend backend;
        if (c->step != CHANNEL_AT_PIXELS)
            continue;
        struct err why = {0};
        int rc = pixel_distance(h, CHANNEL_BIT(i), &d, &backend, &why);
        if (rc == ERR_MISSING)
            continue;
        if (rc) {
            if (e)
                *e = why;
            return rc;
        }
        if (d > CHANNEL_LIMIT_PIXELS)
            continue;
        snprintf(text, sizeof text, "they differ by up to %.3g, and are equal here if it is as if %s",
                 distance, c->as_if);
        differs(h, CHANNEL_AT_PIXELS, FINDING_I004, distance, CHANNEL_LIMIT_PIXELS, text);
        return ERR_OK;
    }
    snprintf(text, sizeof text,
             "they differ by up to %.3g of normalised pixels, and no known mistake explains it", distance);
    differs(h, CHANNEL_AT_PIXELS, FINDING_I004, distance, CHANNEL_LIMIT_PIXELS, text);
    return ERR_OK;
}

/* Patches across and down, of pictures that are cut into patches. */
static bool hold_grids(struct holding *h)
{
    char text[200];
    for (uint32_t i = 0; i < h->c.pictures.n && i < h->r->n_grids; i++) {
        const struct image_plan *p = &h->c.pictures.list[i].plan;
        const int32_t *g = h->r->grids + 3 * (size_t)i;
        if (p->grid_h == 0 ||
            ((int64_t)p->grid_t == g[0] && (int64_t)p->grid_h == g[1] && (int64_t)p->grid_w == g[2]))
            continue;
        snprintf(text, sizeof text, "picture %u has %u x %u x %u patches, in the reference %d x %d x %d", i,
                 p->grid_t, p->grid_h, p->grid_w, g[0], g[1], g[2]);
        differs(h, CHANNEL_AT_PIXELS, FINDING_I005, NAN, NAN, text);
        return false;
    }
    return true;
}

static int hold_pixels(struct holding *h, const struct json *messages, struct err *e)
{
    char text[240];
    double d;
    uint64_t ours = 0;
    if (h->steps[CHANNEL_AT_PIXELS].held) /* in other places */
        return ERR_OK;
    if (h->c.pictures.n == 0 || !hold_grids(h) || !h->r->pixels)
        return ERR_OK;
    for (uint32_t i = 0; i < h->c.pictures.n; i++)
        ours += h->c.pictures.list[i].plan.n_rows * h->c.pictures.list[i].plan.row_floats;
    if (ours != h->r->n_patches * h->r->patch_width) {
        snprintf(text, sizeof text,
                 "%llu numbers are made of the pictures, %zu in the reference: other sizes",
                 (unsigned long long)ours, h->r->n_patches * h->r->patch_width);
        differs(h, CHANNEL_AT_PIXELS, FINDING_I005, (double)ours, NAN, text);
        return ERR_OK;
    }
    int rc = pixel_distance(h, 0, &d, &h->backend, e);
    if (rc)
        return rc;
    if (d > CHANNEL_LIMIT_PIXELS)
        return name_pixels(h, d, e);
    if (h->backend != prompt_processor(h->m->front)->backend) { /* what follows is held with its rounding */
        h->here.backend = &h->backend;
        rc = channel_make(h->m, messages, 0, h->arena, &h->c, e);
        if (rc)
            return rc;
    }
    snprintf(text, sizeof text, "%llu numbers, rounded as %s does", (unsigned long long)ours,
             h->backend == IMAGE_PILLOW ? "Pillow" : "torchvision");
    held(h, CHANNEL_AT_PIXELS, true, d, CHANNEL_LIMIT_PIXELS, text);
    return ERR_OK;
}

/* ---- places, features, logits: only of the same ids */

static const struct reference_probe *probe(const struct holding *h, const char *name)
{
    for (size_t i = 0; i < h->r->n_probes; i++)
        if (strcmp(h->r->probes[i].name, name) == 0)
            return &h->r->probes[i];
    return NULL;
}

static void hold_places(struct holding *h)
{
    const struct reference_probe *p = probe(h, "places");
    char text[240];
    if (!p || p->width != 3)
        return;
    for (size_t i = 0; i < 3 * h->n_prompt; i++)
        if ((float)h->c.layout.places[i] != p->data[i]) {
            const int32_t *ours = h->c.layout.places + i / 3 * 3;
            const float *theirs = p->data + i / 3 * 3;
            snprintf(text, sizeof text,
                     "token %zu stands at (%d, %d, %d), in the reference at (%.0f, %.0f, %.0f)", i / 3,
                     ours[0], ours[1], ours[2], (double)theirs[0], (double)theirs[1], (double)theirs[2]);
            differs(h, CHANNEL_AT_PLACES, FINDING_I006, NAN, NAN, text);
            return;
        }
    snprintf(text, sizeof text, "%zu tokens", h->n_prompt);
    held(h, CHANNEL_AT_PLACES, true, NAN, NAN, text);
}

static bool coarse(const struct holding *h)
{
    return strcmp(h->r->precision, "float32") != 0;
}

static double row_distance(const float *a, const float *b, size_t n)
{
    double d = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return size > 0 ? sqrt(d / size) : d > 0 ? INFINITY : 0;
}

static int hold_features(struct holding *h, struct err *e)
{
    const double limit = coarse(h) ? LIMIT_16BIT : LIMIT_F32;
    const size_t hidden = (size_t)h->m->spec->hidden;
    double worst = 0;
    size_t at = 0;
    char text[240];
    int rc = channel_features(h->m, &h->c, h->arena, e);
    if (rc || h->c.pictures.n == 0)
        return rc;
    for (uint32_t k = 0; k < h->m->spec->tower.n_features; k++) {
        char name[32];
        snprintf(name, sizeof name, "features.%u", k);
        const struct reference_probe *p = probe(h, name);
        if (!p || p->width != hidden)
            return ERR_OK;
        for (size_t i = 0; i < h->n_prompt; i++) {
            const int32_t row = h->c.layout.feature_of[i];
            if (row < 0)
                continue;
            const double d =
                row_distance(h->c.features[k] + (size_t)row * hidden, p->data + i * hidden, hidden);
            at = d > worst ? i : at;
            worst = isfinite(d) ? fmax(worst, d) : INFINITY;
        }
    }
    snprintf(text, sizeof text, "%zu rows, the worst (token %zu) off by %.3g of its length (limit %.3g)",
             h->c.n_rows, at, worst, limit);
    if (worst <= limit)
        held(h, CHANNEL_AT_FEATURES, true, worst, limit, text);
    else
        differs(h, CHANNEL_AT_FEATURES, FINDING_I008, worst, limit, text);
    return ERR_OK;
}

/* Largest difference of the logits from token `first` on; of: the case, changed. */
static int logit_distance(struct holding *h, const struct channel_case *of, size_t first, double *out,
                          struct err *e)
{
    const size_t n = h->r->n_ids, v = h->r->vocab;
    struct arena scratch;
    float *logits = NULL;
    *out = INFINITY;
    arena_init(&scratch, NULL, MEM_REPORT);
    int rc = channel_logits(h->m, of, h->r->ids + h->n_prompt, n - h->n_prompt, 0, n, &scratch, &logits, e);
    if (rc == 0)
        *out = channel_largest_difference(logits + first * v, h->r->logits + first * v, (n - first) * v);
    arena_release(&scratch);
    return rc;
}

static double logit_limit(const struct holding *h)
{
    double largest = 1;
    for (size_t i = 0; i < h->r->n_ids * h->r->vocab; i++)
        largest = fmax(largest, fabs((double)h->r->logits[i]));
    return largest * (coarse(h) || h->m->spec->kv_dtype != D0_F32 ? LIMIT_16BIT : LIMIT_F32);
}

/* Features and places are as they should be: how the text turns by places is left. */
static int name_logits(struct holding *h, size_t first, double distance, double limit, struct err *e)
{
    char text[400];
    for (unsigned i = 0; i < CHANNEL_CHANGES; i++) {
        const struct channel_change_info *c = channel_change_info((enum channel_change)i);
        struct channel_case other = h->c;
        double d = INFINITY;
        struct err why = {0};
        other.changes = CHANNEL_BIT(i);
        if (c->step != CHANNEL_AT_PLACES || i == CHANNEL_FLAT || i == CHANNEL_TURNED)
            continue;
        int rc = logit_distance(h, &other, first, &d, &why);
        if (rc == ERR_NOMEM || rc == ERR_DEVICE) {
            if (e)
                *e = why;
            return rc;
        }
        if (rc || d > limit)
            continue;
        snprintf(text, sizeof text,
                 "logits differ by up to %.3g (limit %.3g) from the first picture on, and are met if %s: "
                 "compare mrope_section",
                 distance, limit, c->as_if);
        differs(h, CHANNEL_AT_LOGITS, FINDING_I006, distance, limit, text);
        return ERR_OK;
    }
    snprintf(
        text, sizeof text,
        "logits differ by up to %.3g (limit %.3g) from the first picture on, and not before it; pixels, "
        "placeholders, places and features are those of the reference: what is left is how the text turns "
        "by places (M-RoPE) and takes up the rows",
        distance, limit);
    differs(h, CHANNEL_AT_LOGITS, FINDING_I009, distance, limit, text);
    return ERR_OK;
}

/* Of the tokens that the producer chose itself: is each the largest of our logits, too? */
static void hold_answer(struct holding *h, const float *logits)
{
    const size_t v = h->r->vocab;
    size_t equal = 0;
    char text[160];
    if (!h->r->greedy || h->r->n_ids == h->n_prompt)
        return;
    for (size_t i = h->n_prompt; i < h->r->n_ids; i++) {
        const float *row = logits + (i - 1) * v;
        size_t best = 0;
        for (size_t k = 1; k < v; k++)
            best = row[k] > row[best] ? k : best;
        equal += best == (size_t)h->r->ids[i];
    }
    const size_t n = h->r->n_ids - h->n_prompt;
    snprintf(text, sizeof text, "%zu of %zu greedy tokens are the producer's", equal, n);
    held(h, CHANNEL_AT_ANSWER, equal == n || coarse(h), NAN, NAN, text);
}

static double worst_logit(const struct holding *h, const float *logits, size_t first, size_t last)
{
    const size_t v = h->r->vocab;
    return channel_largest_difference(logits + first * v, h->r->logits + first * v, (last - first) * v);
}

static int hold_logits(struct holding *h, struct err *e)
{
    const size_t n = h->r->n_ids;
    size_t first = 0;
    float *logits;
    char text[240];
    if (!h->r->logits)
        return ERR_OK;
    while (first < h->n_prompt && h->c.layout.feature_of[first] < 0)
        first++;
    int rc =
        channel_logits(h->m, &h->c, h->r->ids + h->n_prompt, n - h->n_prompt, 0, n, h->arena, &logits, e);
    if (rc)
        return rc;
    const double limit = logit_limit(h), before = worst_logit(h, logits, 0, first),
                 behind = worst_logit(h, logits, first, n);
    hold_answer(h, logits);
    snprintf(text, sizeof text,
             "%zu positions, off by at most %.3g before the first picture and %.3g behind it", n, before,
             behind);
    if (before > limit)
        differs(h, CHANNEL_AT_LOGITS, FINDING_T008, before, limit, text);
    else if (behind <= limit)
        held(h, CHANNEL_AT_LOGITS, true, fmax(before, behind), limit, text);
    else if (h->told) /* it follows from what was said */
        held(h, CHANNEL_AT_LOGITS, false, behind, limit, text);
    else
        return name_logits(h, first, behind, limit, e);
    return ERR_OK;
}

/* ---- all of it */

/* A directory whose own parts do not agree says so before anything can be compared. */
static int hold_made(struct holding *h, const struct json *messages, int rc, const struct err *why,
                     struct err *e)
{
    if (channel_refused(rc)) {
        const enum channel_step at = h->c.at;
        differs(h, at,
                at == CHANNEL_AT_PLACEHOLDERS ? FINDING_I005
                : at == CHANNEL_AT_PIXELS     ? FINDING_I004
                                              : FINDING_I009,
                NAN, NAN, why->message);
        return ERR_OK;
    }
    if (rc) {
        if (e)
            *e = *why;
        return rc;
    }
    rc = hold_ids(h, messages, e);
    return rc ? rc : hold_pixels(h, messages, e);
}

int channel_reference(const struct channel_model *m, const struct reference *r, struct arena *arena,
                      struct channel_held steps[CHANNEL_STEPS], struct findings *f, struct err *e)
{
    const struct json *messages = NULL;
    struct holding h = {.r = r, .arena = arena, .steps = steps, .f = f, .n_prompt = r->n_prompt, .here = *m};
    struct err why = {0};
    for (unsigned i = 0; i < CHANNEL_STEPS; i++)
        steps[i] = (struct channel_held){
            .step = (enum channel_step)i, .figure = NAN, .limit = NAN, .words = "not in the reference"};
    h.here.fetch = channel_recorded_picture;
    h.here.fetch_ctx = (void *)(uintptr_t)r;
    h.m = &h.here;
    if (!r->messages || (r->logits && r->vocab != (size_t)m->spec->vocab_size)) {
        finding_add(f, FINDING_N006, r->path, "%s",
                    r->messages ? "its logits have another width" : "it holds no conversation (messages)");
        return ERR_OK;
    }
    int rc = channel_recorded_messages(r, arena, &messages, e);
    if (rc)
        return rc;
    rc = hold_made(&h, messages, channel_make(h.m, messages, 0, arena, &h.c, &why), &why, e);
    const bool same_ids = rc == ERR_OK && h.c.n == h.n_prompt && steps[CHANNEL_AT_PLACEHOLDERS].equal;
    if (!same_ids)
        return rc;
    hold_places(&h);
    rc = hold_features(&h, e);
    return rc ? rc : hold_logits(&h, e);
}
