/* SPDX-License-Identifier: Apache-2.0
 *
 * Definitions of the operators that know positions: rope_table, rope, kv_store, attention. Only live keys are
 * read: what lies in free slots never matters.
 */
#include <math.h>

#include "kern/ref/ref.h"
#include "kern/ref/ref_keys.h"

/* Which of t, h, w (0, 1, 2) angle j follows. */
static unsigned place_of_angle(const struct kern_args *a, size_t j)
{
    const int64_t t = a->attr[D0_ATTR_SECTION_T].i, h = a->attr[D0_ATTR_SECTION_H].i,
                  w = a->attr[D0_ATTR_SECTION_W].i, at = (int64_t)j;
    if (a->attr[D0_ATTR_INTERLEAVE].i == 2)
        return at % 2 ? 1 : 2;
    if (a->attr[D0_ATTR_INTERLEAVE].i)
        return at % 3 == 1 && at < 3 * h ? 1 : at % 3 == 2 && at < 3 * w ? 2 : 0;
    if (t + h + w == 0 || at < t)
        return 0;
    return at < t + h ? 1 : 2;
}

void ref_rope_table(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const size_t three = a->in_dims[0][1] == 3 ? 3 : 1;
    const int32_t *positions = a->in[0]; /* [T] or [T, 3] */
    const float *inv_freq = a->in[1];    /* [n / 2] */
    float *out = a->out[0];              /* [T, n]: cosines, then sines */
    size_t half = (size_t)a->n / 2;
    float factor = a->factor != 0 ? (float)a->factor : 1.0f;
    for (size_t t = first; t < last; t++)
        for (size_t j = 0; j < half; j++) {
            int32_t p = positions[three * t + (three == 3 ? place_of_angle(a, j) : 0)];
            float angle = (float)p * inv_freq[j];
            out[t * 2 * half + j] = cosf(angle) * factor;
            out[t * 2 * half + half + j] = sinf(angle) * factor;
        }
}

void ref_rope(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *x = a->in[0];     /* [T, k]: heads of `dim` values */
    const float *table = a->in[1]; /* [T, 2 * half] */
    float *out = a->out[0];
    size_t k = (size_t)a->k, dim = (size_t)a->dim, half = (size_t)a->table_width / 2,
           offset = (size_t)a->offset;
    double sign = a->attr[D0_ATTR_INVERSE].i ? -1.0 : 1.0;
    for (size_t t = first; t < last; t++) {
        memcpy(out + t * k, x + t * k, k * sizeof *out);
        const float *c = table + t * 2 * half, *s = c + half;
        for (size_t h = 0; h + dim <= k; h += dim)
            for (size_t j = 0; j < half; j++) {
                size_t p = t * k + h + offset + (a->style ? 2 * j : j), q = a->style ? p + 1 : p + half;
                double u = (double)x[p], v = (double)x[q], sine = sign * (double)s[j];
                out[p] = (float)(u * (double)c[j] - v * sine);
                out[q] = (float)(v * (double)c[j] + u * sine);
            }
    }
}

void ref_kv_store(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *k = a->in[0], *v = a->in[1]; /* [T, kv_heads * dim], [T, kv_heads * v_dim] */
    const int32_t *positions = a->in[4], *seq_of = a->in[5], *page_table = a->in[6];
    size_t heads = (size_t)a->kv_heads,
           dims[2] = {(size_t)a->dim, a->v_dim ? (size_t)a->v_dim : (size_t)a->dim};
    for (size_t t = first; t < last; t++) {
        int64_t page = ref_page(a, page_table, seq_of[t], positions[t]);
        if (page < 0)
            continue; /* attention makes the row NaN */
        size_t slot = (size_t)(positions[t] % a->page_tokens), tokens = (size_t)a->page_tokens;
        for (int side = 0; side < 2; side++) {
            const float *x = side ? v : k;
            size_t width = a->in_dtype[2 + side] == D0_F32 ? 4 : 2, d = dims[side];
            for (size_t h = 0; h < heads; h++) {
                size_t at = (((size_t)page * heads + h) * tokens + slot) * d;
                tensor_from_f32(x + (t * heads + h) * d, d, a->in_dtype[2 + side],
                                (unsigned char *)a->state[side] + at * width);
            }
        }
    }
}

double ref_online(struct ref_online *o, const struct ref_run *runs, size_t n, const float *scores,
                  double *weights)
{
    float top = o->top;
    for (size_t r = 0; r < n; r++)
        for (size_t i = runs[r].from; i < runs[r].to; i++)
            top = scores[i] > top || isnan(scores[i]) ? scores[i] : top;
    double shrink = o->top == -INFINITY ? 0 : exp((double)o->top - (double)top);
    double base = top == -INFINITY ? 0 : (double)top; /* a block of nothing but -inf weighs 0 */
    o->sum *= shrink;
    for (size_t r = 0; r < n; r++)
        for (size_t i = runs[r].from; i < runs[r].to; i++) {
            weights[i] = exp((double)scores[i] - base);
            o->sum += weights[i];
        }
    o->top = top;
    return shrink;
}

/* Visible keys of one page of one head: scores, then the running maximum, sum and weighted values. */
static void attend_page(const struct kern_args *a, const float *q, size_t page_head,
                        const struct ref_run *runs, size_t n, struct ref_online *o, double *acc)
{
    size_t dim = (size_t)a->dim, v_dim = a->v_dim ? (size_t)a->v_dim : dim, tokens = (size_t)a->page_tokens;
    float scores[KERN_MAX_PAGE_TOKENS];
    double weights[KERN_MAX_PAGE_TOKENS], cap = a->attr[D0_ATTR_SOFTCAP].f;
    for (size_t r = 0; r < n; r++)
        for (size_t i = runs[r].from; i < runs[r].to; i++) {
            double dot = 0;
            for (size_t d = 0; d < dim; d++)
                dot += (double)q[d] *
                       (double)ref_load(a->in[1], a->in_dtype[1], (page_head * tokens + i) * dim + d);
            dot *= a->scale;
            scores[i] = (float)(cap > 0 ? cap * tanh(dot / cap) : dot);
        }
    double shrink = ref_online(o, runs, n, scores, weights);
    for (size_t d = 0; d < v_dim; d++)
        acc[d] *= shrink;
    for (size_t r = 0; r < n; r++)
        for (size_t i = runs[r].from; i < runs[r].to; i++)
            for (size_t d = 0; d < v_dim; d++)
                acc[d] += weights[i] *
                          (double)ref_load(a->in[2], a->in_dtype[2], (page_head * tokens + i) * v_dim + d);
}

/* A sink is a logit of its head that comes before all keys and has no value. */
static struct ref_online start_of(const struct kern_args *a, size_t head)
{
    struct ref_online o = {.top = a->in[6] ? ref_load(a->in[6], a->in_dtype[6], head) : -INFINITY};
    o.sum = o.top == -INFINITY ? 0 : 1;
    return o;
}

void ref_attention(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const float *q = a->in[0]; /* [T, heads * dim] */
    const int32_t *positions = a->in[3], *seq_of = a->in[4], *page_table = a->in[5], *chosen = a->in[7],
                  *spans = a->in[8]; /* [T, 2] or NULL */
    float *out = a->out[0];          /* [T, heads * v_dim] */
    size_t heads = (size_t)a->heads, kv_heads = (size_t)a->kv_heads, dim = (size_t)a->dim,
           v_dim = a->v_dim ? (size_t)a->v_dim : dim, topk = (size_t)a->in_dims[7][1] / kv_heads;
    double *acc = (double *)((unsigned char *)a->scratch + (size_t)thread * a->scratch_bytes); /* [v_dim] */
    for (size_t item = first; item < last; item++) {
        size_t t = item / heads, h = item % heads, kv = h * kv_heads / heads, n;
        struct ref_keys keys = ref_keys_all(positions[t], a->window, a->attr[D0_ATTR_CHUNK].i);
        struct ref_run runs[REF_MAX_RUNS];
        struct ref_online o = start_of(a, h);
        bool live = ref_page(a, page_table, seq_of[t], positions[t]) >= 0 &&
                    ref_keys_span(&keys, spans ? spans + 2 * t : NULL);
        if (chosen)
            ref_keys_choose(&keys, chosen + (t * kv_heads + kv) * topk, topk, a->attr[D0_ATTR_BLOCK].i,
                            (int32_t *)(acc + v_dim));
        memset(acc, 0, v_dim * sizeof *acc);
        for (int64_t block; live && (n = ref_keys_page(&keys, a->page_tokens, &block, runs)) > 0;) {
            int64_t page = ref_page(a, page_table, seq_of[t], block * a->page_tokens);
            live = page >= 0;
            if (live)
                attend_page(a, q + (t * heads + h) * dim, (size_t)page * kv_heads + kv, runs, n, &o, acc);
        }
        for (size_t d = 0; d < v_dim; d++)
            out[(t * heads + h) * v_dim + d] = live ? (float)(acc[d] / o.sum) : NAN;
    }
}
