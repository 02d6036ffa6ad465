/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: parity of whole models with transformers. For each tiny model of tests/parity/tiny: makes its
 * checkpoint, opens it as any other, runs it on the reference kernels and on the fastest ones (in one step,
 * in chunks, token by token; on the fastest also with the forms that change bits), and holds logits and
 * probes against what transformers computed from the same files (tests/parity/golden, recorded by
 * tools/reference.py; Kimi-K3: by tools/reference_k3.py). Recurrent states are held against those behind the
 * last token. Both prompts also run side by side, out of step. Then cuts the model wherever the recording has
 * all that crosses the cut, and runs each piece, a layer mostly, on what was recorded before it: errors do
 * not add up, so the limit is closer. Then turns single features off by config.json: the logits must move, or
 * the model would not notice that a feature is ignored. What no kernel computes yet is skipped and counted.
 * Rows of the recording whose choice of experts or keys is nearly a tie are left out and counted; where they
 * are more than 2 % nothing is judged.
 *
 *   parity [--only FAMILY] [--all]     test; --all prints every probe
 *   parity --table                     test; prints the worst of each family as docs/numerics.md has it
 *   parity --write FAMILY DIR [--switch NAME] | --probes DIR | --states DIR
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "oracle/oracle.h"
#include "recorded.h"
#include "tiny.h"

#define LIMIT       1e-4 /* relative L2 of a row of logits or of a probe, free running */
#define FORCED      1e-5 /* the same of a piece that is fed what was recorded */
#define CHUNK       7
#define DECODE_FROM 8 /* so many last tokens one by one */
#define LANES       4 /* sequences of the ragged batch */
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
    struct reference *states;            /* recurrent states behind the last token of `reference`, or NULL */
    uint8_t *near;                       /* [n_ids of reference] rows that are nearly ties */
    size_t n_near;
    double free, forced; /* worst logits; worst of the pieces */
    unsigned pieces;
    uint32_t forms; /* fusions that change bits and have nodes in this model */
    double formed;  /* worst logits with them */
};

struct worst {
    double limit, logits, probe;
    char where[128];
    size_t probes, states;
};

/* Rows of a step that belong to positions at .. at + n - 1 of a recording. */
struct span {
    const struct reference *r;
    size_t at, n;
};

static bool left_out(const struct family *f, const struct reference *r, size_t row)
{
    return r == f->reference && f->near[row];
}

/* logits [n, vocab] of the rows of a span */
static double logits_error(const struct family *f, const struct span *s, const float *logits)
{
    const struct reference *r = s->r;
    double worst = 0;
    for (size_t i = 0; i < s->n; i++)
        if (!left_out(f, r, s->at + i))
            worst =
                fmax(worst, row_error(logits + i * r->vocab, r->logits + (s->at + i) * r->vocab, r->vocab));
    return worst;
}

static double worst_row(const struct family *f, const struct reference_probe *p, const struct span *spans,
                        size_t n, const float *x)
{
    double worst = 0;
    for (size_t i = 0; i < n; x += spans[i].n * p->width, i++)
        for (size_t k = 0; spans[i].r->n_probes && k < spans[i].n; k++)
            if (!left_out(f, spans[i].r, spans[i].at + k))
                worst = fmax(worst, probe_error(p, spans[i].at + k, x + k * p->width));
    return worst;
}

/* The first one beyond the limit is where the error came in. */
static void note_worst(const struct family *f, struct worst *w, const char *name, double worst)
{
    if (f->tap->all)
        printf("#   %-60s %.2e\n", name, worst);
    if (worst > w->probe && !(w->probe > w->limit)) {
        w->probe = worst;
        snprintf(w->where, sizeof w->where, "%.120s", name);
    }
}

/* The probes of a step whose rows are the spans. */
static int compare_probes(const struct family *f, struct runner *run, const struct span *spans, size_t n,
                          struct worst *w, struct err *e)
{
    size_t total = 0, found = 0;
    for (size_t i = 0; i < n; i++)
        total += spans[i].n;
    size_t cap = runner_probe_floats(f->m.s->graph, (uint32_t)total);
    float *x = malloc((cap ? cap : 1) * sizeof *x);
    int rc = x ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for probes");
    for (size_t i = 0; rc == 0 && i < engine_probes(run->x); i++) {
        const char *name = engine_probe_name(run->x, i);
        const struct reference_probe *p = recorded_probe(f->reference, name);
        size_t rows, width;
        if (!p)
            continue;
        rc = engine_probe_read(run->x, i, x, cap, &rows, &width, e);
        if (rc == 0 && (width != p->width || rows != total))
            rc = err_set(e, ERR_MISMATCH, "%s is %zu rows of %zu, recorded %zu of %zu", name, rows, width,
                         total, p->width);
        for (size_t k = 0; rc == 0 && recorded_is_choice(name) && k < rows; k++)
            recorded_sort_choice(x + k * width, width);
        if (rc == 0)
            note_worst(f, w, name, worst_row(f, p, spans, n, x));
        found++;
    }
    w->probes = found;
    free(x);
    return rc;
}

/* The recurrent states of a slot behind the last token of the reference; those that are not in the graph of
 * the run are left out. w->states counts. */
static int compare_states(const struct family *f, struct runner *run, uint32_t slot, struct worst *w,
                          struct err *e)
{
    int rc = ERR_OK;
    for (size_t i = 0; rc == 0 && f->states && i < f->states->n_probes; i++) {
        const struct reference_probe *p = &f->states->probes[i];
        size_t n;
        float *x = malloc(p->width * sizeof *x); /* [width]: one slot */
        rc = x ? engine_slot_read(run->x, p->name, slot, x, p->width, &n, e)
               : err_set(e, ERR_NOMEM, "no memory for %s", p->name);
        if (rc == 0 && n != p->width)
            rc = err_set(e, ERR_MISMATCH, "%s has %zu values, recorded %zu", p->name, n, p->width);
        if (rc == 0) {
            note_worst(f, w, p->name, row_error(x, p->data, n));
            w->states++;
        }
        rc = rc == ERR_MISSING ? ERR_OK : rc;
        free(x);
    }
    return rc;
}

static size_t n_states(const struct family *f)
{
    return f->states ? f->states->n_probes : 0;
}

static int all_probes(const struct reference *r, size_t found, struct err *e)
{
    return found == r->n_probes
               ? ERR_OK
               : err_set(e, ERR_MISMATCH, "%zu of %zu recorded probes are in the graph", found, r->n_probes);
}

static int all_recorded(const struct family *f, size_t probes, const struct worst *w, struct err *e)
{
    if (w->states != n_states(f))
        return err_set(e, ERR_MISMATCH, "%zu of %zu recorded states are in the graph", w->states,
                       n_states(f));
    return all_probes(f->reference, probes, e);
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
            w->logits = fmax(w->logits, logits_error(f, &(struct span){r, at, n}, step_result_logits(res)));
        if (rc == 0 && r->n_probes)
            rc = compare_probes(f, run, &(struct span){r, at, n}, 1, w, e);
        if (rc == 0 && r->n_probes)
            rc = all_probes(r, w->probes, e);
    }
    return rc;
}

static int open_runner(const struct family *f, const struct tiny_model *m, struct dev *d, bool probes,
                       uint32_t fusions, struct runner *run, struct err *e)
{
    uint32_t n = (uint32_t)f->reference->n_ids;
    struct runner_size size = {
        .tokens = n, .seqs = 1, .rows = n, .context = n, .probes = probes, .fusions = fusions};
    return runner_open_model(run, d, m->s, m->c, &size, NULL, e);
}

/* The forms that change bits, each with a limit of its own that is not above that of parity. */
static uint32_t bounded_forms(void)
{
    return FUSION_BIT(FUSION_MLA_EXPANDED) | FUSION_BIT(FUSION_DELTA_CHUNKED);
}

static double limit_of(uint32_t fusions)
{
    double limit = LIMIT;
    for (unsigned i = 0; i < FUSION_N; i++)
        if (fusions & FUSION_BIT(i))
            limit = fmin(limit, fusion_info((enum fusion)i)->limit);
    return limit;
}

static void run_case(struct family *f, struct dev *d, const char *isa, const char *how, size_t chunk,
                     size_t single, uint32_t fusions)
{
    const double limit = limit_of(fusions);
    struct runner run = {.x = NULL};
    struct worst w = {.limit = limit}, brief = {.limit = limit};
    struct err e;
    char name[96], detail[1400];
    err_clear(&e);
    snprintf(name, sizeof name, "%s %s %s%s", f->t.family, isa, how, fusions ? ", other forms" : "");
    int rc = open_runner(f, &f->m, d, true, fusions, &run, &e);
    const uint32_t forms = rc == 0 ? engine_fusions(run.x) : 0;
    if (rc == 0 && fusions && !forms) { /* the model has no such operator */
        runner_close(&run);
        return;
    }
    if (rc == 0)
        rc = run_prompt(f, &run, f->reference, chunk, single, &w, &e);
    if (rc == 0)
        rc = compare_states(f, &run, 0, &w, &e);
    if (rc == 0)
        rc = all_recorded(f, w.probes, &w, &e);
    /* a second request in the slots and pages of the first: what it left must not be seen */
    if (rc == 0)
        rc = run_prompt(f, &run, f->brief, chunk, f->brief->n_ids < single ? 0 : single, &brief, &e);
    runner_close(&run);
    f->forms |= forms;
    double *worst = fusions ? &f->formed : &f->free;
    *worst = fmax(*worst, rc ? INFINITY : fmax(w.logits, brief.logits));
    if (rc)
        snprintf(detail, sizeof detail, "%s", e.message);
    else
        snprintf(detail, sizeof detail,
                 "logits %.1e, short prompt %.1e, %zu probes and %zu states, worst %.1e %s (limit %.0e), %zu "
                 "rows left out",
                 w.logits, brief.logits, w.probes, w.states, w.probe, w.where, limit, f->n_near);
    result(f->tap, rc == 0 && w.logits <= limit && brief.logits <= limit && w.probe <= limit, name, detail);
}

/* ---- several sequences in one step ---- */

struct lane {
    const struct reference *r;
    size_t begins, chunk; /* step of its first token; tokens of a step, but one for its last ones */
    size_t at;
};

static size_t next_tokens(const struct lane *l, size_t step)
{
    size_t all = l->r->n_ids, single = all < 2 * DECODE_FROM ? all / 2 : DECODE_FROM, many = all - single;
    if (step < l->begins || l->at >= all)
        return 0;
    return l->at >= many ? 1 : many - l->at < l->chunk ? many - l->at : l->chunk;
}

/* One step: what each lane has next, in runs of unequal length. */
static int step_lanes(const struct family *f, struct runner *run, struct lane *lanes, size_t n, size_t step,
                      struct worst *w, struct err *e)
{
    struct runner_run runs[LANES];
    struct span spans[LANES];
    struct step_result *res;
    uint32_t live = 0;
    for (size_t i = 0; i < n; i++) {
        struct lane *l = &lanes[i];
        size_t next = next_tokens(l, step);
        if (!next)
            continue;
        runs[live] = (struct runner_run){.slot = (uint32_t)i,
                                         .tokens = l->r->ids + l->at,
                                         .n = (uint32_t)next,
                                         .position = (uint32_t)l->at,
                                         .flags = STEP_ALL_LOGITS};
        spans[live++] = (struct span){l->r, l->at, next};
        l->at += next;
    }
    if (live == 0)
        return ERR_OK;
    int rc = runner_step(run, runs, live, &res, e);
    const float *got = step_result_logits(res);
    for (uint32_t i = 0; rc == 0 && i < live; got += spans[i].n * spans[i].r->vocab, i++)
        w->logits = fmax(w->logits, logits_error(f, &spans[i], got));
    return rc ? rc : compare_probes(f, run, spans, live, w, e);
}

/* Both prompts twice, begun at different steps: prompts run beside single tokens of other sequences, and the
 * last one goes on alone. */
static void ragged_case(struct family *f, struct dev *d, const char *isa)
{
    struct lane lanes[LANES] = {{.r = f->reference, .begins = 0, .chunk = 5},
                                {.r = f->brief, .begins = 1, .chunk = 4},
                                {.r = f->brief, .begins = 6, .chunk = 1},
                                {.r = f->reference, .begins = 3, .chunk = 17}};
    const uint32_t longest = (uint32_t)f->reference->n_ids;
    const struct runner_size size = {
        .tokens = LANES * 17, .seqs = LANES, .rows = LANES * 17, .context = longest, .probes = true};
    struct runner run = {.x = NULL};
    struct worst w = {.limit = LIMIT};
    struct err e;
    char name[96], detail[1400];
    err_clear(&e);
    snprintf(name, sizeof name, "%s %s in a ragged batch", f->t.family, isa);
    int rc = runner_open_model(&run, d, f->m.s, f->m.c, &size, NULL, &e);
    size_t steps = 0;
    for (size_t left = 1; rc == 0 && left; steps++) {
        rc = step_lanes(f, &run, lanes, LANES, steps, &w, &e);
        left = 0;
        for (size_t i = 0; i < LANES; i++)
            left += lanes[i].r->n_ids - lanes[i].at;
    }
    for (uint32_t i = 0; rc == 0 && i < LANES; i++)
        if (lanes[i].r == f->reference)
            rc = compare_states(f, &run, i, &w, &e);
    if (rc == 0 && w.states != 2 * n_states(f))
        rc = err_set(&e, ERR_MISMATCH, "%zu states compared, not %zu", w.states, 2 * n_states(f));
    runner_close(&run);
    f->free = fmax(f->free, rc ? INFINITY : w.logits);
    if (rc)
        snprintf(detail, sizeof detail, "%s", e.message);
    else
        snprintf(detail, sizeof detail,
                 "%zu steps, logits %.1e, %zu probes and %zu states, worst %.1e %s (limit %.0e)", steps,
                 w.logits, w.probes, w.states, w.probe, w.where, LIMIT);
    result(f->tap, rc == 0 && w.logits <= LIMIT && w.probe <= LIMIT, name, detail);
}

/* ---- piece by piece ---- */

struct fed {
    const struct family *f;
    struct dev *d;
    struct worst *w;
    size_t probes;
};

static int run_piece(void *ctx, const struct graph *g, struct err *e)
{
    struct fed *fed = ctx;
    const struct family *f = fed->f;
    const struct reference *r = f->reference;
    struct worst *w = fed->w;
    uint32_t n = (uint32_t)r->n_ids;
    const struct runner_size size = {.tokens = n, .seqs = 1, .rows = n, .context = n, .probes = true};
    bool logits = recorded_ends_in_logits(g);
    struct runner_run one = {.tokens = r->ids, .n = n, .flags = logits ? STEP_ALL_LOGITS : 0};
    struct runner run = {.x = NULL};
    struct step_result *res;
    int rc = weights_load(&run.weights, g, f->m.c, fed->d, &(struct load_options){.spec = f->m.s}, e);
    if (rc == 0)
        rc = runner_open_graph(&run, fed->d, g, run.weights, &size, NULL, e);
    if (rc == 0)
        rc = recorded_feed(r, &run, g, NULL, e);
    if (rc == 0)
        rc = runner_step(&run, &one, 1, &res, e);
    if (rc == 0 && logits)
        w->logits = fmax(w->logits, logits_error(f, &(struct span){r, 0, n}, step_result_logits(res)));
    if (rc == 0)
        rc = compare_probes(f, &run, &(struct span){r, 0, n}, 1, w, e);
    if (rc == 0)
        rc = compare_states(f, &run, 0, w, e);
    fed->probes += w->probes;
    runner_close(&run);
    return rc;
}

static int run_pieces(struct family *f, struct dev *d, struct worst *w, struct err *e)
{
    struct fed fed = {.f = f, .d = d, .w = w};
    int rc = recorded_pieces(f->m.s->graph, f->reference, run_piece, &fed, &f->pieces, e);
    return rc ? rc : all_recorded(f, fed.probes, w, e);
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
        rc = open_runner(f, &m, d, false, 0, &run, e);
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

static bool has_slots(const struct graph *g)
{
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == D0_VALUE_STATE && g->info[i].state == STATE_SLOTS)
            return true;
    return false;
}

/* A family with recurrent states has a recording of them, unless it says why not. */
static int check_states(const struct family *f, struct err *e)
{
    bool wanted = has_slots(f->m.s->graph) && !json_get(f->t.root, "states_not_recorded");
    if (wanted == (f->states != NULL))
        return ERR_OK;
    return err_set(e, ERR_MISMATCH, "recurrent states are %srecorded", wanted ? "not " : "");
}

static int open_family(struct family *f, const char *name, struct err *e)
{
    char path[512];
    int rc = tiny_make(&f->t, &f->m, TREE, name, f->dir, &f->d0, e);
    if (rc == 0 && f->m.s->n_unread)
        rc = err_set(e, ERR_FORMAT, "nobody reads %s", f->m.s->unread_keys[0]);
    snprintf(path, sizeof path, TREE "/golden/%s.safetensors", name);
    if (rc == 0)
        rc = reference_open(&f->reference, path, e);
    if (rc == 0)
        rc = find_near_ties(f, path, e);
    if (rc == 0)
        rc = recorded_show_choices(f->m.s->graph, e);
    snprintf(path, sizeof path, TREE "/golden/%s.short.safetensors", name);
    if (rc == 0)
        rc = reference_open(&f->brief, path, e);
    snprintf(path, sizeof path, TREE "/golden/%s.states.safetensors", name);
    if (rc == 0 && access(path, F_OK) == 0)
        rc = reference_open(&f->states, path, e);
    if (rc == 0)
        rc = check_states(f, e);
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
        run_case(f, &d, isa, "in one step", f->reference->n_ids, 0, 0);
        run_case(f, &d, isa, "in chunks", CHUNK, 0, 0);
        run_case(f, &d, isa, "token by token", f->reference->n_ids, DECODE_FROM, 0);
        if (strcmp(isa, "ref") != 0) { /* which ignores what form is asked for */
            run_case(f, &d, isa, "in one step", f->reference->n_ids, 0, bounded_forms());
            run_case(f, &d, isa, "in chunks", CHUNK, 0, bounded_forms());
            run_case(f, &d, isa, "token by token", f->reference->n_ids, DECODE_FROM, bounded_forms());
        }
        ragged_case(f, &d, isa);
        forced_case(f, &d, isa);
        if (strcmp(isa, "ref") == 0)
            test_switches(f, &d);
    }
    dev_close(&d);
}

/* A row of the table, and where the model has such operators a row of the table of forms. */
static void print_row(const struct family *f)
{
    char forms[FUSIONS_TEXT];
    printf("| %s | %s | %.1e | %.1e | %u |\n", f->t.family, f->reference->producer, f->free, f->forced,
           f->pieces);
    if (f->forms)
        printf("forms: | %s | %s | %.1e | %.1e |\n", f->t.family,
               fusions_format(f->forms, forms, sizeof forms), f->free, f->formed);
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
        print_row(&f);
    reference_close(f.reference);
    reference_close(f.brief);
    reference_close(f.states);
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
    if (rc == 0)
        rc = recorded_show_choices(m.s->graph, e);
    for (uint32_t i = 0; rc == 0 && i < m.s->graph->n_values; i++) {
        const struct graph_value_info *v = &m.s->graph->info[i];
        if (v->probe)
            printf("%s\t%lld\n", v->name, (long long)m.s->graph->values[i].dims[1]);
    }
    tiny_model_close(&m);
    return rc;
}

static int print_states(const char *dir, struct err *e)
{
    struct d0 d0 = {.log = {.fd = -1}};
    struct tiny_model m;
    int rc = tiny_model_open(&m, dir, &d0, e);
    for (uint32_t i = 0; rc == 0 && i < m.s->graph->n_values; i++) {
        const struct d0_value *v = &m.s->graph->values[i];
        if (v->kind != D0_VALUE_STATE || m.s->graph->info[i].state != STATE_SLOTS)
            continue;
        printf("%s", m.s->graph->info[i].name);
        for (uint32_t k = 1; k < v->n_dims; k++)
            printf("\t%lld", (long long)v->dims[k]);
        printf("\n");
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
    else if (strcmp(what, "--states") == 0 && argc == 3)
        rc = print_states(argv[2], &e);
    else if (strcmp(what, "--only") == 0 && (argc == 3 || (argc == 4 && strcmp(argv[3], "--all") == 0)))
        return test_all(argv[2], argc == 4, false);
    else if (strcmp(what, "--table") == 0 && argc == 2)
        return test_all(NULL, false, true);
    else if (argc == 1)
        return test_all(NULL, false, false);
    else
        rc = err_set(&e, ERR_USAGE,
                     "usage: parity [--only FAMILY [--all]] | --table | --write FAMILY DIR [--switch NAME] | "
                     "--probes DIR | --states DIR");
    if (rc)
        fprintf(stderr, "parity: %s\n", e.message);
    return rc != 0;
}
