/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 check: everything that headers show to be wrong with a model, or with running it here.
 */
#include "base/thread.h"
#include "cli/cli.h"
#include "host/host.h"
#include "preflight/preflight.h"

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct common *c = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = c;
        break;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_error(state, "one MODEL directory only");
        c->model = arg;
        break;
    case ARGP_KEY_END:
        if (!c->model)
            argp_error(state, "a MODEL directory is needed");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static int run_check(struct common *c, struct findings *f, enum preflight_verdict *verdict, struct err *e)
{
    struct preflight_options o = {.memory_bytes = c->memory, .memory_source = "--memory"};
    struct host *h = NULL;
    int rc = host_open(&h, ".", e);
    if (rc != ERR_OK)
        return rc;
    if (!c->memory) {
        o.memory_bytes = h->memory_available;
        o.memory_source = h->memory_limit_source;
    }
    struct ckpt *ckpt = NULL;
    struct spec *spec = NULL;
    struct spec_options so = {.arch_path = c->arch};
    rc = preflight_open(c->model, &so, &o, &ckpt, &spec, f, c->d0, e);
    if (rc == ERR_OK) {
        cli_waive(c, f);
        *verdict = preflight_verdict(f, spec);
    }
    spec_close(spec);
    ckpt_close(ckpt);
    host_close(h);
    return rc;
}

int cmd_check(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        NULL,     parse, "MODEL", "Pre-flight from headers: what would stop or spoil this model here.",
        children, NULL,  NULL};
    static const int statuses[] = {EXIT_PASSED, EXIT_CHECK_FAILED, EXIT_INCOMPLETE};
    struct common c = {.d0 = d0};
    cli_parse(&argp, argc, argv, &c);
    struct findings f;
    findings_init(&f, &d0->mem);
    struct err e = {0};
    enum preflight_verdict verdict = PREFLIGHT_FAIL;
    uint64_t begin = clock_ns();
    int rc = run_check(&c, &f, &verdict, &e);
    double seconds = (double)(clock_ns() - begin) * 1e-9;
    int status;
    if (rc != ERR_OK) {
        status = cli_error(&c, &e);
    } else if (c.json) {
        struct strbuf text = STRBUF_INIT;
        struct json_writer w;
        json_writer_init(&w, &text, true);
        preflight_write_check(verdict, &f, seconds, &w);
        status = cli_print(&text, statuses[verdict]);
    } else {
        cli_print_findings(&f);
        printf("%s: %s in %.2f s\n", c.model, preflight_verdict_name(verdict), seconds);
        status = statuses[verdict];
    }
    findings_release(&f);
    return status;
}
