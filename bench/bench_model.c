/* SPDX-License-Identifier: Apache-2.0
 *
 * A whole model against this machine's limits. In every round, one after the other: plain reads of memory,
 * widening of each type that the weights are stored in, peaks of multiply-adds, then decoding of one request,
 * of eight together, and a prompt of 512 tokens. Printed: medians over rounds, of ratios to the limits of the
 * same round. Models: bench/models.py. usage: bench_model MODEL [ROUNDS] [THREADS] [ISA]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "limits.h"

#define MAX_ROUNDS 64
#define TOGETHER   8
#define PROMPT     512
#define SHORT      16 /* tokens of a prompt that is there to be continued */
#define NEW_TOKENS 16
#define CONTEXT    1024
#define N_TYPES    32

/* What one token reads, by the type of the codes. */
struct reading {
    double bytes[N_TYPES], values[N_TYPES]; /* with scales and what else the type needs */
    double states;                          /* bytes of keys and values */
    double prompt_flops;                    /* of the prompt's step */
};

/* One round; rates a second. */
struct round {
    double read, values[N_TYPES], fma, bf16;
    double one, together, prompt; /* tokens */
};

/* ---- what is read ---- */

static void add_weight(const struct graph *g, const struct d0_node *n, uint32_t id, struct reading *r)
{
    static const int64_t none[D0_N_DIMS];
    const struct d0_value *v = &g->values[id];
    uint64_t bytes;
    double share = 1, count = 1;
    if (v->kind != D0_VALUE_WEIGHT || n->op == D0_OP_EMBED || v->dtype >= N_TYPES ||
        !tensor_value_bytes(v, none, &bytes))
        return;
    for (uint32_t i = 0; i < v->n_dims; i++)
        count *= (double)v->dims[i];
    if (n->op == D0_OP_EXPERTS) /* of one token */
        share = fmin(1, (double)g->values[n->inputs[1]].dims[1] / (double)g->values[n->inputs[3]].dims[0]);
    r->bytes[v->dtype] += share * (double)bytes;
    r->values[v->dtype] += share * count;
}

static void count_reading(const struct graph *g, struct reading *r)
{
    struct graph_cost cost;
    *r = (struct reading){0};
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 1; k < g->nodes[i].n_inputs; k++)
            if (g->nodes[i].inputs[k] != D0_NO_VALUE)
                add_weight(g, &g->nodes[i], g->nodes[i].inputs[k], r);
    graph_cost(g, (const int64_t[]){1, 1, 1, CONTEXT / 16}, SHORT + NEW_TOKENS / 2, &cost);
    r->states = cost.state_bytes;
    graph_cost(g, (const int64_t[]){PROMPT, 1, 1, CONTEXT / 16}, 0, &cost);
    r->prompt_flops = cost.flops;
}

static double bytes_a_token(const struct reading *r)
{
    double sum = r->states;
    for (int t = 0; t < N_TYPES; t++)
        sum += r->bytes[t];
    return sum;
}

/* Tokens a second that memory and widening allow: each type as fast as the slower of the two. */
static double most_tokens(const struct reading *r, const struct round *x)
{
    double seconds = r->states / (x->read * 1e9);
    for (int t = 0; t < N_TYPES; t++) {
        double by_memory = r->bytes[t] / (x->read * 1e9), by_values = r->values[t] / (x->values[t] * 1e9);
        if (r->bytes[t] > 0)
            seconds += isnan(by_values) ? by_memory : fmax(by_memory, by_values);
    }
    return 1 / seconds;
}

/* ---- running ---- */

struct bench {
    struct session *s;
    struct limits *l;
    void *plan, *result;
    size_t plan_bytes, result_bytes;
    int failed; /* requests */
};

static void on_event(void *context, const struct sched_event *e)
{
    struct bench *b = context;
    b->failed += e->finish == SCHED_FAILED;
}

static int submit(struct sched *sched, struct bench *b, uint32_t n, uint32_t n_prompt, uint32_t max_new,
                  struct err *e)
{
    int32_t ids[PROMPT];
    int rc = ERR_OK;
    for (uint32_t k = 0; rc == ERR_OK && k < n; k++) {
        for (uint32_t i = 0; i < n_prompt; i++)
            ids[i] = (int32_t)(100 + (k * 131 + i * 17) % 5000 % (b->s->spec->vocab_size - 100));
        const struct sched_request r = {
            .id = k + 1, .prompt = ids, .n_prompt = n_prompt, .max_new = max_new, .ignore_stop = true};
        rc = sched_submit(sched, &r, e);
    }
    return rc;
}

/* n requests at a time; tokens a second of the steps in which each of them is decoded, or of its prompt. */
static int measure(struct bench *b, uint32_t n, uint32_t n_prompt, uint32_t max_new, double *decode,
                   double *prefill, struct err *e)
{
    struct sched *sched = NULL;
    const struct sched_options so = {
        .limits = *engine_limits(b->s->engine), .max_context = CONTEXT, .max_waiting = n};
    uint64_t decode_ns = 0, prefill_ns = 0, decoded = 0, prefilled = 0;
    int rc = sched_open(&sched, &so, e);
    if (rc == ERR_OK)
        rc = submit(sched, b, n, n_prompt, max_new, e);
    while (rc == ERR_OK) {
        struct step_plan *p = NULL;
        uint64_t begin = limits_now_ns(b->l);
        rc = sched_plan(sched, b->plan, b->plan_bytes, &p, e);
        if (rc != ERR_OK || !p)
            break;
        const bool decoding = p->n_tokens == n && p->n_seqs == n;
        const uint32_t tokens = p->n_tokens;
        rc = engine_step(b->s->engine, p, p->bytes, b->result, b->result_bytes, e);
        if (rc == ERR_OK)
            rc = sched_apply(sched, b->result, ((struct step_result *)b->result)->bytes, on_event, b, e);
        uint64_t ns = limits_now_ns(b->l) - begin;
        decode_ns += decoding ? ns : 0;
        decoded += decoding ? tokens : 0;
        prefill_ns += decoding ? 0 : ns;
        prefilled += decoding ? 0 : tokens;
    }
    sched_close(sched);
    if (decode)
        *decode = decode_ns ? (double)decoded * 1e9 / (double)decode_ns : NAN;
    if (prefill)
        *prefill = prefill_ns ? (double)prefilled * 1e9 / (double)prefill_ns : NAN;
    if (rc == ERR_OK && b->failed)
        rc = err_set(e, ERR_DEVICE, "%d requests failed", b->failed);
    return rc;
}

static int run_round(struct bench *b, const struct reading *r, struct round *x, struct err *e)
{
    x->read = limits_read(b->l);
    for (uint32_t t = 0; t < N_TYPES; t++)
        x->values[t] = r->bytes[t] > 0 ? limits_values(b->l, t) : NAN;
    x->fma = limits_fma(b->l, limits_wide());
    x->bf16 = limits_bf16(b->l);
    int rc = measure(b, 1, SHORT, NEW_TOKENS, &x->one, NULL, e);
    if (rc == ERR_OK)
        rc = measure(b, TOGETHER, SHORT, NEW_TOKENS, &x->together, NULL, e);
    if (rc == ERR_OK)
        rc = measure(b, 1, PROMPT, 1, NULL, &x->prompt, e);
    return rc;
}

/* ---- printing ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int n)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare);
    return sorted[n / 2];
}

#define MEDIAN(expression)                                                                                   \
    ({                                                                                                       \
        double all_[MAX_ROUNDS] = {0};                                                                       \
        for (int i_ = 0; i_ < n; i_++) {                                                                     \
            const struct round *x = &rounds[i_];                                                             \
            all_[i_] = (expression);                                                                         \
        }                                                                                                    \
        median(all_, n);                                                                                     \
    })

static void print(const struct reading *r, const struct round *rounds, int n)
{
    const double bytes = bytes_a_token(r), flops = r->prompt_flops / PROMPT;
    bool coded = false;
    printf("a token reads %.4f GB; a prompt of %d takes %.3f GFLOP a token\n", bytes / 1e9, PROMPT,
           flops / 1e9);
    printf("limits: read %.1f GB/s, FMA %.0f GFLOP/s, vdpbf16ps %.0f GFLOP/s\n", MEDIAN(x->read),
           MEDIAN(x->fma), MEDIAN(x->bf16));
    for (int t = 0; t < N_TYPES; t++) {
        if (r->bytes[t] < bytes / 1000) /* constants and norms */
            continue;
        coded |= dtype_bits((uint32_t)t) < 16;
        printf("  %-8s %8.4f GB a token, widened at most at %6.1f GB/s\n", dtype_name((uint32_t)t),
               r->bytes[t] / 1e9, MEDIAN(x->values[t] * r->bytes[t] / r->values[t]));
    }
    printf("%-26s %10s %12s %10s %6s\n", "", "tokens/s", "", "of limit", "aim");
    printf("%-26s %10.2f %7.1f GB/s %9.0f%% %5d%%\n", "decode, 1 request", MEDIAN(x->one),
           MEDIAN(x->one * bytes / 1e9), 100 * MEDIAN(x->one / most_tokens(r, x)), coded ? 85 : 90);
    printf("%-26s %10.2f %7.1f x one\n", "decode, 8 together (aim 5)", MEDIAN(x->together),
           MEDIAN(x->together / x->one));
    printf("%-26s %10.2f %7.0f GFLOP/s %6.0f%% of FMA, %.0f%% of vdpbf16ps (aim 70%%)\n",
           "prefill of 512, float32", MEDIAN(x->prompt), MEDIAN(x->prompt * flops / 1e9),
           100 * MEDIAN(x->prompt * flops / 1e9 / x->fma), 100 * MEDIAN(x->prompt * flops / 1e9 / x->bf16));
}

static int run(struct bench *b, int n, struct err *e)
{
    struct round rounds[MAX_ROUNDS];
    struct reading r;
    count_reading(b->s->spec->graph, &r);
    b->plan_bytes = step_plan_bytes(engine_limits(b->s->engine));
    b->result_bytes = engine_result_bytes(engine_limits(b->s->engine), false);
    b->plan = malloc(b->plan_bytes);
    b->result = malloc(b->result_bytes);
    int rc = b->plan && b->result ? measure(b, 1, SHORT, 2, NULL, NULL, e) /* touches all pages */
                                  : err_set(e, ERR_NOMEM, "no memory for step messages");
    for (int i = 0; rc == ERR_OK && i < n; i++)
        rc = run_round(b, &r, &rounds[i], e);
    if (rc == ERR_OK)
        print(&r, rounds, n);
    free(b->plan);
    free(b->result);
    return rc;
}

int main(int argc, char **argv)
{
    struct d0 d0 = {.log = {.fd = -1}};
    struct session s = {0};
    struct limits l = {0};
    struct findings f;
    struct err e = {0};
    const int n = argc > 2 ? atoi(argv[2]) : 5;
    const long threads = argc > 3 ? atoi(argv[3]) : sysconf(_SC_NPROCESSORS_ONLN);
    if (argc < 2 || n < 1 || n > MAX_ROUNDS || threads < 1 || threads > 64) {
        fprintf(stderr, "usage: bench_model MODEL [ROUNDS] [THREADS] [ISA]\n");
        return 2;
    }
    findings_init(&f, &d0.mem);
    const struct session_options so = {.model_dir = argv[1],
                                       .isa = argc > 4 ? argv[4] : NULL,
                                       .n_threads = (unsigned)threads,
                                       .context = CONTEXT,
                                       .max_seqs = TOGETHER,
                                       .max_tokens = PROMPT,
                                       .kv_tokens = TOGETHER * CONTEXT};
    int rc = session_open(&s, &so, &f, &d0, &e);
    if (rc == ERR_OK)
        rc = limits_open(&l, (unsigned)threads, &e);
    if (rc == ERR_OK) {
        printf("%s, %ld thread%s, %d rounds\n", argv[1], threads, threads == 1 ? " (processor time)" : "s",
               n);
        struct bench b = {.s = &s, .l = &l};
        rc = run(&b, n, &e);
    }
    if (rc != ERR_OK)
        fprintf(stderr, "bench_model: %s\n", e.message);
    limits_close(&l);
    session_close(&s);
    findings_release(&f);
    return rc == ERR_OK ? 0 : 1;
}
