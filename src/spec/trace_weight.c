/* SPDX-License-Identifier: Apache-2.0
 *
 * The weight items of a trace: shape, mark, group and number of experts checked, storage decided, bytes
 * counted, value made.
 */
#include "spec/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse_mark(const struct json *item, struct graph_value_info *info, struct err *e)
{
    static const enum partition all[] = {PART_REPLICATED, PART_COLUMN, PART_ROW,
                                         PART_HEADS,      PART_VOCAB,  PART_EXPERT};
    const char *part = trace_text(item, "part");
    int64_t units = 0;
    if (!trace_int(item, "units", 0, INT32_MAX, &units))
        return err_set(e, ERR_FORMAT, "weight %s: the number of heads is no integer", info->name);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (strcmp(part, partition_name(all[i])) == 0) {
            info->part = all[i];
            info->part_units = (uint32_t)units;
            return all[i] == PART_HEADS && units == 0
                       ? err_set(e, ERR_FORMAT, "weight %s: heads of 0", info->name)
                       : ERR_OK;
        }
    return err_set(e, ERR_FORMAT, "weight %s: the partition mark %s is unknown", info->name, part);
}

/* Types that operators are defined for. Anything else in the checkpoint is for the pre-flight to report; the
 * description then goes by the type that config.json states. */
bool spec_dtype_computed(uint32_t dtype)
{
    return dtype == D0_F32 || dtype == D0_BF16 || dtype == D0_F16;
}

static int weight_shape(struct trace *t, const struct json *item, struct spec_weight *w, struct err *e)
{
    const struct json *shape = json_get(item, "shape");
    int64_t layer = -1, count = 1;
    uint64_t elements;
    if (shape == NULL || shape->type != JSON_ARRAY || shape->n < 1 || shape->n > D0_MAX_CONV_DIMS)
        return err_set(e, ERR_FORMAT, "weight %s: its shape is no list of 1 to %d integers", w->name,
                       D0_MAX_CONV_DIMS);
    w->n_dims = shape->n;
    for (uint32_t i = 0; i < shape->n; i++)
        if (!json_i64(&shape->as.items[i], &w->dims[i]) || w->dims[i] <= 0)
            return err_set(e, ERR_FORMAT, "weight %s: dimension %u is no positive integer", w->name, i);
    if (json_get(item, "count") && !trace_int(item, "count", 1, TRACE_MAX_EXPERTS, &count))
        return err_set(e, ERR_FORMAT, "weight %s: not 1 to %d experts", w->name, TRACE_MAX_EXPERTS);
    const char *place = strstr(w->name, "%d");
    if (count > 1 && (place == NULL || strchr(place + 1, '%')))
        return err_set(e, ERR_FORMAT, "weight %s: the name of experts needs one %%d", w->name);
    if (count == 1 && place && json_get(item, "count"))
        return err_set(e, ERR_FORMAT, "weight %s: a single expert", w->name);
    w->count = (uint32_t)count;
    if (!shape_elements(w->dims, w->n_dims, &elements) || !mul_u64(elements, (uint64_t)count, &elements) ||
        elements > INT64_MAX / 64)
        return err_set(e, ERR_FORMAT, "weight %s: too many elements", w->name);
    if (w->group != GROUP_MTP && !add_u64(t->s->parameters, elements, &t->s->parameters))
        return err_set(e, ERR_FORMAT, "weight %s: too many elements", w->name);
    if (!trace_int(item, "layer", -1, INT32_MAX, &layer))
        return err_set(e, ERR_FORMAT, "weight %s: its layer is no integer", w->name);
    w->layer = (int32_t)layer;
    return ERR_OK;
}

/* Rows of each of several matrices in one. */
static int weight_pieces(const struct json *item, struct spec_weight *w, struct err *e)
{
    const struct json *list = json_get(item, "pieces");
    int64_t sum = 0;
    if (list == NULL)
        return ERR_OK;
    if (list->type != JSON_ARRAY || list->n > ARRAY_LEN(w->pieces))
        return err_set(e, ERR_FORMAT, "weight %s: its pieces are no list of up to %zu", w->name,
                       ARRAY_LEN(w->pieces));
    for (uint32_t i = 0; i < list->n; i++) {
        if (!json_i64(&list->as.items[i], &w->pieces[i]) || w->pieces[i] < 1 || w->pieces[i] > w->dims[0])
            return err_set(e, ERR_FORMAT, "weight %s: piece %u is out of range", w->name, i);
        sum += w->pieces[i];
    }
    w->n_pieces = list->n;
    return sum == w->dims[0]
               ? ERR_OK
               : err_set(e, ERR_FORMAT, "weight %s: its pieces are not all of its rows", w->name);
}

static int weight_form(struct trace *t, const struct json *item, struct spec_weight *w, struct err *e)
{
    static const char *const groups[] = {"text", "vision", "mtp"};
    const struct json *quant = json_get(item, "quant");
    const char *group = trace_text(item, "group"), *dtype = trace_text(item, "dtype"),
               *hint = json_string(quant);
    size_t g = 0;
    while (*group && g < ARRAY_LEN(groups) && strcmp(groups[g], group) != 0)
        g++;
    if (g == ARRAY_LEN(groups))
        return err_set(e, ERR_FORMAT, "weight %s: the group %.20s is unknown", w->name, group);
    w->group = (enum spec_group)g;
    w->transposed = trace_flag(item, "transposed");
    w->quantisable = hint != NULL || trace_flag(item, "quant");
    w->dtype = *dtype ? dtype_parse(dtype) : t->fallback_dtype;
    if (w->dtype == 0)
        return err_set(e, ERR_FORMAT, "weight %s: the type %.20s is unknown", w->name, dtype);
    w->family_dtype = *dtype ? w->dtype : 0;
    if (hint && quant_scheme_find(hint) == 0)
        return err_set(e, ERR_FORMAT, "weight %s: the scheme %.20s is unknown", w->name, hint);
    return ERR_OK;
}

struct sum {
    uint64_t bytes, n;
};

static int sum_tensor(void *ctx, const struct spec_tensor *x)
{
    struct sum *s = ctx;
    s->bytes = sat_add(s->bytes, x->bytes);
    s->n++;
    return 0;
}

/* All tensors of a weight. Experts are alike but for what is missing: one is measured, unless a tensor that
 * may be absent is in play. */
static struct sum stored_as(const struct trace *t, struct spec_weight *w)
{
    struct sum s = {0};
    uint32_t count = w->count;
    w->count = 1;
    const char *name = w->name;
    char first[TRACE_MAX_NAME + 8];
    const char *place = count > 1 ? strstr(name, "%d") : NULL;
    if (place) {
        snprintf(first, sizeof first, "%.*s0%s", (int)(place - name), name, place + 2);
        w->name = first;
    }
    (void)spec_physical_one(w, t->c, sum_tensor, &s);
    w->name = name;
    w->count = count;
    s.bytes = sat_mul(s.bytes, count);
    s.n *= count;
    return s;
}

static bool flattened(const struct json *item)
{
    return trace_flag(item, "flat") || trace_flag(item, "rows");
}

/* The weight of a convolution whose steps are its width multiplies rows: [outputs, all the others]. A table
 * of places down and across is one of places, a learned row a table of one: [all the others, values]. */
static void flatten(const struct json *item, struct d0_value *v, const struct spec_weight *w)
{
    const uint32_t rows = trace_flag(item, "rows") ? w->n_dims - 1 : 1;
    if (!flattened(item))
        return;
    v->n_dims = 2;
    v->dims[0] = v->dims[1] = 1;
    for (uint32_t i = 0; i < w->n_dims; i++)
        v->dims[i >= rows] *= w->dims[i]; /* weight_shape() saw to it that this is in range */
}

/* The value in the graph: the type of the codes, and the logical shape. Outside of the text only a tower that
 * is drawn has one, and that is no w->value. */
static int weight_value(struct trace *t, const struct json *item, struct spec_weight *w, uint64_t bytes,
                        uint32_t *out, struct err *e)
{
    uint32_t code = w->form.scheme ? quant_code_dtype(w->form.scheme) : w->dtype, lead = w->count > 1;
    struct graph_value_info info = {.name = w->name,
                                    .layer = w->layer,
                                    .quantisable = w->quantisable,
                                    .scheme = w->form.scheme,
                                    .stored_bytes = w->form.scheme ? bytes : 0};
    int rc = parse_mark(item, &info, e);
    if (rc)
        return rc;
    w->part = info.part;
    w->units = info.part_units;
    w->value = *out = D0_NO_VALUE;
    struct graph *g = trace_graph(t, item);
    if (w->group != GROUP_TEXT && (w->group != GROUP_VISION || g != t->s->vision))
        return ERR_OK;
    const bool flat = flattened(item) && w->form.scheme == 0;
    w->turned = trace_flag(item, "turned");
    if (w->turned && (w->form.scheme || w->n_dims != 2 || lead || flat))
        return err_set(e, ERR_FORMAT, "weight %s: only a plain matrix is turned", w->name);
    if (flat && lead)
        return err_set(e, ERR_FORMAT, "weight %s: experts are not laid flat", w->name);
    if (!flat && w->n_dims + lead > D0_MAX_DIMS)
        return err_set(e, ERR_FORMAT, "weight %s: more than %d dimensions", w->name, D0_MAX_DIMS);
    bool integer = w->dtype == D0_I64 || w->dtype == D0_I32;
    struct d0_value v = {.kind = D0_VALUE_WEIGHT, .dtype = code, .n_dims = w->n_dims + lead};
    if (flat)
        v.n_dims = 0;
    bool held = w->form.scheme && quant_format(w, t->c, &code, &v.format);
    if (held)
        v.dtype = code;
    if (w->form.scheme == 0 && !spec_dtype_computed(code) && !integer)
        v.dtype = t->fallback_dtype;
    if (lead)
        v.dims[0] = w->count;
    memcpy(v.dims + lead, w->dims, (flat ? 0 : w->n_dims) * sizeof w->dims[0]);
    flatten(item, &v, w);
    if (w->turned) {
        v.dims[0] = w->dims[1];
        v.dims[1] = w->dims[0];
    }
    /* blocks lie along the input, whatever way round the family keeps its plain weights */
    if (held && w->transposed && w->form.scheme == QUANT_MXFP4_BLOCKS) {
        int64_t last = v.dims[v.n_dims - 1];
        v.dims[v.n_dims - 1] = v.dims[v.n_dims - 2];
        v.dims[v.n_dims - 2] = last;
    }
    info.weight = (uint32_t)t->s->n_weights + 1;
    int added = graph_add_value(g, &v, &info, out, e);
    if (added == ERR_OK && w->group == GROUP_TEXT)
        w->value = *out;
    return added;
}

int trace_weight(struct trace *t, const struct json *item, uint32_t *out, struct err *e)
{
    struct spec *s = t->s;
    struct spec_weight w = {.layer = -1};
    int rc = trace_name(t, item, &w.name, e);
    if (rc || (rc = weight_form(t, item, &w, e)) != 0 || (rc = weight_shape(t, item, &w, e)) != 0 ||
        (rc = weight_pieces(item, &w, e)) != 0)
        return rc;
    const char *hint = json_string(json_get(item, "quant"));
    quant_decide(&w, t->c, &t->quant, hint ? quant_scheme_find(hint) : 0, w.dtype, &t->tally);
    struct sum sum = stored_as(t, &w);
    if ((rc = weight_value(t, item, &w, sum.bytes, out, e)) != 0)
        return rc;
    if (!add_u64(s->tensor_bytes, sum.bytes, &s->tensor_bytes))
        return err_set(e, ERR_FORMAT, "weight %s: too many bytes", w.name);
    s->n_physical += sum.n;
    if (w.part == PART_EXPERT) {
        uint64_t n = w.count > 1 ? w.count : (uint64_t)w.dims[0];
        s->n_experts = n > s->n_experts ? n : s->n_experts;
    }
    if (vec_reserve((void **)&s->weights, &t->weights_capacity, s->n_weights + 1, sizeof *s->weights))
        return err_set(e, ERR_NOMEM, "no memory for the list of weights");
    s->weights[s->n_weights++] = w;
    return ERR_OK;
}
