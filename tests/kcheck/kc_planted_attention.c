/* SPDX-License-Identifier: Apache-2.0
 *
 * Planted bugs of attention, latent_store and mla: what implementations of these are known to get wrong. Each
 * runs the reference on arguments that are wrong in one way.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc.h"

size_t kc_ref_items(uint32_t op, const struct kern_args *a)
{
    return kern_pick(op, D0_F32, KERN_REF)->items(a);
}

size_t kc_ref_shared(uint32_t op, const struct kern_args *a)
{
    const struct kern_variant *v = kern_pick(op, D0_F32, KERN_REF);
    return v->shared ? v->shared(a) : 0;
}

size_t kc_ref_scratch(uint32_t op, const struct kern_args *a)
{
    const struct kern_variant *v = kern_pick(op, D0_F32, KERN_REF);
    return v->scratch ? v->scratch(a) : 0;
}

static void ref(uint32_t op, const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    kern_pick(op, D0_F32, KERN_REF)->run(a, first, last, thread);
}

/* ---- attention ---- */

void kc_bug_no_softcap(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_SOFTCAP].f = 0;
    ref(D0_OP_ATTENTION, &b, first, last, thread);
}

void kc_bug_no_sink(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in[6] = NULL;
    ref(D0_OP_ATTENTION, &b, first, last, thread);
}

void kc_bug_first_sink(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    float same[64];
    struct kern_args b = *a;
    for (size_t i = 0; i < 64 && a->in[6] && a->in_dtype[6] == D0_F32; i++)
        same[i] = *(const float *)a->in[6];
    if (a->in[6] && a->in_dtype[6] == D0_F32)
        b.in[6] = same;
    ref(D0_OP_ATTENTION, &b, first, last, thread);
}

/* The chunk of p starts one position early. */
void kc_bug_early_chunk(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    int64_t chunk = a->attr[D0_ATTR_CHUNK].i;
    for (size_t i = first; i < last; i++) {
        struct kern_args b = *a;
        int64_t p = ((const int32_t *)a->in[3])[(int64_t)i / a->heads];
        if (chunk > 0 && p >= chunk) {
            int64_t window = p - (p / chunk * chunk - 1) + 1;
            b.attr[D0_ATTR_CHUNK].i = 0;
            b.window = a->window > 0 && a->window < window ? a->window : window;
        }
        ref(D0_OP_ATTENTION, &b, i, i + 1, thread);
    }
}

/* The last `chunk` positions instead of those of the same chunk. */
void kc_bug_sliding_chunk(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.window = a->window == 0 ? a->attr[D0_ATTR_CHUNK].i : a->window;
    b.attr[D0_ATTR_CHUNK].i = 0;
    ref(D0_OP_ATTENTION, &b, first, last, thread);
}

void kc_bug_wide_blocks(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_BLOCK].i = a->attr[D0_ATTR_BLOCK].i + (a->attr[D0_ATTR_BLOCK].i > 1);
    ref(D0_OP_ATTENTION, &b, first, last, thread);
}

/* Every kv head gets the blocks of the first one. */
void kc_bug_one_choice(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    const int32_t *chosen = a->in[7];
    size_t width = (size_t)a->in_dims[7][1], topk = width / (size_t)a->kv_heads,
           n = width * (size_t)a->n_rows;
    int32_t *same = malloc((n + 1) * sizeof *same);
    for (size_t i = 0; i < n && chosen && same; i++)
        same[i] = chosen[i / width * width + i % width % topk];
    b.in[7] = chosen ? same : NULL;
    ref(D0_OP_ATTENTION, &b, first, last, thread);
    free(same);
}

void kc_bug_no_span(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in[8] = NULL;
    ref(D0_OP_ATTENTION, &b, first, last, thread);
}

void kc_bug_late_window(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const int32_t *spans = a->in[8];
    for (size_t i = first; i < last; i++) {
        struct kern_args b = *a;
        const size_t t = i / (size_t)a->heads;
        const int64_t p = ((const int32_t *)a->in[3])[t];
        if (spans && a->window > 0)
            b.window = a->window > spans[2 * t + 1] - 1 - p ? a->window - (spans[2 * t + 1] - 1 - p) : 1;
        ref(D0_OP_ATTENTION, &b, i, i + 1, thread);
    }
}

void kc_bug_no_scale(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.scale = 1;
    ref(D0_OP_ATTENTION, &b, first, last, thread);
}

/* ---- latent_store ---- */

void kc_bug_rope_first(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    if (a->in[5]) {
        b.in[0] = a->in[5];
        b.in[5] = a->in[0];
        memcpy(b.in_dims[0], a->in_dims[5], sizeof b.in_dims[0]);
        memcpy(b.in_dims[5], a->in_dims[0], sizeof b.in_dims[5]);
    }
    ref(D0_OP_LATENT_STORE, &b, first, last, thread);
}

void kc_bug_any_latent_page(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in_dims[1][0] = INT64_MAX;
    ref(D0_OP_LATENT_STORE, &b, first, last, thread);
}

/* ---- mla ---- */

void kc_bug_mla_one_more(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    int32_t positions[64];
    struct kern_args b = *a;
    for (size_t t = 0; t < (size_t)a->n_rows; t++) {
        int32_t p = ((const int32_t *)a->in[3])[t];
        positions[t] = p % a->in_dims[1][2] == a->in_dims[1][2] - 1 ? p : p + 1;
    }
    b.in[3] = positions;
    ref(D0_OP_MLA, &b, first, last, thread);
}

/* kv_b read as the keys of all heads, then the values of all heads. */
void kc_bug_mla_head_order(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    size_t nope = (size_t)a->attr[D0_ATTR_NOPE].i, v_dim = (size_t)a->v_dim, heads = (size_t)a->heads,
           bytes = (size_t)a->in_dims[2][1] * kc_width(a->in_dtype[2]);
    unsigned char *other = malloc(heads * (nope + v_dim) * bytes);
    for (size_t r = 0; r < heads * (nope + v_dim) && other; r++) {
        size_t h = r / (nope + v_dim), d = r % (nope + v_dim),
               from = d < nope ? h * nope + d : heads * nope + h * v_dim + d - nope;
        memcpy(other + r * bytes, (const unsigned char *)a->in[2] + from * bytes, bytes);
    }
    b.in[2] = other;
    ref(D0_OP_MLA, &b, first, last, thread);
    free(other);
}

void kc_bug_mla_no_rope(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    size_t nope = (size_t)a->attr[D0_ATTR_NOPE].i, whole = nope + (size_t)a->attr[D0_ATTR_ROPE].i,
           n = (size_t)(a->n_rows * a->heads) * whole;
    float *q = malloc((n + 1) * sizeof *q);
    for (size_t i = 0; i < n && q; i++)
        q[i] = i % whole < nope ? ((const float *)a->in[0])[i] : 0;
    b.in[0] = q;
    ref(D0_OP_MLA, &b, first, last, thread);
    free(q);
}

void kc_bug_mla_no_scale(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.scale = 1;
    ref(D0_OP_MLA, &b, first, last, thread);
}

void kc_bug_mla_all_keys(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in[6] = NULL;
    ref(D0_OP_MLA, &b, first, last, thread);
}

/* The last of the chosen is lost. */
void kc_bug_mla_short_choice(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    size_t width = (size_t)a->in_dims[6][1], n = a->in[6] ? width * (size_t)a->n_rows : 0;
    int32_t *list = malloc((n + 1) * sizeof *list);
    for (size_t i = 0; i < n && list; i++)
        list[i] = i % width == width - 1 ? -1 : ((const int32_t *)a->in[6])[i];
    b.in[6] = a->in[6] ? list : NULL;
    ref(D0_OP_MLA, &b, first, last, thread);
    free(list);
}

void kc_bug_mla_any_page(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in_dims[1][0] = INT64_MAX;
    ref(D0_OP_MLA, &b, first, last, thread);
}

/* ---- mla, expanded ---- */

enum expanded_bug { SEES_BLOCK, HALF_KEYS, NEXT_HEAD, STEP_ONLY };
#define BLOCK 64

/* Row r of kv_b times the latent of a slot. */
static double expanded(const struct kern_args *a, enum expanded_bug bug, size_t r, size_t slot)
{
    size_t latent = (size_t)a->attr[D0_ATTR_LATENT].i, width = (size_t)a->in_dims[1][3];
    double sum = 0;
    for (size_t l = 0; l < latent; l++) {
        float w, c;
        tensor_to_f32((const unsigned char *)a->in[2] + (r * latent + l) * kc_width(a->in_dtype[2]),
                      a->in_dtype[2], 1, &w);
        tensor_to_f32((const unsigned char *)a->in[1] + (slot * width + l) * kc_width(a->in_dtype[1]),
                      a->in_dtype[1], 1, &c);
        sum += (double)w * (double)c;
    }
    return bug == HALF_KEYS ? (double)bf16_to_f32(f32_to_bf16((float)sum)) : sum;
}

static double rotated(const struct kern_args *a, size_t slot, size_t d)
{
    size_t latent = (size_t)a->attr[D0_ATTR_LATENT].i, width = (size_t)a->in_dims[1][3];
    float x;
    tensor_to_f32((const unsigned char *)a->in[1] + (slot * width + latent + d) * kc_width(a->in_dtype[1]),
                  a->in_dtype[1], 1, &x);
    return (double)x;
}

/* Last position of the sequence of row t in this step, and its first one. */
static void step_of(const struct kern_args *a, size_t t, int32_t *first, int32_t *last)
{
    const int32_t *positions = a->in[3], *seq_of = a->in[4];
    *first = *last = positions[t];
    for (size_t i = 0; i < (size_t)a->n_rows; i++)
        if (seq_of[i] == seq_of[t] && positions[i] >= 0 && positions[i] < INT32_MAX) {
            *first = positions[i] < *first ? positions[i] : *first;
            *last = positions[i] > *last ? positions[i] : *last;
        }
}

/* One token and head whose pages all exist. */
static void expanded_row(const struct kern_args *a, enum expanded_bug bug, size_t t, size_t h, float *out)
{
    const int32_t *table = a->in[5];
    int32_t p = ((const int32_t *)a->in[3])[t], seq = ((const int32_t *)a->in[4])[t], first, last;
    size_t heads = (size_t)a->heads, nope = (size_t)a->attr[D0_ATTR_NOPE].i,
           rope = (size_t)a->attr[D0_ATTR_ROPE].i, v_dim = (size_t)a->v_dim, each = nope + v_dim,
           page = (size_t)a->in_dims[1][2], from = bug == NEXT_HEAD ? (h + 1) % heads : h;
    const float *q = (const float *)a->in[0] + (t * heads + h) * (nope + rope);
    double sum = 0, top = -INFINITY, acc[128] = {0};
    step_of(a, t, &first, &last);
    int32_t end = bug == SEES_BLOCK && p / BLOCK == last / BLOCK ? last : p;
    for (int32_t j = bug == STEP_ONLY ? first : 0; j <= end; j++) {
        size_t slot = (size_t)table[(size_t)seq * (size_t)a->in_dims[5][1] + (size_t)j / page] * page +
                      (size_t)j % page;
        double score = 0;
        for (size_t d = 0; d < nope; d++)
            score += (double)q[d] * expanded(a, bug, h * each + d, slot);
        for (size_t d = 0; d < rope; d++)
            score += (double)q[nope + d] * rotated(a, slot, d);
        score = (double)(float)(score * a->scale);
        double now = fmax(top, score), shrink = top == -INFINITY ? 0 : exp(top - now),
               weight = now == -INFINITY ? 0 : exp(score - now);
        top = now;
        sum = sum * shrink + weight;
        for (size_t d = 0; d < v_dim; d++)
            acc[d] = acc[d] * shrink + weight * expanded(a, bug, from * each + nope + d, slot);
    }
    for (size_t d = 0; d < v_dim; d++)
        out[d] = (float)(acc[d] / sum);
}

/* Right as long as rows are absorbed. */
static void buggy_expanded(const struct kern_args *a, enum expanded_bug bug, size_t first, size_t last,
                           unsigned thread)
{
    ref(D0_OP_MLA, a, first, last, thread);
    for (size_t item = first; item < last && a->attr[D0_ATTR_FORM].i && !a->in[6]; item++) {
        float *out = (float *)a->out[0] + item * (size_t)a->v_dim;
        if (!isnan(out[0])) /* else a page is missing */
            expanded_row(a, bug, item / (size_t)a->heads, item % (size_t)a->heads, out);
    }
}

#define EXPANDED(name, bug)                                                                                  \
    void kc_bug_##name(const struct kern_args *a, size_t first, size_t last, unsigned thread)                \
    {                                                                                                        \
        buggy_expanded(a, bug, first, last, thread);                                                         \
    }
EXPANDED(expanded_future, SEES_BLOCK)
EXPANDED(expanded_half, HALF_KEYS)
EXPANDED(expanded_head, NEXT_HEAD)
EXPANDED(expanded_step, STEP_ONLY)
