/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the natural scale of every output element: the size of what was added up to make it, so that a
 * tolerance in units of 2^-23 of it is fair to sums that cancel and strict to sums that do not. Stated for
 * each operator in docs/numerics.md.
 */
#include <math.h>
#include <stdlib.h>

#include "tensor/tensor.h"
#include "verify/opcase.h"

/* 8 * 2^-23 of it is 2^-126: results below the smallest normal number may be flushed to zero */
#define SCALE_FLOOR 0x1p-106

static float *widened(const struct opcase *c, uint32_t id, struct err *e)
{
    const struct d0_value *v = &c->g->values[id];
    size_t n = (size_t)(c->bytes[id] / (dtype_bits(v->dtype) / 8));
    float *x = malloc((n ? n : 1) * sizeof *x);
    if (!x || !tensor_to_f32(c->data[id], v->dtype, n, x)) {
        free(x);
        err_set(e, ERR_NOMEM, "no memory for %zu widened values", n);
        return NULL;
    }
    return x;
}

/* max(|result|, twice the root of the sum of squared terms): what a sum of terms of random sign reaches. */
static int scale_linear(const struct opcase *c, const float *ref, double *scale, struct err *e)
{
    const float *x = c->data[c->in[0]];
    float *w = widened(c, c->in[1], e), *bias = NULL;
    if (!w)
        return ERR_NOMEM;
    if (c->shape.bias && !(bias = widened(c, c->in[2], e))) {
        free(w);
        return ERR_NOMEM;
    }
    int64_t n = c->shape.n, k = c->shape.k;
    for (int64_t t = 0; t < c->dims[0]; t++)
        for (int64_t j = 0; j < n; j++) {
            double squares = bias ? (double)bias[j] * bias[j] : 0;
            for (int64_t i = 0; i < k; i++) {
                double term = (double)x[t * k + i] * w[j * k + i];
                squares += term * term;
            }
            scale[t * n + j] = fmax(fabs((double)ref[t * n + j]), 2 * sqrt(squares));
        }
    free(w);
    free(bias);
    return ERR_OK;
}

/* |result|; with plus_one |x| / rms * max(1, |w|), for 1 + w may cancel. */
static int scale_norm(const struct opcase *c, const float *ref, double *scale, struct err *e)
{
    if (!c->shape.plus_one || c->shape.no_weight) {
        for (size_t i = 0; i < c->n_out; i++)
            scale[i] = fabs((double)ref[i]);
        return ERR_OK;
    }
    float *w = widened(c, c->in[1], e);
    if (!w)
        return ERR_NOMEM;
    int64_t d = c->shape.dim ? c->shape.dim : c->shape.k;
    for (size_t i = 0; i < c->n_out; i++) {
        double m = fabs((double)w[(int64_t)i % d]), by = fabs(1 + (double)w[(int64_t)i % d]);
        scale[i] = by > 0 ? fabs((double)ref[i]) / by * fmax(1, m) : 1;
    }
    free(w);
    return ERR_OK;
}

/* The larger of the two values that a rotation mixes; 0 where the value passes through and must be the same.
 */
static void scale_rope(const struct opcase *c, double *scale)
{
    const struct opshape *s = &c->shape;
    const float *x = c->data[c->in[0]];
    int64_t half = s->width / 2;
    for (size_t i = 0; i < c->n_out; i++) {
        int64_t in_head = (int64_t)i % s->dim - s->offset;
        scale[i] = 0;
        if (in_head < 0 || in_head >= s->width)
            continue;
        int64_t partner = s->style ? (in_head ^ 1) : (in_head < half ? in_head + half : in_head - half);
        scale[i] = fmax(fabs((double)x[i]), fabs((double)x[(int64_t)i + partner - in_head]));
    }
}

struct attended {
    const float *q, *k, *v;
    const int32_t *position, *seq_of, *table;
};

/* Largest |v| attended, times 1 + the largest size of a score: an error of a score is a relative error of its
 * exponential. */
static void scale_attention_head(const struct opcase *c, const struct attended *a, int64_t t, int64_t head,
                                 double *scale)
{
    const struct opshape *s = &c->shape;
    int64_t kv = head * s->kv_heads / s->heads, p = a->position[t];
    int64_t first = s->window && p >= s->window ? p - s->window + 1 : 0;
    double score = 0;
    for (int64_t i = 0; i < s->v_dim; i++)
        scale[i] = 0;
    for (int64_t j = first; j <= p; j++) {
        int64_t page = a->table[a->seq_of[t] * c->dims[3] + j / s->page_tokens];
        int64_t slot = (page * s->kv_heads + kv) * s->page_tokens + j % s->page_tokens;
        double squares = 0, sum = 0;
        for (int64_t i = 0; i < s->dim; i++) {
            double term = (double)a->q[(t * s->heads + head) * s->dim + i] * a->k[slot * s->dim + i];
            squares += term * term;
            sum += term;
        }
        score = fmax(score, fabs(s->scale) * fmax(fabs(sum), 2 * sqrt(squares)));
        for (int64_t i = 0; i < s->v_dim; i++)
            scale[i] = fmax(scale[i], fabs((double)a->v[slot * s->v_dim + i]));
    }
    for (int64_t i = 0; i < s->v_dim; i++)
        scale[i] *= 1 + score;
}

static int scale_attention(const struct opcase *c, double *scale, struct err *e)
{
    float *k = widened(c, c->in[1], e), *v = k ? widened(c, c->in[2], e) : NULL;
    if (!v) {
        free(k);
        return ERR_NOMEM;
    }
    struct attended a = {c->data[c->in[0]], k, v, c->data[c->in[3]], c->data[c->in[4]], c->data[c->in[5]]};
    for (int64_t t = 0; t < c->dims[0]; t++)
        for (int64_t h = 0; h < c->shape.heads; h++)
            scale_attention_head(c, &a, t, h, scale + (t * c->shape.heads + h) * c->shape.v_dim);
    free(k);
    free(v);
    return ERR_OK;
}

static void scale_glu(const struct opcase *c, const float *ref, double *scale)
{
    const float *up = c->data[c->in[1]];
    for (size_t i = 0; i < c->n_out; i++)
        scale[i] = fmax(fabs((double)ref[i]), SCALE_FLOOR * fmax(1, fabs((double)up[i])));
}

int opcase_scale(const struct opcase *c, const float *ref, double *scale, struct err *e)
{
    int rc = ERR_OK;
    bool floored = true;
    switch ((enum d0_op)c->shape.op) {
    case D0_OP_LINEAR:
        rc = scale_linear(c, ref, scale, e);
        break;
    case D0_OP_RMS_NORM:
        rc = scale_norm(c, ref, scale, e);
        break;
    case D0_OP_ROPE_TABLE:
        for (size_t i = 0; i < c->n_out; i++)
            scale[i] = c->shape.factor ? fabs(c->shape.factor) : 1;
        break;
    case D0_OP_ROPE:
        scale_rope(c, scale);
        floored = false;
        break;
    case D0_OP_ATTENTION:
        rc = scale_attention(c, scale, e);
        break;
    case D0_OP_GLU:
        scale_glu(c, ref, scale);
        break;
    default: /* bit-exact operators: in units of the result itself */
        for (size_t i = 0; i < c->n_out; i++)
            scale[i] = fabs((double)ref[i]);
    }
    for (size_t i = 0; rc == 0 && floored && i < c->n_out; i++)
        if (!(scale[i] >= SCALE_FLOOR))
            scale[i] = SCALE_FLOOR;
    return rc;
}
