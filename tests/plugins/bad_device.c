/* SPDX-License-Identifier: Apache-2.0
 *
 * A device that opens, has memory that works, and then fails: no operator is supported and nothing compiles
 * or runs. Argument "open" lets open fail, "slow" lets every wait for the queue miss its deadline, "memory"
 * refuses every buffer, "silent" fails without a message. Built with LACKS=NAME it says that it runs every
 * operator but that one. Built with HOLDS=BYTES it is another device: every operator "runs", every output is
 * zero, and a compiled part holds that many bytes; with TELLS it says so before.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "day0/device.h"

struct d0_device {
    char fault[16];
    uint64_t used;
};

struct d0_queue {
    struct d0_device *device;
};

struct d0_buffer {
    uint64_t bytes;
    char *data;
};

struct d0_event {
    char nothing;
};

static int fail(const struct d0_device *d, int code, const char *what, struct d0_status *st)
{
    if (st && !(d && !strcmp(d->fault, "silent")))
        snprintf(st->message, sizeof st->message, "bad device: %s", what);
    return code;
}

static int bad_open(const struct d0_device_options *o, struct d0_device **out, struct d0_status *st)
{
    if (o->arguments && !strcmp(o->arguments, "open"))
        return fail(NULL, D0_E_DEVICE, "the card does not answer", st);
    struct d0_device *d = calloc(1, sizeof *d);
    if (!d)
        return D0_E_NOMEM;
    snprintf(d->fault, sizeof d->fault, "%s", o->arguments ? o->arguments : "");
    *out = d;
    return D0_OK;
}

static void bad_close(struct d0_device *d)
{
    free(d);
}

static int bad_info(struct d0_device *d, struct d0_device_info *out)
{
    *out = (struct d0_device_info){
        .size = sizeof *out, .abi_version = D0_DEVICE_ABI_VERSION, .memory_used = d->used, .computes = 1};
    snprintf(out->name, sizeof out->name, "bad");
    snprintf(out->description, sizeof out->description, "fails on purpose");
    return D0_OK;
}

static int bad_buffer_create(struct d0_device *d, uint64_t bytes, struct d0_buffer **out,
                             struct d0_status *st)
{
    if (!strcmp(d->fault, "memory"))
        return fail(d, D0_E_NOMEM, "no memory on the card", st);
    struct d0_buffer *b = malloc(sizeof *b);
    char *data = malloc(bytes ? bytes : 1);
    if (!b || !data) {
        free(b);
        free(data);
        return fail(d, D0_E_NOMEM, "out of memory", st);
    }
    *b = (struct d0_buffer){bytes, data};
    d->used += bytes;
    *out = b;
    return D0_OK;
}

static void bad_buffer_destroy(struct d0_device *d, struct d0_buffer *b)
{
    d->used -= b->bytes;
    free(b->data);
    free(b);
}

static int bad_queue_create(struct d0_device *d, struct d0_queue **out, struct d0_status *st)
{
    (void)st;
    struct d0_queue *q = malloc(sizeof *q);
    if (!q)
        return D0_E_NOMEM;
    q->device = d;
    *out = q;
    return D0_OK;
}

static void bad_queue_destroy(struct d0_device *d, struct d0_queue *q)
{
    (void)d;
    free(q);
}

static int bad_queue_wait(struct d0_queue *q, uint64_t timeout_ns, struct d0_status *st)
{
    (void)timeout_ns;
    return strcmp(q->device->fault, "slow") ? D0_OK
                                            : fail(q->device, D0_E_TIMEOUT, "the queue is not done", st);
}

static int bad_event_create(struct d0_device *d, struct d0_event **out, struct d0_status *st)
{
    (void)out;
    return fail(d, D0_E_UNSUPPORTED, "has no events", st);
}

static void bad_event_destroy(struct d0_device *d, struct d0_event *event)
{
    (void)d, (void)event;
}

static int bad_event_record(struct d0_queue *q, struct d0_event *event, struct d0_status *st)
{
    (void)event;
    return fail(q->device, D0_E_UNSUPPORTED, "has no events", st);
}

static int bad_event_wait(struct d0_event *event, uint64_t timeout_ns, struct d0_status *st)
{
    (void)event, (void)timeout_ns;
    return fail(NULL, D0_E_UNSUPPORTED, "has no events", st);
}

static int bad_copy_in(struct d0_queue *q, struct d0_buffer *b, uint64_t offset, const void *host,
                       uint64_t bytes, struct d0_status *st)
{
    if (offset > b->bytes || bytes > b->bytes - offset)
        return fail(q->device, D0_E_INVALID, "copy outside of a buffer", st);
    memcpy(b->data + offset, host, bytes);
    return D0_OK;
}

static int bad_copy_out(struct d0_queue *q, const struct d0_buffer *b, uint64_t offset, void *host,
                        uint64_t bytes, struct d0_status *st)
{
    if (offset > b->bytes || bytes > b->bytes - offset)
        return fail(q->device, D0_E_INVALID, "copy outside of a buffer", st);
    memcpy(host, b->data + offset, bytes);
    return D0_OK;
}

static int bad_supports(struct d0_device *d, const struct d0_part *part, uint32_t node, char *reason,
                        size_t reason_bytes)
{
#ifdef HOLDS
    (void)d, (void)part, (void)node, (void)reason, (void)reason_bytes;
    return 1;
#endif
#ifdef LACKS
    (void)d;
    if (part->nodes[node].op != LACKS)
        return 1;
    snprintf(reason, reason_bytes, "this device has no such operator");
    return 0;
#endif
    (void)d, (void)part, (void)node;
    snprintf(reason, reason_bytes, "this device runs nothing");
    return 0;
}

#ifdef HOLDS
struct d0_exec {
    char *held;
};

static int bad_compile(struct d0_device *d, const struct d0_part *part, struct d0_exec **out,
                       struct d0_status *st)
{
    (void)part;
    struct d0_exec *x = malloc(sizeof *x);
    char *held = malloc(HOLDS);
    if (!x || !held) {
        free(x);
        free(held);
        return fail(d, D0_E_NOMEM, "out of memory", st);
    }
    memset(held, 1, HOLDS); /* resident */
    x->held = held;
    *out = x;
    return D0_OK;
}

static void bad_exec_destroy(struct d0_device *d, struct d0_exec *x)
{
    (void)d;
    free(x->held);
    free(x);
}

static int bad_bind(struct d0_exec *x, uint32_t value, struct d0_buffer *b, uint64_t offset,
                    struct d0_status *st)
{
    (void)x, (void)value, (void)b, (void)offset, (void)st;
    return D0_OK;
}

static int bad_run(struct d0_queue *q, struct d0_exec *x, const struct d0_step_dims *dims,
                   struct d0_status *st)
{
    (void)q, (void)x, (void)dims, (void)st;
    return D0_OK;
}

static int bad_read_output(struct d0_queue *q, struct d0_exec *x, uint32_t value, uint64_t offset, void *host,
                           uint64_t bytes, struct d0_status *st)
{
    (void)q, (void)x, (void)value, (void)offset, (void)st;
    memset(host, 0, bytes);
    return D0_OK;
}
#else
static int bad_compile(struct d0_device *d, const struct d0_part *part, struct d0_exec **out,
                       struct d0_status *st)
{
    (void)part, (void)out;
    return fail(d, D0_E_UNSUPPORTED, "this device runs nothing", st);
}

static void bad_exec_destroy(struct d0_device *d, struct d0_exec *x)
{
    (void)d, (void)x;
}

static int bad_bind(struct d0_exec *x, uint32_t value, struct d0_buffer *b, uint64_t offset,
                    struct d0_status *st)
{
    (void)x, (void)value, (void)b, (void)offset;
    return fail(NULL, D0_E_INVALID, "there is nothing to bind to", st);
}

static int bad_run(struct d0_queue *q, struct d0_exec *x, const struct d0_step_dims *dims,
                   struct d0_status *st)
{
    (void)x, (void)dims;
    return fail(q->device, D0_E_DEVICE, "there is nothing to run", st);
}

static int bad_read_output(struct d0_queue *q, struct d0_exec *x, uint32_t value, uint64_t offset, void *host,
                           uint64_t bytes, struct d0_status *st)
{
    (void)x, (void)value, (void)offset, (void)host, (void)bytes;
    return fail(q->device, D0_E_INVALID, "there is no output", st);
}
#endif

#ifdef TELLS
static int bad_scratch_need(struct d0_device *d, const struct d0_part *part, uint64_t *bytes,
                            struct d0_status *st)
{
    (void)d, (void)part, (void)st;
    *bytes = HOLDS;
    return D0_OK;
}
#define API_BYTES sizeof(struct d0_device_api)
#else
#define API_BYTES                                                                                            \
    D0_DEVICE_API_BYTES_LEAST /* a table from before scratch_need: what follows is not to be read */
#endif

__attribute__((visibility("default"))) const struct d0_device_api *
d0_device_plugin(uint32_t host_abi_version);

const struct d0_device_api *d0_device_plugin(uint32_t host_abi_version)
{
    static const struct d0_device_api api = {
        .size = API_BYTES,
        .abi_version = D0_DEVICE_ABI_VERSION,
        .name = "bad",
        .open = bad_open,
        .close = bad_close,
        .info = bad_info,
        .buffer_create = bad_buffer_create,
        .buffer_destroy = bad_buffer_destroy,
        .queue_create = bad_queue_create,
        .queue_destroy = bad_queue_destroy,
        .queue_wait = bad_queue_wait,
        .event_create = bad_event_create,
        .event_destroy = bad_event_destroy,
        .event_record = bad_event_record,
        .event_wait = bad_event_wait,
        .copy_in = bad_copy_in,
        .copy_out = bad_copy_out,
        .supports = bad_supports,
        .compile = bad_compile,
        .exec_destroy = bad_exec_destroy,
        .bind = bad_bind,
        .run = bad_run,
        .read_output = bad_read_output,
#ifdef TELLS
        .scratch_need = bad_scratch_need,
#endif
    };
    return host_abi_version == D0_DEVICE_ABI_VERSION ? &api : NULL;
}
