/* SPDX-License-Identifier: Apache-2.0
 *
 * Variants with one known bug each, run only by --planted: every one must be caught, or the checker has lost
 * an eye. Most run the reference and then do one thing wrong.
 */
#include <math.h>
#include <string.h>

#include "kc.h"

static size_t rows(const struct kern_args *a)
{
    return (size_t)a->n_rows;
}

static size_t elements(const struct kern_args *a)
{
    return (size_t)(a->n_rows * a->n);
}

static size_t heads(const struct kern_args *a)
{
    return (size_t)(a->n_rows * a->heads);
}

static size_t values_scratch(const struct kern_args *a)
{
    return kc_ref_scratch(D0_OP_ATTENTION, a);
}

/* What the reference of LINEAR uses: one row of the weight; and one float more. */
static size_t row_scratch(const struct kern_args *a)
{
    return (size_t)a->k * sizeof(float);
}

static size_t more_scratch(const struct kern_args *a)
{
    return row_scratch(a) + sizeof(float);
}

static void ref(uint32_t op, const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    kern_pick(op, D0_F32, KERN_REF)->run(a, first, last, thread);
}

/* Reads a float where a sloppy kernel would; the value goes nowhere. */
static void peek(const float *p)
{
    (void)*(const volatile float *)p;
}

/* ---- linear: one bug per function ---- */

static void over_read(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    for (size_t i = 0; i < 16; i++) /* the last vector whole */
        if (a->n_rows)
            peek((const float *)a->in[0] + (size_t)(a->n_rows * a->k) / 16 * 16 + i);
    ref(D0_OP_LINEAR, a, first, last, thread);
}

static void under_read(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    peek((const float *)a->in[0] - 1);
    ref(D0_OP_LINEAR, a, first, last, thread);
}

static void over_write(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_LINEAR, a, first, last, thread);
    if (a->n_rows && last == (size_t)a->n)
        ((float *)a->out[0])[a->n_rows * a->n] = 0;
}

static void under_write(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_LINEAR, a, first, last, thread);
    ((float *)a->out[0])[-1] = 0;
}

static void input_write(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_LINEAR, a, first, last, thread);
    if (a->n_rows)
        ((float *)(uintptr_t)a->in[0])[0] *= 0.5f;
}

/* out[t, j] += by * x[t, k] * w[j, k] */
static void add_term(const struct kern_args *a, size_t t, size_t j, size_t k, float by)
{
    const float *x = a->in[0], *w = a->in[1];
    ((float *)a->out[0])[t * (size_t)a->n + j] += by * x[t * (size_t)a->k + k] * w[j * (size_t)a->k + k];
}

static void lost_tail(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_LINEAR, a, first, last, thread);
    for (size_t t = 0; t < (size_t)a->n_rows && a->k > 16; t++)
        for (size_t j = first; j < last; j++)
            for (size_t k = (size_t)a->k / 16 * 16; k < (size_t)a->k; k++)
                add_term(a, t, j, k, -1);
}

/* One term in a thousand, in the last column only: small in the whole, wrong where it decides. */
static void lost_term(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_LINEAR, a, first, last, thread);
    if (a->n_rows && last == (size_t)a->n && a->k > 900)
        add_term(a, (size_t)a->n_rows - 1, last - 1, (size_t)a->k - 1, -1);
}

/* An accumulation in another order once the batch is large; every element is well within the tolerance. */
static void batch_sum(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const float *x = a->in[0], *w = a->in[1], *bias = a->in_dtype[2] == D0_F32 ? a->in[2] : NULL;
    ref(D0_OP_LINEAR, a, first, last, thread);
    for (size_t t = 0; t < (size_t)a->n_rows && a->n_rows > 4 && a->segments == 1; t++)
        for (size_t j = first; j < last && (bias || !a->in[2]); j++) {
            float sum = 0;
            for (size_t k = 0; k < (size_t)a->k; k++)
                sum += x[t * (size_t)a->k + k] * w[j * (size_t)a->k + k];
            ((float *)a->out[0])[t * (size_t)a->n + j] = bias ? sum + bias[j] : sum;
        }
}

static void neighbour(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_LINEAR, a, first, last, thread);
    for (size_t j = first; j < last && a->n_rows > 1; j++) /* 0 * NaN of the next row gets in */
        ((float *)a->out[0])[j] += 0 * ((const float *)a->in[0])[a->k];
}

static void half_inputs(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_LINEAR, a, first, last, thread);
    const float *x = a->in[0];
    for (size_t t = 0; t < (size_t)a->n_rows; t++)
        for (size_t j = first; j < last; j++)
            for (size_t k = 0; k < (size_t)a->k; k++) {
                float exact = x[t * (size_t)a->k + k], short_one = bf16_to_f32(f32_to_bf16(exact));
                if (isfinite(exact) && exact != 0)
                    add_term(a, t, j, k, (short_one - exact) / exact);
            }
}

static void whole_range(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)last;
    ref(D0_OP_LINEAR, a, 0, first == last ? 0 : (size_t)a->n, thread);
}

static void thread_sum(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_LINEAR, a, first, last, thread);
    float *out = a->out[0];
    for (size_t t = 0; t < (size_t)a->n_rows; t++)
        for (size_t j = first; j < last; j++)
            out[t * (size_t)a->n + j] *= 1 + (float)thread * 0x1p-23f;
}

static void foreign_scratch(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_LINEAR, a, first, last, thread);
    ((unsigned char *)a->scratch)[0] = 0; /* thread 0's, whoever runs */
}

static void old_scratch(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    float *mine = (float *)((unsigned char *)a->scratch + thread * a->scratch_bytes);
    ref(D0_OP_LINEAR, a, first, last, thread);
    if (a->n_rows && first < last)
        ((float *)a->out[0])[first] += mine[a->k] * 0x1p30f; /* never set */
    mine[a->k] = 1;
}

static void bad_instruction(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_LINEAR, a, first, last, thread);
    if (a->k == 33)
        __builtin_trap();
}

static void double_bias(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in[2] = NULL;
    ref(D0_OP_LINEAR, &b, first, last, thread);
    for (size_t t = 0; t < (size_t)a->n_rows && a->in[2] && a->in_dtype[2] == D0_F32; t++)
        for (size_t j = first; j < last; j++)
            ((float *)a->out[0])[t * (size_t)a->n + j] += 2 * ((const float *)a->in[2])[j];
}

/* ---- rows ---- */

static void rough_rsqrt(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_RMS_NORM, a, first, last, thread);
    float *out = a->out[0];
    for (size_t i = first * (size_t)a->k; i < last * (size_t)a->k; i++)
        out[i] *= 1 + 0x1p-13f; /* what an estimate of 12 bits leaves */
}

static void no_eps(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.eps = 0;
    ref(D0_OP_RMS_NORM, &b, first, last, thread);
}

static void rough_silu(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const float *gate = a->in[0], *up = a->in[1];
    float *out = a->out[0];
    (void)thread;
    for (size_t i = first; i < last; i++) {
        float x = -gate[i] > 80 ? 80 : -gate[i] < -80 ? -80 : -gate[i]; /* e^x by the bits of a float */
        int32_t bits = (int32_t)(x * 12102203.0f) + 1064866805;
        float e;
        memcpy(&e, &bits, sizeof e);
        out[i] = gate[i] / (1 + e) * up[i];
    }
}

static void overflow_silu(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const float *gate = a->in[0], *up = a->in[1];
    float *out = a->out[0];
    (void)thread;
    for (size_t i = first; i < last; i++) {
        float e = expf(gate[i]); /* infinite for large gates: infinity / infinity */
        out[i] = gate[i] * (e / (1 + e)) * up[i];
    }
}

static void flushed_add(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_ADD, a, first, last, thread);
    float *out = a->out[0];
    for (size_t i = first; i < last; i++)
        if (fabsf(out[i]) < 0x1p-45f)
            out[i] = 0;
}

static void trusting_embed(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const float *table = a->in[1];
    const int32_t *ids = a->in[0];
    (void)thread;
    for (size_t t = first; t < last; t++)
        memcpy((float *)a->out[0] + t * (size_t)a->n, table + (ptrdiff_t)ids[t] * a->n,
               (size_t)a->n * sizeof *table);
}

static void clamped_gather(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const int32_t *at = a->in[1];
    (void)thread;
    for (size_t r = first; r < last; r++) {
        int64_t row = at[r] < 0 ? 0 : at[r] >= a->source_rows ? a->source_rows - 1 : at[r];
        memcpy((float *)a->out[0] + r * (size_t)a->n, (const float *)a->in[0] + row * a->n,
               (size_t)a->n * sizeof(float));
    }
}

/* ---- positions ---- */

static void double_angle(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_ROPE_TABLE, a, first, last, thread);
    const int32_t *positions = a->in[0];
    for (size_t t = first; t < last; t++) /* the angle not rounded to float32: drifts far out */
        for (size_t j = 0; j < (size_t)a->n / 2; j++)
            ((float *)a->out[0])[t * (size_t)a->n + j] =
                (float)(cos((double)positions[t] * (double)((const float *)a->in[1])[j]) *
                        (a->factor != 0 ? a->factor : 1));
}

static void other_style(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.style = 0;
    ref(D0_OP_ROPE, &b, first, last, thread);
}

static void no_pass_through(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_ROPE, a, first, last, thread);
    for (size_t t = first; t < last && a->offset; t++)
        ((float *)a->out[0])[t * (size_t)a->k] *= 1 + 0x1p-22f;
}

static void truncated_store(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    (void)thread;
    for (size_t t = first; t < last; t++) { /* k cut off, not rounded, to BF16 */
        float row[4 * 130];
        size_t n = (size_t)(a->kv_heads * a->dim);
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, (const float *)a->in[0] + t * n + i, sizeof bits);
            bits &= 0xFFFF0000;
            memcpy(&row[i], &bits, sizeof bits);
        }
        b.in[0] = row - t * n;
        kern_pick(D0_OP_KV_STORE, D0_BF16, KERN_REF)->run(&b, t, t + 1, 0);
    }
}

static void wrong_slot(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    int32_t positions[64];
    struct kern_args b = *a;
    for (size_t t = first; t < last; t++)
        positions[t] = ((const int32_t *)a->in[4])[t];
    for (size_t t = first; t < last; t++)
        if (positions[t] > 100)
            positions[t] ^= 1;
    b.in[4] = positions;
    ref(D0_OP_KV_STORE, &b, first, last, thread);
}

static void one_more_key(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    int32_t positions[64];
    struct kern_args b = *a;
    for (size_t t = 0; t < (size_t)a->n_rows; t++) {
        int32_t p = ((const int32_t *)a->in[3])[t];
        positions[t] = p % a->page_tokens == a->page_tokens - 1 ? p : p + 1;
    }
    b.in[3] = positions;
    ref(D0_OP_ATTENTION, &b, first, last, thread);
}

static void wide_window(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.window = a->window ? a->window + 1 : 0;
    ref(D0_OP_ATTENTION, &b, first, last, thread);
}

static void wrong_group(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    float q[64]; /* head h served by kv head h % kv_heads: right for one group only */
    (void)q;
    for (size_t i = first; i < last; i++) {
        int64_t h = (int64_t)i % a->heads, kv = h % a->kv_heads, good = h * a->kv_heads / a->heads;
        if (kv == good) {
            ref(D0_OP_ATTENTION, a, i, i + 1, thread);
            continue;
        }
        struct kern_args b = *a; /* shift the pages by whole heads */
        int64_t v_dim = a->v_dim ? a->v_dim : a->dim, shift = (kv - good) * a->page_tokens;
        b.in[1] = (const float *)a->in[1] + shift * a->dim;
        b.in[2] = (const float *)a->in[2] + shift * v_dim;
        ref(D0_OP_ATTENTION, &b, i, i + 1, thread);
    }
}

static void trusting_pages(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.pages = INT64_MAX; /* any page id is good */
    ref(D0_OP_ATTENTION, &b, first, last, thread);
}

static void rough_softmax(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.scale = a->scale * (1 + 0x1p-12);
    ref(D0_OP_ATTENTION, &b, first, last, thread);
}

#define PLANTED(OP, type, items, scratch, fn, bug)                                                           \
    {                                                                                                        \
        {D0_OP_##OP, type, KERN_REF, "planted_" #fn, fn, items, 1, scratch}, bug                             \
    }

#define OF_ATTENTION(OP, name, bug)                                                                          \
    {{D0_OP_##OP, D0_F32, KERN_REF, "planted_" #name, kc_bug_##name, items_##OP, 1, scratch_##OP}, bug},
#define SIZES(OP)                                                                                            \
    static size_t items_##OP(const struct kern_args *a)                                                      \
    {                                                                                                        \
        return kc_ref_items(D0_OP_##OP, a);                                                                  \
    }                                                                                                        \
    static size_t scratch_##OP(const struct kern_args *a)                                                    \
    {                                                                                                        \
        return kc_ref_scratch(D0_OP_##OP, a);                                                                \
    }
SIZES(ATTENTION)
SIZES(LATENT_STORE)
SIZES(MLA)

static size_t products(const struct kern_args *a)
{
    return kc_ref_items(D0_OP_LINEAR, a);
}

static size_t rounded(const struct kern_args *a)
{
    return kc_ref_shared(D0_OP_LINEAR, a);
}

#define PRODUCT(OP, type, scratch, fn, bug)                                                                  \
    {                                                                                                        \
        {D0_OP_##OP, type, KERN_REF, "planted_" #fn, fn, products, 1, scratch, rounded, 2, 0}, bug           \
    }

static const struct kc_planted planted[] = {
    KC_ATTENTION_BUGS(OF_ATTENTION)
        PRODUCT(LINEAR, D0_F32, row_scratch, over_read, "reads past the end of x"),
    PRODUCT(LINEAR, D0_F32, row_scratch, under_read, "reads before x"),
    PRODUCT(LINEAR, D0_F32, row_scratch, over_write, "writes past the end of out"),
    PRODUCT(LINEAR, D0_F32, row_scratch, under_write, "writes before out"),
    PRODUCT(LINEAR, D0_F32, row_scratch, input_write, "writes an input"),
    PRODUCT(LINEAR, D0_F32, row_scratch, lost_tail, "drops K % 16"),
    PRODUCT(LINEAR, D0_F32, row_scratch, lost_term, "drops one term in the last element only"),
    PRODUCT(LINEAR, D0_F32, row_scratch, batch_sum, "sums in another order in large batches"),
    PRODUCT(LINEAR, D0_F32, row_scratch, neighbour, "lets a NaN of the next row in"),
    PRODUCT(LINEAR, D0_F32, row_scratch, half_inputs, "rounds x to BF16"),
    PRODUCT(LINEAR, D0_F32, row_scratch, whole_range, "ignores its range of items"),
    PRODUCT(LINEAR, D0_F32, row_scratch, thread_sum, "depends on the thread"),
    PRODUCT(LINEAR, D0_F32, more_scratch, foreign_scratch, "writes another thread's scratch"),
    PRODUCT(LINEAR, D0_F32, more_scratch, old_scratch, "reads scratch it never set"),
    PRODUCT(LINEAR, D0_F32, row_scratch, bad_instruction, "an illegal instruction at K = 33"),
    PRODUCT(LINEAR, D0_F32, row_scratch, double_bias, "adds the bias twice"),
    PLANTED(RMS_NORM, 0, rows, NULL, rough_rsqrt, "an estimated reciprocal root"),
    PLANTED(RMS_NORM, 0, rows, NULL, no_eps, "forgets eps"),
    PLANTED(GLU, 0, elements, NULL, rough_silu, "an estimated exponential"),
    PLANTED(GLU, 0, elements, NULL, overflow_silu, "overflows for large gates"),
    PLANTED(ADD, 0, elements, NULL, flushed_add, "flushes small sums to zero"),
    PLANTED(EMBED, D0_F32, rows, NULL, trusting_embed, "trusts ids"),
    PLANTED(GATHER_ROWS, 0, rows, NULL, clamped_gather, "clamps row indices"),
    PLANTED(ROPE_TABLE, 0, rows, NULL, double_angle, "angle in float64"),
    PLANTED(ROPE, 0, rows, NULL, other_style, "ignores style"),
    PLANTED(ROPE, 0, rows, NULL, no_pass_through, "touches what passes through"),
    PLANTED(KV_STORE, D0_BF16, rows, NULL, truncated_store, "truncates instead of rounding"),
    PLANTED(KV_STORE, D0_F32, rows, NULL, wrong_slot, "wrong slot far out"),
    PLANTED(ATTENTION, D0_F32, heads, values_scratch, one_more_key, "reads one key too many"),
    PLANTED(ATTENTION, D0_F32, heads, values_scratch, wide_window, "a window one too wide"),
    PLANTED(ATTENTION, D0_F32, heads, values_scratch, wrong_group, "wrong grouping of heads"),
    PLANTED(ATTENTION, D0_F32, heads, values_scratch, trusting_pages, "trusts page ids"),
    PLANTED(ATTENTION, D0_F32, heads, values_scratch, rough_softmax, "a scale of 12 bits"),
};

size_t kc_planted(const struct kc_planted **out)
{
    *out = planted;
    return ARRAY_LEN(planted);
}
