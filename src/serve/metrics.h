/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters and histograms of the service, and their Prometheus text.
 */
#ifndef SERVE_METRICS_H
#define SERVE_METRICS_H

#include "base/str.h"

#define HISTOGRAM_BUCKETS 16
struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS + 1]; /* by bucket; the last one has no bound */
    double sum;
};
void histogram_add(struct histogram *h, double seconds);
uint64_t histogram_count(const struct histogram *h);

#define OUTCOME_MAP(X)                                                                                       \
    X(STOP, "stop")                                                                                          \
    X(LENGTH, "length")                                                                                      \
    X(CLIENT_GONE, "client_gone")                                                                            \
    X(FAILED, "failed")                                                                                      \
    X(BAD_REQUEST, "bad_request")                                                                            \
    X(QUEUE_FULL, "queue_full")                                                                              \
    X(NOT_READY, "not_ready")
enum outcome {
#define X(name, text) OUTCOME_##name,
    OUTCOME_MAP(X)
#undef X
        OUTCOME_N
};
const char *outcome_name(enum outcome o);

struct service_metrics {
    uint64_t outcomes[OUTCOME_N];
    uint64_t prompt_tokens, generated_tokens;          /* of requests that were accepted */
    uint64_t pictures;                                 /* of those */
    uint64_t calls, malformed_calls, unfinished_calls; /* of chats whose output is read by rules */
    struct histogram ttft, itl, e2e;
    struct histogram prompt, images, queue, vision, prefill, decode; /* segments of requests that completed */
};

/* One metric family with one value. */
void metric_value(struct strbuf *out, const char *name, const char *type, const char *help, double value);
void metric_histogram(struct strbuf *out, const char *name, const char *help, const struct histogram *h);

#endif
