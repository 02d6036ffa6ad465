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
};
/* a: measured, b: reference, [n, width]; first: number of the first row. */
void compare_rows(struct compare_sums *s, const float *a, const float *b, uint64_t first, uint64_t n,
                  uint64_t width);
/* The same for rows of logits, with KL and agreement of the best tokens. */
void compare_logits(struct compare_sums *s, const float *a, const float *b, uint64_t first, uint64_t n,
                    uint64_t width);

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
/* Judges one probe. */
void compare_judge(struct compare_probe *p, const struct compare_sums *s, const struct compare_limits *l,
                   bool logits, struct compare_result *out);
/* Counts, first_wrong and last_right. */
void compare_count(struct compare_result *out);
bool compare_of_day0(const struct trace *t);

#endif
