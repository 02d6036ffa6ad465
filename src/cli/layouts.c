/* SPDX-License-Identifier: Apache-2.0
 *
 * Degrees of parallelism for people: runs as ranges, degrees that fail alike in one line with their reason.
 * Leaves out nothing: every degree judged stands in exactly one line.
 */
#include <string.h>

#include "cli/cli.h"
#include "plan/plan.h"

/* With or without their reason, as far as it is not of one degree alone. */
static bool alike(const struct plan_degree *a, const struct plan_degree *b, bool reason)
{
    return a->legal == b->legal && a->exact == b->exact &&
           (!reason || (a->stem_bytes == b->stem_bytes && memcmp(a->reason, b->reason, a->stem_bytes) == 0));
}

/* "1, 2, 4-7": the degrees that are like d[like]. */
static void list(const struct plan_degree *d, size_t n, size_t like, bool reason)
{
    const char *comma = "";
    for (size_t i = 0; i < n; i++) {
        size_t end = i;
        if (!alike(&d[i], &d[like], reason))
            continue;
        while (end + 1 < n && alike(&d[end + 1], &d[like], reason))
            end++;
        if (end < i + 2) /* a range of two is two numbers */
            end = i;
        printf("%s%u", comma, d[i].degree);
        if (end > i)
            printf("-%u", d[end].degree);
        comma = ", ";
        i = end;
    }
}

static bool first_of_its_kind(const struct plan_degree *d, size_t i, bool reason)
{
    for (size_t k = 0; k < i; k++)
        if (alike(&d[k], &d[i], reason))
            return false;
    return true;
}

static void print_kinds(const struct plan_degree *d, size_t n, const char *label, bool legal, bool exact)
{
    for (size_t i = 0; i < n; i++) {
        if (d[i].legal != legal || d[i].exact != exact || !first_of_its_kind(d, i, true))
            continue;
        printf("  %-12s  ", label);
        list(d, n, i, true);
        printf("%s%.*s\n", d[i].stem_bytes ? ": " : "", (int)d[i].stem_bytes, d[i].reason);
    }
}

static void print_all(const char *name, const struct plan_degree *d, size_t n)
{
    printf("\n%s 1 to %zu\n", name, n);
    print_kinds(d, n, "exact", true, true);
    print_kinds(d, n, "not exact", true, false);
    print_kinds(d, n, "not possible", false, false);
}

void cli_print_layouts(const struct plan_degrees *d)
{
    print_all("TP", d->tp, d->n_tp);
    if (d->n_ep)
        print_all("EP", d->ep, d->n_ep);
}

static void print_legal(const char *name, const struct plan_degree *d, size_t n)
{
    for (int exact = 1; exact >= 0; exact--)
        for (size_t i = 0; i < n; i++)
            if (d[i].legal && d[i].exact == exact && first_of_its_kind(d, i, false)) {
                printf("; %s %s ", name, exact ? "exact" : "not exact");
                list(d, n, i, false);
            }
}

void cli_print_layouts_short(const struct plan_degrees *d)
{
    printf("layouts: %zu degrees judged", d->n_tp + d->n_ep);
    print_legal("TP", d->tp, d->n_tp);
    print_legal("EP", d->ep, d->n_ep);
    printf("\n");
}
