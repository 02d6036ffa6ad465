/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the meaning of the checklist.
 * Refuses: turning a failed row green. Only a finding can be waived, and a failed row whose error findings
 * are all waived stays failed in the table, with the reason beside it; it no longer decides the verdict.
 */
#include "adapt/rows.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *key, *title;
} names[ROW_N] = {
    [ROW_ENVIRONMENT] = {"environment", "Environment"},
    [ROW_WEIGHTS] = {"weights", "Weight integrity"},
    [ROW_MEMORY] = {"memory", "Memory"},
    [ROW_COMM] = {"communication", "Communication"},
    [ROW_NUMERICS] = {"numerics", "Numerical agreement"},
    [ROW_TEXT] = {"text", "Text channel"},
    [ROW_IMAGE] = {"image", "Image channel"},
    [ROW_SERVICE] = {"service", "Service interface"},
};

const char *row_key(enum row_id r)
{
    return (unsigned)r < ROW_N ? names[r].key : "unknown";
}

const char *row_title(enum row_id r)
{
    return (unsigned)r < ROW_N ? names[r].title : "unknown";
}

const char *row_state_name(enum row_state s)
{
    switch (s) {
    case ROW_NOT_CHECKED:
        return "not checked";
    case ROW_PASSED:
        return "passed";
    case ROW_FAILED:
        return "failed";
    case ROW_NOT_APPLICABLE:
        return "not applicable";
    case ROW_SELF_CONSISTENT:
        return "self-consistent";
    }
    return "not checked";
}

const char *verdict_name(enum verdict v)
{
    return v == VERDICT_PASS ? "pass" : v == VERDICT_FAIL ? "fail" : "incomplete";
}

enum row_id row_find(const char *key)
{
    for (unsigned i = 0; i < ROW_N; i++) {
        if (strcmp(names[i].key, key) == 0)
            return (enum row_id)i;
    }
    return ROW_N;
}

enum row_id row_of_finding(enum finding_id id)
{
    if (id == FINDING_M003)
        return ROW_COMM;
    switch (finding_code(id)[0]) {
    case 'M':
        return ROW_MEMORY;
    case 'T':
        return ROW_TEXT;
    case 'I':
        return ROW_IMAGE;
    case 'S':
        return ROW_SERVICE;
    case 'N':
        return ROW_NUMERICS;
    case 'P': /* the platform; an operator that it lacks gives no numbers: that row is then not checked */
        return ROW_ENVIRONMENT;
    default: /* config and weights are one download */
        return ROW_WEIGHTS;
    }
}

static bool known_finding(const char *code)
{
    for (unsigned i = 0; i < FINDING_N; i++) {
        if (strcmp(finding_code((enum finding_id)i), code) == 0)
            return true;
    }
    return false;
}

static int unknown_row(const char *key, struct err *e)
{
    char valid[160] = "";
    size_t n = 0;
    for (unsigned i = 0; i < ROW_N; i++)
        n += (size_t)snprintf(valid + n, sizeof(valid) - n, "%s%s", i ? ", " : "", names[i].key);
    return err_set(e, ERR_USAGE, "--accept %.60s: no such row; rows are %s", key, valid);
}

static int unknown_finding(const char *key, struct err *e)
{
    char valid[600] = "";
    size_t n = 0;
    for (unsigned i = 0; i < FINDING_N && n + 8 < sizeof(valid); i++)
        n += (size_t)snprintf(valid + n, sizeof(valid) - n, "%s%s", i ? ", " : "",
                              finding_code((enum finding_id)i));
    return err_set(e, ERR_USAGE, "--waive %.60s: no such finding; findings are %s", key, valid);
}

int rows_check_overrides(const struct adapt_options *o, struct err *e)
{
    for (size_t i = 0; i < o->n_accept; i++) {
        if (!o->accept[i].key || row_find(o->accept[i].key) == ROW_N)
            return unknown_row(o->accept[i].key ? o->accept[i].key : "", e);
        if (!o->accept[i].reason || !*o->accept[i].reason)
            return err_set(e, ERR_USAGE, "--accept %s: a reason is needed: --accept %s=REASON",
                           o->accept[i].key, o->accept[i].key);
    }
    for (size_t i = 0; i < o->n_waive; i++) {
        if (!o->waive[i].key || !known_finding(o->waive[i].key))
            return unknown_finding(o->waive[i].key ? o->waive[i].key : "", e);
        if (!o->waive[i].reason || !*o->waive[i].reason)
            return err_set(e, ERR_USAGE, "--waive %s: a reason is needed: --waive %s=REASON", o->waive[i].key,
                           o->waive[i].key);
    }
    return ERR_OK;
}

void row_set(struct row *row, struct arena *arena, enum row_state state, const char *fmt, ...)
{
    char text[1024];
    if (row->state == ROW_FAILED && state != ROW_FAILED)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    const char *copy = arena_strdup(arena, text);
    row->state = state;
    row->evidence = copy ? copy : "out of memory";
}

struct row_errors {
    size_t open, waived;
    const struct finding *first_open, *first_waived;
};

static void count_errors(const struct findings *f, enum row_id id, struct row_errors *out)
{
    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < f->n; i++) {
        const struct finding *item = &f->items[i];
        if (item->severity != SEVERITY_ERROR || row_of_finding(item->id) != id)
            continue;
        if (item->waived) {
            out->first_waived = out->waived++ ? out->first_waived : item;
        } else {
            out->first_open = out->open++ ? out->first_open : item;
        }
    }
}

/* true if the row still speaks against the model after waivers */
static bool judge_failed(struct adapt_result *out, enum row_id id)
{
    struct row *row = &out->rows[id];
    struct row_errors errors;
    count_errors(&out->findings, id, &errors);
    if (errors.open && row->state != ROW_FAILED)
        row_set(row, &out->arena, ROW_FAILED, "%s %s: %s: %s", finding_code(errors.first_open->id),
                finding_name(errors.first_open->id), errors.first_open->subject, errors.first_open->evidence);
    if (row->state != ROW_FAILED)
        return false;
    if (errors.open || !errors.waived)
        return true;
    const char *why = arena_printf(&out->arena, "%s waived: %s", finding_code(errors.first_waived->id),
                                   errors.first_waived->waive_reason);
    row->accept_reason = why ? why : "waived";
    return false;
}

static const char *reason_of(const struct adapt_options *o, enum row_id id)
{
    for (size_t i = 0; i < o->n_accept; i++) {
        if (strcmp(o->accept[i].key, row_key(id)) == 0)
            return o->accept[i].reason;
    }
    return NULL;
}

void rows_judge(struct adapt_result *out, const struct adapt_options *o, bool drafted)
{
    size_t overrides = 0;
    bool failed = false, open = drafted;
    for (size_t i = 0; i < o->n_waive; i++)
        overrides += findings_waive(&out->findings, o->waive[i].key, o->waive[i].reason);
    for (unsigned i = 0; i < ROW_N; i++) {
        struct row *row = &out->rows[i];
        const char *reason = reason_of(o, (enum row_id)i);
        failed |= judge_failed(out, (enum row_id)i);
        if (row->state != ROW_NOT_CHECKED && row->state != ROW_SELF_CONSISTENT)
            continue;
        if (reason) {
            const char *copy = arena_strdup(&out->arena, reason);
            row->accept_reason = copy ? copy : "accepted";
            overrides++;
        } else {
            open = true;
        }
    }
    failed |= findings_failed(&out->findings);
    out->verdict = failed ? VERDICT_FAIL : open ? VERDICT_INCOMPLETE : VERDICT_PASS;
    out->with_waivers = overrides > 0;
}

int adapt_exit_status(const struct adapt_result *r)
{
    return r->verdict == VERDICT_PASS ? 0 : r->verdict == VERDICT_FAIL ? 1 : 4;
}
