/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: whether errors grow with the position. One long sequence runs on the reference kernels, on the device
 * in large steps, and on the device with some tokens in steps of their own; rows at sampled positions are
 * held against each other, and medians are told for each doubling of the position. Refuses to call a length
 * reached that was not run.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "oracle/compare_impl.h"
#include "oracle/drift_impl.h"

#define SAMPLES     8u  /* of one bucket */
#define PAST        64u /* tokens past the original length */
#define LEAST       16u
#define IDS_SEED    9u
#define KEY_DEPTH   4u
#define GROWTH_FROM 2u /* the first buckets have too few rows to tell a slope */

struct drifting {
    const struct oracle_model *m;
    const struct drift_options *o;
    struct arena *arena;
    struct drift_result *out;
    struct findings *f;
    int32_t *ids; /* [tokens] */
    uint32_t *at; /* sampled positions */
    uint32_t n_at;
    uint8_t *alone; /* [tokens] */
    struct trace *t;
};

/* ---- how long ---- */

/* The smallest length that config.json states for training, wherever it stands. */
static void find_original(const struct json *v, unsigned depth, struct drift_result *out)
{
    static const char *const keys[] = {"original_max_position_embeddings", "initial_context_length"};
    if (!v || v->type != JSON_OBJECT || depth == 0)
        return;
    for (size_t k = 0; k < ARRAY_LEN(keys); k++) {
        int64_t n;
        if (json_i64(json_get(v, keys[k]), &n) && n > 0 && (uint64_t)n < out->original) {
            out->original = (uint64_t)n;
            out->original_key = keys[k];
        }
    }
    for (uint32_t i = 0; i < v->n; i++)
        find_original(&v->as.members[i].value, depth - 1, out);
}

/* Multiplications of n tokens: each active parameter once, and each pair of a token and one before it. */
static double work_of(const struct spec *s, double n)
{
    const double head = (double)s->n_heads * (double)s->head_dim * (double)s->n_layers;
    return n * (double)s->active_parameters + n * n * head;
}

static uint64_t tokens_within(const struct spec *s, uint64_t most, double work)
{
    uint64_t n = 0;
    for (uint64_t step = (uint64_t)1 << 31; step; step /= 2)
        if (n + step <= most && (work <= 0 || work_of(s, (double)(n + step)) <= work))
            n += step;
    return n < LEAST ? (most < LEAST ? most : LEAST) : n;
}

static void choose_lengths(struct drifting *d)
{
    const struct spec *s = d->m->spec;
    struct drift_result *out = d->out;
    out->max_positions = s->max_positions > 0 ? (uint64_t)s->max_positions : INT32_MAX;
    out->original = out->max_positions;
    out->original_key = "max_position_embeddings";
    find_original(d->m->ckpt->config, KEY_DEPTH, out);
    uint64_t most = d->o->tokens ? d->o->tokens : out->original + PAST;
    most = most > d->o->n_ids ? most : d->o->n_ids;
    most = most < out->max_positions ? most : out->max_positions;
    out->tokens = d->o->tokens ? most : tokens_within(s, most, d->o->work);
    if (out->tokens < d->o->n_ids && d->o->n_ids <= most)
        out->tokens = d->o->n_ids; /* these were asked for */
    out->reference_tokens = d->o->tokens ? most : tokens_within(s, out->tokens, d->o->reference_work);
    out->beyond = out->tokens > out->original || out->tokens == out->max_positions;
}

/* ---- which positions ---- */

static int choose_positions(struct drifting *d, struct err *e)
{
    struct drift_result *out = d->out;
    d->at = arena_alloc_n(d->arena, (size_t)DRIFT_BUCKETS * SAMPLES, sizeof *d->at);
    d->alone = arena_alloc(d->arena, out->tokens);
    d->ids = arena_alloc_n(d->arena, out->tokens, sizeof *d->ids);
    if (!d->at || !d->alone || !d->ids)
        return err_set(e, ERR_NOMEM, "no memory for %llu tokens", (unsigned long long)out->tokens);
    for (uint64_t first = 0, next = 2; first < out->tokens && out->n_buckets < DRIFT_BUCKETS;
         first = next, next *= 2) {
        /* what lies past the original length has buckets of its own */
        if (first < out->original && next > out->original)
            next = out->original;
        struct drift_bucket *b = &out->bucket[out->n_buckets++];
        const uint64_t end = next < out->tokens ? next : out->tokens, n = end - first,
                       take = n < SAMPLES ? n : SAMPLES;
        *b = (struct drift_bucket){.first = first, .last = end - 1, .rows = (uint32_t)take};
        for (uint64_t i = 0; i < take; i++)
            d->at[d->n_at++] = (uint32_t)(first + (take > 1 ? i * (n - 1) / (take - 1) : 0));
    }
    for (uint32_t i = 0; i < d->n_at; i++)
        d->alone[d->at[i]] = 1;
    return ERR_OK;
}

/* Embeddings may have fewer rows than the vocabulary says. */
static int choose_ids(struct drifting *d, struct err *e)
{
    const struct graph *g = d->m->spec->graph;
    int64_t vocab = d->m->spec->vocab_size;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == D0_OP_EMBED && g->values[g->nodes[i].inputs[1]].dims[0] < vocab)
            vocab = g->values[g->nodes[i].inputs[1]].dims[0];
    if (vocab < 1)
        return err_set(e, ERR_INVALID, "a model without a vocabulary");
    for (uint64_t i = 0; i < d->out->tokens; i++)
        d->ids[i] = i < d->o->n_ids ? d->o->ids[i] : (int32_t)(rng_u64(IDS_SEED, i) % (uint64_t)vocab);
    return ERR_OK;
}

/* ---- comparing ---- */

static double row_error(const float *a, const float *b, uint64_t width)
{
    double diff = 0, norm = 0;
    for (uint64_t i = 0; i < width; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) {
            if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
                return INFINITY;
            continue;
        }
        diff += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return diff == 0 ? 0 : norm > 0 ? sqrt(diff / norm) : INFINITY;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sum_rows(double *list, uint32_t n, double *median, double *worst)
{
    *median = *worst = NAN;
    if (n == 0)
        return;
    qsort(list, n, sizeof *list, by_size);
    *median = list[n / 2];
    *worst = list[n - 1];
}

/* Of sample i: the layer that differs most, and the logits. */
static void sample_errors(const struct drift_pass *a, const struct drift_pass *b, uint32_t i, double *hidden,
                          double *logits)
{
    *hidden = *logits = 0;
    for (uint32_t k = 0; k < a->n_kept; k++) {
        const double x = row_error(a->rows[k] + i * a->width[k], b->rows[k] + i * a->width[k], a->width[k]);
        if (k + 1 == a->n_kept)
            *logits = x;
        else
            *hidden = fmax(*hidden, x);
    }
}

static bool same_bits(const struct drift_pass *a, const struct drift_pass *b, uint32_t i)
{
    for (uint32_t k = 0; k < a->n_kept; k++)
        if (memcmp(a->rows[k] + i * a->width[k], b->rows[k] + i * a->width[k], a->width[k] * sizeof(float)) !=
            0)
            return false;
    return true;
}

static void compare_reference(struct drifting *d, const struct drift_pass *device,
                              const struct drift_pass *ref)
{
    for (uint32_t b = 0, i = 0; b < d->out->n_buckets; b++) {
        struct drift_bucket *x = &d->out->bucket[b];
        double hidden[SAMPLES], logits[SAMPLES];
        uint32_t n = 0;
        for (uint32_t k = 0; k < x->rows; k++, i++)
            if (d->at[i] < d->out->reference_tokens) {
                sample_errors(device, ref, i, &hidden[n], &logits[n]);
                n++;
            }
        x->reference_rows = n;
        sum_rows(hidden, n, &x->hidden, &x->hidden_worst);
        sum_rows(logits, n, &x->logits, &x->logits_worst);
    }
}

static void compare_decode(struct drifting *d, const struct drift_pass *device,
                           const struct drift_pass *decode)
{
    d->out->identical = true;
    for (uint32_t b = 0, i = 0; b < d->out->n_buckets; b++) {
        struct drift_bucket *x = &d->out->bucket[b];
        for (uint32_t k = 0; k < x->rows; k++, i++) {
            double hidden, logits;
            d->out->decoded++;
            if (same_bits(device, decode, i))
                continue;
            sample_errors(decode, device, i, &hidden, &logits);
            x->decode_worst = fmax(x->decode_worst, fmax(hidden, logits));
            if (d->out->identical)
                d->out->first_different = d->at[i];
            d->out->identical = false;
            d->out->different++;
        }
    }
}

static int compare_recorded(struct drifting *d, const struct drift_pass *device, struct err *e)
{
    const uint32_t last = device->n_kept - 1;
    const struct trace_tensor *t = d->t ? trace_find(d->t, TRACE_LOGITS) : NULL;
    float *row = malloc((size_t)(device->width[last] ? device->width[last] : 1) * sizeof *row);
    int rc = row ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a row of logits");
    for (uint32_t b = 0, i = 0; rc == 0 && b < d->out->n_buckets; b++) {
        struct drift_bucket *x = &d->out->bucket[b];
        double errors[SAMPLES];
        uint32_t n = 0;
        for (uint32_t k = 0; rc == 0 && k < x->rows; k++, i++) {
            if (!t || d->at[i] >= t->rows || d->at[i] >= d->o->n_ids)
                continue;
            rc = trace_read(d->t, t, d->at[i], 1, row, e);
            errors[n++] = row_error(device->rows[last] + i * device->width[last], row, device->width[last]);
        }
        x->recorded_rows = n;
        sum_rows(errors, n, &x->recorded, &x->recorded_worst);
    }
    free(row);
    return rc;
}

/* ---- what is said ---- */

/* Least squares of log2(error) over doublings. 1: no growth, or nothing to tell it from. */
static double growth(const struct drift_result *r, bool logits)
{
    double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
    for (size_t b = GROWTH_FROM; b < r->n_buckets; b++) {
        const double y = logits ? r->bucket[b].logits : r->bucket[b].hidden;
        if (!(y > 0) || !isfinite(y))
            continue;
        const double x = log2(0.5 * (double)(r->bucket[b].first + r->bucket[b].last)), l = log2(y);
        n += 1;
        sx += x;
        sy += l;
        sxx += x * x;
        sxy += x * l;
    }
    const double below = n * sxx - sx * sx;
    return n >= 3 && below > 0 ? exp2((n * sxy - sx * sy) / below) : 1;
}

static void report_beyond(const struct drifting *d, const char *what, const char *than, size_t field,
                          double limit)
{
    const struct drift_result *r = d->out;
    const struct drift_bucket *first = NULL, *worst = NULL;
    double first_error = 0, worst_error = 0;
    for (size_t b = 0; b < r->n_buckets; b++) {
        double x;
        memcpy(&x, (const char *)&r->bucket[b] + field, sizeof x);
        if (!(x > limit))
            continue;
        if (!first) {
            first = &r->bucket[b];
            first_error = x;
        }
        if (!worst || x > worst_error) {
            worst = &r->bucket[b];
            worst_error = x;
        }
    }
    if (first)
        finding_add(d->f, FINDING_N009, what,
                    "%s: relative L2 %.3g at positions %llu to %llu, limit %.3g%s; worst %.3g at positions "
                    "%llu to %llu; original length %llu",
                    than, first_error, (unsigned long long)first->first, (unsigned long long)first->last,
                    limit, first == r->bucket ? "" : ", right before it", worst_error,
                    (unsigned long long)worst->first, (unsigned long long)worst->last,
                    (unsigned long long)r->original);
}

static void report(const struct drifting *d)
{
    const struct drift_result *r = d->out;
    if (r->exact && !r->identical)
        finding_add(d->f, FINDING_N004, "decode",
                    "%llu of %llu positions have other bits decoded one by one than in a large step, first "
                    "position %llu",
                    (unsigned long long)r->different, (unsigned long long)r->decoded,
                    (unsigned long long)r->first_different);
    else
        report_beyond(d, "decode", "decode against prefill", offsetof(struct drift_bucket, decode_worst),
                      r->limit);
    report_beyond(d, "hidden states", "device against the reference kernels",
                  offsetof(struct drift_bucket, hidden), r->limit);
    report_beyond(d, "logits", "device against the reference kernels", offsetof(struct drift_bucket, logits),
                  r->limit);
    if (d->t)
        report_beyond(d, "recorded logits", r->recorded_producer, offsetof(struct drift_bucket, recorded),
                      compare_limits_of(compare_coarse(d->t) || d->m->spec->kv_dtype != D0_F32,
                                        compare_coarser(compare_activation_bits(d->t),
                                                        spec_activation_bits(d->m->spec->graph)))
                          .row);
}

static void add_cost(struct oracle_cost *to, const struct oracle_cost *c)
{
    to->weight_bytes += c->weight_bytes;
    to->read_seconds += c->read_seconds;
    to->compute_seconds += c->compute_seconds;
    to->seconds += c->seconds;
    to->largest = c->largest > to->largest ? c->largest : to->largest;
}

static int open_recorded(struct drifting *d, struct err *e)
{
    if (!d->o->recorded)
        return ERR_OK;
    int rc = trace_open(&d->t, d->o->recorded, e);
    const struct trace_tensor *t = rc == 0 ? trace_find(d->t, TRACE_LOGITS) : NULL;
    d->out->recorded_producer = rc == 0 ? arena_strdup(d->arena, d->t->producer) : NULL;
    if (t && t->width != (uint64_t)d->m->spec->vocab_size)
        return err_set(e, ERR_MISMATCH, "%s: logits of %llu, the vocabulary has %lld", d->o->recorded,
                       (unsigned long long)t->width, (long long)d->m->spec->vocab_size);
    return rc;
}

static int run(struct drifting *d, struct err *e)
{
    struct drift_result *out = d->out;
    struct drift_pass device = {.n_tokens = (uint32_t)out->tokens, .at = d->at, .n_at = d->n_at},
                      decode = device, ref = device;
    struct oracle_model other = *d->m;
    decode.alone = d->alone;
    ref.n_tokens = (uint32_t)out->reference_tokens;
    other.dev = d->o->reference;
    int rc = drift_pass_run(&ref, &other, d->ids, e);
    if (rc == 0)
        rc = drift_pass_run(&device, d->m, d->ids, e);
    if (rc == 0)
        rc = drift_pass_run(&decode, d->m, d->ids, e);
    if (rc == 0) {
        compare_reference(d, &device, &ref);
        compare_decode(d, &device, &decode);
        rc = compare_recorded(d, &device, e);
    }
    if (rc == 0) {
        out->hidden_growth = growth(out, false);
        out->logits_growth = growth(out, true);
        report(d);
    }
    add_cost(&out->cost, &ref.cost);
    add_cost(&out->cost, &device.cost);
    add_cost(&out->cost, &decode.cost);
    drift_pass_close(&ref);
    drift_pass_close(&device);
    drift_pass_close(&decode);
    return rc;
}

int oracle_drift(const struct oracle_model *m, const struct drift_options *o, struct arena *arena,
                 struct drift_result *out, struct findings *f, struct err *e)
{
    struct drifting d = {.m = m, .o = o, .arena = arena, .out = out, .f = f};
    struct d0_device_info info = {.size = sizeof info};
    *out = (struct drift_result){
        .limit = compare_limits_of(m->spec->kv_dtype != D0_F32, spec_activation_bits(m->spec->graph)).row};
    int rc = dev_info(m->dev, &info, e);
    out->exact = info.exact != 0;
    if (rc == 0)
        choose_lengths(&d);
    if (rc == 0)
        rc = choose_positions(&d, e);
    if (rc == 0)
        rc = choose_ids(&d, e);
    if (rc == 0)
        rc = open_recorded(&d, e);
    if (rc == 0)
        rc = run(&d, e);
    trace_close(d.t);
    return rc;
}
