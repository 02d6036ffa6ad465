/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers of the page writer: escaping, reading facts by path, numbers for people. Every string that reaches
 * the page goes through html_text().
 */
#ifndef ADAPT_HTML_H
#define ADAPT_HTML_H

#include "adapt/report.h"

/* Escapes for element content and quoted attributes; control characters and malformed UTF-8 become U+FFFD.
 * NULL prints nothing. */
void html_text(struct strbuf *b, const char *s);
void html_text_n(struct strbuf *b, const char *s, size_t n,
                 size_t max_bytes); /* cut with an ellipsis after max_bytes */

/* Facts by dotted path ("plan.predicted.total"); absent or of another type: NULL, "", absent, false. */
const struct json *fact(const struct json *v, const char *path);
const char *fact_text(const struct json *v, const char *path);
double fact_number(const struct json *v, const char *path, double absent); /* never NaN unless absent is */
bool fact_true(const struct json *v, const char *path);
size_t fact_count(const struct json *v, const char *path); /* elements of an array, 0 else */

/* A finite number of at most `decimals` (0..6) decimals, independent of the locale; NaN and infinities print
 * as 0. */
void html_number(struct strbuf *b, double v, unsigned decimals);
void html_milliseconds(struct strbuf *b, double ms); /* "0.42", "12.3", "1,204" */
void html_bytes(struct strbuf *b, double bytes);     /* "1.56 TB"; "unknown" when negative */
void html_count(struct strbuf *b, double n);         /* "1,560" */
void html_short_count(struct strbuf *b, double n);   /* "1.56 billion" */
void html_seconds(struct strbuf *b, double s);       /* "0.42 s", "3 min 12 s" */
void html_scientific(struct strbuf *b, double v);    /* "3.1e-06", "0" */

/* Term and definition of a <dl class=kv>; nothing when text is empty. */
void html_pair(struct strbuf *b, const char *term, const char *text);
void html_badge(struct strbuf *b, const char *state);  /* by the state's words, see report_style.c */
void html_heading(struct strbuf *b, const char *text); /* within a section */
/* Opens <section id=...> with its heading; close with html_section_end. */
void html_section(struct strbuf *b, const char *id, const char *heading, const char *lead);
void html_section_end(struct strbuf *b);

/* Tables: heads from number first_number on are of numbers. Cells of text are cut at 600 bytes. */
typedef void (*number_fn)(struct strbuf *b, double v);
void html_table(struct strbuf *b, const char *const *heads, size_t n, size_t first_number);
void html_table_end(struct strbuf *b);
void html_cell(struct strbuf *b, const char *class, const char *text);
void html_badge_cell(struct strbuf *b, const char *state);
void html_passed_cell(struct strbuf *b, bool passed);
/* A dash where the fact is absent or negative. */
void html_number_cell(struct strbuf *b, number_fn print, const struct json *v, const char *path);
/* How the elements of an array become rows. */
struct html_list {
    const char *heading;   /* NULL: none */
    const char *heads[10]; /* NULL behind the last */
    size_t first_number;
    void (*cells)(struct strbuf *b, const struct json *element);
};
/* Heading and table of the array v.path; nothing where it is empty or absent. */
void html_list(struct strbuf *b, const struct html_list *list, const struct json *v, const char *path);
/* Why a section has no facts: the summary of its stage. */
void html_nothing(struct strbuf *b, const struct report *r, unsigned stage);

/* report_style.c */
const char *report_style(void);

/* report_svg.c: self-contained <svg> elements; every coordinate is finite whatever the data. */
struct svg_series {
    const char *label;
    const double *values;
    size_t n;
};
/* Cumulative distribution of up to 4 series on a logarithmic axis of milliseconds. Sorts nothing of the
 * caller's. */
void svg_cdf(struct strbuf *b, const char *title, const struct svg_series *series, size_t n);
/* |difference| by position on a logarithmic axis, with the limit as a dashed line (limit <= 0: none). */
void svg_positions(struct strbuf *b, const char *title, const double *values, size_t n, double limit);
/* The same for runs of positions that double: values[i] is of the run that begins at position first[i]. */
void svg_doublings(struct strbuf *b, const char *title, const double *first, const double *values, size_t n,
                   double limit);
struct svg_bar {
    const char *label;
    const char *note;
    const double *parts;
    size_t n_parts;
};
/* Stacked horizontal bars of bytes on one scale, with an upright mark (mark <= 0: none). */
void svg_bars(struct strbuf *b, const char *title, const struct svg_bar *bars, size_t n, double mark,
              const char *mark_label);

/* report_drift.c: errors by position; part of the numbers. */
void drift_part(struct strbuf *b, const struct json *drift);

/* report_channels.c: text, pictures, and where time goes between them. */
void section_text(struct strbuf *b, const struct report *r);
void section_image(struct strbuf *b, const struct report *r);
void picture_load_part(struct strbuf *b, const struct json *pictures);

/* report_sections.c: the sections that show facts. */
void section_model(struct strbuf *b, const struct report *r);
void section_memory(struct strbuf *b, const struct report *r);
void section_numerics(struct strbuf *b, const struct report *r);
void section_latency(struct strbuf *b, const struct report *r);
void section_service(struct strbuf *b, const struct report *r);
void section_operators(struct strbuf *b, const struct report *r);
void section_environment(struct strbuf *b, const struct report *r);

#endif
