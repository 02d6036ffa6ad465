/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounding of activations written again from x_formats.def: scales in float32 steps, codes by search among
 * all values that the type has. And how far a value that is not known exactly may be thrown by it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc.h"

struct form {
    const char *scale;
    uint32_t dtype;
    size_t group;
};

static const struct form forms[] = {
#define X_FORMAT(id, NAME, text, dtype, group, scale, meaning) [id] = {#scale, dtype, group},
#include "day0/x_formats.def"
#undef X_FORMAT
};

const int64_t kc_x_formats = ARRAY_LEN(forms) - 1;

bool kc_x_given(int64_t format)
{
    return !strcmp(forms[format].scale, "GIVEN") || !strcmp(forms[format].scale, "E4M3");
}

/* Magnitude of code i of the type, ascending from 0. */
static double magnitude(uint32_t dtype, int i)
{
    static const double power[] = {0x1p-9, 0x1p-9, 0x1p-8, 0x1p-7, 0x1p-6, 0x1p-5, 0x1p-4, 0x1p-3,
                                   0x1p-2, 0x1p-1, 1,      2,      4,      8,      16,     32};
    if (dtype == D0_I8)
        return i;
    if (dtype == D0_F4)
        return i < 2 ? 0.5 * i : (2 + i % 2) * power[i / 2 + 8];
    return i < 8 ? i * power[0] : (8 + i % 8) * power[i / 8];
}

/* The nearest code, of two the even one, of the outermost at most the last. */
static double nearest_code(uint32_t dtype, double v)
{
    double a = fabs(v);
    int low = 0, high = dtype == D0_F4 ? 7 : dtype == D0_F8_E4M3 ? 126 : v < 0 ? 128 : 127;
    if (a >= magnitude(dtype, high))
        return copysign(magnitude(dtype, high), v);
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *(magnitude(dtype, middle) <= a ? &low : &high) = middle;
    }
    double below = a - magnitude(dtype, low), above = magnitude(dtype, high) - a;
    double m = magnitude(dtype, below < above || (below == above && low % 2 == 0) ? low : high);
    return v < 0 ? -m : m;
}

static double to_bf16(double v)
{
    int e;
    if (!isfinite(v) || v == 0)
        return v;
    frexp(v, &e);
    e = e < -125 ? -125 : e;
    double y = ldexp(rint(ldexp(v, 8 - e)), e - 8);
    return fabs(y) >= 0x1p128 ? copysign(INFINITY, v) : y;
}

static double power_of(double v, double carry)
{
    int e;
    if (v == 0)
        return 0;
    double f = frexp(v, &e); /* f in [0.5, 1) */
    return ldexp(1, f >= carry ? e : e - 1);
}

static double scale_of(const struct form *f, double largest, double given)
{
    double most = f->dtype == D0_I8 ? 127 : f->dtype == D0_F4 ? 6 : 448;
    if (!strcmp(f->scale, "GIVEN"))
        return given;
    if (!isfinite(largest))
        return NAN;
    double s = (double)(float)(largest / most);
    if (!strcmp(f->scale, "POWER_UP"))
        return s == 0 ? 0 : fmax(0x1p-126, power_of(s, 0.5) == s ? s : 2 * power_of(s, 2));
    if (!strcmp(f->scale, "POWER_NEAR"))
        return largest == 0 ? 0 : fmax(0x1p-126, power_of(largest, 0.875) / 4);
    if (!strcmp(f->scale, "E4M3"))
        return (double)(float)(nearest_code(D0_F8_E4M3, (double)(float)(s / given)) * given);
    return s;
}

static double under(const struct form *f, double v, double scale)
{
    if (!strcmp(f->scale, "NONE"))
        return to_bf16(v);
    if (scale == 0)
        return 0;
    double q = (double)(float)(v / scale);
    return isnan(q) ? q : (double)(float)(nearest_code(f->dtype, q) * scale);
}

void kc_round(int64_t format, double given, const double *x, size_t n, const double *off, double *out,
              double *reach)
{
    const struct form *f = &forms[format];
    size_t group = f->group ? f->group : n;
    double s[3];
    for (size_t i = 0; i < n; i++) {
        size_t from = i / group * group, to = from + group < n ? from + group : n;
        double largest = 0, low = 0, high = 0;
        if (i == from && strcmp(f->scale, "NONE") != 0) {
            for (size_t j = from; j < to; j++) {
                double by = off ? off[j] : 0;
                largest = isfinite(x[j]) ? fmax(largest, fabs(x[j])) : fabs(x[j]);
                if (!isfinite(x[j]))
                    break;
                low = fmax(low, fabs(x[j]) - by);
                high = fmax(high, fabs(x[j]) + by);
            }
            s[0] = scale_of(f, largest, given);
            s[1] = scale_of(f, isfinite(largest) ? low : largest, given);
            s[2] = scale_of(f, isfinite(largest) ? high : largest, given);
        }
        out[i] = under(f, x[i], s[0]);
        if (!reach)
            continue;
        reach[i] = 0;
        for (int k = 0; k < 3; k++)
            for (int side = -1; side <= 1; side++)
                reach[i] = fmax(reach[i], fabs(under(f, x[i] + side * off[i], s[k]) - out[i]));
    }
}
