/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: both ends of an engine behind a stream socket: one plan or picture in, one result out.
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

/* Buffers of one service, each as large as the largest message. */
struct service {
    struct engine *x;
    int fd;
    char *plan, *picture; /* picture: NULL without a tower */
    size_t plan_cap, picture_cap;
    void *result;
    size_t result_cap;
};

/* A length that cannot be trusted leaves no way to find the next message: answer, then end. */
static int refuse_length(const struct service *s, const struct step_plan *p, struct err *e)
{
    struct step_result *r;
    err_set(e, ERR_FORMAT, "message of %u bytes and magic %08x: this engine takes plans of at most %zu bytes",
            p->bytes, p->magic, s->plan_cap);
    if (step_result_error(s->result, s->result_cap, p->step, ERR_FORMAT,
                          "the length of the message is out of range", &r, NULL) == ERR_OK)
        send_result(s->fd, r, NULL);
    return ERR_FORMAT;
}

static int serve_picture(const struct service *s, const struct picture_call *call, struct err *e)
{
    struct err why = {0};
    struct step_result *r;
    int rc = receive_all(s->fd, s->picture, call->bytes, NO_DEADLINE, NULL, e);
    if (rc != ERR_OK)
        return rc;
    uint64_t begin = clock_ns();
    if (call->reserved || call->reserved2)
        rc = err_set(&why, ERR_FORMAT, "picture call: reserved fields are not zero");
    else
        rc =
            engine_picture(s->x, (const struct picture_plan *)s->picture, call->bytes, call->first_row, &why);
    if (rc != ERR_OK)
        rc = step_result_error(s->result, s->result_cap, call->number, rc, why.message, &r, e);
    else if ((rc = step_result_init(s->result, s->result_cap, 0, 0, 0, &r, e)) == ERR_OK) {
        r->step = call->number;
        r->compute_ns = clock_ns() - begin;
    }
    return rc == ERR_OK ? send_result(s->fd, r, e) : rc;
}

static int serve_one(const struct service *s, bool *closed, struct err *e)
{
    struct step_plan *p = (struct step_plan *)s->plan;
    _Static_assert(sizeof(struct picture_call) <= sizeof(struct step_plan), "one header is read for both");
    struct picture_call call;
    int rc = receive_all(s->fd, s->plan, sizeof(call), NO_DEADLINE, closed, e);
    if (rc != ERR_OK)
        return rc;
    memcpy(&call, s->plan, sizeof(call));
    if (call.magic == PICTURE_CALL_MAGIC && s->picture && call.bytes <= s->picture_cap)
        return serve_picture(s, &call, e);
    if (p->magic != STEP_PLAN_MAGIC || p->bytes < sizeof(*p) || p->bytes > s->plan_cap)
        return refuse_length(s, p, e);
    rc = receive_all(s->fd, s->plan + sizeof(call), p->bytes - sizeof(call), NO_DEADLINE, NULL, e);
    if (rc != ERR_OK)
        return rc;
    /* a failed step is told to the peer, who decides; it does not end the service */
    engine_step(s->x, p, p->bytes, s->result, s->result_cap, NULL);
    return send_result(s->fd, s->result, e);
}

int engine_serve_fd(struct engine *x, int fd, struct err *e)
{
    const struct engine_limits *l = engine_limits(x);
    const struct picture_shape *shape = engine_picture_shape(x);
    struct service s = {
        .x = x, .fd = fd, .plan_cap = step_plan_bytes(l), .result_cap = engine_result_bytes(l, true)};
    if (shape && !(s.picture_cap = picture_plan_bytes(shape, l->max_patches, l->max_picture_rows)))
        s.picture_cap = PICTURE_MAX_BYTES;
    s.plan = malloc(s.plan_cap);
    s.result = malloc(s.result_cap);
    s.picture = s.picture_cap ? malloc(s.picture_cap) : NULL;
    int rc = s.plan && s.result && (s.picture || !s.picture_cap)
                 ? ERR_OK
                 : err_set(e, ERR_NOMEM, "engine: out of memory for messages");
    bool closed = false;
    struct err local = {0};
    while (rc == ERR_OK)
        rc = serve_one(&s, &closed, &local);
    free(s.plan);
    free(s.result);
    free(s.picture);
    if (closed)
        return ERR_OK;
    if (e && local.code)
        *e = local;
    return rc;
}

/* ---- the front's end ----------------------------------------------------------------------------------- */

static int deadline_of(uint64_t timeout_ns, const void *result, size_t cap, uint64_t *deadline, struct err *e)
{
    if (!add_u64(clock_ns(), timeout_ns, deadline) || *deadline == NO_DEADLINE)
        *deadline = NO_DEADLINE - 1;
    if (cap < sizeof(struct step_result) || (uintptr_t)result % 8)
        return err_set(e, ERR_INVALID, "the buffer for a result is too small or not aligned");
    return ERR_OK;
}

static int receive_result(int fd, uint64_t step, struct step_result *r, size_t cap, uint64_t deadline,
                          struct err *e)
{
    int rc = receive_all(fd, r, sizeof(*r), deadline, NULL, e);
    if (rc != ERR_OK)
        return rc;
    if (r->magic != STEP_RESULT_MAGIC || r->bytes < sizeof(*r) || r->bytes > cap)
        return err_set(e, ERR_FORMAT, "step result of %u bytes and magic %08x, there is room for %zu",
                       r->bytes, r->magic, cap);
    rc = receive_all(fd, r + 1, r->bytes - sizeof(*r), deadline, NULL, e);
    if (rc == ERR_OK)
        rc = step_result_validate(r, r->bytes, e);
    if (rc == ERR_OK && r->step != step)
        rc = err_set(e, ERR_FORMAT, "result of step %llu for plan %llu", (unsigned long long)r->step,
                     (unsigned long long)step);
    return rc;
}

int engine_call_fd(int fd, const struct step_plan *plan, void *result, size_t cap, uint64_t timeout_ns,
                   struct err *e)
{
    uint64_t deadline;
    int rc = deadline_of(timeout_ns, result, cap, &deadline, e);
    if (rc == ERR_OK)
        rc = send_all(fd, plan, plan->bytes, deadline, e);
    return rc == ERR_OK ? receive_result(fd, plan->step, result, cap, deadline, e) : rc;
}

int engine_call_picture_fd(int fd, const struct picture_plan *plan, uint32_t first_row, uint64_t number,
                           void *result, size_t cap, uint64_t timeout_ns, struct err *e)
{
    const struct picture_call call = {
        .magic = PICTURE_CALL_MAGIC, .bytes = plan->bytes, .number = number, .first_row = first_row};
    uint64_t deadline;
    int rc = deadline_of(timeout_ns, result, cap, &deadline, e);
    if (rc == ERR_OK)
        rc = send_all(fd, &call, sizeof(call), deadline, e);
    if (rc == ERR_OK)
        rc = send_all(fd, plan, plan->bytes, deadline, e);
    return rc == ERR_OK ? receive_result(fd, number, result, cap, deadline, e) : rc;
}
