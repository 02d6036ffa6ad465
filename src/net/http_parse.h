/* SPDX-License-Identifier: Apache-2.0
 *
 * The strict part of the server: request heads and chunked bodies. Pure functions over bytes, no sockets.
 */
#ifndef NET_HTTP_PARSE_H
#define NET_HTTP_PARSE_H

#include "net/net.h"

#define HTTP_MAX_HEADERS 100

struct http_head {
    const char *method;
    char *path; /* decoded */
    const char *query;
    struct http_header headers[HTTP_MAX_HEADERS]; /* names in lower case */
    size_t n_headers;
    bool http_1_0, keep_alive, chunked, expects_continue;
    uint64_t content_length;
};

/* Where the head in text[0..n) ends (behind its empty line): 0 if not yet, SIZE_MAX if a line does not end in
 * CR LF. *scanned carries progress from call to call; starts at 0. */
size_t http_head_end(const char *text, size_t n, size_t *scanned);

/* Parses a whole head (ended by CR LF CR LF) in place. Returns 0 or the status to refuse it with. *head
 * points into text. */
int http_parse_head(char *text, size_t n, struct http_head *head);

struct http_chunks {
    int state;
    uint64_t left;   /* of this chunk */
    unsigned n_line; /* bytes of a size line or trailer so far */
    unsigned n_digits;
    bool done;
};

/* Decodes bytes of a chunked body, appending to `body`. Returns how many were used up (all, unless the body
 * ended), and in *status 0, 400, 413 (more than max_body) or 500 (no memory). Zero-initialise *c. */
size_t http_chunks_feed(struct http_chunks *c, const char *data, size_t n, size_t max_body,
                        struct strbuf *body, int *status);

#endif
