/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: parity of whole models with transformers. For each tiny model of tests/parity/tiny: makes its
 * checkpoint, opens it as any other, runs it on the reference kernels and on the fastest ones (in one step,
 * in chunks, token by token), and holds logits and probes against what transformers computed from the same
 * files (tests/parity/golden, recorded by tools/reference.py; Kimi-K3: by tools/reference_k3.py). Then cuts
 * the model wherever the recording has all that crosses the cut, and runs each piece, a layer mostly, on what
 * was recorded before it: errors do not add up, so the limit is closer. Then turns single features off by
 * config.json: the logits must move, or the model would not notice that a feature is ignored. What no kernel
 * computes yet is skipped and counted. Rows of the recording whose choice of experts or keys is nearly a tie
 * are left out and counted; where they are more than 2 % nothing is judged.
 *
 *   parity [--only FAMILY] [--all]     test; --all prints every probe
 *   parity --table                     test; prints the worst of each family as docs/numerics.md has it
 *   parity --write FAMILY DIR [--switch NAME] | --probes DIR | --list
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "oracle/oracle.h"
#include "tiny.h"
#include "verify/runner.h"

#define LIMIT       1e-4 /* relative L2 of a row of logits or of a probe, free running */
#define FORCED      1e-5 /* the same of a piece that is fed what was recorded */
#define CHUNK       7
#define DECODE_FROM 8 /* so many last tokens one by one */
#define THREADS     2
#define JUDGED_OF   50 /* one row of so many may be left out */

#define TREE TEST_SOURCE_ROOT "/tests/parity"

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

static void skip(struct tap *tap, const char *name, const char *why)
{
    tap->n++;
    if (!tap->table)
        printf("ok %u - %s # SKIP %s\n", tap->n, name, why);
    fflush(stdout);
}

/* ---- one model on one device ---- */

struct family {
    struct tap *tap;
    struct d0 d0;
    struct tiny t;
    char dir[64], other[64]; /* the checkpoint; the same weights under a changed config.json */
    struct tiny_model m;
    struct reference *reference, *brief; /* with probes; a short prompt, logits only */
    uint8_t *near;                       /* [n_ids of reference] rows that are nearly ties */
    size_t n_near;
    double free, forced; /* worst logits; worst of the pieces */
    unsigned pieces;
};

struct worst {
    double limit, logits, probe;
    char where[128];
    size_t probes;
};

static double row_error(const float *got, const float *want, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t j = 0; j < n; j++) {
        if (!isfinite(got[j]))
            return INFINITY;
        diff += ((double)got[j] - want[j]) * ((double)got[j] - want[j]);
        norm += (double)want[j] * want[j];
    }
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

static const struct reference_probe *probe_of(const struct reference *r, const char *name)
{
    for (size_t i = 0; i < r->n_probes; i++)
        if (strcmp(r->probes[i].name, name) == 0)
            return &r->probes[i];
    return NULL;
}

/* A row of one value has no norm: a product that happens to cancel would be measured by what is left of it.
 * It is measured by the root mean square of all rows. */
static double probe_error(const struct reference_probe *p, size_t row, const float *got)
{
    double square = 0, diff = (double)got[0] - p->data[row];
    if (p->width != 1)
        return row_error(got, p->data + row * p->width, p->width);
    for (size_t i = 0; i < p->rows; i++)
        square += (double)p->data[i] * p->data[i];
    if (!isfinite(diff))
        return INFINITY;
    return square > 0 ? fabs(diff) / sqrt(square / (double)p->rows) : fabs(diff);
}

static bool left_out(const struct family *f, const struct reference *r, size_t row)
{
    return r == f->reference && f->near[row];
}

/* logits [n, vocab] of rows `at` and later */
static double logits_error(const struct family *f, const struct reference *r, const float *logits, size_t at,
                           size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        if (!left_out(f, r, at + i))
            worst = fmax(worst, row_error(logits + i * r->vocab, r->logits + (at + i) * r->vocab, r->vocab));
    return worst;
}

static int compare_probes(const struct family *f, struct runner *run, const struct reference *r, size_t at,
                          struct worst *w, struct err *e)
{
    size_t cap = runner_probe_floats(f->m.s->graph, (uint32_t)r->n_ids);
    float *x = malloc((cap ? cap : 1) * sizeof *x);
    int rc = x ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for probes");
    size_t found = 0;
    for (size_t i = 0; rc == 0 && i < engine_probes(run->x); i++) {
        const char *name = engine_probe_name(run->x, i);
        const struct reference_probe *p = probe_of(r, name);
        size_t rows, width;
        if (!p)
            continue;
        rc = engine_probe_read(run->x, i, x, cap, &rows, &width, e);
        if (rc == 0 && (width != p->width || at + rows > p->rows))
            rc = err_set(e, ERR_MISMATCH, "%s is %zu wide, recorded %zu", name, width, p->width);
        double worst = 0;
        for (size_t k = 0; rc == 0 && k < rows; k++)
            if (!left_out(f, r, at + k))
                worst = fmax(worst, probe_error(p, at + k, x + k * width));
        if (f->tap->all && rc == 0)
            printf("#   %-60s %.2e\n", name, worst);
        /* the first one beyond the limit is where the error came in */
        if (worst > w->probe && !(w->probe > w->limit)) {
            w->probe = worst;
            snprintf(w->where, sizeof w->where, "%.120s", name);
        }
        found++;
    }
    w->probes = found;
    free(x);
    return rc;
}

static int all_probes(const struct reference *r, size_t found, struct err *e)
{
    return found == r->n_probes
               ? ERR_OK
               : err_set(e, ERR_MISMATCH, "%zu of %zu recorded probes are in the graph", found, r->n_probes);
}

/* The prompt from position 0: steps of `chunk` tokens, the last `single` ones one by one. */
static int run_prompt(const struct family *f, struct runner *run, const struct reference *r, size_t chunk,
                      size_t single, struct worst *w, struct err *e)
{
    int rc = ERR_OK;
    for (size_t at = 0, n; rc == 0 && at < r->n_ids; at += n) {
        struct step_result *res;
        size_t many = r->n_ids - single;
        n = at >= many ? 1 : many - at < chunk ? many - at : chunk;
        struct runner_run one = {
            .tokens = r->ids + at, .n = (uint32_t)n, .position = (uint32_t)at, .flags = STEP_ALL_LOGITS};
        rc = runner_step(run, &one, 1, &res, e);
        if (rc == 0)
            w->logits = fmax(w->logits, logits_error(f, r, step_result_logits(res), at, n));
        if (rc == 0 && r->n_probes)
            rc = compare_probes(f, run, r, at, w, e);
        if (rc == 0 && r->n_probes)
            rc = all_probes(r, w->probes, e);
    }
    return rc;
}

static int open_runner(const struct family *f, const struct tiny_model *m, struct dev *d, bool probes,
                       struct runner *run, struct err *e)
{
    uint32_t n = (uint32_t)f->reference->n_ids;
    struct runner_size size = {.tokens = n, .seqs = 1, .rows = n, .context = n, .probes = probes};
    return runner_open_model(run, d, m->s, m->c, &size, NULL, e);
}

static void run_case(struct family *f, struct dev *d, const char *isa, const char *how, size_t chunk,
                     size_t single)
{
    struct runner run = {.x = NULL};
    struct worst w = {.limit = LIMIT}, brief = {.limit = LIMIT};
    struct err e;
    char name[96], detail[1400];
    err_clear(&e);
    snprintf(name, sizeof name, "%s %s %s", f->t.family, isa, how);
    int rc = open_runner(f, &f->m, d, true, &run, &e);
    if (rc == 0)
        rc = run_prompt(f, &run, f->reference, chunk, single, &w, &e);
    /* a second request in the slots and pages of the first: what it left must not be seen */
    if (rc == 0)
        rc = run_prompt(f, &run, f->brief, chunk, f->brief->n_ids < single ? 0 : single, &brief, &e);
    runner_close(&run);
    f->free = fmax(f->free, rc ? INFINITY : fmax(w.logits, brief.logits));
    if (rc)
        snprintf(detail, sizeof detail, "%s", e.message);
    else
        snprintf(detail, sizeof detail,
                 "logits %.1e, short prompt %.1e, %zu probes, worst %.1e %s (limit %.0e), %zu rows left out",
                 w.logits, brief.logits, w.probes, w.probe, w.where, LIMIT, f->n_near);
    result(f->tap, rc == 0 && w.logits <= LIMIT && brief.logits <= LIMIT && w.probe <= LIMIT, name, detail);
}

/* ---- piece by piece ---- */

/* Units in order: 0 what comes before layer 0, 1 .. layers the layers, then what comes after them. */
static int slice_units(const struct graph *g, uint32_t first, uint32_t last, uint32_t layers,
                       struct graph **out, struct err *e)
{
    unsigned flags = (first == 0 ? GRAPH_PROLOGUE : 0u) | (last > layers ? GRAPH_EPILOGUE : 0u);
    return graph_slice(g, (int32_t)first - 1, last > layers ? (int32_t)layers - 1 : (int32_t)last - 1, flags,
                       out, e);
}

/* Whether all that crosses from the units before u to the others was recorded. */
static bool can_cut(const struct family *f, uint32_t u, uint32_t layers)
{
    struct graph *g;
    struct err no;
    bool all = true;
    if (slice_units(f->m.s->graph, u, layers + 1, layers, &g, &no))
        return false;
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == D0_VALUE_INPUT && g->values[i].role == D0_INPUT_HIDDEN)
            all = all && probe_of(f->reference, g->info[i].name);
    graph_free(g);
    return all;
}

static int feed_recorded(const struct family *f, struct runner *run, const struct graph *g, struct err *e)
{
    uint32_t index = 0;
    int rc = ERR_OK;
    for (uint32_t i = 0; rc == 0 && i < g->n_values; i++) {
        if (g->values[i].kind != D0_VALUE_INPUT || g->values[i].role != D0_INPUT_HIDDEN)
            continue;
        const struct reference_probe *p = probe_of(f->reference, g->info[i].name);
        rc = p ? engine_set_hidden(run->x, index++, p->data, p->rows, p->width, e)
               : err_set(e, ERR_MISSING, "%s was not recorded", g->info[i].name);
    }
    return rc;
}

static int run_piece(const struct family *f, struct dev *d, const struct graph *g, struct worst *w,
                     struct err *e)
{
    const struct reference *r = f->reference;
    uint32_t n = (uint32_t)r->n_ids;
    const struct runner_size size = {.tokens = n, .seqs = 1, .rows = n, .context = n, .probes = true};
    bool logits = g->values[graph_result(g)].dims[0] == D0_DIM_ROWS;
    struct runner_run one = {.tokens = r->ids, .n = n, .flags = logits ? STEP_ALL_LOGITS : 0};
    struct runner run = {.x = NULL};
    struct step_result *res;
    int rc = weights_load(&run.weights, g, f->m.c, d, &(struct load_options){.spec = f->m.s}, e);
    if (rc == 0)
        rc = runner_open_graph(&run, d, g, run.weights, &size, NULL, e);
    if (rc == 0)
        rc = feed_recorded(f, &run, g, e);
    if (rc == 0)
        rc = runner_step(&run, &one, 1, &res, e);
    if (rc == 0 && logits)
        w->logits = fmax(w->logits, logits_error(f, r, step_result_logits(res), 0, n));
    if (rc == 0)
        rc = compare_probes(f, &run, r, 0, w, e);
    runner_close(&run);
    return rc;
}

static int run_pieces(struct family *f, struct dev *d, struct worst *w, struct err *e)
{
    uint32_t layers = 0;
    size_t probes = 0;
    int rc = ERR_OK;
    for (uint32_t i = 0; i < f->m.s->graph->n_nodes; i++)
        if (f->m.s->graph->nodes[i].layer >= (int32_t)layers)
            layers = (uint32_t)f->m.s->graph->nodes[i].layer + 1;
    f->pieces = 0;
    for (uint32_t first = 0, last; rc == 0 && first <= layers + 1; first = last + 1) {
        struct graph *g;
        for (last = first; last <= layers && !can_cut(f, last + 1, layers); last++)
            ;
        rc = slice_units(f->m.s->graph, first, last, layers, &g, e);
        if (rc)
            break;
        rc = run_piece(f, d, g, w, e);
        graph_free(g);
        probes += w->probes;
        f->pieces++;
    }
    return rc ? rc : all_probes(f->reference, probes, e);
}

static void forced_case(struct family *f, struct dev *d, const char *isa)
{
    struct worst w = {.limit = FORCED};
    struct err e;
    char name[96], detail[1400];
    err_clear(&e);
    snprintf(name, sizeof name, "%s %s piece by piece", f->t.family, isa);
    int rc = run_pieces(f, d, &w, &e);
    f->forced = fmax(f->forced, rc ? INFINITY : fmax(w.logits, w.probe));
    if (rc)
        snprintf(detail, sizeof detail, "%s", e.message);
    else
        snprintf(detail, sizeof detail, "%u pieces, logits %.1e, worst probe %.1e %s (limit %.0e)", f->pieces,
                 w.logits, w.probe, w.where, FORCED);
    result(f->tap, rc == 0 && w.logits <= FORCED && w.probe <= FORCED, name, detail);
}

/* Whether the device computes all of it; if not, why. */
static bool computed(struct dev *d, const struct graph *g, char *why, size_t bytes)
{
    struct arena arena;
    struct findings f;
    struct verify_op_row *rows;
    struct err e;
    size_t n = 0;
    bool all = true;
    arena_init(&arena, NULL, MEM_MISC);
    findings_init(&f, NULL);
    why[0] = 0;
    if (verify_matrix(d, g, &arena, &rows, &n, &f, &e))
        snprintf(why, bytes, "%.200s", e.message), all = false;
    for (size_t i = 0; i < n; i++)
        if (!rows[i].supported) {
            size_t at = strlen(why);
            if (at + 8 < bytes)
                snprintf(why + at, bytes - at, "%s%s: %.80s", all ? "not computed: " : "; ", rows[i].op,
                         rows[i].reason);
            all = false;
        }
    findings_release(&f);
    arena_release(&arena);
    return all;
}

/* ---- features turned off ---- */

/* Largest relative L2 of a row of logits against the recorded ones. */
static int distance(const struct family *f, struct dev *d, double *out, char *why, size_t bytes,
                    struct err *e)
{
    struct tiny_model m;
    struct runner run = {.x = NULL};
    struct worst w = {.limit = LIMIT};
    struct reference logits_only = *f->reference;
    logits_only.n_probes = 0;
    why[0] = 0;
    int rc = tiny_model_open(&m, f->other, NULL, e);
    if (rc == 0 && !computed(d, m.s->graph, why, bytes)) {
        tiny_model_close(&m);
        return ERR_OK;
    }
    if (rc == 0)
        rc = open_runner(f, &m, d, false, &run, e);
    if (rc == 0)
        rc = run_prompt(f, &run, &logits_only, f->reference->n_ids, 0, &w, e);
    runner_close(&run);
    tiny_model_close(&m);
    *out = w.logits;
    return rc;
}

static int share_weights(const struct family *f)
{
    char from[96], to[96];
    snprintf(from, sizeof from, "%s/model.safetensors", f->dir);
    snprintf(to, sizeof to, "%s/model.safetensors", f->other);
    return link(from, to);
}

static void test_switches(struct family *f, struct dev *d)
{
    const struct json *list = json_get(f->t.root, "switches");
    if (list && list->n && share_weights(f) != 0) {
        result(f->tap, false, f->t.family, "cannot link its weights");
        return;
    }
    for (size_t i = 0; list && i < list->n; i++) {
        const struct json *s = json_at(list, i);
        double least = 1e-2, moved = 0;
        char name[128], detail[1400];
        struct err e;
        err_clear(&e);
        json_f64(json_get(s, "least"), &least);
        snprintf(name, sizeof name, "%s without: %s", f->t.family, json_string(json_get(s, "name")));
        int rc = tiny_write_config(&f->t, f->other, json_get(s, "config"), &e);
        if (rc == 0)
            rc = distance(f, d, &moved, detail, sizeof detail, &e);
        if (rc == 0 && detail[0]) {
            skip(f->tap, name, detail);
            continue;
        }
        if (rc)
            snprintf(detail, sizeof detail, "%s", e.message);
        else
            snprintf(detail, sizeof detail, "logits move by %.1e (at least %.0e)", moved, least);
        result(f->tap, rc == 0 && moved >= least && isfinite(moved), name, detail);
    }
}

/* ---- one family ---- */

/* The recording must be of these very weights. */
static int check_recording(struct family *f, struct err *e)
{
    char path[512], hex[SHA256_HEX_BYTES], recorded[SHA256_HEX_BYTES] = "";
    char *text;
    size_t n;
    snprintf(path, sizeof path, "%s/model.safetensors", f->dir);
    int rc = sha256_file(path, hex, e);
    snprintf(path, sizeof path, TREE "/golden/%s.safetensors", f->t.family);
    if (rc == 0)
        rc = file_read(path, 16 << 20, &f->t.arena, &text, &n, e);
    if (rc)
        return rc;
    static const char key[] = "\"model_sha256\":\"";
    const char *at = memmem(text, n, key, sizeof key - 1);
    if (at)
        snprintf(recorded, sizeof recorded, "%.64s", at + sizeof key - 1);
    return strcmp(hex, recorded) == 0
               ? ERR_OK
               : err_set(e, ERR_MISMATCH, "recorded with weights %.16s, these are %.16s", recorded, hex);
}

static int find_near_ties(struct family *f, const char *recording, struct err *e)
{
    struct dev d;
    const size_t n = f->reference->n_ids;
    f->near = calloc(n, 1);
    int rc = f->near ? dev_open(&d, &(struct dev_options){.name = "cpu", .isa = "ref", .n_threads = 1}, e)
                     : err_set(e, ERR_NOMEM, "no memory for %zu rows", n);
    if (rc)
        return rc;
    const struct oracle_model m = {.dev = &d, .spec = f->m.s, .ckpt = f->m.c};
    rc = oracle_near_ties(&m, recording, f->near, n, e);
    for (size_t i = 0; rc == 0 && i < n; i++)
        f->n_near += f->near[i];
    dev_close(&d);
    return rc;
}

static int open_family(struct family *f, const char *name, struct err *e)
{
    char path[512];
    int rc = tiny_open(&f->t, TREE, name, e);
    if (rc == 0)
        rc = tiny_write(&f->t, f->dir, &f->d0, e);
    if (rc == 0)
        rc = tiny_model_open(&f->m, f->dir, &f->d0, e);
    if (rc == 0 && findings_failed(&f->m.f))
        rc = err_set(e, ERR_FORMAT, "%s: %s", f->m.f.items[0].subject, f->m.f.items[0].evidence);
    if (rc == 0 && f->m.s->n_unread)
        rc = err_set(e, ERR_FORMAT, "nobody reads %s", f->m.s->unread_keys[0]);
    snprintf(path, sizeof path, TREE "/golden/%s.safetensors", name);
    if (rc == 0)
        rc = reference_open(&f->reference, path, e);
    if (rc == 0)
        rc = find_near_ties(f, path, e);
    snprintf(path, sizeof path, TREE "/golden/%s.short.safetensors", name);
    if (rc == 0)
        rc = reference_open(&f->brief, path, e);
    if (rc == 0)
        rc = check_recording(f, e);
    return rc;
}

static void test_device(struct family *f, const char *isa)
{
    struct dev d;
    struct err e;
    char name[96], why[1024];
    const struct dev_options o = {.name = "cpu", .isa = isa, .n_threads = THREADS};
    snprintf(name, sizeof name, "%s %s", f->t.family, isa);
    if (dev_open(&d, &o, &e)) {
        result(f->tap, false, name, e.message);
        return;
    }
    if (f->n_near * JUDGED_OF > f->reference->n_ids) {
        snprintf(why, sizeof why, "%zu of %zu rows hang on a choice that was nearly a tie", f->n_near,
                 f->reference->n_ids);
        skip(f->tap, name, why);
    } else if (!computed(&d, f->m.s->graph, why, sizeof why)) {
        skip(f->tap, name, why);
    } else {
        run_case(f, &d, isa, "in one step", f->reference->n_ids, 0);
        run_case(f, &d, isa, "in chunks", CHUNK, 0);
        run_case(f, &d, isa, "token by token", f->reference->n_ids, DECODE_FROM);
        forced_case(f, &d, isa);
        if (strcmp(isa, "ref") == 0)
            test_switches(f, &d);
    }
    dev_close(&d);
}

static void test_family(struct tap *tap, const char *name)
{
    struct family f = {.tap = tap, .d0 = {.log = {.fd = -1}}};
    struct err e;
    char label[96];
    err_clear(&e);
    strcpy(f.dir, "/tmp/day0-parity-XXXXXX");
    strcpy(f.other, "/tmp/day0-parity-XXXXXX");
    if (!mkdtemp(f.dir) || !mkdtemp(f.other)) {
        result(tap, false, name, "no temporary directory");
        return;
    }
    int rc = open_family(&f, name, &e);
    snprintf(label, sizeof label, "%s is described, and its recording is of these weights", name);
    result(tap, rc == 0, label, rc ? e.message : f.m.s->architecture);
    if (rc == 0) {
        test_device(&f, "ref");
        test_device(&f, "fast");
    }
    if (rc == 0 && tap->table)
        printf("| %s | %s | %.1e | %.1e | %u |\n", name, f.reference->producer, f.free, f.forced, f.pieces);
    reference_close(f.reference);
    reference_close(f.brief);
    free(f.near);
    if (f.m.c)
        tiny_model_close(&f.m);
    tiny_close(&f.t);
    tiny_remove(f.dir);
    tiny_remove(f.other);
}

/* ---- what tools/reference.py calls ---- */

static const struct json *switch_named(const struct tiny *t, const char *name)
{
    const struct json *list = json_get(t->root, "switches");
    for (size_t i = 0; list && name && i < list->n; i++)
        if (strcmp(json_string(json_get(json_at(list, i), "name")), name) == 0)
            return json_get(json_at(list, i), "config");
    return NULL;
}

static int write_one(const char *family, const char *dir, const char *off, struct err *e)
{
    struct d0 d0 = {.log = {.fd = -1}};
    struct tiny t;
    int rc = tiny_open(&t, TREE, family, e);
    if (rc)
        return rc;
    const struct json *patch = switch_named(&t, off);
    if (off && !patch)
        rc = err_set(e, ERR_MISSING, "%s has no switch \"%s\"", family, off);
    if (rc == 0)
        rc = dir_make(dir, e);
    if (rc == 0)
        rc = tiny_write(&t, dir, &d0, e);
    if (rc == 0 && patch)
        rc = tiny_write_config(&t, dir, patch, e);
    tiny_close(&t);
    return rc;
}

static int print_probes(const char *dir, struct err *e)
{
    struct d0 d0 = {.log = {.fd = -1}};
    struct tiny_model m;
    int rc = tiny_model_open(&m, dir, &d0, e);
    for (uint32_t i = 0; rc == 0 && i < m.s->graph->n_values; i++) {
        const struct graph_value_info *v = &m.s->graph->info[i];
        if (v->probe)
            printf("%s\t%lld\n", v->name, (long long)m.s->graph->values[i].dims[1]);
    }
    tiny_model_close(&m);
    return rc;
}

static int test_all(const char *only, bool all, bool table)
{
    struct tap tap = {.all = all, .table = table};
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
        if (!only || strcmp(only, names[i]) == 0)
            test_family(&tap, names[i]);
    arena_release(&arena);
    if (!table)
        printf("1..%u\n", tap.n);
    return tap.failed || tap.n == 0;
}

int main(int argc, char **argv)
{
    struct err e;
    err_clear(&e);
    const char *what = argc > 1 ? argv[1] : "";
    int rc = ERR_OK;
    if (strcmp(what, "--write") == 0 && (argc == 4 || (argc == 6 && strcmp(argv[4], "--switch") == 0)))
        rc = write_one(argv[2], argv[3], argc == 6 ? argv[5] : NULL, &e);
    else if (strcmp(what, "--probes") == 0 && argc == 3)
        rc = print_probes(argv[2], &e);
    else if (strcmp(what, "--only") == 0 && (argc == 3 || (argc == 4 && strcmp(argv[3], "--all") == 0)))
        return test_all(argv[2], argc == 4, false);
    else if (strcmp(what, "--table") == 0 && argc == 2)
        return test_all(NULL, false, true);
    else if (argc == 1)
        return test_all(NULL, false, false);
    else
        rc = err_set(&e, ERR_USAGE,
                     "usage: parity [--only FAMILY [--all]] | --table | --write FAMILY DIR [--switch NAME] | "
                     "--probes DIR");
    if (rc)
        fprintf(stderr, "parity: %s\n", e.message);
    return rc != 0;
}
