/* SPDX-License-Identifier: Apache-2.0
 *
 * What this machine can do at most, measured: reading memory, multiplying and adding, and turning stored
 * codes into float32. Every figure is one reading; whoever prints takes medians over rounds.
 */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/thread.h"

struct limits {
    struct pool *pool;
    unsigned char *buffer; /* larger than any cache */
    size_t bytes;
    unsigned char *codes; /* small enough for the first-level cache; every byte a code without NaN */
    double sums[64 * 16]; /* by thread, so that nothing is optimised away */
};

int limits_open(struct limits *l, unsigned n_threads, struct err *e); /* at most 64 threads */
void limits_close(struct limits *l);
/* With one thread its processor time, in which others do not count; else the clock on the wall. */
uint64_t limits_now_ns(const struct limits *l);

double limits_read(struct limits *l);           /* GB/s of plain reads */
bool limits_wide(void);                         /* the processor has registers of 512 bits */
double limits_fma(struct limits *l, bool wide); /* GFLOP/s of float32 multiply-adds, 512 or 256 bits */
double limits_bf16(struct limits *l);           /* GFLOP/s of vdpbf16ps; NAN where the processor lacks it */
/* 1e9 values a second that go from codes of this type (enum d0_dtype) in the first-level cache to float32 in
 * a register and into one multiply-add; scales, one for many values, are left out. NAN: not measured here. */
double limits_values(struct limits *l, uint32_t dtype);

#endif
