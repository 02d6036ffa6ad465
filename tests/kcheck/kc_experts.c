/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of route and experts. Definitions in float64 written again from ops.def: by sorting, where the
 * kernels search. Scores are float32 numbers by definition, since the choice hangs on their last bit. The
 * natural scale of experts is that of a sum over what lies between, each inner value with the error its own
 * sums may have.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc_activation.h"
#include "kc_make.h"

/* One row of input i becomes NaN, another one gets an infinity. */
static void poison_rows(struct kc_case *c, unsigned i, int64_t rows, int64_t width)
{
    if (c->values != KC_POISON || rows == 0)
        return;
    float *x = c->in[i].data;
    int64_t bad = kc_between(c, 0, rows - 1), other = kc_between(c, 0, rows - 1);
    x[other * width + kc_between(c, 0, width - 1)] = kc_chance(c, 2) ? INFINITY : -INFINITY;
    for (int64_t e = 0; e < width; e++)
        x[bad * width + e] = NAN;
}

/* ---- route --------------------------------------------------------------------------------------------- */

const unsigned kc_cases_ROUTE = 600;

/* Logits as routers have them, with ties: some experts repeat the logit of another. */
static void make_logits(struct kc_case *c, int64_t t, int64_t n)
{
    kc_fill(c, 0, D0_F32, t * n, n);
    float *z = c->in[0].data;
    bool wide = kc_chance(c, 3);
    for (int64_t i = 0; i < t * n; i++) {
        z[i] = wide ? z[i] * 30 : z[i];
        if (i % n && kc_chance(c, 6))
            z[i] = z[i - kc_between(c, 1, i % n)];
    }
    poison_rows(c, 0, t, n);
}

static void make_table(struct kc_case *c, int64_t t, int64_t n, int64_t topk)
{
    int64_t rows = kc_between(c, 1, 20);
    bool wide = kc_chance(c, 2);
    size_t bytes = (size_t)(rows * topk) * (wide ? 8 : 4);
    unsigned char *p = arena_alloc(c->arena, bytes);
    if (!p)
        abort();
    for (int64_t i = 0; i < rows * topk; i++) {
        int64_t e = kc_chance(c, 40) ? (kc_chance(c, 2) ? n
                                        : wide          ? INT64_C(1) << 32
                                                        : -1)
                                     : kc_between(c, 0, n - 1);
        int32_t narrow = (int32_t)e;
        memcpy(p + (size_t)i * (wide ? 8 : 4), wide ? (void *)&e : (void *)&narrow, wide ? 8 : 4);
    }
    c->in[2] = (struct kc_array){p, bytes, 0};
    c->a.in_dtype[2] = wide ? D0_I64 : D0_I32;
    kc_dims(c, 2, 2, (int64_t[]){rows, topk});
    int32_t *ids = kc_ints(c, 3, t, 1);
    for (int64_t i = 0; i < t; i++)
        ids[i] = kc_chance(c, 10) ? (kc_chance(c, 2) ? (int32_t)rows : INT32_MIN)
                                  : (int32_t)kc_between(c, 0, rows - 1);
    kc_dims(c, 3, 1, &t);
}

static void make_groups(struct kc_case *c, int64_t *n, int64_t *topk)
{
    int64_t groups = kc_between(c, 2, 8), each = kc_between(c, 1, 12), kept = kc_between(c, 0, groups);
    *n = groups * each;
    *topk = kc_between(c, 1, each * (kept ? kept : groups));
    c->a.attr[D0_ATTR_GROUPS].i = groups;
    c->a.attr[D0_ATTR_GROUPS_KEPT].i = kept;
    c->a.attr[D0_ATTR_GROUP_SCORE].i = kc_between(c, 0, 1);
}

void kc_make_ROUTE(struct kc_case *c, unsigned index)
{
    int64_t n = kc_between(c, 1, kc_chance(c, 8) ? 300 : 40), topk = kc_between(c, 1, n < 24 ? n : 24),
            t = kc_between(c, 0, 12);
    if (c->large) {
        n = 256;
        topk = 8;
        t = 512;
    } else if (kc_chance(c, 2)) {
        make_groups(c, &n, &topk);
    }
    make_logits(c, t, n);
    kc_dims(c, 0, 2, (int64_t[]){t, n});
    c->a.attr[D0_ATTR_SCORE].i = c->large ? 0 : index % 4;
    c->a.attr[D0_ATTR_TOPK].i = topk;
    c->a.attr[D0_ATTR_RENORMALIZE].i = kc_chance(c, 2);
    c->a.attr[D0_ATTR_RENORM_EPS].f = kc_chance(c, 2) ? 0 : kc_chance(c, 2) ? 1e-20 : 0.125;
    c->a.attr[D0_ATTR_SCALE].f = kc_chance(c, 2) ? 0 : 2.5;
    c->a.scale = c->a.attr[D0_ATTR_SCALE].f;
    if (!c->large && kc_chance(c, 2)) {
        kc_fill(c, 1, kc_any_type(c), n, 0);
        kc_dims(c, 1, 1, &n);
    }
    if (!c->large && kc_chance(c, 4))
        make_table(c, t, n, topk);
    if (!c->large && kc_chance(c, 4)) {
        kc_fill(c, 4, kc_any_type(c), n, 0);
        kc_dims(c, 4, 1, &n);
    }
    kc_output_of(c, 0, true, t, topk);
    kc_output_of(c, 1, false, t, topk);
    c->a.tokens = t;
    c->a.k = n;
    c->moved = 4.0 * (double)(t * n);
    snprintf(c->shape, sizeof c->shape, "T=%d E=%d k=%d score=%d groups=%d/%d(%d)%s%s%s%s", (int)t, (int)n,
             (int)topk, (int)c->a.attr[D0_ATTR_SCORE].i, (int)c->a.attr[D0_ATTR_GROUPS_KEPT].i,
             (int)c->a.attr[D0_ATTR_GROUPS].i, (int)c->a.attr[D0_ATTR_GROUP_SCORE].i,
             c->in[1].data ? " bias" : "", c->in[2].data ? " table" : "",
             c->in[4].data ? " expert_scale" : "", c->a.attr[D0_ATTR_RENORMALIZE].i ? " renormalize" : "");
}

struct candidate {
    double score;
    int32_t id;
};

/* Largest first, NaN before all, ties by id. */
static int by_score(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (isnan(x->score) != isnan(y->score))
        return isnan(x->score) ? -1 : 1;
    if (!isnan(x->score) && x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* float32 scores of one row of logits */
static void route_scores(const struct kc_case *c, size_t row, size_t n, double *s)
{
    int64_t kind = c->a.attr[D0_ATTR_SCORE].i;
    double top = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) {
        s[i] = kc_at(c, 0, row * n + i);
        top = fmax(top, s[i]); /* a NaN gets into the sum */
    }
    for (size_t i = 0; i < n; i++)
        sum += exp(s[i] - top);
    for (size_t i = 0; i < n; i++) {
        double soft = s[i] > 40 ? s[i] : log1p(exp(s[i]));
        double values[] = {exp(s[i] - top) / sum, 1 / (1 + exp(-s[i])), sqrt(soft), s[i]};
        s[i] = (double)(float)values[kind];
    }
}

/* Scores of experts of groups that fall out become less than anything. */
static void drop_groups(const struct kc_case *c, struct candidate *list, size_t n)
{
    size_t groups = (size_t)c->a.attr[D0_ATTR_GROUPS].i, kept = (size_t)c->a.attr[D0_ATTR_GROUPS_KEPT].i;
    struct candidate order[64], group[64];
    if (groups < 2 || kept == 0)
        return;
    size_t each = n / groups;
    for (size_t g = 0; g < groups; g++) {
        memcpy(order, list + g * each, each * sizeof *order);
        qsort(order, each, sizeof *order, by_score);
        bool two = c->a.attr[D0_ATTR_GROUP_SCORE].i == 0 && each > 1;
        float sum = (float)order[0].score + (two ? (float)order[1].score : 0.0f);
        group[g] = (struct candidate){(double)sum, (int32_t)g};
    }
    qsort(group, groups, sizeof *group, by_score);
    for (size_t g = kept; g < groups; g++)
        for (size_t i = 0; i < each; i++)
            list[(size_t)group[g].id * each + i].id = -1;
}

/* The ids of one row into chosen; false: not all of them are experts. */
static bool route_choice(const struct kc_case *c, size_t row, const double *s, size_t n, size_t topk,
                         struct candidate *list, double *chosen)
{
    if (c->in[2].data) {
        int32_t id = ((const int32_t *)c->in[3].data)[row];
        bool good = id >= 0 && id < c->a.in_dims[2][0];
        for (size_t k = 0; k < topk; k++) {
            size_t at = (size_t)(good ? id : 0) * topk + k;
            int64_t e = c->a.in_dtype[2] == D0_I64 ? ((const int64_t *)c->in[2].data)[at]
                                                   : (int64_t)((const int32_t *)c->in[2].data)[at];
            good = good && e >= 0 && e < (int64_t)n;
            chosen[k] = good ? (double)e : -1;
        }
        return good;
    }
    for (size_t i = 0; i < n; i++) {
        float bias = c->in[1].data ? (float)kc_at(c, 1, i) : 0;
        list[i] = (struct candidate){c->in[1].data ? (double)((float)s[i] + bias) : s[i], (int32_t)i};
    }
    drop_groups(c, list, n);
    size_t left = 0;
    for (size_t i = 0; i < n; i++)
        if (list[i].id >= 0)
            list[left++] = list[i];
    qsort(list, left, sizeof *list, by_score);
    for (size_t k = 0; k < topk; k++)
        chosen[k] = list[k].id;
    return true;
}

void kc_judge_ROUTE(struct kc_case *c)
{
    size_t n = (size_t)c->a.k, topk = (size_t)c->a.n;
    double *s = arena_alloc_n(c->arena, n, sizeof *s);
    struct candidate *list = arena_alloc_n(c->arena, n, sizeof *list);
    if (!s || !list)
        abort();
    kc_judge_begin(c);
    for (size_t t = 0; t < (size_t)c->a.n_rows; t++) {
        double *chosen = c->want[0] + t * topk, *w = c->want[1] + t * topk, sum = 0, top = -INFINITY;
        route_scores(c, t, n, s);
        bool good = route_choice(c, t, s, n, topk, list, chosen), logits = c->a.attr[D0_ATTR_SCORE].i == 3;
        for (size_t k = 0; k < topk && good; k++)
            top = fmax(top, s[(size_t)chosen[k]]);
        for (size_t k = 0; k < topk; k++) {
            w[k] = !good ? (double)NAN : logits ? exp(s[(size_t)chosen[k]] - top) : s[(size_t)chosen[k]];
            sum += w[k];
        }
        for (size_t k = 0; k < topk; k++) {
            w[k] /= logits ? sum : 1;
            if (c->a.attr[D0_ATTR_RENORMALIZE].i)
                w[k] /= (logits ? 1 : sum) + c->a.attr[D0_ATTR_RENORM_EPS].f;
            w[k] *= c->a.attr[D0_ATTR_SCALE].f != 0 ? c->a.attr[D0_ATTR_SCALE].f : 1;
            w[k] *= good && c->in[4].data ? kc_at(c, 4, (size_t)chosen[k]) : 1;
            c->scale[1][t * topk + k] = fmax(SCALE_FLOOR, fabs(w[k]));
        }
    }
}

/* ---- experts ------------------------------------------------------------------------------------------- */

#define WIDTHS        40 /* every D, then every I, 1 .. WIDTHS */
#define EXPERTS_PLAIN (2 * WIDTHS + 160)
const unsigned kc_cases_EXPERTS = EXPERTS_PLAIN + 60; /* the last ones round x and h */

struct experts_sizes {
    int64_t t, d, inter, n, slots;
};

static struct experts_sizes experts_sizes(struct kc_case *c, unsigned index)
{
    struct experts_sizes z = {kc_between(c, 0, 9), kc_between(c, 1, 40), kc_between(c, 1, 40),
                              kc_between(c, 1, 6), kc_between(c, 1, 4)};
    if (c->large)
        return (struct experts_sizes){512, 1024, 512, 32, 8};
    if (index < WIDTHS) {
        z.d = index + 1;
    } else if (index < 2 * WIDTHS) {
        z.inter = index - WIDTHS + 1;
    } else if (kc_chance(c, 3)) { /* more tokens of one expert than one pass takes */
        z.t = kc_between(c, 20, 60);
        z.n = kc_between(c, 1, 3);
        z.slots = kc_between(c, 1, 2);
    } else if (kc_chance(c, 4)) { /* several blocks of columns in both products */
        z.d = kc_between(c, 90, 220);
        z.inter = kc_between(c, 45, 120);
        z.t = kc_between(c, 1, 40);
        z.n = 2;
        z.slots = 1;
    } else if (kc_chance(c, 20)) { /* so many pairs that outputs wait in smaller blocks */
        z.t = kc_between(c, 130, 150);
        z.slots = 4;
        z.d = kc_between(c, 90, 220);
        z.inter = kc_between(c, 1, 20);
    } else if (kc_chance(c, 6)) { /* several blocks of K in one of them */
        bool first = kc_chance(c, 2);
        z.d = first ? kc_between(c, 1000, 1200) : kc_between(c, 1, 20);
        z.inter = first ? kc_between(c, 1, 20) : kc_between(c, 1000, 1200);
        z.t = kc_chance(c, 2) ? 3 : kc_between(c, 33, 40);
        z.n = z.slots = 1;
    } else {
        z.d = kc_between(c, 1, 150);
        z.inter = kc_between(c, 1, 150);
    }
    return z;
}

/* Weights [n, a, b] of an expert's matrix: of the class, but so that sums of k of them stay near 1, and not
 * huge, since three factors are multiplied. */
static void fill_experts(struct kc_case *c, unsigned i, int64_t n, int64_t a, int64_t b, int64_t k)
{
    enum kc_values values = c->values;
    float factor = 1;
    if (kc_is_code(c->dtype)) { /* never turned */
        int small = 7;
        for (; k > 3; k /= 4)
            small++;
        kc_weight(c, i, c->dtype, n, a, b, small);
        return;
    }
    for (; k > 3; k /= 4)
        factor /= 2;
    c->values = values == KC_HUGE ? KC_NORMAL : values;
    kc_fill(c, i, c->dtype, n * a * b, 0);
    c->values = values;
    size_t width = kc_width(c->dtype);
    for (int64_t e = 0; e < n * a * b; e++) {
        unsigned char *p = (unsigned char *)c->in[i].data + (size_t)e * width;
        float v;
        tensor_to_f32(p, c->dtype, 1, &v);
        v *= factor;
        tensor_from_f32(&v, 1, c->dtype, p);
    }
    bool turned = c->a.attr[D0_ATTR_TRANSPOSED].i != 0;
    kc_dims(c, i, 3, (int64_t[]){n, turned ? b : a, turned ? a : b});
}

static void experts_attributes(struct kc_case *c, unsigned index)
{
    static const int64_t alone[] = {0, 1, 2, 3, 4, 5, 6, 7, 12, 13};
    int64_t layout = index % 4;
    c->a.attr[D0_ATTR_LAYOUT].i = layout;
    c->a.attr[D0_ATTR_TRANSPOSED].i = kc_chance(c, 3) && !kc_is_code(c->dtype);
    c->a.attr[D0_ATTR_INPUT_WEIGHTED].i = kc_chance(c, 4);
    c->a.attr[D0_ATTR_ZERO].i = kc_chance(c, 4) ? kc_between(c, 1, 3) : 0;
    int64_t pair = kc_chance(c, 3) ? 0 : kc_between(c, 0, 13);
    c->a.attr[D0_ATTR_FUNCTION].i = layout == 3 ? alone[kc_between(c, 0, 9)] : pair;
    c->a.function = c->a.attr[D0_ATTR_FUNCTION].i;
    c->a.attr[D0_ATTR_ALPHA].f = kc_chance(c, 2) ? 1.702 : 0.75;
    c->a.attr[D0_ATTR_LIMIT].f = kc_chance(c, 2) ? 7 : 0.5;
    c->a.attr[D0_ATTR_BETA].f = kc_chance(c, 2) ? 4 : 0.5;
    c->a.attr[D0_ATTR_LINEAR_BETA].f = kc_chance(c, 2) ? 25 : 0.75;
    if (c->large) {
        c->a.attr[D0_ATTR_LAYOUT].i = c->a.attr[D0_ATTR_TRANSPOSED].i = c->a.attr[D0_ATTR_INPUT_WEIGHTED].i =
            0;
        c->a.attr[D0_ATTR_ZERO].i = c->a.attr[D0_ATTR_FUNCTION].i = c->a.function = 0;
    }
}

/* Ids and weights: all over the experts or mostly the first; some ids are identities, a few are wrong. */
static void experts_choice(struct kc_case *c, const struct experts_sizes *z)
{
    const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX, (int32_t)(z->n + c->a.attr[D0_ATTR_ZERO].i)};
    int32_t *ids = kc_ints(c, 1, z->t * z->slots, z->slots);
    bool skewed = kc_chance(c, 3), sound = c->large || kc_chance(c, 2);
    kc_fill(c, 2, D0_F32, z->t * z->slots, z->slots);
    float *weights = c->in[2].data;
    for (int64_t i = 0; i < z->t * z->slots; i++) {
        ids[i] = skewed && !kc_chance(c, 4) ? 0 : (int32_t)kc_between(c, 0, wrong[3] - 1);
        if (!sound && kc_chance(c, 16))
            ids[i] = wrong[kc_between(c, 0, 3)];
        weights[i] = (float)(kc_normal(&c->rng) * 0.5);
    }
    if (c->values == KC_POISON && z->t > 0)
        weights[kc_between(c, 0, z->t * z->slots - 1)] = NAN;
    kc_dims(c, 1, 2, (int64_t[]){z->t, z->slots});
    kc_dims(c, 2, 2, (int64_t[]){z->t, z->slots});
}

static void experts_biases(struct kc_case *c, const struct experts_sizes *z, int64_t wide, int64_t layout)
{
    const int64_t widths[] = {layout == 3 ? 0 : wide, wide == z->inter ? z->inter : 0, z->d};
    for (unsigned i = 0; i < 3 && !c->large; i++)
        if (widths[i] && kc_chance(c, 2)) {
            kc_fill(c, 6 + i, kc_any_type(c), z->n * widths[i], 0);
            kc_dims(c, 6 + i, 2, (int64_t[]){z->n, widths[i]});
        }
}

void kc_make_EXPERTS(struct kc_case *c, unsigned index)
{
    struct experts_sizes z = experts_sizes(c, index);
    experts_attributes(c, index);
    if (!c->large && index >= EXPERTS_PLAIN) {
        /* what overflows on the way is an infinity to one kernel and none to the judge */
        c->values = c->values == KC_HUGE ? KC_NORMAL : c->values;
        x_format_of(c, 1 + index % kc_x_formats, D0_ATTR_X_SCALE);
        x_format_of(c, 1 + index % kc_x_formats, D0_ATTR_H_SCALE);
    }
    int64_t layout = c->a.attr[D0_ATTR_LAYOUT].i, wide = layout == 1 || layout == 2 ? 2 * z.inter : z.inter;
    kc_fill(c, 0, D0_F32, z.t * z.d, z.d);
    kc_dims(c, 0, 2, (int64_t[]){z.t, z.d});
    poison_rows(c, 0, z.t, z.d);
    experts_choice(c, &z);
    fill_experts(c, 3, z.n, z.d, z.inter, z.inter);
    if (layout != 3)
        fill_experts(c, 4, z.n, wide, z.d, z.d);
    if (layout == 0 || layout == 3)
        fill_experts(c, 5, z.n, z.inter, z.d, z.d);
    experts_biases(c, &z, wide, layout);
    kc_output(c, z.t, z.d);
    c->a.attr[D0_ATTR_INTER].i = z.inter;
    c->a.attr[D0_ATTR_FORM].i = c->large || kc_chance(c, 2);
    c->same_forms = true;
    c->a.tokens = z.t;
    c->a.k = z.d;
    c->flops = 6.0 * (double)(z.t * z.slots * z.d * z.inter);
    c->moved = 3.0 * (double)(z.n * z.d * z.inter) * (double)dtype_bits(c->dtype) / 8;
    snprintf(c->shape, sizeof c->shape,
             "T=%d D=%d I=%d E=%d+%d k=%d layout=%d%s form=%d function=%d x=%d%s%s%s%s", (int)z.t, (int)z.d,
             (int)z.inter, (int)z.n, (int)c->a.attr[D0_ATTR_ZERO].i, (int)z.slots, (int)layout,
             c->a.attr[D0_ATTR_TRANSPOSED].i ? " transposed" : "", (int)c->a.attr[D0_ATTR_FORM].i,
             (int)c->a.function, (int)c->a.attr[D0_ATTR_X_FORMAT].i,
             c->a.attr[D0_ATTR_INPUT_WEIGHTED].i ? " input weighted" : "", c->in[6].data ? " gate bias" : "",
             c->in[7].data ? " up bias" : "", c->in[8].data ? " down bias" : "");
}

struct sum {
    double value, squares; /* of terms; scales of terms, squared */
};

static double natural(const struct sum *s)
{
    return fmax(fabs(s->value), 2 * sqrt(s->squares));
}

/* Row j of matrix e of input i, [E, n, k] or turned, times x; errors[k] of x, or NULL: |x| */
static struct sum row_times(const struct kc_case *c, unsigned i, unsigned bias, size_t e, size_t j, size_t n,
                            size_t k, const double *x, const double *errors)
{
    struct sum s = {0, 0};
    bool turned = c->a.attr[D0_ATTR_TRANSPOSED].i != 0;
    for (size_t m = 0; m < k; m++) {
        double w = kc_at(c, i, turned ? (e * k + m) * n + j : (e * n + j) * k + m),
               by = errors ? errors[m] : x[m];
        s.value += w * x[m];
        s.squares += w * by * (w * by);
    }
    if (c->in[bias].data) {
        double b = kc_at(c, bias, e * n + j);
        s.value += b;
        s.squares += b * b;
    }
    return s;
}

/* h[inter] of expert e for x[d], and the natural scale of each */
static void inner_values(const struct kc_case *c, size_t e, const double *x, double *h, double *scale)
{
    size_t d = (size_t)c->a.k, n = (size_t)c->a.attr[D0_ATTR_INTER].i;
    int64_t layout = c->a.attr[D0_ATTR_LAYOUT].i;
    for (size_t j = 0; j < n; j++) {
        struct sum g = {0, 0}, u = {1, 0};
        if (layout == 0)
            g = row_times(c, 4, 6, e, j, n, d, x, NULL);
        else if (layout != 3)
            g = row_times(c, 4, 6, e, layout == 1 ? j : 2 * j, 2 * n, d, x, NULL);
        if (layout == 1 || layout == 2)
            u = row_times(c, 4, 6, e, layout == 1 ? n + j : 2 * j + 1, 2 * n, d, x, NULL);
        else if (layout == 0)
            u = row_times(c, 5, 7, e, j, n, d, x, NULL);
        else
            g = row_times(c, 5, 7, e, j, n, d, x, NULL); /* act alone is act times 1 */
        h[j] = kc_glu(c, g.value, u.value).value;
        scale[j] = kc_reach(c, g.value, u.value, natural(&g), layout == 3 ? 0 : natural(&u));
    }
}

/* h[inter] as it goes into down, and its natural scale: what it may be thrown by where the operator's
 * tolerance leaves open which way it is rounded. Twice, since those of one group move together. */
static void round_inner(const struct kc_case *c, double *h, double *scale)
{
    size_t n = (size_t)c->a.attr[D0_ATTR_INTER].i;
    double ulp = kc_op_of(c->op)->tolerance * 0x1p-23;
    double *off = malloc(3 * n * sizeof *off);
    if (!off)
        abort();
    for (size_t i = 0; i < n; i++) {
        h[i] = (double)(float)h[i]; /* what overflows is an infinity before it is rounded */
        off[i] = ulp * scale[i];
    }
    kc_round(c->a.attr[D0_ATTR_X_FORMAT].i, c->a.attr[D0_ATTR_H_SCALE].f, h, n, off, off + n, off + 2 * n);
    for (size_t i = 0; i < n; i++) {
        h[i] = off[n + i];
        scale[i] = fmax(fabs(h[i]), 2 * off[2 * n + i] / ulp);
    }
    free(off);
}

/* One slot of one token: added to total[d]. */
static void judge_slot(const struct kc_case *c, size_t t, int32_t id, double weight, double *x, double *h,
                       double *scale, struct sum *total)
{
    size_t d = (size_t)c->a.k, n = (size_t)c->a.attr[D0_ATTR_INTER].i;
    bool inside = c->a.attr[D0_ATTR_INPUT_WEIGHTED].i != 0;
    for (size_t k = 0; k < d; k++)
        x[k] = inside ? (double)(float)(weight * kc_at(c, 0, t * d + k)) : kc_at(c, 0, t * d + k);
    double by = inside ? 1 : weight;
    int64_t format = c->a.attr[D0_ATTR_X_FORMAT].i;
    if (id >= c->a.in_dims[3][0]) {
        for (size_t k = 0; k < d; k++) {
            total[k].value += by * x[k];
            total[k].squares += by * x[k] * (by * x[k]);
        }
        return;
    }
    if (format)
        kc_round(format, c->a.attr[D0_ATTR_X_SCALE].f, x, d, NULL, x, NULL);
    inner_values(c, (size_t)id, x, h, scale);
    if (format)
        round_inner(c, h, scale);
    for (size_t k = 0; k < d; k++) {
        struct sum s = row_times(c, 3, 8, (size_t)id, k, d, n, h, scale);
        total[k].value += by * s.value;
        total[k].squares += by * by * s.squares;
    }
}

void kc_judge_EXPERTS(struct kc_case *c)
{
    size_t d = (size_t)c->a.k, n = (size_t)c->a.attr[D0_ATTR_INTER].i, slots = (size_t)c->a.in_dims[1][1];
    int64_t known = c->a.in_dims[3][0] + c->a.attr[D0_ATTR_ZERO].i;
    double *x = arena_alloc_n(c->arena, d + 2 * n, sizeof *x);
    struct sum *total = arena_alloc_n(c->arena, d, sizeof *total);
    if (!x || !total)
        abort();
    kc_judge_begin(c);
    for (size_t t = 0; t < (size_t)c->a.n_rows; t++) {
        const int32_t *ids = (const int32_t *)c->in[1].data + t * slots;
        bool good = true;
        memset(total, 0, d * sizeof *total);
        for (size_t k = 0; k < slots; k++)
            good = good && ids[k] >= 0 && ids[k] < known;
        for (size_t k = 0; k < slots && good; k++)
            judge_slot(c, t, ids[k], kc_at(c, 2, t * slots + k), x, x + d, x + d + n, total);
        for (size_t k = 0; k < d; k++) {
            c->want[0][t * d + k] = good ? total[k].value : (double)NAN;
            c->scale[0][t * d + k] = fmax(SCALE_FLOOR, natural(&total[k]));
        }
    }
}
