/* SPDX-License-Identifier: Apache-2.0
 *
 * The linear kernel and that of experts against this machine's limits. In every round, one after the other:
 * bandwidth of plain reads, peak of float32 fused multiply-adds, then the kernel at each shape. Printed:
 * medians of ratios over rounds, since the bandwidth of shared machines changes within seconds, and the best
 * of all rounds over the best limit, for machines that others use meanwhile. With one thread only its own
 * processor time counts. First of all both forms of the operators that have two, in turn.
 * usage: bench_kernels [THREADS] [ROUNDS] [ISA] [forms|linear]: only these]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/thread.h"
#include "kern/kern.h"
#include "limits.h"

#define MAX_ROUNDS    64
#define SCRATCH_BYTES ((size_t)8 << 20) /* of one thread */

struct shape {
    int64_t m, n, k, segments;
    uint32_t dtype;
    int64_t x_format; /* rounding of activations; its limit is the peak of products of BF16 pairs */
};

struct job {
    const struct kern_variant *v;
    struct kern_args args;
};

static void run_items(void *context, size_t first, size_t last, unsigned thread)
{
    struct job *j = context;
    j->v->run(&j->args, first, last, thread);
}

/* One run of the kernel on weights that no cache holds (the slice moves through the buffer). Seconds. */
static double measure_linear(struct limits *m, enum kern_isa isa, const struct shape *s, float *x, float *out,
                             void *scratch, void *shared, size_t at)
{
    size_t bytes = (size_t)(s->n * s->k) * (s->dtype == D0_F32 ? 4 : 2);
    size_t slots = m->bytes / bytes;
    struct job j = {.v = kern_pick_rounded(D0_OP_LINEAR, s->dtype, s->x_format, isa)};
    j.args = (struct kern_args){.in = {x, m->buffer + at % slots * bytes},
                                .out = {out},
                                .in_dtype = {D0_F32, s->dtype},
                                .tokens = s->m,
                                .n_rows = s->m,
                                .k = s->k,
                                .n = s->n,
                                .segments = s->segments,
                                .scratch = scratch,
                                .scratch_bytes = SCRATCH_BYTES,
                                .shared = shared};
    j.args.attr[D0_ATTR_X_FORMAT].i = s->x_format;
    if (j.v->scratch && j.v->scratch(&j.args) > SCRATCH_BYTES)
        return NAN;
    uint64_t t = limits_now_ns(m);
    for (j.args.phase = 0; j.args.phase < kern_phases(j.v); j.args.phase++)
        pool_run(m->pool, j.v->items(&j.args), j.v->grain, run_items, &j);
    return (double)(limits_now_ns(m) - t) * 1e-9;
}

/* ---- experts ---- */

struct moe_shape {
    int64_t t, d, inter, n, slots, layout, transposed;
    uint32_t dtype;
    int64_t form;
};

static const struct moe_shape moe_shapes[] = {
    {1, 2048, 768, 32, 8, 0, 0, D0_BF16, 1},   {4, 2048, 768, 32, 8, 0, 0, D0_BF16, 1},
    {16, 2048, 768, 32, 8, 0, 0, D0_BF16, 1},  {64, 2048, 768, 32, 8, 0, 0, D0_BF16, 1},
    {512, 2048, 768, 32, 8, 0, 0, D0_BF16, 1}, {512, 2048, 768, 32, 8, 2, 1, D0_BF16, 1},
    {512, 1024, 512, 32, 8, 0, 0, D0_BF16, 1}, {512, 1024, 512, 32, 8, 0, 0, D0_F32, 1},
    {1, 2048, 768, 32, 8, 2, 1, D0_BF16, 1},
};
#define N_MOE (sizeof moe_shapes / sizeof moe_shapes[0])

struct moe_memory {
    float *x, *out, *weights;
    int32_t *ids;
    void *scratch, *shared;
    size_t shared_bytes;
};

/* Each token chooses `slots` different experts, all as often. */
static void choose(const struct moe_shape *s, struct moe_memory *y, uint64_t seed)
{
    for (int64_t i = 0; i < s->t * s->slots; i++) {
        int64_t first = (int64_t)(rng_u64(seed, (uint64_t)(i / s->slots)) % (uint64_t)s->n);
        y->ids[i] = (int32_t)((first + i % s->slots * (s->n / s->slots)) % s->n);
        y->weights[i] = 1.0f / (float)s->slots;
    }
}

/* As measure_linear. *bytes: of the experts that somebody chose. Seconds. */
static double measure_experts(struct limits *m, enum kern_isa isa, const struct moe_shape *s,
                              struct moe_memory *y, size_t at, double *bytes)
{
    size_t one = (size_t)(s->d * s->inter) * (s->dtype == D0_F32 ? 4 : 2), all = one * (size_t)s->n * 3;
    bool chosen[64] = {false}, fused = s->layout != 0;
    unsigned char *w = m->buffer + at % (m->bytes / all) * all;
    choose(s, y, at);
    *bytes = 0;
    for (int64_t i = 0; i < s->t * s->slots; i++) {
        *bytes += chosen[y->ids[i]] ? 0 : 3 * (double)one;
        chosen[y->ids[i]] = true;
    }
    struct job j = {.v = kern_pick(D0_OP_EXPERTS, s->dtype, isa)};
    j.args = (struct kern_args){.in = {y->x, y->ids, y->weights, w, w + (size_t)s->n * one,
                                       fused ? NULL : w + 2 * (size_t)s->n * one},
                                .out = {y->out},
                                .in_dtype = {D0_F32, D0_I32, D0_F32, s->dtype, s->dtype, s->dtype},
                                .in_dims = {[1] = {s->t, s->slots, 1, 1}, [3] = {s->n, s->d, s->inter, 1}},
                                .tokens = s->t,
                                .n_rows = s->t,
                                .k = s->d,
                                .n = s->d,
                                .scratch = y->scratch,
                                .scratch_bytes = SCRATCH_BYTES,
                                .shared = y->shared};
    j.args.attr[D0_ATTR_INTER].i = s->inter;
    j.args.attr[D0_ATTR_LAYOUT].i = s->layout;
    j.args.attr[D0_ATTR_TRANSPOSED].i = s->transposed;
    j.args.attr[D0_ATTR_FORM].i = s->form;
    if (j.v->scratch(&j.args) > SCRATCH_BYTES || j.v->shared(&j.args) > y->shared_bytes)
        return NAN;
    uint64_t t = limits_now_ns(m);
    for (j.args.phase = 0; j.args.phase < kern_phases(j.v); j.args.phase++)
        pool_run(m->pool, j.v->items(&j.args), j.v->grain, run_items, &j);
    return (double)(limits_now_ns(m) - t) * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

/* of a sorted array */
static double best(const double *v, int n)
{
    return v[n - 1];
}

static const struct shape shapes[] = {
    {1, 4096, 4096, 1, D0_BF16},
    {1, 4096, 4096, 64, D0_BF16},
    {1, 4096, 4096, 1, D0_F32},
    {8, 4096, 4096, 1, D0_BF16},
    {8, 4096, 4096, 64, D0_BF16},
    {16, 4096, 4096, 1, D0_BF16},
    {32, 4096, 4096, 1, D0_BF16},
    {64, 4096, 4096, 1, D0_BF16},
    {64, 4096, 4096, 64, D0_BF16},
    {512, 4096, 4096, 1, D0_BF16},
    {512, 4096, 4096, 8, D0_BF16},
    {512, 4096, 4096, 64, D0_BF16},
    {512, 4864, 896, 1, D0_BF16},
    {1, 4096, 4096, 1, D0_BF16, D0_X_BF16},
    {8, 4096, 4096, 1, D0_BF16, D0_X_BF16},
    {16, 4096, 4096, 1, D0_BF16, D0_X_BF16},
    {32, 4096, 4096, 1, D0_BF16, D0_X_BF16},
    {64, 4096, 4096, 1, D0_BF16, D0_X_BF16},
    {512, 4096, 4096, 1, D0_BF16, D0_X_BF16},
    {512, 4096, 4096, 64, D0_BF16, D0_X_BF16},
    {1, 4864, 896, 1, D0_BF16, D0_X_BF16},
    {8, 4864, 896, 1, D0_BF16, D0_X_BF16},
    {64, 4864, 896, 1, D0_BF16, D0_X_BF16},
    {512, 4864, 896, 1, D0_BF16, D0_X_BF16},
};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static void fill(struct limits *m)
{
    uint16_t *w = (uint16_t *)m->buffer; /* bf16 values near 1/64, also sane as float32 pairs */
    for (size_t i = 0; i < m->bytes / 2; i++)
        w[i] = (uint16_t)(0x3C80 | (i * 2654435761u >> 25 & 0x807F));
}

/* The experts, rounds of their own: ratios to the limits of the same round. */
static void experts_table(struct limits *m, enum kern_isa isa, int rounds, struct moe_memory *y)
{
    double of_read[N_MOE][MAX_ROUNDS], of_peak[N_MOE][MAX_ROUNDS], gbs[N_MOE][MAX_ROUNDS],
        gf[N_MOE][MAX_ROUNDS];
    double read_best = 0, peak_best = 0;
    for (int r = 0; r < rounds; r++)
        for (size_t i = 0; i < N_MOE; i++) {
            const struct moe_shape *s = &moe_shapes[i];
            double bytes, peak = limits_fma(m, isa >= KERN_AVX512), read = limits_read(m),
                          t = measure_experts(m, isa, s, y, (size_t)r * 7 + i, &bytes);
            peak_best = peak > peak_best ? peak : peak_best;
            read_best = read > read_best ? read : read_best;
            gbs[i][r] = bytes / t * 1e-9;
            gf[i][r] = 6.0 * (double)(s->t * s->slots * s->d * s->inter) / t * 1e-9;
            of_read[i][r] = gbs[i][r] / read;
            of_peak[i][r] = gf[i][r] / peak;
        }
    printf("experts; best of all rounds: read %.1f GB/s, float32 FMA peak %.0f GFLOP/s\n", read_best,
           peak_best);
    printf("%4s %6s %6s %7s %12s %5s %10s %9s %10s %9s %9s %9s\n", "T", "D", "I", "experts", "layout", "type",
           "weightGB/s", "of read", "GFLOP/s", "of peak", "of read", "of peak");
    for (size_t i = 0; i < N_MOE; i++) {
        const struct moe_shape *s = &moe_shapes[i];
        double gb = median(gbs[i], rounds), flops = median(gf[i], rounds);
        printf("%4d %6d %6d %4d/%-2d %10d%s %5s %10.1f %8.0f%% %10.0f %8.0f%% %8.0f%% %8.0f%%\n", (int)s->t,
               (int)s->d, (int)s->inter, (int)s->slots, (int)s->n, (int)s->layout,
               s->transposed ? " t" : "  ", s->dtype == D0_F32 ? "F32" : "BF16", gb,
               100 * median(of_read[i], rounds), flops, 100 * median(of_peak[i], rounds),
               100 * best(gbs[i], rounds) / read_best, 100 * best(gf[i], rounds) / peak_best);
    }
}

/* ---- forms ---- */

/* One operator with both forms of its attribute `form`, in turn; t rows after `before` positions. */
struct form_shape {
    uint32_t op;
    int64_t t, before; /* EXPERTS, DELTA_RULE: before does not matter */
    int64_t decay;     /* DELTA_RULE: per channel */
};

static const struct form_shape form_shapes[] = {
    {D0_OP_MLA, 512, 0, 0},        {D0_OP_MLA, 128, 0, 0},        {D0_OP_MLA, 512, 3584, 0},
    {D0_OP_MLA, 256, 3840, 0},     {D0_OP_MLA, 128, 3968, 0},     {D0_OP_MLA, 1, 4095, 0},
    {D0_OP_DELTA_RULE, 512, 0, 0}, {D0_OP_DELTA_RULE, 512, 0, 1}, {D0_OP_DELTA_RULE, 16, 0, 0},
    {D0_OP_DELTA_RULE, 4, 0, 0},   {D0_OP_DELTA_RULE, 1, 0, 0},   {D0_OP_EXPERTS, 512, 0, 0},
    {D0_OP_EXPERTS, 16, 0, 0},     {D0_OP_EXPERTS, 1, 0, 0},
};
#define N_FORMS       (sizeof form_shapes / sizeof form_shapes[0])
#define MLA_HEADS     16
#define MLA_LATENT    512
#define MLA_ROPE      64
#define MLA_DIM       128 /* not rotated, and of values */
#define MLA_PAGE      16
#define MLA_POSITIONS 4096
#define DELTA_HEADS   16
#define DELTA_DIM     128

struct form_memory {
    float *q, *k, *v, *g, *beta, *out, *state;
    float head[DELTA_HEADS], bias[DELTA_HEADS * DELTA_DIM];
    int32_t *positions, *seq_of, *table, slot;
    struct moe_memory *moe;
};

static double run_job(struct limits *m, struct job *j)
{
    if (j->v->scratch && j->v->scratch(&j->args) > SCRATCH_BYTES)
        return (double)NAN;
    uint64_t t = limits_now_ns(m);
    pool_run(m->pool, j->v->items(&j->args), j->v->grain, run_items, j);
    return (double)(limits_now_ns(m) - t) * 1e-9;
}

static double measure_mla(struct limits *m, enum kern_isa isa, const struct form_shape *s,
                          struct form_memory *y, int64_t form)
{
    const int64_t width = MLA_LATENT + MLA_ROPE, pages = MLA_POSITIONS / MLA_PAGE, rows = MLA_HEADS * MLA_DIM;
    struct job j = {.v = kern_pick(D0_OP_MLA, D0_BF16, isa)};
    j.args = (struct kern_args){
        .in = {y->q, m->buffer, m->buffer + (m->bytes >> 1), y->positions + s->before, y->seq_of, y->table},
        .out = {y->out},
        .in_dtype = {D0_F32, D0_BF16, D0_BF16, D0_I32, D0_I32, D0_I32},
        .in_dims = {{s->t, rows + MLA_HEADS * MLA_ROPE, 1, 1},
                    {pages, 1, MLA_PAGE, width},
                    {2 * rows, MLA_LATENT, 1, 1},
                    [5] = {1, pages, 1, 1}},
        .tokens = s->t,
        .seqs = 1,
        .n_rows = s->t,
        .table = pages,
        .heads = MLA_HEADS,
        .v_dim = MLA_DIM,
        .scale = 0.07,
        .scratch = y->moe->scratch,
        .scratch_bytes = SCRATCH_BYTES};
    j.args.attr[D0_ATTR_NOPE].i = MLA_DIM;
    j.args.attr[D0_ATTR_ROPE].i = MLA_ROPE;
    j.args.attr[D0_ATTR_LATENT].i = MLA_LATENT;
    j.args.attr[D0_ATTR_FORM].i = form;
    return run_job(m, &j);
}

static double measure_delta(struct limits *m, enum kern_isa isa, const struct form_shape *s,
                            struct form_memory *y, int64_t form)
{
    const int64_t width = DELTA_HEADS * DELTA_DIM;
    struct job j = {.v = kern_pick(D0_OP_DELTA_RULE, 0, isa)};
    j.args =
        (struct kern_args){.in = {y->q, y->k, y->v, y->g, y->beta, (unsigned char *)y->head,
                                  (unsigned char *)y->bias, y->state, y->positions, y->seq_of, &y->slot},
                           .out = {y->out},
                           .state = {y->state},
                           .in_dtype = {[5] = D0_F32, [6] = D0_F32, [7] = D0_F32},
                           .in_dims = {[7] = {1, DELTA_HEADS, DELTA_DIM, DELTA_DIM}, [10] = {1, 1, 1, 1}},
                           .tokens = s->t,
                           .n_rows = s->t,
                           .k = width,
                           .n = width,
                           .scratch = y->moe->scratch,
                           .scratch_bytes = SCRATCH_BYTES};
    j.args.attr[D0_ATTR_HEADS].i = j.args.attr[D0_ATTR_V_HEADS].i = DELTA_HEADS;
    j.args.attr[D0_ATTR_DIM].i = j.args.attr[D0_ATTR_V_DIM].i = DELTA_DIM;
    j.args.attr[D0_ATTR_SCALE].f = 0.088;
    j.args.attr[D0_ATTR_EPS].f = 1e-6;
    j.args.attr[D0_ATTR_DECAY].i = s->decay;
    j.args.attr[D0_ATTR_FORM].i = form;
    return run_job(m, &j);
}

static double measure_form(struct limits *m, enum kern_isa isa, const struct form_shape *s,
                           struct form_memory *y, int64_t form, size_t at)
{
    struct moe_shape e = {s->t, 1024, 512, 32, 8, 0, 0, D0_BF16, form};
    double bytes;
    if (s->op == D0_OP_MLA)
        return measure_mla(m, isa, s, y, form);
    return s->op == D0_OP_DELTA_RULE ? measure_delta(m, isa, s, y, form)
                                     : measure_experts(m, isa, &e, y->moe, at, &bytes);
}

static bool form_memory_open(struct form_memory *y, struct moe_memory *moe)
{
    const size_t rows = 512, width = MLA_HEADS * (MLA_DIM + MLA_ROPE);
    float **all[] = {&y->q, &y->k, &y->v, &y->g, &y->beta, &y->out, &y->state};
    y->moe = moe;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        *all[i] = aligned_alloc(64, rows * width * sizeof(float));
        for (size_t e = 0; *all[i] && e < rows * width; e++)
            (*all[i])[e] = (float)(rng_f64(2 + i, e) - 0.5);
        if (!*all[i])
            return false;
    }
    y->positions = malloc(MLA_POSITIONS * sizeof *y->positions);
    y->seq_of = calloc(rows, sizeof *y->seq_of);
    y->table = malloc(MLA_POSITIONS / MLA_PAGE * sizeof *y->table);
    for (int32_t i = 0; y->positions && i < MLA_POSITIONS; i++)
        y->positions[i] = i;
    for (int32_t i = 0; y->table && i < MLA_POSITIONS / MLA_PAGE; i++)
        y->table[i] = MLA_POSITIONS / MLA_PAGE - 1 - i;
    return y->positions && y->seq_of && y->table;
}

/* Form 0, then form 1, in each round; how much faster the second is. */
static void forms_table(struct limits *m, enum kern_isa isa, int rounds, struct moe_memory *moe)
{
    struct form_memory y = {0};
    if (!form_memory_open(&y, moe))
        return;
    printf(
        "forms: time of form 0 over form 1, medians of %d rounds\n%-12s %5s %7s %6s %12s %12s %8s %8s %8s\n",
        rounds, "operator", "T", "before", "decay", "form 0 us", "form 1 us", "ratio", "least", "most");
    for (size_t i = 0; i < N_FORMS; i++) {
        const struct form_shape *s = &form_shapes[i];
        double t[2][MAX_ROUNDS], ratio[MAX_ROUNDS];
        for (int r = 0; r < rounds; r++) {
            for (int64_t form = 0; form < 2; form++)
                t[form][r] = measure_form(m, isa, s, &y, form, (size_t)r);
            ratio[r] = t[0][r] / t[1][r];
        }
        double middle = median(ratio, rounds);
        printf("%-12s %5d %7d %6d %12.0f %12.0f %8.2f %8.2f %8.2f\n",
               s->op == D0_OP_MLA          ? "mla"
               : s->op == D0_OP_DELTA_RULE ? "delta_rule"
                                           : "experts",
               (int)s->t, (int)s->before, (int)s->decay, 1e6 * median(t[0], rounds),
               1e6 * median(t[1], rounds), middle, ratio[0], ratio[rounds - 1]);
    }
    float *all[] = {y.q, y.k, y.v, y.g, y.beta, y.out, y.state};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    free(y.positions);
    free(y.seq_of);
    free(y.table);
}

int main(int argc, char **argv)
{
    unsigned threads = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 2;
    threads = threads ? threads : 1;
    int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 9;
    rounds = rounds < 1 ? 1 : rounds > MAX_ROUNDS ? MAX_ROUNDS : rounds;
    struct limits m;
    struct err e = {0};
    enum kern_isa isa = kern_isa_best();
    if (argc > 3 && (kern_isa_parse(argv[3], &isa) != ERR_OK || !kern_isa_available(isa)))
        return 2;
    if (isa == KERN_REF || limits_open(&m, threads, &e) != ERR_OK)
        return 3;
    float *x = aligned_alloc(64, 512 * 4096 * 4), *out = aligned_alloc(64, 512 * 8192 * 4);
    void *scratch = aligned_alloc(64, threads * SCRATCH_BYTES);
    struct moe_memory moe = {.x = x, .out = out, .scratch = scratch, .shared_bytes = (size_t)32 << 20};
    moe.ids = malloc(512 * 8 * sizeof *moe.ids);
    moe.weights = malloc(512 * 8 * sizeof *moe.weights);
    moe.shared = aligned_alloc(64, moe.shared_bytes);
    if (!x || !out || !scratch || !moe.ids || !moe.weights || !moe.shared)
        return 3;
    fill(&m);
    for (size_t i = 0; i < 512 * 4096; i++)
        x[i] = (float)(rng_f64(1, i) - 0.5);
    double gbs[N_SHAPES][MAX_ROUNDS], of_read[N_SHAPES][MAX_ROUNDS], gf[N_SHAPES][MAX_ROUNDS],
        of_peak[N_SHAPES][MAX_ROUNDS];
    double reads[MAX_ROUNDS], peaks[MAX_ROUNDS], pairs[MAX_ROUNDS];
    const char *only = argc > 4 ? argv[4] : "";
    if (strcmp(only, "linear") != 0)
        forms_table(&m, isa, rounds, &moe);
    if (strcmp(only, "forms") == 0) {
        limits_close(&m);
        return 0;
    }
    if (strcmp(only, "linear") != 0)
        experts_table(&m, isa, rounds, &moe);
    for (int r = 0; r < rounds; r++) {
        peaks[r] = limits_fma(&m, isa >= KERN_AVX512);
        pairs[r] = isa == KERN_AVX512BF16 ? limits_bf16(&m) : peaks[r];
        reads[r] = limits_read(&m);
        for (size_t i = 0; i < N_SHAPES; i++) {
            const struct shape *s = &shapes[i];
            double read = limits_read(&m);
            reads[r] = read > reads[r] ? read : reads[r];
            double t = measure_linear(&m, isa, s, x, out, scratch, moe.shared, (size_t)r * 7 + i);
            gbs[i][r] = (double)(s->n * s->k) * (s->dtype == D0_F32 ? 4 : 2) / t * 1e-9;
            gf[i][r] = 2.0 * (double)(s->m * s->n * s->k) / t * 1e-9;
            of_read[i][r] = gbs[i][r] / read;
            of_peak[i][r] = gf[i][r] / (s->x_format ? pairs[r] : peaks[r]);
        }
    }
    double read = median(reads, rounds), peak = median(peaks, rounds), pair = median(pairs, rounds);
    printf("isa %s, %u threads, %d rounds, medians: read %.1f GB/s, float32 FMA peak %.0f GFLOP/s\n",
           kern_isa_name(isa), threads, rounds, read, peak);
    printf("rows rounded to BF16 (x 1) are held to the peak of products of pairs: %.0f GFLOP/s, best %.0f\n",
           pair, best(pairs, rounds));
    read = best(reads, rounds);
    peak = best(peaks, rounds);
    pair = best(pairs, rounds);
    printf("best of all rounds (last two columns): read %.1f GB/s, float32 FMA peak %.0f GFLOP/s\n", read,
           peak);
    printf("%4s %6s %6s %4s %5s x %10s %9s %10s %9s %9s %9s\n", "M", "N", "K", "S", "type", "weightGB/s",
           "of read", "GFLOP/s", "of peak", "of read", "of peak");
    for (size_t i = 0; i < N_SHAPES; i++) {
        const struct shape *s = &shapes[i];
        double gb = median(gbs[i], rounds), flops = median(gf[i], rounds);
        printf("%4d %6d %6d %4d %5s %d %10.1f %8.0f%% %10.0f %8.0f%% %8.0f%% %8.0f%%\n", (int)s->m, (int)s->n,
               (int)s->k, (int)s->segments, s->dtype == D0_F32 ? "F32" : "BF16", (int)s->x_format, gb,
               100 * median(of_read[i], rounds), flops, 100 * median(of_peak[i], rounds),
               100 * best(gbs[i], rounds) / read, 100 * best(gf[i], rounds) / (s->x_format ? pair : peak));
    }
    limits_close(&m);
    return 0;
}
