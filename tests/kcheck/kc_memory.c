/* SPDX-License-Identifier: Apache-2.0
 *
 * Guarded memory: one region per array of a call, inaccessible pages before and after it. Data lies flush
 * against one of the two; the rest of its page is NaN round inputs and canaries round outputs. Guarded calls:
 * a signal ends the call, not the program.
 *
 * The jump buffer is the one mutable global of this program: a signal handler gets no context of ours.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kc.h"

#define REGION_BYTES ((size_t)4 << 20)
#define GUARD_BYTES  ((size_t)64 << 10)
#define SLACK        ((size_t)4096) /* filled and watched beside the data */
#define N_REGIONS    (REGION_SHARED + 1)
#define INPUT_FILL   0xFF /* NaN in every type */

enum {
    REGION_OUT = D0_MAX_NODE_INPUTS,
    REGION_STATE = REGION_OUT + KC_OUTS,
    REGION_SCRATCH = REGION_STATE + 2,
    REGION_SHARED = REGION_SCRATCH + 1,
};

struct region {
    unsigned char *begin, *end; /* accessible bytes */
    unsigned char *data;        /* of the current case */
    size_t bytes;
};

struct kc_memory {
    unsigned char *base;
    size_t total;
    struct region regions[N_REGIONS];
    size_t scratch_bytes;
    unsigned char *signal_stack;
};

static sigjmp_buf jump;
static volatile sig_atomic_t armed;

static void on_signal(int number)
{
    if (armed)
        siglongjmp(jump, number);
    signal(number, SIG_DFL);
    raise(number);
}

static bool signals_set(struct kc_memory *m)
{
    size_t bytes = 64 << 10;
    m->signal_stack = malloc(bytes);
    stack_t stack = {.ss_sp = m->signal_stack, .ss_size = bytes};
    if (!m->signal_stack || sigaltstack(&stack, NULL) != 0)
        return false;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        if (sigaction(numbers[i], &action, NULL) != 0)
            return false;
    return true;
}

struct kc_memory *kc_memory_open(void)
{
    struct kc_memory *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    size_t each = REGION_BYTES + GUARD_BYTES;
    m->total = N_REGIONS * each + GUARD_BYTES;
    m->base = mmap(NULL, m->total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->base == MAP_FAILED || !signals_set(m)) {
        kc_memory_close(m);
        return NULL;
    }
    for (size_t i = 0; i < N_REGIONS; i++) {
        struct region *r = &m->regions[i];
        r->begin = m->base + GUARD_BYTES + i * each;
        r->end = r->begin + REGION_BYTES;
        if (mprotect(r->begin, REGION_BYTES, PROT_READ | PROT_WRITE) != 0) {
            kc_memory_close(m);
            return NULL;
        }
    }
    return m;
}

void kc_memory_close(struct kc_memory *m)
{
    if (!m)
        return;
    stack_t off = {.ss_flags = SS_DISABLE};
    sigaltstack(&off, NULL);
    free(m->signal_stack);
    if (m->base && m->base != MAP_FAILED)
        munmap(m->base, m->total);
    free(m);
}

/* Data of `bytes` at one end of the region, its neighbourhood filled. NULL: does not fit. */
static void *region_put(struct region *r, size_t bytes, bool at_end, unsigned char fill)
{
    if (bytes > REGION_BYTES - SLACK)
        return NULL;
    r->data = at_end ? r->end - bytes : r->begin;
    r->bytes = bytes;
    if (at_end)
        memset(r->data - SLACK, fill, SLACK);
    else
        memset(r->data + bytes, fill, SLACK);
    return r->data;
}

static bool filled(const unsigned char *p, size_t n, unsigned char fill)
{
    return n == 0 || (p[0] == fill && memcmp(p, p + 1, n - 1) == 0);
}

static bool slack_is(const struct region *r, unsigned char fill)
{
    return filled(r->data + r->bytes == r->end ? r->data - SLACK : r->data + r->bytes, SLACK, fill);
}

bool kc_place(struct kc_memory *m, const struct kc_case *c, const struct kern_variant *v, bool at_end,
              struct kc_placed *p)
{
    *p = (struct kc_placed){.a = c->a};
    for (unsigned i = 0; i < D0_MAX_NODE_INPUTS; i++) {
        m->regions[i].data = NULL;
        if (!c->in[i].data)
            continue;
        void *at = region_put(&m->regions[i], c->in[i].bytes, at_end, INPUT_FILL);
        if (!at)
            return false;
        memcpy(at, c->in[i].data, c->in[i].bytes);
        p->a.in[i] = at;
    }
    for (unsigned o = 0; o < KC_OUTS; o++) {
        p->a.out[o] = region_put(&m->regions[REGION_OUT + o], c->out[o].bytes, at_end, KC_FILL);
        if (!p->a.out[o])
            return false;
        memset(p->a.out[o], KC_FILL, c->out[o].bytes);
        p->out_bytes[o] = c->out[o].bytes;
    }
    for (unsigned s = 0; s < 2; s++) {
        struct region *r = &m->regions[REGION_STATE + s];
        p->a.state[s] = region_put(r, c->state[s].bytes, at_end, KC_FILL);
        if (!p->a.state[s])
            return false;
        if (c->state[s].data) {
            memcpy(p->a.state[s], c->state[s].data, c->state[s].bytes);
            p->a.in[kern_state_input(v->op, s)] = p->a.state[s];
        }
        p->state_bytes[s] = c->state[s].bytes;
    }
    m->scratch_bytes = ALIGN_UP(v->scratch ? v->scratch(&p->a) : 0, 64);
    p->a.scratch_bytes = m->scratch_bytes;
    p->a.scratch = region_put(&m->regions[REGION_SCRATCH], KC_THREADS * m->scratch_bytes, at_end, KC_FILL);
    if (!p->a.scratch)
        return false;
    p->shared_bytes = v->shared ? v->shared(&p->a) : 0;
    p->a.shared = region_put(&m->regions[REGION_SHARED], p->shared_bytes, at_end, KC_FILL);
    if (!p->a.shared)
        return false;
    memset(p->a.shared, KC_FILL, p->shared_bytes);
    kc_scratch_clear(p);
    return true;
}

void kc_scratch_clear(const struct kc_placed *p)
{
    memset(p->a.scratch, KC_FILL, KC_THREADS * p->a.scratch_bytes);
}

int kc_call(const struct kern_variant *v, const struct kern_args *a, size_t first, size_t last,
            unsigned thread)
{
    int number = sigsetjmp(jump, 1); /* this frame has no local that changes after it */
    if (number != 0) {
        armed = 0;
        return number;
    }
    armed = 1;
    v->run(a, first, last, thread);
    armed = 0;
    return 0;
}

const char *kc_touched(struct kc_memory *m, const struct kc_case *c, const struct kc_placed *p,
                       unsigned thread)
{
    for (unsigned i = 0; i < D0_MAX_NODE_INPUTS; i++)
        if (c->in[i].data && (memcmp(m->regions[i].data, c->in[i].data, c->in[i].bytes) != 0 ||
                              !slack_is(&m->regions[i], INPUT_FILL)))
            return "an input was written";
    for (unsigned o = 0; o < KC_OUTS; o++)
        if (!slack_is(&m->regions[REGION_OUT + o], KC_FILL))
            return "written beside the output";
    for (unsigned s = 0; s < 2; s++)
        if (!slack_is(&m->regions[REGION_STATE + s], KC_FILL))
            return "written beside a state";
    if (!slack_is(&m->regions[REGION_SCRATCH], KC_FILL) || !slack_is(&m->regions[REGION_SHARED], KC_FILL))
        return "written beside the scratch";
    for (unsigned t = 0; t < KC_THREADS; t++)
        if (t != thread &&
            !filled((const unsigned char *)p->a.scratch + t * m->scratch_bytes, m->scratch_bytes, KC_FILL))
            return "the scratch of another thread was written";
    return NULL;
}
