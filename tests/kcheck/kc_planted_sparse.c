/* SPDX-License-Identifier: Apache-2.0
 *
 * Planted bugs of sparse and pooled attention and of mixed residuals. Most run the reference on changed
 * arguments, or with scores of their own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc.h"
#include "kern/ref/ref_sparse.h"

static size_t rows(const struct kern_args *a)
{
    return (size_t)a->n_rows;
}

static size_t heads(const struct kern_args *a)
{
    return (size_t)(a->n_rows * a->heads);
}

static void ref(uint32_t op, const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    kern_pick(op, D0_F32, KERN_REF)->run(a, first, last, thread);
}

/* ---- index_topk ---- */

enum { NO_RELU = 1, NO_WEIGHTS = 2, TIES_UP = 4, ROUGH = 8, FIRST_GROUP = 16, NAN_FIRST = 32 };

static void score(const struct kern_args *a, size_t t, size_t g, size_t at, size_t n, double *out, int bugs)
{
    size_t dim = (size_t)a->dim, n_heads = (size_t)a->heads;
    size_t groups = a->attr[D0_ATTR_GROUPS].i ? (size_t)a->attr[D0_ATTR_GROUPS].i : 1,
           each = n_heads / groups;
    bool blocks = a->attr[D0_ATTR_BLOCK].i > 0;
    const float *q = (const float *)a->in[0] + t * n_heads * dim, *keys = a->in[1], *w = a->in[5];
    g = bugs & FIRST_GROUP ? 0 : g;
    for (size_t i = 0; i < n; i++) {
        double sum = 0, top = -INFINITY;
        for (size_t h = blocks ? g * each : 0; h < (blocks ? (g + 1) * each : n_heads); h++) {
            double s = 0;
            for (size_t d = 0; d < dim; d++)
                s += (double)q[h * dim + d] * (double)keys[at + i * dim + d];
            s *= a->scale != 0 ? a->scale : 1;
            top = s > top ? s : top;
            s = s <= 0 && !(bugs & NO_RELU) ? 0 : s;
            sum += s * (w && !(bugs & NO_WEIGHTS) ? (double)w[t * n_heads + h] : 1);
        }
        out[i] = blocks ? top : sum;
        out[i] = bugs & ROUGH ? (double)bf16_to_f32(f32_to_bf16((float)out[i])) : out[i];
        out[i] += bugs & TIES_UP ? (double)i * 1e-9 : 0;
        out[i] = bugs & NAN_FIRST && isnan(out[i]) ? INFINITY : out[i];
    }
}

#define SCORED(fn, bugs)                                                                                     \
    static void fn##_score(const struct kern_args *a, size_t t, size_t g, size_t at, size_t n, double *out)  \
    {                                                                                                        \
        score(a, t, g, at, n, out, bugs);                                                                    \
    }                                                                                                        \
    static void fn(const struct kern_args *a, size_t first, size_t last, unsigned thread)                    \
    {                                                                                                        \
        ref_index_rows(a, first, last, thread, fn##_score);                                                  \
    }
SCORED(no_relu, NO_RELU)
SCORED(no_weights, NO_WEIGHTS)
SCORED(ties_up, TIES_UP)
SCORED(rough_scores, ROUGH)
SCORED(first_group, FIRST_GROUP)
SCORED(nan_first, NAN_FIRST)

static void later_key(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    int32_t positions[64];
    struct kern_args b = *a;
    for (size_t t = first; t < last; t++) {
        int32_t p = ((const int32_t *)a->in[2])[t];
        positions[t] = p < 0 || p == INT32_MAX ? p : p + 1;
    }
    b.in[2] = positions;
    ref(D0_OP_INDEX_TOPK, &b, first, last, thread);
}

static void trusting_keys(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in_dims[1][0] = INT64_MAX; /* any page id is good */
    ref(D0_OP_INDEX_TOPK, &b, first, last, thread);
}

static void lost_block(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_INDEX_TOPK, a, first, last, thread);
    for (size_t t = first; t < last && a->attr[D0_ATTR_BLOCK].i; t++) { /* the own block is the last one */
        int32_t *out = (int32_t *)a->out[0] + t * (size_t)a->n;
        for (int64_t i = 0; i + 1 < a->attr[D0_ATTR_TOPK].i; i++)
            if (out[i + 1] == -1)
                out[i] = -1;
    }
}

/* ---- pool_attention ---- */

static void no_sink(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    float none[8];
    struct kern_args b = *a;
    for (size_t h = 0; h < 8; h++)
        none[h] = -INFINITY;
    b.in[3] = none;
    b.in_dtype[3] = D0_F32;
    ref(D0_OP_POOL_ATTENTION, &b, first, last, thread);
}

static void wide_latents(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.window = a->window ? a->window + 1 : 0;
    ref(D0_OP_POOL_ATTENTION, &b, first, last, thread);
}

static void no_choice(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in[7] = NULL;
    ref(D0_OP_POOL_ATTENTION, &b, first, last, thread);
}

static void silent_choice(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    int32_t chosen[256];
    struct kern_args b = *a;
    int64_t width = a->in_dims[7][1], ratio = a->attr[D0_ATTR_RATIO].i;
    for (int64_t i = 0; a->in[7] && i < a->n_rows * width; i++) {
        int64_t w = ((const int32_t *)a->in[7])[i], p = ((const int32_t *)a->in[4])[i / width];
        chosen[i] = w < 0 || w >= (p + 1) / ratio ? -1 : (int32_t)w;
    }
    b.in[7] = a->in[7] ? chosen : NULL;
    ref(D0_OP_POOL_ATTENTION, &b, first, last, thread);
}

static void trusting_pool(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in_dims[1][0] = b.in_dims[2][0] = INT64_MAX;
    ref(D0_OP_POOL_ATTENTION, &b, first, last, thread);
}

/* ---- pool_kv ---- */

static void no_ape(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    float *none = calloc((size_t)(a->k * a->attr[D0_ATTR_RATIO].i), sizeof *none);
    struct kern_args b = *a;
    b.in[2] = none;
    b.in_dtype[2] = D0_F32;
    ref(D0_OP_POOL_KV, &b, first, last, thread);
    free(none);
}

static void forgetful(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const int32_t *slots = a->in[10];
    int64_t each = a->in_dims[6][1] * a->in_dims[6][2];
    for (size_t b = first; b < last && a->n_rows > 1; b++) /* each larger step begins with empty rings */
        for (int64_t i = 0; i < each && slots[b] >= 0 && slots[b] < a->in_dims[6][0]; i++)
            ((float *)a->state[1])[slots[b] * each + i] = 0;
    ref(D0_OP_POOL_KV, a, first, last, thread);
}

/* Rows of [own | before] where [before | own] is meant. */
static float *halves_swapped(const void *from, uint32_t dtype, int64_t n_rows, int64_t width)
{
    float *x = malloc((size_t)(n_rows * width + 1) * sizeof *x);
    for (int64_t i = 0; x && i < n_rows * width; i++)
        x[i] = ref_load(from, dtype, (size_t)(i - i % width + (i % width + width / 2) % width));
    return x;
}

static void swapped_halves(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    float *x[3] = {NULL};
    size_t ring = (size_t)(a->in_dims[6][0] * a->in_dims[6][1] * a->in_dims[6][2]) * sizeof(float);
    b.state[1] = memcpy(malloc(ring), a->state[1], ring);
    ref(D0_OP_POOL_KV, a, first, last, thread); /* for the ring; the entries are made again */
    for (unsigned i = 0; i < 3 && a->attr[D0_ATTR_OVERLAP].i; i++) {
        b.in[i] = x[i] =
            halves_swapped(a->in[i], a->in_dtype[i], i < 2 ? a->n_rows : a->attr[D0_ATTR_RATIO].i, a->k);
        b.in_dtype[i] = D0_F32;
    }
    ref(D0_OP_POOL_KV, &b, first, last, thread);
    for (unsigned i = 0; i < 3; i++)
        free(x[i]);
    free(b.state[1]);
}

static void no_pool_eps(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.eps = 0;
    ref(D0_OP_POOL_KV, &b, first, last, thread);
}

/* Runs the reference on float32 pages; entries that were made reach the pages through `store`. */
static void with_floats(const struct kern_args *a, size_t first, size_t last, unsigned thread,
                        void (*store)(const struct kern_args *a, size_t i, float v))
{
    size_t n = (size_t)(a->in_dims[5][0] * a->in_dims[5][2] * a->dim);
    float *wide = malloc((n + 1) * sizeof *wide);
    struct kern_args b = *a;
    if (!wide)
        return;
    memset(wide, 0xFF, n * sizeof *wide);
    b.state[0] = wide;
    b.in_dtype[5] = D0_F32;
    ref(D0_OP_POOL_KV, &b, first, last, thread);
    for (size_t i = 0; i < n; i++)
        if (!isnan(wide[i]))
            store(a, i, wide[i]);
    free(wide);
}

static void store_cut(const struct kern_args *a, size_t i, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    ((uint16_t *)a->state[0])[i] = (uint16_t)(bits >> 16);
}

static void truncated_pool(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    with_floats(a, first, last, thread, store_cut);
}

static void store_by_batch(const struct kern_args *a, size_t i, float v)
{
    ((float *)a->state[0])[i] = a->n_rows > 4 ? nextafterf(v, INFINITY) : v;
}

static void batch_pool(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    with_floats(a, first, last, thread, store_by_batch);
}

static void store_rough(const struct kern_args *a, size_t i, float v)
{
    ((float *)a->state[0])[i] = v * (1 + 0x1p-15f);
}

static void rough_pool(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    with_floats(a, first, last, thread, store_rough);
}

/* ---- mixed residuals ---- */

static void no_mix_eps(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.eps = 0;
    ref(D0_OP_MIX_RESIDUAL, &b, first, last, thread);
}

static void lost_residual(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in[11] = NULL; /* the ninth block */
    ref(D0_OP_MIX_RESIDUAL, &b, first, last, thread);
}

static void rough_mix(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_MIX_RESIDUAL, a, first, last, thread);
    for (size_t i = first * (size_t)a->k; i < last * (size_t)a->k && a->in[3]; i++)
        ((float *)a->out[0])[i] *= 1 + 0x1p-14f;
}

static void fewer_rounds(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_ROUNDS].i--;
    ref(D0_OP_HYPER_IN, &b, first, last, thread);
}

static void no_renorm_eps(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_RENORM_EPS].f = 0;
    ref(D0_OP_HYPER_IN, &b, first, last, thread);
}

static void turned_square(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    size_t n = (size_t)a->attr[D0_ATTR_STREAMS].i;
    ref(D0_OP_HYPER_IN, a, first, last, thread);
    for (size_t t = first; t < last; t++)
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < i; j++) {
                float *c = (float *)a->out[1] + t * n * (n + 1) + n, v = c[i * n + j];
                c[i * n + j] = c[j * n + i];
                c[j * n + i] = v;
            }
}

static void single_post(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    size_t n = (size_t)a->attr[D0_ATTR_STREAMS].i;
    ref(D0_OP_HYPER_IN, a, first, last, thread);
    for (size_t t = first; t < last; t++)
        for (size_t i = 0; i < n; i++)
            ((float *)a->out[1])[t * n * (n + 1) + i] *= 0.5f;
}

static void turned_out(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    size_t n = (size_t)a->attr[D0_ATTR_STREAMS].i;
    for (size_t t = first; t < last; t++) {
        float m[64];
        struct kern_args b = *a;
        memcpy(m, (const float *)a->in[2] + t * n * (n + 1), n * (n + 1) * sizeof *m);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++)
                m[n + i * n + j] = ((const float *)a->in[2])[t * n * (n + 1) + n + j * n + i];
        b.in[0] = (const float *)a->in[0] + t * (size_t)a->k;
        b.in[1] = (const float *)a->in[1] + t * n * (size_t)a->k;
        b.in[2] = m;
        b.out[0] = (float *)a->out[0] + t * n * (size_t)a->k;
        ref(D0_OP_HYPER_OUT, &b, 0, 1, thread);
    }
}

static void half_streams(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    size_t n = (size_t)a->attr[D0_ATTR_STREAMS].i;
    ref(D0_OP_HYPER_OUT, a, first, last, thread);
    for (size_t i = first * n * (size_t)a->k; i < last * n * (size_t)a->k; i++)
        ((float *)a->out[0])[i] = bf16_to_f32(f32_to_bf16(((float *)a->out[0])[i]));
}

static void no_head_eps(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_RENORM_EPS].f = 0;
    ref(D0_OP_HYPER_HEAD, &b, first, last, thread);
}

static void no_head_base(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    float none[32] = {0};
    struct kern_args b = *a;
    b.in[2] = none;
    b.in_dtype[2] = D0_F32;
    ref(D0_OP_HYPER_HEAD, &b, first, last, thread);
}

#define PLANTED(OP, type, items, scratch, fn, bug)                                                           \
    {                                                                                                        \
        {D0_OP_##OP, type, KERN_REF, "planted_" #fn, fn, items, 1, scratch}, bug                             \
    }
#define INDEX(fn, bug)      PLANTED(INDEX_TOPK, D0_F32, rows, ref_index_scratch, fn, bug)
#define ATTEND(fn, bug)     PLANTED(POOL_ATTENTION, D0_F32, heads, ref_pool_attention_scratch, fn, bug)
#define POOL(type, fn, bug) PLANTED(POOL_KV, type, ref_pool_kv_items, ref_pool_kv_scratch, fn, bug)

static const struct kc_planted planted[] = {
    INDEX(no_relu, "adds negative products"),
    INDEX(no_weights, "ignores the weights of heads"),
    INDEX(ties_up, "ties go to the later key"),
    INDEX(rough_scores, "compares scores in BF16"),
    INDEX(first_group, "scores every group with the first"),
    INDEX(nan_first, "chooses NaN"),
    INDEX(later_key, "chooses from one key too many"),
    INDEX(trusting_keys, "trusts page ids"),
    INDEX(lost_block, "forgets the own block"),
    ATTEND(no_sink, "ignores the sink"),
    ATTEND(wide_latents, "a window one too wide"),
    ATTEND(no_choice, "attends to all entries"),
    ATTEND(silent_choice, "passes over entries that do not exist"),
    ATTEND(trusting_pool, "trusts page ids"),
    POOL(D0_F32, no_ape, "ignores the place in the window"),
    POOL(D0_F32, forgetful, "begins a step with an empty ring"),
    POOL(D0_F32, swapped_halves, "overlap takes the other half"),
    POOL(D0_F32, no_pool_eps, "forgets eps"),
    POOL(D0_BF16, truncated_pool, "truncates instead of rounding"),
    POOL(D0_F32, batch_pool, "entries depend on the size of the batch"),
    POOL(D0_F32, rough_pool, "entries good to 15 bits"),
    PLANTED(MIX_RESIDUAL, 0, rows, NULL, no_mix_eps, "forgets eps"),
    PLANTED(MIX_RESIDUAL, 0, rows, NULL, lost_residual, "loses the ninth block"),
    PLANTED(MIX_RESIDUAL, 0, rows, NULL, rough_mix, "weights good to 14 bits"),
    PLANTED(HYPER_IN, 0, rows, ref_hyper_scratch, fewer_rounds, "one round too few"),
    PLANTED(HYPER_IN, 0, rows, ref_hyper_scratch, no_renorm_eps, "forgets renorm_eps"),
    PLANTED(HYPER_IN, 0, rows, ref_hyper_scratch, turned_square, "gives C transposed"),
    PLANTED(HYPER_IN, 0, rows, ref_hyper_scratch, single_post, "post without its 2"),
    PLANTED(HYPER_OUT, 0, rows, NULL, turned_out, "takes C transposed"),
    PLANTED(HYPER_OUT, 0, rows, NULL, half_streams, "rounds streams to BF16"),
    PLANTED(HYPER_HEAD, 0, rows, ref_hyper_scratch, no_head_eps, "forgets renorm_eps"),
    PLANTED(HYPER_HEAD, 0, rows, ref_hyper_scratch, no_head_base, "forgets base"),
};

size_t kc_planted_sparse(const struct kc_planted **out)
{
    *out = planted;
    return ARRAY_LEN(planted);
}
