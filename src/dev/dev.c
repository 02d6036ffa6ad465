/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the list of devices and the translation of d0_status into struct err.
 * Refuses: policy; it adds nothing to what the device said but the device's name.
 */
#include "dev/dev.h"

#include <stdio.h>
#include <string.h>

#include "base/plugin.h"
#include "dev/builtin.h"

static int code_of(int d0)
{
    switch (d0) {
    case D0_E_NOMEM:
        return ERR_NOMEM;
    case D0_E_UNSUPPORTED:
        return ERR_UNSUPPORTED;
    case D0_E_INVALID:
        return ERR_INVALID;
    case D0_E_TIMEOUT:
        return ERR_TIMEOUT;
    default:
        return ERR_DEVICE;
    }
}

/* A plugin may have filled the message without a terminator, or not at all, or returned a positive number. */
static int translate(const struct dev *d, int rc, struct d0_status *st, const char *doing, struct err *e)
{
    if (rc == D0_OK)
        return ERR_OK;
    st->message[sizeof(st->message) - 1] = '\0';
    if (st->message[0])
        return err_set(e, code_of(rc), "%s", st->message);
    return err_set(e, code_of(rc), "device %s: %s failed with code %d", d->api->name, doing, rc);
}

#define STATUS_INIT                                                                                          \
    {                                                                                                        \
        .size = sizeof(struct d0_status)                                                                     \
    }

size_t dev_names(const char *const **out)
{
    static const char *const names[] = {"cpu", "null"};
    *out = names;
    return ARRAY_LEN(names);
}

bool dev_name_is_cpu(const char *name)
{
    return !name || !strcmp(name, "cpu");
}

static int find_device(struct dev *d, const char *name, struct err *e)
{
    if (dev_name_is_cpu(name))
        d->api = cpu_device_api();
    else if (!strcmp(name, "null"))
        d->api = null_device_api();
    else if (strchr(name, '/'))
        return dev_plugin_load(name, &d->plugin, &d->api, e);
    else {
        err_set(e, ERR_INVALID, "unknown device %s", name);
        err_hint(e, "known are cpu and null; a plugin is named by its path, as in ./libcard.so");
        return ERR_INVALID;
    }
    return ERR_OK;
}

int dev_open(struct dev *out, const struct dev_options *o, struct err *e)
{
    struct dev d = {.mem = o->mem};
    int rc = find_device(&d, o->name, e);
    if (rc != ERR_OK)
        return rc;
    char arguments[64];
    struct d0_device_options options = {.size = sizeof(options),
                                        .n_threads = o->n_threads,
                                        .arguments = o->arguments,
                                        .memory_limit = o->memory_limit};
    d.host_memory = d.api == cpu_device_api();
    if (d.host_memory && o->isa) {
        snprintf(arguments, sizeof(arguments), "isa=%s", o->isa);
        options.arguments = arguments;
    }
    struct d0_status st = STATUS_INIT;
    rc = translate(&d, d.api->open(&options, &d.handle, &st), &st, "open", e);
    if (rc != ERR_OK) {
        plugin_unload(d.plugin);
        return rc;
    }
    if (d.host_memory)
        cpu_device_account(d.handle, o->mem);
    struct d0_device_info info;
    rc = dev_info(&d, &info, e);
    if (rc != ERR_OK) {
        dev_close(&d);
        return rc;
    }
    d.computes = info.computes != 0;
    *out = d;
    return ERR_OK;
}

void dev_close(struct dev *d)
{
    if (!d || !d->api)
        return;
    d->api->close(d->handle);
    plugin_unload(d->plugin);
    memset(d, 0, sizeof(*d));
}

int dev_info(struct dev *d, struct d0_device_info *out, struct err *e)
{
    memset(out, 0, sizeof(*out));
    out->size = sizeof(*out);
    int rc = d->api->info(d->handle, out);
    if (rc != D0_OK)
        return err_set(e, code_of(rc), "device %s does not describe itself (code %d)", d->api->name, rc);
    out->name[sizeof(out->name) - 1] = '\0';
    out->description[sizeof(out->description) - 1] = '\0';
    out->variant[sizeof(out->variant) - 1] = '\0';
    return ERR_OK;
}

int dev_buffer(struct dev *d, uint64_t bytes, struct d0_buffer **out, struct err *e)
{
    struct d0_status st = STATUS_INIT;
    return translate(d, d->api->buffer_create(d->handle, bytes, out, &st), &st, "buffer_create", e);
}

void dev_buffer_free(struct dev *d, struct d0_buffer *b)
{
    if (b)
        d->api->buffer_destroy(d->handle, b);
}

int dev_queue(struct dev *d, struct d0_queue **out, struct err *e)
{
    struct d0_status st = STATUS_INIT;
    return translate(d, d->api->queue_create(d->handle, out, &st), &st, "queue_create", e);
}

void dev_queue_free(struct dev *d, struct d0_queue *q)
{
    if (q)
        d->api->queue_destroy(d->handle, q);
}

int dev_copy_in(struct dev *d, struct d0_queue *q, struct d0_buffer *b, uint64_t off, const void *host,
                uint64_t n, struct err *e)
{
    struct d0_status st = STATUS_INIT;
    return translate(d, d->api->copy_in(q, b, off, host, n, &st), &st, "copy_in", e);
}

int dev_copy_out(struct dev *d, struct d0_queue *q, const struct d0_buffer *b, uint64_t off, void *host,
                 uint64_t n, struct err *e)
{
    struct d0_status st = STATUS_INIT;
    return translate(d, d->api->copy_out(q, b, off, host, n, &st), &st, "copy_out", e);
}

/* An optional function of a table that may be older, and shorter, than ours. */
#define HAS(d, member)                                                                                       \
    ((d)->api->size >= offsetof(struct d0_device_api, member) + sizeof((d)->api->member) && (d)->api->member)

bool dev_can_copy(const struct dev *d)
{
    return HAS(d, copy);
}

int dev_copy(struct dev *d, struct d0_queue *q, struct d0_buffer *to, uint64_t to_off,
             const struct d0_buffer *from, uint64_t from_off, uint64_t n, struct err *e)
{
    if (!dev_can_copy(d))
        return err_set(e, ERR_UNSUPPORTED, "device %s cannot copy between buffers", d->api->name);
    struct d0_status st = STATUS_INIT;
    return translate(d, d->api->copy(q, to, to_off, from, from_off, n, &st), &st, "copy", e);
}

int dev_wait(struct dev *d, struct d0_queue *q, uint64_t timeout_ns, struct err *e)
{
    struct d0_status st = STATUS_INIT;
    return translate(d, d->api->queue_wait(q, timeout_ns, &st), &st, "queue_wait", e);
}

bool dev_supports(struct dev *d, const struct d0_part *part, uint32_t node, char *reason, size_t reason_bytes)
{
    if (reason_bytes)
        reason[0] = '\0';
    bool yes = d->api->supports(d->handle, part, node, reason, reason_bytes) == 1;
    if (reason_bytes)
        reason[reason_bytes - 1] = '\0';
    return yes;
}

bool dev_says_scratch(const struct dev *d)
{
    return HAS(d, scratch_need);
}

int dev_scratch_need(struct dev *d, const struct d0_part *part, uint64_t *bytes, struct err *e)
{
    struct d0_status st = STATUS_INIT;
    *bytes = 0;
    if (!dev_says_scratch(d))
        return ERR_OK;
    return translate(d, d->api->scratch_need(d->handle, part, bytes, &st), &st, "scratch_need", e);
}

int dev_scratch_plan(void *context, const struct d0_part *part, uint64_t *bytes, struct err *e)
{
    return dev_scratch_need(context, part, bytes, e);
}

int dev_compile(struct dev *d, const struct d0_part *part, struct d0_exec **out, struct err *e)
{
    struct d0_status st = STATUS_INIT;
    return translate(d, d->api->compile(d->handle, part, out, &st), &st, "compile", e);
}

void dev_exec_free(struct dev *d, struct d0_exec *x)
{
    if (x)
        d->api->exec_destroy(d->handle, x);
}

int dev_bind(struct dev *d, struct d0_exec *x, uint32_t value, struct d0_buffer *b, uint64_t off,
             struct err *e)
{
    struct d0_status st = STATUS_INIT;
    return translate(d, d->api->bind(x, value, b, off, &st), &st, "bind", e);
}

int dev_run(struct dev *d, struct d0_queue *q, struct d0_exec *x, const struct d0_step_dims *dims,
            struct err *e)
{
    struct d0_status st = STATUS_INIT;
    return translate(d, d->api->run(q, x, dims, &st), &st, "run", e);
}

int dev_read_output(struct dev *d, struct d0_queue *q, struct d0_exec *x, uint32_t value, uint64_t off,
                    void *host, uint64_t n, struct err *e)
{
    struct d0_status st = STATUS_INIT;
    return translate(d, d->api->read_output(q, x, value, off, host, n, &st), &st, "read_output", e);
}
