/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: a device that computes nothing. It keeps count of bytes, knows which bytes of a buffer were ever
 * written, and checks every part and every run as a real one would, so that a graph far beyond this machine
 * can be planned, loaded and stepped for its errors. Everything read back is zero. Refuses: to hold contents;
 * a buffer of a terabyte costs a few bytes.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "dev/builtin.h"
#include "dev/part_check.h"
#include "kern/kern.h"
#include "tensor/tensor.h"

#define MAX_RANGES 65536u

struct range {
    uint64_t begin, end;
};

struct d0_device {
    uint64_t used, peak, limit;
};

struct d0_queue {
    uint64_t n_submitted;
};

struct d0_event {
    uint64_t at; /* submissions of its queue when it was recorded; 0: never */
};

struct d0_buffer {
    uint64_t bytes;
    struct range *written; /* ascending, disjoint, not touching */
    size_t n_written, capacity;
    bool wrapped;
};

struct null_slot {
    struct d0_value value;
    struct d0_buffer *buffer;
    uint64_t offset;
};

struct d0_exec {
    struct null_slot *slots;
    struct d0_node *nodes;
    uint32_t n_slots, n_nodes;
    uint64_t scratch_bytes, n_runs;
    int64_t max_dims[D0_N_DIMS], dims[D0_N_DIMS];
};

/* ---- device and memory --------------------------------------------------------------------------------- */

static int null_open(const struct d0_device_options *o, struct d0_device **out, struct d0_status *st)
{
    if (!o || o->size < sizeof(*o))
        return status_set(st, D0_E_INVALID, "null: the options are of another version");
    struct d0_device *d = calloc(1, sizeof(*d));
    if (!d)
        return status_set(st, D0_E_NOMEM, "null: out of memory");
    d->limit = o->memory_limit;
    *out = d;
    return D0_OK;
}

static void null_close(struct d0_device *d)
{
    free(d);
}

static int null_info(struct d0_device *d, struct d0_device_info *out)
{
    if (out->size < sizeof(*out))
        return D0_E_INVALID;
    *out = (struct d0_device_info){.size = sizeof(*out),
                                   .abi_version = D0_DEVICE_ABI_VERSION,
                                   .memory_total = d->limit,
                                   .memory_free = d->limit ? d->limit - d->used : 0,
                                   .memory_used = d->used,
                                   .memory_peak = d->peak,
                                   .exact = 1};
    snprintf(out->name, sizeof(out->name), "null");
    snprintf(out->description, sizeof(out->description), "computes nothing, tracks memory and order");
    snprintf(out->variant, sizeof(out->variant), "null");
    return D0_OK;
}

static int take(struct d0_device *d, uint64_t bytes, const char *what, struct d0_status *st)
{
    uint64_t used;
    if (!add_u64(d->used, bytes, &used) || (d->limit && used > d->limit)) {
        char wanted[32], in_use[32], limit[32];
        return status_set(st, D0_E_NOMEM, "null: %s of %s wanted, %s in use, limit %s", what,
                          format_bytes(bytes, wanted, sizeof(wanted)),
                          format_bytes(d->used, in_use, sizeof(in_use)),
                          format_bytes(d->limit, limit, sizeof(limit)));
    }
    d->used = used;
    d->peak = used > d->peak ? used : d->peak;
    return D0_OK;
}

static int null_buffer_create(struct d0_device *d, uint64_t bytes, struct d0_buffer **out,
                              struct d0_status *st)
{
    int rc = take(d, bytes, "a buffer", st);
    if (rc != D0_OK)
        return rc;
    struct d0_buffer *b = calloc(1, sizeof(*b));
    if (!b) {
        d->used -= bytes;
        return status_set(st, D0_E_NOMEM, "null: out of memory");
    }
    b->bytes = bytes;
    *out = b;
    return D0_OK;
}

static void null_buffer_destroy(struct d0_device *d, struct d0_buffer *b)
{
    if (!b)
        return;
    if (!b->wrapped)
        d->used -= b->bytes;
    free(b->written);
    free(b);
}

/* Adds [begin, end) and joins what touches it. */
static int mark_written(struct d0_buffer *b, uint64_t begin, uint64_t end, struct d0_status *st)
{
    size_t at = 0;
    while (at < b->n_written && b->written[at].end < begin)
        at++;
    size_t last = at;
    for (; last < b->n_written && b->written[last].begin <= end; last++) {
        begin = b->written[last].begin < begin ? b->written[last].begin : begin;
        end = b->written[last].end > end ? b->written[last].end : end;
    }
    if (last == at) {
        if (b->n_written >= MAX_RANGES ||
            vec_reserve((void **)&b->written, &b->capacity, b->n_written + 1, sizeof(*b->written)) != ERR_OK)
            return status_set(st, D0_E_NOMEM, "null: a buffer written in more than %u separate pieces",
                              MAX_RANGES);
        memmove(&b->written[at + 1], &b->written[at], (b->n_written - at) * sizeof(*b->written));
        b->n_written++;
    } else {
        memmove(&b->written[at + 1], &b->written[last], (b->n_written - last) * sizeof(*b->written));
        b->n_written -= last - at - 1;
    }
    b->written[at] = (struct range){begin, end};
    return D0_OK;
}

static int null_buffer_wrap(struct d0_device *d, void *host, uint64_t bytes, struct d0_buffer **out,
                            struct d0_status *st)
{
    (void)d;
    if (!host)
        return status_set(st, D0_E_INVALID, "null: no memory to wrap");
    struct d0_buffer *b = calloc(1, sizeof(*b));
    if (!b)
        return status_set(st, D0_E_NOMEM, "null: out of memory");
    b->bytes = bytes;
    b->wrapped = true;
    int rc = mark_written(b, 0, bytes, st);
    if (rc != D0_OK) {
        null_buffer_destroy(d, b);
        return rc;
    }
    *out = b;
    return D0_OK;
}

/* First byte of [begin, end) that nobody wrote; end if there is none. */
static uint64_t first_unwritten(const struct d0_buffer *b, uint64_t begin, uint64_t end)
{
    for (size_t i = 0; i < b->n_written && begin < end; i++)
        if (b->written[i].begin <= begin && b->written[i].end > begin)
            begin = b->written[i].end;
    return begin < end ? begin : end;
}

/* ---- order and copies ---------------------------------------------------------------------------------- */

static int null_queue_create(struct d0_device *d, struct d0_queue **out, struct d0_status *st)
{
    (void)d;
    *out = calloc(1, sizeof(**out));
    return *out ? D0_OK : status_set(st, D0_E_NOMEM, "null: out of memory");
}

static void null_queue_destroy(struct d0_device *d, struct d0_queue *q)
{
    (void)d;
    free(q);
}

static int null_queue_wait(struct d0_queue *q, uint64_t timeout_ns, struct d0_status *st)
{
    (void)q, (void)timeout_ns, (void)st;
    return D0_OK;
}

static int null_event_create(struct d0_device *d, struct d0_event **out, struct d0_status *st)
{
    (void)d;
    *out = calloc(1, sizeof(**out));
    return *out ? D0_OK : status_set(st, D0_E_NOMEM, "null: out of memory");
}

static void null_event_destroy(struct d0_device *d, struct d0_event *event)
{
    (void)d;
    free(event);
}

static int null_event_record(struct d0_queue *q, struct d0_event *event, struct d0_status *st)
{
    (void)st;
    event->at = ++q->n_submitted;
    return D0_OK;
}

static int null_event_wait(struct d0_event *event, uint64_t timeout_ns, struct d0_status *st)
{
    (void)timeout_ns;
    return event->at ? D0_OK
                     : status_set(st, D0_E_INVALID, "null: waiting for an event that was never recorded");
}

static int check_range(const struct d0_buffer *b, uint64_t offset, uint64_t bytes, struct d0_status *st)
{
    if (offset > b->bytes || bytes > b->bytes - offset)
        return status_set(st, D0_E_INVALID,
                          "null: copy of %" PRIu64 " bytes at %" PRIu64 ", the buffer has %" PRIu64, bytes,
                          offset, b->bytes);
    return D0_OK;
}

static int null_copy_in(struct d0_queue *q, struct d0_buffer *b, uint64_t offset, const void *host,
                        uint64_t bytes, struct d0_status *st)
{
    (void)host;
    q->n_submitted++;
    int rc = check_range(b, offset, bytes, st);
    return rc == D0_OK && bytes ? mark_written(b, offset, offset + bytes, st) : rc;
}

static int null_copy_out(struct d0_queue *q, const struct d0_buffer *b, uint64_t offset, void *host,
                         uint64_t bytes, struct d0_status *st)
{
    q->n_submitted++;
    int rc = check_range(b, offset, bytes, st);
    if (rc != D0_OK || bytes == 0)
        return rc;
    uint64_t at = first_unwritten(b, offset, offset + bytes);
    if (at < offset + bytes)
        return status_set(st, D0_E_INVALID,
                          "null: byte %" PRIu64 " of a buffer is read before it was written", at);
    memset(host, 0, bytes);
    return D0_OK;
}

/* States may be written by runs, which are not tracked for them: they count as written whole. */
static int null_copy(struct d0_queue *q, struct d0_buffer *to, uint64_t to_offset,
                     const struct d0_buffer *from, uint64_t from_offset, uint64_t bytes, struct d0_status *st)
{
    q->n_submitted++;
    if (to == from)
        return status_set(st, D0_E_INVALID, "null: a copy from a buffer to itself");
    int rc = check_range(from, from_offset, bytes, st);
    if (rc == D0_OK)
        rc = check_range(to, to_offset, bytes, st);
    return rc == D0_OK && bytes ? mark_written(to, to_offset, to_offset + bytes, st) : rc;
}

/* ---- parts --------------------------------------------------------------------------------------------- */

static int null_supports(struct d0_device *d, const struct d0_part *p, uint32_t node, char *reason,
                         size_t reason_bytes)
{
    (void)d;
    struct d0_status st = {.size = sizeof(st)};
    if (reason_bytes)
        reason[0] = '\0';
    if (part_check(p, &st) != D0_OK) {
        snprintf(reason, reason_bytes, "%s", st.message);
        return 0;
    }
    return part_node_check(p, node, reason, reason_bytes);
}

static int null_scratch_need(struct d0_device *d, const struct d0_part *p, uint64_t *bytes,
                             struct d0_status *st)
{
    (void)d;
    *bytes = 0;
    return part_check(p, st);
}

static void null_exec_destroy(struct d0_device *d, struct d0_exec *x)
{
    if (!x)
        return;
    d->used -= x->scratch_bytes;
    free(x->slots);
    free(x->nodes);
    free(x);
}

static int null_compile(struct d0_device *d, const struct d0_part *p, struct d0_exec **out,
                        struct d0_status *st)
{
    int rc = part_check(p, st);
    for (uint32_t i = 0; rc == D0_OK && i < p->n_nodes; i++) {
        char reason[256] = "";
        if (!part_node_check(p, i, reason, sizeof(reason)))
            rc = status_set(st, D0_E_UNSUPPORTED, "null: node %u (operator %u, layer %d): %s", i,
                            p->nodes[i].op, p->nodes[i].layer, reason);
    }
    if (rc != D0_OK)
        return rc;
    struct d0_exec *x = calloc(1, sizeof(*x));
    if (!x)
        return status_set(st, D0_E_NOMEM, "null: out of memory");
    x->slots = calloc(p->n_values + 1u, sizeof(*x->slots));
    x->nodes = calloc(p->n_nodes + 1u, sizeof(*x->nodes));
    rc = x->slots && x->nodes ? take(d, p->scratch_bytes, "scratch", st)
                              : status_set(st, D0_E_NOMEM, "null: out of memory");
    x->scratch_bytes = rc == D0_OK ? p->scratch_bytes : 0;
    if (rc != D0_OK) {
        null_exec_destroy(d, x);
        return rc;
    }
    x->n_slots = p->n_values;
    x->n_nodes = p->n_nodes;
    memcpy(x->max_dims, p->max_dims, sizeof(x->max_dims));
    for (uint32_t i = 0; i < p->n_values; i++)
        x->slots[i].value = p->values[i];
    if (p->n_nodes)
        memcpy(x->nodes, p->nodes, p->n_nodes * sizeof(*x->nodes));
    *out = x;
    return D0_OK;
}

static bool in_scratch(const struct null_slot *s)
{
    return s->value.kind == D0_VALUE_ACTIVATION || s->value.kind == D0_VALUE_OUTPUT;
}

static int null_bind(struct d0_exec *x, uint32_t value, struct d0_buffer *b, uint64_t offset,
                     struct d0_status *st)
{
    if (value >= x->n_slots || in_scratch(&x->slots[value]))
        return status_set(st, D0_E_INVALID, "null: value %u cannot be bound", value);
    uint64_t bytes = 0;
    tensor_value_bytes(&x->slots[value].value, x->max_dims, &bytes);
    if (!b || offset % 64 || offset > b->bytes || bytes > b->bytes - offset)
        return status_set(st, D0_E_INVALID,
                          "null: value %u needs %" PRIu64 " bytes at %" PRIu64 ", the buffer has %" PRIu64,
                          value, bytes, offset, b ? b->bytes : 0);
    x->slots[value].buffer = b;
    x->slots[value].offset = offset;
    return D0_OK;
}

static int check_read(const struct d0_exec *x, uint32_t node, uint32_t id, struct d0_status *st)
{
    const struct null_slot *s = &x->slots[id];
    uint64_t bytes = 0;
    tensor_value_bytes(&s->value, x->dims, &bytes);
    uint64_t end = s->offset + bytes, at = first_unwritten(s->buffer, s->offset, end);
    if (at < end)
        return status_set(st, D0_E_INVALID,
                          "null: node %u reads value %u before bytes from %" PRIu64 " on were written", node,
                          id, at - s->offset);
    return D0_OK;
}

static int run_node(struct d0_exec *x, uint32_t i, struct d0_status *st)
{
    const struct d0_node *n = &x->nodes[i];
    for (uint32_t k = 0; k < n->n_inputs; k++) {
        uint32_t id = n->inputs[k];
        if (id == D0_NO_VALUE || in_scratch(&x->slots[id]))
            continue;
        struct null_slot *s = &x->slots[id];
        int rc;
        bool written = (int)k == kern_state_input(n->op, 0) || (int)k == kern_state_input(n->op, 1);
        if (s->value.kind == D0_VALUE_STATE && written) {
            uint64_t bytes = 0;
            tensor_value_bytes(&s->value, x->dims, &bytes);
            rc = bytes ? mark_written(s->buffer, s->offset, s->offset + bytes, st) : D0_OK;
        } else {
            rc = check_read(x, i, id, st);
        }
        if (rc != D0_OK)
            return rc;
    }
    return D0_OK;
}

static int null_run(struct d0_queue *q, struct d0_exec *x, const struct d0_step_dims *dims,
                    struct d0_status *st)
{
    q->n_submitted++;
    int rc = part_dims_check(x->max_dims, dims, st);
    if (rc != D0_OK)
        return rc;
    for (uint32_t i = 0; i < x->n_slots; i++)
        if (!in_scratch(&x->slots[i]) && !x->slots[i].buffer)
            return status_set(st, D0_E_INVALID, "null: value %u is not bound", i);
    memcpy(x->dims, dims->dims, sizeof(x->dims));
    for (uint32_t i = 0; rc == D0_OK && i < x->n_nodes; i++)
        rc = run_node(x, i, st);
    x->n_runs += rc == D0_OK;
    return rc;
}

static int null_read_output(struct d0_queue *q, struct d0_exec *x, uint32_t value, uint64_t offset,
                            void *host, uint64_t bytes, struct d0_status *st)
{
    q->n_submitted++;
    if (value >= x->n_slots || x->slots[value].value.kind != D0_VALUE_OUTPUT)
        return status_set(st, D0_E_INVALID, "null: value %u is not an output", value);
    if (!x->n_runs)
        return status_set(st, D0_E_INVALID, "null: output %u is read before any run", value);
    uint64_t have = 0;
    tensor_value_bytes(&x->slots[value].value, x->dims, &have);
    if (offset > have || bytes > have - offset)
        return status_set(st, D0_E_INVALID,
                          "null: %" PRIu64 " bytes at %" PRIu64 " of output %u, which has %" PRIu64, bytes,
                          offset, value, have);
    if (bytes)
        memset(host, 0, bytes);
    return D0_OK;
}

const struct d0_device_api *null_device_api(void)
{
    static const struct d0_device_api api = {
        .size = sizeof(api),
        .abi_version = D0_DEVICE_ABI_VERSION,
        .name = "null",
        .open = null_open,
        .close = null_close,
        .info = null_info,
        .buffer_create = null_buffer_create,
        .buffer_destroy = null_buffer_destroy,
        .buffer_wrap = null_buffer_wrap,
        .queue_create = null_queue_create,
        .queue_destroy = null_queue_destroy,
        .queue_wait = null_queue_wait,
        .event_create = null_event_create,
        .event_destroy = null_event_destroy,
        .event_record = null_event_record,
        .event_wait = null_event_wait,
        .copy_in = null_copy_in,
        .copy_out = null_copy_out,
        .copy = null_copy,
        .supports = null_supports,
        .compile = null_compile,
        .exec_destroy = null_exec_destroy,
        .bind = null_bind,
        .run = null_run,
        .read_output = null_read_output,
        .scratch_need = null_scratch_need,
    };
    return &api;
}
