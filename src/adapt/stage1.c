/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: stage 1, environment: machine, device, model as its headers describe it, operators of the model on
 * the device, weight integrity as far as headers show it. Refuses: reading weights.
 */
#include "adapt/job.h"

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
        finding_add_remedy(j->f, f->id, f->subject, f->remedy, "%s", f->evidence);
    }
    for (unsigned i = 0; i < FINDING_N && j->opening.dropped; i++) {
        j->f->dropped_by_id[i] += j->opening.dropped_by_id[i];
        j->f->n_by_severity[finding_severity((enum finding_id)i)] += j->opening.dropped_by_id[i];
    }
    j->f->dropped += j->opening.dropped;
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

int stage1_run(struct job *j, struct json_writer *w, struct err *e)
{
    size_t operators, missing;
    struct err why = {0};
    job_progress(j, STAGE_ENVIRONMENT, "machine, libraries, model headers, operators");
    move_findings(j);
    json_key(w, "host");
    host_write_json(j->host, w);
    write_device(j, w);
    write_model(j, w);
    int rc = write_operators(j, w, &operators, &missing, &why);
    if (rc == ERR_NOMEM) {
        *e = why;
        return rc;
    }
    judge_weights(j);
    const struct finding *obstacle = job_obstacle(j);
    obstacle = obstacle ? obstacle : job_not_computed(j);
    if (obstacle)
        stage_say(j, STAGE_ENVIRONMENT, STAGE_FAILED, "%s %s: %s: %s", finding_code(obstacle->id),
                  finding_name(obstacle->id), obstacle->subject, obstacle->evidence);
    else if (rc)
        stage_could_not(j, STAGE_ENVIRONMENT, &why);
    else if (missing)
        stage_say(j, STAGE_ENVIRONMENT, STAGE_FAILED,
                  "%zu of %zu operators of the model do not run on this device", missing, operators);
    else if (!j->dev_open)
        stage_say(j, STAGE_ENVIRONMENT, STAGE_FAILED, "the device could not be opened: %s", j->dev_why);
    else
        stage_say(j, STAGE_ENVIRONMENT, STAGE_PASSED,
                  "%zu tensors in %zu shard%s; all %zu operators of the model run here", j->ckpt->n_tensors,
                  j->ckpt->n_shards, j->ckpt->n_shards == 1 ? "" : "s", operators);
    return ERR_OK;
}
