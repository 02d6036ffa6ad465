/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests to the service under examination, as a client sees it. A bad answer is no error: status and `why`
 * say what came.
 */
#ifndef ADAPT_PROBE_H
#define ADAPT_PROBE_H

#include "adapt/job.h"
#include "net/net.h"

struct ask {
    bool chat, stream;
    bool want_ids;        /* day0's and vLLM's return_token_ids */
    const char *model;    /* NULL: the job's */
    const char *text;     /* prompt, or the content of one user message */
    const char *messages; /* of a chat, as JSON, instead of text; or NULL */
    uint32_t n_top;       /* of a chat: log-probabilities with so many alternatives; 0: none */
    bool timings;         /* day0's day0_timings */
    const int32_t *ids;   /* instead of text */
    size_t n_ids;
    uint32_t max_tokens;
    double temperature;
    uint64_t seed;
};

struct answer {
    struct arena arena;
    int status;              /* 0: nothing came */
    bool timed_out;          /* and why */
    char why[256];           /* "" when a whole answer of the expected form came */
    const struct json *body; /* of a reply that is not a stream and is JSON */
    struct strbuf raw;
    struct strbuf text; /* of the first choice */
    char finish[24];
    uint64_t prompt_tokens, output_tokens; /* of usage */
    bool has_usage;
    uint64_t n_chunks;
    const struct json *timings;         /* day0_timings, or NULL */
    double first_ms, last_ms, total_ms; /* since sending; first_ms 0 without a stream */
};

/* path "/health"; body NULL: GET. */
void probe_call(const struct job *j, const char *path, const char *body, struct answer *out);
void probe_ask(const struct job *j, const struct ask *ask, struct answer *out);
/* Seconds that the service has for one answer. */
uint32_t probe_seconds(const struct job *j);
/* An answer that was not asked for. */
void probe_nothing(struct answer *out, const char *why);
/* A number of GET /metrics, by the end of its name, since names differ between servers; -1: none. */
double probe_metric(const struct job *j, const char *name);
void answer_release(struct answer *a);
/* The body of an ask, for cases that spoil it. */
void probe_body(const struct job *j, const struct ask *ask, struct strbuf *body);
/* Sends an ask, leaves after n chunks of the stream; the number of chunks that came. */
uint64_t probe_leave(const struct job *j, const struct ask *ask, uint64_t chunks);

#endif
