/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the hand-built graphs and plans that several tests share.
 */
#include "tiny_llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "tensor/tensor.h"

void *tiny_random(uint32_t dtype, size_t n, double centre, double scale, uint64_t seed)
{
    float *x = malloc(n * sizeof *x);
    void *out = malloc(n * dtype_bits(dtype) / 8);
    for (size_t i = 0; x && i < n; i++)
        x[i] = (float)(centre + scale * (2 * rng_f64(seed, i) - 1));
    if (x && out)
        tensor_from_f32(x, n, dtype, out);
    free(x);
    return out;
}

struct builder {
    struct graph *g;
    const struct tiny_llama *m;
    struct err *e;
    int rc;
    int32_t layer;
    uint64_t seed;
    uint32_t positions, seq_of, table;
};

static uint32_t input(struct builder *b, const char *name, uint32_t role, uint32_t n_dims, int64_t d0,
                      int64_t d1)
{
    struct d0_value v = {
        .kind = D0_VALUE_INPUT, .dtype = D0_I32, .n_dims = n_dims, .role = role, .dims = {d0, d1}};
    struct graph_value_info info = {.name = name, .layer = -1};
    uint32_t id = 0;
    if (b->rc == ERR_OK)
        b->rc = graph_add_value(b->g, &v, &info, &id, b->e);
    return id;
}

static uint32_t weight(struct builder *b, const char *what, int64_t n, int64_t k, enum partition part,
                       uint32_t units)
{
    char name[96];
    if (b->layer >= 0)
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", b->layer, what);
    else
        snprintf(name, sizeof name, "%s.weight", what);
    struct d0_value v = {.kind = D0_VALUE_WEIGHT, .dtype = b->m->dtype, .n_dims = k ? 2 : 1, .dims = {n, k}};
    struct graph_value_info info = {.name = name, .layer = b->layer, .part = part, .part_units = units};
    size_t count = (size_t)(k ? n * k : n);
    void *data = NULL;
    b->seed++;
    if (!b->m->no_constants)
        data = k ? tiny_random(b->m->dtype, count, 0, 2 / sqrt((double)k), b->seed)
                 : tiny_random(b->m->dtype, count, 1, 0.2, b->seed);
    info.constant = data;
    uint32_t id = 0;
    if (b->rc == ERR_OK)
        b->rc = graph_add_value(b->g, &v, &info, &id, b->e);
    free(data);
    return id;
}

static uint32_t state(struct builder *b, const char *what)
{
    char name[32];
    snprintf(name, sizeof name, "kv.%d.%s", b->layer, what);
    struct d0_value v = {.kind = D0_VALUE_STATE,
                         .dtype = b->m->kv_dtype,
                         .n_dims = 4,
                         .dims = {1, b->m->kv_heads, b->m->page_tokens, b->m->dim}};
    struct graph_value_info info = {.name = name, .layer = b->layer};
    uint32_t id = 0;
    if (b->rc == ERR_OK)
        b->rc = graph_add_value(b->g, &v, &info, &id, b->e);
    return id;
}

static void attr_i(struct d0_node *n, uint32_t key, int64_t v)
{
    n->attrs[n->n_attrs++] = (struct d0_attr){.key = key, .v.i = v};
}

static void attr_f(struct d0_node *n, uint32_t key, double v)
{
    n->attrs[n->n_attrs++] = (struct d0_attr){.key = key, .is_float = 1, .v.f = v};
}

static struct d0_node op(const struct builder *b, uint32_t id, uint32_t n, const uint32_t *inputs)
{
    struct d0_node node = {.op = id, .n_inputs = n, .layer = b->layer};
    memcpy(node.inputs, inputs, n * sizeof *inputs);
    return node;
}

static uint32_t add(struct builder *b, const struct d0_node *n, const char *what)
{
    char name[96];
    if (b->layer >= 0)
        snprintf(name, sizeof name, "model.layers.%d.%s", b->layer, what);
    else
        snprintf(name, sizeof name, "%s", what);
    uint32_t id = 0;
    if (b->rc == ERR_OK)
        b->rc = graph_add_node(b->g, n, name, &id, b->e);
    if (b->rc == ERR_OK && id != D0_NO_VALUE)
        b->g->info[id].probe = true;
    return id;
}

static uint32_t norm(struct builder *b, uint32_t x, const char *what)
{
    uint32_t w = weight(b, what, b->m->hidden, 0, PART_REPLICATED, 0);
    struct d0_node n = op(b, D0_OP_RMS_NORM, 2, (uint32_t[]){x, w});
    attr_f(&n, D0_ATTR_EPS, 1e-5);
    return add(b, &n, what);
}

static uint32_t linear(struct builder *b, uint32_t x, const char *what, int64_t n_out, int64_t k,
                       enum partition part, uint32_t units)
{
    uint32_t w = weight(b, what, n_out, k, part, units);
    struct d0_node n = op(b, D0_OP_LINEAR, 2, (uint32_t[]){x, w});
    return add(b, &n, what);
}

static uint32_t rope(struct builder *b, uint32_t x, uint32_t table, const char *what)
{
    struct d0_node n = op(b, D0_OP_ROPE, 2, (uint32_t[]){x, table});
    attr_i(&n, D0_ATTR_DIM, b->m->dim);
    return add(b, &n, what);
}

static uint32_t attention(struct builder *b, uint32_t x, uint32_t rope_table)
{
    const struct tiny_llama *m = b->m;
    uint32_t h = (uint32_t)m->heads, kvh = (uint32_t)m->kv_heads;
    uint32_t q = linear(b, x, "self_attn.q_proj", m->heads * m->dim, m->hidden, PART_HEADS, h);
    uint32_t k = linear(b, x, "self_attn.k_proj", m->kv_heads * m->dim, m->hidden, PART_HEADS, kvh);
    uint32_t v = linear(b, x, "self_attn.v_proj", m->kv_heads * m->dim, m->hidden, PART_HEADS, kvh);
    q = rope(b, q, rope_table, "self_attn.q_rope");
    k = rope(b, k, rope_table, "self_attn.k_rope");
    uint32_t kp = state(b, "k"), vp = state(b, "v");
    struct d0_node store =
        op(b, D0_OP_KV_STORE, 7, (uint32_t[]){k, v, kp, vp, b->positions, b->seq_of, b->table});
    attr_i(&store, D0_ATTR_KV_HEADS, m->kv_heads);
    attr_i(&store, D0_ATTR_DIM, m->dim);
    add(b, &store, "self_attn.store");
    struct d0_node n = op(b, D0_OP_ATTENTION, 6, (uint32_t[]){q, kp, vp, b->positions, b->seq_of, b->table});
    attr_i(&n, D0_ATTR_HEADS, m->heads);
    attr_i(&n, D0_ATTR_KV_HEADS, m->kv_heads);
    attr_i(&n, D0_ATTR_DIM, m->dim);
    attr_f(&n, D0_ATTR_SCALE, 1 / sqrt((double)m->dim));
    if (m->window)
        attr_i(&n, D0_ATTR_WINDOW, m->window);
    uint32_t a = add(b, &n, "self_attn.attention");
    return linear(b, a, "self_attn.o_proj", m->hidden, m->heads * m->dim, PART_ROW, h);
}

static uint32_t mlp(struct builder *b, uint32_t x)
{
    const struct tiny_llama *m = b->m;
    uint32_t gate = linear(b, x, "mlp.gate_proj", m->inter, m->hidden, PART_COLUMN, 0);
    uint32_t up = linear(b, x, "mlp.up_proj", m->inter, m->hidden, PART_COLUMN, 0);
    struct d0_node n = op(b, D0_OP_GLU, 2, (uint32_t[]){gate, up});
    uint32_t y = add(b, &n, "mlp.glu");
    return linear(b, y, "mlp.down_proj", m->hidden, m->inter, PART_ROW, 0);
}

static uint32_t residual(struct builder *b, uint32_t x, uint32_t y, const char *what)
{
    struct d0_node n = op(b, D0_OP_ADD, 2, (uint32_t[]){x, y});
    return add(b, &n, what);
}

static uint32_t rope_table(struct builder *b)
{
    int64_t half = b->m->dim / 2;
    float freq[512];
    for (int64_t i = 0; i < half && i < 512; i++)
        freq[i] = (float)pow(10000, -(double)i / (double)half);
    struct d0_value v = {.kind = D0_VALUE_WEIGHT, .dtype = D0_F32, .n_dims = 1, .dims = {half}};
    struct graph_value_info info = {.name = "inv_freq", .layer = -1, .constant = freq};
    uint32_t id = 0;
    if (b->rc == ERR_OK)
        b->rc = graph_add_value(b->g, &v, &info, &id, b->e);
    struct d0_node n = op(b, D0_OP_ROPE_TABLE, 2, (uint32_t[]){b->positions, id});
    return add(b, &n, "rope_table");
}

int tiny_llama_graph(struct graph **out, const struct tiny_llama *m, struct err *e)
{
    struct builder b = {.m = m, .e = e, .layer = -1, .seed = m->seed << 20};
    b.rc = graph_open(&b.g, NULL, e);
    if (b.rc != ERR_OK)
        return b.rc;
    uint32_t ids = input(&b, "ids", D0_INPUT_IDS, 1, D0_DIM_TOKENS, 0);
    b.positions = input(&b, "positions", D0_INPUT_POSITIONS, 1, D0_DIM_TOKENS, 0);
    b.seq_of = input(&b, "seq_of", D0_INPUT_SEQ_OF, 1, D0_DIM_TOKENS, 0);
    b.table = input(&b, "page_table", D0_INPUT_PAGE_TABLE, 2, D0_DIM_SEQS, D0_DIM_PAGES);
    uint32_t rows = input(&b, "rows", D0_INPUT_ROWS, 1, D0_DIM_ROWS, 0);
    uint32_t embedding = weight(&b, "model.embed_tokens", m->vocab, m->hidden, PART_VOCAB, 0);
    struct d0_node n = op(&b, D0_OP_EMBED, 2, (uint32_t[]){ids, embedding});
    uint32_t x = add(&b, &n, "model.embed_tokens");
    uint32_t table = rope_table(&b);
    for (b.layer = 0; b.layer < m->layers; b.layer++) {
        uint32_t y = attention(&b, norm(&b, x, "input_layernorm"), table);
        x = residual(&b, x, y, "attention_residual");
        y = mlp(&b, norm(&b, x, "post_attention_layernorm"));
        x = residual(&b, x, y, "mlp_residual");
    }
    b.layer = -1;
    n = op(&b, D0_OP_GATHER_ROWS, 2, (uint32_t[]){x, rows});
    x = norm(&b, add(&b, &n, "model.rows"), "model.norm");
    linear(&b, x, "lm_head", m->vocab, m->hidden, PART_VOCAB, 0);
    if (b.rc == ERR_OK)
        b.rc = graph_set_segments(b.g, e);
    if (b.rc == ERR_OK)
        b.rc = graph_verify(b.g, e);
    if (b.rc != ERR_OK) {
        graph_free(b.g);
        return b.rc;
    }
    *out = b.g;
    return ERR_OK;
}

/* ---- the model in float64 ------------------------------------------------------------------------------ */

/* The weight as float32[n]; freed by the caller. */
static float *load(const struct graph *g, int64_t layer, const char *what)
{
    char name[96];
    if (layer >= 0)
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", (int)layer, what);
    else
        snprintf(name, sizeof name, "%s.weight", what);
    uint32_t id = graph_find(g, name);
    if (id == D0_NO_VALUE || !g->info[id].constant)
        abort();
    const struct d0_value *v = &g->values[id];
    size_t n = (size_t)(v->dims[0] * (v->n_dims > 1 ? v->dims[1] : 1));
    float *x = malloc(n * sizeof *x);
    if (!x || !tensor_to_f32(g->info[id].constant, v->dtype, n, x))
        abort();
    return x;
}

/* y[t][o] (+)= sum over k of x[t][k] * w[o][k] */
static void matmul(const struct graph *g, int64_t layer, const char *what, const double *x, double *y,
                   size_t n, size_t n_out, size_t k, bool add_to)
{
    float *w = load(g, layer, what);
    for (size_t t = 0; t < n; t++)
        for (size_t o = 0; o < n_out; o++) {
            double sum = add_to ? y[t * n_out + o] : 0;
            for (size_t i = 0; i < k; i++)
                sum += x[t * k + i] * (double)w[o * k + i];
            y[t * n_out + o] = sum;
        }
    free(w);
}

static void rms(const struct graph *g, int64_t layer, const char *what, const double *x, double *y, size_t n,
                size_t k)
{
    float *w = load(g, layer, what);
    for (size_t t = 0; t < n; t++) {
        double sum = 0;
        for (size_t i = 0; i < k; i++)
            sum += x[t * k + i] * x[t * k + i];
        for (size_t i = 0; i < k; i++)
            y[t * k + i] = x[t * k + i] / sqrt(sum / (double)k + 1e-5) * (double)w[i];
    }
    free(w);
}

static void rotate(double *x, size_t n, size_t heads, size_t dim)
{
    for (size_t t = 0; t < n; t++)
        for (size_t h = 0; h < heads; h++)
            for (size_t j = 0; j < dim / 2; j++) {
                double *a = &x[(t * heads + h) * dim + j], *b = a + dim / 2, was = *a;
                double angle = (double)t * pow(10000, -(double)j / (double)(dim / 2));
                *a = was * cos(angle) - *b * sin(angle);
                *b = *b * cos(angle) + was * sin(angle);
            }
}

static void attend(const struct tiny_llama *m, const double *q, const double *k, const double *v, double *out,
                   size_t n)
{
    size_t dim = (size_t)m->dim, heads = (size_t)m->heads, kvh = (size_t)m->kv_heads;
    double *p = malloc(n * sizeof *p);
    for (size_t t = 0; p && t < n; t++)
        for (size_t h = 0; h < heads; h++) {
            size_t kh = h * kvh / heads,
                   first = m->window && t >= (size_t)m->window ? t - (size_t)m->window + 1 : 0;
            double sum = 0, *o = out + (t * heads + h) * dim;
            memset(o, 0, dim * sizeof *o);
            for (size_t s = first; s <= t; s++) {
                double dot = 0;
                for (size_t d = 0; d < dim; d++)
                    dot += q[(t * heads + h) * dim + d] * k[(s * kvh + kh) * dim + d];
                sum += p[s] = exp(dot / sqrt((double)dim));
            }
            for (size_t s = first; s <= t; s++)
                for (size_t d = 0; d < dim; d++)
                    o[d] += p[s] / sum * v[(s * kvh + kh) * dim + d];
        }
    free(p);
}

void tiny_llama_reference(const struct graph *g, const struct tiny_llama *m, const int32_t *tokens, size_t n,
                          double *logits)
{
    size_t h = (size_t)m->hidden, q_n = (size_t)(m->heads * m->dim), kv_n = (size_t)(m->kv_heads * m->dim);
    size_t inter = (size_t)m->inter;
    double *x = calloc(n, h * sizeof *x), *y = calloc(n, h * sizeof *y), *q = calloc(n, q_n * sizeof *q);
    double *k = calloc(n, kv_n * sizeof *k), *v = calloc(n, kv_n * sizeof *v),
           *a = calloc(n, q_n * sizeof *a);
    double *gate = calloc(n, inter * sizeof *gate), *up = calloc(n, inter * sizeof *up);
    float *embedding = load(g, -1, "model.embed_tokens");
    if (!x || !y || !q || !k || !v || !a || !gate || !up)
        abort();
    for (size_t i = 0; i < n * h; i++)
        x[i] = (double)embedding[(size_t)tokens[i / h] * h + i % h];
    for (int64_t l = 0; l < m->layers; l++) {
        rms(g, l, "input_layernorm", x, y, n, h);
        matmul(g, l, "self_attn.q_proj", y, q, n, q_n, h, false);
        matmul(g, l, "self_attn.k_proj", y, k, n, kv_n, h, false);
        matmul(g, l, "self_attn.v_proj", y, v, n, kv_n, h, false);
        rotate(q, n, (size_t)m->heads, (size_t)m->dim);
        rotate(k, n, (size_t)m->kv_heads, (size_t)m->dim);
        attend(m, q, k, v, a, n);
        matmul(g, l, "self_attn.o_proj", a, x, n, h, q_n, true);
        rms(g, l, "post_attention_layernorm", x, y, n, h);
        matmul(g, l, "mlp.gate_proj", y, gate, n, inter, h, false);
        matmul(g, l, "mlp.up_proj", y, up, n, inter, h, false);
        for (size_t i = 0; i < n * inter; i++)
            gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        matmul(g, l, "mlp.down_proj", gate, x, n, h, inter, true);
    }
    rms(g, -1, "model.norm", x, y, n, h);
    matmul(g, -1, "lm_head", y, logits, n, (size_t)m->vocab, h, false);
    double *all[] = {x, y, q, k, v, a, gate, up};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        free(all[i]);
    free(embedding);
}

struct step_plan *tiny_plan(void *buf, size_t cap, const struct tiny_run *runs, uint32_t n, uint64_t step)
{
    uint32_t n_tokens = 0, n_pages = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_tokens += runs[i].n_tokens;
        n_pages += runs[i].n_pages;
    }
    struct step_plan *p;
    if (step_plan_init(buf, cap, n, n_tokens, n_pages, &p, NULL) != ERR_OK)
        return NULL;
    p->step = step;
    n_tokens = n_pages = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct tiny_run *r = &runs[i];
        step_plan_seqs(p)[i] = (struct step_seq){.request = r->request,
                                                 .first_token = n_tokens,
                                                 .n_tokens = r->n_tokens,
                                                 .position = r->position,
                                                 .first_page = n_pages,
                                                 .n_pages = r->n_pages,
                                                 .flags = r->flags,
                                                 .slot = r->slot,
                                                 .restore = r->restore,
                                                 .save = r->save,
                                                 .sampling = r->sampling};
        memcpy(step_plan_tokens(p) + n_tokens, r->tokens, r->n_tokens * sizeof(int32_t));
        if (r->n_pages)
            memcpy(step_plan_pages(p) + n_pages, r->pages, r->n_pages * sizeof(int32_t));
        n_tokens += r->n_tokens;
        n_pages += r->n_pages;
    }
    return p;
}
