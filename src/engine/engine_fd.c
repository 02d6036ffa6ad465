/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: both ends of an engine behind a stream socket: one plan in, one result out.
 * Refuses: a length that the limits do not allow, before a byte behind the header is read; waiting past a
 * deadline.
 */
#include "engine/engine.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/thread.h"

#define NO_DEADLINE UINT64_MAX

/* ---- exact transfers ----------------------------------------------------------------------------------- */

static int wait_fd(int fd, short events, uint64_t deadline, struct err *e)
{
    for (;;) {
        int timeout = -1;
        if (deadline != NO_DEADLINE) {
            uint64_t now = clock_ns();
            uint64_t left = now < deadline ? (deadline - now + 999999) / 1000000 : 0;
            if (left == 0)
                return err_set(e, ERR_TIMEOUT, "the engine did not answer before the deadline");
            timeout = left < 60000 ? (int)left : 60000;
        }
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, timeout);
        if (n > 0)
            return ERR_OK;
        if (n < 0 && errno != EINTR)
            return err_set(e, ERR_COMM, "engine socket: %s", strerror(errno));
    }
}

static int send_all(int fd, const void *data, size_t n, uint64_t deadline, struct err *e)
{
    const char *at = data;
    while (n) {
        ssize_t got = send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (got > 0) {
            at += got;
            n -= (size_t)got;
            continue;
        }
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
            return err_set(e, ERR_COMM, "engine socket: %s", strerror(errno));
        int rc = wait_fd(fd, POLLOUT, deadline, e);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* *closed (may be NULL) tells a peer that left between two messages from one that left within. */
static int receive_all(int fd, void *data, size_t n, uint64_t deadline, bool *closed, struct err *e)
{
    char *at = data;
    size_t done = 0;
    while (done < n) {
        ssize_t got = recv(fd, at + done, n - done, MSG_DONTWAIT);
        if (got > 0) {
            done += (size_t)got;
            continue;
        }
        if (got == 0) {
            if (closed && done == 0)
                *closed = true;
            return err_set(e, ERR_COMM, "engine socket: the peer closed after %zu of %zu bytes", done, n);
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return err_set(e, ERR_COMM, "engine socket: %s", strerror(errno));
        int rc = wait_fd(fd, POLLIN, deadline, e);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* ---- the engine's end ---------------------------------------------------------------------------------- */

static int send_result(int fd, const void *result, struct err *e)
{
    return send_all(fd, result, ((const struct step_result *)result)->bytes, NO_DEADLINE, e);
}

/* A length that cannot be trusted leaves no way to find the next message: answer, then end. */
static int refuse_length(int fd, const struct step_plan *p, size_t cap, void *result, size_t result_cap,
                         struct err *e)
{
    struct step_result *r;
    err_set(e, ERR_FORMAT, "step plan of %u bytes and magic %08x: this engine takes at most %zu bytes",
            p->bytes, p->magic, cap);
    if (step_result_error(result, result_cap, p->step, ERR_FORMAT, "the length of the plan is out of range",
                          &r, NULL) == ERR_OK)
        send_result(fd, r, NULL);
    return ERR_FORMAT;
}

static int serve_one(struct engine *x, int fd, char *plan, size_t cap, void *result, size_t result_cap,
                     bool *closed, struct err *e)
{
    struct step_plan *p = (struct step_plan *)plan;
    int rc = receive_all(fd, plan, sizeof(*p), NO_DEADLINE, closed, e);
    if (rc != ERR_OK)
        return rc;
    if (p->magic != STEP_PLAN_MAGIC || p->bytes < sizeof(*p) || p->bytes > cap)
        return refuse_length(fd, p, cap, result, result_cap, e);
    rc = receive_all(fd, plan + sizeof(*p), p->bytes - sizeof(*p), NO_DEADLINE, NULL, e);
    if (rc != ERR_OK)
        return rc;
    /* a failed step is told to the peer, who decides; it does not end the service */
    engine_step(x, p, p->bytes, result, result_cap, NULL);
    return send_result(fd, result, e);
}

int engine_serve_fd(struct engine *x, int fd, struct err *e)
{
    const struct engine_limits *l = engine_limits(x);
    size_t cap = step_plan_bytes(l), result_cap = engine_result_bytes(l, true);
    char *plan = malloc(cap);
    void *result = malloc(result_cap);
    int rc = plan && result ? ERR_OK : err_set(e, ERR_NOMEM, "engine: out of memory for step messages");
    bool closed = false;
    struct err local = {0};
    while (rc == ERR_OK)
        rc = serve_one(x, fd, plan, cap, result, result_cap, &closed, &local);
    free(plan);
    free(result);
    if (closed)
        return ERR_OK;
    if (e && local.code)
        *e = local;
    return rc;
}

/* ---- the front's end ----------------------------------------------------------------------------------- */

int engine_call_fd(int fd, const struct step_plan *plan, void *result, size_t cap, uint64_t timeout_ns,
                   struct err *e)
{
    uint64_t now = clock_ns(), deadline;
    if (!add_u64(now, timeout_ns, &deadline) || deadline == NO_DEADLINE)
        deadline = NO_DEADLINE - 1;
    struct step_result *r = result;
    if (cap < sizeof(*r) || (uintptr_t)result % 8)
        return err_set(e, ERR_INVALID, "the buffer for a result is too small or not aligned");
    int rc = send_all(fd, plan, plan->bytes, deadline, e);
    if (rc == ERR_OK)
        rc = receive_all(fd, r, sizeof(*r), deadline, NULL, e);
    if (rc != ERR_OK)
        return rc;
    if (r->magic != STEP_RESULT_MAGIC || r->bytes < sizeof(*r) || r->bytes > cap)
        return err_set(e, ERR_FORMAT, "step result of %u bytes and magic %08x, there is room for %zu",
                       r->bytes, r->magic, cap);
    rc = receive_all(fd, r + 1, r->bytes - sizeof(*r), deadline, NULL, e);
    if (rc == ERR_OK)
        rc = step_result_validate(r, r->bytes, e);
    if (rc == ERR_OK && r->step != plan->step)
        rc = err_set(e, ERR_FORMAT, "result of step %llu for plan %llu", (unsigned long long)r->step,
                     (unsigned long long)plan->step);
    return rc;
}
