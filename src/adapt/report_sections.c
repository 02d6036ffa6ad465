/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the sections of the page that show facts: model, memory, numbers, text, latency, service, operators,
 * environment. Refuses: a section without facts pretending to have some: it says which stage did not give
 * them.
 */
#include "adapt/html.h"

#include <stdlib.h>
#include <string.h>

static void tile(struct strbuf *b, number_fn print, const struct json *v, const char *path, const char *what)
{
    double x = fact_number(v, path, -1);
    if (x < 0)
        return;
    strbuf_puts(b, "<div class=\"tile\"><b>");
    print(b, x);
    strbuf_puts(b, "</b><span>");
    html_text(b, what);
    strbuf_puts(b, "</span></div>\n");
}

/* A pair whose value is a printed number; nothing when the fact is absent. */
static void number_pair(struct strbuf *b, const char *term, number_fn print, const struct json *v,
                        const char *path)
{
    struct strbuf text = STRBUF_INIT;
    double x = fact_number(v, path, -1);
    if (x >= 0) {
        print(&text, x);
        html_pair(b, term, strbuf_cstr(&text));
    }
    strbuf_release(&text);
}

/* ---- stage 1 */

void section_model(struct strbuf *b, const struct report *r)
{
    const struct json *m = fact(r->facts[0], "model");
    html_section(b, "model", "Model",
                 "Read from config.json, the headers of the shards and the architecture file.");
    if (!m) {
        html_nothing(b, r, 0);
    } else {
        strbuf_puts(b, "<div class=\"tiles\">\n");
        tile(b, html_short_count, m, "parameters", "parameters");
        tile(b, html_bytes, m, "weight_bytes", "of weights");
        tile(b, html_count, m, "layers", "layers");
        tile(b, html_count, m, "context_limit", "tokens of context");
        tile(b, html_bytes, m, "kv_bytes_per_token", "of KV per token");
        tile(b, html_count, m, "vocab", "vocabulary");
        strbuf_puts(b, "</div>\n<dl class=\"kv\">\n");
        html_pair(b, "Architecture", fact_text(m, "architecture"));
        html_pair(b, "Model type", fact_text(m, "model_type"));
        number_pair(b, "Tensors", html_count, m, "tensors");
        number_pair(b, "Shards", html_count, m, "shards");
        number_pair(b, "Hidden size", html_count, m, "hidden");
        number_pair(b, "Heads", html_count, m, "heads");
        number_pair(b, "KV heads", html_count, m, "kv_heads");
        html_pair(b, "KV type", fact_text(m, "kv_dtype"));
        html_pair(b, "Activations", fact_text(m, "activations"));
        strbuf_puts(b, "</dl>\n");
    }
    html_section_end(b);
}

static void operator_cells(struct strbuf *b, const struct json *op)
{
    html_cell(b, "key", fact_text(op, "op"));
    html_cell(b, "mono", fact_text(op, "types"));
    html_badge_cell(b, fact_true(op, "supported") ? "yes" : "no"); /* support is no proof */
    html_cell(b, "", fact_text(op, "reason"));
    html_number_cell(b, html_count, op, "count");
}

void section_operators(struct strbuf *b, const struct report *r)
{
    static const struct html_list operators = {.heads = {"Operator", "Types", "Supported", "Reason", "Nodes"},
                                               .first_number = 4,
                                               .cells = operator_cells};
    html_section(b, "operators", "Operators on this device", fact_text(r->facts[0], "device.description"));
    if (!fact_count(r->facts[0], "operators"))
        html_nothing(b, r, 0);
    else
        html_list(b, &operators, r->facts[0], "operators");
    html_section_end(b);
}

static void library_cells(struct strbuf *b, const struct json *library)
{
    html_cell(b, "key", fact_text(library, "name"));
    html_cell(b, "mono", fact_true(library, "found") ? fact_text(library, "version") : "not found");
    html_cell(b, "", fact_text(library, "role"));
}

static const struct html_list libraries = {.heading = "Libraries",
                                           .heads = {"Library", "Version", "Used for"},
                                           .first_number = 9,
                                           .cells = library_cells};

/* "nvidia driver >= 580 with cuda runtime >= 13" */
static void rule_wants(struct strbuf *b, const struct json *r)
{
    static const char *const keys[] = {"component", "needs", "package_needs", "when_component", "when"};
    static const char *const before[] = {"", " ", " or package ", " with ", " "};
    strbuf_puts(b, "<td>");
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (!*fact_text(r, keys[i]))
            continue;
        strbuf_puts(b, before[i]);
        html_text(b, fact_text(r, keys[i]));
    }
    strbuf_puts(b, "</td>");
}

static void rule_cells(struct strbuf *b, const struct json *rule)
{
    const char *seen = fact_text(rule, "seen"), *state = fact_text(rule, "state");
    html_cell(b, "key", fact_text(rule, "rule"));
    rule_wants(b, rule);
    html_cell(b, "mono", *seen ? seen : strcmp(state, "not applicable") == 0 ? "not there" : "unknown");
    html_badge_cell(b, state);
    html_cell(b, "", fact_text(rule, "severity"));
    html_cell(b, "", fact_text(rule, "reason"));
}

static void rule_table(struct strbuf *b, const struct json *facts)
{
    static const struct html_list rules = {.heads = {"Rule", "Wants", "Found", "State", "Severity", "Why"},
                                           .first_number = 9,
                                           .cells = rule_cells};
    if (!fact_count(facts, "rules"))
        return;
    html_heading(b, "Version rules");
    if (*fact_text(facts, "machine")) {
        strbuf_puts(b, "<p>Judged for the machine captured in ");
        html_text(b, fact_text(facts, "machine"));
        strbuf_puts(b, ".</p>\n");
    }
    html_list(b, &rules, facts, "rules");
}

void section_environment(struct strbuf *b, const struct report *r)
{
    const struct json *host = fact(r->facts[0], "host"), *device = fact(r->facts[0], "device");
    html_section(b, "environment", "Environment", "");
    if (!host) {
        html_nothing(b, r, 0);
    } else {
        strbuf_puts(b, "<dl class=\"kv\">\n");
        html_pair(b, "Host", fact_text(host, "hostname"));
        html_pair(b, "System", fact_text(host, "os"));
        html_pair(b, "Kernel", fact_text(host, "kernel"));
        html_pair(b, "Processor", fact_text(host, "cpu.model"));
        html_pair(b, "Instructions", fact_text(host, "cpu.flags"));
        number_pair(b, "Memory", html_bytes, host, "memory.total_bytes");
        number_pair(b, "Available", html_bytes, host, "memory.available_bytes");
        html_pair(b, "Limited by", fact_text(host, "memory.limited_by"));
        html_pair(b, "Device", fact_text(device, "name"));
        html_pair(b, "Variant", fact_text(device, "variant"));
        html_pair(b, "Compiler", fact_text(host, "compiler"));
        strbuf_puts(b, "</dl>\n");
        html_list(b, &libraries, host, "libraries");
        rule_table(b, r->facts[0]);
        if (*fact_text(host, "topology")) {
            strbuf_puts(b, "<details><summary>Topology</summary><pre>");
            html_text(b, fact_text(host, "topology"));
            strbuf_puts(b, "</pre></details>\n");
        }
    }
    html_section_end(b);
}

/* ---- stage 3 and 5: memory */

static const char *const memory_parts[] = {"weights", "kv",    "scratch", "device",
                                           "staging", "fixed", "pictures"};
static const char *const memory_words[] = {
    "Weights",        "KV pages",           "Scratch of a step", "Scratch of kernels",
    "Loader staging", "Program, libraries", "Pictures"};

/* Those of pictures come last, and only where there are some. */
static size_t n_memory_parts(const struct json *predicted)
{
    return ARRAY_LEN(memory_parts) - (fact_number(predicted, "pictures", 0) > 0 ? 0 : 1);
}

/* held: what the service says that it holds of a part, where it says so; NULL: it was not asked */
static void memory_table(struct strbuf *b, const struct json *predicted, const struct json *held)
{
    static const char *const heads[] = {"Part", "Predicted", "Held"};
    html_table(b, heads, held ? 3 : 2, 1);
    for (size_t i = 0; i < n_memory_parts(predicted); i++) {
        strbuf_printf(b, "<tr><td><span class=\"swatch p%zu\"></span>%s</td>", i, memory_words[i]);
        html_number_cell(b, html_bytes, predicted, memory_parts[i]);
        if (held)
            html_number_cell(b, html_bytes, held, memory_parts[i]);
        strbuf_puts(b, "</tr>\n");
    }
    html_table_end(b);
}

static void memory_plot(struct strbuf *b, const struct json *predicted, double ready, double peak,
                        double allowed)
{
    double parts[ARRAY_LEN(memory_parts)], total = fact_number(predicted, "total", -1);
    struct strbuf notes[3] = {STRBUF_INIT, STRBUF_INIT, STRBUF_INIT};
    for (size_t i = 0; i < ARRAY_LEN(memory_parts); i++)
        parts[i] = fact_number(predicted, memory_parts[i], 0);
    html_bytes(&notes[0], total >= 0 ? total - fact_number(predicted, "pictures_waiting", 0) : total);
    html_bytes(&notes[1], ready);
    html_bytes(&notes[2], peak);
    struct svg_bar bars[3] = {{"Predicted", strbuf_cstr(&notes[0]), parts, n_memory_parts(predicted)},
                              {"When ready", strbuf_cstr(&notes[1]), &ready, 1},
                              {"Peak, loaded", strbuf_cstr(&notes[2]), &peak, 1}};
    svg_bars(b, "Memory predicted and measured", bars,
             peak >= 0    ? 3
             : ready >= 0 ? 2
                          : 1,
             allowed, "allowed");
    for (size_t i = 0; i < ARRAY_LEN(notes); i++)
        strbuf_release(&notes[i]);
}

void section_memory(struct strbuf *b, const struct report *r)
{
    const struct json *facts = r->facts[2], *predicted = fact(facts, "plan.predicted");
    double ready = fact_number(facts, "measured.ready_rss", -1),
           peak = fact_number(r->facts[4], "memory.peak_rss", -1);
    double allowed = fact_number(facts, "measured.allowed", 0);
    html_section(
        b, "memory", "Memory",
        "The plan was made before a weight was read; the measurement is the resident set of the service.");
    if (!predicted) {
        html_nothing(b, r, 2);
    } else {
        strbuf_puts(b, "<div class=\"two\"><div>\n");
        memory_plot(b, predicted, ready, peak, ready >= 0 ? allowed : 0);
        strbuf_puts(b, "</div><div>\n");
        memory_table(b, predicted, fact(facts, "measured.held"));
        strbuf_puts(b, "</div></div>\n<dl class=\"kv\">\n");
        number_pair(b, "Available", html_bytes, facts, "plan.available");
        if (fact_number(predicted, "pictures_waiting", 0) > 0)
            number_pair(b, "Room for pictures that wait", html_bytes, predicted, "pictures_waiting");
        html_pair(b, "Known from", fact_text(facts, "plan.available_source"));
        html_pair(b, "Prediction from", fact_text(facts, "plan.predicted_source"));
        html_pair(b, "Measured by", fact_text(facts, "measured.source"));
        html_pair(b, "Rule", fact_text(facts, "measured.rule"));
        html_pair(b, "Smallest layout", fact_text(facts, "plan.smallest_layout"));
        html_pair(b, "Communicator", fact_text(facts, "communicator.evidence"));
        strbuf_puts(b, "</dl>\n");
    }
    html_section_end(b);
}

/* ---- stage 2 */

static void reference_part(struct strbuf *b, const struct json *ref)
{
    const struct json *list = fact(ref, "abs_by_position");
    size_t n = fact_count(list, "");
    double *values = calloc(n ? n : 1, sizeof(*values));
    for (size_t i = 0; values && i < n; i++)
        values[i] = fact_number(json_at(list, i), "", 0);
    strbuf_puts(b, "<h3>Largest |difference| of logits by position, against ");
    html_text(b, fact_text(ref, "producer"));
    strbuf_puts(b, "</h3>\n");
    if (values)
        svg_positions(b, "Largest logit difference by position", values, n, fact_number(ref, "limit", 0));
    free(values);
    strbuf_puts(b, "<dl class=\"kv\">\n");
    html_pair(b, "Reference", fact_text(ref, "path"));
    html_pair(b, "Its SHA-256", fact_text(ref, "sha256"));
    number_pair(b, "Largest difference", html_scientific, ref, "max_abs_logit");
    number_pair(b, "At position", html_count, ref, "worst_position");
    number_pair(b, "Relative L2", html_scientific, ref, "relative_l2");
    number_pair(b, "Largest KL", html_scientific, ref, "max_kl");
    number_pair(b, "Positions", html_count, ref, "positions");
    number_pair(b, "Same best token", html_count, ref, "top1_agree");
    number_pair(b, "Greedy tokens", html_count, ref, "greedy_tokens");
    number_pair(b, "Equal from the start", html_count, ref, "greedy_equal");
    html_pair(b, "First bad probe", fact_text(ref, "first_bad_probe"));
    strbuf_puts(b, "</dl>\n");
}

static void piece_cells(struct strbuf *b, const struct json *p)
{
    const bool bad = fact_true(p, "all_zero") || *fact_text(p, "why");
    html_cell(b, "key", fact_text(p, "name"));
    html_badge_cell(b, !fact_true(p, "ran") ? "not run" : bad ? "failed" : "self-consistent");
    html_cell(b, "", fact_true(p, "all_zero") ? "output is all zero" : fact_text(p, "why"));
    html_number_cell(b, html_bytes, p, "weight_bytes");
    html_number_cell(b, html_scientific, p, "relative_l2");
    html_number_cell(b, html_scientific, p, "max_abs");
    html_number_cell(b, html_seconds, p, "seconds");
}

static const struct html_list pieces = {
    .heading = "Minimal validation: this device against the reference kernels",
    .heads = {"Piece", "State", "Remark", "Weights", "Relative L2", "Largest difference", "Seconds"},
    .first_number = 3,
    .cells = piece_cells};

static void fusion_cells(struct strbuf *b, const struct json *v)
{
    html_cell(b, "key", fact_text(v, "name"));
    html_cell(b, "", fact_text(v, "exactness"));
    html_badge_cell(b, fact_true(v, "on")                 ? "on"
                       : fact_number(v, "nodes", 0) == 0  ? "not applicable"
                       : fact_number(v, "pieces", 0) == 0 ? "not checked"
                       : fact_true(v, "accepted")         ? "off"
                                                          : "failed");
    html_cell(b, "", fact_text(v, "reason"));
    html_number_cell(b, html_count, v, "nodes");
    html_number_cell(b, html_scientific, v, "limit");
    html_number_cell(b, html_scientific, v, "measured");
}

static const struct html_list fusions = {
    .heading = "Fusions, on layers of this model",
    .heads = {"Fusion", "Promise", "State", "Why", "Nodes", "Limit", "Measured"},
    .first_number = 4,
    .cells = fusion_cells};

void section_numerics(struct strbuf *b, const struct report *r)
{
    const struct json *facts = r->facts[1], *ref = fact(facts, "reference"), *bits = fact(facts, "bits");
    html_section(b, "numerics", "Numbers", "");
    if (!facts) {
        html_nothing(b, r, 1);
    } else {
        if (ref)
            reference_part(b, ref);
        else
            strbuf_puts(b, "<p class=\"lead\">No reference was given (--reference FILE), so the numbers "
                           "agree with this program's own "
                           "reference kernels and with nothing else: self-consistent.</p>\n");
        html_list(b, &pieces, facts, "pieces");
        html_list(b, &fusions, facts, "fusions");
        drift_part(b, fact(facts, "drift"));
        strbuf_puts(b, "<dl class=\"kv\">\n");
        html_pair(b, "Same bits", fact_text(bits, "evidence"));
        html_pair(b, "Payload", fact_text(facts, "payload.evidence"));
        strbuf_puts(b, "</dl>\n");
    }
    html_section_end(b);
}

/* ---- stage 5 */

#define MAX_RUNS 4

static double *sample_array(const struct json *run, const char *key, size_t *n)
{
    const struct json *list = fact(run, key);
    *n = fact_count(list, "");
    double *out = calloc(*n ? *n : 1, sizeof(*out));
    for (size_t i = 0; out && i < *n; i++)
        out[i] = fact_number(json_at(list, i), "", -1);
    if (!out)
        *n = 0;
    return out;
}

static void latency_plot(struct strbuf *b, const struct json *runs, const char *key, const char *title)
{
    struct svg_series series[MAX_RUNS];
    double *values[MAX_RUNS] = {0};
    struct strbuf labels[MAX_RUNS] = {0};
    size_t n = runs->n < MAX_RUNS ? runs->n : MAX_RUNS;
    for (size_t i = 0; i < n; i++) {
        const struct json *run = json_at(runs, i);
        strbuf_puts(&labels[i], "concurrency ");
        html_count(&labels[i], fact_number(run, "concurrency", 0));
        values[i] = sample_array(run, key, &series[i].n);
        series[i].values = values[i];
        series[i].label = strbuf_cstr(&labels[i]);
    }
    strbuf_puts(b, "<div>");
    html_heading(b, title);
    svg_cdf(b, title, series, n);
    strbuf_puts(b, "</div>\n");
    for (size_t i = 0; i < n; i++) {
        free(values[i]);
        strbuf_release(&labels[i]);
    }
}

/* One metric of every run together: what concurrency does to it is the point. */
static void latency_rows(struct strbuf *b, const struct json *runs, const char *key, const char *word)
{
    static const char *const columns[] = {"p50", "p90", "p99", "max", "mean"};
    for (size_t i = 0; i < runs->n; i++) {
        const struct json *run = json_at(runs, i), *q = fact(run, key);
        strbuf_puts(b, "<tr>");
        html_cell(b, "key", i == 0 ? word : "");
        html_number_cell(b, html_count, run, "concurrency");
        for (size_t k = 0; k < ARRAY_LEN(columns); k++)
            html_number_cell(b, html_milliseconds, q, columns[k]);
        html_number_cell(b, html_count, q, "n");
        strbuf_puts(b, "</tr>\n");
    }
}

static void one_decimal(struct strbuf *b, double v)
{
    if (v < 1000)
        html_number(b, v, v < 100 ? 1 : 0);
    else
        html_count(b, v);
}

static void throughput_cells(struct strbuf *b, const struct json *run)
{
    strbuf_puts(b, "<td class=\"key\">");
    html_count(b, fact_number(run, "concurrency", 0));
    strbuf_puts(b, "</td>");
    html_cell(b, "", fact_text(run, "tokens_from"));
    html_number_cell(b, html_count, run, "requests.sent");
    html_number_cell(b, html_count, run, "requests.failed");
    html_number_cell(b, one_decimal, run, "output_tokens_per_second");
    html_number_cell(b, one_decimal, run, "requests_per_second");
    html_number_cell(b, html_seconds, run, "seconds");
    html_number_cell(b, html_bytes, run, "rss_peak");
}

static const struct html_list throughput = {.heading = "Throughput",
                                            .heads = {"Concurrency", "Tokens from", "Requests", "Failed",
                                                      "Tokens/s", "Requests/s", "Wall", "Peak memory"},
                                            .first_number = 2,
                                            .cells = throughput_cells};

void section_latency(struct strbuf *b, const struct report *r)
{
    static const char *const heads[] = {"Milliseconds", "Concurrency", "p50",  "p90",
                                        "p99",          "max",         "mean", "Samples"};
    const struct json *runs = fact(r->facts[4], "runs");
    html_section(b, "latency", "Latency and throughput",
                 "Measured over HTTP, from the moment a request was due.");
    if (!fact_count(runs, "")) {
        html_nothing(b, r, 4);
    } else {
        strbuf_puts(b, "<div class=\"two\">\n");
        latency_plot(b, runs, "ttft_samples_ms", "Time to first token");
        latency_plot(b, runs, "itl_samples_ms", "Time between chunks");
        strbuf_puts(b, "</div>\n");
        html_list(b, &throughput, runs, "");
        html_heading(b, "Latency");
        html_table(b, heads, ARRAY_LEN(heads), 1);
        latency_rows(b, runs, "ttft_ms", "TTFT");
        latency_rows(b, runs, "tpot_ms", "TPOT");
        latency_rows(b, runs, "itl_ms", "ITL");
        latency_rows(b, runs, "e2e_ms", "E2E");
        html_table_end(b);
        picture_load_part(b, fact(r->facts[4], "pictures"));
    }
    html_section_end(b);
}

static void service_cells(struct strbuf *b, const struct json *c)
{
    html_cell(b, "key", fact_text(c, "name"));
    html_passed_cell(b, fact_true(c, "passed"));
    html_cell(b, "", fact_text(c, "detail"));
}

void section_service(struct strbuf *b, const struct report *r)
{
    static const struct html_list checks = {
        .heads = {"Check", "State", "Evidence"}, .first_number = 9, .cells = service_cells};
    html_section(b, "service", "Service interface", "");
    if (!fact_count(r->facts[4], "service"))
        html_nothing(b, r, 4);
    else
        html_list(b, &checks, r->facts[4], "service");
    html_section_end(b);
}
