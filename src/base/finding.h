/* SPDX-License-Identifier: Apache-2.0
 *
 * Findings: the work was done and the answer is "bad". Every finding has a stable identifier from
 * base/findings.def (documented in docs/findings.md), a severity, a subject, evidence and a remedy.
 * Consequences of one cause belong in its evidence, not in findings of their own.
 */
#ifndef BASE_FINDING_H
#define BASE_FINDING_H

#include "base/json.h"
#include "base/mem.h"

enum severity { SEVERITY_INFO, SEVERITY_WARNING, SEVERITY_ERROR };

enum finding_id {
#define FINDING(id, name, severity, remedy) FINDING_##id,
#include "base/findings.def"
#undef FINDING
    FINDING_N
};

struct finding {
    enum finding_id id;
    enum severity severity;
    const char *subject;  /* file, tensor, operator, row: what it is about */
    const char *evidence; /* what was seen, with numbers */
    const char *remedy;   /* what to do */
    bool waived;
    const char *waive_reason;
};

/* Capped list. Past the cap findings are counted, not stored: `dropped` says how many. */
struct findings {
    struct arena arena;
    struct finding *items;
    size_t n, capacity;
    size_t cap; /* default 1,000 */
    uint64_t dropped;
    uint64_t dropped_by_id[FINDING_N]; /* not waived */
    uint64_t n_by_severity[3];         /* stored and dropped; waived ones are not counted */
};

void findings_init(struct findings *f, struct mem *mem);
void findings_release(struct findings *f);

/* Adds one with the id's default severity and remedy. subject is copied; evidence is printf-formatted. */
void finding_add(struct findings *f, enum finding_id id, const char *subject, const char *evidence_fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* As above with a remedy of its own (NULL: the default one). */
void finding_add_remedy(struct findings *f, enum finding_id id, const char *subject, const char *remedy,
                        const char *evidence_fmt, ...) __attribute__((format(printf, 5, 6)));

/* With a severity of its own, where data decides how bad a thing is. remedy NULL: the default one. */
void finding_add_severity(struct findings *f, enum finding_id id, enum severity severity, const char *subject,
                          const char *remedy, const char *evidence_fmt, ...)
    __attribute__((format(printf, 6, 7)));

/* Marks findings whose id ("W003") equals `id` as waived with a reason. Returns how many. */
size_t findings_waive(struct findings *f, const char *id, const char *reason);

const char *finding_code(enum finding_id id); /* "W003" */
const char *finding_name(enum finding_id id); /* "shard-truncated" */
enum severity finding_severity(enum finding_id id);
const char *finding_remedy(enum finding_id id);
const char *severity_name(enum severity s);     /* "info" "warning" "error" */
bool findings_failed(const struct findings *f); /* an unwaived finding of severity error */

/* Writes the array of {"id","name","severity","subject","evidence","remedy"} (+ "waived" where so). */
void findings_write_json(const struct findings *f, struct json_writer *w);

#endif
