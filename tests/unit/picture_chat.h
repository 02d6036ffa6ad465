/* SPDX-License-Identifier: Apache-2.0
 *
 * Chats with pictures: a small model that takes them (picture_model.h), served, what is asked of it, and what
 * comes back. All of it fails the test where no answer comes; one that says an error is an answer.
 */
#ifndef TESTS_PICTURE_CHAT_H
#define TESTS_PICTURE_CHAT_H

#include "picture_model.h"
#include "served_model.h"
#include "service_client.h"

/* Steps of at most 16 sequences and, where the options say nothing, 64 tokens. */
struct server *picture_server(enum picture_kind kind, struct serve_options serve,
                              struct session_options session);
void picture_server_stop(struct server *s);
/* Nothing runs any more, and nothing is kept but cached pages, which are free. */
void all_is_free(const struct server *s);

/* ---- content: parts of a message, joined by commas ---- */

#define TEXT_PART(text) "{\"type\":\"text\",\"text\":\"" text "\"}"
#define URL_PART(url)   "{\"type\":\"image_url\",\"image_url\":{\"url\":\"" url "\"}}"
#define LETTERS         "the hello and singing all the bell and the inn that he and the hands sing"

/* Instead of what *out holds: pictures of 16 x 24 pixels (6 rows of Qwen's) before a text; seed 0 ends the
 * list. text: NULL, or what goes into JSON as it is. */
void put_content(struct strbuf *out, const uint64_t *seeds, const char *text);
#define SEEDS(...)                                                                                           \
    (const uint64_t[])                                                                                       \
    {                                                                                                        \
        __VA_ARGS__, 0                                                                                       \
    }

/* ---- asking ---- */

struct answer {
    int status;
    struct strbuf text, logprobs;
    char param[64], code[64], message[512];
    int32_t ids[16]; /* generated */
    size_t n_ids;
    int64_t prompt, images, cached;
    double timings[7]; /* prompt, images, queue, vision, prefill, decode, total; -1: not there */
    int leave_after, n_events;
    bool done;
};
void answer_release(struct answer *a);

/* One message of this content, greedily for 8 tokens. more: further members, each with a comma before it;
 * with "stream" the answer is gathered from its events. Returns the status. */
int ask(const struct server *s, const char *content, const char *more, struct answer *a);
/* A body as it is. */
int post(const struct server *s, const char *body, size_t n, struct answer *a);
/* Like ask(), for client_run(); of an answer that is no stream nothing but the status is kept. */
struct http_transfer *ask_along(const struct server *s, struct http_client *c, const char *content,
                                const char *more, struct answer *a);

#endif
