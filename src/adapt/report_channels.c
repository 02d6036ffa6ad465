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
static void text_case(struct strbuf *b, const struct json *c)
{
    bool timed = fact(c, "ms.total") != NULL;
    strbuf_puts(b, "<tr>");
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
    strbuf_puts(b, "</tr>\n");
}

void section_text(struct strbuf *b, const struct report *r)
{
    static const char *const heads[] = {
        "Case", "State", "Prompt and answer", "In", "Out", "Tokenize", "First", "Decode", "Total"};
    size_t n = fact_count(r->facts[3], "cases");
    html_section(
        b, "text", "Text channel",
        "Each case went through the service by HTTP. In and out are tokens; times are milliseconds.");
    if (!n) {
        html_nothing(b, r, 3);
    } else {
        html_table(b, heads, ARRAY_LEN(heads), 3);
        for (size_t i = 0; i < n; i++)
            text_case(b, json_at(fact(r->facts[3], "cases"), i));
        html_table_end(b);
    }
    html_section_end(b);
}

/* ---- pictures */

/* "data:image/TYPE;base64," and then digits of base64 only. */
static bool is_data_url(const char *s)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
    static const char *const heads[] = {"data:image/png;base64,", "data:image/jpeg;base64,",
                                        "data:image/webp;base64,", "data:image/gif;base64,"};
    for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++)
        if (str_starts(s, heads[i]))
            return strspn(s + strlen(heads[i]), digits) == strlen(s + strlen(heads[i]));
    return false;
}

static void picture_case(struct strbuf *b, const struct json *c)
{
    const struct json *pictures = fact(c, "pictures");
    strbuf_puts(b, "<tr>");
    html_cell(b, "key", fact_text(c, "name"));
    html_badge_cell(b, fact_text(c, "state"));
    strbuf_puts(b, "<td>");
    for (size_t i = 0; pictures && pictures->type == JSON_ARRAY && i < pictures->n; i++) {
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
    strbuf_puts(b, "</tr>\n");
}

static void picture_cases(struct strbuf *b, const struct json *list, const char *heading)
{
    static const char *const heads[] = {"Case",   "State",    "Pictures", "Asked",
                                        "Answer", "Expected", "In",       "Total, ms"};
    if (!list || list->type != JSON_ARRAY || list->n == 0)
        return;
    strbuf_puts(b, "<h3>");
    html_text(b, heading);
    strbuf_puts(b, "</h3>\n");
    html_table(b, heads, sizeof(heads) / sizeof(*heads), 6);
    for (size_t i = 0; i < list->n; i++)
        picture_case(b, json_at(list, i));
    html_table_end(b);
}

static void steps_table(struct strbuf *b, const struct json *reference)
{
    static const char *const heads[] = {"Step", "State", "What", "Off by", "Limit"};
    const struct json *steps = fact(reference, "steps");
    if (!steps || steps->type != JSON_ARRAY)
        return;
    strbuf_puts(b, "<h3>Against a recorded conversation: ");
    html_text(b, fact_text(reference, "producer"));
    strbuf_puts(b, "</h3>\n");
    html_table(b, heads, sizeof(heads) / sizeof(*heads), 3);
    for (size_t i = 0; i < steps->n; i++) {
        const struct json *s = json_at(steps, i);
        strbuf_puts(b, "<tr>");
        html_cell(b, "key", fact_text(s, "step"));
        html_badge_cell(b, fact_text(s, "state"));
        html_cell(b, "", fact_text(s, "words"));
        html_number_cell(b, html_scientific, s, "figure");
        html_number_cell(b, html_scientific, s, "limit");
        strbuf_puts(b, "</tr>\n");
    }
    html_table_end(b);
}

static void self_table(struct strbuf *b, const struct json *self)
{
    static const char *const heads[] = {"Check", "State", "What"};
    if (!self || self->type != JSON_ARRAY || self->n == 0)
        return;
    strbuf_puts(b, "<h3>Of itself</h3>\n");
    html_table(b, heads, sizeof(heads) / sizeof(*heads), sizeof(heads) / sizeof(*heads));
    for (size_t i = 0; i < self->n; i++) {
        strbuf_puts(b, "<tr>");
        html_cell(b, "key", fact_text(json_at(self, i), "name"));
        html_passed_cell(b, fact_true(json_at(self, i), "passed"));
        html_cell(b, "", fact_text(json_at(self, i), "why"));
        strbuf_puts(b, "</tr>\n");
    }
    html_table_end(b);
}

static void segments_table(struct strbuf *b, const struct json *list)
{
    static const char *const heads[] = {"Segment", "n", "Mean, ms", "p50", "p95", "Max"};
    if (!list || list->type != JSON_ARRAY || list->n == 0)
        return;
    strbuf_puts(b, "<h3>Where time goes, a request</h3>\n");
    html_table(b, heads, sizeof(heads) / sizeof(*heads), 1);
    for (size_t i = 0; i < list->n; i++) {
        const struct json *s = json_at(list, i);
        strbuf_puts(b, "<tr>");
        html_cell(b, "key", fact_text(s, "name"));
        html_number_cell(b, html_count, s, "n");
        html_number_cell(b, html_milliseconds, s, "mean");
        html_number_cell(b, html_milliseconds, s, "p50");
        html_number_cell(b, html_milliseconds, s, "p95");
        html_number_cell(b, html_milliseconds, s, "max");
        strbuf_puts(b, "</tr>\n");
    }
    html_table_end(b);
}

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
        self_table(b, fact(image, "self"));
        if (*fact_text(image, "served")) {
            strbuf_puts(b, "<p>");
            html_text(b, fact_text(image, "served"));
            strbuf_puts(b, "</p>\n");
        }
        picture_cases(b, fact(image, "cases"), "Through the service");
        picture_cases(b, fact(image, "questions"), "Known answers");
    }
    segments_table(b, fact(facts, "segments"));
    html_section_end(b);
}

/* ---- the load with pictures */

void picture_load_part(struct strbuf *b, const struct json *pictures)
{
    static const char *const heads[] = {"Busy", "Seconds", "Threads", "Share of the time, %"};
    const struct json *busy = fact(pictures, "busy");
    if (!busy || busy->type != JSON_ARRAY || busy->n == 0)
        return;
    strbuf_puts(b, "<h3>With pictures</h3>\n<p>");
    html_count(b, fact_number(pictures, "run.requests.sent", 0));
    strbuf_puts(b, " requests, each with a picture of its own");
    if (*fact_text(pictures, "bottleneck")) {
        strbuf_puts(b, ". Busiest: ");
        html_text(b, fact_text(pictures, "bottleneck"));
    }
    strbuf_puts(b, ".</p>\n");
    html_table(b, heads, sizeof(heads) / sizeof(*heads), 1);
    for (size_t i = 0; i < busy->n; i++) {
        const struct json *v = json_at(busy, i);
        strbuf_puts(b, "<tr>");
        html_cell(b, "key", fact_text(v, "name"));
        strbuf_puts(b, "<td class=\"n\">");
        html_number(b, fact_number(v, "seconds", 0), 3);
        strbuf_puts(b, "</td>");
        html_number_cell(b, html_count, v, "threads");
        strbuf_puts(b, "<td class=\"n\">");
        html_number(b, 100 * fact_number(v, "share", 0), 1);
        strbuf_puts(b, "</td></tr>\n");
    }
    html_table_end(b);
}
