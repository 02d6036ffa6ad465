/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the contents of one-operator cases. Everything that a definition says must not be read (positions that
 * no token sees, pages and slots of nobody, slots of sequences that begin) is filled with NaN, so that
 * reading it shows. Inputs whose choice must not hang on rounding: opfill_choice.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/tensor.h"
#include "verify/opcase.h"

/* ---- values ---- */

/* Sum of four uniforms: near enough to normal, bounded, and cheap. */
float opfill_normal(struct rng *r)
{
    uint64_t a = rng_next(r), b = rng_next(r);
    double sum = (double)(a >> 32) + (double)(a & UINT32_MAX) + (double)(b >> 32) + (double)(b & UINT32_MAX);
    return (float)((sum * 0x1p-32 - 2) * 1.7320508075688772);
}

float opfill_draw(struct fill *f, bool weight)
{
    switch (f->cls) {
    case OPCLASS_SMALL:
        return weight ? opfill_normal(&f->rng) : ldexpf(opfill_normal(&f->rng), -40);
    case OPCLASS_LARGE:
        return weight ? opfill_normal(&f->rng) : opfill_normal(&f->rng) * (f->gain > 8 ? 0x1p30f : 8);
    case OPCLASS_SPARSE: {
        uint64_t u = rng_below(&f->rng, 20);
        return u >= 2 ? (u & 1 ? 0.0f : -0.0f) : opfill_normal(&f->rng);
    }
    case OPCLASS_OUTLIERS:
        return opfill_normal(&f->rng) * (rng_below(&f->rng, 64) == 0 ? f->gain : 1);
    case OPCLASS_POSITIVE:
        return (float)(0.5 + rng_next_f64(&f->rng));
    default:
        return opfill_normal(&f->rng);
    }
}

static const struct d0_value *value_of(const struct fill *f, uint32_t i)
{
    return &f->c->g->values[f->c->in[i]];
}

static size_t elements(const struct fill *f, uint32_t i)
{
    return (size_t)(f->c->bytes[f->c->in[i]] / (dtype_bits(value_of(f, i)->dtype) / 8));
}

static void put(struct fill *f, uint32_t i, size_t at, float x)
{
    uint32_t dtype = value_of(f, i)->dtype;
    tensor_from_f32(&x, 1, dtype, (char *)f->c->data[f->c->in[i]] + at * (dtype_bits(dtype) / 8));
}

/* Of the class. */
static void draw_all(struct fill *f, uint32_t i)
{
    bool weight = value_of(f, i)->kind == D0_VALUE_WEIGHT;
    size_t n = elements(f, i);
    for (size_t e = 0; e < n; e++)
        put(f, i, e, opfill_draw(f, weight));
}

/* Normal, times `by`, whatever the class: what decides by an exponential. */
static void draw_normal(struct fill *f, uint32_t i, double by)
{
    size_t n = elements(f, i);
    for (size_t e = 0; e < n; e++)
        put(f, i, e, opfill_normal(&f->rng) * (float)by);
}

/* Gates where exponentials overflow, too. */
static void widen_gates(struct fill *f, uint32_t i)
{
    float *gate = f->c->data[f->c->in[i]];
    size_t n = elements(f, i);
    for (size_t e = 0; f->cls == OPCLASS_LARGE && e < n; e += 1 + rng_below(&f->rng, 31))
        gate[e] = opfill_normal(&f->rng) * 60;
}

/* ---- weights stored as codes ---- */

static void draw_codes(struct fill *f, const struct tensor_form *form, unsigned char *p)
{
    bool half = dtype_bits(form->dtype) == 4;
    for (int64_t r = 0; r < form->matrices * form->n; r++)
        for (int64_t k = 0; k < form->k; k++) {
            unsigned char *at = p + (uint64_t)r * form->row_bytes + (uint64_t)(half ? k / 2 : k);
            unsigned code = (unsigned)rng_below(&f->rng, half ? 16 : 256);
            while (!isfinite(tensor_code(form->dtype, code)))
                code = (unsigned)rng_below(&f->rng, 256);
            *at = (unsigned char)(half ? *at | code << (k % 2 ? 4 : 0) : code);
        }
}

/* Scales around 2^-2, `small` powers of two less. */
static void draw_weight_codes(struct fill *f, uint32_t i, int small)
{
    struct tensor_form form;
    unsigned char *p = f->c->data[f->c->in[i]];
    if (!tensor_form_of(value_of(f, i), &form))
        return;
    memset(p, 0, (size_t)form.bytes);
    draw_codes(f, &form, p);
    for (int64_t g = 0; g < form.matrices * form.groups_n * form.groups_k; g++) {
        float v = ldexpf((float)(0.5 + rng_next_f64(&f->rng)), (int)rng_below(&f->rng, 8) - 6 - small);
        uint32_t type = form.format.scale_dtype;
        if (type == D0_F8_E8M0)
            p[form.scales + (uint64_t)g] = (unsigned char)(118 - small + (int)rng_below(&f->rng, 13));
        else if (type == D0_F8_E4M3)
            p[form.scales + (uint64_t)g] = (unsigned char)(1 + rng_below(&f->rng, small ? 0x30 : 0x7e));
        else
            tensor_from_f32(&v, 1, type, p + form.scales + (uint64_t)g * (dtype_bits(type) / 8));
        if (form.zeros)
            p[form.zeros + (uint64_t)g] = (unsigned char)rng_below(&f->rng, 17);
    }
    for (int64_t m = 0; m < form.matrices; m++) {
        float v = (float)(0.25 + rng_next_f64(&f->rng));
        if (form.global)
            memcpy(p + form.global + 4 * (uint64_t)m, &v, sizeof v);
        for (int64_t k = 0; form.order && k < form.k; k++) {
            int32_t group = (int32_t)rng_below(&f->rng, (uint64_t)form.groups_k);
            memcpy(p + form.order + 4 * (uint64_t)(m * form.k + k), &group, sizeof group);
        }
    }
}

/* ---- places ---- */

static void draw_ints(struct fill *f, uint32_t i, int64_t below, bool with_invalid)
{
    static const int32_t invalid[] = {-1, INT32_MAX, INT32_MIN};
    int32_t *x = f->c->data[f->c->in[i]];
    size_t n = elements(f, i);
    for (size_t e = 0; e < n; e++) {
        x[e] = (int32_t)rng_below(&f->rng, (uint64_t)below);
        if (with_invalid && rng_below(&f->rng, 9) == 0)
            x[e] = e % 4 == 3 ? (int32_t)below : invalid[e % 4];
    }
}

/* A stride that visits every one of n: coprime to n. */
static uint64_t some_stride(struct fill *f, int64_t n)
{
    uint64_t stride = 1 + rng_below(&f->rng, (uint64_t)n);
    for (; stride > 1; stride--) {
        uint64_t a = (uint64_t)n, b = stride;
        while (b) {
            uint64_t t = a % b;
            a = b;
            b = t;
        }
        if (a == 1)
            break;
    }
    return stride;
}

static void fill_table(struct fill *f, uint32_t i)
{
    struct opcase *c = f->c;
    int32_t *table = c->data[c->in[i]];
    int64_t pages = c->max_dims[1] * c->max_dims[3] + 1, row = c->dims[3],
            span = opshape_page_span(&c->shape);
    uint64_t offset = rng_below(&f->rng, (uint64_t)pages), stride = some_stride(f, pages), used = 0;
    for (int64_t s = 0; s < c->dims[1]; s++) {
        int64_t needed = (f->history[s] + f->run[s] + span - 1) / span;
        for (int64_t p = 0; p < row; p++)
            table[s * row + p] = p < needed ? (int32_t)((offset + used++ * stride) % (uint64_t)pages) : -1;
    }
}

/* Places of all tokens: ascending sequences, a random history before each, pages in random order, slots. */
static void fill_places(struct fill *f)
{
    struct opcase *c = f->c;
    uint32_t at = opshape_role(&c->shape, D0_INPUT_POSITIONS), seq = opshape_role(&c->shape, D0_INPUT_SEQ_OF),
             table = opshape_role(&c->shape, D0_INPUT_PAGE_TABLE),
             slots = opshape_role(&c->shape, D0_INPUT_SLOTS);
    if (at == D0_NO_VALUE)
        return;
    if (seq == D0_NO_VALUE) {
        draw_ints(f, at, f->cls == OPCLASS_LARGE ? 1 << 20 : 4096, false);
        return;
    }
    int32_t *position = c->data[c->in[at]], *seq_of = c->data[c->in[seq]];
    int64_t tokens = c->dims[0], seqs = c->dims[1], t = 0, room = c->dims[3] * opshape_page_span(&c->shape);
    for (int64_t i = 0; i < tokens; i++)
        f->run[seq_of[i] = (int32_t)(i * seqs / tokens)]++;
    for (int64_t s = 0; s < seqs; s++) {
        uint64_t most = table == D0_NO_VALUE ? 100000 : (uint64_t)(room - f->run[s] + 1);
        bool begins = slots != D0_NO_VALUE && rng_below(&f->rng, 3) == 0;
        f->history[s] = begins ? 0 : (int64_t)rng_below(&f->rng, most);
        for (int64_t i = 0; i < f->run[s]; i++)
            position[t++] = (int32_t)(f->history[s] + i);
    }
    if (table != D0_NO_VALUE)
        fill_table(f, table);
    uint64_t first = rng_below(&f->rng, 16);
    for (int64_t s = 0; slots != D0_NO_VALUE && s < seqs; s++)
        ((int32_t *)c->data[c->in[slots]])[s] =
            (int32_t)(((uint64_t)s + first) % (uint64_t)(c->max_dims[1] + 2));
}

/* [T, groups * C]: of the `n_of` units up to each position some, ascending; the own one always if there is
 * one to be always seen. */
static void fill_chosen(struct fill *f, uint32_t i, int64_t groups, int64_t unit, bool own)
{
    struct opcase *c = f->c;
    int32_t *chosen = c->data[c->in[i]];
    const int32_t *positions = opcase_ints(c, opshape_role(&c->shape, D0_INPUT_POSITIONS));
    int64_t topk = value_of(f, i)->dims[1] / groups;
    for (int64_t row = 0; row < c->dims[0] * groups; row++) {
        int32_t *list = chosen + row * topk;
        int64_t p = positions[row / groups], n = own ? p / unit : (p + 1) / unit, used = 0,
                wanted = topk - own, taken = 0;
        wanted = n < wanted ? n : wanted;
        wanted -= wanted ? (int64_t)rng_below(&f->rng, (uint64_t)wanted + 1) / 2 : 0;
        for (int64_t b = 0; b < n && taken < wanted; b++)
            if ((int64_t)rng_below(&f->rng, (uint64_t)(n - b)) < wanted - taken) {
                list[used++] = (int32_t)b;
                taken++;
            }
        if (own)
            list[used++] = (int32_t)n;
        for (; used < topk; used++)
            list[used] = -1;
    }
}

/* ---- states ---- */

/* One row of pages at input i. */
static void put_key(struct fill *f, uint32_t i, int64_t slot, bool heads)
{
    const struct d0_value *v = value_of(f, i);
    int64_t dim = v->dims[3];
    for (int64_t h = 0; h < (heads ? v->dims[1] : 1); h++)
        for (int64_t d = 0; d < dim; d++)
            put(f, i, (size_t)((slot + h * v->dims[2]) * dim + d), opfill_draw(f, true));
}

/* Tokens of sequence s are rows from *first on. Does one of them see position j (pooled: entry j)? */
static bool anyone_sees(const struct fill *f, int64_t s, int64_t first, int64_t j, bool pooled)
{
    int64_t groups = f->c->shape.node.op == D0_OP_ATTENTION ? value_of(f, 1)->dims[1] : 1;
    for (int64_t t = first + f->run[s] - 1; t >= first; t--)
        for (int64_t g = 0; g < groups; g++)
            if (pooled ? opcase_sees_pooled(f->c, t, j) : opcase_sees(f->c, t, g, j))
                return true;
    return false;
}

static void fill_keys(struct fill *f)
{
    struct opcase *c = f->c;
    uint32_t op = c->shape.node.op;
    bool values = op == D0_OP_ATTENTION, pool = op == D0_OP_POOL_ATTENTION;
    for (int64_t s = 0, first = 0; s < c->dims[1]; first += f->run[s++])
        for (int64_t j = 0; j < f->history[s] + f->run[s]; j++) {
            if (anyone_sees(f, s, first, j, false)) {
                put_key(f, 1, opcase_slot(c, 1, s, j, 0), true);
                if (values)
                    put_key(f, 2, opcase_slot(c, 2, s, j, 0), true);
            }
            if (pool && anyone_sees(f, s, first, j, true))
                put_key(f, 2, opcase_slot(c, 2, s, j, 0), false);
        }
}

/* A state of slots: of those that go on. */
static void fill_slots(struct fill *f, uint32_t i)
{
    struct opcase *c = f->c;
    const int32_t *slots = opcase_ints(c, opshape_role(&c->shape, D0_INPUT_SLOTS));
    const struct d0_value *v = value_of(f, i);
    size_t n = elements(f, i) / (size_t)v->dims[0];
    for (int64_t s = 0; s < c->dims[1]; s++)
        for (size_t e = 0; f->history[s] > 0 && e < n; e++)
            put(f, i, (size_t)slots[s] * n + e, opfill_draw(f, false));
}

/* The ring of each sequence: what its last tokens left. First half kv, second half gates. */
static void fill_rings(struct fill *f)
{
    struct opcase *c = f->c;
    const int32_t *slots = opcase_ints(c, 10);
    const struct d0_value *v = value_of(f, 6);
    int64_t ring = v->dims[1] / 2, width = v->dims[2];
    for (int64_t s = 0; s < c->dims[1]; s++)
        for (int64_t j = f->history[s] > ring ? f->history[s] - ring : 0; j < f->history[s]; j++)
            for (int64_t d = 0; d < width; d++) {
                size_t at = (size_t)((slots[s] * 2 * ring + j % ring) * width + d);
                put(f, 6, at, opfill_draw(f, false));
                put(f, 6, at + (size_t)(ring * width), opfill_normal(&f->rng));
            }
}

static void fill_states(struct fill *f)
{
    struct opcase *c = f->c;
    for (uint32_t i = 0; i < c->g->n_values; i++)
        if (c->g->values[i].kind == D0_VALUE_STATE)
            memset(c->data[i], 0xff, (size_t)c->bytes[i]); /* NaN in every type */
    switch ((enum d0_op)c->shape.node.op) {
    case D0_OP_ATTENTION:
    case D0_OP_MLA:
    case D0_OP_POOL_ATTENTION:
        fill_keys(f);
        break;
    case D0_OP_SHORT_CONV:
        fill_slots(f, 2);
        break;
    case D0_OP_DELTA_RULE:
        fill_slots(f, 7);
        break;
    case D0_OP_POOL_KV:
        fill_rings(f);
        break;
    default: /* stores leave all else alone; index_topk is filled with its queries */
        break;
    }
}

/* ---- what single operators need ---- */

static void fill_rope(struct fill *f, uint32_t i)
{
    float *table = f->c->data[f->c->in[i]];
    int64_t half = value_of(f, i)->dims[1] / 2;
    for (int64_t t = 0; t < f->c->dims[0]; t++)
        for (int64_t j = 0; j < half; j++) {
            double angle = 6.3 * rng_next_f64(&f->rng);
            table[t * 2 * half + j] = (float)cos(angle);
            table[t * 2 * half + half + j] = (float)sin(angle);
        }
}

static void fill_frequencies(struct fill *f, uint32_t i)
{
    int64_t n = value_of(f, i)->dims[0];
    for (int64_t j = 0; j < n; j++)
        put(f, i, (size_t)j, (float)pow(10000.0, -(double)j / (double)n));
}

/* Powers of two by which scales of codes are smaller, so that sums of k weights stay near 1. */
static int smaller(int64_t k)
{
    int small = 7;
    for (; k > 3; k /= 4)
        small++;
    return small;
}

/* Three factors are multiplied: sums of each matrix stay near 1. */
static void fill_experts(struct fill *f)
{
    const struct opshape *s = &f->c->shape;
    draw_ints(f, 1, value_of(f, 3)->dims[0] + opshape_int(s, D0_ATTR_ZERO), false);
    draw_normal(f, 2, 0.5);
    for (uint32_t i = 3; i < 6; i++) {
        if (f->c->in[i] == D0_NO_VALUE)
            continue;
        int64_t k = i == 3 ? opshape_int(s, D0_ATTR_INTER) : value_of(f, 0)->dims[1];
        if (value_of(f, i)->format.scale_dtype)
            draw_weight_codes(f, i, smaller(k));
        else
            draw_normal(f, i, 1 / sqrt((double)k));
    }
}

/* Two sums are multiplied: they stay near 1. */
static void fill_gate_up(struct fill *f)
{
    int64_t k = value_of(f, 0)->dims[1];
    for (uint32_t i = 1; i < 3; i++)
        if (value_of(f, i)->format.scale_dtype)
            draw_weight_codes(f, i, smaller(k));
        else
            draw_normal(f, i, 1 / sqrt((double)k));
}

/* Rows of keys of a size that leaves scores ordinary; rows of values of the class. */
static void fill_kv_b(struct fill *f)
{
    int64_t nope = opshape_int(&f->c->shape, D0_ATTR_NOPE), v_dim = opshape_int(&f->c->shape, D0_ATTR_V_DIM),
            latent = value_of(f, 2)->dims[1], rows = value_of(f, 2)->dims[0];
    if (value_of(f, 2)->format.scale_dtype) {
        draw_weight_codes(f, 2, smaller(latent));
        return;
    }
    draw_all(f, 2);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t l = 0; r % (nope + v_dim) < nope && l < latent; l++)
            put(f, 2, (size_t)(r * latent + l), opfill_normal(&f->rng) / sqrtf((float)latent));
}

/* Without a norm of its own k must be about of unit length, as it is in every model: else S grows with every
 * row, and any error with it. */
static void shorten(struct fill *f, uint32_t i, int64_t dim)
{
    float *p = f->c->data[f->c->in[i]];
    for (size_t at = 0; at < elements(f, i); at += (size_t)dim) {
        double squares = 0, by = 0.3 + rng_next_f64(&f->rng);
        for (int64_t d = 0; d < dim; d++)
            squares += (double)p[at + (size_t)d] * (double)p[at + (size_t)d];
        for (int64_t d = 0; d < dim && squares > 0; d++)
            p[at + (size_t)d] = (float)((double)p[at + (size_t)d] / sqrt(squares) * by);
    }
}

static void fill_delta(struct fill *f)
{
    float *beta = f->c->data[f->c->in[4]];
    for (uint32_t i = 0; i < 2 && opshape_real(&f->c->shape, D0_ATTR_EPS) == 0; i++)
        shorten(f, i, opshape_int(&f->c->shape, D0_ATTR_DIM));
    for (size_t e = 0; e < elements(f, 4); e++) /* what a sigmoid gives, its ends included */
        beta[e] = rng_below(&f->rng, 8) ? (float)rng_next_f64(&f->rng) : (float)rng_below(&f->rng, 2);
    draw_normal(f, 5, 1);
    draw_normal(f, 6, 1);
}

/* A large common part, which a variance by squares loses itself in. */
static void shift(struct fill *f, float by)
{
    float *x = f->c->data[f->c->in[0]];
    for (size_t e = 0; e < elements(f, 0); e++)
        x[e] += by;
}

static void fill_mixture(struct fill *f)
{
    double by = 1 / sqrt((double)value_of(f, 0)->dims[1]);
    bool mix = f->c->shape.node.op == D0_OP_MIX_RESIDUAL;
    draw_normal(f, 1, mix ? 1 : by);
    draw_normal(f, 2, mix ? by : 1);
    if (!mix)
        draw_normal(f, 3, 1);
}

/* What differs from a draw of the class, once all inputs have one. */
static int fill_special(struct fill *f, struct err *e)
{
    switch ((enum d0_op)f->c->shape.node.op) {
    case D0_OP_ROPE:
        fill_rope(f, 1);
        break;
    case D0_OP_NORM_ROPE_STORE:
        fill_rope(f, 8);
        break;
    case D0_OP_GATE_UP:
        fill_gate_up(f);
        break;
    case D0_OP_ROPE_TABLE:
        fill_frequencies(f, 1);
        break;
    case D0_OP_GLU:
    case D0_OP_ACT:
        widen_gates(f, 0);
        break;
    case D0_OP_GATED_NORM: /* squares of x * act(gate) stay within float32 */
        draw_normal(f, 1, 1);
        widen_gates(f, 1);
        break;
    case D0_OP_LAYER_NORM:
        if (f->cls == OPCLASS_OUTLIERS)
            shift(f, 1000);
        break;
    case D0_OP_MLA:
        fill_kv_b(f);
        break;
    case D0_OP_EXPERTS:
        fill_experts(f);
        break;
    case D0_OP_DELTA_RULE:
        fill_delta(f);
        break;
    case D0_OP_MIX_RESIDUAL:
    case D0_OP_HYPER_IN:
    case D0_OP_HYPER_HEAD:
        fill_mixture(f);
        break;
    case D0_OP_HYPER_OUT:
        draw_normal(f, 2, 1);
        break;
    case D0_OP_POOL_KV:
        draw_normal(f, 1, 1);
        draw_normal(f, 2, 1);
        draw_normal(f, 3, 1);
        fill_frequencies(f, 4);
        break;
    case D0_OP_ROUTE:
        return opfill_route(f, e);
    case D0_OP_INDEX_TOPK:
        return opfill_topk(f, e);
    default:
        break;
    }
    return ERR_OK;
}

static bool decides_by_exponential(uint32_t op)
{
    return op == D0_OP_ATTENTION || op == D0_OP_GLU || op == D0_OP_ACT || op == D0_OP_MLA ||
           op == D0_OP_POOL_ATTENTION || op == D0_OP_EXPERTS || op == D0_OP_GATE_UP ||
           op == D0_OP_SEGMENT_ATTENTION;
}

/* Numbers of what was chosen: keys, blocks, entries. Ids of experts come with their weights. */
static void fill_choice(struct fill *f, uint32_t i)
{
    const struct opshape *s = &f->c->shape;
    int64_t block = opshape_int(s, D0_ATTR_BLOCK);
    if (s->node.op == D0_OP_POOL_ATTENTION)
        fill_chosen(f, i, 1, opshape_int(s, D0_ATTR_RATIO), false);
    else if (s->node.op == D0_OP_ATTENTION)
        fill_chosen(f, i, value_of(f, 1)->dims[1], block ? block : 1, true);
    else if (s->node.op == D0_OP_MLA)
        fill_chosen(f, i, 1, 1, true);
}

/* Of each row some of the shared rows, in a run; the first row has all of them. */
static void fill_spans(struct fill *f, uint32_t i)
{
    int32_t *span = f->c->data[f->c->in[i]];
    const int64_t rows = f->c->dims[2];
    for (int64_t t = 0; t < f->c->dims[0]; t++) {
        const uint64_t from = rows ? rng_below(&f->rng, (uint64_t)rows) : 0;
        span[2 * t] = (int32_t)(t ? from : 0);
        span[2 * t + 1] =
            (int32_t)(t && rows ? from + 1 + rng_below(&f->rng, (uint64_t)rows - from) : (uint64_t)rows);
    }
}

/* In a text: the tokens of each sequence in runs, of one token as a rule. */
static void fill_text_spans(struct fill *f, uint32_t i)
{
    int32_t *span = f->c->data[f->c->in[i]];
    for (int64_t s = 0, t = 0; s < f->c->dims[1]; s++)
        for (int64_t at = 0, n; at < f->run[s]; at += n) {
            n = rng_below(&f->rng, 2) ? 1 : 1 + (int64_t)rng_below(&f->rng, (uint64_t)(f->run[s] - at));
            for (int64_t k = 0; k < n; k++, t++) {
                span[2 * t] = (int32_t)(f->history[s] + at);
                span[2 * t + 1] = (int32_t)(f->history[s] + at + n);
            }
        }
}

int opfill_contents(struct fill *f, struct err *e)
{
    struct opcase *c = f->c;
    if (decides_by_exponential(c->shape.node.op))
        f->gain = 8;
    fill_places(f);
    for (uint32_t i = 0; i < c->shape.node.n_inputs; i++) {
        if (c->in[i] == D0_NO_VALUE)
            continue;
        const struct d0_value *v = value_of(f, i);
        if (v->kind == D0_VALUE_STATE)
            continue;
        if (v->format.scale_dtype)
            draw_weight_codes(f, i, 0);
        else if (dtype_is_float(v->dtype))
            draw_all(f, i);
        else if (v->role == D0_INPUT_IDS)
            draw_ints(f, i, value_of(f, i == 3 ? 2 : 1)->dims[0], c->shape.node.op == D0_OP_EMBED);
        else if (v->role == D0_INPUT_ROWS)
            draw_ints(f, i, c->dims[0] ? c->dims[0] : 1, false);
        else if (v->role == D0_INPUT_PLACES)
            draw_ints(f, i, f->cls == OPCLASS_LARGE ? 1 << 20 : 4096, false);
        else if (v->role == D0_INPUT_TABLE_ROWS)
            draw_ints(f, i, value_of(f, 1)->dims[0], true);
        else if (v->role == D0_INPUT_FEATURE_OF)
            draw_ints(f, i,
                      value_of(f, 1)->dims[0] > 0 ? value_of(f, 1)->dims[0]
                      : c->dims[2]                ? c->dims[2]
                                                  : 1,
                      true);
        else if (v->role == D0_INPUT_SPANS && c->shape.node.op == D0_OP_ATTENTION)
            fill_text_spans(f, i);
        else if (v->role == D0_INPUT_SPANS)
            fill_spans(f, i);
        else if (v->role == D0_INPUT_HIDDEN)
            fill_choice(f, i);
    }
    fill_states(f);
    return fill_special(f, e);
}
