/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: report.json (docs/report.md documents every key) and saving the two files.
 * Refuses: judging; the verdict was made before.
 */
#include "adapt/html.h"

#include <stdio.h>
#include <time.h>

#include "base/file.h"

static void write_date(struct json_writer *w, int64_t unix_ns)
{
    time_t t = (time_t)(unix_ns / 1000000000);
    struct tm tm;
    char text[64] = "";
    if (gmtime_r(&t, &tm))
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
    json_put_string(w, "date", text);
}

static void write_rows(const struct report *r, struct json_writer *w)
{
    json_key(w, "checklist");
    json_begin_array(w);
    for (size_t i = 0; i < ROW_N; i++) {
        json_begin_object(w);
        json_put_string(w, "row", row_key((enum row_id)i));
        json_put_string(w, "title", row_title((enum row_id)i));
        json_put_string(w, "state", row_state_name(r->rows[i].state));
        json_put_string(w, "evidence", r->rows[i].evidence);
        json_put_string(w, "accepted", r->rows[i].accept_reason);
        json_end_object(w);
    }
    json_end_array(w);
}

static void write_stages(const struct report *r, struct json_writer *w)
{
    json_key(w, "stages");
    json_begin_array(w);
    for (size_t i = 0; i < REPORT_STAGES; i++) {
        const struct stage *s = &r->stages[i];
        json_begin_object(w);
        json_put_u64(w, "stage", i + 1);
        json_put_string(w, "title", s->title);
        json_put_string(w, "state", stage_state_name(s->state));
        json_put_f64(w, "seconds", s->seconds);
        json_put_bool(w, "resumed", s->resumed);
        json_put_string(w, "summary", s->summary);
        json_key(w, "facts");
        if (r->facts[i])
            json_write_tree(w, r->facts[i]);
        else
            json_write_null(w);
        json_end_object(w);
    }
    json_end_array(w);
}

static void write_identity(const struct report *r, struct json_writer *w)
{
    json_key(w, "identity");
    json_begin_object(w);
    json_put_string(w, "model", r->title);
    json_put_string(w, "directory", r->model_dir);
    json_put_string(w, "manifest_sha256", r->sha_manifest);
    json_put_string(w, "arch_file", r->arch_name);
    json_put_string(w, "arch_origin", r->arch_origin);
    json_put_string(w, "arch_sha256", r->sha_arch);
    json_put_string(w, "binary_sha256", r->sha_binary);
    json_put_string(w, "service_url", r->service_url);
    json_put_string(w, "platform", r->platform);
    json_end_object(w);
}

void report_write_json(const struct report *r, struct strbuf *out)
{
    struct json_writer w;
    char why[256];
    json_writer_init(&w, out, true);
    json_begin_object(&w);
    json_put_string(&w, "generator", "day0");
    json_put_string(&w, "version", r->version);
    json_put_u64(&w, "schema_version", REPORT_SCHEMA_VERSION);
    write_date(&w, r->unix_ns);
    json_put_f64(&w, "seconds", r->seconds);
    json_put_string(&w, "verdict", verdict_name(r->verdict));
    json_put_bool(&w, "with_waivers", r->with_waivers);
    json_put_string(&w, "reason", report_reason(r, why, sizeof(why)));
    write_identity(r, &w);
    write_rows(r, &w);
    json_key(&w, "findings");
    findings_write_json(r->findings, &w);
    json_put_u64(&w, "findings_dropped", r->findings->dropped);
    write_stages(r, &w);
    json_put_string(&w, "definitions", r->definitions);
    json_end_object(&w);
    strbuf_putc(out, '\n');
}

static int save(const char *dir, const char *name, const struct strbuf *text, struct err *e)
{
    struct arena arena;
    int rc;
    if (strbuf_failed(text))
        return err_set(e, ERR_NOMEM, "%s: out of memory while writing the report", name);
    arena_init(&arena, NULL, MEM_REPORT);
    const char *path = path_join(&arena, dir, name);
    rc = path ? file_write_atomic(path, text->data, text->len, e)
              : err_set(e, ERR_NOMEM, "%s: out of memory", name);
    arena_release(&arena);
    return rc;
}

int report_save(const struct report *r, const char *dir, struct err *e)
{
    struct strbuf text = STRBUF_INIT;
    report_write_json(r, &text);
    int rc = save(dir, "report.json", &text, e);
    strbuf_clear(&text);
    if (!rc) {
        report_write_html(r, &text);
        rc = save(dir, "index.html", &text, e);
    }
    strbuf_release(&text);
    return rc;
}
