/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to dev: the inside of the cpu device, shared by its two files.
 */
#ifndef DEV_CPU_DEVICE_H
#define DEV_CPU_DEVICE_H

#include "base/mem.h"
#include "base/thread.h"
#include "day0/device.h"
#include "kern/kern.h"

struct d0_device {
    struct pool *pool;
    enum kern_isa isa;
    struct mem *mem; /* may be NULL */
    uint64_t used, peak, limit;
    char description[192];
};

struct d0_queue {
    struct d0_device *device;
};

struct d0_buffer {
    unsigned char *data;
    uint64_t bytes;
    uint64_t mapped; /* length of the mapping when it is one; 0: from the heap, or wrapped */
    bool wrapped;
};

/* Memory of the device, counted and limited; what is large comes in huge pages. */
int cpu_memory_get(struct d0_device *d, uint64_t bytes, struct d0_buffer *b, const char *what,
                   struct d0_status *st);
void cpu_memory_put(struct d0_device *d, struct d0_buffer *b);

/* The part of the table that compiles and runs (cpu_exec.c). */
int cpu_supports(struct d0_device *d, const struct d0_part *p, uint32_t node, char *reason,
                 size_t reason_bytes);
int cpu_scratch_need(struct d0_device *d, const struct d0_part *p, uint64_t *bytes, struct d0_status *st);
int cpu_compile(struct d0_device *d, const struct d0_part *p, struct d0_exec **out, struct d0_status *st);
void cpu_exec_destroy(struct d0_device *d, struct d0_exec *x);
int cpu_bind(struct d0_exec *x, uint32_t value, struct d0_buffer *b, uint64_t offset, struct d0_status *st);
int cpu_run(struct d0_queue *q, struct d0_exec *x, const struct d0_step_dims *dims, struct d0_status *st);
int cpu_read_output(struct d0_queue *q, struct d0_exec *x, uint32_t value, uint64_t offset, void *host,
                    uint64_t bytes, struct d0_status *st);

#endif
