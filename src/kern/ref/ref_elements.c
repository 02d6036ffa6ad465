/* SPDX-License-Identifier: Apache-2.0
 *
 * Definitions of the operators that work on single elements or move them: mul, scale, act, glu, slice,
 * concat, position_scale. Refuses nothing: sizes and attributes have passed the device's rules.
 */
#include <math.h>
#include <string.h>

#include "kern/ref/ref.h"
#include "kern/ref/ref_activation.h"

void ref_mul(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0], *y = a->in[1]; /* [n_rows, n], [n_rows, n / run] */
    float *out = a->out[0];                   /* [n_rows, n] */
    size_t run = (size_t)(a->n / a->in_dims[1][1]);
    for (size_t i = first; i < last; i++)
        out[i] = x[i] * y[i / run];
}

void ref_scale(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0];         /* [n_rows, n] */
    const unsigned char *w = a->in[1]; /* [n], [1] or NULL */
    float *out = a->out[0], factor = (float)a->attr[D0_ATTR_FACTOR].f;
    size_t n = (size_t)a->n, many = w && a->in_dims[1][0] > 1;
    for (size_t i = first * n; i < last * n; i++) {
        float y = x[i] * factor;
        out[i] = w ? y * ref_load(w, a->in_dtype[1], many ? i % n : 0) : y;
    }
}

void ref_act(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0]; /* [n_rows, n] */
    float *out = a->out[0];
    for (size_t i = first; i < last; i++)
        out[i] =
            (float)ref_activation(a->attr[D0_ATTR_FUNCTION].i, (double)x[i], 0, a->attr[D0_ATTR_LIMIT].f);
}

void ref_glu(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *gate = a->in[0], *up = a->in[1]; /* [n_rows, n] */
    float *out = a->out[0];
    for (size_t i = first; i < last; i++)
        out[i] = (float)ref_glu_value(a->attr[D0_ATTR_FUNCTION].i, (double)gate[i], (double)up[i],
                                      a->attr[D0_ATTR_ALPHA].f, a->attr[D0_ATTR_LIMIT].f,
                                      a->attr[D0_ATTR_BETA].f, a->attr[D0_ATTR_LINEAR_BETA].f);
}

static size_t groups_of(const struct kern_args *a)
{
    return a->attr[D0_ATTR_GROUPS].i > 1 ? (size_t)a->attr[D0_ATTR_GROUPS].i : 1;
}

void ref_slice(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0]; /* [n_rows, groups * whole] */
    float *out = a->out[0];    /* [n_rows, groups * dim] */
    size_t groups = groups_of(a), whole = (size_t)a->k / groups, dim = (size_t)a->attr[D0_ATTR_DIM].i,
           offset = (size_t)a->attr[D0_ATTR_OFFSET].i;
    for (size_t g = first * groups; g < last * groups; g++)
        memcpy(out + g * dim, x + g * whole + offset, dim * sizeof *out);
}

void ref_concat(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    size_t groups = groups_of(a);
    float *out = (float *)a->out[0] + first * (size_t)a->n; /* [n_rows, n] */
    for (size_t g = first * groups; g < last * groups; g++)
        for (unsigned i = 0; i < D0_MAX_NODE_INPUTS && a->in[i]; i++) {
            size_t part = (size_t)a->in_dims[i][1] / groups;
            memcpy(out, (const float *)a->in[i] + g * part, part * sizeof *out);
            out += part;
        }
}

void ref_position_scale(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0];           /* [n_rows, n] */
    const int32_t *positions = a->in[1]; /* [n_rows] */
    float *out = a->out[0];
    int64_t length = a->attr[D0_ATTR_LENGTH].i;
    size_t n = (size_t)a->n;
    for (size_t t = first; t < last; t++) {
        int64_t p = positions[t] + a->attr[D0_ATTR_OFFSET].i;
        int64_t steps = p / length - (p % length < 0); /* rounded down; before position 0 too */
        double factor = 1.0 + a->attr[D0_ATTR_BETA].f * log(1.0 + (double)steps);
        for (size_t i = t * n; i < (t + 1) * n; i++)
            out[i] = (float)((double)x[i] * factor);
    }
}
