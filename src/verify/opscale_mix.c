/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the natural scales of sums of sums: experts, mixed residuals. What lies between has an error of its
 * own, which the outer sum takes in.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"
#include "verify/opcase.h"

/* ---- experts ---- */

struct sum {
    double value, squares; /* of terms; scales of terms, squared */
};

static double natural(const struct sum *s)
{
    return opscale_sum(s->value, s->squares);
}

struct experts {
    const struct opcase *c;
    float *w[9]; /* widened inputs 3 to 8 */
    int64_t d, inter, layout;
    bool turned, pair;
    double *x, *h, *scale;                  /* [d], [inter], [inter] */
    const struct tensor_rounding *rounding; /* of what goes into a product; NULL: none */
};

/* Row j of n of matrix e of input i times x[k], plus bias; errors[k] of x, or NULL: |x| */
static struct sum row_times(const struct experts *m, uint32_t i, uint32_t bias, int64_t e, int64_t j,
                            int64_t n, int64_t k, const double *x, const double *errors)
{
    struct sum s = {0, 0};
    const float *w = m->w[i] + (m->turned ? e * k * n + j : (e * n + j) * k);
    for (int64_t l = 0; l < k; l++) {
        double v = (double)w[m->turned ? l * n : l], by = v * (errors ? errors[l] : x[l]);
        s.value += v * x[l];
        s.squares += by * by;
    }
    if (m->w[bias]) {
        double b = (double)m->w[bias][e * n + j];
        s.value += b;
        s.squares += b * b;
    }
    return s;
}

/* h[inter] of expert e for x[d], and the natural scale of each */
static void inner_values(struct experts *m, int64_t e)
{
    int64_t n = m->inter, d = m->d;
    bool fused = m->layout == 1 || m->layout == 2;
    for (int64_t j = 0; j < n; j++) {
        struct sum g, u = {1, 0};
        if (fused) {
            g = row_times(m, 4, 6, e, m->layout == 1 ? j : 2 * j, 2 * n, d, m->x, NULL);
            u = row_times(m, 4, 6, e, m->layout == 1 ? n + j : 2 * j + 1, 2 * n, d, m->x, NULL);
        } else if (m->pair) {
            g = row_times(m, 4, 6, e, j, n, d, m->x, NULL);
            u = row_times(m, 5, 7, e, j, n, d, m->x, NULL);
        } else {
            g = row_times(m, 5, 7, e, j, n, d, m->x, NULL);
        }
        m->h[j] = opact_between(&m->c->shape, m->pair, g.value, u.value).value;
        m->scale[j] = opact_reach(&m->c->shape, m->pair, g.value, u.value, natural(&g), natural(&u));
    }
}

static void round_x(struct experts *m)
{
    float given = (float)opshape_real(&m->c->shape, D0_ATTR_X_SCALE);
    int64_t group = m->rounding->group ? m->rounding->group : m->d;
    for (int64_t at = 0; at < m->d; at += group) {
        float top = 0;
        int64_t end = at + group < m->d ? at + group : m->d;
        for (int64_t k = at; k < end; k++)
            top = fmaxf(top, fabsf((float)m->x[k]));
        float scale = tensor_rounding_scale(m->rounding, top, given);
        for (int64_t k = at; k < end; k++)
            m->x[k] = (double)tensor_rounding_value(m->rounding, (float)m->x[k], scale);
    }
}

/* h as it goes into down, and how far it may be thrown where the operator's tolerance leaves open which way
 * it is rounded: under the scale of its run or those of its ends, itself or its ends. Twice, since those of
 * one run move together. */
static void round_h(struct experts *m)
{
    float given = (float)opshape_real(&m->c->shape, D0_ATTR_H_SCALE);
    double ulp = op_find(D0_OP_EXPERTS)->tolerance_ulp * 0x1p-23;
    int64_t n = m->inter, group = m->rounding->group ? m->rounding->group : n;
    for (int64_t at = 0; at < n; at += group) {
        int64_t end = at + group < n ? at + group : n;
        double top[3] = {0, 0, 0};
        for (int64_t k = at; k < end; k++)
            for (int i = 0; i < 3; i++)
                top[i] = fmax(top[i], fabs(m->h[k]) + (i - 1) * ulp * m->scale[k]);
        for (int64_t k = at; k < end; k++) {
            double off = ulp * m->scale[k], far = 0, own;
            own = (double)tensor_rounding_value(m->rounding, (float)m->h[k],
                                                tensor_rounding_scale(m->rounding, (float)top[1], given));
            for (int i = 0; i < 9; i++) {
                float scale = tensor_rounding_scale(m->rounding, (float)top[i / 3], given);
                float v = tensor_rounding_value(m->rounding, (float)(m->h[k] + (i % 3 - 1) * off), scale);
                far = fmax(far, fabs((double)v - own));
            }
            m->h[k] = own;
            m->scale[k] = fmax(fabs(own), 2 * far / ulp);
        }
    }
}

/* One slot of one token: added to total[d]. */
static void add_slot(struct experts *m, int64_t t, int64_t id, double weight, struct sum *total)
{
    if (id < 0) /* nobody */
        return;
    const float *x = opcase_rows(m->c, 0) + t * m->d;
    bool inside = opshape_int(&m->c->shape, D0_ATTR_INPUT_WEIGHTED) != 0;
    double by = inside ? 1 : weight;
    for (int64_t k = 0; k < m->d; k++)
        m->x[k] = inside ? (double)(float)(weight * (double)x[k]) : (double)x[k];
    bool known = id < opcase_size(m->c, 3, 0);
    if (known && m->rounding)
        round_x(m);
    if (known)
        inner_values(m, id);
    if (known && m->rounding)
        round_h(m);
    for (int64_t k = 0; k < m->d; k++) {
        struct sum s = {m->x[k], m->x[k] * m->x[k]};
        if (known)
            s = row_times(m, 3, 8, id, k, m->d, m->inter, m->h, m->scale);
        total[k].value += by * s.value;
        total[k].squares += by * by * s.squares;
    }
}

static bool widen_experts(struct experts *m)
{
    for (uint32_t i = 3; i < 9; i++) {
        m->w[i] = opcase_widened(m->c, i);
        if (!m->w[i] && m->c->in[i] != D0_NO_VALUE)
            return false;
    }
    return true;
}

bool opscale_experts(const struct opcase *c, struct opscale *s)
{
    struct experts m = {.c = c,
                        .d = opcase_size(c, 0, 1),
                        .inter = opshape_int(&c->shape, D0_ATTR_INTER),
                        .layout = opshape_int(&c->shape, D0_ATTR_LAYOUT),
                        .turned = opshape_int(&c->shape, D0_ATTR_TRANSPOSED) != 0,
                        .rounding = tensor_rounding(opshape_int(&c->shape, D0_ATTR_X_FORMAT))};
    int64_t slots = opcase_size(c, 1, 1);
    m.pair = m.layout != 3;
    m.x = malloc((size_t)(m.d + 2 * m.inter) * sizeof *m.x);
    struct sum *total = malloc((size_t)m.d * sizeof *total);
    bool ok = widen_experts(&m) && m.x && total;
    for (int64_t t = 0; ok && t < c->dims[0]; t++) {
        m.h = m.x + m.d;
        m.scale = m.h + m.inter;
        memset(total, 0, (size_t)m.d * sizeof *total);
        for (int64_t k = 0; k < slots; k++)
            add_slot(&m, t, opcase_ints(c, 1)[t * slots + k], (double)opcase_rows(c, 2)[t * slots + k],
                     total);
        for (int64_t k = 0; k < m.d; k++)
            s->out[0][t * m.d + k] = natural(&total[k]);
    }
    for (uint32_t i = 3; i < 9; i++)
        free(m.w[i]);
    free(m.x);
    free(total);
    return ok;
}

/* ---- mix_residual ---- */

/* The logit of one block's row, and its natural scale. */
static double mix_logit(const struct opcase *c, const float *x, const float *norm, const float *proj,
                        double *size)
{
    int64_t k = opcase_size(c, 0, 1);
    double squares = 0, dot = 0, terms = 0;
    for (int64_t j = 0; j < k; j++)
        squares += (double)x[j] * (double)x[j];
    double rms = sqrt(squares / (double)k + opshape_real(&c->shape, D0_ATTR_EPS));
    for (int64_t j = 0; j < k; j++) {
        double term = (double)x[j] / rms * (double)norm[j] * (double)proj[j];
        dot += term;
        terms += term * term;
    }
    *size = fmax(*size, opscale_sum(dot, terms));
    return dot;
}

/* Sum of |p v|, times 1 + the largest logit. */
static void mix_row(const struct opcase *c, int64_t t, const float *norm, const float *proj, double *scale)
{
    int64_t k = opcase_size(c, 0, 1);
    double logit[D0_MAX_NODE_INPUTS], top = -INFINITY, sum = 0, size = 0;
    for (uint32_t i = 0; i < c->shape.node.n_inputs; i = i ? i + 1 : 3) {
        logit[i] = mix_logit(c, opcase_rows(c, i) + t * k, norm, proj, &size);
        top = fmax(top, logit[i]);
    }
    for (uint32_t i = 0; i < c->shape.node.n_inputs; i = i ? i + 1 : 3)
        sum += exp(logit[i] - top);
    for (int64_t j = 0; j < k; j++) {
        double all = 0;
        for (uint32_t i = 0; i < c->shape.node.n_inputs; i = i ? i + 1 : 3)
            all += exp(logit[i] - top) / sum * fabs((double)opcase_rows(c, i)[t * k + j]);
        scale[j] = all * (1 + size);
    }
}

bool opscale_mix(const struct opcase *c, struct opscale *s)
{
    float *norm = opcase_widened(c, 1), *proj = opcase_widened(c, 2);
    bool ok = norm && proj;
    for (int64_t t = 0; ok && t < c->dims[0]; t++)
        mix_row(c, t, norm, proj, s->out[0] + t * opcase_size(c, 0, 1));
    free(norm);
    free(proj);
    return ok;
}

/* ---- hyper_in, hyper_head, hyper_out ---- */

struct streams {
    const struct opcase *c;
    float *fn, *base, *factors;
    int64_t n, h;
    double *unsure; /* [n] */
};

/* Row t: the argument of sigmoid or softmax of product i, with factor `part`; *size: its natural scale. */
static double argument(const struct streams *m, int64_t t, int64_t i, int64_t part, double *size)
{
    int64_t k = m->n * m->h;
    const float *x = opcase_rows(m->c, 0) + t * k, *w = m->fn + i * k;
    double squares = 0, dot = 0, terms = 0;
    for (int64_t j = 0; j < k; j++) {
        double term = (double)x[j] * (double)w[j];
        squares += (double)x[j] * (double)x[j];
        dot += term;
        terms += term * term;
    }
    double by =
               (double)m->factors[part] / sqrt(squares / (double)k + opshape_real(&m->c->shape, D0_ATTR_EPS)),
           base = (double)m->base[i];
    *size = fmax(fabs(base), fabs(by) * opscale_sum(dot, terms));
    return dot * by + base;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The streams of a row in one, each weight larger by what an error of its argument moves it. */
static void collapse(struct streams *m, int64_t t, const float *ref, double *scale)
{
    const float *x = opcase_rows(m->c, 0) + t * m->n * m->h;
    for (int64_t j = 0; j < m->n; j++) {
        double size, s = sigmoid(argument(m, t, j, 0, &size));
        m->unsure[j] = s + opshape_real(&m->c->shape, D0_ATTR_RENORM_EPS) + s * (1 - s) * size;
    }
    for (int64_t i = 0; i < m->h; i++) {
        double squares = 0;
        for (int64_t j = 0; j < m->n; j++) {
            double term = m->unsure[j] * (double)x[j * m->h + i];
            squares += term * term;
        }
        scale[i] = opscale_sum((double)ref[i], squares);
    }
}

/* post and C: the value, times 1 + the size of the arguments. */
static void mixing(struct streams *m, int64_t t, const float *ref, double *scale)
{
    double size, largest = 0;
    for (int64_t i = 0; i < m->n; i++) {
        double s = sigmoid(argument(m, t, m->n + i, 1, &size));
        scale[i] = 2 * s + 2 * s * (1 - s) * size;
    }
    for (int64_t i = 0; i < m->n * m->n; i++) {
        argument(m, t, 2 * m->n + i, 2, &size);
        largest = fmax(largest, size);
    }
    for (int64_t i = m->n; i < m->n * (m->n + 1); i++)
        scale[i] = fabs((double)ref[i]) * (1 + 2 * largest);
}

bool opscale_hyper(const struct opcase *c, const struct opresult *ref, struct opscale *s)
{
    struct streams m = {.c = c,
                        .fn = opcase_widened(c, 1),
                        .base = opcase_widened(c, 2),
                        .factors = opcase_widened(c, 3),
                        .n = opshape_int(&c->shape, D0_ATTR_STREAMS)};
    int64_t width = m.n * (m.n + 1);
    m.h = opcase_size(c, 0, 1) / m.n;
    m.unsure = malloc((size_t)m.n * sizeof *m.unsure);
    bool ok = m.fn && m.base && m.factors && m.unsure;
    for (int64_t t = 0; ok && t < c->dims[0]; t++) {
        collapse(&m, t, ref->out[0] + t * m.h, s->out[0] + t * m.h);
        if (c->n_outputs == 2)
            mixing(&m, t, ref->out[1] + t * width, s->out[1] + t * width);
    }
    free(m.fn);
    free(m.base);
    free(m.factors);
    free(m.unsure);
    return ok;
}

bool opscale_hyper_out(const struct opcase *c, const struct opresult *ref, struct opscale *s)
{
    const float *y = opcase_rows(c, 0), *x = opcase_rows(c, 1), *mixed = opcase_rows(c, 2);
    int64_t n = opshape_int(&c->shape, D0_ATTR_STREAMS), h = opcase_size(c, 0, 1);
    for (int64_t i = 0; i < (int64_t)c->n_out[0]; i++) {
        int64_t t = i / (n * h), stream = i / h % n, at = i % h;
        const float *m = mixed + t * n * (n + 1);
        double term = (double)m[stream] * (double)y[t * h + at], squares = term * term;
        for (int64_t j = 0; j < n; j++) {
            term = (double)m[n + j * n + stream] * (double)x[(t * n + j) * h + at];
            squares += term * term;
        }
        s->out[0][i] = opscale_sum((double)ref->out[0][i], squares);
    }
    return true;
}
