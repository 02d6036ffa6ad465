/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of the operators on latent pages: latent_store, mla. The definition of mla is written here in its
 * expanded form (keys and values of every head, then plain attention), which is the same number in float64. A
 * latent row that no query of the case sees holds NaN.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc.h"

#define TAILS       70
#define SCALE_FLOOR 0x1p-106

/* ---- latent_store ---- */

const unsigned kc_cases_LATENT_STORE = 200;

void kc_make_LATENT_STORE(struct kc_case *c, unsigned index)
{
    struct kc_paged p;
    int64_t latent = c->large        ? 512
                     : index < TAILS ? (int64_t)index + 1
                                     : kc_between(c, 1, 200),
            rope = c->large          ? 64
                   : kc_chance(c, 3) ? 0
                                     : kc_between(c, 1, 70),
            width = latent + rope;
    c->a.kv_heads = 1; /* of kc_slot; the operator has no heads */
    kc_paged_make(c, 2, &p);
    kc_paged_break(c, &p);
    if (c->values == KC_HUGE && c->dtype == D0_F16)
        c->values = KC_OUTLIER; /* as in kv_store */
    kc_fill(c, 0, D0_F32, p.tokens * latent, latent);
    kc_dims(c, 0, 2, (int64_t[]){p.tokens, latent});
    if (rope) {
        kc_fill(c, 5, D0_F32, p.tokens * rope, rope);
        kc_dims(c, 5, 2, (int64_t[]){p.tokens, rope});
    }
    size_t bytes = (size_t)(c->a.pages * c->a.page_tokens * width) * kc_width(c->dtype);
    memset(kc_state(c, 0, bytes), 0xFF, bytes);
    c->a.in_dtype[1] = c->dtype;
    kc_dims(c, 1, 4, (int64_t[]){c->a.pages, 1, c->a.page_tokens, width});
    c->a.k = latent;
    c->moved = (double)(p.tokens * width) * (4 + (double)kc_width(c->dtype));
    snprintf(c->shape, sizeof c->shape, "T=%d B=%d latent=%d rope=%d page_tokens=%d", (int)p.tokens,
             (int)c->a.seqs, (int)latent, (int)rope, (int)c->a.page_tokens);
}

void kc_judge_LATENT_STORE(struct kc_case *c)
{
    const int32_t *positions = c->in[2].data, *seq_of = c->in[3].data, *table = c->in[4].data;
    int64_t width = c->a.in_dims[1][3], latent = c->a.in_dims[0][1], rope = width - latent;
    unsigned char *want = arena_alloc(c->arena, c->state[0].bytes);
    kc_judge_begin(c);
    if (!want)
        abort();
    memcpy(want, c->state[0].data, c->state[0].bytes);
    for (int64_t t = 0; t < c->a.tokens; t++) {
        int64_t slot = kc_slot(c, table, seq_of[t], positions[t], 0);
        for (int64_t d = 0; slot >= 0 && d < width; d++) {
            float x = d < latent ? ((const float *)c->in[0].data)[t * latent + d]
                                 : ((const float *)c->in[5].data)[t * rope + d - latent];
            tensor_from_f32(&x, 1, c->dtype, want + (size_t)(slot * width + d) * kc_width(c->dtype));
        }
    }
    c->want_state[0] = want;
}

/* ---- mla ---- */

const unsigned kc_cases_MLA = 2 * (3 * TAILS + 60); /* each with both forms */

#define LONGEST_RUN 140 /* rows of a sequence in the expanded form */

/* As in attention, by way of the rotated part: the score of a far row is -infinity in float32. */
#define FAR_QUERY (-3e38f)
#define FAR_KEY   60000.0f

struct sizes {
    int64_t heads, nope, rope, v_dim, latent, width;
};

static struct sizes sizes_of(const struct kc_case *c)
{
    struct sizes s = {.heads = c->a.heads,
                      .nope = c->a.attr[D0_ATTR_NOPE].i,
                      .rope = c->a.attr[D0_ATTR_ROPE].i,
                      .v_dim = c->a.v_dim,
                      .latent = c->a.attr[D0_ATTR_LATENT].i};
    s.width = s.latent + s.rope;
    return s;
}

static bool sees(const struct kc_case *c, int64_t t, int64_t j)
{
    const int32_t *chosen = c->in[6].data;
    int64_t width = c->a.in_dims[6][1];
    return j <= ((const int32_t *)c->in[3].data)[t] &&
           (!chosen || kc_chosen_has(chosen + t * width, width, 1, j));
}

/* One value of the class, of ordinary size where the class would make scores of no meaning. */
static float modest(struct kc_case *c, uint32_t dtype)
{
    enum kc_values values = c->values;
    if (values == KC_HUGE || values == KC_OUTLIER || values == KC_POISON)
        c->values = KC_NORMAL;
    float v = (float)kc_value(c, dtype);
    c->values = values;
    return v;
}

static void fill_latents(struct kc_case *c, const struct kc_paged *p)
{
    struct sizes s = sizes_of(c);
    size_t width = kc_width(c->dtype), bytes = (size_t)(c->a.pages * c->a.page_tokens * s.width) * width;
    kc_fill(c, 1, c->dtype, 0, 0);
    unsigned char *data = arena_alloc(c->arena, bytes);
    if (!data)
        abort();
    memset(data, 0xFF, bytes); /* NaN */
    c->in[1] = (struct kc_array){data, bytes, 0};
    kc_dims(c, 1, 4, (int64_t[]){c->a.pages, 1, c->a.page_tokens, s.width});
    for (int64_t seq = 0; seq < c->a.seqs; seq++)
        for (int64_t j = 0; j < p->lengths[seq]; j++) {
            bool seen = false;
            for (int64_t t = 0; t < p->tokens; t++)
                seen = seen || (p->seq_of[t] == seq && sees(c, t, j));
            int64_t slot = seen ? kc_slot(c, p->table, seq, j, 0) : -1;
            for (int64_t d = 0; slot >= 0 && d < s.width; d++) {
                float v = modest(c, c->dtype);
                if (c->values == KC_POISON && d == s.latent)
                    v = j < c->a.page_tokens || !kc_chance(c, 3) ? FAR_KEY : 0;
                tensor_from_f32(&v, 1, c->dtype, data + (size_t)(slot * s.width + d) * width);
            }
        }
}

/* Rows of keys of a size that leaves scores ordinary; rows of values of the case's class. */
static void fill_kv_b(struct kc_case *c)
{
    struct sizes s = sizes_of(c);
    uint32_t dtype = kc_any_type(c);
    int64_t rows = s.heads * (s.nope + s.v_dim);
    if (c->values == KC_HUGE && dtype == D0_F16)
        c->values = KC_OUTLIER;
    kc_fill(c, 2, dtype, rows * s.latent, 0);
    kc_dims(c, 2, 2, (int64_t[]){rows, s.latent});
    for (int64_t i = 0; i < rows * s.latent; i++) {
        float v = modest(c, dtype) / sqrtf((float)s.latent);
        if (i / s.latent % (s.nope + s.v_dim) < s.nope)
            tensor_from_f32(&v, 1, dtype, (unsigned char *)c->in[2].data + (size_t)i * kc_width(dtype));
    }
}

static void mla_sizes(struct kc_case *c, unsigned index)
{
    static const unsigned cycle = TAILS; /* every tail of each of the three widths that vectors run along */
    int64_t tail = index % cycle + 1, which = index < 3 * cycle ? index / cycle : 3;
    c->a.heads = c->large ? 16 : kc_between(c, 1, 9);
    int64_t latent = c->large     ? 512
                     : which == 0 ? tail
                                  : kc_between(c, 1, 80),
            rope = c->large          ? 64
                   : which == 1      ? tail - 1
                   : kc_chance(c, 3) ? 0
                                     : kc_between(c, 1, 20);
    c->a.v_dim = c->large ? 128 : which == 2 ? tail : kc_between(c, 1, 40);
    c->a.attr[D0_ATTR_HEADS].i = c->a.heads;
    c->a.attr[D0_ATTR_NOPE].i = c->large ? 128 : kc_between(c, 1, 40);
    c->a.attr[D0_ATTR_ROPE].i = rope;
    c->a.attr[D0_ATTR_V_DIM].i = c->a.v_dim;
    c->a.attr[D0_ATTR_LATENT].i = latent;
    c->a.scale = 1 / sqrt((double)(c->a.attr[D0_ATTR_NOPE].i + rope)) * (kc_chance(c, 4) ? 8 : 1);
}

void kc_make_MLA(struct kc_case *c, unsigned index)
{
    struct kc_paged p;
    c->bounded = index % 2 == 1;
    c->a.attr[D0_ATTR_FORM].i = c->bounded;
    mla_sizes(c, index / 2);
    struct sizes s = sizes_of(c);
    c->a.kv_heads = 1; /* of kc_slot; the operator has no such attribute */
    if (c->values == KC_POISON && s.rope == 0)
        c->values = KC_NORMAL;
    kc_paged_make_runs(c, 3, !c->bounded ? 5 : kc_chance(c, 4) ? LONGEST_RUN : 20, &p);
    if (!c->large && kc_chance(c, c->bounded ? 8 : 3))
        kc_chosen_make(c, 6, &p, 1, 0);
    int64_t row = s.heads * (s.nope + s.rope);
    kc_fill(c, 0, D0_F32, p.tokens * row, row);
    kc_dims(c, 0, 2, (int64_t[]){p.tokens, row});
    for (int64_t i = 0; i < p.tokens * row; i++)
        ((float *)c->in[0].data)[i] =
            c->values == KC_POISON && i % (s.nope + s.rope) == s.nope ? FAR_QUERY : (float)kc_normal(&c->rng);
    fill_latents(c, &p);
    fill_kv_b(c);
    kc_paged_break(c, &p);
    kc_output(c, p.tokens, s.heads * s.v_dim);
    c->a.k = row;
    c->flops = 2.0 * (double)(p.tokens * s.heads) *
               (double)(p.lengths[0] * (s.width + s.latent) + (s.nope + s.v_dim) * s.latent);
    c->moved = (double)(p.lengths[0] * s.width) * (double)kc_width(c->dtype) +
               (double)(s.heads * (s.nope + s.v_dim) * s.latent) * (double)kc_width(c->a.in_dtype[2]);
    snprintf(
        c->shape, sizeof c->shape,
        "form=%d T=%d B=%d heads=%d nope=%d rope=%d v_dim=%d latent=%d kv_b=%s page_tokens=%d chosen=%d last "
        "length=%d",
        (int)c->bounded, (int)p.tokens, (int)c->a.seqs, (int)s.heads, (int)s.nope, (int)s.rope, (int)s.v_dim,
        (int)s.latent, dtype_name(c->a.in_dtype[2]), (int)c->a.page_tokens, (int)c->a.in_dims[6][1],
        (int)p.lengths[c->a.seqs - 1]);
}

/* What kv_b makes of every slot, once: [slots, heads * (nope + v_dim)], key and value of each head. */
static double *expand(struct kc_case *c)
{
    struct sizes s = sizes_of(c);
    int64_t slots = c->a.pages * c->a.page_tokens, rows = s.heads * (s.nope + s.v_dim);
    double *out = arena_alloc_n(c->arena, (size_t)(slots * rows), sizeof *out);
    if (!out)
        abort();
    for (int64_t slot = 0; slot < slots; slot++)
        for (int64_t r = 0; r < rows; r++) {
            double sum = 0; /* NaN all through where the slot is free */
            for (int64_t l = 0; l < s.latent && !(l && isnan(sum)); l++)
                sum += kc_at(c, 2, (size_t)(r * s.latent + l)) * kc_at(c, 1, (size_t)(slot * s.width + l));
            out[slot * rows + r] = sum;
        }
    return out;
}

/* squares[l] of head h: of all terms that make element l of the absorbed query */
static void query_squares(const struct kc_case *c, int64_t t, int64_t h, double *squares)
{
    struct sizes s = sizes_of(c);
    for (int64_t l = 0; l < s.latent; l++) {
        squares[l] = 0;
        for (int64_t d = 0; d < s.nope; d++) {
            double term = kc_at(c, 0, (size_t)((t * s.heads + h) * (s.nope + s.rope) + d)) *
                          kc_at(c, 2, (size_t)((h * (s.nope + s.v_dim) + d) * s.latent + l));
            squares[l] += term * term;
        }
    }
}

/* The score of one slot for one token and head, and the natural scale of its error. */
static double score_of(const struct kc_case *c, const double *key, const float *latent, const float *q,
                       const double *q_squares, double *size)
{
    struct sizes s = sizes_of(c);
    double dot = 0, squares = 0, keyed = 0;
    for (int64_t d = 0; d < s.nope; d++) {
        dot += (double)q[d] * key[d];
        keyed += (double)q[d] * key[d] * (double)q[d] * key[d];
    }
    for (int64_t l = 0; l < s.latent; l++)
        squares += q_squares[l] * (double)latent[l] * (double)latent[l];
    for (int64_t d = 0; d < s.rope; d++) {
        double term = (double)q[s.nope + d] * (double)latent[s.latent + d];
        dot += term;
        squares += term * term;
        keyed += term * term;
    }
    if (c->a.attr[D0_ATTR_FORM].i) /* keys are rounded, then multiplied: those terms count as well */
        squares = fmax(squares, keyed);
    double score = (double)(float)(dot * c->a.scale);
    if (!isinf(score))
        *size = fmax(*size, fabs(c->a.scale) * fmax(fabs(dot), 2 * sqrt(squares)));
    return score;
}

struct room {
    double *scores, *squares, *largest; /* [positions], [latent], [latent] */
    const double *expanded;
};

/* One token and head: want[v_dim] and scale[v_dim]. An element is a sum over positions, by weights that are
 * wrong by the size of scores, of sums over the latent. */
static void judge_head(struct kc_case *c, int64_t t, int64_t h, struct room *m, double *want, double *scale)
{
    const int32_t *positions = c->in[3].data, *seq_of = c->in[4].data, *table = c->in[5].data;
    struct sizes s = sizes_of(c);
    const float *q = (const float *)c->in[0].data + (t * s.heads + h) * (s.nope + s.rope);
    int64_t p = positions[t], rows = s.heads * (s.nope + s.v_dim), row = h * (s.nope + s.v_dim);
    double top = -INFINITY, sum = 0, size = 0;
    bool live = kc_slot(c, table, seq_of[t], p, 0) >= 0;
    query_squares(c, t, h, m->squares);
    memset(m->largest, 0, (size_t)s.latent * sizeof *m->largest);
    for (int64_t j = 0; live && j <= p; j++) {
        int64_t slot = kc_slot(c, table, seq_of[t], j, 0);
        if (!sees(c, t, j))
            continue;
        live = slot >= 0;
        m->scores[j] = live ? score_of(c, m->expanded + slot * rows + row, c->wide[1] + slot * s.width, q,
                                       m->squares, &size)
                            : 0;
        top = fmax(top, m->scores[j]);
        for (int64_t l = 0; live && l < s.latent; l++)
            m->largest[l] = fmax(m->largest[l], fabs(kc_at(c, 1, (size_t)(slot * s.width + l))));
    }
    for (int64_t d = 0; d < s.v_dim; d++)
        want[d] = live ? 0 : (double)NAN;
    for (int64_t j = 0; live && j <= p; j++) {
        if (!sees(c, t, j))
            continue;
        const double *v = m->expanded + kc_slot(c, table, seq_of[t], j, 0) * rows + row + s.nope;
        double weight = exp(m->scores[j] - top);
        sum += weight;
        for (int64_t d = 0; d < s.v_dim; d++) {
            want[d] += weight * v[d];
            scale[d] = fmax(scale[d], fabs(v[d]));
        }
    }
    for (int64_t d = 0; live && d < s.v_dim; d++) {
        double squares = 0;
        for (int64_t l = 0; l < s.latent; l++) {
            double term = kc_at(c, 2, (size_t)((row + s.nope + d) * s.latent + l)) * m->largest[l];
            squares += term * term;
        }
        want[d] /= sum; /* no key: not a number */
        scale[d] = fmax(SCALE_FLOOR, fmax(scale[d], 2 * sqrt(squares)) * (1 + size));
    }
}

void kc_judge_MLA(struct kc_case *c)
{
    struct sizes s = sizes_of(c);
    kc_judge_begin(c);
    struct room m = {arena_alloc_n(c->arena, (size_t)(c->a.table * c->a.page_tokens), sizeof(double)),
                     arena_alloc_n(c->arena, (size_t)s.latent, sizeof(double)),
                     arena_alloc_n(c->arena, (size_t)s.latent, sizeof(double)), expand(c)};
    if (!m.scores || !m.squares || !m.largest)
        abort();
    for (int64_t t = 0; t < c->a.tokens; t++)
        for (int64_t h = 0; h < s.heads; h++) {
            size_t at = (size_t)((t * s.heads + h) * s.v_dim);
            judge_head(c, t, h, &m, c->want[0] + at, c->scale[0] + at);
        }
}
