/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the numbers of a comparison, summed in float64 as rows come, and the limits they are held against. A
 * row is judged by itself, so that one wrong row does not drown in a thousand right ones.
 */
#include <math.h>
#include <string.h>

#include "base/str.h"
#include "oracle/compare_impl.h"

#define LIMIT_F32   1e-4
#define LIMIT_16BIT 0x1p-6

static void add_row(struct compare_sums *s, const float *a, const float *b, uint64_t row, uint64_t width)
{
    double dd = 0, bb = 0;
    bool bad = false;
    for (uint64_t i = 0; i < width; i++) {
        s->different_bits += memcmp(&a[i], &b[i], sizeof *a) != 0;
        s->not_finite += !isfinite(a[i]);
        s->reference_not_finite += !isfinite(b[i]);
        if (!isfinite(a[i]) || !isfinite(b[i])) {
            bad = true;
            continue;
        }
        double x = (double)a[i], y = (double)b[i], d = x - y, ulp = metrics_ulp(a[i], b[i]);
        s->n++;
        s->aa += x * x;
        s->ab += x * y;
        s->b += y;
        s->ulp += ulp;
        s->far += ulp > COMPARE_ULP;
        s->max_abs = fmax(s->max_abs, fabs(d));
        s->largest = fmax(s->largest, fabs(y));
        dd += d * d;
        bb += y * y;
    }
    s->dd += dd;
    s->bb += bb;
    double error = bad ? INFINITY : dd == 0 ? 0 : bb > 0 ? sqrt(dd / bb) : INFINITY;
    if (error > s->worst_row) {
        s->worst_row = error;
        s->worst_row_at = row;
    }
    s->rows++;
}

void compare_rows(struct compare_sums *s, const float *a, const float *b, uint64_t first, uint64_t n,
                  uint64_t width)
{
    for (uint64_t i = 0; i < n; i++)
        add_row(s, a + i * width, b + i * width, first + i, width);
}

void compare_logits(struct compare_sums *s, const float *a, const float *b, uint64_t first, uint64_t n,
                    uint64_t width)
{
    for (uint64_t i = 0; i < n; i++) {
        const float *x = a + i * width, *y = b + i * width;
        uint64_t bad = s->not_finite + s->reference_not_finite;
        add_row(s, x, y, first + i, width);
        if (s->not_finite + s->reference_not_finite > bad)
            continue; /* no distribution */
        double kl = metrics_kl(x, y, width);
        s->kl += kl;
        s->max_kl = fmax(s->max_kl, kl);
        s->top1 += argmax_f32(x, width) == argmax_f32(y, width);
        s->top_k += metrics_top_k_agreement(x, y, width, COMPARE_TOP_K);
    }
}

struct compare_limits compare_limits_of(bool coarse, uint32_t activation_bits)
{
    double limit = fmax(coarse ? LIMIT_16BIT : LIMIT_F32, spec_activation_limit(activation_bits));
    return (struct compare_limits){.row = limit, .logit = limit};
}

bool compare_coarse(const struct trace *t)
{
    const char *kv = trace_meta(t, "kv_dtype");
    return strcmp(t->precision, "float32") != 0 || (kv && strcmp(kv, "float32") != 0);
}

uint32_t compare_activation_bits(const struct trace *t)
{
    const char *text = trace_meta(t, "activation_bits");
    int64_t bits = 0;
    return text && str_to_i64(text, &bits) && bits > 0 && bits <= 32 ? (uint32_t)bits : 0;
}

bool compare_of_day0(const struct trace *t)
{
    return str_starts(t->producer, "day0 ");
}

void compare_judge(struct compare_probe *p, const struct compare_sums *s, const struct compare_limits *l,
                   bool logits, struct compare_result *out)
{
    const double n = (double)s->n;
    p->different_bits = s->different_bits;
    p->not_finite = s->not_finite;
    p->reference_not_finite = s->reference_not_finite;
    p->max_abs = s->max_abs;
    p->worst_row = s->worst_row;
    p->worst_row_at = s->worst_row_at;
    p->relative_l2 = s->dd == 0 ? 0 : s->bb > 0 ? sqrt(s->dd / s->bb) : INFINITY;
    p->cosine = s->aa == 0 && s->bb == 0 ? 1 : s->aa == 0 || s->bb == 0 ? 0 : s->ab / sqrt(s->aa * s->bb);
    double variance = s->n ? s->bb / n - s->b / n * (s->b / n) : 0;
    p->nmse = s->dd == 0 ? 0 : variance > 0 ? s->dd / n / variance : INFINITY;
    p->mean_ulp = s->n ? s->ulp / n : 0;
    p->ulp_share = s->n ? (double)s->far / n : 0;
    p->limit = logits ? l->logit * fmax(1, s->largest) : l->row;
    bool wrong =
        s->not_finite + s->reference_not_finite > 0 || (logits ? p->max_abs : p->worst_row) > p->limit;
    p->state = wrong ? COMPARE_WRONG : COMPARE_RIGHT;
    if (logits && s->rows) {
        const double rows = (double)s->rows, k = p->width < COMPARE_TOP_K ? (double)p->width : COMPARE_TOP_K;
        out->logits = true;
        out->mean_kl = s->kl / rows;
        out->max_kl = s->max_kl;
        out->top1_share = (double)s->top1 / rows;
        out->top_k_share = (double)s->top_k / rows / k;
    }
}

void compare_count(struct compare_result *out)
{
    out->identical = out->n_probes > 0;
    for (size_t i = 0; i < out->n_probes; i++) {
        const struct compare_probe *p = &out->probes[i];
        out->right += p->state == COMPARE_RIGHT;
        out->wrong += p->state == COMPARE_WRONG;
        out->not_judged += p->state == COMPARE_NOT_JUDGED;
        out->identical &= p->state == COMPARE_RIGHT && p->different_bits == 0;
        if (p->state == COMPARE_WRONG && !out->first_wrong)
            out->first_wrong = p;
        if (p->state == COMPARE_RIGHT && !out->first_wrong)
            out->last_right = p;
    }
}

const char *compare_state_name(enum compare_state s)
{
    static const char *const names[] = {"right", "wrong", "not judged"};
    return names[s];
}
