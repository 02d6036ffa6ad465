/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the layout of picture_plan, read off the inputs of a tower, and the checks that make an untrusted one
 * safe to use. Refuses: inputs that nobody could fill, a message that is not exactly as the builder would
 * have laid it out, numbers that point outside of what they count, and floats that are not finite.
 */
#include "engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ARRAY_ALIGN 64u

/* ---- shape --------------------------------------------------------------------------------------------- */

static const char *role_name(uint32_t role)
{
    static const char *const names[] = {[D0_INPUT_PATCHES] = "patches",
                                        [D0_INPUT_PLACES] = "places",
                                        [D0_INPUT_SPANS] = "spans",
                                        [D0_INPUT_WINDOWS] = "windows",
                                        [D0_INPUT_MERGE] = "merge",
                                        [D0_INPUT_TABLE_ROWS] = "table_rows",
                                        [D0_INPUT_TABLE_WEIGHTS] = "table_weights",
                                        [D0_INPUT_CLASS_ROWS] = "class_rows",
                                        [D0_INPUT_LINE_ROWS] = "line_rows",
                                        [D0_INPUT_FEATURE_OF] = "feature_of"};
    return role < ARRAY_LEN(names) && names[role] ? names[role] : "an input";
}

static int64_t rows_of(const struct graph *g, uint32_t value)
{
    return value < g->n_values ? g->values[value].dims[0] : 0;
}

/* What the numbers of an input may be is decided by who reads them. */
static void read_bounds(const struct graph *g, uint32_t value, struct picture_input *in)
{
    in->below = INT32_MAX;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        if (n->op == D0_OP_GATHER_ROWS && n->inputs[1] == value)
            in->below = rows_of(g, n->inputs[0]);
        else if (n->op == D0_OP_POSITION_EMBED && n->inputs[0] == value) {
            in->below = rows_of(g, n->inputs[1]);
            in->none = true;
        } else if (n->op == D0_OP_SEGMENT_ATTENTION && n->inputs[3] == value) {
            in->below = rows_of(g, n->inputs[1]);
            in->pairs = true;
        } else if (n->op == D0_OP_SCATTER_ROWS && n->inputs[2] == value) {
            in->below = rows_of(g, n->inputs[1]);
            in->none = true;
        }
    }
}

static int read_input(const struct graph *g, uint32_t value, struct picture_shape *out, struct err *e)
{
    const struct d0_value *v = &g->values[value];
    const char *name = g->info[value].name;
    bool known = v->role >= D0_INPUT_PATCHES && v->role != D0_INPUT_FEATURES && out->n < PICTURE_MAX_INPUTS;
    bool rows = v->dims[0] == D0_DIM_TOKENS || v->dims[0] == D0_DIM_ROWS;
    bool type = v->dtype == D0_F32 || v->dtype == D0_I32;
    int64_t width = v->n_dims == 2 ? v->dims[1] : 1;
    if (!known || !rows || !type || v->n_dims < 1 || v->n_dims > 2 || width <= 0 || width > INT32_MAX)
        return err_set(e, ERR_UNSUPPORTED, "input %s of the tower has a role (%u) or shape that nobody fills",
                       name, v->role);
    for (uint32_t i = 0; i < out->n; i++)
        if (out->inputs[i].role == v->role)
            return err_set(e, ERR_UNSUPPORTED, "two inputs of the tower are %s", role_name(v->role));
    struct picture_input in = {
        .role = v->role, .dtype = v->dtype, .width = (uint32_t)width, .rows = v->dims[0]};
    if (v->dtype == D0_I32)
        read_bounds(g, value, &in);
    if (in.pairs && in.width != 2)
        return err_set(e, ERR_UNSUPPORTED, "input %s of the tower is read as pairs, and has %u numbers", name,
                       in.width);
    out->inputs[out->n++] = in;
    return ERR_OK;
}

int picture_shape(const struct graph *tower, struct picture_shape *out, struct err *e)
{
    *out = (struct picture_shape){0};
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == ERR_OK && i < tower->n_values; i++)
        if (tower->values[i].kind == D0_VALUE_INPUT)
            rc = read_input(tower, i, out, e);
    return rc;
}

/* ---- layout -------------------------------------------------------------------------------------------- */

static uint64_t input_rows(const struct picture_input *in, uint32_t n_patches, uint32_t n_rows)
{
    return in->rows == D0_DIM_ROWS ? n_rows : n_patches;
}

/* Where each array begins; the return is the end, or 0 for what is larger than any message. */
static uint64_t lay_out(const struct picture_shape *shape, uint32_t n_patches, uint32_t n_rows,
                        uint64_t at[PICTURE_MAX_INPUTS])
{
    uint64_t end = sizeof(struct picture_plan);
    for (uint32_t i = 0; i < shape->n; i++) {
        uint64_t bytes; /* both factors have 32 bits */
        at[i] = ALIGN_UP(end, ARRAY_ALIGN);
        if (!mul_u64(input_rows(&shape->inputs[i], n_patches, n_rows) * shape->inputs[i].width, 4, &bytes) ||
            bytes > PICTURE_MAX_BYTES)
            return 0;
        end = at[i] + bytes;
        if (end > PICTURE_MAX_BYTES)
            return 0;
    }
    return ALIGN_UP(end, ARRAY_ALIGN);
}

size_t picture_plan_bytes(const struct picture_shape *shape, uint32_t n_patches, uint32_t n_rows)
{
    uint64_t at[PICTURE_MAX_INPUTS];
    return lay_out(shape, n_patches, n_rows, at);
}

int picture_plan_init(void *buf, size_t cap, const struct picture_shape *shape, uint32_t n_patches,
                      uint32_t n_rows, struct picture_plan **out, struct err *e)
{
    uint64_t at[PICTURE_MAX_INPUTS], bytes = lay_out(shape, n_patches, n_rows, at);
    if ((uintptr_t)buf % 8)
        return err_set(e, ERR_INVALID, "picture: the buffer is not aligned to 8 bytes");
    if (!bytes)
        return err_set(e, ERR_LIMIT,
                       "a picture of %u patches and %u rows is larger than a message of %u bytes", n_patches,
                       n_rows, PICTURE_MAX_BYTES);
    if (bytes > cap)
        return err_set(e, ERR_LIMIT, "picture of %llu bytes: the buffer holds %zu", (unsigned long long)bytes,
                       cap);
    memset(buf, 0, bytes);
    struct picture_plan *p = buf;
    p->magic = PICTURE_PLAN_MAGIC;
    p->bytes = (uint32_t)bytes;
    p->n_patches = n_patches;
    p->n_rows = n_rows;
    p->n_arrays = shape->n;
    for (uint32_t i = 0; i < shape->n; i++)
        p->arrays[i] = (struct picture_array){shape->inputs[i].role, shape->inputs[i].width, at[i]};
    *out = p;
    return ERR_OK;
}

void *picture_plan_array(struct picture_plan *p, uint32_t role)
{
    for (uint32_t i = 0; i < p->n_arrays; i++)
        if (p->arrays[i].role == role)
            return (char *)p + p->arrays[i].at;
    return NULL;
}

/* ---- validation ---------------------------------------------------------------------------------------- */

static int check_header(const struct picture_plan *p, size_t n, const struct picture_shape *shape,
                        const struct engine_limits *l, struct err *e)
{
    uint64_t at[PICTURE_MAX_INPUTS];
    if (p->magic != PICTURE_PLAN_MAGIC)
        return err_set(e, ERR_FORMAT, "picture: magic is %08x", p->magic);
    if (p->n_patches < 1 || p->n_patches > l->max_patches)
        return err_set(e, ERR_LIMIT, "picture: n_patches is %u, must be 1..%u", p->n_patches, l->max_patches);
    if (p->n_rows < 1 || p->n_rows > l->max_picture_rows)
        return err_set(e, ERR_LIMIT, "picture: n_rows is %u, must be 1..%u", p->n_rows, l->max_picture_rows);
    uint64_t bytes = lay_out(shape, p->n_patches, p->n_rows, at);
    if (!bytes || p->bytes != bytes || n != bytes)
        return err_set(e, ERR_FORMAT, "picture: bytes is %u, the message has %zu, must be %llu", p->bytes, n,
                       (unsigned long long)bytes);
    if (p->n_arrays != shape->n || p->reserved)
        return err_set(e, ERR_FORMAT, "picture: n_arrays is %u, must be %u; reserved is %u", p->n_arrays,
                       shape->n, p->reserved);
    for (uint32_t i = 0; i < PICTURE_MAX_INPUTS; i++) {
        struct picture_array must = {0};
        if (i < shape->n)
            must = (struct picture_array){shape->inputs[i].role, shape->inputs[i].width, at[i]};
        if (memcmp(&p->arrays[i], &must, sizeof must) != 0)
            return err_set(e, ERR_FORMAT, "picture: arrays[%u] is %u, %u, %llu, must be %u, %u, %llu", i,
                           p->arrays[i].role, p->arrays[i].width, (unsigned long long)p->arrays[i].at,
                           must.role, must.width, (unsigned long long)must.at);
    }
    return ERR_OK;
}

static int check_floats(const float *x, uint64_t n, const struct picture_input *in, struct err *e)
{
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return err_set(e, ERR_FORMAT, "picture: %s[%llu] is not finite", role_name(in->role),
                           (unsigned long long)i);
    return ERR_OK;
}

static int check_ints(const int32_t *x, uint64_t n, const struct picture_plan *p,
                      const struct picture_input *in, struct err *e)
{
    const int64_t below = in->below == D0_DIM_TOKENS ? p->n_patches
                          : in->below == D0_DIM_ROWS ? p->n_rows
                                                     : in->below;
    const int64_t least = in->none ? -1 : 0;
    for (uint64_t i = 0; !in->pairs && i < n; i++)
        if (x[i] < least || x[i] >= below)
            return err_set(e, ERR_FORMAT, "picture: %s[%llu] is %d, must be %lld..%lld", role_name(in->role),
                           (unsigned long long)i, x[i], (long long)least, (long long)below - 1);
    for (uint64_t i = 0; in->pairs && i < n; i += 2)
        if (x[i] < 0 || x[i] >= x[i + 1] || x[i + 1] > below)
            return err_set(e, ERR_FORMAT, "picture: %s[%llu] is %d to %d, of %lld", role_name(in->role),
                           (unsigned long long)(i / 2), x[i], x[i + 1], (long long)below);
    return ERR_OK;
}

/* The bytes between two arrays, and behind the last. */
static int check_gap(const struct picture_plan *p, uint64_t from, uint64_t to, struct err *e)
{
    for (const char *c = (const char *)p; from < to; from++)
        if (c[from])
            return err_set(e, ERR_FORMAT, "picture: the bytes between the arrays are not zero");
    return ERR_OK;
}

int picture_plan_validate(const void *buf, size_t n, const struct picture_shape *shape,
                          const struct engine_limits *l, struct err *e)
{
    const struct picture_plan *p = buf;
    if ((uintptr_t)buf % 8)
        return err_set(e, ERR_INVALID, "picture: the buffer is not aligned to 8 bytes");
    if (n < sizeof(*p))
        return err_set(e, ERR_FORMAT, "picture: %zu bytes are less than a header", n);
    int rc = check_header(p, n, shape, l, e);
    uint64_t end = sizeof(*p);
    for (uint32_t i = 0; rc == ERR_OK && i < shape->n; i++) {
        const struct picture_input *in = &shape->inputs[i];
        const void *data = (const char *)p + p->arrays[i].at;
        const uint64_t count = input_rows(in, p->n_patches, p->n_rows) * in->width;
        rc = check_gap(p, end, p->arrays[i].at, e);
        if (rc == ERR_OK)
            rc = in->dtype == D0_F32 ? check_floats(data, count, in, e) : check_ints(data, count, p, in, e);
        end = p->arrays[i].at + 4 * count;
    }
    return rc == ERR_OK ? check_gap(p, end, n, e) : rc;
}
