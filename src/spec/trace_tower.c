/* SPDX-License-Identifier: Apache-2.0
 *
 * What a trace says of its tower: which values of the tower's graph enter the text, and the numbers from
 * which the host makes the tower's inputs. Refuses numbers out of range, and outputs that are no merged rows.
 */
#include <string.h>

#include "spec/trace.h"

#define MAX_SIDE 4096 /* of patches, windows, tables */

static int tower_numbers(struct spec_tower *w, const struct json *facts, struct err *e)
{
    const struct {
        const char *key;
        uint32_t *out;
        int64_t least;
    } numbers[] = {{"channels", &w->channels, 1}, {"frames", &w->frames, 1}, {"patch", &w->patch, 1},
                   {"merge", &w->merge, 1},       {"window", &w->window, 0}, {"table", &w->table_side, 0}};
    int64_t v;
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        v = numbers[i].least;
        if (json_get(facts, numbers[i].key) &&
            !trace_int(facts, numbers[i].key, numbers[i].least, MAX_SIDE, &v))
            return err_set(e, ERR_FORMAT, "the tower's %s is out of range", numbers[i].key);
        *numbers[i].out = (uint32_t)v;
    }
    w->image_token = -1;
    if (json_get(facts, "image_token") && trace_int(facts, "image_token", 0, INT32_MAX, &v))
        w->image_token = (int32_t)v;
    w->raster = trace_flag(facts, "raster");
    w->class_row = trace_flag(facts, "class_row");
    w->drop_first = trace_flag(facts, "drop_first");
    w->lines = trace_flag(facts, "lines");
    static const char *const ways[] = {[SPEC_BILINEAR] = "bilinear",
                                       [SPEC_CENTRES] = "centres",
                                       [SPEC_BICUBIC] = "bicubic",
                                       [SPEC_EXACT] = "exact",
                                       [SPEC_BUCKETS] = "buckets"};
    const char *how = trace_text(facts, "interpolation");
    w->table = SPEC_NO_TABLE;
    for (size_t i = SPEC_BILINEAR; i < ARRAY_LEN(ways); i++)
        if (strcmp(ways[i], how) == 0)
            w->table = (enum spec_interpolation)i;
    if ((w->table == SPEC_NO_TABLE) != (w->table_side == 0) || (*how && w->table == SPEC_NO_TABLE))
        return err_set(e, ERR_FORMAT, "the tower's table of places and its interpolation do not agree");
    return ERR_OK;
}

static int tower_outputs(struct trace *t, const struct json *list, struct err *e)
{
    struct spec *s = t->s;
    if (list->n > SPEC_MAX_FEATURES)
        return err_set(e, ERR_FORMAT, "a tower gives %u values, at most %d", list->n, SPEC_MAX_FEATURES);
    for (uint32_t i = 0; i < list->n; i++) {
        int64_t at;
        if (!json_i64(&list->as.items[i], &at) || at < 1 || at > t->items->n || !t->vision[at - 1] ||
            t->ids[at - 1] == D0_NO_VALUE)
            return err_set(e, ERR_FORMAT, "output %u of the tower is no value of its graph", i);
        const uint32_t id = t->ids[at - 1];
        const struct d0_value *v = &s->vision->values[id];
        if (v->kind != D0_VALUE_ACTIVATION || v->n_dims != 2 || v->dims[0] != D0_DIM_ROWS ||
            v->dims[1] != s->hidden)
            return err_set(e, ERR_FORMAT, "output %u of the tower is no rows of the text's width", i);
        s->vision->info[id].keep = true;
        s->tower.features[i] = id;
    }
    s->tower.n_features = list->n;
    return ERR_OK;
}

int trace_tower(struct trace *t, const struct json *root, struct err *e)
{
    struct spec *s = t->s;
    const struct json *list = json_get(root, "features");
    if (list == NULL || list->type != JSON_ARRAY || list->n == 0) {
        graph_free(s->vision);
        s->vision = NULL;
        return ERR_OK;
    }
    int rc = tower_numbers(&s->tower, json_get(root, "tower"), e);
    if (!rc)
        rc = tower_outputs(t, list, e);
    if (!rc)
        rc = graph_set_segments(s->vision, e);
    return rc ? rc : graph_verify(s->vision, e);
}
