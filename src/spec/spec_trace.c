/* SPDX-License-Identifier: Apache-2.0
 *
 * Trace -> graph and inventory. The trace is a list of items that an architecture file caused; every name,
 * number and reference in it is checked here, shapes by the graph's own rules. Refuses with one message that
 * names the item.
 */
#include "spec/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *trace_text(const struct json *item, const char *key)
{
    const char *s = json_string(json_get(item, key));
    return s ? s : "";
}

bool trace_int(const struct json *item, const char *key, int64_t low, int64_t high, int64_t *out)
{
    int64_t v;
    if (!json_i64(json_get(item, key), &v) || v < low || v > high)
        return false;
    *out = v;
    return true;
}

bool trace_flag(const struct json *item, const char *key)
{
    bool b = false;
    return json_bool(json_get(item, key), &b) && b;
}

/* A name of its own of printable ASCII: it goes into files, reports and terminals. */
int trace_name(struct trace *t, const struct json *item, const char **out, struct err *e)
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

struct graph *trace_graph(const struct trace *t, const struct json *item)
{
    return strcmp(trace_text(item, "graph"), "vision") == 0 ? t->s->vision : t->s->graph;
}

static int add_input(struct trace *t, const struct json *item, uint32_t *out, struct err *e)
{
    enum { WIDE = -100 }; /* as wide as the trace says */
    static const struct {
        const char *name;
        uint32_t role, dtype, n_dims;
        int64_t dims[2];
    } roles[] = {
        {"ids", D0_INPUT_IDS, D0_I32, 1, {D0_DIM_TOKENS}},
        {"positions", D0_INPUT_POSITIONS, D0_I32, 1, {D0_DIM_TOKENS}},
        {"seq_of", D0_INPUT_SEQ_OF, D0_I32, 1, {D0_DIM_TOKENS}},
        {"page_table", D0_INPUT_PAGE_TABLE, D0_I32, 2, {D0_DIM_SEQS, D0_DIM_PAGES}},
        {"rows", D0_INPUT_ROWS, D0_I32, 1, {D0_DIM_ROWS}},
        {"slots", D0_INPUT_SLOTS, D0_I32, 1, {D0_DIM_SEQS}},
        {"patches", D0_INPUT_PATCHES, D0_F32, 2, {D0_DIM_TOKENS, WIDE}},
        {"places", D0_INPUT_PLACES, D0_I32, 2, {D0_DIM_TOKENS, WIDE}},
        {"spans", D0_INPUT_SPANS, D0_I32, 2, {D0_DIM_TOKENS, WIDE}},
        {"windows", D0_INPUT_WINDOWS, D0_I32, 2, {D0_DIM_TOKENS, WIDE}},
        {"merge", D0_INPUT_MERGE, D0_I32, 2, {D0_DIM_ROWS, WIDE}},
        {"table_rows", D0_INPUT_TABLE_ROWS, D0_I32, 2, {D0_DIM_TOKENS, WIDE}},
        {"table_weights", D0_INPUT_TABLE_WEIGHTS, D0_F32, 2, {D0_DIM_TOKENS, WIDE}},
        {"features", D0_INPUT_FEATURES, D0_F32, 2, {D0_DIM_TOKENS, WIDE}},
        {"feature_of", D0_INPUT_FEATURE_OF, D0_I32, 1, {D0_DIM_TOKENS}},
        {"class_rows", D0_INPUT_CLASS_ROWS, D0_I32, 1, {D0_DIM_TOKENS}},
        {"line_rows", D0_INPUT_LINE_ROWS, D0_I32, 1, {D0_DIM_ROWS}},
    };
    const char *name, *role = trace_text(item, "role");
    int64_t width = 0;
    int rc = trace_name(t, item, &name, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < ARRAY_LEN(roles); i++) {
        if (strcmp(roles[i].name, role) != 0)
            continue;
        struct d0_value v = {.kind = D0_VALUE_INPUT,
                             .dtype = roles[i].dtype,
                             .n_dims = roles[i].n_dims,
                             .role = roles[i].role};
        memcpy(v.dims, roles[i].dims, sizeof roles[i].dims);
        if (v.n_dims == 2 && v.dims[1] == WIDE) {
            if (!trace_int(item, "width", 1, INT32_MAX, &width))
                return err_set(e, ERR_FORMAT, "the input %s has no width", name);
            v.dims[1] = width;
        }
        struct graph_value_info info = {.name = name, .layer = -1};
        return graph_add_value(trace_graph(t, item), &v, &info, out, e);
    }
    return err_set(e, ERR_FORMAT, "the input %s is unknown", role);
}

static int add_rope(struct trace *t, const struct json *item, uint32_t *out, struct err *e)
{
    const char *name;
    const float *freq;
    int64_t n;
    int rc = trace_name(t, item, &name, e);
    if (rc || (rc = trace_rope(&t->s->arena, item, &n, &freq, e)) != 0)
        return rc;
    struct d0_value v = {.kind = D0_VALUE_WEIGHT, .dtype = D0_F32, .n_dims = 1, .dims = {n}};
    struct graph_value_info info = {.name = name, .layer = -1, .constant = freq};
    return graph_add_value(trace_graph(t, item), &v, &info, out, e);
}

/* State of fixed size for each sequence: [slots, dims...], float32. */
static int add_slots(struct trace *t, const struct json *item, const char *name, int64_t layer, uint32_t *out,
                     struct err *e)
{
    const struct json *dims = json_get(item, "dims");
    struct d0_value v = {.kind = D0_VALUE_STATE, .dtype = D0_F32, .n_dims = 1, .dims = {1}};
    struct graph_value_info info = {.name = name, .layer = (int32_t)layer, .state = STATE_SLOTS};
    uint64_t bytes = 4;
    for (uint32_t i = 0; dims && dims->type == JSON_ARRAY && i < dims->n; i++) {
        int64_t d;
        if (v.n_dims >= D0_MAX_DIMS || !json_i64(&dims->as.items[i], &d) || d < 1 || d > INT32_MAX ||
            !mul_u64(bytes, (uint64_t)d, &bytes))
            return err_set(e, ERR_FORMAT, "state %s: its shape is out of range", name);
        v.dims[v.n_dims++] = d;
    }
    if (v.n_dims < 2 || !add_u64(t->s->state_bytes, bytes, &t->s->state_bytes))
        return err_set(e, ERR_FORMAT, "state %s: its shape is out of range", name);
    return graph_add_value(t->s->graph, &v, &info, out, e);
}

/* Pages of one layer. v comes right after its k; a latent, an index or a pool stands alone. */
static int add_state(struct trace *t, const struct json *item, uint32_t *out, struct err *e)
{
    struct spec *s = t->s;
    const char *name, *which = trace_text(item, "which");
    int64_t layer, kv_heads, dim, ratio = 1;
    int rc = trace_name(t, item, &name, e);
    if (rc)
        return rc;
    if (!trace_int(item, "layer", 0, INT32_MAX, &layer))
        return err_set(e, ERR_FORMAT, "state %s: layer is out of range", name);
    if (strcmp(which, "slots") == 0)
        return add_slots(t, item, name, layer, out, e);
    if (!trace_int(item, "kv_heads", 1, INT32_MAX, &kv_heads) ||
        !trace_int(item, "dim", 1, INT32_MAX, &dim) ||
        (json_get(item, "ratio") && !trace_int(item, "ratio", 1, 1 << 20, &ratio)))
        return err_set(e, ERR_FORMAT, "state %s: layer, kv_heads or dim is out of range", name);
    int64_t rows = (s->page_tokens - 1) / ratio +
                   1; /* every entry has a place in the page of its last token, or earlier */
    struct d0_value v = {
        .kind = D0_VALUE_STATE, .dtype = s->kv_dtype, .n_dims = 4, .dims = {1, kv_heads, rows, dim}};
    struct graph_value_info info = {
        .name = name, .layer = (int32_t)layer, .state = STATE_PAGES, .page_tokens = s->page_tokens};
    if ((rc = graph_add_value(s->graph, &v, &info, out, e)) != 0)
        return rc;
    uint64_t bytes = (uint64_t)kv_heads * (uint64_t)dim * dtype_bits(s->kv_dtype) / 8 / (uint64_t)ratio;
    if (!add_u64(s->kv_bytes_per_token, bytes, &s->kv_bytes_per_token))
        return err_set(e, ERR_FORMAT, "state %s: too large", name);
    bool alone = strcmp(which, "latent") == 0 || strcmp(which, "index") == 0 || strcmp(which, "pool") == 0;
    if (alone || strcmp(which, "k") == 0) {
        if (vec_reserve((void **)&s->kv, &t->kv_capacity, s->n_kv + 1, sizeof *s->kv))
            return err_set(e, ERR_NOMEM, "no memory for the list of states");
        s->kv[s->n_kv++] = (struct spec_kv){.layer = (int32_t)layer,
                                            .k_value = *out,
                                            .v_value = D0_NO_VALUE,
                                            .kv_heads = (uint32_t)kv_heads,
                                            .dim = (uint32_t)dim,
                                            .ratio = (uint32_t)ratio};
        t->v_expected = !alone;
        return ERR_OK;
    }
    struct spec_kv *kv = s->n_kv ? &s->kv[s->n_kv - 1] : NULL;
    if (strcmp(which, "v") != 0 || !t->v_expected || kv->layer != layer || kv->kv_heads != kv_heads)
        return err_set(e, ERR_FORMAT, "state %s: v must follow the k of its layer", name);
    t->v_expected = false;
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

/* Blocks of four-bit codes lie along the input whatever way round the family keeps plain weights
 * (trace_weight turned their value): then the node's weights are not transposed. */
static void turn_experts(const struct graph *g, struct d0_node *n)
{
    bool blocks = n->op == D0_OP_EXPERTS && n->n_inputs > 3;
    for (uint32_t i = 3; blocks && i < n->n_inputs && i <= 5; i++)
        blocks = n->inputs[i] == D0_NO_VALUE || g->info[n->inputs[i]].scheme == QUANT_MXFP4_BLOCKS;
    if (blocks)
        (void)node_set_attr_i(n, D0_ATTR_TRANSPOSED, 0);
}

static int add_node(struct trace *t, uint32_t index, const struct json *item, uint32_t *out, struct err *e)
{
    const struct op_info *op = op_find_name(trace_text(item, "op"));
    const struct json *ins = json_get(item, "inputs");
    struct d0_node n = {0};
    const char *name;
    int64_t layer;
    int rc = trace_name(t, item, &name, e);
    if (rc)
        return rc;
    if (op == NULL)
        return err_set(e, ERR_FORMAT, "the operator %.40s is unknown", trace_text(item, "op"));
    if (ins == NULL || ins->type != JSON_ARRAY || ins->n > D0_MAX_NODE_INPUTS)
        return err_set(e, ERR_FORMAT, "%s %s: its inputs are no list of up to %d", op->name, name,
                       D0_MAX_NODE_INPUTS);
    if (!trace_int(item, "layer", -1, INT32_MAX, &layer))
        return err_set(e, ERR_FORMAT, "%s %s: its layer is no integer", op->name, name);
    n.op = op->id;
    n.layer = (int32_t)layer;
    n.n_inputs = ins->n;
    for (uint32_t i = 0; i < ins->n; i++) {
        int64_t at;
        if (json_i64(&ins->as.items[i], &at) && at == 0) {
            n.inputs[i] = D0_NO_VALUE; /* absent */
            continue;
        }
        if (!json_i64(&ins->as.items[i], &at) || at < 1 || at > index)
            return err_set(e, ERR_FORMAT, "%s %s: input %u is no earlier item", op->name, name, i);
        n.inputs[i] = t->ids[at - 1];
        if (t->vision[at - 1] != t->vision[index])
            return err_set(e, ERR_FORMAT, "%s %s: input %u is of another graph", op->name, name, i);
        if (n.inputs[i] == D0_NO_VALUE)
            return err_set(e, ERR_FORMAT, "%s %s: input %u has no value", op->name, name, i);
    }
    if ((rc = node_attrs(json_get(item, "attrs"), &n, e)) != 0) {
        err_ctx(e, "reading %s %s", op->name, name);
        return rc;
    }
    struct graph *g = trace_graph(t, item);
    turn_experts(g, &n);
    if ((rc = graph_add_node(g, &n, name, out, e)) != 0)
        return rc;
    if (*out != D0_NO_VALUE)
        g->info[*out].probe = trace_flag(item, "probe");
    return ERR_OK;
}

/* A further output of a node. */
static int add_output(struct trace *t, uint32_t index, const struct json *item, uint32_t *out, struct err *e)
{
    int64_t of, which;
    const struct graph *g = trace_graph(t, item);
    if (!trace_int(item, "of", 1, index, &of) || t->vision[of - 1] != t->vision[index] ||
        !trace_int(item, "index", 0, D0_MAX_NODE_OUTPUTS - 1, &which))
        return err_set(e, ERR_FORMAT, "item %u of the trace is an output of no earlier item", index + 1);
    for (uint32_t i = g->n_nodes; i-- > 0;) {
        const struct d0_node *n = &g->nodes[i];
        if (n->n_outputs > which && n->outputs[0] == t->ids[of - 1] && t->ids[of - 1] != D0_NO_VALUE) {
            *out = n->outputs[which];
            return ERR_OK;
        }
    }
    return err_set(e, ERR_FORMAT, "item %u of the trace is an output that does not exist", index + 1);
}

static int add_items(struct trace *t, struct err *e)
{
    for (uint32_t i = 0; i < t->items->n; i++) {
        const struct json *item = &t->items->as.items[i];
        const char *kind = trace_text(item, "k");
        int rc;
        t->ids[i] = D0_NO_VALUE;
        t->vision[i] = trace_graph(t, item) == t->s->vision;
        if (strcmp(kind, "input") == 0)
            rc = add_input(t, item, &t->ids[i], e);
        else if (strcmp(kind, "weight") == 0)
            rc = trace_weight(t, item, &t->ids[i], e);
        else if (strcmp(kind, "rope") == 0)
            rc = add_rope(t, item, &t->ids[i], e);
        else if (strcmp(kind, "state") == 0)
            rc = add_state(t, item, &t->ids[i], e);
        else if (strcmp(kind, "node") == 0)
            rc = add_node(t, i, item, &t->ids[i], e);
        else if (strcmp(kind, "output") == 0)
            rc = add_output(t, i, item, &t->ids[i], e);
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
        if (strcmp(trace_text(item, "k"), "weight") != 0)
            continue;
        const struct ckpt_tensor *x = ckpt_find(t->c, trace_text(item, "name"));
        if (x && x->dtype != D0_F32)
            return D0_BF16;
        any |= x != NULL;
    }
    return any || t->fallback_dtype == D0_F32 ? D0_F32 : D0_BF16;
}

static uint32_t config_dtype(const struct ckpt *c)
{
    static const char *const nested[] = {NULL, "text_config", "llm_config", "language_config"};
    uint32_t dtype = 0;
    for (size_t i = 0; i < ARRAY_LEN(nested) && !spec_dtype_computed(dtype); i++) {
        const struct json *from = nested[i] ? json_get(c->config, nested[i]) : c->config;
        const char *name = json_string(json_get(from, "torch_dtype"));
        if (name == NULL)
            name = json_string(json_get(from, "dtype"));
        dtype = name ? dtype_parse_torch(name) : 0;
    }
    if (spec_dtype_computed(dtype))
        return dtype;
    /* A model that does not say and is quantised keeps the rest in 16 bits. */
    return json_get(c->config, "quantization_config") || c->quant_config ? D0_BF16 : D0_F32;
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
        if (!trace_int(model, facts[i].key, 1, INT32_MAX, facts[i].out))
            return err_set(e, ERR_FORMAT, "the trace does not tell %s: is %s missing?", facts[i].key,
                           strcmp(facts[i].key, "positions") == 0 ? "context(n)" : "an operator");
    s->tied_embeddings = trace_flag(model, "tied");
    const char *pattern = json_string(json_get(model, "tiktoken"));
    if (pattern && (s->tokenizer_pattern = arena_strdup(&s->arena, pattern)) == NULL)
        return err_set(e, ERR_NOMEM, "no memory for a pattern");
    const struct {
        const char *key;
        int64_t most, *out;
    } rule[] = {{"tiktoken_piece", INT32_MAX, &s->tokenizer_piece},
                {"tiktoken_run", INT32_MAX, &s->tokenizer_run},
                {"tiktoken_reserved", 65536, &s->tokenizer_reserved}};
    for (size_t i = 0; i < ARRAY_LEN(rule); i++)
        if (json_get(model, rule[i].key) && !trace_int(model, rule[i].key, 1, rule[i].most, rule[i].out))
            return err_set(e, ERR_FORMAT, "%s is no number from 1 to %lld", rule[i].key,
                           (long long)rule[i].most);
    return ERR_OK;
}

/* The graph must end in logits: [R, vocab]. */
static int check_result(const struct trace *t, int64_t result, struct err *e)
{
    const struct graph *g = t->s->graph;
    uint32_t id = graph_result(g);
    if (id == D0_NO_VALUE || result < 1 || result > t->items->n || t->vision[result - 1] ||
        t->ids[result - 1] != id)
        return err_set(e, ERR_FORMAT, "the last operator is not what build returned");
    const struct d0_value *v = &g->values[id];
    if (v->n_dims != 2 || v->dims[0] != D0_DIM_ROWS || v->dims[1] != t->s->vocab_size)
        return err_set(e, ERR_FORMAT, "build must end with logits over the vocabulary of the embedding");
    if (t->v_expected)
        return err_set(e, ERR_FORMAT, "layer %d declares k pages without v pages",
                       t->s->kv[t->s->n_kv - 1].layer);
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

/* Parameters that one token uses: all of the text, but of the experts only the chosen ones. */
static void count_active(struct spec *s)
{
    const struct graph *g = s->graph;
    for (size_t i = 0; i < s->n_weights; i++) {
        uint64_t n;
        if (s->weights[i].group == GROUP_TEXT && shape_elements(s->weights[i].dims, s->weights[i].n_dims, &n))
            s->active_parameters += n * s->weights[i].count;
    }
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        if (n->op != D0_OP_EXPERTS)
            continue;
        uint64_t chosen = (uint64_t)g->values[n->inputs[1]].dims[1],
                 experts = (uint64_t)g->values[n->inputs[3]].dims[0];
        for (uint32_t j = 3; j < n->n_inputs; j++) {
            uint64_t all;
            const struct d0_value *v = n->inputs[j] == D0_NO_VALUE ? NULL : &g->values[n->inputs[j]];
            if (v && chosen < experts && shape_elements(v->dims, v->n_dims, &all))
                s->active_parameters -= all / experts * (experts - chosen);
        }
    }
}

/* {"vision": {"linear": 12}}: operators that are described but not in the graph. */
static int outside_counts(struct spec *s, const struct json *outside, struct err *e)
{
    size_t n = 0;
    for (uint32_t i = 0; outside && outside->type == JSON_OBJECT && i < outside->n; i++)
        n += outside->as.members[i].value.type == JSON_OBJECT ? outside->as.members[i].value.n : 0;
    s->outside = arena_alloc_n(&s->arena, n + 1, sizeof *s->outside);
    if (s->outside == NULL)
        return err_set(e, ERR_NOMEM, "no memory for counts of operators");
    for (uint32_t i = 0; n && i < outside->n; i++) {
        const struct json_member *m = &outside->as.members[i];
        for (uint32_t k = 0; m->value.type == JSON_OBJECT && k < m->value.n; k++) {
            const struct json_member *op = &m->value.as.members[k];
            struct spec_count *x = &s->outside[s->n_outside++];
            x->group = arena_strdup(&s->arena, m->key);
            x->op = arena_strdup(&s->arena, op->key);
            (void)json_u64(&op->value, &x->count);
            if (x->group == NULL || x->op == NULL)
                return err_set(e, ERR_NOMEM, "no memory for counts of operators");
        }
    }
    return ERR_OK;
}

/* What an architecture file noticed about config.json. */
static void add_notes(const struct json *notes, struct findings *f)
{
    for (uint32_t i = 0; notes && notes->type == JSON_ARRAY && i < notes->n && i < 16; i++) {
        char key[120], text[300];
        const struct json *note = json_at(notes, i);
        finding_add(f, FINDING_C008, ckpt_show(trace_text(note, "key"), key, sizeof key), "%s",
                    ckpt_show(trace_text(note, "text"), text, sizeof text));
    }
}

int spec_translate(struct spec *s, const struct ckpt *c, const struct json *trace,
                   const struct spec_options *o, struct findings *f, struct err *e)
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
    t.vision = calloc(t.items->n + 1u, sizeof *t.vision);
    if (t.ids == NULL || t.vision == NULL)
        rc = err_set(e, ERR_NOMEM, "no memory for the trace");
    if (!rc)
        rc = quant_config_read(&t.quant, c, &s->arena, f, e);
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
        rc = trace_tower(&t, trace, e);
    if (!rc)
        rc = unread_keys(s, json_get(trace, "unread"), e);
    if (!rc)
        rc = outside_counts(s, json_get(trace, "outside"), e);
    if (!rc) {
        count_active(s);
        quant_report(&t.tally, &t.quant, f);
        add_notes(json_get(trace, "notes"), f);
    }
    bool ok = into_arena(&s->arena, (void **)&s->weights, s->n_weights, sizeof *s->weights);
    ok &= into_arena(&s->arena, (void **)&s->kv, s->n_kv, sizeof *s->kv);
    strmap_release(&t.names);
    free(t.ids);
    free(t.vision);
    return rc || ok ? rc : err_set(e, ERR_NOMEM, "no memory for the model description");
}
