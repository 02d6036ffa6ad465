/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 adapt: the main job, with its stages and checklist for people.
 */
#include <unistd.h>

#include "adapt/adapt.h"
#include "base/process.h"
#include "cli/cli.h"

struct adapt_arguments {
    struct common common;
    struct adapt_options adapt;
    struct adapt_override accept[MAX_OVERRIDES], waive[MAX_OVERRIDES];
};

enum {
    KEY_OUT = 0x2000,
    KEY_REFERENCE,
    KEY_PICTURE_REFERENCE,
    KEY_QUESTIONS,
    KEY_COMM,
    KEY_CONTEXT,
    KEY_SERVICE,
    KEY_REQUESTS,
    KEY_ANSWER,
    KEY_FRESH,
    KEY_RULES,
    KEY_ROOT,
    KEY_FUSE
};

static const struct argp_option options[] = {
    {"out", KEY_OUT, "DIR", 0, "where the report goes (default ./day0-report)", 1},
    {"reference", KEY_REFERENCE, "FILE", 0,
     "recorded logits and probes to judge the numbers by (safetensors)", 1},
    {"picture-reference", KEY_PICTURE_REFERENCE, "FILE", 0,
     "a recorded conversation with pictures to judge the image channel by (safetensors)", 1},
    {"questions", KEY_QUESTIONS, "FILE", 0,
     "questions on pictures whose answers or prompt tokens are known (JSON)", 1},
    {"service", KEY_SERVICE, "URL", 0, "examine this server instead of starting one", 1},
    {"context", KEY_CONTEXT, "N", 0, "tokens of one request (default: the model's limit, at most 4096)", 1},
    {"requests", KEY_REQUESTS, "N", 0, "load-test requests at each concurrency (default 16)", 1},
    {"answer-timeout", KEY_ANSWER, "SECONDS", 0, "what the service has for one answer (default 300)", 1},
    {"comm", KEY_COMM, "NAME", 0, "communicator: self (default) or the path of a plugin", 1},
    {"rules", KEY_RULES, "FILE", 0, "version rules to judge by (default: the built-in ones)", 1},
    {"root", KEY_ROOT, "FILE", 0,
     "with --service: judge the rules for its machine, captured in FILE (day0 env --capture)", 1},
    {"fuse", KEY_FUSE, "NAMES", 0,
     "fusions to apply where they are accepted: names with commas, all or none (default: all that change no "
     "bit)",
     1},
    {"fresh", KEY_FRESH, NULL, 0, "run every stage again", 1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct adapt_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        break;
    case KEY_OUT:
        a->adapt.out_dir = arg;
        break;
    case KEY_REFERENCE:
        a->adapt.reference = arg;
        break;
    case KEY_PICTURE_REFERENCE:
        a->adapt.picture_reference = arg;
        break;
    case KEY_QUESTIONS:
        a->adapt.questions = arg;
        break;
    case KEY_SERVICE:
        a->adapt.service_url = arg;
        break;
    case KEY_CONTEXT:
        a->adapt.context = (uint32_t)cli_int(state, "--context", arg, 1, 1 << 24);
        break;
    case KEY_REQUESTS:
        a->adapt.stress_requests = (uint32_t)cli_int(state, "--requests", arg, 1, 100000);
        break;
    case KEY_ANSWER:
        a->adapt.answer_seconds = (uint32_t)cli_int(state, "--answer-timeout", arg, 1, 86400);
        break;
    case KEY_COMM:
        a->adapt.comm = arg;
        break;
    case KEY_RULES:
        a->adapt.rules = arg;
        break;
    case KEY_ROOT:
        a->adapt.root = arg;
        break;
    case KEY_FUSE:
        a->adapt.fuse = cli_fusions(state, arg);
        break;
    case KEY_FRESH:
        a->adapt.fresh = true;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void on_progress(void *context, int stage, const char *what)
{
    (void)context;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K[%d/5] %s", stage, what);
}

static const char *paint_row(enum row_state s, bool accepted)
{
    if (s == ROW_FAILED)
        return "\033[31m";
    if (s == ROW_PASSED)
        return "\033[32m";
    return s == ROW_NOT_APPLICABLE || accepted ? "\033[2m" : "\033[33m";
}

static void print_people(const struct adapt_result *r)
{
    bool colour = cli_colour(stdout);
    static const char *const states[] = {"not run", "passed", "FAILED", "in part"};
    for (int i = 0; i < 5; i++) {
        const struct stage *s = &r->stages[i];
        printf("stage %d  %-34s %-8s %6.2f s%s\n", i + 1, s->title, states[s->state], s->seconds,
               s->resumed ? "  (resumed)" : "");
        if (s->summary && *s->summary)
            printf("         %s\n", s->summary);
    }
    printf("\n");
    for (int i = 0; i < ROW_N; i++) {
        const struct row *row = &r->rows[i];
        printf("%s%-15s%s  %-22s %s\n", colour ? paint_row(row->state, row->accept_reason != NULL) : "",
               row_state_name(row->state), colour ? "\033[0m" : "", row_title((enum row_id)i),
               row->evidence ? row->evidence : "");
        if (row->accept_reason)
            printf("                 accepted: %s\n", row->accept_reason);
    }
    printf("\n");
    cli_print_findings(&r->findings);
    printf("verdict: %s%s in %.1f s\nreport: %s\n", verdict_name(r->verdict),
           r->with_waivers ? " with waivers" : "", r->seconds, r->report_html_path);
}

static int print_json(const struct adapt_result *r)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &text, true);
    json_begin_object(&w);
    json_put_string(&w, "verdict", verdict_name(r->verdict));
    json_put_bool(&w, "with_waivers", r->with_waivers);
    json_key(&w, "checklist");
    json_begin_array(&w);
    for (int i = 0; i < ROW_N; i++) {
        json_begin_object(&w);
        json_put_string(&w, "row", row_key((enum row_id)i));
        json_put_string(&w, "title", row_title((enum row_id)i));
        json_put_string(&w, "state", row_state_name(r->rows[i].state));
        json_put_string(&w, "evidence", r->rows[i].evidence);
        json_put_string(&w, "accepted", r->rows[i].accept_reason);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_key(&w, "findings");
    findings_write_json(&r->findings, &w);
    json_put_string(&w, "report_json", r->report_json_path);
    json_put_string(&w, "report_html", r->report_html_path);
    json_put_f64(&w, "seconds", r->seconds);
    json_end_object(&w);
    return cli_print(&text, adapt_exit_status(r));
}

static void take_overrides(struct adapt_arguments *a)
{
    struct common *c = &a->common;
    for (size_t i = 0; i < c->n_accept; i++)
        a->accept[i] = (struct adapt_override){c->accept[i].key, c->accept[i].reason};
    for (size_t i = 0; i < c->n_waive; i++)
        a->waive[i] = (struct adapt_override){c->waive[i].key, c->waive[i].reason};
    a->adapt.accept = a->accept;
    a->adapt.n_accept = c->n_accept;
    a->adapt.waive = a->waive;
    a->adapt.n_waive = c->n_waive;
}

int cmd_adapt(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        options,  parse, "MODEL", "All five stages, from directory to verified service, and the report.",
        children, NULL,  NULL};
    struct adapt_arguments a = {.common = {.d0 = d0, .needs_model = true}};
    cli_parse(&argp, argc, argv, &a);
    take_overrides(&a);
    struct common *c = &a.common;
    a.adapt.model_dir = c->model;
    a.adapt.arch_path = c->arch;
    a.adapt.activations = c->activations;
    a.adapt.device = c->device;
    a.adapt.isa = c->cpu;
    a.adapt.n_threads = c->threads;
    a.adapt.memory_bytes = c->memory;
    a.adapt.progress = on_progress;
    struct arena arena;
    arena_init(&arena, NULL, MEM_MISC);
    struct err e = {0};
    char *program = NULL;
    struct adapt_result r;
    int rc = process_self_path(&arena, &program, &e);
    a.adapt.program = program;
    if (rc == ERR_OK)
        rc = adapt_run(&a.adapt, &r, d0, &e);
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
    int status;
    if (rc != ERR_OK) {
        status = cli_error(c, &e);
    } else {
        status = adapt_exit_status(&r);
        if (c->json)
            status = print_json(&r);
        else
            print_people(&r);
        adapt_result_release(&r);
    }
    arena_release(&arena);
    return status;
}
