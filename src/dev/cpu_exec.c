/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: compiled parts of the cpu device: one kernel variant and one filled-in argument block per node.
 * Refuses: allocation in run(), and any decision at run time that could change a bit: the variant of a node
 * depends on types and instruction set only, and threads get ranges of items that are independent by the
 * kernels' contract.
 */
#include "dev/cpu_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dev/part_check.h"

#define SMALL_WORK 16384 /* multiply-adds below which waking other threads costs more than it saves */

struct cpu_node {
    const struct kern_variant *variant;
    struct kern_args args;       /* all that does not change from run to run */
    struct d0_value rows, first; /* dims only: of out[0] (or in[0]) and of in[0] */
    int state[2];                /* input that is written in place, or -1 */
    uint32_t n_inputs, n_outputs;
    uint32_t inputs[D0_MAX_NODE_INPUTS], outputs[D0_MAX_NODE_OUTPUTS];
};

struct cpu_slot {
    unsigned char *address; /* NULL: not bound yet */
    uint32_t kind, dtype;
    uint64_t bytes; /* for the largest step */
    struct d0_value value;
    struct tensor_form form; /* of a weight stored as codes */
};

struct d0_exec {
    struct d0_device *device;
    struct cpu_node *nodes;
    struct cpu_slot *slots;
    uint32_t n_nodes, n_slots, n_unbound;
    int64_t max_dims[D0_N_DIMS], dims[D0_N_DIMS]; /* of the last run */
    struct d0_buffer scratch, kernel_scratch, kernel_shared;
    size_t kernel_bytes; /* per thread */
    size_t shared_bytes; /* of the node that wants most */
};

/* ---- choosing ------------------------------------------------------------------------------------------ */

static const struct kern_variant *pick(const struct d0_device *d, const struct d0_part *p,
                                       const struct d0_node *n, uint32_t *dtype)
{
    int at = kern_dtype_input(n->op);
    *dtype = 0;
    if (at >= 0 && (uint32_t)at < n->n_inputs && n->inputs[at] != D0_NO_VALUE)
        *dtype = p->values[n->inputs[at]].dtype;
    return kern_pick_rounded(n->op, *dtype, part_attr_i(n, D0_ATTR_X_FORMAT, 0), d->isa);
}

static bool node_supported(const struct d0_device *d, const struct d0_part *p, uint32_t node, char *reason,
                           size_t reason_bytes)
{
    uint32_t dtype;
    if (!part_node_check(p, node, reason, reason_bytes))
        return false;
    const struct d0_node *n = &p->nodes[node];
    if ((n->op == D0_OP_ATTENTION || n->op == D0_OP_MLA) &&
        p->values[n->inputs[1]].dims[2] > KERN_MAX_PAGE_TOKENS) {
        snprintf(reason, reason_bytes, "pages of %lld tokens, the largest are %d",
                 (long long)p->values[n->inputs[1]].dims[2], KERN_MAX_PAGE_TOKENS);
        return false;
    }
    if (pick(d, p, n, &dtype))
        return true;
    snprintf(reason, reason_bytes, "no kernel for operator %u with type %u", n->op, dtype);
    return false;
}

int cpu_supports(struct d0_device *d, const struct d0_part *p, uint32_t node, char *reason,
                 size_t reason_bytes)
{
    struct d0_status st = {.size = sizeof(st)};
    if (reason_bytes)
        reason[0] = '\0';
    if (part_check(p, &st) != D0_OK) {
        snprintf(reason, reason_bytes, "%s", st.message);
        return 0;
    }
    return node_supported(d, p, node, reason, reason_bytes);
}

/* ---- compiling ----------------------------------------------------------------------------------------- */

static void fill_attributes(struct kern_args *a, const struct d0_node *n)
{
    /* read as the rules of operators read them: the first of its key, and of the right type */
    static const struct {
        uint32_t key;
        bool is_float;
    } keys[] = {
#define OP(...)
#define ATTR(id, NAME, text, is_float, ...) {D0_ATTR_##NAME, is_float},
#include "day0/ops.def"
#include "tensor/tensor.h"
#undef OP
#undef ATTR
    };
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (keys[i].is_float)
            a->attr[keys[i].key].f = part_attr_f(n, keys[i].key, 0);
        else
            a->attr[keys[i].key].i = part_attr_i(n, keys[i].key, 0);
    a->dim = part_attr_i(n, D0_ATTR_DIM, 0);
    a->v_dim = part_attr_i(n, D0_ATTR_V_DIM, 0);
    a->v_dim = a->v_dim ? a->v_dim : a->dim;
    a->heads = part_attr_i(n, D0_ATTR_HEADS, 0);
    a->kv_heads = part_attr_i(n, D0_ATTR_KV_HEADS, 0);
    a->segments = part_attr_i(n, D0_ATTR_SEGMENTS, 0);
    a->segments = a->segments ? a->segments : 1;
    a->window = part_attr_i(n, D0_ATTR_WINDOW, 0);
    a->style = part_attr_i(n, D0_ATTR_STYLE, 0);
    a->offset = part_attr_i(n, D0_ATTR_OFFSET, 0);
    a->plus_one = part_attr_i(n, D0_ATTR_PLUS_ONE, 0);
    a->function = part_attr_i(n, D0_ATTR_FUNCTION, 0);
    a->eps = part_attr_f(n, D0_ATTR_EPS, 0);
    a->scale = part_attr_f(n, D0_ATTR_SCALE, 0);
    a->factor = part_attr_f(n, D0_ATTR_FACTOR, 0);
    a->factor = a->factor != 0 ? a->factor : 1;
}

static int64_t last_dim(const struct d0_value *v, const int64_t dims[D0_N_DIMS])
{
    return part_dim(v->dims[v->n_dims - 1], dims);
}

static int64_t rows_of(const struct d0_value *v, const int64_t dims[D0_N_DIMS])
{
    int64_t n = part_dim(v->dims[0], dims);
    for (uint32_t i = 1; i + 1 < v->n_dims; i++)
        n *= part_dim(v->dims[i], dims);
    return n;
}

/* What depends on the step: sizes now, addresses in run. */
static void fill_sizes(struct kern_args *a, const struct cpu_node *n, const int64_t dims[D0_N_DIMS])
{
    a->tokens = part_dim(D0_DIM_TOKENS, dims);
    a->seqs = part_dim(D0_DIM_SEQS, dims);
    a->rows = part_dim(D0_DIM_ROWS, dims);
    a->table = part_dim(D0_DIM_PAGES, dims);
    a->n_rows = rows_of(&n->rows, dims);
    a->k = last_dim(&n->first, dims);
    a->n = n->n_outputs ? last_dim(&n->rows, dims) : 0;
    a->source_rows = rows_of(&n->first, dims);
}

static void dims_of(const struct d0_value *v, const int64_t dims[D0_N_DIMS], int64_t out[D0_MAX_DIMS])
{
    for (uint32_t i = 0; i < D0_MAX_DIMS; i++)
        out[i] = i < v->n_dims ? part_dim(v->dims[i], dims) : 1;
}

static void fill_dims(const struct d0_exec *x, const struct cpu_node *n, struct kern_args *a,
                      const int64_t dims[D0_N_DIMS])
{
    for (uint32_t i = 0; i < n->n_inputs; i++)
        if (n->inputs[i] != D0_NO_VALUE)
            dims_of(&x->slots[n->inputs[i]].value, dims, a->in_dims[i]);
    for (uint32_t i = 0; i < n->n_outputs; i++)
        dims_of(&x->slots[n->outputs[i]].value, dims, a->out_dims[i]);
}

static void compile_node(struct d0_exec *x, const struct d0_part *p, uint32_t i)
{
    const struct d0_node *n = &p->nodes[i];
    struct cpu_node *c = &x->nodes[i];
    uint32_t dtype;
    c->variant = pick(x->device, p, n, &dtype);
    c->n_inputs = n->n_inputs;
    c->n_outputs = n->n_outputs;
    memcpy(c->inputs, n->inputs, sizeof(c->inputs));
    memcpy(c->outputs, n->outputs, sizeof(c->outputs));
    for (uint32_t k = 0; k < n->n_inputs; k++)
        if (n->inputs[k] != D0_NO_VALUE) {
            const struct cpu_slot *s = &x->slots[n->inputs[k]];
            c->args.in_dtype[k] = s->value.dtype;
            c->args.in_form[k] = s->form.bytes ? &s->form : NULL;
        }
    c->first = p->values[n->inputs[0]];
    c->rows = n->n_outputs ? p->values[n->outputs[0]] : c->first;
    fill_attributes(&c->args, n);
    if (n->op == D0_OP_EMBED)
        c->args.vocab = p->values[n->inputs[1]].dims[0];
    if (n->op == D0_OP_RMS_NORM && !c->args.dim)
        c->args.dim = c->first.dims[1];
    if (n->op == D0_OP_ROPE)
        c->args.table_width = p->values[n->inputs[1]].dims[1];
    for (unsigned s = 0; s < 2; s++)
        c->state[s] = kern_state_input(n->op, s);
    if (n->op == D0_OP_KV_STORE || n->op == D0_OP_ATTENTION) {
        const struct d0_value *pages = &p->values[n->inputs[n->op == D0_OP_KV_STORE ? 2 : 1]];
        c->args.pages = pages->dims[0];
        c->args.page_tokens = pages->dims[2];
    }
    struct kern_args largest = c->args;
    fill_sizes(&largest, c, x->max_dims);
    fill_dims(x, c, &largest, x->max_dims);
    size_t scratch = c->variant->scratch ? c->variant->scratch(&largest) : 0;
    size_t shared = c->variant->shared ? c->variant->shared(&largest) : 0;
    x->kernel_bytes = scratch > x->kernel_bytes ? scratch : x->kernel_bytes;
    x->shared_bytes = shared > x->shared_bytes ? shared : x->shared_bytes;
}

static void fill_slots(struct d0_exec *x, const struct d0_part *p)
{
    for (uint32_t i = 0; i < p->n_values; i++) {
        struct cpu_slot *s = &x->slots[i];
        s->value = p->values[i];
        s->kind = s->value.kind;
        tensor_value_bytes(&s->value, x->max_dims, &s->bytes);
        (void)tensor_form_of(&s->value, &s->form); /* stays empty for what is plain */
    }
}

static int step_memory(struct d0_exec *x, const struct d0_part *p, struct d0_status *st)
{
    int rc = cpu_memory_get(x->device, p->scratch_bytes, &x->scratch, "scratch", st);
    if (rc != D0_OK)
        return rc;
    mem_account(x->device->mem, MEM_SCRATCH, (int64_t)x->scratch.bytes);
    for (uint32_t i = 0; i < x->n_slots; i++) {
        struct cpu_slot *s = &x->slots[i];
        if (s->kind == D0_VALUE_ACTIVATION || s->kind == D0_VALUE_OUTPUT)
            s->address = x->scratch.data + s->value.offset;
        else
            x->n_unbound++;
    }
    return D0_OK;
}

/* Of all threads together; sets the bytes of each. */
static int thread_bytes(struct d0_exec *x, uint64_t *bytes, struct d0_status *st)
{
    if (x->kernel_bytes > SIZE_MAX - 63 ||
        !mul_u64(ALIGN_UP(x->kernel_bytes, 64), pool_threads(x->device->pool), bytes))
        return status_set(st, D0_E_NOMEM, "cpu: kernels want %zu bytes of scratch per thread",
                          x->kernel_bytes);
    x->kernel_bytes = ALIGN_UP(x->kernel_bytes, 64);
    return D0_OK;
}

/* Scratch of the kernels: some for each thread, some for the node that runs. */
static int kernel_memory(struct d0_exec *x, struct d0_status *st)
{
    uint64_t bytes;
    int rc = thread_bytes(x, &bytes, st);
    if (rc == D0_OK)
        rc = cpu_memory_get(x->device, bytes, &x->kernel_scratch, "scratch of kernels", st);
    if (rc == D0_OK && x->shared_bytes)
        rc = cpu_memory_get(x->device, x->shared_bytes, &x->kernel_shared, "scratch of one kernel", st);
    if (x->kernel_scratch.data)
        mem_account(x->device->mem, MEM_KERNELS, (int64_t)x->kernel_scratch.bytes);
    if (x->kernel_shared.data)
        mem_account(x->device->mem, MEM_KERNELS, (int64_t)x->kernel_shared.bytes);
    for (uint32_t i = 0; rc == D0_OK && i < x->n_nodes; i++) {
        x->nodes[i].args.scratch = x->kernel_scratch.data;
        x->nodes[i].args.scratch_bytes = x->kernel_bytes;
        x->nodes[i].args.shared = x->kernel_shared.data;
    }
    return rc;
}

static int compile_nodes(struct d0_exec *x, const struct d0_part *p, bool skip, struct d0_status *st)
{
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        char reason[256] = "";
        if (node_supported(x->device, p, i, reason, sizeof(reason)))
            compile_node(x, p, i);
        else if (!skip)
            return status_set(st, D0_E_UNSUPPORTED, "cpu: node %u (operator %u, layer %d): %s", i,
                              p->nodes[i].op, p->nodes[i].layer, reason);
    }
    return D0_OK;
}

/* All but its memory. skip: leave out nodes that do not run here, so the result is for counting only. */
static int prepare(struct d0_device *d, const struct d0_part *p, bool skip, struct d0_exec **out,
                   struct d0_status *st)
{
    int rc = part_check(p, st);
    if (rc != D0_OK)
        return rc;
    struct d0_exec *x = calloc(1, sizeof(*x));
    if (!x)
        return status_set(st, D0_E_NOMEM, "cpu: out of memory");
    x->device = d;
    x->n_nodes = p->n_nodes;
    x->n_slots = p->n_values;
    memcpy(x->max_dims, p->max_dims, sizeof(x->max_dims));
    x->nodes = calloc(p->n_nodes + 1u, sizeof(*x->nodes));
    x->slots = calloc(p->n_values + 1u, sizeof(*x->slots));
    if (x->nodes && x->slots) {
        fill_slots(x, p);
        rc = compile_nodes(x, p, skip, st);
    } else {
        rc = status_set(st, D0_E_NOMEM, "cpu: out of memory");
    }
    *out = x;
    return rc;
}

int cpu_scratch_need(struct d0_device *d, const struct d0_part *p, uint64_t *bytes, struct d0_status *st)
{
    struct d0_exec *x = NULL;
    *bytes = 0;
    int rc = prepare(d, p, true, &x, st);
    if (rc == D0_OK)
        rc = thread_bytes(x, bytes, st);
    if (rc == D0_OK && !add_u64(*bytes, x->shared_bytes, bytes))
        rc = status_set(st, D0_E_NOMEM, "cpu: a kernel wants %zu bytes of scratch", x->shared_bytes);
    cpu_exec_destroy(d, x);
    return rc;
}

int cpu_compile(struct d0_device *d, const struct d0_part *p, struct d0_exec **out, struct d0_status *st)
{
    struct d0_exec *x = NULL;
    int rc = prepare(d, p, false, &x, st);
    if (rc == D0_OK)
        rc = step_memory(x, p, st);
    if (rc == D0_OK)
        rc = kernel_memory(x, st);
    if (rc != D0_OK) {
        cpu_exec_destroy(d, x);
        return rc;
    }
    *out = x;
    return D0_OK;
}

void cpu_exec_destroy(struct d0_device *d, struct d0_exec *x)
{
    if (!x)
        return;
    const struct {
        struct d0_buffer *b;
        enum mem_tag tag;
    } held[] = {
        {&x->scratch, MEM_SCRATCH}, {&x->kernel_scratch, MEM_KERNELS}, {&x->kernel_shared, MEM_KERNELS}};
    for (size_t i = 0; i < ARRAY_LEN(held); i++)
        if (held[i].b->data) {
            mem_account(d->mem, held[i].tag, -(int64_t)held[i].b->bytes);
            cpu_memory_put(d, held[i].b);
        }
    free(x->nodes);
    free(x->slots);
    free(x);
}

int cpu_bind(struct d0_exec *x, uint32_t value, struct d0_buffer *b, uint64_t offset, struct d0_status *st)
{
    if (value >= x->n_slots || x->slots[value].kind == D0_VALUE_ACTIVATION ||
        x->slots[value].kind == D0_VALUE_OUTPUT)
        return status_set(st, D0_E_INVALID, "cpu: value %u cannot be bound", value);
    struct cpu_slot *s = &x->slots[value];
    if (!b || offset % 64 || offset > b->bytes || s->bytes > b->bytes - offset)
        return status_set(st, D0_E_INVALID, "cpu: value %u needs %llu bytes at %llu, the buffer has %llu",
                          value, (unsigned long long)s->bytes, (unsigned long long)offset,
                          (unsigned long long)(b ? b->bytes : 0));
    x->n_unbound -= s->address == NULL;
    s->address = b->data + offset;
    return D0_OK;
}

/* ---- running ------------------------------------------------------------------------------------------- */

struct launch {
    kern_fn run;
    struct kern_args args;
};

static void run_range(void *context, size_t first, size_t last, unsigned thread)
{
    const struct launch *l = context;
    l->run(&l->args, first, last, thread);
}

static double work_of(const struct cpu_node *n, const struct kern_args *a)
{
    double rows = (double)a->n_rows;
    switch (n->variant->op) {
    case D0_OP_LINEAR:
    case D0_OP_QKV: /* of one piece: what would run alone by itself runs alone */
    case D0_OP_GATE_UP:
        return rows * (double)a->k * (double)a->n;
    case D0_OP_GROUP_LINEAR:
        return rows * (double)a->in_dims[1][0] * (double)a->in_dims[1][1];
    case D0_OP_EXPERTS:
        return rows * (double)a->k * (double)a->attr[D0_ATTR_INTER].i;
    case D0_OP_MLA:
    case D0_OP_DELTA_RULE:
    case D0_OP_POOL_ATTENTION:
    case D0_OP_INDEX_TOPK:
        return rows * (double)a->k * SMALL_WORK; /* grows with the context or the state: always worth it */
    case D0_OP_ATTENTION:
        return rows * (double)a->k * (double)a->table * (double)a->page_tokens;
    case D0_OP_SEGMENT_ATTENTION:
        return rows * (double)a->k * (double)a->in_dims[1][0];
    case D0_OP_EMBED:
    case D0_OP_POSITION_EMBED:
    case D0_OP_ROPE_TABLE:
        return rows * (double)a->n;
    default:
        return rows * (double)a->k;
    }
}

static int run_node(struct d0_exec *x, const struct cpu_node *n, struct launch *l, struct d0_status *st)
{
    struct kern_args *a = &l->args;
    *a = n->args;
    l->run = n->variant->run;
    for (uint32_t i = 0; i < n->n_inputs; i++)
        a->in[i] = n->inputs[i] == D0_NO_VALUE ? NULL : x->slots[n->inputs[i]].address;
    for (uint32_t i = 0; i < n->n_outputs; i++)
        a->out[i] = x->slots[n->outputs[i]].address;
    for (unsigned s = 0; s < 2; s++)
        if (n->state[s] >= 0)
            a->state[s] = x->slots[n->inputs[n->state[s]]].address;
    fill_sizes(a, n, x->dims);
    fill_dims(x, n, a, x->dims);
    if ((n->variant->scratch && n->variant->scratch(a) > x->kernel_bytes) ||
        (n->variant->shared && n->variant->shared(a) > x->shared_bytes))
        return status_set(st, D0_E_DEVICE, "cpu: %s wants more scratch for a smaller step", n->variant->name);
    size_t grain = n->variant->grain ? n->variant->grain : 1;
    bool alone = work_of(n, a) < SMALL_WORK;
    for (a->phase = 0; a->phase < kern_phases(n->variant); a->phase++) {
        size_t items = n->variant->items(a);
        if (items > 0 && (items <= grain || alone))
            l->run(a, 0, items, 0);
        else if (items > 0)
            pool_run(x->device->pool, items, grain, run_range, l);
    }
    return D0_OK;
}

int cpu_run(struct d0_queue *q, struct d0_exec *x, const struct d0_step_dims *dims, struct d0_status *st)
{
    (void)q;
    int rc = part_dims_check(x->max_dims, dims, st);
    if (rc != D0_OK)
        return rc;
    for (uint32_t i = 0; x->n_unbound && i < x->n_slots; i++)
        if (!x->slots[i].address)
            return status_set(st, D0_E_INVALID, "cpu: value %u is not bound (%u are not)", i, x->n_unbound);
    memcpy(x->dims, dims->dims, sizeof(x->dims));
    struct launch l;
    for (uint32_t i = 0; rc == D0_OK && i < x->n_nodes; i++)
        rc = run_node(x, &x->nodes[i], &l, st);
    return rc;
}

int cpu_read_output(struct d0_queue *q, struct d0_exec *x, uint32_t value, uint64_t offset, void *host,
                    uint64_t bytes, struct d0_status *st)
{
    (void)q;
    if (value >= x->n_slots || x->slots[value].kind != D0_VALUE_OUTPUT)
        return status_set(st, D0_E_INVALID, "cpu: value %u is not an output", value);
    uint64_t have = 0;
    tensor_value_bytes(&x->slots[value].value, x->dims, &have);
    if (offset > have || bytes > have - offset)
        return status_set(st, D0_E_INVALID, "cpu: %llu bytes at %llu of output %u, which has %llu",
                          (unsigned long long)bytes, (unsigned long long)offset, value,
                          (unsigned long long)have);
    if (bytes)
        memcpy(host, x->slots[value].address + offset, bytes);
    return D0_OK;
}
