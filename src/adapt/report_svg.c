/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the three plots of the report as inline SVG. Colours come from the page's style sheet by class, so
 * that light, dark and print need no second picture. Refuses: coordinates that are not finite, and data that
 * is. A value that is NaN or infinite is counted and named under the plot, never drawn.
 */
#include "adapt/html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HALF                                                                                                 \
    480.0 /* two plots in a row: one unit is one pixel on a wide page, so all plots have one size of type */
#define WHOLE      980.0
#define LEFT       56.0
#define RIGHT      14.0
#define TOP        18.0
#define MAX_POINTS 480 /* more than that cannot be told apart at this width */
#define MAX_SERIES 4
#define MAX_VALUES 10000

struct axis {
    double low, high, from, to;
}; /* logarithms of the data range; pixels */

static double place(const struct axis *a, double value)
{
    double at = value > 0 ? log10(value) : a->low;
    at = fmax(a->low, fmin(a->high, at));
    return a->from + (at - a->low) / (a->high - a->low) * (a->to - a->from);
}

static void point(struct strbuf *b, double x, double y)
{
    html_number(b, x, 1);
    strbuf_putc(b, ',');
    html_number(b, y, 1);
}

static void attribute(struct strbuf *b, const char *name, double v)
{
    strbuf_printf(b, " %s=\"", name);
    html_number(b, v, 1);
    strbuf_putc(b, '"');
}

static void line(struct strbuf *b, const char *class, double x1, double y1, double x2, double y2)
{
    strbuf_printf(b, "<line class=\"%s\"", class);
    attribute(b, "x1", x1);
    attribute(b, "y1", y1);
    attribute(b, "x2", x2);
    attribute(b, "y2", y2);
    strbuf_puts(b, "/>\n");
}

static void text_at(struct strbuf *b, const char *class, double x, double y, const char *text)
{
    strbuf_printf(b, "<text class=\"%s\"", class);
    attribute(b, "x", x);
    attribute(b, "y", y);
    strbuf_putc(b, '>');
    html_text(b, text);
    strbuf_puts(b, "</text>\n");
}

static void open_svg(struct strbuf *b, const char *title, double width, double height)
{
    strbuf_puts(b, "<svg class=\"plot\" role=\"img\" viewBox=\"0 0 ");
    html_number(b, width, 0);
    strbuf_putc(b, ' ');
    html_number(b, height, 0);
    strbuf_puts(b, "\" xmlns=\"http://www.w3.org/2000/svg\"><title>");
    html_text(b, title);
    strbuf_puts(b, "</title>\n");
}

/* ---- cumulative distributions */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Finite values >= 0 of a series, sorted; NULL when there are none. */
static double *sorted_copy(const struct svg_series *s, size_t *n)
{
    size_t take = s->n < MAX_VALUES ? s->n : MAX_VALUES;
    double *out = malloc((take ? take : 1) * sizeof(*out));
    *n = 0;
    for (size_t i = 0; out && i < take; i++) {
        if (isfinite(s->values[i]) && s->values[i] >= 0)
            out[(*n)++] = s->values[i];
    }
    if (out && *n)
        qsort(out, *n, sizeof(*out), by_value);
    return out;
}

/* Marks at 1, 2 and 5 of every decade; only at 1 when the axis is long. */
static void log_ticks(struct strbuf *b, const struct axis *x, double top, double bottom)
{
    static const double steps[] = {1, 2, 5};
    size_t n_steps = x->high - x->low > 2.2 ? 1 : 3;
    for (int decade = (int)floor(x->low); decade <= (int)ceil(x->high); decade++) {
        for (size_t i = 0; i < n_steps; i++) {
            double v = steps[i] * pow(10, decade);
            if (log10(v) < x->low - 1e-9 || log10(v) > x->high + 1e-9)
                continue;
            struct strbuf label = STRBUF_INIT;
            html_number(&label, v, v < 0.0095 ? 3 : v < 0.095 ? 2 : v < 0.95 ? 1 : 0);
            line(b, "grid", place(x, v), top, place(x, v), bottom);
            text_at(b, "tick mid", place(x, v), bottom + 16, strbuf_cstr(&label));
            strbuf_release(&label);
        }
    }
}

static void cdf_line(struct strbuf *b, size_t index, const double *v, size_t n, const struct axis *x,
                     double top, double bottom)
{
    strbuf_printf(b, "<path class=\"curve s%zu\" d=\"M", index);
    point(b, place(x, v[0]), bottom);
    size_t step = n > MAX_POINTS ? n / MAX_POINTS + 1 : 1;
    for (size_t i = 0; i < n; i += step) {
        double before = bottom - (double)i / (double)n * (bottom - top);
        double after = bottom - (double)(i + 1) / (double)n * (bottom - top);
        strbuf_putc(b, 'L');
        point(b, place(x, v[i]), before);
        strbuf_putc(b, 'L');
        point(b, place(x, v[i]), after);
    }
    strbuf_putc(b, 'L');
    point(b, place(x, v[n - 1]), top);
    strbuf_putc(b, 'L');
    point(b, x->to, top);
    strbuf_puts(b, "\"/>\n");
}

static void cdf_frame(struct strbuf *b, const struct axis *x, double top, double bottom)
{
    static const struct {
        double at;
        const char *label;
    } marks[] = {{0, "0"}, {0.5, "50 %"}, {0.9, "90 %"}, {1, "100 %"}};
    for (size_t i = 0; i < ARRAY_LEN(marks); i++) {
        double y = bottom - marks[i].at * (bottom - top);
        line(b, i ? "grid" : "axis", LEFT, y, HALF - RIGHT, y);
        text_at(b, "tick end", LEFT - 8, y + 4, marks[i].label);
    }
    log_ticks(b, x, top, bottom);
    text_at(b, "tick mid", (LEFT + HALF - RIGHT) / 2, bottom + 34, "milliseconds (logarithmic)");
}

static void cdf_legend(struct strbuf *b, const struct svg_series *series, const size_t *count, size_t n,
                       double y)
{
    double x = LEFT;
    for (size_t i = 0; i < n; i++) {
        struct strbuf label = STRBUF_INIT;
        strbuf_printf(&label, "%s (%zu)", series[i].label, count[i]);
        strbuf_printf(b, "<rect class=\"fill s%zu\"", i);
        attribute(b, "x", x);
        attribute(b, "y", y - 8);
        strbuf_puts(b, " width=\"14\" height=\"4\" rx=\"2\"/>\n");
        text_at(b, "label", x + 20, y - 2, strbuf_cstr(&label));
        x += 44 + 7.2 * (double)label.len;
        strbuf_release(&label);
    }
}

void svg_cdf(struct strbuf *b, const char *title, const struct svg_series *series, size_t n)
{
    double *sorted[MAX_SERIES] = {0};
    size_t count[MAX_SERIES] = {0};
    double low = INFINITY, high = 0;
    if (n > MAX_SERIES)
        n = MAX_SERIES;
    for (size_t i = 0; i < n; i++) {
        sorted[i] = sorted_copy(&series[i], &count[i]);
        if (!count[i])
            continue;
        low = fmin(low, sorted[i][0]);
        high = fmax(high, sorted[i][count[i] - 1]);
    }
    const double top = TOP + 18, bottom = 226, height = 268;
    if (high > 0) {
        low = fmax(low, high / 1e6); /* also keeps zeros on the axis */
        struct axis x = {log10(fmax(low, 1e-3)) - 0.05, log10(fmax(high, 1e-3)) + 0.05, LEFT, HALF - RIGHT};
        if (x.high - x.low < 0.6) {
            x.low -= 0.3;
            x.high += 0.3;
        }
        open_svg(b, title, HALF, height);
        cdf_frame(b, &x, top, bottom);
        for (size_t i = 0; i < n; i++) {
            if (count[i])
                cdf_line(b, i, sorted[i], count[i], &x, top, bottom);
        }
        cdf_legend(b, series, count, n, TOP);
        strbuf_puts(b, "</svg>\n");
    } else {
        strbuf_puts(b, "<p class=\"empty\">No samples.</p>\n");
    }
    for (size_t i = 0; i < MAX_SERIES; i++)
        free(sorted[i]);
}

/* ---- differences by position */

struct positions {
    const double *values;
    size_t n, n_zero, n_bad;
    double low, high;
};

static void positions_range(struct positions *p, double limit)
{
    p->low = INFINITY;
    for (size_t i = 0; i < p->n; i++) {
        double v = fabs(p->values[i]);
        if (!isfinite(v))
            p->n_bad++;
        else if (v == 0)
            p->n_zero++;
        else {
            p->low = fmin(p->low, v);
            p->high = fmax(p->high, v);
        }
    }
    if (isfinite(limit) && limit > 0) {
        p->low = fmin(p->low, limit);
        p->high = fmax(p->high, limit);
    }
}

static void decade_ticks(struct strbuf *b, const struct axis *y)
{
    int span = (int)ceil(y->high - y->low), step = span > 8 ? (span + 7) / 8 : 1;
    for (int d = (int)ceil(y->low); d <= (int)floor(y->high); d += step) {
        struct strbuf label = STRBUF_INIT;
        strbuf_printf(&label, "1e%d", d);
        double at = place(y, pow(10, d));
        line(b, "grid", LEFT, at, WHOLE - RIGHT, at);
        text_at(b, "tick end", LEFT - 8, at + 4, strbuf_cstr(&label));
        strbuf_release(&label);
    }
}

/* The largest value of each of at most MAX_POINTS bins: a peak is never lost to thinning. */
static void position_dots(struct strbuf *b, const struct positions *p, const struct axis *y, double zero_y,
                          double limit)
{
    size_t bins = p->n < MAX_POINTS ? p->n : MAX_POINTS;
    double span = WHOLE - RIGHT - LEFT - 16;
    for (size_t i = 0; i < bins; i++) {
        size_t first = i * p->n / bins, last = (i + 1) * p->n / bins, at = first;
        double top = -1;
        for (size_t k = first; k < last; k++) {
            double v = fabs(p->values[k]);
            if (isfinite(v) && v > top) {
                top = v;
                at = k;
            }
        }
        if (top < 0)
            continue;
        double share = p->n > 1 ? (double)at / (double)(p->n - 1) : 0.5;
        double px = LEFT + 8 + share * span;
        const char *class = top == 0 ? "dot zero" : limit > 0 && top > limit ? "dot over" : "dot";
        if (top > 0)
            line(b, limit > 0 && top > limit ? "stem over" : "stem", px, zero_y, px, place(y, top));
        strbuf_printf(b, "<circle class=\"%s\" r=\"2.4\"", class);
        attribute(b, "cx", px);
        attribute(b, "cy", top > 0 ? place(y, top) : zero_y);
        strbuf_puts(b, "/>\n");
    }
}

static void positions_axis(struct strbuf *b, size_t n, double bottom)
{
    char last[40];
    text_at(b, "tick", LEFT + 8, bottom + 18, "0");
    text_at(b, "tick end", WHOLE - RIGHT - 8, bottom + 18, format_count(n - 1, last, sizeof(last)));
    text_at(b, "tick mid", (LEFT + WHOLE - RIGHT) / 2, bottom + 34, "position");
}

#define PLOT_BOTTOM 246.0

/* The plot but for what stands below its axis. */
static void dots_plot(struct strbuf *b, const char *title, struct positions *p, double limit)
{
    if (!(p->high > 0)) {
        p->low = 1e-8;
        p->high = 1e-6;
    }
    const double zero_y = PLOT_BOTTOM - 8;
    struct axis y = {floor(log10(p->low) - 0.2), ceil(log10(p->high) + 0.2), zero_y - 14, TOP + 6};
    y.low = fmax(y.low, y.high - 18);
    open_svg(b, title, WHOLE, 290);
    decade_ticks(b, &y);
    line(b, "axis", LEFT, zero_y, WHOLE - RIGHT, zero_y);
    text_at(b, "tick end", LEFT - 8, zero_y + 4, "0");
    position_dots(b, p, &y, zero_y, limit);
    if (isfinite(limit) && limit > 0) {
        struct strbuf label = STRBUF_INIT;
        strbuf_puts(&label, "limit ");
        html_scientific(&label, limit);
        line(b, "limit", LEFT, place(&y, limit), WHOLE - RIGHT, place(&y, limit));
        text_at(b, "limit-label end", WHOLE - RIGHT, place(&y, limit) - 6, strbuf_cstr(&label));
        strbuf_release(&label);
    }
}

void svg_positions(struct strbuf *b, const char *title, const double *values, size_t n, double limit)
{
    struct positions p = {.values = values, .n = n};
    positions_range(&p, limit);
    if (n == 0) {
        strbuf_puts(b, "<p class=\"empty\">No positions.</p>\n");
        return;
    }
    dots_plot(b, title, &p, limit);
    positions_axis(b, n, PLOT_BOTTOM);
    strbuf_puts(b, "</svg>\n");
    strbuf_printf(b, "<p class=\"note\">%zu of %zu positions are equal to the last bit; ", p.n_zero, n);
    strbuf_printf(b, "%zu are not finite.</p>\n", p.n_bad);
}

void svg_doublings(struct strbuf *b, const char *title, const double *first, const double *values, size_t n,
                   double limit)
{
    struct positions p = {.values = values, .n = n < MAX_POINTS ? n : MAX_POINTS};
    positions_range(&p, limit);
    if (n == 0)
        return;
    dots_plot(b, title, &p, limit);
    const size_t step = p.n > 14 ? (p.n + 13) / 14 : 1;
    for (size_t i = 0; i < p.n; i += step) {
        char label[40];
        const double share = p.n > 1 ? (double)i / (double)(p.n - 1) : 0.5;
        text_at(b, "tick mid", LEFT + 8 + share * (WHOLE - RIGHT - LEFT - 16), PLOT_BOTTOM + 18,
                format_count(isfinite(first[i]) && first[i] >= 0 && first[i] < 1e15 ? (uint64_t)first[i] : 0,
                             label, sizeof(label)));
    }
    text_at(b, "tick mid", (LEFT + WHOLE - RIGHT) / 2, PLOT_BOTTOM + 34, "position, from");
    strbuf_puts(b, "</svg>\n");
}

/* ---- bars */

void svg_bars(struct strbuf *b, const char *title, const struct svg_bar *bars, size_t n, double mark,
              const char *mark_label)
{
    double most = mark > 0 && isfinite(mark) ? mark : 0;
    const double left = 124, width = HALF - left - 16, pitch = 46;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t k = 0; k < bars[i].n_parts; k++)
            sum += isfinite(bars[i].parts[k]) ? fmax(0, bars[i].parts[k]) : 0;
        most = fmax(most, sum);
    }
    if (!(most > 0)) {
        strbuf_puts(b, "<p class=\"empty\">No figures.</p>\n");
        return;
    }
    double top = TOP + 20, height = top + pitch * (double)n + 6;
    open_svg(b, title, HALF, height);
    for (size_t i = 0; i < n; i++) {
        double y = top + pitch * (double)i, x = left;
        text_at(b, "label end", left - 12, y + 14, bars[i].label);
        text_at(b, "tick end", left - 12, y + 29, bars[i].note);
        for (size_t k = 0; k < bars[i].n_parts; k++) {
            double part = isfinite(bars[i].parts[k]) ? fmax(0, bars[i].parts[k]) : 0, w = part / most * width;
            strbuf_printf(b, "<rect class=\"part p%zu\"", bars[i].n_parts == 1 ? (size_t)9 : k);
            attribute(b, "x", x);
            attribute(b, "y", y);
            attribute(b, "width", part > 0 ? fmax(w, 1) : 0);
            strbuf_puts(b, " height=\"28\"/>\n");
            x += w;
        }
    }
    if (mark > 0 && isfinite(mark)) {
        double x = left + mark / most * width;
        line(b, "limit", x, top - 8, x, height - 8);
        text_at(b, x > HALF * 0.6 ? "limit-label end" : "limit-label", x > HALF * 0.6 ? x - 4 : x + 4,
                top - 12, mark_label);
    }
    strbuf_puts(b, "</svg>\n");
}
