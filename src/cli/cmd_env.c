/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 env: this platform, or one that was captured, as far as it can be known without touching it.
 */
#include "cli/cli.h"
#include "host/host.h"
#include "kern/kern.h"

enum { KEY_CAPTURE = 0x2000, KEY_ROOT, KEY_RULES };

struct env_options {
    struct common common;
    const char *capture, *root, *rules;
};

static const struct argp_option options[] = {
    {"capture", KEY_CAPTURE, "FILE", 0, "write the facts of this machine and their sources to FILE", 0},
    {"root", KEY_ROOT, "FILE", 0, "show the machine that was captured in FILE instead of this one", 0},
    {"rules", KEY_RULES, "FILE", 0, "version rules to judge by (default: the built-in ones)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct env_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        break;
    case KEY_CAPTURE:
        o->capture = arg;
        break;
    case KEY_ROOT:
        o->root = arg;
        break;
    case KEY_RULES:
        o->rules = arg;
        break;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", arg);
        break;
    case ARGP_KEY_END:
        if (o->capture && o->root)
            argp_error(state, "--capture writes this machine, --root shows another: only one of them");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const char *known(const char *s)
{
    return s ? s : "unknown";
}

/* A number, or that nobody knows it. */
static const char *number(unsigned n, const char *what, char buf[64])
{
    if (n)
        snprintf(buf, 64, "%u %s", n, what);
    else
        snprintf(buf, 64, "unknown number of %s", what);
    return buf;
}

/* Drivers mostly put the vendor into the model's name. */
static const char *card_name(const struct host_card *c, char *buf, size_t bytes)
{
    bool twice = c->vendor && c->model && str_starts(c->model, c->vendor);
    snprintf(buf, bytes, "%s%s%s", twice ? "" : known(c->vendor), twice ? "" : " ",
             c->model ? c->model : "card of unknown model");
    return buf;
}

static void print_machine(const struct host *h)
{
    char a[64], b[64], c[64], d[64];
    if (h->capture)
        printf("captured  %s, %s\n", h->capture, known(h->taken_at));
    printf("host      %s, %s, kernel %s\n", known(h->hostname), known(h->os), known(h->kernel));
    printf("processor %s (%s), %s, %s, %s, %s\n", known(h->cpu_model), known(h->arch),
           number(h->n_cores, "cores", a), number(h->n_threads_usable, "usable threads", b),
           number(h->n_sockets, "sockets", c), number(h->n_numa, "NUMA nodes", d));
    printf("flags     %s\n", known(h->cpu_flags));
    if (!h->capture) {
        printf("kernels   ");
        for (int isa = 0; isa < KERN_N_ISA; isa++)
            printf("%s %s%s", kern_isa_name((enum kern_isa)isa),
                   kern_isa_available((enum kern_isa)isa) ? "yes" : "no", isa + 1 < KERN_N_ISA ? ", " : "\n");
    }
    printf("caches    L2 %s, L3 %s\n", h->l2_bytes ? format_bytes(h->l2_bytes, a, sizeof a) : "unknown",
           h->l3_bytes ? format_bytes(h->l3_bytes, b, sizeof b) : "unknown");
    if (h->memory_limit_source)
        printf("memory    %s, %s available (%s)\n",
               h->memory_total ? format_bytes(h->memory_total, a, sizeof a) : "unknown",
               format_bytes(h->memory_available, b, sizeof b), h->memory_limit_source);
    else
        printf("memory    unknown\n");
    for (size_t i = 0; i < h->n_cards; i++)
        printf("card      %s (%s, %s)\n", card_name(&h->cards[i], a, sizeof a), h->cards[i].address,
               known(h->cards[i].device));
    for (size_t i = 0; i < h->n_links; i++)
        printf("link      %s, %s, %s\n", h->links[i].name, known(h->links[i].rate), known(h->links[i].state));
    printf("compiler  %s\n\n", known(h->compiler));
}

static void print_libraries(const struct host *h)
{
    struct table t;
    table_init(&t, 4);
    table_cell(&t, "library");
    table_cell(&t, "version");
    table_cell(&t, "package");
    table_cell(&t, "used for");
    for (size_t i = 0; i < h->n_libraries; i++) {
        const struct host_library *l = &h->libraries[i];
        table_cell(&t, "%s", l->name);
        table_cell(&t, "%s", l->found ? (l->version ? l->version : "found, version unknown") : "not found");
        table_cell(&t, "%s", l->package ? l->package : "");
        table_cell(&t, "%s", l->role);
    }
    table_print(&t, stdout);
    table_release(&t);
}

static void print_rules(const struct host *h, const struct host_rules *r)
{
    struct table t;
    char seen[300];
    table_init(&t, 4);
    table_cell(&t, "rule");
    table_cell(&t, "state");
    table_cell(&t, "wants");
    table_cell(&t, "found");
    for (size_t i = 0; i < r->n; i++) {
        const struct host_rule *x = &r->items[i];
        enum host_rule_state s = host_rule_judge(x, h, seen, sizeof seen);
        table_cell(&t, "%s", x->id);
        table_cell(&t, "%s", host_rule_state_name(s));
        table_cell(&t, "%s %s", x->component, x->needs);
        table_cell(&t, "%s", seen[0] ? seen : s == HOST_RULE_NOT_APPLICABLE ? "not here" : "unknown");
    }
    printf("\n");
    table_print(&t, stdout);
    table_release(&t);
}

static int show(const struct env_options *o, const struct host *h, const struct host_rules *r,
                const struct findings *f)
{
    int status = findings_failed(f) ? EXIT_CHECK_FAILED : EXIT_PASSED;
    if (o->common.json) {
        struct strbuf text = STRBUF_INIT;
        struct json_writer w;
        json_writer_init(&w, &text, true);
        json_begin_object(&w);
        host_write_members(h, &w);
        json_key(&w, "rules");
        host_rules_write_json(r, h, &w);
        json_key(&w, "findings");
        findings_write_json(f, &w);
        json_end_object(&w);
        return cli_print(&text, status);
    }
    print_machine(h);
    print_libraries(h);
    print_rules(h, r);
    printf("\n%s\n", h->topology ? h->topology : "topology unknown");
    cli_print_findings(f);
    return status;
}

int cmd_env(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        options, parse, "", "This platform, or one that was captured elsewhere.", children, NULL, NULL};
    struct env_options o = {.common = {.d0 = d0}};
    cli_parse(&argp, argc, argv, &o);
    struct err e = {0};
    struct host *h = NULL;
    struct host_rules rules = {0};
    if (o.capture) {
        if (host_capture(o.capture, &e) != ERR_OK)
            return cli_error(&o.common, &e);
        fprintf(stderr,
                "day0: this machine is in %s: host name, kernel and library versions, control groups\n",
                o.capture);
        return EXIT_PASSED;
    }
    int rc = o.root ? host_open_capture(&h, o.root, &e) : host_open(&h, ".", &e);
    if (!rc)
        rc = host_rules_open(&rules, o.rules, &e);
    if (rc) {
        host_close(h);
        return cli_error(&o.common, &e);
    }
    struct findings f;
    findings_init(&f, &d0->mem);
    host_rules_check(&rules, h, &f);
    cli_waive(&o.common, &f);
    int status = show(&o, h, &rules, &f);
    findings_release(&f);
    host_rules_release(&rules);
    host_close(h);
    return status;
}
