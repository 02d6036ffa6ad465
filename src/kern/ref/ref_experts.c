/* SPDX-License-Identifier: Apache-2.0
 *
 * Definitions of the operators of a mixture of experts: route and experts. Scores are float32 numbers, since
 * the choice hangs on them; all arithmetic on them is float64, rounded once. Expert ids are not trusted.
 */
#include <math.h>

#include "kern/ref/ref.h"
#include "kern/ref/ref_activation.h"

/* ---- route --------------------------------------------------------------------------------------------- */

/* Of two scores the one to choose; NaN counts as the largest, so that it is not lost. */
static bool better(float a, float b)
{
    return isnan(a) ? !isnan(b) : a > b;
}

static float largest(const float *x, size_t n)
{
    float top = x[0];
    for (size_t i = 1; i < n; i++)
        top = better(x[i], top) ? x[i] : top;
    return top;
}

static void scores_of(const float *logits, size_t n, int64_t score, float *out)
{
    double top = score == 0 ? (double)largest(logits, n) : 0, sum = 0;
    for (size_t i = 0; i < n && score == 0; i++)
        sum += exp((double)logits[i] - top);
    for (size_t i = 0; i < n; i++) {
        double z = (double)logits[i];
        if (score == 0)
            out[i] = (float)(exp(z - top) / sum);
        else if (score == 1)
            out[i] = (float)(1.0 / (1.0 + exp(-z)));
        else if (score == 2)
            out[i] = (float)sqrt(z > 0 ? z + log1p(exp(-z)) : log1p(exp(z)));
        else
            out[i] = logits[i];
    }
}

static float group_value(const float *s, size_t n, int64_t how)
{
    float first = largest(s, n), second = 0;
    bool passed = false, have = false;
    for (size_t i = 0; i < n && how == 0; i++) {
        bool top = !passed && !better(first, s[i]);
        passed |= top;
        if (!top && (!have || better(s[i], second))) {
            second = s[i];
            have = true;
        }
    }
    return have ? first + second : first;
}

/* The `wanted` best of n by s, those with taken[i] apart; taken is set. Ties go to the lower index. */
static void choose(const float *s, size_t n, size_t wanted, unsigned char *taken, int32_t *chosen)
{
    for (size_t k = 0; k < wanted; k++) {
        size_t best = n;
        for (size_t i = 0; i < n; i++)
            if (!taken[i] && (best == n || better(s[i], s[best])))
                best = i;
        if (best < n)
            taken[best] = 1;
        chosen[k] = best < n ? (int32_t)best : -1;
    }
}

/* Groups that stay are open, all experts of the others are taken. */
static void close_groups(const struct kern_args *a, const float *s, size_t n, unsigned char *taken,
                         float *value, int32_t *kept)
{
    size_t groups = (size_t)a->attr[D0_ATTR_GROUPS].i, stay = (size_t)a->attr[D0_ATTR_GROUPS_KEPT].i;
    if (groups < 2 || stay == 0 || stay >= groups)
        return;
    size_t each = n / groups;
    for (size_t g = 0; g < groups; g++)
        value[g] = group_value(s + g * each, each, a->attr[D0_ATTR_GROUP_SCORE].i);
    memset(taken, 0, groups);
    choose(value, groups, stay, taken, kept);
    memset(taken, 1, n);
    for (size_t i = 0; i < stay; i++)
        memset(taken + (size_t)kept[i] * each, 0, each);
}

/* Row of the table for a token's id. false: there is none, or it names no expert. */
static bool look_up(const struct kern_args *a, size_t t, size_t topk, size_t n, int32_t *chosen)
{
    int64_t id = ((const int32_t *)a->in[3])[t], rows = a->in_dims[2][0];
    bool good = id >= 0 && id < rows;
    for (size_t k = 0; k < topk; k++) {
        int64_t e = -1;
        if (good && a->in_dtype[2] == D0_I64)
            e = ((const int64_t *)a->in[2])[(size_t)id * topk + k];
        else if (good)
            e = ((const int32_t *)a->in[2])[(size_t)id * topk + k];
        chosen[k] = e >= 0 && e < (int64_t)n ? (int32_t)e : -1;
        good = good && chosen[k] >= 0;
    }
    return good;
}

/* Weights of the chosen from their scores (score 3: logits, turned into a softmax over the chosen). */
static void weigh(const struct kern_args *a, const float *s, const int32_t *chosen, size_t topk,
                  float *weights)
{
    bool logits = a->attr[D0_ATTR_SCORE].i == 3;
    double top = -INFINITY, sum = 0, scale = a->attr[D0_ATTR_SCALE].f, over = 1;
    for (size_t k = 0; k < topk && logits; k++)
        top = (double)s[chosen[k]] > top ? (double)s[chosen[k]] : top;
    for (size_t k = 0; k < topk; k++)
        sum += logits ? exp((double)s[chosen[k]] - top) : (double)s[chosen[k]];
    if (logits)
        over = sum;
    if (a->attr[D0_ATTR_RENORMALIZE].i)
        over = logits ? sum * (1 + a->attr[D0_ATTR_RENORM_EPS].f) : sum + a->attr[D0_ATTR_RENORM_EPS].f;
    for (size_t k = 0; k < topk; k++) {
        double w = (logits ? exp((double)s[chosen[k]] - top) : (double)s[chosen[k]]) / over;
        w *= scale != 0 ? scale : 1;
        if (a->in[4])
            w *= (double)ref_load(a->in[4], a->in_dtype[4], (size_t)chosen[k]);
        weights[k] = (float)w;
    }
}

size_t ref_route_scratch(const struct kern_args *a)
{
    return (size_t)a->k * (3 * sizeof(float) + sizeof(int32_t) + 1);
}

void ref_route(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    size_t n = (size_t)a->k, topk = (size_t)a->n;
    float *s = (float *)((unsigned char *)a->scratch + (size_t)thread * a->scratch_bytes); /* [n] */
    float *choice = s + n, *value = choice + n;                                            /* [n], [n] */
    int32_t *kept = (int32_t *)(value + n);                                                /* [n] */
    unsigned char *taken = (unsigned char *)(kept + n);                                    /* [n] */
    for (size_t t = first; t < last; t++) {
        int32_t *chosen = (int32_t *)a->out[0] + t * topk; /* [T, topk] */
        float *weights = (float *)a->out[1] + t * topk;    /* [T, topk] */
        bool good = true;
        scores_of((const float *)a->in[0] + t * n, n, a->attr[D0_ATTR_SCORE].i, s);
        if (a->in[2]) {
            good = look_up(a, t, topk, n, chosen);
        } else {
            for (size_t i = 0; i < n; i++)
                choice[i] = a->in[1] ? s[i] + ref_load(a->in[1], a->in_dtype[1], i) : s[i];
            memset(taken, 0, n);
            close_groups(a, choice, n, taken, value, kept);
            choose(choice, n, topk, taken, chosen);
            good = chosen[topk - 1] >= 0;
        }
        if (good)
            weigh(a, s, chosen, topk, weights);
        for (size_t k = 0; k < topk && !good; k++)
            weights[k] = NAN;
    }
}

/* ---- experts ------------------------------------------------------------------------------------------- */

struct expert {
    size_t d, inter;
    int64_t layout, e;
    bool transposed;
    double *total, *sum; /* [d]: of all slots; [the longest row]: of one product */
    float *row, *x, *h;  /* a row of weights; [d], [inter]: what goes in, what is between */
    float *products;     /* [2 * inter] or [d] */
    const struct tensor_rounding *rounding; /* of x and h; NULL: none */
};

/* out[j] = float32 of w[j] . x, and its bias, for rows j of matrix e of input i, which is [E, n, k] */
static void product(const struct kern_args *a, const struct expert *m, unsigned i, unsigned bias, size_t n,
                    size_t k, const float *x, float *out)
{
    size_t e = (size_t)m->e;
    for (size_t j = 0; j < n; j++)
        m->sum[j] = 0;
    for (size_t j = 0; j < n && !m->transposed; j++) {
        ref_row(a, i, e * n + j, k, m->row);
        for (size_t c = 0; c < k; c++)
            m->sum[j] += (double)m->row[c] * (double)x[c];
    }
    for (size_t c = 0; c < k && m->transposed; c++) {
        ref_row(a, i, e * k + c, n, m->row);
        for (size_t j = 0; j < n; j++)
            m->sum[j] += (double)m->row[j] * (double)x[c];
    }
    for (size_t j = 0; j < n; j++) {
        out[j] = (float)m->sum[j];
        if (a->in[bias])
            out[j] += ref_load(a->in[bias], a->in_dtype[bias], e * n + j);
    }
}

/* h = glu(gate x, up x) */
static void inner(const struct kern_args *a, const struct expert *m)
{
    size_t n = m->inter;
    float *p = m->products;
    int64_t function = a->attr[D0_ATTR_FUNCTION].i;
    double alpha = a->attr[D0_ATTR_ALPHA].f, limit = a->attr[D0_ATTR_LIMIT].f;
    if (m->layout == 1 || m->layout == 2) {
        product(a, m, 4, 6, 2 * n, m->d, m->x, p);
    } else {
        if (m->layout == 0)
            product(a, m, 4, 6, n, m->d, m->x, p);
        product(a, m, 5, 7, n, m->d, m->x, p + n);
    }
    for (size_t j = 0; j < n; j++) {
        double gate = (double)p[m->layout == 2 ? 2 * j : j],
               up = (double)p[m->layout == 2 ? 2 * j + 1 : n + j];
        m->h[j] =
            (float)(m->layout == 3 ? ref_activation(function, up, alpha, limit)
                                   : ref_glu_value(function, gate, up, alpha, limit, a->attr[D0_ATTR_BETA].f,
                                                   a->attr[D0_ATTR_LINEAR_BETA].f));
    }
}

static size_t longest(const struct kern_args *a)
{
    size_t d = (size_t)a->k, inter = 2 * (size_t)a->attr[D0_ATTR_INTER].i;
    return d > inter ? d : inter;
}

size_t ref_experts_scratch(const struct kern_args *a)
{
    return longest(a) * (2 * sizeof(double) + 4 * sizeof(float));
}

/* total[d] += weight * expert(x) */
static void add_slot(const struct kern_args *a, const struct expert *m, const float *x, float weight)
{
    bool inside = a->attr[D0_ATTR_INPUT_WEIGHTED].i != 0;
    if (m->e >= a->in_dims[3][0]) { /* an expert that is the identity */
        for (size_t c = 0; c < m->d; c++)
            m->total[c] += (double)weight * (double)x[c];
        return;
    }
    for (size_t c = 0; c < m->d; c++)
        m->x[c] = inside ? weight * x[c] : x[c];
    if (m->rounding)
        tensor_round_row(m->rounding, (float)a->attr[D0_ATTR_X_SCALE].f, m->x, m->d, m->x);
    inner(a, m);
    if (m->rounding)
        tensor_round_row(m->rounding, (float)a->attr[D0_ATTR_H_SCALE].f, m->h, m->inter, m->h);
    product(a, m, 3, 8, m->d, m->inter, m->h, m->products);
    for (size_t c = 0; c < m->d; c++)
        m->total[c] += (inside ? 1.0 : (double)weight) * (double)m->products[c];
}

void ref_experts(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    size_t d = (size_t)a->k, slots = (size_t)a->in_dims[1][1], wide = longest(a);
    double *total = (double *)((unsigned char *)a->scratch + (size_t)thread * a->scratch_bytes);
    float *row = (float *)(total + 2 * wide);
    struct expert m = {.d = d,
                       .inter = (size_t)a->attr[D0_ATTR_INTER].i,
                       .layout = a->attr[D0_ATTR_LAYOUT].i,
                       .transposed = a->attr[D0_ATTR_TRANSPOSED].i != 0,
                       .total = total,
                       .sum = total + wide,
                       .row = row,
                       .x = row + wide,
                       .h = row + 2 * wide,
                       .products = row + 3 * wide,
                       .rounding = tensor_rounding(a->attr[D0_ATTR_X_FORMAT].i)};
    for (size_t t = first; t < last; t++) {
        const int32_t *ids = (const int32_t *)a->in[1] + t * slots; /* [T, slots] */
        const float *weights = (const float *)a->in[2] + t * slots; /* [T, slots] */
        const float *x = (const float *)a->in[0] + t * d;           /* [T, d] */
        float *out = (float *)a->out[0] + t * d;                    /* [T, d] */
        bool good = true;
        for (size_t k = 0; k < slots; k++)
            good = good && ids[k] >= 0 && ids[k] < a->in_dims[3][0] + a->attr[D0_ATTR_ZERO].i;
        for (size_t c = 0; c < d; c++)
            total[c] = 0;
        for (size_t k = 0; k < slots && good; k++) {
            m.e = ids[k];
            add_slot(a, &m, x, weights[k]);
        }
        for (size_t c = 0; c < d; c++)
            out[c] = good ? (float)total[c] : NAN;
    }
}
