/* SPDX-License-Identifier: Apache-2.0
 *
 * What the five stages share: the opened model and machine, the service under examination, and where results
 * go. A stage writes its facts as one JSON object, sets rows, adds findings and says in one line how it went;
 * it returns an error only for what ends the whole job (out of memory).
 */
#ifndef ADAPT_JOB_H
#define ADAPT_JOB_H

#include "adapt/report.h"
#include "adapt/rows.h"
#include "base/hash.h"
#include "base/process.h"
#include "ckpt/ckpt.h"
#include "dev/dev.h"
#include "host/host.h"
#include "plan/plan.h"
#include "prompt/prompt.h"
#include "spec/spec.h"

enum { STAGE_ENVIRONMENT, STAGE_MINIMAL, STAGE_LAYOUT, STAGE_CHANNELS, STAGE_STRESS };

struct job {
    const struct adapt_options *o;
    struct adapt_result *out;
    struct d0 *d0;
    struct arena *arena; /* of the result */
    struct findings *f;  /* of the result */
    const char *out_dir, *stage_dir;
    /* machine */
    struct host *host;
    struct host *captured; /* of --root, or NULL: rules are judged on host */
    struct host_rules rules;
    bool rules_open; /* a rule that could fail the environment, and nobody knows whether it holds */
    struct dev dev;
    bool dev_open;
    char dev_why[256]; /* why it is not open */
    uint64_t memory;
    const char *memory_source;
    unsigned threads;
    /* model: NULL where findings say why */
    struct ckpt *ckpt;
    struct spec *spec;
    struct prompt_front *front;
    struct findings opening; /* what opening found: belongs to stage 1 */
    char sha_manifest[SHA256_HEX_BYTES], sha_binary[SHA256_HEX_BYTES];
    const char *title;
    /* plan of stage 3, made before stage 2 (which must know whether the model fits) */
    struct plan_options plan_options;
    struct plan_memory plan;
    bool planned;
    char no_pictures[256]; /* why the service that is started here takes none; "": it does, or another is
                            * asked */
    uint32_t context;
    /* service */
    struct process service;
    bool service_ready, external;
    char url[400];
    char model_name[256];
    uint64_t allowed_peak;
    const struct json *facts[REPORT_STAGES];
    double open_seconds; /* part of stage 1 */
};

int job_open(struct job *j, const struct adapt_options *o, struct adapt_result *out, struct d0 *d0,
             struct err *e);
void job_close(struct job *j);

/* State and summary of a stage; the text is copied. */
void stage_say(struct job *j, unsigned stage, enum stage_state state, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* As above from an error that kept the stage from its work. */
void stage_could_not(struct job *j, unsigned stage, const struct err *e);
void job_progress(const struct job *j, unsigned stage, const char *what);
void job_row(struct job *j, enum row_id row, enum row_state state, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Error findings, not waived, that speak against this row so far. */
size_t job_errors(const struct job *j, enum row_id row);
/* The first error finding that keeps weights from being used, or NULL. */
const struct finding *job_obstacle(const struct job *j);
/* The first finding with this id so far, or NULL. */
const struct finding *job_finding(const struct job *j, enum finding_id id);
/* What this build's own kernels, or anything here, do not compute of what was asked: an error that ends the
 * work like an obstacle, or NULL. */
const struct finding *job_not_computed(const struct job *j);
/* "not run: needs 1,560 GB, has 24 GB; smallest layout that fits: TP 8 x PP 2" */
const char *job_too_large(struct job *j);
/* Of the planned memory, what a service holds that has few small pictures waiting: all but the room for
 * those. Held against what is measured; with the room, as little as half of a plan would hide what nobody
 * predicted. */
uint64_t job_to_hold(const struct job *j);
/* What the plan sets apart for pictures that wait, 0 where none are taken. */
uint64_t job_picture_room(const struct job *j);

int stage1_run(struct job *j, struct json_writer *w, struct err *e);
int stage2_run(struct job *j, struct json_writer *w, struct err *e);
int stage3_run(struct job *j, struct json_writer *w, struct err *e);
int stage4_run(struct job *j, struct json_writer *w, struct err *e);
int stage5_run(struct job *j, struct json_writer *w, struct err *e);

/* ---- stage 2 helpers */
/* Mean log-probability that the model gives a plain English text, in nats per token; uniform: of a guess. */
struct score_result {
    bool ran;
    double mean, uniform;
    size_t tokens;
};
int score_text(struct job *j, struct score_result *out, struct err *e);
/* stage2_drift.c: errors by position, as fact "drift", where that costs little; else why not. */
int drift_run(struct job *j, struct json_writer *w, struct err *e);
/* Neighbouring characters that no writing has: a capital inside a word, a digit in it, a full stop without a
 * space, two scripts in one word. */
struct text_shape {
    size_t pairs, odd;
};
void text_shape_add(struct text_shape *t, const char *text, size_t n);

/* ---- stage 3 helpers */
/* Fusions that stage 2 accepted and that are wanted: what the service runs with. */
uint32_t job_fusions(const struct job *j);
int service_start(
    struct job *j, double *seconds,
    struct err *e); /* ERR_OK also when it did not get ready: then service_ready is false and S001 says why */
void service_stop(struct job *j);
/* The server of --service URL. One that answers 503 is loading and is waited for as long as for one answer;
 * service_ready and S001 as above. */
void service_find(struct job *j, double *seconds);

/* ---- resume */
/* Hex key of a stage's inputs, chained: a stage's key covers those before it. */
int resume_keys(struct job *j, char keys[REPORT_STAGES][SHA256_HEX_BYTES], struct err *e);
/* Takes over a stored stage if its key fits and it is complete. false: run it. */
bool resume_load(struct job *j, unsigned stage, const char *key);
/* Stores a stage: facts text, the rows that it changed (before: rows as they were), the findings it added
 * (from first_finding on). */
int resume_store(struct job *j, unsigned stage, const char *key, const char *facts, const struct row *before,
                 size_t first_finding, struct err *e);
/* Makes the directory ours or refuses: ERR_USAGE when it holds anything and no marker. */
int outdir_prepare(struct job *j, struct err *e);

#endif
