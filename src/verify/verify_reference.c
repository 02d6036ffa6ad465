/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the comparison of the whole model with a reference: logits at every position, probes, and greedy text
 * through real decode steps. Judges positions and rows one by one, so that one wrong row does not drown in a
 * thousand right ones.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verify/runner.h"

#define REF_CHUNK      64
#define REF_GREEDY_MAX 200
#define REF_LIMIT_F32  1e-4
#define REF_LIMIT_16BIT                                                                                      \
    0x1p-6 /* of the largest value: two roundings to 8 bits of mantissa and their growth over layers */

struct against {
    struct dev *d;
    const struct spec *s;
    struct ckpt *c;
    const struct reference *r;
    struct verify_reference_result *out;
    struct findings *f;
    struct d0 *d0;
    double largest; /* |logit| of the reference */
    double probe_limit;
    bool coarse; /* 16 bits somewhere but in the weights */
    double sum_diff2, sum_ref2;
    char not_finite[128];
    size_t not_finite_position;
    bool saw_not_finite;
    float *probe; /* scratch [probe_floats] */
    size_t probe_floats;
    struct runner run; /* one for all passes: weights are loaded once */
};

static bool weights_are_f32(const struct spec *s)
{
    for (uint32_t i = 0; i < s->graph->n_values; i++)
        if (s->graph->values[i].kind == D0_VALUE_WEIGHT && s->graph->values[i].dtype != D0_F32)
            return false;
    return true;
}

static void choose_limits(struct against *a, double max_abs_limit)
{
    const struct reference *r = a->r;
    const double rounded = spec_activation_limit(spec_activation_bits(a->s->graph));
    a->coarse = a->s->kv_dtype != D0_F32 || strcmp(r->precision, "float32") != 0 || rounded > 0;
    const double coarse = fmax(REF_LIMIT_16BIT, rounded);
    a->probe_limit = a->coarse ? coarse : REF_LIMIT_F32;
    for (size_t i = 0; r->logits && i < r->n_ids * r->vocab; i++)
        a->largest = fmax(a->largest, fabs((double)r->logits[i]));
    if (max_abs_limit > 0)
        a->out->limit = max_abs_limit;
    else if (a->coarse)
        a->out->limit = coarse * fmax(1, a->largest);
    else
        a->out->limit = REF_LIMIT_F32 * (weights_are_f32(a->s) ? 1 : fmax(1, a->largest));
}

/* Whether this reference can be of this model at all; says so if not. */
static bool fits_model(struct against *a)
{
    const struct reference *r = a->r;
    int64_t vocab = a->s->vocab_size;
    if (r->logits && (int64_t)r->vocab != vocab) {
        finding_add(a->f, FINDING_N006, r->path, "its logits are %zu wide, the model's %lld", r->vocab,
                    (long long)vocab);
        return false;
    }
    for (size_t i = 0; i < r->n_ids; i++)
        if (r->ids[i] >= vocab) {
            finding_add(a->f, FINDING_N006, r->path, "token %zu has id %d, the vocabulary has %lld", i,
                        r->ids[i], (long long)vocab);
            return false;
        }
    if (a->s->max_positions > 0 && r->n_ids > (size_t)a->s->max_positions) {
        finding_add(a->f, FINDING_N006, r->path, "%zu tokens are more than the %lld positions of the model",
                    r->n_ids, (long long)a->s->max_positions);
        return false;
    }
    /* a reference that was cut or shifted contradicts itself; near ties may go either way */
    size_t wrong = 0, checked = r->n_ids - r->n_prompt;
    for (size_t i = r->n_prompt; r->greedy && r->logits && i < r->n_ids; i++)
        wrong += argmax_f32(r->logits + (i - 1) * r->vocab, r->vocab) != (size_t)r->ids[i];
    if (wrong > 1 + checked / 20) {
        finding_add(a->f, FINDING_N006, r->path,
                    "it says greedy, but %zu of %zu of its tokens are not the largest of its own logits",
                    wrong, checked);
        return false;
    }
    return true;
}

/* ---- logits ---- */

static void compare_row(struct against *a, size_t position, const float *row)
{
    const size_t vocab = a->r->vocab;
    const float *want = a->r->logits + position * vocab;
    double worst = 0;
    for (size_t i = 0; i < vocab; i++) {
        if (!isfinite(row[i])) {
            if (!a->saw_not_finite)
                a->not_finite_position = position;
            a->saw_not_finite = true;
            a->out->abs_by_position[position] = INFINITY;
            return;
        }
        double diff = (double)row[i] - want[i];
        a->sum_diff2 += diff * diff;
        a->sum_ref2 += (double)want[i] * want[i];
        worst = fmax(worst, fabs(diff));
    }
    a->out->abs_by_position[position] = worst;
    if (worst > a->out->max_abs_logit) {
        a->out->max_abs_logit = worst;
        a->out->worst_position = position;
    }
    a->out->max_kl = fmax(a->out->max_kl, metrics_kl(row, want, vocab));
    a->out->top1_agree += argmax_f32(row, vocab) == argmax_f32(want, vocab);
}

/* ---- probes ---- */

static const struct reference_probe *find_probe(const struct reference *r, const char *name)
{
    for (size_t i = 0; i < r->n_probes; i++)
        if (strcmp(r->probes[i].name, name) == 0)
            return &r->probes[i];
    return NULL;
}

/* Largest relative L2 error of a row; infinite where ours is not finite. */
static double worst_row(const float *got, const float *want, size_t rows, size_t width)
{
    double worst = 0;
    for (size_t i = 0; i < rows; i++) {
        double diff = 0, norm = 0;
        for (size_t j = 0; j < width; j++) {
            double x = got[i * width + j], y = want[i * width + j];
            if (!isfinite(x))
                return INFINITY;
            diff += (x - y) * (x - y);
            norm += y * y;
        }
        worst = fmax(worst, norm > 0 ? sqrt(diff / norm) : sqrt(diff));
    }
    return worst;
}

/* In the order of the graph: the first bad one is where the error came in. A later chunk can only move that
 * forward. */
static int compare_probes(struct against *a, struct runner *run, size_t position, size_t *first_bad,
                          struct err *e)
{
    for (size_t i = 0; i < engine_probes(run->x) && i < *first_bad; i++) {
        const char *name = engine_probe_name(run->x, i);
        const struct reference_probe *p = find_probe(a->r, name);
        size_t rows, width;
        if (!p)
            continue;
        int rc = engine_probe_read(run->x, i, a->probe, a->probe_floats, &rows, &width, e);
        if (rc)
            return rc;
        if (position == 0)
            a->out->probes_checked++;
        if (width != p->width || position + rows > p->rows) {
            snprintf(a->out->first_bad_probe, sizeof a->out->first_bad_probe,
                     "%.100s: width %zu, reference %zu", name, width, p->width);
            *first_bad = i;
        } else if (worst_row(a->probe, p->data + position * width, rows, width) > a->probe_limit) {
            snprintf(a->out->first_bad_probe, sizeof a->out->first_bad_probe, "%.120s", name);
            *first_bad = i;
        }
    }
    return ERR_OK;
}

/* ---- one pass over all positions ---- */

static uint32_t chunk_tokens(const struct against *a)
{
    return runner_logit_rows((uint64_t)a->s->vocab_size, REF_CHUNK);
}

static int open_runner(struct against *a, bool probes, struct err *e)
{
    uint32_t chunk = chunk_tokens(a);
    struct runner_size size = {
        .tokens = chunk, .seqs = 1, .rows = chunk, .context = (uint32_t)a->r->n_ids, .probes = probes};
    return runner_open_model(&a->run, a->d, a->s, a->c, &size, a->d0, e);
}

static int forward(struct against *a, struct err *e)
{
    const struct reference *r = a->r;
    uint32_t chunk = chunk_tokens(a);
    size_t first_bad = SIZE_MAX;
    int rc = ERR_OK;
    for (size_t at = 0; rc == 0 && at < r->n_ids; at += chunk) {
        struct step_result *res;
        uint32_t n = r->n_ids - at < chunk ? (uint32_t)(r->n_ids - at) : chunk;
        struct runner_run one = {
            .tokens = r->ids + at, .n = n, .position = (uint32_t)at, .flags = STEP_ALL_LOGITS};
        rc = runner_step(&a->run, &one, 1, &res, e);
        for (uint32_t i = 0; rc == 0 && r->logits && i < n; i++)
            compare_row(a, at + i, step_result_logits(res) + (size_t)i * r->vocab);
        if (rc == 0)
            rc = compare_probes(a, &a->run, at, &first_bad, e);
    }
    return rc;
}

/* Runs up to the first position that is not finite again, with probes, to name where it began. */
static int find_not_finite(struct against *a, struct err *e)
{
    const struct reference *r = a->r;
    uint32_t chunk = chunk_tokens(a);
    runner_close(&a->run);
    int rc = open_runner(a, true, e);
    for (size_t at = 0; rc == 0 && at <= a->not_finite_position; at += chunk) {
        struct step_result *res;
        uint32_t n = r->n_ids - at < chunk ? (uint32_t)(r->n_ids - at) : chunk;
        struct runner_run one = {
            .tokens = r->ids + at, .n = n, .position = (uint32_t)at, .flags = STEP_ALL_LOGITS};
        rc = runner_step(&a->run, &one, 1, &res, e);
        const char *name = rc == 0 ? runner_first_not_finite(&a->run, a->probe, a->probe_floats) : NULL;
        if (name) {
            snprintf(a->not_finite, sizeof a->not_finite, "%.120s", name);
            break;
        }
    }
    return rc;
}

static void report_logits(struct against *a)
{
    const struct verify_reference_result *o = a->out;
    const char *producer = a->r->producer;
    if (a->saw_not_finite)
        finding_add(a->f, FINDING_N002, a->not_finite[0] ? a->not_finite : "logits",
                    "NaN or infinity in the logits, first at position %zu", a->not_finite_position);
    if (o->max_abs_logit > o->limit)
        finding_add(a->f, FINDING_N001, o->first_bad_probe[0] ? o->first_bad_probe : "logits",
                    "largest difference from %s is %.3g at position %zu (limit %.3g), relative L2 %.3g, KL "
                    "%.3g, best token agrees at %u of %zu",
                    producer, o->max_abs_logit, o->worst_position, o->limit, o->relative_l2, o->max_kl,
                    o->top1_agree, o->positions);
    else if (o->first_bad_probe[0])
        finding_add(a->f, FINDING_N001, o->first_bad_probe,
                    "first probe that differs from %s by more than %.3g (relative L2 of a row)", producer,
                    a->probe_limit);
}

static int check_logits(struct against *a, struct arena *arena, struct err *e)
{
    const struct reference *r = a->r;
    a->out->abs_by_position = arena_alloc_n(arena, r->n_ids, sizeof(double));
    a->probe_floats = runner_probe_floats(a->s->graph, chunk_tokens(a));
    a->probe = malloc((a->probe_floats ? a->probe_floats : 1) * sizeof *a->probe);
    int rc = a->out->abs_by_position && a->probe
                 ? ERR_OK
                 : err_set(e, ERR_NOMEM, "no memory to compare %zu positions", r->n_ids);
    if (rc == 0)
        rc = forward(a, e);
    if (rc == 0 && a->saw_not_finite)
        rc = find_not_finite(a, e);
    if (rc == 0) {
        a->out->positions = r->logits ? r->n_ids : 0;
        a->out->relative_l2 = a->sum_ref2 > 0 ? sqrt(a->sum_diff2 / a->sum_ref2) : sqrt(a->sum_diff2);
        report_logits(a);
    }
    free(a->probe);
    return rc;
}

/* ---- greedy text ---- */

/* How far the reference's own logits prefer its token to ours; negative if unknown. */
static double preference(const struct against *a, size_t position, int32_t ours)
{
    const float *row = a->r->logits ? a->r->logits + (position - 1) * a->r->vocab : NULL;
    if (!row || ours < 0 || (size_t)ours >= a->r->vocab)
        return -1;
    return fabs((double)row[a->r->ids[position]] - row[ours]);
}

static bool accept_token(struct against *a, size_t position, int32_t ours)
{
    int32_t want = a->r->ids[position];
    double gap = preference(a, position, ours);
    if (ours == want) {
        a->out->greedy_equal++;
        return true;
    }
    /* with 16 bits two nearly equal logits may swap; with 32 they may not */
    if (a->coarse && gap >= 0 && gap <= 2 * a->out->limit) {
        a->out->greedy_equal++;
        a->out->greedy_ties++;
        return true;
    }
    /* wrong logits have a finding already; other text is their consequence */
    if (a->out->max_abs_logit > a->out->limit)
        return false;
    char why[64] = "";
    if (gap >= 0)
        snprintf(why, sizeof why, "; the reference prefers its own by %.3g", gap);
    finding_add(a->f, FINDING_N005, "greedy text", "token %zu of %zu is %d, %s has %d%s",
                a->out->greedy_equal, a->out->greedy_tokens, ours, a->r->producer, want, why);
    return false;
}

static int check_greedy(struct against *a, struct err *e)
{
    const struct reference *r = a->r;
    size_t wanted = r->n_ids - r->n_prompt;
    wanted = wanted < REF_GREEDY_MAX ? wanted : REF_GREEDY_MAX;
    uint32_t chunk = chunk_tokens(a);
    int rc = ERR_OK;
    a->out->greedy_tokens = wanted;
    size_t at = 0;
    while (rc == 0 && at < r->n_prompt + wanted - 1) {
        struct step_result *res;
        uint32_t n = at < r->n_prompt ? (uint32_t)(r->n_prompt - at < chunk ? r->n_prompt - at : chunk) : 1;
        bool sample = at + n >= r->n_prompt;
        /* fed with the reference's ids, which so far equal ours */
        struct runner_run one = {
            .tokens = r->ids + at, .n = n, .position = (uint32_t)at, .flags = sample ? STEP_SAMPLE : 0};
        rc = runner_step(&a->run, &one, 1, &res, e);
        at += n;
        if (rc == 0 && sample && !accept_token(a, at, step_result_seqs(res)[0].token))
            break;
    }
    return rc;
}

int verify_reference(struct dev *d, const struct spec *s, struct ckpt *c, const struct reference *r,
                     double max_abs_limit, struct arena *arena, struct verify_reference_result *out,
                     struct findings *f, struct d0 *d0, struct err *e)
{
    *out = (struct verify_reference_result){.checked = false};
    struct against a = {.d = d, .s = s, .c = c, .r = r, .out = out, .f = f, .d0 = d0};
    if (!fits_model(&a))
        return ERR_OK;
    choose_limits(&a, max_abs_limit);
    int rc = open_runner(&a, r->n_probes > 0, e);
    if (rc == 0 && (r->logits || r->n_probes))
        rc = check_logits(&a, arena, e);
    if (rc == 0 && r->greedy && r->n_ids > r->n_prompt && !a.saw_not_finite)
        rc = check_greedy(&a, e);
    runner_close(&a.run);
    if (rc) {
        err_ctx(e, "comparing with %s", r->path);
        return rc;
    }
    out->checked = r->logits || r->n_probes || out->greedy_tokens > 0;
    return ERR_OK;
}
