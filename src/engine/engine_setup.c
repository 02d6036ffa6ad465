/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: opening an engine: the graph's copy and plan, KV pages and slots, input buffers, the compiled part
 * with everything bound. Refuses: to leave anything for the first step: after open no step allocates.
 */
#include "engine/engine_internal.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define FILL_BYTES 65536u
#define POISON     0xff

/* ---- reading the graph --------------------------------------------------------------------------------- */

static bool dims_are(const struct d0_value *v, uint32_t dtype, uint32_t n_dims, int64_t d0, int64_t d1)
{
    return v->dtype == dtype && v->n_dims == n_dims && v->dims[0] == d0 &&
           (n_dims < 2 || d1 == 0 || v->dims[1] == d1);
}

static int check_input(struct engine *x, uint32_t id, struct err *e)
{
    const struct d0_value *v = &x->graph->values[id];
    bool fits = false;
    switch (v->role) {
    case D0_INPUT_IDS:
    case D0_INPUT_POSITIONS:
    case D0_INPUT_SEQ_OF:
        fits = dims_are(v, D0_I32, 1, D0_DIM_TOKENS, 0);
        break;
    case D0_INPUT_PAGE_TABLE:
        fits = dims_are(v, D0_I32, 2, D0_DIM_SEQS, D0_DIM_PAGES);
        break;
    case D0_INPUT_ROWS:
        fits = dims_are(v, D0_I32, 1, D0_DIM_ROWS, 0);
        break;
    case D0_INPUT_SLOTS:
        fits = dims_are(v, D0_I32, 1, D0_DIM_SEQS, 0);
        break;
    case D0_INPUT_HIDDEN:
        fits = dims_are(v, D0_F32, 2, D0_DIM_TOKENS, 0) && v->dims[1] > 0 && x->n_hidden < ENGINE_MAX_HIDDEN;
        if (fits)
            x->hidden[x->n_hidden++] = (struct hidden_input){.value = id, .width = v->dims[1]};
        break;
    default:
        fits = x->pictures && tower_input(x, id);
        break;
    }
    if (!fits)
        return err_set(e, ERR_UNSUPPORTED, "input %s of role %u has a shape that the engine cannot fill",
                       x->graph->info[id].name, v->role);
    return ERR_OK;
}

/* One slot for each sequence, [n_slots, ...]. */
static int check_slotted(struct engine *x, uint32_t id, uint32_t wanted, struct err *e)
{
    struct d0_value *v = &x->graph->values[id];
    if (v->n_dims < 2)
        return err_set(e, ERR_UNSUPPORTED, "state %s is not made of slots", x->graph->info[id].name);
    for (uint32_t i = 1; i < v->n_dims; i++)
        if (v->dims[i] <= 0)
            return err_set(e, ERR_UNSUPPORTED, "the slots of state %s have no fixed size",
                           x->graph->info[id].name);
    x->limits.n_slots = wanted ? wanted : x->limits.max_seqs;
    v->dims[0] = x->limits.n_slots;
    return ERR_OK;
}

/* Pages are [n_pages, heads, rows, dim]; all layers share one page table, so a page stands for as many tokens
 * everywhere. */
static int check_paged(struct engine *x, uint32_t id, struct err *e)
{
    struct d0_value *v = &x->graph->values[id];
    if (v->n_dims != 4 || v->dims[1] <= 0 || v->dims[2] <= 0 || v->dims[2] > 65536 || v->dims[3] <= 0)
        return err_set(e, ERR_UNSUPPORTED, "state %s is not made of pages", x->graph->info[id].name);
    uint32_t tokens = x->graph->info[id].page_tokens ? x->graph->info[id].page_tokens : (uint32_t)v->dims[2];
    if (x->has_state && tokens != x->limits.page_tokens)
        return err_set(e, ERR_MISMATCH, "state %s has pages of %u tokens, others of %u",
                       x->graph->info[id].name, tokens, x->limits.page_tokens);
    x->has_state = true;
    x->limits.page_tokens = tokens;
    v->dims[0] = x->limits.n_pages;
    return ERR_OK;
}

static int check_values(struct engine *x, struct err *e)
{
    uint32_t n_slots = x->limits.n_slots, n_snapshots = x->limits.n_snapshots;
    x->limits.n_slots = x->limits.n_snapshots = 0;
    for (uint32_t i = 0; i < x->graph->n_values; i++) {
        uint32_t kind = x->graph->values[i].kind;
        int rc = kind == D0_VALUE_INPUT                   ? check_input(x, i, e)
                 : kind != D0_VALUE_STATE                 ? ERR_OK
                 : x->graph->info[i].state == STATE_SLOTS ? check_slotted(x, i, n_slots, e)
                                                          : check_paged(x, i, e);
        if (rc != ERR_OK)
            return rc;
    }
    if (x->limits.n_slots && dev_can_copy(x->dev) && graph_pages_shareable(x->graph))
        x->limits.n_snapshots = n_snapshots;
    return ERR_OK;
}

static int find_result(struct engine *x, struct err *e)
{
    x->result = graph_result(x->graph);
    if (x->result == D0_NO_VALUE)
        return err_set(e, ERR_INVALID, "the graph has no result");
    const struct d0_value *v = &x->graph->values[x->result];
    if (v->dtype != D0_F32 || v->n_dims != 2 || v->dims[1] <= 0 || v->dims[1] > INT32_MAX)
        return err_set(e, ERR_UNSUPPORTED, "the result of the graph is not float32 [rows, width]");
    x->width = (uint32_t)v->dims[1];
    x->logits = v->dims[0] == D0_DIM_ROWS;
    /* legal ids: rows of the embedding and columns of the head, where the graph has them */
    x->limits.vocab = x->logits ? x->width : 0;
    for (uint32_t i = 0; i < x->graph->n_nodes; i++) {
        const struct d0_node *n = &x->graph->nodes[i];
        if (n->op != D0_OP_EMBED || n->inputs[1] >= x->graph->n_values)
            continue;
        int64_t rows = x->graph->values[n->inputs[1]].dims[0];
        if (rows > 0 && rows <= INT32_MAX && (!x->limits.vocab || rows < x->limits.vocab))
            x->limits.vocab = (uint32_t)rows;
    }
    return ERR_OK;
}

static int check_limits(const struct engine_limits *l, struct err *e)
{
    const struct {
        const char *name;
        uint32_t value;
    } f[] = {{"max_tokens", l->max_tokens},
             {"max_seqs", l->max_seqs},
             {"max_rows", l->max_rows},
             {"max_pages_per_seq", l->max_pages_per_seq},
             {"n_pages", l->n_pages}};
    for (size_t i = 0; i < ARRAY_LEN(f); i++)
        if (f[i].value == 0 || f[i].value > INT32_MAX)
            return err_set(e, ERR_INVALID, "engine: %s is %u, must be 1..%d", f[i].name, f[i].value,
                           INT32_MAX);
    if (l->n_slots > INT32_MAX)
        return err_set(e, ERR_INVALID, "engine: n_slots is %u, must be at most %d", l->n_slots, INT32_MAX);
    if (l->n_snapshots > INT32_MAX)
        return err_set(e, ERR_INVALID, "engine: n_snapshots is %u, must be at most %d", l->n_snapshots,
                       INT32_MAX);
    return ERR_OK;
}

static void forget_graph(struct engine *x)
{
    graph_free(x->graph);
    x->graph = NULL;
    x->n_hidden = 0;
    x->tower.n_text = 0;
    x->has_state = false;
}

/* The graph with these fusions, checked and planned. */
static int plan_fused(struct engine *x, const struct graph *g, const struct engine_options *o, uint32_t mask,
                      struct fused *fused, struct err *e)
{
    const struct engine_limits pictures = x->limits; /* settled by tower_plan */
    x->limits = o->limits;
    x->limits.n_feature_rows = pictures.n_feature_rows;
    x->limits.max_patches = pictures.max_patches;
    x->limits.max_picture_rows = pictures.max_picture_rows;
    int rc = graph_fuse(g, mask, o->probes, fused, e);
    if (rc != ERR_OK)
        return rc;
    x->graph = fused->graph;
    x->value_of = fused->value_of;
    rc = check_values(x, e);
    if (rc == ERR_OK)
        rc = find_result(x, e);
    if (rc == ERR_OK)
        rc = graph_verify(x->graph, e);
    const int64_t dims[D0_N_DIMS] = {x->limits.max_tokens, x->limits.max_seqs, x->limits.max_rows,
                                     x->limits.max_pages_per_seq};
    return rc == ERR_OK ? graph_plan_memory(x->graph, dims, o->probes, e) : rc;
}

/* Fusions of whose nodes the device refuses at least one. */
static uint32_t refused(struct engine *x, const struct fused *fused)
{
    struct d0_part part;
    uint32_t mask = 0;
    char reason[256];
    graph_part(fused->graph, &part);
    for (uint32_t i = 0; i < fused->graph->n_nodes; i++)
        if ((fused->by[i] & ~mask) && !dev_supports(x->dev, &part, i, reason, sizeof reason))
            mask |= fused->by[i];
    return mask;
}

/* A device that knows the operators of the graph as described need not know the fused ones. */
static int plan_graph(struct engine *x, const struct graph *g, const struct engine_options *o, struct err *e)
{
    struct fused fused;
    int rc = check_limits(&o->limits, e);
    for (uint32_t mask = o->fusions, off = 1; rc == ERR_OK && off; mask &= ~off) {
        forget_graph(x);
        rc = plan_fused(x, g, o, mask, &fused, e);
        off = rc == ERR_OK ? refused(x, &fused) : 0;
    }
    for (unsigned i = 0; rc == ERR_OK && i < FUSION_N; i++)
        x->fusions |= fused.nodes[i] ? FUSION_BIT(i) : 0;
    struct d0_device_info info = {.size = sizeof info};
    if (rc == ERR_OK)
        rc = dev_info(x->dev, &info, e);
    x->exact = info.exact != 0 && (x->fusions & ~fusions_exact()) == 0;
    return rc;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static int make_arrays(struct engine *x, bool probes, struct err *e)
{
    const struct engine_limits *l = &x->limits;
    struct arena *a = &x->arena;
    x->own = arena_alloc_n(a, x->graph->n_values + (size_t)1, sizeof(struct d0_buffer *));
    x->kept = arena_alloc_n(a, x->graph->n_values + (size_t)1, sizeof(struct d0_buffer *));
    x->slot_bytes = arena_alloc_n(a, x->graph->n_values + (size_t)1, sizeof(uint64_t));
    x->ids = arena_alloc_n(a, l->max_tokens, sizeof(int32_t));
    x->positions = arena_alloc_n(a, l->max_tokens, sizeof(int32_t));
    x->seq_of = arena_alloc_n(a, l->max_tokens, sizeof(int32_t));
    x->table = arena_alloc_n(a, (size_t)l->max_seqs * l->max_pages_per_seq, sizeof(int32_t));
    x->rows = arena_alloc_n(a, l->max_rows, sizeof(int32_t));
    x->slots = arena_alloc_n(a, l->max_seqs, sizeof(int32_t));
    x->slot = arena_alloc_n(a, l->n_slots + (size_t)1, sizeof(*x->slot));
    x->snapshot = arena_alloc_n(a, l->n_snapshots + (size_t)1, sizeof(*x->snapshot));
    x->page_writer = arena_alloc_n(a, l->n_pages, sizeof(uint64_t));
    x->probes = arena_alloc_n(a, x->graph->n_values + (size_t)1, sizeof(uint32_t));
    uint32_t sampled = x->logits ? x->width : 1;
    x->scratch.values = arena_alloc_n(a, sampled, sizeof(float));
    x->scratch.ids = arena_alloc_n(a, sampled, sizeof(int32_t));
    uint32_t seen = x->pictures ? l->max_tokens : 0; /* tokens that may take something of a picture */
    x->places = arena_alloc_n(a, (size_t)seen + 1, 3 * sizeof(int32_t));
    x->feature_of = arena_alloc_n(a, (size_t)seen + 1, sizeof(int32_t));
    x->spans = arena_alloc_n(a, (size_t)seen + 1, 2 * sizeof(int32_t));
    x->taken = arena_alloc_n(a, (size_t)seen + 1, sizeof(int32_t));
    if (!x->places || !x->feature_of || !x->spans || !x->taken || !x->own || !x->kept || !x->slot_bytes ||
        !x->snapshot || !x->ids || !x->positions || !x->seq_of || !x->table || !x->rows || !x->slots ||
        !x->slot || !x->page_writer || !x->probes || !x->scratch.values || !x->scratch.ids)
        return err_set(e, ERR_NOMEM, "engine: out of memory for a step of %u tokens and %u sequences",
                       l->max_tokens, l->max_seqs);
    for (uint32_t i = 0; i < l->n_slots; i++)
        x->slot[i] = (struct slot_state){.next = SLOT_UNKNOWN};
    for (uint32_t i = 0; i < l->n_snapshots; i++)
        x->snapshot[i] = (struct slot_state){.next = SLOT_UNKNOWN};
    if (x->logits) {
        if (!mul_u64((uint64_t)l->max_rows * x->width, sizeof(float), &x->logit_bytes) ||
            x->logit_bytes > PTRDIFF_MAX || !(x->logit_rows = malloc(x->logit_bytes))) {
            x->logit_bytes = 0;
            return err_set(e, ERR_NOMEM, "engine: out of memory for %u rows of %u logits", l->max_rows,
                           x->width);
        }
        mem_account(x->mem, MEM_SCRATCH, (int64_t)x->logit_bytes);
    }
    for (uint32_t i = 0; probes && i < x->graph->n_values; i++)
        if (x->graph->info[i].probe && x->graph->values[i].kind == D0_VALUE_OUTPUT)
            x->probes[x->n_probes++] = i;
    return ERR_OK;
}

/* POISON: all ones is NaN in every float type that states may have. */
static int fill_buffer(struct engine *x, struct d0_buffer *b, uint64_t bytes, int with, struct err *e)
{
    unsigned char *piece = malloc(FILL_BYTES);
    if (!piece)
        return err_set(e, ERR_NOMEM, "engine: out of memory");
    memset(piece, with, FILL_BYTES);
    int rc = ERR_OK;
    for (uint64_t at = 0; rc == ERR_OK && at < bytes; at += FILL_BYTES) {
        uint64_t n = bytes - at < FILL_BYTES ? bytes - at : FILL_BYTES;
        rc = dev_copy_in(x->dev, x->queue, b, at, piece, n, e);
    }
    if (rc == ERR_OK)
        rc = dev_wait(x->dev, x->queue, ENGINE_WAIT_NS, e);
    free(piece);
    return rc;
}

static int make_state(struct engine *x, struct d0_buffer **b, uint64_t bytes, bool poison, struct err *e)
{
    int rc = dev_buffer(x->dev, bytes, b, e);
    if (rc != ERR_OK)
        return rc;
    x->kv_bytes += bytes;
    if (x->dev->host_memory)
        mem_account(x->mem, MEM_KV, (int64_t)bytes);
    return poison ? fill_buffer(x, *b, bytes, POISON, e) : ERR_OK;
}

static int make_buffer(struct engine *x, uint32_t id, bool poison, struct err *e)
{
    const struct d0_value *v = &x->graph->values[id];
    const char *name = x->graph->info[id].name;
    uint64_t bytes, kept;
    if (!tensor_value_bytes(v, x->graph->max_dims, &bytes))
        return err_set(e, ERR_LIMIT, "%s is too large to address", name);
    int rc;
    if (v->kind != D0_VALUE_STATE) {
        rc = dev_buffer(x->dev, bytes, &x->own[id], e);
        /* a step writes only the rows that it takes: without a fill, a device would read the others unwritten
         */
        return rc == ERR_OK && v->role == D0_INPUT_FEATURES ? fill_buffer(x, x->own[id], bytes, 0, e) : rc;
    }
    rc = make_state(x, &x->own[id], bytes, poison, e);
    if (rc != ERR_OK || x->graph->info[id].state != STATE_SLOTS)
        return rc;
    x->slot_bytes[id] = bytes / x->limits.n_slots;
    if (!mul_u64(x->slot_bytes[id], x->limits.n_snapshots, &kept))
        return err_set(e, ERR_LIMIT, "%u snapshots of %s are too large to address", x->limits.n_snapshots,
                       name);
    return kept ? make_state(x, &x->kept[id], kept, poison, e) : ERR_OK;
}

static int make_buffers(struct engine *x, bool poison, struct err *e)
{
    int rc = dev_queue(x->dev, &x->queue, e);
    for (uint32_t i = 0; rc == ERR_OK && i < x->graph->n_values; i++) {
        uint32_t kind = x->graph->values[i].kind;
        if (kind == D0_VALUE_INPUT || kind == D0_VALUE_STATE)
            rc = make_buffer(x, i, poison, e);
    }
    if (rc == ERR_NOMEM)
        err_ctx(e, "while making %u KV pages of %u tokens, %u slots, %u snapshots and the inputs",
                x->limits.n_pages, x->limits.page_tokens, x->limits.n_slots, x->limits.n_snapshots);
    return rc;
}

static int bind_all(struct engine *x, const struct weights *w, struct err *e)
{
    for (uint32_t i = 0; i < x->graph->n_values; i++) {
        struct d0_buffer *b = x->own[i];
        uint32_t kind = x->graph->values[i].kind;
        if (kind == D0_VALUE_WEIGHT) {
            uint32_t id = x->value_of[i];
            b = w && id < w->n_values ? w->buffers[id] : NULL;
            if (!b)
                return err_set(e, ERR_INVALID, "weight %s was not loaded", x->graph->info[i].name);
        }
        int rc = b ? dev_bind(x->dev, x->exec, i, b, 0, e) : ERR_OK;
        if (rc != ERR_OK) {
            err_ctx(e, "while binding %s", x->graph->info[i].name);
            return rc;
        }
    }
    return ERR_OK;
}

static int compile_graph(struct engine *x, struct err *e)
{
    struct d0_part part;
    graph_part(x->graph, &part);
    int rc = dev_compile(x->dev, &part, &x->exec, e);
    if (rc != ERR_OK)
        err_ctx(e, "while compiling a graph of %u nodes", part.n_nodes);
    return rc;
}

int engine_open(struct engine **out, struct dev *dev, const struct graph *g, const struct weights *w,
                const struct engine_options *o, struct err *e)
{
    struct engine *x = calloc(1, sizeof(*x));
    if (!x)
        return err_set(e, ERR_NOMEM, "engine: out of memory");
    x->dev = dev;
    x->mem = o->mem;
    x->limits = o->limits;
    arena_init(&x->arena, o->mem, MEM_SCRATCH);
    int rc = tower_plan(x, o->tower, e);
    if (rc == ERR_OK)
        rc = plan_graph(x, g, o, e);
    if (rc == ERR_OK)
        rc = make_arrays(x, o->probes, e);
    if (rc == ERR_OK)
        rc = make_buffers(x, o->poison, e);
    if (rc == ERR_OK)
        rc = compile_graph(x, e);
    if (rc == ERR_OK)
        rc = bind_all(x, w, e);
    if (rc == ERR_OK && x->pictures)
        rc = tower_open(x, o->tower->weights, e);
    if (rc != ERR_OK) {
        engine_close(x);
        return rc;
    }
    *out = x;
    return ERR_OK;
}

void engine_close(struct engine *x)
{
    if (!x)
        return;
    tower_close(x);
    dev_exec_free(x->dev, x->exec);
    for (uint32_t i = 0; x->own && i < x->graph->n_values; i++)
        dev_buffer_free(x->dev, x->own[i]);
    for (uint32_t i = 0; x->kept && i < x->graph->n_values; i++)
        dev_buffer_free(x->dev, x->kept[i]);
    if (x->dev->host_memory)
        mem_account(x->mem, MEM_KV, -(int64_t)x->kv_bytes);
    dev_queue_free(x->dev, x->queue);
    mem_account(x->mem, MEM_SCRATCH, -(int64_t)x->logit_bytes);
    free(x->logit_rows);
    arena_release(&x->arena);
    if (x->graph)
        graph_free(x->graph);
    free(x);
}

const struct engine_limits *engine_limits(const struct engine *x)
{
    return &x->limits;
}

void engine_memory(const struct engine *x, uint64_t *kv, uint64_t *scratch)
{
    *kv = x->kv_bytes;
    *scratch = x->graph->scratch_bytes + (x->pictures ? x->tower.graph->scratch_bytes : 0);
}

uint32_t engine_fusions(const struct engine *x)
{
    return x->fusions;
}

bool engine_exact(const struct engine *x)
{
    return x->exact;
}
