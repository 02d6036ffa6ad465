/* SPDX-License-Identifier: Apache-2.0
 *
 * Definitions of sparse attention's choice (index_topk) and of attention over a window and pooled entries.
 * Page tables, positions, sequences and chosen entries are not trusted: no choice, or a row of NaN.
 */
#include "kern/ref/ref_sparse.h"

#include <math.h>

/* ---- the best of many ---- */

struct choice {
    double score; /* never NaN */
    int32_t index;
};

/* Ties go to the lower index. */
static bool worse(struct choice x, struct choice y)
{
    return x.score < y.score || (x.score == y.score && x.index > y.index);
}

/* kept[0..n) is a heap but for kept[i]: no entry is worse than the one it hangs from. */
static void sink(struct choice *kept, size_t n, size_t i)
{
    for (size_t child = 2 * i + 1; child < n; i = child, child = 2 * i + 1) {
        if (child + 1 < n && worse(kept[child + 1], kept[child]))
            child++;
        if (!worse(kept[child], kept[i]))
            return;
        struct choice t = kept[i];
        kept[i] = kept[child];
        kept[child] = t;
    }
}

/* Offers c to the best `most`, of which there are n; how many there are then. */
static size_t offer(struct choice *kept, size_t n, size_t most, struct choice c)
{
    if (n < most) {
        size_t i = n;
        for (; i > 0 && worse(c, kept[(i - 1) / 2]); i = (i - 1) / 2)
            kept[i] = kept[(i - 1) / 2];
        kept[i] = c;
        return n + 1;
    }
    if (most > 0 && worse(kept[0], c)) {
        kept[0] = c;
        sink(kept, n, 0);
    }
    return n;
}

/* The indices kept, ascending: without scores the worst is the one of the highest index. */
static void write_ascending(struct choice *kept, size_t n, int32_t *out)
{
    for (size_t i = 0; i < n; i++)
        kept[i].score = 0;
    for (size_t i = n / 2; i-- > 0;)
        sink(kept, n, i);
    while (n > 0) {
        out[--n] = kept[0].index;
        kept[0] = kept[n];
        sink(kept, n, 0);
    }
}

/* ---- index_topk ---- */

static size_t groups_of(const struct kern_args *a)
{
    int64_t g = a->attr[D0_ATTR_GROUPS].i;
    return g > 0 ? (size_t)g : 1;
}

size_t ref_index_scratch(const struct kern_args *a)
{
    return (size_t)a->attr[D0_ATTR_TOPK].i * sizeof(struct choice);
}

/* Of group g the best keys, or the best blocks and the own one, of the n keys of query t. */
static void choose(const struct kern_args *a, size_t t, size_t g, int64_t n, struct choice *kept,
                   int32_t *out, ref_score_fn *score)
{
    const int32_t *seq_of = a->in[3];
    int64_t rows = a->in_dims[1][2], block = a->attr[D0_ATTR_BLOCK].i, own = block ? (n - 1) / block : 0;
    size_t most = (size_t)a->attr[D0_ATTR_TOPK].i - (block ? 1 : 0), n_kept = 0;
    double values[REF_INDEX_KEYS], top = -INFINITY; /* top: of a block so far */
    for (int64_t s = 0, m; s < (block ? own * block : n); s += m) {
        m = rows - s % rows < REF_INDEX_KEYS ? rows - s % rows : REF_INDEX_KEYS;
        m = n - s < m ? n - s : m;
        m = block && block - s % block < m ? block - s % block : m;
        score(a, t, g, (size_t)ref_key_at(a, 1, 4, seq_of[t], s), (size_t)m, values);
        for (int64_t i = 0; i < m; i++) {
            double v = isnan(values[i]) ? -INFINITY : values[i];
            top = v > top ? v : top;
            if (!block)
                n_kept = offer(kept, n_kept, most, (struct choice){v, (int32_t)(s + i)});
        }
        if (block && (s + m) % block == 0) {
            n_kept = offer(kept, n_kept, most, (struct choice){top, (int32_t)(s / block)});
            top = -INFINITY;
        }
    }
    write_ascending(kept, n_kept, out);
    if (block)
        out[n_kept] = (int32_t)own;
}

void ref_index_rows(const struct kern_args *a, size_t first, size_t last, unsigned thread,
                    ref_score_fn *score)
{
    const int32_t *positions = a->in[2], *seq_of = a->in[3];
    int32_t *out = a->out[0]; /* [T, groups * topk] */
    size_t topk = (size_t)a->attr[D0_ATTR_TOPK].i, groups = groups_of(a);
    int64_t ratio = a->attr[D0_ATTR_RATIO].i;
    for (size_t t = first; t < last; t++) {
        int64_t n = positions[t] < 0 ? 0 : (int64_t)positions[t] + 1;
        n = ratio > 0 ? n / ratio : n;
        bool live = n > 0;
        for (int64_t s = 0; live && s < n; s += a->in_dims[1][2])
            live = ref_key_at(a, 1, 4, seq_of[t], s) >= 0;
        for (size_t i = 0; i < groups * topk; i++)
            out[t * groups * topk + i] = -1;
        for (size_t g = 0; live && g < groups; g++)
            choose(a, t, g, n, ref_scratch(a, thread), out + (t * groups + g) * topk, score);
    }
}

static double dot_key(const struct kern_args *a, unsigned pages, const float *q, size_t at, size_t dim)
{
    double dot = 0;
    for (size_t d = 0; d < dim; d++)
        dot += (double)q[d] * (double)ref_load(a->in[pages], a->in_dtype[pages], at + d);
    return dot;
}

static void score_keys(const struct kern_args *a, size_t t, size_t g, size_t at, size_t n, double *out)
{
    size_t dim = (size_t)a->dim, heads = (size_t)a->heads, each = heads / groups_of(a);
    const float *q = (const float *)a->in[0] + t * heads * dim,
                *weights = a->in[5] ? (const float *)a->in[5] + t * heads : NULL;
    double scale = a->scale != 0 ? a->scale : 1;
    bool blocks = a->attr[D0_ATTR_BLOCK].i > 0;
    for (size_t i = 0; i < n; i++) {
        double sum = 0, top = -INFINITY;
        for (size_t h = blocks ? g * each : 0; h < (blocks ? (g + 1) * each : heads); h++) {
            double s = scale * dot_key(a, 1, q + h * dim, at + i * dim, dim);
            top = s > top ? s : top;
            sum += (weights ? (double)weights[h] : 1) * (s <= 0 ? 0 : s);
        }
        out[i] = blocks ? top : sum;
    }
}

void ref_index_topk(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref_index_rows(a, first, last, thread, score_keys);
}

/* ---- pool_attention ---- */

size_t ref_pool_attention_scratch(const struct kern_args *a)
{
    return (size_t)a->dim * sizeof(double);
}

struct mean {
    double top, sum; /* of the scores so far: the largest, and the sum of e^(score - top) */
    double *acc;     /* [dim]: the same sum, of the keys */
};

/* One more key, which is its own value. */
static void attend(const struct kern_args *a, unsigned pages, const float *q, size_t at, struct mean *m)
{
    size_t dim = (size_t)a->dim;
    double score = a->scale * dot_key(a, pages, q, at, dim);
    if (score == -INFINITY)
        return;
    double top = score > m->top ? score : m->top, shrink = m->top == top ? 1 : exp(m->top - top),
           weight = exp(score - top);
    for (size_t d = 0; d < dim; d++)
        m->acc[d] = m->acc[d] * shrink + weight * (double)ref_load(a->in[pages], a->in_dtype[pages], at + d);
    m->sum = m->sum * shrink + weight;
    m->top = top;
}

/* The pooled entries that query t sees. false: one that does not exist was asked for. */
static bool attend_pool(const struct kern_args *a, const float *q, size_t t, struct mean *m)
{
    const int32_t *positions = a->in[4], *seq_of = a->in[5], *chosen = a->in[7];
    int64_t ratio = a->attr[D0_ATTR_RATIO].i, n = ratio > 0 ? ((int64_t)positions[t] + 1) / ratio : 0,
            most = chosen ? a->in_dims[7][1] : n;
    for (int64_t i = 0; i < most; i++) {
        int64_t w = chosen ? chosen[(int64_t)t * most + i] : i;
        if (w == -1)
            continue;
        int64_t at = w < n ? ref_key_at(a, 2, 6, seq_of[t], w) : -1;
        if (at < 0)
            return false;
        attend(a, 2, q, (size_t)at, m);
    }
    return true;
}

void ref_pool_attention(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const int32_t *positions = a->in[4], *seq_of = a->in[5];
    size_t heads = (size_t)a->heads, dim = (size_t)a->dim;
    float *out = a->out[0]; /* [T, heads * dim] */
    for (size_t item = first; item < last; item++) {
        size_t t = item / heads;
        const float *q = (const float *)a->in[0] + item * dim;
        int64_t p = positions[t], begin = a->window > 0 && p >= a->window ? p - a->window + 1 : 0;
        struct mean m = {.top = (double)ref_load(a->in[3], a->in_dtype[3], item % heads),
                         .acc = ref_scratch(a, thread)};
        m.sum = m.top == -INFINITY ? 0 : 1; /* the sink: a logit without a value */
        memset(m.acc, 0, dim * sizeof *m.acc);
        bool live = p >= 0;
        for (int64_t s = begin; live && s <= p; s++) {
            int64_t at = ref_key_at(a, 1, 6, seq_of[t], s);
            live = at >= 0;
            if (live)
                attend(a, 1, q, (size_t)at, &m);
        }
        live = live && attend_pool(a, q, t, &m);
        for (size_t d = 0; d < dim; d++)
            out[item * dim + d] = live ? (float)(m.acc[d] / m.sum) : NAN;
    }
}
