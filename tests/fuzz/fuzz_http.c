/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as an HTTP request, as a chunked body and as an event stream. Pieces must give what the whole
 * gives.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "net/http_parse.h"
#include "net/sse.h"

static void parse_request(const char *text, size_t n)
{
    size_t whole = 0, bytewise = 0, end = http_head_end(text, n, &whole), found = 0;
    for (size_t i = 1; i <= n && !found; i++)
        found = http_head_end(text, i, &bytewise);
    if (end != found)
        BUG("a head ends elsewhere when it comes in pieces");
    if (end == 0 || end == SIZE_MAX)
        return;
    struct http_head *head = malloc(sizeof(*head));
    char *copy = malloc(end + 1);
    if (!head || !copy)
        abort();
    memcpy(copy, text, end);
    copy[end] = '\0';
    if (http_parse_head(copy, end, head) == 0) {
        if (head->path[0] != '/' || head->n_headers > HTTP_MAX_HEADERS ||
            (head->chunked && head->content_length))
            BUG("a head was taken that should not be");
        for (size_t i = 0; i < head->n_headers; i++)
            if (strpbrk(head->headers[i].name, "\r\n ") || strpbrk(head->headers[i].value, "\r\n"))
                BUG("a header holds a line break");
    }
    free(copy);
    free(head);
}

static int decode(const char *text, size_t n, size_t piece, struct strbuf *body, size_t *used)
{
    struct http_chunks chunks = {0};
    int status = 0;
    *used = 0;
    while (*used < n && !chunks.done && !status) {
        size_t take = n - *used < piece ? n - *used : piece;
        *used += http_chunks_feed(&chunks, text + *used, take, 1000, body, &status);
    }
    return status;
}

static bool note_event(void *user, const struct sse_event *event)
{
    strbuf_add(user, event->data, event->n + 1);
    strbuf_puts(user, event->type);
    return true;
}

static int read_events(const char *text, size_t n, size_t piece, struct strbuf *out)
{
    struct sse_reader r;
    uint64_t n_events = 0;
    int rc = 0;
    sse_init(&r, 1000);
    for (size_t i = 0; i < n && !rc; i += piece)
        rc = sse_feed(&r, text + i, n - i < piece ? n - i : piece, 0, note_event, out, &n_events);
    sse_release(&r);
    return rc;
}

static void same(const struct strbuf *a, const struct strbuf *b)
{
    if (a->len != b->len || (a->len && memcmp(a->data, b->data, a->len) != 0))
        BUG("pieces give something else than the whole");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    struct strbuf whole = STRBUF_INIT, pieces = STRBUF_INIT;
    size_t used[2];
    parse_request(text, size);
    if (decode(text, size, size + 1, &whole, &used[0]) != decode(text, size, 1, &pieces, &used[1]) ||
        used[0] != used[1])
        BUG("a chunked body is judged differently in pieces");
    if (whole.len > 1000)
        BUG("a chunked body exceeds its limit");
    same(&whole, &pieces);
    strbuf_clear(&whole);
    strbuf_clear(&pieces);
    if (read_events(text, size, size + 1, &whole) == read_events(text, size, 1, &pieces))
        same(&whole, &pieces);
    strbuf_release(&whole);
    strbuf_release(&pieces);
    return 0;
}
