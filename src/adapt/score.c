/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: a sign, without any reference, that tokenizer and weights belong together. A trained model finds a plain text more probable than the same
 * text written in other ids (each distinct id replaced by a random one): also a small model, and also one of another language. With a
 * permuted vocabulary the text is just one more random rewriting.
 * Refuses: judging how good the model is. Only the place of the text among its own rewritings counts.
 */
#include "adapt/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "load/load.h"

#define REWRITINGS 24
#define MAX_IDS    96

static const char plain_text[] = "Once upon a time there was a little girl who lived in a small house. One day she looked at the table "
                                 "and saw a red ball and a blue box, and she was very happy.";

static double log_softmax_at(const float *logits, size_t n, size_t at)
{
    double top = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        top = fmax(top, (double)logits[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - top);
    return (double)logits[at] - top - log(sum);
}

struct scorer { struct weights *weights; struct engine *engine; void *plan_buf, *result; size_t plan_cap, result_cap, vocab; };

static void scorer_close(struct scorer *s)
{
    engine_close(s->engine);
    weights_free(s->weights);
    free(s->plan_buf);
    free(s->result);
}

static int scorer_open(struct job *j, struct scorer *s, uint32_t n_tokens, struct err *e)
{
    uint32_t page = j->spec->page_tokens, pages = (n_tokens + page - 1) / page;
    struct engine_options eo = {.mem = &j->d0->mem};
    struct load_options lo = {0};
    *s = (struct scorer){.vocab = (size_t)j->spec->vocab_size};
    eo.limits = (struct engine_limits){.max_tokens = n_tokens, .max_seqs = 1, .max_rows = n_tokens, .max_pages_per_seq = pages,
                                       .n_pages = pages, .page_tokens = page, .vocab = (uint32_t)s->vocab};
    int rc = weights_load(&s->weights, j->spec->graph, j->ckpt, &j->dev, &lo, e);
    if (!rc)
        rc = engine_open(&s->engine, &j->dev, j->spec->graph, s->weights, &eo, e);
    if (rc)
        return rc;
    s->plan_cap = sizeof(struct step_plan) + sizeof(struct step_seq) + 4 * (size_t)(n_tokens + pages) + 256;
    s->result_cap = engine_result_bytes(engine_limits(s->engine), true);
    s->plan_buf = malloc(s->plan_cap);
    s->result = malloc(s->result_cap);
    return s->plan_buf && s->result ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory for one step");
}

/* Mean log-probability of ids[1..n) given what stands before each. */
static int scorer_mean(struct scorer *s, const int32_t *ids, size_t n, double *mean, struct err *e)
{
    struct step_plan *plan = NULL;
    uint32_t n_pages = engine_limits(s->engine)->n_pages;
    int rc = step_plan_init(s->plan_buf, s->plan_cap, 1, (uint32_t)n, n_pages, &plan, e);
    if (rc)
        return rc;
    *step_plan_seqs(plan) = (struct step_seq){.request = 1, .n_tokens = (uint32_t)n, .n_pages = n_pages, .flags = STEP_ALL_LOGITS};
    memcpy(step_plan_tokens(plan), ids, n * sizeof(*ids));
    for (uint32_t i = 0; i < n_pages; i++)
        step_plan_pages(plan)[i] = (int32_t)i;
    rc = engine_step(s->engine, plan, plan->bytes, s->result, s->result_cap, e);
    struct step_result *result = s->result;
    if (!rc && result->error)
        rc = err_set(e, result->error, "the step failed: %s", result->error_at ? (const char *)result + result->error_at : "no message");
    if (rc)
        return rc;
    const struct step_seq_result *q = step_result_seqs(result);
    if (q->n_logit_rows < n)
        return err_set(e, ERR_DEVICE, "%u rows of logits came for %zu tokens", q->n_logit_rows, n);
    const float *logits = step_result_logits(result) + q->first_logit;
    double sum = 0;
    for (size_t i = 0; i + 1 < n; i++)
        sum += log_softmax_at(logits + i * s->vocab, s->vocab, (size_t)ids[i + 1]);
    *mean = sum / (double)(n - 1);
    return ERR_OK;
}

/* The first id (BOS) stays; equal ids stay equal. */
static void rewrite(const struct job *j, const int32_t *ids, size_t n, uint64_t seed, int32_t *out)
{
    uint32_t vocab = tokenizer_vocab(j->front->tokenizer), limit = (uint32_t)j->spec->vocab_size;
    if (vocab > limit)
        vocab = limit;
    for (size_t i = 0; i < n; i++) {
        uint64_t tries = 0;
        do
            out[i] = (int32_t)(rng_u64(seed, (uint64_t)(uint32_t)ids[i] * 64 + tries) % vocab);
        while (tokenizer_is_special(j->front->tokenizer, out[i]) && ++tries < 64);
    }
    if (j->spec->bos_id >= 0 && ids[0] == j->spec->bos_id)
        out[0] = ids[0];
}

static int score(struct job *j, struct scorer *s, const int32_t *ids, size_t n, struct score_result *out, struct err *e)
{
    int32_t other[MAX_IDS];
    double values[REWRITINGS], sum = 0, squares = 0;
    int rc = scorer_mean(s, ids, n, &out->mean, e);
    for (uint64_t i = 0; rc == ERR_OK && i < REWRITINGS; i++) {
        rewrite(j, ids, n, i + 1, other);
        rc = scorer_mean(s, other, n, &values[i], e);
        sum += rc ? 0 : values[i];
    }
    if (rc)
        return rc;
    out->rewritten = sum / REWRITINGS;
    for (size_t i = 0; i < REWRITINGS; i++)
        squares += (values[i] - out->rewritten) * (values[i] - out->rewritten);
    double deviation = sqrt(squares / (REWRITINGS - 1));
    out->sigmas = deviation > 0 ? (out->mean - out->rewritten) / deviation : 0;
    out->ran = isfinite(out->mean) && isfinite(out->sigmas);
    out->tokens = n;
    return ERR_OK;
}

int score_text(struct job *j, struct score_result *out, struct err *e)
{
    struct ids ids = {0};
    struct scorer s = {0};
    memset(out, 0, sizeof(*out));
    int rc = prompt_text(j->front, plain_text, sizeof(plain_text) - 1, &ids, e);
    size_t n = ids.n < MAX_IDS ? ids.n : MAX_IDS;
    if (n > j->context)
        n = j->context;
    bool legal = true;
    for (size_t i = 0; i < n; i++)
        legal &= ids.data[i] >= 0 && ids.data[i] < j->spec->vocab_size;
    if (!rc && n >= 8 && legal) {
        rc = scorer_open(j, &s, (uint32_t)n, e);
        if (!rc)
            rc = score(j, &s, ids.data, n, out, e);
        scorer_close(&s);
    }
    ids_release(&ids);
    return rc;
}
