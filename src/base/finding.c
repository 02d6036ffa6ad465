/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the capped list of findings and their catalogue.
 * Refuses: judging. Which finding ends a run is decided by whoever reads the list.
 */
#include "base/finding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_CAP 1000

struct entry {
    const char *code, *name, *remedy;
    enum severity severity;
};

static const struct entry catalogue[FINDING_N] = {
#define FINDING(id, text, level, what_to_do)                                                                 \
    [FINDING_##id] = {.code = #id, .name = text, .remedy = what_to_do, .severity = SEVERITY_##level},
#include "base/findings.def"
#undef FINDING
};

static const struct entry *entry_of(enum finding_id id)
{
    if ((unsigned)id >= FINDING_N)
        BUG("finding id %d does not exist", (int)id);
    return &catalogue[id];
}

const char *finding_code(enum finding_id id)
{
    return entry_of(id)->code;
}

const char *finding_name(enum finding_id id)
{
    return entry_of(id)->name;
}

enum severity finding_severity(enum finding_id id)
{
    return entry_of(id)->severity;
}

const char *finding_remedy(enum finding_id id)
{
    return entry_of(id)->remedy;
}

const char *severity_name(enum severity s)
{
    switch (s) {
    case SEVERITY_INFO:
        return "info";
    case SEVERITY_WARNING:
        return "warning";
    case SEVERITY_ERROR:
        return "error";
    }
    return "unknown";
}

void findings_init(struct findings *f, struct mem *mem)
{
    memset(f, 0, sizeof(*f));
    arena_init(&f->arena, mem, MEM_REPORT);
    f->cap = DEFAULT_CAP;
}

void findings_release(struct findings *f)
{
    arena_release(&f->arena);
    free(f->items);
    f->items = NULL;
    f->n = f->capacity = 0;
}

/* What cannot be stored is counted all the same: a list that is full must not turn a failed run green. */
static void add(struct findings *f, enum finding_id id, enum severity severity, const char *subject,
                const char *remedy, const char *fmt, va_list ap)
{
    const struct entry *entry = entry_of(id);
    f->n_by_severity[severity]++;
    char *text = NULL;
    if (f->n < f->cap && !vec_reserve((void **)&f->items, &f->capacity, f->n + 1, sizeof(f->items[0]))) {
        struct finding *item = &f->items[f->n];
        *item = (struct finding){.id = id, .severity = severity, .remedy = entry->remedy};
        item->subject = arena_strdup(&f->arena, subject ? subject : "");
        if (remedy)
            item->remedy = arena_strdup(&f->arena, remedy);
        if (vasprintf(&text, fmt, ap) < 0)
            text = NULL;
        item->evidence = text ? arena_strdup(&f->arena, text) : NULL;
        if (item->subject && item->remedy && item->evidence) {
            f->n++;
            free(text);
            return;
        }
    }
    free(text);
    f->dropped++;
    if (severity == entry->severity) /* of the others nobody knows how many: they cannot be waived */
        f->dropped_by_id[id]++;
}

void finding_add(struct findings *f, enum finding_id id, const char *subject, const char *evidence_fmt, ...)
{
    va_list ap;
    va_start(ap, evidence_fmt);
    add(f, id, finding_severity(id), subject, NULL, evidence_fmt, ap);
    va_end(ap);
}

void finding_add_remedy(struct findings *f, enum finding_id id, const char *subject, const char *remedy,
                        const char *evidence_fmt, ...)
{
    va_list ap;
    va_start(ap, evidence_fmt);
    add(f, id, finding_severity(id), subject, remedy, evidence_fmt, ap);
    va_end(ap);
}

void finding_add_severity(struct findings *f, enum finding_id id, enum severity severity, const char *subject,
                          const char *remedy, const char *evidence_fmt, ...)
{
    va_list ap;
    va_start(ap, evidence_fmt);
    add(f, id, severity, subject, remedy, evidence_fmt, ap);
    va_end(ap);
}

size_t findings_waive(struct findings *f, const char *id, const char *reason)
{
    size_t n = 0;
    const char *copy = arena_strdup(&f->arena, reason ? reason : "");
    for (size_t i = 0; i < f->n; i++) {
        struct finding *item = &f->items[i];
        if (item->waived || strcmp(finding_code(item->id), id) != 0)
            continue;
        item->waived = true;
        item->waive_reason = copy ? copy : "";
        f->n_by_severity[item->severity]--;
        n++;
    }
    for (unsigned i = 0; i < FINDING_N; i++) {
        if (strcmp(catalogue[i].code, id) != 0)
            continue;
        f->n_by_severity[catalogue[i].severity] -= f->dropped_by_id[i];
        n += f->dropped_by_id[i];
        f->dropped_by_id[i] = 0;
    }
    return n;
}

bool findings_failed(const struct findings *f)
{
    return f->n_by_severity[SEVERITY_ERROR] > 0;
}

void findings_write_json(const struct findings *f, struct json_writer *w)
{
    json_begin_array(w);
    for (size_t i = 0; i < f->n; i++) {
        const struct finding *item = &f->items[i];
        json_begin_object(w);
        json_put_string(w, "id", finding_code(item->id));
        json_put_string(w, "name", finding_name(item->id));
        json_put_string(w, "severity", severity_name(item->severity));
        json_put_string(w, "subject", item->subject);
        json_put_string(w, "evidence", item->evidence);
        json_put_string(w, "remedy", item->remedy);
        if (item->waived)
            json_put_string(w, "waived", item->waive_reason);
        json_end_object(w);
    }
    json_end_array(w);
}
