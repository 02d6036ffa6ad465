/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: errors by position on the page: one plot and a few numbers. Refuses a plot where nothing was run: it
 * says why.
 */
#include <stdlib.h>

#include "adapt/html.h"

#define MOST 64 /* buckets: a sequence of 2^64 tokens */

static void number(struct strbuf *b, const char *term, void (*print)(struct strbuf *, double), double v)
{
    struct strbuf text = STRBUF_INIT;
    print(&text, v);
    html_pair(b, term, strbuf_cstr(&text));
    strbuf_release(&text);
}

static void two_decimals(struct strbuf *b, double v)
{
    html_number(b, v, 2);
}

void drift_part(struct strbuf *b, const struct json *drift)
{
    double first[MOST], values[MOST];
    const size_t all = fact_count(drift, "buckets"), n = all < MOST ? all : MOST;
    size_t taken = 0;
    if (!drift)
        return;
    html_heading(b, "Errors by position: this device against the reference kernels, one long sequence");
    for (size_t i = 0; i < n; i++) {
        const struct json *x = json_at(fact(drift, "buckets"), i);
        const double v = fact_number(x, "logits", -1);
        if (v < 0) /* the reference kernels did not get so far */
            continue;
        first[taken] = fact_number(x, "first", 0);
        values[taken++] = v;
    }
    svg_doublings(b, "Relative L2 of logits, median, by doubling of the position", first, values, taken,
                  fact_number(drift, "limit", 0));
    strbuf_puts(b, "<dl class=\"kv\">\n");
    html_pair(b, "Positions", fact_text(drift, "evidence"));
    if (fact_true(drift, "ran")) {
        number(b, "Original length", html_count, fact_number(drift, "original_length", 0));
        number(b, "Tokens on the device", html_count, fact_number(drift, "tokens", 0));
        number(b, "On the reference kernels", html_count, fact_number(drift, "reference_tokens", 0));
        html_pair(b, "Decode against prefill",
                  fact_true(drift, "decode_identical") ? "identical" : "other bits");
        number(b, "Growth of logit errors with each doubling", two_decimals,
               fact_number(drift, "logits_growth", 1));
    }
    strbuf_puts(b, "</dl>\n");
}
