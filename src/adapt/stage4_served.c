/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what a service did to a conversation, by what it gave: its count of tokens and its log-probabilities
 * are held against what this directory gives, computed here, and, where they differ, against what the
 * directory would give with one known mistake after the other. The mistake whose numbers fit is named.
 * Refuses: naming one that is not clearly nearer than the directory as it is, and reading anything into
 * differences that rounding explains.
 */
#include "adapt/stage4.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define QUIET         1e-4 /* nats, mean |difference|: an exact service, printed and parsed */
#define NOISY         0.05 /* what services in 16 bits are allowed (docs/numerics.md) */
#define NEARER        4    /* a mistake is named where its distance is so many times smaller */
#define LEAST_LOGPROB (-20)

struct fit {
    bool applies; /* it changes at least one of the conversations */
    bool counts;  /* of tokens are the service's */
    double sum;   /* of |differences| of log-probabilities */
    size_t n;     /* log-probabilities */
    size_t held;  /* conversations that have some */
    size_t n_counts;
};

static double mean(const struct fit *f)
{
    return f->n ? f->sum / (double)f->n : NAN;
}

/* Log-probabilities of one answer under a case. */
static int add_distance(struct channels *c, struct channel_case *made, const struct served *s,
                        struct arena *arena, struct fit *f, struct err *e)
{
    const size_t vocab = (size_t)c->model.spec->vocab_size;
    int32_t answer[ANSWER_MOST];
    float *logits;
    for (size_t i = 0; i < s->n; i++)
        answer[i] = s->tokens[i].chosen.id;
    int rc = channel_features(&c->model, made, arena, e);
    if (rc == 0)
        rc = channel_logits(&c->model, made, answer, s->n - 1, made->n - 1, s->n, arena, &logits, e);
    for (size_t i = 0; rc == 0 && i < s->n; i++) {
        const float *row = logits + i * vocab;
        for (size_t k = 0; k <= s->tokens[i].n_others; k++) {
            const struct scored *one = k ? &s->tokens[i].others[k - 1] : &s->tokens[i].chosen;
            if (one->logprob < LEAST_LOGPROB || (size_t)one->id >= vocab)
                continue;
            f->sum += fabs(one->logprob - metrics_log_softmax(row, vocab, (size_t)one->id));
            f->n++;
        }
    }
    return rc;
}

/* All conversations under one change; one that it does not touch stays as it is. */
static int fit_change(struct channels *c, const struct conversation *list, const struct served *seen,
                      size_t n, uint32_t base, uint32_t change, bool by_logprobs, struct fit *f,
                      struct err *e)
{
    *f = (struct fit){.applies = change == 0, .counts = true};
    for (size_t i = 0; i < n; i++) {
        struct channel_case made;
        struct arena scratch;
        struct err why = {0};
        if (!seen[i].answered || !list[i].messages)
            continue;
        arena_init(&scratch, NULL, MEM_REPORT);
        int rc = channel_make(&c->model, list[i].messages, base | change, &scratch, &made, &why);
        bool touched = rc == ERR_OK;
        if (rc == ERR_MISSING && change)
            rc = channel_make(&c->model, list[i].messages, base, &scratch, &made, &why);
        if (rc == ERR_MISSING && base)
            rc = channel_make(&c->model, list[i].messages, change, &scratch, &made, &why);
        if (rc == ERR_MISSING)
            rc = channel_make(&c->model, list[i].messages, 0, &scratch, &made, &why);
        if (rc == ERR_OK && seen[i].has_usage) {
            f->counts &= made.n == seen[i].prompt_tokens;
            f->n_counts++;
        }
        const size_t before = f->n;
        if (rc == ERR_OK && by_logprobs && seen[i].n)
            rc = add_distance(c, &made, &seen[i], &scratch, f, &why);
        f->held += f->n > before;
        if (rc == ERR_MISSING) { /* known only when the text is computed: no sections */
            rc = ERR_OK;
            touched = false;
        }
        f->applies |= touched;
        arena_release(&scratch);
        if (rc) {
            if (e)
                *e = why;
            return rc;
        }
    }
    return ERR_OK;
}

static bool suspicious(const struct fit *f)
{
    return !f->counts || (f->n && !(mean(f) <= QUIET)); /* also where it is no number */
}

/* The known mistake that fits best and clearly better than none; CHANNEL_CHANGES: none does. Where counts
 * differ and no log-probabilities fit, the mistake that has those counts. */
static int best_change(struct channels *c, const struct conversation *list, const struct served *seen,
                       size_t n, bool image, uint32_t base, const struct fit *intact, struct judged *out,
                       struct err *e)
{
    double best = intact->n && intact->counts ? mean(intact) / NEARER : INFINITY;
    enum channel_change by_counts = CHANNEL_CHANGES;
    for (unsigned i = 0; i < CHANNEL_CHANGES; i++) {
        struct fit f;
        if (channel_change_info((enum channel_change)i)->image != image || (base & CHANNEL_BIT(i)))
            continue;
        struct err why = {0};
        int rc = fit_change(c, list, seen, n, base, CHANNEL_BIT(i), out->by_logprobs, &f, &why);
        if (rc && channel_refused(rc)) /* nothing comes of this change here */
            continue;
        if (rc) {
            if (e)
                *e = why;
            return rc;
        }
        if (!f.applies || !f.counts)
            continue;
        if (by_counts == CHANNEL_CHANGES && !intact->counts)
            by_counts = (enum channel_change)i;
        if (!f.n || !(mean(&f) < best) || mean(&f) > NOISY)
            continue;
        best = mean(&f);
        out->as_if = (enum channel_change)i;
        out->best = best;
    }
    out->counts_alone = out->as_if == CHANNEL_CHANGES && by_counts != CHANNEL_CHANGES;
    if (out->counts_alone)
        out->as_if = by_counts;
    return ERR_OK;
}

static void count_words(const struct conversation *list, const struct served *seen, size_t n, char *out,
                        size_t bytes, struct channels *c, uint32_t base)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        struct channel_case made;
        struct arena scratch;
        struct err e = {0};
        arena_init(&scratch, NULL, MEM_REPORT);
        if (seen[i].answered && seen[i].has_usage &&
            channel_make(&c->model, list[i].messages, base, &scratch, &made, &e) == ERR_OK &&
            made.n != seen[i].prompt_tokens && at < bytes)
            at += (size_t)snprintf(out + at, bytes - at, "%s%s: %llu prompt tokens, %zu here", at ? "; " : "",
                                   list[i].name, (unsigned long long)seen[i].prompt_tokens, made.n);
        arena_release(&scratch);
    }
}

static void say(struct judged *out, const struct fit *intact, const char *counts, bool image)
{
    char figures[160] = "";
    if (intact->n)
        snprintf(figures, sizeof(figures), "log-probabilities are off by %.3g nats on average (%zu of them)",
                 out->intact, intact->n);
    if (out->as_if != CHANNEL_CHANGES) {
        const struct channel_change_info *info = channel_change_info(out->as_if);
        char then[96] = "";
        if (isfinite(out->best))
            snprintf(then, sizeof(then), ", and by %.3g under this change", out->best);
        snprintf(out->words, sizeof(out->words), "%s channel, %s: the service %s as if %s; %s%s%s%.200s",
                 image ? "image" : "text", channel_step_name(info->step),
                 out->counts_alone ? "counts tokens" : "behaves", info->as_if, figures, then,
                 *counts ? "; " : "", counts);
        return;
    }
    snprintf(out->words, sizeof(out->words), "%s channel: %s%s%.300s%s", image ? "image" : "text", figures,
             *counts && *figures ? "; " : "", counts,
             out->wrong      ? "; no known mistake explains it"
             : *figures      ? "; the service gives what this directory does"
             : out->n_counts ? "the counts are the directory's, and the service told no log-probabilities"
                             : "the service told neither counts nor log-probabilities");
}

static enum finding_id finding_of(const struct judged *out, const struct fit *intact, bool image)
{
    if (out->as_if != CHANNEL_CHANGES)
        return channel_change_info(out->as_if)->finding;
    if (!intact->counts)
        return image ? FINDING_I005 : FINDING_T007;
    return image ? FINDING_I009 : FINDING_T008;
}

int served_judge(struct channels *c, const struct conversation *list, const struct served *seen, size_t n,
                 bool image, uint32_t base, struct judged *out, struct err *e)
{
    struct fit intact;
    char counts[300];
    size_t answered = 0;
    *out = (struct judged){.as_if = CHANNEL_CHANGES, .intact = NAN, .best = NAN};
    for (size_t i = 0; i < n; i++)
        answered += seen[i].answered;
    if (answered == 0)
        return ERR_OK;
    out->by_logprobs = c->blind == NULL;
    struct err why = {0};
    int rc = fit_change(c, list, seen, n, base, 0, out->by_logprobs, &intact, &why);
    if (rc && channel_refused(rc)) {
        snprintf(out->words, sizeof(out->words), "not compared: %.400s", why.message);
        return ERR_OK;
    }
    if (rc) {
        if (e)
            *e = why;
        return rc;
    }
    out->ran = true;
    out->intact = mean(&intact);
    out->n_counts = intact.n_counts;
    out->n_held = intact.held;
    if (suspicious(&intact)) {
        job_progress(c->j, STAGE_CHANNELS, "which known mistake explains what the service gives");
        rc = best_change(c, list, seen, n, image, base, &intact, out, e);
    }
    out->wrong = out->as_if != CHANNEL_CHANGES || !intact.counts || (intact.n && !(out->intact <= NOISY));
    if (rc)
        return rc;
    count_words(list, seen, n, counts, sizeof(counts), c, base);
    say(out, &intact, counts, image);
    const enum finding_id id = finding_of(out, &intact, image);
    if (out->wrong && !(id == FINDING_T006 && job_finding(c->j, id)))
        finding_add(c->j->f, id, image ? "conversations with pictures" : "conversations of text", "%s",
                    out->words);
    return ERR_OK;
}
