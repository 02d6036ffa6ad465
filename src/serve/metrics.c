/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixed histogram buckets and the text exposition format. Nothing here locks: each counter has one writing
 * thread, and readers get copies.
 */
#include "serve/metrics.h"

#include "base/mem.h"

/* Seconds. One table for all: from a token of a small model to a long answer of a large one. */
static const double bounds[HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                 0.5,   1,      2.5,   5,    10,    30,   60,  300};

void histogram_add(struct histogram *h, double seconds)
{
    unsigned i = 0;
    while (i < HISTOGRAM_BUCKETS && seconds > bounds[i])
        i++;
    h->counts[i]++;
    h->sum += seconds;
}

uint64_t histogram_count(const struct histogram *h)
{
    uint64_t n = 0;
    for (unsigned i = 0; i <= HISTOGRAM_BUCKETS; i++)
        n += h->counts[i];
    return n;
}

const char *outcome_name(enum outcome o)
{
    static const char *const names[] = {
#define X(name, text) text,
        OUTCOME_MAP(X)
#undef X
    };
    return (unsigned)o < ARRAY_LEN(names) ? names[o] : "unknown";
}

static void heading(struct strbuf *out, const char *name, const char *type, const char *help)
{
    strbuf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void metric_value(struct strbuf *out, const char *name, const char *type, const char *help, double value)
{
    heading(out, name, type, help);
    strbuf_printf(out, "%s %.17g\n", name, value);
}

void metric_histogram(struct strbuf *out, const char *name, const char *help, const struct histogram *h)
{
    uint64_t n = 0;
    heading(out, name, "histogram", help);
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
        n += h->counts[i];
        strbuf_printf(out, "%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)n);
    }
    n += h->counts[HISTOGRAM_BUCKETS];
    strbuf_printf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name,
                  (unsigned long long)n, name, h->sum, name, (unsigned long long)n);
}
