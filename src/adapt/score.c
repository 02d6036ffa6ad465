/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: two signs, without any reference, that tokenizer and weights belong together: how likely the model
 * finds a plain text, and whether what it writes looks like writing. Neither alone is fair: a small model of
 * a narrow subject finds any other text unlikely, and code is full of odd neighbours. Together they point at
 * a vocabulary that is not the model's. Refuses: judging how good the model is.
 */
#include "adapt/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "load/load.h"

#define MAX_IDS 96

static const char plain_text[] =
    "Once upon a time there was a little girl who lived in a small house. One day she looked at the table "
    "and saw a red ball and a blue box, and she was very happy.";

struct scorer {
    struct weights *weights;
    struct engine *engine;
    void *plan_buf, *result;
    size_t plan_cap, result_cap, vocab;
};

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
    struct engine_options eo = {.fusions = FUSION_BIT(FUSION_EXPERT_GROUPING), .mem = &j->d0->mem};
    struct load_options lo = {.spec = j->spec};
    *s = (struct scorer){.vocab = (size_t)j->spec->vocab_size};
    eo.limits = (struct engine_limits){.max_tokens = n_tokens,
                                       .max_seqs = 1,
                                       .max_rows = n_tokens,
                                       .max_pages_per_seq = pages,
                                       .n_pages = pages,
                                       .page_tokens = page,
                                       .vocab = (uint32_t)s->vocab};
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
    *step_plan_seqs(plan) = (struct step_seq){
        .request = 1, .n_tokens = (uint32_t)n, .n_pages = n_pages, .flags = STEP_ALL_LOGITS};
    memcpy(step_plan_tokens(plan), ids, n * sizeof(*ids));
    for (uint32_t i = 0; i < n_pages; i++)
        step_plan_pages(plan)[i] = (int32_t)i;
    rc = engine_step(s->engine, plan, plan->bytes, s->result, s->result_cap, e);
    struct step_result *result = s->result;
    if (!rc && result->error)
        rc = err_set(e, result->error, "the step failed: %s",
                     result->error_at ? (const char *)result + result->error_at : "no message");
    if (rc)
        return rc;
    const struct step_seq_result *q = step_result_seqs(result);
    if (q->n_logit_rows < n)
        return err_set(e, ERR_DEVICE, "%u rows of logits came for %zu tokens", q->n_logit_rows, n);
    const float *logits = step_result_logits(result) + q->first_logit;
    double sum = 0;
    for (size_t i = 0; i + 1 < n; i++)
        sum += metrics_log_softmax(logits + i * s->vocab, s->vocab, (size_t)ids[i + 1]);
    *mean = sum / (double)(n - 1);
    return ERR_OK;
}

int score_text(struct job *j, struct score_result *out, struct err *e)
{
    struct ids ids = {0};
    struct scorer s = {0};
    *out = (struct score_result){.uniform = -log((double)j->spec->vocab_size)};
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
            rc = scorer_mean(&s, ids.data, n, &out->mean, e);
        out->ran = rc == ERR_OK && isfinite(out->mean);
        out->tokens = n;
        scorer_close(&s);
    }
    ids_release(&ids);
    return rc;
}

/* ---- does it look like writing */

enum letter {
    LETTER_NONE,
    LETTER_SPACE,
    LETTER_LOWER,
    LETTER_UPPER,
    LETTER_LATIN,
    LETTER_GREEK,
    LETTER_CYRILLIC,
    LETTER_DIGIT,
    LETTER_JOIN,
    LETTER_STOP,
    LETTER_SYMBOL
};

static enum letter class_of(uint32_t c)
{
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r')
        return LETTER_SPACE;
    if (c >= 'a' && c <= 'z')
        return LETTER_LOWER;
    if (c >= 'A' && c <= 'Z')
        return LETTER_UPPER;
    if (c >= '0' && c <= '9')
        return LETTER_DIGIT;
    if (c < 128)
        return strchr("'\"-(", (int)c)     ? LETTER_JOIN
               : strchr(".,;:!?)", (int)c) ? LETTER_STOP
                                           : LETTER_SYMBOL;
    if (c >= 0xc0 && c < 0x250)
        return LETTER_LATIN;
    if (c >= 0x370 && c < 0x400)
        return LETTER_GREEK;
    return c >= 0x400 && c < 0x530 ? LETTER_CYRILLIC
                                   : LETTER_NONE; /* scripts that put no spaces are not judged */
}

static bool is_letter(enum letter a)
{
    return a >= LETTER_LOWER && a <= LETTER_CYRILLIC;
}

static bool odd_neighbours(enum letter a, enum letter b)
{
    if (a == LETTER_NONE || b == LETTER_NONE || a == LETTER_SPACE || b == LETTER_SPACE || a == LETTER_JOIN ||
        b == LETTER_JOIN)
        return false;
    if (a == LETTER_SYMBOL || b == LETTER_SYMBOL)
        return true;
    if (a == LETTER_STOP) /* "end.Next", "1.5" is fine */
        return is_letter(b);
    if (b == LETTER_STOP)
        return false;
    if ((a == LETTER_DIGIT) != (b == LETTER_DIGIT))
        return true;
    if (a == LETTER_LOWER && b == LETTER_UPPER)
        return true;
    bool latin_a = a <= LETTER_LATIN, latin_b = b <= LETTER_LATIN;
    return a != LETTER_DIGIT && (latin_a != latin_b || (!latin_a && a != b));
}

void text_shape_add(struct text_shape *t, const char *text, size_t n)
{
    enum letter before = LETTER_NONE;
    for (size_t i = 0; i < n;) {
        uint32_t c = 0;
        size_t len = utf8_decode(text + i, n - i, &c);
        enum letter now = len ? class_of(c) : LETTER_NONE;
        if (before != LETTER_NONE && before != LETTER_SPACE && now != LETTER_NONE) {
            t->pairs++;
            t->odd += odd_neighbours(before, now);
        }
        before = now;
        i += len ? len : 1;
    }
}
