/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: errors by position in stage 2, bounded in what it costs. Refuses a model that is too large for that:
 * the report says so, and which command does it.
 */
#include "adapt/job.h"

#include <math.h>
#include <stdio.h>

#include "oracle/oracle.h"

/* Multiplications of one run: seconds on a common machine. */
#define DEVICE_WORK    2e10
#define REFERENCE_WORK 4e9
#define LEAST_TOKENS   16.0 /* fewer tell nothing about positions */

static bool too_costly(const struct job *j, char *why, size_t bytes)
{
    char a[40], b[40];
    if (j->ckpt->total_bytes > j->memory)
        snprintf(why, bytes, "not run: %s of weights would be read three times, there is memory for %s",
                 format_bytes(j->ckpt->total_bytes, a, sizeof(a)), format_bytes(j->memory, b, sizeof(b)));
    else if (LEAST_TOKENS * (double)j->spec->active_parameters > REFERENCE_WORK)
        snprintf(why, bytes, "not run: the reference kernels take too long for %s parameters of a token",
                 format_count(j->spec->active_parameters, a, sizeof(a)));
    else
        return false;
    return true;
}

static void write_result(struct json_writer *w, const struct drift_result *r, const char *evidence)
{
    json_put_bool(w, "ran", true);
    json_put_string(w, "evidence", evidence);
    json_put_u64(w, "tokens", r->tokens);
    json_put_u64(w, "reference_tokens", r->reference_tokens);
    json_put_u64(w, "original_length", r->original);
    json_put_u64(w, "max_positions", r->max_positions);
    json_put_bool(w, "beyond", r->beyond);
    json_put_bool(w, "decode_identical", r->identical);
    json_put_u64(w, "decode_positions", r->decoded);
    json_put_u64(w, "decode_different", r->different);
    json_put_f64(w, "limit", r->limit);
    json_put_f64(w, "hidden_growth", r->hidden_growth);
    json_put_f64(w, "logits_growth", r->logits_growth);
    json_put_string(w, "recorded_producer", r->recorded_producer);
    json_key(w, "buckets");
    json_begin_array(w);
    for (size_t i = 0; i < r->n_buckets; i++) {
        const struct drift_bucket *b = &r->bucket[i];
        json_begin_object(w);
        json_put_u64(w, "first", b->first);
        json_put_u64(w, "last", b->last);
        json_put_f64(w, "hidden", b->hidden);
        json_put_f64(w, "logits", b->logits);
        json_put_f64(w, "worst", fmax(b->hidden_worst, b->logits_worst));
        json_put_f64(w, "decode_worst", b->decode_worst);
        json_put_f64(w, "recorded", b->recorded);
        json_end_object(w);
    }
    json_end_array(w);
}

static int run(struct job *j, struct drift_result *r, struct err *e)
{
    const struct oracle_model m = {
        .dev = &j->dev, .spec = j->spec, .ckpt = j->ckpt, .d0 = j->d0, .memory = j->memory};
    struct drift_options o = {
        .work = DEVICE_WORK, .reference_work = REFERENCE_WORK, .recorded = j->o->reference};
    struct dev ref;
    int32_t *ids = NULL;
    int rc = ERR_OK;
    if (o.recorded && (rc = oracle_read_ids(o.recorded, j->arena, &ids, &o.n_ids, e)) != 0)
        return rc;
    o.ids = ids;
    rc = dev_open(&ref, &(struct dev_options){.name = "cpu", .isa = "ref", .n_threads = j->threads}, e);
    if (rc) {
        err_ctx(e, "opening the reference device");
        return rc;
    }
    o.reference = &ref;
    rc = oracle_drift(&m, &o, j->arena, r, j->f, e);
    dev_close(&ref);
    return rc;
}

int drift_run(struct job *j, struct json_writer *w, struct err *e)
{
    struct drift_result r = {.n_buckets = 0};
    struct err inner = {0};
    char why[300] = "", text[400];
    job_progress(j, STAGE_MINIMAL, "whether the error grows with the position");
    bool ran = !too_costly(j, why, sizeof(why));
    int rc = ran ? run(j, &r, &inner) : ERR_OK;
    if (rc == ERR_UNSUPPORTED || rc == ERR_NOMEM || rc == ERR_INVALID || rc == ERR_MISMATCH ||
        rc == ERR_FORMAT) {
        snprintf(why, sizeof(why), "not run: %.250s", inner.message); /* others judge the reference itself */
        ran = false;
        rc = ERR_OK;
    }
    if (rc) {
        if (e)
            *e = inner;
        return rc;
    }
    json_key(w, "drift");
    json_begin_object(w);
    if (ran) {
        snprintf(text, sizeof(text),
                 "%llu tokens of an original length of %llu%s; decode and prefill %s at %llu positions; "
                 "error grows "
                 "%.2f-fold with each doubling of the position",
                 (unsigned long long)r.tokens, (unsigned long long)r.original,
                 r.beyond ? "" : " (not reached: day0 compare --drift MODEL --tokens N)",
                 r.identical ? "identical" : "differ", (unsigned long long)r.decoded, r.logits_growth);
        write_result(w, &r, text);
    } else {
        snprintf(text, sizeof(text), "%s; day0 compare --drift MODEL --tokens N does it", why);
        json_put_bool(w, "ran", false);
        json_put_string(w, "evidence", text);
    }
    json_end_object(w);
    return ERR_OK;
}
