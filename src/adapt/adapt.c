/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the order of the job: options, directory, five stages (resumed where nothing changed), verdict,
 * report. Refuses: stopping at the first bad answer. A stage that cannot run says why, and the report is
 * written all the same.
 */
#include "adapt/job.h"
#include "adapt/stage4.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/thread.h"
#include "preflight/preflight.h"
#include "stress/stress.h"

#ifndef D0_VERSION
#define D0_VERSION "unknown"
#endif

typedef int (*stage_fn)(struct job *j, struct json_writer *w, struct err *e);

static const struct {
    const char *title;
    stage_fn run;
} stages[REPORT_STAGES] = {
    {"Environment", stage1_run},
    {"Minimal validation", stage2_run},
    {"Layout and service start", stage3_run},
    {"Channels", stage4_run},
    {"Stress", stage5_run},
};

/* path NULL: not asked for. */
static int check_file(const char *path, const char *what, struct err *e)
{
    struct file_info info;
    if (!path)
        return ERR_OK;
    int rc = file_stat(path, &info, e);
    return rc || info.is_file ? rc : err_set(e, ERR_MISSING, "%s: no such %s", path, what);
}

static int check_options(const struct adapt_options *o, struct err *e)
{
    struct file_info info;
    if (!o->model_dir)
        return err_set(e, ERR_USAGE, "no model directory was named");
    int rc = rows_check_overrides(o, e);
    if (rc)
        return rc;
    rc = file_stat(o->model_dir, &info, e);
    if (!rc && !info.exists)
        rc = err_set(e, ERR_MISSING, "%s: no such directory", o->model_dir);
    if (!rc && !info.is_dir)
        rc = err_set(e, ERR_USAGE, "%s is not a directory", o->model_dir);
    if (!rc)
        rc = check_file(o->reference, "reference file", e);
    if (!rc)
        rc = check_file(o->picture_reference, "reference file", e);
    if (!rc)
        rc = check_file(o->questions, "file of questions", e);
    if (!rc && o->questions)
        rc = questions_check(o->questions, e);
    if (!rc && o->service_url && (strlen(o->service_url) > 300 || !str_starts(o->service_url, "http")))
        rc = err_set(e, ERR_USAGE, "--service wants a URL like http://host:port, of at most 300 bytes");
    if (!rc && o->root && !o->service_url)
        rc = err_set(e, ERR_USAGE,
                     "--root is a capture of the machine of --service URL: without it the service "
                     "runs here, and this machine is what counts");
    if (!rc && !o->service_url && !o->program)
        rc = err_set(e, ERR_USAGE, "no program to start as the service; give --service URL");
    return rc;
}

static int run_stage(struct job *j, unsigned i, const char *key, struct err *e)
{
    struct strbuf facts = STRBUF_INIT;
    struct json_writer w;
    struct row before[ROW_N];
    size_t first_finding = j->f->n;
    uint64_t begin = clock_ns();
    memcpy(before, j->out->rows, sizeof(before));
    json_writer_init(&w, &facts, true);
    json_begin_object(&w);
    int rc = stages[i].run(j, &w, e);
    if (rc) {
        strbuf_release(&facts);
        return rc;
    }
    json_end_object(&w);
    j->out->stages[i].seconds =
        (double)(clock_ns() - begin) / 1e9 + (i == STAGE_ENVIRONMENT ? j->open_seconds : 0);
    if (strbuf_failed(&facts))
        rc = err_set(e, ERR_NOMEM, "out of memory for the facts of stage %u", i + 1);
    if (!rc)
        rc = json_parse(facts.data, facts.len, NULL, j->arena, &j->facts[i], e);
    if (!rc)
        rc = resume_store(j, i, key, facts.data, before, first_finding, e);
    strbuf_release(&facts);
    return rc;
}

/* Takes over stored stages; returns the first one that must run. Stages 3 to 5 share one running service:
 * they are taken over together or not at all. */
static unsigned resume(struct job *j, char keys[REPORT_STAGES][SHA256_HEX_BYTES])
{
    unsigned n = 0;
    if (j->o->fresh)
        return 0;
    while (n < STAGE_LAYOUT && resume_load(j, n, keys[n]))
        n++;
    if (n < STAGE_LAYOUT || j->external)
        return n;
    struct row rows[ROW_N];
    struct stage kept[REPORT_STAGES];
    size_t n_findings = j->f->n;
    memcpy(rows, j->out->rows, sizeof(rows));
    memcpy(kept, j->out->stages, sizeof(kept));
    while (n < REPORT_STAGES && j->f->n == n_findings && resume_load(j, n, keys[n]))
        n++;
    if (n == REPORT_STAGES)
        return n;
    memcpy(j->out->rows, rows, sizeof(rows));
    memcpy(j->out->stages, kept, sizeof(kept));
    j->facts[STAGE_LAYOUT] = j->facts[STAGE_CHANNELS] = j->facts[STAGE_STRESS] = NULL;
    j->f->n = n_findings; /* passed stages add no error findings, and others end the loop: only the last one
                             added, if any */
    return STAGE_LAYOUT;
}

static void platform_line(const struct job *j, struct strbuf *b)
{
    char memory[40];
    const struct host *h = j->host;
    strbuf_printf(b, "%s, %u threads, %s", h->cpu_model ? h->cpu_model : "unknown processor", j->threads,
                  format_bytes(h->memory_total, memory, sizeof(memory)));
    if (h->os)
        strbuf_printf(b, ", %s", h->os);
}

static int save_report(struct job *j, int64_t began, struct err *e)
{
    struct strbuf platform = STRBUF_INIT;
    platform_line(j, &platform);
    struct adapt_result *out = j->out;
    struct report r = {.title = j->title,
                       .model_dir = j->o->model_dir,
                       .platform = strbuf_cstr(&platform),
                       .service_url = j->o->service_url,
                       .unix_ns = began,
                       .seconds = out->seconds,
                       .verdict = out->verdict,
                       .with_waivers = out->with_waivers,
                       .rows = out->rows,
                       .stages = out->stages,
                       .findings = &out->findings,
                       .sha_manifest = j->sha_manifest,
                       .sha_arch = j->spec ? j->spec->arch_sha256 : "",
                       .sha_binary = j->sha_binary,
                       .arch_name = j->spec ? j->spec->arch_name : "",
                       .arch_origin = j->spec ? arch_origin_name(j->spec->origin) : "",
                       .version = D0_VERSION,
                       .definitions = stress_definitions()};
    memcpy(r.facts, j->facts, sizeof(r.facts));
    int rc = report_save(&r, j->out_dir, e);
    strbuf_release(&platform);
    out->report_json_path = path_join(j->arena, j->out_dir, "report.json");
    out->report_html_path = path_join(j->arena, j->out_dir, "index.html");
    if (!rc && (!out->report_json_path || !out->report_html_path))
        rc = err_set(e, ERR_NOMEM, "out of memory for a path");
    return rc;
}

static int run_job(struct job *j, struct err *e)
{
    char keys[REPORT_STAGES][SHA256_HEX_BYTES];
    uint64_t begin = clock_ns();
    int64_t began = clock_unix_ns();
    int rc = resume_keys(j, keys, e);
    if (rc)
        return rc;
    for (unsigned i = resume(j, keys); rc == ERR_OK && i < REPORT_STAGES; i++)
        rc = run_stage(j, i, keys[i], e);
    service_stop(j);
    if (rc)
        return rc;
    rows_judge(j->out, j->o, j->spec && preflight_unproven(&j->out->findings, j->spec));
    j->out->seconds = j->open_seconds + (double)(clock_ns() - begin) / 1e9;
    return save_report(j, began, e);
}

int adapt_run(const struct adapt_options *o, struct adapt_result *out, struct d0 *d0, struct err *e)
{
    struct job j;
    memset(out, 0, sizeof(*out));
    arena_init(&out->arena, &d0->mem, MEM_REPORT);
    findings_init(&out->findings, &d0->mem);
    for (unsigned i = 0; i < REPORT_STAGES; i++)
        out->stages[i] = (struct stage){.title = stages[i].title, .summary = "not run"};
    for (unsigned i = 0; i < ROW_N; i++)
        out->rows[i].evidence = "not checked: the stage that checks it did not come so far";
    int rc = check_options(o, e);
    if (rc) {
        adapt_result_release(out);
        return rc;
    }
    rc = job_open(&j, o, out, d0, e);
    j.out_dir = o->out_dir ? o->out_dir : "day0-report";
    j.stage_dir = path_join(&out->arena, j.out_dir, "stages");
    if (!rc)
        rc = outdir_prepare(&j, e);
    if (!rc)
        rc = run_job(&j, e);
    job_close(&j);
    if (rc)
        adapt_result_release(out);
    return rc;
}

void adapt_result_release(struct adapt_result *r)
{
    findings_release(&r->findings);
    arena_release(&r->arena);
    memset(r, 0, sizeof(*r));
}
