/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the tower of an engine: its compiled graph, one run of it for one picture, the store of the rows that
 * it gives, and what a step takes of them. Refuses: a text that does not take what the tower gives, a step
 * that takes rows which nobody filled, and two pictures in one run: their bits would hang on each other's
 * sizes.
 */
#include "engine/engine_internal.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening ------------------------------------------------------------------------------------------- */

static int check_tower_limits(const struct engine_limits *l, struct err *e)
{
    const struct {
        const char *name;
        uint32_t value;
    } f[] = {{"n_feature_rows", l->n_feature_rows},
             {"max_patches", l->max_patches},
             {"max_picture_rows", l->max_picture_rows}};
    for (size_t i = 0; i < ARRAY_LEN(f); i++)
        if (f[i].value == 0 || f[i].value > INT32_MAX)
            return err_set(e, ERR_INVALID, "engine: %s is %u, must be 1..%d", f[i].name, f[i].value,
                           INT32_MAX);
    if (l->max_picture_rows > l->n_feature_rows)
        return err_set(e, ERR_INVALID, "engine: a picture of %u rows does not fit a store of %u",
                       l->max_picture_rows, l->n_feature_rows);
    return ERR_OK;
}

/* Its outputs: float32 [R, width], all of one width. */
static int find_features(struct engine *x, const struct engine_tower *t, struct err *e)
{
    struct tower *w = &x->tower;
    w->features = arena_alloc_n(&x->arena, t->n_features + (size_t)1, sizeof(*w->features));
    w->text = arena_alloc_n(&x->arena, t->n_features + (size_t)1, sizeof(*w->text));
    if (!w->features || !w->text)
        return err_set(e, ERR_NOMEM, "engine: out of memory");
    if (!t->n_features)
        return err_set(e, ERR_INVALID, "the tower gives nothing");
    for (uint32_t i = 0; i < t->n_features; i++) {
        uint32_t id = t->features[i];
        const struct d0_value *v = id < w->graph->n_values ? &w->graph->values[id] : NULL;
        bool made = v && (v->kind == D0_VALUE_ACTIVATION || v->kind == D0_VALUE_OUTPUT);
        if (!made || v->dtype != D0_F32 || v->n_dims != 2 || v->dims[0] != D0_DIM_ROWS || v->dims[1] <= 0 ||
            v->dims[1] > INT32_MAX || (i && v->dims[1] != w->width))
            return err_set(e, ERR_UNSUPPORTED, "output %u of the tower is not float32 [R, width]", i);
        w->graph->info[id].keep = true;
        w->width = (uint32_t)v->dims[1];
        w->features[i] = id;
    }
    w->n_features = t->n_features;
    return ERR_OK;
}

static int check_device(struct engine *x, struct err *e)
{
    struct d0_part part;
    char reason[256];
    graph_part(x->tower.graph, &part);
    for (uint32_t i = 0; i < part.n_nodes; i++)
        if (!dev_supports(x->dev, &part, i, reason, sizeof reason))
            return err_set(e, ERR_UNSUPPORTED, "the device does not run node %u of the tower: %s", i, reason);
    return ERR_OK;
}

int tower_plan(struct engine *x, const struct engine_tower *t, struct err *e)
{
    struct tower *w = &x->tower;
    struct engine_limits *l = &x->limits;
    if (!t) {
        l->n_feature_rows = l->max_patches = l->max_picture_rows = 0;
        return ERR_OK;
    }
    int rc = check_tower_limits(l, e);
    if (rc == ERR_OK)
        rc = graph_copy(t->graph, &w->graph, e);
    x->pictures = rc == ERR_OK;
    if (rc == ERR_OK)
        rc = picture_shape(w->graph, &w->shape, e);
    if (rc == ERR_OK)
        rc = find_features(x, t, e);
    if (rc == ERR_OK)
        rc = graph_verify(w->graph, e);
    const int64_t dims[D0_N_DIMS] = {l->max_patches, 1, l->max_picture_rows, 1};
    if (rc == ERR_OK)
        rc = graph_plan_memory(w->graph, dims, false, e);
    return rc == ERR_OK ? check_device(x, e) : rc;
}

bool tower_input(struct engine *x, uint32_t value)
{
    const struct d0_value *v = &x->graph->values[value];
    struct tower *w = &x->tower;
    bool ints = v->dtype == D0_I32 && v->dims[0] == D0_DIM_TOKENS;
    switch (v->role) {
    case D0_INPUT_PLACES:
        return ints && v->n_dims == 2 && v->dims[1] == 3;
    case D0_INPUT_SPANS:
        return ints && v->n_dims == 2 && v->dims[1] == 2;
    case D0_INPUT_FEATURE_OF:
        return ints && v->n_dims == 1;
    case D0_INPUT_FEATURES:
        if (v->dtype != D0_F32 || v->n_dims != 2 || v->dims[0] != D0_DIM_TOKENS || v->dims[1] != w->width ||
            w->n_text == w->n_features)
            return false;
        w->text[w->n_text++] = value;
        return true;
    default:
        return false;
    }
}

static int make_store(struct engine *x, struct err *e)
{
    struct tower *w = &x->tower;
    const uint32_t rows = x->limits.n_feature_rows;
    uint64_t bytes;
    if (w->n_text != w->n_features)
        return err_set(e, ERR_MISMATCH, "the tower gives %u values, the text takes %u", w->n_features,
                       w->n_text);
    w->filled = arena_alloc_n(&x->arena, rows, sizeof(*w->filled));
    if (!mul_u64((uint64_t)rows * w->width, (uint64_t)w->n_features * sizeof(float), &bytes) ||
        bytes > PTRDIFF_MAX || !w->filled || !(w->store = calloc(1, bytes)))
        return err_set(e, ERR_NOMEM, "engine: out of memory for %u rows of features of %u values", rows,
                       w->width);
    w->store_bytes = bytes;
    mem_account(x->mem, MEM_SCRATCH, (int64_t)bytes);
    return ERR_OK;
}

static int bind_value(struct engine *x, uint32_t i, const struct weights *weights, struct err *e)
{
    struct tower *w = &x->tower;
    const struct d0_value *v = &w->graph->values[i];
    const char *name = w->graph->info[i].name;
    struct d0_buffer *b;
    uint64_t bytes;
    if (v->kind == D0_VALUE_WEIGHT) {
        b = weights && i < weights->n_values ? weights->buffers[i] : NULL;
        if (!b)
            return err_set(e, ERR_INVALID, "weight %s of the tower was not loaded", name);
        return dev_bind(x->dev, w->exec, i, b, 0, e);
    }
    if (v->kind == D0_VALUE_STATE)
        return err_set(e, ERR_UNSUPPORTED, "the tower has a state, %s", name);
    if (v->kind != D0_VALUE_INPUT)
        return ERR_OK;
    if (!tensor_value_bytes(v, w->graph->max_dims, &bytes))
        return err_set(e, ERR_LIMIT, "%s is too large to address", name);
    int rc = dev_buffer(x->dev, bytes, &w->own[i], e);
    for (uint32_t k = 0; k < w->shape.n; k++)
        if (w->shape.inputs[k].role == v->role)
            w->input[k] = i;
    return rc == ERR_OK ? dev_bind(x->dev, w->exec, i, w->own[i], 0, e) : rc;
}

int tower_open(struct engine *x, const struct weights *weights, struct err *e)
{
    struct tower *w = &x->tower;
    struct d0_part part;
    int rc = make_store(x, e);
    w->own = arena_alloc_n(&x->arena, w->graph->n_values + (size_t)1, sizeof(*w->own));
    if (rc == ERR_OK && !w->own)
        rc = err_set(e, ERR_NOMEM, "engine: out of memory");
    graph_part(w->graph, &part);
    if (rc == ERR_OK)
        rc = dev_compile(x->dev, &part, &w->exec, e);
    for (uint32_t i = 0; rc == ERR_OK && i < w->graph->n_values; i++)
        rc = bind_value(x, i, weights, e);
    if (rc != ERR_OK)
        err_ctx(e, "while opening a tower for pictures of %u patches", x->limits.max_patches);
    return rc;
}

void tower_close(struct engine *x)
{
    struct tower *w = &x->tower;
    dev_exec_free(x->dev, w->exec);
    for (uint32_t i = 0; w->own && i < w->graph->n_values; i++)
        dev_buffer_free(x->dev, w->own[i]);
    mem_account(x->mem, MEM_SCRATCH, -(int64_t)w->store_bytes);
    free(w->store);
    graph_free(w->graph);
}

uint64_t engine_feature_bytes(const struct engine *x)
{
    return x->tower.store_bytes;
}

const struct picture_shape *engine_picture_shape(const struct engine *x)
{
    return x->pictures ? &x->tower.shape : NULL;
}

/* ---- one picture --------------------------------------------------------------------------------------- */

/* [n_feature_rows, width] of one output, from this row on. */
static float *store_row(const struct engine *x, uint32_t feature, uint32_t row)
{
    return x->tower.store + ((uint64_t)feature * x->limits.n_feature_rows + row) * x->tower.width;
}

static int copy_arrays(struct engine *x, const struct picture_plan *p, struct err *e)
{
    const struct tower *w = &x->tower;
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == ERR_OK && i < w->shape.n; i++) {
        const struct picture_input *in = &w->shape.inputs[i];
        uint64_t rows = in->rows == D0_DIM_ROWS ? p->n_rows : p->n_patches;
        rc = dev_copy_in(x->dev, x->queue, w->own[w->input[i]], 0, (const char *)p + p->arrays[i].at,
                         rows * in->width * 4, e);
    }
    return rc;
}

static int run_tower(struct engine *x, const struct picture_plan *p, uint32_t first_row, struct err *e)
{
    struct tower *w = &x->tower;
    const struct d0_step_dims dims = {.size = sizeof(dims), .dims = {p->n_patches, 1, p->n_rows, 1}};
    int rc = copy_arrays(x, p, e);
    if (rc == ERR_OK)
        rc = dev_run(x->dev, x->queue, w->exec, &dims, e);
    for (uint32_t i = 0; rc == ERR_OK && i < w->n_features; i++)
        rc = dev_read_output(x->dev, x->queue, w->exec, w->features[i], 0, store_row(x, i, first_row),
                             (uint64_t)p->n_rows * w->width * sizeof(float), e);
    /* also after an error: nothing of the queue may still use the message or the store */
    int waited = dev_wait(x->dev, x->queue, ENGINE_WAIT_NS, rc == ERR_OK ? e : NULL);
    return rc == ERR_OK ? waited : rc;
}

int engine_picture(struct engine *x, const struct picture_plan *plan, size_t plan_bytes, uint32_t first_row,
                   struct err *e)
{
    x->ran = false;
    if (!x->pictures)
        return err_set(e, ERR_UNSUPPORTED, "this engine has no tower: it takes no pictures");
    int rc = picture_plan_validate(plan, plan_bytes, &x->tower.shape, &x->limits, e);
    if (rc != ERR_OK)
        return rc;
    uint32_t rows = x->limits.n_feature_rows;
    if (first_row > rows || plan->n_rows > rows - first_row)
        return err_set(e, ERR_LIMIT, "picture: %u rows from row %u on, the store has %u", plan->n_rows,
                       first_row, rows);
    memset(x->tower.filled + first_row, 0, plan->n_rows * sizeof(bool));
    rc = run_tower(x, plan, first_row, e);
    if (rc == ERR_OK)
        memset(x->tower.filled + first_row, true, plan->n_rows * sizeof(bool));
    return rc;
}

/* ---- one step ------------------------------------------------------------------------------------------ */

static const struct step_place *places_of(const struct step_plan *p)
{
    return (const struct step_place *)((const char *)p + p->places_at);
}

int tower_check(const struct engine *x, const struct step_plan *p, struct err *e)
{
    const struct step_place *k = places_of(p);
    for (uint32_t t = 0; t < p->n_tokens; t++)
        if (k[t].feature >= 0 && !x->tower.filled[k[t].feature])
            return err_set(e, ERR_FORMAT, "step plan: places[%u] takes row %d of the store, which is empty",
                           t, k[t].feature);
    return ERR_OK;
}

/* Rows of FEATURES are those that the step takes, in the order of its tokens. */
void tower_fill(struct engine *x, const struct step_plan *p)
{
    const struct step_place *k = places_of(p);
    x->n_taken = 0;
    for (uint32_t t = 0; t < p->n_tokens; t++) {
        memcpy(x->places + 3 * (size_t)t, k[t].place, sizeof(k[t].place));
        memcpy(x->spans + 2 * (size_t)t, k[t].span, sizeof(k[t].span));
        x->feature_of[t] = k[t].feature < 0 ? -1 : (int32_t)x->n_taken;
        if (k[t].feature >= 0)
            x->taken[x->n_taken++] = k[t].feature;
    }
}

int tower_copy(struct engine *x, struct err *e)
{
    const struct tower *w = &x->tower;
    const uint64_t row = (uint64_t)w->width * sizeof(float);
    int rc = ERR_OK;
    for (uint32_t at = 0, n; rc == ERR_OK && at < x->n_taken; at += n) {
        for (n = 1; at + n < x->n_taken && x->taken[at + n] == x->taken[at] + (int32_t)n;)
            n++; /* neighbours go together */
        for (uint32_t i = 0; rc == ERR_OK && i < w->n_features; i++)
            rc = dev_copy_in(x->dev, x->queue, x->own[w->text[i]], at * row,
                             store_row(x, i, (uint32_t)x->taken[at]), n * row, e);
    }
    return rc;
}
