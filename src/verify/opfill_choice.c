/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the inputs of operators that choose: route, index_topk. A choice is compared for equality, so none may
 * hang on rounding: each score gets the interval that a correct device may compute it in, and where intervals
 * of what is chosen and what is not meet, the row is drawn anew; after some tries it becomes zero, which
 * makes all scores equal in any arithmetic. Equal scores are fed on purpose: ties go to the lower number.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"
#include "verify/opcase.h"

#define UNSURE    (64 * 0x1p-23) /* four times what sums of products may be off */
#define MAX_TRIES 16

/* ---- route ---- */

struct candidate {
    double value, off;
};

/* Largest first. */
static int by_value(const void *a, const void *b)
{
    double x = ((const struct candidate *)a)->value, y = ((const struct candidate *)b)->value;
    return (x < y) - (x > y);
}

/* Are the first `most` of n candidates, sorted here, apart from each other and from the rest? */
static bool apart(struct candidate *list, int64_t n, int64_t most)
{
    qsort(list, (size_t)n, sizeof *list, by_value);
    for (int64_t i = 0; i + 1 < n && i < most; i++)
        if (list[i].value != list[i + 1].value &&
            list[i].value - list[i + 1].value <= list[i].off + list[i + 1].off)
            return false;
    return true;
}

static double route_score(int64_t kind, const float *z, int64_t n, int64_t i)
{
    double sum = 0, x = (double)z[i];
    if (kind == 1)
        return 1 / (1 + exp(-x));
    if (kind == 2)
        return sqrt(fmax(x, 0) + log1p(exp(-fabs(x))));
    if (kind == 3)
        return x;
    for (int64_t j = 0; j < n; j++)
        sum += exp((double)z[j] - x);
    return 1 / sum;
}

/* Groups that stay: those of largest score; the others' candidates become -infinity. false: it hangs on
 * rounding. */
static bool drop_groups(const struct opshape *s, struct candidate *list, int64_t n, struct candidate *work)
{
    int64_t groups = opshape_int(s, D0_ATTR_GROUPS), kept = opshape_int(s, D0_ATTR_GROUPS_KEPT);
    if (groups <= 1 || kept == 0 || kept >= groups)
        return true;
    int64_t each = n / groups;
    struct candidate *sums = work + n;
    for (int64_t g = 0; g < groups; g++) {
        memcpy(work, list + g * each, (size_t)each * sizeof *work);
        qsort(work, (size_t)each, sizeof *work, by_value);
        bool two = opshape_int(s, D0_ATTR_GROUP_SCORE) == 0 && each > 1;
        sums[g] = (struct candidate){work[0].value + (two ? work[1].value : 0),
                                     work[0].off + (two ? work[1].off : 0)};
    }
    memcpy(work, sums, (size_t)groups * sizeof *work);
    if (!apart(work, groups, groups))
        return false;
    int64_t equal = 0, above = 0;
    for (int64_t g = 0; g < groups; g++) {
        above += sums[g].value > work[kept - 1].value;
        equal += sums[g].value == work[kept - 1].value;
    }
    if (above + equal > kept) /* equal sums of other terms may round apart */
        return false;
    for (int64_t i = 0; i < n; i++)
        if (sums[i / each].value < work[kept - 1].value)
            list[i].value = -INFINITY;
    return true;
}

/* Does nothing in the choice of this row hang on rounding? work: 3 n candidates */
static bool route_sure(const struct opshape *s, const float *z, const float *bias, int64_t n,
                       struct candidate *work)
{
    for (int64_t i = 0; i < n; i++) {
        double score = (double)(float)route_score(opshape_int(s, D0_ATTR_SCORE), z, n, i),
               b = bias ? (double)bias[i] : 0;
        work[i] = (struct candidate){score + b, UNSURE * (fabs(score) + fabs(b))};
    }
    return drop_groups(s, work, n, work + n) && apart(work, n, opshape_int(s, D0_ATTR_TOPK));
}

int opfill_route(struct fill *f, struct err *e)
{
    struct opcase *c = f->c;
    int64_t n = opcase_size(c, 0, 1);
    float *z = c->data[c->in[0]], *bias = opcase_widened(c, 1);
    struct candidate *work = malloc((size_t)(3 * n) * sizeof *work);
    if (c->in[2] != D0_NO_VALUE) {
        const struct d0_value *v = &c->g->values[c->in[2]];
        for (int64_t i = 0; i < v->dims[0] * v->dims[1]; i++) {
            int64_t id = (int64_t)rng_below(&f->rng, (uint64_t)n);
            if (v->dtype == D0_I64)
                ((int64_t *)c->data[c->in[2]])[i] = id;
            else
                ((int32_t *)c->data[c->in[2]])[i] = (int32_t)id;
        }
    }
    for (int64_t t = 0; work && t < c->dims[0]; t++) {
        float *row = z + t * n, by = f->cls == OPCLASS_LARGE ? 3 : 1;
        for (int tries = 0; tries <= MAX_TRIES; tries++) {
            for (int64_t i = 0; i < n; i++) {
                row[i] = tries < MAX_TRIES ? opfill_normal(&f->rng) * by : 0;
                if (i && rng_below(&f->rng, 6) == 0)
                    row[i] = row[rng_below(&f->rng, (uint64_t)i)];
            }
            if (c->in[2] != D0_NO_VALUE || route_sure(&c->shape, row, bias, n, work))
                break;
        }
    }
    free(bias);
    free(work);
    return work ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for %lld candidates", (long long)n);
}

/* ---- index_topk ---- */

struct interval {
    double value, low, high;
};

struct index_case {
    const struct opcase *c;
    const float *keys; /* widened pages */
    int64_t heads, dim, block, groups, ratio, topk;
    double scale;
    bool exact; /* whole numbers, whose sums are exact in any order */
    struct interval *s;
    bool *taken;
};

/* scale * q.k of head h, and where it may lie */
static struct interval product(const struct index_case *x, int64_t t, int64_t h, int64_t slot)
{
    const float *q = opcase_rows(x->c, 0) + (t * x->heads + h) * x->dim, *k = x->keys + slot * x->dim;
    double dot = 0, squares = 0;
    for (int64_t d = 0; d < x->dim; d++) {
        double term = (double)q[d] * (double)k[d];
        dot += term;
        squares += term * term;
    }
    double off = x->exact ? 0 : UNSURE * fabs(x->scale) * opscale_sum(dot, squares);
    return (struct interval){x->scale * dot, x->scale * dot - off, x->scale * dot + off};
}

/* A key's sum over heads of weight * relu(product). */
static struct interval key_score(const struct index_case *x, int64_t t, int64_t slot)
{
    const float *weights = x->c->in[5] == D0_NO_VALUE ? NULL : opcase_rows(x->c, 5) + t * x->heads;
    struct interval sum = {0};
    double size = 0;
    for (int64_t h = 0; h < x->heads; h++) {
        struct interval s = product(x, t, h, slot);
        double w = weights ? (double)weights[h] : 1;
        sum.value += w * fmax(0, s.value);
        sum.low += w * fmax(0, w > 0 ? s.low : s.high);
        sum.high += w * fmax(0, w > 0 ? s.high : s.low);
        size += fabs(w) * fmax(0, s.high);
    }
    double off = x->exact ? 0 : UNSURE * size;
    return (struct interval){sum.value, sum.low - off, sum.high + off};
}

/* The largest product of the heads of group g with a key of block b. */
static struct interval block_score(const struct index_case *x, int64_t t, int64_t seq, int64_t g, int64_t b)
{
    int64_t each = x->heads / x->groups;
    struct interval top = {-INFINITY, -INFINITY, -INFINITY};
    for (int64_t key = b * x->block; key < (b + 1) * x->block; key++)
        for (int64_t h = g * each; h < (g + 1) * each; h++) {
            struct interval s = product(x, t, h, opcase_slot(x->c, 1, seq, key, 0));
            top.value = fmax(top.value, s.value);
            top.low = fmax(top.low, s.low);
            top.high = fmax(top.high, s.high);
        }
    return top;
}

/* Is what group g of row t takes apart from what it leaves? */
static bool topk_sure(struct index_case *x, int64_t t, int64_t g)
{
    int64_t seq = opcase_ints(x->c, 3)[t], keys = (opcase_ints(x->c, 2)[t] + 1) / x->ratio,
            n = x->block ? (keys + x->block - 1) / x->block : keys, own = x->block && n ? n - 1 : -1;
    for (int64_t i = 0; i < n; i++) {
        x->taken[i] = i == own;
        if (i != own)
            x->s[i] =
                x->block ? block_score(x, t, seq, g, i) : key_score(x, t, opcase_slot(x->c, 1, seq, i, 0));
    }
    for (int64_t turn = own >= 0; turn < x->topk && turn < n; turn++) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++)
            if (!x->taken[i] && (best < 0 || x->s[i].value > x->s[best].value))
                best = i;
        x->taken[best] = true;
    }
    double least = INFINITY, most = -INFINITY;
    bool loose = false; /* does any score at the border have a width? */
    for (int64_t i = 0; i < n; i++) {
        if (i == own)
            continue;
        least = x->taken[i] ? fmin(least, x->s[i].low) : least;
        most = x->taken[i] ? most : fmax(most, x->s[i].high);
    }
    for (int64_t i = 0; i < n && least <= most; i++)
        loose |= i != own && x->s[i].low < x->s[i].high && x->s[i].high >= least && x->s[i].low <= most;
    return least > most || !loose;
}

static void draw_row(const struct fill *f, struct rng *r, const struct index_case *x, float *row, int64_t n)
{
    float by = f->cls == OPCLASS_LARGE ? 0x1p20f : f->cls == OPCLASS_SMALL ? 0x1p-20f : 1;
    for (int64_t i = 0; i < n; i++)
        row[i] = x->exact ? (float)((int)rng_below(r, 9) - 4) : opfill_normal(r) * by;
}

static void fill_index_keys(struct fill *f, bool exact)
{
    struct opcase *c = f->c;
    int64_t ratio = opshape_int(&c->shape, D0_ATTR_RATIO), dim = opcase_size(c, 1, 3);
    uint32_t dtype = c->g->values[c->in[1]].dtype;
    size_t width = dtype_bits(dtype) / 8;
    for (int64_t s = 0; s < c->dims[1]; s++)
        for (int64_t key = 0; key < (f->history[s] + f->run[s]) / (ratio ? ratio : 1); key++)
            for (int64_t d = 0; d < dim; d++) {
                float v = exact ? (float)((int)rng_below(&f->rng, 9) - 4) : opfill_normal(&f->rng);
                size_t at = (size_t)(opcase_slot(c, 1, s, key, 0) * dim + d);
                tensor_from_f32(&v, 1, dtype, (char *)c->data[c->in[1]] + at * width);
            }
}

static void settle(struct fill *f, struct index_case *x)
{
    struct opcase *c = f->c;
    int64_t width = x->heads * x->dim;
    for (int64_t t = 0; t < c->dims[0]; t++) {
        float *q = (float *)c->data[c->in[0]] + t * width;
        bool sure = false;
        for (int tries = 0; !sure && tries <= MAX_TRIES; tries++) {
            draw_row(f, &f->rng, x, q, width);
            if (tries == MAX_TRIES)
                memset(q, 0, (size_t)width * sizeof *q);
            sure = true;
            for (int64_t g = 0; g < x->groups && !x->exact; g++)
                sure = topk_sure(x, t, g) && sure;
        }
    }
}

int opfill_topk(struct fill *f, struct err *e)
{
    struct opcase *c = f->c;
    const struct opshape *s = &c->shape;
    int64_t groups = opshape_int(s, D0_ATTR_GROUPS), ratio = opshape_int(s, D0_ATTR_RATIO);
    double scale = opshape_real(s, D0_ATTR_SCALE);
    int exponent;
    struct index_case x = {.c = c,
                           .heads = opshape_int(s, D0_ATTR_HEADS),
                           .dim = opshape_int(s, D0_ATTR_DIM),
                           .block = opshape_int(s, D0_ATTR_BLOCK),
                           .topk = opshape_int(s, D0_ATTR_TOPK),
                           .groups = groups ? groups : 1,
                           .ratio = ratio ? ratio : 1,
                           .scale = scale != 0 ? scale : 1};
    bool power = fabs(frexp(x.scale, &exponent)) == 0.5;
    x.exact =
        power && x.heads * x.dim * 64 < 1 << 24 && (f->cls == OPCLASS_SPARSE || f->cls == OPCLASS_POSITIVE);
    fill_index_keys(f, x.exact);
    if (c->in[5] != D0_NO_VALUE)
        for (int64_t i = 0; i < c->dims[0] * x.heads; i++)
            ((float *)c->data[c->in[5]])[i] =
                x.exact ? (float)((int)rng_below(&f->rng, 7) - 2) : opfill_normal(&f->rng);
    int64_t most = c->dims[3] * opshape_page_span(s) + 1;
    float *keys = opcase_widened(c, 1);
    x.keys = keys;
    x.s = malloc((size_t)most * sizeof *x.s);
    x.taken = malloc((size_t)most * sizeof *x.taken);
    bool room = keys && x.s && x.taken;
    if (room)
        settle(f, &x);
    free(keys);
    free(x.s);
    free(x.taken);
    return room ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for %lld keys", (long long)most);
}
