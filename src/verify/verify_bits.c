/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the check of reproducibility: the logits of one request alone must have the same bits when it is fed
 * in chunks and when it shares its steps with others. No tolerance: one different bit is a finding.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verify/runner.h"

#define BITS_TOKENS     96 /* of the request: more than one chunk of 64 */
#define BITS_MIN_TOKENS 8
/* bytes of weights that may be read if each token costs a pass over them: large models get fewer tokens */
#define BITS_READ  20000000000ull
#define BITS_SEQS  8
#define BITS_WHICH 3 /* our request's place in the batch */
#define BITS_MAX_LOGITS                                                                                      \
    ((uint64_t)8                                                                                             \
     << 20) /* values kept: of every position, or of the last alone where the vocabulary is large */

struct bits {
    struct runner r;
    const int32_t *ids;
    uint32_t n, context;
    uint64_t vocab;
    bool all; /* every position is compared, else the last */
    int32_t *other;
    float *alone, *now;
    struct verify_bits_result *out;
};

static uint32_t row_flags(const struct bits *b, uint32_t from, uint32_t n)
{
    if (b->all)
        return STEP_ALL_LOGITS;
    return from + n == b->n ? STEP_LAST_LOGITS : 0;
}

static void keep(const struct bits *b, struct step_result *res, uint32_t seq, uint32_t from, float *to)
{
    const struct step_seq_result *q = &step_result_seqs(res)[seq];
    if (q->n_logit_rows)
        memcpy(to + (b->all ? (uint64_t)from * b->vocab : 0), step_result_logits(res) + q->first_logit,
               q->n_logit_rows * b->vocab * sizeof(float));
}

/* Feeds the request in chunks; others: how many requests share each step. */
static int feed(struct bits *b, uint32_t chunk, uint32_t others, float *to, struct err *e)
{
    struct runner_run runs[BITS_SEQS];
    for (uint32_t at = 0; at < b->n; at += chunk) {
        uint32_t n = b->n - at < chunk ? b->n - at : chunk, count = 0, mine = others ? BITS_WHICH : 0;
        struct step_result *res;
        for (uint32_t i = 0; i <= others; i++) {
            bool me = i == mine;
            /* the others begin anew with every step, each with its own length */
            uint32_t most = 2 * chunk + 3 < b->context / 4 ? 2 * chunk + 3 : b->context / 4;
            uint32_t length = me ? n : 1 + (at + 5 * i) % most;
            runs[count++] = (struct runner_run){.slot = i,
                                                .tokens = me ? b->ids + at : b->other + i,
                                                .n = length,
                                                .position = me ? at : 0,
                                                .flags = me ? row_flags(b, at, n) : 0};
        }
        int rc = runner_step(&b->r, runs, count, &res, e);
        if (rc)
            return rc;
        keep(b, res, mine, at, to);
    }
    return ERR_OK;
}

static void judge(struct bits *b, const char *name)
{
    uint64_t values = b->all ? b->n * b->vocab : b->vocab;
    b->out->cases++;
    if (memcmp(b->alone, b->now, values * sizeof(float)) == 0) {
        b->out->equal++;
        return;
    }
    if (b->out->first_difference[0])
        return;
    uint64_t i = 0;
    while (memcmp(&b->alone[i], &b->now[i], sizeof(float)) == 0)
        i++;
    snprintf(b->out->first_difference, sizeof b->out->first_difference,
             "%s: position %llu, id %llu: %.9g, alone %.9g", name,
             (unsigned long long)(b->all ? i / b->vocab : b->n - 1), (unsigned long long)(i % b->vocab),
             (double)b->now[i], (double)b->alone[i]);
}

static int run_cases(struct bits *b, struct err *e)
{
    static const struct {
        const char *name;
        uint32_t chunk, others;
    } cases[] = {
        {"token by token", 1, 0},
        {"chunks of 7", 7, 0},
        {"chunks of 64", 64, 0},
        {"in a batch of 8", BITS_TOKENS, BITS_SEQS - 1},
        {"chunks of 7 in a batch of 8", 7, BITS_SEQS - 1},
        {"token by token in a batch of 8", 1, BITS_SEQS - 1},
    };
    int rc = feed(b, b->n, 0, b->alone, e);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(cases); i++) {
        memset(b->now, 0xee, (b->all ? b->n * b->vocab : b->vocab) * sizeof(float));
        rc = feed(b, cases[i].chunk, cases[i].others, b->now, e);
        if (rc == 0)
            judge(b, cases[i].name);
    }
    return rc;
}

static uint32_t choose_tokens(const struct spec *s, size_t n_ids)
{
    uint64_t bytes = 1;
    for (size_t i = 0; i < s->n_weights; i++)
        bytes = sat_add(bytes, s->weights[i].tensor ? s->weights[i].tensor->bytes : 0);
    uint64_t n = BITS_READ / bytes;
    n = n < BITS_MIN_TOKENS ? BITS_MIN_TOKENS : (n > BITS_TOKENS ? BITS_TOKENS : n);
    n = n < n_ids ? n : n_ids;
    if (s->max_positions > 0 && n > (uint64_t)s->max_positions)
        n = (uint64_t)s->max_positions;
    return (uint32_t)n;
}

/* The others' text: the request's ids, turned round. */
static bool make_others(struct bits *b)
{
    uint32_t n = b->context + BITS_SEQS;
    b->other = malloc(n * sizeof *b->other);
    for (uint32_t i = 0; b->other && i < n; i++)
        b->other[i] = b->ids[(b->n - 1) - (i * 3 + 1) % b->n];
    return b->other != NULL;
}

int verify_bits(struct dev *d, const struct spec *s, struct ckpt *c, const int32_t *ids, size_t n_ids,
                uint32_t fusions, struct verify_bits_result *out, struct findings *f, struct d0 *d0,
                struct err *e)
{
    *out = (struct verify_bits_result){.ran = false};
    if (n_ids < 1 || s->vocab_size < 1)
        return err_set(e, ERR_INVALID, "reproducibility needs at least one token and a vocabulary");
    struct bits b = {.ids = ids, .n = choose_tokens(s, n_ids), .context = BITS_TOKENS, .out = out};
    const struct d0_value *result =
        graph_result(s->graph) == D0_NO_VALUE ? NULL : &s->graph->values[graph_result(s->graph)];
    b.vocab = result && result->dims[1] > 0 ? (uint64_t)result->dims[1] : (uint64_t)s->vocab_size;
    b.all = b.n * b.vocab <= BITS_MAX_LOGITS;
    uint64_t values = b.all ? b.n * b.vocab : b.vocab;
    struct runner_size size = {.tokens = BITS_SEQS * BITS_TOKENS,
                               .seqs = BITS_SEQS,
                               .rows = b.all ? b.n : 1,
                               .context = b.context,
                               .fusions = fusions};
    b.alone = calloc(values, sizeof *b.alone);
    b.now = calloc(values, sizeof *b.now);
    int rc = b.alone && b.now && make_others(&b) ? ERR_OK
                                                 : err_set(e, ERR_NOMEM, "no memory for two sets of logits");
    if (rc == 0)
        rc = runner_open_model(&b.r, d, s, c, &size, d0, e);
    if (rc == 0)
        rc = run_cases(&b, e);
    runner_close(&b.r);
    free(b.alone);
    free(b.now);
    free(b.other);
    if (rc) {
        err_ctx(e, "checking reproducibility");
        return rc;
    }
    out->ran = true;
    if (out->equal != out->cases)
        finding_add(f, FINDING_N004, "logits", "%u of %u ways to run one request give other bits; first: %s",
                    out->cases - out->equal, out->cases, out->first_difference);
    return ERR_OK;
}
