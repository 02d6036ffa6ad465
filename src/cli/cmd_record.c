/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 record: a trace of a model of any size, computed piece by piece from disk.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "oracle/oracle.h"
#include "prompt/prompt.h"

struct record_arguments {
    struct common common;
    struct record_options record;
    const char *tokens, *text, *import, *map;
    uint32_t kv_dtype;
};

enum {
    KEY_TOKENS = 0x2000,
    KEY_TEXT,
    KEY_LAYERS,
    KEY_FROM,
    KEY_PROBES,
    KEY_KV,
    KEY_WATCH,
    KEY_FRESH,
    KEY_IMPORT,
    KEY_MAP
};

static const struct argp_option options[] = {
    {"out", 'o', "TRACE", 0, "the trace to write (required)", 1},
    {"tokens", KEY_TOKENS, "FILE", 0, "token ids: decimal numbers, or those of a trace", 1},
    {"text", KEY_TEXT, "TEXT", 0, "a prompt, instead of --tokens", 1},
    {"layers", KEY_LAYERS, "A-B", 0, "only these layers; from layer 1 on with --from", 1},
    {"from", KEY_FROM, "TRACE", 0, "a trace that holds what enters layer A", 1},
    {"probes", KEY_PROBES, "WHICH", 0,
     "all (default), layers, none, or names with commas between, NAME* for all that begin so", 1},
    {"kv", KEY_KV, "TYPE", 0, "type of the KV pages: f32, bf16 or f16 (default: by the weights)", 1},
    {"watch", KEY_WATCH, NULL, 0,
     "tell the largest magnitude of every operator beside what F16, BF16 and F8 hold", 1},
    {"fresh", KEY_FRESH, NULL, 0, "throw an interrupted run of this trace away", 1},
    {"import", KEY_IMPORT, "DIR", 0, "no MODEL: a trace from the .npy and .safetensors files of another tool",
     2},
    {"map", KEY_MAP, "FILE", 0, "JSON that maps its names to ours (docs/references.md)", 2},
    {0},
};

/* "3-7" or "3" */
static void parse_layers(const struct argp_state *state, const char *arg, struct record_options *o)
{
    const char *dash = strchr(arg, '-');
    char first[16] = "";
    if (dash && (size_t)(dash - arg) < sizeof first)
        memcpy(first, arg, (size_t)(dash - arg));
    o->first_layer = (int32_t)cli_int(state, "--layers", dash ? first : arg, 0, INT32_MAX);
    o->last_layer = (int32_t)cli_int(state, "--layers", dash ? dash + 1 : arg, 0, INT32_MAX);
    if (o->last_layer < o->first_layer)
        argp_error(state, "--layers: '%s' ends before it begins", arg);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct record_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        break;
    case 'o':
        a->record.out = arg;
        break;
    case KEY_TOKENS:
        a->tokens = arg;
        break;
    case KEY_TEXT:
        a->text = arg;
        break;
    case KEY_LAYERS:
        parse_layers(state, arg, &a->record);
        break;
    case KEY_FROM:
        a->record.from = arg;
        break;
    case KEY_PROBES:
        a->record.probes = arg;
        break;
    case KEY_KV:
        a->kv_dtype = cli_kv_dtype(state, arg);
        break;
    case KEY_WATCH:
        a->record.watch = true;
        break;
    case KEY_FRESH:
        a->record.fresh = true;
        break;
    case KEY_IMPORT:
        a->import = arg;
        break;
    case KEY_MAP:
        a->map = arg;
        break;
    case ARGP_KEY_END:
        if (!a->record.out)
            argp_error(state, "-o TRACE is needed");
        if (!a->import != !a->map)
            argp_error(state, "--import DIR and --map FILE belong together");
        if (a->import) {
            if (a->common.model || a->tokens || a->text || a->record.from)
                argp_error(state, "--import runs no MODEL");
            break;
        }
        if (!a->common.model)
            argp_error(state, "a MODEL directory is needed");
        if (!a->tokens == !a->text)
            argp_error(state, "one of --tokens FILE and --text TEXT is needed");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static double per_second(uint64_t bytes, double seconds)
{
    return seconds > 0 ? (double)bytes / seconds : 0;
}

static void write_cost(struct json_writer *w, const struct oracle_cost *c)
{
    json_put_u64(w, "weight_bytes", c->weight_bytes);
    json_put_u64(w, "largest_piece_bytes", c->largest);
    json_put_bool(w, "read_ahead", c->ahead);
    json_put_u64(w, "experts_read", c->experts);
    json_put_u64(w, "step_tokens", c->chunk);
    json_put_f64(w, "read_seconds", c->read_seconds);
    json_put_f64(w, "compute_seconds", c->compute_seconds);
    json_put_f64(w, "read_bytes_per_second", per_second(c->weight_bytes, c->read_seconds));
    json_put_f64(w, "seconds", c->seconds);
}

static void write_watch(struct json_writer *w, const struct record_result *r)
{
    json_key(w, "watch");
    json_begin_array(w);
    for (size_t i = 0; i < r->n_watch; i++) {
        const struct record_watch *x = &r->watch[i];
        json_begin_object(w);
        json_put_string(w, "name", x->name);
        json_put_string(w, "operator", x->op);
        json_put_i64(w, "layer", x->layer);
        json_put_f64(w, "max_abs", x->max_abs);
        json_put_u64(w, "token", x->token);
        json_put_u64(w, "not_finite", x->not_finite);
        json_put_f64(w, "f16_headroom_bits", x->f16_bits);
        json_put_f64(w, "bf16_headroom_bits", x->bf16_bits);
        if (x->stored)
            json_put_f64(w, "f8_e4m3_headroom_bits", x->f8_e4m3_bits);
        json_end_object(w);
    }
    json_end_array(w);
    json_put_string(w, "first_beyond_f16", r->first_beyond_f16 ? r->first_beyond_f16->name : NULL);
}

static int print_json(const struct record_arguments *a, const struct record_result *r,
                      const struct findings *f, int status)
{
    struct strbuf out = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &out, true);
    json_begin_object(&w);
    json_put_string(&w, "trace", a->record.out);
    json_put_u64(&w, "positions", r->positions);
    json_put_i64(&w, "first_layer", r->first_layer);
    json_put_i64(&w, "last_layer", r->last_layer);
    json_put_u64(&w, "probes", r->probes);
    json_put_u64(&w, "handed_on", r->handed_on);
    json_put_bool(&w, "logits", r->logits);
    json_put_u64(&w, "file_bytes", r->file_bytes);
    json_put_u64(&w, "pieces", r->pieces);
    json_put_u64(&w, "pieces_resumed", r->resumed);
    write_cost(&w, &r->cost);
    write_watch(&w, r);
    json_key(&w, "findings");
    findings_write_json(f, &w);
    json_end_object(&w);
    return cli_print(&out, status);
}

static void print_text(const struct record_arguments *a, const struct record_result *r)
{
    char file[32], weights[32], rate[32], largest[32];
    printf("%s: %s, %zu tokens, layers %d to %d, %zu probes%s", a->record.out,
           format_bytes(r->file_bytes, file, sizeof file), r->positions, r->first_layer, r->last_layer,
           r->probes, r->logits ? ", logits" : "");
    if (r->handed_on)
        printf(", %zu values for a run that goes on", r->handed_on);
    printf("\n%zu pieces", r->pieces);
    if (r->resumed)
        printf(" (%zu by an earlier run)", r->resumed);
    printf(", the largest %s; %s of weights read at %s/s%s; %.2f s, %.2f s of them computing\n",
           format_bytes(r->cost.largest, largest, sizeof largest),
           format_bytes(r->cost.weight_bytes, weights, sizeof weights),
           format_bytes((uint64_t)per_second(r->cost.weight_bytes, r->cost.read_seconds), rate, sizeof rate),
           r->cost.ahead ? ", ahead of computing" : "", r->cost.seconds, r->cost.compute_seconds);
}

static int by_magnitude(const void *a, const void *b)
{
    const struct record_watch *x = *(const struct record_watch *const *)a,
                              *y = *(const struct record_watch *const *)b;
    return x->max_abs != y->max_abs ? (x->max_abs < y->max_abs ? 1 : -1) : (x > y) - (x < y);
}

/* The largest ones, and all of keys and values that pages of eight bits would not hold. */
static void print_watch(const struct record_result *r)
{
    const struct record_watch **order = calloc(r->n_watch + 1, sizeof *order);
    struct table t;
    if (!order || !r->n_watch) {
        free(order);
        return;
    }
    for (size_t i = 0; i < r->n_watch; i++)
        order[i] = &r->watch[i];
    qsort(order, r->n_watch, sizeof *order, by_magnitude);
    table_init(&t, 7);
    static const char *const heads[] = {"largest",   "operator",   ">|value|",          ">token",
                                        ">F16 bits", ">BF16 bits", ">F8_E4M3 bits (KV)"};
    for (size_t i = 0; i < ARRAY_LEN(heads); i++)
        table_cell(&t, "%s", heads[i]);
    for (size_t i = 0; i < r->n_watch && i < 12; i++) {
        const struct record_watch *x = order[i];
        table_cell(&t, "%s", x->name);
        table_cell(&t, "%s", x->op);
        table_cell(&t, "%.6g%s", x->max_abs, x->not_finite ? " and NaN or infinity" : "");
        table_cell(&t, "%llu", (unsigned long long)x->token);
        table_cell(&t, "%.1f", x->f16_bits);
        table_cell(&t, "%.1f", x->bf16_bits);
        if (x->stored)
            table_cell(&t, "%.1f", x->f8_e4m3_bits);
        else
            table_cell(&t, "%s", "");
    }
    printf("\n%zu values watched; headroom in bits, negative where the type does not hold it\n", r->n_watch);
    table_print(&t, stdout);
    table_release(&t);
    free(order);
}

static int read_prompt(struct record_arguments *a, struct oracle_model *m, struct arena *arena,
                       struct findings *f, struct err *e)
{
    struct prompt_front *front = NULL;
    struct ids ids = {0};
    int32_t *copy = NULL;
    if (a->tokens) {
        int rc = oracle_read_ids(a->tokens, arena, &copy, &a->record.n_ids, e);
        a->record.ids = copy;
        return rc;
    }
    int rc = prompt_open(&front, m->ckpt, m->spec, f, m->d0, e);
    if (rc == ERR_OK && !front)
        rc = err_set(e, ERR_MISMATCH, "the tokenizer cannot be used: see the findings, or give --tokens");
    if (rc == ERR_OK)
        rc = prompt_text(front, a->text, strlen(a->text), &ids, e);
    if (rc == ERR_OK && !(copy = arena_alloc_n(arena, ids.n + 1, sizeof *copy)))
        rc = err_set(e, ERR_NOMEM, "no memory for the prompt");
    if (rc == ERR_OK && ids.n)
        memcpy(copy, ids.data, ids.n * sizeof *copy);
    a->record.ids = copy;
    a->record.n_ids = ids.n;
    ids_release(&ids);
    prompt_close(front);
    return rc;
}

static int record(struct record_arguments *a, struct arena *arena, struct record_result *out,
                  struct findings *f, struct err *e)
{
    const struct common *c = &a->common;
    struct oracle_run run;
    int rc = cli_open_oracle(&run, c, a->kv_dtype, f, e);
    if (rc == ERR_OK)
        rc = read_prompt(a, &run.model, arena, f, e);
    if (rc == ERR_OK)
        rc = oracle_record(&run.model, &a->record, arena, out, f, e);
    cli_close_oracle(&run);
    return rc;
}

static int import_trace(const struct record_arguments *a, struct arena *arena)
{
    struct import_result r;
    struct err e = {0};
    char bytes[32];
    if (oracle_import(a->import, a->map, a->record.out, arena, &r, &e))
        return cli_error(&a->common, &e);
    if (!a->common.json) {
        printf("%s: %s, %zu tokens, %zu tensors from %s; %zu more there are not mapped\n", a->record.out,
               format_bytes(r.file_bytes, bytes, sizeof bytes), r.positions, r.tensors, a->import, r.unused);
        return EXIT_PASSED;
    }
    struct strbuf out = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &out, true);
    json_begin_object(&w);
    json_put_string(&w, "trace", a->record.out);
    json_put_u64(&w, "positions", r.positions);
    json_put_u64(&w, "tensors", r.tensors);
    json_put_u64(&w, "not_mapped", r.unused);
    json_put_u64(&w, "file_bytes", r.file_bytes);
    json_end_object(&w);
    return cli_print(&out, EXIT_PASSED);
}

int cmd_record(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        options,
        parse,
        "MODEL -o TRACE\n--import DIR --map FILE -o TRACE",
        "Run a model of any size exactly, piece by piece from disk, and write what it "
        "computed (docs/references.md).",
        children,
        NULL,
        NULL};
    struct record_arguments a = {.common = {.d0 = d0}, .record = {.first_layer = -1, .last_layer = -1}};
    cli_parse(&argp, argc, argv, &a);
    if (isatty(STDERR_FILENO))
        d0->log.level = LOG_INFO;
    struct findings f;
    struct arena arena;
    struct record_result r;
    struct err e = {0};
    findings_init(&f, &d0->mem);
    arena_init(&arena, &d0->mem, MEM_REPORT);
    if (a.import) {
        int imported = import_trace(&a, &arena);
        findings_release(&f);
        arena_release(&arena);
        return imported;
    }
    int rc = record(&a, &arena, &r, &f, &e);
    cli_waive(&a.common, &f);
    int status = findings_failed(&f) ? EXIT_CHECK_FAILED : EXIT_PASSED;
    if (rc == ERR_OK && a.common.json)
        status = print_json(&a, &r, &f, status);
    else if (rc == ERR_OK) {
        print_text(&a, &r);
        print_watch(&r);
    }
    if (!a.common.json)
        cli_print_findings(&f);
    if (rc)
        status = cli_error(&a.common, &e);
    findings_release(&f);
    arena_release(&arena);
    return status;
}
