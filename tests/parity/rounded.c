/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: parity of `--activations released` with a second reading of what releases ask for
 * (tools/reference_activations.py, NumPy, float64): int8 per token, FP8 in groups of 128 columns, and NVFP4
 * with calibrated scales. Tiny models of tests/parity/rounded run free (in one step, in chunks, token by
 * token), and each product alone on what was recorded before it, on the reference kernels and on the fastest.
 *
 * The limits are those of float32 (parity.c), although a code that turned into its neighbour would move a
 * value by a whole step: the recordings hold no code that stands so near the middle between two (nearer than
 * their "margin" says, of the largest magnitude of its run), and no choice of experts, so noise turns none.
 * What is wrong moves every code. Wrong rules are run as well and must be far beyond the limits: values as
 * they are, another type, group or scale, and int8 by 127.5.
 *
 *   rounded [--all]                              test
 *   rounded --write FAMILY DIR SEED | --probes DIR   for the recorder
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "load/load.h"
#include "plan/plan.h"
#include "recorded.h"
#include "tiny.h"

#define LIMIT   1e-4 /* relative L2 of a row of logits or of a probe, free running */
#define FORCED  1e-5 /* of a product on recorded inputs */
#define BEYOND  20   /* a wrong rule is so many limits away, free running and in every kind of product */
#define CHUNK   5
#define THREADS 2

#define TREE   TEST_SOURCE_ROOT "/tests/parity/rounded"
#define GOLDEN TEST_SOURCE_ROOT "/tests/parity/golden/rounded."

/* What a wrong reading of a release would compute. */
static const struct wrong {
    const char *family, *what;
    int64_t from, to; /* x_format */
    double scale;     /* times x_scale and h_scale; of a format that is given none before: itself */
} wrongs[] = {
    {"int8_token", "values as they are", D0_X_I8_TOKEN, D0_X_EXACT, 0},
    {"int8_token", "bf16", D0_X_I8_TOKEN, D0_X_BF16, 0},
    {"int8_token", "fp8 per token", D0_X_I8_TOKEN, D0_X_F8_TOKEN, 0},
    {"int8_token", "one scale for all rows", D0_X_I8_TOKEN, D0_X_I8_STATIC, 0.03},
    {"fp8_block", "values as they are", D0_X_F8_BLOCK, D0_X_EXACT, 0},
    {"fp8_block", "one scale of the row", D0_X_F8_BLOCK, D0_X_F8_TOKEN, 0},
    {"fp8_block", "groups of 32, powers of two", D0_X_F8_BLOCK, D0_X_F8_MX, 0},
    {"fp8_block", "powers of two", D0_X_F8_BLOCK, D0_X_F8_BLOCK_POWER, 0},
    {"nvfp4", "values as they are", D0_X_F4_NV, D0_X_EXACT, 0},
    {"nvfp4", "mxfp4", D0_X_F4_NV, D0_X_F4_MX, 0},
    {"nvfp4", "another calibrated scale", D0_X_F4_NV, D0_X_F4_NV, 0.55},
};

struct tap {
    unsigned n, failed;
    bool all;
};

static void result(struct tap *tap, bool ok, const char *name, const char *detail)
{
    tap->failed += !ok;
    printf("%sok %u - %s: %s\n", ok ? "" : "not ", ++tap->n, name, detail);
    fflush(stdout);
}

struct family {
    struct tap *tap;
    struct d0 d0;
    struct tiny t;
    char dir[64];
    struct tiny_model m;
    struct reference *r, *other; /* other: logits by another rule, or NULL */
};

/* Worst and, of products alone, best row-wise worst: a wrong rule must move each of them. */
struct error {
    double logits, probe, least;
    char where[128];
    size_t probes;
};

static double rows_error(const float *got, const float *want, size_t rows, size_t width)
{
    double worst = 0;
    for (size_t i = 0; i < rows; i++)
        worst = fmax(worst, row_error(got + i * width, want + i * width, width));
    return worst;
}

/* Probes of a step that holds rows at .. at + n - 1. */
static int compare_probes(const struct family *f, struct runner *run, size_t at, size_t n, struct error *w,
                          struct err *e)
{
    size_t cap = runner_probe_floats(f->m.s->graph, (uint32_t)n);
    float *x = malloc((cap ? cap : 1) * sizeof *x); /* [n, width] of one probe */
    int rc = x ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for probes");
    for (size_t i = 0; rc == 0 && i < engine_probes(run->x); i++) {
        const char *name = engine_probe_name(run->x, i);
        const struct reference_probe *p = recorded_probe(f->r, name);
        size_t rows, width;
        if (!p)
            continue;
        rc = engine_probe_read(run->x, i, x, cap, &rows, &width, e);
        if (rc == 0 && (rows != n || width != p->width))
            rc = err_set(e, ERR_MISMATCH, "%s is %zu rows of %zu", name, rows, width);
        if (rc)
            break;
        double worst = rows_error(x, p->data + at * width, n, width);
        if (f->tap->all)
            printf("#   %-60s %.2e\n", name, worst);
        if (worst > w->probe)
            snprintf(w->where, sizeof w->where, "%.120s", name);
        w->probe = fmax(w->probe, worst);
        w->least = fmin(w->least, worst);
        w->probes++;
    }
    free(x);
    return rc;
}

/* ---- free running ---- */

static int run_free(const struct family *f, struct dev *d, size_t chunk, const struct reference *logits,
                    struct error *w, struct err *e)
{
    const uint32_t n = (uint32_t)f->r->n_ids;
    const struct runner_size size = {.tokens = n, .seqs = 1, .rows = n, .context = n, .probes = true};
    struct runner run = {.x = NULL};
    *w = (struct error){.least = INFINITY};
    int rc = runner_open_model(&run, d, f->m.s, f->m.c, &size, NULL, e);
    for (size_t at = 0, many; rc == 0 && at < n; at += many) {
        struct step_result *res;
        many = n - at < chunk ? n - at : chunk;
        struct runner_run one = {.tokens = f->r->ids + at,
                                 .n = (uint32_t)many,
                                 .position = (uint32_t)at,
                                 .flags = STEP_ALL_LOGITS};
        rc = runner_step(&run, &one, 1, &res, e);
        if (rc == 0)
            w->logits = fmax(w->logits, rows_error(step_result_logits(res), logits->logits + at * f->r->vocab,
                                                   many, f->r->vocab));
        if (rc == 0)
            rc = compare_probes(f, &run, at, many, w, e);
    }
    runner_close(&run);
    return rc;
}

static void free_case(struct family *f, struct dev *d, const char *isa, const char *how, size_t chunk)
{
    struct error w;
    struct err e;
    char name[96], detail[1400];
    snprintf(name, sizeof name, "%s %s %s", f->t.family, isa, how);
    int rc = run_free(f, d, chunk, f->r, &w, &e);
    if (rc)
        snprintf(detail, sizeof detail, "%s", e.message);
    else
        snprintf(detail, sizeof detail, "logits %.1e, worst probe %.1e %s (limit %.0e)", w.logits, w.probe,
                 w.where, LIMIT);
    result(f->tap, rc == 0 && w.probes > 0 && w.logits <= LIMIT && w.probe <= LIMIT, name, detail);
}

/* ---- each product alone ---- */

/* Marks the nodes that make input v, back to what was recorded. */
static void want_makers(const struct family *f, const struct graph *g, uint32_t v, uint8_t *wanted)
{
    if (v == D0_NO_VALUE || g->values[v].kind != D0_VALUE_ACTIVATION ||
        (g->info[v].name && recorded_probe(f->r, g->info[v].name)))
        return;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i].n_outputs; k++)
            if (g->nodes[i].outputs[k] == v && !wanted[i]) {
                wanted[i] = 1;
                for (uint32_t j = 0; j < g->nodes[i].n_inputs; j++)
                    want_makers(f, g, g->nodes[i].inputs[j], wanted);
            }
}

static int run_product(const struct family *f, struct dev *d, uint32_t node, struct error *w, struct err *e)
{
    const struct graph *whole = f->m.s->graph;
    const uint32_t n = (uint32_t)f->r->n_ids;
    const struct runner_size size = {.tokens = n, .seqs = 1, .rows = n, .context = n, .probes = true};
    const struct runner_run one = {.tokens = f->r->ids, .n = n};
    struct runner run = {.x = NULL};
    struct step_result *res;
    struct graph *g = NULL;
    uint8_t *wanted = calloc(whole->n_nodes, 1);
    if (!wanted)
        return err_set(e, ERR_NOMEM, "no memory for a product");
    wanted[node] = 1;
    for (uint32_t i = 0; i < whole->nodes[node].n_inputs; i++)
        want_makers(f, whole, whole->nodes[node].inputs[i], wanted);
    int rc = graph_slice_nodes(whole, wanted, &g, e);
    free(wanted);
    if (rc == 0)
        rc = weights_load(&run.weights, g, f->m.c, d, &(struct load_options){.spec = f->m.s}, e);
    if (rc == 0)
        rc = runner_open_graph(&run, d, g, run.weights, &size, NULL, e);
    if (rc == 0)
        rc = recorded_feed(f->r, &run, g, NULL, e);
    if (rc == 0)
        rc = runner_step(&run, &one, 1, &res, e);
    if (rc == 0)
        rc = compare_probes(f, &run, 0, n, w, e);
    runner_close(&run);
    graph_free(g);
    return rc;
}

/* All products whose inputs `whole` rounds: w->least is the one that moves least. */
static int run_products(const struct family *f, struct dev *d, const uint8_t *which, struct error *w,
                        struct err *e)
{
    const struct graph *g = f->m.s->graph;
    int rc = ERR_OK;
    *w = (struct error){.least = INFINITY};
    for (uint32_t i = 0; rc == 0 && i < g->n_nodes; i++) {
        if (!which[i]) /* such as keep keys: they have no output */
            continue;
        const char *name = g->info[g->nodes[i].outputs[0]].name;
        if (!recorded_probe(f->r, name))
            return err_set(e, ERR_MISSING, "%s was not recorded", name);
        rc = run_product(f, d, i, w, e);
    }
    return rc;
}

static void forced_case(struct family *f, struct dev *d, const char *isa, const uint8_t *which)
{
    struct error w;
    struct err e;
    char name[96], detail[1400];
    snprintf(name, sizeof name, "%s %s each product alone", f->t.family, isa);
    int rc = run_products(f, d, which, &w, &e);
    if (rc)
        snprintf(detail, sizeof detail, "%s", e.message);
    else
        snprintf(detail, sizeof detail, "%zu rows of products, worst %.1e %s (limit %.0e)", w.probes, w.probe,
                 w.where, FORCED);
    result(f->tap, rc == 0 && w.probes > 0 && w.probe <= FORCED, name, detail);
}

/* ---- what is wrong is seen ---- */

static void set_wrong(struct graph *g, const struct wrong *x)
{
    static const uint32_t scales[] = {D0_ATTR_X_SCALE, D0_ATTR_H_SCALE};
    const struct tensor_rounding *to = tensor_rounding(x->to);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct d0_node *n = &g->nodes[i];
        if (node_attr_i(n, D0_ATTR_X_FORMAT, 0) != x->from)
            continue;
        node_set_attr_i(n, D0_ATTR_X_FORMAT, x->to);
        for (size_t k = 0; k < ARRAY_LEN(scales); k++) {
            double had = node_attr_f(n, scales[k], 0);
            if (had == 0 && k) /* of experts alone */
                continue;
            if (x->from == x->to)
                node_set_attr_f(n, scales[k], had * x->scale);
            else if (k == 0 && to && tensor_rounding_given(to))
                node_set_attr_f(n, scales[k], x->scale);
            else if (had != 0)
                node_set_attr_f(n, scales[k], 0);
        }
    }
}

static void wrong_case(struct family *f, struct dev *d, const struct wrong *x, const uint8_t *which)
{
    struct graph *g = f->m.s->graph;
    struct error open, alone;
    struct err e;
    char name[96], detail[1400];
    struct d0_node *as_described = malloc(g->n_nodes * sizeof *as_described);
    if (!as_described) {
        result(f->tap, false, f->t.family, "no memory");
        return;
    }
    memcpy(as_described, g->nodes, g->n_nodes * sizeof *as_described);
    snprintf(name, sizeof name, "%s wrong: %s", f->t.family, x->what);
    set_wrong(g, x);
    int rc = run_free(f, d, f->r->n_ids, f->r, &open, &e);
    if (rc == 0)
        rc = run_products(f, d, which, &alone, &e);
    memcpy(g->nodes, as_described, g->n_nodes * sizeof *as_described);
    free(as_described);
    if (rc)
        snprintf(detail, sizeof detail, "%s", e.message);
    else
        snprintf(detail, sizeof detail, "logits move by %.1e, the least product by %.1e", open.logits,
                 alone.least);
    result(f->tap, rc == 0 && open.logits >= BEYOND * LIMIT && alone.least >= BEYOND * FORCED, name, detail);
}

/* Logits by a rule that no format here has: the right one must be as far from them. */
static void other_case(struct family *f, struct dev *d)
{
    struct error w;
    struct err e;
    char detail[1400];
    int rc = run_free(f, d, f->r->n_ids, f->other, &w, &e);
    snprintf(detail, sizeof detail, rc ? "%.1300s" : "%slogits differ by %.1e", rc ? e.message : "",
             w.logits);
    result(f->tap, rc == 0 && w.logits >= BEYOND * LIMIT, "int8_token wrong: 127.5", detail);
}

/* ---- memory ---- */

/* Bytes that the kernels of the device hold for steps of the whole prompt, and those that the plan predicts.
 */
static int kernel_bytes(const struct family *f, uint64_t *held, uint64_t *predicted, struct err *e)
{
    const uint32_t n = (uint32_t)f->r->n_ids;
    const struct runner_size size = {.tokens = n, .seqs = 1, .rows = n, .context = n};
    struct mem mem = {0};
    struct dev d;
    struct runner run = {.x = NULL};
    struct plan_memory m;
    const struct dev_options o = {.name = "cpu", .isa = "fast", .n_threads = THREADS, .mem = &mem};
    int rc = dev_open(&d, &o, e);
    if (rc)
        return rc;
    const struct plan_options p = {.memory_bytes = (uint64_t)1 << 40,
                                   .max_step_tokens = n,
                                   .max_seqs = 1,
                                   .max_rows = n,
                                   .context_tokens = n,
                                   .request_tokens = n,
                                   .device_need = dev_scratch_plan,
                                   .device = &d};
    rc = plan_single(f->m.s, &p, &m, e);
    if (rc == 0)
        rc = runner_open_model(&run, &d, f->m.s, f->m.c, &size, NULL, e);
    *held = mem.live[MEM_KERNELS];
    *predicted = m.device;
    runner_close(&run);
    dev_close(&d);
    return rc;
}

/* The rounded rows of a product lie in memory that all threads share: the plan counts them. */
static void memory_case(struct family *f)
{
    struct graph *g = f->m.s->graph;
    uint64_t held = 0, predicted = 0, exact_held = 0, exact_predicted = 0, rows = 0;
    struct err e;
    char name[96], detail[1400];
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        if (n->op == D0_OP_LINEAR && node_attr_i(n, D0_ATTR_X_FORMAT, 0)) {
            uint64_t bytes = f->r->n_ids * (uint64_t)g->values[n->inputs[0]].dims[1] * sizeof(float);
            rows = bytes > rows ? bytes : rows;
        }
    }
    int rc = kernel_bytes(f, &held, &predicted, &e);
    if (rc == 0)
        rc = spec_set_activations(f->m.s, f->m.c, ACTIVATIONS_EXACT, &e);
    for (uint32_t i = 0; rc == 0 && i < g->n_nodes; i++) {
        struct d0_node *n = &g->nodes[i];
        if (node_attr_i(n, D0_ATTR_X_FORMAT, 0) == 0)
            continue;
        node_set_attr_i(n, D0_ATTR_X_FORMAT, D0_X_EXACT);
        if (node_attr_f(n, D0_ATTR_X_SCALE, 0) != 0)
            node_set_attr_f(n, D0_ATTR_X_SCALE, 0);
    }
    if (rc == 0)
        rc = kernel_bytes(f, &exact_held, &exact_predicted, &e);
    if (rc == 0)
        rc = spec_set_activations(f->m.s, f->m.c, ACTIVATIONS_RELEASED, &e);
    snprintf(name, sizeof name, "%s memory of rounded rows is planned", f->t.family);
    if (rc)
        snprintf(detail, sizeof detail, "%s", e.message);
    else
        snprintf(detail, sizeof detail,
                 "kernels hold %llu bytes, planned %llu; exact %llu, %llu; the widest product rounds %llu",
                 (unsigned long long)held, (unsigned long long)predicted, (unsigned long long)exact_held,
                 (unsigned long long)exact_predicted, (unsigned long long)rows);
    result(f->tap, rc == 0 && held >= rows && predicted >= held && predicted >= exact_predicted + rows, name,
           detail);
}

/* ---- one family ---- */

/* The recording must be of these very weights. */
static int check_recording(struct family *f, const char *golden, struct err *e)
{
    static const char key[] = "\"model_sha256\":\"";
    char path[512], hex[SHA256_HEX_BYTES];
    char *text;
    size_t n;
    snprintf(path, sizeof path, "%s/model.safetensors", f->dir);
    int rc = sha256_file(path, hex, e);
    if (rc == 0)
        rc = file_read(golden, 1 << 20, &f->t.arena, &text, &n, e);
    if (rc)
        return rc;
    const char *at = memmem(text, n, key, sizeof key - 1);
    return at && strncmp(at + sizeof key - 1, hex, sizeof hex - 1) == 0
               ? ERR_OK
               : err_set(e, ERR_MISMATCH, "recorded with other weights than %.16s", hex);
}

static int open_family(struct family *f, const char *name, struct err *e)
{
    char path[512];
    int rc = tiny_make(&f->t, &f->m, TREE, name, f->dir, &f->d0, e);
    if (rc == 0)
        rc = spec_set_activations(f->m.s, f->m.c, ACTIVATIONS_RELEASED, e);
    snprintf(path, sizeof path, GOLDEN "%s.safetensors", name);
    if (rc == 0)
        rc = check_recording(f, path, e);
    if (rc == 0)
        rc = reference_open(&f->r, path, e);
    snprintf(path, sizeof path, GOLDEN "%s.127.5.safetensors", name);
    if (rc == 0 && access(path, F_OK) == 0)
        rc = reference_open(&f->other, path, e);
    if (rc == 0 && (f->other != NULL) != (strcmp(name, "int8_token") == 0))
        rc = err_set(e, ERR_MISMATCH, "int8 alone is recorded by 127.5 as well");
    return rc;
}

static void test_device(struct family *f, const char *isa, const uint8_t *which)
{
    struct dev d;
    struct err e;
    if (dev_open(&d, &(struct dev_options){.name = "cpu", .isa = isa, .n_threads = THREADS}, &e)) {
        result(f->tap, false, f->t.family, e.message);
        return;
    }
    free_case(f, &d, isa, "in one step", f->r->n_ids);
    free_case(f, &d, isa, "in chunks", CHUNK);
    free_case(f, &d, isa, "token by token", 1);
    forced_case(f, &d, isa, which);
    bool ref = strcmp(isa, "ref") == 0;
    for (size_t i = 0; ref && i < ARRAY_LEN(wrongs); i++)
        if (strcmp(wrongs[i].family, f->t.family) == 0)
            wrong_case(f, &d, &wrongs[i], which);
    if (ref && f->other)
        other_case(f, &d);
    dev_close(&d);
}

static void test_family(struct tap *tap, const char *name)
{
    struct family f = {.tap = tap, .d0 = {.log = {.fd = -1}}, .dir = "/tmp/day0-rounded-XXXXXX"};
    struct err e;
    err_clear(&e);
    if (!mkdtemp(f.dir)) {
        result(tap, false, name, "no temporary directory");
        return;
    }
    int rc = open_family(&f, name, &e);
    uint32_t n = rc ? 0 : f.m.s->graph->n_nodes;
    uint8_t *which = calloc(n + 1, 1); /* [n]: nodes that round */
    size_t rounded = 0;
    for (uint32_t i = 0; which && i < n; i++)
        rounded += which[i] = node_attr_i(&f.m.s->graph->nodes[i], D0_ATTR_X_FORMAT, 0) != 0;
    result(tap, rc == 0 && rounded > 0, name, rc ? e.message : "rounds as the release asks");
    if (rc == 0 && rounded) {
        test_device(&f, "ref", which);
        test_device(&f, "fast", which);
        memory_case(&f);
    }
    free(which);
    reference_close(f.r);
    reference_close(f.other);
    if (f.m.c)
        tiny_model_close(&f.m);
    tiny_close(&f.t);
    tiny_remove(f.dir);
}

/* ---- what tools/reference_activations.py calls ---- */

static int write_one(const char *family, const char *dir, const char *seed, struct err *e)
{
    struct d0 d0 = {.log = {.fd = -1}};
    struct tiny t;
    int rc = tiny_open(&t, TREE, family, e);
    if (rc)
        return rc;
    t.seed = strtoull(seed, NULL, 10);
    rc = dir_make(dir, e);
    if (rc == 0)
        rc = tiny_write(&t, dir, &d0, e);
    tiny_close(&t);
    return rc;
}

static int print_probes(const char *dir, struct err *e)
{
    struct d0 d0 = {.log = {.fd = -1}};
    struct tiny_model m;
    int rc = tiny_model_open(&m, dir, &d0, e);
    for (uint32_t i = 0; rc == 0 && i < m.s->graph->n_values; i++)
        if (m.s->graph->info[i].probe)
            printf("%s\t%lld\n", m.s->graph->info[i].name, (long long)m.s->graph->values[i].dims[1]);
    tiny_model_close(&m);
    return rc;
}

static int test_all(bool all)
{
    struct tap tap = {.all = all};
    struct arena arena;
    struct err e;
    char **names;
    size_t n;
    arena_init(&arena, NULL, MEM_MISC);
    if (tiny_families(TREE, &arena, &names, &n, &e)) {
        printf("not ok 1 - %s\n", e.message);
        return 1;
    }
    for (size_t i = 0; i < n; i++)
        test_family(&tap, names[i]);
    arena_release(&arena);
    printf("1..%u\n", tap.n);
    return tap.failed || tap.n == 0;
}

int main(int argc, char **argv)
{
    struct err e;
    err_clear(&e);
    const char *what = argc > 1 ? argv[1] : "";
    int rc = ERR_OK;
    if (strcmp(what, "--write") == 0 && argc == 5)
        rc = write_one(argv[2], argv[3], argv[4], &e);
    else if (strcmp(what, "--probes") == 0 && argc == 3)
        rc = print_probes(argv[2], &e);
    else if (argc == 1 || (argc == 2 && strcmp(what, "--all") == 0))
        return test_all(argc == 2);
    else
        rc = err_set(&e, ERR_USAGE, "usage: rounded [--all] | --write FAMILY DIR SEED | --probes DIR");
    if (rc)
        fprintf(stderr, "rounded: %s\n", e.message);
    return rc != 0;
}
