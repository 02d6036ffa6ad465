/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 compare --drift MODEL: errors by position, as a table or as JSON.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd_compare_drift.h"
#include "oracle/oracle.h"

/* Multiplications that a run may take where no length is asked for: a minute or so on a common machine. */
#define DEVICE_WORK    2e12
#define REFERENCE_WORK 5e10

static void write_bucket(struct json_writer *w, const struct drift_bucket *b)
{
    json_begin_object(w);
    json_put_u64(w, "first", b->first);
    json_put_u64(w, "last", b->last);
    json_put_u64(w, "rows", b->rows);
    json_put_u64(w, "reference_rows", b->reference_rows);
    json_put_f64(w, "hidden", b->hidden);
    json_put_f64(w, "hidden_worst", b->hidden_worst);
    json_put_f64(w, "logits", b->logits);
    json_put_f64(w, "logits_worst", b->logits_worst);
    json_put_f64(w, "decode_worst", b->decode_worst);
    json_put_u64(w, "recorded_rows", b->recorded_rows);
    json_put_f64(w, "recorded", b->recorded);
    json_put_f64(w, "recorded_worst", b->recorded_worst);
    json_end_object(w);
}

static int print_json(const struct drift_result *r, const struct findings *f, const char *verdict, int status)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &text, true);
    json_begin_object(&w);
    json_put_string(&w, "verdict", verdict);
    json_put_u64(&w, "tokens", r->tokens);
    json_put_u64(&w, "reference_tokens", r->reference_tokens);
    json_put_u64(&w, "original_length", r->original);
    json_put_string(&w, "original_length_from", r->original_key);
    json_put_u64(&w, "max_positions", r->max_positions);
    json_put_bool(&w, "beyond", r->beyond);
    json_put_bool(&w, "exact", r->exact);
    json_put_bool(&w, "decode_identical", r->identical);
    json_put_u64(&w, "decode_positions", r->decoded);
    json_put_u64(&w, "decode_different", r->different);
    json_put_f64(&w, "limit", r->limit);
    json_put_f64(&w, "hidden_growth", r->hidden_growth);
    json_put_f64(&w, "logits_growth", r->logits_growth);
    json_put_string(&w, "recorded_producer", r->recorded_producer);
    json_key(&w, "buckets");
    json_begin_array(&w);
    for (size_t i = 0; i < r->n_buckets; i++)
        write_bucket(&w, &r->bucket[i]);
    json_end_array(&w);
    json_key(&w, "findings");
    findings_write_json(f, &w);
    json_end_object(&w);
    return cli_print(&text, status);
}

static void cell(struct table *t, double x)
{
    if (isnan(x))
        table_cell(t, "%s", "-");
    else
        table_cell(t, "%.2e", x);
}

static void print_table(const struct drift_result *r)
{
    static const char *const heads[] = {"positions", ">rows",   ">hidden",  ">logits",
                                        ">worst",    ">decode", ">recorded"};
    struct table t;
    table_init(&t, r->recorded_producer ? 7 : 6);
    for (size_t i = 0; i < t.n_columns; i++)
        table_cell(&t, "%s", heads[i]);
    for (size_t i = 0; i < r->n_buckets; i++) {
        const struct drift_bucket *b = &r->bucket[i];
        table_cell(&t, "%llu-%llu%s", (unsigned long long)b->first, (unsigned long long)b->last,
                   b->first >= r->original ? " (beyond)" : "");
        table_cell(&t, "%u", b->rows);
        cell(&t, b->hidden);
        cell(&t, b->logits);
        cell(&t, fmax(b->hidden_worst, b->logits_worst));
        if (b->decode_worst == 0)
            table_cell(&t, "%s", "identical");
        else
            cell(&t, b->decode_worst);
        if (r->recorded_producer)
            cell(&t, b->recorded);
    }
    table_print(&t, stdout);
    table_release(&t);
}

static void print_text(const struct drift_result *r, const char *model, const char *verdict)
{
    printf(
        "model      %s\noriginal   %llu positions (%s), %llu at most\ntokens     %llu on the device, %llu on "
        "the reference kernels\n\n",
        model, (unsigned long long)r->original, r->original_key, (unsigned long long)r->max_positions,
        (unsigned long long)r->tokens, (unsigned long long)r->reference_tokens);
    print_table(r);
    printf("\nrelative L2 of rows, medians (limit %.3g): the device against the reference kernels; decode: "
           "one by "
           "one against large steps\n",
           r->limit);
    if (r->recorded_producer)
        printf("recorded: logits against those of %s\n", r->recorded_producer);
    printf("with each doubling of the position the error becomes %.2f times as large (hidden), %.2f times "
           "(logits)\n",
           r->hidden_growth, r->logits_growth);
    if (r->identical)
        printf("decode and prefill: identical at all %llu positions compared\n",
               (unsigned long long)r->decoded);
    else
        printf("decode and prefill: %llu of %llu positions differ, the first is %llu%s\n",
               (unsigned long long)r->different, (unsigned long long)r->decoded,
               (unsigned long long)r->first_different,
               r->exact ? "" : " (the device does not claim to be exact)");
    if (!r->beyond)
        printf(
            "the original length was not reached: --tokens %llu does, and takes longer\n",
            (unsigned long long)(r->original + 64 < r->max_positions ? r->original + 64 : r->max_positions));
    else if (r->reference_tokens < r->tokens)
        printf("the reference kernels ran the first %llu only: --tokens N lets both run N\n",
               (unsigned long long)r->reference_tokens);
    printf("verdict: %s\n", verdict);
}

/* N, or a file of ids, whose logits count where it is a trace. */
static int read_tokens(const char *tokens, struct drift_options *o, struct arena *arena, struct err *e)
{
    char *end;
    if (!tokens)
        return ERR_OK;
    const unsigned long long n = strtoull(tokens, &end, 10);
    if (*tokens >= '0' && *tokens <= '9' && !*end) {
        o->tokens = n < INT32_MAX ? (size_t)n : INT32_MAX;
        return n ? ERR_OK : err_set(e, ERR_USAGE, "--tokens 0: at least one");
    }
    int32_t *ids;
    int rc = oracle_read_ids(tokens, arena, &ids, &o->n_ids, e);
    o->ids = ids;
    if (rc == ERR_OK && str_ends(tokens, ".safetensors"))
        o->recorded = tokens;
    return rc;
}

static int run(struct common *c, const char *tokens, uint32_t kv_dtype, struct arena *arena,
               struct drift_result *r, struct findings *f, struct err *e)
{
    struct drift_options o = {.work = DEVICE_WORK, .reference_work = REFERENCE_WORK};
    struct oracle_run opened = {.ckpt = NULL};
    struct findings own;
    struct dev ref;
    findings_init(&own, &c->d0->mem);
    int rc = read_tokens(tokens, &o, arena, e);
    if (rc == ERR_OK)
        rc = cli_open_oracle(&opened, c, kv_dtype, &own, e);
    if (rc == ERR_OK)
        rc = dev_open(&ref, &(struct dev_options){.name = "cpu", .isa = "ref", .n_threads = c->threads}, e);
    if (rc == ERR_OK) {
        o.reference = &ref;
        rc = oracle_drift(&opened.model, &o, arena, r, f, e);
        dev_close(&ref);
    }
    cli_close_oracle(&opened);
    findings_release(&own);
    return rc;
}

int cli_compare_drift(struct common *c, const char *tokens, uint32_t kv_dtype)
{
    struct findings f;
    struct arena arena;
    struct drift_result r = {.n_buckets = 0};
    struct err e = {0};
    findings_init(&f, &c->d0->mem);
    arena_init(&arena, &c->d0->mem, MEM_REPORT);
    int rc = run(c, tokens, kv_dtype, &arena, &r, &f, &e), status;
    cli_waive(c, &f);
    if (rc == ERR_OK) {
        const bool incomplete = !r.beyond || r.reference_tokens < r.tokens;
        status = findings_failed(&f) ? EXIT_CHECK_FAILED : incomplete ? EXIT_INCOMPLETE : EXIT_PASSED;
        const char *verdict = findings_failed(&f) ? "fail" : incomplete ? "incomplete" : "pass";
        if (c->json)
            status = print_json(&r, &f, verdict, status);
        else
            print_text(&r, c->model, verdict);
        if (!c->json)
            cli_print_findings(&f);
    } else {
        status = cli_error(c, &e);
    }
    findings_release(&f);
    arena_release(&arena);
    return status;
}
