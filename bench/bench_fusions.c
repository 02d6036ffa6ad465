/* SPDX-License-Identifier: Apache-2.0
 *
 * What fusions gain: one model, one copy of its weights, an engine with the graph as described and one with
 * each fusion (and with all), the same step in turn. Prints medians of the ratios of rounds, for one token
 * behind a context and for a piece of a prompt. usage: bench_fusions MODEL ROUNDS [THREADS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "base/thread.h"
#include "dev/dev.h"
#include "spec/spec.h"
#include "verify/runner.h"

#define CHUNK  64
#define AHEAD  64
#define ROUNDS 1000
#define CASES  (FUSION_N + 2) /* as described, each, all */

struct bench {
    struct d0 d0;
    struct findings f;
    struct ckpt *c;
    struct spec *s;
    struct dev d;
    struct weights *w;
    struct runner r[CASES];
    int32_t ids[CHUNK + AHEAD];
    double seconds[CASES][ROUNDS];
};

static uint32_t mask_of(unsigned i)
{
    return i == 0 ? 0 : i <= FUSION_N ? FUSION_BIT(i - 1) : fusions_exact();
}

static int open_all(struct bench *b, const char *dir, unsigned threads, struct err *e)
{
    int rc = ckpt_open(&b->c, dir, &b->f, &b->d0, e);
    if (rc == 0)
        rc = spec_open(&b->s, b->c, &(struct spec_options){.arch_path = NULL}, &b->f, &b->d0, e);
    if (rc == 0 && !b->s)
        rc = err_set(e, ERR_MISMATCH, "the model has findings: see day0 check");
    if (rc == 0)
        rc = dev_open(&b->d, &(struct dev_options){.name = "cpu", .n_threads = threads}, e);
    if (rc == 0)
        rc = weights_load(&b->w, b->s->graph, b->c, &b->d, &(struct load_options){.spec = b->s}, e);
    for (unsigned i = 0; rc == 0 && i < CASES; i++) {
        struct runner_size size = {
            .tokens = CHUNK, .seqs = 1, .rows = 1, .context = CHUNK + AHEAD, .fusions = mask_of(i)};
        rc = runner_open_graph(&b->r[i], &b->d, b->s->graph, b->w, &size, NULL, e);
    }
    return rc;
}

static int step(struct bench *b, unsigned i, uint32_t position, uint32_t n, double *seconds, struct err *e)
{
    struct step_result *res;
    struct runner_run run = {.tokens = b->ids, .n = n, .position = position, .flags = STEP_LAST_LOGITS};
    uint64_t begin = clock_ns();
    int rc = runner_step(&b->r[i], &run, 1, &res, e);
    *seconds = (double)(clock_ns() - begin) * 1e-9;
    return rc;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, unsigned n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static int measure(struct bench *b, const char *what, uint32_t position, uint32_t n, unsigned rounds,
                   struct err *e)
{
    double ratio[ROUNDS];
    for (unsigned k = 0; k < rounds; k++)
        for (unsigned i = 0; i < CASES; i++) {
            unsigned which = (i + k) % CASES;
            bool idle = which && !engine_fusions(b->r[which].x); /* the model has no such nodes */
            int rc = idle ? 0 : step(b, which, position, n, &b->seconds[which][k], e);
            if (rc)
                return rc;
        }
    for (unsigned i = 1; i < CASES; i++) {
        if (!engine_fusions(b->r[i].x))
            continue;
        for (unsigned k = 0; k < rounds; k++)
            ratio[k] = b->seconds[0][k] / b->seconds[i][k];
        double middle = median(ratio, rounds);
        printf("%-10s %-16s %.3f (%.3f to %.3f)\n", what,
               i <= FUSION_N ? fusion_info((enum fusion)(i - 1))->name : "all", middle, ratio[rounds / 4],
               ratio[rounds - 1 - rounds / 4]);
    }
    double *plain = b->seconds[0];
    printf("%-10s %-16s %.3f ms\n", what, "as described", median(plain, rounds) * 1e3);
    return 0;
}

int main(int argc, char **argv)
{
    static struct bench b;
    int64_t rounds = 0, threads = 0;
    struct err e = {0};
    double warm;
    if (argc < 3 || !str_to_i64(argv[2], &rounds) || rounds < 3 || rounds > ROUNDS ||
        (argc > 3 && (!str_to_i64(argv[3], &threads) || threads < 0 || threads > 1024))) {
        fprintf(stderr, "usage: bench_fusions MODEL ROUNDS [THREADS]\n");
        return 2;
    }
    b.d0.log.fd = -1;
    findings_init(&b.f, &b.d0.mem);
    int rc = open_all(&b, argv[1], (unsigned)threads, &e);
    for (uint32_t i = 0; i < CHUNK + AHEAD && rc == 0; i++)
        b.ids[i] = (int32_t)(i * 7 % (uint64_t)b.s->vocab_size);
    for (unsigned i = 0; rc == 0 && i < CASES;
         i++) /* the context that one token stands behind, and warm caches */
        rc = step(&b, i, 0, CHUNK, &warm, &e);
    if (rc == 0)
        rc = measure(&b, "one token", CHUNK, 1, (unsigned)rounds, &e);
    if (rc == 0)
        rc = measure(&b, "64 tokens", 0, CHUNK, (unsigned)rounds, &e);
    if (rc)
        fprintf(stderr, "bench_fusions: %s\n", e.message);
    for (unsigned i = 0; i < CASES; i++)
        runner_close(&b.r[i]);
    weights_free(b.w);
    if (b.d.api)
        dev_close(&b.d);
    spec_close(b.s);
    ckpt_close(b.c);
    findings_release(&b.f);
    return rc != 0;
}
