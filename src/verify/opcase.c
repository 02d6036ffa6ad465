/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the building and filling of one-operator cases. Everything that a definition says must not be read
 * (positions behind the own one or before the window, pages of nobody) is filled with NaN, so that reading it
 * shows.
 */
#include "verify/opcase.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "tensor/tensor.h"

const char *opclass_name(enum opclass c)
{
    static const char *const names[OPCLASS_N] = {"normal", "small",    "large",
                                                 "sparse", "outliers", "positive"};
    return c < OPCLASS_N ? names[c] : "?";
}

/* ---- the graph of one node ---- */

struct build {
    struct opcase *c;
    struct d0_node node;
    int rc;
    struct err *e;
};

static void add_value(struct build *b, uint32_t kind, uint32_t dtype, uint32_t role, uint32_t n_dims,
                      const int64_t *dims)
{
    struct d0_value v = {.kind = kind, .dtype = dtype, .n_dims = n_dims, .role = role};
    struct graph_value_info info = {.name = "", .layer = -1};
    uint32_t at = b->node.n_inputs, id = D0_NO_VALUE;
    memcpy(v.dims, dims, n_dims * sizeof *dims);
    if (b->rc == 0)
        b->rc = graph_add_value(b->c->g, &v, &info, &id, b->e);
    b->c->in[at] = b->node.inputs[at] = id;
    b->node.n_inputs++;
}

static void add_rows(struct build *b, int64_t width)
{
    add_value(b, D0_VALUE_INPUT, D0_F32, D0_INPUT_HIDDEN, 2, (int64_t[]){D0_DIM_TOKENS, width});
}

static void add_ints(struct build *b, uint32_t role, int64_t dim)
{
    add_value(b, D0_VALUE_INPUT, D0_I32, role, 1, (int64_t[]){dim});
}

static void add_weight(struct build *b, uint32_t dtype, int64_t d0, int64_t d1)
{
    add_value(b, D0_VALUE_WEIGHT, dtype, 0, d1 ? 2 : 1, (int64_t[]){d0, d1});
}

static int64_t n_pages(const struct opcase *c)
{
    return c->max_dims[1] * c->max_dims[3] + 1;
}

static void add_paging(struct build *b)
{
    const struct opshape *s = &b->c->shape;
    int64_t k[4] = {n_pages(b->c), s->kv_heads, s->page_tokens, s->dim}, v[4] = {k[0], k[1], k[2], s->v_dim};
    add_value(b, D0_VALUE_STATE, s->dtype, 0, 4, k);
    add_value(b, D0_VALUE_STATE, s->dtype, 0, 4, v);
    add_ints(b, D0_INPUT_POSITIONS, D0_DIM_TOKENS);
    add_ints(b, D0_INPUT_SEQ_OF, D0_DIM_TOKENS);
    add_value(b, D0_VALUE_INPUT, D0_I32, D0_INPUT_PAGE_TABLE, 2, (int64_t[]){D0_DIM_SEQS, D0_DIM_PAGES});
}

static void attr_i(struct build *b, uint32_t key, int64_t v)
{
    b->node.attrs[b->node.n_attrs++] = (struct d0_attr){.key = key, .v.i = v};
}

static void attr_f(struct build *b, uint32_t key, double v)
{
    b->node.attrs[b->node.n_attrs++] = (struct d0_attr){.key = key, .is_float = 1, .v.f = v};
}

static void build_attention(struct build *b)
{
    const struct opshape *s = &b->c->shape;
    add_rows(b, s->heads * s->dim);
    add_paging(b);
    attr_i(b, D0_ATTR_HEADS, s->heads);
    attr_i(b, D0_ATTR_KV_HEADS, s->kv_heads);
    attr_i(b, D0_ATTR_DIM, s->dim);
    attr_i(b, D0_ATTR_V_DIM, s->v_dim);
    attr_f(b, D0_ATTR_SCALE, s->scale);
    attr_i(b, D0_ATTR_WINDOW, s->window);
}

static void build_norm(struct build *b)
{
    const struct opshape *s = &b->c->shape;
    add_rows(b, s->k);
    if (!s->no_weight)
        add_weight(b, s->dtype, s->dim ? s->dim : s->k, 0);
    attr_f(b, D0_ATTR_EPS, s->eps);
    attr_i(b, D0_ATTR_DIM, s->dim);
    attr_i(b, D0_ATTR_PLUS_ONE, s->plus_one);
    attr_i(b, D0_ATTR_SEGMENTS, s->segments);
}

static void build_node(struct build *b)
{
    const struct opshape *s = &b->c->shape;
    switch ((enum d0_op)s->op) {
    case D0_OP_EMBED:
        add_ints(b, D0_INPUT_IDS, D0_DIM_TOKENS);
        add_weight(b, s->dtype, s->n, s->k);
        break;
    case D0_OP_LINEAR:
        add_rows(b, s->k);
        add_weight(b, s->dtype, s->n, s->k);
        if (s->bias)
            add_weight(b, s->dtype, s->n, 0);
        attr_i(b, D0_ATTR_SEGMENTS, s->segments);
        break;
    case D0_OP_RMS_NORM:
        build_norm(b);
        break;
    case D0_OP_ADD:
    case D0_OP_GLU:
        add_rows(b, s->k);
        add_rows(b, s->k);
        break;
    case D0_OP_ROPE_TABLE:
        add_ints(b, D0_INPUT_POSITIONS, D0_DIM_TOKENS);
        add_weight(b, D0_F32, s->width / 2, 0);
        attr_f(b, D0_ATTR_FACTOR, s->factor);
        break;
    case D0_OP_ROPE:
        add_rows(b, s->heads * s->dim);
        add_rows(b, s->width);
        attr_i(b, D0_ATTR_DIM, s->dim);
        attr_i(b, D0_ATTR_STYLE, s->style);
        attr_i(b, D0_ATTR_OFFSET, s->offset);
        break;
    case D0_OP_KV_STORE:
        add_rows(b, s->kv_heads * s->dim);
        add_rows(b, s->kv_heads * s->v_dim);
        add_paging(b);
        attr_i(b, D0_ATTR_KV_HEADS, s->kv_heads);
        attr_i(b, D0_ATTR_DIM, s->dim);
        attr_i(b, D0_ATTR_V_DIM, s->v_dim);
        break;
    case D0_OP_ATTENTION:
        build_attention(b);
        break;
    case D0_OP_GATHER_ROWS:
        add_rows(b, s->k);
        add_ints(b, D0_INPUT_ROWS, D0_DIM_ROWS);
        break;
    default:
        b->rc = err_set(b->e, ERR_UNSUPPORTED, "no conformance case for operator %u", s->op);
    }
}

int opcase_open(struct opcase *c, const struct opshape *s, const int64_t max_dims[D0_N_DIMS], struct err *e)
{
    memset(c, 0, sizeof *c);
    c->shape = *s;
    memcpy(c->max_dims, max_dims, sizeof c->max_dims);
    memset(c->in, 0xff, sizeof c->in);
    struct build b = {.c = c, .node = {.op = s->op, .layer = -1}, .e = e};
    b.rc = graph_open(&c->g, NULL, e);
    if (b.rc == 0)
        build_node(&b);
    if (b.rc == 0)
        b.rc = graph_add_node(c->g, &b.node, "result", &c->output, e);
    if (b.rc == 0)
        b.rc = graph_plan_memory(c->g, max_dims, false, e);
    if (b.rc) {
        graph_free(c->g);
        c->g = NULL;
        return err_ctx(e, "building a case of operator %u", s->op);
    }
    return ERR_OK;
}

static void release_data(struct opcase *c)
{
    for (uint32_t i = 0; i < OPCASE_VALUES; i++) {
        if (!c->borrowed[i])
            free(c->data[i]);
        c->data[i] = NULL;
        c->borrowed[i] = false;
    }
}

void opcase_close(struct opcase *c)
{
    release_data(c);
    graph_free(c->g);
    c->g = NULL;
}

void opcase_release_copy(struct opcase *c)
{
    release_data(c);
    c->g = NULL;
}

/* ---- contents ---- */

struct fill {
    struct opcase *c;
    enum opclass cls;
    struct rng rng;
    float gain; /* of LARGE and OUTLIERS: less where an exponential follows */
};

/* Sum of four uniforms: near enough to normal, bounded, and cheap. */
static float normal(struct rng *r)
{
    double sum = -2;
    for (int i = 0; i < 4; i++)
        sum += rng_next_f64(r);
    return (float)(sum * 1.7320508075688772);
}

static float draw(struct fill *f, bool weight)
{
    switch (f->cls) {
    case OPCLASS_SMALL:
        return weight ? normal(&f->rng) : ldexpf(normal(&f->rng), -40);
    case OPCLASS_LARGE:
        return weight ? normal(&f->rng) : normal(&f->rng) * (f->gain > 8 ? 0x1p30f : 8);
    case OPCLASS_SPARSE: {
        uint64_t u = rng_below(&f->rng, 20);
        return u >= 2 ? (u & 1 ? 0.0f : -0.0f) : normal(&f->rng);
    }
    case OPCLASS_OUTLIERS:
        return normal(&f->rng) * (rng_below(&f->rng, 64) == 0 ? f->gain : 1);
    case OPCLASS_POSITIVE:
        return (float)(0.5 + rng_next_f64(&f->rng));
    default:
        return normal(&f->rng);
    }
}

static void draw_floats(struct fill *f, uint32_t id, bool weight)
{
    const struct opcase *c = f->c;
    uint32_t dtype = c->g->values[id].dtype;
    size_t n = (size_t)(c->bytes[id] / (dtype_bits(dtype) / 8)), width = dtype_bits(dtype) / 8;
    for (size_t i = 0; i < n; i++) {
        float x = draw(f, weight);
        tensor_from_f32(&x, 1, dtype, (char *)c->data[id] + i * width);
    }
}

static void fill_ints(struct fill *f, uint32_t id, int64_t below, bool with_invalid)
{
    int32_t *x = f->c->data[id];
    size_t n = (size_t)(f->c->bytes[id] / 4);
    static const int32_t invalid[] = {-1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < n; i++) {
        x[i] = (int32_t)rng_below(&f->rng, (uint64_t)below);
        if (with_invalid && rng_below(&f->rng, 9) == 0)
            x[i] = i % 4 == 3 ? (int32_t)below : invalid[i % 4];
    }
}

static void fill_rope(struct fill *f)
{
    struct opcase *c = f->c;
    if (c->shape.op == D0_OP_ROPE_TABLE) {
        fill_ints(f, c->in[0], f->cls == OPCLASS_LARGE ? 1 << 20 : 4096, false);
        float *freq = c->data[c->in[1]];
        for (int64_t i = 0; i < c->shape.width / 2; i++)
            freq[i] = (float)pow(10000.0, -2.0 * (double)i / (double)c->shape.width);
        return;
    }
    draw_floats(f, c->in[0], false);
    float *table = c->data[c->in[1]];
    int64_t half = c->shape.width / 2;
    for (int64_t t = 0; t < c->dims[0]; t++)
        for (int64_t j = 0; j < half; j++) {
            double angle = 6.3 * rng_next_f64(&f->rng);
            table[t * 2 * half + j] = (float)cos(angle);
            table[t * 2 * half + half + j] = (float)sin(angle);
        }
}

/* Places of all tokens: ascending sequences, a random history before each, pages in random order. history[s],
 * run[s] are given back. */
static void fill_places(struct fill *f, uint32_t first, int64_t *history, int64_t *run)
{
    struct opcase *c = f->c;
    int32_t *position = c->data[c->in[first]], *seq_of = c->data[c->in[first + 1]],
            *table = c->data[c->in[first + 2]];
    int64_t tokens = c->dims[0], seqs = c->dims[1], row = c->dims[3], pages = n_pages(c),
            slot = c->shape.page_tokens;
    uint64_t offset = rng_below(&f->rng, (uint64_t)pages), stride = 1 + rng_below(&f->rng, (uint64_t)pages);
    while (stride > 1) { /* a stride that visits every page: coprime to their number */
        int64_t a = pages, b = (int64_t)stride;
        while (b) {
            int64_t t = a % b;
            a = b;
            b = t;
        }
        if (a == 1)
            break;
        stride--;
    }
    for (int64_t s = 0; s < seqs; s++)
        run[s] = 0;
    for (int64_t t = 0; t < tokens; t++)
        run[seq_of[t] = (int32_t)(t * seqs / tokens)]++;
    int64_t used = 0, t = 0;
    for (int64_t s = 0; s < seqs; s++) {
        history[s] = (int64_t)rng_below(&f->rng, (uint64_t)(row * slot - run[s] + 1));
        for (int64_t i = 0; i < run[s]; i++)
            position[t++] = (int32_t)(history[s] + i);
        int64_t needed = (history[s] + run[s] + slot - 1) / slot;
        for (int64_t p = 0; p < row; p++)
            table[s * row + p] =
                p < needed ? (int32_t)((offset + (uint64_t)used++ * stride) % (uint64_t)pages) : -1;
    }
}

/* Position p of sequence s in one of the two page arrays: [kv_heads] rows of `dim` values, page_tokens apart.
 */
static void fill_slot(struct fill *f, uint32_t id, int64_t page, int64_t slot, int64_t dim)
{
    struct opcase *c = f->c;
    uint32_t dtype = c->g->values[id].dtype;
    size_t width = dtype_bits(dtype) / 8;
    for (int64_t h = 0; h < c->shape.kv_heads; h++) {
        int64_t at = ((page * c->shape.kv_heads + h) * c->shape.page_tokens + slot) * dim;
        for (int64_t i = 0; i < dim; i++) {
            float x = draw(f, true);
            tensor_from_f32(&x, 1, dtype, (char *)c->data[id] + (size_t)(at + i) * width);
        }
    }
}

static int fill_paged(struct fill *f, struct err *e)
{
    struct opcase *c = f->c;
    bool store = c->shape.op == D0_OP_KV_STORE;
    uint32_t first = store ? 4 : 3, k = c->in[first - 2], v = c->in[first - 1];
    int64_t *places = calloc(2 * (size_t)c->dims[1] + 1, sizeof *places);
    if (!places)
        return err_set(e, ERR_NOMEM, "no memory for a case of %lld sequences", (long long)c->dims[1]);
    int64_t *history = places, *run = places + c->dims[1];
    fill_places(f, first, history, run);
    draw_floats(f, c->in[0], false);
    if (store)
        draw_floats(f, c->in[1], false);
    /* all ones is NaN in every float type; what KV_STORE leaves alone must keep these bits */
    memset(c->data[k], 0xff, c->bytes[k]);
    memset(c->data[v], 0xff, c->bytes[v]);
    const int32_t *table = c->data[c->in[first + 2]];
    for (int64_t s = 0; !store && s < c->dims[1]; s++) {
        int64_t from =
            c->shape.window && history[s] >= c->shape.window ? history[s] - c->shape.window + 1 : 0;
        for (int64_t p = from; p < history[s] + run[s]; p++) {
            int64_t page = table[s * c->dims[3] + p / c->shape.page_tokens];
            fill_slot(f, k, page, p % c->shape.page_tokens, c->shape.dim);
            fill_slot(f, v, page, p % c->shape.page_tokens, c->shape.v_dim);
        }
    }
    free(places);
    return ERR_OK;
}

static int allocate(struct opcase *c, struct err *e)
{
    release_data(c);
    for (uint32_t i = 0; i < c->g->n_values; i++) {
        uint64_t bytes;
        if (!value_bytes(&c->g->values[i], c->dims, &bytes) || bytes > SIZE_MAX / 2)
            return err_set(e, ERR_LIMIT, "value %u of a case is too large", i);
        if (i == c->output) {
            c->n_out = (size_t)(bytes / sizeof(float));
            c->out_width = (size_t)c->g->values[i].dims[1];
            continue;
        }
        c->bytes[i] = bytes;
        c->data[i] = malloc(bytes ? (size_t)bytes : 1);
        if (!c->data[i])
            return err_set(e, ERR_NOMEM, "no memory for %llu bytes of a case", (unsigned long long)bytes);
    }
    return ERR_OK;
}

int opcase_fill(struct opcase *c, const int64_t dims[D0_N_DIMS], enum opclass cls, uint64_t seed,
                struct err *e)
{
    memcpy(c->dims, dims, sizeof c->dims);
    int rc = allocate(c, e);
    if (rc)
        return rc;
    struct fill f = {.c = c, .cls = cls, .gain = 0x1p10f};
    uint32_t op = c->shape.op;
    if (op == D0_OP_ATTENTION || op == D0_OP_GLU)
        f.gain = 8;
    rng_init(&f.rng, seed);
    if (op == D0_OP_ROPE || op == D0_OP_ROPE_TABLE) {
        fill_rope(&f);
        return ERR_OK;
    }
    if (op == D0_OP_KV_STORE || op == D0_OP_ATTENTION)
        return fill_paged(&f, e);
    for (uint32_t i = 0; i < D0_MAX_NODE_INPUTS; i++) {
        uint32_t id = c->in[i];
        if (id == D0_NO_VALUE)
            continue;
        const struct d0_value *v = &c->g->values[id];
        if (v->dtype == D0_I32)
            fill_ints(&f, id, v->role == D0_INPUT_IDS ? c->shape.n : (c->dims[0] ? c->dims[0] : 1),
                      v->role == D0_INPUT_IDS);
        else
            draw_floats(&f, id, v->kind == D0_VALUE_WEIGHT);
    }
    return ERR_OK;
}

/* ---- one row of a case ---- */

/* A copy that shares weights and states; inputs get memory of their own, `bytes` as given by c->dims of the
 * copy. */
static int copy_case(const struct opcase *c, const int64_t dims[D0_N_DIMS], struct opcase *out, struct err *e)
{
    *out = *c;
    memcpy(out->dims, dims, sizeof out->dims);
    for (uint32_t i = 0; i < OPCASE_VALUES; i++)
        out->borrowed[i] = true;
    for (uint32_t i = 0; i < c->g->n_values; i++) {
        if (c->g->values[i].kind != D0_VALUE_INPUT)
            continue;
        out->borrowed[i] = false;
        if (!value_bytes(&c->g->values[i], dims, &out->bytes[i]))
            out->bytes[i] = 0;
        out->data[i] = malloc(out->bytes[i] ? (size_t)out->bytes[i] : 1);
        if (!out->data[i]) {
            for (uint32_t j = i + 1; j < OPCASE_VALUES; j++)
                out->data[j] = NULL;
            opcase_release_copy(out);
            return err_set(e, ERR_NOMEM, "no memory for a row of a case");
        }
    }
    return ERR_OK;
}

/* Sequence of a row: what the SEQ_OF input says, 0 where there is none. */
static int64_t seq_of_row(const struct opcase *c, int64_t row)
{
    for (uint32_t i = 0; i < c->g->n_values; i++)
        if (c->g->values[i].role == D0_INPUT_SEQ_OF)
            return ((const int32_t *)c->data[i])[row];
    return 0;
}

int opcase_alone(const struct opcase *c, int64_t row, struct opcase *out, struct err *e)
{
    int64_t dims[D0_N_DIMS] = {1, 1, 1, c->dims[3]};
    int rc = copy_case(c, dims, out, e);
    if (rc)
        return rc;
    out->n_out = c->out_width;
    int64_t seq = seq_of_row(c, row);
    for (uint32_t i = 0; i < c->g->n_values; i++) {
        const struct d0_value *v = &c->g->values[i];
        if (v->kind != D0_VALUE_INPUT)
            continue;
        int64_t from = v->dims[0] == D0_DIM_SEQS ? seq : row;
        memcpy(out->data[i], (const char *)c->data[i] + (uint64_t)from * out->bytes[i], out->bytes[i]);
        if (v->role == D0_INPUT_SEQ_OF)
            memset(out->data[i], 0, out->bytes[i]);
    }
    return ERR_OK;
}

int opcase_poisoned(const struct opcase *c, int64_t row, struct opcase *out, struct err *e)
{
    int rc = copy_case(c, c->dims, out, e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < c->g->n_values; i++) {
        const struct d0_value *v = &c->g->values[i];
        if (v->kind != D0_VALUE_INPUT)
            continue;
        memcpy(out->data[i], c->data[i], out->bytes[i]);
        if (v->dtype != D0_F32 || v->dims[0] != D0_DIM_TOKENS)
            continue;
        uint64_t row_bytes = out->bytes[i] / (uint64_t)c->dims[0];
        memset(out->data[i], 0xff, row_bytes * (uint64_t)row);
        memset((char *)out->data[i] + row_bytes * (uint64_t)(row + 1), 0xff,
               row_bytes * (uint64_t)(c->dims[0] - row - 1));
    }
    return ERR_OK;
}
