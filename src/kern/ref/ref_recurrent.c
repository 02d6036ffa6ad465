/* SPDX-License-Identifier: Apache-2.0
 *
 * Definitions of the operators with a state of fixed size for each sequence: short_conv, delta_rule. One row
 * after the other, in the order of the step: the recurrent form is the definition, and what `form` asks for
 * is the same value. A row at position 0 starts from zero, whatever its slot held.
 */
#include "kern/ref/ref_recurrent.h"

#include <math.h>

#include "kern/ref/ref.h"

/* ---- short_conv ---------------------------------------------------------------------------------------- */

/* One row and channel: tail and x are moved in place, oldest first. */
static float conv_step(const struct kern_args *a, size_t c, float *tail, float x)
{
    size_t width = (size_t)a->attr[D0_ATTR_WIDTH].i, stride = (size_t)a->n;
    const unsigned char *w = a->in[1], *bias = a->in[6]; /* [C, 1, width], [C] or NULL */
    double sum = 0;
    for (size_t j = 0; j + 1 < width; j++)
        sum += (double)ref_load(w, a->in_dtype[1], c * width + j) * (double)tail[j * stride];
    sum += (double)ref_load(w, a->in_dtype[1], c * width + width - 1) * (double)x;
    if (bias)
        sum += (double)ref_load(bias, a->in_dtype[6], c);
    for (size_t j = 0; j + 2 < width; j++)
        tail[j * stride] = tail[(j + 1) * stride];
    tail[(width - 2) * stride] = x;
    return (float)(a->attr[D0_ATTR_FUNCTION].i == 0 ? sum / (1.0 + exp(-sum)) : sum);
}

void ref_short_conv(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0];                    /* [T, C] */
    float *tails = a->state[0], *out = a->out[0]; /* [slots, width - 1, C], [T, C] */
    size_t n = (size_t)a->n, kept = (size_t)a->attr[D0_ATTR_WIDTH].i - 1;
    struct ref_slots slots = ref_slots_of(a, 2, 3);
    for (size_t t = 0; t < (size_t)a->n_rows; t++) {
        int64_t slot = ref_slot(&slots, t);
        float *tail = slot < 0 ? NULL : tails + (size_t)slot * kept * n;
        for (size_t c = first; c < last; c++) {
            for (size_t j = 0; tail && slots.positions[t] == 0 && j < kept; j++)
                tail[j * n + c] = 0;
            out[t * n + c] = tail ? conv_step(a, c, tail + c, x[t * n + c]) : NAN;
        }
    }
}

/* ---- delta_rule ---------------------------------------------------------------------------------------- */

size_t ref_items_value_heads(const struct kern_args *a)
{
    return a->n_rows > 0 ? (size_t)a->attr[D0_ATTR_V_HEADS].i : 0;
}

size_t ref_delta_scratch(const struct kern_args *a)
{
    struct ref_delta d = ref_delta_of(a);
    return (3 * d.dim + 2 * d.v_dim) * sizeof(double);
}

/* exp of the log decay of one gate value */
static double decay_of(const struct ref_delta *d, double a_log, double z)
{
    if (d->lower != 0)
        return exp(d->lower / (1.0 + exp(-exp(a_log) * z)));
    double softplus = z > 0 ? z + log1p(exp(-z)) : log1p(exp(z));
    return exp(-exp(a_log) * softplus);
}

/* x[dim], of unit length if eps > 0, times scale */
static void unit_row(const struct ref_delta *d, const float *x, double scale, double *out)
{
    double squares = 0;
    for (size_t i = 0; i < d->dim; i++)
        squares += (double)x[i] * (double)x[i];
    double by = d->eps > 0 ? scale / sqrt(squares + d->eps) : scale;
    for (size_t i = 0; i < d->dim; i++)
        out[i] = (double)x[i] * by;
}

/* S[dim, v_dim] takes up one row; change and o are room for v_dim values. */
static void delta_step(const struct ref_delta *d, float *S, const double *decay, const double *k,
                       const double *q, const float *v, double beta, double *change, double *o)
{
    size_t n = d->v_dim;
    for (size_t j = 0; j < n; j++)
        change[j] = o[j] = 0;
    for (size_t i = 0; i < d->dim; i++)
        for (size_t j = 0; j < n; j++)
            change[j] += decay[i] * (double)S[i * n + j] * k[i];
    for (size_t j = 0; j < n; j++)
        change[j] = beta * ((double)v[j] - change[j]);
    for (size_t i = 0; i < d->dim; i++)
        for (size_t j = 0; j < n; j++) {
            S[i * n + j] = (float)(decay[i] * (double)S[i * n + j] + k[i] * change[j]);
            o[j] += (double)S[i * n + j] * q[i];
        }
}

static void delta_row(const struct kern_args *a, const struct ref_delta *d, size_t t, size_t n, size_t h,
                      float *S, void *room)
{
    (void)n; /* one */
    double *scratch = room;
    const float *q = a->in[0], *k = a->in[1], *v = a->in[2], *g = a->in[3], *beta = a->in[4];
    size_t head = h * d->heads / d->v_heads;
    double *decay = scratch, *unit_k = decay + d->dim, *unit_q = unit_k + d->dim, *change = unit_q + d->dim,
           *o = change + d->v_dim;
    double a_log = (double)ref_load(a->in[5], a->in_dtype[5], h);
    for (size_t i = 0; i < d->dim; i++) {
        size_t at = d->channel ? head * d->dim + i : h, width = d->channel ? d->heads * d->dim : d->v_heads;
        if (i > 0 && !d->channel)
            decay[i] = decay[0];
        else
            decay[i] = decay_of(d, a_log,
                                (double)g[t * width + at] + (double)ref_load(a->in[6], a->in_dtype[6], at));
    }
    unit_row(d, k + (t * d->heads + head) * d->dim, 1.0, unit_k);
    unit_row(d, q + (t * d->heads + head) * d->dim, d->scale, unit_q);
    delta_step(d, S, decay, unit_k, unit_q, v + (t * d->v_heads + h) * d->v_dim,
               (double)beta[t * d->v_heads + h], change, o);
    for (size_t j = 0; j < d->v_dim; j++)
        ((float *)a->out[0])[(t * d->v_heads + h) * d->v_dim + j] = (float)o[j];
}

/* Rows from t on that go on with the state of row t, at most `most`; none starts anew but row t. */
static size_t rows_of_slot(const struct ref_slots *slots, size_t t, size_t rows, size_t most)
{
    size_t n = 1;
    int64_t slot = ref_slot(slots, t);
    while (n < most && t + n < rows && ref_slot(slots, t + n) == slot && slots->positions[t + n] > 0)
        n++;
    return n;
}

void ref_delta_walk(const struct kern_args *a, size_t first, size_t last, unsigned thread, size_t most,
                    ref_delta_rows *rows)
{
    struct ref_delta d = ref_delta_of(a);
    struct ref_slots slots = ref_slots_of(a, 7, 8);
    void *scratch = (unsigned char *)a->scratch + (size_t)thread * a->scratch_bytes;
    float *states = a->state[0], *out = a->out[0]; /* [slots, v_heads, dim, v_dim], [T, v_heads * v_dim] */
    size_t size = d.dim * d.v_dim;
    for (size_t h = first; h < last; h++)
        for (size_t t = 0, n = 1; t < (size_t)a->n_rows; t += n) {
            int64_t slot = ref_slot(&slots, t);
            n = slot < 0 ? 1 : rows_of_slot(&slots, t, (size_t)a->n_rows, most);
            if (slot < 0) {
                for (size_t j = 0; j < d.v_dim; j++)
                    out[(t * d.v_heads + h) * d.v_dim + j] = NAN;
                continue;
            }
            float *S = states + ((size_t)slot * d.v_heads + h) * size;
            if (slots.positions[t] == 0)
                memset(S, 0, size * sizeof *S);
            rows(a, &d, t, n, h, S, scratch);
        }
}

void ref_delta_rule(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref_delta_walk(a, first, last, thread, 1, delta_row);
}
