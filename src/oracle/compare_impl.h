/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to oracle: what both comparisons share: sums over rows, limits, and the verdict.
 */
#ifndef ORACLE_COMPARE_IMPL_H
#define ORACLE_COMPARE_IMPL_H

#include "oracle/oracle.h"
#include "oracle/trace_file.h"

struct compare_sums {
    uint64_t n, different_bits, not_finite, reference_not_finite, far;
    double aa, bb, ab, dd, b, ulp;
    double max_abs, largest; /* |a - b|, |b| */
    double worst_row;
    uint64_t worst_row_at;
    double kl, max_kl; /* logits */
    uint64_t rows, top1, top_k;
    uint64_t excluded; /* rows that are not among `rows`: only their bits were looked at */
};
enum compare_kind {
    COMPARE_VALUES,  /* float32 */
    COMPARE_LOGITS,  /* float32, with KL and agreement of the best tokens */
    COMPARE_CHOICES, /* int32, as sets: -1 is none */
};
/* a: measured, b: reference, [n, width]; first: number of the first row. excluded: by row of the trace, 1
 * where it is not judged; NULL: all are. */
void compare_rows(struct compare_sums *s, enum compare_kind kind, const void *a, const void *b,
                  uint64_t first, uint64_t n, uint64_t width, const uint8_t *excluded);
/* Weights of chosen experts [n, width], each row into the ascending order of its ids, which are sorted, too:
 * in which slot an expert stands says nothing. */
void compare_order(int32_t *ids, float *weights, uint64_t n, uint64_t width);
/* Relative L2 of one row; of choices the share that differs. */
double compare_row_error(enum compare_kind kind, const void *a, const void *b, uint64_t width);

struct compare_limits {
    double row;   /* relative L2 of a row */
    double logit; /* |difference|, to be multiplied by max(1, largest |logit|) */
};
/* docs/numerics.md: 16 bits anywhere but in the weights are coarse. */
struct compare_limits compare_limits_of(bool coarse, uint32_t activation_bits);
bool compare_coarse(const struct trace *t);
uint32_t compare_activation_bits(const struct trace *t); /* of the coarsest rounding in it; 0: none told */
/* Of two numbers of bits the smaller; 0 is none. */
static inline uint32_t compare_coarser(uint32_t a, uint32_t b)
{
    return a == 0 || (b && b < a) ? b : a;
}
/* Judges one probe. Its reason lies in the arena; ERR_NOMEM. */
int compare_judge(struct compare_probe *p, const struct compare_sums *s, const struct compare_limits *l,
                  enum compare_kind kind, struct arena *arena, struct compare_result *out, struct err *e);
/* Counts, first_wrong and last_right. */
void compare_count(struct compare_result *out);
bool compare_of_day0(const struct trace *t);

#endif
