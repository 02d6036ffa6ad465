/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the natural scale of every output element: the size of what was added up to make it, so that a
 * tolerance in units of 2^-23 of it is fair to sums that cancel and strict to sums that do not. Stated for
 * each operator in docs/numerics.md. Operators on states: opscale_state.c, opscale_attention.c; sums of sums:
 * opscale_mix.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"
#include "verify/opcase.h"

double opscale_sum(double sum, double squares)
{
    return fmax(fabs(sum), 2 * sqrt(squares));
}

/* x[rows, k] as its rows are multiplied; the caller frees it. */
static float *opscale_rounded(const struct opcase *c, const float *x, int64_t rows, int64_t k)
{
    const struct tensor_rounding *r = tensor_rounding(opshape_int(&c->shape, D0_ATTR_X_FORMAT));
    float *out = malloc((size_t)(rows * k) * sizeof *out + 1);
    for (int64_t i = 0; i < rows && out; i++)
        if (r)
            tensor_round_row(r, (float)opshape_real(&c->shape, D0_ATTR_X_SCALE), x + i * k, (size_t)k,
                             out + i * k);
        else
            memcpy(out + i * k, x + i * k, (size_t)k * sizeof *out);
    return out;
}

/* x[T, G*K] times w[G*N, K], bias: each group of x with its rows. */
static bool scale_linear(const struct opcase *c, const float *ref, double *scale)
{
    bool grouped = c->shape.node.op == D0_OP_GROUP_LINEAR;
    const float *x = opcase_rows(c, 0);
    float *w = opcase_widened(c, 1), *bias = grouped ? NULL : opcase_widened(c, 2);
    bool has_bias = !grouped && c->in[2] != D0_NO_VALUE;
    if (!w || (has_bias && !bias)) {
        free(w);
        return false;
    }
    int64_t n = (int64_t)c->out_width[0], k = opcase_size(c, 1, 1), wide = opcase_size(c, 0, 1),
            groups = wide / k, each = n / groups;
    float *rounded = opscale_rounded(c, x, c->dims[0] * groups, k);
    if (!rounded) {
        free(w);
        free(bias);
        return false;
    }
    for (int64_t t = 0; t < c->dims[0]; t++)
        for (int64_t j = 0; j < n; j++) {
            const float *row = rounded + t * wide + j / each * k;
            double squares = bias ? (double)bias[j] * (double)bias[j] : 0;
            for (int64_t i = 0; i < k; i++) {
                double term = (double)row[i] * (double)w[j * k + i];
                squares += term * term;
            }
            scale[t * n + j] = opscale_sum((double)ref[t * n + j], squares);
        }
    free(w);
    free(bias);
    free(rounded);
    return true;
}

/* |result|; with plus_one |x| / rms * max(1, |w|), for 1 + w may cancel. */
static bool scale_norm(const struct opcase *c, const float *ref, double *scale)
{
    float *w = NULL;
    if (opshape_int(&c->shape, D0_ATTR_PLUS_ONE) && c->in[1] != D0_NO_VALUE && !(w = opcase_widened(c, 1)))
        return false;
    int64_t d = w ? opcase_size(c, 1, 0) : 1;
    for (size_t i = 0; i < c->n_out[0]; i++) {
        double m = w ? fabs((double)w[(int64_t)i % d]) : 1, by = w ? fabs(1 + (double)w[(int64_t)i % d]) : 1;
        scale[i] = by > 0 ? fabs((double)ref[i]) / by * fmax(1, m) : 1;
    }
    free(w);
    return true;
}

/* The larger of the two values that a rotation mixes; 0 where the value passes through and must be the same.
 */
static void scale_rope(const struct opcase *c, double *scale)
{
    const float *x = opcase_rows(c, 0);
    int64_t width = opcase_size(c, 1, 1), half = width / 2, dim = opshape_int(&c->shape, D0_ATTR_DIM),
            offset = opshape_int(&c->shape, D0_ATTR_OFFSET), pairs = opshape_int(&c->shape, D0_ATTR_STYLE);
    for (size_t i = 0; i < c->n_out[0]; i++) {
        int64_t at = (int64_t)i % dim - offset;
        scale[i] = 0;
        if (at < 0 || at >= width)
            continue;
        int64_t partner = pairs ? (at ^ 1) : (at < half ? at + half : at - half);
        scale[i] = fmax(fabs((double)x[i]), fabs((double)x[(int64_t)i + partner - at]));
    }
}

static void scale_activation(const struct opcase *c, double *scale)
{
    bool pair = c->shape.node.op == D0_OP_GLU;
    const float *gate = opcase_rows(c, 0), *up = pair ? opcase_rows(c, 1) : NULL;
    for (size_t i = 0; i < c->n_out[0]; i++) {
        double u = up ? (double)up[i] : 1;
        struct opscaled a =
            up ? opact_pair(&c->shape, (double)gate[i], u) : opact(&c->shape, (double)gate[i]);
        scale[i] = fmax(a.scale, OPSCALE_FLOOR * fmax(1, fabs(u)));
    }
}

/* w and b of a norm; absent ones are NULL */
struct vectors {
    float *w, *b;
    bool ok;
};

static struct vectors vectors_of(const struct opcase *c, uint32_t w, uint32_t b)
{
    struct vectors v = {opcase_widened(c, w), b ? opcase_widened(c, b) : NULL, true};
    v.ok = (v.w || c->in[w] == D0_NO_VALUE) && (!b || v.b || c->in[b] == D0_NO_VALUE);
    return v;
}

static int64_t run_width(const struct opcase *c)
{
    int64_t dim = opshape_int(&c->shape, D0_ATTR_DIM);
    return dim ? dim : opcase_size(c, 0, 1);
}

static void scale_layer_run(const struct opcase *c, const float *x, const struct vectors *v, int64_t d,
                            double *scale)
{
    double sum = 0, raw = 0, squares = 0;
    for (int64_t i = 0; i < d; i++) {
        sum += (double)x[i];
        raw += (double)x[i] * (double)x[i];
    }
    double mean = sum / (double)d, mean_scale = fmax(fabs(mean), 2 * sqrt(raw) / (double)d);
    for (int64_t i = 0; i < d; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    double deviation = sqrt(squares / (double)d + opshape_real(&c->shape, D0_ATTR_EPS));
    for (int64_t i = 0; i < d; i++) {
        double w = v->w ? fabs((double)v->w[i]) : 1, b = v->b ? fabs((double)v->b[i]) : 0;
        scale[i] = fmax(fmax(fabs((double)x[i]), mean_scale) / deviation * w, b);
    }
}

static void scale_gated_run(const struct opcase *c, const float *x, const float *gates,
                            const struct vectors *v, int64_t d, double *scale)
{
    bool before = opshape_int(&c->shape, D0_ATTR_BEFORE) != 0;
    double squares = 0, errors = 0;
    for (int64_t i = 0; i < d; i++) {
        struct opscaled gate = before ? opact(&c->shape, (double)gates[i]) : (struct opscaled){1, 1};
        double term = (double)x[i] * gate.value;
        squares += term * term;
        errors += (double)x[i] * (double)x[i] * fabs(gate.value) * gate.scale;
    }
    /* how much less precise than its terms the mean of squares is: gates that are small differences */
    double loose = squares > 0 ? fmax(1, errors / squares) : 1;
    double root = sqrt(squares / (double)d + opshape_real(&c->shape, D0_ATTR_EPS));
    for (int64_t i = 0; i < d; i++) {
        struct opscaled gate = opact(&c->shape, (double)gates[i]);
        double y = fabs((double)x[i] / root * (v->w ? (double)v->w[i] : 1));
        scale[i] = fmax(y * fmax(gate.scale, fabs(gate.value) * loose), OPSCALE_FLOOR * fmax(1, y));
    }
}

static bool scale_other_norm(const struct opcase *c, double *scale)
{
    bool gated = c->shape.node.op == D0_OP_GATED_NORM;
    struct vectors v = vectors_of(c, gated ? 2 : 1, gated ? 0 : 2);
    size_t d = (size_t)run_width(c);
    for (size_t g = 0; v.ok && g < c->n_out[0]; g += d) {
        if (gated)
            scale_gated_run(c, opcase_rows(c, 0) + g, opcase_rows(c, 1) + g, &v, (int64_t)d, scale + g);
        else
            scale_layer_run(c, opcase_rows(c, 0) + g, &v, (int64_t)d, scale + g);
    }
    free(v.w);
    free(v.b);
    return v.ok;
}

/* In units of the result itself: bit-exact operators, and those that only multiply. */
static void scale_result(const struct opcase *c, const struct opresult *ref, struct opscale *s)
{
    for (uint32_t o = 0; o < c->n_outputs; o++)
        for (size_t i = 0; !c->ints[o] && i < c->n_out[o]; i++)
            s->out[o][i] = fabs((double)ref->out[o][i]);
}

static bool scale_rows(const struct opcase *c, const struct opresult *ref, struct opscale *s)
{
    double factor;
    switch ((enum d0_op)c->shape.node.op) {
    case D0_OP_LINEAR:
    case D0_OP_GROUP_LINEAR:
        return scale_linear(c, ref->out[0], s->out[0]);
    case D0_OP_RMS_NORM:
        return scale_norm(c, ref->out[0], s->out[0]);
    case D0_OP_LAYER_NORM:
    case D0_OP_GATED_NORM:
        return scale_other_norm(c, s->out[0]);
    case D0_OP_ROPE_TABLE:
        factor = fabs(opshape_real(&c->shape, D0_ATTR_FACTOR));
        for (size_t i = 0; i < c->n_out[0]; i++)
            s->out[0][i] = factor > 0 ? factor : 1;
        return true;
    case D0_OP_ROPE:
        scale_rope(c, s->out[0]);
        return true;
    case D0_OP_GLU:
    case D0_OP_ACT:
        scale_activation(c, s->out[0]);
        return true;
    default:
        scale_result(c, ref, s);
        return true;
    }
}

static bool scale_any(const struct opcase *c, const struct opresult *ref, struct opscale *s)
{
    switch ((enum d0_op)c->shape.node.op) {
    case D0_OP_ATTENTION:
    case D0_OP_POOL_ATTENTION:
        return opscale_attention(c, s);
    case D0_OP_SEGMENT_ATTENTION:
        return opscale_segments(c, s);
    case D0_OP_POSITION_EMBED:
        return opscale_position_embed(c, ref, s);
    case D0_OP_MLA:
        return opscale_mla(c, ref, s);
    case D0_OP_EXPERTS:
        return opscale_experts(c, s);
    case D0_OP_SHORT_CONV:
        return opscale_short_conv(c, ref, s);
    case D0_OP_DELTA_RULE:
        return opscale_delta(c, s);
    case D0_OP_MIX_RESIDUAL:
        return opscale_mix(c, s);
    case D0_OP_HYPER_IN:
    case D0_OP_HYPER_HEAD:
        return opscale_hyper(c, ref, s);
    case D0_OP_HYPER_OUT:
        return opscale_hyper_out(c, ref, s);
    case D0_OP_POOL_KV:
        return opscale_pool_kv(c, s);
    case D0_OP_QKV:
        return opscale_qkv(c, s);
    case D0_OP_GATE_UP:
        return opscale_gate_up(c, s);
    case D0_OP_NORM_RESIDUAL:
        return opscale_norm_residual(c, ref, s);
    case D0_OP_NORM_ROPE_STORE:
        return opscale_norm_rope_store(c, s);
    default:
        return scale_rows(c, ref, s);
    }
}

int opcase_scale(const struct opcase *c, const struct opresult *ref, struct opscale *s, struct err *e)
{
    memset(s->state, 0, sizeof s->state);
    if (!scale_any(c, ref, s)) {
        opscale_free_states(s);
        return err_set(e, ERR_NOMEM, "no memory for the natural scales of a case");
    }
    for (uint32_t o = 0; o < c->n_outputs && c->shape.node.op != D0_OP_ROPE; o++)
        for (size_t i = 0; !c->ints[o] && i < c->n_out[o]; i++)
            if (!(s->out[o][i] >= OPSCALE_FLOOR))
                s->out[o][i] = OPSCALE_FLOOR;
    return ERR_OK;
}

void opscale_free_states(struct opscale *s)
{
    for (uint32_t i = 0; i < OPCASE_VALUES; i++) {
        free(s->state[i]);
        s->state[i] = NULL;
    }
}
