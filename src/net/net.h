/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1: a client (one request, or thousands of streams on one thread) and a server with streaming
 * replies, both with Server-Sent Events. No JSON, no TLS on the server side, no proxies. What the other side
 * sends can neither crash nor stall us, nor make us hold more than the stated limits.
 */
#ifndef NET_NET_H
#define NET_NET_H

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

struct http_header {
    const char *name, *value;
};

/* ==== client
 * ================================================================================================== */

struct http_request {
    const char *method; /* NULL: POST with a body, GET without */
    const char *url;    /* http:// or https:// */
    const struct http_header *headers;
    size_t n_headers;
    const void *body; /* copied when the request starts */
    size_t body_bytes;
    uint64_t connect_timeout_ns; /* 0: 10 s */
    uint64_t timeout_ns;         /* for the whole exchange; 0: none */
    uint64_t idle_timeout_ns;    /* no byte for so long (whole seconds, rounded up); 0: none */
    size_t max_body;             /* of the response, or of one event; more is ERR_LIMIT. 0: 64 MiB */
    unsigned max_redirects;      /* 0: a redirect is returned like any other status */
    bool public_only; /* refuse loopback, private and link-local addresses (URLs that a client named) */
};

struct http_response {
    int status;            /* 0: none arrived */
    struct strbuf headers; /* "name\0value\0"...; names in lower case */
    struct strbuf body;    /* empty where events were delivered instead */
    uint64_t n_events;
    uint64_t started_ns, headers_ns, finished_ns; /* clock_ns(); 0: did not happen */
};

const char *http_response_header(const struct http_response *r,
                                 const char *lower_case_name); /* NULL: absent */
void http_response_release(struct http_response *r);

/* One event of a text/event-stream response: its data lines joined by '\n'. Comments are swallowed. */
struct sse_event {
    const char *data; /* NUL-terminated */
    size_t n;
    const char *type;     /* "" unless an event: line named one */
    uint64_t received_ns; /* clock_ns() when the bytes that completed it were read */
};

/* Return false to end the request (it fails with ERR_CANCELLED). */
typedef bool (*sse_event_fn)(void *user, const struct sse_event *event);

/* Blocking. A status of 400 or more is no failure: look at out->status. on_event may be NULL: then everything
 * goes to the body. Errors: ERR_COMM (not reachable, broken), ERR_TIMEOUT, ERR_LIMIT, ERR_CANCELLED,
 * ERR_INVALID, ERR_NOMEM; *out then holds what had arrived. Release *out in any case. */
int http_fetch(const struct http_request *request, sse_event_fn on_event, void *user,
               struct http_response *out, struct err *e);

/* Many requests on one thread. All functions but http_client_wake belong to that thread. */
struct http_client;
struct http_transfer; /* valid until its on_done returns */

struct http_handlers {
    sse_event_fn on_event; /* may be NULL */
    /* Exactly once per transfer. failure is NULL when a whole response arrived. The response is released
     * afterwards; who wants to keep it copies the struct and zeroes the original. */
    void (*on_done)(void *user, struct http_response *response, const struct err *failure);
};

int http_client_open(struct http_client **out, struct err *e);
/* Open transfers are dropped without a call of on_done. */
void http_client_close(struct http_client *c);
/* Copies the request. May be called from on_event and on_done. transfer may be NULL. */
int http_client_add(struct http_client *c, const struct http_request *request,
                    const struct http_handlers *handlers, void *user, struct http_transfer **transfer,
                    struct err *e);
void http_client_cancel(struct http_client *c,
                        struct http_transfer *t); /* on_done follows, with ERR_CANCELLED */
size_t http_client_active(const struct http_client *c);
/* Waits for activity at most timeout_ns, then runs the callbacks that are due. */
int http_client_poll(struct http_client *c, uint64_t timeout_ns, struct err *e);
void http_client_wake(struct http_client *c); /* from any thread: ends a poll */

/* ==== server
 * ==================================================================================================
 *
 * One thread runs the loop (http_server_run). Everything that takes an exchange belongs to that thread; other
 * threads hand work over with http_server_post. An exchange is valid from the handler's call until http_reply
 * or http_stream_end was called for it, or its on_close has returned; after that the pointer is dead.
 */
struct http_server;
struct http_exchange;

struct http_server_options {
    const char *host;   /* NULL: 127.0.0.1 */
    uint16_t port;      /* 0: a free one, see http_server_port */
    size_t max_body;    /* of a request; 0: 64 MiB. More is answered with 413 */
    size_t max_bodies;  /* of all requests that are held at a time; 0: no limit. More is answered with 503 */
    size_t max_headers; /* 0: 32 KiB. More is answered with 431 */
    size_t max_output;  /* unsent bytes of a stream; 0: 4 MiB. A client that lets more pile up is cut off */
    unsigned max_connections; /* 0: 4,096. More wait in the listen queue */
    uint64_t timeout_ns; /* for a request to arrive, for an idle connection, for a client that takes nothing;
                          * 0: 60 s. Not for the time that the handler needs. */
    /* Answers at once or later. Malformed requests do not get here. */
    void (*handler)(struct http_exchange *x, void *user);
    void *user;
};

int http_server_open(struct http_server **out, const struct http_server_options *options, struct err *e);
/* After http_server_run has returned. Open exchanges get their on_close; functions that were posted and not
 * yet run are run then. */
void http_server_close(struct http_server *s);
uint16_t http_server_port(const struct http_server *s);
unsigned http_server_connections(const struct http_server *s); /* loop thread */
/* Until http_server_stop. Exchanges still open then are cut off; replies already given have a second to
 * leave. */
int http_server_run(struct http_server *s, struct err *e);
void http_server_stop(struct http_server *s); /* from any thread */
/* From any thread: fn(arg) on the loop thread, in order of the calls. Returns 0 or ERR_NOMEM. */
int http_server_post(struct http_server *s, void (*fn)(void *arg), void *arg);
/* fn(arg) on the loop thread every period_ns. Before http_server_run or on the loop thread. */
int http_server_every(struct http_server *s, uint64_t period_ns, void (*fn)(void *arg), void *arg,
                      struct err *e);

const char *
http_method(const struct http_exchange *x); /* "GET"; HEAD is handled like GET, its body is left out */
const char *http_path(const struct http_exchange *x);  /* percent-decoded, begins with '/' */
const char *http_query(const struct http_exchange *x); /* raw text behind '?', "" if none */
const char *http_header(const struct http_exchange *x, const char *name); /* NULL: absent. Any case */
const char *http_body(const struct http_exchange *x, size_t *n);          /* NUL-terminated; n may be NULL */
/* The body leaves the exchange, which no longer counts it: a request that is answered much later need not
 * hold it. to: gets it, released before; NULL: nobody needs it any more. */
void http_take_body(struct http_exchange *x, struct strbuf *to);
const char *http_peer(const struct http_exchange *x); /* "127.0.0.1" */

void http_set_user(struct http_exchange *x, void *user);
void *http_user(const struct http_exchange *x);
/* Called once if the client is gone (or was cut off) before the reply was complete, never from inside a
 * function of this header that was given the exchange. */
void http_on_close(struct http_exchange *x, void (*on_close)(struct http_exchange *x, void *user));

/* A header for the reply to come. Line breaks in it are a bug. */
void http_add_header(struct http_exchange *x, const char *name, const char *value);
/* content_type may be NULL. Ends the exchange. */
void http_reply(struct http_exchange *x, int status, const char *content_type, const void *body, size_t n);
/* Begins a reply of unknown length. */
void http_stream_begin(struct http_exchange *x, int status, const char *content_type);
/* Takes a copy. False: the client is gone or did not keep up; on_close follows, further writes do nothing. */
bool http_stream_write(struct http_exchange *x, const void *data, size_t n);
size_t http_stream_unsent(const struct http_exchange *x); /* bytes waiting for the client */
void http_stream_end(struct http_exchange *x);            /* Ends the exchange. */

#endif
