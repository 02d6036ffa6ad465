/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 ops: every operator of a device against its definition; with a MODEL, at that model's shapes, and
 * which of its operators the device runs.
 */
#include "api/api.h"
#include "cli/cli.h"
#include "cli/cmd_ops_from.h"
#include "verify/verify.h"

struct ops_arguments {
    struct common common;
    struct verify_ops_options ops;
    const char *from;
    size_t tokens;
    bool support;
};

enum { KEY_ONLY = 0x2000, KEY_SEED, KEY_BENCH, KEY_SUPPORT, KEY_FROM, KEY_TOKENS };

static const struct argp_option options[] = {
    {"only", KEY_ONLY, "NAME", 0, "operators whose name contains NAME", 1},
    {"seed", KEY_SEED, "N", 0, "seed of the inputs (default 1)", 1},
    {"bench", KEY_BENCH, NULL, 0, "also measure speed of what passed", 1},
    {"support", KEY_SUPPORT, NULL, 0, "only list which operators of MODEL the device runs", 1},
    {"from", KEY_FROM, "TRACE", 0, "run the operators of MODEL on what TRACE recorded, layer by layer", 1},
    {"tokens", KEY_TOKENS, "N", 0, "with --from: the first N positions of TRACE (default 64, 0: all)", 1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct ops_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        break;
    case KEY_ONLY:
        a->ops.only = arg;
        break;
    case KEY_SEED:
        a->ops.seed = (uint64_t)cli_int(state, "--seed", arg, 0, INT64_MAX);
        break;
    case KEY_BENCH:
        a->ops.bench = true;
        break;
    case KEY_SUPPORT:
        a->support = true;
        break;
    case KEY_FROM:
        a->from = arg;
        break;
    case KEY_TOKENS:
        a->tokens = (size_t)cli_int(state, "--tokens", arg, 0, INT32_MAX);
        break;
    case ARGP_KEY_END:
        if (a->from && (!a->common.model || a->support || a->ops.bench))
            argp_error(state, "--from needs a MODEL directory, and goes with neither --support nor --bench");
        if (a->support && !a->common.model)
            argp_error(state, "--support needs a MODEL directory");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void write_results(struct json_writer *w, const struct verify_op_result *r, size_t n)
{
    json_key(w, "results");
    json_begin_array(w);
    for (size_t i = 0; i < n; i++) {
        json_begin_object(w);
        json_put_string(w, "name", r[i].name);
        json_put_string(w, "shape", r[i].shape);
        json_put_bool(w, "passed", r[i].passed);
        json_put_f64(w, "max_ulp", r[i].max_ulp);
        json_put_f64(w, "limit_ulp", r[i].limit_ulp);
        json_put_f64(w, "gb_per_second", r[i].gbps);
        json_put_f64(w, "gflop_per_second", r[i].gflops);
        json_put_f64(w, "times_reference", r[i].ref_ratio);
        json_put_u64(w, "seed", r[i].seed);
        json_put_string(w, "why", r[i].why[0] ? r[i].why : NULL);
        json_end_object(w);
    }
    json_end_array(w);
}

static void print_results(const struct verify_op_result *r, size_t n, bool bench)
{
    struct table t;
    table_init(&t, bench ? 7 : 5);
    static const char *const heads[] = {"operator", "shape", "result",  ">max ulp",
                                        ">limit",   ">GB/s", ">GFLOP/s"};
    for (size_t i = 0; i < t.n_columns; i++)
        table_cell(&t, "%s", heads[i]);
    for (size_t i = 0; i < n; i++) {
        table_cell(&t, "%s", r[i].name);
        table_cell(&t, "%s", r[i].shape);
        table_cell(&t, "%s%s%s", r[i].passed ? "ok" : "FAILED", r[i].why[0] ? ": " : "", r[i].why);
        table_cell(&t, "%.2f", r[i].max_ulp);
        table_cell(&t, "%.0f", r[i].limit_ulp);
        if (bench) {
            table_cell(&t, "%.1f", r[i].gbps);
            table_cell(&t, "%.1f", r[i].gflops);
        }
    }
    table_print(&t, stdout);
    table_release(&t);
}

static void write_matrix(struct json_writer *w, const struct verify_op_row *rows, size_t n)
{
    json_key(w, "operators");
    json_begin_array(w);
    for (size_t i = 0; i < n; i++) {
        json_begin_object(w);
        json_put_string(w, "op", rows[i].op);
        json_put_string(w, "types", rows[i].types);
        json_put_u64(w, "count", rows[i].count);
        json_put_bool(w, "supported", rows[i].supported);
        json_put_string(w, "reason", rows[i].reason[0] ? rows[i].reason : NULL);
        json_end_object(w);
    }
    json_end_array(w);
}

static void print_matrix(const struct verify_op_row *rows, size_t n)
{
    struct table t;
    table_init(&t, 4);
    table_cell(&t, "operator");
    table_cell(&t, "types");
    table_cell(&t, ">nodes");
    table_cell(&t, "device");
    for (size_t i = 0; i < n; i++) {
        table_cell(&t, "%s", rows[i].op);
        table_cell(&t, "%s", rows[i].types);
        table_cell(&t, "%u", rows[i].count);
        table_cell(&t, "%s%s%s", rows[i].supported ? "yes" : "NO", rows[i].reason[0] ? ": " : "",
                   rows[i].reason);
    }
    table_print(&t, stdout);
    table_release(&t);
}

struct ops_output {
    struct arena arena;
    struct verify_op_row *rows;
    struct verify_op_result *results;
    size_t n_rows, n_results;
    struct d0_device_info info;
    const char *activations; /* of the model */
};

static int print_all(const struct ops_arguments *a, const struct ops_output *o, const struct findings *f)
{
    int status = findings_failed(f) ? EXIT_CHECK_FAILED : EXIT_PASSED;
    if (a->common.json) {
        struct strbuf text = STRBUF_INIT;
        struct json_writer w;
        json_writer_init(&w, &text, true);
        json_begin_object(&w);
        json_put_string(&w, "verdict", status ? "fail" : "pass");
        json_put_string(&w, "device", o->info.name);
        json_put_string(&w, "variant", o->info.variant);
        json_put_string(&w, "activations", o->activations);
        write_matrix(&w, o->rows, o->n_rows);
        write_results(&w, o->results, o->n_results);
        json_key(&w, "findings");
        findings_write_json(f, &w);
        json_end_object(&w);
        return cli_print(&text, status);
    }
    printf("device %s (%s): %s\n", o->info.name, o->info.variant, o->info.description);
    printf(o->activations ? "activations: %s\n\n" : "\n", o->activations);
    if (o->n_rows)
        print_matrix(o->rows, o->n_rows);
    if (o->n_rows && o->n_results)
        printf("\n");
    if (o->n_results)
        print_results(o->results, o->n_results, a->ops.bench);
    cli_print_findings(f);
    return status;
}

static int run_ops(struct ops_arguments *a, struct ops_output *o, struct findings *f, struct err *e)
{
    struct common *c = &a->common;
    struct dev dev;
    struct dev_options options_ = {
        .name = c->device ? c->device : "cpu", .isa = c->cpu, .n_threads = c->threads};
    int rc = dev_open(&dev, &options_, e);
    if (rc != ERR_OK)
        return rc;
    struct ckpt *ckpt = NULL;
    struct spec *spec = NULL;
    rc = dev_info(&dev, &o->info, e);
    if (rc == ERR_OK && c->model)
        rc = ckpt_open(&ckpt, c->model, f, c->d0, e);
    if (rc == ERR_OK && ckpt)
        rc = spec_open(&spec, ckpt,
                       &(struct spec_options){.arch_path = c->arch, .activations = c->activations}, f, c->d0,
                       e);
    if (rc == ERR_OK && spec) {
        o->activations = spec_activations_name(c->activations);
        a->ops.shapes_of = spec->graph;
        rc = verify_matrix(&dev, spec->graph, &o->arena, &o->rows, &o->n_rows, f, e);
    }
    if (rc == ERR_OK && !a->support && (spec || !c->model))
        rc = verify_ops(&dev, &a->ops, &o->arena, &o->results, &o->n_results, f, e);
    spec_close(spec);
    ckpt_close(ckpt);
    dev_close(&dev);
    return rc;
}

int cmd_ops(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        options,  parse, "[MODEL]", "Operators of a device: correctness, speed, support.",
        children, NULL,  NULL};
    struct ops_arguments a = {.common = {.d0 = d0}, .ops = {.seed = 1}, .tokens = 64};
    cli_parse(&argp, argc, argv, &a);
    if (a.from)
        return cli_ops_from(&a.common, a.from, a.ops.only, a.tokens);
    struct ops_output o = {0};
    arena_init(&o.arena, &d0->mem, MEM_REPORT);
    struct findings f;
    findings_init(&f, &d0->mem);
    struct err e = {0};
    int rc = run_ops(&a, &o, &f, &e);
    cli_waive(&a.common, &f);
    int status = rc == ERR_OK ? print_all(&a, &o, &f) : cli_error(&a.common, &e);
    findings_release(&f);
    arena_release(&o.arena);
    return status;
}
