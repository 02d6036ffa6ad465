/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of the operators of towers: segment_attention, position_embed, scatter_rows, and variants of them
 * with one known bug each. Rows that no span holds are NaN, as is what lies around the inputs.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc.h"
#include "kc_make.h"

/* ---- segment_attention ---- */

const unsigned kc_cases_SEGMENT_ATTENTION = 2 * TAILS + 160;

static void make_spans(struct kc_case *c, int64_t t, int64_t s, int32_t *spans, bool *seen)
{
    for (int64_t i = 0; i < t; i++) {
        int64_t from = kc_between(c, 0, s - 1), to = kc_between(c, from + 1, s);
        if (kc_chance(c, 4)) { /* the whole */
            from = 0;
            to = s;
        }
        for (int64_t j = from; j < to; j++)
            seen[j] = true;
        if (!c->large && kc_chance(c, 12)) { /* none: nothing is read of it */
            static const int64_t wrong[][2] = {
                {-1, 1}, {0, 0}, {1, 0}, {INT32_MIN, INT32_MAX}, {0, INT32_MAX}};
            const int64_t *bad = wrong[kc_between(c, 0, 4)];
            from = bad[0];
            to = bad[1];
        }
        spans[2 * i] = (int32_t)from;
        spans[2 * i + 1] = (int32_t)to;
    }
}

void kc_make_SEGMENT_ATTENTION(struct kc_case *c, unsigned index)
{
    int64_t dim = c->large        ? 80
                  : index < TAILS ? (int64_t)index + 1
                                  : kc_between(c, 1, 80),
            v_dim = c->large                              ? 80
                    : index >= TAILS && index < 2 * TAILS ? (int64_t)index - TAILS + 1
                    : kc_chance(c, 2)                     ? dim
                                                          : kc_between(c, 1, 80),
            kv = c->large ? 16 : kc_between(c, 1, 3), heads = c->large ? 16 : kv * kc_between(c, 1, 3),
            t = c->large ? 256 : kc_between(c, 0, 9),
            s = c->large ? 256 : kc_between(c, 1, kc_chance(c, 3) ? 200 : 20); /* more than one block */
    kc_fill(c, 0, D0_F32, t * heads * dim, heads * dim);
    kc_fill(c, 1, D0_F32, s * kv * dim, 0);
    kc_fill(c, 2, D0_F32, s * kv * v_dim, 0);
    bool *seen = arena_alloc_n(c->arena, (size_t)s, sizeof *seen);
    if (!seen)
        abort();
    memset(seen, 0, (size_t)s);
    make_spans(c, t, s, kc_ints(c, 3, t * 2, 2), seen);
    for (int64_t j = 0; j < s; j++) {
        for (int64_t i = 0; !seen[j] && i < kv * dim; i++)
            ((float *)c->in[1].data)[j * kv * dim + i] = NAN;
        for (int64_t i = 0; !seen[j] && i < kv * v_dim; i++)
            ((float *)c->in[2].data)[j * kv * v_dim + i] = NAN;
    }
    poison(c, 0, t, heads * dim);
    kc_dims(c, 0, 2, (int64_t[]){t, heads * dim});
    kc_dims(c, 1, 2, (int64_t[]){s, kv * dim});
    kc_dims(c, 2, 2, (int64_t[]){s, kv * v_dim});
    kc_dims(c, 3, 2, (int64_t[]){t, 2});
    kc_output(c, t, heads * v_dim);
    c->a.tokens = t;
    c->a.k = heads * dim;
    c->a.heads = heads;
    c->a.kv_heads = kv;
    c->a.dim = dim;
    c->a.v_dim = v_dim == dim && kc_chance(c, 2) ? 0 : v_dim;
    c->a.scale = pow((double)dim, -0.5);
    c->flops = 2.0 * (double)(t * heads * s * (dim + v_dim));
    snprintf(c->shape, sizeof c->shape, "T=%d S=%d heads=%d/%d dim=%d v_dim=%d", (int)t, (int)s, (int)heads,
             (int)kv, (int)dim, (int)v_dim);
}

/* One row of one head: want and scale [v_dim]. The scale: largest |v| attended, times 1 + the largest natural
 * scale of a score. */
static void judge_head(struct kc_case *c, size_t t, size_t h, size_t v_dim, double *want, double *scale)
{
    const int32_t *span = (const int32_t *)c->in[3].data + 2 * t;
    const size_t dim = (size_t)c->a.dim, heads = (size_t)c->a.heads, kv = (size_t)c->a.kv_heads,
                 g = h / (heads / kv);
    double sum = 0, top = -INFINITY, size = 0, score[200];
    memset(want, 0, v_dim * sizeof *want);
    memset(scale, 0, v_dim * sizeof *scale);
    if (span[0] < 0 || span[1] <= span[0] || span[1] > c->a.in_dims[1][0]) {
        for (size_t i = 0; i < v_dim; i++)
            want[i] = NAN;
        return;
    }
    for (int32_t j = span[0]; j < span[1]; j++) {
        double dot = 0, squares = 0;
        for (size_t i = 0; i < dim; i++) {
            double term =
                kc_at(c, 0, (t * heads + h) * dim + i) * kc_at(c, 1, ((size_t)j * kv + g) * dim + i);
            dot += term;
            squares += term * term;
        }
        score[j - span[0]] = c->a.scale * dot;
        size = fmax(size, c->a.scale * fmax(fabs(dot), 2 * sqrt(squares)));
        top = fmax(top, c->a.scale * dot);
        if (isnan(dot))
            sum = NAN;
    }
    for (int32_t j = span[0]; j < span[1]; j++) {
        double p = exp(score[j - span[0]] - top);
        sum += p;
        for (size_t i = 0; i < v_dim; i++) {
            double v = kc_at(c, 2, ((size_t)j * kv + g) * v_dim + i);
            want[i] += p * v;
            scale[i] = fmax(scale[i], fabs(v));
        }
    }
    for (size_t i = 0; i < v_dim; i++) {
        want[i] /= sum;
        scale[i] = fmax(scale[i] * (1 + size), SCALE_FLOOR);
    }
}

void kc_judge_SEGMENT_ATTENTION(struct kc_case *c)
{
    const size_t heads = (size_t)c->a.heads, v_dim = (size_t)c->a.n / heads;
    kc_judge_begin(c);
    for (size_t item = 0; item < (size_t)c->a.n_rows * heads; item++)
        judge_head(c, item / heads, item % heads, v_dim, c->want[0] + item * v_dim,
                   c->scale[0] + item * v_dim);
}

/* ---- position_embed ---- */

const unsigned kc_cases_POSITION_EMBED = TAILS + 90;

void kc_make_POSITION_EMBED(struct kc_case *c, unsigned index)
{
    static const int64_t taps[] = {1, 4, 16};
    int64_t k = c->large ? 1152 : width_of(c, index, 300), t = c->large ? 1024 : kc_between(c, 0, 9),
            v = c->large ? 2304 : kc_between(c, 1, 30), n = c->large ? 4 : taps[kc_between(c, 0, 2)];
    const bool weighed = n > 1 || kc_chance(c, 2);
    const uint32_t type = kc_any_type(c);
    int32_t *rows = kc_ints(c, 0, t * n, n);
    for (int64_t i = 0; i < t * n; i++) {
        rows[i] = (int32_t)kc_between(c, 0, v - 1);
        if (!c->large && kc_chance(c, 10))
            rows[i] = -1;
        else if (!c->large && kc_chance(c, 40))
            rows[i] = kc_chance(c, 2) ? (int32_t)v : INT32_MIN;
    }
    kc_fill(c, 1, type, v * k, 0);
    if (weighed)
        kc_fill(c, 2, D0_F32, t * n, n);
    float *w = c->in[2].data;
    for (int64_t i = 0; weighed && i < t * n; i++)
        w[i] = (float)(1.5 * rng_next_f64(&c->rng) - 0.5);
    kc_dims(c, 0, 2, (int64_t[]){t, n});
    kc_dims(c, 1, 2, (int64_t[]){v, k});
    if (weighed)
        kc_dims(c, 2, 2, (int64_t[]){t, n});
    kc_output(c, t, k);
    c->a.tokens = t;
    c->a.k = n;
    c->moved = (double)(t * k) * (4 + (double)n * (double)kc_width(type));
    snprintf(c->shape, sizeof c->shape, "T=%d V=%d K=%d n=%d%s %s", (int)t, (int)v, (int)k, (int)n,
             weighed ? " weights" : "", dtype_name(type));
}

void kc_judge_POSITION_EMBED(struct kc_case *c)
{
    const int32_t *rows = c->in[0].data;
    const size_t n = (size_t)c->a.in_dims[0][1], k = (size_t)c->a.n;
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        double sum = 0, size = 0;
        for (size_t j = i / k * n; j < (i / k + 1) * n; j++) {
            bool there = rows[j] >= 0 && rows[j] < c->a.in_dims[1][0];
            double term =
                rows[j] == -1 ? 0
                : there ? (c->in[2].bytes ? kc_at(c, 2, j) : 1) * kc_at(c, 1, (size_t)rows[j] * k + i % k)
                        : (double)NAN;
            sum += term;
            size = fmax(size, fabs(term));
        }
        c->want[0][i] = sum;
        c->scale[0][i] = fmax(fmax(fabs(sum), size), SCALE_FLOOR);
    }
}

/* ---- scatter_rows ---- */

const unsigned kc_cases_SCATTER_ROWS = TAILS + 60;

void kc_make_SCATTER_ROWS(struct kc_case *c, unsigned index)
{
    int64_t k = c->large ? 4096 : width_of(c, index, 300), t = c->large ? 512 : kc_between(c, 0, 12),
            f = c->large ? 512 : kc_between(c, 1, 12);
    kc_fill(c, 0, D0_F32, t * k, k);
    kc_fill(c, 1, kc_any_type(c), f * k, 0); /* what a tower gave, or a weight */
    int32_t *from = kc_ints(c, 2, t, 1);
    for (int64_t i = 0; i < t; i++) {
        from[i] = kc_chance(c, 2) ? -1 : (int32_t)kc_between(c, 0, f - 1);
        if (!c->large && kc_chance(c, 10))
            from[i] = kc_chance(c, 2) ? (int32_t)f : -2;
    }
    c->a.attr[D0_ATTR_ADD].i = !c->large && kc_chance(c, 2);
    kc_dims(c, 0, 2, (int64_t[]){t, k});
    kc_dims(c, 1, 2, (int64_t[]){f, k});
    kc_dims(c, 2, 1, (int64_t[]){t});
    poison(c, 0, t, k);
    kc_output(c, t, k);
    c->a.tokens = t;
    c->a.k = k;
    c->moved = 12 * (double)(t * k);
    snprintf(c->shape, sizeof c->shape, "T=%d F=%d K=%d add=%d", (int)t, (int)f, (int)k,
             (int)c->a.attr[D0_ATTR_ADD].i);
}

void kc_judge_SCATTER_ROWS(struct kc_case *c)
{
    const int32_t *from = c->in[2].data;
    const size_t k = (size_t)c->a.n;
    kc_judge_begin(c);
    for (size_t i = 0; i < kc_outputs(c, 0); i++) {
        const int32_t f = from[i / k];
        const float own = (float)kc_at(c, 0, i);
        if (f == -1)
            c->want[0][i] = (double)own;
        else if (f < 0 || f >= c->a.in_dims[1][0])
            c->want[0][i] = NAN;
        else
            c->want[0][i] =
                (double)((c->a.attr[D0_ATTR_ADD].i ? own : 0) + (float)kc_at(c, 1, (size_t)f * k + i % k));
        c->scale[0][i] = fabs(c->want[0][i]);
    }
}

/* ---- planted bugs ---- */

static size_t rows(const struct kern_args *a)
{
    return (size_t)a->n_rows;
}

static size_t heads_items(const struct kern_args *a)
{
    return (size_t)(a->n_rows * a->heads);
}

static size_t span_scratch(const struct kern_args *a)
{
    return kc_ref_scratch(D0_OP_SEGMENT_ATTENTION, a);
}

static void ref(uint32_t op, const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    kern_pick(op, 0, KERN_REF)->run(a, first, last, thread);
}

/* The reference with the span of each row changed; where the change leaves none, as it was. */
static void with_span(const struct kern_args *a, size_t first, size_t last, unsigned thread,
                      void (*change)(int32_t span[2], int64_t keys))
{
    const size_t heads = (size_t)a->heads;
    for (size_t item = first; item < last; item++) {
        struct kern_args b = *a;
        const size_t t = item / heads, v_dim = (size_t)a->n / heads;
        int32_t span[2];
        memcpy(span, (const int32_t *)a->in[3] + 2 * t, sizeof span);
        if (span[0] >= 0 && span[0] < span[1] && span[1] <= a->in_dims[1][0])
            change(span, a->in_dims[1][0]);
        b.in[0] = (const float *)a->in[0] + t * (size_t)a->k;
        b.in[3] = span;
        b.out[0] = (float *)a->out[0] + t * heads * v_dim;
        ref(D0_OP_SEGMENT_ATTENTION, &b, item % heads, item % heads + 1, thread);
    }
}

static void lose_last(int32_t span[2], int64_t keys)
{
    (void)keys;
    span[1] -= span[1] > span[0] + 1;
}

static void one_more(int32_t span[2], int64_t keys)
{
    span[1] += span[1] < keys;
}

static void all_rows(int32_t span[2], int64_t keys)
{
    span[0] = 0;
    span[1] = (int32_t)keys;
}

static void span_short(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    with_span(a, first, last, thread, lose_last);
}

static void span_long(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    with_span(a, first, last, thread, one_more);
}

static void span_none(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    with_span(a, first, last, thread, all_rows);
}

static void span_scale(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.scale = 1;
    ref(D0_OP_SEGMENT_ATTENTION, &b, first, last, thread);
}

static void taps_equal(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in[2] = NULL;
    ref(D0_OP_POSITION_EMBED, &b, first, last, thread);
}

static void taps_first(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const size_t m = (size_t)a->in_dims[0][1];
    for (size_t t = first; t < last; t++) {
        struct kern_args b = *a;
        b.in_dims[0][1] = 1;
        b.in[0] = (const int32_t *)a->in[0] + t * m;
        b.in[2] = a->in[2] ? (const float *)a->in[2] + t * m : NULL;
        b.out[0] = (float *)a->out[0] + t * (size_t)a->n;
        ref(D0_OP_POSITION_EMBED, &b, 0, 1, thread);
    }
}

static void taps_none(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const size_t m = (size_t)a->in_dims[0][1];
    ref(D0_OP_POSITION_EMBED, a, first, last, thread);
    for (size_t t = first; t < last; t++)
        for (size_t j = 0; j < m; j++) /* -1 taken for the first row */
            for (size_t i = 0; ((const int32_t *)a->in[0])[t * m + j] == -1 && i < (size_t)a->n; i++)
                ((float *)a->out[0])[t * (size_t)a->n + i] += 1;
}

static void scatter_always_adds(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_ADD].i = 1;
    ref(D0_OP_SCATTER_ROWS, &b, first, last, thread);
}

static void scatter_in_order(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const size_t n = (size_t)a->n;
    for (size_t t = first; t < last; t++) { /* row t of the features, whatever `from` says */
        struct kern_args b = *a;
        int32_t from = ((const int32_t *)a->in[2])[t];
        if (from >= 0 && from < a->in_dims[1][0])
            from = (int32_t)((int64_t)t % a->in_dims[1][0]);
        b.in[0] = (const float *)a->in[0] + t * n;
        b.in[2] = &from;
        b.out[0] = (float *)a->out[0] + t * n;
        ref(D0_OP_SCATTER_ROWS, &b, 0, 1, thread);
    }
}

static void scatter_trusts(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const size_t n = (size_t)a->n;
    ref(D0_OP_SCATTER_ROWS, a, first, last, thread);
    for (size_t t = first; t < last; t++)
        if (((const int32_t *)a->in[2])[t] < 0) /* any negative number is none */
            memcpy((float *)a->out[0] + t * n, (const float *)a->in[0] + t * n, n * sizeof(float));
}

static void scatter_other_type(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in_dtype[1] = D0_BF16; /* no type is narrower: nothing is read behind the end */
    ref(D0_OP_SCATTER_ROWS, &b, first, last, thread);
}

/* Others that take more numbers of a row than they once did. */
static void gather_first(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const size_t m = a->in_dims[1][1] > 1 ? (size_t)a->in_dims[1][1] : 1, k = (size_t)a->n / m;
    ref(D0_OP_GATHER_ROWS, a, first, last, thread);
    for (size_t r = first; r < last; r++) /* the first row as often as there are rows */
        for (size_t j = 1; j < m; j++)
            memcpy((float *)a->out[0] + (r * m + j) * k, (float *)a->out[0] + r * m * k, k * sizeof(float));
}

static void angles_of_time(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_SECTION_T].i = b.attr[D0_ATTR_SECTION_H].i = b.attr[D0_ATTR_SECTION_W].i = 0;
    ref(D0_OP_ROPE_TABLE, &b, first, last, thread);
}

static void angles_apart(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_INTERLEAVE].i = 0;
    ref(D0_OP_ROPE_TABLE, &b, first, last, thread);
}

#define PLANTED(OP, items, scratch, fn, bug)                                                                 \
    {                                                                                                        \
        {D0_OP_##OP, 0, KERN_REF, "planted_" #fn, fn, items, 1, scratch}, bug                                \
    }

static const struct kc_planted planted[] = {
    PLANTED(SEGMENT_ATTENTION, heads_items, span_scratch, span_short, "loses the last row of a span"),
    PLANTED(SEGMENT_ATTENTION, heads_items, span_scratch, span_long, "reads one row behind a span"),
    PLANTED(SEGMENT_ATTENTION, heads_items, span_scratch, span_none, "ignores spans"),
    PLANTED(SEGMENT_ATTENTION, heads_items, span_scratch, span_scale, "forgets the scale"),
    PLANTED(POSITION_EMBED, rows, NULL, taps_equal, "ignores weights"),
    PLANTED(POSITION_EMBED, rows, NULL, taps_first, "takes the first row only"),
    PLANTED(POSITION_EMBED, rows, NULL, taps_none, "something where there is no row"),
    PLANTED(SCATTER_ROWS, rows, NULL, scatter_always_adds, "adds where it should replace"),
    PLANTED(SCATTER_ROWS, rows, NULL, scatter_in_order, "features in the order of tokens"),
    PLANTED(SCATTER_ROWS, rows, NULL, scatter_trusts, "any negative number is none"),
    PLANTED(SCATTER_ROWS, rows, NULL, scatter_other_type, "features of one type only"),
    PLANTED(GATHER_ROWS, rows, NULL, gather_first, "one row as often as there are rows"),
    PLANTED(ROPE_TABLE, rows, NULL, angles_of_time, "ignores sections"),
    PLANTED(ROPE_TABLE, rows, NULL, angles_apart, "ignores interleave"),
};

size_t kc_planted_tower(const struct kc_planted **out)
{
    *out = planted;
    return ARRAY_LEN(planted);
}
