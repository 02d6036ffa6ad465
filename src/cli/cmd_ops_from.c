/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 ops MODEL --from TRACE: the operators of a model on recorded values, as a table or as JSON.
 */
#include <string.h>

#include "cli/cmd_ops_from.h"
#include "verify/verify.h"

static const char *const state_names[] = {"right", "wrong", "not judged"};

/* ---- JSON ---- */

static void write_node(struct json_writer *w, const struct verify_from_node *x)
{
    json_begin_object(w);
    json_put_string(w, "name", x->name);
    json_put_string(w, "op", x->op);
    json_put_i64(w, "layer", x->layer);
    json_put_string(w, "state", state_names[x->state]);
    json_put_u64(w, "rows", x->rows);
    json_put_f64(w, "max_ulp", x->max_ulp);
    json_put_f64(w, "limit_ulp", x->limit_ulp);
    json_put_f64(w, "largest_input", x->largest_input);
    json_put_u64(w, "inputs_recorded", x->recorded);
    json_put_u64(w, "inputs_computed", x->computed);
    json_put_u64(w, "rows_decided_by_rounding", x->settled);
    json_put_string(w, "why", x->why[0] ? x->why : NULL);
    json_end_object(w);
}

static int print_json(const struct verify_from_result *r, const struct findings *f, const char *trace,
                      const char *verdict, const struct d0_device_info *info, int status)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &text, true);
    json_begin_object(&w);
    json_put_string(&w, "verdict", verdict);
    json_put_string(&w, "device", info->name);
    json_put_string(&w, "variant", info->variant);
    json_put_string(&w, "trace", trace);
    json_put_string(&w, "trace_producer", r->producer);
    json_put_u64(&w, "positions", r->tokens);
    json_put_u64(&w, "positions_recorded", r->tokens_recorded);
    json_put_u64(&w, "values_recorded", r->recorded);
    json_put_u64(&w, "inputs_computed", r->computed);
    json_put_u64(&w, "right", r->judged - r->wrong);
    json_put_u64(&w, "wrong", r->wrong);
    json_put_u64(&w, "not_judged", r->not_judged);
    json_key(&w, "nodes");
    json_begin_array(&w);
    for (size_t i = 0; i < r->n_nodes; i++)
        write_node(&w, &r->nodes[i]);
    json_end_array(&w);
    json_key(&w, "findings");
    findings_write_json(f, &w);
    json_end_object(&w);
    return cli_print(&text, status);
}

/* ---- people ---- */

static void print_row(struct table *t, const struct verify_from_op *op)
{
    const struct verify_from_node *x = op->worst;
    table_cell(t, "%s", x->op);
    table_cell(t, "%u", op->nodes);
    if (op->wrong)
        table_cell(t, "WRONG in %u", op->wrong);
    else if (op->not_judged)
        table_cell(t, "%u not judged", op->not_judged);
    else
        table_cell(t, "%s", "ok");
    table_cell(t, "%.2f", x->max_ulp);
    table_cell(t, "%.0f", x->limit_ulp);
    table_cell(t, "%.3g", x->largest_input);
    table_cell(t, "%d", x->layer);
    table_cell(t, "%llu", (unsigned long long)x->rows);
}

static void print_text(const struct verify_from_result *r, const char *trace, const char *verdict,
                       const struct d0_device_info *info)
{
    static const char *const heads[] = {"operator", ">places",        "result", ">max ulp",
                                        ">limit",   ">largest input", ">layer", ">rows"};
    struct table t;
    printf("device %s (%s) against the reference kernels\nfed with %s (%s)\n\n", info->name, info->variant,
           trace, r->producer);
    table_init(&t, ARRAY_LEN(heads));
    for (size_t i = 0; i < ARRAY_LEN(heads); i++)
        table_cell(&t, "%s", heads[i]);
    for (size_t i = 0; i < r->n_ops; i++)
        print_row(&t, &r->ops[i]);
    table_print(&t, stdout);
    table_release(&t);
    printf("\nthe figures of a row are those of its worst layer\n");
    for (size_t i = 0; i < r->n_ops; i++) {
        if (r->ops[i].settled)
            printf("%s: %llu rows where a rounding decides what is chosen, taken as the reference chose\n",
                   r->ops[i].worst->op, (unsigned long long)r->ops[i].settled);
        for (size_t k = 0, told = 0; r->ops[i].not_judged && k < r->n_nodes && !told; k++) {
            const struct verify_from_node *x = &r->nodes[k];
            told = x->state == FROM_NOT_JUDGED && strcmp(x->op, r->ops[i].worst->op) == 0;
            if (told)
                printf("not judged: %s of layer %d%s: %s\n", x->name, x->layer,
                       r->ops[i].not_judged > 1 ? " and others" : "", x->why);
        }
    }
    printf("%zu of %zu recorded positions; %zu operators right, %zu wrong, %zu not judged\n", r->tokens,
           r->tokens_recorded, r->judged - r->wrong, r->wrong, r->not_judged);
    printf(
        "%zu values came from the trace, %zu inputs that it lacks were computed by the reference kernels\n",
        r->recorded, r->computed);
    printf("verdict: %s\n", verdict);
}

int cli_ops_from(struct common *c, const char *trace, const char *only, size_t tokens)
{
    struct findings opened, f;
    struct arena arena;
    struct oracle_run run;
    struct verify_from_result r = {0};
    struct d0_device_info info = {.size = sizeof info};
    struct err e = {0};
    findings_init(&opened, &c->d0->mem);
    findings_init(&f, &c->d0->mem);
    arena_init(&arena, &c->d0->mem, MEM_REPORT);
    int status = EXIT_PASSED, rc = cli_open_oracle(&run, c, 0, &opened, &e);
    if (rc == ERR_OK)
        rc = dev_info(&run.dev, &info, &e);
    if (rc == ERR_OK) {
        const struct verify_from_options o = {.trace = trace,
                                              .only = only,
                                              .spec = run.spec,
                                              .ckpt = run.ckpt,
                                              .memory = c->memory,
                                              .tokens = tokens};
        rc = verify_ops_from(&run.dev, &o, &arena, &r, &f, &e);
    }
    cli_waive(c, &f);
    if (rc == ERR_OK) {
        const bool incomplete = r.not_judged || r.judged == 0;
        status = findings_failed(&f) ? EXIT_CHECK_FAILED : incomplete ? EXIT_INCOMPLETE : EXIT_PASSED;
        const char *verdict = findings_failed(&f) ? "fail" : incomplete ? "incomplete" : "pass";
        if (c->json)
            status = print_json(&r, &f, trace, verdict, &info, status);
        else
            print_text(&r, trace, verdict, &info);
        if (!c->json)
            cli_print_findings(&f);
    } else {
        status = cli_error(c, &e);
    }
    cli_close_oracle(&run);
    findings_release(&f);
    findings_release(&opened);
    arena_release(&arena);
    return status;
}
