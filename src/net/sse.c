/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the event-stream grammar of the HTML standard: lines end in CR, LF or CR LF; an empty line ends an
 * event; lines that begin with a colon are comments; unknown fields are ignored. Refuses: events beyond
 * max_event; an event that the stream's end cuts off is dropped, as the standard says.
 */
#include "net/sse.h"

#include <string.h>

void sse_init(struct sse_reader *r, size_t max_event)
{
    memset(r, 0, sizeof(*r));
    r->max_event = max_event;
}

void sse_release(struct sse_reader *r)
{
    strbuf_release(&r->line);
    strbuf_release(&r->data);
    strbuf_release(&r->type);
}

static void take_field(struct sse_reader *r)
{
    const char *line = strbuf_cstr(&r->line);
    size_t n = r->line.len;
    const char *colon = memchr(line, ':', n);
    size_t name = colon ? (size_t)(colon - line) : n, value = colon ? name + 1 : n;
    if (value < n && line[value] == ' ')
        value++;
    if (name == 4 && memcmp(line, "data", 4) == 0) {
        if (r->has_data)
            strbuf_putc(&r->data, '\n');
        r->has_data = true;
        strbuf_add(&r->data, line + value, n - value);
    } else if (name == 5 && memcmp(line, "event", 5) == 0) {
        strbuf_clear(&r->type);
        strbuf_add(&r->type, line + value, n - value);
    }
}

static int end_line(struct sse_reader *r, uint64_t now_ns, sse_event_fn on_event, void *user,
                    uint64_t *n_events)
{
    bool go_on = true;
    if (r->line.len == 0) {
        if (r->has_data) {
            struct sse_event event = {.data = strbuf_cstr(&r->data), .n = r->data.len};
            event.type = strbuf_cstr(&r->type);
            event.received_ns = now_ns;
            ++*n_events;
            go_on = on_event(user, &event);
        }
        r->has_data = false;
        strbuf_clear(&r->data);
        strbuf_clear(&r->type);
        return go_on ? ERR_OK : ERR_CANCELLED;
    }
    take_field(r);
    strbuf_clear(&r->line);
    if (strbuf_failed(&r->data) || strbuf_failed(&r->type))
        return ERR_NOMEM;
    return r->data.len > r->max_event ? ERR_LIMIT : ERR_OK;
}

int sse_feed(struct sse_reader *r, const char *bytes, size_t n, uint64_t now_ns, sse_event_fn on_event,
             void *user, uint64_t *n_events)
{
    const char *end = bytes + n;
    while (bytes < end) {
        if (r->skip_lf && *bytes == '\n')
            bytes++;
        r->skip_lf = false;
        const char *stop = bytes;
        while (stop < end && *stop != '\n' && *stop != '\r')
            stop++;
        strbuf_add(&r->line, bytes, (size_t)(stop - bytes));
        if (strbuf_failed(&r->line))
            return ERR_NOMEM;
        if (r->line.len > r->max_event)
            return ERR_LIMIT;
        bytes = stop;
        if (stop == end)
            break;
        r->skip_lf = *stop == '\r';
        bytes++;
        int rc = end_line(r, now_ns, on_event, user, n_events);
        if (rc)
            return rc;
    }
    return ERR_OK;
}
