/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the report's directory, and stored stages: stages/N.json with the key of everything that went into
 * the stage. Refuses: resuming a stage that failed or was cut short, a file whose key differs in one bit, and
 * writing into a directory that is not ours.
 */
#include "adapt/job.h"
#include "adapt/stage4.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

#define MARKER      ".day0-report"
#define MARKER_TEXT "Made by day0. Files of this directory are replaced by its next run.\n"
#define MAX_STORED  (64u << 20)

int outdir_prepare(struct job *j, struct err *e)
{
    struct file_info info, marker;
    char **names = NULL;
    size_t n = 0;
    const char *marker_path = path_join(j->arena, j->out_dir, MARKER);
    if (!marker_path || !j->stage_dir)
        return err_set(e, ERR_NOMEM, "out of memory for a path");
    int rc = file_stat(j->out_dir, &info, e);
    if (rc)
        return rc;
    if (info.exists && !info.is_dir)
        return err_set(e, ERR_USAGE, "%s is not a directory; name another one with --out", j->out_dir);
    if (info.exists) {
        rc = file_stat(marker_path, &marker, e);
        if (!rc && !marker.exists)
            rc = dir_list(j->out_dir, j->arena, &names, &n, e);
        if (rc)
            return rc;
        if (!marker.exists && n) {
            err_set(e, ERR_USAGE, "%s is not empty and no report of day0 (it holds %s)", j->out_dir,
                    names[0]);
            err_hint(e, "name another directory with --out");
            return ERR_USAGE;
        }
    }
    rc = dir_make(j->stage_dir, e);
    return rc ? rc : file_write_atomic(marker_path, MARKER_TEXT, strlen(MARKER_TEXT), e);
}

/* ---- keys */

static int add_text(struct sha256 *s, const char *what, const char *text)
{
    int rc = sha256_update(s, what, strlen(what) + 1);
    if (!text)
        text = "";
    return rc ? rc : sha256_update(s, text, strlen(text) + 1);
}

static int add_number(struct sha256 *s, const char *what, uint64_t v)
{
    char text[32];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)v);
    return add_text(s, what, text);
}

/* Name, size and time of every file: weights that changed behind an unchanged header must not be taken for
 * the old ones. */
static int add_files(struct job *j, struct sha256 *s, struct err *e)
{
    char **names = NULL;
    size_t n = 0;
    int rc = dir_list(j->o->model_dir, j->arena, &names, &n, e);
    for (size_t i = 0; rc == ERR_OK && i < n; i++) {
        struct file_info info = {0};
        const char *path = path_join(j->arena, j->o->model_dir, names[i]);
        if (!path)
            return err_set(e, ERR_NOMEM, "out of memory for a path");
        rc = file_stat(path, &info, e);
        if (rc || !info.is_file)
            continue;
        rc = add_text(s, "file", names[i]);
        rc = rc ? rc : add_number(s, "bytes", info.bytes);
        rc = rc ? rc : add_number(s, "time", (uint64_t)info.mtime_ns);
        rc = rc ? rc : add_number(s, "inode", info.inode);
    }
    return rc;
}

/* A file by name and content (references, architecture files, rules, captures). */
static int add_file(struct sha256 *s, const char *what, const char *path, struct err *e)
{
    char hex[SHA256_HEX_BYTES];
    int rc = add_text(s, what, path);
    if (rc || !path)
        return rc;
    rc = sha256_file(path, hex, e);
    if (rc == ERR_MISSING) /* opening it will say so */
        return ERR_OK;
    return rc ? rc : add_text(s, "content", hex);
}

/* A device, communicator or program: a name, or a file where it holds a slash. */
static int add_path(struct sha256 *s, const char *what, const char *path, struct err *e)
{
    return path && strchr(path, '/') ? add_file(s, what, path, e) : add_text(s, what, path);
}

static int add_host(struct job *j, struct sha256 *s)
{
    const struct host *h = j->host;
    int rc = add_text(s, "host", h->hostname);
    rc = rc ? rc : add_text(s, "cpu", h->cpu_model);
    rc = rc ? rc : add_text(s, "flags", h->cpu_flags);
    rc = rc ? rc : add_text(s, "kernel", h->kernel);
    rc = rc ? rc : add_text(s, "limit", j->memory_source);
    rc = rc ? rc : add_number(s, "memory", h->memory_total);
    rc = rc ? rc : add_number(s, "threads", j->threads);
    for (size_t i = 0; rc == ERR_OK && i < h->n_libraries; i++) {
        const struct host_library *l = &h->libraries[i];
        rc = add_text(s, l->name ? l->name : "library", l->found ? l->version : NULL);
        rc = rc ? rc : add_text(s, "package", l->found ? l->package : NULL);
    }
    return rc;
}

static int see_picture(void *ctx, const char *path, struct err *e)
{
    return add_file(ctx, "picture", path, e);
}

/* With what it asks about: the file alone stays the same when a picture changes. */
static int add_questions(struct job *j, struct sha256 *s, struct err *e)
{
    const char *path = j->o->questions;
    int rc = add_file(s, "questions", path, e);
    return rc || !path ? rc : questions_pictures(path, j->arena, see_picture, s, e);
}

static int add_stage(struct job *j, unsigned stage, struct sha256 *s, struct err *e)
{
    const struct adapt_options *o = j->o;
    int rc = ERR_OK;
    switch (stage) {
    case STAGE_ENVIRONMENT:
        rc = add_text(s, "manifest", j->sha_manifest);
        rc = rc ? rc : add_files(j, s, e);
        rc = rc ? rc : add_text(s, "arch", j->spec ? j->spec->arch_sha256 : "");
        rc = rc ? rc : add_text(s, "binary", j->sha_binary);
        rc = rc ? rc : add_file(s, "arch path", o->arch_path, e);
        rc = rc ? rc : add_path(s, "device", o->device, e);
        rc = rc ? rc : add_text(s, "isa", o->isa);
        rc = rc ? rc : add_file(s, "rules", o->rules, e);
        rc = rc ? rc : add_file(s, "root", o->root, e);
        return rc ? rc : add_host(j, s);
    case STAGE_MINIMAL:
        rc = add_file(s, "reference", o->reference, e);
        rc = rc ? rc : add_text(s, "fuse", o->fuse);
        return rc ? rc : add_number(s, "fits", j->planned && j->plan.fits);
    case STAGE_LAYOUT:
        rc = add_number(s, "memory", o->memory_bytes);
        rc = rc ? rc : add_number(s, "context", j->context);
        rc = rc ? rc : add_number(s, "kv", j->plan_options.context_tokens);
        rc = rc ? rc : add_number(s, "patches", j->plan_options.max_patches);
        rc = rc ? rc : add_path(s, "comm", o->comm, e);
        rc = rc ? rc : add_path(s, "program", o->program, e);
        return rc ? rc : add_text(s, "service", o->service_url);
    case STAGE_CHANNELS:
        rc = add_number(s, "channels", 2);
        rc = rc ? rc : add_file(s, "picture reference", o->picture_reference, e);
        return rc ? rc : add_questions(j, s, e);
    default:
        return add_number(s, "requests", o->stress_requests);
    }
}

int resume_keys(struct job *j, char keys[REPORT_STAGES][SHA256_HEX_BYTES], struct err *e)
{
    for (unsigned i = 0; i < REPORT_STAGES; i++) {
        struct sha256 *s = NULL;
        int rc = sha256_begin(&s, e);
        if (rc)
            return rc;
        rc = add_number(s, "schema", REPORT_SCHEMA_VERSION);
        rc = rc ? rc : add_text(s, "before", i ? keys[i - 1] : "");
        rc = rc ? rc : add_stage(j, i, s, e);
        if (rc) {
            sha256_abort(s);
            return rc;
        }
        rc = sha256_end(s, keys[i]);
        if (rc)
            return err_set(e, rc, "cannot hash the inputs of stage %u", i + 1);
    }
    return ERR_OK;
}

/* ---- storing */

static const char *stage_path(struct job *j, unsigned stage)
{
    char name[32];
    snprintf(name, sizeof(name), "%u.json", stage + 1);
    return path_join(j->arena, j->stage_dir, name);
}

static void write_rows(struct job *j, const struct row *before, struct json_writer *w)
{
    json_key(w, "rows");
    json_begin_array(w);
    for (unsigned i = 0; i < ROW_N; i++) {
        const struct row *row = &j->out->rows[i];
        if (row->state == before[i].state && row->evidence == before[i].evidence)
            continue;
        json_begin_object(w);
        json_put_string(w, "row", row_key((enum row_id)i));
        json_put_u64(w, "state", row->state);
        json_put_string(w, "evidence", row->evidence);
        json_end_object(w);
    }
    json_end_array(w);
}

static void write_findings(struct job *j, size_t first, struct json_writer *w)
{
    json_key(w, "findings");
    json_begin_array(w);
    for (size_t i = first; i < j->f->n; i++) {
        const struct finding *f = &j->f->items[i];
        json_begin_object(w);
        json_put_string(w, "id", finding_code(f->id));
        json_put_string(w, "subject", f->subject);
        json_put_string(w, "evidence", f->evidence);
        json_put_string(w, "remedy", f->remedy);
        json_end_object(w);
    }
    json_end_array(w);
}

/* Complete: the stage ran to its end, nothing it found can be otherwise on the same inputs. Partial stages
 * are stored only where that holds: stage 1 with a rule that nobody can judge, stage 2 without a reference,
 * stage 4 without a chat template. */
static bool complete(const struct job *j, unsigned stage)
{
    const struct stage *s = &j->out->stages[stage];
    if (j->f->dropped || (j->external && stage >= STAGE_LAYOUT))
        return false;
    if (s->state == STAGE_PARTIAL)
        return (stage == STAGE_ENVIRONMENT && j->rules_open) ||
               (stage == STAGE_MINIMAL && j->out->rows[ROW_NUMERICS].state == ROW_SELF_CONSISTENT) ||
               stage == STAGE_CHANNELS;
    return s->state == STAGE_PASSED;
}

int resume_store(struct job *j, unsigned stage, const char *key, const char *facts, const struct row *before,
                 size_t first_finding, struct err *e)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    const struct stage *s = &j->out->stages[stage];
    const char *path = stage_path(j, stage);
    if (!path)
        return err_set(e, ERR_NOMEM, "out of memory for a path");
    json_writer_init(&w, &text, true);
    json_begin_object(&w);
    json_put_string(&w, "generator", "day0");
    json_put_u64(&w, "schema_version", REPORT_SCHEMA_VERSION);
    json_put_string(&w, "key", key);
    json_put_bool(&w, "complete", complete(j, stage));
    json_put_u64(&w, "state", s->state);
    json_put_f64(&w, "seconds", s->seconds);
    json_put_string(&w, "summary", s->summary);
    write_rows(j, before, &w);
    write_findings(j, first_finding, &w);
    json_key(&w, "facts");
    json_write_raw(&w, facts);
    json_end_object(&w);
    int rc = strbuf_failed(&text) ? err_set(e, ERR_NOMEM, "out of memory while storing stage %u", stage + 1)
                                  : file_write_atomic(path, text.data, text.len, e);
    strbuf_release(&text);
    return rc;
}

/* ---- loading. The file is ours, but it lies on a disk: whatever does not read as expected means that the
 * stage runs again. */

static bool finding_of_code(const char *code, enum finding_id *id)
{
    for (unsigned i = 0; code && i < FINDING_N; i++) {
        if (strcmp(finding_code((enum finding_id)i), code) == 0) {
            *id = (enum finding_id)i;
            return true;
        }
    }
    return false;
}

static bool load_findings(struct job *j, const struct json *list, bool apply)
{
    for (size_t i = 0; list && i < list->n; i++) {
        const struct json *v = json_at(list, i);
        enum finding_id id;
        const char *subject = json_string(json_get(v, "subject")),
                   *evidence = json_string(json_get(v, "evidence"));
        const char *remedy = json_string(json_get(v, "remedy"));
        if (!finding_of_code(json_string(json_get(v, "id")), &id) || !subject || !evidence || !remedy)
            return false;
        if (apply)
            finding_add_remedy(j->f, id, subject, remedy, "%s", evidence);
    }
    return list && list->type == JSON_ARRAY;
}

static bool load_rows(struct job *j, const struct json *list, bool apply)
{
    for (size_t i = 0; list && i < list->n; i++) {
        const struct json *v = json_at(list, i);
        const char *key = json_string(json_get(v, "row")), *evidence = json_string(json_get(v, "evidence"));
        uint64_t state;
        enum row_id row = key ? row_find(key) : ROW_N;
        if (row == ROW_N || !evidence || !json_u64(json_get(v, "state"), &state) ||
            state > ROW_SELF_CONSISTENT)
            return false;
        if (apply)
            job_row(j, row, (enum row_state)state, "%s", evidence);
    }
    return list && list->type == JSON_ARRAY;
}

bool resume_load(struct job *j, unsigned stage, const char *key)
{
    char *text = NULL;
    size_t n = 0;
    const struct json *v = NULL;
    struct err e = {0};
    uint64_t schema = 0, state = 0;
    double seconds = 0;
    bool is_complete = false;
    const char *path = stage_path(j, stage);
    if (!path || file_read(path, MAX_STORED, j->arena, &text, &n, &e) != ERR_OK ||
        json_parse(text, n, NULL, j->arena, &v, &e) != ERR_OK)
        return false;
    const char *stored = json_string(json_get(v, "key")), *summary = json_string(json_get(v, "summary"));
    const struct json *rows = json_get(v, "rows"), *findings = json_get(v, "findings"),
                      *facts = json_get(v, "facts");
    if (!stored || strcmp(stored, key) != 0 || !json_u64(json_get(v, "schema_version"), &schema) ||
        schema != REPORT_SCHEMA_VERSION)
        return false;
    if (!json_bool(json_get(v, "complete"), &is_complete) || !is_complete ||
        !json_u64(json_get(v, "state"), &state) || state > STAGE_PARTIAL)
        return false;
    if (!summary || !facts || !load_rows(j, rows, false) || !load_findings(j, findings, false))
        return false;
    (void)json_f64(json_get(v, "seconds"), &seconds);
    load_rows(j, rows, true);
    load_findings(j, findings, true);
    stage_say(j, stage, (enum stage_state)state, "%s", summary);
    j->out->stages[stage].seconds = seconds;
    j->out->stages[stage].resumed = true;
    j->facts[stage] = facts;
    return true;
}
