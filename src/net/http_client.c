/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: requests to other servers over libcurl's multi interface; a single request is a client of its own
 * with one transfer. Refuses: proxies, other protocols than HTTP and HTTPS, signals, responses beyond
 * max_body, header lines with line breaks in them.
 *
 * curl forbids adding and removing transfers from inside its callbacks. So those only mark, and
 * http_client_poll does the work between two rounds.
 */
#include "net/net.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/thread.h"
#include "net/sigpipe.h"
#include "net/sse.h"

#define DEFAULT_MAX_BODY   ((size_t)64 << 20)
#define MAX_HEADER_BYTES   ((size_t)256 << 10)
#define DEFAULT_CONNECT_NS 10000000000u

struct http_transfer {
    struct http_client *client;
    struct http_transfer *next, *previous;
    CURL *easy;
    struct curl_slist *headers;
    struct http_handlers handlers;
    void *user;
    struct http_response response;
    struct sse_reader sse;
    size_t max_body;
    bool decided, is_stream; /* whether the body is events is known from its first byte on */
    bool started, cancelled;
    int failure; /* our own reason to end it, from within a callback */
    char curl_text[CURL_ERROR_SIZE];
    char *url;
};

struct http_client {
    CURLM *multi;
    struct http_transfer *all;
    size_t n_active, n_waiting, n_cancelled; /* waiting: added, not yet given to curl */
};

/* ---- responses */

const char *http_response_header(const struct http_response *r, const char *lower_case_name)
{
    const char *p = strbuf_cstr(&r->headers), *end = p + r->headers.len;
    while (p < end) {
        const char *value = p + strlen(p) + 1;
        if (strcmp(p, lower_case_name) == 0)
            return value;
        p = value + strlen(value) + 1;
    }
    return NULL;
}

void http_response_release(struct http_response *r)
{
    strbuf_release(&r->headers);
    strbuf_release(&r->body);
    *r = (struct http_response){0};
}

/* One line, its end included. Those of an interim response or of a redirect are forgotten when the next one
 * begins. */
static size_t on_header(char *line, size_t one, size_t n, void *user)
{
    struct http_transfer *t = user;
    struct strbuf *to = &t->response.headers;
    size_t length = n * one, all = length;
    while (length > 0 && (line[length - 1] == '\n' || line[length - 1] == '\r'))
        length--;
    if (length == 0)
        t->response.headers_ns = clock_ns();
    if (length >= 5 && memcmp(line, "HTTP/", 5) == 0)
        strbuf_clear(to);
    const char *colon = memchr(line, ':', length);
    if (!colon || memchr(line, '\0', length))
        return all;
    const char *value = colon + 1, *end = line + length;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    for (const char *p = line; p < colon; p++)
        strbuf_putc(to, *p >= 'A' && *p <= 'Z' ? (char)(*p | 0x20) : *p);
    strbuf_putc(to, '\0');
    strbuf_add(to, value, (size_t)(end - value));
    strbuf_putc(to, '\0');
    if (!strbuf_failed(to) && to->len <= MAX_HEADER_BYTES)
        return all;
    t->failure = strbuf_failed(to) ? ERR_NOMEM : ERR_LIMIT;
    return 0;
}

static size_t on_body(char *data, size_t one, size_t n, void *user)
{
    uint64_t now = clock_ns();
    struct http_transfer *t = user;
    size_t bytes = n * one;
    if (t->cancelled)
        return 0;
    if (!t->decided) {
        long status = 0;
        curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
        const char *type = http_response_header(&t->response, "content-type");
        t->is_stream = t->handlers.on_event && status >= 200 && status < 300 && type &&
                       strncasecmp(type, "text/event-stream", 17) == 0;
        t->decided = true;
    }
    if (t->is_stream) {
        t->failure =
            sse_feed(&t->sse, data, bytes, now, t->handlers.on_event, t->user, &t->response.n_events);
    } else if (bytes > t->max_body - t->response.body.len) {
        t->failure = ERR_LIMIT;
    } else {
        strbuf_add(&t->response.body, data, bytes);
        t->failure = strbuf_failed(&t->response.body) ? ERR_NOMEM : ERR_OK;
    }
    return t->failure ? 0 : bytes;
}

/* ---- addresses that a URL from outside may not reach */

static bool is_public_v4(uint32_t a)
{
    static const struct {
        uint32_t network;
        unsigned bits;
    } closed[] = {
        {0x00000000, 8},  {0x0A000000, 8},  {0x64400000, 10}, {0x7F000000, 8},
        {0xA9FE0000, 16}, {0xAC100000, 12}, {0xC0000000, 24}, {0xC0A80000, 16},
        {0xC6120000, 15}, {0xE0000000, 4},  {0xF0000000, 4},
    };
    for (size_t i = 0; i < ARRAY_LEN(closed); i++)
        if ((a ^ closed[i].network) >> (32 - closed[i].bits) == 0)
            return false;
    return true;
}

static bool is_public(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return is_public_v4(ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr));
    if (address->sa_family != AF_INET6)
        return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    /* Global unicast is 2000::/3; of it, 6to4 and Teredo carry an IPv4 address inside. */
    if ((six->s6_addr[0] & 0xE0) != 0x20)
        return false;
    bool tunnel =
        six->s6_addr[0] == 0x20 &&
        (six->s6_addr[1] == 0x02 || (six->s6_addr[1] == 0x01 && !six->s6_addr[2] && !six->s6_addr[3]));
    return !tunnel;
}

static curl_socket_t open_public_socket(void *user, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct http_transfer *t = user;
    if (purpose != CURLSOCKTYPE_IPCXN || !is_public(&address->addr)) {
        t->failure = ERR_INVALID;
        return CURL_SOCKET_BAD;
    }
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/* ---- starting */

static int add_header_line(struct http_transfer *t, const char *name, const char *value, struct err *e)
{
    if (name[0] == '\0' || strpbrk(name, "\r\n: ;") || (value && strpbrk(value, "\r\n")))
        return err_set(e, ERR_INVALID, "header \"%.40s\" has characters that no header may have", name);
    struct strbuf line = STRBUF_INIT;
    strbuf_puts(&line, name);
    /* curl's notation: "Name:" removes a header of its own, "Name;" sends an empty one */
    if (value && value[0] == '\0')
        strbuf_puts(&line, ";");
    else
        strbuf_puts(&line, value ? ": " : ":");
    if (value)
        strbuf_puts(&line, value);
    struct curl_slist *longer =
        strbuf_failed(&line) ? NULL : curl_slist_append(t->headers, strbuf_cstr(&line));
    strbuf_release(&line);
    if (!longer)
        return err_set(e, ERR_NOMEM, "no memory for the headers of a request");
    t->headers = longer;
    return ERR_OK;
}

static int set_headers(struct http_transfer *t, const struct http_request *q, struct err *e)
{
    bool has_type = false;
    /* Without this curl waits up to a second for "100 Continue" before it sends a large body. */
    int rc = add_header_line(t, "Expect", NULL, e);
    for (size_t i = 0; !rc && i < q->n_headers; i++) {
        has_type |= strcasecmp(q->headers[i].name, "content-type") == 0;
        rc = add_header_line(t, q->headers[i].name, q->headers[i].value ? q->headers[i].value : "", e);
    }
    if (!rc && !has_type) /* nor does it know what our bodies are */
        rc = add_header_line(t, "Content-Type", NULL, e);
    return rc;
}

static CURLcode set_method(CURL *easy, const struct http_request *q)
{
    bool post = q->body || q->body_bytes;
    const char *method = q->method ? q->method : post ? "POST" : "GET";
    CURLcode rc = CURLE_OK;
    if (post || strcmp(method, "POST") == 0) {
        rc |= curl_easy_setopt(easy, CURLOPT_POST, 1L);
        rc |= curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body_bytes);
        rc |= curl_easy_setopt(easy, CURLOPT_COPYPOSTFIELDS, q->body ? q->body : "");
    }
    if (strcmp(method, "HEAD") == 0)
        rc |= curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
    else if (strcmp(method, "GET") != 0 && strcmp(method, "POST") != 0)
        rc |= curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
    return rc;
}

/* Milliseconds for curl: rounded up, so that a short time is not "none". */
static long milliseconds(uint64_t ns)
{
    uint64_t ms = ns / 1000000 + (ns % 1000000 != 0);
    return ms > 1000000000 ? 1000000000L : (long)ms;
}

static CURLcode set_limits(CURL *easy, const struct http_request *q)
{
    CURLcode rc = CURLE_OK;
    uint64_t connect = q->connect_timeout_ns ? q->connect_timeout_ns : DEFAULT_CONNECT_NS;
    rc |= curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, milliseconds(connect));
    rc |= curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, milliseconds(q->timeout_ns));
    if (q->idle_timeout_ns) {
        rc |= curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
        rc |= curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (milliseconds(q->idle_timeout_ns) + 999) / 1000);
    }
    rc |= curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    rc |= curl_easy_setopt(easy, CURLOPT_PROXY, "");
    rc |= curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    rc |= curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    rc |= curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    rc |= curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, q->max_redirects ? 1L : 0L);
    rc |= curl_easy_setopt(easy, CURLOPT_MAXREDIRS, (long)(q->max_redirects > 50 ? 50 : q->max_redirects));
    rc |= curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    return rc;
}

static int configure(struct http_transfer *t, const struct http_request *q, struct err *e)
{
    int failed = set_headers(t, q, e);
    if (failed)
        return failed;
    CURLcode rc = set_limits(t->easy, q) | set_method(t->easy, q);
    rc |= curl_easy_setopt(t->easy, CURLOPT_URL, q->url);
    rc |= curl_easy_setopt(t->easy, CURLOPT_USERAGENT, "day0/" D0_VERSION);
    rc |= curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers);
    rc |= curl_easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->curl_text);
    rc |= curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
    rc |= curl_easy_setopt(t->easy, CURLOPT_HEADERFUNCTION, on_header);
    rc |= curl_easy_setopt(t->easy, CURLOPT_HEADERDATA, t);
    rc |= curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_body);
    rc |= curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
    if (q->public_only) {
        rc |= curl_easy_setopt(t->easy, CURLOPT_OPENSOCKETFUNCTION, open_public_socket);
        rc |= curl_easy_setopt(t->easy, CURLOPT_OPENSOCKETDATA, t);
        /* a connection that another transfer opened was not checked */
        rc |= curl_easy_setopt(t->easy, CURLOPT_FRESH_CONNECT, 1L);
        rc |= curl_easy_setopt(t->easy, CURLOPT_FORBID_REUSE, 1L);
    }
    if (rc)
        return err_set(e, ERR_NOMEM, "%s: cannot set up the request", q->url);
    return ERR_OK;
}

static void transfer_free(struct http_transfer *t)
{
    if (t->easy)
        curl_easy_cleanup(t->easy);
    curl_slist_free_all(t->headers);
    http_response_release(&t->response);
    sse_release(&t->sse);
    free(t->url);
    free(t);
}

int http_client_add(struct http_client *c, const struct http_request *request,
                    const struct http_handlers *handlers, void *user, struct http_transfer **transfer,
                    struct err *e)
{
    if (!request->url)
        return err_set(e, ERR_INVALID, "a request without a URL");
    struct http_transfer *t = calloc(1, sizeof(*t));
    if (!t)
        return err_set(e, ERR_NOMEM, "%s: no memory for the request", request->url);
    t->client = c;
    t->handlers = *handlers;
    t->user = user;
    t->max_body = request->max_body ? request->max_body : DEFAULT_MAX_BODY;
    t->url = strdup(request->url);
    t->easy = curl_easy_init();
    sse_init(&t->sse, t->max_body);
    int rc;
    if (!t->url || !t->easy)
        rc = err_set(e, ERR_NOMEM, "%s: no memory for the request", request->url);
    else
        rc = configure(t, request, e);
    if (rc) {
        transfer_free(t);
        return rc;
    }
    t->next = c->all;
    if (c->all)
        c->all->previous = t;
    c->all = t;
    c->n_active++;
    c->n_waiting++;
    if (transfer)
        *transfer = t;
    http_client_wake(c);
    return ERR_OK;
}

/* ---- ending */

static int failure_code(const struct http_transfer *t, CURLcode result)
{
    if (t->cancelled)
        return ERR_CANCELLED;
    if (t->failure)
        return t->failure;
    switch (result) {
    case CURLE_OPERATION_TIMEDOUT:
        return ERR_TIMEOUT;
    case CURLE_OUT_OF_MEMORY:
        return ERR_NOMEM;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
        return ERR_INVALID;
    case CURLE_TOO_MANY_REDIRECTS:
        return ERR_LIMIT;
    default:
        return ERR_COMM;
    }
}

static void describe_failure(const struct http_transfer *t, CURLcode result, struct err *e)
{
    int code = failure_code(t, result);
    if (t->cancelled || t->failure == ERR_CANCELLED)
        err_set(e, code, "%s: the request was cancelled", t->url);
    else if (t->failure == ERR_LIMIT)
        err_set(e, code, "%s: the response is larger than %zu bytes", t->url, t->max_body);
    else if (t->failure == ERR_INVALID)
        err_set(e, code, "%s: leads to an address that is not public", t->url);
    else if (t->failure)
        err_set(e, code, "%s: no memory for the response", t->url);
    else
        err_set(e, code, "%s: %s", t->url, t->curl_text[0] ? t->curl_text : curl_easy_strerror(result));
}

static void unlink_transfer(struct http_client *c, struct http_transfer *t)
{
    if (t->started)
        curl_multi_remove_handle(c->multi, t->easy);
    else
        c->n_waiting--;
    if (t->cancelled)
        c->n_cancelled--;
    if (t->previous)
        t->previous->next = t->next;
    else
        c->all = t->next;
    if (t->next)
        t->next->previous = t->previous;
    c->n_active--;
}

static void finish(struct http_client *c, struct http_transfer *t, CURLcode result)
{
    long status = 0;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    t->response.status = (int)status;
    t->response.finished_ns = clock_ns();
    struct err failure;
    err_clear(&failure);
    bool failed = t->cancelled || result != CURLE_OK;
    if (failed)
        describe_failure(t, result, &failure);
    unlink_transfer(c, t);
    if (t->handlers.on_done)
        t->handlers.on_done(t->user, &t->response, failed ? &failure : NULL);
    transfer_free(t);
}

static void finish_cancelled(struct http_client *c)
{
    /* on_done may add and cancel: begin anew after each, as long as there is one */
    while (c->n_cancelled > 0) {
        struct http_transfer *t = c->all;
        while (t && !t->cancelled)
            t = t->next;
        if (!t)
            BUG("cancelled transfers were miscounted");
        finish(c, t, CURLE_ABORTED_BY_CALLBACK);
    }
}

static int start_waiting(struct http_client *c, struct err *e)
{
    for (struct http_transfer *t = c->all; t && c->n_waiting > 0; t = t->next) {
        if (t->started)
            continue;
        CURLMcode rc = curl_multi_add_handle(c->multi, t->easy);
        if (rc != CURLM_OK)
            return err_set(e, ERR_NOMEM, "%s: cannot start: %s", t->url, curl_multi_strerror(rc));
        t->started = true;
        t->response.started_ns = clock_ns();
        c->n_waiting--;
    }
    return ERR_OK;
}

static int perform(struct http_client *c, bool *progress, struct err *e)
{
    finish_cancelled(c);
    int rc = start_waiting(c, e);
    if (rc)
        return rc;
    int running, left;
    struct sigpipe_guard guard;
    sigpipe_block(&guard);
    CURLMcode code = curl_multi_perform(c->multi, &running);
    sigpipe_restore(&guard);
    if (code != CURLM_OK)
        return err_set(e, ERR_COMM, "HTTP client: %s", curl_multi_strerror(code));
    *progress = false;
    for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &left)) != NULL;) {
        if (m->msg != CURLMSG_DONE)
            continue;
        char *t = NULL;
        CURLcode result = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &t);
        finish(c, (struct http_transfer *)(void *)t, result);
        *progress = true;
    }
    *progress |= c->n_waiting > 0 || c->n_cancelled > 0;
    return ERR_OK;
}

int http_client_poll(struct http_client *c, uint64_t timeout_ns, struct err *e)
{
    bool progress;
    int rc = perform(c, &progress, e);
    if (rc || progress)
        return rc;
    CURLMcode code = curl_multi_poll(c->multi, NULL, 0, (int)milliseconds(timeout_ns), NULL);
    if (code != CURLM_OK)
        return err_set(e, ERR_COMM, "HTTP client: %s", curl_multi_strerror(code));
    return perform(c, &progress, e);
}

void http_client_cancel(struct http_client *c, struct http_transfer *t)
{
    if (t->cancelled)
        return;
    t->cancelled = true;
    c->n_cancelled++;
    http_client_wake(c);
}

size_t http_client_active(const struct http_client *c)
{
    return c->n_active;
}

void http_client_wake(struct http_client *c)
{
    curl_multi_wakeup(c->multi);
}

int http_client_open(struct http_client **out, struct err *e)
{
    /* counted and thread-safe inside curl */
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return err_set(e, ERR_NOMEM, "libcurl cannot be initialised");
    struct http_client *c = calloc(1, sizeof(*c));
    if (c)
        c->multi = curl_multi_init();
    if (!c || !c->multi) {
        free(c);
        curl_global_cleanup();
        return err_set(e, ERR_NOMEM, "no memory for an HTTP client");
    }
    *out = c;
    return ERR_OK;
}

void http_client_close(struct http_client *c)
{
    if (!c)
        return;
    while (c->all) {
        struct http_transfer *t = c->all;
        unlink_transfer(c, t);
        transfer_free(t);
    }
    curl_multi_cleanup(c->multi);
    free(c);
    curl_global_cleanup();
}

/* ---- one request */

struct fetch {
    sse_event_fn on_event;
    void *user;
    struct http_response *out;
    struct err *e;
    int rc;
    bool done;
};

static bool fetch_event(void *user, const struct sse_event *event)
{
    struct fetch *f = user;
    return f->on_event(f->user, event);
}

static void fetch_done(void *user, struct http_response *response, const struct err *failure)
{
    struct fetch *f = user;
    *f->out = *response;
    *response = (struct http_response){0};
    if (failure) {
        f->rc = failure->code;
        if (f->e)
            *f->e = *failure;
    }
    f->done = true;
}

int http_fetch(const struct http_request *request, sse_event_fn on_event, void *user,
               struct http_response *out, struct err *e)
{
    *out = (struct http_response){0};
    struct http_client *c;
    int rc = http_client_open(&c, e);
    if (rc)
        return rc;
    struct fetch f = {.on_event = on_event, .user = user, .out = out, .e = e};
    struct http_handlers handlers = {.on_event = on_event ? fetch_event : NULL, .on_done = fetch_done};
    rc = http_client_add(c, request, &handlers, &f, NULL, e);
    while (!rc && !f.done)
        rc = http_client_poll(c, 1000000000, e);
    http_client_close(c);
    return rc ? rc : f.rc;
}
