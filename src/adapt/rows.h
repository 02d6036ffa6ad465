/* SPDX-License-Identifier: Apache-2.0
 *
 * The eight rows of the checklist: which findings belong to which row, what may be accepted or waived, and
 * the verdict.
 */
#ifndef ADAPT_ROWS_H
#define ADAPT_ROWS_H

#include "adapt/adapt.h"

/* ROW_N when no row has this key. */
enum row_id row_find(const char *key);
/* The row that a finding speaks against. */
enum row_id row_of_finding(enum finding_id id);

/* Every key of --accept and --waive must exist and have a reason: ERR_USAGE naming the valid ones. */
int rows_check_overrides(const struct adapt_options *o, struct err *e);

/* Sets a row, evidence copied into the arena ("out of memory" when that fails). A failed row never becomes
 * anything else again. */
void row_set(struct row *row, struct arena *arena, enum row_state state, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Rows with unwaived error findings become failed, overrides are applied, the verdict is made. drafted: the
 * architecture file was drafted, which caps the verdict at incomplete. */
void rows_judge(struct adapt_result *out, const struct adapt_options *o, bool drafted);

#endif
