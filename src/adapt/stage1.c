/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: stage 1, environment: machine, version rules, device, model as its headers describe it, operators of
 * the model on the device, weight integrity as far as headers show it. Refuses: reading weights, and taking a
 * rule that nobody can judge for one that holds.
 */
#include "adapt/job.h"

#include <stdio.h>
#include <string.h>

#include "tensor/tensor.h"
#include "verify/verify.h"

static void write_device(struct job *j, struct json_writer *w)
{
    struct d0_device_info info = {.size = sizeof(info)};
    struct err e = {0};
    json_key(w, "device");
    if (!j->dev_open || dev_info(&j->dev, &info, &e) != ERR_OK) {
        json_write_null(w);
        return;
    }
    json_begin_object(w);
    json_put_string(w, "name", info.name);
    json_put_string(w, "description", info.description);
    json_put_string(w, "variant", info.variant);
    json_put_u64(w, "memory_total", info.memory_total);
    json_put_bool(w, "exact", info.exact != 0);
    json_put_bool(w, "computes", info.computes != 0);
    json_end_object(w);
}

static void write_spec(const struct spec *s, struct json_writer *w)
{
    json_put_string(w, "architecture", s->architecture);
    json_put_string(w, "model_type", s->model_type);
    json_put_u64(w, "parameters", s->parameters);
    json_put_i64(w, "layers", s->n_layers);
    json_put_i64(w, "hidden", s->hidden);
    json_put_i64(w, "heads", s->n_heads);
    json_put_i64(w, "kv_heads", s->n_kv_heads);
    json_put_i64(w, "vocab", s->vocab_size);
    json_put_i64(w, "context_limit", s->max_positions);
    json_put_u64(w, "kv_bytes_per_token", s->kv_bytes_per_token);
    json_put_string(w, "kv_dtype", dtype_name(s->kv_dtype));
    json_put_string(w, "activations", spec_activations_name(s->activations));
    json_put_bool(w, "tied_embeddings", s->tied_embeddings);
    json_key(w, "arch_file");
    json_begin_object(w);
    json_put_string(w, "name", s->arch_name);
    json_put_string(w, "origin", arch_origin_name(s->origin));
    json_put_string(w, "sha256", s->arch_sha256);
    json_end_object(w);
    json_key(w, "unread_keys");
    json_begin_array(w);
    for (size_t i = 0; i < s->n_unread; i++)
        json_write_string(w, s->unread_keys[i]);
    json_end_array(w);
}

static void write_model(struct job *j, struct json_writer *w)
{
    json_key(w, "model");
    json_begin_object(w);
    json_put_u64(w, "tensors", j->ckpt->n_tensors);
    json_put_u64(w, "shards", j->ckpt->n_shards);
    json_put_u64(w, "weight_bytes", j->ckpt->total_bytes);
    if (j->spec)
        write_spec(j->spec, w);
    json_end_object(w);
}

static int write_operators(struct job *j, struct json_writer *w, size_t *n, size_t *missing, struct err *e)
{
    struct verify_op_row *rows = NULL;
    *n = *missing = 0;
    int rc =
        j->spec && j->dev_open ? verify_matrix(&j->dev, j->spec->graph, j->arena, &rows, n, j->f, e) : ERR_OK;
    json_key(w, "operators");
    json_begin_array(w);
    for (size_t i = 0; rc == ERR_OK && i < *n; i++) {
        json_begin_object(w);
        json_put_string(w, "op", rows[i].op);
        json_put_string(w, "types", rows[i].types);
        json_put_u64(w, "count", rows[i].count);
        json_put_bool(w, "supported", rows[i].supported);
        json_put_string(w, "reason", rows[i].reason);
        json_end_object(w);
        *missing += !rows[i].supported;
    }
    json_end_array(w);
    return rc;
}

static void move_findings(struct job *j)
{
    for (size_t i = 0; i < j->opening.n; i++) {
        const struct finding *f = &j->opening.items[i];
        finding_add_severity(j->f, f->id, f->severity, f->subject, f->remedy, "%s", f->evidence);
    }
    for (unsigned i = 0; i < FINDING_N && j->opening.dropped; i++) {
        j->f->dropped_by_id[i] += j->opening.dropped_by_id[i];
        j->f->n_by_severity[finding_severity((enum finding_id)i)] += j->opening.dropped_by_id[i];
    }
    j->f->dropped += j->opening.dropped;
}

/* ---- version rules */

struct rule_count {
    size_t by_state[HOST_RULE_UNKNOWN + 1];
    size_t violated_errors, unknown_errors; /* of the rules with severity error */
    char violated[300], unknown[300];       /* "libevent-security (libevent 2.1.11)": the first ones */
};

/* Cuts between names, never in one, and then says that there are more. */
static void add_name(char *to, size_t bytes, const struct host_rule *r, const char *seen)
{
    static const char more[] = ", ...";
    char name[200];
    size_t n = strlen(to);
    if (n >= sizeof(more) && strcmp(to + n - (sizeof(more) - 1), more) == 0)
        return;
    snprintf(name, sizeof(name), "%s%s%s (%s)", n ? ", " : "",
             r->severity == SEVERITY_WARNING ? "warning " : "", r->id, seen);
    if (n + strlen(name) + sizeof(more) <= bytes)
        memcpy(to + n, name, strlen(name) + 1);
    else
        memcpy(to + n, more, sizeof(more));
}

static const struct host *judged_host(const struct job *j)
{
    return j->captured ? j->captured : j->host;
}

static void judge_rules(struct job *j, struct json_writer *w, struct rule_count *out)
{
    const struct host *h = judged_host(j);
    char seen[300];
    memset(out, 0, sizeof(*out));
    json_put_string(w, "machine", j->o->root);
    json_key(w, "rules");
    host_rules_write_json(&j->rules, h, w);
    host_rules_check(&j->rules, h, j->f);
    for (size_t i = 0; i < j->rules.n; i++) {
        const struct host_rule *r = &j->rules.items[i];
        enum host_rule_state s = host_rule_judge(r, h, seen, sizeof(seen));
        out->by_state[s]++;
        if (s == HOST_RULE_VIOLATED)
            add_name(out->violated, sizeof(out->violated), r, seen);
        else if (s == HOST_RULE_UNKNOWN)
            add_name(out->unknown, sizeof(out->unknown), r, seen);
        out->violated_errors += s == HOST_RULE_VIOLATED && r->severity == SEVERITY_ERROR;
        out->unknown_errors += s == HOST_RULE_UNKNOWN && r->severity == SEVERITY_ERROR;
    }
    j->rules_open = out->unknown_errors > 0;
}

static void say_rules(const struct job *j, const struct rule_count *c, char *out, size_t bytes)
{
    snprintf(out, bytes, "%zu of %zu version rules hold%s%s, %zu %s about what is not there%s%s%s%s",
             c->by_state[HOST_RULE_HOLDS], j->rules.n, j->o->root ? " on " : "", j->o->root ? j->o->root : "",
             c->by_state[HOST_RULE_NOT_APPLICABLE], c->by_state[HOST_RULE_NOT_APPLICABLE] == 1 ? "is" : "are",
             c->violated[0] ? "; violated: " : "", c->violated, c->unknown[0] ? "; not known: " : "",
             c->unknown);
}

/* ---- rows */

struct matrix {
    size_t rows, missing;
    int rc; /* of making it */
};

/* An error finding fails the row in any case (rows.c); a rule of severity error that nobody can judge, or a
 * matrix that was not made, leaves it open. A warning fails no row: its evidence names it. */
static void judge_environment(struct job *j, const struct matrix *m, const struct rule_count *c)
{
    char rules[900];
    say_rules(j, c, rules, sizeof(rules));
    if (!j->dev_open)
        job_row(j, ROW_ENVIRONMENT, ROW_FAILED, "the device could not be opened: %s; %s", j->dev_why, rules);
    else if (m->missing)
        job_row(j, ROW_ENVIRONMENT, ROW_FAILED,
                "%zu of %zu operators of the model do not run on this device; %s", m->missing, m->rows,
                rules);
    else if (c->violated_errors)
        job_row(j, ROW_ENVIRONMENT, ROW_FAILED, "%s", rules);
    else if (!j->spec || m->rc)
        job_row(j, ROW_ENVIRONMENT, ROW_NOT_CHECKED, "not checked: %s; %s",
                j->spec ? "the operators of the model could not be listed"
                        : "there is no model description to take operators from",
                rules);
    else if (c->unknown_errors)
        job_row(j, ROW_ENVIRONMENT, ROW_NOT_CHECKED,
                "not checked to the end: %s; all %zu operators of the model run here", rules, m->rows);
    else
        job_row(j, ROW_ENVIRONMENT, ROW_PASSED, "all %zu operators of the model run here; %s", m->rows,
                rules);
}

static void judge_weights(struct job *j)
{
    char bytes[40];
    size_t errors = job_errors(j, ROW_WEIGHTS);
    if (errors == 0 && j->spec && j->ckpt->n_tensors)
        job_row(j, ROW_WEIGHTS, ROW_PASSED,
                "%zu tensors in %zu shard%s, every name, shape and byte range as described, %s in all",
                j->ckpt->n_tensors, j->ckpt->n_shards, j->ckpt->n_shards == 1 ? "" : "s",
                format_bytes(j->ckpt->total_bytes, bytes, sizeof(bytes)));
    else if (errors == 0)
        job_row(j, ROW_WEIGHTS, ROW_NOT_CHECKED,
                "not checked: there is no model description to check them against");
}

static void summarise(struct job *j, const struct matrix *m, const struct rule_count *c,
                      const struct err *why)
{
    const struct finding *obstacle = job_obstacle(j);
    obstacle = obstacle ? obstacle : job_not_computed(j);
    if (obstacle)
        stage_say(j, STAGE_ENVIRONMENT, STAGE_FAILED, "%s %s: %s: %s", finding_code(obstacle->id),
                  finding_name(obstacle->id), obstacle->subject, obstacle->evidence);
    else if (m->rc)
        stage_could_not(j, STAGE_ENVIRONMENT, why);
    else if (m->missing)
        stage_say(j, STAGE_ENVIRONMENT, STAGE_FAILED,
                  "%zu of %zu operators of the model do not run on this device", m->missing, m->rows);
    else if (!j->dev_open)
        stage_say(j, STAGE_ENVIRONMENT, STAGE_FAILED, "the device could not be opened: %s", j->dev_why);
    else if (c->violated_errors)
        stage_say(j, STAGE_ENVIRONMENT, STAGE_FAILED, "version rules are violated: %s", c->violated);
    else
        stage_say(j, STAGE_ENVIRONMENT, c->unknown_errors ? STAGE_PARTIAL : STAGE_PASSED,
                  "%zu tensors in %zu shard%s; all %zu operators of the model run here%s%s%s%s",
                  j->ckpt->n_tensors, j->ckpt->n_shards, j->ckpt->n_shards == 1 ? "" : "s", m->rows,
                  c->violated[0] ? "; violated: " : "", c->violated,
                  c->unknown[0] ? "; rules not known: " : "", c->unknown);
}

int stage1_run(struct job *j, struct json_writer *w, struct err *e)
{
    struct matrix m = {0};
    struct rule_count rules;
    struct err why = {0};
    job_progress(j, STAGE_ENVIRONMENT, "machine, libraries, model headers, operators");
    move_findings(j);
    json_key(w, "host");
    host_write_json(j->host, w);
    judge_rules(j, w, &rules);
    write_device(j, w);
    write_model(j, w);
    m.rc = write_operators(j, w, &m.rows, &m.missing, &why);
    if (m.rc == ERR_NOMEM) {
        *e = why;
        return m.rc;
    }
    judge_weights(j);
    judge_environment(j, &m, &rules);
    summarise(j, &m, &rules, &why);
    return ERR_OK;
}
