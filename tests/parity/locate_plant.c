/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: how each fault of planted.def is made. A function decides by what it finds in the node whether the
 * fault fits, so that the table names operators and nothing of families. Bytes are edited in place and kept
 * for the way back. Refuses: weights whose elements it cannot name.
 */
#include "locate_plant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/trace_file.h"

/* ---- attributes and inputs ---- */

static struct d0_node *node_of(struct plant *p, uint32_t i)
{
    return &p->g->nodes[i];
}

static bool has_input(const struct d0_node *n, uint32_t k)
{
    return k < n->n_inputs && n->inputs[k] != D0_NO_VALUE;
}

static double number_of(const struct d0_node *n, uint32_t key)
{
    return attr_is_float(key) ? node_attr_f(n, key, 0) : (double)node_attr_i(n, key, 0);
}

static bool set(struct plant *p, uint32_t i, uint32_t key, double value)
{
    struct d0_node *n = node_of(p, i);
    if (number_of(n, key) == value)
        return false;
    return p->dry ||
           (attr_is_float(key) ? node_set_attr_f(n, key, value) : node_set_attr_i(n, key, (int64_t)value));
}

/* Only where there is more than `value`: takes something away. */
static bool set_lower(struct plant *p, uint32_t i, uint32_t key, double value)
{
    return number_of(node_of(p, i), key) > value && set(p, i, key, value);
}

static bool flip(struct plant *p, uint32_t i, uint32_t key, double value)
{
    (void)value;
    return set(p, i, key, number_of(node_of(p, i), key) == 0);
}

static bool flip_weighted(struct plant *p, uint32_t i, uint32_t key, double value)
{
    return has_input(node_of(p, i), (uint32_t)value) && flip(p, i, key, 0);
}

static bool multiply(struct plant *p, uint32_t i, uint32_t key, double value)
{
    return set(p, i, key, number_of(node_of(p, i), key) * value);
}

/* All groups stay. */
static bool keep_groups(struct plant *p, uint32_t i, uint32_t key, double value)
{
    const int64_t groups = node_attr_i(node_of(p, i), D0_ATTR_GROUPS, 0);
    (void)value;
    return groups > 1 && set(p, i, key, (double)groups);
}

static bool add(struct plant *p, uint32_t i, uint32_t key, double value)
{
    const double was = number_of(node_of(p, i), key);
    return was > 0 && was + value > 0 && set(p, i, key, was + value);
}

static bool add_to_window(struct plant *p, uint32_t i, uint32_t key, double value)
{
    return number_of(node_of(p, i), key) + value <= p->n_tokens && add(p, i, key, value);
}

/* silu for the tanh of gelu, which is as close as an activation gets, and the other way round */
static bool other_activation(struct plant *p, uint32_t i, uint32_t key, double value)
{
    const double is = number_of(node_of(p, i), key);
    (void)value;
    return is <= 1 && set(p, i, key, 1 - is);
}

static bool drop(struct plant *p, uint32_t i, uint32_t key, double value)
{
    struct d0_node *n = node_of(p, i);
    (void)value;
    if (!has_input(n, key))
        return false;
    if (!p->dry)
        n->inputs[key] = D0_NO_VALUE;
    return true;
}

static bool swap(struct plant *p, uint32_t i, uint32_t key, double value)
{
    struct d0_node *n = node_of(p, i);
    const uint32_t other = (uint32_t)value;
    if (!has_input(n, key) || !has_input(n, other))
        return false;
    if (!p->dry) {
        uint32_t v = n->inputs[key];
        n->inputs[key] = n->inputs[other];
        n->inputs[other] = v;
    }
    return true;
}

/* Packed gate and up: taken for interleaved rows, or interleaved ones for halves. */
static bool swap_experts(struct plant *p, uint32_t i, uint32_t key, double value)
{
    const int64_t layout = node_attr_i(node_of(p, i), D0_ATTR_LAYOUT, 0);
    return layout == 0 ? swap(p, i, key, value)
                       : layout <= 2 && set(p, i, D0_ATTR_LAYOUT, (double)(3 - layout));
}

static void only_scale(struct d0_node *n, uint32_t kept)
{
    n->op = D0_OP_SCALE;
    n->inputs[0] = kept;
    n->n_inputs = 1;
    n->n_attrs = 0;
    node_set_attr_f(n, D0_ATTR_FACTOR, 1);
}

static bool lose_first(struct plant *p, uint32_t i, uint32_t key, double value)
{
    struct d0_node *n = node_of(p, i);
    (void)key;
    (void)value;
    if (!p->dry)
        only_scale(n, n->inputs[1]);
    return true;
}

static bool lose_shared(struct plant *p, uint32_t i, uint32_t key, double value)
{
    struct d0_node *n = node_of(p, i);
    (void)key;
    (void)value;
    for (uint32_t k = 0; k < 2; k++) {
        const struct graph_value_info *info = p->g->info;
        if (!strstr(info[n->inputs[k]].name, "shared") || strstr(info[n->inputs[1 - k]].name, "shared"))
            continue;
        if (!p->dry)
            only_scale(n, n->inputs[1 - k]);
        return true;
    }
    return false;
}

/* ---- tables of angles ---- */

static struct d0_node *maker_of(struct plant *p, uint32_t value)
{
    for (uint32_t i = 0; i < p->g->n_nodes; i++)
        for (uint32_t k = 0; k < p->g->nodes[i].n_outputs; k++)
            if (p->g->nodes[i].outputs[k] == value)
                return &p->g->nodes[i];
    return NULL;
}

/* Node i gets a table of its own, put before it: `table` is changed by the caller first. */
static bool own_table(struct plant *p, uint32_t i, const struct d0_node *table)
{
    uint32_t out;
    struct graph *g = p->g;
    if (graph_add_node(g, table, "rope.planted", &out, p->e))
        return false;
    struct d0_node last = g->nodes[g->n_nodes - 1];
    memmove(&g->nodes[i + 1], &g->nodes[i], (g->n_nodes - 1 - i) * sizeof last);
    g->nodes[i] = last;
    g->nodes[i + 1].inputs[1] = out;
    return true;
}

static bool other_base(struct plant *p, uint32_t i, uint32_t key, double value)
{
    struct graph *g = p->g;
    struct d0_node table = *maker_of(p, g->nodes[i].inputs[1]);
    const struct d0_value freq = g->values[table.inputs[1]];
    const size_t n = (size_t)freq.dims[0];
    float f[1024];
    (void)key;
    if (n < 2 || n > ARRAY_LEN(f))
        return false;
    if (p->dry)
        return true;
    memcpy(f, g->info[table.inputs[1]].constant, n * sizeof *f);
    for (size_t k = 0; k < n; k++)
        f[k] = (float)((double)f[k] * pow(value, -(double)k / (double)n));
    struct graph_value_info info = g->info[table.inputs[1]];
    info.constant = f;
    return graph_add_value(g, &freq, &info, &table.inputs[1], p->e) == 0 && own_table(p, i, &table);
}

static bool lose_factor(struct plant *p, uint32_t i, uint32_t key, double value)
{
    struct d0_node table = *maker_of(p, p->g->nodes[i].inputs[1]);
    (void)key;
    (void)value;
    const double factor = node_attr_f(&table, D0_ATTR_FACTOR, 0);
    if (factor == 0 || factor == 1)
        return false;
    return p->dry || (node_set_attr_f(&table, D0_ATTR_FACTOR, 1) && own_table(p, i, &table));
}

static bool other_end(struct plant *p, uint32_t i, uint32_t key, double value)
{
    const struct d0_node *n = node_of(p, i);
    const int64_t rotated = p->g->values[n->inputs[1]].dims[1], offset = node_attr_i(n, D0_ATTR_OFFSET, 0),
                  spare = node_attr_i(n, D0_ATTR_DIM, 0) - rotated;
    (void)key;
    (void)value;
    return spare > 0 && set(p, i, D0_ATTR_OFFSET, offset ? 0 : (double)spare);
}

/* ---- positions ---- */

/* The queries' positions become an input of their own, which plant_device moves. */
static bool own_key_hidden(struct plant *p, uint32_t i, uint32_t key, double value)
{
    struct d0_node *n = node_of(p, i);
    (void)value;
    if (p->dry)
        return true;
    const struct d0_value v = p->g->values[n->inputs[key]];
    struct graph_value_info info = p->g->info[n->inputs[key]];
    char name[64];
    snprintf(name, sizeof name, "positions.planted.%u", i);
    info.name = name;
    return graph_add_value(p->g, &v, &info, &node_of(p, i)->inputs[key], p->e) == 0;
}

/* ---- bytes ---- */

struct plant_undo {
    struct plant_undo *next;
    uint64_t offset, bytes;
    unsigned char data[];
};

static bool write_at(const char *path, const void *data, uint64_t bytes, uint64_t offset)
{
    FILE *f = fopen(path, "r+b");
    bool done = f && fseek(f, (long)offset, SEEK_SET) == 0 && fwrite(data, 1, bytes, f) == bytes;
    return f && fclose(f) == 0 && done;
}

void plant_undo(struct plant *p)
{
    while (p->undone) {
        struct plant_undo *u = p->undone;
        if (!write_at(p->weights, u->data, u->bytes, u->offset))
            abort(); /* every later case would be of other weights */
        p->undone = u->next;
        free(u);
    }
}

typedef bool edit_fn(unsigned char *x, const struct spec_tensor *t, double value);

struct editing {
    struct plant *p;
    edit_fn *edit;
    double value;
    enum spec_role role;
    unsigned edited;
};

static int edit_one(void *context, const struct spec_tensor *t)
{
    struct editing *x = context;
    if (t->role != x->role || !t->tensor)
        return 0;
    const uint64_t bytes = t->tensor->bytes;
    struct plant_undo *u = malloc(sizeof *u + bytes);
    unsigned char *data = malloc(bytes ? bytes : 1);
    int rc = u && data ? ckpt_read(x->p->m->c, t->tensor, 0, data, bytes, x->p->e) : ERR_NOMEM;
    if (rc == 0) {
        memcpy(u->data, data, bytes);
        u->bytes = bytes;
        u->offset = t->tensor->offset;
        if (x->edit(data, t, x->value) && memcmp(data, u->data, bytes) != 0) {
            x->edited++;
            if (!x->p->dry && write_at(x->p->weights, data, bytes, u->offset)) {
                u->next = x->p->undone;
                x->p->undone = u;
                u = NULL;
            }
        }
    }
    free(u);
    free(data);
    return rc;
}

static bool edit_input(struct plant *p, uint32_t i, uint32_t k, enum spec_role role, edit_fn *edit,
                       double value)
{
    const struct d0_node *n = node_of(p, i);
    struct editing x = {.p = p, .edit = edit, .value = value, .role = role};
    if (!has_input(n, k))
        return false;
    const uint32_t weight = p->g->info[n->inputs[k]].weight;
    return weight && spec_weight_tensors(p->m->s, weight - 1, p->m->c, edit_one, &x) == 0 && x.edited;
}

static size_t plain_bytes(const struct spec_tensor *t)
{
    const uint32_t d = t->tensor->dtype;
    return d == D0_F32 ? 4 : d == D0_BF16 || d == D0_F16 ? 2 : 0;
}

static float get(const unsigned char *x, const struct spec_tensor *t, uint64_t i)
{
    const size_t each = plain_bytes(t);
    float f = NAN;
    tensor_to_f32(x + i * each, t->tensor->dtype, 1, &f);
    return f;
}

static void put(unsigned char *x, const struct spec_tensor *t, uint64_t i, double value)
{
    const float f = (float)value;
    if (!tensor_from_f32(&f, 1, t->tensor->dtype, x + i * plain_bytes(t)))
        abort();
}

static uint64_t count_of(const struct spec_tensor *t)
{
    return plain_bytes(t) ? t->tensor->bytes / plain_bytes(t) : 0;
}

/* [N, K] written as [K, N] */
static bool edit_transpose(unsigned char *x, const struct spec_tensor *t, double value)
{
    const size_t each = plain_bytes(t);
    (void)value;
    if (!each || t->tensor->n_dims != 2 || t->tensor->dims[0] < 2 || t->tensor->dims[1] < 2)
        return false;
    const uint64_t rows = (uint64_t)t->tensor->dims[0], columns = (uint64_t)t->tensor->dims[1];
    unsigned char *was = malloc(t->tensor->bytes);
    if (!was)
        return false;
    memcpy(was, x, t->tensor->bytes);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++)
            memcpy(x + (c * rows + r) * each, was + (r * columns + c) * each, each);
    free(was);
    return true;
}

static bool transpose(struct plant *p, uint32_t i, uint32_t key, double value)
{
    return edit_input(p, i, key, ROLE_WEIGHT, edit_transpose, value);
}

/* value: number of heads */
static bool edit_heads(unsigned char *x, const struct spec_tensor *t, double value)
{
    const uint64_t heads = (uint64_t)value, each = t->tensor->bytes / heads;
    unsigned char *was = malloc(t->tensor->bytes);
    if (!was || !plain_bytes(t) || t->tensor->bytes % heads) {
        free(was);
        return false;
    }
    memcpy(was, x, t->tensor->bytes);
    for (uint64_t h = 0; h < heads; h++)
        memcpy(x + h * each, was + (heads - 1 - h) * each, each);
    free(was);
    return true;
}

static bool reverse_heads(struct plant *p, uint32_t i, uint32_t key, double value)
{
    const struct graph_value_info *w = &p->g->info[node_of(p, i)->inputs[key]];
    (void)value;
    return w->part == PART_HEADS && w->part_units > 1 &&
           edit_input(p, i, key, ROLE_WEIGHT, edit_heads, w->part_units);
}

static bool edit_scale_one(unsigned char *x, const struct spec_tensor *t, double value)
{
    (void)value;
    if (t->tensor->dtype == D0_U8 || t->tensor->dtype == D0_F8_E8M0)
        memset(x, 127, t->tensor->bytes);
    for (uint64_t i = 0; i < count_of(t); i++)
        put(x, t, i, 1);
    return true;
}

static bool no_scale(struct plant *p, uint32_t i, uint32_t key, double value)
{
    return edit_input(p, i, key, ROLE_SCALE, edit_scale_one, value);
}

static bool edit_scale_next(unsigned char *x, const struct spec_tensor *t, double value)
{
    const size_t each = plain_bytes(t) ? plain_bytes(t) : 1;
    unsigned char first[4];
    (void)value;
    memcpy(first, x, each);
    memmove(x, x + each, t->tensor->bytes - each);
    memcpy(x + t->tensor->bytes - each, first, each);
    return true;
}

static bool next_scale(struct plant *p, uint32_t i, uint32_t key, double value)
{
    return edit_input(p, i, key, ROLE_SCALE, edit_scale_next, value);
}

static bool edit_taps(unsigned char *x, const struct spec_tensor *t, double value)
{
    const uint64_t width = (uint64_t)t->tensor->dims[t->tensor->n_dims - 1];
    (void)value;
    for (uint64_t i = 0; i < count_of(t); i++)
        if (i % width < width / 2) {
            const uint64_t other = i - i % width + width - 1 - i % width;
            const double a = (double)get(x, t, i), b = (double)get(x, t, other);
            put(x, t, i, b);
            put(x, t, other, a);
        }
    return count_of(t) > 0;
}

static bool reverse_taps(struct plant *p, uint32_t i, uint32_t key, double value)
{
    return edit_input(p, i, key, ROLE_WEIGHT, edit_taps, value);
}

static bool edit_clip(unsigned char *x, const struct spec_tensor *t, double value)
{
    for (uint64_t i = 0; i < count_of(t); i++)
        put(x, t, i, fmin((double)get(x, t, i), value));
    return count_of(t) > 0;
}

static bool clip(struct plant *p, uint32_t i, uint32_t key, double value)
{
    return edit_input(p, i, key, ROLE_WEIGHT, edit_clip, value);
}

/* More bits than bf16 has, around `value`, as biases of trained routers have: only their differences count.
 */
static bool edit_sharpen(unsigned char *x, const struct spec_tensor *t, double value)
{
    if (t->tensor->dtype != D0_F32)
        return false;
    for (uint64_t i = 0; i < count_of(t); i++)
        put(x, t, i, value + (double)get(x, t, i) * (1 + (double)(i % 7 + 1) * 0x1p-11));
    return true;
}

static bool of_router(struct plant *p, uint32_t i)
{
    const struct d0_node *n = node_of(p, i);
    for (uint32_t k = 0; k < p->g->n_nodes; k++)
        if (p->g->nodes[k].op == D0_OP_ROUTE && p->g->nodes[k].inputs[0] == n->outputs[0])
            return true;
    return n->op == D0_OP_ROUTE;
}

static bool sharpen(struct plant *p, uint32_t i, uint32_t key, double value)
{
    return of_router(p, i) && edit_input(p, i, key, ROLE_WEIGHT, edit_sharpen, value);
}

static bool edit_round(unsigned char *x, const struct spec_tensor *t, double value)
{
    (void)value;
    for (uint64_t i = 0; i < count_of(t); i++) {
        const float f = get(x, t, i);
        uint16_t half;
        float rounded = f;
        if (tensor_from_f32(&f, 1, D0_BF16, &half))
            tensor_to_f32(&half, D0_BF16, 1, &rounded);
        put(x, t, i, (double)rounded);
    }
    return t->tensor->dtype == D0_F32;
}

static bool round_bias(struct plant *p, uint32_t i, uint32_t key, double value)
{
    return of_router(p, i) && edit_input(p, i, key, ROLE_WEIGHT, edit_round, value);
}

/* The tensor of expert number `value`, or its part of one that holds them all. */
static bool edit_drop_expert(unsigned char *x, const struct spec_tensor *t, double value)
{
    const uint64_t which = (uint64_t)value;
    if (t->weight->count > 1) {
        if (t->index == which)
            memset(x, 0, t->tensor->bytes);
        return t->index == which;
    }
    const uint64_t each = t->tensor->bytes / (uint64_t)t->tensor->dims[0];
    memset(x + which * each, 0, each);
    return t->tensor->n_dims >= 3;
}

/* The expert that most tokens choose, as the intact model's trace tells: one that nobody chooses is no loss.
 */
static double most_chosen(struct plant *p, uint32_t i)
{
    const char *name = p->g->info[node_of(p, i)->inputs[1]].name;
    struct trace *t = NULL;
    unsigned counts[1024] = {0}, best = 0;
    int32_t ids[64];
    if (trace_open(&t, p->trace, p->e))
        return 0;
    const struct trace_tensor *x = trace_find(t, name);
    for (uint64_t row = 0; x && x->width <= ARRAY_LEN(ids) && row < x->rows; row++)
        for (uint64_t k = 0; trace_read(t, x, row, 1, ids, p->e) == 0 && k < x->width; k++)
            if (ids[k] >= 0 && ids[k] < (int32_t)ARRAY_LEN(counts) && ++counts[ids[k]] > counts[best])
                best = (unsigned)ids[k];
    trace_close(t);
    return best;
}

static bool drop_expert(struct plant *p, uint32_t i, uint32_t key, double value)
{
    (void)value;
    return edit_input(p, i, key, ROLE_WEIGHT, edit_drop_expert, most_chosen(p, i));
}

/* Expert e reads the matrix of e + 1: within one packed tensor, or in the router's words: its ids are off. */
static bool edit_next_expert(unsigned char *x, const struct spec_tensor *t, double value)
{
    (void)value;
    if (t->tensor->n_dims < 3 || t->weight->count > 1)
        return false;
    const uint64_t each = t->tensor->bytes / (uint64_t)t->tensor->dims[0];
    unsigned char *first = malloc(each);
    if (!first)
        return false;
    memcpy(first, x, each);
    memmove(x, x + each, t->tensor->bytes - each);
    memcpy(x + t->tensor->bytes - each, first, each);
    free(first);
    return true;
}

static bool next_expert(struct plant *p, uint32_t i, uint32_t key, double value)
{
    return edit_input(p, i, key, ROLE_WEIGHT, edit_next_expert, value);
}

/* ---- a device whose mask is off by one ---- */

struct moved {
    struct d0_exec *exec;
    uint32_t value; /* positions of the queries alone, or D0_NO_VALUE */
    struct d0_buffer *buffer;
    uint64_t offset;
};

static const struct d0_device_api *cpu_api; /* one device at a time */

static uint32_t moved_positions(const struct d0_part *part)
{
    for (uint32_t i = 0; i < part->n_nodes; i++) {
        const struct d0_node *n = &part->nodes[i];
        const uint32_t at = n->op == D0_OP_ATTENTION || n->op == D0_OP_MLA ? 3
                            : n->op == D0_OP_POOL_ATTENTION                ? 4
                                                                           : 0;
        for (uint32_t v = 0; at && v < n->inputs[at]; v++) /* added last: another one comes before */
            if (part->values[v].kind == D0_VALUE_INPUT && part->values[v].role == D0_INPUT_POSITIONS)
                return n->inputs[at];
    }
    return D0_NO_VALUE;
}

static int moved_compile(struct d0_device *device, const struct d0_part *part, struct d0_exec **out,
                         struct d0_status *status)
{
    struct moved *x = calloc(1, sizeof *x);
    if (!x)
        return D0_E_NOMEM;
    x->value = moved_positions(part);
    int rc = cpu_api->compile(device, part, &x->exec, status);
    if (rc != D0_OK)
        free(x);
    else
        *out = (struct d0_exec *)(void *)x;
    return rc;
}

static void moved_destroy(struct d0_device *device, struct d0_exec *exec)
{
    struct moved *x = (struct moved *)(void *)exec;
    cpu_api->exec_destroy(device, x->exec);
    free(x);
}

static int moved_bind(struct d0_exec *exec, uint32_t value, struct d0_buffer *buffer, uint64_t offset,
                      struct d0_status *status)
{
    struct moved *x = (struct moved *)(void *)exec;
    if (value == x->value) {
        x->buffer = buffer;
        x->offset = offset;
    }
    return cpu_api->bind(x->exec, value, buffer, offset, status);
}

static int moved_run(struct d0_queue *queue, struct d0_exec *exec, const struct d0_step_dims *dims,
                     struct d0_status *status)
{
    struct moved *x = (struct moved *)(void *)exec;
    const uint64_t bytes = (uint64_t)dims->dims[0] * 4;
    int32_t *positions = x->buffer ? malloc(bytes + 1) : NULL;
    int rc = D0_OK;
    if (positions)
        rc = cpu_api->copy_out(queue, x->buffer, x->offset, positions, bytes, status);
    for (int64_t t = 0; positions && rc == D0_OK && t < dims->dims[0]; t++)
        positions[t] -= positions[t] > 0;
    if (positions && rc == D0_OK)
        rc = cpu_api->copy_in(queue, x->buffer, x->offset, positions, bytes, status);
    if (rc == D0_OK)
        rc = cpu_api->run(queue, x->exec, dims, status);
    free(positions);
    return rc;
}

static int moved_read(struct d0_queue *queue, struct d0_exec *exec, uint32_t value, uint64_t offset,
                      void *host, uint64_t bytes, struct d0_status *status)
{
    return cpu_api->read_output(queue, ((struct moved *)(void *)exec)->exec, value, offset, host, bytes,
                                status);
}

void plant_device(struct dev *out, const struct dev *cpu)
{
    static struct d0_device_api api;
    cpu_api = cpu->api;
    api = *cpu->api;
    api.compile = moved_compile;
    api.exec_destroy = moved_destroy;
    api.bind = moved_bind;
    api.run = moved_run;
    api.read_output = moved_read;
    *out = *cpu;
    out->api = &api;
}

/* ---- the table ---- */

const struct fault plant_faults[] = {
#define FAULT(name, OP, make, key, value) {name, D0_OP_##OP, make, key, value, NULL, 0, 0},
#define FAULT_OF(name, OP, make, key, value, prepare, prepare_key, prepare_value)                            \
    {name, D0_OP_##OP, make, key, value, prepare, prepare_key, prepare_value},
#include "planted.def"
#undef FAULT
#undef FAULT_OF
};
const size_t n_plant_faults = ARRAY_LEN(plant_faults);
