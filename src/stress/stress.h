/* SPDX-License-Identifier: Apache-2.0
 *
 * Load client and statistics over HTTP only: works on any OpenAI-compatible server. Closed loop of C workers
 * on one thread (or an open loop of Poisson arrivals), latencies from the moment a request was due. Every
 * figure's definition is in stress_definitions().
 */
#ifndef STRESS_STRESS_H
#define STRESS_STRESS_H

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include <sys/types.h>

struct stress_options {
    const char *url;   /* http://host:port */
    const char *model; /* NULL: first of /v1/models */
    uint32_t concurrency;
    uint32_t n_requests;
    const char *const *prompts; /* texts used round robin */
    size_t n_prompts;
    uint32_t max_tokens;
    double rate; /* requests per second, open loop; 0: closed loop */
    uint64_t seed;
    uint64_t timeout_ns; /* of the whole run; 0: 10 min */
    pid_t pid;           /* server process for memory, 0: unknown */
    bool ignore_eos;     /* ask for ignore_eos so that every answer has max_tokens tokens */
    bool chat;           /* /v1/chat/completions instead of /v1/completions */
    bool messages;       /* of a chat: prompts are conversations, JSON arrays of messages */
    struct log *log;
};

struct quantiles {
    uint64_t n;
    double mean, p50, p90, p99, max;
}; /* milliseconds */

struct stress_result {
    uint32_t n_sent, n_ok, n_failed;
    char first_failure[256];
    double seconds;
    uint64_t prompt_tokens, output_tokens;
    bool tokens_counted; /* some answer had no usage chunk: its output tokens are counted chunks, its prompt
                            tokens are missing */
    double output_tokens_per_second, requests_per_second;
    struct quantiles ttft, tpot, itl, e2e; /* milliseconds; definitions in stress_definitions() */
    uint64_t rss_peak, rss_end;            /* bytes, of pid; 0 unknown */
    double *ttft_samples,
        *itl_samples; /* for plots, in milliseconds, capped at 10,000; owned by the result */
    size_t n_ttft_samples, n_itl_samples;
};

/* Errors only for what keeps the load from being applied (bad options, no server there, out of memory).
 * Requests that fail are figures of the result: counted, with the first reason. */
int stress_run(const struct stress_options *o, struct stress_result *out, struct err *e);
void stress_result_release(struct stress_result *r);
void stress_write_json(const struct stress_result *r, struct json_writer *w);
const char *stress_definitions(void); /* text of the definition table */
/* Exact quantile of n values by nearest rank, q in [0,1]: the smallest value that at least q * n of them do
 * not exceed; of an even number the lower middle one is the median. Sorts the array. 0 when n is 0. Values
 * are not NaN. */
double stress_quantile(double *values, size_t n, double q);

#endif
