/* SPDX-License-Identifier: Apache-2.0
 *
 * What the two halves of the server share: http_server.c (loop, listener, posted work) and http_exchange.c
 * (connections: reading requests, writing replies). All of it belongs to the loop thread, but for what stands
 * behind `mutex`.
 */
#ifndef NET_SERVER_IMPL_H
#define NET_SERVER_IMPL_H

#include <event2/event.h>
#include <event2/listener.h>
#include <pthread.h>
#include <stdatomic.h>

#include "net/http_parse.h"

struct bufferevent;
struct connection;

struct post {
    void (*fn)(void *arg);
    void *arg;
};

struct http_server {
    struct http_server_options options; /* no zero left in it */
    uint16_t port;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *wake; /* posts and stop arrive */
    struct event
        *reap; /* connections are freed here and nowhere else, so that no caller loses one on its way */
    struct event *resume; /* accepts again after a pause */
    struct event *give_up;
    struct server_timer *timers;
    struct connection *connections;
    unsigned n_connections;
    size_t body_bytes; /* of all exchanges */
    bool stopping;
    int wake_fd;
    _Atomic bool stop;
    pthread_mutex_t mutex;
    struct post *posts; /* under mutex */
    size_t n_posts, posts_capacity;
    struct post *running; /* swapped with posts: no allocation in the long run */
    size_t running_capacity;
};

/* READING: a request arrives. BUSY: the handler has it. FLUSHING: its reply is complete, bytes are still on
 * their way; then READING again, or LINGERING: our side is shut, what still comes in is thrown away for a
 * moment, since closing with unread bytes would destroy the reply on its way. */
enum connection_state { READING, BUSY, FLUSHING, LINGERING };

struct connection {
    struct http_server *server;
    struct connection *next, *previous;
    struct bufferevent *events;
    enum connection_state state;
    struct http_exchange *exchange; /* from the first complete head on */
    size_t scanned;                 /* of an incomplete head */
    uint64_t since_ns;              /* first byte of a head; begin of lingering */
    uint64_t body_left;
    struct http_chunks chunks;
    bool keep_alive;
    bool half_closed; /* the client will send no more */
    bool doomed;      /* to be freed by reap */
    char peer[48];
};

/* Takes over fd. False: no memory, fd is closed. */
bool connection_open(struct http_server *s, int fd, const struct sockaddr *address);
void connection_doom(struct connection *c);
/* Calls on_close if need be and frees everything. */
void connection_free(struct connection *c);

#endif
