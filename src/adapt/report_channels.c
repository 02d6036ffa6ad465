/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the sections of the page about the channels: text and pictures, case by case, and the times of their
 * segments. Refuses: a picture that is no data: URL of a picture: nothing is loaded from elsewhere.
 */
#include "adapt/html.h"

#include <string.h>

/* ---- text */

/* The answer on a line of its own: what a chat answers does not continue the question. */
static void text_answer(struct strbuf *b, const struct json *c)
{
    const char *prompt = fact_text(c, "prompt"), *output = fact_text(c, "output");
    if (*prompt || *output) {
        strbuf_puts(b, "<blockquote><bdi><span class=\"note\">");
        html_text_n(b, prompt, strlen(prompt), 120);
        strbuf_puts(b, "</span></bdi>\n<bdi>");
        if (*output)
            html_text_n(b, output, strlen(output), 280);
        else
            strbuf_puts(b, "<span class=\"note\">(no text)</span>");
        strbuf_puts(b, "</bdi></blockquote>");
    }
    if (*fact_text(c, "why")) {
        strbuf_puts(b, "<span class=\"note\">");
        html_text(b, fact_text(c, "why"));
        strbuf_puts(b, "</span>");
    }
}

/* A case about more than one request has no times of its own: its text takes their place. */
static void text_cells(struct strbuf *b, const struct json *c)
{
    bool timed = fact(c, "ms.total") != NULL;
    html_cell(b, "key", fact_text(c, "name"));
    html_passed_cell(b, fact_true(c, "passed"));
    strbuf_puts(b, timed ? "<td>" : "<td colspan=\"7\">");
    text_answer(b, c);
    strbuf_puts(b, "</td>");
    if (timed) {
        html_number_cell(b, html_count, c, "prompt_tokens");
        html_number_cell(b, html_count, c, "output_tokens");
        html_number_cell(b, html_milliseconds, c, "ms.tokenize");
        html_number_cell(b, html_milliseconds, c, "ms.first_token");
        html_number_cell(b, html_milliseconds, c, "ms.decode");
        html_number_cell(b, html_milliseconds, c, "ms.total");
    }
}

void section_text(struct strbuf *b, const struct report *r)
{
    static const struct html_list cases = {
        .heads = {"Case", "State", "Prompt and answer", "In", "Out", "Tokenize", "First", "Decode", "Total"},
        .first_number = 3,
        .cells = text_cells};
    html_section(
        b, "text", "Text channel",
        "Each case went through the service by HTTP. In and out are tokens; times are milliseconds.");
    if (!fact_count(r->facts[3], "cases"))
        html_nothing(b, r, 3);
    else
        html_list(b, &cases, r->facts[3], "cases");
    html_section_end(b);
}

/* ---- pictures */

/* "data:image/TYPE;base64," and then digits of base64 only. */
static bool is_data_url(const char *s)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
    static const char *const heads[] = {"data:image/png;base64,", "data:image/jpeg;base64,",
                                        "data:image/webp;base64,", "data:image/gif;base64,"};
    for (size_t i = 0; i < ARRAY_LEN(heads); i++)
        if (str_starts(s, heads[i]))
            return strspn(s + strlen(heads[i]), digits) == strlen(s + strlen(heads[i]));
    return false;
}

static void picture_cells(struct strbuf *b, const struct json *c)
{
    const struct json *pictures = fact(c, "pictures");
    html_cell(b, "key", fact_text(c, "name"));
    html_badge_cell(b, fact_text(c, "state"));
    strbuf_puts(b, "<td>");
    for (size_t i = 0; i < fact_count(pictures, ""); i++) {
        const char *url = json_string(json_at(pictures, i));
        if (url && is_data_url(url))
            strbuf_printf(b, "<img class=\"asked\" alt=\"picture %zu\" src=\"%s\">", i + 1, url);
    }
    strbuf_puts(b, "</td>");
    html_cell(b, "", fact_text(c, "question"));
    html_cell(b, "", *fact_text(c, "why") ? fact_text(c, "why") : fact_text(c, "answer"));
    html_cell(b, "", fact_text(c, "expected"));
    html_number_cell(b, html_count, c, "prompt_tokens");
    html_number_cell(b, html_milliseconds, c, "total_ms");
}

static void picture_cases(struct strbuf *b, const struct json *image, const char *key, const char *heading)
{
    static const struct html_list cases = {
        .heads = {"Case", "State", "Pictures", "Asked", "Answer", "Expected", "In", "Total, ms"},
        .first_number = 6,
        .cells = picture_cells};
    if (!fact_count(image, key))
        return;
    html_heading(b, heading);
    html_list(b, &cases, image, key);
}

static void step_cells(struct strbuf *b, const struct json *s)
{
    html_cell(b, "key", fact_text(s, "step"));
    html_badge_cell(b, fact_text(s, "state"));
    html_cell(b, "", fact_text(s, "words"));
    html_number_cell(b, html_scientific, s, "figure");
    html_number_cell(b, html_scientific, s, "limit");
}

static void steps_table(struct strbuf *b, const struct json *reference)
{
    static const struct html_list steps = {
        .heads = {"Step", "State", "What", "Off by", "Limit"}, .first_number = 3, .cells = step_cells};
    if (!fact_count(reference, "steps"))
        return;
    strbuf_puts(b, "<h3>Against a recorded conversation: ");
    html_text(b, fact_text(reference, "producer"));
    strbuf_puts(b, "</h3>\n");
    html_list(b, &steps, reference, "steps");
}

static void self_cells(struct strbuf *b, const struct json *c)
{
    html_cell(b, "key", fact_text(c, "name"));
    html_passed_cell(b, fact_true(c, "passed"));
    html_cell(b, "", fact_text(c, "why"));
}

static const struct html_list self_checks = {
    .heading = "Of itself", .heads = {"Check", "State", "What"}, .first_number = 3, .cells = self_cells};

static void segment_cells(struct strbuf *b, const struct json *s)
{
    html_cell(b, "key", fact_text(s, "name"));
    html_number_cell(b, html_count, s, "n");
    html_number_cell(b, html_milliseconds, s, "mean");
    html_number_cell(b, html_milliseconds, s, "p50");
    html_number_cell(b, html_milliseconds, s, "p95");
    html_number_cell(b, html_milliseconds, s, "max");
}

static const struct html_list segments = {.heading = "Where time goes, a request",
                                          .heads = {"Segment", "n", "Mean, ms", "p50", "p95", "Max"},
                                          .first_number = 1,
                                          .cells = segment_cells};

void section_image(struct strbuf *b, const struct report *r)
{
    const struct json *facts = r->facts[3], *image = fact(facts, "image");
    html_section(
        b, "image", "Image channel",
        "From decoded pixels to the answer: each step against what was recorded elsewhere, where a recording "
        "was given, and conversations through the service against what this directory gives.");
    if (!image) {
        strbuf_puts(b, "<p class=\"empty\">");
        html_text(b, r->rows[ROW_IMAGE].evidence ? r->rows[ROW_IMAGE].evidence : "");
        strbuf_puts(b, "</p>\n");
    } else {
        steps_table(b, fact(image, "reference"));
        html_list(b, &self_checks, image, "self");
        if (*fact_text(image, "served")) {
            strbuf_puts(b, "<p>");
            html_text(b, fact_text(image, "served"));
            strbuf_puts(b, "</p>\n");
        }
        picture_cases(b, image, "cases", "Through the service");
        picture_cases(b, image, "questions", "Known answers");
    }
    html_list(b, &segments, facts, "segments");
    html_section_end(b);
}

/* ---- the load with pictures */

static void three_decimals(struct strbuf *b, double v)
{
    html_number(b, v, 3);
}

static void percent(struct strbuf *b, double share)
{
    html_number(b, 100 * share, 1);
}

static void busy_cells(struct strbuf *b, const struct json *v)
{
    html_cell(b, "key", fact_text(v, "name"));
    html_number_cell(b, three_decimals, v, "seconds");
    html_number_cell(b, html_count, v, "threads");
    html_number_cell(b, percent, v, "share");
}

void picture_load_part(struct strbuf *b, const struct json *pictures)
{
    static const struct html_list busy = {.heads = {"Busy", "Seconds", "Threads", "Share of the time, %"},
                                          .first_number = 1,
                                          .cells = busy_cells};
    if (!fact_count(pictures, "busy"))
        return;
    html_heading(b, "With pictures");
    strbuf_puts(b, "<p>");
    html_count(b, fact_number(pictures, "run.requests.sent", 0));
    strbuf_puts(b, " requests, each with a picture of its own");
    if (*fact_text(pictures, "bottleneck")) {
        strbuf_puts(b, ". Busiest: ");
        html_text(b, fact_text(pictures, "bottleneck"));
    }
    strbuf_puts(b, ".</p>\n");
    html_list(b, &busy, pictures, "busy");
}
