/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: turning untrusted text, facts and numbers into HTML.
 * Refuses: trusting anything. Facts may come from a file that somebody edited, so a wrong type reads as
 * absent.
 */
#include "adapt/html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

void html_text_n(struct strbuf *b, const char *s, size_t n, size_t max_bytes)
{
    size_t i = 0;
    while (s && i < n) {
        uint32_t code = 0;
        size_t len = utf8_decode(s + i, n - i, &code);
        if (i >= max_bytes) {
            strbuf_puts(b, "\xe2\x80\xa6");
            return;
        }
        if (len == 0 || (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0))
            strbuf_puts(b, REPLACEMENT);
        else if (code == '&')
            strbuf_puts(b, "&amp;");
        else if (code == '<')
            strbuf_puts(b, "&lt;");
        else if (code == '>')
            strbuf_puts(b, "&gt;");
        else if (code == '"')
            strbuf_puts(b, "&quot;");
        else if (code == '\'')
            strbuf_puts(b, "&#39;");
        else
            strbuf_add(b, s + i, len);
        i += len ? len : 1;
    }
}

void html_text(struct strbuf *b, const char *s)
{
    if (s)
        html_text_n(b, s, strlen(s), SIZE_MAX);
}

const struct json *fact(const struct json *v, const char *path)
{
    char key[64];
    while (v && *path) {
        size_t n = strcspn(path, ".");
        if (n == 0 || n >= sizeof(key))
            return NULL;
        memcpy(key, path, n);
        key[n] = '\0';
        v = json_get(v, key);
        path += n;
        path += *path == '.';
    }
    return v && v->type != JSON_NULL ? v : NULL;
}

const char *fact_text(const struct json *v, const char *path)
{
    const char *s = json_string(fact(v, path));
    return s ? s : "";
}

double fact_number(const struct json *v, const char *path, double absent)
{
    double out;
    return json_f64(fact(v, path), &out) && isfinite(out) ? out : absent;
}

bool fact_true(const struct json *v, const char *path)
{
    bool out = false;
    return json_bool(fact(v, path), &out) && out;
}

size_t fact_count(const struct json *v, const char *path)
{
    const struct json *a = fact(v, path);
    return a && a->type == JSON_ARRAY ? a->n : 0;
}

void html_number(struct strbuf *b, double v, unsigned decimals)
{
    static const double scale[] = {1, 10, 100, 1e3, 1e4, 1e5, 1e6};
    if (decimals > 6)
        decimals = 6;
    if (!isfinite(v))
        v = 0;
    v = fmax(-1e12, fmin(1e12, v));
    int64_t fixed = llround(v * scale[decimals]);
    if (fixed < 0)
        strbuf_putc(b, '-');
    uint64_t u = fixed < 0 ? (uint64_t)-fixed : (uint64_t)fixed;
    uint64_t unit = (uint64_t)scale[decimals];
    strbuf_printf(b, "%llu", (unsigned long long)(u / unit));
    if (decimals)
        strbuf_printf(b, ".%0*llu", (int)decimals, (unsigned long long)(u % unit));
}

void html_count(struct strbuf *b, double n)
{
    char text[40];
    if (!isfinite(n) || n < 0)
        n = 0;
    strbuf_puts(b, format_count(n < 1e19 ? (uint64_t)n : UINT64_MAX, text, sizeof(text)));
}

void html_short_count(struct strbuf *b, double n)
{
    static const struct {
        double unit;
        const char *word;
    } units[] = {{1e12, "trillion"}, {1e9, "billion"}, {1e6, "million"}};
    for (size_t i = 0; i < ARRAY_LEN(units); i++) {
        double v = n / units[i].unit;
        if (v < 1)
            continue;
        html_number(b, v, v < 10 ? 2 : v < 100 ? 1 : 0);
        strbuf_printf(b, " %s", units[i].word);
        return;
    }
    html_count(b, n);
}

void html_milliseconds(struct strbuf *b, double ms)
{
    if (!isfinite(ms) || ms < 0)
        strbuf_puts(b, "&ndash;");
    else if (ms >= 1000)
        html_count(b, round(ms));
    else
        html_number(b, ms, ms < 10 ? 2 : ms < 100 ? 1 : 0);
}

void html_bytes(struct strbuf *b, double bytes)
{
    char text[40];
    if (!isfinite(bytes) || bytes < 0)
        strbuf_puts(b, "unknown");
    else
        strbuf_puts(b, format_bytes(bytes < 1e19 ? (uint64_t)bytes : UINT64_MAX, text, sizeof(text)));
}

void html_seconds(struct strbuf *b, double s)
{
    if (!isfinite(s) || s < 0) {
        strbuf_puts(b, "&ndash;");
    } else if (s >= 3600) {
        strbuf_printf(b, "%.0f h %.0f min", floor(s / 3600), floor(fmod(s, 3600) / 60));
    } else if (s >= 100) {
        strbuf_printf(b, "%.0f min %.0f s", floor(s / 60), floor(fmod(s, 60)));
    } else {
        html_number(b, s, s < 10 ? 2 : 1);
        strbuf_puts(b, " s");
    }
}

void html_scientific(struct strbuf *b, double v)
{
    if (!isfinite(v))
        strbuf_puts(b, "not finite");
    else if (v == 0)
        strbuf_puts(b, "0");
    else
        strbuf_printf(b, "%.2e", v);
}

void html_pair(struct strbuf *b, const char *term, const char *text)
{
    if (!text || !*text)
        return;
    strbuf_puts(b, "<div><dt>");
    html_text(b, term);
    strbuf_puts(b, "</dt><dd>");
    html_text(b, text);
    strbuf_puts(b, "</dd></div>\n");
}

void html_badge(struct strbuf *b, const char *state)
{
    static const struct {
        const char *state, *class, *sign;
    } known[] = {
        {"passed", "ok", "\xe2\x9c\x93"},
        {"failed", "bad", "\xe2\x9c\x95"},
        {"not checked", "open", "\xe2\x97\x8b"},
        {"not run", "open", "\xe2\x97\x8b"},
        {"self-consistent", "self", "\xe2\x89\x88"},
        {"holds", "none", "\xe2\x9c\x93"},
        {"violated", "bad", "\xe2\x9c\x95"},
        {"on", "none", "\xe2\x9c\x93"},
        {"off", "none", "\xe2\x80\x93"},
        {"yes", "none", "\xe2\x9c\x93"},
        {"no", "bad", "\xe2\x9c\x95"},
        {"partial", "self", "\xe2\x97\x90"},
        {"not applicable", "none", "\xe2\x80\x93"},
        {"accepted", "acc", "\xe2\x9c\x93"},
        {"error", "bad", "\xe2\x9c\x95"},
        {"warning", "warn", "!"},
        {"info", "none", "i"},
        {"waived", "acc", "\xe2\x9c\x93"},
        {"equal", "ok", "\xe2\x9c\x93"},
        {"right", "ok", "\xe2\x9c\x93"},
        {"answered", "none", "\xe2\x9c\x93"},
        {"differs", "bad", "\xe2\x9c\x95"},
        {"unreasonable", "bad", "\xe2\x9c\x95"},
        {"wrong", "bad", "\xe2\x9c\x95"},
    };
    const char *class = "open", *sign = "\xe2\x97\x8b";
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strcmp(known[i].state, state) == 0) {
            class = known[i].class;
            sign = known[i].sign;
        }
    }
    strbuf_printf(b, "<span class=\"badge %s\"><i aria-hidden=\"true\">%s</i>", class, sign);
    html_text(b, state);
    strbuf_puts(b, "</span>");
}

void html_section(struct strbuf *b, const char *id, const char *heading, const char *lead)
{
    strbuf_printf(b, "<section id=\"%s\">\n<h2>", id);
    html_text(b, heading);
    strbuf_puts(b, "</h2>\n");
    if (lead && *lead) {
        strbuf_puts(b, "<p class=\"lead\">");
        html_text(b, lead);
        strbuf_puts(b, "</p>\n");
    }
}

void html_heading(struct strbuf *b, const char *text)
{
    strbuf_puts(b, "<h3>");
    html_text(b, text);
    strbuf_puts(b, "</h3>\n");
}

void html_section_end(struct strbuf *b)
{
    strbuf_puts(b, "</section>\n");
}

/* ---- tables */

void html_nothing(struct strbuf *b, const struct report *r, unsigned stage)
{
    strbuf_puts(b, "<p class=\"empty\">");
    html_text(b, r->stages[stage].summary && *r->stages[stage].summary ? r->stages[stage].summary
                                                                       : "This stage did not run.");
    strbuf_puts(b, "</p>\n");
}

void html_table(struct strbuf *b, const char *const *heads, size_t n, size_t first_number)
{
    strbuf_puts(b, "<div class=\"scroll\"><table><thead><tr>");
    for (size_t i = 0; i < n; i++) {
        strbuf_puts(b, i >= first_number ? "<th class=\"n\">" : "<th>");
        html_text(b, heads[i]);
        strbuf_puts(b, "</th>");
    }
    strbuf_puts(b, "</tr></thead><tbody>\n");
}

void html_table_end(struct strbuf *b)
{
    strbuf_puts(b, "</tbody></table></div>\n");
}

void html_cell(struct strbuf *b, const char *class, const char *text)
{
    strbuf_printf(b, "<td class=\"%s\">", class);
    html_text_n(b, text, strlen(text), 600);
    strbuf_puts(b, "</td>");
}

void html_badge_cell(struct strbuf *b, const char *state)
{
    strbuf_puts(b, "<td>");
    html_badge(b, state);
    strbuf_puts(b, "</td>");
}

void html_passed_cell(struct strbuf *b, bool passed)
{
    html_badge_cell(b, passed ? "passed" : "failed");
}

void html_number_cell(struct strbuf *b, number_fn print, const struct json *v, const char *path)
{
    double x = fact_number(v, path, -1);
    strbuf_puts(b, "<td class=\"n\">");
    if (x < 0)
        strbuf_puts(b, "&ndash;");
    else
        print(b, x);
    strbuf_puts(b, "</td>");
}

void html_list(struct strbuf *b, const struct html_list *list, const struct json *v, const char *path)
{
    const size_t n = fact_count(v, path);
    size_t n_heads = 0;
    if (n == 0)
        return;
    while (n_heads < ARRAY_LEN(list->heads) && list->heads[n_heads])
        n_heads++;
    if (list->heading)
        html_heading(b, list->heading);
    html_table(b, list->heads, n_heads, list->first_number);
    for (size_t i = 0; i < n; i++) {
        strbuf_puts(b, "<tr>");
        list->cells(b, json_at(fact(v, path), i));
        strbuf_puts(b, "</tr>\n");
    }
    html_table_end(b);
}
