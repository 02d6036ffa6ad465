/* SPDX-License-Identifier: Apache-2.0
 *
 * Server and client against each other, and the server against raw sockets that behave badly.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/thread.h"
#include "net/net.h"
#include "net/sse.h"

#define N_EVENTS 20

/* ---- the server under test: one per test, in a thread of its own */

struct fixture {
    struct http_server *server;
    pthread_t thread;
    _Atomic int n_closed, n_cut, n_handled;
    struct stream *streams; /* loop thread */
    char url[64];
};

struct stream {
    struct stream *next;
    struct fixture *f;
    struct http_exchange *x;
    int sent, wanted;
    size_t bytes; /* per event; 0: a short text */
};

static void stream_gone(struct http_exchange *x, void *user)
{
    struct stream *s = user;
    assert_ptr_equal(s->x, x);
    s->x = NULL;
    s->f->n_closed++;
}

/* Every tick each stream gets its next event, as a scheduler's steps would give it. */
static void tick(void *arg)
{
    struct fixture *f = arg;
    static const char filler[65536];
    for (struct stream **at = &f->streams; *at;) {
        struct stream *s = *at;
        char text[64];
        if (s->x && s->sent < s->wanted) {
            int n = snprintf(text, sizeof(text), "data: event %d\n\n", s->sent++);
            if (!http_stream_write(s->x, s->bytes ? filler : text, s->bytes ? s->bytes : (size_t)n))
                f->n_cut++;
        }
        if (s->x && s->sent < s->wanted) {
            at = &s->next;
            continue;
        }
        if (s->x && s->wanted > 0)
            http_stream_end(s->x);
        *at = s->next;
        free(s);
    }
}

static void begin_stream(struct fixture *f, struct http_exchange *x, int wanted, size_t bytes)
{
    struct stream *s = calloc(1, sizeof(*s));
    *s = (struct stream){.next = f->streams, .f = f, .x = x, .wanted = wanted, .bytes = bytes};
    f->streams = s;
    http_set_user(x, s);
    http_on_close(x, stream_gone);
    http_stream_begin(x, 200, "text/event-stream");
}

static void handle(struct http_exchange *x, void *user)
{
    struct fixture *f = user;
    const char *path = http_path(x);
    size_t n;
    const char *body = http_body(x, &n);
    f->n_handled++;
    if (strcmp(path, "/echo") == 0) {
        struct strbuf text = STRBUF_INIT;
        const char *test = http_header(x, "x-TEST");
        strbuf_printf(&text, "%s %s?%s [%s] %s ", http_method(x), path, http_query(x), test ? test : "-",
                      http_peer(x));
        strbuf_add(&text, body, n);
        http_add_header(x, "X-Reply", "yes");
        http_reply(x, 200, "text/plain", text.data, text.len);
        strbuf_release(&text);
    } else if (strcmp(path, "/events") == 0) {
        begin_stream(f, x, N_EVENTS, 0);
    } else if (strcmp(path, "/forget") == 0) {
        struct strbuf taken = STRBUF_INIT;
        http_take_body(x, &taken);
        assert_int_equal(taken.len, n);
        strbuf_release(&taken);
        http_body(x, &n);
        assert_int_equal(n, 0);
        begin_stream(f, x, 1000000, 0);
    } else if (strcmp(path, "/forever") == 0) {
        begin_stream(f, x, 1000000, 0);
    } else if (strcmp(path, "/flood") == 0) {
        begin_stream(f, x, 1000000, 65536);
    } else if (strcmp(path, "/sp ace") == 0) {
        http_reply(x, 204, NULL, NULL, 0);
    } else {
        http_reply(x, 404, "text/plain", "no\n", 3);
    }
}

static void *serve(void *argument)
{
    struct fixture *f = argument;
    if (http_server_run(f->server, NULL))
        abort();
    return NULL;
}

static void open_server(struct fixture *f, struct http_server_options options)
{
    struct err e = {0};
    memset(f, 0, sizeof(*f));
    options.handler = handle;
    options.user = f;
    if (http_server_open(&f->server, &options, &e))
        fail_msg("%s", e.message);
    assert_int_equal(http_server_every(f->server, 2000000, tick, f, NULL), ERR_OK);
    snprintf(f->url, sizeof(f->url), "http://127.0.0.1:%u", http_server_port(f->server));
    assert_int_equal(pthread_create(&f->thread, NULL, serve, f), 0);
}

static void close_server(struct fixture *f)
{
    http_server_stop(f->server);
    pthread_join(f->thread, NULL);
    http_server_close(f->server);
    while (f->streams) {
        struct stream *s = f->streams;
        f->streams = s->next;
        free(s);
    }
}

static bool becomes(_Atomic int *value, int expected)
{
    for (int i = 0; i < 2000 && *value != expected; i++)
        clock_sleep_ns(5000000);
    return *value == expected;
}

/* ---- raw clients */

static int dial(const struct fixture *f)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(http_server_port(f->server))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval limit = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

static bool say(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t put = send(fd, text, n, MSG_NOSIGNAL);
        if (put <= 0)
            return false;
        text += put;
        n -= (size_t)put;
    }
    return true;
}

/* All until the server closes. */
static char *hear(int fd, char *buf, size_t bytes)
{
    size_t n = 0;
    ssize_t got = 0;
    while (n + 1 < bytes && (got = recv(fd, buf + n, bytes - 1 - n, 0)) > 0)
        n += (size_t)got;
    buf[n] = '\0';
    if (got < 0)
        fail_msg("the connection was not closed in order: %s, after \"%.200s\"", strerror(errno), buf);
    return buf;
}

static void raw_n(const struct fixture *f, const char *request, size_t n, const char *answer)
{
    char buf[65536];
    int fd = dial(f);
    say(fd, request, n);
    hear(fd, buf, sizeof(buf));
    close(fd);
    if (strncmp(buf, answer, strlen(answer)) != 0)
        fail_msg("asked:\n%s\nexpected \"%s\", got:\n%s", request, answer, buf);
}

static void raw(const struct fixture *f, const char *request, const char *answer)
{
    raw_n(f, request, strlen(request), answer);
}

/* ---- tests */

static void plain_requests(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    struct http_response r;
    open_server(&f, (struct http_server_options){0});
    char url[128];
    struct http_header headers[] = {{"X-Test", "a b"}};
    snprintf(url, sizeof(url), "%s/ec%%68o?q=%%20", f.url);
    struct http_request q = {
        .url = url, .headers = headers, .n_headers = 1, .body = "hi\0you", .body_bytes = 6};
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_OK);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.body.len, strlen("POST /echo?q=%20 [a b] 127.0.0.1 ") + 6);
    assert_memory_equal(r.body.data, "POST /echo?q=%20 [a b] 127.0.0.1 hi\0you", r.body.len);
    assert_string_equal(http_response_header(&r, "x-reply"), "yes");
    assert_string_equal(http_response_header(&r, "content-type"), "text/plain");
    assert_null(http_response_header(&r, "absent"));
    assert_true(r.started_ns <= r.headers_ns && r.headers_ns <= r.finished_ns && r.started_ns > 0);
    http_response_release(&r);
    q = (struct http_request){.url = url, .method = "HEAD"};
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_OK);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.body.len, 0);
    assert_non_null(http_response_header(&r, "content-length"));
    http_response_release(&r);
    snprintf(url, sizeof(url), "%s/none", f.url);
    q = (struct http_request){.url = url, .method = "DELETE"};
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_OK);
    assert_int_equal(r.status, 404);
    http_response_release(&r);
    snprintf(url, sizeof(url), "%s/sp%%20ace", f.url);
    q = (struct http_request){.url = url};
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_OK);
    assert_int_equal(r.status, 204);
    http_response_release(&r);
    close_server(&f);
}

static void client_failures(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    struct http_response r;
    char url[128];
    open_server(&f, (struct http_server_options){0});
    snprintf(url, sizeof(url), "%s/forever", f.url);
    struct http_request q = {.url = url, .timeout_ns = 100000000};
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.message, url));
    assert_int_equal(r.status, 200); /* what had arrived is there */
    assert_true(r.body.len > 0);
    http_response_release(&r);
    q.timeout_ns = 0;
    q.max_body = 100;
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_LIMIT);
    http_response_release(&r);
    q.max_body = 0;
    q.public_only = true;
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_INVALID);
    assert_non_null(strstr(e.message, "not public"));
    http_response_release(&r);
    static const char *const bad[] = {"file:///etc/passwd", "ftp://127.0.0.1/", "http://", "http://[::1"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        q = (struct http_request){.url = bad[i]};
        assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_INVALID);
        http_response_release(&r);
    }
    struct http_header forged = {"X-A", "b\r\nX-C: d"};
    q = (struct http_request){.url = url, .headers = &forged, .n_headers = 1};
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_INVALID);
    http_response_release(&r);
    close_server(&f);
    q = (struct http_request){.url = url};
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_COMM);
    assert_int_equal(r.status, 0);
    http_response_release(&r);
}

struct listener {
    int n_events, n_wrong, stop_at;
    _Atomic int n_done, n_failed;
    int code;
    uint64_t last_ns;
};

static bool hear_event(void *user, const struct sse_event *event)
{
    struct listener *l = user;
    char expected[32];
    snprintf(expected, sizeof(expected), "event %d", l->n_events++);
    l->n_wrong += strcmp(event->data, expected) != 0 || event->n != strlen(expected) ||
                  event->type[0] != '\0' || event->received_ns < l->last_ns ||
                  event->received_ns > clock_ns();
    l->last_ns = event->received_ns;
    return l->n_events != l->stop_at;
}

static void hear_done(void *user, struct http_response *response, const struct err *failure)
{
    struct listener *l = user;
    l->n_done++;
    l->n_failed += failure != NULL;
    l->code = failure ? failure->code : response->status;
}

static void fifty_streams_at_once(void **state)
{
    (void)state;
    enum { N = 50 };
    struct fixture f;
    struct http_client *c;
    static struct listener l[N];
    char url[128];
    memset(l, 0, sizeof(l));
    open_server(&f, (struct http_server_options){0});
    snprintf(url, sizeof(url), "%s/events", f.url);
    assert_int_equal(http_client_open(&c, NULL), ERR_OK);
    struct http_request q = {.url = url, .body = "{}", .body_bytes = 2};
    struct http_handlers h = {.on_event = hear_event, .on_done = hear_done};
    for (int i = 0; i < N; i++)
        assert_int_equal(http_client_add(c, &q, &h, &l[i], NULL, NULL), ERR_OK);
    assert_int_equal(http_client_active(c), N);
    while (http_client_active(c) > 0)
        assert_int_equal(http_client_poll(c, 1000000000, NULL), ERR_OK);
    for (int i = 0; i < N; i++) {
        assert_int_equal(l[i].n_events, N_EVENTS);
        assert_int_equal(l[i].n_wrong, 0);
        assert_int_equal(l[i].n_done, 1);
        assert_int_equal(l[i].code, 200);
    }
    http_client_close(c);
    assert_int_equal(f.n_closed, 0);
    close_server(&f);
}

static void a_client_that_leaves_is_noticed(void **state)
{
    (void)state;
    struct fixture f;
    struct http_client *c;
    struct http_transfer *t;
    struct listener l = {.stop_at = 3};
    struct listener m = {0};
    char url[128];
    open_server(&f, (struct http_server_options){0});
    snprintf(url, sizeof(url), "%s/forever", f.url);
    struct http_request q = {.url = url};
    struct http_response r;
    struct err e = {0};
    assert_int_equal(http_fetch(&q, hear_event, &l, &r, &e), ERR_CANCELLED);
    assert_int_equal(l.n_events, 3);
    assert_int_equal(r.n_events, 3);
    http_response_release(&r);
    assert_true(becomes(&f.n_closed, 1));
    assert_int_equal(http_client_open(&c, NULL), ERR_OK);
    struct http_handlers h = {.on_event = hear_event, .on_done = hear_done};
    assert_int_equal(http_client_add(c, &q, &h, &m, &t, NULL), ERR_OK);
    while (m.n_events < 2)
        assert_int_equal(http_client_poll(c, 100000000, NULL), ERR_OK);
    http_client_cancel(c, t);
    while (http_client_active(c) > 0)
        assert_int_equal(http_client_poll(c, 100000000, NULL), ERR_OK);
    assert_int_equal(m.n_done, 1);
    assert_int_equal(m.code, ERR_CANCELLED);
    http_client_close(c);
    assert_true(becomes(&f.n_closed, 2));
    /* closed while open transfers are dropped: no call */
    assert_int_equal(http_client_open(&c, NULL), ERR_OK);
    assert_int_equal(http_client_add(c, &q, &h, &m, NULL, NULL), ERR_OK);
    assert_int_equal(http_client_poll(c, 100000000, NULL), ERR_OK);
    http_client_close(c);
    assert_int_equal(m.n_done, 1);
    close_server(&f);
}

static void large_bodies_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    struct http_response r;
    struct err e = {0};
    char url[128];
    open_server(&f, (struct http_server_options){.max_body = 100000});
    snprintf(url, sizeof(url), "%s/echo", f.url);
    char *body = calloc(1, 5000000);
    struct http_request q = {.url = url, .body = body, .body_bytes = 100000};
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_OK);
    assert_int_equal(r.status, 200);
    http_response_release(&r);
    q.body_bytes = 100001;
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_OK);
    assert_int_equal(r.status, 413);
    http_response_release(&r);
    q.body_bytes = 5000000; /* the reply arrives although nobody reads the body */
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_OK);
    assert_int_equal(r.status, 413);
    http_response_release(&r);
    struct http_header chunked = {"Transfer-Encoding", "chunked"};
    q.headers = &chunked;
    q.n_headers = 1;
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_OK);
    assert_int_equal(r.status, 413);
    http_response_release(&r);
    q.body_bytes = 100000;
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_OK);
    assert_int_equal(r.status, 200);
    http_response_release(&r);
    /* one that reads only after it has sent everything */
    static const char head[] = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n";
    memcpy(body, head, sizeof(head) - 1);
    char buf[4096];
    int fd = dial(&f);
    assert_true(say(fd, body, 5000000));
    assert_non_null(strstr(hear(fd, buf, sizeof(buf)), "413"));
    close(fd);
    free(body);
    close_server(&f);
}

static int post_part(const struct fixture *f, const char *path, const char *length, size_t n)
{
    static const char filler[65536];
    char head[128];
    int fd = dial(f);
    snprintf(head, sizeof(head), "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\n\r\n", path, length);
    assert_true(say(fd, head, strlen(head)) && say(fd, filler, n));
    return fd;
}

/* What all bodies hold at a time is bounded, and what was forgotten, or has left, no longer counts. */
static void bodies_have_a_limit_together(void **state)
{
    (void)state;
    struct fixture f;
    struct http_response r;
    struct err e = {0};
    static const char body[40000];
    char url[128], buf[4096];
    open_server(&f, (struct http_server_options){.max_body = 60000, .max_bodies = 100000});
    snprintf(url, sizeof(url), "%s/echo", f.url);
    struct http_request q = {.url = url, .body = body, .body_bytes = sizeof(body)};
    int half = post_part(&f, "/echo", "60000", 50000), most = post_part(&f, "/forever", "49000", 49000);
    assert_true(becomes(&f.n_handled, 1));
    for (int i = 0, status = 0; status != 503; i++) { /* the half one may still be on its way */
        assert_true(i < 100);
        assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_OK);
        status = r.status;
        http_response_release(&r);
    }
    close(most);
    assert_true(becomes(&f.n_closed, 1));
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_OK);
    assert_int_equal(r.status, 200);
    http_response_release(&r);
    most = post_part(&f, "/forget", "49000", 49000);
    assert_non_null(strstr(hear(most, buf, sizeof(buf)), "200"));
    assert_int_equal(http_fetch(&q, NULL, NULL, &r, &e), ERR_OK);
    assert_int_equal(r.status, 200);
    http_response_release(&r);
    close(half);
    close(most);
    close_server(&f);
}

#define HEAD "GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
#define POST "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"

static void malformed_requests_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    open_server(&f, (struct http_server_options){.max_headers = 2000});
    raw(&f, HEAD "\r\n", "HTTP/1.1 200 OK\r\n");
    raw(&f, "\r\n" HEAD "\r\n", "HTTP/1.1 200");
    raw(&f, "GET /echo HTTP/1.0\r\n\r\n", "HTTP/1.1 200");
    raw(&f, "GET /echo HTTP/1.1\r\nConnection: close\r\n\r\n", "HTTP/1.1 400");
    raw(&f, HEAD "Host: y\r\n\r\n", "HTTP/1.1 400");
    raw(&f, "GET /echo HTTP/2.0\r\nHost: x\r\n\r\n", "HTTP/1.1 505");
    raw(&f, "GET /echo\r\n\r\n", "HTTP/1.1 400");
    raw(&f, "GET echo HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400");
    raw(&f, "GET http://x/echo HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400");
    raw(&f, "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400");
    raw(&f, "GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400");
    raw(&f, "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400");
    raw(&f, "G(T / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400");
    raw(&f, "GET / HTTP/1.1\nHost: x\n\n", "HTTP/1.1 400");
    raw(&f, HEAD "A : b\r\n\r\n", "HTTP/1.1 400");
    raw(&f, HEAD "A: b\r\n folded\r\n\r\n", "HTTP/1.1 400");
    raw(&f, HEAD ": b\r\n\r\n", "HTTP/1.1 400");
    raw(&f, HEAD "A: b\x01\r\n\r\n", "HTTP/1.1 400");
    raw_n(&f, HEAD "A: b\0c\r\n\r\n", sizeof(HEAD "A: b\0c\r\n\r\n") - 1, "HTTP/1.1 400");
    raw(&f, HEAD "A: b\rc\r\n\r\n", "HTTP/1.1 400");
    raw(&f, POST "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", "HTTP/1.1 400");
    raw(&f, POST "Content-Length: -3\r\n\r\nx", "HTTP/1.1 400");
    raw(&f, POST "Content-Length: 1, 1\r\n\r\nx", "HTTP/1.1 400");
    raw(&f, POST "Content-Length: 99999999999999999999\r\n\r\nx", "HTTP/1.1 400");
    raw(&f, POST "Content-Length: 9223372036854775807\r\n\r\nx", "HTTP/1.1 413");
    raw(&f, POST "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 400");
    raw(&f, POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 501");
    raw(&f, POST "Transfer-Encoding: chunked\r\n\r\nx\r\n", "HTTP/1.1 400");
    raw(&f, POST "Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", "HTTP/1.1 400");
    raw(&f, POST "Transfer-Encoding: chunked\r\n\r\n2\nab\r\n", "HTTP/1.1 400");
    raw(&f, POST "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", "HTTP/1.1 413");
    raw(&f, POST "Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\nT: v\r\n\r\n",
        "HTTP/1.1 200");
    raw(&f, POST "Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx", "HTTP/1.1 200");
    raw(&f, POST "Expect: miracles\r\nContent-Length: 1\r\n\r\nx", "HTTP/1.1 417");
    char big[4000];
    memset(big, 'a', sizeof(big));
    memcpy(big, HEAD, sizeof(HEAD) - 1);
    raw_n(&f, big, sizeof(big), "HTTP/1.1 431");
    struct strbuf many = STRBUF_INIT;
    strbuf_puts(&many, HEAD);
    for (int i = 0; i < 101; i++)
        strbuf_puts(&many, "a:b\r\n");
    strbuf_puts(&many, "\r\n");
    raw(&f, many.data, "HTTP/1.1 431");
    strbuf_release(&many);
    close_server(&f);
}

static void requests_in_pieces_and_in_a_row(void **state)
{
    (void)state;
    struct fixture f;
    char buf[65536];
    open_server(&f, (struct http_server_options){0});
    static const char one[] =
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    int fd = dial(&f);
    for (size_t i = 0; i < sizeof(one) - 1; i++) {
        say(fd, one + i, 1);
        clock_sleep_ns(200000);
    }
    /* three more at once, the last one ends the connection */
    say(fd, one, sizeof(one) - 1);
    say(fd, one, sizeof(one) - 1);
    say(fd, HEAD "\r\n", sizeof(HEAD "\r\n") - 1);
    hear(fd, buf, sizeof(buf));
    close(fd);
    int replies = 0, echoes = 0;
    for (const char *p = buf; (p = strstr(p, "HTTP/1.1 200 OK")); p++)
        replies++;
    for (const char *p = buf; (p = strstr(p, "POST /echo? [-] 127.0.0.1 abc")); p++)
        echoes++;
    assert_int_equal(replies, 4);
    assert_int_equal(echoes, 3);
    /* a client that shuts its side still gets its answer; so does one of 1.0, whose streams end with the
     * connection */
    fd = dial(&f);
    say(fd, one, sizeof(one) - 1);
    shutdown(fd, SHUT_WR);
    assert_non_null(strstr(hear(fd, buf, sizeof(buf)), "127.0.0.1 abc"));
    close(fd);
    fd = dial(&f);
    say(fd, "GET /events HTTP/1.0\r\n\r\n", 24);
    assert_non_null(strstr(hear(fd, buf, sizeof(buf)), "data: event 19\n\n"));
    assert_null(strstr(buf, "chunked"));
    close(fd);
    fd = dial(&f);
    say(fd, "HEAD /events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 53);
    assert_null(strstr(hear(fd, buf, sizeof(buf)), "data:"));
    assert_non_null(strstr(buf, "200 OK"));
    close(fd);
    close_server(&f);
}

static void a_client_that_never_reads_is_cut_off(void **state)
{
    (void)state;
    struct fixture f;
    open_server(&f, (struct http_server_options){.max_output = 1 << 20});
    int fd = dial(&f);
    say(fd, "GET /flood HTTP/1.1\r\nHost: x\r\n\r\n", 32);
    assert_true(becomes(&f.n_closed, 1));
    assert_true(f.n_cut >= 1);
    close(fd);
    close_server(&f);
}

static void slow_clients_are_timed_out(void **state)
{
    (void)state;
    struct fixture f;
    char buf[4096];
    open_server(&f, (struct http_server_options){.timeout_ns = 200000000});
    int fd = dial(&f); /* says nothing */
    uint64_t start = clock_ns();
    assert_string_equal(hear(fd, buf, sizeof(buf)), "");
    close(fd);
    fd = dial(&f); /* a byte now and then */
    for (int i = 0; i < 20; i++) {
        say(fd, &"GET /echo HTTP/1.1\r\n"[i], 1);
        clock_sleep_ns(30000000);
    }
    assert_non_null(strstr(hear(fd, buf, sizeof(buf)), "408"));
    close(fd);
    fd = dial(&f); /* waits for its stream longer than the timeout: that is no fault of the client */
    say(fd, "GET /forever HTTP/1.1\r\nHost: x\r\n\r\n", 34);
    clock_sleep_ns(500000000);
    assert_int_equal(f.n_closed, 0);
    close(fd);
    assert_true(becomes(&f.n_closed, 1));
    assert_true(clock_ns() - start < 20000000000u);
    close_server(&f);
}

static void connections_beyond_the_cap_wait(void **state)
{
    (void)state;
    struct fixture f;
    char buf[4096];
    int fd[8];
    open_server(&f, (struct http_server_options){.max_connections = 2});
    for (int i = 0; i < 8; i++) {
        fd[i] = dial(&f);
        say(fd[i], HEAD "\r\n", sizeof(HEAD "\r\n") - 1);
    }
    for (int i = 0; i < 8; i++) { /* all are served in the end, two at a time */
        assert_non_null(strstr(hear(fd[i], buf, sizeof(buf)), "200 OK"));
        close(fd[i]);
    }
    int silent[2] = {dial(&f), dial(&f)}; /* never ask: they count all the same */
    clock_sleep_ns(100000000);
    int third = dial(&f), before = f.n_handled;
    say(third, HEAD "\r\n", sizeof(HEAD "\r\n") - 1);
    clock_sleep_ns(100000000);
    assert_int_equal(f.n_handled, before);
    close(silent[0]);
    assert_true(becomes(&f.n_handled, before + 1));
    close(silent[1]);
    close(third);
    close_server(&f);
}

static void a_port_in_use_is_told(void **state)
{
    (void)state;
    struct fixture f;
    struct http_server *second = NULL;
    struct err e = {0};
    open_server(&f, (struct http_server_options){0});
    struct http_server_options options = {.port = http_server_port(f.server), .handler = handle};
    char where[32];
    snprintf(where, sizeof(where), "127.0.0.1:%u", options.port);
    assert_int_equal(http_server_open(&second, &options, &e), ERR_BUSY);
    assert_non_null(strstr(e.message, where));
    assert_null(second);
    options = (struct http_server_options){.host = "no such host", .handler = handle};
    assert_int_equal(http_server_open(&second, &options, &e), ERR_INVALID);
    options = (struct http_server_options){.host = "192.0.2.1", .handler = handle};
    assert_int_equal(http_server_open(&second, &options, &e), ERR_INVALID);
    options.handler = NULL;
    assert_int_equal(http_server_open(&second, &options, &e), ERR_INVALID);
    close_server(&f);
}

static void count_up(void *arg)
{
    ++*(_Atomic int *)arg;
}

static void *post_many(void *argument)
{
    struct fixture *f = argument;
    for (int i = 0; i < 10000; i++)
        if (http_server_post(f->server, count_up, &f->n_cut))
            abort();
    return NULL;
}

static void posts_arrive_from_many_threads(void **state)
{
    (void)state;
    struct fixture f;
    pthread_t threads[4];
    open_server(&f, (struct http_server_options){0});
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, post_many, &f), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_true(becomes(&f.n_cut, 40000));
    http_server_stop(f.server);
    pthread_join(f.thread, NULL);
    assert_int_equal(http_server_post(f.server, count_up, &f.n_cut),
                     0); /* too late for the loop, not for close */
    http_server_close(f.server);
    assert_int_equal(f.n_cut, 40001);
}

static void stopping_cuts_open_streams(void **state)
{
    (void)state;
    struct fixture f;
    struct listener l = {0};
    char url[128];
    struct http_client *c;
    open_server(&f, (struct http_server_options){0});
    snprintf(url, sizeof(url), "%s/forever", f.url);
    struct http_request q = {.url = url};
    struct http_handlers h = {.on_event = hear_event, .on_done = hear_done};
    assert_int_equal(http_client_open(&c, NULL), ERR_OK);
    assert_int_equal(http_client_add(c, &q, &h, &l, NULL, NULL), ERR_OK);
    while (l.n_events < 1)
        assert_int_equal(http_client_poll(c, 100000000, NULL), ERR_OK);
    close_server(&f);
    assert_int_equal(f.n_closed, 1);
    while (http_client_active(c) > 0)
        assert_int_equal(http_client_poll(c, 100000000, NULL), ERR_OK);
    assert_int_equal(l.code, ERR_COMM); /* a stream without its end is not a whole response */
    http_client_close(c);
}

static bool note_event(void *user, const struct sse_event *event)
{
    strbuf_printf(user, "<%s|%s>", event->type, event->data);
    return true;
}

/* The same stream in pieces of every size gives the same events. */
static void events_in_any_pieces(void **state)
{
    (void)state;
    static const char text[] =
        ": comment\n\ndata: a\r\ndata: A\r\n\r\ndata:b\rdata:  c\r\rid: 7\nevent: x\ndata\ndata\n\nevent: "
        "lost\n\ndata: \xC3\xA9:d\n\ndata: cut off\n";
    for (size_t piece = 1; piece < sizeof(text); piece++) {
        struct sse_reader r;
        struct strbuf got = STRBUF_INIT;
        uint64_t n_events = 0;
        sse_init(&r, 1000);
        for (size_t i = 0; i < sizeof(text) - 1; i += piece) {
            size_t n = sizeof(text) - 1 - i < piece ? sizeof(text) - 1 - i : piece;
            assert_int_equal(sse_feed(&r, text + i, n, 1, note_event, &got, &n_events), ERR_OK);
        }
        assert_string_equal(got.data, "<|a\nA><|b\n c><x|\n><|\xC3\xA9:d>");
        assert_int_equal(n_events, 4);
        sse_release(&r);
        strbuf_release(&got);
    }
    struct sse_reader r;
    uint64_t n_events = 0;
    sse_init(&r, 4);
    assert_int_equal(sse_feed(&r, "data: long", 10, 1, note_event, NULL, &n_events), ERR_LIMIT);
    sse_release(&r);
    sse_init(&r, 6); /* each line fits, their sum does not */
    assert_int_equal(sse_feed(&r, "data:a\ndata:b\ndata:c\ndata:d\n", 28, 1, note_event, NULL, &n_events),
                     ERR_LIMIT);
    sse_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_requests),
        cmocka_unit_test(client_failures),
        cmocka_unit_test(fifty_streams_at_once),
        cmocka_unit_test(a_client_that_leaves_is_noticed),
        cmocka_unit_test(large_bodies_are_refused),
        cmocka_unit_test(bodies_have_a_limit_together),
        cmocka_unit_test(malformed_requests_are_refused),
        cmocka_unit_test(requests_in_pieces_and_in_a_row),
        cmocka_unit_test(a_client_that_never_reads_is_cut_off),
        cmocka_unit_test(slow_clients_are_timed_out),
        cmocka_unit_test(connections_beyond_the_cap_wait),
        cmocka_unit_test(a_port_in_use_is_told),
        cmocka_unit_test(posts_arrive_from_many_threads),
        cmocka_unit_test(stopping_cuts_open_streams),
        cmocka_unit_test(events_in_any_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
