/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the graph of a one-operator case and the reading of a filled one: rows alone, poisoned copies, places
 * of keys. What a case holds is opfill.c's.
 */
#include "verify/opcase.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"

const char *opclass_name(enum opclass c)
{
    static const char *const names[OPCLASS_N] = {"normal", "small",    "large",
                                                 "sparse", "outliers", "positive"};
    return c < OPCLASS_N ? names[c] : "?";
}

/* ---- the graph of one node ---- */

/* Pages for every column of the table and one of nobody; slots for every sequence and two of nobody. */
static int64_t n_units(const struct opcase *c, const struct d0_value *v)
{
    bool slots = v->n_dims != 4 || c->shape.node.op == D0_OP_DELTA_RULE;
    return slots ? c->max_dims[1] + 2 : c->max_dims[1] * c->max_dims[3] + 1;
}

static int build_node(struct opcase *c, struct d0_node *node, struct err *e)
{
    struct graph_value_info info = {.name = "", .layer = -1};
    int rc = ERR_OK;
    *node = c->shape.node;
    for (uint32_t i = 0; rc == 0 && i < node->n_inputs; i++) {
        if (node->inputs[i] == D0_NO_VALUE)
            continue;
        struct d0_value v = c->shape.in[i];
        if (v.kind == D0_VALUE_STATE)
            v.dims[0] = n_units(c, &v);
        rc = graph_add_value(c->g, &v, &info, &c->in[i], e);
        node->inputs[i] = c->in[i];
    }
    return rc;
}

int opcase_open(struct opcase *c, const struct opshape *s, const int64_t max_dims[D0_N_DIMS], struct err *e)
{
    struct d0_node node;
    uint32_t first;
    memset(c, 0, sizeof *c);
    c->shape = *s;
    memcpy(c->max_dims, max_dims, sizeof c->max_dims);
    memset(c->in, 0xff, sizeof c->in);
    int rc = graph_open(&c->g, NULL, e);
    if (rc == 0)
        rc = build_node(c, &node, e);
    if (rc == 0)
        rc = graph_add_node(c->g, &node, "result", &first, e);
    if (rc == 0) {
        c->n_outputs = c->g->nodes[0].n_outputs;
        memcpy(c->output, c->g->nodes[0].outputs, sizeof c->output);
        for (uint32_t o = 0; o < c->n_outputs; o++) {
            c->g->info[c->output[o]].keep = true; /* both, not only the graph's result */
            c->ints[o] = c->g->values[c->output[o]].dtype == D0_I32;
        }
        rc = graph_plan_memory(c->g, max_dims, false, e);
    }
    if (rc) {
        graph_free(c->g);
        c->g = NULL;
        err_ctx(e, "building a case of operator %u", s->node.op);
        return rc;
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

int opcase_allocate(struct opcase *c, const int64_t dims[D0_N_DIMS], struct err *e)
{
    memcpy(c->dims, dims, sizeof c->dims);
    for (uint32_t i = 0; i < OPCASE_VALUES; i++)
        if (!c->borrowed[i]) {
            free(c->data[i]);
            c->data[i] = NULL;
        }
    for (uint32_t i = 0; i < c->g->n_values; i++) {
        uint64_t bytes;
        const struct d0_value *v = &c->g->values[i];
        if (!tensor_value_bytes(v, c->dims, &bytes) || bytes > SIZE_MAX / 2)
            return err_set(e, ERR_LIMIT, "value %u of a case is too large", i);
        for (uint32_t o = 0; o < c->n_outputs; o++)
            if (i == c->output[o]) {
                c->n_out[o] = (size_t)(bytes / sizeof(float));
                c->out_width[o] = (size_t)v->dims[1];
            }
        if (v->kind == D0_VALUE_OUTPUT)
            continue;
        c->bytes[i] = bytes;
        if (c->borrowed[i])
            continue;
        c->data[i] = malloc(bytes ? (size_t)bytes : 1);
        if (!c->data[i])
            return err_set(e, ERR_NOMEM, "no memory for %llu bytes of a case", (unsigned long long)bytes);
    }
    return ERR_OK;
}

int opcase_fill(struct opcase *c, const int64_t dims[D0_N_DIMS], enum opclass cls, uint64_t seed,
                struct err *e)
{
    int rc = opcase_allocate(c, dims, e);
    if (rc)
        return rc;
    int64_t *places = calloc(2 * (size_t)dims[1] + 1, sizeof *places);
    if (!places)
        return err_set(e, ERR_NOMEM, "no memory for a case of %lld sequences", (long long)dims[1]);
    struct fill f = {.c = c, .cls = cls, .gain = 0x1p10f, .history = places, .run = places + dims[1]};
    rng_init(&f.rng, seed);
    rc = opfill_contents(&f, e);
    free(places);
    return rc;
}

/* ---- reading ---- */

const float *opcase_rows(const struct opcase *c, uint32_t i)
{
    return c->in[i] == D0_NO_VALUE ? NULL : c->data[c->in[i]];
}

const int32_t *opcase_ints(const struct opcase *c, uint32_t i)
{
    return i == D0_NO_VALUE || c->in[i] == D0_NO_VALUE ? NULL : c->data[c->in[i]];
}

int64_t opcase_size(const struct opcase *c, uint32_t i, uint32_t dim)
{
    return c->in[i] == D0_NO_VALUE ? 0 : c->g->values[c->in[i]].dims[dim];
}

float *opcase_widened(const struct opcase *c, uint32_t i)
{
    if (c->in[i] == D0_NO_VALUE)
        return NULL;
    const struct d0_value *v = &c->g->values[c->in[i]];
    const void *data = c->data[c->in[i]];
    struct tensor_form form;
    if (v->format.scale_dtype) {
        if (!tensor_form_of(v, &form))
            return NULL;
        float *x = malloc((size_t)(form.matrices * form.n * form.k) * sizeof *x);
        for (int64_t r = 0; x && r < form.matrices * form.n; r++)
            tensor_form_row(&form, data, (size_t)r, x + r * form.k);
        return x;
    }
    size_t n = (size_t)(c->bytes[c->in[i]] / (dtype_bits(v->dtype) / 8));
    float *x = malloc((n ? n : 1) * sizeof *x);
    if (x && !tensor_to_f32(data, v->dtype, n, x)) {
        free(x);
        return NULL;
    }
    return x;
}

int64_t opcase_slot(const struct opcase *c, uint32_t pages, int64_t seq, int64_t key, int64_t head)
{
    const struct d0_value *v = &c->g->values[c->in[pages]];
    const int32_t *table = opcase_ints(c, opshape_role(&c->shape, D0_INPUT_PAGE_TABLE));
    int64_t page = table[seq * c->dims[3] + key / v->dims[2]];
    return (page * v->dims[1] + head) * v->dims[2] + key % v->dims[2];
}

static bool among(const int32_t *list, int64_t n, int64_t x)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == x)
            return true;
    return false;
}

/* Input of the keys that are chosen, or D0_NO_VALUE. */
static uint32_t chosen_input(const struct opcase *c)
{
    uint32_t i = c->shape.node.op == D0_OP_MLA ? 6 : 7;
    return i < c->shape.node.n_inputs && c->in[i] != D0_NO_VALUE ? i : D0_NO_VALUE;
}

bool opcase_sees(const struct opcase *c, int64_t t, int64_t g, int64_t j)
{
    const struct opshape *s = &c->shape;
    int64_t p = opcase_ints(c, opshape_role(s, D0_INPUT_POSITIONS))[t],
            window = opshape_int(s, D0_ATTR_WINDOW), chunk = opshape_int(s, D0_ATTR_CHUNK),
            block = opshape_int(s, D0_ATTR_BLOCK);
    if (s->node.op == D0_OP_ATTENTION && s->node.n_inputs > 8 && c->in[8] != D0_NO_VALUE) {
        const int64_t end = opcase_ints(c, 8)[2 * t + 1]; /* the span of pictures that p is in */
        return j < end && (!window || p - j < window) && (!chunk || j >= p / chunk * chunk);
    }
    if (j > p || (window && p - j >= window) || (chunk && j / chunk != p / chunk))
        return false;
    uint32_t i = chosen_input(c);
    if (i == D0_NO_VALUE || s->node.op == D0_OP_POOL_ATTENTION)
        return true;
    int64_t width = opcase_size(c, i, 1), groups = s->node.op == D0_OP_ATTENTION ? opcase_size(c, 1, 1) : 1;
    return among(opcase_ints(c, i) + t * width + g * (width / groups), width / groups,
                 j / (block ? block : 1));
}

bool opcase_sees_pooled(const struct opcase *c, int64_t t, int64_t w)
{
    const struct opshape *s = &c->shape;
    int64_t ratio = opshape_int(s, D0_ATTR_RATIO), p = opcase_ints(c, opshape_role(s, D0_INPUT_POSITIONS))[t];
    uint32_t i = chosen_input(c);
    if (ratio == 0 || w >= (p + 1) / ratio)
        return false;
    return i == D0_NO_VALUE || among(opcase_ints(c, i) + t * opcase_size(c, i, 1), opcase_size(c, i, 1), w);
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
        if (!tensor_value_bytes(&c->g->values[i], dims, &out->bytes[i]))
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

bool opcase_bounded(const struct opcase *c)
{
    uint32_t op = c->shape.node.op;
    return (op == D0_OP_MLA || op == D0_OP_DELTA_RULE) && opshape_int(&c->shape, D0_ATTR_FORM) != 0;
}

bool opcase_recurrent(const struct opcase *c)
{
    return opshape_role(&c->shape, D0_INPUT_SLOTS) != D0_NO_VALUE;
}

/* Sequence of a row: what the SEQ_OF input says, 0 where there is none. */
static int64_t seq_of_row(const struct opcase *c, int64_t row)
{
    const int32_t *seq_of = opcase_ints(c, opshape_role(&c->shape, D0_INPUT_SEQ_OF));
    return seq_of ? seq_of[row] : 0;
}

int64_t opcase_row_to_try(const struct opcase *c, int64_t row)
{
    while (opcase_recurrent(c) && row > 0 && seq_of_row(c, row - 1) == seq_of_row(c, row))
        row--;
    return row;
}

/* Rows that every row may read, whoever else is there. */
static bool is_shared(const struct d0_value *v)
{
    return v->kind == D0_VALUE_INPUT && v->dtype == D0_F32 && v->dims[0] == D0_DIM_ROWS;
}

int opcase_alone(const struct opcase *c, int64_t row, struct opcase *out, struct err *e)
{
    int64_t dims[D0_N_DIMS] = {1, 1, 1, c->dims[3]};
    for (uint32_t i = 0; i < c->g->n_values; i++)
        dims[2] = is_shared(&c->g->values[i]) ? c->dims[2] : dims[2];
    int rc = copy_case(c, dims, out, e);
    if (rc)
        return rc;
    memcpy(out->n_out, c->out_width, sizeof out->n_out);
    int64_t seq = seq_of_row(c, row);
    for (uint32_t i = 0; i < c->g->n_values; i++) {
        const struct d0_value *v = &c->g->values[i];
        if (v->kind != D0_VALUE_INPUT)
            continue;
        int64_t from = v->dims[0] == D0_DIM_SEQS ? seq : is_shared(v) ? 0 : row;
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
