/* SPDX-License-Identifier: Apache-2.0
 *
 * Trace -> graph and inventory. The trace is a list of items that an architecture file caused; every name,
 * number and reference in it is checked here, shapes by the graph's own rules. Refuses with one message that
 * names the item.
 */
#include "spec/spec_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define TRACE_MAX_NAME 200
#define TRACE_MAX_ROPE 65536

struct trace {
    struct spec *s;
    const struct ckpt *c;
    const struct json *items;
    uint32_t *ids; /* graph value of each item; D0_NO_VALUE: a node without output */
    struct strmap names;
    uint32_t fallback_dtype; /* of weights that the checkpoint lacks */
    size_t weights_capacity, kv_capacity;
};

static const char *text_of(const struct json *item, const char *key)
{
    const char *s = json_string(json_get(item, key));
    return s ? s : "";
}

static bool int_of(const struct json *item, const char *key, int64_t low, int64_t high, int64_t *out)
{
    int64_t v;
    if (!json_i64(json_get(item, key), &v) || v < low || v > high)
        return false;
    *out = v;
    return true;
}

static bool flag_of(const struct json *item, const char *key)
{
    bool b = false;
    return json_bool(json_get(item, key), &b) && b;
}

/* A name of its own of printable ASCII: it goes into files, reports and terminals. */
static int check_name(struct trace *t, const struct json *item, const char **out, struct err *e)
{
    const struct json *v = json_get(item, "name");
    const char *name = json_string(v);
    if (name == NULL || v->n == 0 || v->n > TRACE_MAX_NAME)
        return err_set(e, ERR_FORMAT, "a name is missing or longer than %d bytes", TRACE_MAX_NAME);
    for (uint32_t i = 0; i < v->n; i++)
        if (name[i] <= ' ' || name[i] > '~')
            return err_set(e, ERR_FORMAT, "a name has a character that is no printable ASCII at byte %u", i);
    char *copy = arena_strdup(&t->s->arena, name);
    int rc = copy ? strmap_put(&t->names, copy, v->n, 0, NULL) : ERR_NOMEM;
    if (rc < 0)
        return err_set(e, ERR_NOMEM, "no memory for names");
    if (rc > 0)
        return err_set(e, ERR_FORMAT, "the name %s is used twice", name);
    *out = copy;
    return ERR_OK;
}

/* ---- values ---- */

static int add_input(struct trace *t, const struct json *item, uint32_t *out, struct err *e)
{
    static const struct {
        const char *name;
        uint32_t role, n_dims;
        int64_t dims[2];
    } roles[] = {
        {"ids", D0_INPUT_IDS, 1, {D0_DIM_TOKENS}},
        {"positions", D0_INPUT_POSITIONS, 1, {D0_DIM_TOKENS}},
        {"seq_of", D0_INPUT_SEQ_OF, 1, {D0_DIM_TOKENS}},
        {"page_table", D0_INPUT_PAGE_TABLE, 2, {D0_DIM_SEQS, D0_DIM_PAGES}},
        {"rows", D0_INPUT_ROWS, 1, {D0_DIM_ROWS}},
    };
    const char *name, *role = text_of(item, "role");
    int rc = check_name(t, item, &name, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < ARRAY_LEN(roles); i++) {
        if (strcmp(roles[i].name, role) != 0)
            continue;
        struct d0_value v = {
            .kind = D0_VALUE_INPUT, .dtype = D0_I32, .n_dims = roles[i].n_dims, .role = roles[i].role};
        memcpy(v.dims, roles[i].dims, sizeof roles[i].dims);
        struct graph_value_info info = {.name = name, .layer = -1};
        return graph_add_value(t->s->graph, &v, &info, out, e);
    }
    return err_set(e, ERR_FORMAT, "the input %s is unknown", role);
}

static int parse_mark(const struct json *item, struct graph_value_info *info, struct err *e)
{
    static const enum partition all[] = {PART_REPLICATED, PART_COLUMN, PART_ROW,
                                         PART_HEADS,      PART_VOCAB,  PART_EXPERT};
    const char *part = text_of(item, "part");
    int64_t units = 0;
    if (!int_of(item, "units", 0, INT32_MAX, &units))
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
static bool dtype_usable(uint32_t dtype)
{
    return dtype == D0_F32 || dtype == D0_BF16 || dtype == D0_F16;
}

static int add_weight(struct trace *t, const struct json *item, uint32_t *out, struct err *e)
{
    struct spec *s = t->s;
    struct spec_weight w = {.layer = -1};
    const struct json *shape = json_get(item, "shape");
    int64_t layer = -1;
    uint64_t elements;
    int rc = check_name(t, item, &w.name, e);
    if (rc)
        return rc;
    if (shape == NULL || shape->type != JSON_ARRAY || shape->n < 1 || shape->n > D0_MAX_DIMS)
        return err_set(e, ERR_FORMAT, "weight %s: its shape is no list of 1 to %d integers", w.name,
                       D0_MAX_DIMS);
    w.n_dims = shape->n;
    for (uint32_t i = 0; i < shape->n; i++)
        if (!json_i64(&shape->as.items[i], &w.dims[i]) || w.dims[i] <= 0)
            return err_set(e, ERR_FORMAT, "weight %s: dimension %u is no positive integer", w.name, i);
    if (!shape_elements(w.dims, w.n_dims, &elements) || !add_u64(s->parameters, elements, &s->parameters))
        return err_set(e, ERR_FORMAT, "weight %s: too many elements", w.name);
    if (!int_of(item, "layer", -1, INT32_MAX, &layer))
        return err_set(e, ERR_FORMAT, "weight %s: its layer is no integer", w.name);
    w.layer = (int32_t)layer;
    w.tensor = ckpt_find(t->c, w.name);
    struct d0_value v = {.kind = D0_VALUE_WEIGHT,
                         .dtype =
                             w.tensor && dtype_usable(w.tensor->dtype) ? w.tensor->dtype : t->fallback_dtype,
                         .n_dims = w.n_dims};
    memcpy(v.dims, w.dims, sizeof v.dims);
    struct graph_value_info info = {.name = w.name, .layer = w.layer, .quantisable = flag_of(item, "quant")};
    if ((rc = parse_mark(item, &info, e)) != 0 ||
        (rc = graph_add_value(s->graph, &v, &info, &w.value, e)) != 0)
        return rc;
    if (vec_reserve((void **)&s->weights, &t->weights_capacity, s->n_weights + 1, sizeof *s->weights))
        return err_set(e, ERR_NOMEM, "no memory for the list of weights");
    s->weights[s->n_weights++] = w;
    *out = w.value;
    return ERR_OK;
}

static int add_rope(struct trace *t, const struct json *item, uint32_t *out, struct err *e)
{
    const struct json *scaling = json_get(item, "scaling");
    const char *name, *type = text_of(scaling, "type");
    struct rope_scaling s = {.type = ROPE_DEFAULT};
    int64_t dim;
    double theta;
    int rc = check_name(t, item, &name, e);
    if (rc)
        return rc;
    if (!int_of(item, "dim", 2, TRACE_MAX_ROPE, &dim) || dim % 2)
        return err_set(e, ERR_FORMAT, "rope: dim must be an even number from 2 to %d", TRACE_MAX_ROPE);
    if (!json_f64(json_get(item, "theta"), &theta) || !(theta > 0) || !(theta < 1e30))
        return err_set(e, ERR_FORMAT, "rope: theta must be a positive number");
    if (strcmp(type, "linear") == 0)
        s.type = ROPE_LINEAR;
    else if (strcmp(type, "llama3") == 0)
        s.type = ROPE_LLAMA3;
    else if (strcmp(type, "default") != 0)
        return err_set(e, ERR_FORMAT, "rope: the scaling %s is unknown", type);
    if (s.type != ROPE_DEFAULT && (!json_f64(json_get(scaling, "factor"), &s.factor) || !(s.factor > 0)))
        return err_set(e, ERR_FORMAT, "rope: the factor of %s must be a positive number", type);
    if (s.type == ROPE_LLAMA3 &&
        (!json_f64(json_get(scaling, "low"), &s.low) || !json_f64(json_get(scaling, "high"), &s.high) ||
         !json_f64(json_get(scaling, "original"), &s.original) || !(s.low > 0) || !(s.high > s.low) ||
         !(s.original > 0)))
        return err_set(e, ERR_FORMAT,
                       "rope: llama3 needs 0 < low_freq_factor < high_freq_factor and a positive "
                       "original_max_position_embeddings");
    float *freq = arena_alloc_n(&t->s->arena, (size_t)dim / 2, sizeof *freq);
    if (freq == NULL)
        return err_set(e, ERR_NOMEM, "no memory for rope frequencies");
    rope_inv_freq(dim, theta, &s, freq);
    for (int64_t j = 0; j < dim / 2; j++)
        if (!isfinite(freq[j]))
            return err_set(e, ERR_FORMAT, "rope: frequency %lld is not finite", (long long)j);
    struct d0_value v = {.kind = D0_VALUE_WEIGHT, .dtype = D0_F32, .n_dims = 1, .dims = {dim / 2}};
    struct graph_value_info info = {.name = name, .layer = -1, .constant = freq};
    return graph_add_value(t->s->graph, &v, &info, out, e);
}

/* Pages of one layer: k, and right after it v. */
static int add_state(struct trace *t, const struct json *item, uint32_t *out, struct err *e)
{
    struct spec *s = t->s;
    const char *name, *which = text_of(item, "which");
    int64_t layer, kv_heads, dim;
    int rc = check_name(t, item, &name, e);
    if (rc)
        return rc;
    if (!int_of(item, "layer", 0, INT32_MAX, &layer) || !int_of(item, "kv_heads", 1, INT32_MAX, &kv_heads) ||
        !int_of(item, "dim", 1, INT32_MAX, &dim))
        return err_set(e, ERR_FORMAT, "state %s: layer, kv_heads or dim is out of range", name);
    struct d0_value v = {.kind = D0_VALUE_STATE,
                         .dtype = s->kv_dtype,
                         .n_dims = 4,
                         .dims = {1, kv_heads, s->page_tokens, dim}};
    struct graph_value_info info = {.name = name, .layer = (int32_t)layer};
    if ((rc = graph_add_value(s->graph, &v, &info, out, e)) != 0)
        return rc;
    uint64_t bytes = (uint64_t)kv_heads * (uint64_t)dim * dtype_bits(s->kv_dtype) / 8;
    if (!add_u64(s->kv_bytes_per_token, bytes, &s->kv_bytes_per_token))
        return err_set(e, ERR_FORMAT, "state %s: too large", name);
    if (strcmp(which, "k") == 0) {
        if (vec_reserve((void **)&s->kv, &t->kv_capacity, s->n_kv + 1, sizeof *s->kv))
            return err_set(e, ERR_NOMEM, "no memory for the list of states");
        s->kv[s->n_kv++] = (struct spec_kv){.layer = (int32_t)layer,
                                            .k_value = *out,
                                            .v_value = D0_NO_VALUE,
                                            .kv_heads = (uint32_t)kv_heads,
                                            .dim = (uint32_t)dim};
        return ERR_OK;
    }
    struct spec_kv *kv = s->n_kv ? &s->kv[s->n_kv - 1] : NULL;
    if (strcmp(which, "v") != 0 || kv == NULL || kv->layer != layer || kv->v_value != D0_NO_VALUE ||
        kv->kv_heads != kv_heads)
        return err_set(e, ERR_FORMAT, "state %s: v must follow the k of its layer", name);
    kv->v_value = *out;
    kv->v_dim = (uint32_t)dim;
    return ERR_OK;
}

/* ---- nodes ---- */

static int node_attrs(const struct json *attrs, struct d0_node *n, struct err *e)
{
    if (attrs == NULL || attrs->type != JSON_OBJECT)
        return ERR_OK; /* an empty Lua table is an empty array */
    for (uint32_t i = 0; i < attrs->n; i++) {
        const struct json_member *m = &attrs->as.members[i];
        uint32_t key = attr_find(m->key);
        int64_t whole;
        double number;
        bool room = false;
        if (key == 0)
            return err_set(e, ERR_FORMAT, "the attribute %.40s is unknown", m->key);
        if (attr_is_float(key) && json_f64(&m->value, &number))
            room = node_set_attr_f(n, key, number);
        else if (!attr_is_float(key) && json_i64(&m->value, &whole))
            room = node_set_attr_i(n, key, whole);
        else
            return err_set(e, ERR_FORMAT, "the attribute %s is a %s", m->key, json_type_name(m->value.type));
        if (!room)
            return err_set(e, ERR_FORMAT, "more than %d attributes", D0_MAX_NODE_ATTRS);
    }
    return ERR_OK;
}

static int add_node(struct trace *t, uint32_t index, const struct json *item, uint32_t *out, struct err *e)
{
    const struct op_info *op = op_find_name(text_of(item, "op"));
    const struct json *ins = json_get(item, "inputs");
    struct d0_node n = {0};
    const char *name;
    int64_t layer;
    int rc = check_name(t, item, &name, e);
    if (rc)
        return rc;
    if (op == NULL)
        return err_set(e, ERR_FORMAT, "the operator %.40s is unknown", text_of(item, "op"));
    if (ins == NULL || ins->type != JSON_ARRAY || ins->n > D0_MAX_NODE_INPUTS)
        return err_set(e, ERR_FORMAT, "%s %s: its inputs are no list of up to %d", op->name, name,
                       D0_MAX_NODE_INPUTS);
    if (!int_of(item, "layer", -1, INT32_MAX, &layer))
        return err_set(e, ERR_FORMAT, "%s %s: its layer is no integer", op->name, name);
    n.op = op->id;
    n.layer = (int32_t)layer;
    n.n_inputs = ins->n;
    for (uint32_t i = 0; i < ins->n; i++) {
        int64_t at;
        if (!json_i64(&ins->as.items[i], &at) || at < 1 || at > index)
            return err_set(e, ERR_FORMAT, "%s %s: input %u is no earlier item", op->name, name, i);
        n.inputs[i] = t->ids[at - 1];
        if (n.inputs[i] == D0_NO_VALUE)
            return err_set(e, ERR_FORMAT, "%s %s: input %u has no value", op->name, name, i);
    }
    if ((rc = node_attrs(json_get(item, "attrs"), &n, e)) != 0)
        return err_ctx(e, "reading %s %s", op->name, name);
    if ((rc = graph_add_node(t->s->graph, &n, name, out, e)) != 0)
        return rc;
    if (*out != D0_NO_VALUE)
        t->s->graph->info[*out].probe = flag_of(item, "probe");
    return ERR_OK;
}

static int add_items(struct trace *t, struct err *e)
{
    for (uint32_t i = 0; i < t->items->n; i++) {
        const struct json *item = &t->items->as.items[i];
        const char *kind = text_of(item, "k");
        int rc;
        t->ids[i] = D0_NO_VALUE;
        if (strcmp(kind, "input") == 0)
            rc = add_input(t, item, &t->ids[i], e);
        else if (strcmp(kind, "weight") == 0)
            rc = add_weight(t, item, &t->ids[i], e);
        else if (strcmp(kind, "rope") == 0)
            rc = add_rope(t, item, &t->ids[i], e);
        else if (strcmp(kind, "state") == 0)
            rc = add_state(t, item, &t->ids[i], e);
        else if (strcmp(kind, "node") == 0)
            rc = add_node(t, i, item, &t->ids[i], e);
        else
            rc = err_set(e, ERR_FORMAT, "item %u of the trace is of no known kind", i + 1);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

/* ---- what the trace says as a whole ---- */

/* F32 pages for a checkpoint of F32 weights, else BF16. Pages are made as items come, so the types are looked
 * up before. */
static uint32_t choose_kv_dtype(const struct trace *t)
{
    bool any = false;
    for (uint32_t i = 0; i < t->items->n; i++) {
        const struct json *item = &t->items->as.items[i];
        if (strcmp(text_of(item, "k"), "weight") != 0)
            continue;
        const struct ckpt_tensor *x = ckpt_find(t->c, text_of(item, "name"));
        if (x && x->dtype != D0_F32)
            return D0_BF16;
        any |= x != NULL;
    }
    return any || t->fallback_dtype == D0_F32 ? D0_F32 : D0_BF16;
}

static uint32_t config_dtype(const struct ckpt *c)
{
    const char *name = json_string(json_get(c->config, "torch_dtype"));
    if (name == NULL)
        name = json_string(json_get(c->config, "dtype"));
    uint32_t dtype = name ? dtype_parse_torch(name) : 0;
    return dtype_usable(dtype) ? dtype : D0_F32;
}

static int model_facts(struct spec *s, const struct json *model, struct err *e)
{
    const struct {
        const char *key;
        int64_t *out;
    } facts[] = {{"hidden", &s->hidden},     {"layers", &s->n_layers},
                 {"vocab", &s->vocab_size},  {"positions", &s->max_positions},
                 {"heads", &s->n_heads},     {"kv_heads", &s->n_kv_heads},
                 {"head_dim", &s->head_dim}, {"intermediate", &s->intermediate}};
    for (size_t i = 0; i < ARRAY_LEN(facts); i++)
        if (!int_of(model, facts[i].key, 1, INT32_MAX, facts[i].out))
            return err_set(e, ERR_FORMAT, "the trace does not tell %s: is %s missing?", facts[i].key,
                           strcmp(facts[i].key, "positions") == 0 ? "context(n)" : "an operator");
    s->tied_embeddings = flag_of(model, "tied");
    return ERR_OK;
}

/* The graph must end in logits: [R, vocab]. */
static int check_result(const struct trace *t, int64_t result, struct err *e)
{
    const struct graph *g = t->s->graph;
    uint32_t id = graph_result(g);
    if (id == D0_NO_VALUE || result < 1 || result > t->items->n || t->ids[result - 1] != id)
        return err_set(e, ERR_FORMAT, "the last operator is not what build returned");
    const struct d0_value *v = &g->values[id];
    if (v->n_dims != 2 || v->dims[0] != D0_DIM_ROWS || v->dims[1] != t->s->vocab_size)
        return err_set(e, ERR_FORMAT, "build must end with logits over the vocabulary of the embedding");
    for (size_t i = 0; i < t->s->n_kv; i++)
        if (t->s->kv[i].v_value == D0_NO_VALUE)
            return err_set(e, ERR_FORMAT, "layer %d declares k pages without v pages", t->s->kv[i].layer);
    return ERR_OK;
}

static int unread_keys(struct spec *s, const struct json *list, struct err *e)
{
    size_t n = list && list->type == JSON_ARRAY ? list->n : 0;
    s->unread_keys = arena_alloc_n(&s->arena, n + 1, sizeof *s->unread_keys);
    for (size_t i = 0; s->unread_keys && i < n; i++) {
        const char *key = json_string(json_at(list, i));
        if ((s->unread_keys[i] = arena_strdup(&s->arena, key ? key : "?")) == NULL)
            return err_set(e, ERR_NOMEM, "no memory for the list of keys");
    }
    s->n_unread = n;
    return s->unread_keys ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for the list of keys");
}

/* The list grew by malloc; its final place is the arena, with the rest of the description. */
static bool into_arena(struct arena *a, void **list, size_t n, size_t element)
{
    void *p = arena_alloc_n(a, n ? n : 1, element);
    if (p && n)
        memcpy(p, *list, n * element);
    free(*list);
    *list = p;
    return p != NULL;
}

int spec_translate(struct spec *s, const struct ckpt *c, const struct json *trace,
                   const struct spec_options *o, struct err *e)
{
    struct trace t = {.s = s, .c = c, .items = json_get(trace, "items")};
    int64_t result = 0;
    int rc = ERR_OK;
    if (t.items == NULL || t.items->type != JSON_ARRAY || t.items->n > GRAPH_MAX_VALUES)
        return err_set(e, ERR_FORMAT, "the trace holds no list of up to %u items", GRAPH_MAX_VALUES);
    t.fallback_dtype = config_dtype(c);
    s->kv_dtype = o->kv_dtype ? o->kv_dtype : choose_kv_dtype(&t);
    s->page_tokens = o->page_tokens ? o->page_tokens : 16;
    t.ids = calloc(t.items->n + 1u, sizeof *t.ids);
    if (t.ids == NULL)
        rc = err_set(e, ERR_NOMEM, "no memory for the trace");
    if (!rc)
        rc = add_items(&t, e);
    if (!rc)
        rc = model_facts(s, json_get(trace, "model"), e);
    (void)json_i64(json_get(trace, "result"), &result);
    if (!rc)
        rc = check_result(&t, result, e);
    if (!rc)
        rc = graph_set_segments(s->graph, e);
    if (!rc)
        rc = graph_verify(s->graph, e);
    if (!rc)
        rc = unread_keys(s, json_get(trace, "unread"), e);
    bool ok = into_arena(&s->arena, (void **)&s->weights, s->n_weights, sizeof *s->weights);
    ok &= into_arena(&s->arena, (void **)&s->kv, s->n_kv, sizeof *s->kv);
    strmap_release(&t.names);
    free(t.ids);
    return rc || ok ? rc : err_set(e, ERR_NOMEM, "no memory for the model description");
}
