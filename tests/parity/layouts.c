/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: InternVL's two layouts against each other. A tiny model in the library's layout and the same one
 * rewritten into its own (own_layout.c) are the same weights in the same products, q, k and v from one matrix
 * or from three: what the tower gives and the logits of all tokens are held with memcmp, on ref and on the
 * fastest instruction set, for each choice that both can express. Rows of attn.qkv in another order must
 * differ. Refuses: any tolerance.
 */
#include <stdio.h>
#include <string.h>

#include "own_layout.h"
#include "picture_case.h"
#include "tap.h"

#define THREADS 2

/* As the families are recorded, and what no recording of the own layout could hold. */
static const struct {
    const char *name;
    struct picture_family library; /* own: left out */
} cases[] = {
    {"layer_norm, a bias for q, k and v", {"internvl", {2, 1}}},
    {"rows from behind the first layer", {"internvl", {2, 1}, .patch = "{\"vision_feature_layer\": 1}"}},
    {"rows from before the first layer", {"internvl", {2, 1}, .patch = "{\"vision_feature_layer\": -3}"}},
    {"rms_norm, normed q and k",
     {"internvl_norms", {2, 1}, .patch = "{\"vision_config\": {\"use_mean_pooling\": true}}"}},
};

/* Values that differ in a bit. */
static size_t different(const float *a, const float *b, size_t n)
{
    size_t d = 0;
    for (size_t i = 0; i < n; i++)
        d += memcmp(a + i, b + i, sizeof *a) != 0;
    return d;
}

/* Features and logits of the recorded prompt; *rows: how many of features were compared. */
static int compare(const struct model *a, const struct model *b, size_t *features, size_t *logits,
                   size_t *rows, struct err *e)
{
    const struct text *x = &a->texts[SEEN], *y = &b->texts[SEEN];
    *rows = x->rows[x->n_pictures];
    if (x->n != y->n || *rows != y->rows[y->n_pictures] || a->width != b->width || a->vocab != b->vocab)
        return err_set(e, ERR_MISMATCH, "the layouts have other sizes");
    *features = different(x->features[0], y->features[0], *rows * a->width);
    *logits = different(x->want, y->want, (size_t)x->n * a->vocab);
    return ERR_OK;
}

/* order: of q, k and v in attn.qkv. */
static void test_case(struct tap *tap, size_t i, const char *order, const char *isa)
{
    struct picture_family own = cases[i].library;
    struct model a = {.c = NULL}, b = {.c = NULL};
    struct dev d;
    struct err e;
    char detail[1200], name[160];
    size_t features = 0, logits = 0, rows = 0;
    const bool right = strcmp(order, "qkv") == 0;
    err_clear(&e);
    snprintf(name, sizeof name, "%s%s%s, %s", cases[i].name, right ? "" : ", rows of attn.qkv as ",
             right ? "" : order, isa);
    own.own = order;
    int rc = dev_open(&d, &(struct dev_options){.name = "cpu", .isa = isa, .n_threads = THREADS}, &e);
    if (rc) {
        result(tap, false, name, e.message);
        return;
    }
    rc = model_open(&a, &cases[i].library, &e);
    if (rc == 0)
        rc = model_yardsticks(&a, &d, &e);
    int other = rc ? rc : model_open(&b, &own, &e);
    if (other == 0)
        other = model_yardsticks(&b, &d, &e);
    if (other == 0)
        other = compare(&a, &b, &features, &logits, &rows, &e);
    snprintf(detail, sizeof detail, "%zu rows of features, %zu values differ, %zu logits %s", rows, features,
             logits, other ? e.message : "");
    result(tap, other == 0 && rows > 0 && (right ? !features && !logits : features && logits), name, detail);
    model_close(&a);
    if (rc == 0)
        model_close(&b);
    dev_close(&d);
}

int main(void)
{
    struct tap tap = {0};
    static const char *const isas[] = {"ref", "fast"};
    for (size_t k = 0; k < ARRAY_LEN(isas); k++) {
        for (size_t i = 0; i < ARRAY_LEN(cases); i++)
            test_case(&tap, i, "qkv", isas[k]);
        test_case(&tap, 0, "kqv", isas[k]);
        test_case(&tap, 0, "qvk", isas[k]);
    }
    return tap_end(&tap);
}
