/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: parity in 16 bits. transformers ran each family in bfloat16 and in float32 on the same weights, every
 * layer fed with what float32 gave (rounded to bfloat16), and tests/parity/golden/FAMILY.halves.json holds
 * how far apart the two were: of each probe and of the logits the worst and the median row, relative L2. Here
 * the same weights are stored as BF16, the KV pages are BF16, each piece of the model is fed with the
 * recorded values of float32, and neither row may be off by more than TIMES that. Then the run is broken,
 * once for each break below: a comparison that does not see that fails.
 *
 *   halves [--only FAMILY] [--break NAME] [--all] | --table
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "recorded.h"
#include "tiny.h"

#define TIMES   2.0
#define THREADS 2
#define WAIT_NS UINT64_C(10000000000)

#define TREE TEST_SOURCE_ROOT "/tests/parity"

enum breakage { BREAK_NONE, BREAK_INPUTS, BREAK_WEIGHTS, N_BREAKS };
static const char *const breaks[N_BREAKS] = {
    [BREAK_NONE] = "",
    [BREAK_INPUTS] = "inputs",  /* what is fed is cut to four bits */
    [BREAK_WEIGHTS] = "weights" /* so is every weight but the embedding */
};

struct tap {
    unsigned n, failed;
    bool all, table;
};

static void result(struct tap *tap, bool ok, const char *name, const char *detail)
{
    tap->failed += !ok;
    tap->n++;
    if (!ok || !tap->table)
        printf("%sok %u - %s: %s\n", ok ? "" : "not ", tap->n, name, detail);
    fflush(stdout);
}

struct family {
    struct tap *tap;
    const char *name;
    struct d0 d0;
    struct tiny t;
    char dir[64];
    struct tiny_model m;
    struct reference *reference;
    const struct json *limits; /* probe -> [worst, median] */
};

/* Of one run over all pieces. `theirs` belongs to the probe with the largest part of its limit. */
struct verdict {
    double part; /* of what is allowed; beyond 1 is too far */
    char where[128];
    double worst, median, their_worst, their_median; /* there */
    double median_part; /* median over the probes of ours / theirs, by worst rows */
    size_t probes;
    double *parts; /* [cap] */
    size_t cap;
};

static float four_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xFFF00000u; /* sign, exponent, three bits of mantissa */
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double part_of(double ours, double theirs)
{
    return ours == 0 ? 0 : theirs > 0 ? ours / (TIMES * theirs) : INFINITY;
}

/* error[rows] is sorted. */
static int judge(const struct family *f, struct verdict *v, const char *name, double *error, size_t rows,
                 struct err *e)
{
    const struct json *limit = json_get(f->limits, name);
    double worst, median;
    if (!limit || !json_f64(json_at(limit, 0), &worst) || !json_f64(json_at(limit, 1), &median))
        return err_set(e, ERR_MISSING, "%s: no error of the 16-bit run was recorded", name);
    qsort(error, rows, sizeof *error, by_size);
    double our_worst = error[rows - 1], our_median = error[rows / 2];
    double part = fmax(part_of(our_worst, worst), part_of(our_median, median));
    if (f->tap->all)
        printf("#   %-56s worst %.1e of %.1e, median %.1e of %.1e\n", name, our_worst, worst, our_median,
               median);
    if (part > v->part || v->probes == 0) {
        v->part = part;
        v->worst = our_worst, v->median = our_median;
        v->their_worst = worst, v->their_median = median;
        snprintf(v->where, sizeof v->where, "%.120s", name);
    }
    if (v->probes < v->cap)
        v->parts[v->probes] = TIMES * part;
    v->probes++;
    return ERR_OK;
}

struct fed {
    struct family *f;
    struct dev *d;
    enum breakage broken;
    struct verdict *v;
};

static bool is_embedding(const struct graph *g, uint32_t value)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == D0_OP_EMBED && g->nodes[i].inputs[1] == value)
            return true;
    return false;
}

static int break_weights(struct dev *d, const struct graph *g, const struct weights *w, struct err *e)
{
    struct d0_queue *q;
    int rc = dev_queue(d, &q, e);
    for (uint32_t i = 0; rc == 0 && i < g->n_values; i++) {
        const struct d0_value *v = &g->values[i];
        uint64_t n;
        if (v->kind != D0_VALUE_WEIGHT || v->dtype != D0_BF16 || g->info[i].constant || is_embedding(g, i) ||
            !shape_elements(v->dims, v->n_dims, &n))
            continue;
        uint16_t *x = malloc((size_t)n * sizeof *x);
        rc = x ? dev_copy_out(d, q, w->buffers[i], 0, x, n * sizeof *x, e)
               : err_set(e, ERR_NOMEM, "no memory for weights");
        if (rc == 0)
            rc = dev_wait(d, q, WAIT_NS, e);
        for (uint64_t k = 0; rc == 0 && k < n; k++)
            x[k] &= 0xFFF0u;
        if (rc == 0)
            rc = dev_copy_in(d, q, w->buffers[i], 0, x, n * sizeof *x, e);
        if (rc == 0)
            rc = dev_wait(d, q, WAIT_NS, e);
        free(x);
    }
    dev_queue_free(d, q);
    return rc;
}

static int judge_probes(const struct family *f, struct runner *run, double *error, struct verdict *v,
                        struct err *e)
{
    const struct reference *r = f->reference;
    size_t cap = runner_probe_floats(f->m.s->graph, (uint32_t)r->n_ids);
    float *x = malloc((cap ? cap : 1) * sizeof *x);
    int rc = x ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for probes");
    for (size_t i = 0; rc == 0 && i < engine_probes(run->x); i++) {
        const struct reference_probe *p = recorded_probe(r, engine_probe_name(run->x, i));
        size_t rows, width;
        if (!p)
            continue;
        rc = engine_probe_read(run->x, i, x, cap, &rows, &width, e);
        if (rc == 0 && (width != p->width || rows != p->rows))
            rc = err_set(e, ERR_MISMATCH, "%s is %zu wide, recorded %zu", p->name, width, p->width);
        for (size_t k = 0; rc == 0 && k < rows; k++)
            error[k] = probe_error(p, k, x + k * width);
        if (rc == 0)
            rc = judge(f, v, p->name, error, rows, e);
    }
    free(x);
    return rc;
}

static int run_piece(void *ctx, const struct graph *g, struct err *e)
{
    struct fed *fed = ctx;
    struct family *f = fed->f;
    const struct reference *r = f->reference;
    uint32_t n = (uint32_t)r->n_ids;
    const struct runner_size size = {.tokens = n, .seqs = 1, .rows = n, .context = n, .probes = true};
    bool logits = recorded_ends_in_logits(g);
    struct runner_run one = {.tokens = r->ids, .n = n, .flags = logits ? STEP_ALL_LOGITS : 0};
    struct runner run = {.x = NULL};
    struct step_result *res;
    double *error = malloc(n * sizeof *error); /* [rows] */
    int rc = error ? weights_load(&run.weights, g, f->m.c, fed->d, &(struct load_options){.spec = f->m.s}, e)
                   : err_set(e, ERR_NOMEM, "no memory for errors");
    if (rc == 0 && fed->broken == BREAK_WEIGHTS)
        rc = break_weights(fed->d, g, run.weights, e);
    if (rc == 0)
        rc = runner_open_graph(&run, fed->d, g, run.weights, &size, NULL, e);
    if (rc == 0)
        rc = recorded_feed(r, &run, g, fed->broken == BREAK_INPUTS ? four_bits : NULL, e);
    if (rc == 0)
        rc = runner_step(&run, &one, 1, &res, e);
    for (size_t i = 0; rc == 0 && logits && i < n; i++)
        error[i] = row_error(step_result_logits(res) + i * r->vocab, r->logits + i * r->vocab, r->vocab);
    if (rc == 0 && logits)
        rc = judge(f, fed->v, "logits", error, n, e);
    if (rc == 0)
        rc = judge_probes(f, &run, error, fed->v, e);
    free(error);
    runner_close(&run);
    return rc;
}

static int run_family(struct family *f, struct dev *d, enum breakage broken, struct verdict *v, struct err *e)
{
    struct fed fed = {.f = f, .d = d, .broken = broken, .v = v};
    unsigned pieces;
    v->probes = 0;
    v->part = 0;
    int rc = recorded_pieces(f->m.s->graph, f->reference, run_piece, &fed, &pieces, e);
    if (rc == 0 && v->probes != f->limits->n)
        return err_set(e, ERR_MISMATCH, "%zu of %u recorded probes are in the graph", v->probes,
                       f->limits->n);
    if (rc == 0) {
        qsort(v->parts, v->probes, sizeof *v->parts, by_size);
        v->median_part = v->parts[v->probes / 2];
    }
    return rc;
}

static void test_run(struct family *f, struct dev *d, const char *isa, enum breakage broken, bool must_show,
                     struct verdict *v)
{
    struct err e;
    char name[128], detail[1400];
    err_clear(&e);
    snprintf(name, sizeof name, "%s %s%s%s", f->name, isa, broken ? ", broken: " : "", breaks[broken]);
    int rc = run_family(f, d, broken, v, &e);
    if (rc)
        snprintf(detail, sizeof detail, "%s", e.message);
    else
        snprintf(detail, sizeof detail,
                 "%zu probes, %.2f of the limit at %s: worst row %.1e (theirs %.1e), median %.1e (%.1e)",
                 v->probes, v->part, v->where, v->worst, v->their_worst, v->median, v->their_median);
    result(f->tap, rc == 0 && (must_show ? v->part > 1 : v->part <= 1), name, detail);
}

static int open_family(struct family *f, struct err *e)
{
    char path[512], *text;
    size_t n;
    const struct json *root;
    snprintf(path, sizeof path, TREE "/golden/%s.halves.json", f->name);
    int rc = tiny_open(&f->t, TREE, f->name, e);
    if (rc == 0)
        rc = file_read(path, 1 << 20, &f->t.arena, &text, &n, e);
    if (rc == 0)
        rc = json_parse(text, n, NULL, &f->t.arena, &root, e);
    if (rc == 0 && (!(f->limits = json_get(root, "probes")) || f->limits->type != JSON_OBJECT))
        rc = err_set(e, ERR_FORMAT, "%s: no \"probes\"", path);
    snprintf(path, sizeof path, TREE "/golden/%s.safetensors", f->name);
    if (rc == 0)
        rc = reference_open(&f->reference, path, e);
    if (rc == 0)
        rc = tiny_write_halves(&f->t, f->dir, &f->d0, e);
    if (rc == 0)
        rc = tiny_model_open_pages(&f->m, f->dir, D0_BF16, &f->d0, e);
    return rc;
}

static void test_device(struct family *f, const char *isa, enum breakage broken)
{
    struct dev d;
    struct err e;
    struct verdict v = {.cap = (size_t)f->limits->n + 1};
    const struct dev_options o = {.name = "cpu", .isa = isa, .n_threads = THREADS};
    v.parts = calloc(v.cap, sizeof *v.parts);
    if (!v.parts || dev_open(&d, &o, &e)) {
        free(v.parts);
        result(f->tap, false, f->name, v.parts ? e.message : "no memory");
        return;
    }
    test_run(f, &d, isa, broken, false, &v);
    if (f->tap->table)
        printf("| %s | %zu | %.1e | %.1e | %s | %.2f | %.2f |\n", f->name, v.probes, v.worst, v.their_worst,
               v.where, TIMES * v.part, v.median_part);
    for (unsigned b = 1; b < N_BREAKS && strcmp(isa, "fast") == 0 && !broken && !f->tap->table; b++)
        test_run(f, &d, isa, (enum breakage)b, true, &v);
    free(v.parts);
    dev_close(&d);
}

static void test_family(struct tap *tap, const char *name, enum breakage broken)
{
    struct family f = {.tap = tap, .name = name, .d0 = {.log = {.fd = -1}}};
    struct err e;
    err_clear(&e);
    strcpy(f.dir, "/tmp/day0-halves-XXXXXX");
    if (!mkdtemp(f.dir)) {
        result(tap, false, name, "no temporary directory");
        return;
    }
    if (open_family(&f, &e)) {
        result(tap, false, name, e.message);
    } else {
        if (!tap->table)
            test_device(&f, "ref", broken);
        test_device(&f, "fast", broken);
    }
    reference_close(f.reference);
    if (f.m.c)
        tiny_model_close(&f.m);
    tiny_close(&f.t);
    tiny_remove(f.dir);
}

static bool has_halves(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, TREE "/golden/%s.halves.json", name);
    return access(path, F_OK) == 0;
}

int main(int argc, char **argv)
{
    struct tap tap = {.n = 0};
    struct arena arena;
    struct err e;
    const char *only = NULL;
    enum breakage broken = BREAK_NONE;
    char **names;
    size_t n;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--all") == 0)
            tap.all = true;
        else if (strcmp(argv[i], "--table") == 0)
            tap.table = true;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            only = argv[++i];
        else if (strcmp(argv[i], "--break") == 0 && i + 1 < argc) {
            i++;
            for (unsigned b = 1; b < N_BREAKS; b++)
                broken = strcmp(argv[i], breaks[b]) == 0 ? (enum breakage)b : broken;
        }
    }
    err_clear(&e);
    arena_init(&arena, NULL, MEM_MISC);
    if (tiny_families(TREE, &arena, &names, &n, &e)) {
        printf("not ok 1 - %s\n", e.message);
        return 1;
    }
    for (size_t i = 0; i < n; i++)
        if (has_halves(names[i]) && (!only || strcmp(only, names[i]) == 0))
            test_family(&tap, names[i], broken);
    arena_release(&arena);
    if (!tap.table)
        printf("1..%u\n", tap.n);
    return tap.failed || tap.n == 0;
}
