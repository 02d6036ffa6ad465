/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader of text/event-stream: bytes in any pieces -> events.
 */
#ifndef NET_SSE_H
#define NET_SSE_H

#include "net/net.h"

struct sse_reader {
    struct strbuf line, data, type;
    bool has_data;
    bool skip_lf; /* the last line ended in CR: an LF right behind it belongs to it */
    size_t max_event;
};

void sse_init(struct sse_reader *r, size_t max_event);
void sse_release(struct sse_reader *r);
/* Calls on_event for each event that these bytes complete; *n_events counts them. Returns 0, ERR_CANCELLED
 * (on_event returned false), ERR_LIMIT or ERR_NOMEM. */
int sse_feed(struct sse_reader *r, const char *bytes, size_t n, uint64_t now_ns, sse_event_fn on_event,
             void *user, uint64_t *n_events);

#endif
