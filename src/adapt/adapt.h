/* SPDX-License-Identifier: Apache-2.0
 *
 * The main job: five stages from directory to verified service, the eight rows of the checklist, resume, and
 * the report (report.json and a self-contained index.html). Nothing is green without evidence: a row is
 * passed, failed, not applicable, not checked or self-consistent, and says why.
 */
#ifndef ADAPT_ADAPT_H
#define ADAPT_ADAPT_H

#include "base/finding.h"
#include "base/log.h"
#include "spec/spec.h"

enum row_state { ROW_NOT_CHECKED, ROW_PASSED, ROW_FAILED, ROW_NOT_APPLICABLE, ROW_SELF_CONSISTENT };
const char *
row_state_name(enum row_state s); /* "not checked" "passed" "failed" "not applicable" "self-consistent" */

enum row_id {
    ROW_ENVIRONMENT,
    ROW_WEIGHTS,
    ROW_MEMORY,
    ROW_COMM,
    ROW_NUMERICS,
    ROW_TEXT,
    ROW_IMAGE,
    ROW_SERVICE,
    ROW_N
};
/* "environment" "weights" "memory" "communication" "numerics" "text" "image" "service": as --accept takes
 * them
 */
const char *row_key(enum row_id r);
const char *row_title(enum row_id r); /* "Weight integrity" ... */

struct row {
    enum row_state state;
    const char *evidence;      /* one line with numbers, or the reason */
    const char *accept_reason; /* of --accept; NULL none */
};

enum stage_state { STAGE_NOT_RUN, STAGE_PASSED, STAGE_FAILED, STAGE_PARTIAL };
struct stage {
    const char *title;
    enum stage_state state;
    double seconds;
    bool resumed;
    const char *summary;
};

enum verdict { VERDICT_PASS, VERDICT_FAIL, VERDICT_INCOMPLETE };
const char *verdict_name(enum verdict v);

struct adapt_override {
    const char *key, *reason;
}; /* ROW=REASON or ID=REASON */

struct adapt_options {
    const char *model_dir, *out_dir; /* out_dir NULL: ./day0-report */
    const char *reference;           /* safetensors file or NULL */
    const char *picture_reference;   /* the same of a conversation with pictures, or NULL */
    const char *questions;           /* JSON: pictures, questions, known answers, prompt tokens; or NULL */
    const char *arch_path;           /* --arch FILE */
    enum spec_activations activations;
    const char *device, *isa; /* NULL: cpu, fast */
    const char *comm;         /* NULL: self */
    const char *fuse; /* fusions wanted, as fusions_parse() takes them; NULL: all that change no bit */
    unsigned n_threads;
    uint64_t memory_bytes;   /* 0: what the host has available */
    uint32_t context;        /* KV capacity per request; 0: min(model's limit, 4096) */
    const char *service_url; /* examine this server instead of starting one */
    const char *rules;       /* version rules to judge by; NULL: the built-in ones */
    const char *root; /* capture of the machine of service_url, to judge the rules on; NULL: this machine */
    const char *program;      /* path of the day0 binary for the child service */
    uint32_t stress_requests; /* per concurrency level; 0: 16 */
    uint32_t answer_seconds;  /* that the service has for one answer; 0: 300 */
    const struct adapt_override *accept, *waive;
    size_t n_accept, n_waive;
    bool fresh; /* do not resume */
    /* called at every step for people; may be NULL */
    void (*progress)(void *context, int stage, const char *what);
    void *progress_context;
};

struct adapt_result {
    struct arena arena;
    enum verdict verdict;
    bool with_waivers;
    struct row rows[ROW_N];
    struct stage stages[5];
    struct findings findings;
    const char *report_json_path, *report_html_path;
    double seconds;
};

/* Errors only for what keeps the job as a whole from running (no such directory, output not writable). */
int adapt_run(const struct adapt_options *o, struct adapt_result *out, struct d0 *d0, struct err *e);
void adapt_result_release(struct adapt_result *r);
/* 0 pass (also with waivers), 1 fail, 4 incomplete */
int adapt_exit_status(const struct adapt_result *r);

/* How long a service of a model of so many bytes may take from its start to its first answer: two minutes,
 * and what a slow disk (50 MB/s) takes to read it. */
uint64_t service_patience_ns(uint64_t model_bytes);

#endif
