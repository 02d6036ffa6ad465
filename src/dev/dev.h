/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices behind include/day0/device.h: the registry (cpu, null, plugins) and thin wrappers that turn
 * d0_status into struct err. Nobody above this room calls kernels or knows a host pointer of a device.
 */
#ifndef DEV_DEV_H
#define DEV_DEV_H

#include "base/err.h"
#include "base/mem.h"
#include "day0/device.h"

struct dev {
    const struct d0_device_api *api;
    struct d0_device *handle;
    void *plugin;     /* dlopen handle or NULL */
    struct mem *mem;  /* as in dev_options: for whoever accounts what its buffers hold */
    bool host_memory; /* buffers are host memory (cpu) */
    bool computes;    /* false: only tracks; bytes copied in are not looked at */
};

struct dev_options {
    const char *name;      /* "cpu", "null", or the path of a plugin (contains '/') */
    const char *isa;       /* cpu: "ref", "avx2", "avx512", "fast" or NULL */
    const char *arguments; /* passed to a plugin */
    unsigned n_threads;    /* 0: one per core this process may use */
    uint64_t memory_limit; /* bytes; 0 none */
    struct mem *mem;       /* accounting of host memory used by cpu; may be NULL */
};

int dev_open(struct dev *out, const struct dev_options *options, struct err *e);
void dev_close(struct dev *d);
int dev_info(struct dev *d, struct d0_device_info *out, struct err *e);

/* Is it, as --device names it (NULL: the default), the one that computes with this build's own kernels? */
bool dev_name_is_cpu(const char *name);
/* Names of built-in devices, for listings. */
size_t dev_names(const char *const **out);

/* Wrappers: same meaning as the ABI's functions, errors as struct err (ERR_NOMEM, ERR_UNSUPPORTED,
 * ERR_DEVICE, ...). */
int dev_buffer(struct dev *d, uint64_t bytes, struct d0_buffer **out, struct err *e);
void dev_buffer_free(struct dev *d, struct d0_buffer *b); /* NULL is fine */
int dev_queue(struct dev *d, struct d0_queue **out, struct err *e);
void dev_queue_free(struct dev *d, struct d0_queue *q);
int dev_copy_in(struct dev *d, struct d0_queue *q, struct d0_buffer *b, uint64_t off, const void *host,
                uint64_t n, struct err *e);
int dev_copy_out(struct dev *d, struct d0_queue *q, const struct d0_buffer *b, uint64_t off, void *host,
                 uint64_t n, struct err *e);
/* Within the device, between two buffers; ERR_UNSUPPORTED where dev_can_copy is false. */
int dev_copy(struct dev *d, struct d0_queue *q, struct d0_buffer *to, uint64_t to_off,
             const struct d0_buffer *from, uint64_t from_off, uint64_t n, struct err *e);
bool dev_can_copy(const struct dev *d);
int dev_wait(struct dev *d, struct d0_queue *q, uint64_t timeout_ns, struct err *e);
bool dev_supports(struct dev *d, const struct d0_part *part, uint32_t node, char *reason,
                  size_t reason_bytes);
/* Bytes that compiling the part would take beyond its scratch_bytes; 0 where the device does not say. */
int dev_scratch_need(struct dev *d, const struct d0_part *part, uint64_t *bytes, struct err *e);
/* The same as a function for plan_options.device_need: context is a struct dev. */
int dev_scratch_plan(void *context, const struct d0_part *part, uint64_t *bytes, struct err *e);
bool dev_says_scratch(const struct dev *d);
int dev_compile(struct dev *d, const struct d0_part *part, struct d0_exec **out, struct err *e);
void dev_exec_free(struct dev *d, struct d0_exec *x);
int dev_bind(struct dev *d, struct d0_exec *x, uint32_t value, struct d0_buffer *b, uint64_t off,
             struct err *e);
int dev_run(struct dev *d, struct d0_queue *q, struct d0_exec *x, const struct d0_step_dims *dims,
            struct err *e);
int dev_read_output(struct dev *d, struct d0_queue *q, struct d0_exec *x, uint32_t value, uint64_t off,
                    void *host, uint64_t n, struct err *e);

#endif
