/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: opening model and machine once for all stages, and the words in which stages report.
 * Refuses: ending the job over a bad model: what cannot be opened is NULL, and findings say why.
 */
#include "adapt/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "base/file.h"
#include "base/thread.h"
#include "preflight/preflight.h"

#define DEFAULT_CONTEXT 4096
#define STEP_TOKENS     256 /* of the child service too: stage 3 passes both on its command line */
#define MAX_SEQS        8

static const char *copy_or(struct arena *arena, const char *text, const char *fallback)
{
    const char *copy = arena_strdup(arena, text);
    return copy ? copy : fallback;
}

void stage_say(struct job *j, unsigned stage, enum stage_state state, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    j->out->stages[stage].state = state;
    j->out->stages[stage].summary = copy_or(j->arena, text, "out of memory");
}

void stage_could_not(struct job *j, unsigned stage, const struct err *e)
{
    char text[900];
    stage_say(j, stage, STAGE_PARTIAL, "could not run: %s", err_format(e, text, sizeof(text)));
}

void job_progress(const struct job *j, unsigned stage, const char *what)
{
    log_line(&j->d0->log, LOG_INFO, "adapt", "stage %u: %s", stage + 1, what);
    if (j->o->progress)
        j->o->progress(j->o->progress_context, (int)stage + 1, what);
}

void job_row(struct job *j, enum row_id row, enum row_state state, const char *fmt, ...)
{
    char text[1000];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    row_set(&j->out->rows[row], j->arena, state, "%s", text);
}

size_t job_errors(const struct job *j, enum row_id row)
{
    size_t n = 0;
    for (size_t i = 0; i < j->f->n; i++)
        n += j->f->items[i].severity == SEVERITY_ERROR && row_of_finding(j->f->items[i].id) == row;
    return n;
}

const struct finding *job_obstacle(const struct job *j)
{
    for (size_t i = 0; i < j->f->n; i++) {
        const struct finding *f = &j->f->items[i];
        if (f->severity == SEVERITY_ERROR && row_of_finding(f->id) == ROW_WEIGHTS)
            return f;
    }
    return NULL;
}

const struct finding *job_finding(const struct job *j, enum finding_id id)
{
    for (size_t i = 0; i < j->f->n; i++)
        if (j->f->items[i].id == id)
            return &j->f->items[i];
    return NULL;
}

const struct finding *job_not_computed(const struct job *j)
{
    const struct finding *f = job_finding(j, FINDING_P005), *a = job_finding(j, FINDING_P006);
    return f ? f : a && a->severity == SEVERITY_ERROR ? a : NULL;
}

const char *job_too_large(struct job *j)
{
    char need[40], have[40], layout[96] = "none up to 4,096 ranks of this size";
    struct plan_layout l;
    struct plan_memory per_rank;
    if (j->spec && plan_smallest(j->spec, &j->plan_options, &l, &per_rank))
        snprintf(layout, sizeof(layout), "TP %u x PP %u", l.tp, l.pp);
    const char *text = arena_printf(j->arena, "needs %s, has %s; smallest layout that fits: %s",
                                    format_bytes(j->plan.total, need, sizeof(need)),
                                    format_bytes(j->memory, have, sizeof(have)), layout);
    return text ? text : "needs more memory than there is";
}

uint64_t job_picture_room(const struct job *j)
{
    return j->plan.pictures ? j->plan_options.waiting_bytes : 0;
}

uint64_t job_to_hold(const struct job *j)
{
    uint64_t room = job_picture_room(j);
    return j->plan.total > room ? j->plan.total - room : j->plan.total;
}

/* ---- opening */

static const char *last_component(struct arena *arena, const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    size_t first = n;
    while (first > 0 && dir[first - 1] != '/')
        first--;
    const char *name = arena_strndup(arena, dir + first, n - first);
    return name && *name && strcmp(name, ".") != 0 ? name : dir;
}

static int open_machine(struct job *j, struct err *e)
{
    int rc = host_open(&j->host, j->o->model_dir, e);
    if (!rc && j->o->root)
        rc = host_open_capture(&j->captured, j->o->root, e);
    if (!rc)
        rc = host_rules_open(&j->rules, j->o->rules, e);
    if (rc)
        return rc;
    j->memory = j->o->memory_bytes ? j->o->memory_bytes : j->host->memory_available;
    j->memory_source = j->o->memory_bytes             ? "--memory"
                       : j->host->memory_limit_source ? j->host->memory_limit_source
                                                      : "unknown";
    j->threads = j->o->n_threads ? j->o->n_threads : j->host->n_threads_usable;
    struct dev_options dev = {.name = j->o->device ? j->o->device : "cpu",
                              .isa = j->o->isa,
                              .n_threads = j->o->n_threads,
                              .mem = &j->d0->mem};
    struct err why = {0};
    rc = dev_open(&j->dev, &dev, &why);
    j->dev_open = rc == ERR_OK;
    if (rc == ERR_NOMEM || rc == ERR_USAGE || rc == ERR_INVALID) {
        if (e)
            *e = why;
        return rc;
    }
    if (rc) {
        err_format(&why, j->dev_why, sizeof(j->dev_why));
        finding_add(&j->opening, FINDING_P003, dev.name, "%s", j->dev_why);
    }
    return ERR_OK;
}

static int open_model(struct job *j, struct err *e)
{
    struct spec_options so = {.arch_path = j->o->arch_path, .activations = j->o->activations};
    int rc = ckpt_open(&j->ckpt, j->o->model_dir, &j->opening, j->d0, e);
    if (!rc)
        rc = ckpt_manifest_sha256(j->ckpt, j->sha_manifest, e);
    if (!rc)
        rc = spec_open(&j->spec, j->ckpt, &so, &j->opening, j->d0, e);
    /* memory is stage 3's to judge; the tokenizer is prompt_open's where there is a description */
    bool here = dev_name_is_cpu(j->o->device);
    struct preflight_options po = {
        .skip_tokenizer = j->spec != NULL, .runs_here = here, .runs_elsewhere = !here};
    if (!rc)
        rc = preflight_check(j->ckpt, j->spec, &po, &j->opening, j->d0, e);
    if (!rc && j->spec)
        rc = prompt_open(&j->front, j->ckpt, j->spec, &j->opening, j->d0, e);
    return rc;
}

/* The service that is started here opens with pictures by the same rule. */
static void take_pictures(struct job *j)
{
    const struct plan_wishes wishes = {0};
    struct plan_options *p = &j->plan_options, with = *p;
    struct picture_shape shape;
    struct plan_memory memory;
    struct err e = {0};
    if (j->external || !j->dev_open)
        return;
    if (preflight_tower(j->spec, &j->dev, &e) || picture_shape(j->spec->vision, &shape, &e) ||
        plan_pictures(j->spec, j->context, &wishes, &with, &memory, &e)) {
        snprintf(j->no_pictures, sizeof(j->no_pictures), "%.255s", e.message);
        return;
    }
    p->max_patches = with.max_patches;
    p->max_picture_rows = with.max_picture_rows;
    p->n_feature_rows = with.n_feature_rows;
    p->waiting_bytes = with.waiting_bytes;
}

/* The KV capacity is halved from what 8 full requests want down to one, until it fits: what the service does
 * too. */
static int make_plan(struct job *j, struct err *e)
{
    int64_t limit = j->spec->max_positions > 0 ? j->spec->max_positions : DEFAULT_CONTEXT;
    uint32_t asked = j->o->context ? j->o->context : DEFAULT_CONTEXT;
    j->context = (int64_t)asked < limit ? asked : (uint32_t)limit;
    uint32_t fusions = 0;
    if (fusions_parse(j->o->fuse, &fusions, e) != ERR_OK)
        return ERR_USAGE;
    j->plan_options = (struct plan_options){.memory_bytes = j->memory,
                                            .fusions = fusions,
                                            .max_step_tokens = STEP_TOKENS,
                                            .max_seqs = MAX_SEQS,
                                            .max_rows = MAX_SEQS,
                                            .context_tokens = (uint64_t)MAX_SEQS * j->context,
                                            .request_tokens = j->context};
    if (j->dev_open && !j->external) {
        j->plan_options.device_need = dev_scratch_plan;
        j->plan_options.device = &j->dev;
    }
    take_pictures(j);
    int rc;
    while ((rc = plan_single(j->spec, &j->plan_options, &j->plan, e)) == ERR_OK && !j->plan.fits &&
           j->plan_options.context_tokens > j->context) {
        uint64_t half = j->plan_options.context_tokens / 2;
        j->plan_options.context_tokens = half < j->context ? j->context : half;
    }
    j->planned = rc == ERR_OK;
    return rc;
}

int job_open(struct job *j, const struct adapt_options *o, struct adapt_result *out, struct d0 *d0,
             struct err *e)
{
    char *self = NULL;
    uint64_t begin = clock_ns();
    *j = (struct job){.o = o, .out = out, .d0 = d0, .arena = &out->arena, .f = &out->findings};
    findings_init(&j->opening, &d0->mem);
    j->title = last_component(j->arena, o->model_dir);
    j->external = o->service_url != NULL;
    int rc = open_machine(j, e);
    if (!rc)
        rc = open_model(j, e);
    if (!rc && j->spec) {
        rc = make_plan(j, e);
        if (rc && rc != ERR_NOMEM && rc != ERR_IO) { /* a graph that cannot be planned is stage 3's to tell */
            j->planned = false;
            rc = ERR_OK;
        }
    }
    if (!rc)
        rc = process_self_path(j->arena, &self, e);
    if (!rc)
        rc = sha256_file(self, j->sha_binary, e);
    j->open_seconds = (double)(clock_ns() - begin) / 1e9;
    return rc;
}

void job_close(struct job *j)
{
    service_stop(j);
    prompt_close(j->front);
    spec_close(j->spec);
    ckpt_close(j->ckpt);
    if (j->dev_open)
        dev_close(&j->dev);
    host_rules_release(&j->rules);
    host_close(j->captured);
    host_close(j->host);
    findings_release(&j->opening);
}
