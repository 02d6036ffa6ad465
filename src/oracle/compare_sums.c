/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the numbers of a comparison, summed in float64 as rows come, and the limits they are held against. A
 * row is judged by itself, so that one wrong row does not drown in a thousand right ones. A row that hangs on
 * a near tie is counted and not judged; more than a few of them, and neither is the probe.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "oracle/compare_impl.h"

#define LIMIT_F32   1e-4
#define LIMIT_16BIT 0x1p-6
#define ORDERED     256
#define EXCLUDED_OF 50 /* one row of so many may be left out */

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

static void add_logits(struct compare_sums *s, const float *x, const float *y, uint64_t row, uint64_t width)
{
    uint64_t bad = s->not_finite + s->reference_not_finite;
    add_row(s, x, y, row, width);
    if (s->not_finite + s->reference_not_finite > bad)
        return; /* no distribution */
    double kl = metrics_kl(x, y, width);
    s->kl += kl;
    s->max_kl = fmax(s->max_kl, kl);
    s->top1 += argmax_f32(x, width) == argmax_f32(y, width);
    s->top_k += metrics_top_k_agreement(x, y, width, COMPARE_TOP_K);
}

static int by_id(const void *x, const void *y)
{
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return (a > b) - (a < b);
}

/* How many of the larger set are not in the other one. */
static uint64_t set_difference(const int32_t *a, const int32_t *b, uint64_t width)
{
    const size_t bytes = (size_t)width * sizeof *a;
    uint64_t lost = 0, more = 0;
    if (!memcmp(a, b, bytes))
        return 0;
    int32_t *x = malloc(2 * bytes), *y = x + width;
    if (!x)
        return width; /* not equal at least */
    memcpy(x, a, bytes);
    memcpy(y, b, bytes);
    qsort(x, (size_t)width, sizeof *x, by_id);
    qsort(y, (size_t)width, sizeof *y, by_id);
    for (uint64_t i = 0, k = 0; i < width || k < width;) {
        int order = i == width ? 1 : k == width ? -1 : by_id(&x[i], &y[k]);
        more += order < 0;
        lost += order > 0;
        i += order <= 0;
        k += order >= 0;
    }
    free(x);
    return lost > more ? lost : more;
}

static void add_choices(struct compare_sums *s, const int32_t *a, const int32_t *b, uint64_t row,
                        uint64_t width)
{
    const uint64_t differ = set_difference(a, b, width);
    const double share = (double)differ / (double)width;
    s->different_bits += differ;
    s->max_abs = fmax(s->max_abs, (double)differ);
    if (share > s->worst_row) {
        s->worst_row = share;
        s->worst_row_at = row;
    }
    s->rows++;
}

static void add_excluded(struct compare_sums *s, const void *a, const void *b, uint64_t width)
{
    const int32_t *x = a, *y = b; /* bits of either type */
    for (uint64_t i = 0; i < width; i++)
        s->different_bits += x[i] != y[i];
    s->excluded++;
}

void compare_rows(struct compare_sums *s, enum compare_kind kind, const void *a, const void *b,
                  uint64_t first, uint64_t n, uint64_t width, const uint8_t *excluded)
{
    for (uint64_t i = 0; i < n; i++) {
        const float *x = (const float *)a + i * width, *y = (const float *)b + i * width;
        if (excluded && excluded[first + i])
            add_excluded(s, x, y, width);
        else if (kind == COMPARE_CHOICES)
            add_choices(s, (const int32_t *)a + i * width, (const int32_t *)b + i * width, first + i, width);
        else
            (kind == COMPARE_LOGITS ? add_logits : add_row)(s, x, y, first + i, width);
    }
}

void compare_order(int32_t *ids, float *weights, uint64_t n, uint64_t width)
{
    if (width > ORDERED) /* no router chooses that many */
        return;
    for (uint64_t t = 0; t < n; t++, ids += width, weights += width)
        for (uint64_t i = 1; i < width; i++)
            for (uint64_t k = i; k > 0 && ids[k - 1] > ids[k]; k--) {
                int32_t id = ids[k];
                float weight = weights[k];
                ids[k] = ids[k - 1];
                weights[k] = weights[k - 1];
                ids[k - 1] = id;
                weights[k - 1] = weight;
            }
}

double compare_row_error(enum compare_kind kind, const void *a, const void *b, uint64_t width)
{
    struct compare_sums s = {0};
    compare_rows(&s, kind == COMPARE_CHOICES ? kind : COMPARE_VALUES, a, b, 0, 1, width, NULL);
    return s.worst_row;
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

int compare_judge(struct compare_probe *p, const struct compare_sums *s, const struct compare_limits *l,
                  enum compare_kind kind, struct arena *arena, struct compare_result *out, struct err *e)
{
    const double n = (double)s->n;
    const bool logits = kind == COMPARE_LOGITS;
    p->rows_excluded = s->excluded;
    p->different_bits = s->different_bits;
    p->not_finite = s->not_finite;
    p->reference_not_finite = s->reference_not_finite;
    p->max_abs = s->max_abs;
    /* a value alone that happens to cancel has no norm to speak of: it is measured by its column */
    p->worst_row = p->width == 1 && kind == COMPARE_VALUES && isfinite(s->worst_row) && s->bb > 0
                       ? s->max_abs / sqrt(s->bb / n)
                       : s->worst_row;
    p->worst_row_at = s->worst_row_at;
    p->relative_l2 = s->dd == 0 ? 0 : s->bb > 0 ? sqrt(s->dd / s->bb) : INFINITY;
    p->cosine = s->aa == 0 && s->bb == 0 ? 1 : s->aa == 0 || s->bb == 0 ? 0 : s->ab / sqrt(s->aa * s->bb);
    double variance = s->n ? s->bb / n - s->b / n * (s->b / n) : 0;
    p->nmse = s->dd == 0 ? 0 : variance > 0 ? s->dd / n / variance : INFINITY;
    p->mean_ulp = s->n ? s->ulp / n : 0;
    p->ulp_share = s->n ? (double)s->far / n : 0;
    p->limit = logits ? l->logit * fmax(1, s->largest) : kind == COMPARE_CHOICES ? 0 : l->row;
    bool wrong =
        s->not_finite + s->reference_not_finite > 0 || (logits ? p->max_abs : p->worst_row) > p->limit;
    /* what is wrong in a row that hangs on nothing is wrong, however many others do */
    const bool few = s->excluded * EXCLUDED_OF <= s->excluded + s->rows;
    p->state = wrong ? COMPARE_WRONG : few ? COMPARE_RIGHT : COMPARE_NOT_JUDGED;
    if (logits && s->rows) {
        const double rows = (double)s->rows, k = p->width < COMPARE_TOP_K ? (double)p->width : COMPARE_TOP_K;
        out->logits = true;
        out->mean_kl = s->kl / rows;
        out->max_kl = s->max_kl;
        out->top1_share = (double)s->top1 / rows;
        out->top_k_share = (double)s->top_k / rows / k;
    }
    if (p->state != COMPARE_NOT_JUDGED)
        return ERR_OK;
    p->why = arena_printf(arena, "%llu of %llu rows hang on a choice that was nearly a tie",
                          (unsigned long long)s->excluded, (unsigned long long)(s->excluded + s->rows));
    return p->why ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a comparison");
}

void compare_count(struct compare_result *out)
{
    out->identical = out->n_probes > 0;
    for (size_t i = 0; i < out->n_probes; i++) {
        const struct compare_probe *p = &out->probes[i];
        out->right += p->state == COMPARE_RIGHT;
        out->wrong += p->state == COMPARE_WRONG;
        out->not_judged += p->state == COMPARE_NOT_JUDGED;
        /* the bits of rows that are not judged were looked at, too */
        out->identical &= (p->state == COMPARE_RIGHT || p->rows_excluded > 0) && p->different_bits == 0;
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
