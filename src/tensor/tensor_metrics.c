/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics that compare a measured array with a reference, all sums in float64. They report; what is good
 * enough is decided elsewhere.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"

double metrics_ulp(float a, float b)
{
    int32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    int64_t i = x < 0 ? INT64_C(-2147483648) - x : x, j = y < 0 ? INT64_C(-2147483648) - y : y;
    return (double)(i > j ? i - j : j - i);
}

/* NaN with NaN and equal infinities agree in kind. */
static bool same_kind(float a, float b)
{
    return (isnan(a) && isnan(b)) || (isinf(a) && isinf(b) && a == b);
}

void metrics_compare(const float *a, const float *b, size_t n, struct metrics *out)
{
    struct metrics m = {.n = n};
    double aa = 0, bb = 0, ab = 0, dd = 0, sum = 0;
    size_t finite = 0;
    for (size_t i = 0; i < n; i++) {
        m.n_different_bits += memcmp(&a[i], &b[i], sizeof *a) != 0;
        if (!isfinite(a[i]) || !isfinite(b[i])) {
            m.n_nonfinite += !same_kind(a[i], b[i]);
            continue;
        }
        double x = (double)a[i], y = (double)b[i], d = fabs(x - y);
        if (d > m.max_abs) {
            m.max_abs = d;
            m.max_abs_at = i;
        }
        double ulp = metrics_ulp(a[i], b[i]);
        m.max_ulp = ulp > m.max_ulp ? ulp : m.max_ulp;
        aa += x * x;
        bb += y * y;
        ab += x * y;
        dd += d * d;
        sum += y;
        finite++;
    }
    m.relative_l2 = dd == 0 ? 0 : bb > 0 ? sqrt(dd / bb) : INFINITY;
    m.cosine = aa == 0 && bb == 0 ? 1 : aa == 0 || bb == 0 ? 0 : ab / sqrt(aa * bb);
    double variance = finite ? bb / (double)finite - (sum / (double)finite) * (sum / (double)finite) : 0;
    m.nmse = dd == 0 ? 0 : variance > 0 ? dd / (double)finite / variance : INFINITY;
    *out = m;
}

/* log(sum of exp(x - *largest)): apart from the largest, beside which it would lose digits. */
static double log_sum_exp(const float *x, size_t n, double *largest)
{
    double top = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        top = (double)x[i] > top ? (double)x[i] : top;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    *largest = top;
    return log(sum);
}

double metrics_log_softmax(const float *x, size_t n, size_t at)
{
    double top, rest = log_sum_exp(x, n, &top);
    return (double)x[at] - top - rest;
}

double metrics_kl(const float *a, const float *b, size_t n)
{
    double top_a, top_b, kl = 0;
    double za = log_sum_exp(a, n, &top_a), zb = log_sum_exp(b, n, &top_b);
    za += top_a;
    zb += top_b;
    for (size_t i = 0; i < n; i++) {
        double lb = (double)b[i] - zb, la = (double)a[i] - za;
        double p = exp(lb);
        if (p > 0)
            kl += p * (lb - la);
    }
    return kl < 0 ? 0 : kl; /* rounding may leave -1e-17 */
}

/* Is index i among the k largest of x (ties to the lower index)? */
static bool in_top_k(const float *x, size_t n, size_t i, unsigned k)
{
    unsigned above = 0;
    for (size_t j = 0; j < n && above < k; j++)
        above += x[j] > x[i] || (x[j] == x[i] && j < i);
    return above < k;
}

unsigned metrics_top_k_agreement(const float *a, const float *b, size_t n, unsigned k)
{
    unsigned common = 0;
    for (size_t i = 0; i < n; i++)
        if (in_top_k(b, n, i, k))
            common += in_top_k(a, n, i, k);
    return common;
}

size_t argmax_f32(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best] || (isnan(x[best]) && !isnan(x[i])))
            best = i;
    return best;
}

void metrics_write_json(const struct metrics *m, struct json_writer *w)
{
    json_begin_object(w);
    json_put_u64(w, "n", m->n);
    json_put_u64(w, "nonfinite", m->n_nonfinite);
    json_put_u64(w, "different_bits", m->n_different_bits);
    json_put_f64(w, "max_abs", m->max_abs);
    json_put_u64(w, "max_abs_at", m->max_abs_at);
    json_put_f64(w, "relative_l2", m->relative_l2);
    json_put_f64(w, "cosine", m->cosine);
    json_put_f64(w, "nmse", m->nmse);
    json_put_f64(w, "max_ulp", m->max_ulp);
    json_end_object(w);
}
