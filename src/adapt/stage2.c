/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: stage 2, minimal validation: every byte of the weights where they fit, one layer of each kind against
 * the reference kernels, each fusion against what it stands for, the same bits in every batch, and the
 * numbers against a reference where one was given. Refuses: calling agreement with ourselves passed.
 */
#include "adapt/job.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "preflight/preflight.h"
#include "verify/verify.h"

struct minimal {
    struct verify_piece *pieces;
    size_t n, n_ran, n_zero; /* n_ran: with weights that prove something */
    double worst;
};
struct notes {
    char weights[400], numerics[600], bits[300];
};

/* p is zeroed where nothing was read. */
static void write_payload(struct json_writer *w, const char *evidence, const struct preflight_payload *p)
{
    json_key(w, "payload");
    json_begin_object(w);
    json_put_string(w, "evidence", evidence);
    if (p->shards) {
        json_put_u64(w, "bytes", p->bytes_read);
        json_put_u64(w, "tensors", p->tensors);
        json_put_u64(w, "not_finite", p->n_not_finite);
        json_put_u64(w, "all_zero", p->n_all_zero);
        json_put_u64(w, "hashes_compared", p->n_compared);
        json_put_f64(w, "seconds", p->seconds);
    }
    json_end_object(w);
}

/* The engine of `day0 check --payload`, without its cache: this report proves what was read now. */
static int run_payload(struct job *j, struct json_writer *w, struct notes *notes, struct err *e)
{
    struct preflight_payload p = {0};
    char bytes[40], evidence[400];
    int rc = ERR_OK;
    if (j->ckpt->total_bytes <= j->memory) {
        struct preflight_payload_options o = {.threads = j->threads};
        job_progress(j, STAGE_MINIMAL, "reading every byte of the weights");
        rc = preflight_payload(j->ckpt, &o, j->f, &p, e);
        int n = snprintf(evidence, sizeof(evidence),
                         "files of %s read whole: of %" PRIu64 " tensors %" PRIu64
                         " hold NaN or infinity, %" PRIu64 " are all zero; ",
                         format_bytes(p.bytes_read, bytes, sizeof(bytes)), p.tensors, p.n_not_finite,
                         p.n_all_zero);
        if (p.n_compared)
            snprintf(evidence + n, sizeof(evidence) - (size_t)n,
                     "%" PRIu64 " of %" PRIu64 " known hashes differ", p.n_mismatch, p.n_compared);
        else
            snprintf(evidence + n, sizeof(evidence) - (size_t)n, "no hashes to compare with");
    } else {
        snprintf(evidence, sizeof(evidence),
                 "payload not read whole: %s of weights; day0 check --payload reads them",
                 format_bytes(j->ckpt->total_bytes, bytes, sizeof(bytes)));
    }
    if (rc == ERR_OK) {
        write_payload(w, evidence, &p);
        snprintf(notes->weights, sizeof(notes->weights), "%s", evidence);
    }
    preflight_payload_release(&p);
    return rc;
}

static int run_minimal(struct job *j, struct json_writer *w, struct minimal *m, struct err *e)
{
    memset(m, 0, sizeof(*m));
    job_progress(j, STAGE_MINIMAL,
                 "embedding, one layer of each kind and head against the reference kernels");
    int rc =
        verify_minimal(&j->dev, j->spec, j->ckpt, j->memory, j->arena, &m->pieces, &m->n, j->f, j->d0, e);
    json_key(w, "pieces");
    json_begin_array(w);
    for (size_t i = 0; rc == ERR_OK && i < m->n; i++) {
        const struct verify_piece *p = &m->pieces[i];
        m->n_ran += p->ran && !p->all_zero;
        m->n_zero += p->ran && p->all_zero;
        if (p->ran)
            m->worst = fmax(m->worst, p->relative_l2);
        json_begin_object(w);
        json_put_string(w, "name", p->name);
        json_put_u64(w, "weight_bytes", p->weight_bytes);
        json_put_bool(w, "ran", p->ran);
        json_put_f64(w, "relative_l2", p->ran ? p->relative_l2 : NAN);
        json_put_f64(w, "max_abs", p->ran ? p->max_abs : NAN);
        json_put_bool(w, "all_zero", p->all_zero);
        json_put_f64(w, "seconds", p->seconds);
        json_put_string(w, "why", p->why);
        json_end_object(w);
    }
    json_end_array(w);
    return rc;
}

static void write_fusion(struct json_writer *w, const struct fusion_info *info, const struct verify_fusion *v)
{
    json_begin_object(w);
    json_put_string(w, "name", info->name);
    json_put_string(w, "meaning", info->meaning);
    json_put_u64(w, "nodes", v->nodes);
    json_put_string(w, "exactness", fusion_exactness_name(info->exactness));
    json_put_f64(w, "limit", info->limit);
    json_put_u64(w, "pieces", v->pieces);
    json_put_f64(w, "measured", v->pieces ? v->measured : NAN);
    json_put_bool(w, "accepted", v->accepted);
    json_put_bool(w, "on", v->on);
    json_put_string(w, "reason", v->reason[0] ? v->reason : NULL);
    json_end_object(w);
}

/* *on: what the service is to run with. */
static int run_fusions(struct job *j, struct json_writer *w, uint32_t *on, struct err *e)
{
    struct verify_fusion v[FUSION_N];
    uint32_t wanted = 0;
    *on = 0;
    job_progress(j, STAGE_MINIMAL, "each fusion against the graph as described");
    int rc = fusions_parse(j->o->fuse, &wanted, e);
    if (!rc)
        rc = verify_fusions(&j->dev, j->spec, j->ckpt, j->memory, wanted, v, j->f, j->d0, e);
    if (rc)
        return rc;
    json_key(w, "fusions");
    json_begin_array(w);
    for (unsigned i = 0; i < FUSION_N; i++) {
        write_fusion(w, fusion_info((enum fusion)i), &v[i]);
        *on |= v[i].on ? FUSION_BIT(i) : 0;
    }
    json_end_array(w);
    return ERR_OK;
}

static int run_bits(struct job *j, struct json_writer *w, uint32_t fusions, struct notes *notes,
                    struct err *e)
{
    static const char text[] = "The same request must give the same bits, alone or in company.";
    struct verify_bits_result r = {0};
    struct ids ids = {0};
    job_progress(j, STAGE_MINIMAL, "the same request alone, in a batch, in chunks");
    int rc = prompt_text(j->front, text, sizeof(text) - 1, &ids, e);
    if (!rc && ids.n > j->context / 2)
        ids.n = j->context / 2;
    if (!rc && ids.n)
        rc = verify_bits(&j->dev, j->spec, j->ckpt, ids.data, ids.n, fusions, &r, j->f, j->d0, e);
    ids_release(&ids);
    if (rc)
        return rc;
    if (r.ran)
        snprintf(notes->bits, sizeof(notes->bits),
                 "%u of %u cases (alone, in a batch, in chunks) gave equal bits%s%s", r.equal, r.cases,
                 r.first_difference[0] ? "; first difference: " : "", r.first_difference);
    else
        snprintf(notes->bits, sizeof(notes->bits), "not run%s%s", r.first_difference[0] ? ": " : "",
                 r.first_difference);
    json_key(w, "bits");
    json_begin_object(w);
    json_put_bool(w, "ran", r.ran);
    json_put_u64(w, "cases", r.cases);
    json_put_u64(w, "equal", r.equal);
    json_put_string(w, "evidence", notes->bits);
    json_end_object(w);
    return ERR_OK;
}

/* A fact for stage 4, which judges it together with what the model writes. */
static int run_score(struct job *j, struct json_writer *w, struct err *e)
{
    struct score_result s;
    job_progress(j, STAGE_MINIMAL, "how likely the model finds a plain text");
    int rc = score_text(j, &s, e);
    if (rc)
        return rc;
    json_key(w, "plain_text");
    json_begin_object(w);
    json_put_bool(w, "ran", s.ran);
    json_put_u64(w, "tokens", s.tokens);
    json_put_f64(w, "mean_logprob", s.ran ? s.mean : NAN);
    json_put_f64(w, "uniform_logprob", s.uniform);
    json_end_object(w);
    return ERR_OK;
}

static void write_reference(struct json_writer *w, const struct reference *r,
                            const struct verify_reference_result *v)
{
    json_begin_object(w);
    json_put_string(w, "producer", r->producer);
    json_put_string(w, "path", r->path);
    json_put_string(w, "sha256", r->sha256);
    json_put_u64(w, "positions", v->positions);
    json_put_f64(w, "max_abs_logit", v->max_abs_logit);
    json_put_f64(w, "limit", v->limit);
    json_put_u64(w, "worst_position", v->worst_position);
    json_put_f64(w, "relative_l2", v->relative_l2);
    json_put_f64(w, "max_kl", v->max_kl);
    json_put_u64(w, "top1_agree", v->top1_agree);
    json_put_u64(w, "greedy_tokens", v->greedy_tokens);
    json_put_u64(w, "greedy_equal", v->greedy_equal);
    json_put_string(w, "first_bad_probe", v->first_bad_probe);
    json_key(w, "abs_by_position");
    json_begin_array(w);
    for (size_t i = 0; v->abs_by_position && i < v->positions && i < 65536; i++)
        json_write_f64(w, v->abs_by_position[i]);
    json_end_array(w);
    json_end_object(w);
}

static int run_reference(struct job *j, struct json_writer *w, struct notes *notes, bool *passed,
                         struct err *e)
{
    struct reference *r = NULL;
    struct verify_reference_result v = {0};
    *passed = false;
    job_progress(j, STAGE_MINIMAL, "numbers against the reference");
    size_t before = j->f->n_by_severity[SEVERITY_ERROR];
    int rc = reference_open(&r, j->o->reference, e);
    if (!rc)
        rc = verify_reference(&j->dev, j->spec, j->ckpt, r, 0, j->arena, &v, j->f, j->d0, e);
    json_key(w, "reference");
    if (!rc && v.checked) {
        *passed = j->f->n_by_severity[SEVERITY_ERROR] == before;
        snprintf(notes->numerics, sizeof(notes->numerics),
                 "largest |difference| of logits %.3g (limit %.3g) over %zu positions against %s; %u of %zu "
                 "best tokens and %zu of %zu greedy tokens equal",
                 v.max_abs_logit, v.limit, v.positions, r->producer, v.top1_agree, v.positions,
                 v.greedy_equal, v.greedy_tokens);
        write_reference(w, r, &v);
    } else {
        json_write_null(w);
    }
    reference_close(r);
    return rc;
}

static void set_weights_row(struct job *j, const struct notes *notes)
{
    const struct row *weights = &j->out->rows[ROW_WEIGHTS];
    if (job_errors(j, ROW_WEIGHTS))
        job_row(j, ROW_WEIGHTS, ROW_FAILED, "%s", notes->weights);
    else if (weights->state == ROW_PASSED)
        job_row(j, ROW_WEIGHTS, ROW_PASSED, "%s; %s", weights->evidence, notes->weights);
}

static void set_rows(struct job *j, const struct minimal *m, const struct notes *notes, bool referenced,
                     bool reference_passed)
{
    set_weights_row(j, notes);
    if (job_errors(j, ROW_NUMERICS))
        job_row(j, ROW_NUMERICS, ROW_FAILED, "%s",
                notes->numerics[0] ? notes->numerics
                                   : "this device differs from the reference kernels: see the findings");
    else if (referenced && reference_passed)
        job_row(j, ROW_NUMERICS, ROW_PASSED, "%s; %s", notes->numerics, notes->bits);
    else if (m->n_ran && !referenced)
        job_row(j, ROW_NUMERICS, ROW_SELF_CONSISTENT,
                "%zu of %zu pieces agree with day0's own reference kernels within %.2g; %s; no reference was "
                "given "
                "(--reference FILE)",
                m->n_ran, m->n, m->worst, notes->bits[0] ? notes->bits : "the whole model was not run");
    else if (!m->n_ran)
        job_row(j, ROW_NUMERICS, ROW_NOT_CHECKED, "not checked: no piece of the model gave numbers%s",
                m->n_zero ? " (all weights are zero: proves nothing)" : "");
}

static void summarise(struct job *j, const struct minimal *m, const struct notes *notes, bool referenced,
                      bool passed, bool whole)
{
    if (job_errors(j, ROW_NUMERICS) || job_errors(j, ROW_WEIGHTS))
        stage_say(j, STAGE_MINIMAL, STAGE_FAILED, "%s",
                  notes->numerics[0] ? notes->numerics : "see the findings");
    else if (!whole)
        stage_say(j, STAGE_MINIMAL, STAGE_PARTIAL,
                  "%zu of %zu pieces streamed; the whole model was not run: %s", m->n_ran, m->n,
                  job_too_large(j));
    else if (referenced && passed)
        stage_say(j, STAGE_MINIMAL, STAGE_PASSED, "%s", notes->numerics);
    else
        stage_say(
            j, STAGE_MINIMAL, STAGE_PARTIAL,
            "self-consistent: %zu of %zu pieces agree with the reference kernels; no reference was given",
            m->n_ran, m->n);
}

/* What was read of the weights stands; nothing is computed with them. */
static void stop_at(struct job *j, const struct finding *f, const struct notes *notes)
{
    set_weights_row(j, notes);
    job_row(j, ROW_NUMERICS, ROW_NOT_CHECKED, "not checked: %s %s comes first", finding_code(f->id),
            finding_name(f->id));
    stage_say(j, STAGE_MINIMAL, STAGE_FAILED, "%s; nothing else was run: %s comes first", notes->weights,
              finding_code(f->id));
}

static void without_operators(struct job *j, const struct minimal *m, const struct notes *notes)
{
    const struct finding *f = job_finding(j, FINDING_P001);
    struct minimal none = {0};
    set_rows(j, &none, notes, false, false);
    if (job_errors(j, ROW_NUMERICS) == 0)
        job_row(j, ROW_NUMERICS, ROW_NOT_CHECKED,
                "not checked: %s %s comes first: %s; %zu of %zu pieces of the model ran", finding_code(f->id),
                finding_name(f->id), f->subject, m->n_ran, m->n);
    stage_say(j, STAGE_MINIMAL, STAGE_PARTIAL, "%zu of %zu pieces ran; %s comes first: %s", m->n_ran, m->n,
              finding_code(f->id), f->subject);
}

static int run_all(struct job *j, struct json_writer *w, struct err *e)
{
    struct minimal m;
    struct notes notes = {0};
    bool passed = false, referenced = j->o->reference != NULL, whole = j->planned && j->plan.fits && j->front;
    int rc = run_payload(j, w, &notes, e);
    if (rc)
        return rc;
    const struct finding *obstacle = job_obstacle(j);
    obstacle = obstacle ? obstacle : job_not_computed(j);
    if (obstacle) { /* everything that computes with such weights would only repeat it */
        stop_at(j, obstacle, &notes);
        return ERR_OK;
    }
    rc = run_minimal(j, w, &m, e);
    if (!rc &&
        job_finding(j, FINDING_P001)) { /* the whole model cannot run here, and a part of it is no proof */
        without_operators(j, &m, &notes);
        return ERR_OK;
    }
    uint32_t fusions = 0;
    if (!rc)
        rc = run_fusions(j, w, &fusions, e);
    if (!rc && whole)
        rc = run_bits(j, w, fusions, &notes, e);
    if (!rc && whole)
        rc = run_score(j, w, e);
    if (!rc)
        rc = drift_run(j, w, e);
    if (!rc && whole && referenced)
        rc = run_reference(j, w, &notes, &passed, e);
    if (rc)
        return rc;
    set_rows(j, &m, &notes, referenced, passed);
    if (referenced && !whole && !job_errors(j, ROW_NUMERICS))
        job_row(j, ROW_NUMERICS, ROW_NOT_CHECKED, "not checked: %s", job_too_large(j));
    summarise(j, &m, &notes, referenced, passed, whole);
    return ERR_OK;
}

int stage2_run(struct job *j, struct json_writer *w, struct err *e)
{
    struct err why = {0};
    const struct finding *obstacle = job_obstacle(j);
    char text[700];
    if (!j->spec || !j->dev_open || obstacle) {
        const char *code = obstacle ? finding_code(obstacle->id) : "P003";
        stage_say(j, STAGE_MINIMAL, STAGE_NOT_RUN, "not run: %s comes first", code);
        job_row(j, ROW_NUMERICS, ROW_NOT_CHECKED, "not checked: stage 2 did not run, %s comes first", code);
        return ERR_OK;
    }
    int rc = run_all(j, w, &why);
    (void)e;
    if (rc) {
        stage_could_not(j, STAGE_MINIMAL, &why);
        if (!job_errors(j, ROW_NUMERICS))
            job_row(j, ROW_NUMERICS, ROW_NOT_CHECKED, "not checked: %s",
                    err_format(&why, text, sizeof(text)));
    }
    return ERR_OK;
}
