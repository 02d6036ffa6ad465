/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 inspect: what a model is, from headers.
 */
#include "cli/cli.h"
#include "preflight/preflight.h"

#include <string.h>

enum { OPT_TENSORS = 256 };

struct inspect {
    struct common c;
    bool tensors, logical;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct inspect *x = state->input;
    struct common *c = &x->c;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = c;
        break;
    case OPT_TENSORS:
        x->tensors = true;
        x->logical = arg && strcmp(arg, "logical") == 0;
        if (arg && !x->logical && strcmp(arg, "stored") != 0)
            argp_error(state, "--tensors takes stored or logical");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

void cli_print_asked(const struct spec_asked *asked, size_t n)
{
    if (n)
        printf("activations   the release asks for");
    for (size_t i = 0; i < n; i++)
        printf(" %s %llu%s", asked[i].name, (unsigned long long)asked[i].weights,
               i + 1 < n ? "," : " (--activations released)\n");
}

static void print_people(const struct preflight_inspection *x)
{
    char a[32], b[32];
    printf("%s (%s), described by %s (%s, sha256 %.16s)\n", x->architecture, x->model_type, x->arch_file,
           x->arch_origin, x->arch_sha256);
    printf("parameters    %s in %llu tensors, %llu files, %s\n", format_count(x->parameters, a, sizeof a),
           (unsigned long long)x->n_tensors, (unsigned long long)x->n_shards,
           format_bytes(x->weight_bytes, b, sizeof b));
    if (x->n_experts)
        printf("per token     %s active parameters; %llu experts in a layer\n",
               format_count(x->active_parameters, a, sizeof a), (unsigned long long)x->n_experts);
    if (x->n_tensors == 0) {
        printf("described     %llu tensors, %s; none is here\n", (unsigned long long)x->described_tensors,
               format_bytes(x->described_bytes, b, sizeof b));
    }
    if (x->n_schemes > 1 || (x->n_schemes && strcmp(x->schemes[0].name, "none") != 0)) {
        printf("stored as    ");
        for (size_t i = 0; i < x->n_schemes; i++)
            printf(" %s %llu%s", x->schemes[i].name, (unsigned long long)x->schemes[i].count,
                   i + 1 < x->n_schemes ? "," : "\n");
    }
    cli_print_asked(x->activations, x->n_activations);
    if (x->n_dtypes)
        printf("types        ");
    for (size_t i = 0; i < x->n_dtypes; i++)
        printf(" %s %s%s", x->dtypes[i].dtype ? dtype_name(x->dtypes[i].dtype) : "unknown",
               format_bytes(x->dtypes[i].bytes, a, sizeof a), i + 1 < x->n_dtypes ? "," : "\n");
    printf("shape         %lld layers, hidden %lld, intermediate %lld, %lld heads (%lld for keys and values) "
           "of %lld, vocabulary %lld%s\n",
           (long long)x->n_layers, (long long)x->hidden, (long long)x->intermediate, (long long)x->n_heads,
           (long long)x->n_kv_heads, (long long)x->head_dim, (long long)x->vocab,
           x->tied_embeddings ? ", tied embeddings" : "");
    printf("context       %lld tokens; KV %s per token (%s)\n", (long long)x->context_limit,
           format_bytes(x->kv_bytes_per_token, a, sizeof a), dtype_name(x->kv_dtype));
    if (x->state_bytes)
        printf("state         %s for one request\n", format_bytes(x->state_bytes, a, sizeof a));
    printf("operators    ");
    for (size_t i = 0; i < x->n_operators; i++)
        printf(" %s%s%s %llu%s", x->operators[i].group ? x->operators[i].group : "",
               x->operators[i].group ? ":" : "", x->operators[i].name,
               (unsigned long long)x->operators[i].count, i + 1 < x->n_operators ? "," : "\n");
    printf("manifest      sha256 %s\n", x->manifest_sha256);
    cli_print_layouts(&x->layouts);
}

static int print_all(const struct common *c, struct ckpt *ckpt, const struct spec *spec,
                     const struct findings *f, struct err *e)
{
    if (!spec) {
        if (c->json) {
            struct strbuf text = STRBUF_INIT;
            struct json_writer w;
            json_writer_init(&w, &text, true);
            preflight_write_check(PREFLIGHT_FAIL, f, 0, &w);
            return cli_print(&text, EXIT_CHECK_FAILED);
        }
        cli_print_findings(f);
        return EXIT_CHECK_FAILED;
    }
    struct preflight_inspection x;
    struct arena arena;
    arena_init(&arena, &c->d0->mem, MEM_MISC);
    int rc = preflight_inspect(ckpt, spec, &arena, &x, e);
    if (rc == ERR_OK && c->json) {
        struct strbuf text = STRBUF_INIT;
        struct json_writer w;
        json_writer_init(&w, &text, true);
        preflight_write_inspection(&x, &w);
        rc = cli_print(&text, EXIT_PASSED);
    } else if (rc == ERR_OK) {
        print_people(&x);
        rc = EXIT_PASSED;
    }
    arena_release(&arena);
    return rc;
}

static int put_text(void *ctx, const char *text, size_t n)
{
    return fwrite(text, 1, n, ctx) == n ? 0 : 1;
}

static int print_tensors(const struct inspect *x, const struct ckpt *ckpt, const struct spec *spec,
                         const struct findings *f)
{
    if (!spec) {
        cli_print_findings(f);
        return EXIT_CHECK_FAILED;
    }
    if (preflight_tensors(ckpt, spec, x->logical, put_text, stdout) != 0 || fflush(stdout) != 0) {
        fprintf(stderr, "day0: could not write the list\n");
        return EXIT_MACHINE;
    }
    return EXIT_PASSED;
}

int cmd_inspect(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"tensors", OPT_TENSORS, "stored|logical", OPTION_ARG_OPTIONAL,
         "List all tensors with type, shape, role, partition and bytes (needs config.json only); logical: "
         "names "
         "and shapes without quantisation",
         0},
        {0},
    };
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {options,  parse, "MODEL", "What a model is, from headers.",
                                     children, NULL,  NULL};
    struct inspect x = {.c = {.d0 = d0, .needs_model = true}};
    const struct common *c = &x.c;
    cli_parse(&argp, argc, argv, &x);
    struct findings f;
    findings_init(&f, &d0->mem);
    struct err e = {0};
    struct ckpt *ckpt = NULL;
    struct spec *spec = NULL;
    struct spec_options so = {.arch_path = c->arch};
    int rc = ckpt_open(&ckpt, c->model, &f, d0, &e);
    if (rc == ERR_OK)
        rc = spec_open(&spec, ckpt, &so, &f, d0, &e);
    if (rc == ERR_OK)
        rc = x.tensors ? print_tensors(&x, ckpt, spec, &f) : print_all(c, ckpt, spec, &f, &e);
    spec_close(spec);
    ckpt_close(ckpt);
    findings_release(&f);
    return rc < 0 ? cli_error(c, &e) : rc;
}
