/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 compare: two traces, or a trace and a model, probe by probe; the first that went wrong is named.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/cli.h"
#include "cli/cmd_compare_drift.h"
#include "oracle/oracle.h"

#define SHOWN 20 /* rows of the table for people */

struct compare_arguments {
    struct common common;
    const char *reference, *other;
    const char *tokens;
    uint32_t kv_dtype;
    bool all, drift;
};

enum { KEY_KV = 0x2000, KEY_ALL, KEY_DRIFT, KEY_TOKENS };

static const struct argp_option options[] = {
    {"kv", KEY_KV, "TYPE", 0, "type of the KV pages of MODEL: f32, bf16 or f16 (default: by the weights)", 1},
    {"all", KEY_ALL, NULL, 0, "list every probe, not only those that are wrong", 1},
    {"drift", KEY_DRIFT, NULL, 0,
     "MODEL alone: does the error grow with the position? Device against reference kernels, decode against "
     "prefill, past the length that the model was trained for",
     2},
    {"tokens", KEY_TOKENS, "N|FILE", 0,
     "with --drift: so many tokens, or the ids of FILE (text or a trace, whose logits count too)", 2},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct compare_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        break;
    case KEY_KV:
        a->kv_dtype = cli_kv_dtype(state, arg);
        break;
    case KEY_ALL:
        a->all = true;
        break;
    case KEY_DRIFT:
        a->drift = true;
        break;
    case KEY_TOKENS:
        a->tokens = arg;
        break;
    case ARGP_KEY_ARG:
        if (state->arg_num > 1)
            argp_error(state, "two arguments only: a trace, and another one or a MODEL");
        if (state->arg_num == 0)
            a->reference = arg;
        else
            a->other = arg;
        break;
    case ARGP_KEY_END:
        if (a->drift && (!a->reference || a->other))
            argp_error(state, "--drift needs a MODEL directory, and nothing else");
        if (a->tokens && !a->drift)
            argp_error(state, "--tokens goes with --drift");
        if (!a->drift && !a->other)
            argp_error(state, "a REFERENCE trace is needed, and another trace or a MODEL directory");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- JSON ---- */

static void write_probe(struct json_writer *w, const struct compare_probe *p)
{
    json_begin_object(w);
    json_put_string(w, "name", p->name);
    json_put_i64(w, "layer", p->layer);
    json_put_string(w, "state", compare_state_name(p->state));
    json_put_u64(w, "rows", p->rows);
    json_put_u64(w, "width", p->width);
    json_put_u64(w, "rows_excluded", p->rows_excluded);
    json_put_f64(w, "cosine", p->cosine);
    json_put_f64(w, "relative_l2", p->relative_l2);
    json_put_f64(w, "worst_row_relative_l2", p->worst_row);
    json_put_u64(w, "worst_row", p->worst_row_at);
    json_put_f64(w, "nmse", p->nmse);
    json_put_f64(w, "max_abs", p->max_abs);
    json_put_f64(w, "mean_ulp", p->mean_ulp);
    json_put_f64(w, "share_beyond_32_ulp", p->ulp_share);
    json_put_u64(w, "different_bits", p->different_bits);
    json_put_u64(w, "not_finite", p->not_finite);
    json_put_u64(w, "reference_not_finite", p->reference_not_finite);
    json_put_f64(w, "limit", p->limit);
    json_put_string(w, "operators", p->operators);
    json_put_string(w, "fed_with", p->inputs);
    json_put_string(w, "weights", p->weights);
    json_put_string(w, "why", p->why);
    json_end_object(w);
}

static void write_names(struct json_writer *w, const char *key, const char *const *names, size_t n)
{
    json_key(w, key);
    json_begin_array(w);
    for (size_t i = 0; i < n; i++)
        json_write_string(w, names[i]);
    json_end_array(w);
}

static int print_json(const struct compare_arguments *a, const struct compare_result *r,
                      const struct findings *f, const char *verdict, int status)
{
    struct strbuf out = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &out, true);
    json_begin_object(&w);
    json_put_string(&w, "verdict", verdict);
    json_put_string(&w, "reference", a->reference);
    json_put_string(&w, "reference_producer", r->reference_producer);
    json_put_string(&w, "other", a->other);
    json_put_string(&w, "other_producer", r->other_producer);
    json_put_bool(&w, "self_consistent", r->self_consistent);
    json_put_bool(&w, "identical", r->identical);
    json_put_u64(&w, "right", r->right);
    json_put_u64(&w, "wrong", r->wrong);
    json_put_u64(&w, "not_judged", r->not_judged);
    json_put_string(&w, "first_wrong", r->first_wrong ? r->first_wrong->name : NULL);
    json_put_string(&w, "last_right", r->first_wrong && r->last_right ? r->last_right->name : NULL);
    json_put_u64(&w, "choices", r->choices);
    json_put_u64(&w, "choices_unknown", r->choices_unknown);
    json_put_u64(&w, "near_ties", r->near_ties);
    json_key(&w, "logits");
    if (r->logits) {
        json_begin_object(&w);
        json_put_f64(&w, "mean_kl", r->mean_kl);
        json_put_f64(&w, "max_kl", r->max_kl);
        json_put_f64(&w, "top1_share", r->top1_share);
        json_put_f64(&w, "top5_share", r->top_k_share);
        json_end_object(&w);
    } else {
        json_write_null(&w);
    }
    json_key(&w, "probes");
    json_begin_array(&w);
    for (size_t i = 0; i < r->n_probes; i++)
        write_probe(&w, &r->probes[i]);
    json_end_array(&w);
    write_names(&w, "only_reference", r->only_reference, r->n_only_reference);
    write_names(&w, "only_other", r->only_other, r->n_only_other);
    json_key(&w, "findings");
    findings_write_json(f, &w);
    json_end_object(&w);
    return cli_print(&out, status);
}

/* ---- people ---- */

static void print_row(struct table *t, const struct compare_probe *p, bool operators)
{
    table_cell(t, "%s", p->name);
    if (operators)
        table_cell(t, "%s", p->operators);
    table_cell(t, "%s%s%s", p->state == COMPARE_WRONG ? "WRONG" : compare_state_name(p->state),
               p->why ? ": " : "", p->why ? p->why : "");
    if (p->state == COMPARE_NOT_JUDGED) {
        for (int i = 0; i < 6; i++)
            table_cell(t, "%s", "");
        return;
    }
    table_cell(t, "%.8f", p->cosine);
    table_cell(t, "%.2e", p->worst_row);
    table_cell(t, "%.2e", p->nmse);
    table_cell(t, "%.2e", p->max_abs);
    table_cell(t, "%.1f %%", 100 * p->ulp_share);
    table_cell(t, "%.2e", p->limit);
}

static void print_table(const struct compare_arguments *a, const struct compare_result *r)
{
    struct table t;
    const bool operators = r->n_probes && r->probes[0].operators;
    size_t shown = 0, left = 0;
    table_init(&t, operators ? 9 : 8);
    table_cell(&t, "probe");
    if (operators)
        table_cell(&t, "operators");
    static const char *const heads[] = {
        "", ">cosine", ">rel. L2 (worst row)", ">NMSE", ">max |diff|", ">beyond 32 ULP", ">limit"};
    for (size_t i = 0; i < ARRAY_LEN(heads); i++)
        table_cell(&t, "%s", heads[i]);
    for (size_t i = 0; i < r->n_probes; i++) {
        if (!a->all && r->probes[i].state == COMPARE_RIGHT && i + 1 < r->n_probes)
            continue;
        if (!a->all && shown == SHOWN) {
            left++;
            continue;
        }
        print_row(&t, &r->probes[i], operators);
        shown++;
    }
    table_print(&t, stdout);
    table_release(&t);
    if (left)
        printf("... and %zu more (--all lists them)\n", left);
}

static void print_text(const struct compare_arguments *a, const struct compare_result *r, const char *verdict)
{
    printf("reference  %s (%s)\nagainst    %s (%s)%s\n\n", a->reference, r->reference_producer, a->other,
           r->other_producer, r->self_consistent ? "\nself-consistent: both sides are day0's own" : "");
    if (r->n_probes)
        print_table(a, r);
    printf("\n%zu probes right, %zu wrong, %zu not judged", r->right, r->wrong, r->not_judged);
    if (r->n_only_reference || r->n_only_other)
        printf("; %zu only in the reference, %zu only in the other", r->n_only_reference, r->n_only_other);
    printf("%s\n", r->identical ? "; every bit is equal" : "");
    if (r->near_ties)
        printf(
            "%zu rows of the reference hang on a choice that was nearly a tie: they are not judged where it "
            "matters\n",
            r->near_ties);
    if (r->logits)
        printf("logits: KL mean %.3g, largest %.3g; best token agrees at %.1f %% of positions, %.1f %% of "
               "the best 5\n",
               r->mean_kl, r->max_kl, 100 * r->top1_share, 100 * r->top_k_share);
    if (r->first_wrong)
        printf("first wrong: %s%s%s\n", r->first_wrong->name, r->last_right ? "; right before it: " : "",
               r->last_right ? r->last_right->name : "");
    printf("verdict: %s\n", verdict);
}

static int compare(struct compare_arguments *a, struct arena *arena, struct compare_result *out,
                   struct findings *f, struct err *e)
{
    struct file_info info;
    struct oracle_run run;
    int rc = file_stat(a->other, &info, e);
    if (rc)
        return rc;
    if (!info.is_dir)
        return oracle_compare(a->reference, a->other, arena, out, f, e);
    a->common.model = a->other;
    rc = cli_open_oracle(&run, &a->common, a->kv_dtype, f, e);
    struct findings own; /* what the model itself was told is not for this command to repeat */
    findings_init(&own, NULL);
    if (rc == ERR_OK)
        rc = oracle_compare_model(&run.model, a->reference, arena, out, &own, e);
    if (rc == ERR_OK) {
        findings_release(f);
        *f = own;
    } else {
        findings_release(&own);
    }
    cli_close_oracle(&run);
    return rc;
}

int cmd_compare(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        options,
        parse,
        "REFERENCE TRACE|MODEL\n--drift MODEL",
        "Hold a trace against another, or every operator of a model against a trace, and "
        "name the first that went wrong.",
        children,
        NULL,
        NULL};
    struct compare_arguments a = {.common = {.d0 = d0}};
    cli_parse(&argp, argc, argv, &a);
    if (isatty(STDERR_FILENO))
        d0->log.level = LOG_INFO;
    if (a.drift) {
        a.common.model = a.reference;
        return cli_compare_drift(&a.common, a.tokens, a.kv_dtype);
    }
    struct findings f;
    struct arena arena;
    struct compare_result r = {0};
    struct err e = {0};
    findings_init(&f, &d0->mem);
    arena_init(&arena, &d0->mem, MEM_REPORT);
    int rc = compare(&a, &arena, &r, &f, &e), status = EXIT_PASSED;
    cli_waive(&a.common, &f);
    if (rc == ERR_OK) {
        bool incomplete = r.not_judged || r.n_probes == 0;
        status = findings_failed(&f) ? EXIT_CHECK_FAILED : incomplete ? EXIT_INCOMPLETE : EXIT_PASSED;
        const char *verdict = findings_failed(&f) ? "fail" : incomplete ? "incomplete" : "pass";
        if (a.common.json)
            status = print_json(&a, &r, &f, verdict, status);
        else
            print_text(&a, &r, verdict);
    }
    if (!a.common.json)
        cli_print_findings(&f);
    if (rc)
        status = cli_error(&a.common, &e);
    findings_release(&f);
    arena_release(&arena);
    return status;
}
