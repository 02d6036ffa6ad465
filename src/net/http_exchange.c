/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: one connection of the server: requests in, replies out, and every limit on what a client may make us
 * hold. Refuses: the next request of a connection before the last reply has left. So a client that asks and
 * never reads costs one reply, not thousands.
 */
#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/thread.h"
#include "net/server_impl.h"

#define LINGER_NS 2000000000u

struct http_exchange {
    struct connection *connection;
    struct http_head head;
    char *text; /* what head points into */
    struct strbuf body;
    size_t counted;      /* of the body, in server.body_bytes */
    struct strbuf extra; /* header lines added by the handler */
    void *user;
    void (*on_close)(struct http_exchange *x, void *user);
    bool is_head, streaming, chunked;
};

/* ---- ends */

void http_take_body(struct http_exchange *x, struct strbuf *to)
{
    x->connection->server->body_bytes -= x->counted;
    x->counted = 0;
    if (to) {
        *to = x->body;
        x->body = (struct strbuf)STRBUF_INIT;
    }
    strbuf_release(&x->body);
}

static void exchange_free(struct http_exchange *x)
{
    if (!x)
        return;
    http_take_body(x, NULL);
    free(x->text);
    strbuf_release(&x->extra);
    free(x);
}

void connection_doom(struct connection *c)
{
    if (c->doomed)
        return;
    c->doomed = true;
    bufferevent_disable(c->events, EV_READ | EV_WRITE);
    event_active(c->server->reap, EV_TIMEOUT, 0);
}

void connection_free(struct connection *c)
{
    struct http_server *s = c->server;
    struct http_exchange *x = c->exchange;
    c->doomed = true; /* what on_close writes goes nowhere */
    if (x && c->state == BUSY && x->on_close)
        x->on_close(x, x->user);
    exchange_free(c->exchange); /* NULL if on_close ended it itself */
    bufferevent_free(c->events);
    if (c->previous)
        c->previous->next = c->next;
    else
        s->connections = c->next;
    if (c->next)
        c->next->previous = c->previous;
    s->n_connections--;
    free(c);
}

static void set_timeouts(struct connection *c, bool reading)
{
    uint64_t ns = c->state == LINGERING ? LINGER_NS : c->server->options.timeout_ns;
    struct timeval t = {.tv_sec = (time_t)(ns / 1000000000), .tv_usec = (suseconds_t)(ns / 1000 % 1000000)};
    bufferevent_set_timeouts(c->events, reading ? &t : NULL, &t);
}

/* ---- replies */

static const char *reason(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 204:
        return "No Content";
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 408:
        return "Request Timeout";
    case 413:
        return "Content Too Large";
    case 415:
        return "Unsupported Media Type";
    case 417:
        return "Expectation Failed";
    case 422:
        return "Unprocessable Content";
    case 429:
        return "Too Many Requests";
    case 431:
        return "Request Header Fields Too Large";
    case 500:
        return "Internal Server Error";
    case 501:
        return "Not Implemented";
    case 503:
        return "Service Unavailable";
    case 505:
        return "HTTP Version Not Supported";
    default: /* the phrase may be empty */
        return "";
    }
}

static bool has_no_body(int status)
{
    return status < 200 || status == 204 || status == 304;
}

/* The reply's head; false: no memory. framing: "Content-Length: 12", "Transfer-Encoding: chunked" or "". */
static bool put_head(struct connection *c, int status, const char *content_type, const char *framing,
                     const struct strbuf *extra)
{
    struct evbuffer *out = bufferevent_get_output(c->events);
    bool failed = evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\n", status, reason(status)) < 0;
    if (content_type)
        failed |= evbuffer_add_printf(out, "Content-Type: %s\r\n", content_type) < 0;
    if (framing[0])
        failed |= evbuffer_add_printf(out, "%s\r\n", framing) < 0;
    if (extra)
        failed |= strbuf_failed(extra) || evbuffer_add(out, strbuf_cstr(extra), extra->len) != 0;
    failed |= evbuffer_add_printf(out, "Connection: %s\r\n\r\n", c->keep_alive ? "keep-alive" : "close") < 0;
    return !failed;
}

/* The reply is complete: on_write goes on when its bytes have left. */
static void flush(struct connection *c)
{
    exchange_free(c->exchange);
    c->exchange = NULL;
    c->state = FLUSHING;
    if (c->half_closed || c->server->stopping)
        c->keep_alive = false;
    /* Nothing left to send means that nothing would call on_write. */
    if (!c->doomed && evbuffer_get_length(bufferevent_get_output(c->events)) == 0)
        bufferevent_trigger(c->events, EV_WRITE, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

/* A request that no handler will see. */
static void refuse(struct connection *c, int status)
{
    char text[80], framing[48];
    int n = snprintf(text, sizeof(text), "%d %s\n", status, reason(status));
    snprintf(framing, sizeof(framing), "Content-Length: %d", n);
    c->keep_alive = false;
    bool failed = !put_head(c, status, "text/plain", framing, NULL);
    bool is_head = c->exchange && c->exchange->is_head;
    if (!is_head)
        failed |= evbuffer_add(bufferevent_get_output(c->events), text, (size_t)n) != 0;
    flush(c);
    set_timeouts(c, false);
    if (failed)
        connection_doom(c);
}

void http_reply(struct http_exchange *x, int status, const char *content_type, const void *body, size_t n)
{
    struct connection *c = x->connection;
    if (x->streaming)
        BUG("http_reply for an exchange that streams");
    if (c->doomed) {
        flush(c);
        return;
    }
    char framing[48];
    snprintf(framing, sizeof(framing), "Content-Length: %zu", n);
    if (c->half_closed || c->server->stopping)
        c->keep_alive = false;
    bool bodyless = has_no_body(status);
    bool failed = !put_head(c, status, content_type, bodyless ? "" : framing, &x->extra);
    if (!bodyless && !x->is_head && n)
        failed |= evbuffer_add(bufferevent_get_output(c->events), body, n) != 0;
    flush(c);
    if (failed) /* no memory: better no reply than half of one */
        connection_doom(c);
}

void http_stream_begin(struct http_exchange *x, int status, const char *content_type)
{
    struct connection *c = x->connection;
    if (x->streaming)
        BUG("http_stream_begin twice");
    x->streaming = true;
    x->chunked = !x->head.http_1_0;
    if (!x->chunked || c->server->stopping)
        c->keep_alive = false; /* without chunks only the end of the connection ends the body */
    if (c->doomed)
        return;
    if (!put_head(c, status, content_type, x->chunked ? "Transfer-Encoding: chunked" : "", &x->extra))
        connection_doom(c);
}

size_t http_stream_unsent(const struct http_exchange *x)
{
    return evbuffer_get_length(bufferevent_get_output(x->connection->events));
}

bool http_stream_write(struct http_exchange *x, const void *data, size_t n)
{
    struct connection *c = x->connection;
    if (!x->streaming)
        BUG("http_stream_write before http_stream_begin");
    if (c->doomed)
        return false;
    if (n == 0 || x->is_head)
        return true;
    struct evbuffer *out = bufferevent_get_output(c->events);
    size_t held = evbuffer_get_length(out), limit = c->server->options.max_output;
    bool failed = held > limit || n > limit - held;
    if (!failed && x->chunked)
        failed = evbuffer_add_printf(out, "%zx\r\n", n) < 0;
    if (!failed)
        failed = evbuffer_add(out, data, n) != 0;
    if (!failed && x->chunked)
        failed = evbuffer_add(out, "\r\n", 2) != 0;
    if (failed)
        connection_doom(c);
    return !failed;
}

void http_stream_end(struct http_exchange *x)
{
    struct connection *c = x->connection;
    if (!x->streaming)
        BUG("http_stream_end before http_stream_begin");
    bool failed = !c->doomed && x->chunked && !x->is_head &&
                  evbuffer_add(bufferevent_get_output(c->events), "0\r\n\r\n", 5) != 0;
    flush(c);
    if (failed)
        connection_doom(c);
}

void http_add_header(struct http_exchange *x, const char *name, const char *value)
{
    if (x->streaming)
        BUG("http_add_header after the head has left");
    if (name[0] == '\0' || strpbrk(name, "\r\n: ") || strpbrk(value, "\r\n"))
        BUG("reply header \"%s\" has characters that no header may have", name);
    strbuf_printf(&x->extra, "%s: %s\r\n", name, value);
}

/* ---- requests */

static void dispatch(struct connection *c)
{
    struct http_exchange *x = c->exchange;
    c->state = BUSY;
    set_timeouts(c, false);
    c->server->options.handler(x, c->server->options.user);
}

/* What the head says about the body: true if the body follows or the request is complete, false if it was
 * refused. */
static void begin_body(struct connection *c, const struct http_head *head)
{
    c->body_left = head->content_length;
    c->chunks = (struct http_chunks){0};
    if (head->content_length > c->server->options.max_body) {
        refuse(c, 413);
        return;
    }
    bool follows = head->chunked || head->content_length > 0;
    if (follows && head->expects_continue && evbuffer_get_length(bufferevent_get_input(c->events)) == 0)
        evbuffer_add_printf(bufferevent_get_output(c->events), "HTTP/1.1 100 Continue\r\n\r\n");
    if (!follows)
        dispatch(c);
}

static void take_head(struct connection *c, const char *text, size_t n)
{
    struct http_exchange *x = calloc(1, sizeof(*x));
    c->exchange = x;
    if (x) {
        x->connection = c;
        x->text = malloc(n + 1);
    }
    if (!x || !x->text) {
        refuse(c, 503);
        return;
    }
    memcpy(x->text, text, n);
    x->text[n] = '\0';
    evbuffer_drain(bufferevent_get_input(c->events), n);
    c->scanned = 0;
    int status = http_parse_head(x->text, n, &x->head);
    if (status) {
        refuse(c, status);
        return;
    }
    c->keep_alive = x->head.keep_alive;
    x->is_head = strcmp(x->head.method, "HEAD") == 0;
    begin_body(c, &x->head);
}

/* True if it got somewhere, so that what follows in the buffer may be looked at. */
static bool read_head(struct connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->events);
    size_t limit = c->server->options.max_headers;
    size_t n = evbuffer_get_length(in);
    if (n == 0)
        return false;
    const char *text =
        (const char *)evbuffer_pullup(in, n < limit + 2 ? (ev_ssize_t)n : (ev_ssize_t)limit + 2);
    if (!text) {
        refuse(c, 503);
        return false;
    }
    if (c->scanned == 0 && n >= 2 && text[0] == '\r' &&
        text[1] == '\n') { /* some send one too many after a body */
        evbuffer_drain(in, 2);
        return true;
    }
    if (c->since_ns == 0)
        c->since_ns = clock_ns();
    size_t end = http_head_end(text, n < limit ? n : limit, &c->scanned);
    if (end == SIZE_MAX)
        refuse(c, 400);
    else if (end > 0)
        take_head(c, text, end);
    else if (n >= limit)
        refuse(c, 431);
    else if (clock_ns() - c->since_ns > c->server->options.timeout_ns) /* byte by byte is no way to ask */
        refuse(c, 408);
    return end > 0 && end != SIZE_MAX;
}

static bool read_body(struct connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->events);
    struct http_exchange *x = c->exchange;
    size_t n = evbuffer_get_contiguous_space(in);
    if (n == 0)
        return false;
    const char *bytes = (const char *)evbuffer_pullup(in, (ev_ssize_t)n);
    int status = 0;
    size_t used;
    bool complete;
    if (x->head.chunked) {
        used = http_chunks_feed(&c->chunks, bytes, n, c->server->options.max_body, &x->body, &status);
        complete = c->chunks.done;
    } else {
        used = n < c->body_left ? n : (size_t)c->body_left;
        strbuf_add(&x->body, bytes, used);
        status = strbuf_failed(&x->body) ? 503 : 0;
        c->body_left -= used;
        complete = c->body_left == 0;
    }
    evbuffer_drain(in, used);
    struct http_server *s = c->server;
    s->body_bytes += x->body.len - x->counted;
    x->counted = x->body.len;
    if (!status && s->options.max_bodies && s->body_bytes > s->options.max_bodies)
        status = 503;
    if (status)
        refuse(c, status);
    else if (complete)
        dispatch(c);
    return !status && !complete;
}

static void process(struct connection *c)
{
    bool progress = true;
    while (progress && c->state == READING && !c->doomed)
        progress = c->exchange ? read_body(c) : read_head(c);
}

static void on_read(struct bufferevent *events, void *argument)
{
    struct connection *c = argument;
    if (c->doomed)
        return;
    if (c->state == LINGERING) {
        struct evbuffer *in = bufferevent_get_input(events);
        evbuffer_drain(in, evbuffer_get_length(in));
        if (clock_ns() - c->since_ns > LINGER_NS)
            connection_doom(c);
        return;
    }
    process(c);
}

/* All that was written has left. */
static void on_write(struct bufferevent *events, void *argument)
{
    struct connection *c = argument;
    if (c->doomed || c->state != FLUSHING || evbuffer_get_length(bufferevent_get_output(events)) > 0)
        return;
    if (c->server->stopping) {
        connection_doom(c);
        return;
    }
    c->since_ns = 0;
    if (c->keep_alive && !c->half_closed) {
        c->state = READING;
        set_timeouts(c, true);
        process(c);
        return;
    }
    if (c->half_closed || shutdown(bufferevent_getfd(events), SHUT_WR) != 0) {
        connection_doom(c);
        return;
    }
    c->state = LINGERING;
    c->since_ns = clock_ns();
    set_timeouts(c, true);
    on_read(events, c);
}

static void on_event(struct bufferevent *events, short what, void *argument)
{
    struct connection *c = argument;
    (void)events;
    if (c->doomed)
        return;
    /* Some clients shut their side once the request is out: a complete reply still goes to them. */
    if ((what & BEV_EVENT_EOF) && !(what & BEV_EVENT_ERROR) && c->state == FLUSHING) {
        c->half_closed = true;
        return;
    }
    connection_doom(c);
}

bool connection_open(struct http_server *s, int fd, const struct sockaddr *address)
{
    struct connection *c = calloc(1, sizeof(*c));
    if (c)
        c->events = bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!c || !c->events) {
        free(c);
        close(fd);
        return false;
    }
    int on = 1; /* each event of a stream is for somebody who waits */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    c->server = s;
    c->next = s->connections;
    if (c->next)
        c->next->previous = c;
    s->connections = c;
    s->n_connections++;
    if (address->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)address)->sin_addr, c->peer,
                  sizeof(c->peer));
    else if (address->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, c->peer,
                  sizeof(c->peer));
    bufferevent_setcb(c->events, on_read, on_write, on_event, c);
    bufferevent_setwatermark(c->events, EV_READ, 0, s->options.max_headers + 65536);
    set_timeouts(c, true);
    bufferevent_enable(c->events, EV_READ | EV_WRITE);
    return true;
}

/* ---- access */

const char *http_method(const struct http_exchange *x)
{
    return x->is_head ? "GET" : x->head.method;
}

const char *http_path(const struct http_exchange *x)
{
    return x->head.path;
}

const char *http_query(const struct http_exchange *x)
{
    return x->head.query;
}

const char *http_header(const struct http_exchange *x, const char *name)
{
    for (size_t i = 0; i < x->head.n_headers; i++)
        if (strcasecmp(x->head.headers[i].name, name) == 0)
            return x->head.headers[i].value;
    return NULL;
}

const char *http_body(const struct http_exchange *x, size_t *n)
{
    if (n)
        *n = x->body.len;
    return strbuf_cstr(&x->body);
}

const char *http_peer(const struct http_exchange *x)
{
    return x->connection->peer;
}

void http_set_user(struct http_exchange *x, void *user)
{
    x->user = user;
}

void *http_user(const struct http_exchange *x)
{
    return x->user;
}

void http_on_close(struct http_exchange *x, void (*on_close)(struct http_exchange *x, void *user))
{
    x->on_close = on_close;
}
