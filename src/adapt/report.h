/* SPDX-License-Identifier: Apache-2.0
 *
 * The report in memory, read by both writers. What a stage measured is kept as one immutable JSON tree per
 * stage ("facts", documented in docs/report.md): a resumed stage is exactly the tree it stored, and the page
 * can show nothing that report.json does not hold.
 */
#ifndef ADAPT_REPORT_H
#define ADAPT_REPORT_H

#include "adapt/adapt.h"
#include "base/json.h"

#define REPORT_SCHEMA_VERSION 1
#define REPORT_STAGES         5

struct report {
    const char *title; /* last component of the model's directory: untrusted, as everything below */
    const char *model_dir;
    const char *platform;    /* one line: processor, memory, operating system */
    const char *service_url; /* external server that was examined, or NULL */
    int64_t unix_ns;         /* when the run began */
    double seconds;
    enum verdict verdict;
    bool with_waivers;
    const struct row *rows;                  /* [ROW_N] */
    const struct stage *stages;              /* [REPORT_STAGES] */
    const struct json *facts[REPORT_STAGES]; /* NULL: the stage has none */
    const struct findings *findings;
    const char *sha_manifest, *sha_arch, *sha_binary; /* "" unknown */
    const char *arch_name, *arch_origin;
    const char *version;     /* of day0 */
    const char *definitions; /* text of stress_definitions() */
};

/* Both append to *out; only running out of memory fails, which the strbuf remembers. */
void report_write_json(const struct report *r, struct strbuf *out);
void report_write_html(const struct report *r, struct strbuf *out);

/* Writes report.json and index.html into dir. */
int report_save(const struct report *r, const char *dir, struct err *e);

const char *stage_state_name(enum stage_state s); /* "not run" "passed" "failed" "partial" */
/* One line that says why the verdict is what it is; into buf. */
const char *report_reason(const struct report *r, char *buf, size_t bytes);

#endif
