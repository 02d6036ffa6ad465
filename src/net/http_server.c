/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the loop, the listening socket, work handed over by other threads, timers, and the end of
 * connections. Refuses: more connections than allowed: they wait in the kernel's queue, which is why that is
 * long.
 *
 * The parser is our own (http_parse.c) on libevent's buffered sockets: libevent's evhttp takes requests that
 * can be read in two ways, and tells nobody when a connection that never asked anything has ended, so those
 * could not be counted.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/thread.h"
#include "net/server_impl.h"
#include "net/sigpipe.h"

#define BACKLOG         4096
#define FLUSH_AT_END_S  1
#define ACCEPT_PAUSE_US 100000

struct server_timer {
    struct server_timer *next;
    struct event *event;
    void (*fn)(void *arg);
    void *arg;
};

/* ---- connections */

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address,
                      int bytes, void *argument)
{
    struct http_server *s = argument;
    (void)bytes;
    connection_open(s, fd, address);
    if (s->n_connections >= s->options.max_connections)
        evconnlistener_disable(listener);
}

/* Mostly "too many open files": the listening socket stays readable, so without a pause the loop would spin.
 */
static void on_accept_error(struct evconnlistener *listener, void *argument)
{
    struct http_server *s = argument;
    struct timeval pause = {.tv_usec = ACCEPT_PAUSE_US};
    evconnlistener_disable(listener);
    event_add(s->resume, &pause);
}

static void on_resume(evutil_socket_t fd, short what, void *argument)
{
    struct http_server *s = argument;
    (void)fd, (void)what;
    if (s->listener && s->n_connections < s->options.max_connections)
        evconnlistener_enable(s->listener);
}

static void on_reap(evutil_socket_t fd, short what, void *argument)
{
    struct http_server *s = argument;
    (void)fd, (void)what;
    for (struct connection *c = s->connections, *next; c; c = next) {
        next = c->next;
        if (c->doomed)
            connection_free(c);
    }
    if (s->stopping && s->n_connections == 0)
        event_base_loopbreak(s->base);
    /* a pause for lack of descriptors ends by its timer only */
    if (!event_pending(s->resume, EV_TIMEOUT, NULL))
        on_resume(-1, 0, s);
}

/* ---- the end */

static void on_give_up(evutil_socket_t fd, short what, void *argument)
{
    struct http_server *s = argument;
    (void)fd, (void)what;
    event_base_loopbreak(s->base);
}

static void begin_stop(struct http_server *s)
{
    if (s->stopping)
        return;
    s->stopping = true;
    evconnlistener_free(s->listener);
    s->listener = NULL;
    for (struct connection *c = s->connections; c; c = c->next)
        if (c->state != FLUSHING)
            connection_doom(c);
    struct timeval limit = {.tv_sec = FLUSH_AT_END_S};
    event_add(s->give_up, &limit);
    event_active(s->reap, EV_TIMEOUT, 0);
}

/* ---- work from other threads */

static void run_posts(struct http_server *s)
{
    pthread_mutex_lock(&s->mutex);
    struct post *batch = s->posts;
    size_t n = s->n_posts, capacity = s->posts_capacity;
    s->posts = s->running;
    s->posts_capacity = s->running_capacity;
    s->n_posts = 0;
    pthread_mutex_unlock(&s->mutex);
    s->running = batch;
    s->running_capacity = capacity;
    for (size_t i = 0; i < n; i++)
        batch[i].fn(batch[i].arg);
}

static void on_wake(evutil_socket_t fd, short what, void *argument)
{
    struct http_server *s = argument;
    uint64_t count;
    (void)what;
    (void)!read(fd, &count, sizeof(count));
    run_posts(s);
    if (atomic_load(&s->stop))
        begin_stop(s);
}

static void wake(struct http_server *s)
{
    uint64_t one = 1; /* fails only when the counter is full: then it wakes anyway */
    (void)!write(s->wake_fd, &one, sizeof(one));
}

int http_server_post(struct http_server *s, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&s->mutex);
    bool was_empty = s->n_posts == 0;
    int rc = vec_reserve((void **)&s->posts, &s->posts_capacity, s->n_posts + 1, sizeof(s->posts[0]));
    if (!rc)
        s->posts[s->n_posts++] = (struct post){.fn = fn, .arg = arg};
    pthread_mutex_unlock(&s->mutex);
    if (!rc && was_empty)
        wake(s);
    return rc;
}

void http_server_stop(struct http_server *s)
{
    atomic_store(&s->stop, true);
    wake(s);
}

static void on_timer(evutil_socket_t fd, short what, void *argument)
{
    struct server_timer *t = argument;
    (void)fd, (void)what;
    t->fn(t->arg);
}

int http_server_every(struct http_server *s, uint64_t period_ns, void (*fn)(void *arg), void *arg,
                      struct err *e)
{
    struct server_timer *t = calloc(1, sizeof(*t));
    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for a timer");
    t->fn = fn;
    t->arg = arg;
    t->event = event_new(s->base, -1, EV_PERSIST, on_timer, t);
    if (period_ns < 1000)
        period_ns = 1000;
    struct timeval period = {.tv_sec = (time_t)(period_ns / 1000000000),
                             .tv_usec = (suseconds_t)(period_ns / 1000 % 1000000)};
    if (!t->event || event_add(t->event, &period) != 0) {
        if (t->event)
            event_free(t->event);
        free(t);
        return err_set(e, ERR_NOMEM, "no memory for a timer");
    }
    t->next = s->timers;
    s->timers = t;
    return ERR_OK;
}

/* ---- opening */

static int listen_on(const struct addrinfo *a)
{
    int on = 1, fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof(a);
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

static int open_listener(struct http_server *s, struct err *e)
{
    const char *host = s->options.host;
    char port[8];
    snprintf(port, sizeof(port), "%u", s->options.port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    struct addrinfo *found = NULL;
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed)
        return err_set(e, ERR_INVALID, "%s:%s: cannot resolve the host: %s", host, port,
                       gai_strerror(failed));
    int fd = -1;
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next)
        fd = listen_on(a);
    int why = errno;
    freeaddrinfo(found);
    if (fd < 0 && why == EADDRINUSE) {
        err_set(e, ERR_BUSY, "%s:%s: the port is in use by another program", host, port);
        err_hint(e, "stop that program or choose another port");
        return ERR_BUSY;
    }
    if (fd < 0)
        return err_set(e, why == EACCES || why == EADDRNOTAVAIL ? ERR_INVALID : ERR_IO,
                       "%s:%s: cannot listen: %s", host, port, strerrordesc_np(why));
    s->port = port_of(fd);
    unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC;
    s->listener = evconnlistener_new(s->base, on_accept, s, flags, 0, fd);
    if (!s->listener) {
        close(fd);
        return err_set(e, ERR_NOMEM, "%s:%s: no memory to listen", host, port);
    }
    evconnlistener_set_error_cb(s->listener, on_accept_error);
    return ERR_OK;
}

static int set_options(struct http_server *s, const struct http_server_options *o, struct err *e)
{
    if (!o->handler)
        return err_set(e, ERR_INVALID, "an HTTP server needs a handler");
    s->options = *o;
    s->options.host = strdup(o->host ? o->host : "127.0.0.1");
    if (!s->options.host)
        return err_set(e, ERR_NOMEM, "no memory for an HTTP server");
    if (!o->max_body)
        s->options.max_body = (size_t)64 << 20;
    if (!o->max_headers)
        s->options.max_headers = (size_t)32 << 10;
    if (s->options.max_headers > (size_t)1 << 20)
        s->options.max_headers = (size_t)1 << 20;
    if (!o->max_output)
        s->options.max_output = (size_t)4 << 20;
    if (!o->max_connections)
        s->options.max_connections = 4096;
    if (!o->timeout_ns)
        s->options.timeout_ns = 60000000000u;
    return ERR_OK;
}

static int open_events(struct http_server *s, struct err *e)
{
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->base = event_base_new();
    if (s->wake_fd < 0 || !s->base)
        return err_set(e, ERR_IO, "cannot set up an event loop: %m");
    s->wake = event_new(s->base, s->wake_fd, EV_READ | EV_PERSIST, on_wake, s);
    s->reap = event_new(s->base, -1, 0, on_reap, s);
    s->resume = event_new(s->base, -1, 0, on_resume, s);
    s->give_up = event_new(s->base, -1, 0, on_give_up, s);
    if (!s->wake || !s->reap || !s->resume || !s->give_up || event_add(s->wake, NULL) != 0)
        return err_set(e, ERR_NOMEM, "no memory for an event loop");
    return ERR_OK;
}

int http_server_open(struct http_server **out, const struct http_server_options *options, struct err *e)
{
    struct http_server *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for an HTTP server");
    s->wake_fd = -1;
    pthread_mutex_init(&s->mutex, NULL);
    int rc = set_options(s, options, e);
    if (!rc)
        rc = open_events(s, e);
    if (!rc)
        rc = open_listener(s, e);
    if (rc) {
        http_server_close(s);
        return rc;
    }
    *out = s;
    return ERR_OK;
}

int http_server_run(struct http_server *s, struct err *e)
{
    struct sigpipe_guard guard;
    sigpipe_block(&guard);
    int rc = event_base_dispatch(s->base);
    sigpipe_restore(&guard);
    if (rc < 0)
        return err_set(e, ERR_IO, "%s:%u: the event loop failed", s->options.host, s->port);
    return ERR_OK;
}

static void event_release(struct event *event)
{
    if (event)
        event_free(event);
}

void http_server_close(struct http_server *s)
{
    if (!s)
        return;
    s->stopping = true;
    if (s->listener)
        evconnlistener_free(s->listener);
    while (s->connections)
        connection_free(s->connections);
    while (s->n_posts > 0) /* what they hold would be lost otherwise */
        run_posts(s);
    while (s->timers) {
        struct server_timer *t = s->timers;
        s->timers = t->next;
        event_free(t->event);
        free(t);
    }
    event_release(s->wake);
    event_release(s->reap);
    event_release(s->resume);
    event_release(s->give_up);
    if (s->base)
        event_base_free(s->base);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    pthread_mutex_destroy(&s->mutex);
    free(s->posts);
    free(s->running);
    free((char *)s->options.host);
    free(s);
}

uint16_t http_server_port(const struct http_server *s)
{
    return s->port;
}

unsigned http_server_connections(const struct http_server *s)
{
    return s->n_connections;
}
