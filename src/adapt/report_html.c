/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the page as a whole: head, verdict, stages, checklist, findings, identity, definitions. Sections that
 * show facts are in report_sections.c. Refuses: scripts. A content security policy in the page says so too,
 * in case an escape were ever missed.
 */
#include "adapt/html.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

const char *stage_state_name(enum stage_state s)
{
    switch (s) {
    case STAGE_NOT_RUN:
        return "not run";
    case STAGE_PASSED:
        return "passed";
    case STAGE_FAILED:
        return "failed";
    case STAGE_PARTIAL:
        return "partial";
    }
    return "not run";
}

static const char *step_class(enum stage_state s)
{
    return s == STAGE_PASSED ? "ok" : s == STAGE_FAILED ? "bad" : s == STAGE_PARTIAL ? "self" : "open";
}

static void add_reason(char *buf, size_t bytes, size_t *n, size_t count, const char *one, const char *many)
{
    if (count == 0 || *n + 1 >= bytes)
        return;
    int added = snprintf(buf + *n, bytes - *n, "%s%zu %s", *n ? "; " : "", count, count == 1 ? one : many);
    *n += added > 0 ? (size_t)added : 0;
}

const char *report_reason(const struct report *r, char *buf, size_t bytes)
{
    size_t failed = 0, open = 0, self = 0, n = 0;
    for (size_t i = 0; i < ROW_N; i++) {
        const struct row *row = &r->rows[i];
        if (row->accept_reason)
            continue;
        failed += row->state == ROW_FAILED;
        open += row->state == ROW_NOT_CHECKED;
        self += row->state == ROW_SELF_CONSISTENT;
    }
    buf[0] = '\0';
    if (r->verdict == VERDICT_FAIL) {
        add_reason(buf, bytes, &n, failed, "row of the checklist failed", "rows of the checklist failed");
        add_reason(buf, bytes, &n, (size_t)r->findings->n_by_severity[SEVERITY_ERROR],
                   "finding of severity error", "findings of severity error");
    } else if (r->verdict == VERDICT_INCOMPLETE) {
        add_reason(buf, bytes, &n, open, "row was not checked", "rows were not checked");
        add_reason(buf, bytes, &n, self, "row is only self-consistent", "rows are only self-consistent");
        if (n == 0)
            snprintf(buf, bytes, "the architecture file was drafted, not written for this model");
    } else {
        snprintf(buf, bytes, "%s",
                 r->with_waivers ? "every row passed, was accepted or waived with the reasons below"
                                 : "every row that applies passed, each with evidence");
    }
    return buf;
}

static const char *verdict_words(const struct report *r)
{
    if (r->verdict == VERDICT_PASS)
        return r->with_waivers ? "Passed with waivers" : "Passed";
    return r->verdict == VERDICT_FAIL ? "Failed" : "Incomplete";
}

static void page_head(struct strbuf *b, const struct report *r)
{
    strbuf_puts(
        b,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src "
        "'unsafe-inline'\">\n"
        "<meta name=\"generator\" content=\"day0 ");
    html_text(b, r->version);
    strbuf_puts(b, "\">\n<title>");
    html_text(b, verdict_words(r));
    strbuf_puts(b, ": ");
    html_text(b, r->title);
    strbuf_puts(b, "</title>\n<style>\n");
    strbuf_puts(b, report_style());
    strbuf_puts(b, "</style>\n</head>\n<body>\n");
}

static void date_line(struct strbuf *b, int64_t unix_ns)
{
    time_t t = (time_t)(unix_ns / 1000000000);
    struct tm tm;
    char text[64] = "";
    if (gmtime_r(&t, &tm))
        strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &tm);
    html_text(b, text);
}

static void page_header(struct strbuf *b, const struct report *r)
{
    char why[256];
    const char *class = r->verdict == VERDICT_PASS ? "ok" : r->verdict == VERDICT_FAIL ? "bad" : "open";
    strbuf_puts(
        b, "<header class=\"top\">\n<div><div class=\"mark\"><b>day0</b> adaptation report</div>\n<h1><bdi>");
    html_text_n(b, r->title, strlen(r->title), 160);
    strbuf_puts(b, "</bdi></h1>\n<p class=\"sub\"><bdi>");
    html_text(b, r->platform);
    strbuf_puts(b, "</bdi></p>\n<p class=\"sub\">");
    date_line(b, r->unix_ns);
    strbuf_puts(b, ", took ");
    html_seconds(b, r->seconds);
    strbuf_puts(b, "</p></div>\n");
    strbuf_printf(b, "<div class=\"verdict %s\"><p class=\"word\">", class);
    html_text(b, verdict_words(r));
    strbuf_puts(b, "</p><p class=\"why\">");
    report_reason(r, why, sizeof(why));
    why[0] = why[0] >= 'a' && why[0] <= 'z' ? (char)(why[0] - 'a' + 'A') : why[0];
    html_text(b, why);
    strbuf_puts(b, ".</p></div>\n</header>\n");
}

static void page_stages(struct strbuf *b, const struct report *r)
{
    strbuf_puts(b, "<ol class=\"stages\">\n");
    for (size_t i = 0; i < REPORT_STAGES; i++) {
        const struct stage *s = &r->stages[i];
        strbuf_printf(b, "<li><span class=\"step %s\">%zu</span><h3>", step_class(s->state), i + 1);
        html_text(b, s->title);
        strbuf_puts(b, "</h3><p class=\"time\">");
        html_text(b, stage_state_name(s->state));
        if (s->state != STAGE_NOT_RUN) {
            strbuf_puts(b, ", ");
            html_seconds(b, s->seconds);
        }
        strbuf_puts(b, s->resumed ? ", resumed</p><p>" : "</p><p>");
        html_text(b, s->summary);
        strbuf_puts(b, "</p></li>\n");
    }
    strbuf_puts(b, "</ol>\n");
}

static void page_checklist(struct strbuf *b, const struct report *r)
{
    html_section(b, "checklist", "Checklist",
                 "Nothing is passed without evidence. Agreement with day0's own reference kernels is called "
                 "self-consistent, "
                 "not passed.");
    strbuf_puts(
        b, "<div class=\"scroll\"><table "
           "class=\"check\"><thead><tr><th>What</th><th>State</th><th>Evidence</th></tr></thead><tbody>\n");
    for (size_t i = 0; i < ROW_N; i++) {
        const struct row *row = &r->rows[i];
        strbuf_printf(b, "<tr id=\"row-%s\"><td class=\"key\">", row_key((enum row_id)i));
        html_text(b, row_title((enum row_id)i));
        strbuf_puts(b, "</td><td class=\"state\">");
        html_badge(b, row_state_name(row->state));
        if (row->accept_reason)
            html_badge(b, row->state == ROW_FAILED ? "waived" : "accepted");
        strbuf_puts(b, "</td><td>");
        html_text(b, row->evidence);
        if (row->accept_reason) {
            strbuf_puts(b, "<span class=\"accept\">");
            html_text(b, row->state == ROW_FAILED ? "" : "Accepted: ");
            html_text(b, row->accept_reason);
            strbuf_puts(b, "</span>");
        }
        strbuf_puts(b, "</td></tr>\n");
    }
    strbuf_puts(b, "</tbody></table></div>\n");
    html_section_end(b);
}

static void one_finding(struct strbuf *b, const struct finding *f)
{
    const char *severity = severity_name(f->severity);
    strbuf_printf(b, "<div class=\"finding %s%s\"><p class=\"head\">", severity, f->waived ? " waived" : "");
    html_badge(b, f->waived ? "waived" : severity);
    strbuf_puts(b, "<code>");
    html_text(b, finding_code(f->id));
    strbuf_putc(b, ' ');
    html_text(b, finding_name(f->id));
    strbuf_puts(b, "</code><b><bdi>");
    html_text(b, f->subject);
    strbuf_puts(b, "</bdi></b></p><p>");
    html_text(b, f->evidence);
    strbuf_puts(b, "</p><p class=\"do\">What to do: ");
    html_text(b, f->remedy);
    strbuf_puts(b, "</p>");
    if (f->waived) {
        strbuf_puts(b, "<p class=\"do\">Waived: ");
        html_text(b, f->waive_reason);
        strbuf_puts(b, "</p>");
    }
    strbuf_puts(b, "</div>\n");
}

static void page_findings(struct strbuf *b, const struct report *r)
{
    const struct findings *f = r->findings;
    html_section(b, "findings", "Findings", f->n ? "" : "None.");
    for (int level = SEVERITY_ERROR; level >= SEVERITY_INFO; level--) {
        for (size_t i = 0; i < f->n; i++) {
            if ((int)f->items[i].severity == level)
                one_finding(b, &f->items[i]);
        }
    }
    if (f->dropped)
        strbuf_printf(b, "<p class=\"note\">%llu further findings were counted and not stored.</p>\n",
                      (unsigned long long)f->dropped);
    html_section_end(b);
}

static void page_identity(struct strbuf *b, const struct report *r)
{
    struct strbuf arch = STRBUF_INIT;
    html_section(b, "identity", "Identity",
                 "What exactly was examined. The model's hash covers names, sizes and headers of "
                 "every shard, config and tokenizer.");
    strbuf_printf(&arch, "%s (%s)", r->arch_name, r->arch_origin);
    strbuf_puts(b, "<dl class=\"kv one\">\n");
    html_pair(b, "Model directory", r->model_dir);
    html_pair(b, "Model manifest", r->sha_manifest);
    html_pair(b, "Architecture file", *r->arch_name ? strbuf_cstr(&arch) : "");
    html_pair(b, "Its SHA-256", r->sha_arch);
    html_pair(b, "day0", r->version);
    html_pair(b, "Binary SHA-256", r->sha_binary);
    html_pair(b, "Server examined", r->service_url);
    strbuf_puts(b, "</dl>\n");
    html_section_end(b);
    strbuf_release(&arch);
}

/* The text has one "TERM: meaning" a line; a line without a colon continues as a note. */
static void page_definitions(struct strbuf *b, const char *text)
{
    html_section(b, "definitions", "Definitions",
                 "The same words mean different numbers in different tools. Here they mean this.");
    strbuf_puts(b, "<dl class=\"kv def\">\n");
    while (*text) {
        size_t n = strcspn(text, "\n");
        const char *colon = memchr(text, ':', n);
        size_t term = colon ? (size_t)(colon - text) : 0;
        strbuf_puts(b, "<div><dt>");
        html_text_n(b, text, term, SIZE_MAX);
        strbuf_puts(b, "</dt><dd>");
        const char *rest = colon ? colon + 1 : text;
        html_text_n(b, rest, n - (size_t)(rest - text), SIZE_MAX);
        strbuf_puts(b, "</dd></div>\n");
        text += n;
        text += *text == '\n';
    }
    strbuf_puts(b, "</dl>\n");
    html_section_end(b);
}

static void page_nav(struct strbuf *b)
{
    static const char *const items[] = {
        "checklist", "Checklist", "findings",    "Findings",    "model",       "Model",
        "memory",    "Memory",    "numerics",    "Numbers",     "text",        "Text",
        "image",     "Pictures",  "latency",     "Latency",     "service",     "Service",
        "operators", "Operators", "environment", "Environment", "definitions", "Definitions"};
    strbuf_puts(b, "<nav>");
    for (size_t i = 0; i + 1 < ARRAY_LEN(items); i += 2)
        strbuf_printf(b, "<a href=\"#%s\">%s</a>\n", items[i], items[i + 1]);
    strbuf_puts(b, "</nav>\n");
}

void report_write_html(const struct report *r, struct strbuf *b)
{
    page_head(b, r);
    page_header(b, r);
    strbuf_puts(b, "<main>\n");
    page_stages(b, r);
    page_nav(b);
    page_checklist(b, r);
    page_findings(b, r);
    section_model(b, r);
    section_memory(b, r);
    section_numerics(b, r);
    section_text(b, r);
    section_image(b, r);
    section_latency(b, r);
    section_service(b, r);
    section_operators(b, r);
    section_environment(b, r);
    page_identity(b, r);
    page_definitions(b, r->definitions);
    strbuf_puts(b, "</main>\n<footer>Made by day0 ");
    html_text(b, r->version);
    strbuf_puts(
        b,
        ". The same content for programs is in report.json beside this file.</footer>\n</body>\n</html>\n");
}
