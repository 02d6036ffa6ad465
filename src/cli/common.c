/* SPDX-License-Identifier: Apache-2.0
 *
 * What the commands share: common options, numbers on the command line, errors and findings for people.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "day0/device.h"
#include "graph/graph.h"

enum {
    KEY_JSON = 0x1000,
    KEY_ARCH,
    KEY_DEVICE,
    KEY_CPU,
    KEY_THREADS,
    KEY_MEMORY,
    KEY_ACTIVATIONS,
    KEY_WAIVE,
    KEY_ACCEPT
};

static const struct argp_option options[] = {
    {"json", KEY_JSON, NULL, 0, "print one JSON document on stdout", 10},
    {"arch", KEY_ARCH, "FILE", 0, "architecture file to use instead of a shipped one", 10},
    {"device", KEY_DEVICE, "NAME", 0, "cpu (default), null, or the path of a plugin", 10},
    {"cpu", KEY_CPU, "ISA", 0, "ref, avx2, avx512, avx512bf16 or fast (default: the best this processor has)",
     10},
    {"threads", KEY_THREADS, "N", 0, "threads of the device (default: all cores)", 10},
    {"memory", KEY_MEMORY, "BYTES", 0, "plan for this much memory, e.g. 24G (default: what is available)",
     10},
    {"activations", KEY_ACTIVATIONS, "exact|bf16|released", 0,
     "what goes into products: as it is (default), rounded to BF16, or as the release asks", 10},
    {"waive", KEY_WAIVE, "ID=REASON", 0, "accept a finding; recorded with its reason", 10},
    {"accept", KEY_ACCEPT, "ROW=REASON", 0, "accept a row that is not checked; recorded with its reason", 10},
    {0},
};

static void add_override(const struct argp_state *state, struct override *list, size_t *n, char *arg)
{
    char *equals = strchr(arg, '=');
    if (!equals || equals == arg || !equals[1])
        argp_error(state, "'%s' is not of the form NAME=REASON: a waiver needs its reason", arg);
    if (*n == MAX_OVERRIDES)
        argp_error(state, "more than %d overrides", MAX_OVERRIDES);
    *equals = '\0';
    list[(*n)++] = (struct override){.key = arg, .reason = equals + 1};
}

static error_t parse_common(int key, char *arg, struct argp_state *state)
{
    struct common *c = state->input;
    switch (key) {
    case KEY_JSON:
        c->json = true;
        break;
    case KEY_ARCH:
        c->arch = arg;
        break;
    case KEY_DEVICE:
        c->device = arg;
        break;
    case KEY_CPU:
        c->cpu = arg;
        break;
    case KEY_THREADS:
        c->threads = (unsigned)cli_int(state, "--threads", arg, 1, 1024);
        break;
    case KEY_MEMORY:
        c->memory = cli_bytes(state, "--memory", arg);
        break;
    case KEY_ACTIVATIONS:
        if (!spec_activations_parse(arg, &c->activations))
            argp_error(state, "--activations: '%s' is not one of exact, bf16, released", arg);
        break;
    case KEY_WAIVE:
        add_override(state, c->waive, &c->n_waive, arg);
        break;
    case KEY_ACCEPT:
        add_override(state, c->accept, &c->n_accept, arg);
        break;
    case ARGP_KEY_ARG: /* comes here only where the command itself takes no argument of another kind */
        if (state->arg_num > 0)
            argp_error(state, "one argument only, but '%s' follows '%s'", arg, c->model);
        c->model = arg;
        break;
    case ARGP_KEY_END:
        if (c->needs_model && !c->model)
            argp_error(state, "a MODEL directory is needed");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

const struct argp common_argp = {.options = options, .parser = parse_common};

void cli_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    argp_err_exit_status = EXIT_WRONG_USAGE;
    argp_parse(argp, argc, argv, 0, NULL, input);
}

uint64_t cli_bytes(const struct argp_state *state, const char *what, const char *arg)
{
    uint64_t v = 0;
    if (!str_to_bytes(arg, &v) || v == 0)
        argp_error(state, "%s: '%s' is no size; write e.g. 24G, 512M or 2GiB", what, arg);
    return v;
}

int64_t cli_int(const struct argp_state *state, const char *what, const char *arg, int64_t min, int64_t max)
{
    int64_t v = 0;
    if (!str_to_i64(arg, &v) || v < min || v > max)
        argp_error(state, "%s: '%s' is not a whole number from %lld to %lld", what, arg, (long long)min,
                   (long long)max);
    return v;
}

double cli_number(const struct argp_state *state, const char *what, const char *arg, double min, double max)
{
    char *end = NULL;
    double v = strtod(arg, &end);
    if (end == arg || *end || !(v >= min && v <= max))
        argp_error(state, "%s: '%s' is not a number from %g to %g", what, arg, min, max);
    return v;
}

uint32_t cli_kv_dtype(const struct argp_state *state, const char *arg)
{
    static const struct {
        const char *name;
        uint32_t dtype;
    } types[] = {{"f32", D0_F32}, {"bf16", D0_BF16}, {"f16", D0_F16}};
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (!strcmp(arg, types[i].name))
            return types[i].dtype;
    argp_error(state, "--kv: '%s' is not one of f32, bf16, f16", arg);
    return 0;
}

const char *cli_fusions(const struct argp_state *state, const char *arg)
{
    struct err e = {0};
    uint32_t mask;
    if (fusions_parse(arg, &mask, &e) != ERR_OK)
        argp_error(state, "--fuse: %s; %s", e.message, e.hint);
    return arg;
}

bool cli_colour(FILE *out)
{
    const char *no = getenv("NO_COLOR");
    return isatty(fileno(out)) && !(no && *no);
}

int cli_error(const struct common *c, const struct err *e)
{
    int status = err_exit_status(e->code);
    if (c->json) {
        struct strbuf text = STRBUF_INIT;
        struct json_writer w;
        json_writer_init(&w, &text, true);
        json_begin_object(&w);
        json_key(&w, "error");
        json_begin_object(&w);
        json_put_string(&w, "code", err_name(e->code));
        json_put_string(&w, "message", e->message);
        json_put_string(&w, "hint", e->hint[0] ? e->hint : NULL);
        json_end_object(&w);
        json_put_i64(&w, "exit_status", status);
        json_end_object(&w);
        return cli_print(&text, status);
    }
    char buf[4096];
    fprintf(stderr, "day0: %s\n", err_format(e, buf, sizeof buf));
    return status;
}

void cli_waive(const struct common *c, struct findings *f)
{
    for (size_t i = 0; i < c->n_waive; i++)
        if (findings_waive(f, c->waive[i].key, c->waive[i].reason) == 0)
            fprintf(stderr, "day0: note: --waive %s: no such finding here\n", c->waive[i].key);
}

void cli_print_findings(const struct findings *f)
{
    bool colour = cli_colour(stdout);
    static const char *const paint[] = {"", "\033[33m", "\033[31m"};
    for (size_t i = 0; i < f->n; i++) {
        const struct finding *x = &f->items[i];
        const char *on = colour && !x->waived ? paint[x->severity] : "";
        printf("%s%s %s%s  %s%s\n    %s\n", on, finding_code(x->id), finding_name(x->id),
               *on ? "\033[0m" : "", x->subject, x->waived ? "  (waived)" : "", x->evidence);
        if (x->waived)
            printf("    waived: %s\n", x->waive_reason);
        else
            printf("    -> %s\n", x->remedy);
    }
    if (f->dropped)
        printf("... and %llu more findings\n", (unsigned long long)f->dropped);
}

void cli_put_ids(struct json_writer *w, const char *key, const struct ids *ids)
{
    json_key(w, key);
    json_begin_array(w);
    for (size_t i = 0; i < ids->n; i++)
        json_write_i64(w, ids->data[i]);
    json_end_array(w);
}

int cli_print(struct strbuf *text, int status)
{
    bool bad = strbuf_failed(text);
    if (!bad) {
        fwrite(text->data, 1, text->len, stdout);
        fputc('\n', stdout);
        bad = fflush(stdout) != 0;
    }
    strbuf_release(text);
    if (bad)
        fprintf(stderr, "day0: could not write the result\n");
    return bad ? EXIT_MACHINE : status;
}
