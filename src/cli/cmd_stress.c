/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 stress: load on a server given by its URL, or on one started here for a model directory.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapt/adapt.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/process.h"
#include "base/thread.h"
#include "cli/cli.h"
#include "net/net.h"
#include "stress/stress.h"

struct stress_arguments {
    struct common common;
    struct stress_options stress;
    const char *prompt;
};

enum { KEY_CONCURRENCY = 0x2000, KEY_REQUESTS, KEY_TOKENS, KEY_RATE, KEY_SEED, KEY_PROMPT, KEY_MODEL };

static const struct argp_option options[] = {
    {"concurrency", KEY_CONCURRENCY, "N", 0, "requests in flight (default 8)", 1},
    {"requests", KEY_REQUESTS, "N", 0, "requests in total (default 32)", 1},
    {"max-tokens", KEY_TOKENS, "N", 0, "tokens of one answer (default 64)", 1},
    {"rate", KEY_RATE, "R", 0, "open loop: R requests per second on average, Poisson (default: closed loop)",
     1},
    {"prompt", KEY_PROMPT, "TEXT", 0, "prompt (default: a short text)", 1},
    {"model-name", KEY_MODEL, "NAME", 0, "model to ask for (default: the first that the server has)", 1},
    {"seed", KEY_SEED, "N", 0, "seed of the arrivals (default 1)", 1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct stress_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        break;
    case KEY_CONCURRENCY:
        a->stress.concurrency = (uint32_t)cli_int(state, "--concurrency", arg, 1, 4096);
        break;
    case KEY_REQUESTS:
        a->stress.n_requests = (uint32_t)cli_int(state, "--requests", arg, 1, 1000000);
        break;
    case KEY_TOKENS:
        a->stress.max_tokens = (uint32_t)cli_int(state, "--max-tokens", arg, 1, 1 << 20);
        break;
    case KEY_RATE:
        a->stress.rate = cli_number(state, "--rate", arg, 1e-3, 1e6);
        break;
    case KEY_PROMPT:
        a->prompt = arg;
        break;
    case KEY_MODEL:
        a->stress.model = arg;
        break;
    case KEY_SEED:
        a->stress.seed = (uint64_t)cli_int(state, "--seed", arg, 0, INT64_MAX);
        break;
    case ARGP_KEY_END:
        if (!a->common.model)
            argp_error(state, "a URL or a MODEL directory is needed");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* A child `day0 serve` on a free port; its port comes through a file in a directory of its own. */
struct child {
    struct process process;
    char dir[64], port_file[96], log_file[96], url[64];
};

static bool is_ready(const struct child *c)
{
    char url[96];
    struct http_response answer = {0};
    snprintf(url, sizeof url, "%s/health", c->url);
    struct http_request request = {.url = url, .timeout_ns = UINT64_C(5000000000)};
    bool ready = http_fetch(&request, NULL, NULL, &answer, NULL) == ERR_OK && answer.status == 200;
    http_response_release(&answer);
    return ready;
}

/* Of all files beside each other in a directory: what is loaded is less. */
static uint64_t bytes_in(const char *dir, struct arena *arena)
{
    uint64_t sum = 0;
    char **names = NULL;
    size_t n = 0;
    struct file_info info;
    if (dir_list(dir, arena, &names, &n, NULL) != ERR_OK)
        return 0;
    for (size_t i = 0; i < n; i++) {
        const char *path = path_join(arena, dir, names[i]);
        if (path && file_stat(path, &info, NULL) == ERR_OK && info.is_file)
            sum = sat_add(sum, info.bytes);
    }
    return sum;
}

/* It listens before its engine has computed a first token, and refuses requests until then. */
static int wait_until_ready(struct child *c, uint64_t patience_ns, struct arena *arena, struct err *e)
{
    for (const uint64_t begin = clock_ns(); clock_ns() - begin < patience_ns; clock_sleep_ns(20000000)) {
        char *text = NULL;
        size_t n = 0;
        if (!c->url[0] && file_read(c->port_file, 32, arena, &text, &n, NULL) == ERR_OK && n > 1)
            snprintf(c->url, sizeof c->url, "http://127.0.0.1:%.*s", (int)strcspn(text, "\n"), text);
        if (c->url[0] && is_ready(c))
            return ERR_OK;
        int rc = process_poll(&c->process, e);
        if (rc != ERR_OK)
            return rc;
        if (!c->process.running) {
            if (file_read(c->log_file, 4096, arena, &text, &n, NULL) != ERR_OK)
                text = NULL;
            return err_set(e, ERR_DEVICE, "the service ended with status %d: %s", c->process.exit_status,
                           text ? text : "");
        }
    }
    return err_set(e, ERR_TIMEOUT, "the service was not ready within %" PRIu64 " s",
                   patience_ns / UINT64_C(1000000000));
}

static int start_child(struct child *c, struct common *common, struct arena *arena, struct err *e)
{
    struct file_info info;
    int rc = file_stat(common->model, &info, e);
    if (rc == ERR_OK && !info.is_dir) {
        err_set(e, ERR_MISSING, "%s: no such model directory, and no http:// URL", common->model);
        err_hint(e, "give a directory or a URL like http://127.0.0.1:8000");
        return ERR_MISSING;
    }
    snprintf(c->dir, sizeof c->dir, "/tmp/day0-stress.XXXXXX");
    if (rc == ERR_OK && !mkdtemp(c->dir))
        rc = err_set(e, ERR_IO, "cannot make a directory under /tmp: %m");
    snprintf(c->port_file, sizeof c->port_file, "%s/port", c->dir);
    snprintf(c->log_file, sizeof c->log_file, "%s/log", c->dir);
    char *self = NULL, threads[16], memory[24];
    if (rc == ERR_OK)
        rc = process_self_path(arena, &self, e);
    if (rc != ERR_OK)
        return rc;
    const char *argv[24] = {self, "serve", common->model, "--port", "0", "--port-file", c->port_file};
    size_t n = 7;
    snprintf(threads, sizeof threads, "%u", common->threads);
    snprintf(memory, sizeof memory, "%" PRIu64, common->memory);
    const char *const extra[][2] = {{"--cpu", common->cpu},
                                    {"--device", common->device},
                                    {"--arch", common->arch},
                                    {"--threads", common->threads ? threads : NULL},
                                    {"--memory", common->memory ? memory : NULL},
                                    {"--activations", spec_activations_name(common->activations)}};
    for (size_t i = 0; i < ARRAY_LEN(extra); i++)
        if (extra[i][1]) {
            argv[n++] = extra[i][0];
            argv[n++] = extra[i][1];
        }
    rc = process_start(&c->process, argv, c->log_file, e);
    return rc == ERR_OK ? wait_until_ready(c, service_patience_ns(bytes_in(common->model, arena)), arena, e)
                        : rc;
}

static void stop_child(struct child *c)
{
    if (c->process.pid > 0)
        process_stop(&c->process, UINT64_C(5000000000), NULL);
    if (c->dir[0]) {
        unlink(c->port_file);
        unlink(c->log_file);
        rmdir(c->dir);
    }
}

static void print_quantiles(struct table *t, const char *name, const struct quantiles *q)
{
    table_cell(t, "%s", name);
    table_cell(t, "%.2f", q->mean);
    table_cell(t, "%.2f", q->p50);
    table_cell(t, "%.2f", q->p90);
    table_cell(t, "%.2f", q->p99);
    table_cell(t, "%.2f", q->max);
}

static void print_people(const struct stress_arguments *a, const struct stress_result *r)
{
    char b[32];
    printf("%u requests, %u ok, %u failed, in %.2f s; concurrency %u\n", r->n_sent, r->n_ok, r->n_failed,
           r->seconds, a->stress.concurrency);
    if (r->n_failed)
        printf("first failure: %s\n", r->first_failure);
    printf("%.1f output tokens/s, %.2f requests/s, %llu prompt and %llu output tokens\n",
           r->output_tokens_per_second, r->requests_per_second, (unsigned long long)r->prompt_tokens,
           (unsigned long long)r->output_tokens);
    if (r->rss_peak)
        printf("server memory: peak %s\n", format_bytes(r->rss_peak, b, sizeof b));
    struct table t;
    table_init(&t, 6);
    static const char *const heads[] = {"ms", ">mean", ">p50", ">p90", ">p99", ">max"};
    for (size_t i = 0; i < ARRAY_LEN(heads); i++)
        table_cell(&t, "%s", heads[i]);
    print_quantiles(&t, "TTFT", &r->ttft);
    print_quantiles(&t, "TPOT", &r->tpot);
    print_quantiles(&t, "ITL", &r->itl);
    print_quantiles(&t, "E2E", &r->e2e);
    table_print(&t, stdout);
    table_release(&t);
    printf("\n%s\n", stress_definitions());
}

static int print_all(const struct stress_arguments *a, const struct stress_result *r)
{
    int status = r->n_failed ? EXIT_CHECK_FAILED : EXIT_PASSED;
    if (!a->common.json) {
        print_people(a, r);
        return status;
    }
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &text, true);
    stress_write_json(r, &w);
    return cli_print(&text, status);
}

int cmd_stress(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {options,  parse, "URL|MODEL", "Load test over HTTP.",
                                     children, NULL,  NULL};
    struct stress_arguments a = {.common = {.d0 = d0}, .prompt = "Once upon a time"};
    a.stress = (struct stress_options){
        .concurrency = 8, .n_requests = 32, .max_tokens = 64, .seed = 1, .n_prompts = 1};
    cli_parse(&argp, argc, argv, &a);
    a.stress.prompts = &a.prompt;
    a.stress.log = &d0->log;
    struct arena arena;
    arena_init(&arena, NULL, MEM_MISC);
    struct child child = {0};
    struct err e = {0};
    int rc = ERR_OK;
    a.stress.url = a.common.model;
    if (!str_starts(a.common.model, "http://") && !str_starts(a.common.model, "https://")) {
        rc = start_child(&child, &a.common, &arena, &e);
        a.stress.url = child.url;
        a.stress.pid = child.process.pid;
    }
    struct stress_result r = {0};
    if (rc == ERR_OK)
        rc = stress_run(&a.stress, &r, &e);
    stop_child(&child);
    int status = rc == ERR_OK ? print_all(&a, &r) : cli_error(&a.common, &e);
    stress_result_release(&r);
    arena_release(&arena);
    return status;
}
