/* SPDX-License-Identifier: Apache-2.0
 *
 * Variants of short_conv and delta_rule with one known bug each; see kc_planted.c. The delta rule is written
 * once more here, in float32, with a switch for each bug.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc.h"

#define MOST_ROWS 64 /* of a case */

static size_t channels(const struct kern_args *a)
{
    return a->n_rows > 0 ? (size_t)a->n : 0;
}

static size_t value_heads(const struct kern_args *a)
{
    return a->n_rows > 0 ? (size_t)a->attr[D0_ATTR_V_HEADS].i : 0;
}

static void conv(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    kern_pick(D0_OP_SHORT_CONV, 0, KERN_REF)->run(a, first, last, thread);
}

static const int32_t *never_first(const int32_t *positions, int64_t n, int32_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = positions[i] == 0 ? 1 : positions[i];
    return out;
}

/* ---- short_conv ---- */

static void old_tail(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    int32_t positions[MOST_ROWS];
    struct kern_args b = *a;
    b.in[3] = never_first(a->in[3], a->n_rows, positions);
    conv(&b, first, last, thread);
}

static void other_sequence(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    int32_t same[MOST_ROWS] = {0};
    struct kern_args b = *a;
    b.in[4] = same; /* the row before in the batch, whoever's it is */
    conv(&b, first, last, thread);
}

static void short_tail(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    conv(a, first, last, thread);
    int64_t width = a->attr[D0_ATTR_WIDTH].i;
    float *tails = a->state[0]; /* the last row of the step is not kept */
    for (int64_t t = a->n_rows - 1; t == a->n_rows - 1 && t >= 0; t--) {
        int32_t seq = ((const int32_t *)a->in[4])[t];
        int32_t slot = seq >= 0 && seq < a->in_dims[5][0] ? ((const int32_t *)a->in[5])[seq] : -1;
        for (size_t c = first; slot >= 0 && slot < a->in_dims[2][0] && c < last; c++)
            tails[(slot * (width - 1) + width - 2) * a->n + (int64_t)c] = 0;
    }
}

static void trusted_slots(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in_dims[2][0] = INT64_MAX;
    conv(&b, first, last, thread);
}

static void no_activation(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_FUNCTION].i = 7;
    conv(&b, first, last, thread);
}

/* ---- delta_rule ---- */

#define MOST_DIM 160 /* of a case */

struct bug {
    bool no_reset, late_decay, wrong_head, rough_norm, short_state, wide_state, no_lower, no_bias,
        stale_output, unscaled;
    /* of the chunked form */
    bool no_diagonal, own_decay, whole_start, divided;
};

static double wide(const struct kern_args *a, unsigned i, size_t at)
{
    float x;
    size_t width = kc_width(a->in_dtype[i]);
    tensor_to_f32((const unsigned char *)a->in[i] + at * width, a->in_dtype[i], 1, &x);
    return (double)x;
}

static double decay_of(const struct kern_args *a, const struct bug *bug, size_t t, size_t h, size_t head,
                       size_t i)
{
    size_t gates = (size_t)a->in_dims[3][1],
           at = a->attr[D0_ATTR_DECAY].i ? head * (size_t)a->attr[D0_ATTR_DIM].i + i : h;
    double z = wide(a, 3, t * gates + at) + (bug->no_bias ? 0 : wide(a, 6, at)), rate = exp(wide(a, 5, h)),
           lower = bug->no_lower ? 0 : a->attr[D0_ATTR_LOWER].f;
    return exp(lower < 0 ? lower / (1 + exp(-rate * z)) : -rate * (fmax(z, 0) + log1p(exp(-fabs(z)))));
}

static double unit_of(const struct kern_args *a, const struct bug *bug, const float *x, size_t dim)
{
    double squares = 0, eps = a->attr[D0_ATTR_EPS].f;
    for (size_t i = 0; i < dim; i++)
        squares += (double)x[i] * (double)x[i];
    return eps > 0 ? (bug->rough_norm ? 1 + 0x1p-12 : 1) / sqrt(squares + eps) : 1;
}

static double stored(const struct bug *bug, double x)
{
    return bug->short_state  ? (double)bf16_to_f32(f32_to_bf16((float)x))
           : bug->wide_state ? x
                             : (double)(float)x;
}

/* S[dim, v_dim] takes up one row. */
static void buggy_row(const struct kern_args *a, const struct bug *bug, size_t t, size_t h, double *S)
{
    size_t heads = (size_t)a->attr[D0_ATTR_HEADS].i, v_heads = (size_t)a->attr[D0_ATTR_V_HEADS].i,
           dim = (size_t)a->attr[D0_ATTR_DIM].i, n = (size_t)a->attr[D0_ATTR_V_DIM].i,
           head = bug->wrong_head ? h % heads : h * heads / v_heads;
    const float *q = (const float *)a->in[0] + (t * heads + head) * dim,
                *k = (const float *)a->in[1] + (t * heads + head) * dim;
    double decay[MOST_DIM], by_k = unit_of(a, bug, k, dim), beta = wide(a, 4, t * v_heads + h),
                            by_q = unit_of(a, bug, q, dim) * (bug->unscaled ? 1 : a->attr[D0_ATTR_SCALE].f);
    for (size_t i = 0; i < dim; i++)
        decay[i] = decay_of(a, bug, t, h, head, i);
    for (size_t j = 0; j < n; j++) {
        double said = 0, read = 0;
        for (size_t i = 0; i < dim; i++)
            said += (bug->late_decay ? 1 : decay[i]) * S[i * n + j] * (double)k[i] * by_k;
        double change = beta * (wide(a, 2, (t * v_heads + h) * n + j) - said);
        for (size_t i = 0; i < dim; i++) {
            double before = decay[i] * S[i * n + j];
            S[i * n + j] = stored(bug, before + (double)k[i] * by_k * change);
            read += (bug->stale_output ? before : S[i * n + j]) * (double)q[i] * by_q;
        }
        ((float *)a->out[0])[(t * v_heads + h) * n + j] = (float)read;
    }
}

#define CHUNK 16

/* Of rows t0.. of a chunk: what row t says of the rows before it, and of S0. */
struct chunk {
    double a[CHUNK][CHUNK], b[CHUNK][CHUNK], k[CHUNK][MOST_DIM], q[CHUNK][MOST_DIM]; /* k, q: faded */
    double w[CHUNK][MOST_DIM], gone[MOST_DIM];
};

static void buggy_fade(const struct kern_args *a, const struct bug *bug, size_t t0, size_t n, size_t h,
                       struct chunk *c)
{
    size_t heads = (size_t)a->attr[D0_ATTR_HEADS].i, v_heads = (size_t)a->attr[D0_ATTR_V_HEADS].i,
           dim = (size_t)a->attr[D0_ATTR_DIM].i, head = h * heads / v_heads;
    float inverse[CHUNK][MOST_DIM];
    for (size_t i = 0; i < dim; i++)
        c->gone[i] = 1;
    for (size_t t = 0; t < n; t++) {
        const float *q = (const float *)a->in[0] + ((t0 + t) * heads + head) * dim,
                    *k = (const float *)a->in[1] + ((t0 + t) * heads + head) * dim;
        double by_k = unit_of(a, bug, k, dim), by_q = unit_of(a, bug, q, dim) * a->attr[D0_ATTR_SCALE].f;
        memset(c->a[t], 0, sizeof c->a[t]);
        memset(c->b[t], 0, sizeof c->b[t]);
        for (size_t i = 0; i < dim; i++) {
            double decay = decay_of(a, bug, t0 + t, h, head, i), ki = (double)k[i] * by_k,
                   qi = (double)q[i] * by_q;
            c->gone[i] *= decay;
            for (size_t s = 0; s < t; s++) {
                double faded =
                    bug->divided ? (double)((float)c->gone[i] * inverse[s][i]) : c->w[s][i] * decay;
                double old = c->w[s][i];
                c->w[s][i] = faded;
                c->a[t][s] += ki * (bug->own_decay ? old : faded);
                c->b[t][s] += qi * faded;
            }
            c->w[t][i] = ki;
            inverse[t][i] = (float)ki / (float)c->gone[i]; /* k e^-c: infinite where decays are strong */
            c->b[t][t] += qi * ki;
            c->k[t][i] = ki * c->gone[i];
            c->q[t][i] = qi * (bug->whole_start ? 1 : c->gone[i]);
        }
        c->b[t][t] = bug->no_diagonal ? 0 : c->b[t][t];
    }
}

/* S[dim, v_dim] takes up n rows at once. */
static void buggy_chunk(const struct kern_args *a, const struct bug *bug, size_t t0, size_t n, size_t h,
                        double *S)
{
    size_t v_heads = (size_t)a->attr[D0_ATTR_V_HEADS].i, dim = (size_t)a->attr[D0_ATTR_DIM].i,
           width = (size_t)a->attr[D0_ATTR_V_DIM].i;
    struct chunk *c = malloc(sizeof *c);
    if (!c)
        abort();
    buggy_fade(a, bug, t0, n, h, c);
    for (size_t j = 0; j < width; j++) {
        double u[CHUNK];
        for (size_t t = 0; t < n; t++) {
            size_t at = ((t0 + t) * v_heads + h) * width + j;
            double said = 0, read = 0;
            for (size_t i = 0; i < dim; i++) {
                said += S[i * width + j] * c->k[t][i];
                read += S[i * width + j] * c->q[t][i];
            }
            for (size_t s = 0; s < t; s++)
                said += c->a[t][s] * u[s];
            u[t] = wide(a, 4, (t0 + t) * v_heads + h) * (wide(a, 2, at) - said);
            for (size_t s = 0; s <= t; s++)
                read += c->b[t][s] * u[s];
            ((float *)a->out[0])[at] = (float)read;
        }
        for (size_t i = 0; i < dim; i++) {
            S[i * width + j] *= c->gone[i];
            for (size_t s = 0; s < n; s++)
                S[i * width + j] += c->w[s][i] * u[s];
        }
    }
    free(c);
}

/* Rows that are taken up together: one, but where the form is chunked. */
static size_t buggy_rows(const struct kern_args *a, size_t t)
{
    const int32_t *positions = a->in[8], *seq_of = a->in[9];
    size_t n = 1;
    while (a->attr[D0_ATTR_FORM].i && n < CHUNK && t + n < (size_t)a->n_rows && seq_of[t + n] == seq_of[t] &&
           positions[t + n] > 0)
        n++;
    return n;
}

static void buggy_head(const struct kern_args *a, const struct bug *bug, size_t h, double *all)
{
    const int32_t *positions = a->in[8], *seq_of = a->in[9], *slots = a->in[10];
    size_t v_heads = (size_t)a->attr[D0_ATTR_V_HEADS].i, n = (size_t)a->attr[D0_ATTR_V_DIM].i,
           size = (size_t)a->attr[D0_ATTR_DIM].i * n, n_slots = (size_t)a->in_dims[7][0];
    float *states = a->state[0];
    for (size_t i = 0; i < n_slots * size; i++)
        all[i] = (double)states[(i / size * v_heads + h) * size + i % size];
    for (size_t t = 0, rows = 1; t < (size_t)a->n_rows; t += rows) {
        bool good = positions[t] >= 0 && seq_of[t] >= 0 && seq_of[t] < a->in_dims[10][0];
        size_t slot = good && slots[seq_of[t]] >= 0 ? (size_t)slots[seq_of[t]] : n_slots;
        for (size_t j = 0; slot >= n_slots && j < n; j++)
            ((float *)a->out[0])[(t * v_heads + h) * n + j] = NAN;
        rows = 1;
        if (slot >= n_slots)
            continue;
        for (size_t i = 0; positions[t] == 0 && !bug->no_reset && i < size; i++)
            all[slot * size + i] = 0;
        rows = buggy_rows(a, t);
        if (rows > 1)
            buggy_chunk(a, bug, t, rows, h, all + slot * size);
        else
            buggy_row(a, bug, t, h, all + slot * size);
        for (size_t i = 0; i < size; i++)
            states[(slot * v_heads + h) * size + i] = (float)all[slot * size + i];
    }
}

static void buggy(const struct kern_args *a, const struct bug *bug, size_t first, size_t last)
{
    double *all = malloc((size_t)(a->in_dims[7][0] * a->in_dims[7][2] * a->in_dims[7][3] + 1) * sizeof *all);
    if (!all)
        abort();
    for (size_t h = first; h < last; h++)
        buggy_head(a, bug, h, all);
    free(all);
}

#define BUGGY(name)                                                                                          \
    static void name(const struct kern_args *a, size_t first, size_t last, unsigned thread)                  \
    {                                                                                                        \
        (void)thread;                                                                                        \
        buggy(a, &(struct bug){.name = true}, first, last);                                                  \
    }
BUGGY(no_reset)
BUGGY(late_decay)
BUGGY(wrong_head)
BUGGY(rough_norm)
BUGGY(short_state)
BUGGY(wide_state)
BUGGY(no_lower)
BUGGY(no_bias)
BUGGY(stale_output)
BUGGY(unscaled)
BUGGY(no_diagonal)
BUGGY(own_decay)
BUGGY(whole_start)
BUGGY(divided)

static void any_slot(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in_dims[7][0] = INT64_MAX;
    kern_pick(D0_OP_DELTA_RULE, 0, KERN_REF)->run(&b, first, last, thread);
}

static size_t delta_scratch(const struct kern_args *a)
{
    return kern_pick(D0_OP_DELTA_RULE, 0, KERN_REF)->scratch(a);
}

#define PLANTED(OP, items, scratch, fn, bug)                                                                 \
    {                                                                                                        \
        {D0_OP_##OP, 0, KERN_REF, "planted_" #fn, fn, items, 1, scratch}, bug                                \
    }

static const struct kc_planted planted[] = {
    PLANTED(SHORT_CONV, channels, NULL, old_tail, "keeps what the slot held before position 0"),
    PLANTED(SHORT_CONV, channels, NULL, other_sequence, "takes rows of another sequence"),
    PLANTED(SHORT_CONV, channels, NULL, short_tail, "does not keep the last row of the step"),
    PLANTED(SHORT_CONV, channels, NULL, trusted_slots, "trusts slots"),
    PLANTED(SHORT_CONV, channels, NULL, no_activation, "forgets the activation"),
    PLANTED(DELTA_RULE, value_heads, NULL, no_reset, "keeps what the slot held before position 0"),
    PLANTED(DELTA_RULE, value_heads, NULL, late_decay, "corrects by S before its decay"),
    PLANTED(DELTA_RULE, value_heads, NULL, wrong_head, "wrong grouping of heads"),
    PLANTED(DELTA_RULE, value_heads, NULL, rough_norm, "an estimated reciprocal root"),
    PLANTED(DELTA_RULE, value_heads, NULL, short_state, "keeps S in BF16"),
    PLANTED(DELTA_RULE, value_heads, NULL, wide_state, "rounds S at the end of a step only"),
    PLANTED(DELTA_RULE, value_heads, NULL, no_lower, "ignores the lower bound"),
    PLANTED(DELTA_RULE, value_heads, NULL, no_bias, "forgets dt_bias"),
    PLANTED(DELTA_RULE, value_heads, NULL, stale_output, "reads S before the correction"),
    PLANTED(DELTA_RULE, value_heads, NULL, unscaled, "forgets the scale"),
    PLANTED(DELTA_RULE, value_heads, NULL, no_diagonal, "chunked: a row does not read what it wrote"),
    PLANTED(DELTA_RULE, value_heads, NULL, own_decay, "chunked: keys of a chunk meet before the row's decay"),
    PLANTED(DELTA_RULE, value_heads, NULL, whole_start, "chunked: reads the state before the chunk whole"),
    PLANTED(DELTA_RULE, value_heads, NULL, divided, "chunked: divides by what has decayed"),
    PLANTED(DELTA_RULE, value_heads, delta_scratch, any_slot, "trusts slots"),
};

size_t kc_planted_recurrent(const struct kc_planted **out)
{
    *out = planted;
    return ARRAY_LEN(planted);
}
