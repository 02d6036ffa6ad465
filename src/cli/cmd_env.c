/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 env: this platform, as far as it can be known without touching it.
 */
#include "cli/cli.h"
#include "host/host.h"
#include "kern/kern.h"

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct common *c = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = c;
        break;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", arg);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void print_people(const struct host *h)
{
    char a[32], b[32];
    printf("host      %s, %s, kernel %s\n", h->hostname, h->os, h->kernel);
    printf("processor %s (%s), %u cores, %u usable threads, %u sockets, %u NUMA nodes\n", h->cpu_model,
           h->arch, h->n_cores, h->n_threads_usable, h->n_sockets, h->n_numa);
    printf("flags     %s\n", h->cpu_flags);
    printf("kernels   ");
    for (int isa = 0; isa < KERN_N_ISA; isa++)
        printf("%s %s%s", kern_isa_name((enum kern_isa)isa),
               kern_isa_available((enum kern_isa)isa) ? "yes" : "no", isa + 1 < KERN_N_ISA ? ", " : "\n");
    printf("caches    L2 %s, L3 %s\n", format_bytes(h->l2_bytes, a, sizeof a),
           format_bytes(h->l3_bytes, b, sizeof b));
    printf("memory    %s, %s available (%s)\n", format_bytes(h->memory_total, a, sizeof a),
           format_bytes(h->memory_available, b, sizeof b), h->memory_limit_source);
    printf("compiler  %s\n\n", h->compiler);
    struct table t;
    table_init(&t, 3);
    table_cell(&t, "library");
    table_cell(&t, "version");
    table_cell(&t, "used for");
    for (size_t i = 0; i < h->n_libraries; i++) {
        const struct host_library *l = &h->libraries[i];
        table_cell(&t, "%s", l->name);
        table_cell(&t, "%s", l->found ? (l->version ? l->version : "found, version unknown") : "not found");
        table_cell(&t, "%s", l->role);
    }
    table_print(&t, stdout);
    table_release(&t);
    printf("\n%s\n", h->topology);
}

int cmd_env(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {NULL, parse, "", "This platform.", children, NULL, NULL};
    struct common c = {.d0 = d0};
    cli_parse(&argp, argc, argv, &c);
    struct err e = {0};
    struct host *h = NULL;
    if (host_open(&h, ".", &e) != ERR_OK)
        return cli_error(&c, &e);
    int status = EXIT_PASSED;
    if (c.json) {
        struct strbuf text = STRBUF_INIT;
        struct json_writer w;
        json_writer_init(&w, &text, true);
        host_write_json(h, &w);
        status = cli_print(&text, EXIT_PASSED);
    } else {
        print_people(h);
    }
    host_close(h);
    return status;
}
