/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what a near tie does to a comparison. A router's bias is set so that in one row of the reference the
 * last expert that is chosen and the first that is not are 2e-5 apart, and in the model under test they are
 * so the other way round: the row goes elsewhere, no finding may say so, and it is counted. The same with
 * 2e-3 is a fault and must be found. Refuses: a tie that the reference does not show.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "dev/dev.h"
#include "oracle/oracle.h"
#include "oracle/trace_file.h"
#include "tiny.h"

#define TREE   TEST_SOURCE_ROOT "/tests/parity"
#define FAMILY "minimax_m2"
#define LAYER  "model.layers.1.block_sparse_moe"
#define BIAS   LAYER ".e_score_correction_bias"
#define SPARSE LAYER ".gate,model.layers.1.post_attention_layernorm," LAYER ".experts"

enum { TOKENS = 60, EXPERTS = 64, LAST = TOKENS - 1 };

static struct {
    unsigned n, failed;
} tap;

static void check(bool ok, const char *name, const char *detail)
{
    tap.failed += !ok;
    printf("%sok %u - %s%s%s\n", ok ? "" : "not ", ++tap.n, name, *detail ? ": " : "", detail);
    fflush(stdout);
}

struct model {
    struct d0 d0;
    struct tiny t;
    struct dev dev;
    char dir[64], weights[96], reference[96], other[96];
    int32_t ids[TOKENS];
};

struct compared {
    struct arena arena;
    struct findings f;
    struct compare_result r;
    int rc;
    struct err e;
};

static int record(struct model *x, const char *to, const char *probes, struct err *e)
{
    struct tiny_model m;
    struct record_result r;
    struct arena arena;
    struct findings f;
    const struct record_options o = {.ids = x->ids,
                                     .n_ids = TOKENS,
                                     .first_layer = -1,
                                     .last_layer = -1,
                                     .probes = probes,
                                     .out = to,
                                     .fresh = true};
    arena_init(&arena, NULL, MEM_MISC);
    findings_init(&f, NULL);
    int rc = tiny_model_open(&m, x->dir, &x->d0, e);
    if (rc == 0)
        rc = oracle_record(&(struct oracle_model){.dev = &x->dev, .spec = m.s, .ckpt = m.c}, &o, &arena, &r,
                           &f, e);
    tiny_model_close(&m);
    findings_release(&f);
    arena_release(&arena);
    return rc;
}

/* other: a trace, or NULL: the model. */
static void compare(struct model *x, const char *other, struct compared *c)
{
    struct tiny_model m;
    memset(c, 0, sizeof *c);
    arena_init(&c->arena, NULL, MEM_MISC);
    findings_init(&c->f, NULL);
    if (other) {
        c->rc = oracle_compare(x->reference, other, &c->arena, &c->r, &c->f, &c->e);
        return;
    }
    c->rc = tiny_model_open(&m, x->dir, &x->d0, &c->e);
    if (c->rc == 0)
        c->rc = oracle_compare_model(&(struct oracle_model){.dev = &x->dev, .spec = m.s, .ckpt = m.c},
                                     x->reference, &c->arena, &c->r, &c->f, &c->e);
    tiny_model_close(&m);
}

static void done(struct compared *c)
{
    findings_release(&c->f);
    arena_release(&c->arena);
}

static const struct compare_probe *probe(const struct compared *c, const char *name)
{
    static const struct compare_probe none = {.state = COMPARE_NOT_JUDGED};
    for (size_t i = 0; i < c->r.n_probes; i++)
        if (!strcmp(c->r.probes[i].name, name))
            return &c->r.probes[i];
    return &none;
}

static const char *said(const struct compared *c)
{
    return c->rc ? c->e.message : c->f.n ? c->f.items[0].evidence : "";
}

/* ---- the tie ---- */

/* Adds to the bias of one expert of layer 1. */
static int shift_bias(struct model *x, size_t expert, double by, struct err *e)
{
    struct tiny_model m;
    int rc = tiny_model_open(&m, x->dir, &x->d0, e);
    const struct ckpt_tensor *t = rc ? NULL : ckpt_find(m.c, BIAS);
    float b = 0;
    if (rc == 0 && (!t || t->dtype != D0_F32))
        rc = err_set(e, ERR_MISMATCH, "%s is not there, or not F32", BIAS);
    if (rc == 0)
        rc = ckpt_read(m.c, t, expert * sizeof b, &b, sizeof b, e);
    b += (float)by;
    FILE *f = rc ? NULL : fopen(x->weights, "r+b");
    if (rc == 0 &&
        (!f || fseek(f, (long)(t->offset + expert * sizeof b), SEEK_SET) || fwrite(&b, sizeof b, 1, f) != 1))
        rc = err_set(e, ERR_IO, "%s: cannot write", x->weights);
    if (f && fclose(f) && rc == 0)
        rc = err_set(e, ERR_IO, "%s: cannot close", x->weights);
    tiny_model_close(&m);
    return rc;
}

static int read_row(struct model *x, const char *name, uint64_t row, void *to, size_t *width, struct err *e)
{
    struct trace *t;
    int rc = trace_open(&t, x->reference, e);
    if (rc)
        return rc;
    const struct trace_tensor *v = trace_find(t, name);
    *width = v ? (size_t)v->width : 0;
    rc = v && v->width <= EXPERTS ? trace_read(t, v, row, 1, to, e)
                                  : err_set(e, ERR_MISSING, "%s is not in the trace", name);
    trace_close(t);
    return rc;
}

/* The best expert that row does not choose, and by how much it lost. */
static int runner_up(struct model *x, uint64_t row, size_t *expert, double *gap, struct err *e)
{
    float z[EXPERTS], bias[EXPERTS];
    int32_t chosen[EXPERTS];
    size_t n, k;
    struct tiny_model m;
    int rc = read_row(x, LAYER ".gate", row, z, &n, e);
    if (rc == 0)
        rc = read_row(x, LAYER ".route", row, chosen, &k, e);
    if (rc)
        return rc;
    rc = tiny_model_open(&m, x->dir, &x->d0, e);
    if (rc == 0)
        rc = ckpt_read(m.c, ckpt_find(m.c, BIAS), 0, bias, n * sizeof *bias, e);
    tiny_model_close(&m);
    double worst = INFINITY, best = -INFINITY;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const double v = 1 / (1 + exp(-(double)z[i])) + (double)bias[i];
        bool in = false;
        for (size_t j = 0; j < k; j++)
            in |= chosen[j] == (int32_t)i;
        worst = in ? fmin(worst, v) : worst;
        if (!in && v > best) {
            best = v;
            *expert = i;
        }
    }
    *gap = worst - best;
    return rc;
}

/* The reference is recorded with `apart` between the two, the model is left with them the other way round. */
static int plant(struct model *x, uint64_t row, double apart, const char *probes, struct err *e)
{
    size_t expert = 0;
    double gap = 0;
    int rc = tiny_write(&x->t, x->dir, &x->d0, e);
    if (rc == 0)
        rc = record(x, x->reference, "all", e);
    if (rc == 0)
        rc = runner_up(x, row, &expert, &gap, e);
    if (rc == 0)
        rc = shift_bias(x, expert, gap - apart, e);
    if (rc == 0)
        rc = record(x, x->reference, probes, e);
    return rc ? rc : shift_bias(x, expert, 2 * apart, e);
}

/* ---- cases ---- */

static int test_model(struct model *x, struct err *e)
{
    struct compared c;
    int rc = plant(x, 20, 2e-5, "all", e);
    if (rc)
        return rc;
    compare(x, NULL, &c);
    const struct compare_probe *route = probe(&c, LAYER ".route"), *weights = probe(&c, LAYER ".route:1");
    check(c.rc == 0 && c.f.n == 0 && c.r.wrong == 0 && c.r.not_judged == 0, "a near tie is no fault",
          said(&c));
    check(c.r.near_ties == 1 && c.r.choices_unknown == 0, "it is counted", "");
    check(route->state == COMPARE_RIGHT && route->rows_excluded == 1 && route->different_bits == 1 &&
              weights->rows_excluded == 1 && weights->different_bits > 0 && !c.r.identical,
          "the row went elsewhere and was left out", "");
    check(probe(&c, LAYER ".experts")->rows_excluded == 0, "experts are fed the reference's choice", "");
    done(&c);
    rc = plant(x, 20, 2e-3, "all", e);
    if (rc)
        return rc;
    compare(x, NULL, &c);
    check(c.rc == 0 && c.f.n == 1 && c.f.items[0].id == FINDING_N007 && c.r.first_wrong &&
              !strcmp(c.r.first_wrong->name, LAYER ".route") && c.r.first_wrong->worst_row_at == 20 &&
              strstr(c.f.items[0].evidence, BIAS),
          "2e-3 is no near tie", said(&c));
    done(&c);
    return ERR_OK;
}

/* As recordings of others: no choice, and once no logits either. */
static int test_sparse(struct model *x, struct err *e)
{
    struct compared c;
    int rc = plant(x, 20, 2e-5, SPARSE, e);
    if (rc)
        return rc;
    compare(x, NULL, &c);
    const struct compare_probe *p = probe(&c, LAYER ".experts");
    check(c.rc == 0 && c.f.n == 0 && p->state == COMPARE_RIGHT && p->rows_excluded == 1 &&
              !strcmp(p->operators, "route, experts"),
          "a span with the router in it", said(&c));
    done(&c);
    rc = plant(x, 20, 2e-5, "model.layers.1.post_attention_layernorm," LAYER ".experts", e);
    if (rc)
        return rc;
    compare(x, NULL, &c);
    check(c.rc == 0 && c.f.n == 1 && c.r.choices_unknown == c.r.choices && c.r.near_ties == 0,
          "what the reference does not tell is no excuse", said(&c));
    done(&c);
    return ERR_OK;
}

static int test_traces(struct model *x, uint64_t row, const char *probes, struct err *e)
{
    struct compared c;
    char name[96];
    int rc = plant(x, row, 2e-5, probes, e);
    if (rc == 0)
        rc = record(x, x->other, probes, e);
    if (rc)
        return rc;
    compare(x, x->other, &c);
    const struct compare_probe *end = probe(&c, LAYER ".experts");
    snprintf(name, sizeof name, "two traces, row %d, %s", (int)row,
             strcmp(probes, "all") ? "no choice" : "choices");
    check(c.rc == 0 && c.f.n == 0 && c.r.wrong == 0 && c.r.near_ties == 1, name, said(&c));
    if (row == LAST)
        check(c.r.not_judged == 0 && end->state == COMPARE_RIGHT && end->rows_excluded == 1,
              "the last row alone is left out", "");
    else
        check(end->state == COMPARE_NOT_JUDGED && end->why && strstr(end->why, "nearly a tie") &&
                  end->rows_excluded == TOKENS - row && probe(&c, LAYER ".gate")->state == COMPARE_RIGHT,
              "what follows is not judged, and says why", end->why ? end->why : "");
    done(&c);
    return ERR_OK;
}

/* What parity asks before it holds rows against a recording. */
static int test_rows(struct model *x, struct err *e)
{
    struct tiny_model m;
    uint8_t rows[TOKENS];
    size_t n = 0;
    int rc = plant(x, 20, 2e-5, SPARSE, e);
    if (rc == 0)
        rc = tiny_model_open(&m, x->dir, &x->d0, e);
    if (rc)
        return rc;
    const struct oracle_model om = {.dev = &x->dev, .spec = m.s, .ckpt = m.c};
    rc = oracle_near_ties(&om, x->reference, rows, TOKENS, e);
    for (size_t i = 0; rc == 0 && i < TOKENS; i++)
        n += rows[i];
    check(rc == 0 && n == 1 && rows[20] == 1, "the rows by themselves", rc ? e->message : "");
    check(oracle_near_ties(&om, x->reference, rows, TOKENS - 1, e) == ERR_MISMATCH,
          "another prompt is refused", "");
    tiny_model_close(&m);
    return ERR_OK;
}

int main(void)
{
    struct model x = {.d0 = {.log = {.fd = -1}}};
    struct err e;
    err_clear(&e);
    strcpy(x.dir, "/tmp/day0-ties-XXXXXX");
    if (!mkdtemp(x.dir))
        return 1;
    snprintf(x.weights, sizeof x.weights, "%s/model.safetensors", x.dir);
    snprintf(x.reference, sizeof x.reference, "%s/a.trace", x.dir);
    snprintf(x.other, sizeof x.other, "%s/b.trace", x.dir);
    for (int i = 0; i < TOKENS; i++)
        x.ids[i] = (3 + 17 * i + i * i) % 128;
    int rc = tiny_open(&x.t, TREE, FAMILY, &e);
    if (rc == 0)
        rc = dev_open(&x.dev, &(struct dev_options){.name = "cpu", .isa = "fast", .n_threads = 1}, &e);
    if (rc == 0)
        rc = test_model(&x, &e);
    if (rc == 0)
        rc = test_sparse(&x, &e);
    if (rc == 0)
        rc = test_traces(&x, LAST, "all", &e);
    if (rc == 0)
        rc = test_traces(&x, LAST, SPARSE, &e);
    if (rc == 0)
        rc = test_traces(&x, 20, "all", &e);
    if (rc == 0)
        rc = test_rows(&x, &e);
    if (rc)
        check(false, FAMILY, e.message);
    if (x.dev.api)
        dev_close(&x.dev);
    tiny_close(&x.t);
    unlink(x.reference);
    unlink(x.other);
    tiny_remove(x.dir);
    printf("1..%u\n", tap.n);
    return tap.failed != 0;
}
