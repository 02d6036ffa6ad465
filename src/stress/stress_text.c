/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the result in words: the definition of every figure, in one place, and the JSON of a result.
 * Refuses: a figure that is not defined here, and a quantile of no samples (null).
 */
#include "stress/stress.h"

#include <math.h>

const char *stress_definitions(void)
{
    return "due: the moment a request should be sent: closed loop: when its worker became free; open loop: "
           "its arrival in the seeded Poisson "
           "schedule, also when the client or the server was late\n"
           "TTFT: time to first token: arrival of the first chunk that carries text, minus due\n"
           "TPOT: time per output token: (last chunk - first chunk) / (output tokens - 1) of one request, "
           "for requests with more than one output "
           "token; prefill is not in it\n"
           "ITL: inter-token latency: gaps between consecutive chunks with text of one request, pooled over "
           "all requests; a server that puts "
           "several tokens into one chunk has ITL above TPOT\n"
           "E2E: end of the answer (after its last chunk) minus due\n"
           "output tokens: completion_tokens of the server's final usage chunk; where a server gives none, "
           "chunks with text are counted, and the "
           "result says so\n"
           "throughput: output tokens of successful requests / wall time from the first due moment to the "
           "end of the last request\n"
           "p50, p90, p99: nearest-rank quantiles of the samples: the smallest sample with at least that "
           "share of samples at or below it\n"
           "failed: any request without a complete answer: refused, broken, timed out, an error in the "
           "stream, or no finish; failed requests are "
           "counted and give no latency samples\n"
           "memory: peak resident set of the server process (VmHWM), where its process is known\n";
}

static void put_quantiles(struct json_writer *w, const char *key, const struct quantiles *q)
{
    const struct {
        const char *key;
        double v;
    } fields[] = {{"mean", q->mean}, {"p50", q->p50}, {"p90", q->p90}, {"p99", q->p99}, {"max", q->max}};
    json_key(w, key);
    json_begin_object(w);
    json_put_u64(w, "n", q->n);
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        json_put_f64(w, fields[i].key, q->n ? fields[i].v : NAN);
    json_end_object(w);
}

/* To the microsecond: a longer number says nothing more. */
static void put_samples(struct json_writer *w, const char *key, const double *values, size_t n)
{
    json_key(w, key);
    json_begin_array(w);
    for (size_t i = 0; i < n; i++)
        json_write_f64(w, round(values[i] * 1000) / 1000);
    json_end_array(w);
}

static void put_memory(struct json_writer *w, const char *key, uint64_t bytes)
{
    json_key(w, key);
    if (bytes)
        json_write_u64(w, bytes);
    else
        json_write_null(w);
}

void stress_write_json(const struct stress_result *r, struct json_writer *w)
{
    json_begin_object(w);
    json_key(w, "requests");
    json_begin_object(w);
    json_put_u64(w, "sent", r->n_sent);
    json_put_u64(w, "ok", r->n_ok);
    json_put_u64(w, "failed", r->n_failed);
    json_put_string(w, "first_failure", r->n_failed ? r->first_failure : NULL);
    json_end_object(w);
    json_put_f64(w, "seconds", r->seconds);
    json_put_u64(w, "prompt_tokens", r->prompt_tokens);
    json_put_u64(w, "output_tokens", r->output_tokens);
    json_put_string(w, "tokens_from", r->tokens_counted ? "counted chunks" : "usage");
    json_put_f64(w, "output_tokens_per_second", r->output_tokens_per_second);
    json_put_f64(w, "requests_per_second", r->requests_per_second);
    put_quantiles(w, "ttft_ms", &r->ttft);
    put_quantiles(w, "tpot_ms", &r->tpot);
    put_quantiles(w, "itl_ms", &r->itl);
    put_quantiles(w, "e2e_ms", &r->e2e);
    put_memory(w, "rss_peak", r->rss_peak);
    put_memory(w, "rss_end", r->rss_end);
    put_samples(w, "ttft_samples_ms", r->ttft_samples, r->n_ttft_samples);
    put_samples(w, "itl_samples_ms", r->itl_samples, r->n_itl_samples);
    json_end_object(w);
}
