/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: whether `day0 compare REFERENCE MODEL` names what is wrong. Faults of planted.def are made in the
 * tiny model of each family, in every operator they fit and again in one of a middle layer, and the fast
 * kernels are held against two references: a trace of the intact model by the reference kernels, with every
 * probe, and the recording of another program (golden/), with the probes that it happens to have. Named
 * means: the first wrong probe is the first that follows from a planted operator, of its layer, its span
 * holds that operator, and no probe is wrong that does not follow from one. Intact models raise no alarm.
 * Refuses: a rate below 95 %, a fault that fits fewer than three families without saying so, any alarm.
 *
 *   locate [--only FAMILY] [--part 0|1] [--table]     a part has every other family
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "locate_plant.h"
#include "oracle/oracle.h"
#include "oracle/trace_file.h"

#define TREE TEST_SOURCE_ROOT "/tests/parity"

enum {
    THREADS = 1,
    MOST_FAULTS = 64,
    LEAST_PERCENT = 95,
    LEAST_FAULTS = 16,
    DENSE = 3,
    LISTED = 6,
    PARTS = 2,
    LEAST_FAMILIES = 3
};

struct rate {
    unsigned named, of;
    unsigned exact; /* of those named: by a span that lists its operators, not only their number and ends */
};

struct tap {
    unsigned n, failed;
    bool table;
    struct rate fault[MOST_FAULTS][2], all; /* by fault: own trace, recording of others */
    unsigned families[MOST_FAULTS];
};

static void result(struct tap *tap, bool ok, const char *name, const char *detail)
{
    tap->failed += !ok;
    tap->n++;
    if (!ok || !tap->table)
        printf("%sok %u - %s: %s\n", ok ? "" : "not ", tap->n, name, detail);
    fflush(stdout);
}

/* ---- a family ---- */

enum { OWN, GOLDEN, SHORT, PREPARED, FAST, REFERENCES };

struct family {
    struct tap *tap;
    struct d0 d0;
    struct tiny t;
    struct dev ref, fast, moved;
    char dir[64], path[REFERENCES][512], weights[96];
    struct arena arena; /* of the ids */
    int32_t *ids;
    size_t n_ids;
    struct rate rate[2]; /* own trace, recording of others */
};

/* ---- recording and comparing ---- */

struct compared {
    struct arena arena;
    struct findings f;
    struct compare_result r;
};

static int compare_model(struct family *f, struct tiny_model *m, struct dev *d, const char *reference,
                         struct compared *c, struct err *e)
{
    const struct oracle_model om = {.dev = d, .spec = m->s, .ckpt = m->c, .memory = (uint64_t)1 << 30};
    (void)f;
    arena_init(&c->arena, NULL, MEM_MISC);
    findings_init(&c->f, NULL);
    return oracle_compare_model(&om, reference, &c->arena, &c->r, &c->f, e);
}

static void release(struct compared *c)
{
    findings_release(&c->f);
    arena_release(&c->arena);
}

static int record(struct family *f, struct tiny_model *m, struct dev *d, const char *to, struct err *e)
{
    const struct oracle_model om = {.dev = d, .spec = m->s, .ckpt = m->c, .memory = (uint64_t)1 << 30};
    const struct record_options o = {
        .ids = f->ids, .n_ids = f->n_ids, .first_layer = -1, .last_layer = -1, .out = to, .fresh = true};
    struct record_result r;
    struct arena arena;
    struct findings found;
    arena_init(&arena, NULL, MEM_MISC);
    findings_init(&found, NULL);
    int rc = oracle_record(&om, &o, &arena, &r, &found, e);
    findings_release(&found);
    arena_release(&arena);
    return rc;
}

/* ---- what follows from a fault ---- */

static const char *name_of(const struct graph *g, uint32_t maker, uint32_t v, char *buf, size_t bytes)
{
    const struct d0_node *n = &g->nodes[maker];
    if (v == n->outputs[0])
        return g->info[v].name;
    snprintf(buf, bytes, "%s:1", g->info[v].name);
    return buf;
}

static bool is_known(const struct graph *g, const struct trace *t, uint32_t maker, uint32_t v)
{
    char name[256];
    return (v == graph_result(g) && trace_find(t, TRACE_LOGITS)) ||
           trace_find(t, name_of(g, maker, v, name, sizeof name));
}

/* Forward from the outputs of a node to the first values that the reference has; through states, too. */
static void follow(const struct graph *g, const struct trace *t, uint32_t node, uint8_t *shows)
{
    uint8_t *live = calloc(g->n_values, 1);
    for (uint32_t i = node; live && i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        bool hit = i == node;
        for (uint32_t k = 0; k < n->n_inputs; k++)
            hit |= n->inputs[k] != D0_NO_VALUE && live[n->inputs[k]];
        for (uint32_t k = 0; hit && n->n_outputs == 0 && k < n->n_inputs; k++)
            if (n->inputs[k] != D0_NO_VALUE && g->values[n->inputs[k]].kind == D0_VALUE_STATE)
                live[n->inputs[k]] = 1;
        for (uint32_t k = 0; hit && k < n->n_outputs; k++) {
            bool known = is_known(g, t, i, n->outputs[k]);
            shows[n->outputs[k]] |= known;
            live[n->outputs[k]] = !known;
        }
    }
    free(live);
}

static uint32_t node_of_value(const struct graph *g, uint32_t v)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i].n_outputs; k++)
            if (g->nodes[i].outputs[k] == v)
                return i;
    return D0_NO_VALUE;
}

/* Is the probe of this name one of the values? Which, or D0_NO_VALUE. */
static uint32_t value_named(const struct graph *g, const char *name)
{
    char other[256];
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i].n_outputs; k++) {
            uint32_t v = g->nodes[i].outputs[k];
            if (!strcmp(name_of(g, i, v, other, sizeof other), name) ||
                (v == graph_result(g) && !strcmp(name, TRACE_LOGITS)))
                return v;
        }
    return D0_NO_VALUE;
}

/* ---- planting ---- */

struct planted {
    uint32_t values[4096]; /* first outputs of the nodes, in the order of the graph */
    uint32_t n;
    int32_t layer; /* of the first */
};

/* Where it fits: nodes of layers, ascending. */
static uint32_t find_places(struct plant *p, const struct fault *x, uint32_t *nodes, uint32_t most)
{
    uint32_t n = 0;
    p->dry = true;
    for (uint32_t i = 0; i < p->g->n_nodes && n < most; i++)
        if (p->g->nodes[i].op == x->op && p->g->nodes[i].layer >= 0 && p->g->nodes[i].n_outputs &&
            x->make(p, i, x->key, x->value))
            nodes[n++] = i;
    p->dry = false;
    return n;
}

/* Of one middle layer only: one of its nodes, not always the first. */
static uint32_t keep_one(const struct plant *p, const char *family, const char *fault, uint32_t *nodes,
                         uint32_t n)
{
    uint32_t layers = 0, first = 0, count = 0;
    for (uint32_t i = 0; i < n; i++)
        layers += i == 0 || p->g->nodes[nodes[i]].layer != p->g->nodes[nodes[i - 1]].layer;
    for (uint32_t i = 0, at = 0; i < n; i++) {
        at += i && p->g->nodes[nodes[i]].layer != p->g->nodes[nodes[i - 1]].layer;
        if (at != layers / 2)
            continue;
        first = count++ ? first : i;
    }
    const uint64_t pick = rng_u64(strlen(family) * 31 + (uint64_t)family[0], strlen(fault));
    nodes[0] = nodes[first + pick % count];
    return 1;
}

static bool prepare(struct plant *p, const struct fault *x)
{
    bool any = false;
    if (!x->prepare)
        return true;
    for (uint32_t i = 0; i < p->g->n_nodes; i++)
        if (p->g->nodes[i].op == x->op && p->g->nodes[i].layer >= 0)
            any |= x->prepare(p, i, x->prepare_key, x->prepare_value);
    return any;
}

/* false: it fits nowhere. Otherwise the model is faulty until plant_undo. */
static bool plant(struct plant *p, const struct fault *x, bool one, const char *family, struct planted *out)
{
    out->n = 0;
    if (!prepare(p, x))
        return false;
    out->n = find_places(p, x, out->values, ARRAY_LEN(out->values));
    if (out->n && one)
        out->n = keep_one(p, family, x->name, out->values, out->n);
    if (!out->n)
        return false;
    out->layer = p->g->nodes[out->values[0]].layer;
    for (uint32_t i = out->n; i-- > 0;) { /* backwards: a node that is put in moves those after it only */
        const uint32_t node = out->values[i], v = p->g->nodes[node].outputs[0];
        if (!x->make(p, node, x->key, x->value))
            abort();
        out->values[i] = v;
    }
    return true;
}

/* ---- judging ---- */

static bool all_follow(const struct graph *g, const struct compare_result *r, const uint8_t *shows)
{
    for (size_t i = 0; i < r->n_probes; i++) {
        if (r->probes[i].state != COMPARE_WRONG)
            continue;
        uint32_t v = value_named(g, r->probes[i].name);
        if (v == D0_NO_VALUE || !shows[v])
            return false;
    }
    return true;
}

static bool holds(const struct compare_probe *p, const char *op)
{
    const size_t n = strlen(op);
    for (const char *at = strstr(p->operators, op); at; at = strstr(at + 1, op))
        if ((at == p->operators || at[-1] == ' ') && (at[n] == 0 || at[n] == ',' || at[n] == ' '))
            return true;
    return p->n_operators > LISTED; /* told by their ends only */
}

/* dense: the reference has every probe, so a span is one operator, and those that store what it reads. */
static bool is_named(const struct graph *g, const char *reference, const struct planted *x, const char *op,
                     const struct compare_result *r, bool dense)
{
    struct trace *t = NULL;
    struct err e;
    uint8_t *first = calloc(g->n_values, 1), *all = calloc(g->n_values, 1);
    bool ok = first && all && r->first_wrong && trace_open(&t, reference, &e) == 0;
    for (uint32_t i = 0; ok && i < x->n; i++) {
        uint32_t node = node_of_value(g, x->values[i]);
        follow(g, t, node, all);
        if (g->nodes[node].layer == x->layer)
            follow(g, t, node, first);
    }
    if (ok) {
        uint32_t v = value_named(g, r->first_wrong->name);
        ok = v != D0_NO_VALUE && first[v] && all_follow(g, r, all) && holds(r->first_wrong, op) &&
             r->first_wrong->layer == x->layer && (!dense || r->first_wrong->n_operators <= DENSE);
    }
    trace_close(t);
    free(first);
    free(all);
    return ok;
}

static void count(struct family *f, size_t fault, unsigned golden, bool named, const struct compare_probe *p)
{
    struct rate *rates[] = {&f->rate[golden], &f->tap->fault[fault][golden], &f->tap->all};
    for (size_t i = 0; i < ARRAY_LEN(rates); i++) {
        rates[i]->of++;
        rates[i]->named += named;
        rates[i]->exact += named && p->n_operators <= LISTED;
    }
}

static void tell(const struct family *f, const struct fault *x, const struct planted *where, bool one,
                 const char *reference, const struct compare_result *r, const struct graph *g)
{
    const struct compare_probe *w = r->first_wrong;
    printf("# %s: %s in %s (%s): planted at %s, named %s (%s); %zu wrong, against %s\n", f->t.family, x->name,
           one ? "one layer" : "every layer", op_find(x->op)->name, g->info[where->values[0]].name,
           w ? w->name : "nothing", w ? w->operators : "", r->wrong, strrchr(reference, '/') + 1);
}

/* ---- one fault in one family ---- */

static int record_prepared(struct family *f, const struct fault *x, bool *fits, struct err *e)
{
    struct tiny_model m;
    int rc = tiny_model_open(&m, f->dir, &f->d0, e);
    struct plant p = {
        .m = &m, .n_tokens = (uint32_t)f->n_ids, .weights = f->weights, .trace = f->path[OWN], .e = e};
    if (rc == 0) {
        p.g = m.s->graph;
        *fits = prepare(&p, x);
        if (*fits)
            rc = record(f, &m, &f->ref, f->path[PREPARED], e);
    }
    plant_undo(&p);
    tiny_model_close(&m);
    return rc;
}

static int run_case(struct family *f, size_t fault, bool one, bool golden, bool *fits, struct err *e)
{
    const struct fault *x = &plant_faults[fault];
    const char *reference = f->path[golden ? GOLDEN : x->prepare ? PREPARED : OWN];
    struct tiny_model m;
    struct compared c;
    struct planted *where = malloc(sizeof *where);
    int rc = where ? tiny_model_open(&m, f->dir, &f->d0, e) : err_set(e, ERR_NOMEM, "no memory");
    if (rc) {
        free(where);
        return rc;
    }
    struct plant p = {.m = &m,
                      .g = m.s->graph,
                      .n_tokens = (uint32_t)f->n_ids,
                      .weights = f->weights,
                      .trace = f->path[OWN],
                      .e = e};
    *fits = plant(&p, x, one, f->t.family, where);
    if (*fits) {
        rc = compare_model(f, &m, &f->moved, reference, &c, e);
        if (rc == 0) {
            bool named =
                is_named(p.g, reference, where,
                         op_find(p.g->nodes[node_of_value(p.g, where->values[0])].op)->name, &c.r, !golden);
            count(f, fault, golden, named, c.r.first_wrong);
            if (!named)
                tell(f, x, where, one, reference, &c.r, p.g);
        }
        release(&c);
    }
    plant_undo(&p);
    tiny_model_close(&m);
    free(where);
    if (rc)
        err_ctx(e, "%s", x->name);
    return rc;
}

static int test_fault(struct family *f, size_t fault, struct err *e)
{
    const struct fault *x = &plant_faults[fault];
    bool fits = true;
    int rc = x->prepare ? record_prepared(f, x, &fits, e) : ERR_OK;
    for (int one = 0; rc == 0 && fits && one < 2; one++) {
        rc = run_case(f, fault, one, false, &fits, e);
        if (rc == 0 && fits && !x->prepare)
            rc = run_case(f, fault, one, true, &fits, e);
    }
    f->tap->families[fault] += fits;
    return rc;
}

/* ---- intact models ---- */

static int clean_case(struct family *f, struct tiny_model *m, const char *what, unsigned reference,
                      bool traces, struct err *e)
{
    struct compared c = {0};
    char name[128], detail[1400];
    int rc;
    if (traces) {
        arena_init(&c.arena, NULL, MEM_MISC);
        findings_init(&c.f, NULL);
        rc = oracle_compare(f->path[reference], f->path[FAST], &c.arena, &c.r, &c.f, e);
    } else {
        rc = compare_model(f, m, &f->fast, f->path[reference], &c, e);
    }
    snprintf(name, sizeof name, "%s intact, %s", f->t.family, what);
    if (rc)
        snprintf(detail, sizeof detail, "%s", e->message);
    else if (c.f.n)
        snprintf(detail, sizeof detail, "%s %.1000s", c.f.items[0].subject, c.f.items[0].evidence);
    else
        snprintf(detail, sizeof detail,
                 "%zu probes right, %zu not judged, %zu near ties, of %zu choices %zu unknown", c.r.right,
                 c.r.not_judged, c.r.near_ties, c.r.choices, c.r.choices_unknown);
    result(f->tap, rc == 0 && c.f.n == 0 && c.r.wrong == 0 && c.r.right > 0, name, detail);
    release(&c);
    return rc;
}

static int test_clean(struct family *f, struct err *e)
{
    static const struct {
        const char *what;
        unsigned reference;
        bool traces;
    } cases[] = {{"model against its own trace", OWN, false},
                 {"model against the recording", GOLDEN, false},
                 {"model against the short recording", SHORT, false},
                 {"trace against trace", OWN, true},
                 {"trace against the recording", GOLDEN, true}};
    struct tiny_model m;
    int rc = tiny_model_open(&m, f->dir, &f->d0, e);
    if (rc == 0)
        rc = record(f, &m, &f->ref, f->path[OWN], e);
    if (rc == 0)
        rc = record(f, &m, &f->fast, f->path[FAST], e);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(cases); i++)
        rc = clean_case(f, &m, cases[i].what, cases[i].reference, cases[i].traces, e);
    tiny_model_close(&m);
    return rc;
}

/* ---- all families ---- */

static int open_family(struct family *f, const char *name, struct err *e)
{
    static const char *const own[REFERENCES] = {[OWN] = "own", [PREPARED] = "prepared", [FAST] = "fast"};
    for (int i = 0; i < REFERENCES; i++)
        if (own[i])
            snprintf(f->path[i], sizeof f->path[i], "%s/%s.safetensors.trace", f->dir, own[i]);
    snprintf(f->path[GOLDEN], sizeof f->path[GOLDEN], TREE "/golden/%s.safetensors", name);
    snprintf(f->path[SHORT], sizeof f->path[SHORT], TREE "/golden/%s.short.safetensors", name);
    snprintf(f->weights, sizeof f->weights, "%s/model.safetensors", f->dir);
    int rc = tiny_open(&f->t, TREE, name, e);
    if (rc == 0)
        rc = tiny_write(&f->t, f->dir, &f->d0, e);
    if (rc == 0)
        rc = oracle_read_ids(f->path[GOLDEN], &f->arena, &f->ids, &f->n_ids, e);
    if (rc == 0)
        rc = dev_open(&f->ref, &(struct dev_options){.name = "cpu", .isa = "ref", .n_threads = THREADS}, e);
    if (rc == 0)
        rc = dev_open(&f->fast, &(struct dev_options){.name = "cpu", .isa = "fast", .n_threads = THREADS}, e);
    if (rc == 0)
        plant_device(&f->moved, &f->fast);
    return rc;
}

static void close_family(struct family *f)
{
    if (f->ref.api)
        dev_close(&f->ref);
    if (f->fast.api)
        dev_close(&f->fast);
    tiny_close(&f->t);
    arena_release(&f->arena);
    for (int i = 0; i < REFERENCES; i++)
        if (i != GOLDEN && i != SHORT)
            unlink(f->path[i]);
    tiny_remove(f->dir);
}

static void test_family(struct tap *tap, const char *name)
{
    struct family f = {.tap = tap, .d0 = {.log = {.fd = -1}}};
    struct err e;
    char detail[1400], label[96];
    err_clear(&e);
    arena_init(&f.arena, NULL, MEM_MISC);
    strcpy(f.dir, "/tmp/day0-locate-XXXXXX");
    if (!mkdtemp(f.dir)) {
        result(tap, false, name, "no temporary directory");
        return;
    }
    int rc = open_family(&f, name, &e);
    if (rc == 0)
        rc = test_clean(&f, &e);
    for (size_t i = 0; rc == 0 && i < n_plant_faults; i++)
        rc = test_fault(&f, i, &e);
    snprintf(label, sizeof label, "%s: faults are named", name);
    if (rc)
        snprintf(detail, sizeof detail, "%.1000s (%.100s)", e.message, e.n_frames ? e.frames[0] : "");
    else
        snprintf(detail, sizeof detail, "%u of %u by its own trace, %u of %u by the recording",
                 f.rate[0].named, f.rate[0].of, f.rate[1].named, f.rate[1].of);
    result(tap, rc == 0, label, detail);
    if (rc == 0 && tap->table)
        printf("| %s | %u of %u | %u of %u | %u |\n", name, f.rate[0].named, f.rate[0].of, f.rate[1].named,
               f.rate[1].of, f.rate[1].exact);
    close_family(&f);
}

static void summarise(struct tap *tap)
{
    unsigned wide = 0;
    char detail[256];
    for (size_t i = 0; i < n_plant_faults; i++) {
        const struct rate *own = &tap->fault[i][0], *golden = &tap->fault[i][1];
        wide += tap->families[i] >= LEAST_FAMILIES;
        printf(
            tap->table
                ? "| %s | %s | %u | %u of %u | %u of %u | %u |\n"
                : "# %s (%s): %u families, %u of %u by their own traces, %u of %u by recordings, %u of these "
                  "by a span of few operators\n",
            plant_faults[i].name, op_find(plant_faults[i].op)->name, tap->families[i], own->named, own->of,
            golden->named, golden->of, golden->exact);
    }
    snprintf(detail, sizeof detail, "%u of %u, at least %u %%", tap->all.named, tap->all.of, LEAST_PERCENT);
    result(tap, tap->all.of > 0 && tap->all.named * 100 >= tap->all.of * LEAST_PERCENT,
           "operator and layer are named", detail);
    snprintf(detail, sizeof detail, "%u of %zu, at least %u", wide, n_plant_faults, LEAST_FAULTS);
    result(tap, wide >= LEAST_FAULTS, "faults that fit three families or more", detail);
}

int main(int argc, char **argv)
{
    struct tap tap = {.n = 0};
    struct arena arena;
    struct err e;
    char **names;
    const char *only = NULL;
    size_t n;
    int part = -1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--table") == 0)
            tap.table = true;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            only = argv[++i];
        else if (strcmp(argv[i], "--part") == 0 && i + 1 < argc)
            part = atoi(argv[++i]);
        else {
            fprintf(stderr, "usage: locate [--only FAMILY] [--part 0|1] [--table]\n");
            return 2;
        }
    }
    _Static_assert(ARRAY_LEN(tap.fault) == MOST_FAULTS, "room for the table");
    arena_init(&arena, NULL, MEM_MISC);
    if (n_plant_faults > MOST_FAULTS || tiny_families(TREE, &arena, &names, &n, &e)) {
        printf("not ok 1 - no families, or too many faults\n");
        return 1;
    }
    for (size_t i = 0; i < n; i++)
        if ((!only || strcmp(only, names[i]) == 0) && (part < 0 || (int)(i % PARTS) == part))
            test_family(&tap, names[i]);
    if (!only)
        summarise(&tap);
    arena_release(&arena);
    if (!tap.table)
        printf("1..%u\n", tap.n);
    return tap.failed || tap.n == 0;
}
