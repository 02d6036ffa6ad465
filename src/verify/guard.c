/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns guarded memory and the signal handler behind it. A device's threads may fault at any time, and a
 * handler gets no context of ours but the address: so each mapping ends with a page that carries a mark, and
 * the handler looks for that mark behind the fault. Thus no global state is needed, and a fault that is not
 * of a guard is passed on.
 */
#include "verify/guard.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define GUARD_PAGE  4096u /* a multiple of the system's page where that is larger: see page_bytes() */
#define GUARD_PAGES 4u
#define GUARD_MARK  0x6430677561726421ull

struct guard_tail {
    uint64_t mark;
    struct guard_tail *self;
    void *guard; /* first inaccessible byte */
    size_t guard_bytes;
    volatile sig_atomic_t touched;
};

static size_t page_bytes(void)
{
    long n = sysconf(_SC_PAGESIZE);
    return n > 0 ? (size_t)n : GUARD_PAGE;
}

/* Mapping: data pages | GUARD_PAGES inaccessible | one page with struct guard_tail. */
int guard_alloc(struct guard *g, uint64_t bytes, struct err *e)
{
    size_t page = page_bytes(), body, total;
    *g = (struct guard){0};
    if (bytes > SIZE_MAX / 2)
        return err_set(e, ERR_NOMEM, "no memory for %llu guarded bytes", (unsigned long long)bytes);
    body = ALIGN_UP((size_t)bytes + 1, page);
    total = body + (GUARD_PAGES + 1) * page;
    void *base = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return err_set(e, ERR_NOMEM, "no memory for %llu guarded bytes", (unsigned long long)bytes);
    char *guard = (char *)base + body;
    struct guard_tail *tail = (struct guard_tail *)(guard + GUARD_PAGES * page);
    *tail = (struct guard_tail){
        .mark = GUARD_MARK, .self = tail, .guard = guard, .guard_bytes = GUARD_PAGES * page};
    if (mprotect(guard, GUARD_PAGES * page, PROT_NONE) != 0) {
        munmap(base, total);
        return err_set(e, ERR_NOMEM, "cannot protect guard pages");
    }
    size_t padded = ALIGN_UP((size_t)bytes, 64);
    *g = (struct guard){.base = base, .total = total, .data = guard - padded};
    memset((char *)g->data + bytes, 0xff, padded - (size_t)bytes);
    return ERR_OK;
}

void guard_free(struct guard *g)
{
    if (g->base)
        munmap(g->base, g->total);
    *g = (struct guard){0};
}

bool guard_touched(const struct guard *g)
{
    const struct guard_tail *tail;
    if (!g->base)
        return false;
    tail = (const struct guard_tail *)((const char *)g->base + g->total - page_bytes());
    return tail->touched != 0;
}

/* The tail of the guard that `address` lies in, or NULL. Reads foreign memory through the kernel, which
 * refuses instead of faulting. */
static struct guard_tail *tail_of(const void *address)
{
    size_t page = page_bytes();
    char *at = (char *)((uintptr_t)address / page * page);
    for (unsigned i = 1; i <= GUARD_PAGES; i++) {
        struct guard_tail copy;
        struct iovec here = {&copy, sizeof copy}, there = {at + i * page, sizeof copy};
        if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != (ssize_t)sizeof copy)
            continue;
        if (copy.mark == GUARD_MARK && (void *)copy.self == (void *)(at + i * page))
            return copy.self;
    }
    return NULL;
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    struct guard_tail *tail = tail_of(info->si_addr);
    if (tail && mprotect(tail->guard, tail->guard_bytes, PROT_READ | PROT_WRITE) == 0) {
        tail->touched = 1;
        return;
    }
    /* not ours: the default action, when the instruction faults again */
    signal(signal_number, SIG_DFL);
}

void guard_trap_set(struct guard_trap *t)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    t->set = sigaction(SIGSEGV, &action, &t->before_segv) == 0;
    if (t->set)
        sigaction(SIGBUS, &action, &t->before_bus);
}

void guard_trap_clear(struct guard_trap *t)
{
    if (!t->set)
        return;
    sigaction(SIGSEGV, &t->before_segv, NULL);
    sigaction(SIGBUS, &t->before_bus, NULL);
    t->set = false;
}
