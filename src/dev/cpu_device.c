/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the host processor as a device: its memory, its thread pool, and the table of functions.
 * Refuses: asynchrony. Every call is complete when it returns, so queues and events have nothing to keep.
 */
#include "dev/cpu_device.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/str.h"
#include "dev/builtin.h"
#include "dev/part_check.h"

#define HUGE_FROM  (UINT64_C(4) << 20) /* from here on a mapping of its own with huge pages */
#define HUGE_BYTES (UINT64_C(2) << 20)

struct d0_event {
    char nothing;
};

/* ---- opening ------------------------------------------------------------------------------------------- */

static unsigned usable_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
    return n > 0 ? (unsigned)n : 1;
}

static int parse_arguments(const char *arguments, enum kern_isa *isa, struct d0_status *st)
{
    *isa = kern_isa_best();
    if (!arguments || !arguments[0])
        return D0_OK;
    if (!str_starts(arguments, "isa="))
        return status_set(st, D0_E_INVALID, "cpu: unknown argument %s; the only one is isa=NAME", arguments);
    if (kern_isa_parse(arguments + 4, isa) != ERR_OK)
        return status_set(st, D0_E_INVALID,
                          "cpu: unknown instruction set %s; known are ref, avx2, avx512, fast",
                          arguments + 4);
    if (!kern_isa_available(*isa))
        return status_set(st, D0_E_UNSUPPORTED, "cpu: this processor or build does not run %s",
                          arguments + 4);
    return D0_OK;
}

static void describe(struct d0_device *d)
{
    char name[128] = "processor", line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof(line), f))
        if (str_starts(line, "model name")) {
            const char *colon = strchr(line, ':');
            if (colon && colon[1])
                snprintf(name, sizeof(name), "%.100s", colon + 2);
            name[strcspn(name, "\n")] = '\0';
            break;
        }
    if (f)
        fclose(f);
    snprintf(d->description, sizeof(d->description), "%s, %u threads", name, pool_threads(d->pool));
}

static int cpu_open(const struct d0_device_options *o, struct d0_device **out, struct d0_status *st)
{
    enum kern_isa isa;
    if (!o || o->size < sizeof(*o))
        return status_set(st, D0_E_INVALID, "cpu: the options are of another version");
    int rc = parse_arguments(o->arguments, &isa, st);
    if (rc != D0_OK)
        return rc;
    struct d0_device *d = calloc(1, sizeof(*d));
    if (!d)
        return status_set(st, D0_E_NOMEM, "cpu: out of memory");
    d->isa = isa;
    d->limit = o->memory_limit;
    struct err e = {0};
    if (pool_open(&d->pool, o->n_threads ? o->n_threads : usable_cores(), &e) != ERR_OK) {
        free(d);
        return status_set(st, D0_E_DEVICE, "cpu: %s", e.message);
    }
    describe(d);
    *out = d;
    return D0_OK;
}

static void cpu_close(struct d0_device *d)
{
    if (!d)
        return;
    pool_close(d->pool);
    free(d);
}

void cpu_device_account(struct d0_device *d, struct mem *mem)
{
    d->mem = mem;
}

static int cpu_info(struct d0_device *d, struct d0_device_info *out)
{
    if (out->size < sizeof(*out))
        return D0_E_INVALID;
    *out = (struct d0_device_info){
        .size = sizeof(*out), .abi_version = D0_DEVICE_ABI_VERSION, .exact = 1, .computes = 1};
    snprintf(out->name, sizeof(out->name), "cpu");
    snprintf(out->description, sizeof(out->description), "%s", d->description);
    snprintf(out->variant, sizeof(out->variant), "%s", kern_isa_name(d->isa));
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    out->memory_total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
    out->memory_free = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page;
    out->memory_used = d->used;
    out->memory_peak = d->peak;
    return D0_OK;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static int out_of_memory(const struct d0_device *d, const char *what, uint64_t bytes, struct d0_status *st)
{
    char wanted[32], used[32], limit[32];
    format_bytes(bytes, wanted, sizeof(wanted));
    format_bytes(d->used, used, sizeof(used));
    if (!d->limit)
        return status_set(st, D0_E_NOMEM, "cpu: no memory for %s of %s, %s in use", what, wanted, used);
    return status_set(st, D0_E_NOMEM, "cpu: %s of %s wanted, %s in use, limit %s", what, wanted, used,
                      format_bytes(d->limit, limit, sizeof(limit)));
}

/* A mapping that begins on a huge page; what the kernel gave besides is given back. */
static unsigned char *map_huge(uint64_t bytes)
{
    unsigned char *p =
        mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    uint64_t head = (HUGE_BYTES - (uintptr_t)p % HUGE_BYTES) % HUGE_BYTES;
    if (head)
        munmap(p, head);
    if (HUGE_BYTES - head)
        munmap(p + head + bytes, HUGE_BYTES - head);
    madvise(p + head, bytes, MADV_HUGEPAGE); /* advice: where it is not taken, only speed is lost */
    return p + head;
}

int cpu_memory_get(struct d0_device *d, uint64_t bytes, struct d0_buffer *b, const char *what,
                   struct d0_status *st)
{
    if (bytes > PTRDIFF_MAX - 2 * HUGE_BYTES ||
        (d->limit && (d->used > d->limit || bytes > d->limit - d->used)))
        return out_of_memory(d, what, bytes, st);
    uint64_t whole = ALIGN_UP(bytes ? bytes : 64, bytes >= HUGE_FROM ? HUGE_BYTES : 64);
    *b = (struct d0_buffer){.bytes = bytes};
    if (bytes >= HUGE_FROM) {
        b->data = map_huge(whole);
        b->mapped = whole;
    } else {
        b->data = aligned_alloc(64, whole);
    }
    if (!b->data)
        return out_of_memory(d, what, bytes, st);
    d->used += bytes;
    d->peak = d->used > d->peak ? d->used : d->peak;
    return D0_OK;
}

void cpu_memory_put(struct d0_device *d, struct d0_buffer *b)
{
    if (!b->data || b->wrapped)
        return;
    d->used -= b->bytes;
    if (b->mapped)
        munmap(b->data, b->mapped);
    else
        free(b->data);
    b->data = NULL;
}

static int cpu_buffer_create(struct d0_device *d, uint64_t bytes, struct d0_buffer **out,
                             struct d0_status *st)
{
    struct d0_buffer *b = calloc(1, sizeof(*b));
    if (!b)
        return status_set(st, D0_E_NOMEM, "cpu: out of memory");
    int rc = cpu_memory_get(d, bytes, b, "a buffer", st);
    if (rc != D0_OK) {
        free(b);
        return rc;
    }
    *out = b;
    return D0_OK;
}

static void cpu_buffer_destroy(struct d0_device *d, struct d0_buffer *b)
{
    if (!b)
        return;
    cpu_memory_put(d, b);
    free(b);
}

static int cpu_buffer_wrap(struct d0_device *d, void *host, uint64_t bytes, struct d0_buffer **out,
                           struct d0_status *st)
{
    (void)d;
    if (!host || (uintptr_t)host % 64)
        return status_set(st, D0_E_INVALID, "cpu: memory to wrap must be aligned to 64 bytes");
    struct d0_buffer *b = calloc(1, sizeof(*b));
    if (!b)
        return status_set(st, D0_E_NOMEM, "cpu: out of memory");
    *b = (struct d0_buffer){.data = host, .bytes = bytes, .wrapped = true};
    *out = b;
    return D0_OK;
}

/* ---- order and copies ---------------------------------------------------------------------------------- */

static int cpu_queue_create(struct d0_device *d, struct d0_queue **out, struct d0_status *st)
{
    struct d0_queue *q = calloc(1, sizeof(*q));
    if (!q)
        return status_set(st, D0_E_NOMEM, "cpu: out of memory");
    q->device = d;
    *out = q;
    return D0_OK;
}

static void cpu_queue_destroy(struct d0_device *d, struct d0_queue *q)
{
    (void)d;
    free(q);
}

static int cpu_queue_wait(struct d0_queue *q, uint64_t timeout_ns, struct d0_status *st)
{
    (void)q, (void)timeout_ns, (void)st;
    return D0_OK;
}

static int cpu_event_create(struct d0_device *d, struct d0_event **out, struct d0_status *st)
{
    (void)d;
    *out = calloc(1, sizeof(**out));
    return *out ? D0_OK : status_set(st, D0_E_NOMEM, "cpu: out of memory");
}

static void cpu_event_destroy(struct d0_device *d, struct d0_event *event)
{
    (void)d;
    free(event);
}

static int cpu_event_record(struct d0_queue *q, struct d0_event *event, struct d0_status *st)
{
    (void)q, (void)event, (void)st;
    return D0_OK;
}

static int cpu_event_wait(struct d0_event *event, uint64_t timeout_ns, struct d0_status *st)
{
    (void)event, (void)timeout_ns, (void)st;
    return D0_OK;
}

static int check_range(const struct d0_buffer *b, uint64_t offset, uint64_t bytes, struct d0_status *st)
{
    if (offset > b->bytes || bytes > b->bytes - offset)
        return status_set(st, D0_E_INVALID, "cpu: copy of %llu bytes at %llu, the buffer has %llu",
                          (unsigned long long)bytes, (unsigned long long)offset,
                          (unsigned long long)b->bytes);
    return D0_OK;
}

static int cpu_copy_in(struct d0_queue *q, struct d0_buffer *b, uint64_t offset, const void *host,
                       uint64_t bytes, struct d0_status *st)
{
    (void)q;
    int rc = check_range(b, offset, bytes, st);
    if (rc == D0_OK && bytes)
        memcpy(b->data + offset, host, bytes);
    return rc;
}

static int cpu_copy_out(struct d0_queue *q, const struct d0_buffer *b, uint64_t offset, void *host,
                        uint64_t bytes, struct d0_status *st)
{
    (void)q;
    int rc = check_range(b, offset, bytes, st);
    if (rc == D0_OK && bytes)
        memcpy(host, b->data + offset, bytes);
    return rc;
}

static int cpu_copy(struct d0_queue *q, struct d0_buffer *to, uint64_t to_offset,
                    const struct d0_buffer *from, uint64_t from_offset, uint64_t bytes, struct d0_status *st)
{
    (void)q;
    if (to == from)
        return status_set(st, D0_E_INVALID, "cpu: a copy from a buffer to itself");
    int rc = check_range(from, from_offset, bytes, st);
    if (rc == D0_OK)
        rc = check_range(to, to_offset, bytes, st);
    if (rc == D0_OK && bytes)
        memcpy(to->data + to_offset, from->data + from_offset, bytes);
    return rc;
}

const struct d0_device_api *cpu_device_api(void)
{
    static const struct d0_device_api api = {
        .size = sizeof(api),
        .abi_version = D0_DEVICE_ABI_VERSION,
        .name = "cpu",
        .open = cpu_open,
        .close = cpu_close,
        .info = cpu_info,
        .buffer_create = cpu_buffer_create,
        .buffer_destroy = cpu_buffer_destroy,
        .buffer_wrap = cpu_buffer_wrap,
        .queue_create = cpu_queue_create,
        .queue_destroy = cpu_queue_destroy,
        .queue_wait = cpu_queue_wait,
        .event_create = cpu_event_create,
        .event_destroy = cpu_event_destroy,
        .event_record = cpu_event_record,
        .event_wait = cpu_event_wait,
        .copy_in = cpu_copy_in,
        .copy_out = cpu_copy_out,
        .copy = cpu_copy,
        .supports = cpu_supports,
        .compile = cpu_compile,
        .exec_destroy = cpu_exec_destroy,
        .bind = cpu_bind,
        .run = cpu_run,
        .read_output = cpu_read_output,
        .scratch_need = cpu_scratch_need,
    };
    return &api;
}
